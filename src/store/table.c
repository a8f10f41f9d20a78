/*
 * The extents in memory, by key: 64 shards, each a hash table with chains, a list of unreferenced extents by
 * age, and the keys that somebody owns at the moment.
 *
 * Invariants:
 *  1. An extent in a chain is alive, is not staged, and is the only one of its key. The dead ones that
 * somebody references have a chain of their own.
 *  2. An extent is in the LRU list exactly when it is in a chain and has no references; references leave and
 * reach zero only under the shard's lock.
 *  3. The list holds at most lru_bytes_max bytes.
 *  4. Nothing is dropped from memory that the index does not know: an extent with unrecorded changes is
 * referenced by the writer; one whose last read is not recorded is queued instead of dropped, unless the
 * index cannot be written: all that is read would stay in memory.
 */
#include "base/hash.h"
#include "base/sys.h"
#include "store/store_internal.h"

#include <string.h>

#define CHAINS_MIN 64

void table_init(struct store *s)
{
    for (size_t i = 0; i < TABLE_SHARDS; i++) {
        struct shard *h = &s->shards[i];
        lock_init(&h->lock, LOCK_STORE);
        cond_init(&h->released);
        h->n_chains = CHAINS_MIN;
        h->chains = calloc(h->n_chains, sizeof(h->chains[0]));
        if (!h->chains)
            abort();
    }
}

void table_fini(struct store *s)
{
    for (size_t i = 0; i < TABLE_SHARDS; i++) {
        struct shard *h = &s->shards[i];
        for (size_t c = 0; c < h->n_chains && h->chains; c++) {
            for (struct extent *x = h->chains[c]; x;) {
                struct extent *next = x->chain;
                assert(x->refs == 0);
                x->in_lru = false;
                extent_free(x);
                x = next;
            }
        }
        free(h->chains);
        h->chains = NULL;
        assert(!h->owners);
        lock_fini(&h->lock);
        cond_fini(&h->released);
    }
}

/* ---- one shard, under its lock ---- */

static uint32_t refs_of(const struct extent *x)
{
    return __atomic_load_n(&x->refs, __ATOMIC_ACQUIRE);
}

static struct extent **chain_of(struct shard *h, uint64_t hash)
{
    return &h->chains[hash & (h->n_chains - 1)];
}

static struct extent *lookup_locked(struct shard *h, struct slice key, uint64_t hash)
{
    struct extent *x = *chain_of(h, hash);
    while (x && (x->hash != hash || !slice_eq(x->key, key)))
        x = x->chain;
    return x;
}

static void grow_locked(struct shard *h)
{
    size_t n = h->n_chains * 2;
    struct extent **old = h->chains, **chains = calloc(n, sizeof(chains[0]));
    if (!chains)
        abort();
    h->chains = chains;
    size_t n_old = h->n_chains;
    h->n_chains = n;
    for (size_t i = 0; i < n_old; i++) {
        for (struct extent *x = old[i]; x;) {
            struct extent *next = x->chain;
            struct extent **chain = chain_of(h, x->hash);
            x->chain = *chain;
            *chain = x;
            x = next;
        }
    }
    free(old);
}

static void unchain_locked(struct shard *h, struct extent *x)
{
    struct extent **at = chain_of(h, x->hash);
    while (*at != x) {
        assert(*at);
        at = &(*at)->chain;
    }
    *at = x->chain;
    x->chain = NULL;
    h->n_extents--;
}

static void lru_remove_locked(struct shard *h, struct extent *x)
{
    assert(x->in_lru);
    *(x->lru_newer ? &x->lru_newer->lru_older : &h->lru_newest) = x->lru_older;
    *(x->lru_older ? &x->lru_older->lru_newer : &h->lru_oldest) = x->lru_newer;
    x->lru_newer = x->lru_older = NULL;
    x->in_lru = false;
    h->lru_bytes -= extent_memory_bytes(x);
}

static void lru_add_locked(struct shard *h, struct extent *x)
{
    assert(!x->in_lru);
    x->lru_older = h->lru_newest;
    *(h->lru_newest ? &h->lru_newest->lru_newer : &h->lru_oldest) = x;
    h->lru_newest = x;
    x->in_lru = true;
    h->lru_bytes += extent_memory_bytes(x);
}

