/* layer: origin */
/* threaded */
/* Decisions about trying again: pure functions, checked over their whole range; the budget under several
 * threads. */
#include "origin/origin.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* Only errors that time may heal are transient. */
static void test_transient(void **state)
{
    const int yes[] = {ERR_ORIGIN_BUSY,  ERR_ORIGIN_DOWN, ERR_ORIGIN_FAILED,
                       ERR_ORIGIN_SHORT, ERR_CONFLICT,    -ETIMEDOUT};
    const int no[] = {0,
                      -ENOENT,
                      ERR_ORIGIN_DENIED,
                      ERR_ORIGIN_REFUSED,
                      ERR_ORIGIN_SETUP,
                      ERR_PRECONDITION,
                      ERR_NOT_MODIFIED,
                      ERR_RANGE,
                      -ECANCELED,
                      -EINVAL,
                      ERR_CORRUPT};
    for (size_t i = 0; i < ARRAY_SIZE(yes); i++)
        assert_true(retry_is_transient(yes[i]));
    for (size_t i = 0; i < ARRAY_SIZE(no); i++)
        assert_false(retry_is_transient(no[i]));
}

/* Waits stay within the doubling bound, reach both ends of it, and are never longer than the longest. */
static void test_delay_bounds(void **state)
{
    uint64_t bound = RETRY_FIRST_MS;
    for (uint32_t attempt = 0; attempt + 1 < RETRY_ATTEMPTS_MAX; attempt++) {
        struct retry r = {.attempt = attempt};
        assert_int_equal(retry_delay_ms(&r, -ETIMEDOUT, 5, 0, 0, true, 0), 0);
        assert_int_equal(retry_delay_ms(&r, -ETIMEDOUT, 5, 0, 0, true, bound), (int64_t)bound);
        for (uint64_t random = 1; random < 1 << 20; random = random * 3 + 1) {
            int64_t d = retry_delay_ms(&r, -ETIMEDOUT, 5, 0, 0, true, random);
            assert_true(d >= 0 && (uint64_t)d <= bound);
        }
        bound = MIN(2 * bound, (uint64_t)RETRY_LONGEST_MS);
    }
    assert_int_equal(bound, RETRY_LONGEST_MS);
}

/* What the origin asked for comes before the jitter, and counts as the rest does. */
static void test_a_pause_is_waited_for(void **state)
{
    (void)state;
    struct retry r = {.attempt = 0};
    assert_int_equal(retry_delay_ms(&r, ERR_ORIGIN_BUSY, 5, 0, 7000, true, 0), 7000);
    assert_int_equal(retry_delay_ms(&r, ERR_ORIGIN_BUSY, 5, 0, 7000, true, RETRY_FIRST_MS),
                     7000 + RETRY_FIRST_MS);
    assert_int_equal(retry_delay_ms(&r, ERR_ORIGIN_BUSY, 5, 7005, 7000, true, 0), -1);
    assert_int_equal(retry_delay_ms(&r, ERR_ORIGIN_BUSY, 5, 7006, 7000, true, 0), 7000);
}

/* It gives up for each of its reasons, and for no other. */
static void test_gives_up(void **state)
{
    (void)state;
    struct retry r = {.attempt = 0};
    assert_int_equal(retry_delay_ms(&r, -ENOENT, 0, 0, 0, true, 0), -1);
    assert_int_equal(retry_delay_ms(&r, ERR_ORIGIN_BUSY, 100, 100, 0, true, 0), -1);
    assert_int_equal(retry_delay_ms(&r, ERR_ORIGIN_BUSY, 101, 100, 0, true, 0), -1);
    assert_int_equal(retry_delay_ms(&r, ERR_ORIGIN_BUSY, 60, 100, 0, true, 40), -1);
    assert_int_equal(retry_delay_ms(&r, ERR_ORIGIN_BUSY, 60, 100, 0, true, 39), 39);
}

/* An origin that is away, busy, or says nothing may be so for as long as it is waited for, however often it
 * was asked; one that answers, but wrongly, is asked ten times, and what was no answer before counts for
 * nothing: an origin that starts is away first, and may answer wrongly then. (Fails where tries of both kinds
 * are counted together.) */
