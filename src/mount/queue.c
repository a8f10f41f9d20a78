/*
 * Leading (contract in queue.h). The file is read without waiting; threads that do not lead wait in epoll,
 * where it is armed for one event (EPOLLONESHOT). Who gets the event leads, and arms it again to pass on,
 * which wakes the next one if there is something to read already.
 *
 * Invariants:
 *  1. The file is armed, or exactly one thread leads, or is about to have the event.
 *  2. A leader passes on after any result of a read but that of a quick request.
 *  3. A leader that held on through a call sees at its next read whether another program had to wait for it.
 *  4. What is parked (parking.h) comes before what the kernel has.
 *
 * Failure modes: a thread that was cancelled while it led takes the lead with it; that is done to all threads
 * at once, at the end.
 */
#include "mount/queue.h"

#include "base/log.h"
#include "base/look.h"
#include "base/macro.h"
#include "base/sys.h"
#include "mount/parking.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define LOOK_NS   100000  /* how long for the next request */
#define FAST_NS   1000000 /* QUEUE_PACE requests came within this */
#define OPCODE_AT 4       /* struct fuse_in_header, as in request.h */
#define PID_AT    32      /* of the thread that asks; 0: nobody waits */

static struct {
    int fd, epoll; /* of /dev/fuse; a process has one mount */
    int wake_fd;   /* an event: one thread looks at what is parked */
    bool is_on, may_look;
    uint64_t quick; /* QUEUE_BITs */
    _Atomic uint64_t
        turns;           /* counted by who passes on, read by who takes over: what one wrote the other sees */
    atomic_uint serving; /* threads that serve a quick request */
    struct queue_pace pace; /* the leader's */
    struct look hold;       /* the leader's: whether to hold on through calls */
} queue;

static _Thread_local bool leads;
static _Thread_local bool serves;    /* a quick request: counted in queue.serving */
static _Thread_local bool held_on;   /* through a call, since the last read */
static _Thread_local uint32_t asker; /* the pid of the request that is served */

/* ---- pace ---- */

void queue_pace_add(struct queue_pace *p, uint64_t now_ns)
{
    p->came_ns[p->next] = now_ns;
    p->next = (p->next + 1) % QUEUE_PACE;
}

bool queue_pace_is_fast(const struct queue_pace *p, uint64_t now_ns)
{
    uint64_t oldest = p->came_ns[p->next];
    return oldest > 0 && now_ns - oldest < FAST_NS;
}

/* ---- the lead ---- */

static void pass_on(void)
{
    struct epoll_event e = {.events = EPOLLIN | EPOLLONESHOT, .data.fd = queue.fd};
    leads = held_on = false;
    (void)atomic_fetch_add(&queue.turns, 1);
    int r = epoll_ctl(queue.epoll, EPOLL_CTL_MOD, queue.fd, &e);
    assert(r == 0);
    (void)r;
}

void queue_may_wait(void)
{
    if (leads)
        pass_on();
}

void queue_calls(void)
{
    if (!leads || held_on)
        return;
    if (look_is_due(&queue.hold))
        held_on = true;
    else
        pass_on();
}

void queue_lock(struct lock *l)
{
    if (leads && lock_try(l))
        return;
    queue_may_wait();
    lock_take(l);
}

/* 0; 1: it was woken instead; or -1 and errno: EINTR. */
static int take_lead(void)
{
    struct epoll_event e;
    int n = epoll_wait(queue.epoll, &e, 1, -1);
    bool is_woken = n == 1 && e.data.fd == queue.wake_fd;
    leads = n == 1 && !is_woken;
    (void)atomic_load(&queue.turns);
    return n == 1 ? is_woken : -1;
}

static uint32_t u32_at(const void *request, size_t n, size_t at)
{
    uint32_t v = 0;
    if (n >= at + sizeof(v))
        memcpy(&v, (const uint8_t *)request + at, sizeof(v));
    return v;
}

