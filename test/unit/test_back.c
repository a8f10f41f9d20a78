/* layer: object */
/* The pure half of write-back: records, decisions, listings. */
#include "object/back.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static struct back_record sample(void)
{
    static const char location[33] = "0123456789abcdef0123456789abcdef";
    struct back_record r = {.n_sent = 1,
                            .base = BACK_BASE_ETAG,
                            .seq = 0x0102030405060708,
                            .acked_ns = 1700000000123000000,
                            .since_ns = 5,
                            .size_bytes = 258,
                            .sent[0].size_bytes = 7,
                            .location = slice_of(location, sizeof(location)),
                            .base_etag = SLICE_LIT("e1"),
                            .content_type = SLICE_LIT("t/x"),
                            .meta = SLICE_LIT("x-amz-meta-a: b\n")};
    for (uint8_t i = 0; i < BACK_MD5_BYTES; i++) {
        r.md5[i] = i;
        r.sent[0].md5[i] = (uint8_t)(0xf0 + i);
    }
    return r;
}

/* A record is these bytes, and comes back as it was. */
static void test_record_is_golden(void **state)
{
    (void)state;
    static const uint8_t head[] = {1, 2, 2, 33, 8, 7, 6, 5, 4, 3, 2, 1};
    struct back_record r = sample(), back;
    _cleanup_buf_ struct buf b = BUF_INIT(BACK_RECORD_MAX_BYTES);
    assert_int_equal(back_record_encode(&r, &b), 0);
    assert_int_equal(b.n, 76 + 33 + 2 + 2 + 2 + 3 + 2 + 16);
    assert_memory_equal(b.p, head, sizeof(head));
    assert_memory_equal(b.p + 28, "\x02\x01\0\0\0\0\0\0\0\x01\x02", 11);
    assert_memory_equal(b.p + 52, "\x07\0\0\0\0\0\0\0\xf0\xf1", 10);
    assert_memory_equal(b.p + 76 + 33, "\x02\0e1\x03\0t/x\x10\0x-amz", 16);
    assert_int_equal(back_record_decode(buf_view(&b), &back), 0);
    assert_true(back.n_sent == 1 && !back.removal && back.base == BACK_BASE_ETAG);
    assert_true(back.seq == r.seq && back.acked_ns == r.acked_ns && back.since_ns == 5);
    assert_true(back.size_bytes == 258 && back.sent[0].size_bytes == 7);
    assert_true(slice_eq(back.location, r.location) && slice_eq(back.base_etag, r.base_etag));
    assert_true(slice_eq(back.content_type, r.content_type) && slice_eq(back.meta, r.meta));
    assert_memory_equal(back.md5, r.md5, BACK_MD5_BYTES);
    assert_memory_equal(back.sent[0].md5, r.sent[0].md5, BACK_MD5_BYTES);
}

/* One with older versions that were sent is of format 2: the same bytes, and the list behind them. Every
 * number of them comes back; what cannot be is refused. */
static void test_record_with_older_versions_is_golden(void **state)
{
    (void)state;
    for (unsigned n = 2; n <= BACK_SENT_MAX; n++) {
        struct back_record r = sample(), back;
        _cleanup_buf_ struct buf b = BUF_INIT(BACK_RECORD_MAX_BYTES), old = BUF_INIT(BACK_RECORD_MAX_BYTES);
        assert_int_equal(back_record_encode(&r, &old), 0);
        r.n_sent = n;
        for (unsigned i = 1; i < n; i++) {
            r.sent[i].size_bytes = 0x100 + i;
            memset(r.sent[i].md5, (int)i, BACK_MD5_BYTES);
        }
        assert_int_equal(back_record_encode(&r, &b), 0);
        assert_int_equal(b.n, old.n + 1 + 24 * (n - 1));
        assert_int_equal(b.p[0], 2);
        assert_memory_equal(b.p + 1, old.p + 1, old.n - 1);
        assert_int_equal(b.p[old.n], n - 1);
        assert_memory_equal(b.p + old.n + 1, "\x01\x01\0\0\0\0\0\0\x01\x01\x01\x01", 12);
        assert_int_equal(back_record_decode(buf_view(&b), &back), 0);
        assert_true(back.n_sent == n && slice_eq(back.meta, r.meta));
        assert_memory_equal(back.sent, r.sent, n * sizeof(r.sent[0]));
        for (size_t cut = 0; cut < b.n; cut++)
            assert_int_equal(back_record_decode(slice_of(b.p, cut), &back), ERR_CORRUPT);
        b.p[1] = 0; /* nothing was sent, but older ones were */
        assert_int_equal(back_record_decode(buf_view(&b), &back), ERR_CORRUPT);
        b.p[1] = 2;
        b.p[old.n] = 0;
        assert_int_equal(back_record_decode(slice_of(b.p, old.n + 1), &back), ERR_CORRUPT);
        b.p[old.n] = BACK_SENT_MAX;
        assert_int_equal(back_record_decode(buf_view(&b), &back), ERR_CORRUPT);
    }
}

