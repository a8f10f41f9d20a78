/*
 * The tree of a scratch bucket as a mount works on it: names. Attributes are in scratch_attr.c, what opening
 * does in scratch_open.c.
 *
 * A new file that is opened for writing gets its extent from the pool before it is made, so that inode,
 * entry, location and writing record are one transaction. Where the mount expects it to stay empty it gets
 * none (WIRE_LATE): whoever writes to it opens it for that first, as any file without bytes.
 */
#include "object/scratch_tree.h"

#define PAGE_MAX_BYTES (2 * MIB)
#define ENTRY_ARENA    (64 * KIB)

/* ---- calls ---- */

int tree_call_init(struct tree_call *t, struct object_session *ses, struct slice bucket, struct slice mount,
                   uint64_t request, struct err *e)
{
    *t = (struct tree_call){.node = ses->service->scratch};
    if (mount.n != sizeof(t->call.mount.b) && (mount.n != 0 || request != 0))
        return err_set(e, -EINVAL, "the name of a mount has 16 bytes");
    int r = snode_bucket(ses->service, bucket, &t->bucket, e);
    if (r < 0)
        return r;
    t->call.bucket = t->bucket->id;
    t->call.request = request;
    if (mount.n > 0)
        memcpy(t->call.mount.b, mount.p, mount.n);
    return 0;
}

void tree_call_fini(struct tree_call *t)
{
    bucket_unref(t->bucket);
}

void tree_inode(struct tree_call *t, struct scratch_inode *x, struct arena *a, struct wire_inode *ret)
{
    snode_fresh(t->node, t->call.bucket, a, x);
    *ret = (struct wire_inode){.ino = x->ino,
                               .mode = x->mode,
                               .uid = x->uid,
                               .gid = x->gid,
                               .links = x->links,
                               .rdev = x->rdev,
                               .size_bytes = x->size_bytes,
                               .allocated_bytes = x->allocated_bytes,
                               .atime_ns = x->atime_ns,
                               .mtime_ns = x->mtime_ns,
                               .ctime_ns = x->ctime_ns,
                               .birth_ns = x->birth_ns,
                               .target = x->target};
}

int op_tree_lookup(struct object_session *ses, const struct wire_tree_lookup_req *req, struct arena *a,
                   struct wire_tree_lookup_rep *rep, struct err *e)
{
    _cleanup_tree_call_ struct tree_call t;
    struct scratch_inode x;
    int r = tree_call_init(&t, ses, req->bucket, SLICE_NULL, 0, e);
    if (r == 0)
        r = scratch_lookup(t.node->names, &t.call, req->parent, req->name, a, &x, e);
    if (r == 0)
        tree_inode(&t, &x, a, &rep->inode);
    return r;
}

/* ---- making ---- */

/* The inode was made, with this extent, or was there: opens it. Its hold is taken over, h and fd too. */
static int open_made(struct tree_call *t, struct object_session *ses, const struct wire_tree_create_req *q,
                     struct scratch_inode *x, struct hard *h, int fd, struct arena *a,
                     struct wire_tree_create_rep *rep, struct err *e)
{
    struct stree *tree = NULL;
    uint8_t location[HARD_LOCATION_BYTES];
    hard_location(h, location);
    bool is_its = slice_eq(x->location, slice_of(location, sizeof(location)));
    int r;
    if (is_its) {
        r = stree_made(t->node, &t->call, x->ino, x->mtime_ns, h, fd, &tree, e);
    } else {
        macro_close(&fd);
        hard_give_back(h); /* nobody ever named it */
        uint32_t flags = WIRE_WRITE | (q->flags & WIRE_TRUNCATE);
        r = stree_open(t->node, &t->call, x->ino, flags, a, &tree, x, e);
    }
    return r < 0 ? r : stree_give(ses, t->bucket, tree, &rep->handle, &rep->fd, e);
}

/* The inode was made, or was there, and is held: opens it as it is. */
static int open_late(struct tree_call *t, struct object_session *ses, bool made, struct scratch_inode *x,
                     struct arena *a, struct wire_tree_create_rep *rep, struct err *e)
{
    struct stree *tree = NULL;
    int r = 0;
    if (made && x->location.n == 0)
        tree = stree_made_empty(t->node, &t->call, x->ino);
    else
        r = stree_open(t->node, &t->call, x->ino, /* flags= */ 0, a, &tree, x, e);
    return r < 0 ? r : stree_give(ses, t->bucket, tree, &rep->handle, &rep->fd, e);
}

/* A new file's extent, and the descriptor for who makes it: a name is made when nothing is missing any more.
 */
