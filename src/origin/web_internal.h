/*
 * What the origins that speak HTTP share: web.c (endpoints, calls), web_conn.c (connections and one
 * exchange), web_request.c (URL and headers), web_response.c (headers of an answer), web_error.c (statuses),
 * web_get.c (reads and their checks), web_json.c (answers in JSON), web_page.c (pages of listings),
 * web_parts.c (uploads in parts), web_put.c (bodies), web_renew.c (credentials that end), web_xml.c
 * (documents).
 *
 * A kind embeds a `struct web` in its origin and fills a `struct web_kind`: how a request is addressed and
 * signed, and what an answer that is no success means. Everything else is here once.
 */
#pragma once

#include "base/lock.h"
#include "base/log.h"
#include "base/quit.h"
#include "base/sys.h"
#include "net/libcurl.h"
#include "net/sigv4.h"
#include "net/trust.h"
#include "origin/origin_internal.h"

#include <jansson.h>

#define WEB_PAIRS_MAX        24
#define WEB_ERROR_BODY_MAX   (16 * KIB)
#define WEB_XML_TEXT_MAX     (8 * KIB)
#define WEB_XML_DEPTH_MAX    16
#define WEB_LIST_MAX_BYTES   (32 * MIB)
#define WEB_LIST_ENTRIES_MAX 1000
#define WEB_ETAG_MAX         ORIGIN_ETAG_MAX
#define WEB_CONTENT_TYPE_MAX 1024
#define WEB_RESULT_MAX       (64 * KIB) /* small documents */
#define WEB_VERSION_ID_MAX   1024
#define WEB_SUM_MAX          127
#define WEB_URL_MAX          (16 * KIB)
#define WEB_LOCATION_MAX     8192

struct web_call;
struct web_conn;
struct web_request;

/* What a kind says about its requests. */
struct web_kind {
    const char *version_header; /* of answers: "etag"; lower case */
    const char *meta_prefix;    /* of the service's user metadata: "x-amz-meta-"; lower case */
    bool tells_checksums;       /* of whole objects, by S3's headers */
    bool is_node;               /* another Forebay: shows the tags of objects to those that ask (meta.h) */
    bool tells_versions;        /* reads are of versions that are asked for by id: META_VERSION */
    bool names_objects;         /* answers to reads of an object have an ETag or a time, always */
    bool tells_bytes_alone;     /* headers of bytes are the answer's own, and no metadata of the object */
    /* Fills URL and headers of the call; called for each try, on the caller's thread, without locks. */
    int (*prepare)(struct web_call *c, struct web_request *q, struct err *e);
    /* Classified error of an answer with status 300 and above. */
    int (*refused)(struct web_call *c, struct err *e);
    /* A HEAD was refused (400, 401, 403, 404) with `r` and, as its answers cannot, without a word: what comes
     * of that, in the service's words where it gives some; sets c->ended when it is worth another try. NULL:
     * nobody knows more. */
    int (*why)(struct web_call *c, int r, struct err *e);
    /* Conditions of a read. NULL: If-Match and If-None-Match of the ETags. `scratch` lives as long as the
     * call. */
    int (*pin)(struct web_call *c, const struct origin_get *g, struct arena *scratch, struct err *e);
    /* Whether the answer to a read is about what was asked for, before anything of it is believed. NULL: it
     * is. */
    int (*check)(const struct web_call *c, struct err *e);
};

/* ---- the pool ---- */

struct web {
    const struct web_kind *kind;
    struct origin *origin; /* whose requests are counted; NULL: nobody's */
    char *ca_file;         /* may be NULL */
    bool loopback;         /* no proxy */
    /* Where a name has several addresses, and who resolves it tells them in one order, all connections would
     * have the first one. Not of a name with addresses of both families: of the other one is tried what this
     * machine may have no route to, at 200 ms for each connection. Set before the first call. */
    bool spreads;
    bool sends_tags; /* of S3: META_TAGS goes as x-amz-tagging, not as metadata. Set before the first call */
    uint64_t timeout_ms, connect_timeout_ms;
    uint64_t least_rate; /* bytes per s; 0: any */
    atomic_bool is_mute; /* says nothing to Expect: 100-continue, for which bodies would wait */

