/* layer: base */
#include "base/text.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <time.h>

#include <cmocka.h>

#define S(text) SLICE_LIT(text)

/* Sizes as people write them: K to T with or without iB are powers of 1024, kB to TB powers of 1000. */
static void sizes_are_read(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } rows[] = {{"0", 0},
                {"4096", 4096},
                {"17B", 17},
                {"512MiB", 512 * MIB},
                {"512M", 512 * MIB},
                {"1.5G", 3 * GIB / 2},
                {"10 GiB", 10 * GIB},
                {" 1K ", KIB},
                {"2T", 2 * TIB},
                {"1kB", 1000},
                {"1MB", 1000000},
                {"1.25GB", 1250000000},
                {"3TB", 3000000000000},
                {"2P", 2048 * TIB},
                {"1.5EiB", 1572864 * TIB},
                {"7PB", 7000000000000000},
                {"0.5K", 512},
                {"18446744073709551615", UINT64_MAX},
                {"16777215T", 16777215 * TIB}};
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        uint64_t v = 1;
        assert_int_equal(text_parse_size(slice_str(rows[i].text), &v), 0);
        assert_true(v == rows[i].bytes);
    }
}

/* Anything else is refused and leaves the result alone. */
static void other_sizes_are_refused(void **state)
{
    static const char *const bad[] = {"",    "M",    "-1",  "1.5",  "1.5B",
                                      "1.K", ".5K",  "1KB", "1Mib", "1 2",
                                      "1MM", "0x10", "1e3", "1,5G", "1.0000000000000000001G",
                                      "nan", "1K\n"};
    uint64_t v = 77;
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_int_equal(text_parse_size(slice_str(bad[i]), &v), -EINVAL);
    assert_int_equal(text_parse_size(S("18446744073709551616"), &v), -ERANGE);
    assert_int_equal(text_parse_size(S("16777216T"), &v), -ERANGE);
    assert_int_equal(text_parse_size(S("16777215.9999999999999999T"), &v), 0);
    assert_int_equal(v >> 40, 16777215);
}

/* Times, in units or sums of falling units; plain digits are seconds. */
static void durations(void **state)
{
    static const struct {
        const char *text;
        uint64_t ms;
    } rows[] = {{"30s", 30000}, {"500ms", 500}, {"5m", 300000},     {"24h", 86400000},  {"7d", 604800000},
                {"12", 12000},  {"0", 0},       {"1h02m", 3720000}, {"1d03h", 97200000}};
    static const char *const bad[] = {"", "s", "-1s", "1.5s", "1w", "1m2h", "5s5s", "1s5", "5 s", "1hm"};
    uint64_t v;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        assert_int_equal(text_parse_duration(slice_str(rows[i].text), &v), 0);
        assert_int_equal(v, rows[i].ms);
    }
    v = 77;
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_int_equal(text_parse_duration(slice_str(bad[i]), &v), -EINVAL);
    assert_int_equal(text_parse_duration(S("18446744073709551615s"), &v), -ERANGE);
    assert_int_equal(v, 77);
}

/* Truth in four spellings, any case, and nothing else. */
static void bools(void **state)
{
    static const char *const yes[] = {"true", "yes", "on", "1", "True", "YES"};
    static const char *const no[] = {"false", "no", "off", "0", "FALSE"};
    static const char *const bad[] = {"", "y", "2", "truee", " true"};
    bool v;
    for (size_t i = 0; i < ARRAY_SIZE(yes); i++) {
        v = false;
        assert_int_equal(text_parse_bool(slice_str(yes[i]), &v), 0);
        assert_true(v);
    }
    for (size_t i = 0; i < ARRAY_SIZE(no); i++) {
        v = true;
        assert_int_equal(text_parse_bool(slice_str(no[i]), &v), 0);
        assert_false(v);
    }
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_int_equal(text_parse_bool(slice_str(bad[i]), &v), -EINVAL);
}

