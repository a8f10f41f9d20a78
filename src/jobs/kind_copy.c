/*
 * copy and sync: objects from one bucket to another, through both buckets' own code paths.
 *
 * The target's object appears whole or not at all: it is put with one commit, after which the origin's own
 * word for its size is compared. An object that the target has already, with the same size and the same
 * ETag (where that is a hash of the content), is left alone; sync also leaves one alone that is as large and
 * not older.
 */
#include "net/job_spec.h"

#include "jobs/kind.h"

#include <inttypes.h>

#define PIECE_BYTES MIB
#define MD5_DIGITS  32

/* The key on the other side: behind the other prefix what this one has behind its own. */
static struct slice other_key(struct arena *a, struct slice key, struct slice prefix, struct slice other)
{
    struct slice rest = slice_from(key, prefix.n);
    return slice_str(arena_printf(a, SLICE_FMT SLICE_FMT, SLICE_ARG(other), SLICE_ARG(rest)));
}

static int stat_at(struct kind_work *w, struct slice bucket, struct slice key, uint32_t flags,
                   struct wire_attr *ret, struct err *e)
{
    struct wire_stat_req req = {.bucket = bucket, .key = key, .flags = flags};
    struct wire_stat_rep rep;
    int r = object_stat(w->session, &req, w->arena, &rep, e);
    if (r == 0)
        *ret = rep.attr;
    return r;
}

static bool same_content(const struct wire_attr *x, const struct wire_attr *y)
{
    bool hash = x->etag.n == MD5_DIGITS && slice_find(x->etag, '-') < 0;
    return hash && x->size_bytes == y->size_bytes && slice_eq(x->etag, y->etag);
}

/* Moves the bytes of an open object into an open put. */
static int pour(struct kind_work *w, uint64_t from, uint64_t to, uint64_t size, struct err *e)
{
    _cleanup_(arena_freep) struct arena *piece = arena_new(4 * MIB);
    int r = 0;
    for (uint64_t at = 0; at < size && r == 0;) {
        arena_clear(piece);
        struct wire_fetch_req req = {.handle = from,
                                     .offset = at,
                                     .n = MIN(PIECE_BYTES, size - at),
                                     .flags = WIRE_INLINE | WIRE_BACKGROUND};
        struct wire_fetch_rep got;
        r = w->move(w->arg, req.n);
        if (r == 0)
            r = object_fetch(w->session, &req, piece, &got, e);
        if (r == 0 && got.data.n == 0)
            r = err_set(e, ERR_ORIGIN_SHORT, "ended at byte %" PRIu64 " of %" PRIu64, at, size);
        if (r < 0)
            break;
        struct wire_put_write_req write = {.handle = to, .offset = at, .data = got.data};
        struct wire_put_write_rep written;
        r = object_put_write(w->session, &write, piece, &written, e);
        at += got.data.n;
    }
    return r;
}

/* Puts the open source object under `key` of the target. */
static int put_object(struct kind_work *w, const struct wire_open_rep *from, const struct wire_attr *attr,
                      struct slice key, struct err *e)
{
    uint64_t size = from->attr.size_bytes;
    struct wire_put_open_req open = {.bucket = w->target_bucket,
                                     .key = key,
                                     .size = size,
                                     .content_type = attr->content_type,
                                     .meta = attr->meta,
                                     .via = WIRE_VIA_API};
    struct wire_put_open_rep to;
    int r = object_put_open(w->session, &open, w->arena, &to, e);
    if (r < 0)
        return r;
    r = pour(w, from->handle, to.handle, size, e);
    if (r == 0) {
        struct wire_put_commit_req commit = {.handle = to.handle, .size = size};
        struct wire_put_commit_rep done;
        r = object_put_commit(w->session, &commit, w->arena, &done, e);
    }
    if (r < 0) {
        struct wire_put_abort_req abort_req = {.handle = to.handle};
        struct wire_put_abort_rep aborted;
        (void)object_put_abort(w->session, &abort_req, w->arena, &aborted, NULL);
        return r;
    }
    struct wire_attr there;
    r = stat_at(w, w->target_bucket, key, WIRE_FRESH, &there, e);
    if (r == 0 && there.size_bytes != size)
        r = err_set(e, ERR_ORIGIN_FAILED, "the target has %" PRIu64 " bytes, %" PRIu64 " were written",
                    there.size_bytes, size);
    return r;
}

static int copy(struct kind_work *w, const struct kind_object *o, bool sync, struct err *e)
{
    struct slice key = other_key(w->arena, o->key, w->source_prefix, w->target_prefix);
    struct wire_attr from = {0}, there = {0};
    int r = stat_at(w, w->source_bucket, o->key, 0, &from, e);
    if (r < 0)
        return r;
    w->bytes = from.size_bytes;
    r = stat_at(w, w->target_bucket, key, WIRE_FRESH, &there, e);
    if (r < 0 && r != -ENOENT)
        return r;
    bool as_new = sync && there.size_bytes == from.size_bytes && there.mtime_ns >= from.mtime_ns;
    if (r == 0 && (same_content(&from, &there) || as_new))
        return KIND_SKIPPED;
    struct wire_open_req open = {.bucket = w->source_bucket, .key = o->key, .via = WIRE_VIA_API};
    struct wire_open_rep rep;
    r = object_open(w->session, &open, w->arena, &rep, e);
    if (r < 0)
        return r;
    w->bytes = rep.attr.size_bytes;
    r = put_object(w, &rep, &from, key, e);
    struct wire_close_req close = {.handle = rep.handle};
    struct wire_close_rep closed;
    (void)object_close(w->session, &close, w->arena, &closed, NULL);
    return r < 0 ? r : KIND_WORKED;
}

int kind_copy(struct kind_work *w, const struct kind_object *o, struct err *e)
{
    return copy(w, o, /* sync= */ false, e);
}

int kind_sync(struct kind_work *w, const struct kind_object *o, struct err *e)
{
    return copy(w, o, /* sync= */ true, e);
}

int kind_sweep(struct kind_work *w, const struct kind_object *o, struct err *e)
{
    struct slice source = other_key(w->arena, o->key, w->target_prefix, w->source_prefix);
    struct wire_attr attr;
    int r = stat_at(w, w->source_bucket, source, 0, &attr, e);
    if (r == -ENOENT) /* remembered is not enough for a removal */
        r = stat_at(w, w->source_bucket, source, WIRE_FRESH, &attr, e);
    if (r != -ENOENT)
        return r < 0 ? r : KIND_SKIPPED;
    struct wire_remove_req req = {.bucket = w->target_bucket, .key = o->key};
    struct wire_remove_rep rep;
    return object_remove(w->session, &req, w->arena, &rep, e);
}
