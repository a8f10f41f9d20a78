/*
 * The table of values (contract in values.h).
 *
 * Shards by the upper bits of the key's hash, chains by the lower ones. A value is one allocation: the
 * struct, then key, ETag, content type, metadata and bytes, one behind the other, so that finding one touches
 * few cache lines and copies once.
 *
 * Invariants:
 *  1. Every value is in one chain and in its shard's queue, or in neither.
 *  2. A shard's bytes are the sum of what its values cost, and after every put at most the shard's share.
 *  3. `hand` is a value of the queue, or NULL: then it begins anew at the oldest.
 *  4. A value whose time is over is never given, counted as present by a condition, or listed.
 *
 * Failure modes: none but a failed allocation, which ends the process like every small one.
 */
#include "object/values.h"

#include "base/hash.h"
#include "base/lock.h"

#include <stdlib.h>

#define MAGIC       0x76616c75u
#define SHARD_BITS  6
#define SHARDS      (1 << SHARD_BITS)
#define SLOTS_FIRST 64
#define COST_FIXED  32 /* a value's place in its chain, and what malloc adds */

struct entry {
    struct entry *chain;
    struct entry *newer, *older; /* the queue */
    uint64_t hash, bucket, expires_ns, mtime_ns;
    uint32_t data_n;
    uint16_t key_n, etag_n, type_n, meta_n;
    bool marked; /* read since the hand came by */
    char bytes[];
};

struct shard {
    _Alignas(64) struct lock lock; /* covers what follows */
    struct entry **slots;
    size_t n_slots;
    struct entry *newest, *oldest, *hand;
    struct values_count count;
};

struct values {
    uint32_t magic;
    uint64_t max_bytes;
    struct shard shards[SHARDS];
};

/* ---- one value ---- */

static struct slice key_of(const struct entry *x)
{
    return slice_of(x->bytes, x->key_n);
}

static struct slice etag_of(const struct entry *x)
{
    return slice_of(x->bytes + x->key_n, x->etag_n);
}

static size_t bytes_of(const struct entry *x)
{
    return (size_t)x->key_n + x->etag_n + x->type_n + x->meta_n + x->data_n;
}

static uint64_t cost_of(const struct entry *x)
{
    return ALIGN_UP(sizeof(*x) + bytes_of(x), (size_t)16) + COST_FIXED;
}

static bool is_over(const struct entry *x, uint64_t now_ns)
{
    return x->expires_ns != 0 && x->expires_ns <= now_ns;
}

static struct entry *entry_new(uint64_t hash, uint64_t bucket, struct slice key, const struct value *v)
{
    const struct slice parts[] = {key, v->etag, v->content_type, v->meta, v->data};
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_SIZE(parts); i++)
        n += parts[i].n;
    struct entry *x = malloc(sizeof(*x) + n);
    if (!x)
        abort();
    *x = (struct entry){.hash = hash,
                        .bucket = bucket,
                        .expires_ns = v->expires_ns,
                        .mtime_ns = v->mtime_ns,
                        .data_n = (uint32_t)v->data.n,
                        .key_n = (uint16_t)key.n,
                        .etag_n = (uint16_t)v->etag.n,
                        .type_n = (uint16_t)v->content_type.n,
                        .meta_n = (uint16_t)v->meta.n};
    char *at = x->bytes;
    for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
        if (parts[i].n > 0)
            memcpy(at, parts[i].p, parts[i].n);
        at += parts[i].n;
    }
    return x;
}

static void copy_out(const struct entry *x, bool with_data, struct arena *a, struct value *ret)
{
    size_t n = bytes_of(x) - x->key_n - (with_data ? 0 : x->data_n);
    const char *p = arena_dup(a, slice_of(x->bytes + x->key_n, n)).p;
    *ret = (struct value){.expires_ns = x->expires_ns, .mtime_ns = x->mtime_ns};
    ret->etag = slice_of(p, x->etag_n);
    ret->content_type = slice_of(p + x->etag_n, x->type_n);
    ret->meta = slice_of(p + x->etag_n + x->type_n, x->meta_n);
    ret->data = slice_of(with_data ? p + x->etag_n + x->type_n + x->meta_n : NULL, x->data_n);
}

/* ---- a shard ---- */

static uint64_t hash_of(uint64_t bucket, struct slice key)
{
    return hash_mix(hash_table(key), bucket);
}

static struct shard *shard_of(struct values *v, uint64_t hash)
{
    return &v->shards[hash >> (64 - SHARD_BITS)];
}

