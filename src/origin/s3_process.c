/*
 * Credentials that a program prints: `credential_process` of the profile.
 *
 * The line goes to /bin/sh -c, with an empty standard input and the node's standard error. What it prints is
 * for s3_provider.c to read.
 *
 * Invariants:
 *  1. After TIMEOUT_MS the program is killed, or sooner when nobody wants its answer any more (base/quit.h),
 * and what it started with it, unless that left its process group. It is waited for in any case.
 *  2. It inherits no signal mask and no ignored signals, and of descriptors those three only.
 *  3. What it printed is nowhere told.
 *
 * Failure modes: ERR_ORIGIN_DENIED, with its status; ERR_ORIGIN_FAILED when it takes or prints too much;
 * -ECANCELED.
 */
#include "origin/s3_internal.h"

#include "base/sys.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#define TIMEOUT_MS 30000
#define LOOK_NS    ((uint64_t)5000000)
#define PIECE      4096
#define NAME       "credential_process of the AWS profile"

extern char **environ;

static int spawn_shell(const char *command, int out, pid_t *ret)
{
    char *argv[] = {(char[]){"sh"}, (char[]){"-c"}, slice_dup(slice_str(command)), NULL};
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none, all;
    (void)sigemptyset(&none);
    (void)sigfillset(&all);
    int r = posix_spawn_file_actions_init(&files) | posix_spawnattr_init(&attr);
    assert(r == 0);
    r = posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    r = r ? r : posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
    r = r ? r : posix_spawnattr_setsigmask(&attr, &none);
    r = r ? r : posix_spawnattr_setsigdefault(&attr, &all);
    r = r ? r : posix_spawnattr_setpgroup(&attr, 0);
    r = r ? r
          : posix_spawnattr_setflags(&attr,
                                     POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    r = r ? r : posix_spawn(ret, "/bin/sh", &files, &attr, argv, environ);
    (void)posix_spawn_file_actions_destroy(&files);
    (void)posix_spawnattr_destroy(&attr);
    free(argv[2]);
    return -r;
}

/* Whether it may go on: 0, or why not. */
static int look_around(uint64_t began_ms, struct err *e)
{
    if (quit_is_now())
        return err_set(e, -ECANCELED, "canceled");
    if (sys_mono_ms() - began_ms < quit_patience_ms(TIMEOUT_MS))
        return 0;
    return err_set(e, ERR_ORIGIN_FAILED, NAME ": no answer within %d s", TIMEOUT_MS / 1000);
}

/* All that it prints, until nobody can print any more. */
static int read_all(int fd, uint64_t began_ms, struct buf *ret, struct err *e)
{
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int n = poll(&p, 1, QUIT_LOOK_MS), over = look_around(began_ms, e);
        if (over < 0)
            return over;
        if (n == 0)
            continue;
        char piece[PIECE];
        ssize_t got = n < 0 ? n : read(fd, piece, sizeof(piece));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_errno(e, -errno, NAME);
        int r = got > 0 ? buf_append(ret, piece, (size_t)got) : 0;
        explicit_bzero(piece, sizeof(piece));
        if (r < 0)
            return err_set(e, ERR_ORIGIN_FAILED, NAME ": it prints too much");
        if (got == 0)
            return 0;
    }
}

/* Its end, which is made where it does not come, or is not waited for. */
static int wait_for(pid_t pid, uint64_t began_ms, bool waits, int *ret_status)
{
    pid_t ended = 0;
    while ((ended = waitpid(pid, ret_status, WNOHANG)) == 0 && waits && look_around(began_ms, NULL) == 0)
        sys->sleep_ns(LOOK_NS);
    if (ended != 0)
        return ended == pid ? 0 : -errno;
    (void)kill(-pid, SIGKILL);
    while ((ended = waitpid(pid, ret_status, 0)) < 0 && errno == EINTR)
        ;
    if (ended != pid)
        return -errno;
    return quit_is_now() ? -ECANCELED : 0;
}

int s3_process_run(const char *command, struct buf *ret, struct err *e)
{
    int ends[2], status = 0;
    pid_t pid = 0;
    if (pipe2(ends, O_CLOEXEC) < 0)
        return err_errno(e, -errno, NAME);
    int _cleanup_close_ in = ends[0];
    uint64_t began_ms = sys_mono_ms();
    int r = spawn_shell(command, ends[1], &pid);
    macro_close(&ends[1]);
    if (r < 0)
        return err_errno(e, r, NAME);
    r = read_all(in, began_ms, ret, e);
    int ended = wait_for(pid, began_ms, /* waits= */ r == 0, &status);
    if (r < 0)
        return r;
    if (ended < 0)
        return err_errno(e, ended, NAME);
    if (WIFSIGNALED(status))
        return err_set(e, ERR_ORIGIN_DENIED, NAME ": ended by signal %d", WTERMSIG(status));
    if (WEXITSTATUS(status) != 0)
        return err_set(e, ERR_ORIGIN_DENIED, NAME ": exit status %d", WEXITSTATUS(status));
    return 0;
}
