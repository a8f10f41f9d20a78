/*
 * The tree of a scratch bucket as a mount works on it: attributes, extended attributes, durability, space,
 * locks.
 *
 * The time of a file that is unsettled is its file's on the disk, so setting it sets both; size is the disk's
 * always.
 */
#include "object/scratch_tree.h"

#include "base/sys.h"

#define UNCOUNTED_BYTES MIB /* that a file which is open may have beside what its bucket counts */

static_assert((int)WIRE_SET_MODE == (int)SCRATCH_SET_MODE && (int)WIRE_SET_UID == (int)SCRATCH_SET_UID &&
                  (int)WIRE_SET_GID == (int)SCRATCH_SET_GID && (int)WIRE_SET_SIZE == (int)SCRATCH_SET_SIZE &&
                  (int)WIRE_SET_ATIME == (int)SCRATCH_SET_ATIME &&
                  (int)WIRE_SET_MTIME == (int)SCRATCH_SET_MTIME &&
                  (int)WIRE_SET_ATIME_NOW == (int)SCRATCH_SET_ATIME_NOW &&
                  (int)WIRE_SET_MTIME_NOW == (int)SCRATCH_SET_MTIME_NOW &&
                  (int)WIRE_SET_DROP_PRIVILEGE == (int)SCRATCH_SET_DROP_PRIVILEGE &&
                  (int)WIRE_SET_DROP_GROUP == (int)SCRATCH_SET_DROP_GROUP,
              "bits travel as they are");

int op_tree_getattr(struct object_session *ses, const struct wire_tree_getattr_req *req, struct arena *a,
                    struct wire_tree_getattr_rep *rep, struct err *e)
{
    _cleanup_tree_call_ struct tree_call t;
    struct scratch_inode x;
    int r = tree_call_init(&t, ses, req->bucket, SLICE_NULL, 0, e);
    if (r < 0)
        return r;
    r = scratch_getattr(t.node->names, t.call.bucket, req->ino, a, &x, e);
    if (r == -ENOENT && scratch_getattr_removed(t.node->names, t.call.bucket, req->ino, a, &x) == 0)
        r = 0;
    if (r == 0)
        tree_inode(&t, &x, a, &rep->inode);
    return r;
}

static bool is_unsettled(struct snode *n, const struct sfile *f)
{
    LOCK_SCOPE(&n->lock);
    return f->unsettled;
}

/* ---- setting ---- */

/* Whether the session has the file open, for writing if so. */
static bool has_handle(struct tree_call *t, const struct object_session *ses, uint64_t ino, bool writes)
{
    struct sfile *f = sfile_peek(t->node, t->call.bucket, ino);
    bool has = false;
    if (!f)
        return false;
    lock_take(&t->node->lock);
    for (const struct stree *o = f->trees; o && !has; o = o->file_next)
        has = o->session == ses && (o->writes || !writes);
    lock_drop(&t->node->lock);
    sfile_put(t->node, f);
    return has;
}

/* Busy. The ETag is not that of the bytes any more when somebody wrote to the file; once its time is another
 * one, nobody could tell. */
static int forget_old_etag(struct snode *n, uint64_t bucket, struct scratch_inode *x, struct hard *h,
                           struct arena *a, struct err *e)
{
    const struct scratch_call step = {.bucket = bucket};
    struct stat st;
    if (x->etag.n == 0)
        return 0;
    int r = hard_stat(h, &st);
    return r < 0 ? err_errno(e, r, "state of the file") : snode_record(n, &step, x->ino, &st, a, x, e);
}

/* Busy. What is lost here is told by the next fsync, too. */
static int sync_times(struct snode *n, struct sfile *f, struct hard *h, struct err *e)
{
    int r = hard_sync_times(h, e);
    if (sys_is_fault(r))
        sfile_note_fault(n, f, r);
    return r;
}

/* Busy. The file's own time, while it counts. It is on the disk when the change is durable; and at once, as
 * the change then is, where the inode has an ETag of its own: power loss that took one of the two times and
 * not the other would make it that of other bytes. */
