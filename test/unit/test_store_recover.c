/* layer: store */
/* Stops of every kind: what is trusted, what is verified, what is dropped, what is cleaned up. */
#include "test_store_common.h"

#include "base/log.h"
#include "support/clock_sys.h"
#include "support/fault_sys.h"

#include <dirent.h>

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    fixture_init(f, 1, 256 * MIB);
    fixture_open(f);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture_fini(*state);
    free(*state);
    return 0;
}

/* Records everything, then stops as kill -9 would. */
static void kill_after_recording(struct fixture *f)
{
    writer_drain(&f->s->disks[0]);
    fixture_abandon(f);
}

static uint64_t corrupt_blocks(struct fixture *f, const char *found)
{
    return metrics_value(metrics_series(METRIC_CORRUPT_BLOCKS, f->disks[0], found, NULL));
}

static size_t count_files(struct fixture *f)
{
    size_t n = 0;
    for (int i = 0; i < 256; i++) {
        char path[512];
        (void)snprintf(path, sizeof(path), "%s/extents/%02x", f->disks[0], i);
        DIR *d = opendir(path);
        for (struct dirent *de; d && (de = readdir(d));)
            n += de->d_name[0] != '.';
        if (d)
            (void)closedir(d);
    }
    return n;
}

/* Makes the mark say that the machine was started anew since. */
static void pretend_reboot(struct fixture *f)
{
    char *path = tmpdir_path(f->disks[0], "forebay-disk"), *text = NULL;
    size_t n = 0;
    assert_int_equal(sys_read_file(path, 4096, &text, &n), 0);
    char *boot = strstr(text, "boot ");
    assert_non_null(boot);
    boot[5] = boot[5] == 'z' ? 'y' : 'z';
    assert_int_equal(sys_write_file_atomic(path, text, n, 0600), 0);
    free(text);
    free(path);
}

static uint32_t suspects(struct fixture *f, const char *key)
{
    struct extent *_cleanup_(extent_unrefp) x = NULL;
    assert_int_equal(store_find(f->s, slice_str(key), &x), 0);
    return x->n_suspect;
}

/* After kill -9 what was recorded is there, verified before it is served, and trusted from then on. */
static void test_kill_keeps_what_was_recorded(void **state)
{
    struct fixture *f = *state;
    put(f->s, "small", 1, 1000);
    put(f->s, "large", 2, 3 * MIB + 5);
    kill_after_recording(f);
    fixture_open(f);
    assert_false(disk_status(f->s, 0).was_clean);
    assert_int_equal(disk_status(f->s, 0).used_bytes, 4096 + 3 * MIB + 4096);
    assert_int_equal(suspects(f, "small"), 1);
    assert_int_equal(suspects(f, "large"), 4);
    assert_true(is_whole(f->s, "small", 1, 1000));
    assert_true(is_whole(f->s, "large", 2, 3 * MIB + 5));
    struct extent *x = NULL;
    assert_int_equal(store_find(f->s, SLICE_LIT("large"), &x), 0);
    assert_true(extent_is_complete(x));
    extent_unref(x);
    fixture_close(f);
    fixture_open(f);
    assert_int_equal(suspects(f, "small"), 0);
    assert_int_equal(suspects(f, "large"), 0);
    assert_int_equal(corrupt_blocks(f, "start"), 0);
}

/* What was flushed before the kill is not verified again. */
static void test_flushed_blocks_are_trusted(void **state)
{
    struct fixture *f = *state;
    put(f->s, "old", 1, 2 * MIB);
    assert_int_equal(store_flush(f->s, NULL), 0);
    put(f->s, "new", 2, 2 * MIB);
    kill_after_recording(f);
    fixture_open(f);
    assert_int_equal(suspects(f, "old"), 0);
    assert_int_equal(suspects(f, "new"), 2);
    /* And again: an epoch that was suspect stays so until its blocks were verified. */
    kill_after_recording(f);
    fixture_open(f);
    assert_int_equal(store_flush(f->s, NULL), 0);
    put(f->s, "newer", 3, 100);
    assert_int_equal(store_flush(f->s, NULL), 0);
    fixture_close(f);
    fixture_open(f);
    assert_int_equal(suspects(f, "old"), 0);
    assert_int_equal(suspects(f, "new"), 2);
    assert_int_equal(suspects(f, "newer"), 0);
}

/* What was written between two kills is verified, too, whatever its run began with: an unclean stop, or a
 * flush that failed. The index knew of it before anything was recorded in the next epoch. (Fails where
 * flush_commit_epoch does not commit: the second start takes that epoch for one of its own.) */
static void test_two_kills_in_a_row(void **state)
{
    struct fixture *f = *state;
    put(f->s, "first", 1, 2 * MIB);
    kill_after_recording(f);
    fixture_open(f);
    put(f->s, "second", 2, 2 * MIB);
    kill_after_recording(f);
    fixture_open(f);
    assert_int_equal(suspects(f, "first"), 2);
    assert_int_equal(suspects(f, "second"), 2);
    fault_sys_start();
    fault_sys_arm(FAULT_SYNCFS, 1, EIO, FAULT_ONCE);
    put(f->s, "third", 3, 2 * MIB);
    assert_int_equal(store_flush(f->s, NULL), -EIO);
    fault_sys_disarm();
    put(f->s, "fourth", 4, 2 * MIB);
    kill_after_recording(f);
    fault_sys_stop();
    fixture_open(f);
    assert_int_equal(suspects(f, "third"), 2);
    assert_int_equal(suspects(f, "fourth"), 2);
    assert_true(is_whole(f->s, "second", 2, 2 * MIB) && is_whole(f->s, "fourth", 4, 2 * MIB));
}

