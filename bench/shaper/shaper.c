/*
 * shaper: an HTTP-aware proxy in front of an S3 server that makes it as slow, and as unreliable, as one wants
 * to measure or test against: time to the first byte, bytes per second of a connection and of all, faults on
 * demand.
 *
 * One thread per connection with blocking calls. What all share is in struct shaper, each part under its own
 * lock.
 */
#include "shaper.h"

#include "base/option.h"
#include "base/sys.h"
#include "base/text.h"
#include "net/sock.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <time.h>

#define STACK_BYTES (256 * 1024)

struct options {
    char *listen, *upstream, *first_byte, *per_connection, *total, *slow_list, *busy_above, *stats;
    uint64_t seed;
    bool ceiling;
};

#define ROW(name, type, field, def, arg, doc)                                                                \
    {                                                                                                        \
        name, 0, type, offsetof(struct options, field), def, 0, 0, NULL, arg, doc, false, false, false       \
    }
static const struct option rows[] = {
    ROW("listen", OPTION_STRING, listen, "127.0.0.1:0", "HOST:PORT",
        "address for clients; port 0: any free one"),
    ROW("upstream", OPTION_STRING, upstream, NULL, "HOST:PORT", "address of the server behind"),
    ROW("first-byte", OPTION_STRING, first_byte, "0ms", "TIME[,p99=TIME]",
        "time from the end of a request's head to the first byte of its response; with p99 log-normal"),
    ROW("per-connection", OPTION_STRING, per_connection, "0", "RATE",
        "bytes per second of each connection and direction, such as 50MB/s; 0: no limit"),
    ROW("total", OPTION_STRING, total, "0", "RATE",
        "bytes per second of all connections together, each direction; 0: no limit"),
    ROW("slow-list", OPTION_STRING, slow_list, "0ms", "TIME", "more time to the first byte of listings"),
    ROW("busy-above", OPTION_STRING, busy_above, "0", "N",
        "requests per second beyond which the answer is 503 SlowDown; 0: no limit"),
    ROW("seed", OPTION_UINT, seed, "1", "N", "for the random times to the first byte"),
    ROW("stats", OPTION_STRING, stats, NULL, "FILE", "write the counters there as JSON at the end"),
    ROW("ceiling", OPTION_BOOL, ceiling, NULL, NULL, "measure the proxy itself and print its limits"),
};
static const struct option_table table = {rows, ARRAY_SIZE(rows), NULL};

void shaper_init(struct shaper *sh, const char *upstream)
{
    *sh = (struct shaper){.delay = {.seed = 1}};
    assert(strlen(upstream) < sizeof(sh->upstream));
    memcpy(sh->upstream, upstream, strlen(upstream) + 1);
    shape_rate_init(&sh->total[STATS_REQUEST], 0);
    shape_rate_init(&sh->total[STATS_RESPONSE], 0);
    stats_init(&sh->stats);
    faults_init(&sh->faults);
    lock_init(&sh->lock, LOCK_LEAF);
}

void shaper_fini(struct shaper *sh)
{
    shape_rate_fini(&sh->total[STATS_REQUEST]);
    shape_rate_fini(&sh->total[STATS_RESPONSE]);
    stats_fini(&sh->stats);
    faults_fini(&sh->faults);
    lock_fini(&sh->lock);
}

static int set_first_byte(struct shaper *sh, const char *name, const char *value, struct err *e)
{
    struct shape_delay d;
    int r = shape_delay_parse(value, name, &d, e);
    if (r < 0)
        return r;
    LOCK_SCOPE(&sh->lock);
    sh->delay.median_ns = d.median_ns;
    sh->delay.p99_ns = d.p99_ns;
    return 0;
}

/* Delays are those of the seed from its first on. */
static int set_seed(struct shaper *sh, const char *name, const char *value, struct err *e)
{
    uint64_t v;
    if (slice_u64(slice_str(value), &v) < 0)
        return err_set(e, ERR_BAD_OPTION, "%s %s: not a number", name, value);
    LOCK_SCOPE(&sh->lock);
    sh->delay.seed = v;
    sh->draws = 0;
    return 0;
}

