/*
 * What the mount's process holds in memory, by kind, and how much all of it together may be. Whoever makes
 * something that programs can make many of says how many bytes it takes, and when it is gone. When the sum
 * comes near the limit the notifier lets go of what can be had again (notify.c); what programs would lose
 * (open files, open directories, locks) is refused at the limit instead.
 *
 * A process has one mount, and one sum. All functions may be called by any thread, under any lock.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* X(NAME, name, whether it can be had again, what it is) */
#define HOLDINGS(X)                                                                                          \
    X(BASE, base, false, "the program itself and the buffers of its threads")                                \
    X(CELLS, cells, false, "what a process that takes over has to know")                                     \
    X(FILES, files, false, "open files, and files being written")                                            \
    X(DIRECTORIES, directories, false, "open directories")                                                   \
    X(LOCKS, locks, false, "programs that wait for locks")                                                   \
    X(PARKED, parked, false, "requests that wait for a thread")                                              \
    X(INODES, inodes, true, "inodes that the kernel knows of")                                               \
    X(KEPT_FILES, kept_files, true, "files kept open")                                                       \
    X(LISTINGS, listings, true, "pages of listings")                                                         \
    X(NAMES, names, true, "names that are in directories")

enum holding {
#define X(NAME, name, can_go, doc) HOLDING_##NAME,
    HOLDINGS(X)
#undef X
        HOLDINGS_N
};

const char *holding_name(enum holding h);

#define HOLDINGS_BASE_BYTES    (24 * (uint64_t)1048576) /* code, tables of fixed size, threads of its own */
#define HOLDINGS_THREAD_BYTES  (3 * (uint64_t)1048576)  /* a request, its reply, and the node's */
#define HOLDINGS_LEAST_BYTES   (8 * (uint64_t)1048576)  /* for everything else */
#define HOLDINGS_DEFAULT_BYTES (512 * (uint64_t)1048576)
#define HOLDINGS_THREADS                                                                                     \
    64 /* programs that read what is not here each wait in one, for all of a round trip */
#define HOLDINGS_THREADS_LEAST 4

/* The smallest limit with so many threads, and what it is unless another one is given. */
uint64_t holdings_least(uint64_t n_threads);
uint64_t holdings_default(uint64_t n_threads);
/* How many threads half of the limit has room for, as far as they are wanted; 0: no limit was given. */
uint64_t holdings_threads(uint64_t limit_bytes);

/* Before anything is held; 0: no limit. */
void holdings_start(uint64_t limit_bytes, uint64_t n_threads);

void holdings_take(enum holding h, size_t bytes);
void holdings_give(enum holding h, size_t bytes);
/* What malloc takes for so many bytes. */
size_t holdings_chunk(size_t bytes);

/* Whether so much more of what cannot be had again may be held: a sixteenth of the limit stays for the rest.
 */
bool holdings_may(size_t bytes);
/* How much of what can be had again is to be let go of: 0 until little is left, then down to three quarters.
 */
uint64_t holdings_excess(void);
/* More is held than may be: whoever makes more of what can be had again had better wait for those who let go.
 */
bool holdings_is_over(void);

uint64_t holdings_limit(void);
uint64_t holdings_total(void);
uint64_t holdings_of(enum holding h);
/* What the process has in memory, as the kernel counts it; 0: not known. */
uint64_t holdings_resident(void);
/* As holdings_excess, by that. Under a sanitizer, which has memory of its own: 0. */
uint64_t holdings_resident_excess(void);
