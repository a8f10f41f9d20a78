/*
 * The locks that this mount has on one file, as a list: pure, no lock is asked for here. A range is two
 * offsets, both included; UINT64_MAX is the end of the file, wherever that is. Locks of flock(2) have the
 * whole range.
 */
#pragma once

#include "base/macro.h"

struct tree_held {
    struct tree_held *next;
    uint64_t owner;      /* as the kernel gives it */
    uint32_t kind, type; /* enum wire_lock_kind, wire_lock_type */
    uint64_t start, end;
    uint32_t pid;
    const void *through; /* the open that it was asked through */
};

/* From here on the owner has this type in this range, WIRE_LOCK_NONE: nothing; elsewhere what it had. */
void tree_held_set(struct tree_held **list, const struct tree_held *x);
/* Whether one is in the way of the other. */
bool tree_held_conflicts(const struct tree_held *a, const struct tree_held *b);
