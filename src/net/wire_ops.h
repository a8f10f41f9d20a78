/*
 * The one table of wire operations. A row makes the number, the request and reply structs, their encoders and
 * decoders, the dispatch tables of client and server, metrics labels and docs/WIRE.md. Numbers are never
 * reused.
 *
 * Field kinds: u32, u64, i64 (8 bytes, little endian; u32 4 bytes), str (u32 length, bytes), attr (struct
 * wire_attr). X(NAME, name, number): fields in WIRE_REQ_name(F) and WIRE_REP_name(F), F(kind, field).
 */
#pragma once

#define WIRE_OPS(X)                                                                                          \
    X(CHALLENGE, challenge, 1)                                                                               \
    X(HELLO, hello, 2)                                                                                       \
    X(BUCKET_CREATE, bucket_create, 10)                                                                      \
    X(BUCKET_LIST, bucket_list, 11)                                                                          \
    X(BUCKET_GET, bucket_get, 12)                                                                            \
    X(BUCKET_SET, bucket_set, 13)                                                                            \
    X(BUCKET_REMOVE, bucket_remove, 14)                                                                      \
    X(ORIGIN_CHECK, origin_check, 15)                                                                        \
    X(BUCKET_RULE, bucket_rule, 16)                                                                          \
    X(STAT, stat, 20)                                                                                        \
    X(LIST, list, 21)                                                                                        \
    X(OPEN, open, 22)                                                                                        \
    X(FETCH, fetch, 23)                                                                                      \
    X(CLOSE, close, 24)                                                                                      \
    X(WATCH, watch, 25)                                                                                      \
    X(CACHED, cached, 26)                                                                                    \
    X(EVICT, evict, 27)                                                                                      \
    X(PUT_OPEN, put_open, 30)                                                                                \
    X(PUT_WRITE, put_write, 31)                                                                              \
    X(PUT_COMMIT, put_commit, 32)                                                                            \
    X(PUT_ABORT, put_abort, 33)                                                                              \
    X(REMOVE, remove, 40)                                                                                    \
    X(COPY, copy, 41)                                                                                        \
    X(MKDIR, mkdir, 42)                                                                                      \
    X(RMDIR, rmdir, 43)                                                                                      \
    X(STATUS, status, 50)                                                                                    \
    X(REPORT, report, 51)                                                                                    \
    X(JOB_START, job_start, 60)                                                                              \
    X(JOB_LIST, job_list, 61)                                                                                \
    X(JOB_GET, job_get, 62)                                                                                  \
    X(JOB_CHANGE, job_change, 63)                                                                            \
    X(JOB_ERRORS, job_errors, 64)                                                                            \
    X(JOB_KEYS, job_keys, 65)                                                                                \
    X(USER_CREATE, user_create, 70)                                                                          \
    X(USER_LIST, user_list, 71)                                                                              \
    X(USER_GET, user_get, 72)                                                                                \
    X(USER_REMOVE, user_remove, 73)                                                                          \
    X(USER_ADD_KEY, user_add_key, 74)                                                                        \
    X(USER_REMOVE_KEY, user_remove_key, 75)

/* Random bytes to sign in HELLO; only clients that are not trusted by their uid need it. */
#define WIRE_REQ_challenge(F)
#define WIRE_REP_challenge(F) F(str, nonce)

/* First operation of a connection. `session`: 16 bytes chosen by the client, the same on all its connections;
 * its handles live until the last of them closes. `signature`: 32 bytes HMAC-SHA256(secret, nonce + session),
 * empty for trusted uids. `via`: enum wire_via. */
#define WIRE_REQ_hello(F)                                                                                    \
    F(u32, version) F(str, session) F(str, name) F(u32, via) F(str, access_key) F(str, signature)
#define WIRE_REP_hello(F) F(str, node_id) F(str, server_version) F(u32, passes_fds)

/* `settings`: lines "name=value\n" of bucket properties (namespace/bucket.h). */
#define WIRE_REQ_bucket_create(F) F(str, name) F(str, settings)
#define WIRE_REP_bucket_create(F) F(u64, id)
/* Names in byte order after `after`, at most 1000: `buckets` holds encoded struct wire_bucket. */
#define WIRE_REQ_bucket_list(F) F(str, after)
#define WIRE_REP_bucket_list(F) F(str, buckets) F(u32, truncated)
/* Secrets come back as "***". */
#define WIRE_REQ_bucket_get(F) F(str, name)
#define WIRE_REP_bucket_get(F) F(u64, id) F(u64, created_ns) F(str, settings)
#define WIRE_REQ_bucket_set(F) F(str, name) F(str, settings)
#define WIRE_REP_bucket_set(F)
/* Forgets the bucket and drops its cached data; the origin is not touched. */
#define WIRE_REQ_bucket_remove(F) F(str, name)
#define WIRE_REP_bucket_remove(F)

