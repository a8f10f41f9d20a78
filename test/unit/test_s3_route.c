/* layer: s3 */
/* What a request means: paths cut into bucket and key, operations, conditional headers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "s3/condition.h"
#include "s3/s3_internal.h"

/* Keys keep every byte of the path behind the bucket: nothing is normalised. */
static void paths_are_cut_but_never_changed(void **state)
{
    static const struct {
        const char *path, *bucket, *key;
    } rows[] = {
        {"/", "", ""},
        {"/bucket", "bucket", ""},
        {"/bucket/", "bucket", ""},
        {"/bucket/key", "bucket", "key"},
        {"/bucket//key", "bucket", "/key"},
        {"/bucket/a//b/", "bucket", "a//b/"},
        {"/bucket/../x/./..", "bucket", "../x/./.."},
        {"/bucket/a+b %41?", "bucket", "a+b %41?"},
        {"/bucket/\xf0\x9f\x8c\x8a", "bucket", "\xf0\x9f\x8c\x8a"},
    };
    (void)state;

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct slice bucket, key;

        assert_int_equal(route_path(slice_str(rows[i].path), &bucket, &key), S3_OK);
        assert_true(slice_eq_str(bucket, rows[i].bucket));
        assert_true(slice_eq_str(key, rows[i].key));
    }
}

/* Keys of 1024 bytes pass, one more does not; bytes that are no UTF-8, NUL and a missing bucket are refused.
 */
static void bad_paths_are_refused(void **state)
{
    char path[8 + 1025];
    struct slice bucket, key;
    (void)state;

    memset(path, 'k', sizeof path);
    memcpy(path, "/bucket/", 8);
    assert_int_equal(route_path(slice_of(path, 8 + 1024), &bucket, &key), S3_OK);
    assert_int_equal(key.n, 1024);
    assert_int_equal(route_path(slice_of(path, 8 + 1025), &bucket, &key), S3_ERR_KEY_TOO_LONG);
    assert_int_equal(route_path(SLICE_LIT("/b/\xff"), &bucket, &key), S3_ERR_INVALID_URI);
    assert_int_equal(route_path(SLICE_LIT("/b/\0x"), &bucket, &key), S3_ERR_INVALID_URI);
    assert_int_equal(route_path(SLICE_LIT("//key"), &bucket, &key), S3_ERR_INVALID_BUCKET_NAME);
    assert_int_equal(route_path(SLICE_LIT(""), &bucket, &key), S3_ERR_INVALID_URI);
}

static void parse(const char *head, struct http_request *ret)
{
    struct err e = {0};
    int status = 0;

    assert_int_equal(http_parse_head(slice_str(head), ret, &status, &e), 0);
}

static enum s3_error op_of(const char *method, const char *target, const char *headers, enum s3_op *ret)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(MIB);
    _cleanup_buf_ struct buf head = BUF_INIT(64 * KIB);
    struct http_request *http = arena_zalloc(a, sizeof *http);
    struct http_pair *query = NULL;
    struct slice bucket, key;
    const char *reason = NULL;
    size_t n = 0;

    assert_int_equal(buf_printf(&head, "%s %s HTTP/1.1\r\nHost: h\r\n%s\r\n", method, target, headers), 0);
    parse(head.p, http);
    assert_int_equal(http_parse_query(http->raw_query, a, &query, &n), 0);
    assert_int_equal(route_path(http->raw_path, &bucket, &key), S3_OK);
    *ret = S3_OP_NONE;
    return route_op(http, bucket.n > 0, key.n > 0, query, n, ret, &reason);
}

