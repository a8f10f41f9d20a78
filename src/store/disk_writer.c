/*
 * The one writer of a disk's index. It takes everything that is queued, builds transactions of about 1 MiB,
 * commits them visibly, and goes back to sleep; a change waits at most 100 ms, less when many do.
 *
 * A round first deletes the records of the doomed, then writes entries and chunks. Chunk records are read,
 * changed and written; nobody else writes them.
 *
 * Invariants:
 *  1. The count record is the sum over the entry records after every commit, because each commit carries it.
 *  2. The running epoch is read when a round begins and the round's commits are over before the next epoch
 * begins (in_batch), so that every block recorded in an epoch was written to its file before the epoch's
 * syncfs.
 *  3. An entry record says "complete" only in the commit that carries its last chunk record, or after it.
 *  4. A record in which some block is suspect carries a suspect epoch, all others the running one.
 *
 * Failure modes: when a commit fails everything in it is queued again and the disk counts as broken until a
 * commit succeeds: creations and fills on it fail with -EIO, or -ENOSPC where that is why, the writer tries
 * again every second, and nobody waits for it. When a record that is to be changed cannot be read just now,
 * what needed it is queued again alone, with all that is known of it in memory still; a record that is
 * damaged is written anew.
 */
#include "base/log.h"
#include "base/sys.h"
#include "store/store_internal.h"

#include <string.h>

#define RECORD_MAX    (STORE_ATTR_MAX_BYTES + FORMAT_ENTRY_HEAD_BYTES)
#define GROUP_MAX     1024 /* extents or doomed in one commit */
#define RETRY_NS      ((uint64_t)1000000000)
#define WAIT_SLICE_NS ((uint64_t)1000000000)

/* One transaction in the making and what is to be done once it is committed. */
struct group {
    struct disk *d;
    struct kv_txn *txn;
    struct extent *extents[GROUP_MAX];
    struct doomed *doomed[GROUP_MAX];
    size_t n_extents, n_doomed;
    struct format_count count; /* as it will be after the commit */
    uint64_t running;          /* epoch of this round */
    uint64_t distrusted;       /* an epoch that is suspect; 0 when there is none */
    bool left;                 /* of this round something is queued again, for want of a record */
    struct buf value, old, entry;
};

/* ---- queues ---- */

static void wake_locked(struct disk *d)
{
    cond_signal(&d->wake_writer);
}

static bool crowded_locked(const struct disk *d)
{
    return d->pending_blocks > PENDING_BLOCKS_MAX || d->n_dirty > DIRTY_EXTENTS_MAX ||
           d->n_doomed > DOOMED_MAX;
}

static bool urgent_locked(const struct disk *d)
{
    return d->stop || d->drainers > 0 || d->pending_blocks >= PENDING_BLOCKS_WAKE ||
           d->n_dirty > DIRTY_EXTENTS_MAX / 4 || d->n_doomed > DOOMED_MAX / 4;
}

void writer_queue(struct extent *x)
{
    struct disk *d = x->disk;
    if (d->store->read_only)
        return;
    LOCK_SCOPE(&d->lock);
    if (x->dirty || d->stop)
        return;
    x->dirty = true;
    x->next_dirty = NULL;
    (void)extent_ref(x);
    *d->dirty_tail = x;
    d->dirty_tail = &x->next_dirty;
    d->n_dirty++;
    d->queued++;
    if (d->n_dirty + d->n_doomed == 1 || urgent_locked(d))
        wake_locked(d);
}

void writer_queue_doomed(struct disk *d, struct doomed *m)
{
    LOCK_SCOPE(&d->lock);
    m->next = NULL;
    *d->doom_tail = m;
    d->doom_tail = &m->next;
    d->n_doomed++;
    d->queued++;
    if (d->n_dirty + d->n_doomed == 1 || urgent_locked(d))
        wake_locked(d);
}

void writer_pending(struct disk *d, int64_t n)
{
    LOCK_SCOPE(&d->lock);
    d->pending_blocks =
        n < 0 ? d->pending_blocks - MIN(d->pending_blocks, (uint64_t)-n) : d->pending_blocks + (uint64_t)n;
    if (d->pending_blocks >= PENDING_BLOCKS_WAKE)
        wake_locked(d);
}

