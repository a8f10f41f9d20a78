/*
 * What is remembered of mirror buckets, and the questions that fill it.
 *
 * Invariants:
 *  1. Nothing is remembered from an answer that a local write may have overtaken: the generation of the key
 * (of the bucket, for pages) is read before the origin is asked and compared before the answer is kept.
 *  2. An answer is used without asking only while the bucket's `validate` allows. That an object does not
 * exist is believed for at most NEGATIVE_MS.
 *
 * Failure modes: a lost or evicted entry costs one more question. Generations are striped: two keys may share
 * one, and a write to one then keeps an answer about the other from being remembered.
 */
#include "namespace/mirror_internal.h"

#include "base/hash.h"
#include "base/sys.h"

#include <inttypes.h>

#define NEGATIVE_MS   1000
#define COMPONENT_MAX 255
#define CLOCK_SLACK_MS                                                                                       \
    1000 /* confirmed this far ahead of the clock: believed; further: the clock was set back */
#define LIST_ARENA_BYTES (2 * MIB)

struct mirror *mirror_new(uint64_t cache_bytes)
{
    struct mirror *m = calloc(1, sizeof(*m));
    assert(m);
    m->cache = lru_new(cache_bytes);
    return m;
}

void mirror_free(struct mirror *m)
{
    if (!m)
        return;
    lru_free(m->cache);
    free(m);
}

void mirror_on_learned(struct mirror *m, mirror_listens_fn listens, mirror_learned_fn fn, void *arg)
{
    m->listens = listens;
    m->on_learned = fn;
    m->on_learned_arg = arg;
}

/* ---- names ---- */

bool mirror_component_is_legal(struct slice c)
{
    return c.n > 0 && c.n <= COMPONENT_MAX && !slice_eq_str(c, ".") && !slice_eq_str(c, "..") &&
           slice_find(c, '\0') < 0;
}

bool mirror_key_is_path(struct slice key)
{
    while (key.n > 0) {
        bool last = slice_find(key, '/') < 0;
        if (!mirror_component_is_legal(slice_split(&key, '/')))
            return false;
        if (last)
            return true;
        if (key.n == 0)
            return false; /* ended with a slash */
    }
    return false;
}

/* ---- remembering ---- */

/* 'a': what is remembered; 'b': what was remembered before it was forgotten. */
#define ATTR_KEY_MAX (1 + sizeof(uint64_t) + ORIGIN_KEY_MAX_BYTES)
static struct slice attr_key(char kind, const struct bucket *b, struct slice key, char ret[ATTR_KEY_MAX])
{
    assert(key.n <= ORIGIN_KEY_MAX_BYTES);
    ret[0] = kind;
    memcpy(ret + 1, &b->place, sizeof(b->place));
    if (key.n > 0)
        memcpy(ret + 1 + sizeof(b->place), key.p, key.n);
    return slice_of(ret, 1 + sizeof(b->place) + key.n);
}

static size_t stripe_of(const struct bucket *b, struct slice key)
{
    return hash_mix(hash_table(key), b->place) % MIRROR_STRIPES;
}

uint64_t mirror_generation(struct mirror *m, const struct bucket *b, struct slice key)
{
    return atomic_load(&m->key_generation[stripe_of(b, key)]);
}

/* When something is asked about again. */
struct policy {
    enum bucket_validate validate;
    uint64_t ttl_ms;
};

/* The bucket's policy for objects or for listings, or that of a rule for the key. */
static struct policy policy_of(const struct bucket *b, struct slice key, bool is_listing)
{
    struct policy p = is_listing ? (struct policy){b->validate_listing, b->listing_ttl_ms}
                                 : (struct policy){b->validate, b->ttl_ms};
    if (rules_ttl(&b->rules, key, &p.ttl_ms))
        p.validate = BUCKET_VALIDATE_TTL;
    return p;
}

