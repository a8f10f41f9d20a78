/*
 * What the files of the store share: the store, its disks, its extents in memory.
 *
 * Threads. Callers' threads run everything in store.h. Each disk has two of its own: the *writer*, the only
 * one that writes entry and chunk records, in batches; and the *flusher*, which ends epochs.
 *
 * In memory there is one struct extent for each extent that is referenced or was a short while ago, never two
 * for one data id. Extents that are some key's current one are in the table (table.c); staged and dead ones
 * are not.
 *
 * Owning a key. Whoever changes which extent a key has, or loads one from the index, owns the key meanwhile
 * (table_begin .. table_end); others who want to do the same wait. Finding an extent that is in the table
 * needs no ownership.
 *
 * Dying. An extent dies when its entry is replaced, removed or evicted (doom.c): under the key's ownership it
 * leaves the table, its id goes into the disk's doomed set, its file is unlinked, and its records are queued
 * for deletion. As long as the id is in the doomed set the records do not count; it leaves the set after the
 * deletion was committed.
 *
 * Locks, in the order in which they may be taken; none is held over disk I/O, waits are on conditions of the
 * same lock: shard->lock  (STORE)   the table's shard: chains, LRU list, references going from or to zero
 *     x->lock      (EXTENT)  one extent: presence, attributes, what is to be recorded
 *     disk->lock   (DISK)    one disk: space, queues, epochs
 *     sets_lock    (LEAF)    the data-set table of the eviction policy
 *     fds_lock     (LEAF)    which extents have their file open
 */
#pragma once

#include "base/lock.h"
#include "base/metrics.h"
#include "kv/kv.h"
#include "store/evict.h"
#include "store/store.h"
#include "store/store_format.h"

#include <pthread.h>

#define EXTENT_MAGIC   0x45585431u
#define TABLE_SHARDS   64
#define DOOMED_BUCKETS 1024

#define WRITER_INTERVAL_NS   (100 * (uint64_t)1000000) /* how long a change waits for others */
#define WRITER_COMMIT_BYTES  MIB                       /* a commit is not made much larger than this */
#define LATE_MAX             64                        /* unlinked files that are not closed yet */
#define STAGED_PENDING_MAX   64                        /* unrecorded blocks that a staged extent may keep */
#define PENDING_BLOCKS_WAKE  1024        /* unrecorded blocks at which the writer starts at once */
#define PENDING_BLOCKS_MAX   65536       /* unrecorded blocks at which fills wait for the writer */
#define DIRTY_EXTENTS_MAX    16384       /* extents to be recorded at which creations wait */
#define DOOMED_MAX           65536       /* deletions queued at which further ones wait */
#define READ_LAG_MS          60000       /* how far a recorded last read may lag behind */
#define TOUCH_INTERVAL_MS    1000        /* reads closer together are one read to the policy */
#define CHARGE_STEP_BYTES    (64 * MIB)  /* space taken ahead of a fill */
#define CHARGE_AHEAD_MAX     (256 * MIB) /* largest object whose whole size is taken at creation */
#define VERIFY_INLINE_BLOCKS 16          /* suspect blocks that extent_is_complete verifies itself */
#define VERIFY_RUN_BLOCKS    64          /* suspect blocks that one extent_present_run verifies */
#define BIRTHS_AHEAD         64          /* files that are marked at a time, ahead of being made */
#define BIRTHS_LOW           32          /* while fewer are left the next are marked */
#define WRITEBACK_BYTES      (8 * MIB)   /* dirty pages are sent to the disk after so many bytes */

/* One block's news for the index. */
struct pending {
    uint32_t block;
    uint32_t crc;
    bool dropped; /* the block is missing again */
};

struct extent {
    uint32_t magic;
    uint32_t refs; /* atomic; to and from zero only under the shard's lock */
    struct store *store;
    struct disk *disk;
    struct id128 id;
    int fd;                                 /* open or not: descriptors.c */
    uint32_t fd_uses;                       /* atomic */
    bool fd_recent;                         /* atomic: used since the clock passed */
    struct extent *fds_next, *fds_previous; /* store->fds_lock */

