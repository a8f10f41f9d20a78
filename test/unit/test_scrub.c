/* layer: object */
/* The scrub: steps over what a disk has, which find what rotted, go on where they were, and wait for others.
 */
#include "object/scrub.h"

#include "base/sys.h"
#include "support/fault_sys.h"
#include "test_hard_common.h"

#include <errno.h>

struct pass {
    uint64_t left;                 /* blocks that may still be begun */
    uint64_t asked;                /* blocks that were */
    unsigned told;                 /* extents with something wrong */
    void (*first)(struct store *); /* before the first block, behind the page; or NULL */
    struct store *store;
};

static bool before(void *arg, uint64_t bytes)
{
    struct pass *p = arg;
    assert_true(bytes > 0 && bytes <= STORE_BLOCK_BYTES);
    if (p->left == 0)
        return false;
    if (p->first && p->asked == 0)
        p->first(p->store);
    p->left--;
    p->asked++;
    return true;
}

static bool on_extent(const struct store_check_report *so_far, const char *problem, void *arg)
{
    struct pass *p = arg;
    (void)so_far;
    p->told += problem != NULL;
    return true;
}

static int step(struct fixture *f, struct buf *at, struct pass *p, struct store_check_report *sum)
{
    struct err e = {0};
    int r = store_scrub(f->s, 0, at, before, on_extent, p, sum, &e);
    if (r < 0 && r != -ENOENT && r != -EINVAL)
        fail_msg("%s", e.text);
    return r;
}

static int setup(void **state)
{
    static struct fixture f;
    fixture_init(&f, 1, 0);
    fixture_open(&f);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    fixture_fini(*state);
    return 0;
}

/* Nobody goes behind the scrub: it waits while something runs, and once more when something has begun, and
 * ended, since it looked. */
static void test_who_goes_first(void **state)
{
    (void)state;
    static const struct {
        uint64_t running, begun;
        bool waits;
    } looks[] = {{0, 0, false}, {1, 1, true}, {1, 1, true},  {0, 1, false}, {0, 5, true},
                 {0, 5, false}, {3, 8, true}, {0, 8, false}, {0, 9, true}};
    uint64_t seen = 0;
    for (size_t i = 0; i < ARRAY_SIZE(looks); i++)
        assert_int_equal(scrub_must_wait(looks[i].running, looks[i].begun, &seen), looks[i].waits);
}

/* A pass a day: one that was not finished goes on, one that was rests until a day after it began. */
static void test_a_pass_a_day(void **state)
{
    (void)state;
    const uint64_t hour_ns = (uint64_t)3600 * 1000000000, at = 1000 * hour_ns;
    assert_int_equal(scrub_due(0, 0, at), SCRUB_BEGIN);
    assert_int_equal(scrub_due(at, 0, at + 1), SCRUB_GO_ON);
    assert_int_equal(scrub_due(at, 0, at + 100 * hour_ns), SCRUB_GO_ON);
    assert_int_equal(scrub_due(at, at + hour_ns, at + 2 * hour_ns), SCRUB_REST);
    assert_int_equal(scrub_due(at, at + hour_ns, at + 24 * hour_ns - 1), SCRUB_REST);
    assert_int_equal(scrub_due(at, at + hour_ns, at + 24 * hour_ns), SCRUB_BEGIN);
    assert_int_equal(scrub_due(at, at + hour_ns, at - hour_ns), SCRUB_BEGIN);
}

/* A bad block of an entry is dropped, and none but that; one of a hard extent is told at each pass, and
 * stays. */
