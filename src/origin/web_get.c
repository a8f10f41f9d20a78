/*
 * Reads: GET and HEAD of an object, and the checks of what came.
 *
 * Invariants:
 *  1. The sink sees bytes only after the answer was found to be the one asked for: of the service, status,
 * range, length and, when the version is pinned, ETag.
 *  2. Success means that exactly the bytes of the range, cut at the object's size, went to the sink.
 *  3. The version is compared here as well as by the origin: services that ignore If-Match cannot mix
 * versions, and weak ETags, which never satisfy If-Match, can be pinned too.
 *
 * A range from 0 of an empty object cannot be satisfied (416) although nothing is wrong: its attributes are
 * then asked for with HEAD, and the sink is called with no bytes.
 *
 * Failure modes: as in origin.h. A 200 to a ranged request is accepted when the range covers the whole
 * object.
 */
#include "origin/web_internal.h"

#include <inttypes.h>

#define LAST_MAX ((uint64_t)INT64_MAX)

struct transfer {
    const struct origin_get *get;
    const struct web_call *call;
    struct arena *arena;
    origin_sink_fn sink;
    void *arg;
    struct err *err;
    bool begun;
    struct origin_attr attr;
    uint64_t expected, given;
};

/* How many bytes the answer must have for the request, from its range or length. */
static int expect(struct transfer *t, struct err *e)
{
    const struct web_response *r = &t->call->response;
    const struct origin_get *g = t->get;
    if (g->attributes_only) {
        t->expected = 0;
        return r->has_length ? 0 : err_set(e, ERR_ORIGIN_FAILED, "%d without Content-Length", r->status);
    }
    if (r->status == 206) {
        if (!r->has_range)
            return err_set(e, ERR_ORIGIN_FAILED, "206 without a Content-Range that makes sense");
        uint64_t end = g->n > UINT64_MAX - g->offset ? UINT64_MAX : g->offset + g->n;
        uint64_t last = MIN(end, r->range_total) - 1;
        if (g->whole || r->range_first != g->offset || r->range_last != last)
            return err_set(e, ERR_ORIGIN_SHORT,
                           "asked for bytes %" PRIu64 "-%" PRIu64 ", got %" PRIu64 "-%" PRIu64, g->offset,
                           last, r->range_first, r->range_last);
        t->expected = r->range_last - r->range_first + 1;
        if (r->has_length && r->length != t->expected)
            return err_set(e, ERR_ORIGIN_SHORT, "Content-Length %" PRIu64 " for a range of %" PRIu64 " bytes",
                           r->length, t->expected);
        return 0;
    }
    if (r->status != 200)
        return err_set(e, ERR_ORIGIN_FAILED, "status %d to a GET", r->status);
    if (!r->has_length)
        return err_set(e, ERR_ORIGIN_FAILED, "200 without Content-Length");
    if (!g->whole && (g->offset != 0 || g->n < r->length))
        return err_set(e, ERR_ORIGIN_FAILED, "the origin ignores ranges: 200 with %" PRIu64 " bytes",
                       r->length);
    t->expected = r->length;
    return 0;
}

static int check_version(const struct transfer *t, struct slice etag, struct err *e)
{
    struct slice want = t->get->if_match;
    if (want.n == 0 || etag.n == 0 || slice_eq_str(want, "*") || slice_eq(want, etag))
        return 0;
    return err_set(e, ERR_PRECONDITION, "the object's ETag is " SLICE_FMT " and no longer " SLICE_FMT,
                   SLICE_ARG(etag), SLICE_ARG(want));
}

/* Where the part is that was asked for, when the answer is about it. */
static void take_part(const struct transfer *t, struct origin_attr *attr)
{
    const struct web_response *r = &t->call->response;
    if (t->get->part == 0 || r->status != 206 || !r->has_range || r->n_parts > INT32_MAX)
        return;
    attr->n_parts = (uint32_t)r->n_parts;
    attr->part_offset = r->range_first;
    attr->part_bytes = r->range_last - r->range_first + 1;
    attr->part_sum = slice_str(r->sum);
}

static int begin(struct transfer *t, struct err *e)
{
    const struct web_kind *kind = t->call->web->kind;
    int r = kind->check ? kind->check(t->call, e) : 0;
    if (r < 0)
        return r;
    struct origin_attr attr = web_response_attr(&t->call->response);
    if (kind->tells_bytes_alone)
        attr.meta = SLICE_NULL;
    take_part(t, &attr);
    /* The page of a proxy that wants a user, say, which is answered with 200 as well. */
    if (kind->names_objects && attr.etag.n == 0 && !t->call->response.has_time)
        return err_set(e, ERR_ORIGIN_FAILED,
                       "%d with neither ETag nor Last-Modified: that is no answer of the service",
                       t->call->response.status);
    if (arena_left(t->arena) < WEB_VERSION_MAX)
        return err_set(e, -ENOMEM, "the answer's version needs more memory than the request has");
    if (attr.etag.n == 0)
        attr.etag = web_version(&attr, t->arena);
    r = check_version(t, attr.etag, e);
    if (r == 0)
        r = expect(t, e);
    if (r == 0)
        r = origin_attr_dup(t->arena, &attr, &t->attr, e);
    t->begun = r == 0;
    return r;
}

