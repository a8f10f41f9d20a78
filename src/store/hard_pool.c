/*
 * The pool of ready files: empty, marked, and named durably, so that taking one costs no disk I/O.
 *
 * One thread per disk, begun by the first taker, fills it in batches: the marks in one durable commit, the
 * files in one directory, one fsync of that. The batch doubles while takers find the pool empty, up to
 * BATCH_MAX, and shrinks again when they are gone. A store of which nobody takes makes no file and no thread.
 *
 * Invariants:
 *  1. A file in the pool was never written, and nobody has it open: what a crash leaves in it is nothing,
 * whoever takes it next.
 *  2. Its mark was durable before it was made.
 *
 * Failure modes: a batch that fails removes what it made; its marks go with the next flush (or the sweep at
 * start), and those who wait are given the error. The next taker tries again.
 */
#include "base/log.h"
#include "base/sys.h"
#include "store/hard_internal.h"

#include <fcntl.h>
#include <string.h>

#define BATCH_MIN    64
#define BATCH_MAX    1024
#define POOL_MAX     (2 * BATCH_MAX)
#define SUB_FILES    4096  /* made in one directory before the next one is used: its own name costs a sync */
#define IDLE_MS      10000 /* rounds further apart than this make the batch smaller */
#define DISKS_SAMPLE 2
#define TAKE_TRIES   8

void hard_pool_init(struct disk *d)
{
    struct hard_disk *hd = calloc(1, sizeof(*hd));
    if (!hd)
        abort();
    hd->dir_fd = -1;
    hd->tail = &hd->queue;
    cond_init(&hd->committed);
    lock_init(&hd->pool.lock, LOCK_DISK);
    cond_init(&hd->pool.wanted);
    cond_init(&hd->pool.filled);
    hd->pool.batch = BATCH_MIN;
    d->hard = hd;
}

void hard_pool_stop(struct disk *d)
{
    struct hard_pool *p = &d->hard->pool;
    lock_take(&p->lock);
    p->stop = true;
    bool has = p->has_thread;
    p->has_thread = false;
    cond_broadcast(&p->wanted);
    cond_broadcast(&p->filled);
    lock_drop(&p->lock);
    if (!has)
        return;
    int r = pthread_join(p->thread, NULL);
    assert(r == 0);
}

void hard_pool_fini(struct disk *d)
{
    struct hard_pool *p = &d->hard->pool;
    assert(!p->has_thread);
    free(p->v);
    cond_fini(&p->wanted);
    cond_fini(&p->filled);
    lock_fini(&p->lock);
}

static void add_locked(struct hard_pool *p, const struct id128 *v, size_t n)
{
    if (p->n + n > p->room) {
        p->room = MAX(2 * p->room, p->n + n);
        p->v = realloc(p->v, p->room * sizeof(p->v[0]));
        if (!p->v)
            abort();
    }
    memcpy(p->v + p->n, v, n * sizeof(v[0]));
    p->n += n;
}

/* One that cannot be opened is the last to be tried again. */
static void put_last(struct disk *d, struct id128 id)
{
    struct hard_pool *p = &d->hard->pool;
    LOCK_SCOPE(&p->lock);
    if (p->n >= POOL_MAX || p->stop)
        return;
    add_locked(p, &id, 1);
    memmove(p->v + 1, p->v, (p->n - 1) * sizeof(p->v[0]));
    p->v[0] = id;
}

bool hard_pool_give(struct disk *d, struct id128 id)
{
    struct hard_pool *p = &d->hard->pool;
    LOCK_SCOPE(&p->lock);
    if (p->n >= POOL_MAX || p->stop)
        return false;
    add_locked(p, &id, 1);
    return true;
}

/* ---- filling, by the thread of the disk ---- */

/* DISK/hard, once per run. When it is new, so may be everything above it; a former run may have been killed
 * before it made the name durable. */
static int make_dir(struct disk *d)
{
    struct hard_disk *hd = d->hard;
    char path[DISK_PATH_MAX];
    if (hd->pool.dir_made)
        return 0;
    (void)snprintf(path, sizeof(path), "%s/hard", d->path);
    int r = sys->mkdir(path, 0700);
    if (r < 0 && r != -EEXIST)
        return r;
    hd->pool.dir_is_new |= r == 0;
    if (r == 0)
        disk_forgo_access_times(path);
    if (__atomic_load_n(&hd->dir_fd, __ATOMIC_ACQUIRE) < 0) {
        int fd = sys->open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
        if (fd < 0)
            return fd;
        __atomic_store_n(&hd->dir_fd, fd, __ATOMIC_RELEASE);
    }
    r = hd->pool.dir_is_new ? sys->syncfs(hd->dir_fd) : sys->fsync(d->dir_fd);
    hd->pool.dir_made = r == 0;
    return r;
}

