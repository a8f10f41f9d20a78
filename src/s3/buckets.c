/* ListBuckets, HeadBucket and GetBucketLocation. */
#include "s3/s3_internal.h"
#include "s3/uploads.h"
#include "s3/xml.h"

#include "base/text.h"
#include "namespace/bucket.h"

#define BUCKETS_PAGE_MAX 10000
#define PROPERTIES_ARENA MIB

/* A page of ListBuckets. */
struct page {
    struct slice prefix;
    char after[BUCKET_NAME_MAX + 1]; /* the last one shown */
    uint64_t max, n;
    bool more;
    bool elsewhere; /* another region is asked for */
};

/* Those that who asks may read. */
static int put_buckets(const struct s3_request *r, struct slice rest, struct page *p, struct xml *x)
{
    struct wire_bucket bucket;
    char date[32];
    int status;

    while ((status = wire_bucket_decode(&rest, &bucket)) == 0) {
        if (p->elsewhere || !user_may(r->user, USER_MAY_READ, bucket.name) ||
            !slice_starts(bucket.name, p->prefix))
            continue;
        p->more = p->n == p->max;
        if (p->more)
            return x->status;
        (void)snprintf(p->after, sizeof p->after, SLICE_FMT, SLICE_ARG(bucket.name));
        p->n++;
        text_iso8601(bucket.created_ns, date);
        xml_open(x, "Bucket");
        xml_text(x, "Name", bucket.name);
        xml_text(x, "CreationDate", slice_str(date));
        xml_close(x, "Bucket");
    }
    return status == -ENOENT ? x->status : status;
}

static struct slice last_of(struct slice buckets)
{
    struct wire_bucket bucket = {.name = SLICE_LIT("")};

    while (wire_bucket_decode(&buckets, &bucket) == 0)
        continue;
    return bucket.name;
}

enum s3_error s3_op_list_buckets(struct s3_request *r)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(S3_ARENA_BYTES);
    _cleanup_buf_ struct buf b = BUF_INIT(S3_XML_MAX_BYTES);
    struct page page = {.prefix = request_query(r, "prefix"), .max = UINT64_MAX};
    struct slice max = request_query(r, "max-buckets"), token = request_query(r, "continuation-token");
    struct slice region = request_query(r, "bucket-region");
    struct wire_bucket_list_req req = {.after = token.n ? token : SLICE_LIT("")};
    struct wire_bucket_list_rep rep;
    char last[BUCKET_NAME_MAX + 1];
    struct xml x = {&b, 0};
    struct err e = {0};
    int status;

    if (max.p && (slice_u64(max, &page.max) || page.max < 1 || page.max > BUCKETS_PAGE_MAX))
        return reply_refuse(r, S3_ERR_INVALID_ARGUMENT, "max-buckets must be a number from 1 to 10000");
    page.elsewhere = region.n > 0 && !slice_eq_str(region, r->s3->region);
    xml_start(&x);
    xml_root(&x, "ListAllMyBucketsResult");
    xml_open(&x, "Owner");
    xml_owner(&x, r->s3->node_id);
    xml_close(&x, "Owner");
    xml_open(&x, "Buckets");
    do {
        status = object_bucket_list(r->s3->session, &req, a, &rep, &e);
        if (status == 0)
            status = put_buckets(r, rep.buckets, &page, &x);
        if (status)
            return reply_failed(r, status, &e);
        (void)snprintf(last, sizeof last, SLICE_FMT, SLICE_ARG(last_of(rep.buckets)));
        req.after = slice_str(last);
        arena_clear(a);
    } while (rep.truncated && !page.more);
    xml_close(&x, "Buckets");
    if (page.prefix.n)
        xml_text(&x, "Prefix", page.prefix);
    if (page.more) /* names of buckets hold nothing that a token would have to hide */
        xml_text(&x, "ContinuationToken", slice_str(page.after));
    xml_close(&x, "ListAllMyBucketsResult");
    if (x.status)
        return S3_ERR_INTERNAL;
    reply_send(r, 200, "application/xml", buf_view(&b));
    return S3_OK;
}

enum s3_error buckets_find(struct s3_request *r)
{
    struct wire_bucket_get_req req = {.name = r->bucket};
    struct wire_bucket_get_rep rep;
    struct err e = {0};
    int status = object_bucket_get(r->s3->session, &req, r->arena, &rep, &e);

    return status ? reply_failed(r, status, &e) : S3_OK;
}

/* The identity of a bucket is its number: a name may be given again. */
static struct slice text_of_id(uint64_t id, struct arena *a)
{
    return slice_str(arena_printf(a, "%llu", (unsigned long long)id));
}

struct slice buckets_identity(struct s3 *s3, struct slice bucket, struct arena *a)
{
    _cleanup_(arena_freep) struct arena *all = arena_new(PROPERTIES_ARENA);
    struct wire_bucket_get_req req = {.name = bucket};
    struct wire_bucket_get_rep rep;

    if (object_bucket_get(s3->session, &req, all, &rep, NULL))
        return SLICE_LIT("");
    return text_of_id(rep.id, a);
}

void buckets_removed(void *arg, uint64_t id)
{
    struct s3 *s3 = CAST_MAGIC(s3, arg, S3_MAGIC);
    _cleanup_(arena_freep) struct arena *a = arena_new(KIB);

    uploads_drop_bucket(s3->uploads, text_of_id(id, a));
}

bool buckets_property(struct s3_request *r, struct slice bucket, const char *name, struct slice *ret)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(PROPERTIES_ARENA); /* all of them may be many */
    struct wire_bucket_get_req req = {.name = bucket};
    struct wire_bucket_get_rep rep;

    if (bucket.n == 0 || object_bucket_get(r->s3->session, &req, a, &rep, NULL))
        return false;
    while (rep.settings.n) {
        struct slice value = slice_split(&rep.settings, '\n');

        if (slice_eq_str(slice_split(&value, '='), name)) {
            *ret = arena_dup(r->arena, value);
            return true;
        }
    }
    return false;
}

bool buckets_anonymous_read(struct s3_request *r, struct slice bucket)
{
    return object_anonymous_read(r->s3->objects, bucket);
}

enum s3_error s3_op_head_bucket(struct s3_request *r)
{
    enum s3_error error = buckets_find(r);

    if (error)
        return error;
    reply_header(r, "x-amz-bucket-region", slice_str(r->s3->region));
    reply_send(r, 200, "application/xml", SLICE_NULL);
    return S3_OK;
}

/* us-east-1 is written as the empty name, as S3 does. */
enum s3_error s3_op_get_bucket_location(struct s3_request *r)
{
    _cleanup_buf_ struct buf b = BUF_INIT(4 * KIB);
    struct xml x = {&b, 0};
    enum s3_error error = buckets_find(r);

    if (error)
        return error;
    xml_start(&x);
    xml_root(&x, "LocationConstraint");
    if (strcmp(r->s3->region, "us-east-1") != 0)
        xml_chars(&x, slice_str(r->s3->region));
    xml_close(&x, "LocationConstraint");
    if (x.status)
        return S3_ERR_INTERNAL;
    reply_send(r, 200, "application/xml", buf_view(&b));
    return S3_OK;
}