/* Changes what is said of the cache below a prefix (namespace/rules.h): `settings` are lines "pin=true",
 * "pin=false", "cache=never", "cache=auto", "ttl=TIME" or "ttl="; none: only shows. `rules`: the bucket's, as
 * its property has them. What is never to be cached any more is dropped. */
#define WIRE_REQ_bucket_rule(F) F(str, bucket) F(str, prefix) F(str, settings)
#define WIRE_REP_bucket_rule(F) F(str, rules)

/* Tries what the origin of a URL can; `settings` as of BUCKET_CREATE, origin.* only. flags: WIRE_READ_ONLY
 * (writes nothing there). `results`: lines "NAME<TAB>STATE<TAB>MICROSECONDS<TAB>TEXT\n", STATE one of ok, no,
 * failed, skipped. */
#define WIRE_REQ_origin_check(F) F(str, url) F(str, settings) F(u32, flags)
#define WIRE_REP_origin_check(F) F(str, results)

/* flags: WIRE_POSIX (a key may also name a directory: a prefix with keys below), WIRE_FRESH (ask the origin).
 */
#define WIRE_REQ_stat(F) F(str, bucket) F(str, key) F(u32, flags)
#define WIRE_REP_stat(F) F(attr, attr)
/* One page, byte order. delimiter 0 or '/'. `entries` holds encoded struct wire_entry, `next` continues (as
 * after). flags: WIRE_POSIX (leave out what a directory cannot hold), WIRE_FRESH. */
#define WIRE_REQ_list(F)                                                                                     \
    F(str, bucket) F(str, prefix) F(u32, delimiter) F(str, after) F(u32, max) F(u32, flags)
#define WIRE_REP_list(F) F(str, entries) F(u32, n_entries) F(u32, truncated) F(str, next)
/*
 * Opens a version for reading. if_match / if_none_match: ETags without quotes, "*" allowed. `expect`: how
 * much the caller is about to read from offset (0: unknown), so that the first request to the origin asks for
 * the right range and its answer brings the attributes. State: enum wire_state. The reply carries a
 * descriptor when state is not UNCACHED and the connection passes descriptors (in process: borrowed until
 * close).
 * `valid_ms`: how long another open would be answered alike without asking the origin, unless WATCH says
 * otherwise; UINT64_MAX for ever.
 */
#define WIRE_REQ_open(F)                                                                                     \
    F(str, bucket)                                                                                           \
    F(str, key) F(str, if_match) F(str, if_none_match) F(u64, offset) F(u64, expect) F(u32, via) F(u32, flags)
#define WIRE_REP_open(F) F(u64, handle) F(attr, attr) F(u32, state) F(u64, present) F(u64, valid_ms)
/*
 * Waits until bytes at `offset` are there. Either `available` > 0 bytes at that offset can be read from the
 * descriptor, or `data` holds them (uncached, or WIRE_INLINE). Never 0 bytes before the end of the object; at
 * the end both are empty. flags: WIRE_INLINE, WIRE_NO_WAIT (start fetching, answer at once: available may be
 * 0), WIRE_BACKGROUND (nobody waits for these bytes: behind all who do).
 */
#define WIRE_REQ_fetch(F) F(u64, handle) F(u64, offset) F(u64, n) F(u32, flags)
#define WIRE_REP_fetch(F) F(u64, available) F(str, data) F(u32, state)
/*
 * Only where descriptors are passed. The reply carries the reading end of a pipe, into which the node writes
 * the hash (hash_placement of the key, u64) of each key of the bucket whose cached bytes it lets go, before
 * it acknowledges the change, or wants to let go: files that are open only to be opened again are to be
 * closed then. Its end means that anything may have changed, or that the node is gone. CLOSE ends it.
 */
#define WIRE_REQ_watch(F) F(str, bucket)
#define WIRE_REP_watch(F) F(u64, handle)
/* cached/origin: bytes the caller read itself from the descriptor, for the metrics. */
#define WIRE_REQ_close(F) F(u64, handle) F(u64, read_cached) F(u64, read_origin)
#define WIRE_REP_close(F)

/* size UINT64_MAX: unknown. With a known size bytes go to the origin while they arrive in order. flags:
 * WIRE_STAGED (reply carries a writable descriptor; the caller writes the file itself and commits with its
 * size). */
#define WIRE_REQ_put_open(F)                                                                                 \
    F(str, bucket)                                                                                           \
    F(str, key)                                                                                              \
    F(u64, size)                                                                                             \
    F(str, content_type) F(str, meta) F(str, if_match) F(u32, if_none_match) F(u32, via) F(u32, flags)
#define WIRE_REP_put_open(F)  F(u64, handle)
#define WIRE_REQ_put_write(F) F(u64, handle) F(u64, offset) F(str, data)
#define WIRE_REP_put_write(F)
/* Acknowledged when the origin has it. WIRE_KEEP: the handle stays open for more writes and another commit.
 */
#define WIRE_REQ_put_commit(F) F(u64, handle) F(u64, size) F(str, sha256) F(str, md5) F(u32, flags)
#define WIRE_REP_put_commit(F) F(attr, attr)
#define WIRE_REQ_put_abort(F)  F(u64, handle)
#define WIRE_REP_put_abort(F)

