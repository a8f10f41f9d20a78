/* layer: store */
/* Space: the limit holds, the policy decides, leases count, the file system's reserve is kept. */
#include "test_store_common.h"

#include "base/log.h"
#include "support/clock_sys.h"
#include "support/fault_sys.h"

#define HOUR_NS  ((uint64_t)3600 * 1000000000)
#define START_NS ((uint64_t)1700000000 * 1000000000)

static struct fixture fixture;

static int open_store(void **state)
{
    fixture_init(&fixture, 1, 20 * MIB);
    fixture_open(&fixture);
    *state = &fixture;
    return 0;
}

/* Of tests that open stores of their own, by calls of their own: no other store looks at those. */
static int setup_clock(void **state)
{
    (void)state;
    clock_sys_start(1000000000, START_NS);
    return 0;
}

static int teardown_clock(void **state)
{
    (void)state;
    clock_sys_stop();
    return 0;
}

static int setup(void **state)
{
    (void)setup_clock(state);
    return open_store(state);
}

static int teardown(void **state)
{
    fixture_fini(*state);
    return teardown_clock(state);
}

/* The table of calls is there before the threads of a store, which look at it, and until they are gone. */
static int setup_faults(void **state)
{
    (void)setup_clock(state);
    fault_sys_start();
    return open_store(state);
}

static int teardown_faults(void **state)
{
    fixture_fini(*state);
    fault_sys_stop();
    return teardown_clock(state);
}

static void touch(struct store *s, const char *key)
{
    struct extent *_cleanup_(extent_unrefp) x = NULL;
    assert_int_equal(store_find(s, slice_str(key), &x), 0);
    extent_touch(x, extent_size(x));
}

/* How many of a/0 .. are there in full. */
static int count_whole(struct store *s, const char *prefix, int n, uint64_t size)
{
    int whole = 0;
    for (int i = 0; i < n; i++) {
        char key[32];
        (void)snprintf(key, sizeof(key), "%s%d", prefix, i);
        whole += is_whole(s, key, (uint64_t)i, size);
    }
    return whole;
}

static int fill_set(struct store *s, const char *prefix, int n, uint64_t size)
{
    int admitted = 0;
    for (int i = 0; i < n; i++) {
        char key[32];
        (void)snprintf(key, sizeof(key), "%s%d", prefix, i);
        int r = try_put(s, key, (uint64_t)i, size);
        assert_true(r == 0 || r == ERR_NOT_ADMITTED);
        admitted += r == 0;
        clock_sys_advance(1000000);
        assert_true(disk_status(s, 0).used_bytes <= 20 * MIB);
    }
    return admitted;
}

/* A scan over twice the cache keeps what came first, and the second scan finds half of it. */
static void test_scan_keeps_half(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(fill_set(f->s, "a/", 40, MIB), 20);
    assert_int_equal(count_whole(f->s, "a/", 20, MIB), 20);
    clock_sys_advance(HOUR_NS / 60);
    int hits = 0;
    for (int i = 0; i < 40; i++) {
        char key[32];
        (void)snprintf(key, sizeof(key), "a/%d", i);
        if (is_there(f->s, key)) {
            hits++;
            touch(f->s, key);
        } else {
            (void)try_put(f->s, key, (uint64_t)i, MIB);
        }
        clock_sys_advance(1000000);
    }
    assert_int_equal(hits, 20);
}

/* When the data set changes, the old one makes room; the new one is there in the end. */
static void test_new_data_set_replaces_an_idle_one(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(fill_set(f->s, "old/", 20, MIB), 20);
    clock_sys_advance(50 * HOUR_NS);
    assert_int_equal(fill_set(f->s, "new/", 15, MIB), 15);
    assert_int_equal(count_whole(f->s, "new/", 15, MIB), 15);
    assert_int_equal(count_whole(f->s, "old/", 20, MIB), 5);
    struct store_check_report report;
    assert_int_equal(store_check(f->s, false, NULL, NULL, &report, NULL), 0);
    assert_int_equal(report.bad_blocks + report.missing_files + report.orphan_files, 0);
}

