/*
 * Retries and concurrency around one origin.
 *
 * Invariants:
 *  1. A request holds exactly one place from upstream_enter to upstream_leave, and none while it sleeps
 * before a retry, or waits for its turn among the changes of its key (origin/key_order.h): its thread, which
 * is the one that asks, says whose place it has (upstream_hold). Who has a turn and waits for a place waits
 * for requests only, none of which waits for a turn.
 *  2. What goes behind (write-back) never takes a place that somebody else looks for, but for one at a time.
 * Who looks is known by its waiting, or by its having been refused a moment ago: fills ask again and again.
 *  3. A request that is not idempotent (a conditional PUT) is repeated only when the origin said that it did
 * nothing, or when nothing of it left.
 *  4. Upstreams that follow one another at a bucket share one `places` while the origin is the same, so that
 * 1 and 2 hold, and limits are owed to, over all of them.
 *  5. Of buckets at one service (service.h) each has its own limits and places. A busy answer to one lowers
 * how many each of them asks at once, when it asks next; while the service is slow, what reads ahead or goes
 * behind at one bucket yields to reads of another that find no place, but for one request a second.
 *  6. Who is given up, or whose node stops (base/quit.h), waits for no place and tries nothing again: what he
 * asks then ends at once, or soon.
 */
#include "namespace/upstream.h"

#include "base/metrics.h"
#include "base/quit.h"
#include "base/sys.h"

#define UPSTREAM_MAGIC      0x75707374u
#define CONCURRENCY_START   64.0
#define CONCURRENCY_FLOOR   2.0
#define SPARE_SHARE         8 /* one place in so many is not for read-ahead, but not more than SPARE_MAX: */
#define SPARE_MAX           4 /* while somebody waits for one, else but one: of many places one comes free soon */
#define WANTED_NS           ((uint64_t)1000000000) /* who was refused so long ago looks for no place any more */
#define WANTED_MAX_NS       ((uint64_t)30000000000) /* who looks again after longer has been given up */
#define PLACES_FEW          4                       /* of fewer a single one is missed */
#define RETRY_BUDGET_TOKENS 100
#define LOOK_AGAIN_NS       ((uint64_t)1000000000)
#define GETS_ON_MS          1000 /* a try that moved bytes for so long got on */
#define HEAD_ARENA_BYTES    (64 * KIB)
#define PUT_ARENA_BYTES     (8 * MIB) /* of one try: ETags of the parts of a multipart upload */

static struct upstream_places *places_new(const struct bucket *b)
{
    struct upstream_places *p = calloc(1, sizeof(*p));
    assert(p);
    double ceiling = (double)b->p.origin_options.connections;
    atomic_init(&p->refs, 1);
    retry_budget_init(&p->budget, RETRY_BUDGET_TOKENS);
    lock_init(&p->lock, LOCK_ORIGIN);
    cond_init(&p->room);
    concurrency_init(&p->concurrency, MIN(CONCURRENCY_START, ceiling), MIN(CONCURRENCY_FLOOR, ceiling),
                     ceiling);
    p->requests.per_s = b->p.origin_requests;
    p->bytes.per_s = b->p.origin_bytes;
    return p;
}

static void places_unref(struct upstream_places *p)
{
    if (atomic_fetch_sub(&p->refs, 1) != 1)
        return;
    assert(p->running == 0);
    cond_fini(&p->room);
    lock_fini(&p->lock);
    free(p);
}

/* What the bucket says now. */
static void places_set_locked(struct upstream_places *p, const struct bucket *b)
{
    struct concurrency *c = &p->concurrency;
    uint64_t now_ns = sys->mono_ns();
    lock_assert_held(&p->lock);
    c->ceiling = (double)b->p.origin_options.connections;
    c->floor = MIN(CONCURRENCY_FLOOR, c->ceiling);
    c->limit = MIN(MAX(c->limit, c->floor), c->ceiling);
    shape_limit_set(&p->requests, b->p.origin_requests, now_ns);
    shape_limit_set(&p->bytes, b->p.origin_bytes, now_ns);
}

void upstream_succeed(struct upstream *u, struct upstream *before)
{
    struct upstream_places *was = before->places, *own = u->places;
    bool same = bucket_same_origin(u->bucket, before->bucket);
    lock_take(&was->lock);
    if (same) {
        (void)atomic_fetch_add(&was->refs, 1);
        u->places = was;
    } else {
        own->requests = was->requests;
        own->bytes = was->bytes;
    }
    if (same)
        places_set_locked(was, u->bucket);
    lock_drop(&was->lock);
    if (same) {
        places_unref(own);
        origin_pause(u->origin, origin_pause_ms(before->origin, sys_mono_ms()));
        return;
    }
    LOCK_SCOPE(&own->lock);
    places_set_locked(own, u->bucket);
}

