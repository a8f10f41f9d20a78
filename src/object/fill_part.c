/*
 * One part: a request to the origin whose bytes go to the extent or to memory, retried where it broke off.
 *
 * Invariants:
 *  1. Only the attempt that brought the first byte (owner) writes; the other one is cancelled.
 *  2. A retry goes on at the first byte that is not there yet; with the version pinned, so it never mixes.
 *  3. `have` moves only after the bytes below it are in the file or in memory.
 *  4. No request is for no bytes: where all came and it failed all the same, the version is asked for.
 *
 * Failure modes: the origin's object changed: the part and the fill fail with ERR_VERSION_CHANGED. The disk
 * is full or failing: the fill goes on in memory (no_extent) and the part ends with ERR_NOT_ADMITTED, which
 * sends its waiters back to ask again.
 */
#include "object/fill_internal.h"

#include "base/metrics.h"
#include "base/often.h"
#include "base/sys.h"

#include <inttypes.h>

#define ATTEMPT_ARENA_BYTES (256 * KIB)
#define MEMORY_WAIT_MS      100 /* between two looks for memory that can be freed */
#define MEMORY_WAITS        600

struct attempt {
    struct part *part;
    int number;
    bool begun; /* its first byte came and it owns the part */
};

/* ---- what the first byte of a response settles ---- */

static void learn_store_locked(struct fill *f, const struct attr *attr)
{
    f->learned_arena = arena_new(ATTEMPT_ARENA_BYTES);
    f->learned = arena_zalloc(f->learned_arena, sizeof(*f->learned));
    *f->learned = *attr;
    f->learned->etag = arena_dup(f->learned_arena, attr->etag);
    f->learned->content_type = arena_dup(f->learned_arena, attr->content_type);
    f->learned->meta = arena_dup(f->learned_arena, attr->meta);
    f->size = attr->size_bytes;
    size_t n = MIN(attr->etag.n, (size_t)ORIGIN_ETAG_MAX);
    if (n > 0)
        memcpy(f->etag, attr->etag.p, n);
    f->etag[n] = '\0';
}

/* Attributes of an unknown object have arrived. */
static int learn(struct part *p, const struct origin_attr *o, struct err *e)
{
    struct fill *f = p->fill;
    if (o->etag.n > ORIGIN_ETAG_MAX)
        return err_set(e, ERR_ORIGIN_REFUSED, "the origin's ETag is longer than %d bytes", ORIGIN_ETAG_MAX);
    if (o->size_bytes > STORE_SIZE_MAX_BYTES || o->size_bytes < p->offset)
        return err_set(e, ERR_ORIGIN_REFUSED, "the origin says the object has %" PRIu64 " bytes",
                       o->size_bytes);
    bool has_meta = !(f->upstream->origin->capabilities & ORIGIN_BYTES_ALONE);
    struct attr attr = attr_of_origin(o, has_meta, sys->real_ns());
    struct extent *x = NULL;
    int r = f->admit(f->admit_arg, &attr, &x, e);
    if (r < 0)
        return r;
    uint64_t hash =
        x ? fill_hash_extent(x)
          : fill_hash_uncached(f->upstream, slice_of(f->key, f->key_n), attr.etag, attr.size_bytes);
    lock_take(&f->lock);
    f->extent = x;
    f->no_extent = !x;
    learn_store_locked(f, &attr);
    p->end = MIN(p->end, f->size);
    lock_drop(&f->lock);
    fill_engine_publish(f->engine, f, hash);
    lock_take(&f->lock);
    f->known = true; /* only now may a reader look for parts */
    lock_drop(&f->lock);
    cond_broadcast(&f->moved);
    return 0;
}

static int check_same_version(struct fill *f, const struct origin_attr *o, struct err *e)
{
    bool same = o->size_bytes == f->size && (o->etag.n == 0 || !*f->etag || slice_eq_str(o->etag, f->etag));
    if (same)
        return 0;
    return err_set(e, ERR_PRECONDITION,
                   "the origin answered with another version: ETag " SLICE_FMT ", %" PRIu64 " bytes",
                   SLICE_ARG(o->etag), o->size_bytes);
}

struct memory_wait {
    struct fill_engine *engine;
    unsigned looks;
};

static bool look_for_memory(void *arg)
{
    struct memory_wait *w = arg;
    fill_engine_reclaim(w->engine);
    return w->looks++ < MEMORY_WAITS && !fill_engine_stopping(w->engine);
}

/* Waits for memory, in the order of arrival; what others hold and can do without is freed for it. Who has not
 * asked the origin yet lets others do that meanwhile. */
