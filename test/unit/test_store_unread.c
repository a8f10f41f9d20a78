/* layer: store */
/* threaded */
/*
 * An index that cannot be read, or takes nothing, for a moment: that is no answer, and nothing is forgotten
 * for it.
 */
#include "test_store_common.h"
#include "test_store_kv.h"

#include "base/log.h"
#include "support/clock_sys.h"
#include "support/fault_sys.h"

static bool index_has(const char *key)
{
    return kv_get(testkv_disks[0].inner, slice_str(key), NULL, NULL, NULL) == 0;
}

static bool is_unread(struct disk *d)
{
    LOCK_SCOPE(&d->lock);
    return d->unread;
}

static uint64_t counted_extents(struct disk *d)
{
    LOCK_SCOPE(&d->lock);
    return d->count.extents;
}

static uint64_t rounds_of(struct disk *d)
{
    LOCK_SCOPE(&d->lock);
    return d->rounds;
}

static size_t last_commit_ops(void)
{
    const struct testkv_commit *c = testkv_disks[0].first;
    while (c->next)
        c = c->next;
    return c->n_ops;
}

static uint64_t bad_blocks(const struct fixture *f, const char *found)
{
    return metrics_value(metrics_series(METRIC_CORRUPT_BLOCKS, f->disks[0], found, NULL));
}

/* A chunk record that cannot be read when there is news of its blocks is changed later, with all that it
 * says; what else is to be recorded does not wait for that. (Fails where what could not be read was
 * taken for none: the checksums of all other blocks were gone.) */
static void test_checksums_outlive_a_record_that_cannot_be_read(void **state)
{
    struct fixture f;
    struct extent *x = NULL, *y = NULL;
    struct store_new n = {.key = SLICE_LIT("k"), .size_bytes = 3 * MIB};
    struct store_new other = {.key = SLICE_LIT("other"), .size_bytes = 100};
    struct format_entry r;
    struct buf _cleanup_buf_ b = BUF_INIT(64 * KIB);
    fixture_init(&f, 1, 64 * MIB);
    testkv_use();
    fixture_open(&f);
    struct disk *d = &f.s->disks[0];
    assert_int_equal(store_create(f.s, &n, &x, NULL), 0);
    assert_int_equal(fill_range(x, 1, 0, MIB), 0);
    assert_int_equal(store_create(f.s, &other, &y, NULL), 0);
    writer_drain(d);
    testkv_unreadable = &testkv_disks[0];
    assert_int_equal(fill_range(x, 1, MIB, 2 * MIB), 0);
    assert_int_equal(fill_range(y, 2, 0, 100), 0);
    writer_drain(d);
    assert_true(is_unread(d));
    for (int i = 0; i < 100; i++) /* also while the next round is at it */
        assert_int_equal(extent_record_attr(x), -EIO);
    assert_int_equal(extent_record_attr(y), 0);
    assert_int_equal(kv_get(testkv_disks[0].inner, SLICE_LIT("oother"), &b, NULL, NULL), 0);
    assert_int_equal(format_entry_decode(buf_view(&b), &r), 0);
    assert_int_equal(r.present_blocks, 1);
    buf_clear(&b);
    assert_int_equal(kv_get(testkv_disks[0].inner, SLICE_LIT("ok"), &b, NULL, NULL), 0);
    assert_int_equal(format_entry_decode(buf_view(&b), &r), 0);
    assert_int_equal(r.present_blocks, 1); /* of three nothing is said while their checksums are not there */
    testkv_unreadable = NULL;
    writer_drain(d);
    assert_false(is_unread(d));
    extent_unref(x);
    extent_unref(y);
    fixture_abandon(&f);
    fixture_open(&f);
    assert_true(is_whole(f.s, "k", 1, 3 * MIB));
    assert_true(is_whole(f.s, "other", 2, 100));
    assert_int_equal(disk_status(f.s, 0).used_bytes, 3 * MIB + 4096);
    fixture_fini(&f);
    testkv_reset();
}

