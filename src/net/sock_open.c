/*
 * Opening sockets: listening and connecting, TCP and Unix (contract in sock.h).
 *
 * Invariants:
 *  1. Every descriptor is close-on-exec, and closed here unless it is handed out.
 *  2. A socket file is removed only after a connect to it was refused: a live listener is never cut off from
 * its clients. Its directory is 0700, so that only root and the owner reach it.
 *
 * Failure modes: name resolution gives -EADDRNOTAVAIL with the resolver's words, and -ETIMEDOUT where the
 * name servers say nothing for as long as a connection may take; a taken port gives -EADDRINUSE and names the
 * address.
 */
#include "net/sock.h"

#include "base/config.h"
#include "base/sys.h"
#include "net/host.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

static inline void free_addresses(struct addrinfo **a)
{
    if (*a)
        freeaddrinfo(*a);
}

/* What a listener binds. */
static int resolve(const char *hostport, struct addrinfo **ret, struct err *e)
{
    _cleanup_free_ char *host = NULL;
    uint16_t port;
    int k = config_parse_hostport(hostport, &host, &port, e);
    if (k < 0)
        return k;
    char service[8];
    snprintf(service, sizeof(service), "%u", port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | AI_PASSIVE};
    int g = getaddrinfo(host && host[0] ? host : NULL, service, &hints, ret);
    if (g != 0)
        return err_set(e, -EADDRNOTAVAIL, "%s: %s", hostport, gai_strerror(g));
    return 0;
}

static void format_address(int fd, char ret[128])
{
    struct sockaddr_storage a;
    socklen_t n = sizeof(a);
    char host[64] = "?", service[8] = "?";
    if (getsockname(fd, (struct sockaddr *)&a, &n) == 0)
        (void)getnameinfo((struct sockaddr *)&a, n, host, sizeof(host), service, sizeof(service),
                          NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(ret, 128, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, service);
}

static bool is_loopback(const struct sockaddr *at)
{
    union {
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } a;
    if (at->sa_family == AF_INET6) {
        memcpy(&a.v6, at, sizeof(a.v6));
        return IN6_IS_ADDR_LOOPBACK(&a.v6.sin6_addr);
    }
    memcpy(&a.v4, at, at->sa_family == AF_INET ? sizeof(a.v4) : 0);
    return at->sa_family == AF_INET && ntohl(a.v4.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

/* Who is on this machine needs no congestion control, and one that sends by a clock, as BBR does, makes both
 * sides wait for nothing: objects of 1 to 10 MiB went out at 0.4 to 0.7 of the rate (bench/NOTES.md, `s3`).
 * Connections have that of their listener; one that began with a clock keeps it. */
void sock_free_of_clocks(int fd, const struct sockaddr *at)
{
    static const char name[] = "reno";
    if (is_loopback(at))
        (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, sizeof(name) - 1);
}

int sock_listen_tcp(const char *hostport, int backlog, int *ret_fd, char ret_address[128], struct err *e)
{
    assert(hostport != NULL && ret_fd != NULL);
    struct addrinfo *_cleanup_(free_addresses) list = NULL;
    int k = resolve(hostport, &list, e);
    if (k < 0)
        return k;
    int error = EADDRNOTAVAIL;
    for (struct addrinfo *a = list; a; a = a->ai_next) {
        _cleanup_close_ int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, a->ai_protocol);
        const int on = 1;
        if (fd >= 0)
            sock_free_of_clocks(fd, a->ai_addr);
        if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
            bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, backlog) == 0) {
            if (ret_address)
                format_address(fd, ret_address);
            *ret_fd = TAKE_FD(fd);
            return 0;
        }
        error = errno;
    }
    return err_errno(e, -error, "listen on %s", hostport);
}

/* Part of the time that is left for each address that is left: one that swallows everything must not take
 * the time of those behind it. */
static uint64_t time_for(const struct addrinfo *a, uint64_t end_ms)
{
    uint64_t now_ms = sys_mono_ms(), n = 0;
    for (; a; a = a->ai_next)
        n++;
    return now_ms < end_ms ? MAX((end_ms - now_ms) / n, (uint64_t)1) : 1;
}

/* connect(2) of a non-blocking socket, bounded; leaves the socket blocking. */
static int connect_within(int fd, const struct sockaddr *a, socklen_t n, uint64_t timeout_ms)
{
    if (connect(fd, a, n) < 0) {
        if (errno != EINPROGRESS)
            return -errno;
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        int k;
        uint64_t end_ms = sys_mono_ms() + timeout_ms;
        do {
            uint64_t left_ms = end_ms - MIN(end_ms, sys_mono_ms());
            k = poll(&p, 1, timeout_ms ? (int)MIN(left_ms, (uint64_t)INT32_MAX) : -1);
        } while (k < 0 && errno == EINTR);
        if (k <= 0)
            return k == 0 ? -ETIMEDOUT : -errno;
        int error = 0;
        socklen_t size = sizeof(error);
        if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0)
            return -errno;
        if (error)
            return -error;
    }
    int flags = fcntl(fd, F_GETFL);
    return flags < 0 || fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) < 0 ? -errno : 0;
}

