/* layer: s3 */
/* Request bodies: what the headers promise is read right, and no body that breaks its promise ends well. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/text.h"
#include "s3/body.h"

#include <openssl/evp.h>

#define HELLO_SHA256 "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
#define HELLO_MD5    "XUFAKrxLKna5cZ2REBfFkg=="
#define HELLO_CRC32  "NhCmhg=="

static enum s3_error plan(const char *headers, const char *hash, struct body_plan *ret)
{
    _cleanup_buf_ struct buf head = BUF_INIT(64 * KIB);
    struct http_request *r = calloc(1, sizeof *r);
    struct err e = {0};
    const char *reason = NULL;
    enum s3_error error;
    int status = 0;

    assert_int_equal(buf_printf(&head, "PUT /b/k HTTP/1.1\r\nHost: h\r\n%s\r\n", headers), 0);
    assert_int_equal(http_parse_head(buf_view(&head), r, &status, &e), 0);
    error = body_plan(r, slice_str(hash), /* with_checksum= */ true, ret, &reason);
    free(r);
    return error;
}

struct source {
    struct slice rest;
    size_t step;
    ssize_t failure; /* given instead of the end */
};

static ssize_t give(void *arg, void *p, size_t n)
{
    struct source *s = arg;

    n = MIN(MIN(n, s->step), s->rest.n);
    if (n == 0)
        return s->failure;
    memcpy(p, s->rest.p, n);
    s->rest = slice_from(s->rest, n);
    return (ssize_t)n;
}

/* Plans and reads a body; *out gets its payload. S3_OK only when everything held. */
static enum s3_error run(const char *headers, const char *hash, const char *raw, ssize_t failure,
                         struct buf *out)
{
    struct body_plan p;
    enum s3_error error = plan(headers, hash, &p);

    for (size_t step = 1; step < 9 && !error; step++) {
        struct source s = {slice_str(raw), step, failure};
        struct body b;
        char piece[5];
        ssize_t n;

        buf_clear(out);
        body_init(&b, &p, NULL, give, &s);
        while ((n = body_read(&b, piece, sizeof piece)) > 0)
            assert_int_equal(buf_append(out, piece, (size_t)n), 0);
        assert_true(p.size_bytes == BODY_SIZE_UNKNOWN ||
                    out->n <= p.size_bytes); /* also of one that is too long */
        error = n < 0 ? b.error : S3_OK;
        assert_int_equal(n < 0, b.error != S3_OK);
        assert_true(body_read(&b, piece, sizeof piece) == n); /* the end and errors stay */
        body_fini(&b);
    }
    return error;
}

#define TRAILER "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
#define LENGTH  "Content-Length: 5\r\n"
#define CODED                                                                                                \
    "x-amz-decoded-content-length: 5\r\nx-amz-trailer: x-amz-checksum-crc32\r\nContent-Length: 50\r\n"

#define NAMED(kind) "x-amz-sdk-checksum-algorithm: " kind "\r\n"

struct promise {
    const char *headers, *hash, *raw;
    enum s3_error error;
};

static void check_promises(const struct promise *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        _cleanup_buf_ struct buf out = BUF_INIT(KIB);
        enum s3_error error = run(rows[i].headers, rows[i].hash, rows[i].raw, 0, &out);

        if (error != rows[i].error)
            print_message("row %zu\n", i);
        assert_int_equal(error, rows[i].error);
        if (!error)
            assert_true(slice_eq_str(buf_view(&out), strncmp(rows[i].raw, "any", 3) ? "hello" : rows[i].raw));
    }
}

