/*
 * The one table of wire operations. A row makes the number, the request and reply structs, their encoders and
 * decoders, the dispatch tables of client and server, metrics labels and docs/WIRE.md. Numbers are never
 * reused.
 *
 * Field kinds: u32, u64, i64 (8 bytes, little endian; u32 4 bytes), str (u32 length, bytes), attr (struct
 * wire_attr), inode (struct wire_inode). X(NAME, name, number): fields in WIRE_REQ_name(F) and
 * WIRE_REP_name(F), F(kind, field).
 */
#pragma once

#define WIRE_OPS(X)                                                                                          \
    X(CHALLENGE, challenge, 1)                                                                               \
    X(HELLO, hello, 2)                                                                                       \
    X(END_SIBLINGS, end_siblings, 3)                                                                         \
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
    X(CONFIRM, confirm, 28)                                                                                  \
    X(EVENTS, events, 29)                                                                                    \
    X(PUT_OPEN, put_open, 30)                                                                                \
    X(PUT_WRITE, put_write, 31)                                                                              \
    X(PUT_COMMIT, put_commit, 32)                                                                            \
    X(PUT_ABORT, put_abort, 33)                                                                              \
    X(UPLOAD_CREATE, upload_create, 34)                                                                      \
    X(UPLOAD_PART, upload_part, 35)                                                                          \
    X(UPLOAD_WRITE, upload_write, 36)                                                                        \
    X(UPLOAD_END, upload_end, 37)                                                                            \
    X(UPLOAD_PARTS, upload_parts, 38)                                                                        \
    X(UPLOAD_LIST, upload_list, 39)                                                                          \
    X(UPLOAD_COMPLETE, upload_complete, 45)                                                                  \
    X(UPLOAD_ABORT, upload_abort, 46)                                                                        \
    X(FLUSH, flush, 47)                                                                                      \
    X(PARTS, parts, 48)                                                                                      \
    X(SET_META, set_meta, 49)                                                                                \
    X(REMOVE, remove, 40)                                                                                    \
    X(COPY, copy, 41)                                                                                        \
    X(MKDIR, mkdir, 42)                                                                                      \
    X(RMDIR, rmdir, 43)                                                                                      \
    X(STATUS, status, 50)                                                                                    \
    X(USAGE, usage, 53)                                                                                      \
    X(EXPLAIN, explain, 54)                                                                                  \
    X(PART, part, 55)                                                                                        \
    X(REPORT, report, 51)                                                                                    \
    X(JOB_START, job_start, 60)                                                                              \
    X(JOB_LIST, job_list, 61)                                                                                \
    X(JOB_GET, job_get, 62)                                                                                  \
    X(JOB_CHANGE, job_change, 63)                                                                            \
    X(JOB_ERRORS, job_errors, 64)                                                                            \
    X(JOB_KEYS, job_keys, 65)                                                                                \
    X(JOB_WAIT, job_wait, 66)                                                                                \
    X(USER_CREATE, user_create, 70)                                                                          \
    X(USER_LIST, user_list, 71)                                                                              \
    X(USER_GET, user_get, 72)                                                                                \
    X(USER_REMOVE, user_remove, 73)                                                                          \
    X(USER_ADD_KEY, user_add_key, 74)                                                                        \
    X(USER_REMOVE_KEY, user_remove_key, 75)                                                                  \
    X(USER_LIMIT, user_limit, 76)                                                                            \
    X(TREE_LOOKUP, tree_lookup, 80)                                                                          \
    X(TREE_GETATTR, tree_getattr, 81)                                                                        \
    X(TREE_SETATTR, tree_setattr, 82)                                                                        \
    X(TREE_CREATE, tree_create, 83)                                                                          \
    X(TREE_OPEN, tree_open, 84)                                                                              \
    X(TREE_SYNC, tree_sync, 85)                                                                              \
    X(TREE_LINK, tree_link, 86)                                                                              \
    X(TREE_UNLINK, tree_unlink, 87)                                                                          \
    X(TREE_RMDIR, tree_rmdir, 88)                                                                            \
    X(TREE_RENAME, tree_rename, 89)                                                                          \
    X(TREE_READDIR, tree_readdir, 90)                                                                        \
    X(TREE_XATTR_GET, tree_xattr_get, 91)                                                                    \
    X(TREE_XATTR_LIST, tree_xattr_list, 92)                                                                  \
    X(TREE_XATTR_SET, tree_xattr_set, 93)                                                                    \
    X(TREE_XATTR_REMOVE, tree_xattr_remove, 94)                                                              \
    X(TREE_STATFS, tree_statfs, 95)                                                                          \
    X(TREE_LOCK, tree_lock, 96)                                                                              \
    X(TREE_LEAVE, tree_leave, 97)                                                                            \
    X(TREE_ROOM, tree_room, 98)                                                                              \
    X(PUT_ROOM, put_room, 99)                                                                                \
    X(STRAND, strand, 100)                                                                                   \
    X(STRANDED, stranded, 101)                                                                               \
    X(STRANDED_END, stranded_end, 102)                                                                       \
    X(TREE_CLOSE, tree_close, 103)                                                                           \
    X(CLOSE_MANY, close_many, 104)                                                                           \
    X(TAGS, tags, 105)                                                                                       \
    X(SET_TAGS, set_tags, 106)                                                                               \
    X(COPY_FROM, copy_from, 107)                                                                             \
    X(UPLOAD_COPY, upload_copy, 108)                                                                         \
    X(UPLOAD_KEEP, upload_keep, 109)                                                                         \
    X(UPLOAD_KEEP_PART, upload_keep_part, 110)                                                               \
    X(UPLOAD_RESUME, upload_resume, 111)                                                                     \
    X(WATCH_NAMES, watch_names, 112)                                                                         \
    X(TREE_READ, tree_read, 113)                                                                             \
    X(TREE_WRITE, tree_write, 114)                                                                           \
    X(TREE_APPEND, tree_append, 115)                                                                         \
    X(TREE_ALLOCATE, tree_allocate, 116)                                                                     \
    X(TREE_SEEK, tree_seek, 117)                                                                             \
    X(TREE_REMOVE, tree_remove, 118)                                                                         \
    X(TREE_MOVE, tree_move, 119)                                                                             \
    X(REMOVE_SINCE, remove_since, 120)

