/* STATUS and REPORT: what the node has to say of itself, as JSON. */
#include "object/back.h"
#include "object/scratch_node.h"
#include "object/stranded.h"

#include "base/sys.h"
#include "base/text.h"

#include <jansson.h>

#define BUCKET_BYTES      2048 /* about the most that one takes in the text, its origin's URL aside */
#define BUCKETS_MAX_BYTES ((size_t)6 << 20)

static char *text_of(struct slice s)
{
    return slice_dup(slice_sub(s, 0, MIN(s.n, (size_t)4096)));
}

void status_forget_mount_locked(struct object_session *ses)
{
    if (!ses->mount_point)
        return;
    for (const struct object_session *x = ses->service->sessions; x; x = x->next)
        if (x != ses && x->mount_point && strcmp(x->mount_point, ses->mount_point) == 0)
            return; /* the process that took over */
    metrics_end(METRIC_PASSTHROUGH, ses->mount_point, NULL, NULL);
}

int op_report(struct object_session *ses, const struct wire_report_req *req, struct arena *a,
              struct wire_report_rep *rep, struct err *e)
{
    (void)a, (void)rep, (void)e;
    char *point = text_of(req->mount_point), *bucket = text_of(req->bucket), *reason = text_of(req->reason);
    LOCK_SCOPE(&ses->service->lock);
    status_forget_mount_locked(ses); /* where it was before */
    metrics_set(metrics_series(METRIC_PASSTHROUGH, point, NULL, NULL), req->passthrough ? 1 : 0);
    free(ses->mount_point);
    free(ses->mount_bucket);
    free(ses->mount_reason);
    ses->mount_point = point;
    ses->mount_bucket = bucket;
    ses->mount_reason = reason;
    ses->mount_passthrough = req->passthrough != 0;
    return 0;
}

/* Gives a JSON text, and frees it. How long it gets is the doing of users (mounts, keys), not ours. */
static int give_json(char *text, const char *what, struct arena *a, struct slice *ret, struct err *e)
{
    _cleanup_free_ char *mine = text;
    if (!mine)
        return err_set(e, -ENOMEM, "%s", what);
    size_t n = strlen(mine);
    if (n >= arena_left(a))
        return err_set(e, -E2BIG, "%s: %zu bytes are too many to be sent", what, n);
    *ret = arena_dup(a, slice_of(mine, n));
    return 0;
}

/* Text of any bytes: a path, a name that somebody gave. */
static json_t *text_json(const char *s)
{
    _cleanup_buf_ struct buf b = BUF_INIT(3 * strlen(s) + 1);
    return json_string(text_utf8(&b, slice_str(s)));
}

static json_t *disks_json(struct store *store)
{
    json_t *list = json_array();
    for (size_t i = 0; i < store_n_disks(store); i++) {
        struct store_disk_status d;
        if (store_disk_status(store, i, &d) < 0)
            continue;
        (void)json_array_append_new(
            list,
            json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b}", "path", text_json(d.path),
                      "used_bytes", (json_int_t)d.used_bytes, "limit_bytes", (json_int_t)d.limit_bytes,
                      "leased_bytes", (json_int_t)d.leased_bytes, "free_bytes", (json_int_t)d.free_bytes,
                      "extents", (json_int_t)d.extents, "scratch_bytes", (json_int_t)d.hard_bytes,
                      "scratch_files", (json_int_t)d.hard_extents, "scratch_unsettled",
                      (json_int_t)d.hard_unsettled, "was_clean", (int)d.was_clean));
    }
    return list;
}

static json_t *mounts_json(struct object_service *s)
{
    json_t *list = json_array();
    LOCK_SCOPE(&s->lock);
    for (struct object_session *x = s->sessions; x; x = x->next) {
        if (!x->mount_point)
            continue;
        (void)json_array_append_new(
            list, json_pack("{s:o, s:o, s:b, s:o}", "mount_point", text_json(x->mount_point), "bucket",
                            text_json(x->mount_bucket), "passthrough", (int)x->mount_passthrough, "reason",
                            text_json(x->mount_reason)));
    }
    return list;
}

/* Of a scratch bucket also how much it holds. */
static void add_counts(struct object_service *s, const struct bucket *b, json_t *o)
{
    struct scratch_counts c;
    if (bucket_is_memory(b)) {
        struct values_count n = values_count_bucket(s->values, b->id, sys->real_ns());
        (void)json_object_set_new(
            o, "values",
            json_pack("{s:I, s:I}", "objects", (json_int_t)n.objects, "bytes", (json_int_t)n.bytes));
        return;
    }
    if (!bucket_is_scratch(b) || scratch_statfs(s->scratch->names, b->id, &c, NULL) < 0)
        return;
    (void)json_object_set_new(o, "inodes", json_integer((json_int_t)c.inodes));
    (void)json_object_set_new(o, "bytes", json_integer((json_int_t)c.bytes));
    (void)json_object_set_new(o, "keys_without_path", json_integer((json_int_t)c.keyed));
}

static json_t *scratch_json(struct snode *n)
{
    LOCK_SCOPE(&n->lock);
    return json_pack("{s:I, s:I}", "unsettled_files", (json_int_t)n->n_unsettled, "files_to_free",
                     (json_int_t)n->n_freed);
}

