/*
 * Moving the bytes of objects (contract in pour.h).
 *
 * What is in a file of this node and goes to an origin that is no bucket is carried there (carry.h). All else
 * streams: pieces, in order, out of an open object into an open put.
 *
 * What the target tells of the object afterwards decides: its size always; its ETag, where that is the MD5 of
 * what was sent, at once or in parts. Any other ETag says nothing, and the object is read back from its
 * origin: what the node had cached of it is dropped before. Of a bucket without origin the file is read back:
 * its ETag is made of the memory from which it was written.
 */
#include "net/job_spec.h"

#include "jobs/carry.h"
#include "jobs/pour.h"

#include "base/text.h"

#include <inttypes.h>

#define PIECE_BYTES                                                                                          \
    (128 * KIB) /* no more than an arena keeps when it is cleared: fresh pages cost more than calls */
#define PIECE_ARENA (4 * MIB)

uint32_t pour_flags(const struct kind_work *w)
{
    return w->modes ? WIRE_MODES : 0;
}

/* One piece of an open object, inline. */
static int fetch_piece(struct kind_work *w, uint64_t handle, uint64_t at, uint64_t size, struct arena *piece,
                       struct slice *ret, struct err *e)
{
    struct wire_fetch_req req = {.handle = handle,
                                 .offset = at,
                                 .n = MIN(PIECE_BYTES, size - at),
                                 .flags = WIRE_INLINE | WIRE_BACKGROUND};
    struct wire_fetch_rep got;
    arena_clear(piece);
    int r = w->move(w->arg, req.n);
    if (r == 0)
        r = object_fetch(w->session, &req, piece, &got, e);
    if (r == 0 && got.data.n == 0)
        r = err_set(e, ERR_ORIGIN_SHORT, "ended at byte %" PRIu64 " of %" PRIu64, at, size);
    if (r == 0)
        *ret = got.data;
    return r;
}

/* All of an open object into `d`, and into the open put `to` unless that is NULL. */
static int stream(struct kind_work *w, const struct wire_open_rep *from, const uint64_t *to, struct digest *d,
                  struct err *e)
{
    _cleanup_(arena_freep) struct arena *piece = arena_new(PIECE_ARENA);
    uint64_t size = from->attr.size_bytes;
    struct slice data;
    int r = 0;
    for (uint64_t at = 0; at < size && r == 0; at += data.n) {
        r = fetch_piece(w, from->handle, at, size, piece, &data, e);
        if (r < 0)
            break;
        digest_add(d, data.p, data.n);
        struct wire_put_write_req write = {.handle = to ? *to : 0, .offset = at, .data = data};
        struct wire_put_write_rep written;
        if (to)
            r = object_put_write(w->session, &write, piece, &written, e);
        digest_wait(d); /* before the next piece takes its place */
    }
    return r;
}

static int put_stream(struct kind_work *w, const struct wire_open_rep *from, struct slice key,
                      struct slice content_type, struct slice meta, struct digest_sums *ret, struct err *e)
{
    uint64_t size = from->attr.size_bytes;
    struct wire_put_open_req open = {.bucket = w->target_bucket,
                                     .key = key,
                                     .size = size,
                                     .content_type = content_type,
                                     .meta = meta,
                                     .via = WIRE_VIA_API,
                                     .flags = pour_flags(w)};
    struct wire_put_open_rep to;
    int r = object_put_open(w->session, &open, w->arena, &to, e);
    if (r < 0)
        return r;
    _cleanup_(digest_freep) struct digest *d = digest_new(size, w->part_bytes, w->sums, w->hasher);
    r = stream(w, from, &to.handle, d, e);
    if (r == 0) {
        struct wire_put_commit_req commit = {.handle = to.handle, .size = size};
        struct wire_put_commit_rep done;
        r = object_put_commit(w->session, &commit, w->arena, &done, e);
    }
    if (r == 0)
        digest_end(d, ret);
    if (r < 0) {
        struct wire_put_abort_req abort_req = {.handle = to.handle};
        struct wire_put_abort_rep aborted;
        (void)object_put_abort(w->session, &abort_req, w->arena, &aborted, NULL);
    }
    return r;
}