/* Sizes for people, rounded to a tenth and never written as 1024 of a unit. */
static void sizes_are_shown(void **state)
{
    static const struct {
        uint64_t bytes;
        const char *text;
    } rows[] = {{0, "0 B"},
                {17, "17 B"},
                {1023, "1023 B"},
                {1024, "1 KiB"},
                {3 * GIB / 2, "1.5 GiB"},
                {MIB - 1, "1 MiB"},
                {512 * MIB, "512 MiB"},
                {MIB + 50 * KIB, "1 MiB"},
                {MIB + 60 * KIB, "1.1 MiB"},
                {5 * TIB, "5 TiB"},
                {UINT64_MAX, "16 EiB"}};
    char text[TEXT_SIZE_MAX];
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        assert_string_equal(text_size(rows[i].bytes, text), rows[i].text);
}

/* The exact form reads back to the byte. */
static void exact_sizes_read_back(void **state)
{
    static const uint64_t values[] = {0,         1,       1000,    1023,       1024,      1536,
                                      512 * MIB, MIB + 1, 3 * TIB, 1500 * TIB, UINT64_MAX};
    char text[TEXT_SIZE_MAX];
    for (size_t i = 0; i < ARRAY_SIZE(values); i++) {
        uint64_t v = 1;
        assert_int_equal(text_parse_size(slice_str(text_size_exact(values[i], text)), &v), 0);
        assert_true(v == values[i]);
    }
    assert_string_equal(text_size_exact(512 * MIB, text), "512MiB");
    assert_string_equal(text_size_exact(1000, text), "1000");
}

/* Times for people: the two largest units, or one below a minute. */
static void durations_are_shown(void **state)
{
    static const struct {
        uint64_t ms;
        const char *text;
    } rows[] = {{0, "0ms"},           {340, "340ms"},      {12000, "12s"},
                {12999, "12s"},       {62000, "1m02s"},    {3720000, "1h02m"},
                {86399999, "23h59m"}, {90000000, "1d01h"}, {UINT64_MAX, "213503982334d14h"}};
    char text[TEXT_SIZE_MAX];
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        assert_string_equal(text_duration(rows[i].ms, text), rows[i].text);
}

/* Hex in both cases, of exactly the length asked for. */
static void hex(void **state)
{
    unsigned char p[4] = {0};
    char text[9];
    text_hex("\x00\x7f\x80\xff", 4, text);
    assert_string_equal(text, "007f80ff");
    assert_int_equal(text_unhex(S("DEadBEef"), p, 4), 0);
    assert_memory_equal(p, "\xde\xad\xbe\xef", 4);
    assert_int_equal(text_unhex(S("0011223"), p, 4), -EINVAL);
    assert_int_equal(text_unhex(S("001122334"), p, 4), -EINVAL);
    assert_int_equal(text_unhex(S("0011223g"), p, 4), -EINVAL);
    assert_memory_equal(p, "\xde\xad\xbe\xef", 4);
    assert_int_equal(text_unhex(SLICE_NULL, p, 0), 0);
}

/* All 256 bytes: the unreserved set of RFC 3986 stays, the rest becomes upper-case escapes; it decodes back.
 */
static void uri(void **state)
{
    static const char unreserved[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~";
    for (int c = 0; c < 256; c++) {
        _cleanup_buf_ struct buf b = BUF_INIT(100), back = BUF_INIT(100);
        char byte = (char)c, want[4];
        bool stays = c && strchr(unreserved, c);
        (void)snprintf(want, sizeof(want), stays ? "%c" : "%%%02X", c);
        assert_int_equal(text_uri_encode(&b, slice_of(&byte, 1), /* keep_slash= */ false), 0);
        assert_string_equal(b.p, want);
        assert_int_equal(text_uri_decode(&back, buf_view(&b), /* plus_is_space= */ true), 0);
        assert_true(back.n == 1 && back.p[0] == byte);
    }
    _cleanup_buf_ struct buf b = BUF_INIT(100);
    assert_int_equal(text_uri_encode(&b, S("a/b c"), /* keep_slash= */ true), 0);
    assert_int_equal(text_uri_decode(&b, S("+%2b%2B"), /* plus_is_space= */ true), 0);
    assert_int_equal(text_uri_decode(&b, S("+"), /* plus_is_space= */ false), 0);
    assert_string_equal(b.p, "a/b%20c +++");
}

/* Broken escapes and results that do not fit leave the buffer as it was. */
static void uri_failures(void **state)
{
    static const char *const bad[] = {"abc%", "abc%1", "abc%zz", "abc%2", "%%20", "a%g0"};
    _cleanup_buf_ struct buf b = BUF_INIT(8);
    assert_int_equal(buf_str(&b, "keep"), 0);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        char to[8];
        assert_int_equal(text_uri_decode(&b, slice_str(bad[i]), false), -EINVAL);
        assert_int_equal(text_uri_decode_to(to, slice_str(bad[i]), false), -EINVAL);
    }
    assert_int_equal(text_uri_encode(&b, S("a b"), false), -E2BIG);
    assert_int_equal(text_uri_decode(&b, S("12345"), false), -E2BIG);
    assert_string_equal(b.p, "keep");
}

