/*
 * Multipart uploads whose parts are at the bucket's origin (UPLOAD_* of the object layer): they outlive the
 * node and take no room here.
 *
 * The upload's tag says which checksums are kept (part_list.h), once it is completed the object's. One thread
 * at a time per struct.
 */
#pragma once

#include "s3/checksum.h"
#include "s3/s3_internal.h"
#include "s3/uploads.h"

/* NOT_IMPLEMENTED: the bucket's parts cannot go to an origin; see uploads.h. */
enum s3_error parts_create(struct s3_request *r, struct slice type, struct slice meta,
                           const struct part_sums *sums, char ret_id[UPLOAD_ID_SIZE]);

/* One part: begin, write, end. */
struct parts_write {
    struct s3_request *r;
    struct arena *arena;
    uint64_t handle; /* 0: not begun */
};
/* NO_SUCH_UPLOAD. *ret_sums: the upload's. body: of the part, whose headers may tell its checksum; or NULL.
 */
enum s3_error parts_begin(struct parts_write *p, struct s3_request *r, uint32_t number, uint64_t size,
                          const struct body *body, struct part_sums *ret_sums);
enum s3_error parts_write(struct parts_write *p, const void *data, size_t n);
/* ok: all of the body was verified; else the part is dropped. `md5`: its ETag; `sum`: its checksum of the
 * upload's kind, or empty. Finishes the struct. */
enum s3_error parts_end(struct parts_write *p, bool ok, const uint8_t md5[16], struct slice sum);

/* NO_SUCH_UPLOAD, also of one that was completed. */
enum s3_error parts_find(struct s3_request *r);
enum s3_error parts_abort(struct s3_request *r);
/* For lifecycle rules: without a request. */
int parts_abort_of(struct s3 *s3, struct slice bucket, struct slice key, struct slice id, struct err *e);

/* All parts of the request's upload, sorted by number; free(). *ret_result: of the object when the upload was
 * completed already, else "". NO_SUCH_UPLOAD. */
enum s3_error parts_list(struct s3_request *r, struct upload_part **ret, size_t *ret_n,
                         struct part_sums *ret_sums, struct upload_result *ret_result);

/* Calls fn for each open upload of the bucket, sorted by nothing. */
int parts_each(struct s3 *s3, struct slice bucket,
               void (*fn)(void *arg, struct slice key, const char *id, uint64_t created_ns), void *arg,
               struct err *e);
