/*
 * OPEN and READ of the read-only profile: the kernel opens and closes files by itself, asks nobody about it,
 * and keeps their pages from one open to the next. All that comes here is reads of pages that it has not.
 *
 * A node is one version of a file, so that pages of two versions never meet; what was changed gets another
 * node at the next lookup. The node's file here is open while it is read and stays open for later reads
 * (warm.h), in backing_file; n_plain counts the reads that run.
 *
 * Failure modes: as there is no open, an object that was replaced while a program has it open gives ESTALE
 * for pages that were not read before, unless its bytes are still here.
 */
#include "mount/mount_internal.h"

void mount_op_open_not_needed(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)ino, (void)fi;
    (void)fuse_reply_err(req, ENOSYS); /* the kernel does not ask again */
}

/* The file that is open already. */
static bool join_locked(struct mount *m, struct node *n, struct warm_trash **trash)
{
    if (!n->backing_file || (n->n_plain == 0 && !warm_use_locked(m->warm, n, /* needs_fd= */ false, trash)))
        return false;
    n->n_plain++;
    return true;
}

static void begin_locked(struct mount *m, struct node *n, struct mount_opened *o)
{
    uint64_t valid_ms = client_file_valid_ms(o->file);
    n->backing_file = TAKE_PTR(o->file);
    n->n_plain = 1;
    warm_track_locked(m->warm, n, o->key_hash, o->serial, valid_ms);
}

static int enter(struct mount *m, struct node *n, struct client_file **ret, struct err *e)
{
    struct warm_trash *trash = NULL;
    struct mount_opened o = {0};
    lock_take(node_table_lock(m->nodes));
    bool joined = join_locked(m, n, &trash);
    *ret = n->backing_file;
    lock_drop(node_table_lock(m->nodes));
    int r = joined ? 0 : mount_open_file(m, n, &o, e);
    if (!joined && r == 0) {
        lock_take(node_table_lock(m->nodes));
        if (!join_locked(m, n, &trash))
            begin_locked(m, n, &o);
        *ret = n->backing_file;
        lock_drop(node_table_lock(m->nodes));
    }
    warm_empty(m->warm, trash);
    client_file_close(o.file); /* another thread was faster */
    return r;
}

static void leave(struct mount *m, struct node *n)
{
    struct warm_trash *trash = NULL;
    struct client_file *file = NULL;
    lock_take(node_table_lock(m->nodes));
    if (--n->n_plain == 0 && !warm_keep_locked(m->warm, n, &trash))
        file = TAKE_PTR(n->backing_file);
    lock_drop(node_table_lock(m->nodes));
    warm_empty(m->warm, trash);
    client_file_close(file);
}

void mount_op_read_not_opened(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset,
                              struct fuse_file_info *fi)
{
    (void)fi;
    struct mount *m = mount_of(req);
    struct err e = {0};
    struct client_file *file;
    struct node *n = node_get(m->nodes, ino);
    _cleanup_free_ char *p = malloc(size ? size : 1);
    if (!p)
        abort();
    ssize_t got = n ? enter(m, n, &file, &e) : -ESTALE;
    if (got == 0) {
        bool is_here = client_file_is_complete(file);
        got = client_file_pread(file, p, size, (uint64_t)offset, &e);
        leave(m, n);
        if (got > 0)
            stats_read(m->stats, (size_t)got, is_here);
    }
    if (got < 0)
        mount_reply_error(req, "read", (int)got, &e);
    else
        (void)fuse_reply_buf(req, p, (size_t)got);
    node_unref(m->nodes, n);
}
