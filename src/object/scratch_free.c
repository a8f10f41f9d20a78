/*
 * Freeing what no inode names any more: the data of inodes that lost their last link, and extents that were
 * taken from their inodes.
 *
 * The change that took the name away is visible at once but durable only later, and power loss before that
 * brings the name back: so the data waits until the control store was made durable. What waits when the
 * process ends is found by the next start: inodes in the list of orphans, extents by their marks.
 *
 * Making the control store durable holds up everybody who changes it: what is to be freed is gathered for
 * GATHER_MS, unless it is many or somebody waits for it.
 */
#include "object/scratch_node.h"

#include "base/log.h"
#include "base/sys.h"

#define RETRY_MS  1000
#define GATHER_MS 200
#define BATCH     1024

static void push(struct snode *n, struct sfreed *x)
{
    LOCK_SCOPE(&n->lock);
    while (n->n_freed >= SNODE_FREEING_MAX && n->runs && !n->stopping)
        cond_wait(&n->idle, &n->lock);
    x->next = NULL;
    *n->freed_end = x;
    n->freed_end = &x->next;
    if (n->n_freed++ == 0)
        n->free_due_ms = sys_mono_ms() + GATHER_MS;
    if (n->n_freed == 1 || n->n_freed == BATCH)
        cond_signal(&n->free_work);
}

void snode_free_orphans(struct snode *n, const struct scratch_orphans *o)
{
    for (size_t i = 0; i < o->n; i++) {
        struct sfreed *x = calloc(1, sizeof(*x));
        assert(x);
        x->orphan = o->v[i];
        push(n, x);
    }
}

void snode_free_extent(struct snode *n, struct hard *h)
{
    struct sfreed *x = calloc(1, sizeof(*x));
    assert(x);
    x->hard = h;
    push(n, x);
}

void snode_wait_freed(struct snode *n)
{
    LOCK_SCOPE(&n->lock);
    n->free_waiters++;
    cond_signal(&n->free_work);
    while (n->n_freed > 0 && n->runs && !n->stopping)
        cond_wait(&n->idle, &n->lock);
    n->free_waiters--;
}

/* The inode is nobody's any more: it is not settled, and nothing is said of it from the disk. */
static void forget_file(struct snode *n, const struct scratch_orphan *o)
{
    struct sfile *f = sfile_peek(n, o->bucket, o->ino);
    if (!f)
        return;
    sfile_enter(n, f);
    lock_take(&n->lock);
    f->gone = true;
    sfile_set_unsettled_locked(n, f, false);
    struct hard *h = f->handles == 0 ? sfile_take_hard_locked(n, f) : NULL;
    lock_drop(&n->lock);
    sfile_leave(n, f);
    hard_unref(h);
    sfile_put(n, f);
}

static int free_batch(struct snode *n, struct sfreed *const *v, size_t count, struct err *e)
{
    struct slice locations[BATCH];
    size_t n_locations = 0;
    int r = scratch_sync(n->names, e);
    if (r < 0)
        return r;
    for (size_t i = 0; i < count; i++) {
        if (v[i]->hard) {
            hard_give_back(TAKE_PTR(v[i]->hard));
            continue;
        }
        forget_file(n, &v[i]->orphan);
        locations[n_locations++] = slice_of(v[i]->orphan.location, v[i]->orphan.location_bytes);
    }
    r = n_locations > 0 ? hard_remove(n->store, locations, n_locations, e) : 0;
    for (size_t i = 0; r == 0 && i < count; i++)
        if (v[i]->orphan.ino != 0)
            r = scratch_bury(n->names, v[i]->orphan.bucket, v[i]->orphan.ino, e);
    return r;
}

/* The first of those that wait stay in the list while they are freed: who waits for them sees them. */
static size_t first_locked(struct snode *n, struct sfreed **v, size_t max)
{
    size_t count = 0;
    for (struct sfreed *x = n->freed; x && count < max; x = x->next)
        v[count++] = x;
    return count;
}

static void drop_locked(struct snode *n, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct sfreed *x = n->freed;
        n->freed = x->next;
        free(x);
    }
    if (!n->freed)
        n->freed_end = &n->freed;
    n->n_freed -= count;
    cond_broadcast(&n->idle);
}

/* For how long to wait before the next batch; 0: not at all. */
static uint64_t wait_ms_locked(const struct snode *n)
{
    uint64_t now_ms = sys_mono_ms();
    if (n->n_freed == 0)
        return RETRY_MS;
    if (now_ms >= n->free_due_ms || ((n->n_freed >= BATCH || n->free_waiters > 0) && !n->free_failed))
        return 0;
    return n->free_due_ms - now_ms;
}

void *snode_freer_main(void *node)
{
    struct snode *n = node;
    struct sfreed *v[BATCH];
    lock_take(&n->lock);
    while (!n->stopping) {
        uint64_t ms = wait_ms_locked(n);
        if (ms > 0) {
            (void)cond_wait_for(&n->free_work, &n->lock, ms * 1000000);
            continue;
        }
        size_t count = first_locked(n, v, BATCH);
        lock_drop(&n->lock);
        struct err e = {0};
        int r = free_batch(n, v, count, &e);
        if (r < 0)
            log_warn("object", "freeing %zu removed files, to be tried again: %s", count, e.text);
        lock_take(&n->lock);
        n->free_failed = r < 0;
        n->free_due_ms = sys_mono_ms() + (r < 0 ? RETRY_MS : GATHER_MS);
        if (r == 0)
            drop_locked(n, count);
    }
    lock_drop(&n->lock);
    return NULL;
}
