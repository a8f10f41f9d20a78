/*
 * The object that a copy reads from: the header x-amz-copy-source, its conditions, and reading in pieces.
 *
 * One thread at a time per struct.
 */
#pragma once

#include "s3/s3_internal.h"

struct source {
    struct s3_request *r;
    struct slice bucket, key;
    struct object_session *session; /* that reads it, until source_fini; NULL: the front end's */
    struct wire_attr attr;          /* once open; in the request's arena */
    uint64_t handle;                /* 0: not open */
    struct arena *arena;            /* of the piece read last */
};

/* Reads the header. */
enum s3_error source_init(struct source *s, struct s3_request *r);
void source_fini(struct source *s);
/* Whether the request has conditions on the source. */
bool source_has_conditions(const struct s3_request *r);
/* Its attributes without its bytes, under the conditions. */
enum s3_error source_look(struct source *s);
/* Whether an origin has it, and the request's bucket has one: then that may copy by itself. */
bool source_may_be_beside(struct source *s);
/* Opens to read `expect` bytes (UINT64_MAX: all) from offset, and checks the conditions. */
enum s3_error source_open(struct source *s, uint64_t offset, uint64_t expect);
/* Up to n bytes at offset, at least one; valid until the next call. */
enum s3_error source_read(struct source *s, uint64_t offset, uint64_t n, struct slice *ret);
