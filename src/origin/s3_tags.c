/*
 * The tags of an object: GetObjectTagging, one request for one object, or for the version of it that a view
 * shows. Whether it has one of them, or all, as an upload that is to have the same tells the service.
 * PutObjectTagging and DeleteObjectTagging: all of them, or none.
 *
 * Failure modes: those of web_perform; -ENOENT: no such object. Services that call "no tags" an error count
 * as such.
 */
#include "origin/s3_internal.h"

#include "base/log.h"
#include "base/text.h"

#define TEXT_MAX     (2 * KIB) /* of a name or a value; S3 has at most 256 characters */
#define DOCUMENT_MAX (64 * KIB)

struct tags {
    struct slice name, value; /* what is looked for */
    struct buf *all;          /* "NAME=VALUE&...", percent-encoded; NULL: not wanted */
    struct buf now_name, now; /* of the tag being read */
    bool has, has_root;
};

static int add_to_all(struct tags *t)
{
    int r = t->all->n > 0 ? buf_char(t->all, '&') : 0;
    if (r == 0)
        r = text_uri_encode(t->all, buf_view(&t->now_name), /* keep_slash= */ false);
    if (r == 0)
        r = buf_char(t->all, '=');
    return r < 0 ? r : text_uri_encode(t->all, buf_view(&t->now), /* keep_slash= */ false);
}

static int on_element(void *arg, unsigned depth, const char *parent, const char *name, struct slice text,
                      struct err *e)
{
    struct tags *t = arg;
    int r = 0;
    if (depth == 1)
        t->has_root = strcmp(name, "Tagging") == 0;
    if (depth == 3 && strcmp(name, "Tag") == 0) {
        t->has =
            t->has || (slice_eq(buf_view(&t->now_name), t->name) && slice_eq(buf_view(&t->now), t->value));
        r = t->all ? add_to_all(t) : 0;
        buf_clear(&t->now_name);
        buf_clear(&t->now);
    }
    if (depth == 4 && strcmp(parent, "Tag") == 0 && strcmp(name, "Key") == 0)
        r = buf_slice(&t->now_name, text);
    if (depth == 4 && strcmp(parent, "Tag") == 0 && strcmp(name, "Value") == 0)
        r = buf_slice(&t->now, text);
    return r < 0 ? err_set(e, ERR_ORIGIN_FAILED, "the object has tags that are too long") : 0;
}

static int parse(struct slice body, struct tags *t, struct err *e)
{
    struct web_xml *_cleanup_(web_xml_freep) xml = web_xml_new(WEB_RESULT_MAX, on_element, t);
    int r = web_xml_feed(xml, body.p, body.n, e);
    if (r == 0)
        r = web_xml_end(xml, e);
    if (r == 0 && !t->has_root)
        return err_set(e, ERR_ORIGIN_FAILED, "the answer is a document without tags");
    return r;
}

static bool is_no_tags(const struct web_call *c)
{
    struct web_error x;
    web_error_parse(buf_view(&c->error_body), &x);
    return c->response.status == 404 && strcmp(x.code, "NoSuchTagSet") == 0;
}

/* Asks for the tags of the object, or of its version `id`. -ENOENT: no such object. */
static int ask(struct s3 *s, struct slice key, struct slice id, atomic_bool *cancel, struct tags *t,
               struct err *e)
{
    struct buf _cleanup_buf_ body = BUF_INIT(WEB_RESULT_MAX);
    struct web_call _cleanup_(web_call_fini) c;
    web_call_init(&c, &s->web, WEB_GET, "tags");
    c.has_key = true;
    c.key = key;
    web_query(&c, SLICE_LIT("tagging"), SLICE_NULL);
    if (id.n)
        web_query(&c, SLICE_LIT("versionId"), id);
    c.cancel = cancel;
    c.on_body = web_collect;
    c.arg = &body;
    int r = web_perform(&c, e);
    if (r < 0 && is_no_tags(&c)) {
        if (e)
            e->code = 0;
        return 0;
    }
    t->now_name = t->now = BUF_INIT(TEXT_MAX);
    if (r == 0)
        r = parse(buf_view(&body), t, e);
    buf_fini(&t->now_name);
    buf_fini(&t->now);
    return r;
}

int s3_has_tag(struct origin *o, struct slice key, struct slice name, struct slice value, atomic_bool *cancel,
               bool *ret, struct err *e)
{
    struct s3 *s = s3_of(o);
    int r = web_check_key(s->prefix, key, e);
    if (r < 0)
        return r;
    struct tags t = {.name = name, .value = value};
    struct arena *_cleanup_(arena_freep) a = arena_new(16 * KIB);
    struct slice id = SLICE_NULL;
    r = s->view.is_on ? s3_view_find(s, key, cancel, a, &id, e) : 0;
    if (r == 0)
        r = ask(s, key, id, cancel, &t, e);
    if (r == 0)
        *ret = t.has;
    return r;
}

