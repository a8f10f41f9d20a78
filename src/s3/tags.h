/*
 * Tags of objects and buckets: the header and query form "KEY=VALUE&...", which is also how they are kept,
 * and the XML form of clients. Pure.
 */
#pragma once

#include "s3/s3_error.h"
#include "s3/xml.h"

#include "base/arena.h"

#define TAGS_OBJECT_MAX 10
#define TAGS_BUCKET_MAX 50

struct tag {
    struct slice key, value; /* decoded */
};

struct tags {
    struct tag v[TAGS_BUCKET_MAX];
    size_t n;
};

/* "KEY=VALUE&..." encoded as in queries. INVALID_TAG, INVALID_ARGUMENT for broken escapes; slices in the
 * arena. *ret_reason is static text. */
enum s3_error tags_parse(struct slice text, size_t max, struct arena *a, struct tags *ret,
                         const char **ret_reason);
/* A <Tagging> document. MALFORMED_XML, INVALID_TAG. */
enum s3_error tags_parse_xml(struct slice document, size_t max, struct arena *a, struct tags *ret,
                             const char **ret_reason);
/* In the kept form, in the order given. */
int tags_put(const struct tags *t, struct buf *b);
/* The <Tagging> document. */
int tags_put_xml(const struct tags *t, struct buf *b);

/* How many tags the kept form has. */
size_t tags_count(struct slice kept);
