/* What the files that see a scratch bucket as objects share: where a key is. */
#pragma once

#include "namespace/scratch_internal.h"

enum scratch_found {
    SCRATCH_FREE,   /* the directory is there, the name is not */
    SCRATCH_FOUND,  /* place.dir has place.name: d */
    SCRATCH_NO_DIR, /* place.name is a directory on the way that is not there */
    SCRATCH_CLASH,  /* place.name is on the way and is no directory */
};

struct scratch_walk {
    enum scratch_found found;
    struct scratch_place place;
    struct scratch_dirent d;
};

/* ---- scratch_place.c ---- */

/* -EINVAL, -ENAMETOOLONG. */
int scratch_check_key(struct slice key, struct err *e);
/* path: legal, without trailing '/'. */
int scratch_walk(struct scratch *s, uint64_t bucket, struct slice path, struct scratch_walk *ret,
                 struct err *e);
/* The same; makes the directories on the way. Never SCRATCH_NO_DIR. */
int scratch_place_make(struct scratch *s, const struct scratch_call *call, struct slice path,
                       struct scratch_walk *ret, struct err *e);
/* Removes implied directories on the way to `path` that have no entries, from below. Best effort: what stays
 * is not seen by keys. */
void scratch_prune(struct scratch *s, const struct scratch_call *call, struct slice path);
