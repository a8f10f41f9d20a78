/*
 * Freeing what no inode names any more: the data of inodes that lost their last link, and extents that were
 * taken from their inodes.
 *
 * The change that took the name away is visible at once but durable only later, and power loss before that
 * brings the name back: so the data waits until the control store was made durable. What waits when the
 * process ends is found by the next start: inodes in the list of orphans, extents by their marks.
 *
 * Making the control store durable holds up everybody who changes it: what is to be freed is gathered for
 * GATHER_MS, unless it is many or somebody waits for it. What changed without anything to be freed is made
 * durable now and then, too: names that nobody syncs are safe from power loss after NAMES_MS and a second.
 * Once a day, answers to mounts that went without a word are forgotten here.
 *
 * Failure modes: what cannot be freed goes to the end of the list and is tried again, TRIES_MAX times; after
 * that, or at once when its disk is not here, it is left to the next start: nothing else waits for it.
 */
#include "object/scratch_node.h"

#include "base/log.h"
#include "base/sys.h"

#define RETRY_MS  1000
#define GATHER_MS 200
#define BATCH     1024
#define TRIES_MAX 60
#define NAMES_MS  4000
#define DAY_MS    (24 * 3600 * 1000ull)

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
    uint64_t end = n->n_freed_ever + n->n_freed, failures = n->free_failures;
    n->free_waiters++;
    cond_signal(&n->free_work);
    while (n->n_freed_ever < end && n->free_failures == failures && n->runs && !n->stopping)
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
    sfile_set_untold_locked(n, f, false);
    struct hard *h = f->handles == 0 ? sfile_take_hard_locked(n, f) : NULL;
    lock_drop(&n->lock);
    sfile_leave(n, f);
    hard_unref(h);
    sfile_put(n, f);
}

/* Inodes: their data first, then their records. */
static int bury(struct snode *n, struct sfreed *const *v, size_t count, struct err *e)
{
    struct slice locations[BATCH];
    assert(count > 0 && count <= BATCH);
    for (size_t i = 0; i < count; i++)
        locations[i] = slice_of(v[i]->orphan.location, v[i]->orphan.location_bytes);
    int r = hard_remove(n->store, locations, count, e);
    for (size_t i = 0; r == 0 && i < count; i++)
        r = scratch_bury(n->names, v[i]->orphan.bucket, v[i]->orphan.ino, e);
    return r;
}

static void not_buried(struct sfreed *x, int r)
{
    x->tries++;
    x->done = r == -ENODEV || x->tries >= TRIES_MAX; /* the next start finds it in the list of orphans */
}

/* Where some cannot be freed, halves are tried, so that those hold up no others. The first error. */
static int bury_some(struct snode *n, struct sfreed *const *v, size_t count, struct err *e)
{
    int r = count > 0 ? bury(n, v, count, e) : 0;
    if (r < 0 && count > 1) {
        r = bury_some(n, v, count / 2, e);
        int second = bury_some(n, v + count / 2, count - count / 2, r < 0 ? NULL : e);
        return r < 0 ? r : second;
    }
    for (size_t i = 0; i < count; i++) {
        if (r < 0)
            not_buried(v[i], r);
        else
            v[i]->done = true;
    }
    return r;
}

static int free_batch(struct snode *n, struct sfreed *const *v, size_t count, struct err *e)
{
    struct sfreed *orphans[BATCH];
    size_t n_orphans = 0;
    int r = scratch_sync(n->names, e);
    if (r < 0)
        return r;
    for (size_t i = 0; i < count; i++) {
        if (v[i]->hard) {
            hard_give_back(TAKE_PTR(v[i]->hard));
            v[i]->done = true;
            continue;
        }
        forget_file(n, &v[i]->orphan);
        orphans[n_orphans++] = v[i];
    }
    return bury_some(n, orphans, n_orphans, e);
}

/* The first of those that wait stay in the list while they are freed: who waits for them sees them. */
static size_t first_locked(struct snode *n, struct sfreed **v, size_t max)
{
    size_t count = 0;
    for (struct sfreed *x = n->freed; x && count < max; x = x->next)
        v[count++] = x;
    return count;
}

/* What is done leaves the list; the others go to its end. How many left it. */
static size_t drop_locked(struct snode *n, size_t count)
{
    size_t done = 0;
    for (size_t i = 0; i < count; i++) {
        struct sfreed *x = n->freed;
        n->freed = x->next;
        if (!n->freed)
            n->freed_end = &n->freed;
        if (x->done) {
            free(x);
            done++;
            continue;
        }
        x->next = NULL;
        *n->freed_end = x;
        n->freed_end = &x->next;
    }
    n->n_freed -= done;
    n->n_freed_ever += done;
    cond_broadcast(&n->idle);
    return done;
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

/* *due_ms: when it is to be done next. False: not now. */
static bool sync_names_locked(struct snode *n, uint64_t *due_ms)
{
    struct err e = {0};
    if (sys_mono_ms() < *due_ms)
        return false;
    lock_drop(&n->lock);
    if (scratch_sync(n->names, &e) < 0)
        log_warn("object", "names of scratch buckets are not durable: %s", e.text);
    lock_take(&n->lock);
    *due_ms = sys_mono_ms() + NAMES_MS;
    return true;
}

static bool forget_answers_locked(struct snode *n, uint64_t *due_ms)
{
    struct err e = {0};
    if (sys_mono_ms() < *due_ms)
        return false;
    lock_drop(&n->lock);
    if (scratch_forget_old_answers(n->names, &e) < 0)
        log_warn("object", "answers to mounts of before: %s", e.text);
    lock_take(&n->lock);
    *due_ms = sys_mono_ms() + DAY_MS;
    return true;
}

void *snode_freer_main(void *node)
{
    struct snode *n = node;
    struct sfreed *v[BATCH];
    uint64_t names_due_ms = sys_mono_ms() + NAMES_MS, answers_due_ms = sys_mono_ms() + DAY_MS;
    lock_take(&n->lock);
    while (!n->stopping) {
        if (sync_names_locked(n, &names_due_ms) || forget_answers_locked(n, &answers_due_ms))
            continue;
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
            log_warn("object", "freeing %zu removed files, some to be tried again: %s", count, e.text);
        lock_take(&n->lock);
        n->free_failures += r < 0;
        n->free_failed = drop_locked(n, count) == 0;
        n->free_due_ms = sys_mono_ms() + (n->free_failed ? RETRY_MS : GATHER_MS);
    }
    lock_drop(&n->lock);
    return NULL;
}