    struct lock lock; /* covers what follows */
    struct cond freed;
    struct web_conn **idle; /* used as a stack, the oldest first; room for `limit` */
    size_t n_idle, in_use, limit;
    size_t uploading, slow; /* of those in use: with a body to send, with a slow one */
};

/* Starts curl in this process when it is the first. `connections` at a time. */
int web_init(struct web *w, const struct web_kind *kind, struct origin *origin,
             const struct origin_options *o, struct err *e);
/* No call may be under way. A zeroed struct is accepted. */
void web_fini(struct web *w);
/* As origin_rest. */
size_t web_rest(struct web *w, uint64_t now_ms);

/* ---- endpoints ---- */

struct web_endpoint {
    bool https, loopback;
    char *base; /* "http://127.0.0.1:9000", without a slash at its end */
    char *host; /* of the Host header: "127.0.0.1:9000" */
    char *path; /* "" or begins with '/'; no slash at its end; as written */
};

/* `option` names what is told in errors; host_prefix ("bucket." or "") goes before the host. ERR_BAD_OPTION.
 */
int web_endpoint_parse(const char *url, const char *option, const char *host_prefix, struct web_endpoint *ret,
                       struct err *e);
void web_endpoint_fini(struct web_endpoint *x);
/* "NAME[/PREFIX]" of an origin's URL: heap copies of both, the prefix "" or with a slash at its end. `what`
 * says what NAME is ("an S3 bucket"), `form` how to write it. ERR_BAD_OPTION. */
int web_parse_name(struct slice rest, const char *what, const char *form, char **ret_name, char **ret_prefix,
                   struct err *e);
/* Of the URL of one object: the prefix "run7/ckpt.pt/" becomes "run7/", and *ret_key "ckpt.pt", on the heap.
 * ERR_BAD_OPTION: there is no object in it. */
int web_cut_object(char *prefix, char **ret_key, struct err *e);
/* Whether prefix and key together fit; -EINVAL for none, -ENAMETOOLONG. */
int web_check_length(const char *prefix, struct slice key, struct err *e);
/* Also whether it is a key of an object service: -EILSEQ for what is not UTF-8. */
int web_check_key(const char *prefix, struct slice key, struct err *e);
/* Whether a path has a part "." or "..", also between backslashes, which some servers take for slashes, or a
 * NUL byte. */
bool web_leads_away(struct slice path);
/* Value of an environment variable, NULL when unset or empty. */
const char *web_env(const char *name);
/* Heap copy or NULL. */
char *web_dup(const char *s);

/* ---- one exchange ---- */

struct web_response {
    const struct web_kind *kind; /* NULL: ETags and x-amz-meta- */
    int status;                  /* 0: none came */
    char reason[64];
    bool has_length, has_range;
    bool is_chunked; /* its end is marked, so that one that was cut is known */
    uint64_t length;
    uint64_t range_first, range_last, range_total; /* of Content-Range "bytes a-b/total" */
    uint64_t upload_last;                          /* of a resumable upload's "Range: bytes=0-n" */
    bool has_upload;
    uint64_t n_parts;                     /* x-amz-mp-parts-count */
    char sum_algorithm[16], sum_type[16]; /* x-amz-checksum-algorithm, x-amz-checksum-type */
    char sum[WEB_SUM_MAX + 1];            /* "SUFFIX BASE64" of the bytes that come, or of the part */
    uint64_t mtime_ns, date_ns;
    bool has_time; /* a Last-Modified came; a node says 1970, which is 0, of what has none */
    uint64_t retry_after_ms,
        retry_at_ns;      /* Retry-After: for so long, or until then (real time); 0: not told */
    bool is_in_vain;      /* META_RETRY_HEADER of another node says so */
    bool has_id;          /* that services give to requests, and proxies do not: x-amz-request-id... */
    char region[64];      /* x-amz-bucket-region */
    char code[64];        /* x-ms-error-code */
    char copy_status[16]; /* x-ms-copy-status */
    char copy_id[64];     /* x-ms-copy-id */
    char class[64];       /* x-amz-storage-class; none for the service's default */
    char sse[16];         /* x-amz-server-side-encryption */
    char sse_key[160];    /* x-amz-server-side-encryption-aws-kms-key-id */
    struct buf content_type, meta;
    /* The last ones: 9 KiB, of which nothing but the first byte is cleared. */
    char etag[WEB_ETAG_MAX + 1];
    char version_id[WEB_VERSION_ID_MAX + 1]; /* x-amz-version-id, x-ms-version-id */
    char location[WEB_LOCATION_MAX];
};

