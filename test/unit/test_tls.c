/* layer: net */
/* threaded */
/* TLS: certificates that cannot be used are refused in one line; bytes come through whole however small the
 * socket's buffers are; nothing waits inside; what is buffered is told. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "net/sock.h"
#include "net/stream.h"
#include "tls_fixture.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#define DAY_S (24 * 3600L)

struct fixture {
    char *dir;
    struct tls_files files;
    struct tls_server *server;
    int client_fd, server_fd;
};

static int set_up(void **state)
{
    (void)signal(SIGPIPE, SIG_IGN);
    struct fixture *f = calloc(1, sizeof(*f));
    struct err e = {0};
    int pair[2];
    f->dir = tmpdir_new();
    f->files = tls_make_files(f->dir, "node", -DAY_S, DAY_S);
    assert_int_equal(tls_server_open(f->files.cert, f->files.key, &f->server, &e), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    f->client_fd = pair[0];
    f->server_fd = pair[1];
    assert_int_equal(fcntl(f->server_fd, F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(sock_set_timeouts(f->server_fd, 60000, 60000), 0);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    macro_close(&f->client_fd);
    macro_close(&f->server_fd);
    tls_server_free(f->server);
    tls_files_fini(&f->files);
    tmpdir_free(f->dir);
    free(f);
    return 0;
}

static void *connect_client(void *arg)
{
    struct fixture *f = arg;
    return tls_client(f->client_fd);
}

/* Both sides with their handshake done. */
static struct tls *shake(struct fixture *f, SSL **ret_client)
{
    pthread_t thread;
    void *client;
    struct err e = {0};
    assert_int_equal(pthread_create(&thread, NULL, connect_client, f), 0);
    struct tls *t = tls_new(f->server, f->server_fd);
    int k;
    while ((k = tls_handshake(t, &e)) == -EAGAIN)
        assert_int_equal(sock_wait_ready(f->server_fd, tls_wants(t)), 0);
    assert_int_equal(k, 0);
    assert_int_equal(pthread_join(thread, &client), 0);
    *ret_client = client;
    return t;
}

