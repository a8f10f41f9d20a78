/*
 * The S3 kind, between its files: s3.c (options, URLs, opening), s3_credentials.c, s3_conn.c (connections and
 * one exchange), s3_response.c (headers), s3_error.c (classification), s3_xml.c (documents), and the verbs
 * s3_get.c, s3_list.c, s3_put.c, s3_multipart.c, s3_copy.c.
 */
#pragma once

#include "base/lock.h"
#include "base/log.h"
#include "base/sys.h"
#include "net/sigv4.h"
#include "origin/origin_internal.h"

#include <curl/curl.h>

#define S3_MAGIC            0x53334f52u
#define S3_PAIRS_MAX        16
#define S3_ERROR_BODY_MAX   (16 * KIB)
#define S3_XML_TEXT_MAX     (8 * KIB)
#define S3_XML_DEPTH_MAX    16
#define S3_LIST_MAX_BYTES   (32 * MIB)
#define S3_LIST_ENTRIES_MAX 1000
#define S3_ETAG_MAX         ORIGIN_ETAG_MAX
#define S3_CONTENT_TYPE_MAX 1024
#define S3_PARTS_MAX        10000
#define S3_PUT_MAX_BYTES    (5 * GIB) /* most bytes of one PUT or part */

/* ---- credentials ---- */

struct s3_credentials {
    char *access_key; /* NULL: anonymous, requests are not signed */
    char *secret_key;
    char *session_token; /* may be NULL */
};

/* What the AWS environment and files say; members are NULL where nothing is said. */
struct s3_aws {
    struct s3_credentials credentials;
    char *region;
    char *endpoint;
};

/* Environment first, then the profile in the credentials file, then in the config file. Never fails: an
 * unreadable file counts as absent. */
void s3_aws_load(struct s3_aws *ret);
void s3_aws_fini(struct s3_aws *a);
void s3_credentials_fini(struct s3_credentials *c);
/* Value of `key` in section `section` of an INI text; a heap copy or NULL. */
char *s3_ini_get(struct slice text, const char *section, const char *key);

/* ---- the origin ---- */

struct s3_conn;

struct s3 {
    struct origin base; /* first */
    uint32_t magic;
    char *bucket;
    char *prefix;    /* "" or ends with '/' */
    char *base_url;  /* "http://127.0.0.1:9000", without a slash at its end */
    char *host;      /* of the Host header: "127.0.0.1:9000" */
    char *path_root; /* decoded path before the key: "/bucket" or "" */
    char *region;
    char *ca_file; /* may be NULL */
    bool https;
    bool loopback; /* no proxy */
    struct s3_credentials credentials;
    uint64_t timeout_ms, connect_timeout_ms, part_bytes;
    uint64_t copy_max_bytes;  /* most bytes of one CopyObject; tests lower both */
    uint64_t copy_part_bytes; /* size of the parts of longer copies */

    struct lock lock; /* covers what follows */
    struct cond freed;
    struct s3_conn **idle; /* used as a stack, the oldest first; room for `limit` */
    size_t n_idle, in_use, limit;
    struct sigv4_key day_key;
    char day[SIGV4_DATE_LEN + 1]; /* of day_key; "" at first */
};

static inline struct s3 *s3_of(struct origin *o)
{
    struct s3 *s = container_of(o, struct s3, base);
    assert(s->magic == S3_MAGIC);
    return s;
}

/* ---- one exchange ---- */

struct s3_response {
    int status; /* 0: none came */
    char reason[64];
    bool has_length, has_range;
    uint64_t length;
    uint64_t range_first, range_last, range_total; /* of Content-Range "bytes a-b/total" */
    uint64_t mtime_ns, date_ns;
    char region[64]; /* x-amz-bucket-region */
    char etag[S3_ETAG_MAX + 1];
    struct buf content_type, meta;
};

void s3_response_init(struct s3_response *r);
void s3_response_fini(struct s3_response *r);
/* One line as it came, with or without its line end. A status line starts anew: interim answers are
 * forgotten. */
