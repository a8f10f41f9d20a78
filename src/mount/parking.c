/*
 * Requests that wait for a thread (contract in parking.h).
 *
 * Invariants:
 *  1. While something is parked all places are taken, or a thread is on its way to parking_next: who leaves a
 * place looks behind that whether something is parked, and who parks looks behind that for a place, or wakes
 * somebody who does.
 *  2. What has a place when it begins is not parked.
 *  3. parking.n is the length of both lists. Each has its requests in the order in which they came, whatever
 * was tried meanwhile: who leaves a place runs the first of all.
 *  4. However slow the node is to say that it has nothing, who is killed ends: a look tries requests for
 * LOOK_MAX_NS and one more, and only asks whether the others' programs are gone.
 *
 * Failure modes: where no more can be parked (PARKED_MAX, or the memory of the mount, holdings.h) requests
 * wait in their threads without a place, and all threads may come to wait. A node that does not know
 * WIRE_NO_WAIT has each question wait for as long as TRY_LOOKS are.
 */
#include "mount/parking.h"

#include "base/lock.h"
#include "base/log.h"
#include "base/look.h"
#include "base/sys.h"
#include "mount/holdings.h"
#include "mount/request.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THREADS_PER_SPARE 16
#define PARKED_MAX        8192
#define REQUEST_MAX_BYTES 8192 /* of one that is parked: all but those that bring bytes of files */
#define HEAD_BYTES        40   /* struct fuse_in_header */
#define UNIQUE_AT         8    /* of that, as in request.h */
#define LOOK_NS           500000000ull
#define LOOKED_AT_ONCE    256
#define LOOK_MAX_NS       2000000000ull
#define TRY_LOOKS         3  /* at a node that is slow, ten a second */
#define TRY_AGAIN_LOOKS   40 /* by who has the time: longer than a node asks whether an origin is silent */

/* Source: struct fuse_out_header, linux/fuse.h. */
struct answer {
    uint32_t len;
    int32_t error;
    uint64_t unique;
};
static_assert(sizeof(struct answer) == 16, "as the kernel has it");

struct parked {
    struct parked *next;
    uint64_t ticket; /* in the order in which they came */
    uint64_t unique; /* as the kernel has it */
    pid_t asker, process;
    bool is_question;
    size_t n;
    uint8_t bytes[];
};

struct parked_list {
    struct parked *first, **end;
};

static struct {
    int fd;
    unsigned n_places;     /* 0: all may wait */
    atomic_uint n_waiting; /* places that are taken */
    atomic_uint n;         /* parked; changed under the lock */
    struct parking_calls calls;
    pthread_t thread;
    bool is_watched;  /* by it */
    struct lock lock; /* covers what follows */
    struct cond woken;
    struct parked_list coming; /* to be looked at, and behind them those that come */
    struct parked_list looked; /* at already; they are the older ones */
    uint64_t tickets;          /* given out */
    bool must_stop;
} parking;

static _Thread_local struct {
    const void *request; /* NULL: none, or one that is parked */
    size_t n;
    unsigned n_looks;
    bool has_place, is_refused, is_parked;
    bool tries;     /* what it asks the node now must not wait */
    bool has_tried; /* so it was with something that it asked */
    bool never_waits;
    uint64_t ticket;   /* of what is looked at */
    uint64_t tried_to; /* by a look that had no time for those behind it; 0: by none */
} own;

/* ---- places ---- */

unsigned parking_places(unsigned n_threads)
{
    return n_threads < 2 ? 0 : n_threads - MAX(n_threads / THREADS_PER_SPARE, 1u);
}

static bool take_place(void)
{
    unsigned n = atomic_load(&parking.n_waiting);
    while (!own.never_waits && n < parking.n_places)
        if (atomic_compare_exchange_weak(&parking.n_waiting, &n, n + 1))
            return own.has_place = true;
    return false;
}

static void leave_place(void)
{
    own.has_place = false;
    (void)atomic_fetch_sub(&parking.n_waiting, 1);
}

static bool is_place_free(void)
{
    return atomic_load(&parking.n_waiting) < parking.n_places;
}

static size_t held_bytes(size_t n)
{
    return holdings_chunk(sizeof(struct parked) + n);
}

