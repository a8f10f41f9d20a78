/* layer: net */
/* threaded */
/* Sockets: addresses, whole transfers on blocking and non-blocking sockets, timeouts, descriptors passed
 * along. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/sys.h"
#include "net/sock.h"

#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>

static void make_pair(int pair[2], bool nonblocking)
{
    assert_int_equal(
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | (nonblocking ? SOCK_NONBLOCK : 0), 0, pair), 0);
    assert_int_equal(sock_set_timeouts(pair[0], 60000, 60000), 0);
    assert_int_equal(sock_set_timeouts(pair[1], 60000, 60000), 0);
}

static void close_pair(int pair[2])
{
    (void)close(pair[0]);
    (void)close(pair[1]);
}

static size_t count_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    size_t n = 0;
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* A listener on port 0 tells its real address, and a client that connects there reaches it. */
static void listens_and_connects(void **state)
{
    char address[128], again[128];
    struct err e = {0};
    int listener, second, client;
    assert_int_equal(sock_listen_tcp("127.0.0.1:0", 8, &listener, address, &e), 0);
    assert_true(strncmp(address, "127.0.0.1:", 10) == 0 && strcmp(address, "127.0.0.1:0") != 0);
    assert_int_equal(sock_connect_tcp(address, 5000, &client, &e), 0);
    int served = accept(listener, NULL, NULL);
    assert_true(served >= 0);
    assert_int_equal(sock_send_all(client, "hello", 5, 0), 0);
    char got[5];
    assert_int_equal(sock_recv_all(served, got, 5), 0);
    assert_memory_equal(got, "hello", 5);
    assert_true(fcntl(client, F_GETFD) & FD_CLOEXEC);
    assert_int_equal(sock_listen_tcp(address, 8, &second, again, &e), -EADDRINUSE);
    assert_non_null(strstr(e.text, address)); /* says which */
    (void)close(served);
    (void)close(client);
    (void)close(listener);
    assert_int_equal(sock_connect_tcp(address, 5000, &client, &e), -ECONNREFUSED);
    assert_non_null(strstr(e.text, address));
}

/* What goes to an address of this machine waits for no clock, whatever the machine has for networks: both
 * ends are Reno's where a process may choose it. (Seen to fail without sock_free_of_clocks in either
 * function, with BBR as the machine's.) */
static void loopback_is_not_paced(void **state)
{
    static const char reno[] = "reno";
    int _cleanup_close_ listener = -1;
    int _cleanup_close_ fd = -1;
    int _cleanup_close_ accepted = -1;
    int _cleanup_close_ other = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char address[128], name[16] = "";
    (void)state;
    assert_int_equal(sock_listen_tcp("127.0.0.1:0", 8, &listener, address, NULL), 0);
    assert_int_equal(sock_connect_tcp(address, 60000, &fd, NULL), 0);
    accepted = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    assert_true(accepted >= 0 && other >= 0);
    if (setsockopt(other, IPPROTO_TCP, TCP_CONGESTION, reno, sizeof(reno) - 1) < 0)
        return; /* this process may not choose it */
    int ends[] = {fd, accepted};
    for (size_t i = 0; i < ARRAY_SIZE(ends); i++) {
        socklen_t n = sizeof(name) - 1;
        assert_int_equal(getsockopt(ends[i], IPPROTO_TCP, TCP_CONGESTION, name, &n), 0);
        assert_string_equal(name, reno);
    }
}

/* Addresses that are not ones are refused with their text. */
static void refuses_bad_addresses(void **state)
{
    static const char *const bad[] = {"", "127.0.0.1", "127.0.0.1:x", "::1:80", "no such host:80"};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct err e = {0};
        int fd = -7;
        assert_true(sock_listen_tcp(bad[i], 8, &fd, NULL, &e) < 0);
        assert_int_equal(fd, -7);
        assert_true(e.text[0] != '\0');
    }
}

