/*
 * One pass over the files of a directory, as a data loader does it: a shuffled list, workers that take the
 * next file, open, read to the end, close. Every byte is checksummed, so that two passes over the same files
 * can be compared.
 */
#include "cli/bench.h"

#include "base/buf.h"
#include "base/crc32c.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/lock.h"
#include "base/sys.h"
#include "net/http.h"
#include "net/sock.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/socket.h>

#define METRICS_MAX_BYTES (8 * MIB)
#define METRICS_TIMEOUT   5000

struct pass {
    const char *root;
    const struct bench_files *files;
    const uint32_t *order;
    size_t block;
    uint64_t *latencies; /* one per file, at its place in the order */
    _Atomic size_t next;
    struct lock lock; /* covers ret */
    struct bench_pass *ret;
};

/* ---- finding files ---- */

static void add_file(struct bench_files *f, const char *name, uint64_t size)
{
    if (f->n == f->cap) {
        f->cap = f->cap ? f->cap * 2 : 1024;
        f->names = realloc(f->names, f->cap * sizeof(f->names[0]));
        f->sizes = realloc(f->sizes, f->cap * sizeof(f->sizes[0]));
        assert(f->names && f->sizes);
    }
    f->names[f->n] = slice_dup(slice_str(name));
    f->sizes[f->n++] = size;
    f->bytes += size;
}

static int find_below(const char *root, const char *below, struct bench_files *f)
{
    _cleanup_buf_ struct buf path = BUF_INIT(16 * KIB);
    int r = buf_printf(&path, "%s%s%s", root, *below ? "/" : "", below);
    DIR *d = r == 0 ? opendir(path.p) : NULL;
    if (!d)
        return r < 0 ? r : -errno;
    for (struct dirent *x; r == 0 && (x = readdir(d));) {
        _cleanup_buf_ struct buf name = BUF_INIT(16 * KIB), full = BUF_INIT(16 * KIB);
        if (strcmp(x->d_name, ".") == 0 || strcmp(x->d_name, "..") == 0)
            continue;
        struct stat st;
        r = buf_printf(&name, "%s%s%s", below, *below ? "/" : "", x->d_name);
        r = r < 0 ? r : buf_printf(&full, "%s/%s", root, name.p);
        r = r < 0 ? r : sys->stat(full.p, &st);
        if (r == 0 && S_ISDIR(st.st_mode))
            r = find_below(root, name.p, f);
        else if (r == 0 && S_ISREG(st.st_mode))
            add_file(f, name.p, (uint64_t)st.st_size);
    }
    (void)closedir(d);
    return r;
}

int bench_files_find(const char *root, struct bench_files *ret)
{
    struct bench_files f = {0};
    int r = find_below(root, "", &f);
    if (r < 0) {
        bench_files_fini(&f);
        return r;
    }
    *ret = f;
    return 0;
}

void bench_files_fini(struct bench_files *f)
{
    for (size_t i = 0; i < f->n; i++)
        free(f->names[i]);
    free(f->names);
    free(f->sizes);
    *f = (struct bench_files){0};
}

/* ---- reading ---- */

/* Fisher and Yates, with a generator of our own so that a seed means the same order everywhere. */
static uint32_t *shuffled(size_t n, uint64_t seed)
{
    uint32_t *order = malloc(MAX(n, (size_t)1) * sizeof(order[0]));
    assert(order);
    for (size_t i = 0; i < n; i++)
        order[i] = (uint32_t)i;
    for (size_t i = n; i > 1; i--) {
        size_t k = hash_mix(seed, i) % i;
        uint32_t t = order[i - 1];
        order[i - 1] = order[k];
        order[k] = t;
    }
    return order;
}

