/* layer: base */
/* threaded */
/* Background threads with turns: none is lost that was called for, none comes after the end. */
#include "base/chore.h"

#include "base/sys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <time.h>

#include <cmocka.h>

#define MS       ((uint64_t)1000000)
#define FOR_EVER (3600 * 1000 * MS) /* fails by the runner's time limit where it is waited for */

struct work {
    struct chore chore;
    uint64_t next_ns;
    atomic_int turns, wanted;
    int done; /* as many as were wanted, at the last turn; no atomic: what stop waits for is seen after it */
    bool is_long, waits;
};

static uint64_t turn(void *arg)
{
    struct work *w = arg;
    w->done = atomic_load(&w->wanted);
    atomic_fetch_add(&w->turns, 1);
    while (w->is_long && !chore_is_stopping(&w->chore))
        sys->sleep_ns(MS);
    if (w->waits)
        chore_pause(&w->chore, FOR_EVER);
    return w->next_ns;
}

static void wait_for_turns(struct work *w, int n)
{
    while (atomic_load(&w->turns) < n)
        sys->sleep_ns(MS);
}

/* Without being called it has its turns by time, and the first after the first time. */
static void turns_come_by_time(void **state)
{
    struct work w = {.next_ns = MS};
    assert_int_equal(chore_start(&w.chore, MS, turn, &w), 0);
    wait_for_turns(&w, 5);
    chore_stop(&w.chore);
    int n = atomic_load(&w.turns);
    sys->sleep_ns(5 * MS);
    assert_int_equal(atomic_load(&w.turns), n);
}

/* It waits for its time or for a call, the first turn too. */
static void turns_come_by_calls(void **state)
{
    static const uint64_t times[] = {CHORE_UNTIL_CALLED, FOR_EVER};
    for (size_t i = 0; i < ARRAY_SIZE(times); i++) {
        struct work w = {.next_ns = times[i]};
        assert_int_equal(chore_start(&w.chore, times[i], turn, &w), 0);
        for (int n = 1; n <= 50; n++) {
            chore_call(&w.chore);
            wait_for_turns(&w, n);
        }
        chore_stop(&w.chore);
        assert_int_equal(atomic_load(&w.turns), 50);
    }
}

/* What was called for before the stop is done when stop returns, whether the thread had begun or not, waits
 * or is at work. (Seen to fail without is_called in wait_for_turn's result.) */
static void calls_before_the_end_are_answered(void **state)
{
    for (int i = 0; i < 2000; i++) {
        struct work w = {.next_ns = CHORE_UNTIL_CALLED};
        assert_int_equal(chore_start(&w.chore, CHORE_UNTIL_CALLED, turn, &w), 0);
        for (int n = 0; n < i % 3; n++) {
            atomic_store(&w.wanted, n + 1);
            chore_call(&w.chore);
            if (i % 2)
                wait_for_turns(&w, 1);
        }
        chore_stop(&w.chore);
        assert_int_equal(w.done, i % 3);
        assert_true(atomic_load(&w.turns) <= i % 3);
    }
}

/* A long turn learns of the end, and one that pauses goes on at once: at the end, and when it is called. */
static void turns_learn_of_the_end(void **state)
{
    struct work w = {.next_ns = MS, .is_long = true};
    assert_int_equal(chore_start(&w.chore, 0, turn, &w), 0);
    wait_for_turns(&w, 1);
    assert_false(chore_is_stopping(&w.chore));
    chore_stop(&w.chore);
    assert_int_equal(atomic_load(&w.turns), 1);

    struct work p = {.next_ns = CHORE_UNTIL_CALLED, .waits = true};
    assert_int_equal(chore_start(&p.chore, 0, turn, &p), 0);
    wait_for_turns(&p, 1);
    chore_call(&p.chore);
    wait_for_turns(&p, 2);
    chore_stop(&p.chore);
    assert_int_equal(atomic_load(&p.turns), 2);
}

/* Without a turn, twice, and never started: stopping is always right. */
static void stopping_is_always_right(void **state)
{
    struct work w = {.next_ns = MS};
    chore_stop(&w.chore);
    assert_int_equal(chore_start(&w.chore, FOR_EVER, turn, &w), 0);
    chore_stop(&w.chore);
    chore_stop(&w.chore);
    assert_int_equal(atomic_load(&w.turns), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns_come_by_time),
        cmocka_unit_test(turns_come_by_calls),
        cmocka_unit_test(calls_before_the_end_are_answered),
        cmocka_unit_test(turns_learn_of_the_end),
        cmocka_unit_test(stopping_is_always_right),
    };
    return cmocka_run_group_tests_name("chore", tests, NULL, NULL);
}
