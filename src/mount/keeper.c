/*
 * The keeper (contract in keeper.h).
 *
 * It starts no thread, so that it may fork at any time, and touches no file system but /proc, so that it
 * cannot hang on its own mount. A process that serves dies with its keeper (PR_SET_PDEATHSIG): whoever kills
 * the process that was started finds the mount dead, as with any other file system in user space.
 *
 * An upgrade begins with a kill that cannot be taken back; so the process that serves asks for it only when
 * its node answers (unmount.c), and the program that is started has half of the mount's --timeout to
 * serve, or UPGRADE_MIN_MS, from its last word that it goes on (a table of open files takes its time).
 *
 * A program that the keeper starts gets its seat in the environment: SEAT=KEEPER_PID,KEPT_FD,ADDRESS,FUSE_FD,
 * POST_FD,DIRECTORY, the last of which is where the mount was begun: its arguments may be relative to that,
 * and its process is somewhere else, as the keeper is. One that cannot take over (it keeps other things, its
 * address is taken, it is no forebay) ends before it is ready, and one that is not ready in time, because it
 * does not find its node, is killed; then the keeper's own program takes over, as
 * after a kill. One that ended is started once more before, while there is time: what is in its way may lie
 * in that process alone (its addresses, the memory of the machine at that moment).
 *
 * A killed process does not end while one of its threads waits inside the kernel for a directory's lock, to
 * drop a name (notify.c), and whoever holds that lock waits for an answer of ours. It is stuck, not alive:
 * nothing of it returns to the program. So its threads are looked at, and another one takes over before it
 * has ended.
 *
 * Failure modes: processes that die DEATHS_MAX times within DEATHS_MS are not replaced any more; the mount is
 * then dead ("transport endpoint is not connected"), as when the kernel is too old to send requests again.
 */
#include "mount/keeper.h"

#include "base/log.h"
#include "base/sys.h"
#include "mount/stuck.h"
#include "net/sock.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define DEATHS_MAX 5
#define DEATHS_MS  60000
#define PAUSE_MS   200 /* before a process that died at once is replaced */

#define LOOK_MS         1000 /* how often it is looked at */
#define LOOK_UPGRADE_MS 100
#define UPGRADE_MIN_MS  5000
#define STUCK_LOOKS     2    /* one after the other: an end takes a moment */
#define END_MS          5000 /* until a process that does not serve yet hears of a signal that ends the mount */

#define SEAT            "FOREBAY_MOUNT_SEAT"
#define ARGUMENTS_PIECE 4096

/* What the serving process says; never leaves this machine, nor outlives this program. */
enum word { WORD_READY = 1, WORD_HOLD, WORD_DROP, WORD_UPGRADE, WORD_GOES_ON };
struct message {
    uint32_t word;
    uint32_t slot;
};

struct keeper {
    struct kept *kept;
    int fuse_fd;
    bool must_upgrade; /* asked for: the next one is started from the disk */
    bool is_upgraded;  /* and so are those after it */
    bool is_last_try;  /* of an upgrade */
    bool is_stuck;     /* the one that served, which was killed */
    /* How long an upgrade may take without a word; when the one that runs is given up, 0: never. */
    uint64_t upgrade_ms, until_ms;
    uint64_t end_ms; /* when one that does not serve yet is ended, as the mount is to end; 0: nobody asked */
    char program[PATH_MAX];
    char directory[PATH_MAX]; /* where it was started; empty: unknown */
    char *arguments;          /* as /proc/self/cmdline has them */
    size_t n_arguments;
    uint64_t deaths_ms[DEATHS_MAX]; /* times of the last ones */
    size_t n_deaths;
};

/* asked_by: a signal that shall end the mount; 0: none. A process that takes over hears of it when it serves,
 * and publishes what is written; the first one at once. */
static volatile sig_atomic_t serving_pid, asked_by, hears;

static void pass_on(int sig)
{
    asked_by = sig;
    if (serving_pid > 0 && hears)
        (void)kill((pid_t)serving_pid, sig);
}

static void handle_signals(void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler};
    (void)sigaction(SIGTERM, &action, NULL);
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGHUP, &action, NULL);
}

/* A descriptor that did not arrive (the limit of open files) is one that a successor does not have. */
static void hold(struct keeper *k, uint32_t slot, int fd)
{
    if (slot >= KEPT_SLOTS_MAX) {
        macro_close(&fd);
        return;
    }
    int *held = &kept_held(k->kept)[slot];
    if (*held > 0)
        (void)close(*held - 1);
    *held = fd + 1;
}

/* ---- one that serves ---- */

/* The directory was unmounted, or the connection aborted. */
static bool is_over(int fuse_fd)
{
    struct pollfd p = {.fd = fuse_fd, .events = POLLIN};
    return poll(&p, 1, 0) > 0 && (p.revents & (POLLERR | POLLHUP | POLLNVAL));
}

