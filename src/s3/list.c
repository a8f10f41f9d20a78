/*
 * ListObjectsV2, ListObjects and ListObjectVersions (one version of each, called null): one page of the
 * object layer's listing each.
 *
 * 1. A page continues exactly behind the last entry of the one before it: the continuation token carries the
 * object layer's `next`, with a checksum, so that a token of something else is refused instead of misread.
 *
 * Continuation token: base64 of "1", crc32c of the rest (4 bytes, little endian), the rest.
 */
#include "s3/group.h"
#include "s3/s3_internal.h"
#include "s3/xml.h"

#include "base/crc32c.h"
#include "base/le.h"
#include "base/text.h"
#include "origin/origin.h"

#define TOKEN_MAX_BYTES (8 * KIB)

struct list {
    struct s3_request *r;
    bool v2, versions, url_encoded, with_owner;
    struct slice prefix, delimiter, after, token; /* `after`: start-after or marker, as sent */
    uint64_t max;
    struct wire_list_rep page;
    size_t n_keys, n_prefixes;
};

static int token_encode(struct slice next, struct buf *b)
{
    _cleanup_buf_ struct buf raw = BUF_INIT(TOKEN_MAX_BYTES);
    struct le_writer w = le_writer_of(&raw);

    le_add8(&w, '1');
    le_add32(&w, crc32c(0, next.p, next.n));
    le_add(&w, next);
    if (le_add_end(&w) < 0)
        return -E2BIG;
    return text_base64(b, buf_view(&raw));
}

static int token_decode(struct slice token, struct arena *a, struct slice *ret_next)
{
    _cleanup_buf_ struct buf raw = BUF_INIT(TOKEN_MAX_BYTES);

    if (token.n > TOKEN_MAX_BYTES || text_unbase64(&raw, token) || raw.n < 5 || raw.p[0] != '1')
        return -EINVAL;
    if (le_get32(raw.p + 1) != crc32c(0, raw.p + 5, raw.n - 5))
        return -EINVAL;
    *ret_next = arena_dup(a, slice_from(buf_view(&raw), 5));
    return 0;
}

static enum s3_error read_query(struct list *l)
{
    struct s3_request *r = l->r;
    struct slice max = request_query(r, "max-keys"), encoding = request_query(r, "encoding-type");
    struct slice type = request_query(r, "list-type");

    if (!l->versions && !l->v2 && type.p)
        return reply_refuse(r, S3_ERR_INVALID_ARGUMENT, "list-type can only be 2");
    l->prefix = request_query(r, "prefix");
    l->delimiter = request_query(r, "delimiter");
    l->after = request_query(r, l->v2 ? "start-after" : l->versions ? "key-marker" : "marker");
    l->token = l->v2 ? request_query(r, "continuation-token") : SLICE_NULL;
    l->with_owner = !l->v2 || slice_eq_str(request_query(r, "fetch-owner"), "true");
    l->max = S3_LIST_MAX;
    if (max.n && (slice_u64(max, &l->max) || l->max > INT32_MAX))
        return reply_refuse(r, S3_ERR_INVALID_ARGUMENT, "max-keys must be a number from 0 to 2147483647");
    l->max = MIN(l->max, (uint64_t)S3_LIST_MAX);
    if (encoding.n && !slice_eq_str(encoding, "url"))
        return reply_refuse(r, S3_ERR_INVALID_ARGUMENT, "encoding-type can only be url");
    l->url_encoded = encoding.n > 0;
    if (l->delimiter.n > GROUP_DELIMITER_MAX || !slice_is_utf8(l->delimiter))
        return reply_refuse(r, S3_ERR_INVALID_ARGUMENT, "the delimiter must be UTF-8 of at most 64 bytes");
    if (l->prefix.n > S3_KEY_MAX_BYTES || l->after.n > S3_KEY_MAX_BYTES)
        return S3_ERR_KEY_TOO_LONG;
    if (l->versions && l->after.n == 0 && request_query(r, "version-id-marker").n)
        return reply_refuse(r, S3_ERR_INVALID_ARGUMENT, "a version-id-marker needs a key-marker");
    if (!slice_is_utf8(l->prefix) || !slice_is_utf8(l->after))
        return reply_refuse(r, S3_ERR_INVALID_ARGUMENT, "prefix and marker must be UTF-8");
    return S3_OK;
}

static enum s3_error fetch_page(struct list *l, struct arena *a)
{
    struct s3_request *r = l->r;
    bool by_slash = slice_eq_str(l->delimiter, "/");
    struct wire_list_req req = {.bucket = r->bucket,
                                .prefix = l->prefix,
                                .delimiter = by_slash ? '/' : 0,
                                .after = l->after,
                                .max = (uint32_t)l->max};
    struct err e = {0};
    int status;

    if (l->token.n && token_decode(l->token, a, &req.after))
        return reply_refuse(r, S3_ERR_INVALID_ARGUMENT, "the continuation token is not one of this server's");
    if (l->max == 0) {
        struct wire_bucket_get_req get = {.name = r->bucket};
        struct wire_bucket_get_rep bucket;

        status = object_bucket_get(r->s3->session, &get, a, &bucket, &e);
    } else if (l->delimiter.n && !by_slash) {
        status = group_list(r->s3, &req, l->delimiter, a, &l->page, &e);
    } else {
        status = object_list(r->s3->session, &req, a, &l->page, &e);
    }
    return status ? reply_failed(r, status, &e) : S3_OK;
}

