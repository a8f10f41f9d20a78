/* layer: client */
/* threaded */
/* A client against a node made for the purpose, which drops connections, restarts, hangs and lies as told. */
#include "base/id.h"
#include "base/sys.h"
#include "client/client_file.h"
#include "client/client_lister.h"
#include "client/client_writer.h"
#include "forebay/forebay.h"
#include "net/sock.h"
#include "support/tmpdir.h"

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
#define OPS_MAX         64
#define TIMEOUT_MS      1500
#define BODY_BYTES      300000
#define SECRET          "the secret"

struct fake {
    char *dir;
    char path[256], file[256];
    int listen_fd;
    pthread_t acceptor;
    pthread_t threads[CONNECTIONS_MAX];
    int fds[CONNECTIONS_MAX];
    size_t n_threads;
    atomic_bool stopping;
    _Atomic uint64_t first_handle; /* of this life of the node: handles are first_handle .. */
    _Atomic uint64_t next_handle;
    atomic_int seen[OPS_MAX], cut[OPS_MAX]; /* cut: so many requests of this kind lose their connection */
    atomic_int hang_ms[OPS_MAX];
    atomic_int open_now, open_most;
    atomic_int strangers; /* handles of another life that were used */
    atomic_bool wants_signature, gives_fds, lies;
    _Atomic(const char *) etag;
    struct id128 last_session;
    pthread_mutex_t lock; /* last_session, fds, n_threads */
};

static char content(uint64_t offset)
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

static void answer(struct conn *c, const struct wire_header *h, int status, const void *rep, int pass_fd)
{
    _cleanup_buf_ struct buf b = BUF_INIT(WIRE_BODY_MAX_BYTES);
    if (status < 0)
        assert_int_equal(wire_error_encode(slice_str("as told"), &b), 0);
    else
        assert_int_equal(wire_op_info(h->op)->encode_rep(rep, &b), 0);
    uint64_t id = atomic_load(&c->f->lies) ? h->request_id + 1 : h->request_id;
    (void)wire_send(c->fd, h->op, WIRE_FLAG_REPLY, id, status, buf_view(&b), pass_fd);
}

static bool signature_is_right(const struct conn *c, const struct wire_hello_req *q)
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

static void do_hello(struct conn *c, const struct wire_header *h, const struct wire_hello_req *q)
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

static bool is_ours(struct fake *f, uint64_t handle)
{
    bool ours = handle >= atomic_load(&f->first_handle) && handle < atomic_load(&f->next_handle);
    if (!ours)
        (void)atomic_fetch_add(&f->strangers, 1);
    return ours;
}

static void do_open(struct conn *c, const struct wire_header *h, const struct wire_open_req *q)
{
    struct fake *f = c->f;
    const char *etag = atomic_load(&f->etag);
    struct wire_open_rep rep = {
        .handle = atomic_fetch_add(&f->next_handle, 1),
        .attr = {.kind = WIRE_FILE, .size_bytes = BODY_BYTES, .etag = slice_str(etag)},
        .state = atomic_load(&f->gives_fds) ? WIRE_PARTIAL : WIRE_UNCACHED};
    if (q->if_match.n > 0 && !slice_eq_str(q->if_match, etag)) {
        answer(c, h, ERR_PRECONDITION, NULL, -1);
        return;
    }
    _cleanup_close_ int fd = atomic_load(&f->gives_fds) ? open(f->file, O_RDONLY | O_CLOEXEC) : -1;
    answer(c, h, 0, &rep, fd);
}

static void do_fetch(struct conn *c, const struct wire_header *h, const struct wire_fetch_req *q)
{
    static const uint64_t piece = 70000;
    struct wire_fetch_rep rep = {.state = WIRE_PARTIAL};
    if (!is_ours(c->f, q->handle)) {
        answer(c, h, -EBADF, NULL, -1);
        return;
    }
    uint64_t n = q->offset < BODY_BYTES ? MIN(MIN(q->n, piece), BODY_BYTES - q->offset) : 0;
    _cleanup_free_ char *bytes = malloc(n + 1);
    for (uint64_t i = 0; i < n; i++)
        bytes[i] = content(q->offset + i);
    if (q->flags & WIRE_INLINE)
        rep.data = slice_of(bytes, n);
    else
        rep.available = n;
    answer(c, h, 0, &rep, -1);
}

