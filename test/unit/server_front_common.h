/* What the tests of the front end share: one with handlers that a test can hold up. */
#pragma once

#include "base/crc32c.h"
#include "base/sys.h"
#include "net/sock.h"
#include "server/front.h"
#include "support/tmpdir.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include <cmocka.h>

#define PATIENCE_MS 60000 /* where nothing shall time out: threads may stand still for seconds */

enum { FILE_BYTES = 8 * 1024 * 1024, COMPUTE_NS = 4000000 };

struct fixture {
    struct front *front;
    struct budget *buffers;
    char *dir, *socket_path;
    char http[128], wire[128];
    int file;
    char *file_bytes;
    atomic_int tails_done, running, sessions_open, sessions_made, sessions_abandoned, unsent;
    char opened_by[32];          /* access key of the last session */
    atomic_int told;             /* peers of sessions */
    struct sock_peer told_peer;  /* the last one, without its groups */
    atomic_bool refuse_sessions; /* as if the key had been revoked since it was checked */
    struct lock lock;
    struct cond cond;
    bool gate_open; /* /gate requests wait for it; `lock` */
};

/* ---- the handlers ---- */

static inline void on_tail_done(void *arg, uint64_t sent, bool whole)
{
    struct fixture *f = arg;
    atomic_fetch_add(&f->tails_done, 1);
}

static inline void wait_for_gate(struct fixture *f)
{
    atomic_fetch_add(&f->running, 1);
    lock_take(&f->lock);
    while (!f->gate_open)
        cond_wait(&f->cond, &f->lock);
    lock_drop(&f->lock);
    atomic_fetch_sub(&f->running, 1);
}

static inline void compute(void)
{
    for (uint64_t end_ns = sys->mono_ns() + COMPUTE_NS; sys->mono_ns() < end_ns;)
        ;
}

static inline void open_gate(struct fixture *f)
{
    LOCK_SCOPE(&f->lock);
    f->gate_open = true;
    cond_broadcast(&f->cond);
}

static inline void close_gate(struct fixture *f)
{
    LOCK_SCOPE(&f->lock);
    f->gate_open = false;
}

/* /file: the file as a tail; /large: its bytes from memory; /gate: waits for the gate; /compute: computes for
 * COMPUTE_NS; anything else: its own path, and the body's length. */
static inline void on_http(struct http_conn *c, void *arg)
{
    struct fixture *f = arg;
    const struct http_request *r = http_conn_request(c);
    if (slice_eq_str(r->raw_path, "/file")) {
        (void)http_conn_head(c, 200, SLICE_NULL, FILE_BYTES);
        http_conn_tail(c,
                       &(struct http_tail){.fd = f->file, .n = FILE_BYTES, .done = on_tail_done, .arg = f});
        return;
    }
    if (slice_eq_str(r->raw_path, "/large")) {
        (void)http_conn_reply(c, 200, SLICE_NULL, slice_of(f->file_bytes, FILE_BYTES));
        return;
    }
    if (slice_eq_str(r->raw_path, "/gate"))
        wait_for_gate(f);
    if (slice_eq_str(r->raw_path, "/compute"))
        compute();
    char part[4096];
    ssize_t k;
    size_t n = 0;
    while ((k = http_conn_read(c, part, sizeof(part))) > 0)
        n += (size_t)k;
    char *body = arena_printf(http_conn_arena(c), SLICE_FMT " %zu", SLICE_ARG(r->target), n);
    (void)http_conn_reply(c, 200, SLICE_NULL, slice_str(body));
}

static inline bool is_express(void *arg, const struct http_request *r)
{
    return slice_eq_str(r->raw_path, "/express");
}

static inline void *on_session_open(void *arg, struct id128 id, enum wire_via via, struct slice key)
{
    struct fixture *f = arg;
    (void)snprintf(f->opened_by, sizeof(f->opened_by), SLICE_FMT, SLICE_ARG(key));
    if (f->refuse_sessions)
        return NULL;
    atomic_fetch_add(&f->sessions_open, 1);
    atomic_fetch_add(&f->sessions_made, 1);
    return f;
}