void web_response_init(struct web_response *r);
void web_response_fini(struct web_response *r);
/* One line as it came, with or without its line end. A status line starts anew: interim answers are
 * forgotten. */
void web_response_line(struct web_response *r, struct slice line);
/* For how long the service wants no request, by Retry-After and, when that is a date, its own clock. */
uint64_t web_response_pause_ms(const struct web_response *r);
/* Attributes the headers tell; size_bytes from Content-Range, else Content-Length, else 0. Points into `r`.
 */
struct origin_attr web_response_attr(const struct web_response *r);

/* PUT and POST send `body` when there is one, POST else `post`. */
enum web_method { WEB_GET, WEB_HEAD, WEB_PUT, WEB_POST, WEB_PATCH, WEB_DELETE };

struct web_call {
    /* request; filled by the verb */
    const char *op; /* for the metrics */
    enum web_method method;
    bool has_key;
    struct slice key; /* below the prefix, decoded */
    struct sigv4_pair query[WEB_PAIRS_MAX];
    size_t n_query;
    struct sigv4_pair headers[WEB_PAIRS_MAX + 1]; /* lower-case names; not host, not the signature's own */
    size_t n_headers;
    struct slice meta;              /* further headers, as origin_attr.meta */
    struct slice payload_sha256;    /* hex or empty: unsigned; for kinds that sign it */
    struct slice url;               /* whole, for kinds that were told where to go; else empty */
    const struct origin_body *body; /* bytes [body_offset, body_offset + body_n) are sent */
    uint64_t body_offset, body_n;
    struct slice post;
    int accept;                        /* a status above 299 that is no refusal; 0: none */
    bool once;                         /* it is refused when it is sent again after it was carried out */
    _Atomic int *reach;                /* PERHAPS (origin.h) when curl begins to send it; may be NULL */
    atomic_bool *cancel, *also_cancel; /* may be NULL */
    /* Hears, where it is not NULL, that the head of a 2xx answer is whole: its body may be long in coming. */
    int (*on_head)(void *arg);
    /* Takes the body of a 2xx answer in pieces. Anything but 0 of either stops the exchange and is its
     * result.
     */
    int (*on_body)(void *arg, const void *p, size_t n);
    void *arg;

    struct buf error_body; /* of the response, which is below */

    /* between web_conn.c's functions */
    struct web *web;
    struct err *err; /* filled by callbacks that stop the exchange */
    int stopped;     /* their result */
    struct trust trust;
    uint64_t body_sent;
    uint64_t unwanted; /* bytes of the answer that nobody reads */
    uint64_t progress_ms;
    uint64_t paced_bytes;    /* of the body that is read, ... */
    uint64_t paced_since_ms; /* ... since then, without the time of who takes it; 0: none came yet */
    unsigned begun;          /* how often curl began to send it */
    bool is_continued;       /* 100 Continue came */

    uint64_t credentials; /* the kind's own: which version of those that end was sent */
    bool ended; /* the kind's own: it was refused because they have ended, and others may be there */

    struct web_response response; /* the last: it clears itself */
};

void web_call_init(struct web_call *c, struct web *w, enum web_method method, const char *op);
void web_call_fini(struct web_call *c);
void web_query(struct web_call *c, struct slice name, struct slice value);
void web_header(struct web_call *c, struct slice name, struct slice value);
/* Sends it and receives the whole answer: 0 for 2xx, else classified with the origin's words. What was
 * refused because its credentials have ended is sent once more, with those that are given then. May be called
 * again after a failure; what on_body was given before is then given again. */
