/*
 * The threads of filling: a pool that runs parts, urgent ones first, and a watcher that hedges.
 *
 * Parts wait in lanes, one for each bucket's upstream, and the lanes take turns: a worker takes the first
 * urgent part of a lane whose origin has room, then the first that is read ahead. No bucket has more threads
 * than leaves some for the others (fill_workers), so that an origin that hangs or fails holds up its own
 * bucket only. Threads are made as needed up to the maximum and end after IDLE_NS without work. Who waits for
 * all of a small object runs its part in his own thread (fill_engine_run), within the same shares: a patient
 * reader behind all that is queued, others behind what is urgent.
 *
 * Invariant: a lane is in the list exactly while parts are queued in it or threads run parts of it.
 *
 * Hedging: a request whose first byte has not come after the bucket's 95th percentile (but at least
 * HEDGE_MIN_NS, and HEDGE_SAMPLES answers seen) is sent a second time; the first to answer wins. At most
 * HEDGE_SHARE of all requests.
 */
#include "object/fill_internal.h"

#include "base/metrics.h"
#include "base/sys.h"
#include "base/thread.h"

#define IDLE_NS       10000000000ull
#define NO_ROOM_NS    10000000ull
#define WATCH_NS      5000000ull
#define WATCH_IDLE_NS 200000000ull
#define HEDGE_MIN_NS  20000000ull
#define HEDGE_SAMPLES 50
#define HEDGE_SHARE   50 /* one in so many */
#define STACK_BYTES   (256 * KIB)

static void *watcher_main(void *arg);

struct fill_engine *fill_engine_new(struct budget *budget, unsigned max_threads, fill_changed_fn on_changed,
                                    void *arg)
{
    struct fill_engine *g = calloc(1, sizeof(*g));
    assert(g && max_threads > 0);
    g->budget = budget;
    g->max_threads = max_threads;
    g->on_changed = on_changed;
    g->on_changed_arg = arg;
    lock_init(&g->table_lock, LOCK_OBJECT);
    lock_init(&g->lock, LOCK_ENGINE);
    cond_init(&g->work);
    cond_init(&g->ended);
    g->lanes_tail = &g->lanes;
    int r = pthread_create(&g->watcher, NULL, watcher_main, g);
    assert(r == 0);
    return g;
}

bool fill_engine_stopping(struct fill_engine *g)
{
    return atomic_load(&g->cancel);
}

unsigned fill_workers(unsigned max_threads, unsigned others)
{
    unsigned left = max_threads - MIN(max_threads, others);
    return left > 1 ? left / 2 : left;
}

/* ---- lanes ---- */

static struct fill_lane *lane_of_locked(struct fill_engine *g, const struct upstream *u)
{
    struct fill_lane *l = g->lanes;
    while (l && l->upstream != u)
        l = l->next;
    if (l)
        return l;
    l = calloc(1, sizeof(*l));
    assert(l);
    l->upstream = u;
    l->urgent_tail = &l->urgent;
    l->ahead_tail = &l->ahead;
    *g->lanes_tail = l;
    g->lanes_tail = &l->next;
    return l;
}

/* Takes the lane that *at points to out of the list. */
static struct fill_lane *lane_take_locked(struct fill_engine *g, struct fill_lane **at)
{
    struct fill_lane *l = *at;
    *at = l->next;
    if (g->lanes_tail == &l->next)
        g->lanes_tail = at;
    l->next = NULL;
    return l;
}

static void lane_drop_locked(struct fill_engine *g, struct fill_lane *l)
{
    if (l->queued > 0 || l->busy > 0)
        return;
    struct fill_lane **at = &g->lanes;
    while (*at != l)
        at = &(*at)->next;
    free(lane_take_locked(g, at));
}

static void push_locked(struct fill_engine *g, struct part *p, enum part_line line)
{
    struct fill_lane *l = lane_of_locked(g, p->fill->upstream);
    struct part ***tail = line == LINE_URGENT ? &l->urgent_tail : &l->ahead_tail;
    assert(p->line == LINE_NONE);
    p->line = line;
    p->queue_next = NULL;
    p->queue_at = *tail;
    **tail = p;
    *tail = &p->queue_next;
    l->queued++;
    g->queued++;
}

