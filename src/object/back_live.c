/*
 * Write-back: live bytes, and readers of bytes that are here.
 *
 * A file that a mount writes is acknowledged by another name of it and a record that says "live": neither is
 * a byte copied nor one read again. Its writer may go on, so that nobody is given bytes of it as it is; who
 * needs them settles the record first:
 *
 * | who has the file open for writing | the record names then                                              |
 * | --------------------------------- | ------------------------------------------------------------------ |
 * | nobody                            | the same extent, not live any more, without what was appended; a   |
 * |                                   | copy when something was, and the file has another name             |
 * | somebody, or that cannot be told  | a copy of the first `size` bytes, or of fewer if it was cut        |
 *
 * A version whose size becomes another one by that gets another ETag; else it keeps its own, for nobody was
 * given a byte under it before. The writer says when it has ended (back_end_live), so that the usual file is
 * settled by then. One whose writer was killed is settled when it is needed: what it changed in place after
 * the last acknowledgement may be in it, as in a file of a disk.
 *
 * The origin gets no state that was not acknowledged while there is another way: the sender waits for a
 * writer that has gone on after its fsync until it syncs or closes the file, or until what is copied over it
 * within the origin waits for it. A file that is synced again and again while it is open is copied at each of
 * these times (writer.c), as programs mean that which change files in place.
 *
 * Invariants:
 *  1. Bytes of a live record are given to nobody, and are not sent.
 *  2. A copy is durable, with its record, before the live file loses its name.
 *
 *  3. Who waits for room is busy with no key: senders, who make the room, are busy with each key for a
 * moment. A reader's copy is made aside, one at a time for each key, takes no room before there is enough for
 * all of it, so that several do not wait for what each other has, and is given up as soon as the record is
 * another one.
 *
 * Failure modes: without room for a copy the one who needs it fails, and the record stays as it is. The
 * sender does not wait for that room: there would be nobody left to make it.
 */
#include "object/back_internal.h"

#include "base/sys.h"

#define SETTLE_TRIES 3                   /* the file may be cut while it is copied */
#define TICK_NS      10000000            /* most by which the kernel's file times lag */
#define WAIT_NS      (2 * 1000000000ull) /* for which the sender waits for the writer to close the file */

/* ---- settling ---- */

static void new_version(struct back *b, struct back_record *r)
{
    sys->random(r->tag, sizeof(r->tag));
    r->seq = atomic_fetch_add(&b->seq, 1) + 1;
}

/* Of the bytes that `h` has now, as many as it should. waiting: as back_keep_body's bucket. */
static int copy_live(struct back *b, const struct bucket *waiting, struct hard *h, uint64_t most,
                     atomic_bool *cancel, struct back_body *ret, struct err *e)
{
    int r = -EIO;
    for (int i = 0; r == -EIO && i < SETTLE_TRIES; i++) {
        struct stat st;
        r = hard_stat(h, &st);
        if (r < 0)
            return err_errno(e, r, "look at a file that is being written");
        struct origin_file file = {0};
        struct origin_body body = {.size_bytes = MIN(most, (uint64_t)st.st_size),
                                   .file = &file, /* without MD5 */
                                   .read = back_body_read,
                                   .arg = h};
        *ret = (struct back_body){0};
        if (body.size_bytes == 0)
            return 0;
        r = back_keep_body(b, waiting, &body, cancel, ret, e);
    }
    return r;
}

/* What kept the record from being sent was that it is live: it need not wait for its next try. */
static void end_waits(struct back *b, struct back_entry *x)
{
    LOCK_SCOPE(&b->lock);
    if (x->waits == 0)
        return;
    x->waits = 0;
    x->retry_ms = 0;
    back_queue_file_locked(b, x, /* now_ms= */ 0);
    cond_signal(&b->work);
}