/* Each kind of unusable file is refused with the option, the file and what is wrong, in one line. */
static void test_files_that_cannot_be_used(void **state)
{
    struct fixture *f = *state;
    struct tls_files other = tls_make_files(f->dir, "other", -DAY_S, DAY_S);
    struct tls_files old = tls_make_files(f->dir, "old", -2 * DAY_S, -DAY_S);
    struct tls_files early = tls_make_files(f->dir, "early", DAY_S, 2 * DAY_S);
    char *none = tmpdir_path(f->dir, "none"), *garbage = tmpdir_path(f->dir, "garbage");
    char *locked = tmpdir_path(f->dir, "locked");
    FILE *out = fopen(garbage, "w");
    assert_true(out && fputs("not a certificate\n", out) >= 0 && fclose(out) == 0);
    EVP_PKEY *key = EVP_EC_gen("P-256");
    out = fopen(locked, "w");
    assert_true(out && PEM_write_PrivateKey(out, key, EVP_aes_128_cbc(), (const unsigned char *)"word", 4,
                                            NULL, NULL) == 1);
    assert_int_equal(fclose(out), 0);
    EVP_PKEY_free(key);
    const struct {
        const char *cert, *key, *option, *words;
    } cases[] = {
        {none, f->files.key, "--tls-cert", "No such file"},
        {f->files.cert, none, "--tls-key", "No such file"},
        {garbage, f->files.key, "--tls-cert", "not a certificate chain"},
        {f->files.cert, garbage, "--tls-key", "not a private key"},
        {f->files.cert, locked, "--tls-key", "without a passphrase"},
        {f->files.cert, other.key, "--tls-key", "is not the key of the certificate"},
        {old.cert, old.key, "--tls-cert", "expired"},
        {early.cert, early.key, "--tls-cert", "not valid yet"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct tls_server *s = NULL;
        struct err e = {0};
        assert_int_equal(tls_server_open(cases[i].cert, cases[i].key, &s, &e), ERR_BAD_OPTION);
        assert_null(s);
        assert_ptr_equal(strstr(e.text, cases[i].option), e.text);
        assert_non_null(strstr(e.text, cases[i].words));
        assert_null(strchr(e.text, '\n'));
        assert_int_equal(tls_server_reload(f->server, cases[i].cert, cases[i].key, &e), ERR_BAD_OPTION);
    }
    tls_files_fini(&other);
    tls_files_fini(&old);
    tls_files_fini(&early);
    free(none);
    free(garbage);
    free(locked);
}

/* After a reload new connections see the new certificate, after a failed one still the former; an open
 * connection goes on. */
static void test_reload(void **state)
{
    struct fixture *f = *state;
    struct tls_files fresh = tls_make_files(f->dir, "fresh", -DAY_S, DAY_S);
    SSL *client;
    char name[64], got[8] = "", text[TLS_TEXT_MAX];
    struct tls *t = shake(f, &client);
    tls_peer_name(client, name);
    assert_string_equal(name, "node");
    assert_int_equal(tls_server_reload(f->server, fresh.cert, "/nowhere", NULL), ERR_BAD_OPTION);
    tls_server_describe(f->server, text);
    assert_non_null(strstr(text, "node"));
    assert_int_equal(tls_server_reload(f->server, fresh.cert, fresh.key, NULL), 0);
    tls_server_describe(f->server, text);
    assert_non_null(strstr(text, "fresh"));
    assert_int_equal(stream_send_all((struct stream){f->server_fd, t}, "still", 5, false), 0);
    assert_int_equal(SSL_read(client, got, sizeof(got)), 5);
    SSL_free(client);
    tls_free(t);
    close(f->client_fd);
    close(f->server_fd);
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    f->client_fd = pair[0];
    f->server_fd = pair[1];
    assert_int_equal(fcntl(f->server_fd, F_SETFL, O_NONBLOCK), 0);
    t = shake(f, &client);
    tls_peer_name(client, name);
    assert_string_equal(name, "fresh");
    SSL_free(client);
    tls_free(t);
    tls_files_fini(&fresh);
}

/* Bytes that OpenSSL holds are told, and an empty socket with a part of a record is not taken for them. */
static void test_pending_bytes_are_told(void **state)
{
    struct fixture *f = *state;
    SSL *client;
    struct tls *t = shake(f, &client);
    char got[64];
    assert_int_equal(tls_recv(t, got, sizeof(got)), -EAGAIN);
    assert_false(tls_has_pending(t));
    assert_int_equal(SSL_write(client, "first", 5), 5);
    assert_int_equal(SSL_write(client, "second", 6), 6);
    assert_int_equal(tls_recv(t, got, 2), 2);
    assert_true(tls_has_pending(t));
    assert_int_equal(tls_recv(t, got, sizeof(got)), 3);
    assert_true(tls_has_pending(t)); /* the second record came with the same read of the socket */
    assert_int_equal(tls_recv(t, got, sizeof(got)), 6);
    assert_memory_equal(got, "second", 6);
    assert_int_equal(tls_recv(t, got, sizeof(got)), -EAGAIN);
    assert_false(tls_has_pending(t));
    assert_int_equal(tls_wants(t), POLLIN);
    SSL_free(client);
    tls_free(t);
}

struct reader {
    SSL *client;
    size_t want, piece;
    uint64_t hash;
    size_t got;
};

static uint64_t mix(uint64_t hash, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ (uint8_t)p[i]) * 1099511628211u;
    return hash;
}

static void *read_all(void *arg)
{
    struct reader *r = arg;
    char *p = malloc(r->piece);
    while (r->got < r->want) {
        int k = SSL_read(r->client, p, (int)r->piece);
        if (k <= 0)
            break;
        r->hash = mix(r->hash, p, (size_t)k);
        r->got += (size_t)k;
    }
    free(p);
    return NULL;
}

