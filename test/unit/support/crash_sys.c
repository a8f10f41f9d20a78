/*
 * Power loss: the table of calls.
 *
 * Invariants:
 *  1. All calls below the directory run one at a time under `crash.mutex`, so that record and file agree.
 *  2. Once dead, nothing but close changes anything until crash_sys_crash.
 *
 * Failure modes: abort when the simulation itself fails; see crash_data.c and crash_name.c.
 */
#include "support/crash_internal.h"

#include "base/sys.h"
#include "support/tmpdir.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>

#define MOUNTS_MAX 8

static struct {
    struct sys table;
    const struct sys *inner;
    pthread_mutex_t mutex; /* covers changes, kill_at and dead, which a test asks while its threads run */
    char *dir, *graveyard;
    char *mount[MOUNTS_MAX];
    unsigned n_mounts;
    uint64_t changes, kill_at;
    bool dead;
} crash = {.mutex = PTHREAD_MUTEX_INITIALIZER};

void crash_abort(const char *what, const char *path)
{
    (void)fprintf(stderr, "crash simulation: %s %s: %s\n", what, path, strerrordesc_np(errno));
    abort();
}

uint64_t crash_below(struct crash_rng *rng, uint64_t n)
{
    /* splitmix64 (Steele, Lea and Flood, 2014): any seed will do */
    uint64_t x = rng->state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (x ^ x >> 31) % n;
}

bool crash_keeps(struct crash_rng *rng)
{
    if (rng->seed <= CRASH_KEEP_ALL)
        return rng->seed == CRASH_KEEP_ALL;
    return crash_below(rng, 100) < rng->percent;
}

static bool is_below(const char *path, const char *dir)
{
    size_t n = strlen(dir);
    return strncmp(path, dir, n) == 0 && (path[n] == '/' || path[n] == '\0');
}

unsigned crash_fs_of(const char *path)
{
    for (unsigned i = 0; i < crash.n_mounts; i++)
        if (is_below(path, crash.mount[i]))
            return i + 1;
    return 0;
}

static void unlock(pthread_mutex_t **m)
{
    (void)pthread_mutex_unlock(*m);
}

/* Every call but close: one at a time, and none without power. */
#define LOCKED                                                                                               \
    pthread_mutex_t *_cleanup_(unlock) _locked = &crash.mutex;                                               \
    (void)pthread_mutex_lock(_locked);                                                                       \
    if (crash.dead)                                                                                          \
    return -EIO

/* Counts a call that changes or syncs. True: the power goes while it runs, so it must report -EIO. */
static bool is_last(void)
{
    crash.dead = ++crash.changes == crash.kill_at;
    return crash.dead;
}

/* The path behind a descriptor when it lies below the directory, else NULL. free(). */
static char *tracked_fd(int fd)
{
    char link[32], path[PATH_MAX];
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof(path) - 1);
    if (n < 0)
        return NULL;
    path[n] = '\0';
    return is_below(path, crash.dir) ? slice_dup(slice_of(path, (size_t)n)) : NULL;
}

/* Absolute path without links in its directories when it lies below the directory, else NULL. free(). */
static char *tracked_at(int dirfd, const char *path)
{
    _cleanup_free_ char *whole = NULL, *parent = NULL;
    if (path[0] == '/' || dirfd == AT_FDCWD) {
        whole = slice_dup(slice_str(path));
    } else {
        _cleanup_free_ char *dir = tracked_fd(dirfd);
        if (!dir)
            return NULL;
        whole = tmpdir_path(dir, path);
    }
    struct slice all = slice_str(whole);
    while (all.n > 1 && all.p[all.n - 1] == '/')
        all.n--;
    ssize_t slash = slice_rfind(all, '/');
    parent = slice_dup(slash < 0 ? SLICE_LIT(".") : slice_sub(all, 0, MAX((size_t)slash, (size_t)1)));
    _cleanup_free_ char *name = slice_dup(slice_from(all, (size_t)(slash + 1)));
    _cleanup_free_ char *real = realpath(parent, NULL);
    return real && is_below(real, crash.dir) ? tmpdir_path(real, name) : NULL;
}

