/* Links: a further one, and taking one away. */
#include "namespace/scratch_internal.h"

struct name_arg {
    uint64_t parent;
    struct slice name;
    uint64_t ino; /* link: what gets the name */
};

static int prepare_link(struct scratch_change *c, void *arg, struct err *e)
{
    struct name_arg *q = arg;
    struct scratch_loaded *dir, *x;
    struct scratch_dirent d;
    const uint64_t inos[] = {q->parent, q->ino};
    scratch_change_lock(c, inos, ARRAY_SIZE(inos));
    int r = scratch_change_dir(c, q->parent, &dir, e);
    if (r == 0)
        r = scratch_change_inode(c, q->ino, &x, e);
    if (r < 0)
        return r;
    if (S_ISDIR(x->x.mode))
        return err_set(e, -EPERM, "directories have one name");
    /* One that nobody holds is being freed. */
    bool lost = !(x->x.flags & SCRATCH_LINKABLE) || !scratch_held(c->s, c->call->bucket, q->ino);
    if (x->x.links == 0 && lost)
        return err_set(e, -ENOENT, "the file was removed");
    if (x->x.links >= SCRATCH_LINK_MAX)
        return err_set(e, -EMLINK, "too many links");
    r = scratch_change_entry(c, q->parent, q->name, &d, e);
    if (r != -ENOENT)
        return r == 0 ? err_set(e, -EEXIST, "exists") : r;
    r = scratch_may(&dir->x, c->call->cred, 2 | 1, e);
    if (r == 0)
        r = scratch_may_link(&x->x, c->call->cred, e);
    if (r < 0)
        return r;
    if (x->x.links++ == 0) {
        scratch_key_orphan(c->call->bucket, q->ino, &c->key);
        kv_txn_delete(c->txn, buf_view(&c->key));
    }
    x->x.flags &= ~(uint32_t)SCRATCH_LINKABLE;
    scratch_change_touch(c, x, /* contents= */ false);
    scratch_change_add(c, dir, q->name, /* cookie= */ 0, x);
    return 0;
}

int scratch_link(struct scratch *s, const struct scratch_call *call, uint64_t ino, uint64_t parent,
                 struct slice name, struct arena *a, struct scratch_inode *ret, struct err *e)
{
    struct name_arg q = {parent, name, ino};
    int r = scratch_check_name(name, e);
    if (r == 0 && (slice_eq_str(name, ".") || slice_eq_str(name, "..")))
        return err_set(e, -EEXIST, "exists");
    if (r < 0)
        return r;
    _cleanup_change_ struct scratch_change c;
    scratch_change_init(&c, s, call);
    r = scratch_change_run(&c, prepare_link, &q, e);
    return r < 0 ? r : scratch_getattr(s, call->bucket, ino, a, ret, e);
}

/* The entry, locked with its directory and inode. */
static int load_named(struct scratch_change *c, const struct name_arg *q, struct scratch_dirent *ret_d,
                      struct scratch_loaded **ret_dir, struct scratch_loaded **ret_x, struct err *e)
{
    struct scratch_dirent peek = {0}, d = {0};
    uint64_t version;
    int r = scratch_record_entry(c->s, c->call->bucket, q->parent, q->name, &peek, &version, e);
    if (r < 0 && r != -ENOENT)
        return r;
    const uint64_t inos[] = {q->parent, peek.ino};
    scratch_change_lock(c, inos, ARRAY_SIZE(inos));
    r = scratch_change_dir(c, q->parent, ret_dir, e);
    if (r == 0)
        r = scratch_change_entry(c, q->parent, q->name, &d, e);
    if (r < 0 && r != -ENOENT)
        return r;
    if (d.ino != peek.ino)
        return ERR_CONFLICT;
    if (r == -ENOENT)
        return err_set(e, -ENOENT, "no such file or directory");
    *ret_d = d;
    return scratch_change_inode(c, d.ino, ret_x, e);
}

static int prepare_unlink(struct scratch_change *c, void *arg, struct err *e)
{
    struct name_arg *q = arg;
    struct scratch_dirent d;
    struct scratch_loaded *dir, *x;
    int r = load_named(c, q, &d, &dir, &x, e);
    if (r < 0)
        return r;
    if (S_ISDIR(x->x.mode))
        return err_set(e, -EISDIR, "is a directory");
    r = scratch_may_remove(&dir->x, &x->x, c->call->cred, e);
    if (r < 0)
        return r;
    scratch_change_take(c, dir, q->name, &d, x);
    r = scratch_change_unlink(c, x, e);
    c->changed_ns = r == 0 ? c->now_ns : 0;
    return r;
}

int scratch_unlink(struct scratch *s, const struct scratch_call *call, uint64_t parent, struct slice name,
                   struct scratch_orphans *ret_orphans, int64_t *ret_changed_ns, struct err *e)
{
    struct name_arg q = {.parent = parent, .name = name};
    int r = scratch_check_name(name, e);
    if (r < 0)
        return r;
    _cleanup_change_ struct scratch_change c;
    scratch_change_init(&c, s, call);
    r = scratch_change_run(&c, prepare_unlink, &q, e);
    if (r == 0)
        *ret_orphans = c.orphans;
    if (r == 0 && ret_changed_ns)
        *ret_changed_ns = c.changed_ns;
    return r;
}

static int prepare_rmdir(struct scratch_change *c, void *arg, struct err *e)
{
    struct name_arg *q = arg;
    struct scratch_dirent d;
    struct scratch_loaded *dir, *x;
    int r = load_named(c, q, &d, &dir, &x, e);
    if (r < 0)
        return r;
    if (!S_ISDIR(x->x.mode))
        return err_set(e, -ENOTDIR, "not a directory");
    r = scratch_may_remove(&dir->x, &x->x, c->call->cred, e);
    if (r == 0 && x->x.entries > 0)
        return err_set(e, -ENOTEMPTY, "the directory is not empty");
    if (r < 0)
        return r;
    scratch_change_take(c, dir, q->name, &d, x);
    return scratch_change_unlink(c, x, e);
}

int scratch_rmdir(struct scratch *s, const struct scratch_call *call, uint64_t parent, struct slice name,
                  struct err *e)
{
    struct name_arg q = {.parent = parent, .name = name};
    int r = scratch_check_name(name, e);
    if (r == 0 && slice_eq_str(name, "."))
        return err_set(e, -EINVAL, "'.' cannot be removed");
    if (r == 0 && slice_eq_str(name, ".."))
        return err_set(e, -ENOTEMPTY, "'..' is not empty");
    if (r < 0)
        return r;
    _cleanup_change_ struct scratch_change c;
    scratch_change_init(&c, s, call);
    return scratch_change_run(&c, prepare_rmdir, &q, e);
}
