/*
 * Reading objects of scratch buckets: open, fetch, close; and those of mirror buckets of which write-back has
 * the bytes in a hard extent (sreader_open). All bytes are here, so an open object is complete
 * and its descriptor leaves. A reader keeps the extent that its object had when it was opened: replacing or
 * removing the object does not touch it. A file that a mount writes to while it is read changes under its
 * readers, as files do.
 */
#include "object/scratch_object_ops.h"

#include "base/sys.h"

#include <inttypes.h>

#define SREADER_MAGIC    0x73726561u
#define INLINE_MAX_BYTES (4 * MIB)

struct sreader {
    uint32_t magic;
    _Atomic uint32_t refs;
    struct object_service *service;
    struct bucket *bucket;
    char *key;
    uint32_t via;
    uint64_t size;
    struct hard *hard; /* NULL: an empty object, or a link */
    char *target;      /* of a link, `size` bytes; else NULL */
};

void sreader_ref(struct sreader *r)
{
    assert(r->magic == SREADER_MAGIC);
    (void)atomic_fetch_add(&r->refs, 1);
}

void sreader_unref(struct sreader *r)
{
    if (!r)
        return;
    assert(r->magic == SREADER_MAGIC);
    if (atomic_fetch_sub(&r->refs, 1) != 1)
        return;
    (void)atomic_fetch_sub(&r->service->readers, 1);
    hard_unref(r->hard);
    bucket_unref(r->bucket);
    free(r->key);
    free(r->target);
    r->magic = 0;
    free(r);
}

static struct sreader *sreader_new(struct object_session *ses, struct bucket *b,
                                   const struct wire_open_req *q, uint64_t size, struct hard *h)
{
    struct sreader *r = calloc(1, sizeof(*r));
    assert(r);
    *r = (struct sreader){.magic = SREADER_MAGIC,
                          .service = ses->service,
                          .bucket = bucket_ref(b),
                          .key = slice_dup(q->key),
                          .via = q->via,
                          .size = size,
                          .hard = h};
    atomic_init(&r->refs, 1);
    (void)atomic_fetch_add(&r->service->readers, 1);
    return r;
}

/* Takes over the reader. */
static int give_handle(struct object_session *ses, struct sreader *r, struct wire_open_rep *rep,
                       struct err *e)
{
    int k = session_put(ses, HANDLE_SREAD, r, &rep->handle);
    if (k < 0) {
        sreader_unref(r);
        return session_no_room(k, e);
    }
    rep->state = r->hard ? WIRE_COMPLETE : WIRE_UNCACHED;
    rep->present = r->size;
    rep->fd = r->hard ? hard_fd(r->hard) : -1;
    metrics_count(METRIC_OPENS, r->bucket->name, object_via_name(r->via), "complete");
    return 0;
}

int op_scratch_open(struct scratch_op *o, const struct wire_open_req *req, struct arena *a,
                    struct wire_open_rep *rep, struct err *e)
{
    struct scratch_inode x;
    _cleanup_(hard_unrefp) struct hard *found = NULL;
    bool modes = req->flags & WIRE_MODES, is_link = false;
    int r = object_check_key(req->key, e);
    if (r == 0 && modes) {
        r = smodes_find(o, req->key, a, &x, e);
        is_link = r == 0 && S_ISLNK(x.mode);
    }
    if (r == 0 && !is_link)
        r = sobject_find_data(o, req->key, a, &x, &found, e);
    if (r < 0)
        return r;
    sobject_attr(o->node, o->call.bucket, &x, /* posix= */ false, a, &rep->attr);
    if (modes)
        smodes_add(&x, a, &rep->attr);
    r = object_check_conditions(req, rep->attr.etag, /* also= */ SLICE_NULL, e);
    if (r < 0)
        return r;
    if (!found && !is_link)
        rep->attr.size_bytes = 0; /* a directory's key; or emptied just now */
    struct hard *h = rep->attr.size_bytes > 0 ? TAKE_PTR(found) : NULL;
    struct sreader *reader = sreader_new(o->session, o->bucket, req, rep->attr.size_bytes, h);
    if (is_link)
        reader->target = slice_dup(x.target);
    return give_handle(o->session, reader, rep, e);
}

int sreader_open(struct object_session *ses, struct bucket *b, const struct wire_open_req *req,
                 struct hard *h, struct wire_open_rep *rep, struct err *e)
{
    return give_handle(ses, sreader_new(ses, b, req, rep->attr.size_bytes, h), rep, e);
}

static void count_read(struct sreader *r, uint64_t n)
{
    if (n > 0 && !bucket_is_scratch(r->bucket))
        usage_read(r->service->usage, r->bucket->id, slice_str(r->key), n);
    if (n > 0)
        metrics_add(metrics_series(METRIC_READ_BYTES, r->bucket->name, object_via_name(r->via), "cache"), n);
}

static int fetch_inline(struct sreader *r, uint64_t offset, uint64_t n, struct arena *a,
                        struct wire_fetch_rep *rep, struct err *e)
{
    n = MIN(n, (uint64_t)INLINE_MAX_BYTES);
    if (r->target) {
        rep->data = arena_dup(a, slice_of(r->target + offset, n));
        return 0;
    }
    char *p = arena_alloc(a, n);
    ssize_t got = sys->pread(hard_fd(r->hard), p, n, offset);
    if (got <= 0)
        return err_set(e, got < 0 ? (int)got : -EIO, "%s/%s: %s at %" PRIu64, r->bucket->name, r->key,
                       got < 0 ? err_text((int)got) : "the file was cut while it was read", offset);
    rep->data = slice_of(p, (size_t)got);
    count_read(r, (uint64_t)got);
    return 0;
}

int op_scratch_fetch(struct object_session *ses, const struct wire_fetch_req *req, struct arena *a,
                     struct wire_fetch_rep *rep, struct err *e)
{
    struct sreader *r = session_get(ses, HANDLE_SREAD, req->handle, e);
    if (!r)
        return -EBADF;
    int result = 0;
    if (req->offset < r->size && req->n > 0) {
        uint64_t n = MIN(req->n, r->size - req->offset);
        if (req->flags & WIRE_INLINE || r->target)
            result = fetch_inline(r, req->offset, n, a, rep, e);
        else
            rep->available = n;
    }
    rep->state = r->hard ? WIRE_COMPLETE : WIRE_UNCACHED;
    sreader_unref(r);
    return result;
}

uint64_t sreader_reply_bytes(const struct sreader *r, const struct wire_fetch_req *q)
{
    uint64_t left = r->size - MIN(q->offset, r->size);
    return q->flags & WIRE_INLINE || r->target ? MIN(MIN(q->n, left), (uint64_t)INLINE_MAX_BYTES) : 0;
}

int op_scratch_close(struct object_session *ses, const struct wire_close_req *req, struct arena *a,
                     struct wire_close_rep *rep, struct err *e)
{
    (void)a, (void)rep;
    struct stree *t = session_take(ses, HANDLE_TREE, req->handle);
    struct sreader *r = t ? NULL : session_take(ses, HANDLE_SREAD, req->handle);
    if (!t && !r)
        return err_set(e, -EBADF, "handle is not open");
    const struct object_claim claim = object_claim(ses, req);
    if (t) {
        stree_close(t, claim.cached + claim.origin);
        return 0;
    }
    count_read(r, claim.cached + claim.origin);
    sreader_unref(r);
    return 0;
}
