/*
 * The threads of filling: a pool that runs parts, urgent ones first, and a watcher that hedges.
 *
 * A worker takes the first queued part whose origin has room, so that a slow origin does not hold up the
 * others. Threads are made as needed up to the maximum and end after IDLE_NS without work.
 *
 * Hedging: a request whose first byte has not come after the bucket's 95th percentile (but at least
 * HEDGE_MIN_NS, and HEDGE_SAMPLES answers seen) is sent a second time; the first to answer wins. At most
 * HEDGE_SHARE of all requests.
 */
#include "object/fill_internal.h"

#include "base/metrics.h"
#include "base/sys.h"

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
    g->urgent_tail = &g->urgent;
    g->ahead_tail = &g->ahead;
    int r = pthread_create(&g->watcher, NULL, watcher_main, g);
    assert(r == 0);
    return g;
}

bool fill_engine_stopping(struct fill_engine *g)
{
    return atomic_load(&g->cancel);
}

/* ---- queues ---- */

static void push_locked(struct fill_engine *g, struct part *p, bool urgent)
{
    p->queue_next = NULL;
    struct part ***tail = urgent ? &g->urgent_tail : &g->ahead_tail;
    **tail = p;
    *tail = &p->queue_next;
}

static struct part *unlink_locked(struct part **head, struct part ***tail, struct part **at)
{
    struct part *p = *at;
    *at = p->queue_next;
    if (*tail == &p->queue_next)
        *tail = at;
    assert(*head || *tail == head);
    p->queue_next = NULL;
    return p;
}

static struct part *pick_from_locked(struct part **head, struct part ***tail, bool ahead)
{
    for (struct part **at = head; *at; at = &(*at)->queue_next)
        if (upstream_try_enter((*at)->fill->upstream, ahead))
            return unlink_locked(head, tail, at);
    return NULL;
}

static struct part *pick_locked(struct fill_engine *g)
{
    struct part *p = pick_from_locked(&g->urgent, &g->urgent_tail, /* ahead= */ false);
    return p ? p : pick_from_locked(&g->ahead, &g->ahead_tail, /* ahead= */ true);
}

static bool take_back_locked(struct part **head, struct part ***tail, struct part *p)
{
    for (struct part **at = head; *at; at = &(*at)->queue_next)
        if (*at == p) {
            (void)unlink_locked(head, tail, at);
            return true;
        }
    return false;
}

/* ---- workers ---- */

static void running_remove_locked(struct fill_engine *g, struct part *p)
{
    struct part **at = &g->running;
    while (*at != p)
        at = &(*at)->run_next;
    *at = p->run_next;
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
    p->run_next = g->running;
    g->running = p;
    lock_drop(&g->lock);
    fill_part_run(p);
    lock_take(&g->lock);
}

/* Waits for work. While parts are queued whose origin has no room one worker polls, for all; who finds a part
 * wakes the next one. False when there was nothing for IDLE_NS. */
static bool wait_for_work_locked(struct fill_engine *g)
{
    bool poll = (g->urgent || g->ahead) && !g->polling;
    g->idle++;
    if (poll)
        g->polling = true;
    int r = cond_wait_for(&g->work, &g->lock, poll ? NO_ROOM_NS : IDLE_NS);
    if (poll)
        g->polling = false;
    g->idle--;
    return r == 0 || g->urgent || g->ahead;
}

static void *worker_main(void *arg)
{
    struct fill_engine *g = arg;
    lock_take(&g->lock);
    for (;;) {
        struct part *p = pick_locked(g);
        if (p) {
            if (g->urgent || g->ahead)
                cond_signal(&g->work);
            run_part_locked(g, p);
            continue;
        }
        bool waiting = g->urgent || g->ahead;
        if (atomic_load(&g->cancel) && !waiting)
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
    pthread_attr_t attr;
    pthread_t t;
    int r = pthread_attr_init(&attr);
    assert(r == 0);
    (void)pthread_attr_setstacksize(&attr, STACK_BYTES);
    (void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    r = pthread_create(&t, &attr, worker_main, g);
    (void)pthread_attr_destroy(&attr);
    if (r == 0)
        g->threads++; /* else the watcher tries again when there is none at all */
}

static unsigned queued_locked(const struct fill_engine *g, unsigned enough)
{
    unsigned n = 0;
    for (const struct part *p = g->urgent; p && n < enough; p = p->queue_next)
        n++;
    for (const struct part *p = g->ahead; p && n < enough; p = p->queue_next)
        n++;
    return n;
}

static void wake_locked(struct fill_engine *g)
{
    if (queued_locked(g, g->idle + 1) > g->idle && g->threads < g->max_threads)
        start_worker_locked(g);
    cond_signal(&g->work);
}

void fill_engine_queue(struct fill_engine *g, struct part *p)
{
    LOCK_SCOPE(&g->lock);
    push_locked(g, p, atomic_load(&p->urgent));
    wake_locked(g);
}

void fill_engine_promote(struct fill_engine *g, struct part *p)
{
    LOCK_SCOPE(&g->lock);
    if (take_back_locked(&g->ahead, &g->ahead_tail, p))
        push_locked(g, p, /* urgent= */ true);
}

bool fill_engine_join_hedge(struct fill_engine *g, struct part *p)
{
    LOCK_SCOPE(&g->lock);
    if (p->hedge == HEDGE_QUEUED) {
        bool found = take_back_locked(&g->urgent, &g->urgent_tail, p);
        assert(found);
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
    running_remove_locked(g, p);
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
    push_locked(g, p, /* urgent= */ true);
    wake_locked(g);
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
        if (g->threads == 0 && (g->urgent || g->ahead))
            wake_locked(g);
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

void fill_engine_reclaim(struct fill_engine *g, bool unread)
{
    LOCK_SCOPE(&g->table_lock);
    for (size_t i = 0; i < FILL_TABLE_SIZE; i++)
        for (struct fill *f = g->table[i]; f; f = f->next)
            fill_drop_idle_memory(f, unread);
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
    while (g->threads > 0) {
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
    for (size_t i = 0; i < FILL_TABLE_SIZE; i++)
        assert(!g->table[i]);
    cond_fini(&g->work);
    cond_fini(&g->ended);
    lock_fini(&g->lock);
    lock_fini(&g->table_lock);
    free(g);
}
