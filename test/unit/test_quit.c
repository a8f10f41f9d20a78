/* layer: base */
/* threaded */
#include "base/macro.h"
#include "base/quit.h"
#include "base/sys.h"
#include "support/clock_sys.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define MS ((uint64_t)1000000)

/* A scope counts while it is entered, for this thread alone; of several the most urgent one. */
static void test_scopes_count_while_they_last(void **state)
{
    (void)state;
    atomic_bool soon = false, now = false;
    struct quit outer = {.soon = &soon}, inner = {.now = &now};
    assert_int_equal(quit_level(), QUIT_NO);
    quit_enter(&outer);
    quit_enter(&inner);
    assert_int_equal(quit_level(), QUIT_NO);
    atomic_store(&soon, true);
    assert_int_equal(quit_level(), QUIT_SOON);
    assert_false(quit_is_now());
    atomic_store(&now, true);
    assert_int_equal(quit_level(), QUIT_NOW);
    quit_leave(&inner);
    assert_int_equal(quit_level(), QUIT_SOON);
    quit_leave(&outer);
    assert_int_equal(quit_level(), QUIT_NO);
}

/* Patience is what is asked for, and short once anything is to end. */
static void test_patience_is_short_at_the_end(void **state)
{
    (void)state;
    atomic_bool soon = false;
    struct quit q = {.soon = &soon};
    quit_enter(&q);
    assert_int_equal(quit_patience_ms(60000), 60000);
    atomic_store(&soon, true);
    assert_int_equal(quit_patience_ms(60000), QUIT_SILENCE_MS);
    assert_int_equal(quit_patience_ms(100), 100);
    quit_leave(&q);
}

/* Who tidies up is left alone for a while, whatever is entered meanwhile, and not for ever. */
static void test_tidying_up_has_its_time(void **state)
{
    (void)state;
    atomic_bool now = true;
    struct quit outer = {.now = &now}, tidy, inner = {.now = &now};
    clock_sys_start(1000 * MS, 1000 * MS);
    quit_enter(&outer);
    quit_enter_tidy(&tidy);
    quit_enter(&inner);
    assert_int_equal(quit_level(), QUIT_NO);
    clock_sys_advance((QUIT_TIDY_MS - 1) * MS);
    assert_int_equal(quit_level(), QUIT_NO);
    clock_sys_advance(MS);
    assert_int_equal(quit_level(), QUIT_NOW);
    quit_leave(&inner);
    quit_leave(&tidy);
    assert_int_equal(quit_level(), QUIT_NOW);
    quit_leave(&outer);
    clock_sys_stop();
}

static void *level_of(void *arg)
{
    const struct quit *before = quit_use(arg);
    assert_null(before);
    return quit_is_now() ? arg : NULL;
}

/* Another thread knows nothing of them, until it works for this one. */
static void test_another_thread_gets_them(void **state)
{
    (void)state;
    atomic_bool now = true;
    struct quit q = {.now = &now};
    const struct quit *given[] = {NULL, &q};
    quit_enter(&q);
    assert_ptr_equal(quit_here(), &q);
    for (size_t i = 0; i < ARRAY_SIZE(given); i++) {
        pthread_t t;
        void *result;
        assert_int_equal(pthread_create(&t, NULL, level_of, (void *)(uintptr_t)given[i]), 0);
        assert_int_equal(pthread_join(t, &result), 0);
        assert_ptr_equal(result, given[i]);
    }
    quit_leave(&q);
}

/* What a thread of the crowd hears now that has this turn. */
static enum quit_level level_in(struct quit_turn *t)
{
    struct quit q = {.turn = t};
    quit_enter(&q);
    enum quit_level level = quit_level();
    quit_leave(&q);
    return level;
}

/* Of a crowd so many wait for long, and go on; others are given up when they have, and sooner once it is
 * full; who ends makes room. Who asks for the first time is never given up. */
