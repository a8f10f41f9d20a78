/*
 * The queue of pages.h: in memory, bounded.
 *
 * Invariants:
 *  1. What is taken is the listing from its beginning, without a gap: after a page that did not fit none is
 *     kept.
 *  2. Who takes waits for nobody but who puts, and pages_end is always called.
 */
#include "jobs/pages.h"

#include "base/lock.h"

struct pages {
    struct lock lock; /* covers what follows */
    struct cond there;
    struct page *first, **end;
    size_t bytes, max_bytes;
    bool overflowed, ended;
};

struct pages *pages_new(size_t max_bytes)
{
    struct pages *p = calloc(1, sizeof(*p));
    assert(p);
    p->max_bytes = max_bytes;
    p->end = &p->first;
    lock_init(&p->lock, LOCK_LEAF);
    cond_init(&p->there);
    return p;
}

void pages_free(struct pages *p)
{
    if (!p)
        return;
    while (p->first) {
        struct page *one = p->first;
        p->first = one->next;
        free(one);
    }
    cond_fini(&p->there);
    lock_fini(&p->lock);
    free(p);
}

void pages_put(struct pages *p, struct slice page, struct slice after, bool last)
{
    LOCK_SCOPE(&p->lock);
    size_t n = sizeof(struct page) + page.n + after.n;
    p->overflowed = p->overflowed || n > p->max_bytes - p->bytes;
    if (!p->overflowed) {
        struct page *one = malloc(n);
        assert(one);
        *one = (struct page){.page_n = page.n, .after_n = after.n, .last = last};
        if (page.n > 0)
            memcpy(one->bytes, page.p, page.n);
        if (after.n > 0)
            memcpy(one->bytes + page.n, after.p, after.n);
        p->bytes += n;
        *p->end = one;
        p->end = &one->next;
    }
    cond_signal(&p->there);
}

void pages_end(struct pages *p)
{
    LOCK_SCOPE(&p->lock);
    p->ended = true;
    cond_signal(&p->there);
}

static bool is_ready_locked(const struct pages *p)
{
    return p->first || p->overflowed || p->ended;
}

bool pages_wait(struct pages *p, uint64_t timeout_ns)
{
    LOCK_SCOPE(&p->lock);
    if (!is_ready_locked(p))
        (void)cond_wait_for(&p->there, &p->lock, timeout_ns);
    return is_ready_locked(p);
}

enum pages_took pages_take(struct pages *p, struct page **ret)
{
    LOCK_SCOPE(&p->lock);
    while (!is_ready_locked(p))
        cond_wait(&p->there, &p->lock);
    struct page *one = p->first;
    if (!one)
        return p->overflowed ? PAGES_ALONE : PAGES_END;
    p->first = one->next;
    if (!p->first)
        p->end = &p->first;
    one->next = NULL;
    p->bytes -= sizeof(*one) + one->page_n + one->after_n;
    *ret = one;
    return PAGES_ONE;
}
