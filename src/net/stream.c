/*
 * Plain sockets and TLS in one form (contract in stream.h).
 *
 * Invariants:
 *  1. Plain streams do exactly what sock.c does: TLS costs those who do not use it one comparison.
 *  2. Small pieces leave in one record: head and body of a small answer are gathered before they are
 * encrypted.
 *
 * Failure modes: those of sock.h and tls.h; a broken TLS stream gives -EPIPE like a closed socket.
 */
#include "net/stream.h"

#include "base/sys.h"
#include "net/sock.h"

#include <poll.h>
#include <sys/socket.h>

#define SENDFILE_STEP_BYTES (4 * MIB) /* most bytes of one sendfile call */
#define RECORD_MS           60000     /* for one record of TLS, 16 KiB, to arrive whole */

/* ---- now ---- */

ssize_t stream_recv_now(struct stream s, void *p, size_t n)
{
    if (s.tls) {
        ssize_t k = tls_recv(s.tls, p, n);
        return k == ERR_PROTOCOL ? -EPIPE : k;
    }
    for (;;) {
        ssize_t k = recv(s.fd, p, n, MSG_DONTWAIT);
        if (k >= 0 || errno != EINTR)
            return k >= 0 ? k : -errno;
    }
}

/* The first record's worth of the pieces: gathered in `scratch` unless one piece has it all. */
static struct slice gather(const struct iovec *iov, int n_iov, char scratch[TLS_RECORD_BYTES])
{
    size_t n = 0;
    for (int i = 0; i < n_iov && n < TLS_RECORD_BYTES; i++) {
        size_t part = MIN(iov[i].iov_len, (size_t)TLS_RECORD_BYTES - n);
        if (n == 0 && part == TLS_RECORD_BYTES)
            return slice_of(iov[i].iov_base, part);
        if (part > 0)
            memcpy(scratch + n, iov[i].iov_base, part);
        n += part;
    }
    return slice_of(scratch, n);
}

static void advance(struct iovec **iov, int *n_iov, size_t sent)
{
    while (*n_iov > 0 && sent >= (*iov)->iov_len) {
        sent -= (*iov)->iov_len;
        (*iov)++;
        (*n_iov)--;
    }
    if (*n_iov > 0) {
        (*iov)->iov_base = (char *)(*iov)->iov_base + sent;
        (*iov)->iov_len -= sent;
    }
}

/* Sends what the socket takes; the pieces are moved on by it. */
static ssize_t tls_sendv(struct tls *t, struct iovec **iov, int *n_iov)
{
    char scratch[TLS_RECORD_BYTES];
    size_t sent = 0;
    for (;;) {
        advance(iov, n_iov, 0);
        if (*n_iov == 0)
            return (ssize_t)sent;
        struct slice record = gather(*iov, *n_iov, scratch);
        ssize_t k = tls_send(t, record.p, record.n);
        if (k < 0)
            return sent > 0 && k == -EAGAIN ? (ssize_t)sent : k;
        sent += (size_t)k;
        advance(iov, n_iov, (size_t)k);
    }
}

ssize_t stream_sendv_now(struct stream s, struct iovec *iov, int n_iov, bool more)
{
    if (s.tls)
        return tls_sendv(s.tls, &iov, &n_iov);
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = (size_t)n_iov};
    for (;;) {
        ssize_t k = sendmsg(s.fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL | (more ? MSG_MORE : 0));
        if (k >= 0 || errno != EINTR)
            return k >= 0 ? k : -errno;
    }
}

ssize_t stream_sendfile_now(struct stream s, int file, uint64_t offset, uint64_t n)
{
    if (s.tls)
        return tls_sendfile(s.tls, file, offset, n);
    for (;;) {
        off_t at = (off_t)offset;
        ssize_t k = sock_sendfile_some(s.fd, file, &at, (size_t)MIN(n, SENDFILE_STEP_BYTES));
        if (k > 0)
            return k;
        if (k == 0)
            return -ENODATA;
        if (errno != EINTR)
            return -errno;
    }
}

int stream_flush_now(struct stream s)
{
    return s.tls ? tls_flush(s.tls) : 0;
}

/* ---- pace ---- */

void stream_pace_begin(struct stream_pace *p, uint64_t step)
{
    if (!p)
        return;
    atomic_store_explicit(&p->step, step, memory_order_relaxed);
    atomic_store_explicit(&p->since_ms, MAX(sys_mono_ms(), (uint64_t)1), memory_order_relaxed);
    if (p->n_waiting)
        (void)atomic_fetch_add_explicit(p->n_waiting, 1, memory_order_relaxed);
}

void stream_pace_end(struct stream_pace *p, uint64_t bytes)
{
    if (!p)
        return;
    uint64_t now_ms = sys_mono_ms(), since_ms = atomic_load_explicit(&p->since_ms, memory_order_relaxed);
    if (p->n_waiting)
        (void)atomic_fetch_sub_explicit(p->n_waiting, 1, memory_order_relaxed);
    atomic_store(&p->since_ms, 0); /* first: who looks finds that it has changed */
    (void)atomic_fetch_add(&p->bytes, bytes);
    (void)atomic_fetch_add(&p->waited_ms, now_ms - MIN(now_ms, since_ms));
}