static void test_a_crowd_waits_in_part(void **state)
{
    (void)state;
    struct quit_crowd crowd = {.most = 2}, any = {.most = 0};
    struct quit_turn t[3], late, endless;
    clock_sys_start(1000 * MS, 1000 * MS);
    for (size_t i = 0; i < ARRAY_SIZE(t); i++) {
        quit_turn_begin(&t[i], &crowd);
        assert_int_equal(level_in(&t[i]), QUIT_NO);
    }
    quit_turn_begin(&endless, &any);
    assert_int_equal(level_in(&endless), QUIT_NO);
    clock_sys_advance((QUIT_LONG_MS - 1) * MS);
    for (size_t i = 0; i < ARRAY_SIZE(t); i++)
        assert_int_equal(level_in(&t[i]), QUIT_NO);
    clock_sys_advance(MS);
    for (size_t i = 0; i < ARRAY_SIZE(t); i++)
        assert_int_equal(level_in(&t[i]), i < 2 ? QUIT_NO : QUIT_NOW);
    assert_int_equal(level_in(&t[2]), QUIT_NOW);
    quit_turn_begin(&late, &crowd);
    assert_int_equal(level_in(&late), QUIT_NO);
    clock_sys_advance((QUIT_CROWDED_MS - 1) * MS);
    assert_int_equal(level_in(&late), QUIT_NO);
    clock_sys_advance(MS);
    assert_int_equal(level_in(&late), QUIT_NOW);
    assert_int_equal(level_in(&t[0]), QUIT_NO);
    assert_true(quit_turn_end(&late) && quit_turn_end(&t[2]));
    assert_false(quit_turn_end(&t[0]));
    assert_int_equal(atomic_load(&crowd.n), 1);
    quit_turn_begin(&late, &crowd);
    assert_int_equal(level_in(&late), QUIT_NO);
    clock_sys_advance(QUIT_LONG_MS * MS);
    assert_int_equal(level_in(&late), QUIT_NO);
    assert_int_equal(level_in(&endless), QUIT_NO);
    assert_false(quit_turn_end(&late) || quit_turn_end(&t[1]) || quit_turn_end(&endless));
    assert_int_equal(atomic_load(&crowd.n), 0);
    clock_sys_stop();
}

/* Who waits for what shows signs of life has not waited since the last of them, however full the crowd is;
 * once those end it is as ever. */
static void test_a_crowd_waits_for_what_lives(void **state)
{
    (void)state;
    struct quit_crowd crowd = {.most = 1, .n = 1}; /* full */
    struct quit_turn t;
    _Atomic uint64_t life_ms = 0;
    clock_sys_start(1000 * MS, 1000 * MS);
    quit_turn_begin(&t, &crowd);
    assert_null(quit_watch(&life_ms));
    assert_int_equal(level_in(&t), QUIT_NO);
    for (int i = 0; i < 20; i++) {
        clock_sys_advance((QUIT_CROWDED_MS - 1) * MS);
        assert_int_equal(level_in(&t), QUIT_NO);
        atomic_store(&life_ms, sys_mono_ms());
    }
    clock_sys_advance(QUIT_CROWDED_MS * MS);
    assert_int_equal(level_in(&t), QUIT_NOW);
    assert_ptr_equal(quit_watch(NULL), &life_ms);
    assert_true(quit_turn_end(&t));
    clock_sys_stop();
}

/* Bytes that leave in a thread, or in one that works for it, are a sign of life for its turn and for where it
 * has it noted, and for nobody else's. (Without the turn's life in is_refused whoever sends slowly is given
 * up.) */
static void test_who_gets_on_has_not_waited(void **state)
{
    (void)state;
    struct quit_crowd crowd = {.most = 1, .n = 1}; /* full */
    struct quit_turn t, other;
    _Atomic uint64_t noted_ms = 0;
    struct quit q = {.turn = &t}, sender = {.life_ms = &noted_ms};
    clock_sys_start(1000 * MS, 1000 * MS);
    quit_lives(); /* of nothing */
    quit_turn_begin(&t, &crowd);
    quit_turn_begin(&other, &crowd);
    assert_int_equal(level_in(&other), QUIT_NO);
    quit_enter(&q);
    quit_enter(&sender);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(quit_level(), QUIT_NO);
        clock_sys_advance((QUIT_CROWDED_MS - 1) * MS);
        quit_lives();
        assert_int_equal(atomic_load(&noted_ms), sys_mono_ms());
        quit_lives_at(1); /* long ago: it stays */
        assert_int_equal(atomic_load(&noted_ms), sys_mono_ms());
    }
    assert_false(quit_is_refused());
    clock_sys_advance(QUIT_CROWDED_MS * MS);
    assert_int_equal(quit_level(), QUIT_NOW);
    assert_true(quit_is_refused());
    quit_leave(&sender);
    quit_leave(&q);
    assert_false(quit_is_refused());
    assert_int_equal(level_in(&other), QUIT_NOW);
    assert_true(quit_turn_end(&t) && quit_turn_end(&other));
    clock_sys_stop();
}

