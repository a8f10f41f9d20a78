/*
 * Writing objects of scratch buckets: put open, write, commit, abort.
 *
 * Bytes go to a fresh extent that nobody names; the commit makes them durable and then names them, in one
 * durable transaction that also checks the conditions: an object is there whole and acknowledged, or not at
 * all. The ETag is what the commit brings; else the MD5 of the bytes when they were written in order, as S3
 * clients expect; else, and in buckets with etag=opaque, one made of inode, size and time.
 *
 * Invariants:
 *  1. One operation at a time runs on a writer (busy), and none after its last commit (ended).
 *  2. The extent goes back to the pool unless it may have been named: a commit whose end is unknown looks.
 *  3. Bytes that the disk did not take once are never committed: the kernel tells that a single time, and
 * another sync would give 0.
 *  4. The extent of an upload that is open (upload_here.h) is not given back: a record names it.
 */
#include "object/back.h"
#include "object/scratch_object_ops.h"
#include "object/upload_here.h"

#include "base/md5.h"
#include "base/sys.h"
#include "base/text.h"
#include "origin/meta.h"

#include <fcntl.h>
#include <inttypes.h>

#define SWRITER_MAGIC 0x73777269u
#define WRITER_ARENA  (32 * KIB) /* strings of the request, whose sizes are checked */
#define ROOM_BLOCK    4096ull    /* room is counted in whole blocks */

struct swriter {
    uint32_t magic;
    _Atomic uint32_t refs;
    struct object_service *service;
    struct snode *node;
    struct bucket *bucket;
    struct hard *hard; /* NULL once it is named */
    struct arena *arena;
    struct slice key;
    struct scratch_put put; /* strings and conditions of the request */
    struct scratch_set set; /* WIRE_MODES: what the metadata said of mode, owner and time */
    bool is_link;           /* and that the bytes are a link's target */
    uint64_t size;          /* announced, or UINT64_MAX */
    uint32_t via, flags;
    int fd;    /* of a staged one: O_RDWR; else -1 */
    int fault; /* what the first sync that failed gave; busy */

    struct upload_here here; /* the upload that the extent is of; UPLOAD_KEEP */
    struct id128 joined;     /* busy: the upload that the commit completes */
    bool has_joined;

    struct ledger_claim claim; /* busy: room for the whole extent, in a bucket with a quota */
    uint64_t pending;          /* busy: of those, what PUT_ROOM has granted and is not written */

    struct lock lock; /* covers busy and ended */
    struct cond moved;
    bool busy, ended;
    /* the operation that runs: */
    uint64_t written; /* bytes written in order from 0 on */
    bool ordered;     /* nothing else was written */
    bool hashes;      /* not a staged one, nor where nobody wants it */
    struct md5 md5;   /* of those, when it hashes */
};

/* ---- life ---- */

void swriter_ref(struct swriter *w)
{
    assert(w->magic == SWRITER_MAGIC);
    (void)atomic_fetch_add(&w->refs, 1);
}

void swriter_unref(struct swriter *w)
{
    if (!w)
        return;
    assert(w->magic == SWRITER_MAGIC);
    if (atomic_fetch_sub(&w->refs, 1) != 1)
        return;
    if (w->fd >= 0)
        (void)close(w->fd);
    bool stays = upload_here_leave(w->service, &w->here);
    if (w->hard) {
        hard_end_writing(w->hard);
        if (stays)
            hard_unref(w->hard);
        else
            hard_give_back(w->hard);
    }
    ledger_end(w->node->ledger, &w->claim);
    (void)atomic_fetch_sub(&w->service->writers, 1);
    bucket_unref(w->bucket);
    arena_free(w->arena);
    cond_fini(&w->moved);
    lock_fini(&w->lock);
    w->magic = 0;
    free(w);
}

