/*
 * Origins: the remote stores behind mirror buckets. One file per kind behind one table of functions. Calls
 * block; all are thread-safe on one origin. Nothing here retries, caches or hedges: one call is one request
 * (or one multipart upload), classified; `object` decides what follows.
 *
 * Errors are classified: -ENOENT (no such key or bucket), ERR_ORIGIN_DENIED (401, 403), ERR_ORIGIN_BUSY (429,
 * 503, SlowDown), ERR_ORIGIN_DOWN (cannot connect, name unknown, connection reset before an answer, 502),
 * ERR_ORIGIN_FAILED (other 5xx, and answers that make no sense), ERR_ORIGIN_REFUSED (3xx and other 4xx:
 * another try would end alike), ERR_ORIGIN_SETUP (a certificate that is not trusted, another region, a
 * redirect, another node that says so of its own origin: nothing that a request could change), ERR_CONFLICT
 * (409: someone else wrote at the same moment), ERR_ORIGIN_SHORT (body shorter or longer than announced),
 * -ETIMEDOUT, ERR_PRECONDITION (412), ERR_NOT_MODIFIED (304), ERR_RANGE (416), -ECANCELED (the cancel flag
 * said so, or the thread's scopes do, base/quit.h; what the sink returns is passed through as it is). The err
 * text carries the origin's own words: status, S3 code and message.
 *
 * The process must ignore SIGPIPE: TLS connections raise it when the origin closes them.
 */
#pragma once

#include "base/arena.h"
#include "base/err.h"
#include "base/option.h"
#include "origin/trail.h"

#include <stdatomic.h>

struct origin;

#define ORIGIN_KEY_MAX_BYTES  1024
#define ORIGIN_ETAG_MAX       128
#define ORIGIN_META_MAX_BYTES (8 * KIB)

/* What is known of an object. Strings live in the arena given to the call. */
struct origin_attr {
    uint64_t size_bytes;
    uint64_t mtime_ns;         /* Last-Modified, real time */
    struct slice etag;         /* with its quotes removed */
    struct slice content_type; /* may be empty */
    /* "name: value\n" lines of headers kept with the object: x-amz-meta-*, cache-control, content-encoding,
     * content-disposition, content-language, expires; lower-case names. Other lines stay on this side;
     * META_CHECKSUM is known to S3 origins by their own header. Empty in listings. */
    struct slice meta;
    /* Of the part that origin_get.part names; n_parts 0: none was asked for, or the origin tells nothing. */
    uint32_t n_parts; /* of the object */
    uint64_t part_offset, part_bytes;
    struct slice part_sum; /* its checksum, "SUFFIX BASE64"; empty: not told */
};

