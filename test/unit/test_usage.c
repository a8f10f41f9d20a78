/* layer: object */
#include "object/usage.h"

#include "base/sys.h"
#include "faulty_kv.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

struct seen {
    uint64_t rows, opens, read, fetched;
    struct usage_row of; /* the row that was asked for */
    uint64_t bucket_id;
    const char *prefix;
};

static void see(void *arg, const struct usage_row *r)
{
    struct seen *s = arg;
    s->rows++;
    s->opens += r->opens;
    s->read += r->read_bytes;
    s->fetched += r->fetched_bytes;
    if (r->bucket_id == s->bucket_id && slice_eq_str(r->prefix, s->prefix))
        s->of = *r;
}

static struct seen look(struct usage *u, uint64_t bucket_id, const char *prefix)
{
    struct seen s = {.bucket_id = bucket_id, .prefix = prefix};
    usage_each(u, see, &s);
    return s;
}

/* Reads count for the first two directories of their keys, each bucket by itself, and a restart keeps them.
 */
static void test_counts_by_prefix(void **state)
{
    (void)state;
    _cleanup_(kv_closep) struct kv *kv = NULL;
    assert_int_equal(kv_open_memory(&kv), 0);
    struct usage *u = usage_new(kv);
    usage_opened(u, 1, SLICE_LIT("a/b/c/d"));
    usage_read(u, 1, SLICE_LIT("a/b/x"), 10);
    usage_fetched(u, 1, SLICE_LIT("a/b/"), 5);
    usage_read(u, 1, SLICE_LIT("a/x"), 7);
    usage_read(u, 1, SLICE_LIT("top \t\n"), 3);
    usage_read(u, 2, SLICE_LIT("a/b/x"), 100);
    for (int round = 0; round < 3; round++) {
        struct usage_row r = look(u, 1, "a/b/").of;
        assert_int_equal(r.opens, 1);
        assert_int_equal(r.read_bytes, 10);
        assert_int_equal(r.fetched_bytes, 5);
        assert_true(r.last_read_ms > 0);
        assert_int_equal(look(u, 1, "a/").of.read_bytes, 7);
        assert_int_equal(look(u, 1, "").of.read_bytes, 3);
        assert_int_equal(look(u, 2, "a/b/").of.read_bytes, 100);
        assert_int_equal(look(u, 2, "").rows, 4);
        assert_int_equal(usage_save(u, NULL), 0);
        usage_free(u);
        u = usage_new(kv);
    }
    usage_forget(u, 1);
    assert_int_equal(look(u, 2, "").rows, 1);
    assert_int_equal(look(u, 2, "a/b/").of.read_bytes, 100);
    usage_free(u);
}

/* However many prefixes there are, nothing is lost: what has no row of its own counts for its bucket. */
static void test_many_prefixes(void **state)
{
    (void)state;
    _cleanup_(kv_closep) struct kv *kv = NULL;
    assert_int_equal(kv_open_memory(&kv), 0);
    struct usage *u = usage_new(kv);
    for (uint64_t i = 0; i < 2 * USAGE_ROWS_MAX; i++) {
        char key[32];
        (void)snprintf(key, sizeof(key), "%d/x", (int)i);
        usage_read(u, i % 7, slice_str(key), 1);
    }
    struct seen s = look(u, 3, "");
    assert_true(s.rows <= USAGE_ROWS_MAX);
    assert_int_equal(s.read, 2 * USAGE_ROWS_MAX);
    assert_true(s.of.read_bytes > 0);
    assert_int_equal(usage_save(u, NULL), 0);
    usage_free(u);
    u = usage_new(kv);
    assert_int_equal(look(u, 3, "").read, 2 * USAGE_ROWS_MAX);
    usage_free(u);
}

static void read_once(struct usage *u, unsigned from, unsigned n)
{
    for (unsigned i = from; i < from + n; i++) {
        char key[32];
        (void)snprintf(key, sizeof(key), "once%u/x", i);
        usage_opened(u, 1, slice_str(key));
        usage_read(u, 1, slice_str(key), 1);
    }
}

/* What is read much is seen, before and after any number of prefixes that were read once; those count for
 * their bucket, oldest first. (Seen to fail where the rows of those that came first stay.) */
