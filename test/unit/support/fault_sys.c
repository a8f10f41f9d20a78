/*
 * The table that fails the Nth call.
 *
 * Invariants:
 *  1. A call that is failed has not happened, but for the half write of FAULT_PARTIAL.
 *  2. close is never failed: the descriptor would leak or be closed twice.
 *
 * Failure modes: abort when started twice or stopped while another table lies in front.
 */
#include "support/fault_sys.h"

#include "base/sys.h"

#include <stdatomic.h>

static struct {
    struct sys table;
    const struct sys *inner;
    _Atomic uint64_t count[FAULT_CALL_COUNT];
    _Atomic uint64_t armed_count; /* calls among the armed ones */
    _Atomic bool hit;
    _Atomic size_t io_max;
    /* Written by the test's thread between operations. */
    _Atomic unsigned calls;
    _Atomic uint64_t nth;
    _Atomic int error, mode;
} fault;

/* 0, or the negative error that this call shall give. */
static int verdict(enum fault_call call)
{
    atomic_fetch_add(&fault.count[call], 1);
    if (!(atomic_load(&fault.calls) & 1u << call))
        return 0;
    uint64_t now = atomic_fetch_add(&fault.armed_count, 1) + 1, nth = atomic_load(&fault.nth);
    if (now != nth && !(now > nth && atomic_load(&fault.mode) == FAULT_FOREVER))
        return 0;
    atomic_store(&fault.hit, true);
    return -atomic_load(&fault.error);
}

#define FAIL(name)                                                                                           \
    do {                                                                                                     \
        int _error = verdict(FAULT_CALL_##name);                                                             \
        if (_error < 0)                                                                                      \
            return _error;                                                                                   \
    } while (0)

static size_t shorten(size_t n)
{
    size_t max = atomic_load(&fault.io_max);
    return max ? MIN(n, max) : n;
}

static int fault_open(const char *path, int flags, mode_t mode)
{
    FAIL(OPEN);
    return fault.inner->open(path, flags, mode);
}

static int fault_openat(int dirfd, const char *path, int flags, mode_t mode)
{
    FAIL(OPENAT);
    return fault.inner->openat(dirfd, path, flags, mode);
}

static ssize_t fault_pread(int fd, void *p, size_t n, uint64_t offset)
{
    FAIL(PREAD);
    return fault.inner->pread(fd, p, shorten(n), offset);
}

static ssize_t fault_pwrite(int fd, const void *p, size_t n, uint64_t offset)
{
    int error = verdict(FAULT_CALL_PWRITE);
    if (error < 0) {
        if (atomic_load(&fault.mode) == FAULT_PARTIAL && n > 1)
            (void)fault.inner->pwrite(fd, p, n / 2, offset);
        return error;
    }
    return fault.inner->pwrite(fd, p, shorten(n), offset);
}

static int fault_ftruncate(int fd, uint64_t size)
{
    FAIL(FTRUNCATE);
    return fault.inner->ftruncate(fd, size);
}

static int fault_fallocate(int fd, int mode, uint64_t offset, uint64_t n)
{
    FAIL(FALLOCATE);
    return fault.inner->fallocate(fd, mode, offset, n);
}

static int fault_fsync(int fd)
{
    FAIL(FSYNC);
    return fault.inner->fsync(fd);
}

static int fault_fdatasync(int fd)
{
    FAIL(FDATASYNC);
    return fault.inner->fdatasync(fd);
}

static int fault_syncfs(int fd)
{
    FAIL(SYNCFS);
    return fault.inner->syncfs(fd);
}

static int fault_sync_file_range(int fd, uint64_t offset, uint64_t n, unsigned flags)
{
    FAIL(SYNC_FILE_RANGE);
    return fault.inner->sync_file_range(fd, offset, n, flags);
}

static int fault_fstat(int fd, struct stat *ret)
{
    FAIL(FSTAT);
    return fault.inner->fstat(fd, ret);
}

static int fault_stat(const char *path, struct stat *ret)
{
    FAIL(STAT);
    return fault.inner->stat(path, ret);
}

static int fault_rename(const char *from, const char *to)
{
    FAIL(RENAME);
    return fault.inner->rename(from, to);
}

static int fault_unlink(const char *path)
{
    FAIL(UNLINK);
    return fault.inner->unlink(path);
}

static int fault_link(const char *from, const char *to)
{
    FAIL(LINK);
    return fault.inner->link(from, to);
}

static int fault_mkdir(const char *path, mode_t mode)
{
    FAIL(MKDIR);
    return fault.inner->mkdir(path, mode);
}

static int fault_readdir(DIR *d, struct dirent **ret)
{
    FAIL(READDIR);
    return fault.inner->readdir(d, ret);
}

static int64_t fault_lseek(int fd, uint64_t offset, int whence)
{
    FAIL(LSEEK);
    return fault.inner->lseek(fd, offset, whence);
}

static int fault_futimens(int fd, const struct timespec times[2])
{
    FAIL(FUTIMENS);
    return fault.inner->futimens(fd, times);
}

static int fault_setlease(int fd, int type)
{
    FAIL(SETLEASE);
    return fault.inner->setlease(fd, type);
}

static int fault_statfs_free(const char *path, uint64_t *ret_free_bytes, uint64_t *ret_total_bytes)
{
    FAIL(STATFS_FREE);
    return fault.inner->statfs_free(path, ret_free_bytes, ret_total_bytes);
}

void fault_sys_start(void)
{
    assert(!fault.inner);
    fault.inner = sys;
    fault.table = *sys; /* the clock, randomness and close stay as they are */
#define X(name, member) fault.table.member = fault_##member;
    FAULT_CALLS(X)
#undef X
    fault_sys_disarm();
    fault_sys_short_io(0);
    for (size_t i = 0; i < FAULT_CALL_COUNT; i++)
        atomic_store(&fault.count[i], 0);
    sys = &fault.table;
}

void fault_sys_stop(void)
{
    assert(sys == &fault.table);
    sys = TAKE_PTR(fault.inner);
}

void fault_sys_arm(unsigned calls, uint64_t nth, int error, enum fault_mode mode)
{
    assert(nth > 0 && error > 0 && calls && !(calls & ~(unsigned)FAULT_ALL));
    atomic_store(&fault.calls, 0);
    atomic_store(&fault.nth, nth);
    atomic_store(&fault.error, error);
    atomic_store(&fault.mode, (int)mode);
    atomic_store(&fault.armed_count, 0);
    atomic_store(&fault.hit, false);
    for (size_t i = 0; i < FAULT_CALL_COUNT; i++)
        atomic_store(&fault.count[i], 0);
    atomic_store(&fault.calls, calls);
}

void fault_sys_disarm(void)
{
    atomic_store(&fault.calls, 0);
    atomic_store(&fault.hit, false);
}

bool fault_sys_hit(void)
{
    return atomic_load(&fault.hit);
}

uint64_t fault_sys_count(unsigned calls)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < FAULT_CALL_COUNT; i++)
        if (calls & 1u << i)
            sum += atomic_load(&fault.count[i]);
    return sum;
}

void fault_sys_short_io(size_t max_bytes)
{
    atomic_store(&fault.io_max, max_bytes);
}
