/*
 * What is sent: URL, headers and signature of a call.
 *
 * Invariants:
 *  1. The path and the query that are signed are the ones in the URL, from one decoded form, encoded once.
 *  2. Anonymous origins send neither date nor authorization.
 *
 * Failure modes: -EINVAL for values that cannot be headers, -E2BIG and -ENAMETOOLONG beyond the maxima.
 */
#include "origin/s3_internal.h"

#include "base/text.h"
#include "origin/meta.h"

#define HEADER_MAX   (16 * KIB)
#define WHY_AGAIN_MS 1000 /* for so long a refusal for another reason is believed to be that of others */

static int full_path(struct web_call *c, struct buf *b)
{
    struct s3 *s = s3_of_web(c->web);
    int r = buf_str(b, s->path_root);
    if (r == 0 && c->has_key)
        r = buf_printf(b, "/%s", s->prefix);
    if (r == 0 && c->has_key)
        r = buf_slice(b, c->key);
    if (r == 0 && b->n == 0)
        r = buf_char(b, '/');
    return r;
}

static int make_url(struct web_call *c, struct slice path, struct buf *b)
{
    int r = buf_str(b, s3_of_web(c->web)->endpoint.base);
    if (r == 0)
        r = text_uri_encode(b, path, /* keep_slash= */ true);
    return r < 0 ? r : web_request_query(c, b);
}

static bool is_signed_header(struct slice name)
{
    return slice_starts(name, SLICE_LIT("x-amz-")) || slice_eq_str(name, "content-type") ||
           slice_eq_str(name, "content-md5");
}

/* The signing key of the day, derived anew when the day or the credentials change. */
static struct sigv4_key day_key(struct s3 *s, const struct s3_credentials *k, struct slice day)
{
    struct sigv4_key key;
    LOCK_SCOPE(&s->lock);
    if (slice_eq_str(day, s->day) && strcmp(s->day_access_key, k->access_key) == 0)
        return s->day_key;
    sigv4_derive_key(slice_str(k->secret_key), day, slice_str(s->region), SLICE_LIT("s3"), &key);
    bool fits = strlen(k->access_key) < sizeof(s->day_access_key);
    s->day_key = key;
    memcpy(s->day, day.p, SIGV4_DATE_LEN);
    (void)snprintf(s->day_access_key, sizeof(s->day_access_key), "%s", fits ? k->access_key : "");
    return key;
}

/* All headers but the authorization: the call's own, its metadata, then what every request has. */
static int gather_headers(struct web_call *c, const struct s3_credentials *k, struct slice time,
                          struct sigv4_pair *pairs, size_t *ret_own, size_t *n, struct err *e)
{
    struct s3 *s = s3_of_web(c->web);
    memcpy(pairs, c->headers, c->n_headers * sizeof(*pairs));
    *n = c->n_headers;
    struct slice meta = c->meta, name, value;
    while (web_next_meta(c->web, &meta, &name, &value)) {
        if (*n + 9 >= SIGV4_PAIRS_MAX)
            return err_set(e, -E2BIG, "more than %d headers", SIGV4_PAIRS_MAX - 9);
        pairs[(*n)++] = (struct sigv4_pair){name, value};
    }
    *ret_own = *n;
    pairs[(*n)++] = (struct sigv4_pair){SLICE_LIT("host"), slice_str(s->endpoint.host)};
    bool of_object = c->n_query == 0 || slice_eq_str(c->query[0].name, "partNumber");
    bool reads = c->has_key && of_object && (c->method == WEB_HEAD || c->method == WEB_GET);
    if (reads)
        pairs[(*n)++] = (struct sigv4_pair){SLICE_LIT("x-amz-checksum-mode"), SLICE_LIT("ENABLED")};
    if (s->pays)
        pairs[(*n)++] = (struct sigv4_pair){SLICE_LIT("x-amz-request-payer"), SLICE_LIT("requester")};
    if (reads && c->web->kind->is_node)
        pairs[(*n)++] = (struct sigv4_pair){SLICE_LIT(META_SHOW_HEADER), SLICE_LIT(META_SHOW_TAGS)};
    if (!k->access_key)
        return 0;
    pairs[(*n)++] = (struct sigv4_pair){SLICE_LIT("x-amz-date"), time};
    struct slice hash = c->payload_sha256.n ? c->payload_sha256 : SLICE_LIT("UNSIGNED-PAYLOAD");
    pairs[(*n)++] = (struct sigv4_pair){SLICE_LIT("x-amz-content-sha256"), hash};
    if (k->session_token)
        pairs[(*n)++] = (struct sigv4_pair){SLICE_LIT("x-amz-security-token"), slice_str(k->session_token)};
    return 0;
}

