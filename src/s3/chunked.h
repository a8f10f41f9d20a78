/*
 * The aws-chunked body coding (signed, unsigned, with and without trailer): a pure state machine that is fed
 * raw bytes and gives payload bytes.
 *
 *     chunk   = hex-size [";chunk-signature=" 64hex] CRLF payload CRLF
 *     body    = *chunk "0" [";chunk-signature=" 64hex] CRLF *(name ":" value CRLF) CRLF
 *
 * A chunk's signature covers its payload and the signature before it, the first one that of the request; the
 * trailer has one of its own in "x-amz-trailer-signature". Source: "Signature calculations for the
 * Authorization header: transferring payload in multiple chunks" of the Amazon S3 API reference.
 *
 * Payload is given out before its chunk's signature has been seen: what it says is only certain once
 * chunked_done(). One thread at a time per struct.
 */
#pragma once

#include "net/sigv4.h"
#include "s3/checksum.h"
#include "s3/s3_error.h"

#define CHUNKED_LINE_MAX    512
#define CHUNKED_TRAILER_MAX 2048
#define CHUNKED_SCOPE_MAX   128

/* What chunk signatures are made with. */
struct chunked_signing {
    struct sigv4_key key;
    char time[SIGV4_TIME_LEN + 1];
    char scope[CHUNKED_SCOPE_MAX];          /* "20260131/us-east-1/s3/aws4_request" */
    char previous[SIGV4_SIGNATURE_LEN + 1]; /* at first the signature of the request */
};

enum chunked_state { CHUNKED_LINE, CHUNKED_PAYLOAD, CHUNKED_CR, CHUNKED_LF, CHUNKED_TRAILER, CHUNKED_DONE };

struct chunked {
    bool is_signed, has_trailer;
    struct chunked_signing signing;
    enum chunked_state state;
    uint64_t left; /* payload bytes missing in this chunk */
    bool last;     /* the chunk of size 0 has come */
    bool trailer_signed;
    char claimed[SIGV4_SIGNATURE_LEN + 1]; /* signature on the chunk's line */
    struct checksum hash;                  /* of the chunk's payload, when signed */
    char line[CHUNKED_LINE_MAX];
    size_t line_n;
    struct buf trailer; /* "name:value\n" lines as they are signed */
};

/* signing NULL: unsigned chunks. */
void chunked_init(struct chunked *c, const struct chunked_signing *signing, bool has_trailer);
void chunked_fini(struct chunked *c);
/*
 * Takes bytes from the front of `in`: *ret_used of them, of which *ret_payload (inside `in`, may be empty) is
 * payload. Call again with the rest until all is used. An error is final.
 */
enum s3_error chunked_feed(struct chunked *c, struct slice in, size_t *ret_used, struct slice *ret_payload);
/* The whole body has come and every signature was right. */
bool chunked_done(const struct chunked *c);
/* How many lines the trailer has, but for its signature. */
size_t chunked_trailer_lines(const struct chunked *c);
/* Value of a trailer line, lower-case name; SLICE_NULL when there is none. */
struct slice chunked_trailer(const struct chunked *c, const char *name);
