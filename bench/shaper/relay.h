/*
 * Moving bytes from one socket to another: buffered for heads and small bodies, by splice(2) for the rest,
 * paced and counted on the way. One thread per pair of sockets.
 */
#pragma once

#include "head.h"
#include "shape.h"
#include "stats.h"

#define RELAY_ENDED (-ENODATA) /* the source's stream ended; errors of the destination are never this */

struct relay_side {
    int fd;            /* -1: none */
    char *p;           /* HEAD_MAX_BYTES, owned */
    size_t begin, end; /* bytes read and not yet used */
};

void relay_side_init(struct relay_side *s);
/* Closes the socket, keeps the buffer. */
void relay_side_close(struct relay_side *s);
void relay_side_fini(struct relay_side *s);
struct slice relay_side_view(const struct relay_side *s);
void relay_side_consume(struct relay_side *s, size_t n);
/* Reads what is there, waiting for at least one byte. > 0, RELAY_ENDED, -E2BIG when the buffer is full. */
ssize_t relay_side_fill(struct relay_side *s);
/* The same, of which no more than `max` bytes are taken out of the socket. */
ssize_t relay_side_fill_some(struct relay_side *s, size_t max);
/* Waits until `s` has bytes (also buffered ones). -EPIPE when `other` (may be NULL) is closed by its peer
 * first, -ETIMEDOUT after timeout_ms (-1: none). */
int relay_side_wait(const struct relay_side *s, const struct relay_side *other, int timeout_ms);
/* Waits until `until_ns` on the monotonic clock, or until one of the two is closed by its peer; what they
 * send meanwhile stays where it is. */
void relay_sides_rest(const struct relay_side *a, const struct relay_side *b, uint64_t until_ns);

/* Where bytes go in the books: rates to wait for, counters to add to. */
struct relay_flow {
    struct shape_rate *own, *total;
    struct stats *stats;
    struct stats_key key;
    enum stats_direction direction;
    void (*on_last)(void *arg); /* before the last bytes of a body are sent; may be NULL */
    void *arg;
    int *pipe; /* two descriptors, made on first use; the caller closes them when they are not -1 */
};

/* Around each body that is relayed. */
void relay_begin(const struct relay_flow *flow);
void relay_end(const struct relay_flow *flow);
/* At most max bytes, at least one; max is what is left of the body. > 0, RELAY_ENDED, or an error of the
 * destination. */
ssize_t relay_some(struct relay_side *from, struct relay_side *to, uint64_t max,
                   const struct relay_flow *flow);
/* Exactly n bytes. */
int relay_bytes(struct relay_side *from, struct relay_side *to, uint64_t n, const struct relay_flow *flow);
/* Some of a chunked body, as it is. 0 or more, `c->done` at its end; -EINVAL for broken chunks. */
ssize_t relay_chunks_some(struct relay_side *from, struct relay_side *to, struct chunk_scan *c,
                          const struct relay_flow *flow);
/* n bytes that `s` sent, thrown away. */
int relay_drop(struct relay_side *s, uint64_t n);
