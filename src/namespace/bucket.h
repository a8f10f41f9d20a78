/*
 * Buckets, mirrors of an origin or scratch: their properties, their records in the control store, and the
 * table of them in memory.
 *
 * A bucket in memory is an immutable, counted snapshot: a change of properties makes a new one, and
 * operations that run keep the one they began with. A bucket id is never reused.
 */
#pragma once

#include "base/buf.h"
#include "base/err.h"
#include "kv/kv.h"
#include "namespace/rules.h"
#include "origin/origin.h"

#define BUCKET_NAME_MAX 63
/* All properties as text: a record, which has but those that differ from their defaults, and the defaults. */
#define BUCKET_SETTINGS_MAX (128 * KIB)

/* X(field, type, name, argument, default, min, max, choices, secret, doc); origin.* rows follow from
 * origin.h. */
#define BUCKET_PROPERTIES(X)                                                                                 \
    X(origin, STRING, "origin", "URL", NULL, 0, 0, NULL, false,                                              \
      "where the data is: s3://BUCKET[/PREFIX], gs://BUCKET[/PREFIX], az://CONTAINER[/PREFIX], "             \
      "http[s]://HOST[/PATH] (read-only), forebay://HOST:PORT/BUCKET[/PREFIX], hdfs://HOST:PORT[/PATH], "    \
      "nfs://HOST[:PORT]/EXPORT[/DIR] or file:///DIR; without, the bucket is a scratch bucket")              \
    X(validate, STRING, "validate", "never|ttl:TIME|always", "ttl:60s", 0, 0, NULL, false,                   \
      "when cached attributes and listings are checked against the origin again")                            \
    X(validate_listing, STRING, "validate.listing", "never|ttl:TIME|always", NULL, 0, 0, NULL, false,        \
      "the same of listings alone, which names there are; without, as validate")                             \
    X(verify, ENUM, "verify", "MODE", "fill", 0, 0, "fill|read", false,                                      \
      "read: check every block on every read; gives up passthrough and sendfile")                            \
    X(readahead, SIZE, "readahead", "SIZE", "128MiB", 0, 4 * GIB, NULL, false,                               \
      "most bytes fetched ahead of one open file")                                                           \
    X(retry_time, DURATION, "retry", "TIME", "60s", 0, 3600000, NULL, false,                                 \
      "how long a request that fails because the origin is away, busy or silent is repeated before its "     \
      "error is reported, counted from the failure; wrong answers, as 500, ten times at most")               \
    X(upload_expiry, DURATION, "upload_expiry", "TIME", "7d", 1000, 31536000000, NULL, false,                \
      "uploads in parts to which nothing was added for so long are aborted")                                 \
    X(cache, ENUM, "cache", "MODE", "auto", 0, 0, "auto|never", false,                                       \
      "never: nothing of the bucket is kept on the node's disks")                                            \
    X(write, ENUM, "write", "MODE", "through", 0, 0, "through|back", false,                                  \
      "when a write is acknowledged: through, when the origin has it; back, when it is durable on this "     \
      "node")                                                                                                \
    X(write_delay, DURATION, "write_delay", "TIME", "1s", 0, 3600000, NULL, false,                           \
      "with write=back, how long a write stays here before it goes to the origin, so that what is renamed, " \
      "changed or removed soon after goes there once, or not at all")                                        \
    X(conflict, ENUM, "conflict", "MODE", "copy", 0, 0, "copy|overwrite", false,                             \
      "with write=back, when the origin's object changed meanwhile: copy keeps it and writes ours beside "   \
      "it, overwrite replaces it")                                                                           \
    X(posix, ENUM, "posix", "MODE", "off", 0, 0, "off|on", false,                                            \
      "on: mounts keep mode, owner, time and symbolic links with the objects, which costs a request for "    \
      "each file that is looked at")                                                                         \
    X(events_token, STRING, "events.token", "TOKEN", NULL, 0, 0, NULL, true,                                 \
      "who knows it may tell of changes at the origin, POST /-/api/v1/events/BUCKET")                        \
    X(quota, SIZE, "quota", "SIZE", "0", 0, 0, NULL, false,                                                  \
      "most bytes of the bucket's objects that the cache holds; of a scratch bucket: most bytes that its "   \
      "files have on disk, beyond which writes fail; 0: no limit but the disks'")                            \
    X(rules, STRING, "rules", "RULES", NULL, 0, 0, NULL, false,                                              \
      "what is pinned, never cached or believed for another time, by prefix; see forebay pin and rules")     \
    X(limit_requests, UINT, "limit.requests", "N", "0", 0, 0, NULL, false,                                   \
      "most requests for data of the bucket a second; 0: no limit")                                          \
    X(keep, SIZE, "keep", "SIZE", "0", 0, 0, NULL, false,                                                    \
      "bytes of the bucket that the cache keeps whatever is read of others; 0: none are promised")           \
    X(limit_bytes, SIZE, "limit.bytes", "SIZE", "0", 0, 0, NULL, false,                                      \
      "most bytes a second that are read and written through the node; 0: no limit")                         \
    X(share, UINT, "share", "N", "100", 1, 10000, NULL, false,                                               \
      "weight of the bucket among those that one user reads and writes, when requests wait")                 \
    X(origin_requests, UINT, "limit.origin-requests", "N", "0", 0, 0, NULL, false,                           \
      "most requests a second that the node sends to the origin; 0: no limit")                               \
    X(origin_bytes, SIZE, "limit.origin-bytes", "SIZE", "0", 0, 0, NULL, false,                              \
      "most bytes a second that the node reads from the origin and writes to it; 0: no limit")               \
    X(anonymous, ENUM, "anonymous", "MODE", "none", 0, 0, "none|read", false,                                \
      "read: S3 requests without a signature may list and read")                                             \
    X(s3_tags, STRING, "s3.tags", "TAGS", NULL, 0, 0, NULL, false, "tags of the bucket, KEY=VALUE&...")      \
    X(s3_cors, STRING, "s3.cors", "XML", NULL, 0, 0, NULL, false,                                            \
      "which web pages may use the bucket, as PutBucketCors sets it, in one line")                           \
    X(s3_lifecycle, STRING, "s3.lifecycle", "XML", NULL, 0, 0, NULL, false,                                  \
      "which objects end by themselves, as PutBucketLifecycleConfiguration sets it, in one line")            \
    X(owner, STRING, "owner", "UID:GID", NULL, 0, 0, NULL, false,                                            \
      "scratch: who owns the root directory and what S3 and the command line make; default the node's")      \
    X(object_ttl, DURATION, "ttl", "TIME", "0", 0, 31536000000, NULL, false,                                 \
      "scratch: objects end so long after they were last written or changed; 0: never")                      \
    X(values, ENUM, "values", "MODE", "durable", 0, 0, "durable|memory", false,                              \
      "scratch, chosen when the bucket is made: memory keeps objects of up to 16 KiB in memory and nowhere " \
      "else; they go when it is full, and with the node")                                                    \
    X(etag, ENUM, "etag", "KIND", "md5", 0, 0, "md5|opaque", false,                                          \
      "scratch: what S3 writes has for an ETag: md5, the MD5 of its bytes, or opaque, which is faster: one " \
      "with a dash, which clients do not take for an MD5")                                                   \
    X(mode, STRING, "mode", "OCTAL", "0755", 0, 0, NULL, false, "scratch: permissions of the root directory")

