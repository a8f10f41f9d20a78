/*
 * Buckets with values=memory: their objects are values of the table in memory (values.h), and nothing of them
 * is on a disk. A get is one look into the table, and with WIRE_INLINE its bytes come with the answer to the
 * open; a put is acknowledged when the value is in the table.
 *
 * Invariants:
 *  1. What a handle reads is the value as it was when it was opened.
 *  2. A value is there whole or not at all: the commit puts it, under its conditions, in one step.
 *
 * Failure modes: what is too large for a value is refused (-EFBIG) as soon as that is known. Files,
 * directories and uploads in parts are not of these buckets: ERR_NOT_IMPLEMENTED.
 */
#include "object/object_internal.h"

#include "base/id.h"
#include "base/sys.h"
#include "base/text.h"
#include "namespace/expiry.h"

#include <inttypes.h>
#include <openssl/evp.h>

#define HANDLE_BYTES   (VALUES_DATA_MAX + 16 * KIB) /* what an open handle counts as */
#define HANDLE_WAIT_MS 1000
#define MAGIC          0x76616c68u
#define LIST_MAX       1000
#define PAGE_MAX_BYTES (4 * MIB)
#define STRINGS_ARENA  (32 * KIB)
#define MD5_BYTES      16
#define MD5_HEX        (2 * MD5_BYTES)
#define ETAG_SIZE      (MD5_HEX + 3) /* "-1" and the end */

/* X(NAME, name): operations whose requests have a field `bucket` and that are here; what else names such a
 * bucket goes the way of other scratch buckets, and is refused there. */
#define BUCKET_OPS(X)                                                                                        \
    X(STAT, stat)                                                                                            \
    X(LIST, list)                                                                                            \
    X(PARTS, parts)                                                                                          \
    X(OPEN, open)                                                                                            \
    X(PUT_OPEN, put_open)                                                                                    \
    X(REMOVE, remove)                                                                                        \
    X(REMOVE_SINCE, remove_since)                                                                            \
    X(SET_TAGS, set_tags)                                                                                    \
    X(COPY, copy)

#define HANDLE_OPS(X)                                                                                        \
    X(FETCH, fetch)                                                                                          \
    X(CLOSE, close)                                                                                          \
    X(PUT_WRITE, put_write)                                                                                  \
    X(PUT_COMMIT, put_commit)                                                                                \
    X(PUT_ABORT, put_abort)

struct value_handle {
    uint32_t magic;
    _Atomic uint32_t refs;
    struct object_service *service;
    struct bucket *bucket;
    uint32_t via;
    bool writes;
    struct lock lock; /* covers data of one that writes: several connections may be of one session */
    struct buf data;  /* read: the value; written: so far */
    /* of one that writes: */
    struct arena *strings;
    struct slice key, content_type, meta;
    struct value_condition condition;
    uint64_t size; /* announced, or UINT64_MAX */
};

/* ---- handles ---- */

/* NULL: too much memory is in open handles. */
static struct value_handle *handle_new(struct object_session *ses, struct bucket *b, uint32_t via,
                                       bool writes, struct err *e)
{
    if (budget_take(ses->service->value_budget, HANDLE_BYTES, HANDLE_WAIT_MS) < 0) {
        (void)err_set(e, -EBUSY, "too many objects of buckets with values=memory are open");
        return NULL;
    }
    struct value_handle *h = calloc(1, sizeof(*h));
    if (!h)
        abort();
    *h = (struct value_handle){.magic = MAGIC,
                               .service = ses->service,
                               .bucket = bucket_ref(b),
                               .via = via,
                               .writes = writes,
                               .data = BUF_INIT(VALUES_DATA_MAX)};
    atomic_init(&h->refs, 1);
    lock_init(&h->lock, LOCK_OBJECT);
    (void)atomic_fetch_add(writes ? &ses->service->writers : &ses->service->readers, 1);
    return h;
}

