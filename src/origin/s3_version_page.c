/*
 * A page of ListObjectVersions, read while it arrives. Pure.
 *
 * Keys are asked for percent-encoded, as in s3_list.c, and decoded at the end. Services tell the versions of
 * a key one after another, the newest first; some tell all versions of a page before all its markers of
 * removals, so that they are put in order here: by time, and where that is the same, the latest first, then
 * as they were told.
 *
 * Invariants:
 *  1. Each version of a page has a key, an id and a time: without one of them it cannot be said what was
 * there when, and the page is refused.
 *  2. A page has no more versions and prefixes than were asked for; a truncated one says where it goes on.
 *
 * Failure modes: ERR_ORIGIN_FAILED for answers that break these rules.
 */
#include "origin/s3_internal.h"

#include "base/text.h"

#define ENTRY_BYTES (8 * KIB) /* key as sent and decoded, id, ETag */
#define SPARE_BYTES (64 * KIB)

struct s3_version_reader {
    struct web_xml *xml;
    struct arena *arena;
    struct s3_version *v, now;
    bool has_time, has_size; /* of `now` */
    struct slice *prefixes;
    size_t max, n, n_prefixes;
    bool saw_root, url_encoded, truncated;
    struct slice next_key, next_id;
};

static int hold(struct s3_version_reader *x, struct slice s, struct slice *ret, struct err *e)
{
    if (arena_left(x->arena) < s.n + KIB)
        return err_set(e, ERR_ORIGIN_FAILED, "the page of versions is too long");
    *ret = arena_dup(x->arena, s);
    return 0;
}

static int on_version(struct s3_version_reader *x, const char *name, struct slice text, struct err *e)
{
    struct slice trimmed = slice_trim(text);
    if (strcmp(name, "Key") == 0)
        return hold(x, text, &x->now.key, e);
    if (strcmp(name, "VersionId") == 0)
        return trimmed.n > WEB_VERSION_ID_MAX
                   ? err_set(e, ERR_ORIGIN_FAILED, "a version's id has %zu bytes", trimmed.n)
                   : hold(x, trimmed, &x->now.id, e);
    if (strcmp(name, "ETag") == 0)
        return hold(x, web_unquote(trimmed), &x->now.etag, e);
    if (strcmp(name, "Size") == 0)
        x->has_size = slice_u64(trimmed, &x->now.size_bytes) == 0;
    if (strcmp(name, "IsLatest") == 0)
        (void)text_parse_bool(trimmed, &x->now.is_latest); /* one sign of several */
    if (strcmp(name, "LastModified") == 0) {
        x->now.mtime_ns = s3_date(text);
        x->has_time = text_parse_date(trimmed, &x->now.exact_ns) == 0;
    }
    return 0;
}

static int check_room(const struct s3_version_reader *x, struct err *e)
{
    return x->n + x->n_prefixes < x->max
               ? 0
               : err_set(e, ERR_ORIGIN_FAILED,
                         "the page of versions has more than the %zu entries that were asked for", x->max);
}

static int end_version(struct s3_version_reader *x, bool is_marker, struct err *e)
{
    int r = check_room(x, e);
    if (r < 0)
        return r;
    const char *missing = x->now.key.n == 0            ? "key"
                          : x->now.id.n == 0           ? "id"
                          : !x->has_time               ? "time that can be read"
                          : !is_marker && !x->has_size ? "size that is a number"
                                                       : NULL;
    if (missing)
        return err_set(e, ERR_ORIGIN_FAILED, "the page has a version without a %s", missing);
    x->now.is_marker = is_marker;
    x->now.place = x->n;
    x->v[x->n++] = x->now;
    x->now = (struct s3_version){0};
    x->has_time = x->has_size = false;
    return 0;
}

static int on_page(struct s3_version_reader *x, const char *name, struct slice text, struct err *e)
{
    bool is_marker = strcmp(name, "DeleteMarker") == 0;
    if (is_marker || strcmp(name, "Version") == 0)
        return end_version(x, is_marker, e);
    if (strcmp(name, "IsTruncated") == 0 && text_parse_bool(slice_trim(text), &x->truncated) < 0)
        return err_set(e, ERR_ORIGIN_FAILED, "the page does not say whether it is truncated");
    if (strcmp(name, "NextKeyMarker") == 0)
        return hold(x, text, &x->next_key, e);
    if (strcmp(name, "NextVersionIdMarker") == 0)
        return hold(x, slice_trim(text), &x->next_id, e);
    if (strcmp(name, "EncodingType") == 0)
        x->url_encoded = slice_eq_str(slice_trim(text), "url");
    return 0;
}

