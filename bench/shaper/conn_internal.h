/* One connection, shared by conn.c (requests) and respond.c (responses and faults). */
#pragma once

#include "relay.h"
#include "shaper.h"

struct conn {
    struct shaper *sh;
    struct relay_side client, upstream;
    struct shape_rate own[2]; /* by direction */
    int pipe[2];
};

/* One request being served. */
struct exchange {
    struct head request; /* its slices point to `head_copy` */
    enum head_verb verb;
    enum head_kind kind;
    struct stats_key key;
    struct fault fault;
    uint64_t respond_at_ns;
    struct stats *stats;
    int status; /* of the final response, 0 until its head is there */
    bool ended; /* counted as ended */
    bool early; /* the response began before the request's body was through */
    bool keep;  /* the connection may serve another request */
};

/* Counts the exchange as ended, once; with status 0 as cut off. An on_last of flows. */
void exchange_end(void *exchange);
struct relay_flow conn_flow(struct conn *c, const struct exchange *x, enum stats_direction d);
/* Waits for a whole head at the front of the buffer of `s`; its length, or an error. Little of what follows
 * it is read. */
ssize_t conn_read_head(struct relay_side *s, const struct relay_side *other);
/* Passes on one interim response at the front of the upstream's buffer. 1: it was one, 0: it is a final one.
 */
int respond_interim(struct conn *c, struct exchange *x);
/* Relays the final response, or what the fault makes of it. Errors end the connection. */
int respond_final(struct conn *c, struct exchange *x);
/* The answer of a status fault: nothing goes upstream. */
int respond_status(struct conn *c, struct exchange *x);
/* 503 SlowDown: the request came above the rate that is let through; nothing goes upstream. */
int respond_busy(struct conn *c, struct exchange *x);
/* A response of our own. */
int respond_own(struct conn *c, int status, const char *type, struct slice body, bool head_only, bool keep);
