/*
 * Settling: makes inodes and disks agree for good about files that nobody writes any more.
 *
 * Order, for a batch of inodes without writers:
 *  1. Each file is measured (hard_measure): it fails with -EAGAIN while anybody has it open for writing, also
 *     a mount that this node knows nothing of; then it is tried again later, ever more seldom.
 *  2. Busy with all of them: who was opened for writing meanwhile is left out. Inodes get what was measured.
 *  3. The control store is made durable; then the extents are sealed (hard_settle).
 *  4. Their writing records go, in one transaction that need not be durable: a record that comes back after
 *     power loss is settled again.
 *
 * Failure modes: what cannot be settled stays unsettled, which is right but for a look at the disk at each
 * look at the inode. Bytes that the disk did not take when they were synced here are told by the next fsync.
 */
#include "object/scratch_node.h"

#include "base/log.h"
#include "base/sys.h"

#define DELAY_MS       500 /* after the last close: who writes a file often opens it again soon */
#define TICK_MS        100
#define RETRY_MS       1000
#define RETRY_MAX_MS   60000
#define SETTLE_ARENA   (16 * MIB)
#define NEVER_MS       UINT64_MAX
#define LATER_ROUND_MS 500

struct item {
    struct sfile *file;
    struct hard *hard;
    struct stat stat;
    uint64_t generation;
    bool busy;
};

/* ---- queue ---- */

void sfile_queue_locked(struct snode *n, struct sfile *f)
{
    lock_assert_held(&n->lock);
    if (f->queued || f->gone || f->retry_ms == NEVER_MS)
        return;
    f->queued = true;
    f->tries = 0;
    f->retry_ms = sys_mono_ms() + DELAY_MS;
    f->queue_next = NULL;
    *n->queue_end = f;
    n->queue_end = &f->queue_next;
    cond_broadcast(&n->work);
}

static void queue_later(struct snode *n, struct sfile *f)
{
    LOCK_SCOPE(&n->lock);
    if (f->queued || f->gone || !f->unsettled)
        return;
    f->queued = true;
    f->retry_ms = sys_mono_ms() + MIN((uint64_t)RETRY_MS << MIN(f->tries, 6u), (uint64_t)RETRY_MAX_MS);
    f->tries++;
    f->queue_next = n->later;
    n->later = f;
}

/* Those whose time has come go to the queue. */
static void recall_locked(struct snode *n, uint64_t now_ms)
{
    struct sfile **at = &n->later;
    while (*at) {
        struct sfile *f = *at;
        if (f->retry_ms > now_ms) {
            at = &f->queue_next;
            continue;
        }
        *at = f->queue_next;
        f->queue_next = NULL;
        *n->queue_end = f;
        n->queue_end = &f->queue_next;
    }
}

/* The first ones that are due; who is open for writing is left out: the last close brings it back. */
static size_t take_due_locked(struct snode *n, struct item *v, size_t max)
{
    uint64_t now_ms = sys_mono_ms();
    size_t taken = 0;
    while (taken < max && n->queue && n->queue->retry_ms <= now_ms) {
        struct sfile *f = n->queue;
        n->queue = f->queue_next;
        if (!n->queue)
            n->queue_end = &n->queue;
        f->queued = false;
        f->users++;
        v[taken++] = (struct item){.file = f, .generation = f->generation};
    }
    return taken;
}

/* ---- one inode ---- */

/* The inode had no extent when it was looked up. False: it was opened for writing since, or is just being, so
 * that it may have one and a writing record. */
static bool no_record(struct snode *n, const struct item *t)
{
    LOCK_SCOPE(&n->lock);
    if (t->file->generation != t->generation || t->file->busy)
        return false;
    sfile_set_unsettled_locked(n, t->file, false);
    return true;
}

/* 0: measured. 1: there is nothing to do for it (now). Negative: later. */
static int measure(struct snode *n, struct item *t, struct arena *a, struct err *e)
{
    struct sfile *f = t->file;
    struct scratch_inode x;
    lock_take(&n->lock);
    bool wanted = f->unsettled && !f->gone && f->writers == 0;
    t->hard = wanted && f->hard ? hard_ref(f->hard) : NULL;
    lock_drop(&n->lock);
    if (!wanted)
        return 1;
    int r = scratch_getattr(n->names, f->bucket, f->ino, a, &x, e);
    if (r == -ENOENT || (r == 0 && x.location.n == 0))
        return no_record(n, t) ? 1 : -EAGAIN;
    if (r < 0 || x.links == 0) /* without links: freed before long, or given a name */
        return r < 0 ? r : -EAGAIN;
    if (!t->hard)
        r = hard_find(n->store, x.location, &t->hard, e);
    return r < 0 ? r : hard_measure(t->hard, &t->stat, e);
}

static void measured_not(struct snode *n, struct item *t, int r, const struct err *e)
{
    if (r == -EOPNOTSUPP) {
        LOCK_SCOPE(&n->lock);
        t->file->retry_ms = NEVER_MS;
    } else if (r < 0) {
        if (r != -EAGAIN && t->file->tries == 0)
            log_warn("object", "inode %llu cannot be settled: %s", (unsigned long long)t->file->ino,
                     e->text[0] ? e->text : err_text(r));
        queue_later(n, t->file);
    }
}

