/* layer: base */
#include "base/histogram.h"

#include "base/hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define N 20000

static int compare_u64(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* Values of every magnitude: a quantile is not below the exact one, and at most 1/128 above it. */
static void quantiles_are_within_one_part(void **state)
{
    static struct histogram h;
    static uint64_t values[N];
    static const double shares[] = {0, 0.001, 0.01, 0.25, 0.5, 0.9, 0.99, 0.999, 1};
    memset(&h, 0, sizeof(h));
    for (size_t i = 0; i < N; i++) {
        values[i] = hash_mix(1, 2 * i) >> (hash_mix(1, 2 * i + 1) % 64);
        histogram_add(&h, values[i]);
    }
    qsort(values, N, sizeof(values[0]), compare_u64);
    for (size_t i = 0; i < ARRAY_SIZE(shares); i++) {
        size_t rank = (size_t)(shares[i] * N);
        rank += (double)rank < shares[i] * N;
        uint64_t exact = values[MAX(rank, (size_t)1) - 1], told = histogram_quantile(&h, shares[i]);
        assert_true(told >= exact && (double)told <= (double)exact * (1 + 1.0 / HISTOGRAM_PARTS));
    }
    assert_true(h.min == values[0] && h.max == values[N - 1] && h.count == N);
}

/* The ends of the range have buckets of their own inside the table, and small values are exact. */
static void the_whole_range_fits(void **state)
{
    static const uint64_t values[] = {0, 1, 127, 128, 255, 256, 257, UINT64_MAX - 1, UINT64_MAX};
    for (size_t i = 0; i < ARRAY_SIZE(values); i++) {
        static struct histogram h;
        memset(&h, 0, sizeof(h));
        histogram_add(&h, values[i]);
        assert_true(histogram_quantile(&h, 0.5) == values[i]);
        histogram_add(&h, values[i]);
        assert_true(histogram_quantile(&h, 1) == values[i]);
    }
}

/* Two merged are what one would have been; an empty one changes nothing and has no quantiles. */
static void merged_is_as_one(void **state)
{
    static struct histogram all, parts[2], empty;
    memset(&all, 0, sizeof(all));
    memset(parts, 0, sizeof(parts));
    for (size_t i = 0; i < 1000; i++) {
        uint64_t v = 1000000 + hash_mix(2, i) % 1000000;
        histogram_add(&all, v);
        histogram_add(&parts[i % 3 == 0], v);
    }
    histogram_merge(&parts[0], &parts[1]);
    histogram_merge(&parts[0], &empty);
    assert_memory_equal(&parts[0], &all, sizeof(all));
    assert_true(histogram_quantile(&empty, 0.5) == 0 && histogram_mean(&empty) == 0);
    histogram_merge(&empty, &all);
    assert_memory_equal(&empty, &all, sizeof(all));
    assert_true(histogram_mean(&all) > 1000000 && histogram_mean(&all) < 2000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantiles_are_within_one_part),
        cmocka_unit_test(the_whole_range_fits),
        cmocka_unit_test(merged_is_as_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
