/* layer: store */
/* Staged extents that two threads write at a time: checksums are those of the bytes, or are read back. */
#include "test_store_common.h"

#include "base/log.h"

#include <pthread.h>
#include <semaphore.h>

#define STRAY_AT (MIB + 200000)
#define CUT_TO   (MIB + MIB / 2)

static const struct sys *before_us;
static struct sys mine;
static struct extent *x;
static sem_t is_under_way, may_go_on;
static pthread_t other;
static bool armed;

static void wait_for(sem_t *s)
{
    while (sem_wait(s) < 0)
        ;
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    before_us = sys;
    mine = *sys;
    sys = &mine;
    fixture_init(f, 1, 64 * MIB);
    fixture_open(f);
    assert_int_equal(sem_init(&is_under_way, 0, 0), 0);
    assert_int_equal(sem_init(&may_go_on, 0, 0), 0);
    _cleanup_free_ char *p = content_new(1, 0, MIB);
    assert_int_equal(store_stage(f->s, SLICE_LIT("k"), 0, &x, NULL), 0);
    assert_int_equal(extent_write(x, p, MIB, 0), 0);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    extent_unref(x);
    sem_destroy(&is_under_way);
    sem_destroy(&may_go_on);
    fixture_fini(*state);
    sys = before_us;
    free(*state);
    return 0;
}

/* The other thread waits before it changes the file; it has begun before this one's write in order, and ends
 * between the bytes of that and its end. */
static void in_the_other(void)
{
    assert_int_equal(sem_post(&is_under_way), 0);
    wait_for(&may_go_on);
}

static ssize_t slow_pwrite(int fd, const void *p, size_t n, uint64_t offset)
{
    if (armed && offset == STRAY_AT)
        in_the_other();
    ssize_t done = before_us->pwrite(fd, p, n, offset);
    if (armed && offset == MIB) {
        armed = false;
        assert_int_equal(sem_post(&may_go_on), 0);
        assert_int_equal(pthread_join(other, NULL), 0);
    }
    return done;
}

static int slow_ftruncate(int fd, uint64_t size)
{
    if (armed && size == CUT_TO)
        in_the_other();
    return before_us->ftruncate(fd, size);
}

static void *write_elsewhere(void *arg)
{
    (void)arg;
    _cleanup_free_ char *p = content_new(7, 0, 300000);
    assert_int_equal(extent_write(x, p, 300000, STRAY_AT), 0);
    return NULL;
}

static void *cut(void *arg)
{
    (void)arg;
    assert_int_equal(extent_truncate(x, CUT_TO), 0);
    return NULL;
}

/* Writes the second block, while the other thread is at it. */
static void write_meanwhile(void *(*fn)(void *arg))
{
    _cleanup_free_ char *p = content_new(1, MIB, MIB);
    mine.pwrite = slow_pwrite;
    mine.ftruncate = slow_ftruncate;
    armed = true;
    assert_int_equal(pthread_create(&other, NULL, fn, NULL), 0);
    wait_for(&is_under_way);
    assert_int_equal(extent_write(x, p, MIB, MIB), 0);
    assert_false(armed);
}

/* It is not published, or its checksums are right. */
static void assert_not_wrong(struct fixture *f, bool is_published)
{
    const struct store_new n = {.key = SLICE_LIT("k"), .attr = SLICE_LIT("attr"), .size_bytes = 2 * MIB};
    struct store_check_report report;
    int r = store_publish(f->s, x, &n, NULL);
    assert_true(r == 0 || !is_published);
    assert_int_equal(store_check(f->s, false, NULL, NULL, &report, NULL), 0);
    assert_int_equal(report.bad_blocks, 0);
    assert_int_equal(report.extents, r == 0);
}

/* A write elsewhere that had begun before, and is over when the one in order ends, may have changed its
 * bytes. */
static void test_a_write_elsewhere(void **state)
{
    write_meanwhile(write_elsewhere);
    assert_not_wrong(*state, true);
}

/* So may cutting the file: what was written behind its new end is not there, and is not published. */
static void test_cut_meanwhile(void **state)
{
    _cleanup_free_ char *p = content_new(1, 0, 1000);
    assert_int_equal(extent_write(x, p, 1000, 3 * MIB - 1000), 0);
    write_meanwhile(cut);
    assert_not_wrong(*state, false);
}

/* What is published has the attributes and the size that it was published with, also after kill -9, and
 * however little there is of it. (Fails where take_place leaves the attributes away.) */
static void test_what_is_published_is_recorded(void **state)
{
    static const uint64_t sizes[] = {0, 5, MIB + 5};
    struct fixture *f = *state;
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        struct store_new n = {
            .key = SLICE_LIT("published"), .attr = SLICE_LIT("mine"), .size_bytes = sizes[i]};
        struct extent *staged = NULL, *found = NULL;
        _cleanup_free_ char *p = content_new(3, 0, sizes[i]);
        _cleanup_buf_ struct buf attr = BUF_INIT(STORE_ATTR_MAX_BYTES);
        assert_int_equal(store_stage(f->s, n.key, 0, &staged, NULL), 0);
        assert_int_equal(extent_write(staged, p, sizes[i], 0), 0);
        assert_int_equal(store_publish(f->s, staged, &n, NULL), 0);
        extent_unref(staged);
        writer_drain(&f->s->disks[0]);
        extent_unref(TAKE_PTR(x));
        fixture_abandon(f);
        fixture_open(f);
        assert_true(is_whole(f->s, "published", 3, sizes[i]));
        assert_int_equal(store_find(f->s, n.key, &found), 0);
        assert_int_equal(extent_attr(found, &attr), 0);
        assert_true(slice_eq(buf_view(&attr), n.attr));
        extent_unref(found);
    }
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_write_elsewhere, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cut_meanwhile, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_is_published_is_recorded, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
