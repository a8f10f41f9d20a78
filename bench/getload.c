/*
 * Sends HTTP GETs over keep-alive connections, one thread each, and throws away what comes: the same load for
 * every server it is pointed at.
 *
 *     getload [--piece KIB] [--sealed DIR | --compare DIR | --keep DIR] [https://]HOST:PORT LIST
 *             CONNECTIONS REQUESTS
 *
 * LIST is a file with one request target a line, percent-encoded and with its query (a presigned URL without
 * scheme and host), optionally followed by a space and a range, "0-1048575". The connections take the lines
 * in turn, from the top again after the last, until REQUESTS were sent.
 *
 * With "https://" in front of HOST:PORT the connections speak TLS. The certificate is not looked at: this is
 * a load, not a client, and the certificate is its caller's own.
 *
 * With --sealed DIR most of what comes over TLS is received as the plain client receives it and not decrypted
 * (sealed.h), so that on the server's own processors the server's part of TLS is measured and not the
 * client's. Before the clock starts each connection decrypts one answer whole. From then on the first
 * connection still decrypts everything, by OpenSSL; the others decrypt heads, every SEALED_EVERYth record,
 * and what is smaller than a full record. All that is decrypted of bodies is compared with the file of DIR
 * that has the name of the target's last part, which must need no percent-encoding.
 *
 * With --compare DIR every body is compared with its file of DIR, whole, over TLS or not: what a server is
 * asked for before or after its time is taken.
 *
 * With --keep DIR every body is written into a new file of DIR, which has the request's number as its name
 * and stays: the least that anybody pays who keeps what comes.
 *
 * Each connection takes 64 KiB out of its socket at a time, --piece says how much else: curl takes 16 KiB,
 * programs in Go 32, boto3 up to 256. What does not fit into a processor's own cache is copied at half the
 * speed.
 *
 * Prints one line of JSON: requests, bytes (of bodies), seconds, and the 50th, 99th and 100th percentile of
 * the time to the first byte of a response and to its end; over TLS also the cipher, and with --sealed and
 * --compare how many of the bytes were compared.
 *
 * Invariants:
 *  1. The clock starts with the first request that counts, when all connections are made, and stops with the
 * last response: by a thread that begins, as this one may be woken long after the barrier has opened.
 *  2. An answer other than 200 and 206, a body that ends early or goes on, or one that was compared and is
 * not the file's, ends the run: what is printed was right.
 *
 * Failure modes: the first one of a run is reported with the server's words, exit 1. Answers without
 * Content-Length are not understood, which is one.
 */
#include "base/err.h"
#include "base/lock.h"
#include "base/macro.h"
#include "base/slice.h"
#include "base/sys.h"
#include "base/text.h"
#include "net/sock.h"
#include "sealed.h"

#include <fcntl.h>
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
#include <sys/stat.h>
#include <unistd.h>

#define PIECE_KIB       64
#define PIECE_KIB_MAX   4096
#define HEAD_MAX_BYTES  (16 * KIB)
#define REQUEST_BYTES   (8 * KIB)
#define CONNECTIONS_MAX 4096
#define TIMEOUT_MS      120000
#define COMPARE_BYTES   (16 * KIB)

/* The end of a connection that is read from; tls NULL: plain. */
struct link {
    int fd;
    SSL *tls;
    struct sealed *sealed; /* what comes goes there and not to OpenSSL; NULL: OpenSSL reads */
    char secret[SEALED_SECRET_MAX];
    size_t secret_n;
};

struct load {
    const char *address;
    const char *files; /* a directory that bodies are compared with; NULL: they are thrown away */
    bool keeps;        /* they are written there instead */
    bool is_sealed;    /* most of them are not decrypted, and of those nothing is compared */
    SSL_CTX *tls;      /* NULL: plain */
    char **lines;
    size_t n_lines;
    uint64_t requests, connections;
    size_t piece_bytes; /* taken out of a socket at a time, at most */
    _Atomic uint64_t next, bytes, compared;
    _Atomic(const char *) cipher;
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
    (void)fprintf(stderr, "getload: %s: %s: %.*s\n", l->address, what, (int)detail.n,
                  detail.n > 0 ? detail.p : "");
}

