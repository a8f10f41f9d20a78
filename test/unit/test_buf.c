/* layer: base */
#include "base/buf.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* At every maximum, appending byte by byte reaches exactly the maximum, and the failing call changes nothing.
 */
static void maximum_is_exact(void **state)
{
    for (size_t max = 0; max < 200; max++) {
        _cleanup_buf_ struct buf b = BUF_INIT(max);
        for (size_t i = 0; i < max; i++)
            assert_int_equal(buf_char(&b, (char)('a' + i % 26)), 0);
        assert_int_equal(b.n, max);
        assert_int_equal(buf_char(&b, 'x'), -E2BIG);
        assert_int_equal(buf_printf(&b, "%d", 5), -E2BIG);
        assert_int_equal(buf_append(&b, "", 0), 0);
        assert_null(buf_reserve(&b, 1));
        assert_int_equal(b.n, max);
        for (size_t i = 0; i < max; i++)
            assert_int_equal(b.p[i], 'a' + i % 26);
        assert_int_equal(b.p ? b.p[max] : 0, 0);
    }
}

/* A printf that does not fit leaves the contents as they were, even those behind which it would have written.
 */
static void failed_printf_changes_nothing(void **state)
{
    _cleanup_buf_ struct buf b = BUF_INIT(8);
    assert_int_equal(buf_str(&b, "abc"), 0);
    assert_int_equal(buf_printf(&b, "%s", "123456"), -E2BIG);
    assert_string_equal(b.p, "abc");
    assert_int_equal(buf_printf(&b, "%s", "12345"), 0);
    assert_string_equal(b.p, "abc12345");
}

/* Lengths that would overflow are refused. */
static void huge_lengths(void **state)
{
    _cleanup_buf_ struct buf b = BUF_INIT(100);
    assert_int_equal(buf_str(&b, "abc"), 0);
    assert_null(buf_reserve(&b, SIZE_MAX));
    assert_int_equal(buf_append(&b, "x", SIZE_MAX - 2), -E2BIG);
    assert_string_equal(b.p, "abc");
}

/* Reserve and used, consume from the front, cut at the end, clear and take. */
static void life_of_a_buffer(void **state)
{
    _cleanup_buf_ struct buf b = BUF_INIT(1000);
    char *p = buf_reserve(&b, 5);
    memcpy(p, "hello", 5);
    buf_used(&b, 5);
    assert_int_equal(buf_slice(&b, SLICE_LIT(" world")), 0);
    buf_consume(&b, 6);
    assert_true(slice_eq_str(buf_view(&b), "world"));
    assert_string_equal(b.p, "world");
    buf_cut(&b, 6);
    assert_int_equal(b.n, 5);
    buf_cut(&b, 3);
    assert_string_equal(b.p, "wor");
    assert_int_equal(b.n, 3);
    assert_int_equal(buf_str(&b, "ld"), 0);
    buf_consume(&b, 0);
    buf_consume(&b, 5);
    assert_int_equal(b.n, 0);
    assert_int_equal(buf_str(&b, "again"), 0);
    _cleanup_free_ char *taken = buf_take(&b);
    assert_string_equal(taken, "again");
    assert_int_equal(b.n + b.cap, 0);
    _cleanup_free_ char *empty = buf_take(&b);
    assert_string_equal(empty, "");
    buf_cut(&b, 0); /* of one that has no bytes yet */
    assert_int_equal(buf_str(&b, "still usable"), 0);
    buf_clear(&b);
    assert_string_equal(b.p, "");
    assert_int_equal(buf_view(&b).n, 0);
}

/* A buffer of a megabyte, grown in odd steps, holds what was put in. */
static void growth_keeps_contents(void **state)
{
    _cleanup_buf_ struct buf b = BUF_INIT(1 << 20);
    size_t step = 1, i = 0;
    while (b.n + step <= b.max) {
        char *p = buf_reserve(&b, step);
        for (size_t k = 0; k < step; k++)
            p[k] = (char)(i++ % 251);
        buf_used(&b, step);
        step = step * 3 / 2 + 1;
    }
    assert_true(b.n > 1 << 18);
    for (size_t k = 0; k < b.n; k++)
        assert_int_equal((unsigned char)b.p[k], k % 251);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(maximum_is_exact),      cmocka_unit_test(failed_printf_changes_nothing),
        cmocka_unit_test(huge_lengths),          cmocka_unit_test(life_of_a_buffer),
        cmocka_unit_test(growth_keeps_contents),
    };
    return cmocka_run_group_tests_name("buf", tests, NULL, NULL);
}
