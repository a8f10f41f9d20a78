/*
 * The headers of an answer, one line at a time.
 *
 * Invariants:
 *  1. Only the last head counts: a status line forgets what came before it (100 Continue, a proxy's CONNECT).
 *  2. Values over their maximum are left out whole, never cut: an ETag that was cut would pin nothing.
 *
 * Failure modes: none here; a header that makes no sense counts as absent, and the verb decides what it
 * cannot do without.
 */
#include "origin/web_internal.h"

#include "base/sys.h"
#include "base/text.h"
#include "origin/meta.h"

static void clear(struct web_response *r)
{
    memset(r, 0, offsetof(struct web_response, etag));
    r->etag[0] = r->version_id[0] = r->location[0] = '\0';
}

void web_response_init(struct web_response *r)
{
    clear(r);
    r->content_type = BUF_INIT(WEB_CONTENT_TYPE_MAX);
    r->meta = BUF_INIT(ORIGIN_META_MAX_BYTES);
}

void web_response_fini(struct web_response *r)
{
    buf_fini(&r->content_type);
    buf_fini(&r->meta);
}

static bool printable(struct slice s)
{
    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char)s.p[i] < ' ' && s.p[i] != '\t')
            return false;
    return true;
}

/* Copies into a text field when it fits, NUL included. */
static void take_text(char *to, size_t room, struct slice s)
{
    if (s.n >= room)
        return;
    if (s.n > 0)
        memcpy(to, s.p, s.n);
    to[s.n] = '\0';
}

static void take_status(struct web_response *r, struct slice line)
{
    struct buf content_type = r->content_type, meta = r->meta;
    const struct web_kind *kind = r->kind;
    clear(r);
    r->kind = kind;
    r->content_type = content_type;
    r->meta = meta;
    buf_clear(&r->content_type);
    buf_clear(&r->meta);
    (void)slice_split(&line, ' ');
    uint64_t status;
    if (slice_u64(slice_split(&line, ' '), &status) < 0 || status < 100 || status > 999)
        return;
    r->status = (int)status;
    take_text(r->reason, sizeof(r->reason), printable(line) ? slice_trim(line) : SLICE_NULL);
}

/* "bytes 0-99/1234". An unknown total ("*") counts as no range: nothing could be checked against it. */
static void take_range(struct web_response *r, struct slice v)
{
    uint64_t first, last, total;
    if (!slice_starts(v, SLICE_LIT("bytes ")))
        return;
    v = slice_from(v, 6);
    struct slice a = slice_split(&v, '-'), b = slice_split(&v, '/');
    if (slice_u64(a, &first) < 0 || slice_u64(b, &last) < 0 || slice_u64(v, &total) < 0)
        return;
    if (first > last || last >= total)
        return;
    r->has_range = true;
    r->range_first = first;
    r->range_last = last;
    r->range_total = total;
}

/* "bytes=0-n" of an upload that goes on behind n. */
static void take_upload(struct web_response *r, struct slice v)
{
    if (slice_starts(v, SLICE_LIT("bytes=0-")))
        r->has_upload = slice_u64(slice_from(v, 8), &r->upload_last) == 0;
}

/* Strong ETags lose their quotes, weak ones stay whole. */
static void take_etag(struct web_response *r, struct slice v)
{
    if (v.n >= 2 && v.p[0] == '"' && v.p[v.n - 1] == '"')
        v = slice_sub(v, 1, v.n - 2);
    take_text(r->etag, sizeof(r->etag), v);
}

static void take_meta(struct web_response *r, struct slice name, struct slice value)
{
    size_t before = r->meta.n;
    if (buf_printf(&r->meta, SLICE_FMT ": " SLICE_FMT "\n", SLICE_ARG(name), SLICE_ARG(value)) == 0)
        return;
    assert(r->meta.n == before);
}

/* User metadata is known by S3's names here, whatever the service's are. */
static bool take_user_meta(struct web_response *r, struct slice name, struct slice value)
{
    struct slice own = slice_str(r->kind ? r->kind->meta_prefix : "x-amz-meta-");
    if (!slice_starts(name, own) || name.n == own.n)
        return false;
    char full[320];
    int n = snprintf(full, sizeof(full), "x-amz-meta-" SLICE_FMT, SLICE_ARG(slice_from(name, own.n)));
    if (n > 0 && (size_t)n < sizeof(full))
        take_meta(r, slice_of(full, (size_t)n), value);
    return true;
}

