/*
 * The gate: where requests for data wait for the limits and shares of the node, of their bucket, of their
 * user and of their client (base/shape.h decides, this waits). Both fronts pass every such request through
 * it, exactly once; what a request took is charged when it leaves.
 *
 * While nothing is limited and nobody has a share of his own, the gate is open and costs one atomic load.
 *
 * Not seen by it: what the kernel reads and writes by itself (passthrough of mounts, mmap), what jobs move
 * (they have rates of their own), and requests between the node and its origins (limit.origin-*).
 *
 * A request that has run for a while waits for something else than this node's disks and processors (its
 * origin, its client): it does not count any more among those that run at once, so that slow ones keep nobody
 * out.
 *
 * Any thread. A thread waits in gate_enter; where a request may be refused, at most GATE_WAITING_MAX of one
 * client wait, and no more than config.waiting altogether. Where it may not, those beyond config.waiting are
 * let through and charged: threads that wait are taken from everybody, limited or not.
 */
#pragma once

#include "base/err.h"
#include "base/shape.h"
#include "namespace/bucket.h"
#include "namespace/user.h"

#include <jansson.h>

#define GATE_WAITING_MAX 16

struct gate;
struct gate_node;

struct gate_config {
    uint64_t requests_per_s, bytes_per_s;               /* of the node; 0: no limit */
    uint64_t client_requests_per_s, client_bytes_per_s; /* of each client */
    unsigned active;                                    /* requests that run at once */
    unsigned waiting;                                   /* most that wait */
};

/* Who asks. */
struct gate_who {
    const struct bucket *bucket; /* NULL: of none */
    const struct user *user;     /* NULL: the node's own pair, a trusted uid, or nobody */
    struct slice client;         /* address or session */
    bool background;             /* nobody waits for it */
    bool may_refuse;             /* when too many wait; or else it is let through */
};

/* One request inside; zeroed: not inside. */
struct gate_pass {
    struct gate_node *nodes[6];
    uint64_t estimate;
    bool background;
    uint64_t since_ns;              /* inside since; 0: it still waits */
    struct gate_pass *next, **link; /* of those inside: it stays where it is until it left */
};

struct gate *gate_new(const struct gate_config *config);
/* Nobody is inside. */
void gate_free(struct gate *g);
/* A bucket or a user has limits, or a share other than the usual one: from now on requests are looked at.
 * Told when such a one is loaded or made; looking at them does no harm when they are gone again. */
void gate_close(struct gate *g);
/* Whether requests are looked at at all. */
bool gate_is_closed(const struct gate *g);
/* Lets everybody through from now on, also those who wait: the node stops. */
void gate_open(struct gate *g);
/* Waits. -EBUSY: too many wait already. */
int gate_enter(struct gate *g, const struct gate_who *who, struct gate_pass *ret, struct err *e);
/* bytes: read and written. Accepts a pass that is not inside. */
void gate_leave(struct gate *g, struct gate_pass *p, uint64_t bytes);
/* What was moved without passing: charged, so that later requests wait. */
void gate_charge(struct gate *g, const struct gate_who *who, uint64_t bytes);
/* {active, waiting, waited, refused, limits: [{limit, name, requests, bytes, waited, waited_ms, refused}]} */
json_t *gate_json(struct gate *g);
