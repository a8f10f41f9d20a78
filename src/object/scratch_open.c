/*
 * Opening files of scratch buckets for mounts, and setting sizes (contract in scratch_node.h).
 *
 * Order of an opening for writing: the writing record (durable when the extent is sealed), then the crcs go
 * (hard_begin_writing), then the descriptor leaves. A file without bytes has no extent until it is opened for
 * writing; one that is still empty when its last handle closes gives its extent back, once the record that
 * named it is gone durably (scratch_free.c). Not what a mount had open that is gone without closing it, nor
 * when the node ends: descriptors stay good then, and what is written through them must be the file's.
 *
 * Bytes are taken away once for each numbered request: what a mount that was killed had asked for may come
 * again, or late, when others have written to the file since. That it was done is noted while busy.
 *
 * Failure modes: an opening that fails half-way may leave an unsettled inode or an empty extent: both are
 * right, and settling or the last close tidies up.
 */
#include "object/scratch_node.h"

#include "base/log.h"

#include <fcntl.h>

/* A change of the node's own, as a step of `call`: not noted, visible. */
static struct scratch_call step_of(const struct scratch_call *call)
{
    return (struct scratch_call){.bucket = call->bucket};
}

static void note_unsettled(struct snode *n, struct sfile *f, bool unsettled)
{
    LOCK_SCOPE(&n->lock);
    sfile_set_unsettled_locked(n, f, unsettled);
}

static bool is_unsettled(struct snode *n, const struct sfile *f)
{
    LOCK_SCOPE(&n->lock);
    return f->unsettled;
}

/* ---- making it ready for writing ---- */

/* The inode gets an extent of its own. */
static int give_extent(struct snode *n, const struct scratch_call *call, struct sfile *f, struct arena *a,
                       struct scratch_inode *x, struct hard **ret, struct err *e)
{
    struct scratch_call step = step_of(call);
    struct hard *h = NULL;
    int r = hard_take(n->store, &h, e);
    if (r < 0)
        return r;
    uint8_t location[HARD_LOCATION_BYTES];
    hard_location(h, location);
    struct scratch_set set = {.what = SCRATCH_SET_LOCATION | SCRATCH_SET_CTIME,
                              .location = slice_of(location, sizeof(location)),
                              .ctime_ns = x->ctime_ns};
    int64_t mtime_ns = x->mtime_ns;
    r = scratch_setattr(n->names, &step, f->ino, &set, a, x, e);
    if (r < 0) {
        snode_drop_extent(h, r);
        return r;
    }
    lock_take(&n->lock);
    sfile_set_unsettled_locked(n, f, true);
    f->fresh = true;
    lock_drop(&n->lock);
    r = hard_begin_writing(h, e);
    if (r == 0)
        (void)hard_set_mtime(h, mtime_ns, NULL); /* else it is modified now: nearly as good */
    if (r < 0)
        hard_unref(h);
    else
        *ret = h;
    return r;
}

/* Before the record says that the file knows its time: until then the inode does, and perhaps durably, so
 * that after power loss the file has to know it, too. It mostly does. */
static int take_time(struct hard *h, int64_t mtime_ns, struct err *e)
{
    struct stat st;
    int r = hard_stat(h, &st);
    if (r < 0)
        return err_errno(e, r, "state of the file");
    bool is_other = snode_ns(st.st_mtim) != mtime_ns;
    r = hard_set_mtime(h, mtime_ns, e);
    return r == 0 && is_other ? hard_sync_times(h, e) : r;
}

