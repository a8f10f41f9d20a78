/*
 * The end of uploads in parts: completing, aborting, expiry.
 *
 * Invariants:
 *  1. The origin completes an upload; only then is the object there, and only then is the upload marked
 * completed. A node that dies in between is told the same, when the client asks again, by a kind of origin
 * that knows the object for what these parts make (origin_upload_complete).
 *  2. What was cached of the key is forgotten before the origin is asked and when the end is unknown, as with
 * every write (writer.c).
 *  3. An upload leaves the control store only after the origin has aborted it. Neither an abort nor a
 * completion waits for anybody who sends a part: a completion is of parts that were acknowledged, and names
 * them. What their senders may still send is stopped first (upload_slot_stop), and a part that the origin
 * took meanwhile is either recorded before the upload ends or not at all.
 *  4. The copy of the parts is kept under an ETag only when the origin's answer to the end of this upload
 * told it, or the ETag itself tells of these parts: whoever asks afterwards may hear of somebody else's
 * object.
 *
 * Failure modes: what cannot be aborted at the origin stays, is logged, and is tried again.
 */
#include "object/back_internal.h"
#include "object/upload_here.h"
#include "object/upload_table.h"

#include "base/log.h"
#include "base/often.h"
#include "base/sys.h"
#include "origin/meta.h"

#define RECORD_ARENA     (2 * UPLOAD_RECORD_MAX)
#define ANSWER_ARENA     (8 * MIB)        /* ETags and checksums of all parts */
#define COMPLETED_KEPT_S 86400            /* for clients that ask again */
#define TURN_MAX         64               /* uploads that one walk finds */
#define FAILED_MAX       UPLOADS_LEFT_MAX /* buckets where something fails in one turn */
#define TRY_AGAIN_NS     600000000000ull

struct ending {
    struct object_service *service;
    struct upstream *upstream;
    struct upload_slot *slot;
    struct upload_record record;
    struct arena *arena; /* the call's own */
    struct origin_part *parts;
    uint32_t *numbers;
    uint64_t *sizes, total;
    size_t n;
    bool gone;          /* the upload has ended, its slot is of no use any more */
    bool answer_is_own; /* the answer is about what was put together here */
};

/* ---- the parts that the client lists ---- */

struct listed {
    uint32_t number;
    struct slice etag;
};

struct chosen {
    struct ending *x;
    const struct listed *listed;
    size_t n;
};

static int take_listed(void *arg, const struct upload_part_record *p)
{
    struct chosen *c = arg;
    struct ending *x = c->x;
    const struct listed *l = &c->listed[x->n];
    if (x->n == c->n || p->number < l->number)
        return 0;
    if (p->number != l->number || !slice_eq(p->etag, l->etag))
        return -ESTALE;
    x->parts[x->n] = (struct origin_part){.number = p->number,
                                          .etag = arena_dup(x->arena, p->origin_etag),
                                          .sum = arena_dup(x->arena, p->checksum),
                                          .md5 = arena_dup(x->arena, p->etag)};
    x->numbers[x->n] = p->number;
    x->sizes[x->n] = p->size_bytes;
    x->total += p->size_bytes;
    x->n++;
    return 0;
}

static int read_list(struct ending *x, struct slice text, struct listed **ret, size_t *ret_n)
{
    struct listed *v = arena_alloc(x->arena, UPLOAD_NUMBER_MAX * sizeof(*v));
    size_t n = 0;
    while (text.n > 0) {
        uint64_t number;
        struct slice etag = slice_split(&text, '\n'), digits = slice_split(&etag, ' ');
        if (n == UPLOAD_NUMBER_MAX || slice_u64(digits, &number) < 0 || number < 1 ||
            number > UPLOAD_NUMBER_MAX || (n > 0 && number <= v[n - 1].number))
            return -EINVAL;
        v[n++] = (struct listed){.number = (uint32_t)number, .etag = etag};
    }
    *ret = v;
    *ret_n = n;
    return n > 0 ? 0 : -EINVAL;
}