/* What a bucket says about its origin; every row is a bucket property "origin.NAME". */
#define ORIGIN_OPTIONS(X)                                                                                    \
    X(endpoint, STRING, "origin.endpoint", "URL", NULL, 0, 0, NULL, false,                                   \
      "address of the service, for example http://10.0.0.5:9000; default the public cloud's")                \
    X(region, STRING, "origin.region", "NAME", NULL, 0, 0, NULL, false,                                      \
      "region to sign for; default AWS_REGION, then us-east-1")                                              \
    X(access_key, STRING, "origin.access_key", "KEY", NULL, 0, 0, NULL, false,                               \
      "access key; default AWS_ACCESS_KEY_ID, then ~/.aws/credentials")                                      \
    X(secret_key, STRING, "origin.secret_key", "SECRET", NULL, 0, 0, NULL, true, "secret key")               \
    X(session_token, STRING, "origin.session_token", "TOKEN", NULL, 0, 0, NULL, true, "session token")       \
    X(profile, STRING, "origin.profile", "NAME", NULL, 0, 0, NULL, false,                                    \
      "s3: profile of ~/.aws/config and ~/.aws/credentials of the node, in place of the environment's keys") \
    X(credentials_file, STRING, "origin.credentials_file", "FILE", NULL, 0, 0, NULL, false,                  \
      "gs: JSON file of a service account, user or external account; default "                               \
      "GOOGLE_APPLICATION_CREDENTIALS")                                                                      \
    X(account, STRING, "origin.account", "NAME", NULL, 0, 0, NULL, false,                                    \
      "az: storage account; default AZURE_STORAGE_ACCOUNT")                                                  \
    X(account_key, STRING, "origin.account_key", "KEY", NULL, 0, 0, NULL, true,                              \
      "az: the account's key; default AZURE_STORAGE_KEY")                                                    \
    X(sas, STRING, "origin.sas", "QUERY", NULL, 0, 0, NULL, true,                                            \
      "az: shared access signature; default AZURE_STORAGE_SAS_TOKEN")                                        \
    X(manifest, STRING, "origin.manifest", "PATH", NULL, 0, 0, NULL, false,                                  \
      "http: file below the origin that lists its objects, instead of index pages")                          \
    X(uid, STRING, "origin.uid", "N", NULL, 0, 0, NULL, false,                                               \
      "nfs: number of the user that the server sees; default the node's")                                    \
    X(gid, STRING, "origin.gid", "N", NULL, 0, 0, NULL, false,                                               \
      "nfs: number of the group that the server sees; default the node's")                                   \
    X(mount_port, UINT, "origin.mount_port", "PORT", "0", 0, 65535, NULL, false,                             \
      "nfs: port of the mount service; 0: asked of the server's port mapper")                                \
    X(user, STRING, "origin.user", "NAME", NULL, 0, 0, NULL, false,                                          \
      "hdfs: user to act as; default HADOOP_USER_NAME, then the node's")                                     \
    X(delegation_token, STRING, "origin.delegation_token", "TOKEN", NULL, 0, 0, NULL, true,                  \
      "hdfs: delegation token, instead of a user")                                                           \
    X(metadata_endpoint, STRING, "origin.metadata_endpoint", "URL", NULL, 0, 0, NULL, false,                 \
      "instance metadata service to take credentials from; default the cloud's own, on its machines")        \
    X(anonymous, BOOL, "origin.anonymous", NULL, "false", 0, 0, NULL, false,                                 \
      "s3, gs, az: requests are not signed, whatever credentials the node has: public buckets")              \
    X(requester_pays, BOOL, "origin.requester_pays", NULL, "false", 0, 0, NULL, false,                       \
      "s3: the node's account pays for requests and bytes, which such buckets demand")                       \
    X(billing_project, STRING, "origin.billing_project", "NAME", NULL, 0, 0, NULL, false,                    \
      "gs: the project that pays for requests and bytes, which buckets with requester pays demand")          \
    X(sse, ENUM, "origin.sse", "KIND", "default", 0, 0, "default|AES256|aws:kms|aws:kms:dsse", false,        \
      "s3: how the service encrypts what is written; default: as its bucket says")                           \
    X(sse_key, STRING, "origin.sse_key", "ID", NULL, 0, 0, NULL, false,                                      \
      "s3: the key of KMS for that, by id, ARN or alias; default the service's own")                         \
    X(style, ENUM, "origin.style", "STYLE", "auto", 0, 0, "auto|path|virtual", false,                        \
      "path: endpoint/bucket/key, virtual: bucket.endpoint/key; auto: path when an endpoint is given")       \
    X(conditional_put, BOOL, "origin.conditional_put", NULL, "true", 0, 0, NULL, false,                      \
      "whether the service honours If-None-Match and If-Match on PUT; without, such a PUT is refused")       \
    X(tags, BOOL, "origin.tags", NULL, "true", 0, 0, NULL, false,                                            \
      "s3: whether the service keeps tags of objects; without, they are kept as metadata")                   \
    X(checksums, BOOL, "origin.checksums", NULL, "true", 0, 0, NULL, false,                                  \
      "s3: whether the service is given the checksums of uploads in parts that ask for some, where it says " \
      "that it keeps them; without, the node alone verifies them")                                           \
    X(timeout, DURATION, "origin.timeout", "TIME", "30s", 100, 3600000, NULL, false,                         \
      "most time without progress before a request counts as failed")                                        \
    X(min_rate, SIZE, "origin.min_rate", "SIZE", "1KiB", 0, GIB, NULL, false,                                \
      "fewest bytes a second of what is read, over each origin.timeout; one that sends fewer counts as "     \
      "failed; 0: any number")                                                                               \
    X(connect_timeout, DURATION, "origin.connect_timeout", "TIME", "10s", 50, 600000, NULL, false,           \
      "most time to find the address and connect; the resolver asks a second name server after 5s")          \
    X(connections, UINT, "origin.connections", "N", "128", 1, 1024, NULL, false,                             \
      "most requests to this origin at the same time")                                                       \
    X(ca_file, STRING, "origin.ca_file", "FILE", NULL, 0, 0, NULL, false,                                    \
      "certificates to trust for https, instead of the system's")                                            \
    X(part_size, SIZE, "origin.part_size", "SIZE", "16MiB", 5 * MIB, 5 * GIB, NULL, false,                   \
      "size of the parts of an upload; larger objects are uploaded as multipart")                            \
    X(parts, BOOL, "origin.parts", NULL, "true", 0, 0, NULL, false,                                          \
      "gs: whether uploads in parts go through in parallel, each part a temporary object below "             \
      ".forebay-parts/ until compose makes one of them; without, such an upload must fit into the cache")    \
    X(storage_class, STRING, "origin.storage_class", "CLASS", NULL, 0, 0, NULL, false,                       \
      "class in which objects are written: STANDARD_IA (s3), NEARLINE (gs), Cool (az)...; default the "      \
      "service's")                                                                                           \
    X(as_of, STRING, "origin.as_of", "DATE", NULL, 0, 0, NULL, false,                                        \
      "s3, gs: what a bucket with versions had at this time, as 2026-01-31T00:00:00Z; read-only")            \
    X(version, STRING, "origin.version", "ID", NULL, 0, 0, NULL, false,                                      \
      "s3, gs, az: this version of the one object that the URL names; read-only")

