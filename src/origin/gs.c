/*
 * The Google Cloud Storage kind, by the JSON API: opening an origin, addressing, reads.
 *
 *     gs://BUCKET[/PREFIX]   https://storage.googleapis.com, or origin.endpoint, or STORAGE_EMULATOR_HOST
 *
 * The bytes of an object come with alt=media, its attributes as a JSON resource. A read is pinned by
 * ifGenerationMatch, and the generation that the answer tells is compared here too. Type, size and generation
 * stand in the headers of the bytes as well, perhaps the time; metadata does not (emulators tell it), and
 * what is said there of caching and disposition is the answer's own.
 *
 * Invariants:
 *  1. Bytes arrive as they are stored: Accept-Encoding says gzip, so that the service unpacks nothing.
 *  2. The token goes to the endpoint only; a session that lies elsewhere is used without it.
 *  3. Nothing is sent at open.
 *
 * Failure modes: ERR_BAD_OPTION with the option's name; those of web_perform and of the token service.
 */
#include "origin/gs_internal.h"

#include "base/text.h"

#include <ctype.h>

int gs_object_url(const struct gs *g, const char *before, bool has_key, struct slice key, struct buf *b)
{
    int r = buf_printf(b, "%s%s%s/storage/v1/b/%s/o%s", g->endpoint.base, g->endpoint.path, before, g->bucket,
                       has_key ? "/" : "");
    struct buf _cleanup_buf_ whole = BUF_INIT(WEB_URL_MAX);
    if (r == 0 && has_key)
        r = buf_str(&whole, g->prefix);
    if (r == 0 && has_key)
        r = buf_slice(&whole, key);
    return r < 0 || !has_key ? r : text_uri_encode(b, buf_view(&whole), /* keep_slash= */ false);
}

bool gs_is_reserved(struct slice key)
{
    while (key.n > 0)
        if (slice_eq_str(slice_split(&key, '/'), GS_PARTS))
            return true;
    return false;
}

/* Names that the service has for itself; emulators take them. */
#define CHALLENGES ".well-known/acme-challenge/"

static bool is_challenge(const char *prefix, struct slice key)
{
    struct slice before = slice_str(prefix), all = SLICE_LIT(CHALLENGES);
    if (before.n >= all.n)
        return slice_starts(before, all);
    return slice_starts(all, before) && slice_starts(key, slice_from(all, before.n));
}

int gs_check_key(const struct gs *g, struct slice key, struct err *e)
{
    int r = web_check_key(g->prefix, key, e);
    if (r < 0)
        return r;
    if (gs_is_reserved(key))
        return err_set(e, -EINVAL, "the name " GS_PARTS " is reserved for the parts of uploads");
    if (slice_find(key, '\n') >= 0 || slice_find(key, '\r') >= 0)
        return err_set(e, -EINVAL, "the service has no objects with line breaks in their names");
    if (is_challenge(g->prefix, key))
        return err_set(e, -EINVAL, "the service has no objects below " CHALLENGES);
    /* A slash within a name is encoded: only as a whole can one lead away, to the bucket itself. */
    return !g->prefix[0] && (slice_eq_str(key, ".") || slice_eq_str(key, ".."))
               ? err_set(e, -EINVAL, "the service has no objects named \".\" and \"..\"")
               : 0;
}

static int add_token(struct gs *g, struct web_call *c, struct web_request *q, struct err *e)
{
    struct buf _cleanup_buf_ value = BUF_INIT(16 * KIB);
    int r = buf_str(&value, "Bearer ");
    size_t empty_n = value.n;
    if (r == 0)
        r = gs_token_get(g->token, &value, &c->credentials, e);
    if (r == 0 && value.n > empty_n)
        r = web_request_header(q, SLICE_LIT("Authorization"), buf_view(&value), e);
    if (value.p)
        explicit_bzero(value.p, value.n);
    return r;
}

/* Whether the URL leads to the endpoint: no other host or port that begins alike, nor what is only its user.
 */
static bool is_own(const struct gs *g, struct slice url)
{
    struct slice base = slice_str(g->endpoint.base), rest = slice_from(url, base.n);
    return slice_starts(url, base) && (rest.n == 0 || rest.p[0] == '/' || rest.p[0] == '?');
}

static int prepare(struct web_call *c, struct web_request *q, struct err *e)
{
    struct gs *g = gs_of(c->web->origin);
    int r = c->url.n ? buf_slice(&q->url, c->url) : gs_object_url(g, "", c->has_key, c->key, &q->url);
    bool own = is_own(g, buf_view(&q->url));
    if (r == 0)
        r = web_request_query(c, &q->url);
    if (r < 0)
        return err_set(e, -ENAMETOOLONG, "the request's URL is too long");
    r = web_request_headers(c, q, e);
    if (r == 0 && c->method == WEB_GET)
        r = web_request_header(q, SLICE_LIT("Accept-Encoding"), SLICE_LIT("gzip"), e);
    if (r == 0 && g->billing_project && own)
        r = web_request_header(q, SLICE_LIT("x-goog-user-project"), slice_str(g->billing_project), e);
    return r == 0 && g->token && own ? add_token(g, c, q, e) : r;
}

