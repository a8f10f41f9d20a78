/*
 * CreateBucket and DeleteBucket.
 *
 * 1. A bucket that still shows an object is not deleted; what lies at the origin of a mirror bucket is never
 * touched.
 */
#include "s3/s3_internal.h"
#include "s3/xml.h"

#include "base/text.h"
#include "namespace/bucket.h"

#define DOCUMENT_MAX_BYTES (64 * KIB)
#define SETTINGS_MAX_BYTES (16 * KIB)

/* Our own headers: the origin of a mirror bucket, and properties in the form of a query. */
#define ORIGIN_HEADER "x-forebay-origin"
#define SET_HEADER    "x-forebay-set"

/* Nothing that is asked for beside the region is left out. */
static int on_element(void *arg, const char *path, struct slice text)
{
    static const char root[] = "CreateBucketConfiguration";
    struct slice *location = arg;

    if (strcmp(path, root) == 0)
        return 0;
    if (strncmp(path, root, sizeof root - 1) != 0 || path[sizeof root - 1] != '/')
        return ERR_PROTOCOL;
    if (strcmp(path + sizeof root, "LocationConstraint") != 0)
        return ERR_NOT_IMPLEMENTED;
    if (location->p)
        return ERR_PROTOCOL;
    *location = slice_of(slice_dup(slice_trim(text)), slice_trim(text).n);
    return 0;
}

/* The document, if there is one, may only name the region that the node has. */
static enum s3_error check_location(struct s3_request *r)
{
    _cleanup_buf_ struct buf document = BUF_INIT(DOCUMENT_MAX_BYTES);
    struct slice location = SLICE_NULL;
    enum s3_error error = put_document(r, &document, /* with_checksum= */ true);
    int status;

    if (error || document.n == 0)
        return error;
    status = xml_parse(buf_view(&document), on_element, &location, NULL);
    if (status == ERR_NOT_IMPLEMENTED)
        error = reply_refuse(r, S3_ERR_NOT_IMPLEMENTED,
                             "CreateBucketConfiguration can have nothing but LocationConstraint here; tags "
                             "are set by PutBucketTagging");
    else if (status)
        error = S3_ERR_MALFORMED_XML;
    else if (location.n && !slice_eq_str(location, r->s3->region))
        error = S3_ERR_INVALID_LOCATION;
    free((void *)(uintptr_t)location.p);
    return error;
}

/* Headers that ask for what is not here. */
static enum s3_error check_headers(struct s3_request *r)
{
    struct slice acl = request_header(r, "x-amz-acl"), owner = request_header(r, "x-amz-object-ownership");
    struct slice lock = request_header(r, "x-amz-bucket-object-lock-enabled");
    const struct slice grant = SLICE_LIT("x-amz-grant-");

    if (acl.p && !slice_eq_str(acl, "private"))
        return S3_ERR_NO_ACLS;
    if (owner.p && !slice_eq_str(owner, "BucketOwnerEnforced"))
        return reply_refuse(r, S3_ERR_NOT_IMPLEMENTED,
                            "x-amz-object-ownership can only be BucketOwnerEnforced");
    if (lock.p && !slice_eq_case(lock, SLICE_LIT("false")))
        return reply_refuse(r, S3_ERR_NOT_IMPLEMENTED, "object lock is not implemented here");
    for (size_t i = 0; i < r->http->n_headers; i++)
        if (slice_eq_case(slice_sub(r->http->headers[i].name, 0, grant.n), grant))
            return S3_ERR_NO_ACLS;
    return S3_OK;
}

static int add_settings(struct s3_request *r, struct slice header, struct buf *b)
{
    struct http_pair *pairs;
    size_t n;
    int status = http_parse_query(header, r->arena, &pairs, &n);

    for (size_t i = 0; i < n && status == 0; i++)
        status = slice_find(pairs[i].value, '\n') >= 0
                     ? -EINVAL
                     : buf_printf(b, SLICE_FMT "=" SLICE_FMT "\n", SLICE_ARG(pairs[i].name),
                                  SLICE_ARG(pairs[i].value));
    return status;
}

