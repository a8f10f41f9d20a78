/*
 * Uploads whose bytes are on this node (contract in upload_here.h).
 *
 * Invariants:
 *  1. A part is recorded after a sync of the file that began when all of it was written: whatever a crash
 * leaves of the records is on the disk.
 *  2. While a record may name a file, nobody gives the file back: it stays for the next start. The record
 * goes first, durably.
 *  3. An upload is completed by the transaction that names its file in an object or a record of write-back
 * (scratch_put, back_save): a start never takes a file that is an object's for one of an upload.
 *  4. After a sync that failed no part is recorded any more: the kernel tells a single time that bytes are
 * lost, and of whose they were it does not tell.
 *
 * Failure modes: a commit whose end is unknown may have recorded what was not acknowledged; the bytes of such
 * a part stay where they are (the front end does not use their place again), and an upload of which nobody
 * knows the id expires.
 */
#include "object/upload_here.h"

#include "object/object_internal.h"

#include "base/log.h"
#include "base/sys.h"
#include "store/hard.h"

#include <inttypes.h>

static_assert(UPLOAD_LOCATION == HARD_LOCATION_BYTES, "what a record has is a location");

static void link_locked(struct object_service *s, struct upload_here *x)
{
    x->is_linked = x->is_recorded = true;
    x->next = s->uploads_here;
    s->uploads_here = x;
}

static struct upload_here *find_locked(struct object_service *s, uint64_t bucket, struct id128 id)
{
    struct upload_here *x = s->uploads_here;
    while (x && (x->bucket != bucket || !id_eq(x->id, id)))
        x = x->next;
    return x;
}

int upload_here_begin(struct object_service *s, struct upload_here *x, uint64_t bucket, struct hard *h,
                      struct upload_record *u, struct err *e)
{
    uint8_t location[HARD_LOCATION_BYTES];
    assert(!x->is_linked);
    if (u->tag.n > UPLOAD_TAG_MAX)
        return err_set(e, -E2BIG, "a tag of %zu bytes", u->tag.n);
    hard_location(h, location);
    u->location = slice_of(location, sizeof(location));
    u->at_ns = sys->real_ns();
    id_new_at(u->at_ns, &u->id);
    x->bucket = bucket;
    x->id = u->id;
    lock_take(&s->upload_lock);
    link_locked(s, x);
    lock_drop(&s->upload_lock);
    int r = upload_save(s->config.control, bucket, u, e);
    _cleanup_(bucket_unrefp) struct bucket *b = bucket_find_id(s->buckets, bucket);
    if (r == 0 && !b) /* whoever removed it may not have seen the record */
        r = err_set(e, ERR_NO_BUCKET, "the bucket was removed meanwhile");
    if (r < 0 && upload_remove(s->config.control, bucket, u->id, NULL) == 0)
        upload_here_ended(s, bucket, u->id);
    u->location = SLICE_NULL;
    return r;
}

int upload_here_adopt(struct object_service *s, struct upload_here *x, uint64_t bucket, struct id128 id,
                      struct err *e)
{
    assert(!x->is_linked);
    x->bucket = bucket;
    x->id = id;
    LOCK_SCOPE(&s->upload_lock);
    if (find_locked(s, bucket, id))
        return err_set(e, -EBUSY, "the upload is open already");
    link_locked(s, x);
    return 0;
}

bool upload_here_is_open(struct object_service *s, struct upload_here *x)
{
    LOCK_SCOPE(&s->upload_lock);
    return x->is_linked && x->is_recorded;
}

/* Waits for a sync that began after now; begins one when none runs. */
int upload_here_sync(struct object_service *s, struct upload_here *x, struct hard *h, struct err *e)
{
    struct err local = {0};
    lock_take(&s->upload_lock);
    uint64_t wanted = x->begun + 1;
    while (x->done < wanted && x->fault == 0) {
        if (x->syncing) {
            cond_wait(&s->upload_ended, &s->upload_lock);
            continue;
        }
        x->syncing = true;
        uint64_t mine = ++x->begun;
        lock_drop(&s->upload_lock);
        int r = hard_sync(h, &local);
        lock_take(&s->upload_lock);
        x->syncing = false;
        x->done = mine;
        x->fault = r;
        cond_broadcast(&s->upload_ended);
    }
    int fault = x->fault;
    lock_drop(&s->upload_lock);
    return fault < 0 ? err_errno(e, fault, "the disk did not take what was uploaded") : 0;
}

static int check_part(const struct wire_upload_keep_part_req *q, struct err *e)
{
    if (q->number < 1 || q->number > UPLOAD_NUMBER_MAX || q->size > STORE_SIZE_MAX_BYTES ||
        q->offset > STORE_SIZE_MAX_BYTES || q->slot_bytes > STORE_SIZE_MAX_BYTES)
        return err_set(e, -EINVAL, "part %u of %" PRIu64 " bytes at %" PRIu64 ", parts %" PRIu64 " apart",
                       q->number, q->size, q->offset, q->slot_bytes);
    if (q->etag.n > UPLOAD_ETAG_MAX || q->checksum.n > UPLOAD_CHECKSUM_MAX)
        return err_set(e, -E2BIG, "ETag or checksum of a part: too long");
    return 0;
}

