/*
 * What the files of the scratch namespace share: records through the cache, locks of inodes, holds, and the
 * one way of changing anything.
 *
 * A change is prepared under the locks of all inodes it touches, taken at once and never a second time, so
 * that nothing waits in a circle. What it read is named as a condition of its transaction; what it wrote is
 * in the cache before the locks are dropped. Invariant of the cache: a record in it is the one in the store,
 * because only a change writes records, under the lock of the record's inode (its directory, for an entry).
 * An entry of the key table is under the lock of its key (scratch_key_number).
 */
#pragma once

#include "base/hash.h"
#include "base/lock.h"
#include "namespace/lru.h"
#include "namespace/scratch_format.h"

#include <sys/stat.h>

#define SCRATCH_STRIPES       256
#define SCRATCH_STRIPE_MOVES  SCRATCH_STRIPES /* directories that change their parent: one at a time */
#define SCRATCH_STRIPE_WORDS  (SCRATCH_STRIPES / 64 + 1)
#define SCRATCH_GENERATIONS   1024
#define SCRATCH_INODES_MAX    8  /* that one change touches */
#define SCRATCH_WRITES_MAX    24 /* records that one change writes and the cache may hold */
#define SCRATCH_TRIES         1000
#define SCRATCH_CHANGE_BYTES  (512 * KIB)
#define SCRATCH_SEQUENCE_STEP 1024 /* numbers taken from the store at once */

struct scratch_stripe_set {
    uint64_t bits[SCRATCH_STRIPE_WORDS];
};

struct scratch_hold {
    struct scratch_hold *next;
    uint64_t bucket, ino, count;
};

/* A table that grows with what is held: lists, a power of two of them; NULL before the first. */
struct scratch_holds {
    struct scratch_hold **lists, *none;
    size_t n_lists, n;
};

/* A bucket that was used: its sums, one part per stripe, changed by who holds the stripe. */
struct scratch_bucket {
    struct scratch_bucket *next;
    uint64_t id;
    /* scratch->lock: */
    uint64_t users;
    bool closing; /* being removed: changes wait */
    bool removed;
    /* Monotonic: when an inode last lost its last link while it was held; or 0. */
    _Atomic uint64_t orphaned_ns;
    /* the stripe's holder writes, anyone reads: */
    struct {
        _Atomic int64_t inodes, bytes, keyed;
    } lanes[SCRATCH_STRIPES];
};

struct scratch {
    struct kv *kv;
    struct lru *cache;
    struct lru *removed; /* attributes of what is no file and was removed last, as records of inodes */
    _Atomic uint64_t generations[SCRATCH_GENERATIONS];
    struct lock lock;  /* covers what follows, but for holds */
    struct cond freed; /* stripes, or users of a bucket */
    struct scratch_stripe_set taken;
    uint64_t waiting;
    struct scratch_bucket *buckets;
    uint64_t next_sequence, end_sequence;
    struct lock sequence_lock;                   /* one thread takes numbers from the store */
    struct scratch_holds holds[SCRATCH_STRIPES]; /* by stripe, its holder's */
};

/* ---- scratch.c ---- */

unsigned scratch_stripe_of(uint64_t bucket, uint64_t ino);
void scratch_stripes_take(struct scratch *s, const struct scratch_stripe_set *set);
void scratch_stripes_drop(struct scratch *s, const struct scratch_stripe_set *set);
/* The bucket's state, for a change or the reading of its sums; leave it afterwards. */
int scratch_bucket_enter(struct scratch *s, uint64_t bucket, struct scratch_bucket **ret, struct err *e);
void scratch_bucket_leave(struct scratch *s, struct scratch_bucket *b);
/* A number never given before, in shard `shard`. */
int scratch_number_new(struct scratch *s, uint32_t shard, uint64_t *ret_ino, struct err *e);
uint32_t scratch_shard_of(uint64_t ino);
/* Stands for a key of the key table among the numbers to be locked; never 0. */
uint64_t scratch_key_number(struct slice key);

/* ---- scratch_record.c ---- */

/* Value appended; version 0 and -ENOENT (without text) when there is none. */
int scratch_record_get(struct scratch *s, struct slice key, struct buf *ret_value, uint64_t *ret_version,
                       struct err *e);
/* After a commit: what a key has now; absent when version is 0. Under the lock of the record. */
void scratch_record_written(struct scratch *s, struct slice key, struct slice value, uint64_t version);
/* Nothing is known of the key any more. */
void scratch_record_forget(struct scratch *s, struct slice key);
void scratch_record_forget_all(struct scratch *s);
/* Slices of the inode point into `raw`, which is emptied first. */
int scratch_record_inode(struct scratch *s, uint64_t bucket, uint64_t ino, struct buf *raw,
                         struct scratch_inode *ret, uint64_t *ret_version, struct err *e);
int scratch_record_entry(struct scratch *s, uint64_t bucket, uint64_t dir, struct slice name,
                         struct scratch_dirent *ret, uint64_t *ret_version, struct err *e);
/* Strings copied into the arena. */
struct scratch_inode scratch_inode_dup(const struct scratch_inode *x, struct arena *a);

/* ---- scratch_hold.c: under the inode's lock ---- */

/* At the end. */
void scratch_holds_fini(struct scratch_holds *t);
bool scratch_held(struct scratch *s, uint64_t bucket, uint64_t ino);
void scratch_hold_add(struct scratch *s, uint64_t bucket, uint64_t ino);
void scratch_hold_drop(struct scratch *s, uint64_t bucket, uint64_t ino);

/* ---- scratch_perm.c ---- */

