/* layer: s3 */
/* Headers of requests that are made here by hand, without a connection: what is refused, what of a URL
 * counts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "s3/condition.h"
#include "s3/s3_internal.h"
#include "s3/source.h"

struct made {
    struct arena *arena;
    struct http_request http;
    struct s3_request r;
};

/* A request of the node's own pair; `target` with its query, `headers` as lines. */
static struct made *make(const char *method, const char *target, const char *headers)
{
    struct made *m = calloc(1, sizeof *m);
    char *head = NULL;
    struct err e = {0};
    int status = 0;

    assert_non_null(m);
    m->arena = arena_new(MIB);
    head = arena_printf(m->arena, "%s %s HTTP/1.1\r\nHost: h\r\n%s\r\n", method, target, headers);
    assert_int_equal(http_parse_head(slice_str(head), &m->http, &status, &e), 0);
    m->r = (struct s3_request){.http = &m->http, .arena = m->arena};
    assert_int_equal(http_parse_query(m->http.raw_query, m->arena, &m->r.query, &m->r.n_query), 0);
    return m;
}

static void drop(struct made *m)
{
    arena_free(m->arena);
    free(m);
}

/* What the metadata of a write with these headers is refused for. */
static enum s3_error metadata(const char *headers, const char *named)
{
    struct made *m = make("PUT", "/b/k", headers);
    struct slice type, meta;
    enum s3_error error = put_metadata(&m->r, &type, &meta);

    if (error && slice_find_slice(m->r.message, slice_str(named)) < 0)
        fail_msg("%s: " SLICE_FMT, headers, SLICE_ARG(m->r.message));
    drop(m);
    return error;
}

/* A header that asks for what is not here is refused by itself, also when the one that it goes with is left
 * out. */
static void what_is_not_here_is_refused_alone(void **state)
{
    static const struct {
        const char *name, *value;
    } rows[] = {
        {"x-amz-object-lock-mode", "COMPLIANCE"},
        {"x-amz-object-lock-retain-until-date", "2030-01-01T00:00:00Z"},
        {"x-amz-object-lock-legal-hold", "ON"},
        {"x-amz-server-side-encryption", "aws:kms"},
        {"x-amz-server-side-encryption-aws-kms-key-id", "arn:aws:kms:::key"},
        {"x-amz-server-side-encryption-context", "e30="},
        {"x-amz-server-side-encryption-bucket-key-enabled", "true"},
        {"x-amz-server-side-encryption-customer-algorithm", "AES256"},
        {"x-amz-server-side-encryption-customer-key", "a2V5"},
        {"x-amz-server-side-encryption-customer-key-md5", "bWQ1"},
        {"x-amz-copy-source-server-side-encryption-customer-algorithm", "AES256"},
        {"x-amz-copy-source-server-side-encryption-customer-key", "a2V5"},
        {"x-amz-copy-source-server-side-encryption-customer-key-md5", "bWQ1"},
        {"x-amz-acl", "public-read"},
        {"x-amz-grant-read", "id=x"},
        {"x-amz-website-redirect-location", "/x"},
        {"x-amz-write-offset-bytes", "1"},
    };
    char line[256];
    (void)state;

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        (void)snprintf(line, sizeof line, "%s: %s\r\n", rows[i].name, rows[i].value);
        if (metadata(line, rows[i].name) != S3_ERR_NOT_IMPLEMENTED)
            fail_msg("%s is not refused", rows[i].name);
    }
    assert_int_equal(metadata("x-amz-storage-class: GLACIER\r\n", ""), S3_ERR_INVALID_STORAGE_CLASS);
    assert_int_equal(metadata("x-amz-storage-class: STANDARD\r\nx-amz-acl: private\r\n"
                              "x-amz-server-side-encryption-bucket-key-enabled: false\r\n",
                              ""),
                     S3_OK);
}

/* Those of keys that the client has are refused of reads and parts too, where others mean nothing. */
static void keys_of_clients_are_refused(void **state)
{
    struct made *m = make("GET", "/b/k", "x-amz-server-side-encryption-customer-key-md5: x\r\n");
    (void)state;

    assert_int_equal(put_refuse_keys(&m->r), S3_ERR_NOT_IMPLEMENTED);
    drop(m);
    m = make("GET", "/b/k", "x-amz-server-side-encryption: AES256\r\nx-amz-object-lock-mode: x\r\n");
    assert_int_equal(put_refuse_keys(&m->r), S3_OK);
    drop(m);
}

static size_t count(const struct http_request *http, const char *name)
{
    size_t n = 0;

    for (size_t i = 0; i < http->n_headers; i++)
        n += slice_eq_case(http->headers[i].name, slice_str(name));
    return n;
}

/* What the signer of a URL put there counts as often as it is there, unless the same header is sent. */
static void headers_in_urls_count_each_time(void **state)
{
    const struct wire_attr attr = {.etag = SLICE_LIT("abc"), .mtime_ns = 1000000000};
    struct made *m =
        make("PUT",
             "/b/k?X-Amz-Copy-Source=b/j&x-amz-meta-a=url&X-Amz-Copy-Source-If-None-Match=%22x%22"
             "&x-amz-copy-source-if-none-match=%22abc%22",
             "x-amz-meta-a: sent\r\n");
    const struct http_request *sent = m->r.http;
    struct condition c;
    (void)state;

    assert_int_equal(url_headers_take(&m->r), S3_OK);
    assert_int_equal(count(m->r.http, "x-amz-copy-source-if-none-match"), 2);
    condition_read(m->r.http, "x-amz-copy-source-", &c);
    assert_int_equal(condition_check(&c, &attr), S3_ERR_NOT_MODIFIED);
    assert_int_equal(count(m->r.http, "x-amz-meta-a"), 1);
    assert_true(slice_eq_str(request_header(&m->r, "x-amz-meta-a"), "sent"));
    assert_int_equal(count(sent, "x-amz-copy-source"), 0); /* what was received is as it was */
    drop(m);
}

