/* layer: object */
/* What a bucket keeps of the cache: never less than was promised, whatever leaves while it is counted. */
#include "object/keep.h"

#include "base/hash.h"
#include "base/macro.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

/* An object stays when it is somebody else's newcomer that wants its room, and less than was promised would
 * be left, or nobody has counted yet. */
static void what_is_held(void **state)
{
    (void)state;
    static const struct {
        uint64_t promised, bytes, object;
        bool is_counted, is_own, holds;
    } rows[] = {
        {0, 0, 10, false, false, false},
        {0, 100, 10, true, false, false}, /* nothing is promised */
        {50, 0, 10, false, false, true},
        {50, 500, 10, false, false, true}, /* not counted yet */
        {50, 60, 10, true, false, false},
        {50, 59, 10, true, false, true}, /* exactly the share is left, or less */
        {50, 5, 10, true, false, true},
        {50, 40, 10, true, false, true}, /* more goes than was counted */
        {50, 40, 10, true, true, false},
        {50, 0, 10, false, true, false}, /* its own newcomer */
        {UINT64_MAX, UINT64_MAX, 1, true, false, true},
        {1, UINT64_MAX, UINT64_MAX - 1, true, false, false},
        {1, 1, 0, true, false, false}, /* what has no bytes takes none away */
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        const struct keep k = {
            .promised = rows[i].promised, .is_counted = rows[i].is_counted, .bytes = rows[i].bytes};
        assert_int_equal(keep_holds(&k, rows[i].object, rows[i].is_own), rows[i].holds);
    }
}

/* What leaves while a walk runs is taken off what the walk has seen: it may have seen it. */
static void what_leaves_during_a_walk(void **state)
{
    (void)state;
    struct keep k = {.promised = 50};
    keep_leave(&k, 7); /* before */
    keep_walk(&k);
    keep_leave(&k, 30);
    assert_false(k.is_counted);
    keep_walked(&k, 100);
    assert_true(k.is_counted);
    assert_int_equal(k.bytes, 70);
    keep_leave(&k, 1000);
    assert_int_equal(k.bytes, 0);
    keep_walk(&k);
    keep_leave(&k, UINT64_MAX);
    keep_leave(&k, UINT64_MAX);
    keep_walked(&k, 100);
    assert_int_equal(k.bytes, 0);
}

/* Random histories against a model that knows what is there: it never has less than was promised because
 * something was given to others, though the count knows of newcomers only what walks have seen. */
static void promises_hold(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        struct keep k = {.promised = 1000};
        uint64_t there = 0, seen = 0, rest = 0; /* of the walk: seen so far, and what it has yet to see */
        bool walking = false;
        for (uint64_t i = 0; i < 2000; i++) {
            uint64_t r = hash_mix(seed, i), bytes = r / 16 % 200 + 1;
            switch (r % 8) {
            case 0:
            case 1:
                there += bytes; /* in front of the walk, or behind it */
                rest += walking && r / 8 % 2 ? bytes : 0;
                break;
            case 2:
                if (!walking) {
                    keep_walk(&k);
                    seen = 0;
                    rest = there;
                    walking = true;
                }
                break;
            case 3:
                if (walking) {
                    keep_walked(&k, seen + rest);
                    walking = false;
                }
                break;
            case 4: /* removed, whatever was promised */
                bytes = MIN(bytes, there);
                there -= bytes;
                keep_leave(&k, bytes);
                seen += MIN(bytes, rest); /* seen before it went, as far as it was there to be seen */
                rest -= MIN(bytes, rest);
                break;
            default:
                if (there >= bytes && !keep_holds(&k, bytes, /* is_own= */ false)) {
                    there -= bytes;
                    keep_leave(&k, bytes);
                    seen += MIN(bytes, rest);
                    rest -= MIN(bytes, rest);
                    assert_true(there >= k.promised);
                }
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_held),
        cmocka_unit_test(what_leaves_during_a_walk),
        cmocka_unit_test(promises_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