static struct swriter *swriter_new(struct scratch_op *o, const struct wire_put_open_req *q)
{
    struct swriter *w = calloc(1, sizeof(*w));
    assert(w);
    w->magic = SWRITER_MAGIC;
    atomic_init(&w->refs, 1);
    w->service = o->session->service;
    w->node = o->node;
    w->bucket = bucket_ref(o->bucket);
    w->arena = arena_new(WRITER_ARENA);
    w->key = arena_dup(w->arena, q->key);
    w->put = (struct scratch_put){.content_type = arena_dup(w->arena, q->content_type),
                                  .meta = arena_dup(w->arena, q->meta),
                                  .if_match = arena_dup(w->arena, q->if_match),
                                  .if_none_match = q->if_none_match != 0,
                                  .if_none_etag = arena_dup(w->arena, q->if_none_etag),
                                  .fail_if_clash = q->flags & WIRE_POSIX};
    if (q->flags & WIRE_MODES) {
        bool is_dir = slice_ends(q->key, SLICE_LIT("/"));
        w->is_link = smodes_take(w->put.meta, is_dir, w->arena, &w->put.meta, &w->set);
        w->put.fail_if_clash |= w->is_link;
        w->put.set = &w->set;
    }
    w->size = q->size;
    w->via = q->via;
    w->flags = q->flags;
    w->fd = -1;
    w->ordered = true;
    w->hashes = !(q->flags & (WIRE_STAGED | WIRE_ETAG)) && w->bucket->p.etag == BUCKET_ETAG_MD5;
    md5_init(&w->md5);
    lock_init(&w->lock, LOCK_OBJECT);
    cond_init(&w->moved);
    (void)atomic_fetch_add(&w->service->writers, 1);
    return w;
}

/* The right to run an operation on the writer; false once it has ended. */
static bool enter(struct swriter *w)
{
    LOCK_SCOPE(&w->lock);
    while (w->busy)
        cond_wait(&w->moved, &w->lock);
    w->busy = !w->ended;
    return w->busy;
}

static void leave(struct swriter *w, bool ended)
{
    LOCK_SCOPE(&w->lock);
    w->busy = false;
    w->ended = w->ended || ended;
    cond_broadcast(&w->moved);
}

static struct swriter *get(struct object_session *ses, uint64_t handle, struct err *e)
{
    struct swriter *w = session_get(ses, HANDLE_SWRITE, handle, e);
    if (w && !enter(w)) {
        (void)err_set(e, -EBADF, "handle is not open");
        swriter_unref(w);
        return NULL;
    }
    return w;
}

/* ---- quota ---- */

/* The extent may have so many bytes on disk. */
static int cover(struct swriter *w, uint64_t bytes, struct err *e)
{
    if (bytes <= w->claim.bytes || sroom_quota(w->service, w->bucket) == 0)
        return 0;
    return sroom_take(w->node, w->bucket, &w->claim, bytes - w->claim.bytes,
                      w->size == UINT64_MAX ? LEDGER_PIECE_BYTES : 0, e);
}

static int on_disk(struct hard *h, uint64_t *ret, struct err *e)
{
    struct stat st;
    int r = hard_stat(h, &st);
    if (r < 0)
        return err_errno(e, r, "state of the file");
    *ret = (uint64_t)st.st_blocks * 512;
    return 0;
}

static int put_room(struct swriter *w, const struct wire_put_room_req *q, struct err *e)
{
    uint64_t there = 0;
    w->pending -= MIN(w->pending, ALIGN_UP(MIN(q->back, (uint64_t)STORE_SIZE_MAX_BYTES), ROOM_BLOCK));
    int r = on_disk(w->hard, &there, e);
    uint64_t needs = there + w->pending + ALIGN_UP(q->least, ROOM_BLOCK);
    if (r == 0)
        r = cover(w, needs, e);
    if (r < 0)
        return err_prefix(e, r, "bucket %s", w->bucket->name);
    w->pending += ALIGN_UP(q->least, ROOM_BLOCK);
    if (w->claim.bytes > needs) /* of a part that was given up */
        ledger_back(w->node->ledger, &w->claim, w->claim.bytes - needs);
    return 0;
}

