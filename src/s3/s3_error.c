/*
 * S3's error table, and what the codes of the layers below mean in it.
 *
 * 1. Every code of base/err.h has an answer: what has none of its own becomes InternalError, never a success.
 * 2. Whose fault it is decides: what an origin does not take of this request is 400 or 403; an origin that
 * cannot be reached now, 503, which clients try again; one that cannot be used as the bucket says (another
 * region, a certificate that nobody vouches for, a redirect), 502; one that makes no sense, 500.
 * 3. The origin's words reach the client; texts that name local files or descriptors do not.
 */
#include "s3/s3_error.h"

#include "s3/xml.h"

static const struct s3_error_info rows[] = {[S3_OK] = {"", 200, ""},
#define X(name, code, status, message) [S3_ERR_##name] = {code, status, message},
                                            S3_ERRORS(X)
#undef X
};

/* X(code below, error for the client, its text is for clients) */
#define CODES(X)                                                                                             \
    X(-ENOENT, NO_SUCH_KEY, false)                                                                           \
    X(-EISDIR, NO_SUCH_KEY, false)                                                                           \
    X(ERR_NO_BUCKET, NO_SUCH_BUCKET, false)                                                                  \
    X(ERR_BUCKET_EXISTS, BUCKET_OWNED, false)                                                                \
    X(ERR_PRECONDITION, PRECONDITION, false)                                                                 \
    X(-EEXIST, PRECONDITION, false)                                                                          \
    X(ERR_NOT_MODIFIED, NOT_MODIFIED, false)                                                                 \
    X(ERR_RANGE, INVALID_RANGE, false)                                                                       \
    X(ERR_CONFLICT, CONFLICT, false)                                                                         \
    X(ERR_VERSION_CHANGED, UNAVAILABLE, true)                                                                \
    X(ERR_ORIGIN_DENIED, ACCESS_DENIED, true)                                                                \
    X(ERR_ORIGIN_BUSY, SLOW_DOWN, true)                                                                      \
    X(ERR_ORIGIN_DOWN, UNAVAILABLE, true)                                                                    \
    X(-ETIMEDOUT, UNAVAILABLE, true)                                                                         \
    X(ERR_ORIGIN_FAILED, INTERNAL, true)                                                                     \
    X(ERR_ORIGIN_SETUP, BAD_GATEWAY, true)                                                                   \
    X(ERR_ORIGIN_REFUSED, INVALID_REQUEST, true)                                                             \
    X(ERR_ORIGIN_SHORT, INTERNAL, true)                                                                      \
    X(ERR_NOT_IMPLEMENTED, NOT_IMPLEMENTED, true)                                                            \
    X(-EOPNOTSUPP, NOT_IMPLEMENTED, true)                                                                    \
    X(ERR_UNAUTHENTICATED, ACCESS_DENIED, false)                                                             \
    X(-EACCES, INTERNAL, false) /* of the node's own files: who may do what is settled before, here */       \
    X(-EPERM, ACCESS_DENIED, true)                                                                           \
    X(-EROFS, ACCESS_DENIED, true)                                                                           \
    X(ERR_CLOSED, UNAVAILABLE, true)                                                                         \
    X(-ECANCELED, UNAVAILABLE, false)                                                                        \
    X(ERR_NO_ROUTE, UNAVAILABLE, false)                                                                      \
    X(-EBUSY, UNAVAILABLE, false)                                                                            \
    X(-EAGAIN, UNAVAILABLE, false)                                                                           \
    X(-ENOMEM, UNAVAILABLE, false)                                                                           \
    X(-ENOSPC, UNAVAILABLE, true)                                                                            \
    X(ERR_NOT_ADMITTED, UNAVAILABLE, true)                                                                   \
    X(-EDQUOT, QUOTA_EXCEEDED, true)                                                                         \
    X(-ENAMETOOLONG, KEY_TOO_LONG, false)                                                                    \
    X(-E2BIG, METADATA_TOO_LARGE, false)                                                                     \
    X(-EFBIG, ENTITY_TOO_LARGE, false)                                                                       \
    X(-EINVAL, INVALID_ARGUMENT, true)                                                                       \
    X(-ENOTDIR, INVALID_ARGUMENT, true)                                                                      \
    X(-ENOTEMPTY, INVALID_ARGUMENT, true)                                                                    \
    X(-EILSEQ, INVALID_ARGUMENT, true)                                                                       \
    X(ERR_BAD_OPTION, INVALID_ARGUMENT, true)

static const struct {
    int code;
    enum s3_error error;
    bool wants_text;
} codes[] = {
#define X(code, name, wants_text) {code, S3_ERR_##name, wants_text},
    CODES(X)
#undef X
};

const struct s3_error_info *s3_error_info(enum s3_error error)
{
    assert(error > S3_OK && (size_t)error < ARRAY_SIZE(rows));
    return &rows[error];
}

enum s3_error s3_error_from(int code)
{
    assert(code != 0);
    for (size_t i = 0; i < ARRAY_SIZE(codes); i++)
        if (codes[i].code == code)
            return codes[i].error;
    return S3_ERR_INTERNAL;
}

bool s3_error_wants_text(int code)
{
    for (size_t i = 0; i < ARRAY_SIZE(codes); i++)
        if (codes[i].code == code)
            return codes[i].wants_text;
    return false;
}

int s3_error_xml_root(struct buf *b, enum s3_error error, struct slice message, struct slice resource,
                      const char *request_id, struct slice extra)
{
    const struct s3_error_info *info = s3_error_info(error);
    struct xml x = {b, 0};

    xml_open(&x, "Error");
    xml_text(&x, "Code", slice_str(info->code));
    xml_text(&x, "Message", message.n ? message : slice_str(info->message));
    xml_text(&x, "Resource", resource);
    xml_text(&x, "RequestId", slice_str(request_id));
    xml_raw(&x, extra);
    xml_close(&x, "Error");
    return x.status;
}

int s3_error_xml(struct buf *b, enum s3_error error, struct slice message, struct slice resource,
                 const char *request_id, struct slice extra)
{
    struct xml x = {b, 0};

    xml_start(&x);
    return x.status ? x.status : s3_error_xml_root(b, error, message, resource, request_id, extra);
}