bool writer_is_broken(struct disk *d)
{
    LOCK_SCOPE(&d->lock);
    return d->broken < 0;
}

int writer_check(struct disk *d, struct err *e)
{
    lock_take(&d->lock);
    int code = d->broken;
    lock_drop(&d->lock);
    if (code == -ENOSPC)
        return err_set(e, code, "disk %s: there is no room to write its index", d->path);
    return code < 0 ? err_set(e, -EIO, "disk %s: its index cannot be written", d->path) : 0;
}

bool writer_records(struct disk *d)
{
    LOCK_SCOPE(&d->lock);
    return !d->stop && !d->broken;
}

void writer_throttle(struct disk *d)
{
    LOCK_SCOPE(&d->lock);
    while (crowded_locked(d) && !d->broken && !d->unread && !d->stop && d->has_writer) {
        d->drainers++;
        wake_locked(d);
        (void)cond_wait_for(&d->recorded_cond, &d->lock, WAIT_SLICE_NS);
        d->drainers--;
    }
}

bool writer_drain(struct disk *d)
{
    LOCK_SCOPE(&d->lock);
    uint64_t target = d->queued;
    /* An index that does not work gets one more chance: the next round that begins after this. */
    uint64_t chance = d->rounds + (d->in_batch ? 2 : 1);
    d->drainers++;
    wake_locked(d);
    while (d->recorded < target && !((d->broken || d->unread) && d->rounds >= chance) && !d->stop &&
           d->has_writer)
        (void)cond_wait_for(&d->recorded_cond, &d->lock, WAIT_SLICE_NS);
    d->drainers--;
    return d->recorded >= target;
}

/* ---- committing a group ---- */

static void requeue_extent(struct extent *x)
{
    __atomic_store_n(&x->left, true, __ATOMIC_RELEASE);
    lock_take(&x->lock);
    x->entry_changed = x->chunks_changed = true;
    lock_drop(&x->lock);
    writer_queue(x);
    extent_unref(x);
}

static void requeue(struct group *g)
{
    for (size_t i = 0; i < g->n_doomed; i++)
        writer_queue_doomed(g->d, g->doomed[i]);
    for (size_t i = 0; i < g->n_extents; i++)
        requeue_extent(g->extents[i]);
    g->n_doomed = g->n_extents = 0;
}

/* A record cannot be read: whether it is there, and what it says, nobody knows. */
static int unread(struct group *g, int code, const struct err *e)
{
    struct disk *d = g->d;
    lock_take(&d->lock);
    bool is_news = !d->unread;
    d->unread = true;
    lock_drop(&d->lock);
    g->left = true;
    if (is_news)
        log_error("store", "disk %s: index: %s; what is to be changed there waits", d->path, e->text);
    return code;
}

static void extent_recorded(struct extent *x)
{
    lock_take(&x->lock);
    uint32_t n = x->batch_pending;
    assert(n <= x->n_pending);
    if (n > 0)
        memmove(x->pending, x->pending + n, (x->n_pending - n) * sizeof(x->pending[0]));
    x->n_pending -= n;
    if (x->n_pending == 0) {
        free(x->pending);
        x->pending = NULL;
        x->pending_room = 0;
    }
    if (!x->dead)
        writer_pending(x->disk, -(int64_t)n);
    lock_drop(&x->lock);
    x->recorded |= !x->batch_staged;
    x->recorded_charge = x->batch_charge;
    __atomic_store_n(&x->left, false, __ATOMIC_RELEASE);
    extent_unref(x);
}

static int group_commit(struct group *g)
{
    struct disk *d = g->d;
    if (g->n_extents + g->n_doomed == 0) {
        kv_txn_clear(g->txn); /* chunks of what is queued again */
        return 0;
    }
    format_count_encode(&g->count, &g->value);
    kv_txn_put_plain(g->txn, SLICE_LIT("mcount"), buf_view(&g->value));
    struct err e = {0};
    int r = kv_txn_commit(g->txn, KV_VISIBLE, &e);
    lock_take(&d->lock);
    bool was_broken = d->broken < 0;
    d->broken = r;
    if (r == 0) {
        d->count = g->count;
        d->changed = true;
        for (size_t i = 0; i < g->n_doomed; i++)
            doom_forget_locked(d, g->doomed[i]);
        g->n_doomed = 0;
    } else {
        g->count = d->count;
    }
    lock_drop(&d->lock);
    if (r < 0) {
        if (!was_broken)
            log_error("store", "disk %s: index: %s", d->path, e.text);
        requeue(g);
        return r;
    }
    for (size_t i = 0; i < g->n_extents; i++)
        extent_recorded(g->extents[i]);
    g->n_extents = 0;
    return 0;
}

