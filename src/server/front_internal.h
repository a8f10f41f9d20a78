/* What front.c, front_http.c and front_wire.c share. */
#pragma once

#include "base/metrics.h"
#include "server/front.h"
#include "server/session.h"

#define WORKER_STACK_BYTES (256 * KIB)
#define WIRE_SMALL_BYTES   (64 * KIB) /* kept by each worker for wire bodies */
#define WIRE_ARENA_BYTES   (WIRE_BODY_MAX_BYTES + 256 * KIB)
#define PIPELINE_MAX       16    /* requests of one connection before others get a turn */
#define LINGER_IDLE_MS     5000  /* without a byte more: on a machine with much to do a peer stands still */
#define LINGER_MS          30000 /* all in all */
#define LINGER_MAX_BYTES   (16 * MIB)
#define LINGER_STOP_MS     2000 /* once the node stops */

#define CACHE_LINE_BYTES                                                                                     \
    64 /* what one thread changes all the time lies in no line that another one reads                        \
        */

/* A thread and the buffers of the one request that it serves. */
struct worker {
    _Alignas(CACHE_LINE_BYTES) struct front *front;
    pthread_t thread;
    _Atomic pid_t tid;      /* of the thread */
    int stat_fd;            /* what the kernel says of it, kept by the reserved thread; -1: not open */
    bool reserved;          /* the one that watches the others and serves only express requests */
    atomic_int active_kind; /* enum conn_kind of the request it runs, or -1 */
    _Atomic uint64_t busy_since_ns; /* monotonic; 0: it waits or is parked */
    struct http_conn *http;
    struct arena *arena; /* wire requests */
    struct buf in, out;  /* wire bodies; at most WIRE_SMALL_BYTES between requests */
};

struct front {
    uint32_t magic;
    struct front_config config;
    struct conn_table conns;
    struct session_table sessions;
    _Atomic uint64_t request_timeout_ms, idle_timeout_ms; /* as last set; those in config are the first */
    int epoll_fd;
    int kick_fd;    /* eventfd in the epoll set: makes one waiting worker look at the ready list */
    int reserve_fd; /* eventfd of the reserved thread: no worker waits any more */
    atomic_bool draining, stopping;
    _Atomic uint64_t linger_end_ms; /* of all connections that linger, monotonic; 0: the node does not stop */
    atomic_size_t heads_bytes;      /* of conn.pending */
    struct budget *answers;         /* of what conn.rest holds in memory */
    atomic_uint n_waiting;          /* workers that wait for a client's bytes, or for it to take some */

    struct lock lock; /* ready list, n_parked, n_called */
    struct conn *ready_first, *ready_last;
    atomic_uint n_ready;

    unsigned leaders;  /* workers that shall wait in the epoll set; further ones are parked */
    unsigned n_parked; /* workers that wait for `called` */
    unsigned n_called; /* of them may go */
    struct cond called;
    _Alignas(CACHE_LINE_BYTES) atomic_uint n_idle; /* workers that wait in the epoll set, or are about to */
    _Alignas(CACHE_LINE_BYTES) atomic_uint n_workers;
    unsigned n_joined;      /* of the workers, while stopping */
    struct worker *workers; /* config.threads of them, n_workers set */
    struct worker reserved;
    bool reserved_runs;
    atomic_bool reserve_awake;

    struct conn *listeners[CONN_KIND_COUNT];
    atomic_bool listener_paused[CONN_KIND_COUNT]; /* out of descriptors or not watched: armed again at the
                                                     next tick */
    struct metric_series *connections[CONN_KIND_COUNT];
};

/* ---- front.c ---- */
/* Lets the connection go until one event, EPOLLIN or EPOLLOUT; the caller does not touch it any more. */
void front_arm(struct front *f, struct conn *c, uint32_t events);
/* Lets a worker take it up; the caller does not touch it any more. */
void front_enqueue(struct front *f, struct conn *c);
/* From now on this thread takes a connection off the ready list before it does anything else where *flag was
 * set: by itself, when it put one there that it has to look at once more. */
void front_looks_next(bool *flag);
/* The same until there is something to read, which may be so already: with TLS not all that was received is
 * in the socket. */
void front_arm_read(struct front *f, struct conn *c);
/* A body comes: its owner reads it, and no event of what arrives is for anybody else. */
void front_unwatch(struct front *f, struct conn *c);
void front_close(struct front *f, struct conn *c);
/* Keeps bytes for later within the limit for heads: -ENOMEM. */
int front_keep_pending(struct front *f, struct conn *c, struct slice bytes);
void front_drop_pending(struct front *f, struct conn *c);

/* First connection of the ready list, or NULL. */
struct conn *front_dequeue(struct front *f);
/* A listener has an event: takes some connections, then lets another thread have the next ones. */
void front_accept(struct front *f, struct conn *listener);
void front_resume_listeners(struct front *f);
/* Signals and clears an eventfd. */
void front_kick(int fd);
void front_calm(int fd);

/* ---- front_workers.c ---- */
int front_workers_start(struct front *f, struct err *e);
/* Ends and joins all threads; may be called again. */
void front_workers_stop(struct front *f);
void front_workers_free(struct front *f);
/* Workers that run a wire request, and not yet for so long that they must be waiting for something. */
unsigned front_at_work(struct front *f);

/* ---- front_http.c, front_wire.c: one event of a connection that the worker now owns ---- */
void front_http_event(struct worker *w, struct conn *c);
void front_wire_event(struct worker *w, struct conn *c);
/* What a wire connection needs beside struct conn, and its end. */
struct wire_conn *front_wire_new(struct front *f, int fd, enum conn_kind kind);
void front_wire_free(struct front *f, struct wire_conn *w, int fd); /* the connection's, still open */