static int choose(struct ending *x, struct slice text, struct err *e)
{
    struct chosen c = {.x = x};
    struct listed *listed;
    if (read_list(x, text, &listed, &c.n) < 0)
        return err_set(e, -EINVAL, "the list of parts: numbers from 1 to 10000 in rising order, with ETags");
    c.listed = listed;
    x->parts = arena_alloc(x->arena, c.n * sizeof(x->parts[0]));
    x->numbers = arena_alloc(x->arena, c.n * sizeof(x->numbers[0]));
    x->sizes = arena_alloc(x->arena, c.n * sizeof(x->sizes[0]));
    int r = upload_each_part(x->service->config.control, x->upstream->bucket->id, x->record.id, 0,
                             take_listed, &c, e);
    if (r == 0 && x->n < c.n)
        r = -ESTALE;
    return r == -ESTALE
               ? err_set(e, r, "part %u is not there, or is another one by now", c.listed[x->n].number)
               : r;
}

/* ---- completing ---- */

static void remove_entry(struct ending *x)
{
    _cleanup_buf_ struct buf key = BUF_INIT(ORIGIN_KEY_MAX_BYTES + 8);
    object_store_key(x->upstream->bucket, x->record.key, &key);
    (void)store_remove(x->service->config.store, buf_view(&key));
    object_note_forgetful(x->service);
}

static void publish(struct ending *x, struct extent *copy, const struct attr *attr)
{
    _cleanup_buf_ struct buf key = BUF_INIT(ORIGIN_KEY_MAX_BYTES + 8), blob = BUF_INIT(ATTR_BLOB_MAX_BYTES);
    object_store_key(x->upstream->bucket, x->record.key, &key);
    struct store_new n = {.key = buf_view(&key), .size_bytes = attr->size_bytes};
    struct err local = {0};
    int r = object_encode_attr(x->service, x->upstream->bucket, x->record.key, attr, &blob);
    n.attr = buf_view(&blob);
    if (r == 0)
        r = store_publish(x->service->config.store, copy, &n, &local);
    if (r == 0)
        return;
    remove_entry(x);
    log_often("object", "%s/" SLICE_FMT ": uploaded, but not kept in the cache: %s",
              x->upstream->bucket->name, SLICE_ARG(x->record.key), local.code ? local.text : err_text(r));
}

/* What was completed is what every later open finds, unless another change of the key overlapped. */
static void make_current(struct ending *x, const struct attr *attr, uint64_t generation,
                         struct object_change *change)
{
    struct object_service *s = x->service;
    struct opening opening = {.bucket = x->upstream->bucket, .key = x->record.key};
    _cleanup_(extent_unrefp) struct extent *copy = upload_stage_take(s, x->slot, x->numbers, x->sizes, x->n);
    object_opening_enter(s, &opening);
    bool current = x->answer_is_own && object_making_begin_own(s, &opening, generation, attr->etag);
    if (current) {
        object_change_end_known(s, change);
        generation = mirror_changed(s->mirror, opening.bucket, opening.key);
        if (copy &&
            bucket_keep(opening.bucket, opening.key) != RULE_KEEP_NEVER && /* since it began, perhaps */
            quota_admit(s, opening.bucket, opening.key, attr->size_bytes))
            publish(x, copy, attr);
        else
            remove_entry(x);
        mirror_learn(s->mirror, opening.bucket, opening.key, attr, generation);
        object_making_end(s, &opening);
        watch_changed(s, opening.bucket, opening.key);
    }
    object_opening_leave(s, &opening);
    if (!current)
        object_change_end(s, change);
}

static struct attr completed_attr(struct ending *x, const struct origin_attr *answer, struct slice checksum,
                                  uint64_t confirmed_ns)
{
    struct attr attr = attr_of_origin(answer, /* has_meta= */ true, confirmed_ns);
    attr.size_bytes = x->total;
    attr.content_type = x->record.content_type;
    attr.meta = meta_with(x->record.meta, META_CHECKSUM, checksum, ORIGIN_META_MAX_BYTES, x->arena);
    if (attr.mtime_ns == 0)
        attr.mtime_ns = confirmed_ns;
    return attr;
}