static int group_commit_if_full(struct group *g)
{
    if (g->n_extents < GROUP_MAX && g->n_doomed < GROUP_MAX && kv_txn_bytes(g->txn) < WRITER_COMMIT_BYTES)
        return 0;
    return group_commit(g);
}

/* ---- the doomed ---- */

static void discount(struct group *g, uint64_t bytes)
{
    g->count.used_bytes -= MIN(g->count.used_bytes, bytes);
    g->count.extents -= g->count.extents > 0;
}

/* 1; 0: there is none that decodes; or an error, after which nothing is known. */
static int get_entry(struct group *g, struct slice index_key, struct format_entry *ret)
{
    struct err e = {0};
    buf_clear(&g->old);
    int r = kv_get(g->d->kv, index_key, &g->old, NULL, &e);
    if (r == 0)
        return format_entry_decode(buf_view(&g->old), ret) == 0;
    return r == -ENOENT || record_is_damaged(r) ? 0 : unread(g, r, &e);
}

/* A record that does not decode; another one may be in its place by now. */
static int add_bad(struct group *g, struct slice index_key)
{
    struct format_entry r;
    bool is_a_key = index_key.n > 1 && index_key.n <= FORMAT_KEY_MAX;
    int found = is_a_key ? get_entry(g, index_key, &r) : 0;
    if (found == 0)
        kv_txn_delete(g->txn, index_key);
    return found;
}

/* The entry of its key, when it is still this one. */
static int add_dead_entry(struct group *g, const struct doomed *m)
{
    struct format_key k;
    struct format_entry r;
    format_key_bytes('o', slice_of(m->key, m->key_bytes), &k);
    int found = get_entry(g, format_key_view(&k), &r);
    if (found > 0 && id_eq(r.id, m->id)) {
        kv_txn_delete(g->txn, format_key_view(&k));
        discount(g, format_charge(r.size_bytes, r.present_blocks));
    }
    return found;
}

/* Puts one of them into the group, or queues it again: without its entry's deletion that of its chunks would
 * leave an entry without checksums. */
static void add_doomed(struct group *g, struct doomed *m)
{
    struct format_key k;
    int r = 0;
    if (m->raw)
        r = add_bad(g, slice_of(m->key, m->key_bytes));
    else if (m->is_lost)
        discount(g, m->lost_bytes);
    else if (m->key_bytes > 0)
        r = add_dead_entry(g, m);
    if (r < 0) {
        writer_queue_doomed(g->d, m);
        return;
    }
    g->doomed[g->n_doomed++] = m;
    if (m->raw)
        return;
    format_key_id('x', m->id, &k);
    kv_txn_delete(g->txn, format_key_view(&k));
    format_key_id('s', m->id, &k);
    if (m->has_file)
        kv_txn_put_plain(g->txn, format_key_view(&k), SLICE_NULL);
    else
        kv_txn_delete(g->txn, format_key_view(&k));
    for (uint32_t c = 0; c < m->n_chunks; c++) {
        format_key_chunk(m->id, c, &k);
        kv_txn_delete(g->txn, format_key_view(&k));
    }
}

/* ---- entries and chunks ---- */

struct news {
    struct pending p;
    uint32_t order;
};

static int by_chunk(const void *a, const void *b)
{
    const struct news *x = a, *y = b;
    uint32_t cx = x->p.block / FORMAT_CHUNK_BLOCKS, cy = y->p.block / FORMAT_CHUNK_BLOCKS;
    if (cx != cy)
        return cx < cy ? -1 : 1;
    return x->order < y->order ? -1 : x->order > y->order;
}

/* What a round writes about one extent, copied under its lock. */
struct snapshot {
    struct news *news;
    uint32_t n_news, n_blocks;
    bool all_chunks;
};

