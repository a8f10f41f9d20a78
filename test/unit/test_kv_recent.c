/* layer: kv */
/* Versions that an engine remembers: never one that may be otherwise. */
#include "kv/kv_recent.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

struct fixture {
    struct kv *kv; /* transactions need one; nothing is committed to it */
    struct kv_recent *r;
    struct kv_txn *t;
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    assert_int_equal(kv_open_memory(&f->kv), 0);
    f->r = kv_recent_new();
    f->t = kv_txn_new(f->kv);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    kv_txn_free(f->t);
    kv_recent_free(f->r);
    kv_close(f->kv);
    free(f);
    return 0;
}

#define UNKNOWN UINT64_MAX

static uint64_t find(struct fixture *f, const char *key)
{
    uint64_t version;
    return kv_recent_find(f->r, slice_str(key), &version) ? version : UNKNOWN;
}

static void note(struct fixture *f, const char *key, uint64_t version)
{
    kv_recent_note(f->r, slice_str(key), version, kv_recent_ticket(f->r));
}

/* What f->t has is committed; the next transaction is empty. */
static void commit(struct fixture *f, uint64_t version, bool failed)
{
    kv_recent_begin(f->r);
    kv_recent_end(f->r, f->t, version, failed);
    kv_txn_free(f->t);
    f->t = kv_txn_new(f->kv);
}

/* What was read is known, also that there is nothing. */
static void test_what_was_read_is_known(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(find(f, "a"), UNKNOWN);
    note(f, "a", 7);
    note(f, "b", 0);
    assert_int_equal(find(f, "a"), 7);
    assert_int_equal(find(f, "b"), 0);
    assert_int_equal(find(f, "ab"), UNKNOWN);
}

/* What was read while a commit ran, or before one that ran meanwhile, may be what was there before it. */
static void test_what_a_commit_overtook_is_left_out(void **state)
{
    struct fixture *f = *state;
    uint64_t ticket = kv_recent_ticket(f->r);
    kv_recent_begin(f->r);
    uint64_t during = kv_recent_ticket(f->r);
    kv_recent_note(f->r, SLICE_LIT("a"), 7, ticket);
    kv_recent_note(f->r, SLICE_LIT("b"), 7, during);
    kv_recent_end(f->r, f->t, 9, /* failed= */ false);
    kv_recent_note(f->r, SLICE_LIT("c"), 7, ticket);
    kv_recent_note(f->r, SLICE_LIT("d"), 7, during);
    static const char *const keys[] = {"a", "b", "c", "d"};
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
        assert_int_equal(find(f, keys[i]), UNKNOWN);
    note(f, "e", 7);
    assert_int_equal(find(f, "e"), 7);
}

/* A commit's own keys are known, and what it changed of others; plain ones only if they were before. */
static void test_a_commit_is_followed(void **state)
{
    struct fixture *f = *state;
    note(f, "gone", 5);
    note(f, "plain", 5);
    note(f, "other", 5);
    kv_txn_check(f->t, SLICE_LIT("other"), 5);
    kv_txn_put(f->t, SLICE_LIT("put"), SLICE_LIT("v"));
    kv_txn_delete(f->t, SLICE_LIT("gone"));
    kv_txn_put_plain(f->t, SLICE_LIT("plain"), SLICE_LIT("v"));
    kv_txn_put_plain(f->t, SLICE_LIT("new plain"), SLICE_LIT("v"));
    commit(f, 9, /* failed= */ false);
    assert_int_equal(find(f, "put"), 9);
    assert_int_equal(find(f, "gone"), 0);
    assert_int_equal(find(f, "plain"), KV_VERSION_PLAIN);
    assert_int_equal(find(f, "new plain"), UNKNOWN);
    assert_int_equal(find(f, "other"), 5);
}

/* Changes of one transaction count in their order. */
static void test_the_last_change_counts(void **state)
{
    struct fixture *f = *state;
    kv_txn_put(f->t, SLICE_LIT("a"), SLICE_LIT("v"));
    kv_txn_delete(f->t, SLICE_LIT("a"));
    kv_txn_put(f->t, SLICE_LIT("b"), SLICE_LIT("v"));
    commit(f, 9, /* failed= */ false);
    assert_int_equal(find(f, "a"), 0);
    kv_txn_delete_range(f->t, SLICE_LIT("a"), SLICE_LIT("z"));
    kv_txn_put(f->t, SLICE_LIT("c"), SLICE_LIT("v"));
    commit(f, 11, /* failed= */ false);
    assert_int_equal(find(f, "b"), UNKNOWN);
    assert_int_equal(find(f, "c"), 11);
}

/* Nobody knows what a failed commit left. */
static void test_after_a_failure_nothing_is_known(void **state)
{
    struct fixture *f = *state;
    note(f, "a", 7);
    kv_txn_put(f->t, SLICE_LIT("b"), SLICE_LIT("v"));
    commit(f, 9, /* failed= */ true);
    assert_int_equal(find(f, "a"), UNKNOWN);
    assert_int_equal(find(f, "b"), UNKNOWN);
    note(f, "a", 7);
    assert_int_equal(find(f, "a"), 7);
}

/* Of many keys those are known that found room, each with its own version; long ones never are. */
static void test_many_and_long_keys(void **state)
{
    struct fixture *f = *state;
    char key[KV_RECENT_KEY_MAX + 2];
    unsigned known = 0;
    for (uint64_t i = 0; i < 20000; i++) {
        (void)snprintf(key, sizeof(key), "key %llu", (unsigned long long)i);
        note(f, key, i + 2);
    }
    for (uint64_t i = 0; i < 20000; i++) {
        (void)snprintf(key, sizeof(key), "key %llu", (unsigned long long)i);
        uint64_t version = find(f, key);
        assert_true(version == UNKNOWN || version == i + 2);
        known += version != UNKNOWN;
    }
    assert_true(known > 0);
    memset(key, 'x', sizeof(key));
    key[KV_RECENT_KEY_MAX + 1] = '\0';
    note(f, key, 7);
    kv_txn_put(f->t, slice_str(key), SLICE_LIT("v"));
    commit(f, 9, /* failed= */ false);
    assert_int_equal(find(f, key), UNKNOWN);
    key[KV_RECENT_KEY_MAX] = '\0';
    note(f, key, 7);
    assert_int_equal(find(f, key), 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_what_was_read_is_known, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_a_commit_overtook_is_left_out, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_commit_is_followed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_last_change_counts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_after_a_failure_nothing_is_known, setup, teardown),
        cmocka_unit_test_setup_teardown(test_many_and_long_keys, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
