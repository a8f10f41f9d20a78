/*
 * The table of data sets: finding the set of a key, making and splitting sets, giving up empty ones.
 *
 * A prefix is looked up by hash at each '/' of the key, marked ones one by one (they are few and need not end
 * at a
 * '/'). A set that is neither marked nor small counts the next path components of the keys that fall to it
 * and is split by those that make up a quarter or more of them: data sets side by side come apart, a thousand
 * class folders of one data set stay together.
 *
 * Invariants:
 *  1. Place 0 holds the empty prefix with number 0, for keys without '/' and for a full table. It is never
 * given up.
 *  2. No two sets have the same prefix; a set's number modulo EVICT_SETS_MAX is its place.
 *  3. A number is not used twice (until a place was used 4 million times).
 *  4. A set that holds bytes or was read in the last minute is not given up.
 */
#include "store/evict_internal.h"

#include "base/hash.h"

#include <assert.h>
#include <errno.h>

#define SPLIT_SHARE     20 /* a set above 1/20 of the cache is split */
#define HEAVY_SHARE     4  /* by components that make up 1/4 of its calls */
#define HEAVY_MIN       4  /* calls */
#define HEAVY_HALVE     65536
#define GIVE_UP_IDLE_MS 60000

static struct slice set_prefix(const struct evict_set *s)
{
    return slice_of(s->prefix, s->prefix_n);
}

struct evict_set *evict_set_get(const struct evict_sets *t, uint32_t id)
{
    assert(t && t->magic == EVICT_MAGIC);
    struct evict_set *s = &t->sets[id % EVICT_SETS_MAX];
    return s->used && s->id == id ? s : NULL;
}

struct evict_set *evict_sets_lookup(const struct evict_sets *t, struct slice prefix)
{
    for (uint32_t i = (uint32_t)hash_table(prefix);; i++) {
        uint16_t place = t->index[i % EVICT_INDEX_SLOTS];
        if (!place)
            return NULL;
        struct evict_set *s = &t->sets[place - 1];
        if (slice_eq(set_prefix(s), prefix))
            return s;
    }
}

static void index_add(struct evict_sets *t, uint32_t place)
{
    uint32_t i = (uint32_t)hash_table(set_prefix(&t->sets[place]));
    while (t->index[i % EVICT_INDEX_SLOTS])
        i++;
    t->index[i % EVICT_INDEX_SLOTS] = (uint16_t)(place + 1);
}

struct evict_set *evict_sets_put(struct evict_sets *t, uint32_t place, uint32_t id, struct slice prefix,
                                 bool marked)
{
    struct evict_set *s = &t->sets[place];
    assert(place < EVICT_SETS_MAX && !s->used && id % EVICT_SETS_MAX == place);
    *s = (struct evict_set){.id = id, .used = true, .marked = marked, .prefix = slice_dup(prefix)};
    s->prefix_n = prefix.n;
    index_add(t, place);
    if (marked)
        t->marked[t->n_marked++] = (uint16_t)place;
    t->n = MAX(t->n, place + 1);
    return s;
}

void evict_sets_mark(struct evict_sets *t, struct evict_set *s)
{
    if (s->marked)
        return;
    s->marked = true;
    t->marked[t->n_marked++] = (uint16_t)(s - t->sets);
}

static void give_up(struct evict_sets *t, struct evict_set *s)
{
    s->used = false;
    free(TAKE_PTR(s->prefix));
    memset(t->index, 0, sizeof(t->index));
    t->n_marked = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        if (!t->sets[i].used)
            continue;
        index_add(t, i);
        if (t->sets[i].marked)
            t->marked[t->n_marked++] = (uint16_t)i;
    }
}

/* A free place, if need be that of the empty set left alone for longest; -1 when there is none. */
static int find_place(struct evict_sets *t, uint64_t now_ms)
{
    struct evict_set *oldest = NULL;
    uint64_t oldest_ms = GIVE_UP_IDLE_MS;
    for (uint32_t i = 0; i < EVICT_SETS_MAX; i++) {
        struct evict_set *s = &t->sets[i];
        if (!s->used)
            return (int)i;
        uint64_t idle = evict_age_ms(MAX(s->last_read_ms, s->active_since_ms), now_ms);
        if (i > 0 && !s->bytes && idle > oldest_ms) {
            oldest = s;
            oldest_ms = idle;
        }
    }
    if (!oldest)
        return -1;
    give_up(t, oldest);
    return (int)(oldest - t->sets);
}

