/*
 * The table of open multipart uploads (contract in uploads.h; one upload is in upload.c).
 *
 * 1. An upload is in the table until its end; who has found it keeps it by a reference beyond that.
 * 2. Uploads of a bucket that was removed go with it: at once, or when the completion that is under way has
 * failed.
 */
#include "s3/uploads_internal.h"

#include "base/id.h"
#include "base/log.h"
#include "base/sys.h"
#include "origin/origin.h"

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
        upload_unlink_locked(w);
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
    LOCK_SCOPE(&u->lock);
    for (struct upload_watch *x = u->watches; x; x = x->next) /* of those at its origin, too */
        if (slice_eq(x->bucket, bucket))
            uploads_stop_copies_locked(u, x->id, /* ended= */ true);
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
    id_new_at(w->created_ns, &id);
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

void uploads_remember_locked(struct uploads *u, const struct upload *w, struct slice etag,
                             struct slice checksum)
{
    struct done *d = &u->done[u->next_done];

    u->next_done = (u->next_done + 1) % UPLOADS_DONE_MAX;
    free(d->bucket);
    free(d->key);
    *d = (struct done){.bucket = slice_dup(slice_str(w->bucket)), .key = slice_dup(slice_str(w->key))};
    memcpy(d->id, w->id, sizeof d->id);
    memcpy(d->result.etag, etag.p, etag.n);
    if (checksum.n < sizeof d->result.checksum)
        memcpy(d->result.checksum, checksum.p ? checksum.p : "", checksum.n);
}

void uploads_each(struct uploads *u, struct slice bucket,
                  void (*fn)(void *arg, struct slice key, const char *id, uint64_t created_ns), void *arg)
{
    LOCK_SCOPE(&u->lock);
    for (struct upload *w = u->list; w; w = w->next)
        if (slice_eq_str(bucket, w->bucket))
            fn(arg, slice_str(w->key), w->id, w->created_ns);
}

/* ---- parts that are copies ---- */

void uploads_watch(struct uploads *u, struct slice bucket, struct slice id, struct upload_watch *ret)
{
    LOCK_SCOPE(&u->lock);
    *ret = (struct upload_watch){.next = u->watches, .bucket = bucket, .id = id};
    atomic_init(&ret->stop, false);
    u->watches = ret;
}

enum s3_error uploads_unwatch(struct uploads *u, struct upload_watch *x)
{
    LOCK_SCOPE(&u->lock);
    struct upload_watch **at = &u->watches;

    while (*at != x)
        at = &(*at)->next;
    *at = x->next;
    return x->ended ? S3_ERR_NO_SUCH_UPLOAD : atomic_load(&x->stop) ? S3_ERR_UNAVAILABLE : S3_OK;
}

void uploads_stop_copies_locked(struct uploads *u, struct slice id, bool ended)
{
    for (struct upload_watch *x = u->watches; x; x = x->next) {
        if (!slice_eq(x->id, id))
            continue;
        x->ended = x->ended || ended;
        atomic_store(&x->stop, true);
    }
}

void uploads_tell_end(struct uploads *u, struct slice id)
{
    LOCK_SCOPE(&u->lock);
    uploads_stop_copies_locked(u, id, /* ended= */ true);
}
