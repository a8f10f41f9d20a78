/*
 * Sharded LRU of byte strings. Each shard: a chained hash table and a list from most to least recently used,
 * one lock. Invariant: a shard's bytes are the sum over its entries of key, value and ENTRY_BYTES, and never
 * above its share.
 */
#include "namespace/lru.h"

#include "base/hash.h"
#include "base/lock.h"

#define LRU_SHARDS  16
#define LRU_BUCKETS 4096 /* per shard */

struct lru_entry {
    struct lru_entry *next;          /* in its chain */
    struct lru_entry *newer, *older; /* in the list of use */
    uint64_t hash;
    uint32_t key_n, value_n;
    char bytes[]; /* key, then value */
};

#define ENTRY_BYTES (sizeof(struct lru_entry) + 16)

struct lru_shard {
    struct lock lock; /* covers everything below */
    struct lru_entry *chains[LRU_BUCKETS];
    struct lru_entry *newest, *oldest;
    uint64_t bytes;
};

struct lru {
    uint64_t shard_max_bytes;
    struct lru_shard shards[LRU_SHARDS];
};

struct lru *lru_new(uint64_t max_bytes)
{
    struct lru *l = calloc(1, sizeof(*l));
    assert(l);
    l->shard_max_bytes = max_bytes / LRU_SHARDS;
    for (size_t i = 0; i < LRU_SHARDS; i++)
        lock_init(&l->shards[i].lock, LOCK_LEAF);
    return l;
}

static uint64_t entry_bytes(const struct lru_entry *x)
{
    return ENTRY_BYTES + x->key_n + x->value_n;
}

static void list_remove(struct lru_shard *s, struct lru_entry *x)
{
    *(x->newer ? &x->newer->older : &s->newest) = x->older;
    *(x->older ? &x->older->newer : &s->oldest) = x->newer;
}

static void list_push(struct lru_shard *s, struct lru_entry *x)
{
    x->newer = NULL;
    x->older = s->newest;
    *(s->newest ? &s->newest->newer : &s->oldest) = x;
    s->newest = x;
}

static struct lru_entry **chain_find(struct lru_shard *s, uint64_t hash, struct slice key)
{
    struct lru_entry **x = &s->chains[hash / LRU_SHARDS % LRU_BUCKETS];
    while (*x && ((*x)->hash != hash || !slice_eq(slice_of((*x)->bytes, (*x)->key_n), key)))
        x = &(*x)->next;
    return x;
}

static void shard_drop(struct lru_shard *s, struct lru_entry **at)
{
    struct lru_entry *x = *at;
    *at = x->next;
    list_remove(s, x);
    s->bytes -= entry_bytes(x);
    free(x);
}

static void shard_drop_oldest(struct lru_shard *s)
{
    struct lru_entry *x = s->oldest;
    shard_drop(s, chain_find(s, x->hash, slice_of(x->bytes, x->key_n)));
}

void lru_clear(struct lru *l)
{
    for (size_t i = 0; i < LRU_SHARDS; i++) {
        LOCK_SCOPE(&l->shards[i].lock);
        while (l->shards[i].oldest)
            shard_drop_oldest(&l->shards[i]);
    }
}

void lru_free(struct lru *l)
{
    if (!l)
        return;
    lru_clear(l);
    for (size_t i = 0; i < LRU_SHARDS; i++)
        lock_fini(&l->shards[i].lock);
    free(l);
}

/* NULL: there is none. */
static struct lru_entry *use_locked(struct lru_shard *s, uint64_t hash, struct slice key)
{
    lock_assert_held(&s->lock);
    struct lru_entry *x = *chain_find(s, hash, key);
    if (x && x != s->newest) {
        list_remove(s, x);
        list_push(s, x);
    }
    return x;
}

int lru_get(struct lru *l, struct slice key, struct buf *ret)
{
    uint64_t hash = hash_table(key);
    struct lru_shard *s = &l->shards[hash % LRU_SHARDS];
    LOCK_SCOPE(&s->lock);
    struct lru_entry *x = use_locked(s, hash, key);
    return x ? buf_append(ret, x->bytes + x->key_n, x->value_n) : -ENOENT;
}

int lru_get_in(struct lru *l, struct slice key, struct arena *a, struct slice *ret)
{
    uint64_t hash = hash_table(key);
    struct lru_shard *s = &l->shards[hash % LRU_SHARDS];
    LOCK_SCOPE(&s->lock);
    struct lru_entry *x = use_locked(s, hash, key);
    if (!x)
        return -ENOENT;
    *ret = arena_dup(a, slice_of(x->bytes + x->key_n, x->value_n));
    return 0;
}

static void put_locked(struct lru *l, struct lru_shard *s, uint64_t hash, struct slice key,
                       struct slice value)
{
    lock_assert_held(&s->lock);
    struct lru_entry **old = chain_find(s, hash, key);
    if (*old)
        shard_drop(s, old);
    uint64_t n = ENTRY_BYTES + key.n + value.n;
    if (n > l->shard_max_bytes)
        return;
    while (s->bytes + n > l->shard_max_bytes)
        shard_drop_oldest(s);
    struct lru_entry *x = malloc(sizeof(*x) + key.n + value.n);
    assert(x);
    *x = (struct lru_entry){.hash = hash, .key_n = (uint32_t)key.n, .value_n = (uint32_t)value.n};
    memcpy(x->bytes, key.p, key.n);
    if (value.n > 0)
        memcpy(x->bytes + key.n, value.p, value.n);
    struct lru_entry **chain = &s->chains[hash / LRU_SHARDS % LRU_BUCKETS];
    x->next = *chain;
    *chain = x;
    list_push(s, x);
    s->bytes += n;
}

void lru_put(struct lru *l, struct slice key, struct slice value)
{
    uint64_t hash = hash_table(key);
    struct lru_shard *s = &l->shards[hash % LRU_SHARDS];
    LOCK_SCOPE(&s->lock);
    put_locked(l, s, hash, key, value);
}

void lru_put_if(struct lru *l, struct slice key, struct slice value, const _Atomic uint64_t *generation,
                uint64_t seen)
{
    uint64_t hash = hash_table(key);
    struct lru_shard *s = &l->shards[hash % LRU_SHARDS];
    LOCK_SCOPE(&s->lock);
    if (atomic_load(generation) == seen)
        put_locked(l, s, hash, key, value);
}

void lru_remove(struct lru *l, struct slice key)
{
    uint64_t hash = hash_table(key);
    struct lru_shard *s = &l->shards[hash % LRU_SHARDS];
    LOCK_SCOPE(&s->lock);
    struct lru_entry **x = chain_find(s, hash, key);
    if (*x)
        shard_drop(s, x);
}

void lru_remove_if(struct lru *l, bool (*matches)(const void *arg, struct slice key), const void *arg)
{
    for (size_t i = 0; i < LRU_SHARDS; i++) {
        struct lru_shard *s = &l->shards[i];
        LOCK_SCOPE(&s->lock);
        for (struct lru_entry *x = s->newest, *older; x; x = older) {
            struct slice key = slice_of(x->bytes, x->key_n);
            older = x->older;
            if (matches(arg, key))
                shard_drop(s, chain_find(s, x->hash, key));
        }
    }
}

uint64_t lru_bytes(struct lru *l)
{
    uint64_t n = 0;
    for (size_t i = 0; i < LRU_SHARDS; i++) {
        LOCK_SCOPE(&l->shards[i].lock);
        n += l->shards[i].bytes;
    }
    return n;
}
