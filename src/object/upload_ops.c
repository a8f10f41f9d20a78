/*
 * Uploads in parts to mirror buckets whose origin has them: create, parts, listings, these also of those that
 * are here (upload_here.h). Completing and ending is in upload_end.c.
 *
 * Invariants:
 *  1. The control store knows an upload before its creation is acknowledged, and a part before the part is:
 * after kill -9 or power loss what was acknowledged can be listed and completed.
 *  2. A part counts when the origin has acknowledged all of it; until then the older one of its number does.
 *  3. Nothing here is needed to go on after a restart but the control store and the origin (the slots of
 * upload_table.h are only a copy).
 *
 * Failure modes: a crash between the origin's answer and the record leaves an upload at the origin that
 * nobody knows; the origin's own rule for unfinished uploads removes it. A part whose record could not be
 * written is not acknowledged; when it replaced another, completing with the older one's ETag fails at the
 * origin.
 */
#include "object/part_send.h"
#include "object/upload_table.h"

#include "base/sys.h"

#define PART_MAGIC     0x75707061u
#define RECORD_ARENA   (2 * UPLOAD_RECORD_MAX)
#define PARTS_PAGE_MAX 1000
#define LIST_PAGE_MAX  1000
#define PAGE_BYTES     (4 * MIB)

/* ---- records ---- */

int upload_open_record(struct object_service *s, const struct bucket *b, struct slice key, struct slice id,
                       struct arena *a, struct upload_record *ret, struct err *e)
{
    struct id128 parsed;
    struct upload_record u;
    int r = id_parse(id, &parsed) < 0 ? -ENOENT : upload_find(s->config.control, b->id, parsed, a, &u, e);
    if (r == 0 && !slice_eq(u.key, key))
        r = -ENOENT;
    if (r < 0)
        return r == -ENOENT ? err_set(e, r, "no such upload of that key is open") : r;
    *ret = u;
    return 0;
}

/* ---- UPLOAD_CREATE ---- */

static int check_create(const struct wire_upload_create_req *q, struct err *e)
{
    int r = object_check_key(q->key, e);
    if (r < 0)
        return r;
    if (q->meta.n > ORIGIN_META_MAX_BYTES || q->content_type.n > 1024 || q->tag.n > UPLOAD_TAG_MAX)
        return err_set(e, -E2BIG, "metadata of the object is %zu bytes, at most %d are allowed", q->meta.n,
                       (int)ORIGIN_META_MAX_BYTES);
    return 0;
}

int op_upload_create(struct object_session *ses, const struct wire_upload_create_req *req, struct arena *a,
                     struct wire_upload_create_rep *rep, struct err *e)
{
    struct object_service *s = ses->service;
    _cleanup_(upstream_unrefp) struct upstream *u = NULL;
    char origin_id[ORIGIN_UPLOAD_ID_MAX], text[ID_TEXT_SIZE];
    int r = check_create(req, e);
    if (r == 0)
        r = object_upstream(s, req->bucket, &u, e);
    if (r < 0)
        return r;
    if (u->bucket->p.write == BUCKET_WRITE_BACK)
        return err_set(e, ERR_NOT_IMPLEMENTED, "writes of bucket %s do not wait for its origin",
                       u->bucket->name);
    if (!origin_begins_uploads(u->origin))
        return err_set(e, ERR_NOT_IMPLEMENTED, "the origin of bucket %s takes no uploads in parts",
                       u->bucket->name);
    struct origin_put put = {
        .key = req->key, .content_type = req->content_type, .meta = req->meta, .sums = req->tag};
    bool sums = false;
    r = upstream_upload_create(u, &put, origin_id, &sums, e);
    if (r < 0)
        return err_prefix(e, r, "%s/" SLICE_FMT, u->bucket->name, SLICE_ARG(req->key));
    struct upload_record record = {.at_ns = sys->real_ns(),
                                   .key = req->key,
                                   .content_type = req->content_type,
                                   .meta = req->meta,
                                   .origin_id = slice_str(origin_id),
                                   .tag = req->tag,
                                   .gives_sums = sums};
    id_new_at(record.at_ns, &record.id);
    r = upload_save(s->config.control, u->bucket->id, &record, e);
    if (r < 0) {
        (void)upstream_upload_abort(u, req->key, slice_str(origin_id), NULL);
        return r;
    }
    id_text(record.id, text);
    rep->id = slice_str(arena_str(a, slice_str(text)));
    return 0;
}

