/*
 * Writes of the Google Cloud Storage kind: objects in one request, removal, copies.
 *
 * One request carries the resource and the bytes as multipart/related: the body is the caller's between a
 * head and a tail of ours. Larger bodies go to gs_upload.c; parts of uploads are such objects, too.
 *
 * Invariants:
 *  1. A connection is taken only once the first byte of the body is there.
 *  2. Conditions are generations: 0 means that nothing may be there, or with NotMatch that something must.
 * Writes leave them to the service; removals and copies also look before, because not every server knows them
 * there.
 *
 * Failure modes: as in origin.h. After a timeout or a lost connection the object may have been written.
 */
#include "origin/gs_internal.h"

#include "base/text.h"

#include <inttypes.h>

#define REWRITES_MAX 10000 /* calls of one copy: the service does at least 1 MiB in each */

int gs_put_conditions(struct web_call *c, const struct origin_put *p, struct err *e)
{
    c->once = p->if_none_match || p->if_match.n > 0;
    c->reach = p->reach;
    if (p->if_none_match)
        web_query(c, SLICE_LIT("ifGenerationMatch"), SLICE_LIT("0"));
    bool any = slice_eq_str(p->if_match, "*");
    if (p->if_match.n && !any && !gs_is_generation(p->if_match))
        return err_set(e, ERR_PRECONDITION, "\"" SLICE_FMT "\" is no generation", SLICE_ARG(p->if_match));
    if (any)
        web_query(c, SLICE_LIT("ifGenerationNotMatch"), SLICE_LIT("0"));
    else if (p->if_match.n)
        web_query(c, SLICE_LIT("ifGenerationMatch"), p->if_match);
    return 0;
}

/* ---- one request ---- */

struct framed {
    const struct origin_body *inner;
    struct slice head, tail;
};

static ssize_t framed_read(void *arg, void *p, size_t n, uint64_t offset)
{
    const struct framed *f = arg;
    struct slice from = f->head;
    if (offset >= f->head.n + f->inner->size_bytes) {
        from = f->tail;
        offset -= f->head.n + f->inner->size_bytes;
    } else if (offset >= f->head.n) {
        offset -= f->head.n;
        return f->inner->read(f->inner->arg, p, MIN((uint64_t)n, f->inner->size_bytes - offset), offset);
    }
    n = MIN(n, from.n - offset);
    memcpy(p, from.p + offset, n);
    return (ssize_t)n;
}

static int make_head(const struct gs *g, const struct origin_put *p, struct slice mark, const char *boundary,
                     struct buf *b, struct err *e)
{
    int r = buf_printf(b, "--%s\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n", boundary);
    if (r == 0)
        r = gs_json_resource(g, p, mark, b, e);
    if (r < 0)
        return r;
    struct slice type = p->content_type.n ? p->content_type : SLICE_LIT("application/octet-stream");
    if (memchr(type.p, '\r', type.n) || memchr(type.p, '\n', type.n))
        return err_set(e, -EINVAL, "the content type has a control character");
    return buf_printf(b, "\r\n--%s\r\nContent-Type: " SLICE_FMT "\r\n\r\n", boundary, SLICE_ARG(type));
}

static int answer(const struct buf *body, struct arena *a, struct origin_attr *ret, struct err *e)
{
    json_t *_cleanup_(gs_json_unrefp) j = gs_json_parse(buf_view(body), e);
    return j ? gs_json_attr(j, a, ret, e) : ERR_ORIGIN_FAILED;
}

