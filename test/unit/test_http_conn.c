/* layer: net */
/* threaded */
/* A connection over a socket pair: bodies in every framing and cut, answers in every form, tails, and what
 * the owner is told to do next. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/sys.h"
#include "net/http_conn.h"
#include "net/sock.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>

struct fixture {
    int client, server;
    struct http_conn *c;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        return -1;
    f->client = pair[0];
    f->server = pair[1];
    (void)sock_set_timeouts(f->client, 60000, 60000);
    (void)sock_set_timeouts(f->server, 300, 300);
    f->c = http_conn_new();
    http_conn_attach(f->c, stream_plain(f->server), NULL, SLICE_NULL, /* is_part= */ false);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    http_conn_detach(f->c);
    http_conn_free(f->c);
    if (f->client >= 0)
        (void)close(f->client);
    (void)close(f->server);
    free(f);
    return 0;
}

static void client_sends(struct fixture *f, struct slice s)
{
    assert_int_equal(sock_send_all(f->client, s.p, s.n, 0), 0);
}

/* Everything that has arrived so far. */
static struct slice client_gets(struct fixture *f, struct buf *b)
{
    for (;;) {
        char *p = buf_reserve(b, 64 * KIB);
        assert_non_null(p);
        ssize_t k = recv(f->client, p, 64 * KIB, MSG_DONTWAIT);
        if (k <= 0)
            return buf_view(b);
        buf_used(b, (size_t)k);
    }
}

static bool has(struct slice s, const char *what)
{
    return slice_find_slice(s, slice_str(what)) >= 0;
}

/* Receives until the head is there. */
static void parse(struct fixture *f)
{
    int status;
    struct err e;
    int k;
    while ((k = http_conn_parse(f->c, &status, &e)) == -EAGAIN)
        assert_true(http_conn_receive(f->c) > 0);
    assert_int_equal(k, 0);
}

/* ---- handlers ---- */

struct job {
    size_t step;     /* bytes per read; 0: body is not read */
    struct buf body; /* what came */
    int result;      /* of the last read */
    int status;
    const char *headers, *answer;
    bool unknown_length, close_after;
    uint64_t announce; /* 0: the length of the answer */
};

static void on_job(struct http_conn *c, void *arg)
{
    struct job *j = arg;
    char part[64 * 1024];
    while (j->step > 0) {
        ssize_t k = http_conn_read(c, part, j->step);
        j->result = (int)k;
        if (k <= 0)
            break;
        assert_int_equal(buf_append(&j->body, part, (size_t)k), 0);
    }
    if (j->close_after)
        http_conn_close_after(c);
    struct slice answer = slice_str(j->answer), headers = slice_str(j->headers);
    int status = j->status ? j->status : 200;
    if (!j->unknown_length && !j->announce) {
        (void)http_conn_reply(c, status, headers, answer);
        return;
    }
    (void)http_conn_head(c, status, headers, j->unknown_length ? UINT64_MAX : j->announce);
    for (size_t i = 0; i < answer.n; i++) /* one byte at a time */
        (void)http_conn_write(c, answer.p + i, 1);
}

/* Status 0 stands for 200. */
#define JOB(...)                                                                                             \
    {                                                                                                        \
        .body = BUF_INIT(16 * MIB), .answer = "answer", __VA_ARGS__                                          \
    }

static enum http_next run(struct fixture *f, struct slice request, struct job *j)
{
    client_sends(f, request);
    parse(f);
    return http_conn_serve(f->c, on_job, j);
}

/* ---- request bodies ---- */

/* A body of known length is read whole, in any step, and what follows it stays for the next request. */
static void reads_bodies_of_known_length(void **state)
{
    static const size_t steps[] = {1, 3, 4, 100};
    for (size_t i = 0; i < ARRAY_SIZE(steps); i++) {
        struct job j = JOB(.step = steps[i]);
        assert_int_equal(
            run(*state, SLICE_LIT("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbodyGET /next"), &j),
            HTTP_NEXT_KEEP);
        struct fixture *f = *state;
        assert_true(slice_eq_str(buf_view(&j.body), "body"));
        assert_true(slice_eq_str(http_conn_pending(f->c), "GET /next"));
        buf_fini(&j.body);
        client_sends(f, SLICE_LIT(" HTTP/1.1\r\nHost: a\r\n\r\n")); /* completes the pipelined one */
        struct job next = JOB(.step = 1);
        parse(f);
        assert_true(slice_eq_str(http_conn_request(f->c)->raw_path, "/next"));
        assert_int_equal(http_conn_serve(f->c, on_job, &next), HTTP_NEXT_KEEP);
        assert_int_equal(next.body.n, 0);
    }
}

/* Chunks of many sizes, with extensions and trailers, come out as one body, wherever the stream is cut into
 * packets. */
