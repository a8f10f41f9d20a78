/*
 * Tags of objects: GetObjectTagging, PutObjectTagging, DeleteObjectTagging, and the headers of other
 * operations. Where the origin keeps tags they are there and nowhere else, and changing them changes nothing
 * of the object. Elsewhere they are kept in a line of the object's metadata that clients do not see. In
 * scratch buckets that line is changed by itself; in others, and of values in memory:
 *
 * 1. Changing them writes the object anew with the bytes of one version, and only over that version: whoever
 * wrote in between wins, but for who wrote the same bytes, with the same ETag. So the object's time changes,
 * and the ETag and the checksum that were made of its parts.
 */
#include "origin/meta.h"
#include "s3/s3_internal.h"
#include "s3/source.h"
#include "s3/tags.h"

#include "origin/origin.h"

#define DOCUMENT_MAX_BYTES (64 * KIB)

enum s3_error tagging_of_request(struct s3_request *r, struct slice *ret_kept)
{
    _cleanup_buf_ struct buf b = BUF_INIT(ORIGIN_META_MAX_BYTES);
    struct slice header = request_header(r, "x-amz-tagging");
    struct tags *t = arena_alloc(r->arena, sizeof *t);
    const char *reason = NULL;
    enum s3_error error = tags_parse(header, TAGS_OBJECT_MAX, r->arena, t, &reason);

    if (error)
        return reply_refuse(r, error, reason);
    if (tags_put(t, &b))
        return S3_ERR_METADATA_TOO_LARGE;
    *ret_kept = arena_dup(r->arena, buf_view(&b));
    return S3_OK;
}

int tagging_of_object(struct s3 *s3, struct slice bucket, struct slice key, const struct wire_attr *known,
                      struct arena *a, struct slice *ret_kept, struct err *e)
{
    struct wire_tags_req req = {.bucket = bucket, .key = key};
    struct wire_stat_req ask = {.bucket = bucket, .key = key};
    struct wire_tags_rep rep;
    struct wire_stat_rep there;
    int status = object_tags(s3->session, &req, a, &rep, e);

    if (status == 0) {
        *ret_kept = rep.tags;
        return 0;
    }
    if (status != ERR_NOT_IMPLEMENTED)
        return status;
    *e = (struct err){0};
    status = known ? 0 : object_stat(s3->session, &ask, a, &there, e);
    if (status == 0)
        *ret_kept = meta_get(known ? known->meta : there.attr.meta, META_TAGS);
    return status;
}

enum s3_error s3_op_get_object_tagging(struct s3_request *r)
{
    _cleanup_buf_ struct buf b = BUF_INIT(DOCUMENT_MAX_BYTES);
    struct tags *t = arena_alloc(r->arena, sizeof *t);
    const char *reason = NULL;
    struct slice kept;
    struct err e = {0};
    int status = tagging_of_object(r->s3, r->bucket, r->key, /* known= */ NULL, r->arena, &kept, &e);

    if (status)
        return reply_failed(r, status, &e);
    if (tags_parse(kept, TAGS_BUCKET_MAX, r->arena, t, &reason) || tags_put_xml(t, &b))
        return reply_refuse(r, S3_ERR_INTERNAL, "the object's tags cannot be read");
    reply_send(r, 200, "application/xml", buf_view(&b));
    return S3_OK;
}

/* In the object's metadata. */
static enum s3_error rewrite(struct s3_request *r, struct slice kept)
{
    struct source s = {.r = r, .bucket = r->bucket, .key = r->key};
    struct wire_put_open_req to = {0};
    struct wire_attr attr;
    struct copy_target target = {.to = &to};
    enum s3_error error = source_open(&s, 0, UINT64_MAX);

    if (!error && !slice_eq(meta_get(s.attr.meta, META_TAGS), kept)) {
        error = put_own_line(r, s.attr.meta, META_TAGS, kept, &target.meta);
        if (!error && slice_find(meta_get(target.meta, META_CHECKSUM), '-') >= 0)
            error = put_own_line(r, target.meta, META_CHECKSUM, SLICE_LIT(""), &target.meta);
        to.if_match = s.attr.etag;
        target.type = s.attr.content_type;
        if (!error)
            error = copy_rewrite(r, &s, &target, &attr);
        if (error == S3_ERR_PRECONDITION)
            error = S3_ERR_CONFLICT;
    }
    source_fini(&s);
    return error;
}

static enum s3_error change(struct s3_request *r, struct slice kept)
{
    struct wire_set_tags_req req = {.bucket = r->bucket, .key = r->key, .tags = kept};
    struct wire_set_tags_rep rep;
    struct err e = {0};
    int status = object_set_tags(r->s3->session, &req, r->arena, &rep, &e);

    if (status == ERR_NOT_IMPLEMENTED)
        return rewrite(r, kept);
    return status ? reply_failed(r, status, &e) : S3_OK;
}

enum s3_error s3_op_put_object_tagging(struct s3_request *r)
{
    _cleanup_buf_ struct buf document = BUF_INIT(DOCUMENT_MAX_BYTES), kept = BUF_INIT(ORIGIN_META_MAX_BYTES);
    struct tags *t = arena_alloc(r->arena, sizeof *t);
    const char *reason = NULL;
    enum s3_error error = put_document(r, &document, /* with_checksum= */ true);

    if (!error)
        error = tags_parse_xml(buf_view(&document), TAGS_OBJECT_MAX, r->arena, t, &reason);
    if (error && reason)
        return reply_refuse(r, error, reason);
    if (!error && tags_put(t, &kept))
        error = S3_ERR_METADATA_TOO_LARGE;
    if (!error)
        error = change(r, buf_view(&kept));
    if (!error)
        reply_send(r, 200, NULL, SLICE_NULL);
    return error;
}

enum s3_error s3_op_delete_object_tagging(struct s3_request *r)
{
    enum s3_error error = change(r, SLICE_LIT(""));

    if (!error)
        reply_send(r, 204, NULL, SLICE_NULL);
    return error;
}
