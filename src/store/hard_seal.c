/*
 * Settling: from a file that may have been written by anybody to one that the index vouches for.
 *
 * Measuring asks the kernel whether anybody has the file open for writing: a read lease is refused while
 * somebody does, also through a mapping or as the backing file of a mount, in this process or another. The
 * lease is given up at once. From then on only hard_begin_writing leads to writing, which counts `changes`:
 * what was read while that count stayed the same is what the file holds.
 *
 * Sealing writes: the bytes are synced first, then the hard record is committed durably, so that a record
 * that is there is true whatever happens.
 *
 * Failure modes: whatever fails, the extent stays unsettled and may be measured again. A sync that fails has
 * perhaps lost bytes that the page cache still shows; the error is given, and a later check will find them.
 */
#include "base/crc32c.h"
#include "base/sys.h"
#include "store/hard_internal.h"

#include <fcntl.h>

#define SYNC_ONE_BY_ONE 8 /* files; more are synced with the whole file system */

static struct hard_shard *shard(const struct hard *h)
{
    return hard_shard_of(h->store, h->id);
}

static bool changed_since(struct hard *h, uint64_t changes)
{
    return __atomic_load_n(&h->changes, __ATOMIC_ACQUIRE) != changes;
}

/* ---- measuring ---- */

/* 0: nobody has the file open for writing at this moment. */
static int ask_for_writers(struct hard *h)
{
    int r = sys->setlease(h->fd, F_RDLCK);
    if (r == -EINVAL || r == -ENOLCK)
        return -EOPNOTSUPP;
    if (r < 0)
        return r;
    return sys->setlease(h->fd, F_UNLCK);
}

static int read_sums(struct hard *h, struct hard_sums *m, uint64_t size, uint64_t changes, struct err *e)
{
    _cleanup_free_ char *buf = NULL;
    for (uint64_t offset = 0; offset < size;) {
        int64_t at = hard_next_data(h->fd, offset);
        if (at == -ENOENT || (at >= 0 && (uint64_t)at >= size))
            return 0;
        if (at < 0)
            return (int)at;
        if (changed_since(h, changes))
            return -EAGAIN;
        uint64_t block = (uint64_t)at / STORE_BLOCK_BYTES, n = hard_block_bytes(size, block);
        if (!buf && !(buf = malloc(STORE_BLOCK_BYTES)))
            abort();
        int r = sys_pread_all(h->fd, buf, n, block * STORE_BLOCK_BYTES);
        if (r == 0)
            r = hard_sums_add(h, m, block, crc32c(0, buf, n), e);
        if (r < 0)
            return r == -ENODATA ? -EAGAIN : r;
        offset = (block + 1) * STORE_BLOCK_BYTES;
    }
    return 0;
}

/* What is measured, without the lock. */
struct measuring {
    uint64_t changes; /* when it began */
    struct hard_sums *sums;
    bool run; /* sums are those of a run up to here */
    uint64_t run_offset;
    uint32_t run_crc;
    struct stat st;
};

/* The run's checksums, when they are those of the whole file; else reads it. */
static int collect(struct hard *h, struct measuring *m, struct err *e)
{
    uint64_t size = (uint64_t)m->st.st_size;
    if (m->run && m->sums && m->run_offset == size) {
        if (size % STORE_BLOCK_BYTES == 0)
            return 0;
        return hard_sums_add(h, m->sums, size / STORE_BLOCK_BYTES, m->run_crc, e);
    }
    hard_sums_free(m->sums);
    m->sums = hard_sums_new();
    return read_sums(h, m->sums, size, m->changes, e);
}