int pour(struct kind_work *w, const struct wire_open_rep *from, struct slice key, struct slice content_type,
         struct slice meta, struct digest_sums *ret, struct err *e)
{
    bool elsewhere = false;
    if (carry_can(w, from)) {
        int r = carry(w, from, key, content_type, meta, ret, &elsewhere, e);
        if (r == 0 || !elsewhere)
            return r;
        if (e)
            e->code = 0;
    }
    return put_stream(w, from, key, content_type, meta, ret, e);
}

/* ---- proof ---- */

/* The sum by which two streams are told apart, as it is shown. */
static const char *show_sum(const struct digest_sums *s, char ret_hex[2 * DIGEST_SHA256 + 1])
{
    if (s->there & DIGEST_SHA256_OF_ALL) {
        text_hex(s->sha256, DIGEST_SHA256, ret_hex);
        return "sha256";
    }
    if (s->there & DIGEST_CRC32C_OF_ALL) {
        (void)snprintf(ret_hex, 2 * DIGEST_SHA256 + 1, "%08" PRIx32, s->crc32c);
        return "crc32c";
    }
    bool all = s->there & DIGEST_OF_ALL;
    text_hex(all ? s->md5 : s->parts_md5, DIGEST_MD5, ret_hex);
    return all ? "md5" : "md5 of its parts";
}

static int read_back(struct kind_work *w, struct slice key, const struct digest_sums *sent, struct err *e)
{
    struct wire_evict_req drop = {.bucket = w->target_bucket, .key = key, .flags = WIRE_FRESH};
    struct wire_evict_rep dropped;
    struct wire_open_req open = {
        .bucket = w->target_bucket, .key = key, .via = WIRE_VIA_API, .flags = pour_flags(w)};
    struct wire_open_rep rep;
    int r = object_evict(w->session, &drop, w->arena, &dropped, e);
    if (r == 0)
        r = object_open(w->session, &open, w->arena, &rep, e);
    if (r < 0)
        return r;
    _cleanup_(digest_freep) struct digest *d =
        digest_new(rep.attr.size_bytes, w->part_bytes, sent->there, w->hasher);
    struct digest_sums found;
    r = stream(w, &rep, /* to= */ NULL, d, e);
    digest_end(d, &found);
    struct wire_close_req close = {.handle = rep.handle};
    struct wire_close_rep closed;
    (void)object_close(w->session, &close, w->arena, &closed, NULL);
    if (r < 0)
        return err_prefix(e, r, "read back");
    if (digest_is_same(&found, sent))
        return 0;
    char hex[2 * DIGEST_SHA256 + 1], wanted[2 * DIGEST_SHA256 + 1];
    const char *sum = show_sum(&found, hex);
    (void)show_sum(sent, wanted);
    return err_set(e, ERR_ORIGIN_FAILED, "the target holds other bytes than were sent: %s %s, not %s", sum,
                   hex, wanted);
}

int pour_verify(struct kind_work *w, struct slice key, const struct digest_sums *sent, struct wire_attr *ret,
                struct err *e)
{
    struct wire_stat_req req = {.bucket = w->target_bucket, .key = key, .flags = WIRE_FRESH | pour_flags(w)};
    struct wire_stat_rep rep;
    int r = object_stat(w->session, &req, w->arena, &rep, e);
    if (r < 0)
        return r;
    if (rep.attr.size_bytes != sent->size_bytes)
        return err_set(e, ERR_ORIGIN_FAILED, "the target has %" PRIu64 " bytes, %" PRIu64 " were written",
                       rep.attr.size_bytes, sent->size_bytes);
    bool told = digest_is_etag(sent, rep.attr.etag);
    *ret = rep.attr;
    bool enough = w->spec->verify == JOB_VERIFY_SIZE || (w->spec->verify == JOB_VERIFY_AUTO && told);
    return enough ? 0 : read_back(w, key, sent, e);
}