/* One with a tag is of format 3: head and texts as ever, the list even when it is empty, the tag. Its ETag is
 * that of the tag, and its MD5 counts only when it is known. */
static void test_record_with_a_tag_is_golden(void **state)
{
    (void)state;
    for (unsigned n = 0; n <= BACK_SENT_MAX; n++) {
        struct back_record r = sample(), back;
        char etag[BACK_ETAG_SIZE];
        _cleanup_buf_ struct buf b = BUF_INIT(BACK_RECORD_MAX_BYTES), old = BUF_INIT(BACK_RECORD_MAX_BYTES);
        assert_int_equal(back_record_encode(&r, &old), 0);
        r.has_tag = true;
        r.has_md5 = n > 2;
        r.is_live = n % 2;
        r.n_sent = n;
        for (unsigned i = 0; i < BACK_TAG_BYTES; i++)
            r.tag[i] = (uint8_t)(0xa0 + i);
        assert_int_equal(back_record_encode(&r, &b), 0);
        assert_int_equal(b.n, old.n + 1 + 24 * (n > 0 ? n - 1 : 0) + BACK_TAG_BYTES);
        assert_int_equal(b.p[0], 3);
        assert_int_equal(b.p[1], (n > 0 ? 2 : 0) | (n > 2 ? 4 : 0) | (n % 2 ? 8 : 0));
        assert_memory_equal(b.p + 2, old.p + 2, 34);
        assert_memory_equal(b.p + 36, n > 2 ? "\0\1\2\3" : "\0\0\0\0", 4);
        assert_memory_equal(b.p + 76, old.p + 76, old.n - 76);
        assert_int_equal(b.p[old.n], n > 0 ? n - 1 : 0);
        assert_memory_equal(b.p + b.n - BACK_TAG_BYTES, r.tag, BACK_TAG_BYTES);
        assert_int_equal(back_record_decode(buf_view(&b), &back), 0);
        assert_true(back.has_tag && back.has_md5 == (n > 2) && back.is_live == n % 2 && back.n_sent == n);
        assert_memory_equal(back.tag, r.tag, BACK_TAG_BYTES);
        assert_true(slice_eq(back.meta, r.meta) && slice_eq(back.location, r.location));
        back_record_etag(&back, etag);
        assert_string_equal(etag, "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf-1");
        assert_int_equal(back_record_knows_md5(&back), n > 2);
        for (size_t cut = 0; cut < b.n; cut++)
            assert_int_equal(back_record_decode(slice_of(b.p, cut), &back), ERR_CORRUPT);
        b.p[1] |= 1; /* removals have no tag */
        assert_int_equal(back_record_decode(buf_view(&b), &back), ERR_CORRUPT);
        b.p[1] = 16;
        assert_int_equal(back_record_decode(buf_view(&b), &back), ERR_CORRUPT);
        assert_int_equal(buf_char(&b, 'x'), 0);
        assert_int_equal(back_record_decode(buf_view(&b), &back), ERR_CORRUPT);
    }
}

/* While its MD5 is not known, a version is none of those that were sent. */
static void test_a_version_without_md5_was_not_sent(void **state)
{
    (void)state;
    struct back_record r = {.has_tag = true, .n_sent = 1};
    assert_false(back_record_was_sent(&r));
    r.has_md5 = true;
    assert_true(back_record_was_sent(&r));
}

/* The versions that were sent: the latest first, each once, eight of them; the ninth sends the first away. */
static void test_versions_that_were_sent(void **state)
{
    (void)state;
    struct back_record r = {0};
    for (unsigned i = 1; i <= BACK_SENT_MAX + 1; i++) {
        r.size_bytes = i;
        assert_false(back_record_was_sent(&r));
        assert_int_equal(back_record_note_sent(&r), i > BACK_SENT_MAX);
        assert_true(back_record_was_sent(&r) && r.sent[0].size_bytes == i);
        assert_int_equal(r.n_sent, MIN(i, (unsigned)BACK_SENT_MAX));
    }
    assert_int_equal(r.sent[BACK_SENT_MAX - 1].size_bytes, 2);
    r.size_bytes = 4; /* once more */
    assert_false(back_record_note_sent(&r));
    assert_true(r.n_sent == BACK_SENT_MAX && r.sent[0].size_bytes == 4 && r.sent[1].size_bytes == 9);
    assert_int_equal(r.sent[BACK_SENT_MAX - 1].size_bytes, 2);
    r.md5[3] = 1; /* other bytes of that size */
    assert_false(back_record_was_sent(&r));
    struct back_record which = {.size_bytes = 4};
    back_record_forget_sent(&r, &which);
    assert_true(r.n_sent == BACK_SENT_MAX - 1 && r.sent[0].size_bytes == 9);
    back_record_forget_sent(&r, &which);
    assert_int_equal(r.n_sent, BACK_SENT_MAX - 1);
}