/* What outlives a turn gets the scopes around it. (With quit_here in part_send.c or writer.c a sender looks
 * at a turn that has ended.) */
static void test_what_lasts_is_no_turn(void **state)
{
    (void)state;
    struct quit_crowd crowd = {.most = 1};
    struct quit_turn t;
    atomic_bool now = false;
    struct quit outer = {.now = &now}, q = {.turn = &t};
    assert_null(quit_lasting());
    quit_turn_begin(&t, &crowd);
    quit_enter(&outer);
    quit_enter(&q);
    assert_ptr_equal(quit_here(), &q);
    assert_ptr_equal(quit_lasting(), &outer);
    quit_leave(&q);
    assert_ptr_equal(quit_lasting(), &outer);
    quit_leave(&outer);
    assert_false(quit_turn_end(&t));
}

/* Who cannot look up counts as one that waits for long from the beginning, and others like it wait for its
 * place, for as long as anybody does in a crowd that is full; what it did is a sign of life. Who belongs to
 * no crowd just goes. */
static void test_who_cannot_look_up_has_a_place(void **state)
{
    (void)state;
    struct quit_crowd crowd = {.most = 1};
    struct quit_turn t[2];
    struct quit q[2] = {{.turn = &t[0]}, {.turn = &t[1]}};
    struct quit_deaf first, inner, second, nobodys;
    clock_sys_start(1000 * MS, 1000 * MS);
    assert_int_equal(quit_deaf_begin(&nobodys), QUIT_NO);
    quit_deaf_end(&nobodys);
    quit_turn_begin(&t[0], &crowd);
    quit_turn_begin(&t[1], &crowd);
    quit_enter(&q[0]);
    assert_int_equal(quit_deaf_begin(&first), QUIT_NO);
    assert_int_equal(quit_deaf_begin(&inner), QUIT_NO);
    quit_deaf_end(&inner);
    assert_int_equal(atomic_load(&crowd.n), 1);
    quit_leave(&q[0]);
    quit_enter(&q[1]);
    assert_int_equal(quit_deaf_begin(&second), QUIT_NOW);
    quit_deaf_end(&second);
    assert_true(quit_is_refused());
    quit_leave(&q[1]);
    assert_true(quit_turn_end(&t[1]));
    clock_sys_advance(10 * QUIT_LONG_MS * MS);
    assert_int_equal(level_in(&t[0]), QUIT_NO);
    quit_deaf_end(&first);
    assert_int_equal(atomic_load(&crowd.n), 0);
    clock_sys_advance((QUIT_LONG_MS - 1) * MS);
    assert_int_equal(level_in(&t[0]), QUIT_NO);
    assert_false(quit_turn_end(&t[0]));
    assert_int_equal(atomic_load(&crowd.n), 0);
    clock_sys_stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scopes_count_while_they_last),
        cmocka_unit_test(test_patience_is_short_at_the_end),
        cmocka_unit_test(test_tidying_up_has_its_time),
        cmocka_unit_test(test_another_thread_gets_them),
        cmocka_unit_test(test_a_crowd_waits_in_part),
        cmocka_unit_test(test_a_crowd_waits_for_what_lives),
        cmocka_unit_test(test_who_gets_on_has_not_waited),
        cmocka_unit_test(test_what_lasts_is_no_turn),
        cmocka_unit_test(test_who_cannot_look_up_has_a_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
