/*
 * The threads of the front end: leaders, parked workers, the reserved thread.
 *
 * Leaders wait in the epoll set themselves: the one that gets an event serves it and waits again, so that a
 * request costs no hand-over between threads. There are about two leaders per processor, however many workers
 * there may be: every further thread in the epoll set would only be woken in vain. Measured on two
 * processors, CPU time of the process per answer of 4 KiB, 256 connections: 33 us with 64 threads in the
 * epoll set, 19 us with 4 of 64, nginx (sendfile, two workers) 21 us. The other workers are parked.
 *
 * The reserved thread watches. While leaders are short it looks every SUPERVISE_MS for workers that have been
 * with one request for BLOCKED_NS and sleep: those wait for a disk, an origin or a client and lead no more,
 * so it calls up parked workers or makes new ones until there are enough leaders that do not wait; at most
 * config.threads in all. A worker that comes back and finds enough leaders parks itself. Who computes, or
 * only waits for a processor, is no reason for more threads, which would take processors from each other and
 * from the clients of this machine; but not for longer than LONG_NS, for a large body may keep a worker for
 * minutes in which it hardly ever sleeps.
 *
 * When all config.threads workers are blocked the reserved thread takes their place in the epoll set: it
 * accepts, reads heads, answers express requests (health, metrics) and puts the rest on the ready list. It
 * also turns the timer wheel, and cuts slow clients when they hold most of the workers.
 *
 * Invariants:
 *  1. n_idle counts the workers that wait in the epoll set or are about to. Whoever puts a connection on the
 * ready list and then sees n_idle > 0 kicks, unless it is a worker that looks there next; a worker counts
 * itself before it looks at the list: none is forgotten.
 *  2. A worker parks only while enough others are idle, which by 1 will see the list, and nothing is on it:
 * the kick may have woken the very one that parks, and those that wait already are not kicked again.
 *  3. workers[0 .. n_workers) are initialised; n_workers only grows.
 *
 * Failure modes: a thread that cannot be made is logged; those that are there go on. A burst of requests that
 * all block waits some SUPERVISE_MS for its threads: the number of leaders doubles each time.
 */
#include "server/front_internal.h"

#include "base/log.h"
#include "base/sys.h"
#include "base/thread.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>

#define LEADERS_PER_CPU 2
#define LEADERS_MIN     4
#define BLOCKED_NS      500000
#define LONG_NS         20000000
#define SUPERVISE_MS    1
#define WAITING_SHARE   4  /* one worker in so many is not for clients that let it wait */
#define QUIET_ROUNDS    50 /* rounds with a leader to spare before the reserved thread sleeps again */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STACK_BYTES (8 * WORKER_STACK_BYTES) /* instrumented frames are several times larger */
#else
#define STACK_BYTES WORKER_STACK_BYTES
#endif

/* ---- one event ---- */

/* What the event is of, when it is the caller's now. */
static struct conn *claim(const struct epoll_event *ev)
{
    struct conn *c = ev->data.ptr;
    bool ended = ev->events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR);
    if (!c || !conn_claim(c, ended))
        return NULL;
    assert(c->magic == CONN_MAGIC);
    c->drained = false;
    c->ended = ended;
    return c;
}

static void handle(struct worker *w, struct conn *c)
{
    assert(c->magic == CONN_MAGIC);
    if (c->phase == CONN_LISTENING) {
        front_accept(w->front, c);
        return;
    }
    conn_set_busy(c);
    atomic_store_explicit(&w->active_kind, c->kind, memory_order_relaxed);
    if (c->kind == CONN_HTTP)
        front_http_event(w, c);
    else
        front_wire_event(w, c);
    atomic_store_explicit(&w->active_kind, -1, memory_order_relaxed);
}

/* Next connection with something to do; NULL: look again. Alternates, so that neither source starves the
 * other. */