static int read_file(struct pass *p, const char *name, char *block, uint64_t *ret_bytes, uint32_t *ret_crc)
{
    _cleanup_buf_ struct buf path = BUF_INIT(16 * KIB);
    int r = buf_printf(&path, "%s/%s", p->root, name);
    if (r < 0)
        return r;
    _cleanup_close_ int fd = sys->open(path.p, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    uint32_t crc = crc32c(0, name, strlen(name));
    uint64_t bytes = 0;
    ssize_t n;
    while ((n = read(fd, block, p->block)) > 0) {
        crc = crc32c(crc, block, (size_t)n);
        bytes += (uint64_t)n;
    }
    if (n < 0)
        return -errno;
    *ret_bytes = bytes;
    *ret_crc = crc;
    return 0;
}

static void *worker_main(void *arg)
{
    struct pass *p = arg;
    _cleanup_free_ char *block = malloc(p->block);
    assert(block);
    for (;;) {
        size_t at = atomic_fetch_add(&p->next, 1);
        if (at >= p->files->n)
            return NULL;
        const char *name = p->files->names[p->order[at]];
        uint64_t bytes = 0, from = sys->mono_ns();
        uint32_t crc = 0;
        int r = read_file(p, name, block, &bytes, &crc);
        p->latencies[at] = sys->mono_ns() - from;
        LOCK_SCOPE(&p->lock);
        if (r < 0 && p->ret->error == 0) {
            p->ret->error = r;
            (void)snprintf(p->ret->failed, sizeof(p->ret->failed), "%s", name);
        }
        p->ret->files += r == 0;
        p->ret->bytes += bytes;
        p->ret->checksum += crc;
    }
}

static int compare_u64(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

void bench_pass_run(const char *root, const struct bench_files *files, uint64_t seed, unsigned workers,
                    size_t block, struct bench_pass *ret)
{
    struct bench_pass result = {.origin_bytes = -1};
    _cleanup_free_ uint32_t *order = shuffled(files->n, seed);
    struct pass p = {.root = root, .files = files, .order = order, .block = block, .ret = &result};
    p.latencies = calloc(MAX(files->n, (size_t)1), sizeof(p.latencies[0]));
    pthread_t *threads = calloc(workers, sizeof(*threads));
    assert(p.latencies && threads);
    lock_init(&p.lock, LOCK_LEAF);
    uint64_t from = sys->mono_ns();
    unsigned n = 0;
    while (n < workers && pthread_create(&threads[n], NULL, worker_main, &p) == 0)
        n++;
    for (unsigned i = 0; i < n; i++)
        (void)pthread_join(threads[i], NULL);
    result.seconds = (double)(sys->mono_ns() - from) / 1e9;
    if (n == 0)
        result.error = -EAGAIN;
    if (files->n > 0) {
        qsort(p.latencies, files->n, sizeof(p.latencies[0]), compare_u64);
        result.p50_ns = p.latencies[files->n / 2];
        result.p99_ns = p.latencies[files->n * 99 / 100];
    }
    lock_fini(&p.lock);
    free(p.latencies);
    free(threads);
    *ret = result;
}

/* ---- metrics ---- */

static int64_t sum_of(struct slice text, struct slice name)
{
    double sum = 0;
    while (text.n > 0) {
        struct slice line = slice_split(&text, '\n');
        if (!slice_starts(line, name))
            continue;
        ssize_t space = slice_rfind(line, ' ');
        if (space < 0)
            continue;
        _cleanup_free_ char *number = slice_dup(slice_from(line, (size_t)space + 1));
        sum += strtod(number, NULL);
    }
    return (int64_t)sum;
}

int64_t bench_origin_bytes(const char *hostport)
{
    _cleanup_close_ int fd = -1;
    _cleanup_buf_ struct buf b = BUF_INIT(METRICS_MAX_BYTES), request = BUF_INIT(1024);
    if (sock_connect_tcp(hostport, METRICS_TIMEOUT, &fd, NULL) < 0 ||
        sock_set_timeouts(fd, METRICS_TIMEOUT, METRICS_TIMEOUT) < 0 ||
        buf_printf(&request, "GET /-/metrics HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", hostport) <
            0 ||
        sock_send_all(fd, request.p, request.n, MSG_NOSIGNAL) < 0)
        return -1;
    for (;;) {
        char *room = buf_reserve(&b, 64 * KIB);
        ssize_t n = room ? recv(fd, room, 64 * KIB, 0) : -1;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        buf_used(&b, (size_t)n);
    }
    if (!slice_starts(buf_view(&b), SLICE_LIT("HTTP/1.1 200")))
        return -1;
    return sum_of(buf_view(&b), SLICE_LIT("forebay_origin_read_bytes_total{"));
}
