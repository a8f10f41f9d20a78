/*
 * The read-only kind over plain HTTP servers: opening, reads.
 *
 *     http[s]://HOST[:PORT][/PATH]   keys are paths below PATH
 *
 * The version of an object is its ETag, else its time and size. Listings come from index pages or a manifest
 * (site_list.c).
 *
 * Invariants:
 *  1. A key that ends with '/' names no object, whatever page the server has there.
 *  2. What is asked for lies below PATH: names with "." or ".." are nobody's.
 *  3. Redirects are not followed: one that only adds a slash says that a folder is there and no object.
 *
 * Failure modes: ERR_BAD_OPTION for URLs; -EROFS for everything that writes; those of web_perform.
 */
#include "origin/site_internal.h"

#include "base/text.h"

static int prepare(struct web_call *c, struct web_request *q, struct err *e)
{
    const struct site *s = site_of(c->web->origin);
    int r = buf_printf(&q->url, "%s%s/", s->endpoint.base, s->endpoint.path);
    if (r == 0)
        r = text_uri_encode(&q->url, c->key, /* keep_slash= */ true);
    if (r < 0)
        return err_set(e, -ENAMETOOLONG, "the request's URL is too long");
    return web_request_headers(c, q, e);
}

/* Whether the redirect leads to the same path with a slash behind it. Compared decoded: servers encode other
 * bytes than we do, nginx no parentheses, or in lower case, as Apache. */
static bool adds_slash(const struct web_call *c)
{
    struct slice to = slice_str(c->response.location);
    struct buf _cleanup_buf_ plain = BUF_INIT(WEB_URL_MAX);
    if (!slice_ends(to, SLICE_LIT("/")) ||
        text_uri_decode(&plain, slice_sub(to, 0, to.n - 1), /* plus_is_space= */ false) < 0)
        return false;
    return slice_ends(buf_view(&plain), c->key);
}

static int refused(struct web_call *c, struct err *e)
{
    const struct web_response *r = &c->response;
    char message[256];
    bool redirect = r->status >= 300 && r->status < 400 && r->status != 304;
    if (redirect && c->key.n && adds_slash(c))
        return err_set(e, -ENOENT, "%d: a folder and no object", r->status);
    struct slice query = slice_str(r->location), to = slice_split(&query, '?'); /* which may be a signature */
    if (redirect)
        return err_set(e, ERR_ORIGIN_REFUSED, "%d %s: a redirect to " SLICE_FMT ", which is not followed",
                       r->status, r->reason, SLICE_ARG(to.n > 0 ? to : SLICE_LIT("nowhere")));
    web_error_line(buf_view(&c->error_body), message, sizeof(message));
    return web_error_set(e, web_error_class(r->status), r, "", message);
}

static const struct web_kind web_kind = {
    .version_header = "etag",
    .meta_prefix = "x-amz-meta-",
    .prepare = prepare,
    .refused = refused,
};

/* ---- reads ---- */

static int check_key(struct slice key, struct err *e)
{
    int r = web_check_length("", key, e);
    if (r == 0 && (key.p[key.n - 1] == '/' || web_leads_away(key)))
        return err_set(e, -ENOENT, "no object can have that name");
    return r;
}

static int site_get(struct origin *o, const struct origin_get *g, struct arena *a,
                    struct origin_attr *ret_attr, origin_sink_fn sink, void *arg, struct err *e)
{
    struct site *s = site_of(o);
    int r = check_key(g->key, e);
    return r < 0 ? r : web_get(&s->web, g, a, ret_attr, sink, arg, e);
}

int site_stat(struct site *s, struct slice key, struct arena *a, struct origin_attr *ret, struct err *e)
{
    return web_head(&s->web, key, SLICE_NULL, a, ret, e);
}

/* ---- what it cannot ---- */

static int read_only(struct err *e)
{
    return err_set(e, -EROFS, "a plain HTTP server is read-only");
}

static int site_put(struct origin *o, const struct origin_put *p, const struct origin_body *body,
                    struct arena *a, struct origin_attr *ret_attr, struct err *e)
{
    (void)o, (void)p, (void)body, (void)a, (void)ret_attr;
    return read_only(e);
}