/* A bit that flipped in a suspect block is found before it is served: the block reads as missing, the others
 * are served. */
static void test_flipped_bit_is_never_served(void **state)
{
    struct fixture *f = *state;
    char small[DISK_PATH_MAX], large[DISK_PATH_MAX];
    put(f->s, "small", 1, 1000);
    put(f->s, "large", 2, 4 * MIB);
    key_path(f->s, "small", small);
    key_path(f->s, "large", large);
    kill_after_recording(f);
    flip_bit(small, 999);
    flip_bit(large, 2 * MIB + 77);
    uint64_t before = corrupt_blocks(f, "start");
    fixture_open(f);
    struct extent *x = NULL;
    assert_int_equal(store_find(f->s, SLICE_LIT("small"), &x), 0);
    assert_false(extent_is_complete(x));
    assert_int_equal(extent_present_run(x, 0, 1000), 0);
    extent_unref(x);
    assert_int_equal(store_find(f->s, SLICE_LIT("large"), &x), 0);
    assert_int_equal(check_run(x, 2, 0, 4 * MIB), 2 * MIB);
    assert_int_equal(check_run(x, 2, MIB, 3 * MIB), MIB);
    assert_int_equal(check_run(x, 2, 2 * MIB, MIB), 0);
    assert_int_equal(check_run(x, 2, 3 * MIB, MIB), MIB);
    assert_int_equal(corrupt_blocks(f, "start"), before + 2);
    uint64_t at = 0, n = 0;
    assert_int_equal(extent_next_missing(x, 0, &at, &n), 0);
    assert_true(at == 2 * MIB && n == MIB);
    assert_int_equal(fill_range(x, 2, at, n), 0);
    assert_true(extent_is_complete(x));
    extent_unref(x);
    fixture_close(f);
    fixture_open(f);
    assert_true(is_whole(f->s, "large", 2, 4 * MIB));
    assert_false(is_whole(f->s, "small", 1, 1000));
    assert_int_equal(suspects(f, "large"), 0);
}

/* Entries whose file is gone, or shorter than what is there by them, are dropped. */
static void test_missing_and_short_files(void **state)
{
    struct fixture *f = *state;
    char gone[DISK_PATH_MAX], cut[DISK_PATH_MAX], tail[DISK_PATH_MAX];
    put(f->s, "gone", 1, 2 * MIB);
    put(f->s, "cut", 2, 4 * MIB);
    put(f->s, "tail", 3, 1000);
    key_path(f->s, "gone", gone);
    key_path(f->s, "cut", cut);
    key_path(f->s, "tail", tail);
    fixture_close(f);
    assert_int_equal(unlink(gone), 0);
    assert_int_equal(truncate(cut, 2 * MIB + 17), 0);
    assert_int_equal(truncate(tail, 0), 0);
    fixture_open(f);
    for (int i = 0; i < 2; i++) {
        assert_false(is_there(f->s, "gone"));
        assert_false(is_there(f->s, "tail"));
        assert_false(is_there(f->s, "cut"));
        assert_int_equal(disk_status(f->s, 0).used_bytes, 0);
        assert_int_equal(disk_status(f->s, 0).extents, 0);
        /* The records say so, too. */
        fixture_close(f);
        fixture_open(f);
    }
    assert_int_equal(access(cut, F_OK), -1);
    put(f->s, "cut", 2, 4 * MIB);
    assert_true(is_whole(f->s, "cut", 2, 4 * MIB));
}

/* A file that is shorter than its object, and as long as what is there of it, is as long as the object again.
 */
static void test_file_without_what_was_never_there(void **state)
{
    struct fixture *f = *state;
    char path[DISK_PATH_MAX];
    struct store_new n = {.key = SLICE_LIT("part"), .size_bytes = 4 * MIB};
    struct extent *x = NULL;
    assert_int_equal(store_create(f->s, &n, &x, NULL), 0);
    assert_int_equal(fill_range(x, 2, 0, 2 * MIB), 0);
    extent_path(x, path);
    extent_unref(x);
    fixture_close(f);
    assert_int_equal(truncate(path, 2 * MIB), 0);
    fixture_open(f);
    struct stat st;
    assert_int_equal(store_find(f->s, SLICE_LIT("part"), &x), 0);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 4 * MIB);
    assert_int_equal(check_run(x, 2, 0, 4 * MIB), 2 * MIB);
    assert_int_equal(fill_range(x, 2, 2 * MIB, 2 * MIB), 0);
    extent_unref(x);
    assert_true(is_whole(f->s, "part", 2, 4 * MIB));
}

/* Files that were being made when the process was killed are removed at the next start, with all that was
 * recorded. */
