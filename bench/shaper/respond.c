/*
 * Responses: when they may begin, and what a fault makes of them.
 *
 * Faults apply to the body by its Content-Length. For a response without a body, truncate, reset and stall
 * act in the place of its head, and flip and wrong-length do nothing (a HEAD's Content-Length is changed by
 * wrong-length). Of a body without a length, truncate, reset and stall let `at` bytes through as they come
 * (none for the middle).
 *
 * Invariant: no byte of a response is sent before x->respond_at_ns.
 */
#include "conn_internal.h"

#include "base/sys.h"
#include "net/sock.h"

#include <errno.h>
#include <sys/socket.h>

#define STALL_LOOK_MS ((uint64_t)20) /* how often is looked whether it was released */
#define STALL_MAX_MS  ((uint64_t)3600000)

int respond_own(struct conn *c, int status, const char *type, struct slice body, bool head_only, bool keep)
{
    struct buf _cleanup_buf_ b = BUF_INIT(4 * KIB + body.n);
    int r = buf_printf(&b, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n%s\r\n", status,
                       status < 400 ? "OK" : "Error", type, body.n, keep ? "" : "Connection: close\r\n");
    if (r == 0 && !head_only)
        r = buf_slice(&b, body);
    return r < 0 ? r : sock_send_all(c->client.fd, b.p, b.n, /* flags= */ 0);
}

static const char *s3_code(int status)
{
    switch (status) {
    case 403:
        return "AccessDenied";
    case 404:
        return "NoSuchKey";
    case 500:
        return "InternalError";
    case 503:
        return "SlowDown";
    default:
        return "InjectedFault";
    }
}

/* Reads the request's body away. False: its end cannot be waited for. */
static bool drop_request_body(struct conn *c, const struct exchange *x)
{
    if (x->request.expects_continue && c->client.end == c->client.begin)
        return false; /* the client has not sent it and will not */
    if (x->request.body == BODY_CHUNKED)
        return false;
    return relay_drop(&c->client, x->request.body_bytes) == 0;
}

static int respond_error(struct conn *c, struct exchange *x, int status, const char *message)
{
    char body[512];
    int n = snprintf(body, sizeof(body),
                     "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>%s</Code><Message>%s %d"
                     "</Message><Resource>/</Resource><RequestId>0</RequestId></Error>",
                     s3_code(status), message, status);
    x->keep = drop_request_body(c, x) && !x->request.close;
    shape_wait(x->respond_at_ns);
    x->status = status;
    exchange_end(x);
    return respond_own(c, x->status, "application/xml", slice_of(body, (size_t)n), x->verb == VERB_HEAD,
                       x->keep);
}

int respond_status(struct conn *c, struct exchange *x)
{
    stats_fault(&c->sh->stats);
    return respond_error(c, x, x->fault.status, "Injected fault");
}

int respond_busy(struct conn *c, struct exchange *x)
{
    stats_busy(&c->sh->stats);
    return respond_error(c, x, 503, "Above the rate of requests that is let through:");
}

/* Parses the head at the front of the upstream's buffer. */
static int parse_front(struct conn *c, const struct exchange *x, struct head *ret)
{
    struct slice s = relay_side_view(&c->upstream);
    return head_parse_response(slice_sub(s, 0, head_length(s)), x->verb, ret);
}

int respond_interim(struct conn *c, struct exchange *x)
{
    struct head h;
    int r = parse_front(c, x, &h);
    if (r < 0)
        return r;
    if (h.status >= 200)
        return 0;
    shape_wait(x->respond_at_ns);
    r = sock_send_all(c->client.fd, h.raw.p, h.raw.n, /* flags= */ 0);
    relay_side_consume(&c->upstream, h.raw.n);
    return r < 0 ? r : 1;
}

