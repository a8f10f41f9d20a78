/*
 * libforebay: the C interface to a Forebay node.
 *
 * A node keeps objects of remote stores close: reading an object through it is served from local disks once
 * it was read before, writing goes through to the store. This interface is blocking and thread-safe: one
 * `struct forebay` serves any number of threads, and so does a `struct forebay_file`.
 *
 * Units: sizes and offsets in bytes, times in nanoseconds since 1970-01-01 UTC.
 *
 * Errors: functions return 0 or a count on success and a negative number on failure: a negated errno value
 * (-ENOENT, -EIO, -ETIMEDOUT, ...), or one below -4095 for conditions that errno cannot name. forebay_error()
 * gives the text for people, of the last failed call of the same thread; forebay_error_name() gives a stable
 * short name of a number
 * ("ENOENT", "ORIGIN_DENIED", "PRECONDITION").
 *
 * A node that restarts is waited for, up to the timeout (then -EHOSTDOWN or -ETIMEDOUT); open files go on
 * reading the same version of their object, or fail with -ESTALE when the store has another one meanwhile. No
 * call waits for ever: what reads, lists, writes, removes, copies, renames or makes a directory is waited for
 * as long as the node answers others, and the node gives up each question that an origin does not answer
 * after the bucket's `retry`.
 *
 * After fork(2) parent and child may both go on: the child gets connections of its own, and files that were
 * open read on in both. No other thread of the parent may be inside a call during the fork; an object that
 * was being written stays the parent's.
 *
 * Keys and names are bytes with an explicit end (NUL-terminated here); keys are 1 to 1024 bytes.
 */
#ifndef FOREBAY_FOREBAY_H
#define FOREBAY_FOREBAY_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FOREBAY_API __attribute__((visibility("default")))

struct forebay;
struct forebay_file;
struct forebay_listing;

#define FOREBAY_KEPT_NONE UINT32_MAX

/* Zero means default everywhere: `struct forebay_options o = {0};` looks into the environment. */
struct forebay_options {
    const char *socket_path; /* Unix socket of the node */
    const char *data_dir;    /* the node's --data directory: its socket and credentials are found there */
    const char *endpoint;    /* HOST:PORT of the wire protocol */
    const char *access_key;  /* not needed on the Unix socket for root and the node's user */
    const char *secret_key;
    uint64_t timeout_ms; /* how long a call waits for a node that does not answer, also where it has no memory
                            for the call at the moment, for up to its --request-timeout; default 60000 */
    uint32_t connections; /* most connections at a time; default 16 */
    /* Most files that stay open after forebay_close, so that the next forebay_open of one asks nobody.
     * Default: an eighth of the descriptors that the process may have (ulimit -n), at most 32768.
     * FOREBAY_KEPT_NONE: none. */
    uint32_t kept_files;
};

/*
 * Connects to a node. The first of socket_path, data_dir, endpoint that is set tells where it is, then the
 * environment variables FOREBAY_SOCKET, FOREBAY_DATA, FOREBAY_ENDPOINT. Keys: options, then
 * FOREBAY_ACCESS_KEY and FOREBAY_SECRET_KEY, then the file "credentials" in data_dir. `options` may be NULL.
 * -ECONNREFUSED or -ENOENT when the node does not run.
 */
FOREBAY_API int forebay_connect(const struct forebay_options *options, struct forebay **ret);
/* Ends the connections. All its files and listings must have been closed. NULL accepted. */
FOREBAY_API void forebay_disconnect(struct forebay *f);

/* Text of this thread's last failure, "" when there was none. Valid until its next call. */
FOREBAY_API const char *forebay_error(void);
FOREBAY_API const char *forebay_error_name(int code);

/* What is known of an object. Strings end with NUL and are cut to their place. */
struct forebay_stat {
    uint64_t size_bytes;
    uint64_t mtime_ns;
    int is_directory;       /* in listings with a delimiter: a common prefix */
    char etag[136];         /* the version, without quotes */
    char content_type[128]; /* empty when unknown */
};

/* -ENOENT when there is no such object. */
FOREBAY_API int forebay_stat(struct forebay *f, const char *bucket, const char *key,
                             struct forebay_stat *ret);

/* ---- reading ---- */

/* Opens the current version: whatever the node has acknowledged to anybody before is seen. Close with
 * forebay_close. */
