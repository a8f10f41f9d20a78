/*
 * Sends HTTP GETs over keep-alive connections, one thread each, and throws away what comes: the same load for
 * every server it is pointed at.
 *
 *     getload [https://]HOST:PORT LIST CONNECTIONS REQUESTS
 *
 * LIST is a file with one request target a line, percent-encoded and with its query (a presigned URL without
 * scheme and host), optionally followed by a space and a range, "0-1048575". The connections take the lines
 * in turn, from the top again after the last, until REQUESTS were sent.
 *
 * With "https://" in front of HOST:PORT the connections speak TLS. The certificate is not looked at: this is
 * a load, not a client, and the certificate is its caller's own.
 *
 * Prints one line of JSON: requests, bytes (of bodies), seconds, and the 50th, 99th and 100th percentile of
 * the time to the first byte of a response and to its end.
 *
 * Invariants:
 *  1. The clock starts with the first request, when all connections are made, and stops with the last
 * response: by a thread that begins, as this one may be woken long after the barrier has opened.
 *  2. An answer other than 200 and 206, or a body that ends early, ends the run: what is printed was right.
 *
 * Failure modes: the first one of a run is reported with the server's words, exit 1. Answers without
 * Content-Length are not understood, which is one.
 */
#include "base/err.h"
#include "base/lock.h"
#include "base/macro.h"
#include "base/slice.h"
#include "base/sys.h"
#include "net/sock.h"

#include <inttypes.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define PIECE_BYTES     (256 * KIB)
#define HEAD_MAX_BYTES  (16 * KIB)
#define REQUEST_BYTES   (8 * KIB)
#define CONNECTIONS_MAX 4096
#define TIMEOUT_MS      120000

/* The end of a connection that is read from; tls NULL: plain. */
struct link {
    int fd;
    SSL *tls;
};

struct load {
    const char *address;
    SSL_CTX *tls; /* NULL: plain */
    char **lines;
    size_t n_lines;
    uint64_t requests, connections;
    _Atomic uint64_t next, bytes;
    _Atomic uint64_t began_ns; /* when the first request was about to be sent; 0: none was */
    atomic_bool failed;
    uint64_t *first_ns, *whole_ns; /* per request */
    pthread_barrier_t start;
    struct lock lock; /* covers what is said about the first failure */
};

static void fail(struct load *l, const char *what, struct slice detail)
{
    if (atomic_exchange(&l->failed, true))
        return;
    LOCK_SCOPE(&l->lock);
    (void)fprintf(stderr, "getload: %s: %s: " SLICE_FMT "\n", l->address, what, SLICE_ARG(detail));
}

static int link_send(struct link k, const char *p, size_t n)
{
    if (!k.tls)
        return sock_send_all(k.fd, p, n, MSG_NOSIGNAL);
    return SSL_write(k.tls, p, (int)n) == (int)n ? 0 : -EPIPE;
}

static ssize_t link_recv(struct link k, char *p, size_t n)
{
    if (!k.tls)
        return sock_recv_some(k.fd, p, n);
    int r = SSL_read(k.tls, p, (int)n);
    return r > 0 ? r : -EPIPE;
}

static int link_open(struct load *l, struct link *ret, struct err *e)
{
    *ret = (struct link){.fd = -1};
    int r = sock_connect_tcp(l->address, TIMEOUT_MS, &ret->fd, e);
    r = r ? r : sock_set_timeouts(ret->fd, TIMEOUT_MS, TIMEOUT_MS);
    if (r < 0 || !l->tls)
        return r;
    ret->tls = SSL_new(l->tls);
    if (!ret->tls || SSL_set_fd(ret->tls, ret->fd) != 1 || SSL_connect(ret->tls) != 1)
        return err_errno(e, -EPROTO, "TLS");
    return 0;
}

static void link_close(struct link *k)
{
    SSL_free(k->tls);
    if (k->fd >= 0)
        (void)close(k->fd);
}