int op_scratch_put_room(struct object_session *ses, const struct wire_put_room_req *req, struct arena *a,
                        struct wire_put_room_rep *rep, struct err *e)
{
    (void)a, (void)rep;
    if (req->least > STORE_SIZE_MAX_BYTES)
        return err_set(e, -EFBIG, "room for %" PRIu64 " bytes", req->least);
    struct swriter *w = get(ses, req->handle, e);
    if (!w)
        return -EBADF;
    int r = put_room(w, req, e);
    leave(w, /* ended= */ false);
    swriter_unref(w);
    return r;
}

/* ---- PUT_OPEN ---- */

static int check_put(const struct wire_put_open_req *q, struct err *e)
{
    int r = object_check_key(q->key, e);
    if (r < 0)
        return r;
    if (q->meta.n > SCRATCH_META_MAX || q->content_type.n > SCRATCH_CONTENT_MAX ||
        q->if_match.n > SCRATCH_ETAG_MAX || q->if_none_etag.n > SCRATCH_ETAG_MAX)
        return err_set(e, -E2BIG, "metadata of the object is %zu bytes, at most %d are allowed", q->meta.n,
                       (int)SCRATCH_META_MAX);
    if (q->size != UINT64_MAX && q->size > STORE_SIZE_MAX_BYTES)
        return err_set(e, -EFBIG, "an object of %" PRIu64 " bytes", q->size);
    return 0;
}

static int take_extent(struct swriter *w, struct err *e)
{
    struct hard *h = NULL;
    int r = hard_take(w->node->store, &h, e);
    if (r < 0)
        return r;
    r = hard_begin_writing(h, e);
    if (r < 0) {
        hard_give_back(h);
        return r;
    }
    w->hard = h;
    if (!(w->flags & WIRE_STAGED))
        return 0;
    w->fd = hard_open_fd(h, O_RDWR);
    return w->fd < 0 ? err_errno(e, w->fd, "open the file for writing") : 0;
}

int op_scratch_put_open(struct scratch_op *o, const struct wire_put_open_req *req, struct arena *a,
                        struct wire_put_open_rep *rep, struct err *e)
{
    (void)a;
    int r = check_put(req, e);
    if (r < 0)
        return r;
    struct swriter *w = swriter_new(o, req);
    if (w->size != UINT64_MAX)
        r = cover(w, ALIGN_UP(w->size, ROOM_BLOCK), e);
    if (r == 0)
        r = take_extent(w, e);
    if (r == 0)
        r = session_put(o->session, HANDLE_SWRITE, w, &rep->handle);
    if (r < 0) {
        swriter_unref(w);
        return r == -EMFILE ? session_no_room(r, e) : r;
    }
    rep->fd = w->fd;
    return 0;
}

/* ---- uploads ---- */

static int keep_upload(struct swriter *w, struct slice tag, struct id128 *ret_id, struct err *e)
{
    if (w->fd < 0 || w->has_joined || upload_here_is_open(w->service, &w->here))
        return err_set(e, -EINVAL, "an upload is made of a file that is written through a descriptor, once");
    struct upload_record u = {
        .key = w->key, .content_type = w->put.content_type, .meta = w->put.meta, .tag = tag};
    int r = upload_here_begin(w->service, &w->here, w->bucket->id, w->hard, &u, e);
    *ret_id = u.id;
    return r;
}

static int join_upload(struct swriter *w, struct slice id, struct arena *a, struct err *e)
{
    struct upload_record u = {0};
    int r = upload_here_find(w->service, w->bucket, w->key, id, a, &u, e);
    w->joined = u.id;
    w->has_joined = r == 0;
    return r;
}

int op_scratch_upload_keep(struct object_session *ses, const struct wire_upload_keep_req *req,
                           struct arena *a, struct wire_upload_keep_rep *rep, struct err *e)
{
    char text[ID_TEXT_SIZE];
    struct id128 id = {0};
    struct swriter *w = get(ses, req->handle, e);
    if (!w)
        return -EBADF;
    int r = req->id.n > 0 ? join_upload(w, req->id, a, e) : keep_upload(w, req->tag, &id, e);
    leave(w, /* ended= */ false);
    swriter_unref(w);
    id_text(id, text);
    if (r == 0)
        rep->id = req->id.n > 0 ? req->id : slice_str(arena_str(a, slice_str(text)));
    return r;
}

