/* layer: s3 */
/* aws-chunked bodies: Amazon's worked examples decode, whatever pieces they come in, and no changed byte
 * passes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "s3/chunked.h"

/* The examples of the S3 API reference: 66,560 times 'a' in chunks of 64 KiB, key AKIAIOSFODNN7EXAMPLE. */
#define EXAMPLE_SECRET "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
#define EXAMPLE_TIME   "20130524T000000Z"
#define SEED           "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
#define FIRST          "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648"
#define SECOND         "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497"
#define LAST           "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"
#define TRAILER_SEED   "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e"
#define TRAILER_FIRST  "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2"
#define TRAILER_SECOND "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7"
#define TRAILER_LAST   "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992"
#define TRAILER_SIGN   "d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435"

static void example_signing(struct chunked_signing *s, const char *seed)
{
    *s = (struct chunked_signing){.time = EXAMPLE_TIME, .scope = "20130524/us-east-1/s3/aws4_request"};
    sigv4_derive_key(SLICE_LIT(EXAMPLE_SECRET), SLICE_LIT("20130524"), SLICE_LIT("us-east-1"),
                     SLICE_LIT("s3"), &s->key);
    memcpy(s->previous, seed, SIGV4_SIGNATURE_LEN + 1);
}

static void put_payload(struct buf *b, size_t n)
{
    char *p = buf_reserve(b, n);

    assert_non_null(p);
    memset(p, 'a', n);
    buf_used(b, n);
}

static void build_example(struct buf *b)
{
    assert_int_equal(buf_str(b, "10000;chunk-signature=" FIRST "\r\n"), 0);
    put_payload(b, 65536);
    assert_int_equal(buf_str(b, "\r\n400;chunk-signature=" SECOND "\r\n"), 0);
    put_payload(b, 1024);
    assert_int_equal(buf_str(b, "\r\n0;chunk-signature=" LAST "\r\n\r\n"), 0);
}

static void build_trailer_example(struct buf *b)
{
    assert_int_equal(buf_str(b, "10000;chunk-signature=" TRAILER_FIRST "\r\n"), 0);
    put_payload(b, 65536);
    assert_int_equal(buf_str(b, "\r\n400;chunk-signature=" TRAILER_SECOND "\r\n"), 0);
    put_payload(b, 1024);
    assert_int_equal(buf_str(b, "\r\n0;chunk-signature=" TRAILER_LAST "\r\n"
                                "x-amz-checksum-crc32c:sOO8/Q==\r\n"
                                "x-amz-trailer-signature:" TRAILER_SIGN "\r\n\r\n"),
                     0);
}

/* Feeds the body in pieces of `step` bytes; payload goes to *out. */
static enum s3_error feed(struct chunked *c, struct slice body, size_t step, struct buf *out)
{
    while (body.n) {
        struct slice piece = slice_sub(body, 0, MIN(step, body.n));

        body = slice_from(body, piece.n);
        while (piece.n) {
            struct slice payload;
            size_t used;
            enum s3_error error = chunked_feed(c, piece, &used, &payload);

            if (error)
                return error;
            assert_true(used > 0 && used <= piece.n);
            assert_int_equal(buf_slice(out, payload), 0);
            piece = slice_from(piece, used);
        }
    }
    return S3_OK;
}

/* The signed example decodes to its 66,560 bytes, for pieces of any size. */
static void signed_example_decodes(void **state)
{
    static const size_t steps[] = {1, 2, 3, 85, 86, 87, 1000, 65536, 1 << 20};
    _cleanup_buf_ struct buf body = BUF_INIT(MIB);
    struct chunked_signing signing;
    (void)state;

    example_signing(&signing, SEED);
    build_example(&body);
    for (size_t i = 0; i < ARRAY_SIZE(steps); i++) {
        _cleanup_buf_ struct buf out = BUF_INIT(MIB);
        struct chunked c;

        chunked_init(&c, &signing, /* has_trailer= */ false);
        assert_int_equal(feed(&c, buf_view(&body), steps[i], &out), S3_OK);
        assert_true(chunked_done(&c));
        assert_int_equal(out.n, 66560);
        for (size_t k = 0; k < out.n; k++)
            assert_int_equal(out.p[k], 'a');
        chunked_fini(&c);
    }
}

/* The example with a signed trailer decodes and gives the trailer's value. */
static void signed_trailer_decodes(void **state)
{
    _cleanup_buf_ struct buf body = BUF_INIT(MIB), out = BUF_INIT(MIB);
    struct chunked_signing signing;
    struct chunked c;
    (void)state;

    example_signing(&signing, TRAILER_SEED);
    build_trailer_example(&body);
    chunked_init(&c, &signing, /* has_trailer= */ true);
    assert_int_equal(feed(&c, buf_view(&body), 100, &out), S3_OK);
    assert_true(chunked_done(&c));
    assert_true(slice_eq_str(chunked_trailer(&c, "x-amz-checksum-crc32c"), "sOO8/Q=="));
    assert_null(chunked_trailer(&c, "x-amz-checksum-sha1").p);
    chunked_fini(&c);
}

