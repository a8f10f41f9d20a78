/*
 * What is said of the cache by prefix: pinned, never cached, believed for so long. The rules are a property
 * of the bucket (namespace/rules.h), so that whoever holds a bucket has them without asking anybody.
 */
#include "object/object_internal.h"

#define PLACE_BYTES  8
#define PAGE         256
#define CHANGE_TRIES 5 /* others change the bucket at the same time */

/* The rules as they are to be, as text of the property. */
static int changed(const struct bucket *b, const struct wire_bucket_rule_req *q, struct buf *out,
                   struct err *e)
{
    _cleanup_(rules_fini) struct rules rules = {0};
    if (q->prefix.n > ORIGIN_KEY_MAX_BYTES) /* whether or not a line of the settings is about it */
        return err_set(e, ERR_BAD_OPTION, "the prefix is longer than any key");
    int r = rules_parse(b->p.rules, &rules, e);
    for (struct slice lines = q->settings; r == 0 && lines.n > 0;) {
        struct slice line = slice_split(&lines, '\n');
        if (line.n > 0)
            r = rules_change(&rules, q->prefix, line, e);
    }
    if (r == 0 && rules_format(&rules, out) < 0)
        r = err_set(e, ERR_BAD_OPTION, "bucket %s: its rules are longer than %d bytes", b->name,
                    (int)RULES_TEXT_MAX_BYTES);
    return r;
}

/* Changes the property; ERR_CONFLICT when somebody else changed the bucket meanwhile. */
static int change_once(struct object_service *s, const struct wire_bucket_rule_req *q, struct buf *rules,
                       struct bucket **ret, struct err *e)
{
    _cleanup_(bucket_unrefp) struct bucket *old = NULL;
    _cleanup_buf_ struct buf line = BUF_INIT(RULES_TEXT_MAX_BYTES + 16);
    buf_clear(rules);
    int r = bucket_find(s->buckets, q->bucket, &old, e);
    if (r == 0)
        r = changed(old, q, rules, e);
    if (r == 0 && q->settings.n > 0 && !old->p.origin)
        r = err_set(e, ERR_BAD_OPTION, "bucket %s has no origin: its data is no cache", old->name);
    if (r < 0 || q->settings.n == 0)
        return r;
    if (buf_printf(&line, "rules=" SLICE_FMT "\n", SLICE_ARG(buf_view(rules))) < 0)
        return err_set(e, ERR_BAD_OPTION, "bucket %s: its rules are too long", old->name);
    return bucket_change_of(s->buckets, old, buf_view(&line), ret, e);
}

int object_drop_never(struct object_service *s, const struct bucket *b, struct slice prefix, struct err *e)
{
    object_await_makings(s); /* by what was said before: they are seen below */
    _cleanup_buf_ struct buf from = BUF_INIT(STORE_KEY_MAX_BYTES), after = BUF_INIT(STORE_KEY_MAX_BYTES);
    _cleanup_(arena_freep) struct arena *a = arena_new(8 * MIB);
    struct store_listed page[PAGE];
    int64_t n = PAGE;
    object_store_key(b, prefix, &from);
    while (n == PAGE) {
        arena_clear(a);
        n = store_list(s->config.store, buf_view(&from), buf_view(&after), PAGE, a, page);
        for (int64_t i = 0; i < n; i++) {
            struct slice key = slice_from(page[i].key, PLACE_BYTES);
            if (bucket_keep(b, key) == RULE_KEEP_NEVER)
                (void)object_forget_key(s, b, key);
        }
        buf_clear(&after);
        if (n > 0 && buf_slice(&after, page[n - 1].key) < 0)
            n = -E2BIG;
    }
    return n < 0 ? err_errno(e, (int)n, "drop cached data of bucket %s", b->name) : 0;
}

/* Whether the lines say how long cached data is believed. */
static bool names_ttl(struct slice settings)
{
    while (settings.n > 0)
        if (slice_starts(slice_split(&settings, '\n'), SLICE_LIT("ttl=")))
            return true;
    return false;
}

int op_bucket_rule(struct object_session *ses, const struct wire_bucket_rule_req *req, struct arena *a,
                   struct wire_bucket_rule_rep *rep, struct err *e)
{
    struct object_service *s = ses->service;
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    _cleanup_buf_ struct buf rules = BUF_INIT(RULES_TEXT_MAX_BYTES);
    int r = ERR_CONFLICT;
    for (int i = 0; i < CHANGE_TRIES && r == ERR_CONFLICT; i++)
        r = change_once(s, req, &rules, &b, e);
    if (r == 0 && b) {
        if (names_ttl(req->settings)) /* as BUCKET_SET: who watches may believe for another time now */
            watch_end_bucket(s, b->id);
        r = bucket_keep(b, req->prefix) == RULE_KEEP_NEVER ? object_drop_never(s, b, req->prefix, e) : 0;
    }
    if (r == 0)
        rep->rules = arena_dup(a, buf_view(&rules));
    return r;
}
