/* layer: mount */
/* The kernel's messages about passthrough, byte by byte. */
#include "mount/passthrough.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static uint32_t get32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static void put32(uint8_t *p, uint32_t v)
{
    memcpy(p, &v, 4);
}

/* An INIT request as a kernel with 64 flag bits sends it: 40 bytes of header and 64 of body. */
static void make_init(uint8_t p[104], uint32_t low, uint32_t high)
{
    memset(p, 0, 104);
    put32(p, 104);
    put32(p + 4, 26);
    put32(p + 40, 7);
    put32(p + 44, 45);
    put32(p + 48, 131072);
    put32(p + 52, low);
    put32(p + 56, high);
}

/* Both halves of the flags are read when the lower one says that there is an upper one. */
static void test_init_offer(void **state)
{
    (void)state;
    uint8_t p[104];
    struct passthrough_offer offer;
    make_init(p, 1u << 30 | 1, 1u << 5);
    assert_int_equal(passthrough_parse_init(p, sizeof(p), &offer), 0);
    assert_int_equal(offer.minor, 45);
    assert_true(offer.flags & PASSTHROUGH_FLAG_PASSTHROUGH);
    assert_false(offer.flags & PASSTHROUGH_FLAG_DIRECT_MMAP);
}

/* Without the bit for the upper half its bytes mean nothing, whatever they are. */
static void test_upper_flags_need_their_bit(void **state)
{
    (void)state;
    uint8_t p[104];
    struct passthrough_offer offer;
    make_init(p, 1, 0xffffffff);
    assert_int_equal(passthrough_parse_init(p, sizeof(p), &offer), 0);
    assert_int_equal(offer.flags, 1);
}

/* Old kernels send 16 bytes of body; every shorter or otherwise wrong request is refused and nothing beyond
 * it is read. */
static void test_init_of_any_length(void **state)
{
    (void)state;
    struct passthrough_offer offer;
    for (size_t n = 0; n <= 104; n++) {
        uint8_t *p = malloc(n ? n : 1), whole[104];
        make_init(whole, 1u << 30 | 1, 1u << 5);
        put32(whole, (uint32_t)n);
        memcpy(p, whole, n);
        int r = passthrough_parse_init(p, n, &offer);
        assert_int_equal(r, n < 56 ? -EINVAL : 0);
        if (r == 0)
            assert_int_equal(offer.flags >> 32 != 0, n >= 60);
        free(p);
    }
}

/* Requests of other operations, and lengths that do not fit, are no INIT. */
static void test_other_requests(void **state)
{
    (void)state;
    uint8_t p[104];
    struct passthrough_offer offer = {.minor = 99};
    make_init(p, 1, 0);
    put32(p + 4, 14);
    assert_int_equal(passthrough_parse_init(p, sizeof(p), &offer), -EINVAL);
    make_init(p, 1, 0);
    put32(p, 103);
    assert_int_equal(passthrough_parse_init(p, sizeof(p), &offer), -EINVAL);
    assert_int_equal(offer.minor, 99);
}

/* Accepting passthrough sets its bit, the stacking depth and the minor it came with, and takes writeback
 * caching away; all other bytes stay. */
static void test_init_reply(void **state)
{
    (void)state;
    uint8_t p[64], before[64];
    for (size_t i = 0; i < sizeof(p); i++)
        p[i] = (uint8_t)(i * 7);
    put32(p + 4, 38);
    put32(p + 12, 1u << 16 | 3);
    put32(p + 32, 2);
    memcpy(before, p, sizeof(p));
    assert_int_equal(
        passthrough_patch_init(p, sizeof(p), PASSTHROUGH_FLAG_PASSTHROUGH | PASSTHROUGH_FLAG_DIRECT_MMAP), 0);
    assert_int_equal(get32(p + 4), 40);
    assert_int_equal(get32(p + 12), 1u << 30 | 3);
    assert_int_equal(get32(p + 32), 1u << 5 | 1u << 4 | 2);
    assert_int_equal(get32(p + 36), 1);
    for (size_t i = 0; i < sizeof(p); i++)
        if (!(i >= 4 && i < 8) && !(i >= 12 && i < 16) && !(i >= 32 && i < 40))
            assert_int_equal(p[i], before[i]);
}

