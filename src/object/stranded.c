/*
 * Stranded files (contract and format in stranded.h).
 *
 * Invariants:
 *  1. An extent is in exactly one record, or is given back; before a record goes its bytes are in the origin,
 * or a user has said that they are not wanted.
 *  2. Sent is only what is still meant: not over another version than the file was made from, unless that is
 * asked for.
 *
 * Failure modes: the disk's and the control store's errors when something is kept, the origin's when it is
 * sent; in every case the record is as before. After a commit of unknown end the extent stays: the next start
 * removes it when no record names it.
 */
#include "object/stranded.h"

#include "object/back_internal.h"

#include "base/le.h"
#include "base/log.h"
#include "base/sys.h"
#include "base/text.h"

#include <inttypes.h>

#define FORMAT         1
#define HEAD_BYTES     18
#define PREFIX_BYTES   10
#define KEY_BYTES      (ORIGIN_KEY_MAX_BYTES + 16)
#define SHOWN_MAX      4 /* files that status names for each bucket */
#define SHOWN_BYTES    200
#define LOCATION_BYTES HARD_LOCATION_BYTES
#define ASK_ARENA      (64 * KIB)

/* ---- records ---- */

int stranded_encode(const struct stranded *x, struct buf *b)
{
    assert(x->location.n == 0 || x->location.n == LOCATION_BYTES);
    uint8_t head[HEAD_BYTES] = {FORMAT, (uint8_t)x->location.n};
    le_put64(head + 2, x->since_ns);
    le_put64(head + 10, x->size_bytes);
    struct le_writer w = le_writer_of(b);
    le_add(&w, slice_of(head, sizeof(head)));
    le_add(&w, x->location);
    le_add_text(&w, x->base);
    le_add_text(&w, x->meta);
    le_add_text(&w, x->error);
    return le_add_end(&w);
}

int stranded_decode(struct slice value, struct stranded *ret)
{
    const uint8_t *p = (const uint8_t *)value.p;
    if (value.n < HEAD_BYTES || p[0] != FORMAT || (p[1] != 0 && p[1] != LOCATION_BYTES))
        return ERR_CORRUPT;
    struct stranded x = {.since_ns = le_get64(p + 2), .size_bytes = le_get64(p + 10)};
    struct le_reader rest = le_reader_of(slice_from(value, HEAD_BYTES));
    x.location = le_take(&rest, p[1]);
    x.base = le_take_text(&rest, UINT16_MAX);
    x.meta = le_take_text(&rest, UINT16_MAX);
    x.error = le_take_text(&rest, UINT16_MAX);
    if (!le_took_all(&rest) || (x.location.n == 0) != (x.size_bytes == 0))
        return ERR_CORRUPT;
    *ret = x;
    return 0;
}

static void record_key(uint64_t bucket_id, struct slice key, struct buf *ret)
{
    char head[PREFIX_BYTES] = {'k', '/'};
    be_put64(head + 2, bucket_id);
    int r = buf_append(ret, head, sizeof(head));
    r = r < 0 ? r : buf_slice(ret, key);
    assert(r == 0);
}

static int decode(struct slice value, struct stranded *ret, struct err *e)
{
    return stranded_decode(value, ret) < 0
               ? err_set(e, ERR_CORRUPT, "the record of a file that the origin did not take is damaged")
               : 0;
}

/* -ENOENT. version: for a change on the condition that it is still this. */
static int load(struct object_service *s, uint64_t bucket_id, struct slice key, struct buf *value,
                uint64_t *ret_version, struct stranded *ret, struct err *e)
{
    _cleanup_buf_ struct buf k = BUF_INIT(KEY_BYTES);
    record_key(bucket_id, key, &k);
    buf_clear(value);
    int r = kv_get(s->config.control, buf_view(&k), value, ret_version, e);
    return r < 0 ? r : decode(buf_view(value), ret, e);
}

/* ---- starting ---- */

static int open_one(struct object_service *s, struct slice k, struct slice value, struct err *e)
{
    struct stranded x;
    int r = k.n > PREFIX_BYTES ? decode(value, &x, e) : err_set(e, ERR_CORRUPT, "a key without a name");
    if (r < 0)
        return r;
    _cleanup_(bucket_unrefp) struct bucket *bucket = bucket_find_id(s->buckets, be_get64(k.p + 2));
    if (!bucket) { /* removed at the very moment in which the file was kept: no command reaches it */
        _cleanup_(kv_txn_freep) struct kv_txn *t = kv_txn_new(s->config.control);
        kv_txn_delete(t, k);
        return kv_txn_commit(t, KV_VISIBLE, e);
    }
    r = x.location.n > 0 ? hard_protect(s->config.store, x.location, e) : 0;
    if (r < 0 && r != -ENODEV) /* a disk that is not here is not swept either */
        return err_prefix(e, r, "a file that the origin did not take");
    (void)atomic_fetch_add(&s->n_stranded, 1);
    return 0;
}