/* Not signed: what is between may add to it. */
static int tell_trail(struct s3 *s, struct web_request *q, struct err *e)
{
    struct buf _cleanup_buf_ value = BUF_INIT(TRAIL_TEXT_MAX);
    if (!s->tells_trail)
        return 0;
    trail_tell(&s->base.trail, sys_mono_ms(), &value);
    return web_request_header(q, SLICE_LIT(TRAIL_HEADER), buf_view(&value), e);
}

static int authorize(struct web_call *c, const struct s3_credentials *k, struct slice path, struct slice time,
                     const struct sigv4_pair *pairs, size_t n, struct buf *ret, struct err *e)
{
    struct s3 *s = s3_of_web(c->web);
    struct sigv4_pair to_sign[SIGV4_PAIRS_MAX];
    size_t n_to_sign = 0;
    for (size_t i = 0; i < n; i++)
        if (is_signed_header(pairs[i].name) || slice_eq_str(pairs[i].name, "host"))
            to_sign[n_to_sign++] = pairs[i];
    struct sigv4_request r = {
        .method = web_method_name(c->method),
        .path = path,
        .query = c->query,
        .n_query = c->n_query,
        .headers = to_sign,
        .n_headers = n_to_sign,
        .payload_hash = c->payload_sha256.n ? c->payload_sha256 : SLICE_LIT("UNSIGNED-PAYLOAD"),
    };
    struct slice day = slice_sub(time, 0, SIGV4_DATE_LEN);
    struct sigv4_scope scope = {time, slice_str(s->region), SLICE_LIT("s3")};
    struct sigv4_key key = day_key(s, k, day);
    char signature[SIGV4_SIGNATURE_LEN + 1];
    int x = sigv4_sign(&r, &scope, &key, signature);
    explicit_bzero(&key, sizeof(key));
    if (x == 0)
        x = buf_printf(ret, "AWS4-HMAC-SHA256 Credential=%s/" SLICE_FMT "/%s/s3/aws4_request, SignedHeaders=",
                       k->access_key, SLICE_ARG(day), s->region);
    if (x == 0)
        x = sigv4_signed_headers(&r, ret);
    if (x == 0)
        x = buf_printf(ret, ", Signature=%s", signature);
    return x < 0 ? err_set(e, x, "the request is too large to be signed") : 0;
}

/* What gather_headers added, after the call's own and its metadata, which web_request_headers sends. */
static int make_headers(struct web_call *c, const struct s3_credentials *k, struct slice path,
                        struct web_request *q, struct err *e)
{
    char time_text[SIGV4_TIME_LEN + 1];
    sigv4_time(sys->real_ns(), time_text);
    struct slice time = slice_of(time_text, SIGV4_TIME_LEN);
    struct sigv4_pair pairs[SIGV4_PAIRS_MAX];
    size_t n = 0, n_own = 0;
    int r = gather_headers(c, k, time, pairs, &n_own, &n, e);
    if (r == 0)
        r = web_request_headers(c, q, e);
    if (r == 0)
        r = tell_trail(s3_of_web(c->web), q, e);
    for (size_t i = n_own; i < n && r == 0; i++)
        r = web_request_header(q, pairs[i].name, pairs[i].value, e);
    if (r < 0 || !k->access_key)
        return r;
    struct buf _cleanup_buf_ authorization = BUF_INIT(HEADER_MAX);
    r = authorize(c, k, path, time, pairs, n, &authorization, e);
    return r < 0 ? r : web_request_header(q, SLICE_LIT("Authorization"), buf_view(&authorization), e);
}

