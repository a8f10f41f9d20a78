/*
 * One disk: its directory, its identity, its files and its two threads.
 *
 * Invariants:
 *  1. The mark says "unclean" on stable storage before anything else is changed, and "clean" only after
 * everything was recorded and made durable.
 *  2. The index's lock (kv) is held from before the mark is written until the store is closed, so one process
 * at a time uses a disk.
 *  3. A file is made only after its marker was committed.
 *
 * Failure modes: a first start that was interrupted leaves a directory without a mark but also without
 * extents; it is taken as new. A mark that cannot be read is an error: somebody else's directory is never
 * touched.
 */
#include "base/log.h"
#include "base/sys.h"
#include "store/hard_internal.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/ioctl.h>

#define BOOT_ID_PATH "/proc/sys/kernel/random/boot_id"
#define BOOT_UNKNOWN "unknown" /* is the same as no other */
#define KV_CACHE_MIN (2 * MIB)
#define KV_WRITE_MIN (2 * MIB)
#define KV_WRITE_MAX (64 * MIB)

store_open_kv_fn store_open_kv = kv_open_rocksdb;

void disk_extent_path(const struct disk *d, struct id128 id, char ret[DISK_PATH_MAX])
{
    char hex[ID_TEXT_SIZE];
    id_text(id, hex);
    int n = snprintf(ret, DISK_PATH_MAX, "%s/extents/%.2s/%s", d->path, hex, hex);
    assert(n > 0 && n < DISK_PATH_MAX);
}

/*
 * Files made below have no access times: nobody asks for those of extents, and looking whether one is due
 * costs a tenth of a 4 KiB read that the kernel does for a mount. Inherited by what is made below; file
 * systems without the attribute refuse, which is no harm.
 */
void disk_forgo_access_times(const char *path)
{
    _cleanup_close_ int fd = sys->open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    int flags;
    if (fd < 0 || ioctl(fd, FS_IOC_GETFLAGS, &flags) < 0 || (flags & FS_NOATIME_FL))
        return;
    flags |= FS_NOATIME_FL;
    (void)ioctl(fd, FS_IOC_SETFLAGS, &flags);
}

static int make_extent_dir(struct disk *d, struct id128 id)
{
    char dir[DISK_PATH_MAX];
    int n = snprintf(dir, sizeof(dir), "%s/extents/%02x", d->path, id.b[0]);
    assert(n > 0 && n < (int)sizeof(dir));
    int r = sys->mkdir(dir, 0700);
    return r == -EEXIST ? 0 : r;
}

int disk_create_file(struct disk *d, struct id128 id)
{
    char path[DISK_PATH_MAX];
    disk_extent_path(d, id, path);
    int flags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
    int fd = sys->open(path, flags, 0600);
    if (fd != -ENOENT)
        return fd;
    int r = make_extent_dir(d, id);
    return r < 0 ? r : sys->open(path, flags, 0600);
}

/* Commits the markers of n files that are about to be made. */
static int mark_births(struct disk *d, const struct id128 *ids, size_t n, struct err *e)
{
    struct format_key k;
    struct kv_txn *_cleanup_(kv_txn_freep) t = kv_txn_new(d->kv);
    for (size_t i = 0; i < n; i++) {
        format_key_id('s', ids[i], &k);
        kv_txn_put_plain(t, format_key_view(&k), SLICE_NULL);
    }
    return kv_txn_commit(t, KV_VISIBLE, e);
}

/* Takes an id whose marker is committed already. *ret_ahead: whether the caller is to make the next ones. One
 * thread makes many, so that a commit is not what every file costs, and before there are none left, as who
 * finds none makes its own. */
static bool take_marked(struct disk *d, struct id128 *ret, bool *ret_ahead)
{
    LOCK_SCOPE(&d->lock);
    bool has = d->n_births > 0;
    if (has)
        *ret = d->births[--d->n_births];
    *ret_ahead = d->n_births < BIRTHS_LOW && !d->making_births && !d->stop;
    d->making_births |= *ret_ahead;
    return has;
}