/* Properties that only buckets with an origin have; those of origin.* are, too. X(name) */
#define BUCKET_MIRROR_ONLY(X)                                                                                \
    X("validate")                                                                                            \
    X("validate.listing")                                                                                    \
    X("verify")                                                                                              \
    X("readahead")                                                                                           \
    X("retry")                                                                                               \
    X("cache")                                                                                               \
    X("rules")                                                                                               \
    X("limit.origin-requests")                                                                               \
    X("limit.origin-bytes")                                                                                  \
    X("write")                                                                                               \
    X("write_delay") X("conflict") X("posix") X("keep")
/* Those of origin.* that say, beside the URL, where the data is and what of it is seen. Not those that say
 * who asks, and how: keys are changed without a change of what they open. X(field of struct origin_options)
 */
#define BUCKET_PLACE(X) X(endpoint) X(account) X(manifest) X(as_of) X(version)
/* Those of origin.* that mean the same of each kind of origin, and stay when a bucket gets one of another
 * kind. X(field of struct origin_options) */
#define BUCKET_ANY_ORIGIN(X) X(timeout) X(min_rate) X(connect_timeout) X(connections) X(part_size)
/* Only those without. */
#define BUCKET_SCRATCH_ONLY(X) X("owner") X("mode") X("ttl") X("values") X("etag")

