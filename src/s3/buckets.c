/* ListBuckets, HeadBucket and GetBucketLocation. */
#include "s3/s3_internal.h"
#include "s3/xml.h"

#include "base/text.h"

/* Those that who asks may read. */
static int put_buckets(const struct s3_request *r, struct slice rest, struct xml *x, struct slice *ret_last)
{
    struct wire_bucket bucket;
    char date[32];
    int status;

    while ((status = wire_bucket_decode(&rest, &bucket)) == 0) {
        *ret_last = bucket.name;
        if (!user_may(r->user, USER_MAY_READ, bucket.name))
            continue;
        text_iso8601(bucket.created_ns, date);
        xml_open(x, "Bucket");
        xml_text(x, "Name", bucket.name);
        xml_text(x, "CreationDate", slice_str(date));
        xml_close(x, "Bucket");
    }
    return status == -ENOENT ? x->status : status;
}

enum s3_error s3_op_list_buckets(struct s3_request *r)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(S3_ARENA_BYTES);
    _cleanup_buf_ struct buf b = BUF_INIT(S3_XML_MAX_BYTES);
    struct wire_bucket_list_req req = {0};
    struct wire_bucket_list_rep rep;
    struct xml x = {&b, 0};
    struct err e = {0};
    int status;

    xml_start(&x);
    xml_root(&x, "ListAllMyBucketsResult");
    xml_open(&x, "Owner");
    xml_text(&x, "ID", slice_str(r->s3->node_id));
    xml_text(&x, "DisplayName", SLICE_LIT("forebay"));
    xml_close(&x, "Owner");
    xml_open(&x, "Buckets");
    do {
        status = object_bucket_list(r->s3->session, &req, a, &rep, &e);
        if (status == 0)
            status = put_buckets(r, rep.buckets, &x, &req.after);
        if (status)
            return reply_failed(r, status, &e);
    } while (rep.truncated);
    xml_close(&x, "Buckets");
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

bool buckets_property(struct s3_request *r, struct slice bucket, const char *name, struct slice *ret)
{
    struct wire_bucket_get_req req = {.name = bucket};
    struct wire_bucket_get_rep rep;

    if (bucket.n == 0 || object_bucket_get(r->s3->session, &req, r->arena, &rep, NULL))
        return false;
    while (rep.settings.n) {
        struct slice value = slice_split(&rep.settings, '\n');

        if (slice_eq_str(slice_split(&value, '='), name)) {
            *ret = value;
            return true;
        }
    }
    return false;
}

bool buckets_anonymous_read(struct s3_request *r, struct slice bucket)
{
    struct slice mode;

    return buckets_property(r, bucket, "anonymous", &mode) && slice_eq_str(mode, "read");
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
