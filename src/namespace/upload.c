/*
 * Records of uploads in parts (formats and contract in upload.h). Bytes come from disk, so every length is
 * checked.
 *
 * Failure modes: a record that does not decode ends a walk with ERR_CORRUPT and the upload's name.
 */
#include "namespace/upload.h"

#include "base/le.h"

#define FORMAT       1
#define FORMAT_HERE  2
#define FORMAT_SUMS  3  /* of an upload */
#define UPLOAD_KEY   26 /* bytes of the key of an upload */
#define PART_KEY     28
#define UPLOAD_TEXTS 6
#define PART_TEXTS   3
#define PLACE_BYTES  16 /* of a part that is here */

/* ---- keys ---- */

static void make_key(char kind, uint64_t bucket, const struct id128 *id, struct buf *ret)
{
    uint8_t head[10] = {'m', (uint8_t)kind};
    be_put64(head + 2, bucket);
    buf_clear(ret);
    int r = buf_append(ret, head, sizeof(head));
    if (r == 0 && id)
        r = buf_append(ret, id->b, sizeof(id->b));
    assert(r == 0);
}

void upload_key(uint64_t bucket, struct id128 id, struct buf *ret_key)
{
    make_key('u', bucket, &id, ret_key);
}

void upload_part_key(uint64_t bucket, struct id128 id, uint32_t number, struct buf *ret_key)
{
    uint8_t be[2];
    assert(number <= UPLOAD_NUMBER_MAX + 1);
    make_key('p', bucket, &id, ret_key);
    be_put16(be, (uint16_t)number);
    int r = buf_append(ret_key, be, sizeof(be));
    assert(r == 0);
}

/* ---- values ---- */

static int put_record(struct buf *b, struct slice head, const struct slice *texts, size_t n, struct slice end)
{
    struct le_writer w = le_writer_of(b);
    le_add(&w, head);
    for (size_t i = 0; i < n; i++)
        le_add_text(&w, texts[i]);
    le_add(&w, end);
    return le_add_end(&w);
}

/* All that is left of the value must be these texts, and so many bytes. */
static int take_texts(struct slice s, struct slice *ret, size_t n, size_t n_end, struct slice *ret_end)
{
    struct le_reader r = le_reader_of(s);
    for (size_t i = 0; i < n; i++)
        ret[i] = le_take_text(&r, UINT16_MAX);
    *ret_end = le_take(&r, n_end);
    return le_took_all(&r) ? 0 : ERR_CORRUPT;
}

static bool is_format(struct slice value, size_t n_head, char last)
{
    return value.n >= n_head && value.p[0] >= FORMAT && value.p[0] <= last;
}

static uint8_t format_of(const struct upload_record *u)
{
    return u->location.n > 0 ? FORMAT_HERE : u->gives_sums ? FORMAT_SUMS : FORMAT;
}

int upload_encode(const struct upload_record *u, struct buf *b)
{
    assert(u->location.n == 0 || (u->location.n == UPLOAD_LOCATION && !u->completed));
    assert(!u->gives_sums || (u->location.n == 0 && !u->completed));
    uint8_t head[10] = {format_of(u), u->completed};
    const struct slice v[UPLOAD_TEXTS] = {u->key, u->content_type, u->meta, u->origin_id, u->tag, u->etag};
    le_put64(head + 2, u->at_ns);
    return put_record(b, slice_of(head, sizeof(head)), v, ARRAY_SIZE(v), u->location);
}

int upload_decode(struct slice value, struct upload_record *ret)
{
    struct slice v[UPLOAD_TEXTS], location;
    if (!is_format(value, 10, FORMAT_SUMS) || (value.p[1] != 0 && value.p[1] != 1))
        return ERR_CORRUPT;
    bool is_here = value.p[0] == FORMAT_HERE;
    int r = value.p[0] != FORMAT && value.p[1] ? ERR_CORRUPT : 0;
    if (r == 0)
        r = take_texts(slice_from(value, 10), v, ARRAY_SIZE(v), is_here ? UPLOAD_LOCATION : 0, &location);
    if (r < 0)
        return r;
    *ret = (struct upload_record){.completed = value.p[1] == 1,
                                  .at_ns = le_get64(value.p + 2),
                                  .key = v[0],
                                  .content_type = v[1],
                                  .meta = v[2],
                                  .origin_id = v[3],
                                  .tag = v[4],
                                  .etag = v[5],
                                  .location = location,
                                  .gives_sums = value.p[0] == FORMAT_SUMS};
    return 0;
}

int upload_part_encode(const struct upload_part_record *p, struct buf *b)
{
    uint8_t head[17] = {p->is_here ? FORMAT_HERE : FORMAT}, place[PLACE_BYTES];
    const struct slice v[PART_TEXTS] = {p->etag, p->origin_etag, p->checksum};
    le_put64(head + 1, p->size_bytes);
    le_put64(head + 9, p->at_ns);
    le_put64(place, p->offset);
    le_put64(place + 8, p->slot_bytes);
    return put_record(b, slice_of(head, sizeof(head)), v, ARRAY_SIZE(v),
                      slice_of(place, p->is_here ? sizeof(place) : 0));
}

