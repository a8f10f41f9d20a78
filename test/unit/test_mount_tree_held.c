/* layer: mount */
/* The locks that a mount remembers, against a table of bytes. */
#include "mount/tree.h"
#include "mount/tree_held.h"

#include "net/wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define BYTES  40 /* the last one stands for all that follow */
#define OWNERS 3

static struct kept *kept;
static uint64_t random_state = 1;

static uint32_t below(uint32_t n)
{
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(random_state >> 33) % n;
}

static void free_all(struct tree_held **list)
{
    while (*list) {
        struct tree_held *h = *list;
        *list = h->next;
        kept_give(kept, h);
    }
}

/* What an owner has at a byte, by the list; fails when it has two things there. */
static uint32_t type_at(const struct tree_held *list, uint64_t owner, uint32_t kind, uint64_t byte)
{
    uint32_t found = WIRE_LOCK_NONE;
    for (const struct tree_held *h = list; h; h = h->next) {
        if (h->owner != owner || h->kind != kind || byte < h->start || byte > h->end)
            continue;
        assert_int_equal(found, WIRE_LOCK_NONE);
        found = h->type;
    }
    return found;
}

/* After any sequence of locking and unlocking, each owner has at each byte what it asked for last. */
static void test_ranges_against_a_table(void **state)
{
    (void)state;
    for (int round = 0; round < 200; round++) {
        struct tree_held *list = NULL;
        uint32_t table[OWNERS][BYTES] = {0};
        for (int step = 0; step < 60; step++) {
            uint32_t start = below(BYTES), end = start + below(BYTES - start);
            struct tree_held x = {.owner = below(OWNERS),
                                  .kind = WIRE_LOCK_POSIX,
                                  .type = below(3),
                                  .start = start,
                                  .end = end == BYTES - 1 ? UINT64_MAX : end};
            tree_held_set(kept, &list, &x);
            for (uint32_t i = start; i <= end; i++)
                table[x.owner][i] = x.type;
            for (uint32_t owner = 0; owner < OWNERS; owner++)
                for (uint32_t i = 0; i < BYTES; i++)
                    assert_int_equal(type_at(list, owner, WIRE_LOCK_POSIX, i == BYTES - 1 ? UINT64_MAX : i),
                                     table[owner][i]);
        }
        free_all(&list);
    }
}

static size_t length(const struct tree_held *list)
{
    size_t n = 0;
    for (; list; list = list->next)
        n++;
    return n;
}

/* However often a program locks the next byte, or makes one byte of a lock stronger and weaker again, it has
 * one lock; through two opens it has two, which end with their opens. */
static void test_what_touches_is_one(void **state)
{
    (void)state;
    struct tree_held *list = NULL;
    struct tree_handle opens[2] = {0};
    struct tree_held x = {.ino = 7, .owner = 1, .kind = WIRE_LOCK_POSIX, .through = &opens[0]};
    for (uint64_t i = 0; i < 1000; i++) {
        x.type = WIRE_LOCK_READ;
        x.start = x.end = i * 7 % 1000;
        tree_held_set(kept, &list, &x);
    }
    assert_int_equal(length(list), 1);
    assert_true(list->start == 0 && list->end == 999 && list->ino == 7);
    for (uint64_t i = 1; i < 999; i++) {
        x.start = x.end = i;
        x.type = WIRE_LOCK_WRITE;
        tree_held_set(kept, &list, &x);
        assert_int_equal(length(list), 3);
        x.type = WIRE_LOCK_READ;
        tree_held_set(kept, &list, &x);
        assert_int_equal(length(list), 1);
    }
    x.through = &opens[1];
    x.start = 1000;
    x.end = UINT64_MAX;
    tree_held_set(kept, &list, &x);
    assert_int_equal(length(list), 2);
    x.through = &opens[0];
    x.start = 500;
    x.end = UINT64_MAX - 1;
    tree_held_set(kept, &list, &x);
    assert_int_equal(length(list), 2);
    assert_int_equal(type_at(list, 1, WIRE_LOCK_POSIX, UINT64_MAX), WIRE_LOCK_READ);
    free_all(&list);
}

/* Giving back makes one lock more in the middle of one only: there it needs room. */
static void test_what_splits(void **state)
{
    (void)state;
    struct tree_held *list = NULL;
    struct tree_held x = {
        .owner = 1, .kind = WIRE_LOCK_POSIX, .type = WIRE_LOCK_READ, .start = 10, .end = 20};
    tree_held_set(kept, &list, &x);
    x.type = WIRE_LOCK_NONE;
    x.start = x.end = 15;
    assert_true(tree_held_splits(list, &x));
    x.end = 20;
    assert_false(tree_held_splits(list, &x));
    x.start = 10;
    x.end = 15;
    assert_false(tree_held_splits(list, &x));
    x.start = 0;
    x.end = UINT64_MAX;
    assert_false(tree_held_splits(list, &x));
    x.start = x.end = 15;
    x.owner = 2;
    assert_false(tree_held_splits(list, &x));
    free_all(&list);
}

