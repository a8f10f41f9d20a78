/*
 * Multipart uploads: CreateMultipartUpload, UploadPart, UploadPartCopy, AbortMultipartUpload and ListParts.
 * CompleteMultipartUpload is in complete.c, ListMultipartUploads in upload_list.c.
 *
 * An upload is one of two kinds: where the bucket's origin takes parts, they go there as they come (parts.c);
 * else they lie on this node until the upload is completed (uploads.c). Its id tells: what the second does
 * not know is looked for in the first.
 *
 * 1. A part is acknowledged, with the MD5 of its bytes as ETag, only after its body was verified, and is on
 * disk with its record, or acknowledged by the origin.
 * 2. No object is there before the upload is completed.
 */
#include "s3/parts.h"
#include "s3/pulse.h"
#include "s3/source.h"
#include "s3/uploads.h"
#include "s3/xml.h"

#include "base/id.h"
#include "base/sys.h"
#include "base/text.h"

#define PAGE_ARENA_BYTES (MIB) /* checksums of a page's parts */

/* An upload whose parts stay on this node. */
static enum s3_error create_here(struct s3_request *r, struct slice type, struct slice meta,
                                 const struct part_sums *sums, char ret_id[UPLOAD_ID_SIZE])
{
    const struct slice bucket = buckets_identity(r->s3, r->bucket, r->arena);
    struct slice etag = SLICE_NULL;
    char tag[UPLOADS_TAG_SIZE];
    struct sink sink;
    struct err e = {0};
    enum s3_error error;
    bool opaque;
    int status;

    if (bucket.n == 0)
        return S3_ERR_NO_SUCH_BUCKET;
    (void)buckets_property(r, r->bucket, "etag", &etag);
    opaque = slice_eq_str(etag, "opaque");
    sink_init(&sink, r->s3);
    sink.open.bucket = r->bucket;
    sink.open.key = r->key;
    sink.open.flags = WIRE_STAGED | WIRE_LASTING;
    sink.open.content_type = type;
    sink.open.meta = meta;
    sink.ttl_ms = put_ttl_ms(r);
    status = sink_open(&sink, UINT64_MAX, &e);
    if (status == 0)
        status = sink_keep(&sink, slice_str(uploads_tag(sums, opaque, sink.ttl_ms, tag)), &e);
    error = status ? reply_failed(r, status, &e)
                   : uploads_add(r->s3->uploads, bucket, r->key, sums, opaque, &sink, ret_id);
    if (error && sink.upload[0]) /* a record that stays ends by itself */
        (void)uploads_unkeep(r->s3, r->bucket, r->key, sink.upload, NULL);
    if (error)
        sink_fini(&sink);
    if (!error && !slice_eq(bucket, buckets_identity(r->s3, r->bucket, r->arena))) {
        uploads_drop_bucket(r->s3->uploads,
                            bucket); /* it was removed just now, when nobody knew of this one */
        error = S3_ERR_NO_SUCH_BUCKET;
    }
    return error;
}

enum s3_error s3_op_create_multipart_upload(struct s3_request *r)
{
    _cleanup_buf_ struct buf b = BUF_INIT(16 * KIB);
    struct xml x = {&b, 0};
    char id[UPLOAD_ID_SIZE];
    struct slice type, meta;
    struct part_sums sums;
    const char *reason = NULL;
    enum s3_error error = part_sums_plan(request_header(r, "x-amz-checksum-algorithm"),
                                         request_header(r, "x-amz-checksum-type"), &sums, &reason);

    if (error)
        return reply_refuse(r, error, reason);
    error = put_metadata(r, &type, &meta);
    if (!error) {
        error = parts_create(r, type, meta, &sums, id);
        if (error == S3_ERR_NOT_IMPLEMENTED)
            error = create_here(r, type, meta, &sums, id);
    }
    if (error)
        return error;
    if (sums.kind != CHECKSUM_NONE) {
        reply_header(r, "x-amz-checksum-algorithm", slice_str(checksum_name(sums.kind)));
        reply_header(r, "x-amz-checksum-type", slice_str(part_sums_type(sums.whole)));
    }
    xml_start(&x);
    xml_root(&x, "InitiateMultipartUploadResult");
    xml_text(&x, "Bucket", r->bucket);
    xml_text(&x, "Key", r->key);
    xml_text(&x, "UploadId", slice_str(id));
    xml_close(&x, "InitiateMultipartUploadResult");
    assert(x.status == 0);
    reply_send(r, 200, "application/xml", buf_view(&b));
    return S3_OK;
}

