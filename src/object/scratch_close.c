/*
 * Closing files of scratch buckets for mounts: one, or several at once (contract in scratch_node.h).
 *
 * An extent in which nothing was ever written is taken from its inode by the last close. Whoever makes many
 * empty files closes as many: those that are closed together give their extents away in few transactions.
 *
 * Invariants:
 *  1. Who is busy with the first file of several waits for none of the others: one that somebody else is busy
 * with is closed later, by itself.
 *  2. Nobody is busy any more when extents are handed to the freeing thread, which may have to be waited for.
 *
 * Failure modes: an extent that cannot be taken from its inode stays with it, empty, and is settled.
 */
#include "object/scratch_tree.h"

#include "base/log.h"

#define CLOSE_ARENA (64 * KIB)

/* A handle that is being closed. */
struct closing {
    struct stree *tree;
    struct stat stat;     /* of the file */
    bool is_known;        /* it is in `stat` */
    bool is_last;         /* the file has no other handle */
    bool is_taken;        /* the extent is not the inode's any more */
    struct hard *unnamed; /* that extent, to be freed */
};

void stree_use(struct stree *t)
{
    (void)atomic_fetch_add(&t->uses, 1);
}

void stree_unuse(struct stree *t)
{
    LOCK_SCOPE(&t->node->lock);
    if (atomic_fetch_sub(&t->uses, 1) == 1)
        cond_broadcast(&t->node->idle);
}

void stree_wait_unused(struct stree *t)
{
    LOCK_SCOPE(&t->node->lock);
    while (atomic_load(&t->uses) > 0)
        cond_wait(&t->node->idle, &t->node->lock);
}

static void unlink_tree(struct snode *n, struct stree *t)
{
    LOCK_SCOPE(&n->lock);
    struct stree **at = &t->file->trees;
    while (*at && *at != t)
        at = &(*at)->file_next;
    if (*at) /* else its opening failed */
        *at = t->file_next;
    linger_dropped_locked(n, t);
}

void stree_drop(struct stree *t)
{
    struct snode *n = t->node;
    struct scratch_orphans orphans = {0};
    struct err e = {0};
    unlink_tree(n, t);
    if (t->fd >= 0)
        (void)close(t->fd);
    lock_take(&n->lock);
    bool is_end =
        n->stopping; /* holds go by themselves, and a removed file stays for the next start to judge */
    lock_drop(&n->lock);
    int r = is_end ? 0 : scratch_release(n->names, t->file->bucket, t->file->ino, &orphans, &e);
    if (r < 0) /* an orphan stays for the next start */
        log_warn("object", "release inode %llu: %s", (unsigned long long)t->file->ino, e.text);
    snode_free_orphans(n, &orphans);
    sfile_put(n, t->file);
    bucket_unref(t->bucket);
    (void)atomic_fetch_sub(t->writes ? &n->service->writers : &n->service->readers, 1);
    free(t);
}

/* ---- busy with all of them ---- */

/* A mount whose session was lost did not close the file: its programs may still have it open, and what they
 * write next goes to this extent. So do stores into a mapping of a file that had bytes, which outlives every
 * close. It stays the inode's unless the kernel knows of nobody. ret_st: as the file is, when there is
 * nobody. */
static void keep_if_open(struct snode *n, struct sfile *f, struct stat *ret_st)
{
    if (hard_measure(f->hard, ret_st, NULL) == 0)
        return;
    LOCK_SCOPE(&n->lock);
    f->fresh = false;
}

/* The file counts the handle no more. */
static void end_handle(struct snode *n, struct closing *c, struct arena *a)
{
    struct stree *t = c->tree;
    struct sfile *f = t->file;
    struct scratch_call call = {.bucket = f->bucket};
    struct err e = {0};
    c->is_known = f->hard && hard_stat(f->hard, &c->stat) == 0;
    bool empty = c->is_known && f->fresh && c->stat.st_size == 0 && c->stat.st_blocks == 0;
    if (t->writes) {
        hard_end_writing(f->hard);
        if (c->is_known && !empty && snode_record(n, &call, f->ino, &c->stat, a, NULL, &e) < 0)
            log_warn("object", "inode %llu: %s", (unsigned long long)f->ino, e.text); /* settling sets it */
        ledger_end(n->ledger, &t->claim);
    }
    stree_forget_opened(t);
    if (t->fd >= 0)
        (void)close(t->fd);
    t->fd = -1;
    if (t->writes && empty && (!t->session || !hard_is_untouched(f->hard, &c->stat)))
        keep_if_open(n, f, &c->stat);
    LOCK_SCOPE(&n->lock);
    f->writers -= t->writes;
    c->is_last = --f->handles == 0;
    if (t->writes && f->writers == 0 && f->unsettled && !c->is_last)
        sfile_queue_locked(n, f);
}

/* Whether nothing was ever written to the extent, and nobody has the file open any more. */
static bool is_empty(struct snode *n, const struct closing *c)
{
    LOCK_SCOPE(&n->lock);
    return c->is_last && c->is_known && c->tree->file->fresh && c->stat.st_size == 0 &&
           c->stat.st_blocks == 0;
}