    struct slice key; /* own copy; set before it enters the table, empty while staged */
    uint64_t hash;    /* of the key */
    bool dead;        /* atomic; set under the key's ownership */
    bool staged;      /* atomic; until published */
    bool whole;       /* atomic: all blocks present and none suspect */
    uint64_t size;    /* atomic; changes only while staged */

    /* shard->lock */
    struct extent *chain, *lru_newer, *lru_older;
    bool in_lru, in_dead;

    uint64_t last_read_ms;     /* atomic */
    uint64_t set_read_ms;      /* atomic: last read told to the policy */
    uint64_t recorded_read_ms; /* atomic */
    uint64_t touched_bytes;    /* atomic: read since set_read_ms */

    struct lock lock; /* the fields below */
    char *attr;
    size_t attr_bytes;
    uint32_t data_set;
    uint64_t charged; /* bytes counted in disk->used_bytes */
    uint64_t written; /* of those, bytes counted in disk->written_bytes */
    uint32_t n_blocks, n_present, n_suspect;
    uint32_t n_in_flight;  /* blocks that writers are in the middle of */
    uint32_t n_lost;       /* that were behind the end of the file when it was loaded; read-only stores */
    uint32_t blocks_room;  /* bits that the maps have room for */
    uint64_t one_word;     /* the map of extents of up to 64 blocks */
    uint64_t *present;     /* &one_word or heap */
    uint64_t *suspect;     /* heap, NULL when none is */
    uint32_t crc;          /* one-block extents: the block's */
    uint64_t blocks_epoch; /* in which the newest block was recorded or verified, or a later one */
    struct pending *pending;
    uint32_t n_pending, pending_room;
    bool entry_changed;
    bool chunks_changed;     /* every chunk record is to be written anew, with the running epoch */
    bool forced;             /* space for it is taken whatever the policy says */
    uint32_t chunks_written; /* staged: of so many chunks records may be in the index */
    /* Staged: writes in order, whose checksums are known without reading back. */
    uint64_t run_offset; /* where the next one would begin */
    uint32_t run_crc;    /* of the unfinished block before run_offset */
    bool run_busy;       /* a thread is writing at run_offset */
    uint64_t stray;      /* number of writes elsewhere so far, and how many are under way */
    uint32_t strays_busy;
    uint64_t lost_flushes; /* of the disk when it was made */

    /* disk->lock */
    bool dirty;
    struct extent *next_dirty;

    bool left; /* atomic, the writer's to change: the last try to record it came to nothing */

    /* writer only */
    bool recorded; /* an entry record is in the index */
    uint64_t recorded_charge;
    uint32_t batch_pending; /* of n_pending, how many the running commit holds */
    uint64_t batch_charge;  /* recorded_charge once it is committed */
    bool batch_staged;
};

/* Somebody owns a key; on the owner's stack. */
struct key_owner {
    struct slice key;
    uint64_t hash;
    struct key_owner *next;
};

struct shard {
    struct lock lock;
    struct cond released;
    struct extent **chains;
    size_t n_chains, n_extents;
    struct extent *lru_newest, *lru_oldest;
    uint64_t lru_bytes;
    struct extent *dead; /* chain of those that somebody references still; without staged ones */
    struct key_owner *owners;
};

/* A dead extent whose records are still in the index. */
struct doomed {
    struct id128 id;
    struct doomed *in_bucket;
    struct doomed *next; /* queue */
    bool raw;            /* key is the index key of a record that does not decode; the id is nobody's */
    bool is_lost;        /* its record was damaged, and is not there any more */
    uint64_t lost_bytes; /* what it counted for */
    bool has_file;       /* which could not be removed: the next start does */
    uint32_t n_chunks;
    uint32_t place; /* dying.c; DYING_NOWHERE: none */
    size_t key_bytes;
    char key[]; /* empty for staged extents */
};

