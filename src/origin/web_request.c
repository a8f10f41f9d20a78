/*
 * What is sent, as far as kinds have it in common: headers, and the query of a URL.
 *
 * Invariant: names of headers are tokens and their values have no control characters: nothing that a user
 * wrote can add a header or a request.
 *
 * Failure modes: -EINVAL for values that cannot be headers, -E2BIG beyond the maxima.
 */
#include "origin/web_internal.h"

#include "base/text.h"
#include "origin/meta.h"

#define HEADER_MAX (16 * KIB)

int web_request_query(const struct web_call *c, struct buf *b)
{
    int r = 0;
    for (size_t i = 0; i < c->n_query && r == 0; i++) {
        r = buf_char(b, i == 0 ? '?' : '&');
        if (r == 0)
            r = text_uri_encode(b, c->query[i].name, /* keep_slash= */ false);
        if (r == 0)
            r = buf_char(b, '=');
        if (r == 0)
            r = text_uri_encode(b, c->query[i].value, /* keep_slash= */ false);
    }
    return r;
}

static void append(struct web_request *q, const char *line)
{
    struct curl_slist *list = curl.slist_append(q->headers, line);
    if (!list)
        abort();
    q->headers = list;
}

/* RFC 9110 5.6.2. Names of metadata are what some user called them. */
static bool is_name(struct slice s)
{
    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char)s.p[i] <= ' ' || (unsigned char)s.p[i] >= 0x7f ||
            strchr("\"(),/:;<=>?@[\\]{}", s.p[i]))
            return false;
    return s.n > 0;
}

int web_request_header(struct web_request *q, struct slice name, struct slice value, struct err *e)
{
    if (!is_name(name))
        return err_set(e, -EINVAL, "\"" SLICE_FMT "\" is no name of a header",
                       SLICE_ARG(slice_sub(name, 0, MIN(name.n, (size_t)80))));
    for (size_t i = 0; i < value.n; i++)
        if ((unsigned char)value.p[i] < ' ' && value.p[i] != '\t')
            return err_set(e, -EINVAL, "the value of header " SLICE_FMT " has a control character",
                           SLICE_ARG(name));
    struct buf _cleanup_buf_ line = BUF_INIT(HEADER_MAX);
    /* curl's own notation: "name;" sends a header without a value, "name:" would leave it out. */
    struct slice between = value.n > 0 ? SLICE_LIT(": ") : SLICE_LIT(";");
    if (!buf_reserve(&line, name.n + between.n + value.n))
        return err_set(e, -E2BIG, "header " SLICE_FMT " is too long", SLICE_ARG(name));
    (void)buf_slice(&line, name);
    (void)buf_slice(&line, between);
    (void)buf_slice(&line, value);
    append(q, line.p);
    explicit_bzero(line.p, line.n);
    return 0;
}

bool web_next_meta(const struct web *w, struct slice *meta, struct slice *ret_name, struct slice *ret_value)
{
    if (!origin_next_meta(meta, ret_name, ret_value))
        return false;
    if (w->sends_tags && slice_eq_str(*ret_name, META_TAGS))
        *ret_name = SLICE_LIT("x-amz-tagging");
    return true;
}

static int add_meta(struct web_call *c, struct web_request *q, struct err *e)
{
    static const struct slice ours = {"x-amz-meta-", sizeof("x-amz-meta-") - 1};
    struct slice meta = c->meta, name, value;
    int r = 0;
    while (r == 0 && web_next_meta(c->web, &meta, &name, &value)) {
        struct buf _cleanup_buf_ own = BUF_INIT(HEADER_MAX);
        if (slice_starts(name, ours)) {
            r = buf_str(&own, c->web->kind->meta_prefix);
            if (r == 0)
                r = buf_slice(&own, slice_from(name, ours.n));
            name = buf_view(&own);
        }
        r = r < 0 ? err_set(e, r, "a name of metadata is too long") : web_request_header(q, name, value, e);
    }
    return r;
}

int web_request_headers(struct web_call *c, struct web_request *q, struct err *e)
{
    bool has_type = false;
    int r = 0;
    for (size_t i = 0; i < c->n_headers && r == 0; i++) {
        has_type |= slice_eq_str(c->headers[i].name, "content-type");
        r = web_request_header(q, c->headers[i].name, c->headers[i].value, e);
    }
    if (r == 0)
        r = add_meta(c, q, e);
    if (r < 0)
        return r;
    append(q, "Accept:"); /* what curl would add by itself */
    if (atomic_load(&c->web->is_mute))
        append(q, "Expect:");
    if (!has_type)
        append(q, "Content-Type:");
    return 0;
}

int web_takes(struct web *w, const char *prefix, const struct origin_put *p, struct err *e)
{
    struct web_request _cleanup_(web_request_fini) q = {.url = BUF_INIT(WEB_URL_MAX)};
    struct web_call _cleanup_(web_call_fini) c;
    web_call_init(&c, w, WEB_PUT, "put");
    c.meta = p->meta;
    if (p->content_type.n)
        web_header(&c, SLICE_LIT("content-type"), p->content_type);
    int r = web_check_key(prefix, p->key, e);
    return r < 0 ? r : web_request_headers(&c, &q, e);
}

void web_request_fini(struct web_request *q)
{
    curl.slist_free_all(q->headers);
    buf_fini(&q->url);
}
