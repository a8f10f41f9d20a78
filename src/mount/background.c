/*
 * A mount in the background. The process splits before anything is set up; the child reports through a pipe:
 * one byte 'R' when the mount works, or the code and the text of why it does not. The parent waits for that
 * and, on failure, for the child's end. What is in the background keeps neither the caller's terminal nor its
 * directory.
 *
 * Failure modes: a child that dies without a word is reported as such.
 */
#include "mount/mount.h"

#include "base/buf.h"
#include "base/log.h"
#include "mount/keeper.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/wait.h>
#include <unistd.h>

struct message {
    char kind; /* 'R' ready, 'F' failed */
    struct err e;
};

static void say(int fd, char kind, const struct err *e)
{
    struct message message = {.kind = kind};
    if (e)
        message.e = *e;
    (void)!write(fd, &message, sizeof(message)); /* below PIPE_BUF: whole or not at all */
}

struct child {
    int pipe_fd;
    int log_fd;
};

static void redirect(int from, int to)
{
    if (from >= 0)
        (void)dup2(from, to);
}

char *mount_whole_path(const char *path)
{
    if (!path)
        return NULL;
    _cleanup_free_ char *from = path[0] == '/' ? NULL : keeper_started_in();
    _cleanup_buf_ struct buf whole = BUF_INIT(2 * PATH_MAX);
    if (!from || buf_printf(&whole, "%s/%s", from, path) < 0)
        return slice_dup(slice_str(path));
    return buf_take(&whole);
}

static void let_caller_go(const struct child *c)
{
    (void)!chdir("/"); /* whoever wants to unmount what the caller was in shall not find us there */
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    redirect(null_fd, STDIN_FILENO);
    redirect(null_fd, STDOUT_FILENO);
    redirect(c->log_fd >= 0 ? c->log_fd : null_fd, STDERR_FILENO);
    macro_close(&null_fd);
}

static void close_pipe(struct child *c)
{
    macro_close(&c->pipe_fd);
    c->pipe_fd = -1;
}

/* In the process that serves: from here on nobody waits for us. */
static void on_ready(void *arg)
{
    struct child *c = arg;
    let_caller_go(c);
    if (c->pipe_fd < 0) /* said by a process before this one */
        return;
    say(c->pipe_fd, 'R', NULL);
    close_pipe(c);
}

static void on_keeping(void *arg)
{
    struct child *c = arg;
    let_caller_go(c);
    close_pipe(c);
}

static int run_child(const struct mount_options *o, int pipe_fd, int log_fd)
{
    struct child c = {.pipe_fd = pipe_fd, .log_fd = log_fd};
    struct err e = {0};
    (void)setsid();
    const struct mount_callbacks calls = {.ready = on_ready, .keeping = on_keeping, .arg = &c};
    int r = mount_run(o, &calls, &e);
    if (r == 0 && c.pipe_fd < 0)
        return 0;
    if (c.pipe_fd >= 0) {
        if (r == 0)
            (void)err_set(&e, -EIO, "%s: unmounted before it was ready", o->directory);
        say(c.pipe_fd, 'F', &e);
        return 1;
    }
    log_error("mount", "%s: %s", o->directory, e.text);
    return 1;
}

static int wait_for_child(pid_t pid, int fd, struct err *e)
{
    struct message message = {0};
    ssize_t n;
    do {
        n = read(fd, &message, sizeof(message));
    } while (n < 0 && errno == EINTR);
    if (n == (ssize_t)sizeof(message) && message.kind == 'R')
        return 0;
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (n != (ssize_t)sizeof(message))
        return err_set(e, -EIO, "the mount's process died at its start");
    int code = message.e.code ? message.e.code : -EIO;
    return err_set(e, code, "%s", message.e.text);
}

int mount_run_in_background(const struct mount_options *o, const char *log_path, struct err *e)
{
    int fds[2];
    _cleanup_close_ int log_fd = -1;
    if (log_path)
        log_fd = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (log_path && log_fd < 0)
        return err_errno(e, -errno, "log file %s", log_path);
    if (pipe2(fds, O_CLOEXEC) < 0)
        return err_errno(e, -errno, "pipe");
    pid_t pid = fork();
    if (pid == 0) {
        (void)close(fds[0]);
        exit(run_child(o, fds[1], log_fd));
    }
    (void)close(fds[1]);
    int r = pid < 0 ? err_errno(e, -errno, "fork") : wait_for_child(pid, fds[0], e);
    (void)close(fds[0]);
    return r;
}