#define ORIGIN_FIELD_STRING   char *
#define ORIGIN_FIELD_ENUM     int
#define ORIGIN_FIELD_BOOL     bool
#define ORIGIN_FIELD_DURATION uint64_t
#define ORIGIN_FIELD_UINT     uint64_t
#define ORIGIN_FIELD_SIZE     uint64_t

struct origin_options {
#define X(field, type, ...) ORIGIN_FIELD_##type field;
    ORIGIN_OPTIONS(X)
#undef X
};

extern const struct option_table origin_option_table;

#define ORIGIN_PARTS_MAX 16 /* of one body that are on their way together */
/* How many of the n parts of a body (at least 1) are: all of a few, a quarter of many. An object service
 * gives each connection a share, so that a few of them fill no link, and the last ones are soon alone. */
unsigned origin_parts_at_once(uint64_t n);

enum origin_capability {
    ORIGIN_CAN_RANGE = 1 << 0,
    ORIGIN_CAN_IF_MATCH = 1 << 1,        /* on reads */
    ORIGIN_CAN_CONDITIONAL_PUT = 1 << 2, /* If-None-Match: * and If-Match on PUT are honoured */
    ORIGIN_CAN_COPY = 1 << 3,
    ORIGIN_CAN_MULTIPART = 1 << 4,
    ORIGIN_CAN_META = 1 << 5,  /* keeps content type and user metadata */
    ORIGIN_CAN_PARTS = 1 << 6, /* tells where parts of an upload are in the object */
    /* "a/b/" is a directory, whose ETag changes with what lies in it, and which goes only when it is empty.
     */
    ORIGIN_HAS_DIRECTORIES = 1 << 7,
    ORIGIN_CAN_VERSIONS = 1 << 8, /* earlier versions can be asked for: origin.as_of, origin.version */
    ORIGIN_CAN_TAGS = 1 << 9,     /* keeps tags of objects, those of META_TAGS in a write too: origin_tags */
    ORIGIN_CAN_MODES = 1 << 10,   /* with `posix`, for jobs: files keep mode and owner as they are written */
    ORIGIN_SENDS_PARTS = 1 << 11, /* of a large body several parts are on their way together */
    /* With an object's bytes comes none of its metadata, and its time to the second or not at all: they are
     * asked for apart. */
    ORIGIN_BYTES_ALONE = 1 << 12,
    /* Without ORIGIN_CAN_CONDITIONAL_PUT a condition is looked at just before the write: atomic among the
     * writers of this process only. */
    ORIGIN_LOOKS_FIRST = 1 << 13,
};

struct origin_get {
    struct slice key;   /* below the origin's prefix, not encoded */
    uint64_t offset, n; /* n 0 with whole: no Range header */
    bool whole;
    struct slice if_match; /* ETag without quotes, or empty */
    /* With attributes_only: the ETag by which the caller knows the object. No condition, because "not
     * modified" would say nothing of metadata, which can change alone; a layer shows that version by it. */
    struct slice known;
    atomic_bool *cancel;  /* may be NULL; set from another thread to stop soon */
    bool attributes_only; /* HEAD */
    uint32_t part;        /* with attributes_only and ORIGIN_CAN_PARTS: where this part is, too; 0: none */
};

/*
 * Called with pieces of the body in order on the caller's thread. `attr` is complete from the first call on,
 * and there is at least one call (n may be 0) before success is returned. The first has no bytes where the
 * head of the answer came before its body: time to make ready for that. Anything but 0 stops the request
 * and becomes the result of origin_get. A range from 0 of an empty object succeeds with one call without
 * bytes; other ranges behind the end give ERR_RANGE and no call.
 */
