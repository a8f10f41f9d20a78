/*
 * A view of what a versioned bucket had: at a time (origin.as_of), or one version of one object
 * (origin.version). It is read and never written (origin.c); `import` restores through it.
 *
 * A listing is ListObjectVersions, which tells the versions of a key one after another, the newest first: the
 * first one that is not too new is what was there, and if it marks a removal, nothing was. A read names its
 * version: the one that a listing met a moment ago, else the versions of its key are asked for first.
 *
 * Invariants:
 *  1. Of a key one version is listed at most, also when its versions lie on two pages: the token says whether
 *     the key that it names is decided. Token: '0' or '1', the length of the version's id in decimal, ':',
 *     the id, the key.
 *  2. A call asks for one page, which may be empty although there are more, so that many versions that are
 *     too new keep nobody from stopping.
 *  3. Bytes and attributes are of the version that was asked for: answers that do not say so are refused.
 *  4. What is known of a key is kept for dates that have passed only: then it cannot change.
 *
 * Failure modes: those of web_page.c, s3_version_page.c and web_perform; -ENOENT where there was no object
 * then; ERR_NOT_IMPLEMENTED where the bucket or the service keeps no versions.
 */
#include "origin/s3_internal.h"

#include "base/hash.h"

#define LOOKUP_MAX       64 /* versions in the first page of one key's */
#define LOOKUP_PAGES_MAX 10000
#define KNOWN_MAX        8192
#define PASSED_NS        ((uint64_t)60000000000) /* so long ago is a date that has passed for every clock */
#define ID_PARAMETER     "versionId"

/* ---- what is known ---- */

struct known_row {
    char *key, *id; /* NULL: none */
};

struct s3_known {
    struct lock lock; /* covers what follows */
    struct known_row rows[KNOWN_MAX];
};

struct s3_known *s3_known_new(void)
{
    struct s3_known *k = calloc(1, sizeof(*k));
    if (!k)
        abort();
    lock_init(&k->lock, LOCK_ORIGIN);
    return k;
}

void s3_known_free(struct s3_known *k)
{
    if (!k)
        return;
    for (size_t i = 0; i < KNOWN_MAX; i++) {
        free(k->rows[i].key);
        free(k->rows[i].id);
    }
    lock_fini(&k->lock);
    free(k);
}

static void know(const struct s3_view *v, struct slice key, struct slice id)
{
    uint64_t now_ns = sys->real_ns();
    if (now_ns < PASSED_NS || v->as_of_ns > now_ns - PASSED_NS)
        return;
    struct known_row x = {slice_dup(key), slice_dup(id)}, *at = &v->known->rows[hash_table(key) % KNOWN_MAX];
    lock_take(&v->known->lock);
    struct known_row before = *at;
    *at = x;
    lock_drop(&v->known->lock);
    free(before.key);
    free(before.id);
}

static bool recall(const struct s3_view *v, struct slice key, struct arena *a, struct slice *ret_id)
{
    LOCK_SCOPE(&v->known->lock);
    const struct known_row *at = &v->known->rows[hash_table(key) % KNOWN_MAX];
    if (!at->key || !slice_eq_str(key, at->key))
        return false;
    *ret_id = arena_dup(a, slice_str(at->id));
    return true;
}

/* ---- one page ---- */

struct question {
    struct slice prefix, key_marker, id_marker;
    char delimiter; /* 0: none */
    size_t max;
    atomic_bool *cancel;
};

struct feed {
    struct s3_version_reader *reader;
    struct err *err;
};

static int on_body(void *arg, const void *p, size_t n)
{
    struct feed *f = arg;
    return s3_version_reader_feed(f->reader, p, n, f->err);
}

/* The page lasts as long as the reader, which is made for q->max. */
static int ask(struct s3 *s, const struct question *q, struct s3_version_reader *reader,
               struct s3_version_page *ret, struct err *e)
{
    struct web_call _cleanup_(web_call_fini) c;
    struct feed f = {reader, e};
    char max[24];
    (void)snprintf(max, sizeof(max), "%zu", q->max);
    web_call_init(&c, &s->web, WEB_GET, "list");
    web_query(&c, SLICE_LIT("versions"), SLICE_NULL);
    web_query(&c, SLICE_LIT("encoding-type"), SLICE_LIT("url"));
    web_query(&c, SLICE_LIT("max-keys"), slice_str(max));
    if (q->prefix.n)
        web_query(&c, SLICE_LIT("prefix"), q->prefix);
    if (q->delimiter)
        web_query(&c, SLICE_LIT("delimiter"), slice_of(&q->delimiter, 1));
    if (q->key_marker.n)
        web_query(&c, SLICE_LIT("key-marker"), q->key_marker);
    if (q->id_marker.n)
        web_query(&c, SLICE_LIT("version-id-marker"), q->id_marker);
    c.cancel = q->cancel;
    c.on_body = on_body;
    c.arg = &f;
    int r = web_perform(&c, e);
    if (r == 0)
        r = s3_version_reader_end(reader, ret, e);
    if (r == 0 && ret->truncated && slice_eq(ret->next_key, q->key_marker) &&
        slice_eq(ret->next_id, q->id_marker))
        return err_set(e, ERR_ORIGIN_FAILED, "the page of versions goes on where it began");
    return r;
}