struct set_sums {
    uint64_t all, parent;
};

static void sum_set(uint32_t set, const struct evict_set_info *i, void *arg)
{
    struct set_sums *sums = arg;
    (void)set;
    sums->all += i->bytes;
    sums->parent += slice_eq_str(i->prefix, "d/") ? i->bytes : 0;
}

static struct set_sums sets_of(struct store *s)
{
    struct set_sums sums = {0};
    LOCK_SCOPE(&s->sets_lock);
    evict_sets_each(s->sets, sum_set, &sums);
    return sums;
}

static uint64_t listed_bytes(struct store *s)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(MIB);
    struct store_listed l[64];
    int64_t n = store_list(s, SLICE_NULL, SLICE_NULL, ARRAY_SIZE(l), a, l);
    uint64_t bytes = 0;
    for (int64_t i = 0; i < n; i++)
        bytes += l[i].size_bytes;
    return bytes;
}

/* A set that was split while it grew still counts what came before; looking for victims moves the entries to
 * the sets that they belong to now, with their bytes and for good. (Without refile_all in space.c they stay.)
 */
static void test_entries_move_to_the_sets_they_belong_to(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < 10; i++) {
        char key[32];
        (void)snprintf(key, sizeof(key), "d/%c/%d", 'a' + i % 2, i);
        assert_int_equal(try_put(f->s, key, (uint64_t)i, 2 * MIB), 0);
        clock_sys_advance(1000000);
    }
    assert_int_equal(sets_of(f->s).all, 20 * MIB);
    assert_true(sets_of(f->s).parent > 0);
    assert_int_equal(store_flush(f->s, NULL), 0); /* victims are looked for in the index */
    for (int i = 0; i < 10; i++) {
        clock_sys_advance(2000000000ull); /* behind the second in which a newcomer is refused unseen */
        int r =
            try_put(f->s, "d/a/new", 99, 2 * MIB); /* what the parent's set still has may make room for it */
        assert_true(r == 0 || r == ERR_NOT_ADMITTED);
        assert_int_equal(store_flush(f->s, NULL), 0);
    }
    for (int round = 0; round < 2; round++) {
        assert_int_equal(sets_of(f->s).all, listed_bytes(f->s));
        assert_int_equal(sets_of(f->s).parent, 0);
        fixture_close(f);
        fixture_open(f);
    }
    assert_true(store_remove_prefix(f->s, SLICE_LIT("d/")) > 0);
    assert_int_equal(sets_of(f->s).all, 0);
}

/* What is in use is not evicted; what is asked for explicitly is admitted whatever the policy says. */
static void test_references_are_spared_and_force_admits(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(fill_set(f->s, "a/", 20, MIB), 20);
    struct extent *used[5];
    for (int i = 0; i < 5; i++) {
        char key[32];
        (void)snprintf(key, sizeof(key), "a/%d", i);
        assert_int_equal(store_find(f->s, slice_str(key), &used[i]), 0);
    }
    struct store_new n = {.key = SLICE_LIT("a/new"), .attr = SLICE_LIT("attr"), .size_bytes = 10 * MIB};
    struct extent *x = NULL;
    assert_int_equal(store_create(f->s, &n, &x, NULL), ERR_NOT_ADMITTED);
    n.pinned_admission = true;
    assert_int_equal(store_create(f->s, &n, &x, NULL), 0);
    assert_int_equal(fill_range(x, 7, 0, 10 * MIB), 0);
    extent_unref(x);
    assert_true(is_whole(f->s, "a/new", 7, 10 * MIB));
    for (int i = 0; i < 5; i++) {
        assert_false(extent_is_dead(used[i]));
        extent_unref(used[i]);
    }
    assert_true(disk_status(f->s, 0).used_bytes <= 20 * MIB);
}

static bool keeps_all_but(void *arg, struct slice key, struct slice newcomer, uint64_t bytes, bool takes)
{
    (void)newcomer, (void)bytes, (void)takes;
    const char *const *free_one = arg;
    return !slice_eq_str(key, *free_one);
}

