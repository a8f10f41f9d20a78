/* CACHED and EVICT: what the cache holds of a bucket, and letting go of it. The origin is not asked. */
#include "object/back_internal.h"

#define ENTRY_KEY_MAX  (ORIGIN_KEY_MAX_BYTES + 16)
#define PLACE_BYTES    8
#define UNSENT_KEY_AT  10 /* behind "d/" and the bucket's id */
#define PAGE_MAX_BYTES (2 * MIB)
#define ITEM_BYTES     64 /* of an encoded struct wire_cached at most, without key and ETag */
#define ATTR_ARENA     (4 * ATTR_BLOB_MAX_BYTES)

static_assert(STORE_LIST_MAX * (ORIGIN_KEY_MAX_BYTES + ORIGIN_ETAG_MAX + ITEM_BYTES) <= PAGE_MAX_BYTES,
              "a page holds as much as is asked for at most");

/* One object, with what is in memory only. */
static int64_t list_exact(struct object_service *s, const struct bucket *b, struct slice key, uint32_t flags,
                          struct store_listed *ret, struct err *e)
{
    _cleanup_buf_ struct buf k = BUF_INIT(ENTRY_KEY_MAX);
    object_store_key(b, key, &k);
    _cleanup_(extent_unrefp) struct extent *x = NULL;
    int r = store_find(s->config.store, buf_view(&k), &x);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    r = flags & WIRE_FRESH ? extent_record_blocks(x) : 0;
    if (r < 0)
        return err_set(e, r, "the index of its disk cannot be written");
    *ret = (struct store_listed){.size_bytes = extent_size(x), .present_bytes = extent_present_bytes(x)};
    return 1;
}

static int64_t list_below(struct object_service *s, const struct bucket *b, const struct wire_cached_req *req,
                          size_t max, struct arena *a, struct store_listed *ret, struct err *e)
{
    _cleanup_buf_ struct buf prefix = BUF_INIT(ENTRY_KEY_MAX), after = BUF_INIT(ENTRY_KEY_MAX);
    int r = req->flags & WIRE_FRESH ? store_record(s->config.store, e) : 0;
    if (r < 0)
        return r;
    object_store_key(b, req->prefix, &prefix);
    object_store_key(b, req->after, &after);
    return store_list(s->config.store, buf_view(&prefix), buf_view(&after), max, a, ret);
}

/* Writes that are not in the origin yet: all of their bytes are here. */
static int64_t list_unsent(struct object_service *s, const struct bucket *b,
                           const struct wire_cached_req *req, size_t max, struct arena *a,
                           struct store_listed *ret, struct err *e)
{
    _cleanup_buf_ struct buf from = BUF_INIT(BACK_KEY_BYTES), to = BUF_INIT(BACK_KEY_BYTES);
    back_range(b->id, req->prefix, req->after, &from, &to);
    _cleanup_(kv_iter_freep) struct kv_iter *it = kv_iter_new(s->back->kv, buf_view(&from), buf_view(&to));
    struct slice k, value;
    struct back_record rec;
    size_t n = 0;
    int r = 0;
    while (n < max && (r = kv_iter_next(it, &k, &value, e)) == 0) {
        r = back_record_decode(value, &rec);
        if (r < 0)
            return err_set(e, r, "a record of write-back is damaged");
        if (!rec.removal)
            ret[n++] = (struct store_listed){
                .key = arena_dup(a, k), .size_bytes = rec.size_bytes, .present_bytes = rec.size_bytes};
    }
    return r < 0 && r != -ENOENT ? r : (int64_t)n;
}

/* Says of which version an entry is, with the bytes that are here of just that one. What went meanwhile has
 * nothing here. */
static int describe(struct object_service *s, const struct bucket *b, struct arena *a, struct wire_cached *w)
{
    _cleanup_buf_ struct buf k = BUF_INIT(ENTRY_KEY_MAX);
    _cleanup_(extent_unrefp) struct extent *x = NULL;
    struct attr attr = {0};
    object_store_key(b, w->key, &k);
    int r = store_find(s->config.store, buf_view(&k), &x);
    if (r == 0)
        r = attr_decode(extent_attr_in(x, a), &attr);
    if (r < 0 && r != -ENOENT)
        return r;
    w->size_bytes = x ? extent_size(x) : w->size_bytes;
    w->present_bytes = x ? extent_present_bytes(x) : 0;
    w->flags |= WIRE_CACHED_VERSION;
    w->mtime_ns = attr.mtime_ns;
    w->etag = attr.etag;
    return 0;
}