static void test_what_is_read_much_is_seen(void **state)
{
    (void)state;
    _cleanup_(kv_closep) struct kv *kv = NULL;
    assert_int_equal(kv_open_memory(&kv), 0);
    struct usage *u = usage_new(kv);
    for (int i = 0; i < 50; i++)
        usage_opened(u, 1, SLICE_LIT("early/x"));
    read_once(u, 0, 3 * USAGE_ROWS_MAX);
    for (int i = 0; i < 50; i++)
        usage_opened(u, 1, SLICE_LIT("late/x"));
    usage_fetched(u, 1, SLICE_LIT("late/x"), 7);
    read_once(u, 3 * USAGE_ROWS_MAX, 3 * USAGE_ROWS_MAX);
    assert_int_equal(look(u, 1, "early/").of.opens, 50);
    assert_int_equal(look(u, 1, "late/").of.opens, 50);
    assert_int_equal(look(u, 1, "late/").of.fetched_bytes, 7);
    struct seen s = look(u, 1, "");
    assert_true(s.rows <= USAGE_ROWS_MAX && s.rows > USAGE_ROWS_MAX / 2);
    assert_int_equal(s.opens, 6 * USAGE_ROWS_MAX + 100);
    assert_int_equal(s.read, 6 * USAGE_ROWS_MAX);
    assert_true(s.of.opens > 0 && s.of.last_read_ms > 0);
    usage_free(u);
}

/* As many rows as there may be, of prefixes as long as they may be and without a letter of ASCII, are kept.
 * (With a record of 4 MiB at most they were not.) */
static void test_long_prefixes_are_kept(void **state)
{
    (void)state;
    _cleanup_(kv_closep) struct kv *kv = NULL;
    char key[512];
    assert_int_equal(kv_open_memory(&kv), 0);
    struct usage *u = usage_new(kv);
    memset(key, 0xc3, sizeof(key));
    key[sizeof(key) - 1] = '/';
    for (unsigned i = 0; i < USAGE_ROWS_MAX; i++) {
        key[0] = (char)(0x80 + i % 64);
        key[1] = (char)(0x80 + i / 64);
        usage_read(u, 1, slice_of(key, sizeof(key)), 1);
    }
    struct err e = {0};
    if (usage_save(u, &e) < 0)
        fail_msg("%s", e.text);
    usage_free(u);
    u = usage_new(kv);
    assert_int_equal(look(u, 1, "").read, USAGE_ROWS_MAX);
    usage_free(u);
}

/* What could not be written down is written down the next time, though nothing was read since. */
static void test_a_failed_save_is_made_up_for(void **state)
{
    (void)state;
    struct faulty broken = {.kv.engine = &faulty_engine, .fail_at = 1};
    assert_int_equal(kv_open_memory(&broken.inner), 0);
    struct usage *u = usage_new(&broken.kv);
    usage_read(u, 1, SLICE_LIT("a/x"), 7);
    assert_int_equal(usage_save(u, NULL), -EIO);
    assert_int_equal(usage_save(u, NULL), 0);
    usage_free(u);
    u = usage_new(&broken.kv);
    assert_int_equal(look(u, 1, "a/").of.read_bytes, 7);
    usage_free(u);
    kv_close(broken.inner);
}

/* A record that is damaged is forgotten, not fatal; one line too few digits is damage. */
static void test_damaged_record(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "forebay usage 2\n", "forebay usage 1\n1\t2\n",
                                      "forebay usage 1\n1\t2\t3\t4\tx\tp\n",
                                      "forebay usage 1\n1\t2\t3\t4\t5\t%z\n"};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        _cleanup_(kv_closep) struct kv *kv = NULL;
        assert_int_equal(kv_open_memory(&kv), 0);
        _cleanup_(kv_txn_freep) struct kv_txn *t = kv_txn_new(kv);
        kv_txn_put(t, SLICE_LIT("n/usage"), slice_str(bad[i]));
        assert_int_equal(kv_txn_commit(t, KV_VISIBLE, NULL), 0);
        struct usage *u = usage_new(kv);
        assert_int_equal(look(u, 1, "").rows, 0);
        usage_free(u);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts_by_prefix),
        cmocka_unit_test(test_many_prefixes),
        cmocka_unit_test(test_what_is_read_much_is_seen),
        cmocka_unit_test(test_long_prefixes_are_kept),
        cmocka_unit_test(test_a_failed_save_is_made_up_for),
        cmocka_unit_test(test_damaged_record),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