/* ---- one part ---- */

struct part_write {
    uint32_t magic;
    struct object_service *service;
    struct upload_slot *slot;
    uint64_t bucket;
    struct id128 id;
    uint32_t number;
    uint64_t size;
    bool gives_sums; /* the origin gets its checksum */
    struct part_send *send;
    struct upload_way way;
    struct upload_stage stage;
    _Atomic uint32_t refs;
    struct lock lock; /* covers busy: one operation at a time */
    struct cond moved;
    bool busy, ended;
};

void part_write_ref(struct part_write *p)
{
    assert(p->magic == PART_MAGIC);
    (void)atomic_fetch_add(&p->refs, 1);
}

void part_write_unref(struct part_write *p)
{
    if (!p)
        return;
    assert(p->magic == PART_MAGIC);
    if (atomic_fetch_sub(&p->refs, 1) != 1)
        return;
    upload_slot_unsend(p->service, p->slot, &p->way);
    part_send_free(p->send);
    upload_stage_end(p->service, p->slot, &p->stage, /* ok= */ false);
    upload_slot_leave(p->service, p->slot);
    upload_slot_put(p->service, p->slot);
    cond_fini(&p->moved);
    lock_fini(&p->lock);
    p->magic = 0;
    free(p);
}

static struct part_write *part_get(struct object_session *ses, uint64_t handle, struct err *e)
{
    struct part_write *p = session_get(ses, HANDLE_PART, handle, e);
    if (!p)
        return NULL;
    lock_take(&p->lock);
    while (p->busy)
        cond_wait(&p->moved, &p->lock);
    bool ended = p->ended;
    p->busy = !ended;
    lock_drop(&p->lock);
    if (!ended)
        return p;
    part_write_unref(p);
    (void)err_set(e, -EBADF, "handle is not open");
    return NULL;
}

static void part_leave(struct part_write *p, bool ended)
{
    lock_take(&p->lock);
    p->busy = false;
    p->ended = ended;
    cond_broadcast(&p->moved);
    lock_drop(&p->lock);
    part_write_unref(p);
}

/* What the client said before the bytes, "SUFFIX HEX", when it is of the upload's kind. */
static struct slice known_sum(const struct upload_record *record, struct slice checksum)
{
    struct slice kind = record->tag, suffix = slice_split(&checksum, ' ');
    return slice_eq(suffix, slice_split(&kind, ' ')) && checksum.n <= UPLOAD_CHECKSUM_MAX ? checksum
                                                                                          : SLICE_NULL;
}

static int part_new(struct object_service *s, struct upstream *u, const struct upload_record *record,
                    const struct wire_upload_part_req *q, struct part_write **ret, struct err *e)
{
    const struct part_plan plan = {.key = record->key,
                                   .origin_id = record->origin_id,
                                   .sums = record->gives_sums ? record->tag : SLICE_NULL,
                                   .number = q->number,
                                   .size = q->size,
                                   .sum = known_sum(record, q->checksum)};
    struct upload_slot *slot = upload_slot_get(s, u->bucket->id, record->id);
    int r = upload_slot_enter(s, slot, e);
    if (r < 0) {
        upload_slot_put(s, slot);
        return r;
    }
    struct part_write *p = calloc(1, sizeof(*p));
    assert(p);
    *p = (struct part_write){.magic = PART_MAGIC,
                             .service = s,
                             .slot = slot,
                             .bucket = u->bucket->id,
                             .id = record->id,
                             .number = q->number,
                             .size = q->size,
                             .gives_sums = record->gives_sums};
    atomic_init(&p->refs, 1);
    lock_init(&p->lock, LOCK_OBJECT);
    cond_init(&p->moved);
    r = part_send_new(s, u, &plan, PART_WAIT_MS, &p->send, e);
    if (r == 0)
        r = upload_slot_send(s, slot, &p->way, p->send, e);
    if (r < 0) {
        part_write_unref(p);
        return r;
    }
    upload_stage_begin(s, slot, u, record->key, q->number, q->size, &p->stage);
    *ret = p;
    return 0;
}