/* What is about the signature or the form of a body is no header there, nor are checksums, of which the
 * signer knew nothing; and nothing comes in that could not stand in a head. */
static void what_is_no_header_in_urls(void **state)
{
    struct made *m =
        make("PUT",
             "/b/k?X-Amz-Date=1&X-Amz-Security-Token=t&x-amz-content-sha256=h&x-amz-trailer=x"
             "&x-amz-decoded-content-length=1&x-amz-sdk-checksum-algorithm=CRC32"
             "&x-amz-checksum-crc32=AAAAAA%3D%3D&x-amz-checksum-sha512=AA&uploads&x-id=PutObject",
             "");
    const struct http_request *sent = m->r.http;
    static const char *const bad[] = {"/b/k?x-amz-meta-a=1%0d%0ab:%202", "/b/k?x-amz-meta-%3a=1",
                                      "/b/k?x-amz-meta-%20=1", "/b/k?x-amz-meta-a=%7f"};
    (void)state;

    assert_int_equal(url_headers_take(&m->r), S3_OK);
    assert_ptr_equal(m->r.http, sent);
    drop(m);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        m = make("PUT", bad[i], "");
        assert_int_equal(url_headers_take(&m->r), S3_ERR_INVALID_ARGUMENT);
        drop(m);
    }
}

static enum s3_error source_of(const char *value)
{
    char line[128];
    struct made *m;
    struct source s;
    enum s3_error error;

    (void)snprintf(line, sizeof line, "x-amz-copy-source: %s\r\n", value);
    m = make("PUT", "/b/k", line);
    error = source_init(&s, &m->r);
    drop(m);
    return error;
}

/* The source of a copy is a key of a bucket in its one version. */
static void sources_of_copies(void **state)
{
    static const struct {
        const char *value;
        enum s3_error error;
    } rows[] = {
        {"/b/k", S3_OK},
        {"b/a%2Fb%3F", S3_OK},
        {"/b/k?versionId=null", S3_OK},
        {"/b/k?versionId=", S3_ERR_INVALID_ARGUMENT},
        {"/b/k?versionId=3", S3_ERR_NOT_IMPLEMENTED},
        {"/b/", S3_ERR_INVALID_ARGUMENT},
        {"/b", S3_ERR_INVALID_ARGUMENT},
        {"//k", S3_ERR_INVALID_ARGUMENT},
        {"/b/%zz", S3_ERR_INVALID_ARGUMENT},
        {"/b/%ff", S3_ERR_INVALID_ARGUMENT},
        {"", S3_ERR_INVALID_ARGUMENT},
    };
    (void)state;

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        if (source_of(rows[i].value) != rows[i].error)
            fail_msg("%s", rows[i].value);
}

static enum s3_error conditions(const char *headers, struct wire_put_open_req *ret)
{
    struct made *m = make("PUT", "/b/k", headers);
    enum s3_error error;

    *ret = (struct wire_put_open_req){0};
    error = put_conditions(&m->r, ret);
    if (ret->if_match.n)
        ret->if_match = slice_eq_str(ret->if_match, "*") ? SLICE_LIT("*") : SLICE_LIT("other");
    drop(m);
    return error;
}

/* What decides a write together with it: one ETag or "*", said once; everything else is refused. */
static void conditions_of_writes(void **state)
{
    struct wire_put_open_req q;
    (void)state;

    assert_int_equal(conditions("If-Match: *\r\n", &q), S3_OK);
    assert_true(slice_eq_str(q.if_match, "*") && !q.if_none_match);
    assert_int_equal(conditions("If-None-Match: *\r\n", &q), S3_OK);
    assert_true(q.if_match.n == 0 && q.if_none_match);
    assert_int_equal(
        conditions("If-Match: \"a\"\r\nIf-Unmodified-Since: Fri, 24 May 2013 00:00:00 GMT\r\n", &q), S3_OK);
    assert_int_equal(conditions("If-Unmodified-Since: Fri, 24 May 2013 00:00:00 GMT\r\n", &q),
                     S3_ERR_NOT_IMPLEMENTED);
    assert_int_equal(conditions("If-Match: \"a\"\r\nIf-Match: \"b\"\r\n", &q), S3_ERR_NOT_IMPLEMENTED);
    assert_int_equal(conditions("If-Match: \"a\", \"b\"\r\n", &q), S3_ERR_NOT_IMPLEMENTED);
    assert_int_equal(conditions("If-None-Match: *\r\nIf-None-Match: \"b\"\r\n", &q), S3_ERR_NOT_IMPLEMENTED);
    assert_int_equal(conditions("If-Match: *\r\nIf-None-Match: *\r\n", &q), S3_ERR_INVALID_REQUEST);
    assert_int_equal(conditions("If-Match: \"\"\r\n", &q), S3_ERR_PRECONDITION);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_here_is_refused_alone),
        cmocka_unit_test(keys_of_clients_are_refused),
        cmocka_unit_test(headers_in_urls_count_each_time),
        cmocka_unit_test(what_is_no_header_in_urls),
        cmocka_unit_test(sources_of_copies),
        cmocka_unit_test(conditions_of_writes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