void value_handle_ref(struct value_handle *h)
{
    assert(h->magic == MAGIC);
    (void)atomic_fetch_add(&h->refs, 1);
}

void value_handle_unref(struct value_handle *h)
{
    if (!h)
        return;
    assert(h->magic == MAGIC);
    if (atomic_fetch_sub(&h->refs, 1) != 1)
        return;
    (void)atomic_fetch_sub(h->writes ? &h->service->writers : &h->service->readers, 1);
    buf_fini(&h->data);
    arena_free(h->strings);
    bucket_unref(h->bucket);
    lock_fini(&h->lock);
    budget_give(h->service->value_budget, HANDLE_BYTES);
    h->magic = 0;
    free(h);
}

static int give(struct object_session *ses, struct value_handle *h, uint64_t *ret_handle, struct err *e)
{
    int r = session_put(ses, HANDLE_VALUE, h, ret_handle);
    if (r == 0)
        return 0;
    value_handle_unref(h);
    return session_no_room(r, e);
}

static struct value_handle *get_handle(struct object_session *ses, uint64_t handle, bool writes,
                                       struct err *e)
{
    struct value_handle *h = session_get(ses, HANDLE_VALUE, handle, e);
    if (!h || h->writes == writes)
        return h;
    value_handle_unref(h);
    (void)err_set(e, -EBADF, "handle is not open for this");
    return NULL;
}
DEFINE_CLEANUP(struct value_handle, value_handle_unref)

/* ---- STAT, LIST ---- */

static struct wire_attr attr_of(const struct value *x)
{
    return (struct wire_attr){.kind = WIRE_FILE,
                              .size_bytes = x->data.n,
                              .mtime_ns = x->mtime_ns,
                              .etag = x->etag,
                              .content_type = x->content_type,
                              .meta = x->meta};
}

static int find(struct object_session *ses, struct bucket *b, struct slice key, bool with_data,
                struct arena *a, struct value *ret, struct err *e)
{
    int r = object_check_key(key, e);
    if (r == 0 && values_get(ses->service->values, b->id, key, sys->real_ns(), with_data, a, ret) < 0)
        r = err_set(e, -ENOENT, "no such object");
    return r;
}

static int value_stat(struct object_session *ses, struct bucket *b, const struct wire_stat_req *req,
                      struct arena *a, struct wire_stat_rep *rep, struct err *e)
{
    struct value x;
    int r = find(ses, b, req->key, /* with_data= */ false, a, &x, e);
    if (r == 0)
        rep->attr = attr_of(&x);
    return r;
}

/* None was uploaded in parts. */
static int value_parts(struct object_session *ses, struct bucket *b, const struct wire_parts_req *req,
                       struct arena *a, struct wire_parts_rep *rep, struct err *e)
{
    struct value x;
    (void)rep;
    int r = find(ses, b, req->key, /* with_data= */ false, a, &x, e);
    if (r == 0 && !slice_eq(x.etag, req->etag))
        return err_set(e, -ESTALE, "the object has another ETag");
    return r;
}

static int encode_page(const struct values_listed *page, size_t n, struct buf *out)
{
    int r = 0;
    for (size_t i = 0; i < n && r == 0; i++) {
        struct wire_entry w = {.key = page[i].key, .attr = {.kind = WIRE_DIRECTORY}};
        if (!page[i].is_prefix)
            w.attr = (struct wire_attr){.kind = WIRE_FILE,
                                        .size_bytes = page[i].size_bytes,
                                        .mtime_ns = page[i].mtime_ns,
                                        .etag = page[i].etag};
        r = wire_entry_encode(&w, out);
    }
    return r;
}

