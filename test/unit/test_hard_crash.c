/* layer: store */
/*
 * The crash sweep over hard extents: the power goes at the Nth file call that changes or syncs something; the
 * disk then holds what crash_sys lets survive, and the index what kv.h promises (testkv_power_loss). The test
 * plays the caller, with a control store of its own whose transactions are durable where hard.h asks for
 * that.
 *
 * After the crash, protecting what writing records name and sweeping: what was synced or sealed is there,
 * sealed extents are right to the last byte, a file that no inode names is gone, no other is, and no marks
 * are left when everything is settled.
 *
 * Seen to fail with the guarding line removed: without the syncs of sync_batch; without the fsync of
 * make_files; without the fsync of sync_staged, or of sync_dir_of, in hard_link.c; with the marks committed
 * visibly in commit_marks; without the mark of a removal in add_change; without the syncfs before the marks
 * of removed files go in end_epoch; with visible commits in commit_group.
 */
#include "test_store_common.h"
#include "test_store_kv.h"

#include "test_hard_common.h"

#include "base/log.h"
#include "support/crash_sys.h"
#include "support/seeds.h"

enum { LINKED = 6, FILES }; /* the last one was a staged extent */

/* One file, as the control store and its owner know it. */
struct file {
    struct location l;
    bool named;  /* an inode names it, durably */
    bool maybe;  /* an inode may name it after the crash: its transaction was visible */
    bool record; /* so does a writing record */
    bool orphan; /* to be removed: listed in the control store until hard_remove said that it is gone */
    bool sealed; /* acknowledged and not written since */
    uint64_t seed, size; /* bytes that were synced or sealed */
};

struct told {
    struct file v[FILES];
};

static struct hard *make(struct store *s, struct file *x, uint64_t seed)
{
    struct hard *h = NULL;
    if (hard_take(s, &h, NULL) < 0)
        return NULL;
    hard_location(h, x->l.b);
    x->seed = seed;
    x->named = x->record = true;
    return h;
}

/* Writes up to `size` in pieces, not all of them in order. */
static bool write_more(struct hard *h, struct file *x, uint64_t size, bool in_order)
{
    _cleanup_free_ char *p = content_new(x->seed, 0, size);
    uint64_t from = x->size, half = from + (size - from) / 2;
    x->sealed = false;
    x->record = true;
    if (hard_begin_writing(h, NULL) < 0)
        return false;
    int r = in_order ? hard_write(h, p + from, half - from, from, NULL)
                     : hard_write(h, p + half, size - half, half, NULL);
    if (r == 0)
        r = in_order ? hard_write(h, p + half, size - half, half, NULL)
                     : hard_write(h, p + from, half - from, from, NULL);
    hard_end_writing(h);
    return r == 0;
}

static void write_synced(struct hard *h, struct file *x, uint64_t size, bool in_order)
{
    if (h && write_more(h, x, size, in_order) && hard_sync(h, NULL) == 0)
        x->size = size;
}

static void settle(struct store *s, struct hard **h, struct file **x, size_t n)
{
    struct stat st[FILES];
    bool ok[FILES], measured[FILES];
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        measured[i] = h[i] && hard_measure(h[i], &st[kept], NULL) == 0;
        if (!measured[i])
            continue;
        h[kept] = h[i];
        x[kept++] = x[i];
    }
    (void)hard_settle(s, h, kept, ok, NULL);
    for (size_t i = 0; i < kept; i++) {
        if (!ok[i])
            continue;
        x[i]->sealed = true;
        x[i]->record = false;
        x[i]->size = (uint64_t)st[i].st_size;
    }
}

static void remove_two(struct store *s, struct file *a, struct file *b)
{
    struct slice l[2] = {location_view(&a->l), location_view(&b->l)};
    a->named = b->named = false; /* durably, before */
    a->orphan = b->orphan = true;
    if (hard_remove(s, l, 2, NULL) == 0)
        a->orphan = b->orphan = false;
}