static int complete_at_origin(struct ending *x, const struct wire_upload_complete_req *q, struct attr *ret,
                              struct err *e)
{
    struct object_service *s = x->service;
    struct origin_put put = {.key = x->record.key,
                             .content_type = x->record.content_type,
                             .meta = x->record.meta,
                             .sums = x->record.gives_sums ? x->record.tag : SLICE_NULL,
                             .whole_sum = q->checksum,
                             .if_match = q->if_match,
                             .if_none_match = q->if_none_match != 0};
    struct origin_attr answer;
    struct object_change change;
    uint64_t confirmed_ns = sys->real_ns();
    object_change_begin(s, &change, x->upstream->bucket, put.key);
    uint64_t generation = object_forget_key(s, x->upstream->bucket, put.key);
    int r = upstream_upload_complete(x->upstream, &put, x->record.origin_id, x->parts, x->n, x->total,
                                     x->arena, &answer, e);
    x->answer_is_own = r == 0 && answer.etag.n > 0 && answer.etag.n <= ORIGIN_ETAG_MAX;
    if (r == 0 && !x->answer_is_own)
        r = upstream_head(x->upstream, put.key, SLICE_NULL, x->arena, &answer, e);
    if (r < 0) {
        object_change_end(s, &change);
        return r;
    }
    *ret = completed_attr(x, &answer, q->checksum, confirmed_ns);
    struct upload_record done = x->record;
    done.completed = true;
    done.gives_sums = false;
    done.at_ns = confirmed_ns;
    done.etag = answer.etag;
    done.tag = q->checksum;
    struct err local = {0};
    x->gone = upload_save(s->config.control, x->upstream->bucket->id, &done, &local) == 0;
    upload_slot_end(s, x->slot);
    if (!x->gone)
        log_warn("object", "%s/" SLICE_FMT ": completed, but the upload's record stays: %s",
                 x->upstream->bucket->name, SLICE_ARG(put.key), local.text);
    make_current(x, ret, generation, &change);
    metrics_add(
        metrics_series(METRIC_WRITTEN_BYTES, x->upstream->bucket->name, object_via_name(q->via), NULL),
        x->total);
    return 0;
}

static int check_conditions(struct ending *x, const struct wire_upload_complete_req *q, struct err *e)
{
    if (q->if_match.n > ORIGIN_ETAG_MAX + 8 || q->checksum.n > UPLOAD_TAG_MAX)
        return err_set(e, -E2BIG, "If-Match or checksum of %zu bytes", q->if_match.n + q->checksum.n);
    if ((q->if_none_match || q->if_match.n > 0) &&
        !(x->upstream->origin->capabilities & ORIGIN_CAN_CONDITIONAL_PUT))
        return err_set(e, ERR_NOT_IMPLEMENTED,
                       "the origin of bucket %s does not check conditions on PUT, so that If-None-Match and "
                       "If-Match cannot be promised",
                       x->upstream->bucket->name);
    return 0;
}

static int complete(struct ending *x, const struct wire_upload_complete_req *q, struct attr *ret,
                    struct err *e)
{
    int r = check_conditions(x, q, e);
    if (r == 0)
        r = choose(x, q->parts, e);
    if (r < 0)
        return r;
    upload_slot_stop(x->service, x->slot);
    return complete_at_origin(x, q, ret, e);
}

/* The upload named by a request, closed, unless it was completed. */
static int ending_begin(struct ending *x, struct object_service *s, struct slice bucket, struct slice key,
                        struct slice id, struct err *e)
{
    *x = (struct ending){.service = s, .arena = arena_new(ANSWER_ARENA)};
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    int r = bucket_find(s->buckets, bucket, &b, e);
    if (r == 0)
        r = upload_open_record(s, b, key, id, x->arena, &x->record, e);
    if (r == 0 && x->record.location.n > 0)
        r = err_set(e, -ENOENT, "the parts of the upload are here");
    if (r == 0)
        r = object_upstream(s, bucket, &x->upstream, e);
    if (r < 0 || x->record.completed)
        return r;
    struct upload_slot *slot = upload_slot_get(s, x->upstream->bucket->id, x->record.id);
    struct err busy = {0};
    int closed = upload_slot_close(s, slot, &busy);
    if (closed == 0)
        x->slot = slot;
    else
        upload_slot_put(s, slot);
    /* Again: another may have ended it meanwhile. */
    r = upload_open_record(s, x->upstream->bucket, key, id, x->arena, &x->record, e);
    if (r < 0 || closed == 0 || x->record.completed)
        return r;
    if (e)
        *e = busy;
    return closed;
}

