/*
 * Lifecycle passes (contract in expire.h; which object a rule means, in lifecycle.c).
 *
 * 1. An object is removed only in the version that was seen to have expired: whoever writes the key in
 * between keeps what was written, also when that are the same bytes, which have the same ETag (REMOVE_SINCE).
 * Origins do not remove by time: there each object is looked at again just before it goes, and the same bytes
 * are lost when they are written in the time of that question and of the removal.
 * 2. In buckets without origin days count from when an object came to be as it is (WIRE_SINCE), not from the
 * time that a mount has set: what `rsync -a` brings is not old because it was written long ago elsewhere.
 * 3. Rules are read anew for each bucket and pass. A bucket whose rules cannot be read is left alone.
 *
 * Failure modes: what cannot be listed or removed is logged, once for a bucket and pass, and tried again by
 * the next one.
 */
#include "s3/expire.h"

#include "origin/meta.h"
#include "s3/lifecycle.h"
#include "s3/parts.h"
#include "s3/uploads.h"

#include "base/chore.h"
#include "base/log.h"
#include "base/sys.h"

#define ARENA_BYTES (16 * MIB)
#define ABORTS_MAX  UPLOADS_MAX

struct expirer {
    struct s3 *s3;
    uint64_t interval_ns;
    struct chore chore;
};

/* One bucket in one pass. */
struct pass {
    struct expirer *x;
    struct slice bucket;
    struct lifecycle rules;
    uint64_t now_ns, removed, failed;
    struct err e; /* of the first failure */
};

static bool stopping(struct expirer *x)
{
    return chore_is_stopping(&x->chore);
}

static void note_failure(struct pass *p, const struct err *e)
{
    if (p->failed++ == 0)
        p->e = *e;
}

static bool is_due(const struct pass *p, const struct lifecycle_rule *rule, struct slice key,
                   const struct wire_attr *attr)
{
    uint64_t ends_ns = lifecycle_ends_ns(rule, key, attr->size_bytes, attr->mtime_ns);

    return ends_ns && ends_ns <= p->now_ns;
}

static bool has_tags(struct pass *p, const struct lifecycle_rule *rule, struct slice key,
                     const struct wire_attr *attr, struct arena *a)
{
    struct slice kept = SLICE_NULL;
    struct err e = {0};
    int status = rule->n_tags ? tagging_of_object(p->x->s3, p->bucket, key, attr, a, &kept, &e) : 0;

    if (status && status != -ENOENT)
        note_failure(p, &e);
    return status == 0 && lifecycle_has_tags(rule, kept, a);
}

/* As it is now; false also when it is another one than was listed, or a younger one. */
static bool look_again(struct pass *p, const struct lifecycle_rule *rule, const struct wire_entry *entry,
                       struct arena *a, struct wire_attr *ret)
{
    struct wire_stat_req req = {.bucket = p->bucket, .key = entry->key, .flags = WIRE_FRESH | WIRE_SINCE};
    struct wire_stat_rep rep;
    struct err e = {0};
    int status = object_stat(p->x->s3->session, &req, a, &rep, &e);

    if (status && status != -ENOENT)
        note_failure(p, &e);
    if (status || !slice_eq(rep.attr.etag, entry->attr.etag) || !is_due(p, rule, entry->key, &rep.attr))
        return false;
    *ret = rep.attr;
    return true;
}

/* Asks anew, and for what listings do not tell. The last question is the one about the object's time. */
static bool is_still_due(struct pass *p, const struct lifecycle_rule *rule, const struct wire_entry *entry,
                         uint64_t *ret_since_ns)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(MIB);
    struct wire_attr seen, now;

    if (!look_again(p, rule, entry, a, &seen) || !has_tags(p, rule, entry->key, &seen, a))
        return false;
    *ret_since_ns = seen.mtime_ns;
    return rule->n_tags == 0 || (look_again(p, rule, entry, a, &now) && now.mtime_ns == seen.mtime_ns);
}

static bool has_ended(struct pass *p, const struct wire_entry *entry, uint64_t *ret_since_ns)
{
    for (size_t i = 0; i < p->rules.n; i++) {
        const struct lifecycle_rule *rule = &p->rules.rules[i];

        if (is_due(p, rule, entry->key, &entry->attr) && is_still_due(p, rule, entry, ret_since_ns))
            return true;
    }
    return false;
}

static void remove_object(struct pass *p, const struct wire_entry *entry, uint64_t since_ns)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(MIB);
    struct wire_remove_since_req req = {
        .bucket = p->bucket, .key = entry->key, .if_match = entry->attr.etag, .since_ns = since_ns};
    struct wire_remove_since_rep rep;
    struct err e = {0};
    int status = object_remove_since(p->x->s3->session, &req, a, &rep, &e);

    if (status == 0)
        p->removed++;
    else if (status != ERR_PRECONDITION) /* someone wrote it meanwhile */
        note_failure(p, &e);
}

/* The longest beginning that the prefixes of all rules share: only keys below it are listed. */
static struct slice common_prefix(const struct lifecycle *l)
{
    struct slice common = SLICE_NULL;

    for (size_t i = 0; i < l->n; i++) {
        struct slice prefix = l->rules[i].prefix;
        size_t n = 0;

        if (!l->rules[i].enabled || (l->rules[i].days == 0 && l->rules[i].date_ns == 0))
            continue;
        while (common.p && n < common.n && n < prefix.n && common.p[n] == prefix.p[n])
            n++;
        common = common.p ? slice_sub(common, 0, n) : slice_of(prefix.p ? prefix.p : "", prefix.n);
    }
    return common;
}

