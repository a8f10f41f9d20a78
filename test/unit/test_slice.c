/* layer: base */
#include "base/slice.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define S(text) SLICE_LIT(text)

/* Comparison is by unsigned bytes, and a prefix comes first: the order of S3 listings. */
static void order(void **state)
{
    static const char *const rising[] = {"", "A", "a", "a!", "a/b", "a0", "aa", "b", "\x7f", "\x80", "\xff"};
    for (size_t i = 0; i < ARRAY_SIZE(rising); i++)
        for (size_t j = 0; j < ARRAY_SIZE(rising); j++) {
            int r = slice_cmp(slice_str(rising[i]), slice_str(rising[j]));
            assert_int_equal(r < 0, i < j);
            assert_int_equal(r > 0, i > j);
            assert_int_equal(slice_eq(slice_str(rising[i]), slice_str(rising[j])), i == j);
        }
}

/* The empty slice, with and without a pointer, is a legal argument everywhere. */
static void empty_slices(void **state)
{
    struct slice none = SLICE_NULL, empty = S(""), left = SLICE_NULL;
    assert_true(slice_eq(none, empty));
    assert_int_equal(slice_cmp(none, empty), 0);
    assert_true(slice_starts(none, none) && slice_ends(none, none) && slice_ends(S("a"), none));
    assert_true(slice_eq_case(none, empty) && slice_is_utf8(none));
    assert_int_equal(slice_find(none, 'a'), -1);
    assert_int_equal(slice_rfind(none, 'a'), -1);
    assert_int_equal(slice_find_slice(none, S("a")), -1);
    assert_int_equal(slice_find_slice(S("a"), none), 0);
    assert_int_equal(slice_trim(none).n, 0);
    assert_int_equal(slice_from(none, 0).n + slice_from(none, 3).n + slice_sub(none, 1, 1).n, 0);
    assert_int_equal(slice_split(&left, ',').n, 0);
    _cleanup_free_ char *copy = slice_dup(none);
    assert_string_equal(copy, "");
}

/* Parts stay inside their slice for any offset and length. */
static void parts(void **state)
{
    struct slice s = S("abcdef");
    assert_true(slice_eq_str(slice_from(s, 2), "cdef"));
    assert_int_equal(slice_from(s, 6).n, 0);
    assert_int_equal(slice_from(s, SIZE_MAX).n, 0);
    assert_true(slice_eq_str(slice_sub(s, 1, 2), "bc"));
    assert_true(slice_eq_str(slice_sub(s, 4, SIZE_MAX), "ef"));
    assert_true(slice_ends(s, S("def")) && !slice_ends(s, S("de")) && !slice_ends(S("f"), S("ef")));
    assert_true(slice_starts(s, S("abc")) && !slice_starts(s, S("b")));
    assert_true(slice_eq_str(slice_trim(S(" \t a b\t ")), "a b"));
    assert_int_equal(slice_trim(S(" \t")).n, 0);
}

/* Searches give the first or last place, and see bytes behind a NUL. */
static void searches(void **state)
{
    assert_int_equal(slice_find(S("a/b/c"), '/'), 1);
    assert_int_equal(slice_rfind(S("a/b/c"), '/'), 3);
    assert_int_equal(slice_find(S("a\0b"), 'b'), 2);
    assert_int_equal(slice_find_slice(S("aab"), S("ab")), 1);
    assert_int_equal(slice_find_slice(S("aa"), S("aab")), -1);
}

/* Splitting gives every field, empty ones too, and ends with nothing left. */
static void splitting(void **state)
{
    struct slice left = S("a,,b");
    assert_true(slice_eq_str(slice_split(&left, ','), "a"));
    assert_int_equal(slice_split(&left, ',').n, 0);
    assert_true(slice_eq_str(slice_split(&left, ','), "b"));
    assert_int_equal(left.n, 0);
}

/* Case is folded for ASCII letters only. */
static void case_folding(void **state)
{
    assert_true(slice_eq_case(S("Content-TYPE"), S("content-type")));
    assert_false(slice_eq_case(S("a"), S("ab")));
    assert_false(slice_eq_case(S("[@"), S("{`")));
    assert_false(slice_eq_case(S("abcx"), S("ABCy")));
    assert_false(slice_eq_case(S("\xc4"), S("\xe4")));
}

static int lower(int c)
{
    return c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c;
}

/* Two texts of each length up to three words that differ in one byte are the same but for case where the two
 * bytes are, whatever that byte is and wherever it stands. */
