/*
 * PutObject: the body streams to the object layer while it arrives.
 *
 * 1. The last piece of a body is handed on only after everything the client said about the body was verified;
 * so the origin, which needs the announced length, never gets an object whose hash, checksum or signature was
 * wrong.
 *
 * 2. Where the ETag is to be the MD5 of a large body, it is computed here and beside (body_want_md5): a piece
 * is hashed while the one before it is written and the next one arrives.
 *
 * Memory: two pieces of S3_PIECE_BYTES for each running PUT; of documents what take_document says.
 */
#include "origin/meta.h"
#include "s3/condition.h"
#include "s3/part_list.h"
#include "s3/sink.h"

#include "base/metrics.h"
#include "base/sys.h"
#include "base/text.h"
#include "origin/origin.h"

#define TTL_MAX_MS       ((uint64_t)365 * 24 * 3600 * 1000)
#define DOCUMENT_COPIES  3
#define DOCUMENT_WAIT_MS 1000
#define DOCUMENT_LOOK_MS 20

/* Request headers that are kept with the object besides x-amz-meta-*. */
static const char *const kept_headers[] = {
    "cache-control", "content-disposition", "content-encoding", "content-language", "expires",
};

/* Headers that ask for something that is not here; refused rather than ignored. Values that mean "nothing
 * special" are accepted. X(header, accepted value or NULL) */
static const struct {
    const char *name, *accepted;
} not_here[] = {
    {"x-amz-acl", "private"},
    {"x-amz-grant-full-control", NULL},
    {"x-amz-grant-read", NULL},
    {"x-amz-grant-read-acp", NULL},
    {"x-amz-grant-write-acp", NULL},
    {"x-amz-object-lock-legal-hold", NULL},
    {"x-amz-object-lock-mode", NULL},
    {"x-amz-object-lock-retain-until-date", NULL},
    {"x-amz-server-side-encryption", NULL},
    {"x-amz-server-side-encryption-aws-kms-key-id", NULL},
    {"x-amz-server-side-encryption-bucket-key-enabled", "false"},
    {"x-amz-server-side-encryption-context", NULL},
    {"x-amz-website-redirect-location", NULL},
    {"x-amz-write-offset-bytes", NULL},
};

/* Those of objects that are encrypted with a key of the client's: of reads, parts and sources, too. */
static const char *const keys_not_here[] = {
    "x-amz-server-side-encryption-customer-algorithm",
    "x-amz-server-side-encryption-customer-key",
    "x-amz-server-side-encryption-customer-key-md5",
    "x-amz-copy-source-server-side-encryption-customer-algorithm",
    "x-amz-copy-source-server-side-encryption-customer-key",
    "x-amz-copy-source-server-side-encryption-customer-key-md5",
};

bool put_is_kept(struct slice name)
{
    const struct slice prefix = SLICE_LIT("x-amz-meta-");

    if (name.n > prefix.n && slice_eq_case(slice_sub(name, 0, prefix.n), prefix))
        return true;
    for (size_t i = 0; i < ARRAY_SIZE(kept_headers); i++)
        if (slice_eq_case(name, slice_str(kept_headers[i])))
            return true;
    return false;
}

/* "aws-chunked" is the coding of the transfer, not of the object. */
static struct slice without_aws_chunked(struct arena *a, struct slice value)
{
    char *out = arena_alloc(a, 2 * value.n + 1);
    size_t n = 0;

    while (value.n) {
        struct slice one = slice_trim(slice_split(&value, ','));

        if (one.n == 0 || slice_eq_case(one, SLICE_LIT("aws-chunked")))
            continue;
        if (n) { /* with the blank that most clients write */
            out[n++] = ',';
            out[n++] = ' ';
        }
        memcpy(out + n, one.p, one.n);
        n += one.n;
    }
    return slice_of(out, n);
}

