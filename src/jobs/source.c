/* The walks (contract in source.h): listing of a bucket, what is cached of it, and the keys that the control
 * store names for a job. */
#include "jobs/source.h"

#include "jobs/job.h"
#include "jobs/pages.h"

#include "origin/origin.h"

#define PAGE            1000
#define PAGE_FIRST      250 /* of a listing: what is in it is worked on while the second comes */
#define ARENA_BYTES     (32 * MIB)
#define CACHED_PAGE_MAX (2 * MIB) /* as CACHED gives it */

#define ENTRY_UNKNOWN UINT32_MAX /* a kind in our own pages: see is_unknown */

struct source {
    struct source_open o;
    struct buf after; /* continues behind this key */
    struct arena *arena;
    struct slice page; /* encoded entries not given yet */
    bool last;         /* no page after this one */
    bool is_begun;     /* a page has been listed */
    struct pages *to, *from;
    struct page *taken; /* out of `from`; `page` is of it */
};

struct source *source_new(const struct source_open *o, struct slice after)
{
    struct source *s = calloc(1, sizeof(*s));
    assert(s);
    s->o = *o;
    s->after = BUF_INIT(64 * KIB);
    if (buf_slice(&s->after, after) < 0)
        abort();
    s->arena = arena_new(ARENA_BYTES);
    return s;
}

void source_free(struct source *s)
{
    if (!s)
        return;
    buf_fini(&s->after);
    free(s->taken);
    arena_free(s->arena);
    free(s);
}

void source_share(struct source *s, struct pages *to)
{
    s->to = to;
}

void source_follow(struct source *s, struct pages *from)
{
    assert(s->after.n == 0);
    s->from = from;
}

bool source_wait(struct source *s, uint64_t timeout_ns)
{
    return s->page.n > 0 || s->last || !s->from || pages_wait(s->from, timeout_ns);
}

static int list_page(struct source *s, struct err *e)
{
    struct wire_list_req req = {.bucket = s->o.bucket,
                                .prefix = s->o.prefix,
                                .after = buf_view(&s->after),
                                .max = s->is_begun ? PAGE : PAGE_FIRST,
                                .flags = WIRE_FRESH | s->o.flags};
    struct wire_list_rep rep;
    int r = object_list(s->o.session, &req, s->arena, &rep, e);
    if (r < 0)
        return r;
    s->is_begun = true;
    s->page = rep.entries;
    s->last = !rep.truncated;
    if (rep.truncated) {
        buf_clear(&s->after);
        r = buf_slice(&s->after, rep.next);
    }
    return r;
}

/* A page of what is cached, or of what is not in the origin yet, behind `after`. */
static int ask_cached(struct source *s, uint32_t flags, struct wire_cached_rep *ret, struct err *e)
{
    struct wire_cached_req req = {.bucket = s->o.bucket,
                                  .prefix = s->o.prefix,
                                  .after = buf_view(&s->after),
                                  .max = PAGE,
                                  .flags = flags};
    return object_cached(s->o.session, &req, s->arena, ret, e);
}

/* Merges two pages in byte order of keys, a key of both once, as far as both reach: behind the end of one
 * that was cut there may be more of it than the other one knows. */
static int merge_cached(const struct wire_cached_rep *x, const struct wire_cached_rep *y, struct buf *out)
{
    struct slice rest[2] = {x->entries, y->entries};
    bool cut[2] = {x->truncated, y->truncated};
    struct wire_cached w[2];
    bool have[2];
    for (int i = 0; i < 2; i++)
        have[i] = wire_cached_decode(&rest[i], &w[i]) == 0;
    int r = 0;
    while (r == 0 && (have[0] || have[1])) {
        if ((!have[0] && cut[0]) || (!have[1] && cut[1]))
            break;
        int c = !have[0] ? 1 : !have[1] ? -1 : slice_cmp(w[0].key, w[1].key);
        r = wire_cached_encode(&w[c > 0], out);
        for (int i = 0; i < 2; i++)
            if (c == 0 || (c > 0) == (i > 0))
                have[i] = wire_cached_decode(&rest[i], &w[i]) == 0;
    }
    return r;
}

static int cached_page(struct source *s, struct err *e)
{
    _cleanup_buf_ struct buf both = BUF_INIT(2 * CACHED_PAGE_MAX);
    struct wire_cached_rep rep, unsent = {0};
    int r = ask_cached(s, 0, &rep, e);
    if (r == 0 && s->o.over == KIND_OVER_HERE)
        r = ask_cached(s, WIRE_UNSENT, &unsent, e);
    if (r < 0)
        return r;
    s->page = rep.entries;
    if (unsent.n_entries > 0) {
        r = merge_cached(&rep, &unsent, &both);
        s->page = arena_dup(s->arena, buf_view(&both));
    }
    s->last = !rep.truncated && !unsent.truncated;
    struct wire_cached w;
    for (struct slice rest = s->page; wire_cached_decode(&rest, &w) == 0;) {
        buf_clear(&s->after);
        r = r < 0 ? r : buf_slice(&s->after, w.key);
    }
    return r;
}

