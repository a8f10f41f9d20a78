/*
 * Multipart uploads whose parts are at the bucket's origin (UPLOAD_* of the object layer): they outlive the
 * node and take no room here.
 *
 * The upload's tag is the suffix of the checksum that its creation named ("crc32"): each part's is kept, so
 * that one of the whole object can be verified at the end. One thread at a time per struct.
 */
#pragma once

#include "s3/checksum.h"
#include "s3/s3_internal.h"
#include "s3/uploads.h"

/* NOT_IMPLEMENTED: the bucket's parts cannot go to an origin; see uploads.h. */
enum s3_error parts_create(struct s3_request *r, struct slice type, struct slice meta,
                           char ret_id[UPLOAD_ID_SIZE]);

/* One part: begin, write, end. */
struct parts_write {
    struct s3_request *r;
    struct arena *arena;
    uint64_t handle; /* 0: not begun */
    struct checksum sum;
};
/* NO_SUCH_UPLOAD. */
enum s3_error parts_begin(struct parts_write *p, struct s3_request *r, uint32_t number, uint64_t size);
enum s3_error parts_write(struct parts_write *p, const void *data, size_t n);
/* ok: all of the body was verified; else the part is dropped. `md5`: its ETag. Finishes the struct. */
enum s3_error parts_end(struct parts_write *p, bool ok, const uint8_t md5[16]);

enum s3_error parts_abort(struct s3_request *r);
/* For lifecycle rules: without a request. */
int parts_abort_of(struct s3 *s3, struct slice bucket, struct slice key, struct slice id, struct err *e);

/* All parts of the request's upload, sorted by number; free(). *ret_kind: of their sums. *ret_etag: of the
 * object when the upload was completed already, in the request's arena, else empty. NO_SUCH_UPLOAD. */
enum s3_error parts_list(struct s3_request *r, struct upload_part **ret, size_t *ret_n,
                         enum checksum_kind *ret_kind, struct slice *ret_etag);

/* Calls fn for each open upload of the bucket, sorted by nothing. */
int parts_each(struct s3 *s3, struct slice bucket,
               void (*fn)(void *arg, struct slice key, const char *id, uint64_t created_ns), void *arg,
               struct err *e);