/* Those that pass this at the same time may be a few more than PARKED_MAX. */
static bool can_park(void)
{
    bool has_room = atomic_load(&parking.n) < PARKED_MAX && holdings_may(held_bytes(own.n));
    return own.n <= REQUEST_MAX_BYTES && (own.never_waits || has_room); /* whose request was parked */
}

/* ---- the request of this thread ---- */

void parking_begin(const void *request, size_t n)
{
    own.request = n >= HEAD_BYTES ? request : NULL;
    own.n = n;
    own.n_looks = 0;
    own.is_refused = own.is_parked = own.tries = own.has_tried = false;
}

static bool counts(void)
{
    return own.request && !own.has_place && parking.n_places > 0;
}

bool parking_must_not_wait(void)
{
    own.tries = counts() && request_is_question() && (own.never_waits || !is_place_free()) && can_park();
    own.has_tried = own.has_tried || own.tries;
    return own.tries;
}

static bool refuse(void)
{
    own.is_refused = can_park();
    return own.is_refused;
}

bool parking_may_wait(void)
{
    if (!counts() || !request_is_question())
        return true;
    if (own.is_refused || take_place())
        return !own.is_refused;
    if (own.tries && own.n_looks++ < (own.never_waits ? TRY_AGAIN_LOOKS : TRY_LOOKS))
        return true;
    return !refuse();
}

bool parking_may_stay(void)
{
    own.tries = false;
    return parking_may_wait();
}

bool parking_may_begin(void)
{
    return !counts() || take_place() || !refuse();
}

bool parking_is_due(int code)
{
    return own.request && (own.is_refused || (own.has_tried && code == -EAGAIN));
}

bool parking_is_done(void)
{
    return own.is_parked;
}

static void list_init(struct parked_list *l)
{
    *l = (struct parked_list){.end = &l->first};
}

static void list_add(struct parked_list *l, struct parked *x)
{
    x->next = NULL;
    *l->end = x;
    l->end = &x->next;
}

static struct parked *list_take(struct parked_list *l)
{
    struct parked *x = l->first;
    l->first = x->next;
    if (!l->first)
        l->end = &l->first;
    return x;
}

/* ticket: of what was parked before; 0: it comes now. */
static void add(struct parked *x, uint64_t ticket)
{
    LOCK_SCOPE(&parking.lock);
    x->ticket = ticket ? ticket : ++parking.tickets;
    list_add(ticket ? &parking.looked : &parking.coming, x);
    if (atomic_fetch_add(&parking.n, 1) == 0)
        cond_signal(&parking.woken);
}

void parking_park(void)
{
    assert(own.request);
    struct parked *x = malloc(sizeof(*x) + own.n);
    if (!x)
        abort();
    *x = (struct parked){.asker = request_asker(),
                         .process = *request_process(),
                         .is_question = request_is_question(),
                         .n = own.n};
    memcpy(x->bytes, own.request, own.n);
    memcpy(&x->unique, x->bytes + UNIQUE_AT, sizeof(x->unique));
    holdings_take(HOLDING_PARKED, held_bytes(x->n));
    own.request = NULL;
    own.is_parked = true;
    add(x, own.ticket);
}

/* ---- what is parked ---- */

static void parked_free(struct parked *x)
{
    holdings_give(HOLDING_PARKED, held_bytes(x->n));
    free(x);
}

/* The first of all; NULL: there is none. */
static struct parked *take_first(void)
{
    LOCK_SCOPE(&parking.lock);
    struct parked *a = parking.looked.first, *b = parking.coming.first;
    if (!a && !b)
        return NULL;
    (void)atomic_fetch_sub(&parking.n, 1);
    return list_take(a && (!b || a->ticket < b->ticket) ? &parking.looked : &parking.coming);
}

/* The next one to be looked at; when all were, the first of all. */
static struct parked *take_to_look(void)
{
    LOCK_SCOPE(&parking.lock);
    if (!parking.coming.first && !parking.looked.first)
        return NULL;
    if (!parking.coming.first) {
        parking.coming = parking.looked;
        list_init(&parking.looked);
    }
    (void)atomic_fetch_sub(&parking.n, 1);
    return list_take(&parking.coming);
}

