/*
 * What to fetch, and in which pieces: pure functions, no clock, no thread, no file.
 *
 * A *part* is what one request to the origin brings: it begins at a block boundary and is at most
 * PLAN_PART_BYTES long. Parts beyond the first of a run lie on PLAN_PART_BYTES boundaries, so that two
 * readers plan the same ones.
 */
#pragma once

#include "base/macro.h"

#define PLAN_PART_BYTES    (8 * MIB)
#define PLAN_SMALL_BYTES   (8 * MIB) /* objects up to this size are fetched whole */
#define PLAN_FIRST_BYTES   (1 * MIB) /* what the first touch of a large object asks for */
#define PLAN_WINDOW_BYTES  (8 * MIB) /* first readahead window */
#define PLAN_WINDOW_GROWTH 8
#define PLAN_SEQUENTIAL_SLACK                                                                                \
    (4 * MIB) /* reads this near to where the last one ended count as sequential                             \
               */

struct plan_range {
    uint64_t offset, end;
};

/* Readahead of one open file. Zero-initialised. */
struct plan_readahead {
    uint64_t next;    /* where the last read ended */
    uint64_t window;  /* bytes ahead of the reader; 0: not sequential so far */
    uint64_t grow_at; /* the window grows when a read ends here or later */
    bool started;
};

/*
 * A read of [offset, offset+n) of an object of `size` bytes: what should be there or on its way afterwards,
 * the read included. `max_window` is the bucket's readahead. The result lies within the object and contains
 * the read's range.
 */
struct plan_range plan_read(struct plan_readahead *ra, uint64_t offset, uint64_t n, uint64_t size,
                            uint64_t max_window);

/* The first request for an object of which nothing is known: the block-aligned range that serves a read at
 * `offset` of `expect` bytes (0: unknown, UINT64_MAX: to the end). */
struct plan_range plan_discover(uint64_t offset, uint64_t expect);

/*
 * The next part to fetch inside [at, wanted.end), given one missing, block-aligned run [missing.offset,
 * missing.end) with missing.offset >= at: cut to a part.
 */
struct plan_range plan_part(struct plan_range missing, struct plan_range wanted, uint64_t size);
