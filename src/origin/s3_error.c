/*
 * What an answer that is no success means, and how it is told.
 *
 * The S3 code in the error document is looked up first, because services disagree on statuses; the status
 * decides when the code is unknown or there is no document (HEAD, proxies).
 *
 * Invariants: every status maps to a negative code; texts hold no control characters, whatever the origin
 * sent. Failure modes: none.
 */
#include "origin/s3_internal.h"

/* X(S3 code, class) */
#define S3_ERROR_TABLE(X)                                                                                    \
    X(NoSuchKey, -ENOENT)                                                                                    \
    X(NoSuchBucket, -ENOENT)                                                                                 \
    X(NoSuchVersion, -ENOENT)                                                                                \
    X(NoSuchUpload, ERR_ORIGIN_FAILED) /* the upload was aborted by someone: a new one may succeed */        \
    X(AccessDenied, ERR_ORIGIN_DENIED)                                                                       \
    X(AllAccessDisabled, ERR_ORIGIN_DENIED)                                                                  \
    X(AccountProblem, ERR_ORIGIN_DENIED)                                                                     \
    X(InvalidAccessKeyId, ERR_ORIGIN_DENIED)                                                                 \
    X(InvalidObjectState, ERR_ORIGIN_DENIED)                                                                 \
    X(SignatureDoesNotMatch, ERR_ORIGIN_DENIED)                                                              \
    X(RequestTimeTooSkewed, ERR_ORIGIN_DENIED)                                                               \
    X(ExpiredToken, ERR_ORIGIN_DENIED)                                                                       \
    X(InvalidToken, ERR_ORIGIN_DENIED)                                                                       \
    X(InvalidTokenId, ERR_ORIGIN_DENIED) /* MinIO's, also of those that have ended */                        \
    X(TokenRefreshRequired, ERR_ORIGIN_DENIED)                                                               \
    X(SlowDown, ERR_ORIGIN_BUSY)                                                                             \
    X(ServiceUnavailable, ERR_ORIGIN_BUSY)                                                                   \
    X(TooManyRequests, ERR_ORIGIN_BUSY)                                                                      \
    X(RequestLimitExceeded, ERR_ORIGIN_BUSY)                                                                 \
    X(Throttling, ERR_ORIGIN_BUSY)                                                                           \
    X(ThrottlingException, ERR_ORIGIN_BUSY)                                                                  \
    X(BandwidthLimitExceeded, ERR_ORIGIN_BUSY)                                                               \
    X(RequestTimeout, -ETIMEDOUT)                                                                            \
    X(InternalError, ERR_ORIGIN_FAILED)                                                                      \
    X(IncompleteBody, ERR_ORIGIN_SHORT)                                                                      \
    X(BadDigest, ERR_ORIGIN_SHORT)                                                                           \
    X(XAmzContentSHA256Mismatch, ERR_ORIGIN_SHORT)                                                           \
    X(PreconditionFailed, ERR_PRECONDITION)                                                                  \
    X(ConditionalRequestConflict, ERR_CONFLICT)                                                              \
    X(OperationAborted, ERR_CONFLICT)                                                                        \
    X(InvalidRange, ERR_RANGE)                                                                               \
    X(EntityTooLarge, -EFBIG)                                                                                \
    X(KeyTooLongError, -ENAMETOOLONG)                                                                        \
    X(MetadataTooLarge, -E2BIG)                                                                              \
    X(QuotaExceeded, -ENOSPC)                                                                                \
    X(XMinioStorageFull, -ENOSPC)                                                                            \
    X(NotImplemented, ERR_NOT_IMPLEMENTED)                                                                   \
    X(LoopDetected, ERR_ORIGIN_SETUP) /* another node's: trail.h */                                          \
    X(PermanentRedirect, ERR_ORIGIN_SETUP)                                                                   \
    X(AuthorizationHeaderMalformed, ERR_ORIGIN_SETUP)

static const struct web_error_row table[] = {
#define X(code, class) {#code, (class)},
    S3_ERROR_TABLE(X)
#undef X
};

int s3_error_class(int status, struct slice code)
{
    return web_error_lookup(table, ARRAY_SIZE(table), status, code);
}

bool s3_error_is_expired(const struct web_response *r, struct slice body)
{
    static const char *const codes[] = {"ExpiredToken", "InvalidToken", "InvalidTokenId",
                                        "TokenRefreshRequired"};
    struct web_error x;
    web_error_parse(body, &x);
    bool expired = r->status == 401 || (r->status == 400 && !x.code[0]); /* answers to HEAD have no code */
    for (size_t i = 0; i < ARRAY_SIZE(codes); i++)                       /* 400 of Amazon's, 403 of others */
        expired |= (r->status == 400 || r->status == 403) && strcmp(x.code, codes[i]) == 0;
    return expired;
}

int s3_error_of(const struct s3 *s, const struct web_response *r, struct slice body, struct err *e)
{
    struct web_error x;
    web_error_parse(body, &x);
    int class = r->is_in_vain ? ERR_ORIGIN_SETUP : s3_error_class(r->status, slice_str(x.code));
    const char *region = x.region[0] ? x.region : r->region;
    bool elsewhere = region[0] && strcmp(region, s->region) != 0;
    bool redirect = (r->status >= 300 && r->status < 400 && r->status != 304) ||
                    slice_eq_str(slice_str(x.code), "AuthorizationHeaderMalformed");
    if (elsewhere && (redirect || r->status == 400))
        return err_set(e, ERR_ORIGIN_SETUP, "%d %s: bucket %s is in region %s: set origin.region=%s",
                       r->status, x.code[0] ? x.code : r->reason, s->bucket, region, region);
    if (redirect && !x.code[0])
        return err_set(e, ERR_ORIGIN_SETUP, "%d %s: a redirect, which is not followed; check origin.endpoint",
                       r->status, r->reason);
    if (!x.code[0] && !x.message[0])
        web_error_line(body, x.message, sizeof(x.message));
    return web_error_set(e, class, r, x.code, x.message);
}
