/* layer: store */
/* The check finds each kind of damage, says so, repairs only when asked to, and works beside a stopped node.
 */
#include "test_store_common.h"

#include "base/log.h"

#include <sys/stat.h>

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    fixture_init(f, 2, 256 * MIB);
    fixture_open(f);
    char key[16];
    for (int i = 0; i < 20; i++) {
        (void)snprintf(key, sizeof(key), "k%d", i);
        put(f->s, key, (uint64_t)i, i % 2 ? 100 : 3 * MIB + 1);
    }
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture_fini(*state);
    free(*state);
    return 0;
}

struct heard {
    uint64_t calls, problems, stop_after;
    char text[4096];
};

static bool hear(const struct store_check_report *so_far, const char *problem, void *arg)
{
    struct heard *h = arg;
    h->calls++;
    if (problem) {
        h->problems++;
        (void)snprintf(h->text + strlen(h->text), sizeof(h->text) - strlen(h->text), "%s\n", problem);
    }
    return h->stop_after == 0 || h->calls < h->stop_after;
}

static struct store_check_report check(struct fixture *f, bool repair, struct heard *h)
{
    struct store_check_report report;
    *h = (struct heard){0};
    assert_int_equal(store_check(f->s, repair, hear, h, &report, NULL), 0);
    return report;
}

/* A healthy store: everything is counted, nothing is found. */
static void test_healthy(void **state)
{
    struct heard h;
    struct store_check_report r = check(*state, true, &h);
    assert_int_equal(r.extents, 20);
    assert_int_equal(r.blocks, 10 * 4 + 10);
    assert_int_equal(r.bytes, 10 * (3 * MIB + 1) + 10 * 100);
    assert_int_equal(r.bad_blocks + r.missing_files + r.orphan_files + r.bad_records, 0);
    assert_int_equal(h.calls, 20);
    assert_int_equal(h.problems, 0);
}

/* Puts one damage of each kind into the store. */
static void damage(struct fixture *f)
{
    char path[DISK_PATH_MAX], orphan[DISK_PATH_MAX];
    key_path(f->s, "k0", path);
    flip_bit(path, MIB + 5);
    flip_bit(path, 3 * MIB);
    key_path(f->s, "k1", path);
    flip_bit(path, 99);
    key_path(f->s, "k2", path);
    assert_int_equal(unlink(path), 0);
    key_path(f->s, "k3", path);
    assert_int_equal(unlink(path), 0);
    (void)snprintf(orphan, sizeof(orphan), "%.*s/%s", (int)(strrchr(path, '/') - path), path,
                   "000102030405060708090a0b0c0d0e0f");
    int fd = open(orphan, O_CREAT | O_WRONLY, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "12345", 5), 5);
    assert_int_equal(close(fd), 0);
    /* Not a name of ours: left alone. */
    (void)snprintf(strrchr(orphan, '/'), 16, "/README");
    fd = open(orphan, O_CREAT | O_WRONLY, 0600);
    assert_true(fd >= 0);
    assert_int_equal(close(fd), 0);
    struct kv_txn *t = kv_txn_new(f->s->disks[0].kv);
    kv_txn_put_plain(t, SLICE_LIT("obad"), SLICE_LIT("garbage"));
    assert_int_equal(kv_txn_commit(t, KV_VISIBLE, NULL), 0);
    kv_txn_free(t);
}

static void assert_damage(const struct store_check_report *r, const struct heard *h)
{
    assert_int_equal(r->bad_blocks, 3);
    assert_int_equal(r->missing_files, 2);
    assert_int_equal(r->orphan_files, 1);
    assert_int_equal(r->bad_records, 1);
    assert_non_null(strstr(h->text, "k0: 2 blocks with wrong checksum, the first is 1"));
    assert_non_null(strstr(h->text, "k1: 1 blocks"));
    assert_non_null(strstr(h->text, "k2: extent file is missing"));
    assert_non_null(strstr(h->text, "bad: index record is damaged"));
    assert_non_null(strstr(h->text, "1 files without entries"));
}

