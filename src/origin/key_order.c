/*
 * Who changes a key when (contract in key_order.h): for each of LANES of the keys a queue, in the order of
 * arrival. So nobody is overtaken for ever.
 *
 * Invariants:
 *  1. Of those in a queue that have one key, the one that is in is the first, or it and all before it are not
 * alone.
 *  2. A lane's lock is held for a walk over those who change its keys now, never over a request.
 *
 * Failure modes: none but being given up.
 */
#include "origin/key_order.h"

#include "base/lock.h"
#include "base/quit.h"

#include <errno.h>
#include <pthread.h>

#define LANES   64
#define LOOK_NS ((uint64_t)QUIT_LOOK_MS * 1000000)

static struct lane {
    struct lock lock; /* covers what follows, and those in the queue */
    struct cond moved;
    struct key_order *first;
} lanes[LANES];

static void init_lanes(void)
{
    for (size_t i = 0; i < LANES; i++) {
        lock_init(&lanes[i].lock, LOCK_ORIGIN);
        cond_init(&lanes[i].moved);
    }
}

static struct lane *lane_of(uint64_t key)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int r = pthread_once(&once, init_lanes);
    assert(r == 0);
    return &lanes[key % LANES];
}

static bool may_go_locked(const struct lane *l, const struct key_order *x)
{
    for (const struct key_order *y = l->first; y != x; y = y->next)
        if (y->key == x->key && (y->alone || x->alone))
            return false;
    return true;
}

static void take_out_locked(struct lane *l, struct key_order *x)
{
    struct key_order **at = &l->first;
    while (*at != x)
        at = &(*at)->next;
    *at = x->next;
    cond_broadcast(&l->moved);
}

bool key_order_begin(struct key_order *x, uint64_t key, bool alone)
{
    struct lane *l = lane_of(key);
    *x = (struct key_order){.key = key, .alone = alone};
    LOCK_SCOPE(&l->lock);
    struct key_order **at = &l->first;
    while (*at)
        at = &(*at)->next;
    *at = x;
    x->is_in = may_go_locked(l, x);
    return x->is_in;
}

int key_order_wait(struct key_order *x, const atomic_bool *cancel, struct err *e)
{
    struct lane *l = lane_of(x->key);
    LOCK_SCOPE(&l->lock);
    while (!may_go_locked(l, x)) {
        if ((cancel && atomic_load(cancel)) || quit_is_now()) {
            take_out_locked(l, x);
            return err_set(e, -ECANCELED, "given up behind another change of the key");
        }
        (void)cond_wait_for(&l->moved, &l->lock, LOOK_NS);
    }
    x->is_in = true;
    return 0;
}

void key_order_leave(struct key_order *x)
{
    if (!x->is_in)
        return;
    struct lane *l = lane_of(x->key);
    LOCK_SCOPE(&l->lock);
    take_out_locked(l, x);
    x->is_in = false;
}