/* ---- a batch ---- */

/* Busy with the file, which is as it was measured; its inode says so. */
static bool claim(struct snode *n, struct item *t, struct arena *a)
{
    struct scratch_call call = {.bucket = t->file->bucket};
    sfile_enter(n, t->file);
    t->busy = true;
    lock_take(&n->lock);
    bool same =
        t->file->generation == t->generation && t->file->writers == 0 && t->file->unsettled && !t->file->gone;
    lock_drop(&n->lock);
    return same && snode_record(n, &call, t->file->ino, &t->stat, a, NULL, NULL) == 0;
}

static void sealed(struct snode *n, struct item *t)
{
    struct hard *kept = NULL;
    lock_take(&n->lock);
    sfile_set_unsettled_locked(n, t->file, false);
    t->file->fresh = false;
    if (t->file->handles == 0)
        kept = sfile_take_hard_locked(n, t->file);
    lock_drop(&n->lock);
    hard_unref(kept);
}

/* What was lost is told by the next fsync, whoever has the file open then: as on a local file system, where
 * nobody would have asked before. */
static void not_sealed(struct snode *n, struct item *t)
{
    int fault = hard_take_fault(t->hard);
    if (fault != 0)
        sfile_note_fault(n, t->file, fault);
}

/* All are busy. */
static void seal(struct snode *n, struct item **v, size_t count)
{
    struct hard *hard[SNODE_BATCH];
    bool ok[SNODE_BATCH] = {false};
    struct scratch_unsettled done[SNODE_BATCH];
    size_t n_done = 0;
    struct err e = {0};
    for (size_t i = 0; i < count; i++)
        hard[i] = v[i]->hard;
    int r = scratch_sync(n->names, &e);
    if (r == 0)
        r = hard_settle(n->store, hard, count, ok, &e);
    for (size_t i = 0; i < count; i++) {
        if (!ok[i]) {
            not_sealed(n, v[i]);
            continue;
        }
        done[n_done] = (struct scratch_unsettled){.bucket = v[i]->file->bucket, .ino = v[i]->file->ino};
        n_done++;
    }
    int gone = scratch_settled(n->names, done, n_done, &e);
    for (size_t i = 0; gone == 0 && i < count; i++)
        if (ok[i])
            sealed(n, v[i]);
    if (r < 0 || gone < 0)
        log_warn("object", "settling %zu files: %s", count, e.text);
}

static void settle(struct snode *n, struct item *v, size_t count, struct arena *a)
{
    struct item *ready[SNODE_BATCH];
    size_t n_ready = 0;
    for (size_t i = 0; i < count; i++) {
        struct err e = {0};
        int r = measure(n, &v[i], a, &e);
        if (r != 0)
            measured_not(n, &v[i], r, &e);
        else
            ready[n_ready++] = &v[i];
    }
    size_t n_claimed = 0;
    for (size_t i = 0; i < n_ready; i++)
        if (claim(n, ready[i], a))
            ready[n_claimed++] = ready[i];
    if (n_claimed > 0)
        seal(n, ready, n_claimed);
    for (size_t i = 0; i < count; i++) {
        if (v[i].busy) {
            sfile_leave(n, v[i].file);
            queue_later(n, v[i].file); /* unless it is settled now */
        }
        hard_unref(v[i].hard);
        sfile_put(n, v[i].file);
    }
}

void *snode_settler_main(void *node)
{
    struct snode *n = node;
    struct item *v = calloc(SNODE_BATCH, sizeof(*v));
    assert(v);
    _cleanup_(arena_freep) struct arena *a = arena_new(SETTLE_ARENA);
    uint64_t recall_ms = 0;
    lock_take(&n->lock);
    while (!n->stopping) {
        uint64_t now_ms = sys_mono_ms();
        if (now_ms >= recall_ms) {
            recall_locked(n, now_ms);
            recall_ms = now_ms + LATER_ROUND_MS;
            if (n->lingering) {
                lock_drop(&n->lock);
                stree_end_lingering(n, /* bucket= */ 0, now_ms);
                lock_take(&n->lock);
            }
        }
        size_t count = take_due_locked(n, v, SNODE_BATCH);
        if (count == 0) {
            if (n->queue || n->later || n->lingering)
                (void)cond_wait_for(&n->work, &n->lock, TICK_MS * 1000000ull);
            else
                cond_wait(&n->work, &n->lock);
            continue;
        }
        lock_drop(&n->lock);
        settle(n, v, count, a);
        arena_clear(a);
        lock_take(&n->lock);
    }
    lock_drop(&n->lock);
    free(v);
    return NULL;
}

void snode_put_done(struct snode *n, uint64_t bucket, uint64_t ino, struct hard *h)
{
    struct sfile *f = sfile_get(n, bucket, ino);
    lock_take(&n->lock);
    sfile_set_unsettled_locked(n, f, true);
    if (!f->hard && !f->busy && n->n_kept < SNODE_KEPT_MAX) {
        f->hard = hard_ref(h);
        f->kept = true;
        n->n_kept++;
    }
    sfile_queue_locked(n, f);
    lock_drop(&n->lock);
    sfile_put(n, f);
}
