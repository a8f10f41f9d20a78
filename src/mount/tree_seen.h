/* What a file was like when it was opened last: pure. Where its pages may stay. */
#pragma once

#include "base/macro.h"

/* Kernels before Linux 6.13, and disks that do not tell them apart, give changes the time of their last tick,
 * of at most 10 ms: what has such a time may be changed again without another one. */
#define TREE_SEEN_SETTLED_NS 20000000

/* By the time that nobody can set: who writes as many bytes may set the other one back. */
struct tree_seen {
    uint64_t ino, size_bytes;
    int64_t ctime_ns;
    bool is_settled; /* a later change would have had another time */
};

/* Remembers how it is now, of which the clock says now_ns. Whether it is as it was, for sure. */
bool tree_seen_again(struct tree_seen *seen, uint64_t ino, uint64_t size_bytes, int64_t ctime_ns,
                     int64_t now_ns);
