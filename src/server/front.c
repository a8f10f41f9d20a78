/*
 * Threads, the epoll set, and accepting (contract in front.h).
 *
 * All connections wait in one epoll set, armed for one event each (EPOLLONESHOT). Workers wait in epoll_wait
 * themselves: the one that gets an event owns the connection, reads the head without blocking, runs the
 * request and arms the connection again. There is no hand-over from a poller thread to a worker, which costs
 * a context switch per request; FIGURES.
 *
 * One more thread is reserved. It turns the timer wheel, and while every worker is busy it waits in the epoll
 * set in their place: it accepts, reads heads, answers the express requests (health, metrics) itself and puts
 * the others on the ready list, which the next free worker looks at.
 *
 * Invariants:
 *  1. A connection belongs to one thread, to the ready list, or is armed; never two of these.
 *  2. A thread blocks on a client only while a handler reads a body or writes a response, bounded by the
 * request timeout at each step. Heads, rests and closing never block.
 *  3. Threads: a worker that takes the last idle place makes one more worker, up to config.threads; after
 * that it wakes the reserved thread. n_idle counts those that wait or are about to: whoever queues a
 * connection and then sees n_idle > 0 kicks, and a worker counts itself idle before it looks at the list, so
 * that none is forgotten.
 *
 * Failure modes: out of descriptors, accepting pauses for a tick. A thread that cannot be made is logged;
 * those that are there go on.
 */
#include "server/front_internal.h"

#include "base/log.h"
#include "base/sys.h"
#include "net/sock.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#define FRONT_MAGIC   0x46524e54u
#define ACCEPT_BATCH  16
#define BUSY_GRACE_MS 5

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STACK_BYTES (8 * WORKER_STACK_BYTES) /* instrumented frames are several times larger */
#else
#define STACK_BYTES WORKER_STACK_BYTES
#endif

/* ---- the epoll set and the ready list ---- */

/* ThreadSanitizer takes EPOLL_CTL_MOD for a use of the descriptor that is not ordered before the next owner's
 * close. */
#ifdef __SANITIZE_THREAD__
#define EPOLL_CTL(...) (int)syscall(SYS_epoll_ctl, __VA_ARGS__)
#else
#define EPOLL_CTL(...) epoll_ctl(__VA_ARGS__)
#endif

static void set_epoll(struct front *f, struct conn *c, int how, uint32_t events)
{
    struct epoll_event ev = {.events = events | EPOLLONESHOT, .data.ptr = c};
    int fd = c->fd;
    atomic_store_explicit(&c->armed, true, memory_order_release);
    int k = EPOLL_CTL(f->epoll_fd, how, fd, &ev);
    assert(k == 0 || errno == ENOMEM || errno == ENOSPC);
    if (k < 0) { /* the kernel cannot watch it: its deadline will not help either */
        log_error("server", "epoll_ctl: %s", err_text(-errno));
        front_close(f, c);
    }
}

void front_arm(struct front *f, struct conn *c, uint32_t events)
{
    set_epoll(f, c, EPOLL_CTL_MOD, events);
}

static void kick(int fd)
{
    uint64_t one = 1;
    (void)!write(fd, &one, sizeof(one)); /* EAGAIN: it is signalled already */
}

static void calm(int fd)
{
    uint64_t n;
    (void)!read(fd, &n, sizeof(n));
}

void front_enqueue(struct front *f, struct conn *c)
{
    lock_take(&f->lock);
    c->next_ready = NULL;
    if (f->ready_last)
        f->ready_last->next_ready = c;
    else
        f->ready_first = c;
    f->ready_last = c;
    atomic_fetch_add(&f->n_ready, 1);
    lock_drop(&f->lock);
    if (atomic_load(&f->n_idle) > 0)
        kick(f->kick_fd);
}

static struct conn *dequeue(struct front *f)
{
    if (atomic_load(&f->n_ready) == 0)
        return NULL;
    LOCK_SCOPE(&f->lock);
    struct conn *c = f->ready_first;
    if (!c)
        return NULL;
    f->ready_first = c->next_ready;
    if (!f->ready_first)
        f->ready_last = NULL;
    atomic_fetch_sub(&f->n_ready, 1);
    return c;
}

/* ---- connections ---- */

int front_keep_pending(struct front *f, struct conn *c, struct slice bytes)
{
    size_t before = c->pending_n;
    size_t total = atomic_fetch_add(&f->heads_bytes, bytes.n) + bytes.n;
    if (total - before > f->config.heads_bytes) {
        atomic_fetch_sub(&f->heads_bytes, bytes.n);
        return -ENOMEM;
    }
    conn_keep_pending(c, bytes);
    atomic_fetch_sub(&f->heads_bytes, before);
    return 0;
}

