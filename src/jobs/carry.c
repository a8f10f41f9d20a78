/*
 * Carrying objects out of files (contract in carry.h).
 *
 * The upload's threads and the summing one read the same bytes, each where it is: out of the page cache, all
 * but once. Of an object that comes from its own origin meanwhile each of them waits for the bytes that it
 * needs (FETCH, behind all readers), which are fetched once.
 *
 * Invariants:
 *  1. What was summed up and what was sent are two readings of one version. Who compares them afterwards
 * (pour_verify) finds it when a file was written to in between, as a mount may do with one of a scratch
 * bucket.
 *  2. The first fault of the source is what is told; the upload, which is stopped by it, is not asked.
 *  3. Each byte is paid for once at the job's rate, however often the upload reads it.
 *  4. An object whose parts leave several at a time counts as so many of those that the job works on, until
 * fewer are left. So objects end one after the other, and while the origin puts one together the next is on
 * its way; all at once would wait together for all of that.
 *  5. The sum follows the upload (SUM_AHEAD_BYTES): what was just sent is in the processor's cache, and sums
 * take no processor from the sending while there is much to send, to leave it idle later.
 *
 * Failure modes: as pour.
 */
#include "jobs/carry.h"

#include "base/lock.h"
#include "base/sys.h"
#include "base/text.h"
#include "base/thread.h"
#include "origin/origin.h"

#include <inttypes.h>
#include <pthread.h>

#define SIGNED_BYTES    (8 * MIB) /* up to here the sum is made before, and signs the one request */
#define SUM_AHEAD_BYTES MIB
#define STACK_BYTES     (512 * KIB)
#define FETCH_MAX_BYTES (8 * MIB) /* of an answer to FETCH, should the bytes come with it after all */

struct carried {
    struct kind_work *w;
    const struct wire_open_rep *from;
    struct digest *digest;
    atomic_bool stop;       /* one side has failed: the other need not go on */
    _Atomic uint64_t moved; /* bytes that the upload has read */
    struct lock lock;       /* covers what follows */
    struct cond more;       /* the upload has moved on, or ended */
    bool is_sent;           /* it has ended */
    unsigned requests;      /* of the job's, not given back */
    bool elsewhere;
    int result; /* of the source */
    struct err err;
};

static uint64_t size_of(const struct carried *c)
{
    return c->from->attr.size_bytes;
}

bool carry_can(const struct kind_work *w, const struct wire_open_rep *from)
{
    return w->to_origin && (from->fd >= 0 || from->attr.size_bytes == 0);
}

/* ---- the source ---- */

static int fail(struct carried *c, int r, bool elsewhere, const struct err *e)
{
    LOCK_SCOPE(&c->lock);
    if (c->result == 0) {
        c->result = r;
        c->err = *e;
        c->elsewhere = elsewhere;
    }
    atomic_store(&c->stop, true);
    cond_broadcast(&c->more);
    return -ECANCELED;
}

/* Waits for bytes at `offset`; *n becomes how many of them the file has. */
static int await(struct carried *c, uint64_t offset, size_t *n)
{
    if (c->from->state == WIRE_COMPLETE)
        return 0;
    _cleanup_(arena_freep) struct arena *a = arena_new(FETCH_MAX_BYTES);
    struct wire_fetch_req req = {
        .handle = c->from->handle, .offset = offset, .n = *n, .flags = WIRE_BACKGROUND};
    struct wire_fetch_rep rep;
    struct err e = {0};
    int r = object_fetch(c->w->session, &req, a, &rep, &e);
    if (r < 0)
        return fail(c, r, /* elsewhere= */ false, &e);
    if (rep.available == 0) { /* the disk is full: they come around the cache */
        r = err_set(&e, ERR_NOT_ADMITTED, "not in the cache at byte %" PRIu64, offset);
        return fail(c, r, /* elsewhere= */ true, &e);
    }
    *n = (size_t)MIN((uint64_t)*n, rep.available);
    return 0;
}

