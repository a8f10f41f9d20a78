/* A token bucket as a pure function: time comes in, a wait comes out. */
#pragma once

#include "base/macro.h"

struct rate {
    uint64_t bytes_per_s; /* 0: no limit */
    uint64_t free_at_ns;  /* when what was taken so far is paid for */
};

#define RATE_BURST_NS ((uint64_t)1000000000) /* time unused is saved up for so long */

/* Takes n bytes at `now_ns` (monotonic); gives how many ns to wait before moving them. Bytes are moved in the
 * order in which they were taken. */
uint64_t rate_take(struct rate *r, uint64_t n, uint64_t now_ns);
