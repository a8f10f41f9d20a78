/*
 * CompleteMultipartUpload: checks the client's list of parts, brings them in order, and commits.
 *
 * 1. The object has exactly the listed parts, in rising order; nothing is published when one is missing or
 * another.
 * 2. A completion that failed leaves the upload and the parts that it listed as they were: the client may try
 * again.
 * 3. The client hears something however long it takes (pulse.h).
 *
 * Of uploads whose parts are at the origin (parts.h) nothing is moved: the origin puts them together. Of
 * those on this node parts of equal size lie in order in the staged file already; others are copied into a
 * second one first, as are those of completions with conditions, which only a new write can carry.
 */
#include "s3/complete_list.h"
#include "s3/condition.h"
#include "s3/parts.h"
#include "s3/pulse.h"
#include "s3/xml.h"

#include "base/log.h"
#include "base/metrics.h"
#include "base/sys.h"
#include "base/text.h"

#define DOCUMENT_MAX_BYTES (8 * MIB)
#define COPY_BYTES         MIB
#define COMMIT_ARENA_BYTES (256 * KIB)

struct complete {
    struct s3_request *r;
    struct arena *arena;   /* of the list */
    struct slice bucket;   /* its identity */
    struct upload *upload; /* NULL: its parts are at the origin */
    struct upload_part *at_origin;
    size_t n_at_origin;
    struct part_sums sums;
    const struct complete_part *listed;
    size_t n;
    struct upload_part *parts;  /* the listed ones, in order */
    struct part_entry *entries; /* the same, for part_list.h */
    uint64_t total;
    struct slice checksum, list; /* kept with the object; in the arena */
    struct sink *target;         /* what is committed: the upload's own, or `second` */
    struct sink second;
};

/* ---- the client's list ---- */

static enum s3_error read_list(struct complete *c)
{
    _cleanup_buf_ struct buf document = BUF_INIT(DOCUMENT_MAX_BYTES);
    struct err e = {0};
    /* A checksum header of this request is one of the object, not of this document. */
    enum s3_error error = put_document(c->r, &document, /* with_checksum= */ false);

    if (error)
        return error;
    if (complete_list_read(buf_view(&document), c->arena, &c->listed, &c->n, &e)) {
        if (e.text[0])
            c->r->message = arena_dup(c->r->arena, slice_str(e.text));
        return S3_ERR_MALFORMED_XML;
    }
    return S3_OK;
}

/* Whether the part is what the client means: its ETag, and its checksum where the upload keeps that kind. */
static bool is_meant(const struct complete *c, const struct complete_part *l, const struct upload_part *p)
{
    struct slice sum;
    char etag[UPLOAD_PART_ETAG_SIZE];

    upload_part_etag(p->md5, p->opaque, etag);
    if (!slice_eq_case(l->etag, slice_str(etag)))
        return false;
    if (l->sum_kind == CHECKSUM_NONE || l->sum_kind != c->sums.kind || !p->has_sum)
        return true;
    sum = put_checksum_text(c->arena, l->sum_kind, p->sum);
    (void)slice_split(&sum, ' ');
    return slice_eq(sum, l->sum);
}

/* The listed parts out of those that are there. */
static enum s3_error choose_parts(struct complete *c)
{
    size_t n_all = c->n_at_origin, at = 0;
    _cleanup_free_ struct upload_part *copy = c->upload ? upload_parts(c->upload, &n_all) : NULL;
    const struct upload_part *all = copy ? copy : c->at_origin;

    if (!c->parts) {
        c->parts = arena_alloc(c->arena, c->n * sizeof c->parts[0]);
        c->entries = arena_alloc(c->arena, c->n * sizeof c->entries[0]);
    }
    c->total = 0;
    for (size_t i = 0; i < c->n; i++) {
        if (i > 0 && c->listed[i].number <= c->listed[i - 1].number)
            return S3_ERR_INVALID_PART_ORDER;
        while (at < n_all && all[at].number < c->listed[i].number)
            at++;
        if (at == n_all || all[at].number != c->listed[i].number)
            return S3_ERR_INVALID_PART;
        if (!is_meant(c, &c->listed[i], &all[at]))
            return S3_ERR_INVALID_PART;
        c->parts[i] = all[at];
        c->entries[i] =
            (struct part_entry){.number = all[at].number, .size = all[at].size, .has_sum = all[at].has_sum};
        memcpy(c->entries[i].sum, all[at].sum, sizeof all[at].sum);
        c->total += all[at].size;
    }
    for (size_t i = 0; i + 1 < c->n; i++)
        if (c->parts[i].size < UPLOAD_PART_MIN_BYTES)
            return S3_ERR_ENTITY_TOO_SMALL;
    return c->total > BODY_SIZE_MAX ? S3_ERR_ENTITY_TOO_LARGE : S3_OK;
}

