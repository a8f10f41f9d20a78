/*
 * The blocks of MD5 of several streams at once. One MD5 is a chain of 64 dependent steps for each block, so
 * that a processor has most of its units idle; a vector register takes that many streams through the same
 * chain in about the time of one. For streams that come in any pieces see md5.h.
 *
 * Pure; any thread.
 */
#pragma once

#include "base/macro.h"

#define MD5_BLOCK_BYTES 64
#define MD5_LANES_MAX   16

/* X(NAME, name, streams at once): the ways to do it, the better ones last. */
#define MD5_SETS(X)                                                                                          \
    X(PORTABLE, "portable", 4)                                                                               \
    X(AVX2, "avx2", 8)                                                                                       \
    X(AVX512, "avx512", MD5_LANES_MAX)

enum md5_set {
#define X(NAME, name, lanes) MD5_##NAME,
    MD5_SETS(X)
#undef X
        MD5_SET_COUNT
};

const char *md5_lanes_name(enum md5_set set);
/* How many streams it takes at once. */
unsigned md5_lanes_width(enum md5_set set);
/* Whether this processor has the instructions; the portable way is there always. */
bool md5_lanes_has(enum md5_set set);
/* The last of those that it has. */
enum md5_set md5_lanes_best(void);

struct md5_lane {
    uint32_t *state;     /* four words, as RFC 1321 has them; changed */
    const uint8_t *data; /* of any alignment */
};

/* Takes `blocks` whole blocks into each of n streams, at most as many as the set's width; n may be 0. A
 * single one goes the faster of two ways, in a lane or in a plain word. */
void md5_lanes_run(enum md5_set set, const struct md5_lane *lanes, unsigned n, size_t blocks);
/* One stream in a lane, whether that is faster or not. False: the set has no way to do it. */
bool md5_lanes_run_in_lane(enum md5_set set, const struct md5_lane *lane, size_t blocks);
