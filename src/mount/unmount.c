/*
 * Unmounting (contract in mount.h): the mount publishes what it has pending and tells its process id, then
 * the directory is unmounted, then that process is waited for.
 *
 * A file system ends with its last mount. Who made a mount namespace meanwhile has a copy of each, and so has
 * a bind mount: then the process goes on, and whoever waits for it in vain is told who has it.
 *
 * Failure modes: a mount whose process is gone is only unmounted.
 */
#include "mount/mount_internal.h"
#include "mount/mountinfo.h"
#include "mount/request.h"

#include "base/log.h"
#include "base/sys.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>

int mount_ask_directory(const char *directory, unsigned long what, void *argument, struct err *e)
{
    _cleanup_close_ int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(e, -errno, "%s", directory);
    if (ioctl(fd, what, argument) == 0)
        return 0;
    int r = errno == EINVAL || errno == ENOSYS ? -ENOTTY : -errno;
    return r == -ENOTTY
               ? err_set(e, r, "%s: not a mount of forebay, nor below one, or one of another version",
                         directory)
               : err_errno(e, r, "%s", directory);
}

int mount_flush(const char *directory, struct mount_flush_report *ret, struct err *e)
{
    int r = mount_ask_directory(directory, MOUNT_IOC_FLUSH, ret, e);
    if (r == 0)
        ret->text[sizeof(ret->text) - 1] = '\0';
    return r;
}

