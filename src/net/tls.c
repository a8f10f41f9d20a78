/*
 * One TLS connection (contract in tls.h); certificates are in tls_server.c.
 *
 * Invariants:
 *  1. No call waits: the socket is non-blocking, and what OpenSSL could not do is told as -EAGAIN with the
 * event that it needs.
 *  2. A record that the socket did not take whole keeps its plain bytes in `held` until it is gone, at an
 * address that does not change: OpenSSL wants to see the same bytes again, and with kernel TLS it sends them
 * from there. Callers may forget them at once.
 *  3. After an error of the stream `broken` is set and OpenSSL is not called any more, not even to say
 * good-bye.
 *
 * Failure modes: a peer that breaks the protocol or goes away gives ERR_PROTOCOL or -EPIPE, never a signal.
 * A stream that ends without TLS's own good-bye counts as ended: HTTP knows by itself how long its bodies
 * are.
 */
#include "net/tls_internal.h"

#include "base/sys.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <poll.h>
#include <sys/socket.h>

#define TLS_MAGIC       0x544c5331u
#define FILE_STEP_BYTES (32 * KIB) /* read from a file at once: what is more must come from memory again */
#define CALL_MAX_BYTES  (4 * MIB)  /* most bytes of one tls_sendfile: other connections want a turn */

struct tls {
    uint32_t magic;
    SSL *ssl;
    bool broken, ended, established;
    bool drained; /* the last read found no whole record: the socket must become readable first */
    bool kernel_sends;
    bool gathers; /* records of a file leave together */
    short wants;
    char *held;    /* plain bytes of a record under way, heap; or NULL */
    size_t held_n; /* 0: none */
};

struct tls *tls_new(struct tls_server *s, int fd)
{
    struct tls *t = calloc(1, sizeof(*t));
    if (!t)
        abort();
    t->magic = TLS_MAGIC;
    t->wants = POLLIN;
    t->ssl = tls_server_session(s);
    if (!t->ssl || SSL_set_fd(t->ssl, fd) != 1)
        abort(); /* out of memory */
    SSL_set_accept_state(t->ssl);
    return t;
}

void tls_free(struct tls *t)
{
    if (!t)
        return;
    assert(t->magic == TLS_MAGIC);
    tls_end(t);
    SSL_free(t->ssl);
    free(t->held);
    t->magic = 0;
    free(t);
}

void tls_end(struct tls *t)
{
    assert(t->magic == TLS_MAGIC);
    if (t->broken || t->ended || !t->established || t->held_n > 0)
        return;
    t->ended = true;
    ERR_clear_error();
    if (SSL_shutdown(t->ssl) < 0)
        t->broken = true; /* the socket is full or closed: the peer learns it from the socket's end */
}

short tls_wants(const struct tls *t)
{
    return t->wants;
}

/* Classifies a call that gave `result` <= 0. The end of the stream is -EPIPE. */
static int after_failure(struct tls *t, int result, struct err *e)
{
    int kind = SSL_get_error(t->ssl, result);
    unsigned long code;

    switch (kind) {
    case SSL_ERROR_WANT_READ:
        t->wants = POLLIN;
        return -EAGAIN;
    case SSL_ERROR_WANT_WRITE:
        t->wants = POLLOUT;
        return -EAGAIN;
    case SSL_ERROR_ZERO_RETURN:
        return -EPIPE;
    default:
        break;
    }
    t->broken = true;
    code = ERR_peek_error();
    if (kind != SSL_ERROR_SSL || code == 0)
        return -EPIPE;
    const char *reason = ERR_reason_error_string(code);
    err_set(e, ERR_PROTOCOL, "%s", reason ? reason : "TLS error");
    ERR_clear_error();
    return ERR_PROTOCOL;
}

/* Whether a packet of several records goes out sooner than one for each. Where BBR sends by a clock, the
 * larger ones wait for it, and clients get 0.7 of what they get otherwise (bench/NOTES.md). */
static bool may_gather(int fd)
{
    char name[16] = "";
    socklen_t n = sizeof(name) - 1;
    return getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &n) == 0 && strncmp(name, "bbr", 3) != 0;
}

int tls_handshake(struct tls *t, struct err *e)
{
    assert(t->magic == TLS_MAGIC && !t->established);
    if (t->broken)
        return -EPIPE;
    ERR_clear_error();
    int k = SSL_do_handshake(t->ssl);
    if (k == 1) {
        t->established = true;
        t->kernel_sends = BIO_get_ktls_send(SSL_get_wbio(t->ssl));
        t->gathers = may_gather(SSL_get_wfd(t->ssl));
        t->wants = POLLIN;
        return 0;
    }
    return after_failure(t, k, e);
}

ssize_t tls_recv(struct tls *t, void *p, size_t n)
{
    assert(t->magic == TLS_MAGIC && t->established && n > 0);
    if (t->broken)
        return -EPIPE;
    size_t got = 0;
    ERR_clear_error();
    int k = SSL_read_ex(t->ssl, p, n, &got);
    t->drained = false;
    if (k == 1) {
        t->wants = POLLIN;
        return (ssize_t)got;
    }
    k = after_failure(t, k, NULL);
    t->drained = true;
    return k == -EPIPE ? 0 : k;
}

