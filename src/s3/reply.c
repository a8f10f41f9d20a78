/*
 * Answers: header lines, the head, the XML error, and counting.
 *
 * 1. Every answer carries x-amz-request-id and x-amz-id-2.
 * 2. No value from an object, an origin or a query can end a header line: those with control characters are
 * dropped.
 * 3. A request is counted once: when its answer is complete, here or by the tail that sends its rest.
 */
#include "s3/s3_internal.h"

#include "base/metrics.h"
#include "base/often.h"
#include "base/sys.h"
#include "base/text.h"
#include "origin/meta.h"

#define HEAD_USUAL_BYTES 1024 /* of most answers; more grows */
#define HOST_MAX_BYTES   260  /* a name of 253, a colon and a port: anything longer is no address */

static const char *const op_names[S3_OP_COUNT] = {[S3_OP_NONE] = "Unknown",
#define X(name, text, function, right) [S3_OP_##name] = text,
                                                  S3_OPS(X)
#undef X
};

static const int kept_statuses[S3_STATUSES] = {200, 204, 206, 304, 403, 404, 412, 503};

static char *put(char *to, struct slice s)
{
    if (s.n)
        memcpy(to, s.p, s.n);
    return to + s.n;
}

/* NULL: there is no room. What goes in is bounded: attributes by the origin layer, the rest by the request's
 * own head. */
static char *reserve(struct s3_request *r, size_t n)
{
    return buf_reserve(&r->head, r->head.p ? n : MAX(n, (size_t)HEAD_USUAL_BYTES));
}

void reply_fixed(struct s3_request *r, struct slice lines)
{
    char *to = reserve(r, lines.n);

    if (!to)
        return;
    (void)put(to, lines);
    buf_used(&r->head, lines.n);
}

void reply_line(struct s3_request *r, struct slice name, struct slice value)
{
    const size_t n = name.n + value.n + 4; /* ": " and the line's end */
    char *to;

    if (slice_has_control(value))
        return;
    to = reserve(r, n);
    if (!to)
        return;
    to = put(put(put(put(to, name), SLICE_LIT(": ")), value), SLICE_LIT("\r\n"));
    buf_used(&r->head, n);
}

char *reply_etag_text(struct slice etag, char ret[REPLY_ETAG_TEXT_MAX])
{
    const struct slice quote = slice_starts(etag, SLICE_LIT("W/")) ? SLICE_LIT("") : SLICE_LIT("\"");

    etag.n = MIN(etag.n, (size_t)REPLY_ETAG_TEXT_MAX - 3);
    *put(put(put(ret, quote), etag), quote) = 0;
    return ret;
}

void reply_etag(struct s3_request *r, struct slice etag)
{
    char text[REPLY_ETAG_TEXT_MAX];
    if (etag.n)
        reply_header(r, "ETag", slice_str(reply_etag_text(etag, text)));
}

static void put_ids(struct s3_request *r)
{
    const struct slice first = SLICE_LIT("x-amz-request-id: "), last = slice_str(r->s3->id_lines);
    const size_t n = first.n + sizeof r->id - 1 + last.n;
    char *to = reserve(r, n);

    if (!to)
        return;
    (void)put(put(put(to, first), slice_of(r->id, sizeof r->id - 1)), last);
    buf_used(&r->head, n);
}

void reply_lines(struct s3_request *r, const char *type, struct buf *ret)
{
    const size_t n = r->head.n;
    int status;

    put_ids(r);
    reply_header(r, "Content-Type", slice_str(type));
    status = buf_slice(ret, buf_view(&r->head));
    assert(status == 0);
    (void)status;
    r->head.n = n;
}

int reply_head(struct s3_request *r, int status, uint64_t n_bytes)
{
    assert(r->status == 0);
    put_ids(r);
    r->status = status;
    return http_conn_head(r->conn, status, buf_view(&r->head), n_bytes);
}

void reply_send(struct s3_request *r, int status, const char *type, struct slice body)
{
    assert(r->status == 0);
    put_ids(r);
    if (type)
        reply_header(r, "Content-Type", slice_str(type));
    r->status = status;
    (void)http_conn_reply(r->conn, status, buf_view(&r->head), body);
}