/* The vectors of RFC 4648, section 10, both ways. */
static void base64_vectors(void **state)
{
    static const char *const rows[][2] = {{"", ""},
                                          {"f", "Zg=="},
                                          {"fo", "Zm8="},
                                          {"foo", "Zm9v"},
                                          {"foob", "Zm9vYg=="},
                                          {"fooba", "Zm9vYmE="},
                                          {"foobar", "Zm9vYmFy"}};
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        _cleanup_buf_ struct buf b = BUF_INIT(100), back = BUF_INIT(100);
        assert_int_equal(text_base64(&b, slice_str(rows[i][0])), 0);
        assert_true(slice_eq_str(buf_view(&b), rows[i][1]));
        assert_int_equal(text_unbase64(&back, slice_str(rows[i][1])), 0);
        assert_true(slice_eq_str(buf_view(&back), rows[i][0]));
    }
}

/* All bytes in all positions go there and back; only the standard form is read. */
static void base64_is_strict(void **state)
{
    static const char *const bad[] = {"Z",    "Zg",   "Zg=",  "Zg===",  "=",    "====",     "Z===",
                                      "Zh==", "Zm9=", "Zm 9", "Zm9v\n", "Zm-_", "Zg==Zg==", "Z=g="};
    char all[256 + 3];
    for (size_t i = 0; i < sizeof(all); i++)
        all[i] = (char)i;
    for (size_t from = 0; from < 4; from++) {
        _cleanup_buf_ struct buf b = BUF_INIT(1000), back = BUF_INIT(1000);
        struct slice s = slice_of(all + from, sizeof(all) - from);
        assert_int_equal(text_base64(&b, s), 0);
        assert_int_equal(text_unbase64(&back, buf_view(&b)), 0);
        assert_true(slice_eq(buf_view(&back), s));
    }
    _cleanup_buf_ struct buf b = BUF_INIT(3);
    assert_int_equal(buf_char(&b, 'k'), 0);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_int_equal(text_unbase64(&b, slice_str(bad[i])), -EINVAL);
    assert_int_equal(text_unbase64(&b, S("Zm9v")), -E2BIG);
    assert_int_equal(text_base64(&b, S("a")), -E2BIG);
    assert_string_equal(b.p, "k");
}

#define NS 1000000000u

/* Known instants, among them leap days and the ends of months and years. */
static void dates_are_written(void **state)
{
    static const struct {
        uint64_t s;
        const char *iso, *http;
    } rows[] = {{0, "1970-01-01T00:00:00.123Z", "Thu, 01 Jan 1970 00:00:00 GMT"},
                {784111777, "1994-11-06T08:49:37.123Z", "Sun, 06 Nov 1994 08:49:37 GMT"},
                {951782399, "2000-02-28T23:59:59.123Z", "Mon, 28 Feb 2000 23:59:59 GMT"},
                {951782400, "2000-02-29T00:00:00.123Z", "Tue, 29 Feb 2000 00:00:00 GMT"},
                {1769903999, "2026-01-31T23:59:59.123Z", "Sat, 31 Jan 2026 23:59:59 GMT"},
                {4107542399, "2100-02-28T23:59:59.123Z", "Sun, 28 Feb 2100 23:59:59 GMT"},
                {4107542400, "2100-03-01T00:00:00.123Z", "Mon, 01 Mar 2100 00:00:00 GMT"},
                {17179869184, "2514-05-30T01:53:04.123Z", "Wed, 30 May 2514 01:53:04 GMT"}};
    char text[32];
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        uint64_t ns = rows[i].s * NS + 123456789, back = 1;
        text_iso8601(ns, text);
        assert_string_equal(text, rows[i].iso);
        assert_int_equal(text_parse_date(slice_str(text), &back), 0);
        assert_true(back == ns - 456789);
        text_http_date(ns, text);
        assert_string_equal(text, rows[i].http);
        assert_int_equal(text_parse_date(slice_str(text), &back), 0);
        assert_true(back == rows[i].s * NS);
    }
    text_iso8601(UINT64_MAX, text);
    assert_string_equal(text, "2554-07-21T23:34:33.709Z");
}

