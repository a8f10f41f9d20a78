/*
 * Write-back: what the cache has of a version that was sent.
 *
 * What is not in the origin yet has its bytes in the record's extent alone. Before the record goes, that file
 * gets another name in the cache
 * (store_stage_hard), as the entry of the version with the ETag that it has here; then the record goes; then
 * the entry gets the ETag that the origin gave the version.
 *
 * Invariant: an entry is made while the key's opening is held, and of a version that was the key's when the
 * generation was looked at: what is written meanwhile is acknowledged after its writer had the entry
 * forgotten.
 */
#include "object/back_internal.h"

#include "base/log.h"
#include "base/sys.h"

/* Whether the record is still the one that was sent. */
static bool is_current(struct back *b, const struct bucket *bucket, struct slice key,
                       const struct back_record *r)
{
    _cleanup_buf_ struct buf value = BUF_INIT(BACK_RECORD_MAX_BYTES);
    struct back_record now;
    return back_load(b, bucket->id, key, &value, &now, NULL) == 0 && now.seq == r->seq && !now.is_live;
}

static void publish(struct object_service *o, const struct opening *opening, const struct back_record *r,
                    struct hard *h, const uint32_t *sums, struct err *e)
{
    _cleanup_buf_ struct buf k = BUF_INIT(BACK_KEY_BYTES), blob = BUF_INIT(ATTR_BLOB_MAX_BYTES);
    _cleanup_(arena_freep) struct arena *a = arena_new(2 * BACK_RECORD_MAX_BYTES);
    struct origin_attr known = back_attr(r, a);
    struct attr attr = attr_of_origin(&known, /* has_meta= */ true, sys->real_ns());
    struct extent *x = NULL;
    object_store_key(opening->bucket, opening->key, &k);
    int code = object_encode_attr(o, opening->bucket, opening->key, &attr, &blob);
    struct store_new n = {.key = buf_view(&k),
                          .attr = buf_view(&blob),
                          .size_bytes = r->size_bytes,
                          .pinned_admission = bucket_keep(opening->bucket, opening->key) == RULE_KEEP_PINNED};
    if (code == 0)
        code = store_stage_hard(o->config.store, n.key, h, r->size_bytes, sums, &x, e);
    if (code == 0)
        code = store_publish(o->config.store, x, &n, e);
    extent_unref(x);
    if (code < 0)
        log_debug("object", "%s/" SLICE_FMT ": sent, but not kept in the cache: %s", opening->bucket->name,
                  SLICE_ARG(opening->key), e->text);
}

void back_cache(struct back *b, const struct bucket *bucket, struct slice key, const struct back_record *r,
                struct hard *h, const uint32_t *sums)
{
    struct object_service *o = b->service;
    struct err e = {0};
    _cleanup_buf_ struct buf k = BUF_INIT(BACK_KEY_BYTES);
    _cleanup_(extent_unrefp) struct extent *there = NULL;
    struct opening opening = {.bucket = bucket, .key = key};
    object_store_key(bucket, key, &k);
    object_opening_enter(o, &opening);
    uint64_t seen = mirror_generation(o->mirror, bucket, key);
    bool wanted = bucket_keep(bucket, key) != RULE_KEEP_NEVER && is_current(b, bucket, key, r) &&
                  store_find(o->config.store, buf_view(&k), &there) == -ENOENT;
    if (wanted && object_making_begin(o, &opening, seen)) {
        if (quota_admit(o, bucket, key, r->size_bytes))
            publish(o, &opening, r, h, sums, &e);
        object_making_end(o, &opening);
    }
    object_opening_leave(o, &opening);
}

void back_rename_cached(struct back *b, const struct bucket *bucket, struct slice key,
                        const struct back_record *r, struct slice etag)
{
    struct object_service *o = b->service;
    _cleanup_buf_ struct buf k = BUF_INIT(BACK_KEY_BYTES), blob = BUF_INIT(ATTR_BLOB_MAX_BYTES),
                             next = BUF_INIT(ATTR_BLOB_MAX_BYTES);
    _cleanup_(extent_unrefp) struct extent *x = NULL;
    struct attr attr;
    char own[BACK_ETAG_SIZE];
    struct opening opening = {.bucket = bucket, .key = key};
    back_record_etag(r, own);
    object_store_key(bucket, key, &k);
    object_opening_enter(o, &opening);
    uint64_t seen = mirror_changed(o->mirror, bucket, key);
    bool ours = store_find(o->config.store, buf_view(&k), &x) == 0 && extent_attr(x, &blob) == 0 &&
                attr_decode(buf_view(&blob), &attr) == 0 && slice_eq_case(attr.etag, slice_str(own));
    if (ours && object_making_begin(o, &opening, seen)) {
        attr.etag = etag;
        attr.confirmed_ns = sys->real_ns();
        if (object_encode_attr(o, bucket, key, &attr, &next) == 0)
            (void)extent_set_attr(x, buf_view(&next));
        mirror_learn(o->mirror, bucket, key, &attr, seen);
        object_making_end(o, &opening);
    }
    object_opening_leave(o, &opening);
    watch_changed(o, bucket, key);
}
