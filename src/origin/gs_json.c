/*
 * The documents of the JSON API: resources of objects, errors.
 *
 * Invariants:
 *  1. What a peer sent is copied into the arena only after it was found to fit.
 *  2. Metadata whose name or value cannot be a header line is left out whole.
 *
 * Failure modes: ERR_ORIGIN_FAILED for documents that make no sense; -EINVAL for metadata that is no UTF-8.
 */
#include "origin/gs_internal.h"

#include "base/text.h"

/* X(header, member of the resource) */
#define GS_HEADERS(X)                                                                                        \
    X("cache-control", "cacheControl")                                                                       \
    X("content-encoding", "contentEncoding")                                                                 \
    X("content-disposition", "contentDisposition")                                                           \
    X("content-language", "contentLanguage")

static const struct {
    const char *header, *member;
} headers[] = {
#define X(header, member) {header, member},
    GS_HEADERS(X)
#undef X
};

json_t *gs_json_parse(struct slice text, struct err *e)
{
    json_error_t x;
    json_t *j = web_json(text, JSON_REJECT_DUPLICATES, &x);
    if (!j)
        (void)err_set(e, ERR_ORIGIN_FAILED, "the answer is no JSON: line %d: %s", x.line, x.text);
    return j;
}

static struct slice member(const json_t *j, const char *name)
{
    const json_t *v = json_object_get(j, name);
    return json_is_string(v) ? slice_of(json_string_value(v), json_string_length(v)) : SLICE_NULL;
}

static bool is_line(struct slice s)
{
    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char)s.p[i] < ' ')
            return false;
    return true;
}

static void add_line(struct buf *b, const char *before, struct slice name, struct slice value)
{
    if (is_line(name) && is_line(value) && !memchr(name.p, ':', name.n))
        (void)buf_printf(b, "%s" SLICE_FMT ": " SLICE_FMT "\n", before, SLICE_ARG(name), SLICE_ARG(value));
}

static void gather_meta(const json_t *j, struct buf *b)
{
    const char *name;
    json_t *value;
    char lower[256];
    json_object_foreach(json_object_get(j, "metadata"), name, value)
    {
        size_t n = strlen(name);
        if (!json_is_string(value) || n == 0 || n >= sizeof(lower))
            continue;
        if (strcmp(name, GS_MARK) == 0)
            continue;
        for (size_t i = 0; i < n; i++)
            lower[i] = name[i] >= 'A' && name[i] <= 'Z' ? (char)(name[i] - 'A' + 'a') : name[i];
        add_line(b, "x-amz-meta-", slice_of(lower, n), slice_str(json_string_value(value)));
    }
    for (size_t i = 0; i < ARRAY_SIZE(headers); i++) {
        struct slice v = member(j, headers[i].member);
        if (v.n)
            add_line(b, "", slice_str(headers[i].header), v);
    }
}

int gs_json_attr(const json_t *j, struct arena *a, struct origin_attr *ret, struct err *e)
{
    struct buf _cleanup_buf_ meta = BUF_INIT(ORIGIN_META_MAX_BYTES);
    struct origin_attr x = {.etag = member(j, "generation"), .content_type = member(j, "contentType")};
    struct slice size = member(j, "size");
    /* The size is left out of resources when it is 0. */
    if (!gs_is_generation(x.etag) || (size.n && slice_u64(size, &x.size_bytes) < 0))
        return err_set(e, ERR_ORIGIN_FAILED, "the answer is no object: it has no generation or no size");
    (void)text_parse_date(member(j, "updated"), &x.mtime_ns);
    gather_meta(j, &meta);
    x.meta = buf_view(&meta);
    return origin_attr_dup(a, &x, ret, e);
}

/* ---- what is sent ---- */

static int set_text(json_t *j, const char *name, struct slice value)
{
    return json_object_set_new(j, name, json_stringn(value.p, value.n));
}

static int set_meta(json_t *j, const struct origin_put *p)
{
    struct slice meta = p->meta, name, value, ours = SLICE_LIT("x-amz-meta-");
    json_t *own = json_object();
    int r = json_object_set_new(j, "metadata", own);
    while (r == 0 && origin_next_meta(&meta, &name, &value)) {
        if (slice_starts(name, ours)) {
            char _cleanup_free_ *key = slice_dup(slice_from(name, ours.n));
            r = strcmp(key, GS_MARK) == 0 ? 0 : set_text(own, key, value);
        }
        for (size_t i = 0; i < ARRAY_SIZE(headers) && r == 0; i++)
            if (slice_eq_str(name, headers[i].header))
                r = set_text(j, headers[i].member, value);
    }
    return r;
}