/* ---- connections ---- */

static int link_send(struct link *k, const char *p, size_t n)
{
    if (!k->tls)
        return sock_send_all(k->fd, p, n, MSG_NOSIGNAL);
    return SSL_write(k->tls, p, (int)n) == (int)n ? 0 : -EPIPE;
}

static ssize_t link_recv(struct link *k, char *p, size_t n)
{
    if (!k->tls || k->sealed)
        return sock_recv_some(k->fd, p, n);
    int r = SSL_read(k->tls, p, (int)n);
    return r > 0 ? r : -EPIPE;
}

/* SSL_CTX_keylog_cb_func: "NAME CLIENT_RANDOM SECRET", both in hex. */
static void on_secret(const SSL *ssl, const char *line)
{
    struct link *k = SSL_get_app_data(ssl);
    struct slice secret = slice_str(line), name = slice_split(&secret, ' ');
    (void)slice_split(&secret, ' ');
    if (!slice_eq_str(name, "SERVER_TRAFFIC_SECRET_0") || secret.n > 2 * sizeof(k->secret))
        return;
    k->secret_n = text_unhex(secret, k->secret, secret.n / 2) == 0 ? secret.n / 2 : 0;
}

static int link_open(struct load *l, bool is_sealed, struct link *ret, struct err *e)
{
    *ret = (struct link){.fd = -1};
    int r = sock_connect_tcp(l->address, TIMEOUT_MS, &ret->fd, e);
    r = r ? r : sock_set_timeouts(ret->fd, TIMEOUT_MS, TIMEOUT_MS);
    if (r < 0 || !l->tls)
        return r;
    ret->tls = SSL_new(l->tls);
    if (!ret->tls || SSL_set_app_data(ret->tls, ret) != 1 || SSL_set_fd(ret->tls, ret->fd) != 1 ||
        SSL_connect(ret->tls) != 1)
        return err_errno(e, -EPROTO, "TLS");
    atomic_store(&l->cipher, SSL_get_cipher_name(ret->tls));
    return is_sealed ? sealed_new(ret->tls, slice_of(ret->secret, ret->secret_n), &ret->sealed, e) : 0;
}

static void link_close(struct link *k)
{
    sealed_free(k->sealed);
    SSL_free(k->tls);
    if (k->fd >= 0)
        (void)close(k->fd);
}

/* ---- answers ---- */

/* An answer on its way: its head, then so many bytes of body. */
struct answer {
    struct load *load;
    struct sealed *sealed; /* what its bytes come through; NULL: they come plain */
    bool opens_all;        /* of it */
    int file;              /* with the bytes that the body shall have, or for them; -1: thrown away */
    bool is_range;         /* of the file, from `offset` on */
    uint64_t offset;
    bool has_head;
    uint64_t length, got; /* of the body: announced, and received */
    uint64_t compared;    /* with the file, of those */
    char *head;           /* HEAD_MAX_BYTES */
    size_t head_n;        /* bytes of a head that is not whole */
};

