/* READ of files that are not read by passthrough. */
#include "mount/mount_internal.h"

#include "base/sys.h"

static ssize_t read_staged(const struct staging *s, void *p, size_t n, uint64_t offset, struct err *e)
{
    size_t done = 0;
    while (done < n) {
        ssize_t got = sys->pread(staging_fd(s), (char *)p + done, n - done, offset + done);
        if (got < 0)
            return err_errno(e, (int)got, "read of the staging file");
        if (got == 0)
            break;
        done += (size_t)got;
    }
    return (ssize_t)done;
}

void mount_op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi)
{
    (void)ino;
    struct mount *m = mount_of(req);
    struct handle *h = handle_of(fi);
    struct err e = {0};
    char *p = malloc(size ? size : 1);
    if (!p)
        abort();
    struct client_file *file = NULL;
    ssize_t got = h->staging ? 0 : handle_file(m, h, &file, &e);
    bool is_here = h->staging || (file && client_file_is_complete(file));
    if (h->staging)
        got = read_staged(h->staging, p, size, (uint64_t)offset, &e);
    else if (got == 0)
        got = client_file_pread(file, p, size, (uint64_t)offset, &e);
    if (got < 0) {
        mount_reply_error(req, "read", (int)got, &e);
    } else {
        stats_read(m->stats, (size_t)got, is_here);
        (void)fuse_reply_buf(req, p, (size_t)got);
    }
    free(p);
}
