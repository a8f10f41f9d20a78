/*
 * Counting files that stayed empty (contract in tree_habit.h).
 *
 * Failure modes: none; who guesses wrong pays with a call to the node and a copy of the bytes.
 */
#include "mount/tree_habit.h"

#include "base/hash.h"
#include "base/macro.h"

void tree_habit_init(struct tree_habit *h)
{
    lock_init(&h->lock, LOCK_LEAF);
}

void tree_habit_fini(struct tree_habit *h)
{
    lock_fini(&h->lock);
}

static size_t place_of(uint64_t dir)
{
    return hash_mix(dir, 0) % TREE_HABIT_PLACES;
}

bool tree_habit_is_empty(struct tree_habit *h, uint64_t dir)
{
    size_t i = place_of(dir);
    LOCK_SCOPE(&h->lock);
    return dir != 0 && h->places[i].dir == dir && h->places[i].n_empty >= h->places[i].wanted;
}

void tree_habit_note(struct tree_habit *h, uint64_t dir, bool has_bytes, bool was_believed)
{
    size_t i = place_of(dir);
    LOCK_SCOPE(&h->lock);
    if (h->places[i].dir != dir) {
        h->places[i].dir = dir;
        h->places[i].n_empty = 0;
        h->places[i].wanted = TREE_HABIT_FIRST;
    }
    if (!has_bytes) {
        h->places[i].n_empty += h->places[i].n_empty < TREE_HABIT_MOST;
        return;
    }
    h->places[i].n_empty = 0;
    if (was_believed)
        h->places[i].wanted = MIN(2 * h->places[i].wanted, (uint32_t)TREE_HABIT_MOST);
}
