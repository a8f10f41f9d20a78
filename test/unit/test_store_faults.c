/* layer: store */
/* threaded */
/*
 * The fault sweep: the Nth file call, or the Nth commit of the index, fails, for N = 1, 2, ... until none
 * does. Whatever fails, an acknowledged result is true, nothing wrong is served, the structures hold, the
 * counts agree in the end, and nothing leaks (the sanitizers see to that).
 */
#include "test_store_common.h"
#include "test_store_kv.h"

#include "base/log.h"
#include "support/clock_sys.h"
#include "support/fault_sys.h"

enum { KEYS = 5 };

static const char *const keys[KEYS] = {"small", "large", "staged", "replaced", "removed"};

/* What the run was told: 0 unknown, else the version whose put was acknowledged in full. */
struct told {
    uint64_t whole[KEYS];
    bool removed[KEYS];
};

static int put_version(struct store *s, int key, uint64_t version, uint64_t size)
{
    char attr[32];
    (void)snprintf(attr, sizeof(attr), "%llu", (unsigned long long)version);
    struct store_new n = {.key = slice_str(keys[key]), .attr = slice_str(attr), .size_bytes = size};
    struct extent *_cleanup_(extent_unrefp) x = NULL;
    int r = store_create(s, &n, &x, NULL);
    if (r == 0)
        r = fill_range(x, version, 0, size);
    if (x)
        extent_check(x);
    return r;
}

static int stage_version(struct store *s, int key, uint64_t version, uint64_t size)
{
    char attr[32];
    (void)snprintf(attr, sizeof(attr), "%llu", (unsigned long long)version);
    struct store_new n = {.key = slice_str(keys[key]), .attr = slice_str(attr), .size_bytes = size};
    struct extent *_cleanup_(extent_unrefp) x = NULL;
    _cleanup_free_ char *p = content_new(version, 0, size);
    int r = store_stage(s, n.key, 0, &x, NULL);
    if (r == 0)
        r = extent_write(x, p + MIB, size - MIB, MIB);
    if (r == 0)
        r = extent_write(x, p, MIB, 0);
    if (r == 0)
        r = store_publish(s, x, &n, NULL);
    if (x)
        extent_check(x);
    return r;
}

static void note(struct told *t, int key, uint64_t version, int result)
{
    /* A failed put leaves the old version, the new one in part, or none. */
    t->whole[key] = result == 0 ? version : 0;
    t->removed[key] = false;
}

static const uint64_t sizes[] = {0, 1000, 2 * MIB + 5, MIB + 1, 4096, 1};

static int put_one(struct store *s, struct told *t, int key, uint64_t version)
{
    int r = key == 2 ? stage_version(s, key, version, sizes[version])
                     : put_version(s, key, version, sizes[version]);
    if (key != 2 || r == 0)
        note(t, key, version, r);
    return r;
}

static bool tolerable(int r)
{
    return r == 0 || r == -EIO || r == -ENOENT || r == -ENOSPC || r == ERR_NOT_ADMITTED || r == -EBADMSG;
}

/* The content of a key, if any, is some version of it, and all that is served is right. *ret_version 0: not
 * whole. */
static void look(struct store *s, int key, uint64_t *ret_version)
{
    struct extent *_cleanup_(extent_unrefp) x = NULL;
    *ret_version = 0;
    int r = store_find(s, slice_str(keys[key]), &x);
    assert_true(tolerable(r));
    if (r < 0)
        return;
    extent_check(x);
    struct buf _cleanup_buf_ b = BUF_INIT(KIB);
    assert_int_equal(extent_attr(x, &b), 0);
    uint64_t version = strtoull(b.p, NULL, 10);
    assert_true(version >= 1 && version < ARRAY_SIZE(sizes) && extent_size(x) == sizes[version]);
    uint64_t run = check_run(x, version, 0, sizes[version]);
    *ret_version = run == sizes[version] ? version : 0;
}

static void work(struct fixture *f, struct told *t)
{
    struct store *s = f->s;
    uint64_t version;
    (void)put_one(s, t, 0, 1);
    (void)put_one(s, t, 1, 2);
    (void)store_flush(s, NULL);
    (void)put_one(s, t, 2, 3);
    (void)put_one(s, t, 3, 4);
    (void)put_one(s, t, 3, 5);
    if (put_one(s, t, 4, 1) == 0 && store_remove(s, slice_str(keys[4])) == 0) {
        t->removed[4] = true;
        t->whole[4] = 0;
    }
    for (int k = 0; k < KEYS; k++)
        look(s, k, &version);
    (void)store_flush(s, NULL);
}

