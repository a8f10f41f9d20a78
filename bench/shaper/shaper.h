/* What all connections of the proxy share. */
#pragma once

#include "fault.h"
#include "shape.h"
#include "stats.h"

#define SHAPER_CONNECTIONS_MAX 1024

struct shaper {
    char upstream[128];         /* HOST:PORT */
    struct shape_rate total[2]; /* by direction */
    struct stats stats;
    struct faults faults;
    uint64_t cpu_ns;  /* used by connections that ended; atomic */
    struct lock lock; /* covers the rest */
    struct shape_delay delay;
    uint64_t draws;          /* delays drawn so far */
    uint64_t per_connection; /* bytes/s, each direction; 0: no limit */
    uint64_t slow_list_ns;   /* on top for LIST */
    struct shape_limit busy_above;
};

/* upstream: "HOST:PORT", shorter than 128. */
void shaper_init(struct shaper *sh, const char *upstream);
void shaper_fini(struct shaper *sh);
/* One setting by the name of its flag: first-byte, seed (its sequence begins anew), per-connection, total,
 * slow-list, busy-above, system. ERR_BAD_OPTION. */
int shaper_set(struct shaper *sh, const char *name, const char *value, struct err *e);
/* Time at which the response to a request whose head was complete at now_ns may begin. */
uint64_t shaper_respond_at(struct shaper *sh, enum head_kind kind, uint64_t now_ns);
/* Whether a request that came at now_ns is within --busy-above; else it is answered 503. */
bool shaper_admit(struct shaper *sh, uint64_t now_ns);
/* Accepts connections, one thread each, until stop_fd is readable. Threads in progress go on. 0 or -errno. */
int shaper_accept(struct shaper *sh, int listen_fd, int stop_fd);

/* conn.c: serves one client connection to its end and closes it. */
void conn_serve(struct shaper *sh, int client_fd);

/* control.c: whether the target is the proxy's own, and the answer to it: status, and a body of JSON. */
bool control_owns(struct slice target);
int control_answer(struct shaper *sh, struct slice method, struct slice target, struct buf *ret_body);

/* ceiling.c: measures the proxy itself, unshaped, between threads of this process, and prints what it found.
 */
int ceiling_run(void);
