/* What fill.c (readers' side), fill_part.c (one request) and fill_engine.c (threads, hedging) share. */
#pragma once

#include "base/lock.h"
#include "base/quit.h"
#include "object/fill.h"

#define FILL_ATTEMPTS 2 /* of one part at the same time: the first and a hedge */
/* Of a part that is queued or runs: the list's and the queue's or the worker's; more are of who waits. */
#define FILL_PART_OWN_REFS 2

/*
 * Pieces from the network are gathered before they are written: the page cache holds what was written at once
 * in folios of that size, and later reads of such pages are up to twice as fast (mmap more). Where a reader
 * waits, the first writes are small, so that it gets its first byte early. Larger ones do not pay: whole
 * blocks, or pages made beforehand with zeros, read warm a tenth faster until they are evicted, and take up
 * to a quarter of the rate of a cold read for it, where the kernel has to find such large pieces of memory
 * first.
 */
#define PART_BUFFER_BYTES (512 * KIB)
#define PART_FIRST_BYTES  (64 * KIB)

enum hedge_state { HEDGE_NONE, HEDGE_QUEUED, HEDGE_RUNNING, HEDGE_ENDED };
enum part_state { PART_QUEUED, PART_RUNNING, PART_DONE, PART_FAILED };
enum part_line { LINE_NONE, LINE_URGENT, LINE_AHEAD };

/* One request to the origin, or the wish for one. Counted: by its fill's list, by waiters, and by the queue
 * or the worker that runs it. A hedge runs inside the life of attempt 0, whose worker waits for it, and holds
 * no count. */
struct part {
    uint32_t magic;
    unsigned refs;           /* fill->lock */
    struct fill *fill;       /* holds a reference while queued or running */
    struct part *next;       /* in fill->parts */
    struct part *queue_next; /* engine->lock, as the two below */
    struct part **queue_at;  /* what points to it in its line */
    enum part_line line;     /* of its lane; as a hedge the first */
    struct part *run_next;   /* in engine->running, as the next */
    struct part **run_at;    /* what points to it there */
    uint64_t offset, end;    /* end may shrink once the size is known */
    uint64_t queued_ms;      /* since when it is waited for */
    bool discover;
    bool whole;         /* who waits for it waits for all of it */
    atomic_bool urgent; /* somebody waits for it; once set it stays */

    /* fill->lock: */
    enum part_state state;
    uint64_t have;    /* bytes below this object offset can be read */
    uint64_t wake_at; /* so many of them somebody waits for, or UINT64_MAX */
    int result;
    struct err err;
    uint64_t last_use;   /* memory parts: for dropping the least recently used */
    uint64_t taken;      /* memory parts: behind the last byte that a reader took; 0: none */
    uint64_t touched_ms; /* memory parts: when that was, or when it had ended */
    bool counted;        /* in fill->memory_parts */

    uint64_t try_from, try_end; /* what the running try and its hedge ask for */
    _Atomic int owner;          /* attempt whose bytes count, -1 until the first byte */
    _Atomic uint64_t asked_ns;  /* when the request was sent; 0 before */
    enum hedge_state hedge;     /* engine->lock */
    int hedge_result;           /* valid once hedge is HEDGE_ENDED */
    struct err hedge_err;
    atomic_bool cancel[FILL_ATTEMPTS];
    atomic_bool given_up;            /* nobody wants it any more: it is not begun, and not tried again */
    struct extent_writer *writer;    /* the owner's; lives across retries */
    char *buffer;                    /* bytes gathered for one write; NULL: no memory, or nothing to gather */
    uint64_t buffer_bytes;           /* its size, at most PART_BUFFER_BYTES, from the budget */
    size_t buffered, step, flush_at; /* the owner's; bytes in buffer are not in `have` yet */
    char *memory;                    /* of an uncached fill: end - offset bytes from the budget */
};

struct fill {
    uint32_t magic;
    struct fill_engine *engine;
    struct upstream *upstream;
    struct extent *extent;
    char *key;
    size_t key_n;
    uint64_t hash;
    struct fill *next; /* in engine->table */

    struct lock lock; /* covers what follows, and the parts */
    struct cond moved;
    unsigned refs;
    bool known;     /* size and etag are */
    bool no_extent; /* missing bytes go to memory */
    int broken;     /* 0 or the error that every further fetch gets (ERR_VERSION_CHANGED) */
    uint64_t size;
    char etag[ORIGIN_ETAG_MAX + 1];
    struct part *parts;
    uint64_t memory_bytes; /* of memory parts */
    unsigned memory_parts; /* in the list that have memory or ask for it; while there are any this is one of
                              engine->streams */
    uint64_t uses;

