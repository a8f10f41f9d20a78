/* layer: mount */
/* Whether a file is as it was when it was opened last. */
#include "mount/tree_seen.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define MS   1000000ll
#define TIME 1000000000000ll

/* As it was: the same size and time, seen long enough after that time. */
static void test_what_stays_is_the_same(void **state)
{
    (void)state;
    struct tree_seen seen = {0};
    assert_false(tree_seen_again(&seen, 7, 5, TIME, TIME + 1000 * MS));
    assert_true(tree_seen_again(&seen, 7, 5, TIME, TIME + 1001 * MS));
    assert_false(tree_seen_again(&seen, 7, 6, TIME, TIME + 1002 * MS));
    assert_false(tree_seen_again(&seen, 7, 6, TIME + 1, TIME + 1003 * MS));
    assert_false(tree_seen_again(&seen, 8, 6, TIME + 1, TIME + 1004 * MS));
    assert_true(tree_seen_again(&seen, 8, 6, TIME + 1, TIME + 1005 * MS));
}

/* What was looked at within a tick of its last change may have been changed since, without another time.
 * (Seen to fail when size and time alone are compared.) */
static void test_what_was_just_changed_is_not_believed(void **state)
{
    (void)state;
    for (int64_t after_ms = 0; after_ms <= 10; after_ms++) {
        struct tree_seen seen = {0};
        assert_false(tree_seen_again(&seen, 7, 5, TIME, TIME + after_ms * MS));
        assert_false(tree_seen_again(&seen, 7, 5, TIME, TIME + 100 * MS)); /* rewritten in that tick */
        assert_true(tree_seen_again(&seen, 7, 5, TIME, TIME + 200 * MS));
    }
}

/* A time that lies ahead, of before the clock was set back, comes again. */
static void test_a_time_that_lies_ahead_is_not_believed(void **state)
{
    (void)state;
    struct tree_seen seen = {0};
    assert_false(tree_seen_again(&seen, 7, 5, TIME, TIME - 1000 * MS));
    assert_false(tree_seen_again(&seen, 7, 5, TIME, TIME - 900 * MS));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_stays_is_the_same),
        cmocka_unit_test(test_what_was_just_changed_is_not_believed),
        cmocka_unit_test(test_a_time_that_lies_ahead_is_not_believed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
