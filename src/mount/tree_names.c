/* MKNOD, MKDIR, SYMLINK, LINK, UNLINK, RMDIR, RENAME: one call to the node each, around which tree_known.h is
 * told what it does to directories. */
#include "mount/tree.h"

#include <linux/fs.h>

static void make(fuse_req_t req, const char *what, fuse_ino_t parent, const char *name, mode_t mode,
                 dev_t rdev, struct slice target)
{
    struct mount *m = mount_of(req);
    struct err e = {0};
    struct wire_tree_create_req q = {
        .bucket = slice_str(m->bucket),
        .parent = tree_ino(m, parent),
        .name = slice_str(name),
        .mode = mode,
        .rdev = (uint32_t)rdev, /* as FUSE carries it */
        .target = target,
        .uid = fuse_req_ctx(req)->uid,
        .gid = fuse_req_ctx(req)->gid,
        .flags = WIRE_EXCLUSIVE,
        TREE_CHANGE(m),
    };
    struct wire_tree_create_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    struct tree_known *known = m->tree->known;
    struct tree_change change;
    bool is_alone = tree_is_alone(m);
    uint64_t serial = tree_known_serial(known, /* dir= */ 0);
    tree_known_begin(known, q.parent, q.name, &change);
    int r = client_tree_create(m->client, &q, &b, &rep, &e);
    bool is_new = r == 0 && !request_comes_again(); /* else made by a process before: others may have come */
    tree_known_end(known, &change, is_new ? &rep.inode : NULL);
    if (r < 0) {
        mount_reply_error(req, what, r, &e);
        return;
    }
    tree_named_note(m->tree->named, rep.inode.ino, q.parent, q.name);
    if (S_ISDIR(mode) && is_alone && is_new)
        tree_known_made(known, &rep.inode, serial);
    tree_reply_entry(req, &rep.inode);
}

void tree_op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
    make(req, "mknod", parent, name, mode & S_IFMT ? mode : mode | S_IFREG, rdev, SLICE_NULL);
}

void tree_op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
    make(req, "mkdir", parent, name, (mode & ~(mode_t)S_IFMT) | S_IFDIR, /* rdev= */ 0, SLICE_NULL);
}

void tree_op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
    make(req, "symlink", parent, name, S_IFLNK | 0777, /* rdev= */ 0, slice_str(target));
}

void tree_op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t new_parent, const char *new_name)
{
    struct mount *m = mount_of(req);
    struct err e = {0};
    struct wire_tree_link_req q = {
        .bucket = slice_str(m->bucket),
        .ino = tree_ino(m, ino),
        .parent = tree_ino(m, new_parent),
        .name = slice_str(new_name),
        TREE_CHANGE(m),
    };
    struct wire_tree_link_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    struct tree_change change;
    tree_known_begin(m->tree->known, q.parent, q.name, &change);
    int r = client_tree_link(m->client, &q, &b, &rep, &e);
    tree_known_end(m->tree->known, &change, /* made= */ NULL);
    if (r < 0) {
        mount_reply_error(req, "link", r, &e);
        return;
    }
    tree_named_note(m->tree->named, rep.inode.ino, q.parent, q.name);
    tree_reply_entry(req, &rep.inode);
}

/* A node of before TREE_REMOVE is asked as before. */
static int remove_name(struct mount *m, const struct wire_tree_remove_req *q, int64_t *ret_changed_ns,
                       struct err *e)
{
    struct wire_tree_remove_rep rep;
    struct wire_tree_unlink_rep none;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = client_tree_remove(m->client, q, &b, &rep, e);
    if (r == 0)
        *ret_changed_ns = rep.changed_ns;
    if (r != ERR_NOT_IMPLEMENTED)
        return r;
    const struct wire_tree_unlink_req old = {
        .bucket = q->bucket, .parent = q->parent, .name = q->name, .mount = q->mount, .request = q->request};
    return client_tree_unlink(m->client, &old, &b, &none, e);
}

