/* layer: kv */
/* The key-value contract, run against both engines. */
#include "base/sys.h"
#include "kv/kv.h"

#include <ftw.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

struct engine {
    struct kv *kv;
    char dir[64]; /* empty for the memory engine */
};

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    return remove(path);
}

static void open_engine(struct engine *g)
{
    if (g->dir[0] == 0) {
        assert_int_equal(kv_open_memory(&g->kv), 0);
        return;
    }
    struct kv_options o = {.cache_bytes = 4 * MIB, .write_buffer_bytes = 4 * MIB};
    struct err e = {0};
    if (kv_open_rocksdb(g->dir, &o, &g->kv, &e) < 0)
        fail_msg("%s", e.text);
}

static int setup_memory(void **state)
{
    struct engine *g = calloc(1, sizeof(*g));
    open_engine(g);
    *state = g;
    return 0;
}

static int setup_rocksdb(void **state)
{
    struct engine *g = calloc(1, sizeof(*g));
    strcpy(g->dir, "/tmp/forebay-test-kv-XXXXXX");
    assert_non_null(mkdtemp(g->dir));
    open_engine(g);
    *state = g;
    return 0;
}

static int teardown(void **state)
{
    struct engine *g = *state;
    kv_close(g->kv);
    if (g->dir[0])
        (void)nftw(g->dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    free(g);
    return 0;
}

static void put(struct kv *kv, const char *key, const char *value)
{
    struct kv_txn *_cleanup_(kv_txn_freep) t = kv_txn_new(kv);
    kv_txn_put(t, slice_str(key), slice_str(value));
    assert_int_equal(kv_txn_commit(t, KV_VISIBLE, NULL), 0);
}

/* Value and version of a key; version 0 when there is none. */
static uint64_t get(struct kv *kv, const char *key, char *ret_value, size_t max)
{
    struct buf _cleanup_buf_ b = BUF_INIT(KIB);
    uint64_t version = 0;
    int r = kv_get(kv, slice_str(key), &b, &version, NULL);
    if (r == -ENOENT)
        return 0;
    assert_int_equal(r, 0);
    assert_true(b.n < max);
    memcpy(ret_value, b.p ? b.p : "", b.n);
    ret_value[b.n] = 0;
    return version;
}

/* The keys of a scan, joined by spaces. */
static void scan(struct kv_iter *it, char *ret)
{
    struct slice k, v;
    int r;
    *ret = 0;
    while ((r = kv_iter_next(it, &k, &v, NULL)) == 0)
        ret += sprintf(ret, SLICE_FMT "=" SLICE_FMT " ", SLICE_ARG(k), SLICE_ARG(v));
    assert_int_equal(r, -ENOENT);
    assert_int_equal(kv_iter_next(it, &k, &v, NULL), -ENOENT);
}

/* What was put is found, a put changes the version, a deleted key is gone. */
static void test_get_gives_what_was_put(void **state)
{
    struct kv *kv = ((struct engine *)*state)->kv;
    char value[64];
    assert_int_equal(get(kv, "a", value, sizeof(value)), 0);
    put(kv, "a", "one");
    uint64_t first = get(kv, "a", value, sizeof(value));
    assert_string_equal(value, "one");
    assert_true(first > 0);
    put(kv, "a", "");
    uint64_t second = get(kv, "a", value, sizeof(value));
    assert_string_equal(value, "");
    assert_true(second != first && second > 0);

    struct kv_txn *_cleanup_(kv_txn_freep) t = kv_txn_new(kv);
    kv_txn_delete(t, SLICE_LIT("a"));
    assert_true(kv_txn_bytes(t) > 0);
    assert_int_equal(kv_txn_commit(t, KV_DURABLE, NULL), 0);
    assert_int_equal(kv_txn_bytes(t), 0);
    assert_int_equal(get(kv, "a", value, sizeof(value)), 0);
    put(kv, "a", "three");
    assert_true(get(kv, "a", value, sizeof(value)) != first);
}

/* Plain values report version 1 and take binary bytes, zeros among them, as they are. */
static void test_plain_values_have_no_version(void **state)
{
    struct kv *kv = ((struct engine *)*state)->kv;
    const char key[] = {1, 0, 2}, value[] = {0, 1, 0, (char)0xff};
    struct kv_txn *_cleanup_(kv_txn_freep) t = kv_txn_new(kv);
    kv_txn_put_plain(t, slice_of(key, 3), slice_of(value, 4));
    assert_int_equal(kv_txn_commit(t, KV_VISIBLE, NULL), 0);
    struct buf _cleanup_buf_ b = BUF_INIT(KIB);
    uint64_t version = 0;
    assert_int_equal(kv_get(kv, slice_of(key, 3), &b, &version, NULL), 0);
    assert_int_equal(version, 1);
    assert_true(slice_eq(buf_view(&b), slice_of(value, 4)));
    assert_int_equal(kv_get(kv, slice_of(key, 3), NULL, NULL, NULL), 0);
}

/* A condition that fails leaves nothing of the transaction behind, one that holds lets all of it through. */
static void test_conditions_are_all_or_nothing(void **state)
{
    struct kv *kv = ((struct engine *)*state)->kv;
    char value[64];
    put(kv, "a", "1");
    uint64_t version = get(kv, "a", value, sizeof(value));
    struct kv_txn *_cleanup_(kv_txn_freep) t = kv_txn_new(kv);

    kv_txn_put(t, SLICE_LIT("b"), SLICE_LIT("x"));
    kv_txn_check(t, SLICE_LIT("a"), version + 1);
    assert_int_equal(kv_txn_commit(t, KV_VISIBLE, NULL), ERR_CONFLICT);
    assert_int_equal(get(kv, "b", value, sizeof(value)), 0);
    /* The failed transaction is empty: committing again does nothing and succeeds. */
    assert_int_equal(kv_txn_commit(t, KV_VISIBLE, NULL), 0);
    assert_int_equal(get(kv, "b", value, sizeof(value)), 0);

    kv_txn_check(t, SLICE_LIT("a"), version);
    kv_txn_check(t, SLICE_LIT("b"), 0);
    kv_txn_put(t, SLICE_LIT("a"), SLICE_LIT("2"));
    kv_txn_put(t, SLICE_LIT("b"), SLICE_LIT("x"));
    assert_int_equal(kv_txn_commit(t, KV_DURABLE, NULL), 0);
    assert_true(get(kv, "b", value, sizeof(value)) > 0);

    kv_txn_check(t, SLICE_LIT("b"), 0);
    kv_txn_delete(t, SLICE_LIT("a"));
    assert_int_equal(kv_txn_commit(t, KV_DURABLE, NULL), ERR_CONFLICT);
    assert_true(get(kv, "a", value, sizeof(value)) > 0);
    assert_string_equal(value, "2");
}

/* A commit tells the version that its keys have afterwards, so that it can be named as a condition unread. */
static void test_a_commit_tells_its_version(void **state)
{
    struct kv *kv = ((struct engine *)*state)->kv;
    char value[64];
    struct kv_txn *_cleanup_(kv_txn_freep) t = kv_txn_new(kv);
    for (int i = 0; i < 3; i++) {
        uint64_t version = 0;
        kv_txn_put(t, SLICE_LIT("a"), SLICE_LIT("1"));
        kv_txn_put(t, SLICE_LIT("b"), SLICE_LIT("2"));
        assert_int_equal(kv_txn_commit_version(t, KV_VISIBLE, &version, NULL), 0);
        assert_int_equal(get(kv, "a", value, sizeof(value)), version);
        assert_int_equal(get(kv, "b", value, sizeof(value)), version);
        put(kv, "c", "other");
    }
}

/* Within one transaction the later change wins. */
static void test_changes_apply_in_order(void **state)
{
    struct kv *kv = ((struct engine *)*state)->kv;
    char value[64];
    struct kv_txn *_cleanup_(kv_txn_freep) t = kv_txn_new(kv);
    kv_txn_put(t, SLICE_LIT("a"), SLICE_LIT("1"));
    kv_txn_delete(t, SLICE_LIT("a"));
    kv_txn_put(t, SLICE_LIT("b"), SLICE_LIT("1"));
    kv_txn_put(t, SLICE_LIT("b"), SLICE_LIT("2"));
    kv_txn_delete_range(t, SLICE_LIT("a"), SLICE_LIT("b"));
    assert_int_equal(kv_txn_commit(t, KV_VISIBLE, NULL), 0);
    assert_int_equal(get(kv, "a", value, sizeof(value)), 0);
    assert_true(get(kv, "b", value, sizeof(value)) > 0);
    assert_string_equal(value, "2");
}

/* Scans are in byte order, within their bounds, and a range deletion takes exactly its range. */
static void test_scans_are_ordered_and_bounded(void **state)
{
    struct kv *kv = ((struct engine *)*state)->kv;
    char got[256];
    const char *keys[] = {"b", "a", "ab", "c", "a/", "b/x", "\xff"};
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
        put(kv, keys[i], "v");
    struct kv_iter *all = kv_iter_new(kv, SLICE_NULL, SLICE_NULL);
    scan(all, got);
    assert_string_equal(got, "a=v a/=v ab=v b=v b/x=v c=v \xff=v ");
    kv_iter_free(all);
    struct kv_iter *some = kv_iter_new(kv, SLICE_LIT("a0"), SLICE_LIT("c"));
    scan(some, got);
    assert_string_equal(got, "ab=v b=v b/x=v ");
    kv_iter_free(some);
    struct kv_txn *_cleanup_(kv_txn_freep) t = kv_txn_new(kv);
    kv_txn_delete_range(t, SLICE_LIT("a/"), SLICE_LIT("b/x"));
    assert_int_equal(kv_txn_commit(t, KV_VISIBLE, NULL), 0);
    struct kv_iter *left = kv_iter_new(kv, SLICE_LIT("a"), SLICE_NULL);
    scan(left, got);
    assert_string_equal(got, "a=v b/x=v c=v \xff=v ");
    kv_iter_free(left);
}

/* A scan sees the store as it was when it began, whatever is written, changed or deleted meanwhile. */
static void test_scan_is_a_snapshot(void **state)
{
    struct kv *kv = ((struct engine *)*state)->kv;
    char got[256];
    put(kv, "a", "1");
    put(kv, "b", "1");
    put(kv, "c", "1");
    struct kv_iter *before = kv_iter_new(kv, SLICE_NULL, SLICE_NULL);
    struct kv_txn *_cleanup_(kv_txn_freep) t = kv_txn_new(kv);
    kv_txn_put(t, SLICE_LIT("a"), SLICE_LIT("2"));
    kv_txn_delete(t, SLICE_LIT("b"));
    kv_txn_put(t, SLICE_LIT("bb"), SLICE_LIT("2"));
    assert_int_equal(kv_txn_commit(t, KV_VISIBLE, NULL), 0);
    struct kv_iter *after = kv_iter_new(kv, SLICE_NULL, SLICE_NULL);
    put(kv, "c", "3");
    scan(before, got);
    assert_string_equal(got, "a=1 b=1 c=1 ");
    scan(after, got);
    assert_string_equal(got, "a=2 bb=2 c=1 ");
    kv_iter_free(before);
    kv_iter_free(after);
    struct kv_iter *now = kv_iter_new(kv, SLICE_NULL, SLICE_NULL);
    scan(now, got);
    assert_string_equal(got, "a=2 bb=2 c=3 ");
    kv_iter_free(now);
}

/* The end of a prefix is the first key that does not begin with it; prefixes of 0xff bytes have none. */
static void test_prefix_end(void **state)
{
    struct {
        struct slice prefix, end;
    } cases[] = {
        {SLICE_LIT("a"), SLICE_LIT("b")},
        {SLICE_LIT("a/"), SLICE_LIT("a0")},
        {SLICE_LIT("a\xff"), SLICE_LIT("b")},
        {SLICE_LIT("\xff\xff"), SLICE_NULL},
        {SLICE_NULL, SLICE_NULL},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct buf _cleanup_buf_ b = BUF_INIT(KIB);
        assert_int_equal(kv_prefix_end(cases[i].prefix, &b), 0);
        assert_true(slice_eq(buf_view(&b), cases[i].end));
    }
}

struct counter {
    struct kv *kv;
    int added;
};

/* Adds one to "n" 200 times by compare and swap. */
static void *count_up(void *arg)
{
    struct counter *c = arg;
    struct kv_txn *_cleanup_(kv_txn_freep) t = kv_txn_new(c->kv);
    while (c->added < 200) {
        struct buf _cleanup_buf_ b = BUF_INIT(KIB);
        uint64_t version = 0;
        int r = kv_get(c->kv, SLICE_LIT("n"), &b, &version, NULL);
        int n = r == 0 ? atoi(b.p) : 0;
        char text[16];
        (void)snprintf(text, sizeof(text), "%d", n + 1);
        kv_txn_check(t, SLICE_LIT("n"), version);
        kv_txn_put(t, SLICE_LIT("n"), slice_str(text));
        r = kv_txn_commit(t, c->added % 50 ? KV_VISIBLE : KV_DURABLE, NULL);
        if (r == 0)
            c->added++;
        else
            assert_int_equal(r, ERR_CONFLICT);
    }
    return NULL;
}

/* Concurrent compare and swap loses no update. */
static void test_checked_commits_are_serial(void **state)
{
    struct kv *kv = ((struct engine *)*state)->kv;
    struct counter c[4] = {0};
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        c[i].kv = kv;
        assert_int_equal(pthread_create(&threads[i], NULL, count_up, &c[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    char value[64];
    assert_true(get(kv, "n", value, sizeof(value)) > 0);
    assert_string_equal(value, "800");
}

/* Many keys keep their order and values through random puts and deletes, compared with a plain array. */
static void test_random_changes_match_a_model(void **state)
{
    struct kv *kv = ((struct engine *)*state)->kv;
    enum { KEYS = 200 };
    int model[KEYS] = {0};
    unsigned seed = 7;
    for (int step = 1; step <= 4000; step++) {
        struct kv_txn *_cleanup_(kv_txn_freep) t = kv_txn_new(kv);
        for (int i = 0; i < 3; i++) {
            int k = rand_r(&seed) % KEYS;
            char key[16], value[16];
            struct slice ks = slice_of(key, (size_t)sprintf(key, "k%03d", k));
            model[k] = rand_r(&seed) % 3 ? step : 0;
            if (model[k])
                kv_txn_put(t, ks, slice_of(value, (size_t)sprintf(value, "%d", step)));
            else
                kv_txn_delete(t, ks);
        }
        assert_int_equal(kv_txn_commit(t, KV_VISIBLE, NULL), 0);
    }
    struct kv_iter *it = kv_iter_new(kv, SLICE_NULL, SLICE_NULL);
    for (int k = 0; k < KEYS; k++) {
        if (!model[k])
            continue;
        struct slice key, value;
        assert_int_equal(kv_iter_next(it, &key, &value, NULL), 0);
        assert_int_equal(atoi(key.p + 1), k);
        char text[16] = {0};
        memcpy(text, value.p, value.n);
        assert_int_equal(atoi(text), model[k]);
    }
    struct slice key, value;
    assert_int_equal(kv_iter_next(it, &key, &value, NULL), -ENOENT);
    kv_iter_free(it);
    assert_true(kv_estimate_keys(kv) > 0);
    assert_true(kv_memory_bytes(kv) > 0);
    assert_int_equal(kv_sync(kv, NULL), 0);
}

enum { ORDER_KEYS = 30, ORDER_VALUE_MAX = 3000 };

/* What the keys hold: a letter and how often; 0 times: "", -1: there is no such key. */
struct held {
    char letter;
    int n;
};

/* One change at random, and what it makes of what is held. */
static void change_one(struct kv_txn *t, unsigned *seed, struct held model[ORDER_KEYS])
{
    static const int sizes[] = {0, 1, 40, 1023, 1024, 1025, ORDER_VALUE_MAX};
    char key[16], end[16], value[ORDER_VALUE_MAX];
    int k = rand_r(seed) % ORDER_KEYS, kind = rand_r(seed) % 40;
    struct slice ks = slice_of(key, (size_t)sprintf(key, "k%02d", k));
    if (kind == 0) {
        kv_txn_delete_range(t, ks, slice_of(end, (size_t)sprintf(end, "k%02d", k + 3)));
        for (int i = k; i < MIN(k + 3, (int)ORDER_KEYS); i++)
            model[i].n = -1;
        return;
    }
    if (kind < 12) {
        kv_txn_delete(t, ks);
        model[k].n = -1;
        return;
    }
    model[k] = (struct held){(char)('a' + rand_r(seed) % 26), sizes[rand_r(seed) % (int)ARRAY_SIZE(sizes)]};
    memset(value, model[k].letter, sizeof(value));
    (kind % 2 ? kv_txn_put : kv_txn_put_plain)(t, ks, slice_of(value, (size_t)model[k].n));
}

static void assert_held(struct kv *kv, int k, struct held want)
{
    char key[16];
    struct buf _cleanup_(buf_fini) b = BUF_INIT(2 * ORDER_VALUE_MAX);
    int r = kv_get(kv, slice_of(key, (size_t)sprintf(key, "k%02d", k)), &b, NULL, NULL);
    assert_int_equal(r, want.n < 0 ? -ENOENT : 0);
    assert_int_equal(b.n, MAX(want.n, 0));
    for (size_t i = 0; i < b.n; i++)
        assert_int_equal(b.p[i], want.letter);
}

/* Commits of any number of changes, many of one key, leave what their order says, whatever size values have;
 * and nothing of one commit comes back with a later one. */
static void test_commits_of_any_size_apply_in_order(void **state)
{
    struct kv *kv = ((struct engine *)*state)->kv;
    struct held model[ORDER_KEYS];
    unsigned seed = 11;
    for (int k = 0; k < ORDER_KEYS; k++)
        model[k].n = -1;
    for (int step = 0; step < 300; step++) {
        struct kv_txn *_cleanup_(kv_txn_freep) t = kv_txn_new(kv);
        for (int n = 1 + rand_r(&seed) % (step % 3 ? 12 : 90); n > 0; n--)
            change_one(t, &seed, model);
        assert_int_equal(kv_txn_commit(t, KV_VISIBLE, NULL), 0);
        for (int k = 0; k < ORDER_KEYS; k++)
            assert_held(kv, k, model[k]);
    }
}

enum { CONDITION_KEYS = 60 };
#define OF_THIS_COMMIT UINT64_MAX

/* In byte order. Every third one is longer than an engine may like to remember. */
static struct slice condition_key(int k, char ret[200])
{
    int n = sprintf(ret, "%c%02d", 'a' + k / 20, k % 20);
    if (k % 3 == 0)
        n += sprintf(ret + n, "%0150d", 0);
    return slice_of(ret, (size_t)n);
}

/* One change at random, and what it makes of the versions. */
static void change_any(struct kv_txn *t, unsigned *seed, uint64_t versions[CONDITION_KEYS])
{
    char from[200], to[200];
    int k = rand_r(seed) % CONDITION_KEYS, end = k + 1 + rand_r(seed) % 4;
    switch (rand_r(seed) % 16) {
    case 0:
        end = MIN(end, CONDITION_KEYS - 1);
        k = MIN(k, end - 1);
        kv_txn_delete_range(t, condition_key(k, from), condition_key(end, to));
        for (; k < end; k++)
            versions[k] = 0;
        return;
    case 1:
    case 2:
    case 3:
        kv_txn_delete(t, condition_key(k, from));
        versions[k] = 0;
        return;
    case 4:
    case 5:
        kv_txn_put_plain(t, condition_key(k, from), SLICE_LIT("plain"));
        versions[k] = 1;
        return;
    default:
        kv_txn_put(t, condition_key(k, from), SLICE_LIT("versioned"));
        versions[k] = OF_THIS_COMMIT;
        return;
    }
}

/* Conditions at random, a few of them wrong, mostly by naming the version of before. Whether all hold. */
static bool check_any(struct kv_txn *t, unsigned *seed, const uint64_t versions[CONDITION_KEYS],
                      const uint64_t before[CONDITION_KEYS])
{
    char text[200];
    bool holds = true;
    for (int i = 0; i < 3; i++) {
        int k = rand_r(seed) % CONDITION_KEYS;
        uint64_t named = rand_r(seed) % 8 ? versions[k] : rand_r(seed) % 4 ? before[k] : versions[k] + 1;
        kv_txn_check(t, condition_key(k, text), named);
        holds &= named == versions[k];
    }
    return holds;
}

/* Conditions hold exactly as long as keys have the versions that they name, whether those were read or told
 * by a commit, and however they went: by a put, a plain one, a deletion of the key or of a range. */
static void test_conditions_follow_a_model(void **state)
{
    struct kv *kv = ((struct engine *)*state)->kv;
    uint64_t versions[CONDITION_KEYS] = {0}, before[CONDITION_KEYS] = {0}, next[CONDITION_KEYS];
    unsigned seed = 11, kept = 0;
    for (int step = 0; step < 8000; step++) {
        struct kv_txn *_cleanup_(kv_txn_freep) t = kv_txn_new(kv);
        char text[200];
        uint64_t version = 0;
        int read = rand_r(&seed) % CONDITION_KEYS;
        int r = kv_get(kv, condition_key(read, text), NULL, &version, NULL);
        assert_int_equal(r, versions[read] ? 0 : -ENOENT);
        assert_int_equal(r == 0 ? version : 0, versions[read]);
        bool holds = check_any(t, &seed, versions, before);
        memcpy(next, versions, sizeof(next));
        for (int i = 0; i < 2; i++)
            change_any(t, &seed, next);
        assert_int_equal(kv_txn_commit_version(t, KV_VISIBLE, &version, NULL), holds ? 0 : ERR_CONFLICT);
        for (int k = 0; holds && k < CONDITION_KEYS; k++) {
            before[k] = versions[k] != next[k] ? versions[k] : before[k];
            versions[k] = next[k] == OF_THIS_COMMIT ? version : next[k];
        }
        kept += holds;
    }
    assert_true(kept > 1000 && kept < 7000);
}

#define BOTH(test)                                                                                           \
    {"memory: " #test, test, setup_memory, teardown, NULL},                                                  \
    {                                                                                                        \
        "rocksdb: " #test, test, setup_rocksdb, teardown, NULL                                               \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(test_get_gives_what_was_put),
        BOTH(test_plain_values_have_no_version),
        BOTH(test_conditions_are_all_or_nothing),
        BOTH(test_a_commit_tells_its_version),
        BOTH(test_changes_apply_in_order),
        BOTH(test_scans_are_ordered_and_bounded),
        BOTH(test_scan_is_a_snapshot),
        BOTH(test_checked_commits_are_serial),
        BOTH(test_random_changes_match_a_model),
        BOTH(test_commits_of_any_size_apply_in_order),
        BOTH(test_conditions_follow_a_model),
        cmocka_unit_test(test_prefix_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