/* Random bytes to sign in HELLO; only clients that are not trusted by their uid need it. */
#define WIRE_REQ_challenge(F)
#define WIRE_REP_challenge(F) F(str, nonce)

/* First operation of a connection. `session`: 16 bytes chosen by the client, the same on all its connections;
 * its handles live until the last of them closes. `signature`: 32 bytes HMAC-SHA256(secret, nonce + session),
 * empty for trusted uids. `via`: enum wire_via. */
#define WIRE_REQ_hello(F)                                                                                    \
    F(u32, version) F(str, session) F(str, name) F(u32, via) F(str, access_key) F(str, signature)
#define WIRE_REP_hello(F) F(str, node_id) F(str, server_version) F(u32, passes_fds)

/* Ends the other sessions whose ids begin with the same 8 bytes, as if their client had closed its
 * connections: those of a mount's process before this one. `n`: how many have not ended yet, because
 * something still runs that they asked for. */
#define WIRE_REQ_end_siblings(F)
#define WIRE_REP_end_siblings(F) F(u32, n)

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

/* flags: WIRE_POSIX (a key may also name a directory: a prefix with keys below), WIRE_FRESH (ask the origin),
 * WIRE_META (with WIRE_POSIX: content type and metadata are wanted, too, of a directory those of its marker),
 * WIRE_SINCE (mtime is the later of the times of writing and of change, where both are known), WIRE_MODES,
 * WIRE_NO_WAIT (-EAGAIN where nothing is known of it here).
 *
 * WIRE_NO_WAIT, here and of LIST and OPEN, is for who has no thread to wait for an origin: what is known here
 * is told as without it, and of what is not the origin is not asked. Of what is known and too old to be
 * believed it still is, and waited for no longer than it may be silent.
 *
 * WIRE_MODES, here and of LIST, OPEN, PUT_OPEN and SET_META, concerns scratch buckets alone: mode, owner and
 * time of an inode are lines of its metadata (net/posix_meta.h), of what is read in place of others of these
 * names, of what is written the inode's from then on; and symbolic links are objects, whose bytes are their
 * target. No user may write so: who gives files to others is to be trusted as a mount is.
 */
#define WIRE_REQ_stat(F) F(str, bucket) F(str, key) F(u32, flags)
#define WIRE_REP_stat(F) F(attr, attr)
/* One page, byte order. delimiter 0 or '/'. `entries` holds encoded struct wire_entry, `next` continues (as
 * after). flags: WIRE_POSIX (leave out what a directory cannot hold), WIRE_FRESH, WIRE_SINCE, WIRE_MODES,
 * WIRE_UNFIT (also entries that stand for names longer than any key; the ETag says so), WIRE_NO_WAIT (-EAGAIN
 * where the page was not listed before). */
#define WIRE_REQ_list(F)                                                                                     \
    F(str, bucket) F(str, prefix) F(u32, delimiter) F(str, after) F(u32, max) F(u32, flags)
#define WIRE_REP_list(F) F(str, entries) F(u32, n_entries) F(u32, truncated) F(str, next)
/*
 * Opens a version for reading. if_match / if_none_match: ETags without quotes, "*" allowed. `expect`: how
 * much the caller is about to read from offset (0: unknown), so that the first request to the origin asks for
 * the right range and its answer brings the attributes. State: enum wire_state. The reply carries a
 * descriptor when state is not UNCACHED and the connection passes descriptors (in process: borrowed until
 * close).
 * With WIRE_INLINE an object that is kept in memory (values=memory) comes with the answer: `data` is all of
 * it, state is INLINED, and there is no handle (0) to close.
 * With WIRE_NO_WAIT -EAGAIN where not all bytes are here.
 * With WIRE_META the reply has content type and metadata, which S3 gets always and others where they are
 * known. `valid_ms`: how long another open would be answered alike without asking the origin, unless WATCH
 * says otherwise; UINT64_MAX for ever.
 */
#define WIRE_REQ_open(F)                                                                                     \
    F(str, bucket)                                                                                           \
    F(str, key) F(str, if_match) F(str, if_none_match) F(u64, offset) F(u64, expect) F(u32, via) F(u32, flags)
#define WIRE_REP_open(F)                                                                                     \
    F(u64, handle) F(attr, attr) F(u32, state) F(u64, present) F(u64, valid_ms) F(str, data)
/*
 * Waits until bytes at `offset` are there. Either `available` > 0 bytes at that offset can be read from the
 * descriptor, or `data` holds them (uncached, or WIRE_INLINE). Never 0 bytes before the end of the object; at
 * the end both are empty. flags: WIRE_INLINE, WIRE_NO_WAIT (start fetching, answer at once: available may be
 * 0), WIRE_BACKGROUND (nobody waits for these bytes: behind all who do; with WIRE_NO_WAIT nothing is
 * fetched), WIRE_UNREADABLE (the descriptor gave an error for these bytes: they are verified before anybody
 * is served them again, and fetched anew if the disk does not have them; without WIRE_INLINE that is all that
 * is asked for, and both are empty).
 */
