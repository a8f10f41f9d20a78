/*
 * Writing through: bytes go to a staged extent on a disk of this node and to the origin; acknowledged when
 * the origin has them.
 *
 * Two ways: *streaming* (size known, bytes put in order): a thread uploads from the staged file while it
 * grows. *At commit*: all other writes are uploaded whole when they are committed.
 *
 * With write=back what the node is sent goes to a hard extent instead, which becomes the record's (back.h):
 * on the disk once, and synced once. Its MD5, which is the ETag, is computed while it is written, or comes
 * with the commit.
 *
 * The parts of an upload that the origin cannot take as such are written to a hard extent as well, through a
 * descriptor (WIRE_LASTING, upload_here.h): it outlives the node. What it becomes at the origin is cached by
 * another name of that file.
 *
 * Invariants:
 *  1. The origin never gets the last byte of a streamed body before commit: what was not committed never
 * becomes an object, whatever happens to the writer.
 *  2. After an upload whose end is unknown nothing cached of the key is served without asking the origin.
 *  3. The staged extent is published, and the new attributes remembered, only after the origin has
 * acknowledged; from then on no open can find what was there before. Neither is done when another change of
 * the key overlapped (mirror_generation): which of the two the origin has is then asked.
 *  4. One operation at a time runs on a writer (busy), and none after its last commit (ended).
 *  5. A hard extent that a record may name is neither written to nor given back, whether that is a record of
 * write-back or of an upload that is open.
 *  6. Of a file that the disk did not take nothing is committed any more, nor kept: the kernel tells that
 * once, another sync would give 0, and its pages may be as they were before (fault).
 */
#include "object/back.h"
#include "object/object_internal.h"
#include "object/stranded.h"
#include "object/writer_internal.h"

#include "base/hasher.h"
#include "base/often.h"
#include "base/sys.h"
#include "base/text.h"
#include "base/thread.h"
#include "origin/meta.h"
#include "store/hard.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>

#define STREAM_MIN_BYTES (4 * MIB)  /* smaller bodies are uploaded at commit: not worth a thread */
#define WRITER_ARENA     (32 * KIB) /* strings of the request, whose sizes are checked */
#define ANSWER_ARENA     (64 * KIB)
#define STREAMS_MAX      256 /* writers with a thread of their own; the others upload at commit */
#define DIGEST_MAX_BYTES 128
#define FILE_MIN_BYTES   (8 * MIB) /* of a staged file that is kept as it is: smaller ones get their MD5 */
#define UPLOAD_TRIES     3         /* of a file that is changed while it is uploaded */
#define TICK_NS          10000000u /* most by which the kernel's file times lag */
#define WAIT_NS          1000000000ull
#define AHEAD_MAX        (256 * MIB) /* of a hard extent, that has its room from the beginning */
#define BESIDE_MIN_BYTES (256 * KIB) /* whose MD5 is worth another thread */
#define KEEP_COUNTS      3           /* of what buckets keep, for which a write waits that finds no room */
#define STACK_BYTES      (512 * KIB)
#define ENTRY_KEY_MAX    (ORIGIN_KEY_MAX_BYTES + 8)

/* Of the file that has the bytes; -1: there are none yet. */
static int file_of(const struct writer *w)
{
    return w->hard ? hard_fd(w->hard) : w->extent ? extent_fd(w->extent) : -1;
}

/* ---- upload ---- */

/* Bytes that may leave now. */
static uint64_t limit_locked(const struct writer *w)
{
    if (w->final)
        return w->body_size;
    return w->written < w->body_size ? w->written : w->body_size - 1;
}

static ssize_t body_read(void *arg, void *p, size_t n, uint64_t offset)
{
    struct writer *w = arg;
    lock_take(&w->lock);
    while (limit_locked(w) <= offset && !atomic_load(&w->cancel))
        (void)cond_wait_for(&w->moved, &w->lock, WAIT_NS);
    uint64_t limit = limit_locked(w);
    lock_drop(&w->lock);
    if (atomic_load(&w->cancel))
        return -ECANCELED;
    n = MIN(n, limit - offset);
    int r = sys_pread_all(file_of(w), p, n, offset);
    return r < 0 ? r : (ssize_t)n;
}

static int upload(struct writer *w, const struct origin_put *put, uint64_t size, struct err *e)
{
    struct origin_body body = {.size_bytes = size, .read = body_read, .arg = w};
    if (w->file.hard || (w->staged && size >= FILE_MIN_BYTES))
        body.file = &w->file;
    return w->streaming ? upstream_put_slowly(w->upstream, put, &body, w->answer_arena, &w->answer, e)
                        : upstream_put(w->upstream, put, &body, w->answer_arena, &w->answer, e);
}

static void *uploader_main(void *arg)
{
    struct writer *w = arg;
    struct err e = {0};
    struct quit own = {.life_ms = &w->life_ms};
    (void)quit_use(w->quit);
    quit_enter(&own);
    int r = upload(w, &w->put, w->size, &e);
    quit_leave(&own);
    LOCK_SCOPE(&w->lock);
    w->done = true;
    w->result = r;
    w->err = e;
    cond_broadcast(&w->moved);
    return NULL;
}