static void do_list(struct conn *c, const struct wire_header *h, const struct wire_list_req *q)
{
    _cleanup_buf_ struct buf b = BUF_INIT(KIB);
    struct wire_entry a = {.key = SLICE_LIT("a"), .attr = {.kind = WIRE_FILE}}, z = {.key = SLICE_LIT("z")};
    bool first = q->after.n == 0;
    assert_int_equal(wire_entry_encode(first ? &a : &z, &b), 0);
    struct wire_list_rep rep = {
        .entries = buf_view(&b), .n_entries = 1, .truncated = first, .next = SLICE_LIT("a")};
    if (slice_eq_str(q->bucket, "stuck"))
        rep.truncated = true;
    if (slice_eq_str(q->bucket, "broken"))
        rep.entries.n--;
    answer(c, h, 0, &rep, -1);
}

static void do_put(struct conn *c, const struct wire_header *h, const void *req)
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

static void run(struct conn *c, const struct wire_header *h, const void *req)
{
    struct wire_challenge_rep challenge = {.nonce = slice_of(c->nonce, sizeof(c->nonce))};
    struct wire_stat_rep stat_rep = {.attr = {.kind = WIRE_FILE, .size_bytes = 7}};
    struct wire_mkdir_rep mkdir_rep = {.attr = {.kind = WIRE_DIRECTORY}};
    struct wire_copy_rep copy_rep = {.attr = {.kind = WIRE_FILE}};
    struct wire_close_rep close_rep = {0};
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
        if (slice_eq_str(((const struct wire_stat_req *)req)->key, "absent"))
            answer(c, h, -ENOENT, NULL, -1);
        else
            answer(c, h, 0, &stat_rep, -1);
        break;
    case WIRE_OP_LIST:
        do_list(c, h, req);
        break;
    case WIRE_OP_OPEN:
        do_open(c, h, req);
        break;
    case WIRE_OP_FETCH:
        do_fetch(c, h, req);
        break;
    case WIRE_OP_MKDIR:
        answer(c, h, 0, &mkdir_rep, -1);
        break;
    case WIRE_OP_COPY:
        answer(c, h, 0, &copy_rep, -1);
        break;
    case WIRE_OP_CLOSE:
        (void)is_ours(c->f, ((const struct wire_close_req *)req)->handle);
        answer(c, h, 0, &close_rep, -1);
        break;
    default:
        do_put(c, h, req);
    }
}

/* Whether this request shall lose its connection. */
static bool is_cut(struct fake *f, uint32_t op)
{
    int left = atomic_load(&f->cut[op]);
    while (left > 0)
        if (atomic_compare_exchange_weak(&f->cut[op], &left, left - 1))
            return true;
    return false;
}

static void count_open(struct fake *f, int by)
{
    int now = atomic_fetch_add(&f->open_now, by) + by, most = atomic_load(&f->open_most);
    while (now > most && !atomic_compare_exchange_weak(&f->open_most, &most, now))
        ;
}

static void *serve(void *arg)
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
        if (is_cut(f, h.op))
            break;
        for (int ms = 0; ms < atomic_load(&f->hang_ms[h.op]) && !atomic_load(&f->stopping); ms += 10)
            sys->sleep_ns(10000000);
        run(c, &h, req);
    }
    count_open(f, -1);
    (void)shutdown(c->fd, SHUT_RDWR);
    free(c);
    return NULL;
}

static void *accept_all(void *arg)
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

static void fake_start(struct fake *f)
{
    struct err e = {0};
    atomic_store(&f->stopping, false);
    assert_int_equal(sock_listen_unix(f->path, 64, &f->listen_fd, &e), 0);
    assert_int_equal(pthread_create(&f->acceptor, NULL, accept_all, f), 0);
}

/* As a kill: every connection ends, and no handle is known to the next life. */
static void fake_stop(struct fake *f)
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
    atomic_store(&f->next_handle, atomic_load(&f->next_handle) + 1000);
    atomic_store(&f->first_handle, atomic_load(&f->next_handle));
}

