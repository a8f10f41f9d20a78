/*
 * Files of scratch buckets that are in use or not settled: finding them, being busy with them, and what is
 * true of their inodes now (contract in scratch_node.h).
 *
 * Invariants:
 *  1. An sfile exists as long as somebody has it, its inode has a writing record, or nobody was told of a
 * fault yet.
 *  2. sfile->hard is the extent that the inode's location names, whenever nobody is busy.
 */
#include "object/scratch_node.h"

#include "base/hash.h"
#include "base/log.h"
#include "base/sys.h"

#define FIND_TRIES  100
#define CACHE_SHARE 16 /* one part in so many of the memory budget, for records of names */

/* ---- sfiles ---- */

static struct sfile **chain_of(struct snode *n, uint64_t bucket, uint64_t ino)
{
    return &n->chains[hash_mix(bucket, ino) % SNODE_CHAINS];
}

static struct sfile *find_locked(struct snode *n, uint64_t bucket, uint64_t ino)
{
    struct sfile *f = *chain_of(n, bucket, ino);
    while (f && (f->bucket != bucket || f->ino != ino))
        f = f->next;
    return f;
}

struct sfile *sfile_peek(struct snode *n, uint64_t bucket, uint64_t ino)
{
    LOCK_SCOPE(&n->lock);
    struct sfile *f = find_locked(n, bucket, ino);
    if (f)
        f->users++;
    return f;
}

struct sfile *sfile_get(struct snode *n, uint64_t bucket, uint64_t ino)
{
    LOCK_SCOPE(&n->lock);
    struct sfile *f = find_locked(n, bucket, ino);
    if (!f) {
        f = calloc(1, sizeof(*f));
        assert(f);
        f->bucket = bucket;
        f->ino = ino;
        struct sfile **chain = chain_of(n, bucket, ino);
        f->next = *chain;
        *chain = f;
    }
    f->users++;
    return f;
}

void sfile_put(struct snode *n, struct sfile *f)
{
    struct hard *h = NULL;
    lock_take(&n->lock);
    assert(f->users > 0);
    f->users--;
    if (f->users == 0 && !f->unsettled && !f->queued && !f->fault_untold) {
        struct sfile **at = chain_of(n, f->bucket, f->ino);
        while (*at != f)
            at = &(*at)->next;
        *at = f->next;
        h = sfile_take_hard_locked(n, f);
        free(f);
    }
    lock_drop(&n->lock);
    hard_unref(h);
}

void sfile_enter(struct snode *n, struct sfile *f)
{
    LOCK_SCOPE(&n->lock);
    while (f->busy)
        cond_wait(&n->idle, &n->lock);
    f->busy = true;
}

bool sfile_try_enter(struct snode *n, struct sfile *f)
{
    LOCK_SCOPE(&n->lock);
    bool was_busy = f->busy;
    f->busy = true;
    return !was_busy;
}

void sfile_leave(struct snode *n, struct sfile *f)
{
    LOCK_SCOPE(&n->lock);
    assert(f->busy);
    f->busy = false;
    cond_broadcast(&n->idle);
}

struct hard *sfile_take_hard_locked(struct snode *n, struct sfile *f)
{
    lock_assert_held(&n->lock);
    n->n_kept -= f->kept;
    f->kept = false;
    return TAKE_PTR(f->hard);
}

void sfile_set_unsettled_locked(struct snode *n, struct sfile *f, bool unsettled)
{
    lock_assert_held(&n->lock);
    n->n_unsettled += unsettled;
    n->n_unsettled -= f->unsettled;
    f->unsettled = unsettled;
}

void sfile_set_untold_locked(struct snode *n, struct sfile *f, bool untold)
{
    lock_assert_held(&n->lock);
    untold = untold && !f->gone && (f->fault_untold || n->n_untold < SNODE_UNTOLD_MAX);
    n->n_untold += untold;
    n->n_untold -= f->fault_untold;
    f->fault_untold = untold;
}

void sfile_note_fault(struct snode *n, struct sfile *f, int r)
{
    LOCK_SCOPE(&n->lock);
    f->faults++;
    f->fault_code = r;
    sfile_set_untold_locked(n, f, true);
}

/* An extent that was given back may be another inode's by now: the location counts only when it is still the
 * inode's while the extent is referenced. */
