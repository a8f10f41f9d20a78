/*
 * A thread of its own that does one thing again and again: when it is called, and when the time is over that
 * its last turn asked for. For what nobody waits for.
 */
#pragma once

#include "base/lock.h"

#define CHORE_UNTIL_CALLED UINT64_MAX

/* One turn. How many ns later the next one begins unless it is called before. */
typedef uint64_t (*chore_fn)(void *arg);

/* Embedded; nothing in it is for others. */
struct chore {
    uint32_t magic;
    bool has_thread;
    chore_fn fn;
    void *arg;
    uint64_t first_ns;
    pthread_t thread;
    struct lock lock; /* LOCK_LEAF; covers what follows */
    struct cond called;
    bool is_called, is_stopping;
};

/* The first turn begins after first_ns, or when it is called. -errno without a thread: it may be called and
 * stopped all the same, and never has a turn. */
int chore_start(struct chore *c, uint64_t first_ns, chore_fn fn, void *arg);
/* From any thread, also before there is one: a turn begins after this call, sooner or later. Many calls
 * before it begins are one. */
void chore_call(struct chore *c);
/* For turns that take long: whether to come to an end. */
bool chore_is_stopping(struct chore *c);
/* Within a turn: lets time pass, at most ns; a call or the stop ends it. */
void chore_pause(struct chore *c, uint64_t ns);
/* Waits for the turn that runs, and for the one that was called for before; there is none after it. Does
 * nothing for one that was never started, or is stopped already. */
void chore_stop(struct chore *c);
