/*
 * The readers' side of filling: finding the fill of a version, asking for ranges, waiting for bytes.
 *
 * Invariants:
 *  1. No byte of an extent is covered by two unfinished parts: single flight.
 *  2. A part leaves its fill's list when it ends; a failure is seen by those who waited for it and by nobody
 * later: the next reader asks again. Only a changed version is remembered (broken).
 *  3. Memory parts are in the list while they hold bytes, and count in memory_bytes and in the budget.
 *
 * Locks: engine.table_lock before fill.lock; engine.lock is never held together with a fill's lock.
 */
#include "object/fill_internal.h"

#include "base/hash.h"
#include "base/sys.h"

#include <inttypes.h>

#define FILL_MAGIC      0x66696c6cu
#define PART_MAGIC      0x70617274u
#define MEMORY_MAX      (48 * MIB) /* of one uncached fill */
#define WAIT_NS         (QUIT_LOOK_MS * 1000000ull)
#define CHECKED_WAIT_NS 10000000ull
#define LOOKS_MAX       16 /* without anything to wait for, before it waits nevertheless */

/* ---- how memory is shared ---- */

uint64_t fill_memory_part(uint64_t total, unsigned streams)
{
    uint64_t share = total / 2 / MAX(streams, 1u), part = FILL_PART_MAX_BYTES;
    while (part > FILL_PART_MIN_BYTES && part > share)
        part /= 2;
    return part;
}

bool fill_may_drop(bool is_read, bool is_begun, uint64_t idle_ms)
{
    return is_read || idle_ms >= (is_begun ? FILL_KEEP_BEGUN_MS : FILL_KEEP_AHEAD_MS);
}

/* ---- life ---- */

static struct fill *fill_new(struct fill_engine *g, struct upstream *u, struct slice key, struct extent *x,
                             struct slice etag, uint64_t size, uint64_t hash)
{
    assert(etag.n <= ORIGIN_ETAG_MAX);
    struct fill *f = calloc(1, sizeof(*f));
    assert(f);
    f->magic = FILL_MAGIC;
    f->engine = g;
    f->upstream = upstream_ref(u);
    f->extent = x ? extent_ref(x) : NULL;
    f->key = slice_dup(key);
    f->key_n = key.n;
    f->hash = hash;
    f->refs = 1;
    f->no_extent = !x;
    f->size = size;
    if (etag.n > 0)
        memcpy(f->etag, etag.p, etag.n);
    lock_init(&f->lock, LOCK_FILL);
    cond_init(&f->moved);
    return f;
}

static void part_free(struct part *p)
{
    assert(p->magic == PART_MAGIC);
    extent_writer_free(p->writer);
    p->magic = 0;
    free(p);
}

static void part_free_memory_locked(struct part *p)
{
    if (!p->memory)
        return;
    uint64_t n = p->end - p->offset;
    free(p->memory);
    p->memory = NULL;
    p->fill->memory_bytes -= n;
    budget_give(p->fill->engine->budget, n);
}

void fill_part_unref_locked(struct part *p)
{
    lock_assert_held(&p->fill->lock);
    assert(p->refs > 0);
    if (--p->refs > 0)
        return;
    part_free_memory_locked(p);
    part_free(p);
}

void fill_count_memory_locked(struct part *p)
{
    struct fill *f = p->fill;
    lock_assert_held(&f->lock);
    if (p->counted)
        return;
    p->counted = true;
    if (f->memory_parts++ == 0)
        (void)atomic_fetch_add(&f->engine->streams, 1);
}

static void list_remove_locked(struct part *p)
{
    struct fill *f = p->fill;
    struct part **at = &f->parts;
    while (*at && *at != p)
        at = &(*at)->next;
    if (!*at)
        return;
    *at = p->next;
    if (p->counted && --f->memory_parts == 0)
        (void)atomic_fetch_sub(&f->engine->streams, 1);
    p->counted = false;
    fill_part_unref_locked(p);
}

static void fill_free(struct fill *f)
{
    lock_take(&f->lock);
    while (f->parts) /* only finished memory parts are left: running ones hold a reference to the fill */
        list_remove_locked(f->parts);
    lock_drop(&f->lock);
    extent_unref(f->extent);
    upstream_unref(f->upstream);
    arena_free(f->learned_arena);
    free(f->key);
    cond_fini(&f->moved);
    lock_fini(&f->lock);
    f->magic = 0;
    free(f);
}