static bool is_whole(const struct answer *a)
{
    return a->has_head && a->got == a->length;
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

/* Tells why the run ends. */
static int refuse(const struct answer *a, const char *what, struct slice detail)
{
    fail(a->load, what, detail);
    return ERR_PROTOCOL;
}

static int begin_body(struct answer *a, struct slice head, struct slice behind)
{
    struct stat file;
    int64_t length = body_length(head);
    if (length < 0) /* with the first words of a body that says why */
        return refuse(a, "refused",
                      head.p == a->head ? head : slice_of(head.p, head.n + MIN(behind.n, (size_t)800)));
    bool is_compared = a->file >= 0 && !a->load->keeps && !a->is_range;
    if (is_compared && (fstat(a->file, &file) < 0 || file.st_size != length))
        return refuse(a, "not as long as the file in", slice_str(a->load->files));
    a->has_head = true;
    a->length = (uint64_t)length;
    if (a->sealed)
        sealed_open_all(a->sealed, a->opens_all);
    return 0;
}

/* Finds the head in what came, and leaves what is behind it. */
static int take_head(struct answer *a, struct slice *p)
{
    struct slice came = *p, head = slice_of(came.p, a->head_n ? 0 : head_length(came.p, came.n));
    size_t before = a->head_n;
    if (head.n == 0) {
        size_t part = MIN(came.n, HEAD_MAX_BYTES - before);
        memcpy(a->head + before, came.p, part);
        a->head_n += part;
        head = slice_of(a->head, head_length(a->head, a->head_n));
    }
    if (head.n == 0 && a->head_n == HEAD_MAX_BYTES)
        return refuse(a, "no answer", slice_str(err_text(-E2BIG)));
    *p = head.n ? slice_from(came, head.n - before) : SLICE_NULL;
    return head.n ? begin_body(a, head, *p) : 0;
}

static bool same_as_file(struct answer *a, struct slice p)
{
    char there[COMPARE_BYTES];
    uint64_t at = a->offset + a->got;
    a->compared += p.n;
    for (size_t n; p.n > 0; p = slice_from(p, n), at += n) {
        n = MIN(p.n, sizeof(there));
        if (sys_pread_all(a->file, there, n, at) < 0 || memcmp(there, p.p, n) != 0)
            return false;
    }
    return true;
}

static bool put_by(const struct answer *a, struct slice p)
{
    return sys_pwrite_all(a->file, p.p, p.n, a->got) == 0;
}

/* sealed_fn: plain bytes of an answer; p NULL: only their number is known. */
static int take_plain(void *arg, const char *p, size_t n)
{
    struct answer *a = arg;
    struct slice bytes = slice_of(p, n);
    assert(p || a->has_head); /* heads are opened */
    if (!a->has_head && take_head(a, &bytes) < 0)
        return ERR_PROTOCOL;
    if (bytes.n > a->length - a->got)
        return refuse(a, "more bytes than announced", SLICE_NULL);
    bool keeps = a->load->keeps, has_file = bytes.p && bytes.n > 0 && a->file >= 0;
    if (has_file && !(keeps ? put_by(a, bytes) : same_as_file(a, bytes)))
        return refuse(a, keeps ? "not written to" : "other bytes than in the file in",
                      slice_str(a->load->files));
    a->got += bytes.n;
    return 0;
}

static int take_sealed(struct answer *a, struct slice bytes)
{
    struct err e = {0};
    int r = sealed_take(a->sealed, bytes, take_plain, a, &e);
    if (r == 0 && is_whole(a) && !sealed_is_between(a->sealed))
        r = err_set(&e, ERR_PROTOCOL, "a record goes on behind the answer");
    return r < 0 ? refuse(a, "TLS", slice_str(e.text)) : 0; /* what was told before stays */
}

/* ---- requests ---- */

/* The target of a line, and what stands behind it. */
static struct slice target_of(const char *line, struct slice *ret_range)
{
    *ret_range = slice_str(line);
    return slice_split(ret_range, ' ');
}

static int send_request(struct load *l, struct link *k, const char *line)
{
    char request[REQUEST_BYTES], range[64] = "";
    struct slice from, target = target_of(line, &from);
    if (from.n > 0)
        (void)snprintf(range, sizeof(range), "Range: bytes=" SLICE_FMT "\r\n", SLICE_ARG(from));
    int n = snprintf(request, sizeof(request), "GET " SLICE_FMT " HTTP/1.1\r\nHost: %s\r\n%s\r\n",
                     SLICE_ARG(target), l->address, range);
    if (n < 0 || (size_t)n >= sizeof(request))
        return -E2BIG;
    return link_send(k, request, (size_t)n);
}

/* Opens what the body of a line's answer is compared with. */
static int open_file(struct answer *a, const char *line)
{
    struct slice range, target = target_of(line, &range), path = slice_split(&target, '?');
    char name[REQUEST_BYTES];
    a->is_range = range.n > 0;
    if (a->is_range && slice_u64(slice_split(&range, '-'), &a->offset) < 0)
        return -EINVAL;
    path = slice_from(path, (size_t)(slice_rfind(path, '/') + 1));
    (void)snprintf(name, sizeof(name), "%s/" SLICE_FMT, a->load->files, SLICE_ARG(path));
    a->file = open(name, O_RDONLY | O_CLOEXEC);
    return a->file < 0 ? -errno : 0;
}

/* Makes the one that the body goes to. */
static int make_file(struct answer *a, uint64_t number)
{
    char name[REQUEST_BYTES];
    (void)snprintf(name, sizeof(name), "%s/%" PRIu64, a->load->files, number);
    a->file = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    return a->file < 0 ? -errno : 0;
}

/* A connection and its thread's buffers. */
struct connection {
    struct load *load;
    uint64_t number;
    struct link link;
    char *piece; /* load->piece_bytes */
    char *head;  /* HEAD_MAX_BYTES */
};

static int receive(struct connection *c, struct answer *a, uint64_t *ret_first_ns)
{
    for (bool first = true; !is_whole(a); first = false) {
        size_t all = c->load->piece_bytes,
               most = a->has_head && !a->sealed ? MIN(a->length - a->got, all) : all;
        ssize_t n = link_recv(&c->link, c->piece, most);
        if (first)
            *ret_first_ns = sys->mono_ns();
        if (n <= 0)
            return refuse(a, a->has_head ? "body ends early" : "no answer", slice_str(err_text((int)n)));
        struct slice bytes = slice_of(c->piece, (size_t)n);
        if ((a->sealed ? take_sealed(a, bytes) : take_plain(a, bytes.p, bytes.n)) < 0)
            return ERR_PROTOCOL;
    }
    return 0;
}

struct result {
    uint64_t first_ns, whole_ns; /* since the request was begun */
    uint64_t bytes, compared;
};

/* The request of a number and its whole answer; false: the run has failed. */
static bool one_request(struct connection *c, uint64_t number, bool opens_all, struct result *ret)
{
    struct load *l = c->load;
    const char *line = l->lines[number % l->n_lines];
    struct answer a = {
        .load = l, .sealed = c->link.sealed, .opens_all = opens_all, .file = -1, .head = c->head};
    uint64_t from = sys->mono_ns(), first = from;
    int r = !l->files ? 0 : l->keeps ? make_file(&a, number) : open_file(&a, line);
    if (r < 0)
        fail(l, "the file of a target", slice_str(err_text(r)));
    if (a.sealed)
        sealed_open_all(a.sealed, true); /* its head */
    if (r == 0 && (r = send_request(l, &c->link, line)) < 0)
        fail(l, "no answer", slice_str(err_text(r)));
    if (r == 0)
        r = receive(c, &a, &first);
    macro_close(&a.file);
    *ret = (struct result){first - from, sys->mono_ns() - from, a.length, a.compared};
    return r == 0;
}

/* What comes before the clock starts. */
static void begin(struct connection *c)
{
    struct load *l = c->load;
    struct err e = {0};
    struct result ignored;
    if (link_open(l, l->is_sealed && c->number > 0, &c->link, &e) < 0)
        fail(l, "connect", slice_str(e.text));
    else if (l->is_sealed)
        (void)one_request(c, c->number, /* opens_all= */ true, &ignored);
}

static void *connection_main(void *arg)
{
    struct connection *c = arg;
    struct load *l = c->load;
    _cleanup_free_ char *piece = malloc(l->piece_bytes), *head = malloc(HEAD_MAX_BYTES);
    assert(piece && head);
    c->piece = piece;
    c->head = head;
    begin(c);
    (void)pthread_barrier_wait(&l->start);
    uint64_t none = 0;
    (void)atomic_compare_exchange_strong(&l->began_ns, &none, sys->mono_ns());
    for (;;) {
        struct result r;
        uint64_t i = atomic_fetch_add(&l->next, 1);
        if (i >= l->requests || atomic_load(&l->failed) || !one_request(c, i, /* opens_all= */ false, &r))
            break;
        l->first_ns[i] = r.first_ns;
        l->whole_ns[i] = r.whole_ns;
        atomic_fetch_add(&l->bytes, r.bytes);
        atomic_fetch_add(&l->compared, r.compared);
    }
    link_close(&c->link);
    return NULL;
}

/* ---- a run ---- */

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
    struct connection *connections = calloc(l->connections, sizeof(*connections));
    l->first_ns = calloc(l->requests, sizeof(l->first_ns[0]));
    l->whole_ns = calloc(l->requests, sizeof(l->whole_ns[0]));
    assert(threads && connections && l->first_ns && l->whole_ns);
    (void)pthread_barrier_init(&l->start, NULL, (unsigned)l->connections + 1);
    for (uint64_t i = 0; i < l->connections; i++) {
        connections[i] = (struct connection){.load = l, .number = i};
        if (pthread_create(&threads[i], NULL, connection_main, &connections[i]) != 0) {
            (void)fputs("getload: cannot make so many threads\n", stderr);
            exit(1); /* those made wait at the barrier */
        }
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
        if (l->tls)
            (void)printf(", \"cipher\": \"%s\"", atomic_load(&l->cipher));
        if (l->files && !l->keeps)
            (void)printf(", \"compared\": %" PRIu64, atomic_load(&l->compared));
        (void)puts("}");
    }
    free(threads);
    free(connections);
    free(l->first_ns);
    free(l->whole_ns);
    return failed ? 1 : 0;
}

