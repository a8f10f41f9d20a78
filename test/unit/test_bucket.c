/* layer: namespace */
#include "kv/kv_internal.h"
#include "namespace/bucket.h"
#include "namespace/seal.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

struct fixture {
    struct kv *kv;
    struct bucket_table *table;
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    assert_int_equal(kv_open_memory(&f->kv), 0);
    assert_int_equal(bucket_table_open(f->kv, NULL, &f->table, NULL), 0);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    bucket_table_close(f->table);
    kv_close(f->kv);
    free(f);
    return 0;
}

static uint64_t create(struct fixture *f, const char *name, const char *settings)
{
    struct bucket *b = NULL;
    struct err e = {0};
    int r = bucket_create(f->table, slice_str(name), slice_str(settings), &b, &e);
    if (r < 0)
        fail_msg("%s", e.text);
    uint64_t id = b->id;
    bucket_unref(b);
    return id;
}

/* A bucket is found again, with its properties, by a table opened later on the same control store. */
static void test_bucket_survives_reopening_with_its_properties(void **state)
{
    struct fixture *f = *state;
    uint64_t id = create(f, "images",
                         "origin=s3://data/train\norigin.endpoint=http://127.0.0.1:9000\n"
                         "origin.secret_key=very secret\nvalidate=ttl:5s\nverify=read\n");
    bucket_table_close(f->table);
    assert_int_equal(bucket_table_open(f->kv, NULL, &f->table, NULL), 0);
    struct bucket *b = NULL;
    assert_int_equal(bucket_find(f->table, SLICE_LIT("images"), &b, NULL), 0);
    assert_int_equal(b->id, id);
    assert_string_equal(b->p.origin, "s3://data/train");
    assert_string_equal(b->p.origin_options.endpoint, "http://127.0.0.1:9000");
    assert_string_equal(b->p.origin_options.secret_key, "very secret");
    assert_int_equal(b->validate, BUCKET_VALIDATE_TTL);
    assert_int_equal(b->ttl_ms, 5000);
    assert_int_equal(b->p.verify, BUCKET_VERIFY_READ);
    bucket_unref(b);
}

/* An id is never given out twice, also not after its bucket is gone and the table was opened anew. */
static void test_ids_are_never_reused(void **state)
{
    struct fixture *f = *state;
    uint64_t first = create(f, "one", "origin=file:///a\n");
    _cleanup_(bucket_unrefp) struct bucket *b = bucket_find_id(f->table, first);
    assert_int_equal(bucket_delete(f->table, b, NULL), 0);
    bucket_table_close(f->table);
    assert_int_equal(bucket_table_open(f->kv, NULL, &f->table, NULL), 0);
    assert_true(create(f, "one", "origin=file:///a\n") > first);
}

/* Two removals of one bucket, and between them a new one takes its name: the second removal leaves that
 * alone. (Without the look at the id in bucket_delete it goes, with all that was put into it.) */
static void test_removal_is_of_that_bucket(void **state)
{
    struct fixture *f = *state;
    _cleanup_(bucket_unrefp) struct bucket *old = bucket_find_id(f->table, create(f, "one", "")), *now = NULL;
    assert_int_equal(bucket_delete(f->table, old, NULL), 0);
    uint64_t id = create(f, "one", "");
    assert_int_equal(bucket_delete(f->table, old, NULL), ERR_NO_BUCKET);
    assert_int_equal(bucket_find(f->table, SLICE_LIT("one"), &now, NULL), 0);
    assert_int_equal(now->id, id);
}

/* A bucket whose record is as long as one may be can still be changed. (With room for a record only, where
 * the defaults are read, it could but be removed.) */