struct bucket_properties {
#define X(field, type, ...) ORIGIN_FIELD_##type field;
    BUCKET_PROPERTIES(X)
#undef X
    struct origin_options origin_options;
};

extern const struct option_table bucket_property_table;

enum bucket_validate { BUCKET_VALIDATE_NEVER, BUCKET_VALIDATE_TTL, BUCKET_VALIDATE_ALWAYS };
enum bucket_cache { BUCKET_CACHE_AUTO, BUCKET_CACHE_NEVER };
enum bucket_write { BUCKET_WRITE_THROUGH, BUCKET_WRITE_BACK };
enum bucket_conflict { BUCKET_CONFLICT_COPY, BUCKET_CONFLICT_OVERWRITE };
enum bucket_anonymous { BUCKET_ANONYMOUS_NONE, BUCKET_ANONYMOUS_READ };
enum bucket_values { BUCKET_VALUES_DURABLE, BUCKET_VALUES_MEMORY };
enum bucket_etag { BUCKET_ETAG_MD5, BUCKET_ETAG_OPAQUE };
enum bucket_posix { BUCKET_POSIX_OFF, BUCKET_POSIX_ON };
enum bucket_verify { BUCKET_VERIFY_FILL, BUCKET_VERIFY_READ };

struct bucket {
    uint32_t magic;
    _Atomic uint32_t refs;
    uint64_t id;
    uint64_t
        place; /* what is cached of its data goes by: the id, and another number after each change of place */
    uint64_t created_ns; /* real time */
    uint64_t version;    /* of the kv record */
    char name[BUCKET_NAME_MAX + 1];
    enum bucket_validate validate, validate_listing;
    uint64_t ttl_ms, listing_ttl_ms;
    struct rules rules;                       /* of the property */
    uint32_t owner_uid, owner_gid, root_mode; /* of a scratch bucket */
    struct bucket_properties p;
    atomic_bool retired; /* the table has a newer one, or none: nothing is kept for this one any more */
};

/* A bucket without origin: its data is here only. */
bool bucket_is_scratch(const struct bucket *b);
/* One whose objects are in memory only (object/values.h). */
bool bucket_is_memory(const struct bucket *b);

/* Whether both find the same data at the same place: origin and BUCKET_PLACE are the same. */
bool bucket_same_origin(const struct bucket *a, const struct bucket *b);
/* Whether a property is one of those. */
bool bucket_is_place(struct slice property);

struct bucket *bucket_ref(struct bucket *b);
void bucket_unref(struct bucket *b);
DEFINE_CLEANUP(struct bucket, bucket_unref)

/* S3's rules: 3 to 63 of a-z 0-9 . -, beginning and ending with a letter or digit. */
int bucket_check_name(struct slice name, struct err *e);
/* "never", "ttl:60s", "always". `property` is what a message calls it. */
int bucket_parse_validate(const char *property, const char *text, enum bucket_validate *ret,
                          uint64_t *ret_ttl_ms, struct err *e);

struct bucket_table;
struct seal;

