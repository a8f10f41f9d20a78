/*
 * One event of a wire connection: a frame is read, its operation run, its reply sent.
 *
 * Invariants:
 *  1. Every function that is given the connection ends by closing, arming or queueing it, exactly once.
 *  2. Before HELLO succeeded a peer can make the node hold no more than HELLO_MAX_BYTES and no thread, and
 * has request_timeout from its connect for everything.
 *  3. Bodies, and bytes of objects in replies, above WIRE_SMALL_BYTES are taken from the buffer budget first.
 * Pages of lists are not: they are bounded, one for each thread.
 *
 * Who may do what: on the Unix socket root and the node's own uid are trusted; everyone else, and every TCP
 * peer, proves that it knows the secret of the node's or a user's access key by HMAC-SHA256(secret, nonce +
 * session) with a nonce of this connection. A user's session may do what the user may (object/access.c), and
 * is not joined by anybody else; of one over the Unix socket the kernel tells uid and groups, which the node
 * checks permissions in scratch buckets by. Descriptors are given to trusted peers only.
 *
 * Failure modes: a frame that breaks the protocol is logged and its connection closed, because the position
 * in the stream is unknown; an operation that fails is answered with its code and text. One that finds no
 * memory within the request timeout is answered ERR_CLOSED, on which clients ask again by themselves; its
 * body is dropped, and the connection goes on.
 */
#include "server/front_internal.h"

#include "base/crc32c.h"
#include "base/log.h"
#include "base/look.h"
#include "base/often.h"
#include "base/sys.h"
#include "net/sock.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define HELLO_MAX_BYTES  4096
#define NONCE_BYTES      32
#define SIGNATURE_BYTES  32
#define SECRET_MAX_BYTES 256
#define SLOW_NS          100000000ull                     /* of an operation: its client may have given up */
#define FETCH_MAX_BYTES  (WIRE_BODY_MAX_BYTES - 64 * KIB) /* so that its reply fits a frame */
#define OPS_KEPT         128                              /* above the number of every operation */

struct wire_conn {
    struct session *session; /* NULL before HELLO */
    bool trusted;            /* by its uid */
    bool has_nonce;
    uint8_t nonce[NONCE_BYTES];
    uint8_t head[WIRE_HEADER_BYTES]; /* part of a frame header */
    uint8_t head_n;
    struct buf early; /* before HELLO: a frame of which the rest has not come */
    uint64_t hello_deadline_ms;
    struct look look; /* for the next request */
};

/* One frame of a request and what is known about its answer. */
struct frame {
    struct wire_header h;
    struct slice body;
    const struct wire_op_info *info;
    uint64_t budget_bytes; /* taken from the buffer budget */
    uint64_t reply_bytes;  /* of an object, for which some of it was taken */
    int refused;           /* there is no memory for the body, which was dropped: this is the answer; or 0 */
    const void *req, *rep; /* rep: NULL before the operation was a success */
    bool has_fd;           /* the reply has a descriptor */
    struct err e;
};

/* A file that is written to becomes a cached object, and who has its descriptor could go on: those are for
 * uids that could open the disk's files anyway. Others get bytes. */
static bool may_have_files(const struct conn *c)
{
    return c->kind == CONN_UNIX && c->wire->trusted;
}

struct wire_conn *front_wire_new(struct front *f, int fd, enum conn_kind kind)
{
    struct wire_conn *w = calloc(1, sizeof(*w));
    if (!w)
        abort();
    uid_t uid;
    w->trusted = kind == CONN_UNIX && sock_peer_uid(fd, &uid) == 0 && (uid == 0 || uid == geteuid());
    w->early = BUF_INIT(WIRE_HEADER_BYTES + HELLO_MAX_BYTES);
    w->hello_deadline_ms = sys_mono_ms() + f->request_timeout_ms;
    return w;
}

void front_wire_free(struct front *f, struct wire_conn *w, int fd)
{
    if (!w)
        return;
    if (w->session)
        session_leave(&f->sessions, w->session, fd);
    OPENSSL_cleanse(w->nonce, sizeof(w->nonce));
    buf_fini(&w->early);
    free(w);
}

/* ---- reading a frame ---- */