static json_t *values_json(struct values *v)
{
    struct values_count c = values_count(v);
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "objects", (json_int_t)c.objects, "bytes",
                     (json_int_t)c.bytes, "limit_bytes", (json_int_t)values_max_bytes(v), "hits",
                     (json_int_t)c.hits, "misses", (json_int_t)c.misses, "evicted", (json_int_t)c.evicted,
                     "expired", (json_int_t)c.expired);
}

static json_t *bucket_json(struct object_service *s, const struct bucket *b)
{
    json_t *o = json_pack("{s:o, s:o}", "name", text_json(b->name), "origin",
                          text_json(b->p.origin ? b->p.origin : ""));
    add_counts(s, b, o);
    json_t *back = back_json(s->back, b);
    if (back)
        (void)json_object_set_new(o, "write_back", back);
    json_t *stranded = stranded_json(s, b);
    if (stranded)
        (void)json_object_set_new(o, "stranded", stranded);
    return o;
}

/* All, or as many as an answer surely has room for; *ret_left_out: how many are not there. */
static json_t *buckets_json(struct object_service *s, uint64_t *ret_left_out)
{
    json_t *list = json_array();
    size_t bytes = 0;
    for (struct bucket *b = NULL; (b = bucket_next(s->buckets, b));) {
        bytes += BUCKET_BYTES + 3 * strlen(b->p.origin ? b->p.origin : "");
        json_t *o = bytes <= BUCKETS_MAX_BYTES ? bucket_json(s, b) : NULL;
        bytes += o && json_object_get(o, "stranded") ? STRANDED_JSON_MAX_BYTES : 0;
        if (o)
            (void)json_array_append_new(list, o);
        else
            ++*ret_left_out;
    }
    return list;
}

int op_status(struct object_session *ses, const struct wire_status_req *req, struct arena *a,
              struct wire_status_rep *rep, struct err *e)
{
    (void)req;
    struct object_service *s = ses->service;
    uint64_t left_out = 0;
    json_t *buckets = buckets_json(s, &left_out);
    json_t *o =
        json_pack("{s:s, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o}", "version", FOREBAY_VERSION,
                  "memory_budget_bytes", (json_int_t)budget_total(s->config.budget), "memory_used_bytes",
                  (json_int_t)budget_used(s->config.budget), "readers", (json_int_t)atomic_load(&s->readers),
                  "writers", (json_int_t)atomic_load(&s->writers), "disks", disks_json(s->config.store),
                  "buckets", buckets, "mounts", mounts_json(s), "scratch", scratch_json(s->scratch), "values",
                  values_json(s->values), "shaping", gate_json(s->gate));
    if (!o)
        return err_set(e, -ENOMEM, "status");
    if (s->scrub)
        (void)json_object_set_new(o, "scrub", scrub_json(s->scrub));
    if (left_out > 0)
        (void)json_object_set_new(o, "buckets_left_out", json_integer((json_int_t)left_out));
    char *text = json_dumps(o, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
    json_decref(o);
    return give_json(text, "status", a, &rep->json, e);
}

/* ---- usage ---- */

struct gathered {
    json_t *list;
    const struct bucket *only; /* NULL: all */
    struct slice prefix;
};

static void gather(void *arg, const struct usage_row *r)
{
    struct gathered *g = arg;
    if (g->only && r->bucket_id != g->only->id)
        return;
    if (!slice_starts(r->prefix, g->prefix))
        return;
    json_t *prefix = json_stringn(r->prefix.p, r->prefix.n); /* NULL when it is not UTF-8 */
    (void)json_array_append_new(
        g->list, json_pack("{s:I, s:o, s:I, s:I, s:I, s:I}", "id", (json_int_t)r->bucket_id, "prefix",
                           prefix ? prefix : json_string("?"), "opens", (json_int_t)r->opens, "read_bytes",
                           (json_int_t)r->read_bytes, "fetched_bytes", (json_int_t)r->fetched_bytes,
                           "last_read_ms", (json_int_t)r->last_read_ms));
}

/* Puts the bucket's name in the place of its number; what is of no bucket any more goes. */
static void name_buckets(struct object_service *s, json_t *list)
{
    for (size_t i = json_array_size(list); i > 0; i--) {
        json_t *row = json_array_get(list, i - 1);
        uint64_t id = (uint64_t)json_integer_value(json_object_get(row, "id"));
        _cleanup_(bucket_unrefp) struct bucket *b = bucket_find_id(s->buckets, id);
        if (b)
            (void)json_object_set_new(row, "bucket", json_string(b->name));
        (void)json_object_del(row, "id");
        if (!b)
            (void)json_array_remove(list, i - 1);
    }
}

int op_usage(struct object_session *ses, const struct wire_usage_req *req, struct arena *a,
             struct wire_usage_rep *rep, struct err *e)
{
    struct object_service *s = ses->service;
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    int r = req->bucket.n > 0 ? bucket_find(s->buckets, req->bucket, &b, e) : 0;
    if (r < 0)
        return r;
    struct gathered g = {.list = json_array(), .only = b, .prefix = req->prefix};
    usage_each(s->usage, gather, &g);
    name_buckets(s, g.list);
    char *text = json_dumps(g.list, JSON_SORT_KEYS | JSON_COMPACT);
    json_decref(g.list);
    return give_json(text, "usage", a, &rep->json, e);
}