static bool keeps_what_is_taken(void *arg, struct slice key, struct slice newcomer, uint64_t bytes,
                                bool takes)
{
    (void)key, (void)newcomer, (void)bytes;
    *(int *)arg += takes;
    return takes;
}

static int create_forced(struct store *s, const char *key)
{
    struct store_new n = {
        .key = slice_str(key), .attr = SLICE_LIT("attr"), .size_bytes = 1, .pinned_admission = true};
    struct extent *x = NULL;
    int r = store_create(s, &n, &x, NULL);
    if (r == 0)
        assert_int_equal(fill_range(x, 3, 0, 1), 0);
    extent_unref(x);
    return r;
}

/* Of a thousand entries all but one are pinned: what must be admitted finds that one, wherever it is. When
 * none may go it is refused, and for a second after that nobody looks again. (Without take_of_all three
 * samples of 32 miss it nine times of ten; without the rest a full disk is walked for each write.) */
static void test_the_only_one_that_may_go_is_found(void **state)
{
    struct fixture *f = *state;
    struct disk *d = &f->s->disks[0];
    char may_go[32] = "", key[32];
    const char *free_one = may_go;
    for (int i = 0; i < 1000; i++) {
        (void)snprintf(key, sizeof(key), "a/%d", i);
        put(f->s, key, (uint64_t)i, 1);
    }
    assert_int_equal(store_flush(f->s, NULL), 0);
    d->limit_bytes = d->used_bytes;
    store_on_evict(f->s, keeps_all_but, NULL, &free_one);
    for (int i = 0; i < 10; i++) {
        (void)snprintf(may_go, sizeof(may_go), "a/%d", i * 100 + 7);
        (void)snprintf(key, sizeof(key), "new/%d", i);
        assert_int_equal(create_forced(f->s, key), 0);
        assert_false(is_whole(f->s, may_go, (uint64_t)(i * 100 + 7), 1));
        assert_true(is_whole(f->s, key, 3, 1));
        assert_true(d->used_bytes <= d->limit_bytes);
    }
    may_go[0] = '\0';
    assert_int_equal(create_forced(f->s, "late"), ERR_NOT_ADMITTED);
    int refused = 0; /* but for those that a sample meets: one in ten */
    for (int i = 0; i < 9; i++) {
        (void)snprintf(may_go, sizeof(may_go), "new/%d", i);
        (void)snprintf(key, sizeof(key), "late/%d", i);
        refused += create_forced(f->s, key) == ERR_NOT_ADMITTED;
    }
    assert_true(refused > 0);
    (void)snprintf(may_go, sizeof(may_go), "new/9");
    clock_sys_advance(1001 * (uint64_t)1000000);
    assert_int_equal(create_forced(f->s, "late"), 0);
    assert_int_equal(count_whole(f->s, "a/", 1000, 1), 990);
    store_on_evict(f->s, NULL, NULL, NULL);
}

/* Bytes of a removed extent count until the last reader lets go; then there is room. */
static void test_leases_count(void **state)
{
    struct fixture *f = *state;
    put(f->s, "a", 1, 15 * MIB);
    struct extent *reader = NULL;
    assert_int_equal(store_find(f->s, SLICE_LIT("a"), &reader), 0);
    assert_int_equal(store_remove(f->s, SLICE_LIT("a")), 0);
    assert_int_equal(disk_status(f->s, 0).leased_bytes, 15 * MIB);
    assert_int_equal(try_put(f->s, "b", 2, 10 * MIB), ERR_NOT_ADMITTED);
    assert_int_equal(check_run(reader, 1, 0, 15 * MIB), 15 * MIB);
    extent_unref(reader);
    clock_sys_advance(2 * (uint64_t)1000000000);
    assert_int_equal(try_put(f->s, "b", 2, 10 * MIB), 0);
}

