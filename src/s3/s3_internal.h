/* What the files of the S3 front end share: the front end itself, one request, and the table of operations.
 */
#pragma once

#include "s3/auth.h"
#include "s3/body.h"
#include "s3/s3.h"
#include "s3/s3_error.h"

#include "base/budget.h"

#include <stdatomic.h>

#define S3_MAGIC          0x53335f33u
#define S3_KEY_MAX_BYTES  1024
#define S3_HEAD_MAX_BYTES (24 * KIB)  /* headers of a response */
#define S3_PIECE_BYTES    (128 * KIB) /* a PUT holds two of these, and so does a part */
#define S3_ARENA_BYTES    (16 * MIB)  /* of a page of a listing, or of one fetch */
#define S3_XML_MAX_BYTES  (8 * MIB)   /* a page of 1000 keys of 1024 bytes, each byte escaped */
#define S3_LIST_MAX       1000
#define S3_DEFAULT_TYPE   "binary/octet-stream"

/* X(NAME, name in metrics and logs, function s3_op_*, right that it needs in the request's bucket) */
#define S3_OPS(X)                                                                                            \
    X(LIST_BUCKETS, "ListBuckets", list_buckets, ANY)                                                        \
    X(HEAD_BUCKET, "HeadBucket", head_bucket, READ)                                                          \
    X(GET_BUCKET_LOCATION, "GetBucketLocation", get_bucket_location, READ)                                   \
    X(LIST_OBJECTS, "ListObjects", list_objects, READ)                                                       \
    X(LIST_OBJECTS_V2, "ListObjectsV2", list_objects_v2, READ)                                               \
    X(DELETE_OBJECTS, "DeleteObjects", delete_objects, WRITE)                                                \
    X(GET_OBJECT, "GetObject", get_object, READ)                                                             \
    X(HEAD_OBJECT, "HeadObject", head_object, READ)                                                          \
    X(PUT_OBJECT, "PutObject", put_object, WRITE)                                                            \
    X(COPY_OBJECT, "CopyObject", copy_object, WRITE)                                                         \
    X(DELETE_OBJECT, "DeleteObject", delete_object, WRITE)                                                   \
    X(CREATE_MULTIPART_UPLOAD, "CreateMultipartUpload", create_multipart_upload, WRITE)                      \
    X(UPLOAD_PART, "UploadPart", upload_part, WRITE)                                                         \
    X(UPLOAD_PART_COPY, "UploadPartCopy", upload_part_copy, WRITE)                                           \
    X(COMPLETE_MULTIPART_UPLOAD, "CompleteMultipartUpload", complete_multipart_upload, WRITE)                \
    X(ABORT_MULTIPART_UPLOAD, "AbortMultipartUpload", abort_multipart_upload, WRITE)                         \
    X(LIST_PARTS, "ListParts", list_parts, WRITE)                                                            \
    X(LIST_MULTIPART_UPLOADS, "ListMultipartUploads", list_multipart_uploads, WRITE)                         \
    X(LIST_OBJECT_VERSIONS, "ListObjectVersions", list_object_versions, READ)                                \
    X(GET_OBJECT_ATTRIBUTES, "GetObjectAttributes", get_object_attributes, READ)                             \
    X(GET_ACL, "GetAcl", get_acl, READ)                                                                      \
    X(PUT_ACL, "PutAcl", put_acl, WRITE)                                                                     \
    X(GET_OBJECT_LOCK, "GetObjectLock", get_object_lock, READ)                                               \
    X(GET_BUCKET_SETTING, "GetBucketSetting", get_bucket_setting, READ)                                      \
    X(DELETE_BUCKET_SETTING, "DeleteBucketSetting", delete_bucket_setting, WRITE)                            \
    X(PUT_BUCKET_SETTING, "PutBucketSetting", put_bucket_setting, MANAGE)                                    \
    X(GET_OBJECT_TAGGING, "GetObjectTagging", get_object_tagging, READ)                                      \
    X(PUT_OBJECT_TAGGING, "PutObjectTagging", put_object_tagging, WRITE)                                     \
    X(DELETE_OBJECT_TAGGING, "DeleteObjectTagging", delete_object_tagging, WRITE)                            \
    X(PREFLIGHT, "Preflight", preflight, ANY)                                                                \
    X(POST_OBJECT, "PostObject", post_object, ANY)                                                           \
    X(CREATE_BUCKET, "CreateBucket", create_bucket, MANAGE)                                                  \
    X(DELETE_BUCKET, "DeleteBucket", delete_bucket, MANAGE)

