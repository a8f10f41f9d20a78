/*
 * A view of what a bucket had that keeps versions: at a time (origin.as_of), or one generation of one object
 * (origin.version). It is read and never written (origin.c).
 *
 * A generation was there from timeCreated until timeDeleted: one resource says all that is to be known of it,
 * whatever its neighbours are. Listings leave out what was not there; a read finds the generation of its key
 * first, but for one that is pinned to a generation.
 *
 * Failure modes: those of web_perform; -ENOENT where there was no object then; ERR_NOT_IMPLEMENTED where the
 * bucket keeps no versions; ERR_ORIGIN_FAILED for resources without times.
 */
#include "origin/gs_internal.h"

#include "base/text.h"
#include "origin/meta.h"

#define GENERATION       "generation"
#define LOOKUP_MAX       "100"
#define LOOKUP_PAGES_MAX 1000

int gs_view_open(struct gs *g, const struct origin_options *o, struct err *e)
{
    struct gs_view *v = &g->view;
    if (o->version && o->version[0]) {
        if (!gs_is_generation(slice_str(o->version)))
            return err_set(e, ERR_BAD_OPTION, "origin.version %s: a generation is a number", o->version);
        v->is_on = true;
        v->generation = web_dup(o->version);
        return web_cut_object(g->prefix, &v->key, e);
    }
    v->is_on = o->as_of && o->as_of[0];
    return v->is_on ? origin_parse_as_of(o, &v->as_of_ns, e) : 0;
}

static int read_time(const json_t *j, const char *name, bool is_needed, uint64_t *ret_ns, struct err *e)
{
    const char *text = json_string_value(json_object_get(j, name));
    if (!is_needed && (!text || !text[0]))
        return 0;
    return text && text_parse_date(slice_str(text), ret_ns) == 0
               ? 0
               : err_set(e, ERR_ORIGIN_FAILED, "the page has an object without a %s that can be read", name);
}

int gs_view_has(const struct gs_view *v, const json_t *j, bool *ret, struct err *e)
{
    uint64_t created_ns = 0, deleted_ns = UINT64_MAX, end_ns = origin_as_of_end(v->as_of_ns);
    int r = read_time(j, "timeCreated", /* is_needed= */ true, &created_ns, e);
    if (r == 0)
        r = read_time(j, "timeDeleted", /* is_needed= */ false, &deleted_ns, e);
    if (r == 0)
        *ret = created_ns <= end_ns && deleted_ns > end_ns;
    return r;
}

int gs_view_check(struct gs *g, struct err *e)
{
    if (atomic_load(&g->view.is_kept))
        return 0;
    struct buf _cleanup_buf_ body = BUF_INIT(WEB_RESULT_MAX), url = BUF_INIT(WEB_URL_MAX);
    struct web_call _cleanup_(web_call_fini) c;
    struct err local = {0};
    int r = buf_printf(&url, "%s%s/storage/v1/b/%s", g->endpoint.base, g->endpoint.path, g->bucket);
    if (r < 0)
        return err_set(e, -ENAMETOOLONG, "the bucket's URL is too long");
    web_call_init(&c, &g->web, WEB_GET, "versioning");
    c.url = buf_view(&url);
    json_t *_cleanup_(gs_json_unrefp) j = gs_ask(&c, &body, &r, &local);
    if (r < 0 && (retry_is_transient(r) || r == -ECANCELED)) {
        if (e)
            *e = local;
        return r;
    }
    if (j && !json_is_true(json_object_get(json_object_get(j, "versioning"), "enabled")))
        return err_set(e, ERR_NOT_IMPLEMENTED, "bucket %s keeps no versions: versioning is not enabled there",
                       g->bucket);
    atomic_store(&g->view.is_kept, true); /* or who asks may not know */
    return 0;
}

/* ---- one key ---- */

static int take(const json_t *j, struct arena *a, struct origin_attr *ret, struct err *e)
{
    int r = gs_json_attr(j, a, ret, e);
    if (r == 0 && arena_left(a) > 2 * ORIGIN_META_MAX_BYTES)
        ret->meta = meta_with(ret->meta, META_VERSION, ret->etag, ORIGIN_META_MAX_BYTES, a);
    return r;
}

static int stat_generation(struct gs *g, const struct origin_get *q, struct slice generation, struct arena *a,
                           struct origin_attr *ret, struct err *e)
{
    struct buf _cleanup_buf_ body = BUF_INIT(WEB_RESULT_MAX);
    struct web_call _cleanup_(web_call_fini) c;
    int r;
    web_call_init(&c, &g->web, WEB_GET, "head");
    c.has_key = true;
    c.key = q->key;
    c.cancel = q->cancel;
    web_query(&c, SLICE_LIT(GENERATION), generation);
    json_t *_cleanup_(gs_json_unrefp) j = gs_ask(&c, &body, &r, e);
    if (!j)
        return r;
    struct origin_attr attr;
    r = take(j, a, &attr, e);
    if (r == 0 && !slice_eq(attr.etag, generation))
        return err_set(e, ERR_ORIGIN_REFUSED,
                       "asked for generation " SLICE_FMT ", the answer is of " SLICE_FMT,
                       SLICE_ARG(generation), SLICE_ARG(attr.etag));
    if (r == 0)
        *ret = attr;
    return r;
}

/* Looks for the generation that was there on one page; *ret_j is the page's. *ret_ended: further pages say
 * nothing of the key. */
