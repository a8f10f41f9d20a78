/*
 * What the files of write-back share.
 *
 * In memory there is one struct back_entry for each key that has a record, in the order of the first write
 * that is not in the origin, and for each that somebody is busy with. Who changes a key's record is busy with
 * it, one thread at a time; sending is not: a newer write is acknowledged while an older one is on its way.
 *
 * Lock: back->lock (rank OBJECT) covers entries and queue. It is not held over I/O, nor over calls of the
 * store, the control store or an origin.
 */
#pragma once

#include "object/back.h"
#include "object/object_internal.h"
#include "store/hard.h"

#include <jansson.h>

#define BACK_MAGIC     0x6261636bu
#define BACK_CHAINS    16384
#define BACK_THREADS   10
#define BACK_SPARE     2      /* of them, which are for buckets that have none */
#define BACK_DOUBT     8      /* failures in a row after which a bucket may not have all threads */
#define BACK_KEYS_MAX  262144 /* records at which writers wait, */
#define BACK_KEY_COST  768    /* bytes of memory for each: fewer where there is less for them */
#define BACK_DIRTY_MAX 60 /* per cent of the disks' limits at which writers wait, if nothing else is said */
#define BACK_ALIASES                                                                                         \
    4096 /* the latest; who reads on from a version of before has its readers begin again                    \
          */
#define BACK_KEY_BYTES (ORIGIN_KEY_MAX_BYTES + 16)

struct back_heap {
    struct back_entry **x;
    size_t n, max;
    bool is_by_time; /* of the next try; else by place */
};

struct back_entry {
    struct back_entry *chain;       /* of the table */
    struct back_entry *next, *prev; /* of the queue, when it has a record */
    uint64_t place;                 /* in the queue: those of the earlier ones are less */
    struct back_heap *heap;         /* back_queue.c; NULL: none */
    size_t heap_at;
    uint64_t bucket_id;
    uint32_t users; /* threads that have it */
    struct back_bucket *bucket;
    bool busy, recorded, sending;
    atomic_bool *copying; /* of who copies its live bytes, and is not busy with it meanwhile: set as soon as
                             the record is another one; NULL: nobody does */
    unsigned changing;    /* changes that the origin makes by itself that run: nothing is sent meanwhile */
    bool doubted;         /* of the try that runs: its bucket's origin fails */
    uint64_t seq, size_bytes, since_ns; /* of the record */
    uint64_t found_seq;                 /* of the record that was found at the start; 0: none */
    uint32_t tries;
    uint32_t waits;     /* tries in a row that had to wait for others */
    uint64_t retry_ms;  /* not to be sent before, monotonic */
    uint64_t noted_ms;  /* when it came into the queue, monotonic; 0: somebody waits for it since */
    uint64_t waited_ms; /* until when somebody waits for the record to go (back_wait_sent), monotonic */
    char *error;        /* of the last try, NULL when it did not fail */
    /* Of the thread for which `sending` is: when all bytes of which record were last found to be what they
     * should be, monotonic, and the time of their file then. */
    uint64_t checked_seq, checked_ms;
    struct timespec checked_mtim;
    uint32_t again; /* likewise: tries in a row that ended with another one at once */
    size_t key_n;
    char key[];
};

/* A version that readers know by the ETag it had here, and the one that the origin gave it. */
struct back_alias {
    uint64_t hash; /* of bucket and key; 0: none */
    bool is_new;   /* it was written since the start */
    char from[BACK_ETAG_SIZE], to[ORIGIN_ETAG_MAX + 1];
};

/* Of each bucket that had a record since the start. */
struct back_bucket {
    struct back_bucket *next;
    uint64_t bucket_id, conflicts;
    unsigned n_sending; /* entries on their way */
    unsigned failed;    /* tries in a row, up to BACK_DOUBT */
    bool silent;        /* the last question what the origin has, asked again and again, had no answer */
    unsigned saving;    /* records on their way into the control store */
    struct back_heap ready, later; /* entries that may be sent now; before their next try */
    uint64_t delay_ms;             /* `write_delay` as the last writer knew it */
    uint64_t full_ms; /* its origin has no place for what goes behind: not asked again before, monotonic */
    uint64_t full_since_ns; /* since when it has none, monotonic; 0: it had one when it was asked last */
};