/* Reads all records. Secrets are sealed in records that are written (namespace/seal.h), and records of before
 * that are written anew; with seal NULL they stand there as they are. `seal` must outlive the table.
 * ERR_CORRUPT, naming the bucket, for secrets that were sealed with another key. */
int bucket_table_open(struct kv *kv, const struct seal *seal, struct bucket_table **ret, struct err *e);
void bucket_table_close(struct bucket_table *t);
DEFINE_CLEANUP(struct bucket_table, bucket_table_close)

/* A reference, or NULL; guests too. */
struct bucket *bucket_find_id(struct bucket_table *t, uint64_t id);
/* Likewise by its `place` now. */
struct bucket *bucket_find_place(struct bucket_table *t, uint64_t place);
/* The last id or place that this control store gave out; 0: none, or it cannot be read. */
uint64_t bucket_last_place(struct bucket_table *t);
/* What is said of the cache at this key: the bucket's property `cache`, and its rules. */
enum rule_keep bucket_keep(const struct bucket *b, struct slice key);
/* A reference, or ERR_NO_BUCKET. */
int bucket_find(struct bucket_table *t, struct slice name, struct bucket **ret, struct err *e);
/* False: no bucket has lifecycle rules. */
bool bucket_any_lifecycle(const struct bucket_table *t);
/* The bucket as it would be, in no table: to try its origin before anything is written down. */
int bucket_preview(struct slice name, struct slice settings, struct bucket **ret, struct err *e);
int bucket_preview_of(const struct bucket *old, struct slice settings, struct bucket **ret, struct err *e);
/* settings: lines "name=value\n". ERR_BUCKET_EXISTS, ERR_BAD_OPTION. Durable on return. */
int bucket_create(struct bucket_table *t, struct slice name, struct slice settings, struct bucket **ret,
                  struct err *e);
/* Changes the given properties only; an empty value goes back to the default. ERR_BAD_OPTION also for what
 * would make a mirror of a scratch bucket, or the other way round. */
int bucket_change(struct bucket_table *t, struct slice name, struct slice settings, struct bucket **ret,
                  struct err *e);
/* The same for settings that were made from those of `old`: ERR_CONFLICT when it is not the current one. */
int bucket_change_of(struct bucket_table *t, const struct bucket *old, struct slice settings,
                     struct bucket **ret, struct err *e);
/* This very bucket: ERR_NO_BUCKET also when another one has its name by now. */
int bucket_delete(struct bucket_table *t, const struct bucket *b, struct err *e);
/*
 * A guest: a bucket that is in memory only, found by a random name that is no legal one and shown in no
 * listing. `label` (at most BUCKET_NAME_MAX bytes) is what messages and metrics call it. For work on an
 * origin that is no bucket. bucket_guest_remove: false when there is none of that name.
 */
#define BUCKET_GUEST_NAME_SIZE 34
bool bucket_is_guest(const struct bucket *b);
int bucket_guest_add(struct bucket_table *t, const char *label, struct slice settings,
                     char ret_name[BUCKET_GUEST_NAME_SIZE], struct bucket **ret, struct err *e);
bool bucket_guest_remove(struct bucket_table *t, struct slice name);
/* Their names, and the labels of guests, in the order of strcmp; one piece of heap. */
const char **bucket_labels(struct bucket_table *t, size_t *ret_n);
/* Up to max buckets with names after `after`, in byte order, each referenced; returns how many. */
size_t bucket_page(struct bucket_table *t, struct slice after, struct bucket **ret, size_t max);
/*
 * The first bucket behind `before` in byte order of names, referenced; with NULL the first of all, NULL
 * behind the last. Gives back the reference to `before`, so that this walks over all of them:
 *     for (struct bucket *b = NULL; (b = bucket_next(t, b));)
 */
struct bucket *bucket_next(struct bucket_table *t, struct bucket *before);
/* All properties that apply, as lines "name=value\n"; secrets as "***" unless show_secrets. Unset ones are
 * left out. */
int bucket_settings(const struct bucket *b, bool show_secrets, struct buf *out);