static bool has_ended(pid_t pid)
{
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
}

static void give_up_late(struct keeper *k)
{
    if (k->until_ms == 0 || sys_mono_ms() < k->until_ms)
        return;
    k->until_ms = 0;
    log_error("mount",
              "%s does not serve after %llu ms, perhaps because it does not reach its node: it is ended",
              k->program, (unsigned long long)k->upgrade_ms);
    (void)kill((pid_t)serving_pid, SIGKILL);
}

/* What is to be published waits in vain for a node that is away. */
static void end_unready(struct keeper *k)
{
    if (!asked_by || hears)
        return;
    uint64_t now_ms = sys_mono_ms();
    k->end_ms = k->end_ms ? k->end_ms : now_ms + END_MS;
    if (now_ms >= k->end_ms)
        (void)kill((pid_t)serving_pid, asked_by);
}

enum heard { HEARD_WORD, HEARD_END, HEARD_STUCK };

/* Waits for a message or the end, which nobody tells when a child of the process has its end of the line. */
static enum heard wait_for_word(struct keeper *k, int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    for (unsigned seen = 0; seen < STUCK_LOOKS;) {
        int r = poll(&p, 1, k->until_ms || (asked_by && !hears) ? LOOK_UPGRADE_MS : LOOK_MS);
        if (r > 0)
            return HEARD_WORD;
        if (r < 0) /* a signal */
            continue;
        if (has_ended((pid_t)serving_pid))
            return HEARD_END;
        give_up_late(k);
        end_unready(k);
        seen = k->fuse_fd >= 0 && !is_over(k->fuse_fd) && stuck_is((pid_t)serving_pid) ? seen + 1 : 0;
    }
    return HEARD_STUCK;
}

/* Listens until the process has ended, or is stuck. Whether it was ready. */
static bool listen_until_the_end(struct keeper *k, int fd, void (*on_ready)(void *arg), void *arg)
{
    bool was_ready = false;
    enum heard heard;
    while ((heard = wait_for_word(k, fd)) == HEARD_WORD) {
        struct message x;
        _cleanup_close_ int came = -1;
        int r = sock_recv_all_fd(fd, &x, sizeof(x), &came);
        if (r == -EINTR)
            continue;
        if (r < 0)
            return was_ready;
        if (x.word == WORD_HOLD || x.word == WORD_DROP) { /* with that none comes */
            hold(k, x.slot, TAKE_FD(came));
        } else if (x.word == WORD_UPGRADE) {
            k->must_upgrade = true;
            (void)kill((pid_t)serving_pid, SIGKILL);
        } else if (x.word == WORD_GOES_ON) {
            k->until_ms = k->until_ms ? sys_mono_ms() + k->upgrade_ms : 0;
        } else if (x.word == WORD_READY) {
            was_ready = true;
            k->until_ms = 0;
            if (k->fuse_fd < 0)
                k->fuse_fd = TAKE_FD(came);
            if (on_ready)
                on_ready(arg);
            hears = 1;
            if (asked_by) /* it came when nobody served */
                (void)kill((pid_t)serving_pid, asked_by);
        }
    }
    k->is_stuck = heard == HEARD_STUCK;
    return was_ready;
}

static int wait_for_end(struct keeper *k, pid_t pid)
{
    int status = SIGKILL; /* what a stuck one ends by */
    /* It may have closed its end of the line, and do nothing. */
    while (!k->is_stuck && k->until_ms && !has_ended(pid)) {
        (void)poll(NULL, 0, LOOK_UPGRADE_MS);
        give_up_late(k);
    }
    while (!k->is_stuck && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    while (waitpid(-1, NULL, WNOHANG) > 0) /* that were stuck before */
        ;
    k->is_stuck = false;
    serving_pid = 0;
    return status;
}

static bool dies_too_often(struct keeper *k)
{
    uint64_t now_ms = sys_mono_ms();
    uint64_t *oldest = &k->deaths_ms[k->n_deaths++ % DEATHS_MAX];
    bool often = k->n_deaths > DEATHS_MAX && now_ms - *oldest < DEATHS_MS;
    *oldest = now_ms;
    return often;
}

/* One that serves ends by itself on these; one that was about to had no handler yet. */
static bool was_asked_to_end(int status)
{
    int sig = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    return sig == SIGTERM || sig == SIGINT || sig == SIGHUP;
}

/* What was started from the disk has ended before it served. */
static bool tries_once_more(struct keeper *k)
{
    if (k->until_ms > 0 && !k->is_last_try) {
        log_warn("mount", "%s did not take over: it is started once more", k->program);
        k->is_last_try = true;
        return true;
    }
    log_error("mount", "%s cannot take over: this one goes on", k->program);
    k->is_upgraded = false;
    k->until_ms = 0;
    return false;
}

/* Whether another process shall take over from one that ended so. */
static bool may_resume(struct keeper *k, int status, bool was_ready, bool was_first)
{
    bool can = k->fuse_fd >= 0 && kept_facts(k->kept)->can_resume && !is_over(k->fuse_fd);
    if (!can || (WIFEXITED(status) && (was_ready || was_first)) || (!was_ready && was_asked_to_end(status)))
        return false;
    if (k->must_upgrade) {
        k->is_last_try = false;
        return true;
    }
    if (k->is_upgraded && !was_ready && tries_once_more(k))
        return true;
    if (dies_too_often(k)) {
        log_error("mount", "processes of the mount died %d times within %d s: giving up", DEATHS_MAX + 1,
                  DEATHS_MS / 1000);
        return false;
    }
    if (WIFSIGNALED(status))
        log_warn("mount", "the mount's process was ended by signal %d (%s): another one takes over",
                 WTERMSIG(status), strsignal(WTERMSIG(status)));
    if (!was_ready)
        (void)poll(NULL, 0, PAUSE_MS);
    return true;
}

/* In the new process. */
static void sit_down(struct keeper *k, int post_fd, pid_t keeper_pid, struct keeper_seat *ret)
{
    handle_signals(SIG_DFL);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != keeper_pid)
        _exit(1);
    kept_begin(k->kept);
    *ret = (struct keeper_seat){.kept = k->kept, .fuse_fd = k->fuse_fd, .post_fd = post_fd};
}

