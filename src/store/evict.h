/*
 * The eviction policy: pure functions, no clock, no file, no thread. Scan-resistant: each item of a data set
 * is read once per epoch, so what is there is kept and the newcomer is turned away, unless something is
 * really idle.
 *
 * Victims in order: dead versions; extents not read for twice their data set's own re-read interval (24 h
 * until known); then extents of data sets idle longer than the newcomer's; otherwise the newcomer is not
 * admitted.
 *
 * Data sets: a marked prefix, or one found automatically. The table starts with one set per bucket (the first
 * path component of the keys) and splits a set that holds more than 5 % of the cache by the next path
 * component, up to EVICT_SETS_MAX sets.
 *
 * Times are milliseconds since 1970, so that they keep their meaning across restarts. A clock that was set
 * back is tolerated: what lies ahead of `now` counts as just read, more than a day ahead as never read.
 */
#pragma once

#include "base/buf.h"

#define EVICT_SETS_MAX          1024
#define EVICT_ENCODED_MAX_BYTES (4 * MIB) /* no table encodes to more; larger input is refused */

struct evict_sets; /* the data-set table; one lock outside, held by the caller */

/* cache_bytes: of this disk, not 0. Never NULL. */
struct evict_sets *evict_sets_new(uint64_t cache_bytes);
void evict_sets_free(struct evict_sets *t);
DEFINE_CLEANUP(struct evict_sets, evict_sets_free)
/*
 * The set of a key: longest matching prefix; made when needed. `marked` (may be empty) is a prefix of key;
 * marked sets are never split and win over those found automatically.
 *
 * The number is stable: it may be kept in the entry's record and survives encode and decode. Sets that hold
 * no bytes are given up when the table is full; their numbers are not used again, and every function here
 * takes a number whose set is gone (its reads and bytes go uncounted, its extents are judged by their own
 * last read). Because sets are split, the same key may later belong to another set: when a call at a read or
 * at a fill gives another number than the entry has, move its bytes with two calls of evict_set_grow and keep
 * the new number.
 */
uint32_t evict_set_of(struct evict_sets *t, struct slice key, struct slice marked, uint64_t now_ms);
/* The set that a key belongs to as the table is now; changes nothing. */
uint32_t evict_set_find(const struct evict_sets *t, struct slice key);
/* A read of `bytes` of an extent of the set, cached or not. previous_read_ms: when this extent was read
 * before, 0 when it is new. One call per open or large read; several calls for one pass over an extent do no
 * harm. */
void evict_set_read(struct evict_sets *t, uint32_t set, uint64_t previous_read_ms, uint64_t now_ms,
                    uint64_t bytes);
/*
 * What was evicted is remembered for a while (a sample of it, 64 KiB in memory), so that a re-read interval
 * that was taken for too short shows when extents are wanted again: call evict_note_evicted for each victim,
 * and for a new entry pass evict_former_read (0: unknown) as previous_read_ms of its first read.
 */
void evict_note_evicted(struct evict_sets *t, struct slice key, uint64_t last_read_ms);
uint64_t evict_former_read(const struct evict_sets *t, struct slice key);
/* Cached bytes of the set grow or shrink; below 0 counts as 0. */
void evict_set_grow(struct evict_sets *t, uint32_t set, int64_t bytes);

struct evict_candidate {
    uint32_t set;
    uint64_t last_read_ms; /* when it was made, for one that was never read */
    uint64_t size_bytes;
    bool dead, pinned, dirty, referenced;
};

enum evict_verdict {
    EVICT_KEEP,
    EVICT_IDLE_SET,
    EVICT_STALE,
    EVICT_DEAD
}; /* the larger, the better a victim */
/* What may happen to `c` for the sake of a newcomer of set `newcomer` at now. Pinned, dirty and referenced
 * extents are kept, dead ones too: removing them would lose data or free nothing. */
enum evict_verdict evict_judge(const struct evict_sets *t, const struct evict_candidate *c, uint32_t newcomer,
                               uint64_t now_ms);
/* Index of the best victim among n sampled candidates, or -1 when all are kept: then the newcomer is not
 * admitted. */
int evict_choose(const struct evict_sets *t, const struct evict_candidate *c, size_t n, uint32_t newcomer,
                 uint64_t now_ms);
/* The same for what must be admitted (new writes, data the user asked for): where evict_choose keeps
 * everything, the extent not read for longest. -1 only when all are pinned, dirty or referenced. */
int evict_choose_forced(const struct evict_sets *t, const struct evict_candidate *c, size_t n,
                        uint32_t newcomer, uint64_t now_ms);

struct evict_set_info {
    struct slice prefix; /* valid until the next evict_set_of */
    bool marked;
    uint64_t bytes;              /* cached */
    uint64_t last_read_ms;       /* 0: never */
    uint64_t active_since_ms;    /* start of the present activity period */
    uint64_t reread_interval_ms; /* 0: not known yet */
};
size_t evict_sets_count(const struct evict_sets *t);
/* -ENOENT when the set is gone. */
int evict_set_info(const struct evict_sets *t, uint32_t set, struct evict_set_info *ret);
/* Calls fn for each set. */
void evict_sets_each(const struct evict_sets *t,
                     void (*fn)(uint32_t set, const struct evict_set_info *i, void *arg), void *arg);
/* Asserts the table's invariants. */
void evict_sets_check(const struct evict_sets *t);

/* Persisted form, so that idle times and intervals survive restarts. Appends; -E2BIG when b's maximum is too
 * small (then b is as it was). */
int evict_sets_encode(const struct evict_sets *t, struct buf *b);
/* ERR_CORRUPT on anything that evict_sets_encode did not write. */
int evict_sets_decode(struct slice s, uint64_t cache_bytes, struct evict_sets **ret);