static char *tracked(const char *path)
{
    return tracked_at(AT_FDCWD, path);
}

static bool exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

static int truncate_recorded(int fd, uint64_t size)
{
    struct crash_file *f = crash_data_of_fd(fd);
    if (!f)
        return crash.inner->ftruncate(fd, size);
    crash_data_before(f, size, UINT64_MAX);
    int r = crash.inner->ftruncate(fd, size);
    if (r < 0)
        crash_data_cancel(f);
    else
        crash_data_after(f, CRASH_TRUNCATE, NULL, size, /* mode= */ 0);
    return r;
}

static int open_tracked(const char *path, int flags, mode_t mode)
{
    bool is_new = (flags & O_CREAT) && !exists(path);
    bool cuts = (flags & O_TRUNC) && !is_new && !((flags & O_CREAT) && (flags & O_EXCL));
    bool last = (is_new || cuts) && is_last();
    int fd = crash.inner->open(path, cuts ? flags & ~O_TRUNC : flags, mode);
    if (fd >= 0 && is_new)
        crash_name_made(path);
    int r = fd >= 0 && cuts ? truncate_recorded(fd, 0) : 0;
    if (fd >= 0 && (last || r < 0)) {
        (void)crash.inner->close(fd);
        fd = r;
    }
    return last ? -EIO : fd;
}

static int crash_openat(int dirfd, const char *path, int flags, mode_t mode)
{
    LOCKED;
    _cleanup_free_ char *at = (flags & O_TMPFILE) == O_TMPFILE ? NULL : tracked_at(dirfd, path);
    return at ? open_tracked(at, flags, mode) : crash.inner->openat(dirfd, path, flags, mode);
}

static int crash_open(const char *path, int flags, mode_t mode)
{
    return crash_openat(AT_FDCWD, path, flags, mode);
}

static ssize_t crash_pread(int fd, void *p, size_t n, uint64_t offset)
{
    LOCKED;
    return crash.inner->pread(fd, p, n, offset);
}

static ssize_t crash_pwrite(int fd, const void *p, size_t n, uint64_t offset)
{
    LOCKED;
    _cleanup_free_ char *at = tracked_fd(fd);
    if (!at)
        return crash.inner->pwrite(fd, p, n, offset);
    bool last = is_last();
    struct crash_file *f = crash_data_of_fd(fd);
    if (f)
        crash_data_before(f, offset, n);
    ssize_t put = crash.inner->pwrite(fd, p, n, offset);
    if (f && put <= 0)
        crash_data_cancel(f);
    else if (f)
        crash_data_after(f, CRASH_WRITE, p, (uint64_t)put, /* mode= */ 0);
    if (put > 0 && !last && fcntl(fd, F_GETFL) & (O_SYNC | O_DSYNC))
        crash_data_synced(fd);
    return last ? -EIO : put;
}

static int crash_ftruncate(int fd, uint64_t size)
{
    LOCKED;
    _cleanup_free_ char *at = tracked_fd(fd);
    if (!at)
        return crash.inner->ftruncate(fd, size);
    bool last = is_last();
    int r = truncate_recorded(fd, size);
    return last ? -EIO : r;
}

static int crash_fallocate(int fd, int mode, uint64_t offset, uint64_t n)
{
    LOCKED;
    _cleanup_free_ char *at = tracked_fd(fd);
    if (!at)
        return crash.inner->fallocate(fd, mode, offset, n);
    assert(!(mode & (FALLOC_FL_COLLAPSE_RANGE | FALLOC_FL_INSERT_RANGE | FALLOC_FL_UNSHARE_RANGE)));
    bool last = is_last();
    struct crash_file *f = crash_data_of_fd(fd);
    if (f)
        crash_data_before(f, offset, n);
    int r = crash.inner->fallocate(fd, mode, offset, n);
    if (f && r < 0)
        crash_data_cancel(f);
    else if (f)
        crash_data_after(f, CRASH_FALLOCATE, NULL, n, mode);
    return last ? -EIO : r;
}

