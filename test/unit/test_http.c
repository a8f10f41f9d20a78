/* layer: net */
/* The head parser: what it accepts, what it refuses with which status, and that it never reads beyond its
 * input. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "net/http.h"

/* Parses from a heap copy of exactly that size, so that AddressSanitizer sees any read beyond it. */
static int parse_exact(struct slice text, struct http_request *ret, int *ret_status, char **ret_copy)
{
    char *copy = malloc(MAX(text.n, (size_t)1));
    memcpy(copy, text.p, text.n);
    *ret_status = 0;
    struct err e = {0};
    int k = http_parse_head(slice_of(copy, text.n), ret, ret_status, &e);
    if (k == ERR_PROTOCOL)
        assert_true(e.text[0] != '\0');
    *ret_copy = copy;
    return k;
}

static int status_of(const char *text)
{
    struct http_request r;
    _cleanup_free_ char *copy = NULL;
    int status;
    int k = parse_exact(slice_str(text), &r, &status, &copy);
    return k == 0 ? 200 : k == -EAGAIN ? 100 : status;
}

/* A usual request is taken apart: method, path, query, headers in their order with trimmed values, flags. */
static void takes_a_usual_request_apart(void **state)
{
    const char *text = "PUT /b/a%20key?uploads&x=1 HTTP/1.1\r\nHost: h:1\r\nContent-Length: 12\r\n"
                       "x-amz-meta-a:  two words \t\r\nEmpty:\r\nExpect: 100-Continue\r\n\r\nbody";
    struct http_request r;
    _cleanup_free_ char *copy = NULL;
    int status;
    assert_int_equal(parse_exact(slice_str(text), &r, &status, &copy), 0);
    assert_true(slice_eq_str(r.method, "PUT"));
    assert_true(slice_eq_str(r.target, "/b/a%20key?uploads&x=1"));
    assert_true(slice_eq_str(r.raw_path, "/b/a%20key"));
    assert_true(slice_eq_str(r.raw_query, "uploads&x=1"));
    assert_int_equal(r.minor, 1);
    assert_int_equal(r.n_headers, 5);
    assert_true(slice_eq_str(r.headers[2].name, "x-amz-meta-a"));
    assert_true(slice_eq_str(http_header(&r, "X-Amz-Meta-A"), "two words"));
    assert_int_equal(http_header(&r, "empty").n, 0);
    assert_non_null(http_header(&r, "empty").p); /* there, with or without a blank behind the colon */
    assert_null(http_header(&r, "absent").p);
    assert_true(r.has_length && r.expect_continue && r.keep_alive && !r.chunked);
    assert_int_equal(r.content_length, 12);
    assert_int_equal(r.head_bytes, strlen(text) - 4);
}

/* Parses a head that arrives byte by byte where http_head_may_end says that it may help, and gives how often
 * that was; *ret: how it ended, and after how many bytes. */
static size_t dribble(struct slice text, int *ret, size_t *ret_n)
{
    struct http_request r;
    size_t parsed = 0;
    int status, k = -EAGAIN;
    for (size_t n = 1; k == -EAGAIN && n <= text.n; n++) {
        _cleanup_free_ char *copy = NULL;
        bool may_end = http_head_may_end(slice_of(text.p, n), n - 1);
        k = parse_exact(slice_of(text.p, n), &r, &status, &copy);
        assert_true(may_end || k == -EAGAIN);
        parsed += may_end;
        *ret_n = n;
    }
    *ret = k;
    return parsed;
}

/* A head that dribbles in is parsed once for each of its lines and no more, whether it is whole in the end,
 * too large, or broken; and what can be refused is refused as soon as that is known. */