static int put_line(struct buf *b, struct slice name, struct slice value)
{
    int status = 0;

    for (size_t i = 0; i < name.n && status == 0; i++)
        status = buf_char(b, name.p[i] >= 'A' && name.p[i] <= 'Z' ? (char)(name.p[i] + 32) : name.p[i]);
    if (status == 0)
        status = buf_str(b, ": ");
    if (status == 0)
        status = buf_slice(b, value);
    return status ? status : buf_char(b, '\n');
}

static enum s3_error refuse_header(struct s3_request *r, const char *name)
{
    return reply_refuse(r, S3_ERR_NOT_IMPLEMENTED,
                        arena_printf(r->arena, "the header %s is not implemented here", name));
}

enum s3_error put_refuse_keys(struct s3_request *r)
{
    const size_t shortest = sizeof("x-amz-server-side-encryption-customer-key") - 1;
    bool is_long = false; /* as hardly any header is */

    for (size_t i = 0; i < r->http->n_headers; i++)
        is_long |= r->http->headers[i].name.n >= shortest;
    for (size_t i = 0; i < ARRAY_SIZE(keys_not_here) && is_long; i++)
        if (request_header(r, keys_not_here[i]).p)
            return refuse_header(r, keys_not_here[i]);
    return S3_OK;
}

static enum s3_error refuse_unknown(struct s3_request *r)
{
    struct slice class = request_header(r, "x-amz-storage-class");
    enum s3_error error = put_refuse_keys(r);

    for (size_t i = 0; !error && i < ARRAY_SIZE(not_here); i++) {
        struct slice value = request_header(r, not_here[i].name);

        if (value.p && !(not_here[i].accepted && slice_eq_str(value, not_here[i].accepted)))
            error = refuse_header(r, not_here[i].name);
    }
    if (error)
        return error;
    return class.p && !slice_eq_str(class, "STANDARD") ? S3_ERR_INVALID_STORAGE_CLASS : S3_OK;
}

bool put_may_end(struct s3_request *r)
{
    struct slice property;
    uint64_t usual_ms;

    return buckets_property(r, r->bucket, "ttl", &property) &&
           text_parse_duration(property, &usual_ms) == 0 && usual_ms > 0;
}

uint64_t put_ttl_ms(const struct s3_request *r)
{
    uint64_t ms;

    return text_parse_duration(slice_trim(request_header(r, "x-forebay-ttl")), &ms) ? 0 : ms;
}

/* The end that x-forebay-ttl gives an object, as it is kept with it; empty without that header. */
static enum s3_error own_end(struct s3_request *r, struct slice *ret)
{
    struct slice text = request_header(r, "x-forebay-ttl");
    uint64_t ttl_ms, now_ns = sys->real_ns();

    *ret = SLICE_LIT("");
    if (!text.p)
        return S3_OK;
    if (text_parse_duration(slice_trim(text), &ttl_ms) || ttl_ms == 0 || ttl_ms > TTL_MAX_MS)
        return reply_refuse(r, S3_ERR_INVALID_ARGUMENT,
                            "x-forebay-ttl must be a time from 1ms to 365d, for example 90s");
    if (!put_may_end(r))
        return reply_refuse(r, S3_ERR_INVALID_REQUEST,
                            "x-forebay-ttl needs a bucket without origin whose property ttl is set");
    *ret = slice_str(arena_printf(r->arena, "%llu", (unsigned long long)(now_ns + ttl_ms * 1000000)));
    return S3_OK;
}

/* The value of a header and those of later ones with its name, as S3 joins them; without a pointer where an
 * earlier one has it already. */
static struct slice joined_value(struct s3_request *r, size_t i)
{
    const struct http_header *all = r->http->headers;
    size_t n = 0, times = 0;
    char *out;

