/*
 * The eviction policy: pure functions, no clock, no file, no thread. Scan-resistant: each item of a data set is read
 * once per epoch, so what is there is kept and the newcomer is turned away, unless something is really idle.
 *
 * Victims in order: dead versions; extents not read for twice their data set's own re-read interval (24 h until
 * known); then extents of data sets idle longer than the newcomer's; otherwise the newcomer is not admitted.
 *
 * Data sets: a marked prefix, or one found automatically. The table starts with one set per bucket and splits a set
 * that holds more than 5 % of the cache by the next path component of its keys, up to EVICT_SETS_MAX sets.
 */
#pragma once

#include "base/buf.h"

#define EVICT_SETS_MAX 1024

struct evict_sets; /* the data-set table; one lock outside, held by the caller */

struct evict_sets *evict_sets_new(uint64_t cache_bytes);
void evict_sets_free(struct evict_sets *t);
/* The set of a key: longest matching prefix; made when needed. `marked` (may be empty) is a prefix of key. */
uint32_t evict_set_of(struct evict_sets *t, struct slice key, struct slice marked, uint64_t now_ms);
void evict_set_read(struct evict_sets *t, uint32_t set, uint64_t previous_read_ms, uint64_t now_ms, uint64_t bytes);
void evict_set_grow(struct evict_sets *t, uint32_t set, int64_t bytes);

struct evict_candidate {
    uint32_t set;
    uint64_t last_read_ms;
    uint64_t size_bytes;
    bool dead, pinned, dirty, referenced;
};

enum evict_verdict { EVICT_KEEP, EVICT_IDLE_SET, EVICT_STALE, EVICT_DEAD }; /* the larger, the better a victim */
/* What may happen to `c` for the sake of a newcomer of set `newcomer` at now. */
enum evict_verdict evict_judge(const struct evict_sets *t, const struct evict_candidate *c, uint32_t newcomer,
                               uint64_t now_ms);
/* Index of the best victim among n sampled candidates, or -1 when all are kept: then the newcomer is not admitted. */
int evict_choose(const struct evict_sets *t, const struct evict_candidate *c, size_t n, uint32_t newcomer,
                 uint64_t now_ms);
/* Persisted form, so that idle times and intervals survive restarts. */
int evict_sets_encode(const struct evict_sets *t, struct buf *b);
int evict_sets_decode(struct slice s, uint64_t cache_bytes, struct evict_sets **ret);
