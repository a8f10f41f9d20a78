/*
 * A bucket's origin with what practice needs around it: retries with backoff and a budget, and a limit on
 * concurrent requests that adapts to the origin. Everything that asks an origin goes through here.
 */
#pragma once

#include "base/lock.h"
#include "base/quit.h"
#include "base/shape.h"
#include "namespace/bucket.h"
#include "namespace/service.h"
#include "origin/origin.h"

struct upstream;
struct metric_series;

/* A place that a thread has, on its stack. */
struct upstream_held {
    struct upstream *upstream;
    bool behind;
    struct upstream_held *outer;
};

#define UPSTREAM_VIAS  4 /* enum wire_via */
#define UPSTREAM_OPENS 3

/* What may stand between an upstream and its origin: each as the function origin_X, for the same one try. */
struct upstream_layer {
    int (*get)(void *arg, struct upstream *u, const struct origin_get *g, struct arena *a,
               struct origin_attr *ret, origin_sink_fn sink, void *sink_arg, struct err *e);
    int (*list)(void *arg, struct upstream *u, const struct origin_list *l, struct arena *a,
                struct origin_page *ret, struct err *e);
    int (*put)(void *arg, struct upstream *u, const struct origin_put *p, const struct origin_body *body,
               struct arena *a, struct origin_attr *ret, struct err *e);
    int (*remove)(void *arg, struct upstream *u, struct slice key, struct slice if_match, struct err *e);
    int (*copy)(void *arg, struct upstream *u, struct slice from, struct slice to, struct arena *a,
                struct origin_attr *ret, struct err *e);
    int (*set_meta)(void *arg, struct upstream *u, const struct origin_put *p, uint64_t size_bytes,
                    struct arena *a, struct origin_attr *ret, struct err *e);
};

/* What is known of the origin and owed to the bucket's limits; upstreams that follow one another share it. */
struct upstream_places {
    _Atomic uint32_t refs;
    _Atomic uint64_t life_ms;    /* when the origin last answered, or sent bytes, monotonic; 0: never */
    _Atomic uint64_t silent_ms;  /* when a question of upstream_doubt was begun, or was in vain, last,
                                    monotonic; 0: it has answered since */
    _Atomic uint64_t failing_ms; /* when a request failed as those of an origin that is away, with no answer
                                    and no bytes since, monotonic; 0: not so */
    struct retry_budget budget;
    struct lock lock; /* covers what follows */
    struct cond room;
    struct concurrency concurrency;
    unsigned running;
    unsigned waiting;   /* threads in upstream_enter */
    unsigned behind;    /* of those that run: entered by upstream_try_enter_behind */
    uint64_t wanted_ns; /* when somebody else found no place last, monotonic; 0: never */
    uint64_t heard_ms;  /* of service.busy_ms: what lowered `concurrency` already */
    uint64_t ahead_ns;  /* when one read ahead went though another bucket's reads want places */
    struct shape_limit requests, bytes; /* limit.origin-requests, limit.origin-bytes of the bucket */
};

struct upstream {
    uint32_t magic;
    _Atomic uint32_t refs;
    struct bucket *bucket;
    struct origin *origin;
    const struct upstream_layer *layer; /* NULL: none. Set before others have the upstream */
    void *layer_arg;
    const atomic_bool *unlimited; /* says that the limits have ended; NULL: they do not. Set as `layer` is */
    /* Series that reading counts in, looked up once each: by whom it is read, and how. */
    _Atomic(struct metric_series *) opens[UPSTREAM_VIAS][UPSTREAM_OPENS], read_bytes[UPSTREAM_VIAS][2];
    struct upstream_places *places;
    struct service *service; /* NULL: it is alone. Set as `layer` is, by upstream_join */
};

/* Opens the origin of a mirror bucket; counted. ERR_NOT_IMPLEMENTED for a bucket without origin. */
int upstream_open(struct bucket *b, struct upstream **ret, struct err *e);
/* `u`, which nobody else has yet, and before upstream_succeed, is one of those that ask its service: a pause
 * that one of them hears of, and a busy answer, hold for all, and what others read goes before what it reads
 * ahead or writes back while that service is slow. */
