/* layer: client */
/* Which files stay open: the most hits that epochs allow, without anything being closed for nothing, and none
 * of it lost to what is read once; another data set takes the place of what is not used any more. */
#include "client/client_admit.h"

#include "base/hash.h"
#include "base/macro.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define FILES 20000 /* known by number */

/* As client_kept.c keeps files, by nothing but the decision. */
struct table {
    struct client_admit *admit;
    unsigned max, n;
    uint64_t now;
    uint64_t used[FILES];
    bool has_seat[FILES], has_returned[FILES];
    unsigned older[FILES + 1], newer[FILES + 1]; /* by use, those with a seat; a ring, FILES its end */
    unsigned hits, swaps;                        /* since they were set to 0 */
};

static struct table *table_new(unsigned max)
{
    struct table *t = calloc(1, sizeof(*t));
    assert_non_null(t);
    t->admit = client_admit_new(max);
    t->max = max;
    t->older[FILES] = t->newer[FILES] = FILES;
    return t;
}

static void table_free(struct table *t)
{
    client_admit_free(t->admit);
    free(t);
}

static uint64_t key_of(unsigned file)
{
    return hash_mix(file, 7);
}

static void take_out(struct table *t, unsigned file)
{
    t->newer[t->older[file]] = t->newer[file];
    t->older[t->newer[file]] = t->older[file];
    t->has_seat[file] = false;
    t->n--;
}

static void put_in(struct table *t, unsigned file)
{
    t->older[file] = t->older[FILES];
    t->newer[file] = FILES;
    t->newer[t->older[file]] = t->older[FILES] = file;
    t->has_seat[file] = true;
    t->n++;
}

static bool is_admitted(struct table *t, unsigned file)
{
    unsigned oldest = t->newer[FILES];
    const struct client_admit_kept kept = {
        .key = key_of(oldest), .used = t->used[oldest], .has_returned = t->has_returned[oldest]};
    if (!client_admit_use(t->admit, key_of(file), t->now, kept))
        return false;
    take_out(t, oldest);
    t->swaps++;
    return true;
}

static void use(struct table *t, unsigned file)
{
    bool is_hit = t->has_seat[file];
    t->now++;
    t->hits += is_hit;
    if (is_hit)
        take_out(t, file);
    if (is_hit || t->n < t->max || is_admitted(t, file))
        put_in(t, file);
    t->has_returned[file] = is_hit;
    t->used[file] = t->now;
}

/* Each of n files once, from `from` on, in an order of its own; *ret_swaps: what went for another. */
static unsigned epoch(struct table *t, unsigned from, unsigned n, uint64_t seed, unsigned *ret_swaps)
{
    static unsigned order[FILES];
    for (unsigned i = 0; i < n; i++) {
        unsigned k = (unsigned)(hash_mix(seed, i) % (i + 1));
        order[i] = order[k];
        order[k] = from + i;
    }
    t->hits = t->swaps = 0;
    for (unsigned i = 0; i < n; i++)
        use(t, order[i]);
    if (ret_swaps)
        *ret_swaps = t->swaps;
    return t->hits;
}

/* From the third epoch on nothing goes for another, and what is kept is hit: of 2,000 files 1,900 where 1,900
 * may be kept. (Closing what was not used for longest gives about 1,600, in each epoch, and closes 400.) */
static void test_epochs_give_as_many_hits_as_files_are_kept(void **state)
{
    (void)state;
    static const unsigned files[] = {1901, 1950, 2000, 2500, 3800};
    for (unsigned i = 0; i < ARRAY_SIZE(files); i++) {
        struct table *t = table_new(1900);
        for (uint64_t e = 0; e < 12; e++) {
            unsigned swaps, hits = epoch(t, 0, files[i], e, &swaps);
            if (e >= 2)
                assert_int_equal(swaps, 0);
            if (e >= 2)
                assert_int_equal(hits, 1900);
        }
        table_free(t);
    }
}

/* Of far more files than uses are remembered of, too, nearly as many are hits as are kept, from the fourth
 * epoch on. */
static void test_epochs_of_many_times_more_files(void **state)
{
    (void)state;
    struct table *t = table_new(200);
    for (uint64_t e = 0; e < 8; e++) {
        unsigned hits = epoch(t, 0, 10000, e, NULL);
        if (e >= 4)
            assert_in_range(hits, 180, 200);
    }
    table_free(t);
}

/* A program that goes on with other files, many or few, more or less than may be kept, has them kept from the
 * end of their third epoch on, and has as many hits in the fourth as it can. */