static void stored_key(const struct source *s, struct slice key, struct buf *b)
{
    if (s->o.errors)
        job_key_error(s->o.id, key, b);
    else
        job_key_listed(s->o.id, key, b);
}

/* Adds the entry of a named key. */
static int put_named(struct source *s, struct slice key, struct buf *out, struct err *e)
{
    struct wire_entry w = {.key = key, .attr = {.kind = WIRE_FILE}};
    if (!s->o.stat)
        return wire_entry_encode(&w, out);
    _cleanup_(arena_freep) struct arena *a = arena_new(MIB);
    struct wire_stat_req req = {.bucket = s->o.bucket, .key = key, .flags = s->o.flags};
    struct wire_stat_rep rep;
    struct err local = {0};
    int r = object_stat(s->o.session, &req, a, &rep, &local);
    if (r < 0 && r != -ENOENT && retry_is_transient(r)) /* so would all that follow */
        return err_set(e, r, "%s", local.text);
    if (r < 0) { /* whoever works on the object asks again, and tells what is missing */
        w.attr.kind = ENTRY_UNKNOWN;
        return wire_entry_encode(&w, out);
    }
    w.attr.size_bytes = rep.attr.size_bytes;
    w.attr.mtime_ns = rep.attr.mtime_ns;
    return wire_entry_encode(&w, out);
}

static int named_page(struct source *s, struct err *e)
{
    _cleanup_buf_ struct buf from = BUF_INIT(64 * KIB), to = BUF_INIT(JOB_KEY_MAX), out = BUF_INIT(4 * MIB);
    _cleanup_buf_ struct buf all = BUF_INIT(JOB_KEY_MAX);
    stored_key(s, buf_view(&s->after), &from);
    stored_key(s, SLICE_NULL, &all);
    int r = kv_prefix_end(buf_view(&all), &to);
    if (r == 0 && s->after.n > 0)
        r = buf_char(&from, '\0');
    _cleanup_(kv_iter_freep) struct kv_iter *it = kv_iter_new(s->o.kv, buf_view(&from), buf_view(&to));
    struct slice k, v;
    size_t n = 0;
    for (; r == 0 && n < PAGE && (r = kv_iter_next(it, &k, &v, e)) == 0; n++) {
        struct slice key = slice_from(k, JOB_KEY_HEAD);
        r = put_named(s, key, &out, e);
        buf_clear(&s->after);
        r = r < 0 ? r : buf_slice(&s->after, key);
        if (r < 0)
            return r;
    }
    if (r < 0 && r != -ENOENT)
        return r;
    s->last = n < PAGE;
    s->page = arena_dup(s->arena, buf_view(&out));
    return 0;
}

/* A page that was listed before. 1, 0 when none is to be had, or an error. */
static int taken_page(struct source *s)
{
    free(TAKE_PTR(s->taken));
    enum pages_took took = pages_take(s->from, &s->taken);
    if (took == PAGES_ALONE) {
        s->from = NULL;
        return 0;
    }
    s->last = took == PAGES_END || s->taken->last;
    if (took == PAGES_END)
        return 1;
    s->page = slice_of(s->taken->bytes, s->taken->page_n);
    buf_clear(&s->after);
    int r = buf_slice(&s->after, slice_of(s->taken->bytes + s->taken->page_n, s->taken->after_n));
    return r < 0 ? r : 1;
}

static int next_page(struct source *s, struct err *e)
{
    int r = s->from ? taken_page(s) : 0;
    if (r != 0)
        return MIN(r, 0);
    arena_clear(s->arena);
    r = s->o.kv ? named_page(s, e) : s->o.over == KIND_OVER_ORIGIN ? list_page(s, e) : cached_page(s, e);
    if (r == 0 && s->to)
        pages_put(s->to, s->page, buf_view(&s->after), s->last);
    return r;
}

static int decode(struct source *s, struct kind_object *ret)
{
    if (!s->o.kv && s->o.over != KIND_OVER_ORIGIN) {
        struct wire_cached w;
        int r = wire_cached_decode(&s->page, &w);
        *ret =
            (struct kind_object){.key = w.key, .size_bytes = w.size_bytes, .counted_bytes = w.present_bytes};
        return r;
    }
    struct wire_entry w;
    int r = wire_entry_decode(&s->page, &w);
    if (r == 0)
        *ret = (struct kind_object){.key = w.key,
                                    .size_bytes = w.attr.size_bytes,
                                    .mtime_ns = w.attr.mtime_ns,
                                    .counted_bytes = w.attr.size_bytes,
                                    .is_unknown = w.attr.kind == ENTRY_UNKNOWN,
                                    .is_unfit = slice_eq_str(w.attr.etag, ORIGIN_ETAG_UNFIT)};
    return r;
}

int source_next(struct source *s, struct kind_object *ret, struct err *e)
{
    while (s->page.n == 0) {
        if (s->last)
            return 0;
        int r = next_page(s, e);
        if (r < 0)
            return r;
    }
    int r = decode(s, ret);
    return r < 0 ? err_set(e, r, "a page of a listing is broken") : 1;
}
