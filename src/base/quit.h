/*
 * Giving up what a thread waits for, however long that would say nothing.
 *
 * Whoever waits for an origin, or for another thread that does, asks quit_level() every QUIT_LOOK_MS. What
 * counts for a thread are its scopes, each with flags that others set: the job that is cancelled, the node
 * that stops. Threads that work for another one get its scopes (quit_here, quit_use).
 *
 * What tidies up after what was given up, at the same origin perhaps, has a scope in which nothing counts for
 * QUIT_TIDY_MS.
 *
 * Failure modes: none. Who gives up says -ECANCELED, as for any other cancel flag.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define QUIT_LOOK_MS    100
#define QUIT_SILENCE_MS 3000
#define QUIT_TIDY_MS    2000
#define QUIT_LONG_MS    3000 /* who has waited for so long waits for something that may never come */
#define QUIT_CROWDED_MS 500  /* and for so long those wait for whom it is full */

enum quit_level {
    QUIT_NO,
    QUIT_SOON, /* nothing is tried again, and nobody waits for QUIT_SILENCE_MS of silence */
    QUIT_NOW,
};

/* Threads of one kind that wait: no more than `most` of them for long, so that the others are there for what
 * need not wait. Those beyond are given up: after QUIT_LONG_MS, and, when it is full, after QUIT_CROWDED_MS.
 * Who waits for something that shows signs of life (quit_watch) has not waited since the last of them: a slow
 * origin that many read from at once is no reason to give anybody up.
 */
struct quit_crowd {
    unsigned most; /* 0: any number */
    atomic_uint n; /* that have waited for long */
};

/* One thing that a thread of a crowd does, from quit_turn_begin to quit_turn_end. */
struct quit_turn {
    struct quit_crowd *crowd;
    _Atomic uint64_t since_ms; /* when it was first seen to wait, monotonic; 0: not yet */
    _Atomic uint64_t life_ms;  /* when what it does itself got on last (quit_lives), monotonic; 0: never */
    atomic_int state;
};

/* A scope. Flags may be NULL; what they point to outlives it. */
struct quit {
    const struct quit *outer;
    const atomic_bool *soon, *now;
    struct quit_turn *turn;
    _Atomic uint64_t *life_ms; /* where quit_lives says so; NULL: nowhere, but for a turn's own */
    uint64_t tidy_until_ms;    /* monotonic: until then nothing counts; 0: not one to tidy up in */
};

/* What the scopes of this thread say. */
enum quit_level quit_level(void);
static inline bool quit_is_now(void)
{
    return quit_level() == QUIT_NOW;
}
/* The shorter of a time and what is waited for a sign of life now. */
uint64_t quit_patience_ms(uint64_t timeout_ms);

/* Adds a scope, or one to tidy up in, to those of this thread; the caller has set the flags of the former.
 * They are left in the reverse order. */
void quit_enter(struct quit *q);
void quit_enter_tidy(struct quit *q);
/* One in which QUIT_SOON is said: of who can do without an answer, or asks again later. */
void quit_enter_impatient(struct quit *q);
void quit_leave(struct quit *q);

/* `crowd` outlives it. The turn is then put into a scope. */
void quit_turn_begin(struct quit_turn *t, struct quit_crowd *crowd);
/* After the scope was left. Whether it was given up for others. */
bool quit_turn_end(struct quit_turn *t);
/* Whether one of this thread's scopes was given up for others. */
bool quit_is_refused(void);

/* Around what no flag can end, as a call of a file system whose server is away: from its beginning it counts
 * as one that has waited for long, and it waits for a place among those. QUIT_NOW: it is given up instead,
 * and has no end. *ret: what ends it. */
struct quit_deaf {
    struct quit_turn *turn; /* NULL: no place to give back */
};
enum quit_level quit_deaf_begin(struct quit_deaf *ret);
void quit_deaf_end(struct quit_deaf *d);

/* What this thread does gets on, as bytes leave: none of its turns has waited since then (monotonic). Bytes
 * that lie in buffers on the way to a silent origin are no sign of life for others: theirs is quit_watch. */
void quit_lives(void);
void quit_lives_at(uint64_t at_ms);

/* What this thread waits for from now on showed a sign of life then (monotonic, ms; 0: never); NULL: nobody
 * knows. Gives the former, to be put back before the memory goes. */
const _Atomic uint64_t *quit_watch(const _Atomic uint64_t *life_ms);
const _Atomic uint64_t *quit_watched(void); /* for threads that work for this one */

/* The innermost scope that is no turn's, for threads that outlive the turn; or NULL. */
const struct quit *quit_lasting(void);
/* The innermost scope, or NULL; and one, with those around it, in its place: gives the former. */
const struct quit *quit_here(void);
const struct quit *quit_use(const struct quit *q);
