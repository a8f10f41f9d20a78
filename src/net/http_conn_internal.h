/* What http_conn.c (request side) and http_respond.c (response side) share. */
#pragma once

#include "net/http_conn.h"

#define HTTP_CONN_MAGIC    0x48434f4eu
#define HTTP_IN_BYTES      (HTTP_HEAD_MAX_BYTES + 16 * KIB) /* a head, and room behind it for body framing */
#define HTTP_OUT_MAX_BYTES (64 * KIB) /* a response head; larger ones are our own mistake */
#define HTTP_ARENA_BYTES   (1 * MIB)
#define HTTP_PEER_BYTES    64
#define HTTP_SMALL_BYTES   (16 * KIB) /* files up to here are copied behind the head: one packet, one call */
#define HTTP_DRAIN_BYTES                                                                                     \
    (64 * KIB) /* an unread body up to here is read and dropped to keep the connection                       \
                */

#define HTTP_DRAIN_MS 5000 /* and no longer: who dribbles shall not hold a thread */
#define HTTP_HUSH_MS  500  /* nor who says nothing at all: what belongs to a request was sent with it */

enum http_body {
    HTTP_BODY_NONE,    /* none, or all of it was read */
    HTTP_BODY_LENGTH,  /* `body_left` bytes follow */
    HTTP_BODY_CHUNKED, /* `body_left` bytes of the current chunk follow, then more chunks */
};

struct http_conn {
    uint32_t magic;
    struct stream stream; /* fd -1 while detached */
    const struct sockaddr *peer;
    char peer_text[HTTP_PEER_BYTES]; /* empty until asked for */
    uint64_t id;
    uint64_t id_next, ids_left; /* for the next requests */
    struct arena *arena;
    bool draining;
    struct budget *spare; /* for what the socket does not take; NULL: who writes waits */
    bool never_waits;     /* also where that is used up */

    /* Request. in[0..at) is the current head and what was consumed behind it; in[at..n) is pending. */
    struct http_request request;
    size_t in_at, in_n;
    size_t part_n;   /* in[0..part_n) was found to be a part of a head; 0: it is not known */
    size_t head_end; /* end of the current head: bytes before it must stay, request's slices point there */
    enum http_body body;
    uint64_t body_left;
    uint64_t taken;       /* body bytes of this request that were read */
    uint64_t body_end_ms; /* from then on none is waited for; 0: no such time */
    bool first_chunk;
    bool continue_due; /* the client waits for "100 Continue" */
    bool body_failed;  /* the stream is out of step: close */

    /* Response. */
    struct buf out; /* head not sent yet */
    bool head_made, head_sent_any, head_method, chunked_out, close_after, cut;
    int status;
    int failed;         /* first error of a send, or 0 */
    uint64_t announced; /* body bytes of the head, UINT64_MAX unknown */
    uint64_t left;      /* of them not yet written */
    uint64_t sent;      /* body bytes given to the socket */
    struct http_rest *rest;
    struct http_rest *unused; /* memory for one; or NULL */

    char in[HTTP_IN_BYTES];
};

/* Prepares the response side for a new request. */
void http_respond_reset(struct http_conn *c);
/* Ends the response after the handler returned. */
enum http_next http_respond_finish(struct http_conn *c);
/* Reads and drops the rest of the request's body; false when the connection cannot be kept. */
bool http_conn_drop_body(struct http_conn *c);