/* ---- checksums ---- */

/* That of the object, when the client gave one. */
static enum checksum_kind given_checksum(const struct complete *c, struct slice *ret)
{
    for (size_t i = 0; i < c->r->http->n_headers; i++) {
        const struct http_header *h = &c->r->http->headers[i];
        enum checksum_kind kind = checksum_of_header(h->name);

        if (kind == CHECKSUM_NONE)
            continue;
        *ret = slice_trim(h->value);
        return kind;
    }
    return CHECKSUM_NONE;
}

/* Of the bytes on this node. */
static int sum_of_bytes(struct complete *c, enum checksum_kind kind, uint8_t digest[CHECKSUM_MAX_BYTES])
{
    _cleanup_free_ char *piece = malloc(COPY_BYTES);
    struct checksum sum;
    int status = 0;

    if (!piece)
        abort();
    checksum_init(&sum, kind);
    for (size_t i = 0; i < c->n && status == 0; i++) {
        for (uint64_t at = 0; at < c->parts[i].size && status == 0; at += COPY_BYTES) {
            size_t n = (size_t)MIN((uint64_t)COPY_BYTES, c->parts[i].size - at);

            status = sys_pread_all(upload_fd(c->upload), piece, n, c->parts[i].offset + at);
            checksum_update(&sum, piece, n);
        }
    }
    (void)checksum_final(&sum, digest);
    checksum_fini(&sum);
    return status;
}

/* Out of those of the parts, in the kept form; empty when they were not kept. */
static struct slice sum_of_parts(struct complete *c, const struct part_sums *sums)
{
    _cleanup_buf_ struct buf b = BUF_INIT(128);

    part_sums_of_object(sums, c->entries, c->n, &b);
    return arena_dup(c->arena, buf_view(&b));
}

/* What the object's checksum must be, of the kind and form that the client gives. Empty: nobody knows. */
static enum s3_error expected_checksum(struct complete *c, enum checksum_kind kind, bool whole,
                                       struct slice *ret)
{
    const struct part_sums asked = {kind, whole};
    uint8_t digest[CHECKSUM_MAX_BYTES];

    *ret = SLICE_LIT("");
    if (kind == c->sums.kind && whole == c->sums.whole) {
        *ret = c->checksum;
    } else if (kind == c->sums.kind && (!whole || checksum_combines(kind))) {
        *ret = sum_of_parts(c, &asked);
    } else if (c->upload && whole) {
        if (sum_of_bytes(c, kind, digest))
            return S3_ERR_INTERNAL;
        *ret = put_checksum_text(c->arena, kind, digest);
    }
    return S3_OK;
}

static enum s3_error check_headers(struct complete *c)
{
    struct slice type = request_header(c->r, "x-amz-checksum-type");
    struct slice size = request_header(c->r, "x-amz-mp-object-size");
    uint64_t bytes;
    size_t n = 0;

    for (size_t i = 0; i < c->r->http->n_headers; i++) {
        const struct slice name = c->r->http->headers[i].name;

        if (checksum_header_is_unknown(name))
            return reply_refuse(c->r, S3_ERR_NOT_IMPLEMENTED,
                                "checksums are CRC32, CRC32C, CRC64NVME, SHA1 and SHA256 here");
        n += checksum_of_header(name) != CHECKSUM_NONE;
    }
    if (n > 1)
        return reply_refuse(c->r, S3_ERR_INVALID_REQUEST, "only one x-amz-checksum header is allowed");
    if (type.n &&
        (c->sums.kind == CHECKSUM_NONE || !slice_eq_case(type, slice_str(part_sums_type(c->sums.whole)))))
        return reply_refuse(c->r, S3_ERR_INVALID_REQUEST,
                            "x-amz-checksum-type must be the one that the upload was begun with");
    if (size.p && (slice_u64(size, &bytes) || bytes != c->total))
        return reply_refuse(c->r, S3_ERR_INVALID_REQUEST,
                            "the parts have not the x-amz-mp-object-size given");
    return S3_OK;
}

