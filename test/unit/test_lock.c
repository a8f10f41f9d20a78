/* layer: base */
#include "base/lock.h"

#include "support/death.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <time.h>

#include <cmocka.h>

struct shared {
    struct lock lock;
    struct cond cond;
    int n, turn;
};

static void shared_init(struct shared *s)
{
    *s = (struct shared){.n = 0};
    lock_init(&s->lock, LOCK_STORE);
    cond_init(&s->cond);
}

static void shared_fini(struct shared *s)
{
    cond_fini(&s->cond);
    lock_fini(&s->lock);
}

static void *count(void *arg)
{
    struct shared *s = arg;
    for (int i = 0; i < 20000; i++) {
        LOCK_SCOPE(&s->lock);
        lock_assert_held(&s->lock);
        s->n++;
    }
    return NULL;
}

/* Four threads that count under the lock lose nothing. */
static void mutual_exclusion(void **state)
{
    struct shared s;
    pthread_t t[4];
    shared_init(&s);
    for (size_t i = 0; i < ARRAY_SIZE(t); i++)
        assert_int_equal(pthread_create(&t[i], NULL, count, &s), 0);
    for (size_t i = 0; i < ARRAY_SIZE(t); i++)
        assert_int_equal(pthread_join(t[i], NULL), 0);
    assert_int_equal(s.n, 80000);
    shared_fini(&s);
}

static void *take_odd_turns(void *arg)
{
    struct shared *s = arg;
    for (int i = 0; i < 1000; i++) {
        LOCK_SCOPE(&s->lock);
        while (s->turn % 2 == 0)
            cond_wait(&s->cond, &s->lock);
        lock_assert_held(&s->lock);
        s->turn++;
        cond_signal(&s->cond);
    }
    return NULL;
}

/* Two threads take turns through the condition; after each wait the waiter holds the lock again. */
static void turns(void **state)
{
    struct shared s;
    pthread_t t;
    shared_init(&s);
    assert_int_equal(pthread_create(&t, NULL, take_odd_turns, &s), 0);
    for (int i = 0; i < 1000; i++) {
        lock_take(&s.lock);
        while (s.turn % 2 == 1)
            assert_in_range(-cond_wait_for(&s.cond, &s.lock, UINT64_MAX), 0, 0);
        lock_assert_held(&s.lock);
        s.turn++;
        cond_broadcast(&s.cond);
        lock_drop(&s.lock);
    }
    assert_int_equal(pthread_join(t, NULL), 0);
    assert_int_equal(s.turn, 2000);
    shared_fini(&s);
}

/* A timed wait that nobody ends says so, not before its time, and holds the lock. */
static void timed_wait(void **state)
{
    struct shared s;
    struct timespec a, b;
    shared_init(&s);
    lock_take(&s.lock);
    assert_int_equal(cond_wait_for(&s.cond, &s.lock, 0), -ETIMEDOUT);
    (void)clock_gettime(CLOCK_MONOTONIC, &a);
    int r = 0;
    while (r == 0) /* a wake-up without reason is legal */
        r = cond_wait_for(&s.cond, &s.lock, 20000000);
    (void)clock_gettime(CLOCK_MONOTONIC, &b);
    assert_int_equal(r, -ETIMEDOUT);
    assert_true((b.tv_sec - a.tv_sec) * 1000000000 + b.tv_nsec - a.tv_nsec >= 20000000);
    lock_assert_held(&s.lock);
    lock_drop(&s.lock);
    shared_fini(&s);
}

/* Locks may be dropped in another order than they were taken. */
static void drop_in_any_order(void **state)
{
    struct lock a, b, c;
    lock_init(&a, LOCK_SERVER);
    lock_init(&b, LOCK_STORE);
    lock_init(&c, LOCK_LEAF);
    for (int i = 0; i < 3; i++) {
        lock_take(&a);
        lock_take(&b);
        lock_drop(&a);
        lock_take(&c);
        lock_drop(&b);
        lock_assert_held(&c);
        lock_drop(&c);
    }
    lock_fini(&a);
    lock_fini(&b);
    lock_fini(&c);
}

#ifdef FB_LOCK_CHECK

static struct lock store, store2, leaf;
static struct cond cond;

static void take_falling(void *arg)
{
    lock_take(&leaf);
    lock_take(&store);
}

static void take_same_rank(void *arg)
{
    lock_take(&store);
    lock_take(&store2);
}

static void take_twice(void *arg)
{
    lock_take(&store);
    lock_take(&store);
}

static void drop_unheld(void *arg)
{
    lock_drop(&store);
}

static void assert_unheld(void *arg)
{
    lock_take(&leaf);
    lock_assert_held(&store);
}

static void wait_with_another_above(void *arg)
{
    lock_take(&store);
    lock_take(&leaf);
    (void)cond_wait_for(&cond, &store, 1);
}

static void wait_unheld(void *arg)
{
    (void)cond_wait_for(&cond, &store, 1);
}

static void take_falling_after_wait(void *arg)
{
    lock_take(&leaf);
    (void)cond_wait_for(&cond, &leaf, 1);
    lock_take(&store);
}

/* Each misuse that the rank check is for ends the process. */
static void misuse_aborts(void **state)
{
    static void (*const misuses[])(void *) = {take_falling, take_same_rank,         take_twice,
                                              drop_unheld,  assert_unheld,          wait_with_another_above,
                                              wait_unheld,  take_falling_after_wait};
    lock_init(&store, LOCK_STORE);
    lock_init(&store2, LOCK_STORE);
    lock_init(&leaf, LOCK_LEAF);
    cond_init(&cond);
    for (size_t i = 0; i < ARRAY_SIZE(misuses); i++)
        assert_true(death_aborts(misuses[i], NULL));
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mutual_exclusion), cmocka_unit_test(turns),
        cmocka_unit_test(timed_wait),       cmocka_unit_test(drop_in_any_order),
#ifdef FB_LOCK_CHECK /* in other builds the checks do not exist */
        cmocka_unit_test(misuse_aborts),
#endif
    };
    return cmocka_run_group_tests_name("lock", tests, NULL, NULL);
}
