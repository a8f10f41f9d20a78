/*
 * One event of an HTTP connection: reading heads without blocking, running requests, sending what is left of
 * a response.
 *
 * Invariants:
 *  1. Every function that is given the connection ends by closing, arming or queueing it, exactly once.
 *  2. One read per event. A head that has begun keeps its deadline from its first byte, however slowly it
 * goes on.
 *  3. Pipelined requests are answered in order; after PIPELINE_MAX of them others get a turn.
 *
 * Failure modes: a head that is late is answered 408, one that cannot be parsed with the parser's status, one
 * for which there is no memory 503; all three close, after lingering so that the answer is not lost to a
 * reset.
 */
#include "server/front_internal.h"

#include "base/log.h"
#include "base/sys.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define TLS_HANDSHAKE_BYTE 22 /* content type of the first record of every TLS client (RFC 8446, 5.1) */

static struct stream stream_of(struct conn *c)
{
    return (struct stream){.fd = c->fd, .tls = c->tls, .pace = &c->pace};
}

/* Waits for the next request, or for the rest of a head. */
static void wait_for_head(struct front *f, struct conn *c)
{
    uint64_t now_ms = sys_mono_ms();
    c->phase = CONN_HEAD;
    if (c->pending_n > 0) {
        if (c->head_deadline_ms == 0)
            c->head_deadline_ms = now_ms + f->request_timeout_ms;
        conn_set_deadline(&f->conns, c, c->head_deadline_ms, /* exact= */ true);
    } else {
        c->head_deadline_ms = 0;
        conn_set_deadline(&f->conns, c, now_ms + f->idle_timeout_ms, /* exact= */ false);
    }
    front_arm_read(f, c);
}

static void wait_for_scrap(struct front *f, struct conn *c)
{
    uint64_t deadline_ms = MIN(sys_mono_ms() + LINGER_IDLE_MS, c->head_deadline_ms),
             end_ms = atomic_load(&f->linger_end_ms);
    conn_set_deadline(&f->conns, c, end_ms > 0 ? MIN(deadline_ms, end_ms) : deadline_ms, /* exact= */ true);
    front_arm(f, c, EPOLLIN);
}

/* The answer is out; a close now could take it away from a peer that is still sending. */
static void begin_linger(struct front *f, struct conn *c)
{
    c->phase = CONN_LINGER;
    c->linger_left_bytes = LINGER_MAX_BYTES;
    c->head_deadline_ms = sys_mono_ms() + LINGER_MS;
    if (c->tls)
        tls_end(c->tls);
    if (shutdown(c->fd, SHUT_WR) < 0) {
        front_close(f, c);
        return;
    }
    wait_for_scrap(f, c);
}

static void on_linger(struct worker *w, struct conn *c)
{
    char scrap[16 * KIB];
    ssize_t n = atomic_load(&c->expired) ? 0 : recv(c->fd, scrap, sizeof(scrap), MSG_DONTWAIT);
    bool more = n > 0 ? (uint64_t)n <= c->linger_left_bytes : n < 0 && (errno == EAGAIN || errno == EINTR);
    if (!more) {
        front_close(w->front, c);
        return;
    }
    c->linger_left_bytes -= n > 0 ? (uint64_t)n : 0;
    wait_for_scrap(w->front, c);
}

/* began_ns 0: it was not wanted when the request began. */
static void log_access(const struct http_conn *h, uint64_t began_ns)
{
    if (!log_enabled(LOG_LEVEL_DEBUG) || began_ns == 0)
        return;
    const struct http_request *r = http_conn_request(h);
    log_debug("http", "%s " SLICE_FMT " " SLICE_FMT " %d %llu bytes %.3f ms", http_conn_peer(h),
              SLICE_ARG(r->method), (int)MIN(r->raw_path.n, (size_t)1024), r->raw_path.p, http_conn_status(h),
              (unsigned long long)http_conn_sent(h), (double)(sys->mono_ns() - began_ns) / 1e6);
}

/* X(NAME, status, reason in metrics, text) */
#define REFUSALS(X)                                                                                          \
    X(LATE, 408, "timeout", "request head not complete in time")                                             \
    X(PLAIN, 400, "plain", "this port speaks TLS; write https:// in the address")                            \
    X(DRAINING, 503, "draining", "shutting down")                                                            \
    X(MEMORY, 503, "memory", "too many unfinished requests")

enum refusal {
#define X(NAME, status, reason, text) REFUSE_##NAME,
    REFUSALS(X)
#undef X
};

