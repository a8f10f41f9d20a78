/*
 * The S3 kind, between its files: s3.c (options, URLs, opening), the credentials of s3_credentials.c,
 * s3_chain.c, s3_provider.c, s3_process.c and s3_sts.c, s3_request.c (URL, signature), s3_error.c
 * (classification), s3_result.c (small documents), s3_sums.c (checksums of parts), the verbs s3_list.c,
 * s3_put.c, s3_multipart.c and s3_complete.c, s3_copy.c, s3_tags.c, and what there was before, s3_versions.c.
 * What it shares with other kinds is in web_internal.h.
 */
#pragma once

#include "origin/key_order.h"
#include "origin/web_internal.h"

#define S3_MAGIC         0x53334f52u
#define S3_PARTS_MAX     10000
#define S3_PUT_MAX_BYTES (5 * GIB) /* most bytes of one PUT or part */

/* ---- credentials ---- */

struct s3_credentials {
    char *access_key; /* NULL: anonymous, requests are not signed */
    char *secret_key;
    char *session_token; /* may be NULL */
};

void s3_credentials_fini(struct s3_credentials *c);

/* What the AWS environment and its files say; members are NULL where nothing is said. */
struct s3_aws {
    struct s3_files {
        char *credentials, *config; /* the texts; NULL: cannot be read */
        size_t credentials_n, config_n;
    } files;
    char *profile; /* the one that counts */
    char *region;
    char *endpoint;
};

/* `profile`: the one that is meant; NULL: that of the environment. Never fails: an unreadable file counts as
 * absent. */
void s3_aws_load(const char *profile, struct s3_aws *ret);
/* In which the services of a region have their names: "amazonaws.com". */
const char *s3_aws_domain(const char *region);
void s3_aws_fini(struct s3_aws *a);
/* What a profile says, first in the credentials file; a heap copy, or NULL where it says nothing. */
char *s3_aws_get(const struct s3_aws *a, const char *profile, const char *key);
/* A profile's keys in the credentials file, or in the config file; whether it has both there. */
bool s3_aws_keys(const struct s3_aws *a, const char *profile, bool of_config, struct s3_credentials *ret);
/* Whether there is such a profile. */
bool s3_aws_knows(const struct s3_aws *a, const char *profile);
/* Keys of the variables; whether both are there. */
bool s3_environment_keys(struct s3_credentials *ret);
/* Value of `key` in section `section` of an INI text; a heap copy or NULL. */
char *s3_ini_get(struct slice text, const char *section, const char *key);

/* Credentials that end, and who gives them. */
struct s3_provider;
/* Of a container, if one is told of, and of an instance (with `o`'s endpoint: of that one only). *ret is NULL
 * where there is nobody to ask; nothing is sent. */
int s3_provider_of_container(const struct origin_options *o, struct s3_provider **ret, struct err *e);
int s3_provider_of_instance(const struct origin_options *o, struct s3_provider **ret, struct err *e);
/* The keys of a profile that has a session token, in the one file or the other: read again when they were
 * refused, and now and then. */
struct s3_provider *s3_provider_of_files(const char *profile, bool of_config);
/* Asks the program that the profile names. */
struct s3_provider *s3_provider_of_process(const char *command, const char *profile);
/* Those of a role; `role` is taken over. */
struct s3_role;
struct s3_provider *s3_provider_of_role(struct s3_role *role);
void s3_provider_free(struct s3_provider *p);
DEFINE_CLEANUP(struct s3_provider, s3_provider_free)
/* Who gives them, for people; lasts as long as `p`. */
const char *s3_provider_told(const struct s3_provider *p);
/* Copies, the caller's to fini; all NULL on a machine without a role. Any thread. */
int s3_provider_get(struct s3_provider *p, struct s3_credentials *ret, uint64_t *ret_version, struct err *e);
/* What was refused is not given again. */
void s3_provider_drop(struct s3_provider *p, uint64_t version);