/* Without repair the damage is reported as often as one asks; with it, once, and then it is gone. */
static void test_damage_is_found_and_repaired(void **state)
{
    struct fixture *f = *state;
    struct heard h;
    damage(f);
    struct store_check_report r = check(f, false, &h);
    assert_damage(&r, &h);
    r = check(f, false, &h);
    assert_damage(&r, &h);
    r = check(f, true, &h);
    assert_damage(&r, &h);
    r = check(f, true, &h);
    assert_int_equal(r.bad_blocks + r.missing_files + r.orphan_files + r.bad_records, 0);
    assert_int_equal(r.extents, 18);
    assert_false(is_whole(f->s, "k0", 0, 3 * MIB + 1));
    assert_false(is_whole(f->s, "k1", 1, 100));
    assert_false(is_there(f->s, "k2"));
    assert_false(is_there(f->s, "k3"));
    for (int i = 4; i < 20; i++) {
        char key[16];
        (void)snprintf(key, sizeof(key), "k%d", i);
        assert_true(is_whole(f->s, key, (uint64_t)i, i % 2 ? 100 : 3 * MIB + 1));
    }
    fixture_close(f);
    fixture_open(f);
    r = check(f, false, &h);
    assert_int_equal(r.bad_blocks + r.missing_files + r.orphan_files + r.bad_records, 0);
}

static void damage_record(struct fixture *f, const char *key)
{
    struct format_key k;
    format_key_bytes('o', slice_str(key), &k);
    for (size_t i = 0; i < 2; i++) {
        struct kv *kv = f->s->disks[i].kv;
        if (kv_get(kv, format_key_view(&k), NULL, NULL, NULL) < 0)
            continue;
        struct kv_txn *t = kv_txn_new(kv);
        kv_txn_put_plain(t, format_key_view(&k), SLICE_LIT("garbage"));
        assert_int_equal(kv_txn_commit(t, KV_VISIBLE, NULL), 0);
        kv_txn_free(t);
    }
}

static uint64_t used_bytes(struct fixture *f)
{
    return disk_status(f->s, 0).used_bytes + disk_status(f->s, 1).used_bytes;
}

static uint64_t entries(struct fixture *f)
{
    return disk_status(f->s, 0).extents + disk_status(f->s, 1).extents;
}

/* The files of entries whose records are damaged go with them, and count no more; also one whose key has a
 * new entry by then. One that is in memory is recorded again. */
static void test_files_of_damaged_records(void **state)
{
    struct fixture *f = *state;
    struct extent *known = NULL;
    struct heard h;
    fixture_close(f);
    fixture_open(f);
    uint64_t before = used_bytes(f);
    assert_int_equal(store_find(f->s, SLICE_LIT("k4"), &known), 0);
    damage_record(f, "k0");
    damage_record(f, "k1");
    damage_record(f, "k4");
    assert_false(is_there(f->s, "k1")); /* which drops the record */
    put(f->s, "k1", 77, 5000);
    struct store_check_report r = check(f, false, &h);
    assert_int_equal(r.bad_records, 2);
    assert_int_equal(r.orphan_files, 1);
    r = check(f, true, &h);
    assert_int_equal(r.bad_records, 2);
    assert_int_equal(r.orphan_files, 2);
    r = check(f, true, &h);
    assert_int_equal(r.bad_records + r.orphan_files, 0);
    assert_int_equal(used_bytes(f), before - (3 * MIB + 4096) - 4096 + 8192);
    assert_int_equal(entries(f), 19);
    extent_unref(known);
    for (int i = 0; i < 2; i++) {
        assert_true(is_whole(f->s, "k1", 77, 5000));
        assert_true(is_whole(f->s, "k4", 4, 3 * MIB + 1));
        assert_int_equal(used_bytes(f), before - (3 * MIB + 4096) - 4096 + 8192);
        assert_int_equal(entries(f), 19);
        fixture_close(f);
        fixture_open(f);
    }
}

/* Beside a stopped node the store is opened read-only: the same is found and nothing is changed, not even the
 * mark. */
static void test_read_only(void **state)
{
    struct fixture *f = *state;
    struct heard h;
    damage(f);
    fixture_close(f);
    char *mark = tmpdir_path(f->disks[0], "forebay-disk");
    struct stat before, after;
    assert_int_equal(stat(mark, &before), 0);
    f->config.read_only = true;
    for (int i = 0; i < 2; i++) {
        fixture_open(f);
        struct store_check_report r = check(f, true, &h);
        assert_damage(&r, &h);
        struct store_new n = {.key = SLICE_LIT("new"), .size_bytes = 1};
        struct extent *x = NULL;
        assert_int_equal(store_create(f->s, &n, &x, NULL), -EROFS);
        assert_true(is_whole(f->s, "k5", 5, 100));
        fixture_close(f);
    }
    assert_int_equal(stat(mark, &after), 0);
    assert_int_equal(before.st_mtim.tv_sec, after.st_mtim.tv_sec);
    assert_int_equal(before.st_mtim.tv_nsec, after.st_mtim.tv_nsec);
    f->config.read_only = false;
    free(mark);
}