static void test_long_settings_can_be_changed(void **state)
{
    struct fixture *f = *state;
    const char *const long_ones[] = {"s3.tags", "s3.cors", "s3.lifecycle", "events.token"};
    struct buf _cleanup_buf_ text = BUF_INIT(64 * KIB);
    assert_int_equal(buf_str(&text, "origin=file:///a\n"), 0);
    for (size_t i = 0; i < ARRAY_SIZE(long_ones); i++) {
        assert_int_equal(buf_printf(&text, "%s=", long_ones[i]), 0);
        for (size_t k = 0; k < (size_t)16 * KIB - (i == 3 ? 200 : 0); k++)
            assert_int_equal(buf_char(&text, 'x'), 0);
        assert_int_equal(buf_char(&text, '\n'), 0);
    }
    create(f, "long", text.p);
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    assert_int_equal(bucket_change(f->table, SLICE_LIT("long"), SLICE_LIT("s3.tags=\n"), &b, NULL), 0);
    assert_true(!b->p.s3_tags || !*b->p.s3_tags);
}

/* Two buckets of one name: the second is refused and changes nothing. */
static void test_second_bucket_of_a_name_is_refused(void **state)
{
    struct fixture *f = *state;
    create(f, "twin", "origin=file:///a\n");
    struct bucket *b = NULL;
    struct err e = {0};
    assert_int_equal(bucket_create(f->table, SLICE_LIT("twin"), SLICE_LIT("origin=file:///b\n"), &b, &e),
                     ERR_BUCKET_EXISTS);
    assert_non_null(strstr(e.text, "twin"));
    assert_int_equal(bucket_find(f->table, SLICE_LIT("twin"), &b, NULL), 0);
    assert_string_equal(b->p.origin, "file:///a");
    bucket_unref(b);
}

/* A change touches the named properties only; an empty value goes back to the default; who holds the old
 * keeps it. */
static void test_change_touches_only_what_is_named(void **state)
{
    struct fixture *f = *state;
    create(f, "data", "origin=file:///a\nvalidate=never\nreadahead=1MiB\n");
    struct bucket *old = NULL, *b = NULL;
    assert_int_equal(bucket_find(f->table, SLICE_LIT("data"), &old, NULL), 0);
    assert_int_equal(
        bucket_change(f->table, SLICE_LIT("data"), SLICE_LIT("validate=always\nreadahead=\n"), &b, NULL), 0);
    assert_int_equal(b->validate, BUCKET_VALIDATE_ALWAYS);
    assert_int_equal(b->p.readahead, 128 * MIB);
    assert_string_equal(b->p.origin, "file:///a");
    assert_int_equal(old->validate, BUCKET_VALIDATE_NEVER);
    assert_int_equal(b->id, old->id);
    bucket_unref(b);
    bucket_unref(old);
}

static const struct kv_engine *inner; /* of the control store below */
static bool was_committed;

static int commit_and_tell(struct kv *kv, const struct kv_txn *t, enum kv_commit kind, uint64_t *ret_version,
                           struct err *e)
{
    was_committed = true;
    return inner->commit(kv, t, kind, ret_version, e);
}

static int read_until_committed(struct kv *kv, struct slice key, struct buf *ret_value, uint64_t *ret_version,
                                struct err *e)
{
    return was_committed ? err_set(e, -EIO, "the disk") : inner->get(kv, key, ret_value, ret_version, e);
}

/* A change that was made is told as made, also when nothing can be read behind it; the next one finds it
 * there. */
static void test_a_change_is_made_when_it_is_committed(void **state)
{
    struct fixture *f = *state;
    struct kv_engine engine = *f->kv->engine;
    struct bucket *b = NULL;
    inner = f->kv->engine;
    engine.commit = commit_and_tell;
    engine.get = read_until_committed;
    f->kv->engine = &engine;
    create(f, "data", "origin=file:///a\nvalidate=never\n");
    was_committed = false;
    int r = bucket_change(f->table, SLICE_LIT("data"), SLICE_LIT("validate=always\n"), &b, NULL);
    was_committed = false;
    f->kv->engine = inner;
    assert_int_equal(r, 0);
    bucket_unref(b);
    assert_int_equal(bucket_change(f->table, SLICE_LIT("data"), SLICE_LIT("readahead=1MiB\n"), &b, NULL), 0);
    assert_int_equal(b->validate, BUCKET_VALIDATE_ALWAYS);
    bucket_unref(b);
}

