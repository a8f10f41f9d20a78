/*
 * The real table of system calls and the small file helpers built on whatever table is in force.
 *
 * Invariants:
 *  1. No member returns -EINTR; calls that were interrupted before they did anything are repeated.
 *  2. sys_write_file_atomic leaves the old or the new file whole, whatever fails and wherever the power goes.
 *
 * Failure modes: negated errno values of the calls. random() aborts when the kernel cannot give random bytes.
 */
#include "base/sys.h"

#include "base/slice.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <time.h>

/* Repeats a call while it is interrupted and gives its result, or the negated errno. */
#define CALL(expr)                                                                                           \
    ({                                                                                                       \
        __typeof__(expr) _r;                                                                                 \
        do {                                                                                                 \
            _r = (expr);                                                                                     \
        } while (_r < 0 && errno == EINTR);                                                                  \
        _r < 0 ? (__typeof__(_r))-errno : _r;                                                                \
    })

static int real_open(const char *path, int flags, mode_t mode)
{
    return CALL(open(path, flags, mode));
}

static int real_openat(int dirfd, const char *path, int flags, mode_t mode)
{
    return CALL(openat(dirfd, path, flags, mode));
}

static int real_close(int fd)
{
    /* Linux frees the descriptor before it can report EINTR: repeating would close someone else's. */
    return close(fd) < 0 && errno != EINTR ? -errno : 0;
}

static ssize_t real_pread(int fd, void *p, size_t n, uint64_t offset)
{
    return CALL(pread(fd, p, n, (off_t)offset));
}

static ssize_t real_pwrite(int fd, const void *p, size_t n, uint64_t offset)
{
    return CALL(pwrite(fd, p, n, (off_t)offset));
}

static int real_ftruncate(int fd, uint64_t size)
{
    return CALL(ftruncate(fd, (off_t)size));
}

static int real_fallocate(int fd, int mode, uint64_t offset, uint64_t n)
{
    return CALL(fallocate(fd, mode, (off_t)offset, (off_t)n));
}

static int real_fsync(int fd)
{
    return CALL(fsync(fd));
}

static int real_fdatasync(int fd)
{
    return CALL(fdatasync(fd));
}

static int real_syncfs(int fd)
{
    return CALL(syncfs(fd));
}

static int real_sync_file_range(int fd, uint64_t offset, uint64_t n, unsigned flags)
{
    return CALL(sync_file_range(fd, (off_t)offset, (off_t)n, flags));
}

static int real_fadvise(int fd, uint64_t offset, uint64_t n, int advice)
{
    return -posix_fadvise(fd, (off_t)offset, (off_t)n, advice);
}

static int real_fstat(int fd, struct stat *ret)
{
    return CALL(fstat(fd, ret));
}

static int real_stat(const char *path, struct stat *ret)
{
    return CALL(stat(path, ret));
}

static int real_rename(const char *from, const char *to)
{
    return CALL(rename(from, to));
}

static int real_unlink(const char *path)
{
    return CALL(unlink(path));
}

static int real_link(const char *from, const char *to)
{
    return CALL(link(from, to));
}

static int real_mkdir(const char *path, mode_t mode)
{
    return CALL(mkdir(path, mode));
}

static int real_readdir(DIR *d, struct dirent **ret)
{
    errno = 0;
    struct dirent *x = readdir(d);
    if (!x && errno != 0)
        return -errno;
    *ret = x;
    return 0;
}

static int64_t real_lseek(int fd, uint64_t offset, int whence)
{
    return CALL(lseek(fd, (off_t)offset, whence));
}

static int real_futimens(int fd, const struct timespec times[2])
{
    return CALL(futimens(fd, times));
}

static int real_setlease(int fd, int type)
{
    int r = CALL(fcntl(fd, F_SETSIG, SIGURG));
    return r < 0 ? r : CALL(fcntl(fd, F_SETLEASE, type));
}

