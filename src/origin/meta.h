/*
 * Lines of an object's metadata, "name: value\n", that are ours and not the client's: its tags, and the
 * checksum that was verified when it was uploaded. Clients neither see nor set them. Tags go to S3 origins as
 * tags, to others, which have no other place for them, as metadata; the checksum goes to S3 origins, which
 * have one for it, and nothing of ours is written into the user metadata there because of it. Pure.
 */
#pragma once

#include "base/arena.h"
#include "base/buf.h"

#define META_TAGS "x-amz-meta-forebay-tags" /* the kept form of s3/tags.h */
/* How many tags there are, as an S3 origin tells that does not say which. Not kept with copies. */
#define META_TAG_COUNT "x-amz-tagging-count"
/* "SUFFIX BASE64" of s3/checksum.h, of all bytes of the object; "SUFFIX BASE64-N": of the checksums of its N
 * parts. Whoever changes the bytes drops it, whoever changes the parts the second form. */
#define META_CHECKSUM "x-amz-checksum"

/* When the object of a scratch bucket ends, ns since 1970 as decimal digits (namespace/expiry.h). */
#define META_EXPIRES "x-forebay-expires"

/* Of PUT_OPEN only, and not kept: what the client said of all bytes before it sent them, "SHA256 MD5", the
 * first in hex, the second in base64, "-" for one that is not known. */
#define META_DIGESTS "x-forebay-digests"

/* Of reads through a view of earlier versions: which one it is. Not kept with copies. */
#define META_VERSION "x-forebay-version"

/* Between nodes: this header in answers to reads that have the other one. */
#define META_TAGS_HEADER "x-forebay-tags" /* in the kept form, too */
#define META_SHOW_HEADER "x-forebay-show"
#define META_SHOW_TAGS   "tags"

/* Between nodes, in answers that are errors: asking again is of no use before somebody has changed how the
 * origin behind that node is set up. */
#define META_RETRY_HEADER "x-forebay-retry"
#define META_RETRY_NO     "no"

/* Whether a header is one of ours, in any case. */
bool meta_is_ours(struct slice name);
/* The value of a line, empty when there is none. */
struct slice meta_get(struct slice meta, const char *name);
/* The metadata with this value of one of our lines instead of the one it had; an empty value: without it.
 * -E2BIG. */
int meta_set(struct slice meta, const char *name, struct slice value, struct buf *ret);
/* The metadata with this value of one of our lines, in the arena; where that would be longer than `max`, or
 * the value is empty, it is the metadata as it was. */
struct slice meta_with(struct slice meta, const char *name, struct slice value, size_t max, struct arena *a);
/* The metadata without this line of ours: itself, or a copy in the arena. */
struct slice meta_without(struct slice meta, const char *name, struct arena *a);
