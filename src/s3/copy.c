/*
 * CopyObject. Within a bucket the origin copies by itself, and between buckets of one S3 service, with other
 * metadata and tags too; otherwise (another service, conditions on the target, a checksum to be computed, an
 * origin that cannot copy) the bytes are read and written here.
 *
 * 1. The copy has the bytes of exactly one version of the source.
 * 2. Metadata and tags come from the source, each unless the request says that it replaces them.
 * 3. A copy ends by itself only in a bucket that gives the space of such objects back.
 * 4. However long it takes the client hears something (pulse.h).
 */
#include "origin/meta.h"
#include "s3/part_list.h"
#include "s3/pulse.h"
#include "s3/sink.h"
#include "s3/source.h"
#include "s3/xml.h"

#include "base/log.h"
#include "base/text.h"

#define PIECE_BYTES MIB
#define TWICE_BYTES MIB /* read twice where that has the checksum known before anything is written */

/* What of a copy is not the source's. */
struct replaced {
    bool meta, tags;
    enum checksum_kind sum; /* asked for; NONE: it has the source's, where that is one of all bytes */
};

static enum s3_error read_directive(struct s3_request *r, const char *header, bool *ret_replace)
{
    struct slice directive = request_header(r, header);

    *ret_replace = slice_eq_str(directive, "REPLACE");
    if (directive.p && !*ret_replace && !slice_eq_str(directive, "COPY"))
        return reply_refuse(r, S3_ERR_INVALID_ARGUMENT,
                            arena_printf(r->arena, "%s must be COPY or REPLACE", header));
    return S3_OK;
}

/* The checksum that the copy is to have. */
static enum s3_error read_algorithm(struct s3_request *r, enum checksum_kind *ret)
{
    const char *reason = NULL;
    struct part_sums sums;
    enum s3_error error =
        part_sums_plan(request_header(r, "x-amz-checksum-algorithm"), SLICE_NULL, &sums, &reason);

    if (error)
        return reply_refuse(r, error, reason);
    *ret = sums.kind;
    return S3_OK;
}

static int copy_at_origin(struct s3_request *r, const struct source *s, struct wire_attr *ret, struct err *e)
{
    struct wire_copy_req req = {.bucket = r->bucket, .from = s->key, .to = r->key};
    struct wire_copy_rep rep;
    int status = object_copy(r->s3->session, &req, r->arena, &rep, e);

    if (status == 0)
        *ret = rep.attr;
    return status;
}

/* The same where the copy differs from its source, or that is in another bucket of the service. What was
 * replaced since it was looked at is read here. *ret_error: of the look, when it is not OK. */
static int copy_beside(struct s3_request *r, struct source *s, struct replaced replaced, struct slice type,
                       struct slice meta, struct wire_attr *ret, enum s3_error *ret_error, struct err *e)
{
    struct wire_copy_from_req req = {.bucket = r->bucket,
                                     .key = r->key,
                                     .source_bucket = s->bucket,
                                     .source_key = s->key,
                                     .replace_meta = replaced.meta,
                                     .replace_tags = replaced.tags,
                                     .content_type = type,
                                     .meta = meta};
    struct wire_copy_from_rep rep;
    int status;

    if (replaced.sum != CHECKSUM_NONE || put_ttl_ms(r) || !source_may_be_beside(s))
        return ERR_NOT_IMPLEMENTED;
    *ret_error = source_look(s);
    if (*ret_error)
        return ERR_NOT_IMPLEMENTED;
    req.if_match = s->attr.etag;
    status = object_copy_from(r->s3->session, &req, r->arena, &rep, e);
    if (status == ERR_PRECONDITION)
        status = ERR_NOT_IMPLEMENTED;
    if (status == 0)
        *ret = rep.attr;
    return status;
}

/* The metadata with the checksum of the source's bytes. */
static enum s3_error sum_first(struct s3_request *r, struct source *s, enum checksum_kind kind,
                               struct slice *meta)
{
    uint8_t digest[CHECKSUM_MAX_BYTES];
    struct checksum sum;
    struct slice piece = SLICE_NULL;
    enum s3_error error = S3_OK;

    checksum_init(&sum, kind);
    for (uint64_t at = 0; !error && at < s->attr.size_bytes; at += piece.n) {
        error = source_read(s, at, s->attr.size_bytes - at, &piece);
        if (error)
            break;
        checksum_update(&sum, piece.p, piece.n);
    }
    if (!error) {
        (void)checksum_final(&sum, digest);
        error = put_own_line(r, *meta, META_CHECKSUM, put_checksum_text(r->arena, kind, digest), meta);
    }
    checksum_fini(&sum);
    return error;
}

