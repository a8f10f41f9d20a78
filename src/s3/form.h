/*
 * multipart/form-data as browsers send it (RFC 7578), read piece by piece as it arrives.
 *
 * One thread at a time per struct.
 */
#pragma once

#include "s3/body.h"

#define FORM_BOUNDARY_MAX   70 /* RFC 2046, 5.1.1 */
#define FORM_PART_HEAD_MAX  4096
#define FORM_NAME_MAX       1024
#define FORM_BUFFER_BYTES   (32 * KIB)
#define FORM_PREAMBLE_BYTES (4 * KIB) /* before the first part */

struct form {
    body_source_fn source;
    void *arg;
    char mark[FORM_BOUNDARY_MAX + 5]; /* "\r\n--BOUNDARY" */
    size_t mark_n;
    char *buffer; /* FORM_BUFFER_BYTES */
    size_t at, n; /* what is in it and not given out */
    bool in_part, source_ended, ended;
};

/* Headers of one part; valid until the next one. Empty when they were not given. */
struct form_part {
    char name[FORM_NAME_MAX + 1], filename[FORM_NAME_MAX + 1], type[FORM_NAME_MAX + 1];
};

/* content_type: "multipart/form-data; boundary=...". MALFORMED_POST. Free with form_fini in any case. */
enum s3_error form_init(struct form *f, struct slice content_type, body_source_fn source, void *arg);
void form_fini(struct form *f);
/* The next part, what is left of the one before it being skipped: S3_OK with *ret_more false at the end of
 * the form; MALFORMED_POST, or the error of a source that ended (body_source_error). */
enum s3_error form_next(struct form *f, struct form_part *ret, bool *ret_more);
/* Bytes of the part: > 0; 0 at its end; -1 with *ret_error. */
ssize_t form_read(struct form *f, void *p, size_t n, enum s3_error *ret_error);
