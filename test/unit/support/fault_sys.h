/*
 * A table of system calls that fails the Nth call of a chosen set. The sweep that STYLE asks for reads:
 *
 *     fault_sys_start();
 *     for (uint64_t n = 1;; n++) {
 *         fault_sys_arm(FAULT_ALL, n, EIO, FAULT_ONCE);
 *         int r = the_operation();
 *         bool hit = fault_sys_hit();
 *         fault_sys_disarm();
 *         ... r says what the caller was told; check that it is true, and check the invariants ...
 *         if (!hit)
 *             break;
 *     }
 *     fault_sys_stop();
 *
 * Calls are made through the table that was in force at the start, so that it can lie in front of crash_sys.
 * Any thread may call through the table; start, stop, arm and disarm belong to the test's own thread.
 */
#pragma once

#include "base/macro.h"

/* X(NAME, member of struct sys) */
#define FAULT_CALLS(X)                                                                                       \
    X(OPEN, open)                                                                                            \
    X(OPENAT, openat)                                                                                        \
    X(PREAD, pread)                                                                                          \
    X(PWRITE, pwrite)                                                                                        \
    X(FTRUNCATE, ftruncate)                                                                                  \
    X(FALLOCATE, fallocate)                                                                                  \
    X(FSYNC, fsync)                                                                                          \
    X(FDATASYNC, fdatasync)                                                                                  \
    X(SYNCFS, syncfs)                                                                                        \
    X(SYNC_FILE_RANGE, sync_file_range)                                                                      \
    X(FSTAT, fstat)                                                                                          \
    X(STAT, stat)                                                                                            \
    X(RENAME, rename)                                                                                        \
    X(UNLINK, unlink)                                                                                        \
    X(LINK, link)                                                                                            \
    X(MKDIR, mkdir)                                                                                          \
    X(READDIR, readdir)                                                                                      \
    X(LSEEK, lseek)                                                                                          \
    X(FUTIMENS, futimens)                                                                                    \
    X(SETLEASE, setlease)                                                                                    \
    X(STATFS_FREE, statfs_free)

enum fault_call {
#define X(name, member) FAULT_CALL_##name,
    FAULT_CALLS(X)
#undef X
        FAULT_CALL_COUNT
};

enum {
#define X(name, member) FAULT_##name = 1 << FAULT_CALL_##name,
    FAULT_CALLS(X)
#undef X
        FAULT_ALL = (1 << FAULT_CALL_COUNT) - 1,
    FAULT_SYNCS = FAULT_FSYNC | FAULT_FDATASYNC | FAULT_SYNCFS,
    FAULT_WRITES = FAULT_PWRITE | FAULT_FTRUNCATE | FAULT_FALLOCATE,
    FAULT_NAMES = FAULT_RENAME | FAULT_UNLINK | FAULT_LINK | FAULT_MKDIR,
};

enum fault_mode {
    FAULT_ONCE,    /* the Nth call only */
    FAULT_FOREVER, /* the Nth and all after it: a dead or full disk */
    FAULT_PARTIAL, /* the Nth only; a failing pwrite has written half of its bytes before */
};

void fault_sys_start(void);
void fault_sys_stop(void);
/* From now on the nth (from 1) call among `calls` gives -error. Counts start at 0 again. */
void fault_sys_arm(unsigned calls, uint64_t nth, int error, enum fault_mode mode);
void fault_sys_disarm(void);
/* Whether the armed call was reached. */
bool fault_sys_hit(void);
/* Calls among `calls` since the start or the last arm, failed ones included. */
uint64_t fault_sys_count(unsigned calls);
/* Every pread and pwrite moves at most this many bytes; 0: as asked. */
void fault_sys_short_io(size_t max_bytes);