struct back {
    uint32_t magic;
    struct object_service *service;
    struct kv *kv;
    struct store *store;
    atomic_bool stop;
    _Atomic uint64_t n;         /* records */
    _Atomic unsigned n_waiting; /* threads of fronts, for room */
    _Atomic uint64_t seq;
    _Atomic unsigned hungry;   /* bodies in the middle of being kept that wait for room */
    _Atomic unsigned checking; /* threads that read all bytes of a record */
    struct lock lock;          /* covers what follows */
    struct cond moved;         /* an entry is no longer busy, a record is gone, a bucket is held no longer */
    struct cond work;
    struct back_entry *chains[BACK_CHAINS];
    struct back_entry *first, *last; /* in the order of noted_ms */
    uint64_t bytes;
    uint64_t gone_ms;    /* when a record went last, or another took its place; 0: none did */
    uint64_t hurried_ms; /* what was noted until then has waited long enough: room was wanted */
    uint64_t places;     /* given out so far */
    uint64_t n_steps;    /* of looking for something to send */
    struct back_bucket *buckets;
    uint64_t held;              /* id of the bucket that is being removed, or moved; 0: none */
    unsigned n_sending;         /* tries that run */
    unsigned n_doubted;         /* of them, of buckets whose origins fail */
    struct back_alias *aliases; /* BACK_ALIASES, by hash */
    struct back_share **shares; /* back_share.c */
    pthread_t threads[BACK_THREADS];
    unsigned n_threads;
    uint64_t keys_max; /* records at which writers wait */
};

/* ---- back.c ---- */

/* At how many records writers wait, with so much memory for what is served. Pure. */
uint64_t back_keys_max(uint64_t budget_bytes);
/* The key's entry, which the caller is busy with from now on. */
struct back_entry *back_enter(struct back *b, uint64_t bucket_id, struct slice key);
void back_leave(struct back *b, struct back_entry *x);
/* By who is busy with the key, and is not from now on. True: the caller copies the live bytes of its record,
 * alone, until back_end_copying; *over becomes true when the record is another one. False: somebody did, and
 * has ended. */
bool back_begin_copying(struct back *b, struct back_entry *x, atomic_bool *over);
void back_end_copying(struct back *b, struct back_entry *x);
/* The key's record, read into `value`. One that was found at the start counts as sent: the note that says so
 * is not durable by itself, and a power failure may have taken it. (That of a version with a tag is.)
 * -ENOENT. */
int back_load(struct back *b, uint64_t bucket_id, struct slice key, struct buf *value,
              struct back_record *ret, struct err *e);
/* Puts the record in the place of what there was. Busy. The entry follows. On a failure *ret_unknown says
 * whether it may be there all the same. `known`: the bucket as the writer knows it. ERR_NO_BUCKET: it was
 * removed; -EBUSY: it has another origin. */
int back_save(struct back *b, struct back_entry *x, const struct bucket *known, const struct back_record *r,
              enum kv_commit kind, bool *ret_unknown, struct err *e);
/* Takes the record away, durably. Busy. */
int back_drop(struct back *b, struct back_entry *x, struct err *e);
/* An extent that a record names no more: it goes when that was the last one. */
void back_free_extent(struct back *b, struct slice location);
/* First and behind-last key of the records of a bucket below a prefix and behind `after`. */
void back_range(uint64_t bucket_id, struct slice prefix, struct slice after, struct buf *ret_from,
                struct buf *ret_to);
/* Before the record of this sequence goes: readers that began with the ETag it had here go on with the
 * origin's. */
void back_alias_add(struct back *b, const struct back_entry *entry, uint64_t seq, const char *from,
                    struct slice to);
/* Whether `from` is now `ret` in the origin. */
bool back_alias_find(struct back *b, uint64_t bucket_id, struct slice key, struct slice from,
                     char ret[ORIGIN_ETAG_MAX + 1]);
void back_note_conflict(struct back *b, uint64_t bucket_id);
/* Whether the origin of the entry's bucket answers questions. */
bool back_is_silent(struct back *b, const struct back_entry *x);
void back_note_silence(struct back *b, struct back_entry *x, bool silent);
static inline struct slice back_key(const struct back_entry *x)
{
    return slice_of(x->key, x->key_n);
}

/* The origin is about to be asked to change what it has under a key without a record, its metadata or, by a
 * copy, all of it: of one that is written meanwhile nothing is sent before back_end_changing. NULL: the key
 * has a record. */
struct back_entry *back_begin_changing(struct back *b, uint64_t bucket_id, struct slice key);
/* What had the ETag `before`, empty when that is not known, has another one by that: `after`, empty when it
 * failed. A record of meanwhile that was made over it knows it by that from now on. */
void back_end_changing(struct back *b, struct back_entry *x, const struct bucket *bucket, struct slice before,
                       struct slice after);

void back_forget_unused_locked(struct back *b, struct back_entry *x);
/* Waits until the key has no record, at most the bucket's `retry`, then -ETIMEDOUT. */
int back_wait_sent(struct back *b, const struct bucket *bucket, struct slice key, struct err *e);
/* Whether somebody does. */
bool back_is_waited_for(struct back *b, const struct back_entry *x);
/* A key below "dir/", or that itself, which got a record; the caller frees it. NULL: none has one. */
char *back_first_below(struct back *b, uint64_t bucket_id, struct slice dir);

