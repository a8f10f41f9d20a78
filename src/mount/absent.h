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

void absent_note(struct absent *a, uint64_t parent_id, struct slice name);
/* Calls `each` with those that were noted since the last call, without a lock. false: there were more. */
bool absent_take(struct absent *a, void (*each)(void *arg, uint64_t parent_id, struct slice name), void *arg);