struct fill *fill_ref(struct fill *f)
{
    assert(f->magic == FILL_MAGIC);
    LOCK_SCOPE(&f->lock);
    f->refs++;
    return f;
}

static void table_remove(struct fill_engine *g, struct fill *f)
{
    struct fill **at = &g->table[f->hash % FILL_TABLE_SIZE];
    while (*at && *at != f)
        at = &(*at)->next;
    if (*at)
        *at = f->next;
}

void fill_unref(struct fill *f)
{
    if (!f)
        return;
    assert(f->magic == FILL_MAGIC);
    struct fill_engine *g = f->engine;
    lock_take(&g->table_lock);
    lock_take(&f->lock);
    bool last = --f->refs == 0;
    lock_drop(&f->lock);
    if (last)
        table_remove(g, f);
    lock_drop(&g->table_lock);
    if (last)
        fill_free(f);
}

/* ---- finding ---- */

uint64_t fill_hash_extent(const struct extent *x)
{
    return hash_mix((uintptr_t)x, 1);
}

uint64_t fill_hash_uncached(const struct upstream *u, struct slice key, struct slice etag, uint64_t size)
{
    return hash_mix(hash_mix(hash_table(key), hash_table(etag)), hash_mix(u->bucket->place, size));
}

static bool same_version(const struct fill *f, const struct upstream *u, struct slice key, struct slice etag,
                         uint64_t size)
{
    return f->no_extent && f->known && f->size == size && f->upstream->bucket->place == u->bucket->place &&
           slice_eq(slice_of(f->key, f->key_n), key) && slice_eq_str(etag, f->etag);
}

static struct fill *find_or_make(struct fill_engine *g, struct upstream *u, struct slice key,
                                 struct extent *x, struct slice etag, uint64_t size)
{
    uint64_t hash = x ? fill_hash_extent(x) : fill_hash_uncached(u, key, etag, size);
    LOCK_SCOPE(&g->table_lock);
    for (struct fill *f = g->table[hash % FILL_TABLE_SIZE]; f; f = f->next) {
        struct lock *held = &f->lock;
        lock_take(held);
        bool same =
            f->broken == 0 && (x ? f->extent == x : !f->extent && same_version(f, u, key, etag, size));
        if (same)
            f->refs++;
        lock_drop(held);
        if (same)
            return f;
    }
    struct fill *f = fill_new(g, u, key, x, etag, size, hash);
    f->known = true;
    f->next = g->table[hash % FILL_TABLE_SIZE];
    g->table[hash % FILL_TABLE_SIZE] = f;
    return f;
}

struct fill *fill_of_extent(struct fill_engine *g, struct upstream *u, struct slice key, struct extent *x,
                            struct slice etag)
{
    return find_or_make(g, u, key, x, etag, extent_size(x));
}

struct fill *fill_of_uncached(struct fill_engine *g, struct upstream *u, struct slice key, struct slice etag,
                              uint64_t size)
{
    return find_or_make(g, u, key, NULL, etag, size);
}

struct extent *fill_extent(const struct fill *f)
{
    return f->extent;
}

bool fill_is_uncached(struct fill *f)
{
    LOCK_SCOPE(&f->lock);
    return f->no_extent;
}

/* ---- parts ---- */

static struct part *part_new_locked(struct fill *f, struct plan_range r, bool urgent)
{
    struct part *p = calloc(1, sizeof(*p));
    assert(p);
    p->magic = PART_MAGIC;
    p->refs = 1; /* the list's */
    p->fill = f;
    p->offset = p->have = r.offset;
    p->wake_at = UINT64_MAX;
    p->end = r.end;
    p->queued_ms = sys_mono_ms();
    atomic_init(&p->urgent, urgent);
    atomic_init(&p->owner, -1);
    p->next = f->parts;
    f->parts = p;
    f->refs++; /* until it has run */
    p->refs++; /* the queue's */
    return p;
}

static struct part *part_at_locked(struct fill *f, uint64_t offset)
{
    for (struct part *p = f->parts; p; p = p->next)
        if (p->state != PART_FAILED && offset >= p->offset && offset < p->end)
            return p;
    return NULL;
}

/* Bytes of an extent are found by its presence map from now on; those in memory stay in the list until
 * dropped. */