static void expire_objects(struct pass *p)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(ARENA_BYTES);
    _cleanup_free_ char *after = NULL;
    struct wire_list_req req = {.bucket = p->bucket,
                                .prefix = common_prefix(&p->rules),
                                .max = S3_LIST_MAX,
                                .flags = WIRE_FRESH | WIRE_SINCE};
    struct wire_list_rep page = {.truncated = 1};

    if (!req.prefix.p) /* no rule is about objects */
        return;
    while (page.truncated && !stopping(p->x)) {
        struct wire_entry entry;
        struct err e = {0};
        uint64_t since_ns;

        if (object_list(p->x->s3->session, &req, a, &page, &e)) {
            note_failure(p, &e);
            return;
        }
        while (wire_entry_decode(&page.entries, &entry) == 0 && !stopping(p->x))
            if (entry.attr.kind == WIRE_FILE && has_ended(p, &entry, &since_ns))
                remove_object(p, &entry, since_ns);
        free(after);
        after = slice_dup(page.next);
        req.after = slice_of(after, page.next.n);
        arena_clear(a);
    }
}

/* ---- uploads ---- */

struct abandoned {
    struct pass *pass;
    struct arena *arena;
    struct {
        struct slice key, id;
    } v[ABORTS_MAX];
    size_t n;
};

static void on_upload(void *arg, struct slice key, const char *id, uint64_t created_ns)
{
    struct abandoned *all = arg;
    const struct pass *p = all->pass;

    for (size_t i = 0; i < p->rules.n && all->n < ABORTS_MAX; i++) {
        if (!lifecycle_aborts(&p->rules.rules[i], key, created_ns, p->now_ns))
            continue;
        all->v[all->n].key = arena_dup(all->arena, key);
        all->v[all->n++].id = slice_str(arena_str(all->arena, slice_str(id)));
        return;
    }
}

static void abort_uploads(struct pass *p)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(ARENA_BYTES);
    const struct slice bucket = buckets_identity(p->x->s3, p->bucket, a);
    struct uploads *uploads = p->x->s3->uploads;
    struct abandoned *all = arena_zalloc(a, sizeof *all);

    all->pass = p;
    all->arena = a;
    uploads_each(uploads, bucket, on_upload, all);
    (void)parts_each(p->x->s3, p->bucket, on_upload, all, NULL);
    for (size_t i = 0; i < all->n; i++) {
        struct upload *w = uploads_find(uploads, all->v[i].id, bucket, all->v[i].key);

        if (!w) {
            struct err e = {0};
            int status = parts_abort_of(p->x->s3, p->bucket, all->v[i].key, all->v[i].id, &e);

            if (status == 0)
                p->removed++;
            else if (status != -ENOENT)
                note_failure(p, &e);
            continue;
        }
        p->removed += upload_abort(w) == S3_OK;
        upload_unref(w);
    }
}

/* ---- a pass ---- */

static void expire_bucket(struct expirer *x, struct slice bucket)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(ARENA_BYTES);
    struct pass p = {.x = x, .bucket = bucket, .now_ns = sys->real_ns()};
    struct wire_bucket_get_req req = {.name = bucket};
    struct wire_bucket_get_rep rep;
    struct slice text = SLICE_NULL;
    const char *reason;

    if (object_bucket_get(x->s3->session, &req, a, &rep, NULL))
        return;
    while (rep.settings.n && !text.p) {
        struct slice value = slice_split(&rep.settings, '\n');

        if (slice_eq_str(slice_split(&value, '='), "s3.lifecycle"))
            text = value;
    }
    if (!text.p || lifecycle_parse(text, a, &p.rules, &reason))
        return;
    expire_objects(&p);
    abort_uploads(&p);
    if (p.removed)
        log_info("s3", "lifecycle of bucket " SLICE_FMT ": %llu objects and uploads ended", SLICE_ARG(bucket),
                 (unsigned long long)p.removed);
    if (p.failed)
        log_warn("s3", "lifecycle of bucket " SLICE_FMT ": %llu failures, tried again by the next pass: %s",
                 SLICE_ARG(bucket), (unsigned long long)p.failed, p.e.text);
}

static void expire_all(struct expirer *x)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(ARENA_BYTES);
    _cleanup_free_ char *after = NULL;
    struct wire_bucket_list_req req = {0};
    struct wire_bucket_list_rep rep = {.truncated = 1};

    while (rep.truncated && !stopping(x)) {
        struct wire_bucket bucket;
        struct slice last = SLICE_LIT("");

        if (object_bucket_list(x->s3->session, &req, a, &rep, NULL))
            return;
        while (wire_bucket_decode(&rep.buckets, &bucket) == 0 && !stopping(x)) {
            last = bucket.name;
            expire_bucket(x, bucket.name);
        }
        free(after);
        after = slice_dup(last);
        req.after = slice_of(after, last.n);
        arena_clear(a);
    }
}

static uint64_t expire_turn(void *arg)
{
    struct expirer *x = arg;

    uploads_drop_idle(x->s3->uploads); /* also where nobody begins another one */
    expire_all(x);
    return x->interval_ns;
}

struct expirer *expirer_start(struct s3 *s3, uint64_t interval_ms)
{
    struct expirer *x = calloc(1, sizeof *x);

    assert(interval_ms > 0);
    if (!x)
        abort();
    x->s3 = s3;
    x->interval_ns = interval_ms * 1000000;
    int status = chore_start(&x->chore, x->interval_ns, expire_turn, x);
    if (status == 0)
        return x;
    log_error("s3", "no thread for lifecycle rules: %s", err_text(status));
    chore_stop(&x->chore);
    free(x);
    return NULL;
}

void expirer_stop(struct expirer *x)
{
    if (!x)
        return;
    chore_stop(&x->chore);
    free(x);
}
