/*
 * Mounting, serving, unmounting (contract in mount.h).
 *
 * Order: the node is asked about the bucket, the directory is mounted, the notifier makes the first request
 * and says that all is ready, this thread serves until the kernel or a signal ends it. Then what is being
 * written is published, the directory is unmounted, and the client leaves.
 *
 * Failure modes: every failure before the mount works is returned with a text and leaves nothing mounted. A
 * directory whose mount process died before ("transport endpoint is not connected") is unmounted first.
 */
#include "mount/mount_internal.h"

#include "base/log.h"
#include "base/sys.h"

#include <fcntl.h>
#include <string.h>
#include <sys/utsname.h>

#define MAX_BACKGROUND 64
#define CLIENT_SPARE   4 /* connections beside one per thread */

static const struct fuse_lowlevel_ops operations = {
    .init = mount_op_init,
    .lookup = mount_op_lookup,
    .forget = mount_op_forget,
    .forget_multi = mount_op_forget_multi,
    .getattr = mount_op_getattr,
    .setattr = mount_op_setattr,
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

void mount_op_init(void *userdata, struct fuse_conn_info *conn)
{
    struct mount *m = CAST_MAGIC(mount, userdata, MOUNT_MAGIC);
    const unsigned wanted = FUSE_CAP_ASYNC_READ | FUSE_CAP_ATOMIC_O_TRUNC | FUSE_CAP_PARALLEL_DIROPS |
                            FUSE_CAP_READDIRPLUS | FUSE_CAP_READDIRPLUS_AUTO | FUSE_CAP_IOCTL_DIR;
    const unsigned unwanted = FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE |
                              FUSE_CAP_WRITEBACK_CACHE | FUSE_CAP_AUTO_INVAL_DATA | FUSE_CAP_POSIX_LOCKS |
                              FUSE_CAP_FLOCK_LOCKS;
    conn->want = (conn->want | (conn->capable & wanted)) & ~unwanted;
    conn->max_background = MAX_BACKGROUND;
    conn->time_gran = 1;
    atomic_store(&m->is_offered, passthrough_on_init(conn, m->options->passthrough != MOUNT_PASSTHROUGH_OFF));
}

/* ---- before mounting ---- */

/* "BUCKET/a/b" into the bucket and "a/b/". */
static void split_bucket(struct mount *m)
{
    struct slice rest = slice_str(m->options->bucket);
    struct slice bucket = slice_split(&rest, '/');
    while (slice_ends(rest, SLICE_LIT("/")))
        rest.n--;
    m->bucket = slice_dup(bucket);
    m->prefix = malloc(rest.n + 2);
    if (!m->prefix)
        abort();
    (void)snprintf(m->prefix, rest.n + 2, SLICE_FMT "%s", SLICE_ARG(rest), rest.n > 0 ? "/" : "");
}

static int check_bucket(struct mount *m, struct err *e)
{
    struct wire_bucket_get_req req = {.name = slice_str(m->bucket)};
    struct wire_bucket_get_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = client_bucket_get(m->client, &req, &b, &rep, e);
    if (r < 0)
        return err_prefix(e, r, "%s", m->bucket);
    if (m->prefix[0] == '\0')
        return 0;
    struct wire_attr a;
    struct slice key = slice_of(m->prefix, strlen(m->prefix) - 1);
    r = mount_ask(m, key, &b, &a, e);
    if (r == -ENOENT) /* a directory comes into being with its first file */
        return m->read_only ? err_set(e, r, "%s: nothing is there", m->options->bucket) : 0;
    if (r == 0 && a.kind != WIRE_DIRECTORY)
        return err_set(e, -ENOTDIR, "%s: is a file, not a directory", m->options->bucket);
    return r;
}

static int connect_node(struct mount *m, struct err *e)
{
    const struct mount_options *o = m->options;
    struct client_options c = {
        .socket_path = o->socket_path,
        .data_dir = o->data_dir,
        .name = "mount",
        .via = WIRE_VIA_MOUNT,
        .timeout_ms = o->timeout_ms,
        .connections = (uint32_t)o->threads + CLIENT_SPARE,
    };
    int r = client_new(&c, &m->client, e);
    if (r < 0)
        return r;
    if (!client_passes_fds(m->client))
        return err_set(e, ERR_BAD_OPTION, "%s: a mount needs the Unix socket of a node on this machine",
                       client_address(m->client));
    return 0;
}

/* A mount whose process is gone is in the way of a new one. */
static int prepare_directory(const char *directory, struct err *e)
{
    /* stat(2) may be answered from what the kernel remembers of the dead mount; opening is not. */
    _cleanup_close_ int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && errno == ENOTCONN) {
        log_warn("mount", "%s: the process of an earlier mount is gone, unmounting", directory);
        int r = mount_detach(directory, e);
        if (r < 0)
            return r;
        fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
    return fd < 0 ? err_errno(e, -errno, "%s", directory) : 0;
}

/* Linux 6.13 and later give each change of a file a time of its own, once somebody has looked at the last. */
static bool has_fine_times(void)
{
    struct utsname u;
    unsigned major_number = 0, minor_number = 0;
    if (uname(&u) < 0 || sscanf(u.release, "%u.%u", &major_number, &minor_number) != 2)
        return false;
    return major_number > 6 || (major_number == 6 && minor_number >= 13);
}

static struct mount *mount_new(const struct mount_options *o)
{
    struct mount *m = calloc(1, sizeof(*m));
    if (!m)
        abort();
    m->magic = MOUNT_MAGIC;
    m->options = o;
    m->uid = o->uid == UINT32_MAX ? geteuid() : o->uid;
    m->gid = o->gid == UINT32_MAX ? getegid() : o->gid;
    m->umask = o->umask;
    m->read_only = o->read_only;
    m->timeout_s = (double)o->attr_timeout_ms / 1000.0;
    m->started_ns = sys->real_ns();
    m->is_write_passthrough = has_fine_times();
    m->nodes = node_table_new();
    staging_list_init(&m->stagings);
    split_bucket(m);
    return m;
}

static void mount_free(struct mount *m)
{
    if (!m)
        return;
    if (m->se)
        fuse_session_destroy(m->se);
    staging_list_fini(&m->stagings);
    node_table_free(m->nodes);
    client_free(m->client);
    free(m->bucket);
    free(m->prefix);
    m->magic = 0;
    free(m);
}
DEFINE_CLEANUP(struct mount, mount_free)

/* ---- the session ---- */

static void add_option(struct fuse_args *args, const char *name, const char *value)
{
    char text[512];
    (void)snprintf(text, sizeof(text), "%s%s", name, value);
    if (fuse_opt_add_arg(args, "-o") < 0 || fuse_opt_add_arg(args, text) < 0)
        abort();
}

static int make_session(struct mount *m, struct err *e)
{
    struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
    const struct mount_options *o = m->options;
    if (fuse_opt_add_arg(&args, "forebay") < 0)
        abort();
    add_option(&args, "subtype=", "forebay");
    add_option(&args, "fsname=", o->bucket);
    add_option(&args, "default_permissions", "");
    if (o->read_only)
        add_option(&args, "ro", "");
    if (o->allow_other)
        add_option(&args, "allow_other", "");
    for (size_t i = 0; i < o->n_fuse_options; i++)
        add_option(&args, o->fuse_options[i], "");
    m->se = fuse_session_new(&args, &operations, sizeof(operations), m);
    fuse_opt_free_args(&args);
    return m->se ? 0 : err_set(e, ERR_BAD_OPTION, "libfuse does not take these options");
}

/* How many of `wanted` files may be kept open. */
static uint64_t descriptors(uint64_t wanted)
{
    return MIN(wanted, sys_raise_file_limit() / 2);
}

static int serve(struct mount *m)
{
    struct fuse_loop_config *config = fuse_loop_cfg_create();
    if (!config)
        abort();
    fuse_loop_cfg_set_clone_fd(config, 0);
    fuse_loop_cfg_set_max_threads(config, (unsigned)m->options->threads);
    /* Ending and starting threads costs a data set of small files more than it saves. */
    fuse_loop_cfg_set_idle_threads(config, (unsigned)m->options->threads);
    int r = fuse_session_loop_mt(m->se, config);
    fuse_loop_cfg_destroy(config);
    return r;
}

static int outcome(struct mount *m, struct err *e)
{
    if (atomic_load(&m->is_given_up))
        return err_set(e, -EOPNOTSUPP, "%s: no passthrough: %s", m->options->directory, m->reason);
    LOCK_SCOPE(node_table_lock(m->nodes));
    if (m->stagings.n_failed == 0)
        return 0;
    return err_set(e, -EIO, "%u files could not be written; the last: %s", m->stagings.n_failed,
                   m->stagings.failed_text);
}

static int serve_until_the_end(struct mount *m, void (*on_ready)(void *arg), void *arg, struct err *e)
{
    int r = fuse_session_mount(m->se, m->options->directory);
    if (r < 0)
        return err_set(e, -EIO, "%s: cannot be mounted", m->options->directory);
    r = passthrough_hook(m->se, e);
    if (r == 0 && fuse_set_signal_handlers(m->se) < 0)
        r = err_set(e, -EIO, "signal handlers");
    if (r == 0) {
        m->warm = warm_start(m, m->options->attr_timeout_ms > 0 ? descriptors(m->options->kept_files) : 0);
        m->notifier = notifier_start(m, on_ready, arg);
        (void)serve(m);
        fuse_session_unmount(m->se);
        warm_end(m->warm); /* the kernel is told of nothing any more */
        notifier_stop(m->notifier);
        handle_close_all(m);
        dir_close_all(m);
        warm_free(m->warm);
        fuse_remove_signal_handlers(m->se);
        return outcome(m, e);
    }
    fuse_session_unmount(m->se);
    return r;
}

int mount_run(const struct mount_options *o, void (*on_ready)(void *arg), void *arg, struct err *e)
{
    _cleanup_(mount_freep) struct mount *m = mount_new(o);
    int r = prepare_directory(o->directory, e);
    if (r == 0)
        r = connect_node(m, e);
    if (r == 0)
        r = check_bucket(m, e);
    if (r == 0)
        r = make_session(m, e);
    return r < 0 ? r : serve_until_the_end(m, on_ready, arg, e);
}