/* Staged bytes take room as they grow, and are refused when there is none. */
static void test_staging_takes_space(void **state)
{
    struct fixture *f = *state;
    struct extent *x = NULL;
    assert_int_equal(store_stage(f->s, SLICE_LIT("k"), 0, &x, NULL), 0);
    _cleanup_free_ char *p = content_new(1, 0, 4 * MIB);
    for (uint64_t i = 0; i < 5; i++)
        assert_int_equal(extent_write(x, p, 4 * MIB, i * 4 * MIB), 0);
    assert_int_equal(extent_write(x, p, 4 * MIB, 20 * MIB), ERR_NOT_ADMITTED);
    assert_int_equal(extent_size(x), 20 * MIB);
    assert_int_equal(try_put(f->s, "other", 1, MIB), ERR_NOT_ADMITTED);
    extent_unref(x);
    clock_sys_advance(2 * (uint64_t)1000000000);
    assert_int_equal(try_put(f->s, "other", 1, MIB), 0);
}

/* An object larger than the disk: what fits is kept, the rest is refused with -ENOSPC and the extent stays
 * usable. */
static void test_object_larger_than_the_disk(void **state)
{
    (void)state;
    struct fixture f;
    fixture_init(&f, 1, 258 * MIB);
    fixture_open(&f);
    struct store_new n = {.key = SLICE_LIT("k"), .size_bytes = 1000 * MIB};
    struct extent *x = NULL;
    assert_int_equal(store_create(f.s, &n, &x, NULL), 0);
    assert_int_equal(disk_status(f.s, 0).used_bytes, 256 * MIB);
    /* Only the count is made large here: blocks are written far apart. */
    lock_take(&x->lock);
    x->charged -= 255 * MIB;
    lock_drop(&x->lock);
    assert_int_equal(fill_range(x, 1, 0, 3 * MIB), 0);
    assert_int_equal(fill_range(x, 1, 500 * MIB, MIB), -ENOSPC);
    assert_int_equal(check_run(x, 1, 0, 1000 * MIB), 3 * MIB);
    lock_take(&x->lock);
    x->charged += 255 * MIB;
    lock_drop(&x->lock);
    extent_unref(x);
    assert_int_equal(disk_status(f.s, 0).used_bytes, 3 * MIB);
    fixture_fini(&f);
}

static _Atomic uint64_t fs_free;

static int small_fs(const char *path, uint64_t *ret_free, uint64_t *ret_total)
{
    *ret_free = fs_free;
    *ret_total = 100 * MIB;
    return 0;
}

/* The reserve of the file system is kept, also when others fill it. */
static void test_reserve_is_kept(void **state)
{
    struct fixture *f = *state;
    fixture_close(f);
    const struct sys *before = sys;
    struct sys mine = *sys;
    mine.statfs_free = small_fs;
    sys = &mine;
    fs_free = 30 * MIB;
    f->config.reserve_bytes = 25 * MIB;
    fixture_open(f);
    assert_int_equal(try_put(f->s, "a", 1, 4 * MIB), 0);
    assert_int_equal(try_put(f->s, "b", 2, 4 * MIB), ERR_NOT_ADMITTED);
    fs_free = 60 * MIB;
    clock_sys_advance(2 * (uint64_t)1000000000);
    assert_int_equal(try_put(f->s, "b", 2, 4 * MIB), 0);
    fixture_close(f);
    sys = before;
    f->config.reserve_bytes = 0;
}

/* A file system that is no larger than the reserve keeps nothing, and the node starts all the same. */
static void test_a_disk_no_larger_than_the_reserve(void **state)
{
    (void)state;
    struct fixture f;
    const struct sys *before = sys;
    struct sys mine = *sys;
    mine.statfs_free = small_fs;
    sys = &mine;
    fs_free = 90 * MIB;
    fixture_init(&f, 1, 0);
    f.config.reserve_bytes = 100 * MIB;
    fixture_open(&f);
    assert_int_equal(try_put(f.s, "a", 1, 4 * MIB), ERR_NOT_ADMITTED);
    assert_int_equal(disk_status(f.s, 0).limit_bytes, 0);
    fixture_fini(&f);
    sys = before;
}