/* What disks on one file system share. */
struct file_system {
    uint64_t number; /* st_dev of their paths */
    uint64_t total_bytes;
    struct lock lock;                   /* covers what follows; taken under a disk's lock */
    uint64_t used_bytes, written_bytes; /* of all its disks */
    uint64_t free_bytes, free_checked_ms;
    uint64_t written_at_check; /* written_bytes at that time */
    bool free_valid;
};

struct disk {
    struct store *store;
    uint32_t index;
    char *path;
    struct id128 id;
    uint64_t limit_bytes, weight;
    struct file_system *file_system;
    bool is_open; /* disk_open succeeded */
    bool was_clean, same_boot;
    uint64_t doubted_before_ns; /* as store_doubted_before_ns, of this disk */
    bool sweep_wanted;          /* the walk after a power loss has not ended yet */
    struct kv *kv;
    int dir_fd;
    bool made_dirs[256]; /* atomic */
    pthread_t writer, flusher, sweeper;
    bool has_writer, has_flusher, has_sweeper;

    struct lock lock; /* everything below */
    uint64_t used_bytes, leased_bytes, extents;
    uint64_t written_bytes; /* of used: bytes that are in files */
    struct extent *dirty_head, **dirty_tail;
    size_t n_dirty;
    struct doomed *doomed[DOOMED_BUCKETS];
    struct doomed *doom_head, **doom_tail;
    size_t n_doomed;
    uint64_t doom_rounds;  /* changes whenever an id leaves the doomed set */
    uint64_t lost_flushes; /* atomic: how often syncfs failed, counted before anything is distrusted */
    uint64_t pending_blocks;
    uint64_t running; /* the epoch that records are written in */
    struct format_epoch epoch;
    struct format_count count; /* as in the index */
    bool in_batch;             /* the writer read `running` and has not committed yet */
    bool changed;              /* something was recorded since the last epoch ended */
    bool stop, abandon;
    int broken;                /* the code with which the index refused the last commit; 0: it did not */
    bool unread;               /* of what is queued something waits for a record that cannot be read */
    uint64_t queued, recorded; /* changes queued so far, and how many of them are recorded */
    uint64_t rounds;           /* rounds of the writer that ended */
    unsigned drainers;         /* threads that wait for the writer */
    struct cond wake_writer, recorded_cond, wake_flusher;
    uint64_t denied_until_ms[64]; /* admission refused lately, by data set */
    bool is_walked;               /* somebody looks through all entries for a victim */
    struct id128 walk_at;         /* where the next such walk goes on */
    uint64_t walk_next_ms;        /* not before: the last one found no room */
    bool flushing;                /* one flush_epoch at a time */
    bool hold;                    /* the writer begins no round */
    bool distrust_wanted;         /* syncfs failed and the epoch record does not say so yet */
    bool forgets;                 /* counted in store->n_forgetful */
    uint64_t time_ns;             /* as in the index (TIME_KEY) */
    uint64_t opened_time_ns;      /* what it was when the disk was opened, or when the index had just lost its
                                     last commits, if nobody has seen to that; fixed afterwards */
    struct cond flushed_cond;
    struct id128 births[BIRTHS_AHEAD + BIRTHS_LOW]; /* marked, and not made yet */
    size_t n_births;
    bool making_births; /* somebody is at it */
    int late[LATE_MAX]; /* late.c: of unlinked files */
    size_t n_late;
    int dying_fd;         /* dying.c; fixed while threads run; -1: none */
    uint32_t *dying_free; /* places that were given back */
    uint32_t n_dying, n_dying_free;
    uint64_t n_left_dying; /* read-only: entries whose removal a kill has cut short */

    struct hard_disk *hard; /* hard extents; its fields have locks of their own or disk->lock */

    struct metric_series *m_used, *m_limit, *m_extents, *m_free, *m_entries, *m_verified;
};

struct hard_disk;
struct hard_table;

struct store {
    struct store_config config;
    struct disk *disks;
    size_t n_disks;
    struct file_system *file_systems; /* as many as the disks are on */
    size_t n_file_systems;
    struct shard shards[TABLE_SHARDS];
    uint64_t lru_bytes_max; /* per shard */
    bool read_only;

    struct lock fds_lock; /* covers the clock of open descriptors */
    struct extent *fds_hand;
    size_t n_fds, fds_max;