/* Any one changed byte of a signed body makes it fail or leaves it unfinished; so does any cut. Fails without
 * the comparison in check_signature. */
static void no_changed_byte_passes(void **state)
{
    _cleanup_buf_ struct buf body = BUF_INIT(MIB);
    struct chunked_signing signing;
    (void)state;

    example_signing(&signing, TRAILER_SEED);
    build_trailer_example(&body);
    for (size_t at = 0; at < body.n; at += (at > 100 && at < 65600) ? 4999 : 1) {
        _cleanup_buf_ struct buf out = BUF_INIT(MIB);
        struct chunked c;
        enum s3_error error;
        char saved = body.p[at];

        /* Case of hex digits of sizes and header names does not matter; a changed digit does. */
        body.p[at] = (char)(saved ^ 0x01);
        chunked_init(&c, &signing, /* has_trailer= */ true);
        error = feed(&c, buf_view(&body), 1 << 20, &out);
        assert_true(error != S3_OK || !chunked_done(&c));
        chunked_fini(&c);
        body.p[at] = saved;
        chunked_init(&c, &signing, /* has_trailer= */ true);
        buf_clear(&out);
        error = feed(&c, slice_sub(buf_view(&body), 0, at), 1 << 20, &out);
        assert_false(error == S3_OK && chunked_done(&c));
        chunked_fini(&c);
    }
}

/* A trailer without its signature is refused when the body is signed: anyone could have put it there. Fails
 * without the check of trailer_signed in end_body. */
static void unsigned_trailer_of_a_signed_body(void **state)
{
    _cleanup_buf_ struct buf body = BUF_INIT(MIB), out = BUF_INIT(MIB);
    struct chunked_signing signing;
    struct chunked c;
    (void)state;

    example_signing(&signing, TRAILER_SEED);
    build_trailer_example(&body);
    body.n -= strlen("x-amz-trailer-signature:" TRAILER_SIGN "\r\n\r\n");
    assert_int_equal(buf_str(&body, "\r\n"), 0);
    chunked_init(&c, &signing, /* has_trailer= */ true);
    assert_int_equal(feed(&c, buf_view(&body), 100, &out), S3_ERR_SIGNATURE);
    assert_false(chunked_done(&c));
    chunked_fini(&c);
}

static enum s3_error decode_unsigned(const char *text, bool has_trailer, bool *ret_done)
{
    _cleanup_buf_ struct buf out = BUF_INIT(KIB);
    struct chunked c;
    enum s3_error error;

    chunked_init(&c, NULL, has_trailer);
    error = feed(&c, slice_str(text), 7, &out);
    *ret_done = chunked_done(&c);
    chunked_fini(&c);
    return error;
}

/* Unsigned bodies: good ones end, broken ones are refused or never end. */
static void unsigned_bodies(void **state)
{
    static const struct {
        const char *text;
        bool has_trailer;
        enum s3_error error;
        bool done;
    } rows[] = {
        {"5\r\nhello\r\n0\r\n\r\n", false, S3_OK, true},
        {"0\r\n\r\n", false, S3_OK, true},
        {"A\r\n0123456789\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n", true, S3_OK, true},
        {"0\r\nX-Amz-Checksum-Crc32 : AAAAAA==\n\r\n\r\n", true, S3_OK, true},
        {"0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n", false, S3_ERR_MALFORMED_TRAILER, false},
        {"5\r\nhelloX\r\n0\r\n\r\n", false, S3_ERR_INCOMPLETE_BODY, false},
        {"5\r\nhello0\r\n\r\n", false, S3_ERR_INCOMPLETE_BODY, false},
        {"g\r\nhello\r\n", false, S3_ERR_INCOMPLETE_BODY, false},
        {"\r\n", false, S3_ERR_INCOMPLETE_BODY, false},
        {"-5\r\nhello\r\n", false, S3_ERR_INCOMPLETE_BODY, false},
        {"ffffffffffffffff\r\n", false, S3_ERR_INCOMPLETE_BODY, false},
        {"0\r\n\r\nmore", false, S3_ERR_INCOMPLETE_BODY, true},
        {"5\r\nhel", false, S3_OK, false},
    };
    (void)state;

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        bool done;

        assert_int_equal(decode_unsigned(rows[i].text, rows[i].has_trailer, &done), rows[i].error);
        assert_int_equal(done, rows[i].done);
    }
}

