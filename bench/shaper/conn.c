/*
 * One client connection: its requests in turn, each passed on over an upstream connection of its own.
 *
 * Invariants:
 *  1. Heads and bodies pass unchanged; Host above all, because signatures cover it. Only faults change bytes.
 *  2. What a client would see without the proxy it sees with it: an upstream that closes, resets or refuses
 * the connection has the client's connection closed, and the reverse.
 *  3. Each request is counted once, at its complete head, and ended once, before its last byte is sent: who
 * has received a response finds it in the counters.
 */
#include "conn_internal.h"

#include "base/sys.h"
#include "net/sock.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#define CONNECT_TIMEOUT_MS 10000
#define LINGER_MS          2000
#define HEAD_STEP_BYTES    ((size_t)2048) /* what comes behind a head is not copied here */

struct relay_flow conn_flow(struct conn *c, const struct exchange *x, enum stats_direction d)
{
    return (struct relay_flow){.own = &c->own[d],
                               .total = &c->sh->total[d],
                               .stats = &c->sh->stats,
                               .key = x->key,
                               .direction = d,
                               .pipe = c->pipe};
}

void exchange_end(void *exchange)
{
    struct exchange *x = exchange;
    if (!x->ended)
        stats_end(x->stats, x->key, x->status);
    x->ended = true;
}

ssize_t conn_read_head(struct relay_side *s, const struct relay_side *other)
{
    for (;;) {
        size_t n = head_length(relay_side_view(s));
        if (n > 0)
            return (ssize_t)n;
        if (s->end == s->begin) {
            int r = relay_side_wait(s, other, /* timeout_ms= */ -1);
            if (r < 0)
                return r;
        }
        ssize_t r = relay_side_fill_some(s, HEAD_STEP_BYTES);
        if (r < 0)
            return r;
    }
}

/* Closes without losing what was sent: bytes still on their way from the client would make the kernel reset
 * it. */
static void linger(struct conn *c)
{
    (void)shutdown(c->client.fd, SHUT_WR);
    uint64_t until = sys_mono_ms() + LINGER_MS;
    char scrap[16384];
    for (uint64_t now; (now = sys_mono_ms()) < until;) {
        struct pollfd p = {.fd = c->client.fd, .events = POLLIN};
        if (poll(&p, 1, (int)(until - now)) <= 0 ||
            recv(c->client.fd, scrap, sizeof(scrap), MSG_DONTWAIT) <= 0)
            break;
    }
}