/* Values of the two forms differ by "-N" behind that of the parts. */
static bool is_of_all_bytes(const struct complete *c, enum checksum_kind kind, struct slice given)
{
    bool possible = c->sums.whole || kind != c->sums.kind || checksum_combines(kind);

    return possible && slice_find(given, '-') < 0;
}

/* Makes the object's checksum out of its parts', and compares it with what the client says. */
static enum s3_error check_object(struct complete *c)
{
    struct slice given = SLICE_NULL, expected, value;
    enum checksum_kind kind = given_checksum(c, &given);
    enum s3_error error = check_headers(c);

    c->checksum = sum_of_parts(c, &c->sums);
    if (error || kind == CHECKSUM_NONE)
        return error;
    error = expected_checksum(c, kind, is_of_all_bytes(c, kind, given), &expected);
    if (!error && expected.n == 0)
        return reply_refuse(
            c->r, S3_ERR_INVALID_REQUEST,
            "this checksum of the object needs x-amz-checksum-algorithm, and -type FULL_OBJECT for "
            "one of all its bytes, at the start of the upload");
    if (error)
        return error;
    value = expected;
    (void)slice_split(&value, ' ');
    if (!slice_eq(given, value))
        return S3_ERR_BAD_DIGEST;
    if (c->checksum.n == 0)
        c->checksum = expected;
    return S3_OK;
}

/* ---- bringing the parts in order ---- */

static bool lies_in_order(const struct complete *c)
{
    uint64_t at = 0;

    for (size_t i = 0; i < c->n; i++) {
        if (c->parts[i].offset != at)
            return false;
        at += c->parts[i].size;
    }
    return true;
}

static int copy_bytes(int from, uint64_t offset, int to, uint64_t at, uint64_t n, char *piece)
{
    while (n > 0) {
        size_t part = (size_t)MIN(n, (uint64_t)COPY_BYTES);
        int status = sys_pread_all(from, piece, part, offset);

        if (status == 0)
            status = sys_pwrite_all(to, piece, part, at);
        if (status)
            return status;
        offset += part;
        at += part;
        n -= part;
    }
    return 0;
}

static int assemble(struct complete *c, struct err *e)
{
    _cleanup_free_ char *piece = malloc(COPY_BYTES);
    const struct sink *own = upload_sink(c->upload);
    uint64_t at = 0;
    int status;

    if (!piece)
        abort();
    status = upload_sync(c->upload);
    if (status)
        return err_errno(e, status, "write of the parts to the cache's disk");
    status = sink_open(&c->second, UINT64_MAX, e);
    if (status == 0 && own->upload[0])
        status = sink_join(&c->second, own->upload, e);
    if (status == 0)
        status = sink_room(&c->second, 0, c->total, e);
    for (size_t i = 0; i < c->n && status == 0; i++) {
        status = copy_bytes(own->fd, c->parts[i].offset, c->second.fd, at, c->parts[i].size, piece);
        if (status)
            (void)err_errno(e, status, "copy of part %u", c->parts[i].number);
        at += c->parts[i].size;
    }
    c->target = &c->second;
    return status;
}

/* As S3 makes them: the MD5 of the parts' MD5s, and how many there are. Origins make their own. */
static void name_etag(const struct complete *c, char ret[S3_ETAG_GIVEN_SIZE])
{
    uint8_t digest[CHECKSUM_MAX_BYTES];
    struct checksum sum;
    char hex[33];

    checksum_init(&sum, CHECKSUM_MD5);
    for (size_t i = 0; i < c->n; i++)
        checksum_update(&sum, c->parts[i].md5, sizeof c->parts[i].md5);
    text_hex(digest, checksum_final(&sum, digest), hex);
    checksum_fini(&sum);
    (void)snprintf(ret, S3_ETAG_GIVEN_SIZE, "%s-%zu", hex, c->n);
}

/* ---- the commit ---- */

struct commit {
    struct complete *c;
    struct arena *arena;
    struct wire_attr attr;
    struct err err;
};