/* A full disk while filling: the error reaches the writer, what was written before stays, nothing else is
 * present. */
static void test_disk_full_while_filling(void **state)
{
    struct fixture *f = *state;
    struct store_new n = {.key = SLICE_LIT("k"), .attr = SLICE_LIT("attr"), .size_bytes = 4 * MIB};
    struct extent *x = NULL;
    assert_int_equal(store_create(f->s, &n, &x, NULL), 0);
    _cleanup_free_ char *p = content_new(1, 0, 4 * MIB);
    struct extent_writer *w = extent_writer_new(x, 0);
    assert_int_equal(extent_writer_append(w, p, MIB + 100), 0);
    fault_sys_arm(FAULT_PWRITE, 1, ENOSPC, FAULT_PARTIAL);
    assert_int_equal(extent_writer_append(w, p + MIB + 100, MIB), -ENOSPC);
    fault_sys_disarm();
    assert_int_equal(extent_writer_append(w, p + MIB + 100, MIB), -EIO); /* its block has a hole in its crc */
    extent_writer_free(w);
    assert_int_equal(check_run(x, 1, 0, 4 * MIB), MIB);
    assert_int_equal(fill_range(x, 1, MIB, 3 * MIB), 0);
    extent_check(x);
    assert_true(extent_is_complete(x));
    extent_unref(x);
}

/* Idle times and intervals survive a restart with the entries. */
static void test_policy_survives_restart(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(fill_set(f->s, "old/", 20, MIB), 20);
    fixture_close(f);
    clock_sys_advance(50 * HOUR_NS);
    fixture_open(f);
    assert_int_equal(fill_set(f->s, "new/", 10, MIB), 10);
    assert_int_equal(count_whole(f->s, "old/", 20, MIB), 10);
}

/* The time of the last read reaches the index, but not with each read. */
static void test_last_reads_are_recorded_in_batches(void **state)
{
    struct fixture *f = *state;
    put(f->s, "k", 1, 100);
    assert_int_equal(store_flush(f->s, NULL), 0);
    struct extent *x = NULL;
    assert_int_equal(store_find(f->s, SLICE_LIT("k"), &x), 0);
    uint64_t recorded = x->recorded_read_ms;
    for (int i = 0; i < 100; i++) {
        clock_sys_advance(100000000);
        extent_touch(x, 100);
    }
    assert_false(x->dirty);
    assert_int_equal(x->recorded_read_ms, recorded);
    uint64_t last = x->last_read_ms;
    extent_unref(x);
    fixture_close(f);
    fixture_open(f);
    assert_int_equal(store_find(f->s, SLICE_LIT("k"), &x), 0);
    assert_int_equal(x->last_read_ms, last);
    extent_unref(x);
}

#define TEST(t) cmocka_unit_test_setup_teardown(t, setup, teardown)
#define OWN(t)  cmocka_unit_test_setup_teardown(t, setup_clock, teardown_clock)

/* What became one that must stay after it was sampled stays, whether it is in memory or only in the index.
 * (Seen to fail without either look at is_kept in evict_one.) */
static void test_what_is_kept_at_the_last_moment_stays(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(fill_set(f->s, "a/", 20, MIB), 20);
    for (int in_memory = 1; in_memory >= 0; in_memory--) {
        int taken = 0;
        if (!in_memory) {
            fixture_close(f);
            fixture_open(f);
        }
        clock_sys_advance(100 * HOUR_NS); /* all are stale */
        store_on_evict(f->s, keeps_what_is_taken, NULL, &taken);
        assert_true(create_forced(f->s, "b/new") < 0);
        store_on_evict(f->s, NULL, NULL, NULL);
        assert_true(taken > 0);
        assert_int_equal(count_whole(f->s, "a/", 20, MIB), 20);
    }
}

static bool is_one_file_system;

static int stat_of_disks(const char *path, struct stat *ret)
{
    int r = sys_real.stat(path, ret);
    size_t n = strlen(path);
    ret->st_dev = is_one_file_system || path[n - 1] == '0' ? 100 : 200;
    return r;
}

