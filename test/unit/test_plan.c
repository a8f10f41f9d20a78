/* layer: object */
#include "object/plan.h"

#include "store/store.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define WINDOW (128 * MIB)

/* A small object is always fetched whole, wherever it is touched. */
static void test_small_object_is_fetched_whole(void **state)
{
    (void)state;
    struct plan_readahead ra = {0};
    struct plan_range r = plan_read(&ra, 100000, 10, 110000, WINDOW);
    assert_int_equal(r.offset, 0);
    assert_int_equal(r.end, 110000);
}

/* The first touch of a large object asks for one block around it and nothing ahead. */
static void test_first_touch_asks_for_one_block(void **state)
{
    (void)state;
    struct plan_readahead ra = {0};
    struct plan_range r = plan_read(&ra, 0, 4096, 100 * GIB, WINDOW);
    assert_int_equal(r.offset, 0);
    assert_int_equal(r.end, MIB);
}

/* A reader that jumps about never gets a window. */
static void test_random_reads_fetch_no_more_than_their_block(void **state)
{
    (void)state;
    struct plan_readahead ra = {0};
    uint64_t offsets[] = {90 * GIB, 3 * GIB, 50 * GIB, 7 * MIB, 20 * GIB};
    for (size_t i = 0; i < ARRAY_SIZE(offsets); i++) {
        struct plan_range r = plan_read(&ra, offsets[i], 4096, 100 * GIB, WINDOW);
        assert_int_equal(r.offset, offsets[i]);
        assert_true(r.end - r.offset <= MIB);
    }
}

/* A sequential reader of 1 MiB pieces has the whole window ahead of it after 24 MiB at the latest. */
static void test_window_of_a_sequential_reader_grows_to_its_maximum(void **state)
{
    (void)state;
    struct plan_readahead ra = {0};
    struct plan_range r = {0, 0};
    for (uint64_t at = 0; at < 24 * MIB; at += MIB)
        r = plan_read(&ra, at, MIB, 10 * GIB, WINDOW);
    assert_int_equal(r.end, 24 * MIB + WINDOW);
}

/* As the window slides, what is asked for anew comes in whole parts: a gigabyte costs some 128 requests, not
 * a thousand. */
static void test_sliding_window_asks_for_whole_parts(void **state)
{
    (void)state;
    struct plan_readahead ra = {0};
    uint64_t ends = 0, last = 0;
    for (uint64_t at = 0; at < GIB; at += MIB) {
        struct plan_range r = plan_read(&ra, at, MIB, GIB, WINDOW);
        ends += r.end > last;
        last = MAX(last, r.end);
    }
    assert_true(ends <= 140);
}

/* Three small sequential reads of a tar do not fetch a hundred megabytes. */
static void test_few_small_sequential_reads_fetch_little(void **state)
{
    (void)state;
    struct plan_readahead ra = {0};
    struct plan_range r = {0, 0};
    for (uint64_t i = 0; i < 3; i++)
        r = plan_read(&ra, i * 4096, 4096, 100 * GIB, WINDOW);
    assert_true(r.end <= 16 * MIB);
}

/* Neighbouring pieces that arrive a little out of order, as a kernel sends them, count as sequential. */
static void test_slightly_disordered_reads_are_sequential(void **state)
{
    (void)state;
    struct plan_readahead ra = {0};
    (void)plan_read(&ra, 0, 128 * KIB, GIB, WINDOW);
    (void)plan_read(&ra, 256 * KIB, 128 * KIB, GIB, WINDOW);
    struct plan_range r = plan_read(&ra, 128 * KIB, 128 * KIB, GIB, WINDOW);
    assert_true(r.end >= 8 * MIB);
}

/* A jump ends the window; what follows may begin a new one. */
static void test_jump_resets_the_window(void **state)
{
    (void)state;
    struct plan_readahead ra = {0};
    for (uint64_t at = 0; at < 32 * MIB; at += MIB)
        (void)plan_read(&ra, at, MIB, 10 * GIB, WINDOW);
    struct plan_range r = plan_read(&ra, 5 * GIB, 4096, 10 * GIB, WINDOW);
    assert_true(r.end - r.offset <= MIB);
}

/* Whatever is read, the plan lies in the object and contains the read. */
static void test_plan_contains_the_read_and_stays_inside(void **state)
{
    (void)state;
    uint64_t seed = 42;
    for (int i = 0; i < 200000; i++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        uint64_t size = (seed >> 20) % (64 * MIB) + 1;
        uint64_t offset = (seed >> 33) % size, n = (seed >> 11) % (4 * MIB) + 1;
        struct plan_readahead ra = {.next = seed % size, .window = seed % WINDOW, .started = seed & 1};
        struct plan_range r = plan_read(&ra, offset, n, size, WINDOW);
        assert_true(r.offset <= offset);
        assert_true(r.end >= MIN(offset + n, size));
        assert_true(r.end <= size);
    }
}

/* The first request for an unknown object is aligned, covers the read, and is at most one part. */
static void test_discovery_is_aligned_and_bounded(void **state)
{
    (void)state;
    struct plan_range r = plan_discover(5 * MIB + 77, 0);
    assert_int_equal(r.offset, 5 * MIB);
    assert_int_equal(r.end, 6 * MIB);
    r = plan_discover(0, UINT64_MAX);
    assert_int_equal(r.offset, 0);
    assert_int_equal(r.end, PLAN_PART_BYTES);
    r = plan_discover(MIB - 1, 2);
    assert_int_equal(r.offset, 0);
    assert_int_equal(r.end, 2 * MIB);
}

/* Parts end at part boundaries, at what is missing, at what is wanted (whole blocks) and at the object's end.
 */
static void test_parts_are_cut_at_every_border(void **state)
{
    (void)state;
    struct plan_range r = plan_part((struct plan_range){3 * MIB, 40 * MIB}, (struct plan_range){0, GIB}, GIB);
    assert_int_equal(r.offset, 3 * MIB);
    assert_int_equal(r.end, PLAN_PART_BYTES);
    r = plan_part((struct plan_range){3 * MIB, 4 * MIB}, (struct plan_range){0, GIB}, GIB);
    assert_int_equal(r.end, 4 * MIB);
    r = plan_part((struct plan_range){8 * MIB, 16 * MIB}, (struct plan_range){8 * MIB, 8 * MIB + 5}, GIB);
    assert_int_equal(r.end, 9 * MIB);
    r = plan_part((struct plan_range){8 * MIB, 8 * MIB + 100}, (struct plan_range){0, UINT64_MAX},
                  8 * MIB + 100);
    assert_int_equal(r.end, 8 * MIB + 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_object_is_fetched_whole),
        cmocka_unit_test(test_first_touch_asks_for_one_block),
        cmocka_unit_test(test_random_reads_fetch_no_more_than_their_block),
        cmocka_unit_test(test_window_of_a_sequential_reader_grows_to_its_maximum),
        cmocka_unit_test(test_sliding_window_asks_for_whole_parts),
        cmocka_unit_test(test_few_small_sequential_reads_fetch_little),
        cmocka_unit_test(test_slightly_disordered_reads_are_sequential),
        cmocka_unit_test(test_jump_resets_the_window),
        cmocka_unit_test(test_plan_contains_the_read_and_stays_inside),
        cmocka_unit_test(test_discovery_is_aligned_and_bounded),
        cmocka_unit_test(test_parts_are_cut_at_every_border),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
