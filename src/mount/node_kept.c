/*
 * Nodes in kept memory (contract in node_kept.h).
 *
 * Invariants:
 *  1. A cell with its magic is whole, and so are the texts that it leads to.
 *  2. A text is led to by one cell; after a sweep every text is.
 */
#include "mount/node_kept.h"

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

#define NODE_KEPT_MAGIC 0x6e6b6570u
#define TEXT_BYTES      (KEPT_CELL_BYTES - 2 * sizeof(void *))

struct node_kept_text {
    struct node_kept_text *next;
    bool is_used; /* by a sweep */
    char bytes[TEXT_BYTES];
};

static_assert(sizeof(struct node_kept) <= KEPT_CELL_BYTES, "fits into a cell");
static_assert(sizeof(struct node_kept_text) <= KEPT_CELL_BYTES, "fits into a cell");

/* ---- name and ETag, one after the other, over the cell and its texts ---- */

struct cursor {
    char *at;
    size_t left;
    struct node_kept_text *next;
};

static void copy_in(struct cursor *c, struct slice from)
{
    while (from.n > 0) {
        if (c->left == 0) {
            assert(c->next);
            *c = (struct cursor){.at = c->next->bytes, .left = TEXT_BYTES, .next = c->next->next};
        }
        size_t n = MIN(from.n, c->left);
        memcpy(c->at, from.p, n);
        c->at += n;
        c->left -= n;
        from = slice_from(from, n);
    }
}

static char *copy_out(struct cursor *c, size_t n)
{
    char *p = malloc(n + 1);
    if (!p)
        abort();
    for (size_t done = 0; done < n;) {
        if (c->left == 0) {
            assert(c->next);
            *c = (struct cursor){.at = c->next->bytes, .left = TEXT_BYTES, .next = c->next->next};
        }
        size_t part = MIN(n - done, c->left);
        memcpy(p + done, c->at, part);
        c->at += part;
        c->left -= part;
        done += part;
    }
    p[n] = '\0';
    return p;
}

static void free_texts(struct kept *k, struct node_kept_text *x)
{
    while (x) {
        struct node_kept_text *next = x->next;
        kept_give(k, x);
        x = next;
    }
}

static bool has_room(struct kept *k, bool is_needed)
{
    return is_needed ? kept_has_room(k) : kept_has_plenty(k);
}

/* Room for n bytes beyond the cell's own. false: there is none. */
static bool take_texts(struct kept *k, size_t n, bool is_needed, struct node_kept_text **ret)
{
    *ret = NULL;
    for (size_t have = 0; have < n; have += TEXT_BYTES) {
        struct node_kept_text *x = has_room(k, is_needed) ? kept_take(k, KEPT_TEXT) : NULL;
        if (!x) {
            free_texts(k, TAKE_PTR(*ret));
            return false;
        }
        x->next = *ret;
        *ret = x;
    }
    return true;
}

/* ---- cells ---- */

struct node_kept *node_kept_new(struct kept *k, const struct node_kept_facts *x, bool is_needed)
{
    struct node_kept_text *more;
    size_t n = x->name.n + x->etag.n;
    if (x->name.n > UINT16_MAX || x->etag.n > UINT16_MAX ||
        !take_texts(k, n > NODE_KEPT_TEXT_BYTES ? n - NODE_KEPT_TEXT_BYTES : 0, is_needed, &more))
        return NULL;
    struct node_kept *c = has_room(k, is_needed) ? kept_take(k, KEPT_NODE) : NULL;
    if (!c) {
        free_texts(k, more);
        return NULL;
    }
    c->name_n = (uint16_t)x->name.n;
    c->etag_n = (uint16_t)x->etag.n;
    c->id = x->id;
    c->parent_id = x->parent_id;
    c->ino = x->ino;
    c->size_bytes = x->size_bytes;
    c->mtime_ns = x->mtime_ns;
    c->moved_by = x->moved_by;
    c->lookups = x->lookups;
    c->serial = atomic_fetch_add(&kept_facts(k)->node_serial, 1);
    c->is_dir = x->is_dir;
    c->is_attached = x->is_attached;
    c->is_unlinked = x->is_unlinked;
    c->has_owner = x->has_owner;
    c->mode = x->mode;
    c->uid = x->uid;
    c->gid = x->gid;
    c->more = more;
    struct cursor to = {.at = c->text, .left = NODE_KEPT_TEXT_BYTES, .next = more};
    copy_in(&to, x->name);
    copy_in(&to, x->etag);
    atomic_signal_fence(memory_order_seq_cst);
    c->magic = NODE_KEPT_MAGIC;
    return c;
}

void node_kept_free(struct kept *k, struct node_kept *c)
{
    if (!c)
        return;
    assert(c->magic == NODE_KEPT_MAGIC);
    struct node_kept_text *more = c->more;
    c->magic = 0;
    atomic_signal_fence(memory_order_seq_cst);
    kept_give(k, c);
    free_texts(k, more);
}

void node_kept_text(const struct node_kept *c, char **ret_name, char **ret_etag)
{
    assert(c->magic == NODE_KEPT_MAGIC);
    struct cursor from = {.at = (char *)(uintptr_t)c->text, .left = NODE_KEPT_TEXT_BYTES, .next = c->more};
    *ret_name = copy_out(&from, c->name_n);
    *ret_etag = copy_out(&from, c->etag_n);
}

/* ---- after a kill ---- */

struct by_id {
    struct node_kept **places;
    size_t n; /* a power of two */
};

/* Puts the cell into its place; what stays out of it, an older cell of the same node, is returned. */
static struct node_kept *place(struct by_id *t, struct node_kept *c)
{
    size_t i = hash_mix(c->id, 0) & (t->n - 1);
    while (t->places[i] && t->places[i]->id != c->id)
        i = (i + 1) & (t->n - 1);
    struct node_kept *other = t->places[i];
    bool is_newer = !other || c->serial > other->serial;
    if (is_newer)
        t->places[i] = c;
    return is_newer ? other : c;
}

static void sweep_cells(struct kept *k)
{
    size_t n = 0;
    struct by_id t = {.n = 1};
    for (void *c = NULL; (c = kept_next(k, KEPT_NODE, c));)
        n++;
    while (t.n < 2 * n + 2)
        t.n *= 2;
    t.places = calloc(t.n, sizeof(t.places[0]));
    if (!t.places)
        abort();
    for (struct node_kept *c = NULL, *next = kept_next(k, KEPT_NODE, NULL); (c = next);) {
        next = kept_next(k, KEPT_NODE, c);
        struct node_kept *old = c->magic == NODE_KEPT_MAGIC ? place(&t, c) : c;
        if (old)
            kept_give(k, old); /* its texts: see below */
    }
    free(t.places);
}

void node_kept_sweep(struct kept *k)
{
    sweep_cells(k);
    for (struct node_kept_text *x = NULL; (x = kept_next(k, KEPT_TEXT, x));)
        x->is_used = false;
    for (struct node_kept *c = NULL; (c = kept_next(k, KEPT_NODE, c));)
        for (struct node_kept_text *x = c->more; x; x = x->next)
            x->is_used = true;
    for (struct node_kept_text *x = NULL, *next = kept_next(k, KEPT_TEXT, NULL); (x = next);) {
        next = kept_next(k, KEPT_TEXT, x);
        if (!x->is_used)
            kept_give(k, x);
    }
}