/* Good and bad bodies, with each of the things a client may promise about them. */
static void promises_are_checked(void **state)
{
    static const struct promise rows[] = {
        {LENGTH, "UNSIGNED-PAYLOAD", "hello", S3_OK},
        {LENGTH, HELLO_SHA256, "hello", S3_OK},
        {LENGTH, HELLO_SHA256, "hellp", S3_ERR_SHA256_MISMATCH},
        {LENGTH "Content-MD5: " HELLO_MD5 "\r\n", "UNSIGNED-PAYLOAD", "hello", S3_OK},
        {LENGTH "Content-MD5: " HELLO_MD5 "\r\n", "UNSIGNED-PAYLOAD", "hellp", S3_ERR_BAD_DIGEST},
        {LENGTH "Content-MD5: aGVsbG8=\r\n", "UNSIGNED-PAYLOAD", "hello", S3_ERR_INVALID_DIGEST},
        {LENGTH "Content-MD5: ???\r\n", "UNSIGNED-PAYLOAD", "hello", S3_ERR_INVALID_DIGEST},
        {LENGTH "x-amz-checksum-crc32: " HELLO_CRC32 "\r\n", "UNSIGNED-PAYLOAD", "hello", S3_OK},
        {LENGTH "x-amz-checksum-crc32: " HELLO_CRC32 "\r\n", "UNSIGNED-PAYLOAD", "hellp", S3_ERR_BAD_DIGEST},
        {LENGTH "x-amz-checksum-crc32: AAA\r\n", "UNSIGNED-PAYLOAD", "hello", S3_ERR_BAD_DIGEST},
        {LENGTH "x-amz-checksum-crc32: " HELLO_CRC32 "\r\nx-amz-checksum-crc32c: AAAAAA==\r\n",
         "UNSIGNED-PAYLOAD", "hello", S3_ERR_INVALID_REQUEST},
        {LENGTH, "UNSIGNED-PAYLOAD", "hell", S3_ERR_INCOMPLETE_BODY},
        {LENGTH, "UNSIGNED-PAYLOAD", "hello!", S3_ERR_INCOMPLETE_BODY},
        {"Content-Length: 5497558138881\r\n", "UNSIGNED-PAYLOAD", "", S3_ERR_ENTITY_TOO_LARGE},
        {"Transfer-Encoding: chunked\r\n", "UNSIGNED-PAYLOAD", "any length", S3_OK},
        {LENGTH, "something", "hello", S3_ERR_INVALID_ARGUMENT},
        {LENGTH, "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD", "hello", S3_ERR_INVALID_ARGUMENT},
        {CODED, TRAILER, "5\r\nhello\r\n0\r\nx-amz-checksum-crc32:" HELLO_CRC32 "\r\n\r\n", S3_OK},
        {CODED, TRAILER, "2\r\nhe\r\n3\r\nllo\r\n0\r\nx-amz-checksum-crc32:" HELLO_CRC32 "\r\n\r\n", S3_OK},
        {CODED, TRAILER, "5\r\nhellp\r\n0\r\nx-amz-checksum-crc32:" HELLO_CRC32 "\r\n\r\n",
         S3_ERR_BAD_DIGEST},
        {CODED, TRAILER, "5\r\nhello\r\n0\r\n\r\n", S3_ERR_MALFORMED_TRAILER},
        {CODED, TRAILER, "5\r\nhello\r\n0\r\nx-amz-checksum-crc32:" HELLO_CRC32 "\r\nx-other:a\r\n\r\n",
         S3_ERR_MALFORMED_TRAILER},
        {"x-amz-decoded-content-length: 5\r\nContent-Length: 50\r\n", TRAILER,
         "5\r\nhello\r\n0\r\nx-amz-checksum-crc32:" HELLO_CRC32 "\r\n\r\n", S3_ERR_MALFORMED_TRAILER},
        {"x-amz-decoded-content-length: 5\r\nContent-Length: 50\r\n", TRAILER, "5\r\nhello\r\n0\r\n\r\n",
         S3_OK},
        {CODED, TRAILER, "5\r\nhello\r\n0\r\nx-amz-checksum-crc32:" HELLO_CRC32 "\r\n",
         S3_ERR_INCOMPLETE_BODY},
        {CODED, TRAILER, "4\r\nhell\r\n0\r\nx-amz-checksum-crc32:" HELLO_CRC32 "\r\n\r\n",
         S3_ERR_INCOMPLETE_BODY},
        {CODED, TRAILER, "6\r\nhello!\r\n0\r\nx-amz-checksum-crc32:" HELLO_CRC32 "\r\n\r\n",
         S3_ERR_INCOMPLETE_BODY},
        {LENGTH, TRAILER, "hello", S3_ERR_MISSING_LENGTH},
        {LENGTH "x-amz-trailer: x-amz-checksum-crc32\r\n", "UNSIGNED-PAYLOAD", "hello",
         S3_ERR_MALFORMED_TRAILER},
        {"x-amz-decoded-content-length: 5\r\nx-amz-trailer: x-other\r\n" LENGTH, TRAILER, "",
         S3_ERR_INVALID_REQUEST},
    };
    (void)state;

    check_promises(rows, ARRAY_SIZE(rows));
}