/* Settings of buckets (settings.c); those of kept.c can be made, the others are never set here.
 * X(query parameter, error when nothing is set or OK, the answer's root with OK, XML inside it) */
#define S3_SETTINGS(X)                                                                                       \
    X("accelerate", OK, "AccelerateConfiguration", "")                                                       \
    X("cors", ERR_NO_CORS, NULL, "")                                                                         \
    X("encryption", ERR_NO_ENCRYPTION, NULL, "")                                                             \
    X("lifecycle", ERR_NO_LIFECYCLE, NULL, "")                                                               \
    X("logging", OK, "BucketLoggingStatus", "")                                                              \
    X("notification", OK, "NotificationConfiguration", "")                                                   \
    X("object-lock", ERR_NO_OBJECT_LOCK, NULL, "")                                                           \
    X("ownershipControls", ERR_NO_OWNERSHIP, NULL, "")                                                       \
    X("policy", ERR_NO_POLICY, NULL, "")                                                                     \
    X("policyStatus", ERR_NO_POLICY, NULL, "")                                                               \
    X("publicAccessBlock", ERR_NO_ACCESS_BLOCK, NULL, "")                                                    \
    X("replication", ERR_NO_REPLICATION, NULL, "")                                                           \
    X("requestPayment", OK, "RequestPaymentConfiguration", "<Payer>BucketOwner</Payer>")                     \
    X("tagging", ERR_NO_TAGS, NULL, "")                                                                      \
    X("versioning", OK, "VersioningConfiguration", "")                                                       \
    X("website", ERR_NO_WEBSITE, NULL, "")

/* Those of them that can be made. X(query parameter, property of the bucket, reader in kept.c) */
#define S3_KEPT(X)                                                                                           \
    X("cors", "s3.cors", keep_cors)                                                                          \
    X("lifecycle", "s3.lifecycle", keep_lifecycle)                                                           \
    X("tagging", "s3.tags", keep_tags)

enum s3_op {
    S3_OP_NONE, /* refused before it was known what is wanted */
#define X(name, text, function, right) S3_OP_##name,
    S3_OPS(X)
#undef X
        S3_OP_COUNT
};

#define S3_STATUSES 8 /* statuses whose series are kept per operation */

struct s3 {
    uint32_t magic;
    struct object_service *objects;
    struct object_session *session; /* of all requests; each closes what it opens */
    char *region, *access_key, *secret_key, *node_id, *domain;
    char *id_lines; /* of each answer's head: what stands behind the request's id */
    struct auth_keys keys;
    struct uploads *uploads;
    struct pulser *pulser;
    struct budget *documents;     /* memory for what clients send as XML */
    atomic_bool beyond_documents; /* a request takes more than that: one at a time */
    struct hasher *hasher;        /* NULL: MD5s are computed by who receives the bytes */
    struct expirer *expirer;      /* NULL: lifecycle rules are not carried out */
    struct metric_series *seconds[S3_OP_COUNT];
    struct metric_series *requests[S3_OP_COUNT][S3_STATUSES];
};

/* One request, from its head until the answer is complete or left to a tail. */
struct s3_request {
    struct s3 *s3;
    struct http_conn *conn;
    const struct http_request *http;
    struct arena *arena; /* the connection's: small things only */
    uint64_t started_ns;
    char id[17];
    struct slice path, bucket, key; /* decoded; empty when the path does not go so far */
    struct slice host_bucket;       /* that the Host header names; empty: path style */
    struct http_pair *query;
    size_t n_query;
    struct auth_claim claim;
    struct user *user; /* who asks, a reference; NULL: the node's own pair, or nobody */
    bool anonymous;
    enum s3_op op;
    struct buf head;         /* header lines of the response */
    int status;              /* sent, or 0 */
    struct gate_pass pass;   /* limits and shares */
    uint64_t tail_bytes;     /* that a tail sends after the request left the gate */
    uint64_t document_bytes; /* taken from the documents' budget */
    bool beyond_documents;   /* it is the one that takes more */
    bool parked;             /* a tail sends the rest and counts the request */
    struct slice message;    /* of the error, in the arena; empty: the table's */
    struct slice extra;      /* XML inside <Error>, in the arena */
};

