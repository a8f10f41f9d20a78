/* layer: object */
/* Scratch buckets whose disk comes back with an index that has lost its last commits (kv_is_cut). */
#include "scratch_service.h"

#include "base/log.h"
#include "base/metrics.h"
#include "test_store_kv.h"

#define ROOT      1
#define SETTLE_NS 120000000000ull
#define ID_BYTES  16

static int setup(void **state)
{
    testkv_use();
    return setup_local(state);
}

static int done(void **state)
{
    (void)teardown(state);
    testkv_reset();
    return 0;
}

static void wait_settled(struct fixture *f)
{
    uint64_t end_ns = sys->mono_ns() + SETTLE_NS;
    do {
        assert_true(sys->mono_ns() < end_ns);
        sys->sleep_ns(20000000);
        object_service_refresh_metrics(f->service);
    } while (metrics_value(metrics_series(METRIC_SCRATCH_UNSETTLED, NULL, NULL, NULL)) > 0);
}

static struct kv *index_of(struct fixture *f)
{
    return f->store->disks[0].kv;
}

/* The hard record of the only file that is sealed, with its key. */
static void hard_record(struct fixture *f, struct buf *ret_key, struct buf *ret_value)
{
    struct kv_iter *_cleanup_(kv_iter_freep) it = kv_iter_new(index_of(f), SLICE_LIT("h"), SLICE_LIT("i"));
    struct slice k, v;
    buf_clear(ret_key);
    buf_clear(ret_value);
    assert_int_equal(kv_iter_next(it, &k, &v, NULL), 0);
    assert_int_equal(k.n, 1 + ID_BYTES);
    assert_int_equal(buf_slice(ret_key, k), 0);
    assert_int_equal(buf_slice(ret_value, v), 0);
    assert_int_equal(kv_iter_next(it, &k, &v, NULL), -ENOENT);
}

static void rewrite(struct fixture *f, uint64_t ino, const char *text)
{
    struct wire_tree_open_rep o = {0};
    assert_int_equal(open_ino(f, ino, WIRE_WRITE, &o), 0);
    assert_int_equal(pwrite(o.fd, text, strlen(text), 0), (ssize_t)strlen(text));
    assert_int_equal(close_handle(f, o.handle), 0);
}

static struct store_check_report check(struct fixture *f)
{
    struct store_check_report r;
    assert_int_equal(store_check(f->store, /* repair= */ false, NULL, NULL, &r, NULL), 0);
    return r;
}

static void stop(struct fixture *f)
{
    object_session_free(f->session);
    object_service_close(f->service);
}

/* The index of the disk has lost its last commits. Ends when all is settled. */
static void start_cut(struct fixture *f)
{
    store_abandon(f->store);
    testkv_cut = true;
    open_service(f);
    testkv_cut = false;
    wait_settled(f);
}

/* Empty: deleted. */
static void change(struct kv *kv, struct slice key, struct slice value)
{
    struct kv_txn *t = kv_txn_new(kv);
    if (value.n > 0)
        kv_txn_put_plain(t, key, value);
    else
        kv_txn_delete(t, key);
    assert_int_equal(kv_txn_commit(t, KV_DURABLE, NULL), 0);
    kv_txn_free(t);
}

/* A file is settled, written to, and settled again; then its checksums of before are back, and nothing says
 * any more that it was written to. It is settled once more, and what it has is what they vouch for. (Without
 * on_sealed in hard_recover.c reads that are verified fail for good.) */
static void test_a_seal_of_before(void **state)
{
    struct fixture *f = *state;
    _cleanup_buf_ struct buf key = BUF_INIT(KIB), before = BUF_INIT(KIB), after = BUF_INIT(KIB);
    uint64_t ino = write_file(f, ROOT, "a", "first");
    wait_settled(f);
    hard_record(f, &key, &before);
    assert_int_equal(store_flush(f->store, NULL), 0);
    rewrite(f, ino, "again");
    wait_settled(f);
    hard_record(f, &key, &after);
    assert_false(slice_eq(buf_view(&before), buf_view(&after)));
    assert_int_equal(check(f).hard_bad, 0);

    stop(f);
    change(index_of(f), buf_view(&key), buf_view(&before));
    assert_int_equal(check(f).hard_bad, 1);
    start_cut(f);
    assert_int_equal(check(f).hard_extents, 1);
    assert_int_equal(check(f).hard_bad, 0);
    assert_file(f, ino, "again");
}

static uint64_t an_hour_later(void)
{
    return sys_real.real_ns() + 3600000000000ull;
}

/* The disk alone is opened and closed, as by `forebay store check --repair`, and epochs end. */
static void use_disk_an_hour_later(struct fixture *f)
{
    const struct sys *before = sys;
    struct sys table = *sys;
    struct store_new n = {.key = SLICE_LIT("k"), .size_bytes = 100};
    struct extent *x = NULL;
    table.real_ns = an_hour_later;
    sys = &table;
    f->store = store_of(f->disk, 256 * MIB);
    assert_int_equal(store_create(f->store, &n, &x, NULL), 0);
    extent_unref(x);
    assert_int_equal(store_remove(f->store, n.key), 0);
    store_close(f->store);
    sys = before;
}