void front_drop_pending(struct front *f, struct conn *c)
{
    if (c->pending_n == 0)
        return;
    atomic_fetch_sub(&f->heads_bytes, c->pending_n);
    conn_keep_pending(c, SLICE_NULL);
}

void front_close(struct front *f, struct conn *c)
{
    metrics_gauge_add(f->connections[c->kind], -1);
    front_drop_pending(f, c);
    front_wire_free(f, TAKE_PTR(c->wire));
    conn_free(&f->conns, c);
}

static void refuse_connection(int fd, enum conn_kind kind)
{
    static const char answer[] =
        "HTTP/1.1 503 Service Unavailable\r\nServer: forebay\r\nContent-Type: text/plain\r\n"
        "Content-Length: 21\r\nConnection: close\r\n\r\ntoo many connections\n";
    if (kind == CONN_HTTP)
        (void)!send(fd, answer, sizeof(answer) - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)shutdown(fd, SHUT_WR);
    (void)close(fd);
    metrics_count(METRIC_REFUSED, "connections", NULL, NULL);
}

static void admit(struct front *f, int fd, enum conn_kind kind, const struct sockaddr_storage *peer,
                  socklen_t n)
{
    const int on = 1;
    if (kind != CONN_UNIX)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)); /* a hint */
    if (kind == CONN_WIRE)
        (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on)); /* clients may be silent for hours */
    (void)sock_set_timeouts(fd, f->config.request_timeout_ms, f->config.request_timeout_ms);
    uint64_t now_ms = sys_mono_ms();
    struct conn *c = conn_new(&f->conns, fd, kind, now_ms);
    if (n <= sizeof(c->peer))
        memcpy(&c->peer, peer, n);
    metrics_gauge_add(f->connections[kind], 1);
    if (kind != CONN_HTTP)
        c->wire = front_wire_new(f, fd, kind);
    uint64_t timeout_ms = kind == CONN_HTTP ? f->config.idle_timeout_ms : f->config.request_timeout_ms;
    conn_set_deadline(&f->conns, c, now_ms + timeout_ms, /* exact= */ true);
    set_epoll(f, c, EPOLL_CTL_ADD, EPOLLIN);
}

/* A listener has an event: takes some connections, then lets another thread have the next ones. */
static void accept_some(struct front *f, struct conn *listener)
{
    for (int i = 0; i < ACCEPT_BATCH && !atomic_load(&f->draining); i++) {
        struct sockaddr_storage peer;
        socklen_t n = sizeof(peer);
        int fd = accept4(listener->fd, (struct sockaddr *)&peer, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)) {
            log_error("server", "accept: %s; trying again shortly", err_text(-errno));
            atomic_store(&f->listener_paused[listener->kind], true);
            return;
        }
        if (fd < 0 && errno == EAGAIN)
            break;
        if (fd < 0)
            continue; /* the peer gave up, or EINTR */
        if (atomic_load(&f->conns.n) >= f->config.max_connections)
            refuse_connection(fd, listener->kind);
        else
            admit(f, fd, listener->kind, &peer, n);
    }
    if (!atomic_load(&f->draining))
        front_arm(f, listener, EPOLLIN);
}

/* ---- workers ---- */