/* ---- whether versions are kept at all ---- */

struct status {
    bool is_there, has_root;
};

static int on_status(void *arg, unsigned depth, const char *parent, const char *name, struct slice text,
                     struct err *e)
{
    (void)parent, (void)e;
    struct status *x = arg;
    if (depth == 1)
        x->has_root = strcmp(name, "VersioningConfiguration") == 0;
    if (depth == 2 && strcmp(name, "Status") == 0)
        x->is_there = slice_trim(text).n > 0;
    return 0;
}

/* A bucket that never kept versions lists its objects as versions, too, and what was replaced since would
 * silently be missing. Who may not ask, or asks a service that does not tell, goes on. */
static int check_kept(struct s3 *s, struct err *e)
{
    if (atomic_load(&s->view.is_kept))
        return 0;
    struct status x = {0};
    struct buf _cleanup_buf_ body = BUF_INIT(WEB_RESULT_MAX);
    struct web_xml *_cleanup_(web_xml_freep) xml = web_xml_new(WEB_RESULT_MAX, on_status, &x);
    struct web_call _cleanup_(web_call_fini) c;
    struct err local = {0};
    web_call_init(&c, &s->web, WEB_GET, "versioning");
    web_query(&c, SLICE_LIT("versioning"), SLICE_NULL);
    c.on_body = web_collect;
    c.arg = &body;
    int r = web_perform(&c, &local);
    bool is_never = r == ERR_NOT_IMPLEMENTED;
    if (r < 0 && (retry_is_transient(r) || r == -ECANCELED)) {
        if (e)
            *e = local;
        return r;
    }
    bool is_read = r == 0 && web_xml_feed(xml, body.p, body.n, &local) == 0 &&
                   web_xml_end(xml, &local) == 0 && x.has_root;
    if (is_never || (is_read && !x.is_there))
        return err_set(e, ERR_NOT_IMPLEMENTED, "bucket %s keeps no versions", s->bucket);
    atomic_store(&s->view.is_kept, true);
    return 0;
}

/* ---- one key ---- */

/* Takes from the page what it says of the key; true when the rest of the versions says nothing more. */
static bool settle(const struct s3_view *v, const struct s3_version_page *page, struct slice key,
                   const struct s3_version **ret)
{
    bool beyond = !page->truncated;
    for (size_t i = 0; i < page->n; i++) {
        if (!slice_eq(page->v[i].key, key)) {
            beyond = true; /* the key is the first of those that begin so */
        } else if (s3_version_is_of(&page->v[i], v->as_of_ns)) {
            *ret = &page->v[i];
            return true;
        }
    }
    return beyond;
}

static int find_asked(struct s3 *s, struct slice full, atomic_bool *cancel, struct arena *a,
                      struct slice *ret_id, struct err *e)
{
    struct buf _cleanup_buf_ key_marker = BUF_INIT(WEB_XML_TEXT_MAX), id_marker = BUF_INIT(WEB_XML_TEXT_MAX);
    struct question q = {.prefix = full, .max = LOOKUP_MAX, .cancel = cancel};
    for (unsigned i = 0; i < LOOKUP_PAGES_MAX; i++, q.max = WEB_LIST_ENTRIES_MAX) {
        struct s3_version_reader *_cleanup_(s3_version_reader_freep) reader = s3_version_reader_new(q.max);
        const struct s3_version *found = NULL;
        struct s3_version_page page;
        int r = ask(s, &q, reader, &page, e);
        if (r < 0)
            return r;
        if (settle(&s->view, &page, full, &found)) {
            if (!found || found->is_marker)
                return err_set(e, -ENOENT, "there was no such object at that time");
            *ret_id = arena_dup(a, found->id);
            return 0;
        }
        buf_clear(&key_marker);
        buf_clear(&id_marker);
        if (buf_slice(&key_marker, page.next_key) < 0 || buf_slice(&id_marker, page.next_id) < 0)
            return err_set(e, ERR_ORIGIN_FAILED, "the page of versions has a marker that is too long");
        q.key_marker = buf_view(&key_marker);
        q.id_marker = buf_view(&id_marker);
    }
    return err_set(e, ERR_ORIGIN_FAILED, "the object's versions have no end");
}

