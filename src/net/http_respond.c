/*
 * The response side of an HTTP connection: head, body, and the rest that is left to the server (contract in
 * http_conn.h). The request side is in http_conn.c.
 *
 * Invariants:
 *  1. A response has exactly the bytes that its head announced, or its connection is closed behind it: a cut
 * response is never followed by another one.
 *  2. The head waits in `out` until there is body to send with it, so that small answers leave in one packet;
 * bodies themselves are never held back.
 *  3. HEAD requests and 204 and 304 answers carry no body, whatever the handler writes.
 *  4. A tail's done is called exactly once, whether its bytes were sent, dropped or cut.
 *  5. With spare memory the end of a response waits for nobody: what the socket does not take is a rest, too,
 * whose bytes are counted as taken from the spare memory until they are sent or dropped.
 *
 * Failure modes: the first failed send is kept in `failed`; what follows is refused with it and the
 * connection is closed.
 */
#include "base/sys.h"
#include "base/text.h"
#include "net/http_conn_internal.h"

#include <poll.h>

/* Of a tail, most bytes sent at once. A client that takes them as fast as they come would hold its thread for
 * the whole of an object, however large, and others would wait. */
#define TURN_BYTES (2 * MIB)

#define OWN_LINES_BYTES 128 /* of a head: all but its reason, the common lines and the handler's */

struct http_rest {
    struct http_tail tail;
    uint64_t sent;       /* bytes of the tail given to the socket */
    struct arena *arena; /* the request's: tail.arg may lie in it */
    char *head; /* response head that the socket did not take, heap; without a tail also of the body */
    size_t head_at, head_n;
    struct budget *spare; /* from which head_n bytes were taken; NULL: none were */
    bool keep_alive;
    bool unreadable; /* the file gave an error */
};

void http_respond_reset(struct http_conn *c)
{
    assert(c->rest == NULL);
    buf_clear(&c->out);
    c->head_made = c->head_sent_any = c->chunked_out = c->close_after = c->cut = false;
    c->head_method = slice_eq_str(c->request.method, "HEAD");
    c->status = 0;
    c->failed = 0;
    c->announced = c->left = c->sent = 0;
}

bool http_conn_has_room(const struct http_conn *c)
{
    struct pollfd p = {.fd = c->stream.fd, .events = POLLOUT};
    return poll(&p, 1, /* timeout= */ 0) != 0;
}

bool http_conn_head_sent(const struct http_conn *c)
{
    return c->head_made;
}

int http_conn_status(const struct http_conn *c)
{
    return c->status;
}

uint64_t http_conn_taken(const struct http_conn *c)
{
    return c->taken;
}

uint64_t http_conn_sent(const struct http_conn *c)
{
    return c->sent;
}

void http_conn_close_after(struct http_conn *c)
{
    c->close_after = true;
    c->cut = c->cut || c->head_made;
}

/* ---- head ---- */

/* The lines that all answers have, with the time as it is: made once a second per thread. */
static struct slice common_lines(void)
{
    static _Thread_local char text[96];
    static _Thread_local size_t n;
    static _Thread_local uint64_t made_for_s;
    uint64_t now_ns = sys->real_ns(), now_s = now_ns / 1000000000;
    if (made_for_s != now_s || n == 0) {
        char date[32];
        text_http_date(now_ns, date);
        n = (size_t)snprintf(text, sizeof(text), "\r\nServer: forebay\r\nDate: %s\r\n", date);
        assert(n < sizeof(text));
        made_for_s = now_s;
    }
    return slice_of(text, n);
}

/* A body that the handler has not read: is it worth reading to keep the connection? */
static bool body_in_the_way(const struct http_conn *c)
{
    if (c->body == HTTP_BODY_NONE)
        return c->body_failed;
    return c->continue_due || c->body == HTTP_BODY_CHUNKED || c->body_left > HTTP_DRAIN_BYTES;
}