static void test_unfinished_files_are_removed(void **state)
{
    struct fixture *f = *state;
    put(f->s, "k", 1, 100);
    assert_int_equal(store_flush(f->s, NULL), 0);
    struct extent *x = NULL;
    assert_int_equal(store_stage(f->s, SLICE_LIT("staged"), 0, &x, NULL), 0);
    _cleanup_free_ char *p = content_new(9, 0, MIB);
    for (uint64_t i = 0; i < 70; i++) /* enough for a chunk record */
        assert_int_equal(extent_write(x, p, MIB, i * MIB), 0);
    writer_drain(&f->s->disks[0]);
    /* As if killed: the process is gone, its file and records are not. */
    struct format_key k;
    format_key_chunk(x->id, 0, &k);
    assert_int_equal(kv_get(f->s->disks[0].kv, format_key_view(&k), NULL, NULL, NULL), 0);
    char path[DISK_PATH_MAX];
    extent_path(x, path);
    struct id128 id = x->id;
    extent_unref(x);
    writer_drain(&f->s->disks[0]);
    struct kv_txn *t = kv_txn_new(f->s->disks[0].kv);
    kv_txn_put_plain(t, format_key_view(&k), SLICE_LIT("chunk"));
    format_key_id('s', id, &k);
    kv_txn_put_plain(t, format_key_view(&k), SLICE_NULL);
    assert_int_equal(kv_txn_commit(t, KV_VISIBLE, NULL), 0);
    kv_txn_free(t);
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    assert_true(fd >= 0);
    assert_int_equal(close(fd), 0);
    fixture_abandon(f);
    fixture_open(f);
    assert_int_equal(count_files(f), 1);
    assert_int_equal(kv_get(f->s->disks[0].kv, format_key_view(&k), NULL, NULL, NULL), -ENOENT);
    format_key_chunk(id, 0, &k);
    assert_int_equal(kv_get(f->s->disks[0].kv, format_key_view(&k), NULL, NULL, NULL), -ENOENT);
    assert_true(is_whole(f->s, "k", 1, 100));
}

static size_t count_markers(struct fixture *f)
{
    struct kv_iter *_cleanup_(kv_iter_freep) it =
        kv_iter_new(f->s->disks[0].kv, SLICE_LIT("s"), SLICE_LIT("t"));
    struct slice k, v;
    size_t n = 0;
    while (kv_iter_next(it, &k, &v, NULL) == 0)
        n++;
    return n;
}

/* A file that was made in vain and cannot be removed keeps its marker, and goes at the next start. */
static void test_a_file_made_in_vain(void **state)
{
    struct fixture *f = *state;
    fault_sys_start();
    fault_sys_arm(FAULT_FTRUNCATE | FAULT_UNLINK, 1, EIO, FAULT_FOREVER);
    assert_int_equal(try_put(f->s, "k", 1, 100), -EIO);
    fault_sys_disarm();
    fault_sys_stop();
    assert_int_equal(count_files(f), 1);
    kill_after_recording(f);
    fixture_open(f);
    assert_int_equal(count_files(f), 0);
}

/* Files are marked some at a time, ahead of being made. What was marked and not made is no file that was left
 * behind: nothing of it is there after a clean stop, and nothing after the start that follows a kill.
 * The next ones are marked while there are some left. (Without drop_births in disk.c the first count after a
 * clean stop is not 0.) */
static void test_markers_are_made_ahead(void **state)
{
    struct fixture *f = *state;
    char key[16];
    put(f->s, "k0", 1, 100);
    writer_drain(&f->s->disks[0]);
    assert_int_equal(count_markers(f), BIRTHS_AHEAD);
    for (int i = 1; i <= BIRTHS_AHEAD - BIRTHS_LOW; i++) {
        (void)snprintf(key, sizeof(key), "k%d", i);
        put(f->s, key, 1, 100);
    }
    writer_drain(&f->s->disks[0]);
    assert_int_equal(count_markers(f), BIRTHS_LOW);
    put(f->s, "next", 1, 100);
    writer_drain(&f->s->disks[0]);
    assert_int_equal(count_markers(f), BIRTHS_LOW - 1 + BIRTHS_AHEAD);
    fixture_close(f);
    f->config.read_only = true;
    fixture_open(f);
    assert_int_equal(count_markers(f), 0);
    fixture_close(f);
    f->config.read_only = false;
    fixture_open(f);
    put(f->s, "last", 1, 100);
    kill_after_recording(f);
    f->config.read_only = true;
    fixture_open(f);
    assert_int_equal(count_markers(f), BIRTHS_AHEAD);
    fixture_close(f);
    f->config.read_only = false;
    fixture_open(f);
    assert_int_equal(count_markers(f), 0);
    assert_int_equal(count_files(f), 1 + BIRTHS_AHEAD - BIRTHS_LOW + 2);
    assert_true(is_whole(f->s, "last", 1, 100) && is_whole(f->s, "next", 1, 100));
}