static int set_file_time(struct snode *n, struct scratch_call *call, struct sfile *f, int64_t mtime_ns,
                         struct arena *a, struct err *e)
{
    struct scratch_inode x;
    _cleanup_(hard_unrefp) struct hard *h = NULL;
    if (!is_unsettled(n, f))
        return 0;
    int r = scratch_getattr(n->names, call->bucket, f->ino, a, &x, e);
    if (r == 0)
        r = snode_find_hard(n, call->bucket, a, &x, &h, e);
    if (r == 0 && h)
        r = forget_old_etag(n, call->bucket, &x, h, a, e);
    if (r < 0 || !h)
        return r;
    lock_take(&n->lock);
    f->generation++; /* what was measured is no longer so */
    lock_drop(&n->lock);
    if (x.etag.n > 0)
        call->commit = KV_DURABLE;
    r = hard_set_mtime(h, mtime_ns, e);
    return r == 0 && call->commit == KV_DURABLE ? sync_times(n, f, h, e) : r;
}

int stree_set_attributes(struct snode *n, const struct scratch_call *call, uint64_t ino,
                         struct scratch_set *set, struct arena *a, struct scratch_inode *ret, struct err *e)
{
    if (set->what & SCRATCH_SET_MTIME_NOW) {
        set->what = (set->what & ~(uint32_t)SCRATCH_SET_MTIME_NOW) | SCRATCH_SET_MTIME;
        set->mtime_ns = (int64_t)sys->real_ns();
    }
    /* Also where nobody has it open: who opens it for writing meanwhile would give it the time of before. */
    struct sfile *f = set->what & SCRATCH_SET_MTIME ? sfile_get(n, call->bucket, ino) : NULL;
    struct scratch_call own = *call;
    bool is_done = false;
    int r = 0;
    if (f) {
        sfile_enter(n, f);
        r = scratch_is_done(n->names, call, &is_done, e);
        if (r == 0 && !is_done) /* else it may have been written to since */
            r = set_file_time(n, &own, f, set->mtime_ns, a, e);
    }
    if (r == 0)
        r = scratch_setattr(n->names, &own, ino, set, a, ret, e);
    if (f) {
        sfile_leave(n, f);
        sfile_put(n, f);
    }
    return r;
}

/*
 * Of who is checked, before anything is done: the file's own time and size are no part of the transaction
 * that checks again. *ret_plain: it does not have to, as all is a matter of who may write, and not of whose
 * the inode is by then. What a change of the bytes takes away goes here, whether the client asks for it or
 * not.
 */
static int may_set(struct tree_call *t, const struct object_session *ses, uint64_t ino, bool cuts,
                   struct scratch_set *set, bool *ret_plain, struct arena *a, struct err *e)
{
    const uint32_t of_writers =
        SCRATCH_SET_ATIME_NOW | SCRATCH_SET_MTIME_NOW | SCRATCH_SET_DROP_PRIVILEGE | SCRATCH_SET_DROP_GROUP;
    struct scratch_inode x;
    bool reads;
    int r = scratch_getattr(t->node->names, t->call.bucket, ino, a, &x, e);
    if (cuts) /* by who has it open for writing, too, whatever its mode is by now */
        set->what &= ~(uint32_t)(SCRATCH_SET_DROP_PRIVILEGE | SCRATCH_SET_DROP_GROUP);
    if (r == 0 && set->what != 0)
        r = scratch_may_set(&x, set, t->call.cred, e);
    if (r == 0 && cuts && !has_handle(t, ses, ino, /* writes= */ true))
        r = tree_call_may_open(t, &x, /* writes= */ true, &reads, e);
    if (r < 0)
        return r;
    if (cuts || set->what & (SCRATCH_SET_UID | SCRATCH_SET_GID))
        tree_call_drop_privilege(t, &x, a);
    *ret_plain = !(set->what & ~of_writers);
    return 0;
}

