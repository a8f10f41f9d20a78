/*
 * Open multipart uploads (contract in uploads.h).
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
 * 3. Nothing is written to the file between upload_close and upload_reopen, by parts at least.
 * 4. Who aborts an upload waits for no part: the file goes with the last one that still comes, which is told
 * to stop.
 */
#include "s3/uploads_internal.h"

#include "base/id.h"
#include "base/log.h"
#include "base/sys.h"
#include "base/text.h"
#include "origin/origin.h"

#define WAIT_NS  1000000000ull
#define CLOSE_NS (60 * WAIT_NS) /* longest that the end of an upload waits for parts that still come */

struct uploads *uploads_new(struct s3 *s3)
{
    struct uploads *u = calloc(1, sizeof *u);

    if (!u)
        abort();
    u->s3 = s3;
    lock_init(&u->lock, LOCK_SERVER);
    cond_init(&u->ended);
    return u;
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

static void unlink_locked(struct upload *w)
{
    struct upload **at = &w->all->list;

    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    w->all->n--;
    w->all->n_parts -= w->n_parts;
    w->gone = true;
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

void uploads_free(struct uploads *u)
{
    if (!u)
        return;
    while (u->list) {
        struct upload *w = u->list;

        assert(w->refs == 0);
        u->list = w->next;
        upload_free(w);
    }
    for (size_t i = 0; i < UPLOADS_DONE_MAX; i++) {
        free(u->done[i].bucket);
        free(u->done[i].key);
    }
    cond_fini(&u->ended);
    lock_fini(&u->lock);
    free(u);
}

/* After how long uploads to a bucket are idle. */
struct expiry {
    char *name;
    uint64_t idle_ns;
};

/* What an upload must be to be dropped. */
struct wanted {
    struct slice bucket;           /* of this one; else */
    const struct expiry *expiries; /* nobody has it, and nobody touched it for so long */
    size_t n;
    int64_t now_ns;
};

static bool is_idle(const struct upload *w, const struct wanted *x)
{
    for (size_t i = 0; i < x->n; i++)
        if (strcmp(w->name, x->expiries[i].name) == 0)
            return w->refs == 0 && x->now_ns - w->touched_ns > (int64_t)x->expiries[i].idle_ns;
    return false;
}

static bool is_wanted(const struct upload *w, const struct wanted *x)
{
    return x->bucket.n > 0 ? slice_eq_str(x->bucket, w->bucket) : is_idle(w, x);
}

/* The first of those that nobody is completing, out of the table, with a reference. A completion that fails
 * drops its upload. */
static struct upload *take_locked(struct uploads *u, const struct wanted *x)
{
    for (struct upload *w = u->list; w; w = w->next) {
        if (!is_wanted(w, x))
            continue;
        w->doomed = true;
        if (w->closing)
            continue;
        w->closing = true;
        w->refs++;
        unlink_locked(w);
        return w;
    }
    return NULL;
}

/* The records of a bucket that was removed went with it. */
static void drop_each(struct uploads *u, const struct wanted *x, const char *why)
{
    for (;;) {
        struct err e = {0};
        struct upload *w;
        {
            LOCK_SCOPE(&u->lock);
            w = take_locked(u, x);
        }
        if (!w)
            return;
        log_info("s3", "multipart upload %s of the bucket with the number %s: %s", w->id, w->bucket, why);
        if (w->is_kept && x->bucket.n == 0 &&
            uploads_unkeep(u->s3, slice_str(w->name), slice_str(w->key), w->id, &e) < 0)
            log_warn("s3", "multipart upload %s will be there again when the node starts: %s", w->id, e.text);
        upload_unref(w);
    }
}

/* The buckets that have uploads, each once; free() each name and all. */
static struct expiry *list_buckets(struct uploads *u, size_t *ret_n)
{
    struct expiry *v;
    size_t n = 0;

    LOCK_SCOPE(&u->lock);
    v = calloc(u->n + 1, sizeof *v);
    if (!v)
        abort();
    for (const struct upload *w = u->list; w; w = w->next) {
        size_t i = 0;

        while (i < n && strcmp(v[i].name, w->name) != 0)
            i++;
        if (i == n)
            v[n++].name = slice_dup(slice_str(w->name));
    }
    *ret_n = n;
    return v;
}

void uploads_drop_idle(struct uploads *u)
{
    size_t n;
    struct expiry *v = list_buckets(u, &n);

    for (size_t i = 0; i < n; i++)
        v[i].idle_ns = u->s3 ? uploads_expiry_ns(u->s3, v[i].name) : UPLOADS_IDLE_S * 1000000000ull;
    drop_each(u, &(struct wanted){.expiries = v, .n = n, .now_ns = (int64_t)sys->mono_ns()},
              "idle for the bucket's upload_expiry, dropped");
    for (size_t i = 0; i < n; i++)
        free(v[i].name);
    free(v);
}

void uploads_drop_bucket(struct uploads *u, struct slice bucket)
{
    assert(bucket.n > 0);
    drop_each(u, &(struct wanted){.bucket = bucket}, "dropped with it");
}

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

enum s3_error uploads_link(struct uploads *u, struct upload *w, struct sink *sink)
{
    LOCK_SCOPE(&u->lock);
    if (u->n == UPLOADS_MAX)
        return S3_ERR_TOO_MANY_UPLOADS;
    w->sink = *sink;
    *sink = (struct sink){.fd = -1};
    w->next = u->list;
    u->list = w;
    u->n++;
    return S3_OK;
}

enum s3_error uploads_add(struct uploads *u, struct slice bucket, struct slice key,
                          const struct part_sums *sums, bool opaque, struct sink *sink,
                          char ret_id[UPLOAD_ID_SIZE])
{
    struct id128 id;
    struct upload *w;
    enum s3_error error;

    assert(sink->handle && sink->fd >= 0);
    uploads_drop_idle(u);
    w = upload_new(u, sums, opaque);
    w->created_ns = sys->real_ns();
    w->touched_ns = (int64_t)sys->mono_ns();
    w->is_kept = sink->upload[0] != 0;
    id_new(&id);
    id_text(id, w->id);
    if (w->is_kept)
        memcpy(w->id, sink->upload, sizeof w->id);
    w->bucket = slice_dup(bucket);
    w->name = slice_dup(sink->open.bucket);
    w->key = slice_dup(key);
    w->content_type = slice_dup(sink->open.content_type);
    w->meta = slice_dup(sink->open.meta);
    memcpy(ret_id, w->id, UPLOAD_ID_SIZE);
    error = uploads_link(u, w, sink); /* from now on it may go at any time */
    if (error)
        upload_free(w);
    return error;
}

struct upload *uploads_find(struct uploads *u, struct slice id, struct slice bucket, struct slice key)
{
    LOCK_SCOPE(&u->lock);
    for (struct upload *w = u->list; w; w = w->next) {
        if (!slice_eq_str(id, w->id))
            continue;
        if (!slice_eq_str(bucket, w->bucket) || !slice_eq_str(key, w->key))
            return NULL;
        w->refs++;
        w->touched_ns = (int64_t)sys->mono_ns();
        return w;
    }
    return NULL;
}

void uploads_completed(struct uploads *u, struct slice id, struct slice bucket, struct slice key,
                       struct upload_result *ret)
{
    *ret = (struct upload_result){0};
    LOCK_SCOPE(&u->lock);
    for (size_t i = 0; i < UPLOADS_DONE_MAX; i++) {
        const struct done *d = &u->done[i];

        if (d->bucket && slice_eq_str(id, d->id) && slice_eq_str(bucket, d->bucket) &&
            slice_eq_str(key, d->key))
            *ret = d->result;
    }
}

void uploads_each(struct uploads *u, struct slice bucket,
                  void (*fn)(void *arg, struct slice key, const char *id, uint64_t created_ns), void *arg)
{
    LOCK_SCOPE(&u->lock);
    for (struct upload *w = u->list; w; w = w->next)
        if (slice_eq_str(bucket, w->bucket))
            fn(arg, slice_str(w->key), w->id, w->created_ns);
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
    *ret = (struct upload_region){.number = number, .size = size, .opaque = w->opaque};
    if (!part->slot_taken && fits_slot(w, number, size)) {
        part->slot_taken = ret->is_slot = true;
        ret->offset = (number - 1) * w->part_bytes;
    } else {
        ret->offset = w->overflow_at;
        w->overflow_at += ALIGN_UP(size, 4096);
    }
    w->active++;
    return S3_OK;
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

int upload_part_end(struct upload *w, const struct upload_region *region, bool ok, const uint8_t md5[16],
                    const uint8_t *sum, struct err *e)
{
    const bool keeps = ok && w->is_kept;
    int status = keeps ? keep_part(w, region, md5, sum, e) : 0;
    struct part *part;

    LOCK_SCOPE(&w->all->lock);
    part = &w->parts[search(w, region->number)];
    assert(part->p.number == region->number && w->active > 0);
    w->active--;
    w->touched_ns = (int64_t)sys->mono_ns();
    part->keeping = part->keeping && !keeps;
    cond_broadcast(&w->all->ended);
    if (!ok)
        part->slot_taken = part->slot_taken && !region->is_slot;
    if (!ok || status) /* after a failure there may be a record all the same: its place stays as it is */
        return status;
    part->p.present = true;
    part->p.offset = region->offset;
    part->p.size = region->size;
    part->p.mtime_ns = sys->real_ns();
    memcpy(part->p.md5, md5, sizeof part->p.md5);
    part->p.opaque = region->opaque;
    part->p.has_sum = sum != NULL;
    if (sum)
        memcpy(part->p.sum, sum, checksum_bytes(w->sums.kind));
    return 0;
}

bool upload_is_closing(struct upload *w)
{
    LOCK_SCOPE(&w->all->lock);
    return w->closing || w->gone;
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
        unlink_locked(w);
}

enum s3_error upload_close(struct upload *w)
{
    LOCK_SCOPE(&w->all->lock);
    if (w->gone)
        return S3_ERR_NO_SUCH_UPLOAD;
    if (w->closing)
        return S3_ERR_CONFLICT;
    w->closing = true;
    for (uint64_t end_ns = sys->mono_ns() + CLOSE_NS; w->active > 0 && sys->mono_ns() < end_ns;)
        (void)cond_wait_for(&w->all->ended, &w->all->lock, WAIT_NS);
    if (w->active == 0)
        return S3_OK;
    reopen_locked(w); /* who dribbles a part holds nobody for ever */
    return S3_ERR_CONFLICT;
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
    unlink_locked(w);
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
    assert(w->closing && w->active == 0);
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

void upload_reopen(struct upload *w)
{
    LOCK_SCOPE(&w->all->lock);
    w->touched_ns = (int64_t)sys->mono_ns();
    reopen_locked(w);
}

void upload_finish(struct upload *w, struct slice etag, struct slice checksum)
{
    struct uploads *u = w->all;
    struct done *d;

    LOCK_SCOPE(&u->lock);
    assert(w->closing && !w->gone);
    unlink_locked(w);
    if (etag.n == 0 || etag.n > ORIGIN_ETAG_MAX)
        return;
    d = &u->done[u->next_done];
    u->next_done = (u->next_done + 1) % UPLOADS_DONE_MAX;
    free(d->bucket);
    free(d->key);
    *d = (struct done){.bucket = slice_dup(slice_str(w->bucket)), .key = slice_dup(slice_str(w->key))};
    memcpy(d->id, w->id, sizeof d->id);
    memcpy(d->result.etag, etag.p, etag.n);
    if (checksum.n < sizeof d->result.checksum)
        memcpy(d->result.checksum, checksum.p ? checksum.p : "", checksum.n);
}

struct sink *upload_sink(struct upload *w)
{
    return &w->sink;
}