/* The head of a response in `p`: its length, 0 while it is not whole. */
static size_t head_length(const char *p, size_t n)
{
    const char *end = memmem(p, n, "\r\n\r\n", 4);
    return end ? (size_t)(end - p) + 4 : 0;
}

/* Status and body length of a whole head, -1 where there is none. */
static int64_t body_length(struct slice head)
{
    int64_t length = -1;
    struct slice line = slice_split(&head, '\n');
    (void)slice_split(&line, ' ');
    if (!slice_starts(line, SLICE_LIT("200")) && !slice_starts(line, SLICE_LIT("206")))
        return -1;
    while (head.n > 0) {
        struct slice value = slice_split(&head, '\r'), name = slice_split(&value, ':');
        (void)slice_split(&head, '\n');
        uint64_t n;
        if (name.n == 14 && strncasecmp(name.p, "content-length", 14) == 0 &&
            slice_u64(slice_trim(value), &n) == 0)
            length = (int64_t)n;
    }
    return length;
}

static int send_request(struct load *l, struct link k, uint64_t i)
{
    char request[REQUEST_BYTES], target[REQUEST_BYTES], range[64] = "";
    const char *line = l->lines[i % l->n_lines], *space = strchr(line, ' ');
    (void)snprintf(target, sizeof(target), "%.*s", space ? (int)(space - line) : (int)strlen(line), line);
    if (space)
        (void)snprintf(range, sizeof(range), "Range: bytes=%s\r\n", space + 1);
    int n = snprintf(request, sizeof(request), "GET %s HTTP/1.1\r\nHost: %s\r\n%s\r\n", target, l->address,
                     range);
    if (n < 0 || (size_t)n >= sizeof(request))
        return -E2BIG;
    return link_send(k, request, (size_t)n);
}

/* One request and its whole answer; `piece` is the thread's buffer. */
static void one_request(struct load *l, struct link k, char *piece, uint64_t i)
{
    uint64_t from = sys->mono_ns();
    int r = send_request(l, k, i);
    size_t n = 0, head = 0;
    while (r == 0 && head == 0) {
        ssize_t got = n < HEAD_MAX_BYTES ? link_recv(k, piece + n, PIECE_BYTES - n) : -E2BIG;
        if (n == 0)
            l->first_ns[i] = sys->mono_ns() - from;
        r = got < 0 ? (int)got : 0;
        n += got > 0 ? (size_t)got : 0;
        head = head_length(piece, n);
    }
    if (r < 0) {
        fail(l, "no answer", slice_str(err_text(r)));
        return;
    }
    int64_t length = body_length(slice_of(piece, head));
    if (length < 0) {
        fail(l, "refused", slice_of(piece, MIN(n, (size_t)800)));
        return;
    }
    for (uint64_t left = (uint64_t)length - MIN((uint64_t)length, n - head); left > 0;) {
        ssize_t got = link_recv(k, piece, MIN(left, PIECE_BYTES));
        if (got <= 0) {
            fail(l, "body ends early", slice_str(err_text((int)got)));
            return;
        }
        left -= (uint64_t)got;
    }
    l->whole_ns[i] = sys->mono_ns() - from;
    atomic_fetch_add(&l->bytes, (uint64_t)length);
}

static void *connection_main(void *arg)
{
    struct load *l = arg;
    struct err e = {0};
    _cleanup_free_ char *piece = malloc(PIECE_BYTES);
    struct link k;
    assert(piece);
    if (link_open(l, &k, &e) < 0)
        fail(l, "connect", slice_str(e.text));
    (void)pthread_barrier_wait(&l->start);
    uint64_t none = 0;
    (void)atomic_compare_exchange_strong(&l->began_ns, &none, sys->mono_ns());
    for (;;) {
        uint64_t i = atomic_fetch_add(&l->next, 1);
        if (i >= l->requests || atomic_load(&l->failed))
            break;
        one_request(l, k, piece, i);
    }
    link_close(&k);
    return NULL;
}

