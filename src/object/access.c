/*
 * What a session's user may do.
 *
 * 1. An operation that is not in the table below needs the right to manage: what is new is refused to users
 *    until someone has thought about it.
 * 2. A key that was revoked ends its sessions at their next call, whatever that is.
 * 3. Operations on a handle need no right of their own: the handle was given out for what it does.
 *
 * 4. No user watches (WATCH, WATCH_NAMES): the pipe stays here, where only descriptors would bound how many
 * there are, and who watches a scratch bucket counts as a mount of it.
 *
 * 5. A user works on the tree of a scratch bucket (TREE_*) only by a session of which the kernel of this
 * machine tells whose it is (object_session_set_peer): by that the node checks permissions, after what is
 * checked here. Of others the client's kernel would have to be believed. No user gives files there modes and
 * owners by key (WIRE_MODES).
 *
 * 6. No user keeps uploads here (UPLOAD_KEEP, UPLOAD_KEEP_PART, UPLOAD_RESUME): their records are the S3
 * front end's, which bounds how many there are and believes them at the next start.
 *
 * Sessions without a user (the node's own pair, trusted uids, the S3 front end, which checks each request by
 * itself) may do everything.
 */
#include "object/object_internal.h"

/* X(NAME, name, right, field of the request that names the bucket, or `none`) */
#define ACCESS(X)                                                                                            \
    X(BUCKET_GET, bucket_get, READ, name)                                                                    \
    X(STAT, stat, READ, bucket)                                                                              \
    X(LIST, list, READ, bucket)                                                                              \
    X(OPEN, open, READ, bucket)                                                                              \
    X(PARTS, parts, READ, bucket)                                                                            \
    X(PART, part, READ, bucket)                                                                              \
    X(TAGS, tags, READ, bucket)                                                                              \
    X(REPORT, report, READ, bucket)                                                                          \
    X(PUT_OPEN, put_open, WRITE, bucket)                                                                     \
    X(UPLOAD_CREATE, upload_create, WRITE, bucket)                                                           \
    X(UPLOAD_PART, upload_part, WRITE, bucket)                                                               \
    X(UPLOAD_PARTS, upload_parts, WRITE, bucket)                                                             \
    X(UPLOAD_LIST, upload_list, WRITE, bucket)                                                               \
    X(UPLOAD_COMPLETE, upload_complete, WRITE, bucket)                                                       \
    X(UPLOAD_ABORT, upload_abort, WRITE, bucket)                                                             \
    X(REMOVE, remove, WRITE, bucket)                                                                         \
    X(REMOVE_SINCE, remove_since, WRITE, bucket)                                                             \
    X(COPY, copy, WRITE, bucket)                                                                             \
    X(SET_META, set_meta, WRITE, bucket)                                                                     \
    X(SET_TAGS, set_tags, WRITE, bucket)                                                                     \
    X(MKDIR, mkdir, WRITE, bucket)                                                                           \
    X(RMDIR, rmdir, WRITE, bucket)                                                                           \
    X(TREE_LOOKUP, tree_lookup, READ, bucket)                                                                \
    X(TREE_GETATTR, tree_getattr, READ, bucket)                                                              \
    X(TREE_READDIR, tree_readdir, READ, bucket)                                                              \
    X(TREE_XATTR_GET, tree_xattr_get, READ, bucket)                                                          \
    X(TREE_XATTR_LIST, tree_xattr_list, READ, bucket)                                                        \
    X(TREE_STATFS, tree_statfs, READ, bucket)                                                                \
    X(TREE_SYNC, tree_sync, READ, bucket)                                                                    \
    X(TREE_LOCK, tree_lock, READ, bucket)                                                                    \
    X(TREE_LEAVE, tree_leave, READ, bucket)                                                                  \
    X(TREE_SETATTR, tree_setattr, WRITE, bucket)                                                             \
    X(TREE_CREATE, tree_create, WRITE, bucket)                                                               \
    X(TREE_LINK, tree_link, WRITE, bucket)                                                                   \
    X(TREE_UNLINK, tree_unlink, WRITE, bucket)                                                               \
    X(TREE_REMOVE, tree_remove, WRITE, bucket)                                                               \
    X(TREE_RMDIR, tree_rmdir, WRITE, bucket)                                                                 \
    X(TREE_RENAME, tree_rename, WRITE, bucket)                                                               \
    X(TREE_MOVE, tree_move, WRITE, bucket)                                                                   \
    X(TREE_XATTR_SET, tree_xattr_set, WRITE, bucket)                                                         \
    X(TREE_XATTR_REMOVE, tree_xattr_remove, WRITE, bucket)                                                   \
    X(STRANDED, stranded, WRITE, bucket)                                                                     \
    X(STRANDED_END, stranded_end, WRITE, bucket)

