/*
 * Shares of the cache that buckets keep (contract in keep.h), and what is pinned: which cached objects must
 * not be evicted for the sake of others.
 *
 * The steward walks a bucket that keeps something when nobody has yet, and when something of it was held back
 * since the last walk: then the count, which lags, may have been the reason. A walk waits until
 * twenty times as long has passed as the one before took.
 *
 * Invariants:
 *  1. Each of the evictions that run at the same time takes off what it takes before the next one is decided.
 *  2. Before the first walk after a start everything of such a bucket is held.
 *
 * Failure modes: a walk that fails leaves the count as it was, which only sinks.
 */
#include "object/keep.h"

#include "object/object_internal.h"

#include "base/le.h"
#include "base/log.h"
#include "base/sys.h"
#include "base/text.h"

#define PLACE_BYTES   8
#define WALK_SHARE    20
#define COUNT_WAIT_MS 5000
#define COUNT_LOOK_NS 10000000

/* ---- pure ---- */

bool keep_holds(const struct keep *k, uint64_t bytes, bool is_own)
{
    if (k->promised == 0 || is_own)
        return false;
    return !k->is_counted || k->bytes < bytes || k->bytes - bytes < k->promised;
}

void keep_leave(struct keep *k, uint64_t bytes)
{
    k->bytes -= MIN(k->bytes, bytes);
    k->left += MIN(bytes, UINT64_MAX - k->left);
}

void keep_walk(struct keep *k)
{
    k->left = 0;
}

void keep_walked(struct keep *k, uint64_t bytes)
{
    k->bytes = bytes - MIN(bytes, k->left);
    k->is_counted = true;
}

/* ---- the service's ---- */

struct keep_bucket {
    struct keep_bucket *next;
    uint64_t place; /* the bucket's */
    struct keep kept;
    bool is_wanted;   /* something was held back since the last walk */
    uint64_t next_ns; /* when it may be walked again */
};

static struct keep_bucket *find_locked(struct object_service *s, uint64_t place)
{
    lock_assert_held(&s->keep_lock);
    struct keep_bucket *k = s->kept;
    while (k && k->place != place)
        k = k->next;
    return k;
}

static struct keep_bucket *make_locked(struct object_service *s, uint64_t place)
{
    struct keep_bucket *k = find_locked(s, place);
    if (k)
        return k;
    k = calloc(1, sizeof(*k));
    assert(k);
    *k = (struct keep_bucket){.next = s->kept, .place = place};
    s->kept = k;
    return k;
}

bool keep_from(void *arg, struct slice key, struct slice newcomer, uint64_t bytes, bool takes)
{
    struct object_service *s = CAST_MAGIC(object_service, arg, OBJECT_SERVICE_MAGIC);
    if (key.n < PLACE_BYTES)
        return false;
    uint64_t place = be_get64(key.p);
    _cleanup_(bucket_unrefp) struct bucket *b = bucket_find_place(s->buckets, place);
    if (!b)
        return false;
    if (bucket_keep(b, slice_from(key, PLACE_BYTES)) == RULE_KEEP_PINNED)
        return true;
    if (b->p.keep == 0)
        return false;
    bool is_own = newcomer.n >= PLACE_BYTES && be_get64(newcomer.p) == place;
    LOCK_SCOPE(&s->keep_lock);
    struct keep_bucket *k = make_locked(s, place);
    k->kept.promised = b->p.keep;
    bool holds = keep_holds(&k->kept, bytes, is_own);
    k->is_wanted = k->is_wanted || holds;
    if (!holds && takes)
        keep_leave(&k->kept, bytes);
    return holds;
}

void keep_removed(void *arg, struct slice key, uint64_t bytes)
{
    struct object_service *s = CAST_MAGIC(object_service, arg, OBJECT_SERVICE_MAGIC);
    if (key.n < PLACE_BYTES)
        return;
    LOCK_SCOPE(&s->keep_lock);
    struct keep_bucket *k = find_locked(s, be_get64(key.p));
    if (k)
        keep_leave(&k->kept, bytes);
}

void keep_free(struct object_service *s)
{
    while (s->kept) {
        struct keep_bucket *k = s->kept;
        s->kept = k->next;
        free(k);
    }
}

/* ---- how much may be promised ----
 *
 * A tenth stays for others: what is written is put on a disk before it is sent. */

static uint64_t disks_bytes(struct object_service *s)
{
    uint64_t total, room;
    store_room(s->config.store, &total, &room);
    return total;
}

/* What all buckets but one keep. */
static uint64_t others_keep(struct object_service *s, struct slice but)
{
    uint64_t total = 0;
    for (struct bucket *b = NULL; (b = bucket_next(s->buckets, b));)
        if (!slice_eq_str(but, b->name))
            total += MIN(b->p.keep, UINT64_MAX - total);
    return total;
}