/* Reads, changes and writes the record of one chunk. */
static int add_chunk(struct group *g, struct extent *x, uint32_t chunk, const struct snapshot *s,
                     const struct news *news, size_t n_news)
{
    struct format_key k;
    struct format_chunk c = {0};
    struct err e = {0};
    format_key_chunk(x->id, chunk, &k);
    buf_clear(&g->old);
    int r = kv_get(g->d->kv, format_key_view(&k), &g->old, NULL, &e);
    if (r == -ENOENT && n_news == 0)
        return 0; /* of a large file all would be more than memory has room for */
    if (r < 0 && r != -ENOENT && !record_is_damaged(r))
        return unread(g, r, &e); /* the checksums of other blocks may be there */
    if (r < 0 || format_chunk_decode(buf_view(&g->old), &c) < 0)
        c = (struct format_chunk){0};
    uint32_t first = chunk * FORMAT_CHUNK_BLOCKS;
    c.n_blocks = MIN(s->n_blocks - first, FORMAT_CHUNK_BLOCKS);
    for (size_t i = 0; i < n_news; i++) {
        uint32_t b = news[i].p.block - first;
        if (b >= c.n_blocks)
            continue;
        c.present[b / 8] &= (uint8_t) ~(1u << (b % 8));
        c.present[b / 8] |= (uint8_t)((unsigned)!news[i].p.dropped << (b % 8));
        c.crc[b] = news[i].p.crc;
    }
    lock_take(&x->lock);
    bool suspect = extent_range_is_suspect_locked(x, first, c.n_blocks);
    /* Blocks that the record has and the file has not (it was short) are in no news. */
    for (uint32_t b = 0; b < c.n_blocks && s->all_chunks; b++)
        if (!extent_has_block_locked(x, first + b))
            c.present[b / 8] &= (uint8_t) ~(1u << (b % 8));
    lock_drop(&x->lock);
    c.epoch = suspect && g->distrusted > 0 ? g->distrusted : g->running;
    format_chunk_encode(&c, &g->value);
    kv_txn_put_plain(g->txn, format_key_view(&k), buf_view(&g->value));
    return 0;
}

static uint32_t n_chunks(uint32_t n_blocks)
{
    return n_blocks / FORMAT_CHUNK_BLOCKS + (n_blocks % FORMAT_CHUNK_BLOCKS != 0);
}

/* Some of the records may be in the group also when others could not be read: what they say is true. */
static int add_chunks(struct group *g, struct extent *x, struct snapshot *s)
{
    uint32_t n = n_chunks(s->n_blocks);
    int r = 0;
    if (s->n_news > 1)
        qsort(s->news, s->n_news, sizeof(s->news[0]), by_chunk);
    for (uint32_t at = 0, c = 0; c < n && r == 0; c++) {
        uint32_t from = at;
        while (at < s->n_news && s->news[at].p.block / FORMAT_CHUNK_BLOCKS == c)
            at++;
        if (at > from || s->all_chunks)
            r = add_chunk(g, x, c, s, s->news + from, at - from);
        if (at == s->n_news && !s->all_chunks)
            break;
    }
    return r;
}

/* The entry record, as of the snapshot, into g->entry. */
static void encode_entry_locked(struct group *g, struct extent *x)
{
    bool complete = x->n_present == x->n_blocks;
    uint64_t last_read_ms = __atomic_load_n(&x->last_read_ms, __ATOMIC_RELAXED);
    struct format_entry r = {
        .flags = complete ? FORMAT_ENTRY_COMPLETE : 0,
        .id = x->id,
        .size_bytes = x->size,
        .epoch = x->n_suspect > 0 && g->distrusted > 0 ? g->distrusted : g->running,
        .last_read_ms = last_read_ms,
        .data_set = x->data_set,
        .present_blocks = x->n_present,
        .crc = x->n_blocks == 1 && x->n_present == 1 ? x->crc : 0,
        .attr = slice_of(x->attr, x->attr_bytes),
    };
    format_entry_encode(&r, &g->entry);
    __atomic_store_n(&x->recorded_read_ms, last_read_ms, __ATOMIC_RELAXED);
    x->batch_charge = format_charge(r.size_bytes, r.present_blocks);
}

