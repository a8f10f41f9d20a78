/* The arithmetic of rates, limits and delays, with a clock that the tests hand in: no time passes here, so
 * that a busy machine changes nothing. */
#include "shape.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define MS    1000000ull
#define S     (1000 * MS)
#define START (7 * S)
#define RATE  (20 * 1000 * 1000) /* bytes/s */

/* A body of pieces whose sender wakes up `late_ns` after the time it waits for; gives when its last piece
 * went out. */
static uint64_t send_body(struct shape_rate *r, size_t pieces, size_t piece, uint64_t late_ns,
                          uint64_t *lost_ns)
{
    uint64_t now = START;
    shape_rate_begin(r, now);
    for (size_t i = 0; i < pieces; i++) {
        uint64_t lost;
        uint64_t at = shape_rate_take(r, piece, now, &lost);
        now = at > now ? at + late_ns : now; /* what is due already is sent at once */
        *lost_ns += lost;
    }
    shape_rate_end(r);
    return now;
}

/* One second's worth of bytes takes one second: to the nanosecond when the sender is on time, and no longer
 * than its last delay when it wakes up late each time, because what it was behind is caught up. */
static void a_rate_holds_on_time_and_late(void **state)
{
    (void)state;
    static const uint64_t late[] = {0, MS, 10 * MS, 40 * MS};
    for (size_t i = 0; i < ARRAY_SIZE(late); i++) {
        struct shape_rate r;
        uint64_t lost = 0;
        shape_rate_init(&r, RATE);
        uint64_t end = send_body(&r, 500, RATE / 500, late[i], &lost);
        assert_true(end >= START + S);
        assert_true(end <= START + S + late[i]);
        assert_int_equal(lost, 0);
        shape_rate_fini(&r);
    }
}

/* A sender that is further behind than is made up for loses exactly the rest, which is told. */
static void what_is_lost_is_told(void **state)
{
    (void)state;
    struct shape_rate r;
    uint64_t lost;
    shape_rate_init(&r, RATE);
    shape_rate_begin(&r, START);
    uint64_t at = shape_rate_take(&r, RATE / 10, START, &lost);
    assert_int_equal(at, START + 100 * MS);
    at = shape_rate_take(&r, RATE / 10, START + 300 * MS, &lost);
    assert_int_equal(lost, 200 * MS - SHAPE_BEHIND_NS);
    assert_int_equal(at, START + 300 * MS - SHAPE_BEHIND_NS + 100 * MS);
    shape_rate_end(&r);
    shape_rate_fini(&r);
}

/* Time between bodies gives nothing: the next one takes as long as if it were the first. */
static void idle_time_is_not_saved(void **state)
{
    (void)state;
    struct shape_rate r;
    uint64_t lost = 0;
    shape_rate_init(&r, RATE);
    (void)send_body(&r, 10, RATE / 100, 0, &lost);
    shape_rate_begin(&r, START + 9 * S);
    assert_int_equal(shape_rate_take(&r, RATE / 2, START + 9 * S, &lost), START + 9 * S + S / 2);
    assert_int_equal(lost, 0);
    shape_rate_end(&r);
    shape_rate_fini(&r);
}

/* Four senders share a rate: together they take as long as one that sends it all. */
static void a_rate_is_shared(void **state)
{
    (void)state;
    struct shape_rate r;
    uint64_t now[4] = {START, START, START, START}, lost = 0, last = 0;
    shape_rate_init(&r, RATE);
    for (int i = 0; i < 4; i++)
        shape_rate_begin(&r, START);
    for (int piece = 0; piece < 400; piece++) {
        int i = 0; /* the one that is first ready sends next */
        for (int k = 1; k < 4; k++)
            i = now[k] < now[i] ? k : i;
        uint64_t l;
        last = now[i] = shape_rate_take(&r, RATE / 400, now[i], &l);
        lost += l;
    }
    assert_int_equal(last, START + S);
    assert_int_equal(lost, 0);
    shape_rate_fini(&r);
}

/* Without a limit nothing waits and nothing is lost; a limit set anew begins with what is asked from then on.
 */
static void no_limit_and_a_new_one(void **state)
{
    (void)state;
    struct shape_rate r;
    uint64_t lost = 1;
    shape_rate_init(&r, 0);
    shape_rate_begin(&r, START);
    assert_int_equal(shape_rate_take(&r, 1 << 30, START, &lost), 0);
    assert_int_equal(lost, 0);
    shape_rate_fini(&r);
}

/* Of requests that come far too often, as many pass in ten seconds as asked for, and those that may come at
 * once. */
static void requests_above_a_rate_are_refused(void **state)
{
    (void)state;
    static const uint64_t rates[] = {1, 7, 20, 100, 5000};
    for (size_t i = 0; i < ARRAY_SIZE(rates); i++) {
        struct shape_limit l = {.per_s = rates[i]};
        uint64_t passed = 0, at_once = MAX(rates[i] / 10, (uint64_t)1);
        for (uint64_t at = 0; at < 10 * S; at += 50000) /* 20,000 a second */
            passed += shape_limit_admit(&l, START + at);
        assert_in_range(passed, 10 * rates[i], 10 * rates[i] + at_once);
    }
    struct shape_limit none = {0};
    for (int i = 0; i < 1000; i++)
        assert_true(shape_limit_admit(&none, START));
}

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* 100,000 delays have the median and the 99th percentile that were asked for, the logarithms of a normal
 * distribution (as far below the median as above it), and come again with the same seed only. */
static void delays_are_log_normal_and_follow_the_seed(void **state)
{
    (void)state;
    enum { N = 100000 };
    uint64_t *draws = calloc(N, sizeof(*draws));
    assert_non_null(draws);
    struct shape_delay d = {.seed = 3}, other = {.seed = 4};
    assert_int_equal(shape_delay_parse("20ms,p99=80ms", "first-byte", &d, NULL), 0);
    other.median_ns = d.median_ns;
    other.p99_ns = d.p99_ns;
    size_t same = 0;
    for (uint64_t i = 0; i < N; i++) {
        draws[i] = shape_delay_draw(&d, i);
        assert_int_equal(draws[i], shape_delay_draw(&d, i));
        same += draws[i] == shape_delay_draw(&other, i);
    }
    assert_true(same < 10);
    qsort(draws, N, sizeof(*draws), by_size);
    assert_in_range(draws[N / 2], 198 * MS / 10, 202 * MS / 10);
    assert_in_range(draws[N * 99 / 100], 78 * MS, 82 * MS);
    assert_in_range(draws[N / 100], 20 * MS / 4 * 97 / 100, 20 * MS / 4 * 103 / 100);
    free(draws);
}

/* Pieces are about 2 ms of the slower rate, within bounds. */
static void pieces_are_short(void **state)
{
    (void)state;
    assert_int_equal(shape_piece(RATE, 0), RATE / 500);
    assert_int_equal(shape_piece(0, RATE), RATE / 500);
    assert_int_equal(shape_piece(1024, 0), 4 * KIB);
    assert_int_equal(shape_piece(1ull << 40, 1ull << 41), 256 * KIB);
    assert_int_equal(shape_piece(0, 0), MIB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rate_holds_on_time_and_late),
        cmocka_unit_test(what_is_lost_is_told),
        cmocka_unit_test(idle_time_is_not_saved),
        cmocka_unit_test(a_rate_is_shared),
        cmocka_unit_test(no_limit_and_a_new_one),
        cmocka_unit_test(requests_above_a_rate_are_refused),
        cmocka_unit_test(delays_are_log_normal_and_follow_the_seed),
        cmocka_unit_test(pieces_are_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