/* The real files need no sync, only the records do: a sweep makes thousands. */
static int sync_fd(int (*call)(int fd), int fd)
{
    _cleanup_free_ char *at = tracked_fd(fd);
    struct stat st;
    if (!at)
        return call(fd);
    if (is_last())
        return -EIO;
    if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode))
        crash_name_synced(at);
    else
        crash_data_synced(fd);
    return 0;
}

static int crash_fsync(int fd)
{
    LOCKED;
    return sync_fd(crash.inner->fsync, fd);
}

static int crash_fdatasync(int fd)
{
    LOCKED;
    return sync_fd(crash.inner->fdatasync, fd);
}

static int crash_syncfs(int fd)
{
    LOCKED;
    _cleanup_free_ char *at = tracked_fd(fd);
    if (!at)
        return crash.inner->syncfs(fd);
    if (is_last())
        return -EIO;
    crash_data_synced_fs(crash_fs_of(at));
    crash_name_synced_fs(crash_fs_of(at));
    return 0;
}

static int crash_sync_file_range(int fd, uint64_t offset, uint64_t n, unsigned flags)
{
    LOCKED;
    _cleanup_free_ char *at = tracked_fd(fd);
    return at ? 0 : crash.inner->sync_file_range(fd, offset, n, flags); /* promises nothing */
}

static int crash_fstat(int fd, struct stat *ret)
{
    LOCKED;
    return crash.inner->fstat(fd, ret);
}

static int crash_stat(const char *path, struct stat *ret)
{
    LOCKED;
    return crash.inner->stat(path, ret);
}

static int crash_rename(const char *from, const char *to)
{
    LOCKED;
    _cleanup_free_ char *a = tracked(from), *b = tracked(to);
    struct stat st;
    if (!a != !b)
        crash_abort("rename across the border", from);
    if (!a)
        return crash.inner->rename(from, to);
    bool last = is_last();
    bool replaces = lstat(b, &st) == 0 && S_ISREG(st.st_mode);
    struct crash_file *lost = replaces ? crash_data_ref(crash_data_of_path(b)) : NULL;
    int r = crash.inner->rename(a, b);
    if (r < 0)
        crash_data_unref(lost);
    else
        crash_name_renamed(a, b, lost);
    return last ? -EIO : r;
}

static int crash_unlink(const char *path)
{
    LOCKED;
    _cleanup_free_ char *at = tracked(path);
    struct stat st;
    if (!at || lstat(at, &st) < 0 || !S_ISREG(st.st_mode))
        return crash.inner->unlink(path);
    bool last = is_last();
    struct crash_file *lost = crash_data_ref(crash_data_of_path(at));
    int r = crash.inner->unlink(at);
    if (r < 0)
        crash_data_unref(lost);
    else
        crash_name_removed(at, lost);
    return last ? -EIO : r;
}

static int crash_link(const char *from, const char *to)
{
    LOCKED;
    _cleanup_free_ char *a = tracked(from), *b = tracked(to);
    if (!a != !b)
        crash_abort("link across the border", from);
    if (!a)
        return crash.inner->link(from, to);
    bool last = is_last();
    int r = crash.inner->link(a, b);
    if (r == 0)
        crash_name_made(b);
    return last ? -EIO : r;
}

static int crash_mkdir(const char *path, mode_t mode)
{
    LOCKED;
    _cleanup_free_ char *at = tracked(path);
    if (!at || exists(at))
        return crash.inner->mkdir(path, mode);
    bool last = is_last();
    int r = crash.inner->mkdir(at, mode);
    if (r == 0)
        crash_name_made(at);
    return last ? -EIO : r;
}