/* ---- back_queue.c ---- */

/* The entry is where it belongs among those that may be sent: after any change of what says so. */
void back_queue_file_locked(struct back *b, struct back_entry *x, uint64_t now_ms);
/* The same when a thread begins to send it, or has ended. */
void back_queue_send_locked(struct back *b, struct back_entry *x, bool sends, uint64_t now_ms);
void back_queue_fini(struct back_bucket *x);
/* The first in the queue that may be sent now, or NULL. Origins that fail, and may take their timeout for it,
 * get half of the threads. *ret_wait_ms becomes less when one may be sent earlier. */
struct back_entry *back_queue_next_locked(struct back *b, uint64_t now_ms, uint64_t *ret_wait_ms);
bool back_is_doubted_locked(const struct back_bucket *x);

/* ---- back_share.c ---- */

void back_share_init(struct back *b);
void back_share_fini(struct back *b);
/* At the start: a record that names the extent; and after the last of them. */
void back_share_found(struct back *b, struct slice location);
void back_share_settle(struct back *b);
/* One record more is to name the extent. By who is busy with a key whose record names it. */
void back_share(struct back *b, struct slice location);
/* One record less names it, durably, or will not. True: none does now. */
bool back_share_leave(struct back *b, struct slice location);

/* ---- back_live.c ---- */

/* By the sender, who is busy with the key: its record, which is live, names bytes from now on that stay as
 * they are. -EINPROGRESS while that can be had soon without a copy; -ETXTBSY while only a state can be had
 * that its writer has not acknowledged; -ENOSPC at once, without waiting for room for a copy, as only sending
 * makes some. */
int back_settle(struct back *b, struct back_entry *x, const struct bucket *bucket,
                const struct back_record *r, struct err *e);
/* As back_load, with a record that is not live, of a key that the caller is busy with when it succeeds, and
 * must not be before. Waits for room for a copy, at most for the bucket's `retry`, while it keeps nobody from
 * the key: -ENOSPC. */
int back_enter_settled(struct back *b, const struct bucket *bucket, struct slice key, struct buf *value,
                       struct back_record *ret, struct back_entry **ret_entry, struct err *e);
/* As back_load, with a record that is not live. Not busy with the key. */
int back_load_settled(struct back *b, const struct bucket *bucket, struct slice key, struct buf *value,
                      struct back_record *ret, struct err *e);

/* ---- back_cached.c ---- */

/* The version that was sent, whose bytes are in `h`, becomes what is cached of the key if nothing is. sums:
 * crc32c of its blocks, when they were found to be the record's a moment ago; NULL: they are read. */
void back_cache(struct back *b, const struct bucket *bucket, struct slice key, const struct back_record *r,
                struct hard *h, const uint32_t *sums);
/* Gives what is cached of the version the ETag that the origin has for it. */
void back_rename_cached(struct back *b, const struct bucket *bucket, struct slice key,
                        const struct back_record *r, struct slice etag);

/* ---- back_layer.c, back_list.c ---- */

struct back_body {
    struct hard *hard;              /* NULL: no bytes */
    bool is_shared;                 /* other records may name the extent */
    struct origin_file *lent;       /* whose extent it is as long as no record names it; NULL: nobody's */
    bool has_tag, has_md5, is_live; /* as in struct back_record */
    uint64_t acked_ns;              /* of live bytes that had a record; 0: they are acknowledged now */
    uint64_t size_bytes;
    uint8_t md5[BACK_MD5_BYTES], tag[BACK_TAG_BYTES];
};
/* The body, copied, durable, in an extent that no record names yet; none for an empty one. Of a file it gets
 * a tag and no MD5. cancel may be NULL. Waits for room for all of it on the disks, at most for the bucket's
 * `retry`, while other writes leave some; not at all with bucket NULL, as by those who make it: -ENOSPC. */
int back_keep_body(struct back *b, const struct bucket *bucket, const struct origin_body *body,
                   atomic_bool *cancel, struct back_body *ret, struct err *e);
/* Reader of an extent's bytes as the body of a put: origin_body.read; arg is the struct hard. */
ssize_t back_body_read(void *arg, void *p, size_t n, uint64_t offset);
int back_layer_list(void *arg, struct upstream *u, const struct origin_list *q, struct arena *a,
                    struct origin_page *ret, struct err *e);
struct origin_attr back_attr(const struct back_record *r, struct arena *a);

/* ---- back_send.c ---- */

void *back_sender_main(void *back);
