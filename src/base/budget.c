/*
 * The memory budget: a counter with a queue.
 *
 * Invariants (all under `lock`):
 *  1. used <= total.
 *  2. Waiters are served in the order of their arrival, and nobody overtakes them, budget_try included:
 * otherwise a stream of small takers would starve a large one for ever.
 *  3. The waiter at the head does not fit; whoever changes `used` or the queue calls serve_locked.
 *
 * Failure modes: -ENOMEM, -ETIMEDOUT as budget.h says. Giving more than was taken aborts.
 */
#include "base/budget.h"

#include <errno.h>
#include <time.h>

#define BUDGET_MAGIC 0x42554447u

struct waiter { /* on the stack of the thread that waits */
    struct waiter *next;
    struct cond cond;
    uint64_t n;
    bool granted;
};

struct budget {
    uint32_t magic;
    uint64_t total;
    struct lock lock; /* covers all below */
    uint64_t used;
    struct waiter *head, **tail;
};

struct budget *budget_new(uint64_t total_bytes)
{
    struct budget *b = calloc(1, sizeof(*b));
    if (!b)
        abort();
    b->magic = BUDGET_MAGIC;
    b->total = total_bytes;
    b->tail = &b->head;
    lock_init(&b->lock, LOCK_BUDGET);
    return b;
}

void budget_free(struct budget *b)
{
    if (!b)
        return;
    assert(b->magic == BUDGET_MAGIC && !b->head);
    lock_fini(&b->lock);
    b->magic = 0;
    free(b);
}

static bool fits(const struct budget *b, uint64_t n)
{
    return n <= b->total - b->used;
}

static void serve_locked(struct budget *b)
{
    lock_assert_held(&b->lock);
    while (b->head && fits(b, b->head->n)) {
        struct waiter *w = b->head;
        b->head = w->next;
        if (!b->head)
            b->tail = &b->head;
        b->used += w->n;
        w->granted = true;
        cond_signal(&w->cond);
    }
}

static void leave_locked(struct budget *b, struct waiter *gone)
{
    lock_assert_held(&b->lock);
    for (struct waiter **at = &b->head; *at; at = &(*at)->next) {
        if (*at == gone) {
            *at = gone->next;
            if (b->tail == &gone->next)
                b->tail = at;
            break;
        }
    }
    serve_locked(b);
}

int budget_try(struct budget *b, uint64_t n)
{
    assert(b->magic == BUDGET_MAGIC);
    LOCK_SCOPE(&b->lock);
    if (b->head || !fits(b, n))
        return -ENOMEM;
    b->used += n;
    return 0;
}

static uint64_t real_now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Takes n bytes at once, or puts the waiter at the end of the queue. */
static void enter_locked(struct budget *b, struct waiter *w)
{
    cond_init(&w->cond);
    if (!b->head && fits(b, w->n)) {
        b->used += w->n;
        w->granted = true;
        return;
    }
    *b->tail = w;
    b->tail = &w->next;
}

static void wait_locked(struct budget *b, struct waiter *w, uint64_t timeout_ms)
{
    /* The real clock, as cond_wait_for: a test that moves the clock table must not stretch a real wait. */
    uint64_t now = real_now_ns(), until = now + MIN(timeout_ms, UINT64_MAX / 4000000) * 1000000;
    while (!w->granted && now < until) {
        (void)cond_wait_for(&w->cond, &b->lock, until - now);
        now = real_now_ns();
    }
}

static int end_locked(struct budget *b, struct waiter *w)
{
    if (!w->granted)
        leave_locked(b, w);
    cond_fini(&w->cond);
    return w->granted ? 0 : -ETIMEDOUT;
}

int budget_take(struct budget *b, uint64_t n, uint64_t timeout_ms)
{
    assert(b->magic == BUDGET_MAGIC);
    if (n > b->total)
        return -ENOMEM;
    LOCK_SCOPE(&b->lock);
    struct waiter w = {.n = n};
    enter_locked(b, &w);
    wait_locked(b, &w, timeout_ms);
    return end_locked(b, &w);
}

int budget_take_asking(struct budget *b, uint64_t n, uint64_t step_ms, bool (*ask)(void *arg), void *arg)
{
    assert(b->magic == BUDGET_MAGIC && step_ms > 0);
    if (n > b->total)
        return -ENOMEM;
    LOCK_SCOPE(&b->lock);
    struct waiter w = {.n = n};
    enter_locked(b, &w);
    for (bool more = true; more && !w.granted;) {
        lock_drop(&b->lock);
        more = ask(arg);
        lock_take(&b->lock);
        if (more)
            wait_locked(b, &w, step_ms);
    }
    return end_locked(b, &w);
}

void budget_give(struct budget *b, uint64_t n)
{
    assert(b->magic == BUDGET_MAGIC);
    LOCK_SCOPE(&b->lock);
    assert(n <= b->used);
    b->used -= n;
    serve_locked(b);
}

uint64_t budget_used(struct budget *b)
{
    assert(b->magic == BUDGET_MAGIC);
    LOCK_SCOPE(&b->lock);
    return b->used;
}

bool budget_is_wanted(struct budget *b)
{
    assert(b->magic == BUDGET_MAGIC);
    LOCK_SCOPE(&b->lock);
    return b->head != NULL;
}

uint64_t budget_total(const struct budget *b)
{
    assert(b->magic == BUDGET_MAGIC);
    return b->total;
}
