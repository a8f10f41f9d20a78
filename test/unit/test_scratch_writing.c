/* layer: namespace */
/* Writing records: which inodes have data that is not settled. */
#include "scratch_common.h"

#include "base/text.h"

static void assert_hex(const void *p, size_t n, const char *hex)
{
    _cleanup_free_ char *text = malloc(n * 2 + 1);
    text_hex(p, n, text);
    assert_string_equal(text, hex);
}

/* Key and value of a writing record are those of the format's table; cut or damaged ones are refused. */
static void test_the_record_is_as_written_down(void **state)
{
    _cleanup_buf_ struct buf b = BUF_INIT(KIB);
    scratch_key_writing(1, 0x0203, &b);
    assert_hex(b.p, b.n, "7700000000000000010000000000000203");
    buf_clear(&b);
    assert_int_equal(scratch_writing_encode(SLICE_LIT("there"), &b), 0);
    assert_hex(b.p, b.n, "017468657265");
    struct slice got;
    assert_int_equal(scratch_writing_decode(buf_view(&b), &got), 0);
    assert_true(slice_eq_str(got, "there"));
    assert_int_equal(scratch_writing_decode(slice_of(b.p, 1), &got), ERR_CORRUPT);
    b.p[0] = 2;
    assert_int_equal(scratch_writing_decode(buf_view(&b), &got), ERR_CORRUPT);
}

#define FOUND_MAX 64

struct found {
    struct scratch_unsettled v[FOUND_MAX];
    size_t n;
};

static int note(void *arg, const struct scratch_unsettled *x)
{
    struct found *l = arg;
    assert_true(l->n < FOUND_MAX);
    l->v[l->n++] = *x;
    return 0;
}

static struct found unsettled(struct fixture *f)
{
    struct found l = {.n = 0};
    assert_int_equal(scratch_unsettled(f->s, note, &l, NULL), 0);
    assert_int_equal(keys_of(f, 'w'), l.n);
    return l;
}

static uint64_t make_at(struct fixture *f, const char *name, const char *location)
{
    struct scratch_new n = {.mode = S_IFREG | 0644, .exclusive = true, .location = slice_str(location)};
    struct scratch_inode x;
    assert_int_equal(scratch_create(f->s, &f->call, SCRATCH_ROOT, slice_str(name), &n, f->a, &x, NULL, NULL),
                     0);
    assert_true(slice_eq_str(x.location, location));
    return x.ino;
}

static int set(struct fixture *f, uint64_t ino, uint32_t what, const char *location)
{
    struct scratch_set s = {.what = what, .location = slice_str(location)};
    struct scratch_inode x;
    return scratch_setattr(f->s, &f->call, ino, &s, f->a, &x, NULL);
}

static uint64_t put_at(struct fixture *f, const char *key, const char *location, struct scratch_orphans *o)
{
    struct scratch_put p = {.size_bytes = 3, .location = slice_str(location)};
    struct scratch_inode x;
    assert_int_equal(scratch_reserve(f->s, B, slice_str(key), &p.ino, NULL), 0);
    assert_int_equal(scratch_put(f->s, &f->call, slice_str(key), &p, f->a, &x, o, NULL), 0);
    return p.ino;
}

/* Whatever gives an inode a location leaves a record with that location; settling takes it away, saying that
 * the file will be written to brings it back, and it goes with the location and with the inode. */
