/*
 * The S3 front end: takes a request apart, verifies it, hands it to its operation, and sees to it that
 * exactly one answer goes out.
 *
 * 1. Nothing is done for a request, and nothing is said about what exists, before its signature was verified
 * and its user's right was checked. Requests without any signature get as far as reading a bucket that says
 * so.
 * 2. Each request gets one answer. A failure after the head was sent cuts the body and closes the connection,
 * so that no client takes part of an object for all of it.
 */
#include "s3/auth_internal.h"
#include "s3/expire.h"
#include "s3/pulse.h"
#include "s3/s3_internal.h"
#include "s3/uploads.h"

#include "base/sys.h"
#include "base/text.h"

static const s3_op_fn op_functions[S3_OP_COUNT] = {
#define X(name, text, function, right) [S3_OP_##name] = s3_op_##function,
    S3_OPS(X)
#undef X
};

static const enum user_right op_rights[S3_OP_COUNT] = {
#define X(name, text, function, right) [S3_OP_##name] = USER_MAY_##right,
    S3_OPS(X)
#undef X
};

/* auth_secret_fn: the node's own pair, or a user's. */
static int find_secret(void *arg, struct slice access_key, struct buf *ret_secret)
{
    struct s3 *s = arg;
    char secret[USER_SECRET_KEY_LEN + 1];
    int status;

    if (slice_eq_str(access_key, s->access_key))
        return buf_str(ret_secret, s->secret_key);
    {
        _cleanup_(user_unrefp) struct user *u = object_find_user(s->objects, access_key, secret);

        status = u ? buf_str(ret_secret, secret) : -ENOENT;
    }
    explicit_bzero(secret, sizeof secret);
    return status;
}

struct s3 *s3_new(const struct s3_config *config)
{
    struct s3 *s = calloc(1, sizeof *s);

    assert(config->objects && config->region && config->access_key && config->secret_key && config->node_id);
    assert(config->documents_bytes >= MIB); /* a piece of one fits many times */
    if (!s)
        abort();
    s->magic = S3_MAGIC;
    s->objects = config->objects;
    s->region = slice_dup(slice_str(config->region));
    s->access_key = slice_dup(slice_str(config->access_key));
    s->secret_key = slice_dup(slice_str(config->secret_key));
    s->node_id = slice_dup(slice_str(config->node_id));
    if (asprintf(&s->id_lines, "\r\nx-amz-id-2: %s\r\n", s->node_id) < 0)
        abort();
    s->domain = config->domain ? slice_dup(slice_str(config->domain)) : NULL;
    s->session = object_session_new(s->objects, WIRE_VIA_S3);
    s->uploads = uploads_new(s);
    object_on_bucket_removed(s->objects, buckets_removed, s);
    auth_keys_init(&s->keys, find_secret, s, slice_str(s->region));
    reply_prepare_metrics(s);
    uploads_resume(s->uploads);
    s->pulser = pulser_start();
    s->documents = budget_new(config->documents_bytes);
    atomic_init(&s->beyond_documents, false);
    s->hasher = object_hasher(s->objects);
    s->expirer = config->lifecycle_ms ? expirer_start(s, config->lifecycle_ms) : NULL;
    return s;
}

void s3_free(struct s3 *s)
{
    if (!s)
        return;
    assert(s->magic == S3_MAGIC);
    expirer_stop(s->expirer);
    pulser_stop(s->pulser);
    object_on_bucket_removed(s->objects, NULL, NULL);
    uploads_free(s->uploads);
    object_session_free(s->session);
    budget_free(s->documents);
    auth_keys_fini(&s->keys);
    free(s->region);
    free(s->access_key);
    if (s->secret_key)
        explicit_bzero(s->secret_key, strlen(s->secret_key));
    free(s->secret_key);
    free(s->node_id);
    free(s->id_lines);
    free(s->domain);
    s->magic = 0;
    free(s);
}