typedef int (*origin_sink_fn)(void *arg, const struct origin_attr *attr, const void *p, size_t n);

/* The file of which a body is the first bytes, for who may keep that one instead of a copy. The owner of a
 * staged one does not ask for the body's MD5 as ETag. */
struct extent;
struct hard;
struct upload_record; /* namespace/upload.h */
struct origin_file {
    struct extent *extent; /* staged (store/store.h); NULL: its bytes must be copied */
    bool may_change;       /* somebody may go on writing to it */
    struct hard *hard;     /* instead: synced, and nobody writes to it (store/hard.h) */
    bool has_md5;          /* of `hard` */
    uint8_t md5[16];
    const struct upload_record *upload; /* of `hard`: who records it completes that with it; NULL: none */
    bool is_kept; /* set by who did that, or may have; `hard` is not the caller's then */
};

struct origin_body {
    uint64_t size_bytes;
    struct origin_file *file; /* NULL: it is none, or none that may be kept */
    /* Gives bytes [offset, offset+n) of the body: >0 how many, or a negative error that stops the upload. May
     * block until they are there. May be called from several threads at once for different parts, and again
     * for what was read before, also after a failure. */
    ssize_t (*read)(void *arg, void *p, size_t n, uint64_t offset);
    void *arg;
    /* Of a part of an upload with checksums: its own, in hex; empty while it is not known, and who waits gets
     * it, or nothing when the part is given up. It is known once all bytes were read, if there are any. NULL:
     * it has none. */
    struct slice (*sum)(void *arg, bool wait);
    bool once; /* of a part: bytes are gone when those behind them were read */
    bool slow; /* bytes come when somebody sends them, who may read from this very origin for it */
};

struct origin_put {
    struct slice key;
    struct slice content_type;
    struct slice meta; /* as origin_attr.meta */
    struct slice sums; /* of an upload in parts: which checksums they have, "SUFFIX TYPE" (s3/part_list.h)
                          as "crc32c COMPOSITE"; empty: none */
    struct slice
        whole_sum; /* of the end of one with them: the object's, as META_CHECKSUM; empty: not known */
    struct slice payload_sha256; /* hex, when the caller knows it; else computed or unsigned */
    struct slice content_md5;    /* base64, may be empty */
    bool whole; /* with one of these: in one request where the kind can, so that the ETag is the one that such
                   a request gives */
    struct slice if_match;
    bool if_none_match; /* only when no object is there */
    atomic_bool *cancel;
    /* For how long what is one request of several, a part or the end of an upload, is repeated while its
     * origin is away, from its first failure on; it is tried a few times in any case. */
    uint64_t patience_ms;
    _Atomic int *reach; /* enum origin_reach, of what has conditions; NULL: nobody asks */
};

/* How far a put came. Kinds that cannot tell leave it as it was. */
enum origin_reach {
    ORIGIN_REACH_UNKNOWN,
    ORIGIN_REACH_NOTHING, /* no request that could make the object has left */
    ORIGIN_REACH_PERHAPS,
};

struct origin_entry {
    struct slice key; /* below the origin's prefix */
    bool is_prefix;   /* a common prefix (ends with the delimiter) */
    struct origin_attr attr;
};

struct origin_list {
    struct slice prefix;
    char delimiter;     /* 0: none */
    struct slice after; /* only keys (and common prefixes) after this one */
    struct slice token; /* the origin's own continuation from the page before; empty at first */
    uint32_t max;       /* most entries, at most 1000 */
    bool directories;   /* set by origin_list: directories are entries also when they are not empty */
    bool unfit;         /* names that no key can have are entries, see below */
};

/* The ETag of an entry that stands for names longer than any key, or than one name in a key of a directory
 * may be (255 bytes), in listings for jobs, which tell of them: its key is how they begin, as long as a key
 * may be, or one byte longer than such a name. It sorts where they do; of several that begin so it is one. */
#define ORIGIN_ETAG_UNFIT "longer-than-any-key"

struct origin_page {
    struct origin_entry *entries; /* in byte order of key */
    size_t n;
    bool truncated;
    struct slice next_token;
    /* How far the origin's answer reached, where it also had what is no entry: bytes that go up from page to
     * page. Empty: to the last entry. */
    struct slice reached;
};

/* A listing of which a caller asks page after page for as long as it gets nothing: whether that has an end.
 * Services send empty pages at times, and some lose their place; one that does nothing else would be asked
 * for ever. All zero at first. */
