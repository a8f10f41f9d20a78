/*
 * What a request means: its path cut into bucket and key, and the operation that method, query and headers
 * name.
 *
 * 1. Pure. The path was decoded exactly once; nothing in it is normalised: "a//b", "..", "+" and "%" are key
 * bytes.
 * 2. A parameter that names a function of S3 which is not here is never ignored: the answer is
 * NotImplemented. A bucket is made or removed only by requests that say nothing else: what S3 adds one day
 * must not remove a bucket here.
 */
#include "s3/s3_internal.h"

/* Query parameters that select something other than the object or listing itself. */
static const char *const functions_not_here[] = {
    "abac",
    "analytics",
    "annotation",
    "intelligent-tiering",
    "inventory",
    "metadataAnnotationTable",
    "metadataConfiguration",
    "metadataInventoryTable",
    "metadataJournalTable",
    "metadataTable",
    "metrics",
    "renameObject",
    "restore",
    "select",
    "session",
    "torrent",
};

static const char *const settings[] = {
#define X(parameter, error, root, inside) parameter,
    S3_SETTINGS(X)
#undef X
};

const char *route_kept_property(const char *parameter)
{
    static const struct {
        const char *parameter, *property;
    } kept[] = {
#define X(parameter, property, keep) {parameter, property},
        S3_KEPT(X)
#undef X
    };

    for (size_t i = 0; i < ARRAY_SIZE(kept); i++)
        if (strcmp(kept[i].parameter, parameter) == 0)
            return kept[i].property;
    return NULL;
}

ssize_t route_setting(const struct http_pair *query, size_t n_query)
{
    for (size_t i = 0; i < ARRAY_SIZE(settings) && n_query > 0; i++)
        if (route_query(query, n_query, settings[i]))
            return (ssize_t)i;
    return -1;
}

enum s3_error route_path(struct slice path, struct slice *ret_bucket, struct slice *ret_key)
{
    struct slice key;

    if (path.n == 0 || path.p[0] != '/' || !slice_is_utf8(path) || memchr(path.p, 0, path.n))
        return S3_ERR_INVALID_URI;
    key = slice_from(path, 1);
    *ret_bucket = slice_split(&key, '/');
    if (ret_bucket->n == 0 && key.n > 0)
        return S3_ERR_INVALID_BUCKET_NAME;
    if (key.n > S3_KEY_MAX_BYTES)
        return S3_ERR_KEY_TOO_LONG;
    *ret_key = key;
    return S3_OK;
}

struct slice route_host(struct slice host, struct slice domain)
{
    ssize_t colon = slice_rfind(host, ':');
    struct slice tail;

    if (colon >= 0)
        host = slice_sub(host, 0, (size_t)colon);
    if (domain.n == 0 || host.n < domain.n + 2)
        return SLICE_LIT("");
    tail = slice_from(host, host.n - domain.n);
    if (host.p[host.n - domain.n - 1] != '.' || !slice_eq_case(tail, domain))
        return SLICE_LIT("");
    return slice_sub(host, 0, host.n - domain.n - 1);
}

static enum s3_op upload_op(const struct http_request *http, const struct http_pair *query, size_t n)
{
    bool has_id = route_query(query, n, "uploadId");

    if (slice_eq_str(http->method, "POST"))
        return has_id                             ? S3_OP_COMPLETE_MULTIPART_UPLOAD
               : route_query(query, n, "uploads") ? S3_OP_CREATE_MULTIPART_UPLOAD
                                                  : S3_OP_NONE;
    if (!has_id)
        return S3_OP_NONE;
    if (slice_eq_str(http->method, "PUT"))
        return http_header(http, "x-amz-copy-source").p ? S3_OP_UPLOAD_PART_COPY : S3_OP_UPLOAD_PART;
    if (slice_eq_str(http->method, "DELETE"))
        return S3_OP_ABORT_MULTIPART_UPLOAD;
    return slice_eq_str(http->method, "GET") ? S3_OP_LIST_PARTS : S3_OP_NONE;
}

static bool is_not_here(const struct http_pair *query, size_t n, const char **ret_name)
{
    for (size_t i = 0; i < ARRAY_SIZE(functions_not_here) && n > 0; i++) {
        if (route_query(query, n, functions_not_here[i])) {
            *ret_name = functions_not_here[i];
            return true;
        }
    }
    return false;
}

