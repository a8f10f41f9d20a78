#include "object/moved.h"

#include "base/hash.h"
#include "base/macro.h"

#include <stdlib.h>

static uint64_t hash_of(uint64_t place, struct slice key)
{
    return hash_mix(hash_placement(key), place) | 1;
}

void moved_init(struct moved *m)
{
    *m = (struct moved){0};
    lock_init(&m->lock, LOCK_LEAF);
}

void moved_fini(struct moved *m)
{
    for (size_t i = 0; m->steps && i < MOVED_MAX; i++) {
        free(m->steps[i].etag);
        free(m->steps[i].now);
    }
    free(m->steps);
    lock_fini(&m->lock);
}

void moved_note(struct moved *m, uint64_t place, struct slice from, struct slice etag, struct slice to,
                struct slice now)
{
    struct moved_step step = {.from = hash_of(place, from),
                              .to = hash_of(place, to),
                              .etag = slice_dup(etag),
                              .now = slice_dup(now)};
    LOCK_SCOPE(&m->lock);
    if (!m->steps)
        m->steps = calloc(MOVED_MAX, sizeof(m->steps[0]));
    if (!m->steps)
        abort();
    struct moved_step *x = &m->steps[m->n++ % MOVED_MAX];
    free(x->etag);
    free(x->now);
    *x = step;
}

/* From what was last moved to the key back to whatever it came from, step by step. */
char *moved_now(struct moved *m, uint64_t place, struct slice key, struct slice etag)
{
    const struct moved_step *last = NULL, *at = NULL;
    uint64_t hash = hash_of(place, key);
    LOCK_SCOPE(&m->lock);
    for (uint64_t i = 0; i < MIN(m->n, (uint64_t)MOVED_MAX); i++) {
        const struct moved_step *x = &m->steps[(m->n - 1 - i) % MOVED_MAX];
        bool leads_on = at ? x->to == at->from && slice_eq_str(slice_str(x->now), at->etag) : x->to == hash;
        if (!leads_on)
            continue;
        at = x;
        last = last ? last : x;
        if (slice_eq_str(etag, x->etag))
            return slice_dup(slice_str(last->now));
    }
    return NULL;
}
