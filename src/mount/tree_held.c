/*
 * What is held (contract in tree_held.h).
 *
 * Invariant: locks of one owner and kind do not overlap, and those of one type that were asked through one
 * open do not touch; but what a process that was killed had not finished leaves the old ones beside the new
 * ones, until the request that comes again is done.
 */
#include "mount/tree_held.h"

#include "net/wire.h"

#define GRACE_MS         50
#define CLOSING_MS       1000
#define CLOSING_FLOCK_MS 2000
#define STAYED_FLOCK_MS  100

static_assert(sizeof(struct tree_held) <= KEPT_CELL_BYTES, "fits into a cell");

static bool overlaps(const struct tree_held *a, const struct tree_held *b)
{
    return a->start <= b->end && b->start <= a->end;
}

bool tree_held_conflicts(const struct tree_held *a, const struct tree_held *b)
{
    bool is_taken = a->type != WIRE_LOCK_NONE && b->type != WIRE_LOCK_NONE;
    bool is_exclusive = a->type == WIRE_LOCK_WRITE || b->type == WIRE_LOCK_WRITE;
    return a->kind == b->kind && a->owner != b->owner && is_taken && is_exclusive && overlaps(a, b);
}

static bool touches(const struct tree_held *a, const struct tree_held *b)
{
    return (a->end == UINT64_MAX || a->end + 1 >= b->start) &&
           (b->end == UINT64_MAX || b->end + 1 >= a->start);
}

bool tree_held_splits(const struct tree_held *list, const struct tree_held *x)
{
    for (const struct tree_held *h = list; h; h = h->next)
        if (h->owner == x->owner && h->kind == x->kind && h->start < x->start && h->end > x->end)
            return true;
    return false;
}

/* With what it joins: a program that locks piece by piece, or makes parts of a lock stronger and weaker
 * again, has one lock and not ever more of them. */
static struct tree_held joined(const struct tree_held *list, const struct tree_held *x)
{
    struct tree_held all = *x;
    for (const struct tree_held *h = x->type == WIRE_LOCK_NONE ? NULL : list; h;) {
        bool is_same = h->owner == x->owner && h->kind == x->kind && h->type == x->type &&
                       h->through == x->through && h->pid == x->pid;
        bool has_grown = is_same && touches(h, &all) && (h->start < all.start || h->end > all.end);
        all.start = has_grown ? MIN(all.start, h->start) : all.start;
        all.end = has_grown ? MAX(all.end, h->end) : all.end;
        h = has_grown ? list : h->next;
    }
    return all;
}

/* A lock like another one, before the list. */
static void push(struct kept *k, struct tree_held **list, const struct tree_held *like, uint64_t start,
                 uint64_t end)
{
    struct tree_held *h = kept_take(k, KEPT_LOCK);
    if (!h)
        abort();
    *h = (struct tree_held){.next = *list,
                            .owner = like->owner,
                            .kind = like->kind,
                            .type = like->type,
                            .start = start,
                            .end = end,
                            .pid = like->pid,
                            .through = like->through};
    atomic_signal_fence(memory_order_seq_cst);
    h->ino = like->ino;
    *list = h;
}

void tree_held_set(struct kept *k, struct tree_held **list, const struct tree_held *wanted)
{
    struct tree_held **at = list, *rest = NULL, *gone = NULL;
    assert(wanted->start <= wanted->end);
    const struct tree_held all = joined(*list, wanted), *x = &all;
    while (*at) {
        struct tree_held *h = *at;
        if (h->owner != x->owner || h->kind != x->kind || !overlaps(h, x)) {
            at = &h->next;
            continue;
        }
        *at = h->next;
        if (h->start < x->start)
            push(k, &rest, h, h->start, x->start - 1);
        if (h->end > x->end)
            push(k, &rest, h, x->end + 1, h->end);
        h->next = gone;
        gone = h;
    }
    if (x->type != WIRE_LOCK_NONE)
        push(k, &rest, x, x->start, x->end);
    *at = rest;
    while (gone) {
        struct tree_held *h = gone;
        gone = h->next;
        kept_give(k, h);
    }
}

uint64_t tree_held_grace_ms(uint32_t kind, bool is_closing, bool has_stayed)
{
    if (kind == WIRE_LOCK_FLOCK)
        return !is_closing ? GRACE_MS : has_stayed ? STAYED_FLOCK_MS : CLOSING_FLOCK_MS;
    return !is_closing ? 0 : has_stayed ? GRACE_MS : CLOSING_MS;
}
