/* layer: mount */
/* threaded */
/* What a mount counts: the places of times, and that nothing counted by several threads is lost. */
#include "mount/stats.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define THREADS 4
#define ROUNDS  20000

/* Every time lies in exactly one place, between the top of the one before and its own, and no top is more
 * than a quarter above the smallest time of its place. */
static void test_places(void **state)
{
    (void)state;
    assert_int_equal(stats_place_of(0), 0);
    assert_int_equal(stats_place_of(1023), 0);
    assert_int_equal(stats_place_of(1024), 1);
    for (unsigned i = 0; i + 1 < STATS_PLACES; i++) {
        uint64_t top = stats_place_top(i);
        assert_int_equal(stats_place_of(top), i);
        assert_int_equal(stats_place_of(top + 1), i + 1);
        assert_true(i == 0 || (double)top < 1.25 * (double)(stats_place_top(i - 1) + 1));
    }
    assert_int_equal(stats_place_of(UINT64_MAX), STATS_PLACES - 1);
    assert_int_equal(stats_place_top(STATS_PLACES - 1), UINT64_MAX);
}

static void *count(void *arg)
{
    struct stats *s = arg;
    for (int i = 0; i < ROUNDS; i++) {
        stats_opened(s, i % 2 == 0, i % 4 == 0);
        stats_read(s, 3, i % 5 == 0);
    }
    return NULL;
}

/* Counters are exact, whoever counts. */
static void test_counters(void **state)
{
    (void)state;
    struct stats *s = stats_new();
    pthread_t threads[THREADS];
    struct stats_report r;
    memset(&r, 0, sizeof(r));
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, count, s), 0);
    stats_fill(s, &r); /* meanwhile */
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    stats_fill(s, &r);
    assert_int_equal(r.counters[STATS_READING_OPENS], THREADS * ROUNDS / 2);
    assert_int_equal(r.counters[STATS_WRITING_OPENS], THREADS * ROUNDS / 2);
    assert_int_equal(r.counters[STATS_PASSTHROUGH_OPENS], THREADS * ROUNDS / 4);
    assert_int_equal(r.counters[STATS_READ_BYTES], 3 * THREADS * ROUNDS);
    assert_int_equal(r.counters[STATS_HERE_READ_BYTES], 3 * THREADS * ROUNDS / 5);
    assert_int_equal(r.n_running, 0);
    assert_int_equal(r.n_slow, 0);
    for (size_t i = 0; i < STATS_N_OPERATIONS; i++)
        assert_int_equal(r.operations[i].count, 0);
    stats_free(s);
}

/* A report is told with the names that the operations have. */
static void test_names(void **state)
{
    (void)state;
    assert_string_equal(stats_operation_name(STATS_OP_lookup), "lookup");
    assert_string_equal(stats_operation_name(STATS_OP_flock), "flock");
    for (size_t i = 0; i < STATS_N_OPERATIONS; i++)
        assert_true(strlen(stats_operation_name((enum stats_operation)i)) > 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_counters),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