/* The lane stays, for what comes next. */
static void unlink_locked(struct fill_engine *g, struct fill_lane *l, struct part *p)
{
    struct part ***tail = p->line == LINE_URGENT ? &l->urgent_tail : &l->ahead_tail;
    assert(p->line != LINE_NONE && l->upstream == p->fill->upstream);
    *p->queue_at = p->queue_next;
    if (p->queue_next)
        p->queue_next->queue_at = p->queue_at;
    else
        *tail = p->queue_at;
    p->queue_next = NULL;
    p->queue_at = NULL;
    p->line = LINE_NONE;
    l->queued--;
    g->queued--;
}

/* How many threads more may work for the lane. What is cancelled ends at once: then all may. */
static unsigned lane_room_locked(const struct fill_engine *g, const struct fill_lane *l)
{
    unsigned most =
        atomic_load(&g->cancel) ? g->max_threads : fill_workers(g->max_threads, g->busy - l->busy);
    return most - MIN(most, l->busy);
}

/* The next part of a line, in turn of the lanes. Its lane has one thread more, which is the caller. */
static struct part *pick_from_locked(struct fill_engine *g, enum part_line line, struct fill_lane **ret_lane)
{
    for (struct fill_lane **at = &g->lanes; *at; at = &(*at)->next) {
        struct part *p = line == LINE_URGENT ? (*at)->urgent : (*at)->ahead;
        if (!p || lane_room_locked(g, *at) == 0 || !upstream_try_enter(p->fill->upstream, line == LINE_AHEAD))
            continue;
        struct fill_lane *l = lane_take_locked(g, at);
        *g->lanes_tail = l;
        g->lanes_tail = &l->next;
        unlink_locked(g, l, p);
        l->busy++;
        g->busy++;
        *ret_lane = l;
        return p;
    }
    return NULL;
}

static struct part *pick_locked(struct fill_engine *g, struct fill_lane **ret_lane)
{
    struct part *p = pick_from_locked(g, LINE_URGENT, ret_lane);
    return p ? p : pick_from_locked(g, LINE_AHEAD, ret_lane);
}

/* Of those that are queued so many could run, were it for the threads alone; no further than `enough`. */
static unsigned runnable_locked(const struct fill_engine *g, unsigned enough)
{
    unsigned n = 0;
    for (const struct fill_lane *l = g->lanes; l && n < enough; l = l->next)
        n += MIN(l->queued, lane_room_locked(g, l));
    return n;
}

/* ---- workers ---- */

static void running_add_locked(struct fill_engine *g, struct part *p)
{
    p->run_next = g->running;
    p->run_at = &g->running;
    if (p->run_next)
        p->run_next->run_at = &p->run_next;
    g->running = p;
}

static void running_remove_locked(struct part *p)
{
    *p->run_at = p->run_next;
    if (p->run_next)
        p->run_next->run_at = p->run_at;
    p->run_next = NULL;
    p->run_at = NULL;
}

static void run_hedge_locked(struct fill_engine *g, struct part *p)
{
    p->hedge = HEDGE_RUNNING;
    lock_drop(&g->lock);
    fill_part_run_hedge(p);
    lock_take(&g->lock);
    p->hedge = HEDGE_ENDED; /* from here on p belongs to attempt 0's worker alone */
    cond_broadcast(&g->ended);
}

static void run_part_locked(struct fill_engine *g, struct part *p)
{
    if (p->hedge == HEDGE_QUEUED) {
        run_hedge_locked(g, p);
        return;
    }
    running_add_locked(g, p);
    lock_drop(&g->lock);
    fill_part_run(p);
    lock_take(&g->lock);
}

/* Whether a thread that comes now would find a part. */
static bool has_work_locked(const struct fill_engine *g)
{
    for (const struct fill_lane *l = g->lanes; l; l = l->next) {
        if (l->queued == 0 || lane_room_locked(g, l) == 0)
            continue;
        if ((l->urgent && upstream_has_place(l->urgent->fill->upstream, /* ahead= */ false)) ||
            (l->ahead && upstream_has_place(l->ahead->fill->upstream, /* ahead= */ true)))
            return true;
    }
    return false;
}

/* Waits for work. While parts are queued whose origin has no room one worker polls, for all; who finds a part
 * wakes the next one. False when there was nothing for IDLE_NS. */
static bool wait_for_work_locked(struct fill_engine *g)
{
    bool poll = g->queued > 0 && !g->polling;
    g->idle++;
    if (poll)
        g->polling = true;
    int r = cond_wait_for(&g->work, &g->lock, poll ? NO_ROOM_NS : IDLE_NS);
    if (poll)
        g->polling = false;
    g->idle--;
    return r == 0 || g->queued > 0;
}