/* md5: of the bytes, for the ETag, computed while they are written; NULL where nobody wants it. */
static enum s3_error copy_bytes(struct s3_request *r, struct source *s, struct sink *k,
                                struct hasher_stream *md5, struct checksum *sum, struct wire_attr *ret)
{
    uint8_t digest[CHECKSUM_MAX_BYTES], md5_digest[MD5_BYTES];
    struct err e = {0};
    int status = sink_open(k, s->attr.size_bytes, &e);

    while (status == 0 && k->written < s->attr.size_bytes) {
        struct slice piece;
        enum s3_error error =
            source_read(s, k->written, MIN(PIECE_BYTES, s->attr.size_bytes - k->written), &piece);

        if (error)
            return error;
        if (md5)
            hasher_stream_add(md5, piece.p, piece.n);
        checksum_update(sum, piece.p, piece.n);
        status = sink_write(k, piece.p, piece.n, &e);
        if (md5)
            hasher_stream_wait(md5, piece.p, piece.n);
    }
    if (status == 0 && md5) {
        hasher_stream_digest(md5, md5_digest);
        text_hex(md5_digest, sizeof md5_digest, k->etag);
    }
    if (status == 0 && sum->kind != CHECKSUM_NONE) {
        (void)checksum_final(sum, digest);
        k->checksum = put_checksum_text(r->arena, sum->kind, digest);
    }
    if (status == 0)
        status = sink_commit(k, SLICE_NULL, SLICE_NULL, r->arena, ret, &e);
    return status ? reply_failed(r, status, &e) : S3_OK;
}

enum s3_error copy_rewrite(struct s3_request *r, struct source *s, const struct copy_target *target,
                           struct wire_attr *ret)
{
    bool twice = target->sum != CHECKSUM_NONE && s->attr.size_bytes <= TWICE_BYTES;
    struct hasher_stream md5;
    struct checksum sum;
    struct sink k;
    enum s3_error error = S3_OK;
    bool hashes;

    sink_init(&k, r->s3);
    k.open.bucket = r->bucket;
    k.open.key = r->key;
    k.open.content_type = target->type;
    k.open.meta = target->meta;
    k.ttl_ms = target->ttl_ms;
    k.open.if_match = target->to->if_match;
    k.open.if_none_match = target->to->if_none_match;
    k.open.if_none_etag = target->to->if_none_etag;
    hashes = put_hashes(r, s->attr.size_bytes);
    if (hashes)
        k.open.flags |= WIRE_ETAG;
    if (twice)
        error = sum_first(r, s, target->sum, &k.open.meta);
    hasher_stream_init(&md5, hashes ? r->s3->hasher : NULL);
    checksum_init(&sum, twice ? CHECKSUM_NONE : target->sum);
    if (!error)
        error = copy_bytes(r, s, &k, hashes ? &md5 : NULL, &sum, ret);
    checksum_fini(&sum);
    hasher_stream_fini(&md5);
    sink_fini(&k);
    return error;
}

/* The end of its own that the copy has: the one that is asked for, else the source's. */
static struct slice end_of(struct s3_request *r, const struct source *s, struct replaced replaced,
                           struct slice asked_meta)
{
    struct slice end = meta_get(asked_meta, META_EXPIRES);

    if (end.n || replaced.meta)
        return end;
    end = meta_get(s->attr.meta, META_EXPIRES);
    return end.n && put_may_end(r) ? end : SLICE_LIT("");
}

static enum s3_error tags_of(struct s3_request *r, const struct source *s, struct replaced replaced,
                             struct slice asked_meta, struct slice *ret)
{
    struct err e = {0};
    int status = 0;

    *ret = meta_get(asked_meta, META_TAGS);
    if (!replaced.tags)
        status = tagging_of_object(r->s3, s->bucket, s->key, &s->attr, r->arena, ret, &e);
    if (status == -EOPNOTSUPP || status == ERR_ORIGIN_DENIED) { /* as where the origin copies in parts */
        log_warn("s3", "%s: the copy has no tags: %s", r->id, e.text);
        *ret = SLICE_LIT("");
        return S3_OK;
    }
    return status ? reply_failed(r, status, &e) : S3_OK;
}

