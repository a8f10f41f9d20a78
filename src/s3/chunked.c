/*
 * aws-chunked decoder (contract and grammar in chunked.h).
 *
 * 1. CHUNKED_DONE is reached only through the empty line after the chunk of size 0, and, when chunks are
 * signed, only after every chunk's signature and the trailer's were compared.
 * 2. Each byte of input is looked at once; lines are bounded by CHUNKED_LINE_MAX, the trailer by
 * CHUNKED_TRAILER_MAX.
 *
 * Failure modes: a broken line or size gives INCOMPLETE_BODY (the peer and we disagree where chunks end), a
 * wrong signature SIGNATURE, a trailer that was not announced MALFORMED_TRAILER.
 */
#include "s3/chunked.h"

#include "base/text.h"

#define SIGNATURE_FIELD   ";chunk-signature="
#define TRAILER_SIGNATURE "x-amz-trailer-signature"

void chunked_init(struct chunked *c, const struct chunked_signing *signing, bool has_trailer)
{
    *c = (struct chunked){
        .is_signed = signing != NULL, .has_trailer = has_trailer, .trailer = BUF_INIT(CHUNKED_TRAILER_MAX)};
    if (signing)
        c->signing = *signing;
}

void chunked_fini(struct chunked *c)
{
    checksum_fini(&c->hash);
    buf_fini(&c->trailer);
}

/* Signs "ALGORITHM time scope previous-signature [hash of nothing] hash" and compares; then it is the
 * previous one. */
static enum s3_error check_signature(struct chunked *c, const char *algorithm, bool with_empty_hash,
                                     const char *hash_hex, const char *claimed)
{
    char text[640], empty[65], hex[65];
    uint8_t mac[32];
    int n;

    sigv4_sha256_hex(SLICE_NULL, empty);
    n = snprintf(text, sizeof text, "%s\n%s\n%s\n%s\n%s%s%s", algorithm, c->signing.time, c->signing.scope,
                 c->signing.previous, with_empty_hash ? empty : "", with_empty_hash ? "\n" : "", hash_hex);
    assert(n > 0 && (size_t)n < sizeof text);
    sigv4_hmac(&c->signing.key, slice_of(text, (size_t)n), mac);
    text_hex(mac, sizeof mac, hex);
    if (!sigv4_equal(slice_str(hex), slice_str(claimed)))
        return S3_ERR_SIGNATURE;
    memcpy(c->signing.previous, hex, sizeof hex);
    return S3_OK;
}

static enum s3_error end_chunk(struct chunked *c)
{
    uint8_t digest[CHECKSUM_MAX_BYTES];
    char hex[65];

    if (!c->is_signed)
        return S3_OK;
    (void)checksum_final(&c->hash, digest);
    checksum_fini(&c->hash);
    text_hex(digest, 32, hex);
    return check_signature(c, "AWS4-HMAC-SHA256-PAYLOAD", true, hex, c->claimed);
}

static enum s3_error begin_chunk(struct chunked *c, struct slice line)
{
    const struct slice field = SLICE_LIT(SIGNATURE_FIELD);
    ssize_t semicolon = slice_find(line, ';');
    struct slice size = semicolon < 0 ? line : slice_sub(line, 0, (size_t)semicolon);
    struct slice extension = semicolon < 0 ? SLICE_NULL : slice_from(line, (size_t)semicolon);
    uint64_t n = 0;

    if (size.n == 0 || size.n > 15)
        return S3_ERR_INCOMPLETE_BODY;
    for (size_t i = 0; i < size.n; i++) {
        char ch = size.p[i];
        int digit = ch >= '0' && ch <= '9'   ? ch - '0'
                    : ch >= 'a' && ch <= 'f' ? ch - 'a' + 10
                    : ch >= 'A' && ch <= 'F' ? ch - 'A' + 10
                                             : -1;
        if (digit < 0)
            return S3_ERR_INCOMPLETE_BODY;
        n = n << 4 | (uint64_t)digit;
    }
    if (c->is_signed) {
        if (!slice_starts(extension, field) || extension.n != field.n + SIGV4_SIGNATURE_LEN)
            return S3_ERR_SIGNATURE;
        memcpy(c->claimed, extension.p + field.n, SIGV4_SIGNATURE_LEN);
        checksum_init(&c->hash, CHECKSUM_SHA256);
    }
    c->left = n;
    c->last = n == 0;
    if (!c->last) {
        c->state = CHUNKED_PAYLOAD;
        return S3_OK;
    }
    c->state = CHUNKED_TRAILER;
    return end_chunk(c);
}

