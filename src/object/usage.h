/*
 * Who reads what, and what it cost at the origin: counters by prefix, the first two directories of a key.
 *
 * At most USAGE_ROWS_MAX rows: then those of prefixes that were opened least count for the bucket as a whole
 * (prefix ""). Kept in
 * the control store by usage_save (key "n/usage"), so that a restart does not lose them:
 *
 *     forebay usage 1\n
 *     BUCKET-ID<TAB>OPENS<TAB>READ<TAB>FETCHED<TAB>LAST<TAB>PREFIX\n      decimal; the prefix percent-encoded
 *
 * Any thread.
 */
#pragma once

#include "base/buf.h"
#include "base/err.h"
#include "kv/kv.h"

#define USAGE_ROWS_MAX 4096
#define USAGE_DEPTH    2

struct usage;

struct usage_row {
    uint64_t bucket_id;
    struct slice prefix;
    uint64_t opens, read_bytes, fetched_bytes; /* read by users; brought from the origin */
    uint64_t last_read_ms;                     /* real time; 0: never */
};

/* What the control store has of before; damage there is logged and forgotten. */
struct usage *usage_new(struct kv *kv);
void usage_free(struct usage *u);
void usage_opened(struct usage *u, uint64_t bucket_id, struct slice key);
void usage_read(struct usage *u, uint64_t bucket_id, struct slice key, uint64_t bytes);
void usage_fetched(struct usage *u, uint64_t bucket_id, struct slice key, uint64_t bytes);
/* The bucket is gone. */
void usage_forget(struct usage *u, uint64_t bucket_id);
/* Calls fn for every row; it must not call back. */
void usage_each(struct usage *u, void (*fn)(void *arg, const struct usage_row *r), void *arg);
/* Writes them down, when anything changed since. */
int usage_save(struct usage *u, struct err *e);
