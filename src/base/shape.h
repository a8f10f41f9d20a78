/*
 * Shaping: who may go next, and when. Limits on rates, and fair shares by weight among those who wait. Pure:
 * time is an argument, nothing waits here.
 *
 * A *limit* is a token bucket, kept as the time at which its debts are paid. It is paid afterwards: a request
 * may begin when nothing is owed, and what it took is charged when that is known (or estimated before, and
 * corrected). So a large request is not cut into pieces; the ones behind it wait longer.
 *
 * *Shares* are start-time fair queueing (Goyal, Vin, Cheng: "Start-Time Fair Queueing", SIGCOMM 1996), in a
 * tree: each level compares virtual times among siblings, and cost / weight moves a virtual time on. Whoever
 * was idle begins at the clock of its siblings, and who waits for something else (a limit of its own, a slow
 * origin) is at most SHAPE_LAG_COST behind it: unused shares are not saved up.
 */
#pragma once

#include "base/macro.h"

#include <sys/types.h>

#define SHAPE_LEVELS     3
#define SHAPE_LIMITS_MAX 8
#define SHAPE_BURST_NS   ((uint64_t)100000000) /* what an idle limit may save up */
#define SHAPE_WEIGHT_ONE 100                   /* the share of who has none of its own */
#define SHAPE_LAG_COST   ((uint64_t)16 << 20)  /* what a share that is never quite idle may save up */

struct shape_limit {
    uint64_t per_s;      /* 0: no limit */
    uint64_t free_at_ns; /* when all that was taken is paid */
};

/* 0: a request may begin; else how long it has to wait. */
uint64_t shape_wait_ns(const struct shape_limit *l, uint64_t now_ns);
/* Takes n; a negative n gives back what was charged too much. */
void shape_charge(struct shape_limit *l, int64_t n, uint64_t now_ns);

/* Another rate from now on: what is owed stays owed in what was taken, not in time. Where nothing was limited
 * nothing is owed. */
void shape_limit_set(struct shape_limit *l, uint64_t per_s, uint64_t now_ns);

/* One that has a share among its siblings, and the clock of its children. */
struct shape_share {
    uint32_t weight; /* at least 1 */
    unsigned active; /* requests that wait or run */
    uint64_t virtual_time, children_clock;
};

/* A request of this share begins to wait; *clock is its parent's. */
void shape_share_begin(struct shape_share *s, uint64_t clock);
void shape_share_end(struct shape_share *s);
/* A request of it goes, or turned out to cost more or less. */
void shape_share_charge(struct shape_share *s, int64_t cost);

/* A request that waits. */
struct shape_request {
    bool background; /* behind all that are not */
    uint64_t number; /* rises: among equals the first one goes first */
    struct shape_limit *limits[SHAPE_LIMITS_MAX];
    size_t n_limits;
    struct shape_share *shares[SHAPE_LEVELS]; /* from the root on */
};

/* How many run. Background ones take at most half of the slots. */
struct shape_room {
    unsigned slots, running, running_background;
};

/* Which of the waiting may go now: its place, or -1. *ret_wait_ns, with -1: look again after that time, or
 * when one of those that run has ended (UINT64_MAX: only then). */
ssize_t shape_pick(struct shape_request *const *waiting, size_t n, const struct shape_room *room,
                   uint64_t now_ns, uint64_t *ret_wait_ns);
/* The longest wait of a request's limits, and which of them it is. */
uint64_t shape_longest_ns(const struct shape_request *r, uint64_t now_ns, size_t *ret_limit);