/* ---- another program ---- */

static void note_program(struct keeper *k)
{
    ssize_t n = readlink("/proc/self/exe", k->program, sizeof(k->program) - 1);
    k->program[MAX(n, 0)] = '\0';
    if (!getcwd(k->directory, sizeof(k->directory)))
        k->directory[0] = '\0';
    _cleanup_close_ int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    for (;;) {
        k->arguments = realloc(k->arguments, k->n_arguments + ARGUMENTS_PIECE);
        if (!k->arguments)
            abort();
        n = fd < 0 ? 0 : read(fd, k->arguments + k->n_arguments, ARGUMENTS_PIECE);
        if (n <= 0)
            break;
        k->n_arguments += (size_t)n;
    }
}

static void set_flags(struct keeper_seat *seat, int flags)
{
    int fds[] = {kept_fd(seat->kept), seat->fuse_fd, seat->post_fd};
    for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
        (void)fcntl(fds[i], F_SETFD, flags);
    for (size_t i = 0; i < KEPT_SLOTS_MAX; i++)
        if (kept_held(seat->kept)[i] > 0)
            (void)fcntl(kept_held(seat->kept)[i] - 1, F_SETFD, flags);
}

/* As execv wants them; the array is the caller's. */
static char **arguments_of(const struct keeper *k)
{
    size_t n = 0;
    char **argv = calloc(k->n_arguments + 1, sizeof(*argv)); /* each has a byte at least */
    if (!argv)
        abort();
    for (size_t at = 0; at < k->n_arguments; at += strlen(k->arguments + at) + 1)
        argv[n++] = k->arguments + at;
    return argv;
}

/* In the new process. Returns when it cannot be started. */
static void start_program(struct keeper *k, struct keeper_seat *seat, pid_t keeper_pid)
{
    char text[PATH_MAX + 128];
    _cleanup_free_ char **argv = arguments_of(k);
    (void)snprintf(text, sizeof(text), "%d,%d,%p,%d,%d,%s", (int)keeper_pid, kept_fd(k->kept),
                   kept_address(k->kept), seat->fuse_fd, seat->post_fd, k->directory);
    if (setenv(SEAT, text, 1) < 0)
        return;
    set_flags(seat, 0);
    (void)execv(k->program, argv);
    log_error("mount", "%s: %s", k->program, err_text(-errno));
    set_flags(seat, FD_CLOEXEC);
    (void)unsetenv(SEAT);
}

bool keeper_has_started_us(void)
{
    return getenv(SEAT) != NULL;
}

char *keeper_started_in(void)
{
    const char *text = getenv(SEAT);
    int at = 0;
    if (text && sscanf(text, "%*d,%*d,%*p,%*d,%*d,%n", &at) == 0 && at > 0 && text[at])
        return slice_dup(slice_str(text + at));
    return getcwd(NULL, 0); /* a keeper of before, which is where it was started */
}

/* In a program that was started to take over. */
static int sit_down_here(struct keeper_seat *ret, struct err *e)
{
    int keeper_pid, fd;
    void *at;
    const char *text = getenv(SEAT);
    struct keeper_seat seat = {.is_upgraded = true};
    if (sscanf(text, "%d,%d,%p,%d,%d", &keeper_pid, &fd, &at, &seat.fuse_fd, &seat.post_fd) != 5)
        return err_set(e, ERR_BAD_OPTION, "%s=%s: not set by a keeper", SEAT, text);
    (void)unsetenv(SEAT);
    int r = kept_open(fd, at, &seat.kept, e);
    if (r < 0)
        return r;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != keeper_pid)
        _exit(1);
    kept_begin(seat.kept);
    set_flags(&seat, FD_CLOEXEC);
    *ret = seat;
    return 0;
}

