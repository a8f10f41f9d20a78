/*
 * Write-back: which record is sent next.
 *
 * Each bucket has two heaps of its entries that nobody sends: those that may be sent now, by their place in
 * the queue, and those that wait for their next try, by its time. What keeps a bucket as a whole, as its
 * `write_delay`, is asked of its first entry only: that one came first. So a look costs as much as there are
 * buckets, however many records wait.
 *
 * Buckets take turns: the one with the fewest on their way is next, and of those the one whose record came
 * first. Since a body may be on its way for long, the last BACK_SPARE threads are only for buckets that have
 * none: one with large bodies, or with an origin that hangs, has never all.
 *
 * Invariant: an entry is in one of the heaps exactly when it has a record, is not being sent and its metadata
 * does not change at the origin.
 */
#include "object/back_internal.h"

/* ---- heaps ---- */

static bool is_before(const struct back_heap *h, const struct back_entry *x, const struct back_entry *y)
{
    if (h->is_by_time && x->retry_ms != y->retry_ms)
        return x->retry_ms < y->retry_ms;
    return x->place < y->place;
}

static void put_at(struct back_heap *h, size_t i, struct back_entry *x)
{
    h->x[i] = x;
    x->heap_at = i;
}

static void rise(struct back *b, struct back_heap *h, struct back_entry *x, size_t i)
{
    for (; i > 0 && is_before(h, x, h->x[(i - 1) / 2]); i = (i - 1) / 2, b->n_steps++)
        put_at(h, i, h->x[(i - 1) / 2]);
    put_at(h, i, x);
}

static void sink(struct back *b, struct back_heap *h, struct back_entry *x, size_t i)
{
    for (size_t next; (next = 2 * i + 1) < h->n; i = next, b->n_steps++) {
        next += next + 1 < h->n && is_before(h, h->x[next + 1], h->x[next]);
        if (!is_before(h, h->x[next], x))
            break;
        put_at(h, i, h->x[next]);
    }
    put_at(h, i, x);
}

static void heap_put(struct back *b, struct back_heap *h, struct back_entry *x)
{
    if (h->n == h->max) {
        h->max = MAX(2 * h->max, (size_t)16);
        h->x = realloc(h->x, h->max * sizeof(struct back_entry *));
        assert(h->x);
    }
    x->heap = h;
    rise(b, h, x, h->n++);
}

static void heap_take(struct back *b, struct back_entry *x)
{
    struct back_heap *h = x->heap;
    struct back_entry *last = h->x[--h->n];
    x->heap = NULL;
    if (last == x)
        return;
    sink(b, h, last, x->heap_at);
    rise(b, h, last, last->heap_at);
}

/* ---- entries ---- */

void back_queue_file_locked(struct back *b, struct back_entry *x, uint64_t now_ms)
{
    struct back_bucket *of = x->bucket;
    lock_assert_held(&b->lock);
    of->later.is_by_time = true;
    if (x->heap)
        heap_take(b, x);
    if (x->recorded && !x->sending && x->changing == 0)
        heap_put(b, x->retry_ms > now_ms ? &of->later : &of->ready, x);
}

void back_queue_send_locked(struct back *b, struct back_entry *x, bool sends, uint64_t now_ms)
{
    lock_assert_held(&b->lock);
    assert(x->sending != sends);
    x->sending = sends;
    x->bucket->n_sending += sends ? 1 : -1u;
    b->n_sending += sends ? 1 : -1u;
    back_queue_file_locked(b, x, now_ms);
}

void back_queue_fini(struct back_bucket *x)
{
    free(x->ready.x);
    free(x->later.x);
}

/* For how long it stays here, lest what is renamed, changed or removed soon after goes there twice. */
static uint64_t young_ms(const struct back *b, const struct back_entry *x, uint64_t now_ms)
{
    uint64_t due_ms = x->noted_ms + x->bucket->delay_ms;
    return x->noted_ms <= b->hurried_ms || due_ms <= now_ms ? 0 : due_ms - now_ms;
}

bool back_is_doubted_locked(const struct back_bucket *x)
{
    return x->failed >= BACK_DOUBT;
}

/* The first of the bucket, if it may be sent now. */
static struct back_entry *first_of(struct back *b, struct back_bucket *of, uint64_t now_ms,
                                   uint64_t *ret_wait_ms)
{
    while (of->later.n > 0 && of->later.x[0]->retry_ms <= now_ms)
        back_queue_file_locked(b, of->later.x[0], now_ms);
    if (of->later.n > 0)
        *ret_wait_ms = MIN(*ret_wait_ms, of->later.x[0]->retry_ms - now_ms);
    if (of->ready.n == 0)
        return NULL;
    struct back_entry *x = of->ready.x[0];
    uint64_t full_ms = of->full_ms > now_ms ? of->full_ms - now_ms : 0;
    uint64_t wait_ms = MAX(young_ms(b, x, now_ms), full_ms);
    if (wait_ms > 0)
        *ret_wait_ms = MIN(*ret_wait_ms, wait_ms);
    return wait_ms > 0 ? NULL : x;
}

/* Whether the bucket may have one more thread. */
static bool may_send(const struct back *b, const struct back_bucket *of)
{
    if (back_is_doubted_locked(of) && b->n_doubted >= BACK_THREADS / 2)
        return false;
    return of->n_sending == 0 || b->n_sending < BACK_THREADS - BACK_SPARE;
}

static bool is_sooner(const struct back_entry *x, const struct back_entry *y)
{
    unsigned nx = x->bucket->n_sending, ny = y->bucket->n_sending;
    return nx != ny ? nx < ny : x->place < y->place;
}

struct back_entry *back_queue_next_locked(struct back *b, uint64_t now_ms, uint64_t *ret_wait_ms)
{
    struct back_entry *next = NULL;
    lock_assert_held(&b->lock);
    for (struct back_bucket *of = b->buckets; of; of = of->next) {
        b->n_steps++;
        struct back_entry *x = may_send(b, of) ? first_of(b, of, now_ms, ret_wait_ms) : NULL;
        if (x && (!next || is_sooner(x, next)))
            next = x;
    }
    return next;
}
