/*
 * Puts of objects that are larger than what the disks may keep of one: bytes go to the origin in parts and
 * are not kept here.
 *
 * Parts of at least 16 MiB are collected in memory, SENDERS_MAX of them at a time (part_send.h), so that
 * memory is bounded and a part that fails is sent again.
 *
 * Invariants:
 *  1. Until the commit the object is not there, whatever happens to the writer: the origin completes the
 * upload only then. What is not committed is aborted.
 *  2. As in writer.c: what was cached of the key is forgotten before the origin is asked to complete, and
 * again when it has, or when the end is unknown.
 *  3. One operation at a time runs on a handle (busy), and none after its commit (ended).
 *
 * Failure modes: a part that the origin still takes while the upload is aborted may be left there: those that
 * have left whole are waited for a little, and where that was not enough the upload is aborted once more a
 * little later. That, and what a node which dies leaves at the origin, is of unfinished.h.
 */
#include "object/back_internal.h"
#include "object/part_send.h"

#include "base/log.h"
#include "base/sys.h"
#include "origin/meta.h"

#include <inttypes.h>

#define MAGIC          0x74687275u
#define SENDERS_MAX    3
#define SETTLE_NS      5000000000ull /* for parts that the origin has all bytes of, before the abort */
#define PARTS_MAX      10000
#define STRINGS_ARENA  (32 * KIB)
#define ETAGS_ARENA    (4 * MIB)
#define PART_MIN_BYTES (5 * MIB) /* what origins take as a part that is not the last */

struct through {
    uint32_t magic;
    _Atomic uint32_t refs;
    struct object_service *service;
    struct upstream *upstream;
    struct arena *strings, *etags;
    struct origin_put put;
    char origin_id[ORIGIN_UPLOAD_ID_MAX];
    uint64_t size, part_bytes, written;
    uint32_t via;
    struct lock lock; /* covers busy and ended */
    struct cond moved;
    bool busy, ended;
    /* the operation that runs: */
    struct part_send *senders[SENDERS_MAX]; /* oldest first; bytes go to the last */
    size_t n_senders;
    uint64_t left; /* bytes that the last one still takes */
    struct origin_part parts[PARTS_MAX];
    uint32_t n_parts, n_begun; /* acknowledged; begun */
    bool completed;
};

uint64_t object_room(struct object_service *s)
{
    uint64_t most = 0;
    for (size_t i = 0; i < store_n_disks(s->config.store); i++) {
        struct store_disk_status d;
        if (store_disk_status(s->config.store, i, &d) == 0 && d.limit_bytes > d.hard_bytes)
            most = MAX(most, (d.limit_bytes - d.hard_bytes) / 2);
    }
    return most;
}

bool through_is_wanted(struct object_service *s, struct upstream *u, const struct wire_put_open_req *q)
{
    /* Of write-back: durable here, or refused for want of room. */
    if (u->bucket->p.write == BUCKET_WRITE_BACK || back_has(s->back, u->bucket->id, q->key))
        return false;
    return !(q->flags & WIRE_STAGED) && q->size != UINT64_MAX && q->size > PART_MIN_BYTES &&
           origin_begins_uploads(u->origin) && q->size > object_room(s);
}

/* ---- life ---- */

void through_ref(struct through *t)
{
    assert(t->magic == MAGIC);
    (void)atomic_fetch_add(&t->refs, 1);
}

void through_unref(struct through *t)
{
    if (!t)
        return;
    assert(t->magic == MAGIC);
    if (atomic_fetch_sub(&t->refs, 1) != 1)
        return;
    uint64_t until_ns = sys->mono_ns() + SETTLE_NS;
    bool is_settled = true;
    for (size_t i = 0; i < t->n_senders; i++) {
        is_settled &= part_send_settle(t->senders[i], until_ns);
        part_send_free(t->senders[i]);
    }
    struct err e = {0};
    struct quit _cleanup_(quit_leave) tidy;
    quit_enter_tidy(&tidy);
    bool is_gone = t->completed || !t->origin_id[0] ||
                   upstream_upload_abort(t->upstream, t->put.key, slice_str(t->origin_id), &e) == 0;
    if (!is_gone)
        log_warn("object", "%s/" SLICE_FMT ": parts of a write that was given up are left behind: %s",
                 t->upstream->bucket->name, SLICE_ARG(t->put.key), e.text);
    if (t->origin_id[0])
        origin_note_upload_end(t->upstream->origin, slice_str(t->origin_id), is_gone && is_settled);
    (void)atomic_fetch_sub(&t->service->writers, 1);
    upstream_unref(t->upstream);
    arena_free(t->strings);
    arena_free(t->etags);
    cond_fini(&t->moved);
    lock_fini(&t->lock);
    t->magic = 0;
    free(t);
}