int keep_check(struct object_service *s, struct slice bucket, struct slice settings, struct err *e)
{
    uint64_t wanted = 0;
    while (settings.n > 0) {
        struct slice line = slice_split(&settings, '\n'), name = slice_split(&line, '=');
        if (slice_eq_str(name, "keep") && text_parse_size(line, &wanted) < 0)
            return 0; /* whoever reads all of them refuses it */
    }
    if (wanted == 0)
        return 0;
    uint64_t there = disks_bytes(s) / 10 * 9, others = others_keep(s, bucket);
    if (wanted <= there && others <= there - wanted)
        return 0;
    char has[TEXT_SIZE_MAX], rest[TEXT_SIZE_MAX], asked[TEXT_SIZE_MAX];
    return err_set(e, ERR_BAD_OPTION,
                   "keep=%s: of the disks nine tenths can be kept, %s, and other buckets keep %s of them",
                   text_size(wanted, asked), text_size(there, has), text_size(others, rest));
}

/* ---- the steward's part ---- */

static void count(void *arg, const struct store_listed *l)
{
    uint64_t *bytes = arg;
    *bytes += l->present_bytes;
}

static void turn_bucket(struct object_service *s, struct bucket *b)
{
    uint64_t began_ns = sys->mono_ns(), bytes = 0;
    lock_take(&s->keep_lock);
    struct keep_bucket *k = make_locked(s, b->place);
    bool due = !k->kept.is_counted || (k->is_wanted && began_ns >= k->next_ns);
    if (due) {
        k->is_wanted = false;
        keep_walk(&k->kept);
    }
    lock_drop(&s->keep_lock);
    if (!due)
        return;
    int r = object_each_cached(s, b, count, &bytes);
    uint64_t ended_ns = sys->mono_ns();
    if (r < 0 && r != -ECANCELED)
        log_warn("object", "bucket %s: what is cached of it cannot be counted: %s", b->name, err_text(r));
    LOCK_SCOPE(&s->keep_lock);
    if (r == -ECANCELED) { /* the next turn, with the bucket as it is now */
        k->is_wanted = true;
        k->next_ns = ended_ns;
        return;
    }
    s->keep_walks++;
    k->next_ns = ended_ns + WALK_SHARE * (ended_ns - began_ns);
    if (r >= 0)
        keep_walked(&k->kept, bytes);
}

/* The i-th of them; false: there are fewer. */
static bool place_at(struct object_service *s, size_t i, uint64_t *ret)
{
    LOCK_SCOPE(&s->keep_lock);
    struct keep_bucket *k = s->kept;
    while (k && i-- > 0)
        k = k->next;
    if (k)
        *ret = k->place;
    return k;
}

static void forget(struct object_service *s, uint64_t place)
{
    LOCK_SCOPE(&s->keep_lock);
    struct keep_bucket **at = &s->kept, *k;
    while (*at && (*at)->place != place)
        at = &(*at)->next;
    if (!(k = *at))
        return;
    *at = k->next;
    free(k);
}

/* Of buckets that were removed, got another origin, or keep nothing any more: nobody counts them again, and
 * who finds no room must not wait for that. */
static void forget_gone(struct object_service *s)
{
    uint64_t place;
    for (size_t i = 0; place_at(s, i, &place);) {
        _cleanup_(bucket_unrefp) struct bucket *b = bucket_find_place(s->buckets, place);
        if (b && b->p.keep > 0)
            i++;
        else
            forget(s, place);
    }
}

void keep_turn(struct object_service *s)
{
    LOCK_SCOPE(&s->walk_lock); /* as quota_turn */
    forget_gone(s);
    for (struct bucket *b = NULL; (b = bucket_next(s->buckets, b));)
        if (b->p.keep > 0)
            turn_bucket(s, b);
}

/* Whether a count that lags, or is missing, held something. ret_walks: how many have ended. */
static bool is_due(struct object_service *s, uint64_t *ret_walks)
{
    LOCK_SCOPE(&s->keep_lock);
    *ret_walks = s->keep_walks;
    for (const struct keep_bucket *k = s->kept; k; k = k->next)
        if (k->kept.promised > 0 && (!k->kept.is_counted || k->is_wanted))
            return true;
    return false;
}

bool keep_wait_counted(struct object_service *s)
{
    uint64_t before, walks, until_ms = sys_mono_ms() + COUNT_WAIT_MS;
    bool due = is_due(s, &before);
    for (walks = before; due && walks == before && sys_mono_ms() < until_ms; (void)is_due(s, &walks)) {
        steward_hurry(s->steward);
        sys->sleep_ns(COUNT_LOOK_NS);
    }
    return walks != before;
}