/* After power loss, files that lost their marker are found by a walk; after a mere kill there is no walk. */
static void test_orphans_after_power_loss(void **state)
{
    struct fixture *f = *state;
    put(f->s, "k", 1, 100);
    char orphan[DISK_PATH_MAX], known[DISK_PATH_MAX];
    key_path(f->s, "k", known);
    kill_after_recording(f);
    char *slash = strrchr(known, '/');
    (void)snprintf(orphan, sizeof(orphan), "%.*s/%.2s000000000000000000000000000000", (int)(slash - known),
                   known, slash + 1);
    int fd = open(orphan, O_CREAT | O_WRONLY, 0600);
    assert_true(fd >= 0);
    assert_int_equal(close(fd), 0);
    fixture_open(f);
    assert_false(f->s->disks[0].has_sweeper);
    assert_int_equal(access(orphan, F_OK), 0);
    fixture_abandon(f);
    pretend_reboot(f);
    fixture_open(f);
    assert_true(f->s->disks[0].has_sweeper);
    assert_int_equal(pthread_join(f->s->disks[0].sweeper, NULL), 0);
    f->s->disks[0].has_sweeper = false;
    assert_int_equal(access(orphan, F_OK), -1);
    assert_true(is_whole(f->s, "k", 1, 100));
}

/* A directory that cannot be listed to its end ends neither the walk nor a check as if it had been: the one
 * is due still, the other says so. (Fails where errors of readdir were taken for the end.) */
static void test_walk_of_what_cannot_be_listed(void **state)
{
    struct fixture *f = *state;
    struct disk *d = &f->s->disks[0];
    struct store_check_report report;
    uint64_t n = 0;
    put(f->s, "k", 1, 100);
    writer_drain(d);
    fault_sys_start();
    for (bool hit = true; hit;) {
        struct kv_txn *t = kv_txn_new(d->kv);
        kv_txn_put_plain(t, SLICE_LIT("msweep"), SLICE_NULL);
        assert_int_equal(kv_txn_commit(t, KV_VISIBLE, NULL), 0);
        kv_txn_free(t);
        fault_sys_arm(FAULT_READDIR, ++n, EIO, FAULT_ONCE);
        int r = store_check(f->s, true, NULL, NULL, &report, NULL);
        assert_int_equal(r, fault_sys_hit() ? -EIO : 0);
        fault_sys_arm(FAULT_READDIR, n, EIO, FAULT_ONCE);
        recover_sweep(d);
        hit = fault_sys_hit();
        fault_sys_disarm();
        int due = kv_get(d->kv, SLICE_LIT("msweep"), NULL, NULL, NULL);
        assert_int_equal(due, hit ? 0 : -ENOENT);
    }
    fault_sys_stop();
    assert_true(n > 3);
    assert_true(is_whole(f->s, "k", 1, 100));
}

/* The walk after a power loss did not get to its end, here because what it found could not be removed: the
 * next start walks again, however clean the stop between was, and the one after that does not. */
static void test_walk_is_taken_up_again(void **state)
{
    struct fixture *f = *state;
    char orphan[DISK_PATH_MAX], known[DISK_PATH_MAX];
    put(f->s, "k", 1, 100);
    key_path(f->s, "k", known);
    kill_after_recording(f);
    char *slash = strrchr(known, '/');
    (void)snprintf(orphan, sizeof(orphan), "%.*s/%.2s000000000000000000000000000000", (int)(slash - known),
                   known, slash + 1);
    assert_int_equal(mkdir(orphan, 0700), 0);
    pretend_reboot(f);
    fixture_open(f);
    assert_true(f->s->disks[0].has_sweeper);
    assert_int_equal(pthread_join(f->s->disks[0].sweeper, NULL), 0);
    f->s->disks[0].has_sweeper = false;
    fixture_close(f);
    assert_int_equal(rmdir(orphan), 0);
    int fd = open(orphan, O_CREAT | O_WRONLY, 0600);
    assert_true(fd >= 0);
    assert_int_equal(close(fd), 0);
    fixture_open(f);
    assert_true(f->s->disks[0].has_sweeper);
    assert_int_equal(pthread_join(f->s->disks[0].sweeper, NULL), 0);
    f->s->disks[0].has_sweeper = false;
    assert_int_equal(access(orphan, F_OK), -1);
    fixture_close(f);
    fixture_open(f);
    assert_false(f->s->disks[0].has_sweeper);
    assert_true(is_whole(f->s, "k", 1, 100));
}

/* A disk that was away during a start, or that another node used, is doubted; one that was always there is
 * not, nor an empty one. */
static void test_a_disk_that_was_away_is_doubted(void **state)
{
    struct fixture *f = *state;
    const struct id128 none = {{0}}, first = {{1}}, second = {{2}}, other = {{3}};
    assert_int_equal(store_note_start(f->s, none, first, NULL), 0);
    put(f->s, "k", 1, 100);
    fixture_close(f);
    fixture_open(f);
    assert_int_equal(store_note_start(f->s, first, second, NULL), 0);
    assert_int_equal(store_doubted_before_ns(f->s), 0);
    fixture_close(f);
    fixture_open(f); /* the node had a start called `other` without it */
    assert_int_equal(store_note_start(f->s, other, first, NULL), 0);
    uint64_t doubted_ns = store_doubted_before_ns(f->s);
    assert_true(doubted_ns > 0);
    fixture_close(f);
    fixture_open(f);
    assert_int_equal(store_note_start(f->s, first, second, NULL), 0);
    assert_int_equal(store_doubted_before_ns(f->s), doubted_ns);
}

static int open_without_boot_id(const char *path, int flags, mode_t mode)
{
    return strcmp(path, "/proc/sys/kernel/random/boot_id") == 0 ? -ENOENT : sys_real.open(path, flags, mode);
}