static void ref_locked(struct shard *h, struct extent *x)
{
    if (refs_of(x) == 0)
        lru_remove_locked(h, x);
    __atomic_add_fetch(&x->refs, 1, __ATOMIC_ACQ_REL);
}

static bool read_lags(const struct extent *x, uint64_t lag_ms)
{
    uint64_t last = __atomic_load_n(&x->last_read_ms, __ATOMIC_RELAXED);
    return last >= __atomic_load_n(&x->recorded_read_ms, __ATOMIC_RELAXED) + lag_ms && !x->store->read_only &&
           writer_records(x->disk);
}

/* ---- finding ---- */

struct extent *table_find(struct store *s, struct slice key, uint64_t hash)
{
    struct shard *h = shard_of(s, hash);
    LOCK_SCOPE(&h->lock);
    struct extent *x = lookup_locked(h, key, hash);
    if (x)
        ref_locked(h, x);
    return x;
}

bool table_peek(struct store *s, struct slice key, uint64_t hash, bool *ret_referenced,
                uint64_t *ret_last_read_ms)
{
    struct shard *h = shard_of(s, hash);
    LOCK_SCOPE(&h->lock);
    struct extent *x = lookup_locked(h, key, hash);
    if (!x)
        return false;
    *ret_referenced = refs_of(x) > 0;
    *ret_last_read_ms = __atomic_load_n(&x->last_read_ms, __ATOMIC_RELAXED);
    return true;
}

static bool owned_locked(const struct shard *h, const struct key_owner *wanted)
{
    for (const struct key_owner *o = h->owners; o; o = o->next)
        if (o->hash == wanted->hash && slice_eq(o->key, wanted->key))
            return true;
    return false;
}

void table_begin(struct store *s, struct slice key, struct key_owner *o)
{
    *o = (struct key_owner){.key = key, .hash = hash_table(key)};
    struct shard *h = shard_of(s, o->hash);
    LOCK_SCOPE(&h->lock);
    while (owned_locked(h, o))
        cond_wait(&h->released, &h->lock);
    o->next = h->owners;
    h->owners = o;
}

void table_end(struct store *s, struct key_owner *o)
{
    struct shard *h = shard_of(s, o->hash);
    LOCK_SCOPE(&h->lock);
    struct key_owner **at = &h->owners;
    while (*at != o) {
        assert(*at);
        at = &(*at)->next;
    }
    *at = o->next;
    cond_broadcast(&h->released);
}

void table_insert(struct store *s, struct extent *x)
{
    struct shard *h = shard_of(s, x->hash);
    LOCK_SCOPE(&h->lock);
    assert(refs_of(x) > 0 && !x->chain && !lookup_locked(h, x->key, x->hash));
    if (h->n_extents >= h->n_chains)
        grow_locked(h);
    struct extent **chain = chain_of(h, x->hash);
    x->chain = *chain;
    *chain = x;
    h->n_extents++;
}

void table_remove(struct store *s, struct extent *x)
{
    struct shard *h = shard_of(s, x->hash);
    LOCK_SCOPE(&h->lock);
    assert(refs_of(x) > 0 && !x->in_lru && !x->in_dead);
    unchain_locked(h, x);
    x->chain = h->dead;
    h->dead = x;
    x->in_dead = true;
}

/* A few there are: what was replaced or removed while somebody reads it. */
static void dead_remove_locked(struct shard *h, struct extent *x)
{
    struct extent **at = &h->dead;
    while (x->in_dead && *at != x)
        at = &(*at)->chain;
    if (x->in_dead)
        *at = x->chain;
    x->chain = NULL;
    x->in_dead = false;
}

/* ---- references ---- */

struct extent *extent_ref(struct extent *x)
{
    assert(x && x->magic == EXTENT_MAGIC);
    uint32_t before = __atomic_fetch_add(&x->refs, 1, __ATOMIC_RELAXED);
    assert(before > 0);
    return x;
}

/* Takes the oldest extents out of an overfull list. Those to be freed are chained at *ret_free, those whose
 * last read is to be recorded first get a reference and are chained at *ret_record. */
