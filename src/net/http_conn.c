/*
 * The request side of an HTTP connection: pending bytes, heads, bodies (contract in http_conn.h). The
 * response side is in http_respond.c.
 *
 * Invariants:
 *  1. head_end <= in_at <= in_n <= sizeof(in). The bytes of the current head stay where they are until the
 * next parse, because the request's slices point to them; body framing is read behind them.
 *  2. A byte is handed out once: as head, as body, or as pending byte of the next request.
 *  3. After body_failed nothing more is read: the position in the stream is unknown, the connection is
 * closed.
 *
 * Failure modes: a body that ends early gives -EPIPE, a broken chunk ERR_PROTOCOL, no byte within the
 * socket's SO_RCVTIMEO -ETIMEDOUT. Chunk extensions and trailers are dropped, both bounded.
 *
 * Source of the chunk grammar: RFC 9112 section 7.1.
 */
#include "net/http_conn_internal.h"

#include "base/sys.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/time.h>

#define CHUNK_LINE_MAX_BYTES 1024
#define TRAILER_MAX_BYTES    8192

#define IDS_AT_ONCE 1024

static atomic_uint_fast64_t next_id; /* the first that no connection has taken */

/* Threads take many at once: the counter would go from processor to processor with each request. */
static uint64_t take_id(struct http_conn *c)
{
    if (c->ids_left == 0) {
        c->id_next = atomic_fetch_add_explicit(&next_id, IDS_AT_ONCE, memory_order_relaxed) + 1;
        c->ids_left = IDS_AT_ONCE;
    }
    c->ids_left--;
    return c->id_next++;
}

struct http_conn *http_conn_new(void)
{
    struct http_conn *c = malloc(sizeof(*c)); /* not zeroed: most of it is the receive buffer */
    if (!c)
        abort();
    memset(c, 0, offsetof(struct http_conn, in));
    c->magic = HTTP_CONN_MAGIC;
    c->stream = stream_plain(-1);
    c->out = BUF_INIT(HTTP_OUT_MAX_BYTES);
    c->arena = arena_new(HTTP_ARENA_BYTES);
    return c;
}

void http_conn_free(struct http_conn *c)
{
    if (!c)
        return;
    assert(c->magic == HTTP_CONN_MAGIC);
    http_rest_free(c->rest);
    free(c->unused);
    arena_free(c->arena);
    buf_fini(&c->out);
    c->magic = 0;
    free(c);
}

void http_conn_attach(struct http_conn *c, struct stream s, const struct sockaddr *peer, struct slice pending,
                      bool is_part)
{
    assert(c->magic == HTTP_CONN_MAGIC && c->stream.fd < 0 && s.fd >= 0 && pending.n <= sizeof(c->in));
    c->stream = s;
    c->peer = peer;
    c->peer_text[0] = '\0';
    c->in_at = c->head_end = 0;
    c->in_n = pending.n;
    c->part_n = is_part ? pending.n : 0;
    if (pending.n > 0)
        memcpy(c->in, pending.p, pending.n);
    c->status = 0;
    c->sent = 0;
}

void http_conn_detach(struct http_conn *c)
{
    assert(c->magic == HTTP_CONN_MAGIC && c->rest == NULL);
    c->stream = stream_plain(-1);
    c->peer = NULL;
    arena_clear(c->arena);
}

void http_conn_set_spare(struct http_conn *c, struct budget *spare, bool may_wait)
{
    c->spare = spare;
    c->never_waits = !may_wait;
}

void http_conn_set_draining(struct http_conn *c, bool draining)
{
    c->draining = draining;
}

struct slice http_conn_pending(const struct http_conn *c)
{
    return slice_of(c->in + c->in_at, c->in_n - c->in_at);
}

struct slice http_conn_received(const struct http_conn *c)
{
    return slice_of(c->in, c->in_n);
}

size_t http_conn_room(const struct http_conn *c)
{
    return sizeof(c->in) - c->in_n;
}

