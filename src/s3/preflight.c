/*
 * What browsers ask before they let a web page use a bucket (OPTIONS), and the headers on later answers.
 *
 * 1. Rules give no right: a request that a rule allows is still checked for its signature and its user.
 */
#include "s3/cors.h"
#include "s3/s3_internal.h"

#define PARSE_MAX_BYTES (4 * MIB)

static void put_list(struct s3_request *r, const char *name, const struct cors_list *list)
{
    _cleanup_buf_ struct buf b = BUF_INIT(HTTP_HEAD_MAX_BYTES);

    for (size_t i = 0; i < list->n; i++)
        if ((i && buf_str(&b, ", ")) || buf_slice(&b, list->v[i]))
            return;
    if (b.n)
        reply_header(r, name, buf_view(&b));
}

static void put_rule(struct s3_request *r, const struct cors_rule *rule, const struct cors_question *q,
                     struct slice pattern)
{
    bool any = slice_eq_str(pattern, "*");

    reply_header(r, "Access-Control-Allow-Origin", any ? pattern : q->origin);
    if (!any)
        reply_header(r, "Access-Control-Allow-Credentials", SLICE_LIT("true"));
    put_list(r, "Access-Control-Allow-Methods", &rule->methods);
    put_list(r, "Access-Control-Expose-Headers", &rule->exposed);
    reply_header(r, "Vary",
                 SLICE_LIT("Origin, Access-Control-Request-Headers, Access-Control-Request-Method"));
    if (q->headers.n)
        reply_header(r, "Access-Control-Allow-Headers", q->headers);
    if (rule->has_age && r->op == S3_OP_PREFLIGHT)
        reply_header(r, "Access-Control-Max-Age",
                     slice_str(arena_printf(r->arena, "%llu", (unsigned long long)rule->age_s)));
}

/* Puts the header lines of the bucket's rule that allows it; false: there is none. */
static bool answer(struct s3_request *r, struct slice bucket, const struct cors_question *q)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(PARSE_MAX_BYTES);
    const struct cors_rule *rule;
    struct slice text, pattern;
    const char *reason;
    struct cors c;

    if (!buckets_property(r, bucket, "s3.cors", &text) || cors_parse(text, a, &c, &reason))
        return false;
    rule = cors_match(&c, q, &pattern);
    if (rule)
        put_rule(r, rule, q, pattern);
    return rule != NULL;
}

/* The bucket also of a request that was refused before it was known what is wanted: a page is to learn that
 * its URL has expired, which the rules decide and nothing of the bucket shows. */
static struct slice bucket_of(const struct s3_request *r)
{
    struct slice bucket, key;

    if (r->bucket.n || r->host_bucket.n)
        return r->bucket.n ? r->bucket : r->host_bucket;
    return route_path(r->path, &bucket, &key) ? SLICE_LIT("") : bucket;
}

void preflight_headers(struct s3_request *r)
{
    struct cors_question q = {.origin = request_header(r, "origin"), .method = r->http->method};

    if (q.origin.n && r->op != S3_OP_PREFLIGHT)
        (void)answer(r, bucket_of(r), &q);
}

enum s3_error s3_op_preflight(struct s3_request *r)
{
    struct cors_question q = {.origin = request_header(r, "origin"),
                              .method = request_header(r, "access-control-request-method"),
                              .headers = request_header(r, "access-control-request-headers")};

    if (q.origin.n == 0 || q.method.n == 0)
        return reply_refuse(r, S3_ERR_INVALID_REQUEST,
                            "a preflight needs the headers Origin and Access-Control-Request-Method");
    if (!answer(r, r->bucket, &q))
        return S3_ERR_ACCESS_FORBIDDEN;
    reply_send(r, 200, NULL, SLICE_NULL);
    return S3_OK;
}
