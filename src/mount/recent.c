/* Names told of lately (contract in recent.h). */
#include "mount/recent.h"

#include "base/lock.h"

#include <stdatomic.h>
#include <stdlib.h>

struct recent {
    _Atomic uint64_t serial; /* names told of so far, of which the last are in the ring */
    struct lock lock;        /* covers what follows, and that both go together */
    uint64_t inos[RECENT_MAX];
};

struct recent *recent_new(void)
{
    struct recent *r = calloc(1, sizeof(*r));
    if (!r)
        abort();
    lock_init(&r->lock, LOCK_LEAF);
    return r;
}

void recent_free(struct recent *r)
{
    if (!r)
        return;
    lock_fini(&r->lock);
    free(r);
}

uint64_t recent_serial(const struct recent *r)
{
    return atomic_load(&r->serial);
}

void recent_note(struct recent *r, uint64_t ino)
{
    LOCK_SCOPE(&r->lock);
    r->inos[atomic_load(&r->serial) % RECENT_MAX] = ino;
    (void)atomic_fetch_add(&r->serial, 1);
}

void recent_note_all(struct recent *r)
{
    LOCK_SCOPE(&r->lock);
    (void)atomic_fetch_add(&r->serial, RECENT_MAX + 1);
}

bool recent_has(struct recent *r, uint64_t serial, uint64_t ino)
{
    if (atomic_load(&r->serial) == serial)
        return false;
    LOCK_SCOPE(&r->lock);
    uint64_t now = atomic_load(&r->serial);
    if (now - serial > RECENT_MAX)
        return true;
    for (; serial < now; serial++)
        if (r->inos[serial % RECENT_MAX] == ino)
            return true;
    return false;
}