static void shrink_locked(struct store *s, struct shard *h, struct extent **ret_free,
                          struct extent **ret_record)
{
    while (h->lru_bytes > s->lru_bytes_max && h->lru_oldest) {
        struct extent *x = h->lru_oldest;
        lru_remove_locked(h, x);
        if (read_lags(x, READ_LAG_MS)) {
            __atomic_store_n(&x->refs, 1, __ATOMIC_RELEASE);
            x->lru_older = *ret_record;
            *ret_record = x;
        } else {
            unchain_locked(h, x);
            x->chain = *ret_free;
            *ret_free = x;
        }
    }
}

static void drop_last(struct extent *x)
{
    struct store *s = x->store;
    struct shard *h = shard_of(s, x->hash);
    struct extent *to_free = NULL, *to_record = NULL;
    lock_take(&h->lock);
    if (__atomic_sub_fetch(&x->refs, 1, __ATOMIC_ACQ_REL) == 0) {
        if (__atomic_load_n(&x->dead, __ATOMIC_ACQUIRE)) {
            dead_remove_locked(h, x);
            to_free = x;
        } else {
            extent_trim_charge(x);
            lru_add_locked(h, x);
            shrink_locked(s, h, &to_free, &to_record);
        }
    }
    lock_drop(&h->lock);
    while (to_free) {
        struct extent *next = to_free->chain;
        extent_free(to_free);
        to_free = next;
    }
    while (to_record) {
        struct extent *next = to_record->lru_older;
        to_record->lru_older = NULL;
        writer_queue(to_record);
        extent_unref(to_record);
        to_record = next;
    }
}

void extent_unref(struct extent *x)
{
    if (!x)
        return;
    assert(x->magic == EXTENT_MAGIC);
    uint32_t refs = __atomic_load_n(&x->refs, __ATOMIC_RELAXED);
    while (refs > 1)
        if (__atomic_compare_exchange_n(&x->refs, &refs, refs - 1, /* weak= */ true, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED))
            return;
    assert(refs == 1);
    /* Nobody else can reach a staged extent once this is its only reference. */
    if (__atomic_load_n(&x->staged, __ATOMIC_ACQUIRE) && !__atomic_load_n(&x->dead, __ATOMIC_ACQUIRE))
        doom_extent(x);
    drop_last(x);
}

/* ---- walks ---- */

void table_each(struct store *s, void (*fn)(struct extent *x, void *arg), void *arg)
{
    for (size_t i = 0; i < TABLE_SHARDS; i++) {
        struct shard *h = &s->shards[i];
        LOCK_SCOPE(&h->lock);
        for (size_t c = 0; c < h->n_chains; c++)
            for (struct extent *x = h->chains[c]; x; x = x->chain)
                fn(x, arg);
        for (struct extent *x = h->dead; x; x = x->chain)
            fn(x, arg);
    }
}

size_t table_keys(struct store *s, struct slice prefix, struct slice *ret, size_t max)
{
    size_t n = 0;
    for (size_t i = 0; i < TABLE_SHARDS; i++) {
        struct shard *h = &s->shards[i];
        LOCK_SCOPE(&h->lock);
        for (size_t c = 0; c < h->n_chains; c++)
            for (struct extent *x = h->chains[c]; x && n < max; x = x->chain)
                if (slice_starts(x->key, prefix))
                    ret[n++] = slice_of(slice_dup(x->key), x->key.n);
    }
    return n;
}

void table_record_reads(struct store *s, struct disk *d, uint64_t lag_ms)
{
    struct extent *batch[256];
    for (size_t i = 0; i < TABLE_SHARDS; i++) {
        struct shard *h = &s->shards[i];
        for (size_t c = 0, more = true; more;) {
            size_t n = 0;
            lock_take(&h->lock);
            for (; c < h->n_chains && n < ARRAY_SIZE(batch) / 2; c++) {
                for (struct extent *x = h->chains[c]; x && n < ARRAY_SIZE(batch); x = x->chain) {
                    if (x->disk != d || !read_lags(x, lag_ms))
                        continue;
                    ref_locked(h, x);
                    batch[n++] = x;
                }
            }
            more = c < h->n_chains;
            lock_drop(&h->lock);
            for (size_t k = 0; k < n; k++) {
                writer_queue(batch[k]);
                extent_unref(batch[k]);
            }
        }
    }
}