/* Not busy: parts share their syncs, and a part is told of when the handle's commit cannot have begun. */
int op_scratch_upload_keep_part(struct object_session *ses, const struct wire_upload_keep_part_req *req,
                                struct arena *a, struct wire_upload_keep_part_rep *rep, struct err *e)
{
    (void)a, (void)rep;
    struct swriter *w = session_get(ses, HANDLE_SWRITE, req->handle, e);
    if (!w)
        return -EBADF;
    int r = upload_here_keep_part(w->service, &w->here, w->hard, req, e);
    swriter_unref(w);
    return r;
}

/* What is on disk already counts in the quota, also where that is less by now. */
static int resume(struct swriter *w, const struct upload_record *u, struct err *e)
{
    struct hard *h = NULL;
    uint64_t bytes = 0;
    int r = hard_find(w->node->store, u->location, &h, e);
    if (r < 0)
        return r;
    r = hard_begin_writing(h, e);
    if (r < 0) {
        hard_unref(h);
        return r;
    }
    w->hard = h;
    w->fd = hard_open_fd(h, O_RDWR);
    if (w->fd < 0)
        return err_errno(e, w->fd, "open the file of an upload for writing");
    if (sroom_quota(w->service, w->bucket) > 0 && on_disk(h, &bytes, NULL) == 0)
        sroom_note(w->node, w->bucket->id, &w->claim, bytes);
    return 0;
}

int op_scratch_upload_resume(struct scratch_op *o, const struct wire_upload_resume_req *req, struct arena *a,
                             struct wire_upload_resume_rep *rep, struct err *e)
{
    struct object_service *s = o->session->service;
    struct upload_record u;
    int r = upload_here_find(s, o->bucket, req->key, req->id, a, &u, e);
    if (r < 0)
        return r;
    const struct wire_put_open_req q = {.bucket = req->bucket,
                                        .key = u.key,
                                        .size = UINT64_MAX,
                                        .content_type = u.content_type,
                                        .meta = u.meta,
                                        .via = WIRE_VIA_S3,
                                        .flags = WIRE_STAGED};
    struct swriter *w = swriter_new(o, &q);
    r = upload_here_adopt(s, &w->here, o->bucket->id, u.id, e);
    if (r == 0)
        r = resume(w, &u, e);
    if (r == 0)
        r = session_put(o->session, HANDLE_SWRITE, w, &rep->handle);
    if (r < 0) {
        swriter_unref(w);
        return r;
    }
    rep->fd = w->fd;
    return 0;
}

/* ---- PUT_WRITE ---- */

static int put_write(struct swriter *w, const struct wire_put_write_req *q, struct err *e)
{
    uint64_t max = w->size == UINT64_MAX ? STORE_SIZE_MAX_BYTES : w->size;
    if (q->offset > max || q->data.n > max - q->offset)
        return err_set(e, -EFBIG, "write beyond %" PRIu64 " bytes", max);
    if (q->data.n == 0)
        return 0;
    int r = w->size == UINT64_MAX ? cover(w, ALIGN_UP(q->offset + q->data.n, ROOM_BLOCK), e) : 0;
    if (r < 0)
        return err_prefix(e, r, "bucket %s", w->bucket->name);
    uint64_t until_ms = sys_mono_ms() + w->bucket->p.retry_time;
    do /* other buckets' writes may be on their way to their origins, and take the room until then */
        r = hard_write(w->hard, q->data.p, q->data.n, q->offset, e);
    while (r == -ENOSPC && back_wait_freed(w->service->back, until_ms));
    if (r < 0)
        return r == -ENOSPC ? back_no_room(w->service->back, q->data.n, e) : r;
    if (q->offset != w->written)
        w->ordered = false;
    if (!w->ordered || !w->hashes)
        return 0;
    md5_update(&w->md5, q->data.p, q->data.n);
    w->written += q->data.n;
    return 0;
}

