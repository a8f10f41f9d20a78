/*
 * ListObjectsV2: one page, parsed while it arrives.
 *
 * Keys are asked for percent-encoded (encoding-type=url), because XML cannot hold every byte that a key can.
 * Whether the service did so is said by <EncodingType>, which may come after the entries, so that keys are
 * decoded at the end.
 *
 * Invariants:
 *  1. Every entry of a page begins with the prefix that was asked for, and comes after `after`; entries are
 * in byte order, each key once.
 *  2. A page holds at most S3_LIST_ENTRIES_MAX entries; what it needs of the arena is checked first.
 *  3. A truncated page has a token.
 *
 * Failure modes: ERR_ORIGIN_FAILED for documents that break these rules, besides those of s3_perform.
 */
#include "origin/s3_internal.h"

#include "base/text.h"

struct s3_list {
    struct arena *arena;
    struct s3_xml *xml;
    const char *own_prefix; /* of the origin; taken off the keys */
    struct slice prefix;    /* asked for, with own_prefix */
    struct slice after;
    uint32_t max;
    bool saw_root, url_encoded, truncated;
    struct slice next_token;
    struct origin_entry *entries; /* `max` of them, keys still with own_prefix */
    size_t n;
    struct origin_entry now; /* the one being read */
    struct buf scratch;
};

/* Copies into the arena what the origin sent, if it fits. */
static int keep(struct s3_list *l, struct slice s, struct slice *ret, struct err *e)
{
    if (arena_left(l->arena) < s.n + 64)
        return err_set(e, -ENOMEM, "the page needs more memory than the request has");
    *ret = arena_dup(l->arena, s);
    return 0;
}

static int add(struct s3_list *l, struct err *e)
{
    if (l->n >= l->max)
        return err_set(e, ERR_ORIGIN_FAILED, "the page has more than the %u entries that were asked for",
                       l->max);
    if (!l->now.is_prefix && l->now.attr.etag.n == 0)
        l->now.attr.etag = s3_version(&l->now.attr, l->arena);
    l->entries[l->n++] = l->now;
    l->now = (struct origin_entry){0};
    return 0;
}

static struct slice unquote(struct slice s)
{
    s = slice_trim(s);
    if (s.n >= 2 && s.p[0] == '"' && s.p[s.n - 1] == '"')
        s = slice_sub(s, 1, s.n - 2);
    return s.n > S3_ETAG_MAX ? SLICE_NULL : s;
}

static int on_contents(struct s3_list *l, const char *name, struct slice text, struct err *e)
{
    if (strcmp(name, "Key") == 0)
        return keep(l, text, &l->now.key, e);
    if (strcmp(name, "ETag") == 0)
        return keep(l, unquote(text), &l->now.attr.etag, e);
    if (strcmp(name, "Size") == 0 && slice_u64(slice_trim(text), &l->now.attr.size_bytes) < 0)
        return err_set(e, ERR_ORIGIN_FAILED, "the page has a size that is no number");
    if (strcmp(name, "LastModified") == 0)
        (void)text_parse_date(slice_trim(text), &l->now.attr.mtime_ns);
    return 0;
}

static int on_page(struct s3_list *l, const char *name, struct slice text, struct err *e)
{
    if (strcmp(name, "Contents") == 0)
        return add(l, e);
    if (strcmp(name, "IsTruncated") == 0)
        return text_parse_bool(slice_trim(text), &l->truncated) < 0
                   ? err_set(e, ERR_ORIGIN_FAILED, "the page does not say whether it is truncated")
                   : 0;
    if (strcmp(name, "NextContinuationToken") == 0)
        return keep(l, text, &l->next_token, e);
    if (strcmp(name, "EncodingType") == 0)
        l->url_encoded = slice_eq_str(slice_trim(text), "url");
    return 0;
}

static int on_element(void *arg, unsigned depth, const char *parent, const char *name, struct slice text,
                      struct err *e)
{
    struct s3_list *l = arg;
    if (depth == 1) {
        l->saw_root = strcmp(name, "ListBucketResult") == 0;
        return l->saw_root ? 0 : err_set(e, ERR_ORIGIN_FAILED, "the answer is a %s and no listing", name);
    }
    if (depth == 2)
        return on_page(l, name, text, e);
    if (depth != 3)
        return 0;
    if (strcmp(parent, "Contents") == 0)
        return on_contents(l, name, text, e);
    if (strcmp(parent, "CommonPrefixes") == 0 && strcmp(name, "Prefix") == 0) {
        l->now = (struct origin_entry){.is_prefix = true};
        int r = keep(l, text, &l->now.key, e);
        return r < 0 ? r : add(l, e);
    }
    return 0;
}

struct s3_list *s3_list_new(const struct origin_list *q, const char *own_prefix, struct arena *a)
{
    assert(q && own_prefix && a);
    struct s3_list *l = calloc(1, sizeof(*l));
    if (!l)
        abort();
    l->arena = a;
    l->own_prefix = own_prefix;
    l->after = q->after;
    l->max = q->max == 0 ? S3_LIST_ENTRIES_MAX : MIN(q->max, (uint32_t)S3_LIST_ENTRIES_MAX);
    l->prefix = slice_str(arena_printf(a, "%s" SLICE_FMT, own_prefix, SLICE_ARG(q->prefix)));
    l->entries = calloc(l->max, sizeof(struct origin_entry));
    if (!l->entries)
        abort();
    l->scratch = BUF_INIT(S3_XML_TEXT_MAX);
    l->xml = s3_xml_new(S3_LIST_MAX_BYTES, on_element, l);
    return l;
}

