/* layer: mount */
/* threaded */
/* Which version became which by our own changes. */
#include "mount/versions.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define KEY   SLICE_LIT("dir/key")
#define OTHER SLICE_LIT("dir/other")

static void change(struct versions *v, struct slice key, const char *from, const char *to)
{
    struct version_change c;
    versions_begin(v, &c, key);
    versions_end(v, &c, slice_str(from), slice_str(to));
}

static void is(struct versions *v, struct slice key, const char *from, const char *expected)
{
    char *now = versions_now(v, key, slice_str(from), NULL);
    if (expected)
        assert_string_equal(now, expected);
    else
        assert_null(now);
    free(now);
}

/* Each leads to the last one; what nobody here has changed leads nowhere, and so does another key. */
static void steps_lead_to_the_last(void **state)
{
    (void)state;
    struct versions v;
    versions_init(&v);
    is(&v, KEY, "a", NULL);
    change(&v, KEY, "a", "b");
    change(&v, OTHER, "b", "x");
    change(&v, KEY, "b", "c");
    is(&v, KEY, "a", "c");
    is(&v, KEY, "b", "c");
    is(&v, KEY, "c", NULL);
    is(&v, KEY, "z", NULL);
    is(&v, KEY, "", NULL);
    is(&v, OTHER, "a", NULL);
    is(&v, OTHER, "b", "x");
    versions_fini(&v);
}

/* A change that failed, or left the version as it was, is no step. */
static void nothing_changed_is_no_step(void **state)
{
    (void)state;
    struct versions v;
    versions_init(&v);
    change(&v, KEY, "a", NULL);
    change(&v, KEY, "a", "a");
    is(&v, KEY, "a", NULL);
    assert_int_equal(atomic_load(&v.n_known), 0);
    versions_fini(&v);
}

/* Of origins whose ETags are made of times: the one that was set last counts. */
static void a_version_that_comes_back_is_the_last(void **state)
{
    (void)state;
    struct versions v;
    versions_init(&v);
    change(&v, KEY, "a", "b");
    change(&v, KEY, "b", "a");
    is(&v, KEY, "a", NULL);
    is(&v, KEY, "b", "a");
    change(&v, KEY, "a", "c");
    is(&v, KEY, "a", "c");
    is(&v, KEY, "b", "c");
    versions_fini(&v);
}

/* The oldest steps go; who knows one of before finds nothing, never something wrong. */
static void old_steps_are_forgotten(void **state)
{
    (void)state;
    struct versions v;
    char from[16], to[16];
    versions_init(&v);
    for (unsigned i = 0; i < VERSIONS_STEPS + 10; i++) {
        (void)snprintf(from, sizeof(from), "%u", i);
        (void)snprintf(to, sizeof(to), "%u", i + 1);
        change(&v, KEY, from, to);
    }
    is(&v, KEY, "9", NULL);
    is(&v, KEY, "10", to);
    is(&v, KEY, from, to);
    versions_fini(&v);
}

struct waiter {
    struct versions *v;
    _Atomic bool asks;
    char *found;
};

static void *look(void *arg)
{
    struct waiter *w = arg;
    atomic_store(&w->asks, true);
    w->found = versions_now(w->v, KEY, SLICE_LIT("a"), NULL);
    return NULL;
}

/* Who asks while a change is under way learns what came of it, whoever makes it does not wait for itself, and
 * changes of other keys hold nobody up. */
static void a_change_under_way_is_waited_for(void **state)
{
    (void)state;
    struct versions v;
    struct version_change c, other;
    pthread_t t;
    versions_init(&v);
    versions_begin(&v, &other, OTHER);
    versions_begin(&v, &c, KEY);
    struct waiter w = {.v = &v};
    assert_int_equal(pthread_create(&t, NULL, look, &w), 0);
    while (!atomic_load(&w.asks))
        ;
    assert_null(versions_now(&v, KEY, SLICE_LIT("a"), &c));
    versions_end(&v, &c, SLICE_LIT("a"), SLICE_LIT("b"));
    assert_int_equal(pthread_join(t, NULL), 0);
    assert_string_equal(w.found, "b");
    free(w.found);
    versions_end(&v, &other, SLICE_LIT("a"), SLICE_NULL);
    versions_fini(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_lead_to_the_last),
        cmocka_unit_test(nothing_changed_is_no_step),
        cmocka_unit_test(a_version_that_comes_back_is_the_last),
        cmocka_unit_test(old_steps_are_forgotten),
        cmocka_unit_test(a_change_under_way_is_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
