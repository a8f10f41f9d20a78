/*
 * The epoll set, the ready list, accepting; start, drain and stop (contract in front.h). The threads are in
 * front_workers.c.
 *
 * All connections wait in one epoll set: who gets an event owns the connection until it lets it go (conn.h).
 * Most are armed for one event at a time (EPOLLONESHOT), which is a call of the kernel for each. Plain HTTP
 * connections that wait for a request are watched (EPOLLET) and stay so: whatever arrives after the last read
 * makes an event, so that waiting again costs nothing. The end of the stream may have arrived before that
 * read, which then does not show it: the event does (EPOLLRDHUP), and they are armed anew.
 *
 * Invariants:
 *  1. A connection belongs to one thread, to the ready list, or waits; never two of these.
 *  2. A thread blocks on a client only while a handler reads a body or writes a response that is not its end,
 * bounded by the request timeout at each step. Heads, ends of answers, rests and closing never block. Where
 * most threads are blocked so, clients that are slower than SLOW_BYTES_PER_S are cut (front_workers.c).
 *  3. Memory for unfinished and queued heads stays below config.heads_bytes.
 *
 * Failure modes: out of descriptors, or where the kernel watches a listener no more, accepting pauses for a
 * tick of the timer wheel.
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

#define FRONT_MAGIC  0x46524e54u
#define ACCEPT_BATCH 16

/* Of clients on this machine, so many more than there may be connections: whoever has all of them by the
 * network, and need not even say who it is, locks out neither mounts nor who would look what is the matter.
 */
#define LOCAL_MORE 64

/* Most bytes of an answer that wait in the kernel beside those on their way to the client. With as much as
 * the kernel would take, a few hundred clients that take nothing of large objects fill its memory for TCP,
 * beyond which it resets other connections. With a quarter of this a large answer costs a third more of the
 * node's processor time (bench/NOTES.md, `s3`). */
#define UNSENT_BYTES (1 * MIB)

/* A client of the wire protocol may be silent for days, and keeps what it has open meanwhile. One whose
 * machine is gone is found out by the kernel, and loses that: after two minutes, not as by itself after two
 * hours. */
#define KEEP_IDLE_S  60
#define KEEP_EVERY_S 15
#define KEEP_TRIES   4

/* ---- the epoll set and the ready list ---- */

/* ThreadSanitizer takes EPOLL_CTL_MOD for a use of the descriptor that is not ordered before the next owner's
 * close. */
#ifdef __SANITIZE_THREAD__
#define EPOLL_CTL(...) (int)syscall(SYS_epoll_ctl, __VA_ARGS__)
#else
#define EPOLL_CTL(...) epoll_ctl(__VA_ARGS__)
#endif

/* False: the kernel cannot watch it, and it is to be closed: its deadline would not help either. */
static bool set_epoll(struct front *f, struct conn *c, int fd, int how, uint32_t events)
{
    struct epoll_event ev = {.events = events, .data.ptr = c};
    int k = EPOLL_CTL(f->epoll_fd, how, fd, &ev);
    assert(k == 0 || errno == ENOMEM || errno == ENOSPC);
    if (k == 0)
        return true;
    log_error("server", "epoll_ctl: %s", err_text(-errno));
    return false;
}

static _Thread_local bool *looks_next; /* NULL: no worker */

void front_looks_next(bool *flag)
{
    looks_next = flag;
}

static void enqueue(struct front *f, struct conn *c, bool is_own)
{
    lock_take(&f->lock);
    bool is_first = !f->ready_first; /* who looks next gets it, or somebody has */
    c->next_ready = NULL;
    if (f->ready_last)
        f->ready_last->next_ready = c;
    else
        f->ready_first = c;
    f->ready_last = c;
    atomic_fetch_add(&f->n_ready, 1);
    lock_drop(&f->lock);
    if (is_own && is_first && looks_next)
        *looks_next = true;
    else if (atomic_load(&f->n_idle) > 0)
        front_kick(f->kick_fd);
}

/* Who is told of an event meanwhile has it looked at once more: a request that was sent as soon as the answer
 * to the one before was there. Nobody else is woken for it. */
static void let_go(struct front *f, struct conn *c)
{
    if (conn_let_go(c))
        return;
    c->drained = false;
    c->ended = atomic_exchange(&c->hung_up, false);
    enqueue(f, c, /* is_own= */ true);
}

/* Events may come as soon as the kernel is told. Where further ones may come to others at any time, it is let
 * go only after that: its owner could close it. */
static void begin_waiting(struct front *f, struct conn *c, int how, uint32_t events)
{
    bool was_kept = c->is_kept;
    int fd = c->fd;
    if (!was_kept)
        (void)conn_let_go(c);
    if (!set_epoll(f, c, fd, how, events))
        front_close(f, c);
    else if (was_kept)
        let_go(f, c);
}

