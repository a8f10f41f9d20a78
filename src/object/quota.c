/*
 * Quotas of buckets with an origin: the most bytes of a bucket that the cache holds, counted by the whole
 * size of its objects.
 *
 * What is admitted is counted here; what leaves is not, so that the count is an upper bound. When it reaches
 * the quota newcomers are served around the cache and the steward is called: it walks what is cached of the
 * bucket, which makes the count exact, and drops what the eviction policy would give up for the newcomer,
 * down to TRIM_PERCENT, or further until the newcomer fits. When the policy gives up nothing, what is there
 * stays, and newcomers go on being turned away: a scan over more than the quota does not empty it. Only when
 * more is there than the quota allows, because it was lowered, goes what was not read for longest, until it
 * fits.
 *
 * A walk waits until WALK_SHARE times as long has passed as the one before took, however many are turned
 * away.
 *
 * What was admitted before a walk began is not counted beside it, so that the walk must see it: it waits for
 * the entries that are being made (object_await_makings). What is admitted after its beginning is counted,
 * whether the walk sees it or not.
 *
 * Invariant: a count is never below what is cached, but before the first walk after a start, or after the
 * bucket got a quota: what came while it had none was not counted.
 */
#include "object/object_internal.h"

#include "base/log.h"
#include "base/sys.h"
#include "object/ages.h"

#define TRIM_PERCENT 90
#define WALK_SHARE   20

struct quota {
    struct quota *next;
    uint64_t bucket_id;
    uint64_t bytes;
    uint64_t limit;      /* the quota at the last walk */
    bool walked, wanted; /* wanted: somebody was turned away since the last walk */
    bool is_called;      /* so was the steward */
    uint64_t next_ns;    /* no walk before, monotonic */
    uint64_t n_changed;  /* quota_changed */
    char *newcomer;      /* the key in the store of the last one */
    size_t newcomer_n;
    uint64_t newcomer_bytes;
};

static struct quota *find_locked(struct object_service *s, uint64_t bucket_id)
{
    lock_assert_held(&s->quota_lock);
    struct quota *q = s->quotas;
    while (q && q->bucket_id != bucket_id)
        q = q->next;
    if (q)
        return q;
    q = calloc(1, sizeof(*q));
    assert(q);
    *q = (struct quota){.next = s->quotas, .bucket_id = bucket_id};
    s->quotas = q;
    return q;
}

/* Notes who was turned away, and calls the steward when it may walk. */
static void turn_away_locked(struct object_service *s, struct quota *q, struct slice key, uint64_t size_bytes)
{
    free(q->newcomer);
    q->newcomer = slice_dup(key);
    q->newcomer_n = key.n;
    q->newcomer_bytes = size_bytes;
    q->wanted = true;
    if (q->is_called || sys->mono_ns() < q->next_ns)
        return;
    q->is_called = true;
    steward_hurry(s->steward);
}

bool quota_admit(struct object_service *s, const struct bucket *b, struct slice key, uint64_t size_bytes)
{
    if (b->p.quota == 0)
        return true;
    if (size_bytes > b->p.quota) /* whatever makes room */
        return false;
    LOCK_SCOPE(&s->quota_lock);
    struct quota *q = find_locked(s, b->id);
    if (q->bytes <= b->p.quota && size_bytes <= b->p.quota - q->bytes) {
        q->bytes += size_bytes;
        return true;
    }
    _cleanup_buf_ struct buf k = BUF_INIT(STORE_KEY_MAX_BYTES);
    object_store_key(b, key, &k);
    turn_away_locked(s, q, buf_view(&k), size_bytes);
    return false;
}

static void quota_free_one(struct quota *q)
{
    free(q->newcomer);
    free(q);
}

void quota_free(struct object_service *s)
{
    while (s->quotas) {
        struct quota *q = s->quotas;
        s->quotas = q->next;
        quota_free_one(q);
    }
}

void quota_changed(struct object_service *s, uint64_t bucket_id)
{
    LOCK_SCOPE(&s->quota_lock);
    struct quota *q = find_locked(s, bucket_id);
    q->walked = false;
    q->next_ns = 0;
    q->n_changed++;
    steward_hurry(s->steward);
}

/* ---- the steward's part ---- */

struct walk {
    struct object_service *service;
    struct bucket *bucket;
    char *newcomer; /* or NULL */
    size_t newcomer_n;
    uint64_t newcomer_bytes;
    uint64_t n_changed; /* of the quota, when it began */
    uint64_t now_ms, bytes;
    struct ages ages;    /* of bytes that may go */
    uint64_t goal_bytes; /* drop until no more than this is there */
    uint64_t oldest_ms;  /* what has not been read for so long goes */
};

static uint64_t age_ms(const struct walk *w, const struct store_listed *l)
{
    return w->now_ms > l->last_read_ms ? w->now_ms - l->last_read_ms : 0;
}

static bool may_go(const struct walk *w, const struct store_listed *l)
{
    struct slice key = slice_from(l->key, sizeof(w->bucket->place));
    return bucket_keep(w->bucket, key) != RULE_KEEP_PINNED;
}

static void count(void *arg, const struct store_listed *l)
{
    struct walk *w = arg;
    w->bytes += l->size_bytes;
    if (may_go(w, l))
        ages_add(&w->ages, age_ms(w, l), l->size_bytes);
}

static void count_again(void *arg, const struct store_listed *l)
{
    struct walk *w = arg;
    if (may_go(w, l))
        ages_add(&w->ages, age_ms(w, l), l->size_bytes);
}

