/* layer: net */
/* threaded */
/*
 * Signature Version 4 against vectors made with botocore 1.44.5: S3SigV4Auth.canonical_request,
 * string_to_sign and signature, at 2026-01-31T23:59:59Z with access key AKIDEXAMPLE and the secret below; the
 * presigned one with S3SigV4QueryAuth(expires=600); the derived keys with SigV4Auth._sign four times. Nothing
 * here was computed by the code under test.
 */
#include "net/sigv4.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define SECRET   "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
#define TIME     "20260131T235959Z"
#define UNSIGNED "UNSIGNED-PAYLOAD"
#define EMPTY    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

struct text_pair {
    const char *name, *value;
};

struct vector {
    const char *name, *method, *path, *region, *payload;
    struct text_pair query[12];
    struct text_pair headers[12];
    const char *canonical, *signed_headers, *signature;
};

#define COMMON_HEADERS                                                                                       \
    {"x-amz-date", TIME},                                                                                    \
    {                                                                                                        \
        "x-amz-content-sha256", UNSIGNED                                                                     \
    }

static const struct vector vectors[] = {
    {"plain",
     "GET",
     "/bucket/key",
     "us-east-1",
     UNSIGNED,
     {{NULL, NULL}},
     {{"host", "127.0.0.1:9000"}, COMMON_HEADERS},
     "GET\n/bucket/key\n\nhost:127.0.0.1:9000\nx-amz-content-sha256:UNSIGNED-PAYLOAD\n"
     "x-amz-date:20260131T235959Z\n\nhost;x-amz-content-sha256;x-amz-date\nUNSIGNED-PAYLOAD",
     "host;x-amz-content-sha256;x-amz-date",
     "1233d29e763f5285e0ca34e14caf49d0c915d3cd30f2f12a88ab30214e1d6d6a"},
    {"spaces, Unicode, plus, tilde and percent in the key",
     "GET",
     "/b/a b/\xc3\xa4\xe2\x82\xac+~%.txt",
     "eu-central-1",
     UNSIGNED,
     {{NULL, NULL}},
     {{"host", "s3.example.org"}, COMMON_HEADERS},
     "GET\n/b/a%20b/"
     "%C3%A4%E2%82%AC%2B~%25.txt\n\nhost:s3.example.org\nx-amz-content-sha256:UNSIGNED-PAYLOAD\n"
     "x-amz-date:20260131T235959Z\n\nhost;x-amz-content-sha256;x-amz-date\nUNSIGNED-PAYLOAD",
     "host;x-amz-content-sha256;x-amz-date",
     "14ffa436dbaf012ecb1583dc73bbcd67378ca46cc2dac82b0c5c10a46a9c1541"},
    {"dots and double slashes are kept",
     "PUT",
     "/b//a/../b/./c/",
     "us-east-1",
     EMPTY,
     {{NULL, NULL}},
     {{"x-amz-content-sha256", EMPTY},
      {"host", "s3.example.org"},
      {"content-type", "text/plain; charset=utf-8"},
      {"x-amz-date", TIME}},
     "PUT\n/b//a/../b/./c/\n\ncontent-type:text/plain; charset=utf-8\nhost:s3.example.org\n"
     "x-amz-content-sha256:" EMPTY "\nx-amz-date:20260131T235959Z\n\n"
     "content-type;host;x-amz-content-sha256;x-amz-date\n" EMPTY,
     "content-type;host;x-amz-content-sha256;x-amz-date",
     "7fe4e6ad38819d2b1681033656b67b5dd7e3a129027b7f77f47022f2ab5fdae5"},
    {"query pairs sort by their encoded names, then values",
     "GET",
     "/b",
     "us-east-1",
     UNSIGNED,
     {{"prefix", "a b/+"},
      {"list-type", "2"},
      {"a-", "1"},
      {"a", "2"},
      {"a", "1"},
      {"az", "x"},
      {"a{", "y"},
      {"uploads", ""},
      {"delimiter", "/"}},
     {COMMON_HEADERS, {"host", "s3.example.org"}},
     "GET\n/b\na=1&a=2&a%7B=y&a-=1&az=x&delimiter=%2F&list-type=2&prefix=a%20b%2F%2B&uploads=\n"
     "host:s3.example.org\nx-amz-content-sha256:UNSIGNED-PAYLOAD\nx-amz-date:20260131T235959Z\n\n"
     "host;x-amz-content-sha256;x-amz-date\nUNSIGNED-PAYLOAD",
     "host;x-amz-content-sha256;x-amz-date",
     "d062c1f628673fe09500e701cca218c0adb3c6d298d730b1ac217cb642103f6d"},
    {"header values are trimmed and their runs of white space joined",
     "PUT",
     "/b/k",
     "ap-south-1",
     UNSIGNED,
     {{NULL, NULL}},
     {{"host", "s3.example.org"},
      {"x-amz-meta-name", "  several   spaces\t here  "},
      {"x-amz-security-token", "tok/en=="},
      {"x-amz-meta-b", "1"},
      {"x-amz-meta-a", "\"q  q\""},
      {"range", "bytes=0-99"},
      COMMON_HEADERS},
     "PUT\n/b/k\n\nhost:s3.example.org\nrange:bytes=0-99\nx-amz-content-sha256:UNSIGNED-PAYLOAD\n"
     "x-amz-date:20260131T235959Z\nx-amz-meta-a:\"q q\"\nx-amz-meta-b:1\nx-amz-meta-name:several spaces "
     "here\n"
     "x-amz-security-token:tok/en==\n\nhost;range;x-amz-content-sha256;x-amz-date;x-amz-meta-a;x-amz-meta-b;"
     "x-amz-meta-name;x-amz-security-token\nUNSIGNED-PAYLOAD",
     "host;range;x-amz-content-sha256;x-amz-date;x-amz-meta-a;x-amz-meta-b;x-amz-meta-name;x-amz-security-"
     "token",
     "e414ee38385bbcd3d6538208c9b0801097c4fccab9cb25a6e966c958af17108e"},
    {"headers of one name are joined in the order given",
     "GET",
     "/b/k",
     "us-east-1",
     UNSIGNED,
     {{NULL, NULL}},
     {{"x-amz-meta-d", "  two "}, {"host", "h"}, {"x-amz-meta-d", "one"}, COMMON_HEADERS},
     "GET\n/b/k\n\nhost:h\nx-amz-content-sha256:UNSIGNED-PAYLOAD\nx-amz-date:20260131T235959Z\n"
     "x-amz-meta-d:two,one\n\nhost;x-amz-content-sha256;x-amz-date;x-amz-meta-d\nUNSIGNED-PAYLOAD",
     "host;x-amz-content-sha256;x-amz-date;x-amz-meta-d",
     "adb39b420b5a9a6065a234441ecac7502ef43540737937ab82ac7fac1ae27249"},
    {"presigned",
     "GET",
     "/b/a b",
     "eu-west-1",
     UNSIGNED,
     {{"response-content-type", "text/plain"},
      {"X-Amz-Algorithm", "AWS4-HMAC-SHA256"},
      {"X-Amz-Credential", "AKIDEXAMPLE/20260131/eu-west-1/s3/aws4_request"},
      {"X-Amz-Date", TIME},
      {"X-Amz-Expires", "600"},
      {"X-Amz-SignedHeaders", "host"}},
     {{"host", "s3.example.org"}},
     NULL,
     "host",
     "928bea8517a74b0c1aa4cd6c4a99616612a2eb8131aaba0bf423bc46049ba6a4"},
};