/* An operation: answers, and gives S3_OK; or gives the error to answer with, before any head was sent. After
 * a head was sent a failure closes the connection with the body cut short, and S3_OK is given. */
typedef enum s3_error (*s3_op_fn)(struct s3_request *r);
#define X(name, text, function, right) enum s3_error s3_op_##function(struct s3_request *r);
S3_OPS(X)
#undef X

/* ---- route.c: pure ---- */

/* Cuts the decoded path into bucket and key. INVALID_URI, KEY_TOO_LONG. */
enum s3_error route_path(struct slice path, struct slice *ret_bucket, struct slice *ret_key);
/* The bucket in the value of a Host header, "BUCKET.DOMAIN[:PORT]" in any case; empty when it is another
 * host. */
struct slice route_host(struct slice host, struct slice domain);
#define ROUTE_EMPTY_VERSION "Version id cannot be the empty string"
/* Which operation a request means. METHOD_NOT_ALLOWED; NOT_IMPLEMENTED with what is not in *ret_reason
 * (static text or NULL); INVALID_ARGUMENT with why in *ret_reason. */
enum s3_error route_op(const struct http_request *http, bool has_bucket, bool has_key,
                       const struct http_pair *query, size_t n_query, enum s3_op *ret_op,
                       const char **ret_reason);
/* Row of S3_SETTINGS that the query asks for, or -1. */
ssize_t route_setting(const struct http_pair *query, size_t n_query);
/* Property of the bucket that keeps the setting of this query parameter; NULL: it cannot be made. */
const char *route_kept_property(const char *parameter);
static inline const struct http_pair *route_query(const struct http_pair *query, size_t n_query,
                                                  const char *name)
{
    return n_query == 0 ? NULL : http_pair_named(query, n_query, slice_str(name));
}

/* ---- url_headers.c ---- */

/* Puts the headers in the request's URL, whose signature was verified, among those of its head, in the arena.
 * INVALID_ARGUMENT, INVALID_REQUEST. */
enum s3_error url_headers_take(struct s3_request *r);

/* ---- reply.c ---- */

/* First value of a query parameter, SLICE_NULL when absent. */
static inline struct slice request_query(const struct s3_request *r, const char *name)
{
    const struct http_pair *p = route_query(r->query, r->n_query, name);

    return p ? slice_of(p->value.p ? p->value.p : "", p->value.n) : SLICE_NULL;
}
static inline struct slice request_header(const struct s3_request *r, const char *name)
{
    return http_header(r->http, name);
}

/* Header lines that are right as they stand. */
void reply_fixed(struct s3_request *r, struct slice lines);
/* One header line of the response. Values with control characters are left out. */
void reply_line(struct s3_request *r, struct slice name, struct slice value);
static inline void reply_header(struct s3_request *r, const char *name, struct slice value)
{
    reply_line(r, slice_str(name), value);
}
/* An ETag as clients see it: in quotes, but weak ones (W/"...") as they are. Returns `ret`. */
#define REPLY_ETAG_TEXT_MAX (128 + 8) /* ORIGIN_ETAG_MAX and quotes */
char *reply_etag_text(struct slice etag, char ret[REPLY_ETAG_TEXT_MAX]);
void reply_etag(struct s3_request *r, struct slice etag);
/* The header lines that an answer of this type would have now, appended; nothing is sent. `ret` must hold
 * S3_HEAD_MAX_BYTES. */