enum s3_error multipart_find(struct s3_request *r, struct upload **ret)
{
    *ret = uploads_find(r->s3->uploads, request_query(r, "uploadId"),
                        buckets_identity(r->s3, r->bucket, r->arena), r->key);
    return *ret ? S3_OK : S3_ERR_NO_SUCH_UPLOAD;
}

static enum s3_error read_number(struct s3_request *r, uint32_t *ret)
{
    const char *reason = NULL;
    enum s3_error error = part_list_number(request_query(r, "partNumber"), ret, &reason);

    return error ? reply_refuse(r, error, reason) : S3_OK;
}

/* ---- one part ---- */

struct part_write {
    struct s3_request *r;
    struct upload *upload;   /* on this node: where its bytes go */
    struct parts_write part; /* at the origin, when there is no such upload */
    struct upload_region region;
    uint64_t written, room; /* room: of the bucket's quota, taken for this node's upload, ... */
    struct sink room_of;    /* ... of this sink, which may be committed or gone by now */
    struct part_sums sums;  /* the upload's */
    struct body *body;      /* it computes the MD5; NULL: `md5` does */
    struct hasher_stream md5;
    struct checksum own;
    uint8_t digest[CHECKSUM_MAX_BYTES], sum[CHECKSUM_MAX_BYTES]; /* once ended */
};

/* What a part comes to that the end of its upload stopped. */
static enum s3_error stopped(const struct part_write *p)
{
    return upload_has_ended(p->upload) ? S3_ERR_NO_SUCH_UPLOAD : S3_ERR_UNAVAILABLE;
}

/* In the bucket's quota: nothing of a part is written that does not fit. */
static enum s3_error take_room(struct part_write *p, uint64_t size)
{
    struct err e = {0};
    int status;

    if (!upload_part_enter(p->upload, &p->region))
        return stopped(p);
    p->room_of = *upload_sink(p->upload);
    status = sink_room(&p->room_of, 0, size, &e);
    upload_part_leave(p->upload);
    if (status)
        return reply_failed(p->r, status, &e);
    p->room = size;
    return S3_OK;
}

/* It is on disk by now, or will not be. */
static void give_room_back(struct part_write *p)
{
    if (p->room) /* what fails here is put right by the next one, or the sink is gone and so is its room */
        (void)sink_room(&p->room_of, p->room, 0, NULL);
    p->room = 0;
}

/* The part first: the room is then of an upload that nobody commits meanwhile. */
static enum s3_error begin_here(struct part_write *p, uint32_t number, uint64_t size)
{
    enum s3_error error = upload_part_begin(p->upload, number, size, &p->region);

    if (error)
        return error;
    error = take_room(p, size);
    if (error)
        (void)upload_part_end(p->upload, &p->region, /* ok= */ false, p->digest, NULL, NULL);
    return error;
}

/* The MD5, which is the ETag: by the body's reader where there is one, beside where it is worth it. */
static void begin_md5(struct part_write *p)
{
    struct hasher *hasher = p->r->s3->hasher;

    if (p->body && (!p->region.opaque || p->body->plan.has_md5))
        body_want_md5(p->body, hasher);
    if (!p->body && !p->region.opaque)
        hasher_stream_init(&p->md5, p->region.size >= BODY_BESIDE_MIN_BYTES ? hasher : NULL);
}

/* body: where the bytes come from, whose reader computes checksums anyway; NULL for a copy. */
static enum s3_error begin(struct part_write *p, struct s3_request *r, uint64_t size, struct body *body)
{
    const enum checksum_kind verified = body ? body->plan.kind : CHECKSUM_NONE;
    uint32_t number = 0;
    enum s3_error error = read_number(r, &number);

