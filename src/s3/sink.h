/*
 * Writing one object through the object layer, in order: open, write, commit; what is not committed is
 * aborted.
 *
 * One thread at a time per struct.
 */
#pragma once

#include "s3/s3_internal.h"

#define S3_UPLOAD_ID_SIZE  33
#define S3_ETAG_GIVEN_SIZE 40 /* 32 hex digits, '-', a number up to 10000 */

struct sink {
    struct s3 *s3;
    struct wire_put_open_req open; /* filled in by the owner: bucket, key, type, meta, conditions */
    struct arena *arena;           /* cleared after each write: a body has no bound in pieces */
    uint64_t handle;               /* 0: not open */
    int fd;                        /* of the staged file, when open.flags has WIRE_STAGED; else -1 */
    uint64_t written;
    uint64_t ttl_ms;                /* the object ends so long after the commit; 0: as open.meta says */
    char etag[S3_ETAG_GIVEN_SIZE];  /* what an object of a scratch bucket is to have; empty: of its bytes */
    char upload[S3_UPLOAD_ID_SIZE]; /* of a staged one that outlives the node: its upload; else empty */
    struct slice checksum, parts;   /* for the commit: META_CHECKSUM, and a list as of part_list.h */
};

void sink_init(struct sink *k, struct s3 *s3);
void sink_fini(struct sink *k);
/* size UINT64_MAX: unknown. */
int sink_open(struct sink *k, uint64_t size, struct err *e);
int sink_write(struct sink *k, const void *p, size_t n, struct err *e);
/* Of a staged one: room in the bucket's quota for `least` bytes that are about to be written to its
 * descriptor; `back` bytes of what was granted before are written, or will not be. -EDQUOT. Any thread. */
int sink_room(const struct sink *k, uint64_t back, uint64_t least, struct err *e);
/* A staged one becomes an upload that outlives the node (UPLOAD_KEEP). ERR_NOT_IMPLEMENTED: it cannot. */
int sink_keep(struct sink *k, struct slice tag, struct err *e);
/* The commit completes this upload, too, whose file is another one's. */
int sink_join(struct sink *k, const char *upload, struct err *e);
/* The upload of that id, of which nobody has the handle; fd and handle as if it had been opened now. */
int sink_resume(struct sink *k, const char *upload, struct err *e);
/* Any thread, as with room: a part of the upload is written (UPLOAD_KEEP_PART), or `is_gone`. */
int sink_keep_part(const struct sink *k, const struct wire_part *part, bool is_gone, struct err *e);
/* sha256 in hex and md5 in base64, or empty. The attributes are in `a`. */
int sink_commit(struct sink *k, struct slice sha256, struct slice md5, struct arena *a, struct wire_attr *ret,
                struct err *e);