void reply_lines(struct s3_request *r, const char *type, struct buf *ret);
/* Head of a response with n_bytes of body to come. */
int reply_head(struct s3_request *r, int status, uint64_t n_bytes);
/* Head and body in one go; type NULL for none. */
void reply_send(struct s3_request *r, int status, const char *type, struct slice body);
/* The address of the request's object as its client reaches it; `host`: what the client calls us, without one
 * the path alone. Appends. -E2BIG. */
#define REPLY_LOCATION_MAX (4 * KIB)
int reply_location(const struct s3_request *r, struct slice host, struct buf *b);
/* What an error says it is about: the path, cut to what a key can be. */
struct slice reply_resource(const struct s3_request *r);
/* The XML error answer. */
void reply_error(struct s3_request *r, enum s3_error error);
/* Sets the message of an error and gives it: `return reply_refuse(r, S3_ERR_X, "...")`. */
enum s3_error reply_refuse(struct s3_request *r, enum s3_error error, const char *message);
/* The same for a failure of the layers below; logs what is our or the origin's fault. */
enum s3_error reply_failed(struct s3_request *r, int code, const struct err *e);
/* Looks the metrics up that every request needs. */
void reply_prepare_metrics(struct s3 *s3);
/* Counts an answered request. */
void reply_count(struct s3 *s3, enum s3_op op, int status, uint64_t started_ns);

/* ---- put.c ---- */

/* Whether a header of this name is kept with an object. */
bool put_is_kept(struct slice name);
/* Content type and "name: value\n" lines of the request's headers that are kept with an object, in the arena.
 * Also refuses headers that ask for what is not there. */
enum s3_error put_metadata(struct s3_request *r, struct slice *ret_type, struct slice *ret_meta);
/* NOT_IMPLEMENTED when the request has a header about a key of its client's. */
enum s3_error put_refuse_keys(struct s3_request *r);
/* Whether objects of the request's bucket may have an end of their own. It takes the bucket's ttl: that is
 * what makes the node look for objects that have ended. */
bool put_may_end(struct s3_request *r);
/* What x-forebay-ttl asks for, once put_metadata has accepted it; 0 without it. */
uint64_t put_ttl_ms(const struct s3_request *r);
/* Writes the request's object from these bytes, as its headers say, and puts the ETag into the answer, which
 * is left to the caller. */
enum s3_error put_stream(struct s3_request *r, body_source_fn source, void *arg, struct wire_attr *ret);
/* `meta` with one of our own lines (origin/meta.h) set, in the arena. METADATA_TOO_LARGE. */
enum s3_error put_own_line(struct s3_request *r, struct slice meta, const char *name, struct slice value,
                           struct slice *ret);
/* A checksum in its kept form, "SUFFIX BASE64", in the arena; `sum` has the bytes of its kind. */
struct slice put_checksum_text(struct arena *a, enum checksum_kind kind, const uint8_t *sum);
/* The header line of a kept checksum ("-N" behind it: one of the parts'), and its type; type NULL: without.
 */
void put_kept_checksum(struct s3_request *r, struct slice kept, const char *type);
/* The type of a kept checksum. */
const char *put_kept_type(struct slice kept);
/* Whether the ETag of an object of `size` bytes that is written to the request's bucket is the MD5 of its
 * bytes, and is computed here beside the writing: WIRE_ETAG is for the sink then. Small ones are left to who
 * writes them. */
bool put_hashes(struct s3_request *r, uint64_t size);
/* The body reader of the request. Finish with body_fini when S3_OK. */
enum s3_error put_body(struct s3_request *r, struct body *ret);
/* A whole body of XML, within the document's maximum and a minute (REQUEST_TIMEOUT); its memory, and that of
 * what is read out of it, is taken from the documents' budget until the request ends. with_checksum: whether
 * x-amz-checksum headers are about it. SLOW_DOWN. */
enum s3_error put_document(struct s3_request *r, struct buf *document, bool with_checksum);
/* Gives back what the request's document took. */
void put_document_end(struct s3_request *r);
/* If-Match and If-None-Match of a write; the slices point into the request. */
enum s3_error put_conditions(struct s3_request *r, struct wire_put_open_req *ret);
/* The checksum that was verified goes back to the client, as S3 does. */
void put_checksum_header(struct s3_request *r, const struct body *b);