static enum user_right right_of(uint32_t op, const void *req, struct slice *ret_bucket)
{
    *ret_bucket = SLICE_NULL;
    switch (op) {
#define X(NAME, name, right, field)                                                                          \
    case WIRE_OP_##NAME:                                                                                     \
        *ret_bucket = ((const struct wire_##name##_req *)req)->field;                                        \
        return USER_MAY_##right;
        ACCESS(X)
#undef X
    case WIRE_OP_TREE_OPEN: {
        const struct wire_tree_open_req *q = req;
        *ret_bucket = q->bucket;
        return q->flags & (WIRE_WRITE | WIRE_TRUNCATE) ? USER_MAY_WRITE : USER_MAY_READ;
    }
    case WIRE_OP_TREE_CLOSE:
    case WIRE_OP_TREE_READ:
    case WIRE_OP_TREE_WRITE:
    case WIRE_OP_TREE_APPEND:
    case WIRE_OP_TREE_ALLOCATE:
    case WIRE_OP_TREE_SEEK:
    case WIRE_OP_CHALLENGE:
    case WIRE_OP_HELLO:
    case WIRE_OP_BUCKET_LIST: /* shows what the user may read */
    case WIRE_OP_FETCH:
    case WIRE_OP_CLOSE:
    case WIRE_OP_CLOSE_MANY:
    case WIRE_OP_PUT_WRITE:
    case WIRE_OP_PUT_COMMIT:
    case WIRE_OP_PUT_ABORT:
    case WIRE_OP_PUT_ROOM:
    case WIRE_OP_STRAND:
    case WIRE_OP_UPLOAD_WRITE:
    case WIRE_OP_UPLOAD_END:
        return USER_MAY_ANY;
    default:
        return USER_MAY_MANAGE;
    }
}

struct user *object_find_user(struct object_service *s, struct slice access_key,
                              char ret_secret_key[USER_SECRET_KEY_LEN + 1])
{
    return user_find_key(s->users, access_key, ret_secret_key);
}

bool object_anonymous_read(struct object_service *s, struct slice bucket)
{
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    return bucket_find(s->buckets, bucket, &b, NULL) == 0 && b->p.anonymous == BUCKET_ANONYMOUS_READ;
}

int object_session_sign_in(struct object_session *ses, struct slice access_key, struct err *e)
{
    assert(ses->magic == OBJECT_SESSION_MAGIC && !ses->access_key);
    struct user *u = user_find_key(ses->service->users, access_key, NULL);
    if (!u)
        return err_set(e, ERR_UNAUTHENTICATED, "credentials missing or wrong");
    ses->access_key = slice_dup(access_key);
    LOCK_SCOPE(&ses->lock);
    ses->user = u;
    return 0;
}

int access_user(struct object_session *ses, struct user **ret, struct err *e)
{
    *ret = NULL;
    if (!ses->access_key)
        return 0;
    LOCK_SCOPE(&ses->lock);
    if (ses->user && atomic_load(&ses->user->retired)) {
        user_unref(ses->user);
        ses->user = user_find_key(ses->service->users, slice_str(ses->access_key), NULL);
    }
    if (!ses->user)
        return err_set(e, ERR_UNAUTHENTICATED, "the access key was revoked");
    *ret = user_ref(ses->user);
    return 0;
}

static bool is_of_trees(uint32_t op)
{
    return (op >= WIRE_OP_TREE_LOOKUP && op <= WIRE_OP_TREE_ROOM) || op == WIRE_OP_TREE_CLOSE ||
           (op >= WIRE_OP_TREE_READ && op <= WIRE_OP_TREE_MOVE);
}

static bool gives_modes(uint32_t op, const void *req)
{
    return (op == WIRE_OP_PUT_OPEN && ((const struct wire_put_open_req *)req)->flags & WIRE_MODES) ||
           (op == WIRE_OP_SET_META && ((const struct wire_set_meta_req *)req)->flags & WIRE_MODES);
}

int access_check(struct object_session *ses, uint32_t op, const void *req, struct err *e)
{
    _cleanup_(user_unrefp) struct user *u = NULL;
    struct slice bucket;
    int r = access_user(ses, &u, e);
    if (r < 0 || !u)
        return r;
    if (is_of_trees(op) && !ses->has_peer)
        return err_set(e, -EACCES,
                       "user %s may not mount a scratch bucket in this way: it takes the node's Unix socket "
                       "(--socket PATH), which tells whose uid asks",
                       u->name);
    if (gives_modes(op, req))
        return err_set(e, -EACCES, "user %s may not give files modes and owners", u->name);
    enum user_right right = right_of(op, req, &bucket);
    if (user_may(u, right, bucket))
        return 0;
    if (right == USER_MAY_MANAGE)
        return err_set(e, -EACCES, "user %s (%s) may not do this: it takes an admin", u->name,
                       user_role_name(u->role));
    return err_set(e, -EACCES, "user %s (%s) may not %s bucket '" SLICE_FMT "'", u->name,
                   user_role_name(u->role), right == USER_MAY_WRITE ? "write to" : "read from",
                   SLICE_ARG(slice_sub(bucket, 0, 80)));
}