/* ---- what the origin tells ---- */

static uint64_t own_owed_ns_locked(const struct upstream *u, uint64_t now_ns)
{
    return MAX(shape_wait_ns(&u->places->requests, now_ns), shape_wait_ns(&u->places->bytes, now_ns));
}

/* For how long the bucket's limits owe something, or the origin wants no request. */
static uint64_t owed_ns_locked(const struct upstream *u, uint64_t now_ns)
{
    uint64_t wait_ns =
        MAX(own_owed_ns_locked(u, now_ns), origin_pause_ms(u->origin, now_ns / 1000000) * 1000000);
    return u->unlimited && atomic_load(u->unlimited) ? 0 : wait_ns;
}

/* Who only leaves again: paid for as one request, as upstream_enter is. */
static void enter_anyway(struct upstream *u)
{
    LOCK_SCOPE(&u->places->lock);
    u->places->running++;
    shape_charge(&u->places->requests, 1, sys->mono_ns());
}

static void on_moved(void *arg, uint64_t bytes)
{
    upstream_charge(arg, bytes);
}

static uint64_t on_turn(void *arg)
{
    struct upstream *u = CAST_MAGIC(upstream, arg, UPSTREAM_MAGIC);
    uint64_t now_ns = sys->mono_ns();
    LOCK_SCOPE(&u->places->lock);
    uint64_t wait_ns = owed_ns_locked(u, now_ns);
    if (wait_ns > 0)
        return MAX(wait_ns / 1000000, (uint64_t)1);
    shape_charge(&u->places->requests, 1, now_ns);
    return 0;
}

static _Thread_local struct upstream_held *held; /* of this thread; the one around it is its `outer` */

void upstream_hold(struct upstream_held *h, struct upstream *u, bool behind)
{
    *h = (struct upstream_held){.upstream = u, .behind = behind, .outer = held};
    held = h;
}

void upstream_unhold(struct upstream_held *h)
{
    assert(held == h);
    held = h->outer;
}

static void move_behind(struct upstream *u, int n)
{
    LOCK_SCOPE(&u->places->lock);
    assert(n > 0 || u->places->behind > 0);
    u->places->behind += (unsigned)n;
}

static void on_aside(void *arg)
{
    struct upstream *u = CAST_MAGIC(upstream, arg, UPSTREAM_MAGIC);
    if (!held || held->upstream != u)
        return;
    if (held->behind)
        move_behind(u, -1);
    upstream_step_back(u);
}

static void on_back(void *arg, bool goes_on)
{
    struct upstream *u = CAST_MAGIC(upstream, arg, UPSTREAM_MAGIC);
    if (!held || held->upstream != u)
        return;
    if (goes_on)
        upstream_enter(u);
    else
        enter_anyway(u);
    if (held->behind)
        move_behind(u, 1);
}

static const struct origin_meter meter = {
    .moved = on_moved, .turn = on_turn, .aside = on_aside, .back = on_back};

/* ---- life ---- */

int upstream_open(struct bucket *b, struct upstream **ret, struct err *e)
{
    if (!b->p.origin)
        return err_set(e, ERR_NOT_IMPLEMENTED,
                       "bucket '%s' has no origin: set one with `forebay bucket set %s "
                       "origin=URL`",
                       b->name, b->name);
    struct origin *o;
    int r = origin_open(b->p.origin, &b->p.origin_options, b->name, &o, e);
    if (r < 0)
        return r;
    o->posix = b->p.posix == BUCKET_POSIX_ON;
    o->of_job = bucket_is_guest(b);
    o->patience_ms = b->p.retry_time;
    if (o->posix && !o->ops->set_meta && !(o->of_job && o->capabilities & ORIGIN_CAN_MODES)) {
        const char *scheme = o->ops->scheme;
        origin_close(o);
        return err_set(e, ERR_NOT_IMPLEMENTED, "posix=on: origins of %s:// keep no modes and owners", scheme);
    }
    struct upstream *u = calloc(1, sizeof(*u));
    assert(u);
    o->meter = &meter;
    o->meter_arg = u;
    u->magic = UPSTREAM_MAGIC;
    atomic_init(&u->refs, 1);
    u->bucket = bucket_ref(b);
    u->origin = o;
    u->places = places_new(b);
    *ret = u;
    return 0;
}

void upstream_join(struct upstream *u, struct service_table *t)
{
    _cleanup_buf_ struct buf key = BUF_INIT(SERVICE_KEY_MAX);
    assert(!u->service);
    if (!service_key(u->bucket->p.origin, &u->bucket->p.origin_options, &key))
        return;
    u->service = service_find(t, buf_view(&key));
    u->origin->shared_pause = &u->service->paused_until_ms;
}

