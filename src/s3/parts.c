/*
 * Multipart uploads at the origin (contract in parts.h): the S3 side of UPLOAD_*.
 */
#include "s3/parts.h"

#include "base/text.h"
#include "s3/source.h"

#define CALL_ARENA_BYTES (256 * KIB)
#define PAGE_ARENA_BYTES (8 * MIB)
#define PAGE_PARTS       1000

static enum s3_error failed(struct s3_request *r, int status, const struct err *e)
{
    return status == -ENOENT ? S3_ERR_NO_SUCH_UPLOAD : reply_failed(r, status, e);
}

/* ---- create ---- */

enum s3_error parts_create(struct s3_request *r, struct slice type, struct slice meta,
                           const struct part_sums *sums, char ret_id[UPLOAD_ID_SIZE])
{
    _cleanup_(arena_freep) struct arena *a = arena_new(CALL_ARENA_BYTES);
    char tag[PART_SUMS_TAG_SIZE];
    struct wire_upload_create_req req = {.bucket = r->bucket,
                                         .key = r->key,
                                         .content_type = type,
                                         .meta = meta,
                                         .tag = slice_str(part_sums_tag(sums, tag))};
    struct wire_upload_create_rep rep;
    struct err e = {0};
    int status;

    status = object_upload_create(r->s3->session, &req, a, &rep, &e);
    if (status == ERR_NOT_IMPLEMENTED)
        return S3_ERR_NOT_IMPLEMENTED;
    if (status)
        return reply_failed(r, status, &e);
    assert(rep.id.n == UPLOAD_ID_SIZE - 1);
    memcpy(ret_id, rep.id.p, rep.id.n);
    ret_id[rep.id.n] = 0;
    return S3_OK;
}

/* ---- one part ---- */

/* What a header said: "SUFFIX HEX". */
static struct slice known_sum(const struct body *body, struct arena *a)
{
    char hex[2 * CHECKSUM_MAX_BYTES + 1];

    if (!body || body->plan.kind == CHECKSUM_NONE || body->plan.in_trailer)
        return SLICE_LIT("");
    text_hex(body->plan.value, checksum_bytes(body->plan.kind), hex);
    return slice_str(arena_printf(a, "%s %s", checksum_suffix(body->plan.kind), hex));
}

enum s3_error parts_begin(struct parts_write *p, struct s3_request *r, uint32_t number, uint64_t size,
                          const struct body *body, struct part_sums *ret_sums)
{
    struct wire_upload_part_req req = {.bucket = r->bucket,
                                       .key = r->key,
                                       .id = request_query(r, "uploadId"),
                                       .number = number,
                                       .size = size};
    struct wire_upload_part_rep rep;
    struct err e = {0};
    int status;

    *p = (struct parts_write){.r = r, .arena = arena_new(CALL_ARENA_BYTES)};
    req.checksum = known_sum(body, p->arena);
    status = object_upload_part(r->s3->session, &req, p->arena, &rep, &e);
    if (status) {
        arena_free(TAKE_PTR(p->arena));
        return failed(r, status, &e);
    }
    p->handle = rep.handle;
    *ret_sums = part_sums_of_tag(rep.tag);
    arena_clear(p->arena);
    return S3_OK;
}

enum s3_error parts_write(struct parts_write *p, const void *data, size_t n)
{
    struct wire_upload_write_req req = {.handle = p->handle, .data = slice_of(data, n)};
    struct wire_upload_write_rep rep;
    struct err e = {0};
    int status = object_upload_write(p->r->s3->session, &req, p->arena, &rep, &e);

    arena_clear(p->arena);
    return status ? failed(p->r, status, &e) : S3_OK;
}

enum s3_error parts_end(struct parts_write *p, bool ok, const uint8_t md5[16], struct slice sum)
{
    char etag[33], hex[2 * CHECKSUM_MAX_BYTES + 1];
    struct wire_upload_end_req req = {.handle = p->handle};
    struct wire_upload_end_rep rep;
    struct err e = {0};
    int status;

    text_hex(md5, 16, etag);
    text_hex(sum.p, sum.n, hex);
    req.etag = slice_str(etag);
    req.checksum = slice_str(hex);
    req.flags = ok ? 0 : WIRE_CANCEL;
    status = object_upload_end(p->r->s3->session, &req, p->arena, &rep, &e);
    arena_free(TAKE_PTR(p->arena));
    p->handle = 0;
    return ok && status ? failed(p->r, status, &e) : S3_OK;
}

/* ---- abort ---- */

