/* layer: object */
/* Which look-ups bring bytes: of kinds of names that are opened next, and only those. */
#include "object/lookups.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define PLACE 7

static struct lookups *lookups;

static int setup(void **state)
{
    lookups = lookups_new();
    return 0;
}

static int teardown(void **state)
{
    lookups_free(lookups);
    return 0;
}

/* A name that was not used before, with a number for the '#' of the pattern. */
static struct slice next_name(const char *pattern, char ret[64])
{
    static unsigned n;
    const char *number = strchr(pattern, '#');
    int length = snprintf(ret, 64, "%.*s%u%s", (int)(number - pattern), pattern, n++, number + 1);
    return slice_of(ret, (size_t)length);
}

static void look_up(const char *pattern)
{
    char text[64];
    struct slice key = next_name(pattern, text);
    lookups_note(lookups, PLACE, key, /* is_small= */ true, lookups_expect_open(lookups, PLACE, key));
}

static void look_up_and_open(const char *pattern)
{
    char text[64];
    struct slice key = next_name(pattern, text);
    bool is_expected = lookups_expect_open(lookups, PLACE, key);
    lookups_note(lookups, PLACE, key, /* is_small= */ true, is_expected);
    assert_int_equal(lookups_opened(lookups, PLACE, key), is_expected);
}

static bool is_expected(const char *pattern)
{
    char text[64];
    return lookups_expect_open(lookups, PLACE, next_name(pattern, text));
}

/* How many have to be looked up and opened until it is believed. */
static unsigned until_expected(const char *pattern)
{
    unsigned n = 0;
    for (; !is_expected(pattern); n++)
        look_up_and_open(pattern);
    return n;
}

static void test_files_that_were_opened_are_expected_to_be(void **state)
{
    assert_false(is_expected("train/a/#.jpg"));
    for (unsigned i = 0; i < LOOKUPS_FIRST - 1; i++)
        look_up_and_open("train/a/#.jpg");
    assert_false(is_expected("train/a/#.jpg"));
    look_up_and_open("train/b/#.jpg");
    assert_true(is_expected("train/c/d/#.jpg"));
}

static void test_another_ending_directory_or_bucket_is_another_kind(void **state)
{
    (void)until_expected("train/#.jpg");
    assert_false(is_expected("train/#.json"));
    assert_false(is_expected("train/#"));
    assert_false(is_expected("train/x.jpg/#"));
    assert_false(is_expected("val/#.jpg"));
    assert_false(is_expected("train#.jpg"));
    assert_false(lookups_expect_open(lookups, PLACE + 1, SLICE_LIT("train/1.jpg")));
    assert_true(is_expected("train/#.jpg"));
}

static void test_names_that_are_only_looked_at_are_not_expected_to_be_opened(void **state)
{
    for (unsigned i = 0; i < 4 * LOOKUPS_WAITING; i++)
        look_up("train/#.jpg");
    assert_false(is_expected("train/#.jpg"));
    assert_int_equal(until_expected("train/#.jpg"), LOOKUPS_FIRST); /* nothing was asked for in vain */
}

/* How many of those that are only looked at are fetched before it is not believed any more. */
static unsigned fetched_in_vain(const char *pattern)
{
    unsigned n = 0;
    for (; is_expected(pattern); n++)
        look_up(pattern);
    return n;
}

static void test_each_time_that_it_was_wrong_it_takes_longer(void **state)
{
    unsigned wanted = LOOKUPS_FIRST;
    for (int i = 0; i < 20; i++) {
        assert_int_equal(until_expected("train/#.jpg"), wanted);
        assert_int_equal(fetched_in_vain("train/#.jpg"), LOOKUPS_WAITING);
        /* So many in a row make what was wrong before forgotten. */
        wanted = 2 * (wanted < LOOKUPS_MOST ? wanted : LOOKUPS_FIRST);
    }
}

