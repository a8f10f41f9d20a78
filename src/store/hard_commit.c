/*
 * Changes of hard records and marks in the index, each one durable.
 *
 * Whoever has changes queues them; the first becomes the leader, commits everything that is queued in one
 * transaction, and goes on until the queue is empty, so that one sync serves all that came meanwhile. Only
 * the leader writes hard records, which is why it can keep their sums beside them without conditions.
 *
 * Invariants:
 *  1. The count record is the sum over the hard records after every commit.
 *  2. A mark is deleted in the commit that seals, or after a flush of the disk that came after the unlink.
 *
 * Failure modes: a durable commit that failed may have happened. The result is an error for everybody in it;
 * what is in the index is read anew by the next one, and callers keep that in mind (`head_may_exist`).
 */
#include "base/log.h"
#include "base/sys.h"
#include "store/hard_internal.h"

#include <fcntl.h>

#define CHANGES_MAX 4096 /* in one commit */
#define COUNT_KEY   SLICE_LIT("mhard")
#define COUNT_BYTES 16

/* ---- opening ---- */

static int load_count(struct disk *d, struct format_count *ret, struct err *e)
{
    struct buf _cleanup_buf_ b = BUF_INIT(COUNT_BYTES + 16);
    *ret = (struct format_count){0};
    int r = kv_get(d->kv, COUNT_KEY, &b, NULL, e);
    if (r == -ENOENT)
        return 0;
    if (r == 0 && format_count_decode(buf_view(&b), ret) < 0)
        r = err_set(e, -EBADMSG, "the count record of hard extents is damaged");
    return r < 0 ? err_prefix(e, r, "index") : 0;
}

int hard_disk_open(struct disk *d, struct err *e)
{
    struct hard_disk *hd = d->hard;
    int r = load_count(d, &hd->count, e);
    if (r < 0)
        return r;
    hd->bytes = hd->count.used_bytes;
    char path[DISK_PATH_MAX];
    (void)snprintf(path, sizeof(path), "%s/hard", d->path);
    int fd = sys->open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd < 0 && fd != -ENOENT)
        return err_errno(e, fd, "open %s", path);
    hd->dir_fd = fd < 0 ? -1 : fd;
    return 0;
}

void hard_disk_fini(struct disk *d)
{
    struct hard_disk *hd = d->hard;
    hard_pool_fini(d);
    hard_early_fini(d);
    if (hd->dir_fd >= 0)
        (void)sys->close(hd->dir_fd);
    free(hd->gone.v);
    free(hd->syncing.v);
    cond_fini(&hd->committed);
    free(TAKE_PTR(d->hard));
}

/* ---- one transaction ---- */

struct group {
    struct disk *d;
    struct kv_txn *txn;
    struct format_count count;
    bool changed;
};

static void drop_head(struct group *g, struct id128 id, const struct format_hard *old, bool chunks)
{
    struct format_key k, to;
    format_key_id('h', id, &k);
    kv_txn_delete(g->txn, format_key_view(&k));
    g->count.used_bytes -= MIN(g->count.used_bytes, old->allocated_bytes);
    g->count.extents -= g->count.extents > 0;
    if (chunks) {
        hard_chunks_range(id, &k, &to);
        kv_txn_delete_range(g->txn, format_key_view(&k), format_key_view(&to));
    }
    g->changed = true;
}

static void put_head(struct group *g, const struct hard_change *c)
{
    struct format_key k, to;
    struct buf _cleanup_buf_ b = BUF_INIT(FORMAT_HARD_BYTES);
    /* Chunks that went to the index on the way cleared it of what was left there. */
    if (c->stale_chunks && c->head.n_chunks > 0 && c->sums->n_chunks == 0) {
        hard_chunks_range(c->id, &k, &to);
        kv_txn_delete_range(g->txn, format_key_view(&k), format_key_view(&to));
    }
    if (c->head.n_chunks > 0)
        hard_sums_put(c->sums, c->id, g->txn);
    format_key_id('h', c->id, &k);
    format_hard_encode(&c->head, &b);
    kv_txn_put_plain(g->txn, format_key_view(&k), buf_view(&b));
    g->count.used_bytes += c->head.allocated_bytes;
    g->count.extents++;
    format_key_id('f', c->id, &k);
    kv_txn_delete(g->txn, format_key_view(&k));
    g->changed = true;
}

static int put_mark(struct group *g, struct id128 id)
{
    struct format_key k;
    format_key_id('f', id, &k);
    int r = kv_get(g->d->kv, format_key_view(&k), NULL, NULL, NULL);
    if (r != -ENOENT)
        return r;
    kv_txn_put_plain(g->txn, format_key_view(&k), SLICE_NULL);
    g->changed = true;
    return 0;
}

static int add_change(struct group *g, struct hard_change *c)
{
    struct format_hard old;
    int r = hard_head(g->d, c->id, &old);
    if (r < 0 && r != -ENOENT && r != -EBADMSG)
        return r;
    bool has_old = r == 0, damaged = r == -EBADMSG;
    if (damaged) /* what it said: nothing was changed since */
        old = (struct format_hard){.allocated_bytes = hard_file_bytes(g->d, c->id)};
    if (has_old || damaged)
        drop_head(g, c->id, &old, c->kind != HARD_SEAL && (damaged || old.n_chunks > 0));
    if (c->kind == HARD_SEAL)
        put_head(g, c);
    return c->kind == HARD_REMOVE ? put_mark(g, c->id) : 0;
}