/* Another thread than the one that the last request was from has waited. */
static bool is_others(const void *request, size_t n)
{
    uint32_t pid = u32_at(request, n, PID_AT);
    return pid != 0 && pid != asker;
}

/* As long as it is worth looking for it. */
static ssize_t look(void *p, size_t n)
{
    ssize_t got = read(queue.fd, p, n);
    if (held_on && (got > 0 || errno == EAGAIN))
        look_note(&queue.hold, /* found= */ got < 0 || !is_others(p, (size_t)got));
    held_on = false;
    if (got >= 0 || errno != EAGAIN)
        return got;
    uint64_t began_ns = sys->mono_ns();
    bool is_fast = queue.may_look &&
                   look_may_beside(atomic_load_explicit(&queue.serving, memory_order_relaxed)) &&
                   queue_pace_is_fast(&queue.pace, began_ns);
    while ((got = read(queue.fd, p, n)) < 0 && errno == EAGAIN && is_fast) {
        (void)sched_yield();
        is_fast = look_may_beside(atomic_load_explicit(&queue.serving, memory_order_relaxed)) &&
                  sys->mono_ns() - began_ns < LOOK_NS;
    }
    return got;
}

static bool is_quick(const void *request, size_t n)
{
    uint32_t opcode = u32_at(request, n, OPCODE_AT);
    return opcode < 64 && queue.quick >> opcode & 1;
}

static void note_serving(bool begins)
{
    if (serves != begins)
        (void)atomic_fetch_add_explicit(&queue.serving, begins ? 1 : -1u, memory_order_relaxed);
    serves = begins;
}

static ssize_t read_alone(int fd, void *p, size_t n)
{
    ssize_t got;
    while ((got = read(fd, p, n)) < 0 && errno == EAGAIN) { /* as a process before this one left it */
        struct pollfd one = {.fd = fd, .events = POLLIN};
        if (poll(&one, 1, -1) < 0)
            return -1;
    }
    return got;
}

ssize_t queue_read(int fd, void *p, size_t n)
{
    note_serving(false);
    for (;;) {
        ssize_t parked = parking_next(p, n);
        if (parked > 0)
            queue_may_wait();
        if (parked > 0 || !queue.is_on)
            return parked > 0 ? parked : read_alone(fd, p, n);
        int woken = leads ? 0 : take_lead();
        if (woken < 0)
            return -1;
        if (woken > 0)
            continue;
        ssize_t got = look(p, n);
        int error = errno;
        if (got > 0) {
            queue_pace_add(&queue.pace, sys->mono_ns());
            asker = u32_at(p, (size_t)got, PID_AT);
        }
        if (got <= 0 || !is_quick(p, (size_t)got))
            pass_on();
        else
            note_serving(true);
        errno = error;
        if (got >= 0 || error != EAGAIN)
            return got;
    }
}

/* Of an event fd, which nobody reads, each write is one. */
static bool add_event(int fd, uint32_t how)
{
    struct epoll_event e = {.events = EPOLLIN | how, .data.fd = fd};
    return epoll_ctl(queue.epoll, EPOLL_CTL_ADD, fd, &e) == 0;
}

void queue_wake(void)
{
    const uint64_t one = 1;
    if (queue.is_on)
        (void)!write(queue.wake_fd, &one, sizeof(one));
}

void queue_start(int fd, uint64_t quick)
{
    int flags = fcntl(fd, F_GETFL);
    cpu_set_t cpus;
    queue.epoll = epoll_create1(EPOLL_CLOEXEC);
    queue.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (queue.epoll < 0 || queue.wake_fd < 0 || !add_event(fd, EPOLLONESHOT) ||
        !add_event(queue.wake_fd, EPOLLET) || flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) {
        log_warn("mount", "every thread reads for itself: %s", err_text(-errno));
        return;
    }
    queue.fd = fd;
    queue.quick = quick;
    queue.may_look = sched_getaffinity(0, sizeof(cpus), &cpus) == 0 && CPU_COUNT(&cpus) > 1;
    queue.is_on = true;
}
