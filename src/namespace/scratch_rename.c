/*
 * Renaming, whatever lies below: two entries and the inodes they lead to.
 *
 * A directory that gets another parent must not come below itself. Such renames run one at a time (a lock of
 * their own, and a record that each of them rewrites), so the way from the new parent to the root cannot
 * change while it is walked.
 *
 * A place whose directory is the key table has a key for a name; it is how objects get other keys.
 */
#include "namespace/scratch_internal.h"

#define DEPTH_MAX 100000 /* a longer way up is a circle */

struct end {
    uint64_t dir;
    struct slice name;
    struct scratch_dirent d;      /* ino 0: there is none */
    struct scratch_loaded *in;    /* NULL: the key table */
    struct scratch_loaded *inode; /* NULL: there is none */
};

struct rename_arg {
    struct end from, to;
    struct end hidden; /* the target's key in the key table, when the target is a path; name empty: none */
    struct end left;   /* the same of what is renamed: else it would be there again */
    uint32_t flags;
};

static uint64_t lock_of(const struct end *x)
{
    return x->dir == SCRATCH_INO_KEYS ? scratch_key_number(x->name) : x->dir;
}

static int peek(struct scratch_change *c, struct end *x, struct err *e)
{
    uint64_t version;
    x->d = (struct scratch_dirent){0};
    x->in = x->inode = NULL;
    int r = scratch_record_entry(c->s, c->call->bucket, x->dir, x->name, &x->d, &version, e);
    return r == -ENOENT ? 0 : r;
}

/* Loads what the peek saw; ERR_CONFLICT when it is something else now. */
static int load(struct scratch_change *c, struct end *x, struct err *e)
{
    struct scratch_dirent now = {0};
    int r = x->dir == SCRATCH_INO_KEYS ? 0 : scratch_change_dir(c, x->dir, &x->in, e);
    if (r < 0)
        return r;
    r = scratch_change_entry(c, x->dir, x->name, &now, e);
    if (r < 0 && r != -ENOENT)
        return r;
    if (now.ino != x->d.ino)
        return ERR_CONFLICT;
    x->d = now;
    return now.ino == 0 ? 0 : scratch_change_inode(c, now.ino, &x->inode, e);
}

static bool is_dir(const struct end *x)
{
    return x->d.type == S_IFDIR >> 12;
}

static int lock_and_load(struct scratch_change *c, struct rename_arg *q, struct err *e)
{
    int r = peek(c, &q->from, e);
    if (r == 0)
        r = peek(c, &q->to, e);
    if (r < 0)
        return r;
    c->moves =
        q->from.dir != q->to.dir && (is_dir(&q->from) || (q->flags & SCRATCH_EXCHANGE && is_dir(&q->to)));
    bool hides = q->hidden.name.n > 0, leaves = q->left.name.n > 0;
    r = hides ? peek(c, &q->hidden, e) : 0;
    if (r == 0 && leaves)
        r = peek(c, &q->left, e);
    if (r < 0)
        return r;
    const uint64_t inos[] = {lock_of(&q->from),
                             lock_of(&q->to),
                             q->from.d.ino,
                             q->to.d.ino,
                             q->hidden.d.ino,
                             q->left.d.ino,
                             hides ? lock_of(&q->hidden) : 0,
                             leaves ? lock_of(&q->left) : 0};
    scratch_change_lock(c, inos, ARRAY_SIZE(inos));
    r = load(c, &q->from, e);
    if (r == 0)
        r = load(c, &q->to, e);
    if (r == 0 && hides)
        r = load(c, &q->hidden, e);
    if (r == 0 && leaves)
        r = load(c, &q->left, e);
    if (r == 0 && q->from.d.ino == 0)
        return err_set(e, -ENOENT, "no such file or directory");
    return r;
}