/* *ret_asked: the query names one of these, whether or not the method has an operation. */
static enum s3_op object_setting_op(struct slice method, const struct http_pair *query, size_t n,
                                    bool *ret_asked)
{
    bool get = slice_eq_str(method, "GET");

    *ret_asked = true;
    if (route_query(query, n, "acl"))
        return get ? S3_OP_GET_ACL : slice_eq_str(method, "PUT") ? S3_OP_PUT_ACL : S3_OP_NONE;
    if (route_query(query, n, "attributes"))
        return get ? S3_OP_GET_OBJECT_ATTRIBUTES : S3_OP_NONE;
    if (route_query(query, n, "retention") || route_query(query, n, "legal-hold"))
        return get ? S3_OP_GET_OBJECT_LOCK : S3_OP_NONE;
    if (route_query(query, n, "tagging"))
        return get                              ? S3_OP_GET_OBJECT_TAGGING
               : slice_eq_str(method, "PUT")    ? S3_OP_PUT_OBJECT_TAGGING
               : slice_eq_str(method, "DELETE") ? S3_OP_DELETE_OBJECT_TAGGING
                                                : S3_OP_NONE;
    *ret_asked = route_setting(query, n) >= 0 || route_query(query, n, "versions");
    return S3_OP_NONE;
}

static enum s3_op bucket_setting_op(struct slice method, const struct http_pair *query, size_t n,
                                    bool *ret_asked)
{
    bool get = slice_eq_str(method, "GET");

    *ret_asked = true;
    if (route_query(query, n, "acl"))
        return get ? S3_OP_GET_ACL : slice_eq_str(method, "PUT") ? S3_OP_PUT_ACL : S3_OP_NONE;
    if (route_query(query, n, "versions"))
        return get ? S3_OP_LIST_OBJECT_VERSIONS : S3_OP_NONE;
    if (route_setting(query, n) < 0) {
        *ret_asked = route_query(query, n, "attributes") || route_query(query, n, "retention") ||
                     route_query(query, n, "legal-hold");
        return S3_OP_NONE;
    }
    if (slice_eq_str(method, "PUT"))
        return route_kept_property(settings[route_setting(query, n)]) ? S3_OP_PUT_BUCKET_SETTING : S3_OP_NONE;
    return get                              ? S3_OP_GET_BUCKET_SETTING
           : slice_eq_str(method, "DELETE") ? S3_OP_DELETE_BUCKET_SETTING
                                            : S3_OP_NONE;
}

static bool is_form(const struct http_request *http)
{
    struct slice type = http_header(http, "content-type");

    return slice_eq_case(slice_trim(slice_split(&type, ';')), SLICE_LIT("multipart/form-data"));
}

/* Whether a parameter is about the request itself: signatures, and what begins with "x-", which S3 leaves
 * to clients. */
static bool is_of_request(struct slice name)
{
    return slice_eq_case(slice_sub(name, 0, 2), SLICE_LIT("x-")) || slice_eq_str(name, "AWSAccessKeyId") ||
           slice_eq_str(name, "Expires") || slice_eq_str(name, "Signature");
}

static bool asks_nothing(const struct http_pair *query, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!is_of_request(query[i].name))
            return false;
    return true;
}

/* Whether the query names something as S3 names its functions, without a value. What is left here is one of
 * tomorrow, which is not to write or remove the object that it was to change. A parameter with a value
 * passes, as at S3; so do the headers that signers of version 2 put into a URL, which may be empty. */
static bool asks_the_unknown(const struct http_pair *query, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (query[i].name.n > 0 && query[i].value.n == 0 && !is_of_request(query[i].name) &&
            !slice_eq_case(query[i].name, SLICE_LIT("content-md5")) &&
            !slice_eq_case(query[i].name, SLICE_LIT("content-type")))
            return true;
    return false;
}

static enum s3_op bucket_op(const struct http_request *http, const struct http_pair *query, size_t n)
{
    const struct http_pair *type = route_query(query, n, "list-type");
    struct slice method = http->method;
    bool asked;
    enum s3_op op = bucket_setting_op(method, query, n, &asked);

