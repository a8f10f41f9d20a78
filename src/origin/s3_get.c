/*
 * GetObject and HeadObject.
 *
 * Invariants:
 *  1. The sink sees bytes only after the answer was found to be the one asked for: status, range, length and,
 * when the version is pinned, ETag.
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
#include "origin/s3_internal.h"

#include <inttypes.h>

#define LAST_MAX ((uint64_t)INT64_MAX)

struct transfer {
    const struct origin_get *get;
    const struct s3_call *call;
    struct arena *arena;
    origin_sink_fn sink;
    void *arg;
    struct err *err;
    bool begun;
    struct origin_attr attr;
    uint64_t expected, given;
};

int s3_etag_header(struct slice etag, char *ret, struct err *e)
{
    if (etag.n > S3_ETAG_MAX)
        return err_set(e, -EINVAL, "an ETag of %zu bytes", etag.n);
    for (size_t i = 0; i < etag.n; i++)
        if ((unsigned char)etag.p[i] <= ' ' || etag.p[i] == 0x7f)
            return err_set(e, -EINVAL, "an ETag with white space");
    bool as_is = slice_starts(etag, SLICE_LIT("W/")) || slice_eq_str(etag, "*");
    (void)snprintf(ret, S3_ETAG_MAX + 3, "%s" SLICE_FMT "%s", as_is ? "" : "\"", SLICE_ARG(etag),
                   as_is ? "" : "\"");
    return 0;
}

struct slice s3_version(const struct origin_attr *attr, struct arena *a)
{
    if (attr->mtime_ns == 0)
        return SLICE_NULL;
    return slice_str(
        arena_printf(a, "W/\"%" PRIx64 "-%" PRIx64 "\"", attr->mtime_ns / 1000000000, attr->size_bytes));
}

bool s3_etag_is_weak(struct slice etag)
{
    return slice_starts(etag, SLICE_LIT("W/"));
}

/* How many bytes the answer must have for the request, from its range or length. */
static int expect(struct transfer *t, struct err *e)
{
    const struct s3_response *r = &t->call->response;
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

static int begin(struct transfer *t, struct err *e)
{
    struct origin_attr attr = s3_response_attr(&t->call->response);
    if (attr.etag.n == 0)
        attr.etag = s3_version(&attr, t->arena);
    int r = check_version(t, attr.etag, e);
    if (r == 0)
        r = expect(t, e);
    if (r == 0)
        r = origin_attr_dup(t->arena, &attr, &t->attr, e);
    t->begun = r == 0;
    return r;
}

static int on_body(void *arg, const void *p, size_t n)
{
    struct transfer *t = arg;
    if (!t->begun) {
        int r = begin(t, t->err);
        if (r < 0)
            return r;
    }
    if (n > t->expected - t->given)
        return err_set(t->err, ERR_ORIGIN_SHORT, "more than the announced %" PRIu64 " bytes", t->expected);
    t->given += n;
    return t->sink(t->arg, &t->attr, p, n);
}

static int finish(struct transfer *t, struct err *e)
{
    if (!t->begun) {
        int r = begin(t, e);
        if (r < 0)
            return r;
    }
    if (t->given != t->expected)
        return err_set(e, ERR_ORIGIN_SHORT, "%" PRIu64 " of the announced %" PRIu64 " bytes", t->given,
                       t->expected);
    return t->given == 0 ? t->sink(t->arg, &t->attr, NULL, 0) : 0;
}

static int get_once(struct s3 *s, struct transfer *t, struct err *e)
{
    const struct origin_get *g = t->get;
    char range[64], match[S3_ETAG_MAX + 3], none_match[S3_ETAG_MAX + 3];
    struct s3_call _cleanup_(s3_call_fini) c;
    s3_call_init(&c, s, g->attributes_only ? S3_HEAD : S3_GET, g->attributes_only ? "head" : "get");
    c.has_key = true;
    c.key = g->key;
    c.cancel = g->cancel;
    int r = 0;
    if (!g->attributes_only && !g->whole) {
        /* Services read the numbers as signed. */
        uint64_t last = g->n - 1 > LAST_MAX - MIN(g->offset, LAST_MAX) ? LAST_MAX : g->offset + g->n - 1;
        (void)snprintf(range, sizeof(range), "bytes=%" PRIu64 "-%" PRIu64, g->offset, last);
        s3_call_header(&c, SLICE_LIT("range"), slice_str(range));
    }
    if (g->if_match.n && !s3_etag_is_weak(g->if_match)) {
        r = s3_etag_header(g->if_match, match, e);
        s3_call_header(&c, SLICE_LIT("if-match"), slice_str(match));
    }
    if (r == 0 && g->if_none_match.n) {
        r = s3_etag_header(g->if_none_match, none_match, e);
        s3_call_header(&c, SLICE_LIT("if-none-match"), slice_str(none_match));
    }
    if (r < 0)
        return r;
    c.on_body = on_body;
    c.arg = t;
    t->call = &c;
    r = s3_perform(&c, e);
    return r < 0 ? r : finish(t, e);
}

int s3_get(struct origin *o, const struct origin_get *g, struct arena *a, struct origin_attr *ret_attr,
           origin_sink_fn sink, void *arg, struct err *e)
{
    struct s3 *s = s3_of(o);
    int r = s3_check_key(s, g->key, e);
    if (r < 0)
        return r;
    struct transfer t = {.get = g, .arena = a, .sink = sink, .arg = arg, .err = e};
    r = get_once(s, &t, e);
    if (r == ERR_RANGE && g->offset == 0 && !g->attributes_only) {
        struct origin_get head = *g;
        head.attributes_only = true;
        t = (struct transfer){.get = &head, .arena = a, .sink = sink, .arg = arg, .err = e};
        if (e)
            e->code = 0;
        r = get_once(s, &t, e);
        if (r == 0 && t.attr.size_bytes != 0)
            return err_set(e, ERR_ORIGIN_FAILED,
                           "a range from 0 was refused, but the object has %" PRIu64 " bytes",
                           t.attr.size_bytes);
    }
    if (r == 0)
        *ret_attr = t.attr;
    return r;
}