int web_perform(struct web_call *c, struct err *e);
bool web_is_canceled(const struct web_call *c);
struct slice web_method_name(enum web_method m);

/* What curl is given; fini also after a failure. */
struct web_request {
    struct buf url;
    struct curl_slist *headers;
};
void web_request_fini(struct web_request *q);
/* Takes the next line off *meta as the header that the kind sends it in; false at the end. */
bool web_next_meta(const struct web *w, struct slice *meta, struct slice *ret_name, struct slice *ret_value);
/* "name: value"; -EINVAL for values with control characters. */
int web_request_header(struct web_request *q, struct slice name, struct slice value, struct err *e);
/* The call's own headers, its metadata with the kind's prefix, and what curl would add by itself taken off.
 */
int web_request_headers(struct web_call *c, struct web_request *q, struct err *e);
/* origin_takes: whether the key fits, and type and metadata can be headers. */
int web_takes(struct web *w, const char *prefix, const struct origin_put *p, struct err *e);
/* "?a=b&c=d" of the call's query, encoded. */
int web_request_query(const struct web_call *c, struct buf *url);

/* Collects a small 2xx body into a struct buf. */
int web_collect(void *arg, const void *p, size_t n);

/* Quoted for If-Match and the like, into `ret` (WEB_ETAG_MAX + 3 bytes): weak ETags stay as they are. -EINVAL
 * when it cannot be a header value. */
int web_etag_header(struct slice etag, char *ret, struct err *e);
bool web_etag_is_weak(struct slice etag);
#define WEB_VERSION_MAX 128
/* For servers that give no ETag: a weak one of time (seconds, the resolution of HTTP) and size. It is not
 * sent as If-Match, but compared with what comes. Empty when the time is unknown. The arena has
 * WEB_VERSION_MAX bytes left. */
struct slice web_version(const struct origin_attr *attr, struct arena *a);
/* An ETag without its quotes; empty when longer than WEB_ETAG_MAX. */
struct slice web_unquote(struct slice etag);

/* ---- errors ---- */

/* Class of an answer by its status alone. */
int web_error_class(int status);
struct web_error_row {
    const char *code;
    int class;
};
/* Class of the service's own code when the table has it, else that of the status. */
int web_error_lookup(const struct web_error_row *table, size_t n, int status, struct slice code);
struct web_error {
    char code[64], message[256], region[64];
    char detail[256]; /* <AuthenticationErrorDetail> */
};
/* Reads what an <Error> document says; fields stay empty where it says nothing or is none. */
void web_error_parse(struct slice body, struct web_error *ret);
/* Cut to the room, control characters as spaces. */
void web_error_text(char *to, size_t room, struct slice s);
/* What a service of credentials said, as the error of a request that was never sent because of it: none of
 * those that tell of objects and conditions, like -ENOENT. */
int web_error_of_credentials(int r, struct err *e);
/* Of a refusal without what the service's own have: the page of a proxy, say, that does not reach it. Where
 * it says that nothing is there (404, 410) nobody knows: true, and *ret is what to say instead. */
bool web_error_is_strange(const struct web_response *r, struct slice body, int *ret, struct err *e);
/* Puts more words behind those of an error; `e` may be NULL. */
void web_error_add(struct err *e, const char *words);
/* First line of a body that is no document: "Bad Gateway" of some proxy, say. */
void web_error_line(struct slice body, char *to, size_t room);
/* "403 Code: message" with the class; either may be empty. */
int web_error_set(struct err *e, int class, const struct web_response *r, const char *code,
                  const char *message);

/* ---- web_json.c ---- */

/* json_loadb, for what peers sent; NULL also when it nests too deep. The caller's to json_decref, which wipes
 * what it frees, as all of the parser does from the first call on. */
json_t *web_json(struct slice text, size_t flags, json_error_t *ret_why);

/* ---- reads ---- */

/* The get of a kind's table: GET or HEAD of the key, the version pinned by the kind's `pin`, and what comes
 * checked. */
