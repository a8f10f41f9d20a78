/*
 * Who sent a request: signature version 4 in the Authorization header or in the URL, and version 2 in the URL
 * (boto3 still makes those when it is asked for a presigned URL without more).
 *
 * auth_parse and auth_verify are pure but for the cache of signing keys: no socket, no clock. Any thread.
 */
#pragma once

#include "base/arena.h"
#include "base/lock.h"
#include "net/http.h"
#include "net/sigv4.h"
#include "s3/chunked.h"
#include "s3/s3_error.h"

#define AUTH_SKEW_S        (15 * 60)
#define AUTH_EXPIRES_MAX_S (7 * 24 * 3600)

enum auth_kind { AUTH_HEADER_V4, AUTH_URL_V4, AUTH_URL_V2, AUTH_HEADER_V2 };

/* What the request claims, not yet verified. Slices point into the request or its arena. */
struct auth_claim {
    enum auth_kind kind;
    struct slice access_key, date, region, service; /* the scope; V2 has only the key */
    struct slice signed_headers;                    /* "a;b;c" */
    struct slice signature;
    struct slice payload_hash; /* UNSIGNED-PAYLOAD when the URL is signed */
    char time[SIGV4_TIME_LEN + 1];
    uint64_t time_s;         /* of the signature; V2: of its expiry */
    uint64_t expires_s;      /* V4 URL: after time_s */
    struct slice secret_key; /* set by auth_verify; in the arena, wipe it when done */
};

struct auth_request {
    const struct http_request *http;
    struct slice path; /* decoded */
    const struct http_pair *query;
    size_t n_query;
    struct slice host_bucket; /* that the Host header names; empty: path style */
};

#define AUTH_ACCESS_KEY_MAX 128
#define AUTH_SECRET_KEY_MAX 256

/* Appends the secret of an access key: 0, or an error when there is no such key (any more). */
typedef int (*auth_secret_fn)(void *arg, struct slice access_key, struct buf *ret_secret);

/* Whose keys are known, and the signing keys derived of late from their secrets. */
#define AUTH_KEYS_MAX 32
struct auth_keys {
    struct slice region;
    auth_secret_fn secret;
    void *arg;
    struct lock lock; /* covers what follows */
    struct {
        char date[SIGV4_DATE_LEN];
        char access_key[AUTH_ACCESS_KEY_MAX + 1];
        struct sigv4_key key;
    } recent[AUTH_KEYS_MAX];
    size_t n_recent, next;
};

/* The region is borrowed for the life of *k. The secret of an access key never changes. */
void auth_keys_init(struct auth_keys *k, auth_secret_fn secret, void *arg, struct slice region);
void auth_keys_fini(struct auth_keys *k);

/* Whether it is of version 2, which covers neither the body nor headers other than x-amz-*. */
bool auth_is_v2(const struct auth_claim *c);
/* Whether the request carries nothing that looks like a signature; one empty Authorization header is none. */
bool auth_is_anonymous(const struct auth_request *r);
/* Finds and takes apart the signature. ACCESS_DENIED when there is none. *ret_reason (static text) may be
 * set. */
enum s3_error auth_parse(const struct auth_request *r, struct arena *a, struct auth_claim *ret,
                         const char **ret_reason);
/* Checks key, region, time and signature. */
enum s3_error auth_verify(const struct auth_request *r, struct auth_claim *claim, struct auth_keys *keys,
                          uint64_t now_s, struct arena *a, const char **ret_reason);

/* The fields of a POST form that tell who made it; absent ones are SLICE_NULL. */
struct auth_policy {
    struct slice policy, signature;           /* policy: in base64, as it was signed */
    struct slice algorithm, credential, date; /* version 4 */
    struct slice access_key;                  /* version 2 */
};
/* Who signed the policy: *ret has the access key and its secret. */
enum s3_error auth_verify_policy(const struct auth_policy *p, struct auth_keys *keys, uint64_t now_s,
                                 struct arena *a, struct auth_claim *ret, const char **ret_reason);
/* What signed chunks of the body of a verified request are checked with. */
void auth_chunk_signing(const struct auth_claim *claim, struct auth_keys *keys, struct chunked_signing *ret);
