/*
 * Writing one object (contract in sink.h). A handle is committed or aborted, exactly once: a commit that
 * failed leaves it open, and sink_fini aborts it.
 */
#include "s3/sink.h"

#include "base/sys.h"
#include "origin/meta.h"
#include "origin/origin.h"

#define CALL_ARENA_BYTES (256 * KIB)

void sink_init(struct sink *k, struct s3 *s3)
{
    *k =
        (struct sink){.s3 = s3, .open = {.via = WIRE_VIA_S3}, .arena = arena_new(CALL_ARENA_BYTES), .fd = -1};
}

void sink_fini(struct sink *k)
{
    struct wire_put_abort_req req = {.handle = k->handle};
    struct wire_put_abort_rep rep;

    if (k->handle)
        (void)object_put_abort(k->s3->session, &req, k->arena, &rep, NULL);
    k->handle = 0;
    k->fd = -1;
    arena_free(TAKE_PTR(k->arena));
}

int sink_open(struct sink *k, uint64_t size, struct err *e)
{
    struct wire_put_open_rep rep;
    int status;

    assert(k->handle == 0);
    k->open.size = size;
    status = object_put_open(k->s3->session, &k->open, k->arena, &rep, e);
    if (status == 0) {
        k->handle = rep.handle;
        k->fd = rep.fd;
    }
    arena_clear(k->arena);
    return status;
}

int sink_write(struct sink *k, const void *p, size_t n, struct err *e)
{
    struct wire_put_write_req req = {.handle = k->handle, .offset = k->written, .data = slice_of(p, n)};
    struct wire_put_write_rep rep;
    int status = n ? object_put_write(k->s3->session, &req, k->arena, &rep, e) : 0;

    arena_clear(k->arena);
    if (status == 0)
        k->written += n;
    return status;
}

int sink_room(const struct sink *k, uint64_t back, uint64_t least, struct err *e)
{
    struct wire_put_room_req req = {.handle = k->handle, .back = back, .least = least};
    struct wire_put_room_rep rep;
    _cleanup_(arena_freep) struct arena *a = arena_new(CALL_ARENA_BYTES); /* parts come at the same time */

    return object_put_room(k->s3->session, &req, a, &rep, e);
}

int sink_keep(struct sink *k, struct slice tag, struct err *e)
{
    struct wire_upload_keep_req req = {.handle = k->handle, .tag = tag};
    struct wire_upload_keep_rep rep;
    int status = object_upload_keep(k->s3->session, &req, k->arena, &rep, e);

    if (status == 0) {
        assert(rep.id.n == sizeof k->upload - 1);
        memcpy(k->upload, rep.id.p, rep.id.n);
        k->upload[rep.id.n] = 0;
    }
    arena_clear(k->arena);
    return status;
}

int sink_join(struct sink *k, const char *upload, struct err *e)
{
    struct wire_upload_keep_req req = {.handle = k->handle, .id = slice_str(upload)};
    struct wire_upload_keep_rep rep;
    int status = object_upload_keep(k->s3->session, &req, k->arena, &rep, e);

    arena_clear(k->arena);
    return status;
}

int sink_resume(struct sink *k, const char *upload, struct err *e)
{
    struct wire_upload_resume_req req = {
        .bucket = k->open.bucket, .key = k->open.key, .id = slice_str(upload)};
    struct wire_upload_resume_rep rep;
    int status;

    assert(k->handle == 0);
    status = object_upload_resume(k->s3->session, &req, k->arena, &rep, e);
    if (status == 0) {
        k->handle = rep.handle;
        k->fd = rep.fd;
        (void)snprintf(k->upload, sizeof k->upload, "%s", upload);
    }
    arena_clear(k->arena);
    return status;
}

int sink_keep_part(const struct sink *k, const struct wire_part *part, bool is_gone, struct err *e)
{
    struct wire_upload_keep_part_req req = {.handle = k->handle,
                                            .number = part->number,
                                            .size = part->size_bytes,
                                            .offset = part->offset,
                                            .slot_bytes = part->slot_bytes,
                                            .etag = part->etag,
                                            .checksum = part->checksum,
                                            .flags = is_gone ? WIRE_CANCEL : 0};
    struct wire_upload_keep_part_rep rep;
    _cleanup_(arena_freep) struct arena *a = arena_new(CALL_ARENA_BYTES);

    return object_upload_keep_part(k->s3->session, &req, a, &rep, e);
}

/* The metadata with an end that counts from now: the bytes may have taken long. */
static int put_end(const struct sink *k, struct buf *ret)
{
    char end[24];

    (void)snprintf(end, sizeof end, "%llu", (unsigned long long)(sys->real_ns() + k->ttl_ms * 1000000));
    return meta_set(k->open.meta, META_EXPIRES, slice_str(end), ret);
}

int sink_commit(struct sink *k, struct slice sha256, struct slice md5, struct arena *a, struct wire_attr *ret,
                struct err *e)
{
    struct wire_put_commit_req req = {.handle = k->handle,
                                      .size = k->written,
                                      .sha256 = sha256,
                                      .md5 = md5,
                                      .etag = slice_str(k->etag),
                                      .checksum = k->checksum,
                                      .parts = k->parts};
    _cleanup_buf_ struct buf meta = BUF_INIT(ORIGIN_META_MAX_BYTES);
    struct wire_put_commit_rep rep;
    int status;

    if (k->ttl_ms && put_end(k, &meta) == 0) {
        req.meta = buf_view(&meta);
        req.flags = WIRE_META;
    }
    status = object_put_commit(k->s3->session, &req, a, &rep, e);
    if (status)
        return status;
    k->handle = 0;
    k->fd = -1;
    *ret = rep.attr;
    return 0;
}