static bool is_fresh(const struct policy *p, uint64_t confirmed_ns, bool is_absent)
{
    uint64_t now = sys->real_ns();
    uint64_t age_ms = now > confirmed_ns ? (now - confirmed_ns) / 1000000 : 0;
    uint64_t ahead_ms = confirmed_ns > now ? (confirmed_ns - now) / 1000000 : 0;
    if (p->validate == BUCKET_VALIDATE_ALWAYS || confirmed_ns == 0)
        return false;
    if (is_absent && (age_ms > NEGATIVE_MS || ahead_ms > CLOCK_SLACK_MS))
        return false;
    return p->validate == BUCKET_VALIDATE_NEVER || (age_ms < p->ttl_ms && ahead_ms <= CLOCK_SLACK_MS);
}

bool mirror_is_fresh(const struct bucket *b, struct slice key, uint64_t confirmed_ns, bool is_absent)
{
    struct policy p = policy_of(b, key, /* is_listing= */ false);
    return is_fresh(&p, confirmed_ns, is_absent);
}

bool mirror_listing_is_fresh(const struct bucket *b, struct slice prefix, uint64_t fetched_ns)
{
    struct policy p = policy_of(b, prefix, /* is_listing= */ true);
    return is_fresh(&p, fetched_ns, /* is_absent= */ false);
}

uint64_t mirror_valid_ms(const struct bucket *b, struct slice key, uint64_t confirmed_ns)
{
    struct policy p = policy_of(b, key, /* is_listing= */ false);
    if (!is_fresh(&p, confirmed_ns, /* is_absent= */ false))
        return 0;
    if (p.validate == BUCKET_VALIDATE_NEVER)
        return UINT64_MAX;
    uint64_t now = sys->real_ns();
    uint64_t age_ms = now > confirmed_ns ? (now - confirmed_ns) / 1000000 : 0;
    return age_ms < p.ttl_ms ? p.ttl_ms - age_ms : 0;
}

static int recall(struct mirror *m, char kind, const struct bucket *b, struct slice key, struct arena *a,
                  struct attr *ret)
{
    if (key.n > ORIGIN_KEY_MAX_BYTES)
        return -ENOENT;
    char k[ATTR_KEY_MAX];
    struct slice blob;
    int r = lru_get_in(m->cache, attr_key(kind, b, key, k), a, &blob);
    return r < 0 ? r : attr_decode(blob, ret);
}

int mirror_recall_stale(struct mirror *m, const struct bucket *b, struct slice key, struct arena *a,
                        struct attr *ret)
{
    return recall(m, 'a', b, key, a, ret);
}

int mirror_recall_before(struct mirror *m, const struct bucket *b, struct slice key, struct arena *a,
                         struct attr *ret)
{
    return recall(m, 'b', b, key, a, ret);
}

void mirror_note_before(struct mirror *m, const struct bucket *b, struct slice key, const struct attr *attr)
{
    _cleanup_buf_ struct buf v = BUF_INIT(ATTR_BLOB_MAX_BYTES);
    char k[ATTR_KEY_MAX];
    if (key.n > ORIGIN_KEY_MAX_BYTES || atomic_load(&b->retired) || attr_encode(attr, &v) < 0)
        return;
    lru_put(m->cache, attr_key('b', b, key, k), buf_view(&v));
}

int mirror_recall(struct mirror *m, const struct bucket *b, struct slice key, struct arena *a,
                  struct attr *ret)
{
    struct attr found;
    int r = mirror_recall_stale(m, b, key, a, &found);
    if (r < 0)
        return r;
    if (!mirror_is_fresh(b, key, found.confirmed_ns, found.is_absent))
        return -ENOENT;
    *ret = found;
    return 0;
}