static struct conn *next_work(struct front *f, bool *list_first)
{
    struct conn *c = *list_first ? front_dequeue(f) : NULL;
    *list_first = !*list_first;
    if (c)
        return c;
    struct epoll_event ev;
    int k = epoll_wait(f->epoll_fd, &ev, 1, atomic_load(&f->n_ready) > 0 ? 0 : -1);
    if (k > 0)
        return claim(&ev);
    return k == 0 ? front_dequeue(f) : NULL;
}

/* ---- workers ---- */

/* Counts the worker as idle, after it was parked for as long as there are leaders enough. */
static void become_idle(struct front *f)
{
    if (atomic_fetch_add(&f->n_idle, 1) < f->leaders)
        return;
    atomic_fetch_sub(&f->n_idle, 1);
    lock_take(&f->lock);
    f->n_parked++;
    while (f->n_called == 0 && !f->ready_first && !atomic_load(&f->stopping))
        cond_wait(&f->called, &f->lock);
    f->n_parked--;
    if (f->n_called > 0)
        f->n_called--;
    lock_drop(&f->lock);
    atomic_fetch_add(&f->n_idle, 1);
}

static void wake_reserved(struct front *f)
{
    if (!atomic_exchange(&f->reserve_awake, true))
        front_kick(f->reserve_fd);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct front *f = w->front;
    bool list_first = true;
    bool own = false; /* there is one on the ready list for which nobody was woken */
    atomic_store(&w->tid, gettid());
    front_looks_next(&own);
    while (!atomic_load(&f->stopping)) {
        become_idle(f);
        list_first |= own;
        own = false;
        struct conn *c = next_work(f, &list_first);
        if (c)
            atomic_store_explicit(&w->busy_since_ns, sys->mono_ns(), memory_order_relaxed);
        if (atomic_fetch_sub(&f->n_idle, 1) == 1)
            wake_reserved(f);
        if (c) {
            handle(w, c);
            atomic_store_explicit(&w->busy_since_ns, 0, memory_order_relaxed);
        }
    }
    front_kick(f->kick_fd); /* the next one */
    return NULL;
}

static void worker_init(struct worker *w, struct front *f, bool reserved)
{
    w->front = f;
    w->reserved = reserved;
    w->stat_fd = -1;
    atomic_init(&w->active_kind, -1);
    atomic_init(&w->busy_since_ns, 0);
    w->http = http_conn_new();
    http_conn_set_spare(w->http, f->answers, /* may_wait= */ !reserved);
    w->arena = arena_new(WIRE_ARENA_BYTES);
    w->in = w->out = BUF_INIT(WIRE_BODY_MAX_BYTES + WIRE_HEADER_BYTES);
}

static void worker_fini(struct worker *w)
{
    if (!w->front) /* it was not made */
        return;
    macro_close(&w->stat_fd);
    http_conn_free(w->http);
    arena_free(w->arena);
    buf_fini(&w->in);
    buf_fini(&w->out);
}

static int spawn(struct worker *w, void *(*main_fn)(void *))
{
    return thread_start(&w->thread, STACK_BYTES, main_fn, w);
}

/* By the reserved thread, or before it runs. */
static int add_worker(struct front *f)
{
    unsigned n = atomic_load(&f->n_workers);
    assert(n < f->config.threads);
    worker_init(&f->workers[n], f, /* reserved= */ false);
    int k = spawn(&f->workers[n], worker_main);
    if (k < 0)
        worker_fini(&f->workers[n]);
    else
        atomic_store(&f->n_workers, n + 1);
    return k;
}

/* ---- the reserved thread ---- */

/* Whether a worker has a processor or waits for one (proc(5): the state behind the name, which may have any
 * characters). False where nobody can tell. The file stays open: on a machine that has much to do it is
 * looked at often, and opening it costs more than reading. */
static bool is_running(struct worker *w)
{
    char path[48], text[128];
    if (w->stat_fd < 0) {
        (void)snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)atomic_load(&w->tid));
        w->stat_fd = open(path, O_RDONLY | O_CLOEXEC);
    }
    ssize_t n = w->stat_fd < 0 ? -1 : pread(w->stat_fd, text, sizeof(text), 0);
    const char *name_end = n > 0 ? memrchr(text, ')', (size_t)n) : NULL;
    return name_end && name_end + 2 < text + n && name_end[2] == 'R';
}

