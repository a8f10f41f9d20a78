/*
 * Hard extents: files of scratch buckets, which exist only here and are never evicted.
 *
 * One hard extent is one ordinary sparse file, DISK/hard/xx/<32 hex digits of its data id>. Its size, times,
 * holes and allocation are what the file system says; descriptors of it are handed out for reading and for
 * writing, and nothing is inferred from writes that the node did not see. The caller keeps a *location* (33
 * bytes) with its inode; the store knows nothing of inodes.
 *
 * States. A new extent is *marked*: its disk's index says that maybe nobody names it. While an extent may be
 * written it is *unsettled*. Settling (hard_measure, then hard_settle) records its size and the crc32c of
 * each MiB durably and takes the mark away: it is *sealed*. hard_begin_writing of a sealed extent drops those
 * records durably before the first byte may change.
 *
 * What the caller must do, for nothing to be lost or leaked when the power goes (see docs/ARCHITECTURE.md):
 *  - name an unsettled extent in a writing record, made in the transaction that names it in an inode or
 * before hard_begin_writing, until hard_settle said that it is sealed;
 *  - make its own transactions durable before hard_settle (the inode), hard_remove and hard_give_back (that
 * no inode names the extent any more);
 *  - at start, before anything else: hard_protect each extent that a writing record names, then hard_sweep.
 *
 * Space. What the files occupy counts in the disk's used bytes; growth evicts soft data by force. Extents
 * that are unsettled are looked at every few seconds, so that writes past the node count too.
 *
 * Threads: any, for every function. Two threads that write the same range get what the file system gives.
 */
#pragma once

#include "base/err.h"
#include "base/slice.h"

#include <sys/stat.h>

#define HARD_LOCATION_BYTES 33 /* format (1) = 1, disk id (16), data id (16) */

struct store;
/* A counted reference; one struct for each data id while somebody has one. */
struct hard;

/* ---- getting one ---- */

/* A fresh empty extent from the pool, modified now: its file exists (also after power loss) and is marked.
 * Costs no disk I/O while the pool is filled in time. -ENOSPC, -EIO, -EROFS. */
int hard_take(struct store *s, struct hard **ret, struct err *e);
/* An extent that no inode names (durably) and for which nobody is writing, marked (never settled): back to
 * the pool when nobody ever wrote and nobody has it open (who hands it out for writing sets its time before,
 * which shows that), or else removed. Drops the reference. */
void hard_give_back(struct hard *h);
/*
 * The file of a staged extent (store.h), synced, by another name: what is written to it later is in both.
 * Marked, and unsettled for ever. ERR_NOT_ADMITTED: it cannot have one (the file system has no hard links, or
 * the file has no name any more), so that its bytes must be copied; else errors of the disk.
 */
struct extent;
int hard_of_staged(struct store *s, struct extent *x, struct hard **ret, struct err *e);
void hard_location(const struct hard *h, uint8_t ret[HARD_LOCATION_BYTES]);
/* ERR_CORRUPT: not a location; -ENODEV: its disk is not one of ours; -ENOENT: the file is gone; the disk's
 * own errors. */
int hard_find(struct store *s, struct slice location, struct hard **ret, struct err *e);
struct hard *hard_ref(struct hard *h);
void hard_unref(struct hard *h);
DEFINE_CLEANUP(struct hard, hard_unref)

/* ---- reading ---- */

/* O_RDONLY, owned by h and valid while it is referenced. */
int hard_fd(const struct hard *h);
/* A new descriptor, the caller's to close, to hand out: O_RDONLY or O_RDWR. O_RDWR only between
 * hard_begin_writing and hard_end_writing; it may live longer than those. */
int hard_open_fd(struct hard *h, int flags);
/* The same of a fresh extent in two steps, so that it can be named in between and no lack of descriptors
 * comes after that: an O_RDWR one that nobody may have yet (-errno), and that it is handed out now, between
 * hard_begin_writing and hard_end_writing. */
int hard_open_ahead(struct hard *h);
void hard_hand_out(struct hard *h);
int hard_stat(struct hard *h, struct stat *ret);
/* Whether, by what hard_stat has given, it is empty and nobody has written to it since it was taken: its time
 * was set (hard_set_mtime) before it was handed out, and is that still. */
bool hard_is_untouched(const struct hard *h, const struct stat *st);
/* 0: nobody has the file open for writing, by any of its names; -EAGAIN: somebody has. Other errors: the file
 * system cannot tell. */