static void ending_fini(struct ending *x)
{
    if (x->slot && !x->gone)
        upload_slot_reopen(x->service, x->slot);
    upload_slot_put(x->service, x->slot);
    upstream_unref(x->upstream);
    arena_free(x->arena);
}

int op_upload_complete(struct object_session *ses, const struct wire_upload_complete_req *req,
                       struct arena *a, struct wire_upload_complete_rep *rep, struct err *e)
{
    struct ending _cleanup_(ending_fini) x;
    struct attr attr = {0};
    int r = ending_begin(&x, ses->service, req->bucket, req->key, req->id, e);
    if (r == 0 && !x.record.completed) /* nothing older may follow it */
        r = back_wait_sent(ses->service->back, x.upstream->bucket, req->key, e);
    if (r < 0)
        return r;
    if (x.record.completed)
        attr = (struct attr){.etag = x.record.etag, .mtime_ns = x.record.at_ns};
    else
        r = complete(&x, req, &attr, e);
    if (r < 0)
        return err_prefix(e, r, "%s/" SLICE_FMT, x.upstream->bucket->name, SLICE_ARG(req->key));
    attr_to_wire(&attr, a, &rep->attr);
    return 0;
}

/* ---- aborting ---- */

/* Asks the origin once. */
static int abort_once(struct upstream *u, struct slice key, struct slice origin_id, struct err *e)
{
    int r = origin_upload_abort(u->origin, key, origin_id, e);
    return r == -ENOENT ? 0 : r;
}

/* patient: somebody waits for it, and is told. */
static int abort_upload(struct ending *x, bool patient, struct err *e)
{
    int r = patient ? upstream_upload_abort(x->upstream, x->record.key, x->record.origin_id, e)
                    : abort_once(x->upstream, x->record.key, x->record.origin_id, e);
    if (r == 0)
        r = upload_remove(x->service->config.control, x->upstream->bucket->id, x->record.id, e);
    x->gone = r == 0;
    if (x->gone)
        extent_unref(upload_stage_take(x->service, x->slot, NULL, NULL, 0));
    return r;
}

/* *ret_here: the upload is here, or was completed; else it is the origin's. */
static int abort_here(struct object_service *s, const struct wire_upload_abort_req *q, bool *ret_here,
                      struct err *e)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(RECORD_ARENA);
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    struct upload_record u = {0};
    int r = bucket_find(s->buckets, q->bucket, &b, e);
    if (r == 0)
        r = upload_open_record(s, b, q->key, q->id, a, &u, e);
    if (r < 0)
        return r;
    *ret_here = u.completed || u.location.n > 0;
    if (u.completed)
        return err_set(e, -ENOENT, "the upload was completed");
    return *ret_here ? upload_here_abort(s, b->id, &u, e) : 0;
}

int op_upload_abort(struct object_session *ses, const struct wire_upload_abort_req *req, struct arena *a,
                    struct wire_upload_abort_rep *rep, struct err *e)
{
    (void)a, (void)rep;
    bool is_here = false;
    int r = abort_here(ses->service, req, &is_here, e);
    if (r < 0 || is_here)
        return r;
    struct ending _cleanup_(ending_fini) x;
    r = ending_begin(&x, ses->service, req->bucket, req->key, req->id, e);
    if (r == 0 && x.record.completed)
        r = err_set(e, -ENOENT, "the upload was completed");
    if (r < 0)
        return r;
    upload_slot_end(ses->service, x.slot);
    upload_slot_stop(ses->service, x.slot);
    return abort_upload(&x, /* patient= */ true, e);
}

/* ---- expiry ---- */

struct stale {
    struct object_service *service;
    uint64_t now_ns;
    struct {
        struct bucket *bucket; /* NULL: it is gone */
        uint64_t bucket_id, since_ns;
        struct upload_record record; /* without strings */
        char *key;
    } v[TURN_MAX];
    size_t n;
    uint64_t failed[FAILED_MAX]; /* buckets that are left out from then on: their origins are not there */
    size_t n_failed;
    bool broken; /* the records cannot be walked */
};