static struct entry **find_locked(struct shard *s, uint64_t hash, uint64_t bucket, struct slice key)
{
    struct entry **at = &s->slots[hash & (s->n_slots - 1)];
    while (*at && !((*at)->hash == hash && (*at)->bucket == bucket && slice_eq(key_of(*at), key)))
        at = &(*at)->chain;
    return at;
}

static void grow_locked(struct shard *s)
{
    size_t n = s->n_slots * 2;
    struct entry **slots = calloc(n, sizeof(struct entry *));
    if (!slots)
        abort();
    for (struct entry *x = s->newest; x; x = x->older) {
        x->chain = slots[x->hash & (n - 1)];
        slots[x->hash & (n - 1)] = x;
    }
    free(s->slots);
    s->slots = slots;
    s->n_slots = n;
}

static void add_locked(struct shard *s, struct entry *x)
{
    if (s->count.objects >= s->n_slots)
        grow_locked(s);
    struct entry **at = &s->slots[x->hash & (s->n_slots - 1)];
    x->chain = *at;
    *at = x;
    x->older = s->newest;
    if (s->newest)
        s->newest->newer = x;
    else
        s->oldest = x;
    s->newest = x;
    s->count.objects++;
    s->count.bytes += cost_of(x);
}

/* Takes the value out and frees it. */
static void drop_locked(struct shard *s, struct entry **at)
{
    struct entry *x = *at;
    *at = x->chain;
    if (s->hand == x)
        s->hand = x->newer;
    *(x->newer ? &x->newer->older : &s->newest) = x->older;
    *(x->older ? &x->older->newer : &s->oldest) = x->newer;
    s->count.objects--;
    s->count.bytes -= cost_of(x);
    free(x);
}

/* Takes out the value that the hand comes to next and that was not read since it came by. */
static void evict_locked(struct shard *s, uint64_t now_ns)
{
    struct entry *x = s->hand ? s->hand : s->oldest;
    while (x->marked && !is_over(x, now_ns)) {
        x->marked = false;
        x = x->newer ? x->newer : s->oldest;
    }
    s->hand = x;
    if (is_over(x, now_ns))
        s->count.expired++;
    else
        s->count.evicted++;
    drop_locked(s, find_locked(s, x->hash, x->bucket, key_of(x)));
}

static int check_condition(const struct entry *x, const struct value_condition *c, struct err *e)
{
    if (c->if_none_match && x)
        return err_set(e, ERR_PRECONDITION, "the object exists");
    if (c->if_mtime_ns != 0 && c->if_mtime_ns != x->mtime_ns)
        return err_set(e, ERR_PRECONDITION, "the object has another time");
    if (c->if_match.n == 0)
        return 0;
    assert(x);
    if (!slice_eq_str(c->if_match, "*") && !slice_eq(c->if_match, etag_of(x)))
        return err_set(e, ERR_PRECONDITION, "the object has another ETag");
    return 0;
}

/* ---- calls ---- */

struct values *values_new(uint64_t max_bytes)
{
    struct values *v = aligned_alloc(64, ALIGN_UP(sizeof(*v), (size_t)64));
    if (!v)
        abort();
    memset(v, 0, sizeof(*v));
    v->magic = MAGIC;
    v->max_bytes = max_bytes;
    for (size_t i = 0; i < SHARDS; i++) {
        struct shard *s = &v->shards[i];
        lock_init(&s->lock, LOCK_LEAF);
        s->n_slots = SLOTS_FIRST;
        s->slots = calloc(s->n_slots, sizeof(struct entry *));
        if (!s->slots)
            abort();
    }
    return v;
}

void values_free(struct values *v)
{
    if (!v)
        return;
    assert(v->magic == MAGIC);
    for (size_t i = 0; i < SHARDS; i++) {
        struct shard *s = &v->shards[i];
        for (struct entry *x = s->newest, *older; x; x = older) {
            older = x->older;
            free(x);
        }
        free(s->slots);
        lock_fini(&s->lock);
    }
    v->magic = 0;
    free(v);
}

uint64_t values_max_bytes(const struct values *v)
{
    return v->max_bytes;
}

