/*
 * PostObject: a browser's form with fields, a signed policy, and a file as its last part.
 *
 * 1. Nothing of the file is read before the policy's signature was verified, the policy holds for all fields
 * before the file, and who signed may write. Fields behind the file are not looked at.
 * 2. The fields that are headers of an upload elsewhere mean the same here: they become the headers of the
 * request that PutObject would have had.
 */
#include "s3/auth_internal.h"
#include "s3/form.h"
#include "s3/policy.h"
#include "s3/s3_internal.h"
#include "s3/tags.h"
#include "s3/xml.h"

#include "base/sys.h"
#include "base/text.h"
#include "origin/origin.h"

#define FIELDS_MAX       64
#define FIELDS_MAX_BYTES (64 * KIB) /* all of them, as they are kept */
#define REPLY_MAX_BYTES  (16 * KIB)
#define FIELDS_MAX_NS    60000000000ull /* for all of them to arrive */

struct post {
    struct s3_request *r;
    struct form form;
    struct form_part part;                      /* the file's, in the end */
    struct policy_field fields[FIELDS_MAX + 1]; /* names in lower case; the bucket comes with them */
    size_t n;
    struct policy_limits limits;
    uint64_t got;
    enum s3_error error; /* of the file's bytes */
};

/* body_source_fn. Until it is known who made the form, nobody keeps a thread by dribbling. */
static ssize_t read_conn(void *arg, void *p, size_t n)
{
    const struct post *post = arg;

    if (post->r->anonymous && sys->mono_ns() > post->r->started_ns + FIELDS_MAX_NS)
        return -ETIMEDOUT;
    return http_conn_read(post->r->conn, p, n);
}

/* Value of a field, SLICE_NULL when the form has none. */
static struct slice field(const struct post *p, const char *name)
{
    for (size_t i = 0; i < p->n; i++)
        if (strcmp(p->fields[i].name, name) == 0)
            return p->fields[i].value;
    return SLICE_NULL;
}

static enum s3_error add_field(struct post *p, const char *name, struct slice value)
{
    struct slice lower = auth_lower(p->r->arena, slice_str(name));

    if (p->n == FIELDS_MAX)
        return reply_refuse(p->r, S3_ERR_MALFORMED_POST, "the form has too many fields");
    p->fields[p->n++] = (struct policy_field){arena_str(p->r->arena, lower), arena_dup(p->r->arena, value)};
    return S3_OK;
}

/* All parts before the file. */
static enum s3_error read_fields(struct post *p)
{
    _cleanup_buf_ struct buf value = BUF_INIT(FIELDS_MAX_BYTES);
    size_t total = 0;
    bool more;

    for (;;) {
        enum s3_error error = form_next(&p->form, &p->part, &more);
        char piece[1024];
        ssize_t n;

        if (error)
            return error;
        if (!more)
            return reply_refuse(p->r, S3_ERR_INVALID_ARGUMENT, "the form has no file");
        if (slice_eq_case(slice_str(p->part.name), SLICE_LIT("file")))
            return S3_OK;
        buf_clear(&value);
        while ((n = form_read(&p->form, piece, sizeof piece, &error)) > 0) {
            total += (size_t)n;
            if (total > FIELDS_MAX_BYTES || buf_append(&value, piece, (size_t)n))
                return reply_refuse(p->r, S3_ERR_MALFORMED_POST, "the form's fields are larger than 64 KiB");
        }
        if (n == 0)
            error = add_field(p, p->part.name, buf_view(&value));
        if (error)
            return error;
    }
}

/* The key, with "${filename}" replaced by the file's name without its folders. */
static enum s3_error find_key(struct post *p)
{
    _cleanup_buf_ struct buf b = BUF_INIT(2 * S3_KEY_MAX_BYTES);
    const struct slice variable = SLICE_LIT("${filename}");
    struct slice key = field(p, "key"), name = slice_str(p->part.filename);
    ssize_t at = slice_rfind(name, '/'), back = slice_rfind(name, '\\');
    int status = 0;

    if (key.n == 0)
        return reply_refuse(p->r, S3_ERR_INVALID_ARGUMENT, "the form has no field key");
    name = slice_from(name, (size_t)(MAX(at, back) + 1));
    while (status == 0 && (at = slice_find_slice(key, variable)) >= 0) {
        status = buf_slice(&b, slice_sub(key, 0, (size_t)at));
        if (status == 0)
            status = buf_slice(&b, name);
        key = slice_from(key, (size_t)at + variable.n);
    }
    if (status == 0)
        status = buf_slice(&b, key);
    if (status || b.n > S3_KEY_MAX_BYTES)
        return S3_ERR_KEY_TOO_LONG;
    if (!slice_is_utf8(buf_view(&b)) || memchr(b.p, 0, b.n))
        return S3_ERR_INVALID_URI;
    p->r->key = arena_dup(p->r->arena, buf_view(&b));
    for (size_t i = 0; i < p->n; i++) /* the policy is about the key that is made */
        if (strcmp(p->fields[i].name, "key") == 0)
            p->fields[i].value = p->r->key;
    return S3_OK;
}