static int no_bytes(void *arg, const struct origin_attr *attr, const void *p, size_t n)
{
    (void)arg, (void)attr, (void)p, (void)n;
    return 0;
}

/* An origin whose calls cannot be given up is asked something first: while it hangs that takes this thread,
 * which is counted for it (base/quit.h), and not the uploader, which would be waited for. -ECANCELED. */
static int expect_life(struct writer *w, struct err *e)
{
    struct upstream *u = w->upstream;
    const struct origin_get g = {.key = w->put.key, .attributes_only = true, .whole = true};
    struct origin_attr attr;
    struct err why = {0};
    if (!u->origin->ops->is_deaf)
        return 0;
    const _Atomic uint64_t *watched = quit_watch(&u->places->life_ms);
    int r = origin_get(u->origin, &g, w->answer_arena, &attr, no_bytes, NULL, &why);
    (void)quit_watch(watched);
    arena_clear(w->answer_arena);
    upstream_heard(u, r);
    return r == -ECANCELED ? err_set(e, r, "%s", why.text) : 0;
}

static int start_uploader(struct writer *w)
{
    w->body_size = w->size;
    int r = thread_start(&w->uploader, STACK_BYTES, uploader_main, w);
    w->started = r == 0;
    w->confirmed_ns = sys->real_ns();
    return r;
}

/* Who may not wait any longer gives the upload up. */
static void wait_uploader(struct writer *w)
{
    const _Atomic uint64_t *watched = quit_watch(&w->upstream->places->life_ms);
    LOCK_SCOPE(&w->lock);
    while (!w->done) {
        (void)cond_wait_for(&w->moved, &w->lock, (uint64_t)QUIT_LOOK_MS * 1000000);
        quit_lives_at(atomic_load(&w->life_ms));
        if (quit_is_now() && !w->done)
            atomic_store(&w->cancel, true);
    }
    (void)quit_watch(watched);
}

static void join_uploader(struct writer *w)
{
    if (w->started && !w->joined) {
        w->joined = true;
        (void)pthread_join(w->uploader, NULL);
    }
}

/* ---- life ---- */

void writer_ref(struct writer *w)
{
    assert(w->magic == WRITER_MAGIC);
    (void)atomic_fetch_add(&w->refs, 1);
}

static void writer_stop(struct writer *w)
{
    lock_take(&w->lock);
    atomic_store(&w->cancel, true);
    cond_broadcast(&w->moved);
    lock_drop(&w->lock);
    join_uploader(w);
}

void writer_end_writing(struct writer *w)
{
    if (w->is_writing)
        hard_end_writing(w->hard);
    w->is_writing = false;
}

static void let_go(struct writer *w)
{
    bool stays = upload_here_leave(w->service, &w->here);
    if (w->fd >= 0)
        (void)close(w->fd);
    writer_end_writing(w);
    if (w->is_named || stays)
        hard_unref(w->hard);
    else if (w->hard)
        hard_give_back(w->hard);
}

void writer_unref(struct writer *w)
{
    if (!w)
        return;
    assert(w->magic == WRITER_MAGIC);
    if (atomic_fetch_sub(&w->refs, 1) != 1)
        return;
    writer_stop(w);
    (void)atomic_fetch_sub(&w->service->writers, 1);
    if (w->streaming)
        (void)atomic_fetch_sub(&w->service->streams, 1);
    if (w->extent)
        extent_leave(w->extent);
    extent_unref(w->extent);
    let_go(w);
    hasher_stream_fini(&w->md5);
    upstream_unref(w->upstream);
    free(w->meta);
    arena_free(w->arena);
    arena_free(w->answer_arena);
    cond_fini(&w->moved);
    lock_fini(&w->lock);
    w->magic = 0;
    free(w);
}

/* What is known of a body before it is sent goes with the request that carries it. */
static void take_digests(struct origin_put *p, struct slice meta, struct arena *a)
{
    struct slice md5 = meta_get(meta, META_DIGESTS), sha256 = slice_split(&md5, ' ');
    bool has_sha256 = sha256.n > 0 && !slice_eq_str(sha256, "-"),
         has_md5 = md5.n > 0 && !slice_eq_str(md5, "-");
    p->payload_sha256 = has_sha256 ? arena_dup(a, sha256) : SLICE_NULL;
    p->content_md5 = has_md5 ? arena_dup(a, md5) : SLICE_NULL;
    p->whole = has_sha256 || has_md5;
}

