/*
 * Listings of mirror buckets: pages from the origin, remembered whole, and the attributes in them.
 *
 * A remembered page is the bytes of its reply:
 *
 * | offset | size | page                              |
 * | ------ | ---- | --------------------------------- |
 * | 0      | 8    | when it was fetched, ns since 1970 |
 * | 8      | 4    | number of entries                 |
 * | 12     | 4    | 1 when more follow                |
 * | 16     | 4+n  | where the next page begins        |
 * |        | rest | encoded struct wire_entry         |
 *
 * It lives in memory only, in this process's byte order.
 */
#include "namespace/mirror_internal.h"

#include "base/metrics.h"
#include "base/sys.h"

#define PAGE_MAX_BYTES   (2 * MIB)
#define LIST_MAX         1000
#define LIST_ARENA_BYTES (8 * MIB) /* one page of the origin, at most 1000 entries */
#define OLD_ARENA_BYTES  (64 * KIB)
#define TOKEN_MAX_BYTES  (16 * KIB)
#define PAGES_MAX        100 /* of the origin for one of ours */

/* One listing under way. */
struct lister {
    struct mirror *m;
    struct upstream *u;
    const struct wire_list_req *q;
    uint64_t seen;         /* generation of the bucket before the origin was asked */
    uint64_t asked_ns;     /* real time before the last question */
    struct arena *scratch; /* the page */
    struct arena *old;     /* what was known of one entry */
    struct buf entries, next, token;
    uint32_t n_entries;
    bool truncated;
};

static void page_key(struct mirror *m, const struct bucket *b, const struct wire_list_req *q, struct buf *k)
{
    uint64_t generation = atomic_load(mirror_bucket_generation(m, b));
    uint32_t numbers[4] = {q->delimiter, q->max, q->flags & (WIRE_POSIX | WIRE_UNFIT), (uint32_t)q->prefix.n};
    int r = buf_char(k, 'l');
    r = r < 0 ? r : buf_append(k, &b->place, sizeof(b->place));
    r = r < 0 ? r : buf_append(k, &generation, sizeof(generation));
    r = r < 0 ? r : buf_append(k, numbers, sizeof(numbers));
    r = r < 0 ? r : buf_slice(k, q->prefix);
    r = r < 0 ? r : buf_slice(k, q->after);
    assert(r == 0);
}

static int page_encode(uint64_t now_ns, const struct wire_list_rep *rep, struct buf *b)
{
    uint32_t numbers[3] = {rep->n_entries, rep->truncated, (uint32_t)rep->next.n};
    int r = buf_append(b, &now_ns, sizeof(now_ns));
    r = r < 0 ? r : buf_append(b, numbers, sizeof(numbers));
    r = r < 0 ? r : buf_slice(b, rep->next);
    return r < 0 ? r : buf_slice(b, rep->entries);
}

/* Our own bytes: asserted, not checked. */
static void page_decode(struct slice s, uint64_t *ret_fetched_ns, struct wire_list_rep *ret)
{
    uint32_t numbers[3];
    assert(s.n >= sizeof(uint64_t) + sizeof(numbers));
    memcpy(ret_fetched_ns, s.p, sizeof(uint64_t));
    memcpy(numbers, s.p + sizeof(uint64_t), sizeof(numbers));
    s = slice_from(s, sizeof(uint64_t) + sizeof(numbers));
    assert(s.n >= numbers[2]);
    *ret = (struct wire_list_rep){
        .fd = -1,
        .n_entries = numbers[0],
        .truncated = numbers[1],
        .next = slice_sub(s, 0, numbers[2]),
        .entries = slice_from(s, numbers[2]),
    };
}

/* A page is believed as long as every key that it shows: a rule below its prefix counts too, but not one
 * below a common prefix, which shows nothing of its keys. */
static bool page_is_fresh(const struct bucket *b, const struct wire_list_req *q, uint64_t fetched_ns)
{
    bool fresh = mirror_listing_is_fresh(b, q->prefix, fetched_ns);
    for (size_t i = 0; fresh && i < b->rules.n; i++) {
        const struct rule *x = &b->rules.v[i];
        struct slice prefix = slice_of(x->prefix, x->prefix_n);
        if (!x->has_ttl || !slice_starts(prefix, q->prefix))
            continue;
        if (q->delimiter == 0 || slice_find(slice_from(prefix, q->prefix.n), (char)q->delimiter) < 0)
            fresh = mirror_listing_is_fresh(b, prefix, fetched_ns);
    }
    return fresh;
}