static void reads_chunks_however_they_arrive(void **state)
{
    struct fixture *f = *state;
    static const char text[] =
        "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        "4\r\nwith\r\n1;ext=\"v\"\r\n \r\n00a\r\n10 letters\r\n0\r\nTrailer: x\r\n\r\n";
    for (size_t cut = 1; cut < sizeof(text) - 1; cut++) {
        struct job j = JOB(.step = 7);
        int k = -1;
        client_sends(f, slice_of(text, cut));
        int status;
        struct err e;
        while ((k = http_conn_parse(f->c, &status, &e)) == -EAGAIN) {
            ssize_t n = http_conn_receive(f->c);
            if (n == -EAGAIN)
                client_sends(f, slice_of(text + cut, sizeof(text) - 1 - cut));
        }
        assert_int_equal(k, 0);
        /* What is not sent yet comes while the handler reads. */
        if (http_conn_request(f->c)->head_bytes <= cut && http_conn_received(f->c).n <= cut)
            client_sends(f, slice_of(text + cut, sizeof(text) - 1 - cut));
        assert_int_equal(http_conn_serve(f->c, on_job, &j), HTTP_NEXT_KEEP);
        assert_true(slice_eq_str(buf_view(&j.body), "with 10 letters"));
        assert_int_equal(http_conn_pending(f->c).n, 0);
        buf_fini(&j.body);
    }
}

/* Broken chunk framing fails the read and closes the connection, so that nothing is taken for a next request.
 */
static void refuses_broken_chunks(void **state)
{
    static const char *const broken[] = {
        "x\r\nabc\r\n0\r\n\r\n",
        "\r\nabc\r\n",
        "-1\r\n",
        "3\nabc\r\n0\r\n\r\n",
        "3\r\nabcd\r\n0\r\n\r\n",
        "3\r\nabc0\r\n\r\n",
        "10000000000000000\r\n",
        "0x3\r\nabc\r\n",
        "3 3\r\nabc\r\n",
        " 3\r\nabc\r\n0\r\n\r\n",
        "3;a\rb\r\nabc\r\n0\r\n\r\n",
        "3;a\x01\r\nabc\r\n0\r\n\r\n",
        "3\r\nabc\r\n0\r\na: b\rc: d\r\n\r\n",
    };
    struct fixture *f = *state;
    for (size_t i = 0; i < ARRAY_SIZE(broken); i++) {
        struct job j = JOB(.step = 100);
        client_sends(f, SLICE_LIT("PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"));
        enum http_next next = run(f, slice_str(broken[i]), &j);
        if (j.result != ERR_PROTOCOL || next == HTTP_NEXT_KEEP)
            fail_msg("%s: %d", broken[i], j.result);
        buf_fini(&j.body);
        (void)tear_down(state);
        assert_int_equal(set_up(state), 0);
        f = *state;
    }
}

/* Size lines and trailers are bounded. */
static void bounds_chunk_framing(void **state)
{
    struct fixture *f = *state;
    struct job j = JOB(.step = 100);
    client_sends(f, SLICE_LIT("PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;"));
    char many[2000];
    memset(many, 'e', sizeof(many));
    assert_int_not_equal(run(f, slice_of(many, sizeof(many)), &j), HTTP_NEXT_KEEP);
    assert_int_equal(j.result, ERR_PROTOCOL);
    (void)tear_down(state);
    assert_int_equal(set_up(state), 0);
    f = *state;
    client_sends(f, SLICE_LIT("PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"));
    for (int i = 0; i < 100; i++)
        client_sends(
            f, SLICE_LIT(
                   "Trailer: 0123456789012345678901234567890123456789012345678901234567890123456789012345678"
                   "\r\n"));
    struct job trailers = JOB(.step = 100);
    assert_int_not_equal(run(f, SLICE_LIT("\r\n"), &trailers), HTTP_NEXT_KEEP);
    assert_int_equal(trailers.result, ERR_PROTOCOL);
}

/* A body that ends early is told from one that is late. */
static void tells_a_short_body_from_a_late_one(void **state)
{
    struct fixture *f = *state;
    struct job late = JOB(.step = 100);
    assert_int_not_equal(
        run(f, SLICE_LIT("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nbody"), &late),
        HTTP_NEXT_KEEP);
    assert_int_equal(late.result, -ETIMEDOUT);
    assert_true(slice_eq_str(buf_view(&late.body), "body"));
    buf_fini(&late.body);
    (void)tear_down(state);
    assert_int_equal(set_up(state), 0);
    f = *state;
    struct job cut = JOB(.step = 100);
    client_sends(f, SLICE_LIT("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nbody"));
    assert_int_equal(shutdown(f->client, SHUT_WR), 0);
    parse(f);
    assert_int_not_equal(http_conn_serve(f->c, on_job, &cut), HTTP_NEXT_KEEP);
    assert_int_equal(cut.result, -EPIPE);
    buf_fini(&cut.body);
}