bool s3_is_bucket_host(const struct s3 *s, const struct http_request *r)
{
    assert(s && s->magic == S3_MAGIC);
    return route_host(http_header(r, "host"), slice_str(s->domain)).n > 0;
}

static enum s3_error decode_target(struct s3_request *r)
{
    struct slice path = r->http->raw_path;

    if (slice_find(path, '%') >= 0) {
        char *to = arena_alloc(r->arena, path.n);
        ssize_t n = text_uri_decode_to(to, path, /* plus_is_space= */ false);

        if (n < 0)
            return S3_ERR_INVALID_URI;
        path = slice_of(to, (size_t)n);
    }
    if (http_parse_query(r->http->raw_query, r->arena, &r->query, &r->n_query))
        return S3_ERR_INVALID_URI;
    r->path = path;
    r->host_bucket = auth_lower(r->arena, route_host(request_header(r, "host"), slice_str(r->s3->domain)));
    return S3_OK;
}

static enum s3_error authenticate(struct s3_request *r, bool header_only)
{
    const struct auth_request q = {r->http, r->path, r->query, r->n_query, r->host_bucket};
    const char *reason = NULL;
    enum s3_error error;

    /* A browser asks with OPTIONS for the very URL that it was given, which was signed for another method. */
    r->anonymous = !header_only && (slice_eq_str(r->http->method, "OPTIONS") || auth_is_anonymous(&q));
    if (r->anonymous) { /* find_op says what it may do */
        r->claim.payload_hash = SLICE_LIT("UNSIGNED-PAYLOAD");
        return S3_OK;
    }
    error = auth_parse(&q, r->arena, &r->claim, &reason);

    if (!error && header_only && r->claim.kind != AUTH_HEADER_V4)
        error = S3_ERR_ACCESS_DENIED;
    if (!error)
        error = auth_verify(&q, &r->claim, &r->s3->keys, sys->real_ns() / 1000000000, r->arena, &reason);
    if (!error && !slice_eq_str(r->claim.access_key, r->s3->access_key)) {
        r->user = object_find_user(r->s3->objects, r->claim.access_key, NULL);
        error = r->user ? S3_OK : S3_ERR_INVALID_ACCESS_KEY; /* revoked just now */
    }
    if (error && reason)
        r->message = slice_str(reason);
    if (error == S3_ERR_AUTH_MALFORMED || error == S3_ERR_QUERY_AUTH_MALFORMED)
        r->extra = slice_str(arena_printf(r->arena, "<Region>%s</Region>", r->s3->region));
    return error;
}

static enum s3_error find_op(struct s3_request *r)
{
    const char *reason = NULL;
    struct slice path = r->path;
    enum s3_error error;

    if (r->host_bucket.n) { /* the same request in path style */
        char *p = arena_alloc(r->arena, 1 + r->host_bucket.n + path.n);

        p[0] = '/';
        memcpy(p + 1, r->host_bucket.p, r->host_bucket.n);
        memcpy(p + 1 + r->host_bucket.n, path.p, path.n);
        path = slice_of(p, 1 + r->host_bucket.n + path.n);
    }
    error = route_path(path, &r->bucket, &r->key);

    if (!error)
        error = route_op(r->http, r->bucket.n > 0, r->key.n > 0, r->query, r->n_query, &r->op, &reason);
    if (error && reason)
        r->message = error == S3_ERR_NOT_IMPLEMENTED
                         ? slice_str(arena_printf(r->arena, "%s is not implemented here", reason))
                         : slice_str(reason);
    return error;
}

/* What is about objects, and not about how the bucket is set up: of a bucket that anybody may read, no more
 * is said to strangers. */
static bool is_of_objects(enum s3_op op)
{
    return op != S3_OP_GET_BUCKET_SETTING && op != S3_OP_GET_ACL && op != S3_OP_GET_OBJECT_LOCK;
}

/* Who signs may do no less than who does not: a user whose pattern does not fit is a stranger here, as that
 * of another account is in S3. */