static void *worker_main(void *arg)
{
    struct fill_engine *g = arg;
    lock_take(&g->lock);
    for (;;) {
        struct fill_lane *lane = NULL;
        struct part *p = pick_locked(g, &lane);
        if (p) {
            if (g->queued > 0 && (!g->polling || has_work_locked(g)))
                cond_signal(&g->work);
            run_part_locked(g, p);
            lane->busy--;
            g->busy--;
            lane_drop_locked(g, lane);
            continue;
        }
        if (atomic_load(&g->cancel) && g->queued == 0)
            break;
        if (!wait_for_work_locked(g))
            break;
    }
    g->threads--;
    cond_broadcast(&g->ended);
    lock_drop(&g->lock);
    return NULL;
}

static void start_worker_locked(struct fill_engine *g)
{
    if (thread_start(/* ret= */ NULL, STACK_BYTES, worker_main, g) == 0)
        g->threads++; /* else the watcher tries again when there is none at all */
}

/* For a part that was queued just now, NULL: for any. Where its origin has no room nobody is woken in vain:
 * who ends a request takes the next part, and somebody polls. Whether somebody is to be woken. */
static bool prepare_wake_locked(struct fill_engine *g, const struct part *p)
{
    if (p && g->polling && !upstream_has_place(p->fill->upstream, p->line == LINE_AHEAD))
        return false;
    if (runnable_locked(g, g->idle + 1) > g->idle && g->threads < g->max_threads)
        start_worker_locked(g);
    return true;
}

static void wake_locked(struct fill_engine *g, const struct part *p)
{
    if (prepare_wake_locked(g, p))
        cond_signal(&g->work);
}

/* Who is woken needs the lock: without it he does not sleep again at once. */
void fill_engine_queue(struct fill_engine *g, struct part *p)
{
    lock_take(&g->lock);
    push_locked(g, p, atomic_load(&p->urgent) ? LINE_URGENT : LINE_AHEAD);
    bool wake = prepare_wake_locked(g, p);
    lock_drop(&g->lock);
    if (wake)
        cond_signal(&g->work);
}

void fill_engine_promote(struct fill_engine *g, struct part *p)
{
    LOCK_SCOPE(&g->lock);
    if (p->line != LINE_AHEAD)
        return;
    unlink_locked(g, lane_of_locked(g, p->fill->upstream), p);
    push_locked(g, p, LINE_URGENT);
    wake_locked(g, p);
}

bool fill_engine_withdraw(struct fill_engine *g, struct part *p)
{
    LOCK_SCOPE(&g->lock);
    if (p->line == LINE_NONE || p->hedge != HEDGE_NONE)
        return false;
    struct fill_lane *l = lane_of_locked(g, p->fill->upstream);
    unlink_locked(g, l, p);
    lane_drop_locked(g, l);
    return true;
}

/* ---- who runs a part himself ---- */

struct fill_lane *fill_engine_enter(struct fill_engine *g, struct upstream *u, bool urgent)
{
    LOCK_SCOPE(&g->lock);
    if (atomic_load(&g->cancel))
        return NULL;
    struct fill_lane *l = lane_of_locked(g, u);
    bool others = urgent ? l->urgent != NULL : l->queued > 0;
    if (others || lane_room_locked(g, l) == 0 || !upstream_try_enter(u, /* ahead= */ !urgent)) {
        lane_drop_locked(g, l);
        return NULL;
    }
    l->busy++;
    g->busy++;
    return l;
}

/* What was queued meanwhile takes the place. */
static void leave_locked(struct fill_engine *g, struct fill_lane *l)
{
    l->busy--;
    g->busy--;
    lane_drop_locked(g, l);
    if (g->queued > 0 && has_work_locked(g))
        wake_locked(g, NULL);
}

void fill_engine_step_back(struct fill_engine *g, struct fill_lane *l, struct upstream *u)
{
    upstream_step_back(u);
    LOCK_SCOPE(&g->lock);
    leave_locked(g, l);
}

void fill_engine_run(struct fill_engine *g, struct fill_lane *l, struct part *p)
{
    lock_take(&g->lock);
    running_add_locked(g, p);
    lock_drop(&g->lock);
    fill_part_run(p);
    lock_take(&g->lock);
    leave_locked(g, l);
    lock_drop(&g->lock);
}