/* Each operation is found by method, path, query and header. */
static void operations_are_found(void **state)
{
    static const struct {
        const char *method, *target, *headers;
        enum s3_op op;
    } rows[] = {
        {"GET", "/", "", S3_OP_LIST_BUCKETS},
        {"HEAD", "/b", "", S3_OP_HEAD_BUCKET},
        {"GET", "/b?location", "", S3_OP_GET_BUCKET_LOCATION},
        {"GET", "/b?versions&prefix=a", "", S3_OP_LIST_OBJECT_VERSIONS},
        {"GET", "/b?acl", "", S3_OP_GET_ACL},
        {"PUT", "/b?acl", "", S3_OP_PUT_ACL},
        {"GET", "/b/k?acl&versionId=null", "", S3_OP_GET_ACL},
        {"PUT", "/b/k?acl", "", S3_OP_PUT_ACL},
        {"GET", "/b/k?attributes", "", S3_OP_GET_OBJECT_ATTRIBUTES},
        {"GET", "/b/k?retention", "", S3_OP_GET_OBJECT_LOCK},
        {"GET", "/b/k?legal-hold", "", S3_OP_GET_OBJECT_LOCK},
        {"GET", "/b?policy", "", S3_OP_GET_BUCKET_SETTING},
        {"GET", "/b?versioning", "", S3_OP_GET_BUCKET_SETTING},
        {"DELETE", "/b?policy", "", S3_OP_DELETE_BUCKET_SETTING},
        {"GET", "/b", "", S3_OP_LIST_OBJECTS},
        {"GET", "/b/?prefix=x", "", S3_OP_LIST_OBJECTS},
        {"GET", "/b?list-type=2", "", S3_OP_LIST_OBJECTS_V2},
        {"POST", "/b?delete", "", S3_OP_DELETE_OBJECTS},
        {"GET", "/b/k", "", S3_OP_GET_OBJECT},
        {"GET", "/b/k?x-id=GetObject&versionId=null", "", S3_OP_GET_OBJECT},
        {"HEAD", "/b/k", "", S3_OP_HEAD_OBJECT},
        {"PUT", "/b/k", "", S3_OP_PUT_OBJECT},
        {"PUT", "/b/k", "x-amz-copy-source: /b/j\r\n", S3_OP_COPY_OBJECT},
        {"PUT", "/b/k?content-md5=m&content-type=t&AWSAccessKeyId=a&Expires=1&Signature=s", "",
         S3_OP_PUT_OBJECT}, /* as boto3 presigns by SigV2 */
        {"PUT", "/b/k?Content-Type=&content-md5&AWSAccessKeyId=a&Expires=1&Signature=s", "",
         S3_OP_PUT_OBJECT},
        {"PUT", "/b/k?x-id=PutObject&mine=1&&x-mine", "", S3_OP_PUT_OBJECT},
        {"DELETE", "/b/k", "", S3_OP_DELETE_OBJECT},
        {"DELETE", "/b/k?versionId=null&x-id=DeleteObject&mine=1", "", S3_OP_DELETE_OBJECT},
        {"POST", "/b/k?uploads", "", S3_OP_CREATE_MULTIPART_UPLOAD},
        {"POST", "/b/k?uploadId=x", "", S3_OP_COMPLETE_MULTIPART_UPLOAD},
        {"GET", "/b/k?partNumber=1", "", S3_OP_GET_OBJECT},
        {"HEAD", "/b/k?partNumber=1", "", S3_OP_HEAD_OBJECT},
        {"PUT", "/b/k?uploadId=x&partNumber=1", "", S3_OP_UPLOAD_PART},
        {"PUT", "/b/k?uploadId=x&partNumber=1", "x-amz-copy-source: /b/j\r\n", S3_OP_UPLOAD_PART_COPY},
        {"DELETE", "/b/k?uploadId=x", "", S3_OP_ABORT_MULTIPART_UPLOAD},
        {"GET", "/b/k?uploadId=x", "", S3_OP_LIST_PARTS},
        {"GET", "/b?uploads", "", S3_OP_LIST_MULTIPART_UPLOADS},
        {"GET", "/b/k?tagging", "", S3_OP_GET_OBJECT_TAGGING},
        {"PUT", "/b/k?tagging", "", S3_OP_PUT_OBJECT_TAGGING},
        {"DELETE", "/b/k?tagging", "", S3_OP_DELETE_OBJECT_TAGGING},
        {"PUT", "/b?tagging", "", S3_OP_PUT_BUCKET_SETTING},
        {"PUT", "/b?cors", "", S3_OP_PUT_BUCKET_SETTING},
        {"PUT", "/b?lifecycle", "", S3_OP_PUT_BUCKET_SETTING},
        {"DELETE", "/b?lifecycle", "", S3_OP_DELETE_BUCKET_SETTING},
        {"OPTIONS", "/b/k", "", S3_OP_PREFLIGHT},
        {"PUT", "/b", "", S3_OP_CREATE_BUCKET},
        {"PUT", "/b?x-id=CreateBucket&X-Amz-Date=1", "", S3_OP_CREATE_BUCKET},
        {"DELETE", "/b", "", S3_OP_DELETE_BUCKET},
        {"DELETE", "/b?AWSAccessKeyId=a&Expires=1&Signature=s", "", S3_OP_DELETE_BUCKET},
        {"POST", "/b", "Content-Type: multipart/form-data; boundary=x\r\n", S3_OP_POST_OBJECT},
    };
    (void)state;

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        enum s3_op op;

        assert_int_equal(op_of(rows[i].method, rows[i].target, rows[i].headers, &op), S3_OK);
        assert_int_equal(op, rows[i].op);
    }
}