/* Who waits makes ready for the bytes while they are on their way. */
static int on_head(void *arg)
{
    struct transfer *t = arg;
    if (t->begun) /* these are trailers */
        return 0;
    int r = begin(t, t->err);
    return r < 0 ? r : t->sink(t->arg, &t->attr, NULL, 0);
}

static int on_body(void *arg, const void *p, size_t n)
{
    struct transfer *t = arg;
    if (!t->begun)
        return err_set(t->err, ERR_ORIGIN_FAILED, "a body before the end of the head");
    if (n > t->expected - t->given)
        return err_set(t->err, ERR_ORIGIN_SHORT, "more than the announced %" PRIu64 " bytes", t->expected);
    t->given += n;
    return t->sink(t->arg, &t->attr, p, n);
}

static int finish(struct transfer *t, struct err *e)
{
    if (!t->begun)
        return err_set(e, ERR_ORIGIN_FAILED, "the head of the answer did not end");
    if (t->given != t->expected)
        return err_set(e, ERR_ORIGIN_SHORT, "%" PRIu64 " of the announced %" PRIu64 " bytes", t->given,
                       t->expected);
    return 0;
}

/* If-Match; weak ETags cannot satisfy it and are compared when the answer comes. */
int web_pin_etag(struct web_call *c, const struct origin_get *g, struct arena *scratch, struct err *e)
{
    char *match = arena_alloc(scratch, WEB_ETAG_MAX + 3);
    if (g->if_match.n == 0 || web_etag_is_weak(g->if_match))
        return 0;
    int r = web_etag_header(g->if_match, match, e);
    if (r == 0)
        web_header(c, SLICE_LIT("if-match"), slice_str(match));
    return r;
}

static int get_once(struct web *w, struct transfer *t, struct err *e)
{
    const struct origin_get *g = t->get;
    char range[64], part[16];
    struct arena *_cleanup_(arena_freep) scratch = arena_new(16 * KIB);
    struct web_call _cleanup_(web_call_fini) c;
    web_call_init(&c, w, g->attributes_only ? WEB_HEAD : WEB_GET, g->attributes_only ? "head" : "get");
    c.has_key = true;
    c.key = g->key;
    c.cancel = g->cancel;
    if (!g->attributes_only && !g->whole) {
        /* Services read the numbers as signed. */
        uint64_t last = g->n - 1 > LAST_MAX - MIN(g->offset, LAST_MAX) ? LAST_MAX : g->offset + g->n - 1;
        (void)snprintf(range, sizeof(range), "bytes=%" PRIu64 "-%" PRIu64, g->offset, last);
        web_header(&c, SLICE_LIT("range"), slice_str(range));
    }
    if (g->part > 0) {
        (void)snprintf(part, sizeof(part), "%" PRIu32, g->part);
        web_query(&c, SLICE_LIT("partNumber"), slice_str(part));
    }
    int r = w->kind->pin ? w->kind->pin(&c, g, scratch, e) : web_pin_etag(&c, g, scratch, e);
    if (r < 0)
        return r;
    c.on_head = on_head;
    c.on_body = on_body;
    c.arg = t;
    t->call = &c;
    r = web_perform(&c, e);
    return r < 0 ? r : finish(t, e);
}

int web_get_once(struct web *w, const struct origin_get *g, struct arena *a, struct origin_attr *ret_attr,
                 origin_sink_fn sink, void *arg, struct err *e)
{
    struct transfer t = {.get = g, .arena = a, .sink = sink, .arg = arg, .err = e};
    int r = get_once(w, &t, e);
    if (r == 0)
        *ret_attr = t.attr;
    return r;
}

int web_get(struct web *w, const struct origin_get *g, struct arena *a, struct origin_attr *ret_attr,
            origin_sink_fn sink, void *arg, struct err *e)
{
    struct transfer t = {.get = g, .arena = a, .sink = sink, .arg = arg, .err = e};
    int r = get_once(w, &t, e);
    if (r == ERR_RANGE && g->offset == 0 && !g->attributes_only) {
        struct origin_get head = *g;
        head.attributes_only = true;
        t = (struct transfer){.get = &head, .arena = a, .sink = sink, .arg = arg, .err = e};
        if (e)
            e->code = 0;
        r = get_once(w, &t, e);
        if (r == 0 && t.attr.size_bytes != 0)
            return err_set(e, ERR_ORIGIN_FAILED,
                           "a range from 0 was refused, but the object has %" PRIu64 " bytes",
                           t.attr.size_bytes);
    }
    if (r == 0)
        *ret_attr = t.attr;
    return r;
}

static int ignore(void *arg, const struct origin_attr *attr, const void *p, size_t n)
{
    (void)arg, (void)attr, (void)p, (void)n;
    return 0;
}

int web_head(struct web *w, struct slice key, struct slice if_match, struct arena *a, struct origin_attr *ret,
             struct err *e)
{
    struct origin_get g = {.key = key, .if_match = if_match, .attributes_only = true};
    return web_get(w, &g, a, ret, ignore, NULL, e);
}
