/*
 * The parts of an upload or a copy, in parallel.
 *
 * The calling thread and the helpers that make them as many as origin_parts_at_once says take parts in order
 * from a counter. A part that fails for a reason that time may heal is tried again, as long as its caller is
 * patient.
 *
 * Invariants:
 *  1. Each part is done by one thread; all threads are joined before the call returns.
 *  2. After the first lasting failure no part is begun, and those under way are told to stop.
 *
 * Failure modes: the first lasting error of a part.
 */
#include "origin/web_internal.h"

#include "base/thread.h"

#define TRIES            4    /* of who has no patience */
#define PARTS_FEW        8    /* go together, however few there are */
#define LONG_MS          1000 /* who waits for longer has no place meanwhile */
#define PART_STACK_BYTES (512 * KIB)

struct run {
    const struct web_parts *parts;
    const _Atomic uint64_t *watched;
    const struct quit *quit; /* the caller's */
    atomic_bool stop;        /* a part has failed: the others need not go on */
    struct lock lock;        /* covers what follows */
    uint32_t next;
    int result;
    struct err err;
};

static void run_fini(struct run *u)
{
    lock_fini(&u->lock);
}

static bool is_stopped(const atomic_bool *cancel, const atomic_bool *stop)
{
    return (stop && atomic_load(stop)) || (cancel && atomic_load(cancel)) || quit_level() != QUIT_NO;
}

static bool wait_stopped(int64_t left_ms, const atomic_bool *cancel, const atomic_bool *stop)
{
    for (; left_ms > 0 && !is_stopped(cancel, stop); left_ms -= QUIT_LOOK_MS)
        sys->sleep_ns((uint64_t)MIN(left_ms, (int64_t)QUIT_LOOK_MS) * 1000000);
    return is_stopped(cancel, stop);
}

bool web_try_again(const struct origin *o, atomic_bool *cancel, atomic_bool *stop, uint64_t patience_ms,
                   struct retry *r, int code)
{
    uint64_t random, now_ms = sys_mono_ms();
    sys->random(&random, sizeof(random));
    bool is_due = r->attempt + 1 < TRIES;
    if (r->attempt == 0)
        r->started_ms = now_ms;
    if (is_stopped(cancel, stop) || (patience_ms == 0 && !is_due))
        return false;
    uint64_t deadline_ms = is_due ? 0 : r->started_ms + patience_ms;
    int64_t left_ms = retry_delay_ms(r, code, now_ms, deadline_ms, origin_pause_ms(o, now_ms),
                                     /* budget_left= */ true, random);
    if (left_ms < 0)
        return false;
    bool is_long = left_ms >= LONG_MS;
    if (is_long)
        origin_step_aside(o);
    bool stopped = wait_stopped(left_ms, cancel, stop);
    if (is_long)
        origin_step_back(o, /* goes_on= */ !stopped);
    retry_count(r, code);
    return !stopped;
}

static int one_patiently(struct run *u, uint32_t i, struct err *e)
{
    int r;
    struct retry retry = {0};
    do {
        e->code = 0;
        origin_wait_turn(u->parts->origin, u->parts->cancel, &u->stop);
        r = u->parts->one(u->parts->arg, i, &u->stop, e);
    } while (r < 0 &&
             web_try_again(u->parts->origin, u->parts->cancel, &u->stop, u->parts->patience_ms, &retry, r));
    return r < 0 ? err_prefix(e, r, "part %u of %u", i + 1, u->parts->n) : 0;
}

static bool take_part(struct run *u, uint32_t *ret)
{
    LOCK_SCOPE(&u->lock);
    if (u->result < 0 || u->next >= u->parts->n)
        return false;
    *ret = u->next++;
    return true;
}

static void do_parts(struct run *u)
{
    uint32_t i;
    while (take_part(u, &i)) {
        struct err e = {0};
        int r = one_patiently(u, i, &e);
        if (r == 0)
            continue;
        LOCK_SCOPE(&u->lock);
        if (u->result == 0) { /* the first one is the cause; the others were told to stop */
            u->result = r;
            u->err = e;
        }
        atomic_store(&u->stop, true);
    }
}

static void *part_main(void *arg)
{
    struct run *u = arg;
    (void)quit_use(u->quit);
    (void)quit_watch(u->watched);
    do_parts(u);
    return NULL;
}

unsigned origin_parts_at_once(uint64_t n)
{
    assert(n > 0);
    uint64_t most = MIN(MAX(n / 4, (uint64_t)PARTS_FEW), (uint64_t)ORIGIN_PARTS_MAX);
    return (unsigned)MIN(n, most);
}

/* With fewer threads when the system gives no more: the calling thread suffices. */
int web_parts_run(const struct web_parts *p, struct err *e)
{
    assert(p->n > 0 && p->limit > 0);
    struct run _cleanup_(run_fini) u = {.parts = p, .quit = quit_here(), .watched = quit_watched()};
    lock_init(&u.lock, LOCK_ORIGIN);
    pthread_t threads[ORIGIN_PARTS_MAX - 1];
    size_t n = 0, want = MIN(origin_parts_at_once(p->n), p->limit) - 1;
    while (n < want && thread_start(&threads[n], PART_STACK_BYTES, part_main, &u) == 0)
        n++;
    do_parts(&u);
    for (size_t i = 0; i < n; i++)
        (void)pthread_join(threads[i], NULL);
    if (u.result < 0 && e)
        *e = u.err;
    return u.result;
}
