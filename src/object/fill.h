/*
 * Filling: fetching missing bytes of one version of one object from its origin, once, for all who wait for
 * them.
 *
 * A `struct fill` belongs to one version. Its parts are requests in flight; a block is asked for by one part
 * at a time, however many readers want it, and readers get bytes as they arrive. Bytes go to the extent, or,
 * when the store did not admit the version (or its disk ran full), into a bounded set of parts in memory.
 *
 * Every request but the first of an unknown object carries If-Match with the version's ETag.
 */
#pragma once

#include "base/arena.h"
#include "base/budget.h"
#include "namespace/attr.h"
#include "namespace/upstream.h"
#include "object/plan.h"
#include "store/store.h"

struct fill;
struct fill_engine;

#define FILL_INLINE_MAX_BYTES MIB
#define FILL_LEAST_BYTES      (64 * KIB) /* a waiter is not woken for less, but at the end of a part */

/* Asked once the attributes of an unknown object have arrived: makes its extent (or leaves *ret_extent NULL
 * when it is not admitted). On a worker thread, no lock held. An error ends the fill with it. */
typedef int (*fill_admit_fn)(void *arg, const struct attr *attr, struct extent **ret_extent, struct err *e);

/* Told, on a worker thread, that the origin's object is no longer the version of this fill (x may be NULL).
 */
typedef void (*fill_changed_fn)(void *arg, struct upstream *u, struct slice key, struct extent *x);

/*
 * How many of the threads may be at work for one bucket while `others` are for other buckets: as many as are
 * left free then. So a bucket alone has half of them, some are always left for the next one, and where
 * several have much to do and let go of threads now and then, their shares become alike. (The dynamic
 * threshold of Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches",
 * 1998.) Pure.
 */
unsigned fill_workers(unsigned max_threads, unsigned others);

/*
 * Reading around the cache goes through a memory of `total` bytes, in parts, a request each. So large is one
 * while `streams` objects are read so: each of them has room for the part that is read and for the next one,
 * as long as parts are not smaller than what a request is worth. Between FILL_PART_MIN_BYTES and
 * FILL_PART_MAX_BYTES, a power of two. Pure.
 */
#define FILL_PART_MIN_BYTES (256 * KIB)
#define FILL_PART_MAX_BYTES (4 * MIB)
uint64_t fill_memory_part(uint64_t total, unsigned streams);
/*
 * Whether a part in memory may go for the sake of who waits for memory: at once when it was read to its end;
 * when a reader is in it, or it was read ahead and nobody came yet, only after nobody touched it for so long.
 * Earlier it would be fetched again, by whom then others have to wait for, and nobody would get on. Pure.
 */
#define FILL_KEEP_BEGUN_MS 1000
#define FILL_KEEP_AHEAD_MS 5000
bool fill_may_drop(bool is_read, bool is_begun, uint64_t idle_ms);

/* max_threads bounds requests in flight; of one bucket fill_workers does. */
struct fill_engine *fill_engine_new(struct budget *budget, unsigned max_threads, fill_changed_fn on_changed,
                                    void *arg);
/* Told, on a worker thread, how many bytes of an object came from the origin; with the arg of on_changed. Set
 * before the first fill. */
typedef void (*fill_fetched_fn)(void *arg, struct upstream *u, struct slice key, uint64_t bytes);
void fill_engine_on_fetched(struct fill_engine *g, fill_fetched_fn fn);
/* Cancels what runs, waits for it; readers that wait get ERR_CLOSED. */
void fill_engine_stop(struct fill_engine *g);
/* After fill_engine_stop, when all fills have been released. */
void fill_engine_free(struct fill_engine *g);

/* The running fill of this extent, or a new one. `etag` pins the version. */
struct fill *fill_of_extent(struct fill_engine *g, struct upstream *u, struct slice key, struct extent *x,
                            struct slice etag);
/* The same for a version that is not cached: found by bucket, key, ETag and size. */
struct fill *fill_of_uncached(struct fill_engine *g, struct upstream *u, struct slice key, struct slice etag,
                              uint64_t size);
/*
 * An object of which nothing is known: sends a ranged GET, waits for its head. On success *ret_attr is filled
 * (in the arena) and the fill goes on in the background; with `whole`, for who does nothing before all of
 * that range is there, it may have come, by the caller's own thread, and it is a failure when it did not.
 * ERR_RANGE: nothing at that offset (also: empty object).
 */
int fill_discover(struct fill_engine *g, struct upstream *u, struct slice key, struct plan_range first,
                  bool whole, fill_admit_fn admit, void *arg, struct arena *a, struct attr *ret_attr,
                  struct fill **ret, struct err *e);

struct fill *fill_ref(struct fill *f);
void fill_unref(struct fill *f);
DEFINE_CLEANUP(struct fill, fill_unref)

struct extent *fill_extent(const struct fill *f); /* borrowed, NULL when not cached */
/* Whether bytes still missing will come inline: no extent, or its disk is full. */
bool fill_is_uncached(struct fill *f);

/* Sees to it that the range is there or on its way. `urgent`: somebody waits for its first byte. Never
 * blocks. */
void fill_want(struct fill *f, struct plan_range range, bool urgent);

struct fill_bytes {
    uint64_t available; /* bytes that can be read from the extent at the offset */
    struct slice data;  /* or the bytes themselves, in the arena */
    bool waited;        /* they had to come from the origin */
};
/*
 * Waits for bytes at `offset` (below the size). At most FILL_INLINE_MAX_BYTES come inline. how, enum
 * fill_how: CHECKED means only bytes of blocks whose checksum is known, not those still arriving. Errors: the
 * origin's, after retries; ERR_VERSION_CHANGED when the origin's object is another one now; -ECANCELED when
 * the caller is given up (base/quit.h): what is on its way for him alone is given up, too.
 */
enum fill_how {
    FILL_CHECKED = 1 << 0,
    FILL_PATIENT = 1 << 1, /* what is queued stays behind what others wait for */
    FILL_WHOLE = 1 << 2,   /* nothing is done before all bytes are there */
    /* With one of these an object of one block of which nothing is queued is fetched by the caller's own
     * thread, if that may begin. */
};
int fill_wait(struct fill *f, uint64_t offset, uint64_t n, unsigned how, struct arena *a,
              struct fill_bytes *ret, struct err *e);
/* Waits until every byte is there. */
int fill_wait_all(struct fill *f, struct err *e);