static void no_delay(int fd)
{
    int one = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

/* The next part of the request's body. 0 or more; *ret_done at its end. */
static ssize_t send_body_some(struct conn *c, const struct exchange *x, struct chunk_scan *chunks,
                              uint64_t *left, bool *ret_done)
{
    struct relay_flow flow = conn_flow(c, x, STATS_REQUEST);
    ssize_t n;
    if (x->request.body == BODY_CHUNKED) {
        n = relay_chunks_some(&c->client, &c->upstream, chunks, &flow);
        *ret_done = chunks->done;
    } else {
        n = relay_some(&c->client, &c->upstream, *left, &flow);
        *left -= n > 0 ? (uint64_t)n : 0;
        *ret_done = *left == 0;
    }
    return n;
}

/* Passes on the request's body, and interim responses meanwhile. Stops at an early final response. */
static int send_body(struct conn *c, struct exchange *x)
{
    struct chunk_scan chunks = {0};
    uint64_t left = x->request.body_bytes;
    bool done = x->request.body == BODY_NONE || (x->request.body == BODY_LENGTH && left == 0);
    while (!done) {
        struct pollfd p[2] = {{.fd = c->client.fd, .events = POLLIN},
                              {.fd = c->upstream.fd, .events = POLLIN}};
        bool buffered = c->client.end > c->client.begin;
        if (poll(p, 2, buffered ? 0 : -1) < 0 && errno != EINTR)
            return -errno;
        if (p[1].revents) {
            ssize_t n = conn_read_head(&c->upstream, NULL);
            int r = n < 0 ? (int)n : respond_interim(c, x);
            if (r < 0)
                return r;
            x->early = r == 0;
            if (x->early)
                return 0;
        } else if (buffered || p[0].revents) {
            ssize_t n = send_body_some(c, x, &chunks, &left, &done);
            if (n < 0)
                return (int)n;
        }
    }
    return 0;
}

/* Where the request goes; the connection is made with the first request. */
static int reach_upstream(struct conn *c)
{
    if (c->upstream.fd >= 0)
        return 0;
    int r = sock_connect_tcp(c->sh->upstream, CONNECT_TIMEOUT_MS, &c->upstream.fd, NULL);
    if (r == 0)
        no_delay(c->upstream.fd);
    return r;
}

static int pass_on(struct conn *c, struct exchange *x)
{
    int r = reach_upstream(c);
    if (r < 0)
        return r;
    r = sock_send_all(c->upstream.fd, x->request.raw.p, x->request.raw.n, /* flags= */ 0);
    if (r < 0)
        return r;
    struct relay_flow flow = conn_flow(c, x, STATS_REQUEST);
    relay_begin(&flow);
    r = send_body(c, x);
    relay_end(&flow);
    if (r < 0)
        return r;
    if (!x->early) /* nothing may be sent before; so nobody is woken for each part of what comes meanwhile */
        relay_sides_rest(&c->client, &c->upstream, x->respond_at_ns);
    return respond_final(c, x);
}

static void take_rates(struct conn *c)
{
    lock_take(&c->sh->lock);
    uint64_t rate = c->sh->per_connection;
    lock_drop(&c->sh->lock);
    for (int d = 0; d < 2; d++)
        if (c->own[d].bytes_per_s != rate)
            shape_rate_set(&c->own[d], rate);
}

/* One S3 request, its head complete since now_ns. */
static bool serve_request(struct conn *c, const struct head *request, uint64_t now_ns)
{
    struct exchange x = {.stats = &c->sh->stats,
                         .request = *request,
                         .verb = head_verb(request->method),
                         .kind = head_kind(request)};
    take_rates(c);
    x.key = stats_begin(&c->sh->stats, x.verb, x.kind, request->range_bytes);
    x.respond_at_ns = shaper_respond_at(c->sh, x.kind, now_ns);
    int r;
    if (!shaper_admit(c->sh, now_ns)) {
        r = respond_busy(c, &x);
    } else {
        faults_take(&c->sh->faults, request->method, request->target, &x.fault);
        r = x.fault.kind == FAULT_STATUS ? respond_status(c, &x) : pass_on(c, &x);
    }
    if (r < 0)
        x.status = 0;
    exchange_end(&x);
    if (r == 0 && !x.keep)
        linger(c);
    return r == 0 && x.keep;
}

static bool serve_control(struct conn *c, const struct head *request)
{
    if (request->body == BODY_CHUNKED || relay_drop(&c->client, request->body_bytes) < 0)
        return false;
    struct buf _cleanup_buf_ b = BUF_INIT(MIB);
    int status = control_answer(c->sh, request->method, request->target, &b);
    int r = respond_own(c, status, "application/json", buf_view(&b), head_verb(request->method) == VERB_HEAD,
                        !request->close);
    return r == 0 && !request->close;
}

/* Reads and serves one request; false at the end of the connection. */
static bool serve_next(struct conn *c)
{
    ssize_t n = conn_read_head(&c->client, c->upstream.fd >= 0 ? &c->upstream : NULL);
    if (n < 0) {
        if (n == -E2BIG)
            (void)respond_own(c, 431, "text/plain", SLICE_LIT("head too large\n"), false, false);
        return false;
    }
    uint64_t now_ns = sys->mono_ns();
    struct head h;
    char _cleanup_free_ *raw = slice_dup(slice_sub(relay_side_view(&c->client), 0, (size_t)n));
    relay_side_consume(&c->client, (size_t)n);
    if (head_parse_request(slice_of(raw, (size_t)n), &h) < 0) {
        (void)respond_own(c, 400, "text/plain", SLICE_LIT("not an HTTP/1.x request\n"), false, false);
        linger(c);
        return false;
    }
    return control_owns(h.target) ? serve_control(c, &h) : serve_request(c, &h, now_ns);
}

void conn_serve(struct shaper *sh, int client_fd)
{
    struct conn c = {.sh = sh, .pipe = {-1, -1}};
    relay_side_init(&c.client);
    relay_side_init(&c.upstream);
    shape_rate_init(&c.own[STATS_REQUEST], 0);
    shape_rate_init(&c.own[STATS_RESPONSE], 0);
    c.client.fd = client_fd;
    no_delay(client_fd);
    while (serve_next(&c))
        ;
    relay_side_fini(&c.upstream);
    relay_side_fini(&c.client);
    shape_rate_fini(&c.own[STATS_REQUEST]);
    shape_rate_fini(&c.own[STATS_RESPONSE]);
    for (int i = 0; i < 2; i++)
        if (c.pipe[i] >= 0)
            (void)close(c.pipe[i]);
}
