/*
 * Removing objects of scratch buckets whose time is over (namespace/expiry.h): nobody finds them any more,
 * and this is what gives their space back. Now and then it walks the buckets that have a `ttl`, or had one,
 * as objects keep the ends of their own that they were given then, in pages.
 *
 * 1. An object is removed only when it has ended by the very record that the removal finds, which says what
 * the file says just before that: whoever writes the key or the file in between keeps what was written.
 * 2. A bucket is walked once in a quarter of its ttl, between TURN_MIN_NS and TURN_MAX_NS, whatever the
 * others have; sooner, as objects may have ends of their own, where that takes no more than one part in
 * WALK_SHARE of the time. One that has no ttl any more, and in which no object has an end of its own, once in
 * NONE_NS: what a rename or a late PUT has hidden from the walk waits for so long.
 *
 * Failure modes: what cannot be listed or removed is logged, once for a bucket and walk, and tried again by
 * the next one.
 */
#include "object/scratch_object_ops.h"

#include "base/log.h"
#include "base/sys.h"
#include "origin/meta.h"

#define PAGE          1000
#define PAGE_BYTES    (2 * MIB)
#define ENTRY_ARENA   (256 * KIB)
#define TURN_MIN_NS   ((uint64_t)1000000000)
#define TURN_MAX_NS   ((uint64_t)600000000000)
#define NS_PER_TTL_MS 250000 /* a quarter of a ms */
#define WALK_SHARE    20
#define NONE_NS       ((uint64_t)24 * 3600 * 1000000000)

/* When a bucket with a ttl was walked last, and for how long. */
struct expire_turn {
    struct expire_turn *next;
    uint64_t bucket_id, ended_ns, took_ns; /* monotonic */
    bool own_ends;                         /* sobject_expire_walked */
};

struct walk {
    struct object_service *service;
    const struct bucket *bucket;
    struct arena *a;  /* of one entry */
    struct buf keys;  /* of a page: what has ended, each with a NUL behind it */
    struct buf after; /* last key seen */
    uint64_t removed;
    bool own_ends;
};

/* Who changes the ttl has what is not removed by then; a node that ends does not wait, however many there
 * are.
 */
static bool gives_up(const struct walk *w)
{
    return atomic_load(&w->bucket->retired) || object_is_stopping(w->service);
}

static int on_key(void *arg, const struct scratch_listed *x)
{
    struct walk *w = arg;
    struct scratch_inode inode = *x->inode;
    arena_clear(w->a);
    w->own_ends |= inode.meta.n > 0 && meta_get(inode.meta, META_EXPIRES).n > 0;
    bool over = sobject_is_over(w->service->scratch, w->bucket, w->a, &inode);
    int r = over ? buf_slice(&w->keys, x->key) : 0;
    if (over && r == 0)
        r = buf_char(&w->keys, '\0');
    if (r < 0)
        return -E2BIG; /* the page ends here */
    buf_clear(&w->after);
    return buf_slice(&w->after, x->key);
}

/* -ENOENT: it is gone, or has not ended any more. */
static int remove_one(struct walk *w, const struct scratch_call *call, struct slice key, struct err *e)
{
    struct snode *n = w->service->scratch;
    struct scratch_orphans orphans = {0};
    arena_clear(w->a);
    int r = sobject_record(n, call->bucket, key, w->a, e); /* somebody may be writing to it */
    if (r == 0)
        r = scratch_remove_over(n->names, call, key, w->bucket->p.object_ttl, sys->real_ns(), &orphans, e);
    snode_free_unnamed(n, &orphans);
    return r;
}

/* One that cannot be removed keeps no other: the first error is given in the end. */
static int remove_page(struct walk *w, struct err *e)
{
    struct scratch_cred cred = snode_owner(w->bucket);
    const struct scratch_call call = {.bucket = w->bucket->id, .cred = &cred};
    struct slice rest = buf_view(&w->keys);
    int first = 0;
    while (rest.n > 0 && !gives_up(w)) {
        struct err local = {0};
        int r = remove_one(w, &call, slice_split(&rest, '\0'), &local);
        w->removed += r == 0;
        if (r < 0 && r != -ENOENT && first == 0) {
            first = r;
            *e = local;
        }
    }
    return first;
}

static int walk(struct walk *w, struct err *e)
{
    bool more = true;
    int r = 0, first = 0;
    while (r == 0 && more && !gives_up(w)) {
        struct scratch_list what = {.after = buf_view(&w->after), .max = PAGE};
        buf_clear(&w->keys);
        _cleanup_free_ char *after = slice_dup(what.after); /* on_key changes the buffer */
        what.after.p = after;
        r = scratch_list(w->service->scratch->names, w->bucket->id, &what, on_key, w, &more, e);
        if (r == 0) {
            struct err local = {0};
            int removed = remove_page(w, &local);
            if (removed < 0 && first == 0) {
                first = removed;
                *e = local;
            }
        }
    }
    w->own_ends |= r < 0 || more;
    return r < 0 ? r : first;
}

