/*
 * Checksums of the parts of an upload, given to the service together with the bytes: it verifies each, keeps
 * them, and makes the object's out of them, which it then tells whoever asks it.
 *
 * Not every service that speaks S3 knows of them; some refuse what they do not know. So the start of an
 * upload asks, and the answer decides: only where it repeats algorithm and type do parts have checksums, and
 * then all of them, because services refuse one without. A part's goes in a header when it is known before
 * the request begins; else behind the bytes, in the trailer of an aws-chunked body:
 *
 * | bytes                                   |                                                       |
 * | --------------------------------------- | ----------------------------------------------------- |
 * | "100000" CR LF, 1 MiB, CR LF            | for each whole MiB; the last piece with its own length |
 * | "0" CR LF                               | the end of the pieces                                 |
 * | "x-amz-checksum-SUFFIX:BASE64" CR LF    | the trailer, which x-amz-trailer announces            |
 * | CR LF                                   |                                                       |
 *
 * Its pieces are not signed (STREAMING-UNSIGNED-PAYLOAD-TRAILER): neither is a large body without a trailer.
 *
 * Invariants:
 *  1. What is at an offset of a framed body follows from the offset: it can be sent again from anywhere, as
 * far as the bytes inside can.
 *
 * Failure modes: -EINVAL for a checksum that has not the length of its kind.
 */
#include "origin/s3_internal.h"

#include "base/text.h"

#include <inttypes.h>

#define SUM_MAX 32 /* bytes */
#define FRAME   ((uint64_t)MIB)
#define HEAD    8 /* "100000\r\n" */
#define TAIL    2

static const struct s3_sum_kind kinds[] = {
    {"crc32", "CRC32", "x-amz-checksum-crc32", 4},
    {"crc32c", "CRC32C", "x-amz-checksum-crc32c", 4},
    {"crc64nvme", "CRC64NVME", "x-amz-checksum-crc64nvme", 8},
    {"sha1", "SHA1", "x-amz-checksum-sha1", 20},
    {"sha256", "SHA256", "x-amz-checksum-sha256", SUM_MAX},
};

bool s3_sums_of(struct slice text, struct s3_sums *ret)
{
    struct slice suffix = slice_split(&text, ' ');
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        if (!slice_eq_str(suffix, kinds[i].suffix))
            continue;
        *ret = (struct s3_sums){.kind = &kinds[i], .type = text};
        return slice_eq_str(text, "COMPOSITE") || slice_eq_str(text, "FULL_OBJECT");
    }
    return false;
}

void s3_sums_ask(struct web_call *c, const struct s3_sums *s)
{
    web_header(c, SLICE_LIT("x-amz-checksum-algorithm"), slice_str(s->kind->name));
    web_header(c, SLICE_LIT("x-amz-checksum-type"), s->type);
}

enum s3_sums_told s3_sums_told(const struct web_response *r, const struct s3_sums *s)
{
    struct slice type = slice_str(r->sum_type[0] ? r->sum_type : "COMPOSITE"); /* all that there was once */
    if (!r->sum_algorithm[0])
        return S3_SUMS_NONE;
    return slice_eq_case(slice_str(r->sum_algorithm), slice_str(s->kind->name)) &&
                   slice_eq_case(type, s->type)
               ? S3_SUMS_SAME
               : S3_SUMS_OTHER;
}

/* ---- one of them ---- */

int s3_sum_base64(const struct s3_sums *s, struct slice hex, struct buf *ret, struct err *e)
{
    uint8_t sum[SUM_MAX];
    int r = text_unhex(hex, sum, s->kind->bytes);
    if (r == 0)
        r = text_base64(ret, slice_of(sum, s->kind->bytes));
    return r < 0 ? err_set(e, r, "a %s of %zu hex digits", s->kind->name, hex.n) : 0;
}

/* ---- framed bodies ---- */

static size_t base64_chars(size_t bytes)
{
    return (bytes + 2) / 3 * 4;
}

