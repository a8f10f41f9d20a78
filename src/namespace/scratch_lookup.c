/* Finding inodes by name and path, and reading directories. */
#include "namespace/scratch_internal.h"

#include "base/le.h"

int scratch_check_name(struct slice name, struct err *e)
{
    if (name.n > SCRATCH_NAME_MAX)
        return err_set(e, -ENAMETOOLONG, "name longer than %d bytes", SCRATCH_NAME_MAX);
    if (name.n == 0)
        return err_set(e, -ENOENT, "empty name");
    if (slice_find(name, '/') >= 0 || slice_find(name, 0) >= 0)
        return err_set(e, -EINVAL, "name with '/' or NUL");
    return 0;
}

static int load_dir(struct scratch *s, uint64_t bucket, uint64_t ino, struct scratch_inode *ret,
                    struct err *e)
{
    _cleanup_buf_ struct buf raw = BUF_INIT(SCRATCH_RECORD_MAX);
    struct scratch_inode x;
    uint64_t version;
    int r = scratch_record_inode(s, bucket, ino, &raw, &x, &version, e);
    if (r == -ENOENT)
        return err_set(e, -ENOENT, "directory %llu does not exist", (unsigned long long)ino);
    if (r == 0 && !S_ISDIR(x.mode))
        return err_set(e, -ENOTDIR, "not a directory");
    /* Its numbers only: the strings lie in raw. */
    x.location = x.target = x.etag = x.content_type = x.meta = SLICE_NULL;
    if (r == 0)
        *ret = x;
    return r;
}

/* Follows the entry; one that was replaced between the two reads is looked up again. Slices lie in raw. */
static int entry_inode(struct scratch *s, uint64_t bucket, uint64_t dir, struct slice name, struct buf *raw,
                       struct scratch_inode *ret, struct err *e)
{
    for (int i = 0; i < SCRATCH_TRIES; i++) {
        struct scratch_dirent d;
        uint64_t version;
        int r = scratch_record_entry(s, bucket, dir, name, &d, &version, e);
        if (r == -ENOENT)
            return err_set(e, -ENOENT, "no such file or directory");
        if (r == 0)
            r = scratch_record_inode(s, bucket, d.ino, raw, ret, &version, e);
        if (r != -ENOENT)
            return r;
    }
    return err_set(e, ERR_CORRUPT, "control store: entry '" SLICE_FMT "' of directory %llu leads nowhere",
                   SLICE_ARG(slice_sub(name, 0, 80)), (unsigned long long)dir);
}

int scratch_lookup(struct scratch *s, const struct scratch_call *call, uint64_t parent, struct slice name,
                   struct arena *a, struct scratch_inode *ret, struct err *e)
{
    struct scratch_inode dir;
    int r = scratch_check_name(name, e);
    if (r == 0)
        r = load_dir(s, call->bucket, parent, &dir, e);
    if (r == 0)
        r = scratch_may(&dir, call->cred, 1, e);
    if (r < 0)
        return r;
    if (slice_eq_str(name, "."))
        return scratch_getattr(s, call->bucket, parent, a, ret, e);
    if (slice_eq_str(name, ".."))
        return scratch_getattr(s, call->bucket, dir.parent, a, ret, e);
    _cleanup_buf_ struct buf raw = BUF_INIT(SCRATCH_RECORD_MAX);
    struct scratch_inode x;
    r = entry_inode(s, call->bucket, parent, name, &raw, &x, e);
    if (r == 0)
        *ret = scratch_inode_dup(&x, a);
    return r;
}

int scratch_path(struct scratch *s, uint64_t bucket, struct slice path, struct arena *a,
                 struct scratch_inode *ret, struct err *e)
{
    bool must_be_dir = path.n > 0 && path.p[path.n - 1] == '/';
    if (must_be_dir)
        path.n--;
    _cleanup_buf_ struct buf raw = BUF_INIT(SCRATCH_RECORD_MAX);
    struct scratch_inode x;
    uint64_t version;
    int r = scratch_record_inode(s, bucket, SCRATCH_ROOT, &raw, &x, &version, e);
    if (r == -ENOENT)
        return err_set(e, -ENOENT, "the bucket has no root");
    while (r == 0 && path.n > 0) {
        struct slice name = slice_split(&path, '/');
        r = scratch_check_name(name, e);
        if (r == 0 && !S_ISDIR(x.mode))
            r = err_set(e, -ENOTDIR, "a component of the path is not a directory");
        if (r == 0)
            r = entry_inode(s, bucket, x.ino, name, &raw, &x, e);
    }
    if (r == 0 && must_be_dir && !S_ISDIR(x.mode))
        r = err_set(e, -ENOTDIR, "not a directory");
    if (r == 0)
        *ret = scratch_inode_dup(&x, a);
    return r;
}

/* ---- directories ---- */

int scratch_readdir_end(struct scratch *s, uint64_t bucket, uint64_t dir, uint64_t *ret_until, struct err *e)
{
    struct scratch_inode x = {0};
    int r = load_dir(s, bucket, dir, &x, e);
    if (r == 0)
        *ret_until = x.next_cookie;
    return r;
}

int scratch_readdir(struct scratch *s, uint64_t bucket, uint64_t dir, uint64_t after, uint64_t until,
                    int (*on_entry)(void *arg, const struct scratch_entry *x), void *arg, struct err *e)
{
    struct scratch_inode x;
    int r = load_dir(s, bucket, dir, &x, e);
    if (r < 0)
        return r;
    _cleanup_buf_ struct buf from = BUF_INIT(SCRATCH_KEY_MAX), to = BUF_INIT(SCRATCH_KEY_MAX);
    scratch_key_order(bucket, dir, after == UINT64_MAX ? after : after + 1, &from);
    scratch_key_order(bucket, dir, until != 0 ? until : UINT64_MAX, &to);
    _cleanup_(kv_iter_freep) struct kv_iter *it = kv_iter_new(s->kv, buf_view(&from), buf_view(&to));
    struct slice key, value;
    while ((r = kv_iter_next(it, &key, &value, e)) == 0) {
        struct scratch_dirent d;
        struct scratch_entry entry;
        if (key.n != from.n || scratch_order_decode(value, &d, &entry.name) < 0)
            return err_set(e, ERR_CORRUPT, "control store: directory %llu has an entry that is not ours",
                           (unsigned long long)dir);
        entry.ino = d.ino;
        entry.mode = (uint32_t)d.type << 12;
        entry.cookie = be_get64(key.p + key.n - 8);
        if (on_entry(arg, &entry) != 0)
            return 0;
    }
    return r == -ENOENT ? 0 : r;
}
