/*
 * Versions that follow one another by this mount's own doing. Where a change of mode, owner or time gives the
 * object another ETag (az://, and s3:// for what was uploaded in parts), the bytes are still those of the
 * version before: who knows the object by that one may go on with the later one. What anybody else has
 * written has no such step to it, and is never taken for one's own.
 *
 * Changes of one key come one after the other, so that each begins with what the one before has made. The
 * last VERSIONS_STEPS steps of all keys are known; whose step is forgotten finds another version, as when
 * somebody else had written, and looks the name up again.
 *
 * Threads: any; the lock is a leaf and is not held over a call to the node.
 */
#pragma once

#include "base/lock.h"
#include "base/slice.h"

#include <stdatomic.h>
#include <stdint.h>

#define VERSIONS_STEPS 256

/* A change that is under way; the caller's, between versions_begin and versions_end. */
struct version_change {
    struct version_change *next;
    uint64_t key_hash;
};

struct version_step {
    uint64_t key_hash; /* 0: none */
    char *from, *to;
};

struct versions {
    _Atomic uint64_t n_known; /* steps and changes under way: 0 needs no lock */
    struct lock lock;         /* covers what follows */
    struct cond ended;
    struct version_change *under_way;
    struct version_step steps[VERSIONS_STEPS];
    size_t n_steps; /* ever; the next one goes to n_steps % VERSIONS_STEPS */
};

void versions_init(struct versions *v);
void versions_fini(struct versions *v);

/* Waits for another change of that key. */
void versions_begin(struct versions *v, struct version_change *c, struct slice key);
/* `from` was changed and is `to` now; to empty: nothing was, or it is not known. */
void versions_end(struct versions *v, struct version_change *c, struct slice from, struct slice to);
/* What became of this version by our own changes, the caller's to free; NULL: nothing, as far as is known.
 * Waits for a change of the key, unless it is the caller's own. */
char *versions_now(struct versions *v, struct slice key, struct slice etag, const struct version_change *own);