/* What is not here is said to be so; it is never taken for something else. */
static void other_functions_are_not_implemented(void **state)
{
    static const struct {
        const char *method, *target;
        enum s3_error error;
    } rows[] = {
        {"DELETE", "/b/k?acl", S3_ERR_NOT_IMPLEMENTED},
        {"POST", "/b/k?tagging", S3_ERR_NOT_IMPLEMENTED},
        {"PUT", "/b/k?retention", S3_ERR_NOT_IMPLEMENTED},
        {"PUT", "/b/k?attributes", S3_ERR_NOT_IMPLEMENTED},
        {"GET", "/b/k?versionId=abc", S3_ERR_NOT_IMPLEMENTED},
        {"GET", "/b/k?versionId=", S3_ERR_INVALID_ARGUMENT},
        {"HEAD", "/b/k?versionId", S3_ERR_INVALID_ARGUMENT},
        {"DELETE", "/b/k?versionId=", S3_ERR_INVALID_ARGUMENT},
        {"GET", "/b/k?attributes&versionId=", S3_ERR_INVALID_ARGUMENT},
        {"GET", "/b/k?acl&versionId=", S3_ERR_INVALID_ARGUMENT},
        {"PUT", "/b/k?acl&versionId=", S3_ERR_INVALID_ARGUMENT},
        {"GET", "/b/k?retention&versionId=", S3_ERR_INVALID_ARGUMENT},
        {"GET", "/b/k?tagging&versionId=", S3_ERR_INVALID_ARGUMENT},
        {"PUT", "/b/k?tagging&versionId=", S3_ERR_INVALID_ARGUMENT},
        {"DELETE", "/b/k?tagging&versionId=", S3_ERR_INVALID_ARGUMENT},
        {"PUT", "/b?versioning", S3_ERR_NOT_IMPLEMENTED},
        {"HEAD", "/b?policy", S3_ERR_NOT_IMPLEMENTED},
        {"POST", "/b?delete&acl", S3_ERR_NOT_IMPLEMENTED},
        {"GET", "/b?inventory", S3_ERR_NOT_IMPLEMENTED},
        {"PUT", "/b?policy", S3_ERR_NOT_IMPLEMENTED},
        {"PUT", "/b/k?policy", S3_ERR_NOT_IMPLEMENTED},
        {"PUT", "/b/k?versions", S3_ERR_NOT_IMPLEMENTED},
        {"GET", "/b?attributes", S3_ERR_NOT_IMPLEMENTED},
        {"POST", "/b/k", S3_ERR_NOT_IMPLEMENTED},
        {"PUT", "/b/k?partNumber=1", S3_ERR_NOT_IMPLEMENTED},
        {"DELETE", "/b/k?partNumber=1", S3_ERR_NOT_IMPLEMENTED},
        {"POST", "/b", S3_ERR_NOT_IMPLEMENTED},
        {"DELETE", "/b?metadataTable", S3_ERR_NOT_IMPLEMENTED},
        {"DELETE", "/b?uploads", S3_ERR_NOT_IMPLEMENTED},
        {"DELETE", "/b?of-tomorrow", S3_ERR_NOT_IMPLEMENTED},
        {"DELETE", "/b/k?of-tomorrow", S3_ERR_NOT_IMPLEMENTED},
        {"PUT", "/b/k?x-id=OfTomorrow&ofTomorrow=", S3_ERR_NOT_IMPLEMENTED},
        {"PUT", "/b?metadataJournalTable", S3_ERR_NOT_IMPLEMENTED},
        {"PUT", "/b?location", S3_ERR_NOT_IMPLEMENTED},
        {"GET", "/b?abac", S3_ERR_NOT_IMPLEMENTED},
        {"PUT", "/b/k?renameObject", S3_ERR_NOT_IMPLEMENTED},
        {"PUT", "/b/k?annotation&annotationName=a", S3_ERR_NOT_IMPLEMENTED},
        {"DELETE", "/b/k?annotation", S3_ERR_NOT_IMPLEMENTED},
        {"OPTIONS", "/", S3_ERR_METHOD_NOT_ALLOWED},
        {"PATCH", "/b/k", S3_ERR_METHOD_NOT_ALLOWED},
        {"PUT", "/", S3_ERR_METHOD_NOT_ALLOWED},
    };
    (void)state;

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        enum s3_op op;

        assert_int_equal(op_of(rows[i].method, rows[i].target, "", &op), rows[i].error);
    }
}