static enum s3_error end_body(struct chunked *c)
{
    if (c->is_signed && c->has_trailer && !c->trailer_signed)
        return S3_ERR_SIGNATURE;
    c->state = CHUNKED_DONE;
    return S3_OK;
}

static enum s3_error trailer_line(struct chunked *c, struct slice line)
{
    struct slice value = line, name = slice_trim(slice_split(&value, ':'));

    value = slice_trim(value);
    if (line.n == 0)
        return end_body(c);
    if (!c->has_trailer || name.n == 0 || c->trailer_signed)
        return S3_ERR_MALFORMED_TRAILER;
    if (slice_eq_case(name, SLICE_LIT(TRAILER_SIGNATURE))) {
        char hex[65], claimed[SIGV4_SIGNATURE_LEN + 1] = {0};

        if (value.n != SIGV4_SIGNATURE_LEN)
            return S3_ERR_SIGNATURE;
        memcpy(claimed, value.p, value.n);
        c->trailer_signed = true;
        if (!c->is_signed)
            return S3_OK;
        sigv4_sha256_hex(buf_view(&c->trailer), hex);
        return check_signature(c, "AWS4-HMAC-SHA256-TRAILER", false, hex, claimed);
    }
    for (size_t i = 0; i < name.n; i++) {
        char ch = name.p[i];

        if (buf_char(&c->trailer, ch >= 'A' && ch <= 'Z' ? (char)(ch + 32) : ch))
            return S3_ERR_MALFORMED_TRAILER;
    }
    if (buf_char(&c->trailer, ':') || buf_slice(&c->trailer, value) || buf_char(&c->trailer, '\n'))
        return S3_ERR_MALFORMED_TRAILER;
    return S3_OK;
}

/* Collects a line up to CRLF. A line feed before it, as some signers write between trailer and signature, is
 * dropped with the blanks around the value. */
static enum s3_error line_byte(struct chunked *c, char ch)
{
    struct slice line;

    if (ch != '\n' || c->line_n == 0 || c->line[c->line_n - 1] != '\r') {
        if (c->line_n == sizeof c->line)
            return S3_ERR_INCOMPLETE_BODY;
        c->line[c->line_n++] = ch;
        return S3_OK;
    }
    line = slice_of(c->line, c->line_n - 1);
    c->line_n = 0;
    if (c->state == CHUNKED_LINE)
        return begin_chunk(c, line);
    if (line.n > 0 && line.p[line.n - 1] == '\n')
        line.n--;
    return trailer_line(c, line);
}

enum s3_error chunked_feed(struct chunked *c, struct slice in, size_t *ret_used, struct slice *ret_payload)
{
    size_t i = 0;

    *ret_payload = SLICE_NULL;
    while (i < in.n) {
        enum s3_error error = S3_OK;

        switch (c->state) {
        case CHUNKED_LINE:
        case CHUNKED_TRAILER:
            error = line_byte(c, in.p[i++]);
            break;
        case CHUNKED_PAYLOAD:
            *ret_payload = slice_sub(in, i, MIN(c->left, in.n - i));
            checksum_update(&c->hash, ret_payload->p, ret_payload->n);
            c->left -= ret_payload->n;
            c->state = c->left ? CHUNKED_PAYLOAD : CHUNKED_CR;
            *ret_used = i + ret_payload->n;
            return S3_OK;
        case CHUNKED_CR:
            error = in.p[i++] == '\r' ? S3_OK : S3_ERR_INCOMPLETE_BODY;
            c->state = CHUNKED_LF;
            break;
        case CHUNKED_LF:
            error = in.p[i++] == '\n' ? end_chunk(c) : S3_ERR_INCOMPLETE_BODY;
            c->state = CHUNKED_LINE;
            break;
        case CHUNKED_DONE:
            error = S3_ERR_INCOMPLETE_BODY;
        }
        if (error)
            return error;
    }
    *ret_used = i;
    return S3_OK;
}

bool chunked_done(const struct chunked *c)
{
    return c->state == CHUNKED_DONE;
}

size_t chunked_trailer_lines(const struct chunked *c)
{
    size_t n = 0;

    for (size_t i = 0; i < c->trailer.n; i++)
        n += c->trailer.p[i] == '\n';
    return n;
}

struct slice chunked_trailer(const struct chunked *c, const char *name)
{
    struct slice rest = buf_view(&c->trailer);

    while (rest.n) {
        struct slice value = slice_split(&rest, '\n');

        if (slice_eq_str(slice_split(&value, ':'), name))
            return value;
    }
    return SLICE_NULL;
}