/* Where the credentials come from. */
struct s3_chain {
    struct s3_credentials fixed;  /* they never end, ... */
    struct s3_provider *provider; /* ... or somebody gives them; neither: requests are not signed */
    char *told;                   /* who, for people: never a secret */
};
/* Decides it; nothing is sent. `roles`: also those that STS gives. ERR_BAD_OPTION for what the bucket says,
 * ERR_ORIGIN_SETUP for what the environment or a profile does. */
int s3_chain_find(const struct origin_options *o, const struct s3_aws *aws, bool roles, struct s3_chain *ret,
                  struct err *e);
void s3_chain_fini(struct s3_chain *c);

/* What is asked of STS; all strings but those of a web identity may be NULL where it says so. */
struct s3_role_ask {
    const char *arn;
    const char *session;     /* NULL: "forebay" */
    const char *token_file;  /* of a web identity: read at each time; NULL: the question is signed */
    const char *external_id; /* may be NULL */
    const char *duration;    /* in seconds; NULL: the service's default */
    const char *regional;    /* sts_regional_endpoints; may be NULL */
    const char *region;
    const char *endpoint; /* NULL: the region's */
};
/* `source` (its contents are taken over) signs, where there is no token_file. Nothing is sent.
 * ERR_ORIGIN_SETUP. */
int s3_role_new(const struct s3_role_ask *q, const struct origin_options *o, struct s3_chain *source,
                struct s3_role **ret, struct err *e);
void s3_role_free(struct s3_role *x);
DEFINE_CLEANUP(struct s3_role, s3_role_free)
const char *s3_role_told(const struct s3_role *x);
/* Asks for credentials, and how long they are good. */
int s3_role_ask(struct s3_role *x, struct s3_credentials *ret, uint64_t *ret_life_ms, struct err *e);
/* What STS answered. Pure. ERR_ORIGIN_FAILED. */
int s3_sts_parse(struct slice body, struct s3_credentials *ret, uint64_t *ret_ends_ns, struct err *e);

/* What the command prints, behind what `ret` has, when it ends well. */
int s3_process_run(const char *command, struct buf *ret, struct err *e);

/* ---- the origin ---- */

struct s3_known; /* which version of a key was found */

/* What of a versioned bucket is seen: s3_versions.c. */
struct s3_view {
    bool is_on;
    uint64_t as_of_ns;      /* without `version` */
    char *version, *key;    /* the one version that is seen, and of which object below the prefix */
    struct s3_known *known; /* with a date; its own lock */
    _Atomic bool is_kept;   /* the bucket is known to keep versions */
};

struct s3 {
    struct origin base; /* first */
    uint32_t magic;
    char *bucket;
    char *prefix; /* "" or ends with '/' */
    struct web web;
    struct web_endpoint endpoint;
    char *service;   /* URL of the endpoint, without the bucket */
    char *path_root; /* decoded path before the key: "/bucket" or "" */
    char *region;
    struct s3_chain keys;
    bool tells_trail; /* whom it asks may be another node */
    bool pays;        /* x-amz-request-payer */
    const char *sse;  /* NULL: as the service's bucket says */
    char *sse_key;    /* NULL: the service's */
    bool gives_sums;  /* of parts: origin.checksums, and requests are signed */
    uint64_t part_bytes;
    uint64_t copy_max_bytes;  /* most bytes of one CopyObject; tests lower both */
    uint64_t copy_part_bytes; /* size of the parts of longer copies */
    struct s3_view view;
    _Atomic uint64_t why_ms; /* when a refusal was told to have another reason than credentials that have
                                ended, monotonic; 0: never */

    struct lock lock; /* covers what follows */
    struct sigv4_key day_key;
    char day[SIGV4_DATE_LEN + 1]; /* of day_key; "" at first */
    char day_access_key[128];     /* of day_key; longer ones are not kept */
};