    for (size_t j = 0; j < r->http->n_headers; j++) {
        if (!slice_eq_case(all[j].name, all[i].name))
            continue;
        if (j < i)
            return SLICE_NULL;
        n += all[j].value.n + 1;
        times++;
    }
    if (times == 1)
        return all[i].value;
    out = arena_alloc(r->arena, n);
    n = 0;
    for (size_t j = i; j < r->http->n_headers; j++) {
        if (!slice_eq_case(all[j].name, all[i].name))
            continue;
        if (j > i)
            out[n++] = ',';
        memcpy(out + n, all[j].value.p, all[j].value.n);
        n += all[j].value.n;
    }
    return slice_of(out, n);
}

enum s3_error put_metadata(struct s3_request *r, struct slice *ret_type, struct slice *ret_meta)
{
    _cleanup_buf_ struct buf b = BUF_INIT(ORIGIN_META_MAX_BYTES);
    struct slice tags, end;
    enum s3_error error = refuse_unknown(r);

    if (!error)
        error = tagging_of_request(r, &tags);
    if (!error)
        error = own_end(r, &end);
    if (error)
        return error;
    for (size_t i = 0; i < r->http->n_headers; i++) {
        struct slice name = r->http->headers[i].name, value;

        if (!put_is_kept(name) || !(value = joined_value(r, i)).p)
            continue;
        if (meta_is_ours(name))
            return reply_refuse(r, S3_ERR_NOT_IMPLEMENTED,
                                META_TAGS " is reserved: use x-amz-tagging; a node whose origin is "
                                          "another one reaches it as forebay://HOST:PORT/BUCKET");
        if (slice_eq_case(name, SLICE_LIT("content-encoding"))) {
            value = without_aws_chunked(r->arena, value);
            if (value.n == 0)
                continue;
        }
        if (put_line(&b, name, value))
            return S3_ERR_METADATA_TOO_LARGE;
    }
    *ret_type = request_header(r, "content-type");
    error = put_own_line(r, buf_view(&b), META_TAGS, tags, ret_meta);
    return error || end.n == 0 ? error : put_own_line(r, *ret_meta, META_EXPIRES, end, ret_meta);
}

enum s3_error put_own_line(struct s3_request *r, struct slice meta, const char *name, struct slice value,
                           struct slice *ret)
{
    _cleanup_buf_ struct buf b = BUF_INIT(ORIGIN_META_MAX_BYTES);

    if (meta_set(meta, name, value, &b))
        return S3_ERR_METADATA_TOO_LARGE;
    *ret = arena_dup(r->arena, buf_view(&b));
    return S3_OK;
}

static ssize_t read_conn(void *arg, void *p, size_t n)
{
    return http_conn_read(arg, p, n);
}

static enum s3_error open_body(struct s3_request *r, bool with_checksum, body_source_fn source, void *arg,
                               struct body *ret)
{
    struct chunked_signing signing;
    struct body_plan plan;
    const char *reason = NULL;
    enum s3_error error = body_plan(r->http, r->claim.payload_hash, with_checksum, &plan, &reason);

    if (error)
        return reason ? reply_refuse(r, error, reason) : error;
    if (plan.chunks_signed) {
        if (r->claim.kind != AUTH_HEADER_V4)
            return reply_refuse(r, S3_ERR_INVALID_REQUEST,
                                "signed chunks need a signed Authorization header");
        auth_chunk_signing(&r->claim, &r->s3->keys, &signing);
    }
    body_init(ret, &plan, plan.chunks_signed ? &signing : NULL, source, arg);
    explicit_bzero(&signing, sizeof signing);
    return S3_OK;
}

/* A body that ends with the connection would be taken for none, and the object for empty. */
static enum s3_error check_announced(const struct s3_request *r)
{
    return r->http->has_length || r->http->chunked ? S3_OK : S3_ERR_MISSING_LENGTH;
}

enum s3_error put_body(struct s3_request *r, struct body *ret)
{
    enum s3_error error = check_announced(r);

    return error ? error : open_body(r, /* with_checksum= */ true, read_conn, r->conn, ret);
}

/* Memory for n more bytes of a document: its buffer, which doubles, and as much for what is read out of it.
 * Where there is none left, one request at a time gets more than there is, so that small shares refuse no
 * document for ever; others wait for a while: a client may have its answer before the memory of its last
 * document is given back. */
