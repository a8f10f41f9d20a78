/*
 * Mounts of mirror buckets: their operations, how they begin and how they end.
 *
 * Failure modes: what could not be written by the last close is told when the mount ends.
 */
#include "mount/mount_internal.h"

#include "base/sys.h"
#include "mount/holdings.h"
#include "mount/queue.h"

static void on_init(void *userdata, struct fuse_conn_info *conn)
{
    mount_negotiate(CAST_MAGIC(mount, userdata, MOUNT_MAGIC), conn, /* wanted= */ 0,
                    FUSE_CAP_AUTO_INVAL_DATA | FUSE_CAP_POSIX_LOCKS | FUSE_CAP_FLOCK_LOCKS, /* extra= */ 0);
}

static const struct fuse_lowlevel_ops operations = {
    .init = on_init,
    .lookup = mount_op_lookup,
    .forget = mount_op_forget,
    .forget_multi = mount_op_forget_multi,
    .getattr = mount_op_getattr,
    .setattr = mount_op_setattr,
    .readlink = mount_op_readlink,
    .statfs = mount_op_statfs,
    .opendir = mount_op_opendir,
    .readdir = mount_op_readdir,
    .readdirplus = mount_op_readdirplus,
    .releasedir = mount_op_releasedir,
    .fsyncdir = mount_op_fsyncdir,
    .open = mount_op_open,
    .create = mount_op_create,
    .release = mount_op_release,
    .read = mount_op_read,
    .write = mount_op_write,
    .flush = mount_op_flush,
    .fsync = mount_op_fsync,
    .fallocate = mount_op_fallocate,
    .unlink = mount_op_unlink,
    .mkdir = mount_op_mkdir,
    .rmdir = mount_op_rmdir,
    .rename = mount_op_rename,
    .mknod = mount_op_mknod,
    .symlink = mount_op_symlink,
    .link = mount_op_link,
    .ioctl = mount_op_ioctl,
};

/* Of the read-only profile. */
static const struct fuse_lowlevel_ops openless_operations = {
    .init = on_init,
    .lookup = mount_op_lookup,
    .forget = mount_op_forget,
    .forget_multi = mount_op_forget_multi,
    .getattr = mount_op_getattr,
    .readlink = mount_op_readlink,
    .statfs = mount_op_statfs,
    .opendir = mount_op_opendir,
    .readdir = mount_op_readdir,
    .readdirplus = mount_op_readdirplus,
    .releasedir = mount_op_releasedir,
    .fsyncdir = mount_op_fsyncdir,
    .open = mount_op_open_not_needed,
    .read = mount_op_read_not_opened,
    .flush = mount_op_open_not_needed,
    .ioctl = mount_op_ioctl,
};

/* Linux 6.13 and later can give each change of a file a time of its own, once somebody has looked at the
 * last; whether the file system has it do so is seen by each file (staging.c). */
static bool has_fine_times(void)
{
    return sys_is_linux(6, 13);
}

static int check_prefix(struct mount *m, struct err *e)
{
    if (m->prefix[0] == '\0')
        return 0;
    struct wire_attr a;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = mount_ask(m, slice_of(m->prefix, strlen(m->prefix) - 1), &b, &a, e);
    if (r == -ENOENT) /* a directory comes into being with its first file */
        return m->read_only ? err_set(e, r, "%s: nothing is there", m->options->bucket) : 0;
    if (r == 0 && a.kind != WIRE_DIRECTORY)
        return err_set(e, -ENOTDIR, "%s: is a file, not a directory", m->options->bucket);
    return r;
}

static void make_tables(struct mount *m)
{
    m->started_ns = kept_facts(m->seat.kept)->started_ns;
    m->is_write_passthrough = has_fine_times();
    /* Where files are not opened, the kernel reads by inodes of which it told us nothing. */
    m->nodes = node_table_new(m->seat.kept, m->kind == &mount_mirror_openless);
    staging_list_init(&m->stagings);
    versions_init(&m->versions);
}

