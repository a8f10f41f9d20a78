/* Counters of requests and body bytes: of all, and of each system that was named, per verb and per kind of
 * request. Any thread. */
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

/* Ranges of known length that GETs asked for. */
struct stats_ranges {
    uint64_t requests, bytes, smallest, largest;
};

#define STATS_SYSTEMS_MAX 32 /* named ones; what comes after them is counted with those without a name */
#define STATS_NAME_MAX    64

struct stats_system {
    char name[STATS_NAME_MAX];
    struct stats_row verbs[VERB_COUNT], kinds[KIND_COUNT];
    struct stats_ranges ranges;
};

/* Where an exchange is counted; fixed when it begins. */
struct stats_key {
    enum head_verb verb;
    enum head_kind kind;
    unsigned system; /* 0: no name */
};

struct stats {
    struct lock lock; /* covers all below */
    struct stats_row verbs[VERB_COUNT], kinds[KIND_COUNT];
    struct stats_ranges ranges;
    struct stats_system systems[1 + STATS_SYSTEMS_MAX]; /* by order of naming; the first has no name */
    unsigned n_systems, system;                         /* how many there are, which one it is now */
    uint64_t in_flight, max_in_flight; /* from the head of a request to the last byte of its response */
    uint64_t connections, max_connections, connections_total;
    uint64_t faults;                     /* injected */
    uint64_t busy;                       /* requests answered 503 for their rate */
    uint64_t waits, wait_ns;             /* times to the first byte: how many were drawn, their sum */
    uint64_t own_lost_ns[2], lost_ns[2]; /* by direction: what limits of connections and of all let pass */
    uint64_t since_ns;
};

void stats_init(struct stats *s);
void stats_fini(struct stats *s);
/* All counters to zero; what is in flight or open stays counted as such. */
void stats_reset(struct stats *s);
void stats_connection(struct stats *s, bool opened);
/* Requests that begin from now on are those of this system. -EINVAL: a name that is too long or holds other
 * characters than letters, digits and "-_.". */
int stats_system(struct stats *s, const char *name);
/* Counts a request, of `range_bytes` when it names a range of known length; gives its key. */
struct stats_key stats_begin(struct stats *s, enum head_verb verb, enum head_kind kind, uint64_t range_bytes);
/* status 0: cut off. */
void stats_end(struct stats *s, struct stats_key k, int status);
void stats_bytes(struct stats *s, struct stats_key k, enum stats_direction d, int64_t n);
void stats_fault(struct stats *s);
void stats_busy(struct stats *s);
/* A time to the first byte was drawn. */
void stats_wait(struct stats *s, uint64_t ns);
/* Time in which the limit of a connection, or that of all, would have let bytes of a body through that were
 * not there, and that is not made up for. */
void stats_lost(struct stats *s, enum stats_direction d, uint64_t own_ns, uint64_t total_ns);
/* One JSON object, `armed` faults included. */
int stats_json(struct stats *s, uint64_t armed, struct buf *b);