static int set_busy_above(struct shaper *sh, const char *name, const char *value, struct err *e)
{
    uint64_t v;
    if (slice_u64(slice_str(value), &v) < 0 || v > 1000000)
        return err_set(e, ERR_BAD_OPTION, "%s %s: not a number of requests per second up to 1000000", name,
                       value);
    LOCK_SCOPE(&sh->lock);
    sh->busy_above = (struct shape_limit){.per_s = v};
    return 0;
}

int shaper_set(struct shaper *sh, const char *name, const char *value, struct err *e)
{
    uint64_t v;
    if (strcmp(name, "first-byte") == 0)
        return set_first_byte(sh, name, value, e);
    if (strcmp(name, "seed") == 0)
        return set_seed(sh, name, value, e);
    if (strcmp(name, "slow-list") == 0) {
        if (text_parse_duration(slice_str(value), &v) < 0 || v > 3600000)
            return err_set(e, ERR_BAD_OPTION, "%s %s: not a time of at most 1h", name, value);
        LOCK_SCOPE(&sh->lock);
        sh->slow_list_ns = v * 1000000;
        return 0;
    }
    if (strcmp(name, "busy-above") == 0)
        return set_busy_above(sh, name, value, e);
    if (strcmp(name, "system") == 0)
        return stats_system(&sh->stats, value) < 0
                   ? err_set(e, ERR_BAD_OPTION, "%s %s: not a short name of letters, digits and -_.", name,
                             value)
                   : 0;
    if (strcmp(name, "per-connection") != 0 && strcmp(name, "total") != 0)
        return err_set(e, ERR_BAD_OPTION, "%s: no such setting", name);
    int r = shape_rate_parse(value, name, &v, e);
    if (r < 0)
        return r;
    if (strcmp(name, "total") == 0) {
        shape_rate_set(&sh->total[STATS_REQUEST], v);
        shape_rate_set(&sh->total[STATS_RESPONSE], v);
        return 0;
    }
    LOCK_SCOPE(&sh->lock);
    sh->per_connection = v;
    return 0;
}

uint64_t shaper_respond_at(struct shaper *sh, enum head_kind kind, uint64_t now_ns)
{
    lock_take(&sh->lock);
    uint64_t ns = shape_delay_draw(&sh->delay, sh->draws++) + (kind == KIND_LIST ? sh->slow_list_ns : 0);
    lock_drop(&sh->lock);
    stats_wait(&sh->stats, ns);
    return now_ns + ns;
}

bool shaper_admit(struct shaper *sh, uint64_t now_ns)
{
    LOCK_SCOPE(&sh->lock);
    return shape_limit_admit(&sh->busy_above, now_ns);
}

struct thread {
    struct shaper *sh;
    int fd;
};

static void *run_connection(void *arg)
{
    struct thread t = *(struct thread *)arg;
    free(arg);
    (void)prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL); /* 1 us: waits of pieces are short */
    conn_serve(t.sh, t.fd);
    struct timespec used;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    (void)__atomic_fetch_add(&t.sh->cpu_ns, (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec,
                             __ATOMIC_RELAXED);
    stats_connection(&t.sh->stats, /* opened= */ false);
    return NULL;
}