static void test_flipped_bytes_are_found(void **state)
{
    struct fixture *f = *state;
    struct location l;
    char path[DISK_PATH_MAX];
    for (unsigned i = 0; i < 5; i++)
        put(f->s, (const char *[]){"a", "b", "c", "d", "e"}[i], i, 3 * MIB + 7);
    struct hard *h = take(f->s, &l);
    assert_int_equal(hard_put(h, 7, 0, 2 * MIB), 0);
    assert_int_equal(measure_and_settle(f->s, h), 0);
    writer_drain(&f->s->disks[0]);
    key_path(f->s, "c", path);
    flip_bit(path, MIB + 1);
    hard_path(h->disk, h->id, path);
    flip_bit(path, 5);
    _cleanup_buf_ struct buf at = BUF_INIT(64 * KIB);
    struct pass p = {.left = UINT64_MAX};
    for (unsigned round = 0; round < 2; round++) {
        struct store_check_report sum = {0};
        int r;
        while ((r = step(f, &at, &p, &sum)) == 0)
            ;
        assert_int_equal(r, -ENOENT);
        assert_int_equal(at.n, 0);
        assert_int_equal(sum.bad_blocks, round == 0);
        assert_int_equal(sum.hard_bad, 1);
        assert_int_equal(sum.blocks + sum.hard_blocks, round == 0 ? 22 : 21);
        assert_int_equal(p.told, round == 0 ? 2 : 3);
    }
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(is_whole(f->s, (const char *[]){"a", "b", "c", "d", "e"}[i], i, 3 * MIB + 7),
                         i != 2);
    struct extent *_cleanup_(extent_unrefp) x = NULL;
    assert_int_equal(store_find(f->s, SLICE_LIT("c"), &x), 0);
    assert_int_equal(extent_present_bytes(x), 2 * MIB + 7);
    hard_unref(h);
}

/* Steps that may begin n blocks each, and stores that are opened anew between them, reach the end for every n
 * that an extent has room for, and each extent is read. */
static void test_steps_go_on_where_they_were(void **state)
{
    struct fixture *f = *state;
    struct location l[3];
    for (unsigned i = 0; i < 6; i++)
        put(f->s, (const char *[]){"a", "b", "c", "d", "e", "f"}[i], i, 2 * MIB);
    for (unsigned i = 0; i < ARRAY_SIZE(l); i++) {
        struct hard *h = take(f->s, &l[i]);
        assert_int_equal(hard_put(h, i, 0, 2 * MIB), 0);
        assert_int_equal(measure_and_settle(f->s, h), 0);
        hard_unref(h);
    }
    writer_drain(&f->s->disks[0]);
    for (uint64_t n = 2; n < 20; n++) {
        _cleanup_buf_ struct buf at = BUF_INIT(64 * KIB);
        struct store_check_report sum = {0};
        struct pass p = {0};
        int r = 0;
        for (unsigned steps = 0; r == 0; steps++) {
            p.left = n;
            r = step(f, &at, &p, &sum);
            assert_true(steps < 100);
            if (n == 3 && steps == 2) {
                fixture_close(f);
                fixture_open(f);
            }
        }
        assert_int_equal(r, -ENOENT);
        assert_int_equal(p.told, 0);
        assert_true(sum.blocks >= 12 && sum.hard_blocks >= 6 && p.asked >= 18);
        assert_true(n % 2 != 0 || p.asked == 18); /* whole extents: none is read twice */
    }
}

static void change_everything(struct store *s)
{
    assert_int_equal(store_remove(s, SLICE_LIT("b")), 0);
    put(s, "c", 4, MIB);
    put(s, "d", 5, MIB);
    writer_drain(&s->disks[0]);
}

/* What goes, is replaced or is mended while the scrub is at what stood before it in the same page is no
 * damage, and stays as it is. (With the look of the page alone "b" and "c" are missing, and the record of "d"
 * goes.) */
static void test_what_changes_under_the_scrub(void **state)
{
    struct fixture *f = *state;
    struct store_check_report sum = {0};
    struct pass p = {.left = UINT64_MAX, .first = change_everything, .store = f->s};
    for (unsigned i = 0; i < 3; i++)
        put(f->s, (const char *[]){"a", "b", "c"}[i], i, MIB);
    struct kv_txn *t = kv_txn_new(f->s->disks[0].kv);
    kv_txn_put_plain(t, SLICE_LIT("od"), SLICE_LIT("garbage"));
    assert_int_equal(kv_txn_commit(t, KV_VISIBLE, NULL), 0);
    kv_txn_free(t);
    writer_drain(&f->s->disks[0]);
    _cleanup_buf_ struct buf at = BUF_INIT(64 * KIB);
    int r;
    while ((r = step(f, &at, &p, &sum)) == 0)
        ;
    assert_int_equal(r, -ENOENT);
    assert_int_equal(sum.missing_files, 0);
    assert_int_equal(sum.bad_records, 0);
    assert_int_equal(p.told, 0);
    fixture_close(f);
    fixture_open(f);
    assert_false(is_there(f->s, "b"));
    assert_true(is_whole(f->s, "a", 0, MIB) && is_whole(f->s, "c", 4, MIB) && is_whole(f->s, "d", 5, MIB));
}