/* The origin puts them together. */
static int commit_at_origin(struct commit *m)
{
    struct complete *c = m->c;
    _cleanup_buf_ struct buf lines = BUF_INIT(MIB);
    struct wire_upload_complete_req req = {.bucket = c->r->bucket,
                                           .key = c->r->key,
                                           .id = request_query(c->r, "uploadId"),
                                           .checksum = c->checksum,
                                           .if_match = c->second.open.if_match,
                                           .if_none_match = c->second.open.if_none_match,
                                           .via = WIRE_VIA_S3};
    struct wire_upload_complete_rep rep;
    int status;

    for (size_t i = 0; i < c->n; i++) {
        char hex[33];

        text_hex(c->parts[i].md5, sizeof c->parts[i].md5, hex);
        if (buf_printf(&lines, "%u %s\n", c->parts[i].number, hex))
            abort();
    }
    req.parts = buf_view(&lines);
    status = object_upload_complete(c->r->s3->session, &req, m->arena, &rep, &m->err);
    if (status)
        return status;
    uploads_tell_end(c->r->s3->uploads, req.id);
    m->attr = rep.attr;
    return 0;
}

static int arrange_and_commit(struct commit *m)
{
    struct complete *c = m->c;
    int status;

    if (!c->upload)
        return commit_at_origin(m);
    status = c->target ? 0 : assemble(c, &m->err);

    if (status)
        return status;
    c->target->open.meta = upload_meta(c->upload);
    c->target->ttl_ms = upload_sink(c->upload)->ttl_ms; /* from now on, not from the upload's beginning */
    c->target->written = c->total;
    c->target->checksum = c->checksum;
    c->target->parts = c->list;
    name_etag(c, c->target->etag);
    return sink_commit(c->target, SLICE_NULL, SLICE_NULL, m->arena, &m->attr, &m->err);
}

static void put_result(struct s3_request *r, struct xml *x, const void *arg)
{
    _cleanup_buf_ struct buf location = BUF_INIT(REPLY_LOCATION_MAX);
    const struct upload_result *result = arg;
    struct slice checksum = slice_str(result->checksum);

    if (reply_location(r, request_header(r, "host"), &location))
        buf_clear(&location);
    xml_root(x, "CompleteMultipartUploadResult");
    xml_text(x, "Location", buf_view(&location));
    xml_text(x, "Bucket", r->bucket);
    xml_text(x, "Key", r->key);
    xml_text(x, "ETag", slice_str(arena_printf(r->arena, "\"%s\"", result->etag)));
    attributes_put_checksum(x, checksum);
    if (checksum.n)
        xml_text(x, "ChecksumType", slice_str(put_kept_type(checksum)));
    xml_close(x, "CompleteMultipartUploadResult");
}

/* S3 tells a missing object from another one than If-Match names; an origin may say of both only that the
 * condition does not hold. */
static bool object_is_missing(struct s3_request *r)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(S3_ARENA_BYTES);
    struct wire_stat_req req = {.bucket = r->bucket, .key = r->key};
    struct wire_stat_rep rep;

    return object_stat(r->s3->session, &req, a, &rep, NULL) == -ENOENT;
}

static enum s3_error failed(const struct complete *c, int status, const struct err *e)
{
    if (status == ERR_PRECONDITION && c->second.open.if_match.n && object_is_missing(c->r))
        return S3_ERR_NO_SUCH_KEY;
    if (c->upload)
        return reply_failed(c->r, status, e);
    return status == -ESTALE   ? S3_ERR_INVALID_PART
           : status == -ENOENT ? S3_ERR_NO_SUCH_UPLOAD
                               : reply_failed(c->r, status, e);
}

/* Parts behind those that were listed are gone where the commit of the upload's own file has cut it. */
static void reopen(struct complete *c)
{
    if (c->target == upload_sink(c->upload))
        upload_lose_cut(c->upload, c->total);
    upload_reopen(c->upload);
}

static enum s3_error commit(struct complete *c, struct upload_result *ret)
{
    struct s3_request *r = c->r;
    struct commit m = {.c = c, .arena = arena_new(COMMIT_ARENA_BYTES)};
    enum s3_error error = S3_OK;
    int status = arrange_and_commit(&m);

    if (status) {
        error = failed(c, status, &m.err);
        if (c->upload)
            reopen(c);
    } else {
        (void)snprintf(ret->etag, sizeof ret->etag, SLICE_FMT, SLICE_ARG(m.attr.etag));
        (void)snprintf(ret->checksum, sizeof ret->checksum, SLICE_FMT, SLICE_ARG(c->checksum));
        if (c->upload)
            upload_finish(c->upload, m.attr.etag, c->checksum);
        expiration_header(r, &m.attr); /* lost when the head is gone by then */
    }
    arena_free(m.arena);
    return error;
}