static int real_statfs_free(const char *path, uint64_t *ret_free_bytes, uint64_t *ret_total_bytes)
{
    struct statvfs s;
    int r = CALL(statvfs(path, &s));
    if (r < 0)
        return r;
    *ret_free_bytes = (uint64_t)s.f_bavail * s.f_frsize;
    *ret_total_bytes = (uint64_t)s.f_blocks * s.f_frsize;
    return 0;
}

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    if (clock_gettime(clock, &t) < 0)
        abort();
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t real_mono_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

static uint64_t real_real_ns(void)
{
    return clock_ns(CLOCK_REALTIME);
}

static void real_sleep_ns(uint64_t ns)
{
    struct timespec left = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, /* flags= */ 0, &left, &left) == EINTR)
        continue;
}

static void real_random(void *p, size_t n)
{
    char *at = p;
    while (n) {
        ssize_t got = CALL(getrandom(at, n, /* flags= */ 0));
        if (got <= 0)
            abort();
        at += got;
        n -= (size_t)got;
    }
}

const struct sys sys_real = {
    .open = real_open,
    .openat = real_openat,
    .close = real_close,
    .pread = real_pread,
    .pwrite = real_pwrite,
    .ftruncate = real_ftruncate,
    .fallocate = real_fallocate,
    .fsync = real_fsync,
    .fdatasync = real_fdatasync,
    .syncfs = real_syncfs,
    .sync_file_range = real_sync_file_range,
    .fadvise = real_fadvise,
    .fstat = real_fstat,
    .stat = real_stat,
    .rename = real_rename,
    .unlink = real_unlink,
    .link = real_link,
    .mkdir = real_mkdir,
    .readdir = real_readdir,
    .lseek = real_lseek,
    .futimens = real_futimens,
    .setlease = real_setlease,
    .statfs_free = real_statfs_free,
    .mono_ns = real_mono_ns,
    .real_ns = real_real_ns,
    .sleep_ns = real_sleep_ns,
    .random = real_random,
};

const struct sys *sys = &sys_real;

int sys_pread_all(int fd, void *p, size_t n, uint64_t offset)
{
    char *at = p;
    while (n) {
        ssize_t got = sys->pread(fd, at, n, offset);
        if (got < 0)
            return (int)got;
        if (got == 0)
            return -ENODATA;
        at += got;
        n -= (size_t)got;
        offset += (uint64_t)got;
    }
    return 0;
}

int sys_pwrite_all(int fd, const void *p, size_t n, uint64_t offset)
{
    const char *at = p;
    while (n) {
        ssize_t put = sys->pwrite(fd, at, n, offset);
        if (put < 0)
            return (int)put;
        if (put == 0) /* would loop for ever; no file system of ours does it */
            return -EIO;
        at += put;
        n -= (size_t)put;
        offset += (uint64_t)put;
    }
    return 0;
}

bool sys_is_fault(int code)
{
    return code == -EIO || code == -ENOSPC || code == -EDQUOT;
}

int sys_take_fault(int fd, bool waits)
{
    int r = sys->sync_file_range(fd, 0, /* n, 0 is all: */ waits ? 0 : 1, SYNC_FILE_RANGE_WAIT_BEFORE);
    return sys_is_fault(r) ? r : 0;
}

static inline void close_fd(int *fd)
{
    if (*fd >= 0)
        (void)sys->close(*fd);
}

/* Reads to the end rather than by st_size: files under /proc say 0. */
static int read_rest(int fd, size_t max, char **ret_p, size_t *ret_n)
{
    _cleanup_free_ char *p = NULL;
    size_t cap = 0, n = 0;
    for (;;) {
        if (n == cap) {
            cap = MIN(MAX(cap * 2, (size_t)4096), max + 1);
            char *grown = realloc(p, cap + 1);
            if (!grown)
                return -ENOMEM;
            p = grown;
        }
        ssize_t got = sys->pread(fd, p + n, cap - n, n);
        if (got < 0)
            return (int)got;
        if (got == 0)
            break;
        n += (size_t)got;
        if (n > max)
            return -EFBIG;
    }
    p[n] = '\0';
    *ret_p = TAKE_PTR(p);
    *ret_n = n;
    return 0;
}

