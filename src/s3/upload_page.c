/*
 * Pages of listings of uploads (contract in upload_page.h).
 *
 * 1. A common prefix comes once, among the keys where it belongs, and a page that begins behind it, be it at
 * one of its keys, leaves all its keys out.
 * 2. What is dropped from a page that is full lies behind everything that stays.
 */
#include "s3/upload_page.h"

void upload_page_init(struct upload_page *p)
{
    p->n = 0;
    p->truncated = false;
    p->v = calloc(p->max + 1, sizeof p->v[0]);
    if (!p->v)
        abort();
    if (p->key_marker.n == 0)
        p->id_marker = SLICE_NULL;
}

void upload_page_fini(struct upload_page *p)
{
    for (size_t i = 0; i < p->n; i++)
        free((void *)(uintptr_t)p->v[i].name.p);
    free(p->v);
    p->v = NULL;
    p->n = 0;
}

static int compare(const struct upload_page_entry *e, struct slice name, const char *id)
{
    int order = slice_cmp(e->name, name);

    return order ? order : strcmp(e->id, id);
}

static bool is_behind_marker(const struct upload_page *p, struct slice key, const char *id)
{
    int order = slice_cmp(key, p->key_marker);

    return order > 0 || (order == 0 && p->id_marker.n && slice_cmp(slice_str(id), p->id_marker) > 0);
}

/* The common prefix that a key belongs to; empty for none. */
static struct slice common_prefix(const struct upload_page *p, struct slice key)
{
    ssize_t at = p->delimiter.n ? slice_find_slice(slice_from(key, p->prefix.n), p->delimiter) : -1;

    return at < 0 ? SLICE_NULL : slice_sub(key, 0, p->prefix.n + (size_t)at + p->delimiter.n);
}

void upload_page_add(struct upload_page *p, struct slice key, const char *id, uint64_t created_ns)
{
    struct slice name = key, common;
    size_t from = 0, to = p->n;

    if (!slice_starts(key, p->prefix) || !is_behind_marker(p, key, id))
        return;
    common = common_prefix(p, key);
    if (common.n) {
        if (slice_cmp(common, p->key_marker) <= 0)
            return;
        name = common;
        id = "";
        created_ns = 0;
    }
    while (from < to) {
        size_t middle = from + (to - from) / 2;

        if (compare(&p->v[middle], name, id) < 0)
            from = middle + 1;
        else
            to = middle;
    }
    if (from < p->n && compare(&p->v[from], name, id) == 0)
        return;
    p->truncated = p->truncated || p->n == p->max;
    if (from == p->max)
        return;
    if (p->n == p->max)
        free((void *)(uintptr_t)p->v[--p->n].name.p);
    memmove(&p->v[from + 1], &p->v[from], (p->n++ - from) * sizeof p->v[0]);
    p->v[from] =
        (struct upload_page_entry){.name = slice_of(slice_dup(name), name.n), .created_ns = created_ns};
    (void)snprintf(p->v[from].id, sizeof p->v[from].id, "%s", id);
}