/* A newer minor is kept; accepting nothing changes nothing; only direct mapping leaves the stacking depth
 * alone. */
static void test_init_reply_keeps_what_it_need_not_change(void **state)
{
    (void)state;
    uint8_t p[64] = {0}, before[64];
    put32(p + 4, 45);
    memcpy(before, p, sizeof(p));
    assert_int_equal(passthrough_patch_init(p, sizeof(p), 0), 0);
    assert_memory_equal(p, before, sizeof(p));
    assert_int_equal(passthrough_patch_init(p, sizeof(p), PASSTHROUGH_FLAG_DIRECT_MMAP), 0);
    assert_int_equal(get32(p + 36), 0);
    assert_int_equal(get32(p + 4), 45);
    assert_int_equal(passthrough_patch_init(p, sizeof(p), PASSTHROUGH_FLAG_PASSTHROUGH), 0);
    assert_int_equal(get32(p + 4), 45);
}

/* Replies of older protocols are shorter: refused and left alone. */
static void test_short_replies(void **state)
{
    (void)state;
    uint8_t p[64] = {0}, zero[64] = {0};
    assert_int_equal(passthrough_patch_init(p, 24, PASSTHROUGH_FLAG_PASSTHROUGH), -EINVAL);
    assert_int_equal(passthrough_patch_open(p, 15, 3), -EINVAL);
    assert_int_equal(passthrough_patch_open(p, 16, 0), -EINVAL);
    assert_int_equal(passthrough_patch_open(p, 16, -1), -EINVAL);
    assert_memory_equal(p, zero, sizeof(p));
}

/* The reply to OPEN is its last 16 bytes, and CREATE's reply ends with the same: flags gain one bit, the id
 * comes where the padding was. */
static void test_open_reply(void **state)
{
    (void)state;
    uint8_t p[144];
    memset(p, 0xab, sizeof(p));
    put32(p + 128 + 8, 1u << 5);
    assert_int_equal(passthrough_patch_open(p, sizeof(p), 77), 0);
    assert_int_equal(get32(p + 128 + 8), 1u << 5 | 1u << 7);
    assert_int_equal(get32(p + 128 + 12), 77);
    for (size_t i = 0; i < 136; i++)
        assert_int_equal(p[i], 0xab);
}

/* Flags of the lower half are accepted too, and say nothing about passthrough. */
static void test_init_reply_with_lower_flags(void **state)
{
    (void)state;
    uint8_t p[64] = {0};
    put32(p + 4, 31);
    put32(p + 12, 1u << 16 | 1);
    assert_int_equal(passthrough_patch_init(p, sizeof(p), PASSTHROUGH_FLAG_KILLPRIV), 0);
    assert_int_equal(get32(p + 12), 1u << 30 | 1u << 28 | 1u << 16 | 1);
    assert_int_equal(get32(p + 4), 31);
    assert_int_equal(get32(p + 32), 0);
}

/* A request for a file without a name becomes one for a name that no file can have; nothing else of it, and
 * no other request, is changed. */
static void test_requests_without_a_name(void **state)
{
    (void)state;
    uint8_t p[58], before[58];
    for (uint32_t op = 1; op < 60; op++) {
        memset(p, 0xab, sizeof(p));
        put32(p, sizeof(p));
        put32(p + 4, op);
        memcpy(before, p, sizeof(p));
        assert_int_equal(passthrough_rewrite_tmpfile(p, sizeof(p)), op == 51);
        if (op == 51)
            put32(before + 4, 35);
        assert_memory_equal(p, before, sizeof(p));
    }
    put32(p + 4, 51);
    assert_false(passthrough_rewrite_tmpfile(p, sizeof(p) - 1));
    assert_false(passthrough_rewrite_tmpfile(p, 40));
    assert_int_equal(get32(p + 4), 51);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_init_offer),
        cmocka_unit_test(test_upper_flags_need_their_bit),
        cmocka_unit_test(test_init_of_any_length),
        cmocka_unit_test(test_other_requests),
        cmocka_unit_test(test_init_reply),
        cmocka_unit_test(test_init_reply_keeps_what_it_need_not_change),
        cmocka_unit_test(test_short_replies),
        cmocka_unit_test(test_open_reply),
        cmocka_unit_test(test_init_reply_with_lower_flags),
        cmocka_unit_test(test_requests_without_a_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