static int wait_for_memory(struct part *p, uint64_t n, bool has_asked)
{
    struct memory_wait w = {.engine = p->fill->engine};
    struct upstream *u = p->fill->upstream;
    if (budget_total(w.engine->budget) < n)
        return -ENOMEM;
    if (!has_asked)
        upstream_step_back(u);
    int r = budget_take_asking(w.engine->budget, n, MEMORY_WAIT_MS, look_for_memory, &w);
    if (!has_asked)
        upstream_enter(u);
    return r;
}

static int take_memory(struct part *p, bool has_asked, struct err *e)
{
    struct fill *f = p->fill;
    uint64_t n = p->end - p->offset;
    bool urgent = atomic_load(&p->urgent);
    lock_take(&f->lock);
    bool room = fill_drop_memory_locked(f, n, p, urgent ? FILL_DROP_ALL : FILL_DROP_READ) || urgent;
    bool awaited = urgent || p->refs > FILL_PART_OWN_REFS;
    lock_drop(&f->lock);
    struct budget *b = f->engine->budget;
    /* Readahead leaves half of the memory to those who wait. */
    bool may_take = room && (urgent || budget_used(b) + n <= budget_total(b) / 2);
    int r = may_take ? budget_try(b, n) : -ENOMEM;
    if (r < 0 && awaited) /* patiently too: what others hold and do not use would be held for ever */
        r = wait_for_memory(p, n, has_asked);
    if (r < 0)
        return err_set(e, urgent ? -ENOMEM : ERR_NOT_ADMITTED, "no memory left for reading around the cache");
    char *memory = malloc(n);
    assert(memory);
    LOCK_SCOPE(&f->lock);
    p->memory = memory;
    f->memory_bytes += n;
    fill_count_memory_locked(p);
    return 0;
}

static int take_place(struct part *p, bool has_asked, struct err *e)
{
    struct fill *f = p->fill;
    if (p->writer || p->memory)
        return 0;
    if (fill_is_uncached(f))
        return take_memory(p, has_asked, e);
    p->writer = extent_writer_new(f->extent, p->offset);
    p->step = atomic_load(&p->urgent) && !p->whole ? PART_FIRST_BYTES : PART_BUFFER_BYTES;
    p->flush_at = p->step;
    uint64_t n = MIN(p->end - p->offset, (uint64_t)PART_BUFFER_BYTES);
    if (n > PART_FIRST_BYTES && budget_try(f->engine->budget, n) == 0) {
        p->buffer = malloc(n);
        assert(p->buffer);
        p->buffer_bytes = n;
    }
    return 0;
}

static int begin(struct attempt *t, const struct origin_attr *o, struct err *e)
{
    struct part *p = t->part;
    int nobody = -1;
    if (!atomic_compare_exchange_strong(&p->owner, &nobody, t->number) && nobody != t->number)
        return -ECANCELED;
    atomic_store(&p->cancel[1 - t->number], true);
    struct fill *f = p->fill;
    uint64_t waited_ns = sys->mono_ns() - atomic_load(&p->asked_ns);
    metrics_observe_ns(
        metrics_series(METRIC_ORIGIN_FIRST_BYTE_SECONDS, f->upstream->bucket->name, NULL, NULL), waited_ns);
    int r = f->known ? check_same_version(f, o, e) : learn(p, o, e);
    if (r == 0)
        r = take_place(p, /* has_asked= */ true, e);
    t->begun = r == 0;
    return r;
}

/* ---- bytes ---- */

/* The disk does not take the bytes: the fill goes on without it. */
static int disk_failed(struct part *p, int result, struct err *e)
{
    struct fill *f = p->fill;
    lock_take(&f->lock);
    bool first = !f->no_extent;
    f->no_extent = true;
    lock_drop(&f->lock);
    if (first) {
        log_often("fill", "%s/%s: %s: served without caching", f->upstream->bucket->name, f->key,
                  err_text(result));
        metrics_count(METRIC_NOT_ADMITTED, err_name(result), NULL, NULL);
    }
    return err_set(e, ERR_NOT_ADMITTED, "cache: %s", err_text(result));
}

static void advance(struct part *p, size_t n)
{
    struct fill *f = p->fill;
    upstream_lives(f->upstream);
    lock_take(&f->lock);
    p->have += n;
    bool wake = p->have >= p->wake_at;
    if (wake)
        p->wake_at = UINT64_MAX; /* who is not content says so again */
    lock_drop(&f->lock);
    if (wake)
        cond_broadcast(&f->moved);
}

static int write_through(struct part *p, const void *bytes, size_t n, struct err *e)
{
    int r = extent_writer_append(p->writer, bytes, n);
    if (r < 0)
        return disk_failed(p, r, e);
    advance(p, n);
    return 0;
}