static int read_list(struct load *l, const char *path)
{
    _cleanup_fclose_ FILE *f = fopen(path, "re");
    if (!f)
        return -errno;
    char line[REQUEST_BYTES];
    size_t cap = 0;
    while (fgets(line, sizeof(line), f)) {
        line[strcspn(line, "\r\n")] = '\0';
        if (!line[0])
            continue;
        if (l->n_lines == cap) {
            cap = cap ? cap * 2 : 1024;
            l->lines = realloc(l->lines, cap * sizeof(l->lines[0]));
            assert(l->lines);
        }
        l->lines[l->n_lines++] = slice_dup(slice_str(line));
    }
    return l->n_lines ? 0 : -ENODATA;
}

static int compare_u64(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

static void print_percentiles(const char *name, uint64_t *v, uint64_t n)
{
    qsort(v, n, sizeof(v[0]), compare_u64);
    /* the least value that is not below as large a share of all */
    (void)printf(", \"%s_p50_s\": %.6f, \"%s_p99_s\": %.6f, \"%s_max_s\": %.6f", name,
                 (double)v[(n + 1) / 2 - 1] / 1e9, name, (double)v[(n * 99 + 99) / 100 - 1] / 1e9, name,
                 (double)v[n - 1] / 1e9);
}

static int run(struct load *l)
{
    pthread_t *threads = calloc(l->connections, sizeof(*threads));
    l->first_ns = calloc(l->requests, sizeof(l->first_ns[0]));
    l->whole_ns = calloc(l->requests, sizeof(l->whole_ns[0]));
    assert(threads && l->first_ns && l->whole_ns);
    (void)pthread_barrier_init(&l->start, NULL, (unsigned)l->connections + 1);
    for (uint64_t i = 0; i < l->connections; i++)
        if (pthread_create(&threads[i], NULL, connection_main, l) != 0) {
            (void)fputs("getload: cannot make so many threads\n", stderr);
            exit(1); /* those made wait at the barrier */
        }
    (void)pthread_barrier_wait(&l->start);
    for (uint64_t i = 0; i < l->connections; i++)
        (void)pthread_join(threads[i], NULL);
    uint64_t ns = sys->mono_ns() - atomic_load(&l->began_ns);
    bool failed = atomic_load(&l->failed);
    if (!failed) {
        (void)printf("{\"requests\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"seconds\": %.9f", l->requests,
                     atomic_load(&l->bytes), (double)ns / 1e9);
        print_percentiles("first", l->first_ns, l->requests);
        print_percentiles("whole", l->whole_ns, l->requests);
        (void)puts("}");
    }
    free(threads);
    free(l->first_ns);
    free(l->whole_ns);
    return failed ? 1 : 0;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        (void)fputs("usage: getload [https://]HOST:PORT LIST CONNECTIONS REQUESTS\n", stderr);
        return 2;
    }
    struct load l = {.address = argv[1],
                     .connections = strtoull(argv[3], NULL, 10),
                     .requests = strtoull(argv[4], NULL, 10)};
    if (l.connections < 1 || l.connections > CONNECTIONS_MAX || l.requests < 1) {
        (void)fprintf(stderr, "getload: CONNECTIONS is 1 to %d, REQUESTS at least 1\n", CONNECTIONS_MAX);
        return 2;
    }
    lock_init(&l.lock, LOCK_LEAF);
    (void)signal(SIGPIPE, SIG_IGN);
    if (strncmp(l.address, "https://", 8) == 0) {
        l.address += 8;
        l.tls = SSL_CTX_new(TLS_client_method());
        assert(l.tls);
    }
    int r = read_list(&l, argv[2]);
    if (r < 0) {
        (void)fprintf(stderr, "getload: %s: %s\n", argv[2], err_text(r));
        return 1;
    }
    int status = run(&l);
    for (size_t i = 0; i < l.n_lines; i++)
        free(l.lines[i]);
    free(l.lines);
    SSL_CTX_free(l.tls);
    return status;
}