int s3_view_find(struct s3 *s, struct slice key, atomic_bool *cancel, struct arena *a, struct slice *ret_id,
                 struct err *e)
{
    const struct s3_view *v = &s->view;
    if (v->version) {
        if (!slice_eq_str(key, v->key))
            return err_set(e, -ENOENT, "only %s is seen here", v->key);
        *ret_id = slice_str(v->version);
        return 0;
    }
    if (recall(v, key, a, ret_id))
        return 0;
    char _cleanup_free_ *full = NULL;
    if (asprintf(&full, "%s" SLICE_FMT, s->prefix, SLICE_ARG(key)) < 0)
        abort();
    int r = find_asked(s, slice_str(full), cancel, a, ret_id, e);
    if (r == 0)
        know(v, key, *ret_id);
    return r;
}

int s3_view_pin(struct web_call *c, const struct origin_get *g, struct arena *scratch, struct err *e)
{
    struct slice id;
    int r = s3_view_find(s3_of_web(c->web), g->key, g->cancel, scratch, &id, e);
    if (r < 0)
        return r;
    web_query(c, SLICE_LIT(ID_PARAMETER), id);
    return web_pin_etag(c, g, scratch, e);
}

int s3_view_check(const struct web_call *c, struct err *e)
{
    struct slice asked = SLICE_NULL, told = slice_str(c->response.version_id);
    for (size_t i = 0; i < c->n_query; i++)
        if (slice_eq_str(c->query[i].name, ID_PARAMETER))
            asked = c->query[i].value;
    /* What was there before versions were kept has the version "null", which not all say. */
    if (slice_eq(asked, told) || (told.n == 0 && slice_eq_str(asked, "null")))
        return 0;
    return err_set(e, ERR_ORIGIN_REFUSED, "asked for version " SLICE_FMT ", the answer is of version %s",
                   SLICE_ARG(slice_sub(asked, 0, MIN(asked.n, (size_t)100))),
                   told.n > 0 ? told.p : "unknown");
}

/* ---- listing ---- */

/* Where a walk over the pages stands. */
struct walk {
    struct slice key, id; /* markers, with the origin's prefix; empty at first */
    bool is_decided;      /* the marker's key is */
};

static int token_encode(const struct walk *w, struct web_page *page, struct err *e)
{
    struct buf _cleanup_buf_ b = BUF_INIT(2 * WEB_XML_TEXT_MAX + 32);
    int r = buf_printf(&b, "%d%zu:", w->is_decided, w->id.n);
    if (r == 0)
        r = buf_slice(&b, w->id);
    if (r == 0)
        r = buf_slice(&b, w->key);
    if (r < 0)
        return err_set(e, ERR_ORIGIN_FAILED, "the page of versions has a marker that is too long");
    return web_page_keep(page, buf_view(&b), &page->next_token, e);
}

static int token_decode(struct slice token, struct walk *ret, struct err *e)
{
    struct slice rest = slice_from(token, 1), number = slice_split(&rest, ':');
    uint64_t n;
    if (token.n < 3 || (token.p[0] != '0' && token.p[0] != '1') || slice_u64(number, &n) < 0 || n > rest.n)
        return err_set(e, -EINVAL, "a token of a listing that is none of ours");
    *ret = (struct walk){.key = slice_from(rest, (size_t)n),
                         .id = slice_sub(rest, 0, (size_t)n),
                         .is_decided = token.p[0] == '1'};
    return 0;
}

static int add_version(struct s3 *s, struct web_page *page, const struct s3_version *x, struct err *e)
{
    struct origin_entry entry = {.attr = {.size_bytes = x->size_bytes, .mtime_ns = x->mtime_ns}};
    int r = web_page_keep(page, x->key, &entry.key, e);
    if (r == 0)
        r = web_page_keep(page, x->etag, &entry.attr.etag, e);
    if (r == 0)
        r = web_page_add(page, &entry, e);
    size_t own = strlen(s->prefix);
    if (r == 0 && x->key.n > own && slice_starts(x->key, slice_str(s->prefix)))
        know(&s->view, slice_from(x->key, own), x->id);
    return r;
}