static enum s3_error check_of(const char *headers, uint64_t mtime_ns)
{
    _cleanup_buf_ struct buf head = BUF_INIT(4 * KIB);
    struct http_request *http = calloc(1, sizeof *http);
    const struct wire_attr attr = {.etag = SLICE_LIT("abc"), .mtime_ns = mtime_ns};
    struct condition c;
    enum s3_error error;

    assert_int_equal(buf_printf(&head, "GET /b/k HTTP/1.1\r\nHost: h\r\n%s\r\n", headers), 0);
    parse(head.p, http);
    condition_read(http, "", &c);
    error = condition_check(&c, &attr);
    free(http);
    return error;
}

static enum s3_error check(const char *headers)
{
    return check_of(headers, 1369353600ull * 1000000000 + 5);
}

#define THEN   "Fri, 24 May 2013 00:00:00 GMT"
#define LATER  "Fri, 24 May 2013 00:00:01 GMT"
#define BEFORE "Thu, 23 May 2013 23:59:59 GMT"

/* Of an object without a date nobody can say that it was not changed since then. */
static void dates_mean_nothing_without_one(void **state)
{
    (void)state;
    assert_int_equal(check_of("If-Modified-Since: " LATER "\r\n", 0), S3_OK);
    assert_int_equal(check_of("If-Unmodified-Since: " THEN "\r\n", 0), S3_OK);
    assert_int_equal(check_of("If-None-Match: \"abc\"\r\n", 0), S3_ERR_NOT_MODIFIED);
}

/* Conditions alone and together, in the order that RFC 9110 gives them. */
static void conditions_are_judged(void **state)
{
    static const struct {
        const char *headers;
        enum s3_error error;
    } rows[] = {
        {"", S3_OK},
        {"If-Match: \"abc\"\r\n", S3_OK},
        {"If-Match: abc\r\n", S3_OK},
        {"If-Match: *\r\n", S3_OK},
        {"If-Match: \"x\", \"abc\"\r\n", S3_OK},
        {"If-Match: \"x\"\r\n", S3_ERR_PRECONDITION},
        {"If-Match: \"\"\r\n", S3_ERR_PRECONDITION},
        {"If-None-Match: \"abc\"\r\n", S3_ERR_NOT_MODIFIED},
        {"If-None-Match: W/\"abc\"\r\n", S3_ERR_NOT_MODIFIED},
        {"If-None-Match: *\r\n", S3_ERR_NOT_MODIFIED},
        {"If-None-Match: \"x\"\r\n", S3_OK},
        {"If-Modified-Since: " THEN "\r\n", S3_ERR_NOT_MODIFIED},
        {"If-Modified-Since: " BEFORE "\r\n", S3_OK},
        {"If-Unmodified-Since: " THEN "\r\n", S3_OK},
        {"If-Unmodified-Since: " BEFORE "\r\n", S3_ERR_PRECONDITION},
        {"If-Modified-Since: not a date\r\n", S3_OK},
        {"If-Match: \"abc\"\r\nIf-Unmodified-Since: " BEFORE "\r\n", S3_OK},
        {"If-None-Match: \"x\"\r\nIf-Modified-Since: " LATER "\r\n", S3_OK},
        {"If-Match: \"x\"\r\nIf-None-Match: \"abc\"\r\n", S3_ERR_PRECONDITION},
    };
    (void)state;

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        enum s3_error error = check(rows[i].headers);

        if (error != rows[i].error)
            print_message("row %zu\n", i);
        assert_int_equal(error, rows[i].error);
    }
}