    p->r = r;
    p->body = body;
    if (!error && size > UPLOAD_PART_MAX_BYTES)
        error = S3_ERR_ENTITY_TOO_LARGE;
    if (error)
        return error;
    p->region.size = size;
    error = multipart_find(r, &p->upload);
    if (!error) {
        p->sums = upload_sums(p->upload);
        error = begin_here(p, number, size);
    } else {
        error = parts_begin(&p->part, r, number, size, body, &p->sums);
    }
    if (!error) {
        begin_md5(p);
        checksum_init(&p->own, verified == p->sums.kind ? CHECKSUM_NONE : p->sums.kind);
    }
    return error;
}

static enum s3_error store_piece(struct part_write *p, const void *data, size_t n)
{
    struct err e = {0};
    int status;

    assert(p->written + n <= p->region.size);
    checksum_update(&p->own, data, n);
    if (!p->upload) {
        p->written += n;
        return parts_write(&p->part, data, n);
    }
    if (!upload_part_enter(p->upload, &p->region))
        return stopped(p);
    status = sys_pwrite_all(upload_fd(p->upload), data, n, p->region.offset + p->written);
    upload_part_leave(p->upload);
    if (status) {
        (void)err_errno(&e, status, "write to the cache's disk");
        return reply_failed(p->r, status, &e);
    }
    p->written += n;
    return S3_OK;
}

/* Of a copy: its MD5 is computed while the bytes are stored, and does not need them any more then. */
static enum s3_error copy_piece(struct part_write *p, const void *data, size_t n)
{
    enum s3_error error;

    assert(!p->body);
    if (!p->region.opaque)
        hasher_stream_add(&p->md5, data, n);
    error = store_piece(p, data, n);
    if (!p->region.opaque)
        hasher_stream_wait(&p->md5, data, n);
    return error;
}

static void end_md5(struct part_write *p, bool ok)
{
    struct id128 random;

    if (p->region.opaque) {
        id_new(&random);
        memcpy(p->digest, random.b, sizeof random.b);
    } else if (p->body && ok) {
        memcpy(p->digest, p->body->md5_digest, sizeof p->body->md5_digest);
    } else if (ok) {
        hasher_stream_digest(&p->md5, p->digest);
    }
    hasher_stream_fini(&p->md5);
}

/* Ends what begin() began; the ETag is in *ret_etag, in the request's arena. */
static enum s3_error end(struct part_write *p, enum s3_error error, struct slice *ret_etag)
{
    const size_t n_sum = checksum_bytes(p->sums.kind);
    char *etag = arena_alloc(p->r->arena, UPLOAD_PART_ETAG_SIZE);

    if (!error && p->written != p->region.size)
        error = S3_ERR_INCOMPLETE_BODY;
    end_md5(p, !error);
    if (p->own.kind != CHECKSUM_NONE)
        (void)checksum_final(&p->own, p->sum);
    else if (n_sum)
        memcpy(p->sum, p->body->plan.value, n_sum);
    checksum_fini(&p->own);
    if (p->upload) {
        struct err e = {0};
        int status;

        give_room_back(p);
        status = upload_part_end(p->upload, &p->region, !error, p->digest, n_sum ? p->sum : NULL, &e);
        if (status)
            error = status == -ENOENT ? stopped(p) : reply_failed(p->r, status, &e);
        upload_unref(p->upload);
    } else {
        enum s3_error ended = parts_end(&p->part, !error, p->digest, slice_of(p->sum, n_sum));

        error = error ? error : ended;
    }
    upload_part_etag(p->digest, p->region.opaque, etag);
    *ret_etag = slice_str(etag);
    return error;
}

/* pieces: memory of two, of which the second is used while the first is hashed. */
static enum s3_error receive(struct part_write *p, char *pieces)
{
    struct body *body = p->body;
    unsigned turn = 0;
    ssize_t n;

    while ((n = body_read_full(body, pieces + turn * S3_PIECE_BYTES, S3_PIECE_BYTES)) > 0) {
        enum s3_error error = store_piece(p, pieces + turn * S3_PIECE_BYTES, (size_t)n);

        if (error)
            return error;
        turn = body->beside && !turn;
    }
    return n < 0 ? body->error : S3_OK;
}

