/*
 * A histogram of times with a bounded relative error, after the idea of HdrHistogram (Tene, 2012): each power
 * of two is cut into 128 equal parts, so that any value is known within 1/128, over the whole range of 64
 * bits and in constant memory. One thread at a time; threads keep one each and merge them.
 */
#pragma once

#include "base/macro.h"

#define HISTOGRAM_PARTS   128
#define HISTOGRAM_BUCKETS (58 * HISTOGRAM_PARTS)

struct histogram {
    uint64_t count, sum, min, max;
    uint64_t buckets[HISTOGRAM_BUCKETS];
};

/* Zeroes are an empty histogram. */
void histogram_add(struct histogram *h, uint64_t value);
void histogram_merge(struct histogram *h, const struct histogram *other);
/* The value below or at which a share `q` (0 to 1) of all values lies: the upper end of its part, and never
 * above the largest value. 0 when empty. */
uint64_t histogram_quantile(const struct histogram *h, double q);
double histogram_mean(const struct histogram *h);