int sys_read_file(const char *path, size_t max, char **ret_p, size_t *ret_n)
{
    assert(path && max < SIZE_MAX - 1);
    _cleanup_(close_fd) int fd = sys->open(path, O_RDONLY | O_CLOEXEC, /* mode= */ 0);
    if (fd < 0)
        return fd;
    return read_rest(fd, max, ret_p, ret_n);
}

/* Makes a rename in the directory of `path` survive power loss. */
static int sync_dir_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    _cleanup_free_ char *dir = slash ? slice_dup(slice_of(path, slash == path ? 1 : (size_t)(slash - path)))
                                     : slice_dup(SLICE_LIT("."));
    _cleanup_(close_fd) int fd = sys->open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC, /* mode= */ 0);
    if (fd < 0)
        return fd;
    return sys->fsync(fd);
}

static int write_and_sync(const char *path, const void *p, size_t n, mode_t mode)
{
    /* O_EXCL after unlink: a leftover of an earlier crash must not lend its mode or owner. */
    int r = sys->unlink(path);
    if (r < 0 && r != -ENOENT)
        return r;
    int fd = sys->open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd < 0)
        return fd;
    r = sys_pwrite_all(fd, p, n, 0);
    if (r == 0)
        r = sys->fsync(fd);
    int closed = sys->close(fd);
    return r < 0 ? r : closed;
}

int sys_write_file_atomic(const char *path, const void *p, size_t n, mode_t mode)
{
    assert(path && (p || n == 0));
    size_t len = strlen(path);
    _cleanup_free_ char *tmp = malloc(len + sizeof(".tmp"));
    if (!tmp)
        abort();
    memcpy(tmp, path, len);
    memcpy(tmp + len, ".tmp", sizeof(".tmp"));
    int r = write_and_sync(tmp, p, n, mode);
    if (r == 0)
        r = sys->rename(tmp, path);
    if (r < 0) {
        (void)sys->unlink(tmp); /* the first error is the one to report */
        return r;
    }
    return sync_dir_of(path);
}

static int mkdir_one(const char *path, mode_t mode)
{
    struct stat st;
    int r = sys->mkdir(path, mode);
    if (r == 0)
        return 0;
    if (sys->stat(path, &st) < 0) /* an existing parent may also answer EROFS or EACCES */
        return r;
    return S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
}

int sys_mkdir_p(const char *path, mode_t mode)
{
    assert(path);
    if (!*path)
        return -ENOENT;
    _cleanup_free_ char *part = slice_dup(slice_str(path));
    for (char *at = part + 1; *at; at++) {
        if (*at != '/' || at[-1] == '/')
            continue;
        *at = '\0';
        int r = mkdir_one(part, mode);
        *at = '/';
        if (r < 0)
            return r;
    }
    return mkdir_one(part, mode);
}

static rlim_t most_files_of_a_process(void)
{
    _cleanup_free_ char *text = NULL;
    size_t n;
    if (sys_read_file("/proc/sys/fs/nr_open", 64, &text, &n) < 0)
        return 0;
    return (rlim_t)strtoull(text, NULL, 10);
}

uint64_t sys_raise_file_limit(void)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) < 0)
        return 0;
    rlim_t most = MAX(most_files_of_a_process(), r.rlim_max);
    struct rlimit wanted = {.rlim_cur = most, .rlim_max = most};
    if (setrlimit(RLIMIT_NOFILE, &wanted) < 0) {
        r.rlim_cur = r.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &r); /* read back below */
    }
    (void)getrlimit(RLIMIT_NOFILE, &r);
    return r.rlim_cur;
}

bool sys_is_linux(unsigned major_number, unsigned minor_number)
{
    struct utsname u;
    unsigned own_major = 0, own_minor = 0;
    if (uname(&u) < 0 || sscanf(u.release, "%u.%u", &own_major, &own_minor) != 2)
        return false;
    return own_major > major_number || (own_major == major_number && own_minor >= minor_number);
}