/* What encode_entry_locked made, once all that it says of chunks is in the group. */
static void add_entry(struct group *g, struct extent *x)
{
    struct format_key k;
    format_key_bytes('o', x->key, &k);
    kv_txn_put_plain(g->txn, format_key_view(&k), buf_view(&g->entry));
    g->count.used_bytes += x->batch_charge;
    g->count.used_bytes -= MIN(g->count.used_bytes, x->recorded_charge);
    if (x->recorded)
        return;
    g->count.extents++;
    format_key_id('x', x->id, &k);
    kv_txn_put_plain(g->txn, format_key_view(&k), x->key);
    format_key_id('s', x->id, &k);
    kv_txn_delete(g->txn, format_key_view(&k));
    /* What it had chunks for while it was longer. */
    for (uint32_t c = x->n_blocks <= 1 ? 0 : n_chunks(x->n_blocks); c < x->chunks_written; c++) {
        format_key_chunk(x->id, c, &k);
        kv_txn_delete(g->txn, format_key_view(&k));
    }
}

/* Whether deletions wait for another round: because what they delete could not be read, or because they came
 * when this one had begun, as of what a staged extent replaces that this round took before it was published.
 */
static bool any_doomed_waits(struct disk *d)
{
    LOCK_SCOPE(&d->lock);
    return d->n_doomed > 0;
}

static bool is_of_key(const struct extent *x, struct slice key)
{
    return !x->batch_staged && slice_eq(x->key, key); /* a staged one may be getting its key just now */
}

/* One of the same key is in the group, and was replaced since: its entry is to be found like any other that
 * this one takes the place of. */
static int commit_former(struct group *g, const struct extent *x)
{
    size_t i = 0;
    while (i < g->n_extents && !is_of_key(g->extents[i], x->key))
        i++;
    return i < g->n_extents ? group_commit(g) : 0;
}

/* The deletion of the entry of before, if there is one, comes after this one (add_dead_entry), which takes
 * its place: it goes with this commit, and counts no more. 1, 0, or an error, after which nothing is known.
 */
static int discount_former(struct group *g, const struct extent *x)
{
    struct format_key k;
    struct format_entry r;
    format_key_bytes('o', x->key, &k);
    int found = get_entry(g, format_key_view(&k), &r);
    if (found > 0 && !id_eq(r.id, x->id))
        discount(g, format_charge(r.size_bytes, r.present_blocks));
    return found;
}

static void take_snapshot_locked(struct extent *x, struct snapshot *ret)
{
    *ret =
        (struct snapshot){.n_blocks = x->n_blocks, .n_news = x->n_pending, .all_chunks = x->chunks_changed};
    x->batch_pending = x->n_pending;
    if (x->n_pending == 0)
        return;
    ret->news = malloc(x->n_pending * sizeof(ret->news[0]));
    if (!ret->news)
        abort();
    for (uint32_t i = 0; i < x->n_pending; i++)
        ret->news[i] = (struct news){x->pending[i], i};
}

/* Puts one extent into the group, or lets go of it when it is dead, or queues it again. An error of a commit,
 * after which the round is over. */
static int add_extent(struct group *g, struct extent *x)
{
    struct snapshot s;
    lock_take(&x->lock);
    lock_take(&g->d->lock);
    x->dirty = false;
    lock_drop(&g->d->lock);
    if (x->dead) {
        lock_drop(&x->lock);
        extent_unref(x);
        return 0;
    }
    take_snapshot_locked(x, &s);
    if (s.n_news > 0)
        x->blocks_epoch = MAX(x->blocks_epoch, g->running);
    x->batch_staged = x->staged;
    x->batch_charge = 0;
    if (x->staged)
        x->chunks_written = MAX(x->chunks_written, n_chunks(s.n_blocks));
    else
        encode_entry_locked(g, x);
    x->entry_changed = x->chunks_changed = false;
    lock_drop(&x->lock);
    bool may_replace = !x->batch_staged && !x->recorded && any_doomed_waits(g->d);
    int committed = may_replace ? commit_former(g, x) : 0, r = committed;
    if (r == 0 && (s.n_blocks > 1 || x->batch_staged))
        r = add_chunks(g, x, &s);
    free(s.news);
    if (r == 0 && may_replace)
        r = discount_former(g, x);
    if (r < 0) {
        requeue_extent(x);
        return committed;
    }
    if (!x->batch_staged)
        add_entry(g, x);
    g->extents[g->n_extents++] = x;
    return 0;
}