static int flush(struct part *p, struct err *e)
{
    size_t n = p->buffered;
    p->buffered = 0;
    int r = n > 0 ? write_through(p, p->buffer, n, e) : 0;
    p->step = MIN(p->step * 2, PART_BUFFER_BYTES);
    p->flush_at = MIN(p->step, STORE_BLOCK_BYTES - p->have % STORE_BLOCK_BYTES);
    return r;
}

static int gather(struct part *p, const char *bytes, size_t n, struct err *e)
{
    while (n > 0) {
        size_t piece = MIN(n, p->flush_at - p->buffered);
        memcpy(p->buffer + p->buffered, bytes, piece);
        p->buffered += piece;
        bytes += piece;
        n -= piece;
        int r = p->buffered == p->flush_at ? flush(p, e) : 0;
        if (r < 0)
            return r;
    }
    return 0;
}

static int append(struct part *p, const void *bytes, size_t n, struct err *e)
{
    if (n > p->end - p->have - p->buffered)
        return err_set(e, ERR_ORIGIN_SHORT, "the origin sent more bytes than it was asked for");
    if (p->memory) {
        memcpy(p->memory + (p->have - p->offset), bytes, n);
        advance(p, n);
        return 0;
    }
    return p->buffer ? gather(p, bytes, n, e) : write_through(p, bytes, n, e);
}

struct sink {
    struct attempt *attempt;
    struct err *err;
};

static int on_body(void *arg, const struct origin_attr *attr, const void *bytes, size_t n)
{
    struct sink *s = arg;
    struct attempt *t = s->attempt;
    if (!t->begun) {
        int r = begin(t, attr, s->err);
        if (r < 0)
            return r;
    }
    return n == 0 ? 0 : append(t->part, bytes, n, s->err);
}

/* ---- attempts ---- */

static int run_attempt(struct part *p, int number, struct err *e)
{
    struct fill *f = p->fill;
    char etag[ORIGIN_ETAG_MAX + 1] = "";
    lock_take(&f->lock); /* the other attempt may be learning them right now */
    if (f->known)
        memcpy(etag, f->etag, sizeof(etag));
    lock_drop(&f->lock);
    struct attempt t = {.part = p, .number = number};
    struct err sink_err = {0};
    struct sink s = {&t, &sink_err};
    _cleanup_(arena_freep) struct arena *a = arena_new(ATTEMPT_ARENA_BYTES);
    struct origin_get g = {
        .key = slice_of(f->key, f->key_n),
        .offset = p->try_from,
        .n = p->try_end - p->try_from,
        .if_match = slice_str(etag),
        .cancel = &p->cancel[number],
    };
    struct origin_attr attr;
    int r = upstream_get_once(f->upstream, &g, a, &attr, on_body, &s, e);
    if (r < 0 && sink_err.code != 0 && e)
        *e = sink_err;
    /* What came before an error is kept too: the next try goes on behind it. */
    int flushed = t.begun ? flush(p, r == 0 ? e : NULL) : 0;
    return r == 0 ? flushed : r;
}

void fill_part_run_hedge(struct part *p)
{
    p->hedge_result = run_attempt(p, 1, &p->hedge_err);
    upstream_leave(p->fill->upstream, p->hedge_result == -ECANCELED ? 0 : p->hedge_result);
}

/* One try with its hedge: 0 when all bytes are there. */
static int run_try(struct part *p, struct err *e)
{
    struct fill *f = p->fill;
    atomic_store(&p->owner, -1);
    atomic_store(&p->cancel[0], false);
    atomic_store(&p->cancel[1], false);
    /* It may have been cancelled just before the flags were cleared. */
    if (fill_engine_stopping(f->engine) || atomic_load(&p->given_up))
        atomic_store(&p->cancel[0], true);
    p->try_from = p->have;
    p->try_end = p->end;
    atomic_store(&p->asked_ns, sys->mono_ns());
    int r = run_attempt(p, 0, e);
    upstream_leave(f->upstream, r == -ECANCELED ? 0 : r);
    atomic_store(&p->asked_ns, 0);
    if (r == -ECANCELED && quit_is_now()) /* this thread's own: its hedge, if any, has another one */
        atomic_store(&p->cancel[1], true);
    bool hedged = fill_engine_join_hedge(f->engine, p);
    if (hedged && atomic_load(&p->owner) == 1) {
        r = p->hedge_result;
        if (r < 0)
            *e = p->hedge_err;
    }
    if (r == 0 && p->have < p->end)
        r = err_set(e, ERR_ORIGIN_SHORT, "the origin sent %" PRIu64 " bytes fewer than announced",
                    p->end - p->have);
    return r;
}