/* In the place of the live one, whose extent goes unless it is the same. */
static int put_settled(struct back *b, struct back_entry *x, const struct bucket *bucket,
                       const struct back_record *old, struct back_record *next, struct hard *copy,
                       struct err *e)
{
    bool is_same = slice_eq(old->location, next->location), unknown = false;
    enum kv_commit kind = is_same && old->size_bytes == next->size_bytes ? KV_VISIBLE : KV_DURABLE;
    next->is_live = false;
    int r = back_save(b, x, bucket, next, kind, &unknown, e);
    if (r < 0 && copy && !unknown)
        hard_give_back(copy);
    else
        hard_unref(copy);
    if (r == 0)
        end_waits(b, x);
    if (r == 0 && !is_same)
        back_free_extent(b, old->location);
    return r;
}

/* Away with what was appended after the acknowledgement. */
static int cut(struct hard *h, uint64_t size, struct err *e)
{
    int r = hard_begin_writing(h, e);
    if (r < 0)
        return r;
    r = hard_truncate(h, size, e);
    hard_end_writing(h);
    return r;
}

/* Nobody writes the file any more. -EMLINK: it has more bytes, and by another name they may be those of
 * another record, or of the cache, so that they stay. */
static int settle_closed(struct back *b, struct back_entry *x, const struct bucket *bucket,
                         const struct back_record *old, struct hard *h, struct err *e)
{
    struct stat st;
    struct back_record next = *old;
    int r = hard_stat(h, &st);
    if (r < 0)
        return err_errno(e, r, "look at a file that was written");
    if ((uint64_t)st.st_size > old->size_bytes && st.st_nlink > 1)
        return -EMLINK;
    if ((uint64_t)st.st_size > old->size_bytes)
        r = cut(h, old->size_bytes, e);
    r = r < 0 ? r : hard_sync(h, e);
    if (r < 0)
        return r;
    next.size_bytes = MIN((uint64_t)st.st_size, old->size_bytes);
    if (next.size_bytes != old->size_bytes)
        new_version(b, &next);
    if (next.size_bytes == 0)
        next.location = SLICE_NULL;
    return put_settled(b, x, bucket, old, &next, /* copy= */ NULL, e);
}

/* Somebody has the file open for writing: whether the sender comes again later. Not when another write waits
 * for it that takes its place: its writer may have lost the name and never sync it. */
static int must_wait(struct back *b, struct back_entry *x, const struct back_record *r, struct hard *h,
                     struct err *e)
{
    struct stat st;
    uint64_t now_ns = sys->real_ns();
    if (now_ns >= r->acked_ns && now_ns - r->acked_ns < WAIT_NS) /* it is about to be closed */
        return -EINPROGRESS;
    int k = hard_stat(h, &st);
    if (k < 0)
        return err_errno(e, k, "look at a file that is being written");
    uint64_t changed_ns = (uint64_t)st.st_mtim.tv_sec * 1000000000 + (uint64_t)st.st_mtim.tv_nsec;
    if (changed_ns + TICK_NS <= r->acked_ns || back_is_waited_for(b, x))
        return 0;
    return err_set(e, -ETXTBSY, "somebody writes to it, and has not synced or closed it since");
}

/* In the place of the live one, which the caller is busy with. */
static int put_copy(struct back *b, struct back_entry *x, const struct bucket *bucket,
                    const struct back_record *old, const struct back_body *copy, struct err *e)
{
    uint8_t location[HARD_LOCATION_BYTES];
    struct back_record next = *old;
    next.location = SLICE_NULL;
    if (copy->hard) {
        hard_location(copy->hard, location);
        next.location = slice_of(location, sizeof(location));
    }
    next.size_bytes = copy->size_bytes;
    if (next.size_bytes != old->size_bytes)
        new_version(b, &next);
    return put_settled(b, x, bucket, old, &next, copy->hard, e);
}

/* looks: to whom a copy is of use only when nothing was written while it was made. A write moves the file's
 * time before its first byte is there. */