int s3_request_prepare(struct web_call *c, struct web_request *q, struct err *e)
{
    struct buf _cleanup_buf_ path = BUF_INIT(WEB_URL_MAX);
    int r = full_path(c, &path);
    if (r == 0)
        r = make_url(c, buf_view(&path), &q->url);
    if (r < 0)
        return err_set(e, -ENAMETOOLONG, "the request's URL is too long");
    struct s3 *s = s3_of_web(c->web);
    if (!s->keys.provider)
        return make_headers(c, &s->keys.fixed, buf_view(&path), q, e);
    struct s3_credentials _cleanup_(s3_credentials_fini) k = {0};
    r = s3_provider_get(s->keys.provider, &k, &c->credentials, e);
    return r < 0 ? r : make_headers(c, &k, buf_view(&path), q, e);
}

/* S3's own refusals have a code, and those of nodes an id; answers to HEAD have no document, and not all
 * services an id: s3_request_why. */
static bool is_strange(const struct web_call *c, struct slice body, int *ret, struct err *e)
{
    struct web_error x;
    if (c->method == WEB_HEAD && !c->web->kind->is_node)
        return false;
    web_error_parse(body, &x);
    return !x.code[0] && web_error_is_strange(&c->response, body, ret, e);
}

int s3_request_refused(struct web_call *c, struct err *e)
{
    struct s3 *s = s3_of_web(c->web);
    int r;
    if (is_strange(c, buf_view(&c->error_body), &r, e))
        return r;
    c->ended = s->keys.provider && s3_error_is_expired(&c->response, buf_view(&c->error_body));
    if (c->ended)
        s3_provider_drop(s->keys.provider, c->credentials);
    return s3_error_of(s, &c->response, buf_view(&c->error_body), e);
}

/* ---- refusals of HEAD ---- */

static int stop_body(void *arg, const void *p, size_t n)
{
    (void)arg, (void)p, (void)n;
    return -EALREADY;
}

/* The object's first byte: a refusal of that has words. -EALREADY: it comes. */
static int ask_for_byte(const struct web_call *c, struct web_call *ask, struct err *said)
{
    web_call_init(ask, c->web, WEB_GET, "get");
    ask->has_key = true;
    ask->key = c->key;
    ask->cancel = c->cancel;
    ask->also_cancel = c->also_cancel;
    ask->on_body = stop_body;
    for (size_t i = 0; i < c->n_query; i++)
        if (slice_eq_str(c->query[i].name, "versionId"))
            web_query(ask, c->query[i].name, c->query[i].value);
    web_header(ask, SLICE_LIT("range"), SLICE_LIT("bytes=0-0"));
    return web_perform(ask, said);
}

/* Of a 404 that looks as one of something between, which does not reach the service. */
static int why_absent(const struct web_call *c, int r, struct err *e)
{
    struct slice type = buf_view(&c->response.content_type);
    if (c->response.has_id || type.n == 0 || slice_find_slice(type, SLICE_LIT("xml")) >= 0)
        return r;
    struct web_call _cleanup_(web_call_fini) ask;
    struct err said = {0};
    int k = ask_for_byte(c, &ask, &said);
    if (k == -ENOENT)
        return r;
    if (k == 0 || k == -EALREADY || k == ERR_RANGE)
        return err_set(e, ERR_ORIGIN_FAILED, "404 to a HEAD of what a GET finds");
    if (e)
        *e = said;
    return k;
}

/* By the time that it is asked other credentials may be there, for which web_perform has asked when those had
 * ended. */
int s3_request_why(struct web_call *c, int r, struct err *e)
{
    struct s3 *s = s3_of_web(c->web);
    uint64_t now_ms = sys_mono_ms(), why_ms = atomic_load(&s->why_ms);
    bool may_end = s->keys.provider || s->keys.fixed.session_token;
    if (c->has_key && c->response.status == 404)
        return why_absent(c, r, e);
    if (!may_end || !c->has_key || (why_ms > 0 && now_ms - why_ms < WHY_AGAIN_MS))
        return r;
    struct web_call _cleanup_(web_call_fini) ask;
    struct err said = {0};
    int k = ask_for_byte(c, &ask, &said);
    bool denied = k == ERR_ORIGIN_DENIED;
    c->ended = !denied && ask.credentials != c->credentials;
    if (!c->ended && !(denied && s3_error_is_expired(&ask.response, buf_view(&ask.error_body))))
        atomic_store(&s->why_ms, now_ms);
    if (denied && e)
        *e = said;
    return denied ? k : r;
}