static void page_give(const struct buf *page, struct arena *a, struct wire_list_rep *ret)
{
    uint64_t fetched_ns;
    page_decode(arena_dup(a, buf_view(page)), &fetched_ns, ret);
}

/* Looks for the page, in `page`. *ret_fresh: and it may be given without asking. False: it is not known. */
static bool page_recall(struct mirror *m, const struct bucket *b, const struct wire_list_req *q,
                        const struct buf *key, struct buf *page, bool *ret_fresh)
{
    struct wire_list_rep rep;
    uint64_t fetched_ns;
    *ret_fresh = false;
    if (q->flags & WIRE_FRESH || lru_get(m->cache, buf_view(key), page) < 0)
        return false;
    page_decode(buf_view(page), &fetched_ns, &rep);
    *ret_fresh = page_is_fresh(b, q, fetched_ns);
    return true;
}

/* The name of an entry inside the listed directory, without a trailing slash. */
static struct slice entry_name(const struct origin_entry *x, struct slice prefix)
{
    struct slice name = slice_from(x->key, prefix.n);
    return slice_ends(name, SLICE_LIT("/")) ? slice_sub(name, 0, name.n - 1) : name;
}

/* A file beside a directory of the same name: the directory wins. The two are neighbours but for names that
 * continue with a byte below '/'. */
static bool shadowed(const struct origin_page *page, size_t i, struct slice prefix)
{
    if (page->entries[i].is_prefix)
        return false;
    struct slice name = entry_name(&page->entries[i], prefix);
    for (size_t k = i + 1; k < page->n; k++) {
        struct slice other = entry_name(&page->entries[k], prefix);
        if (!slice_starts(other, name))
            return false;
        if (page->entries[k].is_prefix && slice_eq(other, name))
            return true;
    }
    return false;
}

static bool wanted(const struct origin_page *page, size_t i, const struct wire_list_req *q)
{
    if (!(q->flags & WIRE_POSIX))
        return true;
    const struct origin_entry *x = &page->entries[i];
    if (slice_eq(x->key, q->prefix))
        return false; /* the directory's own marker */
    if (q->delimiter == '/')
        return mirror_component_is_legal(entry_name(x, q->prefix)) && !shadowed(page, i, q->prefix);
    return mirror_key_is_path(x->key);
}

static int add_entry(const struct origin_entry *x, struct buf *b)
{
    struct wire_entry w = {
        .key = x->key,
        .attr =
            {
                .kind = x->is_prefix ? WIRE_DIRECTORY : WIRE_FILE,
                .size_bytes = x->attr.size_bytes,
                .mtime_ns = x->attr.mtime_ns,
                .etag = x->attr.etag,
            },
    };
    return wire_entry_encode(&w, b);
}

/* How many entries of the page can be told: a file at its end may have a directory of the same name on the
 * next page. It is left to that page, unless nothing would be left of this one. */
static size_t whole_names(const struct origin_page *page, const struct wire_list_req *q)
{
    if (!page->truncated || !(q->flags & WIRE_POSIX) || q->delimiter != '/' || page->n == 0)
        return page->n;
    struct slice last = entry_name(&page->entries[page->n - 1], q->prefix);
    for (size_t i = 1; i < page->n; i++)
        if (!page->entries[i].is_prefix && slice_starts(last, entry_name(&page->entries[i], q->prefix)))
            return i;
    return page->n;
}

/* Whether a listing tells of the object, or directory, that a GET or HEAD taught of. */
static bool is_same(const struct bucket *b, const struct attr *old, const struct attr *now)
{
    if (now->is_directory != old->is_directory)
        return false;
    return now->is_directory ? b->p.posix == BUCKET_POSIX_ON
                             : slice_eq(old->etag, now->etag) && old->size_bytes == now->size_bytes;
}

