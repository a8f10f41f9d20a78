/*
 * Write-back: listings of the layer. A page of the origin with the records of the same range laid over it.
 *
 * Invariants:
 *  1. `position` goes up with every round, and everything up to it was given or is hidden; the origin's own
 * token is kept only while it stands exactly there.
 *  2. Records are read before the origin is asked: what is carried out between the two is in both answers.
 * The other way round it would be in none.
 */
#include "object/back_internal.h"

#define MINE_MAX    1000 /* records in one round */
#define ROUND_ARENA (16 * MIB)

struct listing {
    struct back *back;
    struct upstream *upstream;
    const struct origin_list *ask;
    struct arena *arena; /* of the caller: what is given */
    struct arena *round; /* of one round */
    struct buf position, inner;
    struct origin_entry *given;
    size_t n_given;
    struct back_listed mine[MINE_MAX];
    size_t n_mine;
    struct origin_walk walk;
    bool limited; /* there may be more records than `mine` could hold */
};

static int keep(struct buf *b, struct slice s)
{
    char *copy = slice_dup(s); /* it may be of the same buffer */
    buf_clear(b);
    int r = buf_slice(b, slice_of(copy, s.n));
    free(copy);
    return r;
}

static struct slice lower(const struct listing *l)
{
    struct slice p = buf_view(&l->position);
    return slice_cmp(l->ask->after, p) > 0 ? l->ask->after : p;
}

/* ---- records of a range ---- */

/* The common prefix that a key is shown as; empty when it is shown itself. */
static struct slice group_of(const struct origin_list *ask, struct slice key)
{
    ssize_t cut = ask->delimiter ? slice_find(slice_from(key, ask->prefix.n), ask->delimiter) : -1;
    return cut < 0 ? SLICE_NULL : slice_sub(key, 0, ask->prefix.n + (size_t)cut + 1);
}

/* Whether there is a put below the group. */
static int group_lives(struct back *b, uint64_t bucket_id, struct slice group, bool *ret, struct err *e)
{
    _cleanup_buf_ struct buf from = BUF_INIT(BACK_KEY_BYTES), to = BUF_INIT(BACK_KEY_BYTES);
    back_range(bucket_id, group, SLICE_NULL, &from, &to);
    _cleanup_(kv_iter_freep) struct kv_iter *it = kv_iter_new(b->kv, buf_view(&from), buf_view(&to));
    struct slice k, value;
    struct back_record rec;
    int r;
    *ret = false;
    while (!*ret && (r = kv_iter_next(it, &k, &value, e)) == 0)
        *ret = back_record_decode(value, &rec) == 0 && !rec.removal;
    return *ret || r == -ENOENT ? 0 : r;
}

static int add_mine(struct listing *l, struct slice key, struct slice group, struct slice value,
                    struct err *e)
{
    struct back_listed *m = &l->mine[l->n_mine];
    struct back_record rec;
    int r = 0;
    *m =
        (struct back_listed){.key = arena_dup(l->round, group.n > 0 ? group : key), .is_prefix = group.n > 0};
    if (group.n > 0) {
        bool lives;
        r = group_lives(l->back, l->upstream->bucket->id, m->key, &lives, e);
        m->gone = !lives;
    } else if ((r = back_record_decode(value, &rec)) == 0) {
        m->gone = rec.removal;
        m->attr = back_attr(&rec, l->round);
        m->attr.content_type = m->attr.meta = SLICE_NULL;
    }
    if (r == 0)
        l->n_mine++;
    return r == ERR_CORRUPT ? err_set(e, r, "a record of write-back is damaged") : r;
}

/* Adds records from one place on until the next group: *ret_group. 0, -ENOENT at the end, or an error. */
static int gather_run(struct listing *l, const struct buf *from, const struct buf *to,
                      struct slice *ret_group, struct err *e)
{
    _cleanup_(kv_iter_freep) struct kv_iter *it = kv_iter_new(l->back->kv, buf_view(from), buf_view(to));
    struct slice k, value;
    int r;
    while ((r = kv_iter_next(it, &k, &value, e)) == 0) {
        struct slice key = slice_from(k, 10), group = group_of(l->ask, key);
        struct slice name = group.n > 0 ? group : key;
        bool seen = slice_cmp(name, lower(l)) <= 0;
        if (!seen && l->n_mine == MINE_MAX) {
            l->limited = true;
            return -ENOENT;
        }
        r = seen ? 0 : add_mine(l, key, group, value, e);
        if (r < 0)
            return r;
        if (group.n > 0) {
            *ret_group = arena_dup(l->round, group);
            return 0;
        }
    }
    return r;
}

