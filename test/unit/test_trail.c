/* layer: origin */
/* Names of buckets by whose requests a bucket is asked: kept, told on, forgotten. */
#include "base/sys.h"
#include "origin/trail.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static const char *told(struct trail *t, uint64_t now_ms)
{
    static char text[TRAIL_TEXT_MAX + 1];
    struct buf _cleanup_buf_ b = BUF_INIT(TRAIL_TEXT_MAX);
    trail_tell(t, now_ms, &b);
    (void)snprintf(text, sizeof(text), SLICE_FMT, SLICE_ARG(buf_view(&b)));
    return text;
}

/* Two that are asked, by nobody yet. */
static int set_up(void **state)
{
    static struct trail two[2];
    trail_init(&two[0]);
    trail_init(&two[1]);
    *state = two;
    return 0;
}

static int tear_down(void **state)
{
    struct trail *two = *state;
    trail_fini(&two[0]);
    trail_fini(&two[1]);
    return 0;
}

/* What was asked by others is told behind them, each of them once, and it is found there; nobody else is. */
static void test_names_of_who_asked_are_told_on(void **state)
{
    struct trail *a = *state, *b = a + 1;
    char want[2 * TRAIL_NAME_SIZE + 1];
    assert_string_not_equal(a->own, b->own);
    assert_string_equal(told(a, 1), a->own);
    trail_note(b, slice_str(a->own), 1);
    trail_note(b, slice_str(a->own), 2);
    (void)snprintf(want, sizeof(want), "%s, %s", a->own, b->own);
    assert_string_equal(told(b, 3), want);
    assert_true(trail_has(slice_str(want), a->own) && trail_has(slice_str(want), b->own));
    assert_false(trail_has(slice_str(a->own), b->own));
    assert_false(trail_has(SLICE_NULL, a->own));
}

/* Whom nobody has heard of for a while asks no more: what was mended works again. */
static void test_names_are_forgotten(void **state)
{
    struct trail *a = *state, *b = a + 1;
    trail_note(b, slice_str(a->own), 1000);
    assert_true(trail_has(slice_str(told(b, 1000 + TRAIL_MS - 1)), a->own));
    assert_string_equal(told(b, 1000 + TRAIL_MS), b->own);
}

/* Caches between two nodes add names of their own and parameters; only ours are kept, and nothing that is no
 * name gets into a header. */
static void test_what_others_add_is_passed_over(void **state)
{
    struct trail *a = *state, *b = a + 1;
    char line[256], want[2 * TRAIL_NAME_SIZE + 1];
    (void)snprintf(line, sizeof(line), "cdn.example;x=1 ,, %s ; v=2,forebay-,forebay-0123456789abcde\x01",
                   a->own);
    assert_true(trail_has(slice_str(line), a->own));
    trail_note(b, slice_str(line), 1);
    (void)snprintf(want, sizeof(want), "%s, %s", a->own, b->own);
    assert_string_equal(told(b, 1), want);
}

/* However many ask, the header stays short; those who asked last are in it. */
static void test_of_many_the_last_are_kept(void **state)
{
    struct trail *a = *state;
    char name[TRAIL_NAME_SIZE];
    for (unsigned i = 0; i < 3 * TRAIL_MAX; i++) {
        (void)snprintf(name, sizeof(name), "forebay-%016x", i);
        trail_note(a, slice_str(name), i);
    }
    for (unsigned i = 0; i < 3 * TRAIL_MAX; i++) {
        (void)snprintf(name, sizeof(name), "forebay-%016x", i);
        assert_int_equal(trail_has(slice_str(told(a, 100)), name), i >= 2 * TRAIL_MAX);
    }
    assert_int_equal(strlen(told(a, 100)), TRAIL_MAX * (TRAIL_NAME_SIZE + 1) + TRAIL_NAME_SIZE - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_names_of_who_asked_are_told_on, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_names_are_forgotten, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_others_add_is_passed_over, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_of_many_the_last_are_kept, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