/* Every day that there can be is what the C library says. */
static void days_are_those_of_the_calendar(void **state)
{
    char text[32], expected[32];
    for (uint64_t s = 86399; s < UINT64_MAX / NS; s += 86400) {
        time_t t = (time_t)s;
        struct tm tm;
        assert_non_null(gmtime_r(&t, &tm));
        assert_true(strftime(expected, sizeof(expected), "%a, %d %b %Y %H:%M:%S GMT", &tm) > 0);
        text_http_date(s * NS, text);
        assert_string_equal(text, expected);
    }
}

/* The three forms of RFC 9110 and the ISO forms that stores send mean the same instant. */
static void dates_are_read(void **state)
{
    static const char *const same[] = {"Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT",
                                       "Sun Nov  6 08:49:37 1994",      "1994-11-06T08:49:37Z",
                                       "1994-11-06T08:49:37.000Z",      "1994-11-06T09:49:37+01:00",
                                       "1994-11-06T08:49:37+0000",      " 1994-11-06T03:19:37-05:30 "};
    uint64_t v;
    for (size_t i = 0; i < ARRAY_SIZE(same); i++) {
        assert_int_equal(text_parse_date(slice_str(same[i]), &v), 0);
        assert_true(v == (uint64_t)784111777 * NS);
    }
    assert_int_equal(text_parse_date(S("1994-11-06T08:49:37.1234567899Z"), &v), 0);
    assert_true(v == (uint64_t)784111777 * NS + 123456789);
    assert_int_equal(text_parse_date(S("Saturday, 01-Jan-00 00:00:00 GMT"), &v), 0);
    assert_true(v == (uint64_t)946684800 * NS);
}

/* What a person writes may be a day, which is its beginning in UTC, or any date. */
static void when_a_person_means(void **state)
{
    static const char *const bad[] = {"",           "today",       "2026-1-31", "2026-02-30",
                                      "2026-13-01", "2026-01-31T", "20260131",  "2026-01-31Z"};
    uint64_t v = 77, w = 78;
    assert_int_equal(text_parse_when(S("2026-01-31"), &v), 0);
    assert_int_equal(text_parse_date(S("2026-01-31T00:00:00Z"), &w), 0);
    assert_int_equal(v, w);
    assert_int_equal(text_parse_when(S(" 2024-02-29 "), &v), 0);
    assert_int_equal(text_parse_when(S("2026-01-31T01:00:00+01:00"), &v), 0);
    assert_int_equal(v, w);
    v = 77;
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_int_equal(text_parse_when(slice_str(bad[i]), &v), -EINVAL);
    assert_int_equal(text_parse_when(S("1969-12-31"), &v), -ERANGE);
    assert_int_equal(v, 77);
}

/* Dates that do not exist, that do not fit, or that are something else. */
static void other_dates_are_refused(void **state)
{
    static const char *const bad[] = {"",
                                      "yesterday",
                                      "1994-11-06",
                                      "1994-11-06T08:49:37",
                                      "1994-11-06 08:49:37Z",
                                      "1994-13-06T08:49:37Z",
                                      "1994-00-06T08:49:37Z",
                                      "1994-02-29T08:49:37Z",
                                      "2100-02-29T08:49:37Z",
                                      "1994-11-31T08:49:37Z",
                                      "1994-11-00T08:49:37Z",
                                      "1994-11-06T24:49:37Z",
                                      "1994-11-06T08:60:37Z",
                                      "1994-11-06T08:49:37.Z",
                                      "1994-11-06T08:49:37+25:00",
                                      "1994-11-06T08:49:37Zx",
                                      "Sun, 06 Nov 1994 08:49:37",
                                      "Sun, 06 Nov 1994 08:49:37 PST",
                                      "Sun, 6 Nov 1994 08:49:37 GMT",
                                      "Xyz, 06 Nov 1994 08:49:37 GMT",
                                      "Sun, 06 ovD 1994 08:49:37 GMT",
                                      "Su",
                                      ",",
                                      "Sun,",
                                      "Sun Nov  6 08:49:37 1994x"};
    uint64_t v = 77;
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_int_equal(text_parse_date(slice_str(bad[i]), &v), -EINVAL);
    assert_int_equal(text_parse_date(S("1969-12-31T23:59:59Z"), &v), -ERANGE);
    assert_int_equal(text_parse_date(S("1970-01-01T00:00:00+01:00"), &v), -ERANGE);
    assert_int_equal(text_parse_date(S("9999-01-01T00:00:00Z"), &v), -EOVERFLOW);
    assert_int_equal(v, 77);
}