/* The records behind the position, as many as there is room for. */
static int gather(struct listing *l, struct err *e)
{
    uint64_t id = l->upstream->bucket->id;
    _cleanup_buf_ struct buf from = BUF_INIT(BACK_KEY_BYTES), to = BUF_INIT(BACK_KEY_BYTES);
    struct slice group;
    int r;
    l->n_mine = 0;
    l->limited = false;
    back_range(id, l->ask->prefix, lower(l), &from, &to);
    while ((r = gather_run(l, &from, &to, &group, e)) == 0) {
        _cleanup_buf_ struct buf unused = BUF_INIT(BACK_KEY_BYTES);
        buf_clear(&from);
        back_range(id, group, SLICE_NULL, &unused, &from); /* goes on behind the group */
    }
    return r == -ENOENT ? 0 : r;
}

/* Whether the origin has a key below the group that is not removed here. */
static int origin_lives(struct listing *l, struct slice group, bool *ret, struct err *e)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(ROUND_ARENA);
    _cleanup_buf_ struct buf token = BUF_INIT(ROUND_ARENA);
    struct origin_page page;
    struct origin_walk walk = {0};
    *ret = false;
    do {
        struct origin_list ask = {.prefix = group, .token = buf_view(&token), .max = 1000};
        arena_clear(a);
        int r = origin_list(l->upstream->origin, &ask, a, &page, e);
        if (r == 0)
            r = origin_walk_on(&walk, &page, e);
        if (r < 0)
            return r;
        for (size_t i = 0; i < page.n && !*ret; i++)
            *ret = !back_has(l->back, l->upstream->bucket->id, page.entries[i].key);
        r = keep(&token, page.next_token);
        if (r < 0)
            return r;
    } while (!*ret && page.truncated);
    return 0;
}

/* Groups of which all records are removals go only when nothing else is below them. */
static int settle_groups(struct listing *l, const struct origin_page *page, struct err *e)
{
    size_t n = 0;
    for (size_t i = 0; i < l->n_mine; i++) {
        struct back_listed *m = &l->mine[i];
        bool lives = false, shown = false;
        for (size_t k = 0; m->is_prefix && m->gone && k < page->n && !shown; k++)
            shown = slice_eq(page->entries[k].key, m->key);
        int r = shown ? origin_lives(l, m->key, &lives, e) : 0;
        if (r < 0)
            return r;
        if (!lives)
            l->mine[n++] = *m;
    }
    l->n_mine = n;
    return 0;
}

/* ---- rounds ---- */

static void give(struct listing *l, const struct origin_entry *x)
{
    struct origin_entry *to = &l->given[l->n_given++];
    *to = *x;
    to->key = arena_dup(l->arena, x->key);
    to->attr.etag = arena_dup(l->arena, x->attr.etag);
    to->attr.content_type = to->attr.meta = SLICE_NULL;
}

/* Leaves of page and records what both of them know: *upper is its end, which the page's was before. */
static void trim(struct listing *l, struct origin_page *page, struct slice *upper)
{
    if (l->limited) {
        struct slice end = l->mine[l->n_mine - 1].key;
        l->limited = !page->truncated || slice_cmp(*upper, end) > 0;
        *upper = l->limited ? end : *upper;
    }
    if (l->limited) { /* the rest of the page is asked for again */
        while (page->n > 0 && slice_cmp(page->entries[page->n - 1].key, *upper) > 0)
            page->n--;
    } else if (page->truncated) {
        while (l->n_mine > 0 && slice_cmp(l->mine[l->n_mine - 1].key, *upper) > 0)
            l->n_mine--;
    }
}