#define ORIGIN_IDLE_PAGES_MAX 100 /* in a row that lead no further than those before */
struct origin_walk {
    unsigned n_idle;
    size_t n;
    char reached[ORIGIN_KEY_MAX_BYTES + 16];
};
/* After each page. ERR_ORIGIN_FAILED: no further one is asked for. */
int origin_walk_on(struct origin_walk *w, const struct origin_page *page, struct err *e);

/* An upload in parts that is driven from outside: it outlives calls, and this process. Kinds without leave
 * the four functions out (origin_has_uploads). */
#define ORIGIN_UPLOAD_ID_MAX 1024

struct origin_part {
    uint32_t number;   /* 1 to 10000, rising */
    struct slice etag; /* as upload_part gave it */
    struct slice sum;  /* of an upload with checksums: its own, in hex */
    struct slice md5;  /* of its bytes, in hex; empty: not known */
};

/* A copy that the service makes by itself, perhaps out of another of its buckets. */
struct origin_copy {
    struct origin *source;
    struct slice from, to;
    struct slice if_match;           /* of the source: ETag without quotes, or empty */
    bool replaces_meta;              /* it has this content type and metadata, not the source's */
    bool replaces_tags;              /* it has the tags of META_TAGS in `meta`, not the source's */
    struct slice content_type, meta; /* as in origin_put */
};

/* What each kind implements; callers use the origin_* functions below. */
struct origin_ops {
    const char *scheme; /* "s3" */
    unsigned keeps;     /* of ORIGIN_CAN_VERSIONS and ORIGIN_CAN_TAGS */
    bool is_deaf; /* what it waits for cannot be given up: the kernel's own file systems (base/quit.h) */
    int (*open)(struct slice rest_of_url, const struct origin_options *o, struct origin **ret, struct err *e);
    void (*close)(struct origin *o);
    /* origin_identify; NULL: there is nothing to say. */
    int (*identify)(struct origin *o, struct buf *b, struct err *e);
    int (*get)(struct origin *o, const struct origin_get *g, struct arena *a, struct origin_attr *ret_attr,
               origin_sink_fn sink, void *arg, struct err *e);
    int (*list)(struct origin *o, const struct origin_list *l, struct arena *a, struct origin_page *ret,
                struct err *e);
    int (*put)(struct origin *o, const struct origin_put *p, const struct origin_body *body, struct arena *a,
               struct origin_attr *ret_attr, struct err *e);
    int (*remove)(struct origin *o, struct slice key, struct slice if_match, struct err *e);
    int (*copy)(struct origin *o, struct slice from, struct slice to, struct slice if_match, struct arena *a,
                struct origin_attr *ret_attr, struct err *e);
    /* origin_takes; NULL: any. */
    int (*takes)(struct origin *o, const struct origin_put *p, uint64_t size_bytes, struct err *e);
    /* NULL where that cannot be done. */
    int (*set_meta)(struct origin *o, const struct origin_put *p, uint64_t size_bytes, struct arena *a,
                    struct origin_attr *ret_attr, struct err *e);
    /* p: key, content type and metadata of the object. */
    int (*upload_create)(struct origin *o, const struct origin_put *p, char ret_id[ORIGIN_UPLOAD_ID_MAX],
                         bool *ret_sums, struct err *e);
    int (*upload_part)(struct origin *o, const struct origin_put *p, struct slice id, uint32_t number,
                       const struct origin_body *body, char ret_etag[ORIGIN_ETAG_MAX + 1], struct err *e);
    int (*upload_complete)(struct origin *o, const struct origin_put *p, struct slice id,
                           const struct origin_part *parts, size_t n, uint64_t size_bytes, struct arena *a,
                           struct origin_attr *ret_attr, struct err *e);
    int (*upload_abort)(struct origin *o, struct slice key, struct slice id, struct err *e);
    /* NULL without ORIGIN_CAN_TAGS. */
    int (*has_tag)(struct origin *o, struct slice key, struct slice name, struct slice value,
                   atomic_bool *cancel, bool *ret, struct err *e);
    int (*tags)(struct origin *o, struct slice key, struct buf *ret, struct err *e);
    int (*set_tags)(struct origin *o, struct slice key, struct slice tags, struct err *e);
    /* origin_is_beside; NULL: never. The two below are there with it. */
    bool (*is_beside)(const struct origin *o, const struct origin *source);
    int (*copy_from)(struct origin *o, const struct origin_copy *c, struct arena *a,
                     struct origin_attr *ret_attr, struct err *e);
    int (*upload_copy)(struct origin *o, const struct origin_put *p, struct slice id, uint32_t number,
                       const struct origin_copy *c, uint64_t offset, uint64_t n,
                       char ret_etag[ORIGIN_ETAG_MAX + 1], struct err *e);
    /* origin_rest; NULL: no connection is kept. */
    size_t (*rest)(struct origin *o, uint64_t now_ms);
};

