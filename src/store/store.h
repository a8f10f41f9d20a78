/*
 * The store: cached versions of objects on the disks of this node. It knows nothing of origins, buckets or
 * the network: an entry is an opaque key with an opaque attribute blob and one extent file.
 *
 * Words: an *entry* binds a key to its current extent. An *extent* is the bytes of one version: one sparse
 * file with a presence map of 1 MiB blocks and a crc32c per block. A *block* is present when all its bytes
 * are in the file and its crc is known. An entry's data id never changes; a new version of an object is a new
 * extent under the same key, and readers of the old one keep its bytes until they let go.
 *
 * Invariants:
 *  1. A block is served only when present. Present bits reach the index after the bytes were written (epochs
 * make that true across power loss, see store_format.h).
 *  2. An extent file is never punched, shortened or overwritten in a present block. Eviction unlinks whole
 * files; bytes of an unlinked file count as used until the last reference is gone.
 *  3. An entry with references is never reused for another version.
 *  4. Used bytes, with reservations of fills in flight, stay at or below each disk's limit.
 */
#pragma once

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/id.h"

#define STORE_BLOCK_BYTES    MIB
#define STORE_ATTR_MAX_BYTES (16 * KIB)
#define STORE_KEY_MAX_BYTES  (2 * KIB)
#define STORE_SIZE_MAX_BYTES ((uint64_t)1 << 50) /* most bytes of one extent */

struct store;
struct extent;

struct store_disk_config {
    const char *path;    /* directory, made when missing */
    uint64_t size_bytes; /* 0: what the file system has, less the reserve and what others have of it */
};

struct store_config {
    const struct store_disk_config *disks;
    size_t n_disks;
    uint64_t memory_bytes;  /* what the store may use in all: index caches, open extents, data-set table */
    uint64_t reserve_bytes; /* free bytes always left on each file system */
    uint64_t flush_interval_ms; /* epoch length */
    bool read_only;             /* `store check` beside a stopped node */
};

/* Opens all disks; recovers what an unclean stop left. A disk that cannot be opened is an error naming it. */
int store_open(const struct store_config *config, struct store **ret, struct err *e);
/* Real time of the last start before which a disk was not stopped cleanly and the machine was started anew:
 * what had died last, and was not flushed yet, may be there again, for ever. Or before which a disk was away
 * (store_note_start). 0: never. */
uint64_t store_doubted_before_ns(const struct store *s);
/* Notes on each disk that the start `now` of the node uses it. One that was used last by another start than
 * `last` (all zero: none) was away meanwhile, or belonged to somebody else: what it holds may have been
 * replaced or removed, and is doubted. Once, before entries are looked for. Durable on return. */
int store_note_start(struct store *s, struct id128 last, struct id128 now, struct err *e);
/*
 * How many disks may show again, after another start of the node, what was removed from them or replaced, and
 * would not be doubted then: neither the file could be unlinked nor the index changed, an index could not be
 * read, or a flush failed, after which a disk may forget what the kernel said yes to. Never less than before;
 * what must not come back is to be noted elsewhere (another `last` at store_note_start).
 */
uint64_t store_n_forgetful(const struct store *s);
/* Whether the index of a disk came back without its last commits (kv_is_cut), and nobody has seen to it
 * since. */
bool store_is_cut(const struct store *s);
int store_cut_mended(struct store *s, struct err *e);
/* Clean stop: flushes, commits the epoch, marks each disk clean. All extents must have been released. */
void store_close(struct store *s);
DEFINE_CLEANUP(struct store, store_close)
/*
 * `fn` is called with the key of each entry that is replaced, removed or evicted while somebody has a
 * reference, before the call that does it returns; with the key of one that eviction would take if nobody had
 * a reference; and with the key of one, or of a version of before, whose bytes the disk has perhaps lost. It
 * says whether anybody was told who may let go of one. It is called from any thread, perhaps under locks of
 * the store, and must not call the store. Set and unset (NULL) while no other thread uses the store; it is
 * called no more on return.
 */