static void on_ended(struct http_conn *c, void *arg)
{
    char part[100];
    http_conn_end_body(c, sys_mono_ms());
    assert_int_equal(http_conn_read(c, part, sizeof(part)), 3);
    *(ssize_t *)arg = http_conn_read(c, part, sizeof(part));
    (void)http_conn_reply(c, 200, SLICE_NULL, SLICE_NULL);
}

/* Past its end no more of a body is waited for, in the middle of a chunk's size too; what came before counts.
 * The next request has no such end. */
static void ends_a_body_in_time(void **state)
{
    static const struct {
        const char *head, *rest;
    } cases[] = {
        {"Content-Length: 9\r\n\r\nbod", "y body"},
        {"Transfer-Encoding: chunked\r\n\r\n3\r\nbod\r\n6", "\r\ny body\r\n0\r\n\r\n"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct fixture *f = *state;
        ssize_t n = 0;
        client_sends(f, SLICE_LIT("PUT / HTTP/1.1\r\nHost: a\r\n"));
        client_sends(f, slice_str(cases[i].head));
        parse(f);
        client_sends(f, slice_str(cases[i].rest));
        assert_int_not_equal(http_conn_serve(f->c, on_ended, &n), HTTP_NEXT_KEEP);
        assert_int_equal(n, -ETIMEDOUT);
        (void)tear_down(state);
        assert_int_equal(set_up(state), 0);
    }
    struct fixture *f = *state;
    struct job j = JOB(.step = 100);
    ssize_t n = -1;
    client_sends(f, SLICE_LIT("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nbod"));
    parse(f);
    assert_int_equal(http_conn_serve(f->c, on_ended, &n), HTTP_NEXT_KEEP);
    assert_int_equal(n, 0);
    client_sends(f, SLICE_LIT("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n"));
    parse(f);
    client_sends(f, SLICE_LIT("bod"));
    assert_int_equal(http_conn_serve(f->c, on_job, &j), HTTP_NEXT_KEEP);
    assert_true(slice_eq_str(buf_view(&j.body), "bod"));
    buf_fini(&j.body);
}

/* "100 Continue" goes out when the handler reads the body, once; a handler that refuses without reading sends
 * none and the connection is closed, because nobody knows whether the body will come. */
static void continues_only_when_the_body_is_wanted(void **state)
{
    struct fixture *f = *state;
    _cleanup_buf_ struct buf b = BUF_INIT(MIB);
    struct job want = JOB(.step = 2);
    client_sends(
        f, SLICE_LIT("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\nbody"));
    parse(f);
    assert_int_equal(http_conn_serve(f->c, on_job, &want), HTTP_NEXT_KEEP);
    assert_true(slice_eq_str(buf_view(&want.body), "body"));
    struct slice got = client_gets(f, &b);
    assert_true(slice_starts(got, SLICE_LIT("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")));
    buf_fini(&want.body);
    buf_clear(&b);
    struct job refuse = JOB(.status = 403);
    assert_int_equal(
        run(f, SLICE_LIT("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"),
            &refuse),
        HTTP_NEXT_LINGER);
    got = client_gets(f, &b);
    assert_true(slice_starts(got, SLICE_LIT("HTTP/1.1 403 Forbidden\r\n")) &&
                has(got, "Connection: close\r\n"));
}

/* A small body that the handler ignored is dropped and the connection kept; a large one is not waited for. */
static void drops_small_unread_bodies(void **state)
{
    struct fixture *f = *state;
    struct job j = JOB(.status = 403);
    assert_int_equal(run(f, SLICE_LIT("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody"), &j),
                     HTTP_NEXT_KEEP);
    assert_int_equal(http_conn_pending(f->c).n, 0);
    assert_int_equal(
        run(f, SLICE_LIT("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999\r\n\r\nbody"), &j),
        HTTP_NEXT_LINGER);
}

/* read_all gives the whole body, or refuses it once it is over the buffer's maximum, announced or not. */
static void on_read_all(struct http_conn *c, void *arg)
{
    struct buf *b = arg;
    int k = http_conn_read_all(c, b);
    (void)http_conn_reply(c, k == 0 ? 200 : 413, SLICE_NULL, SLICE_NULL);
}

/* A body that was announced and does not come holds the thread for a moment, not as long as the socket would
 * wait. */
static void does_not_wait_for_a_body_that_nobody_wants(void **state)
{
    struct fixture *f = *state;
    struct job j = JOB();
    uint64_t from_ms = sys_mono_ms();
    assert_int_equal(sock_set_timeouts(f->server, 60000, 300), 0);
    assert_int_equal(run(f, SLICE_LIT("GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n"), &j),
                     HTTP_NEXT_LINGER);
    assert_true(sys_mono_ms() - from_ms < 30000);
    struct timeval left;
    socklen_t n = sizeof(left);
    assert_int_equal(getsockopt(f->server, SOL_SOCKET, SO_RCVTIMEO, &left, &n), 0);
    assert_int_equal(left.tv_sec, 60);
    buf_fini(&j.body);
}

static void reads_whole_bodies_up_to_a_maximum(void **state)
{
    static const struct {
        const char *request;
        int status;
    } cases[] = {
        {"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody", 200},
        {"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nbody!", 413},
        {"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n", 200},
        {"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbody!\r\n0\r\n\r\n", 413},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct fixture *f = *state;
        _cleanup_buf_ struct buf b = BUF_INIT(4);
        client_sends(f, slice_str(cases[i].request));
        parse(f);
        (void)http_conn_serve(f->c, on_read_all, &b);
        assert_int_equal(http_conn_status(f->c), cases[i].status);
        if (cases[i].status == 200)
            assert_true(slice_eq_str(buf_view(&b), "body"));
        (void)tear_down(state);
        assert_int_equal(set_up(state), 0);
    }
}

/* ---- answers ---- */

/* The framing of an answer follows version and method: length, chunks, until close, none. */
static void frames_answers(void **state)
{
    static const struct {
        const char *request;
        int status;
        bool unknown;
        enum http_next next;
        const char *want, *end;
    } cases[] = {
        {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 200, false, HTTP_NEXT_KEEP, "Content-Length: 6\r\n",
         "\r\n\r\nanswer"},
        {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 200, true, HTTP_NEXT_KEEP, "Transfer-Encoding: chunked\r\n",
         "\r\n\r\n1\r\na\r\n1\r\nn\r\n1\r\ns\r\n1\r\nw\r\n1\r\ne\r\n1\r\nr\r\n0\r\n\r\n"},
        {"GET / HTTP/1.0\r\n\r\n", 200, false, HTTP_NEXT_CLOSE, "Connection: close\r\n", "\r\n\r\nanswer"},
        {"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", 200, false, HTTP_NEXT_KEEP,
         "Connection: keep-alive\r\n", "\r\n\r\nanswer"},
        {"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", 200, true, HTTP_NEXT_CLOSE,
         "Connection: close\r\n", "\r\n\r\nanswer"},
        {"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 200, false, HTTP_NEXT_CLOSE,
         "Connection: close\r\n", "\r\n\r\nanswer"},
        {"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", 200, false, HTTP_NEXT_KEEP, "Content-Length: 6\r\n",
         "\r\n\r\n"},
        {"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", 200, true, HTTP_NEXT_KEEP, "HTTP/1.1 200 OK\r\n", "\r\n\r\n"},
        {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 304, false, HTTP_NEXT_KEEP, "HTTP/1.1 304 Not Modified\r\n",
         "\r\n\r\n"},
        {"DELETE / HTTP/1.1\r\nHost: a\r\n\r\n", 204, false, HTTP_NEXT_KEEP, "X-Own: header\r\n", "\r\n\r\n"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct fixture *f = *state;
        _cleanup_buf_ struct buf b = BUF_INIT(MIB);
        struct job j = JOB(.status = cases[i].status, .unknown_length = cases[i].unknown,
                           .headers = "X-Own: header\r\n");
        if (run(f, slice_str(cases[i].request), &j) != cases[i].next)
            fail_msg("case %zu: next", i);
        struct slice got = client_gets(f, &b);
        if (!has(got, cases[i].want) || !slice_ends(got, slice_str(cases[i].end)) || !has(got, "Date: ") ||
            !has(got, "Server: forebay\r\n"))
            fail_msg("case %zu: %s", i, got.p);
        if (cases[i].status == 204 || cases[i].status == 304)
            assert_false(has(got, "Content-Length"));
        (void)tear_down(state);
        assert_int_equal(set_up(state), 0);
    }
}

/* A handler that sends less than it announced gets its connection closed, whole answers do not follow cut
 * ones. */
static void closes_behind_cut_answers(void **state)
{
    struct fixture *f = *state;
    struct job j = JOB(.announce = 7);
    assert_int_equal(run(f, SLICE_LIT("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), &j), HTTP_NEXT_CLOSE);
}

static void on_cut_chunks(struct http_conn *c, void *arg)
{
    (void)http_conn_head(c, 200, SLICE_NULL, UINT64_MAX);
    (void)http_conn_write(c, "part", 4);
    http_conn_close_after(c); /* the handler failed half-way */
}

/* A chunked answer that is cut lacks its last chunk, which is how the client knows. */
static void cut_chunks_have_no_end(void **state)
{
    struct fixture *f = *state;
    _cleanup_buf_ struct buf b = BUF_INIT(MIB);
    client_sends(f, SLICE_LIT("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    parse(f);
    assert_int_equal(http_conn_serve(f->c, on_cut_chunks, NULL), HTTP_NEXT_CLOSE);
    assert_true(slice_ends(client_gets(f, &b), SLICE_LIT("4\r\npart\r\n")));
}

static void on_nothing(struct http_conn *c, void *arg)
{
}

/* A handler that answers nothing is answered for. */
static void answers_for_silent_handlers(void **state)
{
    struct fixture *f = *state;
    _cleanup_buf_ struct buf b = BUF_INIT(MIB);
    client_sends(f, SLICE_LIT("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    parse(f);
    assert_int_equal(http_conn_serve(f->c, on_nothing, NULL), HTTP_NEXT_KEEP);
    assert_true(has(client_gets(f, &b), "HTTP/1.1 500 "));
}

/* A refusal says its status and its words, and asks to linger. */
static void refuses_with_words(void **state)
{
    struct fixture *f = *state;
    _cleanup_buf_ struct buf b = BUF_INIT(MIB);
    client_sends(f, SLICE_LIT("GET / HTTP/1.1\r\n\r\n"));
    assert_true(http_conn_receive(f->c) > 0);
    int status = 0;
    struct err e = {0};
    assert_int_equal(http_conn_parse(f->c, &status, &e), ERR_PROTOCOL);
    assert_int_equal(http_conn_refuse(f->c, status, "no Host header"), HTTP_NEXT_LINGER);
    struct slice got = client_gets(f, &b);
    assert_true(has(got, "HTTP/1.1 400 Bad Request\r\n") && has(got, "Connection: close\r\n") &&
                slice_ends(got, SLICE_LIT("\r\n\r\nno Host header")));
}

/* A refusal for now, and no other, says when to come again. (Seen to fail without it in http_conn_refuse.) */
static void refuses_for_now(void **state)
{
    struct fixture *f = *state;
    static const int statuses[] = {503, 408};
    for (size_t i = 0; i < ARRAY_SIZE(statuses); i++) {
        _cleanup_buf_ struct buf b = BUF_INIT(MIB);
        if (i > 0) {
            (void)tear_down(state);
            assert_int_equal(set_up(state), 0);
            f = *state;
        }
        assert_int_equal(http_conn_refuse(f->c, statuses[i], "no room"), HTTP_NEXT_LINGER);
        assert_int_equal(has(client_gets(f, &b), "\r\nRetry-After: 1\r\n"), statuses[i] == 503);
    }
}

/* ---- files and tails ---- */

enum { FILE_BYTES = 2 * 1024 * 1024 + 13 };

/* What the kernel itself moved from files to sockets: all calls of this program come here. */
static _Atomic uint64_t by_kernel;
static atomic_bool is_refused; /* the file system has no sendfile */

ssize_t sendfile(int out, int in, off_t *at, size_t n)
{
    if (atomic_load(&is_refused)) {
        errno = EINVAL;
        return -1;
    }
    ssize_t k = syscall(SYS_sendfile, out, in, at, n);
    if (k > 0)
        (void)atomic_fetch_add(&by_kernel, (uint64_t)k);
    return k;
}

struct tail_job {
    int fd;
    uint64_t offset, n, before; /* `before` bytes are written by the handler itself */
    bool by_sendfile;
    int done;
    uint64_t sent;
    bool whole;
    char *in_arena;
};

static int make_file(void)
{
    char path[] = "/tmp/forebay-test-XXXXXX";
    int fd = mkstemp(path);
    assert_int_equal(unlink(path), 0);
    char *p = malloc(FILE_BYTES);
    for (size_t i = 0; i < FILE_BYTES; i++)
        p[i] = (char)(i * 31 + i / 4093);
    assert_int_equal(write(fd, p, FILE_BYTES), FILE_BYTES);
    free(p);
    return fd;
}

static void on_tail_done(void *arg, uint64_t sent, bool whole)
{
    struct tail_job *t = arg;
    assert_string_equal(t->in_arena, "still here"); /* the request's arena lives until the tail is done */
    t->done++;
    t->sent = sent;
    t->whole = whole;
}

static void on_file(struct http_conn *c, void *arg)
{
    struct tail_job *t = arg;
    char first[4096];
    t->in_arena = arena_printf(http_conn_arena(c), "still %s", "here");
    (void)http_conn_head(c, 200, SLICE_NULL, t->n);
    assert_true(t->before <= sizeof(first));
    if (t->before > 0) {
        assert_int_equal(pread(t->fd, first, t->before, (off_t)t->offset), t->before);
        (void)http_conn_write(c, first, t->before);
    }
    uint64_t offset = t->offset + t->before, n = t->n - t->before;
    if (t->by_sendfile) {
        (void)http_conn_sendfile(c, t->fd, offset, n);
        on_tail_done(t, n, true);
        return;
    }
    http_conn_tail(
        c, &(struct http_tail){.fd = t->fd, .offset = offset, .n = n, .done = on_tail_done, .arg = t});
}

struct drain {
    int fd;
    struct buf got;
    bool stop;
};

static void *drain_main(void *arg)
{
    struct drain *d = arg;
    char *p;
    ssize_t k;
    do {
        p = buf_reserve(&d->got, 64 * KIB);
        k = sock_recv_some(d->fd, p, 64 * KIB);
        if (k > 0)
            buf_used(&d->got, (size_t)k);
    } while (k > 0);
    return NULL;
}

static void check_file_answer(struct slice got, const struct tail_job *t)
{
    ssize_t end = slice_find_slice(got, SLICE_LIT("\r\n\r\n"));
    assert_true(end > 0);
    struct slice body = slice_from(got, (size_t)end + 4);
    assert_int_equal(body.n, t->n);
    char *want = malloc(t->n + 1);
    assert_int_equal(pread(t->fd, want, t->n, (off_t)t->offset), t->n);
    assert_memory_equal(body.p, want, t->n);
    free(want);
}

static void send_files(void **state)
{
    static const uint64_t sizes[] = {0, 1, 4096, 16384, 16385, 200000, FILE_BYTES};
    int file = make_file();
    for (size_t i = 0; i < 4 * ARRAY_SIZE(sizes); i++) {
        struct fixture *f = *state;
        uint64_t n = sizes[i / 4];
        struct tail_job t = {.fd = file,
                             .offset = n == FILE_BYTES ? 0 : 7,
                             .n = n,
                             .by_sendfile = i & 1,
                             .before = i & 2 ? MIN(n, (uint64_t)1000) : 0};
        struct drain d = {.fd = f->client, .got = BUF_INIT(8 * MIB)};
        pthread_t thread;
        client_sends(f, SLICE_LIT("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
        parse(f);
        atomic_store(&by_kernel, 0);
        assert_int_equal(sock_set_timeouts(f->server, 300, 60000), 0); /* who drains may stand still */
        assert_int_equal(pthread_create(&thread, NULL, drain_main, &d), 0);
        enum http_next next = http_conn_serve(f->c, on_file, &t);
        if (next == HTTP_NEXT_TAIL) {
            struct http_rest *rest = http_conn_take_rest(f->c);
            assert_true(http_rest_keep_alive(rest));
            assert_int_equal(t.done, 0);
            int k;
            while ((k = http_rest_send(rest, stream_plain(f->server))) == -EAGAIN)
                usleep(100);
            assert_int_equal(k, 0);
            http_rest_free(rest);
        } else {
            assert_int_equal(next, HTTP_NEXT_KEEP);
        }
        assert_int_equal(t.done, 1);
        assert_true(t.whole && t.sent == n - t.before);
        if (!atomic_load(&is_refused) && (t.by_sendfile || n - t.before > 16 * KIB))
            assert_int_equal(atomic_load(&by_kernel), n - t.before);
        assert_int_equal(shutdown(f->server, SHUT_WR), 0);
        pthread_join(thread, NULL);
        check_file_answer(buf_view(&d.got), &t);
        buf_fini(&d.got);
        (void)tear_down(state);
        assert_int_equal(set_up(state), 0);
    }
    (void)close(file);
}

/* Ranges of every size leave whole as tail or by sendfile, also behind bytes that the handler wrote itself.
 * Of what does not go out with the head nothing passes through this process. */
static void sends_files(void **state)
{
    send_files(state);
}

/* The same, through memory, where the file system has no sendfile. (Seen to be cut behind the head.) */
static void sends_files_without_sendfile(void **state)
{
    atomic_store(&is_refused, true);
    send_files(state);
    atomic_store(&is_refused, false);
}

/* Sends until the socket takes no more; returns how much. */
static size_t fill_socket(struct fixture *f)
{
    char filler[1024];
    size_t filled = 0;
    ssize_t k;
    memset(filler, 'f', sizeof(filler));
    while ((k = send(f->server, filler, sizeof(filler), MSG_DONTWAIT)) > 0)
        filled += (size_t)k;
    return filled;
}

/* A client that takes nothing leaves a rest, head included, that goes out later piece by piece. */
static void parks_what_the_socket_does_not_take(void **state)
{
    static const uint64_t sizes[] = {100, FILE_BYTES};
    int file = make_file();
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        struct fixture *f = *state;
        size_t filled = fill_socket(f);
        struct tail_job t = {.fd = file, .n = sizes[i]};
        struct buf _cleanup_buf_ got = BUF_INIT(8 * MIB);
        client_sends(f, SLICE_LIT("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
        parse(f);
        assert_int_equal(http_conn_serve(f->c, on_file, &t), HTTP_NEXT_TAIL);
        struct http_rest *rest = http_conn_take_rest(f->c);
        int k = http_rest_send(rest, stream_plain(f->server));
        assert_int_equal(k, -EAGAIN);
        while ((k = http_rest_send(rest, stream_plain(f->server))) == -EAGAIN)
            (void)client_gets(f, &got);
        assert_int_equal(k, 0);
        http_rest_free(rest);
        check_file_answer(slice_from(client_gets(f, &got), filled), &t);
        assert_true(t.done == 1 && t.whole);
        (void)tear_down(state);
        assert_int_equal(set_up(state), 0);
    }
    (void)close(file);
}

static void on_text(struct http_conn *c, void *arg)
{
    const struct slice *text = arg;
    assert_int_equal(http_conn_reply(c, 200, SLICE_NULL, *text), 0);
    assert_int_equal(http_conn_write(c, "", 0), 0); /* nothing more is no harm */
}

static void on_late_text(struct http_conn *c, void *arg)
{
    const struct slice *text = arg;
    assert_int_equal(http_conn_reply(c, 200, SLICE_NULL, *text), -ETIMEDOUT);
}

/* With spare memory the end of an answer from memory is a rest, too: no handler waits for a client that takes
 * nothing, and what is kept is counted until it has gone or is dropped. */
static void ends_of_answers_wait_for_nobody(void **state)
{
    static const char *const requests[] = {"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
                                           "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n"};
    static const size_t sizes[] = {0, 100, 3000000};
    struct budget *spare = budget_new(4 * MIB);
    char *bytes = malloc(3000000);
    for (size_t i = 0; i < 3000000; i++)
        bytes[i] = (char)(i * 7 + i / 1000);
    for (size_t i = 0; i < 3 * ARRAY_SIZE(sizes); i++) {
        struct fixture *f = *state;
        struct slice text = slice_of(bytes, sizes[i / 3]);
        struct buf _cleanup_buf_ got = BUF_INIT(8 * MIB);
        bool is_head = i % 3 == 1, is_dropped = i % 3 == 2;
        size_t filled = fill_socket(f);
        http_conn_set_spare(f->c, spare, /* may_wait= */ true);
        client_sends(f, slice_str(requests[is_head]));
        parse(f);
        assert_int_equal(http_conn_serve(f->c, on_text, &text), HTTP_NEXT_TAIL);
        struct http_rest *rest = http_conn_take_rest(f->c);
        assert_true(budget_used(spare) > (is_head ? 0 : text.n));
        int k = http_rest_send(rest, stream_plain(f->server));
        assert_int_equal(k, -EAGAIN);
        while (!is_dropped && (k = http_rest_send(rest, stream_plain(f->server))) == -EAGAIN)
            (void)client_gets(f, &got);
        assert_true(is_dropped || k == 0);
        assert_true(http_rest_keep_alive(rest));
        http_rest_free(rest);
        assert_int_equal(budget_used(spare), 0);
        if (!is_dropped) {
            struct slice answer = slice_from(client_gets(f, &got), filled);
            ssize_t end = slice_find_slice(answer, SLICE_LIT("\r\n\r\n"));
            assert_true(end > 0);
            answer = slice_from(answer, (size_t)end + 4);
            assert_int_equal(answer.n, is_head ? 0 : text.n);
            assert_true(answer.n == 0 || memcmp(answer.p, bytes, answer.n) == 0);
        }
        (void)tear_down(state);
        assert_int_equal(set_up(state), 0);
    }
    free(bytes);
    budget_free(spare);
}

/* Without memory for it whoever writes waits, as long as the socket says, or not at all when it must not; a
 * refusal that the client does not take is dropped. */
static void without_spare_memory_the_end_is_waited_for(void **state)
{
    struct fixture *f = *state;
    struct budget *spare = budget_new(10), *none = budget_new(10);
    struct slice text = SLICE_LIT("some text");
    (void)fill_socket(f);
    http_conn_set_spare(f->c, spare, /* may_wait= */ true);
    client_sends(f, SLICE_LIT("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    parse(f);
    assert_int_equal(http_conn_serve(f->c, on_late_text, &text), HTTP_NEXT_CLOSE);
    assert_int_equal(budget_used(spare), 0);
    budget_free(spare);
    spare = budget_new(MIB);
    (void)tear_down(state);
    assert_int_equal(set_up(state), 0);
    f = *state;
    (void)sock_set_timeouts(f->server, 3600000, 3600000);
    (void)fill_socket(f);
    http_conn_set_spare(f->c, none, /* may_wait= */ false);
    client_sends(f, SLICE_LIT("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    parse(f);
    assert_int_equal(http_conn_serve(f->c, on_late_text, &text), HTTP_NEXT_CLOSE);
    assert_int_equal(budget_used(none), 0);
    budget_free(none);
    (void)tear_down(state);
    assert_int_equal(set_up(state), 0);
    f = *state;
    (void)fill_socket(f);
    http_conn_set_spare(f->c, spare, /* may_wait= */ true);
    assert_int_equal(http_conn_refuse(f->c, 400, "no"), HTTP_NEXT_CLOSE);
    assert_int_equal(budget_used(spare), 0);
    budget_free(spare);
}

/* A socket that takes all there is does not get all of a large file before others had their turn. */
static void gives_others_a_turn(void **state)
{
    struct fixture *f = *state;
    int file = make_file(), room = 4 * FILE_BYTES, turns = 1, k;
    if (setsockopt(f->server, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof(room)) < 0) {
        (void)close(file);
        skip(); /* without the right to it the socket is full first */
    }
    struct tail_job t = {.fd = file, .n = FILE_BYTES};
    client_sends(f, SLICE_LIT("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    parse(f);
    assert_int_equal(http_conn_serve(f->c, on_file, &t), HTTP_NEXT_TAIL);
    struct http_rest *rest = http_conn_take_rest(f->c);
    while ((k = http_rest_send(rest, stream_plain(f->server))) == -EAGAIN)
        turns++;
    assert_int_equal(k, 0);
    assert_int_equal(turns, 1);
    http_rest_free(rest);
    assert_true(t.done == 1 && t.whole && t.sent == FILE_BYTES);
    (void)close(file);
}

/* done is called once and says what happened when the client goes away, when the file is shorter than
 * announced, and when the method wants no body. */
static void tells_the_tails_owner_how_it_went(void **state)
{
    struct fixture *f = *state;
    int file = make_file();
    struct tail_job head = {.fd = file, .n = 100};
    client_sends(f, SLICE_LIT("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n"));
    parse(f);
    assert_int_equal(http_conn_serve(f->c, on_file, &head), HTTP_NEXT_KEEP);
    assert_true(head.done == 1 && head.sent == 0 && head.whole);
    struct tail_job beyond = {.fd = file, .offset = FILE_BYTES - 10, .n = 100};
    client_sends(f, SLICE_LIT("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    parse(f);
    assert_int_not_equal(http_conn_serve(f->c, on_file, &beyond), HTTP_NEXT_KEEP);
    assert_true(beyond.done == 1 && beyond.sent == 10 && !beyond.whole);
    (void)tear_down(state);
    assert_int_equal(set_up(state), 0);
    f = *state;
    struct tail_job gone = {.fd = file, .n = FILE_BYTES};
    client_sends(f, SLICE_LIT("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    parse(f);
    assert_int_equal(http_conn_serve(f->c, on_file, &gone), HTTP_NEXT_TAIL);
    struct http_rest *rest = http_conn_take_rest(f->c);
    (void)close(f->client);
    f->client = -1;
    assert_int_equal(http_rest_send(rest, stream_plain(f->server)), -EPIPE);
    assert_int_equal(gone.done, 0);
    http_rest_free(rest);
    assert_true(gone.done == 1 && !gone.whole && gone.sent < FILE_BYTES);
    (void)close(file);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(reads_bodies_of_known_length),
        TEST(reads_chunks_however_they_arrive),
        TEST(refuses_broken_chunks),
        TEST(bounds_chunk_framing),
        TEST(tells_a_short_body_from_a_late_one),
        TEST(ends_a_body_in_time),
        TEST(continues_only_when_the_body_is_wanted),
        TEST(drops_small_unread_bodies),
        TEST(does_not_wait_for_a_body_that_nobody_wants),
        TEST(reads_whole_bodies_up_to_a_maximum),
        TEST(frames_answers),
        TEST(closes_behind_cut_answers),
        TEST(cut_chunks_have_no_end),
        TEST(answers_for_silent_handlers),
        TEST(refuses_with_words),
        TEST(refuses_for_now),
        TEST(sends_files),
        TEST(sends_files_without_sendfile),
        TEST(parks_what_the_socket_does_not_take),
        TEST(ends_of_answers_wait_for_nobody),
        TEST(without_spare_memory_the_end_is_waited_for),
        TEST(gives_others_a_turn),
        TEST(tells_the_tails_owner_how_it_went),
    };
    (void)signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests_name("http_conn", tests, NULL, NULL);
}