#define WIRE_REQ_fetch(F) F(u64, handle) F(u64, offset) F(u64, n) F(u32, flags)
#define WIRE_REP_fetch(F) F(u64, available) F(str, data) F(u32, state)
/*
 * Only where descriptors are passed. The reply carries the reading end of a pipe, into which the node writes
 * the hash (hash_placement of the key, u64) of each key of the bucket whose cached bytes it lets go, before
 * it acknowledges the change, or wants to let go, or of which it has heard another version: files that are
 * open only to be opened again are to be closed then. Its end means that anything may have changed, or that
 * the node is gone. CLOSE ends it. Of a scratch bucket the records are enum wire_watch instead.
 */
#define WIRE_REQ_watch(F) F(str, bucket)
#define WIRE_REP_watch(F) F(u64, handle)
/*
 * Of a mirror bucket, as WATCH: the reading end of a pipe with a record (net/wire_names.h) for each key that
 * begins with `prefix` of which this node has changed the object or its attributes, has tried to, or has
 * heard of a change, before the change is acknowledged. Also for changes by the session itself. Its end means
 * that any name may have changed.
 */
#define WIRE_REQ_watch_names(F) F(str, bucket) F(str, prefix)
#define WIRE_REP_watch_names(F) F(u64, handle)
/* cached/origin: bytes the caller read itself from the descriptor, for metrics and limits. Those of a user's
 * session, which gets none, do not count, nor does what no file can have brought. */
#define WIRE_REQ_close(F) F(u64, handle) F(u64, read_cached) F(u64, read_origin)
#define WIRE_REP_close(F)
/* CLOSE of each of several: `closed` holds encoded struct wire_closed. What is not open (any more) is passed
 * over; another failure of one does not keep the others open. */
#define WIRE_REQ_close_many(F) F(str, closed)
#define WIRE_REP_close_many(F)

/* size UINT64_MAX: unknown. With a known size bytes go to the origin while they arrive in order. flags:
 * WIRE_STAGED (reply carries a writable descriptor; the caller writes the file itself and commits with its
 * size), WIRE_LASTING (with it: UPLOAD_KEEP can be asked for), WIRE_ETAG (of a scratch bucket: the commit
 * brings the ETag, so that nobody computes one; without it the object has one as with etag=opaque. Of one
 * with write=back, from who is in the node's process: it brings the MD5). if_none_etag: not over an object
 * that has this ETag; only of scratch buckets. meta: of a mirror bucket also what is known of the bytes
 * already (META_DIGESTS). */
#define WIRE_REQ_put_open(F)                                                                                 \
    F(str, bucket)                                                                                           \
    F(str, key)                                                                                              \
    F(u64, size)                                                                                             \
    F(str, content_type)                                                                                     \
    F(str, meta) F(str, if_match) F(u32, if_none_match) F(str, if_none_etag) F(u32, via) F(u32, flags)
#define WIRE_REP_put_open(F)  F(u64, handle)
#define WIRE_REQ_put_write(F) F(u64, handle) F(u64, offset) F(str, data)
#define WIRE_REP_put_write(F)
/* Acknowledged when the origin has it, of a scratch bucket when it is on disk. WIRE_KEEP: the handle stays
 * open for more writes and another commit. `etag`: what the object of a scratch bucket is to have (empty: the
 * MD5 of its bytes when they were written in order); origins give their own. `checksum`: of all its bytes, as
 * origin/meta.h keeps it; `parts`: what PARTS is to tell (s3/part_list.h), kept of scratch buckets.
 * WIRE_META: the object gets the metadata `meta` instead of what PUT_OPEN said; not of what streams to the
 * origin already. WIRE_UNMAPPED: every change of the staged file since it was looked at shows in its times.
 */
#define WIRE_REQ_put_commit(F)                                                                               \
    F(u64, handle)                                                                                           \
    F(u64, size)                                                                                             \
    F(str, sha256) F(str, md5) F(str, etag) F(str, checksum) F(str, parts) F(str, meta) F(u32, flags)
#define WIRE_REP_put_commit(F) F(attr, attr)
#define WIRE_REQ_put_abort(F)  F(u64, handle)
#define WIRE_REP_put_abort(F)
/* Of a handle with WIRE_STAGED: what was written stays here, durably, as a file that the origin did not take
 * (object/stranded.h), with the metadata `meta`. `base`: ETag of the version that it was made from, empty
 * when there is none. `error`: why it was not published. The handle stays open. */
#define WIRE_REQ_strand(F) F(u64, handle) F(u64, size) F(str, meta) F(str, base) F(str, error)
#define WIRE_REP_strand(F)
/* The first such file below a prefix behind `after`; -ENOENT: there is none. */
#define WIRE_REQ_stranded(F) F(str, bucket) F(str, prefix) F(str, after)
#define WIRE_REP_stranded(F) F(str, key) F(u64, size) F(u64, since_ns) F(str, error)
/* Ends it, when it still is the one that was kept then. flags: WIRE_WRITE (it goes to the origin first, if
 * the object there is the version that it was made from, else ERR_PRECONDITION), WIRE_REPLACE (with it: in
 * the place of whatever is there); none: it is dropped. */
#define WIRE_REQ_stranded_end(F) F(str, bucket) F(str, key) F(u64, since_ns) F(u32, flags)
#define WIRE_REP_stranded_end(F)
/* What came with the commit of an object that was uploaded in parts; empty: nothing is known of parts.
 * -ESTALE: the object has another ETag now. */