int upload_part_decode(struct slice value, struct upload_part_record *ret)
{
    struct slice v[PART_TEXTS], place;
    if (!is_format(value, 17, FORMAT_HERE))
        return ERR_CORRUPT;
    bool is_here = value.p[0] == FORMAT_HERE;
    int r = take_texts(slice_from(value, 17), v, ARRAY_SIZE(v), is_here ? PLACE_BYTES : 0, &place);
    if (r < 0)
        return r;
    *ret = (struct upload_part_record){.size_bytes = le_get64(value.p + 1),
                                       .at_ns = le_get64(value.p + 9),
                                       .etag = v[0],
                                       .origin_etag = v[1],
                                       .checksum = v[2],
                                       .is_here = is_here};
    if (is_here) {
        ret->offset = le_get64(place.p);
        ret->slot_bytes = le_get64(place.p + 8);
    }
    return 0;
}

/* ---- changes ---- */

static void delete_parts(struct kv_txn *t, uint64_t bucket, struct id128 id)
{
    _cleanup_buf_ struct buf from = BUF_INIT(PART_KEY), to = BUF_INIT(PART_KEY);
    upload_part_key(bucket, id, 0, &from);
    upload_part_key(bucket, id, UPLOAD_NUMBER_MAX + 1, &to);
    kv_txn_delete_range(t, buf_view(&from), buf_view(&to));
}

int upload_put(struct kv_txn *t, uint64_t bucket, const struct upload_record *u, struct err *e)
{
    _cleanup_buf_ struct buf key = BUF_INIT(PART_KEY), value = BUF_INIT(UPLOAD_RECORD_MAX);
    if (upload_encode(u, &value) < 0)
        return err_set(e, -E2BIG, "the upload's metadata is too long");
    upload_key(bucket, u->id, &key);
    kv_txn_put(t, buf_view(&key), buf_view(&value));
    if (u->completed)
        delete_parts(t, bucket, u->id);
    return 0;
}

int upload_save(struct kv *kv, uint64_t bucket, const struct upload_record *u, struct err *e)
{
    _cleanup_(kv_txn_freep) struct kv_txn *t = kv_txn_new(kv);
    int r = upload_put(t, bucket, u, e);
    return r == 0 ? kv_txn_commit(t, KV_DURABLE, e) : r;
}

/* The transaction is one of an upload that is open, and still is when it is committed. */
static int check_open(struct kv *kv, struct kv_txn *t, uint64_t bucket, struct id128 id, struct err *e)
{
    _cleanup_buf_ struct buf key = BUF_INIT(PART_KEY), value = BUF_INIT(UPLOAD_RECORD_MAX);
    uint64_t version = 0;
    struct upload_record u;
    upload_key(bucket, id, &key);
    int r = kv_get(kv, buf_view(&key), &value, &version, e);
    if (r == 0)
        r = upload_decode(buf_view(&value), &u);
    if (r == -ENOENT || (r == 0 && u.completed))
        return err_set(e, -ENOENT, "the upload was completed or aborted meanwhile");
    if (r < 0)
        return err_prefix(e, r, "record of an upload");
    kv_txn_check(t, buf_view(&key), version);
    return 0;
}

static int commit_open(struct kv_txn *t, struct err *e)
{
    int r = kv_txn_commit(t, KV_DURABLE, e);
    return r == ERR_CONFLICT ? err_set(e, -ENOENT, "the upload was completed or aborted meanwhile") : r;
}

int upload_save_part(struct kv *kv, uint64_t bucket, struct id128 id, const struct upload_part_record *p,
                     struct err *e)
{
    _cleanup_buf_ struct buf key = BUF_INIT(PART_KEY), value = BUF_INIT(UPLOAD_RECORD_MAX);
    _cleanup_(kv_txn_freep) struct kv_txn *t = kv_txn_new(kv);
    int r = check_open(kv, t, bucket, id, e);
    if (r < 0)
        return r;
    if (upload_part_encode(p, &value) < 0)
        return err_set(e, -E2BIG, "the part's strings are too long");
    upload_part_key(bucket, id, p->number, &key);
    kv_txn_put(t, buf_view(&key), buf_view(&value));
    return commit_open(t, e);
}

int upload_remove_part(struct kv *kv, uint64_t bucket, struct id128 id, uint32_t number, struct err *e)
{
    _cleanup_buf_ struct buf key = BUF_INIT(PART_KEY);
    _cleanup_(kv_txn_freep) struct kv_txn *t = kv_txn_new(kv);
    upload_part_key(bucket, id, number, &key);
    kv_txn_delete(t, buf_view(&key));
    return kv_txn_commit(t, KV_DURABLE, e);
}

