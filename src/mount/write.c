/*
 * WRITE, FLUSH, FSYNC, FALLOCATE, SETATTR: changing files. Bytes go to the staging file; flush, fsync and a
 * truncation by name publish them, and their result is what the program gets.
 *
 * A mirror bucket keeps no modes, owners or times of its own: setting mode or times succeeds and changes
 * nothing, giving a file to another owner fails with EPERM.
 */
#include "mount/mount_internal.h"

#include "base/sys.h"

void mount_op_write(fuse_req_t req, fuse_ino_t ino, const char *p, size_t size, off_t offset,
                    struct fuse_file_info *fi)
{
    (void)ino;
    struct handle *h = handle_of(fi);
    struct err e = {0};
    int r = h->staging && h->is_writable ? sys_pwrite_all(staging_fd(h->staging), p, size, (uint64_t)offset)
                                         : -EBADF;
    if (h->staging)
        staging_changed(h->staging);
    if (r < 0) {
        mount_reply_error(req, "write", err_errno(&e, r, "write of the staging file"), &e);
        return;
    }
    stats_add(mount_of(req)->stats, STATS_WRITTEN_BYTES, size);
    (void)fuse_reply_write(req, size);
}

static void publish(fuse_req_t req, const char *what, struct fuse_file_info *fi)
{
    struct handle *h = handle_of(fi);
    struct err e = {0};
    int r = h->staging && h->is_writable ? staging_publish(mount_of(req), h->staging, &e) : 0;
    if (r < 0)
        mount_reply_error(req, what, r, &e);
    else
        (void)fuse_reply_err(req, 0);
}

void mount_op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)ino;
    publish(req, "close", fi);
}

void mount_op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
    (void)ino, (void)datasync;
    publish(req, "fsync", fi);
}

void mount_op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset, off_t length,
                        struct fuse_file_info *fi)
{
    (void)ino;
    struct handle *h = handle_of(fi);
    int r = h->staging && h->is_writable
                ? sys->fallocate(staging_fd(h->staging), mode, (uint64_t)offset, (uint64_t)length)
                : -EBADF;
    if (h->staging)
        staging_changed(h->staging);
    (void)fuse_reply_err(req, r < 0 ? -r : 0);
}

/* By name: nothing is open through which it could be published later. */
static int truncate_closed(struct mount *m, struct node *n, uint64_t size, struct err *e)
{
    struct staging *s;
    int r = staging_acquire(m, n, size == 0 ? STAGING_EMPTY : STAGING_COPY, &s, e);
    if (r < 0)
        return r;
    r = staging_truncate(s, size);
    if (r < 0)
        r = err_errno(e, r, "truncate of the staging file");
    else
        r = staging_publish(m, s, e);
    staging_release(m, s);
    return r;
}

static int set_size(struct mount *m, struct node *n, uint64_t size, const struct fuse_file_info *fi,
                    struct err *e)
{
    if (m->read_only)
        return -EROFS;
    if (n->is_dir)
        return -EISDIR;
    struct handle *h = fi ? handle_of(fi) : NULL;
    if (!h || !h->staging || !h->is_writable)
        return truncate_closed(m, n, size, e);
    int r = staging_truncate(h->staging, size);
    return r < 0 ? err_errno(e, r, "truncate of the staging file") : 0;
}

static int set_attr(struct mount *m, struct node *n, const struct stat *attr, int to_set,
                    const struct fuse_file_info *fi, struct err *e)
{
    if (m->read_only)
        return -EROFS;
    if ((to_set & FUSE_SET_ATTR_UID && attr->st_uid != m->uid) ||
        (to_set & FUSE_SET_ATTR_GID && attr->st_gid != m->gid))
        return -EPERM;
    return to_set & FUSE_SET_ATTR_SIZE ? set_size(m, n, (uint64_t)attr->st_size, fi, e) : 0;
}

void mount_op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
                      struct fuse_file_info *fi)
{
    struct mount *m = mount_of(req);
    struct err e = {0};
    struct node *n = node_get(m->nodes, ino);
    int r = n ? set_attr(m, n, attr, to_set, fi, &e) : -ESTALE;
    if (r < 0) {
        mount_reply_error(req, "setattr", r, &e);
    } else {
        struct stat st;
        mount_stat(m, n, &st);
        (void)fuse_reply_attr(req, &st, m->timeout_s);
    }
    node_unref(m->nodes, n);
}