/* What a GET or HEAD taught of the same version stays known, and is confirmed by this listing. But not where
 * metadata may have been changed alone, which an ETag does not tell: where that is done all the time, or the
 * listing has another time. There it is believed as long as that answer itself. */
static void keep_known(const struct bucket *b, struct slice key, const struct attr *old, struct attr *attr)
{
    bool posix = b->p.posix == BUCKET_POSIX_ON;
    bool confirmed = !posix && attr_same_time(old->mtime_ns, attr->mtime_ns);
    if (!confirmed && !mirror_is_fresh(b, key, old->confirmed_ns, /* is_absent= */ false))
        return;
    attr->has_meta = true;
    attr->content_type = old->content_type;
    attr->meta = old->meta;
    if (!confirmed)
        attr->confirmed_ns = old->confirmed_ns;
    if (!confirmed && !posix) /* for the next listing to see */
        attr->mtime_ns = old->mtime_ns;
}

static void learn_entry(struct lister *l, const struct origin_entry *x)
{
    const struct bucket *b = l->u->bucket;
    struct slice key = x->is_prefix ? slice_sub(x->key, 0, x->key.n - 1) : x->key;
    uint64_t seen = mirror_generation(l->m, b, key);
    /* After the key's: a change of the key since the question shows in one or the other. */
    if (atomic_load(mirror_bucket_generation(l->m, b)) != l->seen)
        return;
    struct attr attr = attr_of_origin(&x->attr, /* has_meta= */ false, l->asked_ns);
    attr.is_directory = x->is_prefix;
    arena_clear(l->old);
    struct attr old;
    if (mirror_recall_stale(l->m, b, key, l->old, &old) == 0 && old.has_meta && is_same(b, &old, &attr))
        keep_known(b, key, &old, &attr);
    mirror_learn(l->m, b, key, &attr, seen);
}

static int take_entries(struct lister *l, const struct origin_page *page, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct origin_entry *x = &page->entries[i];
        if (x->is_prefix && (x->key.n == 0 || l->q->delimiter != '/'))
            continue; /* prefixes of another delimiter are no directories */
        if (slice_eq_str(x->attr.etag, ORIGIN_ETAG_UNFIT))
            continue; /* how it begins is the key of another object, perhaps */
        learn_entry(l, x);
    }
    for (size_t i = 0; i < n; i++) {
        if (!wanted(page, i, l->q))
            continue;
        int r = add_entry(&page->entries[i], &l->entries);
        if (r < 0)
            return r;
        l->n_entries++;
    }
    return 0;
}

static int keep(struct buf *b, struct slice s)
{
    buf_clear(b);
    return buf_slice(b, s);
}

/* Without what is not behind the key that the caller has already: services lose their place. */
static struct origin_page page_behind(const struct origin_page *page, struct slice after)
{
    struct origin_page p = *page;
    while (p.n > 0 && after.n > 0 && slice_cmp(p.entries[0].key, after) <= 0) {
        p.entries++;
        p.n--;
    }
    return p;
}

static int take_page(struct lister *l, const struct origin_page *all, struct err *e)
{
    const struct origin_page behind = page_behind(all, l->q->after), *page = &behind;
    size_t n = whole_names(page, l->q);
    int r = take_entries(l, page, n);
    if (r == 0 && n > 0)
        r = keep(&l->next, page->entries[n - 1].key);
    /* Entries that were left out are asked for again, by name. */
    if (r == 0)
        r = keep(&l->token, n == page->n ? page->next_token : SLICE_NULL);
    l->truncated = page->truncated && (n > 0 || l->token.n > 0);
    return r < 0 ? err_set(e, r, "the origin's page is too large") : 0;
}

/* Asks until there is at least one entry to give or no more pages: a page may be empty, or be so after
 * filtering. Behind many pages of which nothing can be given it is left to the caller, who may have gone, to
 * ask for what is behind them. */