static bool take_document(struct s3_request *r, size_t n)
{
    const uint64_t bytes = DOCUMENT_COPIES * (uint64_t)n, end_ms = sys_mono_ms() + DOCUMENT_WAIT_MS;
    int status;

    if (r->beyond_documents)
        return true;
    status = budget_try(r->s3->documents, bytes);
    while (status) {
        r->beyond_documents = !atomic_exchange(&r->s3->beyond_documents, true);
        if (r->beyond_documents || sys_mono_ms() >= end_ms)
            return r->beyond_documents;
        status = budget_take(r->s3->documents, bytes, DOCUMENT_LOOK_MS);
    }
    r->document_bytes += bytes;
    return true;
}

void put_document_end(struct s3_request *r)
{
    if (r->document_bytes)
        budget_give(r->s3->documents, r->document_bytes);
    if (r->beyond_documents)
        atomic_store(&r->s3->beyond_documents, false);
    r->document_bytes = 0;
    r->beyond_documents = false;
}

enum s3_error put_document(struct s3_request *r, struct buf *document, bool with_checksum)
{
    struct body body;
    char piece[16 * 1024];
    bool taken = true;
    ssize_t n;
    enum s3_error error = open_body(r, with_checksum, read_conn, r->conn, &body);

    if (error)
        return error;
    /* Else whoever drips keeps the one place beyond the documents' share from everybody. */
    http_conn_end_body(r->conn, sys_mono_ms() + HTTP_WHOLE_MS);
    while ((n = body_read(&body, piece, sizeof piece)) > 0) {
        taken = take_document(r, (size_t)n);
        if (!taken || buf_append(document, piece, (size_t)n))
            break;
    }
    error = n < 0 ? body.error : n > 0 ? S3_ERR_MALFORMED_XML : S3_OK;
    body_fini(&body);
    if (taken)
        return error;
    metrics_count(METRIC_MEMORY_REFUSED, "documents", NULL, NULL);
    return reply_refuse(r, S3_ERR_SLOW_DOWN, "other documents take the memory for them");
}

/* ---- writing ---- */

struct put {
    struct s3_request *r;
    struct sink sink;
    struct body body;
    char *pieces[2];
};

static void put_init(struct put *p, struct s3_request *r)
{
    *p = (struct put){.r = r};
    sink_init(&p->sink, r->s3);
    p->sink.open.bucket = r->bucket;
    p->sink.open.key = r->key;
    for (size_t i = 0; i < ARRAY_SIZE(p->pieces); i++) {
        p->pieces[i] = malloc(S3_PIECE_BYTES);
        if (!p->pieces[i])
            abort();
    }
}

static void put_fini(struct put *p)
{
    sink_fini(&p->sink);
    body_fini(&p->body); /* before the pieces, which it may still hash */
    for (size_t i = 0; i < ARRAY_SIZE(p->pieces); i++)
        free(p->pieces[i]);
}

enum s3_error put_conditions(struct s3_request *r, struct wire_put_open_req *q)
{
    struct slice none = request_header(r, "if-none-match"), match = request_header(r, "if-match");
    struct condition c;

    condition_read(r->http, "", &c);
    if (none.p && match.p)
        return reply_refuse(r, S3_ERR_INVALID_REQUEST,
                            "If-Match and If-None-Match exclude each other in a PUT");
    if (!condition_is_single(r->http, "if-match") || !condition_is_single(r->http, "if-none-match"))
        return reply_refuse(r, S3_ERR_NOT_IMPLEMENTED, "only one ETag can be a condition of a PUT");
    if (c.has_unmodified_since && !match.p)
        return reply_refuse(r, S3_ERR_NOT_IMPLEMENTED, "If-Unmodified-Since is no condition of a PUT here");
    if (none.p && slice_eq_str(slice_trim(none), "*"))
        q->if_none_match = true;
    else if (none.p)
        q->if_none_etag = condition_bare_etag(none);
    if (match.p)
        q->if_match = condition_bare_etag(match);
    /* No object has an empty ETag; the layers below would take it for no condition. */
    return match.p && q->if_match.n == 0 ? S3_ERR_PRECONDITION : S3_OK;
}

