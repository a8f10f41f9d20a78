/*
 * The tags of an object: GetObjectTagging, one request for one object, or for the version of it that a view
 * shows.
 *
 * Failure modes: those of web_perform; -ENOENT: no such object. Services that call "no tags" an error count
 * as such.
 */
#include "origin/s3_internal.h"

struct tags {
    struct slice name, value; /* what is looked for */
    bool is_name, is_value;   /* of the tag being read */
    bool has, has_root;
};

static int on_element(void *arg, unsigned depth, const char *parent, const char *name, struct slice text,
                      struct err *e)
{
    (void)e;
    struct tags *t = arg;
    if (depth == 1)
        t->has_root = strcmp(name, "Tagging") == 0;
    if (depth == 3 && strcmp(name, "Tag") == 0) {
        t->has = t->has || (t->is_name && t->is_value);
        t->is_name = t->is_value = false;
    }
    if (depth == 4 && strcmp(parent, "Tag") == 0 && strcmp(name, "Key") == 0)
        t->is_name = slice_eq(text, t->name);
    if (depth == 4 && strcmp(parent, "Tag") == 0 && strcmp(name, "Value") == 0)
        t->is_value = slice_eq(text, t->value);
    return 0;
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

int s3_has_tag(struct origin *o, struct slice key, struct slice name, struct slice value, atomic_bool *cancel,
               bool *ret, struct err *e)
{
    struct s3 *s = s3_of(o);
    int r = web_check_key(s->prefix, key, e);
    if (r < 0)
        return r;
    struct tags t = {.name = name, .value = value};
    struct arena *_cleanup_(arena_freep) a = arena_new(16 * KIB);
    struct buf _cleanup_buf_ body = BUF_INIT(WEB_RESULT_MAX);
    struct web_call _cleanup_(web_call_fini) c;
    struct slice id = SLICE_NULL;
    r = s->view.is_on ? s3_view_find(s, key, cancel, a, &id, e) : 0;
    if (r < 0)
        return r;
    web_call_init(&c, &s->web, WEB_GET, "tags");
    c.has_key = true;
    c.key = key;
    web_query(&c, SLICE_LIT("tagging"), SLICE_NULL);
    if (id.n)
        web_query(&c, SLICE_LIT("versionId"), id);
    c.cancel = cancel;
    c.also_cancel = o->stop;
    c.on_body = web_collect;
    c.arg = &body;
    r = web_perform(&c, e);
    if (r < 0 && is_no_tags(&c)) {
        *ret = false;
        return 0;
    }
    if (r == 0)
        r = parse(buf_view(&body), &t, e);
    if (r == 0)
        *ret = t.has;
    return r;
}