/* Everything sent by writes, gathered pieces and files arrives whole and in order through a small socket. */
static void test_bytes_come_through_small_sockets(void **state)
{
    enum { FILE_BYTES = 700000, ROUNDS = 30 };
    struct fixture *f = *state;
    SSL *client;
    struct tls *t = shake(f, &client);
    struct stream s = {f->server_fd, t};
    const int small = 4096;
    assert_int_equal(setsockopt(f->server_fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
    char *path = tmpdir_path(f->dir, "file"), *p = malloc(FILE_BYTES);
    for (size_t i = 0; i < FILE_BYTES; i++)
        p[i] = (char)(i * 7 + i / 4099);
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(write(file, p, FILE_BYTES), FILE_BYTES);
    struct reader r = {.client = client, .want = SIZE_MAX, .piece = 3000};
    uint64_t hash = 0;
    size_t sent = 0;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, read_all, &r), 0);
    for (size_t i = 1; i <= ROUNDS; i++) {
        size_t n = i * 1777 % 40000, at = i * 9973;
        struct iovec iov[3] = {{p, i}, {p + 5, 0}, {p + at, n}};
        assert_int_equal(stream_sendv_all(s, iov, 3), 0);
        assert_int_equal(stream_send_all(s, p + 1, 1, /* more= */ true), 0);
        assert_int_equal(stream_sendfile_all(s, file, at, FILE_BYTES - at), 0);
        hash = mix(mix(mix(mix(hash, p, i), p + at, n), p + 1, 1), p + at, FILE_BYTES - at);
        sent += i + n + 1 + FILE_BYTES - at;
    }
    tls_end(t);
    assert_int_equal(stream_sendfile_all(s, file, 0, 1), -EPIPE); /* nothing after the end */
    assert_int_equal(shutdown(f->server_fd, SHUT_WR), 0);         /* the good-bye found no room, perhaps */
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(r.got, sent);
    assert_int_equal(r.hash, hash);
    SSL_free(client);
    tls_free(t);
    close(file);
    free(path);
    free(p);
}

/* A file that is shorter than asked gives -ENODATA. */
static void test_a_short_file(void **state)
{
    struct fixture *f = *state;
    SSL *client;
    struct tls *t = shake(f, &client);
    char *path = tmpdir_path(f->dir, "short");
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(write(file, "abc", 3), 3);
    assert_int_equal(stream_sendfile_all((struct stream){f->server_fd, t}, file, 0, 10), -ENODATA);
    SSL_free(client);
    tls_free(t);
    close(file);
    free(path);
}

static atomic_bool is_bad_sector;

/* What OpenSSL calls, which has its own width of offsets, and so the plain name. */
ssize_t sendfile_of_openssl(int out, int in, off_t *at, size_t n) __asm__("sendfile");
ssize_t sendfile_of_openssl(int out, int in, off_t *at, size_t n)
{
    if (!atomic_load(&is_bad_sector))
        return syscall(SYS_sendfile, out, in, at, n);
    errno = EIO;
    return -1;
}

static ssize_t pread_of_bad_sector(int fd, void *p, size_t n, uint64_t offset)
{
    (void)fd, (void)p, (void)n, (void)offset;
    return -EIO;
}

/* A TCP connection in place of the socket pair: the kernel's TLS, where there is one, takes no other. */
static void over_tcp(struct fixture *f)
{
    struct err e = {0};
    char address[128];
    int listener = -1;
    macro_close(&f->client_fd);
    macro_close(&f->server_fd);
    f->client_fd = f->server_fd = -1;
    assert_int_equal(sock_listen_tcp("127.0.0.1:0", 1, &listener, address, &e), 0);
    assert_int_equal(sock_connect_tcp(address, 60000, &f->client_fd, &e), 0);
    f->server_fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    assert_true(f->server_fd >= 0);
    assert_int_equal(sock_set_timeouts(f->server_fd, 60000, 60000), 0);
    close(listener);
}