static int setup(void **state)
{
    struct fake *f = calloc(1, sizeof(*f));
    f->dir = tmpdir_new();
    (void)snprintf(f->path, sizeof(f->path), "%s/run/s.sock", f->dir);
    (void)snprintf(f->file, sizeof(f->file), "%s/extent", f->dir);
    _cleanup_free_ char *bytes = malloc(BODY_BYTES);
    for (uint64_t i = 0; i < BODY_BYTES; i++)
        bytes[i] = content(i);
    assert_int_equal(sys_write_file_atomic(f->file, bytes, BODY_BYTES, 0600), 0);
    (void)pthread_mutex_init(&f->lock, NULL);
    atomic_store(&f->next_handle, 1);
    atomic_store(&f->first_handle, 1);
    atomic_store(&f->etag, "v1");
    fake_start(f);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fake *f = *state;
    fake_stop(f);
    assert_int_equal(atomic_load(&f->strangers), 0); /* in no test may a handle meet another session */
    tmpdir_free(f->dir);
    (void)pthread_mutex_destroy(&f->lock);
    free(f);
    return 0;
}

static struct client *connect_to(struct fake *f, uint32_t connections)
{
    struct client_options o = {.socket_path = f->path, .timeout_ms = TIMEOUT_MS, .connections = connections};
    struct err e = {0};
    struct client *c = NULL;
    assert_int_equal(client_new(&o, &c, &e), 0);
    return c;
}

static int stat_key(struct client *c, const char *key)
{
    struct wire_stat_req req = {.bucket = SLICE_LIT("b"), .key = slice_str(key)};
    struct wire_stat_rep rep;
    struct err e = {0};
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = client_stat(c, &req, &b, &rep, &e);
    assert_true(r == 0 || e.text[0]);
    return r;
}

static int make_dir(struct client *c)
{
    struct wire_mkdir_req req = {.bucket = SLICE_LIT("b"), .key = SLICE_LIT("d")};
    struct wire_mkdir_rep rep;
    struct err e = {0};
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    return client_mkdir(c, &req, &b, &rep, &e);
}

static void expect_bytes(struct client_file *f, uint64_t offset, size_t n)
{
    struct err e = {0};
    _cleanup_free_ char *p = malloc(n);
    ssize_t got = client_file_pread(f, p, n, offset, &e);
    assert_int_equal(got, offset < BODY_BYTES ? MIN(n, BODY_BYTES - offset) : 0);
    for (ssize_t i = 0; i < got; i++)
        assert_int_equal(p[i], content(offset + (uint64_t)i));
}

/* ---- tests ---- */

/* Nothing says where the node is; the place is too long; nobody is there: told at once, each in its way. */
static void test_where_is_the_node(void **state)
{
    struct fake *f = *state;
    struct err e = {0};
    struct client *c = NULL;
    (void)unsetenv("FOREBAY_SOCKET");
    (void)unsetenv("FOREBAY_DATA");
    (void)unsetenv("FOREBAY_ENDPOINT");
    struct client_options o = {.timeout_ms = TIMEOUT_MS};
    assert_int_equal(client_new(&o, &c, &e), ERR_BAD_OPTION);
    assert_non_null(strstr(e.text, "FOREBAY_SOCKET"));
    char place[300];
    memset(place, 'x', sizeof(place) - 1);
    place[sizeof(place) - 1] = '\0';
    o.socket_path = place;
    assert_int_equal(client_new(&o, &c, &e), ERR_BAD_OPTION);
    o.socket_path = "/nonexistent/socket";
    assert_int_equal(client_new(&o, &c, &e), -ENOENT);
    assert_non_null(strstr(e.text, "/nonexistent/socket"));
    o.socket_path = NULL;
    (void)setenv("FOREBAY_SOCKET", f->path, 1);
    assert_int_equal(client_new(&o, &c, &e), 0);
    assert_non_null(strstr(client_address(c), f->path));
    client_free(c);
    (void)unsetenv("FOREBAY_SOCKET");
}