    if (asked)
        return op;
    if (slice_eq_str(method, "HEAD"))
        return S3_OP_HEAD_BUCKET;
    if (slice_eq_str(method, "POST") && route_query(query, n, "delete"))
        return S3_OP_DELETE_OBJECTS;
    if (slice_eq_str(method, "POST") && is_form(http))
        return S3_OP_POST_OBJECT;
    if (slice_eq_str(method, "PUT") || slice_eq_str(method, "DELETE"))
        return !asks_nothing(query, n) ? S3_OP_NONE
               : method.p[0] == 'P'    ? S3_OP_CREATE_BUCKET
                                       : S3_OP_DELETE_BUCKET;
    if (!slice_eq_str(method, "GET"))
        return S3_OP_NONE;
    if (route_query(query, n, "location"))
        return S3_OP_GET_BUCKET_LOCATION;
    if (route_query(query, n, "uploads"))
        return S3_OP_LIST_MULTIPART_UPLOADS;
    return type && slice_eq_str(type->value, "2") ? S3_OP_LIST_OBJECTS_V2 : S3_OP_LIST_OBJECTS;
}

static enum s3_op object_op(const struct http_request *http, const struct http_pair *query, size_t n)
{
    bool asked;
    enum s3_op op = object_setting_op(http->method, query, n, &asked);
    bool reads = slice_eq_str(http->method, "GET") || slice_eq_str(http->method, "HEAD");

    if (asked)
        return op;
    if (slice_eq_str(http->method, "POST") || route_query(query, n, "uploadId") ||
        route_query(query, n, "uploads") || (route_query(query, n, "partNumber") && !reads))
        return upload_op(http, query, n);
    if (slice_eq_str(http->method, "GET"))
        return S3_OP_GET_OBJECT;
    if (slice_eq_str(http->method, "HEAD"))
        return S3_OP_HEAD_OBJECT;
    if (asks_the_unknown(query, n))
        return S3_OP_NONE;
    if (slice_eq_str(http->method, "PUT"))
        return http_header(http, "x-amz-copy-source").p ? S3_OP_COPY_OBJECT : S3_OP_PUT_OBJECT;
    if (slice_eq_str(http->method, "DELETE"))
        return S3_OP_DELETE_OBJECT;
    return S3_OP_NONE;
}

static bool is_s3_method(struct slice method)
{
    return slice_eq_str(method, "GET") || slice_eq_str(method, "HEAD") || slice_eq_str(method, "PUT") ||
           slice_eq_str(method, "POST") || slice_eq_str(method, "DELETE");
}

/* Whether the query is nothing but a signature's: then it selects no operation, and need not be looked
 * through for each of those. */
static bool only_signs(const struct http_pair *query, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!slice_starts(query[i].name, SLICE_LIT("X-Amz-")))
            return false;
    return true;
}

enum s3_error route_op(const struct http_request *http, bool has_bucket, bool has_key,
                       const struct http_pair *query, size_t n_query, enum s3_op *ret_op,
                       const char **ret_reason)
{
    if (only_signs(query, n_query))
        n_query = 0;
    const struct http_pair *version = route_query(query, n_query, "versionId");
    enum s3_op op = S3_OP_NONE;

    if (slice_eq_str(http->method, "OPTIONS") && has_bucket) {
        *ret_op = S3_OP_PREFLIGHT;
        return S3_OK;
    }
    if (!is_s3_method(http->method))
        return S3_ERR_METHOD_NOT_ALLOWED;
    if (has_bucket && is_not_here(query, n_query, ret_reason))
        return S3_ERR_NOT_IMPLEMENTED;
    if (version && version->value.n == 0) {
        *ret_reason = ROUTE_EMPTY_VERSION;
        return S3_ERR_INVALID_ARGUMENT;
    }
    if (version && !slice_eq_str(version->value, "null")) {
        *ret_reason = "versionId";
        return S3_ERR_NOT_IMPLEMENTED;
    }
    if (has_key)
        op = object_op(http, query, n_query);
    else if (has_bucket)
        op = bucket_op(http, query, n_query);
    else if (slice_eq_str(http->method, "GET"))
        op = S3_OP_LIST_BUCKETS;
    if (op == S3_OP_NONE)
        return has_bucket ? S3_ERR_NOT_IMPLEMENTED : S3_ERR_METHOD_NOT_ALLOWED;
    *ret_op = op;
    return S3_OK;
}