/* What is known of a body before it comes: an origin that it streams to can then have it in one request. */
static void announce_digests(struct put *p)
{
    _cleanup_buf_ struct buf b = BUF_INIT(256);
    const struct body_plan *plan = &p->body.plan;
    struct slice origin = SLICE_NULL;
    char hex[65] = "-";
    int status;

    if (plan->has_sha256 || plan->has_md5)
        (void)buckets_property(p->r, p->r->bucket, "origin", &origin);
    if (origin.n == 0)
        return;
    if (plan->has_sha256)
        text_hex(plan->sha256, sizeof plan->sha256, hex);
    status = buf_printf(&b, "%s ", hex);
    if (status == 0)
        status = plan->has_md5 ? text_base64(&b, slice_of(plan->md5, sizeof plan->md5)) : buf_str(&b, "-");
    if (status)
        abort();
    (void)put_own_line(p->r, p->sink.open.meta, META_DIGESTS, buf_view(&b), &p->sink.open.meta);
}

/* Hashes that were verified can be given to the origin too. */
static int commit(struct put *p, struct wire_attr *ret, struct err *e)
{
    _cleanup_buf_ struct buf md5 = BUF_INIT(64);
    const struct body_plan *plan = &p->body.plan;
    char hex[65];

    if (plan->has_sha256)
        text_hex(plan->sha256, 32, hex);
    if (plan->has_md5 && text_base64(&md5, slice_of(plan->md5, sizeof plan->md5)))
        abort();
    if (p->sink.open.flags & WIRE_ETAG)
        text_hex(p->body.md5_digest, sizeof p->body.md5_digest, p->sink.etag);
    return sink_commit(&p->sink, plan->has_sha256 ? slice_of(hex, 64) : SLICE_NULL, buf_view(&md5),
                       p->r->arena, ret, e);
}

/* Keeps the checksum with the object, where the client's metadata leaves room for it: from the commit on, and
 * from the beginning where it is known by then, for layers that store the metadata before the end. */
static void keep_checksum(struct put *p, bool known)
{
    const struct body_plan *plan = &p->body.plan;

    if (plan->kind == CHECKSUM_NONE || (plan->in_trailer && !known))
        return;
    p->sink.checksum = put_checksum_text(p->r->arena, plan->kind, plan->value);
    if (!p->sink.handle)
        (void)put_own_line(p->r, p->sink.open.meta, META_CHECKSUM, p->sink.checksum, &p->sink.open.meta);
}

/* Opens and writes all but the last piece, which is left in *ret_last, verified. A body of one piece is not
 * even opened before it is verified. */
static enum s3_error stream(struct put *p, struct slice *ret_last)
{
    struct err e = {0};
    ssize_t n = body_read_full(&p->body, p->pieces[0], S3_PIECE_BYTES), more;
    int current = 0, status;

    if (n < 0)
        return p->body.error;
    if ((size_t)n == S3_PIECE_BYTES && p->body.plan.size_bytes != S3_PIECE_BYTES) {
        keep_checksum(p, /* known= */ false);
        announce_digests(p);
        status = sink_open(&p->sink, p->body.plan.size_bytes, &e);
        if (status)
            return reply_failed(p->r, status, &e);
    }
    for (;;) {
        more = body_read_full(&p->body, p->pieces[!current], S3_PIECE_BYTES);
        if (more < 0)
            return p->body.error;
        if (more == 0)
            break;
        status = sink_write(&p->sink, p->pieces[current], (size_t)n, &e);
        if (status)
            return reply_failed(p->r, status, &e);
        current = !current;
        n = more;
    }
    *ret_last = slice_of(p->pieces[current], (size_t)n);
    return S3_OK;
}