/* DISK/hard/xx, open. Its name is durable. */
static int open_sub(struct disk *d, uint8_t sub)
{
    struct hard_disk *hd = d->hard;
    char path[DISK_PATH_MAX];
    (void)snprintf(path, sizeof(path), "%s/hard/%02x", d->path, sub);
    int r = hd->pool.sub_synced[sub] ? 0 : sys->mkdir(path, 0700);
    if (r < 0 && r != -EEXIST)
        return r;
    if (!hd->pool.sub_synced[sub]) {
        r = sys->fsync(hd->dir_fd);
        if (r < 0)
            return r;
        hd->pool.sub_synced[sub] = true;
    }
    return sys->open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
}

static int commit_marks(struct disk *d, const struct id128 *ids, size_t n, struct err *e)
{
    struct kv_txn *_cleanup_(kv_txn_freep) t = kv_txn_new(d->kv);
    for (size_t i = 0; i < n; i++) {
        struct format_key k;
        format_key_id('f', ids[i], &k);
        kv_txn_put_plain(t, format_key_view(&k), SLICE_NULL);
    }
    return kv_txn_commit(t, KV_DURABLE, e);
}

static int make_files(int dir_fd, const struct id128 *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char hex[ID_TEXT_SIZE];
        id_text(ids[i], hex);
        int fd = sys->openat(dir_fd, hex, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
            return fd;
        (void)sys->close(fd);
    }
    return sys->fsync(dir_fd);
}

/* What a failed batch made. A file that cannot be removed keeps its mark, for the sweep. */
static void unmake(struct disk *d, const struct id128 *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char path[DISK_PATH_MAX];
        hard_path(d, ids[i], path);
        int r = sys->unlink(path);
        if (r == 0 || r == -ENOENT)
            hard_gone(d, ids[i], /* chunks= */ false);
    }
}

static int fill(struct disk *d, struct id128 *ids, size_t n)
{
    struct err e = {0};
    struct hard_pool *p = &d->hard->pool;
    if (p->sub_files >= SUB_FILES) {
        p->sub++;
        p->sub_files = 0;
    }
    uint8_t sub = p->sub;
    p->sub_files += n;
    for (size_t i = 0; i < n; i++) {
        id_new(&ids[i]);
        ids[i].b[0] = sub; /* so that one directory is to be synced */
    }
    int r = make_dir(d);
    if (r < 0)
        return disk_log_error(d, "make directory hard", r);
    int fd = open_sub(d, sub);
    if (fd < 0)
        return disk_log_error(d, "make a directory in hard", fd);
    r = commit_marks(d, ids, n, &e);
    if (r < 0)
        log_error("store", "disk %s: index: %s", d->path, e.text);
    else if ((r = make_files(fd, ids, n)) < 0)
        (void)disk_log_error(d, "make files in hard", r);
    (void)sys->close(fd);
    if (r < 0)
        unmake(d, ids, n);
    return r;
}

static bool wants_locked(const struct hard_pool *p)
{
    return p->asked || (p->n < p->batch / 2 && p->error == 0);
}

static size_t next_batch_locked(struct hard_pool *p)
{
    uint64_t now = sys_mono_ms();
    if (now - p->last_round_ms > IDLE_MS)
        p->batch = MAX(p->batch / 2, (size_t)BATCH_MIN);
    else if (p->asked && p->error == 0 && p->rounds > 0)
        p->batch = MIN(2 * p->batch, (size_t)BATCH_MAX);
    p->last_round_ms = now;
    p->asked = false;
    return p->batch;
}

static void *filler_run(void *arg)
{
    struct disk *d = arg;
    struct hard_pool *p = &d->hard->pool;
    struct id128 *ids = calloc(BATCH_MAX, sizeof(ids[0]));
    if (!ids)
        abort();
    sys->random(&p->sub, sizeof(p->sub));
    lock_take(&p->lock);
    while (!p->stop) {
        if (!wants_locked(p)) {
            cond_wait(&p->wanted, &p->lock);
            continue;
        }
        size_t n = next_batch_locked(p);
        lock_drop(&p->lock);
        int r = fill(d, ids, n);
        lock_take(&p->lock);
        if (r == 0)
            add_locked(p, ids, n);
        p->error = r;
        p->rounds++;
        cond_broadcast(&p->filled);
    }
    lock_drop(&p->lock);
    free(ids);
    return NULL;
}

