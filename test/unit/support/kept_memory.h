/* Fixture of the tests of memory that outlives a mount's process (mount/kept.h), and processes that come and
 * go over it. */
#pragma once

#include "mount/kept.h"

#include <stddef.h>

/* Of cmocka: *state is a struct kept. */
int kept_memory_setup(void **state);
int kept_memory_teardown(void **state);

/* How many cells of a kind there are. */
size_t kept_memory_count(struct kept *k, enum kept_kind kind);

/* Runs fn(k) in a process of its own, which ends then without freeing anything, and waits for it. Aborts when
 * it does not end well. */
void kept_memory_in_child(struct kept *k, void (*fn)(struct kept *k));
