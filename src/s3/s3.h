/*
 * The S3 front end: turns one HTTP request into object operations and answers as S3 does; who
 * signed a request, and what it may do, is checked before anything else happens, and it is refused with S3's
 * XML error otherwise.
 */
#pragma once

#include "net/http_conn.h"
#include "object/object.h"

struct s3;

struct s3_config {
    struct object_service *objects;
    const char *region;     /* what clients must have signed for */
    const char *access_key; /* the node's own pair, which may do everything */
    const char *secret_key;
    const char *node_id;      /* x-amz-id-2 */
    uint64_t lifecycle_ms;    /* between passes of the lifecycle rules; 0: they are not carried out */
    uint64_t documents_bytes; /* most memory for documents that are sent; one at a time may take more */
    const char *domain;       /* BUCKET.DOMAIN as host names a bucket; NULL: path style only */
};

struct s3 *s3_new(const struct s3_config *config); /* copies the strings */
void s3_free(struct s3 *s);
DEFINE_CLEANUP(struct s3, s3_free)

/* Serves one request (http_handler_fn; arg is the struct s3). Always sends a response. Any thread. */
void s3_handle(struct http_conn *c, void *arg);
/* Whether the Host header names a bucket: whatever the path is, it is a key of it then. */
bool s3_is_bucket_host(const struct s3 *s, const struct http_request *r);
/* Verifies the SigV4 header signature of a request that is not S3's own (the /-/ API), and that who signed is
 * an admin: 0 or ERR_UNAUTHENTICATED. */
int s3_authenticate(struct s3 *s, struct http_conn *c, struct err *e);
