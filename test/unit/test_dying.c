/* layer: store */
/* A kill between the removal of an entry's file and that of its records: the next start ends it, and a check
 * before that start knows it. */
#include "test_store_common.h"
#include "test_store_kv.h"

#include "base/log.h"

#define N_KEYS 8

static char *name_of_key(int i)
{
    static char name[16];
    (void)snprintf(name, sizeof(name), "k%d", i);
    return name;
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    fixture_init(f, 1, 64 * MIB);
    testkv_use();
    fixture_open(f);
    for (int i = 0; i < N_KEYS; i++)
        put(f->s, name_of_key(i), (uint64_t)i, i % 2 ? 100 : 2 * MIB + 1);
    writer_drain(&f->s->disks[0]);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture_fini(*state);
    testkv_reset();
    free(*state);
    return 0;
}

static struct store_check_report check(struct fixture *f, bool read_only)
{
    struct store_check_report r;
    f->config.read_only = read_only;
    fixture_open(f);
    assert_int_equal(store_check(f->s, /* repair= */ false, NULL, NULL, &r, NULL), 0);
    if (read_only)
        fixture_close(f);
    f->config.read_only = false;
    assert_int_equal(r.bad_blocks + r.missing_files + r.orphan_files + r.bad_records, 0);
    return r;
}

/* The records of what is removed from here on stay, as when the node is killed before they are deleted. */
static void kill_before_deletion(struct fixture *f, const char *const *keys, size_t n)
{
    testkv_fail_at = 1;
    for (size_t i = 0; i < n; i++)
        assert_int_equal(store_remove(f->s, slice_str(keys[i])), 0);
    fixture_abandon(f);
    testkv_fail_at = 0;
}

static void assert_counts(struct fixture *f, const struct store_check_report *r)
{
    struct store_disk_status st = disk_status(f->s, 0);
    assert_int_equal(st.extents, r->extents);
    assert_int_equal(st.extents, f->s->disks[0].count.extents);
    assert_int_equal(st.used_bytes, f->s->disks[0].count.used_bytes);
    assert_int_equal(st.used_bytes, f->s->disks[0].written_bytes);
}

/* Of removed entries, known in memory or only by the index, nothing is left after the next start, and before
 * it nothing is wrong. Without the note the check finds files missing, before and after. */
static void test_the_next_start_ends_it(void **state)
{
    struct fixture *f = *state;
    const char *const gone[] = {"k0", "k1", "k6"};
    fixture_close(f);
    fixture_open(f);
    assert_true(is_there(f->s, "k0"));
    kill_before_deletion(f, gone, ARRAY_SIZE(gone));
    struct store_check_report r = check(f, /* read_only= */ true);
    assert_int_equal(r.unfinished, ARRAY_SIZE(gone));
    assert_int_equal(r.extents, N_KEYS - ARRAY_SIZE(gone));
    r = check(f, /* read_only= */ false);
    assert_int_equal(r.unfinished, 0);
    assert_int_equal(r.extents, N_KEYS - ARRAY_SIZE(gone));
    assert_counts(f, &r);
    for (size_t i = 0; i < ARRAY_SIZE(gone); i++)
        assert_false(is_there(f->s, gone[i]));
    assert_true(is_whole(f->s, "k2", 2, 2 * MIB + 1) && is_whole(f->s, "k7", 7, 100));
    fixture_close(f);
    r = check(f, /* read_only= */ true);
    assert_int_equal(r.extents, N_KEYS - ARRAY_SIZE(gone));
}

/* Also when that start is killed again and again before the index takes anything. */
static void test_a_start_that_is_killed(void **state)
{
    struct fixture *f = *state;
    const char *const gone[] = {"k0", "k1"};
    kill_before_deletion(f, gone, ARRAY_SIZE(gone));
    for (uint64_t nth = 1;; nth++) {
        testkv_calls = 0;
        testkv_fail_at = nth;
        int r = fixture_try_open(f);
        testkv_fail_at = 0;
        if (r == 0)
            break;
        struct store_check_report report = check(f, /* read_only= */ true);
        assert_true(report.unfinished == ARRAY_SIZE(gone) || report.unfinished == 0);
        assert_int_equal(report.extents, N_KEYS - ARRAY_SIZE(gone));
    }
    fixture_abandon(f);
    struct store_check_report r = check(f, /* read_only= */ false);
    assert_int_equal(r.extents, N_KEYS - ARRAY_SIZE(gone));
    assert_counts(f, &r);
}

static void write_table(struct fixture *f, const void *p, size_t n)
{
    char path[DISK_PATH_MAX];
    (void)snprintf(path, sizeof(path), "%s/dying", f->disks[0]);
    int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, p, n), n);
    assert_int_equal(close(fd), 0);
}

static struct id128 id_of(struct fixture *f, const char *key)
{
    struct extent *_cleanup_(extent_unrefp) x = NULL;
    assert_int_equal(store_find(f->s, slice_str(key), &x), 0);
    return extent_data_id(x);
}

/* Killed between the note and the unlink: the file goes, too. */
static void test_a_file_that_is_still_there(void **state)
{
    struct fixture *f = *state;
    char path[DISK_PATH_MAX];
    struct id128 id = id_of(f, "k3");
    key_path(f->s, "k3", path);
    fixture_abandon(f);
    write_table(f, &id, sizeof(id));
    assert_int_equal(check(f, /* read_only= */ true).unfinished, 1);
    struct store_check_report r = check(f, /* read_only= */ false);
    assert_int_equal(r.extents, N_KEYS - 1);
    assert_counts(f, &r);
    assert_int_equal(access(path, F_OK), -1);
}

/* What is left in the table of a disk that was stopped cleanly is not believed, and neither are bytes that
 * are no ids. */
static void test_an_old_table_does_no_harm(void **state)
{
    struct fixture *f = *state;
    char junk[3 * 16 + 5];
    struct id128 id = id_of(f, "k3");
    fixture_close(f);
    write_table(f, &id, sizeof(id));
    fixture_open(f);
    assert_true(is_whole(f->s, "k3", 3, 100));
    fixture_abandon(f);
    memset(junk, 0x5a, sizeof(junk));
    write_table(f, junk, sizeof(junk));
    assert_int_equal(check(f, /* read_only= */ true).unfinished, 0);
    assert_int_equal(check(f, /* read_only= */ false).extents, N_KEYS);
}

/* The table is as long as entries were dying at a time. */
static void test_places_are_used_again(void **state)
{
    struct fixture *f = *state;
    struct disk *d = &f->s->disks[0];
    for (int i = 0; i < 300; i++) {
        put(f->s, "again", (uint64_t)i, 100);
        if (i % 3 == 2)
            writer_drain(d);
    }
    writer_drain(d);
    assert_in_range(d->n_dying, 1, 3);
    assert_int_equal(d->n_dying_free, d->n_dying);
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_next_start_ends_it, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_start_that_is_killed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_file_that_is_still_there, setup, teardown),
        cmocka_unit_test_setup_teardown(test_an_old_table_does_no_harm, setup, teardown),
        cmocka_unit_test_setup_teardown(test_places_are_used_again, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