static void test_the_record_follows_the_location(void **state)
{
    struct fixture *f = *state;
    struct scratch_orphans o = {0};
    uint64_t a = make_at(f, "a", "A");
    struct found l = unsettled(f);
    assert_int_equal(l.n, 1);
    assert_int_equal(l.v[0].bucket, B);
    assert_int_equal(l.v[0].ino, a);
    assert_true(slice_eq_str(slice_of(l.v[0].location, l.v[0].location_bytes), "A"));
    assert_int_equal(scratch_settled(f->s, l.v, l.n, NULL), 0);
    assert_int_equal(unsettled(f).n, 0);
    assert_int_equal(set(f, a, SCRATCH_SET_WRITING, NULL), 0);
    l = unsettled(f);
    assert_true(l.n == 1 && slice_eq_str(slice_of(l.v[0].location, l.v[0].location_bytes), "A"));
    assert_int_equal(set(f, a, SCRATCH_SET_LOCATION, "B"), 0);
    l = unsettled(f);
    assert_true(l.n == 1 && slice_eq_str(slice_of(l.v[0].location, l.v[0].location_bytes), "B"));
    assert_int_equal(set(f, a, SCRATCH_SET_LOCATION, ""), 0);
    assert_int_equal(unsettled(f).n, 0);
    assert_int_equal(set(f, a, SCRATCH_SET_WRITING, NULL), 0); /* nothing to be written to */
    assert_int_equal(unsettled(f).n, 0);
    assert_int_equal(set(f, SCRATCH_ROOT, SCRATCH_SET_WRITING, NULL), -EISDIR);

    uint64_t old = put_at(f, "dir/b", "C", &o), b = put_at(f, "dir/b", "D", &o);
    assert_int_equal(o.n, 1); /* what was replaced */
    assert_int_equal(unsettled(f).n, 2);
    assert_int_equal(scratch_bury(f->s, B, old, NULL), 0);
    l = unsettled(f);
    assert_true(l.n == 1 && l.v[0].ino == b);
    assert_int_equal(scratch_remove_key(f->s, &f->call, SLICE_LIT("dir/b"), SLICE_NULL, &o, NULL), 0);
    assert_int_equal(unsettled(f).n, 1); /* until the data is freed */
    assert_int_equal(scratch_bury(f->s, B, b, NULL), 0);
    assert_int_equal(unsettled(f).n, 0);
}

/* A file that exists keeps its location when it is created again; only files have one; too long ones are
 * refused. */
static void test_what_exists_keeps_its_location(void **state)
{
    struct fixture *f = *state;
    uint64_t a = make_at(f, "a", "A");
    struct scratch_new n = {.mode = S_IFREG | 0644, .location = SLICE_LIT("other")};
    struct scratch_inode x;
    bool made = true;
    assert_int_equal(scratch_create(f->s, &f->call, SCRATCH_ROOT, SLICE_LIT("a"), &n, f->a, &x, &made, NULL),
                     0);
    assert_true(!made && x.ino == a && slice_eq_str(x.location, "A"));
    assert_int_equal(unsettled(f).n, 1);
    n.mode = S_IFDIR | 0755;
    assert_int_equal(scratch_create(f->s, &f->call, SCRATCH_ROOT, SLICE_LIT("d"), &n, f->a, &x, NULL, NULL),
                     -EINVAL);
    char big[SCRATCH_LOCATION_MAX + 1];
    memset(big, 'x', sizeof(big));
    n = (struct scratch_new){.mode = S_IFREG | 0644, .location = slice_of(big, sizeof(big))};
    assert_int_equal(scratch_create(f->s, &f->call, SCRATCH_ROOT, SLICE_LIT("e"), &n, f->a, &x, NULL, NULL),
                     -EINVAL);
    assert_int_equal(set(f, a, SCRATCH_SET_LOCATION, "A"), 0);
}

/* Several inodes lose their locations and records in one transaction, all or none, and nothing else of them
 * changes. */