static int commit_group(struct group *g)
{
    struct disk *d = g->d;
    struct buf _cleanup_buf_ b = BUF_INIT(COUNT_BYTES);
    if (!g->changed)
        return 0; /* files that are marked already, for instance */
    format_count_encode(&g->count, &b);
    kv_txn_put_plain(g->txn, COUNT_KEY, buf_view(&b));
    struct err e = {0};
    int r = kv_txn_commit(g->txn, KV_DURABLE, &e);
    if (r < 0) {
        log_error("store", "disk %s: index: %s", d->path, e.text);
        /* It may have happened all the same. */
        if (load_count(d, &g->count, NULL) < 0)
            return r;
    }
    lock_take(&d->lock);
    d->hard->count = g->count;
    d->changed = true;
    lock_drop(&d->lock);
    return r;
}

/* Commits a list of changes and sets their results; done is left to the caller. */
static void run_changes(struct disk *d, struct hard_change *list)
{
    struct group g = {.d = d, .txn = kv_txn_new(d->kv)};
    lock_take(&d->lock);
    g.count = d->hard->count;
    lock_drop(&d->lock);
    for (struct hard_change *c = list; c; c = c->next)
        c->result = add_change(&g, c);
    int r = commit_group(&g);
    for (struct hard_change *c = list; c && r < 0; c = c->next)
        c->result = c->result < 0 ? c->result : r;
    kv_txn_free(g.txn);
}

/* ---- the queue ---- */

static struct hard_change *cut_locked(struct hard_disk *hd)
{
    struct hard_change *list = hd->queue, **at = &hd->queue;
    for (size_t i = 0; *at && i < CHANGES_MAX; i++)
        at = &(*at)->next;
    hd->queue = TAKE_PTR(*at);
    if (!hd->queue)
        hd->tail = &hd->queue;
    return list;
}

static bool all_done_locked(const struct hard_change *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!v[i].done)
            return false;
    return true;
}

int hard_commit(struct disk *d, struct hard_change *v, size_t n)
{
    struct hard_disk *hd = d->hard;
    lock_take(&d->lock);
    for (size_t i = 0; i < n; i++) {
        v[i].done = false;
        v[i].next = NULL;
        *hd->tail = &v[i];
        hd->tail = &v[i].next;
    }
    while (!all_done_locked(v, n)) {
        if (hd->leading) {
            cond_wait(&hd->committed, &d->lock);
            continue;
        }
        hd->leading = true;
        struct hard_change *list = cut_locked(hd);
        lock_drop(&d->lock);
        run_changes(d, list);
        lock_take(&d->lock);
        while (list) {
            /* Its owner may return, and with it the change, as soon as this lock is dropped. */
            struct hard_change *next = list->next;
            list->done = true;
            list = next;
        }
        hd->leading = false;
        cond_broadcast(&hd->committed);
    }
    lock_drop(&d->lock);
    int r = 0;
    for (size_t i = 0; i < n && r == 0; i++)
        r = v[i].result;
    return r;
}

/* ---- marks of removed files ---- */

static void add_gone_locked(struct disk *d, struct hard_gone g)
{
    struct hard_gone_list *l = &d->hard->gone;
    if (l->n == HARD_GONE_MAX)
        return;
    if (l->n == l->room) {
        l->room = MAX(2 * l->room, 64);
        l->v = realloc(l->v, l->room * sizeof(l->v[0]));
        if (!l->v)
            abort();
    }
    l->v[l->n++] = g;
    d->changed = true;
}

void hard_gone(struct disk *d, struct id128 id, bool chunks)
{
    LOCK_SCOPE(&d->lock);
    add_gone_locked(d, (struct hard_gone){id, chunks});
}

void hard_gone_begin(struct disk *d)
{
    LOCK_SCOPE(&d->lock);
    struct hard_disk *hd = d->hard;
    assert(hd->syncing.n == 0);
    struct hard_gone_list empty = hd->syncing;
    hd->syncing = hd->gone;
    hd->gone = empty;
}

void hard_gone_put(struct disk *d, struct kv_txn *t)
{
    const struct hard_gone_list *l = &d->hard->syncing; /* only the one that flushes touches it */
    struct format_key k, to;
    for (size_t i = 0; i < l->n; i++) {
        format_key_id('f', l->v[i].id, &k);
        kv_txn_delete(t, format_key_view(&k));
        if (!l->v[i].chunks)
            continue;
        hard_chunks_range(l->v[i].id, &k, &to);
        kv_txn_delete_range(t, format_key_view(&k), format_key_view(&to));
    }
}

void hard_gone_end(struct disk *d, bool done)
{
    LOCK_SCOPE(&d->lock);
    struct hard_gone_list *l = &d->hard->syncing;
    for (size_t i = 0; i < l->n && !done; i++)
        add_gone_locked(d, l->v[i]);
    l->n = 0;
}