/* Over TLS, where ADDRESS says so. */
static int set_tls(struct load *l)
{
    bool is_tls = strncmp(l->address, "https://", 8) == 0;
    if (l->is_sealed && (!is_tls || l->connections < 2)) {
        (void)fputs(
            "getload: --sealed takes an https:// address and at least 2 CONNECTIONS, of which one decrypts\n",
            stderr);
        return 2;
    }
    if (!is_tls)
        return 0;
    l->address += 8;
    l->tls = SSL_CTX_new(TLS_client_method());
    assert(l->tls);
    if (l->is_sealed) {
        (void)SSL_CTX_set_min_proto_version(l->tls, TLS1_3_VERSION);
        SSL_CTX_set_keylog_callback(l->tls, on_secret);
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct load l = {.piece_bytes = PIECE_KIB * KIB};
    if (argc > 2 && strcmp(argv[1], "--piece") == 0) {
        l.piece_bytes = strtoull(argv[2], NULL, 10) * KIB;
        argc -= 2;
        argv += 2;
    }
    l.is_sealed = argc > 2 && strcmp(argv[1], "--sealed") == 0;
    l.keeps = argc > 2 && strcmp(argv[1], "--keep") == 0;
    if (l.is_sealed || l.keeps || (argc > 2 && strcmp(argv[1], "--compare") == 0)) {
        l.files = argv[2];
        argc -= 2;
        argv += 2;
    }
    if (argc != 5) {
        (void)fputs("usage: getload [--piece KIB] [--sealed DIR | --compare DIR | --keep DIR] "
                    "[https://]HOST:PORT LIST CONNECTIONS REQUESTS\n",
                    stderr);
        return 2;
    }
    l.address = argv[1];
    l.connections = strtoull(argv[3], NULL, 10);
    l.requests = strtoull(argv[4], NULL, 10);
    if (l.connections < 1 || l.connections > CONNECTIONS_MAX || l.requests < 1 || l.piece_bytes < KIB ||
        l.piece_bytes > PIECE_KIB_MAX * KIB) {
        (void)fprintf(stderr, "getload: CONNECTIONS is 1 to %d, REQUESTS at least 1, KIB 1 to %d\n",
                      CONNECTIONS_MAX, PIECE_KIB_MAX);
        return 2;
    }
    lock_init(&l.lock, LOCK_LEAF);
    (void)signal(SIGPIPE, SIG_IGN);
    int status = set_tls(&l);
    if (status)
        return status;
    int r = read_list(&l, argv[2]);
    if (r < 0) {
        (void)fprintf(stderr, "getload: %s: %s\n", argv[2], err_text(r));
        return 1;
    }
    status = run(&l);
    for (size_t i = 0; i < l.n_lines; i++)
        free(l.lines[i]);
    free(l.lines);
    SSL_CTX_free(l.tls);
    return status;
}