void front_arm(struct front *f, struct conn *c, uint32_t events)
{
    c->watched = false;
    begin_waiting(f, c, EPOLL_CTL_MOD, events | EPOLLONESHOT);
}

static void watch(struct front *f, struct conn *c, int how)
{
    c->watched = true;
    begin_waiting(f, c, how, EPOLLIN | EPOLLRDHUP | EPOLLET);
}

void front_unwatch(struct front *f, struct conn *c)
{
    if (c->watched && set_epoll(f, c, c->fd, EPOLL_CTL_MOD, EPOLLONESHOT))
        c->watched = false;
}

void front_arm_read(struct front *f, struct conn *c)
{
    if (c->tls && tls_has_pending(c->tls))
        front_enqueue(f, c);
    else if (c->tls || !c->is_kept)
        front_arm(f, c, c->tls && tls_wants(c->tls) == POLLOUT ? EPOLLOUT : EPOLLIN);
    else if (c->watched && c->drained)
        let_go(f, c);
    else
        watch(f, c, EPOLL_CTL_MOD);
}

void front_kick(int fd)
{
    uint64_t one = 1;
    (void)!write(fd, &one, sizeof(one)); /* EAGAIN: it is signalled already */
}

void front_calm(int fd)
{
    uint64_t n;
    (void)!read(fd, &n, sizeof(n));
}

void front_enqueue(struct front *f, struct conn *c)
{
    enqueue(f, c, /* is_own= */ false);
}

struct conn *front_dequeue(struct front *f)
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
    front_wire_free(f, TAKE_PTR(c->wire), c->fd);
    conn_free(&f->conns, c);
}

static void refuse_connection(struct front *f, int fd, enum conn_kind kind)
{
    static const char answer[] =
        "HTTP/1.1 503 Service Unavailable\r\nServer: forebay\r\nContent-Type: text/plain\r\n"
        "Content-Length: 21\r\nRetry-After: 1\r\nConnection: close\r\n\r\ntoo many connections\n";
    if (kind == CONN_HTTP && !f->config.tls)
        (void)!send(fd, answer, sizeof(answer) - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)shutdown(fd, SHUT_WR);
    (void)close(fd);
    metrics_count(METRIC_REFUSED, "connections", NULL, NULL);
}

/* Hints all of them. The last one is for what was sent and is not acknowledged: then nobody asks. */
static void keep_alive(int fd)
{
    const int on = 1, idle_s = KEEP_IDLE_S, every_s = KEEP_EVERY_S, tries = KEEP_TRIES;
    const unsigned most_ms = (KEEP_IDLE_S + KEEP_EVERY_S * KEEP_TRIES) * 1000;
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof(every_s));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof(tries));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &most_ms, sizeof(most_ms));
}

static void admit(struct front *f, int fd, enum conn_kind kind, const struct sockaddr_storage *peer,
                  socklen_t n)
{
    const int on = 1;
    if (kind != CONN_UNIX)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)); /* a hint */
    if (kind == CONN_WIRE)
        keep_alive(fd);
    const int unsent = UNSENT_BYTES;
    if (kind == CONN_HTTP)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof(unsent)); /* a hint */
    (void)sock_set_timeouts(fd, f->request_timeout_ms, f->request_timeout_ms);
    uint64_t now_ms = sys_mono_ms();
    struct conn *c = conn_new(&f->conns, fd, kind, now_ms);
    c->pace.n_waiting = &f->n_waiting;
    if (n <= sizeof(c->peer))
        memcpy(&c->peer, peer, n);
    metrics_gauge_add(f->connections[kind], 1);
    if (kind != CONN_HTTP)
        c->wire = front_wire_new(f, fd, kind);
    bool handshake = kind == CONN_HTTP && f->config.tls;
    uint64_t timeout_ms = kind == CONN_HTTP && !handshake ? f->idle_timeout_ms : f->request_timeout_ms;
    if (handshake) {
        c->phase = CONN_HANDSHAKE;
        c->head_deadline_ms = now_ms + timeout_ms;
    }
    conn_set_deadline(&f->conns, c, now_ms + timeout_ms, /* exact= */ true);
    if (kind == CONN_HTTP && !handshake)
        watch(f, c, EPOLL_CTL_ADD);
    else
        begin_waiting(f, c, EPOLL_CTL_ADD, EPOLLIN | EPOLLONESHOT);
}

/* Lets another thread have the next connections. A listener is in no table, and is closed by front_free
 * alone. */
static void arm_listener(struct front *f, struct conn *listener)
{
    (void)conn_let_go(listener); /* armed for one event: nobody can have told it of another */
    if (set_epoll(f, listener, listener->fd, EPOLL_CTL_MOD, EPOLLIN | EPOLLONESHOT))
        return;
    (void)conn_claim(listener, /* hung_up= */ false);
    atomic_store(&f->listener_paused[listener->kind], true);
}

