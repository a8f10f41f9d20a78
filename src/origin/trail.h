/*
 * By whom a bucket is asked, so that an origin which leads back to the bucket itself is seen.
 *
 * A bucket whose origin is, or may be, another node sends with each request its own name and the names of
 * the buckets by whose requests it was asked itself of late, in the header that caches have for it (CDN-Loop,
 * RFC 8586). A bucket that is asked with its own name among them refuses. A bucket has one origin, so that
 * whoever reaches it reaches all that is behind it: names need not travel with the request that brought them,
 * and what jobs and write-back ask, or one request for several readers, has them as well.
 *
 * A name is drawn when the origin is opened, so that it says nothing to others, and means nobody once the
 * bucket has another origin.
 */
#pragma once

#include "base/buf.h"
#include "base/lock.h"

#define TRAIL_HEADER    "cdn-loop"
#define TRAIL_NAME_SIZE 25 /* "forebay-", 16 hex digits, NUL */
#define TRAIL_MAX       16 /* names that are kept: of more the one that was seen last longest ago goes */
#define TRAIL_TEXT_MAX  ((TRAIL_MAX + 1) * (TRAIL_NAME_SIZE + 1))
/* For so long a name is told on. What asks follows at once on what it was asked for, but for write-back; and
 * what somebody mends is to work soon. */
#define TRAIL_MS 30000

struct trail {
    char own[TRAIL_NAME_SIZE];
    struct lock lock; /* covers what follows */
    struct trail_name {
        char name[TRAIL_NAME_SIZE];
        uint64_t seen_ms; /* monotonic */
    } names[TRAIL_MAX];
    size_t n;
};

/* Draws its own name. */
void trail_init(struct trail *t);
void trail_fini(struct trail *t);
/* Whether a header's value has that name. */
bool trail_has(struct slice value, const char *name);
/* Keeps the names of our form in a header's value. */
void trail_note(struct trail *t, struct slice value, uint64_t now_ms);
/* The header of what is sent. `ret`: room for TRAIL_TEXT_MAX. */
void trail_tell(struct trail *t, uint64_t now_ms, struct buf *ret);