/* Cut anywhere, longer, of another format or with what cannot be, a record is refused. */
static void test_broken_records_are_refused(void **state)
{
    (void)state;
    struct back_record r = sample(), back;
    _cleanup_buf_ struct buf b = BUF_INIT(BACK_RECORD_MAX_BYTES);
    assert_int_equal(back_record_encode(&r, &b), 0);
    for (size_t n = 0; n < b.n; n++)
        assert_int_equal(back_record_decode(slice_of(b.p, n), &back), ERR_CORRUPT);
    static const struct {
        size_t at;
        char value;
    } bad[] = {{0, 4}, {0, 3}, {0, 2}, {1, 4}, {1, 1}, {2, 3}, {3, 32}, {3, 0}};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        char *copy = slice_dup(buf_view(&b));
        copy[bad[i].at] = bad[i].value;
        assert_int_equal(back_record_decode(slice_of(copy, b.n), &back), ERR_CORRUPT);
        free(copy);
    }
    assert_int_equal(buf_char(&b, 'x'), 0);
    assert_int_equal(back_record_decode(buf_view(&b), &back), ERR_CORRUPT);
}

/* What somebody else wrote is never overwritten or removed; what is ours or as before is. */
static void test_decisions(void **state)
{
    (void)state;
    static const struct {
        bool removal, sent;
        enum back_base base;
        const char *etag; /* of the origin's object, NULL: none */
        bool is_sent, is_wanted;
        enum back_step step;
    } rows[] = {
        {false, false, BACK_BASE_ABSENT, NULL, false, false, BACK_SEND},
        {false, false, BACK_BASE_ETAG, NULL, false, false, BACK_SEND},
        {false, false, BACK_BASE_ETAG, "base", false, false, BACK_SEND},
        {false, false, BACK_BASE_ETAG, "other", false, false, BACK_CONFLICT},
        {false, false, BACK_BASE_ABSENT, "other", false, false, BACK_CONFLICT},
        {false, false, BACK_BASE_ABSENT, "", false, false, BACK_CONFLICT},
        {false, false, BACK_BASE_UNKNOWN, "base", false, false, BACK_CONFLICT},
        {false, true, BACK_BASE_ABSENT, "x", true, false, BACK_SEND},
        {false, true, BACK_BASE_ABSENT, "x", true, true, BACK_DONE},
        {false, false, BACK_BASE_ABSENT, "x", true, false, BACK_CONFLICT},
        {true, false, BACK_BASE_ETAG, NULL, false, false, BACK_DONE},
        {true, false, BACK_BASE_ETAG, "base", false, false, BACK_SEND},
        {true, false, BACK_BASE_ETAG, "other", false, false, BACK_CONFLICT},
        {true, true, BACK_BASE_ABSENT, "x", true, false, BACK_SEND},
        {true, false, BACK_BASE_UNKNOWN, "x", false, false, BACK_CONFLICT},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct back_record r = {.removal = rows[i].removal,
                                .n_sent = rows[i].sent,
                                .base = rows[i].base,
                                .base_etag = SLICE_LIT("base")};
        struct back_found now = {.exists = rows[i].etag != NULL,
                                 .etag = slice_str(rows[i].etag),
                                 .is_sent = rows[i].is_sent,
                                 .is_wanted = rows[i].is_wanted};
        if (back_decide(&r, &now) != rows[i].step)
            fail_msg("row %zu", i);
        now.is_directory = true; /* it is nobody's in particular */
        if (back_decide(&r, &now) != (rows[i].step == BACK_CONFLICT ? BACK_SEND : rows[i].step))
            fail_msg("row %zu, of a directory", i);
    }
}