/* Users other than root may unmount with the help of fusermount3, which is set-uid. */
static int unmount_as_user(const char *directory, const char *flags, struct err *e)
{
    pid_t pid = fork();
    if (pid == 0) {
        (void)execlp("fusermount3", "fusermount3", flags, "--", directory, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    if (pid < 0)
        return err_errno(e, -errno, "fork");
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    return err_set(e, -EBUSY, "%s: fusermount3 could not unmount it", directory);
}

static int unmount(const char *directory, struct err *e)
{
    if (umount2(directory, UMOUNT_NOFOLLOW) == 0)
        return 0;
    if (errno == EPERM)
        return unmount_as_user(directory, "-u", e);
    if (errno == EBUSY)
        return err_set(e, -EBUSY, "%s: in use: close its files and leave its directories first", directory);
    if (errno == EINVAL)
        return err_set(e, -EINVAL, "%s: not the top of a mount, name the directory it is mounted at",
                       directory);
    return err_errno(e, -errno, "%s: unmount", directory);
}

int mount_detach(const char *directory, struct err *e)
{
    if (umount2(directory, MNT_DETACH) == 0)
        return 0;
    return errno == EPERM ? unmount_as_user(directory, "-uz", e)
                          : err_errno(e, -errno, "%s: unmount", directory);
}

static int wait_for_end(int pidfd, uint64_t timeout_ms, struct err *e)
{
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    int k;
    do {
        k = poll(&p, 1, (int)MIN(timeout_ms, (uint64_t)INT32_MAX));
    } while (k < 0 && errno == EINTR);
    return k > 0 ? 0 : err_set(e, -ETIMEDOUT, "unmounted, but the mount's process has not ended yet");
}

/* Says why the process has not ended, where that can be seen. */
static int explain_no_end(const struct mountinfo *at, struct err *e)
{
    struct mountinfo_holder h;
    if (!at->is_ours || !mountinfo_holder(at, &h))
        return -ETIMEDOUT;
    if (h.is_here)
        return err_set(e, -ETIMEDOUT,
                       "unmounted, but the mount's process has not ended yet: it is mounted at %s as well",
                       h.where);
    return err_set(
        e, -ETIMEDOUT,
        "unmounted, but the mount's process has not ended yet: process %u (%s) has it mounted at %s "
        "in a mount namespace of its own",
        h.pid, h.command, h.where);
}

/* A dead mount does not say whose it was. */
static int expect_ours(const char *directory, struct err *e)
{
    struct mountinfo at = {0};
    if (mountinfo_find(directory, &at) && at.is_ours)
        return 0;
    return err_set(e, -ENOTTY, "%s: not a mount of forebay%s%s", directory, at.type[0] ? " but " : "",
                   at.type);
}

int mount_unmount(const char *given, uint64_t timeout_ms, struct err *e)
{
    struct mount_flush_report report = {0};
    struct mountinfo at = {0};
    char directory[PATH_MAX]; /* umount2(2) takes no symbolic link, lest it be turned round meanwhile */
    mountinfo_resolve(given, directory);
    int r = mount_flush(directory, &report, e);
    bool is_dead = r == -ENOTCONN || r == -ECONNABORTED;
    if (is_dead)
        r = expect_ours(directory, e);
    if (r == -EIO) /* opening the directory asks the node, too */
        return err_set(e, r,
                       "%s: its node does not answer; start the node, then unmount again. `fusermount3 -u` "
                       "unmounts without it",
                       directory);
    if (r < 0)
        return r;
    _cleanup_close_ int pidfd = is_dead ? -1 : (int)syscall(SYS_pidfd_open, report.pid, 0);
    (void)mountinfo_find(directory, &at);
    r = unmount(directory, e);
    if (r == 0 && pidfd >= 0)
        r = wait_for_end(pidfd, timeout_ms, e);
    if (r == -ETIMEDOUT)
        r = explain_no_end(&at, e);
    if (r == 0 && report.n_failed > 0)
        return err_set(e, -EIO, "%s: unmounted, but %u files could not be written; the last: %s", directory,
                       report.n_failed, report.text);
    return r;
}

/* What the process tells that asks: one that waits in an ioctl does not even end by a kill. */
struct upgrade_answer {
    int code;
    struct mount_upgrade_report report;
    struct err err;
};

__attribute__((noreturn)) static void ask_upgrade(const char *directory, int fd)
{
    struct upgrade_answer a = {0};
    int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int i = 0; nowhere >= 0 && i <= STDERR_FILENO; i++)
        (void)dup2(nowhere, i); /* whoever reads what the command prints does not wait for this one */
    a.code = mount_ask_directory(directory, MOUNT_IOC_UPGRADE, &a.report, &a.err);
    a.report.version[sizeof(a.report.version) - 1] = '\0';
    _exit(write(fd, &a, sizeof(a)) == sizeof(a) ? 0 : 1);
}

static int wait_for_upgrade(int fd, uint64_t timeout_ms, struct upgrade_answer *ret)
{
    uint64_t until_ms = sys_mono_ms() + timeout_ms, now_ms;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    static_assert(sizeof(*ret) <= PIPE_BUF, "written and read as a whole");
    int r = 0;
    while (r <= 0 && (now_ms = sys_mono_ms()) < until_ms)
        r = poll(&p, 1, (int)MIN(until_ms - now_ms, (uint64_t)INT32_MAX));
    if (r <= 0)
        return -ETIMEDOUT;
    return read(fd, ret, sizeof(*ret)) == sizeof(*ret) ? 0 : -EIO;
}

static int tell_upgrade(const char *directory, struct upgrade_answer *a, struct err *e)
{
    switch (a->code) {
    case -EPERM:
        return err_set(e, a->code, "%s: only root and who mounted it may upgrade it", directory);
    case -EOPNOTSUPP:
        return err_set(e, a->code, "%s: another process cannot take over here (it takes Linux 6.9)",
                       directory);
    case -EIO: /* opening the directory asks the node, too */
    case -EHOSTDOWN:
        return err_set(e, -EHOSTDOWN,
                       "%s: its node does not answer, and without it nobody can take over; start the node, "
                       "then upgrade again: nothing was changed, and what is open stays open",
                       directory);
    default:
        if (e)
            *e = a->err;
        return a->code;
    }
}

int mount_upgrade(const char *directory, uint64_t timeout_ms, struct mount_upgrade_report *ret, struct err *e)
{
    struct upgrade_answer a = {0};
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) < 0)
        return err_errno(e, -errno, "pipe");
    pid_t pid = fork();
    if (pid == 0)
        ask_upgrade(directory, fds[1]);
    int r = pid < 0 ? err_errno(e, -errno, "fork") : 0;
    (void)close(fds[1]);
    if (r == 0)
        r = wait_for_upgrade(fds[0], timeout_ms, &a);
    (void)close(fds[0]);
    if (pid < 0)
        return r;
    if (r == -ETIMEDOUT) {
        (void)kill(pid, SIGKILL); /* it ends when it has its answer */
        return err_set(e, r,
                       "%s: nobody has taken over so far; the one before goes on if the installed program "
                       "cannot, and both need the node: see whether it runs, and what the mount's log says. "
                       "What is open stays open",
                       directory);
    }
    (void)waitpid(pid, NULL, 0);
    if (r < 0)
        return err_errno(e, r, "%s: upgrade", directory);
    r = tell_upgrade(directory, &a, e);
    if (r == 0)
        *ret = a.report;
    return r;
}

