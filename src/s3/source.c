/*
 * The source of a copy (contract in source.h). All bytes come from the one version that was opened.
 */
#include "s3/source.h"

#include "base/text.h"
#include "s3/condition.h"

#define PREFIX "x-amz-copy-source-"

static struct object_session *session_of(const struct source *s)
{
    return s->session ? s->session : s->r->s3->session;
}

enum s3_error source_init(struct source *s, struct s3_request *r)
{
    _cleanup_buf_ struct buf b = BUF_INIT(HTTP_HEAD_MAX_BYTES);
    const struct slice version = SLICE_LIT("?versionId=");
    struct slice value = request_header(r, "x-amz-copy-source"), path;
    ssize_t at = slice_find_slice(value, version);
    enum s3_error error;

    *s = (struct source){.r = r};
    if (at >= 0) {
        if (value.n == (size_t)at + version.n)
            return reply_refuse(r, S3_ERR_INVALID_ARGUMENT, ROUTE_EMPTY_VERSION);
        if (!slice_eq_str(slice_from(value, (size_t)at + version.n), "null"))
            return reply_refuse(r, S3_ERR_NOT_IMPLEMENTED, "versions of objects are not implemented here");
        value = slice_sub(value, 0, (size_t)at);
    }
    if ((value.n == 0 || value.p[0] != '/') && buf_char(&b, '/'))
        return S3_ERR_INVALID_ARGUMENT;
    if (text_uri_decode(&b, value, /* plus_is_space= */ false))
        return reply_refuse(r, S3_ERR_INVALID_ARGUMENT, "x-amz-copy-source is not well encoded");
    path = arena_dup(r->arena, buf_view(&b));
    error = route_path(path, &s->bucket, &s->key);
    if (error || s->bucket.n == 0 || s->key.n == 0)
        return reply_refuse(r, S3_ERR_INVALID_ARGUMENT, "x-amz-copy-source must be /BUCKET/KEY");
    return s3_check_access(r, USER_MAY_READ, s->bucket);
}

void source_fini(struct source *s)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(64 * KIB);
    struct wire_close_req req = {.handle = s->handle};
    struct wire_close_rep rep;

    if (s->handle)
        (void)object_close(session_of(s), &req, a, &rep, NULL);
    s->handle = 0;
    arena_free(TAKE_PTR(s->arena));
}

bool source_has_conditions(const struct s3_request *r)
{
    return request_header(r, PREFIX "if-match").p || request_header(r, PREFIX "if-none-match").p ||
           request_header(r, PREFIX "if-modified-since").p ||
           request_header(r, PREFIX "if-unmodified-since").p;
}

static enum s3_error check_conditions(const struct source *s)
{
    struct condition c;

    condition_read(s->r->http, PREFIX, &c);
    if (c.has_match || c.has_none_match)
        c.also = object_other_etag(s->r->s3->objects, s->bucket, s->key, s->attr.etag, s->r->arena);
    /* A copy knows no 304: both kinds of conditions fail with 412. */
    return condition_check(&c, &s->attr) ? S3_ERR_PRECONDITION : S3_OK;
}

enum s3_error source_look(struct source *s)
{
    struct wire_stat_req req = {.bucket = s->bucket, .key = s->key};
    struct wire_stat_rep rep;
    struct err e = {0};
    int status = object_stat(session_of(s), &req, s->r->arena, &rep, &e);

    if (status)
        return reply_failed(s->r, status, &e);
    s->attr = rep.attr;
    return check_conditions(s);
}

bool source_may_be_beside(struct source *s)
{
    struct slice from = SLICE_NULL, to = SLICE_NULL;

    (void)buckets_property(s->r, s->bucket, "origin", &from);
    (void)buckets_property(s->r, s->r->bucket, "origin", &to);
    return from.n && to.n;
}

enum s3_error source_open(struct source *s, uint64_t offset, uint64_t expect)
{
    struct wire_open_req req = {
        .bucket = s->bucket, .key = s->key, .offset = offset, .expect = expect, .via = WIRE_VIA_S3};
    struct wire_open_rep rep;
    struct err e = {0};
    int status = object_open(session_of(s), &req, s->r->arena, &rep, &e);

    if (status)
        return reply_failed(s->r, status, &e);
    s->handle = rep.handle;
    s->attr = rep.attr;
    s->arena = arena_new(S3_ARENA_BYTES);
    return check_conditions(s);
}

enum s3_error source_read(struct source *s, uint64_t offset, uint64_t n, struct slice *ret)
{
    struct wire_fetch_req req = {.handle = s->handle, .offset = offset, .n = n, .flags = WIRE_INLINE};
    struct wire_fetch_rep rep;
    struct err e = {0};
    int status;

    arena_clear(s->arena);
    status = object_fetch(session_of(s), &req, s->arena, &rep, &e);
    if (status == 0 && rep.data.n == 0)
        status = err_set(&e, -ENODATA, "the source ends early");
    if (status)
        return reply_failed(s->r, status, &e);
    *ret = slice_sub(rep.data, 0, MIN(rep.data.n, n));
    return S3_OK;
}
