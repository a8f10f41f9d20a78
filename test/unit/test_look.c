/* layer: base */
/* Looking before sleeping: what is there is found, what does not come is looked for ever more rarely. */
#include "base/look.h"

#include "base/sys.h"

#include <limits.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

static void test_after_each_failure_twice_as_many_are_left_out(void **state)
{
    static const unsigned skipped[] = {0, 1, 3, 7, 15, 31, 63, 63};
    struct look l = {0};
    for (size_t i = 0; i < ARRAY_SIZE(skipped); i++) {
        unsigned n = 0;
        while (!look_is_due(&l))
            n++;
        assert_int_equal(n, skipped[i]);
        look_note(&l, /* found= */ false);
    }
}

static void test_what_was_found_is_looked_for_again_at_once(void **state)
{
    struct look l = {0};
    for (int i = 0; i < 5; i++)
        look_note(&l, /* found= */ false);
    assert_false(look_is_due(&l));
    look_note(&l, /* found= */ true);
    assert_true(look_is_due(&l));
    assert_true(look_is_due(&l));
}

/* Where there is one processor nobody looks, and every answer is false. */
static void test_only_what_can_be_read_is_found(void **state)
{
    struct look l = {0};
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    assert_false(look_for(&l, fds[0]));
    bool looked = l.left > 0;
    l = (struct look){0};
    assert_int_equal(write(fds[1], "x", 1), 1);
    assert_int_equal(look_for(&l, fds[0]), looked);
    assert_int_equal(l.left, 0);
    (void)close(fds[0]);
    (void)close(fds[1]);
}

/* Others that are at work as many as half of the processors would find none of them free. */
static void test_beside_enough_others_nobody_looks(void **state)
{
    cpu_set_t cpus;
    assert_int_equal(sched_getaffinity(0, sizeof(cpus), &cpus), 0);
    unsigned half = (unsigned)CPU_COUNT(&cpus) / 2;
    for (unsigned others = 0; others < half + 3; others++)
        assert_int_equal(look_may_beside(others), others < half);
    assert_false(look_may_beside(UINT_MAX));
}

static void test_an_end_is_found_too(void **state)
{
    struct look probe = {0}, l = {0};
    int fds[2], silent[2];
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(pipe(silent), 0);
    (void)look_for(&probe, silent[0]);
    (void)close(fds[1]);
    assert_int_equal(look_for(&l, fds[0]), probe.left > 0);
    (void)close(fds[0]);
    (void)close(silent[0]);
    (void)close(silent[1]);
}

/* A clock that stands still, as tests have it. */
static uint64_t no_time(void)
{
    return 1;
}

static void test_a_look_ends_even_when_the_clock_does_not_go_on(void **state)
{
    struct sys still = *sys;
    struct look l = {0};
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    still.mono_ns = no_time;
    const struct sys *before = sys;
    sys = &still;
    assert_false(look_for(&l, fds[0]));
    sys = before;
    (void)close(fds[0]);
    (void)close(fds[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_after_each_failure_twice_as_many_are_left_out),
        cmocka_unit_test(test_what_was_found_is_looked_for_again_at_once),
        cmocka_unit_test(test_only_what_can_be_read_is_found),
        cmocka_unit_test(test_beside_enough_others_nobody_looks),
        cmocka_unit_test(test_an_end_is_found_too),
        cmocka_unit_test(test_a_look_ends_even_when_the_clock_does_not_go_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