int snode_find_hard(struct snode *n, uint64_t bucket, struct arena *a, struct scratch_inode *x,
                    struct hard **ret, struct err *e)
{
    for (int i = 0; x->location.n > 0 && i < FIND_TRIES; i++) {
        _cleanup_(hard_unrefp) struct hard *h = NULL;
        struct scratch_inode now;
        int r = hard_find(n->store, x->location, &h, e);
        if (r < 0 && r != -ENOENT)
            return r;
        int again = scratch_getattr(n->names, bucket, x->ino, a, &now, e);
        if (again < 0)
            return again;
        if (slice_eq(now.location, x->location)) {
            *ret = TAKE_PTR(h);
            return r;
        }
        *x = now;
    }
    *ret = NULL;
    return x->location.n > 0 ? err_set(e, -EBUSY, "the file's place on disk changes too fast") : 0;
}

/* ---- what is true of an inode now ---- */

int64_t snode_ns(struct timespec t)
{
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Whether the file was written to, or its size set, since the record was made. */
static bool is_other(const struct scratch_inode *x, const struct stat *st)
{
    return x->size_bytes != (uint64_t)st->st_size || x->mtime_ns != snode_ns(st->st_mtim);
}

/* When it was changed last. The time of what was written is the file's; one that lies ahead was set, which
 * the record says when. */
static int64_t changed_ns(const struct scratch_inode *x, int64_t mtime_ns)
{
    bool was_set = mtime_ns > (int64_t)sys->real_ns();
    return was_set ? x->ctime_ns : MAX(x->ctime_ns, mtime_ns);
}

static struct hard *known_hard(struct snode *n, struct sfile *f)
{
    LOCK_SCOPE(&n->lock);
    return f->hard ? hard_ref(f->hard) : NULL;
}

void snode_fresh(struct snode *n, uint64_t bucket, struct arena *a, struct scratch_inode *x)
{
    if (!S_ISREG(x->mode) || x->location.n == 0)
        return;
    struct sfile *f = sfile_peek(n, bucket, x->ino);
    if (!f)
        return;
    lock_take(&n->lock);
    bool unsettled = f->unsettled;
    lock_drop(&n->lock);
    _cleanup_(hard_unrefp) struct hard *h = unsettled ? known_hard(n, f) : NULL;
    struct stat st;
    if (unsettled && !h && snode_find_hard(n, bucket, a, x, &h, NULL) < 0)
        h = NULL;
    if (h && hard_stat(h, &st) == 0) {
        if (is_other(x, &st)) {
            x->etag = SLICE_NULL;
            x->ctime_ns = changed_ns(x, snode_ns(st.st_mtim));
        }
        x->size_bytes = (uint64_t)st.st_size;
        x->allocated_bytes = (uint64_t)st.st_blocks * 512;
        x->mtime_ns = snode_ns(st.st_mtim);
    }
    sfile_put(n, f);
}

int snode_record(struct snode *n, const struct scratch_call *call, uint64_t ino, const struct stat *st,
                 struct arena *a, struct scratch_inode *ret, struct err *e)
{
    struct scratch_inode x;
    uint64_t allocated = (uint64_t)st->st_blocks * 512;
    int r = scratch_getattr(n->names, call->bucket, ino, a, &x, e);
    if (r < 0)
        return r;
    struct scratch_set set = {.what = SCRATCH_SET_ALLOCATED | SCRATCH_SET_CTIME,
                              .size_bytes = (uint64_t)st->st_size,
                              .allocated_bytes = allocated,
                              .mtime_ns = snode_ns(st->st_mtim),
                              .ctime_ns = x.ctime_ns};
    if (is_other(&x, st)) {
        set.what |= SCRATCH_SET_SIZE | SCRATCH_SET_MTIME;
        set.ctime_ns = changed_ns(&x, set.mtime_ns);
    } else if (x.allocated_bytes == allocated) {
        if (ret)
            *ret = x;
        return call->commit == KV_DURABLE ? scratch_sync(n->names, e) : 0;
    }
    struct scratch_call quiet = *call; /* a step of what was asked: its answer is not noted */
    quiet.request = 0;
    r = scratch_setattr(n->names, &quiet, ino, &set, a, &x, e);
    if (r == 0 && ret)
        *ret = x;
    return r;
}

/* ---- extents that nobody names ---- */

void snode_drop_extent(struct hard *h, int r)
{
    switch (r) {
    case -EEXIST:
    case -ENOENT:
    case -ENOTDIR:
    case -EISDIR:
    case -EACCES:
    case -EPERM:
    case -EINVAL:
    case -ENAMETOOLONG:
    case -EMLINK:
        hard_give_back(h);
        break;
    default:
        hard_unref(h);
    }
}

/* ---- buckets ---- */

int snode_bucket(struct object_service *s, struct slice name, struct bucket **ret, struct err *e)
{
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    int r = bucket_find(s->buckets, name, &b, e);
    if (r < 0)
        return r;
    if (!bucket_is_scratch(b))
        return err_set(e, -EINVAL, "bucket %s has an origin: it is no scratch bucket", b->name);
    if (bucket_is_memory(b))
        return err_set(e, ERR_NOT_IMPLEMENTED,
                       "bucket %s keeps its values in memory (values=memory): it has no files", b->name);
    *ret = TAKE_PTR(b);
    return 0;
}

struct scratch_cred snode_owner(const struct bucket *b)
{
    return (struct scratch_cred){.uid = b->owner_uid, .gid = b->owner_gid};
}

/* ---- gauges ---- */

static void show_bucket(struct snode *n, const struct bucket *b)
{
    struct scratch_counts c;
    if (!bucket_is_scratch(b) || scratch_statfs(n->names, b->id, &c, NULL) < 0)
        return;
    metrics_set(metrics_series(METRIC_SCRATCH_INODES, b->name, NULL, NULL), c.inodes);
    metrics_set(metrics_series(METRIC_SCRATCH_BYTES, b->name, NULL, NULL), c.bytes);
    metrics_set(metrics_series(METRIC_SCRATCH_RESERVED_BYTES, b->name, NULL, NULL),
                (int64_t)MIN(ledger_reserved(n->ledger, b->id), (uint64_t)INT64_MAX));
}

void snode_refresh_metrics(struct snode *n)
{
    lock_take(&n->lock);
    int64_t unsettled = (int64_t)n->n_unsettled, freeing = (int64_t)n->n_freed;
    lock_drop(&n->lock);
    metrics_set(metrics_series(METRIC_SCRATCH_UNSETTLED, NULL, NULL, NULL), unsettled);
    metrics_set(metrics_series(METRIC_SCRATCH_FREEING, NULL, NULL, NULL), freeing);
    for (struct bucket *b = NULL; (b = bucket_next(n->service->buckets, b));)
        show_bucket(n, b);
}

/* ---- life ---- */

static int start_threads(struct snode *n, struct err *e)
{
    int r = pthread_create(&n->settler, NULL, snode_settler_main, n);
    if (r == 0) {
        r = pthread_create(&n->freer, NULL, snode_freer_main, n);
        if (r != 0) {
            lock_take(&n->lock);
            n->stopping = true;
            cond_broadcast(&n->work);
            lock_drop(&n->lock);
            (void)pthread_join(n->settler, NULL);
        }
    }
    n->runs = r == 0;
    return r == 0 ? 0 : err_errno(e, -r, "make a thread");
}

int snode_open(struct object_service *s, struct snode **ret, struct err *e)
{
    struct snode *n = calloc(1, sizeof(*n));
    assert(n);
    n->magic = SNODE_MAGIC;
    n->service = s;
    n->store = s->config.store;
    lock_init(&n->lock, LOCK_OBJECT);
    cond_init(&n->idle);
    cond_init(&n->work);
    cond_init(&n->free_work);
    n->queue_end = &n->queue;
    n->freed_end = &n->freed;
    n->locks = slocks_new();
    n->ledger = ledger_new();
    n->mounts = smounts_new();
    int r = scratch_open(s->config.control, budget_total(s->config.budget) / CACHE_SHARE, &n->names, e);
    if (r == 0)
        r = snode_reconcile(n, e);
    if (r == 0)
        r = start_threads(n, e);
    if (r < 0) {
        snode_close(n);
        return err_prefix(e, r, "scratch buckets");
    }
    *ret = n;
    return 0;
}

static void stop_threads(struct snode *n)
{
    lock_take(&n->lock);
    n->stopping = true;
    cond_broadcast(&n->work);
    cond_broadcast(&n->free_work);
    cond_broadcast(&n->idle);
    lock_drop(&n->lock);
    slocks_stop(n->locks);
    if (n->runs) {
        (void)pthread_join(n->settler, NULL);
        (void)pthread_join(n->freer, NULL);
    }
}

void snode_close(struct snode *n)
{
    if (!n)
        return;
    assert(n->magic == SNODE_MAGIC);
    stop_threads(n);
    stree_end_lingering(n, /* bucket= */ 0, UINT64_MAX);
    for (size_t i = 0; i < SNODE_CHAINS; i++)
        while (n->chains[i]) {
            struct sfile *f = n->chains[i];
            assert(f->users == 0);
            n->chains[i] = f->next;
            hard_unref(f->hard);
            free(f);
        }
    while (n->freed) { /* the next start finds them */
        struct sfreed *x = n->freed;
        n->freed = x->next;
        hard_unref(x->hard);
        free(x);
    }
    slocks_free(n->locks);
    ledger_free(n->ledger);
    smounts_free(n->mounts);
    scratch_close(n->names);
    cond_fini(&n->idle);
    cond_fini(&n->work);
    cond_fini(&n->free_work);
    lock_fini(&n->lock);
    n->magic = 0;
    free(n);
}