/* A file that cannot be read is told from a socket that failed, also where the kernel sends it: whoever has
 * it open has those bytes fetched again. (Without why_none the second round fails on kernels with TLS.) */
static void test_a_file_that_cannot_be_read(void **state)
{
    struct fixture *f = *state;
    struct sys bad = sys_real;
    char *path = tmpdir_path(f->dir, "bad");
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(write(file, "abc", 3), 3);
    bad.pread = pread_of_bad_sector;
    for (int tcp = 0; tcp <= 1; tcp++) {
        SSL *client;
        if (tcp)
            over_tcp(f);
        struct tls *t = shake(f, &client);
        sys = &bad;
        atomic_store(&is_bad_sector, true);
        assert_int_equal(stream_sendfile_all((struct stream){.fd = f->server_fd, .tls = t}, file, 0, 3),
                         -EIO);
        atomic_store(&is_bad_sector, false);
        sys = &sys_real;
        SSL_free(client);
        tls_free(t);
    }
    close(file);
    free(path);
}

/* Bytes that were taken although the socket was full are sent by the next calls, whatever those are given,
 * and a full socket never makes a call wait. */
static void test_a_peer_that_does_not_read(void **state)
{
    struct fixture *f = *state;
    SSL *client;
    struct tls *t = shake(f, &client);
    char part[5000];
    size_t taken = 0;
    ssize_t k;
    memset(part, 'x', sizeof(part));
    while ((k = tls_send(t, part, sizeof(part))) > 0)
        taken += (size_t)k;
    assert_int_equal(k, -EAGAIN);
    assert_int_equal(tls_wants(t), POLLOUT);
    assert_int_equal(tls_flush(t), -EAGAIN);
    assert_int_equal(tls_send(t, "other bytes, fewer", 18), -EAGAIN);
    struct reader r = {.client = client, .want = taken + 4, .piece = 20000};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, read_all, &r), 0);
    assert_int_equal(stream_send_all((struct stream){f->server_fd, t}, "last", 4, false), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(r.got, taken + 4);
    memset(part, 'x', sizeof(part));
    uint64_t hash = 0;
    for (size_t i = 0; i < taken; i++)
        hash = mix(hash, "x", 1);
    assert_int_equal(r.hash, mix(hash, "last", 4));
    SSL_free(client);
    tls_free(t);
}

/* Whoever does not speak TLS is refused with a reason; one that goes away, with or without a good-bye, ends
 * the stream. */
static void test_broken_peers(void **state)
{
    struct fixture *f = *state;
    struct err e = {0};
    struct tls *t = tls_new(f->server, f->server_fd);
    assert_int_equal(tls_handshake(t, &e), -EAGAIN);
    assert_int_equal(write(f->client_fd, "\x16\x03\x01\x00\x05hello", 10), 10);
    assert_int_equal(tls_handshake(t, &e), ERR_PROTOCOL);
    assert_true(e.text[0] != '\0');
    assert_int_equal(tls_handshake(t, &e), -EPIPE);
    tls_free(t);
    char scrap[256];
    assert_true(read(f->client_fd, scrap, sizeof(scrap)) > 0); /* the alert */
    SSL *client;
    t = shake(f, &client);
    SSL_free(client);
    close(TAKE_FD(f->client_fd));
    assert_int_equal(tls_recv(t, scrap, sizeof(scrap)), 0);
    assert_int_equal(stream_recv_some((struct stream){f->server_fd, t}, scrap, sizeof(scrap)), -EPIPE);
    tls_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_files_that_cannot_be_used, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_reload, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_pending_bytes_are_told, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bytes_come_through_small_sockets, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_short_file, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_file_that_cannot_be_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_peer_that_does_not_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_broken_peers, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