bool fill_engine_join_hedge(struct fill_engine *g, struct part *p)
{
    LOCK_SCOPE(&g->lock);
    if (p->hedge == HEDGE_QUEUED) {
        unlink_locked(g, lane_of_locked(g, p->fill->upstream),
                      p); /* a thread is at work for it: the caller */
        p->hedge = HEDGE_NONE;
    }
    while (p->hedge == HEDGE_RUNNING)
        cond_wait(&g->ended, &g->lock);
    bool ran = p->hedge == HEDGE_ENDED;
    p->hedge = HEDGE_NONE;
    return ran;
}

void fill_engine_forget_running(struct fill_engine *g, struct part *p)
{
    LOCK_SCOPE(&g->lock);
    running_remove_locked(p);
}

/* ---- hedging ---- */

static bool wants_hedge_locked(struct fill_engine *g, struct part *p, uint64_t now_ns)
{
    uint64_t asked = atomic_load(&p->asked_ns);
    if (p->hedge != HEDGE_NONE || asked == 0 || atomic_load(&p->owner) != -1 || now_ns < asked + HEDGE_MIN_NS)
        return false;
    const char *bucket = p->fill->upstream->bucket->name;
    struct metric_series *times = metrics_series(METRIC_ORIGIN_FIRST_BYTE_SECONDS, bucket, NULL, NULL);
    struct metric_series *hedges = metrics_series(METRIC_ORIGIN_HEDGES, bucket, NULL, NULL);
    uint64_t seen = metrics_value(times);
    if (seen < HEDGE_SAMPLES || metrics_value(hedges) >= 1 + seen / HEDGE_SHARE)
        return false;
    return now_ns - asked > MAX(metrics_quantile_ns(times, 0.95) * 3 / 2, HEDGE_MIN_NS);
}

static void hedge_locked(struct fill_engine *g, struct part *p)
{
    p->hedge = HEDGE_QUEUED;
    push_locked(g, p, LINE_URGENT);
    wake_locked(g, p);
    metrics_count(METRIC_ORIGIN_HEDGES, p->fill->upstream->bucket->name, NULL, NULL);
}

static void *watcher_main(void *arg)
{
    struct fill_engine *g = arg;
    lock_take(&g->lock);
    while (!atomic_load(&g->cancel)) {
        uint64_t now_ns = sys->mono_ns();
        for (struct part *p = g->running; p; p = p->run_next)
            if (wants_hedge_locked(g, p, now_ns))
                hedge_locked(g, p);
        if (g->threads == 0 && g->queued > 0)
            wake_locked(g, NULL);
        (void)cond_wait_for(&g->ended, &g->lock, g->running ? WATCH_NS : WATCH_IDLE_NS);
    }
    lock_drop(&g->lock);
    return NULL;
}

/* ---- the table of fills ---- */

void fill_engine_publish(struct fill_engine *g, struct fill *f, uint64_t hash)
{
    LOCK_SCOPE(&g->table_lock);
    f->hash = hash;
    f->next = g->table[hash % FILL_TABLE_SIZE];
    g->table[hash % FILL_TABLE_SIZE] = f;
}

void fill_engine_reclaim(struct fill_engine *g)
{
    LOCK_SCOPE(&g->table_lock);
    for (size_t i = 0; i < FILL_TABLE_SIZE; i++)
        for (struct fill *f = g->table[i]; f; f = f->next)
            fill_drop_idle_memory(f);
}

/* ---- stopping ---- */

void fill_engine_on_fetched(struct fill_engine *g, fill_fetched_fn fn)
{
    g->on_fetched = fn;
}

void fill_engine_stop(struct fill_engine *g)
{
    lock_take(&g->lock);
    if (atomic_exchange(&g->cancel, true)) {
        lock_drop(&g->lock);
        return;
    }
    for (struct part *p = g->running; p; p = p->run_next) {
        atomic_store(&p->cancel[0], true);
        atomic_store(&p->cancel[1], true);
    }
    while (g->threads > 0 || g->busy > 0) {
        cond_broadcast(&g->work);
        (void)cond_wait_for(&g->ended, &g->lock, NO_ROOM_NS);
    }
    lock_drop(&g->lock);
    (void)pthread_join(g->watcher, NULL);
}

void fill_engine_free(struct fill_engine *g)
{
    if (!g)
        return;
    fill_engine_stop(g);
    assert(!g->lanes && g->queued == 0 && g->busy == 0);
    for (size_t i = 0; i < FILL_TABLE_SIZE; i++)
        assert(!g->table[i]);
    cond_fini(&g->work);
    cond_fini(&g->ended);
    lock_fini(&g->lock);
    lock_fini(&g->table_lock);
    free(g);
}