static bool has_failed(const struct stale *t, uint64_t bucket_id)
{
    for (size_t i = 0; i < t->n_failed; i++)
        if (t->failed[i] == bucket_id)
            return true;
    return false;
}

static struct upload_left *find_left(struct object_service *s, uint64_t bucket_id)
{
    for (size_t i = 0; i < s->n_uploads_left; i++)
        if (s->uploads_left[i].bucket_id == bucket_id)
            return &s->uploads_left[i];
    return NULL;
}

/* By an earlier turn, which went no further in that bucket. */
static bool was_tried(const struct stale *t, uint64_t bucket_id, struct id128 id)
{
    const struct upload_left *left = find_left(t->service, bucket_id);
    return left && memcmp(id.b, left->id.b, sizeof(id.b)) <= 0;
}

/* The bucket is left out from now on, and the next turn goes on behind this upload: it may be refused for
 * ever. */
static void note_failed(struct stale *t, uint64_t bucket_id, struct id128 id)
{
    struct object_service *s = t->service;
    struct upload_left *left = find_left(s, bucket_id);
    t->failed[t->n_failed++] = bucket_id;
    if (!left && s->n_uploads_left < UPLOADS_LEFT_MAX)
        left = &s->uploads_left[s->n_uploads_left++];
    if (left)
        *left = (struct upload_left){bucket_id, id};
}

/* Buckets of which the last upload was reached have their first one next. */
static void begin_anew(struct stale *t)
{
    struct object_service *s = t->service;
    size_t kept = 0;
    for (size_t i = 0; i < s->n_uploads_left; i++)
        if (has_failed(t, s->uploads_left[i].bucket_id))
            s->uploads_left[kept++] = s->uploads_left[i];
    s->n_uploads_left = kept;
}

static int is_younger(void *arg, const struct upload_part_record *p)
{
    return p->at_ns >= *(const uint64_t *)arg;
}

/* Whether a part of the upload came since then, or is coming. */
static bool is_in_use(struct object_service *s, uint64_t bucket_id, struct id128 id, uint64_t since_ns)
{
    return upload_slots_busy(s, bucket_id, id) ||
           upload_each_part(s->config.control, bucket_id, id, 0, is_younger, &since_ns, NULL) != 0;
}

static int note_stale(void *arg, uint64_t bucket_id, const struct upload_record *u)
{
    struct stale *t = arg;
    _cleanup_(bucket_unrefp) struct bucket *b = bucket_find_id(t->service->buckets, bucket_id);
    if (u->location.n > 0 && b) /* the front end knows who works on it */
        return 0;
    uint64_t kept_ns = u->completed ? COMPLETED_KEPT_S * 1000000000ull : b ? b->p.upload_expiry * 1000000 : 0;
    if (u->at_ns + kept_ns >= t->now_ns || has_failed(t, bucket_id) || was_tried(t, bucket_id, u->id))
        return 0;
    bool is_open = b && !u->completed;
    if (is_open && is_in_use(t->service, bucket_id, u->id, t->now_ns - kept_ns)) /* and takes no place */
        return 0;
    t->v[t->n].bucket = TAKE_PTR(b);
    t->v[t->n].bucket_id = bucket_id;
    t->v[t->n].since_ns = t->now_ns - kept_ns;
    t->v[t->n].record = (struct upload_record){.id = u->id, .completed = u->completed};
    t->v[t->n].key = slice_dup(u->key);
    return ++t->n == TURN_MAX;
}