int web_get(struct web *w, const struct origin_get *g, struct arena *a, struct origin_attr *ret_attr,
            origin_sink_fn sink, void *arg, struct err *e);
/* If-Match and If-None-Match of a read: what a kind without `pin` sends. */
int web_pin_etag(struct web_call *c, const struct origin_get *g, struct arena *scratch, struct err *e);
/* Without asking again when a range from 0 is refused because the object is empty: ERR_RANGE. */
int web_get_once(struct web *w, const struct origin_get *g, struct arena *a, struct origin_attr *ret_attr,
                 origin_sink_fn sink, void *arg, struct err *e);
int web_head(struct web *w, struct slice key, struct slice if_match, struct arena *a, struct origin_attr *ret,
             struct err *e);

/* ---- pages of listings ---- */

/* A page being made: entries are added in any order with the origin's own prefix, and finished once. */
struct web_page {
    struct arena *arena;
    const char *own_prefix; /* of the origin; taken off the keys */
    struct slice prefix;    /* asked for, with own_prefix */
    struct slice after;
    uint32_t max;
    bool url_encoded; /* keys are decoded at the end */
    bool truncated;
    struct slice next_token;
    struct origin_entry *entries; /* `max` of them, keys still with own_prefix */
    size_t n;
    struct slice left_out; /* the furthest of those, as in origin_page */
};

/* -ENAMETOOLONG for prefixes that no key can have. fini also after a failure. */
int web_page_init(struct web_page *p, const struct origin_list *q, const char *own_prefix, struct arena *a,
                  struct err *e);
void web_page_fini(struct web_page *p);
/* Room for so many entries in all, for services whose pages may be longer than asked. */
int web_page_room(struct web_page *p, size_t n, struct err *e);
/* Copies into the arena what the origin sent, if it fits. */
int web_page_keep(struct web_page *p, struct slice s, struct slice *ret, struct err *e);
/* The entry's strings are the arena's. */
int web_page_add(struct web_page *p, const struct origin_entry *x, struct err *e);
/* What the answer has and is no entry; of several with one key `place` goes up. */
int web_page_leave_out(struct web_page *p, struct slice key, uint64_t place, struct err *e);
int web_page_finish(struct web_page *p, struct origin_page *ret, struct err *e);
/* Of a listing of one object only: whether it, or the folder in which it lies, is asked for. *ret: its entry,
 * without attributes. */
bool web_list_one(struct slice key, const struct origin_list *l, struct arena *a, struct origin_entry *ret);

/* ---- writes ---- */

/* Returns once the body's byte at `offset` is there. */
int web_wait_for_body(const struct origin_body *body, uint64_t offset, struct err *e);
/* The same of n bytes that go in one request: once the first is there. Where there is one connection only,
 * once all are of a body whose sender may need it for that. */
int web_wait_for_part(const struct web *w, const struct origin_body *body, uint64_t offset, uint64_t n,
                      struct err *e);
void web_put_attr(const struct origin_put *p, uint64_t size, struct slice etag, uint64_t date_ns,
                  struct arena *a, struct origin_attr *ret);
/* What MD5 or SHA-256 (`digest` of OpenSSL's names) of a range of the body is; `ret` has room for 32 bytes.
 */
int web_body_digest(const struct origin_body *body, uint64_t offset, uint64_t n, const char *digest,
                    uint8_t *ret, struct err *e);

/* Parts done in parallel by the calling thread and up to three helpers; each tried again when time may heal
 * its failure. */
struct web_parts {
    struct origin *origin; /* whose pauses are kept, and who says when each may go */
    uint32_t n, limit;     /* limit: most threads */
    atomic_bool *cancel;
    uint64_t patience_ms; /* as in origin_put */
    /* One part, from several threads at once; `stop` is set when another has failed for good. */
    int (*one)(void *arg, uint32_t i, atomic_bool *stop, struct err *e);
    void *arg;
};
/* The first lasting error, prefixed with "part i of n". */
int web_parts_run(const struct web_parts *p, struct err *e);
/* After a try that came to `code`: waits before the next one, also for what the origin asked for, and counts
 * it in *r, which is empty at first; false when there is none. patience_ms: as in origin_put. Who waits for
 * long has no place among the requests meanwhile. */
