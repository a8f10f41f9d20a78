/*
 * The headers that a signature is about (contract in auth_internal.h).
 *
 * 1. Whoever sends a head has this done before anything is known of him: names are sorted once, and each
 * header of the request is looked up among them, so that the work is about that of reading the head some
 * times, whatever stands in it.
 * 2. The arena has room for the request's headers, not for many times them: values of one name are joined
 * once.
 */
#include "s3/auth_internal.h"

/* Byte order; `b` may be in any case. Its work is counted: nothing else here looks at names. */
static int compare(struct auth_list *l, struct slice a, struct slice b)
{
    const size_t n = MIN(a.n, b.n);
    size_t i = 0;
    int d = 0;

    for (; i < n && d == 0; i++) {
        unsigned char x = (unsigned char)b.p[i];

        d = (unsigned char)a.p[i] - (x >= 'A' && x <= 'Z' ? x + 32 : x);
    }
    l->compared += i + 1;
    return d ? d : (a.n > b.n) - (a.n < b.n);
}

static int compare_pairs(const void *a, const void *b, void *list)
{
    return compare(list, ((const struct sigv4_pair *)a)->name, ((const struct sigv4_pair *)b)->name);
}

/* Most clients name them in order. False: a name is there twice. */
static bool sort(struct auth_list *l)
{
    int order = -1;

    for (size_t i = 1; i < l->n && order < 0; i++)
        order = compare_pairs(&l->v[i - 1], &l->v[i], l);
    if (order < 0)
        return true;
    qsort_r(l->v, l->n, sizeof l->v[0], compare_pairs, l);
    for (size_t i = 1; i < l->n; i++)
        if (compare_pairs(&l->v[i - 1], &l->v[i], l) == 0)
            return false;
    return true;
}

ssize_t auth_list_find(struct auth_list *l, struct slice name)
{
    size_t from = 0, to = l->n;

    while (from < to) {
        size_t at = from + (to - from) / 2;
        int d = compare(l, l->v[at].name, name);

        if (d == 0)
            return (ssize_t)at;
        if (d < 0)
            from = at + 1;
        else
            to = at;
    }
    return -1;
}

/* Puts the values of names that came more than once together; the first of each is in the list, `times` says
 * how often each came. */
static void join(struct auth_list *l, const struct http_request *http, const size_t *times, struct arena *a)
{
    size_t bytes[HTTP_HEADERS_MAX] = {0};

    for (size_t i = 0; i < http->n_headers; i++)
        if (l->place[i] >= 0)
            bytes[l->place[i]] += http->headers[i].value.n + 1;
    for (size_t i = 0; i < l->n; i++)
        if (times[i] > 1)
            l->v[i].value = slice_of(arena_alloc(a, bytes[i]), 0);
    for (size_t i = 0; i < http->n_headers; i++) {
        const struct slice value = http->headers[i].value;
        const ssize_t at = l->place[i];

        if (at < 0 || times[at] < 2)
            continue;
        char *to = (char *)(uintptr_t)l->v[at].value.p + l->v[at].value.n;

        if (value.n)
            memcpy(to, value.p, value.n);
        to[value.n] = ','; /* behind the last one it does not count */
        l->v[at].value.n += value.n + 1;
    }
    for (size_t i = 0; i < l->n; i++)
        l->v[i].value.n -= times[i] > 1;
}

/* Looks each header of the request up. */
static void fill(struct auth_list *l, const struct http_request *http, struct arena *a)
{
    size_t times[HTTP_HEADERS_MAX] = {0};
    bool repeated = false;

    for (size_t i = 0; i < http->n_headers; i++) {
        const struct slice value = http->headers[i].value;
        const ssize_t at = auth_list_find(l, http->headers[i].name);

        l->place[i] = at;
        if (at < 0)
            continue;
        l->v[at].value = value.p ? value : SLICE_LIT("");
        repeated |= ++times[at] > 1;
    }
    if (repeated)
        join(l, http, times, a);
}

enum s3_error auth_list_signed(struct auth_list *l, const struct http_request *http, struct slice names,
                               struct arena *a)
{
    names = auth_lower(a, names);
    l->n = l->compared = 0;
    while (names.n) {
        struct slice name = slice_split(&names, ';');

        if (!name.n || l->n == HTTP_HEADERS_MAX)
            return S3_ERR_AUTH_MALFORMED;
        l->v[l->n++] = (struct sigv4_pair){.name = name};
    }
    if (!sort(l))
        return S3_ERR_AUTH_MALFORMED;
    fill(l, http, a);
    return S3_OK;
}

void auth_list_starting(struct auth_list *l, const struct http_request *http, struct slice prefix,
                        struct arena *a)
{
    size_t n = 0;

    l->n = l->compared = 0;
    for (size_t i = 0; i < http->n_headers; i++) {
        const struct slice name = http->headers[i].name;

        if (name.n >= prefix.n && slice_eq_case(slice_sub(name, 0, prefix.n), prefix))
            l->v[l->n++] = (struct sigv4_pair){.name = auth_lower(a, name)};
    }
    if (!sort(l)) {
        for (size_t i = 0; i < l->n; i++)
            if (n == 0 || compare_pairs(&l->v[n - 1], &l->v[i], l) != 0)
                l->v[n++] = l->v[i];
        l->n = n;
    }
    fill(l, http, a);
}
