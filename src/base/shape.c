/*
 * Shaping (contract in shape.h).
 *
 * 1. A request goes only when none of its limits owes anything.
 * 2. Of those that may go: foreground first; then the smaller virtual time at the first level on which two
 * differ; then who came first.
 * 3. Virtual times and clocks never go back, but for the refund of an estimate.
 */
#include "base/shape.h"

#include <assert.h>

#define VIRTUAL_SCALE 256 /* virtual time of one unit of cost at weight 1 */

uint64_t shape_wait_ns(const struct shape_limit *l, uint64_t now_ns)
{
    return l->per_s == 0 || l->free_at_ns <= now_ns ? 0 : l->free_at_ns - now_ns;
}

void shape_charge(struct shape_limit *l, int64_t n, uint64_t now_ns)
{
    if (l->per_s == 0)
        return;
    uint64_t earliest = now_ns > SHAPE_BURST_NS ? now_ns - SHAPE_BURST_NS : 0;
    uint64_t from = MAX(l->free_at_ns, earliest);
    double ns = (double)(n < 0 ? -n : n) * 1e9 / (double)l->per_s;
    uint64_t step = ns < 9e18 ? (uint64_t)ns : (uint64_t)9e18;
    if (n < 0)
        l->free_at_ns = from > earliest + step ? from - step : earliest;
    else
        l->free_at_ns = from > UINT64_MAX - step ? UINT64_MAX : from + step;
}

void shape_limit_set(struct shape_limit *l, uint64_t per_s, uint64_t now_ns)
{
    if (l->per_s == per_s)
        return;
    double ns = per_s ? (double)shape_wait_ns(l, now_ns) * (double)l->per_s / (double)per_s : 0;
    l->free_at_ns = ns > 0 ? now_ns + (ns < 9e18 ? (uint64_t)ns : (uint64_t)9e18) : 0;
    l->per_s = per_s;
}

void shape_share_begin(struct shape_share *s, uint64_t clock)
{
    assert(s->weight > 0);
    uint64_t lag = s->active++ == 0 ? 0 : SHAPE_LAG_COST * VIRTUAL_SCALE / s->weight;
    s->virtual_time = MAX(s->virtual_time, clock - MIN(clock, lag));
}

void shape_share_end(struct shape_share *s)
{
    assert(s->active > 0);
    s->active--;
}

void shape_share_charge(struct shape_share *s, int64_t cost)
{
    uint64_t step = (uint64_t)(cost < 0 ? -cost : cost) * VIRTUAL_SCALE / s->weight;
    if (cost < 0)
        s->virtual_time -= MIN(step, s->virtual_time);
    else
        s->virtual_time += step;
}

uint64_t shape_longest_ns(const struct shape_request *r, uint64_t now_ns, size_t *ret_limit)
{
    uint64_t longest = 0;
    for (size_t i = 0; i < r->n_limits; i++) {
        uint64_t wait_ns = shape_wait_ns(r->limits[i], now_ns);
        if (wait_ns > longest) {
            longest = wait_ns;
            *ret_limit = i;
        }
    }
    return longest;
}

/* Whether x goes before y. */
static bool is_before(const struct shape_request *x, const struct shape_request *y)
{
    if (x->background != y->background)
        return y->background;
    for (size_t i = 0; i < SHAPE_LEVELS; i++)
        if (x->shares[i] != y->shares[i] && x->shares[i]->virtual_time != y->shares[i]->virtual_time)
            return x->shares[i]->virtual_time < y->shares[i]->virtual_time;
    return x->number < y->number;
}

ssize_t shape_pick(struct shape_request *const *waiting, size_t n, const struct shape_room *room,
                   uint64_t now_ns, uint64_t *ret_wait_ns)
{
    ssize_t best = -1;
    bool full = room->running >= room->slots;
    bool background_full = room->running_background >= MAX(room->slots / 2, 1u);
    *ret_wait_ns = UINT64_MAX;
    for (size_t i = 0; i < n && !full; i++) {
        size_t limit;
        uint64_t wait_ns = shape_longest_ns(waiting[i], now_ns, &limit);
        if (waiting[i]->background && background_full)
            continue;
        if (wait_ns > 0)
            *ret_wait_ns = MIN(*ret_wait_ns, wait_ns);
        else if (best < 0 || is_before(waiting[i], waiting[best]))
            best = (ssize_t)i;
    }
    return best;
}
