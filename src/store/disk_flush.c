/*
 * Ending epochs: see "Epochs" in store_format.h for what that makes true.
 *
 * Invariants:
 *  1. The running epoch is the durable one plus 1, or plus 2 while one is being ended.
 *  2. One thread at a time ends an epoch (`flushing`).
 *
 * Failure modes: when syncfs reports an error, pages may be lost and no later call will say so again: all
 * epochs since the durable one become suspect, in memory and in the index, and what they hold is verified
 * before it is served, also to those who still read what was replaced or removed. Whoever keeps descriptors
 * of such an extent, to be used again without asking, is told (on_gone); what is read by a descriptor that is
 * in use, as a mount's kernel does, is beyond our reach. Blocks that are being filled meanwhile become
 * suspect when they are whole, and extents that are staged are not published (lost_flushes). When the epoch
 * record cannot be committed the epoch is ended again later; nothing is claimed meanwhile.
 */
#include "base/le.h"
#include "base/log.h"
#include "base/sys.h"
#include "store/hard_internal.h"

int flush_commit_epoch(struct disk *d, const struct format_epoch *epoch, struct err *e)
{
    struct buf _cleanup_buf_ b = BUF_INIT(16 * (FORMAT_RANGES_MAX + 1));
    format_epoch_encode(epoch, &b);
    struct kv_txn *_cleanup_(kv_txn_freep) t = kv_txn_new(d->kv);
    kv_txn_put_plain(t, SLICE_LIT("mepoch"), buf_view(&b));
    return kv_txn_commit(t, KV_DURABLE, e);
}

/* Begins a new epoch and gives the number of the one to be ended. */
static uint64_t begin_next(struct disk *d)
{
    LOCK_SCOPE(&d->lock);
    d->hold = true; /* a writer with much to do would begin its next round before this thread is awake */
    while (d->in_batch)
        cond_wait(&d->recorded_cond, &d->lock);
    if (d->running == d->epoch.durable + 1)
        d->running++;
    d->changed = false;
    d->hold = false;
    cond_signal(&d->wake_writer);
    return d->running - 1;
}

struct distrust {
    const struct disk *d;
    uint64_t durable; /* the last epoch that is beyond doubt */
};

static void distrust_one(struct extent *x, void *arg)
{
    const struct distrust *why = arg;
    if (x->disk != why->d)
        return;
    lock_take(&x->lock);
    bool may_be_lost = x->n_pending > 0 || x->blocks_epoch > why->durable;
    if (may_be_lost)
        extent_distrust_locked(x);
    lock_drop(&x->lock);
    /* After that: who asks again finds what is to be verified. */
    if (may_be_lost && __atomic_load_n(&x->refs, __ATOMIC_ACQUIRE) > 0)
        (void)store_tell_gone(x->store, x->key);
}

/* The disk lost writes: nothing since the durable epoch is trusted. No round of the writer runs until the
 * index says so, because the epoch after the suspect ones must not appear in any record before. */
static int distrust(struct disk *d, struct err *e)
{
    lock_take(&d->lock);
    struct distrust why = {d, d->epoch.durable};
    lock_drop(&d->lock);
    table_each(d->store, distrust_one, &why);
    lock_take(&d->lock);
    d->hold = true;
    while (d->in_batch)
        cond_wait(&d->recorded_cond, &d->lock);
    struct format_epoch epoch = d->epoch;
    format_epoch_distrust(&epoch, d->running);
    lock_drop(&d->lock);

    struct err error = {0};
    int r = flush_commit_epoch(d, &epoch, &error);
    lock_take(&d->lock);
    if (r == 0) {
        d->epoch = epoch;
        d->running = epoch.durable + 1;
        d->distrust_wanted = false;
    }
    d->hold = false;
    cond_signal(&d->wake_writer);
    lock_drop(&d->lock);
    /* Once more, for what was filled or loaded meanwhile. */
    table_each(d->store, distrust_one, &why);
    if (r < 0)
        log_error("store", "disk %s: commit the epoch: %s", d->path, error.text);
    return err_set(e, -EIO, "disk %s: a flush failed; what was written since the last one will be verified",
                   d->path);
}

/* The data-set table goes with the epoch, so that idle times and intervals survive restarts. */
static void put_sets(struct store *s, struct kv_txn *t)
{
    struct buf _cleanup_buf_ b = BUF_INIT(STORE_SETS_MAX_BYTES);
    char generation[8];
    lock_take(&s->sets_lock);
    le_put64(generation, ++s->sets_generation);
    int r = buf_append(&b, generation, sizeof(generation));
    if (r == 0)
        r = evict_sets_encode(s->sets, &b);
    lock_drop(&s->sets_lock);
    if (r == 0)
        kv_txn_put_plain(t, SLICE_LIT("d"), buf_view(&b));
}