    struct lock sets_lock;
    struct evict_sets *sets;
    bool sets_changed;
    uint64_t sets_generation;

    struct hard_table *hard; /* hard extents in memory */

    uint64_t n_forgetful; /* atomic: disks of which `forgets` says so */

    struct lock gone_lock; /* covers the next two, and is held over the call */
    store_gone_fn on_gone;
    void *on_gone_arg;
    store_keep_fn keep;
    store_removed_fn removed;
    void *keep_arg;
};

/* How a store reaches its index; tests put engines of their own here before store_open. */
typedef int (*store_open_kv_fn)(const char *path, const struct kv_options *o, struct kv **ret, struct err *e);
extern store_open_kv_fn store_open_kv;

static inline uint64_t store_now_ms(void)
{
    return sys->real_ns() / 1000000;
}

static inline uint64_t disk_lost_flushes(const struct disk *d)
{
    return __atomic_load_n(&d->lost_flushes, __ATOMIC_ACQUIRE);
}

static inline struct shard *shard_of(struct store *s, uint64_t hash)
{
    return &s->shards[hash >> 58];
}

#define STORE_DISKS_MAX      256
#define STORE_SETS_MAX_BYTES (8 * MIB) /* the data-set table in the index */
/* As store_on_gone says; at most a shard's lock is held. */
bool store_tell_gone(struct store *s, struct slice key);
/* Fills ret_order (n_disks long) with the disks of a key, best first. */
void store_place(struct store *s, struct slice key, uint32_t *ret_order);
/* The file of this key's entry is gone: drops the entry, whether it is in memory or not. 1; 0: it is not the
 * key's entry any more; an error of the index. */
int store_drop_if_gone(struct store *s, struct slice key, struct disk *d, struct id128 id);
/* The record of this key's entry did not decode: when it still does not, it is written anew from memory, or
 * deleted. 1; 0: it is another one by now; an error of the index. */
int store_drop_if_damaged(struct store *s, struct slice key, struct disk *d);

/* ---- descriptors.c: which extents have their file open ---- */

#define FD_CLOSED 0x80000000u /* in fd_uses: x->fd is not open */
/* max: more are open only while they are in use. */
void descriptors_init(struct store *s, size_t max);
void descriptors_fini(struct store *s);
/* A new descriptor of the extent's file, or an error. */
int descriptors_open(struct extent *x);
/* The extent, which nobody else knows, has got its descriptor; in_use: as by extent_use. */
void descriptors_add(struct extent *x, int fd, bool in_use);
/* The extent is about to be freed. */
void descriptors_remove(struct extent *x);
/* The file is about to lose its name, and somebody has a reference. */
void descriptors_hold(struct extent *x);

/* ---- disk.c: one disk's directory, space and state ---- */

int disk_open(struct disk *d, const struct store_disk_config *config, struct err *e);
int disk_start(struct disk *d, struct err *e);
/* Ends the threads; clean: records everything and marks the disk clean. */
void disk_stop(struct disk *d, bool clean);
/* The store is not opened after all: what was stopped cleanly before, and was not used since, is so still. */
void disk_leave(struct disk *d);
void disk_fini(struct disk *d);
#define DISK_PATH_MAX 4096
void disk_extent_path(const struct disk *d, struct id128 id, char ret[DISK_PATH_MAX]);
/* Creates the file, O_RDWR; a descriptor or an error. */
int disk_create_file(struct disk *d, struct id128 id);
/* The id of a file that is about to be made; its marker is committed. */
int disk_mark_birth(struct disk *d, struct id128 *ret, struct err *e);
void disk_unmark_birth(struct disk *d, struct id128 id);
/* Files made below the directory from now on have no access times, where the file system can do that. */
void disk_forgo_access_times(const char *path);
int disk_log_error(const struct disk *d, const char *what, int code);
/* What was removed from it may be there again after a restart (store_n_forgetful). */
void disk_forgets(struct disk *d);

/* ---- space.c: what a disk may hold ---- */