typedef bool (*store_gone_fn)(void *arg, struct slice key);
void store_on_gone(struct store *s, store_gone_fn fn, void *arg);
/*
 * `keep` says whether the entry of a key, of which so many bytes are here, must not be evicted for the sake
 * of `newcomer`, the key of who needs room (empty: of nobody that is known). It is asked of candidates, and
 * with `takes` once more of each that goes now unless it says so. `removed` is told what leaves for any other
 * reason. Both are called from any thread and must not call the store. Set and unset as with store_on_gone.
 */
typedef bool (*store_keep_fn)(void *arg, struct slice key, struct slice newcomer, uint64_t bytes, bool takes);
typedef void (*store_removed_fn)(void *arg, struct slice key, uint64_t bytes);
void store_on_evict(struct store *s, store_keep_fn keep, store_removed_fn removed, void *arg);
/* Stops without marking clean and without flushing, as kill -9 would; tests only. */
void store_abandon(struct store *s);

/* ---- finding and making entries ---- */

/* The entry's extent with a reference, or -ENOENT. Cached in memory while referenced and for a while after.
 */
int store_find(struct store *s, struct slice key, struct extent **ret);
/* The same only where somebody has a reference to it; no index is read. */
int store_find_used(struct store *s, struct slice key, struct extent **ret);

struct store_new {
    struct slice key;
    struct slice attr; /* opaque, at most STORE_ATTR_MAX_BYTES */
    struct slice
        data_set; /* key prefix whose reads belong together, for eviction; empty: found automatically */
    uint64_t size_bytes;
    bool pinned_admission; /* admit even if the policy would not (user asked for it) */
};
/*
 * Makes an empty extent of a version and makes it the entry's current one (the former becomes dead). Its
 * bytes are reserved on the disk, the first 256 MiB at once and more as it is filled; what was reserved and
 * not filled is given back when the last reference is gone. ERR_NOT_ADMITTED: the eviction policy keeps what
 * is there, or there is no space; the caller serves without caching. -EIO: the disk's index cannot be
 * written.
 */
int store_create(struct store *s, const struct store_new *n, struct extent **ret, struct err *e);

/* A nameless extent for writing an object whose size may be unknown (size_hint 0). It grows by extent_write;
 * space is reserved as it grows (ERR_NOT_ADMITTED). It disappears with its last reference unless published.
 */
int store_stage(struct store *s, struct slice key, uint64_t size_hint, struct extent **ret, struct err *e);
/* Seals a staged extent of `size_bytes` (computes the crcs of blocks that were not written in order through
 * extent_write), and makes it the current one under n->key. On error the old entry stays. */
int store_publish(struct store *s, struct extent *x, const struct store_new *n, struct err *e);

/*
 * The same of a hard extent (hard.h), of whose `size_bytes` bytes nobody may change any from now on: its
 * file, by another name, as a staged extent of the same disk. Who wants to publish that one does so also
 * after the hard extent was given back. The bytes count as the staged extent's from now on; a hard extent
 * that is not given back counts them again within seconds. sums: crc32c of all blocks, of bytes that the
 * caller has read; NULL: they are read when it is published.
 */
struct hard;
int store_stage_hard(struct store *s, struct slice key, struct hard *h, uint64_t size_bytes,
                     const uint32_t *sums, struct extent **ret, struct err *e);

/* Drops the entry; -ENOENT when there is none. Readers keep their extent. */
int store_remove(struct store *s, struct slice key);
/* Drops the entry only when this extent is still its current one. The caller keeps its bytes, as all readers.
 */
void store_remove_extent(struct store *s, struct extent *x);
/* Drops every entry whose key begins with prefix; returns how many, or an error. */
int64_t store_remove_prefix(struct store *s, struct slice prefix);

struct store_listed {
    struct slice key; /* in the arena */
    uint64_t size_bytes, present_bytes, last_read_ms;
};
/* Waits until all that was cached so far survives kill -9. -EIO: not all of it does, as an index cannot be
 * written just now. */
int store_record(struct store *s, struct err *e);
/* Entries whose key begins with prefix and comes after `after`, in byte order over all disks, at most max (at
 * most STORE_LIST_MAX); fewer means the end. How many, or an error of an index. Changes nothing. */