#define WIRE_REQ_parts(F) F(str, bucket) F(str, key) F(str, etag)
#define WIRE_REP_parts(F) F(str, parts)
/* Where one part is in an object of a mirror bucket that was uploaded in parts, as its origin says. n_parts:
 * how many there are; 0: the origin does not tell. `checksum` of the part: "SUFFIX BASE64", or empty.
 * ERR_RANGE: no part of that number. -ESTALE: the object has another ETag now. */
#define WIRE_REQ_part(F) F(str, bucket) F(str, key) F(str, etag) F(u32, number)
#define WIRE_REP_part(F) F(u32, n_parts) F(u64, offset) F(u64, size) F(str, checksum)

/*
 * Uploads in parts to buckets whose origin has them (else ERR_NOT_IMPLEMENTED): the parts go to the origin as
 * they come, what is open outlives the node (namespace/upload.h). `tag`: up to 64 bytes for the caller to
 * find again, which say what checksums its parts have ("SUFFIX TYPE" of s3/part_list.h; empty: none): the
 * origin gets them too, when it takes them.
 */
#define WIRE_REQ_upload_create(F) F(str, bucket) F(str, key) F(str, content_type) F(str, meta) F(str, tag)
#define WIRE_REP_upload_create(F) F(str, id)
/* One part of known size, numbered 1 to 10000; -ENOENT: no such upload of that key. Its bytes follow in order
 * by UPLOAD_WRITE. Nothing of it counts before UPLOAD_END, which gives it the ETag that clients know it by
 * and its checksum, in hex; with WIRE_CANCEL it is dropped, and what was there of that number before
 * stays. `checksum` of UPLOAD_PART: "SUFFIX HEX" where it is known by then, of whatever kind.
 */
#define WIRE_REQ_upload_part(F)                                                                              \
    F(str, bucket) F(str, key) F(str, id) F(u32, number) F(u64, size) F(str, checksum)
#define WIRE_REP_upload_part(F)  F(u64, handle) F(str, tag)
#define WIRE_REQ_upload_write(F) F(u64, handle) F(str, data)
#define WIRE_REP_upload_write(F)
#define WIRE_REQ_upload_end(F) F(u64, handle) F(str, etag) F(str, checksum) F(u32, flags)
#define WIRE_REP_upload_end(F)
/* Parts with numbers above `after`: `parts` holds encoded struct wire_part. `etag`: of the object, when the
 * upload was completed already; then there are no parts. flags: WIRE_STAGED (of an upload that is here). */
#define WIRE_REQ_upload_parts(F) F(str, bucket) F(str, key) F(str, id) F(u32, after) F(u32, max) F(u32, flags)
#define WIRE_REP_upload_parts(F)                                                                             \
    F(str, parts) F(u32, n_parts) F(u32, truncated) F(str, tag) F(str, content_type) F(str, meta) F(str, etag)
/* Open uploads of a bucket in the order of their ids, behind `after`: encoded struct wire_upload. flags:
 * WIRE_STAGED (those that are here, instead of those at the origin). */
#define WIRE_REQ_upload_list(F) F(str, bucket) F(str, after) F(u32, flags)
#define WIRE_REP_upload_list(F) F(str, uploads) F(u32, truncated)
/* `parts`: lines "NUMBER ETAG\n" in rising order. -ESTALE: one of them is not there, or another one by
 * now. Completing again gives the same answer. ERR_CONFLICT: another one is at it. `checksum` as of
 * PUT_COMMIT: it becomes the tag of the completed upload. */
#define WIRE_REQ_upload_complete(F)                                                                          \
    F(str, bucket)                                                                                           \
    F(str, key)                                                                                              \
    F(str, id) F(str, parts) F(str, checksum) F(str, if_match) F(u32, if_none_match) F(u32, via)
#define WIRE_REP_upload_complete(F) F(attr, attr)
#define WIRE_REQ_upload_abort(F)    F(str, bucket) F(str, key) F(str, id)
#define WIRE_REP_upload_abort(F)

/*
 * Uploads that are *here*: what a PUT with WIRE_STAGED writes, which the caller divides into parts as it
 * likes. UPLOAD_KEEP makes one of the handle of such a PUT: from then on its file and the parts that
 * UPLOAD_KEEP_PART told of outlive the node, until UPLOAD_ABORT, or the PUT_COMMIT of the handle, with which
 * the upload is completed; `tag` as above. With an `id`: the handle's commit completes that upload, too,
 * which is another handle's. ERR_NOT_IMPLEMENTED: the handle's file cannot outlive the node.
 */
#define WIRE_REQ_upload_keep(F) F(u64, handle) F(str, id) F(str, tag)
#define WIRE_REP_upload_keep(F) F(str, id)
/* What was written to the file so far is durable, then that this part lies there, then it is answered.
 * `slot_bytes`: for the caller to find again. flags: WIRE_CANCEL (there is no part of that number any more).
 * -ENOENT: the upload was completed or aborted. */
#define WIRE_REQ_upload_keep_part(F)                                                                         \
    F(u64, handle)                                                                                           \
    F(u32, number)                                                                                           \
    F(u64, size) F(u64, offset) F(u64, slot_bytes) F(str, etag) F(str, checksum) F(u32, flags)
#define WIRE_REP_upload_keep_part(F)
/* The handle of an upload that is here and that nobody has open, as after a start of the node; with a
 * descriptor, as of PUT_OPEN. -EBUSY. */
#define WIRE_REQ_upload_resume(F) F(str, bucket) F(str, key) F(str, id)
#define WIRE_REP_upload_resume(F) F(u64, handle)

