/*
 * Names that the kernel was told are not there: it believes that for the mount's attribute timeout, and has
 * nothing of them by which they could be found otherwise. The last ones are remembered, so that it can be
 * told to ask again for each when any name may have changed.
 *
 * All functions may be called by any thread.
 */
#pragma once

#include "base/slice.h"

#include <stdbool.h>
#include <stdint.h>

#define ABSENT_MAX 1024

struct absent;

struct absent *absent_new(void); /* never NULL */
void absent_free(struct absent *a);

/* until_ms: on the clock that does not jump, when it is no longer believed. */
void absent_note(struct absent *a, uint64_t parent_id, struct slice name, uint64_t until_ms);
/* Calls `each` with the last that were noted since the last call, without a lock. false: others, of which
 * there was no room, are still believed. */
bool absent_take(struct absent *a, uint64_t now_ms,
                 void (*each)(void *arg, uint64_t parent_id, struct slice name), void *arg);
