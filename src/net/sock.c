/*
 * Sockets (contract in sock.h): whole-buffer transfers and descriptors passed along. Listening and connecting
 * are in sock_open.c.
 *
 * The transfers work on blocking and on non-blocking sockets. Each wait for progress is bounded by the
 * socket's own SO_RCVTIMEO or SO_SNDTIMEO, which the kernel applies to blocking sockets and sock_wait_ready()
 * to non-blocking ones, so that the deadline lies in one place; the server sets its sockets non-blocking
 * because sendfile(2) has no flag.
 *
 * Invariants:
 *  1. SIGPIPE is never raised by a send (MSG_NOSIGNAL); sendfile relies on the process ignoring it.
 *  2. A descriptor received by mistake (more than one, or with an error) is closed, never leaked.
 *
 * Failure modes: -EPIPE when the other side is gone or has closed, -ETIMEDOUT without progress, -ENODATA when
 * a file to be sent is shorter than asked; other errno values as the kernel gives them.
 */
#include "net/sock.h"

#include "base/sys.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/time.h>

#define OVERFLOW_UID      65534 /* of who has none where this process runs */
#define UID_MAP_MAX_BYTES 65536

#define SENDFILE_MAX_BYTES (1 << 30)
#define COPY_BYTES         (16 * KIB) /* of a file that cannot be sent so, at a time */

static struct timeval to_timeval(uint64_t ms)
{
    return (struct timeval){.tv_sec = (time_t)(ms / 1000), .tv_usec = (suseconds_t)(ms % 1000 * 1000)};
}

int sock_set_timeouts(int fd, uint64_t receive_ms, uint64_t send_ms)
{
    struct timeval receive = to_timeval(receive_ms), send = to_timeval(send_ms);
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &receive, sizeof(receive)) < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &send, sizeof(send)) < 0)
        return -errno;
    return 0;
}

/* The socket's own timeout in ms for poll(2); -1: none. */
static int timeout_of(int fd, int which)
{
    struct timeval t = {0};
    socklen_t n = sizeof(t);
    if (getsockopt(fd, SOL_SOCKET, which, &t, &n) < 0 || (t.tv_sec == 0 && t.tv_usec == 0))
        return -1;
    int64_t ms = (int64_t)t.tv_sec * 1000 + t.tv_usec / 1000;
    return (int)MIN(MAX(ms, 1), INT32_MAX);
}

int sock_wait_ready(int fd, short events)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0)
        return -errno;
    if (!(flags & O_NONBLOCK))
        return -ETIMEDOUT;
    struct pollfd p = {.fd = fd, .events = events};
    int timeout_ms = timeout_of(fd, events == POLLIN ? SO_RCVTIMEO : SO_SNDTIMEO);
    uint64_t began_ms = sys_mono_ms();
    for (;;) {
        uint64_t gone_ms = sys_mono_ms() - began_ms;
        int left_ms = timeout_ms < 0 ? -1 : (int)((uint64_t)timeout_ms - MIN((uint64_t)timeout_ms, gone_ms));
        int k = poll(&p, 1, left_ms);
        if (k > 0)
            return 0;
        if (k == 0)
            return -ETIMEDOUT;
        if (errno != EINTR)
            return -errno;
    }
}

/* A signal begins the socket's own timeout anew: one that comes again and again must not make a wait endless.
 * *since_ms: of the first one since there was progress; 0: there was none. */
static int after_signal(int fd, short events, uint64_t *since_ms)
{
    uint64_t now_ms = sys_mono_ms();
    int timeout_ms = timeout_of(fd, events == POLLIN ? SO_RCVTIMEO : SO_SNDTIMEO);
    if (*since_ms == 0)
        *since_ms = MAX(now_ms, (uint64_t)1);
    return timeout_ms > 0 && now_ms - MIN(now_ms, *since_ms) >= (uint64_t)timeout_ms ? -ETIMEDOUT : 0;
}

/* Classifies the errno of a transfer: 0 try again, or the error. */
static int after_failure(int fd, short events, int error, uint64_t *since_ms)
{
    if (error == EINTR)
        return after_signal(fd, events, since_ms);
    if (error == EAGAIN)
        return sock_wait_ready(fd, events);
    return error == ECONNRESET ? -EPIPE : -error;
}