int hard_is_written(struct hard *h);
struct store_place; /* store.h */
void hard_place(const struct hard *h, struct store_place *ret);
bool hard_is_sealed(struct hard *h);
/* Whether anybody but this struct has the file open, here or elsewhere. False where the file system cannot
 * tell. */
bool hard_is_open(struct hard *h);
/* Reads up to n bytes, fewer at the end of the file. Of a sealed extent every block touched is compared with
 * its crc: ERR_CORRUPT, counted and logged. */
ssize_t hard_read_verified(struct hard *h, void *p, size_t n, uint64_t offset, struct err *e);

/* ---- writing ---- */

/* Before the first byte may change. Of a sealed extent the crcs are dropped durably; else it costs no I/O.
 * Counts a writer, until hard_end_writing. On an error nobody may write. */
int hard_begin_writing(struct hard *h, struct err *e);
void hard_end_writing(struct hard *h);
/* Between begin and end: takes room for as many bytes of the file, kept until the last writer ends, so that
 * what is begun can be written to its end. ERR_NOT_ADMITTED: even eviction makes none. */
int hard_reserve(struct hard *h, uint64_t bytes);
/* Between begin and end. The node's own writes; crcs of bytes written in order from 0 on are computed on the
 * way, and used by hard_measure when nothing else was written. -ENOSPC, -EDQUOT, -EFBIG, -EIO. */
int hard_write(struct hard *h, const void *p, size_t n, uint64_t offset, struct err *e);
int hard_truncate(struct hard *h, uint64_t size, struct err *e);
/* Sets the file's own time, which is the inode's while it is unsettled. */
int hard_set_mtime(struct hard *h, int64_t mtime_ns, struct err *e);
/* What was written by anybody so far is durable; hard_sync_times: the file's own times are, too. An error of
 * the disk since the last call of either is reported once. */
int hard_sync(struct hard *h, struct err *e);
int hard_sync_times(struct hard *h, struct err *e);

/* ---- settling ---- */

/* Prepares sealing: what fstat says, and the crcs, kept until hard_settle, a write or the last unref. -EAGAIN
 * while somebody has it open for writing, here or elsewhere (also a mapping, or the kernel for a mount), or
 * when that happened meanwhile: later again. -EOPNOTSUPP: the file system cannot tell; it stays unsettled. A
 * sealed extent: 0 at once. Reads what was not written in order through hard_write. */
int hard_measure(struct hard *h, struct stat *ret, struct err *e);
/* Seals extents that were measured and not written since; their inodes are durable by now. One sync and one
 * durable commit per disk: the bytes, then crc records, marks gone. ret_ok[i] says which are sealed. 0, or
 * the first error of a disk; the others are then sealed all the same. */
int hard_settle(struct store *s, struct hard *const *h, size_t n, bool *ret_ok, struct err *e);
/* What the disk said when hard_settle could not sync the extent, once: the kernel tells nobody else of it. 0:
 * nothing. */
int hard_take_fault(struct hard *h);

/* ---- removing ---- */

/* Removes the files of n locations that no inode names any more (durably). Readers keep their bytes. Gone
 * already: fine. One durable commit per disk and call at most: give many. The first error; the others are
 * removed all the same, and the same call may be made again. */
int hard_remove(struct store *s, const struct slice *locations, size_t n, struct err *e);

/* ---- starting ---- */

/* A writing record names it. 0 also when the file is gone or sealed; what an index that lost its last commits
 * says is sealed is not any more: it may have been written to since. As hard_find otherwise. */
int hard_protect(struct store *s, struct slice location, struct err *e);
/* Calls fn with the location of every marked file that has bytes and was not protected, until it gives a
 * negative code, which is passed on. Also of those that an index which lost its last commits says are sealed,
 * when they were written to at that time: they may have been sealed again. */
int hard_unprotected(struct store *s, int (*fn)(void *arg, struct slice location), void *arg, struct err *e);
/* Whether the index says nothing of it: neither that it is sealed nor that it was protected. False also when
 * that cannot be told. */
bool hard_is_forgotten(struct store *s, struct slice location);
/*
 * Removes marked files that were not protected. Before the first hard_take. The first error; what could not
 * be removed is tried again at the next start. keep_bytes: records that named files may be lost, so that
 * those with bytes go to DISK/set-aside/<32 hex digits> instead, where nothing of forebay touches them again.
 */
struct hard_swept {
    uint64_t removed, set_aside;
};
int hard_sweep(struct store *s, bool keep_bytes, struct hard_swept *ret, struct err *e);
/* How many files are in DISK/set-aside of all disks, and their bytes. */
int hard_set_aside(struct store *s, uint64_t *ret_files, uint64_t *ret_bytes, struct err *e);