static int take_extent(struct store *s, struct hard **ret, int *ret_fd, struct err *e)
{
    int r = hard_take(s, ret, e);
    if (r < 0)
        return r;
    *ret_fd = hard_open_ahead(*ret);
    if (*ret_fd >= 0)
        return 0;
    hard_give_back(TAKE_PTR(*ret));
    return err_errno(e, *ret_fd, "open the new file for writing");
}

static int create(struct tree_call *t, struct object_session *ses, const struct wire_tree_create_req *q,
                  struct arena *a, struct wire_tree_create_rep *rep, struct err *e)
{
    bool writes = S_ISREG(q->mode) && (q->flags & WIRE_WRITE || q->name.n == 0);
    bool opens = writes || (S_ISREG(q->mode) && q->flags & WIRE_LATE), made = true;
    struct scratch_new n = {.mode = q->mode,
                            .rdev = q->rdev,
                            .target = q->target,
                            .exclusive = q->flags & WIRE_EXCLUSIVE,
                            .hold = opens};
    uint8_t location[HARD_LOCATION_BYTES];
    struct hard *h = NULL;
    struct scratch_inode x;
    int r = opens ? session_check_room(ses, e) : 0;
    int fd = -1;
    if (r == 0 && writes)
        r = take_extent(t->node->store, &h, &fd, e);
    if (r < 0)
        return r;
    if (writes) {
        hard_location(h, location);
        n.location = slice_of(location, sizeof(location));
    }
    r = scratch_create(t->node->names, &t->call, q->parent, q->name, &n, a, &x, &made, e);
    if (r < 0) {
        macro_close(&fd);
        if (h)
            snode_drop_extent(h, r);
        return r;
    }
    if (writes)
        r = open_made(t, ses, q, &x, h, fd, a, rep, e);
    else if (opens)
        r = open_late(t, ses, made, &x, a, rep, e);
    if (r == 0) {
        rep->made = made;
        rep->is_limited = t->bucket->p.quota > 0;
        tree_inode(t, &x, a, &rep->inode);
    }
    return r;
}

int op_tree_create(struct object_session *ses, const struct wire_tree_create_req *req, struct arena *a,
                   struct wire_tree_create_rep *rep, struct err *e)
{
    _cleanup_tree_call_ struct tree_call t;
    int r = tree_call_init(&t, ses, req->bucket, req->mount, req->request, e);
    t.cred = (struct scratch_cred){.uid = req->uid, .gid = req->gid, .umask = req->umask};
    t.call.cred = &t.cred;
    return r < 0 ? r : create(&t, ses, req, a, rep, e);
}

int op_tree_open(struct object_session *ses, const struct wire_tree_open_req *req, struct arena *a,
                 struct wire_tree_open_rep *rep, struct err *e)
{
    _cleanup_tree_call_ struct tree_call t;
    struct stree *tree = NULL;
    struct scratch_inode x;
    int r = tree_call_init(&t, ses, req->bucket, req->mount, req->request, e);
    if (r == 0)
        r = session_check_room(ses, e);
    if (r == 0)
        r = scratch_hold(t.node->names, t.call.bucket, req->ino, e);
    if (r == 0)
        r = stree_open(t.node, &t.call, req->ino, req->flags, a, &tree, &x, e);
    if (r == 0)
        r = stree_give(ses, t.bucket, tree, &rep->handle, &rep->fd, e);
    if (r == 0) {
        rep->is_limited = t.bucket->p.quota > 0;
        tree_inode(&t, &x, a, &rep->inode);
    }
    return r;
}

/* ---- names ---- */

int op_tree_link(struct object_session *ses, const struct wire_tree_link_req *req, struct arena *a,
                 struct wire_tree_link_rep *rep, struct err *e)
{
    _cleanup_tree_call_ struct tree_call t;
    struct scratch_inode x;
    int r = tree_call_init(&t, ses, req->bucket, req->mount, req->request, e);
    if (r == 0)
        r = scratch_link(t.node->names, &t.call, req->ino, req->parent, req->name, a, &x, e);
    if (r == 0)
        tree_inode(&t, &x, a, &rep->inode);
    return r;
}

int op_tree_unlink(struct object_session *ses, const struct wire_tree_unlink_req *req, struct arena *a,
                   struct wire_tree_unlink_rep *rep, struct err *e)
{
    (void)a, (void)rep;
    _cleanup_tree_call_ struct tree_call t;
    struct scratch_orphans orphans = {0};
    int r = tree_call_init(&t, ses, req->bucket, req->mount, req->request, e);
    if (r == 0)
        r = scratch_unlink(t.node->names, &t.call, req->parent, req->name, &orphans, e);
    if (r == 0)
        snode_free_unnamed(t.node, &orphans);
    return r;
}

