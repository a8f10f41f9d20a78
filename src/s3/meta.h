/*
 * Lines of an object's metadata, "name: value\n", that are ours and not the client's: its tags, and the
 * checksum that was verified when it was uploaded. Clients neither see nor set them. Pure.
 */
#pragma once

#include "base/buf.h"

#define META_TAGS     "x-amz-meta-forebay-tags"     /* the kept form of tags.h */
#define META_CHECKSUM "x-amz-meta-forebay-checksum" /* "SUFFIX BASE64" of checksum.h, of the whole object */

/* Whether a header is one of ours, in any case. */
bool meta_is_ours(struct slice name);
/* The value of a line, empty when there is none. */
struct slice meta_get(struct slice meta, const char *name);
/* The metadata with this value of one of our lines instead of the one it had; an empty value: without it.
 * -E2BIG. */
int meta_set(struct slice meta, const char *name, struct slice value, struct buf *ret);
