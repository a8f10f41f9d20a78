/*
 * OPEN, CREATE, TMPFILE, FLUSH, RELEASE.
 *
 * A file is always made exclusively: the kernel asks to create what it believes not to exist, and has checked
 * the permissions for that. When the name is there after all, ESTALE makes it look the name up and begin
 * again, so that an existing file is opened only after its own permissions were checked.
 *
 * What is written with O_SYNC or O_DSYNC is on the disk when write returns, and by passthrough nobody but the
 * kernel sees the write: so the name that leads there is made durable before such an open returns.
 */
#include "mount/tree.h"

#include <fcntl.h>

/* Flags of the reply, and the backing id for it. */
static int reply_flags(struct mount *m, const struct tree_opened *o, bool is_writable,
                       struct fuse_file_info *fi)
{
    stats_opened(m->stats, is_writable, o->backing_id > 0);
    if (!is_writable)
        stats_add(m->stats, STATS_HERE_OPENS, 1);
    fi->fh = (uintptr_t)o->handle;
    if (o->backing_id > 0 && (fi->flags & O_ACCMODE) == O_RDWR)
        tree_expect_mapping(m, o->handle->ino);
    if (o->backing_id > 0) /* beside passthrough the kernel takes no other flags */
        return o->backing_id;
    /* Appending: only the file knows where its end is, so the kernel must not put the bytes into a page. */
    fi->direct_io = (fi->flags & O_APPEND) != 0;
    fi->keep_cache = o->keep_cache;
    return 0;
}

void tree_op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct mount *m = mount_of(req);
    struct err e = {0};
    struct tree_opened o;
    bool is_truncating = (fi->flags & O_TRUNC) != 0;
    bool is_writable = (fi->flags & O_ACCMODE) != O_RDONLY || is_truncating;
    int r = m->read_only && is_writable ? -EROFS : 0;
    if (r == 0)
        r = tree_file_open(m, tree_ino(m, ino),
                           (is_writable ? WIRE_WRITE : 0) | (is_truncating ? WIRE_TRUNCATE : 0), &o, &e);
    bool is_open = r == 0;
    if (r == 0 && is_truncating)
        r = tree_drop_privilege(req, o.handle->file, &e);
    if (r == 0 && is_writable)
        r = tree_sync_opened(m, fi, &e);
    if (r < 0 && is_open)
        tree_file_close(m, o.handle);
    if (r < 0) {
        /* The kernel knows the inode by a name that is gone: it shall look the name up again. */
        mount_reply_error(req, "open", r == -ENOENT ? -ESTALE : r, &e);
        return;
    }
    int backing_id = reply_flags(m, &o, is_writable, fi);
    if (passthrough_reply_open(req, fi, backing_id) < 0) /* the program was interrupted: no RELEASE comes */
        tree_file_close(m, o.handle);
}

/* Whether the new file gets its data when it is first written (tree_habit.h). What is opened in a special way
 * is meant to be written. */
static bool is_made_late(struct mount *m, uint64_t parent, struct slice name, const struct fuse_file_info *fi)
{
    const int others = O_ACCMODE | O_APPEND | O_DSYNC | O_DIRECT;
    return name.n > 0 && !m->tree->is_remote && (fi->flags & others) == O_WRONLY &&
           tree_habit_is_empty(&m->tree->habit, parent);
}

/* Takes over what the node gave. */
static int open_made(struct mount *m, struct tree_made *made, struct tree_opened *ret, struct err *e)
{
    const struct wire_tree_create_rep *rep = made->rep;
    if (!made->is_late || (rep->handle != 0 && rep->fd < 0))
        return tree_file_adopt(m, made, ret, e);
    /* A node that does not know this, or it has bytes already: a request that comes again. */
    int fd = rep->fd, r = tree_file_open(m, rep->inode.ino, WIRE_WRITE, ret, e);
    macro_close(&fd);
    made->grant.is_held = rep->handle != 0;
    tree_close_later(m, &made->grant);
    return r == -ENOENT ? -ESTALE : r; /* removed meanwhile: the kernel shall look again */
}