static void test_several_lose_their_locations_at_once(void **state)
{
    struct fixture *f = *state;
    uint64_t inos[SCRATCH_UNLOCATE_MAX], none = 1 + make_at(f, "other", "O");
    struct scratch_inode before[SCRATCH_UNLOCATE_MAX];
    for (size_t i = 0; i < SCRATCH_UNLOCATE_MAX; i++) {
        const char name[] = {(char)('a' + i), '\0'};
        inos[i] = make_at(f, name, name);
        before[i] = attr(f, inos[i]);
        none = MAX(none, inos[i] + 1);
    }
    uint64_t last = inos[SCRATCH_UNLOCATE_MAX - 1];
    inos[SCRATCH_UNLOCATE_MAX - 1] = none;
    assert_int_equal(scratch_unlocate(f->s, B, inos, SCRATCH_UNLOCATE_MAX, NULL), -ENOENT);
    inos[SCRATCH_UNLOCATE_MAX - 1] = last;
    f->failing->fail_in = 1;
    assert_int_equal(scratch_unlocate(f->s, B, inos, SCRATCH_UNLOCATE_MAX, NULL), -EIO);
    assert_int_equal(unsettled(f).n, SCRATCH_UNLOCATE_MAX + 1);
    for (size_t i = 0; i < SCRATCH_UNLOCATE_MAX; i++)
        assert_true(slice_eq(attr(f, inos[i]).location, before[i].location));
    assert_int_equal(scratch_unlocate(f->s, B, inos, SCRATCH_UNLOCATE_MAX, NULL), 0);
    for (int again = 0; again < 2; again++) {
        struct found l = unsettled(f);
        assert_true(l.n == 1 && slice_eq_str(slice_of(l.v[0].location, l.v[0].location_bytes), "O"));
        for (size_t i = 0; i < SCRATCH_UNLOCATE_MAX; i++) {
            struct scratch_inode x = attr(f, inos[i]);
            assert_int_equal(x.location.n, 0);
            assert_true(x.links == 1 && x.mode == before[i].mode && x.ctime_ns == before[i].ctime_ns);
        }
        reopen(f);
    }
}

/* A commit that fails leaves the records as they were, whichever change it was of; so does a restart. */
static void test_a_failed_commit_leaves_the_records(void **state)
{
    struct fixture *f = *state;
    struct scratch_orphans o;
    uint64_t a = make_at(f, "a", "A"), b = put_at(f, "b", "B", &o);
    struct found settled = unsettled(f);
    assert_int_equal(settled.n, 2);
    settled.n = settled.v[0].ino == b ? 1 : 2;
    assert_int_equal(scratch_settled(f->s, &settled.v[settled.n - 1], 1, NULL), 0); /* b is */
    for (int verb = 0; verb < 6; verb++) {
        struct scratch_new n = {.mode = S_IFREG | 0644, .location = SLICE_LIT("N")};
        struct scratch_put p = {.location = SLICE_LIT("P")};
        struct scratch_inode x;
        struct found before = unsettled(f);
        assert_int_equal(before.n, 1);
        assert_int_equal(scratch_reserve(f->s, B, SLICE_LIT("b"), &p.ino, NULL), 0);
        f->failing->fail_in = 1;
        int r = 0;
        if (verb == 0)
            r = scratch_create(f->s, &f->call, SCRATCH_ROOT, SLICE_LIT("n"), &n, f->a, &x, NULL, NULL);
        else if (verb == 1)
            r = scratch_put(f->s, &f->call, SLICE_LIT("b"), &p, f->a, &x, &o, NULL);
        else if (verb == 2)
            r = set(f, b, SCRATCH_SET_WRITING, NULL);
        else if (verb == 3)
            r = set(f, a, SCRATCH_SET_LOCATION, "C");
        else if (verb == 4)
            r = set(f, a, SCRATCH_SET_LOCATION, "");
        else
            r = scratch_settled(f->s, before.v, 1, NULL);
        assert_int_equal(r, -EIO);
        if (verb % 2)
            reopen(f);
        struct found after = unsettled(f);
        assert_int_equal(after.n, 1);
        assert_memory_equal(&after.v[0], &before.v[0], sizeof(after.v[0]));
    }
}

/* Records that are not ours are named, and end the reading. */
static void test_a_damaged_record_is_refused(void **state)
{
    struct fixture *f = *state;
    struct found l = {.n = 0};
    struct err e = {0};
    _cleanup_(kv_txn_freep) struct kv_txn *t = kv_txn_new(f->kv);
    kv_txn_put_plain(t, SLICE_LIT("w-not-ours"), SLICE_LIT("x"));
    assert_int_equal(kv_txn_commit(t, KV_VISIBLE, NULL), 0);
    assert_int_equal(scratch_unsettled(f->s, note, &l, &e), ERR_CORRUPT);
    assert_non_null(strstr(e.text, "writing record"));
}

int main(void)
{
#define WITH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_record_is_as_written_down),
        WITH(test_the_record_follows_the_location),
        WITH(test_what_exists_keeps_its_location),
        WITH(test_several_lose_their_locations_at_once),
        WITH(test_a_failed_commit_leaves_the_records),
        WITH(test_a_damaged_record_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
