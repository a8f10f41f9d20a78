/* layer: store */
/* Hard extents: what another thread does between two steps of this one. */
#include "test_store_common.h"

#include "base/log.h"

#include "test_hard_common.h"

static const struct sys *before_us;
static struct sys mine;
static struct hard *during; /* of the call that is stood in for, once; NULL: as usual */
static unsigned syncs;

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    before_us = sys;
    mine = *sys;
    sys = &mine;
    fixture_init(f, 1, 64 * MIB);
    fixture_open(f);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture_fini(*state);
    sys = before_us;
    free(*state);
    return 0;
}

static int count_sync(int fd)
{
    syncs++;
    return before_us->fsync(fd);
}

static int count_datasync(int fd)
{
    syncs++;
    return before_us->fdatasync(fd);
}

/* ---- ids of the pool ---- */

/* Whoever has read the location of an extent before that went back to the pool may look for it afterwards:
 * the next one has its file all the same. */
static void test_found_after_it_was_given_back(void **state)
{
    struct fixture *f = *state;
    struct location a, b;
    struct hard *h = take(f->s, &a);
    (void)pool_size(f->s);
    hard_give_back(h);
    hard_unref(find(f->s, &a));
    h = take(f->s, &b);
    assert_memory_equal(&a, &b, sizeof(a));
    assert_int_equal(disk_status(f->s, 0).hard_unsettled, 1);
    assert_int_equal(hard_put(h, 1, 0, 5000), 0);
    assert_int_equal(measure_and_settle(f->s, h), 0);
    assert_true(hard_holds(h, 1, 0, 5000));
    hard_unref(h);
}

/* ... and while he looks at it the next one has another file. */
static void test_held_after_it_was_given_back(void **state)
{
    struct fixture *f = *state;
    struct location a, b;
    struct hard *h = take(f->s, &a);
    (void)pool_size(f->s);
    hard_give_back(h);
    struct hard *seen = find(f->s, &a);
    h = take(f->s, &b);
    assert_memory_not_equal(&a, &b, sizeof(a));
    hard_unref(seen);
    hard_give_back(h);
}

/* ... as has a staged extent whose name takes the place of that file: he has the file of before. */
static void test_held_while_its_file_is_replaced(void **state)
{
    struct fixture *f = *state;
    struct location a, b;
    struct extent *x = NULL;
    struct hard *h = take(f->s, &a);
    struct stat st;
    (void)pool_size(f->s);
    hard_give_back(h);
    struct hard *seen = find(f->s, &a);
    assert_int_equal(store_stage(f->s, SLICE_LIT("staged"), 0, &x, NULL), 0);
    _cleanup_free_ char *p = content_new(3, 0, 10000);
    assert_int_equal(extent_write(x, p, 10000, 0), 0);
    assert_int_equal(hard_of_staged(f->s, x, &h, NULL), 0);
    hard_location(h, b.b);
    assert_memory_equal(&a, &b, sizeof(a));
    assert_true(hard_holds(h, 3, 0, 10000));
    assert_int_equal(hard_stat(seen, &st), 0);
    assert_int_equal(st.st_size, 0);
    hard_unref(seen);
    struct hard *again = find(f->s, &a);
    assert_ptr_equal(again, h);
    hard_unref(again);
    assert_int_equal(disk_status(f->s, 0).hard_unsettled, 1);
    hard_give_back(h);
    extent_unref(x);
    assert_int_equal(disk_status(f->s, 0).hard_unsettled, 0);
    assert_int_equal(disk_status(f->s, 0).used_bytes, 0);
}

/* ---- what is on the disk when it is sealed ---- */

static ssize_t sync_and_write(int fd, const void *p, size_t n, uint64_t offset)
{
    struct hard *h = TAKE_PTR(during);
    if (h)
        assert_int_equal(hard_sync(h, NULL), 0);
    return before_us->pwrite(fd, p, n, offset);
}

static int sync_and_truncate(int fd, uint64_t size)
{
    struct hard *h = TAKE_PTR(during);
    if (h)
        assert_int_equal(hard_sync(h, NULL), 0);
    return before_us->ftruncate(fd, size);
}

/* Syncs that sealing needs. */
static unsigned syncs_of_sealing(struct fixture *f, struct hard *h)
{
    syncs = 0;
    assert_int_equal(measure_and_settle(f->s, h), 0);
    assert_true(hard_is_sealed(h));
    return syncs;
}

/* A sync that another thread begins before bytes are in the file, and ends after that, is none of those
 * bytes: a power loss would leave checksums of what is not there. */
static void test_a_sync_in_the_midst_of_a_write(void **state)
{
    struct fixture *f = *state;
    struct location l;
    mine.pwrite = sync_and_write;
    mine.ftruncate = sync_and_truncate;
    mine.fsync = count_sync;
    mine.fdatasync = count_datasync;
    struct hard *h = take(f->s, &l);
    (void)pool_size(f->s);

    during = h;
    assert_int_equal(hard_put(h, 1, 0, 5000), 0); /* in order */
    assert_null(during);
    assert_int_equal(syncs_of_sealing(f, h), 1);

    during = h;
    assert_int_equal(hard_put(h, 1, 100, 50), 0); /* elsewhere */
    assert_null(during);
    assert_int_equal(syncs_of_sealing(f, h), 1);

    assert_int_equal(hard_begin_writing(h, NULL), 0);
    during = h;
    assert_int_equal(hard_truncate(h, 3000, NULL), 0);
    hard_end_writing(h);
    assert_null(during);
    assert_int_equal(syncs_of_sealing(f, h), 1);
    hard_unref(h);
}

/* ---- what is counted ---- */

/* The look of hard_watch: as while blocks are decided on that the file does not get in the end. Then another
 * thread seals it. */
static int look_and_settle(const char *path, struct stat *ret)
{
    struct hard *h = TAKE_PTR(during);
    int r = before_us->stat(path, ret);
    if (h)
        assert_int_equal(measure_and_settle(h->store, h), 0);
    ret->st_blocks += h ? 64 : 0;
    return r;
}

/* What was seen of a file before it was sealed does not count once it is: its record says what it takes. */
static void test_sealed_after_a_look(void **state)
{
    struct fixture *f = *state;
    struct location l;
    struct disk *d = &f->s->disks[0];
    struct hard *h = take(f->s, &l);
    assert_int_equal(hard_put(h, 1, 0, 5000), 0);
    mine.stat = look_and_settle;
    during = h;
    hard_watch(d);
    assert_null(during);
    assert_true(hard_is_sealed(h));
    hard_unref(h);
    struct store_disk_status st = disk_status(f->s, 0);
    assert_true(d->hard->count.used_bytes > 0);
    assert_int_equal(st.hard_bytes, d->hard->count.used_bytes);
    assert_int_equal(st.used_bytes, st.hard_bytes);
    struct slice one = location_view(&l);
    assert_int_equal(hard_remove(f->s, &one, 1, NULL), 0);
    assert_int_equal(disk_status(f->s, 0).used_bytes, 0);
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_found_after_it_was_given_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_held_after_it_was_given_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_held_while_its_file_is_replaced, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_sync_in_the_midst_of_a_write, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sealed_after_a_look, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