int values_get(struct values *v, uint64_t bucket, struct slice key, uint64_t now_ns, bool with_data,
               struct arena *a, struct value *ret)
{
    assert(v->magic == MAGIC);
    uint64_t hash = hash_of(bucket, key);
    struct shard *s = shard_of(v, hash);
    LOCK_SCOPE(&s->lock);
    struct entry *x = *find_locked(s, hash, bucket, key);
    if (!x || is_over(x, now_ns)) {
        s->count.misses++;
        return -ENOENT;
    }
    s->count.hits++;
    if (!x->marked)
        x->marked = true;
    copy_out(x, with_data, a, ret);
    return 0;
}

int values_put(struct values *v, uint64_t bucket, struct slice key, const struct value *x,
               const struct value_condition *c, uint64_t now_ns, struct err *e)
{
    assert(v->magic == MAGIC && key.n > 0 && key.n < UINT16_MAX && x->etag.n < UINT16_MAX);
    if (x->data.n > VALUES_DATA_MAX)
        return err_set(e, -EFBIG, "a value of %zu bytes: the bucket has values=memory, at most %d are kept",
                       x->data.n, (int)VALUES_DATA_MAX);
    if (x->meta.n + x->content_type.n > VALUES_META_MAX)
        return err_set(e, -E2BIG, "metadata of the object is %zu bytes, at most %d are allowed",
                       x->meta.n + x->content_type.n, (int)VALUES_META_MAX);
    uint64_t hash = hash_of(bucket, key), share = v->max_bytes / SHARDS;
    struct entry *fresh = entry_new(hash, bucket, key, x);
    struct shard *s = shard_of(v, hash);
    LOCK_SCOPE(&s->lock);
    struct entry **at = find_locked(s, hash, bucket, key);
    bool there = *at && !is_over(*at, now_ns);
    int r = !there && c->if_match.n > 0 ? err_set(e, -ENOENT, "the object does not exist")
                                        : check_condition(there ? *at : NULL, c, e);
    if (r < 0) {
        free(fresh);
        return r;
    }
    if (*at) {
        s->count.replaced += there;
        s->count.expired += !there;
        drop_locked(s, at);
    }
    while (s->count.objects > 0 && s->count.bytes + cost_of(fresh) > share)
        evict_locked(s, now_ns);
    add_locked(s, fresh);
    return 0;
}

int values_remove(struct values *v, uint64_t bucket, struct slice key, const struct value_condition *c,
                  uint64_t now_ns, struct err *e)
{
    assert(v->magic == MAGIC);
    uint64_t hash = hash_of(bucket, key);
    struct shard *s = shard_of(v, hash);
    LOCK_SCOPE(&s->lock);
    struct entry **at = find_locked(s, hash, bucket, key);
    bool there = *at && !is_over(*at, now_ns);
    if (!there)
        return err_set(e, -ENOENT, "no such object");
    int r = check_condition(*at, c, e);
    if (r == 0)
        drop_locked(s, at);
    return r;
}

/* ---- listing ---- */

/* What is listed in the place of the key: itself, or the common prefix that it is below. */
static struct slice shown_as(const struct values_list *l, struct slice key, bool *ret_is_prefix)
{
    const char *end = l->delimiter && key.n > l->prefix.n
                          ? memchr(key.p + l->prefix.n, l->delimiter, key.n - l->prefix.n)
                          : NULL;
    *ret_is_prefix = end != NULL;
    return end ? slice_of(key.p, (size_t)(end - key.p) + 1) : key;
}

/* An entry of a page while it is made: strings on the heap, because any of them may give way to another. */
struct listed {
    char *key, *etag;
    struct values_listed shown;
};

static void listed_fini(struct listed *x)
{
    free(x->key);
    free(x->etag);
}