/* A staged extent that gets another name, as a hard one; NULL: it has none. */
static struct hard *link_staged(struct store *s, struct file *x, uint64_t seed, uint64_t size)
{
    struct extent *staged = NULL;
    struct hard *h = NULL;
    _cleanup_free_ char *p = content_new(seed, 0, size);
    if (store_stage(s, SLICE_LIT("staged"), 0, &staged, NULL) < 0)
        return NULL;
    if (extent_write(staged, p, size, 0) == 0 && hard_of_staged(s, staged, &h, NULL) == 0) {
        hard_location(h, x->l.b);
        *x = (struct file){.l = x->l, .named = true, .record = true, .seed = seed, .size = size};
    }
    extent_unref(staged);
    return h;
}

static void work(struct store *s, struct told *t)
{
    struct file *v = t->v;
    struct hard *h[FILES] = {NULL};
    s->disks[0].hard->pool.batch = 2;
    for (size_t i = 0; i < LINKED; i++)
        h[i] = make(s, &v[i], i + 1);
    write_synced(h[0], &v[0], 9000, true);
    if (h[1])
        (void)write_more(h[1], &v[1], MIB + 5, false);
    if (h[2])
        (void)write_more(h[2], &v[2], 5000, true);
    if (h[3])
        (void)write_more(h[3], &v[3], 100, true);
    h[LINKED] = link_staged(s, &v[LINKED], FILES, 7000);
    settle(s, (struct hard *[]){h[1], h[2], h[3]}, (struct file *[]){&v[1], &v[2], &v[3]}, 3);
    write_synced(h[2], &v[2], 20000, true);
    if (h[4]) {
        (void)write_more(h[4], &v[4], 300, true);
        v[4].named = v[4].record = false; /* the transaction that would have named it never came */
    }
    v[5].named = false; /* visible, not durable: either may be after the crash */
    v[5].maybe = h[5];
    (void)store_flush(s, NULL);
    if (h[0] && h[3])
        remove_two(s, &v[0], &v[3]);
    for (size_t i = 0; i < FILES; i++)
        hard_unref(h[i]);
    (void)store_flush(s, NULL);
}

static uint64_t n_named(const struct told *t)
{
    uint64_t n = 0;
    for (size_t i = 0; i < FILES; i++)
        n += t->v[i].named;
    return n;
}

static void verify_file(struct fixture *f, const struct file *x)
{
    struct hard *h = find(f->s, &x->l);
    struct stat st;
    assert_int_equal(hard_stat(h, &st), 0);
    assert_true(x->sealed ? (uint64_t)st.st_size == x->size : (uint64_t)st.st_size >= x->size);
    _cleanup_free_ char *p = malloc(x->size + 1);
    assert_non_null(p);
    assert_int_equal(hard_read_verified(h, p, x->size, 0, NULL), x->size);
    assert_true(content_is(p, x->seed, 0, x->size));
    /* A record that is there is true, also where the caller was not told. */
    assert_true(!x->sealed || hard_is_sealed(h));
    hard_unref(h);
}

static void start(struct fixture *f, const struct told *t)
{
    struct hard_swept swept;
    fixture_open(f);
    for (size_t i = 0; i < FILES; i++)
        if (t->v[i].named && t->v[i].record)
            assert_int_equal(hard_protect(f->s, location_view(&t->v[i].l), NULL), 0);
    assert_int_equal(hard_sweep(f->s, /* keep_bytes= */ false, &swept, NULL), 0);
    for (size_t i = 0; i < FILES; i++) {
        struct slice l = location_view(&t->v[i].l);
        if (t->v[i].orphan)
            assert_int_equal(hard_remove(f->s, &l, 1, NULL), 0);
    }
    for (size_t i = 0; i < FILES; i++)
        if (t->v[i].named)
            verify_file(f, &t->v[i]);
    assert_int_equal(count_files(f), n_named(t));
    struct store_check_report r;
    assert_int_equal(store_check(f->s, false, NULL, NULL, &r, NULL), 0);
    assert_int_equal(r.hard_bad + r.bad_records, 0);
}