/* The deletion of an entry that cannot be read waits, and that of its chunks with it. (Fails where it
 * was left out: the entry came back, whole and without checksums.) */
static void test_a_removal_waits_for_a_record_that_cannot_be_read(void **state)
{
    struct fixture f;
    fixture_init(&f, 1, 64 * MIB);
    testkv_use();
    fixture_open(&f);
    struct disk *d = &f.s->disks[0];
    put(f.s, "k", 1, 3 * MIB);
    writer_drain(d);
    hold_writer(d, true);
    assert_int_equal(store_remove(f.s, SLICE_LIT("k")), 0);
    lock_take(&d->lock);
    uint64_t queued = d->queued;
    lock_drop(&d->lock);
    testkv_unreadable = &testkv_disks[0];
    hold_writer(d, false);
    writer_drain(d);
    assert_true(is_unread(d) && index_has("ok"));
    lock_take(&d->lock);
    assert_true(d->recorded < queued);
    lock_drop(&d->lock);
    assert_int_equal(count_chunks(f.s), 1);
    testkv_unreadable = NULL;
    assert_false(is_there(f.s, "k"));
    writer_drain(d);
    assert_false(is_unread(d) || index_has("ok"));
    assert_int_equal(count_chunks(f.s), 0);
    assert_int_equal(counted_extents(d), 0);
    fixture_fini(&f);
    testkv_reset();
}

/* Nor does a new entry come in the place of one that cannot be read without that being taken off the counts.
 * (Without discount_former the bytes of the former one counted for ever.) */
static void test_a_replacement_of_a_record_that_cannot_be_read(void **state)
{
    struct fixture f;
    fixture_init(&f, 1, 64 * MIB);
    testkv_use();
    fixture_open(&f);
    struct disk *d = &f.s->disks[0];
    put(f.s, "k", 1, 3 * MIB);
    writer_drain(d);
    hold_writer(d, true);
    put(f.s, "k", 2, 100);
    testkv_unreadable = &testkv_disks[0];
    hold_writer(d, false);
    writer_drain(d);
    assert_true(is_unread(d));
    testkv_unreadable = NULL;
    writer_drain(d);
    assert_false(is_unread(d));
    assert_int_equal(counted_extents(d), 1);
    assert_int_equal(count_chunks(f.s), 0);
    fixture_abandon(&f);
    fixture_open(&f);
    assert_true(is_whole(f.s, "k", 2, 100));
    assert_int_equal(disk_status(f.s, 0).used_bytes, 4096);
    fixture_fini(&f);
    testkv_reset();
}

static struct {
    struct store *s;
    struct extent *x;    /* staged; NULL: it was published */
    struct extent *next; /* likewise, of 100 bytes */
    uint64_t x_bytes;
    bool is_at_it;
} publishing;

static void publish(struct extent *x, uint64_t size_bytes)
{
    const struct store_new n = {.key = SLICE_LIT("k"), .size_bytes = size_bytes};
    assert_int_equal(store_publish(publishing.s, x, &n, NULL), 0);
    extent_unref(x);
}

/* When the writer, which has begun a round, reads a chunk record; and the next one when it has that in the
 * group, and looks for the entry of before. */
static bool publish_now(struct slice key)
{
    if (publishing.is_at_it)
        return false;
    publishing.is_at_it = true;
    if (publishing.x && key.p[0] == 'c')
        publish(TAKE_PTR(publishing.x), publishing.x_bytes);
    else if (!publishing.x && publishing.next && slice_eq_str(key, "ok"))
        publish(TAKE_PTR(publishing.next), 100);
    publishing.is_at_it = false;
    return false;
}

/* The same where all can be read, and the new entry is of a staged extent that is published while the writer
 * has it in its round already: the deletion of the former one is of the next round. (Without any_doomed_waits
 * the former one counts for ever.) */