    /* Discovery only, until known. */
    fill_admit_fn admit;
    void *admit_arg;
    struct attr *learned; /* in learned_arena */
    struct arena *learned_arena;
};

#define FILL_TABLE_SIZE 1024

/* What waits for one upstream, and how many threads are at work for it. Exists while there is any of that. */
struct fill_lane {
    struct fill_lane *next;
    const struct upstream *upstream; /* the parts' own; only compared once none is queued */
    struct part *urgent, **urgent_tail, *ahead, **ahead_tail;
    unsigned queued, busy;
};

struct fill_engine {
    struct budget *budget;
    fill_changed_fn on_changed;
    fill_fetched_fn on_fetched; /* or NULL */
    void *on_changed_arg;
    unsigned max_threads;
    _Atomic unsigned streams; /* fills with parts in memory, or on their way there */

    struct lock table_lock; /* covers table; taken before a fill's lock */
    struct fill *table[FILL_TABLE_SIZE];

    struct lock lock; /* covers the queues, threads and running */
    struct cond work, ended;
    struct fill_lane *lanes, **lanes_tail; /* whose turn is next comes first */
    unsigned queued, busy;                 /* of all lanes */
    struct part *running;
    unsigned threads, idle;
    bool polling;       /* one idle worker looks from time to time whether an origin has room again */
    atomic_bool cancel; /* stopping */
    pthread_t watcher;
};

/* fill.c */
void fill_part_done_locked(struct part *p);
void fill_part_unref_locked(struct part *p);
void fill_fail_part_locked(struct part *p, int result, const struct err *err);
/* Which parts in memory may go, of those that nobody uses at this moment. */
enum fill_drop {
    FILL_DROP_READ, /* what was read to its end */
    FILL_DROP_IDLE, /* what fill_may_drop says */
    FILL_DROP_ALL,
};
/* Frees memory parts until `need` more bytes may be had; false when none is left to free. */
bool fill_drop_memory_locked(struct fill *f, uint64_t need, const struct part *keep, enum fill_drop which);
/* The part is one that takes memory, from now until it leaves the list. */
void fill_count_memory_locked(struct part *p);

/* fill_part.c: runs a part to its end, retries and hedge included, and gives back the queue's references. The
 * caller holds a place at the upstream. */
void fill_part_run(struct part *p);
/* The hedge's one request; the caller holds a place at the upstream. Result in p->hedge_result. */
void fill_part_run_hedge(struct part *p);

/* fill_engine.c */
void fill_engine_queue(struct fill_engine *g, struct part *p);
/* For who runs a part himself: a place at the upstream and a thread's share of its lane; NULL when others
 * wait for either (urgent: only those that are, too), or there is none. Then one of the other two. */
struct fill_lane *fill_engine_enter(struct fill_engine *g, struct upstream *u, bool urgent);
void fill_engine_step_back(struct fill_engine *g, struct fill_lane *l, struct upstream *u);
/* Runs p, which is in no queue, to its end. The caller holds a count of it, and its fill. */
void fill_engine_run(struct fill_engine *g, struct fill_lane *l, struct part *p);
/* Somebody waits for p now: moves it before the readahead if it is still queued. The caller holds a count. */
void fill_engine_promote(struct fill_engine *g, struct part *p);
/* Takes p out of the queue, with what that held of it and of its fill, which are the caller's; false when it
 * is not there any more. Not of one that runs: its hedge is in the queue. */
bool fill_engine_withdraw(struct fill_engine *g, struct part *p);
bool fill_engine_stopping(struct fill_engine *g);
/* Takes back a queued hedge or waits for a running one; true when one had run. */
bool fill_engine_join_hedge(struct fill_engine *g, struct part *p);
/* A worker is done with p: the watcher must not look at it any more. Before its last reference goes. */
void fill_engine_forget_running(struct fill_engine *g, struct part *p);
/* Puts a discovered fill where fill_of_extent finds it. */
void fill_engine_publish(struct fill_engine *g, struct fill *f, uint64_t hash);
/* Drops memory parts that others can do without, of all fills. */
void fill_engine_reclaim(struct fill_engine *g);
/* fill.c */
uint64_t fill_hash_extent(const struct extent *x);
uint64_t fill_hash_uncached(const struct upstream *u, struct slice key, struct slice etag, uint64_t size);
void fill_drop_idle_memory(struct fill *f);
