/*
 * The bytes of a connection, plain or in TLS: what sock.h does for a socket, for whoever does not want to
 * know which of the two it is. The socket is non-blocking where `tls` is set; waits are bounded by its
 * SO_RCVTIMEO and SO_SNDTIMEO as everywhere.
 */
#pragma once

#include "net/tls.h"

#include <stdatomic.h>
#include <sys/uio.h>

/* How a peer keeps whoever waits for it, for other threads to see. Zeroed: nobody has waited yet. */
struct stream_pace {
    _Atomic uint64_t since_ms;  /* monotonic, of the wait that goes on; 0: there is none */
    _Atomic uint64_t step;      /* bytes of it when they are sent, which count at its end; 0: it receives */
    _Atomic uint64_t waited_ms; /* of the waits before it */
    _Atomic uint64_t bytes;     /* moved in them */
    atomic_uint *n_waiting;     /* or NULL: how many of all wait */
};

struct stream {
    int fd;
    struct tls *tls;          /* NULL: plain */
    struct stream_pace *pace; /* NULL: nobody looks */
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

/* Around a wait for the peer: the functions of this part do it themselves. `step` and `bytes` as in the
 * struct; `p` may be NULL. */
void stream_pace_begin(struct stream_pace *p, uint64_t step);
void stream_pace_end(struct stream_pace *p, uint64_t bytes);
/* Of the request that begins nothing is known yet. */
void stream_pace_reset(struct stream_pace *p);
/* Whether the peer has let somebody wait who waits still, and moved less meanwhile than so much per second,
 * the first grace_ms not counted. */
bool stream_pace_is_slow(const struct stream_pace *p, uint64_t now_ms, uint64_t bytes_per_s,
                         uint64_t grace_ms);
