/*
 * WRITE, FLUSH, FSYNC, FALLOCATE: changing files. Bytes go to the staging file; flush and fsync publish them,
 * and their result is what the program gets.
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

static void publish(fuse_req_t req, const char *what, bool is_close, struct fuse_file_info *fi)
{
    struct handle *h = handle_of(fi);
    struct err e = {0};
    int r = 0;
    if (h->staging && (h->is_writable || !is_close) && mount_parks(req))
        return;
    if (h->staging && !is_close) /* what others wrote, too */
        r = staging_publish(mount_of(req), h->staging, &e);
    else if (h->staging && h->is_writable)
        r = staging_close(mount_of(req), h->staging, &e);
    if (h->is_writable && !h->staging) /* a process that took over did not find it */
        r = err_set(&e, -EIO, "what was written here is lost");
    if (r < 0)
        mount_reply_error(req, what, r, &e);
    else
        (void)fuse_reply_err(req, 0);
}

void mount_op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)ino;
    publish(req, "close", /* is_close= */ true, fi);
}

void mount_op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
    (void)ino, (void)datasync;
    publish(req, "fsync", /* is_close= */ false, fi); /* it is about the file, not about how it was opened */
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
