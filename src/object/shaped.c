/*
 * The operations that pass the gate (gate.h), and who they are for.
 *
 * 1. A request passes once, at the front that took it: what the node does for it afterwards is part of it.
 * 2. Operations that are not in the tables below never wait: they close, end or look at something, wait for
 * others by themselves (locks, flushes), or change the node.
 */
#include "object/object_internal.h"

#include <inttypes.h>

#define PAGE       256
#define CLAIM_MAX  (1024 * TIB) /* bytes that one handle is believed to have brought */
#define CHARGE_MAX TIB          /* and those of them that are paid for */

/* X(NAME, name): operations on data with a field `bucket`. */
#define BUCKET_OPS(X)                                                                                        \
    X(STAT, stat)                                                                                            \
    X(LIST, list)                                                                                            \
    X(OPEN, open)                                                                                            \
    X(PUT_OPEN, put_open)                                                                                    \
    X(UPLOAD_PART, upload_part)                                                                              \
    X(REMOVE, remove)                                                                                        \
    X(REMOVE_SINCE, remove_since)                                                                            \
    X(COPY, copy)                                                                                            \
    X(MKDIR, mkdir)                                                                                          \
    X(RMDIR, rmdir)                                                                                          \
    X(SET_META, set_meta)                                                                                    \
    X(SET_TAGS, set_tags)                                                                                    \
    X(TREE_LOOKUP, tree_lookup)                                                                              \
    X(TREE_CREATE, tree_create)                                                                              \
    X(TREE_OPEN, tree_open)                                                                                  \
    X(TREE_READDIR, tree_readdir)                                                                            \
    X(TREE_SETATTR, tree_setattr)                                                                            \
    X(TREE_XATTR_SET, tree_xattr_set)                                                                        \
    X(TREE_XATTR_REMOVE, tree_xattr_remove)                                                                  \
    X(TREE_LINK, tree_link)                                                                                  \
    X(TREE_UNLINK, tree_unlink)                                                                              \
    X(TREE_REMOVE, tree_remove)                                                                              \
    X(TREE_RMDIR, tree_rmdir)                                                                                \
    X(TREE_RENAME, tree_rename)                                                                              \
    X(TREE_MOVE, tree_move)

/* X(NAME, name): operations on data by a handle. */
#define HANDLE_OPS(X)                                                                                        \
    X(FETCH, fetch)                                                                                          \
    X(PUT_WRITE, put_write)                                                                                  \
    X(UPLOAD_WRITE, upload_write)                                                                            \
    X(TREE_READ, tree_read)                                                                                  \
    X(TREE_WRITE, tree_write)                                                                                \
    X(TREE_APPEND, tree_append)

/* X(NAME, name): operations that give a handle, for which the bucket is remembered. */
#define OPENING_OPS(X)                                                                                       \
    X(OPEN, open)                                                                                            \
    X(PUT_OPEN, put_open)                                                                                    \
    X(UPLOAD_PART, upload_part)                                                                              \
    X(TREE_CREATE, tree_create)                                                                              \
    X(TREE_OPEN, tree_open)