int op_upload_part(struct object_session *ses, const struct wire_upload_part_req *req, struct arena *a,
                   struct wire_upload_part_rep *rep, struct err *e)
{
    struct object_service *s = ses->service;
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    _cleanup_(upstream_unrefp) struct upstream *u = NULL;
    _cleanup_(arena_freep) struct arena *own = arena_new(RECORD_ARENA);
    struct upload_record record = {0};
    struct part_write *p = NULL;
    if (req->number < 1 || req->number > UPLOAD_NUMBER_MAX || req->size > STORE_SIZE_MAX_BYTES)
        return err_set(e, -EINVAL, "part %u of %llu bytes", req->number, (unsigned long long)req->size);
    int r = bucket_find(s->buckets, req->bucket, &b, e);
    if (r == 0)
        r = upload_open_record(s, b, req->key, req->id, own, &record, e);
    if (r == 0 && (record.completed || record.location.n > 0))
        r = err_set(e, -ENOENT, "the upload was completed, or its parts are here");
    if (r == 0)
        r = object_upstream(s, req->bucket, &u, e);
    if (r == 0)
        r = part_new(s, u, &record, req, &p, e);
    if (r < 0)
        return r;
    rep->tag = arena_dup(a, record.tag);
    r = session_put(ses, HANDLE_PART, p, &rep->handle);
    if (r < 0) {
        part_write_unref(p);
        return session_no_room(r, e);
    }
    return 0;
}

/* What a part comes to that the end of its upload stopped. Whatever else gave it up, as the node's stop does,
 * leaves the upload as it is, and so does a completion that fails. */
static int given_up(struct part_write *p, int r, struct err *e)
{
    return r == -ECANCELED && upload_slot_has_ended(p->service, p->slot)
               ? err_set(e, -ENOENT, "the upload was completed or aborted")
               : r;
}

int op_upload_write(struct object_session *ses, const struct wire_upload_write_req *req, struct arena *a,
                    struct wire_upload_write_rep *rep, struct err *e)
{
    (void)a, (void)rep;
    struct part_write *p = part_get(ses, req->handle, e);
    if (!p)
        return -EBADF;
    uint64_t at = part_send_written(p->send);
    int r = part_send_write(p->send, req->data, e);
    if (r == 0)
        upload_stage_write(p->service, p->slot, &p->stage, at, req->data);
    r = given_up(p, r, e);
    part_leave(p, /* ended= */ false);
    return r;
}

static int end_part(struct part_write *p, const struct wire_upload_end_req *q, struct err *e)
{
    struct slice origin_etag;
    if (q->etag.n == 0 || q->etag.n > UPLOAD_ETAG_MAX || q->checksum.n > UPLOAD_CHECKSUM_MAX)
        return err_set(e, -EINVAL, "ETag or checksum of a part: too long, or none");
    if (p->gives_sums && q->checksum.n == 0)
        return err_set(e, -EINVAL, "a part of an upload with checksums must have one");
    part_send_sum(p->send, q->checksum);
    int r = part_send_end(p->send, &origin_etag, e);
    if (r < 0)
        return given_up(p, r, e);
    struct upload_part_record record = {.number = p->number,
                                        .size_bytes = p->size,
                                        .at_ns = sys->real_ns(),
                                        .etag = q->etag,
                                        .origin_etag = origin_etag,
                                        .checksum = q->checksum};
    r = upload_save_part(p->service->config.control, p->bucket, p->id, &record, e);
    upload_stage_end(p->service, p->slot, &p->stage, r == 0);
    return r;
}

