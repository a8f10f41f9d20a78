#include "mount/versions.h"

#include "base/hash.h"
#include "mount/queue.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static uint64_t hash_of(struct slice key)
{
    return hash_placement(key) | 1;
}

void versions_init(struct versions *v)
{
    memset(v, 0, sizeof(*v));
    lock_init(&v->lock, LOCK_LEAF);
    cond_init(&v->ended);
}

void versions_fini(struct versions *v)
{
    assert(!v->under_way);
    for (size_t i = 0; i < VERSIONS_STEPS; i++) {
        free(v->steps[i].from);
        free(v->steps[i].to);
    }
    cond_fini(&v->ended);
    lock_fini(&v->lock);
}

static void wait_locked(struct versions *v, uint64_t key_hash, const struct version_change *own)
{
    struct version_change *c = v->under_way;
    while (c)
        if (c->key_hash == key_hash && c != own) {
            queue_may_wait(); /* an origin may take its time for it */
            cond_wait(&v->ended, &v->lock);
            c = v->under_way;
        } else {
            c = c->next;
        }
}

void versions_begin(struct versions *v, struct version_change *c, struct slice key)
{
    uint64_t key_hash = hash_of(key);
    LOCK_SCOPE(&v->lock);
    wait_locked(v, key_hash, /* own= */ NULL);
    *c = (struct version_change){.next = v->under_way, .key_hash = key_hash};
    v->under_way = c;
    (void)atomic_fetch_add(&v->n_known, 1);
}

static void add_step_locked(struct versions *v, uint64_t key_hash, struct slice from, struct slice to)
{
    struct version_step *x = &v->steps[v->n_steps++ % VERSIONS_STEPS];
    if (x->key_hash == 0)
        (void)atomic_fetch_add(&v->n_known, 1);
    free(x->from);
    free(x->to);
    *x = (struct version_step){.key_hash = key_hash, .from = slice_dup(from), .to = slice_dup(to)};
}

void versions_end(struct versions *v, struct version_change *c, struct slice from, struct slice to)
{
    LOCK_SCOPE(&v->lock);
    struct version_change **at = &v->under_way;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    if (from.n > 0 && to.n > 0 && !slice_eq(from, to))
        add_step_locked(v, c->key_hash, from, to);
    (void)atomic_fetch_sub(&v->n_known, 1);
    cond_broadcast(&v->ended);
}

/* Steps in the order in which they were made: a version that came back is the later one. */
char *versions_now(struct versions *v, struct slice key, struct slice etag, const struct version_change *own)
{
    if (atomic_load(&v->n_known) == 0 || etag.n == 0)
        return NULL;
    uint64_t key_hash = hash_of(key);
    LOCK_SCOPE(&v->lock);
    wait_locked(v, key_hash, own);
    size_t n = v->n_steps < VERSIONS_STEPS ? v->n_steps : VERSIONS_STEPS;
    struct slice now = etag;
    for (size_t i = v->n_steps - n; i < v->n_steps; i++) {
        const struct version_step *x = &v->steps[i % VERSIONS_STEPS];
        if (x->key_hash == key_hash && slice_eq(slice_str(x->from), now))
            now = slice_str(x->to);
    }
    return slice_eq(now, etag) ? NULL : slice_dup(now);
}