/* Workers that have been with one request for so long that they must be waiting for something. */
static unsigned count_blocked(struct front *f)
{
    uint64_t now_ns = sys->mono_ns();
    unsigned n = 0, workers = atomic_load(&f->n_workers);
    for (unsigned i = 0; i < workers; i++) {
        uint64_t since_ns = atomic_load_explicit(&f->workers[i].busy_since_ns, memory_order_relaxed);
        uint64_t busy_ns = since_ns > 0 ? now_ns - MIN(now_ns, since_ns) : 0;
        n += busy_ns > LONG_NS || (busy_ns > BLOCKED_NS && !is_running(&f->workers[i]));
    }
    return n;
}

unsigned front_at_work(struct front *f)
{
    uint64_t now_ns = sys->mono_ns();
    unsigned n = 0, workers = atomic_load(&f->n_workers);
    for (unsigned i = 0; i < workers; i++) {
        int kind = atomic_load_explicit(&f->workers[i].active_kind, memory_order_relaxed);
        uint64_t since_ns = atomic_load_explicit(&f->workers[i].busy_since_ns, memory_order_relaxed);
        n += (kind == CONN_UNIX || kind == CONN_WIRE) && now_ns < since_ns + BLOCKED_NS;
    }
    return n;
}

/* Calls up parked workers, then makes new ones. */
static void more_leaders(struct front *f, unsigned wanted)
{
    lock_take(&f->lock);
    unsigned parked = f->n_parked > f->n_called ? f->n_parked - f->n_called : 0, called = MIN(wanted, parked);
    f->n_called += called;
    for (unsigned i = 0; i < called; i++)
        cond_signal(&f->called);
    lock_drop(&f->lock);
    unsigned room = f->config.threads - atomic_load(&f->n_workers);
    for (unsigned i = 0; i < MIN(wanted - called, room); i++) {
        int k = add_worker(f);
        if (k < 0) {
            log_error("server", "cannot make a worker thread: %s", err_text(k));
            return;
        }
    }
}

/* One look at the workers. True: all of them are blocked, and there are no more to call up. */
static bool supervise(struct front *f)
{
    unsigned blocked = count_blocked(f), workers = atomic_load(&f->n_workers);
    lock_take(&f->lock);
    unsigned parked = f->n_parked;
    lock_drop(&f->lock);
    unsigned leading = workers - MIN(workers, blocked + parked);
    if (leading >= f->leaders)
        return false;
    if (parked == 0 && workers == f->config.threads)
        return leading == 0 && atomic_load(&f->n_idle) == 0;
    more_leaders(f, atomic_load(&f->n_idle) == 0 ? MAX(f->leaders - leading, blocked) : f->leaders - leading);
    return false;
}

/* Sleeps until a worker took the last idle place, at most until the next tick. */
static void sleep_until_needed(struct front *f, int timeout_ms)
{
    atomic_store(&f->reserve_awake, false);
    if (atomic_load(&f->n_idle) > 0) {
        struct pollfd p = {.fd = f->reserve_fd, .events = POLLIN};
        (void)poll(&p, 1, timeout_ms);
    }
    atomic_store(&f->reserve_awake, true);
    front_calm(f->reserve_fd);
}

static void count_cut(unsigned n)
{
    metrics_add(metrics_series(METRIC_REFUSED, "slow", NULL, NULL), n);
}

/* Workers may wait for clients, but not nearly all of them for clients that hardly do anything: whoever
 * dribbles on as many connections as there are workers would stop the node for everybody else. Nor is memory
 * for such clients' bytes while others find none. */