static int list_origin(struct lister *l, struct err *e)
{
    struct origin_walk walk = {0};
    for (unsigned pages = 1;; pages++) {
        struct origin_list ask = {
            .prefix = l->q->prefix,
            .delimiter = (char)l->q->delimiter,
            .after = l->token.n > 0  ? SLICE_NULL
                     : l->next.n > 0 ? buf_view(&l->next)
                                     : l->q->after,
            .token = buf_view(&l->token),
            .max = l->q->max,
            .unfit = l->q->flags & WIRE_UNFIT,
        };
        struct origin_page page;
        l->asked_ns = sys->real_ns();
        int r = upstream_list(l->u, &ask, l->scratch, &page, e);
        if (r == 0)
            r = origin_walk_on(&walk, &page, e);
        if (r == 0)
            r = take_page(l, &page, e);
        if (r < 0 || !l->truncated || l->n_entries > 0 || (pages >= PAGES_MAX && l->next.n > 0))
            return r;
    }
}

static void lister_fini(struct lister *l)
{
    arena_free(l->scratch);
    arena_free(l->old);
    buf_fini(&l->entries);
    buf_fini(&l->next);
    buf_fini(&l->token);
}

/* One page from the origin, in the arena. */
static int ask(struct mirror *m, struct upstream *u, const struct wire_list_req *q, uint64_t seen,
               struct arena *a, struct wire_list_rep *ret, struct err *e)
{
    struct lister _cleanup_(lister_fini) l = {
        .m = m,
        .u = u,
        .q = q,
        .seen = seen,
        .scratch = arena_new(LIST_ARENA_BYTES),
        .old = arena_new(OLD_ARENA_BYTES),
        .entries = BUF_INIT(PAGE_MAX_BYTES),
        .next = BUF_INIT(ORIGIN_KEY_MAX_BYTES + 1),
        .token = BUF_INIT(TOKEN_MAX_BYTES),
    };
    int r = list_origin(&l, e);
    if (r < 0)
        return r;
    *ret = (struct wire_list_rep){
        .fd = -1,
        .n_entries = l.n_entries,
        .entries = arena_dup(a, buf_view(&l.entries)),
        .truncated = l.truncated,
        .next = l.truncated ? arena_dup(a, buf_view(&l.next)) : SLICE_NULL,
    };
    return 0;
}

int mirror_list(struct mirror *m, struct upstream *u, const struct wire_list_req *req, struct arena *a,
                struct wire_list_rep *ret, struct err *e)
{
    if (req->delimiter > 127 || req->prefix.n > ORIGIN_KEY_MAX_BYTES ||
        req->after.n > ORIGIN_KEY_MAX_BYTES + 1)
        return err_set(e, -EINVAL, "prefix, marker or delimiter is not one of ours");
    struct wire_list_req q = *req;
    q.max = q.max == 0 || q.max > LIST_MAX ? LIST_MAX : q.max;
    uint64_t seen = atomic_load(mirror_bucket_generation(m, u->bucket));
    _cleanup_buf_ struct buf k = BUF_INIT(MIRROR_CACHE_KEY_MAX), v = BUF_INIT(PAGE_MAX_BYTES),
                             old = BUF_INIT(PAGE_MAX_BYTES);
    struct upstream_doubt doubt;
    bool is_fresh;
    page_key(m, u->bucket, &q, &k);
    bool may_doubt = page_recall(m, u->bucket, &q, &k, &old, &is_fresh) &&
                     u->bucket->validate_listing != BUCKET_VALIDATE_ALWAYS;
    if (!is_fresh && !may_doubt && q.flags & WIRE_NO_WAIT)
        return err_set(e, -EAGAIN, "was not listed before");
    if (is_fresh || (may_doubt && !upstream_doubt_begin(u, &doubt))) {
        page_give(&old, a, ret);
        return 0;
    }
    uint64_t asked_ns = sys->real_ns();
    int r = ask(m, u, &q, seen, a, ret, e);
    bool is_silent = may_doubt && upstream_doubt_end(&doubt, r);
    /* The key holds the generation that was current before: a page overtaken by a write is never found again.
     */
    bool is_overtaken = atomic_load(mirror_bucket_generation(m, u->bucket)) != seen;
    if (is_silent && !is_overtaken) {
        page_give(&old, a, ret);
        return 0;
    }
    if (r == 0 && !is_overtaken && page_encode(asked_ns, ret, &v) == 0)
        lru_put(m->cache, buf_view(&k), buf_view(&v));
    return r;
}