int gs_put_single(struct gs *g, const struct origin_put *p, struct slice mark, const struct origin_body *body,
                  const char *op, struct arena *a, struct origin_attr *ret_attr, struct err *e)
{
    uint8_t random[16];
    char boundary[33], type[96], tail[64];
    sys->random(random, sizeof(random));
    text_hex(random, sizeof(random), boundary);
    (void)snprintf(type, sizeof(type), "multipart/related; boundary=%s", boundary);
    (void)snprintf(tail, sizeof(tail), "\r\n--%s--\r\n", boundary);
    struct buf _cleanup_buf_ head = BUF_INIT(WEB_RESULT_MAX), result = BUF_INIT(WEB_RESULT_MAX);
    struct buf _cleanup_buf_ url = BUF_INIT(WEB_URL_MAX);
    int r = web_wait_for_part(&g->web, body, 0, body->size_bytes, e);
    if (r == 0)
        r = make_head(g, p, mark, boundary, &head, e);
    if (r == 0)
        r = gs_object_url(g, "/upload", false, SLICE_NULL, &url);
    if (r < 0)
        return r;
    struct framed f = {body, buf_view(&head), slice_str(tail)};
    struct origin_body framed = {.size_bytes = f.head.n + body->size_bytes + f.tail.n,
                                 .read = framed_read,
                                 .arg = &f,
                                 .once = body->once,
                                 .slow = body->slow};
    struct web_call _cleanup_(web_call_fini) c;
    web_call_init(&c, &g->web, WEB_POST, op);
    c.url = buf_view(&url);
    c.cancel = p->cancel;
    c.body = &framed;
    c.body_n = framed.size_bytes;
    c.on_body = web_collect;
    c.arg = &result;
    web_query(&c, SLICE_LIT("uploadType"), SLICE_LIT("multipart"));
    web_header(&c, SLICE_LIT("content-type"), slice_str(type));
    r = gs_put_conditions(&c, p, e);
    if (r == 0)
        r = web_perform(&c, e);
    if (r == 0)
        r = answer(&result, a, ret_attr, e);
    if (r == 0 && ret_attr->size_bytes != body->size_bytes)
        return err_set(e, ERR_ORIGIN_SHORT, "the object has %" PRIu64 " bytes, %" PRIu64 " were sent",
                       ret_attr->size_bytes, body->size_bytes);
    return r;
}

int gs_put(struct origin *o, const struct origin_put *p, const struct origin_body *body, struct arena *a,
           struct origin_attr *ret_attr, struct err *e)
{
    struct gs *g = gs_of(o);
    origin_set_reach(p, ORIGIN_REACH_NOTHING);
    int r = gs_check_key(g, p->key, e);
    if (r < 0)
        return r;
    struct origin_attr attr;
    r = body->size_bytes > GS_SINGLE_MAX ? gs_upload(g, p, body, a, &attr, e)
                                         : gs_put_single(g, p, SLICE_NULL, body, "put", a, &attr, e);
    if (r == 0 && attr.size_bytes != body->size_bytes)
        return err_set(e, ERR_ORIGIN_SHORT, "the object has %" PRIu64 " bytes, %" PRIu64 " were sent",
                       attr.size_bytes, body->size_bytes);
    if (r == 0)
        *ret_attr = attr;
    return r;
}

int gs_takes(struct origin *o, const struct origin_put *p, uint64_t size_bytes, struct err *e)
{
    struct gs *g = gs_of(o);
    struct buf _cleanup_buf_ resource = BUF_INIT(WEB_RESULT_MAX);
    (void)size_bytes;
    int r = web_takes(&g->web, g->prefix, p, e);
    if (r == 0)
        r = gs_check_key(g, p->key, e);
    return r < 0 ? r : gs_json_resource(g, p, SLICE_NULL, &resource, e);
}

/* ---- metadata, removal, copies ---- */

/* The generation stays: only the metageneration is another one then. */
int gs_set_meta(struct origin *o, const struct origin_put *p, uint64_t size_bytes, struct arena *a,
                struct origin_attr *ret_attr, struct err *e)
{
    (void)size_bytes;
    struct gs *g = gs_of(o);
    struct buf _cleanup_buf_ patch = BUF_INIT(WEB_RESULT_MAX), result = BUF_INIT(WEB_RESULT_MAX);
    int r = gs_check_key(g, p->key, e);
    if (r == 0)
        r = gs_json_patch(p, &patch, e);
    if (r < 0)
        return r;
    struct web_call _cleanup_(web_call_fini) c;
    web_call_init(&c, &g->web, WEB_PATCH, "set_meta");
    c.has_key = true;
    c.key = p->key;
    c.post = buf_view(&patch);
    c.on_body = web_collect;
    c.arg = &result;
    web_header(&c, SLICE_LIT("content-type"), SLICE_LIT("application/json"));
    r = gs_put_conditions(&c, p, e);
    if (r == 0)
        r = web_perform(&c, e);
    return r == 0 ? answer(&result, a, ret_attr, e) : r;
}