/* The extent it has: named by a writing record, its crcs gone. */
static int reopen_extent(struct snode *n, const struct scratch_call *call, struct sfile *f, struct arena *a,
                         struct scratch_inode *x, struct hard **ret, struct err *e)
{
    _cleanup_(hard_unrefp) struct hard *h = NULL;
    int r = f->hard ? 0 : hard_find(n->store, x->location, &h, e);
    if (r < 0)
        return r;
    if (f->hard)
        h = hard_ref(f->hard);
    bool was_settled = !is_unsettled(n, f);
    if (was_settled) {
        r = take_time(h, x->mtime_ns, e);
        if (r < 0)
            return r;
        struct scratch_call step = step_of(call);
        step.commit = hard_is_sealed(h) ? KV_DURABLE : KV_VISIBLE;
        struct scratch_set set = {.what = SCRATCH_SET_WRITING | SCRATCH_SET_CTIME, .ctime_ns = x->ctime_ns};
        r = scratch_setattr(n->names, &step, f->ino, &set, a, x, e);
        if (r < 0)
            return r;
    }
    note_unsettled(n, f, true);
    r = hard_begin_writing(h, e);
    if (r == 0)
        *ret = TAKE_PTR(h);
    return r;
}

/* Busy. The inode's extent, counted as being written (hard_end_writing), referenced; *x as it is then. */
static int begin_writing(struct snode *n, const struct scratch_call *call, struct sfile *f, struct arena *a,
                         struct scratch_inode *x, struct hard **ret, struct err *e)
{
    return x->location.n == 0 ? give_extent(n, call, f, a, x, ret, e)
                              : reopen_extent(n, call, f, a, x, ret, e);
}

/* Busy. The file has this size; the inode says so. */
static int set_size(struct snode *n, const struct scratch_call *call, struct sfile *f, struct hard *h,
                    uint64_t size, struct arena *a, struct err *e)
{
    struct stat st;
    lock_take(&n->lock);
    f->generation++;
    lock_drop(&n->lock);
    int r = hard_truncate(h, size, e);
    if (r == 0)
        r = hard_stat(h, &st);
    return r < 0 ? r : snode_record(n, call, f->ino, &st, a, NULL, e);
}

/* Busy. The request is done: it changes nothing when it comes again. */
static int note_done(struct snode *n, const struct scratch_call *call, uint64_t ino, struct arena *a,
                     struct err *e)
{
    struct scratch_inode x;
    if (call->request == 0)
        return 0;
    int r = scratch_getattr(n->names, call->bucket, ino, a, &x, e);
    struct scratch_set set = {.what = SCRATCH_SET_CTIME, .ctime_ns = x.ctime_ns};
    return r < 0 ? r : scratch_setattr(n->names, call, ino, &set, a, &x, e);
}

/* Busy. */
static int empty_once(struct snode *n, const struct scratch_call *call, struct sfile *f, struct hard *h,
                      struct arena *a, struct err *e)
{
    bool is_done;
    int r = scratch_is_done(n->names, call, &is_done, e);
    if (r < 0 || is_done)
        return r;
    r = set_size(n, call, f, h, 0, a, e);
    return r < 0 ? r : note_done(n, call, f->ino, a, e);
}

/* ---- opening ---- */

static int check_file(const struct scratch_inode *x, struct err *e)
{
    if (S_ISDIR(x->mode))
        return err_set(e, -EISDIR, "is a directory");
    return S_ISREG(x->mode) ? 0 : err_set(e, -EINVAL, "is no file");
}

/* Busy. A mount that opens it again, after a restart of the node, has perhaps written to it since it was
 * counted. */
static int record_open(struct snode *n, const struct scratch_call *call, struct sfile *f, struct hard *h,
                       struct arena *a, struct err *e)
{
    struct scratch_call step = step_of(call);
    struct stat st;
    int r = hard_stat(h, &st);
    return r < 0 ? err_errno(e, r, "state of the file") : snode_record(n, &step, f->ino, &st, a, NULL, e);
}

