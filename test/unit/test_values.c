/* layer: object */
/* threaded */
/* The table of values, which is pure of clock and files, and the ends of objects. */
#include "namespace/expiry.h"
#include "object/values.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define NOW 1000000

static const struct value_condition always = {.if_none_match = false};

struct table {
    struct values *v;
    struct arena *a;
};

static int setup(void **state)
{
    struct table *t = calloc(1, sizeof(*t));
    assert_non_null(t);
    t->v = values_new(8 * MIB);
    t->a = arena_new(16 * MIB);
    *state = t;
    return 0;
}

static int teardown(void **state)
{
    struct table *t = *state;
    values_check(t->v);
    values_free(t->v);
    arena_free(t->a);
    free(t);
    return 0;
}

static int put(struct table *t, uint64_t bucket, const char *key, const char *data, uint64_t expires_ns)
{
    const struct value x = {.expires_ns = expires_ns, .etag = slice_str(data), .data = slice_str(data)};
    return values_put(t->v, bucket, slice_str(key), &x, &always, NOW, NULL);
}

/* The bytes of a value, or NULL when it is not there. */
static const char *get(struct table *t, uint64_t bucket, const char *key, uint64_t now_ns)
{
    struct value x;
    if (values_get(t->v, bucket, slice_str(key), now_ns, /* with_data= */ true, t->a, &x) < 0)
        return NULL;
    return arena_str(t->a, x.data);
}

/* What was put is found, byte for byte with its attributes, in its bucket only; a put replaces, a removal
 * forgets. */
static void test_put_get_remove(void **state)
{
    struct table *t = *state;
    const struct value in = {.mtime_ns = 7,
                             .etag = SLICE_LIT("tag"),
                             .content_type = SLICE_LIT("text/plain"),
                             .meta = SLICE_LIT("x-amz-meta-a: b\n"),
                             .data = SLICE_LIT("one")};
    struct value out;
    assert_int_equal(values_put(t->v, 1, SLICE_LIT("k"), &in, &always, NOW, NULL), 0);
    assert_int_equal(values_get(t->v, 1, SLICE_LIT("k"), NOW, true, t->a, &out), 0);
    assert_true(slice_eq(out.data, in.data) && slice_eq(out.etag, in.etag) && slice_eq(out.meta, in.meta));
    assert_true(slice_eq(out.content_type, in.content_type) && out.mtime_ns == 7);
    assert_int_equal(values_get(t->v, 1, SLICE_LIT("k"), NOW, false, t->a, &out), 0);
    assert_true(out.data.p == NULL && out.data.n == 3);
    assert_null(get(t, 2, "k", NOW));
    assert_int_equal(put(t, 1, "k", "two", 0), 0);
    assert_string_equal(get(t, 1, "k", NOW), "two");
    assert_int_equal(values_count(t->v).objects, 1);
    assert_int_equal(values_remove(t->v, 1, SLICE_LIT("k"), &always, NOW, NULL), 0);
    assert_null(get(t, 1, "k", NOW));
    assert_int_equal(values_remove(t->v, 1, SLICE_LIT("k"), &always, NOW, NULL), -ENOENT);
    assert_int_equal(values_count(t->v).bytes, 0);
}

/* At the very moment of its end a value is gone for reads, listings and conditions, before anything was
 * swept; a sweep frees it. */
static void test_a_value_ends_exactly(void **state)
{
    struct table *t = *state;
    const struct value_condition absent = {.if_none_match = true}, any = {.if_match = SLICE_LIT("*")};
    const struct value x = {.data = SLICE_LIT("new")};
    struct values_listed page[4];
    const struct values_list all = {.max = 4};
    bool truncated;
    assert_int_equal(put(t, 1, "k", "old", NOW + 10), 0);
    assert_int_equal(put(t, 1, "stays", "s", 0), 0);
    assert_string_equal(get(t, 1, "k", NOW + 9), "old");
    assert_null(get(t, 1, "k", NOW + 10));
    assert_int_equal(values_list(t->v, 1, &all, NOW + 9, t->a, page, &truncated), 2);
    assert_int_equal(values_list(t->v, 1, &all, NOW + 10, t->a, page, &truncated), 1);
    assert_int_equal(values_put(t->v, 1, SLICE_LIT("k"), &x, &any, NOW + 10, NULL), -ENOENT);
    assert_int_equal(values_put(t->v, 1, SLICE_LIT("k"), &x, &absent, NOW + 9, NULL), ERR_PRECONDITION);
    assert_int_equal(values_put(t->v, 1, SLICE_LIT("k"), &x, &absent, NOW + 10, NULL), 0);
    assert_string_equal(get(t, 1, "k", UINT64_MAX), "new");
    assert_int_equal(put(t, 1, "brief", "b", NOW + 1), 0);
    values_sweep(t->v, NOW + 1);
    assert_int_equal(values_count(t->v).objects, 2);
    assert_string_equal(get(t, 1, "stays", NOW + 1), "s");
}

