/*
 * Listings of plain HTTP servers: a walk over index pages in byte order of whole keys, or a manifest.
 *
 * A folder's index is read anew when a listing begins, and remembered for the pages that follow. Names say no
 * more than that something is there: unless a manifest tells size and ETag, each object of a page is asked
 * for with HEAD, a few at a time, so that listings tell the same versions as reads. Names that turn out to be
 * nothing are left out.
 *
 * Invariants:
 *  1. Entries are in byte order, each begins with the prefix and is after `after` and the token.
 *  2. The token of a truncated page is the last key that was dealt with.
 *  3. No lock is held over a request.
 *
 * Failure modes: as in origin.h; a server without index pages is told with what to do about it. A page or
 * manifest that was cut is ERR_ORIGIN_SHORT, never a shorter listing, as far as it can be known: by its
 * length, its chunks, or how it ends.
 */
#include "origin/site_internal.h"

#include "base/text.h"
#include "origin/walk_page.h"

#define DEPTH_MAX 64

struct walk {
    struct site *site;
    struct walk_page page;
    bool first;                     /* the listing begins: nothing remembered counts */
    const struct site_name **names; /* of the entries, where a manifest tells their attributes */
    struct slice last;              /* key of the last entry, also when that is left out */
    struct err *err;
};

/* ---- folders ---- */

static struct site_folder *recall(struct site *s, const char *path)
{
    uint64_t now_ms = sys_mono_ms();
    LOCK_SCOPE(&s->lock);
    for (size_t i = 0; i < SITE_FOLDERS; i++) {
        struct site_memory *m = &s->memory[i];
        if (m->path && strcmp(m->path, path) == 0 && now_ms - m->read_ms <= SITE_FOLDER_MS) {
            m->folder->refs++;
            return m->folder;
        }
    }
    return NULL;
}

static void remember(struct site *s, const char *path, struct site_folder *f)
{
    struct site_folder *old;
    char *old_path;
    lock_take(&s->lock);
    size_t at = s->next % SITE_FOLDERS;
    for (size_t i = 0; i < SITE_FOLDERS; i++)
        if (s->memory[i].path && strcmp(s->memory[i].path, path) == 0)
            at = i;
    s->next += at == s->next % SITE_FOLDERS;
    old = s->memory[at].folder;
    old_path = s->memory[at].path;
    f->refs++;
    s->memory[at] = (struct site_memory){web_dup(path), f, sys_mono_ms()};
    lock_drop(&s->lock);
    site_folder_unref(old);
    free(old_path);
}

/* A body that ends with its connection may have been cut anywhere: what it says then counts as all there is
 * only when it says itself that it has ended. */
static int check_end(const struct site *s, const struct web_response *r, struct slice body, const char *path,
                     struct err *e)
{
    if (r->has_length || r->is_chunked)
        return 0;
    if (s->manifest && !site_manifest_is_whole(body))
        return err_set(
            e, ERR_ORIGIN_SHORT,
            "the manifest %s%s came without a length and without \"# end\" as its last line: it may "
            "have been cut; let the server send Content-Length, or write that line",
            s->path, path);
    if (!s->manifest && !site_index_is_whole(body))
        return err_set(
            e, ERR_ORIGIN_SHORT,
            "the index page of %s%s came without a length and without </html> at its end: it may have "
            "been cut; let the server send Content-Length, or set origin.manifest",
            s->path, path);
    return 0;
}

