/*
 * Counting which names are opened when they were looked up (contract in lookups.h).
 *
 * Failure modes: none; who guesses wrong pays with a round trip, or with bytes that nobody reads.
 */
#include "object/lookups.h"

#include "base/hash.h"
#include "base/macro.h"

#include <stdatomic.h>
#include <stdlib.h>

struct lookups *lookups_new(void)
{
    struct lookups *l = calloc(1, sizeof(*l));
    if (!l)
        abort();
    lock_init(&l->lock, LOCK_LEAF);
    return l;
}

void lookups_free(struct lookups *l)
{
    if (!l)
        return;
    lock_fini(&l->lock);
    free(l);
}

static uint64_t name_hash(uint64_t place, struct slice key)
{
    return hash_mix(hash_table(key), place) | 1;
}

/* Names without a dot, or with nothing before or behind it, end alike. */
static struct slice ending_of(struct slice key)
{
    ssize_t slash = slice_rfind(key, '/');
    struct slice name = slash < 0 ? key : slice_from(key, (size_t)slash + 1);
    ssize_t dot = slice_rfind(name, '.');
    return dot > 0 ? slice_from(name, (size_t)dot) : SLICE_NULL;
}

static uint64_t kind_hash(uint64_t place, struct slice key)
{
    ssize_t slash = slice_find(key, '/');
    struct slice first = slash < 0 ? SLICE_NULL : slice_sub(key, 0, (size_t)slash);
    return hash_mix(hash_mix(hash_table(first), hash_table(ending_of(key))), place) | 1;
}

static struct lookups_kind *kind_at(struct lookups *l, uint64_t hash)
{
    return &l->kinds[hash_mix(hash, 0) % LOOKUPS_KINDS];
}

static struct lookups_name *name_at(struct lookups *l, uint64_t hash)
{
    return &l->names[hash_mix(hash, 0) % LOOKUPS_NAMES];
}

static bool is_believed_locked(const struct lookups_kind *k)
{
    return k->n_opened >= k->wanted;
}

static void disbelieve_locked(struct lookups_kind *k)
{
    if (is_believed_locked(k))
        k->wanted = MIN(2 * k->wanted, (uint32_t)LOOKUPS_MOST);
    k->n_opened = 0;
    k->n_waiting = 0;
}

bool lookups_expect_open(struct lookups *l, uint64_t place, struct slice key)
{
    uint64_t hash = kind_hash(place, key);
    LOCK_SCOPE(&l->lock);
    const struct lookups_kind *k = kind_at(l, hash);
    return k->hash == hash && is_believed_locked(k);
}

void lookups_note(struct lookups *l, uint64_t place, struct slice key, bool is_small, bool is_fetched)
{
    uint64_t hash = name_hash(place, key), kind = kind_hash(place, key);
    LOCK_SCOPE(&l->lock);
    struct lookups_name *n = name_at(l, hash);
    if (atomic_load(&n->hash) == hash) { /* looked up before, and nobody opened it */
        n->is_fetched = n->is_fetched || is_fetched;
        return;
    }
    struct lookups_kind *k = kind_at(l, kind);
    if (k->hash != kind)
        *k = (struct lookups_kind){.hash = kind, .wanted = LOOKUPS_FIRST};
    k->n_waiting++;
    if (k->n_waiting >= LOOKUPS_WAITING)
        disbelieve_locked(k);
    n->kind = kind;
    n->is_small = is_small;
    n->is_fetched = is_fetched;
    atomic_store(&n->hash, hash);
}

static void count_opened_locked(struct lookups_kind *k, bool is_small)
{
    k->n_waiting -= k->n_waiting > 0;
    k->n_opened = is_small ? k->n_opened + 1 : k->n_opened / 2;
    if (k->n_opened < LOOKUPS_MOST)
        return;
    k->n_opened = LOOKUPS_MOST / 2;
    k->n_waiting = 0;
    k->wanted = LOOKUPS_FIRST;
}

bool lookups_opened(struct lookups *l, uint64_t place, struct slice key)
{
    uint64_t hash = name_hash(place, key);
    struct lookups_name *n = name_at(l, hash);
    if (atomic_load_explicit(&n->hash, memory_order_relaxed) != hash)
        return false;
    LOCK_SCOPE(&l->lock);
    if (atomic_load(&n->hash) != hash)
        return false;
    atomic_store(&n->hash, 0);
    struct lookups_kind *k = kind_at(l, n->kind);
    if (k->hash == n->kind)
        count_opened_locked(k, n->is_small);
    return n->is_fetched;
}

void lookups_doubt(struct lookups *l, uint64_t place, struct slice key)
{
    uint64_t hash = kind_hash(place, key);
    LOCK_SCOPE(&l->lock);
    struct lookups_kind *k = kind_at(l, hash);
    if (k->hash == hash)
        disbelieve_locked(k);
}