/* How many bytes the frames take in front of the end of the pieces. */
static uint64_t framed_bytes(uint64_t n)
{
    char head[24];
    uint64_t whole = n / FRAME * (HEAD + FRAME + TAIL), rest = n % FRAME;
    if (rest > 0)
        whole += (uint64_t)snprintf(head, sizeof(head), "%" PRIx64 "\r\n", rest) + rest + TAIL;
    return whole;
}

static uint64_t trailer_bytes(const struct s3_sums *s)
{
    return strlen("0\r\n:\r\n\r\n") + strlen(s->kind->header) + base64_chars(s->kind->bytes);
}

static ssize_t copy_text(const char *text, size_t text_n, uint64_t from, void *to, size_t n)
{
    assert(from < text_n);
    n = MIN(n, text_n - (size_t)from);
    memcpy(to, text + from, n);
    return (ssize_t)n;
}

static ssize_t read_trailer(const struct s3_framed *f, void *to, size_t n, uint64_t at)
{
    struct buf _cleanup_buf_ text = BUF_INIT(256);
    struct slice hex = f->inner->sum(f->inner->arg, /* wait= */ true);
    if (hex.n == 0)
        return -ECANCELED;
    int r = buf_printf(&text, "0\r\n%s:", f->sums.kind->header);
    if (r == 0)
        r = s3_sum_base64(&f->sums, hex, &text, NULL);
    if (r == 0)
        r = buf_str(&text, "\r\n\r\n");
    return r < 0 ? r : copy_text(text.p, text.n, at, to, n);
}

static ssize_t framed_read(void *arg, void *to, size_t n, uint64_t offset)
{
    const struct s3_framed *f = arg;
    uint64_t pieces = framed_bytes(f->n);
    if (offset >= pieces)
        return read_trailer(f, to, n, offset - pieces);
    uint64_t begin = offset / (HEAD + FRAME + TAIL) * FRAME, at = offset % (HEAD + FRAME + TAIL);
    uint64_t here = MIN(FRAME, f->n - begin);
    char head[24];
    size_t head_n = (size_t)snprintf(head, sizeof(head), "%" PRIx64 "\r\n", here);
    if (at < head_n)
        return copy_text(head, head_n, at, to, n);
    at -= head_n;
    if (at >= here)
        return copy_text("\r\n", TAIL, at - here, to, n);
    return f->inner->read(f->inner->arg, to, (size_t)MIN((uint64_t)n, here - at), f->offset + begin + at);
}

static void frame(struct web_call *c, const struct s3_sums *s, struct s3_framed *f)
{
    f->body = *f->inner;
    f->body.size_bytes = framed_bytes(f->n) + trailer_bytes(s);
    f->body.read = framed_read;
    f->body.arg = f;
    c->body = &f->body;
    c->body_offset = 0;
    c->body_n = f->body.size_bytes;
    c->payload_sha256 = SLICE_LIT("STREAMING-UNSIGNED-PAYLOAD-TRAILER");
    (void)snprintf(f->decoded, sizeof(f->decoded), "%" PRIu64, f->n);
    web_header(c, SLICE_LIT("content-encoding"), SLICE_LIT("aws-chunked"));
    web_header(c, SLICE_LIT("x-amz-decoded-content-length"), slice_str(f->decoded));
    web_header(c, SLICE_LIT("x-amz-trailer"), slice_str(s->kind->header));
}

int s3_sums_part(struct web_call *c, const struct s3_sums *s, struct s3_framed *f, struct err *e)
{
    *f = (struct s3_framed){.inner = c->body, .offset = c->body_offset, .n = c->body_n, .sums = *s};
    struct slice hex = c->body->sum(c->body->arg, /* wait= */ false);
    if (hex.n == 0) {
        frame(c, s, f);
        return 0;
    }
    struct buf _cleanup_buf_ text = BUF_INIT(sizeof(f->value));
    int r = s3_sum_base64(s, hex, &text, e);
    if (r == 0) {
        (void)snprintf(f->value, sizeof(f->value), SLICE_FMT, SLICE_ARG(buf_view(&text)));
        web_header(c, slice_str(s->kind->header), slice_str(f->value));
    }
    return r;
}