struct upstream *upstream_ref(struct upstream *u)
{
    assert(u->magic == UPSTREAM_MAGIC);
    (void)atomic_fetch_add(&u->refs, 1);
    return u;
}

void upstream_unref(struct upstream *u)
{
    if (!u)
        return;
    assert(u->magic == UPSTREAM_MAGIC);
    if (atomic_fetch_sub(&u->refs, 1) != 1)
        return;
    places_unref(u->places);
    origin_close(u->origin);
    service_unref(u->service);
    bucket_unref(u->bucket);
    u->magic = 0;
    free(u);
}

/* ---- places ---- */

/* Places that read-ahead leaves free; none where there is only one. Who waits gets the next ones. */
static unsigned spare_locked(const struct upstream *u)
{
    unsigned most = u->places->waiting > 0 ? SPARE_MAX : 1;
    unsigned share = MIN((unsigned)(u->places->concurrency.limit / SPARE_SHARE), most);
    return u->places->concurrency.limit < 2 ? 0 : MAX(share, 1u);
}

/* What was answered to others at the service lowers how many of this bucket go there, too. */
static void hear_locked(struct upstream *u, uint64_t now_ns)
{
    struct upstream_places *p = u->places;
    uint64_t busy_ms = u->service ? atomic_load(&u->service->busy_ms) : 0;
    if (busy_ms <= p->heard_ms)
        return;
    p->heard_ms = busy_ms;
    if (service_is_slow(u->service, now_ns / 1000000))
        concurrency_on_failure(&p->concurrency, ERR_ORIGIN_BUSY, now_ns / 1000000);
}

/* A read found no place, and not for the sake of its own bucket's limits. It may look again late, so that
 * this is believed until one of its bucket finds a place, and a moment longer. */
static void want_locked(struct upstream *u, uint64_t now_ns)
{
    struct service *s = u->service;
    if (!s || own_owed_ns_locked(u, now_ns) > 0)
        return;
    atomic_store(&s->wanted_by, u->places);
    atomic_store(&s->wanted_until_ns, now_ns + WANTED_MAX_NS);
}

static void found_locked(struct upstream *u, uint64_t now_ns)
{
    struct service *s = u->service;
    if (s && atomic_load(&s->wanted_by) == u->places && atomic_load(&s->wanted_until_ns) > now_ns + WANTED_NS)
        atomic_store(&s->wanted_until_ns, now_ns + WANTED_NS);
}

/* Whether a read of another bucket looks for a place at the same service, which has none to spare. */
static bool others_want(const struct upstream *u, uint64_t now_ns)
{
    struct service *s = u->service;
    return s && service_is_slow(s, now_ns / 1000000) && atomic_load(&s->wanted_by) != u->places &&
           now_ns < atomic_load(&s->wanted_until_ns);
}

/* Whether there is a place and `spare` more. *ret_wait_ns, with false: look again after that time at the
 * latest. */
static bool has_place_locked(struct upstream *u, unsigned spare, uint64_t now_ns, uint64_t *ret_wait_ns)
{
    hear_locked(u, now_ns);
    uint64_t wait_ns = owed_ns_locked(u, now_ns);
    *ret_wait_ns = wait_ns > 0 ? MIN(wait_ns, LOOK_AGAIN_NS) : LOOK_AGAIN_NS;
    return wait_ns == 0 && (double)(u->places->running + spare) + 1.0 <= u->places->concurrency.limit;
}

/* Takes it. */
static bool enter_locked(struct upstream *u, unsigned spare, uint64_t *ret_wait_ns)
{
    uint64_t now_ns = sys->mono_ns();
    if (!has_place_locked(u, spare, now_ns, ret_wait_ns))
        return false;
    u->places->running++;
    shape_charge(&u->places->requests, 1, now_ns);
    return true;
}

bool upstream_is_quitting(const struct upstream *u)
{
    const atomic_bool *soon = u->origin->stop_soon, *now = u->origin->stop;
    return quit_level() != QUIT_NO || (soon && atomic_load(soon)) || (now && atomic_load(now));
}

bool upstream_is_stopped(const struct upstream *u)
{
    return u->origin->stop && atomic_load(u->origin->stop);
}

/* Whether what reads ahead has to wait for reads of others; *ret_yields: they are there. */
static bool must_yield_locked(const struct upstream *u, bool ahead, bool *ret_yields)
{
    uint64_t now_ns = sys->mono_ns();
    *ret_yields = ahead && others_want(u, now_ns);
    return *ret_yields && now_ns < u->places->ahead_ns + UPSTREAM_BEHIND_NS;
}