void s3_list_free(struct s3_list *l)
{
    if (!l)
        return;
    s3_xml_free(l->xml);
    free(l->entries);
    buf_fini(&l->scratch);
    free(l);
}

int s3_list_feed(struct s3_list *l, const void *p, size_t n, struct err *e)
{
    return s3_xml_feed(l->xml, p, n, e);
}

/* Decodes the key and takes the origin's prefix off it. */
static int finish_entry(struct s3_list *l, struct origin_entry *x, struct err *e)
{
    struct slice key = x->key;
    if (l->url_encoded && key.n > 0 && (memchr(key.p, '%', key.n) || memchr(key.p, '+', key.n))) {
        buf_clear(&l->scratch);
        if (text_uri_decode(&l->scratch, key, /* plus_is_space= */ true) < 0)
            return err_set(e, ERR_ORIGIN_FAILED, "the page has a key with a broken escape");
        int r = keep(l, buf_view(&l->scratch), &key, e);
        if (r < 0)
            return r;
    }
    if (key.n > ORIGIN_KEY_MAX_BYTES)
        return err_set(e, ERR_ORIGIN_FAILED, "the page has a key of %zu bytes", key.n);
    if (!slice_starts(key, l->prefix))
        return err_set(e, ERR_ORIGIN_FAILED,
                       "the page has the key \"" SLICE_FMT "\", which is outside the prefix",
                       SLICE_ARG(slice_sub(key, 0, MIN(key.n, (size_t)100))));
    x->key = slice_from(key, strlen(l->own_prefix));
    return 0;
}

int s3_list_end(struct s3_list *l, struct origin_page *ret, struct err *e)
{
    int r = s3_xml_end(l->xml, e);
    if (r < 0)
        return r;
    if (l->truncated && l->next_token.n == 0)
        return err_set(e, ERR_ORIGIN_FAILED, "the page is truncated but tells no continuation");
    size_t n = 0;
    for (size_t i = 0; i < l->n; i++) {
        r = finish_entry(l, &l->entries[i], e);
        if (r < 0)
            return r;
        if (l->entries[i].key.n > 0) /* the marker of the prefix itself is no entry of it */
            l->entries[n++] = l->entries[i];
    }
    origin_order_entries(l->entries, &n, l->after);
    if (arena_left(l->arena) < n * sizeof(*l->entries) + 64)
        return err_set(e, -ENOMEM, "the page needs more memory than the request has");
    struct origin_entry *entries = arena_alloc(l->arena, MAX(n, (size_t)1) * sizeof(*entries));
    if (n > 0)
        memcpy(entries, l->entries, n * sizeof(*entries));
    *ret = (struct origin_page){.entries = entries,
                                .n = n,
                                .truncated = l->truncated,
                                .next_token = l->truncated ? l->next_token : SLICE_NULL};
    return 0;
}

struct feed {
    struct s3_list *list;
    struct err *err;
};

static int on_body(void *arg, const void *p, size_t n)
{
    struct feed *f = arg;
    return s3_list_feed(f->list, p, n, f->err);
}

/* The service's start-after and prefix carry the origin's own prefix; the caller's do not. */
static struct slice with_prefix(const struct s3 *s, struct slice key, struct arena *a)
{
    return slice_str(arena_printf(a, "%s" SLICE_FMT, s->prefix, SLICE_ARG(key)));
}

int s3_list(struct origin *o, const struct origin_list *q, struct arena *a, struct origin_page *ret,
            struct err *e)
{
    struct s3 *s = s3_of(o);
    if (q->prefix.n > ORIGIN_KEY_MAX_BYTES || q->after.n > ORIGIN_KEY_MAX_BYTES)
        return err_set(e, -ENAMETOOLONG, "a prefix of more than %d bytes", ORIGIN_KEY_MAX_BYTES);
    struct s3_list *_cleanup_(s3_list_freep) list = s3_list_new(q, s->prefix, a);
    char max[16];
    (void)snprintf(max, sizeof(max), "%u", list->max);
    struct s3_call _cleanup_(s3_call_fini) c;
    struct feed f = {list, e};
    s3_call_init(&c, s, S3_GET, "list");
    s3_call_query(&c, SLICE_LIT("list-type"), SLICE_LIT("2"));
    s3_call_query(&c, SLICE_LIT("encoding-type"), SLICE_LIT("url"));
    s3_call_query(&c, SLICE_LIT("max-keys"), slice_str(max));
    if (list->prefix.n)
        s3_call_query(&c, SLICE_LIT("prefix"), list->prefix);
    if (q->delimiter)
        s3_call_query(&c, SLICE_LIT("delimiter"), slice_of(&q->delimiter, 1));
    if (q->after.n)
        s3_call_query(&c, SLICE_LIT("start-after"), with_prefix(s, q->after, a));
    if (q->token.n)
        s3_call_query(&c, SLICE_LIT("continuation-token"), q->token);
    c.on_body = on_body;
    c.arg = &f;
    int r = s3_perform(&c, e);
    return r < 0 ? r : s3_list_end(list, ret, e);
}