/* The kind of a checksum that an SDK names is that of the one that comes, and one must come, or Content-MD5.
 * Other kinds than ours are refused. */
static void kinds_that_are_named_come(void **state)
{
    static const struct promise rows[] = {
        {LENGTH "x-amz-checksum-sha512: AAAA\r\n", "UNSIGNED-PAYLOAD", "hello", S3_ERR_NOT_IMPLEMENTED},
        {LENGTH "x-amz-checksum-type: FULL_OBJECT\r\nx-amz-checksum-algorithm: CRC32\r\n", "UNSIGNED-PAYLOAD",
         "hello", S3_OK},
        {LENGTH NAMED("CRC32"), "UNSIGNED-PAYLOAD", "hello", S3_ERR_INVALID_REQUEST},
        {LENGTH NAMED("CRC32"), HELLO_SHA256, "hello", S3_ERR_INVALID_REQUEST},
        {LENGTH NAMED(""), "UNSIGNED-PAYLOAD", "hello", S3_OK},
        {LENGTH NAMED("CRC32") "Content-MD5: " HELLO_MD5 "\r\n", "UNSIGNED-PAYLOAD", "hello", S3_OK},
        {LENGTH NAMED("CRC32") "Content-MD5: " HELLO_MD5 "\r\n", "UNSIGNED-PAYLOAD", "hellp",
         S3_ERR_BAD_DIGEST},
        {LENGTH NAMED("crc32") "x-amz-checksum-crc32: " HELLO_CRC32 "\r\n", "UNSIGNED-PAYLOAD", "hello",
         S3_OK},
        {LENGTH NAMED("SHA1") "x-amz-checksum-crc32: " HELLO_CRC32 "\r\n", "UNSIGNED-PAYLOAD", "hello",
         S3_ERR_INVALID_REQUEST},
        {LENGTH NAMED("MD4") "Content-MD5: " HELLO_MD5 "\r\n", "UNSIGNED-PAYLOAD", "hello",
         S3_ERR_INVALID_REQUEST},
        {NAMED("CRC32") CODED, TRAILER, "5\r\nhello\r\n0\r\nx-amz-checksum-crc32:" HELLO_CRC32 "\r\n\r\n",
         S3_OK},
        {NAMED("CRC32C") CODED, TRAILER, "5\r\nhello\r\n0\r\nx-amz-checksum-crc32:" HELLO_CRC32 "\r\n\r\n",
         S3_ERR_INVALID_REQUEST},
    };
    (void)state;

    check_promises(rows, ARRAY_SIZE(rows));
}

/* A peer that stops sending and one that goes away are told apart, and both from a machine without memory for
 * what it sends, which is no fault of its. (The last was seen to be told as the second.) */