static void handle(struct worker *w, struct conn *c)
{
    bool armed = atomic_load_explicit(&c->armed, memory_order_acquire);
    assert(armed && c->magic == CONN_MAGIC);
    if (c->phase == CONN_LISTENING) {
        accept_some(w->front, c);
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
static struct conn *next_work(struct front *f, bool *list_first, int timeout_ms)
{
    struct conn *c = *list_first ? dequeue(f) : NULL;
    *list_first = !*list_first;
    if (c)
        return c;
    struct epoll_event ev;
    int k = epoll_wait(f->epoll_fd, &ev, 1, atomic_load(&f->n_ready) > 0 ? 0 : timeout_ms);
    if (k > 0)
        return ev.data.ptr;
    return k == 0 ? dequeue(f) : NULL;
}

static void worker_init(struct worker *w, struct front *f, bool reserved)
{
    w->front = f;
    w->reserved = reserved;
    atomic_init(&w->active_kind, -1);
    w->http = http_conn_new();
    w->arena = arena_new(WIRE_ARENA_BYTES);
    w->in = w->out = BUF_INIT(WIRE_BODY_MAX_BYTES + WIRE_HEADER_BYTES);
}

static void worker_fini(struct worker *w)
{
    http_conn_free(w->http);
    arena_free(w->arena);
    buf_fini(&w->in);
    buf_fini(&w->out);
}

static void more_threads(struct front *f);

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct front *f = w->front;
    bool list_first = true;
    while (!atomic_load(&f->stopping)) {
        atomic_fetch_add(&f->n_idle, 1);
        struct conn *c = next_work(f, &list_first, /* timeout_ms= */ -1);
        if (atomic_fetch_sub(&f->n_idle, 1) == 1 && c)
            more_threads(f);
        if (c)
            handle(w, c);
    }
    kick(f->kick_fd); /* the next one */
    return NULL;
}

static int spawn(struct worker *w, void *(*main_fn)(void *))
{
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    int k = pthread_create(&w->thread, &attr, main_fn, w);
    pthread_attr_destroy(&attr);
    return -k;
}

static int add_worker_locked(struct front *f)
{
    unsigned n = atomic_load(&f->n_workers);
    if (n >= f->config.threads || atomic_load(&f->stopping))
        return 0;
    worker_init(&f->workers[n], f, /* reserved= */ false);
    int k = spawn(&f->workers[n], worker_main);
    if (k < 0)
        worker_fini(&f->workers[n]);
    else
        atomic_store(&f->n_workers, n + 1);
    return k;
}

/* No worker waits any more: make one, or let the reserved thread step in. */
static void more_threads(struct front *f)
{
    if (atomic_load(&f->n_workers) < f->config.threads) {
        lock_take(&f->lock);
        int k = add_worker_locked(f);
        lock_drop(&f->lock);
        if (k == 0)
            return;
        log_error("server", "cannot make a worker thread: %s", err_text(k));
    }
    if (!atomic_exchange(&f->reserve_awake, true))
        kick(f->reserve_fd);
}

/* ---- the reserved thread ---- */

static void resume_listeners(struct front *f)
{
    for (int i = 0; i < CONN_KIND_COUNT; i++)
        if (atomic_exchange(&f->listener_paused[i], false) && !atomic_load(&f->draining))
            front_arm(f, f->listeners[i], EPOLLIN);
}

/* Sleeps until the next tick or until all workers are busy. */
static void reserved_sleep(struct front *f, int timeout_ms)
{
    atomic_store(&f->reserve_awake, false);
    if (atomic_load(&f->n_idle) > 0 || atomic_load(&f->n_workers) == 0) {
        struct pollfd p = {.fd = f->reserve_fd, .events = POLLIN};
        if (poll(&p, 1, timeout_ms) > 0) {
            /* All workers were busy for a moment. Requests are mostly short: only if it lasts is this one
             * needed. */
            sys->sleep_ns(BUSY_GRACE_MS * 1000000);
        }
    }
    atomic_store(&f->reserve_awake, true);
    calm(f->reserve_fd);
}

static void *reserved_main(void *arg)
{
    struct worker *w = arg;
    struct front *f = w->front;
    uint64_t next_tick_ms = sys_mono_ms() + CONN_TICK_MS;
    while (!atomic_load(&f->stopping)) {
        uint64_t now_ms = sys_mono_ms();
        if (now_ms >= next_tick_ms) {
            conn_table_sweep(&f->conns, now_ms);
            resume_listeners(f);
            next_tick_ms = now_ms + CONN_TICK_MS;
        }
        int left_ms = (int)(next_tick_ms - now_ms);
        if (atomic_load(&f->n_idle) > 0) {
            reserved_sleep(f, left_ms);
            continue;
        }
        struct epoll_event ev;
        if (epoll_wait(f->epoll_fd, &ev, 1, left_ms) > 0 && ev.data.ptr)
            handle(w, ev.data.ptr);
    }
    kick(f->kick_fd); /* in case it took the workers' signal to stop */
    return NULL;
}

/* ---- life ---- */

static int make_descriptors(struct front *f, struct err *e)
{
    f->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    f->kick_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    f->reserve_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (f->epoll_fd < 0 || f->kick_fd < 0 || f->reserve_fd < 0)
        return err_errno(e, -errno, "make the epoll set");
    struct epoll_event ev = {.events = EPOLLIN | EPOLLET, .data.ptr = NULL};
    if (epoll_ctl(f->epoll_fd, EPOLL_CTL_ADD, f->kick_fd, &ev) < 0)
        return err_errno(e, -errno, "epoll_ctl");
    return 0;
}

int front_start(const struct front_config *config, struct front **ret, struct err *e)
{
    assert(config->threads > 0 && config->http && config->express && config->sessions.call);
    struct front *_cleanup_(front_freep) f = calloc(1, sizeof(*f));
    if (!f)
        abort();
    f->magic = FRONT_MAGIC;
    f->config = *config;
    f->epoll_fd = f->kick_fd = f->reserve_fd = -1;
    lock_init(&f->lock, LOCK_LEAF);
    conn_table_init(&f->conns, sys_mono_ms());
    session_table_init(&f->sessions, config->sessions.open, config->sessions.close, config->sessions.arg);
    f->workers = calloc(config->threads, sizeof(*f->workers));
    if (!f->workers)
        abort();
    for (int i = 0; i < CONN_KIND_COUNT; i++)
        f->connections[i] = metrics_series(METRIC_CONNECTIONS, conn_kind_name((enum conn_kind)i), NULL, NULL);
    int k = make_descriptors(f, e);
    if (k < 0)
        return k;
    worker_init(&f->reserved, f, /* reserved= */ true);
    k = spawn(&f->reserved, reserved_main);
    if (k < 0)
        return err_errno(e, k, "make a thread");
    f->reserved_runs = true;
    lock_take(&f->lock);
    k = add_worker_locked(f);
    lock_drop(&f->lock);
    if (k < 0)
        return err_errno(e, k, "make a thread");
    *ret = TAKE_PTR(f);
    return 0;
}

int front_listen(struct front *f, int fd, enum conn_kind kind, struct err *e)
{
    assert(f->magic == FRONT_MAGIC && f->listeners[kind] == NULL);
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
        return err_errno(e, -errno, "listener");
    struct conn *c = calloc(1, sizeof(*c));
    if (!c)
        abort();
    c->magic = CONN_MAGIC;
    c->fd = fd;
    c->kind = (uint8_t)kind;
    c->phase = CONN_LISTENING;
    atomic_init(&c->armed, true);
    f->listeners[kind] = c;
    struct epoll_event ev = {.events = EPOLLIN | EPOLLONESHOT, .data.ptr = c};
    if (epoll_ctl(f->epoll_fd, EPOLL_CTL_ADD, fd, &ev) < 0)
        return err_errno(e, -errno, "epoll_ctl");
    return 0;
}

int front_drain(struct front *f, uint64_t timeout_ms)
{
    assert(f->magic == FRONT_MAGIC);
    uint64_t end_ms = sys_mono_ms() + timeout_ms;
    atomic_store(&f->draining, true);
    for (int i = 0; i < CONN_KIND_COUNT; i++)
        if (f->listeners[i])
            (void)shutdown(f->listeners[i]->fd,
                           SHUT_RDWR); /* nobody connects any more; freed by front_free */
    for (;;) {
        /* Again and again: a connection may have been about to arm itself when it was looked at. */
        conn_table_shutdown(&f->conns, /* busy_too= */ false);
        if (atomic_load(&f->conns.n) == 0)
            return 0;
        if (sys_mono_ms() >= end_ms)
            return -ETIMEDOUT;
        sys->sleep_ns(10 * 1000000);
    }
}

static void close_all(struct front *f)
{
    for (int i = 0; i < CONN_SLOTS; i++)
        while (f->conns.slots[i])
            front_close(f, f->conns.slots[i]);
}

void front_stop(struct front *f)
{
    assert(f->magic == FRONT_MAGIC);
    atomic_store(&f->draining, true);
    atomic_store(&f->stopping, true);
    conn_table_shutdown(&f->conns, /* busy_too= */ true);
    kick(f->kick_fd);
    kick(f->reserve_fd);
    if (f->reserved_runs)
        pthread_join(f->reserved.thread, NULL);
    f->reserved_runs = false;
    /* Nobody makes threads any more once `stopping` was seen under the lock. */
    lock_take(&f->lock);
    unsigned n = atomic_load(&f->n_workers);
    lock_drop(&f->lock);
    for (unsigned i = 0; i < n; i++)
        pthread_join(f->workers[i].thread, NULL);
    close_all(f);
}

void front_free(struct front *f)
{
    if (!f)
        return;
    assert(f->magic == FRONT_MAGIC);
    if (f->reserved_runs || (atomic_load(&f->n_workers) > 0 && !atomic_load(&f->stopping)))
        front_stop(f);
    for (unsigned i = 0; i < atomic_load(&f->n_workers); i++)
        worker_fini(&f->workers[i]);
    worker_fini(&f->reserved);
    for (int i = 0; i < CONN_KIND_COUNT; i++) {
        if (f->listeners[i])
            (void)close(f->listeners[i]->fd);
        free(f->listeners[i]);
    }
    macro_close(&f->epoll_fd);
    macro_close(&f->kick_fd);
    macro_close(&f->reserve_fd);
    free(f->workers);
    session_table_fini(&f->sessions);
    conn_table_fini(&f->conns);
    lock_fini(&f->lock);
    f->magic = 0;
    free(f);
}

size_t front_connections(struct front *f)
{
    return atomic_load(&f->conns.n);
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
