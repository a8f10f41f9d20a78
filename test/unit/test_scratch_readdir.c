/* layer: namespace */
/* Directories that are read while what their names lead to is replaced. */
#include "scratch_common.h"

struct seen {
    char names[16][16];
    uint64_t inos[16], after;
    size_t n, most;
};

static int on_entry(void *arg, const struct scratch_entry *x)
{
    struct seen *s = arg;
    if (s->n == s->most)
        return 1;
    assert_true(s->n < ARRAY_SIZE(s->names) && x->name.n < sizeof(s->names[0]));
    memcpy(s->names[s->n], x->name.p, x->name.n);
    s->inos[s->n++] = x->ino;
    s->after = x->cookie;
    return 0;
}

/* Up to `more` entries behind those that were seen. */
static void read_on(struct fixture *f, struct seen *s, uint64_t until, size_t more)
{
    s->most = s->n + more;
    assert_int_equal(scratch_readdir(f->s, B, SCRATCH_ROOT, s->after, until, on_entry, s, NULL), 0);
}

/* How often the name was given; the inode that came with it. */
static size_t times(const struct seen *s, const char *name, uint64_t *ret_ino)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->names[i], name) == 0) {
            *ret_ino = s->inos[i];
            n++;
        }
    return n;
}

static void move(struct fixture *f, const char *from, const char *to, uint32_t flags)
{
    struct scratch_orphans o;
    assert_int_equal(scratch_rename(f->s, &f->call, SCRATCH_ROOT, slice_str(from), SCRATCH_ROOT,
                                    slice_str(to), flags, &o, NULL, NULL),
                     0);
}

static uint64_t put(struct fixture *f, const char *key)
{
    struct scratch_put p = {.size_bytes = 0};
    struct scratch_orphans o = {0};
    struct scratch_inode x;
    assert_int_equal(scratch_reserve(f->s, B, slice_str(key), &p.ino, NULL), 0);
    assert_int_equal(scratch_put(f->s, &f->call, slice_str(key), &p, f->a, &x, &o, NULL), 0);
    return p.ino;
}

/* A name that is renamed over, exchanged, or put again through S3 while its directory is read is given once,
 * whether the reader has passed it or not: it was there all the time. (Where scratch_change_add counts the
 * cookie up for it, it comes behind the end of who has not come to it yet.) */
static void test_a_replaced_name_is_given_once(void **state)
{
    struct fixture *f = *state;
    static const char *const names[] = {"past", "other", "latest", "put", "swapped", "last"};
    for (int passed = 0; passed < 2; passed++) {
        struct seen s = {.n = 0};
        struct scratch_orphans o;
        uint64_t until, ino = 0;
        for (size_t i = 0; i < ARRAY_SIZE(names); i++)
            assert_true(make(f, SCRATCH_ROOT, names[i], S_IFREG | 0644) > 0);
        uint64_t fresh = (uint64_t)make(f, SCRATCH_ROOT, "fresh", S_IFREG | 0644);
        assert_int_equal(scratch_readdir_end(f->s, B, SCRATCH_ROOT, &until, NULL), 0);
        read_on(f, &s, until, passed ? 5 : 1);
        move(f, "fresh", "latest", 0);
        move(f, "other", "swapped", SCRATCH_EXCHANGE);
        uint64_t again = put(f, "put");
        read_on(f, &s, until, 10);
        for (size_t i = 0; i < ARRAY_SIZE(names); i++)
            if (times(&s, names[i], &ino) != 1)
                fail_msg("%s was given %zu times", names[i], times(&s, names[i], &ino));
        assert_int_equal(times(&s, "fresh", &ino), 0);
        assert_int_equal(times(&s, "latest", &ino), 1);
        assert_true((ino == fresh) == !passed);
        assert_int_equal(times(&s, "put", &ino), 1);
        assert_true((ino == again) == !passed);
        for (size_t i = 0; i < ARRAY_SIZE(names); i++)
            assert_int_equal(
                scratch_unlink(f->s, &f->call, SCRATCH_ROOT, slice_str(names[i]), &o, NULL, NULL), 0);
        assert_int_equal(attr(f, SCRATCH_ROOT).entries, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_replaced_name_is_given_once, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