/* Files that are too short are found, beside a stopped node and by who repairs: then the entries go. */
static void test_cut_files(void **state)
{
    struct fixture *f = *state;
    char large[DISK_PATH_MAX], small[DISK_PATH_MAX];
    struct heard h;
    key_path(f->s, "k0", large);
    key_path(f->s, "k1", small);
    fixture_close(f);
    assert_int_equal(truncate(large, MIB), 0);
    assert_int_equal(truncate(small, 99), 0);
    f->config.read_only = true;
    fixture_open(f);
    struct store_check_report r = check(f, false, &h);
    assert_int_equal(r.extents, 20);
    assert_int_equal(r.bad_blocks, 3 + 1);
    assert_int_equal(h.problems, 2);
    assert_non_null(strstr(h.text, "k0: the file is too short, 3 blocks are lost"));
    fixture_close(f);
    f->config.read_only = false;
    fixture_open(f);
    r = check(f, true, &h);
    assert_int_equal(r.bad_blocks, 4 + 1);
    assert_int_equal(h.problems, 2);
    assert_non_null(strstr(h.text, "k1: the file is too short, 1 blocks are lost"));
    assert_int_equal(r.orphan_files, 0);
    r = check(f, false, &h);
    assert_int_equal(r.extents, 18);
    assert_int_equal(r.bad_blocks, 0);
    assert_int_equal(h.problems, 0);
}

/* ... also one whose record has fewer blocks than are left of the file: its last one is behind the end. */
static void test_a_cut_file_with_holes(void **state)
{
    struct fixture *f = *state;
    char path[DISK_PATH_MAX];
    struct heard h;
    struct extent *x;
    struct store_new n = {.key = SLICE_LIT("holes"), .attr = SLICE_LIT("attr"), .size_bytes = 5 * MIB};
    assert_int_equal(store_create(f->s, &n, &x, NULL), 0);
    assert_int_equal(fill_range(x, 1, 4 * MIB, MIB), 0);
    extent_unref(x);
    key_path(f->s, "holes", path);
    fixture_close(f);
    assert_int_equal(truncate(path, 2 * MIB), 0);
    fixture_open(f);
    struct store_check_report r = check(f, true, &h);
    assert_int_equal(r.bad_blocks, 1);
    assert_int_equal(h.problems, 1);
    assert_non_null(strstr(h.text, "holes: the file is too short, 1 blocks are lost"));
    r = check(f, false, &h);
    assert_int_equal(r.extents, 20);
    assert_int_equal(h.problems, 0);
}

/* Entries beyond those that are read at once are looked at, too: the last of them are damaged. */
static void test_many_entries(void **state)
{
    struct fixture *f = *state;
    struct heard h;
    char key[16], path[DISK_PATH_MAX];
    for (int i = 0; i < 1000; i++) {
        (void)snprintf(key, sizeof(key), "m%04d", i);
        put(f->s, key, (uint64_t)i, 100);
    }
    struct store_check_report r = check(f, false, &h);
    assert_int_equal(r.extents, 1020);
    assert_int_equal(r.bad_blocks, 0);
    for (int i = 990; i < 1000; i++) {
        (void)snprintf(key, sizeof(key), "m%04d", i);
        key_path(f->s, key, path);
        flip_bit(path, 50);
    }
    r = check(f, false, &h);
    assert_int_equal(r.bad_blocks, 10);
    assert_int_equal(h.problems, 10);
}

/* The caller can stop it. */
static void test_stop(void **state)
{
    struct fixture *f = *state;
    struct heard h = {.stop_after = 3};
    struct store_check_report r;
    assert_int_equal(store_check(f->s, false, hear, &h, &r, NULL), 0);
    assert_int_equal(h.calls, 3);
    assert_int_equal(r.extents, 3);
}

#define TEST(t) cmocka_unit_test_setup_teardown(t, setup, teardown)

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        TEST(test_healthy),   TEST(test_damage_is_found_and_repaired), TEST(test_read_only),
        TEST(test_cut_files), TEST(test_a_cut_file_with_holes),        TEST(test_many_entries),
        TEST(test_stop),      TEST(test_files_of_damaged_records),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