/* Without faults: what was acknowledged is there, and everything agrees. */
static void verify(struct fixture *f, const struct told *t, bool acknowledged_stays)
{
    for (int k = 0; k < KEYS; k++) {
        uint64_t version;
        look(f->s, k, &version);
        if (t->removed[k])
            assert_false(is_there(f->s, keys[k]));
        else if (t->whole[k] && acknowledged_stays)
            assert_int_equal(version, t->whole[k]);
    }
    struct store_check_report r;
    assert_int_equal(store_check(f->s, true, NULL, NULL, &r, NULL), 0);
    assert_int_equal(r.bad_blocks, 0);
    assert_int_equal(store_check(f->s, false, NULL, NULL, &r, NULL), 0);
    assert_int_equal(r.bad_blocks + r.missing_files + r.orphan_files + r.bad_records, 0);
    assert_int_equal(store_flush(f->s, NULL), 0);
    struct store_disk_status st = disk_status(f->s, 0);
    assert_int_equal(st.used_bytes, f->s->disks[0].count.used_bytes);
    assert_int_equal(st.extents, f->s->disks[0].count.extents);
    assert_int_equal(st.leased_bytes, 0);
    assert_int_equal(st.extents, r.extents);
}

/* One round: faults from before the opening until the work is done, or during the closing. */
static bool round_sys(unsigned calls, uint64_t n, enum fault_mode mode, int error, bool at_close)
{
    /* Where reads fail, what is to be verified is dropped, acknowledged or not. */
    bool stays = mode != FAULT_FOREVER || !(calls & FAULT_PREAD);
    struct fixture f;
    struct told t = {0};
    fixture_init(&f, 1, 64 * MIB);
    testkv_use();
    fault_sys_start();
    if (!at_close)
        fault_sys_arm(calls, n, error, mode);
    int r = fixture_try_open(&f);
    if (r == 0)
        work(&f, &t);
    bool hit = fault_sys_hit();
    fault_sys_disarm();
    assert_true(r == 0 || hit);
    if (r == 0) {
        /* The same process goes on, without faults. */
        verify(&f, &t, stays);
        if (at_close)
            fault_sys_arm(calls, n, error, mode);
        fixture_close(&f);
        hit |= fault_sys_hit();
        fault_sys_disarm();
    }
    fault_sys_stop();
    fixture_open(&f);
    verify(&f, &t, stays);
    fixture_fini(&f);
    testkv_reset();
    return hit;
}

static void sweep(unsigned calls, enum fault_mode mode, int error, bool at_close)
{
    uint64_t n = 1;
    while (round_sys(calls, n, mode, error, at_close))
        n++;
    assert_true(n > 1); /* something was hit at all */
}

/* Each file call fails once. */
static void test_any_call_fails_once(void **state)
{
    sweep(FAULT_ALL & ~(unsigned)FAULT_STATFS_FREE, FAULT_ONCE, EIO, /* at_close= */ false);
}

/* Each file call of the closing fails once. */
static void test_any_call_of_closing_fails(void **state)
{
    sweep(FAULT_ALL, FAULT_ONCE, EIO, /* at_close= */ true);
}

/* The disk is full from some write on, half of which may have happened. */
static void test_disk_full_from_some_write_on(void **state)
{
    sweep(FAULT_WRITES, FAULT_FOREVER, ENOSPC, /* at_close= */ false);
    sweep(FAULT_PWRITE, FAULT_PARTIAL, EIO, /* at_close= */ false);
}

/* The disk is dead from some call on. */
static void test_disk_dead_from_some_call_on(void **state)
{
    sweep(FAULT_ALL, FAULT_FOREVER, EIO, /* at_close= */ false);
}

/* The index refuses every commit from some one on, and works again later: nothing is lost but what was never
 * recorded. */
static void test_index_refuses_commits(void **state)
{
    for (uint64_t n = 1;; n++) {
        struct fixture f;
        struct told t = {0};
        fixture_init(&f, 1, 64 * MIB);
        testkv_use();
        testkv_fail_at = n;
        int r = fixture_try_open(&f);
        if (r == 0)
            work(&f, &t);
        bool hit = testkv_calls >= n;
        bool again =
            n % 2; /* half of the rounds see it work again, the others are closed while it does not */
        if (again)
            testkv_fail_at = 0;
        if (r == 0 && again)
            verify(&f, &t, /* acknowledged_stays= */ true);
        if (r == 0)
            fixture_close(&f);
        testkv_fail_at = 0;
        fixture_open(&f);
        verify(&f, &t, /* acknowledged_stays= */ again);
        fixture_fini(&f);
        testkv_reset();
        if (!hit)
            break;
    }
}