static int refused(struct web_call *c, struct err *e)
{
    struct gs *g = gs_of(c->web->origin);
    c->ended = c->response.status == 401 && g->token;
    if (c->ended)
        gs_token_drop(g->token, c->credentials);
    struct slice body = buf_view(&c->error_body), text = body;
    int strange; /* the service's words are JSON, or a line of text */
    while (text.n > 0 && isspace((unsigned char)text.p[0]))
        text = slice_from(text, 1);
    if (slice_starts(text, SLICE_LIT("<")) && web_error_is_strange(&c->response, body, &strange, e))
        return strange;
    return gs_json_refused(&c->response, body, e);
}

bool gs_is_generation(struct slice s)
{
    uint64_t n;
    return slice_u64(s, &n) == 0;
}

static int pin(struct web_call *c, const struct origin_get *g, struct arena *scratch, struct err *e)
{
    struct gs *o = gs_of(c->web->origin);
    web_query(c, SLICE_LIT("alt"), SLICE_LIT("media"));
    int r = o->view.is_on ? gs_view_pin(o, c, g, scratch, e) : 0;
    if (r < 0)
        return r;
    if (g->if_match.n && !slice_eq_str(g->if_match, "*")) {
        if (!gs_is_generation(g->if_match))
            return err_set(e, ERR_PRECONDITION, "\"" SLICE_FMT "\" is no generation", SLICE_ARG(g->if_match));
        web_query(c, SLICE_LIT("ifGenerationMatch"), g->if_match);
    }
    return 0;
}

static const struct web_kind web_kind = {
    .version_header = "x-goog-generation",
    .meta_prefix = "x-goog-meta-",
    .tells_bytes_alone = true,
    .prepare = prepare,
    .refused = refused,
    .pin = pin,
};

static const struct web_kind web_view_kind = {
    .version_header = "x-goog-generation",
    .meta_prefix = "x-goog-meta-",
    .tells_bytes_alone = true,
    .prepare = prepare,
    .refused = refused,
    .pin = pin,
    .check = gs_view_answer,
};

json_t *gs_ask(struct web_call *c, struct buf *body, int *ret_code, struct err *e)
{
    c->on_body = web_collect;
    c->arg = body;
    *ret_code = web_perform(c, e);
    if (*ret_code < 0)
        return NULL;
    json_t *j = gs_json_parse(buf_view(body), e);
    *ret_code = j ? 0 : ERR_ORIGIN_FAILED;
    return j;
}

/* ---- reads ---- */

static int stat_call(struct gs *g, const struct origin_get *q, struct arena *a, struct origin_attr *ret,
                     struct err *e)
{
    if (g->view.is_on)
        return gs_view_stat(g, q, a, ret, e);
    struct buf _cleanup_buf_ body = BUF_INIT(WEB_RESULT_MAX);
    struct web_call _cleanup_(web_call_fini) c;
    web_call_init(&c, &g->web, WEB_GET, "head");
    c.has_key = true;
    c.key = q->key;
    c.cancel = q->cancel;
    bool pinned = q->if_match.n && !slice_eq_str(q->if_match, "*");
    if (pinned && gs_is_generation(q->if_match))
        web_query(&c, SLICE_LIT("ifGenerationMatch"), q->if_match);
    int r;
    json_t *_cleanup_(gs_json_unrefp) j = gs_ask(&c, &body, &r, e);
    struct origin_attr attr;
    if (r == 0)
        r = gs_json_attr(j, a, &attr, e);
    if (r < 0)
        return r;
    if (pinned && !slice_eq(attr.etag, q->if_match))
        return err_set(e, ERR_PRECONDITION,
                       "the object's generation is " SLICE_FMT " and no longer " SLICE_FMT,
                       SLICE_ARG(attr.etag), SLICE_ARG(q->if_match));
    *ret = attr;
    return 0;
}

int gs_stat(struct gs *g, struct slice key, struct slice if_match, struct arena *a, struct origin_attr *ret,
            struct err *e)
{
    struct origin_get q = {.key = key, .if_match = if_match};
    return stat_call(g, &q, a, ret, e);
}

static int gs_get(struct origin *o, const struct origin_get *q, struct arena *a, struct origin_attr *ret_attr,
                  origin_sink_fn sink, void *arg, struct err *e)
{
    struct gs *g = gs_of(o);
    int r = gs_check_key(g, q->key, e);
    if (r < 0)
        return r;
    if (!q->attributes_only) {
        r = web_get_once(&g->web, q, a, ret_attr, sink, arg, e);
        if (r != ERR_RANGE || q->offset != 0)
            return r;
        if (e)
            e->code = 0; /* a range of an empty object is refused although nothing is wrong */
    }
    struct origin_attr attr;
    r = stat_call(g, q, a, &attr, e);
    if (r == 0 && !q->attributes_only && attr.size_bytes != 0)
        return err_set(e, ERR_ORIGIN_FAILED, "a range from 0 was refused, but the object is not empty");
    if (r == 0)
        r = sink(arg, &attr, NULL, 0);
    if (r == 0)
        *ret_attr = attr;
    return r;
}

