/*
 * Copies inside the origin: CopyObject, and beyond its 5 GiB an upload whose parts are ranges of the source.
 *
 * The source is looked at first: its size decides the way, its ETag pins it, and its attributes are those of
 * the copy, so that nothing needs to be asked afterwards. Metadata is changed by a copy of an object onto
 * itself.
 *
 * Invariants:
 *  1. All bytes of the copy are of the version that the HEAD saw: each request carries its ETag. (A weak ETag
 * cannot be carried; the copy is then of whatever version the service finds.)
 *  2. Content type, metadata and tags travel: by the service itself in the short way, given anew in the long
 * one. Tags that may not be read do not, and the log says so.
 *
 * Failure modes: as in origin.h; -ENOENT for the source.
 */
#include "origin/s3_internal.h"

#include "base/text.h"
#include "origin/meta.h"

int s3_copy_path(const struct s3 *s, struct slice key, struct buf *b, struct err *e)
{
    struct buf _cleanup_buf_ plain = BUF_INIT(4 * KIB);
    int r = buf_printf(&plain, "/%s/%s" SLICE_FMT, s->bucket, s->prefix, SLICE_ARG(key));
    if (r == 0)
        r = text_uri_encode(b, buf_view(&plain), /* keep_slash= */ true);
    return r < 0 ? err_set(e, -ENAMETOOLONG, "the key is too long") : 0;
}

void s3_copy_headers(struct web_call *c, const struct s3_source *source, const char *etag)
{
    web_header(c, SLICE_LIT("x-amz-copy-source"), source->path);
    if (source->attr.etag.n > 0 && !web_etag_is_weak(source->attr.etag))
        web_header(c, SLICE_LIT("x-amz-copy-source-if-match"), slice_str(etag));
}

/* S3 answers 200 at once and may put an error into the body. */
int s3_copy_result(const struct web_call *c, struct slice body, const char *root, struct s3_result *ret,
                   struct err *e)
{
    int r = s3_result_parse(body, ret, e);
    if (r == 0 && strcmp(ret->root, "Error") == 0)
        return s3_error_of(s3_of_web(c->web), &c->response, body, e);
    if (r == 0 && strcmp(ret->root, root) != 0)
        return err_set(e, ERR_ORIGIN_FAILED, "the answer to a copy is a %s", ret->root);
    if (r == 0 && !ret->etag[0])
        return err_set(e, ERR_ORIGIN_FAILED, "the answer to a copy has no ETag");
    return r;
}

/* What the copy has of its own; without, the service gives it what the source has. */
static void replaced_headers(const struct s3 *s, const struct s3_source *source, struct web_call *c,
                             struct arena *a)
{
    struct slice tags = meta_get(source->attr.meta, META_TAGS);
    bool keeps_tags = s->web.sends_tags && !s->web.kind->is_node && !source->replaces_tags;
    if (source->replaces) {
        web_header(c, SLICE_LIT("x-amz-metadata-directive"), SLICE_LIT("REPLACE"));
        if (source->attr.content_type.n)
            web_header(c, SLICE_LIT("content-type"), source->attr.content_type);
        c->meta = keeps_tags ? meta_without(source->attr.meta, META_TAGS, a) : source->attr.meta;
    }
    if (!source->replaces_tags)
        return;
    web_header(c, SLICE_LIT("x-amz-tagging-directive"), SLICE_LIT("REPLACE"));
    if (!source->replaces && tags.n > 0)
        web_header(c, SLICE_LIT("x-amz-tagging"), tags);
}

static int copy_whole(struct s3 *s, const struct s3_source *source, struct slice to, struct arena *a,
                      struct origin_attr *ret_attr, struct err *e)
{
    char etag[WEB_ETAG_MAX + 3];
    struct buf _cleanup_buf_ body = BUF_INIT(WEB_RESULT_MAX);
    struct web_call _cleanup_(web_call_fini) c;
    struct origin_body none = {0};
    struct key_order _cleanup_(key_order_leave) order = {0};
    web_call_init(&c, &s->web, WEB_PUT, "copy");
    int r = web_etag_header(source->attr.etag, etag, e);
    if (r == 0)
        r = s3_enter(s, to, source->is_itself, /* cancel= */ NULL, &order, e);
    if (r < 0)
        return r;
    c.has_key = true;
    c.key = to;
    c.body = &none;
    c.on_body = web_collect;
    c.arg = &body;
    s3_copy_headers(&c, source, etag);
    replaced_headers(s, source, &c, a);
    s3_keeping_headers(s, source, &c);
    r = web_perform(&c, e);
    struct s3_result result;
    if (r == 0)
        r = s3_copy_result(&c, buf_view(&body), "CopyObjectResult", &result, e);
    if (r < 0)
        return r;
    struct origin_attr attr = source->attr;
    attr.etag = slice_str(result.etag);
    attr.mtime_ns = result.mtime_ns ? result.mtime_ns : c.response.date_ns;
    return origin_attr_dup(a, &attr, ret_attr, e);
}