static int statfs_of_disks(const char *path, uint64_t *ret_free, uint64_t *ret_total)
{
    (void)path;
    *ret_free = 6 * GIB;
    *ret_total = 10 * GIB;
    return 0;
}

/* Disks that share one file system share its room; those of two have both. Fails when store_room adds up what
 * each disk says. */
static void test_a_shared_file_system_counts_once(void **state)
{
    static const struct {
        bool is_one;
        uint64_t size_bytes, total_bytes, room_bytes;
    } cases[] = {
        {true, 0, 9 * GIB, 5 * GIB},
        {false, 0, 18 * GIB, 10 * GIB},
        {true, 2 * GIB, 4 * GIB, 4 * GIB},
        {true, 8 * GIB, 9 * GIB, 5 * GIB},
    };
    (void)state;
    static struct sys table;
    const struct sys *before = sys;
    table = *sys;
    table.stat = stat_of_disks;
    table.statfs_free = statfs_of_disks;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct fixture f;
        uint64_t total = 0, room = 0;
        fixture_init(&f, 2, cases[i].size_bytes);
        f.config.reserve_bytes = GIB;
        is_one_file_system = cases[i].is_one;
        sys = &table;
        fixture_open(&f);
        put(f.s, "a", 1, 3 * MIB); /* what is only cached gives way */
        put(f.s, "b", 2, 3 * MIB);
        store_room(f.s, &total, &room);
        uint64_t cached = disk_status(f.s, 0).used_bytes + disk_status(f.s, 1).used_bytes;
        assert_int_equal(total, cases[i].total_bytes);
        assert_int_equal(room, MIN(cases[i].room_bytes + cached, cases[i].total_bytes));
        fixture_fini(&f);
        sys = before;
    }
}

/* What disks on one file system may hold is together what that has, less the reserve, also where it was asked
 * for more; each gets its part, so that none that came first keeps the others out. */
static void test_limits_on_a_shared_file_system(void **state)
{
    enum { ROOM = 900 };
    (void)state;
    assert_int_equal(space_limit(ROOM, 0, 0, 1, 1), ROOM);
    assert_int_equal(space_limit(ROOM, 0, 0, 3, 3), ROOM / 3);
    assert_int_equal(space_limit(ROOM, 0, 500, 3, 2), 200);
    assert_int_equal(space_limit(ROOM, 500, 500, 3, 2), 500);
    assert_int_equal(space_limit(ROOM, 0, 1000, 2, 1), 0);
    assert_int_equal(space_limit(ROOM, 1000, 1000, 2, 1), ROOM);
    assert_int_equal(space_limit(ROOM, 600, 1800, 2, 0), 300);
    assert_int_equal(space_limit(ROOM, 1200, 1800, 2, 0), 600);
    assert_int_equal(space_limit(ROOM, 2000, 2000, 1, 0), 2000); /* alone: its limit is what was asked for */
    assert_int_equal(space_limit(0, 0, 0, 2, 2), 0);
    assert_int_equal(space_limit(UINT64_MAX / 2, UINT64_MAX / 2 + 1, UINT64_MAX, 2, 0), UINT64_MAX / 4);
}

static _Atomic uint64_t shared_free;

static int statfs_of_shared(const char *path, uint64_t *ret_free, uint64_t *ret_total)
{
    (void)path;
    *ret_free = shared_free;
    *ret_total = 10 * GIB;
    return 0;
}

/* Two disks on one file system take together no more than the reserve leaves, whether what they took is in
 * files already or not; and say together that they may hold what it has. (Fails where each counted its
 * own bytes: both took all that is free.) */