static void give_marked(struct disk *d, const struct id128 *ids, size_t n)
{
    LOCK_SCOPE(&d->lock);
    assert(d->making_births && d->n_births + n <= ARRAY_SIZE(d->births));
    memcpy(d->births + d->n_births, ids, n * sizeof(*ids));
    d->n_births += n;
    d->making_births = false;
}

int disk_mark_birth(struct disk *d, struct id128 *ret, struct err *e)
{
    struct id128 ids[BIRTHS_AHEAD + 1];
    bool ahead, has = take_marked(d, ret, &ahead);
    size_t own = has ? 0 : 1, n = own + (ahead ? BIRTHS_AHEAD : 0);
    if (n == 0)
        return 0;
    for (size_t i = 0; i < n; i++)
        id_new(&ids[i]);
    int r = mark_births(d, ids, n, has ? NULL : e);
    if (ahead)
        give_marked(d, ids + own, r == 0 ? BIRTHS_AHEAD : 0);
    if (!has && r == 0)
        *ret = ids[0];
    return has ? 0 : r;
}

/* At a clean stop: what was marked ahead and not made. */
static void drop_births(struct disk *d)
{
    struct format_key k;
    struct kv_txn *_cleanup_(kv_txn_freep) t = kv_txn_new(d->kv);
    lock_take(&d->lock);
    for (; d->n_births > 0; d->n_births--) {
        format_key_id('s', d->births[d->n_births - 1], &k);
        kv_txn_delete(t, format_key_view(&k));
    }
    lock_drop(&d->lock);
    (void)kv_txn_commit(t, KV_VISIBLE, NULL); /* else the next start removes them */
}

void disk_unmark_birth(struct disk *d, struct id128 id)
{
    struct format_key k;
    format_key_id('s', id, &k);
    struct kv_txn *_cleanup_(kv_txn_freep) t = kv_txn_new(d->kv);
    kv_txn_delete(t, format_key_view(&k));
    (void)kv_txn_commit(t, KV_VISIBLE, NULL); /* else the marker is removed at the next start */
}

/* ---- the mark ---- */

static void mark_path(const struct disk *d, char ret[DISK_PATH_MAX])
{
    (void)snprintf(ret, DISK_PATH_MAX, "%s/forebay-disk", d->path);
}

static void boot_id(char ret[FORMAT_BOOT_SIZE])
{
    _cleanup_free_ char *p = NULL;
    size_t n = 0;
    (void)snprintf(ret, FORMAT_BOOT_SIZE, BOOT_UNKNOWN);
    if (sys_read_file(BOOT_ID_PATH, FORMAT_BOOT_SIZE - 1, &p, &n) == 0)
        (void)snprintf(ret, FORMAT_BOOT_SIZE, SLICE_FMT,
                       SLICE_ARG(slice_trim(slice_of(p, strcspn(p, "\n")))));
}

static bool exists(const struct disk *d, const char *name)
{
    char path[DISK_PATH_MAX];
    struct stat st;
    (void)snprintf(path, sizeof(path), "%s/%s", d->path, name);
    return sys->stat(path, &st) == 0;
}

/* Reads the mark, or begins a new one for a new disk. */
static int read_mark(struct disk *d, struct format_disk *ret, struct err *e)
{
    char path[DISK_PATH_MAX];
    mark_path(d, path);
    _cleanup_free_ char *p = NULL;
    size_t n = 0;
    int r = sys_read_file(path, FORMAT_DISK_FILE_MAX, &p, &n);
    if (r == -ENOENT && !d->store->read_only && !exists(d, "extents")) {
        *ret = (struct format_disk){.clean = true};
        id_new(&ret->id);
        boot_id(ret->boot);
        return 0;
    }
    if (r < 0)
        return err_errno(e, r, "read %s", path);
    r = format_disk_decode(slice_of(p, n), ret);
    if (r == -EPROTONOSUPPORT)
        return err_set(e, r, "%s: written by another version of forebay", path);
    return r < 0 ? err_set(e, r, "%s: not a forebay mark; is this a forebay disk?", path) : 0;
}