/* The source's attributes are known. */
static int copy_it(struct s3 *s, struct slice from, struct s3_source *source, struct slice to,
                   struct arena *a, struct origin_attr *ret_attr, struct err *e)
{
    struct buf _cleanup_buf_ path = BUF_INIT(8 * KIB);
    int r = s3_copy_path(source->s3, from, &path, e);
    if (r < 0)
        return r;
    source->path = buf_view(&path);
    source->key = from;
    if (slice_find(meta_get(source->attr.meta, META_CHECKSUM), '-') >= 0) /* of parts, which a copy has not */
        source->attr.meta = meta_without(source->attr.meta, META_CHECKSUM, a);
    if (source->attr.size_bytes <= s->copy_max_bytes)
        return copy_whole(s, source, to, a, ret_attr, e);
    return s3_copy_multipart(s, source, to, a, ret_attr, e);
}

int s3_copy(struct origin *o, struct slice from, struct slice to, struct slice if_match, struct arena *a,
            struct origin_attr *ret_attr, struct err *e)
{
    struct s3 *s = s3_of(o);
    struct s3_source source = {.s3 = s};
    int r = web_check_key(s->prefix, from, e);
    if (r == 0)
        r = web_check_key(s->prefix, to, e);
    if (r == 0)
        r = web_head(&s->web, from, if_match, a, &source.attr, e);
    return r < 0 ? r : copy_it(s, from, &source, to, a, ret_attr, e);
}

/* The object's class and encryption, which the copy onto itself would leave for the service's default. Which
 * version they are of does not matter: the copy is of none but the one it is pinned to. */
static int look_for_keeping(struct s3 *s, const struct origin_put *p, struct s3_source *source, struct err *e)
{
    if ((s->base.storage_class && s->sse) || s->web.kind->is_node) /* nodes have none */
        return 0;
    struct web_call _cleanup_(web_call_fini) c;
    web_call_init(&c, &s->web, WEB_HEAD, "head");
    c.has_key = true;
    c.key = p->key;
    c.cancel = p->cancel;
    int r = web_perform(&c, e);
    if (r == 0) {
        memcpy(source->class, c.response.class, sizeof(source->class));
        memcpy(source->sse, c.response.sse, sizeof(source->sse));
        memcpy(source->sse_key, c.response.sse_key, sizeof(source->sse_key));
    }
    return r;
}

/* Services refuse a copy onto itself that changes nothing, and take one that replaces the metadata. */
int s3_set_meta(struct origin *o, const struct origin_put *p, uint64_t size_bytes, struct arena *a,
                struct origin_attr *ret_attr, struct err *e)
{
    struct s3 *s = s3_of(o);
    struct s3_source source = {
        .s3 = s,
        .replaces = true,
        .is_itself = true,
        .attr = {
            .size_bytes = size_bytes, .etag = p->if_match, .content_type = p->content_type, .meta = p->meta}};
    int r = web_check_key(s->prefix, p->key, e);
    if (r == 0)
        r = look_for_keeping(s, p, &source, e);
    return r < 0 ? r : copy_it(s, p->key, &source, p->key, a, ret_attr, e);
}

int s3_copy_from(struct origin *o, const struct origin_copy *c, struct arena *a, struct origin_attr *ret_attr,
                 struct err *e)
{
    struct s3 *s = s3_of(o);
    struct s3_source source = {
        .s3 = s3_of(c->source), .replaces = c->replaces_meta, .replaces_tags = c->replaces_tags};
    if (!s->web.sends_tags || !source.s3->web.sends_tags)
        return err_set(e, ERR_NOT_IMPLEMENTED, "tags are metadata there");
    int r = web_check_key(source.s3->prefix, c->from, e);
    if (r == 0)
        r = web_check_key(s->prefix, c->to, e);
    if (r == 0)
        r = web_head(&source.s3->web, c->from, c->if_match, a, &source.attr, e);
    if (r < 0)
        return r;
    struct slice sum = meta_get(source.attr.meta, META_CHECKSUM);
    struct slice meta = c->replaces_meta ? c->meta : source.attr.meta;
    if (c->replaces_meta)
        source.attr.content_type = c->content_type;
    if (c->replaces_tags)
        meta = meta_with(meta_without(meta_without(meta, META_TAGS, a), META_TAG_COUNT, a), META_TAGS,
                         meta_get(c->meta, META_TAGS), ORIGIN_META_MAX_BYTES, a);
    source.attr.meta = meta_with(meta, META_CHECKSUM, sum, ORIGIN_META_MAX_BYTES, a);
    return copy_it(s, c->from, &source, c->to, a, ret_attr, e);
}