/* REMOVE, COPY with WIRE_MOVE, MKDIR, RMDIR and SET_META of a mount may have a number as their request id
 * (WIRE_NUMBERED): sent again with that they are made once, and answered as the first would have been. */

/* WIRE_POSIX: -ENOENT when there is no such object; else success either way, as S3 does. */
#define WIRE_REQ_remove(F) F(str, bucket) F(str, key) F(str, if_match) F(u32, flags)
#define WIRE_REP_remove(F)
/* Removes what STAT with WIRE_SINCE has told of: an object with this ETag that is as it was since then.
 * ERR_PRECONDITION when it is another one by now, also one of the same bytes; where the bucket has an origin
 * only the ETag tells that. */
#define WIRE_REQ_remove_since(F) F(str, bucket) F(str, key) F(str, if_match) F(u64, since_ns)
#define WIRE_REP_remove_since(F)
/* Server-side copy within a bucket. WIRE_MOVE: then removes the source; with WIRE_POSIX also a directory with
 * all below it (-EXDEV when that is too much). WIRE_NOREPLACE: -EEXIST. */
#define WIRE_REQ_copy(F) F(str, bucket) F(str, from) F(str, to) F(u32, flags)
#define WIRE_REP_copy(F) F(attr, attr)
/* A copy that the origin makes by itself, out of a bucket of the same service too; no bytes come to the node.
 * ERR_NOT_IMPLEMENTED where it cannot, ERR_PRECONDITION: the source has another ETag (if_match, may be
 * empty). replace_meta, replace_tags: 1: the copy has this content type and metadata, these tags (a line of
 * `meta`). */
#define WIRE_REQ_copy_from(F)                                                                                \
    F(str, bucket)                                                                                           \
    F(str, key)                                                                                              \
    F(str, source_bucket)                                                                                    \
    F(str, source_key)                                                                                       \
    F(str, if_match) F(u32, replace_meta) F(u32, replace_tags) F(str, content_type) F(str, meta)
#define WIRE_REP_copy_from(F) F(attr, attr)
/* The same as a part of an upload without tag: n bytes at `offset`, n at least 1. `etag`: of the part. */
#define WIRE_REQ_upload_copy(F)                                                                              \
    F(str, bucket)                                                                                           \
    F(str, key)                                                                                              \
    F(str, id)                                                                                               \
    F(u32, number) F(str, source_bucket) F(str, source_key) F(str, if_match) F(u64, offset) F(u64, n)
#define WIRE_REP_upload_copy(F) F(str, etag)
/* Directories of a mirror bucket are prefixes; an empty one is a marker object "dir/", made with `meta`. */
#define WIRE_REQ_mkdir(F) F(str, bucket) F(str, key) F(str, meta)
#define WIRE_REP_mkdir(F) F(attr, attr)
#define WIRE_REQ_rmdir(F) F(str, bucket) F(str, key)
#define WIRE_REP_rmdir(F)

/* Gives an object of a mirror bucket lines of metadata instead of those it has of the same names; its bytes
 * stay. Of a scratch bucket only with WIRE_MODES, and only mode, owner and time. WIRE_POSIX: the key may name
 * a directory; its marker is made when it has none. ERR_PRECONDITION when it is not of this kind (enum
 * wire_kind; 0: any), or a file of another ETag (empty: any). */
#define WIRE_REQ_set_meta(F)                                                                                 \
    F(str, bucket) F(str, key) F(str, meta) F(str, if_match) F(u32, kind) F(u32, flags)
#define WIRE_REP_set_meta(F) F(attr, attr)

/* Tags of an object of a mirror bucket, as its origin has them, "NAME=VALUE&..." percent-encoded. SET_TAGS:
 * in place of those that are there; empty: none. ERR_NOT_IMPLEMENTED where the origin keeps none, and of what
 * was written and is not in the origin yet: there they are a line of its metadata (origin/meta.h). So they
 * are in scratch buckets, where SET_TAGS changes that line and nothing else, but for values in memory
 * (ERR_NOT_IMPLEMENTED). */
#define WIRE_REQ_tags(F)     F(str, bucket) F(str, key)
#define WIRE_REP_tags(F)     F(str, tags)
#define WIRE_REQ_set_tags(F) F(str, bucket) F(str, key) F(str, tags)
#define WIRE_REP_set_tags(F)

/* JSON text of the node's state. */
#define WIRE_REQ_status(F)
#define WIRE_REP_status(F) F(str, json)
/* A mount tells what it is: mount point, passthrough or why not; shown in status and metrics while connected.
 */
#define WIRE_REQ_report(F) F(str, mount_point) F(str, bucket) F(u32, passthrough) F(str, reason)
#define WIRE_REP_report(F)

/* Who reads what: `json` is an array of {bucket, prefix, opens, read_bytes, fetched_bytes, last_read_ms}, one
 * for each prefix of two directories below the given one that was read (bucket empty: all). fetched_bytes:
 * brought from the origin for it. */
#define WIRE_REQ_usage(F) F(str, bucket) F(str, prefix)
#define WIRE_REP_usage(F) F(str, json)

/* What the node knows of one object without asking the origin: `json` is an object with `kind` (mirror,
 * scratch) and what docs/forebay.1 says of `forebay explain`. `ino`: of a scratch bucket, in the place of the
 * key when it is not 0. */
#define WIRE_REQ_explain(F) F(str, bucket) F(str, key) F(u64, ino)
#define WIRE_REP_explain(F) F(str, json)

/* Users (namespace/user.h). `role`: admin, writer or reader (empty: reader); `buckets`: patterns with commas
 * between (empty: all). The secret is told here and never again. */