static void test_only_wrong_answers_are_counted(void **state)
{
    (void)state;
    const int away[] = {ERR_ORIGIN_BUSY, ERR_ORIGIN_DOWN, -ETIMEDOUT};
    const int wrong[] = {ERR_ORIGIN_FAILED, ERR_ORIGIN_SHORT, ERR_CONFLICT};
    struct retry r = {.attempt = 0};
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(retry_delay_ms(&r, away[i % 3], 0, 0, 0, true, 0), 0);
        retry_count(&r, away[i % 3]);
    }
    for (int i = 0; i < RETRY_ATTEMPTS_MAX - 1; i++) {
        assert_int_equal(retry_delay_ms(&r, wrong[i % 3], 0, 0, 0, true, 0), 0);
        retry_count(&r, wrong[i % 3]);
        retry_count(&r, away[i % 3]);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(retry_delay_ms(&r, wrong[i], 0, 0, 0, true, 0), -1);
        assert_int_equal(retry_delay_ms(&r, away[i], 0, 0, 0, true, 0), 0);
    }
}

/* Bytes that came faster than the least rate begin patience anew; a trickle does not, nor one that breaks off
 * behind each byte, and a rate of none asks for any byte. */
static void test_a_trickle_does_not_get_on(void **state)
{
    (void)state;
    assert_true(retry_gets_on(8 * MIB, 30000, KIB) && retry_gets_on(30 * KIB, 30000, KIB));
    assert_false(retry_gets_on(30 * KIB - 1, 30000, KIB) || retry_gets_on(60, 30000, KIB));
    assert_false(retry_gets_on(1, 0, KIB));
    assert_true(retry_gets_on(100, 0, KIB) && retry_gets_on(UINT64_MAX, 1, GIB));
    assert_true(retry_gets_on(1, 3600000, 0));
    assert_false(retry_gets_on(0, 1, 0));
}

/* Without budget who waits for an origin asks seldom, whatever it says. */
static void test_without_budget_it_is_asked_seldom(void **state)
{
    (void)state;
    for (uint32_t attempt = 0; attempt < 40; attempt++) {
        struct retry r = {.attempt = attempt};
        for (uint64_t random = 0; random < 20000; random += 77) {
            int code = random % 2 ? ERR_ORIGIN_DOWN : ERR_ORIGIN_FAILED;
            int64_t d = retry_delay_ms(&r, code, 5, 0, 0, /* budget_left= */ false, random);
            assert_true(d >= RETRY_LONGEST_MS / 2 && d <= RETRY_LONGEST_MS);
        }
    }
}

/* A wait that would pass the deadline ends before it, in the second half of what is left; the tries become no
 * storm towards the end. */
static void test_the_time_that_is_left_is_used(void **state)
{
    (void)state;
    for (uint64_t random = 0; random < 100000; random += 77) {
        const struct retry r = {.attempt = 20};
        uint64_t now = 1000, tries = 0;
        int64_t d;
        for (; (d = retry_delay_ms(&r, ERR_ORIGIN_DOWN, now, 9000, 500, true, random)) >= 0; tries++) {
            assert_true(d >= 500 && now + (uint64_t)d < 9000);
            now += (uint64_t)d;
            assert_true(tries < 9000 / 500);
        }
        assert_true(now >= 9000 - 500 - RETRY_LAST_MS);
    }
}

/* The budget starts full, goes down by one per retry, comes back by a tenth per success, and has both its
 * ends. */
static void test_budget(void **state)
{
    struct retry_budget b;
    retry_budget_init(&b, 3);
    retry_budget_earn(&b);
    for (int i = 0; i < 3; i++)
        assert_true(retry_budget_take(&b));
    assert_false(retry_budget_take(&b));
    for (int i = 0; i < 9; i++)
        retry_budget_earn(&b);
    assert_false(retry_budget_take(&b));
    retry_budget_earn(&b);
    assert_true(retry_budget_take(&b));
    assert_false(retry_budget_take(&b));
    for (int i = 0; i < 1000; i++)
        retry_budget_earn(&b);
    assert_int_equal(atomic_load(&b.tenths), 30);
}