static int on_element(void *arg, unsigned depth, const char *parent, const char *name, struct slice text,
                      struct err *e)
{
    struct s3_version_reader *x = arg;
    if (depth == 1) {
        x->saw_root = strcmp(name, "ListVersionsResult") == 0;
        return x->saw_root ? 0
                           : err_set(e, ERR_NOT_IMPLEMENTED,
                                     "the service tells no versions: its answer is a %s", name);
    }
    if (depth == 2)
        return on_page(x, name, text, e);
    if (depth != 3)
        return 0;
    if (strcmp(parent, "Version") == 0 || strcmp(parent, "DeleteMarker") == 0)
        return on_version(x, name, text, e);
    if (strcmp(parent, "CommonPrefixes") != 0 || strcmp(name, "Prefix") != 0)
        return 0;
    int r = check_room(x, e);
    return r < 0 ? r : hold(x, text, &x->prefixes[x->n_prefixes++], e);
}

struct s3_version_reader *s3_version_reader_new(size_t max)
{
    assert(max > 0 && max <= WEB_LIST_ENTRIES_MAX);
    struct s3_version_reader *x = calloc(1, sizeof(*x));
    if (!x)
        abort();
    x->max = max;
    x->arena = arena_new(max * ENTRY_BYTES + SPARE_BYTES);
    x->v = calloc(max, sizeof(*x->v));
    x->prefixes = calloc(max, sizeof(*x->prefixes));
    if (!x->v || !x->prefixes)
        abort();
    x->xml = web_xml_new(WEB_LIST_MAX_BYTES, on_element, x);
    return x;
}

void s3_version_reader_free(struct s3_version_reader *x)
{
    if (!x)
        return;
    web_xml_free(x->xml);
    arena_free(x->arena);
    free(x->v);
    free(x->prefixes);
    free(x);
}

int s3_version_reader_feed(struct s3_version_reader *x, const void *p, size_t n, struct err *e)
{
    return web_xml_feed(x->xml, p, n, e);
}

static int decode(struct s3_version_reader *x, struct slice *name, struct err *e)
{
    struct slice raw = *name;
    if (!x->url_encoded || raw.n == 0 || (!memchr(raw.p, '%', raw.n) && !memchr(raw.p, '+', raw.n)))
        return 0;
    struct buf _cleanup_buf_ plain = BUF_INIT(WEB_XML_TEXT_MAX);
    if (text_uri_decode(&plain, raw, /* plus_is_space= */ true) < 0)
        return err_set(e, ERR_ORIGIN_FAILED, "the page has a key with a broken escape");
    return hold(x, buf_view(&plain), name, e);
}

static int compare(const void *a, const void *b)
{
    const struct s3_version *x = a, *y = b;
    int order = slice_cmp(x->key, y->key);
    if (order == 0 && x->exact_ns != y->exact_ns)
        order = x->exact_ns > y->exact_ns ? -1 : 1;
    if (order == 0 && x->is_latest != y->is_latest)
        order = x->is_latest ? -1 : 1;
    return order != 0 ? order : x->place < y->place ? -1 : x->place > y->place;
}

int s3_version_reader_end(struct s3_version_reader *x, struct s3_version_page *ret, struct err *e)
{
    int r = web_xml_end(x->xml, e);
    for (size_t i = 0; r == 0 && i < x->n; i++)
        r = decode(x, &x->v[i].key, e);
    for (size_t i = 0; r == 0 && i < x->n_prefixes; i++)
        r = decode(x, &x->prefixes[i], e);
    if (r == 0)
        r = decode(x, &x->next_key, e);
    if (r < 0)
        return r;
    if (x->truncated && x->next_key.n == 0)
        return err_set(e, ERR_ORIGIN_FAILED, "the page is truncated but tells no continuation");
    if (x->n > 0)
        qsort(x->v, x->n, sizeof(*x->v), compare);
    *ret = (struct s3_version_page){.v = x->v,
                                    .n = x->n,
                                    .prefixes = x->prefixes,
                                    .n_prefixes = x->n_prefixes,
                                    .truncated = x->truncated,
                                    .next_key = x->truncated ? x->next_key : SLICE_NULL,
                                    .next_id = x->truncated ? x->next_id : SLICE_NULL};
    return 0;
}

bool s3_version_is_of(const struct s3_version *x, uint64_t as_of_ns)
{
    return x->exact_ns <= origin_as_of_end(as_of_ns);
}