/* Where nobody tells one boot of the machine from another, a kill may have been a power loss. (Fails where
 * two boots that are not known are the same one.) */
static void test_a_kill_where_boots_are_not_known(void **state)
{
    struct fixture *f = *state;
    const struct sys *before = sys;
    struct sys table = *sys;
    fixture_close(f);
    table.open = open_without_boot_id;
    sys = &table;
    fixture_open(f);
    assert_int_equal(store_doubted_before_ns(f->s), 0); /* it was stopped */
    fixture_abandon(f);
    fixture_open(f);
    assert_true(store_doubted_before_ns(f->s) > 0);
    fixture_close(f);
    sys = before;
}

/* A power loss is remembered: what it brought back is there until somebody asks for it, after however many
 * clean stops. */
static void test_power_loss_is_remembered(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(store_doubted_before_ns(f->s), 0);
    fixture_abandon(f);
    fixture_open(f);
    assert_int_equal(store_doubted_before_ns(f->s), 0); /* a mere kill */
    fixture_abandon(f);
    pretend_reboot(f);
    fixture_open(f);
    uint64_t doubted_ns = store_doubted_before_ns(f->s);
    assert_true(doubted_ns > 0);
    fixture_abandon(f);
    fixture_open(f);
    assert_int_equal(store_doubted_before_ns(f->s), doubted_ns);
    fixture_close(f);
    fixture_open(f);
    assert_int_equal(store_doubted_before_ns(f->s), doubted_ns);
}

/* A machine whose clock was set back over a power loss, as without a battery: what was confirmed before is
 * still older than the doubt, and so is what is confirmed until the clock is right again. (By the clock alone
 * it is not, once that is right.) */
static void test_a_clock_that_went_back_over_a_power_loss(void **state)
{
    const uint64_t day_ns = (uint64_t)86400 * 1000000000, before_ns = 20000 * day_ns;
    struct fixture *f = *state;
    fixture_close(f);
    clock_sys_start(/* mono_ns= */ day_ns, before_ns);
    fixture_open(f);
    put(f->s, "k", 1, 100);
    assert_int_equal(store_flush(f->s, NULL), 0);
    fixture_abandon(f);
    pretend_reboot(f);
    clock_sys_set_real(day_ns);
    fixture_open(f);
    uint64_t doubted_ns = store_doubted_before_ns(f->s);
    assert_true(doubted_ns > before_ns && doubted_ns < before_ns + day_ns);
    put(f->s, "l", 2, 100);
    assert_int_equal(store_flush(f->s, NULL), 0); /* does not set the time back */
    fixture_abandon(f);
    pretend_reboot(f);
    fixture_open(f);
    assert_true(store_doubted_before_ns(f->s) >= doubted_ns);
    fixture_abandon(f);
    pretend_reboot(f);
    clock_sys_set_real(before_ns + 2 * day_ns);
    fixture_open(f);
    assert_int_equal(store_doubted_before_ns(f->s), before_ns + 2 * day_ns);
    fixture_close(f);
    clock_sys_stop();
    fixture_open(f);
}

/* When the disk reports that it lost writes, what was written since the last flush is verified before it is
 * served. */
static void test_failed_flush_is_distrusted(void **state)
{
    struct fixture *f = *state;
    char path[DISK_PATH_MAX];
    put(f->s, "old", 1, 100);
    assert_int_equal(store_flush(f->s, NULL), 0);
    put(f->s, "lost", 2, 2 * MIB);
    put(f->s, "kept", 3, 2 * MIB);
    key_path(f->s, "lost", path);
    struct extent *reader = NULL; /* in memory while it happens */
    assert_int_equal(store_find(f->s, SLICE_LIT("lost"), &reader), 0);
    fault_sys_start();
    fault_sys_arm(FAULT_SYNCFS, 1, EIO, FAULT_ONCE);
    assert_int_equal(store_flush(f->s, NULL), -EIO);
    assert_true(fault_sys_hit());
    fault_sys_disarm();
    flip_bit(path, MIB);
    assert_int_equal(check_run(reader, 2, 0, 2 * MIB), MIB);
    assert_int_equal(check_run(reader, 2, MIB, MIB), 0);
    extent_unref(reader);
    assert_int_equal(suspects(f, "old"), 0);
    assert_int_equal(store_flush(f->s, NULL), 0);
    fixture_close(f);
    fault_sys_stop();
    fixture_open(f);
    assert_int_equal(suspects(f, "kept"), 2); /* a clean stop does not make it trustworthy */
    assert_true(is_whole(f->s, "kept", 3, 2 * MIB));
    assert_false(is_whole(f->s, "lost", 2, 2 * MIB));
}

/* What the disk has below the page cache: not the bytes that were written. */
static int forget_pages(int fd, uint64_t offset, uint64_t n, int advice)
{
    assert_true(n >= MIB && advice == POSIX_FADV_DONTNEED);
    assert_int_equal(pwrite(fd, "stale", 5, (off_t)offset), 5);
    return 0;
}

/* The comparison is with the bytes of the disk: those in memory are right, and are gone when memory is short.
 * Seen to fail without forget_suspect_pages. */
