/* layer: origin */
/* threaded */
/* Changes of one key: those that depend on what is there are made alone, and nobody is overtaken for ever. */
#include "origin/key_order.h"

#include "base/quit.h"
#include "base/sys.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define KEY     7
#define OTHER   (7 + 64) /* in the same queue */
#define THREADS 8
#define TURNS   2000
#define LONG_MS 100000

static atomic_bool cancels;

struct waiter {
    uint64_t key;
    bool alone;
    const atomic_bool *cancel;
    pthread_t thread;
    int result;
};

static int enter(struct key_order *x, uint64_t key, bool alone, const atomic_bool *cancel, struct err *e)
{
    return key_order_begin(x, key, alone) ? 0 : key_order_wait(x, cancel, e);
}

static void *wait_main(void *arg)
{
    struct waiter *w = arg;
    struct key_order x = {0};
    w->result = enter(&x, w->key, w->alone, w->cancel, NULL);
    key_order_leave(&x);
    return NULL;
}

static void start(struct waiter *w, uint64_t key, bool alone, const atomic_bool *cancel)
{
    *w = (struct waiter){.key = key, .alone = alone, .cancel = cancel, .result = 1};
    assert_int_equal(pthread_create(&w->thread, NULL, wait_main, w), 0);
}

static int end(struct waiter *w)
{
    assert_int_equal(pthread_join(w->thread, NULL), 0);
    return w->result;
}

/* Changes without a condition run beside each other, and other keys wait for nobody. (Fails when `alone` of
 * either does not count in may_go_locked, and when the key does not.) */
static void test_who_waits_for_whom(void **state)
{
    struct key_order a = {0}, b = {0}, c = {0};
    struct waiter w;
    assert_int_equal(enter(&a, KEY, /* alone= */ false, NULL, NULL), 0);
    assert_int_equal(enter(&b, KEY, /* alone= */ false, NULL, NULL), 0);
    atomic_store(&cancels, true);
    assert_int_equal(enter(&c, OTHER, /* alone= */ true, &cancels, NULL), 0);
    for (int i = 0; i < 2; i++) { /* behind some, behind one */
        start(&w, KEY, /* alone= */ true, &cancels);
        assert_int_equal(end(&w), -ECANCELED);
        key_order_leave(i == 0 ? &a : &b);
    }
    start(&w, KEY, /* alone= */ true, &cancels);
    assert_int_equal(end(&w), 0);
    start(&w, OTHER, /* alone= */ false, &cancels);
    assert_int_equal(end(&w), -ECANCELED);
    key_order_leave(&c);
    key_order_leave(&c); /* of nobody's */
}

/* Behind one that waits to be alone nobody goes first. */
static void test_nobody_is_overtaken(void **state)
{
    struct key_order first = {0};
    struct waiter alone, later;
    assert_int_equal(enter(&first, KEY, /* alone= */ false, NULL, NULL), 0);
    start(&alone, KEY, /* alone= */ true, NULL);
    atomic_store(&cancels, true);
    uint64_t until_ms = sys_mono_ms() + LONG_MS;
    do { /* until the other one is in the queue, those that come go */
        assert_true(sys_mono_ms() < until_ms);
        start(&later, KEY, /* alone= */ false, &cancels);
    } while (end(&later) == 0);
    assert_int_equal(later.result, -ECANCELED);
    key_order_leave(&first);
    assert_int_equal(end(&alone), 0);
}

static atomic_int n_alone, n_beside;
static int plain; /* written by those that are alone */

static void *many_main(void *arg)
{
    bool odd = (uintptr_t)arg % 2;
    for (int i = 0; i < TURNS; i++) {
        struct key_order x = {0};
        bool alone = odd ? i % 2 : i % 3 == 0;
        assert_int_equal(enter(&x, KEY, alone, NULL, NULL), 0);
        int others = alone ? atomic_fetch_add(&n_alone, 1) : atomic_fetch_add(&n_beside, 1);
        assert_true(!alone || others == 0);
        assert_int_equal(alone ? atomic_load(&n_beside) : atomic_load(&n_alone), 0);
        if (alone)
            plain++;
        (void)(alone ? atomic_fetch_sub(&n_alone, 1) : atomic_fetch_sub(&n_beside, 1));
        key_order_leave(&x);
    }
    return NULL;
}

/* Of many threads one that is alone is alone, and all come to their end. */
static void test_many_threads(void **state)
{
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, many_main, (void *)i), 0);
    for (size_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_true(plain > 0);
}

/* A node that stops does not wait behind a change that hears nothing. */
static void test_who_stops_is_given_up(void **state)
{
    struct key_order first = {0}, second = {0}, third = {0};
    atomic_bool stop = true;
    struct quit q = {.now = &stop};
    assert_int_equal(enter(&first, KEY, /* alone= */ true, NULL, NULL), 0);
    quit_enter(&q);
    assert_int_equal(enter(&second, KEY, /* alone= */ true, NULL, NULL), -ECANCELED);
    quit_leave(&q);
    key_order_leave(&second);
    key_order_leave(&first);
    assert_int_equal(enter(&third, KEY, /* alone= */ true, NULL, NULL), 0);
    key_order_leave(&third);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_waits_for_whom),
        cmocka_unit_test(test_nobody_is_overtaken),
        cmocka_unit_test(test_many_threads),
        cmocka_unit_test(test_who_stops_is_given_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