static void test_a_replacement_that_is_published_during_a_round(void **state)
{
    struct fixture f;
    struct extent *y = NULL;
    struct store_new n = {.key = SLICE_LIT("y"), .size_bytes = 3 * MIB};
    _cleanup_free_ char *p = content_new(2, 0, 100);
    fixture_init(&f, 1, 64 * MIB);
    testkv_use();
    fixture_open(&f);
    struct disk *d = &f.s->disks[0];
    put(f.s, "k", 1, 3 * MIB);
    assert_int_equal(store_create(f.s, &n, &y, NULL), 0);
    assert_int_equal(fill_range(y, 3, 0, MIB), 0);
    publishing.s = f.s;
    publishing.x_bytes = 100;
    assert_int_equal(store_stage(f.s, SLICE_LIT("k"), 0, &publishing.x, NULL), 0);
    assert_int_equal(extent_write(publishing.x, p, 100, 0), 0);
    writer_drain(d);
    hold_writer(d, true);
    assert_int_equal(fill_range(y, 3, MIB, 2 * MIB), 0);
    writer_queue(publishing.x); /* behind the other one, as when it has many blocks */
    testkv_get_fails = publish_now;
    hold_writer(d, false);
    writer_drain(d);
    testkv_get_fails = NULL;
    assert_null(publishing.x);
    writer_drain(d);
    assert_int_equal(counted_extents(d), 2);
    assert_int_equal(count_chunks(f.s), 1);
    extent_unref(y);
    fixture_abandon(&f);
    fixture_open(&f);
    assert_true(is_whole(f.s, "k", 2, 100));
    assert_int_equal(disk_status(f.s, 0).used_bytes, 3 * MIB + 4096);
    fixture_fini(&f);
    testkv_reset();
}

/* Nor is the former one taken off twice when the new one is itself replaced by such an extent before the
 * commit. (Without commit_former the bytes of the one in between counted for ever, and those of the former
 * one were taken off once too often.) */
static void test_two_replacements_that_are_published_during_a_round(void **state)
{
    struct fixture f;
    struct extent *y = NULL;
    struct store_new n = {.key = SLICE_LIT("y"), .size_bytes = 3 * MIB};
    _cleanup_free_ char *p = content_new(2, 0, MIB), *q = content_new(4, 0, 100);
    fixture_init(&f, 1, 64 * MIB);
    testkv_use();
    fixture_open(&f);
    struct disk *d = &f.s->disks[0];
    put(f.s, "k", 1, 3 * MIB);
    assert_int_equal(store_create(f.s, &n, &y, NULL), 0);
    assert_int_equal(fill_range(y, 3, 0, MIB), 0);
    publishing.s = f.s;
    publishing.x_bytes = MIB;
    assert_int_equal(store_stage(f.s, SLICE_LIT("k"), 0, &publishing.x, NULL), 0);
    assert_int_equal(extent_write(publishing.x, p, MIB, 0), 0);
    assert_int_equal(store_stage(f.s, SLICE_LIT("k"), 0, &publishing.next, NULL), 0);
    assert_int_equal(extent_write(publishing.next, q, 100, 0), 0);
    writer_drain(d);
    hold_writer(d, true);
    assert_int_equal(fill_range(y, 3, MIB, 2 * MIB), 0);
    writer_queue(publishing.x);
    writer_queue(publishing.next);
    testkv_get_fails = publish_now;
    hold_writer(d, false);
    writer_drain(d);
    testkv_get_fails = NULL;
    assert_true(!publishing.x && !publishing.next);
    writer_drain(d);
    assert_int_equal(counted_extents(d), 2);
    assert_int_equal(count_chunks(f.s), 1);
    extent_unref(y);
    fixture_abandon(&f);
    fixture_open(&f);
    assert_true(is_whole(f.s, "k", 4, 100));
    assert_int_equal(disk_status(f.s, 0).used_bytes, 3 * MIB + 4096);
    fixture_fini(&f);
    testkv_reset();
}

/* A record that somebody could not decode, and that another one has replaced since, is not deleted because it
 * cannot be read. (Fails: the entry that was there by then was gone.) */
