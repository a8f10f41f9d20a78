/*
 * Grouping of a plain listing (contract in group.h).
 *
 * 1. Keys and common prefixes come once each, in byte order, and a page continues behind the last one that
 * the former page showed: a common prefix that was shown, or that is not behind the marker, is skipped with
 * all its keys.
 * 2. Memory is one page of the plain listing and the page that is made, however many keys a group has. Where
 * a page of the plain listing ends inside a group, the rest of the group is jumped over, not read.
 * 3. Every page of the plain listing begins behind the one before it: what cannot be jumped over is read.
 */
#include "s3/group.h"

#define PAGE_MAX_BYTES  (4 * MIB)
#define AFTER_MAX_BYTES (4 * KIB)

/* Behind every key that begins with the text before it: the last code point there is. */
static const char last_character[] = "\xf4\x8f\xbf\xbf";

struct group {
    const struct wire_list_req *req;
    struct slice delimiter;
    struct buf out, after, shown; /* shown: the common prefix that was shown last, empty for none */
    uint32_t n;
    bool full;
};

/* The common prefix that a key belongs to, SLICE_NULL for none. */
static struct slice prefix_of(const struct group *g, struct slice key)
{
    size_t from = g->req->prefix.n;
    ssize_t at = key.n >= from ? slice_find_slice(slice_from(key, from), g->delimiter) : -1;

    return at < 0 ? SLICE_NULL : slice_sub(key, 0, from + (size_t)at + g->delimiter.n);
}

static int set(struct buf *b, struct slice s)
{
    buf_clear(b);
    return buf_slice(b, s);
}

/* What the page continues behind. */
static int remember(struct group *g, struct slice key, bool is_prefix)
{
    int status = set(&g->after, key);

    return status ? status : set(&g->shown, is_prefix ? key : SLICE_LIT(""));
}

static int show(struct group *g, const struct wire_entry *entry)
{
    struct slice prefix = prefix_of(g, entry->key);
    struct wire_entry common = {.key = prefix, .attr = {.kind = WIRE_DIRECTORY}};
    int status;

    if (g->shown.n && slice_starts(entry->key, buf_view(&g->shown)))
        return 0;
    if (g->n == g->req->max) {
        g->full = true;
        return 0;
    }
    status = wire_entry_encode(prefix.p ? &common : entry, &g->out);
    if (status == 0)
        status = remember(g, prefix.p ? prefix : entry->key, prefix.p != NULL);
    g->n += status == 0;
    return status;
}

static int show_page(struct group *g, struct slice entries)
{
    struct wire_entry entry;
    int status = 0;

    while (status == 0 && !g->full) {
        status = wire_entry_decode(&entries, &entry);
        if (status == 0)
            status = show(g, &entry);
    }
    return status == -ENOENT ? 0 : status;
}

/* Moves where the next page begins behind the group that was shown last, but never back: keys that go on with
 * that last character, or with bytes that are no UTF-8, lie behind it, and no marker is longer than a key. */
static int jump(const struct group *g, struct buf *from)
{
    _cleanup_buf_ struct buf behind = BUF_INIT(AFTER_MAX_BYTES);
    int status;

    if (g->shown.n == 0 || g->shown.n + strlen(last_character) > S3_KEY_MAX_BYTES)
        return 0;
    status = buf_slice(&behind, buf_view(&g->shown));
    if (status == 0)
        status = buf_str(&behind, last_character);
    if (status == 0 && slice_cmp(buf_view(&behind), buf_view(from)) > 0)
        status = set(from, buf_view(&behind));
    return status;
}

static int read_pages(struct group *g, struct s3 *s3, struct err *e)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(S3_ARENA_BYTES);
    _cleanup_buf_ struct buf from = BUF_INIT(AFTER_MAX_BYTES);
    struct wire_list_rep page = {.truncated = 1};
    int status = set(&from, g->req->after);

    while (status == 0 && page.truncated && !g->full) {
        struct wire_list_req req = *g->req;

        status = jump(g, &from);
        req.after = buf_view(&from);
        req.max = S3_LIST_MAX;
        if (status == 0)
            status = object_list(s3->session, &req, a, &page, e);
        if (status == 0)
            status = show_page(g, page.entries);
        if (status == 0)
            status = set(&from, page.next);
        arena_clear(a);
    }
    return status;
}

int group_list(struct s3 *s3, const struct wire_list_req *req, struct slice delimiter, struct arena *a,
               struct wire_list_rep *ret, struct err *e)
{
    struct group g = {.req = req,
                      .delimiter = delimiter,
                      .out = BUF_INIT(PAGE_MAX_BYTES),
                      .after = BUF_INIT(AFTER_MAX_BYTES),
                      .shown = BUF_INIT(AFTER_MAX_BYTES)};
    int status = 0;

    assert(req->delimiter == 0 && delimiter.n > 0 && req->max > 0);
    /* Behind a common prefix, or within its keys: it is not behind itself, and S3 does not show it then. */
    const struct slice begun = slice_starts(req->after, req->prefix) ? prefix_of(&g, req->after) : SLICE_NULL;
    if (begun.n)
        status = remember(&g, begun, /* is_prefix= */ true);
    if (status == 0)
        status = read_pages(&g, s3, e);
    if (status == 0)
        *ret = (struct wire_list_rep){.fd = -1,
                                      .entries = arena_dup(a, buf_view(&g.out)),
                                      .n_entries = g.n,
                                      .truncated = g.full,
                                      .next = g.full ? arena_dup(a, buf_view(&g.after)) : SLICE_LIT("")};
    buf_fini(&g.out);
    buf_fini(&g.after);
    buf_fini(&g.shown);
    return status;
}