static int print(json_t *j, struct buf *b, struct err *e)
{
    char _cleanup_free_ *text = json_dumps(j, JSON_COMPACT);
    if (!text)
        abort();
    return buf_str(b, text) < 0 ? err_set(e, -E2BIG, "the metadata is too large") : 0;
}

int gs_json_patch(const struct origin_put *p, struct buf *b, struct err *e)
{
    json_t *_cleanup_(gs_json_unrefp) j = json_object();
    int r = p->content_type.n ? set_text(j, "contentType", p->content_type) : 0;
    if (r == 0)
        r = set_meta(j, p);
    if (r < 0)
        return err_set(e, -EINVAL, "the metadata is no UTF-8, which the service demands");
    return print(j, b, e);
}

static int set_resource(const struct gs *g, const struct origin_put *p, struct slice mark, json_t *j,
                        struct err *e)
{
    char _cleanup_free_ *name = NULL;
    if (asprintf(&name, "%s" SLICE_FMT, g->prefix, SLICE_ARG(p->key)) < 0)
        abort();
    int r = set_text(j, "name", slice_str(name));
    if (r == 0 && p->content_type.n)
        r = set_text(j, "contentType", p->content_type);
    if (r == 0 && g->base.storage_class)
        r = set_text(j, "storageClass", slice_str(g->base.storage_class));
    if (r == 0 && p->content_md5.n)
        r = set_text(j, "md5Hash", p->content_md5);
    if (r == 0)
        r = set_meta(j, p);
    if (r == 0 && mark.n)
        r = set_text(json_object_get(j, "metadata"), GS_MARK, mark);
    return r < 0 ? err_set(e, -EINVAL, "the key or its metadata is no UTF-8, which the service demands") : 0;
}

int gs_json_resource(const struct gs *g, const struct origin_put *p, struct slice mark, struct buf *b,
                     struct err *e)
{
    json_t *_cleanup_(gs_json_unrefp) j = json_object();
    int r = set_resource(g, p, mark, j, e);
    return r == 0 ? print(j, b, e) : r;
}

int gs_json_compose(const struct gs *g, const struct origin_put *p, struct slice mark, json_t *sources,
                    bool deletes, struct buf *b, struct err *e)
{
    json_t *_cleanup_(gs_json_unrefp) j = json_object();
    json_t *destination = json_object();
    (void)json_object_set_new(j, "sourceObjects", sources);
    (void)json_object_set_new(j, "destination", destination);
    if (deletes)
        (void)json_object_set_new(j, "deleteSourceObjects", json_true());
    int r = set_resource(g, p, mark, destination, e);
    return r == 0 ? print(j, b, e) : r;
}

struct slice gs_json_mark(const json_t *j)
{
    return member(json_object_get(j, "metadata"), GS_MARK);
}

/* ---- errors ---- */

static int class_of(int status, struct slice reason)
{
    static const char *const busy[] = {"rateLimitExceeded", "userRateLimitExceeded", "slowDown"};
    for (size_t i = 0; i < ARRAY_SIZE(busy); i++)
        if (slice_eq_str(reason, busy[i]))
            return ERR_ORIGIN_BUSY;
    return web_error_class(status);
}

int gs_json_refused(const struct web_response *r, struct slice body, struct err *e)
{
    char code[64] = "", message[256] = "";
    json_t *_cleanup_(gs_json_unrefp) j = web_json(body, 0, NULL);
    const json_t *error = json_object_get(j, "error");
    if (json_is_object(error)) {
        const json_t *first = json_array_get(json_object_get(error, "errors"), 0);
        web_error_text(code, sizeof(code), member(first, "reason"));
        web_error_text(message, sizeof(message), member(error, "message"));
    } else if (json_is_string(error)) { /* the form of token services */
        web_error_text(code, sizeof(code), member(j, "error"));
        web_error_text(message, sizeof(message), member(j, "error_description"));
    } else {
        web_error_line(body, message, sizeof(message));
    }
    return web_error_set(e, class_of(r->status, slice_str(code)), r, code, message);
}