static void refuse_with(struct worker *w, struct conn *c, int status, const char *reason, const char *text)
{
    char line[256];
    snprintf(line, sizeof(line), "%s\n", text);
    metrics_count(METRIC_REFUSED, reason, NULL, NULL);
    if (log_enabled(LOG_LEVEL_DEBUG))
        log_debug("http", "%s refused: %d %s", http_conn_peer(w->http), status, text);
    enum http_next next = http_conn_refuse(w->http, status, line);
    http_conn_detach(w->http);
    if (next == HTTP_NEXT_LINGER)
        begin_linger(w->front, c);
    else
        front_close(w->front, c);
}

static void refuse(struct worker *w, struct conn *c, enum refusal why)
{
    switch (why) {
#define X(NAME, status, reason, text)                                                                        \
    case REFUSE_##NAME:                                                                                      \
        refuse_with(w, c, status, reason, text);                                                             \
        break;
        REFUSALS(X)
#undef X
    }
}

/* Keeps what was received, which was parsed, and lets the connection wait for the rest of its head. */
static void wait_with_pending(struct worker *w, struct conn *c)
{
    struct front *f = w->front;
    struct slice pending = http_conn_pending(w->http);
    int k = pending.n > 0 ? front_keep_pending(f, c, pending) : 0;
    if (k < 0) {
        refuse(w, c, REFUSE_MEMORY);
        return;
    }
    c->pending_is_part = true;
    http_conn_detach(w->http);
    wait_for_head(f, c);
}

/* Whether the reserved thread may serve it: nor does it wait for a body that nobody wants. */
static bool is_express(const struct front *f, const struct http_request *r)
{
    return !r->chunked && r->content_length == 0 && f->config.express(f->config.http_arg, r);
}

/* Leaves a request, parsed or not, to another worker. */
static void leave_to_others(struct worker *w, struct conn *c, struct slice received)
{
    struct front *f = w->front;
    if (front_keep_pending(f, c, received) < 0) {
        refuse(w, c, REFUSE_MEMORY);
        return;
    }
    http_conn_detach(w->http);
    c->phase = CONN_QUEUED;
    front_enqueue(f, c);
}

/* After the response of one request. True: the connection is still ours and goes on. */
static bool after_response(struct worker *w, struct conn *c, enum http_next next)
{
    struct front *f = w->front;
    if (next == HTTP_NEXT_KEEP && !atomic_load_explicit(&f->draining, memory_order_relaxed))
        return true;
    if (next == HTTP_NEXT_TAIL) {
        c->rest = http_conn_take_rest(w->http);
        struct slice pending = http_conn_pending(w->http);
        int k = pending.n > 0 ? front_keep_pending(f, c, pending) : 0;
        http_conn_detach(w->http);
        if (k < 0) {
            front_close(f, c);
            return false;
        }
        c->phase = CONN_REST;
        conn_wait_for_room(&f->conns, c, sys_mono_ms(), f->request_timeout_ms);
        front_arm(f, c, EPOLLOUT);
        return false;
    }
    http_conn_detach(w->http);
    if (next == HTTP_NEXT_LINGER)
        begin_linger(f, c);
    else
        front_close(f, c);
    return false;
}

/* Reads once. True: go on parsing; otherwise the connection is no longer ours. */
static bool receive(struct worker *w, struct conn *c)
{
    size_t room = http_conn_room(w->http);
    ssize_t n = http_conn_receive(w->http);
    /* What arrives later makes an event; with a full buffer, or the end, there may be something already. */
    c->drained = n == -EAGAIN || (n > 0 && (size_t)n < room && !c->ended);
    if (n > 0)
        return true;
    if (n == -EAGAIN) {
        wait_with_pending(w, c);
        return false;
    }
    /* The end of the stream, made by the peer or by the sweep. */
    if (n == 0 && atomic_load(&c->expired) && http_conn_pending(w->http).n > 0) {
        refuse(w, c, atomic_load(&w->front->draining) ? REFUSE_DRAINING : REFUSE_LATE);
        return false;
    }
    http_conn_detach(w->http);
    front_close(w->front, c);
    return false;
}