static int make(fuse_req_t req, struct slice name, struct wire_tree_create_req *q, struct fuse_file_info *fi,
                struct buf *b, struct tree_made *made, struct wire_tree_create_rep *rep, struct err *e)
{
    struct mount *m = mount_of(req);
    struct tree_change change = {0};
    if (name.n > 0)
        tree_known_begin(m->tree->known, q->parent, name, &change);
    int r = client_call_at(m->client, &made->grant.epoch, WIRE_OP_TREE_CREATE, q, b, rep, e);
    bool is_new = r == 0 && !request_comes_again(); /* else made, and perhaps noted, before */
    tree_known_end(m->tree->known, &change, is_new ? &rep->inode : NULL);
    made->grant.handle = rep->handle;
    if (r == 0 && name.n > 0)
        tree_named_note(m->tree->named, rep->inode.ino, q->parent, name);
    return r == -EEXIST && !(fi->flags & O_EXCL) ? -ESTALE : r;
}

/* An empty name: a file without one. */
static void create(fuse_req_t req, fuse_ino_t parent, struct slice name, mode_t mode,
                   struct fuse_file_info *fi)
{
    struct mount *m = mount_of(req);
    struct err e = {0};
    struct wire_tree_create_rep rep = {.fd = -1};
    struct tree_made made = {.rep = &rep, .grant = {.is_held = true}, .dir = tree_ino(m, parent)};
    made.is_late = is_made_late(m, made.dir, name, fi);
    struct wire_tree_create_req q = {
        .bucket = slice_str(m->bucket),
        .parent = made.dir,
        .name = name,
        .mode = (mode & ~(mode_t)S_IFMT) | S_IFREG,
        .uid = fuse_req_ctx(req)->uid,
        .gid = fuse_req_ctx(req)->gid,
        .flags = (made.is_late ? WIRE_LATE : WIRE_WRITE) | WIRE_EXCLUSIVE,
        TREE_CHANGE(m),
    };
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = tree_files_check_room(m, /* makes= */ !made.is_late);
    if (r < 0) {
        (void)fuse_reply_err(req, -r);
        return;
    }
    r = make(req, name, &q, fi, &b, &made, &rep, &e);
    if (r < 0) {
        mount_reply_error(req, "create", r, &e);
        return;
    }
    struct tree_opened o;
    struct fuse_entry_param entry;
    tree_fill_entry(m, &rep.inode, &entry); /* not open yet: believed for long, see forget_attributes */
    r = open_made(m, &made, &o, &e);
    if (r < 0) {
        mount_reply_error(req, "create", r, &e);
        return;
    }
    r = tree_sync_opened(m, fi, &e);
    if (r < 0) {
        tree_file_close(m, o.handle);
        mount_reply_error(req, "create", r, &e);
        return;
    }
    int backing_id = reply_flags(m, &o, /* is_writable= */ true, fi);
    if (passthrough_reply_create(req, &entry, fi, backing_id) < 0)
        tree_file_close(m, o.handle);
}

void tree_op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
                    struct fuse_file_info *fi)
{
    bool has_no_name = strcmp(name, PASSTHROUGH_NO_NAME) == 0;
    create(req, parent, has_no_name ? SLICE_NULL : slice_str(name), mode, fi);
}

void tree_op_tmpfile(fuse_req_t req, fuse_ino_t parent, mode_t mode, struct fuse_file_info *fi)
{
    create(req, parent, SLICE_NULL, mode, fi);
}

/* Comes with every close of every duplicate: it ends the locks that the process has on the file. */
void tree_op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)ino;
    atomic_store(&tree_handle_of(fi)->is_closing, true); /* perhaps */
    tree_unlock_owner(mount_of(req), tree_handle_of(fi)->file, fi->lock_owner);
    (void)fuse_reply_err(req, 0);
}

void tree_op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)ino;
    struct mount *m = mount_of(req);
    struct tree_handle *h = (struct tree_handle *)(uintptr_t)fi->fh;
    if (!tree_handle_is_shut(fi)) /* else by a process before this one */
        tree_file_shut(m, h = tree_handle_of(fi));
    (void)fuse_reply_err(req, 0);
    tree_handle_free(m, h);
}