int stranded_open(struct object_service *s, struct err *e)
{
    _cleanup_(kv_iter_freep) struct kv_iter *it =
        kv_iter_new(s->config.control, SLICE_LIT("k/"), SLICE_LIT("k0"));
    struct slice k, value;
    int r;
    while ((r = kv_iter_next(it, &k, &value, e)) == 0)
        if ((r = open_one(s, k, value, e)) < 0)
            return r;
    if (atomic_load(&s->n_stranded) > 0)
        log_info("object", "%" PRIu64 " files that origins did not take are kept: see `forebay status`",
                 atomic_load(&s->n_stranded));
    return r == -ENOENT ? 0 : r;
}

/* ---- keeping ---- */

/* Whether what is kept was refused after this. One that is of the future was kept before the clock was set
 * back. */
static bool is_newer(const struct stranded *kept, const struct stranded *x)
{
    return kept->since_ns > x->since_ns && kept->since_ns <= sys->real_ns();
}

/* Puts the record in the place of what there is, whose extent is given back. ERR_CONFLICT: somebody else did;
 * -EEXIST: what there is is newer. *ret_unknown: it may be there all the same. */
static int save(struct object_service *s, const struct bucket *bucket, struct slice key, struct stranded *x,
                bool *ret_unknown, struct err *e)
{
    _cleanup_buf_ struct buf k = BUF_INIT(KEY_BYTES), old_value = BUF_INIT(STRANDED_RECORD_MAX_BYTES),
                             value = BUF_INIT(STRANDED_RECORD_MAX_BYTES);
    struct stranded old = {0};
    uint64_t version = 0;
    *ret_unknown = false;
    int r = load(s, bucket->id, key, &old_value, &version, &old, e);
    bool had = r == 0;
    if (r < 0 && r != -ENOENT)
        return r;
    if (had && is_newer(&old, x))
        return -EEXIST;
    if (!had && atomic_load(&s->n_stranded) >= STRANDED_MAX)
        return err_set(e, -ENOSPC, "%d files that origins did not take are kept already", STRANDED_MAX);
    if (had)
        x->since_ns = MAX(x->since_ns, old.since_ns + 1);
    if (stranded_encode(x, &value) < 0)
        return err_set(e, -E2BIG, "attributes of the file are too large");
    record_key(bucket->id, key, &k);
    _cleanup_(kv_txn_freep) struct kv_txn *t = kv_txn_new(s->config.control);
    kv_txn_check(t, buf_view(&k), had ? version : 0);
    kv_txn_put(t, buf_view(&k), buf_view(&value));
    r = kv_txn_commit(t, KV_DURABLE, e);
    *ret_unknown = r < 0 && r != ERR_CONFLICT;
    if (r < 0)
        return r;
    if (had)
        back_free_extent(s->back, old.location);
    else
        (void)atomic_fetch_add(&s->n_stranded, 1);
    return 0;
}

static void tell_kept(const struct bucket *bucket, struct slice key, const struct stranded *x, bool is_older)
{
    if (is_older)
        log_warn("object",
                 "%s/" SLICE_FMT ": %" PRIu64
                 " bytes that the origin did not take are dropped: what was written there after them is kept",
                 bucket->name, SLICE_ARG(key), x->size_bytes);
    else
        log_warn("object",
                 "%s/" SLICE_FMT ": %" PRIu64
                 " bytes that the origin did not take are kept (see `forebay stranded`): " SLICE_FMT,
                 bucket->name, SLICE_ARG(key), x->size_bytes, SLICE_ARG(x->error));
}

int stranded_keep(struct object_service *s, const struct bucket *bucket, struct slice key,
                  const struct stranded *x, const struct origin_body *body, struct err *e)
{
    uint8_t location[HARD_LOCATION_BYTES];
    struct stranded kept = *x;
    struct back_body bytes = {0};
    bool unknown = false;
    int r = back_keep_body(s->back, bucket, body, /* cancel= */ NULL, &bytes, e);
    if (r < 0)
        return r;
    kept.size_bytes = bytes.size_bytes;
    kept.location = SLICE_NULL;
    if (bytes.hard) {
        hard_location(bytes.hard, location);
        kept.location = slice_of(location, sizeof(location));
    }
    do
        r = save(s, bucket, key, &kept, &unknown, e);
    while (r == ERR_CONFLICT);
    if (r < 0 && bytes.hard && !unknown)
        hard_give_back(bytes.hard);
    else
        hard_unref(bytes.hard);
    bool is_older = r == -EEXIST;
    if (r == 0 || is_older)
        tell_kept(bucket, key, &kept, is_older);
    return is_older ? 0 : r;
}

