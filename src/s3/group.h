/*
 * Listings with a delimiter other than "/", which the object layer does not know: its plain listing is read
 * and grouped here.
 */
#pragma once

#include "s3/s3_internal.h"

#define GROUP_DELIMITER_MAX 64

/* One page as object_list would give it, for a delimiter of 1 to GROUP_DELIMITER_MAX bytes; req->delimiter is
 * 0. Common prefixes have kind WIRE_DIRECTORY. */
int group_list(struct s3 *s3, const struct wire_list_req *req, struct slice delimiter, struct arena *a,
               struct wire_list_rep *ret, struct err *e);