/* The checksum, "x-amz-checksum-SUFFIX: BASE64", and of what it is. */
static bool take_checksum(struct web_response *r, struct slice name, struct slice value)
{
    static const struct slice prefix = {META_CHECKSUM "-", sizeof(META_CHECKSUM "-") - 1};
    if (!r->kind || !r->kind->tells_checksums || !slice_starts(name, prefix))
        return false;
    struct slice suffix = slice_from(name, prefix.n);
    if (slice_eq_str(suffix, "type")) {
        take_text(r->sum_type, sizeof(r->sum_type), value);
    } else if (slice_eq_str(suffix, "algorithm")) {
        take_text(r->sum_algorithm, sizeof(r->sum_algorithm), value);
    } else if (value.n > 0) {
        int n =
            snprintf(r->sum, sizeof(r->sum), SLICE_FMT " " SLICE_FMT, SLICE_ARG(suffix), SLICE_ARG(value));
        if (n < 0 || (size_t)n >= sizeof(r->sum))
            r->sum[0] = '\0';
    }
    return true;
}

/* The head has ended. The checksum of an object is kept as META_CHECKSUM: one of all bytes, or one of the
 * parts' checksums that says of how many, as without that it would be taken for the first. Answers about a
 * range may tell one of a part. */
static void keep_checksum(struct web_response *r)
{
    bool of_parts = slice_eq_case(slice_str(r->sum_type), SLICE_LIT("COMPOSITE"));
    if (r->status == 200 && r->sum[0] && (!of_parts || strchr(r->sum, '-')))
        take_meta(r, SLICE_LIT(META_CHECKSUM), slice_str(r->sum));
    if (r->status == 200)
        r->sum[0] = '\0';
}

/* The tags of an object of another node, which it shows to those that ask; of others how many there are. */
static bool take_tags(struct web_response *r, struct slice name, struct slice value)
{
    bool is_node = r->kind && r->kind->is_node, is_s3 = r->kind && r->kind->tells_checksums && !is_node;
    if (is_node && slice_eq_str(name, META_TAGS_HEADER))
        take_meta(r, SLICE_LIT(META_TAGS), value);
    else if (is_s3 && slice_eq_str(name, META_TAG_COUNT))
        take_meta(r, SLICE_LIT(META_TAG_COUNT), value);
    else
        return false;
    return true;
}

/* What another node says of its own origin: it alone knows whether that may answer soon. */
static bool take_retry(struct web_response *r, struct slice name, struct slice value)
{
    if (!r->kind || !r->kind->is_node || !slice_eq_str(name, META_RETRY_HEADER))
        return false;
    r->is_in_vain = slice_eq_str(value, META_RETRY_NO);
    return true;
}

/* By which services find a request in their logs. */
static bool take_id(struct web_response *r, struct slice name)
{
    static const char *const ids[] = {"x-amz-request-id", "x-ms-request-id", "x-guploader-uploadid"};
    bool is_id = false;
    for (size_t i = 0; i < ARRAY_SIZE(ids); i++)
        is_id |= slice_eq_str(name, ids[i]);
    r->has_id |= is_id;
    return is_id;
}

/* A number of seconds, or a date (RFC 9110 10.2.3). */
static void take_retry_after(struct web_response *r, struct slice v)
{
    uint64_t seconds;
    if (slice_u64(v, &seconds) == 0)
        r->retry_after_ms = MIN(seconds, (uint64_t)ORIGIN_PAUSE_MAX_MS / 1000) * 1000;
    else
        (void)text_parse_date(v, &r->retry_at_ns);
}

uint64_t web_response_pause_ms(const struct web_response *r)
{
    uint64_t now_ns = r->date_ns > 0 ? r->date_ns : sys->real_ns();
    return r->retry_at_ns > now_ns ? (r->retry_at_ns - now_ns) / 1000000 : r->retry_after_ms;
}