static bool without_body(const struct http_conn *c)
{
    return c->head_method || c->status == 204 || c->status == 304;
}

static char *put(char *to, struct slice s)
{
    if (s.n > 0)
        memcpy(to, s.p, s.n);
    return to + s.n;
}

/* Decimal digits and a line end; a printf costs more than the rest of a small answer's head. */
static char *put_number(char *to, uint64_t n)
{
    char text[24], *p = text + sizeof(text);
    *--p = '\n';
    *--p = '\r';
    do
        *--p = (char)('0' + n % 10);
    while ((n /= 10) > 0);
    return put(to, slice_of(p, (size_t)(text + sizeof(text) - p)));
}

static char *put_length(const struct http_conn *c, char *to, uint64_t n_bytes)
{
    if (c->status == 204 || c->status == 304)
        return to;
    if (n_bytes != UINT64_MAX)
        return put_number(put(to, SLICE_LIT("Content-Length: ")), n_bytes);
    return c->chunked_out ? put(to, SLICE_LIT("Transfer-Encoding: chunked\r\n")) : to;
}

static int build_head(struct http_conn *c, struct slice headers, uint64_t n_bytes)
{
    const char status[4] = {(char)('0' + c->status / 100), (char)('0' + c->status / 10 % 10),
                            (char)('0' + c->status % 10), ' '};
    struct slice reason = slice_str(http_reason(c->status)), common = common_lines();
    char *begin = buf_reserve(&c->out, reason.n + common.n + headers.n + OWN_LINES_BYTES), *to = begin;
    if (!begin)
        return -E2BIG;
    to = put(put(to, SLICE_LIT("HTTP/1.1 ")), slice_of(status, sizeof(status)));
    to = put_length(c, put(put(put(to, reason), common), headers), n_bytes);
    if (c->close_after)
        to = put(to, SLICE_LIT("Connection: close\r\n"));
    else if (c->request.minor == 0)
        to = put(to, SLICE_LIT("Connection: keep-alive\r\n"));
    to = put(to, SLICE_LIT("\r\n"));
    buf_used(&c->out, (size_t)(to - begin));
    return 0;
}

int http_conn_head(struct http_conn *c, int status, struct slice headers, uint64_t n_bytes)
{
    assert(c->magic == HTTP_CONN_MAGIC && !c->head_made && status >= 200 && status < 600);
    c->status = status;
    bool bare = without_body(c);
    bool until_close = n_bytes == UINT64_MAX && c->request.minor == 0 && !bare;
    c->chunked_out = n_bytes == UINT64_MAX && !until_close;
    if (c->draining || !c->request.keep_alive || until_close || body_in_the_way(c))
        c->close_after = true;
    int k = build_head(c, headers, n_bytes);
    if (k < 0) { /* headers beyond the stated maximum */
        buf_clear(&c->out);
        c->failed = k;
        c->close_after = true;
        return k;
    }
    c->chunked_out = c->chunked_out && !bare;
    c->head_made = true;
    c->announced = c->left = bare ? 0 : n_bytes;
    return 0;
}

/* ---- body ---- */

static int sent_or_failed(struct http_conn *c, int k, uint64_t n)
{
    if (k < 0) {
        c->failed = k;
        return k;
    }
    c->head_sent_any = true;
    c->sent += n;
    if (c->announced != UINT64_MAX)
        c->left -= n;
    return 0;
}

/* Checks that may precede any body: -EPIPE after a failure, and never more than was announced. */
static int may_send(struct http_conn *c, uint64_t n)
{
    assert(c->head_made && c->rest == NULL);
    if (c->failed)
        return c->failed;
    assert(c->announced == UINT64_MAX || n <= c->left);
    return 0;
}

/* What the socket did not take becomes a rest, if there is memory for it: the last all - gone bytes of the
 * pieces. */
