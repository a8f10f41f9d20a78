/*
 * Which names that a mount looks up are opened next. An open of a file that nobody has listed is two
 * questions for the kernel, what there is by that name and what is in it, and would be two round trips to the
 * origin. Where such files were opened when they had been looked up, the first answer can bring the bytes,
 * too; where they are only looked at, it should not, nor where they are so large that it would bring just a
 * part of them, for which others would wait.
 *
 * Counted is by kind: the bucket, the first directory of the key, and how the name ends (.jpg), so that what
 * is learnt of some directories of a data set holds for all.
 *
 * Threads: any. The lock is a leaf; an open of a name that nobody looked up takes none.
 */
#pragma once

#include "base/lock.h"
#include "base/slice.h"

#include <stdint.h>

#define LOOKUPS_FIRST   8   /* so many have to be opened before it is believed of a kind */
#define LOOKUPS_WAITING 256 /* and no more, once so many were looked up and not opened */
#define LOOKUPS_MOST                                                                                         \
    1024 /* the most of those; after so many that it was right what was wrong before is forgotten */
#define LOOKUPS_KINDS 256  /* one takes the place of another with its hash */
#define LOOKUPS_NAMES 4096 /* likewise: a name that loses its place counts as not opened */

struct lookups_kind {
    uint64_t hash; /* 0: of nobody */
    uint32_t n_opened, n_waiting, wanted;
};

struct lookups_name {
    _Atomic uint64_t hash; /* 0: of nobody */
    uint64_t kind;
    bool is_small, is_fetched;
};

/* Zero-initialised but for the lock. */
struct lookups {
    struct lock lock; /* covers what follows */
    struct lookups_kind kinds[LOOKUPS_KINDS];
    struct lookups_name names[LOOKUPS_NAMES];
};

struct lookups *lookups_new(void);
void lookups_free(struct lookups *l); /* NULL is ignored */

/* Whether a file by that name, of the bucket with this place, is likely to be opened when it was looked up.
 */
bool lookups_expect_open(struct lookups *l, uint64_t place, struct slice key);
/* The origin was asked for it and has it. is_small: one request would bring all of it, which that for a range
 * does not of an empty file. is_fetched: its bytes were asked for, too. */
void lookups_note(struct lookups *l, uint64_t place, struct slice key, bool is_small, bool is_fetched);
/* It is opened. Whether it was looked up before, which counts once, and its bytes were asked for then. */
bool lookups_opened(struct lookups *l, uint64_t place, struct slice key);
/* Asking for its bytes was of no use: as if so many of its kind had not been opened. */
void lookups_doubt(struct lookups *l, uint64_t place, struct slice key);