/* Who keeps in mind which uploads in parts the service has: one that has a name there now, and one that has
 * none any more, or (is_gone false) is left there. */
struct origin;
struct origin_uploads {
    void (*begun)(const struct origin *o, struct slice key, struct slice id);
    void (*ended)(const struct origin *o, struct slice id, bool is_gone);
};

#define ORIGIN_PLACE_BYTES 16

/* Who pays for what goes on between here and an origin. Any thread, without locks. */
struct origin_meter {
    /* So many bytes of a body came, or leave now; those of requests that fail and of tries, too. */
    void (*moved)(void *arg, uint64_t bytes);
    /* One operation sends a further request, as a part of an object: 0: it goes, and is paid for; else look
     * again after so many milliseconds. */
    uint64_t (*turn)(void *arg);
    /* This thread has asked nothing yet and waits, perhaps for long, for what others ask: its place among the
     * requests, if it has one, is for them; and is taken again. goes_on: it asks now, and waits for a place;
     * else it is given up, and only leaves. */
    void (*aside)(void *arg);
    void (*back)(void *arg, bool goes_on);
};

/* First member of each kind's struct. */
struct origin {
    const struct origin_ops *ops;
    unsigned capabilities;
    char *bucket_name;   /* the Forebay bucket, for metrics labels */
    char *url;           /* as opened, for errors */
    char *storage_class; /* of what is written; NULL: the service's default */
    bool is_view;        /* of earlier versions: nothing is written through it, -EROFS */
    bool posix; /* modes, owners, times and links of files are kept (net/posix_meta.h): the file kind's own.
                   Set before the first call */
    bool begins_no_uploads; /* in parts, from outside; those that were begun before go on. Set by kinds */
    bool of_job; /* with `posix`: every directory is listed, and a mode or owner that may not be given is left
                    as it is. Set before the first call */
    /* The node stops: what hears nothing, and then all that is under way, is given up (base/quit.h). May be
     * NULL. Set before the first call. */
    atomic_bool *stop_soon, *stop;
    /* Told of those that a put or a copy makes of itself; NULL: nobody is. Set before the first call, with
     * what is theirs. */
    const struct origin_uploads *uploads;
    void *uploads_arg;
    uint8_t place[ORIGIN_PLACE_BYTES];
    const struct origin_meter *meter; /* NULL: nobody pays. Set before the first call */
    void *meter_arg;
    /* For how long something that goes on at the service by itself is asked about while that does not answer.
     * Set before the first call. */
    uint64_t patience_ms;
    _Atomic uint64_t paused_until_ms; /* monotonic; 0: never. By origin_pause */
    struct trail trail;               /* by whom the bucket is asked, and its own name there */
    _Atomic uint64_t *shared_pause;   /* instead, of all that ask one service; NULL: its own. Set before the
                                         first   call */
};

/* Which node this process is, before any origin is opened: what a killed run of it was writing into a
 * directory is told from what others write there now. A process has one. */
void origin_set_node(struct slice node_id);
/* "s3://bucket/prefix", "gs://bucket/prefix", "az://container/prefix", "http://host/path",
 * "forebay://host:port/bucket", "hdfs://host:port/path", "nfs://host/export/dir", "file:///dir". bucket_name
 * labels the metrics. */
int origin_open(const char *url, const struct origin_options *o, const char *bucket_name, struct origin **ret,
                struct err *e);
void origin_close(struct origin *o);
DEFINE_CLEANUP(struct origin, origin_close)
/* Ends connections that nobody has used for ORIGIN_REST_MS by `now_ms` (monotonic); gives how many. Each is
 * some descriptors and some ten KiB, and a bucket may have had origin.connections of them at once. Any
 * thread, now and then. */
#define ORIGIN_REST_MS 60000
size_t origin_rest(struct origin *o, uint64_t now_ms);
/* One line for every kind: "s3, gs, az, http, https, forebay, hdfs, nfs, file". */
const char *origin_schemes(void);

/* These count METRIC_ORIGIN_* and prefix errors with "origin URL: ". Sizes of bodies are checked: fewer or
 * more bytes than announced, or another range than asked for, give ERR_ORIGIN_SHORT. */