FOREBAY_API int forebay_open(struct forebay *f, const char *bucket, const char *key,
                             struct forebay_file **ret);
/* The next bytes, as read(2): up to n, 0 at the end. The position is one per file: threads that share a file
 * use forebay_pread. */
FOREBAY_API ssize_t forebay_read(struct forebay_file *file, void *p, size_t n);
/* Bytes at an offset: n of them, fewer only at the end of the object. -ESTALE when this version is gone. */
FOREBAY_API ssize_t forebay_pread(struct forebay_file *file, void *p, size_t n, uint64_t offset);
/* Attributes of the version that is open; no call to the node. */
FOREBAY_API int forebay_fstat(struct forebay_file *file, struct forebay_stat *ret);
/* NULL accepted. */
FOREBAY_API void forebay_close(struct forebay_file *file);

/* ---- writing ---- */

struct forebay_put_options {
    const char *content_type; /* NULL: none */
    const char *if_match; /* replace only this ETag: else the number named "PRECONDITION"; NULL: whatever is
                             there; -EINVAL when empty, as the ETag of a store that tells none */
    int if_none_match;    /* nonzero: only when there is no such object */
};

/* Writes a whole object from memory. When this returns 0 the store behind the bucket has it. After a failure
 * the object that was there, if any, is still there; or, where the answer to the last request was lost
 * between here, the node and the store, this one is, whole. It is not sent a second time then: forebay_stat
 * tells by size and ETag which it is. options and ret may be NULL. */
FOREBAY_API int forebay_put(struct forebay *f, const char *bucket, const char *key, const void *p, size_t n,
                            const struct forebay_put_options *options, struct forebay_stat *ret);
/* Gives up to n bytes: their count, 0 at the end, negative to give up (forebay_put_from returns that number).
 */
typedef ssize_t (*forebay_read_fn)(void *arg, void *p, size_t n);
/* As forebay_put from a source that is read piece by piece. size_bytes UINT64_MAX: not known beforehand; else
 * the source must give exactly so many. */
FOREBAY_API int forebay_put_from(struct forebay *f, const char *bucket, const char *key, uint64_t size_bytes,
                                 forebay_read_fn read, void *arg, const struct forebay_put_options *options,
                                 struct forebay_stat *ret);
/* Success also when there is no such object, as S3 does. */
FOREBAY_API int forebay_remove(struct forebay *f, const char *bucket, const char *key);
/* Copies inside a bucket at the store, without moving bytes through this machine. */
FOREBAY_API int forebay_copy(struct forebay *f, const char *bucket, const char *from, const char *to);

/* ---- listing ---- */

/* Objects whose keys begin with prefix, in byte order. delimiter '/' shows what lies below a '/' behind the
 * prefix as one entry "dir/"; 0 shows every object. No request is made yet. */
FOREBAY_API int forebay_list(struct forebay *f, const char *bucket, const char *prefix, char delimiter,
                             struct forebay_listing **ret);
/* 1 and the next key, 0 at the end, or an error. *ret_key is valid until the next call; ret_stat may be NULL
 * and its content_type is empty. */
FOREBAY_API int forebay_list_next(struct forebay_listing *l, const char **ret_key,
                                  struct forebay_stat *ret_stat);
/* NULL accepted. */
FOREBAY_API void forebay_list_close(struct forebay_listing *l);

/* ---- buckets ---- */

/* settings: lines "name=value\n", among them "origin=s3://bucket/prefix"; NULL for none. The number named
 * "BUCKET_EXISTS" when there is one of that name. */
FOREBAY_API int forebay_bucket_create(struct forebay *f, const char *bucket, const char *settings);
/* Changes the settings given and leaves the others. */
FOREBAY_API int forebay_bucket_set(struct forebay *f, const char *bucket, const char *settings);
/* Settings as lines "name=value\n", secrets as "***". *ret is the caller's to free(). */
FOREBAY_API int forebay_bucket_get(struct forebay *f, const char *bucket, char **ret);
/* Forgets the bucket and its cached data; the store behind it is not touched. */
FOREBAY_API int forebay_bucket_remove(struct forebay *f, const char *bucket);
/* Calls `each` for every bucket in byte order until it returns nonzero, and returns that, or 0. */
FOREBAY_API int forebay_bucket_list(struct forebay *f,
                                    int (*each)(void *arg, const char *name, const char *origin), void *arg);

#ifdef __cplusplus
}
#endif

#endif