static void put_time(struct disk *d, struct kv_txn *t)
{
    char value[8];
    lock_take(&d->lock);
    d->time_ns = MAX(d->time_ns, sys->real_ns());
    le_put64(value, d->time_ns);
    lock_drop(&d->lock);
    kv_txn_put_plain(t, TIME_KEY, slice_of(value, sizeof(value)));
}

static int end_epoch(struct disk *d, struct err *e)
{
    lock_take(&d->lock);
    bool needed = d->changed || d->running != d->epoch.durable + 1;
    bool distrust_wanted = d->distrust_wanted;
    lock_drop(&d->lock);
    int r = writer_check(d, e);
    if (r < 0)
        return r;
    if (distrust_wanted)
        return distrust(d, e);
    if (!needed)
        return 0;
    uint64_t ended = begin_next(d);
    hard_gone_begin(d);
    r = sys->syncfs(d->dir_fd);
    if (r < 0) {
        hard_gone_end(d, /* done= */ false);
        (void)disk_log_error(d, "flush to the disk", r);
        __atomic_add_fetch(&d->lost_flushes, 1, __ATOMIC_RELEASE);
        disk_forgets(d);
        lock_take(&d->lock);
        d->distrust_wanted = true;
        lock_drop(&d->lock);
        return distrust(d, e);
    }
    struct format_epoch epoch;
    lock_take(&d->lock);
    epoch = d->epoch;
    lock_drop(&d->lock);
    epoch.durable = ended;
    struct kv_txn *_cleanup_(kv_txn_freep) t = kv_txn_new(d->kv);
    put_sets(d->store, t);
    hard_gone_put(d, t);
    struct buf _cleanup_buf_ b = BUF_INIT(16 * (FORMAT_RANGES_MAX + 1));
    format_epoch_encode(&epoch, &b);
    kv_txn_put_plain(t, SLICE_LIT("mepoch"), buf_view(&b));
    put_time(d, t);
    r = kv_txn_commit(t, KV_DURABLE, e);
    hard_gone_end(d, /* done= */ r == 0);
    lock_take(&d->lock);
    if (r == 0)
        d->epoch.durable = ended;
    else
        d->changed = true;
    lock_drop(&d->lock);
    return r < 0 ? err_prefix(e, r, "disk %s: end an epoch", d->path) : 0;
}

static void set_metrics(struct disk *d)
{
    struct store_disk_status st;
    if (store_disk_status(d->store, d->index, &st) < 0)
        return;
    metrics_set(d->m_used, (int64_t)st.used_bytes);
    metrics_set(d->m_extents, (int64_t)st.extents);
    metrics_set(d->m_free, (int64_t)st.free_bytes);
    metrics_set(d->m_entries, (int64_t)st.index_entries);
    metrics_set(d->hard->m_bytes, (int64_t)st.hard_bytes);
    metrics_set(d->hard->m_extents, (int64_t)st.hard_extents);
}

int flush_epoch(struct disk *d, struct err *e)
{
    lock_take(&d->lock);
    while (d->flushing)
        cond_wait(&d->flushed_cond, &d->lock);
    d->flushing = true;
    lock_drop(&d->lock);
    writer_drain(d);
    int r = end_epoch(d, e);
    lock_take(&d->lock);
    d->flushing = false;
    cond_broadcast(&d->flushed_cond);
    lock_drop(&d->lock);
    return r;
}

void *flusher_run(void *arg)
{
    struct disk *d = arg;
    uint64_t interval_ns = MAX(d->store->config.flush_interval_ms, 10) * 1000000;
    for (uint64_t next = sys_real.mono_ns() + interval_ns;;) {
        (void)late_close(d);
        set_metrics(d);
        hard_watch(d);
        lock_take(&d->lock);
        uint64_t now = sys_real.mono_ns();
        /* Once a second, for the metrics. */
        if (!d->stop && now < next)
            (void)cond_wait_for(&d->wake_flusher, &d->lock, MIN(next - now, (uint64_t)1000000000));
        bool stop = d->stop;
        lock_drop(&d->lock);
        if (stop)
            return NULL;
        if (sys_real.mono_ns() < next)
            continue;
        table_record_reads(d->store, d, READ_LAG_MS);
        struct err e = {0};
        int r = flush_epoch(d, &e);
        if (r < 0)
            log_warn("store", "%s", e.text);
        next = sys_real.mono_ns() + interval_ns;
    }
}