static enum s3_error read_settings(struct s3_request *r, struct buf *b)
{
    struct slice origin = request_header(r, ORIGIN_HEADER);
    bool any = origin.p || request_header(r, SET_HEADER).p;

    if (any && auth_is_v2(&r->claim))
        return reply_refuse(r, S3_ERR_ACCESS_DENIED,
                            ORIGIN_HEADER " and " SET_HEADER
                                          " must be signed, which takes signature version 4");
    int status = origin.n ? buf_printf(b, "origin=" SLICE_FMT "\n", SLICE_ARG(origin)) : 0;

    for (size_t i = 0; i < r->http->n_headers && status == 0; i++)
        if (slice_eq_case(r->http->headers[i].name, SLICE_LIT(SET_HEADER)))
            status = add_settings(r, r->http->headers[i].value, b);
    return status ? reply_refuse(r, S3_ERR_INVALID_REQUEST,
                                 SET_HEADER " must be NAME=VALUE&..., encoded as in URLs")
                  : S3_OK;
}

enum s3_error s3_op_create_bucket(struct s3_request *r)
{
    _cleanup_buf_ struct buf settings = BUF_INIT(SETTINGS_MAX_BYTES);
    struct wire_bucket_create_req req = {.name = r->bucket};
    struct wire_bucket_create_rep rep;
    struct err e = {0};
    enum s3_error error = check_headers(r);
    int status;

    if (bucket_check_name(r->bucket, &e) < 0)
        return reply_refuse(r, S3_ERR_INVALID_BUCKET_NAME, arena_str(r->arena, slice_str(e.text)));
    if (!error)
        error = check_location(r);
    if (!error)
        error = read_settings(r, &settings);
    if (error)
        return error;
    req.settings = buf_view(&settings);
    status = object_bucket_create(r->s3->session, &req, r->arena, &rep, &e);
    /* Making one's own bucket again succeeds in this region of S3, and changes nothing. */
    if (status == ERR_BUCKET_EXISTS && settings.n == 0 && strcmp(r->s3->region, "us-east-1") == 0)
        status = 0;
    if (status == ERR_BAD_OPTION)
        return reply_refuse(r, S3_ERR_INVALID_REQUEST, arena_str(r->arena, slice_str(e.text)));
    if (status)
        return reply_failed(r, status, &e);
    reply_header(r, "Location", slice_str(arena_printf(r->arena, "/" SLICE_FMT, SLICE_ARG(r->bucket))));
    reply_send(r, 200, NULL, SLICE_NULL);
    return S3_OK;
}

/* Whether the bucket shows any object. */
static enum s3_error check_empty(struct s3_request *r)
{
    struct wire_list_req req = {.bucket = r->bucket, .max = 1, .flags = WIRE_FRESH};
    struct wire_list_rep rep;
    struct err e = {0};
    int status = object_list(r->s3->session, &req, r->arena, &rep, &e);

    if (status)
        return reply_failed(r, status, &e);
    return rep.n_entries ? S3_ERR_BUCKET_NOT_EMPTY : S3_OK;
}

enum s3_error s3_op_delete_bucket(struct s3_request *r)
{
    struct wire_bucket_remove_req req = {.name = r->bucket};
    struct wire_bucket_remove_rep rep;
    struct err e = {0};
    enum s3_error error = check_empty(r);
    int status;

    if (error)
        return error;
    status = object_bucket_remove(r->s3->session, &req, r->arena, &rep, &e);
    if (status == -ENOTEMPTY)
        return S3_ERR_BUCKET_NOT_EMPTY;
    if (status)
        return reply_failed(r, status, &e);
    reply_send(r, 204, NULL, SLICE_NULL);
    return S3_OK;
}
