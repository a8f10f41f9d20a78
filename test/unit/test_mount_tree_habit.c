/* layer: mount */
/* Where new files stay empty: believed only after many, and ever less willingly where it was wrong. */
#include "mount/tree_habit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DIR 7

static struct tree_habit *habit;

static int setup(void **state)
{
    habit = calloc(1, sizeof(*habit));
    assert_non_null(habit);
    tree_habit_init(habit);
    return 0;
}

static int teardown(void **state)
{
    tree_habit_fini(habit);
    free(habit);
    return 0;
}

static void close_empty(uint64_t dir, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        tree_habit_note(habit, dir, /* has_bytes= */ false, tree_habit_is_empty(habit, dir));
}

static void close_written(uint64_t dir)
{
    tree_habit_note(habit, dir, /* has_bytes= */ true, tree_habit_is_empty(habit, dir));
}

/* How many empty files it takes until it is believed. */
static unsigned until_believed(uint64_t dir)
{
    unsigned n = 0;
    for (; !tree_habit_is_empty(habit, dir); n++)
        close_empty(dir, 1);
    return n;
}

static void test_many_empty_files_are_a_habit(void **state)
{
    assert_false(tree_habit_is_empty(habit, DIR));
    close_empty(DIR, TREE_HABIT_FIRST - 1);
    assert_false(tree_habit_is_empty(habit, DIR));
    close_empty(DIR, 1);
    assert_true(tree_habit_is_empty(habit, DIR));
    assert_false(tree_habit_is_empty(habit, DIR + 1));
    assert_false(tree_habit_is_empty(habit, 0));
}

static void test_one_with_bytes_ends_it(void **state)
{
    close_empty(DIR, TREE_HABIT_FIRST - 1);
    close_written(DIR);
    assert_false(tree_habit_is_empty(habit, DIR));
    assert_int_equal(until_believed(DIR), TREE_HABIT_FIRST); /* it was not believed: nothing was lost */
}

/* Each time that it was believed and wrong it takes twice as many, and at last no more. */
static void test_who_was_wrong_is_slower_to_believe(void **state)
{
    unsigned wanted = TREE_HABIT_FIRST;
    for (int i = 0; i < 20; i++) {
        assert_int_equal(until_believed(DIR), wanted);
        close_written(DIR);
        assert_false(tree_habit_is_empty(habit, DIR));
        wanted = 2 * wanted < TREE_HABIT_MOST ? 2 * wanted : TREE_HABIT_MOST;
    }
    assert_int_equal(wanted, TREE_HABIT_MOST);
}

/* Files that were made before it was given up do not make it worse. */
static void test_what_was_not_believed_does_not_count_as_wrong(void **state)
{
    close_empty(DIR, TREE_HABIT_FIRST);
    tree_habit_note(habit, DIR, /* has_bytes= */ true, /* was_believed= */ false);
    assert_int_equal(until_believed(DIR), TREE_HABIT_FIRST);
}

/* Directories that share a place forget each other, and never believe for one another. */
static void test_directories_that_share_a_place(void **state)
{
    uint64_t other = 0;
    close_empty(DIR, TREE_HABIT_FIRST);
    for (uint64_t dir = DIR + 1; other == 0; dir++) {
        close_empty(dir, 1);
        if (!tree_habit_is_empty(habit, DIR))
            other = dir;
    }
    close_empty(other, TREE_HABIT_FIRST - 1);
    assert_true(tree_habit_is_empty(habit, other));
    assert_false(tree_habit_is_empty(habit, DIR));
    assert_int_equal(until_believed(DIR), TREE_HABIT_FIRST);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_many_empty_files_are_a_habit, setup, teardown),
        cmocka_unit_test_setup_teardown(test_one_with_bytes_ends_it, setup, teardown),
        cmocka_unit_test_setup_teardown(test_who_was_wrong_is_slower_to_believe, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_was_not_believed_does_not_count_as_wrong, setup, teardown),
        cmocka_unit_test_setup_teardown(test_directories_that_share_a_place, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
