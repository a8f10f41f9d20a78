/*
 * Fuzz target: a request with its body, by length or in chunks, read through a connection. However the bytes
 * are cut into packets, the same body must come out, the same verdict, and the same bytes must be left for
 * the next request.
 */
#include "net/http_conn.h"
#include "net/sock.h"

#include <signal.h>
#include <sys/socket.h>

#define INPUT_MAX_BYTES 16384

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

struct result {
    struct buf body;
    ssize_t last; /* of the reads */
    bool parsed;
};

static void on_request(struct http_conn *c, void *arg)
{
    struct result *r = arg;
    char part[100];
    while ((r->last = http_conn_read(c, part, sizeof(part))) > 0)
        if (buf_append(&r->body, part, (size_t)r->last) < 0)
            abort(); /* more bytes than went in */
    (void)http_conn_reply(c, 200, SLICE_NULL, SLICE_NULL);
}

/* The first `cut` bytes are there from the beginning, the rest comes through the socket. */
static void run(struct slice input, size_t cut, struct result *r)
{
    int pair[2], status;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        abort();
    struct http_conn *c = http_conn_new();
    if (sock_send_all(pair[1], input.p + cut, input.n - cut, 0) < 0 || shutdown(pair[1], SHUT_WR) < 0)
        abort();
    http_conn_attach(c, stream_plain(pair[0]), NULL, slice_of(input.p, cut), /* is_part= */ false);
    int k;
    while ((k = http_conn_parse(c, &status, NULL)) == -EAGAIN)
        if (http_conn_receive(c) <= 0)
            break;
    r->parsed = k == 0;
    if (r->parsed) {
        enum http_next next = http_conn_serve(c, on_request, r);
        if (r->last < 0 && next == HTTP_NEXT_KEEP)
            abort(); /* the place in the stream is lost */
    }
    http_conn_detach(c);
    http_conn_free(c);
    (void)close(pair[0]);
    (void)close(pair[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    (void)signal(SIGPIPE, SIG_IGN);
    if (n < 2 || n > INPUT_MAX_BYTES)
        return 0;
    size_t cut = (data[0] | (size_t)data[1] << 8) % (n - 1);
    struct slice input = slice_of(data + 2, n - 2);
    struct result a = {.body = BUF_INIT(INPUT_MAX_BYTES)}, b = {.body = BUF_INIT(INPUT_MAX_BYTES)};
    run(input, input.n, &a);
    run(input, MIN(cut, input.n), &b);
    if (a.parsed != b.parsed || (a.parsed && (a.last < 0) != (b.last < 0)) ||
        !slice_eq(buf_view(&a.body), buf_view(&b.body)))
        abort();
    buf_fini(&a.body);
    buf_fini(&b.body);
    return 0;
}
