/* layer: s3 */
/* threaded */
/* Documents that clients send: how long one may take. */
#include <linux/sockios.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/sys.h"
#include "net/sock.h"
#include "s3/s3_internal.h"
#include "support/clock_sys.h"

#define DRIPS    100
#define SECOND   1000000000ull
#define CONTINUE "HTTP/1.1 100 Continue\r\n\r\n"

struct asked {
    struct s3 s3;
    enum s3_error error;
    struct buf document;
    atomic_bool is_answered;
};

static void on_request(struct http_conn *c, void *arg)
{
    struct asked *asked = arg;
    struct s3_request r = {.s3 = &asked->s3,
                           .conn = c,
                           .http = http_conn_request(c),
                           .arena = http_conn_arena(c),
                           .claim.payload_hash = SLICE_LIT("UNSIGNED-PAYLOAD")};

    asked->error = put_document(&r, &asked->document, /* with_checksum= */ true);
    put_document_end(&r);
    atomic_store(&asked->is_answered, true);
    (void)http_conn_reply(c, 200, SLICE_NULL, SLICE_NULL);
}

struct dripping {
    int fd;
    uint64_t step_ns; /* between one byte and the next */
    const struct asked *asked;
};

static bool is_taken(int fd)
{
    int left = 0;

    return ioctl(fd, SIOCOUTQ, &left) == 0 && left == 0;
}

/* Once the document is wanted: a byte at a time, when the one before was taken, and in the end all that is
 * left. */
static void *drip(void *arg)
{
    const struct dripping *d = arg;
    char wanted[sizeof CONTINUE - 1];
    size_t n = 0;

    while (n < sizeof wanted && poll(&(struct pollfd){.fd = d->fd, .events = POLLIN}, 1, -1) > 0) {
        ssize_t k = recv(d->fd, wanted + n, sizeof wanted - n, 0);
        n += k > 0 ? (size_t)k : 0;
    }
    for (int i = 0; i < DRIPS; i++) {
        clock_sys_advance(d->step_ns);
        (void)send(d->fd, " ", 1, MSG_NOSIGNAL);
        while (!is_taken(d->fd) && !atomic_load(&d->asked->is_answered))
            (void)poll(NULL, 0, 1);
    }
    (void)send(d->fd, "<Delete/>", 9, MSG_NOSIGNAL);
    return NULL;
}

static enum s3_error ask_slowly(uint64_t step_ns, size_t *ret_bytes)
{
    static const char head[] = "POST /b?delete HTTP/1.1\r\nHost: h\r\nContent-Length: 109\r\n"
                               "Expect: 100-continue\r\n\r\n";
    struct asked asked = {.document = BUF_INIT(64 * KIB)};
    struct http_conn *c = http_conn_new();
    struct err e = {0};
    pthread_t thread;
    int fds[2], status = 0;

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    assert_int_equal(sock_set_timeouts(fds[0], 30000, 30000), 0);
    assert_true(send(fds[1], head, sizeof head - 1, 0) == sizeof head - 1);
    asked.s3.documents = budget_new(MIB);
    http_conn_attach(c, stream_plain(fds[0]), NULL, SLICE_NULL, /* is_part= */ false);
    assert_true(http_conn_receive(c) > 0);
    assert_int_equal(http_conn_parse(c, &status, &e), 0);
    struct dripping d = {.fd = fds[1], .step_ns = step_ns, .asked = &asked};
    assert_int_equal(pthread_create(&thread, NULL, drip, &d), 0);
    (void)http_conn_serve(c, on_request, &asked);
    (void)shutdown(fds[0], SHUT_RDWR);
    assert_int_equal(pthread_join(thread, NULL), 0);
    http_conn_detach(c);
    http_conn_free(c);
    (void)close(fds[0]);
    (void)close(fds[1]);
    budget_free(asked.s3.documents);
    *ret_bytes = asked.document.n;
    buf_fini(&asked.document);
    return asked.error;
}

/* A client whose bytes drip, each in good time, has a minute for the whole document; then it gives up its
 * place. Fails without http_conn_end_body in put_document. */
static void dripping_documents_end(void **state)
{
    size_t n = 0;

    (void)state;
    clock_sys_start(1000 * SECOND, 1700000000 * SECOND);
    assert_int_equal(ask_slowly(SECOND / 2, &n), S3_OK);
    assert_int_equal(n, DRIPS + 9);
    assert_int_equal(ask_slowly(SECOND, &n), S3_ERR_REQUEST_TIMEOUT);
    assert_true(n <= 60);
    clock_sys_stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dripping_documents_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