bool tls_has_pending(const struct tls *t)
{
    return !t->broken && !t->drained && SSL_has_pending(t->ssl);
}

/* ---- sending ---- */

/* Keeps the bytes of a record at an address that stays. */
static void hold(struct tls *t, const void *p, size_t n)
{
    assert(t->held_n == 0);
    if (!t->held) {
        t->held = malloc(TLS_RECORD_BYTES);
        if (!t->held)
            abort();
    }
    memcpy(t->held, p, n);
    t->held_n = n;
}

static void let_go(struct tls *t)
{
    free(TAKE_PTR(t->held)); /* idle connections keep no buffer */
    t->held_n = 0;
}

static int write_record(struct tls *t, const void *p, size_t n)
{
    size_t gone = 0;
    ERR_clear_error();
    int k = SSL_write_ex(t->ssl, p, n, &gone);
    if (k == 1) {
        assert(gone == n);
        t->wants = POLLIN;
        return 0;
    }
    return after_failure(t, k, NULL);
}

int tls_flush(struct tls *t)
{
    assert(t->magic == TLS_MAGIC);
    if (t->broken || t->ended)
        return -EPIPE;
    if (t->held_n == 0)
        return 0;
    int k = write_record(t, t->held, t->held_n);
    if (k == 0)
        let_go(t);
    return k;
}

ssize_t tls_send(struct tls *t, const void *p, size_t n)
{
    assert(t->magic == TLS_MAGIC && t->established && n > 0);
    int k = tls_flush(t);
    if (k < 0)
        return k;
    n = MIN(n, (size_t)TLS_RECORD_BYTES);
    if (t->kernel_sends) {
        hold(t, p, n);
        k = tls_flush(t);
        return k < 0 && k != -EAGAIN ? k : (ssize_t)n;
    }
    k = write_record(t, p, n);
    if (k == -EAGAIN)
        hold(t, p, n);
    return k < 0 && k != -EAGAIN ? k : (ssize_t)n;
}

/* Sends a buffer as far as the socket takes it; > 0, or an error when it took nothing. */
static ssize_t send_part(struct tls *t, const char *p, size_t n)
{
    size_t at = 0;
    while (at < n && t->held_n == 0) {
        ssize_t k = tls_send(t, p + at, n - at);
        if (k < 0)
            return at > 0 ? (ssize_t)at : k;
        at += (size_t)k;
    }
    return (ssize_t)at;
}

static ssize_t send_pieces(struct tls *t, int file, uint64_t offset, uint64_t n)
{
    char p[FILE_STEP_BYTES];
    size_t sent = 0;
    while (sent < n && t->held_n == 0) {
        ssize_t got = sys->pread(file, p, (size_t)MIN(n - sent, FILE_STEP_BYTES), offset + sent);
        if (got <= 0)
            return sent > 0 ? (ssize_t)sent : got == 0 ? -ENODATA : got;
        ssize_t k = send_part(t, p, (size_t)got);
        if (k < 0)
            return sent > 0 ? (ssize_t)sent : k;
        sent += (size_t)k;
    }
    return (ssize_t)sent;
}

static void set_cork(struct tls *t, int on)
{
    (void)setsockopt(SSL_get_wfd(t->ssl), IPPROTO_TCP, TCP_CORK, &on, sizeof(on)); /* a hint */
}

/* Records that follow each other leave together: the receiver would be woken for each. */
static ssize_t sendfile_by_user(struct tls *t, int file, uint64_t offset, uint64_t n)
{
    bool gathers = t->gathers && n > TLS_RECORD_BYTES;
    if (gathers)
        set_cork(t, 1);
    ssize_t sent = send_pieces(t, file, offset, n);
    if (gathers)
        set_cork(t, 0);
    return sent;
}

/* OpenSSL has one word for all that sendfile(2) may fail with, but who finds a file unreadable has it fetched
 * again: the file itself is asked where the bytes ended. */
static ssize_t why_none(struct tls *t, int result, int file, uint64_t offset)
{
    char first;
    int k = after_failure(t, result, NULL);
    ssize_t got = k == -EAGAIN ? 1 : sys->pread(file, &first, 1, offset);
    return got < 0 ? got : got == 0 ? -ENODATA : k;
}

static ssize_t sendfile_by_kernel(struct tls *t, int file, uint64_t offset, uint64_t n)
{
    ERR_clear_error();
    ossl_ssize_t k = SSL_sendfile(t->ssl, file, (off_t)offset, (size_t)n, /* flags= */ 0);
    if (k > 0) {
        t->wants = POLLIN;
        return k;
    }
    return k == 0 ? -ENODATA : why_none(t, (int)k, file, offset);
}

ssize_t tls_sendfile(struct tls *t, int file, uint64_t offset, uint64_t n)
{
    assert(t->magic == TLS_MAGIC && t->established && n > 0);
    int k = tls_flush(t);
    if (k < 0)
        return k;
    n = MIN(n, CALL_MAX_BYTES);
    return t->kernel_sends ? sendfile_by_kernel(t, file, offset, n) : sendfile_by_user(t, file, offset, n);
}