/* A file that is too short is believed no more when the node is killed before its index can say what was
 * lost. */
static void test_short_file_is_no_whole_one_later(void **state)
{
    (void)state;
    struct fixture f;
    char cut[DISK_PATH_MAX];
    struct extent *x = NULL;
    fixture_init(&f, 1, 64 * MIB);
    testkv_use();
    fixture_open(&f);
    put(f.s, "cut", 2, 4 * MIB);
    key_path(f.s, "cut", cut);
    fixture_close(&f);
    assert_int_equal(truncate(cut, 2 * MIB + 17), 0);
    fixture_open(&f);
    testkv_fail_at = 1;
    (void)store_find(f.s, SLICE_LIT("cut"), &x);
    extent_unref(x);
    fixture_abandon(&f);
    testkv_fail_at = 0;
    fixture_open(&f);
    x = NULL;
    if (store_find(f.s, SLICE_LIT("cut"), &x) == 0)
        (void)check_run(x, 2, 0, 4 * MIB);
    extent_unref(x);
    assert_false(is_whole(f.s, "cut", 2, 4 * MIB));
    fixture_fini(&f);
    testkv_reset();
}

/* Blocks of an epoch whose end the index did not take, and of the one after it, are verified after a kill.
 * (Fails where recover_disk doubts the first alone.) */
static void test_an_epoch_whose_end_is_not_recorded(void **state)
{
    static const char *const both[] = {"first", "second"};
    struct fixture f;
    (void)state;
    fixture_init(&f, 1, 64 * MIB);
    testkv_use();
    fixture_open(&f);
    put(f.s, both[0], 1, 2 * MIB);
    writer_drain(&f.s->disks[0]);
    testkv_fail_once = testkv_calls + 1;
    assert_int_equal(store_flush(f.s, NULL), -EIO);
    put(f.s, both[1], 2, 2 * MIB);
    writer_drain(&f.s->disks[0]);
    fixture_abandon(&f);
    fixture_open(&f);
    for (size_t i = 0; i < ARRAY_SIZE(both); i++) {
        struct extent *x = NULL;
        assert_int_equal(store_find(f.s, slice_str(both[i]), &x), 0);
        assert_int_equal(x->n_suspect, 2);
        extent_unref(x);
    }
    fixture_fini(&f);
    testkv_reset();
}

/* Reads and writes that move a few bytes at a time change nothing. */
static void test_short_transfers(void **state)
{
    struct fixture f;
    struct told t = {0};
    fixture_init(&f, 1, 64 * MIB);
    testkv_use();
    fault_sys_start();
    fault_sys_short_io(4099);
    fixture_open(&f);
    work(&f, &t);
    for (int k = 0; k < KEYS; k++)
        assert_true(t.removed[k] || t.whole[k]);
    verify(&f, &t, /* acknowledged_stays= */ true);
    fixture_close(&f);
    fault_sys_short_io(0);
    fault_sys_stop();
    fixture_open(&f);
    verify(&f, &t, /* acknowledged_stays= */ true);
    fixture_fini(&f);
    testkv_reset();
}

/* Puts an object and removes it while its disk removes no file, which stays at `ret_path`, and closes. */
static void leave_a_file(struct fixture *f, char ret_path[DISK_PATH_MAX])
{
    struct extent *x = NULL;
    put(f->s, "k", 1, 100);
    assert_int_equal(store_find(f->s, SLICE_LIT("k"), &x), 0);
    disk_extent_path(&f->s->disks[0], x->id, ret_path);
    extent_unref(x);
    fault_sys_arm(FAULT_UNLINK, 1, EIO, FAULT_FOREVER);
    (void)store_remove(f->s, SLICE_LIT("k"));
    fault_sys_disarm();
    assert_false(is_there(f->s, "k"));
    fixture_close(f);
    assert_int_equal(access(ret_path, F_OK), 0);
}

/* A file that the disk does not remove with its entry goes at a start, or at the next one where that cannot
 * remove it either. (Seen to stay without has_file in add_doomed.) */
