/*
 * Copies that an origin makes by itself between buckets of one service: COPY_FROM, UPLOAD_COPY. Those within
 * a bucket that say nothing of their own are COPY (name_ops.c).
 *
 * Invariants:
 *  1. What is copied is what a reader of the source would see: an object that is not in the origin yet, and a
 * bucket whose writes wait here, are refused (ERR_NOT_IMPLEMENTED), and whoever asks reads and writes.
 *  2. After a copy, also one that failed, nothing cached of the target is believed.
 *  3. A part is recorded only after the origin has it.
 *
 * Failure modes: the origin's. A part that the origin is copying when its upload ends gets five seconds; then
 * nobody waits for it any more. It is lost with its upload, or, where it comes late, stays there until the
 * origin's own rule removes it.
 */
#include "object/back_internal.h"
#include "object/upload_table.h"

#include "base/md5.h"
#include "base/sys.h"
#include "base/text.h"

#define RECORD_ARENA (2 * UPLOAD_RECORD_MAX)

static bool is_all_there(struct object_service *s, const struct upstream *u, struct slice key)
{
    return u->bucket->p.write != BUCKET_WRITE_BACK && !back_has(s->back, u->bucket->id, key);
}

/* Both ends, when one service has them. */
static int find_ends(struct object_service *s, struct slice bucket, struct slice key,
                     struct slice source_bucket, struct slice source_key, struct upstream **ret,
                     struct upstream **ret_source, struct err *e)
{
    int r = object_check_key(key, e);
    if (r == 0)
        r = object_check_key(source_key, e);
    if (r == 0)
        r = object_upstream(s, bucket, ret, e);
    if (r == 0)
        r = object_upstream(s, source_bucket, ret_source, e);
    if (r < 0)
        return r;
    bool can = origin_is_beside((*ret)->origin, (*ret_source)->origin) && is_all_there(s, *ret, key) &&
               is_all_there(s, *ret_source, source_key);
    return can ? 0 : err_set(e, ERR_NOT_IMPLEMENTED, "the origin cannot copy it by itself");
}

int op_copy_from(struct object_session *ses, const struct wire_copy_from_req *req, struct arena *a,
                 struct wire_copy_from_rep *rep, struct err *e)
{
    struct object_service *s = ses->service;
    _cleanup_(upstream_unrefp) struct upstream *u = NULL, *source = NULL;
    struct origin_attr answer = {0};
    int r = find_ends(s, req->bucket, req->key, req->source_bucket, req->source_key, &u, &source, e);
    if (r == 0)
        r = object_check_meta(req->meta, e);
    if (r < 0)
        return r;
    const struct origin_copy copy = {.source = source->origin,
                                     .from = req->source_key,
                                     .to = req->key,
                                     .if_match = req->if_match,
                                     .replaces_meta = req->replace_meta != 0,
                                     .replaces_tags = req->replace_tags != 0,
                                     .content_type = req->content_type,
                                     .meta = req->meta};
    struct object_change change;
    object_change_begin(s, &change, u->bucket, req->key);
    r = upstream_copy_from(u, &copy, a, &answer, e);
    object_change_end(s, &change);
    if (r < 0)
        return err_prefix(e, r, "copy to %s/" SLICE_FMT, u->bucket->name, SLICE_ARG(req->key));
    struct attr attr = attr_of_origin(&answer, /* has_meta= */ false, sys->real_ns());
    attr_to_wire(&attr, a, &rep->attr);
    return 0;
}

/* ---- parts ---- */

static int check_part(const struct wire_upload_copy_req *q, struct err *e)
{
    if (q->number < 1 || q->number > UPLOAD_NUMBER_MAX || q->n < 1 || q->n > STORE_SIZE_MAX_BYTES ||
        q->offset > STORE_SIZE_MAX_BYTES)
        return err_set(e, -EINVAL, "part %u of %llu bytes", q->number, (unsigned long long)q->n);
    return 0;
}

/* The part at the origin, then its record. No copy here: the one of the upload ends. Clients know parts by
 * the MD5 in small letters, by which the end of the upload looks for them: some services write it in
 * capitals, and are told it as they wrote it. */
