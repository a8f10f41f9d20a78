/*
 * What a plain HTTP server says is in a folder: its automatic index page, or a manifest that somebody wrote.
 *
 * An index page is HTML whose links are the names (nginx, Apache httpd, lighttpd, Python's), or nginx's JSON.
 * Only links to the folder's own children count: "name", "./name", "name/", and the same written whole. Sizes
 * and times on such pages are rounded or missing and are not read.
 *
 * Invariants:
 *  1. A name has no '/' but one at its end when it is a folder's, is not "." or "..", and has no control
 * characters.
 *  2. Names are in byte order, each once.
 *
 * Failure modes: ERR_ORIGIN_FAILED for JSON or manifests that make no sense, with the line; too many names.
 */
#include "origin/site_internal.h"

#include "base/text.h"

#include <jansson.h>

static struct site_folder *folder_new(void)
{
    struct site_folder *f = calloc(1, sizeof(*f));
    if (!f)
        abort();
    f->refs = 1;
    return f;
}

static void name_fini(struct site_name *x)
{
    free(x->name);
    free(x->etag);
}

void site_folder_unref(struct site_folder *f)
{
    if (!f || --f->refs > 0)
        return;
    for (size_t i = 0; i < f->n; i++)
        name_fini(&f->v[i]);
    free(f->v);
    free(f);
}

static int add(struct site_folder *f, struct slice name, bool is_folder, struct site_name **ret,
               struct err *e)
{
    if (f->n >= SITE_NAMES_MAX)
        return err_set(e, ERR_ORIGIN_FAILED, "the folder has more than %d names", SITE_NAMES_MAX);
    if (f->n == f->room) {
        f->room = f->room ? f->room * 2 : 64;
        f->v = reallocarray(f->v, f->room, sizeof(*f->v));
        if (!f->v)
            abort();
    }
    struct site_name *x = &f->v[f->n++];
    *x = (struct site_name){0};
    if (asprintf(&x->name, SLICE_FMT "%s", SLICE_ARG(name), is_folder ? "/" : "") < 0)
        abort();
    if (ret)
        *ret = x;
    return 0;
}

static int compare(const void *a, const void *b)
{
    const struct site_name *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static void put_in_order(struct site_folder *f)
{
    size_t kept = 0;
    if (f->n > 0)
        qsort(f->v, f->n, sizeof(*f->v), compare);
    for (size_t i = 0; i < f->n; i++) {
        if (kept > 0 && strcmp(f->v[kept - 1].name, f->v[i].name) == 0)
            name_fini(&f->v[i]);
        else
            f->v[kept++] = f->v[i];
    }
    f->n = kept;
}

static bool is_name(struct slice s)
{
    if (s.n == 0 || s.n > ORIGIN_KEY_MAX_BYTES || slice_eq_str(s, ".") || slice_eq_str(s, ".."))
        return false;
    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char)s.p[i] < ' ' || s.p[i] == 0x7f || s.p[i] == '/')
            return false;
    return true;
}

/* ---- HTML ---- */

/* The five entities of XML and numbers below 128; others stay as they are, and make no name that the server
 * knows. */
static int unescape(struct slice s, struct buf *b)
{
    static const struct {
        const char *entity;
        char c;
    } known[] = {{"&amp;", '&'}, {"&lt;", '<'},    {"&gt;", '>'},    {"&quot;", '"'}, {"&#39;", '\''},
                 {"&#34;", '"'}, {"&#x27;", '\''}, {"&apos;", '\''}, {"&#43;", '+'},  {"&#38;", '&'}};
    int r = 0;
    while (s.n > 0 && r == 0) {
        size_t n = 1;
        char c = s.p[0];
        for (size_t i = 0; c == '&' && i < ARRAY_SIZE(known) && n == 1; i++) {
            if (slice_starts(s, slice_str(known[i].entity))) {
                n = strlen(known[i].entity);
                c = known[i].c;
            }
        }
        r = buf_char(b, c);
        s = slice_from(s, n);
    }
    return r;
}

/* The folder's child that a link names: false when it leads elsewhere. */
static bool child_of(struct slice link, struct slice path, struct buf *name, bool *ret_folder)
{
    struct buf _cleanup_buf_ plain = BUF_INIT(8 * KIB);
    if (unescape(link, &plain) < 0)
        return false;
    struct slice s = buf_view(&plain), rest = s;
    if (slice_find(s, '?') >= 0 || slice_find(s, '#') >= 0)
        return false;
    if (slice_find_slice(s, SLICE_LIT("://")) > 0) { /* "http://host/path" */
        rest = slice_from(s, (size_t)slice_find_slice(s, SLICE_LIT("://")) + 3);
        ssize_t slash = slice_find(rest, '/');
        if (slash < 0)
            return false;
        s = slice_from(rest, (size_t)slash);
    }
    if (text_uri_decode(name, s, /* plus_is_space= */ false) < 0)
        return false;
    s = buf_view(name);
    if (slice_starts(s, SLICE_LIT("./")))
        s = slice_from(s, 2);
    else if (slice_starts(s, path))
        s = slice_from(s, path.n);
    *ret_folder = slice_ends(s, SLICE_LIT("/"));
    s = slice_sub(s, 0, s.n - (*ret_folder ? 1 : 0));
    if (!is_name(s))
        return false;
    buf_consume(name, (size_t)(s.p - name->p));
    name->n = s.n;
    return true;
}

