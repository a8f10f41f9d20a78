/*
 * Pages of walks (contract in walk_page.h).
 *
 * Invariants:
 *  1. Entries are in byte order, each begins with the prefix and is after `after` and the token.
 *  2. A truncated page has entries.
 */
#include "origin/walk_page.h"

#define TOO_SMALL "the page needs more memory than the request has"

int walk_page_init(struct walk_page *p, const struct origin_list *l, size_t max, struct arena *a,
                   struct err *e)
{
    *p = (struct walk_page){
        .arena = a, .prefix = l->prefix, .delimiter = l->delimiter, .tells_unfit = l->unfit};
    p->after = slice_cmp(l->after, l->token) > 0 ? l->after : l->token;
    p->max = l->max == 0 ? max : MIN(l->max, max);
    if (arena_left(a) < p->max * sizeof(struct origin_entry) + 64)
        return err_set(e, -ENOMEM, TOO_SMALL);
    p->entries = arena_alloc(a, p->max * sizeof(struct origin_entry));
    return 0;
}

bool walk_page_may_have(const struct walk_page *p, struct slice dir)
{
    size_t n = MIN(dir.n, p->prefix.n);
    if (n > 0 && memcmp(dir.p, p->prefix.p, n) != 0)
        return false;
    return slice_cmp(dir, p->after) > 0 || slice_starts(p->after, dir);
}

int walk_page_add(struct walk_page *p, struct slice key, bool is_prefix, size_t attr_bytes,
                  struct origin_entry **ret, struct err *e)
{
    if (p->delimiter && !is_prefix) {
        ssize_t at = slice_find(slice_from(key, p->prefix.n), p->delimiter);
        if (at >= 0) {
            key = slice_sub(key, 0, p->prefix.n + (size_t)at + 1);
            is_prefix = true;
        }
    }
    *ret = NULL;
    struct slice last = p->n ? p->entries[p->n - 1].key : p->after;
    if (slice_cmp(key, last) <= 0)
        return 0; /* a common prefix that was told already */
    if (p->n == p->max) {
        p->truncated = true;
        return 1;
    }
    if (arena_left(p->arena) < key.n + attr_bytes + 64)
        return err_set(e, -ENOMEM, TOO_SMALL);
    *ret = &p->entries[p->n++];
    **ret = (struct origin_entry){.key = arena_dup(p->arena, key), .is_prefix = is_prefix};
    return 0;
}

int walk_page_add_unfit(struct walk_page *p, struct slice key, struct err *e)
{
    struct origin_entry *x = NULL;
    assert(key.n <= ORIGIN_KEY_MAX_BYTES);
    if (!p->tells_unfit || !slice_starts(key, p->prefix) || slice_cmp(key, p->after) <= 0)
        return 0;
    int r = walk_page_add(p, key, /* is_prefix= */ false, sizeof(ORIGIN_ETAG_UNFIT), &x, e);
    if (r == 0 && x && !x->is_prefix)
        x->attr.etag = arena_dup(p->arena, SLICE_LIT(ORIGIN_ETAG_UNFIT));
    return r;
}

void walk_page_end(const struct walk_page *p, struct origin_page *ret)
{
    *ret = (struct origin_page){.entries = p->entries,
                                .n = p->n,
                                .truncated = p->truncated,
                                .next_token = p->truncated ? p->entries[p->n - 1].key : SLICE_NULL};
}