/* All disks are open, and what they hold is counted: how much each may hold. */
int space_begin(struct store *s, const struct store_config *config, struct err *e);
void space_end(struct store *s);
/* What one of n disks of a file system may hold that has `room` for them all, of which all_asked were asked
 * for; asked: 0 for n_rest of them. Pure. */
uint64_t space_limit(uint64_t room, uint64_t asked, uint64_t all_asked, size_t n, size_t n_rest);
/* The file system has more free than it said. */
void space_look_again(struct disk *d);
/* Takes n bytes if they are free; no eviction. */
bool space_try(struct disk *d, uint64_t n);
/* Takes n bytes for `newcomer`, a key of `data_set` (empty: not known), evicting what the policy gives up.
 * ERR_NOT_ADMITTED. */
int space_take(struct disk *d, uint64_t n, uint32_t data_set, struct slice newcomer, bool force);
/* The same, by force, for bytes that are in a file already, and were not counted: what the file system has
 * free says nothing of them. They count as written at once. ERR_NOT_ADMITTED. */
int space_take_there(struct disk *d, uint64_t n);
/* Gives back n counted bytes, of which `written` were in files and `leased` belonged to dead extents. */
void space_give(struct disk *d, uint64_t n, uint64_t written, uint64_t leased);
/* n bytes that are in files of hard extents already: evicts what it can, and counts them whatever the limit.
 */
void space_grow(struct disk *d, uint64_t n);
/* n of the counted bytes belong to a dead extent now. */
void space_lease(struct disk *d, uint64_t n);
/* n more (or fewer) of the counted bytes are now in files. */
void space_written(struct disk *d, int64_t n);

/* ---- late.c ---- */

/* unlink of a file of so many bytes, whose blocks the file system may have back up to a second later. */
int late_unlink(struct disk *d, const char *path, uint64_t bytes);
/* Now. Whether there were some. */
bool late_close(struct disk *d);

/* ---- dying.c: entries whose file goes before their records ---- */

#define DYING_MAX     (2 * DOOMED_MAX)
#define DYING_NOWHERE UINT32_MAX
/* fn for each id that the last run noted, also those that are gone since; an error of fn ends it and is
 * returned, as one of the file is. */
typedef int (*dying_fn)(void *arg, struct id128 id);
int dying_read(struct disk *d, dying_fn fn, void *arg);
/* What was noted so far is forgotten; from here on dying_note notes. */
void dying_start(struct disk *d);
void dying_end(struct disk *d);
/* Before the file is unlinked: m is noted until its records are deleted. */
void dying_note(struct disk *d, struct doomed *m);
/* They are; under the disk's lock. */
void dying_forget_locked(struct disk *d, const struct doomed *m);

/* ---- table.c: extents in memory ---- */

void table_init(struct store *s);
void table_fini(struct store *s);
/* The extent of a key with a reference, or NULL. */
struct extent *table_find(struct store *s, struct slice key, uint64_t hash);
/* Owns the key until table_end. */
void table_begin(struct store *s, struct slice key, struct key_owner *o);
void table_end(struct store *s, struct key_owner *o);
/* Both by the key's owner. insert: x has a reference that the caller keeps; remove: x is dead. */
void table_insert(struct store *s, struct extent *x);
void table_remove(struct store *s, struct extent *x);
/* What eviction needs to know of a key's extent; false when it is not in memory. */
bool table_peek(struct store *s, struct slice key, uint64_t hash, bool *ret_referenced,
                uint64_t *ret_last_read_ms);
/* Queues every extent whose recorded last read lags behind. */
void table_record_reads(struct store *s, struct disk *d, uint64_t lag_ms);
/* Up to max keys of extents in memory that begin with prefix, copied; the caller's to free. */
size_t table_keys(struct store *s, struct slice prefix, struct slice *ret, size_t max);
/* fn for each extent in the table, and for each dead one that somebody references, under its shard's lock. */
void table_each(struct store *s, void (*fn)(struct extent *x, void *arg), void *arg);

/* ---- extent.c and its parts ---- */