static inline void on_session_identify(void *session, const struct sock_peer *peer)
{
    struct fixture *f = session;
    f->told_peer = (struct sock_peer){.uid = peer->uid, .gid = peer->gid, .n_groups = peer->n_groups};
    atomic_fetch_add(&f->told, 1);
}

static inline int on_secret(void *arg, struct slice key, struct buf *ret_secret)
{
    return slice_eq_str(key, "USER") ? buf_str(ret_secret, "USERSECRET") : -ENOENT;
}

static inline void on_session_abandon(void *session)
{
    struct fixture *f = session;
    atomic_fetch_add(&f->sessions_abandoned, 1);
}

static inline void on_session_unsent(void *session, uint32_t op, const void *req, const void *rep,
                                     struct arena *a)
{
    struct fixture *f = session;
    atomic_fetch_add(&f->unsent, 1);
}

static inline void on_session_close(void *session)
{
    struct fixture *f = session;
    atomic_fetch_sub(&f->sessions_open, 1);
}

/* STAT tells the length of the key; OPEN gives the file's descriptor, of "gate" when it is open; FETCH gives
 * bytes; the rest fails. */
static inline int on_session_call(void *session, uint32_t op, const void *req, struct arena *a, void *rep,
                                  struct err *e)
{
    struct fixture *f = session;
    if (op == WIRE_OP_STAT) {
        const struct wire_stat_req *q = req;
        ((struct wire_stat_rep *)rep)->attr = (struct wire_attr){.kind = WIRE_FILE, .size_bytes = q->key.n};
        return 0;
    }
    if (op == WIRE_OP_OPEN) {
        if (slice_eq_str(((const struct wire_open_req *)req)->key, "gate"))
            wait_for_gate(f);
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

/* Of a FETCH; of one at offset 1 nobody knew before. */
static inline uint64_t on_reply_bytes(void *session, uint32_t op, const void *req)
{
    const struct wire_fetch_req *q = req;
    return op == WIRE_OP_FETCH && q->offset != 1 ? q->n : 0;
}

/* ---- set up ---- */

static const char access_key[] = "ACCESS", secret_key[] = "SECRET";

static inline struct fixture *start(const struct front_config *changes)
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
    config.request_timeout_ms = config.request_timeout_ms ? config.request_timeout_ms : PATIENCE_MS;
    config.idle_timeout_ms = config.idle_timeout_ms ? config.idle_timeout_ms : PATIENCE_MS;
    config.heads_bytes = config.heads_bytes ? config.heads_bytes : MIB;
    config.buffers = f->buffers;
    config.http = on_http;
    config.http_arg = f;
    config.express = is_express;
    config.sessions = (struct front_sessions){
        on_session_open,    on_session_close,  on_secret, on_session_call,     NULL,
        on_session_abandon, on_session_unsent, f,         on_session_identify, on_reply_bytes};
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

static inline void stop(struct fixture *f)
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

static inline int dial(const char *address)
{
    int fd;
    struct err e = {0};
    assert_int_equal(sock_connect_tcp(address, PATIENCE_MS, &fd, &e), 0);
    assert_int_equal(sock_set_timeouts(fd, PATIENCE_MS, PATIENCE_MS), 0);
    return fd;
}

static inline void say(int fd, const char *text)
{
    assert_int_equal(sock_send_all(fd, text, strlen(text), 0), 0);
}

/* One answer: its status, and its body into b. -1: the connection ended before one. */
static inline int answer(int fd, struct buf *b)
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

static inline int ask(int fd, const char *path, struct buf *b)
{
    char text[256];
    snprintf(text, sizeof(text), "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", path);
    say(fd, text);
    return answer(fd, b);
}

static inline bool is_closed(int fd)
{
    char c;
    return recv(fd, &c, 1, 0) == 0;
}

static inline void wait_for(atomic_int *what, int value)
{
    while (atomic_load(what) != value)
        sys->sleep_ns(1000000);
}