static int settle_open(struct back *b, struct back_entry *x, const struct bucket *bucket,
                       const struct back_record *old, struct hard *h, bool looks, struct err *e)
{
    struct back_body copy;
    int r = copy_live(b, /* waiting= */ NULL, h, old->size_bytes, /* cancel= */ NULL, &copy, e);
    if (r < 0)
        return r;
    r = looks ? must_wait(b, x, old, h, e) : 0;
    if (r == 0)
        return put_copy(b, x, bucket, old, &copy, e);
    if (copy.hard)
        hard_give_back(copy.hard);
    return r;
}

/* Another ETag than what is remembered of the key. */
static void tell_of_version(struct back *b, const struct back_entry *x, const struct bucket *bucket)
{
    (void)mirror_changed(b->service->mirror, bucket, back_key(x));
    watch_changed(b->service, bucket, back_key(x));
}

static int find_live(struct back *b, const struct back_record *r, struct hard **ret, struct err *e)
{
    int k = hard_find(b->store, r->location, ret, e);
    return k == -ENOENT ? err_set(e, -EIO, "the bytes of a write that is not in the origin are missing") : k;
}

int back_settle(struct back *b, struct back_entry *x, const struct bucket *bucket,
                const struct back_record *r, struct err *e)
{
    _cleanup_(hard_unrefp) struct hard *h = NULL;
    assert(x->busy && r->is_live);
    int k = find_live(b, r, &h, e);
    if (k < 0)
        return k;
    int written = hard_is_written(h);
    bool looks = written == -EAGAIN;
    k = looks ? must_wait(b, x, r, h, e) : 0;
    if (k < 0)
        return k;
    uint64_t seq = r->seq;
    k = written == 0 ? settle_closed(b, x, bucket, r, h, e) : -EMLINK;
    if (k == -EMLINK)
        k = settle_open(b, x, bucket, r, h, looks, e);
    if (k == 0 && x->seq != seq)
        tell_of_version(b, x, bucket);
    return k;
}

/* For a reader, who is busy with the key. -EMLINK: only a copy settles it, of what is in *ret_hard. may_copy:
 * that is made here, if there is room. */
static int settle_for_reader(struct back *b, struct back_entry *x, const struct bucket *bucket,
                             const struct back_record *r, bool may_copy, struct hard **ret_hard,
                             struct err *e)
{
    _cleanup_(hard_unrefp) struct hard *h = NULL;
    uint64_t seq = r->seq;
    int k = find_live(b, r, &h, e);
    if (k < 0)
        return k;
    k = hard_is_written(h) == 0 ? settle_closed(b, x, bucket, r, h, e) : -EMLINK;
    if (k == -EMLINK && may_copy)
        k = settle_open(b, x, bucket, r, h, /* looks= */ false, e);
    if (k == 0 && x->seq != seq)
        tell_of_version(b, x, bucket);
    if (k == -EMLINK)
        *ret_hard = TAKE_PTR(h);
    return k;
}

/* The copy becomes the record's, unless that is another one by now, or was settled. Not busy. */
static int put_copy_if_same(struct back *b, const struct bucket *bucket, struct slice key,
                            const struct back_record *old, const struct back_body *copy, struct err *e)
{
    _cleanup_buf_ struct buf value = BUF_INIT(BACK_RECORD_MAX_BYTES);
    struct back_record now;
    struct back_entry *x = back_enter(b, bucket->id, key);
    int r = back_load(b, bucket->id, key, &value, &now, e);
    if (r == 0 && now.is_live && now.seq == old->seq) {
        r = put_copy(b, x, bucket, &now, copy, e);
        if (r == 0 && x->seq != old->seq)
            tell_of_version(b, x, bucket);
    } else if (copy->hard) {
        hard_give_back(copy->hard);
    }
    back_leave(b, x);
    return r == -ENOENT ? 0 : r;
}

/* Busy until here. The caller looks again at what the record is then. */
static int copy_aside(struct back *b, struct back_entry *x, const struct bucket *bucket,
                      const struct back_record *old, struct hard *h, struct err *e)
{
    struct back_body copy;
    atomic_bool over = false;
    if (!back_begin_copying(b, x, &over)) /* somebody else did it */
        return 0;
    int r = copy_live(b, /* waiting= */ bucket, h, old->size_bytes, &over, &copy, e);
    if (r == 0)
        r = put_copy_if_same(b, bucket, back_key(x), old, &copy, e);
    else if (atomic_load(&over))
        r = 0;
    back_end_copying(b, x);
    return r;
}