__attribute__((noreturn)) static void leave(struct keeper *k, int status)
{
    macro_close(&k->fuse_fd);
    kept_free(k->kept);
    free(k->arguments);
    exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

/* Who takes over is waited for where the machine has no room for one more process: what is open only waits.
 */
static pid_t start_process(const struct keeper *k, bool is_first, int ret_fds[2])
{
    for (bool is_told = false;; is_told = true) {
        int fds[2] = {-1, -1};
        pid_t pid = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0 ? -1 : fork();
        int error = errno;
        if (pid >= 0) {
            memcpy(ret_fds, fds, sizeof(fds));
            return pid;
        }
        macro_close(&fds[0]);
        macro_close(&fds[1]);
        errno = error;
        if (is_first || asked_by || is_over(k->fuse_fd))
            return -1;
        if (!is_told)
            log_error("mount", "nobody can take over so far: fork: %s", err_text(-error));
        (void)poll(NULL, 0, PAUSE_MS);
    }
}

int keeper_fork(uint64_t timeout_ms, void (*on_ready)(void *arg), void *arg, struct keeper_seat *ret,
                struct err *e)
{
    struct keeper k = {.fuse_fd = -1, .upgrade_ms = MAX(timeout_ms / 2, (uint64_t)UPGRADE_MIN_MS)};
    if (keeper_has_started_us())
        return sit_down_here(ret, e);
    int r = kept_new(&k.kept, e);
    if (r < 0)
        return r;
    (void)sys_raise_file_limit();
    note_program(&k);
    pid_t keeper_pid = getpid();
    kept_facts(k.kept)->keeper_pid = keeper_pid;
    for (bool is_first = true;; is_first = false) {
        int fds[2];
        hears = is_first;
        pid_t pid = start_process(&k, is_first, fds);
        if (pid < 0 && is_first)
            return err_errno(e, -errno, "fork");
        if (pid < 0) {
            log_error("mount", "nobody can take over: fork: %s", err_text(-errno));
            leave(&k, /* status= */ 1 << 8);
        }
        (void)close(fds[pid == 0 ? 0 : 1]);
        if (pid == 0) {
            sit_down(&k, fds[1], keeper_pid, ret);
            if (k.is_upgraded)
                start_program(&k, ret, keeper_pid);
            free(k.arguments);
            return 0;
        }
        serving_pid = pid;
        handle_signals(pass_on);
        bool was_ready = listen_until_the_end(&k, fds[0], is_first ? on_ready : NULL, arg);
        int status = wait_for_end(&k, pid);
        (void)close(fds[0]);
        if (!may_resume(&k, status, was_ready, is_first))
            leave(&k, status);
        if (k.must_upgrade) {
            k.is_upgraded = true;
            k.until_ms = sys_mono_ms() + k.upgrade_ms;
        }
        k.must_upgrade = false;
    }
}

static int tell(const struct keeper_seat *seat, enum word word, uint32_t slot, int fd)
{
    struct message x = {.word = word, .slot = slot};
    struct iovec iov = {.iov_base = &x, .iov_len = sizeof(x)};
    return sock_sendv_fd(seat->post_fd, &iov, 1, fd);
}

void keeper_tell_ready(const struct keeper_seat *seat, int fuse_fd)
{
    int r = tell(seat, WORD_READY, 0, fuse_fd);
    if (r < 0)
        log_warn("mount", "the keeper of the mount does not hear: %s", err_text(r));
}

void keeper_tell_going_on(const struct keeper_seat *seat)
{
    int r = tell(seat, WORD_GOES_ON, 0, -1);
    if (r < 0)
        log_debug("mount", "the keeper of the mount does not hear: %s", err_text(r));
}

int keeper_hold(const struct keeper_seat *seat, uint32_t slot, int fd)
{
    assert(fd >= 0 && slot < KEPT_SLOTS_MAX);
    return tell(seat, WORD_HOLD, slot, fd);
}

void keeper_drop(const struct keeper_seat *seat, uint32_t slot)
{
    int r = tell(seat, WORD_DROP, slot, -1);
    if (r < 0)
        log_debug("mount", "the keeper of the mount does not hear: %s", err_text(r));
}

void keeper_ask_upgrade(const struct keeper_seat *seat)
{
    int r = tell(seat, WORD_UPGRADE, 0, -1);
    if (r < 0)
        log_warn("mount", "the keeper of the mount does not hear: %s", err_text(r));
}