static void drop(struct walk *w, const struct store_listed *l)
{
    if (store_remove(w->service->config.store, l->key) < 0)
        return;
    w->bytes -= MIN(w->bytes, l->size_bytes);
    metrics_add(metrics_series(METRIC_EVICTED_BYTES, "all", "quota", NULL), l->present_bytes);
}

static void drop_unwanted(void *arg, const struct store_listed *l)
{
    struct walk *w = arg;
    struct slice newcomer = slice_of(w->newcomer, w->newcomer_n);
    if (w->bytes > w->goal_bytes && may_go(w, l) && store_would_evict(w->service->config.store, l, newcomer))
        drop(w, l);
}

static void drop_old(void *arg, const struct store_listed *l)
{
    struct walk *w = arg;
    if (w->bytes > w->goal_bytes && may_go(w, l) && age_ms(w, l) >= w->oldest_ms)
        drop(w, l);
}

static int over_all(struct walk *w, object_cached_fn fn)
{
    return object_each_cached(w->service, w->bucket, fn, w);
}

/* So that what is there is within the quota. */
static int drop_oldest(struct walk *w, uint64_t excess)
{
    w->goal_bytes = w->bytes - excess;
    ages_divide(&w->ages, excess);
    int r = over_all(w, count_again);
    w->oldest_ms = ages_from_ms(&w->ages, excess);
    return r < 0 ? r : over_all(w, drop_old);
}

static int trim(struct walk *w)
{
    uint64_t quota = w->bucket->p.quota;
    int r = over_all(w, count);
    if (r == 0 && w->bytes > quota) {
        r = drop_oldest(w, w->bytes - quota);
    } else if (r == 0 && w->newcomer) {
        w->goal_bytes = MIN(quota / 100 * TRIM_PERCENT, quota - MIN(quota, w->newcomer_bytes));
        r = over_all(w, drop_unwanted);
    }
    return r;
}

/* Whether a walk is due; then it begins: *w is filled, *ret_before is the count until now. */
static bool begin(struct walk *w, uint64_t now_ns, uint64_t *ret_before)
{
    LOCK_SCOPE(&w->service->quota_lock);
    struct quota *q = find_locked(w->service, w->bucket->id);
    uint64_t quota = w->bucket->p.quota;
    if (now_ns < q->next_ns || (q->walked && !q->wanted && q->bytes <= quota && q->limit == quota))
        return false;
    *ret_before = q->bytes;
    w->newcomer = q->wanted ? TAKE_PTR(q->newcomer) : NULL;
    w->newcomer_n = q->newcomer_n;
    w->newcomer_bytes = q->newcomer_bytes;
    w->n_changed = q->n_changed;
    q->wanted = q->is_called = false;
    return true;
}

static void turn_bucket(struct object_service *s, struct bucket *b)
{
    struct walk w = {.service = s, .bucket = b, .now_ms = sys->real_ns() / 1000000};
    uint64_t began_ns = sys->mono_ns(), before;
    if (!begin(&w, began_ns, &before))
        return;
    object_await_makings(s);
    int r = trim(&w);
    free(w.newcomer);
    if (r < 0 && r != -ECANCELED)
        log_warn("object", "bucket %s: what is cached of it cannot be counted: %s", b->name, err_text(r));
    uint64_t ended_ns = sys->mono_ns();
    LOCK_SCOPE(&s->quota_lock);
    struct quota *q = find_locked(s, b->id);
    bool is_other = r == -ECANCELED || q->n_changed != w.n_changed;
    q->walked = !is_other && (r == 0 || q->walked);
    if (is_other) /* the next turn, with the bucket as it is now */
        return;
    q->next_ns = ended_ns + WALK_SHARE * (ended_ns - began_ns);
    if (r < 0)
        return;
    q->limit = b->p.quota;
    q->bytes = w.bytes + (q->bytes - before); /* and what came meanwhile, perhaps twice */
}

/* The number of the i-th of them; false: there are fewer. */
static bool number_at(struct object_service *s, size_t i, uint64_t *ret)
{
    LOCK_SCOPE(&s->quota_lock);
    const struct quota *q = s->quotas;
    while (q && i-- > 0)
        q = q->next;
    if (q)
        *ret = q->bucket_id;
    return q;
}

static void forget(struct object_service *s, uint64_t bucket_id)
{
    LOCK_SCOPE(&s->quota_lock);
    struct quota **at = &s->quotas, *q;
    while (*at && (*at)->bucket_id != bucket_id)
        at = &(*at)->next;
    if (!(q = *at))
        return;
    *at = q->next;
    quota_free_one(q);
}

/* Of buckets that were removed, or have none any more. */
static void forget_gone(struct object_service *s)
{
    uint64_t id;
    for (size_t i = 0; number_at(s, i, &id);) {
        _cleanup_(bucket_unrefp) struct bucket *b = bucket_find_id(s->buckets, id);
        if (b && b->p.quota > 0)
            i++;
        else
            forget(s, id);
    }
}

void quota_turn(struct object_service *s)
{
    LOCK_SCOPE(&s->walk_lock); /* over the walk's I/O: nobody but walkers wait for it */
    forget_gone(s);
    for (struct bucket *b = NULL; (b = bucket_next(s->buckets, b));)
        if (b->p.quota > 0 && !bucket_is_scratch(b)) /* theirs: scratch_room.c */
            turn_bucket(s, b);
}