int op_tree_rmdir(struct object_session *ses, const struct wire_tree_rmdir_req *req, struct arena *a,
                  struct wire_tree_rmdir_rep *rep, struct err *e)
{
    (void)a, (void)rep;
    _cleanup_tree_call_ struct tree_call t;
    int r = tree_call_init(&t, ses, req->bucket, req->mount, req->request, e);
    return r < 0 ? r : scratch_rmdir(t.node->names, &t.call, req->parent, req->name, e);
}

int op_tree_rename(struct object_session *ses, const struct wire_tree_rename_req *req, struct arena *a,
                   struct wire_tree_rename_rep *rep, struct err *e)
{
    (void)a, (void)rep;
    _cleanup_tree_call_ struct tree_call t;
    struct scratch_orphans orphans = {0};
    uint32_t flags = (req->flags & WIRE_NOREPLACE ? SCRATCH_NOREPLACE : 0) |
                     (req->flags & WIRE_EXCHANGE ? SCRATCH_EXCHANGE : 0);
    int r = tree_call_init(&t, ses, req->bucket, req->mount, req->request, e);
    if (r == 0)
        r = scratch_rename(t.node->names, &t.call, req->parent, req->name, req->to_parent, req->to_name,
                           flags, &orphans, e);
    if (r == 0)
        snode_free_unnamed(t.node, &orphans);
    return r;
}

int op_tree_leave(struct object_session *ses, const struct wire_tree_leave_req *req, struct arena *a,
                  struct wire_tree_leave_rep *rep, struct err *e)
{
    (void)a, (void)rep;
    _cleanup_tree_call_ struct tree_call t;
    int r = tree_call_init(&t, ses, req->bucket, req->mount, /* request= */ 1, e);
    return r < 0 ? r : scratch_forget_mount(t.node->names, t.call.mount, e);
}

/* ---- reading directories ---- */

struct reading {
    struct tree_call *t;
    struct arena *a; /* of one entry */
    struct buf out;
    bool plus, full;
    uint32_t n;
    int result;
};

static int on_entry(void *arg, const struct scratch_entry *x)
{
    struct reading *g = arg;
    struct wire_dirent d = {.name = x->name, .ino = x->ino, .mode = x->mode, .cookie = x->cookie};
    struct scratch_inode inode;
    arena_clear(g->a);
    if (g->plus) {
        int r = scratch_getattr(g->t->node->names, g->t->call.bucket, x->ino, g->a, &inode, NULL);
        if (r < 0 && r != -ENOENT) {
            g->result = r;
            return r;
        }
        d.has_inode = r == 0;
        if (r == 0)
            tree_inode(g->t, &inode, g->a, &d.inode);
    }
    g->full = wire_dirent_encode(&d, &g->out) < 0;
    g->n += !g->full;
    return g->full ? 1 : 0;
}

static int read_directory(struct reading *g, const struct wire_tree_readdir_req *q, struct arena *a,
                          struct wire_tree_readdir_rep *rep, struct err *e)
{
    struct scratch *names = g->t->node->names;
    rep->until = q->until;
    int r = q->until == 0 ? scratch_readdir_end(names, g->t->call.bucket, q->ino, &rep->until, e) : 0;
    if (r == 0)
        r = scratch_readdir(names, g->t->call.bucket, q->ino, q->after, rep->until, on_entry, g, e);
    if (r < 0)
        return r;
    if (g->result < 0)
        return err_errno(e, g->result, "read a directory");
    if (g->full && g->n == 0)
        return err_set(e, -EINVAL, "%u bytes are too few for an entry", q->max);
    rep->entries = arena_dup(a, buf_view(&g->out));
    rep->n_entries = g->n;
    rep->end = !g->full;
    return 0;
}

int op_tree_readdir(struct object_session *ses, const struct wire_tree_readdir_req *req, struct arena *a,
                    struct wire_tree_readdir_rep *rep, struct err *e)
{
    _cleanup_tree_call_ struct tree_call t;
    struct reading g = {.t = &t, .plus = req->flags & WIRE_PLUS};
    int r = tree_call_init(&t, ses, req->bucket, SLICE_NULL, 0, e);
    if (r < 0)
        return r;
    g.out = BUF_INIT(MIN(req->max, (uint32_t)PAGE_MAX_BYTES));
    g.a = arena_new(ENTRY_ARENA);
    r = read_directory(&g, req, a, rep, e);
    arena_free(g.a);
    buf_fini(&g.out);
    return r;
}