/* The signature is over the nonce and the session; wrong or missing credentials are told, not tried again. */
static void test_credentials(void **state)
{
    struct fake *f = *state;
    struct err e = {0};
    struct client *c = NULL;
    atomic_store(&f->wants_signature, true);
    struct client_options o = {.socket_path = f->path, .timeout_ms = TIMEOUT_MS};
    assert_int_equal(client_new(&o, &c, &e), ERR_UNAUTHENTICATED);
    o.access_key = "the key";
    o.secret_key = "wrong";
    assert_int_equal(client_new(&o, &c, &e), ERR_UNAUTHENTICATED);
    o.secret_key = SECRET;
    assert_int_equal(client_new(&o, &c, &e), 0);
    assert_int_equal(stat_key(c, "k"), 0);
    client_free(c);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_HELLO]), 3);
}

/* The keys of a data directory's credentials file are used. */
static void test_credentials_file(void **state)
{
    struct fake *f = *state;
    struct err e = {0};
    struct client *c = NULL;
    char path[256], from[256];
    static const char text[] =
        "# made at the first start\nFOREBAY_ACCESS_KEY=the key\nFOREBAY_SECRET_KEY=" SECRET "\n";
    atomic_store(&f->wants_signature, true);
    (void)snprintf(path, sizeof(path), "%s/credentials", f->dir);
    assert_int_equal(sys_write_file_atomic(path, text, strlen(text), 0600), 0);
    (void)snprintf(from, sizeof(from), "%s/run/forebay.sock", f->dir);
    assert_int_equal(symlink(f->path, from), 0);
    struct client_options o = {.data_dir = f->dir, .timeout_ms = TIMEOUT_MS};
    assert_int_equal(client_new(&o, &c, &e), 0);
    client_free(c);
}

/* The node's word about an object comes through as it is, and costs one request. */
static void test_answers(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_to(f, 0);
    assert_int_equal(stat_key(c, "absent"), -ENOENT);
    assert_int_equal(stat_key(c, "there"), 0);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_STAT]), 2);
}

/* A question whose connection broke is asked again, as often as it takes. */
static void test_questions_are_repeated(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_to(f, 0);
    atomic_store(&f->cut[WIRE_OP_STAT], 3);
    assert_int_equal(stat_key(c, "k"), 0);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_STAT]), 4);
}

/* A change whose connection broke after it was sent is never sent twice: the caller is told that nobody
 * knows. */
static void test_changes_are_not_repeated(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_to(f, 0);
    atomic_store(&f->cut[WIRE_OP_MKDIR], 1);
    assert_int_equal(make_dir(c), -EIO);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_MKDIR]), 1);
    assert_int_equal(make_dir(c), 0);
}

/* A job whose start may have been seen is not started a second time. */
static void test_jobs_are_not_started_twice(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_to(f, 0);
    struct wire_job_start_req req = {.kind = SLICE_LIT("copy")};
    struct wire_job_start_rep rep;
    struct err e = {0};
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    atomic_store(&f->cut[WIRE_OP_JOB_START], 1);
    assert_int_equal(client_job_start(c, &req, &b, &rep, &e), -EIO);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_JOB_START]), 1);
}

/* A restart is noticed before an idle connection is used: even a change gets through. */
static void test_restart_between_calls(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_to(f, 0);
    assert_int_equal(stat_key(c, "k"), 0);
    uint64_t epoch = client_epoch(c);
    struct id128 before = f->last_session;
    fake_stop(f);
    fake_start(f);
    assert_int_equal(make_dir(c), 0);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_MKDIR]), 1);
    assert_true(client_epoch(c) > epoch);
    assert_false(id_eq(before, f->last_session));
}

/* While the node is down a call waits for the timeout and then says so, never "no such file". */
static void test_node_down(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_to(f, 0);
    fake_stop(f);
    assert_int_equal(stat_key(c, "k"), -EHOSTDOWN);
    assert_int_equal(unlink(f->path), 0);
    assert_int_equal(stat_key(c, "k"), -EHOSTDOWN);
    fake_start(f);
    assert_int_equal(stat_key(c, "k"), 0);
}