/* WIRE_POSIX: -ENOENT when there is no such object; else success either way, as S3 does. */
#define WIRE_REQ_remove(F) F(str, bucket) F(str, key) F(str, if_match) F(u32, flags)
#define WIRE_REP_remove(F)
/* Server-side copy within a bucket. WIRE_MOVE: then removes the source; WIRE_NOREPLACE: -EEXIST. */
#define WIRE_REQ_copy(F) F(str, bucket) F(str, from) F(str, to) F(u32, flags)
#define WIRE_REP_copy(F) F(attr, attr)
/* Directories of a mirror bucket are prefixes; an empty one is a marker object "dir/". */
#define WIRE_REQ_mkdir(F) F(str, bucket) F(str, key)
#define WIRE_REP_mkdir(F) F(attr, attr)
#define WIRE_REQ_rmdir(F) F(str, bucket) F(str, key)
#define WIRE_REP_rmdir(F)

/* JSON text of the node's state. */
#define WIRE_REQ_status(F)
#define WIRE_REP_status(F) F(str, json)
/* A mount tells what it is: mount point, passthrough or why not; shown in status and metrics while connected.
 */
#define WIRE_REQ_report(F) F(str, mount_point) F(str, bucket) F(u32, passthrough) F(str, reason)
#define WIRE_REP_report(F)

/* Users (namespace/user.h). `role`: admin, writer or reader (empty: reader); `buckets`: patterns with commas
 * between (empty: all). The secret is told here and never again. */
#define WIRE_REQ_user_create(F) F(str, name) F(str, role) F(str, buckets)
#define WIRE_REP_user_create(F) F(str, access_key) F(str, secret_key)
/* Names in byte order after `after`, at most 1000. `users`: a line "NAME ROLE BUCKETS CREATED KEY[,KEY...]"
 * each, CREATED in ns since 1970. */
#define WIRE_REQ_user_list(F) F(str, after)
#define WIRE_REP_user_list(F) F(str, users) F(u32, truncated)
/* One line of that form. */
#define WIRE_REQ_user_get(F)    F(str, name)
#define WIRE_REP_user_get(F)    F(str, user)
#define WIRE_REQ_user_remove(F) F(str, name)
#define WIRE_REP_user_remove(F)
#define WIRE_REQ_user_add_key(F)    F(str, name)
#define WIRE_REP_user_add_key(F)    F(str, access_key) F(str, secret_key)
#define WIRE_REQ_user_remove_key(F) F(str, name) F(str, access_key)
#define WIRE_REP_user_remove_key(F)
/*
 * What is cached below a prefix, in byte order after `after`, at most `max` (at most 1000): the origin is not
 * asked. `entries` holds encoded struct wire_cached. flags: WIRE_EXACT (only the object whose key is
 * `prefix`, with what arrived a moment ago).
 */
#define WIRE_REQ_cached(F) F(str, bucket) F(str, prefix) F(str, after) F(u32, max) F(u32, flags)
#define WIRE_REP_cached(F) F(str, entries) F(u32, n_entries) F(u32, truncated)
/* Drops what is cached of an object; success also when nothing was. Readers keep their bytes. -EBUSY: it is
 * pinned; not with WIRE_FRESH (it is to be fetched again). */
#define WIRE_REQ_evict(F) F(str, bucket) F(str, key) F(u32, flags)
#define WIRE_REP_evict(F)

/* kind: a row of jobs/kind.h. source, target: "BUCKET/PREFIX". spec: lines as net/job_spec.h says. */
#define WIRE_REQ_job_start(F) F(str, kind) F(str, source) F(str, target) F(str, spec)
#define WIRE_REP_job_start(F) F(u64, id)
/* Jobs with numbers above `after`, at most 100: `json` is an array of objects as of JOB_GET. */
#define WIRE_REQ_job_list(F) F(u64, after)
#define WIRE_REP_job_list(F) F(str, json) F(u32, truncated)
/* One job as a JSON object. `final`: 1 when it has ended. */
#define WIRE_REQ_job_get(F) F(u64, id)
#define WIRE_REP_job_get(F) F(str, json) F(u32, final)
/* action: pause, resume, cancel, retry or rm. */
#define WIRE_REQ_job_change(F) F(u64, id) F(str, action)
#define WIRE_REP_job_change(F)
/* Objects that failed, by key after `after`, at most 1000: `json` is an array of {key, code, reason}; `next`
 * continues as after. */
#define WIRE_REQ_job_errors(F) F(u64, id) F(str, after)
#define WIRE_REP_job_errors(F) F(str, json) F(str, next) F(u32, truncated)
/* Keys for a job that was started with `listed` in its spec and waits, paused: each ended by a newline, at
 * most 4 MiB together. JOB_CHANGE with resume begins it. */
#define WIRE_REQ_job_keys(F) F(u64, id) F(str, keys)
#define WIRE_REP_job_keys(F)