static void dribbled_heads_are_parsed_once_a_line(void **state)
{
    char *text = malloc(HTTP_HEAD_MAX_BYTES + 1);
    size_t n;
    int k;
    assert_non_null(text);
    assert_int_equal(dribble(SLICE_LIT("\r\nGET / HTTP/1.1\r\nHost: a\r\nx: y\r\n\r\n"), &k, &n), 5);
    assert_int_equal(k, 0);
    assert_int_equal(dribble(SLICE_LIT("GET / HTTP/1.1\r\nHost: a\nx: y"), &k, &n), 2);
    assert_int_equal(k, ERR_PROTOCOL);
    assert_int_equal(n, strlen("GET / HTTP/1.1\r\nHost: a\n"));
    memset(text, 'a', HTTP_HEAD_MAX_BYTES);
    memcpy(text, "GET /", 5); /* no end of the request line */
    assert_int_equal(dribble(slice_of(text, HTTP_HEAD_MAX_BYTES), &k, &n), 1);
    assert_int_equal(k, ERR_PROTOCOL);
    assert_int_equal(n, 16 * KIB + 64 + 1);
    memcpy(text, "GET / HTTP/1.1\r\nHost: a\r\nx: ", 28); /* nor of a header */
    assert_in_range(dribble(slice_of(text, HTTP_HEAD_MAX_BYTES), &k, &n), 3, 4);
    assert_int_equal(k, ERR_PROTOCOL);
    assert_int_equal(n, HTTP_HEAD_MAX_BYTES);
    free(text);
}

/* Every cut of a valid head is incomplete, never an error and never complete: heads may arrive byte by byte.
 */
static void every_cut_of_a_valid_head_is_incomplete(void **state)
{
    const char *text =
        "\r\nGET http://a.B:1/p?q HTTP/1.1\r\nHost: A.b:1\r\nTransfer-Encoding: chunked\r\n\r\n";
    struct http_request r;
    int status;
    for (size_t n = 0; n < strlen(text); n++) {
        _cleanup_free_ char *copy = NULL;
        assert_int_equal(parse_exact(slice_of(text, n), &r, &status, &copy), -EAGAIN);
    }
    _cleanup_free_ char *copy = NULL;
    assert_int_equal(parse_exact(slice_str(text), &r, &status, &copy), 0);
    assert_true(slice_eq_str(r.raw_path, "/p"));
    assert_true(r.chunked);
    assert_int_equal(r.head_bytes, strlen(text));
}

#define OK(line, headers)                                                                                    \
    {                                                                                                        \
        line " HTTP/1.1\r\nHost: a\r\n" headers "\r\n", 200                                                  \
    }

