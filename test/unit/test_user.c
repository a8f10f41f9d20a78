/* layer: namespace */
/* Users: their records, keys, roles and patterns. */
#include "namespace/user.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define GOLDEN                                                                                               \
    "forebay-user 1\ncreated=1767225600000000000\nrole=writer\nbuckets=train-*,images\n"                     \
    "key=AAAAAAAAAAAAAAAAAAAA BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB 1767225600000000001\n"                \
    "key=CCCCCCCCCCCCCCCCCCCC DDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDD 1767225600000000002\n"

struct fixture {
    struct kv *kv;
    struct user_table *table;
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    assert_int_equal(kv_open_memory(&f->kv), 0);
    assert_int_equal(user_table_open(f->kv, &f->table, NULL), 0);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    user_table_close(f->table);
    kv_close(f->kv);
    free(f);
    return 0;
}

static void reopen(struct fixture *f)
{
    user_table_close(f->table);
    f->table = NULL;
    assert_int_equal(user_table_open(f->kv, &f->table, NULL), 0);
}

static void put_record(struct fixture *f, const char *key, const char *value)
{
    _cleanup_(kv_txn_freep) struct kv_txn *txn = kv_txn_new(f->kv);
    kv_txn_put(txn, slice_str(key), slice_str(value));
    assert_int_equal(kv_txn_commit(txn, KV_DURABLE, NULL), 0);
}

static struct user *create(struct fixture *f, const char *name, const char *role, const char *buckets)
{
    struct user *u = NULL;
    struct err e = {0};
    if (user_create(f->table, slice_str(name), slice_str(role), slice_str(buckets), &u, &e) < 0)
        fail_msg("%s", e.text);
    return u;
}

/* A record as version 1 wrote it is read, and one that is written again has the same form, byte by byte. */
static void test_golden_record_is_read_and_written(void **state)
{
    struct fixture *f = *state;
    char secret[USER_SECRET_KEY_LEN + 1];
    put_record(f, "u/ann", GOLDEN);
    reopen(f);
    struct user *u = user_find_key(f->table, SLICE_LIT("CCCCCCCCCCCCCCCCCCCC"), secret);
    assert_non_null(u);
    assert_string_equal(secret, "DDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDD");
    assert_string_equal(u->name, "ann");
    assert_int_equal(u->role, USER_WRITER);
    assert_int_equal(u->n_keys, 2);
    user_unref(u);
    struct user *more = NULL;
    assert_int_equal(user_add_key(f->table, SLICE_LIT("ann"), &more, NULL), 0);
    assert_int_equal(user_remove_key(f->table, SLICE_LIT("ann"), slice_str(more->keys[2].access_key), NULL),
                     0);
    user_unref(more);
    _cleanup_buf_ struct buf value = BUF_INIT(8 * KIB);
    assert_int_equal(kv_get(f->kv, SLICE_LIT("u/ann"), &value, NULL, NULL), 0);
    assert_string_equal(value.p, GOLDEN);
}

/* Records that are broken in any one line stop the start and name the user. */
static void test_broken_records_are_refused(void **state)
{
    struct fixture *f = *state;
    const char *const broken[] = {
        "",
        "forebay-user 2\ncreated=1\nrole=reader\nbuckets=*\n",
        "forebay-user 1\ncreated=1\nrole=reader\nbuckets=*\n", /* no key */
        "forebay-user 1\ncreated=x\nrole=reader\nbuckets=*\nkey=AAAAAAAAAAAAAAAAAAAA "
        "BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB 1\n",
        "forebay-user 1\ncreated=1\nrole=king\nbuckets=*\nkey=AAAAAAAAAAAAAAAAAAAA "
        "BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB 1\n",
        "forebay-user 1\ncreated=1\nrole=reader\nbuckets=a b\nkey=AAAAAAAAAAAAAAAAAAAA "
        "BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB 1\n",
        "forebay-user 1\ncreated=1\nrole=reader\nbuckets=*\nkey=SHORT "
        "BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB 1\n",
        "forebay-user 1\ncreated=1\nrole=reader\nbuckets=*\nkey=AAAAAAAAAAAAAAAAAAAA short 1\n",
    };
    for (size_t i = 0; i < ARRAY_SIZE(broken); i++) {
        struct user_table *t = NULL;
        struct err e = {0};
        put_record(f, "u/bob", broken[i]);
        assert_int_equal(user_table_open(f->kv, &t, &e), ERR_CORRUPT);
        assert_non_null(strstr(e.text, "bob"));
    }
    put_record(f, "u/bob", GOLDEN);
    put_record(f, "u/eve", GOLDEN); /* the keys of another */
    struct user_table *t = NULL;
    assert_int_equal(user_table_open(f->kv, &t, NULL), ERR_CORRUPT);
}