void fill_part_done_locked(struct part *p)
{
    lock_assert_held(&p->fill->lock);
    p->last_use = ++p->fill->uses;
    p->touched_ms = sys_mono_ms();
    if (!p->memory)
        list_remove_locked(p);
}

void fill_fail_part_locked(struct part *p, int result, const struct err *err)
{
    lock_assert_held(&p->fill->lock);
    p->state = PART_FAILED;
    p->result = result;
    p->err = *err;
    if (result == ERR_VERSION_CHANGED)
        p->fill->broken = result;
    list_remove_locked(p);
    cond_broadcast(&p->fill->moved);
}

/* Start of the first unfinished part after `offset`, or `limit`. */
static uint64_t next_part_start_locked(const struct fill *f, uint64_t offset, uint64_t limit)
{
    for (const struct part *p = f->parts; p; p = p->next)
        if (p->state != PART_FAILED && p->offset > offset && p->offset < limit)
            limit = p->offset;
    return limit;
}

/* The next run of the extent at or after *at that is neither present nor asked for. Moves *at behind it. The
 * presence map is asked without the fill's lock: it may verify blocks. */
static bool next_gap(struct fill *f, uint64_t *at, uint64_t end, struct plan_range *ret)
{
    while (*at < end) {
        uint64_t offset = *at, n = end - *at;
        if (f->extent && !fill_is_uncached(f)) {
            if (extent_next_missing(f->extent, *at, &offset, &n) < 0 || offset >= end)
                return false;
        }
        offset = MAX(offset, ALIGN_DOWN(*at, STORE_BLOCK_BYTES));
        LOCK_SCOPE(&f->lock);
        struct part *p = part_at_locked(f, MAX(offset, *at));
        if (p) {
            *at = p->end;
            continue;
        }
        *ret = (struct plan_range){offset, next_part_start_locked(f, offset, MIN(offset + n, f->size))};
        return true;
    }
    return false;
}

/* How large the parts are that this fill asks for now. */
static uint64_t memory_part_bytes(struct fill *f)
{
    LOCK_SCOPE(&f->lock);
    unsigned others = atomic_load(&f->engine->streams) - (f->memory_parts > 0);
    return fill_memory_part(budget_total(f->engine->budget), others + 1);
}

/* Parts of an uncached fill end on a grid, so that readers share them. They begin where they are needed: what
 * is before that was read most likely, and went. */
static struct plan_range memory_range(uint64_t offset, uint64_t part, uint64_t size)
{
    return (struct plan_range){ALIGN_DOWN(offset, FILL_PART_MIN_BYTES),
                               MIN(ALIGN_DOWN(offset, part) + part, size)};
}

static void want_part(struct fill *f, struct plan_range r, bool urgent)
{
    lock_take(&f->lock);
    bool ask =
        f->broken == 0 && !part_at_locked(f, r.offset) && next_part_start_locked(f, r.offset, r.end) == r.end;
    struct part *p = ask ? part_new_locked(f, r, urgent) : NULL;
    lock_drop(&f->lock);
    if (p)
        fill_engine_queue(f->engine, p);
}

/* End of the last part before `offset`, which none covers, or `limit`. */
static uint64_t last_part_end_locked(const struct fill *f, uint64_t offset, uint64_t limit)
{
    for (const struct part *p = f->parts; p; p = p->next)
        if (p->state != PART_FAILED && p->end <= offset && p->end > limit)
            limit = p->end;
    return limit;
}

static bool is_read_locked(const struct part *p)
{
    return p->memory && p->state == PART_DONE && p->taken >= p->end;
}

/* Whether n bytes more may be read ahead: beside what of this fill is unread and on its way, and half of the
 * memory is for those who wait. */
static bool may_read_ahead_locked(const struct fill *f, uint64_t n)
{
    struct budget *b = f->engine->budget;
    uint64_t held = n;
    for (const struct part *p = f->parts; p; p = p->next)
        held += is_read_locked(p) ? 0 : p->end - p->offset;
    return held <= MEMORY_MAX && budget_used(b) + n <= budget_total(b) / 2;
}

/* The part for `at`, less what other parts have: one that began before the disk was full, or the discovering
 * one, lies on no grid, and earlier ones may lie on another. */