int sock_connect_tcp(const char *hostport, uint64_t timeout_ms, int *ret_fd, struct err *e)
{
    assert(hostport != NULL && ret_fd != NULL);
    struct addrinfo *_cleanup_(free_addresses) list = NULL;
    _cleanup_free_ char *host = NULL;
    uint16_t port;
    uint64_t end_ms = sys_mono_ms() + timeout_ms;
    int k = config_parse_hostport(hostport, &host, &port, e);
    if (k == 0)
        k = host_addresses(host && host[0] ? host : NULL, port, timeout_ms ? timeout_ms : UINT64_MAX,
                           /* cancel= */ NULL, &list, e);
    if (k < 0)
        return k;
    k = -EADDRNOTAVAIL;
    for (struct addrinfo *a = list; a; a = a->ai_next) {
        _cleanup_close_ int fd =
            socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
        k = fd < 0 ? -errno : 0;
        if (fd >= 0)
            sock_free_of_clocks(fd, a->ai_addr);
        k = k < 0 ? k : connect_within(fd, a->ai_addr, a->ai_addrlen, timeout_ms ? time_for(a, end_ms) : 0);
        if (k == 0) {
            const int on = 1;
            (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on,
                             sizeof(on)); /* a hint; the call works without */
            *ret_fd = TAKE_FD(fd);
            return 0;
        }
    }
    return err_errno(e, k, "connect to %s", hostport);
}

static int unix_address(const char *path, struct sockaddr_un *ret, struct err *e)
{
    *ret = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(ret->sun_path))
        return err_set(e, -ENAMETOOLONG, "%s: socket paths have at most %zu bytes", path,
                       sizeof(ret->sun_path) - 1);
    strcpy(ret->sun_path, path);
    return 0;
}

int sock_connect_unix(const char *path, int *ret_fd, struct err *e)
{
    return sock_connect_unix_within(path, /* timeout_ms= */ 0, ret_fd, e);
}

int sock_connect_unix_within(const char *path, uint64_t timeout_ms, int *ret_fd, struct err *e)
{
    assert(path != NULL && ret_fd != NULL);
    struct sockaddr_un a;
    int k = unix_address(path, &a, e);
    if (k < 0)
        return k;
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return err_errno(e, -errno, "socket");
    if ((k = sock_set_timeouts(fd, /* receive_ms= */ 0, timeout_ms)) < 0)
        return err_errno(e, k, "socket timeouts");
    uint64_t end_ms = sys_mono_ms() + timeout_ms;
    do {
        k = connect(fd, (struct sockaddr *)&a, sizeof(a));
    } while (k < 0 && errno == EINTR && (timeout_ms == 0 || sys_mono_ms() < end_ms));
    if (k < 0)
        return err_errno(e, errno == EAGAIN || errno == EINTR ? -ETIMEDOUT : -errno, "connect to %s", path);
    *ret_fd = TAKE_FD(fd);
    return 0;
}

static int prepare_directory(const char *path, struct err *e)
{
    _cleanup_free_ char *dir = slice_dup(slice_str(path));
    char *slash = strrchr(dir, '/');
    if (!slash || slash == dir)
        return 0;
    *slash = '\0';
    int k = sys->mkdir(dir, 0700);
    if (k < 0 && k != -EEXIST)
        return err_errno(e, k, "mkdir %s", dir);
    return 0;
}

int sock_listen_unix(const char *path, int backlog, int *ret_fd, struct err *e)
{
    assert(path != NULL && ret_fd != NULL);
    struct sockaddr_un a;
    int k = unix_address(path, &a, e);
    if (k == 0)
        k = prepare_directory(path, e);
    if (k < 0)
        return k;
    _cleanup_close_ int probe = -1;
    k = sock_connect_unix(path, &probe, NULL);
    if (k == 0)
        return err_set(e, -EADDRINUSE, "%s: another process listens there", path);
    if (k == -ECONNREFUSED) {
        k = sys->unlink(path);
        if (k < 0)
            return err_errno(e, k, "remove stale socket %s", path);
    }
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return err_errno(e, -errno, "socket");
    if (bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(fd, backlog) < 0)
        return err_errno(e, -errno, "listen on %s", path);
    *ret_fd = TAKE_FD(fd);
    return 0;
}