/* ---- who made the form, and what it may ---- */

static enum s3_error verify(struct post *p)
{
    struct s3_request *r = p->r;
    const struct auth_policy policy = {
        .policy = field(p, "policy"),
        .signature = field(p, field(p, "x-amz-signature").p ? "x-amz-signature" : "signature"),
        .algorithm = field(p, "x-amz-algorithm"),
        .credential = field(p, "x-amz-credential"),
        .date = field(p, "x-amz-date"),
        .access_key = field(p, "awsaccesskeyid")};
    uint64_t now_s = sys->real_ns() / 1000000000;
    const char *reason = NULL;
    enum s3_error error;

    if (!r->anonymous)
        return reply_refuse(r, S3_ERR_INVALID_REQUEST, "a form is signed by its policy and nowhere else");
    if (!policy.policy.p && !policy.signature.p)
        return reply_refuse(r, S3_ERR_ACCESS_DENIED, "the form is not signed");
    error = auth_verify_policy(&policy, &r->s3->keys, now_s, r->arena, &r->claim, &reason);
    if (error)
        return reason ? reply_refuse(r, error, reason) : error;
    r->anonymous = false;
    if (!slice_eq_str(r->claim.access_key, r->s3->access_key)) {
        r->user = object_find_user(r->s3->objects, r->claim.access_key, NULL);
        if (!r->user)
            return S3_ERR_INVALID_ACCESS_KEY;
    }
    return s3_check_access(r, USER_MAY_WRITE, r->bucket);
}

static enum s3_error check_policy(struct post *p)
{
    _cleanup_buf_ struct buf document = BUF_INIT(FIELDS_MAX_BYTES);
    const char *reason = NULL;
    enum s3_error error;

    if (text_unbase64(&document, field(p, "policy")))
        return reply_refuse(p->r, S3_ERR_INVALID_POLICY, "the policy is not in base64");
    p->fields[p->n] = (struct policy_field){"bucket", p->r->bucket};
    for (size_t i = 0; i < p->n; i++) /* whatever the form says of it */
        if (strcmp(p->fields[i].name, "bucket") == 0)
            p->fields[i].value = p->r->bucket;
    error = policy_check(buf_view(&document), p->fields, p->n + !field(p, "bucket").p, sys->real_ns(),
                         &p->limits, &reason);
    return error && reason ? reply_refuse(p->r, error, reason) : error;
}

/* ---- the upload ---- */

/* body_source_fn: the file's bytes, as many as the policy allows. */
static ssize_t read_file(void *arg, void *p, size_t n)
{
    struct post *post = arg;
    ssize_t k = form_read(&post->form, p, n, &post->error);

    if (k < 0)
        return -EPIPE;
    post->got += (size_t)k;
    if (post->got > post->limits.most)
        post->error = S3_ERR_ENTITY_TOO_LARGE;
    else if (k == 0 && post->got < post->limits.least)
        post->error = S3_ERR_ENTITY_TOO_SMALL;
    return post->error ? -EPIPE : k;
}

static enum s3_error add_tags(struct post *p, struct http_request *http)
{
    _cleanup_buf_ struct buf kept = BUF_INIT(ORIGIN_META_MAX_BYTES);
    struct arena *a = p->r->arena;
    struct slice document = field(p, "tagging");
    struct tags *t = arena_alloc(a, sizeof *t);
    const char *reason = NULL;
    enum s3_error error;

    if (!document.p)
        return S3_OK;
    error = tags_parse_xml(document, TAGS_OBJECT_MAX, a, t, &reason);
    if (error)
        return reply_refuse(p->r, error, reason);
    if (tags_put(t, &kept))
        return S3_ERR_METADATA_TOO_LARGE;
    http->headers[http->n_headers++] =
        (struct http_header){SLICE_LIT("x-amz-tagging"), arena_dup(a, buf_view(&kept))};
    return S3_OK;
}

/* RFC 9110 5.6.2. */
static bool can_be_header(struct slice name)
{
    for (size_t i = 0; i < name.n; i++) {
        char c = name.p[i];

        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c && strchr("!#$%&'*+-.^_`|~", c))))
            return false;
    }
    return true;
}

/* The request that PutObject would have had. */
static enum s3_error become_put(struct post *p)
{
    struct http_request *http = arena_zalloc(p->r->arena, sizeof *http);

