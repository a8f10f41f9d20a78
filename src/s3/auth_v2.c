/*
 * Signature version 2 in a URL, the Authorization header or a POST form: HMAC-SHA1, in base64, over method,
 * Content-MD5, Content-Type, expiry or date, the x-amz-* headers and the resource. Source: "Signing and
 * authenticating REST requests" and "Authenticating requests using query string authentication" of the Amazon
 * S3 developer guide. It does not cover the body; Content-MD5 does.
 *
 * 1. As in version 4 nothing is accepted before its signature was compared in constant time.
 */
#include "s3/auth_internal.h"

#include "base/text.h"

#include <openssl/hmac.h>

#define TEXT_MAX_BYTES (64 * KIB)

#define REFUSE(error, reason) (*ret_reason = (reason), S3_ERR_##error)

/* Query names that belong to the resource, in byte order. */
static const char *const resource_names[] = {
    "accelerate",
    "acl",
    "analytics",
    "cors",
    "defaultObjectAcl",
    "delete",
    "encryption",
    "inventory",
    "legal-hold",
    "lifecycle",
    "location",
    "logging",
    "metrics",
    "notification",
    "object-lock",
    "ownershipControls",
    "partNumber",
    "policy",
    "policyStatus",
    "publicAccessBlock",
    "replication",
    "requestPayment",
    "response-cache-control",
    "response-content-disposition",
    "response-content-encoding",
    "response-content-language",
    "response-content-type",
    "response-expires",
    "restore",
    "retention",
    "select",
    "select-type",
    "tagging",
    "torrent",
    "uploadId",
    "uploads",
    "versionId",
    "versioning",
    "versions",
    "website",
};

/* Settings that came when version 2 was old: some clients sign their names (those of MinIO), others do not
 * (botocore). Those that can be asked for here tell nothing, and none changes anything. */
static const char *const disputed_names[] = {
    "encryption", "legal-hold", "ownershipControls", "policyStatus", "publicAccessBlock", "retention",
};

enum s3_error auth_v2_parse(const struct auth_request *r, struct auth_claim *ret, const char **ret_reason)
{
    const struct http_pair *key = auth_query(r, "AWSAccessKeyId");
    const struct http_pair *expires = auth_query(r, "Expires");
    const struct http_pair *signature = auth_query(r, "Signature");

    if (!key || !expires || !signature)
        return REFUSE(ACCESS_DENIED, "a presigned URL needs AWSAccessKeyId, Expires and Signature");
    if (slice_u64(expires->value, &ret->time_s))
        return REFUSE(ACCESS_DENIED, "Expires is not a number of seconds");
    ret->access_key = key->value;
    ret->signature = signature->value;
    ret->payload_hash = SLICE_LIT("UNSIGNED-PAYLOAD");
    return S3_OK;
}

enum s3_error auth_v2_parse_header(const struct auth_request *r, struct slice value, struct auth_claim *ret,
                                   const char **ret_reason)
{
    struct slice date = http_header(r->http, "x-amz-date"),
                 hash = http_header(r->http, "x-amz-content-sha256");
    uint64_t ns;
    int status;

    ret->signature = slice_trim(slice_from(value, strlen("AWS ")));
    ret->access_key = slice_split(&ret->signature, ':');
    if (ret->access_key.n == 0 || ret->signature.n == 0)
        return REFUSE(INVALID_ARGUMENT, "the Authorization header must be AWS KEY:SIGNATURE");
    if (!date.p)
        date = http_header(r->http, "date");
    status = date.p ? auth_parse_date(date, &ns) : -EINVAL;
    if (status == -EOVERFLOW) /* a date, but far from now */
        return S3_ERR_REQUEST_SKEWED;
    if (status)
        return REFUSE(ACCESS_DENIED, "a signed request needs a valid Date or x-amz-date header");
    ret->time_s = ns / 1000000000;
    ret->payload_hash = hash.p ? hash : SLICE_LIT("UNSIGNED-PAYLOAD");
    return S3_OK;
}

/* What stands for the date in the signed text: the expiry of a URL; of a header what Date says, and nothing
 * when x-amz-date, which is signed with its kin, says it. */
static struct slice signed_date(const struct auth_request *r, const struct auth_claim *claim)
{
    const struct http_pair *expires = auth_query(r, "Expires");

    if (claim->kind == AUTH_URL_V2)
        return expires ? expires->value : SLICE_LIT("");
    return http_header(r->http, "x-amz-date").p ? SLICE_LIT("") : http_header(r->http, "date");
}