/* The new set, or `instead` when the table is full or the prefix too long. */
static struct evict_set *add(struct evict_sets *t, struct slice prefix, bool marked, uint64_t now_ms,
                             struct evict_set *instead)
{
    if (prefix.n > EVICT_PREFIX_MAX)
        return instead;
    int place = find_place(t, now_ms);
    if (place < 0)
        return instead;
    uint32_t id = ((t->sets[place].id / EVICT_SETS_MAX + 1) * EVICT_SETS_MAX) + (uint32_t)place;
    struct evict_set *s = evict_sets_put(t, (uint32_t)place, id, prefix, marked);
    s->active_since_ms = now_ms;
    return s;
}

struct evict_sets *evict_sets_new(uint64_t cache_bytes)
{
    assert(cache_bytes > 0);
    struct evict_sets *t = calloc(1, sizeof(*t));
    assert(t);
    *t = (struct evict_sets){.magic = EVICT_MAGIC, .cache_bytes = cache_bytes};
    t->sets = calloc(EVICT_SETS_MAX, sizeof(*t->sets));
    assert(t->sets);
    (void)evict_sets_put(t, 0, 0, SLICE_LIT(""), /* marked= */ false);
    return t;
}

void evict_sets_free(struct evict_sets *t)
{
    if (!t)
        return;
    assert(t->magic == EVICT_MAGIC);
    for (uint32_t i = 0; i < t->n; i++)
        free(t->sets[i].prefix);
    free(t->sets);
    t->magic = 0;
    free(t);
}

/* Counts a call for `component`; returns its count so far, an undercount when there are many different ones.
 */
static struct evict_heavy *note_component(struct evict_set *s, uint64_t component)
{
    struct evict_heavy *free_place = NULL;
    s->heavy_total++;
    for (unsigned i = 0; i < EVICT_HEAVY; i++) {
        struct evict_heavy *h = &s->heavy[i];
        if (h->count && h->component == component) {
            h->count++;
            return h;
        }
        if (!h->count)
            free_place = h;
    }
    if (free_place) {
        *free_place = (struct evict_heavy){.component = component, .count = 1};
        return free_place;
    }
    for (unsigned i = 0; i < EVICT_HEAVY; i++)
        s->heavy[i].count--;
    return NULL;
}

static void halve_components(struct evict_set *s)
{
    if (s->heavy_total < HEAVY_HALVE)
        return;
    s->heavy_total /= 2;
    for (unsigned i = 0; i < EVICT_HEAVY; i++)
        s->heavy[i].count /= 2;
}

/* Splits `s` by the next component of `key` when that is due. */
static struct evict_set *split(struct evict_sets *t, struct evict_set *s, struct slice key, uint64_t now_ms)
{
    struct slice rest = slice_from(key, s->prefix_n);
    ssize_t slash = slice_find(rest, '/');
    if (slash < 0)
        return s;
    struct slice prefix = slice_sub(key, 0, s->prefix_n + (size_t)slash + 1);
    if (s->prefix_n == 0)
        return add(t, prefix, /* marked= */ false, now_ms, s);

    struct evict_heavy *h = note_component(s, hash_table(slice_sub(rest, 0, (size_t)slash + 1)));
    bool due = h && h->count >= HEAVY_MIN && (uint64_t)h->count * HEAVY_SHARE >= s->heavy_total;
    if (!due || s->bytes <= t->cache_bytes / SPLIT_SHARE) {
        halve_components(s);
        return s;
    }
    struct evict_set *child = add(t, prefix, /* marked= */ false, now_ms, s);
    if (child != s) {
        h->count = 0;
        /* The reads so far were the child's; what still comes here begins a period of its own. */
        s->last_read_ms = 0;
        memset(s->pause_ms, 0, sizeof(s->pause_ms));
    }
    return child;
}