/* What is no UTF-8 becomes U+FFFD, a byte at a time; what is stays; what does not fit is said. */
static void utf8(void **state)
{
    static const struct {
        const char *from, *to;
    } rows[] = {{"", ""},
                {"plain", "plain"},
                {"\xe6\x97\xa5\xf0\x9f\x8c\x8a", "\xe6\x97\xa5\xf0\x9f\x8c\x8a"},
                {"caf\xe9/x", "caf\xef\xbf\xbd/x"},
                {"cut\xe6\x97", "cut\xef\xbf\xbd\xef\xbf\xbd"}};
    _cleanup_buf_ struct buf b = BUF_INIT(32), small = BUF_INIT(2);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        assert_string_equal(text_utf8(&b, slice_str(rows[i].from)), rows[i].to);
    assert_string_equal(text_utf8(&small, S("abc")), "?");
}

/* Brackets count by how deep they nest, however many there are; those in strings do not. */
static void json_depth(void **state)
{
    struct buf _cleanup_buf_ b = BUF_INIT(64 * KIB), quoted = BUF_INIT(64 * KIB);
    for (size_t i = 0; i < TEXT_JSON_DEPTH_MAX; i++)
        assert_int_equal(buf_str(&b, i % 2 ? "{\"a\":" : "["), 0);
    assert_false(text_json_is_deep(buf_view(&b)));
    for (size_t i = 0; i < TEXT_JSON_DEPTH_MAX; i++)
        assert_int_equal(buf_str(&b, i % 2 ? "]" : "}"), 0);
    for (size_t i = 0; i < 1000; i++)
        assert_int_equal(buf_str(&b, "[{}]"), 0);
    assert_false(text_json_is_deep(buf_view(&b)));
    assert_int_equal(buf_str(&quoted, "[\"\\\\\",\"\\\""), 0);
    for (size_t i = 0; i < 2 * TEXT_JSON_DEPTH_MAX; i++)
        assert_int_equal(buf_str(&quoted, "[{"), 0);
    assert_int_equal(buf_str(&quoted, "\"]"), 0);
    assert_false(text_json_is_deep(buf_view(&quoted)));
    for (size_t i = 0; i <= TEXT_JSON_DEPTH_MAX; i++)
        assert_int_equal(buf_str(&quoted, "["), 0);
    assert_true(text_json_is_deep(buf_view(&quoted)));
    assert_false(text_json_is_deep(SLICE_NULL));
    assert_false(text_json_is_deep(S("]]\"\\")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_read),
        cmocka_unit_test(other_sizes_are_refused),
        cmocka_unit_test(durations),
        cmocka_unit_test(bools),
        cmocka_unit_test(sizes_are_shown),
        cmocka_unit_test(exact_sizes_read_back),
        cmocka_unit_test(durations_are_shown),
        cmocka_unit_test(hex),
        cmocka_unit_test(uri),
        cmocka_unit_test(uri_failures),
        cmocka_unit_test(utf8),
        cmocka_unit_test(json_depth),
        cmocka_unit_test(base64_vectors),
        cmocka_unit_test(base64_is_strict),
        cmocka_unit_test(dates_are_written),
        cmocka_unit_test(days_are_those_of_the_calendar),
        cmocka_unit_test(dates_are_read),
        cmocka_unit_test(when_a_person_means),
        cmocka_unit_test(other_dates_are_refused),
    };
    return cmocka_run_group_tests_name("text", tests, NULL, NULL);
}
