/*
 * Reading ahead (contract in ahead.h).
 *
 * Invariants:
 *  1. Bytes of the file are looked at only once they are here, and parsed without a lock; what was made of
 * them counts only when the plan still asks for the same.
 *  2. `taken` is the plan's memory, and given back with it.
 *
 * Failure modes: bytes that cannot be read, or no memory to look at them: no layout, and nobody is told.
 */
#include "object/ahead.h"

#include "base/metrics.h"
#include "base/sys.h"

#define LOOKS_AT_ONCE 3 /* what the name says, the length, the directory */

void ahead_init(struct ahead *a, struct budget *budget, const char *bucket, struct slice name, uint64_t size)
{
    *a = (struct ahead){.budget = budget, .bucket = bucket, .name = name, .size = size};
    lock_init(&a->lock, LOCK_READER);
}

void ahead_fini(struct ahead *a)
{
    plan_free(a->plan);
    if (a->taken > 0)
        budget_give(a->budget, a->taken);
    lock_fini(&a->lock);
}

/* ---- memory ---- */

/* Whether there is a plan. */
static bool has_plan(struct ahead *a, uint64_t offset)
{
    LOCK_SCOPE(&a->lock);
    if (a->plan)
        return true;
    struct plan *p = plan_new(a->name, a->size, offset);
    uint64_t n = plan_bytes(p);
    if (budget_try(a->budget, n) < 0) {
        plan_free(p);
        return false;
    }
    a->plan = p;
    a->taken = n;
    return true;
}

/* The plan takes the layout over when there is memory for it. */
static bool learn(struct ahead *a, const struct layout_look *seen, const struct layout_look *next,
                  struct layout **layout)
{
    LOCK_SCOPE(&a->lock);
    uint64_t n = *layout ? plan_layout_bytes(*layout) : 0;
    if (n > 0 && budget_try(a->budget, n) < 0) {
        layout_free(TAKE_PTR(*layout));
        n = 0;
    }
    bool is_new = plan_learn(a->plan, seen, next, layout);
    if (*layout && n > 0) /* not taken over */
        budget_give(a->budget, n);
    else
        a->taken += n;
    return is_new;
}

/* ---- looking ---- */

static int see(struct ahead *a, struct extent *x, struct layout_look *look, struct layout **ret)
{
    uint64_t n = look->n;
    if (budget_try(a->budget, n) < 0)
        return -ENOMEM;
    _cleanup_free_ char *bytes = malloc(n);
    assert(bytes);
    int fd = extent_use(x);
    int r = fd < 0 ? fd : sys_pread_all(fd, bytes, n, look->offset);
    if (fd >= 0)
        extent_leave(x);
    if (r >= 0)
        layout_see(look, slice_of(bytes, n), a->size, ret);
    budget_give(a->budget, n);
    return r;
}

/* Whether the plan moved on. */
static bool look_once(struct ahead *a, struct extent *x)
{
    lock_take(&a->lock);
    const struct layout_look look = plan_look(a->plan);
    lock_drop(&a->lock);
    if (look.n == 0 || extent_present_run(x, look.offset, look.n) < look.n)
        return false;
    struct layout_look next = look;
    _cleanup_(layout_freep) struct layout *layout = NULL;
    if (see(a, x, &next, &layout) < 0)
        next = (struct layout_look){.kind = look.kind}; /* no further look */
    return learn(a, &look, &next, &layout);
}

/* ---- reading ---- */

static void count_patterns(struct ahead *a, unsigned patterns)
{
    lock_take(&a->lock);
    unsigned fresh = patterns & ~a->counted;
    a->counted |= patterns;
    lock_drop(&a->lock);
    for (unsigned i = 0; i < PLAN_PATTERN_COUNT; i++)
        if (fresh >> i & 1)
            metrics_count(METRIC_READ_PATTERNS, a->bucket, plan_pattern_name((enum plan_pattern)i), NULL);
}

static void plan_it(struct ahead *a, struct extent *x, struct plan_ask *q, struct plan_wants *ret)
{
    uint64_t n;
    q->present_bytes = x ? extent_present_bytes(x) : 0;
    lock_take(&a->lock);
    bool is_whole = plan_is_whole(a->plan, q->present_bytes);
    lock_drop(&a->lock);
    if (!x || !is_whole || extent_next_missing(x, 0, &q->missing_at, &n) < 0)
        q->missing_at = UINT64_MAX;
    lock_take(&a->lock);
    plan_read(a->plan, q, ret);
    unsigned patterns = plan_patterns(a->plan);
    bool is_news = patterns & ~a->counted;
    lock_drop(&a->lock);
    if (is_news)
        count_patterns(a, patterns);
}

void ahead_read(struct ahead *a, struct fill *f, uint64_t offset, uint64_t n, uint64_t max_window,
                bool urgent)
{
    if (a->size <= PLAN_SMALL_BYTES || !has_plan(a, offset)) {
        fill_want(f, plan_alone(offset, n, a->size), urgent);
        return;
    }
    struct extent *x = fill_is_uncached(f) ? NULL : fill_extent(f);
    for (int i = 0; x && i < LOOKS_AT_ONCE && look_once(a, x); i++)
        ;
    struct plan_ask q = {.offset = offset, .n = n, .max_window = max_window};
    struct plan_wants w;
    plan_it(a, x, &q, &w);
    /* Around the cache bytes go to a little memory, which is for what is read next. */
    unsigned ranges = x ? w.n : 1;
    for (unsigned i = 0; i < ranges; i++)
        fill_want(f, w.range[i], urgent && i == 0);
}
