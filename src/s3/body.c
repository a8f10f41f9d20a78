/*
 * Request bodies (contract in body.h).
 *
 * 1. body_read gives 0 only after length, SHA-256, MD5, checksum and all chunk signatures were compared.
 * 2. No more payload comes out than was announced.
 * 3. Memory whose bytes the hasher still needs is not read into.
 *
 * Failure modes: a peer that stops gives REQUEST_TIMEOUT, one that goes away or sends too little
 * INCOMPLETE_BODY, no memory of this machine's UNAVAILABLE, one whose bytes differ from what it promised
 * SHA256_MISMATCH or BAD_DIGEST.
 */
#include "s3/body.h"

#include "base/text.h"

#define REFUSE(error, reason) (*ret_reason = (reason), S3_ERR_##error)

static int digest_of_base64(struct slice text, uint8_t *ret, size_t n)
{
    _cleanup_buf_ struct buf b = BUF_INIT(CHECKSUM_BASE64_MAX + CHECKSUM_MAX_BYTES);

    if (text.n > CHECKSUM_BASE64_MAX || text_unbase64(&b, text) || b.n != n)
        return -EINVAL;
    memcpy(ret, b.p, n);
    return 0;
}

static enum s3_error plan_payload(struct slice hash, struct body_plan *p, const char **ret_reason)
{
    if (slice_eq_str(hash, "STREAMING-AWS4-HMAC-SHA256-PAYLOAD")) {
        p->aws_chunked = p->chunks_signed = true;
    } else if (slice_eq_str(hash, "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER")) {
        p->aws_chunked = p->chunks_signed = p->has_trailer = true;
    } else if (slice_eq_str(hash, "STREAMING-UNSIGNED-PAYLOAD-TRAILER")) {
        p->aws_chunked = p->has_trailer = true;
    } else if (hash.n == 64 && text_unhex(hash, p->sha256, 32) == 0) {
        p->has_sha256 = true;
    } else if (!slice_eq_str(hash, "UNSIGNED-PAYLOAD")) {
        return REFUSE(INVALID_ARGUMENT,
                      "x-amz-content-sha256 must be a SHA-256 in hex, UNSIGNED-PAYLOAD, or one of "
                      "the STREAMING values for AWS4-HMAC-SHA256");
    }
    return S3_OK;
}

static enum s3_error plan_size(const struct http_request *r, struct body_plan *p, const char **ret_reason)
{
    struct slice decoded = http_header(r, "x-amz-decoded-content-length");

    if (p->aws_chunked) {
        if (!decoded.p)
            return REFUSE(MISSING_LENGTH, "x-amz-decoded-content-length is missing");
        if (slice_u64(decoded, &p->size_bytes))
            return REFUSE(INVALID_ARGUMENT, "x-amz-decoded-content-length is not a number");
    } else if (r->has_length) {
        p->size_bytes = r->content_length;
    } else {
        p->size_bytes = r->chunked ? BODY_SIZE_UNKNOWN : 0;
    }
    if (p->size_bytes != BODY_SIZE_UNKNOWN && p->size_bytes > BODY_SIZE_MAX)
        return S3_ERR_ENTITY_TOO_LARGE;
    return S3_OK;
}

static enum s3_error plan_checksum(const struct http_request *r, bool with_header, struct body_plan *p,
                                   const char **ret_reason)
{
    struct slice trailer = http_header(r, "x-amz-trailer");

    for (size_t i = 0; with_header && i < r->n_headers; i++) {
        const struct http_header *h = &r->headers[i];
        enum checksum_kind kind = checksum_of_header(h->name);

        if (checksum_header_is_unknown(h->name))
            return REFUSE(NOT_IMPLEMENTED, "checksums are CRC32, CRC32C, CRC64NVME, SHA1 and SHA256 here");
        if (kind == CHECKSUM_NONE)
            continue;
        if (p->kind != CHECKSUM_NONE)
            return REFUSE(INVALID_REQUEST, "only one x-amz-checksum header is allowed");
        p->kind = kind;
        if (digest_of_base64(h->value, p->value, checksum_bytes(kind))) /* no body can have it */
            return REFUSE(BAD_DIGEST, "the value of the x-amz-checksum header is not the base64 form of one");
    }
    if (!trailer.p || trailer.n == 0)
        return S3_OK;
    if (!p->has_trailer)
        return REFUSE(MALFORMED_TRAILER, "x-amz-trailer needs an x-amz-content-sha256 that ends in TRAILER");
    if (p->kind != CHECKSUM_NONE)
        return REFUSE(INVALID_REQUEST, "a checksum may be in a header or in the trailer, not in both");
    p->kind = checksum_of_header(trailer);
    if (p->kind == CHECKSUM_NONE)
        return REFUSE(INVALID_REQUEST, "x-amz-trailer must name one x-amz-checksum header");
    p->in_trailer = true;
    return S3_OK;
}

