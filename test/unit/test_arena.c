/* layer: base */
#include "base/arena.h"

#include "support/death.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* Allocations of all sizes are aligned, apart from each other, and keep what is written into them. */
static void allocations_are_apart(void **state)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(16 << 20);
    unsigned char *p[2000];
    for (size_t i = 0; i < ARRAY_SIZE(p); i++) {
        p[i] = arena_alloc(a, i);
        assert_int_equal((uintptr_t)p[i] % 16, 0);
        memset(p[i], (int)(i % 251), i);
    }
    for (size_t i = 0; i < ARRAY_SIZE(p); i++)
        for (size_t k = 0; k < i; k++)
            assert_int_equal(p[i][k], i % 251);
}

/* What arena_left promises can be allocated, to the last byte, whatever was taken before. */
static void left_is_true(void **state)
{
    for (size_t max = 64; max < 20000; max += 117) {
        _cleanup_(arena_freep) struct arena *a = arena_new(max);
        for (size_t n = 1; n <= arena_left(a); n = n * 2 + 1) {
            assert_true(arena_left(a) < max);
            memset(arena_alloc(a, n), 1, n);
        }
        size_t left = arena_left(a);
        memset(arena_alloc(a, left), 2, left);
        assert_true(arena_left(a) < 16 + left);
    }
}

static void alloc_beyond(void *arg)
{
    struct arena *a = arena_new(10000);
    (void)arena_alloc(a, arena_left(a) + 1);
}

static void alloc_everything(void *arg)
{
    struct arena *a = arena_new(10000);
    (void)arena_alloc(a, SIZE_MAX - 3);
}

/* Passing the maximum is a bug of ours and ends the process, also where sizes would overflow. */
static void beyond_the_maximum_aborts(void **state)
{
    assert_true(death_aborts(alloc_beyond, NULL));
    assert_true(death_aborts(alloc_everything, NULL));
}

/* Clearing gives the whole room back, any number of times, and zalloc clears what was used before. */
static void clear_gives_room_back(void **state)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(1 << 20);
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < 10; i++)
            memset(arena_alloc(a, 5000), 0xff, 5000);
        memset(arena_alloc(a, 600000), 0xff, 600000);
        arena_clear(a);
        unsigned char *z = arena_zalloc(a, 3000);
        for (int i = 0; i < 3000; i++)
            assert_int_equal(z[i], 0);
        arena_clear(a);
        assert_true(arena_left(a) > (1 << 20) - 8192);
    }
    arena_clear(a);
}

/* Copies end with a NUL and are not the original. */
static void strings(void **state)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(4096);
    char text[] = "abc";
    struct slice copy = arena_dup(a, slice_str(text));
    char *str = arena_str(a, slice_sub(slice_str(text), 0, 2));
    char *printed = arena_printf(a, "%s-%d", text, 42);
    text[0] = 'x';
    assert_true(slice_eq_str(copy, "abc"));
    assert_string_equal(str, "ab");
    assert_string_equal(printed, "abc-42");
    assert_string_equal(arena_str(a, SLICE_NULL), "");
    arena_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocations_are_apart),
        cmocka_unit_test(left_is_true),
        cmocka_unit_test(beyond_the_maximum_aborts),
        cmocka_unit_test(clear_gives_room_back),
        cmocka_unit_test(strings),
    };
    return cmocka_run_group_tests_name("arena", tests, NULL, NULL);
}
