/* layer: mount */
/* Names of inodes, as people are told of them: right, or not known. */
#include "mount/tree_named.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#define ROOT 1

static struct tree_named *named;

static int setup(void **state)
{
    (void)state;
    named = tree_named_new();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tree_named_free(named);
    return 0;
}

static const char *path(uint64_t ino)
{
    static char text[160];
    return tree_named_path(named, ROOT, ino, text, sizeof(text)) ? text : "?";
}

static void note(uint64_t ino, uint64_t dir, const char *name)
{
    tree_named_note(named, ino, dir, slice_str(name));
}

/* A path is the names of all directories; what is not known is said to be. */
static void test_paths(void **state)
{
    (void)state;
    assert_string_equal(path(ROOT), "");
    assert_string_equal(path(7), "?");
    note(7, 6, "file");
    assert_string_equal(path(7), ".../file");
    note(6, 5, "dir");
    note(5, ROOT, "top");
    assert_string_equal(path(7), "top/dir/file");
    assert_string_equal(path(5), "top");
}

/* Of a path that is too long its end is told, and of directories that seem to lie in themselves something. */
static void test_long_paths(void **state)
{
    char text[8];
    (void)state;
    note(7, 6, "file");
    note(6, ROOT, "directory");
    assert_true(tree_named_path(named, ROOT, 7, text, sizeof(text)));
    assert_string_equal(text, "ry/file");
    assert_true(tree_named_path(named, ROOT, 7, text, 1));
    assert_string_equal(text, "");
    note(8, 8, "x");
    (void)path(8);
    note(9, ROOT, "a-name-of-more-bytes-than-there-is-room-for-in-one-place");
    assert_string_equal(path(9), "a-name-of-more-bytes-than-there-is-room-for-in-");
}

/* Renames and removals are followed, also onto other names and in exchange. */
static void test_changes(void **state)
{
    (void)state;
    note(5, ROOT, "a");
    note(6, ROOT, "b");
    note(7, 5, "in-a");
    tree_named_moved(named, ROOT, SLICE_LIT("a"), ROOT, SLICE_LIT("c"), /* exchange= */ false);
    assert_string_equal(path(7), "c/in-a");
    tree_named_moved(named, ROOT, SLICE_LIT("c"), ROOT, SLICE_LIT("b"), /* exchange= */ true);
    assert_string_equal(path(7), "b/in-a");
    assert_string_equal(path(6), "c");
    tree_named_moved(named, ROOT, SLICE_LIT("b"), ROOT, SLICE_LIT("c"), /* exchange= */ false);
    assert_string_equal(path(7), "c/in-a");
    assert_string_equal(path(6), "?");
    tree_named_gone(named, 5, SLICE_LIT("in-a"));
    assert_string_equal(path(7), "?");
    tree_named_gone(named, 5, SLICE_LIT("never there"));
}

/* Of more inodes than there are places some are known, each by its own name. */
static void test_many(void **state)
{
    char name[32];
    unsigned n_known = 0;
    (void)state;
    for (uint64_t ino = 2; ino < 50000; ino++) {
        (void)snprintf(name, sizeof(name), "f%llu", (unsigned long long)ino);
        note(ino, ROOT, name);
        assert_string_equal(path(ino), name);
    }
    for (uint64_t ino = 2; ino < 50000; ino++) {
        (void)snprintf(name, sizeof(name), "f%llu", (unsigned long long)ino);
        bool is_known = path(ino)[0] != '?';
        if (is_known)
            assert_string_equal(path(ino), name);
        n_known += is_known;
    }
    assert_in_range(n_known, 4000, 8192);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_paths, setup, teardown),
        cmocka_unit_test_setup_teardown(test_long_paths, setup, teardown),
        cmocka_unit_test_setup_teardown(test_changes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_many, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