/* An origin of another kind begins without the address, the account and the keys of the former one, which
 * would go elsewhere; what is of every kind stays, and so does all of it with another place of the same kind.
 * (Without settings_that_stay the old address and the old secret are there.) */
static void test_another_kind_of_origin_begins_anew(void **state)
{
    struct fixture *f = *state;
    struct bucket *b = NULL;
    struct err e = {0};
    create(f, "data",
           "origin=s3://x\norigin.endpoint=http://old:1\norigin.access_key=k\norigin.secret_key=hush\n"
           "origin.connections=7\nvalidate=never\n");
    assert_int_equal(bucket_change(f->table, SLICE_LIT("data"), SLICE_LIT("origin=s3://y\n"), &b, &e), 0);
    assert_string_equal(b->p.origin_options.endpoint, "http://old:1");
    assert_string_equal(b->p.origin_options.secret_key, "hush");
    bucket_unref(b);
    assert_int_equal(bucket_change(f->table, SLICE_LIT("data"),
                                   SLICE_LIT("origin=az://con\norigin.account=acc\n"), &b, &e),
                     0);
    assert_null(b->p.origin_options.endpoint);
    assert_null(b->p.origin_options.access_key);
    assert_null(b->p.origin_options.secret_key);
    assert_string_equal(b->p.origin_options.account, "acc");
    assert_int_equal(b->p.origin_options.connections, 7);
    assert_int_equal(b->validate, BUCKET_VALIDATE_NEVER);
    bucket_unref(b);
}

/* A value that was made from what a bucket was is not put over what somebody else made of it meanwhile, as
 * with two pins at once. (Without bucket_change_of in rule_ops.c the first is lost.) */
static void test_change_of_what_was_is_refused(void **state)
{
    struct fixture *f = *state;
    create(f, "data", "origin=file:///a\n");
    struct bucket *old = NULL, *b = NULL;
    assert_int_equal(bucket_find(f->table, SLICE_LIT("data"), &old, NULL), 0);
    assert_int_equal(bucket_change_of(f->table, old, SLICE_LIT("rules=pin:a/\n"), &b, NULL), 0);
    bucket_unref(TAKE_PTR(b));
    assert_int_equal(bucket_change_of(f->table, old, SLICE_LIT("rules=pin:b/\n"), &b, NULL), ERR_CONFLICT);
    assert_null(b);
    bucket_unref(old);
    assert_int_equal(bucket_find(f->table, SLICE_LIT("data"), &b, NULL), 0);
    assert_string_equal(b->p.rules, "pin:a/");
    bucket_unref(b);
}

