/* layer: mount */
/* What a mount knows of directories: true whatever happens in between, and given up rather than guessed. */
#include "mount/tree_known.h"

#include "base/sys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>

#include <cmocka.h>

#define DIR  7
#define MANY 200000

static struct tree_known *known;

static int setup(void **state)
{
    known = tree_known_new();
    return 0;
}

static int teardown(void **state)
{
    tree_known_free(known);
    return 0;
}

static struct wire_inode directory(uint64_t ino, int64_t at_ns)
{
    return (struct wire_inode){.ino = ino,
                               .mode = S_IFDIR | 0755,
                               .links = 2,
                               .mtime_ns = at_ns,
                               .ctime_ns = at_ns,
                               .birth_ns = at_ns};
}

static struct wire_inode file(int64_t at_ns)
{
    return (struct wire_inode){.ino = 99, .mode = S_IFREG | 0644, .links = 1, .birth_ns = at_ns};
}

static void make_directory(uint64_t ino)
{
    struct wire_inode x = directory(ino, 100);
    tree_known_made(known, &x, tree_known_serial(known, 0));
}

static void note(uint64_t ino, int64_t at_ns)
{
    struct wire_inode x = directory(ino, at_ns);
    tree_known_note(known, &x, tree_known_serial(known, ino));
}

static void create(uint64_t dir, const char *name, int64_t at_ns)
{
    struct tree_change c;
    struct wire_inode x = file(at_ns);
    tree_known_begin(known, dir, slice_str(name), &c);
    tree_known_end(known, &c, &x);
}

static bool lacks(uint64_t dir, const char *name)
{
    return tree_known_lacks(known, dir, slice_str(name));
}

static bool knows_attr(uint64_t dir)
{
    struct wire_inode x;
    double left_s;
    return tree_known_attr(known, dir, &x, &left_s);
}

/* ---- names ---- */

static void test_a_new_directory_lacks_every_name_but_those_that_were_made(void **state)
{
    make_directory(DIR);
    assert_true(lacks(DIR, "a"));
    create(DIR, "a", 101);
    assert_false(lacks(DIR, "a"));
    assert_true(lacks(DIR, "b"));
}

static void test_of_a_directory_that_was_only_seen_no_name_is_known_to_be_absent(void **state)
{
    note(DIR, 100);
    assert_true(knows_attr(DIR));
    assert_false(lacks(DIR, "a"));
}

static void test_a_name_that_is_being_made_may_be_there_already(void **state)
{
    struct tree_change c;
    make_directory(DIR);
    tree_known_begin(known, DIR, SLICE_LIT("a"), &c);
    assert_false(lacks(DIR, "a"));
    tree_known_end(known, &c, NULL); /* it is not known whether it was made */
    assert_false(lacks(DIR, "a"));
}

static void test_nothing_is_known_after_somebody_else_changed_something(void **state)
{
    make_directory(DIR);
    tree_known_forget(known);
    assert_false(lacks(DIR, "a"));
    assert_false(knows_attr(DIR));
}

static void test_a_directory_that_was_made_while_somebody_else_changed_something_is_not_known(void **state)
{
    struct wire_inode x = directory(DIR, 100);
    uint64_t serial = tree_known_serial(known, 0);
    tree_known_forget(known);
    tree_known_made(known, &x, serial);
    assert_false(lacks(DIR, "a"));
    assert_false(knows_attr(DIR));
}

static void test_many_names_in_one_directory_are_all_remembered(void **state)
{
    char name[32];
    make_directory(DIR);
    for (int i = 0; i < MANY; i++) {
        (void)snprintf(name, sizeof(name), "f%d", i);
        assert_true(lacks(DIR, name));
        create(DIR, name, 101 + i);
    }
    for (int i = 0; i < MANY; i++) {
        (void)snprintf(name, sizeof(name), "f%d", i);
        assert_false(lacks(DIR, name));
    }
    assert_true(lacks(DIR, "other"));
}

