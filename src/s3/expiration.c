/*
 * The header x-amz-expiration: when an object will end by the lifecycle rules of its bucket, and by which.
 *
 * 1. It says what a pass (expire.c) will do by the rules as they are now; where rules cannot be read, or the
 * bucket has none, there is no header.
 */
#include "origin/meta.h"
#include "s3/lifecycle.h"
#include "s3/s3_internal.h"

#include "base/text.h"

#define RULES_MAX_BYTES   (64 * KIB)
#define PARSE_ARENA_BYTES (4 * MIB)

/* The time that passes go by: of an object of a bucket without origin not the one that a mount may have set.
 */
static uint64_t since_ns(struct s3_request *r, const struct wire_attr *attr, struct arena *a)
{
    struct wire_stat_req req = {.bucket = r->bucket, .key = r->key, .flags = WIRE_SINCE};
    struct wire_stat_rep rep;

    if (object_stat(r->s3->session, &req, a, &rep, NULL) || !slice_eq(rep.attr.etag, attr->etag))
        return attr->mtime_ns; /* it is another one by now */
    return rep.attr.mtime_ns;
}

/* Of an object whose origin only told that it has some, they are asked for. */
static struct slice tags_of(struct s3_request *r, const struct lifecycle_rule *rule,
                            const struct wire_attr *attr, struct arena *a)
{
    struct slice kept = meta_get(attr->meta, META_TAGS);
    struct err e = {0};

    if (rule->n_tags && kept.n == 0 && meta_get(attr->meta, META_TAG_COUNT).n)
        (void)tagging_of_object(r->s3, r->bucket, r->key, attr, a, &kept, &e);
    return kept;
}

static const struct lifecycle_rule *first_to_end(struct s3_request *r, const struct lifecycle *l,
                                                 const struct wire_attr *attr, uint64_t since,
                                                 struct arena *a, uint64_t *ret_ns)
{
    const struct lifecycle_rule *first = NULL;

    for (size_t i = 0; i < l->n; i++) {
        uint64_t ns = lifecycle_ends_ns(&l->rules[i], r->key, attr->size_bytes, since);

        if (ns == 0 || (first && ns >= *ret_ns) ||
            !lifecycle_has_tags(&l->rules[i], tags_of(r, &l->rules[i], attr, a), a))
            continue;
        first = &l->rules[i];
        *ret_ns = ns;
    }
    return first;
}

void expiration_header(struct s3_request *r, const struct wire_attr *attr)
{
    _cleanup_buf_ struct buf text = BUF_INIT(RULES_MAX_BYTES), value = BUF_INIT(2 * KIB);
    _cleanup_(arena_freep) struct arena *a = NULL;
    const struct lifecycle_rule *rule;
    struct lifecycle rules;
    const char *reason;
    uint64_t ends_ns = 0;
    bool own_times;
    char date[32];

    own_times = object_bucket_lifecycle(r->s3->objects, r->bucket, &text);
    if (text.n == 0)
        return;
    a = arena_new(PARSE_ARENA_BYTES);
    if (lifecycle_parse(buf_view(&text), a, &rules, &reason))
        return;
    rule = first_to_end(r, &rules, attr, own_times ? since_ns(r, attr, a) : attr->mtime_ns, a, &ends_ns);
    if (!rule)
        return;
    text_http_date(ends_ns, date);
    if (buf_printf(&value, "expiry-date=\"%s\", rule-id=\"", date) ||
        text_uri_encode(&value, rule->id, /* keep_slash= */ false) || buf_char(&value, '"'))
        return;
    reply_header(r, "x-amz-expiration", buf_view(&value));
}