static void test_another_data_set_is_kept_by_its_third_epoch(void **state)
{
    (void)state;
    static const unsigned files[] = {10, 100, 950, 1000, 1500};
    for (unsigned i = 0; i < ARRAY_SIZE(files); i++) {
        struct table *t = table_new(1000);
        uint64_t seed = 1;
        for (unsigned e = 0; e < 5; e++)
            (void)epoch(t, 0, 1100, seed++, NULL);
        for (unsigned e = 0; e < 3; e++)
            (void)epoch(t, 5000, files[i], seed++, NULL);
        unsigned hits = epoch(t, 5000, files[i], seed++, NULL);
        assert_in_range(hits, files[i] <= 1000 ? files[i] * 99 / 100 : 900, files[i]);
        for (unsigned e = 0; e < 3; e++)
            (void)epoch(t, 0, 1100, seed++, NULL);
        assert_in_range(epoch(t, 0, 1100, seed, NULL), 900, 1000); /* and back */
        table_free(t);
    }
}

/* What is read once keeps no place from the data set that is read next, however much of it there was: that
 * has its hits from the second epoch on. */
static void test_what_is_read_once_keeps_no_place(void **state)
{
    (void)state;
    struct table *t = table_new(500);
    for (unsigned i = 0; i < 8000; i++)
        use(t, i);
    (void)epoch(t, 9000, 490, 1, NULL);
    assert_int_equal(epoch(t, 9000, 490, 2, NULL), 490);
    table_free(t);
}

/* What is read once takes no place of a data set that is used. */
static void test_what_is_read_once_takes_no_place(void **state)
{
    (void)state;
    struct table *t = table_new(500);
    for (uint64_t e = 0; e < 3; e++)
        (void)epoch(t, 0, 500, e, NULL);
    t->swaps = 0;
    for (unsigned i = 0; i < 8000; i++)
        use(t, 1000 + i);
    assert_int_equal(t->swaps, 0);
    assert_int_equal(epoch(t, 0, 500, 9, NULL), 500);
    table_free(t);
}

/* A few files that are used again and again beside a data set that does not fit are kept soon. */
static void test_what_is_used_often_is_kept(void **state)
{
    (void)state;
    struct table *t = table_new(500);
    for (uint64_t e = 0; e < 3; e++)
        (void)epoch(t, 0, 600, e, NULL);
    for (unsigned i = 0; i < 20; i++) {
        use(t, 5000);
        for (unsigned k = 0; k < 10; k++)
            use(t, (i * 10 + k) % 600);
    }
    assert_true(t->has_seat[5000]);
    table_free(t);
}

/* Times are remembered by their low half. */
static void test_counting_goes_on_beyond_32_bits(void **state)
{
    (void)state;
    struct table *t = table_new(100);
    t->now = UINT32_MAX - 250;
    for (uint64_t e = 0; e < 3; e++)
        (void)epoch(t, 0, 110, e, NULL);
    assert_true(t->now > UINT32_MAX);
    for (uint64_t e = 3; e < 9; e++)
        assert_int_equal(epoch(t, 0, 110, e, NULL), 100);
    for (uint64_t e = 0; e < 3; e++)
        (void)epoch(t, 1000, 100, e, NULL);
    assert_int_equal(epoch(t, 1000, 100, 3, NULL), 100);
    table_free(t);
}

/* What was seen can be forgotten: a third use is a first one then. */
static void test_what_was_seen_is_forgotten(void **state)
{
    (void)state;
    for (int forgets = 0; forgets < 2; forgets++) {
        struct client_admit *a = client_admit_new(1);
        const struct client_admit_kept kept = {.key = key_of(1), .used = 1, .has_returned = true};
        assert_false(client_admit_use(a, key_of(2), 2, kept));
        assert_false(client_admit_use(a, key_of(2), 3, kept));
        if (forgets)
            client_admit_forget(a);
        assert_int_equal(client_admit_use(a, key_of(2), 4, kept), !forgets);
        client_admit_free(a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_epochs_give_as_many_hits_as_files_are_kept),
        cmocka_unit_test(test_epochs_of_many_times_more_files),
        cmocka_unit_test(test_another_data_set_is_kept_by_its_third_epoch),
        cmocka_unit_test(test_what_is_read_once_keeps_no_place),
        cmocka_unit_test(test_what_is_read_once_takes_no_place),
        cmocka_unit_test(test_what_is_used_often_is_kept),
        cmocka_unit_test(test_counting_goes_on_beyond_32_bits),
        cmocka_unit_test(test_what_was_seen_is_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