struct writer *writer_new(struct object_service *s, struct upstream *u, bool is_here,
                          const struct wire_put_open_req *q)
{
    struct writer *w = calloc(1, sizeof(*w));
    assert(w);
    w->magic = WRITER_MAGIC;
    atomic_init(&w->refs, 1);
    w->service = s;
    w->upstream = upstream_ref(u);
    w->arena = arena_new(WRITER_ARENA);
    w->answer_arena = arena_new(ANSWER_ARENA);
    w->size = q->size;
    w->quit = quit_lasting();
    w->via = q->via;
    w->staged = q->flags & WIRE_STAGED;
    w->fd = -1;
    w->is_hard = w->staged ? q->flags & WIRE_LASTING : u->bucket->p.write == BUCKET_WRITE_BACK;
    w->brings_md5 = w->is_hard && !w->staged && is_here && q->flags & WIRE_ETAG;
    w->hashes = w->is_hard && !w->staged && !w->brings_md5;
    hasher_stream_init(&w->md5, w->hashes && w->size >= BESIDE_MIN_BYTES ? s->hasher : NULL);
    w->put = (struct origin_put){
        .key = arena_dup(w->arena, q->key),
        .content_type = arena_dup(w->arena, q->content_type),
        .meta = arena_dup(w->arena, meta_without(q->meta, META_DIGESTS, w->arena)),
        .if_match = arena_dup(w->arena, q->if_match),
        .if_none_match = q->if_none_match != 0,
        .cancel = &w->cancel,
    };
    take_digests(&w->put, q->meta, w->arena);
    lock_init(&w->lock, LOCK_OBJECT);
    cond_init(&w->moved);
    (void)atomic_fetch_add(&s->writers, 1);
    return w;
}

static bool take_turn(struct writer *w)
{
    LOCK_SCOPE(&w->lock);
    while (w->busy)
        cond_wait(&w->moved, &w->lock);
    w->busy = !w->ended;
    return w->busy;
}

struct writer *writer_enter(struct object_session *ses, uint64_t handle, struct err *e)
{
    struct writer *w = session_get(ses, HANDLE_WRITE, handle, e);
    if (!w || take_turn(w))
        return w;
    (void)err_set(e, -EBADF, "%s/" SLICE_FMT ": handle is not open", w->upstream->bucket->name,
                  SLICE_ARG(w->put.key));
    writer_unref(w);
    return NULL;
}

void writer_leave(struct writer *w, bool ended)
{
    LOCK_SCOPE(&w->lock);
    w->busy = false;
    w->ended = ended;
    cond_broadcast(&w->moved);
}

/* ---- PUT_OPEN ---- */

static int check_put(const struct wire_put_open_req *q, struct err *e)
{
    int r = object_check_key(q->key, e);
    if (r < 0)
        return r;
    r = object_check_meta(q->meta, e);
    if (r < 0)
        return r;
    if (q->content_type.n > 1024 || q->if_match.n > ORIGIN_ETAG_MAX + 8)
        return err_set(e, -E2BIG, "a content type of %zu bytes, or a condition of %zu", q->content_type.n,
                       q->if_match.n);
    return 0;
}

/* Until then (monotonic) a write waits for room on a disk, while others that take some get to their origins.
 */
static uint64_t room_until_ms(const struct writer *w)
{
    return sys_mono_ms() + w->upstream->bucket->p.retry_time;
}

/* A hard extent that may be written to. */
static int begin_writing(struct writer *w, struct err *e)
{
    int r = w->is_named ? err_set(e, -EBADF, "it was committed, perhaps") : 0;
    if (r == 0 && !w->hard)
        r = hard_take(w->service->config.store, &w->hard, e);
    if (r == 0 && !w->is_writing)
        r = hard_begin_writing(w->hard, e);
    w->is_writing |= r == 0;
    return r;
}

int writer_begin_staged(struct writer *w, struct err *e)
{
    int r = begin_writing(w, e);
    if (r == 0)
        w->fd = hard_open_fd(w->hard, O_RDWR);
    return r == 0 && w->fd < 0 ? err_errno(e, w->fd, "open the file for writing") : r;
}

/* A file for the bytes, with room for those that are announced. ERR_NOT_ADMITTED: there is none now. */
static int begin_file(struct writer *w, uint64_t hint, struct err *e)
{
    if (w->is_hard && w->staged)
        return writer_begin_staged(w, e);
    if (w->is_hard) {
        int r = hint > 0 ? begin_writing(w, e) : 0;
        return r == 0 && hint > 0 ? hard_reserve(w->hard, MIN(hint, (uint64_t)AHEAD_MAX)) : r;
    }
    _cleanup_buf_ struct buf key = BUF_INIT(ENTRY_KEY_MAX);
    object_store_key(w->upstream->bucket, w->put.key, &key);
    int r = store_stage(w->service->config.store, buf_view(&key), hint, &w->extent, e);
    if (r == 0)
        (void)extent_use(
            w->extent); /* also once it is published; a staged one is in use, so that it has one */
    return r;
}

static int stage(struct writer *w, struct err *e)
{
    struct back *back = w->service->back;
    uint64_t hint = w->size == UINT64_MAX ? 0 : w->size, until_ms = room_until_ms(w);
    int r, counts = 0;
    bool yields = w->upstream->bucket->p.write == BUCKET_WRITE_BACK, again = true, waits = false;
    for (;; again = waits && (back_wait_freed(back, until_ms) ||
                              (counts++ < KEEP_COUNTS && keep_wait_counted(w->service)))) {
        r = again && yields && back_is_hungry(back) ? ERR_NOT_ADMITTED : begin_file(w, hint, e);
        if (r != ERR_NOT_ADMITTED || !again)
            break;
        waits = waits || back_begin_wait(back, w->via == WIRE_VIA_S3);
    }
    if (waits)
        back_end_wait(back);
    return r == ERR_NOT_ADMITTED ? back_no_room(back, hint, e) : r;
}

