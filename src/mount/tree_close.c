/*
 * Telling the node that files were closed, a moment later, of several at once, and by a thread of its own: no
 * program waits for it, but those that go on creating files would wait for the thread that reads the kernel's
 * requests.
 *
 * Failure modes: a CLOSE that does not reach the node is not repeated: the session has ended, and its handles
 * with it. When more are pending than are kept here, whoever closes tells the node himself. A node that does
 * not know TREE_CLOSE is told of one after the other.
 */
#include "mount/tree.h"

#include "base/log.h"
#include "base/look.h"

#define PENDING_MAX 4096
#define TOLD_MAX    32      /* at once: the node is with one such call for half a millisecond at most */
#define WAIT_NS     1000000 /* for more */

struct tree_closer {
    struct mount *m;
    pthread_t thread;
    struct lock lock; /* covers what follows */
    struct cond wanted;
    struct cond told;
    struct tree_grant *pending;
    size_t n;
    uint64_t n_added, n_told; /* ever */
    bool is_ending, is_hurried;
};

void tree_close_grant(struct mount *m, struct tree_grant *g)
{
    struct wire_close_req req = {.handle = g->handle};
    struct wire_close_rep rep;
    struct err e = {0};
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    if (!g->is_held)
        return;
    g->is_held = false;
    int r = client_call_at(m->client, &g->epoch, WIRE_OP_CLOSE, &req, &b, &rep, &e);
    if (r < 0)
        log_debug("mount", "close: %s", e.text);
}

/* Handles of one session. ERR_NOT_IMPLEMENTED: none is closed. */
static int close_grants(struct mount *m, struct tree_grant *v, size_t n)
{
    struct wire_tree_close_rep rep;
    struct err e = {0};
    uint64_t epoch = v[0].epoch;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES),
                             handles = BUF_INIT(TOLD_MAX * sizeof(v[0].handle));
    for (size_t i = 0; i < n; i++)
        (void)wire_handle_encode(v[i].handle, &handles); /* there is room */
    struct wire_tree_close_req req = {.handles = buf_view(&handles)};
    int r = client_call_at(m->client, &epoch, WIRE_OP_TREE_CLOSE, &req, &b, &rep, &e);
    if (r < 0)
        log_debug("mount", "close of %zu files: %s", n, e.text);
    return r;
}

static void tell(struct mount *m, struct tree_grant *v, size_t n)
{
    for (size_t i = 0, k; i < n; i += k) {
        for (k = 1; k < MIN(n - i, (size_t)TOLD_MAX) && v[i + k].epoch == v[i].epoch; k++)
            ;
        if (k > 1 && close_grants(m, v + i, k) != ERR_NOT_IMPLEMENTED)
            continue;
        for (size_t j = i; j < i + k; j++)
            tree_close_grant(m, &v[j]);
    }
}

/* Waits until there is something, and a moment for more. The number, of grants that are the caller's from now
 * on; 0: the end. */
static size_t take_pending(struct tree_closer *c, struct tree_grant *ret)
{
    LOCK_SCOPE(&c->lock);
    while (c->n == 0 && !c->is_ending)
        cond_wait(&c->wanted, &c->lock);
    if (!c->is_ending && !c->is_hurried)
        (void)cond_wait_for(&c->wanted, &c->lock, WAIT_NS);
    c->is_hurried = false;
    size_t n = c->n;
    memcpy(ret, c->pending, n * sizeof(*ret));
    c->n = 0;
    return n;
}

static void note_told(struct tree_closer *c, size_t n)
{
    LOCK_SCOPE(&c->lock);
    c->n_told += n;
    cond_broadcast(&c->told);
}

static void *closer_main(void *arg)
{
    struct tree_closer *c = arg;
    _cleanup_free_ struct tree_grant *mine = calloc(PENDING_MAX, sizeof(*mine));
    if (!mine)
        abort();
    look_never();
    for (size_t n; (n = take_pending(c, mine)) > 0;) {
        tell(c->m, mine, n);
        note_told(c, n);
    }
    return NULL;
}

struct tree_closer *tree_closer_start(struct mount *m)
{
    struct tree_closer *c = calloc(1, sizeof(*c));
    if (!c)
        abort();
    c->m = m;
    c->pending = calloc(PENDING_MAX, sizeof(*c->pending));
    lock_init(&c->lock, LOCK_LEAF);
    cond_init(&c->wanted);
    cond_init(&c->told);
    if (!c->pending || pthread_create(&c->thread, NULL, closer_main, c) != 0)
        abort();
    return c;
}

void tree_closer_end(struct tree_closer *c)
{
    if (!c)
        return;
    lock_take(&c->lock);
    c->is_ending = true;
    cond_signal(&c->wanted);
    lock_drop(&c->lock);
    (void)pthread_join(c->thread, NULL);
    cond_fini(&c->wanted);
    cond_fini(&c->told);
    lock_fini(&c->lock);
    free(c->pending);
    free(c);
}

static bool add(struct tree_closer *c, const struct tree_grant *g)
{
    LOCK_SCOPE(&c->lock);
    if (c->n == PENDING_MAX || c->is_ending)
        return false;
    if (c->n == 0)
        cond_signal(&c->wanted);
    c->pending[c->n++] = *g;
    c->n_added++;
    return true;
}

bool tree_closer_drain(struct tree_closer *c)
{
    LOCK_SCOPE(&c->lock);
    uint64_t end = c->n_added;
    if (c->n_told >= end)
        return false;
    c->is_hurried = true;
    cond_signal(&c->wanted);
    while (c->n_told < end)
        cond_wait(&c->told, &c->lock);
    return true;
}

void tree_close_later(struct mount *m, struct tree_grant *g)
{
    if (g->is_held && m->tree->closer && add(m->tree->closer, g))
        g->is_held = false;
    else
        tree_close_grant(m, g);
}