/* ---- the operation ---- */

/* What is kept of the parts. */
static void make_list(struct complete *c)
{
    _cleanup_buf_ struct buf b = BUF_INIT(PART_LIST_MAX_BYTES);

    if (part_list_encode(&c->sums, c->entries, c->n, &b))
        abort();
    c->list = arena_dup(c->arena, buf_view(&b));
}

/* Where the object is put together, and under which conditions. */
static enum s3_error prepare(struct complete *c)
{
    struct s3_request *r = c->r;
    enum s3_error error = choose_parts(c);

    if (!error)
        error = check_object(c);
    if (!error)
        error = put_conditions(r, &c->second.open);
    if (!error && !c->upload && c->second.open.if_none_etag.n)
        error = reply_refuse(r, S3_ERR_NOT_IMPLEMENTED,
                             "If-None-Match of a completion in a bucket with an origin can only be *");
    if (error || !c->upload)
        return error;
    make_list(c);
    c->second.open.bucket = r->bucket;
    c->second.open.key = r->key;
    c->second.open.flags = WIRE_STAGED | WIRE_LASTING;
    c->second.open.content_type = upload_content_type(c->upload);
    c->second.open.meta = upload_meta(c->upload);
    if (lies_in_order(c) && !c->second.open.if_none_match && !c->second.open.if_match.n &&
        !c->second.open.if_none_etag.n)
        c->target = upload_sink(c->upload);
    return S3_OK;
}

/* What parts do with the disk is waited for, by so many threads at once as may wait for origins. */
static enum s3_error close_upload(struct complete *c)
{
    struct object_wait wait;

    object_wait_begin(c->r->s3->session, &wait);
    enum s3_error error = upload_close(c->upload);
    bool crowded = object_wait_end(&wait);
    if (error != S3_ERR_UNAVAILABLE || !crowded)
        return error;
    metrics_count(METRIC_CROWD_REFUSED, "parts", NULL, NULL);
    return reply_refuse(c->r, S3_ERR_SLOW_DOWN,
                        "half of the threads of this node wait for parts and origins; slow down");
}

static enum s3_error complete(struct complete *c, struct upload_result *ret)
{
    enum s3_error error = S3_OK;

    if (c->upload) /* a list that is refused stops no part that still comes */
        error = choose_parts(c);
    if (!error && c->upload)
        error = close_upload(c);
    if (error == S3_ERR_NO_SUCH_UPLOAD) { /* the same completion, sent twice, ended just now */
        uploads_completed(c->r->s3->uploads, request_query(c->r, "uploadId"), c->bucket, c->r->key, ret);
        return ret->etag[0] ? S3_OK : error;
    }
    if (error)
        return error;
    error = prepare(c);
    if (error) {
        if (c->upload)
            upload_reopen(c->upload);
        return error;
    }
    return commit(c, ret);
}

/* The upload, or what it has become already. */
static enum s3_error find(struct complete *c, struct upload_result *ret)
{
    struct s3_request *r = c->r;
    struct slice id = request_query(r, "uploadId");

    c->bucket = buckets_identity(r->s3, r->bucket, r->arena);
    c->upload = uploads_find(r->s3->uploads, id, c->bucket, r->key);
    if (c->upload) {
        c->sums = upload_sums(c->upload);
        return S3_OK;
    }
    uploads_completed(r->s3->uploads, id, c->bucket, r->key, ret);
    return ret->etag[0] ? S3_OK : parts_list(r, &c->at_origin, &c->n_at_origin, &c->sums, ret);
}

enum s3_error s3_op_complete_multipart_upload(struct s3_request *r)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(S3_ARENA_BYTES);
    struct complete c = {.r = r, .arena = a};
    struct upload_result done = {0};
    struct pulse pulse;
    enum s3_error error = find(&c, &done);

    if (error || done.etag[0]) {
        free(c.at_origin);
        return error ? error : pulse_answer(r, S3_OK, put_result, &done);
    }
    sink_init(&c.second, r->s3);
    error = read_list(&c);
    if (!error) { /* parts that still come, and checksums of all the bytes, take their time, too */
        pulse_start(&pulse, r);
        error = complete(&c, &done);
        pulse_stop(&pulse);
    }
    sink_fini(&c.second);
    upload_unref(c.upload);
    free(c.at_origin);
    return pulse_answer(r, error, put_result, &done);
}
