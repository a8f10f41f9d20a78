/* The scopes of a thread (contract in quit.h): a chain, innermost first. */
#include "base/quit.h"

#include "base/macro.h"
#include "base/sys.h"

#include <assert.h>
#include <stddef.h>

#define DEAF_FIRST_NS   500000 /* between two looks for a place */
#define DEAF_LONGEST_NS 16000000

static _Thread_local const struct quit *here;
static _Thread_local const _Atomic uint64_t *watched; /* quit_watch */

static bool is_set(const atomic_bool *flag)
{
    return flag && atomic_load(flag);
}

/* ---- crowds ---- */

enum { TURN_NEW, TURN_LONG, TURN_REFUSED };

/* One more of those that have waited for long; false: there are as many as may be. */
static bool crowd_enter(struct quit_crowd *c)
{
    unsigned n = atomic_load(&c->n);
    while (n < c->most)
        if (atomic_compare_exchange_weak(&c->n, &n, n + 1))
            return true;
    return false;
}

void quit_turn_begin(struct quit_turn *t, struct quit_crowd *crowd)
{
    t->crowd = crowd;
    atomic_init(&t->since_ms, 0);
    atomic_init(&t->life_ms, 0);
    atomic_init(&t->state, TURN_NEW);
}

bool quit_turn_end(struct quit_turn *t)
{
    int state = atomic_load(&t->state);
    if (state == TURN_LONG)
        (void)atomic_fetch_sub(&t->crowd->n, 1);
    return state == TURN_REFUSED;
}

/* By whoever waits, perhaps several threads for one turn. */
static bool is_refused(struct quit_turn *t)
{
    uint64_t now_ms = sys_mono_ms(), since_ms = 0;
    int state = atomic_load(&t->state), was = TURN_NEW;
    if (state != TURN_NEW || t->crowd->most == 0)
        return state == TURN_REFUSED;
    if (atomic_compare_exchange_strong(&t->since_ms, &since_ms, now_ms))
        since_ms = now_ms;
    since_ms = MAX(since_ms, watched ? atomic_load(watched) : 0);
    since_ms = MAX(since_ms, atomic_load(&t->life_ms));
    uint64_t waited_ms = now_ms - MIN(now_ms, since_ms);
    bool full = atomic_load(&t->crowd->n) >= t->crowd->most;
    if (waited_ms < (full ? QUIT_CROWDED_MS : QUIT_LONG_MS))
        return false;
    bool stays = !full && crowd_enter(t->crowd);
    if (!atomic_compare_exchange_strong(&t->state, &was, stays ? TURN_LONG : TURN_REFUSED) && stays)
        (void)atomic_fetch_sub(&t->crowd->n, 1); /* another thread has said so */
    return atomic_load(&t->state) == TURN_REFUSED;
}

static void advance(_Atomic uint64_t *life_ms, uint64_t at_ms)
{
    uint64_t was = atomic_load(life_ms);
    while (was < at_ms && !atomic_compare_exchange_weak(life_ms, &was, at_ms))
        ;
}

static struct quit_turn *own_turn(void)
{
    const struct quit *q = here;
    while (q && !q->turn)
        q = q->outer;
    return q ? q->turn : NULL;
}

enum quit_level quit_deaf_begin(struct quit_deaf *ret)
{
    struct quit_turn *t = own_turn();
    enum quit_level level;
    *ret = (struct quit_deaf){0};
    for (uint64_t pause_ns = DEAF_FIRST_NS; (level = quit_level()) != QUIT_NOW;
         pause_ns = MIN(pause_ns * 2, (uint64_t)DEAF_LONGEST_NS)) {
        int was = TURN_NEW;
        if (!t || t->crowd->most == 0 || atomic_load(&t->state) == TURN_LONG)
            break;
        if (crowd_enter(t->crowd)) {
            if (atomic_compare_exchange_strong(&t->state, &was, TURN_LONG)) {
                ret->turn = t;
                break;
            }
            (void)atomic_fetch_sub(&t->crowd->n, 1); /* another thread of the turn was first */
            continue;
        }
        sys->sleep_ns(pause_ns);
    }
    return level;
}

void quit_deaf_end(struct quit_deaf *d)
{
    struct quit_turn *t = TAKE_PTR(d->turn);
    int was = TURN_LONG;
    if (!t)
        return;
    advance(&t->life_ms, sys_mono_ms());
    if (atomic_compare_exchange_strong(&t->state, &was, TURN_NEW))
        (void)atomic_fetch_sub(&t->crowd->n, 1);
}

const _Atomic uint64_t *quit_watch(const _Atomic uint64_t *life_ms)
{
    const _Atomic uint64_t *before = watched;
    watched = life_ms;
    return before;
}

bool quit_is_refused(void)
{
    bool refused = false;
    for (const struct quit *q = here; q; q = q->outer)
        refused |= q->turn && atomic_load(&q->turn->state) == TURN_REFUSED;
    return refused;
}

void quit_lives_at(uint64_t at_ms)
{
    for (const struct quit *q = here; q; q = q->outer) {
        if (q->turn)
            advance(&q->turn->life_ms, at_ms);
        if (q->life_ms)
            advance(q->life_ms, at_ms);
    }
}

void quit_lives(void)
{
    if (here)
        quit_lives_at(sys_mono_ms());
}

const _Atomic uint64_t *quit_watched(void)
{
    return watched;
}

/* ---- scopes ---- */

enum quit_level quit_level(void)
{
    enum quit_level level = QUIT_NO;
    for (const struct quit *q = here; q; q = q->outer) {
        if (q->tidy_until_ms > 0 && sys_mono_ms() < q->tidy_until_ms)
            return QUIT_NO;
        if (is_set(q->now) || (q->turn && is_refused(q->turn)))
            level = QUIT_NOW;
        else if (is_set(q->soon))
            level = MAX(level, QUIT_SOON);
    }
    return level;
}

uint64_t quit_patience_ms(uint64_t timeout_ms)
{
    return quit_level() == QUIT_NO ? timeout_ms : MIN(timeout_ms, (uint64_t)QUIT_SILENCE_MS);
}

void quit_enter(struct quit *q)
{
    q->outer = here;
    q->tidy_until_ms = 0;
    here = q;
}

void quit_enter_tidy(struct quit *q)
{
    *q = (struct quit){0};
    quit_enter(q);
    q->tidy_until_ms = sys_mono_ms() + QUIT_TIDY_MS;
}

void quit_enter_impatient(struct quit *q)
{
    static const atomic_bool is_impatient = true;
    *q = (struct quit){.soon = &is_impatient};
    quit_enter(q);
}

void quit_leave(struct quit *q)
{
    assert(here == q);
    here = q->outer;
}

const struct quit *quit_lasting(void)
{
    const struct quit *q = here;
    while (q && q->turn)
        q = q->outer;
    return q;
}

const struct quit *quit_here(void)
{
    return here;
}

const struct quit *quit_use(const struct quit *q)
{
    const struct quit *before = here;
    here = q;
    return before;
}
