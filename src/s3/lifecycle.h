/*
 * Rules by which objects and abandoned uploads end: the document of PutBucketLifecycleConfiguration, and when
 * a rule has come due. Pure.
 */
#pragma once

#include "s3/s3_error.h"
#include "s3/tags.h"
#include "s3/xml.h"

#include "base/arena.h"

#define LIFECYCLE_RULES_MAX  100
#define LIFECYCLE_ID_MAX     255
#define LIFECYCLE_DAYS_MAX   36500
#define LIFECYCLE_PREFIX_MAX 1024

struct lifecycle_rule {
    struct slice id, prefix;
    bool enabled;
    uint64_t days;                   /* after the object's time; 0: not by days */
    uint64_t date_ns;                /* midnight; 0: not by date */
    uint64_t abort_days;             /* uploads, after their beginning; 0: never */
    bool has_larger;                 /* 0 is a bound too: of empty objects */
    uint64_t larger_than, less_than; /* bytes; UINT64_MAX: any */
    struct tag *tags;                /* all of which an object must have */
    size_t n_tags;
    /* What concerns former versions, of which there are none here: kept and shown, and truly without effect.
     */
    bool delete_marker, has_marker;            /* `false` was said, too: it may be all that a rule says, and
                                                * one without an action would not be read again */
    uint64_t noncurrent_days, noncurrent_keep; /* 0: not given */
    /* How the document said it, to show it again. */
    bool old_prefix, has_and;
};

struct lifecycle {
    struct lifecycle_rule *rules;
    size_t n;
};

/* A <LifecycleConfiguration> document. MALFORMED_XML, INVALID_ARGUMENT, INVALID_REQUEST, NOT_IMPLEMENTED for
 * what is not done here (transitions); slices in the arena. */
enum s3_error lifecycle_parse(struct slice document, struct arena *a, struct lifecycle *ret,
                              const char **ret_reason);
/* The document in one line, without its <?xml ...?>. -E2BIG. */
int lifecycle_put(const struct lifecycle *l, struct buf *b);

/* When an object ends by the rule, if it has its tags: 0 for never. Days are counted from `since_ns` (0: it
 * is not known, and days then never end it) to the next midnight (UTC) after them, as S3 does. */
uint64_t lifecycle_ends_ns(const struct lifecycle_rule *r, struct slice key, uint64_t size_bytes,
                           uint64_t since_ns);
/* Whether an object with these tags, in their kept form, has those that the rule asks for. */
bool lifecycle_has_tags(const struct lifecycle_rule *r, struct slice kept_tags, struct arena *a);
/* Whether the rule is about objects of some sizes only: of an upload nobody knows the size, and who has such
 * a rule made that aborts uploads is refused. */
bool lifecycle_has_sizes(const struct lifecycle_rule *r);
/* Whether an upload that began then is to be aborted; never by a rule with sizes. */
bool lifecycle_aborts(const struct lifecycle_rule *r, struct slice key, uint64_t began_ns, uint64_t now_ns);