static size_t pairs_of(const struct text_pair *from, size_t max, struct sigv4_pair *ret)
{
    size_t n = 0;
    for (; n < max && from[n].name; n++)
        ret[n] = (struct sigv4_pair){slice_str(from[n].name), slice_str(from[n].value)};
    return n;
}

static struct sigv4_request request_of(const struct vector *v, struct sigv4_pair *query,
                                       struct sigv4_pair *headers)
{
    return (struct sigv4_request){
        .method = slice_str(v->method),
        .path = slice_str(v->path),
        .query = query,
        .n_query = pairs_of(v->query, ARRAY_SIZE(v->query), query),
        .headers = headers,
        .n_headers = pairs_of(v->headers, ARRAY_SIZE(v->headers), headers),
        .payload_hash = slice_str(v->payload),
    };
}

/* Canonical request, names of the signed headers and signature are botocore's for every vector. */
static void test_vectors(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(vectors); i++) {
        const struct vector *v = &vectors[i];
        struct sigv4_pair query[12], headers[12];
        struct sigv4_request r = request_of(v, query, headers);
        struct buf _cleanup_buf_ b = BUF_INIT(64 * KIB);
        if (v->canonical) {
            assert_int_equal(sigv4_canonical(&r, &b), 0);
            assert_string_equal(b.p, v->canonical);
            buf_clear(&b);
        }
        assert_int_equal(sigv4_signed_headers(&r, &b), 0);
        assert_string_equal(b.p, v->signed_headers);
        struct sigv4_key key;
        struct slice region = slice_str(v->region);
        sigv4_derive_key(SLICE_LIT(SECRET), SLICE_LIT("20260131"), region, SLICE_LIT("s3"), &key);
        struct sigv4_scope scope = {SLICE_LIT(TIME), region, SLICE_LIT("s3")};
        char signature[SIGV4_SIGNATURE_LEN + 1];
        assert_int_equal(sigv4_sign(&r, &scope, &key, signature), 0);
        assert_string_equal(signature, v->signature);
    }
}