static bool keep_rest(struct http_conn *c, const struct iovec iov[2], size_t gone)
{
    size_t n = iov[0].iov_len + iov[1].iov_len - gone, head_gone = MIN(gone, iov[0].iov_len);
    if (budget_try(c->spare, n) < 0)
        return false;
    struct http_rest *r = calloc(1, sizeof(*r));
    char *left = malloc(n + 1);
    if (!r || !left)
        abort();
    size_t head_left = iov[0].iov_len - head_gone;
    if (head_left > 0)
        memcpy(left, (char *)iov[0].iov_base + head_gone, head_left);
    if (n > head_left)
        memcpy(left + head_left, (char *)iov[1].iov_base + (gone - head_gone), n - head_left);
    *r = (struct http_rest){.head = left, .head_n = n, .spare = c->spare};
    c->rest = r;
    return true;
}

/* The head, if it waits still, and the last bytes of the body, without waiting for the client. */
static int send_last(struct http_conn *c, const void *p, size_t n)
{
    static char nothing[1];
    const struct iovec all[2] = {{.iov_base = c->out.n > 0 ? c->out.p : nothing, .iov_len = c->out.n},
                                 {.iov_base = n > 0 ? (void *)(uintptr_t)p : nothing, .iov_len = n}};
    struct iovec iov[2] = {all[0], all[1]};
    ssize_t sent = stream_sendv_now(c->stream, iov, 2, /* more= */ false);
    size_t gone = sent > 0 ? (size_t)sent : 0;
    int k = sent < 0 && sent != -EAGAIN ? (int)sent : 0;
    if (k == 0 && gone == all[0].iov_len + n)
        k = stream_flush_now(c->stream);
    bool is_left = k == -EAGAIN || (k == 0 && gone < all[0].iov_len + n);
    if (is_left && keep_rest(c, all, gone)) {
        k = 0;
    } else if (is_left && c->never_waits) {
        k = -ETIMEDOUT;
    } else if (is_left) {
        size_t head_gone = MIN(gone, all[0].iov_len);
        iov[0] = (struct iovec){(char *)all[0].iov_base + head_gone, all[0].iov_len - head_gone};
        iov[1] = (struct iovec){(char *)all[1].iov_base + (gone - head_gone), n - (gone - head_gone)};
        k = stream_sendv_all(c->stream, iov, 2);
    }
    buf_clear(&c->out);
    return sent_or_failed(c, k, n);
}

int http_conn_write(struct http_conn *c, const void *p, size_t n)
{
    assert(c->magic == HTTP_CONN_MAGIC);
    if (c->head_made && (without_body(c) || (n == 0 && c->rest)))
        return c->failed;
    int k = may_send(c, n);
    if (k < 0 || n == 0)
        return k;
    if (c->spare && n == c->left)
        return send_last(c, p, n);
    char size[24];
    int size_n = c->chunked_out ? snprintf(size, sizeof(size), "%zx\r\n", n) : 0;
    struct iovec iov[4] = {
        {.iov_base = c->out.p, .iov_len = c->out.n},
        {.iov_base = size, .iov_len = (size_t)size_n},
        {.iov_base = (void *)(uintptr_t)p, .iov_len = n},
        {.iov_base = (void *)(uintptr_t) "\r\n", .iov_len = c->chunked_out ? 2 : 0},
    };
    k = stream_sendv_all(c->stream, iov, 4);
    buf_clear(&c->out);
    return sent_or_failed(c, k, n);
}

static int flush_head(struct http_conn *c, bool more)
{
    if (c->out.n == 0)
        return 0;
    int k = stream_send_all(c->stream, c->out.p, c->out.n, more);
    buf_clear(&c->out);
    return sent_or_failed(c, k, 0);
}

int http_conn_send_head(struct http_conn *c)
{
    assert(c->magic == HTTP_CONN_MAGIC && c->head_made && c->rest == NULL);
    return c->failed ? c->failed : flush_head(c, /* more= */ false);
}