/* Users and all their keys are there after the table was opened anew; removed keys and users are not. */
static void test_users_survive_and_revoked_ones_do_not(void **state)
{
    struct fixture *f = *state;
    struct user *first = create(f, "ann", "writer", "a*"), *second = NULL;
    assert_int_equal(user_add_key(f->table, SLICE_LIT("ann"), &second, NULL), 0);
    assert_true(atomic_load(&first->retired));
    struct slice old_key = slice_str(second->keys[0].access_key),
                 new_key = slice_str(second->keys[1].access_key);
    assert_false(slice_eq(old_key, new_key));
    reopen(f);
    struct user *u = user_find_key(f->table, old_key, NULL);
    assert_non_null(u);
    assert_int_equal(user_remove_key(f->table, SLICE_LIT("ann"), old_key, NULL), 0);
    assert_true(atomic_load(&u->retired));
    user_unref(u);
    assert_null(user_find_key(f->table, old_key, NULL));
    struct err e = {0};
    assert_int_equal(user_remove_key(f->table, SLICE_LIT("ann"), new_key, &e), -EPERM);
    assert_int_equal(user_remove_key(f->table, SLICE_LIT("ann"), old_key, &e), -ENOENT);
    reopen(f);
    assert_null(user_find_key(f->table, old_key, NULL));
    u = user_find_key(f->table, new_key, NULL);
    assert_non_null(u);
    assert_int_equal(user_delete(f->table, SLICE_LIT("ann"), NULL), 0);
    assert_true(atomic_load(&u->retired));
    user_unref(u);
    reopen(f);
    assert_null(user_find_key(f->table, new_key, NULL));
    assert_int_equal(user_delete(f->table, SLICE_LIT("ann"), &e), -ENOENT);
    user_unref(first);
    user_unref(second);
}

/* A change that the control store refuses leaves the user as it was, in memory too. */
static void test_refused_commits_change_nothing(void **state)
{
    struct fixture *f = *state;
    struct user *u = create(f, "ann", "reader", ""), *more = NULL;
    put_record(f, "u/ann", GOLDEN); /* by someone else: another version */
    assert_int_equal(user_add_key(f->table, SLICE_LIT("ann"), &more, NULL), ERR_CONFLICT);
    assert_int_equal(user_delete(f->table, SLICE_LIT("ann"), NULL), ERR_CONFLICT);
    assert_false(atomic_load(&u->retired));
    struct user *same = user_find_key(f->table, slice_str(u->keys[0].access_key), NULL);
    assert_ptr_equal(same, u);
    user_unref(same);
    user_unref(u);
    put_record(f, "u/eve", GOLDEN);
    assert_int_equal(user_create(f->table, SLICE_LIT("eve"), SLICE_NULL, SLICE_NULL, &more, NULL),
                     ERR_CONFLICT);
    assert_int_equal(user_find(f->table, SLICE_LIT("eve"), &more, NULL), -ENOENT);
}

/* Names, roles and patterns that are not ours give one line naming what is wrong; the number of keys has an
 * end. */
