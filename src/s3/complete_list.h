/*
 * The list of parts in the body of a CompleteMultipartUpload: what the client says that the object is made
 * of. Pure.
 */
#pragma once

#include "base/arena.h"
#include "base/err.h"
#include "s3/checksum.h"

struct complete_part {
    uint32_t number;             /* 1 to PART_LIST_NUMBER_MAX, in whatever order the client has them */
    struct slice etag;           /* bare, not empty */
    enum checksum_kind sum_kind; /* of what the client says of the part, or none */
    struct slice sum;            /* base64 */
};

/* 1 to PART_LIST_NUMBER_MAX of them, in the arena, as are their texts: room for that many is taken there at
 * once. ERR_PROTOCOL, and what xml_parse gives, for a document that is no such list. */
int complete_list_read(struct slice document, struct arena *a, const struct complete_part **ret,
                       size_t *ret_n, struct err *e);
