/* layer: namespace */
/* threaded */
/* For how long an upstream asks again, and who need not wait for that. */
#include "upstream_common.h"

static void unsent_at_first(struct script *s, enum script_op op, unsigned nth, const struct origin_get *g,
                            struct script_fate *fate)
{
    (void)s, (void)op, (void)g;
    fate->error = nth <= 3 ? ERR_ORIGIN_DOWN : nth == 4 ? ERR_ORIGIN_FAILED : 0;
    fate->is_unsent = nth <= 3;
}

/* It is repeated, too, as long as nothing of it left, as where connections are refused; and no more when some
 * did. (Fails without ORIGIN_REACH_NOTHING in put.) */
static void test_conditional_put_of_which_nothing_left_is_repeated(void **state)
{
    (void)state;
    clock_sys_start(1000000000, 1000000000);
    struct fixture *f = make("");
    f->script->fn = unsent_at_first;
    struct origin_put p = {.key = SLICE_LIT("k"), .if_match = SLICE_LIT("e")};
    struct origin_body body = {.read = no_body};
    struct origin_attr attr;
    assert_int_equal(upstream_put(f->u, &p, &body, f->arena, &attr, NULL), ERR_ORIGIN_FAILED);
    assert_int_equal(script_count(f->script, SCRIPT_PUT), 4);
    drop(f);
    clock_sys_stop();
}

#define LONG_NS ((uint64_t)100000000000)

/* Bytes move for 100 seconds, and then the connection breaks; the first `arg` times. */
static void breaks_late(struct script *s, enum script_op op, unsigned nth, const struct origin_get *g,
                        struct script_fate *fate)
{
    (void)g;
    for (int i = 0; i < 2; i++) {
        if (op == SCRIPT_PUT)
            origin_moved(&s->origin, 1);
        sys->sleep_ns(i == 0 ? LONG_NS : 0);
    }
    fate->error = nth <= (uintptr_t)s->arg ? ERR_ORIGIN_DOWN : 0;
}

/* How long a body is on its way is no failure of its origin: it is sent again, for as long as `retry` says,
 * when the connection breaks after that time; again when it was on its way for as long once more, but not for
 * ever. So is what takes long without a body. (The first fails where the time begins with the first try; the
 * second where only that one begins it anew.) */
static void test_patience_begins_with_the_failure(void **state)
{
    (void)state;
    clock_sys_start(1000000000, 1000000000);
    struct fixture *f = make("retry=5s\norigin.timeout=3s\n");
    struct origin_put p = {.key = SLICE_LIT("k")};
    struct origin_body body = {.read = no_body};
    struct origin_attr attr;
    struct origin_page page;
    f->script->fn = breaks_late;
    for (uintptr_t n = 1; n <= 3; n++) {
        f->script->arg = (void *)n;
        f->script->count[SCRIPT_PUT] = 0;
        assert_int_equal(upstream_put(f->u, &p, &body, f->arena, &attr, NULL), 0);
        assert_int_equal(script_count(f->script, SCRIPT_PUT), n + 1);
    }
    f->script->arg = (void *)UINTPTR_MAX;
    f->script->count[SCRIPT_PUT] = 0;
    assert_int_equal(upstream_put(f->u, &p, &body, f->arena, &attr, NULL), ERR_ORIGIN_DOWN);
    assert_true(script_count(f->script, SCRIPT_PUT) <= 2 * RETRY_ATTEMPTS_MAX);
    f->script->arg = (void *)(uintptr_t)1;
    struct origin_list l = {.max = 1};
    struct arena *own = arena_new(MIB);
    assert_int_equal(upstream_list(f->u, &l, own, &page, NULL), 0);
    arena_free(own);
    drop(f);
    clock_sys_stop();
}

/* Takes the body at once, and says nothing. */
static void takes_and_hangs(struct script *s, enum script_op op, unsigned nth, const struct origin_get *g,
                            struct script_fate *fate)
{
    (void)op, (void)g, (void)nth;
    origin_moved(&s->origin, 1);
    sys->sleep_ns(30000000000ull);
    fate->error = -ETIMEDOUT;
}

/* That an origin takes the bytes of a body is not enough: it is given up in time when it says nothing. (Fails
 * without gets_on in renew_patience.) */
static void test_a_body_that_is_taken_is_no_sign_of_life(void **state)
{
    (void)state;
    clock_sys_start(1000000000, 1000000000);
    struct fixture *f = make("retry=60s\n");
    struct origin_put p = {.key = SLICE_LIT("k")};
    struct origin_body body = {.read = no_body};
    struct origin_attr attr;
    f->script->fn = takes_and_hangs;
    assert_int_equal(upstream_put(f->u, &p, &body, f->arena, &attr, NULL), -ETIMEDOUT);
    assert_true(script_count(f->script, SCRIPT_PUT) <= 3);
    drop(f);
    clock_sys_stop();
}

/* Whoever has an old answer is not told to come again when he is given up for others that wait for the
 * origin, and then the others that have one do not wait. (Fails without quit_is_refused in
 * upstream_doubt_end.) */
static void test_who_has_an_old_answer_waits_for_nobody(void **state)
{
    (void)state;
    struct fixture *f = make("");
    struct upstream_doubt doubt;
    struct quit_crowd crowd = {.most = 1, .n = 1};
    struct quit_turn turn;
    struct quit crowded = {.turn = &turn};
    quit_turn_begin(&turn, &crowd);
    quit_enter(&crowded);
    assert_true(upstream_doubt_begin(f->u, &doubt));
    while (!quit_is_now())
        sys->sleep_ns(10000000);
    assert_true(upstream_doubt_end(&doubt, -ECANCELED));
    quit_leave(&crowded);
    assert_true(quit_turn_end(&turn));
    assert_false(upstream_doubt_begin(f->u, &doubt));
    upstream_lives(f->u);
    assert_true(upstream_doubt_begin(f->u, &doubt));
    assert_false(upstream_doubt_end(&doubt, -ECANCELED)); /* he himself wants it no more */
    assert_true(upstream_doubt_begin(f->u, &doubt));
    assert_false(upstream_doubt_end(&doubt, -ENOENT));
    drop(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conditional_put_of_which_nothing_left_is_repeated),
        cmocka_unit_test(test_patience_begins_with_the_failure),
        cmocka_unit_test(test_a_body_that_is_taken_is_no_sign_of_life),
        cmocka_unit_test(test_who_has_an_old_answer_waits_for_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