int op_put_open(struct object_session *ses, const struct wire_put_open_req *req, struct arena *a,
                struct wire_put_open_rep *rep, struct err *e)
{
    (void)a;
    int r = check_put(req, e);
    if (r < 0)
        return r;
    _cleanup_(upstream_unrefp) struct upstream *u = NULL;
    r = object_upstream(ses->service, req->bucket, &u, e);
    if (r < 0)
        return r;
    if (req->if_none_etag.n > 0)
        return err_set(e, ERR_NOT_IMPLEMENTED,
                       "If-None-Match of a PUT to a bucket with an origin can only be *");
    bool conditions = req->if_none_match || req->if_match.n > 0;
    bool through = through_is_wanted(ses->service, u, req); /* where nothing is checked at the commit */
    if (conditions && (through || req->via == WIRE_VIA_S3) &&
        !(u->origin->capabilities & ORIGIN_CAN_CONDITIONAL_PUT))
        return err_set(
            e, ERR_NOT_IMPLEMENTED,
            "the origin of bucket %s does not check conditions on PUT, so that If-None-Match and If-Match "
            "cannot be promised",
            u->bucket->name);
    if (through)
        return through_open(ses, u, req, rep, e);
    if (u->bucket->p.write == BUCKET_WRITE_BACK)
        r = back_wait_room(ses->service->back, u->bucket, req->size == UINT64_MAX ? 0 : req->size,
                           /* may_refuse= */ req->via == WIRE_VIA_S3, e);
    if (r < 0)
        return err_prefix(e, r, "%s/" SLICE_FMT, u->bucket->name, SLICE_ARG(req->key));
    struct writer *w = writer_new(ses->service, u, !ses->is_remote, req);
    r = stage(w, e);
    bool streams = !w->staged && !w->is_hard;
    if (r == 0 && streams && req->size != UINT64_MAX && req->size >= STREAM_MIN_BYTES) {
        w->streaming = atomic_fetch_add(&ses->service->streams, 1) < STREAMS_MAX;
        if (!w->streaming)
            (void)atomic_fetch_sub(&ses->service->streams, 1);
    }
    if (r == 0 && w->streaming)
        r = expect_life(w, e);
    if (r == 0 && w->streaming && start_uploader(w) < 0) { /* no thread to be had: uploaded at commit */
        w->streaming = false;
        (void)atomic_fetch_sub(&ses->service->streams, 1);
    }
    uint64_t handle;
    if (r == 0)
        r = session_put(ses, HANDLE_WRITE, w, &handle);
    if (r < 0) {
        writer_unref(w);
        return err_prefix(e, r, "%s/" SLICE_FMT, u->bucket->name, SLICE_ARG(req->key));
    }
    rep->handle = handle;
    rep->fd = w->fd >= 0 ? w->fd : w->staged ? extent_fd(w->extent) : -1;
    return 0;
}

/* ---- PUT_WRITE ---- */

static int write_staged(struct writer *w, const struct wire_put_write_req *q, struct err *e)
{
    uint64_t until_ms = room_until_ms(w);
    int r;
    do
        r = extent_write(w->extent, q->data.p, q->data.n, q->offset);
    while (r == ERR_NOT_ADMITTED && back_wait_freed(w->service->back, until_ms));
    if (r == ERR_NOT_ADMITTED)
        return back_no_room(w->service->back, q->data.n, e);
    return r < 0 ? err_errno(e, r, "write to the cache's disk") : 0;
}

/* Bytes that are put in order are hashed while they are written. */
static int write_hard(struct writer *w, const struct wire_put_write_req *q, bool ordered, struct err *e)
{
    int r = q->data.n > 0 ? begin_writing(w, e) : 0;
    if (r < 0 || q->data.n == 0)
        return r;
    w->hashes = w->hashes && ordered;
    if (w->hashes)
        hasher_stream_add(&w->md5, q->data.p, q->data.n);
    r = back_write(w->service->back, w->upstream->bucket, w->hard, q->data, q->offset, &w->cancel, e);
    if (w->hashes)
        hasher_stream_wait(&w->md5, q->data.p, q->data.n);
    w->hashes = w->hashes && r == 0;
    return r;
}

static int put_write(struct writer *w, const struct wire_put_write_req *q, struct err *e)
{
    if (q->offset > UINT64_MAX - q->data.n || (w->size != UINT64_MAX && q->offset + q->data.n > w->size))
        return err_set(e, -EFBIG, "write beyond the announced size of %" PRIu64 " bytes", w->size);
    lock_take(&w->lock);
    bool ordered = q->offset == w->written;
    int failed = w->result;
    if (failed < 0 && e)
        *e = w->err;
    lock_drop(&w->lock);
    if (failed < 0) /* no use in sending the rest */
        return failed;
    if (w->streaming && !ordered)
        return err_set(e, -EINVAL, "write at %" PRIu64 " out of order", q->offset);
    int r = w->is_hard ? write_hard(w, q, ordered, e) : write_staged(w, q, e);
    if (r < 0)
        return r;
    LOCK_SCOPE(&w->lock);
    if (ordered)
        w->written += q->data.n;
    w->uploaded = false;
    cond_broadcast(&w->moved);
    return 0;
}