int op_cached(struct object_session *ses, const struct wire_cached_req *req, struct arena *a,
              struct wire_cached_rep *rep, struct err *e)
{
    struct object_service *s = ses->service;
    if (req->prefix.n > ORIGIN_KEY_MAX_BYTES || req->after.n > ORIGIN_KEY_MAX_BYTES)
        return err_set(e, -ENAMETOOLONG, "prefix is longer than any key");
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    int r = bucket_find(s->buckets, req->bucket, &b, e);
    if (r < 0)
        return r;
    bool exact = req->flags & WIRE_EXACT, unsent = req->flags & WIRE_UNSENT;
    if (exact && unsent)
        return err_set(e, -EINVAL, "bucket %s: of what is not in the origin there is a list only", b->name);
    bool tells_version = req->flags & WIRE_ETAG && !unsent;
    size_t max = exact || req->max == 0 ? 1 : MIN(req->max, (uint32_t)STORE_LIST_MAX);
    struct store_listed *l = arena_zalloc(a, max * sizeof(*l));
    int64_t n = exact    ? list_exact(s, b, req->prefix, req->flags, l, e)
                : unsent ? list_unsent(s, b, req, max, a, l, e)
                         : list_below(s, b, req, max, a, l, e);
    if (n < 0)
        return err_prefix(e, (int)n, "bucket %s: list what is cached", b->name);
    size_t skip = unsent ? UNSENT_KEY_AT : PLACE_BYTES;
    _cleanup_buf_ struct buf out = BUF_INIT(PAGE_MAX_BYTES);
    _cleanup_(arena_freep) struct arena *scratch = arena_new(ATTR_ARENA);
    for (int64_t i = 0; i < n && r == 0; i++) {
        struct wire_cached w = {.key = exact ? req->prefix : slice_from(l[i].key, skip),
                                .size_bytes = l[i].size_bytes,
                                .present_bytes = l[i].present_bytes,
                                .last_read_ms = l[i].last_read_ms};
        w.flags = (bucket_keep(b, w.key) == RULE_KEEP_PINNED ? WIRE_CACHED_PINNED : 0u) |
                  (unsent ? WIRE_CACHED_DIRTY : 0u);
        arena_clear(scratch);
        r = tells_version ? describe(s, b, scratch, &w) : 0;
        r = r < 0 ? r : wire_cached_encode(&w, &out);
    }
    if (r < 0)
        return err_set(e, r, "bucket %s: list what is cached", b->name);
    rep->entries = arena_dup(a, buf_view(&out));
    rep->n_entries = (uint32_t)n;
    rep->truncated = !exact && (size_t)n == max;
    return 0;
}

int op_evict(struct object_session *ses, const struct wire_evict_req *req, struct arena *a,
             struct wire_evict_rep *rep, struct err *e)
{
    (void)a, (void)rep;
    int r = object_check_key(req->key, e);
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    if (r == 0)
        r = bucket_find(ses->service->buckets, req->bucket, &b, e);
    if (r == 0 && !(req->flags & WIRE_FRESH) && bucket_keep(b, req->key) == RULE_KEEP_PINNED)
        return err_set(e, -EBUSY, "%s/" SLICE_FMT " is pinned: forebay unpin first", b->name,
                       SLICE_ARG(req->key));
    if (r == 0 && !(req->flags & WIRE_FRESH) && back_has_bytes(ses->service->back, b, req->key))
        return err_set(e, -EBUSY, "%s/" SLICE_FMT " is not in the origin yet: forebay flush first", b->name,
                       SLICE_ARG(req->key));
    if (r == 0)
        (void)object_forget_key(ses->service, b, req->key);
    return r;
}

/* ---- operations of a layer below ---- */

void object_service_extend(struct object_service *s, object_extension_fn fn, void *arg)
{
    assert(s->magic == OBJECT_SERVICE_MAGIC);
    s->extension = fn;
    s->extension_arg = arg;
}

#define X(NAME, name)                                                                                        \
    int op_##name(struct object_session *ses, const struct wire_##name##_req *req, struct arena *a,          \
                  struct wire_##name##_rep *rep, struct err *e)                                              \
    {                                                                                                        \
        struct object_service *s = ses->service;                                                             \
        if (!s->extension)                                                                                   \
            return err_set(e, ERR_NOT_IMPLEMENTED, "this node runs no jobs");                                \
        return s->extension(s->extension_arg, WIRE_OP_##NAME, req, a, rep, e);                               \
    }
X(JOB_START, job_start)
X(JOB_LIST, job_list)
X(JOB_GET, job_get)
X(JOB_CHANGE, job_change)
X(JOB_ERRORS, job_errors)
X(JOB_KEYS, job_keys)
X(JOB_WAIT, job_wait)
#undef X