enum s3_error s3_op_upload_part(struct s3_request *r)
{
    _cleanup_free_ char *pieces = malloc(2 * S3_PIECE_BYTES); /* freed after body_fini */
    struct part_write p = {0};
    struct slice etag;
    struct body body;
    enum s3_error error = put_refuse_keys(r);

    if (!pieces)
        abort();
    if (!error)
        error = put_body(r, &body);
    if (error)
        return error;
    if (body.plan.size_bytes == BODY_SIZE_UNKNOWN)
        error = S3_ERR_MISSING_LENGTH;
    if (!error)
        error = begin(&p, r, body.plan.size_bytes, &body);
    if (!error) {
        error = receive(&p, pieces);
        error = end(&p, error, &etag);
    } else {
        upload_unref(p.upload);
    }
    if (!error) {
        reply_etag(r, etag);
        if (body.plan.kind == CHECKSUM_NONE && p.sums.kind != CHECKSUM_NONE)
            put_kept_checksum(r, put_checksum_text(r->arena, p.sums.kind, p.sum), NULL);
        else
            put_checksum_header(r, &body);
    }
    body_fini(&body);
    if (!error)
        reply_send(r, 200, NULL, SLICE_NULL);
    return error;
}

/* ---- a part that is a copy ---- */

static enum s3_error copy_range(struct s3_request *r, const struct source *s, struct http_range *ret)
{
    struct slice value = request_header(r, "x-amz-copy-source-range");
    char exact[64];
    int status;

    *ret = (struct http_range){0, s->attr.size_bytes};
    if (!value.p)
        return S3_OK;
    /* Unlike a GET's, this range may neither be open nor reach beyond the end. */
    status = http_parse_range(value, s->attr.size_bytes, ret);
    if (status == 0) {
        (void)snprintf(exact, sizeof exact, "bytes=%llu-%llu", (unsigned long long)ret->offset,
                       (unsigned long long)(ret->offset + ret->n - 1));
        if (slice_eq_str(value, exact))
            return S3_OK;
        status = http_parse_range(value, INT64_MAX, ret);
        (void)snprintf(exact, sizeof exact, "bytes=%llu-%llu", (unsigned long long)ret->offset,
                       (unsigned long long)(ret->offset + ret->n - 1));
        if (status == 0 && slice_eq_str(value, exact)) /* well formed, and reaching beyond the end */
            status = ERR_RANGE;
    }
    return reply_refuse(r, status == ERR_RANGE ? S3_ERR_INVALID_RANGE : S3_ERR_INVALID_ARGUMENT,
                        "x-amz-copy-source-range must be bytes=FIRST-LAST inside the source");
}

/* By the origin itself, where it has both and nobody wants a checksum. *ret: done, or an error. */
static bool copy_part_beside(struct s3_request *r, struct source *s, struct slice *ret_etag,
                             enum s3_error *ret)
{
    struct wire_upload_copy_req req = {.bucket = r->bucket,
                                       .key = r->key,
                                       .id = request_query(r, "uploadId"),
                                       .source_bucket = s->bucket,
                                       .source_key = s->key};
    struct wire_upload_copy_rep rep;
    struct upload *here;
    struct http_range range;
    struct err e = {0};
    int status;

    if (multipart_find(r, &here) == S3_OK) {
        upload_unref(here);
        return false;
    }
    if (!source_may_be_beside(s))
        return false;
    *ret = source_look(s);
    if (!*ret)
        *ret = copy_range(r, s, &range);
    if (!*ret)
        *ret = read_number(r, &req.number);
    if (!*ret && range.n > UPLOAD_PART_MAX_BYTES)
        *ret = S3_ERR_ENTITY_TOO_LARGE;
    if (*ret)
        return true;
    if (range.n == 0)
        return false;
    req.if_match = s->attr.etag;
    req.offset = range.offset;
    req.n = range.n;
    status = object_upload_copy(r->s3->session, &req, r->arena, &rep, &e);
    /* What is another one by now, or gone, shows when it is read. */
    if (status == ERR_NOT_IMPLEMENTED || status == ERR_PRECONDITION || status == ERR_RANGE ||
        status == -ENOENT)
        return false;
    if (status)
        *ret = reply_failed(r, status, &e);
    else
        *ret_etag = rep.etag;
    return true;
}