#define THREADS       4
#define THREAD_ROUNDS 20

/* Derives keys, signs and hashes in turn; *arg: the first vector, then the number of wrong signatures. */
static void *sign_all(void *arg)
{
    size_t *n = arg, first = *n, wrong = 0;
    for (size_t i = 0; i < THREAD_ROUNDS * ARRAY_SIZE(vectors); i++) {
        const struct vector *v = &vectors[(first + i) % ARRAY_SIZE(vectors)];
        struct sigv4_pair query[12], headers[12];
        struct sigv4_request r = request_of(v, query, headers);
        struct sigv4_key key;
        struct slice region = slice_str(v->region);
        char signature[SIGV4_SIGNATURE_LEN + 1], empty[65];
        sigv4_derive_key(SLICE_LIT(SECRET), SLICE_LIT("20260131"), region, SLICE_LIT("s3"), &key);
        struct sigv4_scope scope = {SLICE_LIT(TIME), region, SLICE_LIT("s3")};
        wrong += sigv4_sign(&r, &scope, &key, signature) != 0 || strcmp(signature, v->signature) != 0;
        sigv4_sha256_hex(SLICE_NULL, empty);
        wrong += strcmp(empty, EMPTY) != 0;
    }
    *n = wrong;
    return NULL;
}

/* Threads that begin and end sign at once as one does. */
static void test_threads(void **state)
{
    for (size_t turn = 0; turn < 2; turn++) {
        pthread_t threads[THREADS];
        size_t n[THREADS];
        for (size_t i = 0; i < THREADS; i++) {
            n[i] = i;
            assert_int_equal(pthread_create(&threads[i], NULL, sign_all, &n[i]), 0);
        }
        for (size_t i = 0; i < THREADS; i++) {
            assert_int_equal(pthread_join(threads[i], NULL), 0);
            assert_int_equal(n[i], 0);
        }
    }
}

static void hex(const uint8_t *p, size_t n, char *ret)
{
    for (size_t i = 0; i < n; i++)
        (void)snprintf(ret + 2 * i, 3, "%02x", p[i]);
}

/* The signing key is botocore's, also for a secret longer than the hash's block, which HMAC hashes first. */
static void test_key(void **state)
{
    struct sigv4_key key;
    char text[65], secret[200];
    memset(secret, 's', sizeof(secret));
    struct slice date = SLICE_LIT("20260131"), region = SLICE_LIT("us-east-1"), service = SLICE_LIT("s3");
    sigv4_derive_key(SLICE_LIT(SECRET), date, region, service, &key);
    hex(key.k, sizeof(key.k), text);
    assert_string_equal(text, "3ac429751f6d7157d1f7ff9c878d5777c0679a753a5262318dec37c99f8f7992");
    sigv4_derive_key(slice_of(secret, sizeof(secret)), date, region, service, &key);
    hex(key.k, sizeof(key.k), text);
    assert_string_equal(text, "5028ba08867aa8080d4bd713735ab92698cafccd6b60c847d44ab0ea4596d2bf");
}

