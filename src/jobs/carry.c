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
 *
 * Failure modes: as pour.
 */
#include "jobs/carry.h"

#include "base/lock.h"
#include "base/sys.h"
#include "base/text.h"
#include "origin/origin.h"

#include <inttypes.h>
#include <pthread.h>

#define PIECE_BYTES     (128 * KIB)
#define SIGNED_BYTES    (8 * MIB) /* up to here the sum is made before, and signs the one request */
#define STACK_BYTES     (512 * KIB)
#define FETCH_MAX_BYTES (8 * MIB) /* of an answer to FETCH, should the bytes come with it after all */

struct carried {
    struct kind_work *w;
    const struct wire_open_rep *from;
    struct digest *digest;
    atomic_bool stop;       /* one side has failed: the other need not go on */
    _Atomic uint64_t moved; /* bytes that the upload has read */
    struct lock lock;       /* covers what follows */
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

static void sum_up(struct carried *c)
{
    _cleanup_free_ char *piece = malloc(PIECE_BYTES);
    assert(piece);
    for (uint64_t at = 0; at < size_of(c) && !atomic_load(&c->stop);) {
        ssize_t got = read_some(c, piece, PIECE_BYTES, at);
        if (got < 0)
            break;
        digest_add(c->digest, piece, (size_t)got);
        digest_wait(c->digest); /* before the next piece takes its place */
        at += (uint64_t)got;
    }
}

static void *sum_main(void *arg)
{
    sum_up(arg);
    return NULL;
}

/* ---- the upload ---- */

static ssize_t body_read(void *arg, void *p, size_t n, uint64_t offset)
{
    struct carried *c = arg;
    if (atomic_load(&c->stop))
        return -ECANCELED;
    ssize_t got = read_some(c, p, n, offset);
    if (got < 0)
        return got;
    uint64_t before = atomic_fetch_add(&c->moved, (uint64_t)got);
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
    pthread_attr_t attr;
    int r = pthread_attr_init(&attr);
    assert(r == 0);
    (void)pthread_attr_setstacksize(&attr, STACK_BYTES);
    r = pthread_create(ret, &attr, sum_main, c);
    (void)pthread_attr_destroy(&attr);
    return r == 0;
}

/* The source's fault, if there was one. */
static int fault(struct carried *c, struct err *e)
{
    LOCK_SCOPE(&c->lock);
    if (c->result < 0 && e)
        *e = c->err;
    return c->result;
}

/* Small objects, and those for which there is no thread, are summed up first. */
static int run(struct carried *c, struct slice key, struct slice content_type, struct slice meta,
               struct digest_sums *ret, struct err *e)
{
    char sha256[2 * DIGEST_SHA256 + 1] = "";
    bool is_small = size_of(c) <= SIGNED_BYTES;
    pthread_t summing;
    bool beside = !is_small && start_summing(c, &summing);
    if (!beside)
        sum_up(c);
    if (!beside && !atomic_load(&c->stop))
        digest_end(c->digest, ret);
    if (is_small && !atomic_load(&c->stop) && c->w->sums & DIGEST_SHA256_OF_ALL)
        text_hex(ret->sha256, DIGEST_SHA256, sha256);
    int r = atomic_load(&c->stop) ? -ECANCELED : upload(c, key, content_type, meta, sha256, e);
    if (r < 0)
        atomic_store(&c->stop, true);
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
    struct digest_sums sums = {0};
    int r = run(&c, key, content_type, meta, &sums, e);
    *ret_elsewhere = c.elsewhere;
    lock_fini(&c.lock);
    if (r < 0)
        return r;
    *ret = sums;
    w->read_here = from->attr.size_bytes;
    return 0;
}