/* own_ends, of sobject_expire_walked. */
static bool walk_bucket(struct object_service *s, const struct bucket *b)
{
    struct err e = {0};
    struct walk w = {.service = s,
                     .bucket = b,
                     .a = arena_new(ENTRY_ARENA),
                     .keys = BUF_INIT(PAGE_BYTES),
                     .after = BUF_INIT(ORIGIN_KEY_MAX_BYTES + 8)};
    if (walk(&w, &e) < 0)
        log_warn("object", "bucket %s: objects that have ended: %s", b->name, e.text);
    if (w.removed > 0)
        watch_bucket_changed(s, b->id);
    arena_free(w.a);
    buf_fini(&w.keys);
    buf_fini(&w.after);
    return w.own_ends;
}

/* ---- turns ---- */

static struct expire_turn **find_locked(struct object_service *s, uint64_t bucket_id)
{
    lock_assert_held(&s->expire_lock);
    struct expire_turn **at = &s->expire_turns;
    while (*at && (*at)->bucket_id != bucket_id)
        at = &(*at)->next;
    return at;
}

bool sobject_expire_is_due(struct object_service *s, uint64_t bucket_id, uint64_t ttl_ms, uint64_t now_ns)
{
    LOCK_SCOPE(&s->expire_lock);
    const struct expire_turn *x = *find_locked(s, bucket_id);
    if (!x)
        return true;
    if (ttl_ms == 0 && !x->own_ends)
        return now_ns - x->ended_ns >= NONE_NS;
    ttl_ms = ttl_ms == 0 ? UINT64_MAX : ttl_ms;
    uint64_t quarter_ns = MIN(ttl_ms, TURN_MAX_NS / NS_PER_TTL_MS) * NS_PER_TTL_MS;
    uint64_t cheap_ns = MIN(x->took_ns, TURN_MAX_NS) * WALK_SHARE;
    return now_ns - x->ended_ns >= MAX(MIN(quarter_ns, cheap_ns), TURN_MIN_NS);
}

void sobject_expire_walked(struct object_service *s, uint64_t bucket_id, uint64_t began_ns, uint64_t ended_ns,
                           bool own_ends)
{
    LOCK_SCOPE(&s->expire_lock);
    struct expire_turn **at = find_locked(s, bucket_id);
    if (!*at) {
        *at = calloc(1, sizeof(**at));
        assert(*at);
        (*at)->bucket_id = bucket_id;
    }
    (*at)->took_ns = ended_ns - began_ns;
    (*at)->ended_ns = ended_ns;
    (*at)->own_ends = own_ends;
}

static void forget(struct object_service *s, uint64_t bucket_id)
{
    LOCK_SCOPE(&s->expire_lock);
    struct expire_turn **at = find_locked(s, bucket_id), *x = *at;
    *at = x ? x->next : NULL;
    free(x);
}

static bool may_have_ends(struct object_service *s, const struct bucket *b)
{
    return bucket_is_scratch(b) && !bucket_is_memory(b) &&
           (b->p.object_ttl > 0 || scratch_had_ttl(s->scratch->names, b->id));
}

/* The i-th of the buckets that were walked, or 0. */
static uint64_t walked_at(struct object_service *s, size_t i)
{
    LOCK_SCOPE(&s->expire_lock);
    const struct expire_turn *x = s->expire_turns;
    while (x && i-- > 0)
        x = x->next;
    return x ? x->bucket_id : 0;
}

static void forget_gone(struct object_service *s)
{
    uint64_t id;
    for (size_t i = 0; (id = walked_at(s, i)) != 0;) {
        _cleanup_(bucket_unrefp) struct bucket *b = bucket_find_id(s->buckets, id);
        if (b && may_have_ends(s, b))
            i++;
        else
            forget(s, id);
    }
}

void sobject_expire_turn(struct object_service *s)
{
    forget_gone(s);
    for (struct bucket *b = NULL; (b = bucket_next(s->buckets, b));) {
        uint64_t began_ns = sys->mono_ns();
        if (!may_have_ends(s, b) || !sobject_expire_is_due(s, b->id, b->p.object_ttl, began_ns))
            continue;
        bool own_ends = walk_bucket(s, b);
        sobject_expire_walked(s, b->id, began_ns, sys->mono_ns(), own_ends);
    }
}

void sobject_expire_free(struct object_service *s)
{
    while (s->expire_turns) {
        struct expire_turn *x = s->expire_turns;
        s->expire_turns = x->next;
        free(x);
    }
}