/* Names, properties and values that are not ours give one line naming what is wrong. */
static void test_bad_names_and_settings_are_named(void **state)
{
    struct fixture *f = *state;
    const struct {
        const char *name, *settings, *says;
    } cases[] = {
        {"ab", "", "3 to 63"},
        {"Upper", "", "only a-z"},
        {"-lead", "", "only a-z"},
        {"a/b", "", "only a-z"},
        {"fine", "no-such=1\n", "no-such"},
        {"fine", "validate=sometimes\n", "never"},
        {"fine", "validate.listing=ttl:soon\n", "validate.listing 'ttl:soon'"},
        {"fine", "origin.connections=0\n", "origin.connections"},
        {"fine", "nonsense\n", "NAME=VALUE"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct bucket *b = NULL;
        struct err e = {0};
        int r = bucket_create(f->table, slice_str(cases[i].name), slice_str(cases[i].settings), &b, &e);
        assert_int_equal(r, ERR_BAD_OPTION);
        if (!strstr(e.text, cases[i].says))
            fail_msg("'%s' does not say '%s'", e.text, cases[i].says);
    }
}

/* Secrets never leave by the settings that users see. */
static void test_secrets_are_hidden(void **state)
{
    struct fixture *f = *state;
    create(f, "data", "origin=s3://x\norigin.secret_key=hunter2\n");
    struct bucket *b = NULL;
    assert_int_equal(bucket_find(f->table, SLICE_LIT("data"), &b, NULL), 0);
    _cleanup_buf_ struct buf out = BUF_INIT(64 * KIB);
    assert_int_equal(bucket_settings(b, /* show_secrets= */ false, &out), 0);
    assert_null(strstr(out.p, "hunter2"));
    assert_non_null(strstr(out.p, "origin.secret_key=***\n"));
    bucket_unref(b);
}

/* Changes a bucket as `setting` says: whether its data is where it was. */
static bool same_after(struct fixture *f, const char *name, const char *setting)
{
    struct bucket *before = NULL, *after = NULL;
    struct err e = {0};
    assert_int_equal(bucket_find(f->table, slice_str(name), &before, NULL), 0);
    if (bucket_change(f->table, slice_str(name), slice_str(setting), &after, &e) < 0)
        fail_msg("%s: %s", setting, e.text);
    bool same = bucket_same_origin(before, after);
    assert_int_equal(same, bucket_same_origin(after, before));
    bucket_unref(before);
    bucket_unref(after);
    return same;
}

/* What of a bucket's properties says where its data is, and what of it is seen: another one is another place,
 * the same one again is not, nor is its default in other words; who asks, and how, is no place. (Without the
 * line of a property in BUCKET_PLACE what was cached of the former place is taken for the new one's.) */
static void test_places_of_buckets(void **state)
{
    struct fixture *f = *state;
    static const char *const places[] = {
        "origin=az://other",        "origin=az://data/prefix",  "origin.endpoint=http://127.0.0.1:1",
        "origin.account=another",   "origin.manifest=list.txt", "origin.as_of=2026-01-31T00:00:00Z",
        "origin.version=generation"};
    static const char *const others[] = {
        "origin.account_key=a2V5",   "origin.sas=sv=1&sig=2",
        "origin.region=eu-west-1",   "origin.access_key=k",
        "origin.secret_key=s",       "origin.session_token=t",
        "origin.profile=p",          "origin.credentials_file=/f",
        "origin.timeout=3s",         "origin.connections=3",
        "origin.storage_class=Cool", "validate=always",
        "limit.origin-requests=3",   "origin.metadata_endpoint=http://127.0.0.1:1"};
    create(f, "data", "origin=az://data\norigin.account=mine\n");
    for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
        struct slice value = slice_str(places[i]), property = slice_split(&value, '=');
        char back[64];
        assert_true(bucket_is_place(property));
        assert_false(same_after(f, "data", places[i]));
        assert_true(same_after(f, "data", places[i]));
        (void)snprintf(back, sizeof(back), SLICE_FMT "=%s", SLICE_ARG(property),
                       slice_eq_str(property, "origin")           ? "az://data"
                       : slice_eq_str(property, "origin.account") ? "mine"
                                                                  : "");
        assert_false(same_after(f, "data", back));
        assert_true(same_after(f, "data", back));
    }
    for (size_t i = 0; i < ARRAY_SIZE(others); i++) {
        struct slice value = slice_str(others[i]);
        assert_false(bucket_is_place(slice_split(&value, '=')));
        assert_true(same_after(f, "data", others[i]));
    }
}

static void store_put(struct kv *kv, const char *key, const char *value)
{
    struct kv_txn *t = kv_txn_new(kv);
    kv_txn_put(t, slice_str(key), slice_str(value));
    assert_int_equal(kv_txn_commit(t, KV_DURABLE, NULL), 0);
    kv_txn_free(t);
}

static void check_record(struct kv *kv, const char *key, const char *expected)
{
    _cleanup_buf_ struct buf v = BUF_INIT(64 * KIB);
    assert_int_equal(kv_get(kv, slice_str(key), &v, NULL, NULL), 0);
    assert_string_equal(v.p, expected);
}

static uint64_t place_after(struct fixture *f, const char *setting)
{
    struct bucket *b = NULL;
    assert_int_equal(bucket_change(f->table, SLICE_LIT("data"), slice_str(setting), &b, NULL), 0);
    uint64_t place = b->place;
    _cleanup_(bucket_unrefp) struct bucket *found = bucket_find_place(f->table, place);
    assert_ptr_equal(found, b);
    bucket_unref(b);
    return place;
}