/* An address that swallows what is sent to it leaves time for the next one of the same name. */
static void tries_every_address_in_its_time(void **state)
{
    char address[128], name[16];
    struct err e = {0};
    int listener = -1, deaf = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), filler[2], client = -1;
    assert_int_equal(sock_listen_tcp("127.0.0.1:0", 8, &listener, address, &e), 0);
    uint16_t port = (uint16_t)atoi(strrchr(address, ':') + 1);
    struct sockaddr_in6 a = {
        .sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    if (deaf < 0 || bind(deaf, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(deaf, 0) < 0) {
        (void)close(deaf);
        (void)close(listener);
        skip(); /* no IPv6 here */
    }
    for (size_t i = 0; i < ARRAY_SIZE(filler); i++) { /* its queue is full now */
        filler[i] = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)connect(filler[i], (struct sockaddr *)&a, sizeof(a));
    }
    (void)snprintf(name, sizeof(name), ":%u", port); /* without a host: both loopback addresses */
    assert_int_equal(sock_connect_tcp(name, 8000, &client, &e), 0);
    (void)close(client);
    for (size_t i = 0; i < ARRAY_SIZE(filler); i++)
        (void)close(filler[i]);
    (void)close(deaf);
    (void)close(listener);
}

/* A socket file without a listener is replaced; one with a listener is left alone; the directory is private.
 */
static void replaces_only_stale_unix_sockets(void **state)
{
    char dir[] = "/tmp/forebay-test-XXXXXX", path[96], run[64];
    assert_non_null(mkdtemp(dir));
    snprintf(run, sizeof(run), "%s/run", dir);
    snprintf(path, sizeof(path), "%s/s.sock", run);
    struct err e = {0};
    int first, second, client;
    assert_int_equal(sock_listen_unix(path, 8, &first, &e), 0);
    struct stat st;
    assert_int_equal(stat(run, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    assert_int_equal(sock_listen_unix(path, 8, &second, &e), -EADDRINUSE);
    assert_int_equal(sock_connect_unix(path, &client, &e), 0);
    uid_t uid = 12345;
    assert_int_equal(sock_peer_uid(client, &uid), 0);
    assert_int_equal(uid, geteuid());
    (void)close(client);
    (void)close(first);
    assert_int_equal(sock_connect_unix(path, &client, &e), -ECONNREFUSED);
    assert_int_equal(sock_listen_unix(path, 8, &second, &e), 0); /* now it is stale */
    (void)close(second);
    char too_long[200];
    memset(too_long, 'a', sizeof(too_long) - 1);
    too_long[sizeof(too_long) - 1] = '\0';
    assert_int_equal(sock_listen_unix(too_long, 8, &second, &e), -ENAMETOOLONG);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(run), 0);
    assert_int_equal(rmdir(dir), 0);
}

struct reader {
    int fd;
    size_t n;
    char *got;
    int result;
};

static void *read_slowly(void *arg)
{
    struct reader *r = arg;
    usleep(20000); /* so that the sender meets a full socket first */
    r->result = sock_recv_all(r->fd, r->got, r->n);
    return NULL;
}

enum { LARGE = 3 * 1000 * 1000 + 17 };

static char *pattern(size_t n)
{
    char *p = malloc(n);
    for (size_t i = 0; i < n; i++)
        p[i] = (char)(i * 7 + i / 251);
    return p;
}

/* Buffers larger than the socket's go through whole, gathered or not, on blocking and non-blocking sockets.
 */
static void sends_more_than_the_socket_holds(void **state)
{
    _cleanup_free_ char *data = pattern(LARGE);
    for (int how = 0; how < 4; how++) {
        int pair[2];
        make_pair(pair, how & 1);
        struct reader r = {.fd = pair[1], .n = LARGE, .got = malloc(LARGE)};
        pthread_t t;
        assert_int_equal(pthread_create(&t, NULL, read_slowly, &r), 0);
        struct iovec iov[4] = {
            {data, 1}, {data + 1, 0}, {data + 1, 1000000}, {data + 1000001, LARGE - 1000001}};
        int k = how & 2 ? sock_sendv_all(pair[0], iov, 4, 0) : sock_send_all(pair[0], data, LARGE, 0);
        assert_int_equal(k, 0);
        pthread_join(t, NULL);
        assert_int_equal(r.result, 0);
        assert_memory_equal(r.got, data, LARGE);
        free(r.got);
        close_pair(pair);
    }
}

/* sendfile gives the range asked for, and says so when the file ends before it. */
static void sends_ranges_of_files(void **state)
{
    char path[] = "/tmp/forebay-test-XXXXXX";
    int file = mkstemp(path);
    assert_int_equal(unlink(path), 0);
    _cleanup_free_ char *data = pattern(LARGE);
    assert_int_equal(write(file, data, LARGE), LARGE);
    int pair[2];
    make_pair(pair, true);
    struct reader r = {.fd = pair[1], .n = LARGE - 100, .got = malloc(LARGE)};
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, read_slowly, &r), 0);
    assert_int_equal(sock_sendfile_all(pair[0], file, 100, LARGE - 100), 0);
    pthread_join(t, NULL);
    assert_int_equal(r.result, 0);
    assert_memory_equal(r.got, data + 100, LARGE - 100);
    free(r.got);
    assert_int_equal(sock_sendfile_all(pair[0], file, LARGE - 10, 11), -ENODATA);
    close_pair(pair);
    (void)close(file);
}