int upload_here_keep_part(struct object_service *s, struct upload_here *x, struct hard *h,
                          const struct wire_upload_keep_part_req *q, struct err *e)
{
    const struct upload_part_record p = {.number = q->number,
                                         .size_bytes = q->size,
                                         .at_ns = sys->real_ns(),
                                         .etag = q->etag,
                                         .checksum = q->checksum,
                                         .is_here = true,
                                         .offset = q->offset,
                                         .slot_bytes = q->slot_bytes};
    int r = check_part(q, e);
    if (r == 0 && !upload_here_is_open(s, x))
        r = err_set(e, -ENOENT, "the upload was completed or aborted");
    if (r < 0)
        return r;
    if (q->flags & WIRE_CANCEL)
        return upload_remove_part(s->config.control, x->bucket, x->id, q->number, e);
    r = upload_here_sync(s, x, h, e);
    return r == 0 ? upload_save_part(s->config.control, x->bucket, x->id, &p, e) : r;
}

int upload_here_fault(struct object_service *s, struct upload_here *x)
{
    LOCK_SCOPE(&s->upload_lock);
    return x->fault;
}

bool upload_here_leave(struct object_service *s, struct upload_here *x)
{
    LOCK_SCOPE(&s->upload_lock);
    if (!x->is_linked)
        return false;
    struct upload_here **at = &s->uploads_here;
    while (*at != x)
        at = &(*at)->next;
    *at = x->next;
    x->is_linked = false;
    return x->is_recorded;
}

/* ---- ends ---- */

void upload_here_ended(struct object_service *s, uint64_t bucket, struct id128 id)
{
    LOCK_SCOPE(&s->upload_lock);
    struct upload_here *x = find_locked(s, bucket, id);
    if (x)
        x->is_recorded = false;
}

/* Of one that nobody has open. */
static void free_file(struct object_service *s, struct slice location)
{
    struct hard *h = NULL;
    struct err e = {0};
    int r = hard_find(s->config.store, location, &h, &e);
    if (r == 0)
        hard_give_back(h);
    else if (r != -ENOENT && r != -ENODEV) /* the next start removes it */
        log_warn("object", "bytes of an upload that was aborted: %s", e.text);
}

int upload_here_find(struct object_service *s, const struct bucket *b, struct slice key, struct slice id,
                     struct arena *a, struct upload_record *ret, struct err *e)
{
    int r = upload_open_record(s, b, key, id, a, ret, e);
    if (r == 0 && (ret->completed || ret->location.n == 0))
        r = err_set(e, -ENOENT, "the upload was completed, or is not here");
    return r;
}

int upload_here_abort(struct object_service *s, uint64_t bucket, const struct upload_record *u, struct err *e)
{
    assert(u->location.n > 0);
    /* Once it was completed, the file may be an object's. */
    int r = upload_remove_open(s->config.control, bucket, u->id, e);
    if (r < 0)
        return r;
    lock_take(&s->upload_lock);
    struct upload_here *x = find_locked(s, bucket, u->id);
    if (x)
        x->is_recorded = false;
    lock_drop(&s->upload_lock);
    if (!x)
        free_file(s, u->location);
    return 0;
}

static int forget_one(void *arg, uint64_t bucket, const struct upload_record *u)
{
    struct object_service *s = arg;
    struct err e = {0};
    int r = u->location.n > 0 ? upload_here_abort(s, bucket, u, &e) : 0;
    if (r < 0 && r != -ENOENT)
        log_warn("object", "an upload of a bucket that was removed: %s", e.text);
    return 0;
}

void upload_here_forget_bucket(struct object_service *s, uint64_t bucket)
{
    struct err e = {0};
    int r = upload_each(s->config.control, bucket, NULL, forget_one, s, &e);
    if (r < 0) /* the next start drops them */
        log_warn("object", "uploads of a bucket that was removed: %s", e.text);
}

/* ---- starting ---- */

struct start {
    struct object_service *service;
    uint64_t open;
    struct err *e;
};

/* *ret_is_gone: its file is not there, or somebody else's. */
static int protect(struct object_service *s, const struct upload_record *u, bool *ret_is_gone, struct err *e)
{
    _cleanup_(hard_unrefp) struct hard *h = NULL;
    int r = hard_find(s->config.store, u->location, &h, e);
    *ret_is_gone = r == -ENOENT || (r == 0 && hard_is_sealed(h));
    if (r == 0 && !*ret_is_gone)
        r = hard_protect(s->config.store, u->location, e);
    return *ret_is_gone || r == -ENODEV ? 0 : r; /* a disk that is not here is not swept either */
}

static int open_one(void *arg, uint64_t bucket, const struct upload_record *u)
{
    struct start *x = arg;
    struct object_service *s = x->service;
    bool is_gone = false;
    if (u->location.n == 0)
        return 0;
    _cleanup_(bucket_unrefp) struct bucket *b = bucket_find_id(s->buckets, bucket);
    int r = b ? protect(s, u, &is_gone, x->e) : 0;
    if (r < 0)
        return err_prefix(x->e, r, "the file of an upload in parts");
    x->open += b && !is_gone;
    if (is_gone)
        log_warn("object", "%s/" SLICE_FMT ": the file of an upload in parts is gone: the upload is dropped",
                 b->name, SLICE_ARG(u->key));
    return b && !is_gone ? 0 : upload_remove(s->config.control, bucket, u->id, x->e);
}

int upload_here_open(struct object_service *s, struct err *e)
{
    struct start x = {.service = s, .e = e};
    int r = upload_each(s->config.control, 0, NULL, open_one, &x, e);
    if (r == 0 && x.open > 0)
        log_info("object", "%llu uploads in parts of the last run are open", (unsigned long long)x.open);
    return r;
}