/* The order in which query pairs and headers are given changes nothing, over all rotations of the vectors. */
static void test_any_order(void **state)
{
    const struct vector *v = &vectors[3];
    struct sigv4_key key;
    sigv4_derive_key(SLICE_LIT(SECRET), SLICE_LIT("20260131"), slice_str(v->region), SLICE_LIT("s3"), &key);
    struct sigv4_scope scope = {SLICE_LIT(TIME), slice_str(v->region), SLICE_LIT("s3")};
    struct sigv4_pair query[12], headers[12];
    struct sigv4_request r = request_of(v, query, headers);
    for (size_t turn = 0; turn < r.n_query * r.n_headers; turn++) {
        struct sigv4_pair first = query[0], first_header = headers[0];
        memmove(query, query + 1, (r.n_query - 1) * sizeof(query[0]));
        query[r.n_query - 1] = first;
        memmove(headers, headers + 1, (r.n_headers - 1) * sizeof(headers[0]));
        headers[r.n_headers - 1] = first_header;
        char signature[SIGV4_SIGNATURE_LEN + 1];
        assert_int_equal(sigv4_sign(&r, &scope, &key, signature), 0);
        assert_string_equal(signature, v->signature);
    }
}

/* One changed byte anywhere in the request, the scope or the key gives another signature. */
static void test_every_part_counts(void **state)
{
    const struct vector *v = &vectors[3];
    struct sigv4_pair query[12], headers[12];
    struct sigv4_key key, other_key;
    struct sigv4_scope scope = {SLICE_LIT(TIME), slice_str(v->region), SLICE_LIT("s3")};
    sigv4_derive_key(SLICE_LIT(SECRET), SLICE_LIT("20260131"), slice_str(v->region), SLICE_LIT("s3"), &key);
    sigv4_derive_key(SLICE_LIT(SECRET "x"), SLICE_LIT("20260131"), slice_str(v->region), SLICE_LIT("s3"),
                     &other_key);
    for (int part = 0; part < 10; part++) {
        struct sigv4_request r = request_of(v, query, headers);
        struct sigv4_scope s = scope;
        const struct sigv4_key *k = &key;
        switch (part) {
        case 0:
            r.method = SLICE_LIT("PUT");
            break;
        case 1:
            r.path = SLICE_LIT("/c");
            break;
        case 2:
            query[0].value = SLICE_LIT("a b/");
            break;
        case 3:
            query[7].name = SLICE_LIT("upload");
            break;
        case 4:
            r.n_query--;
            break;
        case 5:
            headers[2].value = SLICE_LIT("s3.example.com");
            break;
        case 6:
            r.payload_hash = SLICE_LIT(EMPTY);
            break;
        case 7:
            s.time = SLICE_LIT("20260131T235958Z");
            break;
        case 8:
            s.region = SLICE_LIT("us-east-2");
            break;
        default:
            k = &other_key;
            break;
        }
        char signature[SIGV4_SIGNATURE_LEN + 1];
        assert_int_equal(sigv4_sign(&r, &s, k, signature), 0);
        assert_string_not_equal(signature, v->signature);
    }
}

/* Paths and values longer than the emitter's chunk give the same text through every chunk border. */
static void test_long_values(void **state)
{
    char *path = malloc(5000);
    for (size_t n = 1000; n < 1100; n++) {
        memset(path, 'p', 5000);
        path[0] = '/';
        path[n] = ' ';
        struct sigv4_pair h[2] = {{SLICE_LIT("host"), slice_of(path + 1, n)},
                                  {slice_of(path + 1, 3000), SLICE_LIT("v")}};
        struct sigv4_request r = {.method = SLICE_LIT("GET"),
                                  .path = slice_of(path, 4000),
                                  .headers = h,
                                  .n_headers = 2,
                                  .payload_hash = SLICE_LIT(UNSIGNED)};
        memset(path + 1, 'p', n - 1);
        struct buf _cleanup_buf_ b = BUF_INIT(64 * KIB);
        assert_int_equal(sigv4_canonical(&r, &b), 0);
        char *want = NULL;
        assert_true(asprintf(&want, "GET\n%.*s%%20%.*s\n\nhost:%.*s\n%.*s:v\n\nhost;%.*s\n" UNSIGNED, (int)n,
                             path, (int)(4000 - n - 1), path + n + 1, (int)(n - 1), path + 1, 3000, path + 1,
                             3000, path + 1) > 0);
        assert_string_equal(b.p, want);
        free(want);
    }
    free(path);
}

