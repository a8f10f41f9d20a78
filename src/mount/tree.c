/*
 * A mount of a scratch bucket: its operations, how it begins and how it ends.
 *
 * The bucket's tree is in the node (namespace/scratch.h); this side translates. What the kernel asks becomes
 * one call each, by inode numbers. Bytes do not travel, as the node gives descriptors of the files that hold
 * them; but to users with keys, to whom it gives none (is_remote).
 *
 * Invariants:
 *  1. The kernel checks permissions (default_permissions) and applies the umask; the node checks neither, but
 * where it gives no descriptors: there it checks permissions as well, for the uid of this process.
 *  2. Every change carries the mount's id and a number of its own, so that the client may send it again after
 * the node was restarted, and it happens once.
 *
 * Another process can take over from this one (keeper.h): what the kernel has open, and the locks, are kept
 * cells. It opens the inodes anew, which the node lets nobody forget for a while after a session has ended.
 *
 * Failure modes: while the node does not answer, operations wait for --timeout and then give EIO; reading and
 * writing of files that are open goes on.
 */
#include "mount/tree.h"

#include "base/log.h"
#include "mount/queue.h"

static void on_init(void *userdata, struct fuse_conn_info *conn)
{
    const unsigned wanted = FUSE_CAP_AUTO_INVAL_DATA | FUSE_CAP_POSIX_LOCKS | FUSE_CAP_FLOCK_LOCKS |
                            FUSE_CAP_CACHE_SYMLINKS | FUSE_CAP_EXPORT_SUPPORT;
    /* ASYNC_DIO: the kernel would send the pieces of one long O_DIRECT write at once, and threads would
     * append them in any order (tree_io.c). */
    const unsigned unwanted =
        FUSE_CAP_DONT_MASK | FUSE_CAP_POSIX_ACL | FUSE_CAP_HANDLE_KILLPRIV | FUSE_CAP_ASYNC_DIO;
    mount_negotiate(CAST_MAGIC(mount, userdata, MOUNT_MAGIC), conn, wanted, unwanted,
                    PASSTHROUGH_TMPFILE | PASSTHROUGH_KILLPRIV);
}

static const struct fuse_lowlevel_ops operations = {
    .init = on_init,
    .lookup = tree_op_lookup,
    .forget = tree_op_forget,
    .forget_multi = tree_op_forget_multi,
    .getattr = tree_op_getattr,
    .setattr = tree_op_setattr,
    .readlink = tree_op_readlink,
    .statfs = tree_op_statfs,
    .opendir = tree_op_opendir,
    .readdir = tree_op_readdir,
    .readdirplus = tree_op_readdirplus,
    .releasedir = tree_op_releasedir,
    .fsyncdir = tree_op_fsyncdir,
    .open = tree_op_open,
    .create = tree_op_create,
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17)
    .tmpfile = tree_op_tmpfile,
#endif
    .flush = tree_op_flush,
    .release = tree_op_release,
    .read = tree_op_read,
    .write = tree_op_write,
    .fsync = tree_op_fsync,
    .fallocate = tree_op_fallocate,
    .lseek = tree_op_lseek,
    .copy_file_range = tree_op_copy_file_range,
    .mknod = tree_op_mknod,
    .mkdir = tree_op_mkdir,
    .symlink = tree_op_symlink,
    .link = tree_op_link,
    .unlink = tree_op_unlink,
    .rmdir = tree_op_rmdir,
    .rename = tree_op_rename,
    .getxattr = tree_op_getxattr,
    .listxattr = tree_op_listxattr,
    .setxattr = tree_op_setxattr,
    .removexattr = tree_op_removexattr,
    .getlk = tree_op_getlk,
    .setlk = tree_op_setlk,
    .flock = tree_op_flock,
    .ioctl = mount_op_ioctl,
};

void tree_reply(fuse_req_t req, const char *what, int r, const struct err *e)
{
    if (r < 0)
        mount_reply_error(req, what, r, e);
    else
        (void)fuse_reply_err(req, 0);
}

/* ---- life ---- */

/* The inode of the prefix, name by name from the bucket's root. */
static int find_root(struct mount *m, uint64_t *ret, struct err *e)
{
    struct slice rest = slice_str(m->prefix);
    uint64_t ino = FUSE_ROOT_ID;
    while (rest.n > 0) {
        struct wire_tree_lookup_req req = {
            .bucket = slice_str(m->bucket), .parent = ino, .name = slice_split(&rest, '/')};
        struct wire_tree_lookup_rep rep;
        _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
        int r = client_tree_lookup(m->client, &req, &b, &rep, e);
        if (r == -ENOENT)
            return err_set(e, r, "%s: there is no such directory", m->options->bucket);
        if (r < 0)
            return err_prefix(e, r, "%s", m->options->bucket);
        if (!S_ISDIR(rep.inode.mode))
            return err_set(e, -ENOTDIR, "%s: is not a directory", m->options->bucket);
        ino = rep.inode.ino;
    }
    *ret = ino;
    return 0;
}

/* As S3 removes a directory that only keys made with the last of them, and makes another with the next. */
bool tree_find_root_again(struct mount *m)
{
    struct err e = {0};
    uint64_t root = 0;
    if (m->prefix[0] == '\0' || find_root(m, &root, &e) < 0)
        return false;
    if (atomic_exchange(&m->tree->root, root) == root) /* another thread was faster */
        return true;
    log_info("mount", "%s: was removed, and is another directory now", m->options->bucket);
    kept_facts(m->seat.kept)->root = root;
    (void)passthrough_forget_names(
        m->se); /* who asks for one at this moment may be told of the one that is gone */
    return true;
}

