/*
 * The bytes of a connection, plain or in TLS: what sock.h does for a socket, for whoever does not want to
 * know which of the two it is. The socket is non-blocking where `tls` is set; waits are bounded by its
 * SO_RCVTIMEO and SO_SNDTIMEO as everywhere.
 */
#pragma once

#include "net/tls.h"

#include <sys/uio.h>

struct stream {
    int fd;
    struct tls *tls; /* NULL: plain */
};

static inline struct stream stream_plain(int fd)
{
    return (struct stream){.fd = fd};
}

/* What can be done now: > 0, 0 at the end of the stream, -EAGAIN, or an error. */
ssize_t stream_recv_now(struct stream s, void *p, size_t n);
/* > 0 bytes taken, which may be less than all; -EAGAIN, or an error. `more` follows soon. */
ssize_t stream_sendv_now(struct stream s, struct iovec *iov, int n_iov, bool more);
/* > 0; -EAGAIN, -ENODATA when the file is shorter, or an error. */
ssize_t stream_sendfile_now(struct stream s, int file, uint64_t offset, uint64_t n);
/* 0 when everything taken has been sent; -EAGAIN, or an error. */
int stream_flush_now(struct stream s);

/* At least one byte, waiting for it: > 0, -EPIPE at the end of the stream, -ETIMEDOUT. */
ssize_t stream_recv_some(struct stream s, void *p, size_t n);
/* All of it, sent when the call returns; or an error. sendv changes iov. */
int stream_send_all(struct stream s, const void *p, size_t n, bool more);
int stream_sendv_all(struct stream s, struct iovec *iov, int n_iov);
int stream_sendfile_all(struct stream s, int file, uint64_t offset, uint64_t n);