/* A side that is gone gives -EPIPE and no signal; one that is silent -ETIMEDOUT, blocking or not. */
static void tells_gone_from_silent(void **state)
{
    for (int nonblocking = 0; nonblocking <= 1; nonblocking++) {
        int pair[2];
        char c;
        make_pair(pair, nonblocking);
        assert_int_equal(sock_set_timeouts(pair[0], 30, 30), 0);
        assert_int_equal(sock_recv_all(pair[0], &c, 1), -ETIMEDOUT);
        _cleanup_free_ char *data = pattern(LARGE);
        assert_int_equal(sock_send_all(pair[0], data, LARGE, 0), -ETIMEDOUT);
        (void)close(pair[1]);
        assert_int_equal(sock_send_all(pair[0], data, LARGE, 0), -EPIPE);
        (void)close(pair[0]);
        make_pair(pair, nonblocking);
        assert_int_equal(sock_send_all(pair[1], "ab", 2, 0), 0);
        (void)close(pair[1]);
        char three[3];
        assert_int_equal(sock_recv_some(pair[0], three, 3), 2);
        assert_int_equal(sock_recv_some(pair[0], three, 3), -EPIPE);
        (void)close(pair[0]);
    }
}

/* Sends `n` descriptors with one byte, as a peer that does not keep to the protocol might. */
static void send_descriptors(int fd, int what, size_t n)
{
    char space[CMSG_SPACE(4 * sizeof(int))] __attribute__((aligned(8))) = {0};
    struct iovec iov = {.iov_base = (char[]){'x'}, .iov_len = 1};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = space,
                       .msg_controllen = CMSG_SPACE(n * sizeof(int))};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(n * sizeof(int));
    for (size_t i = 0; i < n; i++)
        memcpy(CMSG_DATA(c) + i * sizeof(int), &what, sizeof(what));
    assert_int_equal(sendmsg(fd, &m, 0), 1);
}

/* A descriptor arrives once, usable and close-on-exec; more than one, or one before a broken message, do not
 * leak. */