/* A record that is damaged while its extent is in memory is written anew: nothing is lost. */
static void test_a_damaged_record_of_what_is_in_memory(void **state)
{
    struct fixture *f = *state;
    struct store_check_report sum = {0};
    struct pass p = {.left = UINT64_MAX};
    struct extent *x = NULL;
    put(f->s, "a", 1, MIB);
    writer_drain(&f->s->disks[0]);
    assert_int_equal(store_find(f->s, SLICE_LIT("a"), &x), 0);
    struct kv_txn *t = kv_txn_new(f->s->disks[0].kv);
    kv_txn_put_plain(t, SLICE_LIT("oa"), SLICE_LIT("garbage"));
    assert_int_equal(kv_txn_commit(t, KV_VISIBLE, NULL), 0);
    kv_txn_free(t);
    _cleanup_buf_ struct buf at = BUF_INIT(64 * KIB);
    while (step(f, &at, &p, &sum) == 0)
        ;
    assert_int_equal(sum.bad_records, 1);
    assert_int_equal(p.told, 1);
    extent_unref(x);
    fixture_close(f);
    fixture_open(f);
    assert_true(is_whole(f->s, "a", 1, MIB));
    assert_int_equal(disk_status(f->s, 0).extents, 1);
}

/* A scratch file that cannot be opened, or of which the file system cannot say where its bytes are, is
 * damaged: it is told, and those behind it in the page are read. */
static void test_scratch_files_that_cannot_be_read(void **state)
{
    struct fixture *f = *state;
    struct location l[3];
    for (unsigned i = 0; i < ARRAY_SIZE(l); i++) {
        struct hard *h = take(f->s, &l[i]);
        assert_int_equal(hard_put(h, i, 0, 2 * MIB), 0);
        assert_int_equal(measure_and_settle(f->s, h), 0);
        hard_unref(h);
    }
    for (unsigned round = 0; round < 2; round++) {
        struct store_check_report sum = {0};
        struct pass p = {.left = UINT64_MAX};
        _cleanup_buf_ struct buf at = BUF_INIT(64 * KIB);
        assert_int_equal(buf_str(&at, HARD_CHECK_FIRST), 0);
        fault_sys_start();
        fault_sys_arm(round == 0 ? FAULT_OPEN : FAULT_LSEEK, 1, EIO, FAULT_ONCE);
        int r;
        while ((r = step(f, &at, &p, &sum)) == 0)
            ;
        assert_true(fault_sys_hit());
        fault_sys_disarm();
        fault_sys_stop();
        assert_int_equal(r, -ENOENT);
        assert_int_equal(sum.hard_extents, 3);
        assert_int_equal(sum.hard_bad, 1);
        assert_int_equal(p.told, 1);
        assert_int_equal(p.asked, 4);
    }
}

/* A place that no step left is refused, and one of an entry that has gone is as good as any. */
static void test_places(void **state)
{
    struct fixture *f = *state;
    struct store_check_report sum = {0};
    struct pass p = {.left = UINT64_MAX};
    put(f->s, "b", 1, MIB);
    writer_drain(&f->s->disks[0]);
    _cleanup_buf_ struct buf at = BUF_INIT(64 * KIB);
    assert_int_equal(buf_str(&at, "x\xff"), 0);
    assert_int_equal(step(f, &at, &p, &sum), -EINVAL);
    buf_clear(&at);
    assert_int_equal(buf_str(&at, "oa"), 0);
    while (step(f, &at, &p, &sum) == 0)
        ;
    assert_int_equal(sum.blocks, 1);
    buf_clear(&at);
    assert_int_equal(buf_str(&at, "oc"), 0);
    while (step(f, &at, &p, &sum) == 0)
        ;
    assert_int_equal(sum.blocks, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_goes_first),
        cmocka_unit_test(test_a_pass_a_day),
        cmocka_unit_test_setup_teardown(test_flipped_bytes_are_found, setup, teardown),
        cmocka_unit_test_setup_teardown(test_steps_go_on_where_they_were, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_changes_under_the_scrub, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_damaged_record_of_what_is_in_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(test_scratch_files_that_cannot_be_read, setup, teardown),
        cmocka_unit_test_setup_teardown(test_places, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
