/*
 * The tree of a scratch bucket as a mount works on it: names. Attributes are in scratch_attr.c, what opening
 * does in scratch_open.c.
 *
 * A new file that is opened for writing gets its extent from the pool before it is made, so that inode,
 * entry, location and writing record are one transaction. Where the mount expects it to stay empty it gets
 * none (WIRE_LATE): whoever writes to it opens it for that first, as any file without bytes.
 */
#include "object/scratch_tree.h"

#include "base/log.h"
#include "base/sys.h"

#define PAGE_MAX_BYTES (2 * MIB)
#define ENTRY_ARENA    (64 * KIB)

/* ---- calls ---- */

/* A user's session works on one tree, and counts as a mount of it to the others: what it writes, and when,
 * they are not told. */
static int join_tree(struct object_session *ses, const struct bucket *b, struct err *e)
{
    lock_take(&ses->lock);
    bool is_first = ses->tree_bucket == 0;
    if (is_first)
        ses->tree_bucket = b->id;
    bool is_other = ses->tree_bucket != b->id;
    lock_drop(&ses->lock);
    if (is_first)
        ses->company = watch_company(ses, b);
    return is_other ? err_set(e, -EINVAL, "a user's session works on the tree of one bucket") : 0;
}

/* And makes changes of one mount. */
static int join_mount(struct object_session *ses, struct id128 mount, struct err *e)
{
    _cleanup_(user_unrefp) struct user *u = NULL;
    lock_take(&ses->lock);
    bool is_first = id_is_zero(ses->tree_mount);
    if (is_first)
        ses->tree_mount = mount;
    bool is_other = !id_eq(ses->tree_mount, mount);
    lock_drop(&ses->lock);
    if (is_other)
        return err_set(e, -EINVAL, "a user's session makes changes of one mount");
    int r = is_first ? access_user(ses, &u, e) : 0;
    return r == 0 && is_first ? smounts_join(ses->service->scratch, u ? u->name : "", mount, e) : r;
}

static struct scratch_cred cred_of(const struct object_session *ses)
{
    return (struct scratch_cred){
        .uid = ses->uid, .gid = ses->gid, .groups = ses->groups, .n_groups = ses->n_groups, .check = true};
}

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
    if (!ses->has_peer)
        return 0;
    t->cred = cred_of(ses);
    t->call.cred = &t->cred;
    r = join_tree(ses, t->bucket, e);
    return r == 0 && mount.n > 0 ? join_mount(ses, t->call.mount, e) : r;
}

/* ---- what the node checks ---- */

/* Whether the mount has the file open with at least these rights: it asks again, in a new session. */
static bool has_it_open(struct tree_call *t, uint64_t ino, bool writes, bool reads)
{
    struct sfile *f = id_is_zero(t->call.mount) ? NULL : sfile_peek(t->node, t->call.bucket, ino);
    bool has = false;
    if (!f)
        return false;
    lock_take(&t->node->lock);
    for (const struct stree *o = f->trees; o && !has; o = o->file_next)
        has = id_eq(o->mount, t->call.mount) && (!reads || o->may_read) &&
              (!writes || o->writes || o->noted & SCRATCH_OPENED_WRITES);
    lock_drop(&t->node->lock);
    sfile_put(t->node, f);
    return has;
}

int tree_call_may_open(struct tree_call *t, const struct scratch_inode *x, bool writes, bool *ret_reads,
                       struct err *e)
{
    const struct scratch_cred *cred = t->call.cred;
    bool is_owner = scratch_is_owner(x, cred);
    *ret_reads = is_owner || (x->links > 0 && scratch_may(x, cred, 4, NULL) == 0) ||
                 has_it_open(t, x->ino, /* writes= */ false, /* reads= */ true);
    if (is_owner || (!writes && *ret_reads))
        return 0;
    bool may = writes && x->links > 0 && scratch_may(x, cred, 2, NULL) == 0;
    if (may || has_it_open(t, x->ino, writes, /* reads= */ !writes))
        return 0;
    return err_set(e, -EACCES, "permission denied");
}

void tree_call_drop_privilege(struct tree_call *t, const struct scratch_inode *x, struct arena *a)
{
    const struct scratch_call plain = {.bucket = t->call.bucket};
    const struct scratch_set set = {.what = SCRATCH_SET_DROP_PRIVILEGE | tree_call_group_goes(t, x)};
    struct scratch_inode after;
    struct err e = {0};
    if (!t->call.cred || t->call.cred->uid == 0)
        return;
    int r = 0;
    if (x->mode & (S_ISUID | S_ISGID))
        r = scratch_setattr(t->node->names, &plain, x->ino, &set, a, &after, &e);
    if (r == 0 && x->xattrs > 0)
        r = scratch_xattr_remove(t->node->names, &plain, x->ino, SLICE_LIT("security.capability"), &e);
    if (r < 0 && r != -ENODATA)
        log_warn("object", "inode %llu: what lets it run as another: %s", (unsigned long long)x->ino, e.text);
}

uint32_t tree_call_group_goes(const struct tree_call *t, const struct scratch_inode *x)
{
    return S_ISREG(x->mode) && !scratch_in_group(t->call.cred, x->gid) ? SCRATCH_SET_DROP_GROUP : 0;
}