static void case_of_each_byte(void **state)
{
    for (size_t n = 1; n <= 24; n++)
        for (size_t at = 0; at < n; at++)
            for (int x = 0; x < 256; x++)
                for (int bit = 0; bit <= 8; bit++) { /* 8: another letter's case */
                    char a[24], b[24];
                    int y = bit < 8 ? x ^ 1 << bit : lower(x);
                    memset(a, 'K', sizeof(a));
                    memset(b, 'k', sizeof(b));
                    a[at] = (char)x;
                    b[at] = (char)y;
                    assert_true(slice_eq_case(slice_of(a, n), slice_of(b, n)) == (lower(x) == lower(y)));
                }
}

/* Each byte at each place of texts of each length up to three words is judged as it is alone. */
static void kinds_of_bytes(void **state)
{
    for (size_t n = 1; n <= 24; n++)
        for (size_t at = 0; at < n; at++)
            for (unsigned c = 0; c < 256; c++) {
                char text[24];
                memset(text, c & 1 ? 'a' : '!', sizeof(text));
                text[at] = (char)c;
                bool control = (c < 0x20 && c != '\t') || c == 0x7f, visible = c > 0x20 && c < 0x7f;
                assert_true(slice_has_control(slice_of(text, n)) == control);
                assert_true(slice_is_visible(slice_of(text, n)) == visible);
                assert_false(slice_has_control(slice_of(text, at)));
                assert_true(slice_is_visible(slice_of(text, at)));
            }
    assert_true(slice_has_control(S("\t\t\n")));
    assert_false(slice_has_control(S("\t a\xff")));
    assert_false(slice_has_control(SLICE_NULL));
    assert_true(slice_is_visible(SLICE_NULL));
}

/* Decimal numbers: digits only, the whole range, nothing beyond; the result is untouched on failure. */
static void numbers(void **state)
{
    uint64_t v = 77;
    assert_int_equal(slice_u64(S("18446744073709551615"), &v), 0);
    assert_true(v == UINT64_MAX);
    assert_int_equal(slice_u64(S("0000"), &v), 0);
    assert_int_equal(v, 0);
    v = 77;
    assert_int_equal(slice_u64(S("18446744073709551616"), &v), -ERANGE);
    assert_int_equal(slice_u64(S("99999999999999999999999999"), &v), -ERANGE);
    static const char *const bad[] = {"", "-1", "+1", " 1", "1 ", "0x1", "1.0", "a"};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_int_equal(slice_u64(slice_str(bad[i]), &v), -EINVAL);
    assert_int_equal(v, 77);
}

/* The boundaries of RFC 3629: every shortest and longest form, no surrogate, nothing overlong or cut. */
static void utf8(void **state)
{
    static const char *const good[] = {
        "abc",          "\x7f",         "\xc2\x80",     "\xdf\xbf",         "\xe0\xa0\x80",
        "\xed\x9f\xbf", "\xee\x80\x80", "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf",
        "h\xc3\xa9llo"};
    static const char *const bad[] = {"\x80",
                                      "\xbf",
                                      "\xc0\x80",
                                      "\xc1\xbf",
                                      "\xc2",
                                      "\xc2\x41",
                                      "\xe0\x9f\xbf",
                                      "\xed\xa0\x80",
                                      "\xed\xbf\xbf",
                                      "\xe1\x80",
                                      "\xf0\x8f\xbf\xbf",
                                      "\xf4\x90\x80\x80",
                                      "\xf5\x80\x80\x80",
                                      "\xf1\x80\x80",
                                      "\xff",
                                      "a\xfe"};
    for (size_t i = 0; i < ARRAY_SIZE(good); i++)
        assert_true(slice_is_utf8(slice_str(good[i])));
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        for (size_t at = 0; at <= 20; at++) { /* alone, and between digits */
            char text[32];
            size_t n = strlen(bad[i]);
            memset(text, '1', sizeof(text));
            memcpy(text + at, bad[i], n);
            assert_false(slice_is_utf8(slice_of(text, at + n)));
            assert_false(slice_is_utf8(slice_of(text, sizeof(text))));
        }
    assert_true(slice_is_utf8(S("a\0b")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order),
        cmocka_unit_test(empty_slices),
        cmocka_unit_test(parts),
        cmocka_unit_test(searches),
        cmocka_unit_test(splitting),
        cmocka_unit_test(case_folding),
        cmocka_unit_test(case_of_each_byte),
        cmocka_unit_test(kinds_of_bytes),
        cmocka_unit_test(numbers),
        cmocka_unit_test(utf8),
    };
    return cmocka_run_group_tests_name("slice", tests, NULL, NULL);
}
