/*
 * Which directories get files that stay empty. A new file is opened with its data file, so that the kernel
 * can write it by passthrough: that costs the node and the mount a third of what creating takes, for nothing
 * when it is closed as empty as it was made (marks, locks, markers of what is done). Where the last files of
 * a directory all were, the next one gets its data when it is first written: through the mount's process,
 * which is slower, and so a directory where that was wrong must show longer that it was not meant so.
 *
 * All functions may be called by any thread.
 */
#pragma once

#include "base/lock.h"

#include <stdbool.h>
#include <stdint.h>

#define TREE_HABIT_FIRST  16   /* files that stayed empty, one after the other, before it is believed */
#define TREE_HABIT_MOST   4096 /* the same after it was wrong several times */
#define TREE_HABIT_PLACES 1024 /* a directory takes the place of another one with its hash */

/* Zero-initialised but for the lock. */
struct tree_habit {
    struct lock lock; /* covers what follows */
    struct {
        uint64_t dir;     /* 0: of nobody */
        uint32_t n_empty; /* since the last one that was written */
        uint32_t wanted;  /* so many before it is believed */
    } places[TREE_HABIT_PLACES];
};

void tree_habit_init(struct tree_habit *h);
void tree_habit_fini(struct tree_habit *h);
/* Whether the next file that is made in the directory is likely to be closed without bytes. */
bool tree_habit_is_empty(struct tree_habit *h, uint64_t dir);
/* A file that was made there was closed. was_believed: it had no data when it was made. */
void tree_habit_note(struct tree_habit *h, uint64_t dir, bool has_bytes, bool was_believed);