/* ---- looking ---- */

/* The first at or behind a place; -ENOENT. The slices of ret and *ret_key live in `value` and `k`. */
static int next(struct object_service *s, uint64_t bucket_id, struct slice prefix, struct slice after,
                struct buf *k, struct buf *value, struct slice *ret_key, struct stranded *ret, struct err *e)
{
    _cleanup_buf_ struct buf from = BUF_INIT(KEY_BYTES), all = BUF_INIT(KEY_BYTES), to = BUF_INIT(KEY_BYTES);
    bool is_behind = after.n > 0 && slice_cmp(after, prefix) >= 0;
    record_key(bucket_id, is_behind ? after : prefix, &from);
    record_key(bucket_id, prefix, &all);
    int r = is_behind ? buf_char(&from, '\0') : 0;
    r = r < 0 ? r : kv_prefix_end(buf_view(&all), &to);
    if (r < 0)
        return r;
    _cleanup_(kv_iter_freep) struct kv_iter *it =
        kv_iter_new(s->config.control, buf_view(&from), buf_view(&to));
    struct slice found_key, found;
    r = kv_iter_next(it, &found_key, &found, e);
    if (r < 0)
        return r;
    buf_clear(k);
    buf_clear(value);
    r = buf_slice(k, found_key);
    r = r < 0 ? r : buf_slice(value, found);
    assert(r == 0);
    *ret_key = slice_from(buf_view(k), PREFIX_BYTES);
    return decode(buf_view(value), ret, e);
}

int op_stranded(struct object_session *ses, const struct wire_stranded_req *req, struct arena *a,
                struct wire_stranded_rep *rep, struct err *e)
{
    struct object_service *s = ses->service;
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    _cleanup_buf_ struct buf k = BUF_INIT(KEY_BYTES), value = BUF_INIT(STRANDED_RECORD_MAX_BYTES);
    struct stranded x;
    struct slice key;
    if (req->prefix.n > ORIGIN_KEY_MAX_BYTES || req->after.n > ORIGIN_KEY_MAX_BYTES)
        return err_set(e, -ENAMETOOLONG, "no key is as long");
    int r = bucket_find(s->buckets, req->bucket, &b, e);
    if (r == 0)
        r = next(s, b->id, req->prefix, req->after, &k, &value, &key, &x, e);
    if (r < 0)
        return r;
    rep->key = arena_dup(a, key);
    rep->size = x.size_bytes;
    rep->since_ns = x.since_ns;
    rep->error = arena_dup(a, x.error);
    return 0;
}

/* Text of any bytes, cut. */
static json_t *shown(struct slice text)
{
    _cleanup_buf_ struct buf b = BUF_INIT(4 * SHOWN_BYTES + 16);
    return json_string(text_utf8(&b, slice_sub(text, 0, MIN(text.n, (size_t)SHOWN_BYTES))));
}

json_t *stranded_json(struct object_service *s, const struct bucket *bucket)
{
    _cleanup_buf_ struct buf k = BUF_INIT(KEY_BYTES), value = BUF_INIT(STRANDED_RECORD_MAX_BYTES),
                             after = BUF_INIT(KEY_BYTES);
    struct stranded x;
    struct slice key;
    uint64_t n = 0, bytes = 0;
    if (atomic_load(&s->n_stranded) == 0 || bucket_is_scratch(bucket))
        return NULL;
    json_t *first = json_array();
    while (next(s, bucket->id, SLICE_NULL, buf_view(&after), &k, &value, &key, &x, NULL) == 0) {
        bytes += x.size_bytes;
        if (n++ < SHOWN_MAX)
            (void)json_array_append_new(first, json_pack("{s:o, s:I, s:o}", "key", shown(key), "size_bytes",
                                                         (json_int_t)x.size_bytes, "error", shown(x.error)));
        buf_clear(&after);
        int r = buf_slice(&after, key);
        assert(r == 0);
    }
    if (n == 0) {
        json_decref(first);
        return NULL;
    }
    return json_pack("{s:I, s:I, s:o}", "files", (json_int_t)n, "bytes", (json_int_t)bytes, "first", first);
}

