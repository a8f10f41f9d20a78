/*
 * ListMultipartUploads: those on this node and those at the origin, in one order, by pages.
 *
 * 1. A page continues behind the last entry of the one before it, by its key and its id; what is begun or
 * ended meanwhile may show or not, all others come exactly once.
 */
#include "s3/group.h"
#include "s3/parts.h"
#include "s3/upload_page.h"
#include "s3/xml.h"

#include "base/text.h"

struct listing {
    struct s3_request *r;
    struct upload_page page;
    bool url_encoded;
};

static enum s3_error read_query(struct listing *l)
{
    struct s3_request *r = l->r;
    struct slice max = request_query(r, "max-uploads"), encoding = request_query(r, "encoding-type");
    uint64_t most = S3_LIST_MAX;

    if (max.n && (slice_u64(max, &most) || most > INT32_MAX))
        return reply_refuse(r, S3_ERR_INVALID_ARGUMENT, "max-uploads must be a number from 0 to 2147483647");
    if (encoding.n && !slice_eq_str(encoding, "url"))
        return reply_refuse(r, S3_ERR_INVALID_ARGUMENT, "encoding-type can only be url");
    l->url_encoded = encoding.n > 0;
    l->page = (struct upload_page){.prefix = request_query(r, "prefix"),
                                   .delimiter = request_query(r, "delimiter"),
                                   .key_marker = request_query(r, "key-marker"),
                                   .id_marker = request_query(r, "upload-id-marker"),
                                   .max = MIN(most, (uint64_t)S3_LIST_MAX)};
    if (l->page.delimiter.n > GROUP_DELIMITER_MAX || !slice_is_utf8(l->page.delimiter))
        return reply_refuse(r, S3_ERR_INVALID_ARGUMENT, "the delimiter must be UTF-8 of at most 64 bytes");
    if (l->page.prefix.n > S3_KEY_MAX_BYTES || l->page.key_marker.n > S3_KEY_MAX_BYTES)
        return S3_ERR_KEY_TOO_LONG;
    if (!slice_is_utf8(l->page.prefix) || !slice_is_utf8(l->page.key_marker))
        return reply_refuse(r, S3_ERR_INVALID_ARGUMENT, "prefix and key-marker must be UTF-8");
    return S3_OK;
}

static void on_upload(void *arg, struct slice key, const char *id, uint64_t created_ns)
{
    struct listing *l = arg;

    upload_page_add(&l->page, key, id, created_ns);
}

/* ---- XML ---- */

static void put_owner(const struct listing *l, struct xml *x, const char *element)
{
    xml_open(x, element);
    xml_owner(x, l->r->s3->node_id);
    xml_close(x, element);
}

static void put_upload(const struct listing *l, struct xml *x, const struct upload_page_entry *e)
{
    char date[32];

    text_iso8601(e->created_ns, date);
    xml_open(x, "Upload");
    xml_name(x, l->url_encoded, "Key", e->name);
    xml_text(x, "UploadId", slice_str(e->id));
    put_owner(l, x, "Initiator");
    put_owner(l, x, "Owner");
    xml_text(x, "StorageClass", SLICE_LIT("STANDARD"));
    xml_text(x, "Initiated", slice_str(date));
    xml_close(x, "Upload");
}

/* The uploads first, then the common prefixes. */
static void put_entries(const struct listing *l, struct xml *x)
{
    const struct upload_page *p = &l->page;

    for (size_t i = 0; i < p->n; i++)
        if (p->v[i].id[0])
            put_upload(l, x, &p->v[i]);
    for (size_t i = 0; i < p->n; i++) {
        if (p->v[i].id[0])
            continue;
        xml_open(x, "CommonPrefixes");
        xml_name(x, l->url_encoded, "Prefix", p->v[i].name);
        xml_close(x, "CommonPrefixes");
    }
}

static int put_page(const struct listing *l, struct buf *b)
{
    const struct upload_page *p = &l->page;
    bool more = p->truncated && p->n > 0;
    struct xml x = {b, 0};

    xml_start(&x);
    xml_root(&x, "ListMultipartUploadsResult");
    xml_text(&x, "Bucket", l->r->bucket);
    xml_name(&x, l->url_encoded, "KeyMarker", p->key_marker);
    xml_text(&x, "UploadIdMarker", p->id_marker);
    if (more) {
        xml_name(&x, l->url_encoded, "NextKeyMarker", p->v[p->n - 1].name);
        xml_text(&x, "NextUploadIdMarker", slice_str(p->v[p->n - 1].id));
    }
    xml_name(&x, l->url_encoded, "Prefix", p->prefix);
    if (p->delimiter.n)
        xml_name(&x, l->url_encoded, "Delimiter", p->delimiter);
    if (l->url_encoded)
        xml_text(&x, "EncodingType", SLICE_LIT("url"));
    xml_u64(&x, "MaxUploads", p->max);
    xml_bool(&x, "IsTruncated", more);
    put_entries(l, &x);
    xml_close(&x, "ListMultipartUploadsResult");
    return x.status;
}

enum s3_error s3_op_list_multipart_uploads(struct s3_request *r)
{
    _cleanup_buf_ struct buf b = BUF_INIT(S3_XML_MAX_BYTES);
    struct listing l = {.r = r};
    struct err e = {0};
    enum s3_error error = buckets_find(r);

    if (!error)
        error = read_query(&l);
    if (error)
        return error;
    upload_page_init(&l.page);
    uploads_each(r->s3->uploads, buckets_identity(r->s3, r->bucket, r->arena), on_upload, &l);
    int status = parts_each(r->s3, r->bucket, on_upload, &l, &e);
    if (status)
        error = reply_failed(r, status, &e);
    else if (put_page(&l, &b))
        error = reply_refuse(r, S3_ERR_INTERNAL, "the page of the listing cannot be written");
    upload_page_fini(&l.page);
    if (!error)
        reply_send(r, 200, "application/xml", buf_view(&b));
    return error;
}
