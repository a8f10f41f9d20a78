/* Keys, attributes and what stat shows. */
#include "mount/mount_internal.h"

#include "base/sys.h"
#include "net/posix_meta.h"

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
    return r < 0 && r != -ESTALE ? -ENAMETOOLONG : r;
}

/* Of what says nothing of its own. */
static uint32_t default_mode(const struct mount *m, bool is_dir)
{
    uint32_t mode = (is_dir ? 0777 : 0666) & ~m->umask;
    return (is_dir ? S_IFDIR : S_IFREG) | (m->read_only ? mode & ~0222u : mode);
}

struct node_attr mount_node_attr(const struct mount *m, const struct wire_attr *a, bool has_meta)
{
    struct posix_meta p;
    struct node_attr x = {
        .is_dir = a->kind == WIRE_DIRECTORY,
        .size_bytes = a->size_bytes,
        .mtime_ns = a->mtime_ns,
        .etag = a->etag,
    };
    if (!m->posix || !has_meta)
        return x;
    posix_meta_decode(a->meta, x.is_dir, &p);
    x.has_owner = true;
    x.mode = p.has & POSIX_HAS_MODE ? p.mode : default_mode(m, x.is_dir);
    x.uid = p.has & POSIX_HAS_UID ? p.uid : m->uid;
    x.gid = p.has & POSIX_HAS_GID ? p.gid : m->gid;
    x.mtime_ns = p.has & POSIX_HAS_MTIME ? p.mtime_ns : a->mtime_ns;
    return x;
}

void mount_own_attr(fuse_req_t req, struct node *parent, uint32_t mode, struct node_attr *a)
{
    struct mount *m = mount_of(req);
    const struct fuse_ctx *ctx = fuse_req_ctx(req);
    if (!m->posix)
        return;
    a->has_owner = true;
    a->mode = mode;
    a->uid = ctx->uid;
    a->gid = ctx->gid;
    LOCK_SCOPE(node_table_lock(m->nodes));
    if (!parent->has_owner || !(parent->mode & S_ISGID))
        return;
    a->gid = parent->gid;
    if (S_ISDIR(mode))
        a->mode |= S_ISGID;
}

void mount_stat_of(struct mount *m, uint64_t ino, const struct node_attr *a, struct stat *ret)
{
    uint64_t mtime_ns = a->mtime_ns || a->has_owner ? a->mtime_ns : m->started_ns;
    memset(ret, 0, sizeof(*ret));
    ret->st_ino = ino;
    ret->st_mode = a->has_owner ? a->mode : default_mode(m, a->is_dir);
    ret->st_nlink = 1; /* for directories: not counted */
    ret->st_uid = a->has_owner ? a->uid : m->uid;
    ret->st_gid = a->has_owner ? a->gid : m->gid;
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
    struct node_attr a = {.is_dir = n->is_dir,
                          .size_bytes = n->size_bytes,
                          .mtime_ns = n->mtime_ns,
                          .has_owner = n->has_owner,
                          .mode = n->mode,
                          .uid = n->uid,
                          .gid = n->gid};
    mount_stat_of(m, n->ino, &a, ret);
    if (n->staging && staging_stat_locked(n->staging, &staged) == 0) {
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
    if (n->is_dir && m->posix)
        return m->timeout_s;
    if (n->is_dir) /* always the same, as long as there is one of that name */
        return m->timeout_s > 0 ? MAX(m->timeout_s, DIRECTORY_S) : 0;
    LOCK_SCOPE(node_table_lock(m->nodes));
    uint64_t ms = n->staging ? 0 : warm_tell_ms_locked(m->warm, n);
    return MAX(m->timeout_s, (double)ms / 1000.0);
}

void mount_check_told(struct mount *m, uint64_t serial, struct node *n, double told_s)
{
    if (warm_serial(m->warm) != serial && !n->is_dir && told_s > m->timeout_s)
        warm_check_told(m->warm, n);
}

static int ask(struct mount *m, struct slice key, uint32_t flags, struct buf *b, struct wire_attr *ret,
               struct err *e)
{
    flags |= WIRE_POSIX | (m->posix ? WIRE_META : 0) | client_no_wait(m->client);
    struct wire_stat_req req = {.bucket = slice_str(m->bucket), .key = key, .flags = flags};
    struct wire_stat_rep rep;
    int r = client_stat(m->client, &req, b, &rep, e);
    if (r == 0)
        *ret = rep.attr;
    return r;
}

int mount_ask(struct mount *m, struct slice key, struct buf *b, struct wire_attr *ret, struct err *e)
{
    return ask(m, key, /* flags= */ 0, b, ret, e);
}

int mount_ask_origin(struct mount *m, struct slice key, struct buf *b, struct wire_attr *ret, struct err *e)
{
    return ask(m, key, WIRE_FRESH, b, ret, e);
}

bool mount_follow(struct mount *m, struct node *n, struct slice key, struct slice etag)
{
    if (n->is_dir || etag.n == 0)
        return true;
    _cleanup_free_ char *told = versions_now(&m->versions, key, etag, /* own= */ NULL);
    if (told)
        return false;
    lock_take(node_table_lock(m->nodes));
    _cleanup_free_ char *known = slice_dup(slice_of(n->etag, n->etag_n));
    lock_drop(node_table_lock(m->nodes));
    _cleanup_free_ char *now =
        slice_eq_str(etag, known) ? NULL : versions_now(&m->versions, key, slice_str(known), /* own= */ NULL);
    if (now && slice_eq_str(etag, now))
        node_follow(m->nodes, n, slice_str(known), etag);
    return true;
}

int mount_open_version(struct mount *m, struct node *n, struct client_file_open *o, struct client_file **ret,
                       char **ret_etag, struct err *e)
{
    lock_take(node_table_lock(m->nodes));
    char *etag = slice_dup(slice_of(n->etag, n->etag_n));
    lock_drop(node_table_lock(m->nodes));
    int r;
    for (int i = 1;; i++) {
        o->if_match = slice_str(etag);
        r = client_file_open(m->client, o, ret, e);
        char *now = r == ERR_PRECONDITION && i < MOUNT_FOLLOWS
                        ? versions_now(&m->versions, o->key, o->if_match, /* own= */ NULL)
                        : NULL;
        if (!now)
            break;
        node_follow(m->nodes, n, o->if_match, slice_str(now));
        free(etag);
        etag = now;
    }
    *ret_etag = etag;
    return r;
}
