/* layer: namespace */
/* threaded */
#include "namespace/lru.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static struct slice number_key(char text[32], unsigned i)
{
    (void)snprintf(text, 32, "key %u", i);
    return slice_str(text);
}

/* The cache never holds more than it was given, whatever is put into it. */
static void test_memory_stays_within_the_limit(void **state)
{
    (void)state;
    struct lru *l = lru_new(MIB);
    char key[32], value[1000] = {0};
    for (unsigned i = 0; i < 20000; i++) {
        lru_put(l, number_key(key, i), slice_of(value, i % sizeof(value)));
        if (i % 1000 == 0)
            assert_true(lru_bytes(l) <= MIB);
    }
    lru_clear(l);
    assert_int_equal(lru_bytes(l), 0);
    lru_free(l);
}

/* What is used stays, what is not goes first; whichever way it is got. */
static void test_least_recently_used_goes_first(void **state)
{
    (void)state;
    struct lru *l = lru_new(256 * KIB);
    char key[32], value[200] = {0};
    struct slice in;
    _cleanup_(arena_freep) struct arena *a = arena_new(4096);
    _cleanup_buf_ struct buf out = BUF_INIT(4096);
    lru_put(l, SLICE_LIT("warm"), SLICE_LIT("w"));
    lru_put(l, SLICE_LIT("hot"), slice_of(value, sizeof(value)));
    for (unsigned i = 0; i < 50000; i++) {
        lru_put(l, number_key(key, i), slice_of(value, sizeof(value)));
        buf_clear(&out);
        assert_int_equal(lru_get(l, SLICE_LIT("hot"), &out), 0);
        arena_clear(a);
        assert_int_equal(lru_get_in(l, SLICE_LIT("warm"), a, &in), 0);
        assert_true(slice_eq_str(in, "w"));
    }
    assert_int_equal(lru_get_in(l, SLICE_LIT("key 0"), a, &in), -ENOENT);
    assert_int_equal(lru_get(l, SLICE_LIT("key 0"), &out), -ENOENT);
    lru_free(l);
}

/* A put replaces, a remove forgets, and a value too large for its share is not kept. */
static void test_put_replaces_and_remove_forgets(void **state)
{
    (void)state;
    struct lru *l = lru_new(64 * KIB);
    _cleanup_buf_ struct buf out = BUF_INIT(MIB);
    lru_put(l, SLICE_LIT("k"), SLICE_LIT("one"));
    lru_put(l, SLICE_LIT("k"), SLICE_LIT("two"));
    assert_int_equal(lru_get(l, SLICE_LIT("k"), &out), 0);
    assert_true(slice_eq_str(buf_view(&out), "two"));
    lru_remove(l, SLICE_LIT("k"));
    assert_int_equal(lru_get(l, SLICE_LIT("k"), &out), -ENOENT);
    char *large = calloc(1, 64 * KIB);
    lru_put(l, SLICE_LIT("large"), slice_of(large, 64 * KIB));
    free(large);
    assert_int_equal(lru_get(l, SLICE_LIT("large"), &out), -ENOENT);
    lru_free(l);
}

static bool begins_alike(const void *arg, struct slice key)
{
    return slice_starts(key, *(const struct slice *)arg);
}

/* Removing what begins alike leaves all else, and the count of bytes is that of what is left. */
static void test_some_are_removed_and_the_rest_stays(void **state)
{
    (void)state;
    struct lru *l = lru_new(4 * MIB), *rest = lru_new(4 * MIB);
    struct slice prefix = SLICE_LIT("key 1");
    char key[32];
    for (unsigned i = 0; i < 500; i++) {
        struct slice k = number_key(key, i);
        lru_put(l, k, k);
        if (!slice_starts(k, prefix))
            lru_put(rest, k, k);
    }
    lru_remove_if(l, begins_alike, &prefix);
    for (unsigned i = 0; i < 500; i++) {
        _cleanup_buf_ struct buf out = BUF_INIT(64);
        struct slice k = number_key(key, i);
        assert_int_equal(lru_get(l, k, &out), slice_starts(k, prefix) ? -ENOENT : 0);
    }
    assert_int_equal(lru_bytes(l), lru_bytes(rest));
    lru_free(l);
    lru_free(rest);
}

static _Atomic bool saw_torn; /* asserting in another thread than the test's would end the program */

static void *churn(void *arg)
{
    struct lru *l = arg;
    char key[32];
    _cleanup_buf_ struct buf out = BUF_INIT(4096);
    for (unsigned i = 0; i < 20000; i++) {
        struct slice mine = number_key(key, i % 700);
        lru_put(l, mine, mine);
        buf_clear(&out);
        struct slice other = number_key(key, (i * 7) % 700);
        if (lru_get(l, other, &out) == 0 && !slice_eq(buf_view(&out), other))
            saw_torn = true;
        if (i % 11 == 0)
            lru_remove(l, number_key(key, i % 700));
    }
    return NULL;
}

/* Threads that put, get and remove the same keys only ever see whole values. */
static void test_threads_see_whole_values(void **state)
{
    (void)state;
    struct lru *l = lru_new(64 * KIB);
    pthread_t t[4];
    for (size_t i = 0; i < ARRAY_SIZE(t); i++)
        assert_int_equal(pthread_create(&t[i], NULL, churn, l), 0);
    for (size_t i = 0; i < ARRAY_SIZE(t); i++)
        assert_int_equal(pthread_join(t[i], NULL), 0);
    assert_false(saw_torn);
    lru_free(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_stays_within_the_limit),
        cmocka_unit_test(test_least_recently_used_goes_first),
        cmocka_unit_test(test_put_replaces_and_remove_forgets),
        cmocka_unit_test(test_some_are_removed_and_the_rest_stays),
        cmocka_unit_test(test_threads_see_whole_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