int origin_get(struct origin *o, const struct origin_get *g, struct arena *a, struct origin_attr *ret_attr,
               origin_sink_fn sink, void *arg, struct err *e);
/* What is below a prefix longer than any key is nothing, and not asked for. */
int origin_list(struct origin *o, const struct origin_list *l, struct arena *a, struct origin_page *ret,
                struct err *e);
int origin_put(struct origin *o, const struct origin_put *p, const struct origin_body *body, struct arena *a,
               struct origin_attr *ret_attr, struct err *e);
/* Whether an object of this key, type, metadata and size can be put at all: 0, or the error that any put of
 * it ends with, whatever the origin has. Nobody is asked, so that it may be accepted for later. */
int origin_takes(struct origin *o, const struct origin_put *p, uint64_t size_bytes, struct err *e);
/* Whether the conditions of a put are looked at: by the origin, or at least just before. */
bool origin_heeds_conditions(const struct origin *o);
/* -ENOENT when nothing was there and the origin says so; S3 reports success. */
int origin_remove(struct origin *o, struct slice key, struct slice if_match, struct err *e);
int origin_copy(struct origin *o, struct slice from, struct slice to, struct slice if_match, struct arena *a,
                struct origin_attr *ret_attr, struct err *e);
/* Gives the object p->key the content type and metadata of `p`; its bytes stay, and so may lines that it has
 * and `p` lacks. p->if_match, the ETag of the object that is meant, and its size are needed; the ETag
 * afterwards may be another one, and is in *ret_attr, with everything else as it is now. ERR_NOT_IMPLEMENTED
 * where the kind cannot do that. */
int origin_set_meta(struct origin *o, const struct origin_put *p, uint64_t size_bytes, struct arena *a,
                    struct origin_attr *ret_attr, struct err *e);

/* Appends whose credentials are used and where they are from, in words without any secret, and gets them
 * where somebody gives them: the error says why not. -E2BIG. */
int origin_identify(struct origin *o, struct buf *b, struct err *e);

/* Whether the four below are there. Parts may come in any order and at the same time; a part sent again
 * replaces the one before. -ENOENT: the origin does not know the upload (any more). */
bool origin_has_uploads(const struct origin *o);
/* Whether new ones are begun, too. */
bool origin_begins_uploads(const struct origin *o);
/* *ret_sums: the origin has taken p->sums, and all parts are to come with one, named in their `p` again, as
 * in that of the completion; else none is, and nobody tells it of any. */
int origin_upload_create(struct origin *o, const struct origin_put *p, char ret_id[ORIGIN_UPLOAD_ID_MAX],
                         bool *ret_sums, struct err *e);
/* Of `p` only key, sums and cancel count. Sent once; nobody keeps a part whose body gave an error. */
int origin_upload_part(struct origin *o, const struct origin_put *p, struct slice id, uint32_t number,
                       const struct origin_body *body, char ret_etag[ORIGIN_ETAG_MAX + 1], struct err *e);
/* `p`: key, sums, conditions, and type and metadata as they were given at its creation, which some kinds are
 * told only now and ret_attr is to show. After a lost answer the object may be there; asked again, a kind
 * that can tell that the object is of these parts, and that this upload made it, says so, whatever the
 * conditions meet by now. */
int origin_upload_complete(struct origin *o, const struct origin_put *p, struct slice id,
                           const struct origin_part *parts, size_t n, uint64_t size_bytes, struct arena *a,
                           struct origin_attr *ret_attr, struct err *e);
int origin_upload_abort(struct origin *o, struct slice key, struct slice id, struct err *e);
/* Tells `uploads`: by kinds, and by who drives one from outside and keeps no record of it. */
void origin_note_upload(const struct origin *o, struct slice key, struct slice id);
void origin_note_upload_end(const struct origin *o, struct slice id, bool is_gone);

/* Whether the object (of a view: its version) has this tag: one request. -ENOENT: there is no such object;
 * ERR_NOT_IMPLEMENTED: the kind keeps no tags. */
int origin_has_tag(struct origin *o, struct slice key, struct slice name, struct slice value,
                   atomic_bool *cancel, bool *ret, struct err *e);

/* All tags of the object, appended in their kept form, "NAME=VALUE&..." percent-encoded, in the service's
 * order. Errors as above. */
int origin_tags(struct origin *o, struct slice key, struct buf *ret, struct err *e);
/* Gives it these tags, in that form, in place of those it has; empty: none. Its bytes, ETag and metadata
 * stay. */
