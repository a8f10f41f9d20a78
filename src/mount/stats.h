/*
 * What a mount does: its operations with their latencies, how files were opened, what takes long. Counted in
 * the mount's process, asked for by `forebay mount --stats DIR` through a request on the mounted directory
 * itself, so that whoever may read that directory may ask, and no socket or file has to be kept for it.
 *
 * Counting takes two looks at the clock and a few relaxed atomics per operation; what a thread is doing
 * stands in a place of its own.
 */
#pragma once

#include "base/err.h"
#include "base/slice.h"
#include "mount/holdings.h"

/* X(name, parameters, arguments): the operations of struct fuse_lowlevel_ops that are counted. Each has a
 * request `req` and an inode `ino`. */
#define STATS_OPERATIONS(X)                                                                                  \
    X(lookup, (fuse_req_t req, fuse_ino_t ino, const char *name), (req, ino, name))                          \
    X(forget, (fuse_req_t req, fuse_ino_t ino, uint64_t n), (req, ino, n))                                   \
    X(getattr, (fuse_req_t req, fuse_ino_t ino, struct fuse_file_info * fi), (req, ino, fi))                 \
    X(setattr, (fuse_req_t req, fuse_ino_t ino, struct stat * st, int what, struct fuse_file_info *fi),      \
      (req, ino, st, what, fi))                                                                              \
    X(readlink, (fuse_req_t req, fuse_ino_t ino), (req, ino))                                                \
    X(statfs, (fuse_req_t req, fuse_ino_t ino), (req, ino))                                                  \
    X(opendir, (fuse_req_t req, fuse_ino_t ino, struct fuse_file_info * fi), (req, ino, fi))                 \
    X(readdir, (fuse_req_t req, fuse_ino_t ino, size_t n, off_t at, struct fuse_file_info * fi),             \
      (req, ino, n, at, fi))                                                                                 \
    X(readdirplus, (fuse_req_t req, fuse_ino_t ino, size_t n, off_t at, struct fuse_file_info * fi),         \
      (req, ino, n, at, fi))                                                                                 \
    X(releasedir, (fuse_req_t req, fuse_ino_t ino, struct fuse_file_info * fi), (req, ino, fi))              \
    X(fsyncdir, (fuse_req_t req, fuse_ino_t ino, int data, struct fuse_file_info *fi), (req, ino, data, fi)) \
    X(open, (fuse_req_t req, fuse_ino_t ino, struct fuse_file_info * fi), (req, ino, fi))                    \
    X(create, (fuse_req_t req, fuse_ino_t ino, const char *name, mode_t mode, struct fuse_file_info *fi),    \
      (req, ino, name, mode, fi))                                                                            \
    X(flush, (fuse_req_t req, fuse_ino_t ino, struct fuse_file_info * fi), (req, ino, fi))                   \
    X(release, (fuse_req_t req, fuse_ino_t ino, struct fuse_file_info * fi), (req, ino, fi))                 \
    X(read, (fuse_req_t req, fuse_ino_t ino, size_t n, off_t at, struct fuse_file_info * fi),                \
      (req, ino, n, at, fi))                                                                                 \
    X(write, (fuse_req_t req, fuse_ino_t ino, const char *p, size_t n, off_t at, struct fuse_file_info *fi), \
      (req, ino, p, n, at, fi))                                                                              \
    X(fsync, (fuse_req_t req, fuse_ino_t ino, int data, struct fuse_file_info *fi), (req, ino, data, fi))    \
    X(fallocate, (fuse_req_t req, fuse_ino_t ino, int mode, off_t at, off_t n, struct fuse_file_info *fi),   \
      (req, ino, mode, at, n, fi))                                                                           \
    X(lseek, (fuse_req_t req, fuse_ino_t ino, off_t at, int whence, struct fuse_file_info *fi),              \
      (req, ino, at, whence, fi))                                                                            \
    X(copy_file_range,                                                                                       \
      (fuse_req_t req, fuse_ino_t ino, off_t at, struct fuse_file_info * fi, fuse_ino_t to, off_t to_at,     \
       struct fuse_file_info * to_fi, size_t n, int flags),                                                  \
      (req, ino, at, fi, to, to_at, to_fi, n, flags))                                                        \
    X(mknod, (fuse_req_t req, fuse_ino_t ino, const char *name, mode_t mode, dev_t rdev),                    \
      (req, ino, name, mode, rdev))                                                                          \
    X(mkdir, (fuse_req_t req, fuse_ino_t ino, const char *name, mode_t mode), (req, ino, name, mode))        \
    X(symlink, (fuse_req_t req, const char *target, fuse_ino_t ino, const char *name),                       \
      (req, target, ino, name))                                                                              \
    X(link, (fuse_req_t req, fuse_ino_t ino, fuse_ino_t to, const char *name), (req, ino, to, name))         \
    X(unlink, (fuse_req_t req, fuse_ino_t ino, const char *name), (req, ino, name))                          \
    X(rmdir, (fuse_req_t req, fuse_ino_t ino, const char *name), (req, ino, name))                           \
    X(rename,                                                                                                \
      (fuse_req_t req, fuse_ino_t ino, const char *name, fuse_ino_t to, const char *to_name,                 \
       unsigned flags),                                                                                      \
      (req, ino, name, to, to_name, flags))                                                                  \
    X(getxattr, (fuse_req_t req, fuse_ino_t ino, const char *name, size_t n), (req, ino, name, n))           \
    X(listxattr, (fuse_req_t req, fuse_ino_t ino, size_t n), (req, ino, n))                                  \
    X(setxattr, (fuse_req_t req, fuse_ino_t ino, const char *name, const char *p, size_t n, int flags),      \
      (req, ino, name, p, n, flags))                                                                         \
    X(removexattr, (fuse_req_t req, fuse_ino_t ino, const char *name), (req, ino, name))                     \
    X(getlk, (fuse_req_t req, fuse_ino_t ino, struct fuse_file_info * fi, struct flock * lock),              \
      (req, ino, fi, lock))                                                                                  \
    X(setlk, (fuse_req_t req, fuse_ino_t ino, struct fuse_file_info * fi, struct flock * lock, int waits),   \
      (req, ino, fi, lock, waits))                                                                           \
    X(flock, (fuse_req_t req, fuse_ino_t ino, struct fuse_file_info * fi, int op), (req, ino, fi, op))