int op_tree_setattr(struct object_session *ses, const struct wire_tree_setattr_req *req, struct arena *a,
                    struct wire_tree_setattr_rep *rep, struct err *e)
{
    _cleanup_tree_call_ struct tree_call t;
    struct scratch_inode x;
    struct scratch_set set = {.what = req->what & ~(uint32_t)WIRE_SET_SIZE,
                              .mode = req->mode,
                              .uid = req->uid,
                              .gid = req->gid,
                              .atime_ns = req->atime_ns,
                              .mtime_ns = req->mtime_ns};
    int r = tree_call_init(&t, ses, req->bucket, req->mount, req->request, e);
    if (r < 0)
        return r;
    if (req->what & ~(uint32_t)WIRE_SET_ALL)
        return err_set(e, -EINVAL, "attributes %#x cannot be set", req->what);
    if (req->what == WIRE_SET_DROP_PRIVILEGE) {
        r = scratch_getattr(t.node->names, t.call.bucket, req->ino, a, &x, e);
        if (r == 0 && !(x.mode & (S_ISUID | S_ISGID)))
            set.what = 0; /* a write, and there is nothing to drop */
    }
    bool cuts = req->what & WIRE_SET_SIZE, is_plain = false;
    struct scratch_call plain = t.call;
    plain.cred = NULL;
    if (r == 0 && t.call.cred)
        r = may_set(&t, ses, req->ino, cuts, &set, &is_plain, a, e);
    if (r == 0 && cuts)
        r = stree_truncate(t.node, &plain, req->ino, req->size, /* is_all= */ set.what == 0, a, e);
    if (r == 0)
        r = set.what ? stree_set_attributes(t.node, is_plain ? &plain : &t.call, req->ino, &set, a, &x, e)
                     : scratch_getattr(t.node->names, t.call.bucket, req->ino, a, &x, e);
    if (r == 0)
        tree_inode(&t, &x, a, &rep->inode);
    return r;
}

/* ---- durability ---- */

/* Whether the record says something that a start after power loss could not take from the file. Its size and
 * times it can: the writing record, which scratch_sync makes durable, says that they are the file's. An ETag
 * of its own it cannot, as the time that tells of a change need not have lasted. */
static bool needs_record(const struct scratch_inode *x, const struct stat *st)
{
    uint64_t allocated = (uint64_t)st->st_blocks * 512;
    return x->etag.n > 0 ||
           MAX(allocated, x->allocated_bytes) - MIN(allocated, x->allocated_bytes) >= UNCOUNTED_BYTES;
}

/* Busy. */
static int sync_inode(struct tree_call *t, struct sfile *f, struct hard *h, const struct scratch_inode *x,
                      struct arena *a, struct err *e)
{
    const struct scratch_call durable = {.bucket = t->call.bucket, .commit = KV_DURABLE};
    struct stat st;
    /* Of a settled file the record is true, and its time may have been set since. */
    if (!is_unsettled(t->node, f))
        return scratch_sync(t->node->names, e);
    int r = hard_stat(h, &st);
    if (r < 0)
        return r;
    return needs_record(x, &st) ? snode_record(t->node, &durable, x->ino, &st, a, NULL, e)
                                : scratch_sync(t->node->names, e);
}

/* Data first: a size that survives names bytes that do. */
static int sync_data(struct tree_call *t, struct sfile *f, struct scratch_inode *x, bool times,
                     struct arena *a, struct err *e)
{
    _cleanup_(hard_unrefp) struct hard *h = NULL;
    int r = snode_find_hard(t->node, t->call.bucket, a, x, &h, e);
    if (r == 0 && h)
        r = times ? hard_sync_times(h, e) : hard_sync(h, e);
    if (r < 0)
        return r;
    if (!h)
        return scratch_sync(t->node->names, e);
    sfile_enter(t->node, f);
    r = sync_inode(t, f, h, x, a, e);
    sfile_leave(t->node, f);
    return r;
}

static void begin_sync(struct snode *n, struct sfile *f)
{
    LOCK_SCOPE(&n->lock);
    while (f->syncing)
        cond_wait(&n->idle, &n->lock);
    f->syncing = true;
}

