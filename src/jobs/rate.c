/*
 * The rate limit (contract in rate.h).
 *
 * The bucket is kept as the time at which it would be empty of debts: taking n bytes moves that time on by
 * n / rate. It never lies further back than RATE_BURST_NS, which is the burst that an idle job may save up.
 */
#include "jobs/rate.h"

uint64_t rate_take(struct rate *r, uint64_t n, uint64_t now_ns)
{
    if (r->bytes_per_s == 0)
        return 0;
    uint64_t earliest = now_ns > RATE_BURST_NS ? now_ns - RATE_BURST_NS : 0;
    uint64_t from = MAX(r->free_at_ns, earliest);
    r->free_at_ns = from + (uint64_t)((double)n * 1e9 / (double)r->bytes_per_s);
    return r->free_at_ns > now_ns ? r->free_at_ns - now_ns : 0;
}
