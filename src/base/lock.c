/*
 * Wrapped mutexes and conditions.
 *
 * Invariants, asserted with FB_LOCK_CHECK:
 *  1. A thread takes locks in strictly rising rank; two locks of one rank are never held together.
 *  2. A lock is dropped by the thread that took it.
 *  3. A thread waits on a condition only with the lock of the highest rank that it holds, because taking it
 * again after the wait would otherwise break rule 1.
 *
 * Failure modes: misuse aborts. What a thread holds is kept in its own list, so the checks need no lock
 * themselves.
 */
#include "base/lock.h"

#include <errno.h>
#include <string.h>
#include <time.h>

static void must(int r, const char *what)
{
    if (r == 0)
        return;
    (void)fprintf(stderr, "lock: %s: %s\n", what, strerrordesc_np(r));
    abort();
}

#ifdef FB_LOCK_CHECK

#define HELD_MAX 32

static __thread const struct lock *held[HELD_MAX]; /* rising rank */
static __thread size_t n_held;

static const char *rank_name(enum lock_rank rank)
{
    switch (rank) {
#define X(name)                                                                                              \
    case LOCK_##name:                                                                                        \
        return #name;
        LOCK_RANKS(X)
#undef X
    }
    return "?";
}

static ssize_t held_at(const struct lock *l)
{
    for (size_t i = n_held; i > 0; i--)
        if (held[i - 1] == l)
            return (ssize_t)(i - 1);
    return -1;
}

static void misuse(const struct lock *l, const char *what)
{
    (void)fprintf(stderr, "lock %s: %s; held:", rank_name(l->rank), what);
    for (size_t i = 0; i < n_held; i++)
        (void)fprintf(stderr, " %s", rank_name(held[i]->rank));
    (void)fputc('\n', stderr);
    abort();
}

static void check_take(const struct lock *l)
{
    if (n_held && held[n_held - 1]->rank >= l->rank)
        misuse(l, "taken out of order");
    if (n_held == HELD_MAX)
        misuse(l, "one thread holds too many");
}

static void note_taken(struct lock *l)
{
    held[n_held++] = l;
    l->owner = pthread_self();
    l->held = true;
}

static void note_dropped(struct lock *l)
{
    ssize_t at = held_at(l);
    if (at < 0)
        misuse(l, "dropped by a thread that does not hold it");
    memmove(held + at, held + at + 1, (n_held - (size_t)at - 1) * sizeof(held[0]));
    n_held--;
    l->held = false;
}

static void check_wait(const struct lock *l)
{
    if (n_held == 0 || held[n_held - 1] != l)
        misuse(l, "waited with while it is not the last one taken");
}

void lock_assert_held(const struct lock *l)
{
    if (held_at(l) < 0)
        misuse(l, "must be held here");
}

#else

static void check_take(const struct lock *l)
{
    (void)l;
}

static void note_taken(struct lock *l)
{
    (void)l;
}

static void note_dropped(struct lock *l)
{
    (void)l;
}

static void check_wait(const struct lock *l)
{
    (void)l;
}

void lock_assert_held(const struct lock *l)
{
    (void)l;
}

#endif

void lock_init(struct lock *l, enum lock_rank rank)
{
    must(pthread_mutex_init(&l->mutex, NULL), "init");
    l->rank = rank;
    l->held = false;
    memset(&l->owner, 0, sizeof(l->owner));
}

void lock_fini(struct lock *l)
{
    assert(!l->held);
    must(pthread_mutex_destroy(&l->mutex), "fini");
}

void lock_take(struct lock *l)
{
    check_take(l);
    must(pthread_mutex_lock(&l->mutex), "take");
    note_taken(l);
}

bool lock_try(struct lock *l)
{
    check_take(l);
    int r = pthread_mutex_trylock(&l->mutex);
    if (r == EBUSY)
        return false;
    must(r, "trylock");
    note_taken(l);
    return true;
}

void lock_drop(struct lock *l)
{
    note_dropped(l);
    must(pthread_mutex_unlock(&l->mutex), "drop");
}

void cond_init(struct cond *c)
{
    pthread_condattr_t attr;
    must(pthread_condattr_init(&attr), "condition");
    must(pthread_condattr_setclock(&attr, CLOCK_MONOTONIC), "condition clock");
    must(pthread_cond_init(&c->cond, &attr), "condition");
    must(pthread_condattr_destroy(&attr), "condition");
}

void cond_fini(struct cond *c)
{
    must(pthread_cond_destroy(&c->cond), "condition fini");
}

void cond_signal(struct cond *c)
{
    must(pthread_cond_signal(&c->cond), "signal");
}

void cond_broadcast(struct cond *c)
{
    must(pthread_cond_broadcast(&c->cond), "broadcast");
}

void cond_wait(struct cond *c, struct lock *l)
{
    check_wait(l);
    note_dropped(l);
    must(pthread_cond_wait(&c->cond, &l->mutex), "wait");
    note_taken(l);
}

int cond_wait_for(struct cond *c, struct lock *l, uint64_t timeout_ns)
{
    struct timespec until;
    must(clock_gettime(CLOCK_MONOTONIC, &until) < 0 ? errno : 0, "clock");
    uint64_t wait_s =
        MIN(timeout_ns / 1000000000u, (uint64_t)INT32_MAX); /* "for ever" must not overflow time_t */
    until.tv_sec += (time_t)wait_s;
    until.tv_nsec += (long)(timeout_ns % 1000000000u);
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    check_wait(l);
    note_dropped(l);
    int r = pthread_cond_timedwait(&c->cond, &l->mutex, &until);
    note_taken(l);
    if (r == ETIMEDOUT)
        return -ETIMEDOUT;
    must(r, "timed wait");
    return 0;
}
