/*
 * Moving bytes; contract in relay.h.
 *
 * Invariants:
 *  1. Bytes are booked after they were read and before they are sent: waiting for a slow source books
 * nothing.
 *  2. A pipe is empty between calls, so that a connection can go on buffered or spliced at any point. When a
 *     splice out fails, the caller ends the connection and closes the pipe with what it holds.
 */
#include "relay.h"

#include "base/sys.h"
#include "net/sock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <time.h>

#define SPLICE_MIN_BYTES (64 * KIB) /* below, one copy is cheaper than two calls more */
#define PIPE_BYTES       MIB

void relay_side_init(struct relay_side *s)
{
    *s = (struct relay_side){.fd = -1, .p = malloc(HEAD_MAX_BYTES)};
    assert(s->p);
}

void relay_side_close(struct relay_side *s)
{
    int fd = TAKE_FD(s->fd);
    if (fd >= 0)
        (void)close(fd);
    s->begin = s->end = 0;
}

void relay_side_fini(struct relay_side *s)
{
    relay_side_close(s);
    free(TAKE_PTR(s->p));
}

struct slice relay_side_view(const struct relay_side *s)
{
    return slice_of(s->p + s->begin, s->end - s->begin);
}

void relay_side_consume(struct relay_side *s, size_t n)
{
    assert(n <= s->end - s->begin);
    s->begin += n;
    if (s->begin == s->end)
        s->begin = s->end = 0;
}

ssize_t relay_side_fill(struct relay_side *s)
{
    return relay_side_fill_some(s, HEAD_MAX_BYTES);
}

ssize_t relay_side_fill_some(struct relay_side *s, size_t max)
{
    if (s->begin > 0) {
        memmove(s->p, s->p + s->begin, s->end - s->begin);
        s->end -= s->begin;
        s->begin = 0;
    }
    if (s->end == HEAD_MAX_BYTES)
        return -E2BIG;
    ssize_t n = sock_recv_some(s->fd, s->p + s->end, MIN(max, HEAD_MAX_BYTES - s->end));
    if (n <= 0)
        return RELAY_ENDED;
    s->end += (size_t)n;
    return n;
}

int relay_side_wait(const struct relay_side *s, const struct relay_side *other, int timeout_ms)
{
    if (s->end > s->begin)
        return 0;
    struct pollfd p[2] = {{.fd = s->fd, .events = POLLIN},
                          {.fd = other ? other->fd : -1, .events = POLLRDHUP}};
    for (;;) {
        int n = poll(p, 2, timeout_ms);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n == 0 ? -ETIMEDOUT : -errno;
        return p[0].revents ? 0 : -EPIPE;
    }
}

void relay_sides_rest(const struct relay_side *a, const struct relay_side *b, uint64_t until_ns)
{
    struct pollfd p[2] = {{.fd = a->fd, .events = POLLRDHUP}, {.fd = b->fd, .events = POLLRDHUP}};
    for (uint64_t now; (now = sys->mono_ns()) < until_ns;) {
        uint64_t left = until_ns - now;
        struct timespec t = {.tv_sec = (time_t)(left / 1000000000u), .tv_nsec = (long)(left % 1000000000u)};
        if (ppoll(p, 2, &t, NULL) > 0)
            return;
    }
}

void relay_begin(const struct relay_flow *flow)
{
    uint64_t now = sys->mono_ns();
    shape_rate_begin(flow->own, now);
    shape_rate_begin(flow->total, now);
}

void relay_end(const struct relay_flow *flow)
{
    shape_rate_end(flow->own);
    shape_rate_end(flow->total);
}

/* What is left behind a piece and is small goes with it. */
static size_t piece(const struct relay_flow *flow, uint64_t max)
{
    uint64_t one = shape_piece(flow->own->bytes_per_s, flow->total->bytes_per_s);
    return (size_t)(max <= one + one / 4 ? max : one);
}

static void pace(const struct relay_flow *flow, size_t n)
{
    uint64_t now = sys->mono_ns();
    uint64_t own_lost, total_lost;
    uint64_t own = shape_rate_take(flow->own, n, now, &own_lost);
    uint64_t total = shape_rate_take(flow->total, n, now, &total_lost);
    if (own_lost || total_lost)
        stats_lost(flow->stats, flow->direction, own_lost, total_lost);
    shape_wait(MAX(own, total));
}

/* Books n bytes that are about to be sent: counted before, so that who has received a body finds it counted.
 */
static void book(const struct relay_flow *flow, size_t n, bool last)
{
    pace(flow, n);
    stats_bytes(flow->stats, flow->key, flow->direction, (int64_t)n);
    if (last && flow->on_last)
        flow->on_last(flow->arg);
}

static int unbook(const struct relay_flow *flow, size_t n, int r)
{
    stats_bytes(flow->stats, flow->key, flow->direction, -(int64_t)n);
    return r == RELAY_ENDED ? -EPIPE : r;
}