/* As enter_locked, in the order of those that look for a place; `ahead`: nobody waits for it. */
static bool enter_in_order_locked(struct upstream *u, bool ahead, unsigned spare, uint64_t *ret_wait_ns)
{
    bool yields;
    *ret_wait_ns = LOOK_AGAIN_NS;
    bool entered = !must_yield_locked(u, ahead, &yields) && enter_locked(u, spare, ret_wait_ns);
    if (entered && yields)
        u->places->ahead_ns = sys->mono_ns();
    if (entered && !ahead)
        found_locked(u, sys->mono_ns());
    else if (!ahead)
        want_locked(u, sys->mono_ns());
    return entered;
}

void upstream_enter_again(struct upstream *u, const atomic_bool *awaited)
{
    uint64_t wait_ns;
    bool entered;
    LOCK_SCOPE(&u->places->lock);
    u->places->waiting++;
    while (
        !(entered = enter_in_order_locked(u, awaited && !atomic_load(awaited), /* spare= */ 0, &wait_ns)) &&
        !upstream_is_quitting(u))
        (void)cond_wait_for(&u->places->room, &u->places->lock,
                            MIN(wait_ns, (uint64_t)QUIT_LOOK_MS * 1000000));
    u->places->running += !entered;
    u->places->waiting--;
}

void upstream_enter(struct upstream *u)
{
    upstream_enter_again(u, /* awaited= */ NULL);
}

static bool is_cancelled(const atomic_bool *cancel)
{
    return cancel && atomic_load(cancel);
}

bool upstream_enter_slowly(struct upstream *u, const atomic_bool *cancel)
{
    LOCK_SCOPE(&u->places->lock);
    uint64_t wait_ns = owed_ns_locked(u, sys->mono_ns());
    for (; wait_ns > 0 && !is_cancelled(cancel) && !upstream_is_quitting(u);
         wait_ns = owed_ns_locked(u, sys->mono_ns()))
        (void)cond_wait_for(&u->places->room, &u->places->lock,
                            MIN(wait_ns, (uint64_t)QUIT_LOOK_MS * 1000000));
    if (wait_ns > 0 && is_cancelled(cancel))
        return false;
    shape_charge(&u->places->requests, 1, sys->mono_ns());
    return true;
}

static bool note_wanted_locked(struct upstream *u, bool has_place)
{
    u->places->wanted_ns = has_place ? u->places->wanted_ns : sys->mono_ns();
    return has_place;
}

bool upstream_try_enter(struct upstream *u, bool ahead)
{
    uint64_t wait_ns;
    LOCK_SCOPE(&u->places->lock);
    return note_wanted_locked(u, enter_in_order_locked(u, ahead, ahead ? spare_locked(u) : 0, &wait_ns));
}

bool upstream_has_place(struct upstream *u, bool ahead)
{
    uint64_t wait_ns;
    bool yields;
    LOCK_SCOPE(&u->places->lock);
    return note_wanted_locked(u,
                              !must_yield_locked(u, ahead, &yields) &&
                                  has_place_locked(u, ahead ? spare_locked(u) : 0, sys->mono_ns(), &wait_ns));
}

bool upstream_try_enter_behind(struct upstream *u, uint64_t waited_ns)
{
    uint64_t wait_ns;
    LOCK_SCOPE(&u->places->lock);
    bool others = others_want(u, sys->mono_ns());
    bool wanted = others || u->places->waiting > 0 ||
                  (u->places->wanted_ns > 0 && sys->mono_ns() - u->places->wanted_ns < WANTED_NS);
    bool felt = others || u->places->requests.per_s > 0 || u->places->bytes.per_s > 0 ||
                u->places->concurrency.limit < PLACES_FEW;
    if (wanted && (u->places->behind > 0 || (felt && waited_ns < UPSTREAM_BEHIND_NS)))
        return false;
    unsigned half =
        wanted || u->places->concurrency.limit < 2 ? 0 : (unsigned)(u->places->concurrency.limit / 2);
    bool entered = enter_locked(u, half, &wait_ns);
    u->places->behind += entered;
    return entered;
}

void upstream_leave_behind(struct upstream *u, int result)
{
    lock_take(&u->places->lock);
    assert(u->places->behind > 0);
    u->places->behind--;
    lock_drop(&u->places->lock);
    upstream_leave(u, result);
}

void upstream_charge(struct upstream *u, uint64_t bytes)
{
    LOCK_SCOPE(&u->places->lock);
    shape_charge(&u->places->bytes, (int64_t)bytes, sys->mono_ns());
}

