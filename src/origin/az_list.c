/*
 * List Blobs: one page, parsed while it arrives.
 *
 * The service goes on from its own marker only, not from a key. Where a page has to begin behind a key, the
 * listing begins at the nearest place before it that is known from earlier pages (the hints), else at the
 * start of the prefix, and what is not behind the key is dropped. Our own token holds that key and the
 * marker: "LENGTH:KEYMARKER".
 *
 * A marker stands for the blob that came next when it was given, whatever was made before that one since. So
 * the marker that a page began with leads to what is behind its first key at any time; the one at its end, to
 * what is behind its last key, for AZ_NEXT_MS and as the latest of those, which is how callers go on.
 *
 * Invariants:
 *  1. A hint of another prefix or delimiter is never used.
 *  2. Whatever the hints are, a page leaves out nothing behind its key that was there AZ_NEXT_MS ago.
 *  3. Blobs that stand for directories (az.c) are in no page.
 *  4. Those of web_page.c.
 *
 * Failure modes: those of web_page.c and web_perform.
 */
#include "origin/az_internal.h"

#include "base/text.h"

struct reader {
    struct web_page page;
    struct web_xml *xml;
    struct origin_entry now;
    bool is_folder; /* of the one being read: it says so */
    struct err *err;
};

static void reader_fini(struct reader *r)
{
    web_xml_free(r->xml);
    web_page_fini(&r->page);
}

/* ---- hints ---- */

static void hint_fini(struct az_hint *h)
{
    free(h->list);
    free(h->first);
    free(h->began);
    free(h->last);
    free(h->next);
    *h = (struct az_hint){0};
}

void az_hints_init(struct az_hints *h)
{
    lock_init(&h->lock, LOCK_ORIGIN);
}

void az_hints_fini(struct az_hints *h)
{
    for (size_t i = 0; i < AZ_HINTS; i++)
        hint_fini(&h->v[i]);
    lock_fini(&h->lock);
}

/* What tells listings apart: delimiter and prefix. */
static char *list_name(const struct origin_list *q)
{
    char *s = NULL;
    if (asprintf(&s, "%02x" SLICE_FMT, (unsigned char)q->delimiter, SLICE_ARG(q->prefix)) < 0)
        abort();
    return s;
}

/* began, next: the markers that the page was asked with, and that it ended with; empty: none. */
static void remember(struct az *z, const struct origin_list *q, const struct origin_page *page,
                     struct slice began, struct slice next, uint64_t asked_ms)
{
    if (page->n == 0 || (began.n == 0 && next.n == 0))
        return;
    struct az_hint x = {.list = list_name(q),
                        .first = slice_dup(page->entries[0].key),
                        .began = slice_dup(began),
                        .last = slice_dup(page->entries[page->n - 1].key),
                        .next = slice_dup(next),
                        .asked_ms = asked_ms};
    LOCK_SCOPE(&z->hints.lock);
    struct az_hint *h = &z->hints.v[z->hints.next++ % AZ_HINTS];
    hint_fini(h);
    *h = x;
}

/* The marker to begin with for what is behind q->after; a copy in the arena, or empty. */
static struct slice recall(struct az *z, const struct origin_list *q, struct arena *a)
{
    char _cleanup_free_ *list = list_name(q);
    const struct az_hint *before = NULL, *behind = NULL;
    uint64_t now_ms = sys_mono_ms();
    LOCK_SCOPE(&z->hints.lock);
    for (size_t i = 0; i < AZ_HINTS && q->after.n; i++) {
        const struct az_hint *h = &z->hints.v[i];
        if (!h->list || strcmp(h->list, list) != 0)
            continue;
        bool is_end = h->next[0] && slice_eq_str(q->after, h->last) && now_ms - h->asked_ms < AZ_NEXT_MS;
        if (is_end && (!behind || h->asked_ms >= behind->asked_ms))
            behind = h;
        bool is_in = h->began[0] && slice_cmp(slice_str(h->first), q->after) <= 0;
        if (is_in && (!before || strcmp(h->first, before->first) > 0))
            before = h;
    }
    struct slice marker = behind ? slice_str(behind->next) : before ? slice_str(before->began) : SLICE_NULL;
    return marker.n > 0 ? arena_dup(a, marker) : SLICE_NULL;
}

/* ---- the document ---- */

static int on_property(struct reader *l, const char *name, struct slice text, struct err *e)
{
    if (strcmp(name, "Etag") == 0)
        return web_page_keep(&l->page, web_unquote(text), &l->now.attr.etag, e);
    if (strcmp(name, "Content-Length") == 0 && slice_u64(slice_trim(text), &l->now.attr.size_bytes) < 0)
        return err_set(e, ERR_ORIGIN_FAILED, "the page has a size that is no number");
    if (strcmp(name, "Last-Modified") == 0)
        (void)text_parse_date(slice_trim(text), &l->now.attr.mtime_ns);
    if (strcmp(name, "ResourceType") == 0)
        l->is_folder |= slice_eq_str(slice_trim(text), "directory");
    return 0;
}