bool http_conn_awaits_body(const struct http_conn *c)
{
    return c->body == HTTP_BODY_CHUNKED || (c->body == HTTP_BODY_LENGTH && c->body_left > c->in_n - c->in_at);
}

ssize_t http_conn_receive(struct http_conn *c)
{
    assert(c->stream.fd >= 0);
    size_t room = http_conn_room(c);
    assert(room > 0); /* heads are refused before they fill the buffer */
    ssize_t k = stream_recv_now(c->stream, c->in + c->in_n, room);
    c->in_n += k > 0 ? (size_t)k : 0;
    return k;
}

int http_conn_parse(struct http_conn *c, int *ret_status, struct err *e)
{
    assert(c->stream.fd >= 0);
    if (c->in_at > 0) {
        memmove(c->in, c->in + c->in_at, c->in_n - c->in_at);
        c->in_n -= c->in_at;
        c->in_at = c->head_end = 0;
    }
    const struct slice text = slice_of(c->in, c->in_n);
    int k = c->part_n > 0 && !http_head_may_end(text, c->part_n)
                ? -EAGAIN
                : http_parse_head(text, &c->request, ret_status, e);
    c->part_n = k == -EAGAIN ? text.n : 0;
    if (k < 0)
        return k;
    const struct http_request *r = &c->request;
    c->in_at = c->head_end = r->head_bytes;
    c->body = r->chunked ? HTTP_BODY_CHUNKED : r->content_length > 0 ? HTTP_BODY_LENGTH : HTTP_BODY_NONE;
    c->body_left = r->chunked ? 0 : r->content_length;
    c->taken = c->body_end_ms = 0;
    c->first_chunk = true;
    c->continue_due = r->expect_continue;
    c->body_failed = false;
    c->id = take_id(c);
    return 0;
}

enum http_next http_conn_serve(struct http_conn *c, http_handler_fn handler, void *arg)
{
    assert(c->stream.fd >= 0 && c->in_at > 0);
    arena_clear(c->arena);
    http_respond_reset(c);
    handler(c, arg);
    return http_respond_finish(c);
}

enum http_next http_conn_refuse(struct http_conn *c, int status, const char *text)
{
    assert(c->stream.fd >= 0);
    memset(&c->request, 0, offsetof(struct http_request, headers));
    c->request.n_headers = 0;
    c->request.minor = 1;
    c->request.keep_alive = false;
    c->body = HTTP_BODY_NONE;
    c->continue_due = c->body_failed = false;
    http_respond_reset(c);
    const char *head =
        status == 503 ? "Content-Type: text/plain\r\nRetry-After: 1\r\n" : "Content-Type: text/plain\r\n";
    (void)http_conn_reply(c, status, slice_str(head), slice_str(text));
    enum http_next next = http_respond_finish(c);
    if (next == HTTP_NEXT_TAIL) { /* it takes nothing, not even this */
        http_rest_free(http_conn_take_rest(c));
        return HTTP_NEXT_CLOSE;
    }
    /* Whatever the peer is still sending would turn the answer into a reset; the owner discards it for a
     * while. */
    return next == HTTP_NEXT_CLOSE && c->failed ? HTTP_NEXT_CLOSE : HTTP_NEXT_LINGER;
}

/* ---- what handlers ask ---- */

const struct http_request *http_conn_request(const struct http_conn *c)
{
    return &c->request;
}

struct arena *http_conn_arena(struct http_conn *c)
{
    return c->arena;
}