/* A node that accepts nobody and whose queue is full costs the timeout, not for ever. */
static void test_node_that_does_not_accept(void **state)
{
    struct fake *f = *state;
    struct err e = {0};
    struct client *c = NULL;
    char path[300];
    int listening;
    (void)snprintf(path, sizeof(path), "%s/run/deaf.sock", f->dir);
    assert_int_equal(sock_listen_unix(path, /* backlog= */ 0, &listening, &e), 0);
    struct client_options o = {.socket_path = path, .timeout_ms = 200};
    for (int i = 0; i < 3; i++)
        assert_int_equal(client_new(&o, &c, &e), -ETIMEDOUT);
    (void)close(listening);
}

/* A node that takes a request and never answers costs the timeout, not for ever. */
static void test_hanging_node(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_to(f, 0);
    atomic_store(&f->hang_ms[WIRE_OP_STAT], 3600000);
    assert_int_equal(stat_key(c, "k"), -ETIMEDOUT);
}

/* A long operation may take longer than the timeout, as long as the node answers others. */
static void test_long_operation(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_to(f, 0);
    struct wire_copy_req req = {.bucket = SLICE_LIT("b"), .from = SLICE_LIT("a"), .to = SLICE_LIT("z")};
    struct wire_copy_rep rep;
    struct err e = {0};
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    atomic_store(&f->hang_ms[WIRE_OP_COPY], 2 * TIMEOUT_MS + TIMEOUT_MS / 2);
    assert_int_equal(client_copy(c, &req, &b, &rep, &e), 0);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_COPY]), 1);
    atomic_store(&f->hang_ms[WIRE_OP_COPY], 3600000);
    atomic_store(&f->hang_ms[WIRE_OP_HELLO], 3600000);
    assert_int_equal(client_copy(c, &req, &b, &rep, &e), -ETIMEDOUT);
}

/* A reply to another request is not taken. */
static void test_lying_node(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_to(f, 0);
    atomic_store(&f->lies, true);
    assert_int_equal(make_dir(c), -EIO);
    assert_int_not_equal(stat_key(c, "k"), 0);
    atomic_store(&f->lies, false);
    assert_int_equal(stat_key(c, "k"), 0);
}

static void *many_stats(void *arg)
{
    for (int i = 0; i < 100; i++)
        assert_int_equal(stat_key(arg, "k"), 0);
    return NULL;
}

/* What a process that was forked does with its parent's client: 0 when all is well. No assertions, which
 * would go on with the other tests here. */
static int use_inherited(struct client *c, struct client_file *file, uint64_t epoch_of_parent)
{
    struct err e = {0};
    char p[100];
    if (stat_key(c, "absent") != -ENOENT || client_epoch(c) == epoch_of_parent)
        return 1;
    if (client_file_pread(file, p, sizeof(p), 5000, &e) != (ssize_t)sizeof(p) || p[0] != content(5000))
        return 2;
    client_file_close(file);
    client_free(c);
    return 0;
}

/* A child uses connections of its own, on which it reads on what was open; it closes nothing of its parent.
 */
static void test_fork(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_to(f, 1);
    struct client_file_open o = {.bucket = SLICE_LIT("b"), .key = SLICE_LIT("k")};
    struct client_file *file;
    struct err e = {0};
    assert_int_equal(client_file_open(c, &o, &file, &e), 0);
    expect_bytes(file, 0, 1000);
    uint64_t epoch = client_epoch(c);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(use_inherited(c, file, epoch));
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_HELLO]), 2);
    assert_int_equal(client_epoch(c), epoch);
    expect_bytes(file, 1000, 1000);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_OPEN]), 2); /* the child's, not the parent's again */
    client_file_close(file);
}

/* Eight threads share two connections. */
static void test_pool_is_bounded(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_to(f, 2);
    pthread_t threads[8];
    for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, many_stats, c), 0);
    for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
        (void)pthread_join(threads[i], NULL);
    assert_in_range(atomic_load(&f->open_most), 1, 2);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_STAT]), 800);
}