/* ---- XML ---- */

static void put_owner(struct list *l, struct xml *x)
{
    xml_open(x, "Owner");
    xml_owner(x, l->r->s3->node_id);
    xml_close(x, "Owner");
}

static void put_object(struct list *l, struct xml *x, const struct wire_entry *entry)
{
    const char *element = l->versions ? "Version" : "Contents";
    char date[32];
    struct slice etag = entry->attr.etag;

    text_iso8601(entry->attr.mtime_ns, date);
    xml_open(x, element);
    xml_name(x, l->url_encoded, "Key", entry->key);
    if (l->versions) {
        xml_text(x, "VersionId", SLICE_LIT("null"));
        xml_bool(x, "IsLatest", true);
    }
    xml_text(x, "LastModified", slice_str(date));
    if (etag.n) {
        char quoted[REPLY_ETAG_TEXT_MAX];

        xml_text(x, "ETag", slice_str(reply_etag_text(etag, quoted)));
    }
    xml_u64(x, "Size", entry->attr.size_bytes);
    if (l->with_owner)
        put_owner(l, x);
    xml_text(x, "StorageClass", SLICE_LIT("STANDARD"));
    xml_close(x, element);
}

/* S3 lists the objects first, then the common prefixes. */
static int put_entries(struct list *l, struct xml *x, bool prefixes)
{
    struct slice rest = l->page.entries;
    struct wire_entry entry;
    int status;

    while ((status = wire_entry_decode(&rest, &entry)) == 0) {
        if ((entry.attr.kind == WIRE_DIRECTORY) != prefixes)
            continue;
        if (prefixes) {
            l->n_prefixes++;
            xml_open(x, "CommonPrefixes");
            xml_name(x, l->url_encoded, "Prefix", entry.key);
            xml_close(x, "CommonPrefixes");
        } else {
            l->n_keys++;
            put_object(l, x, &entry);
        }
    }
    return status == -ENOENT ? 0 : status;
}

static void put_v2(struct list *l, struct xml *x)
{
    _cleanup_buf_ struct buf token = BUF_INIT(2 * TOKEN_MAX_BYTES);

    if (l->token.p)
        xml_text(x, "ContinuationToken", l->token);
    if (l->after.n)
        xml_name(x, l->url_encoded, "StartAfter", l->after);
    xml_u64(x, "KeyCount", l->n_keys + l->n_prefixes);
    if (!l->page.truncated)
        return;
    if (token_encode(l->page.next, &token))
        x->status = -E2BIG;
    xml_text(x, "NextContinuationToken", buf_view(&token));
}

static void put_v1(struct list *l, struct xml *x)
{
    xml_name(x, l->url_encoded, "Marker", l->after);
    if (l->page.truncated)
        xml_name(x, l->url_encoded, "NextMarker", l->page.next);
}

/* A marker in the middle of a key's versions cannot be: each has one. */
static void put_versions(struct list *l, struct xml *x)
{
    xml_name(x, l->url_encoded, "KeyMarker", l->after);
    xml_text(x, "VersionIdMarker", request_query(l->r, "version-id-marker"));
    if (!l->page.truncated)
        return;
    xml_name(x, l->url_encoded, "NextKeyMarker", l->page.next);
    xml_text(x, "NextVersionIdMarker", SLICE_LIT("null"));
}

static int list_xml(struct list *l, struct buf *b)
{
    const char *root = l->versions ? "ListVersionsResult" : "ListBucketResult";
    struct xml x = {b, 0};
    int status;

    xml_start(&x);
    xml_root(&x, root);
    xml_text(&x, "Name", l->r->bucket);
    xml_name(&x, l->url_encoded, "Prefix", l->prefix);
    if (l->delimiter.n)
        xml_name(&x, l->url_encoded, "Delimiter", l->delimiter);
    xml_u64(&x, "MaxKeys", l->max);
    if (l->url_encoded)
        xml_text(&x, "EncodingType", SLICE_LIT("url"));
    xml_bool(&x, "IsTruncated", l->page.truncated);
    status = put_entries(l, &x, /* prefixes= */ false);
    if (status == 0)
        status = put_entries(l, &x, /* prefixes= */ true);
    if (l->versions)
        put_versions(l, &x);
    else if (l->v2)
        put_v2(l, &x);
    else
        put_v1(l, &x);
    xml_close(&x, root);
    return status ? status : x.status;
}

static enum s3_error list(struct s3_request *r, bool v2, bool versions)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(S3_ARENA_BYTES);
    _cleanup_buf_ struct buf b = BUF_INIT(S3_XML_MAX_BYTES);
    struct list l = {.r = r, .v2 = v2, .versions = versions};
    enum s3_error error = read_query(&l);

    if (!error)
        error = fetch_page(&l, a);
    if (!error && list_xml(&l, &b))
        error = reply_refuse(r, S3_ERR_INTERNAL, "the page of the listing cannot be written");
    if (!error)
        reply_send(r, 200, "application/xml", buf_view(&b));
    return error;
}

enum s3_error s3_op_list_objects(struct s3_request *r)
{
    return list(r, /* v2= */ false, /* versions= */ false);
}

enum s3_error s3_op_list_objects_v2(struct s3_request *r)
{
    return list(r, /* v2= */ true, /* versions= */ false);
}

enum s3_error s3_op_list_object_versions(struct s3_request *r)
{
    return list(r, /* v2= */ false, /* versions= */ true);
}