/* Whether a file system shows something else now. */
static bool shows_otherwise(const struct attr *before, const struct attr *now)
{
    if (before->is_absent != now->is_absent || before->is_directory != now->is_directory)
        return true;
    if (now->is_absent)
        return false;
    if (before->has_meta && now->has_meta && !slice_eq(before->meta, now->meta))
        return true;
    return !now->is_directory &&
           (before->size_bytes != now->size_bytes || !slice_eq(before->etag, now->etag) ||
            !attr_same_time(before->mtime_ns, now->mtime_ns));
}

static bool is_news(struct mirror *m, const struct bucket *b, struct slice key, const struct attr *now,
                    bool *ret_gone)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(2 * ATTR_BLOB_MAX_BYTES);
    struct attr before;
    if (mirror_recall_stale(m, b, key, a, &before) < 0 || !shows_otherwise(&before, now))
        return false;
    *ret_gone = now->is_absent;
    return true;
}

void mirror_learn(struct mirror *m, const struct bucket *b, struct slice key, const struct attr *attr,
                  uint64_t seen)
{
    if (key.n > ORIGIN_KEY_MAX_BYTES || atomic_load(&b->retired))
        return;
    _cleanup_buf_ struct buf v = BUF_INIT(ATTR_BLOB_MAX_BYTES);
    char k[ATTR_KEY_MAX];
    if (attr_encode(attr, &v) < 0)
        return;
    bool gone = false, news = m->listens && m->listens(m->on_learned_arg) && is_news(m, b, key, attr, &gone);
    lru_put_if(m->cache, attr_key('a', b, key, k), buf_view(&v), &m->key_generation[stripe_of(b, key)], seen);
    if (m->on_learned)
        m->on_learned(m->on_learned_arg, b, key, news, gone);
}

_Atomic uint64_t *mirror_bucket_generation(struct mirror *m, const struct bucket *b)
{
    return &m->bucket_generation[b->place % MIRROR_STRIPES];
}

/* A parent that was believed to be empty or absent may exist now, or the reverse: forgotten, too. */
static uint64_t forget_with_parents(struct mirror *m, const struct bucket *b, struct slice key)
{
    size_t own = stripe_of(b, key);
    uint64_t made = atomic_load(&m->key_generation[own]);
    for (bool first = true;; first = false) {
        size_t stripe = stripe_of(b, key);
        uint64_t old = atomic_fetch_add(&m->key_generation[stripe], 1);
        if (stripe == own) /* a parent may share the stripe */
            made = first ? old + 1 : made + 1;
        if (key.n <= ORIGIN_KEY_MAX_BYTES) {
            char k[ATTR_KEY_MAX];
            lru_remove(m->cache, attr_key('a', b, key, k));
        }
        ssize_t slash = slice_rfind(key, '/');
        if (slash <= 0)
            return made;
        key = slice_sub(key, 0, (size_t)slash);
    }
}

uint64_t mirror_changed(struct mirror *m, const struct bucket *b, struct slice key)
{
    (void)atomic_fetch_add(mirror_bucket_generation(m, b), 1);
    return forget_with_parents(m, b, key);
}

/* Attributes and pages; not what was known before a write, which is about the origin as it was then. */
static bool is_of_bucket(const void *arg, struct slice key)
{
    const struct bucket *b = arg;
    return key.n > sizeof(b->place) && key.p[0] != 'b' && memcmp(key.p + 1, &b->place, sizeof(b->place)) == 0;
}

void mirror_forget_bucket(struct mirror *m, const struct bucket *b)
{
    (void)atomic_fetch_add(mirror_bucket_generation(m, b), 1);
    for (size_t i = 0; i < MIRROR_STRIPES; i++)
        (void)atomic_fetch_add(&m->key_generation[i], 1);
    lru_remove_if(m->cache, is_of_bucket, b);
}

/* ---- attributes ---- */