static int search(const struct gs *g, const json_t *page, struct slice full, const json_t **ret_j,
                  bool *ret_ended, struct err *e)
{
    const json_t *items = json_object_get(page, "items");
    for (size_t i = 0; i < json_array_size(items); i++) {
        const json_t *j = json_array_get(items, i), *name = json_object_get(j, "name");
        bool has = false;
        if (!slice_eq(slice_of(json_string_value(name), json_string_length(name)), full)) {
            *ret_ended = true; /* the key is the first of those that begin so */
            continue;
        }
        int r = gs_view_has(&g->view, j, &has, e);
        if (r < 0)
            return r;
        if (has) {
            *ret_j = j;
            *ret_ended = true;
            return 0;
        }
    }
    return 0;
}

static int find(struct gs *g, const struct origin_get *q, struct slice full, struct arena *a,
                struct origin_attr *ret, struct err *e)
{
    struct buf _cleanup_buf_ token = BUF_INIT(WEB_XML_TEXT_MAX);
    for (int i = 0; i < LOOKUP_PAGES_MAX; i++) {
        struct buf _cleanup_buf_ body = BUF_INIT(WEB_LIST_MAX_BYTES);
        struct web_call _cleanup_(web_call_fini) c;
        const json_t *found = NULL;
        bool has_ended = false;
        int r;
        web_call_init(&c, &g->web, WEB_GET, "list");
        c.cancel = q->cancel;
        web_query(&c, SLICE_LIT("maxResults"), SLICE_LIT(LOOKUP_MAX));
        web_query(&c, SLICE_LIT("versions"), SLICE_LIT("true"));
        web_query(&c, SLICE_LIT("prefix"), full);
        if (token.n > 0)
            web_query(&c, SLICE_LIT("pageToken"), buf_view(&token));
        json_t *_cleanup_(gs_json_unrefp) page = gs_ask(&c, &body, &r, e);
        if (page)
            r = search(g, page, full, &found, &has_ended, e);
        if (r < 0)
            return r;
        if (found)
            return take(found, a, ret, e);
        const json_t *next = json_object_get(page, "nextPageToken");
        struct slice text = slice_of(json_string_value(next), json_string_length(next));
        if (has_ended || text.n == 0)
            return err_set(e, -ENOENT, "there was no such object at that time");
        if (slice_eq(text, buf_view(&token)))
            return err_set(e, ERR_ORIGIN_FAILED, "the page of versions goes on where it began");
        buf_clear(&token);
        if (buf_slice(&token, text) < 0)
            return err_set(e, ERR_ORIGIN_FAILED, "the page's token has %zu bytes", text.n);
    }
    return err_set(e, ERR_ORIGIN_FAILED, "the object's versions have no end");
}

int gs_view_stat(struct gs *g, const struct origin_get *q, struct arena *a, struct origin_attr *ret,
                 struct err *e)
{
    bool is_pinned = q->if_match.n > 0 && gs_is_generation(q->if_match);
    struct origin_attr attr = {.etag = q->if_match};
    struct slice only = slice_str(g->view.generation);
    int r = 0;
    if (only.n > 0 && !slice_eq_str(q->key, g->view.key))
        return err_set(e, -ENOENT, "only %s is seen here", g->view.key);
    if (is_pinned && !q->attributes_only) { /* for the bytes its number is enough */
        *ret = attr;
        return 0;
    }
    char _cleanup_free_ *full = NULL;
    if (asprintf(&full, "%s" SLICE_FMT, g->prefix, SLICE_ARG(q->key)) < 0)
        abort();
    r = only.n > 0 ? stat_generation(g, q, only, a, &attr, e) : find(g, q, slice_str(full), a, &attr, e);
    if (r < 0)
        return r;
    if (is_pinned && !slice_eq(attr.etag, q->if_match))
        return err_set(e, ERR_PRECONDITION, "the object's generation was " SLICE_FMT " and not " SLICE_FMT,
                       SLICE_ARG(attr.etag), SLICE_ARG(q->if_match));
    *ret = attr;
    return 0;
}

int gs_view_pin(struct gs *g, struct web_call *c, const struct origin_get *q, struct arena *scratch,
                struct err *e)
{
    struct arena *_cleanup_(arena_freep) a = arena_new(64 * KIB);
    struct origin_attr attr;
    int r = gs_view_stat(g, q, a, &attr, e);
    if (r == 0)
        web_query(c, SLICE_LIT(GENERATION), arena_dup(scratch, attr.etag));
    return r;
}

int gs_view_answer(const struct web_call *c, struct err *e)
{
    struct slice asked = SLICE_NULL, told = slice_str(c->response.etag);
    for (size_t i = 0; i < c->n_query; i++)
        if (slice_eq_str(c->query[i].name, GENERATION))
            asked = c->query[i].value;
    return slice_eq(asked, told) ? 0
                                 : err_set(e, ERR_ORIGIN_REFUSED,
                                           "asked for generation " SLICE_FMT ", the answer is of " SLICE_FMT,
                                           SLICE_ARG(asked), SLICE_ARG(told));
}

int gs_view_list_one(struct gs *g, const struct origin_list *l, struct arena *a, struct origin_page *ret,
                     struct err *e)
{
    struct origin_entry x;
    *ret = (struct origin_page){0};
    if (!web_list_one(slice_str(g->view.key), l, a, &x))
        return 0;
    struct origin_get q = {.key = slice_str(g->view.key), .attributes_only = true};
    int r = x.is_prefix ? 0 : gs_view_stat(g, &q, a, &x.attr, e);
    if (r < 0)
        return err_prefix(e, r, "version %.100s of %.200s", g->view.generation, g->view.key);
    x.attr.meta = SLICE_NULL;
    *ret = (struct origin_page){.entries = arena_alloc(a, sizeof(x)), .n = 1};
    ret->entries[0] = x;
    return 0;
}