static inline struct s3 *s3_of(struct origin *o)
{
    struct s3 *s = container_of(o, struct s3, base);
    assert(s->magic == S3_MAGIC);
    return s;
}

static inline struct s3 *s3_of_web(struct web *w)
{
    return s3_of(w->origin);
}

/* node: another Forebay; view: earlier versions */
extern const struct web_kind s3_web_kind, s3_node_kind, s3_view_kind;
int s3_request_prepare(struct web_call *c, struct web_request *q, struct err *e);
int s3_request_refused(struct web_call *c, struct err *e);
int s3_request_why(struct web_call *c, int r, struct err *e);

/* ---- errors ---- */

/* Class of an answer by its status and S3 code (may be empty). */
int s3_error_class(int status, struct slice code);
/* Whether an answer says that credentials which end have ended. */
bool s3_error_is_expired(const struct web_response *r, struct slice body);
/* Classified error of an answer that is not 2xx, or of an <Error> document inside a 200. */
int s3_error_of(const struct s3 *s, const struct web_response *r, struct slice body, struct err *e);

/* A page being read: feed it, end it. `prefix` is the origin's own. NULL when the prefix is too long. */
struct s3_list;
struct s3_list *s3_list_new(const struct origin_list *l, const char *prefix, struct arena *a, struct err *e);
void s3_list_free(struct s3_list *l);
DEFINE_CLEANUP(struct s3_list, s3_list_free)
int s3_list_feed(struct s3_list *l, const void *p, size_t n, struct err *e);
int s3_list_end(struct s3_list *l, struct origin_page *ret, struct err *e);

/* When an object was modified, of a document: in whole seconds, which is all that the answer to a HEAD says.
 * Some services give more in listings, and an object whose time changes looks changed. 0: no date. */
uint64_t s3_date(struct slice text);

/* Small documents: <Error>, <InitiateMultipartUploadResult>, <CompleteMultipartUploadResult>,
 * <CopyObjectResult>. */
struct s3_result {
    char root[64];
    char upload_id[1024];
    char etag[WEB_ETAG_MAX + 1];
    uint64_t mtime_ns;
};
int s3_result_parse(struct slice body, struct s3_result *ret, struct err *e);

/* ---- checksums of the parts of an upload: s3_sums.c ---- */

struct s3_sum_kind {
    const char *suffix, *name, *header; /* "crc32c", "CRC32C", "x-amz-checksum-crc32c" */
    size_t bytes;
};
struct s3_sums {
    const struct s3_sum_kind *kind;
    struct slice type; /* "COMPOSITE", "FULL_OBJECT"; in the text that it was read from */
};
/* What origin_put.sums says; false: none, or nothing that is known here. */
bool s3_sums_of(struct slice text, struct s3_sums *ret);
/* Headers of the start of an upload, and what the service answered to them: that it knows of none, keeps
 * those, or others. */
void s3_sums_ask(struct web_call *c, const struct s3_sums *s);
enum s3_sums_told { S3_SUMS_NONE, S3_SUMS_SAME, S3_SUMS_OTHER };
enum s3_sums_told s3_sums_told(const struct web_response *r, const struct s3_sums *s);
/* Appends it as headers and documents have it; hex: origin_part.sum. */
int s3_sum_base64(const struct s3_sums *s, struct slice hex, struct buf *ret, struct err *e);
/* The part that the call is to send, whose body has a `sum`, gets its checksum: in a header, or, where it is
 * not known yet, in a trailer, for which the call's body is another one from then on. `f` lasts as long as
 * the call. */
struct s3_framed {
    struct origin_body body; /* with frames and trailer */
    const struct origin_body *inner;
    uint64_t offset, n; /* of the part in `inner` */
    struct s3_sums sums;
    char decoded[24], value[64];
};
int s3_sums_part(struct web_call *c, const struct s3_sums *s, struct s3_framed *f, struct err *e);

/* ---- verbs ---- */