/* What is cached goes by a number that no bucket and no other place ever had: the bucket's id until its data
 * is elsewhere, another one in the very record that says so, also when it comes back to where it was; not for
 * other changes. (Without next_id in bucket_change_of the number stays.) */
static void test_places_are_never_reused(void **state)
{
    struct fixture *f = *state;
    uint64_t id = create(f, "data", "origin=file:///a\n"), scratch = create(f, "own", "");
    assert_int_equal(place_after(f, "validate=never\n"), id);
    uint64_t second = place_after(f, "origin=file:///b\n");
    assert_true(second > scratch);
    assert_int_equal(place_after(f, "origin=file:///b\nvalidate=always\n"), second);
    uint64_t third = place_after(f, "origin=file:///a\n");
    assert_true(third > second && create(f, "later", "origin=file:///a\n") > third);
    assert_null(bucket_find_place(f->table, id));
    assert_true(bucket_last_place(f->table) > third);
    assert_null(bucket_find_place(f->table, second));
    bucket_table_close(f->table);
    assert_int_equal(bucket_table_open(f->kv, NULL, &f->table, NULL), 0);
    _cleanup_(bucket_unrefp) struct bucket *b = bucket_find_id(f->table, id),
                                           *own = bucket_find_id(f->table, scratch);
    assert_int_equal(b->place, third);
    assert_int_equal(own->place, scratch);
}

/* Records of buckets byte by byte: as those of before while a bucket is where it was made, of form 3 with the
 * number of its place afterwards; one of form 3 without it is damaged. */
static void test_records_of_places(void **state)
{
    struct fixture *f = *state;
    static const uint8_t key[SEAL_KEY_BYTES] = {1};
    struct seal *seal = seal_new(key);
    bucket_table_close(f->table);
    store_put(f->kv, "b/data", "forebay-bucket 2\nid=7\ncreated=1767225600000000000\norigin=s3://data\n");
    store_put(f->kv, "n/bucket", "8");
    assert_int_equal(bucket_table_open(f->kv, seal, &f->table, NULL), 0);
    assert_int_equal(place_after(f, "validate=never\n"), 7);
    check_record(
        f->kv, "b/data",
        "forebay-bucket "
        "2\nid=7\ncreated=1767225600000000000\norigin=s3://data\nvalidate=never\nretry=1m\nttl=0ms\n");
    assert_int_equal(place_after(f, "origin=s3://other\n"), 9);
    check_record(f->kv, "b/data",
                 "forebay-bucket "
                 "3\nid=7\ncreated=1767225600000000000\nplace=9\norigin=s3://"
                 "other\nvalidate=never\nretry=1m\nttl=0ms\n");
    check_record(f->kv, "n/bucket", "9");
    bucket_table_close(f->table);
    assert_int_equal(bucket_table_open(f->kv, seal, &f->table, NULL), 0);
    assert_int_equal(place_after(f, "validate=always\n"), 9);
    struct bucket_table *again = NULL;
    struct err e = {0};
    store_put(f->kv, "b/odd", "forebay-bucket 3\nid=5\ncreated=1767225600000000000\norigin=s3://data\n");
    assert_int_equal(bucket_table_open(f->kv, seal, &again, &e), ERR_CORRUPT);
    assert_non_null(strstr(e.text, "'odd' lacks its place"));
    bucket_table_close(f->table); /* before its key */
    f->table = NULL;
    seal_free(seal);
}

/* Pages come in byte order and continue after a name. */
static void test_pages_are_in_byte_order(void **state)
{
    struct fixture *f = *state;
    create(f, "ccc", "origin=file:///a\n");
    create(f, "aaa", "origin=file:///a\n");
    create(f, "bbb", "origin=file:///a\n");
    struct bucket *page[2];
    assert_int_equal(bucket_page(f->table, SLICE_NULL, page, 2), 2);
    assert_string_equal(page[0]->name, "aaa");
    assert_string_equal(page[1]->name, "bbb");
    bucket_unref(page[0]);
    bucket_unref(page[1]);
    assert_int_equal(bucket_page(f->table, SLICE_LIT("bbb"), page, 2), 1);
    assert_string_equal(page[0]->name, "ccc");
    bucket_unref(page[0]);
}