static void passes_descriptors_without_leaks(void **state)
{
    size_t before = count_fds();
    int pair[2], got = -1;
    make_pair(pair, false);
    int file = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    struct iovec iov[2] = {{.iov_base = (char[]){"head"}, .iov_len = 4},
                           {.iov_base = (char[]){"body"}, .iov_len = 4}};
    assert_int_equal(sock_sendv_fd(pair[0], iov, 2, file), 0);
    char text[8];
    assert_int_equal(sock_recv_all_fd(pair[1], text, 8, &got), 0);
    assert_memory_equal(text, "headbody", 8);
    assert_true(got >= 0 && (fcntl(got, F_GETFD) & FD_CLOEXEC));
    assert_int_equal(read(got, text, 1), 1);
    (void)close(got);
    iov[0] = (struct iovec){.iov_base = (char[]){"none"}, .iov_len = 4};
    assert_int_equal(sock_sendv_fd(pair[0], iov, 1, -1), 0);
    assert_int_equal(sock_recv_all_fd(pair[1], text, 4, &got), 0);
    assert_int_equal(got, -1);
    send_descriptors(pair[0], file, 3);
    assert_int_equal(sock_recv_all_fd(pair[1], text, 1, &got), 0);
    assert_true(got >= 0);
    (void)close(got);
    got = -7;
    send_descriptors(pair[0], file, 1);
    (void)close(pair[0]); /* the message ends early */
    assert_int_equal(sock_recv_all_fd(pair[1], text, 8, &got), -EPIPE);
    assert_int_equal(got, -7);
    (void)close(pair[1]);
    (void)close(file);
    assert_int_equal(count_fds(), before);
}

static volatile sig_atomic_t ticks, cut_at_tick;

static void on_tick(int signal_number)
{
    if (++ticks == 100)
        (void)shutdown(cut_at_tick, SHUT_RDWR); /* so that the test ends either way */
}

/* Signals that come again and again do not put a timeout off for ever. */
static void signals_do_not_put_timeouts_off(void **state)
{
    struct sigaction old, tick = {.sa_handler = on_tick};
    struct itimerval every = {.it_interval = {.tv_usec = 50000}, .it_value = {.tv_usec = 50000}}, off = {0};
    assert_int_equal(sigaction(SIGALRM, &tick, &old), 0);
    for (int nonblocking = 0; nonblocking < 2; nonblocking++) {
        int pair[2];
        char p[1];
        make_pair(pair, nonblocking);
        assert_int_equal(sock_set_timeouts(pair[0], 300, 300), 0);
        ticks = 0;
        cut_at_tick = pair[1];
        assert_int_equal(setitimer(ITIMER_REAL, &every, NULL), 0);
        ssize_t k = sock_recv_some(pair[0], p, sizeof(p));
        assert_int_equal(setitimer(ITIMER_REAL, &off, NULL), 0);
        assert_int_equal(k, -ETIMEDOUT);
        close_pair(pair);
    }
    assert_int_equal(sigaction(SIGALRM, &old, NULL), 0);
}

/* Who is at the other end of a Unix socket: uid, gid and every group; of TCP nobody knows. */
static void tells_peers(void **state)
{
    struct sock_peer a = {0}, b = {0};
    gid_t groups[1024];
    int pair[2], n = getgroups(ARRAY_SIZE(groups), groups);
    assert_true(n >= 0);
    make_pair(pair, false);
    assert_int_equal(sock_peer(pair[0], &a), 0);
    assert_int_equal(a.uid, geteuid());
    assert_int_equal(a.gid, getegid());
    assert_int_equal(a.n_groups, n);
    for (int i = 0; i < n; i++) {
        bool is_there = false;
        for (size_t k = 0; k < a.n_groups; k++)
            is_there |= a.groups[k] == groups[i];
        assert_true(is_there);
    }
    assert_int_equal(sock_peer(pair[1], &b), 0);
    assert_true(sock_peer_eq(&a, &b));
    b.gid++;
    assert_false(sock_peer_eq(&a, &b));
    sock_peer_fini(&a);
    sock_peer_fini(&b);
    close_pair(pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(listens_and_connects),
        cmocka_unit_test(loopback_is_not_paced),
        cmocka_unit_test(refuses_bad_addresses),
        cmocka_unit_test(tries_every_address_in_its_time),
        cmocka_unit_test(replaces_only_stale_unix_sockets),
        cmocka_unit_test(sends_more_than_the_socket_holds),
        cmocka_unit_test(sends_ranges_of_files),
        cmocka_unit_test(tells_gone_from_silent),
        cmocka_unit_test(passes_descriptors_without_leaks),
        cmocka_unit_test(tells_peers),
        cmocka_unit_test(signals_do_not_put_timeouts_off),
    };
    (void)signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests_name("sock", tests, NULL, NULL);
}