static int write_mark(struct disk *d, bool clean)
{
    char path[DISK_PATH_MAX];
    mark_path(d, path);
    struct buf _cleanup_buf_ b = BUF_INIT(FORMAT_DISK_FILE_MAX);
    struct format_disk mark = {.id = d->id, .clean = clean};
    boot_id(mark.boot);
    format_disk_encode(&mark, &b);
    return sys_write_file_atomic(path, b.p, b.n, 0600);
}

/* ---- opening ---- */

static int open_index(struct disk *d, struct err *e)
{
    const struct store_config *c = &d->store->config;
    uint64_t share = c->memory_bytes / c->n_disks;
    struct kv_options o = {
        .cache_bytes = MAX(share / 16 * 5, KV_CACHE_MIN),
        .write_buffer_bytes = MIN(MAX(share / 8, KV_WRITE_MIN), KV_WRITE_MAX),
        .read_only = d->store->read_only,
    };
    char path[DISK_PATH_MAX];
    (void)snprintf(path, sizeof(path), "%s/index", d->path);
    return store_open_kv(path, &o, &d->kv, e);
}

static void make_metrics(struct disk *d)
{
    d->m_used = metrics_series(METRIC_DISK_USED_BYTES, d->path, NULL, NULL);
    d->m_limit = metrics_series(METRIC_DISK_LIMIT_BYTES, d->path, NULL, NULL);
    d->m_extents = metrics_series(METRIC_DISK_EXTENTS, d->path, NULL, NULL);
    d->m_free = metrics_series(METRIC_DISK_FREE_BYTES, d->path, NULL, NULL);
    d->m_entries = metrics_series(METRIC_INDEX_ENTRIES, d->path, NULL, NULL);
    d->m_verified = metrics_series(METRIC_VERIFIED_BLOCKS, d->path, NULL, NULL);
    d->hard->m_bytes = metrics_series(METRIC_DISK_HARD_BYTES, d->path, NULL, NULL);
    d->hard->m_extents = metrics_series(METRIC_DISK_HARD_EXTENTS, d->path, NULL, NULL);
}

static void init_fields(struct disk *d, const char *path)
{
    d->path = slice_dup(slice_str(path));
    d->dir_fd = d->dying_fd = -1;
    lock_init(&d->lock, LOCK_DISK);
    cond_init(&d->wake_writer);
    cond_init(&d->recorded_cond);
    cond_init(&d->wake_flusher);
    cond_init(&d->flushed_cond);
    d->dirty_tail = &d->dirty_head;
    d->doom_tail = &d->doom_head;
    hard_pool_init(d);
    hard_early_init(d);
}

