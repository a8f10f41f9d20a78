/*
 * Which operations concern scratch buckets, and where they run: the one place that tells them from mirrors.
 * TREE_* are of scratch buckets by themselves and go their ordinary way; so do operations on buckets as such.
 */
#include "object/scratch_object_ops.h"

/* The bucket that the request names; empty when the operation is not one of those that differ. */
static struct slice bucket_of(uint32_t op, const void *req)
{
    switch (op) {
#define X(NAME, name)                                                                                        \
    case WIRE_OP_##NAME:                                                                                     \
        return ((const struct wire_##name##_req *)req)->bucket;
        SCRATCH_BUCKET_OPS(X)
#undef X
    default:
        return SLICE_NULL;
    }
}

static uint64_t handle_of(uint32_t op, const void *req)
{
    switch (op) {
    case WIRE_OP_FETCH:
        return ((const struct wire_fetch_req *)req)->handle;
    case WIRE_OP_CLOSE:
        return ((const struct wire_close_req *)req)->handle;
    case WIRE_OP_PUT_WRITE:
        return ((const struct wire_put_write_req *)req)->handle;
    case WIRE_OP_PUT_COMMIT:
        return ((const struct wire_put_commit_req *)req)->handle;
    case WIRE_OP_PUT_ABORT:
        return ((const struct wire_put_abort_req *)req)->handle;
    case WIRE_OP_PUT_ROOM:
        return ((const struct wire_put_room_req *)req)->handle;
    case WIRE_OP_UPLOAD_KEEP:
        return ((const struct wire_upload_keep_req *)req)->handle;
    case WIRE_OP_UPLOAD_KEEP_PART:
        return ((const struct wire_upload_keep_part_req *)req)->handle;
    default:
        return 0;
    }
}

static bool is_scratch_handle(struct subject *s, uint32_t op, uint64_t handle)
{
    enum handle_kind kind = handle != 0 ? subject_kind(s, handle) : HANDLE_FREE;
#define X(NAME, name, kind_)                                                                                 \
    if (op == WIRE_OP_##NAME && kind == kind_)                                                               \
        return true;
    SCRATCH_HANDLE_OPS(X)
#undef X
    return false;
}

bool scratch_is_its(struct subject *s, uint32_t op, const void *req)
{
    struct slice name = bucket_of(op, req);
    if (name.n == 0)
        return is_scratch_handle(s, op, handle_of(op, req));
    subject_find_bucket(s, name);
    return s->is_scratch;
}

static int on_bucket(struct object_session *ses, uint32_t op, const void *req, struct arena *a, void *rep,
                     struct err *e)
{
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    int r = snode_bucket(ses->service, bucket_of(op, req), &b, e);
    if (r < 0)
        return r;
    struct scratch_op o = {
        .session = ses, .node = ses->service->scratch, .bucket = b, .cred = snode_owner(b)};
    o.call = (struct scratch_call){.bucket = b->id, .cred = &o.cred};
    switch (op) {
#define X(NAME, name)                                                                                        \
    case WIRE_OP_##NAME: {                                                                                   \
        struct wire_##name##_rep *typed = rep;                                                               \
        *typed = (struct wire_##name##_rep){.fd = -1};                                                       \
        r = op_scratch_##name(&o, req, a, typed, e);                                                         \
        break;                                                                                               \
    }
        SCRATCH_BUCKET_OPS(X)
#undef X
    default:
        assert(false);
    }
    return r < 0 ? err_prefix(e, r, "bucket %s", b->name) : 0;
}

int scratch_call_local(struct object_session *ses, uint32_t op, const void *req, struct arena *a, void *rep,
                       struct err *e)
{
    switch (op) {
#define HANDLE_OP(NAME, name)                                                                                \
    case WIRE_OP_##NAME: {                                                                                   \
        struct wire_##name##_rep *typed = rep;                                                               \
        *typed = (struct wire_##name##_rep){.fd = -1};                                                       \
        return op_scratch_##name(ses, req, a, typed, e);                                                     \
    }
        HANDLE_OP(FETCH, fetch)
        HANDLE_OP(CLOSE, close)
        HANDLE_OP(PUT_WRITE, put_write)
        HANDLE_OP(PUT_COMMIT, put_commit)
        HANDLE_OP(PUT_ABORT, put_abort)
        HANDLE_OP(PUT_ROOM, put_room)
        HANDLE_OP(UPLOAD_KEEP, upload_keep)
        HANDLE_OP(UPLOAD_KEEP_PART, upload_keep_part)
#undef HANDLE_OP
    default:
        return on_bucket(ses, op, req, a, rep, e);
    }
}

/* Changes of names and attributes; PUT_COMMIT tells of itself. */
static struct slice changed_bucket(uint32_t op, const void *req)
{
    switch (op) {
#define X(NAME, name)                                                                                        \
    case WIRE_OP_##NAME:                                                                                     \
        return ((const struct wire_##name##_req *)req)->bucket;
        X(REMOVE, remove)
        X(REMOVE_SINCE, remove_since)
        X(SET_META, set_meta)
        X(SET_TAGS, set_tags)
        X(COPY, copy)
        X(MKDIR, mkdir)
        X(RMDIR, rmdir)
        X(TREE_SETATTR, tree_setattr)
        X(TREE_CREATE, tree_create)
        X(TREE_OPEN, tree_open)
        X(TREE_LINK, tree_link)
        X(TREE_UNLINK, tree_unlink)
        X(TREE_REMOVE, tree_remove)
        X(TREE_RMDIR, tree_rmdir)
        X(TREE_RENAME, tree_rename)
        X(TREE_MOVE, tree_move)
        X(TREE_XATTR_SET, tree_xattr_set)
        X(TREE_XATTR_REMOVE, tree_xattr_remove)
#undef X
    default:
        return SLICE_NULL;
    }
}

/* The scratch bucket that changed, referenced; NULL: none did, or nobody watches. */
static struct bucket *changed_scratch(struct object_session *ses, uint32_t op, const void *req)
{
    struct bucket *_cleanup_(bucket_unrefp) b = NULL;
    struct slice name = watch_has_trees(ses->service) ? changed_bucket(op, req) : SLICE_NULL;
    if (name.n == 0 || bucket_find(ses->service->buckets, name, &b, NULL) < 0 || !bucket_is_scratch(b))
        return NULL;
    return TAKE_PTR(b);
}

void scratch_tell_change(struct object_session *ses, uint32_t op, const void *req)
{
    struct bucket *_cleanup_(bucket_unrefp) b = changed_scratch(ses, op, req);
    if (b)
        watch_tree_changed(ses, b->id);
}

void scratch_tell_all(struct object_session *ses, uint32_t op, const void *req)
{
    struct bucket *_cleanup_(bucket_unrefp) b = changed_scratch(ses, op, req);
    if (b)
        watch_bucket_changed(ses->service, b->id);
}
