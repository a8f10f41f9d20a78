/* layer: server */
/* threaded */
/* The HTTP port with TLS, over real sockets: what is buffered inside TLS is served, what is parked goes on,
 * and handshakes hold neither threads nor time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "net/sock.h"
#include "server/front.h"
#include "tls_fixture.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

#define PATIENCE_MS 60000 /* where nothing shall time out: threads may stand still for seconds */

enum { FILE_BYTES = 6 * 1024 * 1024, SMALL_BYTES = 3000 };

struct fixture {
    char *dir;
    struct tls_files files;
    struct tls_server *tls;
    struct front *front;
    struct budget *buffers;
    char address[128];
    int file;
    char *file_bytes;
    atomic_int tails_done;
};

static void on_tail_done(void *arg, uint64_t sent, bool whole)
{
    struct fixture *f = arg;
    atomic_fetch_add(&f->tails_done, 1);
}

/* /file and /small: the file, or its beginning, as a tail; anything else: its own path, and the body's
 * length.
 */
static void on_http(struct http_conn *c, void *arg)
{
    struct fixture *f = arg;
    const struct http_request *r = http_conn_request(c);
    size_t tail = slice_eq_str(r->raw_path, "/file")    ? FILE_BYTES
                  : slice_eq_str(r->raw_path, "/small") ? SMALL_BYTES
                                                        : 0;
    if (tail > 0) {
        (void)http_conn_head(c, 200, SLICE_NULL, tail);
        http_conn_tail(c, &(struct http_tail){.fd = f->file, .n = tail, .done = on_tail_done, .arg = f});
        return;
    }
    char part[1000];
    ssize_t k;
    size_t n = 0;
    while ((k = http_conn_read(c, part, sizeof(part))) > 0)
        n += (size_t)k;
    char *body = arena_printf(http_conn_arena(c), SLICE_FMT " %zu", SLICE_ARG(r->target), n);
    (void)http_conn_reply(c, 200, SLICE_NULL, slice_str(body));
}

static bool is_express(void *arg, const struct http_request *r)
{
    return false;
}

static int on_session_call(void *session, uint32_t op, const void *req, struct arena *a, void *rep,
                           struct err *e)
{
    return -ENOSYS;
}

static void *on_session_open(void *arg, struct id128 id, enum wire_via via, struct slice key)
{
    return NULL;
}

static void on_session_close(void *session)
{
}

static struct fixture *start(uint64_t request_timeout_ms)
{
    (void)signal(SIGPIPE, SIG_IGN);
    struct fixture *f = calloc(1, sizeof(*f));
    struct err e = {0};
    int http;
    f->dir = tmpdir_new();
    f->files = tls_make_files(f->dir, "node", -3600, 3600);
    assert_int_equal(tls_server_open(f->files.cert, f->files.key, &f->tls, &e), 0);
    char *path = tmpdir_path(f->dir, "file");
    f->file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    free(path);
    f->file_bytes = malloc(FILE_BYTES);
    for (size_t i = 0; i < FILE_BYTES; i++)
        f->file_bytes[i] = (char)(i * 13 + i / 8191);
    assert_int_equal(write(f->file, f->file_bytes, FILE_BYTES), FILE_BYTES);
    f->buffers = budget_new(32 * MIB);
    const struct front_config config = {
        .threads = 4,
        .max_connections = 100,
        .request_timeout_ms = request_timeout_ms,
        .idle_timeout_ms = 60000,
        .heads_bytes = MIB,
        .buffers = f->buffers,
        .http = on_http,
        .http_arg = f,
        .express = is_express,
        .sessions = {on_session_open, on_session_close, NULL, on_session_call, NULL, NULL, NULL, f},
        .access_key = "ACCESS",
        .secret_key = "SECRET",
        .node_id = "node",
        .tls = f->tls,
    };
    assert_int_equal(front_start(&config, &f->front, &e), 0);
    assert_int_equal(sock_listen_tcp("127.0.0.1:0", 128, &http, f->address, &e), 0);
    assert_int_equal(front_listen(f->front, http, CONN_HTTP, &e), 0);
    return f;
}

static void stop(struct fixture *f)
{
    front_stop(f->front);
    front_free(f->front);
    budget_free(f->buffers);
    tls_server_free(f->tls);
    close(f->file);
    free(f->file_bytes);
    tls_files_fini(&f->files);
    tmpdir_free(f->dir);
    free(f);
}

static int dial(struct fixture *f)
{
    struct err e = {0};
    int fd;
    assert_int_equal(sock_connect_tcp(f->address, PATIENCE_MS, &fd, &e), 0);
    assert_int_equal(sock_set_timeouts(fd, PATIENCE_MS, PATIENCE_MS), 0);
    return fd;
}

static SSL *client_of(struct fixture *f)
{
    return tls_client(dial(f));
}

