/*
 * The locks that this mount has on one file, as a list: pure, no lock is asked for here. A range is two
 * offsets, both included; UINT64_MAX is the end of the file, wherever that is. Locks of flock(2) have the
 * whole range.
 */
#pragma once

#include "base/macro.h"
#include "mount/kept.h"

/* A kept cell: it outlives the process that took the lock. */
struct tree_held {
    uint64_t ino;           /* of the file; set last, 0: half-made */
    struct tree_held *next; /* of the file's, in the process that serves now */
    uint64_t owner;         /* as the kernel gives it */
    uint32_t kind, type;    /* enum wire_lock_kind, wire_lock_type */
    uint64_t start, end;
    uint32_t pid;
    struct tree_handle *through; /* the open that it was asked through */
};

/* From here on the owner has this type in this range, WIRE_LOCK_NONE: nothing; elsewhere what it had. Takes
 * at most three cells before it gives any back, so that no lock is without one at any moment; there must be
 * so many (kept_has_room). */
void tree_held_set(struct kept *k, struct tree_held **list, const struct tree_held *x);
/* Whether a lock of the owner's would become two by that. */
bool tree_held_splits(const struct tree_held *list, const struct tree_held *x);
/* Whether one is in the way of the other. */
bool tree_held_conflicts(const struct tree_held *a, const struct tree_held *b);
/* How long one of this kind (enum wire_lock_kind) may take to go by itself. One of flock(2) ends with its
 * open, of whose close the kernel says nothing before RELEASE: a while, and longer when a descriptor of that
 * open was closed (FLUSH) since the lock was taken, is_closing. Those of an open (F_OFD_*) end so too, and
 * look like those of a process, which are gone by FLUSH; but a process that has inherited an open sends one
 * as well, and the lock stays. So that wait is shorter, yet long enough for a machine that has much to do;
 * and the next one is short for an open that has stayed, as a mapping or another process keeps it. */
uint64_t tree_held_grace_ms(uint32_t kind, bool is_closing, bool has_stayed);