static void failing_connections_are_told_apart(void **state)
{
    _cleanup_buf_ struct buf out = BUF_INIT(KIB);
    (void)state;

    assert_int_equal(run(LENGTH, "UNSIGNED-PAYLOAD", "hel", -ETIMEDOUT, &out), S3_ERR_REQUEST_TIMEOUT);
    assert_int_equal(run(LENGTH, "UNSIGNED-PAYLOAD", "hel", -EPIPE, &out), S3_ERR_INCOMPLETE_BODY);
    assert_int_equal(run(LENGTH, "UNSIGNED-PAYLOAD", "hel", -ENOMEM, &out), S3_ERR_UNAVAILABLE);
    assert_int_equal(run(LENGTH, "UNSIGNED-PAYLOAD", "hel", -ENOBUFS, &out), S3_ERR_UNAVAILABLE);
}

/* Reading full pieces gives the same bytes, and a short piece only at the end. */
static void full_pieces(void **state)
{
    struct body_plan p;
    struct source s = {SLICE_LIT("hello"), 1, 0};
    struct body b;
    char piece[8];
    (void)state;

    assert_int_equal(plan(LENGTH, HELLO_SHA256, &p), S3_OK);
    body_init(&b, &p, NULL, give, &s);
    assert_int_equal(body_read_full(&b, piece, 3), 3);
    assert_int_equal(body_read_full(&b, piece, 3), 2);
    assert_int_equal(body_read_full(&b, piece, 3), 0);
    assert_true(b.ended);
    body_fini(&b);
}

#define LARGE_BYTES  (3 * BODY_BESIDE_MIN_BYTES + 12345)
#define LARGE_PIECES ((size_t)100 * 1000) /* of no whole number of blocks */

/* A body whose bytes differ everywhere, its MD5, and what goes before and behind it in a chunked coding. */
struct large {
    char *raw;
    size_t n;
    uint8_t md5[EVP_MAX_MD_SIZE];
    char md5_header[64];
};

static void large_init(struct large *x, const char *before, const char *behind)
{
    _cleanup_buf_ struct buf text = BUF_INIT(64);
    size_t n_before = strlen(before), n_behind = strlen(behind);

    x->n = n_before + LARGE_BYTES + n_behind;
    x->raw = malloc(x->n);
    assert_non_null(x->raw);
    memcpy(x->raw, before, n_before);
    for (size_t i = 0; i < LARGE_BYTES; i++)
        x->raw[n_before + i] = (char)(i * 7 + (i >> 8) * 13 + (i >> 16));
    memcpy(x->raw + n_before + LARGE_BYTES, behind, n_behind);
    assert_int_equal(EVP_Digest(x->raw + n_before, LARGE_BYTES, x->md5, NULL, EVP_md5(), NULL), 1);
    assert_int_equal(text_base64(&text, slice_of(x->md5, MD5_BYTES)), 0);
    (void)snprintf(x->md5_header, sizeof x->md5_header, "Content-MD5: " SLICE_FMT "\r\n",
                   SLICE_ARG(buf_view(&text)));
}

/* Reads a large body into two pieces in turn, which are gone when the body has ended. Gives its error. */
static enum s3_error read_large(struct hasher *h, const struct body_plan *p, struct source s,
                                uint8_t *ret_md5)
{
    char *pieces = malloc(2 * LARGE_PIECES);
    enum s3_error error;
    struct body b;
    size_t got = 0;
    ssize_t n;

    assert_non_null(pieces);
    body_init(&b, p, NULL, give, &s);
    body_want_md5(&b, h);
    assert_int_equal(b.beside, h != NULL);
    for (unsigned turn = 0; (n = body_read_full(&b, pieces + turn * LARGE_PIECES, LARGE_PIECES)) > 0;
         turn = !turn)
        got += (size_t)n;
    error = n < 0 ? b.error : S3_OK;
    assert_true(error || got == LARGE_BYTES);
    assert_true(body_read_full(&b, pieces, LARGE_PIECES) == n); /* the end and errors stay */
    memcpy(ret_md5, b.md5_digest, MD5_BYTES);
    body_fini(&b);
    free(pieces);
    return error;
}

