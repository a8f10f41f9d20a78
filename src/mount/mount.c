/*
 * Mounting, serving, unmounting (contract in mount.h).
 *
 * Order: the node is asked about the bucket, the directory is mounted, the kernel says INIT, the notifier
 * finds out about passthrough and says that all is ready, this thread serves until the kernel or a signal
 * ends it. Then what is being written is published, the directory is unmounted, and the client leaves. What
 * the mount does in between depends on the bucket: struct mount_kind. It never uses its own directory: a
 * process that waits for itself cannot even be killed.
 *
 * A process that takes over from one that was killed begins elsewhere: the directory is mounted, the kernel
 * has said its INIT, files are open. It is told of them by what is kept (kept.h), and has the kernel send
 * again what was not answered.
 *
 * Failure modes: every failure before the mount works is returned with a text and leaves nothing mounted. A
 * directory whose mount process died before ("transport endpoint is not connected") is unmounted first.
 */
#include "mount/mount_internal.h"
#include "mount/mountinfo.h"
#include "mount/parking.h"
#include "mount/queue.h"

#include "base/log.h"
#include "base/sys.h"
#include "mount/before.h"
#include "mount/holdings.h"
#include "mount/request.h"
#include "mount/stuck.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/file.h>

#define MAX_BACKGROUND                                                                                       \
    512                 /* read-ahead and RELEASE, beyond which the kernel keeps them back: also warm ones */
#define CLIENT_SPARE  4 /* connections beside one per thread */
#define AWAY_MS       200 /* between two tries to reach the node, by a process that takes over */
#define LOCK_TRIES    600
#define LOCK_PAUSE_MS 50

void mount_negotiate(struct mount *m, struct fuse_conn_info *conn, unsigned wanted, unsigned unwanted,
                     enum passthrough_extra extra)
{
    wanted |= FUSE_CAP_ASYNC_READ | FUSE_CAP_ATOMIC_O_TRUNC | FUSE_CAP_PARALLEL_DIROPS |
              FUSE_CAP_READDIRPLUS | FUSE_CAP_READDIRPLUS_AUTO | FUSE_CAP_IOCTL_DIR;
    unwanted |=
        FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE | FUSE_CAP_WRITEBACK_CACHE;
    conn->want = (conn->want | (conn->capable & wanted)) & ~unwanted;
    conn->max_background = MAX_BACKGROUND;
    conn->time_gran = 1;
    m->can_expire = (conn->capable & FUSE_CAP_EXPIRE_ONLY) != 0;
    bool wants_passthrough = m->options->passthrough != MOUNT_PASSTHROUGH_OFF;
    atomic_store(&m->is_offered, passthrough_on_init(conn, wants_passthrough, extra));
}