static struct through *through_new(struct object_service *s, struct upstream *u,
                                   const struct wire_put_open_req *q)
{
    struct through *t = calloc(1, sizeof(*t));
    assert(t);
    t->magic = MAGIC;
    atomic_init(&t->refs, 1);
    t->service = s;
    t->upstream = upstream_ref(u);
    t->strings = arena_new(STRINGS_ARENA);
    t->etags = arena_new(ETAGS_ARENA);
    t->size = q->size;
    t->part_bytes = MAX(PART_BUFFER_MAX, ALIGN_UP((q->size + PARTS_MAX - 1) / PARTS_MAX, MIB));
    t->via = q->via;
    t->put = (struct origin_put){
        .key = arena_dup(t->strings, q->key),
        .content_type = arena_dup(t->strings, q->content_type),
        .meta = arena_dup(t->strings, meta_without(q->meta, META_DIGESTS, t->strings)),
        .if_match = arena_dup(t->strings, q->if_match),
        .if_none_match = q->if_none_match != 0,
    };
    lock_init(&t->lock, LOCK_OBJECT);
    cond_init(&t->moved);
    (void)atomic_fetch_add(&s->writers, 1);
    return t;
}

int through_open(struct object_session *ses, struct upstream *u, const struct wire_put_open_req *q,
                 struct wire_put_open_rep *rep, struct err *e)
{
    if (q->size > STORE_SIZE_MAX_BYTES)
        return err_set(e, -EFBIG, "an object of %" PRIu64 " bytes", q->size);
    struct through *t = through_new(ses->service, u, q);
    bool sums = false; /* it asks for none */
    int r = upstream_upload_create(u, &t->put, t->origin_id, &sums, e);
    if (r < 0)
        t->origin_id[0] = '\0';
    else
        origin_note_upload(u->origin, t->put.key, slice_str(t->origin_id));
    if (r == 0)
        r = session_put(ses, HANDLE_THROUGH, t, &rep->handle);
    if (r < 0) {
        through_unref(t);
        return r == -EMFILE ? session_no_room(r, e) : r;
    }
    rep->fd = -1;
    return 0;
}

/* ---- parts ---- */

/* Waits for the oldest part. */
static int end_oldest(struct through *t, struct err *e)
{
    struct slice etag;
    int r = part_send_end(t->senders[0], &etag, e);
    if (r < 0)
        return r;
    t->parts[t->n_parts] = (struct origin_part){.number = t->n_parts + 1, .etag = arena_dup(t->etags, etag)};
    t->n_parts++;
    part_send_free(t->senders[0]);
    memmove(t->senders, t->senders + 1, --t->n_senders * sizeof(t->senders[0]));
    return 0;
}

static int begin_part(struct through *t, struct err *e)
{
    uint64_t n = MIN(t->part_bytes, t->size - t->written);
    const struct part_plan plan = {
        .key = t->put.key, .origin_id = slice_str(t->origin_id), .number = t->n_begun + 1, .size = n};
    int r = t->n_senders == SENDERS_MAX ? end_oldest(t, e) : 0;
    while (r == 0) { /* one that waits for memory must not hold what it waits for */
        uint64_t wait_ms = t->n_senders > 0 ? 0 : PART_WAIT_MS;
        r = part_send_new(t->service, t->upstream, &plan, wait_ms, &t->senders[t->n_senders], e);
        if (r != ERR_ORIGIN_BUSY || t->n_senders == 0)
            break;
        r = end_oldest(t, e);
    }
    if (r < 0)
        return r;
    t->n_senders++;
    t->n_begun++;
    t->left = n;
    return 0;
}

static int put_write(struct through *t, const struct wire_put_write_req *q, struct err *e)
{
    struct slice data = q->data;
    if (q->offset != t->written)
        return err_set(e, -EINVAL, "write at %" PRIu64 " out of order", q->offset);
    if (data.n > t->size - t->written)
        return err_set(e, -EFBIG, "write beyond the announced size of %" PRIu64 " bytes", t->size);
    while (data.n > 0) {
        int r = t->left == 0 ? begin_part(t, e) : 0;
        if (r < 0)
            return r;
        size_t n = (size_t)MIN(t->left, (uint64_t)data.n);
        struct part_send *last = t->senders[t->n_senders - 1];
        r = part_send_write(last, slice_sub(data, 0, n), e);
        if (r < 0)
            return r;
        data = slice_from(data, n);
        t->written += n;
        t->left -= n;
        if (t->left == 0)
            part_send_finish(last);
    }
    return 0;
}