void upstream_charge_request(struct upstream *u)
{
    LOCK_SCOPE(&u->places->lock);
    shape_charge(&u->places->requests, 1, sys->mono_ns());
}

void upstream_unlimit(struct upstream *u)
{
    LOCK_SCOPE(&u->places->lock);
    u->places->requests.per_s = u->places->bytes.per_s = 0;
    cond_broadcast(&u->places->room);
}

void upstream_lives(struct upstream *u)
{
    atomic_store(&u->places->life_ms, sys_mono_ms());
    if (atomic_load(&u->places->silent_ms) > 0)
        atomic_store(&u->places->silent_ms, 0);
    if (atomic_load(&u->places->failing_ms) > 0)
        atomic_store(&u->places->failing_ms, 0);
}

void upstream_heard(struct upstream *u, int result)
{
    if (result != -ECANCELED && !retry_is_transient(result))
        upstream_lives(u);
}

void upstream_leave(struct upstream *u, int result)
{
    if (result == 0)
        retry_budget_earn(&u->places->budget);
    uint64_t never = 0;
    if (retry_is_transient(result))
        (void)atomic_compare_exchange_strong(&u->places->failing_ms, &never, MAX(sys_mono_ms(), (uint64_t)1));
    else if (result < 0 && result != -ECANCELED)
        atomic_store(&u->places->failing_ms, 0);
    LOCK_SCOPE(&u->places->lock);
    assert(u->places->running > 0);
    u->places->running--;
    if (result == 0)
        concurrency_on_success(&u->places->concurrency);
    else if (retry_is_transient(result))
        concurrency_on_failure(&u->places->concurrency, result, sys_mono_ms());
    if (result == ERR_ORIGIN_BUSY && u->service) {
        u->places->heard_ms = sys_mono_ms();
        atomic_store(&u->service->busy_ms, u->places->heard_ms);
    }
    cond_broadcast(&u->places->room);
}

void upstream_step_back(struct upstream *u)
{
    LOCK_SCOPE(&u->places->lock);
    assert(u->places->running > 0);
    u->places->running--;
    shape_charge(&u->places->requests, -1, sys->mono_ns());
    cond_broadcast(&u->places->room);
}

static void sleep_ms(const struct upstream *u, uint64_t ms, atomic_bool *cancel)
{
    while (ms > 0 && !is_cancelled(cancel) && !upstream_is_quitting(u)) {
        uint64_t n = MIN(ms, (uint64_t)QUIT_LOOK_MS);
        sys->sleep_ns(n * 1000000);
        ms -= n;
    }
}

static bool try_again(struct upstream *u, struct retry *r, int code, atomic_bool *cancel)
{
    if (!retry_is_transient(code) || is_cancelled(cancel) || upstream_is_quitting(u))
        return false;
    uint64_t now = sys_mono_ms(), random;
    sys->random(&random, sizeof(random));
    bool budget_left = retry_budget_take(&u->places->budget);
    int64_t wait_ms = retry_delay_ms(r, code, now, r->started_ms + u->bucket->p.retry_time,
                                     origin_pause_ms(u->origin, now), budget_left, random);
    if (wait_ms < 0)
        return false;
    metrics_count(METRIC_ORIGIN_RETRIES, u->bucket->name, err_name(code), NULL);
    sleep_ms(u, (uint64_t)wait_ms, cancel);
    retry_count(r, code);
    return !is_cancelled(cancel) && !upstream_is_quitting(u);
}

struct retry upstream_patient_since(struct upstream *u, uint64_t since_ms)
{
    uint64_t failing_ms = atomic_load(&u->places->failing_ms), now_ms = sys_mono_ms();
    return (struct retry){.started_ms = failing_ms > 0 ? MAX(since_ms, failing_ms) : now_ms,
                          .has_waited = failing_ms > 0};
}

/* A first try that took longer than the origin may be silent got on for a while, unless who made it has
 * waited for longer. (With write-back it may be one here, which was patient itself.) */
bool upstream_try_again(struct upstream *u, struct retry *r, int code, atomic_bool *cancel)
{
    uint64_t now_ms = sys_mono_ms(), silent_ms = MIN(now_ms, u->bucket->p.origin_options.timeout);
    if (r->attempt == 0 && !r->has_waited && u->bucket->p.write != BUCKET_WRITE_BACK)
        r->started_ms = MAX(r->started_ms, now_ms - silent_ms);
    return try_again(u, r, code, cancel);
}

static int ignore_body(void *arg, const struct origin_attr *attr, const void *p, size_t n)
{
    (void)arg, (void)attr, (void)p, (void)n;
    return 0;
}

