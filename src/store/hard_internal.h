/*
 * What the files of the hard extents share.
 *
 * In memory there is one struct hard for each hard extent that is referenced, and for each that is unsettled
 * and known (taken, or protected at start): what it occupies is counted nowhere else. A sealed one that
 * nobody references is only in the index.
 *
 * Doing something to one. Whoever loads, seals, unseals or removes an extent sets `busy` and does so without
 * the lock; others wait for it. Measuring is not busy: beginning to write makes it give up.
 *
 * Locks: shard->lock (rank STORE, never together with one of table.c), pool->lock and disk->lock (DISK). None
 * is held over I/O.
 */
#pragma once

#include "base/chore.h"
#include "store/hard.h"
#include "store/store_internal.h"

#define HARD_MAGIC     0x48415244u
#define HARD_SHARDS    16
#define HARD_NO_SET    UINT32_MAX /* data set of hard extents in the eviction policy: none */
#define HARD_STEP      (8 * MIB)  /* space taken ahead of the node's writes into a large file */
#define HARD_GONE_MAX  65536 /* removals that wait for a flush; the marks of others stay until a restart */
#define HARD_WATCH_MAX 512   /* unsettled extents looked at in one second */

/* ---- checksums (hard_sums.c) ---- */

/* Checksums of a file in the making, in rising order of blocks; full chunks go to the index on the way. */
struct hard_sums {
    uint64_t generation;
    uint64_t chunk;    /* that v belongs to */
    uint64_t n_chunks; /* records written so far */
    uint32_t n, room;
    uint32_t one, *v; /* v is &one while one block is all */
};

struct hard {
    uint32_t magic;
    struct store *store;
    struct disk *disk;
    struct id128 id;

    /* shard->lock */
    struct hard *chain;
    uint32_t refs;
    uint32_t writers; /* hard_begin_writing without hard_end_writing */
    uint64_t changes; /* how often writing began (atomic: read while measuring) */
    bool busy;
    bool removed;
    bool lost; /* could not be loaded; not in the table */
    bool sealed;
    bool counts_twice;   /* not sealed, and counted by its hard record, which is damaged */
    bool head_may_exist; /* sealed, or a commit that sealed or unsealed it failed */
    bool pristine;       /* from the pool, and no descriptor of it left and nobody wrote */
    bool handed;         /* a writable descriptor left and may still be open */
    bool blank;          /* from the pool, and the node wrote nothing; who was handed it may have */
    bool has_blank_time;
    int64_t blank_mtime_ns; /* the file's, as long as nobody wrote */
    bool dirty;             /* written since the last hard_sync began */
    uint32_t syncing;       /* calls of hard_sync that are under way */
    bool synced;            /* fsync was called once */
    int fault;         /* of the last hard_settle that could not sync it, until hard_take_fault; 0: none */
    bool stale_chunks; /* chunk records of an earlier attempt may be in the index */
    bool measuring;
    bool measured; /* sums, size and allocated are what hard_measure found */
    uint64_t measured_changes, measured_bytes, measured_allocated;
    uint64_t charged;       /* counted in the disk's used bytes */
    uint64_t written;       /* of those, counted as being in files */
    uint64_t ahead;         /* hard_reserve: at least so many are charged until the last writer ends */
    uint64_t allocated;     /* by the last fstat */
    uint64_t grown;         /* written by the node since then */
    int fd, write_fd;       /* -1: not open; fd stays open while referenced */
    struct hard_sums *sums; /* of the run, or measured */
    bool run_ok, run_busy;  /* all that was ever written was written in order */
    uint64_t run_offset;
    uint32_t run_crc; /* of the unfinished block before run_offset */
    uint64_t sent;    /* pages before this were sent to the disk */
    uint64_t early;   /* bytes before this were to be synced on the way */
};

struct hard_shard {
    struct lock lock;
    struct cond idle; /* something is not busy any more */
    struct hard **chains;
    size_t n_chains, n;
};

struct hard_table {
    struct hard_shard shards[HARD_SHARDS];
};

/* One change of the hard records, in a commit with others (hard_commit.c). */
enum hard_change_kind {
    HARD_SEAL,   /* head and sums are put, the mark goes */
    HARD_UNSEAL, /* the hard record goes */
    HARD_REMOVE, /* the hard record goes, the mark is put */
};

struct hard_change {
    enum hard_change_kind kind;
    struct id128 id;
    struct format_hard head;      /* SEAL */
    const struct hard_sums *sums; /* SEAL */
    bool stale_chunks;
    int result;
    bool done;
    struct hard_change *next;
};