/* The value of href in the inside of a tag "a"; empty when there is none. */
static struct slice href_of(struct slice tag)
{
    for (; tag.n > 5; tag = slice_from(tag, 1)) {
        bool gap = tag.p[0] == ' ' || tag.p[0] == '\t' || tag.p[0] == '\n' || tag.p[0] == '\r';
        if (!gap || !slice_eq_case(slice_sub(tag, 1, 5), SLICE_LIT("href=")))
            continue;
        tag = slice_from(tag, 6);
        char quote = tag.n ? tag.p[0] : 0;
        if (quote != '"' && quote != '\'')
            return SLICE_NULL;
        tag = slice_from(tag, 1);
        ssize_t end = slice_find(tag, quote);
        return end < 0 ? SLICE_NULL : slice_sub(tag, 0, (size_t)end);
    }
    return SLICE_NULL;
}

static int parse_html(struct slice text, struct slice path, struct site_folder *f, struct err *e)
{
    int r = 0;
    while (text.n > 0 && r == 0) {
        ssize_t open = slice_find(text, '<');
        if (open < 0)
            break;
        text = slice_from(text, (size_t)open + 1);
        bool link =
            text.n > 2 && (text.p[0] == 'a' || text.p[0] == 'A') && (text.p[1] == ' ' || text.p[1] == '\n');
        if (!link)
            continue;
        ssize_t end = slice_find(text, '>');
        if (end < 0) /* nor does any tag behind it: each would look to the end of the page */
            break;
        struct buf _cleanup_buf_ name = BUF_INIT(8 * KIB);
        bool is_folder;
        struct slice href = href_of(slice_sub(text, 1, (size_t)end));
        if (href.n && child_of(href, path, &name, &is_folder))
            r = add(f, buf_view(&name), is_folder, NULL, e);
        text = slice_from(text, (size_t)end);
    }
    return r;
}

/* ---- JSON ---- */

static int parse_json(struct slice text, struct site_folder *f, struct err *e)
{
    json_error_t x;
    json_t *j = web_json(text, 0, &x);
    size_t i;
    json_t *one;
    if (!j)
        return err_set(e, ERR_ORIGIN_FAILED, "the index page, line %d: %s", x.line, x.text);
    int r = 0;
    json_array_foreach(j, i, one)
    {
        const json_t *name = json_object_get(one, "name");
        const char *type = json_string_value(json_object_get(one, "type"));
        struct slice s = slice_of(json_string_value(name), json_string_length(name));
        bool is_folder = type && strcmp(type, "directory") == 0;
        if (r == 0 && is_name(s) && (is_folder || (type && strcmp(type, "file") == 0)))
            r = add(f, s, is_folder, NULL, e);
    }
    json_decref(j);
    return r;
}

static bool is_json(struct slice text)
{
    text = slice_trim(text);
    return text.n > 0 && text.p[0] == '[';
}

bool site_index_is_whole(struct slice text)
{
    static const struct slice end = {"</html>", 7};
    if (is_json(text)) /* one that was cut does not parse */
        return true;
    while (text.n >= end.n && !slice_eq_case(slice_sub(text, 0, end.n), end))
        text = slice_from(text, 1);
    return text.n >= end.n;
}

int site_index_parse(struct slice text, struct slice path, struct site_folder **ret, struct err *e)
{
    struct site_folder *_cleanup_(site_folder_unrefp) f = folder_new();
    int r = is_json(text) ? parse_json(text, f, e) : parse_html(text, path, f, e);
    if (r < 0)
        return r;
    put_in_order(f);
    *ret = TAKE_PTR(f);
    return 0;
}

/* ---- manifests ---- */

static int take_line(struct site_folder *f, struct slice line, unsigned number, struct err *e)
{
    struct slice key = slice_split(&line, '\t'), size = slice_split(&line, '\t'),
                 etag = slice_split(&line, '\t');
    struct site_name *x;
    for (size_t i = 0; i < key.n; i++)
        if (key.p[i] == '\0')
            return err_set(e, ERR_ORIGIN_FAILED, "the manifest, line %u: a key with a NUL byte", number);
    if (key.n > ORIGIN_KEY_MAX_BYTES || slice_ends(key, SLICE_LIT("/")) || slice_starts(key, SLICE_LIT("/")))
        return err_set(e, ERR_ORIGIN_FAILED, "the manifest, line %u: no key of an object", number);
    int r = add(f, key, false, &x, e);
    if (r < 0)
        return r;
    if (size.n && slice_u64(size, &x->size) < 0)
        return err_set(e, ERR_ORIGIN_FAILED, "the manifest, line %u: the size is no number", number);
    if (line.n && text_parse_date(line, &x->mtime_ns) < 0)
        return err_set(e, ERR_ORIGIN_FAILED, "the manifest, line %u: the time is no date", number);
    etag = web_unquote(etag);
    x->has_attr = size.n && etag.n;
    if (x->has_attr)
        x->etag = slice_dup(etag);
    return 0;
}

bool site_manifest_is_whole(struct slice text)
{
    while (text.n > 0 && strchr(" \r\n", text.p[text.n - 1]))
        text.n--;
    return slice_eq_str(slice_from(text, (size_t)(slice_rfind(text, '\n') + 1)), "# end");
}

int site_manifest_parse(struct slice text, struct site_folder **ret, struct err *e)
{
    struct site_folder *_cleanup_(site_folder_unrefp) f = folder_new();
    int r = 0;
    for (unsigned number = 1; text.n > 0 && r == 0; number++) {
        struct slice line = slice_split(&text, '\n');
        if (slice_ends(line, SLICE_LIT("\r")))
            line.n--;
        if (line.n > 0 && line.p[0] != '#')
            r = take_line(f, line, number, e);
    }
    if (r < 0)
        return r;
    put_in_order(f);
    *ret = TAKE_PTR(f);
    return 0;
}