int s3_list(struct origin *o, const struct origin_list *l, struct arena *a, struct origin_page *ret,
            struct err *e);
int s3_put(struct origin *o, const struct origin_put *p, const struct origin_body *body, struct arena *a,
           struct origin_attr *ret_attr, struct err *e);
int s3_put_multipart(struct s3 *s, const struct origin_put *p, const struct origin_body *body,
                     struct arena *a, struct origin_attr *ret_attr, struct err *e);

int s3_upload_create(struct origin *o, const struct origin_put *p, char ret_id[ORIGIN_UPLOAD_ID_MAX],
                     bool *ret_sums, struct err *e);
int s3_upload_part(struct origin *o, const struct origin_put *p, struct slice id, uint32_t number,
                   const struct origin_body *body, char ret_etag[ORIGIN_ETAG_MAX + 1], struct err *e);
int s3_upload_complete(struct origin *o, const struct origin_put *p, struct slice id,
                       const struct origin_part *parts, size_t n, uint64_t size_bytes, struct arena *a,
                       struct origin_attr *ret_attr, struct err *e);
int s3_upload_abort(struct origin *o, struct slice key, struct slice id, struct err *e);

/* The source of a copy. */
struct s3_source {
    struct s3 *s3;
    struct slice key;
    struct slice path; /* for x-amz-copy-source */
    struct origin_attr attr;
    bool replaces;      /* the copy has the type and metadata of `attr`, and not those that are there */
    bool replaces_tags; /* ... and the tags of META_TAGS in it */
    bool is_itself;     /* it is copied onto itself, and nobody's write meanwhile may be lost */
    /* Of the copy, unless the bucket names others; "": the service's default. As in struct web_response. */
    char class[64], sse[16], sse_key[160];
};
int s3_copy_multipart(struct s3 *s, const struct s3_source *source, struct slice to, struct arena *a,
                      struct origin_attr *ret_attr, struct err *e);
/* etag: of web_etag_header; must outlive the call. */
void s3_copy_headers(struct web_call *c, const struct s3_source *source, const char *etag);
int s3_copy_result(const struct web_call *c, struct slice body, const char *root, struct s3_result *ret,
                   struct err *e);
int s3_set_meta(struct origin *o, const struct origin_put *p, uint64_t size_bytes, struct arena *a,
                struct origin_attr *ret_attr, struct err *e);
int s3_remove(struct origin *o, struct slice key, struct slice if_match, struct err *e);
int s3_copy(struct origin *o, struct slice from, struct slice to, struct slice if_match, struct arena *a,
            struct origin_attr *ret_attr, struct err *e);

int s3_copy_from(struct origin *o, const struct origin_copy *c, struct arena *a, struct origin_attr *ret_attr,
                 struct err *e);
int s3_upload_copy(struct origin *o, const struct origin_put *p, struct slice id, uint32_t number,
                   const struct origin_copy *c, uint64_t offset, uint64_t n,
                   char ret_etag[ORIGIN_ETAG_MAX + 1], struct err *e);
/* "/bucket/prefix/key", percent-encoded, as x-amz-copy-source wants it. */
int s3_copy_path(const struct s3 *s, struct slice key, struct buf *b, struct err *e);

/* All tags of the object as x-amz-tagging has them, behind what `ret` has: nothing where the service has no
 * tags, or may not tell them, which is logged. */
int s3_tags_of(struct s3 *s, struct slice key, struct buf *ret, struct err *e);
int s3_tags(struct origin *o, struct slice key, struct buf *ret, struct err *e);
int s3_set_tags(struct origin *o, struct slice key, struct slice tags, struct err *e);
int s3_has_tag(struct origin *o, struct slice key, struct slice name, struct slice value, atomic_bool *cancel,
               bool *ret, struct err *e);

/* ---- earlier versions ---- */

/* A page of the view. -ECANCELED: the node stops. */
int s3_view_list(struct s3 *s, const struct origin_list *l, struct arena *a, struct origin_page *ret,
                 struct err *e);
