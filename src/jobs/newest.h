/*
 * Which entries below a prefix changed last: objects, or folders with all they hold. Pure: a walk in byte
 * order goes in, at most `n` entries come out.
 */
#pragma once

#include "base/option.h"

struct newest;

/* n: at most 100, not 0. */
struct newest *newest_new(uint64_t n, size_t prefix_bytes);
void newest_free(struct newest *w);
DEFINE_CLEANUP(struct newest, newest_free)
/* The next object of the walk; its key begins with the prefix. The prefix itself as a key is no entry. */
void newest_add(struct newest *w, struct slice key, uint64_t size_bytes, uint64_t mtime_ns);
/* After the last one: the chosen entries, keys or prefixes that end with '/', appended to `ret` with control
 * characters and '%' percent-encoded, as a line of a record must be; and how many objects and bytes they are.
 * Of entries that changed at the same time the later key wins. */
void newest_end(struct newest *w, struct option_list *ret, uint64_t *ret_objects, uint64_t *ret_bytes);
/* Whether the key is one of the chosen entries or lies below one. */
bool newest_holds(const struct option_list *chosen, struct slice key);
/* The same, of names that stand there as they are. */
bool newest_holds_plain(const struct option_list *chosen, struct slice key);