/* ---- the thread ---- */

static void round_run(struct group *g, struct extent *dirty, struct doomed *doomed)
{
    int r = 0;
    g->left = false;
    while (doomed) {
        struct doomed *next = doomed->next;
        if (r == 0) {
            add_doomed(g, doomed);
            r = group_commit_if_full(g);
        } else {
            writer_queue_doomed(g->d, doomed);
        }
        doomed = next;
    }
    /* The doomed are committed on their own, so that an entry that replaces one finds its place empty. */
    if (r == 0)
        r = group_commit(g);
    while (dirty) {
        struct extent *next = dirty->next_dirty;
        if (r == 0) {
            r = add_extent(g, dirty);
            r = r < 0 ? r : group_commit_if_full(g);
        } else {
            __atomic_store_n(&dirty->left, true, __ATOMIC_RELEASE);
            lock_take(&g->d->lock);
            dirty->dirty = false;
            lock_drop(&g->d->lock);
            writer_queue(dirty);
            extent_unref(dirty);
        }
        dirty = next;
    }
    if (r == 0)
        (void)group_commit(g);
}

static bool nothing_queued_locked(const struct disk *d)
{
    return !d->dirty_head && !d->doom_head;
}

/* Waits for work, and then a little for more of it. False when the thread is to end. */
static bool wait_for_work_locked(struct disk *d)
{
    while ((nothing_queued_locked(d) || d->hold) && !d->stop)
        cond_wait(&d->wake_writer, &d->lock);
    uint64_t deadline = sys_real.mono_ns() + (d->broken ? RETRY_NS : WRITER_INTERVAL_NS);
    while (!d->stop && !(d->broken || d->unread ? d->drainers > 0 : urgent_locked(d))) {
        uint64_t now = sys_real.mono_ns();
        if (now >= deadline || cond_wait_for(&d->wake_writer, &d->lock, deadline - now) == -ETIMEDOUT)
            break;
    }
    while (d->hold)
        cond_wait(&d->wake_writer, &d->lock);
    return !(d->stop && (d->abandon || nothing_queued_locked(d) || d->broken || d->unread));
}

static void let_go(struct disk *d, struct extent *dirty)
{
    while (dirty) {
        struct extent *next = dirty->next_dirty;
        lock_take(&d->lock);
        dirty->dirty = false;
        lock_drop(&d->lock);
        extent_unref(dirty);
        dirty = next;
    }
}

void *writer_run(void *arg)
{
    struct disk *d = arg;
    struct group *g = calloc(1, sizeof(*g));
    if (!g)
        abort();
    g->d = d;
    g->txn = kv_txn_new(d->kv);
    g->value = BUF_INIT(RECORD_MAX);
    g->old = BUF_INIT(RECORD_MAX);
    g->entry = BUF_INIT(RECORD_MAX);
    lock_take(&d->lock);
    bool more;
    do {
        more = wait_for_work_locked(d);
        struct extent *dirty = TAKE_PTR(d->dirty_head);
        struct doomed *doomed = more ? TAKE_PTR(d->doom_head) : NULL;
        d->dirty_tail = &d->dirty_head;
        if (more)
            d->doom_tail = &d->doom_head;
        d->n_dirty = 0;
        d->n_doomed = 0;
        uint64_t target = d->queued;
        g->count = d->count;
        g->running = d->running;
        g->distrusted = d->epoch.n_ranges > 0 ? d->epoch.ranges[d->epoch.n_ranges - 1].last : 0;
        d->in_batch = true;
        lock_drop(&d->lock);
        if (more)
            round_run(g, dirty, doomed);
        else
            let_go(d, dirty);
        lock_take(&d->lock);
        d->in_batch = false;
        d->rounds++;
        d->unread = more ? g->left : d->unread;
        d->recorded = d->broken || d->unread ? d->recorded : target;
        cond_broadcast(&d->recorded_cond);
    } while (more);
    lock_drop(&d->lock);
    kv_txn_free(g->txn);
    buf_fini(&g->value);
    buf_fini(&g->old);
    buf_fini(&g->entry);
    free(g);
    return NULL;
}
