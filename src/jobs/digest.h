/* What a stream of bytes comes to: the sums by which a copy is compared with what was sent. One thread's. */
#pragma once

#include "base/hasher.h"
#include "base/slice.h"

#define DIGEST_MD5    16
#define DIGEST_SHA256 32

struct digest;

/* Which sums are made. MD5s, which an ETag could be, of all or of each part: each takes three times as long
 * as the SHA-256, both together as long as one where there is a hasher, and that ten times as long as the
 * CRC-32C, which is for bytes that never left this node. */
enum digest_sum {
    DIGEST_NO_ETAG = 0,
    DIGEST_OF_ALL = 1,
    DIGEST_OF_PARTS = 2,
    DIGEST_SHA256_OF_ALL = 4,
    DIGEST_CRC32C_OF_ALL = 8,
};
#define DIGEST_ETAGS (DIGEST_OF_ALL | DIGEST_OF_PARTS)

struct digest_sums {
    uint64_t size_bytes;
    unsigned there; /* which of the sums, of enum digest_sum */
    uint8_t md5[DIGEST_MD5], sha256[DIGEST_SHA256];
    uint8_t parts_md5[DIGEST_MD5]; /* MD5 of the MD5s of its parts, as S3 makes ETags of uploads in parts */
    uint32_t n_parts, crc32c;
};

/* part_bytes: of an upload in parts, not 0. sums: of enum digest_sum; where there is but one part, one MD5
 * gives the other. hasher: who computes the MD5s of what is large, NULL for nobody else. Never NULL. */
struct digest *digest_new(uint64_t size_bytes, uint64_t part_bytes, unsigned sums, struct hasher *hasher);
void digest_free(struct digest *d);
DEFINE_CLEANUP(struct digest, digest_free)
/* The bytes must stay as they are until digest_wait, or one of digest_end and digest_free. */
void digest_add(struct digest *d, const void *p, size_t n);
/* Waits until what was added last is not needed any more. */
void digest_wait(struct digest *d);
/* A file. */
struct digest_file {
    uint64_t size_bytes;
    bool in_order; /* it is read from its beginning to its end, once */
    /* Some of the n bytes at `offset`, which is before the end: how many, or an error. */
    ssize_t (*read)(void *arg, void *p, size_t n, uint64_t offset);
    /* Before anything is read of which more than `summed` bytes were in the sums already; may wait. */
    void (*follow)(void *arg, uint64_t summed);
    void *arg;
};
/* All of it, in place of digest_add. MD5s of parts are computed of several parts at once, in the lanes of the
 * processor, for which the bytes are read twice: that costs a fraction of one MD5 after the other. 0, the
 * error of `read`, or ERR_VERSION_CHANGED: they were not the same both times. */
int digest_file(struct digest *d, const struct digest_file *f);
/* Once, at the end. */
void digest_end(struct digest *d, struct digest_sums *ret);

/* Whether the ETag is the one that S3 gives to these bytes, sent at once or in these parts. False says
 * nothing: ETags may be anything. */
bool digest_is_etag(const struct digest_sums *s, struct slice etag);
/* Whether two streams are the same, by the sums that both have, which must be one at least. */
bool digest_is_same(const struct digest_sums *a, const struct digest_sums *b);
