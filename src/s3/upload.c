/*
 * One open multipart upload: where its parts lie, and its end (contract in uploads.h).
 *
 * Part N of an upload lies in its slot, (N-1) times the size of the part that was seen first, so that parts
 * of equal size need no copying when the upload is completed. A part that is larger than a slot, or whose
 * slot is taken by an older part of the same number, lies in the overflow region behind all slots.
 *
 * 1. Two parts never share bytes of the file: a slot has one owner at a time, overflow regions are never
 * reused.
 * 2. A part counts only after all its bytes are written and verified, and, of an upload that is kept, its
 * record is durable; until then the older one of that number does. Bytes that a record may name are not
 * written again.
 * 3. Nothing is written to the file between upload_close and upload_reopen, by parts at least: those that
 * have begun before write nothing from then on, since the file may be cut meanwhile.
 * 4. Who ends an upload waits for no part's client: the file goes with the last part that still comes, which
 * is told to stop. A completion is of parts that were acknowledged.
 */
#include "s3/uploads_internal.h"

#include "base/log.h"
#include "base/quit.h"
#include "base/sys.h"
#include "base/text.h"
#include "origin/origin.h"

#define WAIT_NS  1000000000ull
#define QUIT_NS  (QUIT_LOOK_MS * 1000000ull)
#define CLOSE_NS (60 * WAIT_NS) /* longest that the end of an upload waits for the disk */

struct upload *upload_new(struct uploads *u, const struct part_sums *sums, bool opaque)
{
    struct upload *w = calloc(1, sizeof *w);

    if (!w)
        abort();
    w->magic = UPLOAD_MAGIC;
    w->all = u;
    w->sums = *sums;
    w->opaque = opaque;
    w->sink.fd = -1;
    return w;
}

void upload_free(struct upload *w)
{
    sink_fini(&w->sink);
    free(w->bucket);
    free(w->name);
    free(w->key);
    free(w->content_type);
    free(w->meta);
    free(w->parts);
    w->magic = 0;
    free(w);
}

void upload_unlink_locked(struct upload *w)
{
    struct upload **at = &w->all->list;

    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    w->all->n--;
    w->all->n_parts -= w->n_parts;
    w->gone = true;
    uploads_stop_copies_locked(w->all, slice_str(w->id), /* ended= */ true);
}

/* Drops a reference; the last one of an upload that has left the table gives it for the caller to free. */
static struct upload *drop_locked(struct upload *w)
{
    assert(w->refs > 0);
    return --w->refs == 0 && w->gone ? w : NULL;
}

void upload_unref(struct upload *w)
{
    struct upload *last;

    if (!w)
        return;
    assert(w->magic == UPLOAD_MAGIC);
    {
        LOCK_SCOPE(&w->all->lock);
        last = drop_locked(w);
    }
    if (last)
        upload_free(last);
}

/* ---- parts ---- */