/* Ends the client's connection by RST. */
static int reset_client(struct conn *c)
{
    struct linger hard = {.l_onoff = 1, .l_linger = 0};
    (void)setsockopt(c->client.fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    return -ECONNRESET;
}

/* The part of a cutting fault that comes when its bytes are through; 0 only after a stall that was waited
 * out. */
static int cut(struct conn *c, const struct exchange *x)
{
    stats_fault(&c->sh->stats);
    if (x->fault.kind == FAULT_TRUNCATE)
        return -EPIPE;
    if (x->fault.kind == FAULT_RESET)
        return reset_client(c);
    struct relay_side nothing = {.fd = -1};
    uint64_t end_ms = sys_mono_ms() + MIN(x->fault.stall_ms, STALL_MAX_MS);
    for (uint64_t now_ms;
         !faults_is_released(&c->sh->faults, &x->fault) && (now_ms = sys_mono_ms()) < end_ms;)
        if (relay_side_wait(&nothing, &c->client, (int)MIN(end_ms - now_ms, STALL_LOOK_MS)) != -ETIMEDOUT)
            return -EPIPE;
    return 0;
}

static bool cuts(const struct exchange *x)
{
    return x->fault.kind == FAULT_TRUNCATE || x->fault.kind == FAULT_RESET || x->fault.kind == FAULT_STALL;
}

/* The rest of a body, n bytes of one with a length. */
static int relay_body(struct conn *c, struct exchange *x, const struct head *h, uint64_t n)
{
    struct relay_flow flow = conn_flow(c, x, STATS_RESPONSE);
    flow.on_last = exchange_end;
    flow.arg = x;
    struct chunk_scan chunks = {0};
    ssize_t r = 0;
    switch (h->body) {
    case BODY_NONE:
        return 0;
    case BODY_LENGTH:
        return relay_bytes(&c->upstream, &c->client, n, &flow);
    case BODY_CHUNKED:
        while (r >= 0 && !chunks.done)
            r = relay_chunks_some(&c->upstream, &c->client, &chunks, &flow);
        return r < 0 ? (int)r : 0;
    case BODY_TO_END:
        while (r >= 0)
            r = relay_some(&c->upstream, &c->client, UINT64_MAX, &flow);
        return r == RELAY_ENDED ? 0 : (int)r;
    }
    return -EINVAL;
}

/* Lets `at` bytes through, cuts, and after a stall goes on. */
static int relay_cut(struct conn *c, struct exchange *x, const struct head *h)
{
    bool length = h->body == BODY_LENGTH;
    uint64_t half = length ? h->body_bytes / 2 : 0;
    uint64_t at = x->fault.at == FAULT_HALF ? half : x->fault.at;
    if (length)
        at = MIN(at, h->body_bytes);
    struct relay_flow flow = conn_flow(c, x, STATS_RESPONSE);
    int r = relay_bytes(&c->upstream, &c->client, at, &flow);
    if (r == 0)
        r = cut(c, x);
    if (r < 0 || (!length && at > 0))
        return r < 0 ? r : -EPIPE; /* where the scan of chunks would have to begin is not known any more */
    return relay_body(c, x, h, h->body_bytes - at);
}

/* Inverts the lowest bit of one byte. */
static int relay_flipped(struct conn *c, struct exchange *x, const struct head *h)
{
    uint64_t at = MIN(x->fault.at == FAULT_HALF ? h->body_bytes / 2 : x->fault.at, h->body_bytes - 1);
    struct relay_flow flow = conn_flow(c, x, STATS_RESPONSE);
    int r = relay_bytes(&c->upstream, &c->client, at, &flow);
    if (r == 0 && c->upstream.end == c->upstream.begin)
        r = (int)MIN(relay_side_fill(&c->upstream), 0);
    if (r < 0)
        return r;
    c->upstream.p[c->upstream.begin] ^= 1;
    stats_fault(&c->sh->stats);
    return relay_body(c, x, h, h->body_bytes - at);
}

/* Announces and sends one byte less; the last one is dropped. */
static int relay_shortened(struct conn *c, struct exchange *x, const struct head *h)
{
    uint64_t announced;
    if (slice_u64(h->length_value, &announced) < 0 || announced == 0)
        return -EINVAL;
    struct buf _cleanup_buf_ b = BUF_INIT(HEAD_MAX_BYTES + 32);
    size_t before = (size_t)(h->length_value.p - h->raw.p);
    int r = buf_slice(&b, slice_sub(h->raw, 0, before));
    r = r ? r : buf_printf(&b, "%llu", (unsigned long long)announced - 1);
    r = r ? r : buf_slice(&b, slice_from(h->raw, before + h->length_value.n));
    stats_fault(&c->sh->stats);
    if (h->body != BODY_LENGTH || h->body_bytes == 1)
        exchange_end(x);
    r = r ? r : sock_send_all(c->client.fd, b.p, b.n, /* flags= */ 0);
    if (r < 0)
        return r;
    if (h->body != BODY_LENGTH)
        return 0;
    r = relay_body(c, x, h, h->body_bytes - 1);
    return r < 0 ? r : relay_drop(&c->upstream, 1);
}

/* Head and body as they are, or with the exchange's fault. */
static int relay_response(struct conn *c, struct exchange *x, const struct head *h)
{
    bool empty = h->body == BODY_NONE || (h->body == BODY_LENGTH && h->body_bytes == 0);
    uint64_t announced = 0;
    (void)slice_u64(h->length_value, &announced);
    if (x->fault.kind == FAULT_WRONG_LENGTH && announced > 0)
        return relay_shortened(c, x, h);
    if (cuts(x) && empty) {
        int r = cut(c, x);
        if (r < 0)
            return r;
    }
    if (empty)
        exchange_end(x);
    int r = sock_send_all(c->client.fd, h->raw.p, h->raw.n, /* flags= */ 0);
    if (r < 0)
        return r;
    if (cuts(x) && !empty)
        return relay_cut(c, x, h);
    if (x->fault.kind == FAULT_FLIP && h->body == BODY_LENGTH && !empty)
        return relay_flipped(c, x, h);
    return relay_body(c, x, h, h->body_bytes);
}

int respond_final(struct conn *c, struct exchange *x)
{
    for (;;) {
        ssize_t n = conn_read_head(&c->upstream, &c->client);
        int r = n < 0 ? (int)n : respond_interim(c, x);
        if (r < 0)
            return r;
        if (r == 0)
            break;
    }
    struct head h;
    int r = parse_front(c, x, &h);
    if (r < 0)
        return r;
    char _cleanup_free_ *raw = slice_dup(h.raw);
    r = head_parse_response(slice_of(raw, h.raw.n), x->verb, &h);
    if (r < 0)
        return r;
    relay_side_consume(&c->upstream, h.raw.n);
    shape_wait(x->respond_at_ns);
    struct relay_flow flow = conn_flow(c, x, STATS_RESPONSE);
    relay_begin(&flow);
    x->status = h.status;
    r = relay_response(c, x, &h);
    relay_end(&flow);
    if (r < 0)
        return r;
    x->keep = !x->early && !h.close && !x->request.close;
    return 0;
}