int op_scratch_put_write(struct object_session *ses, const struct wire_put_write_req *req, struct arena *a,
                         struct wire_put_write_rep *rep, struct err *e)
{
    (void)a, (void)rep;
    struct swriter *w = get(ses, req->handle, e);
    if (!w)
        return -EBADF;
    int r = put_write(w, req, e);
    leave(w, /* ended= */ false);
    swriter_unref(w);
    return r;
}

/* ---- PUT_COMMIT ---- */

static int check_commit(struct swriter *w, const struct wire_put_commit_req *q, struct stat *st,
                        struct err *e)
{
    if (w->size != UINT64_MAX && q->size != w->size)
        return err_set(e, ERR_PROTOCOL, "commit of %" PRIu64 " bytes, %" PRIu64 " were announced", q->size,
                       w->size);
    if (q->size > STORE_SIZE_MAX_BYTES)
        return err_set(e, -EFBIG, "commit of %" PRIu64 " bytes", q->size);
    if (q->parts.n > SCRATCH_PARTS_MAX)
        return err_set(e, -E2BIG, "a list of parts of %zu bytes", q->parts.n);
    if (q->meta.n > SCRATCH_META_MAX)
        return err_set(e, -E2BIG, "metadata of the object is %zu bytes, at most %d are allowed", q->meta.n,
                       (int)SCRATCH_META_MAX);
    int r = hard_stat(w->hard, st);
    if (r < 0)
        return err_errno(e, r, "state of the file");
    if ((uint64_t)st->st_size < q->size)
        return err_set(e, ERR_PROTOCOL, "commit of %" PRIu64 " bytes, %" PRIu64 " were written", q->size,
                       (uint64_t)st->st_size);
    return 0;
}

/* The MD5 of the first `size` bytes as hex digits, when it is known. */
static struct slice etag_of(struct swriter *w, uint64_t size, struct arena *a)
{
    uint8_t digest[MD5_BYTES];
    if (!w->hashes || !w->ordered || w->written != size)
        return SLICE_NULL;
    struct md5 copy = w->md5; /* more may be written */
    md5_final(&copy, digest);
    char *text = arena_alloc(a, 2 * MD5_BYTES + 1);
    text_hex(digest, MD5_BYTES, text);
    return slice_of(text, 2 * MD5_BYTES);
}

/* Also what was written to its descriptor, and the copy where one is named. */
static int cover_commit(struct swriter *w, const struct wire_put_commit_req *q, const struct stat *st,
                        struct err *e)
{
    uint64_t copy = q->flags & WIRE_KEEP ? ALIGN_UP(q->size, ROOM_BLOCK) : 0;
    int r = cover(w, (uint64_t)st->st_blocks * 512 + copy, e);
    return r < 0 ? err_prefix(e, r, "bucket %s", w->bucket->name) : 0;
}

/* What is committed now: the writer's extent itself, or a copy of it when more will be written. */
static int extent_to_name(struct swriter *w, const struct wire_put_commit_req *q, struct hard **ret,
                          struct err *e)
{
    struct hard *h = NULL;
    struct stat st;
    int fault = w->fault < 0 ? w->fault : upload_here_fault(w->service, &w->here);
    if (fault < 0)
        return err_errno(e, fault, "an earlier commit failed, or the file of the upload");
    int r = check_commit(w, q, &st, e);
    if (r < 0)
        return r;
    r = cover_commit(w, q, &st, e);
    if (r < 0)
        return r;
    if (q->flags & WIRE_KEEP) {
        r = q->size > 0 ? scopy_extent(w->node, w->hard, q->size, &h, e) : 0;
    } else if (q->size > 0) {
        r = (uint64_t)st.st_size > q->size ? hard_truncate(w->hard, q->size, e) : 0;
        h = hard_ref(w->hard);
    }
    if (r == 0 && h && w->set.what & SCRATCH_SET_MTIME)
        r = hard_set_mtime(h, w->set.mtime_ns, e);
    /* Times too, which a sync after the first may leave behind: an inode that has another one than its file
     * after power loss has not the ETag of its bytes. */
    if (r == 0 && h)
        r = hard_sync_times(h, e);
    if (r < 0 && h && h == w->hard)
        w->fault = r;
    if (r < 0) {
        hard_unref(h); /* a copy that nobody names goes at the next start */
        return r;
    }
    *ret = h;
    return 0;
}

