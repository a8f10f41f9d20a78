/* layer: object */
/* The oldest that make up so many bytes: enough of them, and none that is younger than one that stays. */
#include "object/ages.h"

#include "base/hash.h"
#include "base/macro.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define N 3000

struct thing {
    uint64_t age_ms, bytes;
};

static int older_first(const void *a, const void *b)
{
    const struct thing *x = a, *y = b;
    return x->age_ms < y->age_ms ? 1 : -(x->age_ms > y->age_ms);
}

static uint64_t border(const struct thing *v, size_t n, uint64_t excess)
{
    struct ages a = {0};
    for (size_t i = 0; i < n; i++)
        ages_add(&a, v[i].age_ms, v[i].bytes);
    ages_divide(&a, excess);
    for (size_t i = 0; i < n; i++)
        ages_add(&a, v[i].age_ms, v[i].bytes);
    return ages_from_ms(&a, excess);
}

static uint64_t bytes_from(const struct thing *v, size_t n, uint64_t from_ms)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += v[i].age_ms >= from_ms ? v[i].bytes : 0;
    return sum;
}

/* Ages up to a second are told apart to the millisecond, years to a thousandth. */
static void test_enough_goes_and_hardly_more(void **state)
{
    static struct thing v[N];
    for (unsigned magnitude = 1; magnitude < 50; magnitude++) {
        uint64_t all = 0;
        for (size_t i = 0; i < N; i++) {
            v[i].age_ms = hash_mix(magnitude, i) >> (63 - magnitude);
            v[i].bytes = 1 + hash_mix(i, magnitude) % 1000;
            all += v[i].bytes;
        }
        qsort(v, N, sizeof(v[0]), older_first);
        for (unsigned share = 1; share < 100; share += 7) {
            uint64_t excess = all / 100 * share, sum = 0, from_ms = border(v, N, excess);
            size_t i = 0;
            while (sum < excess)
                sum += v[i++].bytes;
            uint64_t exact_ms = v[i - 1].age_ms;
            assert_true(bytes_from(v, N, from_ms) >= excess);
            assert_true(from_ms <= exact_ms);
            assert_true(exact_ms - from_ms <= MAX(exact_ms / 1000, (uint64_t)1));
        }
    }
}

static void test_what_was_read_a_moment_later_stays(void **state)
{
    const struct thing v[] = {{1040, 100}, {1030, 100}, {1026, 100}, {1025, 100}};
    assert_int_equal(border(v, ARRAY_SIZE(v), 100), 1040);
    assert_int_equal(border(v, ARRAY_SIZE(v), 101), 1030);
    assert_int_equal(border(v, ARRAY_SIZE(v), 300), 1026);
}

static void test_all_go_when_all_are_not_enough(void **state)
{
    const struct thing v[] = {{0, 100}, {5, 100}, {UINT64_MAX, 100}};
    assert_int_equal(border(v, ARRAY_SIZE(v), 1000), 0);
    assert_int_equal(bytes_from(v, ARRAY_SIZE(v), border(v, ARRAY_SIZE(v), 300)), 300);
}

static void test_nothing_goes_when_nothing_has_to(void **state)
{
    const struct thing v[] = {{0, 100}, {1u << 30, 100}};
    assert_int_equal(border(v, ARRAY_SIZE(v), 0), UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_enough_goes_and_hardly_more),
        cmocka_unit_test(test_what_was_read_a_moment_later_stays),
        cmocka_unit_test(test_all_go_when_all_are_not_enough),
        cmocka_unit_test(test_nothing_goes_when_nothing_has_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