/* The same, and before anybody looks for such files the disk was used by itself. (Without note_cut in
 * store_recover.c the file counts as one that was not changed since, and cannot be read for good.) */
static void test_a_seal_of_before_on_a_disk_that_was_used_since(void **state)
{
    struct fixture *f = *state;
    _cleanup_buf_ struct buf key = BUF_INIT(KIB), before = BUF_INIT(KIB);
    uint64_t ino = write_file(f, ROOT, "a", "first");
    wait_settled(f);
    hard_record(f, &key, &before);
    assert_int_equal(store_flush(f->store, NULL), 0);
    rewrite(f, ino, "again");
    wait_settled(f);

    stop(f);
    change(index_of(f), buf_view(&key), buf_view(&before));
    store_abandon(f->store);
    testkv_cut = true;
    use_disk_an_hour_later(f);
    open_service(f);
    testkv_cut = false;
    wait_settled(f);
    assert_int_equal(check(f).hard_extents, 1);
    assert_int_equal(check(f).hard_bad, 0);
    assert_file(f, ino, "again");
}

/* Of a file that is settled the index has nothing any more, not even the mark: it is settled again, and its
 * bytes count. */
static void test_a_file_that_the_index_has_forgotten(void **state)
{
    struct fixture *f = *state;
    struct store_disk_status st;
    _cleanup_buf_ struct buf key = BUF_INIT(KIB), record = BUF_INIT(KIB);
    uint64_t ino = write_file(f, ROOT, "a", "first");
    wait_settled(f);
    hard_record(f, &key, &record);
    stop(f);
    change(index_of(f), buf_view(&key), SLICE_NULL);
    change(index_of(f), SLICE_LIT("mhard"), SLICE_NULL);
    assert_int_equal(check(f).hard_extents, 0);
    start_cut(f);
    assert_int_equal(check(f).hard_extents, 1);
    assert_int_equal(check(f).hard_bad, 0);
    assert_int_equal(store_disk_status(f->store, 0, &st), 0);
    assert_true(st.hard_bytes > 0);
    assert_file(f, ino, "first");
}

/* ---- the control store ---- */

struct pair {
    struct pair *next;
    struct slice key, value;
    bool is_plain;
};

static struct pair *all_of(struct kv *kv)
{
    struct pair *all = NULL;
    struct kv_iter *_cleanup_(kv_iter_freep) it = kv_iter_new(kv, SLICE_LIT("\0"), SLICE_NULL);
    struct slice k, v;
    while (kv_iter_next(it, &k, &v, NULL) == 0) {
        struct pair *p = calloc(1, sizeof(*p));
        uint64_t version = 0;
        assert_int_equal(kv_get(kv, k, NULL, &version, NULL), 0);
        *p = (struct pair){all, testkv_dup(k), testkv_dup(v), version == KV_VERSION_PLAIN};
        all = p;
    }
    return all;
}

/* As it was then. Frees what was kept. */
static void bring_back(struct kv *kv, struct pair *all)
{
    struct kv_txn *t = kv_txn_new(kv);
    kv_txn_delete_range(t, SLICE_LIT("\0"), SLICE_LIT("\xff\xff\xff"));
    while (all) {
        struct pair *p = all;
        all = p->next;
        if (p->is_plain)
            kv_txn_put_plain(t, p->key, p->value);
        else
            kv_txn_put(t, p->key, p->value);
        free((void *)(uintptr_t)p->key.p);
        free((void *)(uintptr_t)p->value.p);
        free(p);
    }
    assert_int_equal(kv_txn_commit(t, KV_DURABLE, NULL), 0);
    kv_txn_free(t);
}

static bool control_is_cut;

static bool is_cut(struct kv *kv)
{
    (void)kv;
    return control_is_cut;
}

/* A settled file was written to, which the control store has forgotten: the inode says what the file has. */
static void test_a_writing_record_that_is_lost(void **state)
{
    struct fixture *f = *state;
    static struct kv_engine engine;
    struct wire_inode x = {0}, before = {0};
    engine = *f->kv->engine;
    engine.is_cut = is_cut;
    f->kv->engine = &engine;
    uint64_t ino = write_file(f, ROOT, "a", "first");
    wait_settled(f);
    assert_int_equal(getattr(f, ino, &before), 0);
    struct pair *all = all_of(f->kv);
    rewrite(f, ino, "again and longer");
    stop(f);
    store_abandon(f->store);
    bring_back(f->kv, all);
    control_is_cut = true;
    open_service(f);
    control_is_cut = false;
    assert_int_equal(getattr(f, ino, &x), 0);
    assert_int_equal(x.size_bytes, strlen("again and longer"));
    assert_true(x.mtime_ns > before.mtime_ns);
    wait_settled(f);
    assert_file(f, ino, "again and longer");
    assert_int_equal(check(f).hard_extents, 1);
    assert_int_equal(check(f).hard_bad, 0);
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR); /* which says that commits are lost */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_seal_of_before, setup, done),
        cmocka_unit_test_setup_teardown(test_a_seal_of_before_on_a_disk_that_was_used_since, setup, done),
        cmocka_unit_test_setup_teardown(test_a_file_that_the_index_has_forgotten, setup, done),
        cmocka_unit_test_setup_teardown(test_a_writing_record_that_is_lost, setup, done),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