int reply_location(const struct s3_request *r, struct slice host, struct buf *b)
{
    const char *scheme = http_conn_is_tls(r->conn) ? "https" : "http";
    int status =
        host.n && host.n <= HOST_MAX_BYTES ? buf_printf(b, "%s://" SLICE_FMT, scheme, SLICE_ARG(host)) : 0;

    if (status == 0 && r->host_bucket.n == 0)
        status = buf_printf(b, "/" SLICE_FMT, SLICE_ARG(r->bucket));
    if (status == 0)
        status = buf_char(b, '/');
    return status ? status : text_uri_encode(b, r->key, /* keep_slash= */ true);
}

struct slice reply_resource(const struct s3_request *r)
{
    return r->path.n <= S3_KEY_MAX_BYTES + 64 ? r->path : slice_sub(r->path, 0, S3_KEY_MAX_BYTES);
}

/* The body was not what its client said, perhaps in its length, too: nobody knows where the next request
 * begins. */
static bool ends_connection(enum s3_error error)
{
    return error == S3_ERR_REQUEST_TIMEOUT || error == S3_ERR_INCOMPLETE_BODY || error == S3_ERR_BAD_DIGEST ||
           error == S3_ERR_SHA256_MISMATCH;
}

void reply_error(struct s3_request *r, enum s3_error error)
{
    _cleanup_buf_ struct buf b = BUF_INIT(32 * KIB);
    const struct s3_error_info *info = s3_error_info(error);

    if (info->status == 304) {
        reply_send(r, 304, NULL, SLICE_NULL);
        return;
    }
    if (s3_error_xml(&b, error, r->message, reply_resource(r), r->id, r->extra))
        buf_clear(&b);
    if (ends_connection(error))
        http_conn_close_after(r->conn);
    if (error == S3_ERR_BAD_GATEWAY || error == S3_ERR_LOOP) /* to another node whose origin this is */
        reply_header(r, META_RETRY_HEADER, SLICE_LIT(META_RETRY_NO));
    if (error == S3_ERR_SLOW_DOWN)
        reply_header(r, "Retry-After", SLICE_LIT("1"));
    reply_send(r, info->status, "application/xml", buf_view(&b));
}

enum s3_error reply_refuse(struct s3_request *r, enum s3_error error, const char *message)
{
    r->message = slice_str(message);
    return error;
}

enum s3_error reply_failed(struct s3_request *r, int code, const struct err *e)
{
    enum s3_error error = s3_error_from(code);
    struct slice text = slice_str(e->text);

    if (text.n == 0)
        text = slice_str(err_text(code));
    if (s3_error_wants_text(code))
        r->message = arena_dup(r->arena, text);
    if (s3_error_info(error)->status >= 500 || code == ERR_ORIGIN_REFUSED)
        log_often("s3", "%s %s " SLICE_FMT ": " SLICE_FMT, r->id, op_names[r->op],
                  SLICE_ARG(r->http->raw_path), SLICE_ARG(text));
    return error;
}

static struct metric_series *requests_series(struct s3 *s3, enum s3_op op, int status)
{
    char code[16];

    for (size_t i = 0; i < S3_STATUSES; i++)
        if (kept_statuses[i] == status && s3->requests[op][i])
            return s3->requests[op][i];
    (void)snprintf(code, sizeof code, "%d", status);
    return metrics_series(METRIC_REQUESTS, "s3", op_names[op], code);
}

void reply_count(struct s3 *s3, enum s3_op op, int status, uint64_t started_ns)
{
    metrics_add(requests_series(s3, op, status), 1);
    metrics_observe_ns(s3->seconds[op], sys->mono_ns() - started_ns);
}

void reply_prepare_metrics(struct s3 *s3)
{
    for (size_t op = 0; op < S3_OP_COUNT; op++) {
        s3->seconds[op] = metrics_series(METRIC_REQUEST_SECONDS, "s3", op_names[op], NULL);
        if (op != S3_OP_GET_OBJECT && op != S3_OP_HEAD_OBJECT)
            continue;
        for (size_t i = 0; i < S3_STATUSES; i++) {
            char code[16];

            (void)snprintf(code, sizeof code, "%d", kept_statuses[i]);
            s3->requests[op][i] = metrics_series(METRIC_REQUESTS, "s3", op_names[op], code);
        }
    }
}