/* Removing or replacing the entry of x in dir: write and search, and the sticky bit. */
int scratch_may_remove(const struct scratch_inode *dir, const struct scratch_inode *x,
                       const struct scratch_cred *cred, struct err *e);
/* A further name for x: its owner's matter, or of who could read and write it anyway. */
int scratch_may_link(const struct scratch_inode *x, const struct scratch_cred *cred, struct err *e);

/* ---- scratch_change.c ---- */

struct scratch_loaded {
    struct scratch_inode x;
    uint64_t version; /* 0: it did not exist */
    int64_t bytes_before;
    bool dirty, gone;
};

struct scratch_write {
    struct slice key, value;
    bool removed;
};

struct scratch_change {
    struct scratch *s;
    const struct scratch_call *call;
    struct scratch_bucket *bucket;
    struct arena *a;
    struct kv_txn *txn;
    struct buf key, value; /* being made */
    struct scratch_stripe_set stripes;
    bool locked;
    struct scratch_loaded inodes[SCRATCH_INODES_MAX];
    size_t n_inodes;
    struct scratch_write writes[SCRATCH_WRITES_MAX];
    size_t n_writes;
    int64_t keyed;       /* by how many the key table grows */
    int64_t now_ns;      /* real time */
    bool by_key;         /* a change through S3: implied directories stay so */
    bool moves;          /* a directory gets another parent */
    bool replayed;       /* nothing was done: a resent request, whose answer is answer_ino */
    uint64_t answer_ino; /* to be noted */
    uint64_t hold_ino;   /* to be held once it is committed */
    uint64_t drop_ino;   /* of scratch_release: its hold goes once it is committed */
    int64_t changed_ns;  /* to be told, see scratch_unlink */
    struct scratch_orphans orphans;
};

void scratch_change_init(struct scratch_change *c, struct scratch *s, const struct scratch_call *call);
void scratch_change_fini(struct scratch_change *c);
#define _cleanup_change_ _cleanup_(scratch_change_fini)
/* Runs `prepare` until what it prepared is committed; it gives ERR_CONFLICT to be run again, 0 to commit, or
 * an error. Nothing of a former try is left when it runs. The locks are dropped on return. */
int scratch_change_run(struct scratch_change *c,
                       int (*prepare)(struct scratch_change *c, void *arg, struct err *e), void *arg,
                       struct err *e);
/* Once per try, before anything is loaded; after `moves` was set. Numbers of 0 are ignored. */
void scratch_change_lock(struct scratch_change *c, const uint64_t *inos, size_t n);
/* Loads a locked inode; the same place when it is loaded already. -ENOENT. */
int scratch_change_inode(struct scratch_change *c, uint64_t ino, struct scratch_loaded **ret, struct err *e);
/* As _inode for a directory that entries can be made in: -ENOTDIR, -ENOENT when it has no links. */
int scratch_change_dir(struct scratch_change *c, uint64_t ino, struct scratch_loaded **ret, struct err *e);
/* A new inode, to be filled in; its number is locked. */
struct scratch_loaded *scratch_change_new(struct scratch_change *c, uint64_t ino);
/* The same of a number that this very call got from scratch_number_new: no condition, nobody else has it. */
struct scratch_loaded *scratch_change_fresh(struct scratch_change *c, uint64_t ino);
/* The entry, and the condition that it stays as it is until the commit. -ENOENT without text. */
int scratch_change_entry(struct scratch_change *c, uint64_t dir, struct slice name,
                         struct scratch_dirent *ret, struct err *e);
/* dir NULL: the key table. Counts of the directory follow; the inode's links do not, but for a directory's.
 * cookie: of the entry of this name that the change has taken, so that who is reading the directory finds the
 * name where it was; 0: it is a new name. */
void scratch_change_add(struct scratch_change *c, struct scratch_loaded *dir, struct slice name,
                        uint64_t cookie, struct scratch_loaded *x);
void scratch_change_take(struct scratch_change *c, struct scratch_loaded *dir, struct slice name,
                         const struct scratch_dirent *d, struct scratch_loaded *x);
/* One link less (a directory: none); without links it is removed, or becomes an orphan. */
int scratch_change_unlink(struct scratch_change *c, struct scratch_loaded *x, struct err *e);
/* Removes an inode's record, xattrs and place among the orphans. */
int scratch_change_erase(struct scratch_change *c, struct scratch_loaded *x, struct err *e);
/* Makes the inode's writing record as its location is now, or takes it away when there is none. */
void scratch_change_writing(struct scratch_change *c, const struct scratch_loaded *x);
/* A change through POSIX of a directory, or of anything through its attributes. */
void scratch_change_touch(struct scratch_change *c, struct scratch_loaded *x, bool contents);

/* ---- scratch_rename.c ---- */

/* Where an entry is: a directory, or the key table (SCRATCH_INO_KEYS) with a key for a name. */
struct scratch_place {
    uint64_t dir;
    struct slice name;
};

/* from_key, key: of the source and the target, when an object is renamed; what the key table has of them goes
 * as well. */
int scratch_rename_between(struct scratch *s, const struct scratch_call *call, struct slice from_key,
                           struct slice key, const struct scratch_place *from, const struct scratch_place *to,
                           uint32_t flags, struct scratch_orphans *ret_orphans, int64_t *ret_changed_ns,
                           struct err *e);

/* ---- scratch_lookup.c ---- */

/* -EINVAL, -ENAMETOOLONG, -EEXIST or such for what no entry may be called. */
int scratch_check_name(struct slice name, struct err *e);