static void cut_slow(struct front *f, uint64_t now_ms)
{
    unsigned most = f->config.threads - MAX(f->config.threads / WAITING_SHARE, 1u);
    unsigned waiting = atomic_load(&f->n_waiting);
    unsigned n =
        waiting > most ? conn_table_cut_slow(&f->conns, now_ms, waiting - most, /* of_holders= */ false) : 0;
    if (n > 0) {
        count_cut(n);
        log_info("server",
                 "%u connections cut: %u of %u threads wait for clients, and those send or take next to "
                 "nothing",
                 n, waiting, f->config.threads);
    }
    n = waiting > 0 && budget_is_wanted(f->config.buffers)
            ? conn_table_cut_slow(&f->conns, now_ms, waiting, /* of_holders= */ true)
            : 0;
    if (n > 0) {
        count_cut(n);
        log_info("server",
                 "%u connections cut: others wait for the memory that they have, and they send or take next "
                 "to nothing",
                 n);
    }
}

static void *reserved_main(void *arg)
{
    struct worker *w = arg;
    struct front *f = w->front;
    unsigned quiet = 0;
    uint64_t next_tick_ms = sys_mono_ms() + CONN_TICK_MS;
    while (!atomic_load(&f->stopping)) {
        uint64_t now_ms = sys_mono_ms();
        if (now_ms >= next_tick_ms) {
            conn_table_sweep(&f->conns, now_ms);
            cut_slow(f, now_ms);
            front_resume_listeners(f);
            next_tick_ms = now_ms + CONN_TICK_MS;
        }
        struct epoll_event ev;
        if (supervise(f)) {
            struct conn *c = epoll_wait(f->epoll_fd, &ev, 1, SUPERVISE_MS) > 0 ? claim(&ev) : NULL;
            if (c)
                handle(w, c);
            quiet = 0;
            continue;
        }
        quiet = atomic_load(&f->n_idle) > 0 ? quiet + 1 : 0;
        if (quiet < QUIET_ROUNDS)
            sys->sleep_ns(SUPERVISE_MS * 1000000);
        else
            sleep_until_needed(f, (int)(next_tick_ms - now_ms));
    }
    front_kick(f->kick_fd); /* in case it took the workers' signal to stop */
    return NULL;
}

/* ---- life ---- */

int front_workers_start(struct front *f, struct err *e)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    f->leaders = MIN(MAX((unsigned)MAX(cpus, 1) * LEADERS_PER_CPU, (unsigned)LEADERS_MIN), f->config.threads);
    f->workers = aligned_alloc(CACHE_LINE_BYTES, f->config.threads * sizeof(*f->workers));
    if (!f->workers)
        abort();
    memset(f->workers, 0, f->config.threads * sizeof(*f->workers));
    for (unsigned i = 0; i < f->leaders; i++) {
        int k = add_worker(f);
        if (k < 0)
            return err_errno(e, k, "make a thread");
    }
    worker_init(&f->reserved, f, /* reserved= */ true);
    int k = spawn(&f->reserved, reserved_main);
    if (k < 0)
        return err_errno(e, k, "make a thread");
    f->reserved_runs = true;
    return 0;
}

void front_workers_stop(struct front *f)
{
    atomic_store(&f->stopping, true);
    front_kick(f->kick_fd);
    front_kick(f->reserve_fd);
    lock_take(&f->lock);
    cond_broadcast(&f->called);
    lock_drop(&f->lock);
    if (f->reserved_runs) /* the only one that makes threads: first */
        pthread_join(f->reserved.thread, NULL);
    f->reserved_runs = false;
    for (; f->n_joined < atomic_load(&f->n_workers); f->n_joined++)
        pthread_join(f->workers[f->n_joined].thread, NULL);
}

void front_workers_free(struct front *f)
{
    for (unsigned i = 0; i < atomic_load(&f->n_workers); i++)
        worker_fini(&f->workers[i]);
    worker_fini(&f->reserved);
    free(f->workers);
}

unsigned front_active(struct front *f, enum conn_kind kind)
{
    unsigned n = 0, workers = atomic_load(&f->n_workers);
    for (unsigned i = 0; i < workers; i++)
        n += atomic_load_explicit(&f->workers[i].active_kind, memory_order_relaxed) == (int)kind;
    return n;
}

unsigned front_workers(struct front *f)
{
    return atomic_load(&f->n_workers);
}
