/* The walks (contract in source.h): listing of a bucket, what is cached of it, and the keys that the control
 * store names for a job. */
#include "jobs/source.h"

#include "jobs/job.h"

#define PAGE        1000
#define ARENA_BYTES (32 * MIB)

#define ENTRY_UNKNOWN UINT32_MAX /* a kind in our own pages: see is_unknown */

struct source {
    struct source_open o;
    struct buf after; /* continues behind this key */
    struct arena *arena;
    struct slice page; /* encoded entries not given yet */
    bool last;         /* no page after this one */
    struct buf kept;   /* all pages so far, while keeps */
    bool keeps;
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
    buf_fini(&s->kept);
    arena_free(s->arena);
    free(s);
}

void source_keep(struct source *s, size_t max_bytes)
{
    assert(s->page.n == 0 && !s->last && !s->keeps);
    s->kept = BUF_INIT(max_bytes);
    s->keeps = true;
}

bool source_again(struct source *s)
{
    if (!s->keeps || !s->last || s->page.n > 0)
        return false;
    s->page = buf_view(&s->kept);
    s->keeps = false;
    return true;
}

static void keep_page(struct source *s)
{
    if (!s->keeps || buf_slice(&s->kept, s->page) == 0)
        return;
    buf_fini(&s->kept);
    s->keeps = false;
}

static int list_page(struct source *s, struct err *e)
{
    struct wire_list_req req = {.bucket = s->o.bucket,
                                .prefix = s->o.prefix,
                                .after = buf_view(&s->after),
                                .max = PAGE,
                                .flags = WIRE_FRESH | s->o.flags};
    struct wire_list_rep rep;
    int r = object_list(s->o.session, &req, s->arena, &rep, e);
    if (r < 0)
        return r;
    s->page = rep.entries;
    s->last = !rep.truncated;
    if (rep.truncated) {
        buf_clear(&s->after);
        r = buf_slice(&s->after, rep.next);
    }
    return r;
}

static int cached_page(struct source *s, struct err *e)
{
    struct wire_cached_req req = {
        .bucket = s->o.bucket, .prefix = s->o.prefix, .after = buf_view(&s->after), .max = PAGE};
    struct wire_cached_rep rep;
    int r = object_cached(s->o.session, &req, s->arena, &rep, e);
    if (r < 0)
        return r;
    s->page = rep.entries;
    s->last = !rep.truncated;
    struct wire_cached w;
    for (struct slice rest = rep.entries; wire_cached_decode(&rest, &w) == 0;) {
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
    if (r == -ENOENT)
        return 0;
    if (r < 0 && retry_is_transient(r)) /* so would all that follow */
        return err_set(e, r, "%s", local.text);
    if (r < 0) { /* whoever works on the object asks again */
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

static int next_page(struct source *s, struct err *e)
{
    arena_clear(s->arena);
    if (s->o.kv)
        return named_page(s, e);
    return s->o.over == KIND_OVER_CACHE ? cached_page(s, e) : list_page(s, e);
}

static int decode(struct source *s, struct kind_object *ret)
{
    if (!s->o.kv && s->o.over == KIND_OVER_CACHE) {
        struct wire_cached w;
        int r = wire_cached_decode(&s->page, &w);
        *ret = (struct kind_object){.key = w.key, .size_bytes = w.size_bytes};
        return r;
    }
    struct wire_entry w;
    int r = wire_entry_decode(&s->page, &w);
    if (r == 0)
        *ret = (struct kind_object){w.key, w.attr.size_bytes, w.attr.mtime_ns,
                                    .is_unknown = w.attr.kind == ENTRY_UNKNOWN};
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
        keep_page(s);
    }
    int r = decode(s, ret);
    return r < 0 ? err_set(e, r, "a page of a listing is broken") : 1;
}
