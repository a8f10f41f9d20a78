/*
 * An upload in parts to an S3 service, between s3_multipart.c, which begins, sends and aborts it, and
 * s3_complete.c, which ends it.
 */
#pragma once

#include "origin/s3_internal.h"

struct s3_upload {
    struct s3 *s3;
    const struct origin_put *put;
    const struct origin_body *body; /* or */
    const struct s3_source *source; /* a copy: parts are ranges of it */
    struct slice tags;              /* x-amz-tagging; empty: none */
    char id[1024];
    uint64_t size, part_bytes;
    uint64_t source_offset; /* of the first part */
    uint32_t n_parts;
    const struct origin_part *numbered; /* driven from outside: their numbers; NULL: 1 to n_parts */
    char **etags;
    bool unsure;                   /* complete: a try before the last one may have done it */
    bool judged;                   /* ... and whether one has is decided, as far as anybody can tell */
    bool looked;                   /* before the end, as ETags do not tell: */
    char before[WEB_ETAG_MAX + 1]; /* the object that was there; "": none */
    struct s3_sums sums;           /* checksums of the parts, when */
    bool gives;                    /* each part comes with one, or */
    bool asks;                     /* the start of the upload asks for them */
    enum s3_sums_told told;        /* what it was answered */
};

/* A request about it. */
void s3_upload_call(struct s3_upload *u, struct web_call *c, enum web_method method, const char *op);

static inline uint32_t s3_upload_number(const struct s3_upload *u, uint32_t i)
{
    return u->numbered ? u->numbered[i].number : i + 1;
}

/* The end of it, in its turn among the changes of the key; tried again by its own rules. */
int s3_upload_end(struct s3_upload *u, struct arena *a, struct origin_attr *ret_attr, struct err *e);