/* Now that it is its turn: what is waited for before is no failure of the origin. */
static void begin_try(struct retry *r)
{
    if (r->attempt == 0)
        r->started_ms = sys_mono_ms();
}

/* Runs `call` (an expression giving the result) with a place held, until it succeeds or is given up. */
#define UPSTREAM_RETRY(u, call)                                                                              \
    ({                                                                                                       \
        struct retry _retry = {0};                                                                           \
        struct upstream_held _held;                                                                          \
        const _Atomic uint64_t *_watched = quit_watch(&(u)->places->life_ms);                                \
        int _result;                                                                                         \
        do {                                                                                                 \
            upstream_enter(u);                                                                               \
            begin_try(&_retry);                                                                              \
            upstream_hold(&_held, (u), /* behind= */ false);                                                 \
            _result = (call);                                                                                \
            upstream_unhold(&_held);                                                                         \
            upstream_leave((u), _result);                                                                    \
            upstream_heard((u), _result);                                                                    \
        } while (_result < 0 && upstream_try_again((u), &_retry, _result, NULL));                            \
        (void)quit_watch(_watched);                                                                          \
        _result;                                                                                             \
    })

/* ---- questions that can do without an answer ---- */

bool upstream_doubt_begin(struct upstream *u, struct upstream_doubt *d)
{
    uint64_t now_ms = sys_mono_ms(), silent_ms = atomic_load(&u->places->silent_ms);
    *d = (struct upstream_doubt){.upstream = u, .is_once = silent_ms > 0};
    if (!d->is_once)
        return true;
    if (now_ms - MIN(now_ms, silent_ms) < UPSTREAM_SILENT_MS ||
        !atomic_compare_exchange_strong(&u->places->silent_ms, &silent_ms, now_ms))
        return false;
    quit_enter_impatient(&d->once);
    return true;
}

bool upstream_doubt_end(struct upstream_doubt *d, int result)
{
    if (d->is_once)
        quit_leave(&d->once);
    bool is_own = d->is_once && quit_level() == QUIT_NO; /* impatience */
    bool is_cut = result == -ECANCELED && (is_own || quit_is_refused());
    /* What cannot be used as it is set up says nothing of the object either. */
    bool is_silent = is_cut || retry_is_transient(result) || result == ERR_ORIGIN_SETUP;
    if (is_silent)
        atomic_store(&d->upstream->places->silent_ms, MAX(sys_mono_ms(), (uint64_t)1));
    return is_silent;
}

/* ---- one try, here or at the origin ---- */

int upstream_get_once(struct upstream *u, const struct origin_get *g, struct arena *a,
                      struct origin_attr *ret, origin_sink_fn sink, void *arg, struct err *e)
{
    return u->layer ? u->layer->get(u->layer_arg, u, g, a, ret, sink, arg, e)
                    : origin_get(u->origin, g, a, ret, sink, arg, e);
}

static int list_once(struct upstream *u, const struct origin_list *l, struct arena *a,
                     struct origin_page *ret, struct err *e)
{
    return u->layer ? u->layer->list(u->layer_arg, u, l, a, ret, e) : origin_list(u->origin, l, a, ret, e);
}

static int put_once(struct upstream *u, const struct origin_put *p, const struct origin_body *body,
                    struct arena *a, struct origin_attr *ret, struct err *e)
{
    return u->layer ? u->layer->put(u->layer_arg, u, p, body, a, ret, e)
                    : origin_put(u->origin, p, body, a, ret, e);
}

static int remove_once(struct upstream *u, struct slice key, struct slice if_match, struct err *e)
{
    return u->layer ? u->layer->remove(u->layer_arg, u, key, if_match, e)
                    : origin_remove(u->origin, key, if_match, e);
}

static int copy_once(struct upstream *u, struct slice from, struct slice to, struct arena *a,
                     struct origin_attr *ret, struct err *e)
{
    return u->layer ? u->layer->copy(u->layer_arg, u, from, to, a, ret, e)
                    : origin_copy(u->origin, from, to, SLICE_NULL, a, ret, e);
}

static int set_meta_once(struct upstream *u, const struct origin_put *p, uint64_t size_bytes, struct arena *a,
                         struct origin_attr *ret, struct err *e)
{
    return u->layer ? u->layer->set_meta(u->layer_arg, u, p, size_bytes, a, ret, e)
                    : origin_set_meta(u->origin, p, size_bytes, a, ret, e);
}

/* ---- with retries ---- */

int upstream_head(struct upstream *u, struct slice key, struct slice known, struct arena *a,
                  struct origin_attr *ret, struct err *e)
{
    struct origin_get g = {.key = key, .known = known, .attributes_only = true, .whole = true};
    return UPSTREAM_RETRY(u, upstream_get_once(u, &g, a, ret, ignore_body, NULL, e));
}