/* SDKs name the kind of the checksum that they send. A name without one is refused, as in S3, but where
 * Content-MD5 is there for the same end; and so is the name of another one. */
static enum s3_error check_named(const struct http_request *r, const struct body_plan *p, bool has_md5,
                                 const char **ret_reason)
{
    struct slice name = http_header(r, "x-amz-sdk-checksum-algorithm");
    enum checksum_kind kind = checksum_of_name(name);

    if (name.n == 0)
        return S3_OK;
    if (kind == CHECKSUM_NONE || (p->kind != CHECKSUM_NONE && p->kind != kind))
        return REFUSE(INVALID_REQUEST, "Value for x-amz-sdk-checksum-algorithm header is invalid.");
    if (p->kind == CHECKSUM_NONE && !has_md5)
        return REFUSE(INVALID_REQUEST, "x-amz-sdk-checksum-algorithm specified, but no corresponding "
                                       "x-amz-checksum-* or x-amz-trailer headers were found.");
    return S3_OK;
}

enum s3_error body_plan(const struct http_request *r, struct slice payload_hash, bool with_checksum,
                        struct body_plan *ret, const char **ret_reason)
{
    struct body_plan p = {0};
    struct slice md5 = http_header(r, "content-md5");
    enum s3_error error = plan_payload(payload_hash, &p, ret_reason);

    if (!error)
        error = plan_size(r, &p, ret_reason);
    if (!error)
        error = plan_checksum(r, with_checksum, &p, ret_reason);
    if (!error && with_checksum)
        error = check_named(r, &p, md5.p != NULL, ret_reason);
    if (error)
        return error;
    if (md5.p) {
        if (digest_of_base64(md5, p.md5, sizeof p.md5))
            return S3_ERR_INVALID_DIGEST;
        p.has_md5 = true;
    }
    *ret = p;
    return S3_OK;
}

void body_init(struct body *b, const struct body_plan *plan, const struct chunked_signing *signing,
               body_source_fn source, void *arg)
{
    assert(source && plan->chunks_signed == (signing != NULL));
    *b = (struct body){.plan = *plan, .source = source, .arg = arg, .has_md5 = plan->has_md5};
    chunked_init(&b->chunked, signing, plan->has_trailer);
    checksum_init(&b->sha256, plan->has_sha256 ? CHECKSUM_SHA256 : CHECKSUM_NONE);
    checksum_init(&b->extra, plan->kind);
    hasher_stream_init(&b->md5, NULL);
}

void body_want_md5(struct body *b, struct hasher *h)
{
    assert(b->source && b->got == 0 && !b->raw_ended && !b->beside);
    b->has_md5 = true;
    b->beside = h && b->plan.size_bytes >= BODY_BESIDE_MIN_BYTES;
    if (b->beside)
        hasher_stream_init(&b->md5, h);
}

void body_fini(struct body *b)
{
    chunked_fini(&b->chunked);
    checksum_fini(&b->sha256);
    hasher_stream_fini(&b->md5);
    checksum_fini(&b->extra);
}

static ssize_t fail(struct body *b, enum s3_error error)
{
    b->error = error;
    return -1;
}

static bool differs(struct checksum *c, const uint8_t *expected, uint8_t *ret_digest)
{
    size_t n = checksum_final(c, ret_digest);

    return memcmp(ret_digest, expected, n) != 0;
}

static enum s3_error check_end(struct body *b)
{
    uint8_t digest[CHECKSUM_MAX_BYTES];
    const struct body_plan *p = &b->plan;