/* A line without end is refused at its limit. */
static void endless_lines_are_refused(void **state)
{
    char text[2 * CHUNKED_LINE_MAX];
    struct chunked c;
    size_t used;
    struct slice payload;
    (void)state;

    memset(text, '1', sizeof text);
    chunked_init(&c, NULL, /* has_trailer= */ false);
    assert_int_equal(chunked_feed(&c, slice_of(text, sizeof text), &used, &payload), S3_ERR_INCOMPLETE_BODY);
    chunked_fini(&c);
}

/* The body of unsigned chunks, whole, with a trailer. */
static enum s3_error feed_unsigned(struct chunked *c, const char *body, struct buf *out)
{
    chunked_init(c, NULL, /* has_trailer= */ true);
    return feed(c, slice_str(body), 7, out);
}

/* What comes behind the trailer's signature nobody has signed: it is refused, and so is a line without a
 * name. (Fails where trailer_line takes lines after the signature: they could bring another checksum.) */
static void lines_behind_the_signature_are_refused(void **state)
{
    static const char *const bodies[] = {
        "0\r\nx-amz-trailer-signature:" TRAILER_SIGN "\r\nx-amz-checksum-sha1:AAAA\r\n\r\n",
        "0\r\nx-amz-trailer-signature:" TRAILER_SIGN "\r\nx-amz-trailer-signature:" TRAILER_SIGN "\r\n\r\n",
        "0\r\n:AAAA\r\n\r\n",
    };
    _cleanup_buf_ struct buf body = BUF_INIT(MIB), out = BUF_INIT(MIB);
    struct chunked_signing signing;
    struct chunked c;
    (void)state;

    example_signing(&signing, TRAILER_SEED);
    build_trailer_example(&body);
    body.n -= strlen("\r\n");
    assert_int_equal(buf_str(&body, "x-amz-checksum-sha1:AAAA\r\n\r\n"), 0);
    chunked_init(&c, &signing, /* has_trailer= */ true);
    assert_int_equal(feed(&c, buf_view(&body), 100, &out), S3_ERR_MALFORMED_TRAILER);
    assert_false(chunked_done(&c));
    chunked_fini(&c);
    for (size_t i = 0; i < ARRAY_SIZE(bodies); i++) {
        assert_int_equal(feed_unsigned(&c, bodies[i], &out), S3_ERR_MALFORMED_TRAILER);
        assert_false(chunked_done(&c));
        chunked_fini(&c);
    }
}

/* Lines are counted but for the signature, which unsigned chunks may have, too, and names are small letters.
 */
static void trailer_lines_are_counted(void **state)
{
    _cleanup_buf_ struct buf out = BUF_INIT(MIB);
    struct chunked c;
    (void)state;

    assert_int_equal(
        feed_unsigned(&c, "0\r\nAZ-az:1\r\nb: 2 \r\nx-amz-trailer-signature:" TRAILER_SIGN "\r\n\r\n", &out),
        S3_OK);
    assert_true(chunked_done(&c));
    assert_int_equal(chunked_trailer_lines(&c), 2);
    assert_true(slice_eq_str(chunked_trailer(&c, "az-az"), "1"));
    assert_true(slice_eq_str(chunked_trailer(&c, "b"), "2"));
    chunked_fini(&c);
}

/* A chunk's size is told in digits of either case, and in no others. */
static void sizes_are_hexadecimal(void **state)
{
    static const char digits[] = "123456789abcdefABCDEF", others[] = "/:@G`g";
    _cleanup_buf_ struct buf out = BUF_INIT(MIB);
    struct chunked c;
    char body[64];
    (void)state;

    for (size_t i = 0; i < strlen(digits); i++) {
        unsigned n = i < 15 ? (unsigned)i + 1 : (unsigned)i - 5;
        (void)snprintf(body, sizeof(body), "%c\r\n%.*s\r\n0\r\n\r\n", digits[i], (int)n, "aaaaaaaaaaaaaaa");
        buf_clear(&out);
        assert_int_equal(feed_unsigned(&c, body, &out), S3_OK);
        assert_true(chunked_done(&c) && out.n == n);
        chunked_fini(&c);
    }
    for (size_t i = 0; i < strlen(others); i++) {
        (void)snprintf(body, sizeof(body), "%c\r\naaaaaaaaaaaaaaa\r\n0\r\n\r\n", others[i]);
        assert_int_equal(feed_unsigned(&c, body, &out), S3_ERR_INCOMPLETE_BODY);
        chunked_fini(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(signed_example_decodes),
        cmocka_unit_test(signed_trailer_decodes),
        cmocka_unit_test(no_changed_byte_passes),
        cmocka_unit_test(unsigned_trailer_of_a_signed_body),
        cmocka_unit_test(unsigned_bodies),
        cmocka_unit_test(endless_lines_are_refused),
        cmocka_unit_test(lines_behind_the_signature_are_refused),
        cmocka_unit_test(trailer_lines_are_counted),
        cmocka_unit_test(sizes_are_hexadecimal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