#define WIRE_REQ_user_create(F) F(str, name) F(str, role) F(str, buckets)
#define WIRE_REP_user_create(F) F(str, access_key) F(str, secret_key)
/* Names in byte order after `after`, at most 1000. `users`: a line "NAME ROLE BUCKETS CREATED KEY[,KEY...]
 * SHARE REQUESTS BYTES" each, CREATED in ns since 1970. */
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
/* `settings`: lines "share=N", "limit.requests=N", "limit.bytes=SIZE"; what is not named stays. */
#define WIRE_REQ_user_limit(F) F(str, name) F(str, settings)
#define WIRE_REP_user_limit(F)
/*
 * What is cached below a prefix, in byte order after `after`, at most `max` (at most 1000): the origin is not
 * asked. `entries` holds encoded struct wire_cached. flags: WIRE_EXACT (only the object whose key is
 * `prefix`, with what arrived a moment ago), or WIRE_UNSENT (instead, the objects that were written and are
 * not in the origin yet); without the latter also WIRE_ETAG (entries say of which version they are:
 * WIRE_CACHED_VERSION; nodes before 2026-11-28 say it of none), and WIRE_FRESH (-EIO where kill -9 would lose
 * some of what is cached by now, as an index cannot be written: with WIRE_EXACT, of that object).
 */
#define WIRE_REQ_cached(F) F(str, bucket) F(str, prefix) F(str, after) F(u32, max) F(u32, flags)
#define WIRE_REP_cached(F) F(str, entries) F(u32, n_entries) F(u32, truncated)
/* Drops what is cached of an object; success also when nothing was. Readers keep their bytes. -EBUSY: it is
 * pinned, or not in the origin yet; not with WIRE_FRESH (it is to be fetched again). */
#define WIRE_REQ_evict(F) F(str, bucket) F(str, key) F(u32, flags)
#define WIRE_REP_evict(F)

/* Asks the origin whether what is cached of an object is what it has, and drops it when it is not. `state`:
 * enum wire_confirm. Empty key: forgets all that is remembered of the bucket without data. */
#define WIRE_REQ_confirm(F) F(str, bucket) F(str, key)
#define WIRE_REP_confirm(F) F(u32, state)
/* Notifications of the origin, as S3 writes them ({"Records": [...]}): what is cached of the objects is
 * dropped, unless it is the very version. `token`: the bucket's property events.token. */
#define WIRE_REQ_events(F) F(str, bucket) F(str, token) F(str, json)
#define WIRE_REP_events(F) F(u32, changed) F(u32, ignored)

/* What below a prefix of a bucket with write=back is not in the origin yet; what waits to be tried again is
 * tried now. flags: WIRE_NO_WAIT (only looks). `error`: of the oldest that fails. */
#define WIRE_REQ_flush(F) F(str, bucket) F(str, prefix) F(u32, flags)
#define WIRE_REP_flush(F) F(u64, objects) F(u64, bytes) F(u64, oldest_ms) F(u64, failing) F(str, error)

/* kind: a row of jobs/kind.h. source, target: "BUCKET/PREFIX". spec: lines as net/job_spec.h says. */
#define WIRE_REQ_job_start(F) F(str, kind) F(str, source) F(str, target) F(str, spec)
#define WIRE_REP_job_start(F) F(u64, id)
/* Jobs with numbers above `after`, at most 100: `json` is an array of objects as of JOB_GET. */
#define WIRE_REQ_job_list(F) F(u64, after)
#define WIRE_REP_job_list(F) F(str, json) F(u32, truncated)
/* One job as a JSON object. `final`: 1 when it has ended. */
#define WIRE_REQ_job_get(F) F(u64, id)
#define WIRE_REP_job_get(F) F(str, json) F(u32, final)
/* action: pause, resume, listed, cancel, retry or rm. */
#define WIRE_REQ_job_change(F) F(u64, id) F(str, action)
#define WIRE_REP_job_change(F)
/* Objects that failed, by key after `after`, at most 1000: `json` is an array of {key, code, reason}; `next`
 * continues as after. */
#define WIRE_REQ_job_errors(F) F(u64, id) F(str, after)
#define WIRE_REP_job_errors(F) F(str, json) F(str, next) F(u32, truncated)
/* Keys for a job that was started with `listed` in its spec and waits, paused: each ended by a newline, at
 * most 4 MiB together. JOB_CHANGE with listed begins it. */
#define WIRE_REQ_job_keys(F) F(u64, id) F(str, keys)
#define WIRE_REP_job_keys(F)
/* As JOB_GET, once the job has ended, or after timeout_ms, of which at most 1000 count; earlier where many
 * wait. Nodes before 2026-11-24 do not know it: ask with JOB_GET now and then. */
#define WIRE_REQ_job_wait(F) F(u64, id) F(u32, timeout_ms)
#define WIRE_REP_job_wait(F) F(str, json) F(u32, final)

/*
 * TREE_*: the POSIX tree of a scratch bucket, for mounts. Inodes go by their numbers, which are never used
 * again; the root has number 1. Of sessions that no user signed in the kernel has checked permissions. Those
 * of a user are served over the Unix socket alone, and work on one bucket each: there everything is done with
 * the uid and the groups that the kernel tells of the connection, whatever a request names, and the node
 * checks what POSIX says, after role and bucket of the key. Who gets no descriptor reads and writes by
 * TREE_READ and those after it.
 *
 * `mount` (16 bytes) and `request` number a change: sent again with the same pair it gives the same answer
 * and changes nothing twice; request 0: not noted. Failures change nothing. Every change is visible at once
 * and survives the end of the node; TREE_SYNC makes it survive power loss.
 */