static bool same(const struct stat *a, const struct stat *b)
{
    return a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* By the one who set h->measuring. */
static int measure(struct hard *h, struct measuring *m, struct err *e)
{
    struct stat after;
    int r = ask_for_writers(h);
    if (r == 0)
        r = sys->fstat(h->fd, &m->st);
    if (r == 0)
        r = collect(h, m, e);
    if (r == 0)
        r = sys->fstat(h->fd, &after);
    return r == 0 && !same(&m->st, &after) ? -EAGAIN : r;
}

static bool is_measured_locked(const struct hard *h)
{
    return h->measured && h->measured_changes == h->changes && h->writers == 0 && !h->removed && !h->busy;
}

/* 0: m is to be measured; 1: nothing to do; -EAGAIN, -ENOENT. */
static int begin_measuring(struct hard *h, struct measuring *m)
{
    struct hard_shard *t = shard(h);
    LOCK_SCOPE(&t->lock);
    hard_wait_idle_locked(t, h);
    if (h->removed)
        return -ENOENT;
    if (h->sealed || is_measured_locked(h))
        return 1;
    if (h->writers > 0 || h->measuring)
        return -EAGAIN;
    *m = (struct measuring){.changes = h->changes,
                            .run = h->run_ok,
                            .run_offset = h->run_offset,
                            .run_crc = h->run_crc,
                            .sums = TAKE_PTR(h->sums)};
    h->measuring = true;
    h->measured = h->run_ok = false;
    return 0;
}

/* Keeps what was measured, if nobody began to write. */
static int end_measuring(struct hard *h, struct measuring *m, int r)
{
    struct hard_shard *t = shard(h);
    LOCK_SCOPE(&t->lock);
    h->measuring = false;
    if (r == 0 && (h->changes != m->changes || h->removed || h->busy))
        r = -EAGAIN;
    if (r < 0)
        return r;
    hard_drop_sums_locked(h);
    h->sums = TAKE_PTR(m->sums);
    h->measured = true;
    h->handed = false; /* the lease would have been refused */
    h->measured_changes = m->changes;
    h->measured_bytes = (uint64_t)m->st.st_size;
    h->measured_allocated = hard_bytes_of(&m->st);
    return 0;
}

int hard_measure(struct hard *h, struct stat *ret, struct err *e)
{
    assert(h && h->magic == HARD_MAGIC && ret && !h->store->read_only);
    struct measuring m = {0};
    int r = begin_measuring(h, &m);
    if (r == 1) {
        r = sys->fstat(h->fd, &m.st);
    } else if (r == 0) {
        r = end_measuring(h, &m, measure(h, &m, e));
        if (r == 0)
            hard_account(h, hard_bytes_of(&m.st));
    }
    hard_sums_free(m.sums);
    if (r == -EAGAIN)
        return r;
    if (r < 0)
        return err_errno(e, r, "disk %s: measure a hard extent", h->disk->path);
    *ret = m.st;
    return 0;
}

/* ---- sealing ---- */

/* Of one disk: what is to be sealed, and where it was among what the caller gave. */
struct batch {
    struct disk *d;
    struct hard **h;
    size_t *at;
    struct hard_change *changes;
    size_t n;
};

/* Whether it is to be synced. False also when there is nothing to do. */
static bool select_one(struct hard *h, bool *ret_sealed, bool *ret_dirty)
{
    struct hard_shard *t = shard(h);
    LOCK_SCOPE(&t->lock);
    *ret_sealed = h->sealed && !h->busy;
    *ret_dirty = h->dirty || h->syncing > 0; /* what another thread syncs is not on disk yet */
    return !h->sealed && is_measured_locked(h);
}

static void note_fault(struct hard *h, int r)
{
    struct hard_shard *t = shard(h);
    LOCK_SCOPE(&t->lock);
    h->fault = r;
}

int hard_take_fault(struct hard *h)
{
    assert(h && h->magic == HARD_MAGIC);
    struct hard_shard *t = shard(h);
    LOCK_SCOPE(&t->lock);
    int r = h->fault;
    h->fault = 0;
    return r;
}

void hard_ask_each(struct disk *d)
{
    __atomic_store_n(&d->hard->asks_each, true, __ATOMIC_RELEASE);
}

/* The bytes of all of them are on disk; those whose sync failed leave the batch. A sync of the whole disk
 * that fails does not say whose bytes were lost, and the next one may succeed: then each file is asked, also
 * those of later batches, for the kernel has told of theirs with it. */
static int sync_batch(struct batch *b, const bool *dirty, size_t n_dirty)
{
    struct disk *d = b->d;
    int fd = __atomic_load_n(&d->hard->dir_fd, __ATOMIC_ACQUIRE), first = 0;
    bool asks_each = __atomic_load_n(&d->hard->asks_each, __ATOMIC_ACQUIRE);
    if (n_dirty > SYNC_ONE_BY_ONE && fd >= 0 && !asks_each) {
        if (sys->syncfs(fd) == 0)
            return 0;
        hard_ask_each(d);
    }
    size_t kept = 0;
    for (size_t i = 0; i < b->n; i++) {
        int r = dirty[i] ? sys->fdatasync(b->h[i]->fd) : 0;
        first = first < 0 ? first : r;
        if (r < 0) {
            note_fault(b->h[i], r);
            continue;
        }
        b->h[kept] = b->h[i];
        b->at[kept++] = b->at[i];
    }
    b->n = kept;
    return first;
}

/* Makes those busy that nobody touched meanwhile, with the change that seals them; the others leave. */
static void begin_seal(struct batch *b)
{
    size_t kept = 0;
    for (size_t i = 0; i < b->n; i++) {
        struct hard *h = b->h[i];
        struct hard_shard *t = shard(h);
        struct stat st;
        /* Once more: allocation is decided when the bytes are written to the disk. */
        bool known = sys->fstat(h->fd, &st) == 0;
        LOCK_SCOPE(&t->lock);
        if (h->sealed || !is_measured_locked(h))
            continue;
        h->measured_allocated = known ? hard_bytes_of(&st) : h->measured_allocated;
        h->busy = h->head_may_exist = true;
        struct hard_change *c = &b->changes[kept];
        *c = (struct hard_change){
            .kind = HARD_SEAL, .id = h->id, .sums = h->sums, .stale_chunks = h->stale_chunks};
        hard_sums_finish(h->sums, h->measured_bytes, &c->head);
        c->head.allocated_bytes = h->measured_allocated;
        b->h[kept] = h;
        b->at[kept++] = b->at[i];
    }
    b->n = kept;
}

static void end_seal(struct batch *b, bool *ret_ok)
{
    for (size_t i = 0; i < b->n; i++) {
        struct hard *h = b->h[i];
        struct hard_shard *t = shard(h);
        bool ok = b->changes[i].result == 0;
        uint64_t allocated = h->measured_allocated;
        lock_take(&t->lock);
        h->busy = false;
        if (ok) {
            hard_set_sealed_locked(h, true);
            h->dirty = false;
            h->stale_chunks = true;
            hard_drop_sums_locked(h);
        }
        cond_broadcast(&t->idle);
        lock_drop(&t->lock);
        if (ok) /* what the hard record says, which is where it is counted from now on */
            hard_account_sealed(h, allocated);
        ret_ok[b->at[i]] = ok;
    }
}

static int settle_disk(struct batch *b, const bool *dirty, size_t n_dirty, bool *ret_ok, struct err *e)
{
    int r = sync_batch(b, dirty, n_dirty);
    if (r < 0)
        (void)err_errno(e, r, "disk %s: sync hard extents", b->d->path);
    begin_seal(b);
    int code = hard_commit(b->d, b->changes, b->n);
    end_seal(b, ret_ok);
    if (code < 0 && r == 0)
        r = err_errno(e, code, "disk %s: index", b->d->path);
    return r;
}

int hard_settle(struct store *s, struct hard *const *h, size_t n, bool *ret_ok, struct err *e)
{
    assert(s && (h || n == 0) && ret_ok && !s->read_only);
    int result = 0;
    struct batch b = {.h = calloc(n + 1, sizeof(b.h[0])),
                      .at = calloc(n + 1, sizeof(b.at[0])),
                      .changes = calloc(n + 1, sizeof(b.changes[0]))};
    bool *dirty = calloc(n + 1, sizeof(dirty[0]));
    if (!b.h || !b.at || !b.changes || !dirty)
        abort();
    for (size_t i = 0; i < n; i++)
        ret_ok[i] = false;
    for (size_t k = 0; k < s->n_disks; k++) {
        size_t n_dirty = 0;
        b.d = &s->disks[k];
        b.n = 0;
        for (size_t i = 0; i < n; i++) {
            if (h[i]->disk != b.d || !select_one(h[i], &ret_ok[i], &dirty[b.n]))
                continue;
            n_dirty += dirty[b.n];
            b.h[b.n] = h[i];
            b.at[b.n++] = i;
        }
        int r = b.n > 0 ? settle_disk(&b, dirty, n_dirty, ret_ok, result == 0 ? e : NULL) : 0;
        result = result < 0 ? result : r;
    }
    free(b.h);
    free(b.at);
    free(b.changes);
    free(dirty);
    return result;
}