/* The file of a removed extent, whose mark goes when the removal is on disk. */
struct hard_gone {
    struct id128 id;
    bool chunks; /* there may be chunk records */
};

struct hard_gone_list {
    struct hard_gone *v;
    size_t n, room;
};

struct hard_pool {
    struct lock lock; /* all below */
    struct cond wanted, filled;
    struct id128 *v;
    size_t n, room;
    size_t batch;
    uint64_t rounds; /* of filling that ended */
    uint64_t last_round_ms;
    int error;  /* of the last one */
    bool asked; /* a taker found it empty */
    bool has_thread, stop;
    pthread_t thread;
    /* The thread's own. */
    bool dir_made, dir_is_new, sub_synced[256];
    uint8_t sub; /* directory that is being filled, and how many files were made there */
    size_t sub_files;
};

/* Syncs on the way (hard_early.c). */
struct hard_early {
    struct chore chore;
    struct lock lock; /* covers what follows */
    int fd;           /* to be synced next; -1: nothing is */
    bool is_syncing;
    unsigned rest; /* so many calls are for nothing */
};

struct hard_disk {
    struct hard_pool pool;
    struct hard_early early;
    int dir_fd;     /* DISK/hard; -1 while there is none (atomic) */
    bool asks_each; /* atomic: a sync of the whole disk has failed (hard_ask_each) */

    /* disk->lock */
    struct format_count count; /* as in the index */
    uint64_t bytes;            /* of hard extents in used_bytes */
    uint64_t unsettled;        /* known extents that are not sealed */
    uint64_t twice;            /* of those, how many `count` has, too */
    struct hard_change *queue, **tail;
    bool leading; /* a thread commits */
    struct cond committed;
    struct hard_gone_list gone, syncing;

    size_t watch_shard, watch_chain; /* the flusher's: where the next look at unsettled extents begins */
    struct metric_series *m_bytes, *m_extents;
};

/* ---- hard_early.c ---- */

void hard_early_init(struct disk *d);
/* Its thread; without one nothing is synced on the way. */
int hard_early_start(struct disk *d);
void hard_early_stop(struct disk *d);
void hard_early_fini(struct disk *d);
/* Perhaps begins to sync what was written to h, and does not wait for it: no promise, but the sync at the end
 * has less to do. */
void hard_early_sync(struct hard *h);

/* ---- hard.c ---- */

void hard_table_init(struct store *s);
void hard_table_fini(struct store *s);
struct hard_shard *hard_shard_of(const struct store *s, struct id128 id);
void hard_path(const struct disk *d, struct id128 id, char ret[DISK_PATH_MAX]);
void hard_location_of(const struct disk *d, struct id128 id, uint8_t ret[HARD_LOCATION_BYTES]);
int hard_parse(struct store *s, struct slice location, struct disk **ret_disk, struct id128 *ret_id,
               struct err *e);
/* The extent of an id, with a reference, loaded; with `open` its file is open, and -ENOENT when it is gone.
 */
int hard_get(struct disk *d, struct id128 id, bool open, struct hard **ret, struct err *e);
/* A fresh extent in the table, with a reference and an open file. NULL, and fd is the caller's: somebody has
 * found the id by a location of before it came to the pool, and looks at it still. */
struct hard *hard_new(struct disk *d, struct id128 id, int fd);
/* The same for a file that others may have open for writing, for which so much was taken by space_take_there,
 * and which has taken the place of the one of the pool. Never NULL. */
struct hard *hard_new_written(struct disk *d, struct id128 id, int fd, uint64_t bytes);
/* Drops the reference. True: it was the only one, nothing was done to the extent, and it is not in the table
 * any more. */
bool hard_forget(struct hard *h);
bool hard_is_known(struct disk *d, struct id128 id);
/* Sets the count of what the file occupies, unless it is sealed; growth evicts. No lock held. */
void hard_account(struct hard *h, uint64_t allocated);
/* The same when it was sealed, to what its hard record says. */
void hard_account_sealed(struct hard *h, uint64_t allocated);
/* Up to so many of the bytes that are counted for the file are the caller's to count from now on: how many.
 * While the file has this name they are counted anew when it is looked at. */