void mount_passthrough_refused(struct mount *m, int code)
{
    if (code != -EPERM || !atomic_exchange(&m->is_passthrough, false)) {
        log_debug("mount", "backing file refused: %s", err_text(code));
        return;
    }
    log_warn("mount", "passthrough given up: the kernel says %s", err_text(code));
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

static bool has_setting(struct slice settings, const char *beginning)
{
    while (settings.n > 0)
        if (slice_starts(slice_split(&settings, '\n'), slice_str(beginning)))
            return true;
    return false;
}

static const struct mount_kind *const kinds[] = {
    [MOUNT_TREE] = &mount_tree,
    [MOUNT_MIRROR] = &mount_mirror,
    [MOUNT_MIRROR_OPENLESS] = &mount_mirror_openless,
};

static int open_bucket(struct mount *m, struct err *e)
{
    struct wire_bucket_get_req req = {.name = slice_str(m->bucket)};
    struct wire_bucket_get_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = client_bucket_get(m->client, &req, &b, &rep, e);
    if (r < 0)
        return err_prefix(e, r, "%s", m->bucket);
    bool openless = m->options->profile == MOUNT_PROFILE_READ_ONLY;
    bool has_origin = has_setting(rep.settings, "origin="); /* without: a scratch bucket */
    m->posix = kept_facts(m->seat.kept)->is_posix = has_setting(rep.settings, "posix=on");
    if (!has_origin && openless)
        return err_set(e, ERR_BAD_OPTION, "%s: the read-only profile is for buckets with an origin",
                       m->bucket);
    bool is_here = strncmp(client_address(m->client), "unix:", strlen("unix:")) == 0;
    if (!has_origin && !client_passes_fds(m->client) && !is_here)
        return err_set(e, -EACCES,
                       "%s: a bucket without origin is mounted by root and by others through the node's Unix "
                       "socket only "
                       "(--socket PATH), which tells the node whose uid asks: its permissions depend on that",
                       m->bucket);
    enum mount_kind_id id = !has_origin ? MOUNT_TREE : openless ? MOUNT_MIRROR_OPENLESS : MOUNT_MIRROR;
    kept_facts(m->seat.kept)->kind = (uint8_t)id;
    m->kind = kinds[id];
    return m->kind->open(m, e);
}

static void before_each_call(uint32_t op)
{
    queue_calls();
    before_call(op);
}

/* Of changes of names and metadata: those of the bytes are sent again by who has them (staging_publish.c). */
static uint64_t number_change(uint32_t op)
{
    bool is_numbered = op == WIRE_OP_REMOVE || op == WIRE_OP_COPY || op == WIRE_OP_MKDIR ||
                       op == WIRE_OP_RMDIR || op == WIRE_OP_SET_META;
    uint64_t number = is_numbered ? request_next_change() : 0;
    return number ? WIRE_NUMBERED | number : 0;
}

static struct fuse_session *session; /* a process has one mount; set before it serves */
static _Atomic bool is_served;       /* to its end, of which libfuse tells only until its loop returns */

bool mount_has_ended(void)
{
    return atomic_load(&is_served) || (session && fuse_session_exited(session));
}

/* A program that was killed while it waits here ends when it has an answer, whatever that is; and nobody is
 * answered for long by a mount that ends, nor do threads of its own ask on. Who waits while too many do is
 * asked for again later. */
static bool nobody_waits(void)
{
    bool is_over = mount_has_ended();
    if (request_unique() == 0)
        return is_over;
    if (!request_is_question())
        return false;
    return is_over || (request_asker() > 0 && stuck_is_gone(request_asker(), request_process())) ||
           !parking_may_wait();
}

/* Who may not use the node's socket is told what else there is. */
static int explain_refusal(int code, struct err *e)
{
    struct err was = *e;
    if (code != -EACCES && code != ERR_UNAUTHENTICATED)
        return code;
    return err_set(
        e, code,
        "%s: root and the user that runs the node mount through its Unix socket without keys; others "
        "mount with FOREBAY_ACCESS_KEY and FOREBAY_SECRET_KEY as forebay user create gives them, through "
        "that socket where they can reach it, and buckets with an origin by --endpoint HOST:PORT as well",
        was.text);
}

static int connect_node(struct mount *m, struct err *e)
{
    const struct mount_options *o = m->options;
    struct client_options c = {
        .socket_path = o->socket_path,
        .data_dir = o->data_dir,
        .endpoint = o->endpoint,
        .name = "mount",
        .via = WIRE_VIA_MOUNT,
        .timeout_ms = o->timeout_ms,
        .connections = (uint32_t)o->threads + CLIENT_SPARE,
        .before_call = before_each_call,
        .number = number_change,
        .before_sleep = queue_may_wait,
        .is_unwanted = nobody_waits,
        .must_not_wait = parking_must_not_wait,
        .family = &kept_facts(m->seat.kept)->id,
    };
    int r = client_new(&c, &m->client, e);
    return r < 0 ? explain_refusal(r, e) : 0;
}

int mount_probe_node(const struct mount *m, struct err *e)
{
    const struct mount_options *o = m->options;
    struct client_options c = {.socket_path = o->socket_path,
                               .data_dir = o->data_dir,
                               .endpoint = o->endpoint,
                               .name = "mount",
                               .timeout_ms = o->timeout_ms / 2};
    struct client *probe;
    queue_may_wait();
    int r = client_new(&c, &probe, e);
    if (r == 0)
        client_free(probe);
    return r;
}

/* For a process that takes over: what is open outlives a node that is away, however long; what was written
 * and not published exists nowhere else. -ENODEV: the mount is gone. */
static int connect_again(struct mount *m, struct err *e)
{
    struct pollfd p = {.fd = m->seat.fuse_fd}; /* asked for nothing, it tells only of its end */
    int r;
    for (bool is_first = true; (r = connect_node(m, e)) < 0 && !client_is_refused(r); is_first = false) {
        if (is_first)
            log_warn("mount", "%s: taking over when the node answers", e->text);
        if (poll(&p, 1, AWAY_MS) > 0)
            return err_set(e, -ENODEV, "%s: unmounted", m->options->directory);
    }
    return r;
}

/* A second mount on top would hide the first, which its programs would not notice and `forebay umount` not
 * reach. */
static int refuse_second(const char *directory, struct err *e)
{
    struct mountinfo at;
    if (!mountinfo_find(directory, &at) || !at.is_ours)
        return 0;
    return err_set(e, -EBUSY,
                   "%s: %s is mounted there already; unmount that first, or name another directory",
                   directory, at.source);
}

/* Another program's is not ours to take away. */
static int detach_dead(const char *directory, struct err *e)
{
    struct mountinfo at = {0};
    if (!mountinfo_find(directory, &at) || !at.is_ours)
        return err_set(e, -ENOTCONN, "%s: a mount whose process is gone, and not one of forebay (%s)",
                       directory, at.type);
    log_warn("mount", "%s: the process of an earlier mount is gone, unmounting", directory);
    return mount_detach(directory, e);
}

/* A mount whose process is gone is in the way of a new one. */
static int prepare_directory(const char *directory, struct err *e)
{
    /* stat(2) may be answered from what the kernel remembers of the dead mount; opening is not. */
    _cleanup_close_ int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (fd < 0 && errno == ENOTCONN) {
        int r = detach_dead(directory, e);
        if (r < 0)
            return r;
        fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
    return fd < 0 ? err_errno(e, -errno, "%s", directory) : refuse_second(directory, e);
}

static struct mount *mount_new(const struct mount_options *o)
{
    struct mount *m = calloc(1, sizeof(*m));
    if (!m)
        abort();
    m->magic = MOUNT_MAGIC;
    m->options = o;
    m->seat = (struct keeper_seat){.fuse_fd = -1, .post_fd = -1};
    m->uid = o->uid == UINT32_MAX ? geteuid() : o->uid;
    m->gid = o->gid == UINT32_MAX ? getegid() : o->gid;
    m->umask = o->umask;
    m->read_only = o->read_only;
    m->timeout_s = (double)o->attr_timeout_ms / 1000.0;
    m->stats = stats_new();
    split_bucket(m);
    return m;
}

static void mount_free(struct mount *m)
{
    if (!m)
        return;
    if (m->se)
        fuse_session_destroy(m->se);
    if (m->kind)
        m->kind->free(m);
    client_free(m->client);
    stats_free(m->stats);
    kept_free(m->seat.kept);
    macro_close(&m->seat.post_fd);
    free(m->bucket);
    free(m->prefix);
    m->magic = 0;
    free(m);
}
DEFINE_CLEANUP(struct mount, mount_free)

/* ---- the session ---- */

/* One option, whatever its value has: libfuse separates them by commas. */
static void add_option(struct fuse_args *args, const char *name, const char *value)
{
    size_t n = strlen(name);
    _cleanup_free_ char *text = malloc(n + 2 * strlen(value) + 1);
    if (!text)
        abort();
    memcpy(text, name, n);
    for (; *value; value++) {
        if (*value == ',' || *value == '\\')
            text[n++] = '\\';
        text[n++] = *value;
    }
    text[n] = '\0';
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
        add_option(&args, "", o->fuse_options[i]);
    struct fuse_lowlevel_ops counted;
    stats_wrap(m->kind->operations, &counted);
    m->se = fuse_session_new(&args, &counted, sizeof(counted), m);
    fuse_opt_free_args(&args);
    session = m->se;
    return m->se ? 0 : err_set(e, ERR_BAD_OPTION, "libfuse does not take these options");
}

static void run_parked(void *arg, void *request, size_t n)
{
    struct mount *m = CAST_MAGIC(mount, arg, MOUNT_MAGIC);
    const struct fuse_buf one = {.mem = request, .size = n};
    fuse_session_process_buf(m->se, &one);
}

static void look_for_parked(void *arg)
{
    (void)arg;
    queue_wake();
}

static int serve(struct mount *m)
{
    const struct parking_calls calls = {
        .run = run_parked, .wake = look_for_parked, .is_gone = stuck_is_gone, .arg = m};
    struct fuse_loop_config *config = fuse_loop_cfg_create();
    if (!config)
        abort();
    fuse_loop_cfg_set_clone_fd(config, 0);
    fuse_loop_cfg_set_max_threads(config, (unsigned)m->options->threads);
    /* Ending and starting threads costs a data set of small files more than it saves. */
    fuse_loop_cfg_set_idle_threads(config, (unsigned)m->options->threads);
    queue_start(fuse_session_fd(m->se), m->kind->quick);
    if (m->kind->parks)
        parking_start(fuse_session_fd(m->se), parking_places((unsigned)m->options->threads), &calls);
    parking_watch();
    int r = fuse_session_loop_mt(m->se, config);
    fuse_loop_cfg_destroy(config);
    return r;
}

/* Reads the kernel's first request, INIT, and notes it: a process that takes over is told it again, so that
 * it comes to terms with a kernel that thinks this is over. */
static int begin_with_kernel(struct mount *m, struct err *e)
{
    struct kept_facts *facts = kept_facts(m->seat.kept);
    struct fuse_buf first = {0};
    struct passthrough_offer offer;
    int r = fuse_session_receive_buf(m->se, &first);
    if (r <= 0) {
        free(first.mem);
        return err_set(e, r < 0 ? r : -ENODEV, "%s: the kernel does not answer", m->options->directory);
    }
    bool fits = first.size <= sizeof(facts->init);
    if (fits)
        memcpy(facts->init, first.mem, first.size);
    facts->init_bytes = fits ? (uint32_t)first.size : 0;
    facts->can_resume = fits && m->kind->resume &&
                        passthrough_parse_init(first.mem, first.size, &offer) == 0 &&
                        (offer.flags & PASSTHROUGH_FLAG_HAS_RESEND);
    fuse_session_process_buf(m->se, &first);
    free(first.mem);
    return 0;
}

static void begin_again(struct mount *m)
{
    struct kept_facts *facts = kept_facts(m->seat.kept);
    uint8_t copy[KEPT_INIT_BYTES];
    struct fuse_buf first = {.mem = copy, .size = facts->init_bytes};
    memcpy(copy, facts->init, facts->init_bytes);
    passthrough_note_init(copy, facts->init_bytes);
    fuse_session_process_buf(m->se, &first); /* its reply is to a request that is none: the kernel drops it */
    atomic_store(&m->is_passthrough, facts->is_passthrough);
    atomic_store(&m->is_cached, !facts->is_passthrough);
}

/* Of two that mount at one directory at the same time the second finds the first. Whoever else holds such a
 * lock is waited for only so long. */
static int lock_directory(const char *directory)
{
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (unsigned i = 0;
         fd >= 0 && i < LOCK_TRIES && flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK; i++)
        (void)poll(NULL, 0, LOCK_PAUSE_MS);
    return fd;
}

static int mount_session(struct mount *m, struct err *e)
{
    char where[32];
    (void)snprintf(where, sizeof(where), "/dev/fd/%d", m->seat.fuse_fd);
    const char *directory = mount_takes_over(m) ? where : m->options->directory;
    bool takes_over = mount_takes_over(m);
    _cleanup_close_ int lock = -1;
    if (!takes_over)
        lock = lock_directory(directory); /* without it two that begin at once may both pass */
    int r = takes_over ? 0 : refuse_second(directory, e);
    if (r == 0 && fuse_session_mount(m->se, directory) < 0)
        r = err_set(e, -EIO, "%s: cannot be mounted", m->options->directory);
    return r;
}

static int mount_directory(struct mount *m, struct err *e)
{
    int r = mount_session(m, e);
    if (r < 0)
        return r;
    r = passthrough_hook(m->se, m->kind->resume != NULL, e);
    if (r == 0 && mount_takes_over(m))
        begin_again(m);
    else if (r == 0)
        r = begin_with_kernel(m, e);
    return r;
}

/* libfuse unmounts what it mounted; what was taken over is ours to unmount, unless that is why we end. */
static void unmount_directory(struct mount *m)
{
    struct pollfd p = {.fd = fuse_session_fd(m->se), .events = POLLIN};
    struct err e = {0};
    bool is_gone = poll(&p, 1, 0) > 0 && (p.revents & (POLLERR | POLLHUP));
    if (mount_takes_over(m) && !is_gone && mount_detach(m->options->directory, &e) < 0)
        log_warn("mount", "%s", e.text);
    fuse_session_unmount(m->se);
}

static int serve_until_the_end(struct mount *m, struct err *e)
{
    int r = mount_directory(m, e);
    if (r == 0 && fuse_set_signal_handlers(m->se) < 0)
        r = err_set(e, -EIO, "signal handlers");
    if (r == 0) {
        (void)sys_raise_file_limit();
        uint64_t epoch = client_epoch(m->client);
        m->kind->start(m);
        if (mount_takes_over(m)) {
            m->kind->resume(m);
            r = passthrough_resend(m->se);
            if (r < 0)
                log_error("mount", "requests that were not answered are lost: %s", err_text(r));
        }
        notifier_start(m, epoch);
        if (m->kind->listen)
            m->kind->listen(m);
        (void)serve(m);
        atomic_store(&is_served, true);
        parking_end(); /* whose thread may be asking the node */
        if (m->kind->end)
            m->kind->end(m); /* its threads use the descriptor that unmounting closes */
        notifier_silence(m->notifier);
        unmount_directory(m);
        notifier_stop(m->notifier); /* may wait for a program that waits for us, until the mount is gone */
        m->notifier = NULL;
        r = m->kind->stop(m, e);
        fuse_remove_signal_handlers(m->se);
        if (atomic_load(&m->is_given_up))
            return err_set(e, -EOPNOTSUPP, "%s: no passthrough: %s", m->options->directory, m->reason);
        return r;
    }
    if (!mount_takes_over(m)) /* else the next one tries */
        fuse_session_unmount(m->se);
    return r;
}

static int open_again(struct mount *m, struct err *e)
{
    m->kind = kinds[kept_facts(m->seat.kept)->kind];
    m->posix = kept_facts(m->seat.kept)->is_posix;
    return m->kind->open_again(m, e);
}

bool mount_is_taken_over_here(void)
{
    return keeper_has_started_us();
}

int mount_run(const struct mount_options *given, const struct mount_callbacks *calls, struct err *e)
{
    struct mount_options options = *given, *o = &options;
    struct keeper_seat seat;
    int r = keeper_fork(given->timeout_ms, calls->keeping, calls->arg, &seat, e);
    if (r < 0)
        return r;
    holdings_start(given->memory_bytes, given->threads);
    char *directory = kept_facts(seat.kept)->directory;
    if (seat.fuse_fd < 0)
        (void)snprintf(directory, KEPT_PATH_BYTES, "%s", given->directory);
    o->directory = directory;
    _cleanup_(mount_freep) struct mount *m = mount_new(o);
    m->calls = calls;
    m->seat = seat;
    if (!mount_takes_over(m))
        r = prepare_directory(o->directory, e);
    if (!mount_takes_over(m))
        id_new(&kept_facts(seat.kept)->id);
    if (r == 0)
        r = mount_takes_over(m) ? connect_again(m, e) : connect_node(m, e);
    if (r == 0 && mount_takes_over(m))
        before_start(m->client);
    if (r == 0)
        r = mount_takes_over(m) ? open_again(m, e) : open_bucket(m, e);
    if (r == 0)
        r = make_session(m, e);
    return r < 0 ? r : serve_until_the_end(m, e);
}