static void hang_up(SSL *client)
{
    int fd = SSL_get_fd(client);
    SSL_free(client);
    close(fd);
}

static void say(SSL *client, const char *text)
{
    assert_int_equal(SSL_write(client, text, (int)strlen(text)), (int)strlen(text));
}

/* Reads a whole answer: the head into `head`, the body, of ret_n bytes, into a heap buffer. */
static char *hear(SSL *client, char head[2000], size_t *ret_n)
{
    size_t n = 0, body = 0;
    do {
        assert_true(n < 1999);
        assert_int_equal(SSL_read(client, head + n, 1), 1);
        head[++n] = '\0';
    } while (!strstr(head, "\r\n\r\n"));
    const char *length = strstr(head, "Content-Length: ");
    assert_non_null(length);
    *ret_n = (size_t)strtoull(length + 16, NULL, 10);
    char *p = calloc(1, *ret_n + 1);
    while (body < *ret_n) {
        int k = SSL_read(client, p + body, (int)MIN(*ret_n - body, (size_t)100000));
        assert_true(k > 0);
        body += (size_t)k;
    }
    return p;
}

static void expect(SSL *client, const char *body)
{
    char head[2000];
    size_t n;
    char *got = hear(client, head, &n);
    assert_string_equal(got, body);
    free(got);
}

/* One request after another on one connection, small tails among them. */
static void test_requests_one_after_another(void **state)
{
    struct fixture *f = start(PATIENCE_MS);
    SSL *client = client_of(f);
    char head[2000];
    size_t n;
    for (int i = 0; i < 3; i++) {
        say(client, "GET /a HTTP/1.1\r\nHost: h\r\n\r\n");
        expect(client, "/a 0");
        say(client, "GET /small HTTP/1.1\r\nHost: h\r\n\r\n");
        char *got = hear(client, head, &n);
        assert_int_equal(n, SMALL_BYTES);
        assert_memory_equal(got, f->file_bytes, n);
        free(got);
    }
    hang_up(client);
    stop(f);
}

/* The front end's end of a connection. */
static int other_end(int fd)
{
    struct sockaddr_in mine, theirs;
    socklen_t n = sizeof(mine);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&mine, &n), 0);
    for (int i = 0; i < 1024; i++) {
        n = sizeof(theirs);
        if (getpeername(i, (struct sockaddr *)&theirs, &n) == 0 && n == sizeof(theirs) &&
            memcmp(&theirs, &mine, n) == 0)
            return i;
    }
    fail_msg("no end");
    return -1;
}

/* Records of a file are held back for each other only while it is sent, however often it has to go on: what
 * comes behind it waits for nothing. (Seen to fail where the last set_cork is missing.) */
static void test_nothing_is_held_back_behind_a_file(void **state)
{
    struct fixture *f = start(PATIENCE_MS);
    SSL *client = client_of(f);
    char head[2000];
    size_t n;
    say(client, "GET /file HTTP/1.1\r\nHost: h\r\n\r\n");
    char *got = hear(client, head, &n);
    assert_int_equal(n, FILE_BYTES);
    assert_memory_equal(got, f->file_bytes, n);
    free(got);
    say(client, "GET /behind HTTP/1.1\r\nHost: h\r\n\r\n");
    expect(client, "/behind 0"); /* the file's end was sent before this was begun */
    int cork = -1;
    socklen_t size = sizeof(cork);
    assert_int_equal(getsockopt(other_end(SSL_get_fd(client)), IPPROTO_TCP, TCP_CORK, &cork, &size), 0);
    assert_int_equal(cork, 0);
    hang_up(client);
    stop(f);
}

/* Forty requests in one record are answered in order, more of them than one turn takes. */
static void test_requests_that_came_in_one_record(void **state)
{
    enum { COUNT = 40 };
    struct fixture *f = start(PATIENCE_MS);
    SSL *client = client_of(f);
    char all[COUNT * 200] = "", want[64];
    for (int i = 0; i < COUNT; i++)
        snprintf(all + strlen(all), sizeof(all) - strlen(all),
                 "POST /%d HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello", i);
    say(client, all);
    for (int i = 0; i < COUNT; i++) {
        snprintf(want, sizeof(want), "/%d 5", i);
        expect(client, want);
    }
    hang_up(client);
    stop(f);
}

/* A request behind a large body, whose last record holds both, is answered too; so is one behind a parked
 * tail. It waits inside TLS, where no event tells of it: without front_arm_read's look at what is pending the
 * test hangs. */
