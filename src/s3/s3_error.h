/*
 * The errors that S3 clients see. One row makes the enum, the code of the XML answer, its HTTP status and the
 * sentence that is sent when nothing more exact is known.
 *
 * Pure; any thread.
 */
#pragma once

#include "base/buf.h"
#include "base/err.h"

/* X(NAME, code, HTTP status, message) */
#define S3_ERRORS(X)                                                                                         \
    X(ACCESS_DENIED, "AccessDenied", 403, "Access denied")                                                   \
    X(ACCESS_FORBIDDEN, "AccessForbidden", 403, "The bucket's CORS rules do not allow this request")         \
    X(AUTH_MALFORMED, "AuthorizationHeaderMalformed", 400, "The Authorization header is not well formed")    \
    X(QUERY_AUTH_MALFORMED, "AuthorizationQueryParametersError", 400,                                        \
      "The signature parameters of the URL are not well formed")                                             \
    X(BAD_GATEWAY, "BadGateway", 502, "The bucket's origin cannot be used as it is set up")                  \
    X(BAD_DIGEST, "BadDigest", 400, "The body does not match the checksum that came with it")                \
    X(BUCKET_NOT_EMPTY, "BucketNotEmpty", 409, "The bucket still has objects")                               \
    X(BUCKET_OWNED, "BucketAlreadyOwnedByYou", 409, "The bucket exists already")                             \
    X(CONFLICT, "OperationAborted", 409, "Someone else changed the object at the same time")                 \
    X(ENTITY_TOO_LARGE, "EntityTooLarge", 400, "The object is larger than the largest allowed")              \
    X(ENTITY_TOO_SMALL, "EntityTooSmall", 400, "A part other than the last is smaller than 5 MiB")           \
    X(INCOMPLETE_BODY, "IncompleteBody", 400, "The body is not as long as its headers say")                  \
    X(INTERNAL, "InternalError", 500, "The request failed inside the server")                                \
    X(INVALID_ACCESS_KEY, "InvalidAccessKeyId", 403, "There is no such access key")                          \
    X(INVALID_ARGUMENT, "InvalidArgument", 400, "An argument has a value that is not allowed")               \
    X(INVALID_BUCKET_NAME, "InvalidBucketName", 400, "The bucket name is not allowed")                       \
    X(INVALID_DIGEST, "InvalidDigest", 400, "Content-MD5 is not the base64 form of 16 bytes")                \
    X(INVALID_LOCATION, "InvalidLocationConstraint", 400, "The bucket can only be in this node's region")    \
    X(INVALID_PART, "InvalidPart", 400, "A part in the list was not uploaded, or has another ETag")          \
    X(INVALID_PART_NUMBER, "InvalidPartNumber", 416, "The object has no part of that number")                \
    X(INVALID_PART_ORDER, "InvalidPartOrder", 400, "Part numbers must rise from one part to the next")       \
    X(INVALID_RANGE, "InvalidRange", 416, "The range lies outside the object")                               \
    X(INVALID_REQUEST, "InvalidRequest", 400, "The request is not valid")                                    \
    X(INVALID_STORAGE_CLASS, "InvalidStorageClass", 400, "Only the storage class STANDARD is available")     \
    X(INVALID_TAG, "InvalidTag", 400, "A tag is not allowed")                                                \
    X(INVALID_URI, "InvalidURI", 400, "The path or query cannot be decoded")                                 \
    X(INVALID_POLICY, "InvalidPolicyDocument", 400, "The policy of the form is not one")                     \
    X(KEY_TOO_LONG, "KeyTooLongError", 400, "The key is longer than 1024 bytes")                             \
    X(LOOP, "LoopDetected", 508, "The bucket's origin leads back to the bucket itself")                      \
    X(MALFORMED_POST, "MalformedPOSTRequest", 400, "The body is not a well formed multipart/form-data")      \
    X(MALFORMED_TRAILER, "MalformedTrailerError", 400, "The trailer is not the one that was announced")      \
    X(MALFORMED_XML, "MalformedXML", 400, "The XML of the body is not what this operation takes")            \
    X(METADATA_TOO_LARGE, "MetadataTooLarge", 400, "The metadata headers are larger than allowed")           \
    X(METHOD_NOT_ALLOWED, "MethodNotAllowed", 405, "The method is not allowed on this resource")             \
    X(MISSING_LENGTH, "MissingContentLength", 411, "The request must say how long its body is")              \
    X(NO_ACCESS_BLOCK, "NoSuchPublicAccessBlockConfiguration", 404, "The bucket has no public access block") \
    X(NO_ACLS, "AccessControlListNotSupported", 400, "The bucket allows no ACL other than private")          \
    X(NO_CORS, "NoSuchCORSConfiguration", 404, "The bucket has no CORS configuration")                       \
    X(NO_ENCRYPTION, "ServerSideEncryptionConfigurationNotFoundError", 404,                                  \
      "The bucket has no encryption configuration")                                                          \
    X(NO_LIFECYCLE, "NoSuchLifecycleConfiguration", 404, "The bucket has no lifecycle configuration")        \
    X(NO_OBJECT_LOCK, "ObjectLockConfigurationNotFoundError", 404,                                           \
      "The bucket has no object lock configuration")                                                         \
    X(NO_OWNERSHIP, "OwnershipControlsNotFoundError", 404, "The bucket has no ownership controls")           \
    X(NO_POLICY, "NoSuchBucketPolicy", 404, "The bucket has no policy")                                      \
    X(NO_REPLICATION, "ReplicationConfigurationNotFoundError", 404,                                          \
      "The bucket has no replication configuration")                                                         \
    X(NO_TAGS, "NoSuchTagSet", 404, "The bucket has no tags")                                                \
    X(NO_WEBSITE, "NoSuchWebsiteConfiguration", 404, "The bucket has no website configuration")              \
    X(NO_SUCH_BUCKET, "NoSuchBucket", 404, "There is no such bucket")                                        \
    X(NO_SUCH_KEY, "NoSuchKey", 404, "There is no such key")                                                 \
    X(NO_SUCH_UPLOAD, "NoSuchUpload", 404, "There is no such multipart upload")                              \
    X(NOT_IMPLEMENTED, "NotImplemented", 501, "This function of S3 is not implemented here")                 \
    X(NOT_MODIFIED, "NotModified", 304, "Not modified")                                                      \
    X(PRECONDITION, "PreconditionFailed", 412, "A condition in the request headers does not hold")           \
    X(REQUEST_EXPIRED, "AccessDenied", 403, "Request has expired")                                           \
    X(REQUEST_SKEWED, "RequestTimeTooSkewed", 403,                                                           \
      "The time of the request is more than 15 minutes away from the server's")                              \
    X(REQUEST_TIMEOUT, "RequestTimeout", 400, "The body stopped coming; the connection is closed")           \
    X(SIGNATURE, "SignatureDoesNotMatch", 403,                                                               \
      "The signature is not the one that this request and the secret key give")                              \
    X(SHA256_MISMATCH, "XAmzContentSHA256Mismatch", 400,                                                     \
      "The body does not have the hash that x-amz-content-sha256 gives")                                     \
    X(SLOW_DOWN, "SlowDown", 503, "The origin asked to slow down")                                           \
    X(TOO_MANY_UPLOADS, "SlowDown", 503, "Too many multipart uploads are open; complete or abort some")      \
    X(QUOTA_EXCEEDED, "QuotaExceeded", 403, "The bucket's quota has no room for this")                       \
    X(UNAVAILABLE, "ServiceUnavailable", 503, "The service or its origin cannot answer now")

enum s3_error {
    S3_OK,
#define X(name, code, status, message) S3_ERR_##name,
    S3_ERRORS(X)
#undef X
};

struct s3_error_info {
    const char *code;
    int status;
    const char *message;
};

/* Row of an error other than S3_OK. */
const struct s3_error_info *s3_error_info(enum s3_error error);
/* What a code of the layers below (base/err.h) means to an S3 client; `code` is not 0. */
enum s3_error s3_error_from(int code);
/* Whether the text that came with such a code tells an S3 client more than the row's sentence. */
bool s3_error_wants_text(int code);
/* The <Error> document. `extra` is XML that goes in as it is and may be empty. */
int s3_error_xml(struct buf *b, enum s3_error error, struct slice message, struct slice resource,
                 const char *request_id, struct slice extra);
/* The same without the <?xml ...?> line, which was sent before. */
int s3_error_xml_root(struct buf *b, enum s3_error error, struct slice message, struct slice resource,
                      const char *request_id, struct slice extra);
