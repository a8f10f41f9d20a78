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
    assert_true(absent_take(a, on_absent, &s));
    assert_int_equal(s.n, 0);
    for (int i = 0; i < 3; i++)
        absent_note(a, 7, SLICE_LIT("name"));
    assert_true(absent_take(a, on_absent, &s));
    assert_int_equal(s.n, 1);
    assert_string_equal(s.last, "7/name");
    assert_true(absent_take(a, on_absent, &s));
    assert_int_equal(s.n, 1);
    absent_note(a, 8, SLICE_LIT("name"));
    absent_free(a);
}

/* Of more than there is room for the last ones are given, and that there were others is said. (Mutation:
 * is_all is always true.) */
static void more_than_there_is_room_for(void **state)
{
    (void)state;
    struct absent *a = absent_new();
    struct seen s = {0};
    for (size_t i = 0; i <= ABSENT_MAX; i++)
        absent_note(a, i + 1, SLICE_LIT("name"));
    assert_false(absent_take(a, on_absent, &s));
    assert_int_equal(s.n, ABSENT_MAX);
    absent_note(a, 1, SLICE_LIT("other"));
    assert_true(absent_take(a, on_absent, &s));
    assert_string_equal(s.last, "1/other");
    absent_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_is_taken_once),
        cmocka_unit_test(more_than_there_is_room_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