static void want_memory_part(struct fill *f, uint64_t at, uint64_t bytes, bool urgent, bool ahead)
{
    struct plan_range r = memory_range(at, bytes, f->size);
    lock_take(&f->lock);
    struct part *p = NULL;
    if (f->broken == 0 && !part_at_locked(f, at)) {
        r.offset = last_part_end_locked(f, at, r.offset);
        r.end = next_part_start_locked(f, at, r.end);
        if (!ahead || may_read_ahead_locked(f, r.end - r.offset))
            p = part_new_locked(f, r, urgent);
        if (p)
            fill_count_memory_locked(p);
    }
    lock_drop(&f->lock);
    if (p)
        fill_engine_queue(f->engine, p);
}

static void want_memory(struct fill *f, struct plan_range range, bool urgent)
{
    uint64_t part = memory_part_bytes(f);
    uint64_t reach = MIN(range.end, range.offset + MEMORY_MAX - 2 * FILL_PART_MAX_BYTES);
    for (uint64_t at = range.offset; at < reach; at = ALIGN_DOWN(at, part) + part) {
        if (f->extent && extent_present_run(f->extent, at, 1) > 0)
            continue;
        /* Patient readers wait for the first part, too. */
        want_memory_part(f, at, part, urgent, /* ahead= */ at != range.offset);
        urgent = false;
    }
}

void fill_want(struct fill *f, struct plan_range range, bool urgent)
{
    range.end = MIN(range.end, f->size);
    if (fill_is_uncached(f)) {
        want_memory(f, range, urgent);
        return;
    }
    uint64_t at = range.offset;
    struct plan_range gap;
    while (next_gap(f, &at, range.end, &gap)) {
        struct plan_range r = plan_part(gap, range, f->size);
        want_part(f, r, urgent);
        urgent = false;
        at = MAX(r.end, at + 1);
    }
}

/* ---- memory parts ---- */

/* Which of two goes first: what was read, the longest ago; then what nobody has touched, the farthest ahead;
 * last what is being read. */
static bool goes_before(const struct part *p, const struct part *q)
{
    bool p_read = p->taken >= p->end, q_read = q->taken >= q->end;
    if (p_read != q_read)
        return p_read;
    if ((p->taken == 0) != (q->taken == 0))
        return p->taken == 0;
    return p->taken == 0 ? p->offset > q->offset : p->last_use < q->last_use;
}

static bool may_drop_locked(const struct part *p, enum fill_drop which, uint64_t now_ms)
{
    if (!p->memory || p->state != PART_DONE || p->refs > 1) /* somebody is at it this moment */
        return false;
    return which == FILL_DROP_ALL || is_read_locked(p) ||
           (which == FILL_DROP_IDLE &&
            fill_may_drop(false, p->taken > 0, now_ms - MIN(p->touched_ms, now_ms)));
}

bool fill_drop_memory_locked(struct fill *f, uint64_t need, const struct part *keep, enum fill_drop which)
{
    lock_assert_held(&f->lock);
    uint64_t now_ms = sys_mono_ms();
    while (f->memory_bytes + need > MEMORY_MAX) {
        struct part *first = NULL;
        for (struct part *p = f->parts; p; p = p->next)
            if (p != keep && may_drop_locked(p, which, now_ms) && (!first || goes_before(p, first)))
                first = p;
        if (!first)
            return false;
        list_remove_locked(first);
    }
    return true;
}

void fill_drop_idle_memory(struct fill *f)
{
    LOCK_SCOPE(&f->lock);
    (void)fill_drop_memory_locked(f, MEMORY_MAX, NULL, FILL_DROP_IDLE);
}

/* What was read before goes once memory gets short: others read ahead with it. */
static void drop_read_locked(struct fill *f, const struct part *p)
{
    struct budget *b = f->engine->budget;
    if (is_read_locked(p) && budget_used(b) > budget_total(b) / 4)
        (void)fill_drop_memory_locked(f, MEMORY_MAX, p, FILL_DROP_READ);
}

/* ---- waiting ---- */

static int fill_error_locked(const struct fill *f, struct err *e)
{
    return err_set(e, f->broken, "the origin's object changed while it was read (ETag was %s)", f->etag);
}

/* Copies from a memory part. */
static void take_memory_locked(struct part *p, uint64_t offset, uint64_t n, struct arena *a,
                               struct fill_bytes *ret)
{
    n = MIN(MIN(n, p->have - offset), FILL_INLINE_MAX_BYTES);
    ret->data = arena_dup(a, slice_of(p->memory + (offset - p->offset), n));
    p->last_use = ++p->fill->uses;
    p->taken = MAX(p->taken, offset + n);
    p->touched_ms = sys_mono_ms();
    drop_read_locked(p->fill, p);
}