/* A listener has an event: takes some connections, then lets another thread have the next ones. */
void front_accept(struct front *f, struct conn *listener)
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
        unsigned most = f->config.max_connections + (listener->kind == CONN_UNIX ? LOCAL_MORE : 0);
        if (atomic_load(&f->conns.n) >= most)
            refuse_connection(f, fd, listener->kind);
        else
            admit(f, fd, listener->kind, &peer, n);
    }
    if (!atomic_load(&f->draining))
        arm_listener(f, listener);
}

void front_resume_listeners(struct front *f)
{
    for (int i = 0; i < CONN_KIND_COUNT; i++)
        if (atomic_exchange(&f->listener_paused[i], false) && !atomic_load(&f->draining))
            arm_listener(f, f->listeners[i]);
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

void front_set_timeouts(struct front *f, uint64_t request_timeout_ms, uint64_t idle_timeout_ms)
{
    atomic_store(&f->request_timeout_ms, request_timeout_ms);
    atomic_store(&f->idle_timeout_ms, idle_timeout_ms);
}

int front_start(const struct front_config *config, struct front **ret, struct err *e)
{
    assert(config->threads > 0 && config->http && config->express && config->sessions.call);
    struct front *_cleanup_(front_freep) f = aligned_alloc(CACHE_LINE_BYTES, sizeof(*f));
    if (!f)
        abort();
    memset(f, 0, sizeof(*f));
    f->magic = FRONT_MAGIC;
    f->config = *config;
    front_set_timeouts(f, config->request_timeout_ms, config->idle_timeout_ms);
    f->epoll_fd = f->kick_fd = f->reserve_fd = -1;
    lock_init(&f->lock, LOCK_LEAF);
    cond_init(&f->called);
    f->answers = budget_new(config->answers_bytes);
    conn_table_init(&f->conns, sys_mono_ms());
    session_table_init(&f->sessions, config->sessions.open, config->sessions.close, config->sessions.abandon,
                       config->sessions.arg);
    f->sessions.identify = config->sessions.identify;
    for (int i = 0; i < CONN_KIND_COUNT; i++)
        f->connections[i] = metrics_series(METRIC_CONNECTIONS, conn_kind_name((enum conn_kind)i), NULL, NULL);
    int k = make_descriptors(f, e);
    if (k < 0)
        return k;
    k = front_workers_start(f, e);
    if (k < 0)
        return k;
    *ret = TAKE_PTR(f);
    return 0;
}

int front_listen(struct front *f, int fd, enum conn_kind kind, struct err *e)
{
    assert(f->magic == FRONT_MAGIC && f->listeners[kind] == NULL);
    struct conn *c = calloc(1, sizeof(*c));
    if (!c)
        abort();
    c->magic = CONN_MAGIC;
    c->fd = fd;
    c->kind = (uint8_t)kind;
    c->phase = CONN_LISTENING;
    atomic_init(&c->claim, CONN_WAITS);
    f->listeners[kind] = c; /* from here on the front closes it */
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
        return err_errno(e, -errno, "listener");
    struct epoll_event ev = {.events = EPOLLIN | EPOLLONESHOT, .data.ptr = c};
    if (epoll_ctl(f->epoll_fd, EPOLL_CTL_ADD, fd, &ev) < 0)
        return err_errno(e, -errno, "epoll_ctl");
    return 0;
}

int front_drain(struct front *f, uint64_t timeout_ms)
{
    assert(f->magic == FRONT_MAGIC);
    uint64_t now_ms = sys_mono_ms(), end_ms = now_ms + timeout_ms;
    atomic_store(&f->linger_end_ms, now_ms + LINGER_STOP_MS);
    atomic_store(&f->draining, true);
    for (int i = 0; i < CONN_KIND_COUNT; i++)
        if (f->listeners[i]) /* nobody connects any more; closed by front_free */
            (void)shutdown(f->listeners[i]->fd, SHUT_RDWR);
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
    conn_table_shutdown(&f->conns, /* busy_too= */ true);
    front_workers_stop(f);
    close_all(f);
}

void front_free(struct front *f)
{
    if (!f)
        return;
    assert(f->magic == FRONT_MAGIC);
    front_stop(f); /* again, or of one that did not start whole */
    front_workers_free(f);
    for (int i = 0; i < CONN_KIND_COUNT; i++) {
        if (f->listeners[i])
            (void)close(f->listeners[i]->fd);
        free(f->listeners[i]);
    }
    macro_close(&f->epoll_fd);
    macro_close(&f->kick_fd);
    macro_close(&f->reserve_fd);
    session_table_fini(&f->sessions);
    conn_table_fini(&f->conns);
    budget_free(f->answers);
    cond_fini(&f->called);
    lock_fini(&f->lock);
    f->magic = 0;
    free(f);
}

size_t front_connections(struct front *f)
{
    return atomic_load(&f->conns.n);
}
