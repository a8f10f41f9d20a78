/* layer: object */
/* Records of files that the origin did not take. */
#include "object/stranded.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static struct stranded sample(void)
{
    static const char location[33] = "0123456789abcdef0123456789abcdef";
    return (struct stranded){.since_ns = 0x0102030405060708,
                             .size_bytes = 258,
                             .location = slice_of(location, sizeof(location)),
                             .base = SLICE_LIT("e1"),
                             .meta = SLICE_LIT("mode: 33188\n"),
                             .error = SLICE_LIT("403")};
}

/* A record is these bytes, and comes back as it was. */
static void test_record_is_golden(void **state)
{
    (void)state;
    static const uint8_t head[] = {1, 33, 8, 7, 6, 5, 4, 3, 2, 1, 2, 1, 0, 0, 0, 0, 0, 0};
    struct stranded x = sample(), back;
    _cleanup_buf_ struct buf b = BUF_INIT(STRANDED_RECORD_MAX_BYTES);
    assert_int_equal(stranded_encode(&x, &b), 0);
    assert_int_equal(b.n, 18 + 33 + 2 + 2 + 2 + 12 + 2 + 3);
    assert_memory_equal(b.p, head, sizeof(head));
    assert_memory_equal(b.p + 18 + 33, "\x02\0e1\x0c\0mode", 10);
    assert_memory_equal(b.p + 18 + 33 + 4 + 14,
                        "\x03\0"
                        "403",
                        5);
    assert_int_equal(stranded_decode(buf_view(&b), &back), 0);
    assert_true(back.since_ns == x.since_ns && back.size_bytes == 258);
    assert_true(slice_eq(back.location, x.location) && slice_eq(back.base, x.base));
    assert_true(slice_eq(back.meta, x.meta) && slice_eq(back.error, x.error));
}

/* Cut anywhere, longer, of another format, with bytes and no place for them or the reverse: refused. */
static void test_broken_records_are_refused(void **state)
{
    (void)state;
    struct stranded x = sample(), back;
    _cleanup_buf_ struct buf b = BUF_INIT(STRANDED_RECORD_MAX_BYTES);
    assert_int_equal(stranded_encode(&x, &b), 0);
    for (size_t cut = 0; cut < b.n; cut++)
        assert_int_equal(stranded_decode(slice_of(b.p, cut), &back), ERR_CORRUPT);
    assert_int_equal(buf_char(&b, 'x'), 0);
    assert_int_equal(stranded_decode(buf_view(&b), &back), ERR_CORRUPT);
    b.p[0] = 2;
    assert_int_equal(stranded_decode(slice_of(b.p, b.n - 1), &back), ERR_CORRUPT);
    b.p[0] = 1;
    b.p[10] = b.p[11] = 0;
    assert_int_equal(stranded_decode(slice_of(b.p, b.n - 1), &back), ERR_CORRUPT);
    buf_clear(&b);
    x.location = SLICE_NULL;
    assert_int_equal(stranded_encode(&x, &b), 0);
    assert_int_equal(stranded_decode(buf_view(&b), &back), ERR_CORRUPT);
}

/* An empty file has no bytes anywhere, and a record without the rest is one. */
static void test_an_empty_file(void **state)
{
    (void)state;
    struct stranded x = {.since_ns = 5}, back;
    _cleanup_buf_ struct buf b = BUF_INIT(STRANDED_RECORD_MAX_BYTES);
    assert_int_equal(stranded_encode(&x, &b), 0);
    assert_int_equal(b.n, 18 + 6);
    assert_int_equal(stranded_decode(buf_view(&b), &back), 0);
    assert_true(back.since_ns == 5 && back.size_bytes == 0 && back.location.n == 0 && back.base.n == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_record_is_golden),
        cmocka_unit_test(test_broken_records_are_refused),
        cmocka_unit_test(test_an_empty_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