/* ---- opening ---- */

static void gs_free(struct gs *g)
{
    if (!g)
        return;
    assert(g->magic == GS_MAGIC);
    web_fini(&g->web);
    web_endpoint_fini(&g->endpoint);
    gs_token_free(g->token);
    free(g->bucket);
    free(g->prefix);
    free(g->billing_project);
    free(g->view.generation);
    free(g->view.key);
    g->magic = 0;
    free(g);
}
DEFINE_CLEANUP(struct gs, gs_free)

/* STORAGE_EMULATOR_HOST may be written with or without a scheme. */
static int set_endpoint(struct gs *g, const struct origin_options *o, bool *ret_emulator, struct err *e)
{
    const char *emulator = o->endpoint ? NULL : web_env("STORAGE_EMULATOR_HOST");
    char _cleanup_free_ *own = NULL;
    if (emulator && !strstr(emulator, "://")) {
        if (asprintf(&own, "http://%s", emulator) < 0)
            abort();
        emulator = own;
    }
    const char *url = o->endpoint ? o->endpoint : emulator ? emulator : GS_ENDPOINT;
    int r =
        web_endpoint_parse(url, emulator ? "STORAGE_EMULATOR_HOST" : "origin.endpoint", "", &g->endpoint, e);
    g->web.loopback = g->endpoint.loopback;
    g->web.spreads = o->endpoint || emulator; /* which has both families, and other addresses each time */
    *ret_emulator = emulator || (o->endpoint && !g->endpoint.https);
    return r;
}

static int check_prefix(const struct gs *g, struct err *e)
{
    return gs_is_reserved(slice_str(g->prefix))
               ? err_set(e, ERR_BAD_OPTION, "the prefix has " GS_PARTS ", where parts of uploads are")
               : 0;
}

static int gs_open(struct slice rest, const struct origin_options *o, struct origin **ret, struct err *e)
{
    struct gs *_cleanup_(gs_freep) g = calloc(1, sizeof(*g));
    if (!g)
        abort();
    g->magic = GS_MAGIC;
    g->base.ops = &origin_gs_ops;
    g->base.capabilities = ORIGIN_CAN_RANGE | ORIGIN_CAN_IF_MATCH | ORIGIN_CAN_CONDITIONAL_PUT |
                           ORIGIN_CAN_COPY | ORIGIN_CAN_MULTIPART | ORIGIN_CAN_META | ORIGIN_BYTES_ALONE;
    g->part_bytes = o->part_size;
    g->billing_project = o->billing_project && o->billing_project[0] ? web_dup(o->billing_project) : NULL;
    g->base.begins_no_uploads = !o->parts;
    bool emulator = false;
    int r = web_init(&g->web, &web_kind, &g->base, o, e);
    if (r == 0)
        r = web_parse_name(rest, "a bucket", "gs://BUCKET/PREFIX", &g->bucket, &g->prefix, e);
    if (r == 0)
        r = check_prefix(g, e);
    if (r == 0)
        r = set_endpoint(g, o, &emulator, e);
    if (r == 0 && !o->anonymous)
        r = gs_token_new(o, emulator, &g->token, e);
    if (r == 0)
        r = gs_view_open(g, o, e);
    if (r < 0)
        return r;
    if (g->view.is_on)
        g->web.kind = &web_view_kind;
    *ret = &TAKE_PTR(g)->base;
    return 0;
}

static int gs_identify(struct origin *o, struct buf *b, struct err *e)
{
    const struct gs *g = gs_of(o);
    if (!g->token)
        return buf_str(b, "none: requests are anonymous");
    struct buf _cleanup_buf_ token = BUF_INIT(16 * KIB);
    uint64_t version;
    int r = gs_token_get(g->token, &token, &version, e);
    return r < 0 ? r : web_token_tell(gs_token_told(g->token), &token, b);
}

static void gs_close(struct origin *o)
{
    gs_free(gs_of(o));
}

static size_t gs_rest(struct origin *o, uint64_t now_ms)
{
    return web_rest(&gs_of(o)->web, now_ms);
}

const struct origin_ops origin_gs_ops = {
    .scheme = "gs",
    .keeps = ORIGIN_CAN_VERSIONS,
    .open = gs_open,
    .close = gs_close,
    .rest = gs_rest,
    .identify = gs_identify,
    .get = gs_get,
    .list = gs_list,
    .put = gs_put,
    .remove = gs_remove,
    .copy = gs_copy,
    .takes = gs_takes,
    .set_meta = gs_set_meta,
    .upload_create = gs_upload_create,
    .upload_part = gs_upload_part,
    .upload_complete = gs_upload_complete,
    .upload_abort = gs_upload_abort,
};