static void test_many_that_are_under_way_at_once_are_no_reason_for_doubt(void **state)
{
    enum { AT_ONCE = LOOKUPS_WAITING / 2, ROUNDS = 100 };
    (void)until_expected("train/#.jpg");
    for (unsigned round = 0; round < ROUNDS; round++) {
        char names[AT_ONCE][64];
        struct slice keys[AT_ONCE];
        unsigned found = 0;
        for (unsigned i = 0; i < AT_ONCE; i++) {
            keys[i] = next_name("train/#.jpg", names[i]);
            lookups_note(lookups, PLACE, keys[i], /* is_small= */ true,
                         lookups_expect_open(lookups, PLACE, keys[i]));
        }
        for (unsigned i = 0; i < AT_ONCE; i++)
            found += lookups_opened(lookups, PLACE, keys[i]);
        assert_true(found > AT_ONCE * 9 / 10); /* a name may lose its place to another one */
    }
    assert_true(is_expected("train/#.jpg"));
}

static void look_up_and_open_large(const char *pattern)
{
    char text[64];
    struct slice key = next_name(pattern, text);
    lookups_note(lookups, PLACE, key, /* is_small= */ false, /* is_fetched= */ false);
    (void)lookups_opened(lookups, PLACE, key);
}

static void test_large_files_are_not_fetched_by_look_ups(void **state)
{
    for (unsigned i = 0; i < 4 * LOOKUPS_FIRST; i++)
        look_up_and_open_large("train/#.tar");
    assert_false(is_expected("train/#.tar"));
    for (unsigned i = 0; i < 4 * LOOKUPS_FIRST; i++) {
        look_up_and_open("train/#.tar");
        look_up_and_open_large("train/#.tar");
    }
    assert_false(is_expected("train/#.tar"));
}

static void test_a_large_file_among_many_small_ones_makes_no_difference(void **state)
{
    for (unsigned i = 0; i < 4 * LOOKUPS_FIRST; i++)
        look_up_and_open("train/#.jpg");
    look_up_and_open_large("train/#.jpg");
    assert_true(is_expected("train/#.jpg"));
}

static void test_an_open_counts_once_and_only_after_a_look_up(void **state)
{
    const struct slice key = SLICE_LIT("train/x.jpg");
    for (unsigned i = 0; i < 2 * LOOKUPS_FIRST; i++)
        assert_false(lookups_opened(lookups, PLACE, key));
    lookups_note(lookups, PLACE, key, /* is_small= */ true, /* is_fetched= */ true);
    assert_false(lookups_opened(lookups, PLACE + 1, key));
    assert_true(lookups_opened(lookups, PLACE, key));
    for (unsigned i = 0; i < 2 * LOOKUPS_FIRST; i++)
        assert_false(lookups_opened(lookups, PLACE, key));
    assert_false(lookups_expect_open(lookups, PLACE, key));
}

static void test_bytes_that_the_cache_does_not_take_are_not_asked_for_again(void **state)
{
    assert_int_equal(until_expected("train/#.jpg"), LOOKUPS_FIRST);
    lookups_doubt(lookups, PLACE, SLICE_LIT("train/x.jpg"));
    assert_false(is_expected("train/#.jpg"));
    assert_int_equal(until_expected("train/#.jpg"), 2 * LOOKUPS_FIRST);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_files_that_were_opened_are_expected_to_be, setup, teardown),
        cmocka_unit_test_setup_teardown(test_another_ending_directory_or_bucket_is_another_kind, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_names_that_are_only_looked_at_are_not_expected_to_be_opened,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_each_time_that_it_was_wrong_it_takes_longer, setup, teardown),
        cmocka_unit_test_setup_teardown(test_many_that_are_under_way_at_once_are_no_reason_for_doubt, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_large_files_are_not_fetched_by_look_ups, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_large_file_among_many_small_ones_makes_no_difference, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_an_open_counts_once_and_only_after_a_look_up, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bytes_that_the_cache_does_not_take_are_not_asked_for_again,
                                        setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