/* The first entries of a listing. A service may send empty pages before them. `a` is cleared. */
static int list_first(struct upstream *u, struct origin_list l, struct arena *a, struct origin_page *ret,
                      struct err *e)
{
    _cleanup_free_ char *token = NULL;
    struct origin_walk walk = {0};
    for (;;) {
        int r = upstream_list(u, &l, a, ret, e);
        if (r == 0)
            r = origin_walk_on(&walk, ret, e);
        if (r < 0 || ret->n > 0 || !ret->truncated || ret->next_token.n == 0)
            return r;
        char *next = slice_dup(ret->next_token);
        l.token = slice_of(next, ret->next_token.n);
        free(token);
        token = next;
    }
}

static char *directory_prefix(struct slice key)
{
    char *p = malloc(key.n + 1);
    assert(p && key.n > 0);
    memcpy(p, key.p, key.n);
    p[key.n] = '/';
    return p;
}

/* Completes what is known of a directory by the metadata of its marker. */
static int stat_marker(struct mirror *m, struct upstream *u, struct slice key, uint64_t seen, struct arena *a,
                       struct attr *dir, struct err *e)
{
    _cleanup_free_ char *marker = directory_prefix(key);
    struct origin_attr found = {0};
    int r = upstream_head(u, slice_of(marker, key.n + 1), SLICE_NULL, a, &found, e);
    if (r < 0 && r != -ENOENT)
        return r;
    dir->has_meta = true;
    dir->meta = r == 0 ? found.meta : SLICE_NULL;
    dir->mtime_ns = r == 0 ? found.mtime_ns : dir->mtime_ns;
    dir->confirmed_ns = sys->real_ns();
    mirror_learn(m, u->bucket, key, dir, seen);
    return 0;
}

/* There is no such object, as the origin said at since_ns, UINT64_MAX: just now. A directory, or nothing. */
static int stat_directory(struct mirror *m, struct upstream *u, struct slice key, bool full, uint64_t seen,
                          uint64_t since_ns, struct arena *a, struct attr *ret, struct err *e)
{
    _cleanup_(arena_freep) struct arena *scratch = arena_new(LIST_ARENA_BYTES);
    _cleanup_free_ char *prefix = directory_prefix(key);
    struct origin_page page;
    int r = list_first(u, (struct origin_list){.prefix = slice_of(prefix, key.n + 1), .max = 1}, scratch,
                       &page, e);
    if (r < 0)
        return r;
    *ret = (struct attr){.is_directory = page.n > 0,
                         .is_absent = page.n == 0,
                         .is_childless = page.n == 0,
                         .confirmed_ns = MIN(since_ns, sys->real_ns())};
    if (page.n > 0)
        ret->mtime_ns = page.entries[0].attr.mtime_ns;
    bool has_marker = page.n > 0 && slice_eq(page.entries[0].key, slice_of(prefix, key.n + 1));
    if (has_marker && full)
        return stat_marker(m, u, key, seen, a, ret, e);
    ret->has_meta = page.n > 0 && !has_marker;
    mirror_learn(m, u->bucket, key, ret, seen);
    return 0;
}

/* The origin's word; absence is an answer (is_absent), not an error. */
static int stat_origin(struct mirror *m, struct upstream *u, struct slice key, bool posix, bool full,
                       struct arena *a, struct attr *ret, struct err *e)
{
    uint64_t seen = mirror_generation(m, u->bucket, key);
    struct origin_attr found;
    int r = upstream_head(u, key, SLICE_NULL, a, &found, e);
    if (r == 0) {
        *ret = attr_of_origin(&found, /* has_meta= */ true, sys->real_ns());
        mirror_learn(m, u->bucket, key, ret, seen);
        return 0;
    }
    if (r != -ENOENT)
        return r;
    if (posix)
        return stat_directory(m, u, key, full, seen, UINT64_MAX, a, ret, e);
    *ret = (struct attr){.is_absent = true, .confirmed_ns = sys->real_ns()};
    mirror_learn(m, u->bucket, key, ret, seen);
    return 0;
}

/* Whether what is remembered answers this question. */
static bool answers(const struct attr *found, bool posix, bool full)
{
    if (found->is_absent)
        return !posix || found->is_childless;
    return (posix || !found->is_directory) && (!full || found->has_meta);
}