/* ---- taking ---- */

static int start_locked(struct disk *d)
{
    struct hard_pool *p = &d->hard->pool;
    if (p->has_thread || p->stop)
        return 0;
    p->last_round_ms = sys_mono_ms();
    int r = -pthread_create(&p->thread, NULL, filler_run, d);
    p->has_thread = r == 0;
    return r;
}

int hard_pool_take(struct disk *d, struct id128 *ret)
{
    struct hard_pool *p = &d->hard->pool;
    LOCK_SCOPE(&p->lock);
    int r = start_locked(d);
    uint64_t before = p->rounds;
    while (r == 0 && p->n == 0) {
        if (p->stop)
            return ERR_CLOSED;
        if (p->rounds > before && p->error < 0)
            return p->error;
        p->asked = true;
        cond_signal(&p->wanted);
        cond_wait(&p->filled, &p->lock);
    }
    if (r < 0)
        return r;
    *ret = p->v[--p->n];
    if (wants_locked(p))
        cond_signal(&p->wanted);
    return 0;
}

static int take_one(struct disk *d, struct hard **ret)
{
    static const struct timespec now[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_NOW}};
    struct id128 id;
    char path[DISK_PATH_MAX];
    int r = hard_pool_take(d, &id);
    if (r < 0)
        return r;
    hard_path(d, id, path);
    int fd = sys->open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW, 0);
    r = fd < 0 ? fd : sys->futimens(fd, now);
    if (r < 0) {
        if (fd >= 0)
            (void)sys->close(fd);
        if (r != -ENOENT)
            put_last(d, id);
        return r;
    }
    struct hard *h = hard_new(d, id, fd);
    if (!h) {
        (void)sys->close(fd);
        put_last(d, id);
        return -EBUSY;
    }
    *ret = h;
    return 0;
}

/* Whoever looks at a file by a location of before it came to the pool does so for a moment. */
static int take_from(struct disk *d, struct hard **ret)
{
    int r = -EBUSY;
    for (unsigned i = 0; r == -EBUSY && i < TAKE_TRIES; i++)
        r = take_one(d, ret);
    return r;
}

/* How full of hard data a disk is, in 1/1000. */
static uint64_t fullness(struct disk *d)
{
    LOCK_SCOPE(&d->lock);
    return d->hard->bytes / MAX(d->limit_bytes / 1000, (uint64_t)1);
}

/* Of two disks drawn at random the emptier one. */
static size_t choose_disk(struct store *s)
{
    uint32_t draw[DISKS_SAMPLE];
    if (s->n_disks == 1)
        return 0;
    sys->random(draw, sizeof(draw));
    size_t a = draw[0] % s->n_disks, b = draw[1] % s->n_disks;
    return fullness(&s->disks[a]) <= fullness(&s->disks[b]) ? a : b;
}

int hard_take(struct store *s, struct hard **ret, struct err *e)
{
    assert(s && ret);
    if (s->read_only)
        return err_set(e, -EROFS, "the store is open read-only");
    size_t first = choose_disk(s);
    int r = 0;
    for (size_t i = 0; i < s->n_disks; i++) {
        struct disk *d = &s->disks[(first + i) % s->n_disks];
        int code = take_from(d, ret);
        if (code == 0)
            return 0;
        if (r == 0)
            r = err_errno(e, code, "disk %s: make a file", d->path);
    }
    return r;
}

void hard_give_back(struct hard *h)
{
    assert(h && h->magic == HARD_MAGIC);
    struct store *s = h->store;
    struct disk *d = h->disk;
    struct id128 id = h->id;
    uint8_t location[HARD_LOCATION_BYTES];
    hard_location(h, location);
    if (hard_forget(h)) {
        if (hard_pool_give(d, id))
            return;
    }
    struct err e = {0};
    struct slice one = slice_of(location, sizeof(location));
    if (hard_remove(s, &one, 1, &e) < 0) /* its mark stays, for the sweep */
        log_warn("store", "%s", e.text);
}