/* Busy. What the handle stands for; nothing when the file has no extent and is only read. */
static int open_file(struct snode *n, const struct scratch_call *call, struct sfile *f, uint32_t flags,
                     bool is_limited, struct arena *a, struct stree *t, struct err *e)
{
    _cleanup_(hard_unrefp) struct hard *h = NULL;
    struct scratch_inode x;
    int r = scratch_getattr(n->names, call->bucket, f->ino, a, &x, e);
    if (r == 0)
        r = check_file(&x, e);
    if (r < 0)
        return r;
    if (t->writes) {
        r = begin_writing(n, call, f, a, &x, &h, e);
        if (r < 0)
            return r;
        t->fd = hard_open_fd(h, O_RDWR);
        r = t->fd < 0 ? err_errno(e, t->fd, "open the file for writing") : 0;
        if (r == 0 && flags & WIRE_TRUNCATE)
            r = empty_once(n, call, f, h, a, e);
        if (r == 0 && is_limited)
            r = record_open(n, call, f, h, a, e);
        if (r < 0) {
            hard_end_writing(h);
            return r;
        }
    } else if (x.location.n > 0 && !f->hard) {
        r = hard_find(n->store, x.location, &h, e);
        if (r < 0)
            return r;
    }
    LOCK_SCOPE(&n->lock);
    f->handles++;
    f->writers += t->writes;
    f->generation += t->writes;
    if (!f->hard)
        f->hard = TAKE_PTR(h);
    return 0;
}

struct stree *stree_new(struct snode *n, struct sfile *f, bool writes)
{
    struct stree *t = calloc(1, sizeof(*t));
    assert(t);
    *t = (struct stree){.node = n, .file = f, .writes = writes, .may_read = true, .fd = -1};
    (void)atomic_fetch_add(writes ? &n->service->writers : &n->service->readers, 1);
    return t;
}

static void link_tree(struct snode *n, struct stree *t, const struct object_session *ses)
{
    struct sfile *f = t->file;
    LOCK_SCOPE(&n->lock);
    t->faults_before = f->faults - f->fault_untold;
    for (const struct stree *o = f->trees; o; o = o->file_next)
        if (o->session != ses && id_eq(o->mount, t->mount) && !id_is_zero(t->mount))
            t->faults_before = MIN(t->faults_before, o->faults_before);
    t->faults_told = t->faults_before;
    t->session = ses;
    t->file_next = f->trees;
    f->trees = t;
}

int stree_open(struct snode *n, const struct scratch_call *call, uint64_t ino, uint32_t flags,
               struct arena *a, struct stree **ret, struct scratch_inode *ret_x, struct err *e)
{
    struct stree *t = stree_new(n, sfile_get(n, call->bucket, ino), flags & WIRE_WRITE);
    t->mount = call->mount;
    sfile_enter(n, t->file);
    bool is_limited = flags & WIRE_WRITE && sroom_is_limited(n->service, call->bucket);
    int r = open_file(n, call, t->file, flags, is_limited, a, t, e);
    lock_take(&n->lock);
    if (r == 0)
        linger_opened_locked(n, t->file, t->mount);
    if (r < 0 && t->file->unsettled && t->file->writers == 0)
        sfile_queue_locked(n, t->file);
    lock_drop(&n->lock);
    sfile_leave(n, t->file);
    if (r < 0) {
        stree_drop(t);
        return r;
    }
    r = scratch_getattr(n->names, call->bucket, ino, a, ret_x, e);
    if (r < 0) {
        stree_free(t);
        return r;
    }
    snode_fresh(n, call->bucket, a, ret_x);
    *ret = t;
    return 0;
}