/* What cannot be read without the index and cannot be changed before the mark is written. */
static int open_files(struct disk *d, const struct format_disk *mark, struct err *e)
{
    char path[DISK_PATH_MAX], here[FORMAT_BOOT_SIZE];
    boot_id(here);
    d->id = mark->id;
    d->was_clean = mark->clean;
    d->same_boot = strcmp(mark->boot, here) == 0 && strcmp(here, BOOT_UNKNOWN) != 0;
    int r = recover_doubts(d, e);
    if (r < 0)
        return err_prefix(e, r, "index");
    if (!d->store->read_only) {
        r = write_mark(d, /* clean= */ false);
        if (r < 0)
            return err_errno(e, r, "write the mark");
        (void)snprintf(path, sizeof(path), "%s/extents", d->path);
        r = sys_mkdir_p(path, 0700);
        if (r < 0)
            return err_errno(e, r, "make directory %s", path);
        disk_forgo_access_times(path);
    }
    d->dir_fd = sys->open(d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    return d->dir_fd < 0 ? err_errno(e, d->dir_fd, "open") : 0;
}

int disk_open(struct disk *d, const struct store_disk_config *config, struct err *e)
{
    init_fields(d, config->path);
    struct format_disk mark;
    int r = strlen(d->path) + 64 < DISK_PATH_MAX ? 0 : err_errno(e, -ENAMETOOLONG, "open");
    if (r == 0 && !d->store->read_only && (r = sys_mkdir_p(d->path, 0700)) < 0)
        (void)err_errno(e, r, "make the directory");
    if (r == 0)
        r = read_mark(d, &mark, e);
    if (r == 0)
        r = open_index(d, e);
    if (r == 0)
        r = open_files(d, &mark, e);
    if (r == 0)
        r = hard_disk_open(d, e);
    if (r == 0)
        r = recover_disk(d, e);
    if (r < 0)
        return err_prefix(e, r, "disk %s", config->path);
    make_metrics(d);
    d->is_open = true;
    return 0;
}

/* ---- threads ---- */

static void *sweeper_run(void *arg)
{
    recover_sweep(arg);
    return NULL;
}

int disk_start(struct disk *d, struct err *e)
{
    int r = pthread_create(&d->writer, NULL, writer_run, d);
    d->has_writer = r == 0;
    if (r == 0) {
        r = pthread_create(&d->flusher, NULL, flusher_run, d);
        d->has_flusher = r == 0;
    }
    if (r == 0)
        (void)hard_early_start(d); /* what it does can be left out */
    /* After a mere kill the markers name every file without an entry; after power loss they may have been
     * lost. */
    if (r == 0 && d->sweep_wanted) {
        r = pthread_create(&d->sweeper, NULL, sweeper_run, d);
        d->has_sweeper = r == 0;
    }
    return r == 0 ? 0 : err_errno(e, -r, "disk %s: start a thread", d->path);
}

static void join(bool *has, pthread_t thread)
{
    if (!*has)
        return;
    int r = pthread_join(thread, NULL);
    assert(r == 0);
    *has = false;
}

void disk_stop(struct disk *d, bool clean)
{
    bool running = d->has_writer;
    if (clean && running) {
        table_record_reads(d->store, d, /* lag_ms= */ 1);
        drop_births(d);
        struct err e = {0};
        if (flush_epoch(d, &e) < 0) {
            log_error("store", "disk %s: clean stop: %s", d->path, e.text);
            clean = false;
        }
    }
    lock_take(&d->lock);
    d->stop = true;
    d->abandon = !clean;
    cond_broadcast(&d->wake_writer);
    cond_broadcast(&d->wake_flusher);
    lock_drop(&d->lock);
    hard_pool_stop(d);
    hard_early_stop(d);
    join(&d->has_sweeper, d->sweeper);
    join(&d->has_flusher, d->flusher);
    join(&d->has_writer, d->writer);
    if (clean && running && !d->unread) { /* else the next start ends what waits */
        int r = write_mark(d, /* clean= */ true);
        if (r < 0)
            (void)disk_log_error(d, "mark as clean", r);
    }
}

void disk_leave(struct disk *d)
{
    if (!d->is_open || d->has_writer || !d->was_clean || d->store->read_only)
        return;
    struct err e = {0};
    int r = sys->syncfs(d->dir_fd);
    r = r < 0 ? r : kv_sync(d->kv, &e);
    r = r < 0 ? r : write_mark(d, /* clean= */ true);
    if (r < 0) /* it is verified at the next start */
        (void)disk_log_error(d, "mark as clean", r);
}

void disk_fini(struct disk *d)
{
    if (!d->path)
        return;
    for (size_t i = 0; i < DOOMED_BUCKETS; i++) {
        while (d->doomed[i]) {
            struct doomed *next = d->doomed[i]->in_bucket;
            free(d->doomed[i]);
            d->doomed[i] = next;
        }
    }
    (void)late_close(d);
    dying_end(d);
    hard_disk_fini(d);
    kv_close(d->kv);
    if (d->dir_fd >= 0)
        (void)sys->close(d->dir_fd);
    cond_fini(&d->wake_writer);
    cond_fini(&d->recorded_cond);
    cond_fini(&d->wake_flusher);
    cond_fini(&d->flushed_cond);
    lock_fini(&d->lock);
    free(d->path);
    d->path = NULL;
}

void disk_forgets(struct disk *d)
{
    lock_take(&d->lock);
    bool is_news = !d->forgets;
    d->forgets = true;
    lock_drop(&d->lock);
    if (is_news)
        (void)__atomic_add_fetch(&d->store->n_forgetful, 1, __ATOMIC_ACQ_REL);
}

int disk_log_error(const struct disk *d, const char *what, int code)
{
    log_error("store", "disk %s: %s: %s", d->path, what, err_text(code));
    return code;
}
