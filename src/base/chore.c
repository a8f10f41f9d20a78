/*
 * Background threads with turns (contract in chore.h).
 *
 * 1. A call is never lost: only the turn that begins after it takes it back, and when the chore is stopped
 * there is one more turn for it.
 * 2. No lock is held during a turn.
 */
#include "base/chore.h"

#include <errno.h>

#define MAGIC 0x63686f72u

/* Whether there is another turn. */
static bool wait_for_turn(struct chore *c, uint64_t ns)
{
    LOCK_SCOPE(&c->lock);
    while (!c->is_called && !c->is_stopping)
        if (ns == CHORE_UNTIL_CALLED)
            cond_wait(&c->called, &c->lock);
        else if (cond_wait_for(&c->called, &c->lock, ns) == -ETIMEDOUT)
            break;
    bool has_turn = c->is_called || !c->is_stopping;
    c->is_called = false;
    return has_turn;
}

static void *chore_main(void *arg)
{
    struct chore *c = CAST_MAGIC(chore, arg, MAGIC);
    for (uint64_t ns = c->first_ns; wait_for_turn(c, ns);)
        ns = c->fn(c->arg);
    return NULL;
}

int chore_start(struct chore *c, uint64_t first_ns, chore_fn fn, void *arg)
{
    assert(c && fn);
    *c = (struct chore){.magic = MAGIC, .fn = fn, .arg = arg, .first_ns = first_ns};
    lock_init(&c->lock, LOCK_LEAF);
    cond_init(&c->called);
    int r = -pthread_create(&c->thread, NULL, chore_main, c);
    c->has_thread = r == 0;
    return r;
}

void chore_call(struct chore *c)
{
    assert(c->magic == MAGIC);
    LOCK_SCOPE(&c->lock);
    c->is_called = true;
    cond_broadcast(&c->called);
}

bool chore_is_stopping(struct chore *c)
{
    assert(c->magic == MAGIC);
    LOCK_SCOPE(&c->lock);
    return c->is_stopping;
}

void chore_pause(struct chore *c, uint64_t ns)
{
    assert(c->magic == MAGIC);
    LOCK_SCOPE(&c->lock);
    if (!c->is_called && !c->is_stopping)
        (void)cond_wait_for(&c->called, &c->lock, ns);
}

void chore_stop(struct chore *c)
{
    if (c->magic == 0)
        return;
    assert(c->magic == MAGIC);
    lock_take(&c->lock);
    c->is_stopping = true;
    cond_broadcast(&c->called);
    lock_drop(&c->lock);
    if (c->has_thread)
        (void)pthread_join(c->thread, NULL);
    cond_fini(&c->called);
    lock_fini(&c->lock);
    c->magic = 0;
}