/* Runs the requests whose heads are there. `read_first`: the socket has something. */
static void serve(struct worker *w, struct conn *c, bool may_read)
{
    struct front *f = w->front;
    struct http_conn *h = w->http;
    http_conn_attach(h, stream_of(c), &c->peer.any, slice_of(c->pending, c->pending_n), c->pending_is_part);
    c->pending_is_part = false;
    front_drop_pending(f, c);
    http_conn_set_draining(h, atomic_load_explicit(&f->draining, memory_order_relaxed));
    for (int served = 0;;) {
        int status = 400;
        struct err e; /* not cleared whole: this runs three times a request */
        e.text[0] = '\0';
        int k = http_conn_pending(h).n > 0 ? http_conn_parse(h, &status, &e) : -EAGAIN;
        if (k == -EAGAIN) {
            if (!may_read) {
                wait_with_pending(w, c);
                return;
            }
            may_read = false;
            if (!receive(w, c))
                return;
            continue;
        }
        if (k < 0) {
            refuse_with(w, c, status, "head", e.text);
            return;
        }
        if ((w->reserved && !is_express(f, http_conn_request(h))) || served == PIPELINE_MAX) {
            leave_to_others(w, c, http_conn_received(h));
            return;
        }
        uint64_t began_ns = log_enabled(LOG_LEVEL_DEBUG) ? sys->mono_ns() : 0;
        c->head_deadline_ms = 0;
        stream_pace_reset(&c->pace);
        if (http_conn_awaits_body(h))
            front_unwatch(f, c);
        enum http_next next = http_conn_serve(h, f->config.http, f->config.http_arg);
        served++;
        log_access(h, began_ns);
        if (!after_response(w, c, next))
            return;
    }
}

/* The socket has room for more of a response. */
static void on_rest(struct worker *w, struct conn *c)
{
    struct front *f = w->front;
    int k = atomic_load(&c->expired) ? -ETIMEDOUT : http_rest_send(c->rest, stream_of(c));
    if (k == -EAGAIN) { /* an event of a socket that is full means that something left since */
        conn_wait_for_room(&f->conns, c, sys_mono_ms(), f->request_timeout_ms);
        front_arm(f, c, EPOLLOUT);
        return;
    }
    bool wants_more = http_rest_keep_alive(c->rest),
         keep = k == 0 && wants_more && !atomic_load(&f->draining);
    http_rest_free(TAKE_PTR(c->rest));
    if (k == 0 && !wants_more) { /* perhaps because of a body that is on its way still */
        begin_linger(f, c);
        return;
    }
    if (!keep) {
        /* What the socket still holds is of no use to a peer that takes nothing. */
        const struct linger at_once = {.l_onoff = 1, .l_linger = 0};
        if (k == -ETIMEDOUT)
            (void)setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
        front_close(f, c);
        return;
    }
    c->phase = CONN_HEAD;
    serve(w, c, /* may_read= */ false);
}

/* ---- TLS ---- */

/* The first byte shows who does not speak TLS. False: the connection is no longer ours. */
static bool begin_tls(struct worker *w, struct conn *c)
{
    struct front *f = w->front;
    uint8_t first = TLS_HANDSHAKE_BYTE;
    ssize_t n = recv(c->fd, &first, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
        front_close(f, c);
        return false;
    }
    if (first == TLS_HANDSHAKE_BYTE) {
        c->tls = tls_new(f->config.tls, c->fd);
        return true;
    }
    http_conn_attach(w->http, stream_of(c), &c->peer.any, SLICE_NULL, /* is_part= */ false);
    refuse(w, c, REFUSE_PLAIN);
    return false;
}

static void on_handshake(struct worker *w, struct conn *c)
{
    struct front *f = w->front;
    struct err e = {0};
    if (!c->tls && !begin_tls(w, c))
        return;
    int k = atomic_load(&c->expired) ? -ETIMEDOUT : tls_handshake(c->tls, &e);
    if (k == 0) {
        c->phase = CONN_HEAD;
        c->head_deadline_ms = 0;
        serve(w, c, /* may_read= */ true);
        return;
    }
    if (k == -EAGAIN) {
        conn_set_deadline(&f->conns, c, c->head_deadline_ms, /* exact= */ true);
        front_arm(f, c, tls_wants(c->tls) == POLLOUT ? EPOLLOUT : EPOLLIN);
        return;
    }
    metrics_count(METRIC_REFUSED, "handshake", NULL, NULL);
    log_debug("http", "TLS handshake refused: %s", e.text[0] ? e.text : err_text(k));
    front_close(f, c);
}

void front_http_event(struct worker *w, struct conn *c)
{
    switch ((enum conn_phase)c->phase) {
    case CONN_HANDSHAKE:
        on_handshake(w, c);
        break;
    case CONN_REST:
        on_rest(w, c);
        break;
    case CONN_LINGER:
        on_linger(w, c);
        break;
    case CONN_QUEUED:
        serve(w, c, /* may_read= */ false);
        break;
    default:
        serve(w, c, /* may_read= */ true);
        break;
    }
}