/* ---- the side of the mount ---- */

/* Root, and whose process this is. Who else is let in by allow_other is told numbers, but no names of what
 * others do, and may not have published what they have half written. */
static bool is_owners(fuse_req_t req)
{
    uid_t uid = fuse_req_ctx(req)->uid;
    return uid == 0 || uid == geteuid();
}

/* 1: there is no answer yet. The keeper kills this process, and the kernel asks the next one again. That
 * waits for the node before it serves, however long: so it has to answer now. */
static int upgrade(struct mount *m, struct mount_upgrade_report *ret)
{
    struct err e = {0};
    if (!kept_facts(m->seat.kept)->can_resume)
        return -EOPNOTSUPP;
    if (!request_comes_again() && mount_probe_node(m, &e) < 0) {
        log_error("mount", "no upgrade: %s", e.text);
        return -EHOSTDOWN;
    }
    if (!request_comes_again()) {
        keeper_ask_upgrade(&m->seat);
        return 1;
    }
    ret->pid = (uint32_t)getpid();
    ret->is_upgraded = m->seat.is_upgraded;
    (void)snprintf(ret->version, sizeof(ret->version), "%s", FOREBAY_VERSION);
    return 0;
}

static int explain(struct mount *m, fuse_ino_t ino, const void *in, size_t n, struct explain_report *ret,
                   struct err *e)
{
    if (n != sizeof(*ret))
        return -ENOTTY;
    memcpy(ret, in, n);
    ret->name[sizeof(ret->name) - 1] = '\0';
    return explain_tell(m, ino, ret, e);
}

void mount_op_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned cmd, void *arg, struct fuse_file_info *fi,
                    unsigned flags, const void *in_buf, size_t in_size, size_t out_size)
{
    (void)arg, (void)fi, (void)flags;
    union {
        struct mount_flush_report flush;
        struct stats_report stats;
        struct explain_report explain;
        struct mount_upgrade_report upgrade;
    } answer;
    static_assert(sizeof(answer) < MOUNT_IOC_MAX, "fits an ioctl");
    struct mount *m = mount_of(req);
    struct err e = {0};
    int r = _IOC_SIZE(cmd) == out_size ? 0 : -ENOTTY;
    memset(&answer, 0, sizeof(answer));
    if (r == 0 && (cmd == MOUNT_IOC_FLUSH || cmd == MOUNT_IOC_UPGRADE) && !is_owners(req))
        r = -EPERM;
    if (r == 0 && cmd == MOUNT_IOC_FLUSH) {
        m->kind->flush(m, &answer.flush);
        answer.flush.pid = (uint32_t)kept_facts(m->seat.kept)->keeper_pid; /* which ends last */
    } else if (r == 0 && cmd == MOUNT_IOC_STATS) {
        stats_tell(m, &answer.stats);
        if (!is_owners(req)) {
            memset(answer.stats.slow, 0, sizeof(answer.stats.slow));
            answer.stats.n_slow = 0;
        }
    } else if (r == 0 && cmd == (unsigned)MOUNT_IOC_EXPLAIN) {
        r = explain(m, ino, in_buf, in_size, &answer.explain, &e);
    } else if (r == 0 && cmd == MOUNT_IOC_UPGRADE) {
        r = upgrade(m, &answer.upgrade);
        if (r == 1)
            return;
    } else if (r == 0) {
        r = -ENOTTY;
    }
    if (r == -ENOTTY || r == -EPERM)
        (void)fuse_reply_err(req, -r);
    else if (r == -EHOSTDOWN) /* said in the log */
        (void)fuse_reply_err(req, EHOSTDOWN);
    else if (r < 0)
        mount_reply_error(req, "explain", r, &e);
    else
        (void)fuse_reply_ioctl(req, 0, &answer, out_size);
}