/* All bytes came, and then the request failed: the origin looks at the end whether they are of one version.
 * What it does not confirm counts as changed. */
static int confirm_version(struct part *p, struct err *e)
{
    struct fill *f = p->fill;
    _cleanup_(arena_freep) struct arena *a = arena_new(ATTEMPT_ARENA_BYTES);
    struct origin_attr now;
    struct err local = {0};
    int r = upstream_head(f->upstream, slice_of(f->key, f->key_n), slice_str(f->etag), a, &now, &local);
    if (r == 0)
        r = check_same_version(f, &now, &local);
    return r == 0 ? 0 : err_set(e, ERR_PRECONDITION, "%s", local.text);
}

/* What a failure means for the version that is being filled. */
static int classify(struct part *p, int r, struct err *e)
{
    struct fill *f = p->fill;
    if (!f->known)
        return r;
    if (r != ERR_PRECONDITION && r != -ENOENT && r != ERR_RANGE)
        return r;
    f->engine->on_changed(f->engine->on_changed_arg, f->upstream, slice_of(f->key, f->key_n), f->extent);
    return err_set(e, ERR_VERSION_CHANGED, "the origin's object changed while it was read (ETag was %s)",
                   f->etag);
}

static void end_part(struct part *p, int r, const struct err *e)
{
    struct fill *f = p->fill;
    fill_engine_forget_running(f->engine, p);
    if (f->engine->on_fetched && p->have > p->offset)
        f->engine->on_fetched(f->engine->on_changed_arg, f->upstream, slice_of(f->key, f->key_n),
                              p->have - p->offset);
    extent_writer_free(p->writer);
    p->writer = NULL;
    if (p->buffer)
        budget_give(f->engine->budget, p->buffer_bytes);
    free(p->buffer);
    p->buffer = NULL;
    p->buffer_bytes = 0;
    lock_take(&f->lock);
    if (r < 0) {
        fill_fail_part_locked(p, r, e);
    } else {
        p->state = PART_DONE;
        fill_part_done_locked(p);
    }
    fill_part_unref_locked(p);
    lock_drop(&f->lock);
    cond_broadcast(&f->moved);
    fill_unref(f);
}

/* Nobody waits for it, and nobody has the file open any more: unfinished parts alone hold the fill. */
static bool is_forsaken_locked(struct part *p)
{
    unsigned unfinished = 0;
    lock_assert_held(&p->fill->lock);
    for (const struct part *x = p->fill->parts; x; x = x->next)
        unfinished += x->state == PART_QUEUED || x->state == PART_RUNNING;
    return !atomic_load(&p->urgent) && p->fill->refs == unfinished;
}

void fill_part_run(struct part *p)
{
    struct fill *f = p->fill;
    uint64_t least_rate = f->upstream->bucket->p.origin_options.min_rate;
    struct retry retry = upstream_patient_since(f->upstream, p->queued_ms);
    struct err e = {0};
    int r;
    lock_take(&f->lock);
    p->state = PART_RUNNING;
    r = f->broken;
    bool forsaken = r == 0 && (is_forsaken_locked(p) || atomic_load(&p->given_up));
    lock_drop(&f->lock);
    if (forsaken) { /* who opens it just now looks again */
        upstream_step_back(f->upstream);
        r = err_set(&e, ERR_NOT_ADMITTED, "nobody reads it any more");
        end_part(p, r, &e);
        return;
    }
    if (r < 0) {
        upstream_step_back(f->upstream);
        (void)err_set(&e, r, "the origin's object changed while it was read (ETag was %s)", f->etag);
        end_part(p, r, &e);
        return;
    }
    /* Memory first: an answer that there is no room for would come for nothing, and again for who asks next.
     */
    if (f->known && fill_is_uncached(f))
        r = take_place(p, /* has_asked= */ false, &e);
    if (r < 0) {
        upstream_step_back(f->upstream);
        end_part(p, r, &e);
        return;
    }
    for (;;) {
        uint64_t before = p->have, began_ms = sys_mono_ms();
        r = run_try(p, &e);
        if (r == 0 || fill_engine_stopping(f->engine) || atomic_load(&p->given_up))
            break;
        if (f->known && p->have == p->end && retry_is_transient(r)) {
            r = confirm_version(p, &e);
            break;
        }
        if (retry_gets_on(p->have - before, sys_mono_ms() - began_ms, least_rate))
            retry = (struct retry){.started_ms = sys_mono_ms()};
        if (!upstream_try_again(f->upstream, &retry, r, &f->engine->cancel))
            break;
        upstream_enter_again(f->upstream, &p->urgent);
    }
    if (r < 0)
        r = classify(p, r, &e);
    end_part(p, r, &e);
}