ssize_t parking_next(void *p, size_t n)
{
    own.request = NULL;
    if (own.has_place)
        leave_place();
    while (atomic_load(&parking.n) > 0 && take_place()) {
        struct parked *x = take_first();
        if (!x) { /* another thread was faster */
            leave_place();
            continue;
        }
        size_t got = x->n;
        assert(got <= n);
        memcpy(p, x->bytes, got);
        parked_free(x);
        return (ssize_t)got;
    }
    return 0;
}

/* What a program that ends is told, and others at the end of the mount. */
static void answer(const struct parked *x, int code)
{
    const struct answer out = {.len = sizeof(out), .error = code, .unique = x->unique};
    if (write(parking.fd, &out, sizeof(out)) < 0)
        log_debug("mount", "a parked request: %s", err_text(-errno));
}

/* ---- looking at it ---- */

static void try_again(struct parked *x)
{
    request_begin(x->bytes, x->n);
    *request_process() = x->process;
    parking_begin(x->bytes, x->n);
    own.ticket = x->ticket;
    parking.calls.run(parking.calls.arg, x->bytes, x->n);
    own.ticket = 0;
    own.request = NULL;
    request_begin(NULL, 0);
}

/* true: it has left, answered. */
static bool look_at(struct parked *x, bool may_try)
{
    bool is_gone = x->is_question && x->asker > 0 && parking.calls.is_gone(x->asker, &x->process);
    if (!is_gone && !(x->is_question && may_try)) {
        add(x, x->ticket);
        return false;
    }
    if (is_gone)
        answer(x, -EINTR);
    else
        try_again(x);
    bool has_left = is_gone || !own.is_parked;
    parked_free(x);
    return has_left;
}

size_t parking_look(void)
{
    size_t n = MIN(atomic_load(&parking.n), (unsigned)LOOKED_AT_ONCE), n_left = 0;
    uint64_t began_ns = sys->mono_ns(), tried_to = 0;
    bool has_time = true;
    struct parked *x;
    own.never_waits = true;
    for (size_t i = 0; i < n && (x = take_to_look()); i++) {
        has_time = has_time && sys->mono_ns() - began_ns < LOOK_MAX_NS;
        bool may_try = has_time && x->ticket > own.tried_to;
        tried_to = may_try ? x->ticket : tried_to;
        bool has_left = look_at(x, may_try);
        own.is_parked = false;
        n_left += has_left;
        if (!has_left && is_place_free()) /* who left one has not seen this request */
            parking.calls.wake(parking.calls.arg);
    }
    own.never_waits = false;
    own.tried_to = has_time ? 0 : tried_to;
    return n_left;
}

/* false: the end. */
static bool wait_for_turn(void)
{
    LOCK_SCOPE(&parking.lock);
    while (!parking.must_stop && atomic_load(&parking.n) == 0)
        cond_wait(&parking.woken, &parking.lock);
    if (!parking.must_stop)
        (void)cond_wait_for(&parking.woken, &parking.lock, LOOK_NS);
    return !parking.must_stop;
}

static void *look_main(void *arg)
{
    (void)arg;
    look_never();
    while (wait_for_turn())
        (void)parking_look();
    return NULL;
}

/* ---- life ---- */

void parking_start(int fd, unsigned n_places, const struct parking_calls *calls)
{
    if (n_places == 0)
        return;
    parking.fd = fd;
    parking.calls = *calls;
    parking.must_stop = false;
    list_init(&parking.coming);
    list_init(&parking.looked);
    atomic_store(&parking.n_waiting, 0);
    lock_init(&parking.lock, LOCK_LEAF);
    cond_init(&parking.woken);
    parking.n_places = n_places;
}

void parking_watch(void)
{
    sigset_t all, before;
    if (parking.n_places == 0)
        return;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, &before); /* those that end the mount are the first thread's */
    if (pthread_create(&parking.thread, NULL, look_main, NULL) != 0)
        abort();
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    parking.is_watched = true;
}

void parking_end(void)
{
    if (parking.n_places == 0)
        return;
    lock_take(&parking.lock);
    parking.must_stop = true;
    cond_signal(&parking.woken);
    lock_drop(&parking.lock);
    if (parking.is_watched)
        (void)pthread_join(parking.thread, NULL);
    parking.is_watched = false;
    parking.n_places = 0;
    for (struct parked *x; (x = take_first()); parked_free(x))
        answer(x, -ENOTCONN);
    cond_fini(&parking.woken);
    lock_fini(&parking.lock);
}