static uint64_t block_end(const struct fill *f, uint64_t offset)
{
    return MIN(ALIGN_UP(offset + 1, STORE_BLOCK_BYTES), f->size);
}

/* Up to where bytes have to be here before who waits at offset (which p covers) is woken. */
static uint64_t enough_locked(const struct fill *f, const struct part *p, uint64_t offset, uint64_t n,
                              unsigned how)
{
    uint64_t least = how & FILL_CHECKED ? block_end(f, offset) : offset + MIN(n, (uint64_t)FILL_LEAST_BYTES);
    return MIN(MIN(least, p->end), f->size);
}

/* What a part came to for who waited for its byte at offset: 0, or its error. Of a part that failed only
 * whole blocks of the extent are left: who asked again for the others would wait for the same failure, for
 * ever. */
static int part_result_locked(const struct fill *f, const struct part *p, uint64_t offset, struct err *e)
{
    bool is_left = !p->memory && p->have >= block_end(f, offset);
    int r = is_left || p->state != PART_FAILED ? 0 : p->result;
    /* The disk is full: look again, the next part goes to memory. Or who fetched it was given up. */
    if (r == ERR_NOT_ADMITTED || r == -ECANCELED)
        r = 0;
    if (r < 0 && e)
        *e = p->err;
    return r;
}

static int canceled(struct err *e)
{
    return err_set(e, -ECANCELED, "canceled");
}

static void give_up_part_locked(struct part *p)
{
    atomic_store(&p->given_up, true);
    for (int i = 0; i < FILL_ATTEMPTS; i++)
        atomic_store(&p->cancel[i], true);
}

/* The caller, who waits in `own`, waits no more: what nobody else waits for is not fetched, nor, when nobody
 * else has the file open, what is read ahead. */
static void give_up_locked(struct fill *f, struct part *own)
{
    unsigned unfinished = 0;
    for (const struct part *p = f->parts; p; p = p->next)
        unfinished += p->state == PART_QUEUED || p->state == PART_RUNNING;
    bool is_alone = f->refs <= unfinished + 1;
    for (struct part *p = f->parts; p; p = p->next)
        if ((p == own && p->refs == FILL_PART_OWN_REFS + 1) ||
            (p != own && is_alone && p->refs == FILL_PART_OWN_REFS))
            give_up_part_locked(p);
}

/* Waits for a part to have bytes at offset (which it covers): 0, or its error. */
static int wait_part_locked(struct fill *f, struct part *p, uint64_t offset, uint64_t n, unsigned how,
                            struct err *e)
{
    uint64_t enough = enough_locked(f, p, offset, n, how);
    p->refs++;
    if (!(how & FILL_PATIENT) && !atomic_exchange(&p->urgent, true) && p->state == PART_QUEUED) {
        lock_drop(&f->lock);
        fill_engine_promote(f->engine, p);
        lock_take(&f->lock);
    }
    bool given_up = false;
    const _Atomic uint64_t *watched = quit_watch(&f->upstream->places->life_ms);
    while (p->have < enough && (p->state == PART_QUEUED || p->state == PART_RUNNING) &&
           !(given_up = quit_is_now())) {
        p->wake_at = MIN(p->wake_at, enough);
        (void)cond_wait_for(&f->moved, &f->lock, WAIT_NS);
    }
    (void)quit_watch(watched);
    if (given_up)
        give_up_locked(f, p);
    int r = given_up ? canceled(e) : part_result_locked(f, p, offset, e);
    fill_part_unref_locked(p);
    return r;
}

/* The part at offset, with fill->lock held: as wait_step. */
static int wait_step_locked(struct fill *f, struct part *p, uint64_t offset, uint64_t n, unsigned how,
                            struct arena *a, struct fill_bytes *ret, struct err *e)
{
    uint64_t least = how & FILL_CHECKED ? enough_locked(f, p, offset, n, how) : offset + 1;
    if (p->have < least) {
        ret->waited = true;
        return wait_part_locked(f, p, offset, n, how, e);
    }
    if (p->memory) {
        take_memory_locked(p, offset, n, a, ret);
        return 1;
    }
    if (how & FILL_CHECKED) { /* a later look finds the block present, or the part gone */
        ret->waited = true;
        (void)cond_wait_for(&f->moved, &f->lock, CHECKED_WAIT_NS);
        return 0;
    }
    ret->available = MIN(n, p->have - offset);
    return 1;
}