/* A header that is sent several times counts each time: what the second line asks for is not left out. */
static void conditions_said_twice_all_count(void **state)
{
    static const struct {
        const char *headers;
        enum s3_error error;
    } rows[] = {
        {"If-Match: \"x\"\r\nIf-Match: \"abc\"\r\n", S3_OK},
        {"If-Match: \"x\"\r\nif-match: \"y\"\r\n", S3_ERR_PRECONDITION},
        {"If-None-Match: \"x\"\r\nIf-None-Match: \"abc\"\r\n", S3_ERR_NOT_MODIFIED},
        {"If-None-Match:\r\nIf-None-Match: *\r\n", S3_ERR_NOT_MODIFIED},
        {"If-None-Match: \"x\"\r\nIf-None-Match: \"y\"\r\n", S3_OK},
        {"If-Unmodified-Since: " LATER "\r\nIf-Unmodified-Since: " BEFORE "\r\n", S3_ERR_PRECONDITION},
        {"If-Unmodified-Since: " BEFORE "\r\nIf-Unmodified-Since: " LATER "\r\n", S3_ERR_PRECONDITION},
        {"If-Unmodified-Since: soon\r\nIf-Unmodified-Since: " BEFORE "\r\n", S3_ERR_PRECONDITION},
        {"If-Unmodified-Since: " LATER "\r\nIf-Unmodified-Since: " THEN "\r\n", S3_OK},
        {"If-Modified-Since: " BEFORE "\r\nIf-Modified-Since: " LATER "\r\n", S3_ERR_NOT_MODIFIED},
        {"If-Modified-Since: " LATER "\r\nIf-Modified-Since: " BEFORE "\r\n", S3_ERR_NOT_MODIFIED},
    };
    (void)state;

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        if (check(rows[i].headers) != rows[i].error)
            fail_msg("%s", rows[i].headers);
}

/* The weak ETag of an origin fits as it was shown; one that is empty is a condition all the same. */
static void weak_etags_fit_themselves(void **state)
{
    const struct slice weak = SLICE_LIT("W/\"abc\"");
    (void)state;

    assert_true(condition_etag_in(weak, weak));
    assert_true(condition_etag_in(SLICE_LIT("\"x\", W/\"abc\""), weak));
    assert_false(condition_etag_in(SLICE_LIT("W/\"abd\""), weak));
    assert_false(condition_etag_in(SLICE_LIT("W/\"\""), weak));
    assert_non_null(condition_bare_etag(SLICE_LIT("W/")).p);
    assert_int_equal(condition_bare_etag(SLICE_LIT("W/")).n, 0);
    assert_null(condition_bare_etag(SLICE_NULL).p);
}

/* A comma between quotes belongs to the ETag, any other one ends it. */
static void commas_of_etags_are_theirs(void **state)
{
    (void)state;

    assert_true(condition_etag_in(SLICE_LIT("\"a,b\""), SLICE_LIT("a,b")));
    assert_true(condition_etag_in(SLICE_LIT("\"x\" ,\"a,b\",y"), SLICE_LIT("a,b")));
    assert_true(condition_etag_in(SLICE_LIT("\"x\",\"a,b\", y"), SLICE_LIT("y")));
    assert_false(condition_etag_in(SLICE_LIT("\"a,b\""), SLICE_LIT("a")));
    assert_false(condition_etag_in(SLICE_LIT("\"a, b"), SLICE_LIT("b")));
    assert_true(condition_etag_in(SLICE_LIT(",,a"), SLICE_LIT("a")));
}

