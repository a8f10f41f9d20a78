/* layer: server */
/* threaded */
/* The front end over real sockets with handlers of the test's own: no slow client holds a thread, requests
 * keep their order, limits hold, draining waits, and the wire protocol lets nobody in who may not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/crc32c.h"
#include "base/sys.h"
#include "net/sock.h"
#include "server/front.h"
#include "support/tmpdir.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

enum { FILE_BYTES = 8 * 1024 * 1024 };

struct fixture {
    struct front *front;
    struct budget *buffers;
    char *dir, *socket_path;
    char http[128], wire[128];
    int file;
    char *file_bytes;
    atomic_int tails_done, running, sessions_open, sessions_made;
    char opened_by[32];          /* access key of the last session */
    atomic_bool refuse_sessions; /* as if the key had been revoked since it was checked */
    struct lock lock;
    struct cond cond;
    bool gate_open; /* /gate requests wait for it; `lock` */
};

/* ---- the handlers ---- */

static void on_tail_done(void *arg, uint64_t sent, bool whole)
{
    struct fixture *f = arg;
    atomic_fetch_add(&f->tails_done, 1);
}

static void wait_for_gate(struct fixture *f)
{
    atomic_fetch_add(&f->running, 1);
    lock_take(&f->lock);
    while (!f->gate_open)
        cond_wait(&f->cond, &f->lock);
    lock_drop(&f->lock);
    atomic_fetch_sub(&f->running, 1);
}

static void open_gate(struct fixture *f)
{
    LOCK_SCOPE(&f->lock);
    f->gate_open = true;
    cond_broadcast(&f->cond);
}

static void close_gate(struct fixture *f)
{
    LOCK_SCOPE(&f->lock);
    f->gate_open = false;
}

/* /file: the file as a tail; /gate: waits for the gate; anything else: its own path, and the body's length.
 */
static void on_http(struct http_conn *c, void *arg)
{
    struct fixture *f = arg;
    const struct http_request *r = http_conn_request(c);
    if (slice_eq_str(r->raw_path, "/file")) {
        (void)http_conn_head(c, 200, SLICE_NULL, FILE_BYTES);
        http_conn_tail(c,
                       &(struct http_tail){.fd = f->file, .n = FILE_BYTES, .done = on_tail_done, .arg = f});
        return;
    }
    if (slice_eq_str(r->raw_path, "/gate"))
        wait_for_gate(f);
    char part[4096];
    ssize_t k;
    size_t n = 0;
    while ((k = http_conn_read(c, part, sizeof(part))) > 0)
        n += (size_t)k;
    char *body = arena_printf(http_conn_arena(c), SLICE_FMT " %zu", SLICE_ARG(r->target), n);
    (void)http_conn_reply(c, 200, SLICE_NULL, slice_str(body));
}

static bool is_express(const struct http_request *r)
{
    return slice_eq_str(r->raw_path, "/express");
}

static void *on_session_open(void *arg, enum wire_via via, struct slice key)
{
    struct fixture *f = arg;
    (void)snprintf(f->opened_by, sizeof(f->opened_by), SLICE_FMT, SLICE_ARG(key));
    if (f->refuse_sessions)
        return NULL;
    atomic_fetch_add(&f->sessions_open, 1);
    atomic_fetch_add(&f->sessions_made, 1);
    return f;
}

static int on_secret(void *arg, struct slice key, struct buf *ret_secret)
{
    return slice_eq_str(key, "USER") ? buf_str(ret_secret, "USERSECRET") : -ENOENT;
}

static void on_session_close(void *session)
{
    struct fixture *f = session;
    atomic_fetch_sub(&f->sessions_open, 1);
}

/* STAT tells the length of the key; OPEN gives the file's descriptor; FETCH gives bytes; the rest fails. */
static int on_session_call(void *session, uint32_t op, const void *req, struct arena *a, void *rep,
                           struct err *e)
{
    struct fixture *f = session;
    if (op == WIRE_OP_STAT) {
        const struct wire_stat_req *q = req;
        ((struct wire_stat_rep *)rep)->attr = (struct wire_attr){.kind = WIRE_FILE, .size_bytes = q->key.n};
        return 0;
    }
    if (op == WIRE_OP_OPEN) {
        ((struct wire_open_rep *)rep)->fd = f->file;
        return 0;
    }
    if (op == WIRE_OP_FETCH) {
        const struct wire_fetch_req *q = req;
        char *p = arena_alloc(a, q->n);
        memset(p, 'f', q->n);
        ((struct wire_fetch_rep *)rep)->data = slice_of(p, q->n);
        return 0;
    }
    if (op == WIRE_OP_PUT_WRITE)
        return 0;
    return err_set(e, -ENOENT, "nothing there");
}

/* ---- set up ---- */

static const char access_key[] = "ACCESS", secret_key[] = "SECRET";

