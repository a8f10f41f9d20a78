/* Between origin.c and the kinds of origin. */
#pragma once

#include "origin/key_order.h"
#include "origin/origin.h"

extern const struct origin_ops origin_s3_ops;
extern const struct origin_ops origin_forebay_ops;
extern const struct origin_ops origin_file_ops;
extern const struct origin_ops origin_gs_ops;
extern const struct origin_ops origin_az_ops;
extern const struct origin_ops origin_http_ops;
extern const struct origin_ops origin_https_ops;
extern const struct origin_ops origin_nfs_ops;
extern const struct origin_ops origin_hdfs_ops;

/* Counts one request that was sent: op is "get", "head", "list", ..., status the HTTP status, 0 when none
 * came. Kinds without HTTP pass err_http_status() of the outcome. */
void origin_count_request(struct origin *o, const char *op, int status);
/* For the meter, wherever bytes of a body are on their way; origin_get does it for those that come. */
void origin_moved(struct origin *o, uint64_t bytes);
/* Before each request of an operation that sends several of them at its own pace: waits for the meter, or
 * until one of the flags (which may be NULL) or the thread's scopes say that it is given up. */
void origin_wait_turn(struct origin *o, const atomic_bool *cancel, const atomic_bool *stop);
/* NOTHING at the beginning of a put, PERHAPS before the first request that could make the object. */
static inline void origin_set_reach(const struct origin_put *p, enum origin_reach reach)
{
    if (p->reach)
        atomic_store(p->reach, reach);
}
/* The meter's `aside` and `back`. */
void origin_step_aside(const struct origin *o);
void origin_step_back(const struct origin *o, bool goes_on);
/* The turn among the changes of a key (key_order.h), for which the thread steps aside; `x` then is the
 * caller's to leave. -ECANCELED. */
int origin_enter(const struct origin *o, uint64_t key, bool alone, const atomic_bool *cancel,
                 struct key_order *x, struct err *e);

/* Attribute strings into `a` after checking that they fit: the origin chose their sizes. -ENOMEM otherwise.
 */
int origin_attr_dup(struct arena *a, const struct origin_attr *from, struct origin_attr *ret, struct err *e);
/* The last moment that a date of origin.as_of means: when it is a whole second, the end of that second, since
 * services tell no more of when an object changed. */
uint64_t origin_as_of_end(uint64_t as_of_ns);
/* origin.as_of of the options; ERR_BAD_OPTION. */
int origin_parse_as_of(const struct origin_options *o, uint64_t *ret_ns, struct err *e);
/* Whether `name` (lower case) is one of the headers that travel in origin_attr.meta. */
bool origin_is_meta_header(struct slice name);
/* Takes the next "name: value\n" line of such a header off *meta, and others (our checksum) with it; false at
 * the end. */
bool origin_next_meta(struct slice *meta, struct slice *ret_name, struct slice *ret_value);
/* Sorts entries by key in byte order and drops those that are not after `after`. */
void origin_order_entries(struct origin_entry *entries, size_t *n, struct slice after);
