/*
 * Looking for a moment whether a descriptor has something to read, before the thread sleeps until it has.
 *
 * A thread that sleeps gives its processor back, on a virtual machine to the host, and is not awake again for
 * 50 to 150 microseconds; a short answer takes 20. Who looks finds it at once. That pays only where the
 * answer is short, which a struct look learns: after each time that nothing came it is left out for twice as
 * long as before.
 *
 * It is done politely: the processor goes to whoever else wants it between two looks, at most half of the
 * processors' number of threads look at a time, and none where there is one processor only. A thread that
 * looks keeps its processor from being idle all the same, and only an idle one takes work over from another:
 * where as many others of one kind are at work, who would look sleeps instead (look_may_beside).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define LOOK_SKIPS_MAX 63 /* most times that are left out one after the other */

/* Of one descriptor, or of all of one kind of use; zero at first. Covered by what its user has. */
struct look {
    uint8_t skips; /* left out after the last failure */
    uint8_t left;  /* still to be left out */
};

/* The decision, pure: whether to look this time. */
bool look_is_due(struct look *l);
/* What came of it. */
void look_note(struct look *l, bool found);

/* Whether to look while `others` threads have short work to do for somebody who waits: fewer than half of the
 * processors. */
bool look_may_beside(unsigned others);

/* For this thread nobody waits: it never looks. */
void look_never(void);
/* Whether fd has something to read, or has ended, within 200 microseconds; false too when nobody looked. */
bool look_for(struct look *l, int fd);