/* Index of the record of that number, or of the first one behind it. */
static size_t search(const struct upload *w, uint32_t number)
{
    size_t from = 0, to = w->n_parts;

    while (from < to) {
        size_t middle = from + (to - from) / 2;

        if (w->parts[middle].p.number < number)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

struct part *upload_record_locked(struct upload *w, uint32_t number)
{
    size_t at = search(w, number);

    if (at < w->n_parts && w->parts[at].p.number == number)
        return &w->parts[at];
    if (w->all->n_parts == UPLOADS_PARTS_MAX)
        return NULL;
    if (w->n_parts == w->cap_parts) {
        w->cap_parts = w->cap_parts ? w->cap_parts * 2 : 16;
        w->parts = realloc(w->parts, w->cap_parts * sizeof w->parts[0]);
        if (!w->parts)
            abort();
    }
    memmove(w->parts + at + 1, w->parts + at, (w->n_parts - at) * sizeof w->parts[0]);
    w->parts[at] = (struct part){.p.number = number};
    w->n_parts++;
    w->all->n_parts++;
    return &w->parts[at];
}

/* Whether the part fits into the slot of its number, in front of the overflow region. */
static bool fits_slot(const struct upload *w, uint32_t number, uint64_t size)
{
    uint64_t slots_end = MIN(w->part_bytes * UPLOAD_PART_NUMBER_MAX, UPLOAD_OVERFLOW_BYTES);

    return size <= w->part_bytes && (number - 1) * w->part_bytes + size <= slots_end;
}

/* The first part's size is what slots are apart. */
void upload_place_overflow_locked(struct upload *w, uint64_t slot_bytes)
{
    if (w->part_bytes > 0)
        return;
    w->part_bytes = slot_bytes;
    w->overflow_at = MIN(slot_bytes * UPLOAD_PART_NUMBER_MAX, UPLOAD_OVERFLOW_BYTES);
}

void upload_part_etag(const uint8_t md5[16], bool opaque, char ret[UPLOAD_PART_ETAG_SIZE])
{
    text_hex(md5, 16, ret);
    if (opaque)
        memcpy(ret + 32, "-1", 3);
}

enum s3_error upload_part_begin(struct upload *w, uint32_t number, uint64_t size, struct upload_region *ret)
{
    struct part *part;

    assert(w->magic == UPLOAD_MAGIC && number >= 1 && number <= UPLOAD_PART_NUMBER_MAX);
    LOCK_SCOPE(&w->all->lock);
    if (w->closing || w->gone)
        return S3_ERR_NO_SUCH_UPLOAD;
    if (w->broken)
        return S3_ERR_INTERNAL;
    part = upload_record_locked(w, number);
    if (!part)
        return S3_ERR_TOO_MANY_UPLOADS;
    upload_place_overflow_locked(w, size);
    *ret = (struct upload_region){.number = number, .size = size, .opaque = w->opaque, .ends = w->ends};
    if (!part->slot_taken && fits_slot(w, number, size)) {
        part->slot_taken = ret->is_slot = true;
        ret->offset = (number - 1) * w->part_bytes;
    } else {
        ret->offset = w->overflow_at;
        w->overflow_at += ALIGN_UP(size, 4096);
    }
    return S3_OK;
}

bool upload_part_enter(struct upload *w, const struct upload_region *region)
{
    LOCK_SCOPE(&w->all->lock);
    bool comes = !w->gone && region->ends == w->ends;
    w->working += comes;
    return comes;
}

void upload_part_leave(struct upload *w)
{
    LOCK_SCOPE(&w->all->lock);
    assert(w->working > 0);
    w->working--;
    cond_broadcast(&w->all->ended);
}

bool upload_has_ended(struct upload *w)
{
    LOCK_SCOPE(&w->all->lock);
    return w->gone;
}

/* Waits until no other part of that number is at it, so that the record is of the part that counts. */
static int keep_part(struct upload *w, const struct upload_region *region, const uint8_t md5[16],
                     const uint8_t *sum, struct err *e)
{
    uint64_t slot_bytes;

    lock_take(&w->all->lock);
    while (w->parts[search(w, region->number)].keeping)
        cond_wait(&w->all->ended, &w->all->lock);
    w->parts[search(w, region->number)].keeping = true;
    slot_bytes = w->part_bytes;
    lock_drop(&w->all->lock);
    return upload_keep_part(w, region, slot_bytes, md5, sum, e);
}

static void count_part_locked(struct upload *w, struct upload_part *p, const struct upload_region *region,
                              const uint8_t md5[16], const uint8_t *sum)
{
    p->present = true;
    p->offset = region->offset;
    p->size = region->size;
    p->mtime_ns = sys->real_ns();
    memcpy(p->md5, md5, sizeof p->md5);
    p->opaque = region->opaque;
    p->has_sum = sum != NULL;
    if (sum)
        memcpy(p->sum, sum, checksum_bytes(w->sums.kind));
}

int upload_part_end(struct upload *w, const struct upload_region *region, bool ok, const uint8_t md5[16],
                    const uint8_t *sum, struct err *e)
{
    const bool comes = ok && upload_part_enter(w, region), keeps = comes && w->is_kept;
    int status = keeps ? keep_part(w, region, md5, sum, e) : 0;
    struct part *part;

    LOCK_SCOPE(&w->all->lock);
    part = &w->parts[search(w, region->number)];
    assert(part->p.number == region->number && w->working >= comes);
    w->working -= comes;
    w->touched_ns = (int64_t)sys->mono_ns();
    part->keeping = part->keeping && !keeps;
    cond_broadcast(&w->all->ended);
    if (!comes) /* after an end that failed the slot may be somebody else's */
        part->slot_taken = part->slot_taken && !(region->is_slot && region->ends == w->ends);
    else if (status == 0) /* after a failure there may be a record all the same: its place stays as it is */
        count_part_locked(w, &part->p, region, md5, sum);
    return ok && !comes ? err_set(e, -ENOENT, "the upload is being completed or aborted") : status;
}

int upload_fd(const struct upload *w)
{
    return w->sink.fd;
}

struct slice upload_content_type(const struct upload *w)
{
    return slice_str(w->content_type);
}

struct slice upload_meta(const struct upload *w)
{
    return slice_str(w->meta);
}

struct part_sums upload_sums(const struct upload *w)
{
    return w->sums;
}

struct upload_part *upload_parts(struct upload *w, size_t *ret_n)
{
    struct upload_part *copy;
    size_t n = 0;

    LOCK_SCOPE(&w->all->lock);
    copy = calloc(w->n_parts + 1, sizeof *copy);
    if (!copy)
        abort();
    for (size_t i = 0; i < w->n_parts; i++)
        if (w->parts[i].p.present)
            copy[n++] = w->parts[i].p;
    *ret_n = n;
    return copy;
}

/* ---- end ---- */

/* After an end that failed: parts may come again, unless the bucket went meanwhile. */
static void reopen_locked(struct upload *w)
{
    w->closing = w->doomed;
    if (w->doomed)
        upload_unlink_locked(w);
}

enum s3_error upload_close(struct upload *w)
{
    LOCK_SCOPE(&w->all->lock);
    if (w->gone)
        return S3_ERR_NO_SUCH_UPLOAD;
    if (w->closing)
        return S3_ERR_CONFLICT;
    w->closing = true;
    w->ends++;
    uploads_stop_copies_locked(w->all, slice_str(w->id), /* ended= */ false);
    bool given_up = false;
    for (uint64_t end_ns = sys->mono_ns() + CLOSE_NS;
         w->working > 0 && sys->mono_ns() < end_ns && !(given_up = quit_is_now());)
        (void)cond_wait_for(&w->all->ended, &w->all->lock, QUIT_NS);
    if (w->working == 0)
        return S3_OK;
    reopen_locked(w);
    return given_up ? S3_ERR_UNAVAILABLE : S3_ERR_CONFLICT;
}

enum s3_error upload_abort(struct upload *w)
{
    struct err e = {0};
    int status = 0;

    {
        LOCK_SCOPE(&w->all->lock);
        if (w->gone)
            return S3_ERR_NO_SUCH_UPLOAD;
        if (w->closing)
            return S3_ERR_CONFLICT;
        w->closing = true;
    }
    if (w->is_kept)
        status = uploads_unkeep(w->all->s3, slice_str(w->name), slice_str(w->key), w->id, &e);
    LOCK_SCOPE(&w->all->lock);
    if (status < 0 && status != -ENOENT && status != ERR_NO_BUCKET) {
        log_warn("s3", "multipart upload %s cannot be aborted: %s", w->id, e.text);
        reopen_locked(w);
        return S3_ERR_INTERNAL;
    }
    upload_unlink_locked(w);
    return S3_OK;
}

int upload_sync(struct upload *w)
{
    assert(w->magic == UPLOAD_MAGIC && w->closing);
    if (w->fault == 0)
        w->fault = sys->fdatasync(w->sink.fd);
    return w->fault;
}

/* One part that the file has not all of, which is none from then on; 0: there is no such. */
static uint32_t lose_part(struct upload *w, uint64_t file_bytes)
{
    LOCK_SCOPE(&w->all->lock);
    assert(w->closing && w->working == 0);
    for (size_t i = 0; i < w->n_parts; i++) {
        struct part *part = &w->parts[i];

        if (!part->p.present || part->p.size == 0 || part->p.offset + part->p.size <= file_bytes)
            continue;
        part->p.present = part->slot_taken = false;
        return part->p.number;
    }
    return 0;
}

void upload_lose_parts(struct upload *w, uint64_t file_bytes)
{
    uint32_t number;

    while ((number = lose_part(w, file_bytes)) > 0) {
        struct err e = {0};

        if (!w->is_kept || upload_unkeep_part(w, number, &e) == 0)
            continue;
        log_warn("s3", "multipart upload %s takes no more parts: part %u is lost, but not its record: %s",
                 w->id, number, e.text);
        LOCK_SCOPE(&w->all->lock);
        w->broken = true;
    }
}

void upload_lose_cut(struct upload *w, uint64_t listed)
{
    struct stat st;

    upload_lose_parts(w, sys->fstat(w->sink.fd, &st) < 0 ? listed : (uint64_t)st.st_size);
}

void upload_reopen(struct upload *w)
{
    LOCK_SCOPE(&w->all->lock);
    w->touched_ns = (int64_t)sys->mono_ns();
    reopen_locked(w);
}

void upload_finish(struct upload *w, struct slice etag, struct slice checksum)
{
    LOCK_SCOPE(&w->all->lock);
    assert(w->closing && !w->gone);
    upload_unlink_locked(w);
    if (etag.n > 0 && etag.n <= ORIGIN_ETAG_MAX)
        uploads_remember_locked(w->all, w, etag, checksum);
}

struct sink *upload_sink(struct upload *w)
{
    return &w->sink;
}