static int open_mirror(struct mount *m, struct err *e)
{
    kept_facts(m->seat.kept)->started_ns = sys->real_ns();
    make_tables(m);
    return check_prefix(m, e);
}

static int open_mirror_again(struct mount *m, struct err *e)
{
    (void)e;
    make_tables(m);
    return 0;
}

static void start_mirror(struct mount *m)
{
    uint64_t max = m->options->attr_timeout_ms > 0 ? m->options->kept_files : 0;
    m->warm = warm_start(m, max, sys_raise_file_limit() / 2);
    m->inval = inval_new(m);
    m->absent = absent_new();
}

static void listen_mirror(struct mount *m)
{
    inval_start(m->inval);
}

/* Of files kept open as much as they have a share in what can go: their inodes are in use until then. */
static void let_go_mirror(struct mount *m, uint64_t bytes)
{
    uint64_t kept = holdings_of(HOLDING_KEPT_FILES), inodes = holdings_of(HOLDING_INODES);
    uint64_t before = holdings_of(HOLDING_LISTINGS);
    dirs_let_go(m);
    uint64_t gone = before - MIN(before, holdings_of(HOLDING_LISTINGS));
    if (kept > 0 && bytes > gone)
        warm_let_go(m->warm, (uint64_t)((double)(bytes - gone) * (double)kept / (double)(kept + inodes)));
}

/* From here on the kernel is told of nothing any more. */
static void end_mirror(struct mount *m)
{
    inval_end(m->inval);
    warm_end(m->warm);
    takeover_end(m);
    stagings_end_late(m);
}

static void flush_mirror(struct mount *m, struct mount_flush_report *ret)
{
    staging_publish_all(m);
    LOCK_SCOPE(node_table_lock(m->nodes));
    ret->n_failed = m->stagings.n_failed;
    memcpy(ret->text, m->stagings.failed_text, sizeof(ret->text));
}

static int stop_mirror(struct mount *m, struct err *e)
{
    takeover_free(m);
    handle_close_all(m);
    dir_close_all(m);
    warm_free(m->warm);
    inval_free(m->inval);
    absent_free(m->absent);
    LOCK_SCOPE(node_table_lock(m->nodes));
    if (m->stagings.n_failed == 0)
        return 0;
    return err_set(e, -EIO, "%u files could not be written; the last: %s", m->stagings.n_failed,
                   m->stagings.failed_text);
}

static void free_mirror(struct mount *m)
{
    if (!m->nodes)
        return;
    staging_list_fini(&m->stagings);
    versions_fini(&m->versions);
    node_table_free(m->nodes);
}

#define QUICK                                                                                                \
    (QUEUE_BIT(LOOKUP) | QUEUE_BIT(GETATTR) | QUEUE_BIT(OPEN) | QUEUE_BIT(RELEASE) | QUEUE_BIT(FORGET) |     \
     QUEUE_BIT(BATCH_FORGET))

const struct mount_kind mount_mirror = {
    .operations = &operations,
    .quick = QUICK,
    .parks = true,
    .open = open_mirror,
    .start = start_mirror,
    .listen = listen_mirror,
    .open_again = open_mirror_again,
    .resume = mirror_resume,
    .resumed = mirror_resumed,
    .let_go = let_go_mirror,
    .flush = flush_mirror,
    .end = end_mirror,
    .stop = stop_mirror,
    .free = free_mirror,
};

const struct mount_kind mount_mirror_openless = {
    .operations = &openless_operations,
    .quick = QUICK,
    .parks = true,
    .open = open_mirror,
    .start = start_mirror,
    .listen = listen_mirror,
    .open_again = open_mirror_again,
    .resume = mirror_resume,
    .resumed = mirror_resumed,
    .let_go = let_go_mirror,
    .flush = flush_mirror,
    .end = end_mirror,
    .stop = stop_mirror,
    .free = free_mirror,
};
