/*
 * The proxy's own limits: an in-process server that sends from a memory file, the proxy without limits, and
 * in-process clients that throw away what they receive. All three share the machine, so real limits are
 * higher.
 */
#include "shaper.h"

#include "base/sys.h"
#include "net/sock.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>

#define CLIENTS 16
#define RUN_NS  3000000000ull
#define LARGE   (64 * MIB)
#define SMALL   (4 * KIB)

struct bench {
    struct shaper proxy;
    int data_fd;
    uint64_t body_bytes;
    char origin_address[128], proxy_address[128];
    const char *address; /* where clients connect */
    uint64_t until_ns;
    uint64_t bytes, requests; /* atomic */
};

static struct bench bench; /* used by threads until the process is gone */

/* Answers each head with body_bytes of the memory file. */
static void *origin_connection(void *arg)
{
    int _cleanup_close_ fd = (int)(intptr_t)arg;
    char head[4096], answer[128];
    size_t n = 0;
    int answer_n = snprintf(answer, sizeof(answer), "HTTP/1.1 200 OK\r\nContent-Length: %llu\r\n\r\n",
                            (unsigned long long)bench.body_bytes);
    for (;;) {
        ssize_t got = sock_recv_some(fd, head + n, sizeof(head) - n);
        if (got <= 0)
            return NULL;
        n += (size_t)got;
        if (head_length(slice_of(head, n)) == 0)
            continue;
        n = 0; /* clients here do not send ahead */
        if (sock_send_all(fd, answer, (size_t)answer_n, MSG_MORE) < 0 ||
            sock_sendfile_all(fd, bench.data_fd, 0, bench.body_bytes) < 0)
            return NULL;
    }
}

static int start_thread(void *(*fn)(void *), void *arg, pthread_t *ret)
{
    return -pthread_create(ret, NULL, fn, arg);
}

static void *origin_accept(void *arg)
{
    int listen_fd = (int)(intptr_t)arg;
    for (;;) {
        int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
        pthread_t id;
        if (fd >= 0 && start_thread(origin_connection, (void *)(intptr_t)fd, &id) == 0)
            (void)pthread_detach(id);
    }
    return NULL;
}

static void *proxy_accept(void *arg)
{
    (void)shaper_accept(&bench.proxy, (int)(intptr_t)arg, eventfd(0, EFD_CLOEXEC));
    return NULL;
}

/* One response: head, then the body without copying it out of the kernel. */
static int client_request(int fd)
{
    static const char request[] = "GET /bucket/key HTTP/1.1\r\nHost: localhost\r\n\r\n";
    int r = sock_send_all(fd, request, sizeof(request) - 1, /* flags= */ 0);
    char head[1024];
    size_t n = 0, head_n = 0;
    while (r == 0 && head_n == 0 && n < sizeof(head)) {
        ssize_t got = sock_recv_some(fd, head + n, sizeof(head) - n);
        if (got <= 0)
            return -EPIPE;
        n += (size_t)got;
        head_n = head_length(slice_of(head, n));
    }
    if (r < 0 || head_n == 0)
        return -EPIPE;
    uint64_t left = bench.body_bytes - (n - head_n);
    while (left > 0) {
        ssize_t got = recv(fd, NULL, MIN(left, 4 * MIB), MSG_TRUNC);
        if (got <= 0)
            return -EPIPE;
        left -= (uint64_t)got;
        __atomic_fetch_add(&bench.bytes, (uint64_t)got, __ATOMIC_RELAXED);
    }
    __atomic_fetch_add(&bench.requests, 1, __ATOMIC_RELAXED);
    return 0;
}

static void *client(void *arg)
{
    int _cleanup_close_ fd = -1;
    if (sock_connect_tcp(bench.address, 1000, &fd, NULL) < 0)
        return NULL;
    while (sys->mono_ns() < bench.until_ns && client_request(fd) == 0)
        ;
    return NULL;
}

static uint64_t connections(void)
{
    LOCK_SCOPE(&bench.proxy.stats.lock);
    return bench.proxy.stats.connections;
}

struct result {
    double bytes_per_s, requests_per_s;
    double proxy_cpu_s; /* of the proxy's threads */
    uint64_t bytes, requests;
};

static struct result measure(const char *address, uint64_t body_bytes)
{
    pthread_t ids[CLIENTS];
    int n = 0;
    bench.body_bytes = body_bytes;
    bench.bytes = bench.requests = 0;
    bench.address = address;
    uint64_t start = sys->mono_ns(), cpu = __atomic_load_n(&bench.proxy.cpu_ns, __ATOMIC_RELAXED);
    bench.until_ns = start + RUN_NS;
    while (n < CLIENTS && start_thread(client, NULL, &ids[n]) == 0)
        n++;
    for (int i = 0; i < n; i++)
        (void)pthread_join(ids[i], NULL);
    double seconds = (double)(sys->mono_ns() - start) / 1e9;
    while (connections() > 0) /* their time is added when they end */
        sys->sleep_ns(1000000);
    cpu = __atomic_load_n(&bench.proxy.cpu_ns, __ATOMIC_RELAXED) - cpu;
    return (struct result){.bytes_per_s = (double)bench.bytes / seconds,
                           .requests_per_s = (double)bench.requests / seconds,
                           .proxy_cpu_s = (double)cpu / 1e9,
                           .bytes = bench.bytes,
                           .requests = bench.requests};
}

/* Listens, and starts a thread that accepts. */
static int start_server(void *(*fn)(void *), char ret_address[128], struct err *e)
{
    int fd;
    int r = sock_listen_tcp("127.0.0.1:0", 256, &fd, ret_address, e);
    if (r < 0)
        return r;
    pthread_t id;
    r = start_thread(fn, (void *)(intptr_t)fd, &id);
    if (r < 0)
        return err_errno(e, r, "start a thread");
    (void)pthread_detach(id);
    return 0;
}

static int prepare(struct err *e)
{
    bench.data_fd = memfd_create("shaper-ceiling", MFD_CLOEXEC);
    if (bench.data_fd < 0 || ftruncate(bench.data_fd, (off_t)LARGE) < 0 ||
        fallocate(bench.data_fd, 0, 0, (off_t)LARGE) < 0)
        return err_errno(e, -errno, "make a memory file");
    int r = start_server(origin_accept, bench.origin_address, e);
    if (r < 0)
        return r;
    shaper_init(&bench.proxy, bench.origin_address);
    return start_server(proxy_accept, bench.proxy_address, e);
}

int ceiling_run(void)
{
    struct err e;
    if (prepare(&e) < 0) {
        fprintf(stderr, "shaper: %s\n", e.text);
        return -1;
    }
    struct result direct = measure(bench.origin_address, LARGE), large = measure(bench.proxy_address, LARGE);
    printf("%d connections, bodies of %d MiB: %.2f GB/s (without the proxy %.2f), %.2f CPU seconds of it per "
           "GB\n",
           CLIENTS, (int)(LARGE / MIB), large.bytes_per_s / 1e9, direct.bytes_per_s / 1e9,
           large.proxy_cpu_s * 1e9 / (double)MAX(large.bytes, 1));
    direct = measure(bench.origin_address, SMALL);
    struct result small = measure(bench.proxy_address, SMALL);
    printf("%d connections, bodies of %d KiB: %.0f requests/s (without the proxy %.0f), %.0f CPU us of it "
           "per request\n",
           CLIENTS, (int)(SMALL / KIB), small.requests_per_s, direct.requests_per_s,
           small.proxy_cpu_s * 1e6 / (double)MAX(small.requests, 1));
    return 0;
}