bool put_hashes(struct s3_request *r, uint64_t size)
{
    struct slice value;

    if (!r->s3->hasher || size < BODY_BESIDE_MIN_BYTES)
        return false;
    if (buckets_property(r, r->bucket, "etag", &value)) /* of buckets without origin */
        return slice_eq_str(value, "md5");
    return buckets_property(r, r->bucket, "write", &value) && slice_eq_str(value, "back");
}

static void plan_md5(struct put *p)
{
    const struct body_plan *plan = &p->body.plan;

    if (put_hashes(p->r, plan->size_bytes))
        p->sink.open.flags |= WIRE_ETAG;
    if (plan->has_md5 || p->sink.open.flags & WIRE_ETAG)
        body_want_md5(&p->body, p->r->s3->hasher);
}

static enum s3_error write_all(struct put *p, struct wire_attr *ret)
{
    struct slice last = SLICE_NULL;
    struct err e = {0};
    enum s3_error error = stream(p, &last);
    int status;

    if (error)
        return error;
    keep_checksum(p, /* known= */ true);
    status = p->sink.handle ? 0 : sink_open(&p->sink, last.n, &e);
    if (status == 0)
        status = sink_write(&p->sink, last.p, last.n, &e);
    if (status == 0)
        status = commit(p, ret, &e);
    return status ? reply_failed(p->r, status, &e) : S3_OK;
}

struct slice put_checksum_text(struct arena *a, enum checksum_kind kind, const uint8_t *sum)
{
    _cleanup_buf_ struct buf b = BUF_INIT(128);

    if (buf_printf(&b, "%s ", checksum_suffix(kind)) || text_base64(&b, slice_of(sum, checksum_bytes(kind))))
        abort();
    return arena_dup(a, buf_view(&b));
}

const char *put_kept_type(struct slice kept)
{
    return part_sums_type(slice_find(kept, '-') < 0); /* base64 has none */
}

void put_kept_checksum(struct s3_request *r, struct slice kept, const char *type)
{
    struct slice suffix = slice_split(&kept, ' ');

    if (suffix.n == 0 || kept.n == 0)
        return;
    if (!slice_is_visible(suffix) ||
        slice_find(suffix, ':') >= 0) /* clients of the wire protocol write any */
        return;
    reply_header(r, arena_printf(r->arena, "x-amz-checksum-" SLICE_FMT, SLICE_ARG(suffix)), kept);
    if (type)
        reply_header(r, "x-amz-checksum-type", slice_str(type));
}

void put_checksum_header(struct s3_request *r, const struct body *b)
{
    if (b->plan.kind != CHECKSUM_NONE)
        put_kept_checksum(r, put_checksum_text(r->arena, b->plan.kind, b->plan.value), NULL);
}

enum s3_error put_stream(struct s3_request *r, body_source_fn source, void *arg, struct wire_attr *ret)
{
    struct put p;
    enum s3_error error;

    put_init(&p, r);
    error = put_metadata(r, &p.sink.open.content_type, &p.sink.open.meta);
    p.sink.ttl_ms = put_ttl_ms(r);
    if (!error)
        error = put_conditions(r, &p.sink.open);
    if (!error)
        error = open_body(r, /* with_checksum= */ true, source, arg, &p.body);
    if (!error) {
        plan_md5(&p);
        error = write_all(&p, ret);
    }
    if (!error) {
        reply_etag(r, ret->etag);
        put_checksum_header(r, &p.body);
        expiration_header(r, ret);
    }
    put_fini(&p);
    return error;
}

enum s3_error s3_op_put_object(struct s3_request *r)
{
    struct wire_attr attr;
    enum s3_error error = check_announced(r);

    if (!error && r->http->expect_continue) /* who asks first is not to send a body to no bucket */
        error = buckets_find(r);
    if (!error)
        error = put_stream(r, read_conn, r->conn, &attr);
    if (!error)
        reply_send(r, 200, NULL, SLICE_NULL);
    return error;
}