/* -EINVAL when the way from `dir` up to the root passes `ino`. */
static int check_not_below(struct scratch_change *c, uint64_t dir, uint64_t ino, struct err *e)
{
    _cleanup_buf_ struct buf raw = BUF_INIT(SCRATCH_RECORD_MAX);
    for (int i = 0; i < DEPTH_MAX; i++) {
        if (dir == ino)
            return err_set(e, -EINVAL, "a directory cannot be moved below itself");
        if (dir == SCRATCH_ROOT)
            return 0;
        struct scratch_inode x;
        uint64_t version;
        int r = scratch_record_inode(c->s, c->call->bucket, dir, &raw, &x, &version, e);
        if (r < 0)
            return r;
        dir = x.parent;
    }
    return err_set(e, ERR_CORRUPT, "control store: directory %llu is below itself", (unsigned long long)dir);
}

/* The condition that no other directory has got another parent since the way up was walked. */
static int check_moves(struct scratch_change *c, struct rename_arg *q, struct err *e)
{
    uint64_t version = 0;
    scratch_key(c->call->bucket, SCRATCH_INO_BUCKET, SCRATCH_KEY_MOVES, SLICE_NULL, &c->key);
    int r = kv_get(c->s->kv, buf_view(&c->key), NULL, &version, e);
    if (r < 0 && r != -ENOENT)
        return r;
    kv_txn_check(c->txn, buf_view(&c->key), r == 0 ? version : 0);
    r = 0;
    if (is_dir(&q->from))
        r = check_not_below(c, q->to.dir, q->from.d.ino, e);
    if (r == 0 && q->flags & SCRATCH_EXCHANGE && is_dir(&q->to))
        r = check_not_below(c, q->from.dir, q->to.d.ino, e);
    return r;
}

static int check_replaced(const struct rename_arg *q, struct err *e)
{
    if (q->flags & SCRATCH_NOREPLACE)
        return err_set(e, -EEXIST, "the target exists");
    if (q->flags & SCRATCH_EXCHANGE)
        return 0;
    if (is_dir(&q->from) && !is_dir(&q->to))
        return err_set(e, -ENOTDIR, "the target is not a directory");
    if (!is_dir(&q->from) && is_dir(&q->to))
        return err_set(e, -EISDIR, "the target is a directory");
    return 0;
}

static int check_rights(const struct scratch_change *c, const struct rename_arg *q, struct err *e)
{
    const struct scratch_cred *cred = c->call->cred;
    int r = q->from.in ? scratch_may_remove(&q->from.in->x, &q->from.inode->x, cred, e) : 0;
    /* A directory that comes below another one is written to itself: its "..". */
    if (r == 0 && c->moves && is_dir(&q->from))
        r = scratch_may(&q->from.inode->x, cred, 2, e);
    if (r == 0 && c->moves && q->flags & SCRATCH_EXCHANGE && q->to.inode && is_dir(&q->to))
        r = scratch_may(&q->to.inode->x, cred, 2, e);
    if (r < 0 || !q->to.in)
        return r;
    return q->to.inode ? scratch_may_remove(&q->to.in->x, &q->to.inode->x, cred, e)
                       : scratch_may(&q->to.in->x, cred, 2 | 1, e);
}

static int check_rename(struct scratch_change *c, struct rename_arg *q, struct err *e)
{
    int r = 0;
    if (q->to.inode || q->hidden.inode)
        r = check_replaced(q, e);
    else if (q->flags & SCRATCH_EXCHANGE)
        r = err_set(e, -ENOENT, "nothing to exchange with");
    if (r == 0)
        r = check_rights(c, q, e);
    if (r == 0 && c->moves)
        r = check_moves(c, q, e);
    if (r < 0)
        return r;
    bool replaces = q->to.inode && !(q->flags & SCRATCH_EXCHANGE);
    if (replaces && is_dir(&q->to) && q->to.inode->x.entries > 0)
        return err_set(e, -ENOTEMPTY, "the target is not empty");
    if (c->moves && is_dir(&q->from) && q->to.in->x.links >= SCRATCH_LINK_MAX)
        return err_set(e, -EMLINK, "the directory has too many directories");
    return 0;
}

/* What the key table has of a key whose path is renamed or replaced. */
static int take_hidden(struct scratch_change *c, struct end *x, struct err *e)
{
    if (!x->inode)
        return 0;
    scratch_change_take(c, NULL, x->name, &x->d, x->inode);
    return scratch_change_unlink(c, x->inode, e);
}

