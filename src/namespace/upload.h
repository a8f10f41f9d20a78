/*
 * Uploads in parts, as the control store remembers them: which are open, what came with their creation, and
 * which parts were acknowledged. The bytes are at the bucket's origin, or in a file of this node: of an
 * upload that is *here*.
 *
 * Numbers in keys are big-endian, in values little-endian; every value begins with its format: 1, or 2 of an
 * open upload that is here, and of its parts, or 3 of an open upload whose parts the origin has with the
 * checksums that the upload's tag names.
 *
 * | key                                    | value           |
 * | -------------------------------------- | --------------- |
 * | "mu" bucket(8) upload(16)              | an upload       |
 * | "mp" bucket(8) upload(16) number(2)    | a part of it    |
 *
 * | offset | size | upload                                                                        |
 * | ------ | ---- | ----------------------------------------------------------------------------- |
 * | 0      | 1    | format: 1, 2 or 3                                                             |
 * | 1      | 1    | 0 open; 1 completed: kept for clients that ask again, its parts are gone      |
 * | 2      | 8    | when it was created, when completed: when that was; ns since 1970             |
 * | 10     | 2+n  | key                                                                           |
 * |        | 2+n  | content type                                                                  |
 * |        | 2+n  | metadata lines                                                                |
 * |        | 2+n  | the origin's name of the upload                                               |
 * |        | 2+n  | what the front end wants to remember                                          |
 * |        | 2+n  | ETag of the object that it became; empty while open                           |
 * |        | 33   | format 2 only: where its bytes are, the location of a hard extent             |
 *
 * | offset | size | part                                                                          |
 * | ------ | ---- | ----------------------------------------------------------------------------- |
 * | 0      | 1    | format: 1, or 2                                                               |
 * | 1      | 8    | size in bytes                                                                 |
 * | 9      | 8    | when it was acknowledged, ns since 1970                                       |
 * | 17     | 2+n  | its ETag for clients                                                          |
 * |        | 2+n  | its ETag at the origin; format 2: empty                                       |
 * |        | 2+n  | checksum, as the front end wrote it                                           |
 * |        | 8    | format 2 only: where it begins in the file                                    |
 * |        | 8    | format 2 only: bytes from the beginning of one slot to the next, as the front |
 * |        |      | end divides the file                                                          |
 *
 * A crash leaves whole records: an upload whose creation was not acknowledged is what expiry removes. A part
 * is recorded only while its upload is, because expiry walks uploads; of one that is here after its bytes
 * were synced. The transaction that names the file of an upload in an object has the upload completed: no
 * open upload has a file that is an object's. A node that knows format 1 only removes the file of such an
 * upload at its start and reports the record as damaged; one that does not know format 3 reports that as
 * damaged, and goes on with it once it is one that does.
 */
#pragma once

#include "base/arena.h"
#include "base/id.h"
#include "kv/kv.h"
#include "origin/origin.h"

#define UPLOAD_RECORD_MAX   (16 * KIB)
#define UPLOAD_NUMBER_MAX   10000
#define UPLOAD_TAG_MAX      64
#define UPLOAD_ETAG_MAX     ORIGIN_ETAG_MAX
#define UPLOAD_CHECKSUM_MAX 64
#define UPLOAD_LOCATION     33 /* bytes; HARD_LOCATION_BYTES of store/hard.h */

struct upload_record {
    struct id128 id;
    bool completed;
    uint64_t at_ns;
    struct slice key, content_type, meta, origin_id, tag, etag;
    struct slice location; /* of an open one that is here; else empty */
    bool gives_sums;       /* of an open one: its tag is what origin_put.sums is, of each part */
};

struct upload_part_record {
    uint32_t number;
    uint64_t size_bytes, at_ns;
    struct slice etag, origin_etag, checksum;
    bool is_here; /* then offset and slot_bytes count */
    uint64_t offset, slot_bytes;
};

/* Keys and values; pure. Decoders give ERR_CORRUPT; slices point into the value. */
void upload_key(uint64_t bucket, struct id128 id, struct buf *ret_key);
void upload_part_key(uint64_t bucket, struct id128 id, uint32_t number, struct buf *ret_key);
int upload_encode(const struct upload_record *u, struct buf *b);
int upload_decode(struct slice value, struct upload_record *ret);
int upload_part_encode(const struct upload_part_record *p, struct buf *b);
int upload_part_decode(struct slice value, struct upload_part_record *ret);

/* Durable when they return. A completed upload loses its parts in the same transaction. */
int upload_save(struct kv *kv, uint64_t bucket, const struct upload_record *u, struct err *e);
/* The same as a part of a transaction that somebody else commits. -E2BIG. */
int upload_put(struct kv_txn *t, uint64_t bucket, const struct upload_record *u, struct err *e);
/* -ENOENT when there is no such upload, or it was completed. */
int upload_save_part(struct kv *kv, uint64_t bucket, struct id128 id, const struct upload_part_record *p,
                     struct err *e);
int upload_remove_part(struct kv *kv, uint64_t bucket, struct id128 id, uint32_t number, struct err *e);
int upload_remove(struct kv *kv, uint64_t bucket, struct id128 id, struct err *e);
/* Only an open one, also beside a completion. -ENOENT when there is no such upload, or it was completed. */
int upload_remove_open(struct kv *kv, uint64_t bucket, struct id128 id, struct err *e);
int upload_remove_bucket(struct kv *kv, uint64_t bucket, struct err *e);

/* Strings are in the arena. -ENOENT. */
int upload_find(struct kv *kv, uint64_t bucket, struct id128 id, struct arena *a, struct upload_record *ret,
                struct err *e);
/* Calls fn for each upload of a bucket, or of all (bucket 0), behind `after` (may be NULL), and for each part
 * with a number above `after`; slices live during the call. Anything but 0 ends the walk and is its result.
 */
typedef int (*upload_fn)(void *arg, uint64_t bucket, const struct upload_record *u);
typedef int (*upload_part_fn)(void *arg, const struct upload_part_record *p);
int upload_each(struct kv *kv, uint64_t bucket, const struct id128 *after, upload_fn fn, void *arg,
                struct err *e);
int upload_each_part(struct kv *kv, uint64_t bucket, struct id128 id, uint32_t after, upload_part_fn fn,
                     void *arg, struct err *e);
