/*
 * The node's side of scratch buckets: names come from namespace/scratch.h, bytes from store/hard.h; here they
 * meet. Private to the object layer.
 *
 * **Files in use.** A `struct sfile` stands for an inode that has open handles or whose data is not settled.
 * The record of an inode that has none says what is true of it; of one that is unsettled, size, times and
 * allocation are those of its file on the disk (snode_fresh).
 *
 * **Being busy.** Who changes which extent an inode has, opens it, closes it, sets its size or seals it is
 * busy with its sfile: one thread at a time. Nobody who is busy with one sfile waits for another, but for the
 * settling thread, which everybody else gets out of the way of. (Closing several takes only those further
 * ones that nobody is busy with.)
 *
 * **What is settled when.** The order in which control store, disk index and file are made to agree is in
 * scratch_settle.c; what is freed when, in scratch_free.c; what is done at start, in scratch_start.c.
 */
#pragma once

#include "namespace/scratch.h"
#include "object/ledger.h"
#include "object/object_internal.h"
#include "store/hard.h"

#define SNODE_MAGIC       0x736e6f64u
#define SNODE_CHAINS      65536
#define STREE_CLOSE_MAX   32
#define SNODE_BATCH       256   /* inodes settled, or freed, at once */
#define SNODE_KEPT_MAX    512   /* extents kept open between a PUT and its settling */
#define SNODE_UNTOLD_MAX  4096  /* files kept for a fault that nobody was told of */
#define SNODE_FREEING_MAX 16384 /* waiting to be freed; who brings more waits */

struct sfile {
    struct sfile *next; /* of the chain */
    struct sfile *queue_next;
    uint64_t bucket, ino;
    /* node->lock: */
    uint32_t users; /* threads that have it, handles included */
    uint32_t handles, writers;
    uint64_t generation; /* goes up with every opening for writing and every change of size */
    uint64_t retry_ms;   /* not to be settled before */
    uint32_t tries;
    bool busy;
    bool unsettled; /* the inode has a writing record */
    bool queued;    /* waits to be settled */
    bool fresh;     /* its extent is marked: taken in this run and not settled since */
    bool gone;      /* the inode is being freed */
    bool kept;      /* `hard` is kept without a handle: counted in n_kept */
    struct stree *trees;
    struct stree *orphan; /* what keeps it since the start (stree_keep_orphan) */
    bool syncing;    /* for a mount: one thread at a time, so that no answer goes past another one's fault */
    uint32_t faults; /* how often the disk did not take what was written; the kernel tells each time once */
    int fault_code;
    bool fault_untold; /* the last one was met by settling, and no fsync has told it: kept until one does */
    /* while there are handles, or between a PUT and its settling; changed by who is busy, under the lock: */
    struct hard *hard;
};

/* Waits to be freed: an inode that lost its last link, or an extent that no inode names any more. */
struct sfreed {
    struct sfreed *next;
    struct scratch_orphan orphan;
    struct hard *hard; /* NULL: the orphan */
    uint32_t tries;    /* that failed */
    bool done;
};

struct slocks;
struct slost;
struct smounts;

struct snode {
    uint32_t magic;
    struct object_service *service;
    struct store *store;
    struct scratch *names;
    struct slocks *locks;
    struct ledger *ledger; /* room reserved in quotas */
    struct smounts *mounts;
    struct lock lock; /* covers what follows */
    struct cond idle; /* an sfile is no longer busy; something was freed */
    struct cond work;
    struct sfile *chains[SNODE_CHAINS];
    uint64_t n_unsettled, n_kept, n_untold;
    struct sfile *queue, **queue_end;         /* to be settled, soonest first */
    struct sfile *later;                      /* tried before; moved to the queue when their time has come */
    struct stree *lingering, *lingering_last; /* of mounts that are gone without a word, oldest first */
    struct slost *lost;                       /* the sessions that those were of */
    struct sfreed *freed, **freed_end;
    uint64_t n_freed;
    uint64_t n_freed_ever, free_failures; /* taken from the list so far; batches with errors so far */
    struct cond free_work;
    uint64_t free_due_ms;  /* when the next batch is to be freed at the latest, or after a failure again */
    uint32_t free_waiters; /* threads that wait until all is freed */
    bool free_failed;      /* all of the last batch */
    bool stopping, runs;
    uint64_t started_ms; /* for good */
    pthread_t settler, freer;
};