/* The second copy has a name of its own that fits, is whole UTF-8, and is the same for the same write. */
static void test_names_of_second_copies(void **state)
{
    (void)state;
    struct back_record r = sample();
    _cleanup_buf_ struct buf b = BUF_INIT(ORIGIN_KEY_MAX_BYTES), again = BUF_INIT(ORIGIN_KEY_MAX_BYTES);
    assert_int_equal(back_copy_key(SLICE_LIT("a/k"), /* cut= */ 0, &r, &b), 0);
    assert_true(slice_eq_str(buf_view(&b), "a/k.conflict-1700000000123-00010203"));
    char longest[ORIGIN_KEY_MAX_BYTES];
    for (size_t i = 0; i < sizeof(longest); i++)
        longest[i] = i % 2 ? '\xbc' : '\xc3';
    for (size_t odd = 0; odd < 2; odd++) {
        buf_clear(&b);
        buf_clear(&again);
        struct slice key = slice_of(longest + 2 * odd, sizeof(longest) - 2 * odd);
        r.acked_ns = odd ? UINT64_MAX : 0;
        assert_int_equal(back_copy_key(key, /* cut= */ 0, &r, &b), 0);
        assert_int_equal(back_copy_key(key, /* cut= */ 0, &r, &again), 0);
        assert_true(slice_is_utf8(buf_view(&b)) && slice_eq(buf_view(&b), buf_view(&again)));
    }
}

/* Waits grow from 100 ms and end at a minute, however often it failed. */
static void test_delays(void **state)
{
    (void)state;
    assert_int_equal(back_delay_ms(0), 100);
    assert_int_equal(back_delay_ms(3), 800);
    for (uint32_t i = 1; i < 100; i++)
        assert_true(back_delay_ms(i) >= back_delay_ms(i - 1) && back_delay_ms(i) <= 60000);
    assert_int_equal(back_delay_ms(UINT32_MAX), 60000);
}

#define KEYS 12

/* Against a model: random pages and records, every maximum; each entry once, in order, removals hidden. */
static void test_merge_is_as_the_model(void **state)
{
    (void)state;
    static char names[KEYS][2];
    srand(1);
    for (unsigned seed = 0; seed < 3000; seed++) {
        struct origin_entry page[KEYS], got[KEYS], want[KEYS];
        struct back_listed mine[KEYS];
        size_t n_page = 0, n_mine = 0, n_want = 0;
        for (size_t i = 0; i < KEYS; i++) {
            names[i][0] = (char)('a' + i);
            struct slice key = slice_of(names[i], 1);
            bool there = rand() % 2, here = rand() % 2, gone = rand() % 2;
            if (there)
                page[n_page++] = (struct origin_entry){.key = key, .attr.size_bytes = 1};
            if (here)
                mine[n_mine++] = (struct back_listed){.key = key, .gone = gone, .attr.size_bytes = 2};
            if (here ? !gone : there)
                want[n_want++] = (struct origin_entry){.key = key, .attr.size_bytes = here ? 2 : 1};
        }
        size_t max = 1 + (size_t)rand() % KEYS;
        struct back_merged m;
        back_merge(page, n_page, mine, n_mine, max, got, &m);
        assert_int_equal(m.n, MIN(n_want, max));
        assert_int_equal(m.cut, n_want > max);
        for (size_t i = 0; i < m.n; i++)
            assert_true(slice_eq(got[i].key, want[i].key) &&
                        got[i].attr.size_bytes == want[i].attr.size_bytes);
        if (m.cut)
            assert_true(slice_cmp(m.last, got[m.n - 1].key) >= 0 && slice_cmp(m.last, want[m.n].key) < 0);
    }
}

/* Tokens carry any bytes; what is none of ours is refused. */
static void test_tokens(void **state)
{
    (void)state;
    static const char odd[] = "12:\0\xff";
    struct slice position, inner;
    _cleanup_buf_ struct buf b = BUF_INIT(256);
    assert_int_equal(back_token_encode(slice_of(odd, 5), SLICE_LIT("3:x"), &b), 0);
    assert_int_equal(back_token_decode(buf_view(&b), &position, &inner), 0);
    assert_true(slice_eq(position, slice_of(odd, 5)) && slice_eq_str(inner, "3:x"));
    static const char *const bad[] = {"", "x", ":", "4:abc", "-1:a", "99999999999999999999:a"};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_int_equal(back_token_decode(slice_str(bad[i]), &position, &inner), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_record_is_golden),
        cmocka_unit_test(test_broken_records_are_refused),
        cmocka_unit_test(test_record_with_older_versions_is_golden),
        cmocka_unit_test(test_record_with_a_tag_is_golden),
        cmocka_unit_test(test_a_version_without_md5_was_not_sent),
        cmocka_unit_test(test_versions_that_were_sent),
        cmocka_unit_test(test_decisions),
        cmocka_unit_test(test_names_of_second_copies),
        cmocka_unit_test(test_delays),
        cmocka_unit_test(test_merge_is_as_the_model),
        cmocka_unit_test(test_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
