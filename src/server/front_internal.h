/* What front.c, front_http.c and front_wire.c share. */
#pragma once

#include "base/metrics.h"
#include "server/front.h"
#include "server/session.h"

#define WORKER_STACK_BYTES (256 * KIB)
#define WIRE_SMALL_BYTES   (64 * KIB) /* kept by each worker for wire bodies */
#define WIRE_ARENA_BYTES   (WIRE_BODY_MAX_BYTES + 256 * KIB)
#define PIPELINE_MAX       16 /* requests of one connection before others get a turn */
#define LINGER_MS          2000
#define LINGER_MAX_BYTES   (16 * MIB)

/* A thread and the buffers of the one request that it serves. */
struct worker {
    struct front *front;
    pthread_t thread;
    bool reserved;          /* the one that serves only express requests and turns the timer wheel */
    atomic_int active_kind; /* enum conn_kind of the request it runs, or -1 */
    struct http_conn *http;
    struct arena *arena; /* wire requests */
    struct buf in, out;  /* wire bodies; at most WIRE_SMALL_BYTES between requests */
};

struct front {
    uint32_t magic;
    struct front_config config;
    struct conn_table conns;
    struct session_table sessions;
    int epoll_fd;
    int kick_fd;    /* eventfd in the epoll set: makes one waiting worker look at the queue */
    int reserve_fd; /* eventfd of the reserved thread: all workers are busy */
    atomic_bool draining, stopping;
    atomic_size_t heads_bytes; /* of conn.pending */

    /* Workers. n_workers only grows; workers[0..n_workers) are set. */
    struct lock lock; /* ready list, spawning */
    struct conn *ready_first, *ready_last;
    atomic_uint n_ready, n_idle, n_workers;
    atomic_bool reserve_awake;
    struct worker *workers; /* config.threads of them */
    struct worker reserved;
    bool reserved_runs;
    struct conn *listeners[CONN_KIND_COUNT];
    atomic_bool listener_paused[CONN_KIND_COUNT]; /* out of descriptors: armed again by the reserved thread */

    struct metric_series *connections[CONN_KIND_COUNT];
};

/* ---- front.c ---- */
/* Gives the connection back to the epoll set; the caller does not touch it any more. EPOLLIN or EPOLLOUT. */
void front_arm(struct front *f, struct conn *c, uint32_t events);
/* Lets a worker take it up; the caller does not touch it any more. */
void front_enqueue(struct front *f, struct conn *c);
void front_close(struct front *f, struct conn *c);
/* Keeps bytes for later within the limit for heads: -ENOMEM. */
int front_keep_pending(struct front *f, struct conn *c, struct slice bytes);
void front_drop_pending(struct front *f, struct conn *c);

/* ---- front_http.c, front_wire.c: one event of a connection that the worker now owns ---- */
void front_http_event(struct worker *w, struct conn *c);
void front_wire_event(struct worker *w, struct conn *c);
/* What a wire connection needs beside struct conn, and its end. */
struct wire_conn *front_wire_new(struct front *f, int fd, enum conn_kind kind);
void front_wire_free(struct front *f, struct wire_conn *w);
