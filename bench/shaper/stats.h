/* Counters of requests and body bytes, per verb and per kind of request. Any thread. */
#pragma once

#include "base/buf.h"
#include "base/lock.h"
#include "head.h"

enum stats_direction { STATS_REQUEST, STATS_RESPONSE };

struct stats_row {
    uint64_t requests;
    uint64_t bytes[2];  /* of bodies, by direction */
    uint64_t status[6]; /* by first digit; 0: the response did not reach its end */
};

struct stats {
    struct lock lock; /* covers all below */
    struct stats_row verbs[VERB_COUNT], kinds[KIND_COUNT];
    uint64_t in_flight, max_in_flight; /* from the head of a request to the last byte of its response */
    uint64_t connections, max_connections, connections_total;
    uint64_t faults; /* injected */
    uint64_t since_ns;
};

void stats_init(struct stats *s);
void stats_fini(struct stats *s);
/* All counters to zero; what is in flight or open stays counted as such. */
void stats_reset(struct stats *s);
void stats_connection(struct stats *s, bool opened);
void stats_begin(struct stats *s, enum head_verb verb, enum head_kind kind);
/* status 0: cut off. */
void stats_end(struct stats *s, enum head_verb verb, enum head_kind kind, int status);
void stats_bytes(struct stats *s, enum head_verb verb, enum head_kind kind, enum stats_direction d,
                 int64_t n);
void stats_fault(struct stats *s);
/* One JSON object, `armed` faults included. */
int stats_json(struct stats *s, uint64_t armed, struct buf *b);