void s3_response_line(struct s3_response *r, struct slice line);
/* Attributes the headers tell; size_bytes from Content-Range, else Content-Length, else 0. Points into `r`.
 */
struct origin_attr s3_response_attr(const struct s3_response *r);

enum s3_method { S3_GET, S3_HEAD, S3_PUT, S3_POST, S3_DELETE };

struct s3_call {
    /* request; filled by the verb */
    const char *op; /* for the metrics */
    enum s3_method method;
    bool has_key;
    struct slice key; /* below the prefix, decoded */
    struct sigv4_pair query[S3_PAIRS_MAX];
    size_t n_query;
    struct sigv4_pair headers[S3_PAIRS_MAX + 1]; /* lower-case names; not host, not the signature's own */
    size_t n_headers;
    struct slice meta;              /* further headers, as origin_attr.meta */
    struct slice payload_sha256;    /* hex or empty: unsigned */
    const struct origin_body *body; /* S3_PUT: bytes [body_offset, body_offset + body_n) */
    uint64_t body_offset, body_n;
    struct slice post;                 /* S3_POST */
    atomic_bool *cancel, *also_cancel; /* may be NULL */
    /* Takes the body of a 2xx answer in pieces; anything but 0 stops the exchange and is its result. */
    int (*on_body)(void *arg, const void *p, size_t n);
    void *arg;

    /* response */
    struct s3_response response;
    struct buf error_body;

    /* between s3_conn.c's functions */
    struct s3 *s3;
    struct err *err; /* filled by callbacks that stop the exchange */
    int stopped;     /* their result */
    uint64_t body_sent;
    uint64_t progress_ms;
};

void s3_call_init(struct s3_call *c, struct s3 *s, enum s3_method method, const char *op);
void s3_call_fini(struct s3_call *c);
void s3_call_query(struct s3_call *c, struct slice name, struct slice value);
void s3_call_header(struct s3_call *c, struct slice name, struct slice value);
/* Sends it and receives the whole answer: 0 for 2xx, else classified with the origin's words. May be called
 * again after a failure; what on_body was given before is then given again. */
int s3_perform(struct s3_call *c, struct err *e);
/* Closes all idle connections; none may be in use. */
void s3_conn_close_all(struct s3 *s);
/* curl once per process. */
int s3_conn_global(struct err *e);

/* What curl is given; fini also after a failure. */
struct s3_request {
    struct buf url;
    struct curl_slist *headers;
};
int s3_request_build(struct s3_call *c, struct s3_request *q, struct err *e);
void s3_request_fini(struct s3_request *q);

/* Quoted for If-Match and the like, into `ret` (S3_ETAG_MAX + 3 bytes): weak ETags stay as they are. -EINVAL
 * when it cannot be a header value. */
int s3_etag_header(struct slice etag, char *ret, struct err *e);
bool s3_etag_is_weak(struct slice etag);
/* For servers that give no ETag: a weak one of time (seconds, the resolution of HTTP) and size. It is not
 * sent as If-Match, but compared with what comes. Empty when the time is unknown. */
struct slice s3_version(const struct origin_attr *attr, struct arena *a);

/* ---- errors ---- */

/* Class of an answer by its status and S3 code (may be empty). */
int s3_error_class(int status, struct slice code);
struct s3_error {
    char code[64], message[256], region[64];
};
/* Reads what an error document says; fields stay empty where it says nothing or is none. */
void s3_error_parse(struct slice body, struct s3_error *ret);
/* Classified error of an answer that is not 2xx, or of an <Error> document inside a 200. */
int s3_error_of(const struct s3 *s, const struct s3_response *r, struct slice body, struct err *e);

/* ---- XML ---- */

struct s3_xml;
/* Called at the end of each element with its text (trimmed of nothing) and the name of the one around it;
 * names come without their namespace prefix. depth 1 is the root. Anything but 0 ends the parse with that. */
typedef int (*s3_xml_fn)(void *arg, unsigned depth, const char *parent, const char *name, struct slice text,
                         struct err *e);