/* The `pin` and `check` of a view's kind: reads name a version, and answers are of it. */
int s3_view_pin(struct web_call *c, const struct origin_get *g, struct arena *scratch, struct err *e);
int s3_view_check(const struct web_call *c, struct err *e);
/* Which version of a key it is; its id in the arena. -ENOENT: there was none. */
int s3_view_find(struct s3 *s, struct slice key, atomic_bool *cancel, struct arena *a, struct slice *ret_id,
                 struct err *e);

struct s3_known *s3_known_new(void);
void s3_known_free(struct s3_known *k);

/* A version, or a marker that the object was removed, as the service told of it. */
struct s3_version {
    struct slice key, id, etag;    /* key: decoded, with the origin's prefix */
    uint64_t size_bytes, mtime_ns; /* in whole seconds, as elsewhere: s3_date */
    uint64_t exact_ns;
    size_t place; /* in the answer */
    bool is_marker, is_latest;
};

/* A page of ListObjectVersions. */
struct s3_version_page {
    struct s3_version *v; /* by key in byte order, of each the newest first */
    size_t n;
    struct slice *prefixes; /* common ones, decoded */
    size_t n_prefixes;
    bool truncated;
    struct slice next_key, next_id; /* decoded; where the next page begins. id may be empty */
};

/* s3_version_page.c, pure. max: most entries that were asked for. What end gives lasts as long as the reader.
 * ERR_ORIGIN_FAILED: it is no such page, or cannot be understood in full. */
struct s3_version_reader;
struct s3_version_reader *s3_version_reader_new(size_t max);
void s3_version_reader_free(struct s3_version_reader *x);
DEFINE_CLEANUP(struct s3_version_reader, s3_version_reader_free)
int s3_version_reader_feed(struct s3_version_reader *x, const void *p, size_t n, struct err *e);
int s3_version_reader_end(struct s3_version_reader *x, struct s3_version_page *ret, struct err *e);

/* Whether the version was written by then (origin_as_of_end). Pure. */
bool s3_version_is_of(const struct s3_version *x, uint64_t as_of_ns);

/* The place of a change in the order of those of its key, from just before what shows until the answer
 * (key_order.h). -ECANCELED. */
int s3_enter(struct s3 *s, struct slice key, bool alone, const atomic_bool *cancel, struct key_order *x,
             struct err *e);
bool s3_is_conditional(const struct origin_put *p);
/* Of a conditional write to a service that checks none, or with a weak ETag, which no service finds to hold:
 * looks, and *ret, made in *plain, has no condition any more. Else it is `p`. ERR_PRECONDITION. */
int s3_look_first(struct s3 *s, const struct origin_put *p, struct origin_put *plain,
                  const struct origin_put **ret, struct err *e);

/* Used by both ways of uploading. */
int s3_put_conditions(struct web_call *c, const struct origin_put *p, char *etag_buf, struct err *e);
/* Whether a write's If-Match is "*" and is sent as the ETag that is there, which s3_pin_any looks up ("*"
 * where that is a weak one). -ENOENT: no object is. Who is refused then (ERR_PRECONDITION) looks again,
 * S3_ANY_TRIES times in all. */
#define S3_ANY_TRIES 4
bool s3_wants_any(const struct s3 *s, struct slice if_match);
int s3_pin_any(struct s3 *s, struct slice key, char ret_etag[WEB_ETAG_MAX + 1], struct err *e);
/* Storage class and encryption. source: of a copy, else NULL; must outlive the call. */
void s3_keeping_headers(const struct s3 *s, const struct s3_source *source, struct web_call *c);
/* Hex SHA-256 of a range of the body when it is small and can be read twice; "" otherwise. */
int s3_payload_hash(const struct s3 *s, const struct origin_body *body, uint64_t offset, uint64_t n,
                    char ret[65], struct err *e);