static void test_a_file_that_could_not_be_removed(void **state)
{
    struct fixture f;
    struct store_check_report report;
    char path[DISK_PATH_MAX];
    bool stayed = false;
    fault_sys_start(); /* before there are threads of a store */
    fixture_init(&f, 1, 64 * MIB);
    fixture_open(&f);
    put(f.s, "other", 2, 100);
    for (uint64_t n = 1; n < 100 && !stayed; n++) { /* which of a start's removals is that of the file */
        leave_a_file(&f, path);
        fault_sys_arm(FAULT_UNLINK, n, EIO, FAULT_ONCE);
        stayed = fixture_try_open(&f) == 0 && access(path, F_OK) == 0;
        fault_sys_disarm();
        if (f.s)
            fixture_close(&f);
        fixture_open(&f);
        assert_true(access(path, F_OK) < 0);
    }
    assert_true(stayed);
    assert_int_equal(store_check(f.s, /* repair= */ false, NULL, NULL, &report, NULL), 0);
    assert_int_equal(report.orphan_files, 0);
    assert_true(is_whole(f.s, "other", 2, 100));
    fixture_fini(&f);
    fault_sys_stop();
}

/* One disk whose index cannot be read: what the others have of a key is removed all the same. */
static void test_removal_beside_a_bad_disk(void **state)
{
    struct fixture f;
    fixture_init(&f, 2, 64 * MIB);
    testkv_use();
    fixture_open(&f);
    for (int k = 0; k < 32; k++) {
        char key[16];
        (void)snprintf(key, sizeof(key), "k%d", k);
        put(f.s, key, 1, 100);
    }
    assert_true(disk_status(f.s, 0).extents > 0 && disk_status(f.s, 1).extents > 0);
    fixture_close(&f);
    fixture_open(&f); /* none is in memory */
    testkv_unreadable = &testkv_disks[0];
    for (int k = 0; k < 32; k++) {
        char key[16];
        (void)snprintf(key, sizeof(key), "k%d", k);
        assert_int_equal(store_remove(f.s, slice_str(key)), -EIO);
    }
    assert_int_equal(disk_status(f.s, 1).extents, 0);
    testkv_unreadable = NULL;
    fixture_fini(&f);
    testkv_reset();
}

/* What the index could not be told of is removed with its prefix, too, as when a bucket gets another origin.
 * (Without remove_unrecorded it goes on being served.) */
static void test_prefix_of_what_was_not_recorded(void **state)
{
    struct fixture f;
    fixture_init(&f, 1, 64 * MIB);
    testkv_use();
    fixture_open(&f);
    struct disk *d = &f.s->disks[0];
    hold_writer(d, true);
    put(f.s, "a/k", 1, 100);
    put(f.s, "b/k", 2, 100);
    testkv_fail_at = 1;
    hold_writer(d, false);
    writer_drain(d);
    assert_true(writer_is_broken(d));
    assert_int_equal(store_remove_prefix(f.s, SLICE_LIT("a/")), 1);
    assert_false(is_there(f.s, "a/k"));
    assert_true(is_whole(f.s, "b/k", 2, 100));
    testkv_fail_at = 0;
    fixture_fini(&f);
    testkv_reset();
}

/* After a commit that failed everything of an extent is recorded anew; chunks of which nothing is there are
 * not made up for that: of a file of 1 PiB they would be 4 GiB in one transaction. */
static void test_a_large_file_is_recorded_anew(void **state)
{
    struct fixture f;
    fixture_init(&f, 1, GIB);
    testkv_use();
    fixture_open(&f);
    struct disk *d = &f.s->disks[0];
    struct store_new n = {.key = SLICE_LIT("k"), .size_bytes = 4096 * GIB};
    struct extent *x = NULL;
    assert_int_equal(store_create(f.s, &n, &x, NULL), 0);
    assert_int_equal(fill_range(x, 1, 0, STORE_BLOCK_BYTES), 0);
    writer_drain(d);
    assert_int_equal(count_chunks(f.s), 1);
    testkv_fail_at = testkv_calls + 1;
    assert_int_equal(fill_range(x, 1, 2000 * GIB, STORE_BLOCK_BYTES), 0);
    writer_drain(d);
    assert_true(writer_is_broken(d));
    testkv_fail_at = 0;
    writer_drain(d);
    assert_int_equal(count_chunks(f.s), 2);
    extent_unref(x);
    fixture_close(&f);
    fixture_open(&f);
    assert_int_equal(store_find(f.s, SLICE_LIT("k"), &x), 0);
    assert_int_equal(check_run(x, 1, 0, 2 * MIB), MIB);
    assert_int_equal(check_run(x, 1, 2000 * GIB, 2 * MIB), MIB);
    extent_unref(x);
    fixture_fini(&f);
    testkv_reset();
}

