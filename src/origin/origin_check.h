/*
 * Tries what an origin can: one request after another, told in words, with the time each took.
 */
#pragma once

#include "base/buf.h"
#include "origin/origin.h"

/* OK: works. NO: does not, and the text says what follows. FAILED: should work, and the text says what to
 * fix. SKIPPED: not tried, because something before it failed or nothing may be written. */
#define ORIGIN_CHECK_STATES(X)                                                                               \
    X(OK, "ok")                                                                                              \
    X(NO, "no")                                                                                              \
    X(FAILED, "failed")                                                                                      \
    X(SKIPPED, "skipped")

enum origin_check_state {
#define X(name, text) ORIGIN_CHECK_##name,
    ORIGIN_CHECK_STATES(X)
#undef X
};

/* "ok", "no", ... */
const char *origin_check_state_text(enum origin_check_state s);

/*
 * Appends a line for each thing tried to `b`: "NAME\tSTATE\tMICROSECONDS\tTEXT\n"; texts have no tabs and no
 * line ends. Objects are written below ".forebay-check-RANDOM/" only and removed again; with read_only
 * nothing is written. Blocks for as long as the requests do, a dozen of them and one of some megabytes. 0, or
 * -E2BIG when `b` is too small.
 */
int origin_check(struct origin *o, bool read_only, struct buf *b);