static int fetch(struct site *s, const char *path, struct site_folder **ret, struct err *e)
{
    struct buf _cleanup_buf_ body = BUF_INIT(SITE_INDEX_MAX), whole = BUF_INIT(WEB_URL_MAX);
    struct web_call _cleanup_(web_call_fini) c;
    web_call_init(&c, &s->web, WEB_GET, "list");
    c.has_key = true;
    c.key = slice_str(path);
    c.on_body = web_collect;
    c.arg = &body;
    int r = web_perform(&c, e);
    if (r == ERR_ORIGIN_DENIED && !s->manifest)
        return err_prefix(
            e, r,
            "the server gives no index page of %s%s; switch on its automatic index, or set origin.manifest",
            s->path, path);
    if (r < 0)
        return r;
    r = check_end(s, &c.response, buf_view(&body), path, e);
    if (r < 0)
        return r;
    if (s->manifest)
        return site_manifest_parse(buf_view(&body), ret, e);
    r = buf_printf(&whole, "%s%s", s->path, path);
    return r < 0 ? r : site_index_parse(buf_view(&body), buf_view(&whole), ret, e);
}

/* "" or "folder/", or the manifest. The caller's to unref. */
static int read_folder(struct walk *w, const char *path, struct site_folder **ret)
{
    struct site_folder *f = w->first ? NULL : recall(w->site, path);
    if (!f) {
        int r = fetch(w->site, path, &f, w->err);
        if (r < 0)
            return r;
        remember(w->site, path, f); /* only now: its age is that of what the server said */
    }
    *ret = f;
    return 0;
}

/* ---- the walk ---- */

/* 0, 1 when the page is full, or an error. */
static int emit(struct walk *w, struct slice key, const struct site_name *name, bool is_prefix)
{
    struct origin_entry *x;
    int r = walk_page_add(&w->page, key, is_prefix, (size_t)2 * ORIGIN_ETAG_MAX, &x, w->err);
    if (r == 0 && x)
        w->names[x - w->page.entries] = x->is_prefix ? NULL : name;
    return r;
}

static int walk_folder(struct walk *w, const char *path, unsigned depth)
{
    struct site_folder *_cleanup_(site_folder_unrefp) f = NULL;
    int r = read_folder(w, path, &f);
    if (r == -ENOENT && *path)
        return 0; /* gone, or never there */
    if (r < 0)
        return r;
    for (size_t i = 0; i < f->n && r == 0; i++) {
        char _cleanup_free_ *key = NULL;
        if (asprintf(&key, "%s%s", path, f->v[i].name) < 0)
            abort();
        struct slice k = slice_str(key);
        bool is_folder = slice_ends(k, SLICE_LIT("/"));
        if (k.n > ORIGIN_KEY_MAX_BYTES || (is_folder && !walk_page_may_have(&w->page, k)))
            continue;
        if (!is_folder && slice_starts(k, w->page.prefix))
            r = emit(w, k, NULL, false);
        else if (is_folder && w->page.delimiter == '/' && k.n > w->page.prefix.n)
            r = emit(w, k, NULL, true);
        else if (is_folder && depth >= DEPTH_MAX) /* without them the listing would look whole */
            r = err_set(
                w->err, ERR_ORIGIN_REFUSED,
                "folders lie more than %d deep in each other: %s; if a link there leads back, remove it, "
                "or set origin.manifest",
                DEPTH_MAX, key);
        else if (is_folder)
            r = walk_folder(w, key, depth + 1);
    }
    return r;
}

static int walk_manifest(struct walk *w, const struct site_folder *f)
{
    int r = 0;
    for (size_t i = 0; i < f->n && r == 0; i++) {
        struct slice key = slice_str(f->v[i].name);
        if (slice_starts(key, w->page.prefix) && slice_cmp(key, w->page.after) > 0)
            r = emit(w, key, &f->v[i], false);
    }
    return r;
}

/* ---- attributes ---- */