static struct evict_set *longest_marked(const struct evict_sets *t, struct slice key)
{
    struct evict_set *best = NULL;
    for (uint32_t i = 0; i < t->n_marked; i++) {
        struct evict_set *s = &t->sets[t->marked[i]];
        if (slice_starts(key, set_prefix(s)) && (!best || s->prefix_n > best->prefix_n))
            best = s;
    }
    return best;
}

/* The longest automatic set, and how many components its prefix has. */
static struct evict_set *longest(const struct evict_sets *t, struct slice key, size_t *ret_depth)
{
    struct evict_set *best = &t->sets[0];
    size_t depth = 0, best_depth = 0;
    for (size_t i = 0; i < key.n && depth < EVICT_DEPTH_MAX; i++) {
        if (key.p[i] != '/')
            continue;
        depth++;
        struct evict_set *s = evict_sets_lookup(t, slice_sub(key, 0, i + 1));
        if (s) {
            best = s;
            best_depth = depth;
        }
    }
    *ret_depth = best_depth;
    return best;
}

uint32_t evict_set_find(const struct evict_sets *t, struct slice key)
{
    assert(t && t->magic == EVICT_MAGIC);
    const struct evict_set *s = longest_marked(t, key);
    size_t depth;
    return s ? s->id : longest(t, key, &depth)->id;
}

uint32_t evict_set_of(struct evict_sets *t, struct slice key, struct slice marked, uint64_t now_ms)
{
    assert(t && t->magic == EVICT_MAGIC);
    assert(slice_starts(key, marked));
    struct evict_set *s;
    if (marked.n) {
        s = evict_sets_lookup(t, marked);
        if (s)
            evict_sets_mark(t, s);
        else
            (void)add(t, marked, /* marked= */ true, now_ms, NULL);
    }
    s = longest_marked(t, key);
    if (s)
        return s->id;
    size_t depth;
    s = longest(t, key, &depth);
    return depth < EVICT_DEPTH_MAX ? split(t, s, key, now_ms)->id : s->id;
}

size_t evict_sets_count(const struct evict_sets *t)
{
    return t->n;
}

int evict_set_info(const struct evict_sets *t, uint32_t set, struct evict_set_info *ret)
{
    const struct evict_set *s = evict_set_get(t, set);
    if (!s)
        return -ENOENT;
    *ret = (struct evict_set_info){.prefix = set_prefix(s),
                                   .marked = s->marked,
                                   .bytes = s->bytes,
                                   .last_read_ms = s->last_read_ms,
                                   .active_since_ms = s->active_since_ms,
                                   .reread_interval_ms = evict_set_interval_ms(s)};
    return 0;
}

void evict_sets_each(const struct evict_sets *t,
                     void (*fn)(uint32_t set, const struct evict_set_info *i, void *arg), void *arg)
{
    for (uint32_t i = 0; i < t->n; i++) {
        struct evict_set_info info;
        if (evict_set_info(t, t->sets[i].id, &info) == 0)
            fn(t->sets[i].id, &info, arg);
    }
}

void evict_sets_check(const struct evict_sets *t)
{
    assert(t && t->magic == EVICT_MAGIC && t->cache_bytes > 0);
    assert(t->n >= 1 && t->n <= EVICT_SETS_MAX);
    assert(t->sets[0].used && t->sets[0].id == 0 && t->sets[0].prefix_n == 0);
    size_t used = 0, indexed = 0, marked = 0;
    for (uint32_t i = 0; i < EVICT_SETS_MAX; i++) {
        const struct evict_set *s = &t->sets[i];
        assert(s->used == (i < t->n));
        if (!s->used)
            continue;
        used++;
        marked += s->marked;
        assert(s->id % EVICT_SETS_MAX == i && s->prefix && s->prefix_n <= EVICT_PREFIX_MAX);
        assert(evict_sets_lookup(t, set_prefix(s)) == s);
    }
    for (size_t i = 0; i < EVICT_INDEX_SLOTS; i++)
        indexed += t->index[i] != 0;
    assert(used == indexed && used == t->n && marked == t->n_marked);
    for (uint32_t i = 0; i < t->n_marked; i++)
        assert(t->sets[t->marked[i]].marked);
}