struct extent *extent_new(struct disk *d, struct id128 id, uint64_t size);
void extent_free(struct extent *x);
uint64_t extent_memory_bytes(const struct extent *x);
void extent_set_key(struct extent *x, struct slice key, uint64_t hash);
void extent_copy_attr_locked(struct extent *x, struct slice attr);
void extent_resize_maps_locked(struct extent *x, uint64_t size);
bool extent_has_block_locked(const struct extent *x, uint32_t block);
void extent_set_all_present_locked(struct extent *x);
void extent_set_present_locked(struct extent *x, uint32_t block, bool suspect);
/* Every present block becomes suspect. */
void extent_distrust_locked(struct extent *x);
/* Blocks from `block` on, up to n_max, that are present and not suspect; whether the one behind them is
 * suspect. */
uint32_t extent_trusted_run_locked(const struct extent *x, uint32_t block, uint32_t n_max, bool *ret_suspect);
bool extent_range_is_suspect_locked(const struct extent *x, uint32_t first, uint32_t n);
/* A block's bytes are in the file. */
void extent_block_filled(struct extent *x, uint32_t block, uint32_t crc);
/* A block turned out bad: drops it, counts it (`found` is the metric's label) and logs it. */
void extent_block_dropped(struct extent *x, uint32_t block, const char *found);
void extent_block_forgotten_locked(struct extent *x, uint32_t block);
/* A suspect block was read and is right; lost_flushes: of the disk before it was read. */
void extent_block_trusted(struct extent *x, uint32_t block, uint64_t lost_flushes);
/* The disk lost writes while the block was filled, or somebody could not read it. */
void extent_block_doubted(struct extent *x, uint32_t block);
/* Doubts all behind the end of a file (fd) that is shorter than its extent. Before anything is fetched again
 * there: then it is as long as before, and what it lost before that would read as zeros. */
void extent_see_end(struct extent *x, int fd);
/* The record of its entry is lost: it is written again. */
void extent_record_anew(struct extent *x);
/* First suspect block at or after `from`, or UINT32_MAX. */
uint32_t extent_next_suspect(struct extent *x, uint32_t from);
/* Walks the structure and asserts what it should be. */
void extent_check(struct extent *x);
/* Takes space until `want` bytes are charged, or so many as the present blocks and those in flight need.
 * -ENOSPC. */
int extent_reserve(struct extent *x, uint64_t want);
int extent_reserve_blocks(struct extent *x);
/* The last reference of a living extent is gone: gives back what was taken ahead. */
void extent_trim_charge(struct extent *x);

/* ---- extent_verify.c ---- */

/* Checksum of a present block, from memory or the index. -ENOENT when it is missing, -EBADMSG when the
 * checksum is, or an error of the index. */
int extent_block_crc(struct extent *x, uint32_t block, uint32_t *ret_crc);
/* Room for a block, so aligned that it can be read past the page cache; free() it. */
char *extent_block_buffer(void);
/* Reads a block into buf (from extent_block_buffer) and compares. 0; ERR_CORRUPT after dropping it; -ENOENT
 * when missing. */
int extent_verify_block(struct extent *x, uint32_t block, char *buf, const char *found);
/* Only compares: -ENOENT when the block is missing, ERR_CORRUPT when its bytes or its checksum are not there
 * or differ, -EMFILE and -ENFILE when nothing can be said, -EAGAIN when the index does not tell the checksum
 * now. past_cache: what the disk has, and not what memory has, where the file system can. */
int extent_block_compare(struct extent *x, uint32_t block, char *buf, bool past_cache);
/* All of n bytes by a descriptor with O_DIRECT into a buffer from extent_block_buffer. -EINVAL: the file
 * system cannot; -ENODATA: the file ends before. */
int extent_pread_direct(int fd, char *buf, uint64_t n, uint64_t offset);

/* ---- load.c: from the index to memory ---- */

/* The current extent of the key from the index; the caller owns the key. Inserted, with a reference. -ENOENT.
 */
int load_extent(struct store *s, struct slice key, uint64_t hash, struct extent **ret);
/* Reads and decodes an entry; -ENOENT also when it is doomed. A record that does not decode is queued for
 * deletion and -EBADMSG. attr points into b. */
