/*
 * The steward: one thread of the service that does now and then what nobody waits for: writes counters down,
 * trims buckets to their quotas, ends uploads that were abandoned or cut, renames that were cut, and
 * connections to origins that nobody uses any more.
 *
 * After a start it drops what is cached of places that no bucket has: a crash left it while a bucket was
 * removed or got another origin, or a disk that was away meanwhile. Nobody would find it, and quotas do not
 * see it. What has a number that this control store never gave out stays: perhaps the node was started with
 * another one by mistake.
 */
#include "object/object_internal.h"
#include "object/unfinished.h"

#include "base/chore.h"
#include "base/le.h"
#include "base/log.h"
#include "base/sys.h"

#define MAGIC      0x73747764u
#define TURN_NS    ((uint64_t)5000000000)
#define SAVE_NS    ((uint64_t)60000000000)
#define PAGE       256 /* objects that are dropped at a time, and memory for their keys: */
#define PAGE_ARENA (8 * MIB)

struct steward {
    uint32_t magic;
    struct object_service *service;
    struct chore chore;
    uint64_t saved_ns;
    bool has_swept;
};

/* ---- counters of reads ---- */

struct ids {
    uint64_t v[USAGE_ROWS_MAX];
    size_t n;
};

static void note_id(void *arg, const struct usage_row *r)
{
    struct ids *ids = arg;
    size_t i = 0;
    while (i < ids->n && ids->v[i] != r->bucket_id)
        i++;
    if (i == ids->n && ids->n < USAGE_ROWS_MAX)
        ids->v[ids->n++] = r->bucket_id;
}

/* Rows of buckets that are gone: what was under way of one when it was removed, and what a kill left of a
 * job's own. Nobody sees them, and there are only so many rows for all. */
static void forget_gone(struct object_service *s)
{
    struct ids *ids = calloc(1, sizeof(*ids));
    assert(ids);
    usage_each(s->usage, note_id, ids);
    for (size_t i = 0; i < ids->n; i++) {
        _cleanup_(bucket_unrefp) struct bucket *b = bucket_find_id(s->buckets, ids->v[i]);
        if (!b)
            usage_forget(s->usage, ids->v[i]);
    }
    free(ids);
}

static void save(struct steward *w)
{
    struct err e = {0};
    w->saved_ns = sys->mono_ns();
    forget_gone(w->service);
    if (usage_save(w->service->usage, &e) < 0)
        log_warn("object", "%s", e.text);
}

/* ---- places that no bucket has ---- */

/* All that is cached of one place. How many objects, or an error. */
static int64_t drop_place(struct steward *w, struct slice place)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(PAGE_ARENA);
    struct store *store = w->service->config.store;
    _cleanup_buf_ struct buf after = BUF_INIT(STORE_KEY_MAX_BYTES);
    struct store_listed page[PAGE];
    int64_t n = PAGE, total = 0;
    while (n == PAGE && !chore_is_stopping(&w->chore)) {
        arena_clear(a);
        n = store_list(store, place, buf_view(&after), PAGE, a, page);
        for (int64_t i = 0; i < n; i++)
            total += store_remove(store, page[i].key) == 0;
        buf_clear(&after);
        if (n > 0 && buf_slice(&after, page[n - 1].key) < 0)
            n = -E2BIG;
    }
    return n < 0 ? n : total;
}

/* Goes from place to place, not from object to object. */
static void sweep(struct steward *w)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(PAGE_ARENA);
    uint64_t place = 0, last = bucket_last_place(w->service->buckets);
    int64_t dropped = 0, r = 1;
    while (r > 0 && dropped >= 0 && !chore_is_stopping(&w->chore)) {
        uint8_t from[8];
        struct store_listed first;
        be_put64(from, place);
        arena_clear(a);
        r = store_list(w->service->config.store, SLICE_NULL, slice_of(from, sizeof(from)), 1, a, &first);
        if (r <= 0 || first.key.n < sizeof(from) || (place = be_get64(first.key.p)) > last)
            break;
        _cleanup_(bucket_unrefp) struct bucket *b = bucket_find_place(w->service->buckets, place);
        int64_t n = b ? 0 : drop_place(w, slice_sub(first.key, 0, sizeof(from)));
        dropped = n < 0 ? n : dropped + n;
        place++;
    }
    r = dropped < 0 ? dropped : r;
    if (r < 0)
        log_warn("object", "what is cached of no bucket cannot be dropped: %s", err_text((int)r));
    else if (dropped > 0)
        log_info("object", "%lld cached objects of no bucket dropped", (long long)dropped);
}

static uint64_t turn(void *arg)
{
    struct steward *w = CAST_MAGIC(steward, arg, MAGIC);
    if (sys->mono_ns() - w->saved_ns >= SAVE_NS)
        save(w);
    if (!w->has_swept)
        sweep(w);
    w->has_swept = true;
    object_note_forgetful(w->service); /* a flush that failed, of which nobody else heard */
    object_rest_origins(w->service);
    quota_turn(w->service);
    keep_turn(w->service);
    upload_turn(w->service);
    unfinished_turn(w->service);
    intents_turn(w->service, sys->mono_ns());
    sobject_expire_turn(w->service);
    values_sweep(w->service->values, sys->real_ns());
    return TURN_NS;
}

struct steward *steward_start(struct object_service *s)
{
    struct steward *w = calloc(1, sizeof(*w));
    assert(w);
    *w = (struct steward){.magic = MAGIC, .service = s, .saved_ns = sys->mono_ns()};
    if (chore_start(&w->chore, TURN_NS, turn, w) < 0)
        log_warn("object", "no thread for what is done now and then: counters are written at the end only");
    return w;
}

void steward_hurry(struct steward *w)
{
    chore_call(&w->chore);
}

void steward_stop(struct steward *w)
{
    if (!w)
        return;
    chore_stop(&w->chore);
    save(w);
    w->magic = 0;
    free(w);
}
