/* layer: mount */
/* Names that the kernel was told are not there. */
#include "mount/absent.h"

#include "base/macro.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define NOW_MS 1000

struct seen {
    char last[64];
    size_t n;
};

static void on_absent(void *arg, uint64_t parent_id, struct slice name)
{
    struct seen *s = arg;
    (void)snprintf(s->last, sizeof(s->last), "%d/" SLICE_FMT, (int)parent_id, SLICE_ARG(name));
    s->n++;
}

/* Each name is given once, in its directory, and not again. */
static void each_is_taken_once(void **state)
{
    (void)state;
    struct absent *a = absent_new();
    struct seen s = {0};
    assert_true(absent_take(a, NOW_MS, on_absent, &s));
    assert_int_equal(s.n, 0);
    for (int i = 0; i < 3; i++)
        absent_note(a, 7, SLICE_LIT("name"), NOW_MS + 1);
    assert_true(absent_take(a, NOW_MS, on_absent, &s));
    assert_int_equal(s.n, 1);
    assert_string_equal(s.last, "7/name");
    assert_true(absent_take(a, NOW_MS, on_absent, &s));
    assert_int_equal(s.n, 1);
    absent_note(a, 8, SLICE_LIT("name"), NOW_MS + 1);
    absent_free(a);
}

/* Of more than there is room for the last ones are given, and that there were others is said, as long as one
 * of those is believed. (Mutations: is_all is always true; lost_until_ms of the last one that was lost.) */
static void more_than_there_is_room_for(void **state)
{
    (void)state;
    struct absent *a = absent_new();
    struct seen s = {0};
    absent_note(a, 1, SLICE_LIT("name"), NOW_MS + 1);
    absent_note(a, 2, SLICE_LIT("name"), NOW_MS);
    for (size_t i = 0; i < ABSENT_MAX; i++)
        absent_note(a, i + 3, SLICE_LIT("name"), NOW_MS + 9);
    assert_false(absent_take(a, NOW_MS, on_absent, &s));
    assert_int_equal(s.n, ABSENT_MAX);
    absent_note(a, 1, SLICE_LIT("other"), NOW_MS + 9);
    assert_true(absent_take(a, NOW_MS, on_absent, &s));
    assert_string_equal(s.last, "1/other");
    absent_free(a);
}

/* Who is no longer believed is not missed: also of one that was asked for again and again the last answer
 * counts. (Seen to fail where all were counted that were noted since the last time.) */
static void more_than_are_believed(void **state)
{
    (void)state;
    struct absent *a = absent_new();
    struct seen s = {0};
    for (size_t i = 0; i < 3 * ABSENT_MAX; i++)
        absent_note(a, i + 1, SLICE_LIT("name"), NOW_MS);
    assert_true(absent_take(a, NOW_MS, on_absent, &s));
    assert_int_equal(s.n, ABSENT_MAX);
    for (uint64_t until_ms = NOW_MS; until_ms <= NOW_MS + 1; until_ms++)
        absent_note(a, 1, SLICE_LIT("name"), until_ms);
    for (size_t i = 0; i < ABSENT_MAX; i++)
        absent_note(a, i + 2, SLICE_LIT("name"), NOW_MS);
    assert_false(absent_take(a, NOW_MS, on_absent, &s));
    absent_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_is_taken_once),
        cmocka_unit_test(more_than_there_is_room_for),
        cmocka_unit_test(more_than_are_believed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