/* One HEAD; an object that is gone loses its key, and is left out. */
static int look(void *arg, uint32_t i, atomic_bool *stop, struct err *e)
{
    struct walk *w = arg;
    struct origin_entry *x = &w->page.entries[i];
    const struct site_name *name = w->names[i];
    (void)stop;
    if (x->is_prefix)
        return 0;
    if (name && name->has_attr) {
        x->attr = (struct origin_attr){
            .size_bytes = name->size, .mtime_ns = name->mtime_ns, .etag = slice_str(name->etag)};
        return 0;
    }
    struct arena *_cleanup_(arena_freep) a = arena_new(64 * KIB);
    struct origin_attr attr;
    int r = site_stat(w->site, x->key, a, &attr, e);
    if (r == -ENOENT) {
        x->key = SLICE_NULL;
        return 0;
    }
    if (r < 0) /* also one that may not be read: a shorter listing would look whole */
        return err_prefix(e, r, SLICE_FMT, SLICE_ARG(x->key));
    x->attr = (struct origin_attr){.size_bytes = attr.size_bytes, .mtime_ns = attr.mtime_ns};
    x->attr.etag = slice_of(slice_dup(attr.etag), attr.etag.n); /* heap: the arena is one thread's */
    return 0;
}

/* ETags into the arena, entries without a key away. */
static void finish(struct walk *w)
{
    size_t n = 0;
    for (size_t i = 0; i < w->page.n; i++) {
        struct origin_entry *x = &w->page.entries[i];
        bool on_heap = !x->is_prefix && x->attr.etag.p && !(w->names[i] && w->names[i]->has_attr);
        char *heap = on_heap ? (char *)(uintptr_t)x->attr.etag.p : NULL;
        if (x->attr.etag.n)
            x->attr.etag = arena_dup(w->page.arena, x->attr.etag);
        else
            x->attr.etag = SLICE_NULL;
        free(heap);
        if (x->key.n)
            w->page.entries[n++] = *x;
    }
    w->page.n = n;
}

static int learn(struct walk *w, struct err *e)
{
    if (w->page.n == 0)
        return 0;
    w->last = w->page.truncated ? w->page.entries[w->page.n - 1].key : SLICE_NULL;
    struct web_parts p = {.origin = &w->site->base,
                          .n = (uint32_t)w->page.n,
                          .limit = (uint32_t)w->site->web.limit,
                          .one = look,
                          .arg = w};
    int r = web_parts_run(&p, e);
    finish(w);
    return r;
}

/* ---- the page ---- */

/* The folder in which keys with the prefix lie: up to its last slash. */
static char *start_of(const struct walk *w)
{
    return slice_dup(slice_sub(w->page.prefix, 0, (size_t)(slice_rfind(w->page.prefix, '/') + 1)));
}

static int run(struct walk *w, struct err *e)
{
    struct site_folder *_cleanup_(site_folder_unrefp) manifest = NULL;
    int r;
    if (w->site->manifest) {
        r = read_folder(w, w->site->manifest, &manifest);
        if (r == 0)
            r = walk_manifest(w, manifest);
    } else {
        char _cleanup_free_ *start = start_of(w);
        r = walk_folder(w, start, 0);
    }
    return r < 0 ? r : learn(w, e);
}

int site_list(struct origin *o, const struct origin_list *l, struct arena *a, struct origin_page *ret,
              struct err *e)
{
    struct walk w = {.site = site_of(o), .err = e};
    if (l->prefix.n > ORIGIN_KEY_MAX_BYTES || web_leads_away(l->prefix)) {
        *ret = (struct origin_page){0}; /* nothing can begin so */
        return 0;
    }
    int r = walk_page_init(&w.page, l, WEB_LIST_ENTRIES_MAX, a, e);
    if (r < 0)
        return r;
    w.first = w.page.after.n == 0;
    if (arena_left(a) < w.page.max * sizeof(*w.names) + 64)
        return err_set(e, -ENOMEM, "the page needs more memory than the request has");
    w.names = arena_zalloc(a, w.page.max * sizeof(*w.names));
    r = run(&w, e);
    if (r < 0)
        return r;
    *ret = (struct origin_page){
        .entries = w.page.entries, .n = w.page.n, .truncated = w.page.truncated, .next_token = w.last};
    return 0;
}