static void test_a_directory_that_outgrows_the_memory_is_asked_about(void **state)
{
    char name[32];
    make_directory(DIR);
    for (int i = 0; i < 2 * MANY; i++) {
        (void)snprintf(name, sizeof(name), "f%d", i);
        create(DIR, name, 101 + i);
        assert_false(lacks(DIR, name));
    }
    assert_false(lacks(DIR, "other"));
    make_directory(DIR + 1); /* its room can be used again */
    create(DIR + 1, "a", 500);
    assert_true(lacks(DIR + 1, "other"));
}

static void test_directories_that_were_not_used_for_long_are_asked_about_first(void **state)
{
    char name[32];
    for (uint64_t dir = DIR; dir <= DIR + 2; dir++) {
        make_directory(dir);
        create(dir, "a", 101);
    }
    for (int i = 0; i < 2 * MANY; i++) {
        uint64_t dir = i < MANY ? DIR : DIR + 1;
        (void)snprintf(name, sizeof(name), "f%d", i);
        create(dir, name, 101 + i);
        assert_false(lacks(dir, name));
        assert_true(lacks(DIR + 2, "b")); /* is used all the time */
    }
    assert_false(lacks(DIR, "other"));
    assert_true(lacks(DIR + 1, "other"));
    assert_false(lacks(DIR + 2, "a"));
}

static void test_hundreds_of_directories_are_all_known(void **state)
{
    for (uint64_t ino = 2; ino < 300; ino++)
        make_directory(ino);
    for (uint64_t ino = 2; ino < 300; ino++) {
        create(ino, "a", 101);
        assert_false(lacks(ino, "a"));
        assert_true(lacks(ino, "b"));
        assert_true(knows_attr(ino));
    }
}

static void test_directories_that_share_a_place_are_never_mixed_up(void **state)
{
    for (uint64_t ino = 2; ino < 5000; ino++) {
        make_directory(ino);
        create(ino, "a", 101);
        assert_false(lacks(ino, "a"));
    }
    unsigned n_known = 0;
    for (uint64_t ino = 2; ino < 5000; ino++) {
        assert_false(lacks(ino, "a"));
        struct wire_inode x;
        double left_s;
        if (tree_known_attr(known, ino, &x, &left_s))
            assert_int_equal(x.ino, ino);
        n_known += lacks(ino, "b");
    }
    assert_true(n_known > 100);
}

/* ---- single names that are absent ---- */

static void test_a_name_that_the_node_said_is_absent_is_known_to_be(void **state)
{
    tree_known_note_absent(known, DIR, SLICE_LIT("a"), tree_known_serial(known, DIR));
    assert_true(lacks(DIR, "a"));
    assert_false(lacks(DIR, "b"));
    assert_false(lacks(DIR + 1, "a"));
    create(DIR, "a", 100);
    assert_false(lacks(DIR, "a"));
}

static void test_a_name_is_not_absent_while_it_is_being_made(void **state)
{
    struct tree_change c;
    tree_known_note_absent(known, DIR, SLICE_LIT("a"), tree_known_serial(known, DIR));
    tree_known_begin(known, DIR, SLICE_LIT("a"), &c);
    assert_false(lacks(DIR, "a"));
    tree_known_note_absent(known, DIR, SLICE_LIT("a"), tree_known_serial(known, DIR));
    assert_false(lacks(DIR, "a"));
    tree_known_end(known, &c, NULL);
    assert_false(lacks(DIR, "a"));
}

static void test_an_answer_of_before_a_change_is_not_believed(void **state)
{
    uint64_t serial = tree_known_serial(known, DIR);
    create(DIR, "b", 100);
    tree_known_note_absent(known, DIR, SLICE_LIT("a"), serial);
    assert_false(lacks(DIR, "a"));
}

static void remove_name(uint64_t dir, const char *name)
{
    struct tree_change c;
    tree_known_begin(known, dir, SLICE_NULL, &c);
    tree_known_end_gone(known, &c, slice_str(name), /* changed_ns= */ 0);
}