#define STORE_LIST_MAX 1000
int64_t store_list(struct store *s, struct slice prefix, struct slice after, size_t max, struct arena *a,
                   struct store_listed *ret);

/* Whether the eviction policy gives up a listed entry for a newcomer with this key. */
bool store_would_evict(struct store *s, const struct store_listed *l, struct slice newcomer);

/* ---- extents ---- */

struct extent *extent_ref(struct extent *x);
void extent_unref(struct extent *x);
DEFINE_CLEANUP(struct extent, extent_unref)

uint64_t extent_size(const struct extent *x);
struct id128 extent_data_id(const struct extent *x);
/* The extent's descriptor, which stays open until extent_leave; otherwise it may be closed for the sake of
 * others, and is opened again here. File offset = object offset. -EMFILE: none is free; -ENOENT: the file is
 * gone. */
int extent_use(struct extent *x);
void extent_leave(struct extent *x);
/* The same once more, of an extent that is in use, as a staged one is until it is published. */
int extent_fd(const struct extent *x);
/* A new O_RDONLY (or O_RDWR for a staged extent) descriptor of the file, the caller's to close, to hand out.
 */
int extent_open_fd(struct extent *x, int flags);
/* Attribute blob, copied out. */
int extent_attr(struct extent *x, struct buf *ret);
/* The same into the arena, for who asks at each open. */
struct slice extent_attr_in(struct extent *x, struct arena *a);
/* Replaces the attribute blob (after revalidation); written to the index with the next batch. -EIO: the index
 * cannot be written; the former blob will be there again. */
int extent_set_attr(struct extent *x, struct slice attr);
/* Waits until what was set survives kill -9. -EIO. */
int extent_record_attr(struct extent *x);
/* The same of its blocks. -EIO: the index cannot be written just now. */
int extent_record_blocks(struct extent *x);
/* All blocks present and trusted; verifies up to 16 suspect ones itself. */
bool extent_is_complete(struct extent *x);
bool extent_is_dead(struct extent *x); /* replaced, removed or evicted */
uint64_t extent_present_bytes(struct extent *x);
/* Where the bytes of an extent are, for people. */
struct store_place {
    char disk[4096], file[4096]; /* paths; the file may be gone by the time it is looked for */
};
void extent_place(const struct extent *x, struct store_place *ret);
struct extent_counts {
    uint32_t blocks, present,
        suspect;           /* suspect: of the present ones, to be verified before they are served */
    uint64_t last_read_ms; /* real time, 0: never */
};
void extent_count(struct extent *x, struct extent_counts *ret);

/*
 * Length of the run of present, trusted bytes at `offset` (0: none), at most `n`. Blocks that are suspect
 * after an unclean stop are verified here first (disk read, no lock held), at most 64 of them in one call, so
 * that the run may end before a block that is present: ask again at its end. A bad block is dropped, counted
 * and logged, so that it reads as missing. Staged extents: up to their size.
 */
uint64_t extent_present_run(struct extent *x, uint64_t offset, uint64_t n);
/* Somebody could not read these bytes: as after an unclean stop, they are verified before they are served. */
void extent_doubt(struct extent *x, uint64_t offset, uint64_t n);
/* First missing range at or after offset: 0 and the range (block-aligned, cut at the size), or -ENOENT. */
int extent_next_missing(struct extent *x, uint64_t offset, uint64_t *ret_offset, uint64_t *ret_n);

/*
 * Writes fetched bytes. Whole blocks become present when the last byte of a run of in-order writes covers
 * them: a writer uses one extent_writer per part, starting at a block boundary. crcs are computed on the way;
 * bytes of a block that is present already are taken and forgotten. Errors: the disk's own (-ENOSPC, also
 * when no space could be reserved, -EIO), -EINVAL for bytes behind the object's end; the extent stays usable
 * for its present blocks.
 */
struct extent_writer;
struct extent_writer *extent_writer_new(struct extent *x, uint64_t offset);
void extent_writer_free(struct extent_writer *w); /* an unfinished block is forgotten */
DEFINE_CLEANUP(struct extent_writer, extent_writer_free)
int extent_writer_append(struct extent_writer *w, const void *p, size_t n);
/* Offset of the next byte. Bytes below it are in the file, also those of the unfinished block. */
uint64_t extent_writer_offset(const struct extent_writer *w);