/* A bucket that keeps values in memory has none. */
static int check_root(struct mount *m, struct err *e)
{
    struct wire_tree_getattr_req req = {.bucket = slice_str(m->bucket), .ino = m->tree->root};
    struct wire_tree_getattr_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    return client_tree_getattr(m->client, &req, &b, &rep, e);
}

static int open_tree(struct mount *m, struct err *e)
{
    struct tree *t = calloc(1, sizeof(*t));
    if (!t)
        abort();
    struct kept_facts *facts = kept_facts(m->seat.kept);
    t->id = facts->id;
    t->is_remote = !client_passes_fds(m->client);
    tree_files_init(t);
    tree_habit_init(&t->habit);
    t->known = tree_known_new();
    t->named = tree_named_new();
    m->tree = t;
    uint64_t root = 0;
    int r = find_root(m, &root, e);
    t->root = root;
    facts->root = root;
    return r < 0 ? r : check_root(m, e);
}

static int open_tree_again(struct mount *m, struct err *e)
{
    (void)e;
    struct tree *t = calloc(1, sizeof(*t));
    if (!t)
        abort();
    const struct kept_facts *facts = kept_facts(m->seat.kept);
    t->id = facts->id;
    t->root = facts->root;
    t->is_remote = !client_passes_fds(m->client);
    tree_files_init(t);
    tree_habit_init(&t->habit);
    t->known = tree_known_new();
    t->named = tree_named_new();
    m->tree = t;
    return 0;
}

static void resume_tree(struct mount *m)
{
    tree_files_resume(m);
    tree_dirs_resume(m);
    tree_locks_resume(m);
    tree_files_reopen(m);
    tree_watch_resumed(m->tree->watch);
}

static void start_tree(struct mount *m)
{
    m->tree->waiters = tree_waiters_start(m);
    m->tree->closer = tree_closer_start(m);
    m->tree->room_giver = tree_room_giver_start(m);
    m->tree->watch = tree_watch_start(m);
}

/* Names that were made so far are on disk when `forebay umount` goes on. */
static void flush_tree(struct mount *m, struct mount_flush_report *ret)
{
    struct wire_tree_sync_req req = {.bucket = slice_str(m->bucket), .ino = m->tree->root};
    struct wire_tree_sync_rep rep;
    struct err e = {0};
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = client_tree_sync(m->client, &req, &b, &rep, &e);
    if (r < 0)
        log_warn("mount", "sync: %s", e.text);
    (void)ret; /* nothing is pending here: bytes and names are in the node already */
}

static void let_go_tree(struct mount *m, uint64_t bytes)
{
    (void)bytes;
    tree_known_forget(m->tree->known);
}

static void end_tree(struct mount *m)
{
    tree_watch_end(m->tree->watch);
    tree_waiters_end(m->tree->waiters);
}

static int stop_tree(struct mount *m, struct err *e)
{
    (void)e;
    tree_room_giver_end(TAKE_PTR(m->tree->room_giver));
    tree_files_fini(m);
    tree_dirs_fini(m);
    tree_closer_end(TAKE_PTR(m->tree->closer));
    tree_waiters_free(TAKE_PTR(m->tree->waiters));
    tree_watch_free(TAKE_PTR(m->tree->watch));
    struct wire_tree_leave_req req = {.bucket = slice_str(m->bucket), .mount = tree_mount_id(m)};
    struct wire_tree_leave_rep rep;
    struct err ignored = {0}; /* what it would forget, it forgets by itself a day later */
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    (void)client_tree_leave(m->client, &req, &b, &rep, &ignored);
    return 0;
}

static void free_tree(struct mount *m)
{
    if (!m->tree)
        return;
    lock_fini(&m->tree->lock);
    tree_habit_fini(&m->tree->habit);
    tree_known_free(m->tree->known);
    tree_named_free(m->tree->named);
    free(m->tree);
}

/* Names: each is a call or two, and locks only as queue_lock takes them. */
#define QUICK                                                                                                \
    (QUEUE_BIT(LOOKUP) | QUEUE_BIT(FORGET) | QUEUE_BIT(BATCH_FORGET) | QUEUE_BIT(GETATTR) |                  \
     QUEUE_BIT(SYMLINK) | QUEUE_BIT(MKNOD) | QUEUE_BIT(MKDIR) | QUEUE_BIT(UNLINK) | QUEUE_BIT(RMDIR) |       \
     QUEUE_BIT(RENAME) | QUEUE_BIT(RENAME2) | QUEUE_BIT(LINK) | QUEUE_BIT(OPEN) | QUEUE_BIT(CREATE) |        \
     QUEUE_BIT(FLUSH) | QUEUE_BIT(RELEASE))

const struct mount_kind mount_tree = {
    .operations = &operations,
    .quick = QUICK,
    .open = open_tree,
    .start = start_tree,
    .open_again = open_tree_again,
    .resume = resume_tree,
    .on_session = tree_files_renew,
    .let_go = let_go_tree,
    .flush = flush_tree,
    .end = end_tree,
    .stop = stop_tree,
    .free = free_tree,
};
