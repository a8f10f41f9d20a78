/*
 * The table of values: small objects of buckets with values=memory, and nothing else of them.
 *
 * A bounded cache that is the only copy: what does not fit is evicted, and all of it is gone when the process
 * ends. Values have an end (0: none): from that moment on nobody finds them, whether or not their memory was
 * freed already. No clock, no file: the time is an argument. Any thread; each call is atomic for its key.
 *
 * Eviction is SIEVE (Zhang et al., "SIEVE is Simpler than LRU", NSDI 2024): one queue in order of arrival, a
 * mark that a read sets, and a hand that passes marked values over once. A scan over many keys that are read
 * once each does not take the place of what is read again. One queue per shard.
 */
#pragma once

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"

#define VALUES_DATA_MAX (16 * KIB) /* bytes of one value */
#define VALUES_META_MAX (8 * KIB)  /* of its metadata and content type together */

struct values;

/* A value as it is put and found; strings are borrowed from the caller, or in the arena. */
struct value {
    uint64_t expires_ns; /* real time; 0: never */
    uint64_t mtime_ns;
    struct slice etag, content_type, meta, data;
};

/* What must be so for a change to happen, as conditional requests of S3 say it. A value whose time is over
 * counts as absent. */
struct value_condition {
    bool if_none_match;    /* no value is there */
    struct slice if_match; /* this ETag, or "*"; empty: whatever is there */
    uint64_t if_mtime_ns;  /* of a removal: the value has this time; 0: whatever time */
};

struct values_count {
    uint64_t bytes, objects;             /* in memory; of those whose time is over until they were freed */
    uint64_t hits, misses;               /* of values_get */
    uint64_t evicted, expired, replaced; /* values that went */
};

/* max_bytes: keys, values and bookkeeping together. */
struct values *values_new(uint64_t max_bytes);
void values_free(struct values *v);
uint64_t values_max_bytes(const struct values *v);

/* -ENOENT. Strings are copied into the arena; with_data false leaves ret->data with its length only. */
int values_get(struct values *v, uint64_t bucket, struct slice key, uint64_t now_ns, bool with_data,
               struct arena *a, struct value *ret);
/* ERR_PRECONDITION; -ENOENT: if_match where there is no object. -EFBIG: larger than VALUES_DATA_MAX, -E2BIG:
 * metadata larger than VALUES_META_MAX. */
int values_put(struct values *v, uint64_t bucket, struct slice key, const struct value *x,
               const struct value_condition *c, uint64_t now_ns, struct err *e);
/* -ENOENT when there is none, ERR_PRECONDITION. */
int values_remove(struct values *v, uint64_t bucket, struct slice key, const struct value_condition *c,
                  uint64_t now_ns, struct err *e);

/* What a listing is about, as struct scratch_list says. */
struct values_list {
    struct slice prefix, after;
    char delimiter; /* 0: none */
    size_t max;
};

struct values_listed {
    struct slice key; /* in the arena */
    bool is_prefix;   /* common prefix, ends with the delimiter */
    uint64_t size_bytes, mtime_ns;
    struct slice etag; /* in the arena */
};

/* Keys and common prefixes after `after` in byte order, at most `max` of them into ret: how many. It looks at
 * every value of the table, and holds the lock of one shard at a time: what is put or removed meanwhile may
 * be there or not. */
size_t values_list(struct values *v, uint64_t bucket, const struct values_list *l, uint64_t now_ns,
                   struct arena *a, struct values_listed *ret, bool *ret_truncated);

/* How many values of the bucket there are, and their bytes. */
struct values_count values_count_bucket(struct values *v, uint64_t bucket, uint64_t now_ns);
void values_forget_bucket(struct values *v, uint64_t bucket);
/* Frees values whose time is over. */
void values_sweep(struct values *v, uint64_t now_ns);
struct values_count values_count(struct values *v);
/* Walks everything; asserts what must always hold. For tests. */
void values_check(struct values *v);