static struct fixture *start(const struct front_config *changes)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct err e = {0};
    struct front_config config = *changes;
    lock_init(&f->lock, LOCK_LEAF);
    cond_init(&f->cond);
    f->dir = tmpdir_new();
    f->socket_path = tmpdir_path(f->dir, "run/s.sock");
    char *path = tmpdir_path(f->dir, "file");
    f->file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    f->file_bytes = malloc(FILE_BYTES);
    for (size_t i = 0; i < FILE_BYTES; i++)
        f->file_bytes[i] = (char)(i * 13 + i / 8191);
    assert_int_equal(write(f->file, f->file_bytes, FILE_BYTES), FILE_BYTES);
    free(path);
    f->buffers = budget_new(32 * MIB);
    config.max_connections = config.max_connections ? config.max_connections : 1000;
    config.threads = config.threads ? config.threads : 4;
    config.request_timeout_ms = config.request_timeout_ms ? config.request_timeout_ms : 10000;
    config.idle_timeout_ms = config.idle_timeout_ms ? config.idle_timeout_ms : 60000;
    config.heads_bytes = config.heads_bytes ? config.heads_bytes : MIB;
    config.buffers = f->buffers;
    config.http = on_http;
    config.http_arg = f;
    config.express = is_express;
    config.sessions =
        (struct front_sessions){on_session_open, on_session_close, on_secret, on_session_call, NULL, f};
    config.access_key = access_key;
    config.secret_key = secret_key;
    config.node_id = "node";
    int http, wire, local;
    assert_int_equal(front_start(&config, &f->front, &e), 0);
    assert_int_equal(sock_listen_tcp("127.0.0.1:0", 128, &http, f->http, &e), 0);
    assert_int_equal(sock_listen_tcp("127.0.0.1:0", 128, &wire, f->wire, &e), 0);
    assert_int_equal(sock_listen_unix(f->socket_path, 128, &local, &e), 0);
    assert_int_equal(front_listen(f->front, http, CONN_HTTP, &e), 0);
    assert_int_equal(front_listen(f->front, wire, CONN_WIRE, &e), 0);
    assert_int_equal(front_listen(f->front, local, CONN_UNIX, &e), 0);
    return f;
}

static void stop(struct fixture *f)
{
    open_gate(f);
    front_stop(f->front);
    front_free(f->front);
    assert_int_equal(atomic_load(&f->sessions_open), 0);
    assert_int_equal(budget_used(f->buffers), 0);
    budget_free(f->buffers);
    (void)close(f->file);
    free(f->file_bytes);
    free(f->socket_path);
    tmpdir_free(f->dir);
    cond_fini(&f->cond);
    lock_fini(&f->lock);
    free(f);
}

/* ---- clients ---- */

static int dial(const char *address)
{
    int fd;
    struct err e = {0};
    assert_int_equal(sock_connect_tcp(address, 5000, &fd, &e), 0);
    assert_int_equal(sock_set_timeouts(fd, 10000, 10000), 0);
    return fd;
}

static void say(int fd, const char *text)
{
    assert_int_equal(sock_send_all(fd, text, strlen(text), 0), 0);
}

/* One answer: its status, and its body into b. -1: the connection ended before one. */
static int answer(int fd, struct buf *b)
{
    char head[4096];
    size_t n = 0;
    while (n < 4 || memcmp(head + n - 4, "\r\n\r\n", 4) != 0) {
        assert_true(n < sizeof(head) - 1);
        if (sock_recv_all(fd, head + n, 1) < 0)
            return -1;
        n++;
    }
    head[n] = '\0';
    const char *length = strstr(head, "Content-Length: ");
    assert_non_null(length);
    size_t body = strtoul(length + 16, NULL, 10);
    buf_clear(b);
    char *p = buf_reserve(b, body);
    assert_non_null(p);
    if (sock_recv_all(fd, p, body) < 0)
        return -1;
    buf_used(b, body);
    return atoi(head + 9);
}

static int ask(int fd, const char *path, struct buf *b)
{
    char text[256];
    snprintf(text, sizeof(text), "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", path);
    say(fd, text);
    return answer(fd, b);
}

static bool is_closed(int fd)
{
    char c;
    return recv(fd, &c, 1, 0) == 0;
}

static void wait_for(atomic_int *what, int value)
{
    while (atomic_load(what) != value)
        sys->sleep_ns(1000000);
}

/* ---- HTTP ---- */

/* Requests on one connection are answered one after the other, and the connection stays. */
static void answers_and_keeps_the_connection(void **state)
{
    struct fixture *f = start(&(struct front_config){0});
    struct buf _cleanup_buf_ b = BUF_INIT(2 * FILE_BYTES);
    int fd = dial(f->http);
    for (int i = 0; i < 50; i++) {
        char path[32];
        snprintf(path, sizeof(path), "/a%d", i);
        assert_int_equal(ask(fd, path, &b), 200);
        strcat(path, " 0");
        assert_string_equal(b.p, path);
    }
    assert_int_equal(ask(fd, "/file", &b), 200);
    assert_memory_equal(b.p, f->file_bytes, FILE_BYTES);
    assert_int_equal(ask(fd, "/again", &b), 200);
    (void)close(fd);
    stop(f);
}

/* A hundred pipelined requests, bodies and tails among them, are answered whole and in their order, however
 * the bytes are cut. */
static void answers_pipelined_requests_in_order(void **state)
{
    struct fixture *f = start(&(struct front_config){.threads = 2});
    static const size_t steps[] = {7, 1000, 100000};
    struct buf _cleanup_buf_ b = BUF_INIT(2 * FILE_BYTES), all = BUF_INIT(MIB);
    for (int i = 0; i < 100; i++)
        assert_int_equal(buf_printf(&all,
                                    i == 50 ? "GET /file HTTP/1.1\r\nHost: a\r\n\r\n"
                                    : i % 3 == 0
                                        ? "PUT /p%d HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n12345"
                                        : "GET /g%d HTTP/1.1\r\nHost: a\r\n\r\n",
                                    i),
                         0);
    for (size_t s = 0; s < ARRAY_SIZE(steps); s++) {
        int fd = dial(f->http);
        for (size_t at = 0; at < all.n; at += steps[s])
            assert_int_equal(sock_send_all(fd, all.p + at, MIN(steps[s], all.n - at), 0), 0);
        for (int i = 0; i < 100; i++) {
            char want[32];
            snprintf(want, sizeof(want), i % 3 == 0 ? "/p%d 5" : "/g%d 0", i);
            assert_int_equal(answer(fd, &b), 200);
            if (i == 50)
                assert_memory_equal(b.p, f->file_bytes, FILE_BYTES);
            else
                assert_string_equal(b.p, want);
        }
        (void)close(fd);
    }
    stop(f);
}