/* Adds what was there; *w becomes where the next page begins. Whether there is one: page->truncated. */
static int add_versions(struct s3 *s, struct web_page *page, const struct s3_version_page *found,
                        struct walk *w, struct err *e)
{
    struct walk next = {.key = found->next_key,
                        .id = found->next_id,
                        .is_decided = w->is_decided && slice_eq(found->next_key, w->key)};
    struct slice key = SLICE_NULL, last = SLICE_NULL;
    bool is_decided = false;
    for (size_t i = 0; i < found->n; i++) {
        const struct s3_version *x = &found->v[i];
        if (!slice_eq(x->key, key))
            is_decided = slice_eq(x->key, w->key) && w->is_decided;
        key = x->key;
        bool is_it = !is_decided && s3_version_is_of(x, s->view.as_of_ns);
        if (is_it && !x->is_marker && page->n == page->max) { /* full: the next page begins behind `last` */
            *w = (struct walk){.key = last, .is_decided = true};
            page->truncated = true;
            return 0;
        }
        /* The newest of a key come first. */
        int r = is_it && !x->is_marker ? add_version(s, page, x, e)
                                       : web_page_leave_out(page, x->key, UINT64_MAX - x->exact_ns, e);
        if (r < 0)
            return r;
        is_decided = is_decided || is_it;
        last = is_it && !x->is_marker ? x->key : last;
        if (slice_eq(x->key, next.key))
            next.is_decided = is_decided;
    }
    *w = next;
    page->truncated = found->truncated;
    return 0;
}

static int add_prefixes(struct web_page *page, const struct s3_version_page *found, struct err *e)
{
    int r = 0;
    for (size_t i = 0; i < found->n_prefixes && r == 0; i++) {
        struct origin_entry entry = {.is_prefix = true};
        r = web_page_keep(page, found->prefixes[i], &entry.key, e);
        if (r == 0)
            r = web_page_add(page, &entry, e);
    }
    return r;
}

static int list_page(struct s3 *s, const struct origin_list *l, struct arena *a, struct web_page *page,
                     struct err *e)
{
    struct walk w = {0};
    int r = l->token.n > 0 ? token_decode(l->token, &w, e) : check_kept(s, e);
    if (r < 0)
        return r;
    if (l->token.n == 0 && l->after.n > 0)
        w.key = slice_str(arena_printf(a, "%s" SLICE_FMT, s->prefix, SLICE_ARG(l->after)));
    /* Versions that are not chosen fill the answers; with a delimiter prefixes lie among them, which cannot
     * be told behind what is left for the next page. */
    struct question q = {.prefix = page->prefix,
                         .key_marker = w.key,
                         .id_marker = w.id,
                         .delimiter = l->delimiter,
                         .max = l->delimiter ? page->max : WEB_LIST_ENTRIES_MAX};
    struct s3_version_reader *_cleanup_(s3_version_reader_freep) reader = s3_version_reader_new(q.max);
    struct s3_version_page found;
    r = ask(s, &q, reader, &found, e);
    if (r == 0 && found.n_prefixes > 0 && !l->delimiter)
        r = err_set(e, ERR_ORIGIN_FAILED, "the page of versions has common prefixes, which nobody asked for");
    if (r == 0)
        r = add_prefixes(page, &found, e);
    if (r == 0)
        r = add_versions(s, page, &found, &w, e);
    return r == 0 && page->truncated ? token_encode(&w, page, e) : r;
}

/* The one object of a view of one version. */
static int list_one(struct s3 *s, const struct origin_list *l, struct arena *a, struct origin_page *ret,
                    struct err *e)
{
    struct slice key = slice_str(s->view.key);
    struct origin_entry x;
    *ret = (struct origin_page){0};
    if (!web_list_one(key, l, a, &x))
        return 0;
    int r = x.is_prefix ? 0 : web_head(&s->web, key, SLICE_NULL, a, &x.attr, e);
    if (r < 0)
        return err_prefix(e, r, "version %.100s of %.200s", s->view.version, s->view.key);
    x.attr.meta = SLICE_NULL;
    *ret = (struct origin_page){.entries = arena_alloc(a, sizeof(x)), .n = 1};
    ret->entries[0] = x;
    return 0;
}

int s3_view_list(struct s3 *s, const struct origin_list *l, struct arena *a, struct origin_page *ret,
                 struct err *e)
{
    if (s->view.version)
        return list_one(s, l, a, ret, e);
    struct web_page _cleanup_(web_page_fini) page = {0};
    int r = web_page_init(&page, l, s->prefix, a, e);
    if (r == 0)
        r = list_page(s, l, a, &page, e);
    return r < 0 ? r : web_page_finish(&page, ret, e);
}