/* What a staged file had recorded beyond the end that it has now goes with it, whether it becomes an entry or
 * not. */
static void test_chunks_of_a_file_that_was_cut(void **state)
{
    struct fixture f;
    fixture_init(&f, 1, 8 * GIB);
    testkv_use();
    fixture_open(&f);
    for (unsigned round = 0; round < 3; round++) {
        struct extent *x = NULL;
        assert_int_equal(store_stage(f.s, SLICE_LIT("k"), 0, &x, NULL), 0);
        assert_int_equal(extent_truncate(x, 3 * GIB), 0);
        for (uint32_t b = 0; b < 3 * 1024; b += 16) /* as if they had been written in order */
            extent_block_filled(x, b, 0);
        writer_drain(&f.s->disks[0]);
        assert_int_equal(count_chunks(f.s), 3);
        uint64_t size = round == 1 ? 5000 : 2 * MIB;
        assert_int_equal(extent_truncate(x, size), 0);
        struct store_new n = {.key = SLICE_LIT("k"), .size_bytes = size};
        if (round > 0)
            assert_int_equal(store_publish(f.s, x, &n, NULL), 0);
        extent_unref(x);
        writer_drain(&f.s->disks[0]);
        assert_int_equal(disk_status(f.s, 0).extents, round > 0);
        assert_int_equal(count_chunks(f.s), round == 2);
        if (round > 0)
            assert_int_equal(store_remove(f.s, SLICE_LIT("k")), 0);
        writer_drain(&f.s->disks[0]);
        assert_int_equal(count_chunks(f.s), 0);
    }
    fixture_fini(&f);
    testkv_reset();
}

/* Whoever wants to write hears why the index takes nothing: of a full disk, that it is full, until it has
 * room again. (Seen to fail with -EIO where writer_check, store/disk_writer.c, has one code for all.) */
static void test_an_index_without_room(void **state)
{
    static const struct {
        int failed, told;
    } rounds[] = {{-ENOSPC, -ENOSPC}, {-EIO, -EIO}, {-EBADMSG, -EIO}};
    struct fixture f;
    fixture_init(&f, 1, 64 * MIB);
    testkv_use();
    fixture_open(&f);
    struct store_new n = {.key = SLICE_LIT("new"), .size_bytes = 100};
    struct extent *x = NULL, *before = NULL;
    for (size_t i = 0; i < ARRAY_SIZE(rounds); i++) {
        assert_int_equal(store_stage(f.s, n.key, n.size_bytes, &before, NULL), 0);
        testkv_commit_error = rounds[i].failed;
        testkv_fail_at = 1;
        put(f.s, "k", 1, 100);
        writer_drain(&f.s->disks[0]);
        assert_int_equal(store_stage(f.s, n.key, n.size_bytes, &x, NULL), rounds[i].told);
        assert_int_equal(store_create(f.s, &n, &x, NULL), rounds[i].told);
        assert_int_equal(store_publish(f.s, before, &n, NULL), rounds[i].told);
        testkv_fail_at = 0;
        writer_drain(&f.s->disks[0]);
        assert_false(writer_is_broken(&f.s->disks[0]));
        extent_unref(before);
    }
    testkv_commit_error = 0;
    assert_int_equal(store_create(f.s, &n, &x, NULL), 0);
    extent_unref(x);
    fixture_fini(&f);
    testkv_reset();
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    fixture_skip_syncs();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_epoch_whose_end_is_not_recorded),
        cmocka_unit_test(test_short_transfers),
        cmocka_unit_test(test_short_file_is_no_whole_one_later),
        cmocka_unit_test(test_any_call_fails_once),
        cmocka_unit_test(test_any_call_of_closing_fails),
        cmocka_unit_test(test_disk_full_from_some_write_on),
        cmocka_unit_test(test_disk_dead_from_some_call_on),
        cmocka_unit_test(test_index_refuses_commits),
        cmocka_unit_test(test_removal_beside_a_bad_disk),
        cmocka_unit_test(test_a_large_file_is_recorded_anew),
        cmocka_unit_test(test_chunks_of_a_file_that_was_cut),
        cmocka_unit_test(test_an_index_without_room),
        cmocka_unit_test(test_a_file_that_could_not_be_removed),
        cmocka_unit_test(test_prefix_of_what_was_not_recorded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