/* Staged extents only: positional write, any order, any overlap. */
int extent_write(struct extent *x, const void *p, size_t n, uint64_t offset);
int extent_truncate(struct extent *x, uint64_t size);

/* Accounts a read of n bytes for eviction and data sets; cheap, called per open or per large read. */
void extent_touch(struct extent *x, uint64_t n);
/* Reads with verification of every block touched (verify=read buckets). ERR_CORRUPT after dropping the bad
 * block. */
ssize_t extent_read_verified(struct extent *x, void *p, size_t n, uint64_t offset);

/* ---- looking after it ---- */

struct store_disk_status {
    char path[256];
    struct id128 id;
    uint64_t used_bytes, limit_bytes, leased_bytes; /* leased: unlinked but still referenced */
    uint64_t free_bytes, total_bytes;               /* of the file system, which disks may share */
    uint64_t extents, index_entries;
    uint64_t hard_bytes, hard_extents; /* of hard extents (hard.h); the bytes are among used_bytes */
    uint64_t hard_unsettled;           /* of those, which may be written */
    uint64_t room_bytes; /* what hard extents may still take: what is cached gives way, the reserve stays */
    bool was_clean;      /* how the last stop was */
};
size_t store_n_disks(const struct store *s);
int store_disk_status(struct store *s, size_t disk, struct store_disk_status *ret);
/* What hard extents may take on all disks, and still may: what several disks share, one file system, counts
 * once. A disk that does not answer counts nothing. */
void store_room(struct store *s, uint64_t *ret_total_bytes, uint64_t *ret_room_bytes);
/* Makes everything so far durable and commits the epoch now. */
int store_flush(struct store *s, struct err *e);

struct store_check_report {
    uint64_t extents, blocks, bytes;
    uint64_t bad_blocks;    /* crc wrong: dropped from the entry, to be fetched again */
    uint64_t missing_files; /* entry without its file: entry dropped */
    uint64_t orphan_files;  /* file without entry: removed */
    uint64_t orphan_bytes;
    uint64_t bad_records;                           /* entries' records that do not decode: dropped */
    uint64_t hard_extents, hard_blocks, hard_bytes; /* sealed hard extents (hard.h) */
    /* Of those, with a block whose crc is wrong, another size, no file, or a record that does not decode:
     * never dropped. */
    uint64_t hard_bad;
    uint64_t set_aside_files, set_aside_bytes; /* scratch files whose names were lost (hard_sweep) */
    uint64_t cut_indexes;                      /* indexes of disks that lost their last commits (kv_is_cut) */
    /* Read-only: entries that were being removed or replaced when the node was killed. Nothing is wrong with
     * them: the next start ends that. They are in no other number. */
    uint64_t unfinished;
};
/* Called after each extent with the running report; returning false stops. `problem` is NULL when it was
 * fine. */
typedef bool (*store_check_fn)(const struct store_check_report *so_far, const char *problem, void *arg);
/* Verifies every block of every disk. repair false: only reports. Works on a running store and on a read-only
 * one. */
int store_check(struct store *s, bool repair, store_check_fn fn, void *arg, struct store_check_report *ret,
                struct err *e);
/*
 * One step of a scrub, of a running store: verifies some of what is on a disk, as the disk has it. `at` is
 * empty at first, and says where to go on afterwards, also for another run of the program (-EINVAL: it does
 * not). Before each block that is read `before` is asked, which may take its time; when it gives false the
 * step ends, and `at` stands before the extent that was not done. Bad blocks of entries are dropped, as by a
 * repair; bad hard extents are told. The report is added to; fn as of store_check, with the same arg.
 * -ENOENT: that was the last step, and `at` is empty.
 */
typedef bool (*store_before_fn)(void *arg, uint64_t bytes);
int store_scrub(struct store *s, size_t disk, struct buf *at, store_before_fn before, store_check_fn fn,
                void *arg, struct store_check_report *ret, struct err *e);