static void test_lost_pages_do_not_vouch(void **state)
{
    struct fixture *f = *state;
    struct extent *x = NULL;
    put(f->s, "fine", 1, 100);
    assert_int_equal(store_flush(f->s, NULL), 0);
    put(f->s, "lost", 2, 2 * MIB);
    assert_int_equal(store_find(f->s, SLICE_LIT("lost"), &x), 0);
    fault_sys_start();
    fault_sys_arm(FAULT_SYNCFS, 1, EIO, FAULT_ONCE);
    assert_int_equal(store_flush(f->s, NULL), -EIO);
    fault_sys_disarm();
    fault_sys_stop();
    const struct sys *before = sys;
    struct sys table = *sys;
    table.fadvise = forget_pages;
    sys = &table;
    assert_int_equal(check_run(x, 2, 0, MIB), 0);
    assert_true(is_whole(f->s, "fine", 1, 100)); /* nothing is forgotten of what is not suspect */
    extent_unref(x);
    fixture_abandon(f);
    sys = before;
}

/* After an unclean stop what was verified may still have been on its way to the disk: a flush that fails then
 * takes the trust away again, of what is in memory too. */
static void test_verified_before_a_failed_flush(void **state)
{
    struct fixture *f = *state;
    char path[DISK_PATH_MAX];
    struct extent *x = NULL;
    put(f->s, "late", 2, 2 * MIB);
    kill_after_recording(f);
    fixture_open(f);
    assert_int_equal(store_find(f->s, SLICE_LIT("late"), &x), 0);
    assert_int_equal(check_run(x, 2, 0, 2 * MIB), 2 * MIB);
    assert_int_equal(suspects(f, "late"), 0);
    fault_sys_start();
    fault_sys_arm(FAULT_SYNCFS, 1, EIO, FAULT_ONCE);
    assert_int_equal(store_flush(f->s, NULL), -EIO);
    assert_true(fault_sys_hit());
    fault_sys_disarm();
    fault_sys_stop();
    extent_path(x, path);
    flip_bit(path, MIB);
    assert_int_equal(check_run(x, 2, 0, 2 * MIB), MIB);
    assert_int_equal(check_run(x, 2, MIB, MIB), 0);
    extent_unref(x);
}

static struct store *flush_on_read; /* with a flush that fails, once */

static ssize_t read_then_flush(int fd, void *p, size_t n, uint64_t offset)
{
    ssize_t got = sys_real.pread(fd, p, n, offset);
    struct store *s = TAKE_PTR(flush_on_read);
    if (s)
        assert_int_equal(store_flush(s, NULL), -EIO);
    return got;
}

static int no_syncfs(int fd)
{
    return -EIO;
}

/* The same when the flush fails between the reading of a block and its being trusted. */
static void test_flush_that_fails_while_verifying(void **state)
{
    struct fixture *f = *state;
    const struct sys *before = sys;
    struct sys table = *sys;
    struct extent *x = NULL;
    put(f->s, "late", 2, 100);
    kill_after_recording(f);
    fixture_open(f);
    put(f->s, "other", 3, 100); /* something to be flushed */
    assert_int_equal(store_find(f->s, SLICE_LIT("late"), &x), 0);
    table.pread = read_then_flush;
    table.syncfs = no_syncfs;
    flush_on_read = f->s;
    sys = &table;
    char *buf = extent_block_buffer();
    assert_int_equal(extent_verify_block(x, 0, buf, "start"), 0);
    assert_null(flush_on_read);
    sys = before;
    assert_int_equal(suspects(f, "late"), 1);
    free(buf);
    extent_unref(x);
}

/* The same for what nobody could find yet: a block that is half written meanwhile, and a staged extent. */
static void test_failed_flush_of_unfinished(void **state)
{
    struct fixture *f = *state;
    char path[DISK_PATH_MAX];
    struct store_new n = {.key = SLICE_LIT("half"), .size_bytes = 2 * MIB};
    struct store_new staged = {.key = SLICE_LIT("staged"), .size_bytes = 2 * MIB};
    struct extent *x = NULL, *y = NULL;
    _cleanup_free_ char *p = content_new(1, 0, 2 * MIB);
    put(f->s, "staged", 3, 100);
    assert_int_equal(store_create(f->s, &n, &x, NULL), 0);
    struct extent_writer *w = extent_writer_new(x, 0);
    assert_int_equal(extent_writer_append(w, p, 1000), 0);
    assert_int_equal(store_stage(f->s, staged.key, 0, &y, NULL), 0);
    assert_int_equal(extent_write(y, p, 2 * MIB, 0), 0);
    fault_sys_start();
    fault_sys_arm(FAULT_SYNCFS, 1, EIO, FAULT_ONCE);
    assert_int_equal(store_flush(f->s, NULL), -EIO);
    assert_true(fault_sys_hit());
    fault_sys_disarm();
    assert_int_equal(extent_writer_append(w, p + 1000, 2 * MIB - 1000), 0);
    extent_writer_free(w);
    extent_path(x, path);
    flip_bit(path, 500); /* what was written before the flush is lost */
    assert_int_equal(check_run(x, 1, 0, 2 * MIB), 0);
    assert_int_equal(check_run(x, 1, MIB, MIB), MIB);
    extent_unref(x);
    assert_int_equal(store_publish(f->s, y, &staged, NULL), -EIO);
    extent_unref(y);
    assert_true(is_whole(f->s, "staged", 3, 100)); /* the old one stays */
    fixture_close(f);
    fault_sys_stop();
    fixture_open(f);
    assert_false(is_whole(f->s, "half", 1, 2 * MIB));
}