static int crash_statfs_free(const char *path, uint64_t *ret_free_bytes, uint64_t *ret_total_bytes)
{
    LOCKED;
    return crash.inner->statfs_free(path, ret_free_bytes, ret_total_bytes);
}

void crash_sys_start(const char *dir)
{
    assert(!crash.inner);
    crash.dir = realpath(dir, NULL);
    if (!crash.dir || asprintf(&crash.graveyard, "%s.crash", crash.dir) < 0)
        crash_abort("start", dir);
    crash_name_start(crash.graveyard);
    crash.changes = crash.kill_at = 0;
    crash.dead = false;
    crash.inner = sys;
    crash.table = *sys; /* close, the clock and randomness stay as they are */
    crash.table.open = crash_open;
    crash.table.openat = crash_openat;
    crash.table.pread = crash_pread;
    crash.table.pwrite = crash_pwrite;
    crash.table.ftruncate = crash_ftruncate;
    crash.table.fallocate = crash_fallocate;
    crash.table.fsync = crash_fsync;
    crash.table.fdatasync = crash_fdatasync;
    crash.table.syncfs = crash_syncfs;
    crash.table.sync_file_range = crash_sync_file_range;
    crash.table.fstat = crash_fstat;
    crash.table.stat = crash_stat;
    crash.table.rename = crash_rename;
    crash.table.unlink = crash_unlink;
    crash.table.link = crash_link;
    crash.table.mkdir = crash_mkdir;
    crash.table.statfs_free = crash_statfs_free;
    sys = &crash.table;
}

void crash_sys_mount(const char *dir)
{
    assert(crash.inner && crash.n_mounts < MOUNTS_MAX);
    char *real = realpath(dir, NULL);
    if (!real || !is_below(real, crash.dir))
        crash_abort("mount", dir);
    crash.mount[crash.n_mounts++] = real;
}

static void forget_all(void)
{
    for (unsigned fs = 0; fs <= crash.n_mounts; fs++) {
        crash_data_synced_fs(fs);
        crash_name_synced_fs(fs);
    }
}

void crash_sys_stop(void)
{
    assert(sys == &crash.table);
    forget_all();
    crash_name_stop();
    while (crash.n_mounts)
        free(crash.mount[--crash.n_mounts]);
    free(TAKE_PTR(crash.dir));
    free(TAKE_PTR(crash.graveyard));
    sys = TAKE_PTR(crash.inner);
}

void crash_sys_kill_at(uint64_t nth)
{
    (void)pthread_mutex_lock(&crash.mutex);
    crash.kill_at = nth ? crash.changes + nth : 0;
    (void)pthread_mutex_unlock(&crash.mutex);
}

void crash_sys_kill(void)
{
    (void)pthread_mutex_lock(&crash.mutex);
    crash.dead = true;
    (void)pthread_mutex_unlock(&crash.mutex);
}

bool crash_sys_dead(void)
{
    (void)pthread_mutex_lock(&crash.mutex);
    bool dead = crash.dead;
    (void)pthread_mutex_unlock(&crash.mutex);
    return dead;
}

uint64_t crash_sys_changes(void)
{
    (void)pthread_mutex_lock(&crash.mutex);
    uint64_t changes = crash.changes;
    (void)pthread_mutex_unlock(&crash.mutex);
    return changes;
}

void crash_sys_crash(uint64_t seed)
{
    static const uint64_t percents[] = {10, 50, 90};
    struct crash_rng rng = {seed, seed, 50};
    rng.percent = percents[crash_below(&rng, ARRAY_SIZE(percents))];
    assert(sys == &crash.table);
    crash_data_crash(&rng);
    crash_name_crash(&rng);
    crash.changes = crash.kill_at = 0;
    crash.dead = false;
}
