/*
 * A node made for tests of the client: it drops connections, restarts, hangs and lies as told. What it has is
 * one body of bytes, under every key.
 */
#pragma once

#include "base/hash.h"
#include "base/id.h"
#include "base/sys.h"
#include "client/client_file.h"
#include "client/client_lister.h"
#include "client/client_writer.h"
#include "forebay/forebay.h"
#include "net/sock.h"
#include "net/wire_names.h"
#include "support/tmpdir.h"

#include <dirent.h>
#include <endian.h>
#include <fcntl.h>
#include <openssl/hmac.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cmocka.h>

#define CONNECTIONS_MAX 64
#define OPS_MAX         128
#define WATCHES_MAX     8
#define TIMEOUT_MS      1500
#define PATIENCE_MS     60000 /* where nothing shall time out: threads may stand still for seconds */
#define BODY_BYTES      300000
#define SECRET          "the secret"

struct fake {
    char *dir;
    char path[256], file[256];
    int listen_fd, extent_fd;
    pthread_t acceptor;
    pthread_t threads[CONNECTIONS_MAX];
    int fds[CONNECTIONS_MAX];
    size_t n_threads;
    atomic_bool stopping;
    _Atomic uint64_t first_handle; /* of this life of the node: handles are first_handle .. */
    _Atomic uint64_t next_handle;
    atomic_int seen[OPS_MAX];
    atomic_int cut[OPS_MAX]; /* so many requests of this kind lose their connection; the next hangs no more */
    atomic_int hang_ms[OPS_MAX], refused[OPS_MAX];    /* refused: so many are answered ERR_CLOSED */
    atomic_int fails[OPS_MAX];                        /* with this code, while it is not 0 */
    _Atomic uint64_t id[OPS_MAX], id_before[OPS_MAX]; /* of the last requests of this kind */
    atomic_int n_closed;                              /* handles */
    atomic_int n_no_wait;   /* OPEN, FETCH and LIST that must not wait; it has no bytes for those */
    atomic_bool is_earlier; /* it does not know CLOSE_MANY */
    atomic_int open_now, open_most;
    atomic_int strangers; /* handles of another life that were used */
    atomic_bool wants_signature, gives_fds, lies;
    atomic_bool gives_unasked;           /* a descriptor with each reply */
    atomic_bool gives_no_pipes;          /* with its watches */
    atomic_bool is_complete, is_scratch; /* what it gives is the whole object; its buckets have no origin */
    _Atomic uint64_t valid_ms;
    int watch_fds[WATCHES_MAX]; /* where records are written; covered by `lock` */
    atomic_int n_watches;
    int name_fds[WATCHES_MAX]; /* the same of names */
    atomic_int n_name_watches;
    _Atomic(const char *) directory;        /* the key that is one */
    atomic_bool is_empty;                   /* no key is there */
    void (*before)(void *arg, uint32_t op); /* called before a request is answered; set before the first */
    void *before_arg;
    _Atomic(const char *) etag;
    struct id128 last_session;
    pthread_mutex_t lock; /* last_session, fds, n_threads */
};

static inline char content(uint64_t offset)
{
    return (char)(offset * 131 + (offset >> 8) * 7);
}

/* ---- the node: one thread per connection ---- */

struct conn {
    struct fake *f;
    int fd;
    bool known;
    char nonce[32];
};

static inline void answer(struct conn *c, const struct wire_header *h, int status, const void *rep,
                          int pass_fd)
{
    _cleanup_buf_ struct buf b = BUF_INIT(WIRE_BODY_MAX_BYTES);
    if (status < 0)
        assert_int_equal(wire_error_encode(slice_str("as told"), &b), 0);
    else
        assert_int_equal(wire_op_info(h->op)->encode_rep(rep, &b), 0);
    uint64_t id = atomic_load(&c->f->lies) ? h->request_id + 1 : h->request_id;
    if (atomic_load(&c->f->gives_unasked))
        pass_fd = c->f->extent_fd;
    (void)wire_send(c->fd, h->op, WIRE_FLAG_REPLY, id, status, buf_view(&b), pass_fd);
}