void tree_call_of(struct tree_call *t, const struct object_session *ses, const struct stree *x)
{
    *t = (struct tree_call){.node = x->node, .call = {.bucket = x->file->bucket, .mount = x->mount}};
    if (!ses->has_peer)
        return;
    t->cred = cred_of(ses);
    t->call.cred = &t->cred;
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
    t->call.cred = NULL; /* the name was his to make, and the file is his: what is left is ours to do */
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
    bool opens = req->name.n == 0 || req->flags & (WIRE_WRITE | WIRE_LATE);
    if (r == 0 && t.call.cred && req->name.n > 0 && opens && !(req->flags & WIRE_EXCLUSIVE))
        return err_set(e, -EINVAL, "what is there already is opened by TREE_OPEN");
    /* Further groups of theirs are known to the kernel alone, which looks at them since Linux 6.0. */
    if (!t.call.cred)
        t.cred =
            (struct scratch_cred){.uid = req->uid, .gid = req->gid, .is_group_checked = sys_is_linux(6, 0)};
    t.cred.umask = req->umask;
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
    bool reads = true, checks = r == 0 && t.call.cred;
    if (r == 0)
        r = session_check_room(ses, e);
    if (r == 0 && checks)
        r = scratch_getattr(t.node->names, t.call.bucket, req->ino, a, &x, e);
    if (r == 0 && checks)
        r = tree_call_may_open(&t, &x, req->flags & WIRE_WRITE, &reads, e);
    if (r == 0 && checks && req->flags & WIRE_WRITE && req->flags & WIRE_TRUNCATE)
        tree_call_drop_privilege(&t, &x, a);
    t.call.cred = NULL;
    if (r == 0)
        r = scratch_hold(t.node->names, t.call.bucket, req->ino, e);
    if (r == 0)
        r = stree_open(t.node, &t.call, req->ino, req->flags, a, &tree, &x, e);
    if (r == 0)
        tree->may_read = reads;
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
    (void)rep;
    const struct wire_tree_remove_req q = {.bucket = req->bucket,
                                           .parent = req->parent,
                                           .name = req->name,
                                           .mount = req->mount,
                                           .request = req->request};
    struct wire_tree_remove_rep told;
    return op_tree_remove(ses, &q, a, &told, e);
}

int op_tree_remove(struct object_session *ses, const struct wire_tree_remove_req *req, struct arena *a,
                   struct wire_tree_remove_rep *rep, struct err *e)
{
    (void)a;
    _cleanup_tree_call_ struct tree_call t;
    struct scratch_orphans orphans = {0};
    int r = tree_call_init(&t, ses, req->bucket, req->mount, req->request, e);
    if (r == 0)
        r = scratch_unlink(t.node->names, &t.call, req->parent, req->name, &orphans, &rep->changed_ns, e);
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
    (void)rep;
    const struct wire_tree_move_req q = {.bucket = req->bucket,
                                         .parent = req->parent,
                                         .name = req->name,
                                         .to_parent = req->to_parent,
                                         .to_name = req->to_name,
                                         .flags = req->flags,
                                         .mount = req->mount,
                                         .request = req->request};
    struct wire_tree_move_rep told;
    return op_tree_move(ses, &q, a, &told, e);
}

int op_tree_move(struct object_session *ses, const struct wire_tree_move_req *req, struct arena *a,
                 struct wire_tree_move_rep *rep, struct err *e)
{
    (void)a;
    _cleanup_tree_call_ struct tree_call t;
    struct scratch_orphans orphans = {0};
    uint32_t flags = (req->flags & WIRE_NOREPLACE ? SCRATCH_NOREPLACE : 0) |
                     (req->flags & WIRE_EXCHANGE ? SCRATCH_EXCHANGE : 0);
    int r = tree_call_init(&t, ses, req->bucket, req->mount, req->request, e);
    if (r == 0)
        r = scratch_rename(t.node->names, &t.call, req->parent, req->name, req->to_parent, req->to_name,
                           flags, &orphans, &rep->changed_ns, e);
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

/* Names take the right to read, what they lead to that to search. Its owner goes on reading it, whatever mode
 * it was given since it was opened. */
static int may_list(struct tree_call *t, uint64_t ino, struct arena *a, bool *plus, struct err *e)
{
    struct scratch_inode x;
    int r = scratch_getattr(t->node->names, t->call.bucket, ino, a, &x, e);
    if (r < 0)
        return r;
    *plus = *plus && scratch_may(&x, t->call.cred, 1, NULL) == 0;
    return scratch_is_owner(&x, t->call.cred) ? 0 : scratch_may(&x, t->call.cred, 4, e);
}

int op_tree_readdir(struct object_session *ses, const struct wire_tree_readdir_req *req, struct arena *a,
                    struct wire_tree_readdir_rep *rep, struct err *e)
{
    _cleanup_tree_call_ struct tree_call t;
    struct reading g = {.t = &t, .plus = req->flags & WIRE_PLUS};
    int r = tree_call_init(&t, ses, req->bucket, SLICE_NULL, 0, e);
    if (r == 0 && t.call.cred)
        r = may_list(&t, req->ino, a, &g.plus, e);
    if (r < 0)
        return r;
    g.out = BUF_INIT(MIN(req->max, (uint32_t)PAGE_MAX_BYTES));
    g.a = arena_new(ENTRY_ARENA);
    r = read_directory(&g, req, a, rep, e);
    arena_free(g.a);
    buf_fini(&g.out);
    return r;
}