/* A bit of a file is lost, which may have no name any more. */
static void flip_bit_of(struct extent *x, uint64_t offset)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", extent_use(x));
    flip_bit(path, offset);
    extent_leave(x);
}

/* So it is with what was replaced or removed, for those who still read it: what is right is served, and what
 * the disk has lost is fetched again. (Fails where only extents that have a key were looked at: the
 * lost bytes were served.) */
static void test_failed_flush_of_what_has_no_key(void **state)
{
    struct fixture *f = *state;
    static const char *const keys[] = {"large", "lost", "fine"};
    struct extent *x[3] = {NULL};
    for (size_t i = 0; i < ARRAY_SIZE(x); i++) {
        put(f->s, keys[i], i, i == 0 ? 2 * MIB : 100);
        assert_int_equal(store_find(f->s, slice_str(keys[i]), &x[i]), 0);
        if (i == 1)
            put(f->s, keys[i], 7, 100);
        else
            assert_int_equal(store_remove(f->s, slice_str(keys[i])), 0);
        assert_true(extent_is_dead(x[i]));
    }
    fault_sys_start();
    fault_sys_arm(FAULT_SYNCFS, 1, EIO, FAULT_ONCE);
    assert_int_equal(store_flush(f->s, NULL), -EIO);
    fault_sys_disarm();
    fault_sys_stop();
    flip_bit_of(x[0], MIB);
    flip_bit_of(x[1], 50);
    (void)check_run(x[0], 0, 0, 2 * MIB); /* its checksums may be gone with its records */
    assert_int_equal(extent_present_run(x[0], MIB, MIB), 0);
    assert_int_equal(extent_present_run(x[1], 0, 100), 0);
    assert_int_equal(check_run(x[2], 2, 0, 100), 100);
    assert_int_equal(fill_range(x[0], 0, MIB, MIB), 0);
    assert_int_equal(check_run(x[0], 0, MIB, MIB), MIB);
    for (size_t i = 0; i < ARRAY_SIZE(x); i++) {
        extent_check(x[i]);
        extent_unref(x[i]);
    }
    assert_int_equal(disk_status(f->s, 0).leased_bytes, 0);
}

static bool note_gone(void *arg, struct slice key)
{
    char *told = arg; /* 64 bytes */
    size_t n = strlen(told);
    (void)snprintf(told + n, 64 - n, " " SLICE_FMT, SLICE_ARG(key));
    return true;
}

/* Who has a descriptor of what was perhaps lost, as mounts keep them, is told, so that it is not used again
 * without asking; of what was flushed before nobody is. (Fails without store_tell_gone in
 * distrust_one.) */
static void test_failed_flush_is_told_to_who_keeps_files(void **state)
{
    struct fixture *f = *state;
    struct extent *x = NULL, *y = NULL;
    char told[64] = "";
    put(f->s, "safe", 1, 100);
    assert_int_equal(store_find(f->s, SLICE_LIT("safe"), &x), 0);
    assert_int_equal(store_flush(f->s, NULL), 0);
    put(f->s, "lost", 2, 100);
    put(f->s, "unused", 3, 100);
    assert_int_equal(store_find(f->s, SLICE_LIT("lost"), &y), 0);
    store_on_gone(f->s, note_gone, told);
    fault_sys_start();
    fault_sys_arm(FAULT_SYNCFS, 1, EIO, FAULT_ONCE);
    assert_int_equal(store_flush(f->s, NULL), -EIO);
    fault_sys_disarm();
    fault_sys_stop();
    store_on_gone(f->s, NULL, NULL);
    assert_string_equal(told, " lost lost"); /* before the index says so, and after */
    extent_unref(x);
    extent_unref(y);
}

/* Records that do not decode are dropped, one by one, and cost only what they named. */
static void test_damaged_records(void **state)
{
    struct fixture *f = *state;
    put(f->s, "entry", 1, 100);
    put(f->s, "chunk", 2, 3 * MIB);
    put(f->s, "fine", 3, 3 * MIB);
    kill_after_recording(f);
    fixture_open(f);
    struct extent *x = NULL;
    struct format_key k;
    assert_int_equal(store_find(f->s, SLICE_LIT("chunk"), &x), 0);
    format_key_chunk(x->id, 0, &k);
    extent_unref(x);
    struct kv_txn *t = kv_txn_new(f->s->disks[0].kv);
    kv_txn_put_plain(t, SLICE_LIT("oentry"), SLICE_LIT("not an entry record"));
    kv_txn_put_plain(t, format_key_view(&k), SLICE_LIT("not a chunk record"));
    assert_int_equal(kv_txn_commit(t, KV_VISIBLE, NULL), 0);
    kv_txn_free(t);
    fixture_abandon(f);
    fixture_open(f);
    assert_false(is_there(f->s, "entry"));
    assert_false(is_whole(f->s, "chunk", 2, 3 * MIB));
    assert_true(is_whole(f->s, "fine", 3, 3 * MIB));
    put(f->s, "entry", 4, 200);
    fixture_close(f);
    fixture_open(f);
    assert_true(is_whole(f->s, "entry", 4, 200));
}