/* The MD5 of a large body is right when it is computed beside, and what was promised is compared with it, in
 * every coding; a body that breaks off ends with its error, and leaves nothing that still reads its memory.
 */
static void large_bodies_are_hashed_beside(void **state)
{
    char headers[512], coded[64];
    struct hasher *hashers[] = {NULL, hasher_start(2)};
    struct body_plan p;
    struct large x;
    uint8_t md5[MD5_BYTES];
    (void)state;

    assert_non_null(hashers[1]);
    for (size_t i = 0; i < ARRAY_SIZE(hashers); i++) {
        large_init(&x, "", "");
        (void)snprintf(headers, sizeof headers, "Content-Length: %zu\r\n%s", x.n, x.md5_header);
        assert_int_equal(plan(headers, "UNSIGNED-PAYLOAD", &p), S3_OK);
        assert_true(p.has_md5);
        for (size_t step = 1000; step < 10 * LARGE_PIECES; step *= 7) {
            struct source s = {slice_of(x.raw, x.n), step, 0};

            assert_int_equal(read_large(hashers[i], &p, s, md5), S3_OK);
            assert_memory_equal(md5, x.md5, MD5_BYTES);
            s.rest.n -= 1000;
            s.failure = -ETIMEDOUT;
            assert_int_equal(read_large(hashers[i], &p, s, md5), S3_ERR_REQUEST_TIMEOUT);
        }
        x.raw[x.n / 2] ^= 1;
        assert_int_equal(read_large(hashers[i], &p, (struct source){slice_of(x.raw, x.n), SIZE_MAX, 0}, md5),
                         S3_ERR_BAD_DIGEST);
        free(x.raw);

        (void)snprintf(coded, sizeof coded, "%zx\r\n", (size_t)LARGE_BYTES);
        large_init(&x, coded, "\r\n0\r\n\r\n");
        (void)snprintf(headers, sizeof headers,
                       "Content-Length: %zu\r\nx-amz-decoded-content-length: %zu\r\n%s", x.n,
                       (size_t)LARGE_BYTES, x.md5_header);
        assert_int_equal(plan(headers, TRAILER, &p), S3_OK);
        assert_int_equal(read_large(hashers[i], &p, (struct source){slice_of(x.raw, x.n), 12345, 0}, md5),
                         S3_OK);
        assert_memory_equal(md5, x.md5, MD5_BYTES);
        free(x.raw);
    }
    hasher_stop(hashers[1]);
}

/* A small body is hashed at once, whoever could do it. */
static void small_bodies_are_not(void **state)
{
    struct hasher *h = hasher_start(2);
    struct source s = {SLICE_LIT("hello"), 1, 0};
    struct body_plan p;
    struct body b;
    uint8_t expected[EVP_MAX_MD_SIZE];
    char piece[8];
    (void)state;

    assert_int_equal(plan(LENGTH, "UNSIGNED-PAYLOAD", &p), S3_OK);
    body_init(&b, &p, NULL, give, &s);
    body_want_md5(&b, h);
    assert_false(b.beside);
    assert_int_equal(body_read_full(&b, piece, sizeof piece), 5);
    assert_true(b.ended);
    assert_int_equal(EVP_Digest("hello", 5, expected, NULL, EVP_md5(), NULL), 1);
    assert_memory_equal(b.md5_digest, expected, MD5_BYTES);
    body_fini(&b);
    hasher_stop(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(promises_are_checked),
        cmocka_unit_test(kinds_that_are_named_come),
        cmocka_unit_test(failing_connections_are_told_apart),
        cmocka_unit_test(full_pieces),
        cmocka_unit_test(large_bodies_are_hashed_beside),
        cmocka_unit_test(small_bodies_are_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