    if (p->aws_chunked && !chunked_done(&b->chunked))
        return S3_ERR_INCOMPLETE_BODY;
    if (p->size_bytes != BODY_SIZE_UNKNOWN && b->got != p->size_bytes)
        return S3_ERR_INCOMPLETE_BODY;
    if (p->has_sha256 && differs(&b->sha256, p->sha256, digest))
        return S3_ERR_SHA256_MISMATCH;
    if (b->has_md5)
        hasher_stream_digest(&b->md5, b->md5_digest);
    if (p->has_md5 && memcmp(b->md5_digest, p->md5, sizeof p->md5) != 0)
        return S3_ERR_BAD_DIGEST;
    /* What was not announced would count for nothing, though its sender believes that it was looked at. */
    if (p->has_trailer && chunked_trailer_lines(&b->chunked) > (p->in_trailer ? 1 : 0))
        return S3_ERR_MALFORMED_TRAILER;
    if (p->in_trailer) {
        char name[64];

        (void)snprintf(name, sizeof name, "x-amz-checksum-%s", checksum_suffix(p->kind));
        if (digest_of_base64(chunked_trailer(&b->chunked, name), b->plan.value, checksum_bytes(p->kind)))
            return S3_ERR_MALFORMED_TRAILER;
    }
    if (p->kind != CHECKSUM_NONE && differs(&b->extra, p->value, b->extra_digest))
        return S3_ERR_BAD_DIGEST;
    return S3_OK;
}

/* Takes the coding off n raw bytes at p, in place: payload moves to the front. Gives its length, or -1. */
static ssize_t decode(struct body *b, char *p, size_t n)
{
    size_t out = 0;

    for (size_t at = 0; at < n;) {
        struct slice payload;
        size_t used;
        enum s3_error error = chunked_feed(&b->chunked, slice_of(p + at, n - at), &used, &payload);

        if (error)
            return fail(b, error);
        if (payload.n)
            memmove(p + out, payload.p, payload.n);
        out += payload.n;
        at += used;
    }
    return (ssize_t)out;
}

enum s3_error body_source_error(ssize_t n)
{
    return n == -ETIMEDOUT                 ? S3_ERR_REQUEST_TIMEOUT
           : n == -ENOMEM || n == -ENOBUFS ? S3_ERR_UNAVAILABLE
                                           : S3_ERR_INCOMPLETE_BODY;
}

static ssize_t read_raw(struct body *b, void *p, size_t n)
{
    ssize_t got = b->source(b->arg, p, n);

    if (got == 0)
        b->raw_ended = true;
    if (got >= 0)
        return got;
    return fail(b, body_source_error(got));
}

/* As body_read, but 0 is only the end, of which nothing was checked yet; without the MD5. */
static ssize_t read_payload(struct body *b, void *p, size_t n)
{
    ssize_t got = 0;

    assert(n > 0);
    if (b->error)
        return -1;
    while (got == 0 && !b->raw_ended) {
        got = read_raw(b, p, n);
        if (got > 0 && b->plan.aws_chunked)
            got = decode(b, p, (size_t)got);
    }
    if (got <= 0)
        return got;
    b->got += (uint64_t)got;
    if (b->got > MIN(b->plan.size_bytes, BODY_SIZE_MAX))
        return fail(b, b->plan.size_bytes == BODY_SIZE_UNKNOWN ? S3_ERR_ENTITY_TOO_LARGE
                                                               : S3_ERR_INCOMPLETE_BODY);
    checksum_update(&b->sha256, p, (size_t)got);
    checksum_update(&b->extra, p, (size_t)got);
    return got;
}

/* All of it was read: 0, or -1. */
static ssize_t end(struct body *b)
{
    if (!b->ended) {
        b->error = check_end(b);
        b->ended = !b->error;
    }
    return b->error ? -1 : 0;
}

ssize_t body_read(struct body *b, void *p, size_t n)
{
    ssize_t got = read_payload(b, p, n);

    assert(!b->beside);
    if (got > 0 && b->has_md5)
        hasher_stream_add(&b->md5, p, (size_t)got);
    return got ? got : end(b);
}

/* Fills the memory, and has it hashed while the caller goes on. */
static ssize_t read_beside(struct body *b, char *p, size_t n)
{
    size_t got = 0;
    ssize_t more = 1;

    hasher_stream_wait(&b->md5, p, n);
    while (got < n && more > 0) {
        more = read_payload(b, p + got, n - got);
        if (more < 0)
            return -1;
        got += (size_t)more;
    }
    hasher_stream_add(&b->md5, p, got);
    return more == 0 && end(b) < 0 ? -1 : (ssize_t)got;
}

ssize_t body_read_full(struct body *b, void *p, size_t n)
{
    size_t got = 0;

    if (b->beside)
        return read_beside(b, p, n);
    while (got < n) {
        ssize_t more = body_read(b, (char *)p + got, n - got);

        if (more < 0)
            return -1;
        if (more == 0)
            break;
        got += (size_t)more;
    }
    return (ssize_t)got;
}
