/*
 * A page of a listing, from what an origin sent.
 *
 * Invariants:
 *  1. Every entry of a page begins with the prefix that was asked for, and comes after `after`; entries are
 * in byte order, each key once.
 *  2. A page holds at most WEB_LIST_ENTRIES_MAX entries; what it needs of the arena is checked first, however
 * much of it an origin's answer fills.
 *  3. A truncated page has a token.
 *
 * Failure modes: ERR_ORIGIN_FAILED for answers that break these rules.
 */
#include "origin/web_internal.h"

#include "base/text.h"

#define PAGE_ROOM_MAX 100000
#define SPARE_BYTES   (16 * KIB) /* of the arena, for versions and for what a kind makes of its tokens */

int web_page_init(struct web_page *p, const struct origin_list *q, const char *own_prefix, struct arena *a,
                  struct err *e)
{
    assert(q && own_prefix && a);
    *p = (struct web_page){.arena = a, .own_prefix = own_prefix, .after = q->after};
    if (q->prefix.n > ORIGIN_KEY_MAX_BYTES || q->after.n > ORIGIN_KEY_MAX_BYTES)
        return err_set(e, -ENAMETOOLONG, "a prefix of more than %d bytes", ORIGIN_KEY_MAX_BYTES);
    p->max = q->max == 0 ? WEB_LIST_ENTRIES_MAX : MIN(q->max, (uint32_t)WEB_LIST_ENTRIES_MAX);
    p->prefix = slice_str(arena_printf(a, "%s" SLICE_FMT, own_prefix, SLICE_ARG(q->prefix)));
    p->entries = calloc(p->max, sizeof(struct origin_entry));
    if (!p->entries)
        abort();
    return 0;
}

void web_page_fini(struct web_page *p)
{
    free(p->entries);
    p->entries = NULL;
}

int web_page_room(struct web_page *p, size_t n, struct err *e)
{
    if (n > PAGE_ROOM_MAX)
        return err_set(e, ERR_ORIGIN_FAILED, "the page has %zu entries", n);
    if (n <= p->max)
        return 0;
    assert(p->n == 0);
    free(p->entries);
    p->max = (uint32_t)n;
    p->entries = calloc(n, sizeof(struct origin_entry));
    if (!p->entries)
        abort();
    return 0;
}

int web_page_keep(struct web_page *p, struct slice s, struct slice *ret, struct err *e)
{
    if (arena_left(p->arena) < s.n + SPARE_BYTES)
        return err_set(e, -ENOMEM, "the page needs more memory than the request has");
    *ret = arena_dup(p->arena, s);
    return 0;
}

int web_page_add(struct web_page *p, const struct origin_entry *x, struct err *e)
{
    if (p->n >= p->max)
        return err_set(e, ERR_ORIGIN_FAILED, "the page has more than the %u entries that were asked for",
                       p->max);
    if (arena_left(p->arena) < SPARE_BYTES)
        return err_set(e, -ENOMEM, "the page needs more memory than the request has");
    struct origin_entry *to = &p->entries[p->n++];
    *to = *x;
    if (!to->is_prefix && to->attr.etag.n == 0)
        to->attr.etag = web_version(&to->attr, p->arena);
    return 0;
}

int web_page_leave_out(struct web_page *p, struct slice key, uint64_t place, struct err *e)
{
    struct slice own = slice_str(p->own_prefix);
    char text[ORIGIN_KEY_MAX_BYTES + 1 + sizeof(place)];
    key = slice_starts(key, own) ? slice_from(key, own.n) : key;
    size_t n = MIN(key.n, (size_t)ORIGIN_KEY_MAX_BYTES);
    if (n > 0)
        memcpy(text, key.p, n);
    text[n++] = '\0';
    for (unsigned shift = 64; shift > 0; shift -= 8)
        text[n++] = (char)(place >> (shift - 8));
    struct slice reached = slice_of(text, n);
    return slice_cmp(reached, p->left_out) > 0 ? web_page_keep(p, reached, &p->left_out, e) : 0;
}

/* Decodes the key and takes the origin's prefix off it. */
static int finish_entry(struct web_page *p, struct origin_entry *x, struct err *e)
{
    struct slice key = x->key;
    if (p->url_encoded && key.n > 0 && (memchr(key.p, '%', key.n) || memchr(key.p, '+', key.n))) {
        struct buf _cleanup_buf_ plain = BUF_INIT(WEB_XML_TEXT_MAX);
        if (text_uri_decode(&plain, key, /* plus_is_space= */ true) < 0)
            return err_set(e, ERR_ORIGIN_FAILED, "the page has a key with a broken escape");
        int r = web_page_keep(p, buf_view(&plain), &key, e);
        if (r < 0)
            return r;
    }
    if (key.n > ORIGIN_KEY_MAX_BYTES)
        return err_set(e, ERR_ORIGIN_FAILED, "the page has a key of %zu bytes", key.n);
    if (!slice_starts(key, p->prefix))
        return err_set(e, ERR_ORIGIN_FAILED,
                       "the page has the key \"" SLICE_FMT "\", which is outside the prefix",
                       SLICE_ARG(slice_sub(key, 0, MIN(key.n, (size_t)100))));
    x->key = slice_from(key, strlen(p->own_prefix));
    return 0;
}

int web_page_finish(struct web_page *p, struct origin_page *ret, struct err *e)
{
    if (p->truncated && p->next_token.n == 0)
        return err_set(e, ERR_ORIGIN_FAILED, "the page is truncated but tells no continuation");
    size_t n = 0;
    struct slice reached = p->left_out;
    for (size_t i = 0; i < p->n; i++) {
        int r = finish_entry(p, &p->entries[i], e);
        if (r < 0)
            return r;
        if (slice_cmp(p->entries[i].key, reached) > 0)
            reached = p->entries[i].key;
        if (p->entries[i].key.n > 0) /* the marker of the prefix itself is no entry of it */
            p->entries[n++] = p->entries[i];
    }
    origin_order_entries(p->entries, &n, p->after);
    if (arena_left(p->arena) < n * sizeof(*p->entries) + SPARE_BYTES)
        return err_set(e, -ENOMEM, "the page needs more memory than the request has");
    struct origin_entry *entries = arena_alloc(p->arena, MAX(n, (size_t)1) * sizeof(*entries));
    if (n > 0)
        memcpy(entries, p->entries, n * sizeof(*entries));
    *ret = (struct origin_page){.entries = entries,
                                .n = n,
                                .reached = reached,
                                .truncated = p->truncated,
                                .next_token = p->truncated ? p->next_token : SLICE_NULL};
    return 0;
}

bool web_list_one(struct slice key, const struct origin_list *l, struct arena *a, struct origin_entry *ret)
{
    struct slice rest = slice_from(key, MIN(l->prefix.n, key.n));
    ssize_t folder = l->delimiter ? slice_find(rest, l->delimiter) : -1;
    struct slice name = folder < 0 ? key : slice_sub(key, 0, l->prefix.n + (size_t)folder + 1);
    if (!slice_starts(key, l->prefix) || l->token.n > 0 || (l->after.n > 0 && slice_cmp(name, l->after) <= 0))
        return false;
    *ret = (struct origin_entry){.key = arena_dup(a, name), .is_prefix = folder >= 0};
    return true;
}
