/*
 * MD5 (RFC 1321) of streams whose bytes come in pieces: of one, or of several at once (md5_lanes.h). Only for
 * what S3 wants it for: it protects nothing.
 *
 * One thread at a time per struct.
 */
#pragma once

#include "base/md5_lanes.h"

#define MD5_BYTES 16

struct md5 {
    uint32_t state[4];
    uint64_t bytes;                /* all of them so far */
    uint8_t rest[MD5_BLOCK_BYTES]; /* the last bytes % 64 of them */
};

void md5_init(struct md5 *m);
/* Values do not depend on how the bytes were cut into updates. */
void md5_update(struct md5 *m, const void *p, size_t n);
/* The struct can then only be initialised again. */
void md5_final(struct md5 *m, uint8_t ret[MD5_BYTES]);

/* A piece of a stream. */
struct md5_piece {
    struct md5 *md5;
    const void *p; /* as `n` changed by md5_update_each */
    size_t n;
};
/* md5_update of each of the pieces, whose streams are different ones. `set` is one that the processor has. */
void md5_update_each(enum md5_set set, struct md5_piece *pieces, size_t n);
