/*
 * ListObjectsV2: one page, parsed while it arrives.
 *
 * Keys are asked for percent-encoded (encoding-type=url), because XML cannot hold every byte that a key can.
 * Whether the service did so is said by <EncodingType>, which may come after the entries, so that keys are
 * decoded at the end.
 *
 * Invariants and failure modes: those of web_page.c, besides those of web_perform.
 */
#include "origin/s3_internal.h"

#include "base/text.h"

struct s3_list {
    struct web_page page;
    struct web_xml *xml;
    bool saw_root;
    struct origin_entry now; /* the one being read */
};

static int add(struct s3_list *l, struct err *e)
{
    int r = web_page_add(&l->page, &l->now, e);
    l->now = (struct origin_entry){0};
    return r;
}

static int on_contents(struct s3_list *l, const char *name, struct slice text, struct err *e)
{
    if (strcmp(name, "Key") == 0)
        return web_page_keep(&l->page, text, &l->now.key, e);
    if (strcmp(name, "ETag") == 0)
        return web_page_keep(&l->page, web_unquote(text), &l->now.attr.etag, e);
    if (strcmp(name, "Size") == 0 && slice_u64(slice_trim(text), &l->now.attr.size_bytes) < 0)
        return err_set(e, ERR_ORIGIN_FAILED, "the page has a size that is no number");
    if (strcmp(name, "LastModified") == 0)
        l->now.attr.mtime_ns = s3_date(text);
    return 0;
}

static int on_page(struct s3_list *l, const char *name, struct slice text, struct err *e)
{
    if (strcmp(name, "Contents") == 0)
        return add(l, e);
    if (strcmp(name, "IsTruncated") == 0)
        return text_parse_bool(slice_trim(text), &l->page.truncated) < 0
                   ? err_set(e, ERR_ORIGIN_FAILED, "the page does not say whether it is truncated")
                   : 0;
    if (strcmp(name, "NextContinuationToken") == 0)
        return web_page_keep(&l->page, text, &l->page.next_token, e);
    if (strcmp(name, "EncodingType") == 0)
        l->page.url_encoded = slice_eq_str(slice_trim(text), "url");
    return 0;
}

static int on_element(void *arg, unsigned depth, const char *parent, const char *name, struct slice text,
                      struct err *e)
{
    struct s3_list *l = arg;
    if (depth == 1) {
        l->saw_root = strcmp(name, "ListBucketResult") == 0;
        return l->saw_root ? 0 : err_set(e, ERR_ORIGIN_FAILED, "the answer is a %s and no listing", name);
    }
    if (depth == 2)
        return on_page(l, name, text, e);
    if (depth != 3)
        return 0;
    if (strcmp(parent, "Contents") == 0)
        return on_contents(l, name, text, e);
    if (strcmp(parent, "CommonPrefixes") == 0 && strcmp(name, "Prefix") == 0) {
        l->now = (struct origin_entry){.is_prefix = true};
        int r = web_page_keep(&l->page, text, &l->now.key, e);
        return r < 0 ? r : add(l, e);
    }
    return 0;
}

struct s3_list *s3_list_new(const struct origin_list *q, const char *own_prefix, struct arena *a,
                            struct err *e)
{
    struct s3_list *_cleanup_(s3_list_freep) l = calloc(1, sizeof(*l));
    if (!l)
        abort();
    if (web_page_init(&l->page, q, own_prefix, a, e) < 0)
        return NULL;
    l->xml = web_xml_new(WEB_LIST_MAX_BYTES, on_element, l);
    return TAKE_PTR(l);
}

void s3_list_free(struct s3_list *l)
{
    if (!l)
        return;
    web_xml_free(l->xml);
    web_page_fini(&l->page);
    free(l);
}

int s3_list_feed(struct s3_list *l, const void *p, size_t n, struct err *e)
{
    return web_xml_feed(l->xml, p, n, e);
}

int s3_list_end(struct s3_list *l, struct origin_page *ret, struct err *e)
{
    int r = web_xml_end(l->xml, e);
    return r < 0 ? r : web_page_finish(&l->page, ret, e);
}

struct feed {
    struct s3_list *list;
    struct err *err;
};

static int on_body(void *arg, const void *p, size_t n)
{
    struct feed *f = arg;
    return s3_list_feed(f->list, p, n, f->err);
}

/* The service's start-after and prefix carry the origin's own prefix; the caller's do not. */
static struct slice with_prefix(const struct s3 *s, struct slice key, struct arena *a)
{
    return slice_str(arena_printf(a, "%s" SLICE_FMT, s->prefix, SLICE_ARG(key)));
}

int s3_list(struct origin *o, const struct origin_list *q, struct arena *a, struct origin_page *ret,
            struct err *e)
{
    struct s3 *s = s3_of(o);
    if (s->view.is_on)
        return s3_view_list(s, q, a, ret, e);
    struct s3_list *_cleanup_(s3_list_freep) list = s3_list_new(q, s->prefix, a, e);
    if (!list)
        return -ENAMETOOLONG;
    char max[16];
    (void)snprintf(max, sizeof(max), "%u", list->page.max);
    struct web_call _cleanup_(web_call_fini) c;
    struct feed f = {list, e};
    web_call_init(&c, &s->web, WEB_GET, "list");
    web_query(&c, SLICE_LIT("list-type"), SLICE_LIT("2"));
    web_query(&c, SLICE_LIT("encoding-type"), SLICE_LIT("url"));
    web_query(&c, SLICE_LIT("max-keys"), slice_str(max));
    if (list->page.prefix.n)
        web_query(&c, SLICE_LIT("prefix"), list->page.prefix);
    if (q->delimiter)
        web_query(&c, SLICE_LIT("delimiter"), slice_of(&q->delimiter, 1));
    if (q->after.n)
        web_query(&c, SLICE_LIT("start-after"), with_prefix(s, q->after, a));
    if (q->token.n)
        web_query(&c, SLICE_LIT("continuation-token"), q->token);
    c.on_body = on_body;
    c.arg = &f;
    int r = web_perform(&c, e);
    return r < 0 ? r : s3_list_end(list, ret, e);
}
