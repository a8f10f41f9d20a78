/* Extended attributes: a record each, counted in the inode, whose record every change of them rewrites. */
#include "namespace/scratch_internal.h"

struct xattr_arg {
    uint64_t ino;
    struct slice name, value;
    uint32_t flags;
};

static int check_xattr_name(struct slice name, struct err *e)
{
    if (name.n == 0 || name.n > SCRATCH_NAME_MAX || slice_find(name, 0) >= 0)
        return err_set(e, -ERANGE, "name of an attribute has 1 to %d bytes", SCRATCH_NAME_MAX);
    return 0;
}

int scratch_xattr_get(struct scratch *s, uint64_t bucket, uint64_t ino, struct slice name, struct buf *ret,
                      struct err *e)
{
    int r = check_xattr_name(name, e);
    if (r < 0)
        return r;
    _cleanup_buf_ struct buf key = BUF_INIT(SCRATCH_KEY_MAX);
    scratch_key(bucket, ino, SCRATCH_KEY_XATTR, name, &key);
    r = kv_get(s->kv, buf_view(&key), ret, NULL, e);
    return r == -ENOENT ? err_set(e, -ENODATA, "no such attribute") : r;
}

int scratch_xattr_list(struct scratch *s, uint64_t bucket, uint64_t ino, struct buf *ret, struct err *e)
{
    _cleanup_buf_ struct buf raw = BUF_INIT(SCRATCH_RECORD_MAX);
    struct scratch_inode x;
    uint64_t version;
    int r = scratch_record_inode(s, bucket, ino, &raw, &x, &version, e);
    if (r == -ENOENT)
        return err_set(e, -ENOENT, "inode %llu does not exist", (unsigned long long)ino);
    if (r < 0 || x.xattrs == 0)
        return r;
    _cleanup_buf_ struct buf from = BUF_INIT(SCRATCH_KEY_MAX), to = BUF_INIT(SCRATCH_KEY_MAX);
    scratch_key(bucket, ino, SCRATCH_KEY_XATTR, SLICE_NULL, &from);
    (void)kv_prefix_end(buf_view(&from), &to);
    _cleanup_(kv_iter_freep) struct kv_iter *it = kv_iter_new(s->kv, buf_view(&from), buf_view(&to));
    struct slice key, value;
    while ((r = kv_iter_next(it, &key, &value, e)) == 0) {
        r = buf_slice(ret, slice_from(key, from.n));
        if (r == 0)
            r = buf_char(ret, 0);
        if (r < 0)
            return err_set(e, r, "names of attributes are too long");
    }
    return r == -ENOENT ? 0 : r;
}

/* Who is checked sets only attributes of users, of files and directories; where others may write to a
 * directory and not remove what is in it, they do not set these either. */
static int may_have_xattr(const struct scratch_inode *x, struct slice name, const struct scratch_cred *cred,
                          struct err *e)
{
    if (!cred || !cred->check || cred->uid == 0)
        return 0;
    bool is_shared = S_ISDIR(x->mode) && x->mode & S_ISVTX && cred->uid != x->uid;
    if (!slice_starts(name, SLICE_LIT("user.")) || (!S_ISREG(x->mode) && !S_ISDIR(x->mode)) || is_shared)
        return err_set(e, -EPERM, "this attribute is not for every user to set");
    return scratch_may(x, cred, 2, e);
}

/* Loads the inode and tells whether it has the attribute. */
static int load_xattr(struct scratch_change *c, const struct xattr_arg *q, struct scratch_loaded **ret,
                      bool *ret_has, struct err *e)
{
    scratch_change_lock(c, &q->ino, 1);
    int r = scratch_change_inode(c, q->ino, ret, e);
    if (r == 0)
        r = may_have_xattr(&(*ret)->x, q->name, c->call->cred, e);
    if (r < 0)
        return r;
    scratch_key(c->call->bucket, q->ino, SCRATCH_KEY_XATTR, q->name, &c->key);
    r = kv_get(c->s->kv, buf_view(&c->key), NULL, NULL, e);
    *ret_has = r == 0;
    return r == -ENOENT ? 0 : r;
}

static int prepare_set(struct scratch_change *c, void *arg, struct err *e)
{
    struct xattr_arg *q = arg;
    struct scratch_loaded *x;
    bool has;
    int r = load_xattr(c, q, &x, &has, e);
    if (r < 0)
        return r;
    if (has && q->flags & SCRATCH_XATTR_CREATE)
        return err_set(e, -EEXIST, "the attribute exists");
    if (!has && q->flags & SCRATCH_XATTR_REPLACE)
        return err_set(e, -ENODATA, "no such attribute");
    if (!has && x->x.xattr_name_bytes + q->name.n + 1 > SCRATCH_XATTR_LIST_MAX)
        return err_set(e, -ENOSPC, "too many attributes");
    kv_txn_put_plain(c->txn, buf_view(&c->key), q->value);
    if (!has) {
        x->x.xattrs++;
        x->x.xattr_name_bytes += (uint32_t)q->name.n + 1;
    }
    scratch_change_touch(c, x, /* contents= */ false);
    return 0;
}

int scratch_xattr_set(struct scratch *s, const struct scratch_call *call, uint64_t ino, struct slice name,
                      struct slice value, uint32_t flags, struct err *e)
{
    struct xattr_arg q = {ino, name, value, flags};
    int r = check_xattr_name(name, e);
    if (r == 0 && value.n > SCRATCH_XATTR_MAX)
        return err_set(e, -E2BIG, "value of an attribute longer than %d bytes", (int)SCRATCH_XATTR_MAX);
    if (r == 0 && flags & ~(uint32_t)(SCRATCH_XATTR_CREATE | SCRATCH_XATTR_REPLACE))
        return err_set(e, -EINVAL, "flags of setxattr");
    if (r < 0)
        return r;
    _cleanup_change_ struct scratch_change c;
    scratch_change_init(&c, s, call);
    return scratch_change_run(&c, prepare_set, &q, e);
}

static int prepare_remove(struct scratch_change *c, void *arg, struct err *e)
{
    struct xattr_arg *q = arg;
    struct scratch_loaded *x;
    bool has;
    int r = load_xattr(c, q, &x, &has, e);
    if (r == 0 && !has)
        return err_set(e, -ENODATA, "no such attribute");
    if (r < 0)
        return r;
    kv_txn_delete(c->txn, buf_view(&c->key));
    x->x.xattrs--;
    x->x.xattr_name_bytes -= (uint32_t)q->name.n + 1;
    scratch_change_touch(c, x, /* contents= */ false);
    return 0;
}

int scratch_xattr_remove(struct scratch *s, const struct scratch_call *call, uint64_t ino, struct slice name,
                         struct err *e)
{
    struct xattr_arg q = {.ino = ino, .name = name};
    int r = check_xattr_name(name, e);
    if (r < 0)
        return r;
    _cleanup_change_ struct scratch_change c;
    scratch_change_init(&c, s, call);
    return scratch_change_run(&c, prepare_remove, &q, e);
}