static enum s3_error copy_here(struct s3_request *r, struct source *s, struct replaced replaced,
                               const struct wire_put_open_req *to, struct wire_attr *ret)
{
    struct slice meta, asked_type, asked_meta, tags, sum;
    struct copy_target target = {.to = to, .ttl_ms = put_ttl_ms(r), .sum = replaced.sum};
    enum s3_error error = source_open(s, 0, UINT64_MAX);

    if (!error)
        error = put_metadata(r, &asked_type, &asked_meta);
    if (error)
        return error;
    target.type = replaced.meta ? asked_type : s->attr.content_type;
    meta = replaced.meta ? asked_meta : s->attr.meta;
    error = tags_of(r, s, replaced, asked_meta, &tags);
    if (!error)
        error = put_own_line(r, meta, META_TAGS, tags, &meta);
    if (!error)
        error = put_own_line(r, meta, META_TAG_COUNT, SLICE_LIT(""), &meta);
    if (!error)
        error = put_own_line(r, meta, META_EXPIRES, end_of(r, s, replaced, asked_meta), &meta);
    sum = meta_get(s->attr.meta, META_CHECKSUM);
    if (replaced.sum != CHECKSUM_NONE || slice_find(sum, '-') >= 0) /* of parts, which the copy has not */
        sum = SLICE_LIT("");
    if (!error) /* the bytes are the same, so is their checksum */
        error = put_own_line(r, meta, META_CHECKSUM, sum, &target.meta);
    return error ? error : copy_rewrite(r, s, &target, ret);
}

static bool has_conditions(const struct wire_put_open_req *to)
{
    return to->if_none_match || to->if_match.n > 0 || to->if_none_etag.n > 0;
}

static enum s3_error copy(struct s3_request *r, struct source *s, struct wire_attr *ret)
{
    bool replace, same_bucket = slice_eq(s->bucket, r->bucket);
    struct wire_put_open_req to = {0}; /* its conditions */
    struct replaced replaced = {0};
    struct slice type, meta;
    struct err e = {0};
    enum s3_error error = read_directive(r, "x-amz-metadata-directive", &replaced.meta);
    int status;

    if (!error)
        error = read_directive(r, "x-amz-tagging-directive", &replaced.tags);
    if (!error)
        error = read_algorithm(r, &replaced.sum);
    replace = !error && (replaced.meta || replaced.tags || replaced.sum != CHECKSUM_NONE ||
                         request_header(r, "x-forebay-ttl").p);
    if (!error)
        error = put_metadata(r, &type, &meta); /* for what it refuses */
    if (!error)
        error = put_conditions(r, &to);
    if (error)
        return error;
    if (same_bucket && slice_eq(s->key, r->key) && !replace)
        return reply_refuse(r, S3_ERR_INVALID_REQUEST,
                            "a copy onto itself must change something: use x-amz-metadata-directive REPLACE");
    if (!has_conditions(&to)) {
        status = same_bucket && !replace && !source_has_conditions(r)
                     ? copy_at_origin(r, s, ret, &e)
                     : copy_beside(r, s, replaced, type, meta, ret, &error, &e);
        if (status == 0 || error)
            return error;
        if (status != ERR_NOT_IMPLEMENTED)
            return reply_failed(r, status, &e);
    }
    return copy_here(r, s, replaced, &to, ret);
}

static void put_result(struct s3_request *r, struct xml *x, const void *arg)
{
    const struct copy_result *result = arg;
    char date[32], quoted[REPLY_ETAG_TEXT_MAX];

    (void)r;
    text_iso8601(result->mtime_ns, date);
    xml_root(x, result->element);
    xml_text(x, "LastModified", slice_str(date));
    xml_text(x, "ETag", slice_str(reply_etag_text(result->etag, quoted)));
    attributes_put_checksum(x, result->checksum);
    xml_close(x, result->element);
}

enum s3_error copy_reply(struct s3_request *r, enum s3_error error, const struct copy_result *result)
{
    return pulse_answer(r, error, put_result, result);
}

enum s3_error s3_op_copy_object(struct s3_request *r)
{
    struct copy_result result = {.element = "CopyObjectResult"};
    struct source s;
    struct wire_attr attr;
    struct pulse pulse;
    enum s3_error error = source_init(&s, r);

    if (error)
        return error;
    pulse_start(&pulse, r);
    error = copy(r, &s, &attr);
    source_fini(&s);
    pulse_stop(&pulse);
    if (!error) {
        expiration_header(r, &attr);
        result.etag = attr.etag;
        result.mtime_ns = attr.mtime_ns;
        result.checksum = meta_get(attr.meta, META_CHECKSUM);
    }
    return copy_reply(r, error, &result);
}