/* What is too large is so by the source's attributes: opening it may fetch its beginning from an origin.
 * Nobody is asked where the range alone says that it is not. */
static enum s3_error check_copy_size(struct s3_request *r, struct source *s)
{
    struct slice value = request_header(r, "x-amz-copy-source-range");
    struct http_range range;
    uint32_t number;
    enum s3_error error;

    if (value.p && http_parse_range(value, INT64_MAX, &range) == 0 && range.n <= UPLOAD_PART_MAX_BYTES)
        return S3_OK;
    error = read_number(r, &number);
    if (!error)
        error = source_look(s);
    if (!error)
        error = copy_range(r, s, &range);
    return !error && range.n > UPLOAD_PART_MAX_BYTES ? S3_ERR_ENTITY_TOO_LARGE : error;
}

static enum s3_error copy_part(struct s3_request *r, struct source *s, struct slice *ret_etag,
                               struct slice *ret_checksum)
{
    struct part_write p = {0};
    struct http_range range;
    enum s3_error error = check_copy_size(r, s);

    if (!error)
        error = source_open(s, 0, 0);
    if (!error)
        error = copy_range(r, s, &range);
    if (!error)
        error = begin(&p, r, range.n, /* body= */ NULL);
    if (error) {
        upload_unref(p.upload);
        return error;
    }
    while (!error && p.written < range.n) {
        struct slice piece;

        error = source_read(s, range.offset + p.written, MIN((uint64_t)MIB, range.n - p.written), &piece);
        if (!error)
            error = copy_piece(&p, piece.p, piece.n);
    }
    error = end(&p, error, ret_etag);
    if (p.sums.kind != CHECKSUM_NONE)
        *ret_checksum = put_checksum_text(r->arena, p.sums.kind, p.sum);
    return error;
}

/* Before the source is asked for anything. */
static enum s3_error check_upload(struct s3_request *r)
{
    struct upload *here;
    enum s3_error error = multipart_find(r, &here);

    if (error)
        return parts_find(r);
    upload_unref(here);
    return S3_OK;
}

/* Until the upload has ended, or its parts are stopped: then nobody waits for the source any more. */
static enum s3_error copy_watched(struct s3_request *r, struct source *s, struct copy_result *ret)
{
    struct upload_watch watch;
    enum s3_error error, stopped;

    uploads_watch(r->s3->uploads, buckets_identity(r->s3, r->bucket, r->arena), request_query(r, "uploadId"),
                  &watch);
    s->session = object_session_new(r->s3->objects, WIRE_VIA_S3);
    object_session_set_quit(s->session, &watch.stop);
    error = check_upload(r);
    if (!error && !copy_part_beside(r, s, &ret->etag, &error))
        error = copy_part(r, s, &ret->etag, &ret->checksum);
    source_fini(s);
    object_session_free(TAKE_PTR(s->session));
    stopped = uploads_unwatch(r->s3->uploads, &watch);
    if (error && stopped) {
        r->message = SLICE_NULL; /* it was about the source */
        error = stopped;
    }
    return error;
}

enum s3_error s3_op_upload_part_copy(struct s3_request *r)
{
    struct copy_result result = {.element = "CopyPartResult"};
    struct source s;
    struct pulse pulse;
    enum s3_error error = put_refuse_keys(r);

    if (!error)
        error = source_init(&s, r);
    if (error)
        return error;
    pulse_start(&pulse, r);
    error = copy_watched(r, &s, &result);
    pulse_stop(&pulse);
    result.mtime_ns = sys->real_ns();
    return copy_reply(r, error, &result);
}

/* ---- abort ---- */

enum s3_error s3_op_abort_multipart_upload(struct s3_request *r)
{
    struct upload *w;
    enum s3_error error = multipart_find(r, &w);

    error = error ? parts_abort(r) : upload_abort(w);
    upload_unref(w);
    if (!error)
        reply_send(r, 204, NULL, SLICE_NULL);
    return error;
}