static int site_takes(struct origin *o, const struct origin_put *p, uint64_t size_bytes, struct err *e)
{
    (void)o, (void)p, (void)size_bytes;
    return read_only(e);
}

static int site_remove(struct origin *o, struct slice key, struct slice if_match, struct err *e)
{
    (void)o, (void)key, (void)if_match;
    return read_only(e);
}

static int site_copy(struct origin *o, struct slice from, struct slice to, struct slice if_match,
                     struct arena *a, struct origin_attr *ret_attr, struct err *e)
{
    (void)o, (void)from, (void)to, (void)if_match, (void)a, (void)ret_attr;
    return read_only(e);
}

/* ---- opening ---- */

static void site_free(struct site *s)
{
    if (!s)
        return;
    assert(s->magic == SITE_MAGIC);
    web_fini(&s->web);
    web_endpoint_fini(&s->endpoint);
    for (size_t i = 0; i < SITE_FOLDERS; i++) {
        free(s->memory[i].path);
        site_folder_unref(s->memory[i].folder);
    }
    free(s->path);
    free(s->manifest);
    lock_fini(&s->lock);
    s->magic = 0;
    free(s);
}
DEFINE_CLEANUP(struct site, site_free)

static int set_manifest(struct site *s, const char *manifest, struct err *e)
{
    if (!manifest)
        return 0;
    if (!*manifest || *manifest == '/' || strstr(manifest, "://") || strlen(manifest) > ORIGIN_KEY_MAX_BYTES)
        return err_set(e, ERR_BAD_OPTION, "origin.manifest \"%s\": must be a path below the origin's URL",
                       manifest);
    s->manifest = web_dup(manifest);
    return 0;
}

static int open_site(const struct origin_ops *ops, struct slice rest, const struct origin_options *o,
                     struct origin **ret, struct err *e)
{
    struct site *_cleanup_(site_freep) s = calloc(1, sizeof(*s));
    char _cleanup_free_ *url = NULL;
    struct buf _cleanup_buf_ path = BUF_INIT(WEB_URL_MAX);
    if (!s || asprintf(&url, "%s://" SLICE_FMT, ops->scheme, SLICE_ARG(rest)) < 0)
        abort();
    s->magic = SITE_MAGIC;
    s->base.ops = ops;
    s->base.capabilities = ORIGIN_CAN_RANGE | ORIGIN_CAN_IF_MATCH;
    lock_init(&s->lock, LOCK_ORIGIN);
    int r = web_init(&s->web, &web_kind, &s->base, o, e);
    if (r == 0)
        r = web_endpoint_parse(url, "origin", "", &s->endpoint, e);
    if (r == 0)
        r = set_manifest(s, o->manifest, e);
    if (r < 0)
        return r;
    s->web.loopback = s->endpoint.loopback;
    if (text_uri_decode(&path, slice_str(s->endpoint.path), /* plus_is_space= */ false) < 0 ||
        buf_char(&path, '/') < 0)
        return err_set(e, ERR_BAD_OPTION, "the path has a broken escape");
    s->path = buf_take(&path);
    *ret = &TAKE_PTR(s)->base;
    return 0;
}

static int open_http(struct slice rest, const struct origin_options *o, struct origin **ret, struct err *e)
{
    return open_site(&origin_http_ops, rest, o, ret, e);
}

static int open_https(struct slice rest, const struct origin_options *o, struct origin **ret, struct err *e)
{
    return open_site(&origin_https_ops, rest, o, ret, e);
}

static void site_close(struct origin *o)
{
    site_free(site_of(o));
}

static size_t site_rest(struct origin *o, uint64_t now_ms)
{
    return web_rest(&site_of(o)->web, now_ms);
}

#define SITE_OPS(name, opener)                                                                               \
    {                                                                                                        \
        .scheme = (name), .open = (opener), .close = site_close, .rest = site_rest, .get = site_get,         \
        .list = site_list, .put = site_put, .takes = site_takes, .remove = site_remove, .copy = site_copy,   \
    }

const struct origin_ops origin_http_ops = SITE_OPS("http", open_http);
const struct origin_ops origin_https_ops = SITE_OPS("https", open_https);
