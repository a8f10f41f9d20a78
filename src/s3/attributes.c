/*
 * GetObjectAttributes, and the parts that an object was uploaded in, as other operations need them.
 *
 * 1. Parts and checksums are of the version whose ETag is in the answer.
 */
#include "origin/meta.h"
#include "s3/part_list.h"
#include "s3/s3_internal.h"
#include "s3/xml.h"

#include "base/text.h"

#define PARTS_ARENA_BYTES MIB
#define TRIES             3 /* for an object that is replaced between two questions */

struct wanted {
    bool etag, size, storage_class, checksum, parts;
    uint64_t after, max; /* of the parts */
};

static enum s3_error read_names(struct s3_request *r, struct wanted *ret)
{
    bool any = false;

    for (size_t i = 0; i < r->http->n_headers; i++) {
        struct slice rest = r->http->headers[i].value;

        if (!slice_eq_case(r->http->headers[i].name, SLICE_LIT("x-amz-object-attributes")))
            continue;
        while (rest.n) {
            struct slice one = slice_trim(slice_split(&rest, ','));

            any = true;
            if (slice_eq_str(one, "ETag"))
                ret->etag = true;
            else if (slice_eq_str(one, "ObjectSize"))
                ret->size = true;
            else if (slice_eq_str(one, "StorageClass"))
                ret->storage_class = true;
            else if (slice_eq_str(one, "Checksum"))
                ret->checksum = true;
            else if (slice_eq_str(one, "ObjectParts"))
                ret->parts = true;
            else
                return reply_refuse(r, S3_ERR_INVALID_ARGUMENT,
                                    "x-amz-object-attributes names an unknown one");
        }
    }
    return any ? S3_OK : reply_refuse(r, S3_ERR_INVALID_REQUEST, "x-amz-object-attributes is missing");
}

static enum s3_error read_wanted(struct s3_request *r, struct wanted *ret)
{
    struct slice max = request_header(r, "x-amz-max-parts"),
                 after = request_header(r, "x-amz-part-number-marker");

    ret->max = S3_LIST_MAX;
    if ((max.n && slice_u64(max, &ret->max)) || (after.n && slice_u64(after, &ret->after)))
        return reply_refuse(r, S3_ERR_INVALID_ARGUMENT,
                            "x-amz-max-parts and x-amz-part-number-marker must be numbers");
    ret->max = MIN(ret->max, (uint64_t)S3_LIST_MAX);
    return read_names(r, ret);
}

void attributes_put_checksum(struct xml *x, struct slice kept)
{
    struct slice suffix = slice_split(&kept, ' ');

    for (size_t i = CHECKSUM_NONE + 1; i < CHECKSUM_MD5 && kept.n; i++) {
        char name[32];

        if (!slice_eq_str(suffix, checksum_suffix((enum checksum_kind)i)))
            continue;
        (void)snprintf(name, sizeof name, "Checksum%s", checksum_name((enum checksum_kind)i));
        xml_text(x, name, kept);
    }
}

static void put_checksum(struct xml *x, struct slice kept)
{
    if (kept.n == 0)
        return;
    xml_open(x, "Checksum");
    attributes_put_checksum(x, kept);
    xml_text(x, "ChecksumType", slice_str(put_kept_type(kept)));
    xml_close(x, "Checksum");
}

enum s3_error attributes_parts(struct s3_request *r, struct slice etag, struct arena *a,
                               struct part_list *ret)
{
    struct wire_parts_req req = {.bucket = r->bucket, .key = r->key, .etag = etag};
    struct wire_parts_rep rep;
    struct err e = {0};
    int status = object_parts(r->s3->session, &req, a, &rep, &e);

    *ret = (struct part_list){0};
    if (status == -ESTALE)
        return S3_ERR_CONFLICT;
    if (status)
        return reply_failed(r, status, &e);
    return rep.parts.n && part_list_decode(rep.parts, ret) ? S3_ERR_INTERNAL : S3_OK;
}

static void put_parts(struct xml *x, const struct part_list *l, const struct wanted *wanted, struct arena *a)
{
    struct part_cursor at = {0};
    struct part_entry one;
    uint64_t n = 0, last = wanted->after;
    bool truncated = false;

    xml_open(x, "ObjectParts");
    while (!truncated && part_list_next(l, &at, &one)) {
        if (one.number <= wanted->after)
            continue;
        truncated = n == wanted->max;
        if (truncated)
            break;
        xml_open(x, "Part");
        if (one.has_sum)
            attributes_put_checksum(x, put_checksum_text(a, l->sums.kind, one.sum));
        xml_u64(x, "PartNumber", one.number);
        xml_u64(x, "Size", one.size);
        xml_close(x, "Part");
        last = one.number;
        n++;
    }
    xml_bool(x, "IsTruncated", truncated);
    xml_u64(x, "MaxParts", wanted->max);
    xml_u64(x, "NextPartNumberMarker", last);
    xml_u64(x, "PartNumberMarker", wanted->after);
    xml_u64(x, "PartsCount", l->n);
    xml_close(x, "ObjectParts");
}

/* The object's attributes, and its parts where they are wanted and known. */
static enum s3_error look(struct s3_request *r, const struct wanted *wanted, struct arena *a,
                          struct wire_attr *ret_attr, struct part_list *ret_parts)
{
    struct wire_stat_req req = {.bucket = r->bucket, .key = r->key};
    enum s3_error error = S3_ERR_CONFLICT;

    *ret_parts = (struct part_list){0};
    for (int i = 0; error == S3_ERR_CONFLICT && i < TRIES; i++) {
        struct wire_stat_rep rep;
        struct err e = {0};
        int status;

        arena_clear(a);
        status = object_stat(r->s3->session, &req, a, &rep, &e);
        if (status)
            return reply_failed(r, status, &e);
        *ret_attr = rep.attr;
        error = wanted->parts ? attributes_parts(r, rep.attr.etag, a, ret_parts) : S3_OK;
    }
    return error;
}

/* What nothing is known of is left out, as S3 does for objects that have none: parts, checksums. */
enum s3_error s3_op_get_object_attributes(struct s3_request *r)
{
    _cleanup_buf_ struct buf b = BUF_INIT(S3_XML_MAX_BYTES);
    _cleanup_(arena_freep) struct arena *a = arena_new(PARTS_ARENA_BYTES);
    struct wanted wanted = {0};
    struct part_list parts;
    struct wire_attr attr = {0};
    struct xml x = {&b, 0};
    char date[32];
    enum s3_error error = read_wanted(r, &wanted);

    if (!error)
        error = look(r, &wanted, a, &attr, &parts);
    if (error)
        return error;
    xml_start(&x);
    xml_root(&x, "GetObjectAttributesResponse");
    if (wanted.etag && attr.etag.n)
        xml_text(&x, "ETag", attr.etag);
    if (wanted.checksum)
        put_checksum(&x, meta_get(attr.meta, META_CHECKSUM));
    if (parts.n)
        put_parts(&x, &parts, &wanted, a);
    if (wanted.storage_class)
        xml_text(&x, "StorageClass", SLICE_LIT("STANDARD"));
    if (wanted.size)
        xml_u64(&x, "ObjectSize", attr.size_bytes);
    xml_close(&x, "GetObjectAttributesResponse");
    assert(x.status == 0);
    text_http_date(attr.mtime_ns, date);
    reply_header(r, "Last-Modified", slice_str(date));
    reply_send(r, 200, "application/xml", buf_view(&b));
    return S3_OK;
}