int gs_remove(struct origin *o, struct slice key, struct slice if_match, struct err *e)
{
    struct gs *g = gs_of(o);
    int r = gs_check_key(g, key, e);
    if (r < 0)
        return r;
    struct web_call _cleanup_(web_call_fini) c;
    web_call_init(&c, &g->web, WEB_DELETE, "delete");
    c.has_key = true;
    c.key = key;
    c.once = true;
    if (if_match.n) {
        struct arena *_cleanup_(arena_freep) a = arena_new(64 * KIB);
        struct origin_attr now;
        r = gs_stat(g, key, if_match, a, &now, e);
        if (r < 0)
            return r;
        if (slice_eq_str(if_match, "*"))
            web_query(&c, SLICE_LIT("ifGenerationNotMatch"), SLICE_LIT("0"));
        else
            web_query(&c, SLICE_LIT("ifGenerationMatch"), if_match);
    }
    return web_perform(&c, e);
}

/* "SOURCE/rewriteTo/b/BUCKET/o/TARGET" */
static int rewrite_url(const struct gs *g, struct slice from, struct slice to, struct buf *b)
{
    struct buf _cleanup_buf_ whole = BUF_INIT(4 * KIB);
    int r = gs_object_url(g, "", true, from, b);
    if (r == 0)
        r = buf_printf(b, "/rewriteTo/b/%s/o/", g->bucket);
    if (r == 0)
        r = buf_printf(&whole, "%s" SLICE_FMT, g->prefix, SLICE_ARG(to));
    return r < 0 ? r : text_uri_encode(b, buf_view(&whole), /* keep_slash= */ false);
}

/* One call of a copy; *token is what the next one must tell. 1 when the copy is done. */
static int rewrite_once(struct gs *g, struct slice url, struct slice generation, struct buf *token,
                        struct arena *a, struct origin_attr *ret, struct err *e)
{
    struct buf _cleanup_buf_ body = BUF_INIT(WEB_RESULT_MAX);
    struct web_call _cleanup_(web_call_fini) c;
    web_call_init(&c, &g->web, WEB_POST, "copy");
    c.url = url;
    web_query(&c, SLICE_LIT("ifSourceGenerationMatch"), generation);
    if (token->n)
        web_query(&c, SLICE_LIT("rewriteToken"), buf_view(token));
    int r;
    json_t *_cleanup_(gs_json_unrefp) j = gs_ask(&c, &body, &r, e);
    if (r < 0)
        return r;
    if (json_is_true(json_object_get(j, "done"))) {
        r = gs_json_attr(json_object_get(j, "resource"), a, ret, e);
        return r < 0 ? r : 1;
    }
    const json_t *next = json_object_get(j, "rewriteToken");
    buf_clear(token);
    if (json_string_length(next) == 0 || buf_str(token, json_string_value(next)) < 0)
        return err_set(e, ERR_ORIGIN_FAILED,
                       "the copy is not done, but the answer does not say how to go on");
    return 0;
}

int gs_copy(struct origin *o, struct slice from, struct slice to, struct slice if_match, struct arena *a,
            struct origin_attr *ret_attr, struct err *e)
{
    struct gs *g = gs_of(o);
    struct buf _cleanup_buf_ url = BUF_INIT(WEB_URL_MAX), token = BUF_INIT(8 * KIB);
    struct origin_attr source;
    int r = gs_check_key(g, from, e);
    if (r == 0)
        r = gs_check_key(g, to, e);
    if (r == 0)
        r = gs_stat(g, from, if_match, a, &source, e);
    if (r == 0 && rewrite_url(g, from, to, &url) < 0)
        return err_set(e, -ENAMETOOLONG, "the key is too long");
    for (int i = 0; i < REWRITES_MAX && r == 0; i++)
        r = rewrite_once(g, buf_view(&url), source.etag, &token, a, ret_attr, e);
    if (r == 0)
        return err_set(e, ERR_ORIGIN_FAILED, "the copy does not come to an end");
    return r > 0 ? 0 : r;
}