struct s3_xml *s3_xml_new(uint64_t max_bytes, s3_xml_fn on_end, void *arg);
void s3_xml_free(struct s3_xml *x);
DEFINE_CLEANUP(struct s3_xml, s3_xml_free)
int s3_xml_feed(struct s3_xml *x, const void *p, size_t n, struct err *e);
int s3_xml_end(struct s3_xml *x, struct err *e);
/* Text with &, <, >, " and what XML 1.0 cannot hold escaped; -EILSEQ for the latter. */
int s3_xml_escape(struct buf *b, struct slice s);

/* A page being read: feed it, end it. `prefix` is the origin's own. */
struct s3_list;
struct s3_list *s3_list_new(const struct origin_list *l, const char *prefix, struct arena *a);
void s3_list_free(struct s3_list *l);
DEFINE_CLEANUP(struct s3_list, s3_list_free)
int s3_list_feed(struct s3_list *l, const void *p, size_t n, struct err *e);
int s3_list_end(struct s3_list *l, struct origin_page *ret, struct err *e);

/* Small documents: <Error>, <InitiateMultipartUploadResult>, <CompleteMultipartUploadResult>,
 * <CopyObjectResult>. */
struct s3_result {
    char root[64];
    char upload_id[1024];
    char etag[S3_ETAG_MAX + 1];
    uint64_t mtime_ns;
};
int s3_result_parse(struct slice body, struct s3_result *ret, struct err *e);

/* ---- verbs ---- */

int s3_get(struct origin *o, const struct origin_get *g, struct arena *a, struct origin_attr *ret_attr,
           origin_sink_fn sink, void *arg, struct err *e);
int s3_list(struct origin *o, const struct origin_list *l, struct arena *a, struct origin_page *ret,
            struct err *e);
int s3_put(struct origin *o, const struct origin_put *p, const struct origin_body *body, struct arena *a,
           struct origin_attr *ret_attr, struct err *e);
int s3_put_multipart(struct s3 *s, const struct origin_put *p, const struct origin_body *body,
                     struct arena *a, struct origin_attr *ret_attr, struct err *e);

/* The source of a copy. */
struct s3_source {
    struct slice path; /* for x-amz-copy-source */
    struct origin_attr attr;
};
int s3_copy_multipart(struct s3 *s, const struct s3_source *source, struct slice to, struct arena *a,
                      struct origin_attr *ret_attr, struct err *e);
/* etag: of s3_etag_header; must outlive the call. */
void s3_copy_headers(struct s3_call *c, const struct s3_source *source, const char *etag);
int s3_copy_result(const struct s3_call *c, struct slice body, const char *root, struct s3_result *ret,
                   struct err *e);
int s3_head(struct s3 *s, struct slice key, struct slice if_match, struct arena *a, struct origin_attr *ret,
            struct err *e);
int s3_remove(struct origin *o, struct slice key, struct slice if_match, struct err *e);
int s3_copy(struct origin *o, struct slice from, struct slice to, struct slice if_match, struct arena *a,
            struct origin_attr *ret_attr, struct err *e);

/* Used by both ways of uploading. */
int s3_check_key(const struct s3 *s, struct slice key, struct err *e);
int s3_put_conditions(struct s3_call *c, const struct origin_put *p, char *etag_buf, struct err *e);
/* Hex SHA-256 of a range of the body when it is small and the transport is plain; "" otherwise. */
int s3_payload_hash(const struct s3 *s, const struct origin_body *body, uint64_t offset, uint64_t n,
                    char ret[65], struct err *e);
/* Returns once the body's byte at `offset` is there. */
int s3_wait_for_body(const struct origin_body *body, uint64_t offset, struct err *e);
void s3_put_attr(const struct origin_put *p, uint64_t size, struct slice etag, uint64_t date_ns,
                 struct arena *a, struct origin_attr *ret);
/* Collects a small 2xx body into a struct buf. */
int s3_collect(void *arg, const void *p, size_t n);
