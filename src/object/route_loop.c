/*
 * Loop mode (FOREBAY_ROUTE=loop): every operation goes through encode, socket and decode before it runs on
 * another thread, as it would on another node. Tests run in both modes; an operation that leans on memory
 * shared with its caller fails here.
 *
 * A channel is a socket pair with a thread at its far end; a call borrows one for its duration. Channels are
 * made as needed, up to CHANNELS_MAX, and kept.
 *
 * Descriptors that come over the socket belong to this side: they are kept per handle in the session, and
 * closed when the handle is, so that callers see the same contract as without the loop (borrowed until
 * close).
 */
#include "object/object_internal.h"

#include "net/sock.h"

#include <sys/socket.h>

#define CHANNELS_MAX     512
#define CALL_ARENA_BYTES (16 * MIB)

struct channel {
    struct channel *next;
    int near, far;
    pthread_t thread;
    struct object_session *session; /* of the call under way: set before its request is sent */
};

struct route_loop {
    struct lock lock; /* covers idle, n */
    struct cond returned;
    struct channel *idle;
    unsigned n;
};

struct kept_fd {
    struct kept_fd *next;
    uint64_t handle;
    int fd;
};

struct route_session {
    struct kept_fd *fds; /* session->lock */
};

/* ---- far end ---- */

static int serve_one(struct channel *c, struct buf *body, struct arena *a)
{
    struct wire_header h;
    int fd = -1;
    int r = wire_recv(c->far, &h, body, &fd);
    if (r < 0)
        return r;
    if (fd >= 0)
        (void)close(fd);
    const struct wire_op_info *info = wire_op_info(h.op);
    assert(info); /* the near end is ours */
    void *req = arena_zalloc(a, info->req_bytes), *rep = arena_zalloc(a, info->rep_bytes);
    struct err e = {0};
    _cleanup_buf_ struct buf out = BUF_INIT(WIRE_BODY_MAX_BYTES);
    int status = info->decode_req(buf_view(body), req);
    if (status == 0) {
        *(uint64_t *)req = h.request_id;
        status = object_call_local(c->session, h.op, req, a, rep, &e);
    }
    int pass_fd = status == 0 ? *(int *)rep : -1;
    if (status == 0)
        status = info->encode_rep(rep, &out);
    if (status < 0) {
        pass_fd = -1;
        buf_clear(&out);
        uint32_t n = (uint32_t)strlen(e.text);
        r = buf_append(&out, &n,
                       sizeof(n)); /* one str, as failed replies have it; little endian machines only */
        r = r < 0 ? r : buf_append(&out, e.text, n);
        assert(r == 0);
    }
    return wire_send(c->far, h.op, WIRE_FLAG_REPLY, h.request_id, status, buf_view(&out), pass_fd);
}

static void *channel_main(void *arg)
{
    struct channel *c = arg;
    _cleanup_buf_ struct buf body = BUF_INIT(WIRE_BODY_MAX_BYTES);
    _cleanup_(arena_freep) struct arena *a = arena_new(CALL_ARENA_BYTES);
    while (serve_one(c, &body, a) == 0)
        arena_clear(a);
    return NULL;
}

/* ---- channels ---- */

static struct channel *channel_new(void)
{
    int pair[2];
    struct channel *c = calloc(1, sizeof(*c));
    int r = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair);
    assert(c && r == 0);
    c->near = pair[0];
    c->far = pair[1];
    r = pthread_create(&c->thread, NULL, channel_main, c);
    assert(r == 0);
    return c;
}

static struct channel *borrow(struct route_loop *l)
{
    lock_take(&l->lock);
    while (!l->idle && l->n >= CHANNELS_MAX)
        cond_wait(&l->returned, &l->lock);
    struct channel *c = l->idle;
    if (c)
        l->idle = c->next;
    else
        l->n++;
    lock_drop(&l->lock);
    return c ? c : channel_new();
}

static void give_back(struct route_loop *l, struct channel *c)
{
    LOCK_SCOPE(&l->lock);
    c->next = l->idle;
    l->idle = c;
    cond_signal(&l->returned);
}

struct route_loop *route_loop_new(void)
{
    struct route_loop *l = calloc(1, sizeof(*l));
    assert(l);
    lock_init(&l->lock, LOCK_LEAF);
    cond_init(&l->returned);
    return l;
}

void route_loop_free(struct route_loop *l)
{
    if (!l)
        return;
    while (l->idle) {
        struct channel *c = l->idle;
        l->idle = c->next;
        (void)shutdown(c->near, SHUT_RDWR);
        (void)pthread_join(c->thread, NULL);
        (void)close(c->near);
        (void)close(c->far);
        free(c);
    }
    cond_fini(&l->returned);
    lock_fini(&l->lock);
    free(l);
}

/* ---- descriptors ---- */