/* If-Match and If-None-Match decide with the change itself; a refused put leaves what was there. */
static void test_conditions(void **state)
{
    struct table *t = *state;
    const struct value x = {.etag = SLICE_LIT("b"), .data = SLICE_LIT("b")};
    const struct value_condition absent = {.if_none_match = true}, a = {.if_match = SLICE_LIT("a")},
                                 any = {.if_match = SLICE_LIT("*")};
    assert_int_equal(values_put(t->v, 1, SLICE_LIT("k"), &x, &a, NOW, NULL), -ENOENT); /* as in S3 */
    assert_int_equal(put(t, 1, "k", "a", 0), 0);
    assert_int_equal(values_put(t->v, 1, SLICE_LIT("k"), &x, &absent, NOW, NULL), ERR_PRECONDITION);
    assert_string_equal(get(t, 1, "k", NOW), "a");
    assert_int_equal(values_put(t->v, 1, SLICE_LIT("k"), &x, &a, NOW, NULL), 0);
    assert_string_equal(get(t, 1, "k", NOW), "b");
    assert_int_equal(values_remove(t->v, 1, SLICE_LIT("k"), &a, NOW, NULL), ERR_PRECONDITION);
    assert_string_equal(get(t, 1, "k", NOW), "b");
    assert_int_equal(values_remove(t->v, 1, SLICE_LIT("k"), &any, NOW, NULL), 0);
    /* What is not there counts as removed. */
    assert_int_equal(values_remove(t->v, 1, SLICE_LIT("k"), &any, NOW, NULL), -ENOENT);
    assert_int_equal(values_remove(t->v, 1, SLICE_LIT("k"), &a, NOW, NULL), -ENOENT);
}

/* Memory stays within the limit whatever is put, what is too large is refused, and values that are read again
 * outlive a scan over ten times the table. */
static void test_the_table_is_bounded_and_resists_scans(void **state)
{
    struct table *t = *state;
    char key[32], big[VALUES_DATA_MAX + 1];
    unsigned hot = 0;
    memset(big, 'x', sizeof(big));
    const struct value one = {.data = slice_of(big, 1000)}, too_big = {.data = slice_of(big, sizeof(big))};
    assert_int_equal(values_put(t->v, 1, SLICE_LIT("k"), &too_big, &always, NOW, NULL), -EFBIG);
    for (unsigned i = 0; i < 60000; i++) {
        (void)snprintf(key, sizeof(key), "scan %u", i);
        assert_int_equal(values_put(t->v, 1, slice_str(key), &one, &always, NOW, NULL), 0);
        if (i < 1000) {
            (void)snprintf(key, sizeof(key), "hot %u", i);
            assert_int_equal(put(t, 1, key, "h", 0), 0);
        }
        (void)snprintf(key, sizeof(key), "hot %u", i % 1000);
        (void)get(t, 1, key, NOW);
        arena_clear(t->a);
        if (i % 10000 == 0)
            values_check(t->v);
    }
    for (unsigned i = 0; i < 1000; i++) {
        (void)snprintf(key, sizeof(key), "hot %u", i);
        hot += get(t, 1, key, NOW) != NULL;
    }
    assert_true(hot >= 950);
    struct values_count c = values_count(t->v);
    assert_true(c.bytes <= 8 * MIB && c.bytes > 7 * MIB && c.evicted > 50000);
}

/* Pages hold the keys in byte order, each once, with common prefixes, whatever order they were put in, and
 * continue where the page before ended. */
