/*
 * Stranded files: what was written through a mount into a bucket with an origin, was closed, and could not be
 * published. Whoever wrote it was told by fsync or close; the bytes stay here, durably, until the user says
 * that they go to the origin or that they are not wanted. Nobody sees them as the object meanwhile, and
 * nothing is done with them by itself: the program may have written the same elsewhere.
 *
 * There is at most one for each key, the one that the origin refused last: a mount gives its files away when
 * their last close has ended, in any order. Its record in the control store is durable before the mount is
 * told that the bytes are kept, and names a hard extent (store/hard.h).
 *
 * Key: "k/", bucket id (8 bytes, big endian), key of the object. Value, numbers little endian:
 *
 * | offset | size | record                                                                |
 * | ------ | ---- | --------------------------------------------------------------------- |
 * | 0      | 1    | format: 1                                                             |
 * | 1      | 1    | bytes of the location: 33 (store/hard.h), or 0 when there are no bytes |
 * | 2      | 8    | since when the origin does not take it, as far as is known, else when |
 * |        |      | it was written last, ns since 1970; later than of what it took the    |
 * |        |      | place of                                                              |
 * | 10     | 8    | size in bytes                                                         |
 * | 18     | n    | location                                                              |
 * |        | 2+n  | ETag of the version that it was made from: length, bytes; empty: none, or not known |
 * |        | 2+n  | meta lines                                                            |
 * |        | 2+n  | why it was not published, in the origin's words                       |
 *
 * A crash leaves the record or not, never a half; extents without a record are removed at the next start.
 *
 * Threads: any. Who changes a record does so on the condition that it still is what was read.
 */
#pragma once

#include "base/buf.h"
#include "base/err.h"
#include "base/slice.h"

#define STRANDED_MAX              10000 /* files; what comes on top is not kept */
#define STRANDED_ERROR_MAX_BYTES  ERR_TEXT_MAX
#define STRANDED_RECORD_MAX_BYTES (12 * 1024)

struct stranded {
    uint64_t since_ns, size_bytes;
    struct slice location, base, meta, error;
};

/* Pure. Slices of what was decoded point into the value. ERR_CORRUPT. */
int stranded_encode(const struct stranded *x, struct buf *b);
int stranded_decode(struct slice value, struct stranded *ret);

struct bucket;
struct json_t;
struct object_service;
struct origin_body;

/* Before the sweep of hard extents: protects those of the records. A record that cannot be read is an error.
 */
int stranded_open(struct object_service *s, struct err *e);
/* Keeps a body under a key, unless one is kept that was refused after it; of x location and size do not
 * count. -ENOSPC: there are too many, or no room. */
int stranded_keep(struct object_service *s, const struct bucket *bucket, struct slice key,
                  const struct stranded *x, const struct origin_body *body, struct err *e);
/* -EBUSY, naming what was asked, while files of the bucket are kept. */
int stranded_check_gone(struct object_service *s, const struct bucket *bucket, const char *what,
                        struct err *e);
/* What status shows of a bucket; NULL when there is nothing to show. At most STRANDED_JSON_MAX_BYTES. */
#define STRANDED_JSON_MAX_BYTES (32 * 1024)
struct json_t *stranded_json(struct object_service *s, const struct bucket *bucket);