struct taker {
    struct retry_budget *b;
    int taken;
};

static void *take_and_earn(void *arg)
{
    struct taker *t = arg;
    for (int i = 0; i < 100000; i++) {
        if (retry_budget_take(t->b))
            t->taken++;
        retry_budget_earn(t->b);
    }
    return NULL;
}

/* With several threads no token is made or lost: what was taken is at most what was there plus what was
 * earned. */
static void test_budget_threads(void **state)
{
    struct retry_budget b;
    retry_budget_init(&b, 100);
    struct taker takers[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        takers[i] = (struct taker){&b, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, take_and_earn, &takers[i]), 0);
    }
    int64_t taken = 0;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        taken += takers[i].taken;
    }
    int64_t left = atomic_load(&b.tenths);
    assert_true(left >= 0 && left <= 1000);
    /* Every earn counts once the budget is below its maximum, and takes far outnumber earned tokens. */
    assert_true(10 * taken + left <= 1000 + 400000);
    assert_true(10 * taken + left >= 400000);
}

/* Until the first failure a round doubles the limit, so that few requests pass before as many run as may. */
static void test_concurrency_starts_fast(void **state)
{
    (void)state;
    struct concurrency c;
    concurrency_init(&c, 16, 2, 64);
    for (int i = 0; i < 16; i++)
        concurrency_on_success(&c);
    assert_true(c.limit == 32);
    for (int i = 0; i < 32; i++)
        concurrency_on_success(&c);
    assert_true(c.limit == 64);
    concurrency_on_success(&c);
    assert_true(c.limit == 64);
    concurrency_init(&c, 16, 2, 64);
    concurrency_on_failure(&c, -ENOENT, 5); /* says nothing of the origin's load */
    concurrency_on_success(&c);
    assert_true(c.limit == 17);
}

/* After a failure successes raise the limit by one per round; it stays between floor and ceiling whatever
 * comes. */
static void test_concurrency(void **state)
{
    struct concurrency c;
    concurrency_init(&c, 16, 2, 16);
    concurrency_on_failure(&c, ERR_ORIGIN_BUSY, 0);
    assert_true(c.limit == 8);
    for (int i = 0; i < 8; i++)
        concurrency_on_success(&c);
    assert_true(c.limit > 8.9 && c.limit <= 9);
    c.last_cut_ms = 0;
    for (int i = 0; i < 10000; i++)
        concurrency_on_success(&c);
    assert_true(c.limit == 16);
    concurrency_on_failure(&c, ERR_ORIGIN_BUSY, 0);
    assert_true(c.limit == 8);
    concurrency_on_failure(&c, ERR_ORIGIN_BUSY, 999);
    assert_true(c.limit == 8);
    concurrency_on_failure(&c, ERR_ORIGIN_BUSY, 1001);
    assert_true(c.limit == 4);
    concurrency_on_failure(&c, -ETIMEDOUT, 2001);
    assert_true(c.limit > 3.59 && c.limit < 3.61);
    concurrency_on_failure(&c, -ENOENT, 9001);
    assert_true(c.limit > 3.59);
    for (uint64_t t = 10000; t < 50000; t += 1000)
        concurrency_on_failure(&c, ERR_ORIGIN_BUSY, t);
    assert_true(c.limit == 2);
    concurrency_init(&c, 100, 1, 4);
    assert_true(c.limit == 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transient),
        cmocka_unit_test(test_delay_bounds),
        cmocka_unit_test(test_a_pause_is_waited_for),
        cmocka_unit_test(test_gives_up),
        cmocka_unit_test(test_only_wrong_answers_are_counted),
        cmocka_unit_test(test_a_trickle_does_not_get_on),
        cmocka_unit_test(test_without_budget_it_is_asked_seldom),
        cmocka_unit_test(test_the_time_that_is_left_is_used),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_budget_threads),
        cmocka_unit_test(test_concurrency_starts_fast),
        cmocka_unit_test(test_concurrency),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
