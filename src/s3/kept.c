/*
 * Settings of buckets that can be made: tags, CORS rules, lifecycle rules. Each is kept as a property of the
 * bucket, in one line.
 *
 * 1. What is kept was parsed and written anew: its form does not depend on how the client wrote it. Somebody
 * may still write such a property by other means; one that cannot be read counts as not made.
 */
#include "s3/cors.h"
#include "s3/lifecycle.h"
#include "s3/s3_internal.h"
#include "s3/tags.h"

#include "base/sys.h"

#define DOCUMENT_MAX_BYTES (256 * KIB)
#define KEPT_MAX_BYTES     (16 * KIB) /* of a bucket's property */
#define PARSE_MAX_BYTES    (4 * MIB)

/* Reads a client's document and writes the kept form. */
typedef enum s3_error (*keep_fn)(struct slice document, struct arena *a, struct buf *ret,
                                 const char **ret_reason);

#define TOO_LONG                                                                                             \
    (*ret_reason = "the document is longer than what can be kept (16 KiB)", S3_ERR_INVALID_REQUEST)

static enum s3_error keep_tags(struct slice document, struct arena *a, struct buf *ret,
                               const char **ret_reason)
{
    struct tags *t = arena_alloc(a, sizeof *t);
    enum s3_error error = tags_parse_xml(document, TAGS_BUCKET_MAX, a, t, ret_reason);

    return error ? error : tags_put(t, ret) ? TOO_LONG : S3_OK;
}

static enum s3_error keep_cors(struct slice document, struct arena *a, struct buf *ret,
                               const char **ret_reason)
{
    struct cors c;
    enum s3_error error = cors_parse(document, a, &c, ret_reason);

    return error ? error : cors_put(&c, ret) ? TOO_LONG : S3_OK;
}

static enum s3_error keep_lifecycle(struct slice document, struct arena *a, struct buf *ret,
                                    const char **ret_reason)
{
    struct lifecycle l;
    enum s3_error error = lifecycle_parse(document, a, &l, ret_reason);
    uint64_t number;

    for (size_t i = 0; !error && i < l.n; i++) {
        if (l.rules[i].abort_days && lifecycle_has_sizes(&l.rules[i])) {
            *ret_reason = "uploads have no size: AbortIncompleteMultipartUpload needs a rule without "
                          "ObjectSizeGreaterThan and ObjectSizeLessThan";
            return S3_ERR_INVALID_REQUEST;
        }
        if (l.rules[i].id.n)
            continue;
        sys->random(&number, sizeof number); /* a rule without a name gets one, as in S3 */
        l.rules[i].id = slice_str(arena_printf(a, "rule-%016llx", (unsigned long long)number));
    }
    return error ? error : lifecycle_put(&l, ret) ? TOO_LONG : S3_OK;
}

static const struct {
    const char *parameter, *property;
    keep_fn keep;
} kept[] = {
#define X(parameter, property, keep) {parameter, property, keep},
    S3_KEPT(X)
#undef X
};

static bool show_tags(struct s3_request *r, struct slice text, struct buf *b)
{
    struct tags *t = arena_alloc(r->arena, sizeof *t);
    const char *reason;

    return text.n > 0 && tags_parse(text, TAGS_BUCKET_MAX, r->arena, t, &reason) == S3_OK &&
           tags_put_xml(t, b) == 0;
}

bool kept_show(struct s3_request *r, const char *parameter, enum s3_error *ret_error)
{
    _cleanup_buf_ struct buf b = BUF_INIT(DOCUMENT_MAX_BYTES);
    const char *property = route_kept_property(parameter);
    struct xml x = {&b, 0};
    struct slice text;

    if (!property || !buckets_property(r, r->bucket, property, &text))
        return false;
    if (strcmp(parameter, "tagging") == 0) {
        if (!show_tags(r, text, &b))
            return false;
    } else {
        xml_start(&x);
        xml_raw(&x, text);
        if (x.status)
            return false;
    }
    reply_send(r, 200, "application/xml", buf_view(&b));
    *ret_error = S3_OK;
    return true;
}

enum s3_error kept_change(struct s3_request *r, const char *property, struct slice value)
{
    _cleanup_buf_ struct buf b = BUF_INIT(KEPT_MAX_BYTES + 64);
    struct wire_bucket_set_req req = {.name = r->bucket};
    struct wire_bucket_set_rep rep;
    struct err e = {0};
    int status = buf_printf(&b, "%s=" SLICE_FMT "\n", property, SLICE_ARG(value));

    req.settings = buf_view(&b);
    if (status == 0)
        status = object_bucket_set(r->s3->session, &req, r->arena, &rep, &e);
    return status ? reply_failed(r, status, &e) : S3_OK;
}

enum s3_error s3_op_put_bucket_setting(struct s3_request *r)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(PARSE_MAX_BYTES);
    _cleanup_buf_ struct buf document = BUF_INIT(DOCUMENT_MAX_BYTES), text = BUF_INIT(KEPT_MAX_BYTES);
    const char *reason = NULL;
    enum s3_error error = buckets_find(r);
    size_t i = 0;

    while (!route_query(r->query, r->n_query, kept[i].parameter))
        i++; /* the route was chosen by one of them */
    if (!error)
        error = put_document(r, &document, /* with_checksum= */ true);
    if (!error)
        error = kept[i].keep(buf_view(&document), a, &text, &reason);
    if (error && reason)
        return reply_refuse(r, error, reason);
    if (!error)
        error = kept_change(r, kept[i].property, buf_view(&text));
    if (!error)
        reply_send(r, strcmp(kept[i].parameter, "tagging") == 0 ? 204 : 200, NULL, SLICE_NULL);
    return error;
}