static int value_list(struct object_session *ses, struct bucket *b, const struct wire_list_req *req,
                      struct arena *a, struct wire_list_rep *rep, struct err *e)
{
    if (req->delimiter > 127 || req->prefix.n > ORIGIN_KEY_MAX_BYTES ||
        req->after.n > ORIGIN_KEY_MAX_BYTES + 1)
        return err_set(e, -EINVAL, "prefix, marker or delimiter is not one of ours");
    const struct values_list l = {.prefix = req->prefix,
                                  .after = req->after,
                                  .delimiter = (char)req->delimiter,
                                  .max = req->max == 0 || req->max > LIST_MAX ? LIST_MAX : req->max};
    _cleanup_buf_ struct buf out = BUF_INIT(PAGE_MAX_BYTES);
    _cleanup_(arena_freep) struct arena *page_arena = arena_new(PAGE_MAX_BYTES);
    _cleanup_free_ struct values_listed *page = calloc(l.max, sizeof(*page));
    bool truncated;
    if (!page)
        abort();
    size_t n = values_list(ses->service->values, b->id, &l, sys->real_ns(), page_arena, page, &truncated);
    int r = encode_page(page, n, &out);
    if (r < 0)
        return err_set(e, r, "the page is too long");
    rep->entries = arena_dup(a, buf_view(&out));
    rep->n_entries = (uint32_t)n;
    rep->truncated = truncated;
    rep->next = truncated ? arena_dup(a, page[n - 1].key) : SLICE_NULL;
    return 0;
}

/* ---- OPEN, FETCH, CLOSE ---- */

static void count_read(const struct bucket *b, uint32_t via, uint64_t n)
{
    if (n > 0)
        metrics_add(metrics_series(METRIC_READ_BYTES, b->name, object_via_name(via), "cache"), n);
}

static int value_open(struct object_session *ses, struct bucket *b, const struct wire_open_req *req,
                      struct arena *a, struct wire_open_rep *rep, struct err *e)
{
    struct value x;
    int r = find(ses, b, req->key, /* with_data= */ true, a, &x, e);
    if (r == 0)
        r = object_check_conditions(req, x.etag, /* also= */ SLICE_NULL, e);
    if (r < 0)
        return r;
    rep->attr = attr_of(&x);
    rep->present = x.data.n;
    metrics_count(METRIC_OPENS, b->name, object_via_name(req->via), "complete");
    if (req->flags & WIRE_INLINE) {
        rep->state = WIRE_INLINED;
        rep->data = x.data;
        count_read(b, req->via, x.data.n);
        return 0;
    }
    struct value_handle *h = handle_new(ses, b, req->via, /* writes= */ false, e);
    if (!h)
        return -EBUSY;
    r = buf_slice(&h->data, x.data);
    assert(r == 0);             /* no value is larger */
    rep->state = WIRE_UNCACHED; /* no descriptor: its bytes come by FETCH */
    return give(ses, h, &rep->handle, e);
}

static int value_fetch(struct object_session *ses, const struct wire_fetch_req *req, struct arena *a,
                       struct wire_fetch_rep *rep, struct err *e)
{
    _cleanup_(value_handle_unrefp) struct value_handle *h =
        get_handle(ses, req->handle, /* writes= */ false, e);
    if (!h)
        return -EBADF;
    rep->state = WIRE_UNCACHED;
    if (req->offset >= h->data.n || req->n == 0)
        return 0;
    rep->data =
        arena_dup(a, slice_sub(buf_view(&h->data), req->offset, MIN(req->n, h->data.n - req->offset)));
    count_read(h->bucket, h->via, rep->data.n);
    return 0;
}

static int value_close(struct object_session *ses, const struct wire_close_req *req, struct arena *a,
                       struct wire_close_rep *rep, struct err *e)
{
    (void)a, (void)rep;
    struct value_handle *h = session_take(ses, HANDLE_VALUE, req->handle);
    if (!h)
        return err_set(e, -EBADF, "handle is not open");
    value_handle_unref(h);
    return 0;
}

/* ---- PUT ---- */

static int too_large(uint64_t n, struct err *e)
{
    return err_set(e, -EFBIG,
                   "an object of %" PRIu64 " bytes: the bucket has values=memory, at most %d are kept", n,
                   (int)VALUES_DATA_MAX);
}