int back_enter_settled(struct back *b, const struct bucket *bucket, struct slice key, struct buf *value,
                       struct back_record *ret, struct back_entry **ret_entry, struct err *e)
{
    for (unsigned i = 0;; i++) {
        _cleanup_(hard_unrefp) struct hard *h = NULL;
        struct back_entry *x = back_enter(b, bucket->id, key);
        int r = back_load(b, bucket->id, key, value, ret, e);
        if (r == 0 && ret->is_live) {
            r = settle_for_reader(b, x, bucket, ret, /* may_copy= */ i >= SETTLE_TRIES, &h, e);
            if (r == 0)
                r = back_load(b, bucket->id, key, value, ret, e);
        }
        if (r == 0) {
            *ret_entry = x;
            return 0;
        }
        if (r == -EMLINK)
            r = copy_aside(b, x, bucket, ret, h, e);
        else
            back_leave(b, x);
        if (r < 0)
            return r;
    }
}

int back_load_settled(struct back *b, const struct bucket *bucket, struct slice key, struct buf *value,
                      struct back_record *ret, struct err *e)
{
    struct back_entry *x;
    int r = back_load(b, bucket->id, key, value, ret, e);
    if (r < 0 || !ret->is_live)
        return r;
    r = back_enter_settled(b, bucket, key, value, ret, &x, e);
    if (r == 0)
        back_leave(b, x);
    return r;
}

int back_settle_key(struct back *b, const struct bucket *bucket, struct slice key, struct err *e)
{
    _cleanup_buf_ struct buf value = BUF_INIT(BACK_RECORD_MAX_BYTES);
    struct back_record rec;
    int r = back_has(b, bucket->id, key) ? back_load_settled(b, bucket, key, &value, &rec, e) : 0;
    return r == -ENOENT ? 0 : r;
}

void back_end_live(struct back *b, const struct bucket *bucket, struct slice key, struct slice etag)
{
    _cleanup_buf_ struct buf value = BUF_INIT(BACK_RECORD_MAX_BYTES);
    struct back_record rec;
    char now[BACK_ETAG_SIZE];
    bool unknown;
    struct back_entry *x = back_enter(b, bucket->id, key);
    if (back_load(b, bucket->id, key, &value, &rec, NULL) == 0 && rec.is_live) {
        back_record_etag(&rec, now);
        rec.is_live = false;
        bool is_own = slice_eq_str(etag, now); /* else it is the next one's */
        if (is_own && back_save(b, x, bucket, &rec, KV_VISIBLE, &unknown, NULL) == 0)
            end_waits(b, x);
    }
    back_leave(b, x);
}

/* ---- readers ---- */

int back_open_bytes(struct back *b, const struct bucket *bucket, struct slice key, struct arena *a,
                    struct origin_attr *ret, struct hard **ret_hard, struct err *e)
{
    _cleanup_buf_ struct buf value = BUF_INIT(BACK_RECORD_MAX_BYTES);
    struct back_record rec;
    struct hard *h = NULL;
    if (!back_has(b, bucket->id, key))
        return -ENOENT;
    int r = back_load_settled(b, bucket, key, &value, &rec, e);
    if (r == 0 && rec.location.n == 0)
        return -ENOENT;
    if (r == 0)
        r = hard_find(b->store, rec.location, &h, e);
    if (r < 0)
        return r;
    *ret = back_attr(&rec, a);
    *ret_hard = h;
    return 0;
}

bool back_has_bytes(struct back *b, const struct bucket *bucket, struct slice key)
{
    _cleanup_buf_ struct buf value = BUF_INIT(BACK_RECORD_MAX_BYTES);
    struct back_record rec;
    return back_has(b, bucket->id, key) && back_load(b, bucket->id, key, &value, &rec, NULL) == 0 &&
           rec.location.n > 0;
}