static void test_a_record_that_cannot_be_read_is_not_damaged(void **state)
{
    struct fixture f;
    fixture_init(&f, 1, 64 * MIB);
    testkv_use();
    fixture_open(&f);
    struct disk *d = &f.s->disks[0];
    put(f.s, "k", 1, 100);
    writer_drain(d);
    testkv_unreadable = &testkv_disks[0];
    doom_bad_record(d, SLICE_LIT("ok"));
    writer_drain(d);
    testkv_unreadable = NULL;
    writer_drain(d);
    fixture_abandon(&f);
    fixture_open(&f);
    assert_true(is_whole(f.s, "k", 1, 100));
    fixture_fini(&f);
    testkv_reset();
}

/* A node whose index cannot be read at its end stops, and the next start ends what waited. */
static void test_a_stop_while_the_index_cannot_be_read(void **state)
{
    struct fixture f;
    fixture_init(&f, 1, 64 * MIB);
    testkv_use();
    fixture_open(&f);
    struct disk *d = &f.s->disks[0];
    put(f.s, "k", 1, 3 * MIB);
    put(f.s, "gone", 2, 3 * MIB);
    writer_drain(d);
    hold_writer(d, true);
    assert_int_equal(store_remove(f.s, SLICE_LIT("gone")), 0);
    testkv_unreadable = &testkv_disks[0];
    hold_writer(d, false);
    fixture_close(&f);
    testkv_unreadable = NULL;
    fixture_open(&f);
    assert_false(disk_status(f.s, 0).was_clean);
    assert_false(index_has("ogone"));
    assert_true(is_whole(f.s, "k", 1, 3 * MIB));
    assert_int_equal(disk_status(f.s, 0).used_bytes, 3 * MIB);
    fixture_fini(&f);
    testkv_reset();
}

/* The writer waits between rounds that come to nothing for want of a record, however much there is to record,
 * and nobody who fills waits for it. (Meant to spin without d->unread in wait_for_work_locked, and to hang
 * without it in writer_throttle.) */
static void test_fills_go_on_while_the_index_cannot_be_read(void **state)
{
    struct fixture f;
    struct extent *x = NULL;
    struct store_new n = {.key = SLICE_LIT("k"), .size_bytes = 3 * MIB};
    fixture_init(&f, 1, 64 * MIB);
    testkv_use();
    fixture_open(&f);
    struct disk *d = &f.s->disks[0];
    assert_int_equal(store_create(f.s, &n, &x, NULL), 0);
    assert_int_equal(fill_range(x, 1, 0, MIB), 0);
    writer_drain(d);
    testkv_unreadable = &testkv_disks[0];
    assert_int_equal(fill_range(x, 1, MIB, MIB), 0);
    writer_drain(d);
    assert_true(is_unread(d));
    writer_pending(d, PENDING_BLOCKS_MAX + 1); /* as if so many were to be recorded */
    uint64_t rounds = rounds_of(d), began_ms = sys_mono_ms();
    sys->sleep_ns(300000000);
    rounds = rounds_of(d) - rounds;
    assert_true(rounds <= (sys_mono_ms() - began_ms) / 20); /* it looks every 100 ms */
    assert_int_equal(fill_range(x, 1, 2 * MIB, MIB), 0);
    writer_pending(d, -(int64_t)(PENDING_BLOCKS_MAX + 1));
    extent_unref(x);
    testkv_unreadable = NULL;
    writer_drain(d);
    fixture_abandon(&f);
    fixture_open(&f);
    assert_true(is_whole(f.s, "k", 1, 3 * MIB));
    fixture_fini(&f);
    testkv_reset();
}

static bool is_of_a_later_chunk(struct slice key)
{
    static const char first[4];
    return key.p[0] == 'c' && memcmp(key.p + key.n - sizeof(first), first, sizeof(first)) != 0;
}

/* What a round had made of a file whose records it cannot all read is not kept for the next one: the commit
 * after many of them is as small as after one. (Meant to fail without kv_txn_clear in group_commit.) */
