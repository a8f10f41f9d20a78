/* Times with a bounded relative error; contract in histogram.h. */
#include "base/histogram.h"

/* Values below 2 * PARTS have a bucket each; above, the leading eight bits of a value and their place choose
 * it. */
static size_t bucket_of(uint64_t value)
{
    if (value < 2 * HISTOGRAM_PARTS)
        return (size_t)value;
    unsigned shift = 63 - (unsigned)__builtin_clzll(value) - 7;
    return (size_t)shift * HISTOGRAM_PARTS + (size_t)(value >> shift);
}

/* Largest value of a bucket. */
static uint64_t top_of(size_t bucket)
{
    if (bucket < 2 * HISTOGRAM_PARTS)
        return bucket;
    unsigned shift = (unsigned)(bucket / HISTOGRAM_PARTS) - 1;
    uint64_t lead = bucket - (size_t)shift * HISTOGRAM_PARTS;
    return ((lead + 1) << shift) - 1;
}

void histogram_add(struct histogram *h, uint64_t value)
{
    h->min = h->count ? MIN(h->min, value) : value;
    h->max = MAX(h->max, value);
    h->sum += value;
    h->count++;
    h->buckets[bucket_of(value)]++;
}

void histogram_merge(struct histogram *h, const struct histogram *other)
{
    if (other->count == 0)
        return;
    h->min = h->count ? MIN(h->min, other->min) : other->min;
    h->max = MAX(h->max, other->max);
    h->sum += other->sum;
    h->count += other->count;
    for (size_t i = 0; i < HISTOGRAM_BUCKETS; i++)
        h->buckets[i] += other->buckets[i];
}

uint64_t histogram_quantile(const struct histogram *h, double q)
{
    assert(q >= 0 && q <= 1);
    uint64_t seen = 0, rank = (uint64_t)(q * (double)h->count);
    if (h->count == 0)
        return 0;
    rank = MIN(MAX((double)rank < q * (double)h->count ? rank + 1 : rank, (uint64_t)1), h->count);
    for (size_t i = 0; i < HISTOGRAM_BUCKETS; i++) {
        seen += h->buckets[i];
        if (seen >= rank)
            return MAX(MIN(top_of(i), h->max), h->min);
    }
    return h->max;
}

double histogram_mean(const struct histogram *h)
{
    return h->count ? (double)h->sum / (double)h->count : 0;
}