/* Bytes inline and bytes by descriptor: every range, and nothing beyond the end. */
static void test_file_reads(void **state)
{
    struct fake *f = *state;
    for (int gives_fds = 0; gives_fds < 2; gives_fds++) {
        atomic_store(&f->gives_fds, gives_fds == 1);
        struct client *c = connect_to(f, 0);
        struct client_file_open o = {.bucket = SLICE_LIT("b"), .key = SLICE_LIT("k")};
        struct client_file *file;
        struct err e = {0};
        assert_int_equal(client_file_open(c, &o, &file, &e), 0);
        assert_int_equal(client_file_attr(file)->size_bytes, BODY_BYTES);
        for (uint64_t at = 0; at < BODY_BYTES; at += 999)
            expect_bytes(file, at, 999);
        expect_bytes(file, 5, BODY_BYTES);
        expect_bytes(file, BODY_BYTES - 1, 10);
        expect_bytes(file, BODY_BYTES, 10);
        expect_bytes(file, UINT64_MAX, 10);
        client_file_close(file);
        client_free(c);
    }
}

/* A sequential reader of small pieces asks rarely where it has the descriptor. */
static void test_sequential_reads_ask_rarely(void **state)
{
    struct fake *f = *state;
    atomic_store(&f->gives_fds, true);
    _cleanup_(client_freep) struct client *c = connect_to(f, 0);
    struct client_file_open o = {.bucket = SLICE_LIT("b"), .key = SLICE_LIT("k")};
    struct client_file *file;
    struct err e = {0};
    assert_int_equal(client_file_open(c, &o, &file, &e), 0);
    for (uint64_t at = 0; at < BODY_BYTES; at += 1000)
        expect_bytes(file, at, 1000);
    client_file_close(file);
    assert_in_range(atomic_load(&f->seen[WIRE_OP_FETCH]), 1, 10);
}

/* After a restart the file is opened again with the ETag it had, and reads on. */
static void test_file_survives_a_restart(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_to(f, 0);
    struct client_file_open o = {.bucket = SLICE_LIT("b"), .key = SLICE_LIT("k")};
    struct client_file *file;
    struct err e = {0};
    assert_int_equal(client_file_open(c, &o, &file, &e), 0);
    for (int i = 0; i < 3; i++) {
        expect_bytes(file, 1000, 5000);
        fake_stop(f);
        fake_start(f);
    }
    atomic_store(&f->cut[WIRE_OP_FETCH], 1);
    expect_bytes(file, 100, 200000);
    client_file_close(file);
}

/* When the object is another one by then, every later read says so. */
static void test_file_whose_version_is_gone(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_to(f, 0);
    struct client_file_open o = {.bucket = SLICE_LIT("b"), .key = SLICE_LIT("k")};
    struct client_file *file;
    struct err e = {0};
    char p[10];
    assert_int_equal(client_file_open(c, &o, &file, &e), 0);
    fake_stop(f);
    atomic_store(&f->etag, "v2");
    fake_start(f);
    assert_int_equal(client_file_pread(file, p, sizeof(p), 0, &e), -ESTALE);
    atomic_store(&f->etag, "v1");
    assert_int_equal(client_file_pread(file, p, sizeof(p), 0, &e), -ESTALE);
    client_file_close(file);
}

struct reading {
    struct client_file *file;
    atomic_bool stop;
};

static void *read_on(void *arg)
{
    struct reading *r = arg;
    for (uint64_t i = 0; !atomic_load(&r->stop); i++)
        expect_bytes(r->file, i * 7919 % BODY_BYTES, 3000);
    return NULL;
}

/* Four threads read one file while the node is restarted: right bytes only, and no old handle in a new
 * session. */
static void test_restarts_under_readers(void **state)
{
    struct fake *f = *state;
    atomic_store(&f->gives_fds, true);
    _cleanup_(client_freep) struct client *c = connect_to(f, 0);
    struct client_file_open o = {.bucket = SLICE_LIT("b"), .key = SLICE_LIT("k")};
    struct reading reading = {0};
    struct err e = {0};
    pthread_t threads[4];
    assert_int_equal(client_file_open(c, &o, &reading.file, &e), 0);
    for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, read_on, &reading), 0);
    for (int i = 0; i < 5; i++) {
        sys->sleep_ns(50000000);
        fake_stop(f);
        fake_start(f);
    }
    atomic_store(&reading.stop, true);
    for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
        (void)pthread_join(threads[i], NULL);
    client_file_close(reading.file);
}