static int fill_put(struct swriter *w, struct hard *h, uint64_t size, uint8_t *location,
                    struct scratch_put *p, struct err *e)
{
    struct stat st;
    p->size_bytes = size;
    bool is_dir_key = slice_ends(w->key, SLICE_LIT("/")) && size == 0;
    if (!is_dir_key) {
        int r = scratch_reserve(w->node->names, w->bucket->id, w->key, &p->ino, e);
        if (r < 0)
            return r;
    }
    if (!h)
        return 0;
    int r = hard_stat(h, &st);
    if (r < 0)
        return err_errno(e, r, "state of the file");
    hard_location(h, location);
    p->location = slice_of(location, HARD_LOCATION_BYTES);
    p->allocated_bytes = (uint64_t)st.st_blocks * 512;
    p->mtime_ns = snode_ns(st.st_mtim);
    return 0;
}

/* The bytes are a link's target. Nobody names the extent: it goes back to the pool with the writer. */
static int commit_link(struct swriter *w, const struct wire_put_commit_req *q, struct arena *a,
                       struct scratch_inode *ret, struct err *e)
{
    struct scratch_cred cred = snode_owner(w->bucket);
    struct scratch_call call = {.bucket = w->bucket->id, .commit = KV_DURABLE, .cred = &cred};
    struct scratch_orphans orphans = {0};
    struct scratch_put p = w->put;
    struct stat st;
    char target[SCRATCH_TARGET_MAX];
    int r = check_commit(w, q, &st, e);
    if (r == 0 && (q->size == 0 || q->size > sizeof(target)))
        r = err_set(e, -ENAMETOOLONG, "%" PRIu64 " bytes are no target of a link", q->size);
    if (r < 0)
        return r;
    ssize_t n = sys->pread(hard_fd(w->hard), target, q->size, 0);
    if (n < 0 || (uint64_t)n != q->size)
        return err_errno(e, n < 0 ? (int)n : -EIO, "read the target back");
    p.target = slice_of(target, q->size);
    p.size_bytes = q->size;
    r = scratch_reserve(w->node->names, w->bucket->id, w->key, &p.ino, e);
    if (r == 0)
        r = scratch_put(w->node->names, &call, w->key, &p, a, ret, &orphans, e);
    snode_free_unnamed(w->node, &orphans);
    return r;
}

/* The upload that becomes the object, when there is one: as it is remembered from then on. */
static bool fill_upload(struct swriter *w, const struct wire_put_commit_req *q, const struct scratch_put *p,
                        struct upload_record *ret)
{
    bool is_own = upload_here_is_open(w->service, &w->here);
    *ret = (struct upload_record){.id = is_own ? w->here.id : w->joined,
                                  .completed = true,
                                  .at_ns = p->now_ns,
                                  .key = w->key,
                                  .content_type = p->content_type,
                                  .meta = p->meta,
                                  .tag = q->checksum,
                                  .etag = p->etag};
    return is_own || w->has_joined;
}

