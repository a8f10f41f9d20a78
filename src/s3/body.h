/*
 * The body of a request: what its headers promise, and a reader that takes off the aws-chunked coding and
 * checks every hash and checksum the client gave.
 *
 * One thread at a time per struct.
 */
#pragma once

#include "base/hasher.h"
#include "net/http.h"
#include "s3/chunked.h"

#define BODY_SIZE_MAX         (5 * TIB)
#define BODY_SIZE_UNKNOWN     UINT64_MAX
#define BODY_BESIDE_MIN_BYTES (256 * KIB) /* whose MD5 is worth another thread */

/* What the headers say. Digests are binary. */
struct body_plan {
    uint64_t size_bytes; /* of the payload, BODY_SIZE_UNKNOWN when the client does not say */
    bool aws_chunked, chunks_signed, has_trailer;
    bool has_sha256, has_md5;
    uint8_t sha256[32], md5[16];
    enum checksum_kind kind; /* x-amz-checksum-*, in a header or promised for the trailer */
    bool in_trailer;
    uint8_t value[CHECKSUM_MAX_BYTES]; /* when not in the trailer */
};

/*
 * Reads the headers. payload_hash: as signed (hex hash, UNSIGNED-PAYLOAD, STREAMING-...). with_checksum:
 * whether x-amz-checksum headers are about this body; those of a trailer always are. Pure. On failure
 * *ret_reason (static text) may say more than the error does.
 */
enum s3_error body_plan(const struct http_request *r, struct slice payload_hash, bool with_checksum,
                        struct body_plan *ret, const char **ret_reason);

/* Raw bytes: >0, 0 at the end of the HTTP body, or an error (as http_conn_read). */
typedef ssize_t (*body_source_fn)(void *arg, void *p, size_t n);
/* What an error of such a source is to its client: REQUEST_TIMEOUT, INCOMPLETE_BODY, or UNAVAILABLE where it
 * is this machine that had no memory to go on. */
enum s3_error body_source_error(ssize_t n);

struct body {
    struct body_plan plan;
    body_source_fn source;
    void *arg;
    struct chunked chunked;
    struct checksum sha256, extra;
    struct hasher_stream md5;
    bool has_md5, beside; /* md5 is computed; by another thread */
    uint64_t got;         /* payload bytes given out */
    bool raw_ended, ended;
    enum s3_error error;                      /* why body_read failed */
    uint8_t extra_digest[CHECKSUM_MAX_BYTES]; /* of plan.kind, once ended */
    uint8_t md5_digest[MD5_BYTES];            /* with has_md5, once ended */
};

/* signing: needed when chunks are signed, else NULL. */
void body_init(struct body *b, const struct body_plan *plan, const struct chunked_signing *signing,
               body_source_fn source, void *arg);
/* Uses none of the memory that it was given to read into any more. */
void body_fini(struct body *b);
/*
 * Before anything is read: the MD5 is wanted, whether the client promised one or not. With a hasher, and of a
 * body that is large enough, it is computed beside: then only body_read_full may be called, and what it gave
 * must stay as it is until it is called for the same memory again or has given 0, or until body_fini. Who
 * reads into two pieces of memory in turn receives into one while the other is hashed.
 */
void body_want_md5(struct body *b, struct hasher *h);
/*
 * Payload bytes: >0 how many; 0 when the body has ended and everything promised about it held; -1 with
 * b->error. Nothing of a body may be acted upon for good before 0 was returned.
 */
ssize_t body_read(struct body *b, void *p, size_t n);
/* Reads until n bytes are there or the body has ended: how many, or -1. */
ssize_t body_read_full(struct body *b, void *p, size_t n);
