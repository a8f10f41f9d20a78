/*
 * The ledger of quotas: what is reserved of each scratch bucket's quota for bytes that are about to be
 * written, beside what its files are known to have on disk (*settled*, which the namespace counts).
 *
 * A reservation is a *claim*. It belongs to whoever writes, an open handle, and ends with it, so that nothing
 * of it outlives a session; nor is anything of it on disk, so that a node begins with what is settled.
 *
 * Invariants:
 *  1. A claim is made smaller only after what became of it was counted as settled, so that settled and
 * reserved bytes together are never less than what the files have on disk.
 *  2. What is granted fits into the quota as it was at that moment. A quota that is lowered takes nothing
 * away.
 *
 * Threads: any; a claim is changed by one thread at a time, which its owner sees to.
 */
#pragma once

#include "base/err.h"

#define LEDGER_PIECE_BYTES (16 * MIB) /* for `ahead`: a piece that saves questions and holds back little */
#define LEDGER_HELD_SHARE  4          /* nothing is granted ahead while this share of the quota is reserved */

struct ledger;

/* Zero: nothing is reserved. */
struct ledger_claim {
    uint64_t bucket, bytes;
};

/* ---- decisions: pure ---- */

/* What of a quota is neither settled nor reserved. quota 0: UINT64_MAX. */
uint64_t ledger_left(uint64_t quota, int64_t settled, uint64_t reserved);
/* How much of what is left is granted: `want`, or all of it when there is less, and nothing when there is
 * less than `least`. Instead of `want` at most `ahead`, but no more than a quarter of what is left and a 64th
 * of the quota, so that what idle writers hold back stays small, and smaller towards the end. */
uint64_t ledger_piece(uint64_t quota, uint64_t left, uint64_t least, uint64_t want, uint64_t ahead);

/* ---- the table ---- */

struct ledger *ledger_new(void);
/* Claims that have not ended are forgotten. NULL accepted. */
void ledger_free(struct ledger *l);

struct ledger_ask {
    uint64_t bucket;             /* its id */
    uint64_t quota;              /* 0: none, everything is granted and noted */
    uint64_t least, want, ahead; /* ahead: at most, beyond which nothing is taken that is not wanted */
    /* What is settled of the bucket, asked under the ledger's lock, lest something becomes settled between
     * the two looks. Negative errors are passed on. */
    int (*settled)(void *arg, uint64_t bucket, int64_t *ret, struct err *e);
    void *arg;
};
/* Adds what is granted to the claim. -EDQUOT: `least` is more than is left; ret_granted untouched. */
int ledger_take(struct ledger *l, struct ledger_claim *c, const struct ledger_ask *ask, uint64_t *ret_granted,
                struct err *e);
/* So much of the claim is settled, or not wanted any more; at most all of it. */
void ledger_back(struct ledger *l, struct ledger_claim *c, uint64_t bytes);
void ledger_end(struct ledger *l, struct ledger_claim *c);
uint64_t ledger_reserved(struct ledger *l, uint64_t bucket);
