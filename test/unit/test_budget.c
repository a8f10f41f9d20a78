/* layer: base */
#include "base/budget.h"

#include "support/death.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* Up to the total everything is given, beyond it nothing, and all of it comes back. */
static void total_is_exact(void **state)
{
    struct budget *b = budget_new(100);
    assert_int_equal(budget_total(b), 100);
    assert_int_equal(budget_try(b, 60), 0);
    assert_int_equal(budget_try(b, 41), -ENOMEM);
    assert_int_equal(budget_take(b, 40, 0), 0);
    assert_int_equal(budget_used(b), 100);
    assert_int_equal(budget_try(b, 1), -ENOMEM);
    assert_int_equal(budget_try(b, 0), 0);
    assert_int_equal(budget_take(b, 1, 10), -ETIMEDOUT);
    budget_give(b, 100);
    assert_int_equal(budget_used(b), 0);
    budget_free(b);
    budget_free(NULL);
}

/* What can never fit is refused at once, also where the sum would overflow. */
static void more_than_the_total(void **state)
{
    struct budget *b = budget_new(100);
    assert_int_equal(budget_take(b, 101, UINT64_MAX), -ENOMEM);
    assert_int_equal(budget_try(b, 50), 0);
    assert_int_equal(budget_try(b, UINT64_MAX), -ENOMEM);
    assert_int_equal(budget_used(b), 50);
    budget_give(b, 50);
    budget_free(b);
}

static void give_too_much(void *arg)
{
    budget_give(arg, 1);
}

/* Giving what was never taken is a bug of ours. */
static void giving_too_much_aborts(void **state)
{
    struct budget *b = budget_new(100);
    assert_true(death_aborts(give_too_much, b));
    budget_free(b);
}

struct taker {
    struct budget *b;
    uint64_t n;
    int result;
};

static void *take(void *arg)
{
    struct taker *t = arg;
    t->result = budget_take(t->b, t->n, 60000);
    return NULL;
}

/* Waits until one more taker is in the queue: from then on budget_try is refused although the bytes are
 * there. */
static void until_someone_waits(struct budget *b)
{
    while (budget_try(b, 1) == 0) {
        budget_give(b, 1);
        usleep(1000);
    }
}

/* A large taker who waits is not overtaken by small ones, and gets its turn when the bytes come back. */
static void large_takers_do_not_starve(void **state)
{
    struct budget *b = budget_new(100);
    struct taker large = {.b = b, .n = 90};
    pthread_t t;
    assert_int_equal(budget_try(b, 20), 0);
    assert_int_equal(pthread_create(&t, NULL, take, &large), 0);
    until_someone_waits(b);
    assert_int_equal(budget_take(b, 1, 5), -ETIMEDOUT); /* stands behind */
    budget_give(b, 20);
    assert_int_equal(pthread_join(t, NULL), 0);
    assert_int_equal(large.result, 0);
    assert_int_equal(budget_used(b), 90);
    assert_int_equal(budget_try(b, 10), 0);
    budget_give(b, 100);
    budget_free(b);
}

static void *take_in_vain(void *arg)
{
    struct taker *t = arg;
    t->result = budget_take(t->b, t->n, 500);
    return NULL;
}

/* When the head of the queue gives up, those behind it whom it held back are served. */
static void leaving_serves_those_behind(void **state)
{
    struct budget *b = budget_new(100);
    struct taker large = {.b = b, .n = 90}, small = {.b = b, .n = 5};
    pthread_t t[2];
    assert_int_equal(budget_try(b, 20), 0);
    assert_int_equal(pthread_create(&t[0], NULL, take_in_vain, &large), 0);
    for (int i = 0; i < 1000 && budget_try(b, 1) == 0; i++) { /* it may have given up unseen */
        budget_give(b, 1);
        usleep(1000);
    }
    assert_int_equal(pthread_create(&t[1], NULL, take, &small), 0);
    assert_int_equal(pthread_join(t[0], NULL), 0);
    assert_int_equal(pthread_join(t[1], NULL), 0);
    assert_int_equal(large.result, -ETIMEDOUT);
    assert_int_equal(small.result, 0);
    assert_int_equal(budget_used(b), 25);
    budget_give(b, 25);
    budget_free(b);
}