int origin_set_tags(struct origin *o, struct slice key, struct slice tags, struct err *e);

/* Whether the service of `o` can copy out of `source`: the same one, asked with the same keys. */
bool origin_is_beside(const struct origin *o, const struct origin *source);
/* Of two that are: no bytes come here. -ENOENT: the source is not there; ERR_PRECONDITION: it has another
 * ETag. ERR_NOT_IMPLEMENTED for tags that are no tags there. */
int origin_copy_from(struct origin *o, const struct origin_copy *c, struct arena *a,
                     struct origin_attr *ret_attr, struct err *e);
/* The same of bytes [offset, offset+n) as a part of an upload; `p` as of origin_upload_part, c->to is not
 * looked at. -ENOENT: the upload or the source is not there. */
int origin_upload_copy(struct origin *o, const struct origin_put *p, struct slice id, uint32_t number,
                       const struct origin_copy *c, uint64_t offset, uint64_t n,
                       char ret_etag[ORIGIN_ETAG_MAX + 1], struct err *e);

/* The modification time that travels as metadata (net/posix_meta.h). False when the lines have none that can
 * be read. */
bool origin_meta_mtime(struct slice meta, uint64_t *ret_ns);

/* The origin answered that it wants no request for so long (Retry-After), counted from now; at most
 * ORIGIN_PAUSE_MAX_MS of that are believed. What asked for longer before still holds. */
#define ORIGIN_PAUSE_MAX_MS 30000
void origin_pause(struct origin *o, uint64_t for_ms);
/* For how long it wants none, by what it said last. */
uint64_t origin_pause_ms(const struct origin *o, uint64_t now_ms);

/* ---- retry.c: pure decisions about trying again, and adaptive concurrency ---- */

#define RETRY_ATTEMPTS_MAX 10 /* of what the origin answers wrongly */
#define RETRY_FIRST_MS     50
#define RETRY_LONGEST_MS   10000
#define RETRY_LAST_MS      1000 /* less is not worth a last try before the deadline */

struct retry {
    uint32_t attempt; /* number of the try that failed; 0 for the first */
    uint32_t wrong;   /* how many of those before it were answered, but wrongly */
    uint64_t started_ms;
    bool has_waited; /* since before its first try, while the origin was away */
};
/* Whether an error class is worth another try at all: busy, down, failed, short, conflict, timed out. */
bool retry_is_transient(int code);
/* Milliseconds to wait before try number attempt+1: pause_ms, for which the origin wants no request, and full
 * jitter, exponential from 50 ms to 10 s (`random`: any 64 bits), or 5 to 10 s where the origin-wide budget
 * is empty. -1 to give up: not transient, or the deadline (0: none) is there or too near. An origin that is
 * away, busy, or says nothing is asked until then; one that answers, but wrongly, until RETRY_ATTEMPTS_MAX
 * tries were answered so. */
int64_t retry_delay_ms(const struct retry *r, int code, uint64_t now_ms, uint64_t deadline_ms,
                       uint64_t pause_ms, bool budget_left, uint64_t random);
/* Whether a try of so many milliseconds that broke off behind `bytes` got on: then patience begins anew. Not
 * so where one as slow, or one that breaks off as soon, would never end. least_per_s: origin.min_rate. */
bool retry_gets_on(uint64_t bytes, uint64_t ms, uint64_t least_per_s);
/* The try that came to `code` is followed by another. */
void retry_count(struct retry *r, int code);

/* Budget: every success earns 0.1 token, every retry costs 1; starts with and never exceeds `max`. Atomic. */
struct retry_budget {
    _Atomic int64_t tenths;
    int64_t max_tenths;
};
void retry_budget_init(struct retry_budget *b, int64_t max_tokens);
bool retry_budget_take(struct retry_budget *b);
void retry_budget_earn(struct retry_budget *b);

/* Additive increase, multiplicative decrease of how many requests run at once; before the first decrease it
 * doubles with every round, so that an origin that takes it is asked by as many as it may be within a few
 * round trips. Pure: state in, state out. */
struct concurrency {
    double limit; /* current */
    double floor, ceiling;
    uint64_t last_cut_ms; /* 0: never */
};
void concurrency_init(struct concurrency *c, double start, double floor, double ceiling);
void concurrency_on_success(struct concurrency *c);
/* Busy answers halve it, other transient errors cut a tenth, both at most once per second; errors that say
 * nothing about load (-ENOENT, ERR_PRECONDITION, ...) change nothing. */
void concurrency_on_failure(struct concurrency *c, int code, uint64_t now_ms);
