/*
 * One connection of a client: connecting, HELLO, and one call.
 *
 * Invariants:
 *  1. A call that did not end as CLIENT_ANSWERED leaves the stream out of step: the connection is freed, not
 * used again.
 *  2. CLIENT_UNSEEN is said only when not all bytes of the request left this process, so that the node cannot
 * have decoded it.
 *
 * Failure modes: system errors of the socket, -ETIMEDOUT, ERR_PROTOCOL for a reply that does not fit; the
 * node's own failures with their text.
 */
#include "client/client_internal.h"

#include "base/sys.h"
#include "net/sock.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/hmac.h>
#include <poll.h>
#include <sys/socket.h>

#define SEND_AT_ONCE_BYTES    (32 * KIB) /* as much as a socket surely takes without waiting for its reader */
#define HELLO_REPLY_MAX_BYTES (64 * KIB)
#define NONCE_MAX_BYTES       1024
#define SIGNATURE_BYTES       32
#define POLL_MAX_MS           3600000

void client_conn_free(struct client_conn *conn)
{
    if (!conn)
        return;
    macro_close(&conn->fd);
    free(conn);
}

bool client_conn_is_alive(const struct client_conn *conn)
{
    struct pollfd p = {.fd = conn->fd, .events = POLLIN};
    return poll(&p, 1, 0) == 0;
}

/* ---- one call ---- */

/* Waits until the reply begins: by poll, because who waits in recv on a Unix socket is woken, too, when the
 * node takes the request, for nothing. */
static int wait_reply(int fd, const struct client_patience *patience)
{
    uint64_t end_ms = sys_mono_ms() + patience->ms;
    bool asks = patience->go_on != NULL;
    for (;;) {
        uint64_t now_ms = sys_mono_ms(), until_ms = end_ms - (asks ? patience->ask_ms : 0);
        uint64_t most_ms = patience->is_unwanted ? CLIENT_LOOK_MS : POLL_MAX_MS;
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int k = poll(&p, 1, now_ms < until_ms ? (int)MIN(until_ms - now_ms, most_ms) : 0);
        if (k > 0)
            return 0;
        if (k < 0 && errno != EINTR)
            return -errno;
        if (patience->is_unwanted && patience->is_unwanted())
            return -EINTR;
        if (k < 0 || now_ms < until_ms)
            continue;
        if (!asks)
            return -ETIMEDOUT;
        asks = patience->go_on(patience->arg); /* else it may come in the rest of the time */
        if (asks)
            end_ms = sys_mono_ms() + patience->ms;
    }
}

static int failed_reply(int status, const struct buf *b, struct err *e)
{
    struct slice text;
    if (wire_error_decode(buf_view(b), &text) < 0)
        return err_set(e, ERR_PROTOCOL, "broken error reply");
    return err_set(e, status, SLICE_FMT, SLICE_ARG(text));
}

/* X(NAME, name): operations whose reply may bring a descriptor. */
#define BRING_DESCRIPTORS(X)                                                                                 \
    X(OPEN, open)                                                                                            \
    X(WATCH, watch)                                                                                          \
    X(WATCH_NAMES, watch_names)                                                                              \
    X(PUT_OPEN, put_open)                                                                                    \
    X(UPLOAD_RESUME, upload_resume)                                                                          \
    X(TREE_CREATE, tree_create)                                                                              \
    X(TREE_OPEN, tree_open)

static bool may_bring_descriptor(uint32_t op)
{
#define X(NAME, name) || op == WIRE_OP_##NAME
    return false BRING_DESCRIPTORS(X);
#undef X
}