/* What is open of a mount: one hold of the inode. */
struct stree {
    struct snode *node;
    struct sfile *file;
    struct bucket *bucket; /* once it has a handle */
    uint32_t via;
    bool writes;
    bool may_read;         /* by TREE_READ; else it was given for writing alone */
    _Atomic unsigned uses; /* stree_use */
    bool is_orphan;        /* kept since the start (stree_keep_orphan) */
    bool is_awaited;       /* likewise (stree_await): what its mount, which has no descriptor, had open */
    int fd;                /* O_RDWR, closed with the handle; -1 when it is not for writing */
    struct id128 mount;
    struct ledger_claim claim; /* busy: room for what the mount is about to write */
    /* node->lock: */
    struct stree *linger_next, *linger_prev;
    uint64_t linger_until_ms;
    struct slost *lost;                   /* the session that is gone; NULL: none is, or it was of no mount */
    bool lingers;                         /* is in the list */
    bool is_back;                         /* its mount has opened the file again since */
    uint32_t noted;                       /* enum scratch_opened_how, written down of it; busy, too */
    struct stree *file_next;              /* of those of the file that have a handle, or linger */
    const struct object_session *session; /* NULL: it lingers */
    /* Of file->faults: what this session was told, and what was told to the mount before it had the file
     * open. Who takes the mount over is told again what is not known to have reached its programs. */
    uint32_t faults_told, faults_before;
};

/* ---- scratch_node.c ---- */

/* Opens names, reconciles what the last run left and starts the threads. */
int snode_open(struct object_service *s, struct snode **ret, struct err *e);
void snode_close(struct snode *n);
/* Gauges of scratch buckets. */
void snode_refresh_metrics(struct snode *n);

struct sfile *sfile_get(struct snode *n, uint64_t bucket, uint64_t ino);
/* NULL when it is neither in use nor unsettled. */
struct sfile *sfile_peek(struct snode *n, uint64_t bucket, uint64_t ino);
void sfile_put(struct snode *n, struct sfile *f);
void sfile_enter(struct snode *n, struct sfile *f);
/* false: somebody is busy with it. */
bool sfile_try_enter(struct snode *n, struct sfile *f);
void sfile_leave(struct snode *n, struct sfile *f);
/* Under node->lock. The sfile's reference to its extent, which is taken from it; may be NULL. */
struct hard *sfile_take_hard_locked(struct snode *n, struct sfile *f);
void sfile_set_unsettled_locked(struct snode *n, struct sfile *f, bool unsettled);
void sfile_set_untold_locked(struct snode *n, struct sfile *f, bool untold);
/* Bytes were lost, as r says, in a sync that no program had asked for: the next fsync tells that. */
void sfile_note_fault(struct snode *n, struct sfile *f, int r);

/* The inode as it is now: what the disk says where it is unsettled. A file that cannot be asked keeps what
 * its record says. */
void snode_fresh(struct snode *n, uint64_t bucket, struct arena *a, struct scratch_inode *x);
/* The extent of an inode, whose location may be another one by the time it was looked up: *x is read again
 * then. *ret is NULL when it has none (any more). */
int snode_find_hard(struct snode *n, uint64_t bucket, struct arena *a, struct scratch_inode *x,
                    struct hard **ret, struct err *e);
/* Puts what the disk says into the inode's record, when it says something else. Busy. ret may be NULL. */
int snode_record(struct snode *n, const struct scratch_call *call, uint64_t ino, const struct stat *st,
                 struct arena *a, struct scratch_inode *ret, struct err *e);
int64_t snode_ns(struct timespec t);
/* The bucket, which must be a scratch bucket. */
int snode_bucket(struct object_service *s, struct slice name, struct bucket **ret, struct err *e);
/* Who makes what comes through S3, the API and the command line: the owner of the bucket. */
struct scratch_cred snode_owner(const struct bucket *b);

/* ---- scratch_open.c, scratch_close.c ---- */

/* Opens a held inode; the hold goes with the handle, or on failure. */
int stree_open(struct snode *n, const struct scratch_call *call, uint64_t ino, uint32_t flags,
               struct arena *a, struct stree **ret, struct scratch_inode *ret_x, struct err *e);
/* A new inode, held and with this extent, whose reference it takes over, and with it the descriptor that
 * hard_open_ahead has given. */
int stree_made(struct snode *n, const struct scratch_call *call, uint64_t ino, int64_t mtime_ns,
               struct hard *h, int fd, struct stree **ret, struct err *e);
/* A new inode, held and without an extent, for reading. */
struct stree *stree_made_empty(struct snode *n, const struct scratch_call *call, uint64_t ino);
/* A handle for it, and the descriptor that goes with it, or -1. Takes it over. */
int stree_give(struct object_session *ses, struct bucket *b, struct stree *t, uint64_t *ret_handle,
               int *ret_fd, struct err *e);
/* n: bytes that the client says it has read. */
void stree_close(struct stree *t, uint64_t n);
/* Closes them, up to STREE_CLOSE_MAX; several for little more than the price of one. */
void stree_free_all(struct stree *const *v, size_t n);
/* Its hold goes too. What is left to do once its file counts it no more, or when its opening failed. */
void stree_drop(struct stree *t);
/* Nobody finds it by its handle any more: until whoever had (stree_use) is done. Not while busy. */
void stree_wait_unused(struct stree *t);
/* Neither open nor held yet. */
struct stree *stree_new(struct snode *n, struct sfile *f, bool writes);
/* Sets the size of a file, once. is_all: the call asks for nothing else, whose noting would note this. */
int stree_truncate(struct snode *n, const struct scratch_call *call, uint64_t ino, uint64_t size, bool is_all,
                   struct arena *a, struct err *e);

/* ---- scratch_linger.c ---- */

