/*
 * The S3 front end: takes a request apart, verifies it, hands it to its operation, and sees to it that
 * exactly one answer goes out.
 *
 * 1. Nothing is done for a request, and nothing is said about what exists, before its signature was verified.
 * 2. Each request gets one answer. A failure after the head was sent cuts the body and closes the connection,
 * so that no client takes part of an object for all of it.
 */
#include "s3/s3_internal.h"
#include "s3/uploads.h"

#include "base/sys.h"
#include "base/text.h"

static const s3_op_fn op_functions[S3_OP_COUNT] = {
#define X(name, text, function) [S3_OP_##name] = s3_op_##function,
    S3_OPS(X)
#undef X
};

struct s3 *s3_new(const struct s3_config *config)
{
    struct s3 *s = calloc(1, sizeof *s);

    assert(config->objects && config->region && config->access_key && config->secret_key && config->node_id);
    if (!s)
        abort();
    s->magic = S3_MAGIC;
    s->objects = config->objects;
    s->region = slice_dup(slice_str(config->region));
    s->access_key = slice_dup(slice_str(config->access_key));
    s->secret_key = slice_dup(slice_str(config->secret_key));
    s->node_id = slice_dup(slice_str(config->node_id));
    s->session = object_session_new(s->objects, WIRE_VIA_S3);
    s->uploads = uploads_new(s);
    auth_keys_init(&s->keys, slice_str(s->access_key), slice_str(s->secret_key), slice_str(s->region));
    reply_prepare_metrics(s);
    return s;
}

void s3_free(struct s3 *s)
{
    if (!s)
        return;
    assert(s->magic == S3_MAGIC);
    uploads_free(s->uploads);
    object_session_free(s->session);
    auth_keys_fini(&s->keys);
    free(s->region);
    free(s->access_key);
    if (s->secret_key)
        explicit_bzero(s->secret_key, strlen(s->secret_key));
    free(s->secret_key);
    free(s->node_id);
    s->magic = 0;
    free(s);
}

static enum s3_error decode_target(struct s3_request *r)
{
    _cleanup_buf_ struct buf b = BUF_INIT(HTTP_HEAD_MAX_BYTES);

    if (text_uri_decode(&b, r->http->raw_path, /* plus_is_space= */ false) ||
        http_parse_query(r->http->raw_query, r->arena, &r->query, &r->n_query))
        return S3_ERR_INVALID_URI;
    r->path = arena_dup(r->arena, buf_view(&b));
    return S3_OK;
}

static enum s3_error authenticate(struct s3_request *r, bool header_only)
{
    const struct auth_request q = {r->http, r->path, r->query, r->n_query};
    const char *reason = NULL;
    enum s3_error error = auth_parse(&q, r->arena, &r->claim, &reason);

    if (!error && header_only && r->claim.kind != AUTH_HEADER_V4)
        error = S3_ERR_ACCESS_DENIED;
    if (!error)
        error = auth_verify(&q, &r->claim, &r->s3->keys, sys->real_ns() / 1000000000, r->arena, &reason);
    if (error && reason)
        r->message = slice_str(reason);
    if (error == S3_ERR_AUTH_MALFORMED)
        r->extra = slice_str(arena_printf(r->arena, "<Region>%s</Region>", r->s3->region));
    return error;
}

static enum s3_error find_op(struct s3_request *r)
{
    const char *reason = NULL;
    enum s3_error error = route_path(r->path, &r->bucket, &r->key);

    if (!error)
        error = route_op(r->http, r->bucket.n > 0, r->key.n > 0, r->query, r->n_query, &r->op, &reason);
    if (error && reason)
        r->message = slice_str(arena_printf(r->arena, "%s is not implemented here", reason));
    return error;
}

static void request_init(struct s3_request *r, struct s3 *s, struct http_conn *c)
{
    *r = (struct s3_request){.s3 = s,
                             .conn = c,
                             .http = http_conn_request(c),
                             .arena = http_conn_arena(c),
                             .started_ns = sys->mono_ns(),
                             .head = BUF_INIT(S3_HEAD_MAX_BYTES)};
    (void)snprintf(r->id, sizeof r->id, "%016llX", (unsigned long long)http_conn_id(c));
}

void s3_handle(struct http_conn *c, void *arg)
{
    struct s3 *s = CAST_MAGIC(s3, arg, S3_MAGIC);
    struct s3_request r;
    enum s3_error error;

    request_init(&r, s, c);
    error = decode_target(&r);
    if (!error)
        error = authenticate(&r, /* header_only= */ false);
    if (!error)
        error = find_op(&r);
    if (!error)
        error = op_functions[r.op](&r);
    if (error && r.status == 0)
        reply_error(&r, error);
    else if (error)
        http_conn_close_after(c);
    assert(r.status != 0);
    if (!r.parked)
        reply_count(s, r.op, r.status, r.started_ns);
    buf_fini(&r.head);
}

int s3_authenticate(struct s3 *s, struct http_conn *c, struct err *e)
{
    struct s3_request r;
    enum s3_error error;

    assert(s->magic == S3_MAGIC);
    request_init(&r, s, c);
    error = decode_target(&r);
    if (!error)
        error = authenticate(&r, /* header_only= */ true);
    if (!error)
        return 0;
    return err_set(e, ERR_UNAUTHENTICATED, "%s: " SLICE_FMT, s3_error_info(error)->code,
                   SLICE_ARG(r.message.n ? r.message : slice_str(s3_error_info(error)->message)));
}