static int copy_part(struct object_service *s, struct upstream *u, struct upstream *source,
                     struct upload_slot *slot, const struct upload_record *upload,
                     const struct wire_upload_copy_req *q, char ret_etag[ORIGIN_ETAG_MAX + 1], struct err *e)
{
    const struct origin_copy copy = {
        .source = source->origin, .from = q->source_key, .if_match = q->if_match};
    const struct origin_put put = {.key = q->key};
    char there[ORIGIN_ETAG_MAX + 1] = "";
    uint8_t md5[MD5_BYTES];
    struct upload_stage stage;
    upload_stage_begin(s, slot, u, q->key, q->number, q->n, &stage);
    upload_stage_end(s, slot, &stage, /* ok= */ false);
    int r = upstream_upload_copy(u, &put, upload->origin_id, q->number, &copy, q->offset, q->n, there, e);
    if (r == 0 && text_unhex(slice_str(there), md5, sizeof(md5)) < 0)
        r = err_set(e, ERR_NOT_IMPLEMENTED, "the origin's ETags of parts have another form");
    if (r < 0)
        return r;
    text_hex(md5, sizeof(md5), ret_etag);
    const struct upload_part_record record = {.number = q->number,
                                              .size_bytes = q->n,
                                              .at_ns = sys->real_ns(),
                                              .etag = slice_str(ret_etag),
                                              .origin_etag = slice_str(there)};
    return upload_save_part(s->config.control, u->bucket->id, upload->id, &record, e);
}

/* The same as one of the parts on their way of the upload, whose end gives it up. */
static int copy_on_its_way(struct object_service *s, struct upstream *u, struct upstream *source,
                           struct upload_slot *slot, const struct upload_record *upload,
                           const struct wire_upload_copy_req *q, char ret_etag[ORIGIN_ETAG_MAX + 1],
                           struct err *e)
{
    atomic_bool stop;
    atomic_init(&stop, false);
    struct quit scope = {.now = &stop};
    struct upload_way way;
    int r = upload_slot_copy(s, slot, &way, &stop, e);
    if (r < 0)
        return r;
    quit_enter(&scope);
    r = copy_part(s, u, source, slot, upload, q, ret_etag, e);
    quit_leave(&scope);
    upload_slot_unsend(s, slot, &way);
    if (r == 0 || !atomic_load(&stop))
        return r;
    return upload_slot_has_ended(s, slot) ? err_set(e, -ENOENT, "the upload was completed or aborted")
                                          : err_set(e, -ECANCELED, "the upload is being completed");
}

int op_upload_copy(struct object_session *ses, const struct wire_upload_copy_req *req, struct arena *a,
                   struct wire_upload_copy_rep *rep, struct err *e)
{
    struct object_service *s = ses->service;
    _cleanup_(upstream_unrefp) struct upstream *u = NULL, *source = NULL;
    _cleanup_(arena_freep) struct arena *own = arena_new(RECORD_ARENA);
    struct upload_record upload = {0};
    char etag[ORIGIN_ETAG_MAX + 1] = "";
    int r = check_part(req, e);
    if (r == 0)
        r = find_ends(s, req->bucket, req->key, req->source_bucket, req->source_key, &u, &source, e);
    if (r == 0)
        r = upload_open_record(s, u->bucket, req->key, req->id, own, &upload, e);
    if (r == 0 && upload.completed)
        r = err_set(e, -ENOENT, "the upload was completed");
    if (r == 0 && upload.tag.n > 0)
        r = err_set(e, ERR_NOT_IMPLEMENTED, "somebody wants to see the bytes of its parts");
    if (r < 0)
        return r;
    struct upload_slot *slot = upload_slot_get(s, u->bucket->id, upload.id);
    r = upload_slot_enter(s, slot, e);
    if (r == 0) {
        r = copy_on_its_way(s, u, source, slot, &upload, req, etag, e);
        upload_slot_leave(s, slot);
    }
    upload_slot_put(s, slot);
    if (r == 0)
        rep->etag = slice_str(arena_str(a, slice_str(etag)));
    return r;
}
