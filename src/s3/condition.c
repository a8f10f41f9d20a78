/*
 * Conditional headers.
 *
 * 1. Order of RFC 9110 section 13.2.2: If-Match decides before If-Unmodified-Since and If-None-Match before
 *    If-Modified-Since; the second of each pair counts only when the first is not there.
 * 2. Dates are compared in whole seconds, the unit of Last-Modified.
 * 3. An object without a date (of an origin that tells none) was not "not modified since" any: conditions by
 *    date are left out for it, as RFC 9110 says.
 * 4. What an answer gave as ETag, weak or not, fits the object of that answer.
 * 5. A header that was sent several times counts each time: lists of ETags are one list (RFC 9110 section
 *    5.3), and of dates every one must hold.
 */
#include "s3/condition.h"

#include "base/text.h"

#define NS_PER_S 1000000000ull

/* The value of header line i when it is this header, else NULL. */
static struct slice line_of(const struct condition *c, size_t i, const char *name)
{
    const struct http_header *h = &c->http->headers[i];
    const size_t n = strlen(c->prefix);

    if (h->name.n <= n || !slice_eq_case(slice_sub(h->name, 0, n), slice_str(c->prefix)) ||
        !slice_eq_case(slice_from(h->name, n), slice_str(name)))
        return SLICE_NULL;
    return h->value;
}

static bool has_line(const struct condition *c, const char *name)
{
    for (size_t i = 0; i < c->http->n_headers; i++)
        if (line_of(c, i, name).p)
            return true;
    return false;
}

static bool read_date(struct slice value, uint64_t *ret_s)
{
    uint64_t ns;

    if (!value.p || text_parse_date(value, &ns))
        return false;
    *ret_s = ns / NS_PER_S;
    return true;
}

/* The latest or the earliest of the dates in these lines; false: there is none. */
static bool read_dates(const struct condition *c, const char *name, bool latest, uint64_t *ret_s)
{
    bool any = false;

    for (size_t i = 0; i < c->http->n_headers; i++) {
        uint64_t s;

        if (!read_date(line_of(c, i, name), &s))
            continue;
        if (!any || (latest ? s > *ret_s : s < *ret_s))
            *ret_s = s;
        any = true;
    }
    return any;
}

/* Most requests have none, and are not looked through for each. */
static bool has_any(const struct http_request *r, size_t prefix_n)
{
    for (size_t i = 0; i < r->n_headers; i++)
        if (slice_eq_case(slice_sub(r->headers[i].name, prefix_n, 3), SLICE_LIT("if-")))
            return true;
    return false;
}

void condition_read(const struct http_request *r, const char *prefix, struct condition *ret)
{
    *ret = (struct condition){.http = r, .prefix = prefix};
    if (!has_any(r, strlen(prefix)))
        return;
    ret->has_match = has_line(ret, "if-match");
    ret->has_none_match = has_line(ret, "if-none-match");
    ret->has_modified_since =
        read_dates(ret, "if-modified-since", /* latest= */ true, &ret->modified_since_s);
    ret->has_unmodified_since =
        read_dates(ret, "if-unmodified-since", /* latest= */ false, &ret->unmodified_since_s);
}

struct slice condition_bare_etag(struct slice value)
{
    value = slice_trim(value);
    if (slice_starts(value, SLICE_LIT("W/")))
        value = slice_of(value.p + 2, value.n - 2); /* an empty one is there all the same */
    if (value.n >= 2 && value.p[0] == '"' && value.p[value.n - 1] == '"')
        value = slice_sub(value, 1, value.n - 2);
    return value;
}

/* Takes the first of a list off it. A comma between quotes is an ETag's own. */
static struct slice next_etag(struct slice *list)
{
    struct slice one = *list;
    bool quoted = false;
    size_t n = 0;

    while (n < list->n && (quoted || list->p[n] != ','))
        quoted ^= list->p[n++] == '"';
    one.n = n;
    *list = slice_from(*list, n + 1);
    return one;
}

bool condition_is_single(const struct http_request *r, const char *name)
{
    struct slice want = slice_str(name);
    size_t found = 0;

    for (size_t i = 0; i < r->n_headers; i++) {
        struct slice value = r->headers[i].value;

        if (!slice_eq_case(r->headers[i].name, want))
            continue;
        if (++found > 1 || next_etag(&value).n < r->headers[i].value.n)
            return false;
    }
    return true;
}

bool condition_etag_in(struct slice list, struct slice etag)
{
    etag = condition_bare_etag(etag); /* weak ones of origins have their marks */
    while (list.n) {
        struct slice one = condition_bare_etag(next_etag(&list));

        if (slice_eq_str(one, "*") || (one.n && slice_eq(one, etag)))
            return true;
    }
    return false;
}

static bool names_etag(const struct condition *c, const char *name, struct slice etag)
{
    for (size_t i = 0; i < c->http->n_headers; i++) {
        struct slice list = line_of(c, i, name);

        if (condition_etag_in(list, etag) || (c->also.n && condition_etag_in(list, c->also)))
            return true;
    }
    return false;
}

enum s3_error condition_check(const struct condition *c, const struct wire_attr *attr)
{
    uint64_t modified_s = attr->mtime_ns / NS_PER_S;

    if (c->has_match) {
        if (!names_etag(c, "if-match", attr->etag))
            return S3_ERR_PRECONDITION;
    } else if (c->has_unmodified_since && modified_s > c->unmodified_since_s) {
        return S3_ERR_PRECONDITION;
    }
    if (c->has_none_match)
        return names_etag(c, "if-none-match", attr->etag) ? S3_ERR_NOT_MODIFIED : S3_OK;
    return c->has_modified_since && attr->mtime_ns && modified_s <= c->modified_since_s ? S3_ERR_NOT_MODIFIED
                                                                                        : S3_OK;
}

bool condition_if_range(struct slice value, const struct wire_attr *attr, struct slice also)
{
    struct slice bare = condition_bare_etag(value);
    uint64_t date_s;

    if (!value.p)
        return true;
    if (read_date(value, &date_s))
        return attr->mtime_ns && date_s == attr->mtime_ns / NS_PER_S;
    if (slice_starts(value, SLICE_LIT("W/")))
        return false;
    return slice_eq(bare, attr->etag) || (also.n && slice_eq(bare, also));
}
