/*
 * The one table of what tests must control: file calls, time, randomness. Product code calls through `sys->`;
 * tests swap the pointer for a table that fails the Nth call, drops unsynced writes, or moves the clock.
 *
 * Each member behaves as the system call of its name, but returns a negated errno instead of -1 and never
 * EINTR. Members are called from any thread; replacing the table is only legal while no other thread runs.
 */
#pragma once

#include "base/macro.h"

#include <dirent.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>

struct sys {
    int (*open)(const char *path, int flags, mode_t mode);
    int (*openat)(int dirfd, const char *path, int flags, mode_t mode);
    int (*close)(int fd);
    ssize_t (*pread)(int fd, void *p, size_t n, uint64_t offset);
    ssize_t (*pwrite)(int fd, const void *p, size_t n, uint64_t offset);
    int (*ftruncate)(int fd, uint64_t size);
    int (*fallocate)(int fd, int mode, uint64_t offset, uint64_t n);
    int (*fsync)(int fd);
    int (*fdatasync)(int fd);
    int (*syncfs)(int fd);
    int (*sync_file_range)(int fd, uint64_t offset, uint64_t n, unsigned flags);
    int (*fadvise)(int fd, uint64_t offset, uint64_t n, int advice);
    int (*fstat)(int fd, struct stat *ret);
    int (*stat)(const char *path, struct stat *ret);
    int (*rename)(const char *from, const char *to);
    int (*unlink)(const char *path);
    int (*link)(const char *from, const char *to);
    int (*mkdir)(const char *path, mode_t mode);
    /* 0 with the next entry, or NULL at the end. An error is no end: what is not listed may be there. */
    int (*readdir)(DIR *d, struct dirent **ret);
    int64_t (*lseek)(int fd, uint64_t offset, int whence);
    int (*futimens)(int fd, const struct timespec times[2]);
    /* fcntl F_SETLEASE. Whoever breaks the lease raises SIGURG, which does nothing, instead of SIGIO. */
    int (*setlease)(int fd, int type);
    int (*statfs_free)(const char *path, uint64_t *ret_free_bytes, uint64_t *ret_total_bytes);
    uint64_t (*mono_ns)(void); /* CLOCK_MONOTONIC, or its coarse form in tests */
    uint64_t (*real_ns)(void); /* CLOCK_REALTIME, ns since 1970 */
    void (*sleep_ns)(uint64_t ns);
    void (*random)(void *p, size_t n); /* getrandom; never fails */
};

extern const struct sys *sys;
extern const struct sys sys_real;

/* pread/pwrite of the whole length: a short file gives -ENODATA from the first, short writes are continued.
 */
int sys_pread_all(int fd, void *p, size_t n, uint64_t offset);
int sys_pwrite_all(int fd, const void *p, size_t n, uint64_t offset);
/* Whether `code`, of a sync, says that the disk did not take what was written. */
bool sys_is_fault(int code);
/* What the kernel has to tell of pages that the disk did not take, 0 when nothing: it tells each open file
 * once, by this or by a sync. What is being written just now is waited for only with `waits`. */
int sys_take_fault(int fd, bool waits);
/* Whole small file, at most max bytes (-EFBIG); NUL behind it; *ret_p is the caller's to free. */
int sys_read_file(const char *path, size_t max, char **ret_p, size_t *ret_n);
/* Writes path.tmp, fsyncs, renames over path, fsyncs the directory: after a crash the old or the new file is
 * whole. */
int sys_write_file_atomic(const char *path, const void *p, size_t n, mode_t mode);
int sys_mkdir_p(const char *path, mode_t mode);

/* Lets the process open as many files as its rights allow, above the hard limit too; gives how many. */
uint64_t sys_raise_file_limit(void);

/* Whether this machine's kernel is of this version or later; false where it does not say. */
bool sys_is_linux(unsigned major_number, unsigned minor_number);
static inline uint64_t sys_mono_ms(void)
{
    return sys->mono_ns() / 1000000;
}