static void keep_fd(struct object_session *ses, uint64_t handle, int fd)
{
    struct kept_fd *k = calloc(1, sizeof(*k));
    assert(k);
    k->handle = handle;
    k->fd = fd;
    LOCK_SCOPE(&ses->lock);
    if (!ses->route) {
        ses->route = calloc(1, sizeof(*ses->route));
        assert(ses->route);
    }
    k->next = ses->route->fds;
    ses->route->fds = k;
}

static void drop_fd(struct object_session *ses, uint64_t handle)
{
    LOCK_SCOPE(&ses->lock);
    struct kept_fd **at = ses->route ? &ses->route->fds : NULL;
    while (at && *at && (*at)->handle != handle)
        at = &(*at)->next;
    struct kept_fd *k = at ? *at : NULL;
    if (!k)
        return;
    *at = k->next;
    (void)close(k->fd);
    free(k);
}

static void drop_fds(struct object_session *ses, struct slice handles)
{
    uint64_t handle;
    while (wire_handle_decode(&handles, &handle) == 0)
        drop_fd(ses, handle);
}

void route_session_free(struct route_session *r)
{
    while (r && r->fds) {
        struct kept_fd *k = r->fds;
        r->fds = k->next;
        (void)close(k->fd);
        free(k);
    }
    free(r);
}

void route_passed(struct object_session *ses, uint64_t handle)
{
    drop_fd(ses, handle);
}

static void settle_fds(struct object_session *ses, uint32_t op, const void *req, void *rep)
{
    if (op == WIRE_OP_OPEN && ((struct wire_open_rep *)rep)->fd >= 0)
        keep_fd(ses, ((struct wire_open_rep *)rep)->handle, ((struct wire_open_rep *)rep)->fd);
    else if (op == WIRE_OP_PUT_OPEN && ((struct wire_put_open_rep *)rep)->fd >= 0)
        keep_fd(ses, ((struct wire_put_open_rep *)rep)->handle, ((struct wire_put_open_rep *)rep)->fd);
    else if (op == WIRE_OP_UPLOAD_RESUME && ((struct wire_upload_resume_rep *)rep)->fd >= 0)
        keep_fd(ses, ((struct wire_upload_resume_rep *)rep)->handle,
                ((struct wire_upload_resume_rep *)rep)->fd);
    else if (op == WIRE_OP_TREE_OPEN && ((struct wire_tree_open_rep *)rep)->fd >= 0)
        keep_fd(ses, ((struct wire_tree_open_rep *)rep)->handle, ((struct wire_tree_open_rep *)rep)->fd);
    else if (op == WIRE_OP_TREE_CREATE && ((struct wire_tree_create_rep *)rep)->fd >= 0)
        keep_fd(ses, ((struct wire_tree_create_rep *)rep)->handle, ((struct wire_tree_create_rep *)rep)->fd);
    else if (op == WIRE_OP_WATCH && ((struct wire_watch_rep *)rep)->fd >= 0)
        keep_fd(ses, ((struct wire_watch_rep *)rep)->handle, ((struct wire_watch_rep *)rep)->fd);
    else if (op == WIRE_OP_WATCH_NAMES && ((struct wire_watch_names_rep *)rep)->fd >= 0)
        keep_fd(ses, ((struct wire_watch_names_rep *)rep)->handle, ((struct wire_watch_names_rep *)rep)->fd);
    else if (op == WIRE_OP_CLOSE)
        drop_fd(ses, ((const struct wire_close_req *)req)->handle);
    else if (op == WIRE_OP_TREE_CLOSE)
        drop_fds(ses, ((const struct wire_tree_close_req *)req)->handles);
    else if (op == WIRE_OP_PUT_ABORT)
        drop_fd(ses, ((const struct wire_put_abort_req *)req)->handle);
    else if (op == WIRE_OP_PUT_COMMIT && !(((const struct wire_put_commit_req *)req)->flags & WIRE_KEEP))
        drop_fd(ses, ((const struct wire_put_commit_req *)req)->handle);
}

/* ---- near end ---- */

int route_loop_call(struct route_loop *l, struct object_session *ses, uint32_t op, const void *req,
                    struct arena *a, void *rep, struct err *e)
{
    const struct wire_op_info *info = wire_op_info(op);
    assert(info);
    struct channel *c = borrow(l);
    c->session = ses;
    _cleanup_buf_ struct buf body = BUF_INIT(WIRE_BODY_MAX_BYTES);
    int r = wire_call(c->near, op, req, &body, rep, e);
    give_back(l, c);
    if (r < 0)
        return r;
    /* The reply's slices point into body: decoded again over a copy that lives as long as the caller's arena.
     */
    int fd = *(int *)rep;
    struct slice copy = arena_dup(a, buf_view(&body));
    r = info->decode_rep(copy, rep);
    assert(r == 0); /* it was decoded once */
    *(int *)rep = fd;
    settle_fds(ses, op, req, rep);
    if (op == WIRE_OP_OPEN)
        reader_passed(ses, rep); /* the far end's is not needed any more */
    return 0;
}
