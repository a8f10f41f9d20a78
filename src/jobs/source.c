/* The three walks (contract in source.h): listing of a bucket, what is cached of it, the error list. */
#include "jobs/source.h"

#include "jobs/job.h"

#define PAGE        1000
#define ARENA_BYTES (32 * MIB)

struct source {
    struct source_open o;
    struct buf after; /* continues behind this key */
    struct arena *arena;
    struct slice page; /* encoded entries not given yet */
    bool last;         /* no page after this one */
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
    arena_free(s->arena);
    free(s);
}

static int list_page(struct source *s, struct err *e)
{
    struct wire_list_req req = {.bucket = s->o.bucket,
                                .prefix = s->o.prefix,
                                .after = buf_view(&s->after),
                                .max = PAGE,
                                .flags = WIRE_FRESH};
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

/* Failed objects: keys as entries of size 0. */
static int errors_page(struct source *s, struct err *e)
{
    _cleanup_buf_ struct buf from = BUF_INIT(64 * KIB), to = BUF_INIT(JOB_KEY_MAX), out = BUF_INIT(4 * MIB);
    job_key_error(s->o.id, buf_view(&s->after), &from);
    _cleanup_buf_ struct buf all = BUF_INIT(JOB_KEY_MAX);
    job_key_error(s->o.id, SLICE_NULL, &all);
    int r = kv_prefix_end(buf_view(&all), &to);
    if (r == 0 && s->after.n > 0)
        r = buf_char(&from, '\0');
    _cleanup_(kv_iter_freep) struct kv_iter *it = kv_iter_new(s->o.errors, buf_view(&from), buf_view(&to));
    struct slice k, v;
    size_t n = 0;
    for (; r == 0 && n < PAGE && (r = kv_iter_next(it, &k, &v, e)) == 0; n++) {
        struct wire_entry w = {.key = slice_from(k, JOB_KEY_ERROR_HEAD), .attr = {.kind = WIRE_FILE}};
        r = wire_entry_encode(&w, &out);
        buf_clear(&s->after);
        r = r < 0 ? r : buf_slice(&s->after, w.key);
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
    if (s->o.errors)
        return errors_page(s, e);
    return s->o.over == KIND_OVER_CACHE ? cached_page(s, e) : list_page(s, e);
}

static int decode(struct source *s, struct kind_object *ret)
{
    if (!s->o.errors && s->o.over == KIND_OVER_CACHE) {
        struct wire_cached w;
        int r = wire_cached_decode(&s->page, &w);
        *ret = (struct kind_object){.key = w.key, .size_bytes = w.size_bytes};
        return r;
    }
    struct wire_entry w;
    int r = wire_entry_decode(&s->page, &w);
    if (r == 0)
        *ret = (struct kind_object){w.key, w.attr.size_bytes, w.attr.mtime_ns};
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