/* Nothing was there, nothing is on its way and nothing could be asked for: the disk and our view of it differ
 * for a moment. Rather late than in a busy loop. */
static void pause_between_looks(struct fill *f)
{
    LOCK_SCOPE(&f->lock);
    (void)cond_wait_for(&f->moved, &f->lock, CHECKED_WAIT_NS);
}

/* The part of all that is missing of an object of one block, for who runs it; NULL: it has come, or is on its
 * way. */
static struct part *part_to_run(struct fill *f, bool urgent)
{
    struct plan_range gap;
    uint64_t at = 0;
    if (!next_gap(f, &at, f->size, &gap))
        return NULL;
    LOCK_SCOPE(&f->lock);
    if (f->broken != 0 || f->no_extent || part_at_locked(f, gap.offset))
        return NULL;
    struct part *p = part_new_locked(f, gap, urgent);
    p->whole = true;
    p->refs++;
    return p;
}

/* What is waited for is the origin, as in wait_part_locked. */
static void run_watched(struct fill *f, struct fill_lane *lane, struct part *p)
{
    const _Atomic uint64_t *watched = quit_watch(&f->upstream->places->life_ms);
    fill_engine_run(f->engine, lane, p);
    (void)quit_watch(watched);
}

/* Who waits for all of an object of one block runs its part himself, where it may begin at once: no thread
 * has to be woken for it and to wake him again, which is a tenth of what a small file costs. Whether it was
 * run; *ret_result: what it came to. */
static bool run_here(struct fill *f, uint64_t offset, bool urgent, int *ret_result, struct err *e)
{
    if (f->size > STORE_BLOCK_BYTES || fill_is_uncached(f))
        return false;
    struct fill_lane *lane = fill_engine_enter(f->engine, f->upstream, urgent);
    if (!lane)
        return false;
    struct part *p = part_to_run(f, urgent);
    if (!p) {
        fill_engine_step_back(f->engine, lane, f->upstream);
        return false;
    }
    run_watched(f, lane, p);
    LOCK_SCOPE(&f->lock);
    *ret_result = part_result_locked(f, p, offset, e);
    fill_part_unref_locked(p);
    return true;
}

/* One look: 1 when ret is filled, 0 to look again, or an error. */
static int wait_step(struct fill *f, uint64_t offset, uint64_t n, unsigned how, struct arena *a,
                     struct fill_bytes *ret, struct err *e)
{
    if (f->extent) {
        ret->available = extent_present_run(f->extent, offset, n);
        if (ret->available > 0)
            return 1;
    }
    lock_take(&f->lock);
    struct part *p = part_at_locked(f, offset);
    int r = p ? wait_step_locked(f, p, offset, n, how, a, ret, e) : f->broken ? fill_error_locked(f, e) : 0;
    lock_drop(&f->lock);
    if (!p && r == 0) {
        ret->waited = true;
        if (how & (FILL_PATIENT | FILL_WHOLE) && run_here(f, offset, !(how & FILL_PATIENT), &r, e))
            return r;
        fill_want(f, (struct plan_range){offset, offset + MIN(n, PLAN_PART_BYTES)},
                  /* urgent= */ !(how & FILL_PATIENT));
    }
    return r;
}

int fill_wait(struct fill *f, uint64_t offset, uint64_t n, unsigned how, struct arena *a,
              struct fill_bytes *ret, struct err *e)
{
    assert(f->magic == FILL_MAGIC && f->known && offset < f->size && n > 0);
    struct fill_bytes got = {0};
    for (unsigned looks = 0;; looks++) {
        if (looks > LOOKS_MAX)
            pause_between_looks(f);
        if (fill_engine_stopping(f->engine))
            return err_set(e, ERR_CLOSED, "the node is stopping");
        if (quit_is_now() || upstream_is_stopped(f->upstream)) /* which ends each part that is asked for */
            return canceled(e);
        int r = wait_step(f, offset, MIN(n, f->size - offset), how, a, &got, e);
        if (r < 0)
            return r;
        if (r > 0)
            break;
    }
    *ret = got;
    return 0;
}