static void test_a_removed_name_is_absent(void **state)
{
    create(DIR, "a", 100);
    remove_name(DIR, "a");
    assert_true(lacks(DIR, "a"));
    make_directory(DIR + 1);
    create(DIR + 1, "a", 100);
    remove_name(DIR + 1, "a");
    assert_true(lacks(DIR + 1, "a"));
    create(DIR + 1, "a", 101);
    assert_false(lacks(DIR + 1, "a"));
}

static void test_what_is_made_beside_a_removal_may_be_there(void **state)
{
    struct tree_change gone, made;
    struct wire_inode x = file(101);
    tree_known_begin(known, DIR, SLICE_NULL, &gone);
    tree_known_begin(known, DIR, SLICE_LIT("a"), &made);
    tree_known_end(known, &made, &x);
    tree_known_end_gone(known, &gone, SLICE_LIT("a"), /* changed_ns= */ 0);
    assert_false(lacks(DIR, "a"));
    tree_known_begin(known, DIR, SLICE_LIT("a"), &made);
    tree_known_begin(known, DIR, SLICE_NULL, &gone);
    tree_known_end_gone(known, &gone, SLICE_LIT("a"), /* changed_ns= */ 0);
    assert_false(lacks(DIR, "a"));
    tree_known_end(known, &made, &x);
    assert_false(lacks(DIR, "a"));
}

static void rename_name(uint64_t from_dir, const char *from_name, uint64_t to_dir, const char *to_name,
                        bool is_disturbed)
{
    struct tree_change from, to;
    tree_known_begin(known, from_dir, slice_str(from_name), &from);
    if (is_disturbed)
        create(from_dir, "other", 300);
    tree_known_begin(known, to_dir, slice_str(to_name), &to);
    tree_known_end_moved(known, &from, slice_str(from_name), &to, /* changed_ns= */ 200);
}

static void test_a_renamed_name_is_absent(void **state)
{
    for (uint64_t to = DIR; to < DIR + 2000; to++) { /* some share a lane with the first */
        create(DIR, "a", 100);
        rename_name(DIR, "a", to, "b", /* is_disturbed= */ false);
        assert_true(lacks(DIR, "a"));
        assert_false(lacks(to, "b"));
        create(DIR, "a", 100);
        rename_name(DIR, "a", to, "b", /* is_disturbed= */ true);
        assert_false(lacks(DIR, "a"));
    }
}

static void test_absent_names_are_forgotten_when_somebody_else_changes_something(void **state)
{
    remove_name(DIR, "a");
    tree_known_forget(known);
    assert_false(lacks(DIR, "a"));
    struct tree_change c;
    tree_known_begin(known, DIR, SLICE_NULL, &c);
    tree_known_forget(known);
    tree_known_end_gone(known, &c, SLICE_LIT("a"), /* changed_ns= */ 0);
    assert_false(lacks(DIR, "a"));
}

/* ---- attributes ---- */

static int64_t mtime_of(uint64_t dir)
{
    struct wire_inode x = {0};
    double left_s;
    if (!tree_known_attr(known, dir, &x, &left_s))
        return 0;
    assert_int_equal(x.ctime_ns, x.mtime_ns);
    assert_int_equal(x.links, 2);
    return x.mtime_ns;
}

static void test_a_file_that_is_removed_moves_the_times_of_its_directory(void **state)
{
    struct tree_change c, d;
    struct wire_inode other = file(250);
    note(DIR, 100);
    tree_known_begin(known, DIR, SLICE_NULL, &c);
    assert_int_equal(mtime_of(DIR), 0);
    tree_known_end_gone(known, &c, SLICE_LIT("a"), /* changed_ns= */ 200);
    assert_int_equal(mtime_of(DIR), 200);
    tree_known_begin(known, DIR, SLICE_NULL, &c);
    tree_known_end_gone(known, &c, SLICE_LIT("b"), /* changed_ns= */ 0); /* the node did not say */
    assert_int_equal(mtime_of(DIR), 0);
    note(DIR, 300);
    tree_known_begin(known, DIR, SLICE_LIT("other"), &d);
    tree_known_begin(known, DIR, SLICE_NULL, &c);
    tree_known_end_gone(known, &c, SLICE_LIT("c"), /* changed_ns= */ 400); /* which of both was last? */
    tree_known_end(known, &d, &other);
    assert_int_equal(mtime_of(DIR), 0);
}

