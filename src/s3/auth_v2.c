/*
 * Signature version 2 in a URL: HMAC-SHA1, in base64, over method, Content-MD5, Content-Type, expiry, the
 * x-amz-* headers and the resource. Source: "Authenticating requests using query string authentication" of
 * the Amazon S3 developer guide. It is only accepted in URLs and POST forms,
 * where clients still make it.
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

struct line {
    struct slice name, value;
};

static int compare_lines(const void *a, const void *b)
{
    return slice_cmp(((const struct line *)a)->name, ((const struct line *)b)->name);
}

/* "name:value\n" of each x-amz-* header, sorted, lower case, repeated ones joined. */
static int put_amz_headers(const struct auth_request *r, struct arena *a, struct buf *b)
{
    struct line lines[HTTP_HEADERS_MAX];
    size_t n = 0;
    int status = 0;

    for (size_t i = 0; i < r->http->n_headers; i++) {
        struct slice name = auth_lower(a, r->http->headers[i].name);

        if (slice_starts(name, SLICE_LIT("x-amz-")))
            lines[n++] = (struct line){name, auth_header(r, name, a)};
    }
    qsort(lines, n, sizeof lines[0], compare_lines);
    for (size_t i = 0; i < n && status == 0; i++)
        if (i == 0 || !slice_eq(lines[i].name, lines[i - 1].name))
            status = buf_printf(b, SLICE_FMT ":" SLICE_FMT "\n", SLICE_ARG(lines[i].name),
                                SLICE_ARG(lines[i].value));
    return status;
}

static int put_resource(const struct auth_request *r, struct buf *b)
{
    int status = r->host_bucket.n ? buf_printf(b, "/" SLICE_FMT, SLICE_ARG(r->host_bucket)) : 0;
    char separator = '?';

    if (status == 0)
        status = buf_slice(b, r->http->raw_path);
    for (size_t i = 0; i < ARRAY_SIZE(resource_names) && status == 0; i++) {
        const struct http_pair *p = auth_query(r, resource_names[i]);

        if (!p)
            continue;
        status = buf_printf(b, "%c%s%s" SLICE_FMT, separator, resource_names[i], p->has_value ? "=" : "",
                            SLICE_ARG(p->value));
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

enum s3_error auth_v2_verify(const struct auth_request *r, const struct auth_claim *claim,
                             struct slice secret_key, struct arena *a)
{
    _cleanup_buf_ struct buf text = BUF_INIT(TEXT_MAX_BYTES);
    const struct http_pair *expires = auth_query(r, "Expires");
    struct slice md5 = http_header(r->http, "content-md5"), type = http_header(r->http, "content-type");

    assert(expires);
    if (buf_printf(&text, SLICE_FMT "\n" SLICE_FMT "\n" SLICE_FMT "\n" SLICE_FMT "\n",
                   SLICE_ARG(r->http->method), SLICE_ARG(md5), SLICE_ARG(type), SLICE_ARG(expires->value)) ||
        put_amz_headers(r, a, &text) || put_resource(r, &text))
        return S3_ERR_INVALID_REQUEST;
    return signature_fits(buf_view(&text), claim->signature, secret_key) ? S3_OK : S3_ERR_SIGNATURE;
}