/* A mount has opened the file: what kept it since the start is not needed any more, and what lingers of the
 * mount lingers on while it opens its files again. */
void linger_opened_locked(struct snode *n, struct sfile *f, struct id128 mount);
/* The handle goes. */
void linger_dropped_locked(struct snode *n, struct stree *t);
/* At start: an inode without links whose file a mount still has open is kept, and counts in its bucket's
 * quota, until the mount has opened it again and closed it, or until nobody has it open. One that has no file
 * is kept for as long as what a lost session had open. */
int stree_keep_orphan(struct snode *n, const struct scratch_orphan *o, struct err *e);
/* At start: what a mount had open by calls alone, and is held, is kept in the same way. */
void stree_await(struct snode *n, const struct scratch_opened *x);
/* Inodes that just lost their last names, and that nobody has open here: frees them, but for those that a
 * mount may still have open from before the start, which it keeps as stree_keep_orphan does. */
void snode_free_unnamed(struct snode *n, const struct scratch_orphans *o);
/* Frees those of lost sessions whose time is over, and all of a bucket (0: none). */
void stree_end_lingering(struct snode *n, uint64_t bucket, uint64_t now_ms);

/* ---- scratch_opened.c: what is open of mounts that have no descriptors ---- */

/* It is linked to its file, and its mount not told yet: the next start will know. Not while busy. */
void stree_note_opened(struct stree *t);
/* Busy: it is being closed. */
void stree_forget_opened(struct stree *t);
/* At start, before orphans are looked at. */
int stree_await_opened(struct snode *n, struct err *e);
bool stree_is_awaited(struct snode *n, uint64_t bucket, uint64_t ino);

/* ---- scratch_mounts.c: the mounts of a user whose numbered changes are remembered ---- */

struct smounts *smounts_new(void);
void smounts_free(struct smounts *m); /* NULL accepted */
/* A session of a user makes changes of this mount, for the first time. Of too many mounts of that user the
 * one that came first is forgotten. */
int smounts_join(struct snode *n, const char *user, struct id128 mount, struct err *e);
/* He is removed: his mounts are forgotten. */
void smounts_user_gone(struct snode *n, struct slice user);

/* ---- scratch_settle.c, scratch_free.c, scratch_start.c ---- */

void *snode_settler_main(void *node);
/* The inode may be settled soon. Under node->lock. */
void sfile_queue_locked(struct snode *n, struct sfile *f);
/* The inode of a PUT: unsettled, with its extent (a reference is taken as long as there are few). */
void snode_put_done(struct snode *n, uint64_t bucket, uint64_t ino, struct hard *h);
void *snode_freer_main(void *node);
/* Frees what was handed out, later: once the change is durable. */
void snode_free_orphans(struct snode *n, const struct scratch_orphans *o);
/* No inode names it any more; takes over the reference. Not while busy; nor is the one before. */
void snode_free_extent(struct snode *n, struct hard *h);
/* An extent whose naming failed with r: given back when the names refused it, so that it is nobody's; else
 * it may have been named all the same, and the next start knows. Takes over the reference. */
void snode_drop_extent(struct hard *h, int r);
/* Waits until everything handed in before was freed, or could not be. */
void snode_wait_freed(struct snode *n);
int snode_reconcile(struct snode *n, struct err *e);

/* ---- scratch_lock.c ---- */

struct slocks *slocks_new(void);
void slocks_free(struct slocks *l);
/* The session is gone: its locks are, and it gets none any more, whatever still runs for it. */
void slocks_end_session(struct slocks *l, struct object_session *session);
/* Whoever waits comes back with -EINTR. */
void slocks_stop(struct slocks *l);
int slocks_call(struct slocks *l, struct object_session *session, uint64_t bucket,
                const struct wire_tree_lock_req *q, struct wire_tree_lock_rep *rep, struct err *e);

/* ---- scratch_room.c: quotas ---- */

/* What the bucket's quota is now, whatever it was when `b` was found; 0: none. */
uint64_t sroom_quota(struct object_service *s, const struct bucket *b);
bool sroom_is_limited(struct object_service *s, uint64_t bucket);
/* Adds room for so many bytes to a claim, or for up to `ahead` (ledger_piece); they are given back by
 * ledger_back and ledger_end, after what became of them was counted in the bucket. -EDQUOT, also after
 * waiting for removed files to be freed. Not while busy. */
int sroom_take(struct snode *n, const struct bucket *b, struct ledger_claim *c, uint64_t bytes,
               uint64_t ahead, struct err *e);
/* Adds so many bytes to a claim, which are on disk already and counted nowhere else: whatever the quota says,
 * and at once. */
void sroom_note(struct snode *n, uint64_t bucket, struct ledger_claim *c, uint64_t bytes);
/* Busy with its file. What it has on disk is counted, and no room is left reserved for it. */
void sroom_end(struct snode *n, struct stree *t);
/* Total and free bytes as the quota has them, within what the disks have. */
void sroom_statfs(struct snode *n, const struct bucket *b, uint64_t *total, uint64_t *bytes_free);