int parts_abort_of(struct s3 *s3, struct slice bucket, struct slice key, struct slice id, struct err *e)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(CALL_ARENA_BYTES);
    struct wire_upload_abort_req req = {.bucket = bucket, .key = key, .id = id};
    struct wire_upload_abort_rep rep;
    int status = object_upload_abort(s3->session, &req, a, &rep, e);

    if (status == 0)
        uploads_tell_end(s3->uploads, id);
    return status;
}

enum s3_error parts_abort(struct s3_request *r)
{
    struct err e = {0};
    int status = parts_abort_of(r->s3, r->bucket, r->key, request_query(r, "uploadId"), &e);

    return status ? failed(r, status, &e) : S3_OK;
}

/* ---- listings ---- */

static int take_part(const struct wire_part *w, size_t sum_bytes, struct upload_part *ret)
{
    *ret = (struct upload_part){
        .number = w->number, .present = true, .size = w->size_bytes, .mtime_ns = w->at_ns};
    if (w->etag.n != 32 || text_unhex(w->etag, ret->md5, sizeof ret->md5) < 0)
        return ERR_CORRUPT;
    ret->has_sum =
        sum_bytes > 0 && w->checksum.n == 2 * sum_bytes && text_unhex(w->checksum, ret->sum, sum_bytes) == 0;
    return 0;
}

static void keep_result(const struct wire_upload_parts_rep *rep, struct upload_result *ret)
{
    (void)snprintf(ret->etag, sizeof ret->etag, SLICE_FMT, SLICE_ARG(rep->etag));
    if (slice_find(rep->tag, ' ') > 0 && rep->tag.n < sizeof ret->checksum)
        (void)snprintf(ret->checksum, sizeof ret->checksum, SLICE_FMT, SLICE_ARG(rep->tag));
}

enum s3_error parts_find(struct s3_request *r)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(CALL_ARENA_BYTES);
    struct wire_upload_parts_req req = {
        .bucket = r->bucket, .key = r->key, .id = request_query(r, "uploadId")};
    struct wire_upload_parts_rep rep;
    struct err e = {0};
    int status = object_upload_parts(r->s3->session, &req, a, &rep, &e);

    if (status)
        return failed(r, status, &e);
    return rep.etag.n ? S3_ERR_NO_SUCH_UPLOAD : S3_OK;
}

enum s3_error parts_list(struct s3_request *r, struct upload_part **ret, size_t *ret_n,
                         struct part_sums *ret_sums, struct upload_result *ret_result)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(PAGE_ARENA_BYTES);
    _cleanup_free_ struct upload_part *v = calloc(UPLOAD_PART_NUMBER_MAX, sizeof *v);
    struct wire_upload_parts_req req = {
        .bucket = r->bucket, .key = r->key, .id = request_query(r, "uploadId"), .max = PAGE_PARTS};
    struct wire_upload_parts_rep rep = {.truncated = 1};
    size_t n = 0;
    struct err e = {0};

    if (!v)
        abort();
    while (rep.truncated) {
        struct wire_part w;
        int status = object_upload_parts(r->s3->session, &req, a, &rep, &e);

        if (status)
            return failed(r, status, &e);
        *ret_result = (struct upload_result){0};
        if (rep.etag.n)
            keep_result(&rep, ret_result);
        *ret_sums = rep.etag.n ? (struct part_sums){0} : part_sums_of_tag(rep.tag);
        while (n < UPLOAD_PART_NUMBER_MAX && wire_part_decode(&rep.parts, &w) == 0) {
            if (take_part(&w, checksum_bytes(ret_sums->kind), &v[n]))
                return S3_ERR_INTERNAL;
            req.after = v[n++].number;
        }
        arena_clear(a);
    }
    *ret = TAKE_PTR(v);
    *ret_n = n;
    return S3_OK;
}

int parts_each(struct s3 *s3, struct slice bucket,
               void (*fn)(void *arg, struct slice key, const char *id, uint64_t created_ns), void *arg,
               struct err *e)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(PAGE_ARENA_BYTES);
    struct wire_upload_list_req req = {.bucket = bucket};
    struct wire_upload_list_rep rep = {.truncated = 1};
    char last[UPLOAD_ID_SIZE] = "";

    while (rep.truncated) {
        struct wire_upload w;
        int status = object_upload_list(s3->session, &req, a, &rep, e);

        if (status)
            return status;
        while (wire_upload_decode(&rep.uploads, &w) == 0 && w.id.n == sizeof last - 1) {
            memcpy(last, w.id.p, w.id.n);
            fn(arg, w.key, last, w.created_ns);
        }
        req.after = slice_str(last);
        arena_clear(a);
    }
    return 0;
}