static bool is_nameable(struct slice key, bool posix)
{
    return key.n > 0 && key.n <= ORIGIN_KEY_MAX_BYTES && (!posix || mirror_key_is_path(key));
}

int mirror_stat(struct mirror *m, struct upstream *u, struct slice key, bool posix, bool full, bool fresh,
                struct arena *a, struct attr *ret, struct err *e)
{
    if (posix && key.n == 0) {
        *ret = (struct attr){
            .is_directory = true, .confirmed_ns = sys->real_ns(), .mtime_ns = u->bucket->created_ns};
        return 0;
    }
    if (!is_nameable(key, posix))
        return err_set(e, -ENOENT, "no such key");
    struct attr found;
    uint64_t seen = mirror_generation(m, u->bucket, key); /* what is learnt may build on what is recalled */
    int r = fresh ? -ENOENT : mirror_recall(m, u->bucket, key, a, &found);
    if (r == 0 && found.is_directory && posix && full && !found.has_meta)
        r = stat_marker(m, u, key, seen, a, &found, e);
    else if (r == 0 && found.is_absent && posix && !found.is_childless)
        r = stat_directory(m, u, key, full, seen, found.confirmed_ns, a, &found, e);
    else if (r < 0 || !answers(&found, posix, full))
        r = stat_origin(m, u, key, posix, full, a, &found, e);
    if (r < 0)
        return r;
    if (found.is_absent)
        return err_set(e, -ENOENT, "no such key");
    *ret = found;
    return 0;
}

bool mirror_knows(struct mirror *m, const struct bucket *b, struct slice key, bool posix, bool full,
                  struct arena *a)
{
    struct attr found;
    return !is_nameable(key, posix) ||
           (mirror_recall(m, b, key, a, &found) == 0 && answers(&found, posix, full));
}

int mirror_stat_before(struct mirror *m, const struct bucket *b, struct slice key, bool posix, bool full,
                       struct arena *a, struct attr *ret)
{
    struct attr found;
    int r = mirror_recall_stale(m, b, key, a, &found);
    if (r < 0 || found.is_absent || !answers(&found, posix, full))
        return -ENOENT;
    *ret = found;
    return 0;
}

int mirror_check_empty(struct upstream *u, struct slice key, struct arena *a, struct origin_attr *ret,
                       struct err *e)
{
    _cleanup_(arena_freep) struct arena *scratch = arena_new(LIST_ARENA_BYTES); /* of one page at a time */
    _cleanup_free_ char *text = directory_prefix(key);
    struct slice prefix = slice_of(text, key.n + 1);
    struct origin_page page;
    /* Directories within by themselves: with write-back one whose objects are removed here is not empty at
     * the origin yet, and in a listing of all below there is nothing of it. */
    struct origin_list ask = {.prefix = prefix, .delimiter = '/', .max = 2};
    int r = list_first(u, ask, scratch, &page, e);
    if (r < 0)
        return r;
    if (page.n == 0)
        return err_set(e, -ENOENT, "no such directory");
    if (page.n > 1 || !slice_eq(page.entries[0].key, prefix))
        return err_set(e, -ENOTEMPTY, "directory is not empty");
    struct origin_attr marker = page.entries[0].attr;
    marker = (struct origin_attr){
        .size_bytes = marker.size_bytes, .mtime_ns = marker.mtime_ns, .etag = arena_dup(a, marker.etag)};
    if (page.truncated) { /* services say so also when nothing comes any more */
        ask.token = arena_dup(a, page.next_token);
        ask.after = ask.token.n > 0 ? SLICE_NULL : prefix;
        r = list_first(u, ask, scratch, &page, e);
        if (r == 0 && page.n > 0)
            r = err_set(e, -ENOTEMPTY, "directory is not empty");
    }
    if (r == 0)
        *ret = marker;
    return r;
}