int http_conn_sendfile(struct http_conn *c, int fd, uint64_t offset, uint64_t n)
{
    assert(c->magic == HTTP_CONN_MAGIC);
    if (c->head_made && (without_body(c) || (n == 0 && c->rest)))
        return c->failed;
    int k = may_send(c, n);
    if (k < 0 || n == 0)
        return k;
    char frame[24];
    if (c->chunked_out) {
        int size_n = snprintf(frame, sizeof(frame), "%llx\r\n", (unsigned long long)n);
        k = buf_append(&c->out, frame, (size_t)size_n);
    }
    if (k == 0)
        k = flush_head(c, /* more= */ true);
    if (k == 0)
        k = stream_sendfile_all(c->stream, fd, offset, n);
    if (k == 0 && c->chunked_out)
        k = stream_send_all(c->stream, "\r\n", 2, /* more= */ false);
    return sent_or_failed(c, k, n);
}

int http_conn_reply(struct http_conn *c, int status, struct slice headers, struct slice body)
{
    int k = http_conn_head(c, status, headers, body.n);
    return k < 0 ? k : http_conn_write(c, body.p, body.n);
}

/* ---- tail ---- */

static void tail_done(const struct http_tail *t, uint64_t sent, bool whole)
{
    if (t->done)
        t->done(t->arg, sent, whole);
}

/* Small ranges go out behind the head as one packet. False: not sent, nothing changed. */
static bool tail_by_copy(struct http_conn *c, const struct http_tail *t)
{
    char part[HTTP_SMALL_BYTES];
    if (t->n > sizeof(part) || sys_pread_all(t->fd, part, (size_t)t->n, t->offset) < 0)
        return false;
    struct iovec iov[2] = {{.iov_base = c->out.p, .iov_len = c->out.n},
                           {.iov_base = part, .iov_len = (size_t)t->n}};
    size_t all = c->out.n + (size_t)t->n;
    ssize_t k = stream_sendv_now(c->stream, iov, 2, /* more= */ false);
    if (k < 0 && k != -EAGAIN) {
        (void)sent_or_failed(c, (int)k, 0);
        return false;
    }
    size_t gone = k < 0 ? 0 : (size_t)k;
    if (gone < all) { /* a part left: what is missing is sent as any other tail */
        size_t head_gone = MIN(gone, c->out.n);
        buf_consume(&c->out, head_gone);
        c->rest->sent = gone - head_gone;
        return false;
    }
    buf_clear(&c->out);
    c->rest->sent = t->n;
    return true;
}

void http_conn_tail(struct http_conn *c, const struct http_tail *t)
{
    assert(c->magic == HTTP_CONN_MAGIC && c->head_made && c->rest == NULL);
    if (without_body(c) || c->failed) {
        tail_done(t, 0, !c->failed);
        return;
    }
    assert(!c->chunked_out && (c->announced == UINT64_MAX || t->n == c->left));
    struct http_rest *r = c->unused ? TAKE_PTR(c->unused) : malloc(sizeof(*r));
    if (!r)
        abort();
    *r = (struct http_rest){.tail = *t};
    c->rest = r;
}

struct http_rest *http_conn_take_rest(struct http_conn *c)
{
    struct http_rest *r = TAKE_PTR(c->rest);
    assert(r != NULL);
    if (r->tail.done && !r->arena) { /* its argument may lie in the arena: it stays until the tail is done */
        r->arena = c->arena;
        c->arena = arena_new(HTTP_ARENA_BYTES);
    }
    return r;
}

static int send_rest_head(struct http_rest *r, struct stream s)
{
    while (r->head_at < r->head_n) {
        struct iovec iov = {.iov_base = r->head + r->head_at, .iov_len = r->head_n - r->head_at};
        ssize_t k = stream_sendv_now(s, &iov, 1, /* more= */ r->sent < r->tail.n);
        if (k < 0)
            return (int)k;
        r->head_at += (size_t)k;
    }
    return 0;
}