static void test_a_rename_moves_the_times_of_both_directories(void **state)
{
    for (uint64_t to = DIR; to < DIR + 2000; to++) { /* one directory, then two, of which some share a lane */
        note(DIR, 100);
        note(to, 100);
        rename_name(DIR, "a", to, "b", /* is_disturbed= */ false);
        assert_int_equal(mtime_of(DIR), 200);
        assert_int_equal(mtime_of(to), 200);
        note(DIR, 100);
        rename_name(DIR, "a", to, "b", /* is_disturbed= */ true);
        assert_int_equal(mtime_of(DIR), 0);
    }
}

static uint64_t a_minute_later(void)
{
    return sys_real.mono_ns() + 61000000000ull;
}

static void test_attributes_are_asked_for_again_after_a_minute(void **state)
{
    struct sys later = sys_real;
    later.mono_ns = a_minute_later;
    make_directory(DIR);
    create(DIR, "a", 101);
    assert_true(knows_attr(DIR));
    sys = &later;
    create(DIR, "b", 102);
    bool is_known = knows_attr(DIR);
    sys = &sys_real;
    assert_false(is_known);
}

static uint64_t half_a_minute_later(void)
{
    return sys_real.mono_ns() + 30000000000ull;
}

/* What is passed on is believed no longer than the node's answer may be. */
static void test_attributes_that_are_passed_on_end_with_their_minute(void **state)
{
    struct sys later = sys_real;
    struct wire_inode x;
    double left_s = 0;
    later.mono_ns = half_a_minute_later;
    note(DIR, 100);
    sys = &later;
    bool is_known = tree_known_attr(known, DIR, &x, &left_s);
    sys = &sys_real;
    assert_true(!is_known || left_s <= 30); /* not known: half a minute has passed before it was asked */
}

static void test_a_file_that_is_made_moves_the_times_of_its_directory(void **state)
{
    struct wire_inode x;
    double left_s;
    note(DIR, 100);
    create(DIR, "a", 200);
    assert_true(tree_known_attr(known, DIR, &x, &left_s));
    assert_int_equal(x.mtime_ns, 200);
    assert_int_equal(x.ctime_ns, 200);
    assert_int_equal(x.birth_ns, 100);
    assert_int_equal(x.links, 2);
}

static void test_a_directory_that_is_made_is_a_link_to_the_one_above(void **state)
{
    struct tree_change c;
    struct wire_inode below = directory(DIR + 1, 200), x;
    double left_s;
    note(DIR, 100);
    tree_known_begin(known, DIR, SLICE_LIT("below"), &c);
    tree_known_end(known, &c, &below);
    assert_true(tree_known_attr(known, DIR, &x, &left_s));
    assert_int_equal(x.links, 3);
}

static void test_attributes_are_not_known_while_a_change_is_under_way(void **state)
{
    struct tree_change c;
    struct wire_inode made = file(200);
    note(DIR, 100);
    tree_known_begin(known, DIR, SLICE_LIT("a"), &c);
    assert_false(knows_attr(DIR));
    note(DIR, 100); /* an answer from before or after: nobody can say */
    assert_false(knows_attr(DIR));
    tree_known_end(known, &c, &made);
    assert_true(knows_attr(DIR));
}

static void test_of_two_changes_at_once_neither_says_what_the_times_are(void **state)
{
    struct tree_change c, d;
    struct wire_inode first = file(200), second = file(300);
    note(DIR, 100);
    tree_known_begin(known, DIR, SLICE_LIT("a"), &c);
    tree_known_begin(known, DIR, SLICE_LIT("b"), &d);
    tree_known_end(known, &d, &second);
    tree_known_end(known, &c, &first);
    assert_false(knows_attr(DIR));
}