/* With one worker, many clients that have sent half a head do not keep a whole request from being answered,
 * and are answered themselves once they go on. */
static void half_heads_hold_no_thread(void **state)
{
    struct fixture *f = start(&(struct front_config){.threads = 1});
    enum { N = 50 };
    int slow[N];
    struct buf _cleanup_buf_ b = BUF_INIT(MIB);
    for (int i = 0; i < N; i++) {
        slow[i] = dial(f->http);
        say(slow[i], "GET /slow HTT");
    }
    int fd = dial(f->http);
    assert_int_equal(ask(fd, "/quick", &b), 200);
    for (int i = 0; i < N; i++) {
        say(slow[i], "P/1.1\r\nHost:");
        say(slow[i], " a\r\n\r\n");
        assert_int_equal(answer(slow[i], &b), 200);
        assert_string_equal(b.p, "/slow 0");
        (void)close(slow[i]);
    }
    (void)close(fd);
    stop(f);
}

/* With one worker, clients that take nothing of a large answer do not keep others from theirs; when they read
 * on they get every byte, and the connection serves the next request, also one sent meanwhile. */
static void unread_answers_hold_no_thread(void **state)
{
    struct fixture *f = start(&(struct front_config){.threads = 1});
    enum { N = 8 };
    int slow[N];
    struct buf _cleanup_buf_ b = BUF_INIT(2 * FILE_BYTES);
    for (int i = 0; i < N; i++) {
        slow[i] = dial(f->http);
        say(slow[i], "GET /file HTTP/1.1\r\nHost: a\r\n\r\nGET /next HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    int fd = dial(f->http);
    assert_int_equal(ask(fd, "/quick", &b), 200);
    assert_true(atomic_load(&f->tails_done) < N);
    for (int i = 0; i < N; i++) {
        assert_int_equal(answer(slow[i], &b), 200);
        assert_memory_equal(b.p, f->file_bytes, FILE_BYTES);
        assert_int_equal(answer(slow[i], &b), 200);
        assert_string_equal(b.p, "/next 0");
        (void)close(slow[i]);
    }
    wait_for(&f->tails_done, N);
    (void)close(fd);
    stop(f);
}

/* A client that goes away in the middle of a large answer ends its tail. */
static void a_lost_client_ends_its_tail(void **state)
{
    struct fixture *f = start(&(struct front_config){0});
    int fd = dial(f->http);
    say(fd, "GET /file HTTP/1.1\r\nHost: a\r\n\r\n");
    char some[1000];
    assert_int_equal(sock_recv_all(fd, some, sizeof(some)), 0);
    (void)close(fd);
    wait_for(&f->tails_done, 1);
    stop(f);
}

static bool is_readable(int fd)
{
    char c;
    return recv(fd, &c, 1, MSG_PEEK | MSG_DONTWAIT) >= 0;
}

/* A head that is not complete in time is answered 408 and closed, also when bytes trickle in all the while.
 */
static void late_heads_are_answered_408(void **state)
{
    struct fixture *f = start(&(struct front_config){.request_timeout_ms = 400});
    struct buf _cleanup_buf_ b = BUF_INIT(MIB);
    int silent = dial(f->http), trickle = dial(f->http), bytes = 0;
    say(silent, "GET / HTTP/1.1\r\n");
    say(trickle, "GET / HTTP/1.1\r\nX: ");
    for (; bytes < 400 && !is_readable(trickle);
         bytes++) { /* 20 s, were the deadline to move with each byte */
        (void)!send(trickle, "x", 1, MSG_NOSIGNAL);
        sys->sleep_ns(50 * 1000000);
    }
    assert_true(bytes < 400);
    assert_int_equal(answer(trickle, &b), 408);
    assert_int_equal(answer(silent, &b), 408);
    assert_true(is_closed(silent));
    (void)close(silent);
    (void)close(trickle);
    stop(f);
}

/* A connection that is idle for too long is closed without a word; one that is used is not. */
static void idle_connections_are_closed(void **state)
{
    struct fixture *f = start(&(struct front_config){.idle_timeout_ms = 1000});
    struct buf _cleanup_buf_ b = BUF_INIT(MIB);
    int idle = dial(f->http), used = dial(f->http);
    assert_int_equal(ask(idle, "/", &b), 200);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(ask(used, "/", &b), 200);
        sys->sleep_ns(100 * 1000000);
    }
    assert_true(is_closed(idle));
    (void)close(idle);
    (void)close(used);
    stop(f);
}

/* A rest that nobody takes is given up after the request timeout. */
static void a_rest_without_progress_is_given_up(void **state)
{
    struct fixture *f = start(&(struct front_config){.request_timeout_ms = 400});
    int fd = dial(f->http);
    say(fd, "GET /file HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_for(&f->tails_done, 1);
    (void)close(fd);
    stop(f);
}

/* Broken heads get their status, with the connection closed behind the answer and the answer not lost. */
static void broken_heads_are_refused(void **state)
{
    static const struct {
        const char *text;
        int status;
    } cases[] = {{"GET / HTTP/1.1\r\n\r\n", 400},
                 {"GET / HTTP/3.0\r\n\r\n", 505},
                 {"GET /\n", 400},
                 {"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501}};
    struct fixture *f = start(&(struct front_config){0});
    struct buf _cleanup_buf_ b = BUF_INIT(MIB), large = BUF_INIT(MIB);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        int fd = dial(f->http);
        say(fd, cases[i].text);
        assert_int_equal(answer(fd, &b), cases[i].status);
        assert_true(is_closed(fd));
        (void)close(fd);
    }
    assert_int_equal(buf_str(&large, "GET / HTTP/1.1\r\nHost: a\r\nX: "), 0);
    while (large.n < 300 * KIB) /* far more than is ever read */
        assert_int_equal(buf_char(&large, 'x'), 0);
    int fd = dial(f->http);
    assert_int_equal(sock_send_all(fd, large.p, large.n, 0), 0);
    assert_int_equal(answer(fd, &b), 431);
    assert_true(is_closed(fd)); /* an end, not a reset, although not all was looked at */
    (void)close(fd);
    stop(f);
}

/* Connections beyond the maximum are told so; when others end there is room again. */
static void refuses_connections_beyond_the_maximum(void **state)
{
    struct fixture *f = start(&(struct front_config){.max_connections = 3});
    struct buf _cleanup_buf_ b = BUF_INIT(MIB);
    int fds[3];
    for (int i = 0; i < 3; i++) {
        fds[i] = dial(f->http);
        assert_int_equal(ask(fds[i], "/", &b), 200);
    }
    int fd = dial(f->http);
    assert_int_equal(answer(fd, &b), 503);
    assert_true(is_closed(fd));
    (void)close(fd);
    (void)close(fds[0]);
    while (front_connections(f->front) == 3)
        sys->sleep_ns(1000000);
    fd = dial(f->http);
    assert_int_equal(ask(fd, "/", &b), 200);
    (void)close(fd);
    (void)close(fds[1]);
    (void)close(fds[2]);
    stop(f);
}

/* Memory for unfinished heads is bounded: who exceeds it is refused, the others go on. */
static void bounds_memory_for_heads(void **state)
{
    struct fixture *f = start(&(struct front_config){.heads_bytes = 10000});
    struct buf _cleanup_buf_ b = BUF_INIT(MIB);
    char many[6000];
    memset(many, 'x', sizeof(many));
    memcpy(many, "GET /", 5);
    int first = dial(f->http);
    assert_int_equal(sock_send_all(first, many, sizeof(many), 0), 0);
    sys->sleep_ns(100 * 1000000); /* so that the second one comes second */
    int second = dial(f->http);
    assert_int_equal(sock_send_all(second, many, sizeof(many), 0), 0);
    assert_int_equal(answer(second, &b), 503);
    say(first, " HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_int_equal(answer(first, &b), 200);
    (void)close(second);
    second = dial(f->http);
    assert_int_equal(sock_send_all(second, many, sizeof(many), 0), 0); /* the memory was given back */
    say(second, " HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_int_equal(answer(second, &b), 200);
    (void)close(first);
    (void)close(second);
    stop(f);
}

/* While every worker is busy express requests are answered, on new and on old connections; the others wait,
 * and are answered when a worker is free. */
static void express_requests_pass_busy_workers(void **state)
{
    struct fixture *f = start(&(struct front_config){.threads = 2});
    enum { N = 10 };
    struct buf _cleanup_buf_ b = BUF_INIT(MIB);
    int old = dial(f->http), busy[2], waiting[N];
    assert_int_equal(ask(old, "/", &b), 200);
    for (int i = 0; i < 2; i++) {
        busy[i] = dial(f->http);
        say(busy[i], "GET /gate HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    wait_for(&f->running, 2);
    for (int i = 0; i < N; i++) {
        waiting[i] = dial(f->http);
        say(waiting[i], "GET /waits HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    for (int i = 0; i < 5; i++)
        assert_int_equal(ask(old, "/express", &b), 200);
    int new_one = dial(f->http);
    assert_int_equal(ask(new_one, "/express", &b), 200);
    assert_int_equal(front_active(f->front, CONN_HTTP), 2);
    open_gate(f);
    for (int i = 0; i < N; i++) {
        assert_int_equal(answer(waiting[i], &b), 200);
        assert_string_equal(b.p, "/waits 0");
        (void)close(waiting[i]);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(answer(busy[i], &b), 200);
        (void)close(busy[i]);
    }
    (void)close(new_one);
    (void)close(old);
    stop(f);
}

/* Requests that block call up further workers until all of them run, and again after those were parked. */
static void blocked_requests_call_up_workers(void **state)
{
    struct fixture *f = start(&(struct front_config){.threads = 64});
    enum { N = 60 };
    struct buf _cleanup_buf_ b = BUF_INIT(MIB);
    int fds[N];
    for (int i = 0; i < N; i++)
        fds[i] = dial(f->http);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++)
            say(fds[i], "GET /gate HTTP/1.1\r\nHost: a\r\n\r\n");
        wait_for(&f->running, N);
        open_gate(f);
        for (int i = 0; i < N; i++)
            assert_int_equal(answer(fds[i], &b), 200);
        wait_for(&f->running, 0);
        close_gate(f);
        for (int i = 0; i < 200; i++) /* so that workers go to rest */
            assert_int_equal(ask(fds[i % N], "/", &b), 200);
    }
    assert_true(front_workers(f->front) <= 64);
    for (int i = 0; i < N; i++)
        (void)close(fds[i]);
    stop(f);
}

struct asker {
    struct fixture *f;
    pthread_t thread;
    unsigned seed;
    int failures;
};

static void *asker_main(void *arg)
{
    struct asker *a = arg;
    struct buf b = BUF_INIT(2 * FILE_BYTES);
    int fd = -1;
    for (int i = 0; i < 200; i++) {
        int r = rand_r(&a->seed) % 10;
        if (fd < 0)
            fd = dial(a->f->http);
        int k = r == 0 ? ask(fd, "/file", &b) : ask(fd, r < 3 ? "/express" : "/x", &b);
        a->failures += k != 200 || (r == 0 && memcmp(b.p, a->f->file_bytes, FILE_BYTES) != 0);
        if (r == 1 || k != 200) {
            (void)close(fd);
            fd = -1;
        }
    }
    if (fd >= 0)
        (void)close(fd);
    buf_fini(&b);
    return NULL;
}

/* Many clients at once on few workers, connecting, asking and leaving: every answer is right. */
static void many_clients_get_right_answers(void **state)
{
    struct fixture *f = start(&(struct front_config){.threads = 3});
    struct asker askers[12];
    for (unsigned i = 0; i < ARRAY_SIZE(askers); i++) {
        askers[i] = (struct asker){.f = f, .seed = i};
        assert_int_equal(pthread_create(&askers[i].thread, NULL, asker_main, &askers[i]), 0);
    }
    for (unsigned i = 0; i < ARRAY_SIZE(askers); i++) {
        pthread_join(askers[i].thread, NULL);
        assert_int_equal(askers[i].failures, 0);
    }
    assert_true(front_workers(f->front) <= 3);
    stop(f);
}

static void *drain_main(void *arg)
{
    struct fixture *f = arg;
    return (void *)(intptr_t)front_drain(f->front, 20000);
}

/* Draining closes idle connections at once, lets a running request end, and refuses new connections. */
static void draining_waits_for_running_requests(void **state)
{
    struct fixture *f = start(&(struct front_config){0});
    struct buf _cleanup_buf_ b = BUF_INIT(MIB);
    int idle = dial(f->http), busy = dial(f->http), fd;
    pthread_t thread;
    void *result;
    assert_int_equal(ask(idle, "/", &b), 200);
    say(busy, "GET /gate HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_for(&f->running, 1);
    assert_int_equal(pthread_create(&thread, NULL, drain_main, f), 0);
    assert_true(is_closed(idle));
    struct err e = {0};
    assert_int_equal(sock_connect_tcp(f->http, 1000, &fd, &e), -ECONNREFUSED);
    open_gate(f);
    assert_int_equal(answer(busy, &b), 200);
    assert_true(is_closed(busy));
    pthread_join(thread, &result);
    assert_int_equal((intptr_t)result, 0);
    (void)close(idle);
    (void)close(busy);
    stop(f);
}

/* A request that does not end keeps draining from succeeding, not from returning. */
static void draining_gives_up_after_its_time(void **state)
{
    struct fixture *f = start(&(struct front_config){0});
    int busy = dial(f->http);
    say(busy, "GET /gate HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_for(&f->running, 1);
    assert_int_equal(front_drain(f->front, 50), -ETIMEDOUT);
    stop(f); /* opens the gate */
    (void)close(busy);
}

/* ---- wire ---- */

static int dial_unix(struct fixture *f)
{
    int fd;
    struct err e = {0};
    assert_int_equal(sock_connect_unix(f->socket_path, &fd, &e), 0);
    assert_int_equal(sock_set_timeouts(fd, 10000, 10000), 0);
    return fd;
}

static const char session_a[] = "aaaaaaaaaaaaaaaa", session_b[] = "bbbbbbbbbbbbbbbb";

static int hello(int fd, const char *session, const char *key, const char *signature, struct buf *b,
                 struct wire_hello_rep *rep, struct err *e)
{
    const struct wire_hello_req req = {.request_id = 1,
                                       .version = WIRE_VERSION,
                                       .session = slice_str(session),
                                       .name = SLICE_LIT("test"),
                                       .via = WIRE_VIA_API,
                                       .access_key = slice_str(key),
                                       .signature = slice_of(signature, signature ? 32 : 0)};
    return wire_call(fd, WIRE_OP_HELLO, &req, b, rep, e);
}

/* CHALLENGE and HELLO with a signature made with `secret`. */
static int sign_in_as(int fd, const char *session, const char *key, const char *secret, struct err *e)
{
    struct buf _cleanup_buf_ b = BUF_INIT(MIB);
    const struct wire_challenge_req req = {.request_id = 9};
    struct wire_challenge_rep nonce;
    struct wire_hello_rep rep;
    int k = wire_call(fd, WIRE_OP_CHALLENGE, &req, &b, &nonce, e);
    if (k < 0)
        return k;
    assert_int_equal(nonce.nonce.n, 32);
    uint8_t text[48];
    char signature[EVP_MAX_MD_SIZE];
    memcpy(text, nonce.nonce.p, 32);
    memcpy(text + 32, session, 16);
    unsigned n;
    assert_non_null(
        HMAC(EVP_sha256(), secret, (int)strlen(secret), text, sizeof(text), (uint8_t *)signature, &n));
    return hello(fd, session, key, signature, &b, &rep, e);
}

#define sign_in(fd, session, secret, e) sign_in_as(fd, session, access_key, secret, e)

static int call_stat(int fd, const char *key, uint64_t *ret_n, struct err *e)
{
    struct buf _cleanup_buf_ b = BUF_INIT(WIRE_BODY_MAX_BYTES);
    const struct wire_stat_req req = {.request_id = 77, .bucket = SLICE_LIT("b"), .key = slice_str(key)};
    struct wire_stat_rep rep;
    int k = wire_call(fd, WIRE_OP_STAT, &req, &b, &rep, e);
    if (k == 0)
        *ret_n = rep.attr.size_bytes;
    return k;
}

/* On the Unix socket our own uid is let in without a signature, calls operations and gets descriptors. */
static void own_uid_is_trusted_on_the_unix_socket(void **state)
{
    struct fixture *f = start(&(struct front_config){0});
    struct buf _cleanup_buf_ b = BUF_INIT(WIRE_BODY_MAX_BYTES);
    struct err e = {0};
    struct wire_hello_rep rep;
    int fd = dial_unix(f);
    assert_int_equal(hello(fd, session_a, "", NULL, &b, &rep, &e), 0);
    assert_true(slice_eq_str(rep.node_id, "node") && rep.passes_fds == 1);
    uint64_t n = 0;
    assert_int_equal(call_stat(fd, "four", &n, &e), 0);
    assert_int_equal(n, 4);
    const struct wire_open_req open_req = {.request_id = 5};
    struct wire_open_rep open_rep;
    assert_int_equal(wire_call(fd, WIRE_OP_OPEN, &open_req, &b, &open_rep, &e), 0);
    char first[100];
    assert_int_equal(pread(open_rep.fd, first, sizeof(first), 0), sizeof(first));
    assert_memory_equal(first, f->file_bytes, sizeof(first));
    (void)close(open_rep.fd);
    const struct wire_rmdir_req rmdir_req = {.request_id = 6, .key = SLICE_LIT("x")};
    struct wire_rmdir_rep rmdir_rep;
    assert_int_equal(wire_call(fd, WIRE_OP_RMDIR, &rmdir_req, &b, &rmdir_rep, &e), -ENOENT);
    assert_string_equal(e.text, "nothing there");
    (void)close(fd);
    stop(f);
}

/* On TCP only who knows the secret is let in; nonces are good once; no descriptor is sent. */
static void tcp_clients_must_sign(void **state)
{
    struct fixture *f = start(&(struct front_config){0});
    struct buf _cleanup_buf_ b = BUF_INIT(WIRE_BODY_MAX_BYTES);
    struct err e = {0};
    struct wire_hello_rep rep;
    uint64_t n;
    char zeros[32] = {0};
    int fd = dial(f->wire);
    assert_int_equal(hello(fd, session_a, access_key, NULL, &b, &rep, &e), ERR_UNAUTHENTICATED);
    assert_int_equal(hello(fd, session_a, access_key, zeros, &b, &rep, &e), ERR_UNAUTHENTICATED);
    assert_int_equal(call_stat(fd, "k", &n, &e), ERR_UNAUTHENTICATED);
    assert_int_equal(sign_in(fd, session_a, "WRONG", &e), ERR_UNAUTHENTICATED);
    assert_int_equal(sign_in(fd, session_a, secret_key, &e), 0);
    assert_int_equal(call_stat(fd, "k", &n, &e), 0);
    const struct wire_open_req open_req = {.request_id = 5};
    struct wire_open_rep open_rep;
    assert_int_equal(wire_call(fd, WIRE_OP_OPEN, &open_req, &b, &open_rep, &e), 0);
    assert_int_equal(open_rep.fd, -1);
    assert_int_equal(sign_in(fd, session_a, secret_key, &e), ERR_PROTOCOL); /* HELLO twice */
    (void)close(fd);
    stop(f);
}

/* A user's session is opened as that user; the node's own pair cannot join it, nor the user another's. */
static void users_have_sessions_of_their_own(void **state)
{
    struct fixture *f = start(&(struct front_config){0});
    struct err e = {0};
    int one = dial(f->wire), two = dial(f->wire), three = dial(f->wire), four = dial(f->wire);
    assert_int_equal(sign_in_as(one, session_a, "USER", secret_key, &e), ERR_UNAUTHENTICATED);
    assert_int_equal(sign_in_as(one, session_a, "USER", "USERSECRET", &e), 0);
    assert_string_equal(f->opened_by, "USER");
    assert_int_equal(sign_in(two, session_a, secret_key, &e), ERR_PROTOCOL);
    assert_int_equal(sign_in(two, session_b, secret_key, &e), 0);
    assert_string_equal(f->opened_by, "");
    assert_int_equal(sign_in_as(three, session_b, "USER", "USERSECRET", &e), ERR_PROTOCOL);
    assert_int_equal(sign_in_as(three, session_a, "USER", "USERSECRET", &e), 0);
    assert_int_equal(atomic_load(&f->sessions_made), 2);
    f->refuse_sessions = true;
    assert_int_equal(sign_in_as(four, "cccccccccccccccc", "USER", "USERSECRET", &e), ERR_UNAUTHENTICATED);
    (void)(close(one) | close(two) | close(three) | close(four));
    stop(f);
}

/* Connections with one session id share a session, which ends with the last of them. */
static void a_session_lives_until_its_last_connection(void **state)
{
    struct fixture *f = start(&(struct front_config){0});
    struct buf _cleanup_buf_ b = BUF_INIT(MIB);
    struct err e = {0};
    struct wire_hello_rep rep;
    int one = dial_unix(f), two = dial_unix(f), other = dial_unix(f);
    assert_int_equal(hello(one, session_a, "", NULL, &b, &rep, &e), 0);
    assert_int_equal(hello(two, session_a, "", NULL, &b, &rep, &e), 0);
    assert_int_equal(hello(other, session_b, "", NULL, &b, &rep, &e), 0);
    assert_int_equal(atomic_load(&f->sessions_made), 2);
    (void)close(one);
    (void)close(other);
    wait_for(&f->sessions_open, 1);
    uint64_t n;
    assert_int_equal(call_stat(two, "k", &n, &e), 0);
    (void)close(two);
    wait_for(&f->sessions_open, 0);
    stop(f);
}

static void check_closed_after(struct fixture *f, const void *bytes, size_t n, bool signed_in)
{
    struct buf _cleanup_buf_ b = BUF_INIT(MIB);
    struct wire_hello_rep rep;
    int fd = dial_unix(f);
    if (signed_in)
        assert_int_equal(hello(fd, session_a, "", NULL, &b, &rep, NULL), 0);
    assert_int_equal(sock_send_all(fd, bytes, n, 0), 0);
    char c;
    ssize_t k = recv(fd, &c, 1, 0);
    assert_true(k == 0 || (k < 0 && errno == ECONNRESET));
    (void)close(fd);
}

/* Broken frames close their connection and nothing else: too long, unknown flags, a wrong crc, bytes behind a
 * frame, a body that does not decode, a large frame before HELLO. An unknown operation is answered. */
static void broken_frames_close_their_connection(void **state)
{
    struct fixture *f = start(&(struct front_config){0});
    uint8_t head[WIRE_HEADER_BYTES], two[2 * WIRE_HEADER_BYTES];
    struct wire_header h = {.op = WIRE_OP_STATUS};
    wire_header_encode(&h, head);
    head[3] = 0x7f; /* 2 GB */
    check_closed_after(f, head, sizeof(head), true);
    wire_header_encode(&(struct wire_header){.op = WIRE_OP_STATUS, .flags = WIRE_FLAG_REPLY}, head);
    check_closed_after(f, head, sizeof(head), true);
    wire_header_encode(&(struct wire_header){.op = WIRE_OP_STATUS, .crc = 1}, head);
    check_closed_after(f, head, sizeof(head), true);
    wire_header_encode(&(struct wire_header){.op = WIRE_OP_STAT}, head);
    check_closed_after(f, head, sizeof(head), true);
    wire_header_encode(&(struct wire_header){.op = WIRE_OP_HELLO, .body_bytes = 5000}, head);
    check_closed_after(f, head, sizeof(head), false);
    wire_header_encode(&h, two);
    wire_header_encode(&h, two + WIRE_HEADER_BYTES);
    check_closed_after(f, two, sizeof(two), true);
    struct buf _cleanup_buf_ b = BUF_INIT(MIB);
    struct wire_hello_rep rep;
    struct err e = {0};
    uint64_t n;
    int fd = dial_unix(f), no_fd;
    assert_int_equal(hello(fd, session_a, "", NULL, &b, &rep, &e), 0);
    assert_int_equal(wire_send(fd, 999, 0, 5, 0, SLICE_NULL, -1), 0);
    assert_int_equal(wire_recv(fd, &h, &b, &no_fd), 0);
    assert_int_equal(h.status, ERR_NOT_IMPLEMENTED);
    assert_int_equal(call_stat(fd, "k", &n, &e), 0);
    (void)close(fd);
    stop(f);
}

/* A frame that arrives byte by byte is served; half a frame header holds no thread. */
static void slow_frames_are_served(void **state)
{
    struct fixture *f = start(&(struct front_config){.threads = 1});
    struct buf _cleanup_buf_ b = BUF_INIT(MIB), frame = BUF_INIT(MIB);
    struct wire_hello_rep rep;
    struct err e = {0};
    int slow = dial_unix(f), quick = dial_unix(f);
    assert_int_equal(hello(slow, session_a, "", NULL, &b, &rep, &e), 0);
    assert_int_equal(hello(quick, session_b, "", NULL, &b, &rep, &e), 0);
    const struct wire_stat_req req = {.key = SLICE_LIT("five!")};
    assert_int_equal(wire_op_info(WIRE_OP_STAT)->encode_req(&req, &b), 0);
    buf_clear(&b);
    assert_int_equal(wire_op_info(WIRE_OP_STAT)->encode_req(&req, &b), 0);
    uint8_t head[WIRE_HEADER_BYTES];
    wire_header_encode(
        &(struct wire_header){
            .op = WIRE_OP_STAT, .body_bytes = (uint32_t)b.n, .request_id = 3, .crc = crc32c(0, b.p, b.n)},
        head);
    assert_int_equal(buf_append(&frame, head, sizeof(head)), 0);
    assert_int_equal(buf_slice(&frame, buf_view(&b)), 0);
    for (size_t i = 0; i < frame.n; i++) {
        assert_int_equal(sock_send_all(slow, frame.p + i, 1, 0), 0);
        sys->sleep_ns(2 * 1000000);
        uint64_t n;
        if (i < WIRE_HEADER_BYTES - 1 && i % 6 == 0)
            assert_int_equal(call_stat(quick, "k", &n, &e), 0);
    }
    struct wire_header h;
    int no_fd;
    assert_int_equal(wire_recv(slow, &h, &b, &no_fd), 0);
    struct wire_stat_rep got;
    assert_int_equal(wire_op_info(WIRE_OP_STAT)->decode_rep(buf_view(&b), &got), 0);
    assert_int_equal(got.attr.size_bytes, 5);
    (void)close(slow);
    (void)close(quick);
    stop(f);
}

/* With one worker, strangers that have sent a header and not its body keep nobody waiting, and are served
 * once they go on. */
static void half_hellos_hold_no_thread(void **state)
{
    struct fixture *f = start(&(struct front_config){.threads = 1});
    enum { N = 20 };
    int slow[N];
    struct buf _cleanup_buf_ b = BUF_INIT(MIB), body = BUF_INIT(MIB);
    const struct wire_hello_req req = {
        .version = WIRE_VERSION, .session = slice_str(session_a), .via = WIRE_VIA_API};
    assert_int_equal(wire_op_info(WIRE_OP_HELLO)->encode_req(&req, &body), 0);
    uint8_t head[WIRE_HEADER_BYTES];
    wire_header_encode(&(struct wire_header){.op = WIRE_OP_HELLO,
                                             .body_bytes = (uint32_t)body.n,
                                             .request_id = 3,
                                             .crc = crc32c(0, body.p, body.n)},
                       head);
    for (int i = 0; i < N; i++) {
        slow[i] = dial_unix(f);
        assert_int_equal(sock_send_all(slow[i], head, sizeof(head), 0), 0);
        assert_int_equal(sock_send_all(slow[i], body.p, 10, 0), 0);
    }
    int fd = dial(f->http);
    assert_int_equal(ask(fd, "/quick", &b), 200);
    for (int i = 0; i < N; i++) {
        struct wire_header h;
        int no_fd;
        assert_int_equal(sock_send_all(slow[i], body.p + 10, 10, 0), 0);
        assert_int_equal(sock_send_all(slow[i], body.p + 20, body.n - 20, 0), 0);
        assert_int_equal(wire_recv(slow[i], &h, &b, &no_fd), 0);
        assert_int_equal(h.status, 0);
        (void)close(slow[i]);
    }
    (void)close(fd);
    stop(f);
}

/* The largest bodies go through in both directions, and the buffer budget is whole again afterwards. */
static void large_bodies_go_through(void **state)
{
    struct fixture *f = start(&(struct front_config){0});
    struct buf _cleanup_buf_ b = BUF_INIT(WIRE_BODY_MAX_BYTES);
    struct wire_hello_rep rep;
    struct err e = {0};
    int fd = dial_unix(f);
    assert_int_equal(hello(fd, session_a, "", NULL, &b, &rep, &e), 0);
    size_t n = WIRE_BODY_MAX_BYTES - 1000;
    char *data = calloc(1, n);
    const struct wire_put_write_req write_req = {.request_id = 3, .data = slice_of(data, n)};
    struct wire_put_write_rep write_rep;
    assert_int_equal(wire_call(fd, WIRE_OP_PUT_WRITE, &write_req, &b, &write_rep, &e), 0);
    const struct wire_fetch_req fetch_req = {.request_id = 4, .n = UINT64_MAX, .flags = WIRE_INLINE};
    struct wire_fetch_rep fetch_rep;
    assert_int_equal(wire_call(fd, WIRE_OP_FETCH, &fetch_req, &b, &fetch_rep, &e), 0);
    assert_true(fetch_rep.data.n > 7 * MIB && fetch_rep.data.p[0] == 'f');
    free(data);
    (void)close(fd);
    stop(f); /* asserts that nothing of the budget is taken */
}

/* Who connects to the wire port and says nothing, or no HELLO, is gone after the request timeout; a client
 * that has signed in may be silent for as long as it likes. */
static void strangers_do_not_stay(void **state)
{
    struct fixture *f = start(&(struct front_config){.request_timeout_ms = 400, .idle_timeout_ms = 1000});
    struct buf _cleanup_buf_ b = BUF_INIT(MIB);
    struct wire_hello_rep rep;
    struct err e = {0};
    int stranger = dial(f->wire), friend = dial_unix(f);
    assert_int_equal(hello(friend, session_a, "", NULL, &b, &rep, &e), 0);
    assert_true(is_closed(stranger));
    sys->sleep_ns(1500 * 1000000ull);
    uint64_t n;
    assert_int_equal(call_stat(friend, "k", &n, &e), 0);
    (void)close(stranger);
    (void)close(friend);
    stop(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_and_keeps_the_connection),
        cmocka_unit_test(answers_pipelined_requests_in_order),
        cmocka_unit_test(half_heads_hold_no_thread),
        cmocka_unit_test(unread_answers_hold_no_thread),
        cmocka_unit_test(a_lost_client_ends_its_tail),
        cmocka_unit_test(late_heads_are_answered_408),
        cmocka_unit_test(idle_connections_are_closed),
        cmocka_unit_test(a_rest_without_progress_is_given_up),
        cmocka_unit_test(broken_heads_are_refused),
        cmocka_unit_test(refuses_connections_beyond_the_maximum),
        cmocka_unit_test(bounds_memory_for_heads),
        cmocka_unit_test(express_requests_pass_busy_workers),
        cmocka_unit_test(blocked_requests_call_up_workers),
        cmocka_unit_test(many_clients_get_right_answers),
        cmocka_unit_test(draining_waits_for_running_requests),
        cmocka_unit_test(draining_gives_up_after_its_time),
        cmocka_unit_test(own_uid_is_trusted_on_the_unix_socket),
        cmocka_unit_test(tcp_clients_must_sign),
        cmocka_unit_test(users_have_sessions_of_their_own),
        cmocka_unit_test(a_session_lives_until_its_last_connection),
        cmocka_unit_test(broken_frames_close_their_connection),
        cmocka_unit_test(slow_frames_are_served),
        cmocka_unit_test(half_hellos_hold_no_thread),
        cmocka_unit_test(large_bodies_go_through),
        cmocka_unit_test(strangers_do_not_stay),
    };
    (void)signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests_name("server_front", tests, NULL, NULL);
}