static void end_sync(struct snode *n, struct sfile *f)
{
    LOCK_SCOPE(&n->lock);
    f->syncing = false;
    cond_broadcast(&n->idle);
}

/* What a sync gave, or what the session is still to be told. Told it is by an answer that says so: one that
 * failed for another reason leaves it to the next. */
static int tell_faults(struct tree_call *t, const struct object_session *ses, struct sfile *f, int r,
                       struct err *e)
{
    bool is_told = true, tells = r == 0 || sys_is_fault(r);
    LOCK_SCOPE(&t->node->lock);
    if (sys_is_fault(r)) {
        f->faults++;
        f->fault_code = r;
    }
    for (struct stree *o = f->trees; o; o = o->file_next) {
        if (o->session != ses)
            continue;
        is_told &= o->faults_told == f->faults;
        if (tells)
            o->faults_told = f->faults;
    }
    if (sys_is_fault(r) || (r == 0 && !is_told))
        sfile_set_untold_locked(t->node, f, false);
    return r == 0 && !is_told ? err_errno(e, f->fault_code, "what was written to the file") : r;
}

int op_tree_sync(struct object_session *ses, const struct wire_tree_sync_req *req, struct arena *a,
                 struct wire_tree_sync_rep *rep, struct err *e)
{
    (void)rep;
    _cleanup_tree_call_ struct tree_call t;
    struct scratch_inode x;
    int r = tree_call_init(&t, ses, req->bucket, SLICE_NULL, 0, e);
    if (r == 0)
        r = scratch_getattr(t.node->names, t.call.bucket, req->ino, a, &x, e);
    if (r == -ENOENT) /* a directory that was removed while it is open: that has to last */
        return scratch_sync(t.node->names, e);
    if (r < 0)
        return r;
    struct sfile *f = S_ISREG(x.mode) ? sfile_peek(t.node, t.call.bucket, req->ino) : NULL;
    if (!f)
        return scratch_sync(t.node->names, e);
    begin_sync(t.node, f);
    bool times = !(req->flags & WIRE_DATA_ONLY);
    r = tell_faults(&t, ses, f, sync_data(&t, f, &x, times, a, e), e);
    end_sync(t.node, f);
    sfile_put(t.node, f);
    return r;
}

/* ---- extended attributes ---- */

/* Who is checked sees attributes of users alone. */
static int may_read_xattr(struct tree_call *t, uint64_t ino, struct slice name, struct arena *a,
                          struct err *e)
{
    struct scratch_inode x;
    int r = scratch_getattr(t->node->names, t->call.bucket, ino, a, &x, e);
    if (r == 0 && !slice_starts(name, SLICE_LIT("user.")))
        return err_set(e, -ENODATA, "no such attribute");
    return r < 0 ? r : scratch_may(&x, t->call.cred, 4, e);
}

static struct slice names_of_users(struct slice names, struct arena *a)
{
    char *p = arena_alloc(a, MAX(names.n, (size_t)1));
    size_t n = 0;
    while (names.n > 0) {
        size_t bytes = MIN(strnlen(names.p, names.n) + 1, names.n);
        if (slice_starts(names, SLICE_LIT("user."))) {
            memcpy(p + n, names.p, bytes);
            n += bytes;
        }
        names = slice_from(names, bytes);
    }
    return slice_of(p, n);
}

int op_tree_xattr_get(struct object_session *ses, const struct wire_tree_xattr_get_req *req, struct arena *a,
                      struct wire_tree_xattr_get_rep *rep, struct err *e)
{
    _cleanup_tree_call_ struct tree_call t;
    _cleanup_buf_ struct buf value = BUF_INIT(SCRATCH_XATTR_MAX);
    int r = tree_call_init(&t, ses, req->bucket, SLICE_NULL, 0, e);
    if (r == 0 && t.call.cred)
        r = may_read_xattr(&t, req->ino, req->name, a, e);
    if (r == 0)
        r = scratch_xattr_get(t.node->names, t.call.bucket, req->ino, req->name, &value, e);
    if (r == 0)
        rep->value = arena_dup(a, buf_view(&value));
    return r;
}