/* Who finds none in time is answered so, and asks again by itself (ERR_CLOSED): the memory is that of other
 * requests, which end. */
static int take_budget(struct front *f, struct conn *c, struct frame *fr, uint64_t n)
{
    if (n <= WIRE_SMALL_BYTES)
        return 0;
    int k = budget_take(f->config.buffers, n, f->request_timeout_ms);
    if (k == 0) {
        fr->budget_bytes += n;
        atomic_store(&c->holds, true);
        return 0;
    }
    metrics_count(METRIC_MEMORY_REFUSED, "wire", NULL, NULL);
    return k == -ETIMEDOUT ? err_set(&fr->e, ERR_CLOSED,
                                     "no memory for %llu bytes within %llu ms: other requests have it",
                                     (unsigned long long)n, (unsigned long long)f->request_timeout_ms)
                           : err_errno(&fr->e, k, "memory for %llu bytes", (unsigned long long)n);
}

/* Reads without waiting: a whole header, or -EAGAIN with the part kept. What comes behind it lies in w->in.
 */
static int receive_head(struct worker *w, struct conn *c, uint8_t ret_head[WIRE_HEADER_BYTES])
{
    struct wire_conn *wc = c->wire;
    buf_clear(&w->in);
    char *p = buf_reserve(&w->in, WIRE_SMALL_BYTES);
    struct slice kept = wc->early.n > 0 ? buf_view(&wc->early) : slice_of(wc->head, wc->head_n);
    size_t have = kept.n;
    memcpy(p, kept.p, have);
    ssize_t n;
    do {
        n = recv(c->fd, p + have, WIRE_SMALL_BYTES - have, MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    if (n <= 0)
        return n == 0 ? -EPIPE : -errno;
    have += (size_t)n;
    buf_fini(&wc->early);
    if (have < WIRE_HEADER_BYTES) {
        memcpy(wc->head, p, have);
        wc->head_n = (uint8_t)have;
        return -EAGAIN;
    }
    wc->head_n = 0;
    memcpy(ret_head, p, WIRE_HEADER_BYTES);
    buf_used(&w->in, have);
    buf_consume(&w->in, WIRE_HEADER_BYTES);
    return 0;
}

/* A frame of somebody unknown whose body has not come: no thread waits for that. */
static int keep_early(struct worker *w, struct conn *c, const uint8_t head[WIRE_HEADER_BYTES])
{
    struct buf *early = &c->wire->early;
    int k = buf_append(early, head, WIRE_HEADER_BYTES);
    k = k < 0 ? k : buf_slice(early, buf_view(&w->in));
    assert(k == 0); /* its length was checked */
    return -EAGAIN;
}

/* A body for which there is no memory is read all the same: the next request comes behind it. */
static int skip_body(struct worker *w, struct conn *c, struct frame *fr, size_t left)
{
    const struct stream s = {.fd = c->fd, .pace = &c->pace};
    buf_clear(&w->in);
    char *p = buf_reserve(&w->in, WIRE_SMALL_BYTES);
    stream_pace_reset(&c->pace);
    while (left > 0) {
        ssize_t n = stream_recv_some(s, p, MIN(left, (size_t)WIRE_SMALL_BYTES));
        if (n < 0)
            return err_errno(&fr->e, (int)n, "body");
        left -= (size_t)n;
    }
    return 0;
}

static int receive_body(struct worker *w, struct conn *c, struct frame *fr)
{
    size_t want = fr->h.body_bytes;
    if (w->in.n > want)
        return err_set(&fr->e, ERR_PROTOCOL, "bytes behind the frame");
    fr->refused = take_budget(w->front, c, fr, want);
    if (fr->refused < 0)
        return skip_body(w, c, fr, want - w->in.n);
    const struct stream s = {.fd = c->fd, .pace = &c->pace};
    char *p = buf_reserve(&w->in, want - w->in.n);
    assert(p != NULL); /* the header's decoder checked the length */
    stream_pace_reset(&c->pace);
    while (w->in.n < want) {
        ssize_t n = stream_recv_some(s, w->in.p + w->in.n, want - w->in.n);
        if (n < 0)
            return err_errno(&fr->e, (int)n, "body");
        buf_used(&w->in, (size_t)n);
    }
    fr->body = buf_view(&w->in);
    if (crc32c(0, fr->body.p, fr->body.n) != fr->h.crc)
        return err_set(&fr->e, ERR_PROTOCOL, "checksum of the body");
    return 0;
}

/* 0: a whole frame; -EAGAIN: wait; -EPIPE without a text: the peer closed between frames. */
static int receive_frame(struct worker *w, struct conn *c, struct frame *fr)
{
    uint8_t head[WIRE_HEADER_BYTES];
    int k = receive_head(w, c, head);
    if (k < 0)
        return k;
    k = wire_header_decode(head, &fr->h);
    if (k < 0)
        return err_set(&fr->e, k, "frame header");
    if (fr->h.flags != 0 || fr->h.status != 0)
        return err_set(&fr->e, ERR_PROTOCOL, "flags or status in a request");
    if (!c->wire->session && fr->h.body_bytes > HELLO_MAX_BYTES)
        return err_set(&fr->e, ERR_PROTOCOL, "large frame before HELLO");
    if (!c->wire->session && w->in.n < fr->h.body_bytes)
        return keep_early(w, c, head);
    return receive_body(w, c, fr);
}

/* ---- who is it ---- */

static int do_challenge(struct worker *w, struct conn *c, struct wire_challenge_rep *ret_rep)
{
    sys->random(c->wire->nonce, sizeof(c->wire->nonce));
    c->wire->has_nonce = true;
    ret_rep->nonce = slice_of(c->wire->nonce, sizeof(c->wire->nonce));
    return 0;
}

/* The secret of an access key; nothing when there is no such key. */
static void find_secret(const struct front_config *config, struct slice access_key, struct buf *ret)
{
    if (slice_eq_str(access_key, config->access_key))
        (void)buf_str(ret, config->secret_key);
    else if (config->sessions.secret && config->sessions.secret(config->sessions.arg, access_key, ret) < 0)
        buf_clear(ret);
}

static bool signature_fits(const struct front_config *config, const struct wire_conn *wc,
                           const struct wire_hello_req *req)
{
    _cleanup_buf_ struct buf secret = BUF_INIT(SECRET_MAX_BYTES);
    uint8_t text[NONCE_BYTES + sizeof(struct id128)], want[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    if (!wc->has_nonce || req->signature.n != SIGNATURE_BYTES)
        return false;
    find_secret(config, req->access_key, &secret);
    if (secret.n == 0)
        return false;
    memcpy(text, wc->nonce, NONCE_BYTES);
    memcpy(text + NONCE_BYTES, req->session.p, sizeof(struct id128));
    bool made = HMAC(EVP_sha256(), secret.p, (int)secret.n, text, sizeof(text), want, &n) != NULL;
    OPENSSL_cleanse(secret.p, secret.n);
    if (!made)
        return false;
    return n == SIGNATURE_BYTES && CRYPTO_memcmp(want, req->signature.p, SIGNATURE_BYTES) == 0;
}

static int do_hello(struct worker *w, struct conn *c, const struct wire_hello_req *req,
                    struct wire_hello_rep *ret_rep, struct err *e)
{
    struct front *f = w->front;
    struct wire_conn *wc = c->wire;
    struct id128 id;
    if (wc->session)
        return err_set(e, ERR_PROTOCOL, "HELLO twice");
    if (req->version != WIRE_VERSION)
        return err_set(e, ERR_PROTOCOL,
                       "this node speaks version %d of the wire protocol, the client version %u",
                       WIRE_VERSION, req->version);
    if (req->session.n != sizeof(id.b) || req->via < WIRE_VIA_S3 || req->via > WIRE_VIA_API)
        return err_set(e, ERR_PROTOCOL, "broken HELLO");
    bool known = wc->trusted || signature_fits(&f->config, wc, req);
    bool is_user = !wc->trusted && !slice_eq_str(req->access_key, f->config.access_key);
    wc->has_nonce = false; /* each nonce is good for one attempt */
    if (!known) {
        metrics_count(METRIC_REFUSED, "wire signature", NULL, NULL);
        return err_set(e, ERR_UNAUTHENTICATED, "credentials missing or wrong");
    }
    memcpy(id.b, req->session.p, sizeof(id.b));
    _cleanup_(sock_peer_fini) struct sock_peer peer = {0};
    bool is_told = is_user && c->kind == CONN_UNIX && sock_peer(c->fd, &peer) == 0;
    int k = session_join(&f->sessions, id, (enum wire_via)req->via, is_user ? req->access_key : SLICE_LIT(""),
                         is_told ? &peer : NULL, c->fd, &wc->session);
    if (k == ERR_UNAUTHENTICATED)
        return err_set(e, k, "credentials missing or wrong");
    if (k < 0)
        return err_set(e, k, "the session belongs to another client or another kind of client");
    log_debug("wire", "client " SLICE_FMT " joined by %s", (int)MIN(req->name.n, (size_t)256), req->name.p,
              conn_kind_name((enum conn_kind)c->kind));
    ret_rep->node_id = slice_str(f->config.node_id);
    ret_rep->server_version = slice_str(FOREBAY_VERSION);
    ret_rep->passes_fds = may_have_files(c);
    return 0;
}

static int do_end_siblings(struct worker *w, struct conn *c, struct wire_end_siblings_rep *ret_rep)
{
    ret_rep->n = (uint32_t)session_end_siblings(&w->front->sessions, c->wire->session);
    return 0;
}

/* ---- running it ---- */

/* The bytes of an object that come back in the frame are bounded, and counted before they are read: those,
 * and the reply that they are copied into. */
static int prepare_reply(struct worker *w, struct conn *c, struct frame *fr, void *req)
{
    const struct front_sessions *s = &w->front->config.sessions;
    struct wire_fetch_req *fetch = fr->h.op == WIRE_OP_FETCH ? req : NULL;
    if (fetch && fetch->flags & WIRE_INLINE)
        fetch->n = MIN(fetch->n, FETCH_MAX_BYTES);
    uint64_t n = s->reply_bytes ? s->reply_bytes(c->wire->session->user, fr->h.op, req) : 0;
    fr->reply_bytes = n;
    return take_budget(w->front, c, fr, 2 * n);
}

/* Bytes that nobody could know of before, as those that a disk has just had no room for. */
static int count_reply(struct worker *w, struct conn *c, struct frame *fr, const void *rep)
{
    const struct wire_fetch_rep *fetch = fr->h.op == WIRE_OP_FETCH ? rep : NULL;
    uint64_t n = fetch ? fetch->data.n : 0;
    return n > fr->reply_bytes ? take_budget(w->front, c, fr, 2 * (n - fr->reply_bytes)) : 0;
}

static int run(struct worker *w, struct conn *c, struct frame *fr, void *req, void *rep)
{
    struct front *f = w->front;
    switch (fr->h.op) {
    case WIRE_OP_CHALLENGE:
        return do_challenge(w, c, rep);
    case WIRE_OP_HELLO:
        return do_hello(w, c, req, rep, &fr->e);
    default:
        break;
    }
    if (!c->wire->session)
        return err_set(&fr->e, ERR_UNAUTHENTICATED, "HELLO comes first");
    if (fr->h.op == WIRE_OP_END_SIBLINGS)
        return do_end_siblings(w, c, rep);
    int k = prepare_reply(w, c, fr, req);
    if (k == 0)
        k = f->config.sessions.call(c->wire->session->user, fr->h.op, req, w->arena, rep, &fr->e);
    return k < 0 ? k : count_reply(w, c, fr, rep);
}

static enum wire_via via_of(const struct conn *c)
{
    return c->wire->session ? c->wire->session->via : WIRE_VIA_API;
}

static const char *via_name(enum wire_via via)
{
    static const char *const vias[] = {
        [WIRE_VIA_S3] = "s3", [WIRE_VIA_MOUNT] = "mount", [WIRE_VIA_API] = "api"};
    return vias[via];
}

static const char *op_of(const struct frame *fr)
{
    return fr->info ? fr->info->name : "unknown";
}

#define X(NAME, name, number) static_assert((number) < OPS_KEPT, "there is a place for its series");
WIRE_OPS(X)
#undef X

/* Series of what is asked for all the time, once they are known. */
struct served {
    _Atomic(struct metric_series *) ok, seconds;
};

static struct metric_series *series_of(_Atomic(struct metric_series *) *place, enum metric m,
                                       const struct conn *c, const struct frame *fr, const char *code)
{
    struct metric_series *s = atomic_load_explicit(place, memory_order_acquire);
    if (!s) {
        s = metrics_series(m, via_name(via_of(c)), op_of(fr), code);
        atomic_store_explicit(place, s, memory_order_release);
    }
    return s;
}

static struct served *served_of(const struct conn *c, const struct frame *fr)
{
    static struct served known[WIRE_VIA_API + 1][OPS_KEPT], unknown[WIRE_VIA_API + 1];
    return fr->info ? &known[via_of(c)][fr->h.op] : &unknown[via_of(c)];
}

static void count_answer(const struct conn *c, const struct frame *fr, int status)
{
    if (status == 0)
        metrics_add(series_of(&served_of(c, fr)->ok, METRIC_REQUESTS, c, fr, "OK"), 1);
    else
        metrics_count(METRIC_REQUESTS, via_name(via_of(c)), op_of(fr), err_name(status));
}

/* Runs the frame's operation and puts its reply, or the error's text, into w->out. ERR_PROTOCOL in
 * *ret_broken: the body does not decode. Returns the status of the reply. */
static int answer(struct worker *w, struct conn *c, struct frame *fr, int *ret_pass_fd, int *ret_broken)
{
    int pass_fd = -1, none = -1;
    fr->info = wire_op_info(fr->h.op);
    if (!fr->info)
        return err_set(&fr->e, ERR_NOT_IMPLEMENTED, "operation %u is not known here", fr->h.op);
    if (fr->refused < 0)
        return fr->refused;
    void *req = arena_zalloc(w->arena, fr->info->req_bytes);
    void *rep = arena_zalloc(w->arena, fr->info->rep_bytes);
    memcpy(rep, &none, sizeof(none));
    int k = fr->info->decode_req(fr->body, req);
    if (k < 0) {
        *ret_broken = err_set(&fr->e, k, "body of %s", fr->info->name);
        return k;
    }
    memcpy(req, &fr->h.request_id, sizeof(fr->h.request_id)); /* first member of every request struct */
    k = run(w, c, fr, req, rep);
    if (k < 0)
        return k;
    k = fr->info->encode_rep(rep, &w->out);
    if (k < 0)
        return err_errno(&fr->e, k, "reply of %s", fr->info->name);
    memcpy(&pass_fd, rep, sizeof(pass_fd));
    *ret_pass_fd = may_have_files(c) ? pass_fd : -1;
    fr->req = req;
    fr->rep = rep;
    fr->has_fd = pass_fd >= 0;
    return 0;
}

/* Gives back what one request held. */
static void clean_up(struct worker *w, struct conn *c, struct frame *fr)
{
    arena_clear(w->arena);
    if (w->in.cap > 2 * WIRE_SMALL_BYTES)
        buf_fini(&w->in);
    if (w->out.cap > 2 * WIRE_SMALL_BYTES)
        buf_fini(&w->out);
    if (fr->budget_bytes == 0)
        return;
    atomic_store(&c->holds, false);
    budget_give(w->front->config.buffers, fr->budget_bytes);
    fr->budget_bytes = 0;
}

static void wait_for_frame(struct front *f, struct conn *c)
{
    c->phase = CONN_HEAD;
    if (!c->wire->session)
        conn_set_deadline(&f->conns, c, c->wire->hello_deadline_ms, /* exact= */ true);
    else if (c->wire->head_n > 0)
        conn_set_deadline(&f->conns, c, sys_mono_ms() + f->request_timeout_ms, /* exact= */ true);
    else /* clients keep handles open and may be silent for days; a dead one is found by its socket */
        conn_set_deadline(&f->conns, c, CONN_NEVER, /* exact= */ false);
    front_arm(f, c, EPOLLIN);
}

/* The client has closed the connection: by TCP that is found out only after the reply was sent. */
static bool has_gone(const struct conn *c)
{
    char byte;
    return recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

/* Who waited too long drops its connection, and its session may go on: nobody else would end what the reply
 * brings. */
static void tell_sent(struct worker *w, const struct conn *c, const struct frame *fr, bool is_sent)
{
    const struct front_sessions *s = &w->front->config.sessions;
    if (!fr->rep || !c->wire->session)
        return;
    if (!is_sent && s->unsent)
        s->unsent(c->wire->session->user, fr->h.op, fr->req, fr->rep, w->arena);
    else if (fr->has_fd && s->sent)
        s->sent(c->wire->session->user, fr->h.op, fr->rep);
}

/* A node that stops gives up what origins do not answer: who asked hears that the connection is lost, as from
 * one that was killed, and asks the next node, in place of a failure that is none of the object's. */
static bool is_given_up(const struct front *f, int status)
{
    return (status == -ETIMEDOUT || status == -ECANCELED) && atomic_load(&f->draining);
}

static int serve_frame(struct worker *w, struct conn *c, struct frame *fr)
{
    uint64_t began_ns = sys->mono_ns();
    int pass_fd = -1, broken = 0;
    buf_clear(&w->out);
    int status = answer(w, c, fr, &pass_fd, &broken);
    if (broken < 0)
        return broken;
    if (status < 0) {
        buf_clear(&w->out);
        (void)wire_error_encode(slice_str(fr->e.text[0] ? fr->e.text : err_text(status)), &w->out);
    }
    /* Counted before it is sent: who has a reply finds its request in the metrics. */
    count_answer(c, fr, status);
    if (is_given_up(w->front, status))
        return -EPIPE;
    bool gone = sys->mono_ns() - began_ns > SLOW_NS && has_gone(c);
    stream_pace_begin(&c->pace, w->out.n);
    int k = wire_send(c->fd, fr->h.op, WIRE_FLAG_REPLY, fr->h.request_id, status, buf_view(&w->out), pass_fd);
    stream_pace_end(&c->pace, k == 0 ? w->out.n : 0);
    metrics_observe_ns(series_of(&served_of(c, fr)->seconds, METRIC_REQUEST_SECONDS, c, fr, NULL),
                       sys->mono_ns() - began_ns);
    tell_sent(w, c, fr, k == 0 && !gone);
    if (k < 0)
        return err_errno(&fr->e, k, "send");
    return 0;
}

/* One frame: read, run, answered. 0: the next one may come. */
static int serve_one(struct worker *w, struct conn *c, struct frame *fr)
{
    int k = receive_frame(w, c, fr);
    if (k == 0)
        k = serve_frame(w, c, fr);
    clean_up(w, c, fr);
    if (k == 0 && atomic_load(&w->front->draining))
        k = -EPIPE;
    return k;
}

/* The next request of a client that asks one thing after the other is taken by the thread that is awake.
 * Others lead meanwhile. */
static bool comes_at_once(struct worker *w, struct conn *c)
{
    struct front *f = w->front;
    if (!c->wire->session || atomic_load(&f->n_idle) == 0 || atomic_load(&f->n_ready) > 0)
        return false;
    atomic_store_explicit(&w->active_kind, -1, memory_order_relaxed);
    if (!look_may_beside(front_at_work(f)))
        return false;
    bool comes = look_for(&c->wire->look, c->fd);
    atomic_store_explicit(&w->active_kind, c->kind, memory_order_relaxed);
    atomic_store_explicit(&w->busy_since_ns, sys->mono_ns(), memory_order_relaxed);
    return comes;
}

void front_wire_event(struct worker *w, struct conn *c)
{
    struct front *f = w->front;
    struct frame fr;
    if (w->reserved) { /* operations may block */
        c->phase = CONN_QUEUED;
        front_enqueue(f, c);
        return;
    }
    int k;
    do {
        fr = (struct frame){0};
        k = serve_one(w, c, &fr);
    } while (k == 0 && comes_at_once(w, c));
    if (k == 0 || k == -EAGAIN) {
        wait_for_frame(f, c);
        return;
    }
    if (k == ERR_PROTOCOL)
        log_often("wire", "connection closed: %s", fr.e.text);
    else if (fr.e.text[0])
        log_debug("wire", "connection closed: %s", fr.e.text);
    front_close(f, c);
}