    http->method = p->r->http->method;
    http->target = p->r->http->target;
    http->raw_path = p->r->http->raw_path;
    http->chunked = true; /* nobody said how long the file is */
    for (size_t i = 0; i < p->n; i++) {
        struct slice name = slice_str(p->fields[i].name);

        for (size_t j = 0; j < name.n; j++) /* names become lines of metadata, and of answers */
            if ((unsigned char)name.p[j] < 0x20)
                return reply_refuse(p->r, S3_ERR_INVALID_ARGUMENT,
                                    "the name of a field of the form has a control character");
        if (put_is_kept(name) && !can_be_header(name)) /* nor does one become a line of ours by a colon */
            return reply_refuse(p->r, S3_ERR_INVALID_ARGUMENT,
                                "the name of a field of the form cannot be that of a header");
        for (size_t j = 0; j < p->fields[i].value.n; j++)
            if ((unsigned char)p->fields[i].value.p[j] < 0x20 && !slice_eq_str(name, "tagging"))
                return reply_refuse(p->r, S3_ERR_INVALID_ARGUMENT,
                                    "a field of the form has a control character");
        if (slice_eq_str(name, "acl"))
            name = SLICE_LIT("x-amz-acl");
        http->headers[http->n_headers++] = (struct http_header){name, slice_trim(p->fields[i].value)};
    }
    p->r->http = http;
    return add_tags(p, http);
}

static void reply_created(struct post *p, struct slice location, struct slice etag)
{
    _cleanup_buf_ struct buf b = BUF_INIT(REPLY_MAX_BYTES);
    char quoted[REPLY_ETAG_TEXT_MAX];
    struct xml x = {&b, 0};

    xml_start(&x);
    xml_open(&x, "PostResponse");
    xml_text(&x, "Location", location);
    xml_text(&x, "Bucket", p->r->bucket);
    xml_text(&x, "Key", p->r->key);
    xml_text(&x, "ETag", slice_str(reply_etag_text(etag, quoted)));
    xml_close(&x, "PostResponse");
    assert(x.status == 0);
    reply_send(p->r, 201, "application/xml", buf_view(&b));
}

/* 303 to where the form says, with what was made in the query. */
static bool redirect(struct post *p, struct slice etag)
{
    _cleanup_buf_ struct buf b = BUF_INIT(REPLY_MAX_BYTES);
    struct slice target = field(p, "success_action_redirect");
    char quoted[REPLY_ETAG_TEXT_MAX];

    if (!target.p)
        target = field(p, "redirect");
    if (!slice_starts(target, SLICE_LIT("http://")) && !slice_starts(target, SLICE_LIT("https://")))
        return false;
    if (buf_slice(&b, target) || buf_str(&b, slice_find(target, '?') < 0 ? "?bucket=" : "&bucket=") ||
        buf_slice(&b, p->r->bucket) || buf_str(&b, "&key=") || text_uri_encode(&b, p->r->key, true) ||
        buf_str(&b, "&etag=") || text_uri_encode(&b, slice_str(reply_etag_text(etag, quoted)), false))
        return false;
    reply_header(p->r, "Location", buf_view(&b));
    reply_send(p->r, 303, NULL, SLICE_NULL);
    return true;
}

static void reply(struct post *p, struct slice host, struct slice etag)
{
    _cleanup_buf_ struct buf location = BUF_INIT(REPLY_LOCATION_MAX); /* its XML fits the answer */
    struct slice status = field(p, "success_action_status");

    if (redirect(p, etag))
        return;
    if (reply_location(p->r, host, &location))
        buf_clear(&location);
    if (location.n)
        reply_header(p->r, "Location", buf_view(&location));
    if (slice_eq_str(status, "201"))
        reply_created(p, buf_view(&location), etag);
    else
        reply_send(p->r, slice_eq_str(status, "200") ? 200 : 204, NULL, SLICE_NULL);
}

static enum s3_error post(struct post *p)
{
    struct slice host = request_header(p->r, "host");
    struct wire_attr attr;
    enum s3_error error = read_fields(p);

    if (!error)
        error = verify(p);
    if (!error)
        error = s3_enter_gate(p->r);
    if (!error)
        error = buckets_find(p->r);
    if (!error)
        error = find_key(p);
    if (!error)
        error = check_policy(p);
    if (!error)
        error = become_put(p);
    if (!error)
        error = put_stream(p->r, read_file, p, &attr);
    if (p->error)
        error = p->error;
    if (!error)
        reply(p, host, attr.etag);
    return error;
}

enum s3_error s3_op_post_object(struct s3_request *r)
{
    struct post *p = arena_zalloc(r->arena, sizeof *p);
    const struct http_request *http = r->http;
    enum s3_error error;

    p->r = r;
    error = form_init(&p->form, request_header(r, "content-type"), read_conn, p);
    if (!error)
        error = post(p);
    form_fini(&p->form);
    r->http = http;
    return error;
}