uint64_t hard_lend_room(struct hard *h, uint64_t bytes);
/* Looks at some of the unsettled extents of a disk. By the flusher, once a second. */
void hard_watch(struct disk *d);
void hard_status(struct disk *d, struct store_disk_status *ret);
/* Waits until h is not busy. */
void hard_wait_idle_locked(struct hard_shard *t, struct hard *h);
void hard_set_sealed_locked(struct hard *h, bool sealed);
/* Its damaged record is there, or is gone. */
void hard_set_twice_locked(struct hard *h, bool counts_twice);
/* Its file is gone. */
void hard_note_removed(struct hard *h);
void hard_drop_sums_locked(struct hard *h);
/* What a file occupies that has its name; 0 where nobody can tell. */
uint64_t hard_file_bytes(const struct disk *d, struct id128 id);
/* A new descriptor, also of a removed file. */
int hard_open_path(struct hard *h, int flags);
static inline uint64_t hard_bytes_of(const struct stat *st)
{
    return (uint64_t)st->st_blocks * 512;
}

/* ---- hard_sums.c ---- */

struct hard_sums *hard_sums_new(void);
void hard_sums_free(struct hard_sums *m);
/* The checksum of a block, above all blocks so far; those left out are holes. */
int hard_sums_add(struct hard *h, struct hard_sums *m, uint64_t block, uint32_t crc, struct err *e);
/* All blocks were added: what the hard record says. */
void hard_sums_finish(struct hard_sums *m, uint64_t size, struct format_hard *ret);
/* Record of the chunk in memory, which is the last one. */
void hard_sums_put(const struct hard_sums *m, struct id128 id, struct kv_txn *t);
void hard_chunks_range(struct id128 id, struct format_key *ret_from, struct format_key *ret_to);
int hard_head(struct disk *d, struct id128 id, struct format_hard *ret);
/* Whether it is sealed as it was: 1, also where its record is damaged by now; 0; or an error of the index. */
int hard_is_still(struct disk *d, struct id128 id, const struct format_hard *head);
/* crc32c that a block must have. -ENOENT: the file has no such block; -EBADMSG: its record is lost. */
struct hard_lookup {
    struct format_hard_chunk record;
    uint64_t chunk; /* of the record; UINT64_MAX: none */
    uint64_t found; /* records of this generation seen */
    bool hole;
};
int hard_block_crc(struct disk *d, struct id128 id, const struct format_hard *head, uint64_t block,
                   struct hard_lookup *l, uint32_t *ret_crc);
uint64_t hard_block_bytes(uint64_t size, uint64_t block);
uint32_t hard_zero_crc(uint64_t n);
/* First byte at or after offset that is not in a hole; -ENOENT when there is none. */
int64_t hard_next_data(int fd, uint64_t offset);

/* ---- hard_link.c ---- */

/* Another name for the file. */
int hard_link_into(struct hard *h, const char *path);

/* ---- hard_seal.c ---- */

/* A sync of the whole disk has failed. The kernel tells that once, and never of whose bytes: from now on no
 * such sync says of a file that it is on the disk. */
void hard_ask_each(struct disk *d);

/* ---- hard_pool.c ---- */

void hard_pool_init(struct disk *d);
void hard_pool_stop(struct disk *d);
void hard_pool_fini(struct disk *d);
/* A ready file. ERR_CLOSED, -ENOSPC, -EIO. */
int hard_pool_take(struct disk *d, struct id128 *ret);
/* Gives an id from the pool back to it; false when it is full. */
bool hard_pool_give(struct disk *d, struct id128 id);

/* ---- hard_commit.c ---- */

int hard_disk_open(struct disk *d, struct err *e);
void hard_disk_fini(struct disk *d);
/* Makes the changes with those of other threads in one durable commit; sets the results. The first error. */
int hard_commit(struct disk *d, struct hard_change *v, size_t n);
/* The file was unlinked: its mark goes after the next flush. */
void hard_gone(struct disk *d, struct id128 id, bool chunks);
/* By the flusher: before syncfs, and after it with the epoch's transaction; done says whether that was
 * committed. */
void hard_gone_begin(struct disk *d);
void hard_gone_put(struct disk *d, struct kv_txn *t);
void hard_gone_end(struct disk *d, bool done);

/* ---- hard_check.c ---- */

struct hard_check {
    struct store_check_report *report;
    char *buf;              /* from extent_block_buffer */
    const char *found;      /* label of what is wrong, in metrics */
    bool past_cache;        /* what the disk has, where the file system can */
    store_before_fn before; /* may be NULL; as of store_scrub */
    /* After each extent, with NULL or what is wrong: whether to go on. */
    bool (*tell)(void *arg, const char *problem);
    void *arg; /* of both */
};
/* Verifies a page of sealed extents of a disk: those behind *from, which begins with HARD_CHECK_FIRST and is
 * moved behind what was done. *ret_stopped: somebody said so. -ENOENT: there are no more. */
#define HARD_CHECK_FIRST "h"
int hard_check_page(struct disk *d, const struct hard_check *h, struct buf *from, bool *ret_stopped,
                    struct err *e);