bool web_try_again(const struct origin *o, atomic_bool *cancel, atomic_bool *stop, uint64_t patience_ms,
                   struct retry *r, int code);

/* ---- credentials that end ---- */

#define WEB_RENEW_BEFORE_MS 300000

struct web_renewed_kind {
    /* Asks for them: *ret on the heap, and how long they are good. -ENOENT: there are none, and requests go
     * without for a while. */
    int (*ask)(void *arg, void **ret, uint64_t *ret_life_ms, struct err *e);
    /* A copy for a request, under the lock; into what web_renewed_get was given. */
    int (*copy)(const void *now, void *ret, struct err *e);
    void (*free)(void *now); /* NULL accepted */
};

struct web_renewed {
    const struct web_renewed_kind *kind;
    void *arg;

    struct lock lock; /* covers what follows */
    struct cond moved;
    bool asking, known;
    uint64_t rounds; /* how often was asked */
    int result;      /* of the last time, with `why` */
    struct err why;
    void *now;         /* NULL though known: there are none */
    uint64_t version;  /* of `now`: 1, 2, ... */
    uint64_t ends_ms;  /* monotonic */
    uint64_t again_ms; /* a renewal that failed is not tried before */
};

void web_renewed_init(struct web_renewed *n, const struct web_renewed_kind *kind, void *arg);
void web_renewed_fini(struct web_renewed *n);
/* Those at hand, or others asked for when they end soon; `ret` is left alone where there are none. Any
 * thread; one asks, the others wait. */
int web_renewed_get(struct web_renewed *n, void *ret, uint64_t *ret_version, struct err *e);
/* Those of this version were refused and are not given again. */
void web_renewed_drop(struct web_renewed *n, uint64_t version);

/* ---- access tokens (web_token.c) ---- */

struct web_token_ask {
    const char *uri;                   /* for errors, which leave out what follows a '?' */
    struct buf *form;                  /* posted, and wiped; NULL: a machine's own service is asked by GET, */
    struct slice header, header_value; /* with this */
};
/* One request, whose address w's kind knows: *ret is the token's text on the heap. */
int web_token_ask(struct web *w, const struct web_token_ask *q, void **ret, uint64_t *ret_life_ms,
                  struct err *e);
/* Of a struct web_renewed_kind of tokens; the copy goes into a struct buf. */
int web_token_copy(const void *now, void *ret, struct err *e);
void web_token_free(void *now);
/* Who gives the tokens, for people, and whether that one has any: `token` is what was got, which is wiped. */
int web_token_tell(const char *who, struct buf *token, struct buf *b);

/* Overwrites what was secret; NULL accepted. */
void web_wipe(struct buf *b);
/* "name=value", encoded, behind what the form has. */
int web_form_pair(struct buf *b, const char *name, struct slice value);
/* Whether a file of /sys/class/dmi, in which the machine itself says whose it is, begins so; nothing is sent
 * to find out. */
bool web_machine_says(const char *file, struct slice start);

/* ---- XML ---- */

struct web_xml;
/* Called at the end of each element with its text (trimmed of nothing) and the name of the one around it;
 * names come without their namespace prefix. depth 1 is the root. Anything but 0 ends the parse with that. */
typedef int (*web_xml_fn)(void *arg, unsigned depth, const char *parent, const char *name, struct slice text,
                          struct err *e);
struct web_xml *web_xml_new(uint64_t max_bytes, web_xml_fn on_end, void *arg);
void web_xml_free(struct web_xml *x);
DEFINE_CLEANUP(struct web_xml, web_xml_free)
int web_xml_feed(struct web_xml *x, const void *p, size_t n, struct err *e);
int web_xml_end(struct web_xml *x, struct err *e);
/* Text with &, <, >, " and what XML 1.0 cannot hold escaped; -EILSEQ for the latter. */
int web_xml_escape(struct buf *b, struct slice s);