int load_record(struct disk *d, struct slice key, struct format_entry *ret, struct buf *b);

/* Of kv_get, or of decoding: the record is there, and is none. After other errors nothing is known of it, and
 * the next look may find it. */
static inline bool record_is_damaged(int code)
{
    return code == -EBADMSG || code == -E2BIG;
}

/* Of an entry that is not in memory; of the last block as if it was whole, but never more than the size. */
static inline uint64_t record_present_bytes(const struct format_entry *r)
{
    return MIN(r->size_bytes, r->present_blocks * STORE_BLOCK_BYTES);
}

/* ---- doom.c ---- */

/* By the owner of x's key (staged: by its last holder). Leaves the table and the index; its bytes count until
 * the last reference is gone. */
void doom_extent(struct extent *x);
/* An entry that is not in memory. */
void doom_record(struct disk *d, struct slice key, const struct format_entry *r);
/* One whose record was damaged and deleted; r: what is known of it all the same. The result of the unlink. */
int doom_lost(struct disk *d, struct slice key, const struct format_entry *r);
/* As doom_extent and doom_record, of what is evicted, of which s->keep knows. */
void doom_victim(struct extent *x);
void doom_victim_record(struct disk *d, struct slice key, const struct format_entry *r);
/* A record that does not decode. */
void doom_bad_record(struct disk *d, struct slice index_key);
bool doom_contains(struct disk *d, struct id128 id);
/* The records of this id count no more, as those of an entry that died. Where nothing is written. */
void doom_remember(struct disk *d, struct id128 id);
/* Changes whenever an id leaves the doomed set. */
uint64_t doom_rounds(struct disk *d);
/* Every current extent of the key; by the key's owner. 0, -ENOENT when there was none, or the first error of
 * an index: then the others went all the same. */
int doom_key(struct store *s, struct slice key, uint64_t hash);
/* Takes it out of the doomed set and frees it; under the disk's lock. */
void doom_forget_locked(struct disk *d, struct doomed *m);

/* ---- disk_writer.c and disk_flush.c ---- */

/* x, which the caller has a reference of, has something to be recorded. Takes a reference until it is.
 * x->lock may be held. */
void writer_queue(struct extent *x);
void writer_queue_doomed(struct disk *d, struct doomed *m);
/* More or fewer unrecorded blocks. */
void writer_pending(struct disk *d, int64_t n);
bool writer_is_broken(struct disk *d);
/* 0, or an error that says that the index cannot be written: -ENOSPC for want of room, else -EIO. */
int writer_check(struct disk *d, struct err *e);
/* Whether what is queued now is recorded soon: else what can be lost, as times of reads and attributes can,
 * is not queued, because a queued extent stays in memory. x->lock may be held. */
bool writer_records(struct disk *d);
/* Waits while too much is queued. No lock held. */
void writer_throttle(struct disk *d);
/* Waits until everything queued so far is recorded. false: some of it was tried, and is not. */
bool writer_drain(struct disk *d);
void *writer_run(void *disk);
void *flusher_run(void *disk);
/* Records what is queued and ends the running epoch: syncfs, durable commit. */
int flush_epoch(struct disk *d, struct err *e);
#define TIME_KEY SLICE_LIT("mtime")
/* Commits an epoch record durably. */
int flush_commit_epoch(struct disk *d, const struct format_epoch *epoch, struct err *e);

/* ---- store_recover.c ---- */

int recover_disk(struct disk *d, struct err *e);
/* Notes a power loss in the index, for all starts to come, and that a walk is due; before the mark forgets
 * the boot. */
int recover_doubts(struct disk *d, struct err *e);
int recover_sets(struct store *s, struct err *e);
/* Counts and (repair) removes files that nothing names. -ECANCELED when the disk is being stopped; the first
 * error of a removal, behind all others. */
int recover_orphans(struct disk *d, bool repair, uint64_t *ret_files, uint64_t *ret_bytes);
/* The walk after a power loss. */
void recover_sweep(struct disk *d);