int http_rest_send(struct http_rest *r, struct stream s)
{
    uint64_t turn_end = r->sent + TURN_BYTES;
    int k = send_rest_head(r, s);
    while (k == 0 && r->sent < r->tail.n) {
        if (r->sent >= turn_end)
            return -EAGAIN;
        ssize_t n =
            stream_sendfile_now(s, r->tail.fd, r->tail.offset + r->sent, MIN(r->tail.n, turn_end) - r->sent);
        if (n > 0)
            r->sent += (uint64_t)n;
        else
            k = (int)n;
    }
    r->unreadable |= k == -EIO || k == -ENODATA; /* no socket says so; the latter: the file ends early */
    return k == 0 ? stream_flush_now(s) : k;
}

bool http_rest_keep_alive(const struct http_rest *r)
{
    return r->keep_alive;
}

static void rest_end(struct http_rest *r)
{
    if (r->unreadable && r->tail.unreadable)
        r->tail.unreadable(r->tail.arg, r->sent);
    tail_done(&r->tail, r->sent, r->sent == r->tail.n);
    if (r->spare)
        budget_give(r->spare, r->head_n);
    arena_free(r->arena);
    free(r->head);
}

void http_rest_free(struct http_rest *r)
{
    if (!r)
        return;
    rest_end(r);
    free(r);
}

/* Tries to send the whole rest now; what is left keeps its own copy of the unsent head. */
static enum http_next finish_rest(struct http_conn *c)
{
    struct http_rest *r = c->rest;
    r->keep_alive = !c->close_after;
    if (r->spare) /* the socket is full */
        return HTTP_NEXT_TAIL;
    int k = tail_by_copy(c, &r->tail) ? 0 : c->failed;
    if (k == 0) { /* also when all was taken: a part may wait in the stream */
        r->head = c->out.p;
        r->head_n = c->out.n;
        r->head_at = 0;
        k = http_rest_send(r, c->stream);
        r->head = NULL;
        if (k == -EAGAIN) {
            r->head = buf_take(&c->out);
            return HTTP_NEXT_TAIL;
        }
    }
    buf_clear(&c->out);
    c->sent += r->sent;
    rest_end(r);
    free(c->unused);
    c->unused = TAKE_PTR(c->rest); /* the next answer's */
    return k < 0 || c->close_after ? HTTP_NEXT_CLOSE : HTTP_NEXT_KEEP;
}

static int end_chunks(struct http_conn *c)
{
    int k = c->chunked_out && !c->cut && !c->failed ? buf_str(&c->out, "0\r\n\r\n") : 0;
    if (k < 0 || c->failed)
        return -EPIPE;
    return c->spare && c->out.n > 0 ? send_last(c, NULL, 0) : flush_head(c, /* more= */ false);
}

enum http_next http_respond_finish(struct http_conn *c)
{
    enum http_next next = HTTP_NEXT_KEEP;
    if (!c->head_made && !c->failed)
        (void)http_conn_reply(c, 500, SLICE_NULL, SLICE_NULL);
    if (!c->rest && (end_chunks(c) < 0 || (c->announced != UINT64_MAX && c->left > 0)))
        return HTTP_NEXT_CLOSE;
    if (c->rest)
        next = finish_rest(c);
    if (next == HTTP_NEXT_TAIL) {
        /* A body left unread would be taken for the next request. */
        if (c->body != HTTP_BODY_NONE && !http_conn_drop_body(c))
            c->rest->keep_alive = false;
        return next;
    }
    if (c->close_after && next == HTTP_NEXT_KEEP)
        next = HTTP_NEXT_CLOSE;
    if (next == HTTP_NEXT_KEEP && !http_conn_drop_body(c))
        return HTTP_NEXT_LINGER;
    /* Closing with unread bytes would reset the connection and take the answer away from the client. */
    if (next == HTTP_NEXT_CLOSE && !c->failed && !c->cut && (c->body != HTTP_BODY_NONE || c->in_n > c->in_at))
        return HTTP_NEXT_LINGER;
    return next;
}
