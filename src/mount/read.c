/* READ of files that are not read by passthrough. */
#include "mount/mount_internal.h"

#include "base/sys.h"

#define TRIES 3 /* renames that follow one another at once */

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

static bool is_gone(ssize_t got)
{
    return got == -ENOENT || got == -ESTALE || got == ERR_PRECONDITION || got == ERR_VERSION_CHANGED;
}

/* At the origin what is renamed has no name for a while: who finds nothing then asks again when it is over.
 */
static ssize_t read_object(struct mount *m, const struct handle *h, struct client_file *file, void *p,
                           size_t n, uint64_t offset, struct err *e)
{
    ssize_t got = client_file_pread(file, p, n, offset, e);
    for (int i = 1; is_gone(got) && i < TRIES; i++) {
        pause_wait_all(m, h->node);
        got = client_file_pread(file, p, n, offset, e);
    }
    return got;
}

void mount_op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi)
{
    (void)ino;
    struct mount *m = mount_of(req);
    struct handle *h = handle_of(fi);
    struct err e = {0};
    /* The kernel reads such a file itself, and asks here only for what it is advised to read ahead
     * (posix_fadvise, POSIX_FADV_WILLNEED). What it gets stays in pages that no write by passthrough changes,
     * and which whoever opens the file without passthrough then would read. No program hears of this error.
     */
    if (h->is_passthrough) {
        (void)fuse_reply_err(req, EIO);
        return;
    }
    char *p = malloc(size ? size : 1);
    if (!p)
        abort();
    struct client_file *file = NULL;
    ssize_t got = h->staging ? 0 : handle_file(m, h, &file, &e);
    bool is_here = h->staging || (file && client_file_is_complete(file));
    if (h->staging)
        got = read_staged(h->staging, p, size, (uint64_t)offset, &e);
    else if (got == 0)
        got = read_object(m, h, file, p, size, (uint64_t)offset, &e);
    if (got < 0) {
        mount_reply_error(req, "read", (int)got, &e);
    } else {
        stats_read(m->stats, (size_t)got, is_here);
        (void)fuse_reply_buf(req, p, (size_t)got);
    }
    free(p);
}