int sock_send_all(int fd, const void *p, size_t n, int flags)
{
    const char *at = p;
    uint64_t since_ms = 0;
    while (n > 0) {
        ssize_t k = send(fd, at, n, flags | MSG_NOSIGNAL);
        if (k < 0) {
            int r = after_failure(fd, POLLOUT, errno, &since_ms);
            if (r < 0)
                return r;
            continue;
        }
        since_ms = 0;
        at += k;
        n -= (size_t)k;
    }
    return 0;
}

/* Drops the first `sent` bytes of the message. */
static void advance(struct msghdr *m, size_t sent)
{
    while (m->msg_iovlen > 0 && sent >= m->msg_iov->iov_len) {
        sent -= m->msg_iov->iov_len;
        m->msg_iov++;
        m->msg_iovlen--;
    }
    if (m->msg_iovlen > 0) {
        m->msg_iov->iov_base = (char *)m->msg_iov->iov_base + sent;
        m->msg_iov->iov_len -= sent;
    }
}

static int send_message(int fd, struct msghdr *m, int flags)
{
    uint64_t since_ms = 0;
    advance(m, 0); /* leading empty pieces */
    while (m->msg_iovlen > 0) {
        ssize_t k = sendmsg(fd, m, flags | MSG_NOSIGNAL);
        if (k < 0) {
            int r = after_failure(fd, POLLOUT, errno, &since_ms);
            if (r < 0)
                return r;
            continue;
        }
        since_ms = 0;
        m->msg_control = NULL; /* a descriptor goes with the first byte only */
        m->msg_controllen = 0;
        advance(m, (size_t)k);
    }
    return 0;
}

int sock_sendv_all(int fd, struct iovec *iov, int n_iov, int flags)
{
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = (size_t)n_iov};
    return send_message(fd, &m, flags);
}

union control {
    struct cmsghdr align;
    char space[CMSG_SPACE(sizeof(int) * 4)];
};

int sock_sendv_fd(int fd, struct iovec *iov, int n_iov, int pass_fd)
{
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = (size_t)n_iov};
    union control control = {0};
    if (pass_fd >= 0) {
        m.msg_control = control.space;
        m.msg_controllen = CMSG_SPACE(sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &pass_fd, sizeof(pass_fd));
    }
    return send_message(fd, &m, /* flags= */ 0);
}

ssize_t sock_recv_some(int fd, void *p, size_t n)
{
    assert(n > 0);
    uint64_t since_ms = 0;
    for (;;) {
        ssize_t k = recv(fd, p, n, 0);
        if (k > 0)
            return k;
        if (k == 0)
            return -EPIPE;
        int r = after_failure(fd, POLLIN, errno, &since_ms);
        if (r < 0)
            return r;
    }
}

int sock_recv_all(int fd, void *p, size_t n)
{
    char *at = p;
    while (n > 0) {
        ssize_t k = sock_recv_some(fd, at, n);
        if (k < 0)
            return (int)k;
        at += k;
        n -= (size_t)k;
    }
    return 0;
}

/* Keeps the first descriptor of the message and closes the others. Truncated without one: the process may not
 * have any more. */
static void take_descriptors(struct msghdr *m, int *fd)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int got;
            memcpy(&got, CMSG_DATA(c) + i * sizeof(int), sizeof(got));
            if (*fd < 0)
                *fd = got;
            else
                (void)close(got);
        }
    }
    if ((m->msg_flags & MSG_CTRUNC) && *fd < 0)
        *fd = SOCK_FD_LOST;
}

ssize_t sock_recv_some_fd(int fd, struct iovec *iov, int n_iov, int *fd_in_out)
{
    uint64_t since_ms = 0;
    for (;;) {
        union control control;
        struct msghdr m = {.msg_iov = iov,
                           .msg_iovlen = (size_t)n_iov,
                           .msg_control = control.space,
                           .msg_controllen = sizeof(control.space)};
        ssize_t k = recvmsg(fd, &m, MSG_CMSG_CLOEXEC);
        if (k > 0)
            take_descriptors(&m, fd_in_out);
        if (k >= 0)
            return k > 0 ? k : -EPIPE;
        int r = after_failure(fd, POLLIN, errno, &since_ms);
        if (r < 0)
            return r;
    }
}

