/* Making inodes: files, directories, links that hold a path, special files, files without a name. */
#include "namespace/scratch_internal.h"

struct create_arg {
    uint64_t parent;
    struct slice name; /* empty: no name */
    const struct scratch_new *n;
    uint64_t ino; /* number for a new one, 0 until taken */
    bool made;
    struct scratch_inode result; /* in the change's arena */
};

static int check_new(const struct create_arg *q, struct err *e)
{
    uint32_t type = q->n->mode & S_IFMT;
    if (type != S_IFREG && type != S_IFDIR && type != S_IFLNK && type != S_IFIFO && type != S_IFSOCK &&
        type != S_IFCHR && type != S_IFBLK)
        return err_set(e, -EINVAL, "unknown type of file");
    if (q->n->location.n > SCRATCH_LOCATION_MAX || (q->n->location.n > 0 && type != S_IFREG))
        return err_set(e, -EINVAL, "no location for this type of file");
    if (q->n->target.n > SCRATCH_TARGET_MAX)
        return err_set(e, -ENAMETOOLONG, "target longer than %d bytes", SCRATCH_TARGET_MAX);
    if (type == S_IFLNK && (q->n->target.n == 0 || slice_find(q->n->target, 0) >= 0))
        return err_set(e, q->n->target.n == 0 ? -ENOENT : -EINVAL, "target is empty or has a NUL");
    if (q->name.n == 0)
        return type == S_IFREG ? 0 : err_set(e, -EINVAL, "only files can be without a name");
    if (slice_eq_str(q->name, ".") || slice_eq_str(q->name, ".."))
        return err_set(e, -EEXIST, "exists");
    return scratch_check_name(q->name, e);
}

/* A file is at home in its directory's shard; directories are spread. */
static int take_number(struct scratch *s, struct create_arg *q, struct err *e)
{
    if (q->ino != 0)
        return 0;
    uint32_t shard = scratch_shard_of(q->parent);
    if (shard >> SCRATCH_SHARD_BITS) /* a client's number, which no directory has */
        return err_set(e, -ENOENT, "no such directory");
    if (S_ISDIR(q->n->mode))
        shard = (uint32_t)(hash_mix(q->parent, hash_table(q->name)) >> (64 - SCRATCH_SHARD_BITS));
    return scratch_number_new(s, shard, &q->ino, e);
}

/* Owner and permissions of a new inode in dir. */
static void fill_owner(struct scratch_inode *x, const struct scratch_inode *dir, uint32_t mode,
                       const struct scratch_cred *cred)
{
    x->uid = cred ? cred->uid : 0;
    x->gid = dir->mode & S_ISGID ? dir->gid : cred ? cred->gid : 0;
    x->mode = S_ISLNK(mode) ? S_IFLNK | 0777 : mode & ~(cred ? cred->umask & 0777 : 0) & (S_IFMT | 07777);
    if (!(dir->mode & S_ISGID))
        return;
    if (S_ISDIR(mode))
        x->mode |= S_ISGID;
    else if ((x->mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP) && !(cred && cred->is_group_checked) &&
             !scratch_in_group(cred, dir->gid))
        x->mode &= ~(uint32_t)S_ISGID;
}

static void fill_new(struct scratch_change *c, struct scratch_loaded *x, const struct scratch_loaded *dir,
                     const struct create_arg *q)
{
    fill_owner(&x->x, &dir->x, q->n->mode, c->call->cred);
    x->x.links = S_ISDIR(q->n->mode) ? 2 : 1;
    if (S_ISDIR(q->n->mode))
        x->x.next_cookie = SCRATCH_COOKIE_FIRST;
    if (S_ISCHR(q->n->mode) || S_ISBLK(q->n->mode))
        x->x.rdev = q->n->rdev;
    if (S_ISLNK(q->n->mode)) {
        x->x.target = arena_dup(c->a, q->n->target);
        x->x.size_bytes = q->n->target.n;
    }
}

static void make_nameless(struct scratch_change *c, struct scratch_loaded *x)
{
    const char format = SCRATCH_FORMAT;
    x->x.links = 0;
    x->x.flags |= SCRATCH_LINKABLE;
    scratch_key_orphan(c->call->bucket, x->x.ino, &c->key);
    kv_txn_put_plain(c->txn, buf_view(&c->key), slice_of(&format, 1));
}