/* Names the extent. *ret_named: the object has it, or may have it; also after a failure. */
static int name_extent(struct swriter *w, struct hard *h, const struct wire_put_commit_req *q,
                       struct arena *a, struct scratch_inode *ret, bool *ret_named, struct err *e)
{
    struct snode *n = w->node;
    struct scratch_cred cred = snode_owner(w->bucket);
    struct scratch_call call = {.bucket = w->bucket->id, .commit = KV_DURABLE, .cred = &cred};
    struct scratch_orphans orphans = {0};
    uint8_t location[HARD_LOCATION_BYTES];
    struct scratch_put p = w->put;
    struct upload_record done;
    *ret_named = false;
    p.ttl_ms = w->bucket->p.object_ttl;
    p.now_ns = sys->real_ns();
    p.etag = q->etag.n > 0 ? q->etag : etag_of(w, q->size, a);
    p.meta =
        meta_with(q->flags & WIRE_META ? q->meta : p.meta, META_CHECKSUM, q->checksum, SCRATCH_META_MAX, a);
    int r = fill_put(w, h, q->size, location, &p, e);
    if (r == 0 && (p.if_match.n > 0 || p.if_none_etag.n > 0 || p.if_none_match))
        r = sobject_record(n, call.bucket, w->key, a, e);
    if (r < 0)
        return r;
    if (p.ino != 0 && p.etag.n > 0)
        p.parts = q->parts;
    if (fill_upload(w, q, &p, &done))
        p.upload = &done;
    r = scratch_put(n->names, &call, w->key, &p, a, ret, &orphans, e);
    snode_free_unnamed(n, &orphans);
    if (r == 0 && p.upload)
        upload_here_ended(w->service, w->bucket->id, done.id);
    struct scratch_inode x;
    if (r < 0 && h && p.ino != 0) {
        int look = scratch_getattr(n->names, call.bucket, p.ino, a, &x, NULL);
        *ret_named = look != -ENOENT;
    }
    if (r == 0 || *ret_named) {
        *ret_named = true;
        if (h)
            snode_put_done(n, call.bucket, p.ino, h);
    }
    return r;
}

static int commit(struct swriter *w, const struct wire_put_commit_req *q, struct arena *a,
                  struct wire_attr *ret, bool *ret_ended, struct err *e)
{
    struct hard *h = NULL;
    struct scratch_inode x;
    bool keep = q->flags & WIRE_KEEP, named = false;
    int r = w->is_link ? commit_link(w, q, a, &x, e) : extent_to_name(w, q, &h, e);
    if (r == 0 && !w->is_link)
        r = name_extent(w, h, q, a, &x, &named, e);
    *ret_ended = !keep && (r == 0 || (named && h));
    if (keep && h && !named)
        hard_give_back(h);
    else
        hard_unref(h);
    if (keep && named)
        ledger_back(w->node->ledger, &w->claim, ALIGN_UP(q->size, ROOM_BLOCK)); /* the copy is counted */
    if (*ret_ended && h) { /* the extent is the object's now */
        hard_end_writing(w->hard);
        hard_unref(TAKE_PTR(w->hard));
    }
    if (r < 0)
        return r;
    metrics_add(metrics_series(METRIC_WRITTEN_BYTES, w->bucket->name, object_via_name(w->via), NULL),
                q->size);
    sobject_attr(w->node, w->bucket->id, &x, /* posix= */ false, a, ret);
    return 0;
}

int op_scratch_put_commit(struct object_session *ses, const struct wire_put_commit_req *req, struct arena *a,
                          struct wire_put_commit_rep *rep, struct err *e)
{
    struct swriter *w = get(ses, req->handle, e);
    if (!w)
        return -EBADF;
    bool ended = false;
    int r = commit(w, req, a, &rep->attr, &ended, e);
    leave(w, ended);
    watch_tree_changed(ses, w->bucket->id);
    if (r < 0)
        r = err_prefix(e, r, "%s/" SLICE_FMT, w->bucket->name, SLICE_ARG(w->key));
    /* A commit that failed keeps the handle: the caller may try again or aborts. */
    if (r == 0 && ended)
        swriter_unref(session_take(ses, HANDLE_SWRITE, req->handle));
    swriter_unref(w);
    return r;
}

int op_scratch_put_abort(struct object_session *ses, const struct wire_put_abort_req *req, struct arena *a,
                         struct wire_put_abort_rep *rep, struct err *e)
{
    (void)a, (void)rep;
    struct swriter *w = session_take(ses, HANDLE_SWRITE, req->handle);
    if (!w)
        return err_set(e, -EBADF, "handle is not open");
    swriter_unref(w);
    return 0;
}