/* Requests with too many pairs, a time of another length and a full buffer are refused and change nothing. */
static void test_refused(void **state)
{
    struct sigv4_pair many[SIGV4_PAIRS_MAX + 1];
    for (size_t i = 0; i < ARRAY_SIZE(many); i++)
        many[i] = (struct sigv4_pair){SLICE_LIT("n"), SLICE_LIT("v")};
    struct sigv4_request r = {.method = SLICE_LIT("GET"),
                              .path = SLICE_LIT("/"),
                              .query = many,
                              .n_query = ARRAY_SIZE(many),
                              .payload_hash = SLICE_LIT(UNSIGNED)};
    struct sigv4_scope scope = {SLICE_LIT(TIME), SLICE_LIT("r"), SLICE_LIT("s3")};
    struct sigv4_key key = {{0}};
    char signature[SIGV4_SIGNATURE_LEN + 1] = "untouched";
    struct buf _cleanup_buf_ b = BUF_INIT(40);
    assert_int_equal(sigv4_sign(&r, &scope, &key, signature), -E2BIG);
    assert_int_equal(sigv4_canonical(&r, &b), -E2BIG);
    assert_int_equal(sigv4_signed_headers(&r, &b), -E2BIG);
    r.n_query--;
    assert_int_equal(sigv4_sign(&r, &(struct sigv4_scope){.time = SLICE_LIT("2026")}, &key, signature),
                     -EINVAL);
    assert_string_equal(signature, "untouched");
    assert_int_equal(buf_str(&b, "kept"), 0);
    assert_int_equal(sigv4_canonical(&r, &b), -E2BIG);
    assert_string_equal(b.p, "kept");
    assert_int_equal(sigv4_sign(&r, &scope, &key, signature), 0);
}

/* An empty path is signed as "/", as S3 clients send it. */
static void test_empty_path(void **state)
{
    struct sigv4_request r = {.method = SLICE_LIT("GET"), .payload_hash = SLICE_LIT(UNSIGNED)};
    struct buf _cleanup_buf_ b = BUF_INIT(KIB);
    assert_int_equal(sigv4_canonical(&r, &b), 0);
    assert_string_equal(b.p, "GET\n/\n\n\n\n" UNSIGNED);
}

/* Equality asks for all bytes; empty signatures never match. */
static void test_equal(void **state)
{
    assert_true(sigv4_equal(SLICE_LIT("abc"), SLICE_LIT("abc")));
    assert_false(sigv4_equal(SLICE_LIT("abc"), SLICE_LIT("abd")));
    assert_false(sigv4_equal(SLICE_LIT("abc"), SLICE_LIT("abcd")));
    assert_false(sigv4_equal(SLICE_NULL, SLICE_NULL));
}

/* Hash and time texts have the forms of the standard: FIPS 180-4's example, and a leap day. */
static void test_texts(void **state)
{
    char sum[65], time[SIGV4_TIME_LEN + 1];
    sigv4_sha256_hex(SLICE_LIT("abc"), sum);
    assert_string_equal(sum, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    sigv4_sha256_hex(SLICE_NULL, sum);
    assert_string_equal(sum, EMPTY);
    sigv4_time((uint64_t)1709210096 * 1000000000 + 999999999, time);
    assert_string_equal(time, "20240229T123456Z");
    sigv4_time(UINT64_MAX, time);
    assert_int_equal(strlen(time), SIGV4_TIME_LEN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),     cmocka_unit_test(test_key),
        cmocka_unit_test(test_any_order),   cmocka_unit_test(test_every_part_counts),
        cmocka_unit_test(test_long_values), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_empty_path),  cmocka_unit_test(test_equal),
        cmocka_unit_test(test_texts),       cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
