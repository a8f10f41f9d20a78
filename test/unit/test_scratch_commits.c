/* layer: namespace */
/* Changes of names and their commits: one each, and nothing of it where that fails. */
#include "scratch_common.h"

#define VERBS 10

/* What is changed by test_a_failed_commit_changes_nothing and test_each_change_is_one_commit. */
struct before {
    uint64_t dir, file, other;
};

static void make_before(struct fixture *f, struct before *b)
{
    b->dir = (uint64_t)make(f, SCRATCH_ROOT, "dir", S_IFDIR | 0755);
    b->file = (uint64_t)make(f, b->dir, "file", S_IFREG | 0644);
    b->other = (uint64_t)make(f, SCRATCH_ROOT, "other", S_IFREG | 0644);
    (void)make(f, b->dir, "empty", S_IFDIR | 0755);
    give_location(f, b->other, "there");
}

/* One change of each kind. */
static int64_t change(struct fixture *f, const struct before *b, int verb)
{
    const struct scratch_set set = {.what = SCRATCH_SET_MODE, .mode = 0600};
    struct slice file = SLICE_LIT("file"), empty = SLICE_LIT("empty"), other = SLICE_LIT("other");
    struct scratch_orphans o;
    struct scratch_inode x;
    switch (verb) {
    case 0:
        return make(f, b->dir, "new", S_IFREG | 0644);
    case 1:
        return scratch_link(f->s, &f->call, b->file, SCRATCH_ROOT, SLICE_LIT("l"), f->a, &x, NULL);
    case 2:
        return scratch_unlink(f->s, &f->call, b->dir, file, &o, NULL, NULL);
    case 3:
        return scratch_rmdir(f->s, &f->call, b->dir, empty, NULL);
    case 4:
        return scratch_rename(f->s, &f->call, b->dir, file, SCRATCH_ROOT, other, 0, &o, NULL, NULL);
    case 5:
        return scratch_rename(f->s, &f->call, b->dir, empty, SCRATCH_ROOT, other, SCRATCH_EXCHANGE, &o, NULL,
                              NULL);
    case 6:
        return scratch_setattr(f->s, &f->call, b->other, &set, f->a, &x, NULL);
    case 7:
        return scratch_xattr_set(f->s, &f->call, b->other, SLICE_LIT("user.a"), SLICE_LIT("v"), 0, NULL);
    case 8:
        return scratch_rename(f->s, &f->call, b->dir, file, SCRATCH_ROOT, SLICE_LIT("moved"), 0, &o, NULL,
                              NULL);
    default:
        return scratch_rename(f->s, &f->call, b->dir, empty, SCRATCH_ROOT, SLICE_LIT("moved"), 0, &o, NULL,
                              NULL);
    }
}

/* A commit that fails leaves names, links and sums as they were, in memory and in the store, for every kind
 * of change. */
static void test_a_failed_commit_changes_nothing(void **state)
{
    struct fixture *f = *state;
    struct before b;
    make_before(f, &b);
    for (int verb = 0; verb < VERBS; verb++) {
        uint64_t keys = keys_of(f, 's');
        struct scratch_inode before[3] = {attr(f, SCRATCH_ROOT), attr(f, b.dir), attr(f, b.other)};
        struct scratch_counts c0, c1;
        assert_int_equal(scratch_statfs(f->s, B, &c0, NULL), 0);
        f->failing->fail_in = 1;
        assert_int_equal(change(f, &b, verb), -EIO);
        assert_true(f->failing->hit);
        f->failing->hit = false;
        if (verb % 2 == 0)
            reopen(f);
        assert_int_equal(keys_of(f, 's'), keys);
        assert_int_equal(keys_of(f, 'z'), 0);
        struct scratch_inode after[3] = {attr(f, SCRATCH_ROOT), attr(f, b.dir), attr(f, b.other)};
        for (int i = 0; i < 3; i++) {
            assert_int_equal(after[i].ctime_ns, before[i].ctime_ns);
            assert_int_equal(after[i].links, before[i].links);
            assert_int_equal(after[i].entries, before[i].entries);
            assert_int_equal(after[i].mode, before[i].mode);
            assert_int_equal(after[i].xattrs, before[i].xattrs);
        }
        assert_int_equal(scratch_statfs(f->s, B, &c1, NULL), 0);
        assert_memory_equal(&c0, &c1, sizeof(c0));
    }
}

/* A node that is killed between two commits would leave half of a change: a file under both names or under
 * none. */
static void test_each_change_is_one_commit(void **state)
{
    for (int verb = 0; verb < VERBS; verb++) {
        struct fixture *f = *state;
        struct before b;
        make_before(f, &b);
        f->failing->fail_in = 2;
        assert_true(change(f, &b, verb) >= 0);
        assert_false(f->failing->hit);
        assert_int_equal(f->failing->fail_in, 1);
        f->failing->fail_in = 0;
        assert_int_equal(teardown(state), 0);
        assert_int_equal(setup(state), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_failed_commit_changes_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_each_change_is_one_commit, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
