/* layer: jobs */
/* threaded */
#include "jobs_common.h"

/* A prefetch does every object once, and a second one finds nothing to do. */
static void test_prefetch_settles_everything(void **state)
{
    struct fixture *f = *state;
    uint64_t id = 0;
    write_objects(f, 50, 3000);
    assert_int_equal(start(f, "prefetch", "", &id), 0);
    wait_for(f, id, "done");
    assert_int_equal(number(f, id, "done_objects"), 50);
    assert_int_equal(number(f, id, "done_bytes"), 150000);
    assert_int_equal(number(f, id, "total_objects"), 50);
    assert_int_equal(start(f, "prefetch", "", &id), 0);
    wait_for(f, id, "done");
    assert_int_equal(number(f, id, "skipped_objects"), 50);
    assert_int_equal(start(f, "evict", "", &id), 0);
    wait_for(f, id, "done");
    assert_int_equal(number(f, id, "done_objects"), 50);
}

/* A node that closes in the middle of a job, and opens again, goes on: counts are exact in the end. (Without
 * the cursor in run.c, open_source, objects are counted twice.) */
static void test_reopened_jobs_go_on(void **state)
{
    struct fixture *f = *state;
    uint64_t id = 0;
    write_objects(f, 60, 10000);
    assert_int_equal(start(f, "prefetch", "rate=400000\nparallel=2\n", &id), 0);
    for (int round = 0; round < 3; round++) {
        sys->sleep_ns(100000000);
        close_node(f);
        open_node(f);
    }
    wait_for(f, id, "done");
    assert_int_equal(number(f, id, "done_objects"), 60);
    assert_int_equal(number(f, id, "done_bytes"), 600000);
    assert_int_equal(number(f, id, "failed_objects"), 0);
}

/* More jobs than may run at once are all done in the end; numbers are not given twice, also after rm. */
static void test_jobs_queue(void **state)
{
    struct fixture *f = *state;
    uint64_t ids[3 * JOBS_RUNNING_MAX] = {0};
    write_objects(f, 5, 100);
    for (size_t i = 0; i < ARRAY_SIZE(ids); i++) {
        assert_int_equal(start(f, "prefetch", "parallel=2\n", &ids[i]), 0);
        assert_int_equal(ids[i], i + 1);
    }
    for (size_t i = 0; i < ARRAY_SIZE(ids); i++)
        wait_for(f, ids[i], "done");
    uint64_t last = ids[ARRAY_SIZE(ids) - 1], id = 0;
    int r = -EBUSY;
    for (int i = 0; i < 1000 && r == -EBUSY; i++) {
        r = change(f, last, "rm");
        sys->sleep_ns(1000000);
    }
    assert_int_equal(r, 0);
    assert_int_equal(change(f, last, "rm"), -ENOENT);
    assert_int_equal(start(f, "prefetch", "", &id), 0);
    assert_int_equal(id, last + 1);
    wait_for(f, id, "done");
}

/* A pause keeps its place over a restart, and only resume ends it. */
static void test_pause_outlives_a_restart(void **state)
{
    struct fixture *f = *state;
    uint64_t id = 0;
    write_objects(f, 40, 10000);
    assert_int_equal(start(f, "prefetch", "rate=100000\nparallel=1\n", &id), 0);
    assert_int_equal(change(f, id, "pause"), 0);
    close_node(f);
    open_node(f);
    assert_true(is_in(f, id, "paused"));
    assert_int_equal(change(f, id, "retry"), -EINVAL);
    assert_int_equal(change(f, id, "resume"), 0);
    assert_int_equal(change(f, id, "cancel"), 0);
    assert_true(is_in(f, id, "cancelled"));
    assert_int_equal(change(f, id, "resume"), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_prefetch_settles_everything, setup, teardown),
        cmocka_unit_test_setup_teardown(test_reopened_jobs_go_on, setup, teardown),
        cmocka_unit_test_setup_teardown(test_jobs_queue, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pause_outlives_a_restart, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