int sock_recv_all_fd(int fd, void *p, size_t n, int *ret_fd)
{
    _cleanup_close_ int passed = -1;
    struct iovec iov = {.iov_base = p, .iov_len = n};
    while (iov.iov_len > 0) {
        ssize_t k = sock_recv_some_fd(fd, &iov, 1, &passed);
        if (k < 0)
            return (int)k;
        iov.iov_base = (char *)iov.iov_base + k;
        iov.iov_len -= (size_t)k;
    }
    *ret_fd = passed >= 0 ? TAKE_FD(passed) : -1;
    return 0;
}

ssize_t sock_sendfile_some(int fd, int file, off_t *at, size_t n)
{
    char piece[COPY_BYTES];
    ssize_t k = sendfile(fd, file, at, n);
    if (k >= 0 || (errno != EINVAL && errno != ENOSYS))
        return k;
    k = pread(file, piece, MIN(n, sizeof(piece)), *at);
    if (k <= 0)
        return k;
    k = send(fd, piece, (size_t)k, MSG_NOSIGNAL);
    if (k > 0)
        *at += k;
    return k;
}

int sock_sendfile_all(int fd, int file, uint64_t offset, uint64_t n)
{
    off_t at = (off_t)offset;
    uint64_t since_ms = 0;
    while (n > 0) {
        ssize_t k = sock_sendfile_some(fd, file, &at, (size_t)MIN(n, (uint64_t)SENDFILE_MAX_BYTES));
        if (k == 0)
            return -ENODATA;
        if (k < 0) {
            int r = after_failure(fd, POLLOUT, errno, &since_ms);
            if (r < 0)
                return r;
            continue;
        }
        since_ms = 0;
        n -= (uint64_t)k;
    }
    return 0;
}

int sock_peer_uid(int fd, uid_t *ret_uid)
{
    struct ucred c;
    socklen_t n = sizeof(c);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &c, &n) < 0)
        return -errno;
    *ret_uid = c.uid;
    return 0;
}

/* Users of a namespace above, which this process is not in, all have the same uid here. */
static bool is_nobody_here(uid_t uid)
{
    _cleanup_free_ char *map = NULL;
    unsigned long long inside = 1, outside = 1, count = 0;
    size_t n;
    if (uid != OVERFLOW_UID)
        return false;
    if (sys_read_file("/proc/self/uid_map", UID_MAP_MAX_BYTES, &map, &n) < 0)
        return true;
    bool is_all = sscanf(map, "%llu %llu %llu", &inside, &outside, &count) == 3 && inside == 0 &&
                  outside == 0 && count == UINT32_MAX;
    return !is_all;
}

static int peer_groups(int fd, struct sock_peer *p)
{
    socklen_t n = 0;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, NULL, &n) == 0 || n == 0)
        return 0;
    if (errno != ERANGE)
        return -errno;
    p->groups = malloc(n);
    if (!p->groups)
        abort();
    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, p->groups, &n) < 0)
        return -errno;
    p->n_groups = n / sizeof(gid_t);
    return 0;
}

int sock_peer(int fd, struct sock_peer *ret)
{
    struct ucred c;
    socklen_t n = sizeof(c);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &c, &n) < 0)
        return -errno;
    if (c.uid == (uid_t)-1 || c.gid == (gid_t)-1 || is_nobody_here(c.uid))
        return -EPERM;
    struct sock_peer p = {.uid = c.uid, .gid = c.gid};
    int r = peer_groups(fd, &p);
    if (r < 0)
        sock_peer_fini(&p);
    else
        *ret = p;
    return r;
}

void sock_peer_fini(struct sock_peer *p)
{
    free(p->groups);
    *p = (struct sock_peer){0};
}

bool sock_peer_eq(const struct sock_peer *a, const struct sock_peer *b)
{
    return a->uid == b->uid && a->gid == b->gid && a->n_groups == b->n_groups &&
           (a->n_groups == 0 || memcmp(a->groups, b->groups, a->n_groups * sizeof(gid_t)) == 0);
}
