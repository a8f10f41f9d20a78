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
 * Failure modes: while an origin is away each request that waits for it asks about every 7 s once the budget
 * is spent, for as long as its bucket's `retry` says; so it does while answers are wrong, ten times at most.
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

/* The origin is there and does answer, but wrongly: that may last, and is not asked for ever. */
static bool is_answered(int code)
{
    return code == ERR_ORIGIN_FAILED || code == ERR_ORIGIN_SHORT || code == ERR_CONFLICT;
}

static uint64_t backoff_ms(const struct retry *r, bool budget_left, uint64_t random)
{
    if (!budget_left)
        return RETRY_LONGEST_MS / 2 + random % (RETRY_LONGEST_MS / 2 + 1);
    uint64_t longest = RETRY_LONGEST_MS;
    if (r->attempt < 16)
        longest = MIN(longest, (uint64_t)RETRY_FIRST_MS << r->attempt);
    return random % (longest + 1);
}

int64_t retry_delay_ms(const struct retry *r, int code, uint64_t now_ms, uint64_t deadline_ms,
                       uint64_t pause_ms, bool budget_left, uint64_t random)
{
    assert(r);
    if (!retry_is_transient(code) || (is_answered(code) && r->wrong >= RETRY_ATTEMPTS_MAX - 1))
        return -1;
    uint64_t delay = backoff_ms(r, budget_left, random);
    if (deadline_ms == 0)
        return (int64_t)(pause_ms + delay);
    if (now_ms >= deadline_ms || pause_ms >= deadline_ms - now_ms)
        return -1;
    uint64_t left = deadline_ms - now_ms - pause_ms;
    if (delay >= left) { /* what is left of the time has a last try, too, unless it is next to nothing */
        if (left < RETRY_LAST_MS)
            return -1;
        delay = left / 2 + random % (left / 2);
    }
    return (int64_t)(pause_ms + delay);
}

bool retry_gets_on(uint64_t bytes, uint64_t ms, uint64_t least_per_s)
{
    /* The next try comes no sooner, more or less. */
    double took_ms = (double)MAX(ms, (uint64_t)RETRY_FIRST_MS);
    return bytes > 0 && (double)bytes * 1000 >= (double)least_per_s * took_ms;
}

void retry_count(struct retry *r, int code)
{
    assert(r);
    r->attempt += r->attempt < UINT32_MAX;
    r->wrong += is_answered(code);
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