struct asker {
    struct budget *b;
    unsigned asked, enough;
    int result;
};

static bool ask_so_often(void *arg)
{
    struct asker *a = arg;
    assert_true(a->asked > 0 || budget_try(a->b, 1) < 0); /* asked in the queue already, without a lock */
    return ++a->asked < a->enough;
}

/* Who asks others for memory again and again keeps the first place in the queue while it waits, gives up when
 * it says so, and is not asked where there is enough. */
static void asking_keeps_its_place(void **state)
{
    struct budget *b = budget_new(100);
    struct asker a = {.b = b, .enough = 3};
    assert_int_equal(budget_take_asking(b, 101, 1, ask_so_often, &a), -ENOMEM);
    assert_int_equal(budget_take_asking(b, 100, 1, ask_so_often, &a), 0);
    assert_int_equal(a.asked, 0);
    budget_give(b, 80);
    assert_int_equal(budget_take_asking(b, 90, 1, ask_so_often, &a), -ETIMEDOUT);
    assert_int_equal(a.asked, 3);
    assert_int_equal(budget_try(b, 80), 0); /* nobody is in the queue */
    budget_give(b, 80);
    budget_give(b, 20);
    budget_free(b);
}

static bool give_the_rest(void *arg)
{
    struct asker *a = arg;
    if (++a->asked == 2) {
        budget_give(a->b, 20);
        a->result = budget_try(a->b, 1); /* they are the asker's by now, and nobody else's */
    }
    return true;
}

/* What the question itself brings is had by who asked. */
static void asking_gets_what_it_frees(void **state)
{
    struct budget *b = budget_new(100);
    struct asker a = {.b = b};
    assert_int_equal(budget_try(b, 20), 0);
    assert_int_equal(budget_take_asking(b, 100, 1, give_the_rest, &a), 0);
    assert_int_equal(a.asked, 2);
    assert_int_equal(a.result, -ENOMEM);
    assert_int_equal(budget_used(b), 100);
    budget_give(b, 100);
    budget_free(b);
}

static void *take_and_give(void *arg)
{
    struct taker *t = arg;
    for (uint64_t i = 0; i < 2000; i++) {
        uint64_t n = 1 + (i * 31 + t->n) % 100;
        int r = i % 3 ? budget_take(t->b, n, i % 5 ? 60000 : 0) : budget_try(t->b, n);
        if (r == 0) {
            if (budget_used(t->b) > budget_total(t->b))
                abort();
            budget_give(t->b, n);
        }
    }
    return NULL;
}

/* Many threads that take and give never pass the total, and all of it is there at the end. */
static void many_threads(void **state)
{
    struct budget *b = budget_new(100);
    struct taker takers[6];
    pthread_t t[6];
    for (size_t i = 0; i < ARRAY_SIZE(t); i++) {
        takers[i] = (struct taker){.b = b, .n = i * 17};
        assert_int_equal(pthread_create(&t[i], NULL, take_and_give, &takers[i]), 0);
    }
    for (size_t i = 0; i < ARRAY_SIZE(t); i++)
        assert_int_equal(pthread_join(t[i], NULL), 0);
    assert_int_equal(budget_used(b), 0);
    assert_int_equal(budget_try(b, 100), 0);
    budget_give(b, 100);
    budget_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(total_is_exact),
        cmocka_unit_test(more_than_the_total),
        cmocka_unit_test(giving_too_much_aborts),
        cmocka_unit_test(large_takers_do_not_starve),
        cmocka_unit_test(leaving_serves_those_behind),
        cmocka_unit_test(asking_keeps_its_place),
        cmocka_unit_test(asking_gets_what_it_frees),
        cmocka_unit_test(many_threads),
    };
    return cmocka_run_group_tests_name("budget", tests, NULL, NULL);
}
