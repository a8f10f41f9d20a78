/*
 * Versions that have another key and another ETag since this node has renamed a directory around them: an
 * origin renames by copies, and where an ETag does not come from the bytes alone the copy has one of its own.
 * A mount that asks for the rest of such a file by its new key and the ETag that it knows gets it.
 *
 * Noted is a copy of which it is known that it has the bytes of that version: the original still was the
 * version that had been looked at before it was copied when it was removed after that.
 *
 * The last MOVED_MAX steps are known, until the node ends: who asks later finds another version.
 *
 * Threads: any. The lock is a leaf.
 */
#pragma once

#include "base/lock.h"
#include "base/slice.h"

#include <stdint.h>

#define MOVED_MAX 16384 /* a directory may have 10,000 objects */

struct moved_step {
    uint64_t from, to; /* hashes of place and key; to 0: none */
    char *etag, *now;
};

struct moved {
    struct lock lock; /* covers what follows */
    uint64_t n;       /* ever; the next one goes to n % MOVED_MAX */
    struct moved_step *steps;
};

void moved_init(struct moved *m);
void moved_fini(struct moved *m);
/* place: of the bucket. What had this ETag under `from` is under `to` now, with the ETag `now`. */
void moved_note(struct moved *m, uint64_t place, struct slice from, struct slice etag, struct slice to,
                struct slice now);
/* The ETag that the version of this one has under a key to which it was moved, in however many steps; the
 * caller's to free. NULL: none was, as far as is known. */
char *moved_now(struct moved *m, uint64_t place, struct slice key, struct slice etag);