int upstream_part(struct upstream *u, struct slice key, struct slice etag, uint32_t number, struct arena *a,
                  struct origin_attr *ret, struct err *e)
{
    struct origin_get g = {
        .key = key, .if_match = etag, .attributes_only = true, .whole = true, .part = number};
    return UPSTREAM_RETRY(u, upstream_get_once(u, &g, a, ret, ignore_body, NULL, e));
}

int upstream_list(struct upstream *u, const struct origin_list *l, struct arena *a, struct origin_page *ret,
                  struct err *e)
{
    return UPSTREAM_RETRY(u, (arena_clear(a), list_once(u, l, a, ret, e)));
}

/* One put and its tries. */
struct putting {
    struct upstream *upstream;
    struct origin_put put;
    bool placed, stays;
    struct retry retry;
    unsigned renewals;
    _Atomic int reach;         /* enum origin_reach, of the last try */
    _Atomic uint64_t moved_ms; /* when bytes of it moved last, monotonic; 0: never */
    uint64_t began_ms;         /* the last try */
};

static int put_try(struct putting *x, const struct origin_body *body, struct arena *scratch,
                   struct origin_attr *ret, struct err *e)
{
    struct upstream *u = x->upstream;
    struct upstream_held place;
    struct quit own = {.life_ms = &x->moved_ms};
    if (x->placed) {
        upstream_enter(u);
        upstream_hold(&place, u, /* behind= */ false);
    } else if (!x->stays && !upstream_enter_slowly(u, x->put.cancel)) {
        return err_set(e, -ECANCELED, "it was given up while it waited for the limits of its origin");
    }
    begin_try(&x->retry);
    x->began_ms = sys_mono_ms();
    atomic_store(&x->reach, ORIGIN_REACH_UNKNOWN);
    quit_enter(&own);
    int r = put_once(u, &x->put, body, scratch, ret, e);
    quit_leave(&own);
    if (x->placed) {
        upstream_unhold(&place);
        upstream_leave(u, r);
    }
    if (!x->stays)
        upstream_heard(u, r);
    return r;
}

/* A large body may be on its way for longer than the origin may be away: patience begins when bytes moved
 * last. At further tries only after they did for a while, and not for ever: a small body leaves for an origin
 * that says nothing, too. */
static void renew_patience(struct putting *x)
{
    uint64_t moved_ms = atomic_load(&x->moved_ms);
    bool gets_on = moved_ms > x->began_ms && moved_ms - x->began_ms >= GETS_ON_MS;
    if (moved_ms <= x->retry.started_ms || (x->retry.attempt > 0 && !gets_on))
        return;
    if (x->renewals++ < RETRY_ATTEMPTS_MAX)
        x->retry.started_ms = moved_ms;
}

static int put(struct upstream *u, const struct origin_put *p, const struct origin_body *body, bool placed,
               struct arena *a, struct origin_attr *ret, struct err *e)
{
    bool conditional = p->if_none_match || p->if_match.n > 0;
    /* With write=back the bytes stay here for now, and wait for room perhaps that comes when others have
     * left: a place is for those. */
    bool stays = u->bucket->p.write == BUCKET_WRITE_BACK;
    struct putting x = {.upstream = u, .put = *p, .placed = placed && !stays, .stays = stays};
    _cleanup_(arena_freep) struct arena *scratch = arena_new(PUT_ARENA_BYTES);
    struct origin_attr answer;
    const _Atomic uint64_t *watched = quit_watch(&u->places->life_ms);
    x.put.patience_ms = u->bucket->p.retry_time;
    x.put.reach = conditional ? &x.reach : NULL;
    int r;
    for (;;) {
        arena_clear(scratch);
        r = put_try(&x, body, scratch, &answer, e);
        bool is_done = conditional && r != ERR_ORIGIN_BUSY && atomic_load(&x.reach) != ORIGIN_REACH_NOTHING;
        renew_patience(&x);
        if (r == 0 || is_done || !try_again(u, &x.retry, r, p->cancel))
            break;
    }
    (void)quit_watch(watched);
    if (r < 0)
        return r;
    *ret = answer;
    ret->etag = arena_dup(a, answer.etag);
    ret->content_type = arena_dup(a, answer.content_type);
    ret->meta = arena_dup(a, answer.meta);
    return 0;
}

int upstream_put(struct upstream *u, const struct origin_put *p, const struct origin_body *body,
                 struct arena *a, struct origin_attr *ret, struct err *e)
{
    return put(u, p, body, /* placed= */ true, a, ret, e);
}