int s3_tags(struct origin *o, struct slice key, struct buf *ret, struct err *e)
{
    struct s3 *s = s3_of(o);
    struct tags t = {.all = ret};
    struct arena *_cleanup_(arena_freep) a = arena_new(16 * KIB);
    struct slice id = SLICE_NULL;
    int r = web_check_key(s->prefix, key, e);
    if (r == 0 && s->view.is_on)
        r = s3_view_find(s, key, /* cancel= */ NULL, a, &id, e);
    return r < 0 ? r : ask(s, key, id, /* cancel= */ NULL, &t, e);
}

/* ---- setting them ---- */

static int put_text(struct buf *b, const char *element, struct slice encoded)
{
    struct buf _cleanup_buf_ text = BUF_INIT(TEXT_MAX);
    int r = text_uri_decode(&text, encoded, /* plus_is_space= */ true);
    if (r == 0)
        r = buf_printf(b, "<%s>", element);
    if (r == 0)
        r = web_xml_escape(b, buf_view(&text));
    return r < 0 ? r : buf_printf(b, "</%s>", element);
}

static int make_document(struct slice tags, struct buf *b)
{
    int r = buf_str(b, "<Tagging xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><TagSet>");
    while (tags.n > 0 && r == 0) {
        struct slice value = slice_split(&tags, '&'), name = slice_split(&value, '=');
        r = buf_str(b, "<Tag>");
        if (r == 0)
            r = put_text(b, "Key", name);
        if (r == 0)
            r = put_text(b, "Value", value);
        if (r == 0)
            r = buf_str(b, "</Tag>");
    }
    return r < 0 ? r : buf_str(b, "</TagSet></Tagging>");
}

static ssize_t document_read(void *arg, void *p, size_t n, uint64_t offset)
{
    struct slice rest = slice_from(buf_view(arg), (size_t)offset);
    n = MIN(n, rest.n);
    memcpy(p, rest.p, n);
    return (ssize_t)n;
}

static int put_tags(struct s3 *s, struct slice key, struct slice tags, struct err *e)
{
    struct buf _cleanup_buf_ document = BUF_INIT(DOCUMENT_MAX), md5 = BUF_INIT(64);
    struct origin_body body = {.read = document_read, .arg = &document};
    struct web_call _cleanup_(web_call_fini) c;
    uint8_t sum[32];
    char hash[65];
    if (make_document(tags, &document) < 0)
        return err_set(e, -EINVAL, "tags that cannot be written down");
    body.size_bytes = document.n;
    int r = web_body_digest(&body, 0, document.n, "MD5", sum, e); /* which services want to see here */
    if (r < 0)
        return r;
    if (text_base64(&md5, slice_of(sum, 16)) < 0)
        abort();
    sigv4_sha256_hex(buf_view(&document), hash);
    web_call_init(&c, &s->web, WEB_PUT, "set_tags");
    c.has_key = true;
    c.key = key;
    c.body = &body;
    c.body_n = document.n;
    c.payload_sha256 = slice_str(hash);
    web_query(&c, SLICE_LIT("tagging"), SLICE_NULL);
    web_header(&c, SLICE_LIT("content-type"), SLICE_LIT("application/xml"));
    web_header(&c, SLICE_LIT("content-md5"), buf_view(&md5));
    return web_perform(&c, e);
}

static int remove_tags(struct s3 *s, struct slice key, struct err *e)
{
    struct web_call _cleanup_(web_call_fini) c;
    web_call_init(&c, &s->web, WEB_DELETE, "set_tags");
    c.has_key = true;
    c.key = key;
    web_query(&c, SLICE_LIT("tagging"), SLICE_NULL);
    return web_perform(&c, e);
}

int s3_set_tags(struct origin *o, struct slice key, struct slice tags, struct err *e)
{
    struct s3 *s = s3_of(o);
    int r = web_check_key(s->prefix, key, e);
    if (r < 0)
        return r;
    return tags.n > 0 ? put_tags(s, key, tags, e) : remove_tags(s, key, e);
}

/* ---- those that a copy is to have ---- */

int s3_tags_of(struct s3 *s, struct slice key, struct buf *ret, struct err *e)
{
    struct tags t = {.all = ret};
    struct err local = {0};
    int r = ask(s, key, SLICE_NULL, /* cancel= */ NULL, &t, &local);
    if (r == ERR_NOT_IMPLEMENTED)
        return 0;
    if (r == ERR_ORIGIN_DENIED) {
        log_warn("origin", "s3://%s/%s" SLICE_FMT ": its tags may not be read (%s): a copy has none",
                 s->bucket, s->prefix, SLICE_ARG(key), local.text);
        return 0;
    }
    if (r < 0 && e)
        *e = local;
    return r;
}