/* `n` bytes from the buffer of `from`. */
static ssize_t send_buffered(struct relay_side *from, struct relay_side *to, size_t n, bool last,
                             const struct relay_flow *flow)
{
    book(flow, n, last);
    int r = sock_send_all(to->fd, from->p + from->begin, n, /* flags= */ 0);
    if (r < 0)
        return unbook(flow, n, r);
    relay_side_consume(from, n);
    return (ssize_t)n;
}

static int make_pipe(int *fds)
{
    if (fds[0] >= 0)
        return 0;
    int made[2];
    if (pipe2(made, O_CLOEXEC) < 0)
        return -errno;
    (void)fcntl(made[0], F_SETPIPE_SZ, (int)PIPE_BYTES); /* smaller ones work too */
    fds[0] = made[0];
    fds[1] = made[1];
    return 0;
}

static ssize_t splice_some(int from, int to, size_t n, unsigned flags)
{
    ssize_t r;
    do
        r = splice(from, NULL, to, NULL, n, SPLICE_F_MOVE | flags);
    while (r < 0 && errno == EINTR);
    return r < 0 ? -errno : r;
}

/* The n bytes in the pipe; those that could not be sent are booked no more. */
static int empty_pipe(struct relay_side *to, size_t n, bool last, const struct relay_flow *flow)
{
    while (n > 0) {
        ssize_t out = splice_some(flow->pipe[0], to->fd, n, last ? 0 : SPLICE_F_MORE);
        if (out <= 0)
            return unbook(flow, n, out == 0 ? -EPIPE : (int)out);
        n -= (size_t)out;
    }
    return 0;
}

/* Up to n of the `max` bytes left, from the socket of `from` whose buffer is empty. */
static ssize_t send_spliced(struct relay_side *from, struct relay_side *to, size_t n, uint64_t max,
                            const struct relay_flow *flow)
{
    ssize_t in = splice_some(from->fd, flow->pipe[1], n, 0);
    if (in <= 0)
        return RELAY_ENDED;
    bool last = (uint64_t)in == max;
    book(flow, (size_t)in, last);
    int r = empty_pipe(to, (size_t)in, last, flow);
    return r < 0 ? r : in;
}

/* A body of one piece whose beginning came with its head: all of it is booked and sent at once, where the
 * rest is there. 0: it is not. */
static ssize_t send_joined(struct relay_side *from, struct relay_side *to, size_t max,
                           const struct relay_flow *flow)
{
    size_t here = from->end - from->begin;
    ssize_t in = splice_some(from->fd, flow->pipe[1], max - here, SPLICE_F_NONBLOCK);
    if (in <= 0)
        return in == -EAGAIN ? 0 : RELAY_ENDED;
    size_t n = here + (size_t)in;
    book(flow, n, /* last= */ n == max);
    int r = sock_send_all(to->fd, from->p + from->begin, here, MSG_MORE);
    if (r < 0)
        return unbook(flow, n, r);
    relay_side_consume(from, here);
    r = empty_pipe(to, (size_t)in, /* last= */ n == max, flow);
    return r < 0 ? r : (ssize_t)n;
}

ssize_t relay_some(struct relay_side *from, struct relay_side *to, uint64_t max,
                   const struct relay_flow *flow)
{
    size_t n = piece(flow, max);
    size_t here = from->end - from->begin;
    if (here == 0) {
        if (max >= SPLICE_MIN_BYTES && make_pipe(flow->pipe) == 0)
            return send_spliced(from, to, n, max, flow);
        ssize_t r = relay_side_fill(from);
        if (r < 0)
            return r;
    } else if (n == max && max >= here + SPLICE_MIN_BYTES && make_pipe(flow->pipe) == 0) {
        ssize_t r = send_joined(from, to, n, flow);
        if (r != 0)
            return r;
    }
    n = MIN(n, from->end - from->begin);
    return send_buffered(from, to, n, /* last= */ n == max, flow);
}

int relay_bytes(struct relay_side *from, struct relay_side *to, uint64_t n, const struct relay_flow *flow)
{
    while (n > 0) {
        ssize_t r = relay_some(from, to, n, flow);
        if (r < 0)
            return (int)r;
        n -= (uint64_t)r;
    }
    return 0;
}

ssize_t relay_chunks_some(struct relay_side *from, struct relay_side *to, struct chunk_scan *c,
                          const struct relay_flow *flow)
{
    if (from->begin == from->end) {
        ssize_t r = relay_side_fill(from);
        if (r < 0)
            return r;
    }
    struct slice s = relay_side_view(from);
    s.n = MIN(s.n, piece(flow, s.n));
    ssize_t n = chunk_scan(c, s);
    return n < 0 ? n : send_buffered(from, to, (size_t)n, /* last= */ c->done, flow);
}

int relay_drop(struct relay_side *s, uint64_t n)
{
    while (n > 0) {
        if (s->begin == s->end) {
            ssize_t r = relay_side_fill(s);
            if (r < 0)
                return (int)r;
        }
        size_t part = MIN(n, s->end - s->begin);
        relay_side_consume(s, part);
        n -= part;
    }
    return 0;
}
