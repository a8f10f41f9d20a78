/*
 * Sockets: listening, connecting, sending whole buffers, passing a descriptor. All descriptors are
 * close-on-exec. Blocking calls take a deadline through SO_RCVTIMEO/SO_SNDTIMEO or poll; none returns -EINTR.
 */
#pragma once

#include "base/err.h"
#include "base/slice.h"

#include <sys/socket.h>
#include <sys/uio.h>

/* "HOST:PORT"; port 0 asks the kernel. ret_address (may be NULL) gets the bound "HOST:PORT". -EADDRINUSE
 * names it. */
int sock_listen_tcp(const char *hostport, int backlog, int *ret_fd, char ret_address[128], struct err *e);
/* Makes the directory 0700 when missing, replaces a stale socket file that nobody listens on. */
int sock_listen_unix(const char *path, int backlog, int *ret_fd, struct err *e);
/* The time is for the name's addresses, too; 0 ms: waits for ever. -ETIMEDOUT, -EADDRNOTAVAIL. */
int sock_connect_tcp(const char *hostport, uint64_t timeout_ms, int *ret_fd, struct err *e);
int sock_connect_unix(const char *path, int *ret_fd, struct err *e);
/* -ETIMEDOUT when the listener's queue stays full; 0 ms: waits for ever. */
int sock_connect_unix_within(const char *path, uint64_t timeout_ms, int *ret_fd, struct err *e);
/* For a TCP socket that neither listens nor is connected yet, and the address that it will listen at or
 * connect to: where that is the loopback's, what is sent waits for no clock. A hint; sock_listen_tcp and
 * sock_connect_tcp have done it. */
void sock_free_of_clocks(int fd, const struct sockaddr *at);
int sock_set_timeouts(int fd, uint64_t receive_ms, uint64_t send_ms);

/* After EAGAIN: waits until the socket is ready for `events` (POLLIN or POLLOUT), as long as its own timeout
 * allows: 0 or -ETIMEDOUT. On a blocking socket EAGAIN means that its time is over already. */
int sock_wait_ready(int fd, short events);

/* All n bytes or an error: -EPIPE at the end of the stream, -ETIMEDOUT. */
int sock_send_all(int fd, const void *p, size_t n, int flags);
int sock_sendv_all(int fd, struct iovec *iov, int n_iov, int flags); /* changes iov */
int sock_recv_all(int fd, void *p, size_t n);
/* What is there, at least one byte, waiting for it as sock_recv_all does: > 0, -EPIPE at the end of the
 * stream. */
ssize_t sock_recv_some(int fd, void *p, size_t n);
/* As sendfile(2), -1 and errno after a failure, but also of files whose file system has no such thing: those
 * pass through memory, a piece at a time. */
ssize_t sock_sendfile_some(int fd, int file, off_t *at, size_t n);
/* Whole range of a file by sendfile(2), blocking. -ENODATA when the file is shorter. */
int sock_sendfile_all(int fd, int file, uint64_t offset, uint64_t n);
/* As sock_sendv_all with pass_fd (or -1) as SCM_RIGHTS on the first byte. Unix sockets only. */
int sock_sendv_fd(int fd, struct iovec *iov, int n_iov, int pass_fd);
/* First n bytes of a message, with the descriptor that came along or -1; extra descriptors are closed. */
int sock_recv_all_fd(int fd, void *p, size_t n, int *ret_fd);
/* A descriptor came along, and this process may not have one more: the kernel dropped it. */
#define SOCK_FD_LOST (-2)
/* What is there, at least one byte, as sock_recv_some; a descriptor that came along goes to *fd_in_out when
 * that is negative, and is closed otherwise. It may become SOCK_FD_LOST. */
ssize_t sock_recv_some_fd(int fd, struct iovec *iov, int n_iov, int *fd_in_out);
/* Uid of the other side of a Unix socket. */
int sock_peer_uid(int fd, uid_t *ret_uid);
/* Who made the connection, as the kernel has it of that moment, and is not root. */
struct sock_peer {
    uid_t uid;
    gid_t gid, *groups; /* supplementary; sock_peer_fini */
    size_t n_groups;
};
/* Of a Unix socket; -errno. -EPERM: it is one of several that this process cannot tell from each other, as
 * they have no uid where it runs. */
int sock_peer(int fd, struct sock_peer *ret);
void sock_peer_fini(struct sock_peer *p);
bool sock_peer_eq(const struct sock_peer *a, const struct sock_peer *b);
