/* LOOKUP, FORGET, READLINK, STATFS. */
#include "mount/tree.h"

#include <string.h>
#include <sys/statvfs.h>

#define STATFS_BLOCK_BYTES 4096
#define FILES_FREE         (1ull << 40) /* as good as any: inodes are records, bounded by space alone */

static void reply_absent(fuse_req_t req)
{
    struct fuse_entry_param absent = {.entry_timeout = tree_name_timeout_s(mount_of(req))};
    (void)fuse_reply_entry(req, &absent);
}

/* "." of any inode, which the kernel asks for when it is given a file handle (open_by_handle_at(2), an NFS
 * server) of what it has forgotten. One without a name has none. */
static void reply_itself(fuse_req_t req, fuse_ino_t ino)
{
    struct mount *m = mount_of(req);
    struct err e = {0};
    struct wire_tree_getattr_req q = {.bucket = slice_str(m->bucket), .ino = tree_ino(m, ino)};
    struct wire_tree_getattr_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = client_tree_getattr(m->client, &q, &b, &rep, &e);
    if (r == 0 && rep.inode.links > 0)
        tree_reply_entry(req, &rep.inode);
    else
        mount_reply_error(req, "lookup", r < 0 ? r : -ENOENT, &e);
}

void tree_op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct mount *m = mount_of(req);
    /* Nothing above the root of the mount is shown. */
    if (strcmp(name, ".") == 0 || (strcmp(name, "..") == 0 && parent == FUSE_ROOT_ID)) {
        reply_itself(req, parent);
        return;
    }
    struct err e = {0};
    struct wire_tree_lookup_req q = {
        .bucket = slice_str(m->bucket), .parent = tree_ino(m, parent), .name = slice_str(name)};
    struct wire_tree_lookup_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    /* Else the node says what it is, or why not: nothing is known of "..", nor of names that are too long. */
    bool is_name = q.name.n <= MOUNT_NAME_MAX_BYTES && strcmp(name, "..") != 0;
    if (is_name && tree_is_alone(m) && tree_known_lacks(m->tree->known, q.parent, q.name)) {
        reply_absent(req);
        return;
    }
    uint64_t serial = tree_known_serial(m->tree->known, q.parent);
    int r = client_tree_lookup(m->client, &q, &b, &rep, &e);
    if (r == -ENOENT && tree_is_alone(m))
        tree_known_note_absent(m->tree->known, q.parent, q.name, serial);
    if (r == 0) {
        tree_named_note(m->tree->named, rep.inode.ino, q.parent, q.name);
        tree_reply_entry(req, &rep.inode);
    } else if (r == -ENOENT) {
        reply_absent(req);
    } else {
        mount_reply_error(req, "lookup", r, &e);
    }
}

void tree_op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t n)
{
    (void)ino, (void)n;
    fuse_reply_none(req);
}

void tree_op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
    (void)count, (void)forgets;
    fuse_reply_none(req);
}

void tree_op_readlink(fuse_req_t req, fuse_ino_t ino)
{
    struct mount *m = mount_of(req);
    struct err e = {0};
    struct wire_tree_getattr_req q = {.bucket = slice_str(m->bucket), .ino = tree_ino(m, ino)};
    struct wire_tree_getattr_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = client_tree_getattr(m->client, &q, &b, &rep, &e);
    if (r == 0 && !S_ISLNK(rep.inode.mode))
        r = -EINVAL;
    if (r < 0) {
        mount_reply_error(req, "readlink", r, &e);
        return;
    }
    _cleanup_free_ char *target = slice_dup(rep.inode.target);
    (void)fuse_reply_readlink(req, target);
}

void tree_op_statfs(fuse_req_t req, fuse_ino_t ino)
{
    (void)ino;
    struct mount *m = mount_of(req);
    struct err e = {0};
    struct wire_tree_statfs_req q = {.bucket = slice_str(m->bucket)};
    struct wire_tree_statfs_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = client_tree_statfs(m->client, &q, &b, &rep, &e);
    if (r < 0) {
        mount_reply_error(req, "statfs", r, &e);
        return;
    }
    struct statvfs s = {
        .f_bsize = STATFS_BLOCK_BYTES,
        .f_frsize = STATFS_BLOCK_BYTES,
        .f_blocks = rep.bytes_total / STATFS_BLOCK_BYTES,
        .f_bfree = rep.bytes_free / STATFS_BLOCK_BYTES,
        .f_bavail = rep.bytes_free / STATFS_BLOCK_BYTES,
        .f_files = rep.files + FILES_FREE,
        .f_ffree = FILES_FREE,
        .f_favail = FILES_FREE,
        .f_namemax = MOUNT_NAME_MAX_BYTES,
    };
    (void)fuse_reply_statfs(req, &s);
}