/* The handle of what a reply's descriptor is of; `*ret_op` ends it. */
static uint64_t handle_of(uint32_t op, const void *rep, uint32_t *ret_op)
{
    *ret_op = op == WIRE_OP_PUT_OPEN || op == WIRE_OP_UPLOAD_RESUME ? WIRE_OP_PUT_ABORT : WIRE_OP_CLOSE;
    switch (op) {
#define X(NAME, name)                                                                                        \
    case WIRE_OP_##NAME:                                                                                     \
        return ((const struct wire_##name##_rep *)rep)->handle;
        BRING_DESCRIPTORS(X)
#undef X
    default:
        return 0;
    }
}

/* A reply whose descriptor found no room in this process: nobody else ends what the node has opened. */
static int give_up(struct client_conn *conn, uint32_t op, uint64_t request_id,
                   const struct client_patience *patience, const void *rep, enum client_fate *ret_fate,
                   struct err *e)
{
    uint32_t end_op;
    uint64_t handle = handle_of(op, rep, &end_op);
    struct wire_close_req close_req = {.handle = handle};
    struct wire_put_abort_req abort_req = {.handle = handle};
    union {
        struct wire_close_rep close;
        struct wire_put_abort_rep abort;
    } end_rep;
    struct err ignored = {0};
    _cleanup_buf_ struct buf b = BUF_INIT(WIRE_BODY_MAX_BYTES);
    if (handle != 0)
        (void)client_conn_call(conn, end_op, end_op == WIRE_OP_CLOSE ? (void *)&close_req : &abort_req,
                               request_id, patience, &b, &end_rep, ret_fate, &ignored);
    return err_set(e, -EMFILE, "%s: this process may not have one more open file", wire_op_info(op)->name);
}

static int receive_reply(struct client_conn *conn, const struct wire_op_info *info, uint32_t op,
                         uint64_t request_id, const struct client_patience *patience, struct buf *b,
                         void *ret_rep, enum client_fate *ret_fate, struct err *e)
{
    struct wire_header h;
    _cleanup_close_ int passed = -1;
    bool is_there = patience->looks && look_for(&conn->look, conn->fd);
    if (!is_there && patience->before_sleep)
        patience->before_sleep();
    int r = is_there ? 0 : wait_reply(conn->fd, patience);
    if (r == 0)
        r = wire_recv(conn->fd, &h, b, &passed);
    bool has_room = r != -EMFILE;
    if (r < 0 && has_room)
        return err_errno(e, r, "%s: receive", info->name);
    if (h.op != op || h.request_id != request_id || !(h.flags & WIRE_FLAG_REPLY) || h.status > 0)
        return err_set(e, ERR_PROTOCOL, "%s: reply does not match the request", info->name);
    if (passed >= 0 && !may_bring_descriptor(op)) /* whoever asked would not close it */
        return err_set(e, ERR_PROTOCOL, "%s: reply with a descriptor that nobody asked for", info->name);
    if (h.status < 0) {
        *ret_fate = CLIENT_ANSWERED;
        return failed_reply(h.status, b, e);
    }
    r = info->decode_rep(buf_view(b), ret_rep);
    if (r < 0)
        return err_errno(e, r, "%s: reply", info->name);
    memcpy(ret_rep, &passed, sizeof(passed)); /* first member of every reply struct */
    passed = -1;
    *ret_fate = CLIENT_ANSWERED;
    return has_room ? 0 : give_up(conn, op, request_id, patience, ret_rep, ret_fate, e);
}

int client_conn_call(struct client_conn *conn, uint32_t op, const void *req, uint64_t request_id,
                     const struct client_patience *patience, struct buf *b, void *ret_rep,
                     enum client_fate *ret_fate, struct err *e)
{
    const struct wire_op_info *info = wire_op_info(op);
    assert(info != NULL && req != NULL && ret_rep != NULL);
    _cleanup_buf_ struct buf body = BUF_INIT(WIRE_BODY_MAX_BYTES);
    int r = info->encode_req(req, &body);
    if (r < 0) {
        *ret_fate = CLIENT_ANSWERED; /* nothing was sent, the connection is as good as before */
        return err_errno(e, r, "%s: request too large", info->name);
    }
    *ret_fate = CLIENT_UNSEEN;
    if (body.n > SEND_AT_ONCE_BYTES && patience->before_sleep)
        patience->before_sleep();
    r = wire_send(conn->fd, op, /* flags= */ 0, request_id, /* status= */ 0, buf_view(&body),
                  /* pass_fd= */ -1);
    if (r < 0)
        return err_errno(e, r, "%s: send", info->name);
    *ret_fate = CLIENT_LOST;
    return receive_reply(conn, info, op, request_id, patience, b, ret_rep, ret_fate, e);
}

/* ---- HELLO ---- */

static struct client_patience until(uint64_t deadline_ms)
{
    uint64_t now = sys_mono_ms();
    return (struct client_patience){.ms = now < deadline_ms ? deadline_ms - now : 0};
}

/* HMAC-SHA256(secret, nonce + session), as wire_ops.h says. */
static int sign(struct client *c, struct client_conn *conn, struct id128 session, uint64_t deadline_ms,
                uint8_t ret_signature[SIGNATURE_BYTES], struct err *e)
{
    struct wire_challenge_req req = {0};
    struct wire_challenge_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(HELLO_REPLY_MAX_BYTES);
    enum client_fate fate;
    struct client_patience patience = until(deadline_ms);
    int r = client_conn_call(conn, WIRE_OP_CHALLENGE, &req, 0, &patience, &b, &rep, &fate, e);
    if (r < 0)
        return r;
    uint8_t text[NONCE_MAX_BYTES + sizeof(session.b)], full[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    if (rep.nonce.n == 0 || rep.nonce.n > NONCE_MAX_BYTES)
        return err_set(e, ERR_PROTOCOL, "challenge of %zu bytes", rep.nonce.n);
    memcpy(text, rep.nonce.p, rep.nonce.n);
    memcpy(text + rep.nonce.n, session.b, sizeof(session.b));
    if (!HMAC(EVP_sha256(), c->secret_key, (int)strlen(c->secret_key), text, rep.nonce.n + sizeof(session.b),
              full, &n) ||
        n != SIGNATURE_BYTES)
        return err_set(e, -EIO, "HMAC failed");
    memcpy(ret_signature, full, SIGNATURE_BYTES);
    return 0;
}

static int hello(struct client *c, struct client_conn *conn, struct id128 session, uint64_t deadline_ms,
                 struct err *e)
{
    uint8_t signature[SIGNATURE_BYTES];
    struct wire_hello_req req = {.version = WIRE_VERSION,
                                 .session = slice_of(session.b, sizeof(session.b)),
                                 .name = slice_str(c->name),
                                 .via = c->via};
    struct wire_hello_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(HELLO_REPLY_MAX_BYTES);
    enum client_fate fate;
    if (c->access_key && c->secret_key) {
        int r = sign(c, conn, session, deadline_ms, signature, e);
        if (r < 0)
            return r;
        req.access_key = slice_str(c->access_key);
        req.signature = slice_of(signature, sizeof(signature));
    }
    struct client_patience patience = until(deadline_ms);
    int r = client_conn_call(conn, WIRE_OP_HELLO, &req, 0, &patience, &b, &rep, &fate, e);
    if (r < 0)
        return r;
    macro_close(&rep.fd);
    conn->passes_fds = rep.passes_fds != 0;
    return 0;
}

/* A peer that vanished without a word is noticed within about the timeout. Failures cost only that. */
static void keep_alive(int fd, uint64_t timeout_ms)
{
    int on = 1, after_s = (int)MAX(timeout_ms / 2000, (uint64_t)1), every_s = after_s;
    unsigned most_ms = (unsigned)MIN(timeout_ms, (uint64_t)INT32_MAX);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &after_s, sizeof(after_s));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof(every_s));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &most_ms, sizeof(most_ms));
}