/* Whether the operation passes the gate; its bucket, a reference, or NULL. */
static bool is_shaped(struct object_session *ses, uint32_t op, const void *req, struct bucket **ret)
{
    *ret = NULL;
    switch (op) {
#define X(NAME, name)                                                                                        \
    case WIRE_OP_##NAME:                                                                                     \
        (void)bucket_find(ses->service->buckets, ((const struct wire_##name##_req *)req)->bucket, ret,       \
                          NULL);                                                                             \
        return true;
        BUCKET_OPS(X)
#undef X
#define X(NAME, name)                                                                                        \
    case WIRE_OP_##NAME:                                                                                     \
        *ret = bucket_find_id(ses->service->buckets,                                                         \
                              session_bucket(ses, ((const struct wire_##name##_req *)req)->handle));         \
        return true;
        HANDLE_OPS(X)
#undef X
    default:
        return false;
    }
}

static void note_handle(struct object_session *ses, uint32_t op, const void *rep, const struct bucket *b)
{
    switch (op) {
#define X(NAME, name)                                                                                        \
    case WIRE_OP_##NAME:                                                                                     \
        session_note_bucket(ses, ((const struct wire_##name##_rep *)rep)->handle, b->id);                    \
        break;
        OPENING_OPS(X)
#undef X
    default:
        break;
    }
}

static bool gives_handle(uint32_t op)
{
#define X(NAME, name) || op == WIRE_OP_##NAME
    return false OPENING_OPS(X);
#undef X
}

/* What an operation moved. What the caller reads from a descriptor, CLOSE tells. */
static uint64_t bytes_of(uint32_t op, const void *req, const void *rep)
{
    if (op == WIRE_OP_FETCH)
        return ((const struct wire_fetch_rep *)rep)->data.n;
    if (op == WIRE_OP_OPEN)
        return ((const struct wire_open_rep *)rep)->data.n;
    if (op == WIRE_OP_PUT_WRITE)
        return ((const struct wire_put_write_req *)req)->data.n;
    if (op == WIRE_OP_UPLOAD_WRITE)
        return ((const struct wire_upload_write_req *)req)->data.n;
    if (op == WIRE_OP_TREE_READ)
        return ((const struct wire_tree_read_rep *)rep)->data.n;
    if (op == WIRE_OP_TREE_WRITE)
        return ((const struct wire_tree_write_rep *)rep)->n;
    if (op == WIRE_OP_TREE_APPEND)
        return ((const struct wire_tree_append_rep *)rep)->n;
    return 0;
}

static bool is_background(uint32_t op, const void *req)
{
    return op == WIRE_OP_FETCH && (((const struct wire_fetch_req *)req)->flags & WIRE_BACKGROUND);
}

struct object_claim object_claim(const struct object_session *ses, const struct wire_close_req *req)
{
    struct object_claim x = {0};
    if (ses->access_key)
        return x;
    x.cached = MIN(req->read_cached, CLAIM_MAX);
    x.origin = MIN(req->read_origin, CLAIM_MAX - x.cached);
    return x;
}

/* A descriptor is given back, or what it was for has ended: does not wait, but what was read is paid for. */
static int close_shaped(struct object_session *ses, const struct wire_close_req *req,
                        const struct gate_who *who, struct arena *a, void *rep, struct err *e)
{
    struct gate_who w = *who;
    _cleanup_(bucket_unrefp) struct bucket *b =
        bucket_find_id(ses->service->buckets, session_bucket(ses, req->handle));
    w.bucket = b;
    int r = object_call(ses, WIRE_OP_CLOSE, req, a, rep, e);
    const struct object_claim claim = object_claim(ses, req);
    if (r == 0)
        gate_charge(ses->service->gate, &w, MIN(claim.cached + claim.origin, CHARGE_MAX));
    return r;
}

int object_call_shaped(struct object_session *ses, uint32_t op, const void *req, struct arena *a, void *rep,
                       struct err *e)
{
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    _cleanup_(user_unrefp) struct user *u = NULL;
    struct gate *g = ses->service->gate;
    struct gate_pass pass;
    char client[32];
    bool close = op == WIRE_OP_CLOSE;
    bool closed = gate_is_closed(g), shaped = (closed || gives_handle(op)) && is_shaped(ses, op, req, &b);
    int r;
    if (!closed || (!close && !shaped)) {
        r = object_call(ses, op, req, a, rep, e);
        if (r == 0 && b)
            note_handle(ses, op, rep, b); /* limits may come while it is open */
        return r;
    }
    r = access_user(ses, &u, e);
    if (r < 0)
        return r;
    (void)snprintf(client, sizeof(client), "session %" PRIu64, ses->number);
    const struct gate_who who = {
        .bucket = b, .user = u, .client = slice_str(client), .background = is_background(op, req)};
    if (close)
        return close_shaped(ses, req, &who, a, rep, e);
    r = gate_enter(g, &who, &pass, e);
    if (r < 0)
        return r;
    r = object_call(ses, op, req, a, rep, e);
    gate_leave(g, &pass, r == 0 ? bytes_of(op, req, rep) : 0);
    if (r == 0 && b)
        note_handle(ses, op, rep, b);
    return r;
}

/* Each as if it had come by itself: it is another's to say what a handle is of, and who pays. */
int op_close_many(struct object_session *ses, const struct wire_close_many_req *req, struct arena *a,
                  struct wire_close_many_rep *rep, struct err *e)
{
    struct slice rest = req->closed;
    struct wire_closed x;
    int r, result = 0;
    (void)rep;
    while ((r = wire_closed_decode(&rest, &x)) == 0) {
        const struct wire_close_req one = {
            .handle = x.handle, .read_cached = x.read_cached, .read_origin = x.read_origin};
        struct wire_close_rep none;
        struct err mine = {0};
        int k = object_call_shaped(ses, WIRE_OP_CLOSE, &one, a, &none, &mine);
        if (k < 0 && k != -EBADF && result == 0)
            result = err_set(e, k, "%s", mine.text);
    }
    return r == -ENOENT ? result : err_set(e, -EINVAL, "what is closed has 24 bytes each");
}

int object_gate_enter(struct object_service *s, struct slice bucket, const struct user *user,
                      struct slice client, struct gate_pass *ret, struct err *e)
{
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    *ret = (struct gate_pass){.nodes = {NULL}};
    if (!gate_is_closed(s->gate))
        return 0;
    if (bucket.n > 0)
        (void)bucket_find(s->buckets, bucket, &b, NULL); /* one that is not there is answered later */
    const struct gate_who who = {.bucket = b, .user = user, .client = client, .may_refuse = true};
    return gate_enter(s->gate, &who, ret, e);
}

bool object_gate_is_closed(struct object_service *s)
{
    return gate_is_closed(s->gate);
}

void object_gate_leave(struct object_service *s, struct gate_pass *p, uint64_t bytes)
{
    gate_leave(s->gate, p, bytes);
}

void object_gate_open(struct object_service *s)
{
    gate_open(s->gate);
    atomic_store(&s->unlimited, true); /* also for who reads by an upstream of earlier properties */
    LOCK_SCOPE(&s->lock);
    for (struct upstream_slot *x = s->upstreams; x; x = x->next)
        upstream_unlimit(x->upstream);
}

void object_stop_soon(struct object_service *s)
{
    atomic_store(&s->stopping_soon, true);
}

void object_stop_now(struct object_service *s)
{
    atomic_store(&s->stopping, true);
}

bool object_is_stopping(const struct object_service *s)
{
    return atomic_load(&s->stopping_soon) || atomic_load(&s->stopping);
}

static bool user_is_special(const struct user *u)
{
    return u->limits.share != SHAPE_WEIGHT_ONE || u->limits.requests_per_s || u->limits.bytes_per_s;
}

static bool bucket_is_special(const struct bucket *b)
{
    return b->p.share != SHAPE_WEIGHT_ONE || b->p.limit_requests || b->p.limit_bytes;
}

void shaped_look(struct object_service *s)
{
    struct bucket *buckets[PAGE];
    struct user *users[PAGE];
    struct slice after = SLICE_NULL;
    char name[USER_NAME_MAX + 1];
    bool special = false;
    size_t n;
    do {
        n = bucket_page(s->buckets, after, buckets, PAGE);
        for (size_t i = 0; i < n; i++) {
            special = special || bucket_is_special(buckets[i]);
            (void)snprintf(name, sizeof(name), "%s", buckets[i]->name);
            bucket_unref(buckets[i]);
        }
        after = slice_str(name);
    } while (n == PAGE && !special);
    after = SLICE_NULL;
    do {
        n = user_page(s->users, after, users, PAGE);
        for (size_t i = 0; i < n; i++) {
            special = special || user_is_special(users[i]);
            (void)snprintf(name, sizeof(name), "%s", users[i]->name);
            user_unref(users[i]);
        }
        after = slice_str(name);
    } while (n == PAGE && !special);
    if (special)
        gate_close(s->gate);
}