/* ---- listing parts ---- */

static void put_part(struct xml *x, const struct upload_part *p, enum checksum_kind kind, struct arena *a)
{
    char date[32], etag[UPLOAD_PART_ETAG_SIZE];

    text_iso8601(p->mtime_ns, date);
    upload_part_etag(p->md5, p->opaque, etag);
    xml_open(x, "Part");
    xml_u64(x, "PartNumber", p->number);
    xml_text(x, "LastModified", slice_str(date));
    xml_open(x, "ETag");
    xml_raw(x, SLICE_LIT("&quot;"));
    xml_chars(x, slice_str(etag));
    xml_raw(x, SLICE_LIT("&quot;"));
    xml_close(x, "ETag");
    xml_u64(x, "Size", p->size);
    if (p->has_sum)
        attributes_put_checksum(x, put_checksum_text(a, kind, p->sum));
    xml_close(x, "Part");
}

static enum s3_error parts_of(struct s3_request *r, struct upload_part **ret, size_t *ret_n,
                              struct part_sums *ret_sums)
{
    struct upload_result done;
    struct upload *w;
    enum s3_error error;

    if (multipart_find(r, &w) == S3_OK) {
        *ret = upload_parts(w, ret_n);
        *ret_sums = upload_sums(w);
        upload_unref(w);
        return S3_OK;
    }
    error = parts_list(r, ret, ret_n, ret_sums, &done);
    return error || !done.etag[0] ? error : S3_ERR_NO_SUCH_UPLOAD;
}

enum s3_error s3_op_list_parts(struct s3_request *r)
{
    _cleanup_buf_ struct buf b = BUF_INIT(S3_XML_MAX_BYTES);
    _cleanup_(arena_freep) struct arena *a = arena_new(PAGE_ARENA_BYTES);
    _cleanup_free_ struct upload_part *parts = NULL;
    struct part_sums sums;
    struct slice marker = request_query(r, "part-number-marker"), max = request_query(r, "max-parts");
    uint64_t after = 0, most = S3_LIST_MAX;
    struct xml x = {&b, 0};
    size_t n, from = 0, to;
    enum s3_error error;

    if ((marker.n && slice_u64(marker, &after)) || (max.n && slice_u64(max, &most)))
        return reply_refuse(r, S3_ERR_INVALID_ARGUMENT, "part-number-marker and max-parts must be numbers");
    error = parts_of(r, &parts, &n, &sums);
    if (error)
        return error;
    while (from < n && parts[from].number <= after)
        from++;
    to = from + MIN(MIN(most, (uint64_t)S3_LIST_MAX), n - from);
    xml_start(&x);
    xml_root(&x, "ListPartsResult");
    xml_text(&x, "Bucket", r->bucket);
    xml_text(&x, "Key", r->key);
    xml_text(&x, "UploadId", request_query(r, "uploadId"));
    xml_open(&x, "Initiator");
    xml_owner(&x, r->s3->node_id);
    xml_close(&x, "Initiator");
    xml_open(&x, "Owner");
    xml_owner(&x, r->s3->node_id);
    xml_close(&x, "Owner");
    xml_text(&x, "StorageClass", SLICE_LIT("STANDARD"));
    xml_u64(&x, "PartNumberMarker", after);
    xml_u64(&x, "NextPartNumberMarker", to > from ? parts[to - 1].number : after);
    xml_u64(&x, "MaxParts", MIN(most, (uint64_t)S3_LIST_MAX));
    xml_bool(&x, "IsTruncated", to < n && most > 0);
    if (sums.kind != CHECKSUM_NONE) {
        xml_text(&x, "ChecksumAlgorithm", slice_str(checksum_name(sums.kind)));
        xml_text(&x, "ChecksumType", slice_str(part_sums_type(sums.whole)));
    }
    for (size_t i = from; i < to; i++)
        put_part(&x, &parts[i], sums.kind, a);
    xml_close(&x, "ListPartsResult");
    if (x.status)
        return S3_ERR_INTERNAL;
    reply_send(r, 200, "application/xml", buf_view(&b));
    return S3_OK;
}