/* The place of a name in the sorted page[0..n). */
static size_t place_of(const struct listed *page, size_t n, struct slice name, bool *ret_found)
{
    size_t low = 0, high = n;
    *ret_found = false;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int c = slice_cmp(page[middle].shown.key, name);
        if (c == 0) {
            *ret_found = true;
            return middle;
        }
        if (c < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Puts one value into the page when it is among the first `max`. */
static void list_one(const struct values_list *l, const struct entry *x, struct listed *page, size_t *n,
                     bool *ret_truncated)
{
    bool is_prefix, found;
    struct slice name = shown_as(l, key_of(x), &is_prefix);
    if (!slice_starts(key_of(x), l->prefix) || slice_cmp(name, l->after) <= 0)
        return;
    size_t at = place_of(page, *n, name, &found);
    if (found)
        return;
    if (*n == l->max) {
        *ret_truncated = true;
        if (at == l->max)
            return;
        listed_fini(&page[--*n]); /* the last one gives way */
    }
    memmove(page + at + 1, page + at, (*n - at) * sizeof(*page));
    (*n)++;
    page[at] = (struct listed){.key = slice_dup(name), .shown = {.is_prefix = is_prefix}};
    page[at].shown.key = slice_of(page[at].key, name.n);
    if (is_prefix)
        return;
    page[at].etag = slice_dup(etag_of(x));
    page[at].shown.etag = slice_of(page[at].etag, x->etag_n);
    page[at].shown.size_bytes = x->data_n;
    page[at].shown.mtime_ns = x->mtime_ns;
}

size_t values_list(struct values *v, uint64_t bucket, const struct values_list *l, uint64_t now_ns,
                   struct arena *a, struct values_listed *ret, bool *ret_truncated)
{
    assert(v->magic == MAGIC && l->max > 0);
    _cleanup_free_ struct listed *page = calloc(l->max, sizeof(*page));
    if (!page)
        abort();
    size_t n = 0;
    *ret_truncated = false;
    for (size_t i = 0; i < SHARDS; i++) {
        struct shard *s = &v->shards[i];
        LOCK_SCOPE(&s->lock);
        for (const struct entry *x = s->newest; x; x = x->older)
            if (x->bucket == bucket && !is_over(x, now_ns))
                list_one(l, x, page, &n, ret_truncated);
    }
    for (size_t i = 0; i < n; i++) {
        ret[i] = page[i].shown;
        ret[i].key = arena_dup(a, page[i].shown.key);
        ret[i].etag = arena_dup(a, page[i].shown.etag);
        listed_fini(&page[i]);
    }
    return n;
}

/* ---- all of them ---- */

struct values_count values_count_bucket(struct values *v, uint64_t bucket, uint64_t now_ns)
{
    struct values_count sum = {0};
    for (size_t i = 0; i < SHARDS; i++) {
        struct shard *s = &v->shards[i];
        LOCK_SCOPE(&s->lock);
        for (const struct entry *x = s->newest; x; x = x->older) {
            bool counts = x->bucket == bucket && !is_over(x, now_ns);
            sum.objects += counts;
            sum.bytes += counts ? x->data_n : 0;
        }
    }
    return sum;
}

/* Drops those of one bucket, or all that are over. */
static void drop_where(struct values *v, bool all, uint64_t bucket, uint64_t now_ns)
{
    for (size_t i = 0; i < SHARDS; i++) {
        struct shard *s = &v->shards[i];
        LOCK_SCOPE(&s->lock);
        for (struct entry *x = s->newest, *older; x; x = older) {
            older = x->older;
            if ((!all && x->bucket != bucket) || (all && !is_over(x, now_ns)))
                continue;
            s->count.expired += all;
            drop_locked(s, find_locked(s, x->hash, x->bucket, key_of(x)));
        }
    }
}

void values_forget_bucket(struct values *v, uint64_t bucket)
{
    drop_where(v, /* all= */ false, bucket, 0);
}

void values_sweep(struct values *v, uint64_t now_ns)
{
    drop_where(v, /* all= */ true, 0, now_ns);
}

struct values_count values_count(struct values *v)
{
    struct values_count sum = {0};
    for (size_t i = 0; i < SHARDS; i++) {
        struct shard *s = &v->shards[i];
        LOCK_SCOPE(&s->lock);
        sum.bytes += s->count.bytes;
        sum.objects += s->count.objects;
        sum.hits += s->count.hits;
        sum.misses += s->count.misses;
        sum.evicted += s->count.evicted;
        sum.expired += s->count.expired;
        sum.replaced += s->count.replaced;
    }
    return sum;
}

void values_check(struct values *v)
{
    for (size_t i = 0; i < SHARDS; i++) {
        struct shard *s = &v->shards[i];
        LOCK_SCOPE(&s->lock);
        uint64_t n = 0, bytes = 0;
        bool hand_seen = s->hand == NULL;
        for (struct entry *x = s->newest; x; x = x->older, n++) {
            bytes += cost_of(x);
            hand_seen = hand_seen || x == s->hand;
            assert(shard_of(v, x->hash) == s && *find_locked(s, x->hash, x->bucket, key_of(x)) == x);
            assert(x->older ? x->older->newer == x : s->oldest == x);
        }
        assert(hand_seen && n == s->count.objects && bytes == s->count.bytes);
        assert(n <= 1 || bytes <= v->max_bytes / SHARDS);
    }
}
