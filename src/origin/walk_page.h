/*
 * The page of a listing that a walk over directories fills in byte order of whole keys. Pure; one thread.
 */
#pragma once

#include "base/arena.h"
#include "origin/origin.h"

struct walk_page {
    struct arena *arena;
    struct slice prefix, after; /* after: the larger of `after` and the token */
    char delimiter;
    size_t n, max;
    bool truncated;
    bool tells_unfit; /* names that no key can have */
    struct origin_entry *entries;
};

/* For what is asked for, and at most max entries. -ENOMEM. */
int walk_page_init(struct walk_page *p, const struct origin_list *l, size_t max, struct arena *a,
                   struct err *e);
/* Whether the page may have keys that begin with `dir`. */
bool walk_page_may_have(const struct walk_page *p, struct slice dir);
/*
 * Tells the next key that the walk comes to; where it has the delimiter behind the prefix it is cut there, to
 * a common prefix. Gives 0 and the entry, whose attributes are the caller's to fill in unless it is a prefix;
 * 0 and NULL for what lies before the page or was told already; 1 when the page is full; -ENOMEM when the
 * arena has no room for the key and attr_bytes of attributes.
 */
int walk_page_add(struct walk_page *p, struct slice key, bool is_prefix, size_t attr_bytes,
                  struct origin_entry **ret, struct err *e);
/* Tells the name, of which the key is how it begins (origin.h): as walk_page_add. */
int walk_page_add_unfit(struct walk_page *p, struct slice key, struct err *e);
/* A truncated page goes on behind its last key. */
void walk_page_end(const struct walk_page *p, struct origin_page *ret);