static void test_rounds_that_come_to_nothing_leave_nothing(void **state)
{
    struct fixture f;
    struct extent *x = NULL;
    struct store_new n = {.key = SLICE_LIT("k"), .size_bytes = 4096 * GIB};
    fixture_init(&f, 1, GIB);
    testkv_use();
    fixture_open(&f);
    struct disk *d = &f.s->disks[0];
    assert_int_equal(store_create(f.s, &n, &x, NULL), 0);
    assert_int_equal(fill_range(x, 1, 0, MIB), 0);
    assert_int_equal(fill_range(x, 1, 2000 * GIB, MIB), 0);
    writer_drain(d);
    testkv_get_fails = is_of_a_later_chunk;
    assert_int_equal(fill_range(x, 1, MIB, MIB), 0);
    assert_int_equal(fill_range(x, 1, 2000 * GIB + MIB, MIB), 0);
    for (int i = 0; i < 20; i++)
        writer_drain(d);
    assert_true(is_unread(d));
    testkv_get_fails = NULL;
    writer_drain(d);
    assert_false(is_unread(d));
    assert_true(last_commit_ops() < 10);
    extent_unref(x);
    fixture_fini(&f);
    testkv_reset();
}

/* A checksum that the index does not tell for a moment costs no block; one that it does not tell at all the
 * block, which is fetched again. (Fails where the block was dropped at once.) */
static void test_verifying_while_the_index_cannot_be_read(void **state)
{
    struct fixture f;
    struct extent *x = NULL;
    char p[100];
    clock_sys_start(1000000000, (uint64_t)1700000000 * 1000000000);
    fixture_init(&f, 1, 64 * MIB);
    testkv_use();
    fixture_open(&f);
    put(f.s, "k", 1, 3 * MIB);
    writer_drain(&f.s->disks[0]);
    fixture_abandon(&f);
    fixture_open(&f);
    assert_int_equal(store_find(f.s, SLICE_LIT("k"), &x), 0);
    uint64_t before = bad_blocks(&f, "unread");
    testkv_fail_gets(0, 3);
    assert_int_equal(check_run(x, 1, 0, 2 * MIB), 2 * MIB);
    testkv_fail_gets(0, 3);
    assert_int_equal(extent_read_verified(x, p, sizeof(p), 5), sizeof(p));
    assert_true(content_is(p, 1, 5, sizeof(p)));
    assert_int_equal(bad_blocks(&f, "unread"), before);
    testkv_unreadable = &testkv_disks[0];
    assert_int_equal(check_run(x, 1, 2 * MIB, MIB), 0);
    testkv_unreadable = NULL;
    assert_int_equal(bad_blocks(&f, "unread"), before + 1);
    assert_int_equal(fill_range(x, 1, 2 * MIB, MIB), 0);
    extent_unref(x);
    assert_true(is_whole(f.s, "k", 1, 3 * MIB));
    fixture_fini(&f);
    clock_sys_stop();
    testkv_reset();
}