static void start_connection(struct shaper *sh, int fd)
{
    struct thread *t = malloc(sizeof(*t));
    assert(t);
    *t = (struct thread){.sh = sh, .fd = fd};
    pthread_attr_t attr;
    pthread_t id;
    (void)pthread_attr_init(&attr);
    (void)pthread_attr_setstacksize(&attr, STACK_BYTES);
    (void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    stats_connection(&sh->stats, /* opened= */ true);
    if (pthread_create(&id, &attr, run_connection, t) != 0) {
        stats_connection(&sh->stats, /* opened= */ false);
        (void)close(fd);
        free(t);
    }
    (void)pthread_attr_destroy(&attr);
}

static bool is_full(struct shaper *sh)
{
    LOCK_SCOPE(&sh->stats.lock);
    return sh->stats.connections >= SHAPER_CONNECTIONS_MAX;
}

int shaper_accept(struct shaper *sh, int listen_fd, int stop_fd)
{
    for (;;) {
        struct pollfd p[2] = {{.fd = listen_fd, .events = POLLIN}, {.fd = stop_fd, .events = POLLIN}};
        if (poll(p, 2, -1) < 0) {
            if (errno != EINTR)
                return -errno;
            continue;
        }
        if (p[1].revents)
            return 0;
        int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            continue; /* gone again, or no descriptors: the next poll tells */
        if (is_full(sh))
            (void)close(fd);
        else
            start_connection(sh, fd);
    }
}

static int configure(struct shaper *sh, const struct options *o, struct err *e)
{
    const char *const values[][2] = {{"first-byte", o->first_byte},
                                     {"per-connection", o->per_connection},
                                     {"total", o->total},
                                     {"slow-list", o->slow_list},
                                     {"busy-above", o->busy_above}};
    sh->delay.seed = o->seed;
    for (size_t i = 0; i < ARRAY_SIZE(values); i++) {
        int r = shaper_set(sh, values[i][0], values[i][1], e);
        if (r < 0)
            return err_prefix(e, r, "option");
    }
    return 0;
}

static int write_stats(struct shaper *sh, const char *path, struct err *e)
{
    struct buf _cleanup_buf_ b = BUF_INIT(MIB);
    int r = stats_json(&sh->stats, faults_armed(&sh->faults), &b);
    r = r ? r : sys_write_file_atomic(path, b.p, b.n, 0644);
    return r < 0 ? err_errno(e, r, "write %s", path) : 0;
}

static int run(struct shaper *sh, const struct options *o, struct err *e)
{
    int _cleanup_close_ listen_fd = -1;
    int _cleanup_close_ signal_fd = -1;
    char address[128];
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    (void)pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal_fd = signalfd(-1, &set, SFD_CLOEXEC);
    int r = configure(sh, o, e);
    if (r == 0)
        r = sock_listen_tcp(o->listen, 1024, &listen_fd, address, e);
    if (r < 0)
        return r;
    printf("shaper: listening on %s\n", address);
    (void)fflush(stdout);
    r = shaper_accept(sh, listen_fd, signal_fd);
    if (r < 0)
        return err_errno(e, r, "wait for connections");
    return o->stats ? write_stats(sh, o->stats, e) : 0;
}

static void print_help(void)
{
    struct buf _cleanup_buf_ b = BUF_INIT(64 * KIB);
    if (option_help(&table, &b) == 0)
        printf("Usage: shaper --upstream HOST:PORT [OPTION]...\n       shaper --ceiling\n\n%s", b.p);
}

/* Exit status. */
static int main_options(struct options *o, int argc, char **argv, struct err *e)
{
    int operands;
    int r = option_init(&table, o, e);
    if (r == 0)
        r = option_args(&table, o, argc, argv, &operands, e);
    if (r == -ECANCELED) {
        print_help();
        return 0;
    }
    if (r == 0 && operands > 0)
        r = err_set(e, ERR_BAD_OPTION, "%s: not an option", argv[0]);
    if (r == 0 && !o->ceiling && !o->upstream)
        r = err_set(e, ERR_BAD_OPTION, "--upstream: missing");
    if (r == 0 && o->upstream && strlen(o->upstream) >= sizeof(((struct shaper *)0)->upstream))
        r = err_set(e, ERR_BAD_OPTION, "--upstream: too long");
    if (r < 0) {
        fprintf(stderr, "shaper: %s\n", e->text);
        return 2;
    }
    if (o->ceiling)
        return ceiling_run() < 0;
    (void)sys_raise_file_limit(); /* a connection takes up to four */
    static struct shaper sh;      /* used by threads until the process is gone */
    shaper_init(&sh, o->upstream);
    r = run(&sh, o, e);
    if (r < 0)
        fprintf(stderr, "shaper: %s\n", e->text);
    return r == ERR_BAD_OPTION ? 2 : r < 0;
}

int main(int argc, char **argv)
{
    struct options o = {0};
    struct err e;
    (void)signal(SIGPIPE, SIG_IGN);
    int status = main_options(&o, argc - 1, argv + 1, &e);
    option_fini(&table, &o);
    (void)fflush(stdout);
    _exit(status); /* connections in progress end with the process */
}