static void test_listing_in_pages(void **state)
{
    struct table *t = *state;
    static const char *const keys[] = {"d/2", "b", "c/x/1", "a", "d/1", "c", "c/y", "e"};
    static const char *const shown[] = {"a", "b", "c", "c/", "d/", "e"};
    struct values_listed page[2];
    struct values_list l = {.delimiter = '/', .max = 2};
    bool truncated = true;
    size_t at = 0;
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
        assert_int_equal(put(t, 1, keys[i], "v", 0), 0);
    assert_int_equal(put(t, 2, "aa", "other bucket", 0), 0);
    while (truncated) {
        size_t n = values_list(t->v, 1, &l, NOW, t->a, page, &truncated);
        assert_true(n > 0 && at + n <= ARRAY_SIZE(shown));
        for (size_t i = 0; i < n; i++, at++) {
            assert_true(slice_eq_str(page[i].key, shown[at]));
            assert_int_equal(page[i].is_prefix, slice_ends(page[i].key, SLICE_LIT("/")));
        }
        l.after = page[n - 1].key;
    }
    assert_int_equal(at, ARRAY_SIZE(shown));
    l = (struct values_list){.prefix = SLICE_LIT("c/"), .max = 2};
    assert_int_equal(values_list(t->v, 1, &l, NOW, t->a, page, &truncated), 2);
    assert_true(slice_eq_str(page[0].key, "c/x/1") && slice_eq_str(page[1].key, "c/y") && !truncated);
    assert_int_equal(values_count_bucket(t->v, 1, NOW).objects, ARRAY_SIZE(keys));
    values_forget_bucket(t->v, 1);
    assert_int_equal(values_count_bucket(t->v, 1, NOW).objects, 0);
    assert_string_equal(get(t, 2, "aa", NOW), "other bucket");
}

struct racer {
    struct values *v;
    unsigned number, won;
};

static void *race_main(void *arg)
{
    struct racer *r = arg;
    struct arena *a = arena_new(MIB);
    const struct value_condition absent = {.if_none_match = true};
    char key[32], data[32];
    for (unsigned i = 0; i < 2000; i++) {
        struct value out;
        (void)snprintf(key, sizeof(key), "key %u", i);
        (void)snprintf(data, sizeof(data), "value %u of %u", i, r->number);
        const struct value x = {.data = slice_str(data)};
        r->won += values_put(r->v, 1, slice_str(key), &x, &absent, NOW, NULL) == 0;
        (void)snprintf(data, sizeof(data), "value %u of ", i);
        if (values_get(r->v, 1, slice_str(key), NOW, true, a, &out) < 0 ||
            !slice_starts(out.data, slice_str(data)))
            abort(); /* nobody removes */
        arena_clear(a);
    }
    arena_free(a);
    return NULL;
}

/* Of many threads that put the same absent key exactly one wins, and everybody reads a whole value of it. */
static void test_put_if_absent_has_one_winner(void **state)
{
    struct table *t = *state;
    struct racer racers[4];
    pthread_t threads[4];
    unsigned won = 0;
    for (unsigned i = 0; i < 4; i++) {
        racers[i] = (struct racer){.v = t->v, .number = i};
        assert_int_equal(pthread_create(&threads[i], NULL, race_main, &racers[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        won += racers[i].won;
    }
    assert_int_equal(won, 2000);
}

/* An end of the object's own counts before the bucket's ttl; what is no number counts as none; sums that do
 * not fit are never. */
static void test_when_objects_end(void **state)
{
    (void)state;
    const struct slice own = SLICE_LIT("x-amz-meta-a: b\nx-forebay-expires: 77\n");
    assert_int_equal(expiry_ns(0, 5, SLICE_NULL), 0);
    assert_int_equal(expiry_ns(2, 5, SLICE_NULL), 2000005);
    assert_int_equal(expiry_ns(2, 0, SLICE_NULL), 0); /* nobody knows since when */
    assert_int_equal(expiry_ns(2, 5, own), 77);
    assert_int_equal(expiry_ns(0, 5, own), 77);
    assert_int_equal(expiry_ns(0, 5, SLICE_LIT("x-forebay-expires: soon\n")), 0);
    assert_int_equal(expiry_ns(UINT64_MAX, 5, SLICE_NULL), 0);
    assert_false(expiry_is_over(2, 5, SLICE_NULL, 2000004));
    assert_true(expiry_is_over(2, 5, SLICE_NULL, 2000005));
    assert_false(expiry_is_over(0, 5, SLICE_NULL, UINT64_MAX));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_put_get_remove, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_value_ends_exactly, setup, teardown),
        cmocka_unit_test_setup_teardown(test_conditions, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_table_is_bounded_and_resists_scans, setup, teardown),
        cmocka_unit_test_setup_teardown(test_listing_in_pages, setup, teardown),
        cmocka_unit_test_setup_teardown(test_put_if_absent_has_one_winner, setup, teardown),
        cmocka_unit_test(test_when_objects_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
