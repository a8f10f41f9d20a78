/*
 * What a cluster of a given shape can be expected to do: rates, usable capacity, time to rebuild, mean time
 * to data loss. Pure arithmetic; the formulas and what they were checked against are in docs/PLANNING.md.
 */
#pragma once

#include "base/err.h"
#include "base/slice.h"

/* X(NAME, name, what it is) */
#define CAPACITY_LIMITS(X)                                                                                   \
    X(DISKS, "disks", "the disks of the nodes")                                                              \
    X(NETWORK, "network", "the network of the nodes")                                                        \
    X(CLIENTS, "clients", "the network of the clients")

enum capacity_limit {
#define X(NAME, name, doc) CAPACITY_##NAME,
    CAPACITY_LIMITS(X)
#undef X
        CAPACITY_LIMIT_COUNT
};

/* data pieces and pieces beside them: none is 1+0, mirror=N is 1+(N-1), ec=K+M is K+M. */
struct capacity_redundancy {
    uint64_t data, extra;
    bool coded; /* ec */
};

#define CAPACITY_PIECES_MAX 64
#define CAPACITY_MOST_S     1e100 /* as good as never; more would not be a number any more */

struct capacity_plan {
    uint64_t raw_bytes;        /* of all disks together */
    uint64_t nodes, disks;     /* disks of one node */
    uint64_t clients, readers; /* client machines, accelerators or processes on each */
    double disk_read_bytes_per_s, disk_write_bytes_per_s; /* of one disk */
    double node_bytes_per_s, client_bytes_per_s;          /* line rate of one machine, each direction */
    double efficiency; /* share of the line rate that carries bytes of files */
    struct capacity_redundancy redundancy;
    double rebuild_share; /* of disks and network that a rebuild may use, 0 to 1 */
    double grace_s;       /* from a failure to the begin of its rebuild */
    double disk_mttf_s;   /* mean time to failure of one disk */
};

/* Of one way of moving bytes: what each limit alone would allow, and the lowest of them. */
struct capacity_rate {
    double by_limit[CAPACITY_LIMIT_COUNT];
    double bytes_per_s;
    enum capacity_limit limit;
};

struct capacity_result {
    double usable_bytes;
    struct capacity_rate read, write; /* clients that know where bytes lie: mount, libforebay */
    struct capacity_rate read_any,
        write_any;                         /* S3 through any node: most bytes cross the network once more */
    double rebuild_disk_s, rebuild_node_s; /* 0: nothing to rebuild from */
    bool disk_into_new, node_into_new;     /* every other place has a piece of its stripes already */
    enum capacity_limit rebuild_limit;
    bool
        pieces_on_nodes; /* pieces of a stripe lie on different nodes; else on different disks of few nodes */
    double mttdl_s;      /* at most CAPACITY_MOST_S */
};

const char *capacity_limit_name(enum capacity_limit l);
const char *capacity_limit_text(enum capacity_limit l);

/* "none", "mirror=N", "ec=K+M". ERR_BAD_OPTION with a text that begins with `name`. */
int capacity_parse_redundancy(const char *text, const char *name, struct capacity_redundancy *ret,
                              struct err *e);
/* "100Gb" or "100Gbit/s" (bits, powers of 1000), "12.5GB/s" (bytes); bytes per second. */
int capacity_parse_rate(const char *text, const char *name, double *ret_bytes_per_s, struct err *e);
/* "32x8", or "32", which is 32x1. */
int capacity_parse_clients(const char *text, const char *name, uint64_t *ret_clients, uint64_t *ret_readers,
                           struct err *e);

/* ERR_BAD_OPTION: the redundancy needs more nodes and disks than there are, or a quantity is zero. */
int capacity_compute(const struct capacity_plan *p, struct capacity_result *ret, struct err *e);