static int value_put_open(struct object_session *ses, struct bucket *b, const struct wire_put_open_req *q,
                          struct arena *a, struct wire_put_open_rep *rep, struct err *e)
{
    (void)a;
    int r = object_check_key(q->key, e);
    if (r < 0)
        return r;
    if (q->flags & WIRE_STAGED)
        return err_set(e, ERR_NOT_IMPLEMENTED,
                       "bucket %s keeps its values in memory (values=memory): no uploads in parts, no files",
                       b->name);
    if (q->if_none_etag.n > 0)
        return err_set(e, ERR_NOT_IMPLEMENTED, "If-None-Match of a PUT to values=memory can only be *");
    if (q->size != UINT64_MAX && q->size > VALUES_DATA_MAX)
        return too_large(q->size, e);
    if (q->meta.n + q->content_type.n > VALUES_META_MAX || q->if_match.n > ORIGIN_ETAG_MAX)
        return err_set(e, -E2BIG, "metadata of the object is %zu bytes, at most %d are allowed",
                       q->meta.n + q->content_type.n, (int)VALUES_META_MAX);
    struct value_handle *h = handle_new(ses, b, q->via, /* writes= */ true, e);
    if (!h)
        return -EBUSY;
    h->strings = arena_new(STRINGS_ARENA);
    h->key = arena_dup(h->strings, q->key);
    h->content_type = arena_dup(h->strings, q->content_type);
    h->meta = arena_dup(h->strings, q->meta);
    h->condition = (struct value_condition){.if_none_match = q->if_none_match != 0,
                                            .if_match = arena_dup(h->strings, q->if_match)};
    h->size = q->size;
    return give(ses, h, &rep->handle, e);
}

static int value_put_write(struct object_session *ses, const struct wire_put_write_req *req, struct arena *a,
                           struct wire_put_write_rep *rep, struct err *e)
{
    (void)a, (void)rep;
    _cleanup_(value_handle_unrefp) struct value_handle *h =
        get_handle(ses, req->handle, /* writes= */ true, e);
    if (!h)
        return -EBADF;
    LOCK_SCOPE(&h->lock);
    if (req->offset != h->data.n)
        return err_set(e, -EINVAL, "values are written in order: at %zu, not at %" PRIu64, h->data.n,
                       req->offset);
    uint64_t end = req->offset + req->data.n;
    if (end > h->size)
        return err_set(e, -EFBIG, "write beyond %" PRIu64 " bytes", h->size);
    return buf_slice(&h->data, req->data) < 0 ? too_large(end, e) : 0;
}