void stream_pace_reset(struct stream_pace *p)
{
    atomic_store_explicit(&p->waited_ms, 0, memory_order_relaxed);
    atomic_store_explicit(&p->bytes, 0, memory_order_relaxed);
}

bool stream_pace_is_slow(const struct stream_pace *p, uint64_t now_ms, uint64_t bytes_per_s,
                         uint64_t grace_ms)
{
    uint64_t since_ms = atomic_load(&p->since_ms);
    if (since_ms == 0)
        return false;
    uint64_t waited_ms = atomic_load(&p->waited_ms) + now_ms - MIN(now_ms, since_ms);
    uint64_t bytes = atomic_load(&p->bytes) + atomic_load(&p->step);
    bool is_slow = waited_ms > grace_ms && bytes < (waited_ms - grace_ms) * bytes_per_s / 1000;
    return is_slow && atomic_load(&p->since_ms) == since_ms; /* else what was added up is of two waits */
}

/* ---- waiting ---- */

static int wait_for(struct stream s)
{
    return sock_wait_ready(s.fd, tls_wants(s.tls));
}

static ssize_t recv_some(struct stream s, void *p, size_t n)
{
    if (!s.tls)
        return sock_recv_some(s.fd, p, n);
    for (uint64_t end_ms = sys_mono_ms() + RECORD_MS;;) {
        ssize_t k = tls_recv(s.tls, p, n);
        if (k > 0)
            return k;
        if (k != -EAGAIN)
            return -EPIPE;
        int w = wait_for(s);
        if (w < 0)
            return w;
        if (sys_mono_ms() > end_ms) /* bytes come, but no record of them */
            return -ETIMEDOUT;
    }
}

ssize_t stream_recv_some(struct stream s, void *p, size_t n)
{
    stream_pace_begin(s.pace, /* step= */ 0);
    ssize_t k = recv_some(s, p, n);
    stream_pace_end(s.pace, k > 0 ? (uint64_t)k : 0);
    return k;
}

/* Waits until what was taken is sent: who reads next may depend on it. */
static int flush(struct stream s)
{
    for (;;) {
        int k = tls_flush(s.tls);
        if (k == -EAGAIN)
            k = wait_for(s);
        else
            return k;
        if (k < 0)
            return k;
    }
}

static int sendv_all(struct stream s, struct iovec *iov, int n_iov)
{
    if (!s.tls)
        return sock_sendv_all(s.fd, iov, n_iov, /* flags= */ 0);
    for (;;) {
        advance(&iov, &n_iov, 0);
        if (n_iov == 0)
            return flush(s);
        ssize_t k = tls_sendv(s.tls, &iov, &n_iov);
        if (k == -EAGAIN)
            k = wait_for(s);
        if (k < 0)
            return (int)k;
    }
}

int stream_sendv_all(struct stream s, struct iovec *iov, int n_iov)
{
    uint64_t n = 0;
    for (int i = 0; i < n_iov; i++)
        n += iov[i].iov_len;
    stream_pace_begin(s.pace, n);
    int k = sendv_all(s, iov, n_iov);
    stream_pace_end(s.pace, k == 0 ? n : 0);
    return k;
}

int stream_send_all(struct stream s, const void *p, size_t n, bool more)
{
    struct iovec one = {.iov_base = (void *)(uintptr_t)p, .iov_len = n};
    if (s.tls)
        return stream_sendv_all(s, &one, 1);
    stream_pace_begin(s.pace, n);
    int k = sock_send_all(s.fd, p, n, more ? MSG_MORE : 0);
    stream_pace_end(s.pace, k == 0 ? n : 0);
    return k;
}

static int tls_sendfile_all(struct stream s, int file, uint64_t offset, uint64_t n)
{
    while (n > 0) {
        ssize_t k = tls_sendfile(s.tls, file, offset, n);
        if (k == -EAGAIN)
            k = wait_for(s);
        if (k < 0)
            return (int)k;
        offset += (uint64_t)k;
        n -= (uint64_t)k;
    }
    return flush(s);
}

int stream_sendfile_all(struct stream s, int file, uint64_t offset, uint64_t n)
{
    int k = 0;
    for (uint64_t at = 0; at < n && k == 0; at += SENDFILE_STEP_BYTES) {
        uint64_t step = MIN(n - at, (uint64_t)SENDFILE_STEP_BYTES);
        stream_pace_begin(s.pace, step);
        k = s.tls ? tls_sendfile_all(s, file, offset + at, step)
                  : sock_sendfile_all(s.fd, file, offset + at, step);
        stream_pace_end(s.pace, k == 0 ? step : 0);
    }
    return k;
}