/* A damaged record that two have seen is deleted once: what is there by then stays. */
static void test_a_damaged_record_is_replaced(void **state)
{
    struct fixture *f = *state;
    struct disk *d = &f->s->disks[0];
    struct kv_txn *t = kv_txn_new(d->kv);
    kv_txn_put_plain(t, SLICE_LIT("oentry"), SLICE_LIT("not an entry record"));
    assert_int_equal(kv_txn_commit(t, KV_VISIBLE, NULL), 0);
    kv_txn_free(t);
    put(f->s, "entry", 4, 200);
    writer_drain(d);
    doom_bad_record(d, SLICE_LIT("oentry")); /* by who read it before */
    kill_after_recording(f);
    fixture_open(f);
    assert_true(is_whole(f->s, "entry", 4, 200));
    assert_int_equal(disk_status(f->s, 0).used_bytes, 4096);
}

/* A start that fails because of one disk leaves the others as they were: neither verified nor doubted at the
 * next one, also when the machine was started anew in between. */
static void test_a_start_that_fails(void **state)
{
    struct fixture two;
    (void)state;
    fixture_init(&two, 2, 64 * MIB);
    fixture_open(&two);
    fixture_close(&two);
    char *path = tmpdir_path(two.disks[1], "forebay-disk"), *text = NULL;
    size_t n = 0;
    assert_int_equal(sys_read_file(path, 4096, &text, &n), 0);
    assert_int_equal(sys_write_file_atomic(path, "?", 1, 0600), 0);
    assert_int_equal(fixture_try_open(&two), -EBADMSG);
    pretend_reboot(&two);
    assert_int_equal(sys_write_file_atomic(path, text, n, 0600), 0);
    fixture_open(&two);
    assert_true(disk_status(two.s, 0).was_clean && disk_status(two.s, 1).was_clean);
    assert_int_equal(store_doubted_before_ns(two.s), 0);
    /* Nor does it make good what a kill has left. */
    put(two.s, "k", 1, 100);
    fixture_abandon(&two);
    assert_int_equal(sys_write_file_atomic(path, "?", 1, 0600), 0);
    assert_int_equal(fixture_try_open(&two), -EBADMSG);
    assert_int_equal(sys_write_file_atomic(path, text, n, 0600), 0);
    fixture_open(&two);
    assert_false(disk_status(two.s, 0).was_clean);
    free(text);
    free(path);
    fixture_fini(&two);
}

/* The process is killed in the middle of fills: what is there afterwards is right, and the rest can be
 * filled. */
static void test_kill_during_fills(void **state)
{
    struct fixture *f = *state;
    for (int round = 0; round < 10; round++) {
        char key[16];
        (void)snprintf(key, sizeof(key), "k%d", round);
        struct store_new n = {.key = slice_str(key), .attr = SLICE_LIT("attr"), .size_bytes = 5 * MIB};
        struct extent *x = NULL;
        assert_int_equal(store_create(f->s, &n, &x, NULL), 0);
        assert_int_equal(fill_range(x, (uint64_t)round, 0, (size_t)round * 500000), 0);
        if (round % 2)
            writer_drain(&f->s->disks[0]);
        extent_unref(x);
        fixture_abandon(f);
        fixture_open(f);
        if (store_find(f->s, slice_str(key), &x) == 0) {
            uint64_t at = 0, len = 0;
            while (extent_next_missing(x, 0, &at, &len) == 0)
                assert_int_equal(fill_range(x, (uint64_t)round, at, len), 0);
            extent_unref(x);
            assert_true(is_whole(f->s, key, (uint64_t)round, 5 * MIB));
        } else {
            assert_int_equal(round % 2, 0);
        }
    }
}

#define TEST(t) cmocka_unit_test_setup_teardown(t, setup, teardown)

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        TEST(test_kill_keeps_what_was_recorded),
        TEST(test_flushed_blocks_are_trusted),
        TEST(test_two_kills_in_a_row),
        TEST(test_flipped_bit_is_never_served),
        TEST(test_missing_and_short_files),
        TEST(test_file_without_what_was_never_there),
        TEST(test_unfinished_files_are_removed),
        TEST(test_markers_are_made_ahead),
        TEST(test_a_file_made_in_vain),
        TEST(test_orphans_after_power_loss),
        TEST(test_walk_is_taken_up_again),
        TEST(test_walk_of_what_cannot_be_listed),
        TEST(test_a_disk_that_was_away_is_doubted),
        TEST(test_a_clock_that_went_back_over_a_power_loss),
        TEST(test_power_loss_is_remembered),
        TEST(test_a_kill_where_boots_are_not_known),
        TEST(test_failed_flush_is_distrusted),
        TEST(test_lost_pages_do_not_vouch),
        TEST(test_verified_before_a_failed_flush),
        TEST(test_flush_that_fails_while_verifying),
        TEST(test_failed_flush_of_unfinished),
        TEST(test_failed_flush_of_what_has_no_key),
        TEST(test_failed_flush_is_told_to_who_keeps_files),
        TEST(test_damaged_records),
        TEST(test_a_damaged_record_is_replaced),
        TEST(test_a_start_that_fails),
        TEST(test_kill_during_fills),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
