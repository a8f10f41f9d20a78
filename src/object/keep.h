/*
 * What the property `keep` of a bucket promises: so many of its bytes stay in the cache whatever is read of
 * other buckets. Pure: the count, and what follows from it.
 *
 * The count is a lower bound. A walk over what is cached makes it, and what leaves is taken off at once, also
 * while the walk runs; what comes is counted by the next walk. So a promise is never broken by a count that
 * lags, but more may be kept for a moment than was promised.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct keep {
    uint64_t promised; /* the property; 0: nothing is */
    bool is_counted;   /* a walk has ended */
    uint64_t bytes;    /* at least so many are here */
    uint64_t left;     /* what has left since the last walk began */
};

/* Whether an object of the bucket, with so many bytes here, stays, though a newcomer could use the room.
 * is_own: a newcomer of the same bucket, which is what the rest of the policy is about. */
bool keep_holds(const struct keep *k, uint64_t bytes, bool is_own);
/* So many bytes leave. */
void keep_leave(struct keep *k, uint64_t bytes);
/* A walk begins; it ends, and has seen so many bytes. */
void keep_walk(struct keep *k);
void keep_walked(struct keep *k, uint64_t bytes);