int stranded_check_gone(struct object_service *s, const struct bucket *bucket, const char *what,
                        struct err *e)
{
    _cleanup_buf_ struct buf k = BUF_INIT(KEY_BYTES), value = BUF_INIT(STRANDED_RECORD_MAX_BYTES);
    struct stranded x;
    struct slice key;
    int r = atomic_load(&s->n_stranded) == 0
                ? -ENOENT
                : next(s, bucket->id, SLICE_NULL, SLICE_NULL, &k, &value, &key, &x, e);
    if (r == -ENOENT)
        return 0;
    return err_set(e, -EBUSY,
                   "files of bucket %s that its origin did not take are kept: forebay stranded %s, then %s",
                   bucket->name, bucket->name, what);
}

/* ---- ending ---- */

/* Whether the object is the version that the file was made from: asked for now, and, where the origin can, by
 * the write itself. */
static int check_base(struct upstream *u, struct object_service *s, struct origin_put *p, struct slice base,
                      struct arena *a, struct err *e)
{
    struct attr now;
    int r = mirror_stat(s->mirror, u, p->key, /* posix= */ false, /* full= */ false, /* fresh= */ true, a,
                        &now, e);
    if (r < 0 && r != -ENOENT)
        return r;
    bool is_base = r == 0 && (slice_eq(now.etag, base) ||
                              back_is_sent_as(s->back, u->bucket->id, p->key, base, now.etag));
    if (base.n > 0 ? !is_base : r == 0)
        return err_set(e, ERR_PRECONDITION, "the object was written by somebody else since");
    if (!origin_heeds_conditions(u->origin))
        return 0;
    p->if_match = base.n > 0 ? now.etag : SLICE_NULL;
    p->if_none_match = base.n == 0;
    return 0;
}

static int carry(struct object_service *s, struct upstream *u, struct slice key, const struct stranded *x,
                 bool force, struct err *e)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(ASK_ARENA);
    _cleanup_(hard_unrefp) struct hard *h = NULL;
    struct origin_put p = {.key = key, .meta = x->meta};
    struct origin_attr answer;
    int r = x->location.n > 0 ? hard_find(s->config.store, x->location, &h, e) : 0;
    if (r == 0 && !force)
        r = check_base(u, s, &p, x->base, a, e);
    if (r < 0)
        return r == -ENOENT ? err_set(e, -EIO, "its bytes are missing") : r;
    struct origin_body body = {.size_bytes = x->size_bytes, .read = back_body_read, .arg = h};
    struct object_change change;
    object_change_begin(s, &change, u->bucket, key);
    r = upstream_put(u, &p, &body, a, &answer, e);
    object_change_end(s, &change);
    return r;
}

static int forget(struct object_service *s, const struct bucket *bucket, struct slice key, uint64_t version,
                  const struct stranded *x, struct err *e)
{
    _cleanup_buf_ struct buf k = BUF_INIT(KEY_BYTES);
    record_key(bucket->id, key, &k);
    _cleanup_(kv_txn_freep) struct kv_txn *t = kv_txn_new(s->config.control);
    kv_txn_check(t, buf_view(&k), version);
    kv_txn_delete(t, buf_view(&k));
    int r = kv_txn_commit(t, KV_DURABLE, e);
    if (r < 0)
        return r == ERR_CONFLICT ? err_set(e, -EBUSY, "a later version of the file was kept meanwhile") : r;
    (void)atomic_fetch_sub(&s->n_stranded, 1);
    back_free_extent(s->back, x->location);
    return 0;
}

int op_stranded_end(struct object_session *ses, const struct wire_stranded_end_req *req, struct arena *a,
                    struct wire_stranded_end_rep *rep, struct err *e)
{
    (void)a, (void)rep;
    struct object_service *s = ses->service;
    _cleanup_(upstream_unrefp) struct upstream *u = NULL;
    _cleanup_buf_ struct buf value = BUF_INIT(STRANDED_RECORD_MAX_BYTES);
    struct stranded x;
    uint64_t version;
    int r = object_check_key(req->key, e);
    if (r == 0)
        r = object_upstream(s, req->bucket, &u, e);
    if (r < 0)
        return r;
    r = load(s, u->bucket->id, req->key, &value, &version, &x, e);
    if (r == -ENOENT || (r == 0 && req->since_ns != x.since_ns))
        return err_set(e, -ENOENT, "%s/" SLICE_FMT ": no such file is kept", u->bucket->name,
                       SLICE_ARG(req->key));
    if (r == 0 && req->flags & WIRE_WRITE)
        r = carry(s, u, req->key, &x, req->flags & WIRE_REPLACE, e);
    if (r == 0)
        r = forget(s, u->bucket, req->key, version, &x, e);
    return r < 0 ? err_prefix(e, r, "%s/" SLICE_FMT, u->bucket->name, SLICE_ARG(req->key)) : 0;
}