/* A walk gives each bucket once, in byte order, also those that are made or removed meanwhile when it has not
 * come to their place yet; it goes on behind one that was removed, which it keeps alive. */
static void test_walk_over_all(void **state)
{
    struct fixture *f = *state;
    _cleanup_buf_ struct buf seen = BUF_INIT(1000);
    assert_null(bucket_next(f->table, NULL));
    create(f, "ccc", "origin=file:///a\n");
    create(f, "aaa", "origin=file:///a\n");
    create(f, "bbb", "origin=file:///a\n");
    create(f, "eee", "origin=file:///a\n");
    for (struct bucket *b = NULL; (b = bucket_next(f->table, b));) {
        assert_int_equal(buf_printf(&seen, "%s ", b->name), 0);
        if (strcmp(b->name, "bbb") != 0)
            continue;
        struct bucket *later;
        create(f, "abc", "origin=file:///a\n");
        create(f, "ddd", "origin=file:///a\n");
        assert_int_equal(bucket_find(f->table, SLICE_LIT("ccc"), &later, NULL), 0);
        assert_int_equal(bucket_delete(f->table, later, NULL), 0);
        bucket_unref(later);
        assert_int_equal(bucket_delete(f->table, b, NULL), 0);
    }
    assert_string_equal(seen.p, "aaa bbb ddd eee ");
}

/* A record that is not ours is an error that names the bucket, not a crash and not an empty table. */
static void test_broken_record_is_reported(void **state)
{
    struct fixture *f = *state;
    struct kv_txn *t = kv_txn_new(f->kv);
    kv_txn_put(t, SLICE_LIT("b/odd"), SLICE_LIT("garbage"));
    assert_int_equal(kv_txn_commit(t, KV_DURABLE, NULL), 0);
    kv_txn_free(t);
    struct bucket_table *again = NULL;
    struct err e = {0};
    assert_int_equal(bucket_table_open(f->kv, NULL, &again, &e), ERR_CORRUPT);
    assert_non_null(strstr(e.text, "odd"));
}

static bool store_has(struct kv *kv, const char *bucket, const char *words)
{
    char key[80];
    _cleanup_buf_ struct buf v = BUF_INIT(64 * KIB);
    (void)snprintf(key, sizeof(key), "b/%s", bucket);
    assert_int_equal(kv_get(kv, slice_str(key), &v, NULL, NULL), 0);
    return strstr(v.p, words) != NULL;
}

/* With a key, secrets are not in the store as they are, records of before are written anew, and another key,
 * a line moved to another bucket or no key at all are errors that name the bucket. */
static void test_secrets_are_sealed(void **state)
{
    struct fixture *f = *state;
    static const uint8_t one[SEAL_KEY_BYTES] = {1}, two[SEAL_KEY_BYTES] = {2};
    struct seal *seal = seal_new(one), *other = seal_new(two);
    struct bucket *b = NULL;
    struct err e = {0};
    create(f, "before", "origin=s3://x\norigin.access_key=AK\norigin.secret_key=hunter2\n");
    assert_true(store_has(f->kv, "before", "hunter2"));
    bucket_table_close(f->table);
    assert_int_equal(bucket_table_open(f->kv, seal, &f->table, NULL), 0);
    assert_false(store_has(f->kv, "before", "hunter2"));
    assert_true(store_has(f->kv, "before", "origin.secret_key@1=") &&
                store_has(f->kv, "before", "origin.access_key=AK"));
    create(f, "after", "origin=s3://x\norigin.secret_key=hunter3\n");
    assert_false(store_has(f->kv, "after", "hunter3"));
    bucket_table_close(f->table);
    assert_int_equal(bucket_table_open(f->kv, seal, &f->table, NULL), 0);
    assert_int_equal(bucket_find(f->table, SLICE_LIT("before"), &b, NULL), 0);
    assert_string_equal(b->p.origin_options.secret_key, "hunter2");
    bucket_unref(b);
    assert_int_equal(bucket_find(f->table, SLICE_LIT("after"), &b, NULL), 0);
    assert_string_equal(b->p.origin_options.secret_key, "hunter3");
    bucket_unref(b);
    struct bucket_table *again = NULL;
    assert_int_equal(bucket_table_open(f->kv, other, &again, &e), ERR_CORRUPT);
    assert_non_null(strstr(e.text, "'after'"));
    assert_int_equal(bucket_table_open(f->kv, NULL, &again, &e), ERR_CORRUPT);
    _cleanup_buf_ struct buf v = BUF_INIT(64 * KIB);
    assert_int_equal(kv_get(f->kv, SLICE_LIT("b/before"), &v, NULL, NULL), 0);
    struct kv_txn *t = kv_txn_new(f->kv);
    kv_txn_put(t, SLICE_LIT("b/moved"), buf_view(&v));
    assert_int_equal(kv_txn_commit(t, KV_DURABLE, NULL), 0);
    kv_txn_free(t);
    assert_int_equal(bucket_table_open(f->kv, seal, &again, &e), ERR_CORRUPT);
    assert_non_null(strstr(e.text, "'moved'"));
    bucket_table_close(f->table); /* before its key */
    f->table = NULL;
    seal_free(seal);
    seal_free(other);
}