/* A writer commits what it wrote; after a restart it fails for good, because the node's part is gone. */
static void test_writer(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_to(f, 0);
    struct client_writer_open o = {.bucket = SLICE_LIT("b"), .key = SLICE_LIT("k"), .size_bytes = 3};
    struct client_writer *w;
    const struct client_attr *attr;
    struct err e = {0};
    assert_int_equal(client_writer_open(c, &o, &w, &e), 0);
    assert_int_equal(client_writer_write(w, "ab", 2, &e), 0);
    assert_int_equal(client_writer_commit(w, &attr, &e), -EINVAL); /* fewer bytes than announced */
    client_writer_free(w);
    assert_int_equal(client_writer_open(c, &o, &w, &e), 0);
    assert_int_equal(client_writer_write(w, "abc", 3, &e), 0);
    assert_int_equal(client_writer_commit(w, &attr, &e), 0);
    assert_string_equal(attr->etag, "new");
    client_writer_free(w);
    assert_int_equal(client_writer_open(c, &o, &w, &e), 0);
    assert_int_equal(client_writer_write(w, "ab", 2, &e), 0);
    fake_stop(f);
    fake_start(f);
    assert_int_equal(client_writer_write(w, "c", 1, &e), -EIO);
    assert_int_equal(client_writer_commit(w, &attr, &e), -EIO);
    client_writer_free(w);
}

static int list_all(struct client *c, const char *bucket, size_t *ret_n)
{
    struct client_lister_open o = {.bucket = slice_str(bucket)};
    _cleanup_(client_lister_freep) struct client_lister *l = client_lister_new(c, &o);
    struct wire_entry entry;
    struct err e = {0};
    int r;
    *ret_n = 0;
    while ((r = client_lister_next(l, &entry, &e)) == 1 && *ret_n < 100)
        (*ret_n)++;
    return r;
}

/* Pages follow each other; a listing that stands still or breaks off is an error, not a loop. */
static void test_lister(void **state)
{
    struct fake *f = *state;
    _cleanup_(client_freep) struct client *c = connect_to(f, 0);
    size_t n;
    assert_int_equal(list_all(c, "b", &n), 0);
    assert_int_equal(n, 2);
    assert_int_equal(list_all(c, "stuck", &n), ERR_PROTOCOL);
    assert_int_equal(list_all(c, "broken", &n), ERR_PROTOCOL);
}

/* ---- the public interface ---- */

struct source {
    const char *text;
    size_t at;
};

/* Two bytes at a time, and -EXDEV after the text's '!'. */
static ssize_t give(void *arg, void *p, size_t n)
{
    struct source *s = arg;
    size_t left = strlen(s->text) - s->at, some = MIN(MIN(n, left), (size_t)2);
    if (left > 0 && s->text[s->at] == '!')
        return -EXDEV;
    memcpy(p, s->text + s->at, some);
    s->at += some;
    return (ssize_t)some;
}

/* Names, reading by position and by offset, whole objects, listings: results, and an error's text per thread.
 */
static void test_public_interface(void **state)
{
    struct fake *f = *state;
    struct forebay_options o = {.socket_path = f->path, .timeout_ms = TIMEOUT_MS};
    struct forebay *node;
    struct forebay_stat st;
    struct forebay_file *file;
    char p[5000];
    assert_int_equal(forebay_connect(&o, &node), 0);
    assert_string_equal(forebay_error(), "");
    assert_int_equal(forebay_stat(node, "b", "there", &st), 0);
    assert_int_equal(st.size_bytes, 7);
    assert_int_equal(forebay_stat(node, "b", "absent", &st), -ENOENT);
    assert_string_equal(forebay_error(), "as told");
    assert_string_equal(forebay_error_name(-ENOENT), "ENOENT");
    assert_int_equal(forebay_open(node, "b", "k", &file), 0);
    assert_string_equal(forebay_error(), "");
    for (uint64_t at = 0; at < 3 * sizeof(p); at += sizeof(p)) {
        assert_int_equal(forebay_read(file, p, sizeof(p)), sizeof(p));
        assert_int_equal(p[17], content(at + 17));
    }
    assert_int_equal(forebay_pread(file, p, sizeof(p), BODY_BYTES - 3), 3);
    assert_int_equal(p[2], content(BODY_BYTES - 1));
    assert_int_equal(forebay_fstat(file, &st), 0);
    assert_int_equal(st.size_bytes, BODY_BYTES);
    assert_string_equal(st.etag, "v1");
    forebay_close(file);
    forebay_close(NULL);
    assert_int_equal(forebay_put(node, "b", "k", "abc", 3, NULL, &st), 0);
    assert_string_equal(st.etag, "new");
    assert_int_equal(forebay_copy(node, "b", "k", "l"), 0);
    forebay_disconnect(node);
    forebay_disconnect(NULL);
    o.socket_path = "/nonexistent/socket";
    assert_int_equal(forebay_connect(&o, &node), -ENOENT);
    assert_non_null(strstr(forebay_error(), "/nonexistent/socket"));
}

