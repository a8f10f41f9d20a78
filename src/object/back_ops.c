/* Write-back: FLUSH, and what status and metrics show. */
#include "object/back_internal.h"

#include "base/sys.h"
#include "base/text.h"

static uint64_t age_ms(uint64_t since_ns)
{
    uint64_t now = sys->real_ns();
    return since_ns == 0 || now < since_ns ? 0 : (now - since_ns) / 1000000;
}

int op_flush(struct object_session *ses, const struct wire_flush_req *req, struct arena *a,
             struct wire_flush_rep *rep, struct err *e)
{
    struct object_service *s = ses->service;
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    struct back_count c;
    int r = bucket_find(s->buckets, req->bucket, &b, e);
    if (r == 0 && bucket_is_scratch(b))
        r = err_set(e, -EINVAL, "bucket %s has no origin", b->name);
    if (r < 0)
        return r;
    if (!(req->flags & WIRE_NO_WAIT))
        back_hurry(s->back, b->id, req->prefix);
    back_count(s->back, b->id, req->prefix, &c);
    rep->objects = c.objects;
    rep->bytes = c.bytes;
    rep->failing = c.failing;
    rep->oldest_ms = age_ms(c.since_ns);
    rep->error = arena_dup(a, slice_str(c.error));
    return 0;
}

json_t *back_json(struct back *b, const struct bucket *bucket)
{
    struct back_count c;
    back_count(b, bucket->id, SLICE_NULL, &c);
    uint64_t conflicts = back_conflicts(b, bucket->id);
    if (bucket->p.write != BUCKET_WRITE_BACK && c.objects == 0 && conflicts == 0)
        return NULL;
    _cleanup_buf_ struct buf error = BUF_INIT(3 * sizeof(c.error));
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:s}", "objects", (json_int_t)c.objects, "bytes",
                     (json_int_t)c.bytes, "oldest_ms", (json_int_t)age_ms(c.since_ns), "failing",
                     (json_int_t)c.failing, "conflicts", (json_int_t)conflicts, "error",
                     text_utf8(&error, slice_str(c.error)));
}

void back_refresh_metrics(struct back *b)
{
    for (struct bucket *x = NULL; (x = bucket_next(b->service->buckets, x));) {
        struct back_count c;
        back_count(b, x->id, SLICE_NULL, &c);
        if (x->p.write != BUCKET_WRITE_BACK &&
            c.objects == 0) { /* it had some until `write` was changed, perhaps */
            metrics_end(METRIC_BACK_OBJECTS, x->name, NULL, NULL);
            metrics_end(METRIC_BACK_BYTES, x->name, NULL, NULL);
            metrics_end(METRIC_BACK_OLDEST_SECONDS, x->name, NULL, NULL);
            continue;
        }
        metrics_set(metrics_series(METRIC_BACK_OBJECTS, x->name, NULL, NULL), (int64_t)c.objects);
        metrics_set(metrics_series(METRIC_BACK_BYTES, x->name, NULL, NULL), (int64_t)c.bytes);
        metrics_set(metrics_series(METRIC_BACK_OLDEST_SECONDS, x->name, NULL, NULL),
                    (int64_t)(age_ms(c.since_ns) / 1000));
    }
}

int back_check_gone(struct back *b, const struct bucket *bucket, const char *what, struct err *e)
{
    struct back_count c;
    back_count(b, bucket->id, SLICE_NULL, &c);
    if (c.objects == 0)
        return 0;
    return err_set(e, -EBUSY,
                   "%llu writes of bucket %s are not in the origin yet: forebay flush --wait %s, then %s",
                   (unsigned long long)c.objects, bucket->name, bucket->name, what);
}