static const struct {
    const char *text;
    int status;
} heads[] = {
    OK("GET /", ""),
    OK("OPTIONS *", ""),
    OK("M-SEARCH /", ""),
    OK("GET /a", "Content-Length: 5\r\nContent-Length: 5\r\n"),
    OK("GET /a", "X: tab\there and \x80\xff\r\n"),
    OK("GET /a", "Connection: foo,, close ,\r\n"),
    {"GET / HTTP/1.0\r\n\r\n", 200},
    {"GET / HTTP/1.9\r\nHost: a\r\n\r\n", 200},
    /* request line */
    {"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {" GET / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET /  HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET / x HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET /\r\n\r\n", 400},
    {"GET\r\n\r\n", 400},
    {"G(T / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET / http/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET / HTTP/1.10\r\nHost: a\r\n\r\n", 400},
    {"GET / HTTP/1\r\nHost: a\r\n\r\n", 400},
    {"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505},
    {"GET / HTTP/0.9\r\nHost: a\r\n\r\n", 505},
    {"PRI * HTTP/2.0\r\n\r\n", 505},
    {"GET a HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"CONNECT host:1 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET http:///x HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET http://b/x HTTP/1.1\r\nHost: a\r\n\r\n", 400}, /* whoever stands before us may have looked at b */
    {"GET http://a:1/x HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET http://u@a/x HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET http://a/x HTTP/1.0\r\n\r\n", 200},
    {"GET /#f HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET /\x7f HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET /\xc3\xbc HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET /\t HTTP/1.1\r\nHost: a\r\n\r\n", 400},
    {"GET / HTTP/1.1\nHost: a\n\n", 400},
    {"\n", 400},
    /* header lines */
    {"GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost: a\r\n X: folded\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost: a\r\nX\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost: a\r\n: x\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost: a\r\nX: a\x01\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost: a\r\nX: a\x7f\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost: a\r\nX\xc3: a\r\n\r\n", 400},
    /* host */
    {"GET / HTTP/1.1\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost: u@b\r\n\r\n", 400},
    /* framing: what lets one server see another message than the next */
    {"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
    {"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", 400},
    {"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 5\r\n\r\n", 400},
    {"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\n", 400},
    {"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n", 400},
    {"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x5\r\n\r\n", 400},
    {"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n", 400},
    {"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 9223372036854775808\r\n\r\n", 413},
    {"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999\r\n\r\n", 413},
    {"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 9223372036854775807\r\n\r\n", 200},
    {"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501},
    {"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501},
    {"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n", 501},
    {"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
    {"PUT / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
};

/* Each broken head gets its status; the valid ones beside them show that the line is drawn where it should
 * be. */
static void refuses_broken_heads_with_their_status(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(heads); i++)
        if (status_of(heads[i].text) != heads[i].status)
            fail_msg("\"%s\": %d instead of %d", heads[i].text, status_of(heads[i].text), heads[i].status);
}

/* A byte of 0 anywhere in a head is refused, not taken for an end. */
static void refuses_zero_bytes(void **state)
{
    static const char good[] = "GET /abc HTTP/1.1\r\nHost: abc\r\nX-Name: value\r\n\r\n";
    for (size_t i = 0; i < sizeof(good) - 1; i++) {
        char text[sizeof(good)];
        memcpy(text, good, sizeof(good));
        text[i] = '\0';
        struct http_request r;
        _cleanup_free_ char *copy = NULL;
        int status;
        int k = parse_exact(slice_of(text, sizeof(good) - 1), &r, &status, &copy);
        assert_true(k == ERR_PROTOCOL || k == -EAGAIN); /* a lost LF may leave the head without its end */
    }
}

/* Keep-alive is the default of 1.1 and must be asked for in 1.0; close always wins. */
static void knows_when_to_keep_the_connection(void **state)
{
    static const struct {
        const char *text;
        bool keep;
    } cases[] = {
        {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", true},
        {"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", false},
        {"GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Close\r\n\r\n", false},
        {"GET / HTTP/1.0\r\n\r\n", false},
        {"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", true},
        {"GET / HTTP/1.0\r\nConnection: closer\r\n\r\n", false},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct http_request r;
        int status;
        _cleanup_free_ char *copy = NULL;
        assert_int_equal(parse_exact(slice_str(cases[i].text), &r, &status, &copy), 0);
        assert_int_equal(r.keep_alive, cases[i].keep);
    }
}

/* "Expect" means nothing without a body to wait for, and in 1.0. */
static void expects_continue_only_with_a_body(void **state)
{
    struct http_request r;
    int status;
    _cleanup_free_ char *a = NULL, *b = NULL;
    assert_int_equal(
        parse_exact(SLICE_LIT("PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n"), &r, &status, &a),
        0);
    assert_false(r.expect_continue);
    assert_int_equal(
        parse_exact(SLICE_LIT("PUT / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n"), &r,
                    &status, &b),
        0);
    assert_false(r.expect_continue);
}

/* Heads at their maximum pass and one byte more is refused, complete or not; so with headers and targets. */
static void bounds_heads_headers_and_targets(void **state)
{
    struct http_request r;
    int status;
    for (int over = 0; over <= 1; over++) {
        _cleanup_buf_ struct buf b = BUF_INIT(2 * HTTP_HEAD_MAX_BYTES);
        assert_int_equal(buf_str(&b, "GET / HTTP/1.1\r\nHost: a\r\nX: "), 0);
        while (b.n < HTTP_HEAD_MAX_BYTES - 4 + (size_t)over)
            assert_int_equal(buf_char(&b, 'x'), 0);
        assert_int_equal(buf_str(&b, "\r\n\r\n"), 0);
        _cleanup_free_ char *copy = NULL;
        assert_int_equal(parse_exact(buf_view(&b), &r, &status, &copy), over ? ERR_PROTOCOL : 0);
        assert_int_equal(status, over ? 431 : 0);
        _cleanup_free_ char *cut = NULL; /* not complete, and already too long to become so */
        assert_int_equal(
            parse_exact(slice_of(b.p, HTTP_HEAD_MAX_BYTES - 1 + (size_t)over), &r, &status, &cut),
            over ? ERR_PROTOCOL : -EAGAIN);
    }
    for (int over = 0; over <= 1; over++) {
        _cleanup_buf_ struct buf b = BUF_INIT(HTTP_HEAD_MAX_BYTES);
        assert_int_equal(buf_str(&b, "GET / HTTP/1.1\r\nHost: a\r\n"), 0);
        for (int i = 1; i < HTTP_HEADERS_MAX + over; i++)
            assert_int_equal(buf_printf(&b, "x-%d: y\r\n", i), 0);
        assert_int_equal(buf_str(&b, "\r\n"), 0);
        _cleanup_free_ char *copy = NULL;
        assert_int_equal(parse_exact(buf_view(&b), &r, &status, &copy), over ? ERR_PROTOCOL : 0);
        assert_int_equal(status, over ? 431 : 0);
    }
    _cleanup_buf_ struct buf b = BUF_INIT(HTTP_HEAD_MAX_BYTES);
    assert_int_equal(buf_str(&b, "GET /"), 0);
    while (b.n < 17 * KIB)
        assert_int_equal(buf_char(&b, 'a'), 0);
    _cleanup_free_ char *copy = NULL;
    assert_int_equal(parse_exact(buf_view(&b), &r, &status, &copy), ERR_PROTOCOL);
    assert_int_equal(status, 414);
}

/* Queries are split at '&' and '=', decoded after that, and know "?uploads" from "?uploads=". */
static void splits_and_decodes_queries(void **state)
{
    struct arena *_cleanup_(arena_freep) a = arena_new(64 * KIB);
    struct http_pair *p;
    size_t n;
    assert_int_equal(http_parse_query(SLICE_LIT("uploads&prefix=a%2Fb+c&&empty=&k%3D=v=w"), a, &p, &n), 0);
    assert_int_equal(n, 4);
    assert_true(slice_eq_str(p[0].name, "uploads") && !p[0].has_value);
    assert_true(slice_eq_str(p[1].name, "prefix") && slice_eq_str(p[1].value, "a/b c") && p[1].has_value);
    assert_true(slice_eq_str(p[2].name, "empty") && p[2].value.n == 0 && p[2].has_value);
    assert_true(slice_eq_str(p[3].name, "k=") && slice_eq_str(p[3].value, "v=w"));
    assert_int_equal(http_parse_query(SLICE_NULL, a, &p, &n), 0);
    assert_int_equal(n, 0);
    assert_int_equal(http_parse_query(SLICE_LIT("a=%"), a, &p, &n), -EINVAL);
    assert_int_equal(http_parse_query(SLICE_LIT("a=%zz"), a, &p, &n), -EINVAL);
    char many[2 * (HTTP_PAIRS_MAX + 1)];
    memset(many, '&', sizeof(many));
    assert_int_equal(http_parse_query(slice_of(many, HTTP_PAIRS_MAX - 1), a, &p, &n), 0);
    assert_int_equal(http_parse_query(slice_of(many, HTTP_PAIRS_MAX), a, &p, &n), -E2BIG);
}

/* Appends one of these forms of a pair's name or value: plain, with one escape, or with a plus. */
static void put_form(unsigned form, const char *plain, struct buf *raw, struct buf *decoded)
{
    static const char *const raw_of[] = {"", "%26", "+"}, *const decoded_of[] = {"", "&", " "};
    assert_int_equal(buf_printf(raw, "%s%s", plain, raw_of[form]), 0);
    assert_int_equal(buf_printf(decoded, "%s%s", plain, decoded_of[form]), 0);
}

/* Wherever the escapes of a query are, each name and value comes out as it was put in. */
static void decodes_each_pair(void **state)
{
    enum { PAIRS = 3, FORMS = 3 };
    struct arena *_cleanup_(arena_freep) a = arena_new(64 * KIB);
    for (unsigned which = 0; which < 729; which++) { /* FORMS to the power of twice PAIRS */
        struct buf raw = BUF_INIT(256), name[PAIRS], value[PAIRS];
        unsigned rest = which;
        arena_clear(a);
        for (size_t i = 0; i < PAIRS; i++) {
            name[i] = value[i] = BUF_INIT(64);
            if (i > 0)
                assert_int_equal(buf_char(&raw, '&'), 0);
            put_form(rest % FORMS, "name", &raw, &name[i]);
            assert_int_equal(buf_char(&raw, '='), 0);
            put_form(rest / FORMS % FORMS, "value", &raw, &value[i]);
            rest /= FORMS * FORMS;
        }
        struct http_pair *p;
        size_t n;
        assert_int_equal(http_parse_query(buf_view(&raw), a, &p, &n), 0);
        assert_int_equal(n, PAIRS);
        for (size_t i = 0; i < PAIRS; i++) {
            assert_true(slice_eq(p[i].name, buf_view(&name[i])) && slice_eq(p[i].value, buf_view(&value[i])));
            assert_ptr_equal(http_pair_named(p, i + 1, p[i].name),
                             http_pair_named(p, PAIRS, buf_view(&name[i])));
            buf_fini(&name[i]);
            buf_fini(&value[i]);
        }
        buf_fini(&raw);
    }
    assert_null(http_pair_named(NULL, 0, SLICE_LIT("a")));
}

/* Ranges against sizes, as RFC 9110 14.1.2 and S3 have them. */
static void resolves_ranges(void **state)
{
    static const struct {
        const char *text;
        uint64_t size;
        int code;
        uint64_t offset, n;
    } cases[] = {
        {"bytes=0-0", 10, 0, 0, 1},
        {"bytes=0-", 10, 0, 0, 10},
        {"bytes=3-5", 10, 0, 3, 3},
        {"bytes=9-100", 10, 0, 9, 1},
        {"bytes=-3", 10, 0, 7, 3},
        {"bytes=-30", 10, 0, 0, 10},
        {"Bytes= 1 - 2 ", 10, 0, 1, 2},
        {"bytes=0-99999999999999999999999", 10, 0, 0, 10},
        {"bytes=10-", 10, ERR_RANGE, 0, 0},
        {"bytes=99999999999999999999999-", 10, ERR_RANGE, 0, 0},
        {"bytes=-0", 10, ERR_RANGE, 0, 0},
        {"bytes=0-0", 0, ERR_RANGE, 0, 0},
        {"bytes=-1", 0, ERR_RANGE, 0, 0},
        {"bytes=5-3", 10, -ENOENT, 0, 0},
        {"bytes=0-1,3-4", 10, -ENOENT, 0, 0},
        {"bytes=", 10, -ENOENT, 0, 0},
        {"bytes=-", 10, -ENOENT, 0, 0},
        {"bytes=a-b", 10, -ENOENT, 0, 0},
        {"bytes=1", 10, -ENOENT, 0, 0},
        {"items=0-1", 10, -ENOENT, 0, 0},
        {"", 10, -ENOENT, 0, 0},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct http_range r = {77, 77};
        int k = http_parse_range(slice_str(cases[i].text), cases[i].size, &r);
        if (k != cases[i].code)
            fail_msg("%s of %d: %d", cases[i].text, (int)cases[i].size, k);
        assert_int_equal(r.offset, k == 0 ? cases[i].offset : 77); /* untouched on failure */
        assert_int_equal(r.n, k == 0 ? cases[i].n : 77);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_a_usual_request_apart),
        cmocka_unit_test(every_cut_of_a_valid_head_is_incomplete),
        cmocka_unit_test(dribbled_heads_are_parsed_once_a_line),
        cmocka_unit_test(refuses_broken_heads_with_their_status),
        cmocka_unit_test(refuses_zero_bytes),
        cmocka_unit_test(knows_when_to_keep_the_connection),
        cmocka_unit_test(expects_continue_only_with_a_body),
        cmocka_unit_test(bounds_heads_headers_and_targets),
        cmocka_unit_test(splits_and_decodes_queries),
        cmocka_unit_test(decodes_each_pair),
        cmocka_unit_test(resolves_ranges),
    };
    return cmocka_run_group_tests_name("http", tests, NULL, NULL);
}