int op_upload_end(struct object_session *ses, const struct wire_upload_end_req *req, struct arena *a,
                  struct wire_upload_end_rep *rep, struct err *e)
{
    (void)a, (void)rep;
    struct part_write *p = part_get(ses, req->handle, e);
    if (!p)
        return -EBADF;
    int r = req->flags & WIRE_CANCEL ? 0 : end_part(p, req, e);
    part_leave(p, /* ended= */ true);
    part_write_unref(session_take(ses, HANDLE_PART, req->handle));
    return r;
}

/* ---- listings ---- */

struct page {
    struct buf *out;
    uint32_t n, max;
    bool truncated;
    bool is_here; /* of which uploads */
};

static int add_part(void *arg, const struct upload_part_record *p)
{
    struct page *page = arg;
    const struct wire_part w = {.number = p->number,
                                .size_bytes = p->size_bytes,
                                .at_ns = p->at_ns,
                                .etag = p->etag,
                                .checksum = p->checksum,
                                .offset = p->offset,
                                .slot_bytes = p->slot_bytes};
    page->truncated = page->n == page->max || wire_part_encode(&w, page->out) < 0;
    page->n += !page->truncated;
    return page->truncated;
}

int op_upload_parts(struct object_session *ses, const struct wire_upload_parts_req *req, struct arena *a,
                    struct wire_upload_parts_rep *rep, struct err *e)
{
    struct object_service *s = ses->service;
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    _cleanup_buf_ struct buf out = BUF_INIT(PAGE_BYTES);
    struct page page = {.out = &out, .max = MIN(req->max, PARTS_PAGE_MAX)};
    struct upload_record u = {0};
    int r = bucket_find(s->buckets, req->bucket, &b, e);
    if (r == 0)
        r = upload_open_record(s, b, req->key, req->id, a, &u, e);
    if (r == 0 && !u.completed && (u.location.n > 0) != ((req->flags & WIRE_STAGED) != 0))
        r = err_set(e, -ENOENT, "the upload is open elsewhere");
    if (r == 0 && !u.completed)
        r = upload_each_part(s->config.control, b->id, u.id, req->after, add_part, &page, e);
    if (r < 0)
        return r;
    rep->parts = arena_dup(a, buf_view(&out));
    rep->n_parts = page.n;
    rep->truncated = page.truncated;
    rep->tag = u.tag;
    rep->content_type = u.content_type;
    rep->meta = u.meta;
    rep->etag = u.etag;
    return 0;
}

static int add_upload(void *arg, uint64_t bucket, const struct upload_record *u)
{
    struct page *page = arg;
    char id[ID_TEXT_SIZE];
    (void)bucket;
    if (u->completed || (u->location.n > 0) != page->is_here)
        return 0;
    id_text(u->id, id);
    const struct wire_upload w = {.id = slice_str(id), .key = u->key, .created_ns = u->at_ns};
    page->truncated = page->n == page->max || wire_upload_encode(&w, page->out) < 0;
    page->n += !page->truncated;
    return page->truncated;
}

int op_upload_list(struct object_session *ses, const struct wire_upload_list_req *req, struct arena *a,
                   struct wire_upload_list_rep *rep, struct err *e)
{
    struct object_service *s = ses->service;
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    _cleanup_buf_ struct buf out = BUF_INIT(PAGE_BYTES);
    struct page page = {.out = &out, .max = LIST_PAGE_MAX, .is_here = req->flags & WIRE_STAGED};
    struct id128 after;
    int r = bucket_find(s->buckets, req->bucket, &b, e);
    if (r == 0 && req->after.n > 0 && id_parse(req->after, &after) < 0)
        r = err_set(e, -EINVAL, "'" SLICE_FMT "' is no upload id", SLICE_ARG(slice_sub(req->after, 0, 80)));
    if (r == 0)
        r = upload_each(s->config.control, b->id, req->after.n ? &after : NULL, add_upload, &page, e);
    if (r < 0)
        return r;
    rep->uploads = arena_dup(a, buf_view(&out));
    rep->truncated = page.truncated;
    return 0;
}
