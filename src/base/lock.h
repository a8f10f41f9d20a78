/*
 * Wrapped mutexes and conditions. In test builds (FB_LOCK_CHECK) each lock has a rank and the wrapper asserts
 * that a thread takes locks in rising rank and that lock_assert_held() holds; in release they are plain
 * pthread calls.
 */
#pragma once

#include "base/macro.h"

#include <pthread.h>

/* Order in which locks may be taken: a holder of one may take those further down. One row per lock class. */
#define LOCK_RANKS(X)                                                                                        \
    X(SERVER)                                                                                                \
    X(STEWARD)                                                                                               \
    X(JOBS)                                                                                                  \
    X(SESSION)                                                                                               \
    X(READER)                                                                                                \
    X(OBJECT)                                                                                                \
    X(FILL)                                                                                                  \
    X(ENGINE)                                                                                                \
    X(NAMESPACE)                                                                                             \
    X(BUCKET)                                                                                                \
    X(ORIGIN)                                                                                                \
    X(STORE)                                                                                                 \
    X(EXTENT)                                                                                                \
    X(DISK)                                                                                                  \
    X(KV)                                                                                                    \
    X(CLIENT)                                                                                                \
    X(MOUNT)                                                                                                 \
    X(BUDGET)                                                                                                \
    X(METRICS)                                                                                               \
    X(LEAF)

enum lock_rank {
#define X(name) LOCK_##name,
    LOCK_RANKS(X)
#undef X
};

struct lock {
    pthread_mutex_t mutex;
    enum lock_rank rank;
    pthread_t owner; /* valid while held, FB_LOCK_CHECK only */
    bool held;
};

struct cond {
    pthread_cond_t cond; /* waits on CLOCK_MONOTONIC */
};

void lock_init(struct lock *l, enum lock_rank rank);
void lock_fini(struct lock *l);
void lock_take(struct lock *l);
bool lock_try(struct lock *l); /* takes it unless somebody has it */
void lock_drop(struct lock *l);
void lock_assert_held(const struct lock *l);

void cond_init(struct cond *c);
void cond_fini(struct cond *c);
void cond_signal(struct cond *c);
void cond_broadcast(struct cond *c);
void cond_wait(struct cond *c, struct lock *l);
/* 0, or -ETIMEDOUT once `timeout_ns` of real monotonic time have passed. */
int cond_wait_for(struct cond *c, struct lock *l, uint64_t timeout_ns);

static inline void lock_dropp(struct lock **l)
{
    if (*l)
        lock_drop(*l);
}

/* Holds the lock until the end of the enclosing block. */
#define LOCK_SCOPE(l)                                                                                        \
    struct lock *_cleanup_(lock_dropp) _lock_scope = (l);                                                    \
    lock_take(_lock_scope)