int upload_remove(struct kv *kv, uint64_t bucket, struct id128 id, struct err *e)
{
    _cleanup_buf_ struct buf key = BUF_INIT(PART_KEY);
    _cleanup_(kv_txn_freep) struct kv_txn *t = kv_txn_new(kv);
    upload_key(bucket, id, &key);
    kv_txn_delete(t, buf_view(&key));
    delete_parts(t, bucket, id);
    return kv_txn_commit(t, KV_DURABLE, e);
}

int upload_remove_open(struct kv *kv, uint64_t bucket, struct id128 id, struct err *e)
{
    _cleanup_buf_ struct buf key = BUF_INIT(PART_KEY);
    _cleanup_(kv_txn_freep) struct kv_txn *t = kv_txn_new(kv);
    int r = check_open(kv, t, bucket, id, e);
    if (r < 0)
        return r;
    upload_key(bucket, id, &key);
    kv_txn_delete(t, buf_view(&key));
    delete_parts(t, bucket, id);
    return commit_open(t, e);
}

int upload_remove_bucket(struct kv *kv, uint64_t bucket, struct err *e)
{
    _cleanup_(kv_txn_freep) struct kv_txn *t = kv_txn_new(kv);
    const char kinds[] = {'u', 'p'};
    for (size_t i = 0; i < sizeof(kinds); i++) {
        _cleanup_buf_ struct buf from = BUF_INIT(PART_KEY), to = BUF_INIT(PART_KEY);
        make_key(kinds[i], bucket, NULL, &from);
        make_key(kinds[i], bucket + 1, NULL, &to);
        kv_txn_delete_range(t, buf_view(&from), buf_view(&to));
    }
    return kv_txn_commit(t, KV_DURABLE, e);
}

/* ---- looking ---- */

int upload_find(struct kv *kv, uint64_t bucket, struct id128 id, struct arena *a, struct upload_record *ret,
                struct err *e)
{
    _cleanup_buf_ struct buf key = BUF_INIT(PART_KEY), value = BUF_INIT(UPLOAD_RECORD_MAX);
    upload_key(bucket, id, &key);
    int r = kv_get(kv, buf_view(&key), &value, NULL, e);
    if (r < 0)
        return r;
    r = upload_decode(arena_dup(a, buf_view(&value)), ret);
    ret->id = id;
    return r < 0 ? err_set(e, r, "record of an upload is damaged") : 0;
}

int upload_each(struct kv *kv, uint64_t bucket, const struct id128 *after, upload_fn fn, void *arg,
                struct err *e)
{
    _cleanup_buf_ struct buf from = BUF_INIT(PART_KEY), to = BUF_INIT(PART_KEY);
    make_key('u', bucket, after, &from);
    make_key('u', bucket ? bucket + 1 : UINT64_MAX, NULL, &to);
    _cleanup_(kv_iter_freep) struct kv_iter *it = kv_iter_new(kv, buf_view(&from), buf_view(&to));
    struct slice key, value;
    int r;
    while ((r = kv_iter_next(it, &key, &value, e)) == 0) {
        struct upload_record u;
        if (after && slice_eq(key, buf_view(&from)))
            continue;
        if (key.n != UPLOAD_KEY || upload_decode(value, &u) < 0)
            return err_set(e, ERR_CORRUPT, "record of an upload is damaged");
        memcpy(u.id.b, key.p + 10, sizeof(u.id.b));
        r = fn(arg, be_get64(key.p + 2), &u);
        if (r != 0)
            return r;
    }
    return r == -ENOENT ? 0 : r;
}

int upload_each_part(struct kv *kv, uint64_t bucket, struct id128 id, uint32_t after, upload_part_fn fn,
                     void *arg, struct err *e)
{
    _cleanup_buf_ struct buf from = BUF_INIT(PART_KEY), to = BUF_INIT(PART_KEY);
    upload_part_key(bucket, id, MIN(after, UPLOAD_NUMBER_MAX) + 1, &from);
    upload_part_key(bucket, id, UPLOAD_NUMBER_MAX + 1, &to);
    _cleanup_(kv_iter_freep) struct kv_iter *it = kv_iter_new(kv, buf_view(&from), buf_view(&to));
    struct slice key, value;
    int r;
    while ((r = kv_iter_next(it, &key, &value, e)) == 0) {
        struct upload_part_record p;
        if (key.n != PART_KEY || upload_part_decode(value, &p) < 0)
            return err_set(e, ERR_CORRUPT, "record of a part of an upload is damaged");
        p.number = be_get16(key.p + UPLOAD_KEY);
        r = fn(arg, &p);
        if (r != 0)
            return r;
    }
    return r == -ENOENT ? 0 : r;
}
