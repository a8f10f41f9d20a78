/*
 * Pages of a listing between who lists and who walks over them: what was listed to be counted is not listed
 * again for the walk. One puts, one takes.
 */
#pragma once

#include "base/slice.h"

struct pages;

/* So much waits at most; a page that does not fit ends what the walk can have. */
struct pages *pages_new(size_t max_bytes);
/* Nobody puts or takes any more. */
void pages_free(struct pages *p);
DEFINE_CLEANUP(struct pages, pages_free)
/* The next page; `after` it the listing goes on, unless it is the last. Copies both. */
void pages_put(struct pages *p, struct slice page, struct slice after, bool last);
/* No page comes any more: the listing is at its end, was stopped, or failed. */
void pages_end(struct pages *p);

struct page {
    struct page *next;
    size_t page_n, after_n;
    bool last;
    char bytes[]; /* the page, and behind it `after` */
};

/* What comes of a walk that takes. */
enum pages_took {
    PAGES_ONE,   /* *ret, the taker's, to be freed */
    PAGES_ALONE, /* the next one did not fit: the taker lists from here on by itself */
    PAGES_END,   /* nothing comes */
};
/* Whether the next pages_take does not wait; waits for that so long. */
bool pages_wait(struct pages *p, uint64_t timeout_ns);
/* Waits until a page is there or none will come. */
enum pages_took pages_take(struct pages *p, struct page **ret);