static inline bool signature_is_right(const struct conn *c, const struct wire_hello_req *q)
{
    uint8_t text[32 + 16], want[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    if (q->session.n != 16 || q->signature.n != 32 || !slice_eq_str(q->access_key, "the key"))
        return false;
    memcpy(text, c->nonce, 32);
    memcpy(text + 32, q->session.p, 16);
    (void)HMAC(EVP_sha256(), SECRET, (int)strlen(SECRET), text, sizeof(text), want, &n);
    return memcmp(want, q->signature.p, 32) == 0;
}

static inline void do_hello(struct conn *c, const struct wire_header *h, const struct wire_hello_req *q)
{
    struct wire_hello_rep rep = {.node_id = SLICE_LIT("n"), .passes_fds = atomic_load(&c->f->gives_fds)};
    if (atomic_load(&c->f->wants_signature) && !signature_is_right(c, q)) {
        answer(c, h, ERR_UNAUTHENTICATED, NULL, -1);
        return;
    }
    c->known = true;
    pthread_mutex_lock(&c->f->lock);
    memcpy(c->f->last_session.b, q->session.p, 16);
    pthread_mutex_unlock(&c->f->lock);
    answer(c, h, 0, &rep, -1);
}

static inline bool is_ours(struct fake *f, uint64_t handle)
{
    bool ours = handle >= atomic_load(&f->first_handle) && handle < atomic_load(&f->next_handle);
    if (!ours)
        (void)atomic_fetch_add(&f->strangers, 1);
    return ours;
}

static inline void do_open(struct conn *c, const struct wire_header *h, const struct wire_open_req *q)
{
    struct fake *f = c->f;
    const char *etag = atomic_load(&f->etag);
    (void)atomic_fetch_add(&f->n_no_wait, (q->flags & WIRE_NO_WAIT) != 0);
    struct wire_open_rep rep = {
        .handle = atomic_fetch_add(&f->next_handle, 1),
        .attr = {.kind = WIRE_FILE, .size_bytes = BODY_BYTES, .etag = slice_str(etag)},
        .state = !atomic_load(&f->gives_fds)    ? WIRE_UNCACHED
                 : atomic_load(&f->is_complete) ? WIRE_COMPLETE
                                                : WIRE_PARTIAL,
        .valid_ms = atomic_load(&f->valid_ms)};
    if (q->if_match.n > 0 && !slice_eq_str(q->if_match, etag)) {
        answer(c, h, ERR_PRECONDITION, NULL, -1);
        return;
    }
    answer(c, h, 0, &rep, atomic_load(&f->gives_fds) ? f->extent_fd : -1);
}

static inline void do_fetch(struct conn *c, const struct wire_header *h, const struct wire_fetch_req *q)
{
    static const uint64_t piece = 70000;
    struct wire_fetch_rep rep = {.state = WIRE_PARTIAL};
    if (!is_ours(c->f, q->handle)) {
        answer(c, h, -EBADF, NULL, -1);
        return;
    }
    uint64_t n = q->offset < BODY_BYTES ? MIN(MIN(q->n, piece), BODY_BYTES - q->offset) : 0;
    if (q->flags & WIRE_NO_WAIT) {
        (void)atomic_fetch_add(&c->f->n_no_wait, 1);
        n = 0;
    }
    _cleanup_free_ char *bytes = malloc(n + 1);
    for (uint64_t i = 0; i < n; i++)
        bytes[i] = content(q->offset + i);
    if (q->flags & WIRE_INLINE)
        rep.data = slice_of(bytes, n);
    else
        rep.available = n;
    answer(c, h, 0, &rep, -1);
}

static inline void end_watches(struct fake *f)
{
    pthread_mutex_lock(&f->lock);
    for (int n = atomic_exchange(&f->n_watches, 0); n > 0; n--)
        (void)close(f->watch_fds[n - 1]);
    for (int n = atomic_exchange(&f->n_name_watches, 0); n > 0; n--)
        (void)close(f->name_fds[n - 1]);
    pthread_mutex_unlock(&f->lock);
}

/* The reading end of a pipe of which the other one is among those; the caller's. */
static inline int new_watch(struct fake *f, int write_fds[WATCHES_MAX], atomic_int *n_fds)
{
    int fds[2];
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    pthread_mutex_lock(&f->lock);
    int n = atomic_load(n_fds);
    assert_true(n < WATCHES_MAX);
    write_fds[n] = fds[1];
    atomic_store(n_fds, n + 1);
    pthread_mutex_unlock(&f->lock);
    return fds[0];
}

static inline void do_watch(struct conn *c, const struct wire_header *h)
{
    struct fake *f = c->f;
    bool gives = !atomic_load(&f->gives_no_pipes);
    int fd = gives ? new_watch(f, f->watch_fds, &f->n_watches) : -1;
    struct wire_watch_rep rep = {.handle = atomic_fetch_add(&f->next_handle, 1)};
    answer(c, h, 0, &rep, fd);
    macro_close(&fd);
}

static inline void do_watch_names(struct conn *c, const struct wire_header *h)
{
    struct fake *f = c->f;
    int fd = new_watch(f, f->name_fds, &f->n_name_watches);
    struct wire_watch_names_rep rep = {.handle = atomic_fetch_add(&f->next_handle, 1)};
    answer(c, h, 0, &rep, fd);
    (void)close(fd);
}

/* The node tells of a name. */
static inline void fake_tell_name(struct fake *f, const char *key, uint32_t flags)
{
    uint8_t record[WIRE_NAME_RECORD_BYTES];
    size_t n = wire_name_put(record, slice_str(key), flags);
    pthread_mutex_lock(&f->lock);
    for (int i = 0; i < atomic_load(&f->n_name_watches); i++)
        assert_int_equal(write(f->name_fds[i], record, n), n);
    pthread_mutex_unlock(&f->lock);
}

/* The node lets go of what it has of a key. */
static inline void fake_tell(struct fake *f, const char *key)
{
    uint64_t record = htole64(hash_placement(slice_str(key)));
    pthread_mutex_lock(&f->lock);
    for (int i = 0; i < atomic_load(&f->n_watches); i++)
        assert_int_equal(write(f->watch_fds[i], &record, sizeof(record)), sizeof(record));
    pthread_mutex_unlock(&f->lock);
}

static inline void do_list(struct conn *c, const struct wire_header *h, const struct wire_list_req *q)
{
    _cleanup_buf_ struct buf b = BUF_INIT(KIB);
    struct wire_entry a = {.key = SLICE_LIT("a"), .attr = {.kind = WIRE_FILE}}, z = {.key = SLICE_LIT("z")};
    bool first = q->after.n == 0;
    (void)atomic_fetch_add(&c->f->n_no_wait, (q->flags & WIRE_NO_WAIT) != 0);
    assert_int_equal(wire_entry_encode(first ? &a : &z, &b), 0);
    struct wire_list_rep rep = {
        .entries = buf_view(&b), .n_entries = 1, .truncated = first, .next = SLICE_LIT("a")};
    if (slice_eq_str(q->bucket, "stuck"))
        rep.truncated = true;
    if (slice_eq_str(q->bucket, "broken"))
        rep.entries.n--;
    answer(c, h, 0, &rep, -1);
}

/* The same page, whatever it shall be behind. */
static inline void do_bucket_list(struct conn *c, const struct wire_header *h)
{
    _cleanup_buf_ struct buf b = BUF_INIT(KIB);
    const struct wire_bucket one = {.name = SLICE_LIT("b")};
    assert_int_equal(wire_bucket_encode(&one, &b), 0);
    const struct wire_bucket_list_rep rep = {.buckets = buf_view(&b), .truncated = true};
    answer(c, h, 0, &rep, -1);
}

static inline void do_put(struct conn *c, const struct wire_header *h, const void *req)
{
    struct fake *f = c->f;
    uint64_t handle;
    memcpy(&handle, (const char *)req + sizeof(uint64_t),
           sizeof(handle)); /* first field of all but PUT_OPEN */
    struct wire_put_open_rep open_rep = {0};
    struct wire_put_commit_rep commit_rep = {
        .attr = {.kind = WIRE_FILE, .size_bytes = 3, .etag = SLICE_LIT("new")}};
    struct wire_put_write_rep write_rep = {0};
    if (h->op == WIRE_OP_PUT_OPEN)
        open_rep.handle = atomic_fetch_add(&f->next_handle, 1);
    if (h->op == WIRE_OP_PUT_OPEN)
        answer(c, h, 0, &open_rep, -1);
    else if (!is_ours(f, handle))
        answer(c, h, -EBADF, NULL, -1);
    else
        answer(c, h, 0, h->op == WIRE_OP_PUT_COMMIT ? (void *)&commit_rep : (void *)&write_rep, -1);
}

static inline void do_close(struct fake *f, uint64_t handle)
{
    (void)is_ours(f, handle);
    (void)atomic_fetch_add(&f->n_closed, 1);
}

static inline void do_close_many(struct conn *c, const struct wire_header *h,
                                 const struct wire_close_many_req *q)
{
    struct wire_close_many_rep rep = {0};
    struct wire_closed x;
    struct slice rest = q->closed;
    if (atomic_load(&c->f->is_earlier)) {
        answer(c, h, ERR_NOT_IMPLEMENTED, NULL, -1);
        return;
    }
    while (wire_closed_decode(&rest, &x) == 0)
        do_close(c->f, x.handle);
    assert_int_equal(rest.n, 0);
    answer(c, h, 0, &rep, -1);
}

static inline void do_stat(struct conn *c, const struct wire_header *h, const struct wire_stat_req *q)
{
    const char *directory = atomic_load(&c->f->directory);
    bool is_directory = directory && slice_eq_str(q->key, directory);
    struct wire_stat_rep rep = {
        .attr = {.kind = is_directory ? WIRE_DIRECTORY : WIRE_FILE, .size_bytes = is_directory ? 0 : 7}};
    bool is_absent = slice_eq_str(q->key, "absent") || atomic_load(&c->f->is_empty);
    answer(c, h, is_absent ? -ENOENT : 0, is_absent ? NULL : &rep, -1);
}

static inline void run(struct conn *c, const struct wire_header *h, const void *req)
{
    struct wire_challenge_rep challenge = {.nonce = slice_of(c->nonce, sizeof(c->nonce))};
    struct wire_mkdir_rep mkdir_rep = {.attr = {.kind = WIRE_DIRECTORY}};
    struct wire_copy_rep copy_rep = {.attr = {.kind = WIRE_FILE}};
    struct wire_close_rep close_rep = {0};
    struct wire_bucket_get_rep bucket_rep = {.settings = atomic_load(&c->f->is_scratch)
                                                             ? SLICE_LIT("quota=0\n")
                                                             : SLICE_LIT("quota=0\norigin=s3://b\n")};
    if (!c->known && h->op != WIRE_OP_HELLO && h->op != WIRE_OP_CHALLENGE) {
        answer(c, h, ERR_UNAUTHENTICATED, NULL, -1);
        return;
    }
    switch (h->op) {
    case WIRE_OP_CHALLENGE:
        answer(c, h, 0, &challenge, -1);
        break;
    case WIRE_OP_HELLO:
        do_hello(c, h, req);
        break;
    case WIRE_OP_STAT:
        do_stat(c, h, req);
        break;
    case WIRE_OP_LIST:
        do_list(c, h, req);
        break;
    case WIRE_OP_BUCKET_LIST:
        do_bucket_list(c, h);
        break;
    case WIRE_OP_OPEN:
        do_open(c, h, req);
        break;
    case WIRE_OP_FETCH:
        do_fetch(c, h, req);
        break;
    case WIRE_OP_BUCKET_GET:
        answer(c, h, 0, &bucket_rep, -1);
        break;
    case WIRE_OP_WATCH:
        do_watch(c, h);
        break;
    case WIRE_OP_WATCH_NAMES:
        do_watch_names(c, h);
        break;
    case WIRE_OP_MKDIR:
        answer(c, h, 0, &mkdir_rep, -1);
        break;
    case WIRE_OP_COPY:
        answer(c, h, 0, &copy_rep, -1);
        break;
    case WIRE_OP_CLOSE:
        do_close(c->f, ((const struct wire_close_req *)req)->handle);
        answer(c, h, 0, &close_rep, -1);
        break;
    case WIRE_OP_CLOSE_MANY:
        do_close_many(c, h, req);
        break;
    default:
        do_put(c, h, req);
    }
}

/* Whether this request is one of those left. */
static inline bool is_one_of(atomic_int *counter)
{
    int left = atomic_load(counter);
    while (left > 0)
        if (atomic_compare_exchange_weak(counter, &left, left - 1))
            return true;
    return false;
}

static inline void count_open(struct fake *f, int by)
{
    int now = atomic_fetch_add(&f->open_now, by) + by, most = atomic_load(&f->open_most);
    while (now > most && !atomic_compare_exchange_weak(&f->open_most, &most, now))
        ;
}

static inline void *serve(void *arg)
{
    struct conn *c = arg;
    struct fake *f = c->f;
    _cleanup_buf_ struct buf b = BUF_INIT(WIRE_BODY_MAX_BYTES);
    char req[1024];
    struct wire_header h;
    int none;
    count_open(f, 1);
    while (wire_recv(c->fd, &h, &b, &none) == 0) {
        const struct wire_op_info *info = wire_op_info(h.op);
        assert_true(info && info->req_bytes <= sizeof(req));
        assert_int_equal(info->decode_req(buf_view(&b), req), 0);
        (void)atomic_fetch_add(&f->seen[h.op], 1);
        atomic_store(&f->id_before[h.op], atomic_exchange(&f->id[h.op], h.request_id));
        for (uint64_t from_ms = sys_mono_ms();
             sys_mono_ms() - from_ms < (uint64_t)atomic_load(&f->hang_ms[h.op]) &&
             !atomic_load(&f->stopping);)
            sys->sleep_ns(10000000);
        if (is_one_of(&f->cut[h.op])) {
            atomic_store(&f->hang_ms[h.op], 0);
            break;
        }
        if (atomic_load(&f->fails[h.op]) < 0) {
            answer(c, &h, atomic_load(&f->fails[h.op]), NULL, -1);
            continue;
        }
        if (is_one_of(&f->refused[h.op])) {
            answer(c, &h, ERR_CLOSED, NULL, -1);
            continue;
        }
        if (f->before)
            f->before(f->before_arg, h.op);
        run(c, &h, req);
    }
    count_open(f, -1);
    (void)shutdown(c->fd, SHUT_RDWR);
    free(c);
    return NULL;
}

static inline void *accept_all(void *arg)
{
    struct fake *f = arg;
    while (!atomic_load(&f->stopping)) {
        struct pollfd p = {.fd = f->listen_fd, .events = POLLIN};
        if (poll(&p, 1, 10) <= 0)
            continue;
        int fd = accept4(f->listen_fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            continue;
        struct conn *c = calloc(1, sizeof(*c));
        c->f = f;
        c->fd = fd;
        sys->random(c->nonce, sizeof(c->nonce));
        pthread_mutex_lock(&f->lock);
        assert_true(f->n_threads < CONNECTIONS_MAX);
        f->fds[f->n_threads] = fd;
        assert_int_equal(pthread_create(&f->threads[f->n_threads++], NULL, serve, c), 0);
        pthread_mutex_unlock(&f->lock);
    }
    return NULL;
}

static inline void fake_start(struct fake *f)
{
    struct err e = {0};
    atomic_store(&f->stopping, false);
    assert_int_equal(sock_listen_unix(f->path, 64, &f->listen_fd, &e), 0);
    assert_int_equal(pthread_create(&f->acceptor, NULL, accept_all, f), 0);
}

/* As a kill: every connection ends, and no handle is known to the next life. */
static inline void fake_stop(struct fake *f)
{
    atomic_store(&f->stopping, true);
    (void)pthread_join(f->acceptor, NULL);
    (void)close(f->listen_fd);
    for (size_t i = 0; i < f->n_threads; i++)
        (void)shutdown(f->fds[i], SHUT_RDWR);
    for (size_t i = 0; i < f->n_threads; i++) {
        (void)pthread_join(f->threads[i], NULL);
        (void)close(f->fds[i]);
    }
    f->n_threads = 0;
    end_watches(f);
    atomic_store(&f->next_handle, atomic_load(&f->next_handle) + 1000);
    atomic_store(&f->first_handle, atomic_load(&f->next_handle));
}

static inline int setup(void **state)
{
    struct fake *f = calloc(1, sizeof(*f));
    f->dir = tmpdir_new();
    (void)snprintf(f->path, sizeof(f->path), "%s/run/s.sock", f->dir);
    (void)snprintf(f->file, sizeof(f->file), "%s/extent", f->dir);
    _cleanup_free_ char *bytes = malloc(BODY_BYTES);
    for (uint64_t i = 0; i < BODY_BYTES; i++)
        bytes[i] = content(i);
    assert_int_equal(sys_write_file_atomic(f->file, bytes, BODY_BYTES, 0600), 0);
    f->extent_fd = open(f->file, O_RDONLY | O_CLOEXEC);
    assert_true(f->extent_fd >= 0);
    (void)pthread_mutex_init(&f->lock, NULL);
    atomic_store(&f->next_handle, 1);
    atomic_store(&f->first_handle, 1);
    atomic_store(&f->etag, "v1");
    atomic_store(&f->valid_ms, UINT64_MAX);
    fake_start(f);
    *state = f;
    return 0;
}

static inline int teardown(void **state)
{
    struct fake *f = *state;
    fake_stop(f);
    assert_int_equal(atomic_load(&f->strangers), 0); /* in no test may a handle meet another session */
    (void)close(f->extent_fd);
    tmpdir_free(f->dir);
    (void)pthread_mutex_destroy(&f->lock);
    free(f);
    return 0;
}

/* Where a short timeout is at stake, a node that answers may seem not to on a slow machine: what a test tries
 * is tried again then. What is broken is so each time. */
#define TRIES 10

static inline bool is_late(int r)
{
    return r == -ETIMEDOUT || r == -EHOSTDOWN;
}

static inline struct client *connect_for(struct fake *f, uint32_t connections, uint64_t timeout_ms)
{
    struct client_options o = {.socket_path = f->path, .timeout_ms = timeout_ms, .connections = connections};
    struct err e = {0};
    struct client *c = NULL;
    int r = -ETIMEDOUT;
    for (int i = 0; i < TRIES && is_late(r); i++)
        r = client_new(&o, &c, &e);
    assert_int_equal(r, 0);
    return c;
}

static inline struct client *connect_to(struct fake *f, uint32_t connections)
{
    return connect_for(f, connections, PATIENCE_MS);
}

/* Which gives up after TIMEOUT_MS. */
static inline struct client *connect_in_haste(struct fake *f, uint32_t connections)
{
    return connect_for(f, connections, TIMEOUT_MS);
}

static inline int stat_key(struct client *c, const char *key)
{
    struct wire_stat_req req = {.bucket = SLICE_LIT("b"), .key = slice_str(key)};
    struct wire_stat_rep rep;
    struct err e = {0};
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = client_stat(c, &req, &b, &rep, &e);
    assert_true(r == 0 || e.text[0]);
    return r;
}

static inline void *stat_one(void *arg)
{
    (void)stat_key(arg, "k");
    return NULL;
}

/* Starts it and waits until the node has its request. */
static inline void start_one(struct fake *f, void *(*ask)(void *arg), struct client *c, uint32_t op,
                             pthread_t *ret)
{
    assert_int_equal(pthread_create(ret, NULL, ask, c), 0);
    while (atomic_load(&f->seen[op]) == 0)
        sys->sleep_ns(1000000);
}

/* Whether all threads of the process but this one wait for something, as the kernel says. */
static inline bool others_rest(void)
{
    DIR *tasks = opendir("/proc/self/task");
    bool rest = true;
    assert_non_null(tasks);
    for (const struct dirent *d; rest && (d = readdir(tasks));) {
        char path[300], stat[512] = "";
        (void)snprintf(path, sizeof(path), "/proc/self/task/%s/stat", d->d_name);
        if (d->d_name[0] == '.' || atoi(d->d_name) == gettid())
            continue;
        FILE *file = fopen(path, "r");
        size_t n = file ? fread(stat, 1, sizeof(stat) - 1, file) : 0;
        if (file)
            (void)fclose(file);
        const char *name_end = n > 0 ? strrchr(stat, ')') : NULL;
        rest = !name_end || name_end[2] == 'S';
    }
    (void)closedir(tasks);
    return rest;
}

/* Before a fork: the node's threads are in this process, too, and none of them shall hold a lock, as the
 * allocator's, that nobody gives back in the child. */
static inline void wait_until_others_rest(void)
{
    for (int quiet = 0, i = 0; quiet < 3 && i < 60000; i++) {
        sys->sleep_ns(1000000);
        quiet = others_rest() ? quiet + 1 : 0;
    }
}

static inline int make_dir(struct client *c)
{
    struct wire_mkdir_req req = {.bucket = SLICE_LIT("b"), .key = SLICE_LIT("d")};
    struct wire_mkdir_rep rep;
    struct err e = {0};
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    return client_mkdir(c, &req, &b, &rep, &e);
}

/* What reading says: how many bytes, which are the right ones, or an error. */
static inline ssize_t read_bytes(struct client_file *f, uint64_t offset, size_t n)
{
    struct err e = {0};
    _cleanup_free_ char *p = malloc(n);
    ssize_t got = client_file_pread(f, p, n, offset, &e);
    for (ssize_t i = 0; i < got; i++)
        assert_int_equal(p[i], content(offset + (uint64_t)i));
    return got;
}

static inline void expect_bytes(struct client_file *f, uint64_t offset, size_t n)
{
    assert_int_equal(read_bytes(f, offset, n), offset < BODY_BYTES ? MIN(n, BODY_BYTES - offset) : 0);
}

#define NODE_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