enum s3_error s3_check_access(struct s3_request *r, enum user_right right, struct slice bucket)
{
    if (!r->anonymous && user_may(r->user, right, bucket))
        return S3_OK;
    if (right == USER_MAY_READ && is_of_objects(r->op) && buckets_anonymous_read(r, bucket))
        return S3_OK;
    return r->anonymous ? reply_refuse(r, S3_ERR_ACCESS_DENIED, "the request is not signed")
                        : S3_ERR_ACCESS_DENIED;
}

/* Operations for which nobody signs in the usual places. */
static bool asks_by_itself(enum s3_op op)
{
    return op == S3_OP_PREFLIGHT || op == S3_OP_POST_OBJECT;
}

/* A client may say whose bucket it means: the node's, as owners are in listings and ACLs. */
static enum s3_error check_owner(struct s3_request *r, const char *header)
{
    struct slice owner = request_header(r, header);

    if (!owner.p || slice_eq_str(owner, r->s3->node_id))
        return S3_OK;
    return reply_refuse(r, S3_ERR_ACCESS_DENIED,
                        arena_printf(r->arena, "%s is not the owner of the bucket", header));
}

static bool is_prefixed(struct slice name, struct slice prefix)
{
    return name.n > prefix.n && slice_eq_case(slice_sub(name, 0, prefix.n), prefix);
}

/* Whether a header of S3's or ours says one thing, of which a second line could only say another: not so are
 * metadata, names of attributes and conditions, which all count. */
static bool is_single(struct slice name)
{
    return (is_prefixed(name, SLICE_LIT("x-amz-")) || is_prefixed(name, SLICE_LIT("x-forebay-"))) &&
           !is_prefixed(name, SLICE_LIT("x-amz-meta-")) &&
           !is_prefixed(name, SLICE_LIT("x-amz-copy-source-if-")) &&
           !slice_eq_case(name, SLICE_LIT("x-amz-object-attributes"));
}

/* Which of two values is meant nobody knows, and one would be ignored. In forms each field needs a condition
 * of its own (policy.c). */
static enum s3_error refuse_doubled(struct s3_request *r)
{
    const struct http_header *all = r->http->headers;

    for (size_t i = 1; i < r->http->n_headers; i++) {
        if (!is_single(all[i].name))
            continue;
        for (size_t j = 0; j < i; j++)
            if (slice_eq_case(all[i].name, all[j].name) && !slice_eq(all[i].value, all[j].value))
                return reply_refuse(r, S3_ERR_INVALID_REQUEST,
                                    arena_printf(r->arena, "the header " SLICE_FMT " says two things",
                                                 SLICE_ARG(all[i].name)));
    }
    return S3_OK;
}

/* What is wanted, and whether who asks may have it: nothing else is said to those who may not. */
static enum s3_error settle_op(struct s3_request *r)
{
    enum s3_error error = find_op(r);

    if (error && r->anonymous)
        return reply_refuse(r, S3_ERR_ACCESS_DENIED, "the request is not signed");
    if (!error && !asks_by_itself(r->op))
        error = s3_check_access(r, op_rights[r->op], r->bucket);
    if (!error && r->bucket.n)
        error = check_owner(r, "x-amz-expected-bucket-owner");
    if (!error)
        error = check_owner(r, "x-amz-source-expected-bucket-owner");
    if (!error)
        error = refuse_doubled(r);
    for (size_t i = 0; !error && r->anonymous && !asks_by_itself(r->op) && i < r->n_query; i++)
        if (slice_starts(r->query[i].name, SLICE_LIT("response-")))
            error = reply_refuse(r, S3_ERR_INVALID_REQUEST,
                                 "headers of the response can only be chosen in signed requests");
    return error;
}