#define WIRE_REQ_tree_lookup(F) F(str, bucket) F(u64, parent) F(str, name)
#define WIRE_REP_tree_lookup(F) F(inode, inode)
/* Size and times of a file that somebody may be writing are those of its data. What is no file and was
 * removed is told without links, for a while: who has it open may ask. */
#define WIRE_REQ_tree_getattr(F) F(str, bucket) F(u64, ino)
#define WIRE_REP_tree_getattr(F) F(inode, inode)
/* what: enum wire_set_bit. */
#define WIRE_REQ_tree_setattr(F)                                                                             \
    F(str, bucket)                                                                                           \
    F(u64, ino)                                                                                              \
    F(u32, what)                                                                                             \
    F(u32, mode)                                                                                             \
    F(u32, uid)                                                                                              \
    F(u32, gid) F(u64, size) F(i64, atime_ns) F(i64, mtime_ns) F(str, mount) F(u64, request)
#define WIRE_REP_tree_setattr(F) F(inode, inode)
/*
 * Any type of inode, by the type bits of `mode`; umask is applied here. An empty name: a file without links
 * (O_TMPFILE), opened. For a session of a user only with WIRE_EXCLUSIVE where it opens. flags: WIRE_EXCLUSIVE
 * (-EEXIST when the name is there; else an existing file is given), WIRE_WRITE (also opens it: the reply
 * carries a descriptor for reading and writing), WIRE_TRUNCATE (with WIRE_WRITE: an existing file becomes
 * empty), WIRE_LATE (instead of WIRE_WRITE: opens it as TREE_OPEN does for reading; who writes to it asks for
 * that by TREE_OPEN. Of a node that does not know this the handle is 0).
 */
#define WIRE_REQ_tree_create(F)                                                                              \
    F(str, bucket)                                                                                           \
    F(u64, parent)                                                                                           \
    F(str, name)                                                                                             \
    F(u32, mode)                                                                                             \
    F(u32, rdev)                                                                                             \
    F(str, target) F(u32, uid) F(u32, gid) F(u32, umask) F(u32, flags) F(str, mount) F(u64, request)
#define WIRE_REP_tree_create(F) F(inode, inode) F(u32, made) F(u64, handle) F(u32, is_limited)
/*
 * `is_limited`, here and of CREATE: 1 when the bucket has a quota. Who writes then asks for room first
 * (TREE_ROOM), and lets nobody else write through the descriptor.
 *
 * flags: WIRE_WRITE, WIRE_TRUNCATE (with it). The reply carries the descriptor: for reading, or with
 * WIRE_WRITE for reading and writing; none for a file without bytes that is opened for reading. The inode
 * outlives its last link until CLOSE. Works on inodes without links too, while they are open.
 */
#define WIRE_REQ_tree_open(F) F(str, bucket) F(u64, ino) F(u32, flags) F(str, mount) F(u64, request)
#define WIRE_REP_tree_open(F) F(inode, inode) F(u64, handle) F(u32, is_limited)
/* A file: its data and attributes are durable on return. A directory: every change before it. flags:
 * WIRE_DATA_ONLY: of a file, what is needed to read its data back. */
#define WIRE_REQ_tree_sync(F) F(str, bucket) F(u64, ino) F(u32, flags)
#define WIRE_REP_tree_sync(F)
#define WIRE_REQ_tree_link(F)                                                                                \
    F(str, bucket) F(u64, ino) F(u64, parent) F(str, name) F(str, mount) F(u64, request)
#define WIRE_REP_tree_link(F)   F(inode, inode)
#define WIRE_REQ_tree_unlink(F) F(str, bucket) F(u64, parent) F(str, name) F(str, mount) F(u64, request)
#define WIRE_REP_tree_unlink(F)
#define WIRE_REQ_tree_rmdir(F) F(str, bucket) F(u64, parent) F(str, name) F(str, mount) F(u64, request)
#define WIRE_REP_tree_rmdir(F)
/* flags: WIRE_NOREPLACE, WIRE_EXCHANGE. */
#define WIRE_REQ_tree_rename(F)                                                                              \
    F(str, bucket)                                                                                           \
    F(u64, parent)                                                                                           \
    F(str, name) F(u64, to_parent) F(str, to_name) F(u32, flags) F(str, mount) F(u64, request)
#define WIRE_REP_tree_rename(F)
/*
 * Entries with cookies above `after` (0: from the first; cookies are 3 and more), as many as fit into `max`
 * bytes, in the order of their making: `entries` holds encoded struct wire_dirent, without "." and "..".
 * `until`: 0 in the first call, which answers what to pass in the others, so that a reader does not meet
 * what is made meanwhile. `end`: 1 after the last entry. flags: WIRE_PLUS (each with its inode).
 */
#define WIRE_REQ_tree_readdir(F)                                                                             \
    F(str, bucket) F(u64, ino) F(u64, after) F(u64, until) F(u32, max) F(u32, flags)
#define WIRE_REP_tree_readdir(F)   F(str, entries) F(u32, n_entries) F(u32, end) F(u64, until)
#define WIRE_REQ_tree_xattr_get(F) F(str, bucket) F(u64, ino) F(str, name)
#define WIRE_REP_tree_xattr_get(F) F(str, value)
/* Names, each with a NUL behind it. */
#define WIRE_REQ_tree_xattr_list(F) F(str, bucket) F(u64, ino)
#define WIRE_REP_tree_xattr_list(F) F(str, names)
/* flags: WIRE_EXCLUSIVE (-EEXIST when it is there), WIRE_REPLACE (-ENODATA when it is not). */
#define WIRE_REQ_tree_xattr_set(F)                                                                           \
    F(str, bucket) F(u64, ino) F(str, name) F(str, value) F(u32, flags) F(str, mount) F(u64, request)