static void test_a_change_that_failed_leaves_the_attributes_unknown(void **state)
{
    struct tree_change c;
    note(DIR, 100);
    tree_known_begin(known, DIR, SLICE_LIT("a"), &c);
    tree_known_end(known, &c, NULL);
    assert_false(knows_attr(DIR));
}

static void test_an_answer_that_was_on_its_way_during_a_change_is_not_believed(void **state)
{
    struct tree_change c;
    struct wire_inode x = directory(DIR, 100);
    uint64_t serial = tree_known_serial(known, DIR);
    tree_known_begin(known, DIR, SLICE_LIT("a"), &c);
    tree_known_end(known, &c, NULL);
    tree_known_note(known, &x, serial);
    assert_false(knows_attr(DIR));
}

static void test_a_rename_makes_the_attributes_of_all_unknown_and_no_name(void **state)
{
    struct wire_inode x = directory(DIR + 1, 100);
    make_directory(DIR);
    uint64_t serial = tree_known_serial(known, DIR + 1);
    tree_known_forget_attrs(known);
    assert_false(knows_attr(DIR));
    assert_true(lacks(DIR, "a"));
    tree_known_note(known, &x, serial);
    assert_false(knows_attr(DIR + 1));
}

static void test_a_change_that_ends_after_all_was_forgotten_tells_nothing(void **state)
{
    struct tree_change c;
    struct wire_inode made = file(200);
    note(DIR, 100);
    tree_known_begin(known, DIR, SLICE_LIT("a"), &c);
    tree_known_forget(known);
    tree_known_end(known, &c, &made);
    assert_false(knows_attr(DIR));
    note(DIR, 300);
    assert_true(knows_attr(DIR)); /* nothing is under way there any more */
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_new_directory_lacks_every_name_but_those_that_were_made),
        TEST(of_a_directory_that_was_only_seen_no_name_is_known_to_be_absent),
        TEST(a_name_that_is_being_made_may_be_there_already),
        TEST(nothing_is_known_after_somebody_else_changed_something),
        TEST(a_directory_that_was_made_while_somebody_else_changed_something_is_not_known),
        TEST(many_names_in_one_directory_are_all_remembered),
        TEST(a_directory_that_outgrows_the_memory_is_asked_about),
        TEST(directories_that_were_not_used_for_long_are_asked_about_first),
        TEST(hundreds_of_directories_are_all_known),
        TEST(directories_that_share_a_place_are_never_mixed_up),
        TEST(a_name_that_the_node_said_is_absent_is_known_to_be),
        TEST(a_name_is_not_absent_while_it_is_being_made),
        TEST(an_answer_of_before_a_change_is_not_believed),
        TEST(a_removed_name_is_absent),
        TEST(what_is_made_beside_a_removal_may_be_there),
        TEST(a_renamed_name_is_absent),
        TEST(absent_names_are_forgotten_when_somebody_else_changes_something),
        TEST(attributes_are_asked_for_again_after_a_minute),
        TEST(attributes_that_are_passed_on_end_with_their_minute),
        TEST(a_file_that_is_made_moves_the_times_of_its_directory),
        TEST(a_file_that_is_removed_moves_the_times_of_its_directory),
        TEST(a_rename_moves_the_times_of_both_directories),
        TEST(a_directory_that_is_made_is_a_link_to_the_one_above),
        TEST(attributes_are_not_known_while_a_change_is_under_way),
        TEST(of_two_changes_at_once_neither_says_what_the_times_are),
        TEST(a_change_that_failed_leaves_the_attributes_unknown),
        TEST(an_answer_that_was_on_its_way_during_a_change_is_not_believed),
        TEST(a_rename_makes_the_attributes_of_all_unknown_and_no_name),
        TEST(a_change_that_ends_after_all_was_forgotten_tells_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