/* Some of the n bytes at `offset`, which is before the end: how many, or -ECANCELED after `fail`. */
static ssize_t read_some(struct carried *c, void *p, size_t n, uint64_t offset)
{
    struct err e = {0};
    n = (size_t)MIN((uint64_t)n, size_of(c) - offset);
    int r = await(c, offset, &n);
    if (r < 0)
        return r;
    ssize_t got = sys->pread(c->from->fd, p, n, offset);
    if (got > 0)
        return got;
    r = got < 0 ? err_errno(&e, (int)got, "read at byte %" PRIu64, offset)
                : err_set(&e, -EIO, "the file was cut while it was read, at byte %" PRIu64, offset);
    return fail(c, r, /* elsewhere= */ true, &e);
}

/* Waits until the upload is near. */
static void follow(void *arg, uint64_t at)
{
    struct carried *c = arg;
    if (at < atomic_load(&c->moved) + SUM_AHEAD_BYTES)
        return;
    LOCK_SCOPE(&c->lock);
    while (!c->is_sent && !atomic_load(&c->stop) && at >= atomic_load(&c->moved) + SUM_AHEAD_BYTES)
        cond_wait(&c->more, &c->lock);
}

static void follow_nobody(void *arg, uint64_t at)
{
    (void)arg, (void)at;
}

static ssize_t sum_read(void *arg, void *p, size_t n, uint64_t offset)
{
    struct carried *c = arg;
    return atomic_load(&c->stop) ? -ECANCELED : read_some(c, p, n, offset);
}

static void sum_up(struct carried *c, bool beside)
{
    const struct digest_file f = {.size_bytes = size_of(c),
                                  .in_order = c->from->state != WIRE_COMPLETE, /* as it comes */
                                  .read = sum_read,
                                  .follow = beside ? follow : follow_nobody,
                                  .arg = c};
    struct err e = {0};
    if (digest_file(c->digest, &f) == ERR_VERSION_CHANGED)
        (void)fail(c, err_set(&e, ERR_VERSION_CHANGED, "the file was written to while it was read"),
                   /* elsewhere= */ false, &e);
}

static void *sum_main(void *arg)
{
    sum_up(arg, /* beside= */ true);
    return NULL;
}

/* ---- the upload ---- */

/* How many parts at a time are left of what has `moved`. */
static unsigned parts_left(const struct carried *c, uint64_t moved)
{
    uint64_t size = size_of(c), part = c->w->part_bytes, left = (size - MIN(moved, size) + part - 1) / part;
    unsigned most = c->w->sends_parts && size > 0 ? origin_parts_at_once((size + part - 1) / part) : 1;
    return (unsigned)MIN(left, (uint64_t)most);
}

static int take_requests(struct carried *c)
{
    unsigned n = parts_left(c, 0);
    int r = n > 1 ? c->w->take_requests(c->w->arg, n) : 0;
    c->requests = r == 0 && n > 1 ? n : 0;
    return r;
}

/* Gives back what more than `keep` it has. */
static void give_requests(struct carried *c, unsigned keep)
{
    lock_take(&c->lock);
    unsigned n = c->requests > keep ? c->requests - keep : 0;
    c->requests -= n;
    lock_drop(&c->lock);
    if (n > 0)
        c->w->give_requests(c->w->arg, n);
}

/* The upload has read up to `now`, of late from `before` on: in steps, for nobody waits for single bytes. */
static void moved_on(struct carried *c, uint64_t before, uint64_t now)
{
    if (before / SUM_AHEAD_BYTES == now / SUM_AHEAD_BYTES && now < size_of(c))
        return;
    lock_take(&c->lock);
    cond_broadcast(&c->more);
    lock_drop(&c->lock);
    give_requests(c, parts_left(c, now));
}