/* "name:value\n" of each x-amz-* header, sorted, lower case; those of one name are joined, once. */
static int put_amz_headers(const struct auth_request *r, struct arena *a, struct buf *b)
{
    struct auth_list l;
    int status = 0;

    auth_list_starting(&l, r->http, SLICE_LIT("x-amz-"), a);
    for (size_t i = 0; i < l.n && status == 0; i++)
        status = buf_printf(b, SLICE_FMT ":" SLICE_FMT "\n", SLICE_ARG(l.v[i].name), SLICE_ARG(l.v[i].value));
    return status;
}

/* Whether the path names a bucket without a slash behind it, which some clients sign with one. */
static bool is_bare_bucket(const struct auth_request *r)
{
    struct slice path = r->http->raw_path;

    return path.n > 1 && slice_find(slice_from(path, 1), '/') < 0 && r->host_bucket.n == 0;
}

static bool is_disputed(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(disputed_names); i++)
        if (strcmp(name, disputed_names[i]) == 0)
            return true;
    return false;
}

static bool has_disputed(const struct auth_request *r)
{
    for (size_t i = 0; i < ARRAY_SIZE(disputed_names); i++)
        if (auth_query(r, disputed_names[i]))
            return true;
    return false;
}

/* How the resource is written. */
struct form {
    bool with_slash, without_disputed;
};

static int put_resource(const struct auth_request *r, struct form form, struct buf *b)
{
    int status = r->host_bucket.n ? buf_printf(b, "/" SLICE_FMT, SLICE_ARG(r->host_bucket)) : 0;
    char separator = '?';

    if (status == 0)
        status = buf_slice(b, r->http->raw_path);
    if (status == 0 && form.with_slash)
        status = buf_char(b, '/');
    for (size_t i = 0; i < ARRAY_SIZE(resource_names) && status == 0; i++) {
        const struct http_pair *p = auth_query(r, resource_names[i]);

        if (!p || (form.without_disputed && is_disputed(resource_names[i])))
            continue;
        status = buf_printf(b, "%c%s%s", separator, resource_names[i], p->has_value ? "=" : "");
        if (status == 0) /* was decoded: any byte may be in it */
            status = buf_slice(b, p->value);
        separator = '&';
    }
    return status;
}

static bool signature_fits(struct slice text, struct slice signature, struct slice secret_key)
{
    _cleanup_buf_ struct buf encoded = BUF_INIT(64);
    unsigned char mac[20];
    unsigned mac_n = sizeof mac;

    if (!HMAC(EVP_sha1(), secret_key.p, (int)secret_key.n, (const unsigned char *)text.p, text.n, mac,
              &mac_n) ||
        text_base64(&encoded, slice_of(mac, mac_n)))
        abort();
    return sigv4_equal(buf_view(&encoded), signature);
}

enum s3_error auth_v2_verify_policy(struct slice policy, struct slice signature, struct slice secret_key)
{
    return signature_fits(policy, signature, secret_key) ? S3_OK : S3_ERR_SIGNATURE;
}

static int put_text(const struct auth_request *r, const struct auth_claim *claim, struct form form,
                    struct arena *a, struct buf *text)
{
    struct slice md5 = http_header(r->http, "content-md5"), type = http_header(r->http, "content-type");
    int status = buf_printf(text, SLICE_FMT "\n" SLICE_FMT "\n" SLICE_FMT "\n" SLICE_FMT "\n",
                            SLICE_ARG(r->http->method), SLICE_ARG(md5), SLICE_ARG(type),
                            SLICE_ARG(signed_date(r, claim)));

    if (status == 0)
        status = put_amz_headers(r, a, text);
    return status ? status : put_resource(r, form, text);
}

enum s3_error auth_v2_verify(const struct auth_request *r, const struct auth_claim *claim,
                             struct slice secret_key, struct arena *a)
{
    const bool bare = is_bare_bucket(r), disputed = has_disputed(r);

    for (unsigned i = 0; i < 4; i++) {
        _cleanup_buf_ struct buf text = BUF_INIT(TEXT_MAX_BYTES);
        const struct form form = {.with_slash = i & 1, .without_disputed = i & 2};

        if ((form.with_slash && !bare) || (form.without_disputed && !disputed))
            continue;
        if (put_text(r, claim, form, a, &text))
            return S3_ERR_INVALID_REQUEST;
        if (signature_fits(buf_view(&text), claim->signature, secret_key))
            return S3_OK;
    }
    return S3_ERR_SIGNATURE;
}