/* A bucket that is asked for by its own origin would ask for ever, each time with another thread. */
static enum s3_error check_trail(struct s3_request *r)
{
    for (size_t i = 0; i < r->http->n_headers && r->bucket.n; i++)
        if (slice_eq_case(r->http->headers[i].name, SLICE_LIT(TRAIL_HEADER)) &&
            !object_follow_trail(r->s3->objects, r->bucket, r->http->headers[i].value))
            return reply_refuse(
                r, S3_ERR_LOOP,
                arena_printf(r->arena,
                             "the origin of bucket " SLICE_FMT
                             " leads back to it, directly or through other nodes: give one of them another "
                             "origin; what was changed counts after %d s",
                             SLICE_ARG(r->bucket), TRAIL_MS / 1000));
    return S3_OK;
}

/* The peer's address without its port: the client of limits and shares. */
static struct slice client_of(const struct s3_request *r)
{
    struct slice peer = slice_str(http_conn_peer(r->conn));
    ssize_t colon = slice_rfind(peer, ':');

    return colon > 0 ? slice_sub(peer, 0, (size_t)colon) : peer;
}

enum s3_error s3_enter_gate(struct s3_request *r)
{
    struct err e = {0};

    if (!object_gate_is_closed(r->s3->objects))
        return S3_OK;
    if (object_gate_enter(r->s3->objects, r->bucket, r->user, client_of(r), &r->pass, &e) == 0)
        return S3_OK;
    return reply_refuse(r, S3_ERR_SLOW_DOWN, "too many requests wait for the limits of this node");
}

/* What was received and sent; of a tail, what it will send. */
static void leave_gate(struct s3_request *r)
{
    uint64_t received = http_conn_taken(r->conn); /* what was only announced costs nothing */

    object_gate_leave(r->s3->objects, &r->pass, received + http_conn_sent(r->conn) + r->tail_bytes);
}

/* 16 upper-case digits. */
static void put_id(uint64_t id, char ret[17])
{
    for (int i = 15; i >= 0; i--, id >>= 4)
        ret[i] = "0123456789ABCDEF"[id & 15];
    ret[16] = 0;
}

static void request_init(struct s3_request *r, struct s3 *s, struct http_conn *c)
{
    *r = (struct s3_request){.s3 = s,
                             .conn = c,
                             .http = http_conn_request(c),
                             .arena = http_conn_arena(c),
                             .started_ns = sys->mono_ns(),
                             .head = BUF_INIT(S3_HEAD_MAX_BYTES)};
    put_id(http_conn_id(c), r->id);
}

static void request_fini(struct s3_request *r)
{
    if (r->claim.secret_key.n)
        explicit_bzero((void *)(uintptr_t)r->claim.secret_key.p, r->claim.secret_key.n);
    user_unref(r->user);
    buf_fini(&r->head);
    put_document_end(r);
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
    if (!error && !r.anonymous && r.claim.kind == AUTH_URL_V4)
        error = url_headers_take(&r);
    if (!error)
        error = settle_op(&r);
    if (!error)
        error = check_trail(&r);
    preflight_headers(&r);
    if (!error && r.op != S3_OP_POST_OBJECT) /* who made a form is known later */
        error = s3_enter_gate(&r);
    if (!error)
        error = op_functions[r.op](&r);
    if (error && r.status == 0)
        reply_error(&r, error);
    else if (error)
        http_conn_close_after(c);
    assert(r.status != 0);
    leave_gate(&r);
    if (!r.parked)
        reply_count(s, r.op, r.status, r.started_ns);
    request_fini(&r);
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
    if (!error && !user_may(r.user, USER_MAY_MANAGE, SLICE_NULL))
        error = reply_refuse(&r, S3_ERR_ACCESS_DENIED, "this takes an admin");
    request_fini(&r);
    if (!error)
        return 0;
    return err_set(e, ERR_UNAUTHENTICATED, "%s: " SLICE_FMT, s3_error_info(error)->code,
                   SLICE_ARG(r.message.n ? r.message : slice_str(s3_error_info(error)->message)));
}
