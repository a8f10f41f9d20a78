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
        int r = S_ISDIR(modes[i]) ? scratch_rmdir(f->s, &f->call, SCRATCH_ROOT, SLICE_LIT("a"), NULL)
                                  : scratch_unlink(f->s, &f->call, SCRATCH_ROOT, SLICE_LIT("a"), &o, NULL);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_what_was_removed_is_remembered, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