static int on_entry(struct reader *l, const char *name, struct err *e)
{
    bool is_blob = strcmp(name, "Blob") == 0;
    l->now.is_prefix = strcmp(name, "BlobPrefix") == 0;
    bool counts = l->now.is_prefix || (is_blob && !(l->is_folder && l->now.attr.size_bytes == 0));
    int r = counts ? web_page_add(&l->page, &l->now, e)
                   : web_page_leave_out(&l->page, l->now.key, /* place= */ 0, e);
    l->now = (struct origin_entry){0};
    l->is_folder = false;
    return r;
}

static int on_element(void *arg, unsigned depth, const char *parent, const char *name, struct slice text,
                      struct err *e)
{
    struct reader *l = arg;
    if (depth == 1 && strcmp(name, "EnumerationResults") != 0)
        return err_set(e, ERR_ORIGIN_FAILED, "the answer is a %s and no listing", name);
    if (depth == 2 && strcmp(name, "NextMarker") == 0 && text.n) {
        l->page.truncated = true;
        return web_page_keep(&l->page, text, &l->page.next_token, e);
    }
    if (depth == 5 && strcmp(parent, "Properties") == 0)
        return on_property(l, name, text, e);
    if (depth == 5 && strcmp(parent, "Metadata") == 0 && strcasecmp(name, AZ_FOLDER) == 0)
        l->is_folder |= slice_eq_case(slice_trim(text), SLICE_LIT("true"));
    if (depth == 4 && strcmp(name, "Name") == 0)
        return web_page_keep(&l->page, text, &l->now.key, e);
    return depth == 3 && strcmp(parent, "Blobs") == 0 ? on_entry(l, name, e) : 0;
}

static int on_body(void *arg, const void *p, size_t n)
{
    struct reader *l = arg;
    return web_xml_feed(l->xml, p, n, l->err);
}

/* ---- the page ---- */

static int ask(struct az *z, const struct origin_list *q, struct slice marker, struct reader *l,
               struct origin_page *ret, struct err *e)
{
    struct web_call _cleanup_(web_call_fini) c;
    char max[16];
    (void)snprintf(max, sizeof(max), "%u", l->page.max);
    web_call_init(&c, &z->web, WEB_GET, "list");
    web_query(&c, SLICE_LIT("restype"), SLICE_LIT("container"));
    web_query(&c, SLICE_LIT("comp"), SLICE_LIT("list"));
    web_query(&c, SLICE_LIT("include"), SLICE_LIT("metadata")); /* which says what is a directory */
    web_query(&c, SLICE_LIT("maxresults"), slice_str(max));
    if (l->page.prefix.n)
        web_query(&c, SLICE_LIT("prefix"), l->page.prefix);
    if (q->delimiter)
        web_query(&c, SLICE_LIT("delimiter"), slice_of(&q->delimiter, 1));
    if (marker.n)
        web_query(&c, SLICE_LIT("marker"), marker);
    c.on_body = on_body;
    c.arg = l;
    int r = web_perform(&c, e);
    if (r == 0)
        r = web_xml_end(l->xml, e);
    return r < 0 ? r : web_page_finish(&l->page, ret, e);
}

/* Key and marker of our own token. */
static int take_token(struct slice token, struct slice *ret_after, struct slice *ret_marker, struct err *e)
{
    uint64_t n;
    struct slice length = slice_split(&token, ':');
    if (slice_u64(length, &n) < 0 || n > token.n)
        return err_set(e, -EINVAL, "the continuation is none of ours");
    *ret_after = slice_sub(token, 0, n);
    *ret_marker = slice_from(token, n);
    return 0;
}

int az_list(struct origin *o, const struct origin_list *l, struct arena *a, struct origin_page *ret,
            struct err *e)
{
    struct az *z = az_of(o);
    if (z->version)
        return az_view_list(z, l, a, ret, e);
    struct origin_list q = *l;
    struct slice marker = SLICE_NULL, after = SLICE_NULL;
    int r = q.token.n ? take_token(q.token, &after, &marker, e) : 0;
    if (r < 0)
        return r;
    if (slice_cmp(after, q.after) > 0)
        q.after = after;
    if (!q.token.n)
        marker = recall(z, &q, a);
    struct reader _cleanup_(reader_fini) reader = {.err = e};
    r = web_page_init(&reader.page, &q, z->prefix, a, e);
    if (r < 0)
        return r;
    reader.xml = web_xml_new(WEB_LIST_MAX_BYTES, on_element, &reader);
    uint64_t asked_ms = sys_mono_ms();
    r = ask(z, &q, marker, &reader, ret, e);
    if (r < 0)
        return r;
    remember(z, &q, ret, marker, ret->truncated ? reader.page.next_token : SLICE_NULL, asked_ms);
    if (ret->truncated)
        ret->next_token = slice_str(arena_printf(a, "%zu:" SLICE_FMT SLICE_FMT, q.after.n, SLICE_ARG(q.after),
                                                 SLICE_ARG(reader.page.next_token)));
    return 0;
}