/* A source gives its bytes piece by piece; what it fails with is what the caller gets, and nothing is
 * committed. */
static void test_public_put_from(void **state)
{
    struct fake *f = *state;
    struct forebay_options o = {.socket_path = f->path, .timeout_ms = TIMEOUT_MS};
    struct forebay *node;
    struct source good = {.text = "abcde"}, bad = {.text = "ab!"};
    assert_int_equal(forebay_connect(&o, &node), 0);
    assert_int_equal(forebay_put_from(node, "b", "k", 5, give, &good, NULL, NULL), 0);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_PUT_WRITE]), 3);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_PUT_COMMIT]), 1);
    assert_int_equal(forebay_put_from(node, "b", "k", UINT64_MAX, give, &bad, NULL, NULL), -EXDEV);
    good.at = 0;
    assert_int_equal(forebay_put_from(node, "b", "k", 9, give, &good, NULL, NULL), -EINVAL);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_PUT_COMMIT]), 1);
    assert_int_equal(atomic_load(&f->seen[WIRE_OP_PUT_ABORT]), 2);
    forebay_disconnect(node);
}

/* A listing is walked to its end and keeps its keys apart. */
static void test_public_listing(void **state)
{
    struct fake *f = *state;
    struct forebay_options o = {.socket_path = f->path, .timeout_ms = TIMEOUT_MS};
    struct forebay *node;
    struct forebay_listing *l;
    const char *key;
    assert_int_equal(forebay_connect(&o, &node), 0);
    assert_int_equal(forebay_list(node, "b", "", 0, &l), 0);
    assert_int_equal(forebay_list_next(l, &key, NULL), 1);
    assert_string_equal(key, "a");
    assert_int_equal(forebay_list_next(l, &key, NULL), 1);
    assert_string_equal(key, "z");
    assert_int_equal(forebay_list_next(l, &key, NULL), 0);
    forebay_list_close(l);
    assert_int_equal(forebay_list(node, "broken", "", 0, &l), 0);
    assert_int_equal(forebay_list_next(l, &key, NULL), ERR_PROTOCOL);
    forebay_list_close(l);
    forebay_list_close(NULL);
    forebay_disconnect(node);
}

#define NODE_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        NODE_TEST(test_where_is_the_node),
        NODE_TEST(test_credentials),
        NODE_TEST(test_credentials_file),
        NODE_TEST(test_answers),
        NODE_TEST(test_questions_are_repeated),
        NODE_TEST(test_changes_are_not_repeated),
        NODE_TEST(test_jobs_are_not_started_twice),
        NODE_TEST(test_restart_between_calls),
        NODE_TEST(test_node_down),
        NODE_TEST(test_node_that_does_not_accept),
        NODE_TEST(test_hanging_node),
        NODE_TEST(test_long_operation),
        NODE_TEST(test_lying_node),
        NODE_TEST(test_fork),
        NODE_TEST(test_pool_is_bounded),
        NODE_TEST(test_file_reads),
        NODE_TEST(test_sequential_reads_ask_rarely),
        NODE_TEST(test_file_survives_a_restart),
        NODE_TEST(test_file_whose_version_is_gone),
        NODE_TEST(test_restarts_under_readers),
        NODE_TEST(test_writer),
        NODE_TEST(test_lister),
        NODE_TEST(test_public_interface),
        NODE_TEST(test_public_put_from),
        NODE_TEST(test_public_listing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