static int make(struct scratch_change *c, struct scratch_loaded *dir, struct create_arg *q, struct err *e)
{
    int r = scratch_may(&dir->x, c->call->cred, 2 | 1, e);
    if (r < 0)
        return r;
    bool is_device = S_ISCHR(q->n->mode) || S_ISBLK(q->n->mode),
         checks = c->call->cred && c->call->cred->check;
    if (is_device && checks && c->call->cred->uid != 0)
        return err_set(e, -EPERM, "only root makes devices");
    if (S_ISDIR(q->n->mode) && dir->x.links >= SCRATCH_LINK_MAX)
        return err_set(e, -EMLINK, "the directory has too many directories");
    struct scratch_loaded *x = scratch_change_fresh(c, q->ino);
    fill_new(c, x, dir, q);
    if (q->n->location.n > 0) {
        x->x.location = arena_dup(c->a, q->n->location);
        scratch_change_writing(c, x);
    }
    if (q->name.n > 0)
        scratch_change_add(c, dir, q->name, /* cookie= */ 0, x);
    else
        make_nameless(c, x);
    if (q->n->hold || q->name.n == 0)
        c->hold_ino = q->ino;
    c->answer_ino = q->ino;
    q->made = true;
    q->result = x->x;
    return 0;
}

static int take_existing(struct scratch_change *c, uint64_t ino, struct create_arg *q, struct err *e)
{
    if (q->n->exclusive || !S_ISREG(q->n->mode))
        return err_set(e, -EEXIST, "exists");
    struct scratch_loaded *x;
    int r = scratch_change_inode(c, ino, &x, e);
    if (r == 0 && S_ISDIR(x->x.mode))
        return err_set(e, -EISDIR, "is a directory");
    if (r < 0)
        return r;
    if (q->n->hold)
        c->hold_ino = ino;
    q->made = false;
    q->result = x->x;
    return 0;
}

static int prepare_create(struct scratch_change *c, void *arg, struct err *e)
{
    struct create_arg *q = arg;
    struct scratch_dirent peek = {0}, d = {0};
    uint64_t version;
    int r = q->name.n > 0
                ? scratch_record_entry(c->s, c->call->bucket, q->parent, q->name, &peek, &version, e)
                : -ENOENT;
    if (r == -ENOENT)
        r = take_number(c->s, q, e);
    if (r < 0)
        return r;
    const uint64_t inos[] = {q->parent, peek.ino != 0 ? peek.ino : q->ino};
    scratch_change_lock(c, inos, ARRAY_SIZE(inos));
    struct scratch_loaded *dir;
    r = scratch_change_dir(c, q->parent, &dir, e);
    if (r < 0)
        return r;
    r = q->name.n > 0 ? scratch_change_entry(c, q->parent, q->name, &d, e) : -ENOENT;
    if (r < 0 && r != -ENOENT)
        return r;
    if (d.ino != peek.ino)
        return ERR_CONFLICT;
    return d.ino != 0 ? take_existing(c, d.ino, q, e) : make(c, dir, q, e);
}

/* A file without a name that was made for this request ended with the hold that nobody got: by a restart. */
static int make_again(struct scratch *s, const struct scratch_call *call, uint64_t parent,
                      const struct scratch_new *n, struct arena *a, struct scratch_inode *ret, bool *ret_made,
                      struct err *e)
{
    struct scratch_call again = *call;
    again.request = 0;
    return scratch_create(s, &again, parent, SLICE_LIT(""), n, a, ret, ret_made, e);
}

int scratch_create(struct scratch *s, const struct scratch_call *call, uint64_t parent, struct slice name,
                   const struct scratch_new *n, struct arena *a, struct scratch_inode *ret, bool *ret_made,
                   struct err *e)
{
    struct create_arg q = {.parent = parent, .name = name, .n = n};
    int r = check_new(&q, e);
    if (r < 0)
        return r;
    _cleanup_change_ struct scratch_change c;
    scratch_change_init(&c, s, call);
    r = scratch_change_run(&c, prepare_create, &q, e);
    if (r < 0)
        return r;
    if (c.replayed) {
        r = scratch_getattr(s, call->bucket, c.answer_ino, a, ret, e);
        if (r == 0 && n->hold && !scratch_is_owner(ret, call->cred))
            return err_set(e, -EACCES, "what this request made is another user's by now");
        if (r == 0 && (n->hold || name.n == 0))
            r = scratch_hold(s, call->bucket, c.answer_ino, e);
        if (r == -ENOENT && name.n == 0)
            return make_again(s, call, parent, n, a, ret, ret_made, e);
        q.made = true;
    } else {
        *ret = scratch_inode_dup(&q.result, a);
    }
    if (r == 0 && ret_made)
        *ret_made = q.made;
    return r;
}
