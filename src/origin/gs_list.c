/*
 * objects.list: one page.
 *
 * A page begins behind a key (startOffset, which includes the key itself) or goes on by the service's page
 * token. Our own token says which: 't' and the page token, or 'k' and a key.
 *
 * The service promises at most maxResults objects and prefixes together, in order. A server that counts
 * objects only and gives all prefixes at once is seen by the page being too long: of such a page everything
 * up to its last object is kept, and the next one begins behind the last key kept.
 *
 * Invariants and failure modes: those of web_page.c.
 */
#include "origin/gs_internal.h"

#include "base/text.h"

#define TOKEN_MAX (8 * KIB)
#define FIELDS    "items(name,size,generation,updated),prefixes,nextPageToken"
#define FIELDS_OF_VERSIONS                                                                                   \
    "items(name,size,generation,updated,timeCreated,timeDeleted),prefixes,nextPageToken"

/* Generations of one name are in order. */
static int leave_out(struct web_page *p, struct slice key, const json_t *j, struct err *e)
{
    const json_t *text = json_object_get(j, "generation");
    uint64_t generation = 0;
    (void)slice_u64(slice_of(json_string_value(text), json_string_length(text)), &generation);
    return web_page_leave_out(p, key, generation, e);
}

static int add_item(struct web_page *p, const struct gs_view *v, const json_t *j, struct err *e)
{
    const json_t *name = json_object_get(j, "name");
    struct origin_entry x = {0};
    bool has = true;
    if (!json_is_string(name))
        return err_set(e, ERR_ORIGIN_FAILED, "the page has an object without a name");
    struct slice key = slice_of(json_string_value(name), json_string_length(name));
    int r = v->is_on ? gs_view_has(v, j, &has, e) : 0;
    if (r == 0 && !has)
        return leave_out(p, key, j, e);
    if (r == 0)
        r = web_page_keep(p, key, &x.key, e);
    if (r == 0)
        r = gs_json_attr(j, p->arena, &x.attr, e);
    return r == 0 ? web_page_add(p, &x, e) : r;
}

static int add_prefix(struct web_page *p, const json_t *j, struct err *e)
{
    struct origin_entry x = {.is_prefix = true};
    if (!json_is_string(j))
        return err_set(e, ERR_ORIGIN_FAILED, "the page has a prefix that is no text");
    int r = web_page_keep(p, slice_of(json_string_value(j), json_string_length(j)), &x.key, e);
    return r == 0 ? web_page_add(p, &x, e) : r;
}

/* The largest key among the objects of a page that is in order; empty when there are none. */
static struct slice last_object(const struct origin_page *page)
{
    for (size_t i = page->n; i > 0; i--)
        if (!page->entries[i - 1].is_prefix)
            return page->entries[i - 1].key;
    return SLICE_NULL;
}

static void cut(struct origin_page *page, uint32_t max, struct slice last, struct arena *a)
{
    bool more = page->truncated;
    if (page->truncated && last.n)
        while (page->n > 0 && slice_cmp(page->entries[page->n - 1].key, last) > 0)
            page->n--;
    if (page->n > max) {
        page->n = max;
        more = true;
    }
    page->truncated = more;
    if (more && page->n > 0)
        page->next_token =
            slice_str(arena_printf(a, "k" SLICE_FMT, SLICE_ARG(page->entries[page->n - 1].key)));
}

/* Parts of uploads are no objects of anybody. Last, because pages are cut and gone on from by what is in
 * them. */
static void hide_parts(struct origin_page *page)
{
    size_t n = 0;
    for (size_t i = 0; i < page->n; i++)
        if (!gs_is_reserved(page->entries[i].key))
            page->entries[n++] = page->entries[i];
    page->n = n;
}

static int take_page(struct web_page *p, const struct gs_view *v, uint32_t max, uint32_t asked,
                     const json_t *j, struct origin_page *ret, struct err *e)
{
    const json_t *items = json_object_get(j, "items"), *prefixes = json_object_get(j, "prefixes");
    const json_t *token = json_object_get(j, "nextPageToken");
    size_t n = json_array_size(items), n_prefixes = json_array_size(prefixes), i;
    int r = web_page_room(p, n + n_prefixes, e);
    for (i = 0; i < n && r == 0; i++)
        r = add_item(p, v, json_array_get(items, i), e);
    for (i = 0; i < n_prefixes && r == 0; i++)
        r = add_prefix(p, json_array_get(prefixes, i), e);
    p->truncated = json_string_length(token) > 0;
    if (r == 0 && p->truncated && json_string_length(token) > TOKEN_MAX)
        return err_set(e, ERR_ORIGIN_FAILED, "the page's token has %zu bytes", json_string_length(token));
    if (r == 0 && p->truncated)
        p->next_token = slice_str(arena_printf(p->arena, "t%s", json_string_value(token)));
    if (r == 0)
        r = web_page_finish(p, ret, e);
    if (r == 0 && (n + n_prefixes > asked || ret->n > max))
        cut(ret, max, last_object(ret), p->arena);
    if (r == 0)
        hide_parts(ret);
    return r;
}

static int ask(struct gs *g, const struct origin_list *q, struct web_page *p, struct origin_page *ret,
               struct err *e)
{
    struct buf _cleanup_buf_ body = BUF_INIT(WEB_LIST_MAX_BYTES);
    struct web_call _cleanup_(web_call_fini) c;
    char max[16];
    uint32_t asked = p->max + (p->after.n ? 1 : 0); /* the key itself comes again */
    (void)snprintf(max, sizeof(max), "%u", asked);
    web_call_init(&c, &g->web, WEB_GET, "list");
    web_query(&c, SLICE_LIT("maxResults"), slice_str(max));
    web_query(&c, SLICE_LIT("fields"), g->view.is_on ? SLICE_LIT(FIELDS_OF_VERSIONS) : SLICE_LIT(FIELDS));
    if (g->view.is_on)
        web_query(&c, SLICE_LIT("versions"), SLICE_LIT("true"));
    if (p->prefix.n)
        web_query(&c, SLICE_LIT("prefix"), p->prefix);
    if (q->delimiter)
        web_query(&c, SLICE_LIT("delimiter"), slice_of(&q->delimiter, 1));
    if (q->token.n && q->token.p[0] == 't')
        web_query(&c, SLICE_LIT("pageToken"), slice_from(q->token, 1));
    else if (p->after.n)
        web_query(&c, SLICE_LIT("startOffset"),
                  slice_str(arena_printf(p->arena, "%s" SLICE_FMT, g->prefix, SLICE_ARG(p->after))));
    int r;
    json_t *_cleanup_(gs_json_unrefp) j = gs_ask(&c, &body, &r, e);
    return r == 0 ? take_page(p, &g->view, p->max, asked, j, ret, e) : r;
}

int gs_list(struct origin *o, const struct origin_list *l, struct arena *a, struct origin_page *ret,
            struct err *e)
{
    struct gs *g = gs_of(o);
    struct origin_list q = *l;
    struct web_page _cleanup_(web_page_fini) p = {0};
    if (g->view.generation)
        return gs_view_list_one(g, l, a, ret, e);
    if (g->view.is_on && q.token.n == 0) {
        int k = gs_view_check(g, e);
        if (k < 0)
            return k;
    }
    if (q.token.n && q.token.p[0] == 'k' && slice_cmp(slice_from(q.token, 1), q.after) > 0)
        q.after = slice_from(q.token, 1);
    int r = web_page_init(&p, &q, g->prefix, a, e);
    return r < 0 ? r : ask(g, &q, &p, ret, e);
}