void tree_op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct mount *m = mount_of(req);
    struct err e = {0};
    struct wire_tree_remove_req q = {.bucket = slice_str(m->bucket),
                                     .parent = tree_ino(m, parent),
                                     .name = slice_str(name),
                                     TREE_CHANGE(m)};
    int64_t changed_ns = 0;
    struct tree_change change;
    tree_known_begin(m->tree->known, q.parent, SLICE_NULL, &change);
    int r = remove_name(m, &q, &changed_ns, &e);
    if (r == 0 && !request_comes_again()) /* else removed by a process before, and perhaps made since */
        tree_known_end_gone(m->tree->known, &change, q.name, changed_ns);
    else
        tree_known_end(m->tree->known, &change, /* made= */ NULL);
    if (r == 0)
        tree_named_gone(m->tree->named, q.parent, q.name);
    tree_reply(req, "unlink", r, &e);
}

void tree_op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct mount *m = mount_of(req);
    struct err e = {0};
    struct wire_tree_rmdir_req q = {.bucket = slice_str(m->bucket),
                                    .parent = tree_ino(m, parent),
                                    .name = slice_str(name),
                                    TREE_CHANGE(m)};
    struct wire_tree_rmdir_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    tree_known_forget_attrs(m->tree->known); /* also of the one that goes */
    int r = client_tree_rmdir(m->client, &q, &b, &rep, &e);
    tree_known_forget_attrs(m->tree->known);
    if (r == 0)
        tree_named_gone(m->tree->named, q.parent, q.name);
    tree_reply(req, "rmdir", r, &e);
}

/* The same of TREE_MOVE. */
static int move_name(struct mount *m, const struct wire_tree_move_req *q, int64_t *ret_changed_ns,
                     struct err *e)
{
    struct wire_tree_move_rep rep;
    struct wire_tree_rename_rep none;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = client_tree_move(m->client, q, &b, &rep, e);
    if (r == 0)
        *ret_changed_ns = rep.changed_ns;
    if (r != ERR_NOT_IMPLEMENTED)
        return r;
    const struct wire_tree_rename_req old = {.bucket = q->bucket,
                                             .parent = q->parent,
                                             .name = q->name,
                                             .to_parent = q->to_parent,
                                             .to_name = q->to_name,
                                             .flags = q->flags,
                                             .mount = q->mount,
                                             .request = q->request};
    return client_tree_rename(m->client, &old, &b, &none, e);
}

void tree_op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
                    const char *new_name, unsigned flags)
{
    struct mount *m = mount_of(req);
    struct err e = {0};
    if (flags & ~(unsigned)(RENAME_NOREPLACE | RENAME_EXCHANGE)) {
        (void)fuse_reply_err(req, EINVAL);
        return;
    }
    struct wire_tree_move_req q = {
        .bucket = slice_str(m->bucket),
        .parent = tree_ino(m, parent),
        .name = slice_str(name),
        .to_parent = tree_ino(m, new_parent),
        .to_name = slice_str(new_name),
        .flags =
            (flags & RENAME_NOREPLACE ? WIRE_NOREPLACE : 0) | (flags & RENAME_EXCHANGE ? WIRE_EXCHANGE : 0),
        TREE_CHANGE(m),
    };
    int64_t changed_ns = 0;
    struct tree_change from, to;
    tree_known_begin(m->tree->known, q.parent, q.name, &from);
    tree_known_begin(m->tree->known, q.to_parent, q.to_name, &to);
    int r = move_name(m, &q, &changed_ns, &e);
    if (r == 0 && !(flags & RENAME_EXCHANGE) && !request_comes_again()) {
        tree_known_end_moved(m->tree->known, &from, q.name, &to, changed_ns);
    } else {
        tree_known_end(m->tree->known, &to, /* made= */ NULL);
        tree_known_end(m->tree->known, &from, /* made= */ NULL);
    }
    if (changed_ns == 0) /* perhaps also of one that moved */
        tree_known_forget_attrs(m->tree->known);
    if (r == 0)
        tree_named_moved(m->tree->named, q.parent, q.name, q.to_parent, q.to_name,
                         /* exchange= */ (flags & RENAME_EXCHANGE) != 0);
    tree_reply(req, "rename", r, &e);
}