void upstream_join(struct upstream *u, struct service_table *t);
/* `u`, which nobody else has yet, follows one of the same bucket's earlier properties: what is owed to its
 * limits goes on being owed, and while it is the same origin all that is known of that, and who is inside. */
void upstream_succeed(struct upstream *u, struct upstream *before);
struct upstream *upstream_ref(struct upstream *u);
void upstream_unref(struct upstream *u);
DEFINE_CLEANUP(struct upstream, upstream_unref)

/* So many bytes of objects came from the origin or went to it: the next request waits until the bucket's
 * limit allows it. The origin itself tells it, whoever asked. */
void upstream_charge(struct upstream *u, uint64_t bytes);
/* Who has a place asks once more: the next one waits until the bucket's limit allows it. */
void upstream_charge_request(struct upstream *u);
/* The bucket's limits end, also for those who wait: the node stops. */
void upstream_unlimit(struct upstream *u);
/* The origin has just answered, or sent bytes. */
void upstream_lives(struct upstream *u);
/* A request of it came to that: whether that is a sign of life. */
void upstream_heard(struct upstream *u, int result);
/*
 * A question whose asker has an answer that will do where the origin gives none, as one that has the object
 * in its cache: what is asked between the two. When one such question was in vain, for all the time that
 * `retry` gives or until it was given up for others (base/quit.h), others are not asked (begin: false), but
 * for one in UPSTREAM_SILENT_MS, and that is not repeated, until the origin answers anything. end: whether
 * there was no answer, by what the question came to.
 */
#define UPSTREAM_SILENT_MS 5000
struct upstream_doubt {
    struct upstream *upstream;
    bool is_once;
    struct quit once;
};
bool upstream_doubt_begin(struct upstream *u, struct upstream_doubt *d);
bool upstream_doubt_end(struct upstream_doubt *d, int result);
/* Whether what this thread does here is given up, or the node stops: nothing is tried again (base/quit.h). */
bool upstream_is_quitting(const struct upstream *u);
/* Whether the node stops and nothing is asked of the origin any more. */
bool upstream_is_stopped(const struct upstream *u);
/* Waits for a place among the concurrent requests, and for the bucket's limits; not when it is quitting.
 * Leave with the result of the request. */
void upstream_enter(struct upstream *u);
/* The same of what is tried again, and is read ahead as long as `awaited` is not set: then it yields as that
 * does. */
void upstream_enter_again(struct upstream *u, const atomic_bool *awaited);
/* For a request that goes on at its writer's pace and takes no place: waits for the bucket's limits, and is
 * paid for. False: it was cancelled before (cancel may be NULL). */
bool upstream_enter_slowly(struct upstream *u, const atomic_bool *cancel);
/* As upstream_enter without waiting: false when there is no room. `ahead`: nobody waits for the request, so
 * it leaves some places to those for which somebody does. */
bool upstream_try_enter(struct upstream *u, bool ahead);
/* Whether that would succeed now; takes nothing. */
bool upstream_has_place(struct upstream *u, bool ahead);
void upstream_leave(struct upstream *u, int result);
/* A place for what goes behind everybody, as write-back does: it takes no more than half of them, and while
 * others look for one only a single such request runs. Where that is felt, because the bucket's requests are
 * limited or there are few places, it runs only after it was refused for UPSTREAM_BEHIND_NS: so it goes on
 * however much others ask. waited_ns: for how long it was refused by now. */
#define UPSTREAM_BEHIND_NS ((uint64_t)1000000000)
bool upstream_try_enter_behind(struct upstream *u, uint64_t waited_ns);
void upstream_leave_behind(struct upstream *u, int result);
/* Until upstream_unhold this thread asks with a place of upstream_enter (behind: of
 * upstream_try_enter_behind), which others have while it waits for its turn among the changes of a key. What
 * is here with retries does so itself. */
void upstream_hold(struct upstream_held *h, struct upstream *u, bool behind);
void upstream_unhold(struct upstream_held *h);
/* The same for who asked nothing: it says nothing of the origin, and is not paid for. */
void upstream_step_back(struct upstream *u);

