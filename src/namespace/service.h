/*
 * What buckets share whose origins are one service, asked for one account: that it said to be busy, and that
 * somebody looks for a place there. Limits, places and what is learned of them stay each bucket's own.
 *
 * A service is where requests are turned down together: an endpoint and an account. Of clouds that count by
 * bucket (s3 and gs without an endpoint of their own) it is the bucket there. Origins that never say that
 * they are busy (file, nfs) are none.
 *
 * Any thread. All fields but the key are hints of their own, each atomic: none belongs to another.
 */
#pragma once

#include "base/buf.h"
#include "origin/origin.h"

#include <stdatomic.h>

#define SERVICE_KEY_MAX 4096
#define SERVICE_SLOW_MS 10000 /* after it was busy last: then nobody yields to readers of other buckets */

struct service_table;

struct service {
    struct service_table *table;
    struct service *next;             /* under the table's lock */
    uint32_t refs;                    /* likewise */
    _Atomic uint64_t paused_until_ms; /* origin.shared_pause */
    _Atomic uint64_t busy_ms;         /* when it answered 429 or 503 last, monotonic; 0: never */
    _Atomic uint64_t wanted_until_ns; /* a request that somebody waits for found no place there, monotonic */
    _Atomic(const void *) wanted_by;  /* whose that was */
    char key[];
};

/* Appends what stands for the service of an origin; secrets are no part of it. False: it has none. Pure. */
bool service_key(const char *url, const struct origin_options *o, struct buf *ret);

struct service_table *service_table_new(void);
/* Nobody has a service of it. NULL accepted. */
void service_table_free(struct service_table *t);
/* The one of this key: a reference. */
struct service *service_find(struct service_table *t, struct slice key);
/* NULL accepted. */
void service_unref(struct service *s);

/* It was busy a moment ago. */
bool service_is_slow(const struct service *s, uint64_t now_ms);
