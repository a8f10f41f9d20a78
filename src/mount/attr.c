/* Keys, attributes and what stat shows. */
#include "mount/mount_internal.h"

#include "base/sys.h"

#define NS_PER_S    1000000000ull
#define DIRECTORY_S 3600.0 /* for how long the kernel may believe the attributes of a directory */

int mount_key(struct mount *m, struct node *n, struct slice name, struct buf *b)
{
    if (name.n > MOUNT_NAME_MAX_BYTES)
        return -ENAMETOOLONG;
    int r = buf_str(b, m->prefix);
    size_t before = b->n;
    if (r == 0)
        r = node_path(m->nodes, n, b);
    if (r == 0 && name.n > 0 && b->n > before)
        r = buf_char(b, '/');
    if (r == 0)
        r = buf_slice(b, name);
    return r < 0 ? -ENAMETOOLONG : 0;
}

struct node_attr mount_node_attr(const struct wire_attr *a)
{
    return (struct node_attr){
        .is_dir = a->kind == WIRE_DIRECTORY,
        .size_bytes = a->size_bytes,
        .mtime_ns = a->mtime_ns,
        .etag = a->etag,
    };
}

void mount_stat_of(struct mount *m, uint64_t ino, const struct node_attr *a, struct stat *ret)
{
    uint64_t mtime_ns = a->mtime_ns ? a->mtime_ns : m->started_ns;
    mode_t mode = a->is_dir ? 0777 : 0666;
    if (m->read_only)
        mode &= (mode_t)~0222;
    memset(ret, 0, sizeof(*ret));
    ret->st_ino = ino;
    ret->st_mode = (a->is_dir ? S_IFDIR : S_IFREG) | (mode & ~(mode_t)m->umask);
    ret->st_nlink = 1; /* for directories: not counted */
    ret->st_uid = m->uid;
    ret->st_gid = m->gid;
    ret->st_size = a->is_dir ? 0 : (off_t)a->size_bytes;
    ret->st_blksize = (blksize_t)MOUNT_BLOCK_BYTES;
    ret->st_blocks = (blkcnt_t)((ret->st_size + 511) / 512);
    ret->st_mtim.tv_sec = (time_t)(mtime_ns / NS_PER_S);
    ret->st_mtim.tv_nsec = (long)(mtime_ns % NS_PER_S);
    ret->st_atim = ret->st_ctim = ret->st_mtim;
}

void mount_stat(struct mount *m, struct node *n, struct stat *ret)
{
    struct stat staged;
    LOCK_SCOPE(node_table_lock(m->nodes));
    struct node_attr a = {.is_dir = n->is_dir, .size_bytes = n->size_bytes, .mtime_ns = n->mtime_ns};
    mount_stat_of(m, n->ino, &a, ret);
    if (n->staging && staging_stat(n->staging, &staged) == 0) {
        ret->st_size = staged.st_size;
        ret->st_blocks = staged.st_blocks;
        ret->st_mtim = staged.st_mtim;
        ret->st_atim = ret->st_ctim = staged.st_mtim;
    }
    if (n->is_unlinked)
        ret->st_nlink = 0;
}

void mount_entry(struct mount *m, struct node *n, struct fuse_entry_param *ret)
{
    memset(ret, 0, sizeof(*ret));
    ret->ino = n->id;
    ret->attr_timeout = mount_timeout_s(m, n);
    ret->entry_timeout = n->is_dir ? m->timeout_s : ret->attr_timeout;
    mount_stat(m, n, &ret->attr);
}

double mount_timeout_s(struct mount *m, struct node *n)
{
    if (n->is_dir) /* always the same, as long as there is one of that name */
        return m->timeout_s > 0 ? MAX(m->timeout_s, DIRECTORY_S) : 0;
    LOCK_SCOPE(node_table_lock(m->nodes));
    uint64_t ms = n->staging ? 0 : warm_tell_ms_locked(m->warm, n);
    return MAX(m->timeout_s, (double)ms / 1000.0);
}

void mount_check_told(struct mount *m, uint64_t serial)
{
    if (warm_serial(m->warm) != serial)
        warm_drop_names(m->warm);
}

int mount_ask(struct mount *m, struct slice key, struct buf *b, struct wire_attr *ret, struct err *e)
{
    struct wire_stat_req req = {.bucket = slice_str(m->bucket), .key = key, .flags = WIRE_POSIX};
    struct wire_stat_rep rep;
    int r = client_stat(m->client, &req, b, &rep, e);
    if (r == 0)
        *ret = rep.attr;
    return r;
}