/* Since when the patience of who has waited for his turn since `since_ms` counts, now that it comes: since
 * then while the origin is away, since it was, or from now on. Else many who wait for one that is away would
 * be patient one after the other. */
struct retry upstream_patient_since(struct upstream *u, uint64_t since_ms);
/* After a failed try: sleeps as long as fits and returns true when it should be tried again. r->attempt
 * counts up. */
bool upstream_try_again(struct upstream *u, struct retry *r, int code, atomic_bool *cancel);

/* One try, by way of the layer, without a place. */
int upstream_get_once(struct upstream *u, const struct origin_get *g, struct arena *a,
                      struct origin_attr *ret, origin_sink_fn sink, void *arg, struct err *e);

/* With retries; arguments as in origin.h. The arena of a listing is the call's own: it is emptied before
 * every try, so nothing in `l` may lie there. */
int upstream_head(struct upstream *u, struct slice key, struct slice known, struct arena *a,
                  struct origin_attr *ret, struct err *e);
/* The same of an object of this ETag, and where its part of that number is. Of an origin with
 * ORIGIN_CAN_PARTS. */
int upstream_part(struct upstream *u, struct slice key, struct slice etag, uint32_t number, struct arena *a,
                  struct origin_attr *ret, struct err *e);
int upstream_list(struct upstream *u, const struct origin_list *l, struct arena *a, struct origin_page *ret,
                  struct err *e);
int upstream_put(struct upstream *u, const struct origin_put *p, const struct origin_body *body,
                 struct arena *a, struct origin_attr *ret, struct err *e);
/* The same for a body that comes at its writer's pace (upstream_enter_slowly): takes no place among the
 * concurrent requests, which would otherwise all be held by writers that wait for a reader. */
int upstream_put_slowly(struct upstream *u, const struct origin_put *p, const struct origin_body *body,
                        struct arena *a, struct origin_attr *ret, struct err *e);
/* -ENOENT when nothing was there, but not when a try before, whose answer was lost, may have removed it. */
int upstream_remove(struct upstream *u, struct slice key, struct slice if_match, struct err *e);
int upstream_copy(struct upstream *u, struct slice from, struct slice to, struct arena *a,
                  struct origin_attr *ret, struct err *e);
int upstream_set_meta(struct upstream *u, const struct origin_put *p, uint64_t size_bytes, struct arena *a,
                      struct origin_attr *ret, struct err *e);

/* As origin_has_tag. */
int upstream_has_tag(struct upstream *u, struct slice key, struct slice name, struct slice value,
                     atomic_bool *cancel, bool *ret, struct err *e);

/* As origin_copy_from and origin_upload_copy: nothing of what was written back is known there. */
int upstream_copy_from(struct upstream *u, const struct origin_copy *c, struct arena *a,
                       struct origin_attr *ret, struct err *e);
int upstream_upload_copy(struct upstream *u, const struct origin_put *p, struct slice id, uint32_t number,
                         const struct origin_copy *c, uint64_t offset, uint64_t n,
                         char ret_etag[ORIGIN_ETAG_MAX + 1], struct err *e);

/* As origin_tags and origin_set_tags. */
int upstream_tags(struct upstream *u, struct slice key, struct buf *ret, struct err *e);
int upstream_set_tags(struct upstream *u, struct slice key, struct slice tags, struct err *e);

/* Uploads in parts (origin.h). A part is sent once, at its writer's pace, as with upstream_put_slowly; who
 * has its bytes still repeats it with upstream_try_again. A completion is repeated only by the origin's own
 * rules.
 */
int upstream_upload_create(struct upstream *u, const struct origin_put *p, char ret_id[ORIGIN_UPLOAD_ID_MAX],
                           bool *ret_sums, struct err *e);
int upstream_upload_complete(struct upstream *u, const struct origin_put *p, struct slice id,
                             const struct origin_part *parts, size_t n, uint64_t size_bytes, struct arena *a,
                             struct origin_attr *ret, struct err *e);
/* Success also when the origin does not know the upload. */
int upstream_upload_abort(struct upstream *u, struct slice key, struct slice id, struct err *e);