static int end_stale(struct stale *t, size_t i)
{
    struct object_service *s = t->service;
    struct err e = {0};
    char id[ID_TEXT_SIZE];
    if (t->v[i].record.completed || !t->v[i].bucket)
        return upload_remove(s->config.control, t->v[i].bucket_id, t->v[i].record.id, NULL);
    if (is_in_use(s, t->v[i].bucket_id, t->v[i].record.id, t->v[i].since_ns)) /* by now */
        return 0;
    struct ending _cleanup_(ending_fini) x;
    id_text(t->v[i].record.id, id);
    int r = ending_begin(&x, s, slice_str(t->v[i].bucket->name), slice_str(t->v[i].key), slice_str(id), &e);
    if (r == 0 && is_in_use(s, t->v[i].bucket_id, t->v[i].record.id, t->v[i].since_ns))
        return 0; /* a part came, or was acknowledged, until the upload was closed */
    if (r == 0 && !x.record.completed)
        r = abort_upload(&x, /* patient= */ false, &e);
    if (r == 0)
        log_info("object", "%s/%s: upload %s was abandoned, and is aborted", t->v[i].bucket->name,
                 t->v[i].key, id);
    else
        log_warn("object", "%s/%s: upload %s was abandoned, but cannot be aborted: %s", t->v[i].bucket->name,
                 t->v[i].key, id, e.text);
    return r;
}

/* Ends what one walk finds. Whether there may be more, behind the uploads of a bucket that failed. */
static bool end_some(struct stale *t)
{
    struct err e = {0};
    size_t failed_before = t->n_failed;
    t->n = 0;
    int r = upload_each(t->service->config.control, 0, NULL, note_stale, t, &e);
    t->broken = r < 0;
    if (t->broken)
        log_warn("object", "uploads in parts: %s", e.text);
    for (size_t i = 0; i < t->n; i++) {
        uint64_t id = t->v[i].bucket_id;
        if (t->n_failed < FAILED_MAX && !has_failed(t, id) && end_stale(t, i) < 0)
            note_failed(t, id, t->v[i].record.id);
        bucket_unref(t->v[i].bucket);
        free(t->v[i].key);
    }
    return !t->broken && t->n_failed > failed_before && t->n_failed < FAILED_MAX;
}

void upload_turn(struct object_service *s)
{
    upload_slots_drop_idle(s);
    if (sys->mono_ns() < s->upload_turn_ns)
        return;
    struct stale *t = calloc(1, sizeof(*t));
    struct quit _cleanup_(quit_leave) soon;
    assert(t);
    quit_enter_impatient(&soon); /* nor does anything else that the steward does */
    t->service = s;
    t->now_ns = sys->real_ns();
    while (end_some(t)) /* others do not wait for a bucket that fails */
        continue;
    if (!t->broken && t->n < TURN_MAX)
        begin_anew(t);
    s->upload_turn_ns = t->broken || t->n_failed > 0 ? sys->mono_ns() + TRY_AGAIN_NS : 0;
    free(t);
}

/* ---- a bucket that goes ---- */

struct forgetting {
    struct object_service *service;
    struct upstream *upstream;
    uint64_t failed; /* not asked either, after the first */
};

/* Parts that still come would be left at the origin, where one is an object of its own. */
static void stop_parts(struct forgetting *f, struct id128 id)
{
    struct upload_slot *slot = upload_slot_get(f->service, f->upstream->bucket->id, id);
    if (upload_slot_close(f->service, slot, NULL) == 0) {
        upload_slot_end(f->service, slot);
        upload_slot_stop(f->service, slot);
    }
    upload_slot_put(f->service, slot);
}

static int forget_one(void *arg, uint64_t bucket, const struct upload_record *u)
{
    struct forgetting *f = arg;
    (void)bucket;
    if (u->completed)
        return 0;
    stop_parts(f, u->id);
    if (f->failed > 0 || abort_once(f->upstream, u->key, u->origin_id, NULL) < 0)
        f->failed++;
    return 0;
}

void upload_forget_bucket(struct object_service *s, struct bucket *b)
{
    struct forgetting f = {.service = s};
    struct err e = {0};
    upload_slots_forget(s, b->id);
    if (upstream_open(b, &f.upstream, NULL) < 0 || !origin_has_uploads(f.upstream->origin)) {
        upstream_unref(f.upstream);
        return;
    }
    int r = upload_each(s->config.control, b->id, NULL, forget_one, &f, &e);
    if (r == 0)
        r = upload_remove_bucket(s->config.control, b->id, &e);
    if (r < 0 || f.failed > 0)
        log_warn("object", "bucket %s: %llu unfinished uploads are left at the origin %s", b->name,
                 (unsigned long long)f.failed, r < 0 ? e.text : "");
    upstream_unref(f.upstream);
}