static void test_bad_arguments_are_named(void **state)
{
    struct fixture *f = *state;
    const struct {
        const char *name, *role, *buckets, *says;
    } cases[] = {
        {"", "", "", "user name"},           {"a b", "", "", "user name"}, {"a/b", "", "", "user name"},
        {"ann", "king", "", "one of admin"}, {"ann", "", "A*", "buckets"}, {"ann", "admin", "a*", "give *"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct user *u = NULL;
        struct err e = {0};
        assert_int_equal(user_create(f->table, slice_str(cases[i].name), slice_str(cases[i].role),
                                     slice_str(cases[i].buckets), &u, &e),
                         ERR_BAD_OPTION);
        assert_non_null(strstr(e.text, cases[i].says));
    }
    struct user *u = create(f, "ann", "", "");
    assert_int_equal(u->role, USER_READER);
    user_unref(u);
    assert_int_equal(user_create(f->table, SLICE_LIT("ann"), SLICE_NULL, SLICE_NULL, &u, NULL), -EEXIST);
    for (size_t i = 1; i < USER_KEYS_MAX; i++) {
        assert_int_equal(user_add_key(f->table, SLICE_LIT("ann"), &u, NULL), 0);
        user_unref(u);
    }
    assert_int_equal(user_add_key(f->table, SLICE_LIT("ann"), &u, NULL), -ENOSPC);
}

/* Patterns: names, a star anywhere, several with commas. */
static void test_patterns(void **state)
{
    (void)state;
    const struct {
        const char *pattern, *bucket;
        bool fits;
    } cases[] = {
        {"*", "any", true},           {"*", "", true},
        {"data", "data", true},       {"data", "data2", false},
        {"data*", "data", true},      {"data*", "data-1", true},
        {"*-raw", "a-raw-raw", true}, {"*-raw", "a-raw-x", false},
        {"a*b*c", "axxbyyc", true},   {"a*b*c", "axxc", false},
        {"one,two", "two", true},     {"one,two", "one,two", false},
        {"one,t*", "three", true},    {"", "any", false},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        assert_int_equal(user_pattern_fits(slice_str(cases[i].pattern), slice_str(cases[i].bucket)),
                         cases[i].fits);
}

/* Roles: a reader reads, a writer also writes, only an admin (and the node's own pair) manages. */
static void test_roles(void **state)
{
    struct fixture *f = *state;
    struct user *reader = create(f, "reader", "reader", "a*"), *writer = create(f, "writer", "writer", "a*"),
                *admin = create(f, "admin", "admin", "*");
    const struct slice in = SLICE_LIT("abc"), out = SLICE_LIT("xyz");
    assert_true(user_may(reader, USER_MAY_READ, in));
    assert_false(user_may(reader, USER_MAY_READ, out));
    assert_false(user_may(reader, USER_MAY_WRITE, in));
    assert_true(user_may(writer, USER_MAY_READ, in) && user_may(writer, USER_MAY_WRITE, in));
    assert_false(user_may(writer, USER_MAY_WRITE, out));
    assert_false(user_may(writer, USER_MAY_MANAGE, in) || user_may(reader, USER_MAY_MANAGE, in));
    assert_true(user_may(reader, USER_MAY_ANY, out));
    assert_true(user_may(admin, USER_MAY_MANAGE, out) && user_may(admin, USER_MAY_WRITE, out));
    assert_true(user_may(NULL, USER_MAY_MANAGE, out));
    user_unref(reader);
    user_unref(writer);
    user_unref(admin);
}

/* A page begins behind the given name, and a line shows all but the secrets. */
static void test_pages_and_lines(void **state)
{
    struct fixture *f = *state;
    struct user *page[4];
    put_record(f, "u/ann", GOLDEN);
    reopen(f);
    user_unref(create(f, "bob", "", ""));
    assert_int_equal(user_page(f->table, SLICE_NULL, page, 1), 1);
    _cleanup_buf_ struct buf line = BUF_INIT(KIB);
    assert_int_equal(user_line(page[0], &line), 0);
    assert_string_equal(line.p, "ann writer train-*,images 1767225600000000000 "
                                "AAAAAAAAAAAAAAAAAAAA,CCCCCCCCCCCCCCCCCCCC 100 0 0\n");
    user_unref(page[0]);
    assert_int_equal(user_page(f->table, SLICE_LIT("ann"), page, 4), 1);
    assert_string_equal(page[0]->name, "bob");
    user_unref(page[0]);
}

/* Limits are kept, byte by byte as written here, and come back; what is not named stays; bad ones change
 * nothing; and who kept the user sees that it must look again. */
static void test_limits_are_kept(void **state)
{
    struct fixture *f = *state;
    struct user *u = create(f, "ann", "writer", "train-*,images"), *now = NULL;
    _cleanup_buf_ struct buf record = BUF_INIT(8 * KIB);
    uint64_t version;
    assert_true(u->limits.share == 100 && u->limits.requests_per_s == 0 && u->limits.bytes_per_s == 0);
    assert_int_equal(
        user_set_limits(f->table, SLICE_LIT("ann"), SLICE_LIT("share=300\nlimit.bytes=1MiB\n"), NULL), 0);
    assert_true(atomic_load(&u->retired));
    user_unref(u);
    assert_int_equal(user_set_limits(f->table, SLICE_LIT("ann"), SLICE_LIT("limit.requests=7"), NULL), 0);
    static const char *const bad[] = {"share=0", "share=10001", "share", "limit.bytes=x", "rate=1"};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_int_equal(user_set_limits(f->table, SLICE_LIT("ann"), slice_str(bad[i]), NULL),
                         ERR_BAD_OPTION);
    assert_int_equal(user_set_limits(f->table, SLICE_LIT("eve"), SLICE_LIT("share=1"), NULL), -ENOENT);
    reopen(f);
    assert_int_equal(user_find(f->table, SLICE_LIT("ann"), &now, NULL), 0);
    assert_true(now->limits.share == 300 && now->limits.requests_per_s == 7);
    assert_int_equal(now->limits.bytes_per_s, MIB);
    user_unref(now);
    assert_int_equal(kv_get(f->kv, SLICE_LIT("u/ann"), &record, &version, NULL), 0);
    assert_non_null(
        strstr(record.p, "\nbuckets=train-*,images\nshare=300\nlimit.requests=7\nlimit.bytes=1048576\nkey="));
}

int main(void)
{
#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_golden_record_is_read_and_written),
        TEST(test_broken_records_are_refused),
        TEST(test_users_survive_and_revoked_ones_do_not),
        TEST(test_refused_commits_change_nothing),
        TEST(test_bad_arguments_are_named),
        TEST(test_patterns),
        TEST(test_roles),
        TEST(test_limits_are_kept),
        TEST(test_pages_and_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