int op_put_write(struct object_session *ses, const struct wire_put_write_req *req, struct arena *a,
                 struct wire_put_write_rep *rep, struct err *e)
{
    (void)a, (void)rep;
    struct writer *w = writer_enter(ses, req->handle, e);
    if (!w)
        return -EBADF;
    int r = put_write(w, req, e);
    writer_leave(w, /* ended= */ false);
    writer_unref(w);
    return r;
}

/* ---- PUT_COMMIT ---- */

/* Not by ctime, which also moves when the file gets or loses a name. Nobody sets the time of a staged file.
 */
static bool same_file_state(const struct stat *a, const struct stat *b)
{
    return a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* Conditions that neither the origin checks nor its kind looks at. Who asks for them through S3 counts on
 * them, and is refused when the write is opened; a mount's are checked here, just before: not atomic against
 * any other writer. */
static int check_put_conditions(struct writer *w, struct err *e)
{
    bool any = w->put.if_none_match || w->put.if_match.n > 0;
    if (!any || origin_heeds_conditions(w->upstream->origin))
        return 0;
    _cleanup_(arena_freep) struct arena *a = arena_new(WRITER_ARENA);
    struct attr now;
    int r = mirror_stat(w->service->mirror, w->upstream, w->put.key, /* posix= */ false, /* full= */ false,
                        /* fresh= */ true, a, &now, e);
    if (r < 0 && r != -ENOENT)
        return r;
    if (w->put.if_none_match && r == 0)
        return err_set(e, ERR_PRECONDITION, "the object exists already");
    if (w->put.if_match.n > 0 && (r < 0 || !slice_eq(now.etag, w->put.if_match)))
        return err_set(e, ERR_PRECONDITION, "the object is another one now");
    return 0;
}

/* The MD5 of the first `size` bytes, if it is known. */
static bool know_md5(struct writer *w, const struct wire_put_commit_req *q, uint8_t ret[MD5_BYTES])
{
    if (w->brings_md5)
        return q->etag.n == 2 * (size_t)MD5_BYTES && text_unhex(q->etag, ret, MD5_BYTES) == 0;
    bool knows = w->hashes && w->written == q->size;
    if (knows)
        hasher_stream_digest(&w->md5, ret);
    w->hashes = false; /* nothing can be added to it */
    return knows;
}

/* The first `size` bytes, and no others, are on the disk. */
static int finish_hard(struct writer *w, uint64_t size, struct err *e)
{
    struct stat st;
    int fault = w->fault < 0 ? w->fault : upload_here_fault(w->service, &w->here);
    if (fault < 0) /* the kernel tells it once, and another sync would give 0 */
        return err_errno(e, fault, "an earlier commit failed, or the file of the upload");
    int r = hard_stat(w->hard, &st);
    if (r < 0)
        return err_errno(e, r, "state of the file");
    if ((uint64_t)st.st_size > size) {
        r = begin_writing(w, e);
        r = r < 0 ? r : hard_truncate(w->hard, size, e);
    }
    if (r == 0)
        r = w->fault = hard_sync(w->hard, e);
    if (r == 0 && !w->staged) /* else more may be written after a failure; nobody does now */
        writer_end_writing(w);
    return r;
}

/* What the node was sent becomes the record's extent, unless the handle stays open for more. */
static int upload_hard(struct writer *w, const struct origin_put *put, const struct wire_put_commit_req *q,
                       struct err *e)
{
    struct upload_record done;
    w->file = (struct origin_file){0};
    if (!w->is_named && q->size > 0 && !(q->flags & WIRE_KEEP)) {
        int r = finish_hard(w, q->size, e);
        if (r < 0)
            return r;
        w->file.hard = w->hard;
        w->file.has_md5 = know_md5(w, q, w->file.md5);
        w->file.upload = writer_fill_upload(w, q, &done) ? &done : NULL;
    }
    int r = upload(w, put, q->size, e);
    w->is_named |= w->file.is_kept;
    w->file.upload = NULL;
    return r;
}

/* A file that is changed after it was kept as it is, and synced again, is copied: that is changed in place.
 */
static int upload_file(struct writer *w, const struct origin_put *put, const struct wire_put_commit_req *q,
                       struct err *e)
{
    bool may_change = q->flags & WIRE_KEEP;
    if (w->is_hard)
        return upload_hard(w, put, q, e);
    struct extent *x = w->was_live && may_change ? NULL : w->extent;
    w->file = (struct origin_file){.extent = x, .may_change = may_change};
    int r = upload(w, put, q->size, e);
    w->was_live |= w->file.is_kept && may_change;
    return r;
}

/* Sends the file as it is now; streamed bodies are nearly there already. */
static int send_body(struct writer *w, const struct wire_put_commit_req *q, struct err *e)
{
    uint64_t size = q->size;
    int r = check_put_conditions(w, e);
    if (r < 0)
        return r;
    lock_take(&w->lock);
    bool complete = !w->streaming || w->written == w->size;
    if (complete) {
        w->body_size = size;
        w->final = true;
        cond_broadcast(&w->moved);
    }
    lock_drop(&w->lock);
    if (!complete)
        return err_set(e, ERR_PROTOCOL, "commit before all of the announced %" PRIu64 " bytes were written",
                       w->size);
    if (!w->streaming) {
        struct origin_put put = w->put;
        put.payload_sha256 = q->sha256;
        put.content_md5 = q->md5;
        put.whole = q->sha256.n > 0 || q->md5.n > 0;
        if (!origin_heeds_conditions(w->upstream->origin)) { /* checked above */
            put.if_none_match = false;
            put.if_match = SLICE_NULL;
        }
        arena_clear(w->answer_arena);
        if (!(w->upstream->origin->capabilities & ORIGIN_CAN_META)) /* the record of write-back has it, too */
            put.meta =
                meta_with(put.meta, META_CHECKSUM, q->checksum, ORIGIN_META_MAX_BYTES, w->answer_arena);
        w->confirmed_ns = sys->real_ns();
        return upload_file(w, &put, q, e);
    }
    wait_uploader(w);
    join_uploader(w);
    if (w->result < 0 && e)
        *e = w->err;
    return w->result;
}

/* In the call's arena: a commit may be asked for again and again, and sends nothing then. */
static struct attr committed_attr(struct writer *w, const struct wire_put_commit_req *q, struct arena *a)
{
    struct attr attr = attr_of_origin(&w->answer, /* has_meta= */ true, w->confirmed_ns);
    attr.size_bytes = q->size;
    attr.content_type = w->put.content_type;
    attr.meta = meta_with(w->put.meta, META_CHECKSUM, q->checksum, ORIGIN_META_MAX_BYTES, a);
    if (attr.mtime_ns == 0)
        attr.mtime_ns = w->confirmed_ns;
    return attr;
}

/* What the origin did not say in its answer is asked; by then another may have written. */
static int complete_answer(struct writer *w, struct err *e)
{
    w->answer_is_own = w->answer.etag.n > 0 && w->answer.etag.n <= ORIGIN_ETAG_MAX;
    if (w->answer_is_own)
        return 0;
    arena_clear(w->answer_arena);
    return upstream_head(w->upstream, w->put.key, SLICE_NULL, w->answer_arena, &w->answer, e);
}

static uint64_t forget_key(struct writer *w)
{
    return object_forget_key(w->service, w->upstream->bucket, w->put.key);
}

static void remove_entry(struct writer *w)
{
    _cleanup_buf_ struct buf key = BUF_INIT(ENTRY_KEY_MAX);
    object_store_key(w->upstream->bucket, w->put.key, &key);
    (void)store_remove(w->service->config.store, buf_view(&key));
    object_note_forgetful(w->service);
}

/* The staged file becomes the cached copy. Not being able to is no failure of the write: the origin has it.
 */
static void publish(struct writer *w, const struct attr *attr)
{
    _cleanup_buf_ struct buf key = BUF_INIT(ENTRY_KEY_MAX), blob = BUF_INIT(ATTR_BLOB_MAX_BYTES);
    object_store_key(w->upstream->bucket, w->put.key, &key);
    struct store_new n = {.key = buf_view(&key), .size_bytes = attr->size_bytes};
    struct err local = {0};
    int r = object_encode_attr(w->service, w->upstream->bucket, w->put.key, attr, &blob);
    n.attr = buf_view(&blob);
    if (r == 0)
        r = store_publish(w->service->config.store, w->extent, &n, &local);
    if (r == 0)
        return;
    remove_entry(w);
    log_often("object", "%s/" SLICE_FMT ": written, but not kept in the cache: %s", w->upstream->bucket->name,
              SLICE_ARG(w->put.key), local.code ? local.text : err_text(r));
}

static int check_commit(const struct writer *w, const struct wire_put_commit_req *q, struct err *e)
{
    if (w->size != UINT64_MAX && q->size != w->size)
        return err_set(e, ERR_PROTOCOL, "commit of %" PRIu64 " bytes, %" PRIu64 " were announced", q->size,
                       w->size);
    if (q->size > STORE_SIZE_MAX_BYTES)
        return err_set(e, -EFBIG, "commit of %" PRIu64 " bytes", q->size);
    if (q->sha256.n > DIGEST_MAX_BYTES || q->md5.n > DIGEST_MAX_BYTES)
        return err_set(e, -EINVAL, "a digest of %zu bytes", MAX(q->sha256.n, q->md5.n));
    if (q->flags & WIRE_META && w->streaming)
        return err_set(e, ERR_PROTOCOL, "metadata of what went to the origin already");
    return q->flags & WIRE_META ? object_check_meta(q->meta, e) : 0;
}

/* What was uploaded with other metadata is uploaded again. */
static void take_meta(struct writer *w, struct slice meta)
{
    if (slice_eq(w->put.meta, meta))
        return;
    free(w->meta);
    w->meta = slice_dup(meta);
    w->put.meta = slice_of(w->meta, meta.n);
    w->uploaded = false;
}

/* Begins to carry the staged file to the disk, or, `whole`, waits until it is there. What is mapped is waited
 * for each time: that protects the pages, so that the next store into one moves the file's times. */
static int sync_staged(struct writer *w, bool whole, struct err *e)
{
    int fd = file_of(w);
    if (w->fault < 0)
        return err_errno(e, w->fault, "what was written earlier to the staged file");
    if (w->hard) {
        w->fault = upload_here_sync(w->service, &w->here, w->hard, NULL);
    } else if (whole || !w->is_unmapped) {
        w->fault = sys->fdatasync(fd);
    } else {
        w->fault = sys_take_fault(fd, /* waits= */ false);
        (void)sys->sync_file_range(fd, 0, /* n= */ 0, SYNC_FILE_RANGE_WRITE);
    }
    return w->fault < 0 ? err_errno(e, w->fault, "what was written to the staged file") : 0;
}

/* State of the staged file. What the caller writes after this through its descriptor shows as another state:
 * pages that it has mapped are written back, and the kernel's clock for files has ticked since the last
 * change. What it was writing meanwhile is there: a write moves the file's time when it begins, and its bytes
 * come after that, which nobody who reads the file waits for on ext4. */
static int file_state(struct writer *w, uint64_t size, bool whole, struct stat *ret, struct err *e)
{
    int r = w->staged ? sync_staged(w, whole, e) : 0, fd = file_of(w);
    *ret = (struct stat){0};
    if (r < 0)
        return r;
    if (fd >= 0)
        r = sys->fstat(fd, ret);
    if (r < 0)
        return err_errno(e, r, "state of the staged file");
    if ((uint64_t)ret->st_size < size)
        return err_set(e, ERR_PROTOCOL, "commit of %" PRIu64 " bytes, the staged file has %" PRIu64, size,
                       (uint64_t)ret->st_size);
    uint64_t changed_ns = (uint64_t)ret->st_mtim.tv_sec * 1000000000 + (uint64_t)ret->st_mtim.tv_nsec;
    uint64_t now_ns = sys->real_ns();
    if (w->staged && now_ns >= changed_ns && now_ns - changed_ns < TICK_NS)
        sys->sleep_ns(TICK_NS - (now_ns - changed_ns));
    if (w->staged) /* waits for the file's lock, and finds nothing behind its end */
        (void)sys->lseek(fd, INT64_MAX, SEEK_DATA);
    return 0;
}

/* One upload. w->uploaded says whether the file stayed as it was meanwhile. */
static int send_once(struct writer *w, const struct wire_put_commit_req *q, const struct stat *before,
                     struct err *e)
{
    w->uploaded = false;
    w->generation = forget_key(w); /* from here on the origin may have either */
    int r = send_body(w, q, e);
    if (r == 0)
        r = complete_answer(w, e);
    if (r < 0)
        return r;
    metrics_add(
        metrics_series(METRIC_WRITTEN_BYTES, w->upstream->bucket->name, object_via_name(w->via), NULL),
        q->size);
    struct stat after;
    r = file_state(w, /* size= */ 0, /* whole= */ true, &after, e); /* it may have been cut since */
    if (r < 0)
        return r;
    w->uploaded = same_file_state(before, &after);
    w->uploaded_stat = *before;
    return 0;
}

/* Asked for again, by whoever closes it later, the same bytes are not any newer. */
static void note_refused(struct writer *w, const struct stat *state)
{
    if (w->refused_ns == 0 || !same_file_state(state, &w->refused_stat))
        w->refused_ns = sys->real_ns();
    w->refused_stat = *state;
}

/* Disks that keep whole seconds do not tell a change from what was there right before it. */
static bool tells_changes(const struct stat *st)
{
    return st->st_mtim.tv_nsec != 0;
}

/* Uploads unless the origin has exactly this already. The origin gets nothing that the disk did not take;
 * what becomes a record of write-back is a copy on a disk, which is made while the file is on its way to its
 * own. */
static int send_file(struct writer *w, const struct wire_put_commit_req *q, struct err *e)
{
    bool whole = w->upstream->bucket->p.write != BUCKET_WRITE_BACK;
    for (int i = 0; i < UPLOAD_TRIES; i++) {
        struct stat now;
        int r = file_state(w, q->size, whole, &now, e);
        if (r < 0)
            return r;
        if (w->uploaded && tells_changes(&now) && same_file_state(&now, &w->uploaded_stat) &&
            w->body_size == q->size)
            return 0;
        r = send_once(w, q, &now, e);
        if (r < 0)
            note_refused(w, &now);
        /* What is written during a commit that keeps the handle belongs to the next one. */
        if (r < 0 || w->uploaded || (q->flags & WIRE_KEEP))
            return r;
    }
    return err_set(e, -EBUSY, "the file was written to while it went to the origin, %d times", UPLOAD_TRIES);
}

/* Makes what was sent what every later open finds, unless another change of the key overlapped. */
static void make_current(struct writer *w, bool keep, const struct attr *attr, struct object_change *change)
{
    struct object_service *s = w->service;
    struct opening opening = {.bucket = w->upstream->bucket, .key = w->put.key};
    object_opening_enter(s, &opening);
    bool current = w->answer_is_own && object_making_begin_own(s, &opening, w->generation, w->answer.etag);
    if (current) {
        object_change_end_known(s, change);
        w->generation = mirror_changed(s->mirror, opening.bucket, opening.key);
        /* Readers have it of write-back, and the cache when it was sent; so does who renamed it meanwhile the
         * file that was kept once. */
        if (!keep && (w->file.is_kept || w->was_live))
            remove_entry(w);
        else if (!keep && w->extent && bucket_keep(opening.bucket, opening.key) != RULE_KEEP_NEVER &&
                 quota_admit(s, opening.bucket, opening.key, attr->size_bytes))
            publish(w, attr);
        else
            remove_entry(w);
        mirror_learn(s->mirror, opening.bucket, opening.key, attr, w->generation);
        object_making_end(s, &opening);
        watch_changed(s, opening.bucket, opening.key);
    }
    object_opening_leave(s, &opening);
    if (!keep && w->file.is_kept && w->file.may_change)
        back_end_live(s->back, w->upstream->bucket, w->put.key, w->answer.etag);
    if (!current)
        object_change_end(s, change);
}

static int commit(struct writer *w, const struct wire_put_commit_req *q, struct arena *a,
                  struct wire_attr *ret, struct err *e)
{
    struct object_change change;
    int r = check_commit(w, q, e);
    w->is_unmapped = q->flags & WIRE_UNMAPPED;
    object_change_begin(w->service, &change, w->upstream->bucket, w->put.key);
    if (r == 0 && q->flags & WIRE_META)
        take_meta(w, q->meta);
    if (r == 0)
        r = send_file(w, q, e);
    if (r < 0) {
        object_change_end(w->service, &change); /* what was read meanwhile may be from before or after */
        return r;
    }
    writer_complete_upload(w, q);
    if (!(q->flags & WIRE_KEEP))
        writer_stage_upload(w, q->size);
    struct attr attr = committed_attr(w, q, a);
    make_current(w, q->flags & WIRE_KEEP, &attr, &change);
    attr_to_wire(&attr, a, ret);
    return 0;
}

int op_put_commit(struct object_session *ses, const struct wire_put_commit_req *req, struct arena *a,
                  struct wire_put_commit_rep *rep, struct err *e)
{
    bool keep = req->flags & WIRE_KEEP;
    struct writer *w = writer_enter(ses, req->handle, e);
    if (!w)
        return -EBADF;
    int r = commit(w, req, a, &rep->attr, e);
    writer_leave(w, /* ended= */ r == 0 && !keep);
    if (r < 0)
        r = err_prefix(e, r, "%s/" SLICE_FMT, w->upstream->bucket->name, SLICE_ARG(w->put.key));
    /* A commit that failed keeps the handle too: a staged writer may try again, a streamed one aborts. */
    if (r == 0 && !keep)
        writer_unref(session_take(ses, HANDLE_WRITE, req->handle));
    writer_unref(w);
    return r;
}

bool writer_may_repeat(struct object_session *ses, uint64_t handle)
{
    struct writer *w =
        session_kind(ses, handle) == HANDLE_WRITE ? session_get(ses, HANDLE_WRITE, handle, NULL) : NULL;
    bool may = w && !w->streaming && !w->put.if_none_match && w->put.if_match.n == 0;
    writer_unref(w);
    return may;
}

/* ---- STRAND ---- */

static ssize_t staged_read(void *arg, void *p, size_t n, uint64_t offset)
{
    const struct writer *w = arg;
    int r = sys_pread_all(extent_fd(w->extent), p, n, offset);
    return r < 0 ? r : (ssize_t)n;
}

static int strand(struct writer *w, const struct wire_strand_req *q, struct err *e)
{
    struct stat now;
    if (!w->staged || !w->extent || q->base.n > ORIGIN_ETAG_MAX)
        return err_set(e, -EINVAL, "only what is written through a descriptor can be kept");
    int r = object_check_meta(q->meta, e);
    if (r == 0)
        r = file_state(w, q->size, /* whole= */ true, &now, e);
    if (r < 0)
        return r;
    struct origin_body body = {.size_bytes = q->size, .read = staged_read, .arg = w};
    bool was_refused = w->refused_ns > 0 && same_file_state(&now, &w->refused_stat);
    uint64_t written_ns = (uint64_t)now.st_mtim.tv_sec * 1000000000u + (uint64_t)now.st_mtim.tv_nsec;
    struct stranded x = {.since_ns = was_refused ? w->refused_ns : MIN(sys->real_ns(), written_ns),
                         .base = q->base,
                         .meta = q->meta,
                         .error = slice_sub(q->error, 0, MIN(q->error.n, (size_t)STRANDED_ERROR_MAX_BYTES))};
    return stranded_keep(w->service, w->upstream->bucket, w->put.key, &x, &body, e);
}

int op_strand(struct object_session *ses, const struct wire_strand_req *req, struct arena *a,
              struct wire_strand_rep *rep, struct err *e)
{
    (void)a, (void)rep;
    struct writer *w = writer_enter(ses, req->handle, e);
    if (!w)
        return -EBADF;
    int r = strand(w, req, e);
    writer_leave(w, /* ended= */ false);
    if (r < 0)
        r = err_prefix(e, r, "%s/" SLICE_FMT, w->upstream->bucket->name, SLICE_ARG(w->put.key));
    writer_unref(w);
    return r;
}

int op_put_abort(struct object_session *ses, const struct wire_put_abort_req *req, struct arena *a,
                 struct wire_put_abort_rep *rep, struct err *e)
{
    (void)a, (void)rep;
    struct writer *w = session_take(ses, HANDLE_WRITE, req->handle);
    if (!w)
        return err_set(e, -EBADF, "handle is not open");
    writer_unref(w);
    return 0;
}