static bool take_number(struct web_response *r, struct slice name, struct slice value)
{
    if (slice_eq_str(name, "transfer-encoding"))
        r->is_chunked = value.n >= 7 && slice_eq_case(slice_from(value, value.n - 7), SLICE_LIT("chunked"));
    else if (slice_eq_str(name, "content-length"))
        r->has_length = slice_u64(value, &r->length) == 0;
    else if (slice_eq_str(name, "content-range"))
        take_range(r, value);
    else if (slice_eq_str(name, "x-amz-mp-parts-count"))
        r->n_parts = slice_u64(value, &r->n_parts) == 0 ? r->n_parts : 0;
    else if (slice_eq_str(name, "range"))
        take_upload(r, value);
    else if (slice_eq_str(name, "last-modified"))
        r->has_time = text_parse_date(value, &r->mtime_ns) == 0;
    else if (slice_eq_str(name, "date"))
        (void)text_parse_date(value, &r->date_ns);
    else if (slice_eq_str(name, "retry-after"))
        take_retry_after(r, value);
    else
        return false;
    return true;
}

static void take_header(struct web_response *r, struct slice name, struct slice value)
{
    if (take_number(r, name, value) || take_checksum(r, name, value) || take_tags(r, name, value) ||
        take_retry(r, name, value) || take_id(r, name))
        return;
    if (slice_eq_str(name, r->kind ? r->kind->version_header : "etag")) {
        take_etag(r, value);
    } else if (slice_eq_str(name, "content-type")) {
        buf_clear(&r->content_type);
        (void)buf_slice(&r->content_type, value);
    } else if (slice_eq_str(name, "x-amz-bucket-region")) {
        take_text(r->region, sizeof(r->region), value);
    } else if (slice_eq_str(name, "x-ms-error-code")) {
        take_text(r->code, sizeof(r->code), value);
    } else if (slice_eq_str(name, "x-ms-copy-status")) {
        take_text(r->copy_status, sizeof(r->copy_status), value);
    } else if (slice_eq_str(name, "x-ms-copy-id")) {
        take_text(r->copy_id, sizeof(r->copy_id), value);
    } else if (slice_eq_str(name, "x-amz-storage-class")) {
        take_text(r->class, sizeof(r->class), value);
    } else if (slice_eq_str(name, "x-amz-server-side-encryption")) {
        take_text(r->sse, sizeof(r->sse), value);
    } else if (slice_eq_str(name, "x-amz-server-side-encryption-aws-kms-key-id")) {
        take_text(r->sse_key, sizeof(r->sse_key), value);
    } else if (slice_eq_str(name, "x-amz-version-id") || slice_eq_str(name, "x-ms-version-id")) {
        take_text(r->version_id, sizeof(r->version_id), value);
        if (r->kind && r->kind->tells_versions && r->version_id[0])
            take_meta(r, SLICE_LIT(META_VERSION), value);
    } else if (slice_eq_str(name, "location")) {
        take_text(r->location, sizeof(r->location), value);
    } else if (!take_user_meta(r, name, value) && origin_is_meta_header(name) &&
               !slice_starts(name, SLICE_LIT("x-amz-meta-"))) {
        take_meta(r, name, value);
    }
}

void web_response_line(struct web_response *r, struct slice line)
{
    while (line.n > 0 && (line.p[line.n - 1] == '\n' || line.p[line.n - 1] == '\r'))
        line.n--;
    if (slice_starts(line, SLICE_LIT("HTTP/"))) {
        take_status(r, line);
        return;
    }
    if (line.n == 0)
        keep_checksum(r);
    ssize_t colon = slice_find(line, ':');
    char lower[256];
    if (colon <= 0 || (size_t)colon > sizeof(lower) || !printable(line))
        return;
    for (ssize_t i = 0; i < colon; i++) {
        char c = line.p[i];
        lower[i] = c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
    }
    take_header(r, slice_of(lower, (size_t)colon), slice_trim(slice_from(line, (size_t)colon + 1)));
}

struct origin_attr web_response_attr(const struct web_response *r)
{
    return (struct origin_attr){
        .size_bytes = r->has_range    ? r->range_total
                      : r->has_length ? r->length
                                      : 0,
        .mtime_ns = r->mtime_ns,
        .etag = slice_str(r->etag),
        .content_type = buf_view(&r->content_type),
        .meta = buf_view(&r->meta),
    };
}