static ssize_t body_read(void *arg, void *p, size_t n, uint64_t offset)
{
    struct carried *c = arg;
    if (atomic_load(&c->stop))
        return -ECANCELED;
    ssize_t got = read_some(c, p, n, offset);
    if (got < 0)
        return got;
    uint64_t before = atomic_fetch_add(&c->moved, (uint64_t)got);
    moved_on(c, before, before + (uint64_t)got);
    uint64_t fresh = before < size_of(c) ? MIN((uint64_t)got, size_of(c) - before) : 0;
    int r = c->w->move(c->w->arg, fresh);
    return r < 0 ? r : got;
}

static int upload(struct carried *c, struct slice key, struct slice content_type, struct slice meta,
                  const char *sha256, struct err *e)
{
    const struct origin_put put = {.key = key,
                                   .content_type = content_type,
                                   .meta = meta,
                                   .payload_sha256 = slice_str(sha256),
                                   .cancel = &c->stop};
    const struct origin_body body = {.size_bytes = size_of(c),
                                     .read = body_read,
                                     .arg = c,
                                     .slow = size_of(c) > 0 && c->from->state != WIRE_COMPLETE};
    return object_guest_put(c->w->session, c->w->target_bucket, &put, &body, e);
}

/* ---- both ---- */

static bool start_summing(struct carried *c, pthread_t *ret)
{
    return thread_start(ret, STACK_BYTES, sum_main, c) == 0;
}

/* The source's fault, if there was one. */
static int fault(struct carried *c, struct err *e)
{
    LOCK_SCOPE(&c->lock);
    if (c->result < 0 && e)
        *e = c->err;
    return c->result;
}

/* Nobody waits for it any more. */
static void end_upload(struct carried *c, int result)
{
    lock_take(&c->lock);
    c->is_sent = true;
    if (result < 0)
        atomic_store(&c->stop, true);
    cond_broadcast(&c->more);
    lock_drop(&c->lock);
    give_requests(c, 0);
}

/* Small objects, and those for which there is no thread, are summed up first. */
static int run(struct carried *c, struct slice key, struct slice content_type, struct slice meta,
               struct digest_sums *ret, struct err *e)
{
    char sha256[2 * DIGEST_SHA256 + 1] = "";
    bool is_small = size_of(c) <= SIGNED_BYTES;
    int taken = is_small ? 0 : take_requests(c);
    if (taken < 0)
        return err_set(e, taken, "the job is to stop");
    pthread_t summing;
    bool beside = !is_small && start_summing(c, &summing);
    if (!beside)
        sum_up(c, /* beside= */ false);
    if (!beside && !atomic_load(&c->stop))
        digest_end(c->digest, ret);
    if (is_small && !atomic_load(&c->stop) && c->w->sums & DIGEST_SHA256_OF_ALL)
        text_hex(ret->sha256, DIGEST_SHA256, sha256);
    int r = atomic_load(&c->stop) ? -ECANCELED : upload(c, key, content_type, meta, sha256, e);
    end_upload(c, r);
    if (beside)
        (void)pthread_join(summing, NULL);
    if (beside && r == 0)
        digest_end(c->digest, ret);
    int f = fault(c, e);
    return f < 0 ? f : r;
}

int carry(struct kind_work *w, const struct wire_open_rep *from, struct slice key, struct slice content_type,
          struct slice meta, struct digest_sums *ret, bool *ret_elsewhere, struct err *e)
{
    assert(carry_can(w, from));
    _cleanup_(digest_freep) struct digest *d =
        digest_new(from->attr.size_bytes, w->part_bytes, w->sums, w->hasher);
    struct carried c = {.w = w, .from = from, .digest = d};
    lock_init(&c.lock, LOCK_LEAF);
    cond_init(&c.more);
    struct digest_sums sums = {0};
    int r = run(&c, key, content_type, meta, &sums, e);
    *ret_elsewhere = c.elsewhere;
    cond_fini(&c.more);
    lock_fini(&c.lock);
    if (r < 0)
        return r;
    *ret = sums;
    w->read_here = from->attr.size_bytes;
    return 0;
}