static void test_disks_of_one_file_system_keep_the_reserve(void **state)
{
    static const uint64_t sizes[] = {0, 2 * GIB, 8 * GIB}, limits[] = {4608 * MIB, 2 * GIB, 4608 * MIB};
    (void)state;
    static struct sys table;
    const struct sys *before = sys;
    table = *sys;
    table.stat = stat_of_disks;
    table.statfs_free = statfs_of_shared;
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        struct fixture f;
        fixture_init(&f, 2, sizes[i]);
        f.config.reserve_bytes = GIB;
        is_one_file_system = true;
        shared_free = GIB + 100 * MIB;
        sys = &table;
        fixture_open(&f);
        struct disk *a = &f.s->disks[0], *b = &f.s->disks[1];
        assert_int_equal(disk_status(f.s, 0).limit_bytes, limits[i]);
        assert_int_equal(disk_status(f.s, 1).limit_bytes, limits[i]);
        assert_true(space_try(a, 60 * MIB));
        assert_false(space_try(b, 60 * MIB));
        assert_true(space_try(b, 40 * MIB));
        assert_false(space_try(a, 1));
        space_written(a, 60 * (int64_t)MIB); /* they are in files now, */
        shared_free -= 60 * MIB;
        assert_false(space_try(b, 1));
        clock_sys_advance(2 * (uint64_t)1000000000); /* which the file system is seen to say */
        assert_false(space_try(b, 1));
        shared_free += 60 * MIB;
        space_give(a, 60 * MIB, 60 * MIB, 0); /* what one gives up the other may have at once */
        assert_true(space_try(b, 60 * MIB));
        assert_false(space_try(a, 1));
        space_give(b, 100 * MIB, 0, 0);
        assert_int_equal(a->file_system->used_bytes + a->file_system->written_bytes, 0);
        fixture_fini(&f);
        sys = before;
    }
}

/* A page of what is cached takes the memory of one page, however many disks it is gathered from, and has what
 * comes next on any of them. (Seen to fail with the keys of all disks in the arena, which are too many for it
 * where there are many disks: the process ended.) */
static void test_a_page_of_several_disks_is_one_page(void **state)
{
    enum { PAGE = 50, N = 3 * PAGE + 7, KEY = 2000 };
    (void)state;
    struct fixture f;
    struct store_listed page[PAGE];
    char key[KEY + 1], after[KEY + 1] = "";
    fixture_init(&f, FIXTURE_DISKS_MAX, 64 * MIB);
    fixture_open(&f);
    for (int i = 0; i < N; i++) {
        (void)snprintf(key, sizeof(key), "k/%0*d", KEY - 2, i);
        put(f.s, key, (uint64_t)i, 1);
    }
    int64_t n = PAGE;
    for (int seen = 0; seen < N; seen += (int)n) {
        _cleanup_(arena_freep) struct arena *a = arena_new(PAGE * (KEY + 16) + 8 * KIB);
        assert_int_equal(n, PAGE);
        n = store_list(f.s, SLICE_LIT("k/"), slice_str(after), PAGE, a, page);
        assert_int_equal(n, MIN(PAGE, N - seen));
        for (int i = 0; i < n; i++) {
            (void)snprintf(after, sizeof(after), "k/%0*d", KEY - 2, seen + i);
            assert_true(slice_eq_str(page[i].key, after) && page[i].present_bytes == 1);
        }
    }
    fixture_fini(&f);
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        TEST(test_scan_keeps_half),
        TEST(test_new_data_set_replaces_an_idle_one),
        TEST(test_entries_move_to_the_sets_they_belong_to),
        TEST(test_references_are_spared_and_force_admits),
        TEST(test_the_only_one_that_may_go_is_found),
        TEST(test_leases_count),
        TEST(test_staging_takes_space),
        OWN(test_object_larger_than_the_disk),
        TEST(test_reserve_is_kept),
        OWN(test_a_disk_no_larger_than_the_reserve),
        cmocka_unit_test_setup_teardown(test_disk_full_while_filling, setup_faults, teardown_faults),
        TEST(test_policy_survives_restart),
        TEST(test_last_reads_are_recorded_in_batches),
        TEST(test_what_is_kept_at_the_last_moment_stays),
        OWN(test_a_shared_file_system_counts_once),
        TEST(test_limits_on_a_shared_file_system),
        OWN(test_disks_of_one_file_system_keep_the_reserve),
        OWN(test_a_page_of_several_disks_is_one_page),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