static int connect_node(struct client *c, uint64_t deadline_ms, int *ret_fd, struct err *e)
{
    struct slice address = slice_str(c->address);
    if (slice_starts(address, SLICE_LIT("unix:")))
        return sock_connect_unix_within(c->address + strlen("unix:"), MAX(until(deadline_ms).ms, (uint64_t)1),
                                        ret_fd, e);
    int r = sock_connect_tcp(c->address, MAX(until(deadline_ms).ms, (uint64_t)1), ret_fd, e);
    if (r == 0)
        keep_alive(*ret_fd, c->timeout_ms);
    return r;
}

int client_conn_open(struct client *c, struct id128 session, uint64_t deadline_ms, struct client_conn **ret,
                     struct err *e)
{
    _cleanup_(client_conn_freep) struct client_conn *conn = calloc(1, sizeof(*conn));
    if (!conn)
        abort();
    conn->fd = -1;
    int r = connect_node(c, deadline_ms, &conn->fd, e);
    if (r < 0)
        return r;
    r = sock_set_timeouts(conn->fd, c->timeout_ms, c->timeout_ms);
    if (r < 0)
        return err_errno(e, r, "socket timeouts");
    r = hello(c, conn, session, deadline_ms, e);
    if (r < 0)
        return r;
    *ret = TAKE_PTR(conn);
    return 0;
}