#define WIRE_REP_tree_xattr_set(F)
#define WIRE_REQ_tree_xattr_remove(F) F(str, bucket) F(u64, ino) F(str, name) F(str, mount) F(u64, request)
#define WIRE_REP_tree_xattr_remove(F)
#define WIRE_REQ_tree_statfs(F) F(str, bucket)
#define WIRE_REP_tree_statfs(F) F(u64, bytes_total) F(u64, bytes_free) F(u64, files)
/*
 * Locks of this session on an inode, in the node's memory: they end with the session. kind: enum
 * wire_lock_kind; type: enum wire_lock_type; bytes from `start` to `end`, both included (UINT64_MAX: the end
 * of the file, wherever that is), of no meaning for WIRE_LOCK_FLOCK. `owner` as the kernel gives it. flags:
 * WIRE_WAIT (until it can be had; else -EAGAIN), WIRE_TEST (posix only: takes nothing and answers what is in
 * the way, type WIRE_LOCK_NONE when nothing is), WIRE_CANCEL (the owner's request that waits for this inode
 * ends with -EINTR). A wait ends after some seconds with -ETIMEDOUT: ask again. -EDEADLK: waiting would never
 * end (posix).
 */
#define WIRE_REQ_tree_lock(F)                                                                                \
    F(str, bucket)                                                                                           \
    F(u64, ino)                                                                                              \
    F(u64, owner) F(u32, kind) F(u32, type) F(u64, start) F(u64, end) F(u32, pid) F(u32, flags)
#define WIRE_REP_tree_lock(F) F(u32, type) F(u64, start) F(u64, end) F(u32, pid)
/* The mount ends for good: what its numbered changes answered is forgotten. */
#define WIRE_REQ_tree_leave(F) F(str, bucket) F(str, mount)
#define WIRE_REP_tree_leave(F)
/*
 * Room in the bucket's quota for bytes that an open file of this session is about to have on disk: `granted`
 * is `want` and perhaps some more ahead, or, when there is less, what there is; it is the session's until
 * CLOSE or its end. -EDQUOT: there is less than `least`. `back`: of what was granted before, what is on disk
 * by now, or not wanted any more. `want` 0: only says so. -ESTALE: this session does not have the file open
 * for writing.
 */
#define WIRE_REQ_tree_room(F) F(str, bucket) F(u64, ino) F(u64, back) F(u64, least) F(u64, want)
#define WIRE_REP_tree_room(F) F(u64, granted)
/* CLOSE of several handles of TREE_CREATE and TREE_OPEN: `handles`, u64 each. What is not open (any more) is
 * passed over. */
#define WIRE_REQ_tree_close(F) F(str, handles)
#define WIRE_REP_tree_close(F)
/* The same for bytes that are about to be written to the descriptor of a PUT with WIRE_STAGED. */
#define WIRE_REQ_put_room(F) F(u64, handle) F(u64, back) F(u64, least)
#define WIRE_REP_put_room(F)

/*
 * Bytes of a file by the handle that TREE_OPEN or TREE_CREATE gave, for who has no descriptor; nodes before
 * 2026-11-29 do not know these operations. At most 1 MiB at once; what is read is shorter at the end of the
 * file alone. -EACCES: the handle is not for that. What is written is as by write(2) of the peer: set-user-ID
 * and set-group-ID go, and the bucket's quota is asked; `n`: how much was written, which may be less, and
 * `size` how large the file is after it. TREE_APPEND writes at the end, wherever that is, once for each
 * `request` of the mount that opened the handle (0: each time), also when the node was restarted in between.
 */
#define WIRE_REQ_tree_read(F)   F(u64, handle) F(u64, offset) F(u32, n)
#define WIRE_REP_tree_read(F)   F(str, data)
#define WIRE_REQ_tree_write(F)  F(u64, handle) F(u64, offset) F(str, data)
#define WIRE_REP_tree_write(F)  F(u32, n) F(u64, size)
#define WIRE_REQ_tree_append(F) F(u64, handle) F(u64, request) F(str, data)
#define WIRE_REP_tree_append(F) F(u32, n) F(u64, size)
/* fallocate(2): `mode` 1 keep the size, 2 (with it) punch a hole, 16 zeros. */
#define WIRE_REQ_tree_allocate(F) F(u64, handle) F(u32, mode) F(u64, offset) F(u64, length)
#define WIRE_REP_tree_allocate(F)
/* lseek(2): `whence` 2 end, 3 data, 4 hole. -ENXIO: there is none any more. */
#define WIRE_REQ_tree_seek(F) F(u64, handle) F(u64, offset) F(u32, whence)
#define WIRE_REP_tree_seek(F) F(u64, offset)
/*
 * As TREE_UNLINK and TREE_RENAME, and they say which times of change (mtime and ctime, ns since 1970) the
 * directories of the names have by it, so that nobody has to ask for those. `changed_ns` 0: ask; the request
 * was made before, nothing was changed, or a directory got another place. Nodes before 2026-11-30 do not have
 * them.
 */
#define WIRE_REQ_tree_remove(F) F(str, bucket) F(u64, parent) F(str, name) F(str, mount) F(u64, request)
#define WIRE_REP_tree_remove(F) F(i64, changed_ns)
#define WIRE_REQ_tree_move(F)                                                                                \
    F(str, bucket)                                                                                           \
    F(u64, parent)                                                                                           \
    F(str, name) F(u64, to_parent) F(str, to_name) F(u32, flags) F(str, mount) F(u64, request)
#define WIRE_REP_tree_move(F) F(i64, changed_ns)
