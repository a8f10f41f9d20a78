/* layer: mount */
/* How much memory a mount holds, and when something has to go. */
#include "mount/holdings.h"

#include "base/macro.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define M ((uint64_t)1048576)

/* Without a limit nothing is refused and nothing has to go. */
static void test_no_limit(void **state)
{
    (void)state;
    holdings_start(0, /* n_threads= */ 4);
    holdings_take(HOLDING_INODES, 1 << 30);
    assert_true(holdings_may(1 << 30));
    assert_int_equal(holdings_excess(), 0);
    assert_false(holdings_is_over());
    holdings_give(HOLDING_INODES, 1 << 30);
}

/* What can go has to from seven eighths of the limit on, down to three quarters, and refuses nobody; what
 * cannot is refused at fifteen sixteenths. */
static void test_limits(void **state)
{
    (void)state;
    holdings_start(160 * M, /* n_threads= */ 4);
    uint64_t base = holdings_of(HOLDING_BASE);
    assert_int_equal(base, HOLDINGS_BASE_BYTES + 4 * HOLDINGS_THREAD_BYTES);
    holdings_take(HOLDING_INODES, 140 * M - base - 1);
    assert_int_equal(holdings_excess(), 0);
    holdings_take(HOLDING_INODES, 1);
    assert_int_equal(holdings_excess(), 20 * M);
    holdings_take(HOLDING_NAMES, 20 * M);
    assert_false(holdings_is_over());
    holdings_take(HOLDING_NAMES, 1);
    assert_true(holdings_is_over());
    assert_true(holdings_may(150 * M - base));
    assert_false(holdings_may(150 * M - base + 1));
    holdings_take(HOLDING_FILES, M);
    assert_false(holdings_may(149 * M - base + 1));
    holdings_give(HOLDING_FILES, M);
    holdings_give(HOLDING_NAMES, 20 * M + 1);
    holdings_give(HOLDING_INODES, 140 * M - base);
    assert_int_equal(holdings_total(), base);
}

/* The default has room for the threads twice; the least has little more than that. */
static void test_defaults(void **state)
{
    (void)state;
    assert_int_equal(holdings_default(16), 512 * M);
    for (uint64_t n = 1; n <= 1024; n *= 2)
        assert_true(holdings_default(n) >= holdings_least(n));
    assert_true(holdings_default(1024) > 6000 * M);
    assert_int_equal(holdings_threads(0), 64);
    assert_int_equal(holdings_default(holdings_threads(0)), 512 * M);
    assert_int_equal(holdings_threads(512 * M), 64);
    assert_int_equal(holdings_threads(256 * M), 34);
    assert_int_equal(holdings_threads(96 * M), 8);
    assert_int_equal(holdings_threads(1), 4);
    for (uint64_t mib = 44; mib <= 2048; mib++)
        assert_true(holdings_least(holdings_threads(mib * M)) <= mib * M);
}

/* What malloc takes is never less than it was asked for, and the process itself is there. */
static void test_bytes(void **state)
{
    (void)state;
    for (size_t n = 0; n < 1000; n++)
        assert_true(holdings_chunk(n) >= MAX(n + 8, (size_t)32) && holdings_chunk(n) < n + 40);
    assert_true(holdings_resident() > M);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_limit),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