static int prepare_rename(struct scratch_change *c, void *arg, struct err *e)
{
    struct rename_arg *q = arg;
    int r = lock_and_load(c, q, e);
    if (r < 0)
        return r;
    if (q->from.d.ino == q->to.d.ino && !(q->flags & SCRATCH_NOREPLACE) && !c->by_key)
        return 0; /* two names of one file stay as they are; of an object the one that is renamed goes */
    r = check_rename(c, q, e);
    if (r < 0)
        return r;
    struct scratch_loaded *f = q->from.inode, *t = q->to.inode;
    scratch_change_take(c, q->from.in, q->from.name, &q->from.d, f);
    if (t)
        scratch_change_take(c, q->to.in, q->to.name, &q->to.d, t);
    if (t && !(q->flags & SCRATCH_EXCHANGE))
        r = scratch_change_unlink(c, t, e);
    if (r == 0)
        r = take_hidden(c, &q->hidden, e);
    if (r == 0)
        r = take_hidden(c, &q->left, e);
    scratch_change_add(c, q->to.in, q->to.name, /* cookie= */ t ? q->to.d.cookie : 0, f);
    scratch_change_touch(c, f, /* contents= */ false);
    if (q->flags & SCRATCH_EXCHANGE) {
        scratch_change_add(c, q->from.in, q->from.name, q->from.d.cookie, t);
        scratch_change_touch(c, t, /* contents= */ false);
    }
    c->changed_ns = r == 0 && !is_dir(&q->from) && !is_dir(&q->to) ? c->now_ns : 0;
    return r;
}

int scratch_rename_between(struct scratch *s, const struct scratch_call *call, struct slice from_key,
                           struct slice key, const struct scratch_place *from, const struct scratch_place *to,
                           uint32_t flags, struct scratch_orphans *ret_orphans, int64_t *ret_changed_ns,
                           struct err *e)
{
    struct rename_arg q = {
        .from = {.dir = from->dir, .name = from->name},
        .to = {.dir = to->dir, .name = to->name},
        .hidden = {.dir = SCRATCH_INO_KEYS, .name = to->dir == SCRATCH_INO_KEYS ? SLICE_NULL : key},
        .left = {.dir = SCRATCH_INO_KEYS, .name = from->dir == SCRATCH_INO_KEYS ? SLICE_NULL : from_key},
        .flags = flags,
    };
    _cleanup_change_ struct scratch_change c;
    scratch_change_init(&c, s, call);
    c.by_key = key.n > 0;
    int r = scratch_change_run(&c, prepare_rename, &q, e);
    if (r == 0)
        *ret_orphans = c.orphans;
    if (r == 0 && ret_changed_ns)
        *ret_changed_ns = c.changed_ns;
    return r;
}

int scratch_rename(struct scratch *s, const struct scratch_call *call, uint64_t from_parent,
                   struct slice from_name, uint64_t to_parent, struct slice to_name, uint32_t flags,
                   struct scratch_orphans *ret_orphans, int64_t *ret_changed_ns, struct err *e)
{
    int r = scratch_check_name(from_name, e);
    if (r == 0)
        r = scratch_check_name(to_name, e);
    if (r < 0)
        return r;
    if (from_parent == SCRATCH_INO_KEYS || to_parent == SCRATCH_INO_KEYS)
        return err_set(e, -ENOENT, "inode %d is no directory", SCRATCH_INO_KEYS);
    const struct slice dots[] = {from_name, to_name};
    for (size_t i = 0; i < ARRAY_SIZE(dots); i++)
        if (slice_eq_str(dots[i], ".") || slice_eq_str(dots[i], ".."))
            return err_set(e, -EBUSY, "'.' and '..' cannot be renamed");
    if (flags & ~(uint32_t)(SCRATCH_NOREPLACE | SCRATCH_EXCHANGE) ||
        flags == (SCRATCH_NOREPLACE | SCRATCH_EXCHANGE))
        return err_set(e, -EINVAL, "flags of rename");
    struct scratch_place from = {from_parent, from_name}, to = {to_parent, to_name};
    return scratch_rename_between(s, call, /* from_key= */ SLICE_NULL, /* key= */ SLICE_NULL, &from, &to,
                                  flags, ret_orphans, ret_changed_ns, e);
}