int upstream_put_slowly(struct upstream *u, const struct origin_put *p, const struct origin_body *body,
                        struct arena *a, struct origin_attr *ret, struct err *e)
{
    struct origin_body slow = *body;
    slow.slow = true;
    return put(u, p, &slow, /* placed= */ false, a, ret, e);
}

/* A condition that fails at another try may have met what the try before left: nothing. */
static bool is_gone(struct upstream *u, struct slice key)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(HEAD_ARENA_BYTES);
    struct origin_attr now;
    return upstream_head(u, key, SLICE_NULL, a, &now, NULL) == -ENOENT;
}

int upstream_remove(struct upstream *u, struct slice key, struct slice if_match, struct err *e)
{
    unsigned tries = 0;
    int r = UPSTREAM_RETRY(u, (tries++, remove_once(u, key, if_match, e)));
    if (r == ERR_PRECONDITION && tries > 1 && is_gone(u, key))
        r = -ENOENT;
    return r == -ENOENT && tries > 1 ? 0 : r;
}

int upstream_copy(struct upstream *u, struct slice from, struct slice to, struct arena *a,
                  struct origin_attr *ret, struct err *e)
{
    return UPSTREAM_RETRY(u, copy_once(u, from, to, a, ret, e));
}

/* Repeated with its condition: where a try whose answer was lost made another ETag, the caller hears
 * ERR_PRECONDITION and looks again. */
int upstream_set_meta(struct upstream *u, const struct origin_put *p, uint64_t size_bytes, struct arena *a,
                      struct origin_attr *ret, struct err *e)
{
    return UPSTREAM_RETRY(u, set_meta_once(u, p, size_bytes, a, ret, e));
}

int upstream_has_tag(struct upstream *u, struct slice key, struct slice name, struct slice value,
                     atomic_bool *cancel, bool *ret, struct err *e)
{
    struct retry retry = {0};
    int r;
    do {
        upstream_enter(u);
        begin_try(&retry);
        r = origin_has_tag(u->origin, key, name, value, cancel, ret, e);
        upstream_leave(u, r);
    } while (r < 0 && upstream_try_again(u, &retry, r, cancel));
    return r;
}

int upstream_copy_from(struct upstream *u, const struct origin_copy *c, struct arena *a,
                       struct origin_attr *ret, struct err *e)
{
    return UPSTREAM_RETRY(u, origin_copy_from(u->origin, c, a, ret, e));
}

int upstream_upload_copy(struct upstream *u, const struct origin_put *p, struct slice id, uint32_t number,
                         const struct origin_copy *c, uint64_t offset, uint64_t n,
                         char ret_etag[ORIGIN_ETAG_MAX + 1], struct err *e)
{
    return UPSTREAM_RETRY(u, origin_upload_copy(u->origin, p, id, number, c, offset, n, ret_etag, e));
}

int upstream_tags(struct upstream *u, struct slice key, struct buf *ret, struct err *e)
{
    return UPSTREAM_RETRY(u, (buf_clear(ret), origin_tags(u->origin, key, ret, e)));
}

int upstream_set_tags(struct upstream *u, struct slice key, struct slice tags, struct err *e)
{
    return UPSTREAM_RETRY(u, origin_set_tags(u->origin, key, tags, e));
}

int upstream_upload_create(struct upstream *u, const struct origin_put *p, char ret_id[ORIGIN_UPLOAD_ID_MAX],
                           bool *ret_sums, struct err *e)
{
    return UPSTREAM_RETRY(u, origin_upload_create(u->origin, p, ret_id, ret_sums, e));
}

int upstream_upload_complete(struct upstream *u, const struct origin_put *p, struct slice id,
                             const struct origin_part *parts, size_t n, uint64_t size_bytes, struct arena *a,
                             struct origin_attr *ret, struct err *e)
{
    const _Atomic uint64_t *watched = quit_watch(&u->places->life_ms);
    struct upstream_held place;
    struct origin_put patient = *p;
    patient.patience_ms = u->bucket->p.retry_time;
    upstream_enter(u);
    upstream_hold(&place, u, /* behind= */ false);
    int r = origin_upload_complete(u->origin, &patient, id, parts, n, size_bytes, a, ret, e);
    upstream_unhold(&place);
    upstream_leave(u, r);
    upstream_heard(u, r);
    (void)quit_watch(watched);
    return r;
}

int upstream_upload_abort(struct upstream *u, struct slice key, struct slice id, struct err *e)
{
    int r = UPSTREAM_RETRY(u, origin_upload_abort(u->origin, key, id, e));
    return r == -ENOENT ? 0 : r;
}