static void test_a_request_behind_a_body_and_behind_a_tail(void **state)
{
    enum { BODY_BYTES = 300001 };
    struct fixture *f = start(PATIENCE_MS);
    SSL *client = client_of(f);
    char *body = calloc(1, BODY_BYTES + 100), head[2000];
    size_t n;
    snprintf(head, sizeof(head), "POST /large HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n", BODY_BYTES);
    say(client, head);
    memset(body, 'b', BODY_BYTES);
    strcpy(body + BODY_BYTES, "GET /behind HTTP/1.1\r\nHost: h\r\n\r\n");
    say(client, body);
    expect(client, "/large 300001");
    expect(client, "/behind 0");
    say(client, "GET /file HTTP/1.1\r\nHost: h\r\n\r\nGET /after HTTP/1.1\r\nHost: h\r\n\r\n");
    char *got = hear(client, head, &n);
    assert_int_equal(n, FILE_BYTES);
    assert_memory_equal(got, f->file_bytes, n);
    free(got);
    expect(client, "/after 0");
    assert_int_equal(atomic_load(&f->tails_done), 1);
    free(body);
    hang_up(client);
    stop(f);
}

/* More clients than threads that do not read their answers: others are served meanwhile, and the bytes are
 * right once they read. */
static void test_parked_answers_hold_no_thread(void **state)
{
    enum { COUNT = 12 };
    struct fixture *f = start(PATIENCE_MS);
    SSL *clients[COUNT];
    char head[2000];
    size_t n;
    for (int i = 0; i < COUNT; i++) {
        clients[i] = client_of(f);
        say(clients[i], "GET /file HTTP/1.1\r\nHost: h\r\n\r\n");
    }
    SSL *other = client_of(f);
    say(other, "GET /other HTTP/1.1\r\nHost: h\r\n\r\n");
    expect(other, "/other 0");
    hang_up(other);
    for (int i = 0; i < COUNT; i++) {
        char *got = hear(clients[i], head, &n);
        assert_int_equal(n, FILE_BYTES);
        assert_memory_equal(got, f->file_bytes, n);
        free(got);
        hang_up(clients[i]);
    }
    stop(f);
}

/* More handshakes that never go on than there are threads: others are served, and the idle ones are closed
 * after the request timeout, whether they sent nothing or a part. */
static void test_handshakes_that_do_not_go_on(void **state)
{
    enum { COUNT = 20 };
    struct fixture *f = start(5000);
    int fds[COUNT];
    char byte;
    for (int i = 0; i < COUNT; i++) {
        fds[i] = dial(f);
        if (i % 2)
            assert_int_equal(write(fds[i], "\x16\x03\x01\x02", 4), 4);
    }
    SSL *other = client_of(f);
    say(other, "GET /other HTTP/1.1\r\nHost: h\r\n\r\n");
    expect(other, "/other 0");
    hang_up(other);
    for (int i = 0; i < COUNT; i++) {
        assert_true(recv(fds[i], &byte, 1, 0) <= 0);
        close(fds[i]);
    }
    assert_int_equal(front_connections(f->front), 0);
    stop(f);
}

/* Plain HTTP gets an answer that says what to do; garbage is cut. */
static void test_who_does_not_speak_tls(void **state)
{
    struct fixture *f = start(PATIENCE_MS);
    char got[2000] = "";
    size_t n = 0;
    ssize_t k;
    int fd = dial(f);
    static const char request[] = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
    assert_int_equal(write(fd, request, sizeof(request) - 1), sizeof(request) - 1);
    while ((k = recv(fd, got + n, sizeof(got) - 1 - n, 0)) > 0)
        n += (size_t)k;
    assert_ptr_equal(strstr(got, "HTTP/1.1 400"), got);
    assert_non_null(strstr(got, "https://"));
    close(fd);
    fd = dial(f);
    assert_int_equal(write(fd, "\x16\x03\x01\x00\x05hello", 10), 10);
    while ((k = recv(fd, got, sizeof(got), 0)) > 0)
        continue;
    close(fd);
    stop(f);
}

/* Draining ends idle TLS connections with TLS's own good-bye. */
static void test_draining(void **state)
{
    struct fixture *f = start(PATIENCE_MS);
    SSL *client = client_of(f);
    char byte;
    say(client, "GET /a HTTP/1.1\r\nHost: h\r\n\r\n");
    expect(client, "/a 0");
    assert_int_equal(front_drain(f->front, PATIENCE_MS), 0);
    assert_true(SSL_read(client, &byte, 1) <= 0);
    assert_int_equal(SSL_get_shutdown(client) & SSL_RECEIVED_SHUTDOWN, SSL_RECEIVED_SHUTDOWN);
    hang_up(client);
    stop(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests_one_after_another),
        cmocka_unit_test(test_nothing_is_held_back_behind_a_file),
        cmocka_unit_test(test_requests_that_came_in_one_record),
        cmocka_unit_test(test_a_request_behind_a_body_and_behind_a_tail),
        cmocka_unit_test(test_parked_answers_hold_no_thread),
        cmocka_unit_test(test_handshakes_that_do_not_go_on),
        cmocka_unit_test(test_who_does_not_speak_tls),
        cmocka_unit_test(test_draining),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