const char *http_conn_peer(const struct http_conn *c)
{
    struct http_conn *w =
        CAST_MAGIC(http_conn, (void *)(uintptr_t)c, HTTP_CONN_MAGIC); /* the text is a cache */
    char host[46], service[8];
    if (w->peer_text[0])
        return w->peer_text;
    socklen_t n = !c->peer                         ? 0
                  : c->peer->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                                   : sizeof(struct sockaddr_in);
    if (n == 0 || getnameinfo(c->peer, n, host, sizeof(host), service, sizeof(service),
                              NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return strcpy(w->peer_text, "local");
    bool v6 = strchr(host, ':') != NULL;
    snprintf(w->peer_text, sizeof(w->peer_text), "%s%s%s:%s", v6 ? "[" : "", host, v6 ? "]" : "", service);
    return w->peer_text;
}

uint64_t http_conn_id(const struct http_conn *c)
{
    return c->id;
}

bool http_conn_is_tls(const struct http_conn *c)
{
    return c->stream.tls != NULL;
}

/* ---- body ---- */

static ssize_t body_fail(struct http_conn *c, int code)
{
    c->body_failed = true;
    return code;
}

static ssize_t receive_body(struct http_conn *c, void *p, size_t n)
{
    if (c->body_end_ms > 0 && sys_mono_ms() >= c->body_end_ms)
        return -ETIMEDOUT;
    return stream_recv_some(c->stream, p, n);
}

/* Pending bytes first, then the socket. Large reads go straight into the caller's buffer. */
static ssize_t read_raw(struct http_conn *c, void *p, size_t n)
{
    size_t pending = c->in_n - c->in_at;
    if (pending == 0)
        return receive_body(c, p, n);
    n = MIN(n, pending);
    memcpy(p, c->in + c->in_at, n);
    c->in_at += n;
    return (ssize_t)n;
}

/* One line of the chunk framing, without its CRLF; the slice is valid until the next read. */
static int read_line(struct http_conn *c, size_t max, struct slice *ret)
{
    size_t scanned = 0;
    for (;;) {
        const char *from = c->in + c->in_at, *lf = memchr(from + scanned, '\n', c->in_n - c->in_at - scanned);
        size_t n = lf ? (size_t)(lf - from) : c->in_n - c->in_at;
        if (n > max || (lf && (n == 0 || lf[-1] != '\r')))
            return ERR_PROTOCOL;
        if (lf) {
            *ret = slice_of(from, n - 1);
            c->in_at += n + 1;
            /* A bare CR is one, which others may take for the end of the line. */
            return slice_has_control(*ret) ? ERR_PROTOCOL : 0;
        }
        scanned = n;
        if (c->in_at > c->head_end) { /* move what is there up to the head: at least 16 KiB are then free */
            memmove(c->in + c->head_end, from, n);
            c->in_at = c->head_end;
            c->in_n = c->head_end + n;
        }
        ssize_t k = receive_body(c, c->in + c->in_n, sizeof(c->in) - c->in_n);
        if (k < 0)
            return (int)k;
        c->in_n += (size_t)k;
    }
}

static int parse_chunk_size(struct slice line, uint64_t *ret)
{
    struct slice digits = slice_split(&line, ';');
    uint64_t v = 0;
    while (digits.n > 0 && (digits.p[digits.n - 1] == ' ' || digits.p[digits.n - 1] == '\t'))
        digits.n--; /* RFC 9112 7.1.1: blanks may stand before an extension, and nowhere else */
    if (digits.n == 0 || digits.n > 15)
        return ERR_PROTOCOL;
    for (size_t i = 0; i < digits.n; i++) {
        char c = digits.p[i];
        unsigned d = c >= '0' && c <= '9'   ? (unsigned)(c - '0')
                     : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a') + 10
                     : c >= 'A' && c <= 'F' ? (unsigned)(c - 'A') + 10
                                            : 16;
        if (d == 16)
            return ERR_PROTOCOL;
        v = v * 16 + d;
    }
    *ret = v;
    return 0;
}

/* Reads framing up to the data of the next chunk; at the last one also the trailers. */
static int next_chunk(struct http_conn *c)
{
    struct slice line;
    int k = 0;
    if (!c->first_chunk) {
        k = read_line(c, /* max= */ 2, &line);
        if (k == 0 && line.n != 0)
            k = ERR_PROTOCOL;
    }
    c->first_chunk = false;
    if (k == 0)
        k = read_line(c, CHUNK_LINE_MAX_BYTES, &line);
    if (k == 0)
        k = parse_chunk_size(line, &c->body_left);
    if (k < 0 || c->body_left > 0)
        return k;
    size_t trailers = 0;
    do {
        k = read_line(c, CHUNK_LINE_MAX_BYTES, &line);
        trailers += line.n;
        if (k == 0 && trailers > TRAILER_MAX_BYTES)
            k = ERR_PROTOCOL;
    } while (k == 0 && line.n > 0);
    if (k == 0)
        c->body = HTTP_BODY_NONE;
    return k;
}

ssize_t http_conn_read(struct http_conn *c, void *p, size_t n)
{
    assert(c->magic == HTTP_CONN_MAGIC && c->stream.fd >= 0);
    if (c->body_failed)
        return -EPIPE;
    if (c->body == HTTP_BODY_NONE || n == 0)
        return 0;
    if (c->continue_due) {
        c->continue_due = false;
        int k = c->head_made
                    ? 0
                    : stream_send_all(c->stream, "HTTP/1.1 100 Continue\r\n\r\n", 25, /* more= */ false);
        if (k < 0)
            return body_fail(c, k);
    }
    if (c->body == HTTP_BODY_CHUNKED && c->body_left == 0) {
        int k = next_chunk(c);
        if (k < 0)
            return body_fail(c, k);
        if (c->body == HTTP_BODY_NONE)
            return 0;
    }
    ssize_t k = read_raw(c, p, (size_t)MIN((uint64_t)n, c->body_left));
    if (k < 0)
        return body_fail(c, (int)k);
    c->body_left -= (uint64_t)k;
    c->taken += (uint64_t)k;
    if (c->body == HTTP_BODY_LENGTH && c->body_left == 0)
        c->body = HTTP_BODY_NONE;
    return k;
}

void http_conn_end_body(struct http_conn *c, uint64_t end_ms)
{
    c->body_end_ms = end_ms;
}

int http_conn_read_all(struct http_conn *c, struct buf *b)
{
    if (c->body == HTTP_BODY_LENGTH && c->body_left > b->max - b->n)
        return -E2BIG;
    char part[4096];
    http_conn_end_body(c, sys_mono_ms() + HTTP_WHOLE_MS);
    for (;;) {
        ssize_t k = http_conn_read(c, part, sizeof(part));
        if (k <= 0)
            return (int)k;
        int r = buf_append(b, part, (size_t)k);
        if (r < 0)
            return r;
    }
}

/* Shortens the socket's wait for bytes; *ret has the former one. False: it stays as it is. */
static bool shorten_wait(int fd, struct timeval *ret)
{
    const struct timeval brief = {.tv_usec = HTTP_HUSH_MS * 1000};
    socklen_t n = sizeof(*ret);
    if (getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, ret, &n) < 0)
        return false;
    bool longer = ret->tv_sec > 0 || ret->tv_usec == 0 || ret->tv_usec > brief.tv_usec;
    return longer && setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &brief, sizeof(brief)) == 0;
}

static bool drop_body(struct http_conn *c)
{
    char part[4096];
    uint64_t dropped = 0, end_ms = sys_mono_ms() + HTTP_DRAIN_MS;
    while (c->body != HTTP_BODY_NONE) {
        ssize_t k = http_conn_read(c, part, sizeof(part));
        dropped += k > 0 ? (uint64_t)k : 0;
        if (k < 0 || dropped > HTTP_DRAIN_BYTES || (c->body != HTTP_BODY_NONE && sys_mono_ms() > end_ms))
            return false;
    }
    return !c->body_failed;
}

bool http_conn_drop_body(struct http_conn *c)
{
    struct timeval kept;
    if (c->body == HTTP_BODY_NONE)
        return !c->body_failed;
    bool shortened = shorten_wait(c->stream.fd, &kept);
    bool whole = drop_body(c);
    if (shortened) /* cannot fail: the same value was there before */
        (void)setsockopt(c->stream.fd, SOL_SOCKET, SO_RCVTIMEO, &kept, sizeof(kept));
    return whole;
}