int stree_made(struct snode *n, const struct scratch_call *call, uint64_t ino, int64_t mtime_ns,
               struct hard *h, int fd, struct stree **ret, struct err *e)
{
    struct sfile *f = sfile_get(n, call->bucket, ino);
    struct stree *t = stree_new(n, f, /* writes= */ true);
    t->mount = call->mount;
    sfile_enter(n, f);
    note_unsettled(n, f, true);
    int r = hard_begin_writing(h, e);
    if (r == 0)
        (void)hard_set_mtime(h, mtime_ns, NULL); /* else it is modified now: nearly as good */
    if (r == 0)
        hard_hand_out(h);
    t->fd = fd;
    lock_take(&n->lock);
    f->fresh = f->fresh || !f->hard;
    if (r == 0) {
        f->handles++;
        f->writers++;
        f->generation++;
        if (!f->hard) /* else somebody who saw the name was faster */
            f->hard = TAKE_PTR(h);
    } else {
        sfile_queue_locked(n, f);
    }
    lock_drop(&n->lock);
    sfile_leave(n, f);
    hard_unref(h);
    if (r < 0)
        stree_drop(t);
    else
        *ret = t;
    return r;
}

struct stree *stree_made_empty(struct snode *n, const struct scratch_call *call, uint64_t ino)
{
    struct stree *t = stree_new(n, sfile_get(n, call->bucket, ino), /* writes= */ false);
    t->mount = call->mount;
    sfile_enter(n, t->file);
    lock_take(&n->lock);
    t->file->handles++;
    linger_opened_locked(n, t->file, t->mount);
    lock_drop(&n->lock);
    sfile_leave(n, t->file);
    return t;
}

int stree_give(struct object_session *ses, struct bucket *b, struct stree *t, uint64_t *ret_handle,
               int *ret_fd, struct err *e)
{
    t->bucket = bucket_ref(b);
    t->via = ses->via;
    link_tree(t->node, t, ses);
    if (ses->has_peer)
        stree_note_opened(t);
    int fd = t->fd >= 0 ? t->fd : -1;
    if (!t->writes) {
        LOCK_SCOPE(&t->node->lock);
        fd = t->file->hard ? hard_fd(t->file->hard) : -1;
    }
    int r = session_put(ses, HANDLE_TREE, t, ret_handle);
    if (r < 0) {
        stree_free(t);
        return session_no_room(r, e);
    }
    *ret_fd = fd;
    return 0;
}

/* ---- size ---- */

/* Busy. */
static int truncate_file(struct snode *n, const struct scratch_call *call, struct sfile *f, uint64_t size,
                         struct arena *a, struct err *e)
{
    struct scratch_inode x;
    int r = scratch_getattr(n->names, call->bucket, f->ino, a, &x, e);
    if (r == 0)
        r = check_file(&x, e);
    if (r < 0)
        return r;
    if (x.location.n == 0 && size == 0) {
        struct scratch_call step = step_of(call);
        struct scratch_set set = {.what = SCRATCH_SET_SIZE | SCRATCH_SET_MTIME_NOW};
        return scratch_setattr(n->names, &step, f->ino, &set, a, &x, e);
    }
    struct hard *h = NULL;
    r = begin_writing(n, call, f, a, &x, &h, e);
    if (r < 0)
        return r;
    r = set_size(n, call, f, h, size, a, e);
    hard_end_writing(h);
    hard_unref(h);
    return r;
}

int stree_truncate(struct snode *n, const struct scratch_call *call, uint64_t ino, uint64_t size, bool is_all,
                   struct arena *a, struct err *e)
{
    struct scratch_call step = step_of(call);
    bool is_done = false;
    int r = scratch_hold(n->names, call->bucket, ino, e);
    if (r < 0)
        return r;
    struct stree *t = stree_new(n, sfile_get(n, call->bucket, ino), /* writes= */ false);
    struct sfile *f = t->file;
    sfile_enter(n, f);
    r = scratch_is_done(n->names, call, &is_done, e);
    if (r == 0 && !is_done)
        r = truncate_file(n, &step, f, size, a, e);
    if (r == 0 && !is_done && is_all)
        r = note_done(n, call, ino, a, e);
    lock_take(&n->lock);
    if (f->handles == 0 && f->unsettled)
        sfile_queue_locked(n, f);
    lock_drop(&n->lock);
    sfile_leave(n, f);
    stree_drop(t);
    return r;
}
