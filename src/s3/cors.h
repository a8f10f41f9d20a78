/*
 * Which web pages may use a bucket: the rules of PutBucketCors, and what a browser's request may do by them.
 * Pure.
 */
#pragma once

#include "s3/s3_error.h"
#include "s3/xml.h"

#include "base/arena.h"

#define CORS_RULES_MAX  100
#define CORS_VALUES_MAX 100 /* of one kind in a rule */

struct cors_list {
    struct slice *v;
    size_t n;
};

struct cors_rule {
    struct slice id;
    struct cors_list origins, methods, headers, exposed;
    bool has_age;
    uint64_t age_s;
};

struct cors {
    struct cors_rule *rules;
    size_t n;
};

/* A <CORSConfiguration> document. MALFORMED_XML, INVALID_REQUEST; slices in the arena. */
enum s3_error cors_parse(struct slice document, struct arena *a, struct cors *ret, const char **ret_reason);
/* The document in one line, without its <?xml ...?>. -E2BIG. */
int cors_put(const struct cors *c, struct buf *b);

/* What a request says of itself. `headers`: those that a preflight asks for, separated by commas. */
struct cors_question {
    struct slice origin, method, headers;
};
/* First rule that allows it, or NULL. *ret_origin: the pattern that the origin fits. */
const struct cors_rule *cors_match(const struct cors *c, const struct cors_question *q,
                                   struct slice *ret_origin);