/* ---- commit ---- */

static int complete(struct through *t, struct arena *a, struct wire_attr *ret, struct err *e)
{
    struct object_service *s = t->service;
    _cleanup_(arena_freep) struct arena *own = arena_new(ETAGS_ARENA);
    struct origin_attr answer;
    struct object_change change;
    uint64_t confirmed_ns = sys->real_ns();
    object_change_begin(s, &change, t->upstream->bucket, t->put.key);
    int r = upstream_upload_complete(t->upstream, &t->put, slice_str(t->origin_id), t->parts, t->n_parts,
                                     t->size, own, &answer, e);
    object_change_end(s, &change);
    if (r < 0)
        return r;
    t->completed = true;
    metrics_add(
        metrics_series(METRIC_WRITTEN_BYTES, t->upstream->bucket->name, object_via_name(t->via), NULL),
        t->size);
    struct attr attr = attr_of_origin(&answer, /* has_meta= */ true, confirmed_ns);
    attr.size_bytes = t->size;
    if (attr.mtime_ns == 0)
        attr.mtime_ns = confirmed_ns;
    attr_to_wire(&attr, a, ret);
    return 0;
}

static int commit(struct through *t, const struct wire_put_commit_req *q, struct arena *a,
                  struct wire_attr *ret, struct err *e)
{
    int r = 0;
    if (q->size != t->size || t->written != t->size)
        return err_set(e, ERR_PROTOCOL,
                       "commit of %" PRIu64 " bytes, %" PRIu64 " of %" PRIu64 " were written", q->size,
                       t->written, t->size);
    if (q->flags & WIRE_KEEP)
        return err_set(e, -EINVAL, "what is written through cannot be written on");
    while (t->n_senders > 0 && r == 0)
        r = end_oldest(t, e);
    return r == 0 ? complete(t, a, ret, e) : r;
}

/* ---- operations ---- */

static uint64_t handle_of(uint32_t op, const void *req)
{
    switch (op) {
    case WIRE_OP_PUT_WRITE:
        return ((const struct wire_put_write_req *)req)->handle;
    case WIRE_OP_PUT_COMMIT:
        return ((const struct wire_put_commit_req *)req)->handle;
    case WIRE_OP_PUT_ABORT:
        return ((const struct wire_put_abort_req *)req)->handle;
    default:
        return 0;
    }
}

bool through_is_its(struct subject *s, uint32_t op, const void *req)
{
    uint64_t handle = handle_of(op, req);
    return handle != 0 && subject_kind(s, handle) == HANDLE_THROUGH;
}

static bool enter(struct through *t)
{
    LOCK_SCOPE(&t->lock);
    while (t->busy)
        cond_wait(&t->moved, &t->lock);
    t->busy = !t->ended;
    return t->busy;
}

static void leave(struct through *t)
{
    LOCK_SCOPE(&t->lock);
    t->busy = false;
    t->ended = t->completed;
    cond_broadcast(&t->moved);
}

int through_call(struct object_session *ses, uint32_t op, const void *req, struct arena *a, void *rep,
                 struct err *e)
{
    uint64_t handle = handle_of(op, req);
    if (op == WIRE_OP_PUT_COMMIT)
        *(struct wire_put_commit_rep *)rep = (struct wire_put_commit_rep){.fd = -1};
    else if (op == WIRE_OP_PUT_WRITE)
        *(struct wire_put_write_rep *)rep = (struct wire_put_write_rep){.fd = -1};
    if (op == WIRE_OP_PUT_ABORT) {
        *(struct wire_put_abort_rep *)rep = (struct wire_put_abort_rep){.fd = -1};
        through_unref(session_take(ses, HANDLE_THROUGH, handle));
        return 0;
    }
    struct through *t = session_get(ses, HANDLE_THROUGH, handle, e);
    if (!t)
        return -EBADF;
    int r = -EBADF;
    if (!enter(t)) {
        (void)err_set(e, r, "handle is not open");
    } else {
        r = op == WIRE_OP_PUT_WRITE ? put_write(t, req, e)
                                    : commit(t, req, a, &((struct wire_put_commit_rep *)rep)->attr, e);
        leave(t);
    }
    if (r == -ENOENT) /* the upload is gone from the origin, or was completed unheard: a new PUT may do */
        r = ERR_ORIGIN_FAILED;
    if (r < 0)
        r = err_prefix(e, r, "%s/" SLICE_FMT, t->upstream->bucket->name, SLICE_ARG(t->put.key));
    if (r == 0 && op == WIRE_OP_PUT_COMMIT)
        through_unref(session_take(ses, HANDLE_THROUGH, handle));
    through_unref(t);
    return r;
}