/* What can be decided together with a write is one ETag, said once. */
static void lists_of_etags_are_told_from_one(void **state)
{
    static const struct {
        const char *headers;
        bool single;
    } rows[] = {
        {"", true},
        {"If-Match: *\r\n", true},
        {"If-Match:\r\n", true},
        {"If-Match: \"a,b\"\r\n", true},
        {"If-None-Match: a, b\r\n", true},
        {"If-Match: \"a\", \"b\"\r\n", false},
        {"If-Match: a,b\r\n", false},
        {"If-Match: *, \"a\"\r\n", false},
        {"If-Match: a,\r\n", false},
        {"If-Match: \"a\"\r\nif-match: \"b\"\r\n", false},
    };
    (void)state;

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        _cleanup_buf_ struct buf head = BUF_INIT(4 * KIB);
        struct http_request *http = calloc(1, sizeof *http);

        assert_int_equal(buf_printf(&head, "PUT /b/k HTTP/1.1\r\nHost: h\r\n%s\r\n", rows[i].headers), 0);
        parse(head.p, http);
        if (condition_is_single(http, "if-match") != rows[i].single)
            fail_msg("%s", rows[i].headers);
        free(http);
    }
}

/* If-Range lets the range count for the same ETag, or one that it is known by besides, or the same date only.
 */
static void if_range_needs_the_same_version(void **state)
{
    const struct wire_attr attr = {.etag = SLICE_LIT("abc"), .mtime_ns = 1369353600ull * 1000000000};
    (void)state;

    assert_true(condition_if_range(SLICE_NULL, &attr, SLICE_NULL));
    assert_true(condition_if_range(SLICE_LIT("\"abc\""), &attr, SLICE_NULL));
    assert_true(condition_if_range(SLICE_LIT(THEN), &attr, SLICE_NULL));
    assert_false(condition_if_range(SLICE_LIT("\"abd\""), &attr, SLICE_NULL));
    assert_false(condition_if_range(SLICE_LIT("W/\"abc\""), &attr, SLICE_NULL));
    assert_false(condition_if_range(SLICE_LIT(LATER), &attr, SLICE_NULL));
    assert_true(condition_if_range(SLICE_LIT("\"told\""), &attr, SLICE_LIT("told")));
    assert_false(condition_if_range(SLICE_LIT("W/\"told\""), &attr, SLICE_LIT("told")));
    assert_false(condition_if_range(SLICE_LIT("\"\""), &attr, SLICE_NULL));
}

/* The host names a bucket when it ends with the domain; with or without port, in any case. */
static void hosts_name_buckets(void **state)
{
    (void)state;
    static const struct {
        const char *host, *domain, *bucket;
    } rows[] = {
        {"data.s3.example.com", "s3.example.com", "data"},
        {"data.s3.example.com:7070", "s3.example.com", "data"},
        {"a.b.s3.Example.COM", "s3.example.com", "a.b"},
        {"s3.example.com", "s3.example.com", ""},
        {".s3.example.com", "s3.example.com", ""},
        {"xs3.example.com", "s3.example.com", ""},
        {"dataxs3.example.com", "s3.example.com", ""},
        {"data.other.com", "s3.example.com", ""},
        {"data.s3.example.com", "", ""},
        {"[::1]:7070", "s3.example.com", ""},
        {"", "s3.example.com", ""},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        assert_true(
            slice_eq_str(route_host(slice_str(rows[i].host), slice_str(rows[i].domain)), rows[i].bucket));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paths_are_cut_but_never_changed),
        cmocka_unit_test(bad_paths_are_refused),
        cmocka_unit_test(operations_are_found),
        cmocka_unit_test(other_functions_are_not_implemented),
        cmocka_unit_test(conditions_are_judged),
        cmocka_unit_test(conditions_said_twice_all_count),
        cmocka_unit_test(dates_mean_nothing_without_one),
        cmocka_unit_test(weak_etags_fit_themselves),
        cmocka_unit_test(commas_of_etags_are_theirs),
        cmocka_unit_test(lists_of_etags_are_told_from_one),
        cmocka_unit_test(if_range_needs_the_same_version),
        cmocka_unit_test(hosts_name_buckets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