/* A guest is found by its name and nowhere else: no listing shows it, nothing of it is stored, no bucket has
 * its number, and removed it is gone. */
static void test_guests_are_seen_by_nobody(void **state)
{
    struct fixture *f = *state;
    char name[BUCKET_GUEST_NAME_SIZE];
    struct bucket *b = NULL, *found = NULL, *page[4];
    uint64_t id = create(f, "images", "origin=file:///a\n");
    assert_int_equal(
        bucket_guest_add(f->table, "export", SLICE_LIT("origin=file:///b\ncache=never\n"), name, &b, NULL),
        0);
    assert_true(b->id != id && b->id >> 63 == 1);
    assert_string_equal(b->name, "export");
    assert_int_equal(bucket_find(f->table, SLICE_LIT("export"), &found, NULL), ERR_NO_BUCKET);
    assert_int_equal(bucket_find(f->table, slice_str(name), &found, NULL), 0);
    assert_ptr_equal(found, b);
    bucket_unref(found);
    assert_int_equal(bucket_check_name(slice_str(name), NULL), ERR_BAD_OPTION);
    assert_int_equal(bucket_page(f->table, SLICE_NULL, page, ARRAY_SIZE(page)), 1);
    bucket_unref(page[0]);
    _cleanup_(kv_iter_freep) struct kv_iter *it = kv_iter_new(f->kv, SLICE_LIT("b/"), SLICE_LIT("b0"));
    struct slice key, value;
    assert_int_equal(kv_iter_next(it, &key, &value, NULL), 0);
    assert_int_equal(kv_iter_next(it, &key, &value, NULL), -ENOENT);
    assert_true(bucket_guest_remove(f->table, slice_str(name)));
    assert_false(bucket_guest_remove(f->table, slice_str(name)));
    assert_true(atomic_load(&b->retired));
    assert_int_equal(bucket_find(f->table, slice_str(name), &found, NULL), ERR_NO_BUCKET);
    bucket_unref(b);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_bucket_survives_reopening_with_its_properties),
        TEST(test_ids_are_never_reused),
        TEST(test_removal_is_of_that_bucket),
        TEST(test_long_settings_can_be_changed),
        TEST(test_second_bucket_of_a_name_is_refused),
        TEST(test_change_touches_only_what_is_named),
        TEST(test_a_change_is_made_when_it_is_committed),
        TEST(test_another_kind_of_origin_begins_anew),
        TEST(test_change_of_what_was_is_refused),
        TEST(test_bad_names_and_settings_are_named),
        TEST(test_secrets_are_hidden),
        TEST(test_secrets_are_sealed),
        TEST(test_places_of_buckets),
        TEST(test_places_are_never_reused),
        TEST(test_records_of_places),
        TEST(test_pages_are_in_byte_order),
        TEST(test_walk_over_all),
        TEST(test_broken_record_is_reported),
        TEST(test_guests_are_seen_by_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
