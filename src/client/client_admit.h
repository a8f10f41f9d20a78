/*
 * Which files a library keeps open where there are more than it may keep: the decision, pure.
 *
 * A training reads each file of its data set once per epoch, in an order that is another one each time. Who
 * closes what was not used for longest then closes what comes next: of 20,000 files 18,976 kept give 80 hits
 * in a hundred, and all the closing and opening in between. A set that stays gives 95. So what is kept
 * stays, unless there is proof that it is not used as often as what would come in its place:
 *
 * 1. Between two uses of one file every other one of the same data set is used at most twice: once before the
 * epoch ends and once after the next begins. What is used a third time since the oldest of the kept files was
 * used takes its place. So a set of files that fits is kept whole from the end of its third epoch on,
 * whatever was kept before, however large.
 * 2. A kept file that never came back has proved nothing: what was never seen before takes its place. So what
 * is read once and never again keeps no place from what is read next.
 *
 * What was seen of files that are not kept is remembered in a table of a few times as many places as files
 * may be kept, where one mostly stays before another takes its place: what was seen of a part helps, of each
 * a little nobody.
 *
 * Time is counted in uses. No locks: covered by what its user has.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct client_admit;

/* Of the kept files the one that was not used for longest. */
struct client_admit_kept {
    uint64_t key;
    uint64_t used;     /* when it was used last */
    bool has_returned; /* used again after it was kept */
};

/* For at most `max` kept files. Never NULL. */
struct client_admit *client_admit_new(uint32_t max);
void client_admit_free(struct client_admit *a); /* NULL accepted */
/* All that was seen is forgotten. */
void client_admit_forget(struct client_admit *a);

/* `key`, a hash of a file that is not kept, was used at `now`, later than it was before. true: it is to be
 * kept in the place of `oldest`. Uses of one file right after each other are to be told as one. */
bool client_admit_use(struct client_admit *a, uint64_t key, uint64_t now, struct client_admit_kept oldest);