/* A file that nothing names, beside that one. */
static void make_orphan(const char *beside, char ret[DISK_PATH_MAX])
{
    const char *slash = strrchr(beside, '/');
    (void)snprintf(ret, DISK_PATH_MAX, "%.*s/%.2s000000000000000000000000000000", (int)(slash - beside),
                   beside, slash + 1);
    int fd = open(ret, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(close(fd), 0);
}

/* An entry whose record is gone, as when it was damaged and dropped, and a file beside its own that nothing
 * names. */
static void make_lost(struct fixture *f, const char *key, char ret_lost[DISK_PATH_MAX],
                      char ret_orphan[DISK_PATH_MAX])
{
    struct format_key k;
    put(f->s, key, 2, 2 * MIB);
    key_path(f->s, key, ret_lost);
    make_orphan(ret_lost, ret_orphan);
    writer_drain(&f->s->disks[0]);
    struct kv_txn *t = kv_txn_new(f->s->disks[0].kv);
    format_key_bytes('o', slice_str(key), &k);
    kv_txn_delete(t, format_key_view(&k));
    assert_int_equal(kv_txn_commit(t, KV_VISIBLE, NULL), 0);
    kv_txn_free(t);
    fixture_abandon(f);
    fixture_open(f);
}

static bool note_problem(const struct store_check_report *so_far, const char *problem, void *arg)
{
    (void)so_far;
    *(unsigned *)arg += problem != NULL;
    return true;
}

/* Whichever look into the index fails, a check says that it could not look, and has called no block bad and
 * no file missing. (Meant to fail without `code` in store_check.c, and where is_named in store_recover.c took
 * an error for a name, for either look of walk_file.) */
static void test_a_check_while_the_index_cannot_be_read(void **state)
{
    struct fixture f;
    struct store_check_report report;
    struct err e = {0};
    char lost[DISK_PATH_MAX], orphan[DISK_PATH_MAX];
    fixture_init(&f, 1, 64 * MIB);
    testkv_use();
    fixture_open(&f);
    put(f.s, "k", 1, 3 * MIB);
    make_lost(&f, "lost", lost, orphan);
    uint64_t n = 0;
    for (bool hit = true; hit; n++) {
        uint64_t before = testkv_gets;
        testkv_fail_gets(n, 1);
        unsigned problems = 0;
        int r = store_check(f.s, false, note_problem, &problems, &report, &e);
        hit = testkv_gets > before + n;
        assert_int_equal(r, hit ? -EIO : 0);
        assert_true(hit ? problems == 0 : problems == 1 && report.orphan_files == 2);
    }
    assert_true(n > 10);
    fixture_fini(&f);
    testkv_reset();
}

/* Of the looks into the index that are about one file the nth from now fails. */
static struct {
    struct id128 id;
    char key[16];
    _Atomic uint64_t nth;
} one_file;

static bool is_nth_of_one_file(struct slice key)
{
    bool is_its = slice_eq_str(slice_from(key, 1), one_file.key) ||
                  (key.n > sizeof(one_file.id) && memcmp(key.p + 1, &one_file.id, sizeof(one_file.id)) == 0);
    return is_its && one_file.nth > 0 && --one_file.nth == 0;
}

static void fail_look_for(const char *path, uint64_t nth)
{
    assert_int_equal(id_parse(slice_str(strrchr(path, '/') + 1), &one_file.id), 0);
    one_file.nth = nth;
    testkv_get_fails = is_nth_of_one_file;
}

/* The walk over files without entries sees to what it can, and ends with an error where it could not look,
 * into the index or at a file: the next start walks again. (Meant to fail where drop_lost or walk_file passed
 * over an error, and where walk_directory ended at one.) */
static void test_a_walk_while_the_index_cannot_be_read(void **state)
{
    struct fixture f;
    char paths[2][DISK_PATH_MAX]; /* one is lost, the other an orphan */
    uint64_t files = 0, bytes = 0, n;
    fault_sys_start(); /* before there are threads of a store */
    fixture_init(&f, 1, 64 * MIB);
    testkv_use();
    fixture_open(&f);
    put(f.s, "k", 1, 3 * MIB);
    for (int k = 0; k < 2; k++) {
        bool hit = true;
        for (n = 1; hit; n++) {
            (void)snprintf(one_file.key, sizeof(one_file.key), "lost%d.%d", k, (int)n);
            make_lost(&f, one_file.key, paths[0], paths[1]);
            if (k == 1)
                one_file.key[0] = '\0';
            fail_look_for(paths[k], n);
            int r = recover_orphans(&f.s->disks[0], /* repair= */ true, &files, &bytes);
            hit = one_file.nth == 0;
            testkv_get_fails = NULL;
            assert_int_equal(r, hit ? -EIO : 0);
            assert_int_equal(access(paths[k], F_OK), hit ? 0 : -1);
            assert_int_equal(access(paths[!k], F_OK), -1);
        }
        assert_int_equal(n - 2,
                         k == 0 ? 9 : 4); /* looks at the lost one: three times three, at the orphan two */
    }
    make_lost(&f, "lost", paths[0], paths[1]);
    for (n = 1; n <= 3; n++) {
        fault_sys_arm(FAULT_STAT, n, EIO, FAULT_ONCE);
        int r = recover_orphans(&f.s->disks[0], /* repair= */ false, &files, &bytes);
        assert_int_equal(r, n < 3 ? -EIO : 0);
        assert_int_equal(fault_sys_hit(), n < 3);
        fault_sys_disarm();
    }
    assert_true(is_whole(f.s, "k", 1, 3 * MIB));
    fixture_fini(&f);
    fault_sys_stop();
    testkv_reset();
}

static void read_all(struct store *s, int n)
{
    for (int k = 0; k < n; k++) {
        char key[16];
        (void)snprintf(key, sizeof(key), "k%d", k);
        struct extent *_cleanup_(extent_unrefp) x = NULL;
        assert_int_equal(store_find(s, slice_str(key), &x), 0);
        extent_touch(x, 100);
    }
}

/* The index refuses commits for as long as the node runs: what is read meanwhile does not stay in memory
 * until its times of reading are recorded, and the node can be stopped. (Without writer_records the extents
 * that wait grow with what is read, and in store_close letting go of one takes up the next, without end.) */
static void test_reads_while_the_index_refuses(void **state)
{
    enum { READ = 600 };
    struct fixture f;
    clock_sys_start(1000000000, (uint64_t)1700000000 * 1000000000);
    fixture_init(&f, 1, 64 * MIB);
    f.config.memory_bytes = 64 * KIB; /* one extent in each shard is too much */
    testkv_use();
    fixture_open(&f);
    for (int k = 0; k < READ; k++) {
        char key[16];
        (void)snprintf(key, sizeof(key), "k%d", k);
        put(f.s, key, 1, 100);
    }
    writer_drain(&f.s->disks[0]);
    testkv_fail_at = 1;
    clock_sys_advance((uint64_t)120 * 1000000000);
    read_all(f.s, 1);
    writer_drain(&f.s->disks[0]);
    assert_true(writer_is_broken(&f.s->disks[0]));
    read_all(f.s, READ);
    lock_take(&f.s->disks[0].lock);
    size_t waiting = f.s->disks[0].n_dirty;
    lock_drop(&f.s->disks[0].lock);
    assert_true(waiting <= 1);
    struct extent *x = NULL;
    assert_int_equal(store_find(f.s, SLICE_LIT("k1"), &x), 0);
    assert_int_equal(extent_set_attr(x, SLICE_LIT("other")), -EIO);
    extent_unref(x);
    fixture_close(&f);
    clock_sys_stop();
    fixture_fini(&f);
    testkv_reset();
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    fixture_skip_syncs();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checksums_outlive_a_record_that_cannot_be_read),
        cmocka_unit_test(test_a_removal_waits_for_a_record_that_cannot_be_read),
        cmocka_unit_test(test_a_replacement_of_a_record_that_cannot_be_read),
        cmocka_unit_test(test_a_replacement_that_is_published_during_a_round),
        cmocka_unit_test(test_two_replacements_that_are_published_during_a_round),
        cmocka_unit_test(test_a_record_that_cannot_be_read_is_not_damaged),
        cmocka_unit_test(test_a_stop_while_the_index_cannot_be_read),
        cmocka_unit_test(test_fills_go_on_while_the_index_cannot_be_read),
        cmocka_unit_test(test_rounds_that_come_to_nothing_leave_nothing),
        cmocka_unit_test(test_verifying_while_the_index_cannot_be_read),
        cmocka_unit_test(test_a_check_while_the_index_cannot_be_read),
        cmocka_unit_test(test_a_walk_while_the_index_cannot_be_read),
        cmocka_unit_test(test_reads_while_the_index_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