enum stats_operation {
#define X(name, parameters, arguments) STATS_OP_##name,
    STATS_OPERATIONS(X)
#undef X
        STATS_N_OPERATIONS
};

/* X(NAME, name, what it counts) */
#define STATS_COUNTERS(X)                                                                                    \
    X(READING_OPENS, reading_opens, "opens for reading")                                                     \
    X(HERE_OPENS, here_opens, "of those, files of which every byte was on this machine")                     \
    X(UNASKED_OPENS, unasked_opens, "of those, files that were open or kept open: the node was not asked")   \
    X(WRITING_OPENS, writing_opens, "opens for writing")                                                     \
    X(PASSTHROUGH_OPENS, passthrough_opens,                                                                  \
      "opens of both kinds after which the kernel uses the file itself")                                     \
    X(READ_BYTES, read_bytes, "bytes read through the mount's process")                                      \
    X(HERE_READ_BYTES, here_read_bytes, "of those, bytes of files of which every byte was on this machine")  \
    X(WRITTEN_BYTES, written_bytes, "bytes written through the mount's process")                             \
    X(FAILURES, failures, "operations that failed with an error that is no ordinary answer")

enum stats_counter {
#define X(NAME, name, doc) STATS_##NAME,
    STATS_COUNTERS(X)
#undef X
        STATS_N_COUNTERS
};

#define STATS_RUNNING_MAX  32 /* operations told of that run */
#define STATS_SLOW_MAX     16 /* the last ones told of that took long */
#define STATS_SLOW_NS      (100 * (uint64_t)1000000)
#define STATS_TARGET_BYTES 160

/* An operation that took long. In an array: newest first. */
struct stats_slow {
    uint32_t operation;
    uint64_t took_ns, ago_ns;
    uint64_t waited_ns;              /* of it, for answers of the node */
    uint32_t waited_op;              /* enum wire_op of the one that took longest; 0: for none */
    char target[STATS_TARGET_BYTES]; /* the path below the mount; of a scratch bucket as far as known, or
                                        "inode N" */
};

/* What one mount says of itself. Strings end with NUL, cut where they are longer. */
struct stats_report {
    uint32_t pid;
    bool is_scratch, is_passthrough, is_read_only;
    bool is_openless;  /* the read-only profile: the kernel opens files by itself */
    char bucket[1280]; /* BUCKET or BUCKET/PREFIX */
    char directory[1024];
    char node[256];            /* its address */
    char reason[ERR_TEXT_MAX]; /* why there is no passthrough, "" when there is */
    uint64_t up_ms;
    uint64_t open_files;
    struct stats_memory {
        uint64_t limit_bytes, resident_bytes; /* resident: as the kernel counts it; 0: not known */
        uint64_t held_bytes[HOLDINGS_N];
    } memory;
    uint64_t counters[STATS_N_COUNTERS];
    struct stats_latency {
        uint64_t count; /* that have ended */
        uint64_t sum_ns, max_ns, median_ns, p99_ns;
    } operations[STATS_N_OPERATIONS];
    uint32_t n_running, n_slow;
    struct stats_running {
        uint32_t operation;
        uint64_t for_ns;
    } running[STATS_RUNNING_MAX];
    struct stats_slow slow[STATS_SLOW_MAX];
};

const char *stats_operation_name(enum stats_operation op);

/* Asks the mount at a directory, or at one below it. -ENOTTY: not a mount of ours, or of another version. */
int stats_ask(const char *directory, struct stats_report *ret, struct err *e);
/* Of an answer that a mount gave: its strings end, and `*n` is no more than the array holds. false: it is of
 * a mount of another version. */
bool stats_check_slow(struct stats_slow slow[STATS_SLOW_MAX], uint32_t *n);

/* ---- for the mount's process ---- */

struct fuse_lowlevel_ops;
struct mount;
struct stats;

struct stats *stats_new(void);
void stats_free(struct stats *s); /* NULL accepted */
/* The operations of a mount's kind, each counted on its way. */
void stats_wrap(const struct fuse_lowlevel_ops *real, struct fuse_lowlevel_ops *ret);
void stats_add(struct stats *s, enum stats_counter c, uint64_t n);
/* n bytes went through this process to a reader; is_here: of a file of which every byte was here. */
void stats_read(struct stats *s, size_t n, bool is_here);
void stats_opened(struct stats *s, bool is_writable, bool is_passthrough);
/* What the counters say now; the rest is left untouched. */
void stats_fill(struct stats *s, struct stats_report *ret);
/* Those of the slow ones that were about one file: of a scratch bucket its inode number, else stats_about of
 * its path below the mount. Gives how many. */
uint32_t stats_fill_slow(struct stats *s, uint64_t about, struct stats_slow ret[STATS_SLOW_MAX]);
uint64_t stats_about(struct slice path);

/* Times are counted in places: up to 1 us one, then four for each power of two. */
#define STATS_PLACES 112
unsigned stats_place_of(uint64_t ns);
/* The largest time that has this place. */
uint64_t stats_place_top(unsigned place);
