/*
 * Decisions about trying again. Pure: time and randomness are arguments; the budget alone is shared between
 * threads and is one atomic number.
 *
 * Sources: "full jitter" is from the AWS Architecture Blog, "Exponential Backoff And Jitter" (2015); a budget
 * that successes refill is what gRPC's retry throttling (gRFC A6) describes; additive increase with
 * multiplicative decrease is Chiu and Jain (1989), and the doubling before the first decrease is TCP's slow
 * start (RFC 5681).
 *
 * Invariants:
 *  1. 0 <= budget <= max at all times.
 *  2. floor <= limit <= ceiling at all times.
 *  3. A wait is never longer than what the origin asked for and RETRY_LONGEST_MS.
 *
 * Failure modes: none.
 */
#include "origin/origin.h"

#define BUDGET_TENTHS_PER_TOKEN 10
#define CUT_INTERVAL_MS         1000

bool retry_is_transient(int code)
{
    switch (code) {
    case ERR_ORIGIN_BUSY:
    case ERR_ORIGIN_DOWN:
    case ERR_ORIGIN_FAILED:
    case ERR_ORIGIN_SHORT:
    case ERR_CONFLICT:
    case -ETIMEDOUT:
        return true;
    default:
        return false;
    }
}

int64_t retry_delay_ms(const struct retry *r, int code, uint64_t now_ms, uint64_t deadline_ms,
                       uint64_t pause_ms, bool budget_left, uint64_t random)
{
    assert(r);
    if (!retry_is_transient(code) || !budget_left || r->attempt + 1 >= RETRY_ATTEMPTS_MAX)
        return -1;
    uint64_t longest = RETRY_LONGEST_MS;
    if (r->attempt < 16)
        longest = MIN(longest, (uint64_t)RETRY_FIRST_MS << r->attempt);
    uint64_t delay = pause_ms + random % (longest + 1);
    if (deadline_ms != 0 && (now_ms >= deadline_ms || delay >= deadline_ms - now_ms))
        return -1;
    return (int64_t)delay;
}

void retry_budget_init(struct retry_budget *b, int64_t max_tokens)
{
    assert(b && max_tokens >= 0 && max_tokens <= INT64_MAX / BUDGET_TENTHS_PER_TOKEN);
    b->max_tenths = max_tokens * BUDGET_TENTHS_PER_TOKEN;
    atomic_init(&b->tenths, b->max_tenths);
}

bool retry_budget_take(struct retry_budget *b)
{
    assert(b);
    int64_t have = atomic_load_explicit(&b->tenths, memory_order_relaxed);
    while (have >= BUDGET_TENTHS_PER_TOKEN) {
        if (atomic_compare_exchange_weak(&b->tenths, &have, have - BUDGET_TENTHS_PER_TOKEN))
            return true;
    }
    return false;
}

void retry_budget_earn(struct retry_budget *b)
{
    assert(b);
    int64_t have = atomic_load_explicit(&b->tenths, memory_order_relaxed);
    while (have < b->max_tenths) {
        if (atomic_compare_exchange_weak(&b->tenths, &have, have + 1))
            return;
    }
}

void concurrency_init(struct concurrency *c, double start, double floor, double ceiling)
{
    assert(c && floor >= 1 && floor <= ceiling);
    *c = (struct concurrency){
        .limit = MIN(MAX(start, floor), ceiling), .floor = floor, .ceiling = ceiling, .last_cut_ms = 0};
}

void concurrency_on_success(struct concurrency *c)
{
    assert(c && c->limit >= c->floor);
    /* A round is `limit` successes: it doubles the limit until the first failure, and adds one after it. */
    double step = c->last_cut_ms == 0 ? 1 : 1 / c->limit;
    c->limit = MIN(c->ceiling, c->limit + step);
}

void concurrency_on_failure(struct concurrency *c, int code, uint64_t now_ms)
{
    assert(c && c->limit <= c->ceiling);
    if (!retry_is_transient(code))
        return;
    if (c->last_cut_ms != 0 && now_ms < c->last_cut_ms + CUT_INTERVAL_MS)
        return;
    c->last_cut_ms = MAX(now_ms, (uint64_t)1); /* 0 means never */
    c->limit = MAX(c->floor, c->limit * (code == ERR_ORIGIN_BUSY ? 0.5 : 0.9));
}