static void note_taken(struct snode *n, struct closing *c)
{
    struct sfile *f = c->tree->file;
    LOCK_SCOPE(&n->lock);
    sfile_set_unsettled_locked(n, f, false);
    f->fresh = false;
    f->generation++; /* what was measured is no longer so */
    c->is_taken = true;
}

/* Takes the empty extents from inodes of one bucket, all or, where that fails, one by one. */
static void take(struct snode *n, struct closing *const *v, size_t count)
{
    uint64_t inos[SCRATCH_UNLOCATE_MAX] = {0};
    for (size_t i = 0; i < count; i++)
        inos[i] = v[i]->tree->file->ino;
    int r = scratch_unlocate(n->names, v[0]->tree->file->bucket, inos, count, NULL);
    for (size_t i = 0; i < count; i++) {
        if (r == 0)
            note_taken(n, v[i]);
        else if (count > 1)
            take(n, &v[i], 1);
    }
}

static void take_empty(struct snode *n, struct closing *c, size_t count)
{
    struct closing *group[SCRATCH_UNLOCATE_MAX];
    size_t n_group = 0;
    for (size_t i = 0; i < count; i++) {
        if (!is_empty(n, &c[i]))
            continue;
        bool fits = n_group < SCRATCH_UNLOCATE_MAX &&
                    (n_group == 0 || group[0]->tree->file->bucket == c[i].tree->file->bucket);
        if (!fits) {
            take(n, group, n_group);
            n_group = 0;
        }
        group[n_group++] = &c[i];
    }
    if (n_group > 0)
        take(n, group, n_group);
}

/* The last handle is closed: the file lets its extent go. */
static void let_go(struct snode *n, struct closing *c)
{
    struct sfile *f = c->tree->file;
    lock_take(&n->lock);
    struct hard *h = sfile_take_hard_locked(n, f);
    if (!c->is_taken && f->unsettled)
        sfile_queue_locked(n, f);
    lock_drop(&n->lock);
    if (c->is_taken)
        c->unnamed = h;
    else
        hard_unref(h);
}

static void close_busy(struct snode *n, struct closing *c, size_t count)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(CLOSE_ARENA);
    for (size_t i = 0; i < count; i++) {
        arena_clear(a);
        end_handle(n, &c[i], a);
    }
    take_empty(n, c, count);
    for (size_t i = 0; i < count; i++) {
        if (c[i].is_last)
            let_go(n, &c[i]);
        sfile_leave(n, c[i].tree->file);
    }
}

/* ---- closing ---- */

void stree_free_all(struct stree *const *v, size_t count)
{
    struct closing c[STREE_CLOSE_MAX];
    struct stree *later[STREE_CLOSE_MAX];
    size_t n_busy = 0, n_later = 0;
    assert(count <= STREE_CLOSE_MAX);
    for (size_t i = 0; i < count; i++) /* before anything is busy, as who uses one may have to be */
        stree_wait_unused(v[i]);
    for (size_t i = 0; i < count; i++) {
        if (n_busy == 0)
            sfile_enter(v[i]->node, v[i]->file);
        if (n_busy == 0 || sfile_try_enter(v[i]->node, v[i]->file))
            c[n_busy++] = (struct closing){.tree = v[i]};
        else
            later[n_later++] = v[i];
    }
    if (n_busy > 0)
        close_busy(v[0]->node, c, n_busy);
    for (size_t i = 0; i < n_busy; i++) {
        if (c[i].unnamed)
            snode_free_extent(c[i].tree->node, c[i].unnamed);
        stree_drop(c[i].tree);
    }
    for (size_t i = 0; i < n_later; i++)
        stree_free_all(&later[i], 1);
}

void stree_free(struct stree *t)
{
    if (t)
        stree_free_all(&t, 1);
}

void stree_close(struct stree *t, uint64_t n)
{
    if (n > 0 && t->bucket)
        metrics_add(metrics_series(METRIC_READ_BYTES, t->bucket->name, object_via_name(t->via), "cache"), n);
    stree_free(t);
}

int op_tree_close(struct object_session *ses, const struct wire_tree_close_req *req, struct arena *a,
                  struct wire_tree_close_rep *rep, struct err *e)
{
    (void)a, (void)rep;
    struct stree *v[STREE_CLOSE_MAX];
    struct slice rest = req->handles;
    uint64_t handle;
    size_t n = 0;
    int r;
    while ((r = wire_handle_decode(&rest, &handle)) == 0) {
        struct stree *t = session_take(ses, HANDLE_TREE, handle);
        if (t)
            v[n++] = t;
        if (n == STREE_CLOSE_MAX) {
            stree_free_all(v, n);
            n = 0;
        }
    }
    stree_free_all(v, n);
    return r == -ENOENT ? 0 : err_set(e, -EINVAL, "handles have 8 bytes each");
}