int op_tree_xattr_list(struct object_session *ses, const struct wire_tree_xattr_list_req *req,
                       struct arena *a, struct wire_tree_xattr_list_rep *rep, struct err *e)
{
    _cleanup_tree_call_ struct tree_call t;
    _cleanup_buf_ struct buf names = BUF_INIT(SCRATCH_XATTR_LIST_MAX);
    int r = tree_call_init(&t, ses, req->bucket, SLICE_NULL, 0, e);
    if (r == 0)
        r = scratch_xattr_list(t.node->names, t.call.bucket, req->ino, &names, e);
    if (r == 0)
        rep->names = t.call.cred ? names_of_users(buf_view(&names), a) : arena_dup(a, buf_view(&names));
    return r;
}

int op_tree_xattr_set(struct object_session *ses, const struct wire_tree_xattr_set_req *req, struct arena *a,
                      struct wire_tree_xattr_set_rep *rep, struct err *e)
{
    (void)a, (void)rep;
    _cleanup_tree_call_ struct tree_call t;
    uint32_t flags = (req->flags & WIRE_EXCLUSIVE ? SCRATCH_XATTR_CREATE : 0) |
                     (req->flags & WIRE_REPLACE ? SCRATCH_XATTR_REPLACE : 0);
    int r = tree_call_init(&t, ses, req->bucket, req->mount, req->request, e);
    return r < 0 ? r : scratch_xattr_set(t.node->names, &t.call, req->ino, req->name, req->value, flags, e);
}

int op_tree_xattr_remove(struct object_session *ses, const struct wire_tree_xattr_remove_req *req,
                         struct arena *a, struct wire_tree_xattr_remove_rep *rep, struct err *e)
{
    (void)a, (void)rep;
    _cleanup_tree_call_ struct tree_call t;
    int r = tree_call_init(&t, ses, req->bucket, req->mount, req->request, e);
    return r < 0 ? r : scratch_xattr_remove(t.node->names, &t.call, req->ino, req->name, e);
}

/* ---- space, locks ---- */

/* What is free is what hard extents may still take. */
int op_tree_statfs(struct object_session *ses, const struct wire_tree_statfs_req *req, struct arena *a,
                   struct wire_tree_statfs_rep *rep, struct err *e)
{
    (void)a;
    _cleanup_tree_call_ struct tree_call t;
    struct scratch_counts counts;
    int r = tree_call_init(&t, ses, req->bucket, SLICE_NULL, 0, e);
    if (r == 0)
        r = scratch_statfs(t.node->names, t.call.bucket, &counts, e);
    if (r < 0)
        return r;
    store_room(t.node->store, &rep->bytes_total, &rep->bytes_free);
    sroom_statfs(t.node, t.bucket, &rep->bytes_total, &rep->bytes_free);
    rep->files = (uint64_t)MAX(counts.inodes, (int64_t)0);
    return 0;
}

/* Of who is checked: a file that the session has open, or that could be opened, as locks of what is open are
 * taken again before it is. */
static int may_lock(struct tree_call *t, const struct object_session *ses, uint64_t ino, struct arena *a,
                    struct err *e)
{
    struct scratch_inode x;
    bool reads;
    int r = scratch_getattr(t->node->names, t->call.bucket, ino, a, &x, e);
    if (r < 0 || has_handle(t, ses, ino, /* writes= */ false) ||
        tree_call_may_open(t, &x, /* writes= */ true, &reads, NULL) == 0)
        return r;
    return tree_call_may_open(t, &x, /* writes= */ false, &reads, e);
}

int op_tree_lock(struct object_session *ses, const struct wire_tree_lock_req *req, struct arena *a,
                 struct wire_tree_lock_rep *rep, struct err *e)
{
    _cleanup_tree_call_ struct tree_call t;
    int r = tree_call_init(&t, ses, req->bucket, SLICE_NULL, 0, e);
    if (r == 0 && t.call.cred)
        r = may_lock(&t, ses, req->ino, a, e);
    return r < 0 ? r : slocks_call(t.node->locks, ses, t.call.bucket, req, rep, e);
}
