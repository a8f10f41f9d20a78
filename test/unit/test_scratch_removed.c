/* layer: namespace */
/* What is known of inodes that were removed. */
#include "scratch_common.h"

/* What a directory, a fifo or a link had is known after its last name went, by its number, and that it has no
 * links; of files, and of numbers of nothing, it is not, nor after a start. */
static void test_what_was_removed_is_remembered(void **state)
{
    struct fixture *f = *state;
    struct scratch_orphans o;
    struct scratch_inode x, was;
    static const uint32_t modes[] = {S_IFDIR | 0751, S_IFIFO | 0640, S_IFREG | 0600};
    uint64_t inos[ARRAY_SIZE(modes)];
    for (size_t i = 0; i < ARRAY_SIZE(modes); i++) {
        inos[i] = (uint64_t)make(f, SCRATCH_ROOT, "a", modes[i]);
        assert_int_equal(scratch_getattr(f->s, B, inos[i], f->a, &was, NULL), 0);
        assert_int_equal(scratch_getattr_removed(f->s, B, inos[i], f->a, &x), -ENOENT);
        int r = S_ISDIR(modes[i])
                    ? scratch_rmdir(f->s, &f->call, SCRATCH_ROOT, SLICE_LIT("a"), NULL)
                    : scratch_unlink(f->s, &f->call, SCRATCH_ROOT, SLICE_LIT("a"), &o, NULL, NULL);
        assert_int_equal(r, 0);
        assert_int_equal(scratch_getattr(f->s, B, inos[i], f->a, &x, NULL), -ENOENT);
        r = scratch_getattr_removed(f->s, B, inos[i], f->a, &x);
        assert_int_equal(r, S_ISREG(modes[i]) ? -ENOENT : 0);
        if (r == 0)
            assert_true(x.links == 0 && x.mode == modes[i] && x.ino == inos[i] && x.mtime_ns == was.mtime_ns);
        assert_int_equal(scratch_getattr_removed(f->s, B + 1, inos[i], f->a, &x), -ENOENT);
    }
    reopen(f);
    assert_int_equal(scratch_getattr_removed(f->s, B, inos[0], f->a, &x), -ENOENT);
}

static int64_t removed(struct fixture *f, uint64_t dir, const char *name)
{
    struct scratch_orphans o;
    int64_t changed_ns = -1;
    assert_int_equal(scratch_unlink(f->s, &f->call, dir, slice_str(name), &o, &changed_ns, NULL), 0);
    return changed_ns;
}

static int64_t renamed(struct fixture *f, const char *from, uint64_t to_dir, const char *to, uint32_t flags)
{
    struct scratch_orphans o;
    int64_t changed_ns = -1;
    assert_int_equal(scratch_rename(f->s, &f->call, SCRATCH_ROOT, slice_str(from), to_dir, slice_str(to),
                                    flags, &o, &changed_ns, NULL),
                     0);
    return changed_ns;
}

/* Who removes or renames a file learns the times of change that the directories have by it, as they are asked
 * for afterwards; 0 where more became different than that, or nothing, or it was done before. */
static void test_a_removal_and_a_rename_say_when_the_directories_changed(void **state)
{
    struct fixture *f = *state;
    f->call.mount = (struct id128){{1, 2, 3}};
    f->call.request = 1;
    static const char *const names[] = {"a", "b", "c", "d"};
    for (size_t i = 0; i < ARRAY_SIZE(names); i++, f->call.request++)
        assert_true(make(f, SCRATCH_ROOT, names[i], S_IFREG | 0644) > 0);
    int64_t dir = make(f, SCRATCH_ROOT, "dir", S_IFDIR | 0755);
    f->call.request++;
    assert_true(make(f, SCRATCH_ROOT, "empty", S_IFDIR | 0755) > 0);

    f->call.request++;
    int64_t changed_ns = removed(f, SCRATCH_ROOT, "a");
    assert_true(changed_ns > 0);
    assert_int_equal(attr(f, SCRATCH_ROOT).mtime_ns, changed_ns);
    assert_int_equal(attr(f, SCRATCH_ROOT).ctime_ns, changed_ns);
    assert_int_equal(removed(f, SCRATCH_ROOT, "a"), 0); /* the same request again */

    f->call.request++;
    changed_ns = renamed(f, "b", (uint64_t)dir, "b", 0);
    assert_true(changed_ns > 0);
    assert_int_equal(attr(f, SCRATCH_ROOT).mtime_ns, changed_ns);
    assert_int_equal(attr(f, (uint64_t)dir).mtime_ns, changed_ns);
    assert_int_equal(attr(f, (uint64_t)dir).ctime_ns, changed_ns);
    assert_int_equal(renamed(f, "b", (uint64_t)dir, "b", 0), 0); /* again */

    f->call.request++;
    changed_ns = renamed(f, "c", SCRATCH_ROOT, "d", SCRATCH_EXCHANGE);
    assert_true(changed_ns > 0);
    assert_int_equal(attr(f, SCRATCH_ROOT).mtime_ns, changed_ns);
    f->call.request++;
    assert_int_equal(renamed(f, "c", SCRATCH_ROOT, "c", 0), 0);
    f->call.request++;
    assert_int_equal(renamed(f, "c", SCRATCH_ROOT, "empty", SCRATCH_EXCHANGE), 0);
    f->call.request++;
    assert_int_equal(renamed(f, "c", SCRATCH_ROOT, "moved", 0), 0); /* the directory */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_what_was_removed_is_remembered, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_removal_and_a_rename_say_when_the_directories_changed, setup,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