/* The two kinds do not touch each other, nor do the two ends of what can be said of a file. */
static void test_kinds_and_ends(void **state)
{
    (void)state;
    struct tree_held *list = NULL;
    struct tree_held posix = {
        .owner = 1, .kind = WIRE_LOCK_POSIX, .type = WIRE_LOCK_WRITE, .end = UINT64_MAX};
    struct tree_held flock = {.owner = 1, .kind = WIRE_LOCK_FLOCK, .type = WIRE_LOCK_READ, .end = UINT64_MAX};
    tree_held_set(kept, &list, &posix);
    tree_held_set(kept, &list, &flock);
    posix.type = WIRE_LOCK_NONE;
    posix.start = posix.end = UINT64_MAX;
    tree_held_set(kept, &list, &posix);
    posix.start = posix.end = 0;
    tree_held_set(kept, &list, &posix);
    assert_int_equal(type_at(list, 1, WIRE_LOCK_POSIX, 0), WIRE_LOCK_NONE);
    assert_int_equal(type_at(list, 1, WIRE_LOCK_POSIX, 1), WIRE_LOCK_WRITE);
    assert_int_equal(type_at(list, 1, WIRE_LOCK_POSIX, UINT64_MAX - 1), WIRE_LOCK_WRITE);
    assert_int_equal(type_at(list, 1, WIRE_LOCK_POSIX, UINT64_MAX), WIRE_LOCK_NONE);
    assert_int_equal(type_at(list, 1, WIRE_LOCK_FLOCK, 0), WIRE_LOCK_READ);
    posix.start = 0;
    posix.end = UINT64_MAX;
    tree_held_set(kept, &list, &posix);
    flock.type = WIRE_LOCK_NONE;
    tree_held_set(kept, &list, &flock);
    assert_null(list);
}

/* What takes the place of a lock is there before the lock goes: a process may be killed in between. */
static void test_nothing_goes_before_its_successor_is_there(void **state)
{
    (void)state;
    struct tree_held *list = NULL;
    struct tree_held x = {.ino = 7, .owner = 1, .kind = WIRE_LOCK_POSIX, .type = WIRE_LOCK_READ, .end = 9};
    tree_held_set(kept, &list, &x);
    const struct tree_held *was = list;
    x.type = WIRE_LOCK_WRITE;
    tree_held_set(kept, &list, &x);
    assert_ptr_not_equal(list, was); /* whose cell was not free yet */
    assert_null(list->next);
    free_all(&list);
}

/* Of two locks one is in the way when owners differ, ranges meet, and one of them is for writing. */
static void test_conflicts(void **state)
{
    (void)state;
    struct tree_held a = {
        .owner = 1, .kind = WIRE_LOCK_POSIX, .type = WIRE_LOCK_WRITE, .start = 10, .end = 20};
    struct tree_held b = {
        .owner = 2, .kind = WIRE_LOCK_POSIX, .type = WIRE_LOCK_READ, .start = 20, .end = UINT64_MAX};
    assert_true(tree_held_conflicts(&a, &b));
    assert_true(tree_held_conflicts(&b, &a));
    b.start = 21;
    assert_false(tree_held_conflicts(&a, &b));
    b.start = 0;
    a.type = WIRE_LOCK_READ;
    assert_false(tree_held_conflicts(&a, &b));
    b.type = WIRE_LOCK_WRITE;
    assert_true(tree_held_conflicts(&a, &b));
    b.kind = WIRE_LOCK_FLOCK;
    assert_false(tree_held_conflicts(&a, &b));
    b.kind = WIRE_LOCK_POSIX;
    b.owner = 1;
    assert_false(tree_held_conflicts(&a, &b));
    b.owner = 2;
    b.type = WIRE_LOCK_NONE;
    assert_false(tree_held_conflicts(&a, &b));
}

/* Who asks right after a close is not refused because RELEASE is a while on its way, as on a machine that has
 * much to do; nor does he wait long each time for an open that others keep. */
static void test_what_closes_is_given_time(void **state)
{
    (void)state;
    assert_true(tree_held_grace_ms(WIRE_LOCK_FLOCK, true, false) >= 1000);
    assert_true(tree_held_grace_ms(WIRE_LOCK_POSIX, true, false) >= 1000); /* of an open, F_OFD_*, perhaps */
    assert_true(tree_held_grace_ms(WIRE_LOCK_FLOCK, true, true) <= 100);
    assert_true(tree_held_grace_ms(WIRE_LOCK_POSIX, true, true) <= 100);
    assert_true(tree_held_grace_ms(WIRE_LOCK_FLOCK, false, false) <= 100);
    assert_int_equal(tree_held_grace_ms(WIRE_LOCK_POSIX, false, false), 0);
}

static int setup(void **state)
{
    (void)state;
    return kept_new(&kept, NULL);
}

static int teardown(void **state)
{
    (void)state;
    kept_free(kept);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranges_against_a_table),
        cmocka_unit_test(test_what_touches_is_one),
        cmocka_unit_test(test_what_splits),
        cmocka_unit_test(test_kinds_and_ends),
        cmocka_unit_test(test_nothing_goes_before_its_successor_is_there),
        cmocka_unit_test(test_conflicts),
        cmocka_unit_test(test_what_closes_is_given_time),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