int fill_wait_all(struct fill *f, struct err *e)
{
    assert(f->extent);
    _cleanup_(arena_freep) struct arena *a = arena_new(2 * FILL_INLINE_MAX_BYTES);
    for (uint64_t at = 0; at < f->size;) {
        struct fill_bytes got = {0};
        int r = fill_wait(f, at, f->size - at, FILL_CHECKED | FILL_WHOLE, a, &got, e);
        if (r < 0)
            return r;
        at += got.available ? got.available : got.data.n;
        arena_clear(a);
    }
    return 0;
}

/* ---- discovery ---- */

static bool is_discovering_locked(const struct fill *f, const struct part *p)
{
    return !f->known && (p->state == PART_QUEUED || p->state == PART_RUNNING);
}

/* One that runs ends soon, and is waited for: it may be calling what the caller gave it. */
static void give_up_discovery_locked(struct fill *f, struct part *p)
{
    struct err why = {0};
    give_up_part_locked(p);
    lock_drop(&f->lock);
    bool is_mine = fill_engine_withdraw(f->engine, p);
    lock_take(&f->lock);
    if (!is_mine)
        return;
    fill_fail_part_locked(p, canceled(&why), &why);
    fill_part_unref_locked(p); /* the queue's, and what that held of the fill: */
    assert(f->refs > 1);
    f->refs--;
}

static struct part *discovering_part(struct fill *f, struct plan_range first, bool whole)
{
    LOCK_SCOPE(&f->lock);
    struct part *p = part_new_locked(f, first, /* urgent= */ true);
    p->discover = true;
    p->whole = whole;
    p->refs++;
    return p;
}

/* What it came to, with fill->lock held: where its bytes are waited for, too, they have to be there, or on
 * their way to memory. */
static int discovered_locked(const struct fill *f, const struct part *p)
{
    bool is_failed = p->state == PART_FAILED && p->result != ERR_NOT_ADMITTED;
    return f->known && !(p->whole && is_failed) ? 0 : p->result;
}

static int discover(struct fill_engine *g, struct upstream *u, struct slice key, struct plan_range first,
                    bool whole, fill_admit_fn admit, void *arg, struct arena *a, struct attr *ret_attr,
                    struct fill **ret, struct err *e)
{
    _cleanup_(fill_unrefp) struct fill *f = fill_new(g, u, key, NULL, SLICE_NULL, UINT64_MAX, hash_mix(1, 2));
    f->admit = admit;
    f->admit_arg = arg;
    struct fill_lane *lane = whole ? fill_engine_enter(g, u, /* urgent= */ true) : NULL;
    struct part *p = discovering_part(f, first, whole);
    if (lane)
        run_watched(f, lane, p);
    else
        fill_engine_queue(g, p);

    lock_take(&f->lock);
    while (is_discovering_locked(f, p)) {
        if (quit_is_now() && !atomic_load(&p->given_up))
            give_up_discovery_locked(f, p);
        else
            (void)cond_wait_for(&f->moved, &f->lock, WAIT_NS);
    }
    int r = discovered_locked(f, p);
    if (r < 0 && e)
        *e = p->err;
    if (r < 0 && atomic_load(&p->given_up))
        r = canceled(e);
    fill_part_unref_locked(p);
    if (r == 0) {
        *ret_attr = *f->learned;
        ret_attr->etag = arena_dup(a, f->learned->etag);
        ret_attr->content_type = arena_dup(a, f->learned->content_type);
        ret_attr->meta = arena_dup(a, f->learned->meta);
    }
    lock_drop(&f->lock);
    if (r < 0)
        return r;
    *ret = TAKE_PTR(f);
    return 0;
}

int fill_discover(struct fill_engine *g, struct upstream *u, struct slice key, struct plan_range first,
                  bool whole, fill_admit_fn admit, void *arg, struct arena *a, struct attr *ret_attr,
                  struct fill **ret, struct err *e)
{
    struct quit_deaf deaf = {0};
    /* Whoever runs it is waited for, and may not be able to end. */
    const _Atomic uint64_t *watched = quit_watch(&u->places->life_ms);
    bool given_up = u->origin->ops->is_deaf && quit_deaf_begin(&deaf) == QUIT_NOW;
    (void)quit_watch(watched);
    if (given_up)
        return canceled(e);
    int r = discover(g, u, key, first, whole, admit, arg, a, ret_attr, ret, e);
    quit_deaf_end(&deaf);
    return r;
}