/* One page of the origin and the records of its range. *ret_more: there may be further entries. */
static int one_round(struct listing *l, bool *ret_more, struct err *e)
{
    struct origin_list ask = *l->ask;
    struct origin_page page;
    arena_clear(l->round);
    ask.token = arena_dup(l->round, buf_view(&l->inner));
    ask.after = ask.token.n > 0 ? SLICE_NULL : arena_dup(l->round, lower(l));
    int r = gather(l, e);
    r = r < 0 ? r : origin_list(l->upstream->origin, &ask, l->round, &page, e);
    if (r < 0)
        return r;
    struct slice upper = page.n > 0 ? page.entries[page.n - 1].key : lower(l);
    trim(l, &page, &upper);
    r = settle_groups(l, &page, e);
    if (r < 0)
        return r;
    size_t room = l->ask->max - l->n_given;
    struct origin_entry *merged = arena_alloc(l->round, (room + 1) * sizeof(*merged));
    struct back_merged m;
    back_merge(page.entries, page.n, l->mine, l->n_mine, room, merged, &m);
    for (size_t i = 0; i < m.n; i++)
        give(l, &merged[i]);
    bool again = m.cut || l->limited;
    *ret_more = again || page.truncated;
    r = again ? 0 : origin_walk_on(&l->walk, &page, e); /* else the records lead on */
    if (r < 0)
        return r;
    struct slice position = m.cut ? m.last : upper;
    r = *ret_more ? keep(&l->position, position) : 0;
    return r < 0 ? r : keep(&l->inner, again ? SLICE_NULL : page.next_token);
}

static int listing_run(struct listing *l, struct origin_page *ret, struct err *e)
{
    bool more;
    do {
        int r = one_round(l, &more, e);
        if (r < 0)
            return r;
    } while (more && l->n_given < l->ask->max);
    *ret = (struct origin_page){.entries = l->given, .n = l->n_given, .truncated = more};
    return 0;
}

static int set_token(struct origin_page *page, struct slice position, struct slice inner, struct arena *a,
                     struct err *e)
{
    _cleanup_buf_ struct buf token = BUF_INIT(position.n + inner.n + 32);
    if (!page->truncated)
        return 0;
    int r = back_token_encode(position, inner, &token);
    if (r < 0)
        return err_set(e, r, "the origin's token is too long");
    page->next_token = arena_dup(a, buf_view(&token));
    return 0;
}

int back_layer_list(void *arg, struct upstream *u, const struct origin_list *q, struct arena *a,
                    struct origin_page *ret, struct err *e)
{
    struct back *b = CAST_MAGIC(back, arg, BACK_MAGIC);
    struct slice position = SLICE_NULL, inner = SLICE_NULL;
    int r = q->token.n > 0 ? back_token_decode(q->token, &position, &inner) : 0;
    if (r < 0)
        return err_set(e, r, "the token of the listing is not one of ours");
    if (atomic_load(&b->n) == 0) { /* nothing to lay over it */
        struct origin_list ask = *q;
        ask.token = inner;
        ask.after = inner.n > 0 ? q->after : slice_cmp(q->after, position) > 0 ? q->after : position;
        r = origin_list(u->origin, &ask, a, ret, e);
        if (r == 0 && ret->n > 0)
            position = ret->entries[ret->n - 1].key;
        return r < 0 ? r : set_token(ret, position, ret->next_token, a, e);
    }
    struct listing *l = calloc(1, sizeof(*l));
    assert(l);
    *l = (struct listing){.back = b,
                          .upstream = u,
                          .ask = q,
                          .arena = a,
                          .round = arena_new(ROUND_ARENA),
                          .position = BUF_INIT(BACK_KEY_BYTES),
                          .inner = BUF_INIT(16 * KIB),
                          .given = arena_alloc(a, (q->max + 1) * sizeof(struct origin_entry))};
    r = keep(&l->position, position);
    r = r < 0 ? r : keep(&l->inner, inner);
    r = r < 0 ? err_set(e, r, "the token of the listing is too long") : listing_run(l, ret, e);
    if (r == 0)
        r = set_token(ret, buf_view(&l->position), buf_view(&l->inner), a, e);
    buf_fini(&l->position);
    buf_fini(&l->inner);
    arena_free(l->round);
    free(l);
    return r;
}