static void md5_of(struct slice data, char ret[MD5_HEX + 1])
{
    uint8_t digest[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    if (EVP_Digest(data.p ? data.p : "", data.n, digest, &n, EVP_md5(), NULL) != 1 || n != MD5_BYTES)
        abort();
    text_hex(digest, MD5_BYTES, ret);
}

/* The bucket's kind of ETag for these bytes. */
static void make_etag(const struct bucket *b, struct slice data, char ret[ETAG_SIZE])
{
    struct id128 random;
    if (b->p.etag == BUCKET_ETAG_MD5) {
        md5_of(data, ret);
        return;
    }
    id_new(&random);
    text_hex(random.b, sizeof(random.b), ret);
    memcpy(ret + MD5_HEX, "-1", 3);
}

static int commit(struct value_handle *h, const struct wire_put_commit_req *q, struct arena *a,
                  struct wire_attr *ret, struct err *e)
{
    char etag[ETAG_SIZE];
    uint64_t now_ns = sys->real_ns();
    struct slice meta = q->flags & WIRE_META ? q->meta : h->meta;
    struct value x = {.expires_ns = expiry_ns(h->bucket->p.object_ttl, now_ns, meta),
                      .mtime_ns = now_ns,
                      .etag = q->etag,
                      .content_type = h->content_type,
                      .meta = meta,
                      .data = buf_view(&h->data)};
    if (q->etag.n == 0) {
        make_etag(h->bucket, x.data, etag);
        x.etag = slice_str(etag);
    }
    int r = values_put(h->service->values, h->bucket->id, h->key, &x, &h->condition, now_ns, e);
    if (r < 0)
        return r;
    _cleanup_(bucket_unrefp) struct bucket *now = bucket_find_id(h->service->buckets, h->bucket->id);
    if (!now) { /* removed meanwhile: who looks after the put cannot miss it */
        const struct value_condition ours = {.if_match = x.etag};
        (void)values_remove(h->service->values, h->bucket->id, h->key, &ours, now_ns, NULL);
        return err_set(e, ERR_NO_BUCKET, "the bucket was removed");
    }
    *ret = attr_of(&x);
    ret->etag = arena_dup(a, x.etag);
    ret->content_type = arena_dup(a, x.content_type); /* of the handle, which goes */
    ret->meta = arena_dup(a, x.meta);
    metrics_add(metrics_series(METRIC_WRITTEN_BYTES, h->bucket->name, object_via_name(h->via), NULL),
                x.data.n);
    return 0;
}

/* All that was written, once. */
static int commit_whole(struct value_handle *h, const struct wire_put_commit_req *req, struct arena *a,
                        struct wire_attr *ret, struct err *e)
{
    LOCK_SCOPE(&h->lock);
    if (req->size != h->data.n || (h->size != UINT64_MAX && req->size != h->size))
        return err_set(e, ERR_PROTOCOL, "commit of %" PRIu64 " bytes, %zu were written", req->size,
                       h->data.n);
    return commit(h, req, a, ret, e);
}

static int value_put_commit(struct object_session *ses, const struct wire_put_commit_req *req,
                            struct arena *a, struct wire_put_commit_rep *rep, struct err *e)
{
    _cleanup_(value_handle_unrefp) struct value_handle *h =
        get_handle(ses, req->handle, /* writes= */ true, e);
    if (!h)
        return -EBADF;
    if (req->etag.n > ORIGIN_ETAG_MAX)
        return err_set(e, -E2BIG, "ETag of %zu bytes", req->etag.n);
    if (req->meta.n + h->content_type.n > VALUES_META_MAX)
        return err_set(e, -E2BIG, "metadata of the object is %zu bytes, at most %d are allowed", req->meta.n,
                       (int)VALUES_META_MAX);
    int r = commit_whole(h, req, a, &rep->attr, e);
    if (r < 0)
        return err_prefix(e, r, "%s/" SLICE_FMT, h->bucket->name, SLICE_ARG(h->key));
    if (!(req->flags & WIRE_KEEP))
        value_handle_unref(session_take(ses, HANDLE_VALUE, req->handle));
    return 0;
}

static int value_put_abort(struct object_session *ses, const struct wire_put_abort_req *req, struct arena *a,
                           struct wire_put_abort_rep *rep, struct err *e)
{
    (void)rep;
    const struct wire_close_req close = {.handle = req->handle};
    struct wire_close_rep none;
    return value_close(ses, &close, a, &none, e);
}

/* ---- REMOVE, COPY ---- */

static int value_remove(struct object_session *ses, struct bucket *b, const struct wire_remove_req *req,
                        struct arena *a, struct wire_remove_rep *rep, struct err *e)
{
    (void)a, (void)rep;
    const struct value_condition c = {.if_match = req->if_match};
    int r = object_check_key(req->key, e);
    if (r == 0)
        r = values_remove(ses->service->values, b->id, req->key, &c, sys->real_ns(), e);
    return r == -ENOENT && !(req->flags & WIRE_POSIX) ? 0 : r;
}

static int value_remove_since(struct object_session *ses, struct bucket *b,
                              const struct wire_remove_since_req *req, struct arena *a,
                              struct wire_remove_since_rep *rep, struct err *e)
{
    (void)a, (void)rep;
    const struct value_condition c = {.if_match = req->if_match, .if_mtime_ns = req->since_ns};
    int r = object_check_key(req->key, e);
    if (r == 0)
        r = values_remove(ses->service->values, b->id, req->key, &c, sys->real_ns(), e);
    return r == -ENOENT ? 0 : r;
}

static int value_set_tags(struct object_session *ses, struct bucket *b, const struct wire_set_tags_req *req,
                          struct arena *a, struct wire_set_tags_rep *rep, struct err *e)
{
    (void)ses, (void)req, (void)a, (void)rep;
    return err_set(e, ERR_NOT_IMPLEMENTED, "bucket %s: tags come with the value", b->name);
}

static int value_copy(struct object_session *ses, struct bucket *b, const struct wire_copy_req *req,
                      struct arena *a, struct wire_copy_rep *rep, struct err *e)
{
    struct values *v = ses->service->values;
    const struct value_condition to = {.if_none_match = req->flags & WIRE_NOREPLACE};
    struct value x;
    int r = object_check_key(req->to, e);
    if (r == 0)
        r = find(ses, b, req->from, /* with_data= */ true, a, &x, e);
    if (r < 0)
        return r;
    const struct value_condition from = {.if_match = x.etag};
    x.mtime_ns = sys->real_ns();
    x.expires_ns = expiry_ns(b->p.object_ttl, x.mtime_ns, x.meta);
    r = values_put(v, b->id, req->to, &x, &to, x.mtime_ns, e);
    if (r == ERR_PRECONDITION)
        return err_set(e, -EEXIST, "the target exists");
    if (r == 0 && (req->flags & WIRE_MOVE) && !slice_eq(req->from, req->to))
        (void)values_remove(v, b->id, req->from, &from, x.mtime_ns, NULL); /* or it changed: it stays */
    if (r == 0)
        rep->attr = attr_of(&x);
    return r;
}

/* ---- which operations these are ---- */

static struct slice bucket_of(uint32_t op, const void *req)
{
    switch (op) {
#define X(NAME, name)                                                                                        \
    case WIRE_OP_##NAME:                                                                                     \
        return ((const struct wire_##name##_req *)req)->bucket;
        BUCKET_OPS(X)
#undef X
    default:
        return SLICE_NULL;
    }
}

static uint64_t handle_of(uint32_t op, const void *req)
{
    switch (op) {
#define X(NAME, name)                                                                                        \
    case WIRE_OP_##NAME:                                                                                     \
        return ((const struct wire_##name##_req *)req)->handle;
        HANDLE_OPS(X)
#undef X
    default:
        return 0;
    }
}

bool value_is_its(struct subject *s, uint32_t op, const void *req)
{
    struct slice name = bucket_of(op, req);
    if (name.n == 0) {
        uint64_t handle = handle_of(op, req);
        return handle != 0 && subject_kind(s, handle) == HANDLE_VALUE;
    }
    subject_find_bucket(s, name);
    return s->is_memory;
}

int value_call(struct object_session *ses, uint32_t op, const void *req, struct arena *a, void *rep,
               struct err *e)
{
    struct slice name = bucket_of(op, req);
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    int r = name.n > 0 ? bucket_find(ses->service->buckets, name, &b, e) : 0;
    if (r < 0)
        return r;
    switch (op) {
#define X(NAME, name)                                                                                        \
    case WIRE_OP_##NAME: {                                                                                   \
        struct wire_##name##_rep *typed = rep;                                                               \
        *typed = (struct wire_##name##_rep){.fd = -1};                                                       \
        return value_##name(ses, b, req, a, typed, e);                                                       \
    }
        BUCKET_OPS(X)
#undef X
#define X(NAME, name)                                                                                        \
    case WIRE_OP_##NAME: {                                                                                   \
        struct wire_##name##_rep *typed = rep;                                                               \
        *typed = (struct wire_##name##_rep){.fd = -1};                                                       \
        return value_##name(ses, req, a, typed, e);                                                          \
    }
        HANDLE_OPS(X)
#undef X
    default:
        return err_set(e, ERR_PROTOCOL, "operation %u is not one of ours", op);
    }
}