/* ---- s3.c ---- */

/* ACCESS_DENIED unless who asks may do this with a bucket. */
enum s3_error s3_check_access(struct s3_request *r, enum user_right right, struct slice bucket);
/* Waits for the limits and shares of who asks, once; SLOW_DOWN. */
enum s3_error s3_enter_gate(struct s3_request *r);

/* ---- buckets.c ---- */

/* NO_SUCH_BUCKET unless the request's bucket is there. */
enum s3_error buckets_find(struct s3_request *r);
/* What tells a bucket from one that is made again with its name, in the arena; empty where there is none. */
struct slice buckets_identity(struct s3 *s3, struct slice bucket, struct arena *a);
/* An object_removed_fn, of the struct s3: whoever removed the bucket, its uploads go with it. */
void buckets_removed(void *arg, uint64_t id);
/* Whether requests without a signature may read the bucket; false when there is none of that name. */
bool buckets_anonymous_read(struct s3_request *r, struct slice bucket);
/* A property of a bucket, in the arena; false when it is not set, or there is no such bucket. */

bool buckets_property(struct s3_request *r, struct slice bucket, const char *name, struct slice *ret);

/* ---- kept.c: settings of buckets that can be made ---- */

/* Answers with the setting, and gives true; false: it is not made. */
bool kept_show(struct s3_request *r, const char *parameter, enum s3_error *ret_error);
enum s3_error kept_change(struct s3_request *r, const char *property, struct slice value);

/* ---- preflight.c ---- */

/* Header lines for a web page that sent the request, where the bucket's rules allow it. */
void preflight_headers(struct s3_request *r);

/* ---- tagging.c ---- */

/* The tags of the request's x-amz-tagging header in the form that is kept, in the arena; empty without one.
 */
enum s3_error tagging_of_request(struct s3_request *r, struct slice *ret_kept);
/* Those of an object, in that form: its origin's, where that keeps tags; else those of its metadata, which is
 * asked for where it is not known. Of the object layer's results. */
int tagging_of_object(struct s3 *s3, struct slice bucket, struct slice key, const struct wire_attr *known,
                      struct arena *a, struct slice *ret_kept, struct err *e);

/* ---- copy.c ---- */

struct source;
struct part_list;
/* What a copy has besides the bytes of its source. */
struct copy_target {
    struct slice type, meta;
    const struct wire_put_open_req *to; /* the conditions of the write; nothing else of it is looked at */
    uint64_t ttl_ms;                    /* how long it is to be there, 0: as `meta` says */
    enum checksum_kind sum;             /* computed on the way and kept instead of the one in `meta` */
};
/* Writes the bytes of an opened source as the request's object. */
enum s3_error copy_rewrite(struct s3_request *r, struct source *s, const struct copy_target *target,
                           struct wire_attr *ret);

/* The answer of both kinds of copies, after pulse_stop: <element> with LastModified, ETag and the kept
 * checksum (may be empty). As pulse_answer. */
struct copy_result {
    const char *element;
    struct slice etag;
    uint64_t mtime_ns;
    struct slice checksum;
};
enum s3_error copy_reply(struct s3_request *r, enum s3_error error, const struct copy_result *result);

/* ---- multipart.c ---- */

struct upload;
/* The upload that the query names; release with upload_unref. NO_SUCH_UPLOAD. */
enum s3_error multipart_find(struct s3_request *r, struct upload **ret);

/* ---- expiration.c ---- */

/* The header line that says when the request's object ends, where it does. */
void expiration_header(struct s3_request *r, const struct wire_attr *attr);

/* ---- attributes.c ---- */

struct xml;
/* <ChecksumCRC32> and its kin out of a kept checksum; nothing when it is none. */
void attributes_put_checksum(struct xml *x, struct slice kept);
/* The parts that the object of this ETag was made of, in the arena: *ret_parts is its text, empty when
 * nothing is known of parts. CONFLICT: the object is another one by now. */
enum s3_error attributes_parts(struct s3_request *r, struct slice etag, struct arena *a,
                               struct part_list *ret);
