/* layer: mount */
/* threaded */
/* Which names were told of since somebody asked. */
#include "mount/recent.h"

#include "base/macro.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>

#include <cmocka.h>

/* What was told of after the question is found, and nothing else is. */
static void only_what_came_since(void **state)
{
    (void)state;
    struct recent *r = recent_new();
    recent_note(r, 7);
    uint64_t asked = recent_serial(r);
    assert_false(recent_has(r, asked, 7));
    recent_note(r, 8);
    assert_false(recent_has(r, asked, 7));
    assert_true(recent_has(r, asked, 8));
    assert_false(recent_has(r, recent_serial(r), 8));
    recent_free(r);
}

/* Of RECENT_MAX names each is told apart; of one more any may have been told of. (Mutation: no look at how
 * many came.) */
static void of_too_many_any(void **state)
{
    (void)state;
    struct recent *r = recent_new();
    uint64_t asked = recent_serial(r);
    for (uint64_t i = 0; i < RECENT_MAX; i++)
        recent_note(r, 1000 + i);
    for (uint64_t i = 0; i < RECENT_MAX; i++)
        assert_true(recent_has(r, asked, 1000 + i));
    assert_false(recent_has(r, asked, 5));
    recent_note(r, 1);
    assert_true(recent_has(r, asked, 5));
    assert_false(recent_has(r, asked + 1, 5));
    recent_free(r);
}

/* After "everything" no answer to an earlier question is one of now. */
static void everything_is_any(void **state)
{
    (void)state;
    struct recent *r = recent_new();
    uint64_t asked = recent_serial(r);
    recent_note_all(r);
    assert_true(recent_has(r, asked, 5));
    assert_false(recent_has(r, recent_serial(r), 5));
    recent_free(r);
}

struct teller {
    struct recent *recent;
    _Atomic uint64_t told;
};

#define NAMES 20000

static void *tell(void *arg)
{
    struct teller *t = arg;
    for (uint64_t i = 1; i <= NAMES; i++) {
        recent_note(t->recent, i);
        atomic_store(&t->told, i);
    }
    return NULL;
}

/* Who asked before a name was told of finds it, while another thread goes on telling. */
static void beside_who_tells(void **state)
{
    (void)state;
    struct teller t = {.recent = recent_new()};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, tell, &t), 0);
    for (uint64_t last = 0; last < NAMES;) {
        uint64_t asked = recent_serial(t.recent), was = atomic_load(&t.told);
        while ((last = atomic_load(&t.told)) == was && last < NAMES)
            ;
        if (asked < last)
            assert_true(recent_has(t.recent, asked, last));
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    recent_free(t.recent);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_what_came_since),
        cmocka_unit_test(of_too_many_any),
        cmocka_unit_test(everything_is_any),
        cmocka_unit_test(beside_who_tells),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