/* Everything is settled: what is left is what is named. */
static void finish(struct fixture *f, struct told *t)
{
    for (size_t i = 0; i < FILES; i++) {
        struct file *x = &t->v[i];
        if (!x->named)
            continue;
        struct hard *h = find(f->s, &x->l);
        struct stat st;
        bool ok;
        assert_int_equal(hard_measure(h, &st, NULL), 0);
        assert_int_equal(hard_settle(f->s, &h, 1, &ok, NULL), 0);
        assert_true(ok);
        hard_unref(h);
        x->record = false;
    }
    assert_int_equal(store_flush(f->s, NULL), 0);
    assert_int_equal(count_keys(f->s, 'f'), 0);
    assert_int_equal(count_keys(f->s, 'h'), n_named(t));
    struct store_disk_status st = disk_status(f->s, 0);
    assert_int_equal(st.hard_bytes, f->s->disks[0].hard->count.used_bytes);
    assert_int_equal(st.hard_extents, n_named(t));
}

static void crash(struct fixture *f, uint64_t seed, uint64_t nth)
{
    fixture_abandon(f);
    testkv_is_dead = NULL;
    crash_sys_crash(seed);
    if (seed != CRASH_KEEP_ALL && testkv_disks[0].inner)
        testkv_power_loss(&testkv_disks[0], seed == CRASH_DROP_ALL ? 0 : hash_mix(seed, nth) % 64);
}

/* One crash; false when the work got through without it. */
static bool crash_round(uint64_t nth, uint64_t seed)
{
    struct fixture f;
    struct told t = {0};
    fixture_init(&f, 1, 64 * MIB);
    testkv_use();
    crash_sys_start(f.dir);
    testkv_is_dead = crash_sys_dead;
    crash_sys_kill_at(nth);
    if (fixture_try_open(&f) == 0)
        work(f.s, &t);
    bool died = crash_sys_dead();
    if (!died)
        crash_sys_kill();
    crash(&f, seed, nth);
    /* What was visible survives, or not. */
    t.v[5].named = t.v[5].maybe && hash_mix(seed, nth) % 2;
    start(&f, &t);
    /* And a second crash right after the recovery. */
    crash_sys_kill();
    crash(&f, seed, nth + 1);
    start(&f, &t);
    finish(&f, &t);
    fixture_close(&f);
    crash_sys_stop();
    fixture_fini(&f);
    testkv_reset();
    return died;
}

static void sweep(uint64_t first_seed, uint64_t n_seeds)
{
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++) {
        uint64_t nth = 1;
        (void)seeds_tell(seed);
        while (crash_round(nth, seed))
            nth++;
        assert_true(nth > 40);
    }
}

/* Nothing that was not synced survives. */
static void test_power_loss_drops_all(void **state)
{
    sweep(CRASH_DROP_ALL, 1);
}

/* Everything survives: kill -9. */
static void test_kill(void **state)
{
    sweep(CRASH_KEEP_ALL, 1);
}

/* Any part of what was not synced survives, and any prefix of the commits. */
static void test_power_loss_keeps_parts(void **state)
{
    sweep(seeds_first() + 1, seeds_end(1) - seeds_first()); /* 0 and 1 are the two above */
}

/* The simulation holds files of its own open for writing: nobody else does here. */
static int nobody_writes(int fd, int type)
{
    return 0;
}

int main(void)
{
    static struct sys table;
    log_set_level(LOG_LEVEL_ERROR);
    table = *sys;
    table.setlease = nobody_writes;
    sys = &table;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_power_loss_drops_all),
        cmocka_unit_test(test_kill),
        cmocka_unit_test(test_power_loss_keeps_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
