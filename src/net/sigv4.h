/*
 * AWS Signature Version 4, one pure function for client and server (no clock, no socket): canonical request,
 * string to sign, signature. Source: "Signature Version 4 signing process" of the AWS General Reference; S3
 * rules: the path is encoded once, not normalised. Tested against botocore's output.
 */
#pragma once

#include "base/buf.h"
#include "base/err.h"

struct sigv4_pair {
    struct slice name;  /* headers: lower case; query: decoded */
    struct slice value; /* headers: as sent; query: decoded */
};

#define SIGV4_PAIRS_MAX     256
#define SIGV4_SIGNATURE_LEN 64
#define SIGV4_DATE_LEN      8  /* 20260131 */
#define SIGV4_TIME_LEN      16 /* 20260131T235959Z */

struct sigv4_request {
    struct slice method;
    struct slice path;              /* decoded; begins with '/' */
    const struct sigv4_pair *query; /* any order, without X-Amz-Signature */
    size_t n_query;
    const struct sigv4_pair *headers; /* the signed ones only, any order */
    size_t n_headers;
    struct slice payload_hash; /* hex sha256, UNSIGNED-PAYLOAD, STREAMING-... */
};

struct sigv4_scope {
    struct slice time; /* SIGV4_TIME_LEN */
    struct slice region;
    struct slice service; /* "s3" */
};

struct sigv4_key {
    uint8_t k[32];
    uint32_t inner[8], outer[8]; /* what SHA-256 makes of it for the two halves of HMAC */
};

/* The signing key of a secret for one day, region and service; cache it, it costs four HMACs. */
void sigv4_derive_key(struct slice secret, struct slice date, struct slice region, struct slice service,
                      struct sigv4_key *ret);
/* HMAC-SHA256 of a text. */
void sigv4_hmac(const struct sigv4_key *key, struct slice text, uint8_t ret[32]);
/* Lower-case hex signature, NUL-terminated. -E2BIG when the request has more pairs than SIGV4_PAIRS_MAX,
 * -EINVAL when the time has another length. Several headers of one name are joined in the order given. */
int sigv4_sign(const struct sigv4_request *r, const struct sigv4_scope *scope, const struct sigv4_key *key,
               char ret_signature[SIGV4_SIGNATURE_LEN + 1]);
/* Canonical request text, for tests and for the server's debug log. */
int sigv4_canonical(const struct sigv4_request *r, struct buf *b);
/* "a;b;c" of the signed headers' sorted names. */
int sigv4_signed_headers(const struct sigv4_request *r, struct buf *b);
/* Constant-time comparison of two signatures. */
bool sigv4_equal(struct slice a, struct slice b);
/* Hex SHA-256 of a buffer. */
void sigv4_sha256_hex(struct slice data, char ret[65]);
/* "20260131T235959Z" of a time. */
void sigv4_time(uint64_t real_ns, char ret[SIGV4_TIME_LEN + 1]);
