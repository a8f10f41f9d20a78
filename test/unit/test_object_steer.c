/* layer: object */
/* threaded */
/* Steering the cache: what is never cached, pinned, kept for a bucket, or more than its quota; and what is
 * said of one object. */
#include "object_fresh_common.h"

#include "base/metrics.h"

/* A clock that a test moves, or lets move by each look at it while somebody walks what is cached: the looks
 * of other threads before and after, of which there are many on a busy machine, would make the pause after a
 * walk a short one. Set before there are other threads. */
#define DAY_NS ((uint64_t)86400 * 1000000000)
static _Atomic uint64_t clock_ahead_ns, clock_step_ns;
static struct lock *_Atomic clock_walks; /* the service's walk_lock */

static bool is_walking(void)
{
    struct lock *l = atomic_load(&clock_walks);
    if (!l || pthread_mutex_trylock(&l->mutex) != 0)
        return l != NULL;
    (void)pthread_mutex_unlock(&l->mutex);
    return false;
}

static uint64_t clock_mono_ns(void)
{
    uint64_t step_ns = atomic_load(&clock_step_ns);
    step_ns = step_ns > 0 && is_walking() ? step_ns : 0;
    return sys_real.mono_ns() + atomic_fetch_add(&clock_ahead_ns, step_ns) + step_ns;
}

static uint64_t clock_real_ns(void)
{
    return sys_real.real_ns() + atomic_load(&clock_ahead_ns);
}

static int setup_clock(void **state)
{
    static struct sys table;
    table = sys_real;
    table.mono_ns = clock_mono_ns;
    table.real_ns = clock_real_ns;
    atomic_store(&clock_ahead_ns, 0);
    atomic_store(&clock_step_ns, 0);
    sys = &table;
    int r = setup(state);
    struct fixture *f = *state;
    atomic_store(&clock_walks, &f->service->walk_lock);
    return r;
}

static int teardown_sys(void **state)
{
    atomic_store(&clock_walks, NULL);
    int r = teardown(state);
    sys = &sys_real;
    return r;
}

/* ---- what is never cached, pinned, or more than the quota ---- */

static int evict(struct fixture *f, const char *key)
{
    struct wire_evict_req req = {.bucket = SLICE_LIT("data"), .key = slice_str(key)};
    struct wire_evict_rep rep;
    return object_evict(f->session, &req, f->arena, &rep, NULL);
}

/* What a new rule says is never cached goes at once, more than one page of it, and nothing is kept of it from
 * then on; what a longer prefix pins stays, and is not dropped for who asks, until it is unpinned. */
static void test_rules_of_what_is_cached(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(mkdir(arena_printf(f->arena, "%s/tmp", f->origin), 0755), 0);
    assert_int_equal(mkdir(arena_printf(f->arena, "%s/tmp/keep", f->origin), 0755), 0);
    origin_write(f, "tmp/keep/k", "kept");
    assert_string_equal(read_all(f, "tmp/keep/k", NULL), "kept");
    for (int i = 0; i < 300; i++) {
        char *key = arena_printf(f->arena, "tmp/%d", i);
        origin_write(f, key, "x");
        assert_string_equal(read_all(f, key, NULL), "x");
    }
    rule(f, "tmp/keep/", "pin=true\n");
    rule(f, "tmp/", "cache=never\n");
    for (int i = 0; i < 300; i++)
        assert_false(is_cached(f, arena_printf(f->arena, "tmp/%d", i)));
    assert_true(is_cached(f, "tmp/keep/k"));
    assert_string_equal(read_all(f, "tmp/7", NULL), "x");
    assert_false(is_cached(f, "tmp/7"));
    assert_int_equal(evict(f, "tmp/keep/k"), -EBUSY);
    assert_true(is_cached(f, "tmp/keep/k"));
    rule(f, "tmp/keep/", "pin=false\n");
    assert_string_equal(read_all(f, "tmp/keep/k", NULL), "kept");
    assert_int_equal(evict(f, "tmp/keep/k"), 0);
    assert_false(is_cached(f, "tmp/keep/k"));
    rule(f, "tmp/", "cache=auto\n");
    assert_string_equal(read_all(f, "tmp/7", NULL), "x");
    assert_true(is_cached(f, "tmp/7"));
}

/* What the bucket's own properties say is never cached goes at once, as by a rule; what a rule pins stays.
 * (Without object_drop_never in op_bucket_set it stays on the disk.) */
static void test_properties_of_what_is_cached(void **state)
{
    static const char *const keys[] = {"k", "tmp/k", "keep/k"};
    struct fixture *f = *state;
    assert_int_equal(mkdir(arena_printf(f->arena, "%s/tmp", f->origin), 0755), 0);
    assert_int_equal(mkdir(arena_printf(f->arena, "%s/keep", f->origin), 0755), 0);
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
        origin_write(f, keys[i], "text");
        assert_string_equal(read_all(f, keys[i], NULL), "text");
    }
    set_bucket(f, "rules=never:tmp/;pin:keep/\n");
    assert_true(is_cached(f, "k") && !is_cached(f, "tmp/k") && is_cached(f, "keep/k"));
    set_bucket(f, "cache=never\n");
    assert_true(!is_cached(f, "k") && !is_cached(f, "tmp/k") && is_cached(f, "keep/k"));
}

/* Of a bucket with a quota the next object that does not fit is read around the cache, to the byte. */
static void test_quota_to_the_byte(void **state)
{
    struct fixture *f = *state;
    set_bucket(f, "quota=10\n");
    quota_turn(f->service); /* no count is begun while something comes */
    origin_write(f, "a", "1234567");
    origin_write(f, "b", "1234");
    origin_write(f, "c", "123");
    assert_string_equal(read_all(f, "a", NULL), "1234567");
    assert_string_equal(read_all(f, "b", NULL), "1234");
    assert_string_equal(read_all(f, "c", NULL), "123");
    assert_true(is_cached(f, "a") && !is_cached(f, "b") && is_cached(f, "c"));
    set_bucket(f, "quota=7\n");
    bool fits = false;
    for (int i = 0; i < 6000 && !fits; i++) { /* the steward drops what was not read for longest */
        steward_hurry(f->service->steward);
        sys->sleep_ns(10000000);
        fits = is_cached(f, "a") + is_cached(f, "c") < 2;
    }
    assert_true(fits);
}

/* An object that is as large as the quota is cached; one that is larger by a byte never is. (With >= in
 * quota_admit the former is not, either.) */
static void test_an_object_as_large_as_its_quota(void **state)
{
    struct fixture *f = *state;
    set_bucket(f, "quota=7\n");
    quota_turn(f->service); /* no count is begun while something comes */
    origin_write(f, "larger", "12345678");
    origin_write(f, "as large", "1234567");
    assert_string_equal(read_all(f, "larger", NULL), "12345678");
    assert_string_equal(read_all(f, "as large", NULL), "1234567");
    assert_true(!is_cached(f, "larger") && is_cached(f, "as large"));
}

/* When the quota is lowered what is pinned stays, however long ago it was read. (Without the look at the
 * rules in may_go, quota.c, it goes first.) */
static void test_what_is_pinned_stays_within_a_quota(void **state)
{
    struct fixture *f = *state;
    origin_write(f, "a", "pinned");
    origin_write(f, "b", "1234567");
    rule(f, "a", "pin=true\n");
    assert_string_equal(read_all(f, "a", NULL), "pinned");
    assert_string_equal(read_all(f, "b", NULL), "1234567");
    set_bucket(f, "quota=4\n");
    for (int i = 0; i < 6000 && is_cached(f, "b"); i++) {
        steward_hurry(f->service->steward);
        sys->sleep_ns(10000000);
    }
    assert_true(is_cached(f, "a") && !is_cached(f, "b"));
}

/* A scan over more than the quota does not empty the bucket: what is there is not given up for what is read
 * once. (Without store_would_evict in drop_unwanted it goes.) */
static void test_a_scan_does_not_empty_a_quota(void **state)
{
    struct fixture *f = *state;
    set_bucket(f, "quota=700\n");
    quota_turn(f->service); /* no count is begun while something comes */
    char *text = arena_zalloc(f->arena, 101);
    memset(text, 'x', 100);
    for (int i = 0; i < 20; i++) {
        char *key = arena_printf(f->arena, "%02d", i);
        origin_write(f, key, text);
        assert_string_equal(read_all(f, key, NULL), text);
        quota_turn(f->service);
    }
    for (int i = 0; i < 20; i++)
        assert_int_equal(is_cached(f, arena_printf(f->arena, "%02d", i)), i < 7);
}

static unsigned count_cached(struct fixture *f, unsigned n)
{
    unsigned cached = 0;
    for (unsigned i = 0; i < n; i++)
        cached += is_cached(f, arena_printf(f->arena, "%02u", i));
    return cached;
}

/* Reads so many objects of 100 bytes, "00" and so on. */
static void read_hundreds(struct fixture *f, unsigned n)
{
    char *text = arena_zalloc(f->arena, 101);
    memset(text, 'x', 100);
    for (unsigned i = 0; i < n; i++) {
        char *key = arena_printf(f->arena, "%02u", i);
        origin_write(f, key, text);
        assert_string_equal(read_all(f, key, NULL), text);
    }
}

/* What came while a bucket had no quota counts when it gets the same one again. (Without quota_changed it is
 * never counted.) */
static void test_a_quota_that_comes_back(void **state)
{
    struct fixture *f = *state;
    set_bucket(f, "quota=1000\n");
    quota_turn(f->service);
    set_bucket(f, "quota=0\n");
    read_hundreds(f, 30);
    assert_int_equal(count_cached(f, 30), 30);
    set_bucket(f, "quota=1000\n");
    for (int i = 0; i < 600 && count_cached(f, 30) > 10; i++) {
        quota_turn(f->service);
        sys->sleep_ns(10000000);
    }
    assert_int_equal(count_cached(f, 30), 10);
}

/* A bucket that never had a quota, has none any more, or is gone, has no count either. (Without forget_gone
 * in quota.c they pile up.) */
static void test_counts_of_quotas_go(void **state)
{
    struct fixture *f = *state;
    set_bucket(f, "quota=1000\n");
    read_hundreds(f, 1);
    quota_turn(f->service);
    set_bucket(f, "quota=0\n");
    quota_turn(f->service);
    lock_take(&f->service->quota_lock);
    bool is_counted = f->service->quotas;
    lock_drop(&f->service->quota_lock);
    assert_false(is_counted);
}

/* An entry that is being made while a quota is walked: its file gets its size when the walk has ended, or
 * after a while, should the walk wait for it. */
#define HELD_BYTES 600
static atomic_bool has_begun, has_walked;

static int held_ftruncate(int fd, uint64_t size)
{
    if (size == HELD_BYTES && !atomic_exchange(&has_begun, true))
        for (int i = 0; i < 300 && !atomic_load(&has_walked); i++)
            sys_real.sleep_ns(1000000);
    return sys_real.ftruncate(fd, size);
}

static int setup_held(void **state)
{
    static struct sys table;
    table = sys_real;
    table.ftruncate = held_ftruncate;
    atomic_store(&has_begun, false);
    atomic_store(&has_walked, false);
    sys = &table;
    return setup(state);
}

static char *text_of(struct fixture *f, size_t n)
{
    char *text = arena_zalloc(f->arena, n + 1);
    memset(text, 'x', n);
    return text;
}

/* By a session of its own, as arenas and sessions have one thread. */
static void *held_reader(void *arg)
{
    struct fixture *f = arg, mine = *f;
    mine.session = object_session_new(f->service, WIRE_VIA_API);
    mine.arena = arena_new(MIB);
    assert_non_null(read_all(&mine, "one", NULL));
    arena_free(mine.arena);
    object_session_free(mine.session);
    return NULL;
}

/* What was admitted before a walk began and is made after it is counted all the same, so that the next one
 * finds the quota full. (Without object_await_makings in quota.c both are cached.) */
static void test_a_walk_waits_for_what_is_being_made(void **state)
{
    struct fixture *f = *state;
    struct bucket *b = NULL;
    pthread_t thread;
    set_bucket(f, "quota=1000\n");
    assert_int_equal(bucket_find(f->service->buckets, SLICE_LIT("data"), &b, NULL), 0);
    origin_write(f, "one", text_of(f, HELD_BYTES));
    origin_write(f, "two", text_of(f, HELD_BYTES + 1));
    assert_int_equal(pthread_create(&thread, NULL, held_reader, f), 0);
    while (!atomic_load(&has_begun))
        sys->sleep_ns(1000000);
    quota_changed(f->service, b->id);
    quota_turn(f->service);
    atomic_store(&has_walked, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(is_cached(f, "one"));
    assert_non_null(read_all(f, "two", NULL));
    assert_false(is_cached(f, "one") && is_cached(f, "two"));
    bucket_unref(b);
}

static struct upstream *upstream_now(struct fixture *f)
{
    struct upstream *u = NULL;
    struct err e = {0};
    if (object_upstream(f->service, SLICE_LIT("data"), &u, &e) < 0)
        fail_msg("%s", e.text);
    return u;
}

/* What is owed to the limits of a bucket, what was learned of its origin, for how long that wants no request
 * and who is inside go on while other properties change; bytes that come for who began before are paid for by
 * all. (Without upstream_succeed a change of any property forgets all of it.) */
static void test_a_change_forgets_no_debt(void **state)
{
    struct fixture *f = *state;
    set_bucket(f, "limit.origin-bytes=1000\norigin.connections=40\n");
    struct upstream *before = upstream_now(f);
    upstream_enter(before);
    lock_take(&before->places->lock);
    before->places->concurrency.limit = 7;
    before->places->concurrency.last_cut_ms = 1;
    lock_drop(&before->places->lock);
    set_bucket(f, "retry=5s\n");
    struct upstream *after = upstream_now(f);
    assert_ptr_not_equal(before, after);
    assert_true(after->places->concurrency.limit == 7 && after->places->concurrency.last_cut_ms == 1);
    assert_int_equal(after->places->running, 1);
    upstream_leave(before, -ENOENT);
    assert_true(upstream_has_place(after, /* ahead= */ false));
    upstream_charge(before, 1000000); /* a thousand seconds */
    assert_false(upstream_has_place(after, /* ahead= */ false));
    origin_pause(after->origin, 20000);
    upstream_unref(before);
    set_bucket(f, "origin.connections=3\nlimit.origin-bytes=2000\n");
    before = after;
    after = upstream_now(f);
    assert_true(after->places->concurrency.limit == 3 && after->places->concurrency.ceiling == 3);
    assert_false(upstream_has_place(after, /* ahead= */ false));
    assert_true(origin_pause_ms(after->origin, 0) > 0);
    upstream_unref(before);
    upstream_unref(after);
}

/* Of another origin nothing is known; the limits are the bucket's, and what is owed to them stays. */
static void test_another_origin_is_another_but_for_debts(void **state)
{
    struct fixture *f = *state;
    set_bucket(f, "limit.origin-bytes=1000\n");
    struct upstream *before = upstream_now(f);
    lock_take(&before->places->lock);
    before->places->concurrency.limit = 7;
    lock_drop(&before->places->lock);
    upstream_charge(before, 1000000);
    origin_pause(before->origin, 20000);
    const char *other = arena_printf(f->arena, "%s/other", f->origin);
    assert_int_equal(mkdir(other, 0755), 0);
    set_bucket(f, arena_printf(f->arena, "origin=file://%s\n", other));
    struct upstream *after = upstream_now(f);
    assert_true(after->places->concurrency.limit > 7);
    assert_int_equal(origin_pause_ms(after->origin, 0), 0);
    assert_false(upstream_has_place(after, /* ahead= */ false));
    upstream_unref(before);
    upstream_unref(after);
}

/* The clock, once no walk is under way, not even the steward's: that would have taken no time. */
static void stand_still(struct fixture *f)
{
    LOCK_SCOPE(&f->service->walk_lock);
    atomic_store(&clock_step_ns, 0);
}

/* When a quota is lowered what was not read for longest goes, and nothing else. */
static void test_a_lowered_quota_drops_the_oldest(void **state)
{
    struct fixture *f = *state;
    set_bucket(f, "quota=1000\n");
    quota_turn(f->service); /* no count is begun while something comes */
    read_hundreds(f, 10);
    atomic_fetch_add(&clock_ahead_ns, 3600000000000);
    for (unsigned i = 0; i < 10; i += 2)
        assert_non_null(read_all(f, arena_printf(f->arena, "%02u", i), NULL));
    set_bucket(f, "quota=500\n");
    for (int i = 0; i < 600 && count_cached(f, 10) > 5; i++) {
        quota_turn(f->service);
        sys->sleep_ns(10000000);
    }
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(is_cached(f, arena_printf(f->arena, "%02u", i)), i % 2 == 0);
}

/* While more is there than a lowered quota allows nothing comes to it, however small, and the walk that drops
 * it waits for no pause after the one before. (Without the first comparison in quota_admit the room that is
 * left wraps; without next_ns in quota_changed the walk waits.) */
static void test_a_lowered_quota_counts_at_once(void **state)
{
    struct fixture *f = *state;
    struct bucket *b = NULL;
    set_bucket(f, "quota=1000\n");
    quota_turn(f->service);
    read_hundreds(f, 10);
    atomic_store(&clock_step_ns, 1000000000); /* a walk takes seconds, and the next one waits for a minute */
    assert_int_equal(bucket_find(f->service->buckets, SLICE_LIT("data"), &b, NULL), 0);
    quota_changed(f->service, b->id);
    quota_turn(f->service);
    stand_still(f);
    bucket_unref(b);
    lock_take(&f->service->walk_lock); /* not even the steward walks */
    set_bucket(f, "quota=500\n");
    assert_int_equal(bucket_find(f->service->buckets, SLICE_LIT("data"), &b, NULL), 0);
    bool comes = quota_admit(f->service, b, SLICE_LIT("new"), 1);
    lock_drop(&f->service->walk_lock);
    assert_false(comes);
    bucket_unref(b);
    quota_turn(f->service);
    assert_int_equal(count_cached(f, 10), 5);
}

static void read_a_small_one_until_cached(struct fixture *f)
{
    origin_write(f, "small", "s");
    for (int i = 0; i < 600 && !is_cached(f, "small"); i++) {
        assert_string_equal(read_all(f, "small", NULL), "s");
        quota_turn(f->service);
        sys->sleep_ns(10000000);
    }
    assert_true(is_cached(f, "small"));
}

/* For a small newcomer a tenth of the quota is given up, so that those behind it fit, too. */
static void test_a_quota_gives_up_a_tenth(void **state)
{
    struct fixture *f = *state;
    set_bucket(f, "quota=1000\n");
    quota_turn(f->service);
    read_hundreds(f, 10);
    atomic_fetch_add(&clock_ahead_ns, 3 * DAY_NS);
    read_a_small_one_until_cached(f);
    assert_int_equal(count_cached(f, 10), 9);
}

/* ... also where less would do for the newcomer. (With the newcomer's room alone as the goal in trim one
 * object of twenty goes.) */
static void test_a_quota_gives_up_more_than_the_newcomer_needs(void **state)
{
    struct fixture *f = *state;
    set_bucket(f, "quota=1000\n");
    quota_turn(f->service);
    for (unsigned i = 0; i < 20; i++) {
        char *key = arena_printf(f->arena, "%02u", i);
        origin_write(f, key, "12345678901234567890123456789012345678901234567890");
        assert_non_null(read_all(f, key, NULL));
    }
    assert_int_equal(count_cached(f, 20), 20);
    atomic_fetch_add(&clock_ahead_ns, 3 * DAY_NS);
    read_a_small_one_until_cached(f);
    assert_int_equal(count_cached(f, 20), 18);
}

/* At the quota so much is given up for a newcomer that it fits, when it is more than a tenth of it, too; for
 * one that can never fit nothing is. (With the goal of TRIM_PERCENT alone the large one never gets in.) */
static void test_a_quota_makes_room_for_large_ones(void **state)
{
    struct fixture *f = *state;
    char *half = arena_zalloc(f->arena, 501), *more = arena_zalloc(f->arena, 1002);
    memset(half, 'h', 500);
    memset(more, 'm', 1001);
    set_bucket(f, "quota=1000\n");
    quota_turn(f->service);
    read_hundreds(f, 10);
    assert_int_equal(count_cached(f, 10), 10);
    atomic_fetch_add(&clock_ahead_ns, 3 * DAY_NS); /* they are stale */
    origin_write(f, "more", more);
    assert_non_null(read_all(f, "more", NULL));
    quota_turn(f->service);
    assert_int_equal(count_cached(f, 10), 10);
    origin_write(f, "half", half);
    for (int i = 0; i < 600 && !is_cached(f, "half"); i++) {
        assert_string_equal(read_all(f, "half", NULL), half);
        quota_turn(f->service);
        sys->sleep_ns(10000000);
    }
    assert_true(is_cached(f, "half"));
    assert_in_range(count_cached(f, 10), 4, 5);
}

/* Whoever is turned away has what is cached looked through, but for most of the time it is not, however many
 * are. (Without next_ns in quota.c the second one is let in at once.) */
static void test_walks_of_a_quota_have_pauses(void **state)
{
    struct fixture *f = *state;
    char *text = arena_zalloc(f->arena, 101);
    memset(text, 'y', 100);
    set_bucket(f, "quota=1000\n");
    quota_turn(f->service);
    read_hundreds(f, 10);
    atomic_fetch_add(&clock_ahead_ns, 3 * DAY_NS);
    origin_write(f, "first", text);
    for (int i = 0; i < 600 && !is_cached(f, "first"); i++) {
        atomic_store(&clock_step_ns, 1000000000); /* a walk takes seconds */
        assert_string_equal(read_all(f, "first", NULL), text);
        quota_turn(f->service);
        stand_still(f); /* nothing but walks does */
        assert_string_equal(read_all(f, "first", NULL), text);
        sys->sleep_ns(10000000);
    }
    assert_true(is_cached(f, "first"));
    origin_write(f, "second", text);
    for (int i = 0; i < 5; i++) {
        assert_string_equal(read_all(f, "second", NULL), text);
        quota_turn(f->service);
    }
    assert_false(is_cached(f, "second"));
    atomic_fetch_add(&clock_ahead_ns, DAY_NS);
    for (int i = 0; i < 600 && !is_cached(f, "second"); i++) {
        assert_string_equal(read_all(f, "second", NULL), text);
        quota_turn(f->service);
        sys->sleep_ns(10000000);
    }
    assert_true(is_cached(f, "second"));
}

/* Who is turned away calls the steward, who then walks, also when the node is closed before he has got to it.
 * (Without steward_hurry in turn_away_locked he walks at his next turn, if ever.) */
static void test_who_is_turned_away_calls_the_steward(void **state)
{
    struct fixture *f = *state;
    read_hundreds(f, 11);
    set_bucket(f, "quota=1000\n"); /* which calls him, too: that walk is the one that drops one of them */
    for (int i = 0; i < 6000 && count_cached(f, 11) > 10; i++)
        sys->sleep_ns(10000000);
    stand_still(f); /* that walk has ended, too */
    assert_int_equal(count_cached(f, 11), 10);
    atomic_fetch_add(&clock_ahead_ns, 3 * DAY_NS);
    origin_write(f, "new", text_of(f, 100));
    assert_non_null(read_all(f, "new", NULL));
    atomic_store(&clock_walks, NULL);
    node_close(f, store_close); /* a chore that was called has its turn */
    node_open(f);
    assert_int_equal(count_cached(f, 11), 9);
}

/* Who is turned away while a walk would wait for its pause anyway calls nobody: that call would come to
 * nothing, and who is turned away when the pause is over would call nobody either. (Without the look at
 * next_ns in turn_away_locked nothing goes.) */
static void test_nobody_is_called_for_a_walk_that_waits(void **state)
{
    struct fixture *f = *state;
    set_bucket(f, "quota=1000\n");
    quota_turn(f->service);
    read_hundreds(f, 10);
    origin_write(f, "new", text_of(f, 100));
    atomic_fetch_add(&clock_ahead_ns, 3600000000000); /* the pause after the first walk is over */
    atomic_store(&clock_step_ns, 1000000000000);      /* a walk takes a quarter of an hour, the pause hours */
    assert_non_null(read_all(f, "new", NULL));
    quota_turn(f->service);
    stand_still(f);
    assert_non_null(read_all(f, "new", NULL)); /* in the pause */
    sys->sleep_ns(300000000);                  /* a turn of the steward, if he was called */
    stand_still(f);
    atomic_fetch_add(&clock_ahead_ns, 3 * DAY_NS);
    assert_non_null(read_all(f, "new", NULL));
    atomic_store(&clock_walks, NULL);
    node_close(f, store_close);
    node_open(f);
    assert_int_equal(count_cached(f, 10), 9);
}

/* A bucket that is never cached keeps nothing, but what a rule says otherwise of. */
static void test_a_bucket_that_is_never_cached(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(mkdir(arena_printf(f->arena, "%s/keep", f->origin), 0755), 0);
    origin_write(f, "k", "one");
    origin_write(f, "keep/k", "two");
    set_bucket(f, "cache=never\n");
    rule(f, "keep/", "pin=true\n");
    assert_string_equal(read_all(f, "k", NULL), "one");
    assert_string_equal(read_all(f, "keep/k", NULL), "two");
    assert_true(!is_cached(f, "k") && is_cached(f, "keep/k"));
    set_bucket(f, "cache=auto\n");
    assert_string_equal(read_all(f, "k", NULL), "one");
    assert_true(is_cached(f, "k"));
}

static struct slice stored(struct fixture *f, const char *bucket, const char *key)
{
    _cleanup_(bucket_unrefp) struct bucket *b = NULL;
    _cleanup_buf_ struct buf k = BUF_INIT(KIB);
    assert_int_equal(bucket_find(f->service->buckets, slice_str(bucket), &b, NULL), 0);
    object_store_key(b, slice_str(key), &k);
    return arena_dup(f->arena, buf_view(&k));
}

/* Whether the object of 7 bytes stays when a newcomer of a bucket wants its room. */
static bool is_held(struct fixture *f, const char *key, const char *newcomer, bool takes)
{
    return keep_from(f->service, stored(f, "data", key), stored(f, newcomer, "new"), 7, takes);
}

/* What is pinned is given to nobody. Of what a bucket keeps, what was taken or removed since it was counted
 * counts no more; its own newcomers are another matter. (Without keep_leave in keep_from or keep_removed, or
 * the look at the rules, it goes; without the look at `takes` what was only asked for counts as gone.) */
static void test_what_is_kept_from_others(void **state)
{
    struct fixture *f = *state;
    static const char *const keys[] = {"a", "b", "c", "d"};
    make_bucket(f, "other", arena_printf(f->arena, "origin=file://%s\n", f->origin));
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
        origin_write(f, keys[i], "1234567");
        assert_string_equal(read_all(f, keys[i], NULL), "1234567");
    }
    rule(f, "a", "pin=true\n");
    assert_true(is_held(f, "a", "other", false) && is_held(f, "a", "data", false));
    assert_false(is_held(f, "b", "other", false));
    rule(f, "a", "pin=false\n");
    assert_false(is_held(f, "a", "other", false));
    set_bucket(f, "keep=10\n");
    keep_turn(f->service);
    for (int i = 0; i < 4; i++) /* who only asks takes nothing */
        assert_false(is_held(f, "b", "other", false));
    assert_false(is_held(f, "a", "other", true));
    keep_removed(f->service, stored(f, "data", "b"), 7);
    assert_true(is_held(f, "c", "other", false)); /* of 14 bytes */
    assert_false(is_held(f, "c", "data", false));
}

static uint64_t walks(struct fixture *f)
{
    LOCK_SCOPE(&f->service->keep_lock);
    return f->service->keep_walks;
}

/* What left before a walk counts no more when that walk has ended: it has seen what is there. (Without
 * keep_walk in turn_bucket of keep.c the count sinks with all that ever left, until nothing of the bucket is
 * given up any more.) */
static void test_what_left_before_a_walk_is_not_taken_off_again(void **state)
{
    struct fixture *f = *state;
    static const char *const keys[] = {"a", "b", "c", "d"};
    make_bucket(f, "other", arena_printf(f->arena, "origin=file://%s\n", f->origin));
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
        origin_write(f, keys[i], "1234567");
        assert_string_equal(read_all(f, keys[i], NULL), "1234567");
    }
    set_bucket(f, "keep=10\n");
    keep_turn(f->service);
    uint64_t before = walks(f);
    assert_false(is_held(f, "a", "other", true) ||
                 is_held(f, "b", "other", true)); /* of 28 bytes; they do not go */
    assert_true(is_held(f, "c", "other", false));
    atomic_fetch_add(&clock_ahead_ns, DAY_NS);
    keep_turn(f->service); /* unless the steward is faster */
    assert_true(walks(f) > before);
    assert_false(is_held(f, "c", "other", false));
}

static int try_keep(struct fixture *f, const char *name, uint64_t bytes)
{
    struct wire_bucket_set_req req = {.name = slice_str(name)};
    struct wire_bucket_set_rep rep;
    req.settings = slice_str(arena_printf(f->arena, "keep=%llu\n", (unsigned long long)bytes));
    return object_bucket_set(f->session, &req, f->arena, &rep, NULL);
}

/* All buckets together can keep nine tenths of the disks, to the byte; what a bucket kept before does not
 * count against what it shall keep. */
static void test_no_more_is_promised_than_there_is(void **state)
{
    struct fixture *f = *state;
    struct store_disk_status disk;
    assert_int_equal(store_disk_status(f->store, 0, &disk), 0);
    uint64_t all = disk.limit_bytes / 10 * 9;
    make_bucket(f, "other", arena_printf(f->arena, "origin=file://%s\n", f->origin));
    assert_int_equal(try_keep(f, "data", all + 1), ERR_BAD_OPTION);
    assert_int_equal(try_keep(f, "data", all), 0);
    assert_int_equal(try_keep(f, "other", 1), ERR_BAD_OPTION);
    assert_int_equal(try_keep(f, "data", all - 1000), 0);
    assert_int_equal(try_keep(f, "other", 1001), ERR_BAD_OPTION);
    assert_int_equal(try_keep(f, "other", 1000), 0);
    assert_int_equal(try_keep(f, "data", all), ERR_BAD_OPTION);
    assert_int_equal(try_keep(f, "other", 0), 0);
    assert_int_equal(try_keep(f, "data", all), 0);
    assert_int_equal(try_keep(f, "data", UINT64_MAX), ERR_BAD_OPTION);
}

/* What is cached of a bucket that keeps something is counted when nobody has yet, and again when something
 * was held back since, but not for twenty times as long as it took. Who found no room waits for such a count,
 * and for nothing else. */
static void test_walks_of_what_is_kept(void **state)
{
    struct fixture *f = *state;
    make_bucket(f, "other", arena_printf(f->arena, "origin=file://%s\n", f->origin));
    origin_write(f, "a", "1234567");
    assert_string_equal(read_all(f, "a", NULL), "1234567");
    assert_false(keep_wait_counted(f->service)); /* nobody keeps anything */
    atomic_store(&clock_step_ns, 10000000000);   /* a walk takes tens of seconds */
    set_bucket(f, "keep=10\n");
    for (int i = 0; i < 600 && walks(f) == 0; i++) {
        keep_turn(f->service);
        sys->sleep_ns(10000000);
    }
    stand_still(f);
    uint64_t before = walks(f);
    assert_true(before > 0);
    for (int i = 0; i < 3; i++)
        keep_turn(f->service);
    assert_int_equal(walks(f), before);
    assert_true(is_held(f, "a", "other", false));
    keep_turn(f->service);
    assert_int_equal(walks(f), before);
    atomic_fetch_add(&clock_ahead_ns, DAY_NS);
    for (int i = 0; i < 12 && walks(f) == before;
         i++) /* the steward may be faster, or slower than that waits */
        (void)keep_wait_counted(f->service);
    assert_int_equal(walks(f), before + 1);
    assert_false(keep_wait_counted(f->service));
    assert_int_equal(walks(f), before + 1);
}

/* What is here in part counts for a bucket's `keep` as far as it is here; a bucket that keeps nothing any
 * more has no count. (With the objects' sizes in count, keep.c, 16 MiB are believed to be here, and some to
 * spare; without the look at `keep` in forget_gone counts pile up.) */
static void test_parts_are_kept_as_far_as_they_are_here(void **state)
{
    struct fixture *f = *state;
    make_bucket(f, "other", arena_printf(f->arena, "origin=file://%s\n", f->origin));
    int fd = open(arena_printf(f->arena, "%s/large", f->origin), O_WRONLY | O_CREAT, 0644);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, 16 * MIB), 0);
    (void)close(fd);
    assert_int_equal(strlen(read_all(f, "large", NULL)), 0); /* its first block, of zeros */
    set_bucket(f, "keep=8MiB\n");
    keep_turn(f->service);
    assert_true(is_held(f, "large", "other", false));
    set_bucket(f, "keep=0\n");
    keep_turn(f->service);
    lock_take(&f->service->keep_lock);
    bool is_counted = f->service->kept;
    lock_drop(&f->service->keep_lock);
    assert_false(is_counted);
}

static void count_one(void *arg, const struct store_listed *x)
{
    (void)x;
    ++*(int *)arg;
}

/* What is counted while the bucket's settings change is not all, and is not taken for it: else a quota would
 * be passed, and less than is promised kept, for ever. */
static void test_a_count_that_is_cut_short_says_so(void **state)
{
    struct fixture *f = *state;
    struct bucket *before, *now;
    int n = 0;
    origin_write(f, "a", "1234567");
    assert_string_equal(read_all(f, "a", NULL), "1234567");
    assert_int_equal(bucket_find(f->service->buckets, SLICE_LIT("data"), &before, NULL), 0);
    set_bucket(f, "quota=10\n");
    assert_int_equal(object_each_cached(f->service, before, count_one, &n), -ECANCELED);
    assert_int_equal(n, 0);
    assert_int_equal(bucket_find(f->service->buckets, SLICE_LIT("data"), &now, NULL), 0);
    assert_int_equal(object_each_cached(f->service, now, count_one, &n), 0);
    assert_int_equal(n, 1);
    bucket_unref(before);
    bucket_unref(now);
}

/* ---- limits ---- */

/* How many requests for data of the bucket the gate has seen. */
static json_int_t seen_by_gate(struct fixture *f, const char *bucket)
{
    json_t *all = gate_json(f->service->gate), *one;
    json_int_t n = 0;
    size_t i;
    json_array_foreach(json_object_get(all, "limits"), i, one)
    {
        if (strcmp(json_string_value(json_object_get(one, "limit")), "bucket") == 0 &&
            strcmp(json_string_value(json_object_get(one, "name")), bucket) == 0)
            n += json_integer_value(json_object_get(one, "requests"));
    }
    json_decref(all);
    return n;
}

/* Directories are made and removed within the limits, as objects are, and so are modes and tags changed,
 * whether the origin takes them or not. (Without MKDIR, RMDIR, SET_META and SET_TAGS in shaped.c they pass
 * by.) */
static void test_directories_pass_the_gate(void **state)
{
    struct fixture *f = *state;
    const struct wire_mkdir_req make = {.bucket = SLICE_LIT("data"), .key = SLICE_LIT("d")};
    const struct wire_rmdir_req remove = {.bucket = SLICE_LIT("data"), .key = SLICE_LIT("d")};
    struct wire_mkdir_rep made;
    struct wire_rmdir_rep removed;
    const struct wire_set_meta_req meta = {.bucket = SLICE_LIT("data"), .key = SLICE_LIT("k")};
    const struct wire_set_tags_req tags = {.bucket = SLICE_LIT("data"), .key = SLICE_LIT("k")};
    struct wire_set_meta_rep given;
    struct wire_set_tags_rep tagged;
    set_bucket(f, "limit.requests=1000000\n");
    assert_int_equal(object_call_shaped(f->session, WIRE_OP_MKDIR, &make, f->arena, &made, NULL), 0);
    assert_int_equal(seen_by_gate(f, "data"), 1);
    assert_int_equal(object_call_shaped(f->session, WIRE_OP_RMDIR, &remove, f->arena, &removed, NULL), 0);
    assert_int_equal(seen_by_gate(f, "data"), 2);
    (void)object_call_shaped(f->session, WIRE_OP_SET_META, &meta, f->arena, &given, NULL);
    (void)object_call_shaped(f->session, WIRE_OP_SET_TAGS, &tags, f->arena, &tagged, NULL);
    assert_int_equal(seen_by_gate(f, "data"), 4);
}

/* ---- explain ---- */

/* What is said of the key, or of another one when it is not the same as before. */
static const char *explain(struct fixture *f, const char *key)
{
    struct wire_explain_req req = {.bucket = SLICE_LIT("data"), .key = slice_str(key)};
    struct wire_explain_rep rep;
    struct err e = {0};
    if (object_explain(f->session, &req, f->arena, &rep, &e) < 0)
        fail_msg("%s", e.text);
    return arena_str(f->arena, rep.json);
}

#define SAYS(f, key, part)     assert_non_null(strstr(explain(f, key), part))
#define SAYS_NOT(f, key, part) assert_null(strstr(explain(f, key), part))

/* EXPLAIN of what is not here says why there is no passthrough, and what the rules say of the key. */
static void test_explaining_what_is_not_here(void **state)
{
    struct fixture *f = *state;
    SAYS(f, "k",
         "\"kind\":\"mirror\",\"cached\":false,\"keep\":\"auto\",\"validate\":\"never\",\"verify\":\"fill\"");
    SAYS(f, "k", "\"unsent\":false,\"passthrough\":false,\"why_not\":\"nothing of it is here");
    rule(f, "k", "cache=never\nttl=5s\n");
    SAYS(f, "k", "\"keep\":\"never\",\"validate\":\"ttl:5s\"");
    SAYS(f, "k", "\"why_not\":\"cache=never: it is read around");
    rule(f, "k", "pin=true\n");
    set_bucket(f, "verify=read\n");
    SAYS(f, "k", "\"keep\":\"pinned\"");
    SAYS(f, "k", "\"verify\":\"read\"");
    SAYS(f, "other", "\"keep\":\"auto\",\"validate\":\"never\"");
}

/* EXPLAIN of what is here counts its blocks, says whether an open would ask the origin, and where it is. */
static void test_explaining_what_is_here(void **state)
{
    struct fixture *f = *state;
    origin_write(f, "k", "one");
    assert_string_equal(read_all(f, "k", NULL), "one");
    SAYS(f, "k", "\"cached\":true");
    SAYS(f, "k",
         "\"size_bytes\":3,\"present_bytes\":3,\"block_bytes\":1048576,\"blocks\":1,"
         "\"blocks_present\":1,\"blocks_suspect\":0,\"complete\":true,\"last_read_ms\"");
    SAYS(f, "k", arena_printf(f->arena, "\"disk\":\"%s\",\"file\":\"%s/", f->disk, f->disk));
    SAYS(f, "k", "\"fresh\":true,\"passthrough\":true,\"why_not\":\"\"");
    set_bucket(f, "verify=read\n");
    SAYS(f, "k", "\"passthrough\":false,\"why_not\":\"verify=read: the node compares");
    set_bucket(f, "verify=fill\nvalidate=always\n");
    SAYS(f, "k", "\"fresh\":false,\"passthrough\":true");
    set_bucket(f, "validate=never\n");
    SAYS(f, "k", "\"fresh\":true");
    origin_write(f, "k", "other"); /* a listing tells of it: an open asks for that one */
    assert_int_equal(list(f, WIRE_FRESH), 1);
    SAYS(f, "k", "\"fresh\":false");
}

/* Where the node was told of its disk by a relative path, the whole one is said: who asks is elsewhere.
 * (Without getcwd in put_path it is the relative one.) */
static void test_explaining_from_elsewhere(void **state)
{
    struct fixture *f = *state;
    assert_string_equal(f->disk, "disk");
    origin_write(f, "k", "one");
    assert_string_equal(read_all(f, "k", NULL), "one");
    SAYS(f, "k", arena_printf(f->arena, "\"disk\":\"%s/disk\",\"file\":\"%s/disk/", f->dir, f->dir));
}

static int working_directory = -1;

/* Works in the fixture's directory, in which its disk is. */
static int setup_there(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    node_around(f);
    working_directory = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(working_directory >= 0);
    assert_int_equal(chdir(f->dir), 0);
    free(f->disk);
    f->disk = slice_dup(SLICE_LIT("disk"));
    node_open(f);
    make_bucket(f, "data", arena_printf(f->arena, "origin=file://%s\nvalidate=never\n", f->origin));
    *state = f;
    return 0;
}

static int teardown_there(void **state)
{
    struct fixture *f = *state;
    node_close(f, store_close);
    assert_int_equal(fchdir(working_directory), 0);
    (void)close(working_directory);
    node_gone(f);
    free(f);
    return 0;
}

/* Of what no listing tells the time decides for which what is cached is believed. (Without mirror_is_fresh in
 * put_freshness it never is.) */
static void test_explaining_for_how_long_it_is_believed(void **state)
{
    struct fixture *f = *state;
    struct bucket *b = NULL;
    set_bucket(f, "validate=ttl:1h\n");
    origin_write(f, "k", "one");
    assert_string_equal(read_all(f, "k", NULL), "one");
    assert_int_equal(bucket_find(f->service->buckets, SLICE_LIT("data"), &b, NULL), 0);
    (void)mirror_changed(f->service->mirror, b, SLICE_LIT("k"));
    bucket_unref(b);
    SAYS(f, "k", "\"validate\":\"ttl:1h\"");
    SAYS(f, "k", "\"fresh\":true");
    atomic_fetch_add(&clock_ahead_ns, 2 * 3600 * (uint64_t)1000000000);
    SAYS(f, "k", "\"fresh\":false");
}

/* Of an object that is here in part the first byte that is missing is told. */
static void test_explaining_a_part(void **state)
{
    struct fixture *f = *state;
    int fd = open(arena_printf(f->arena, "%s/large", f->origin), O_WRONLY | O_CREAT, 0644);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, 16 * MIB), 0);
    (void)close(fd);
    assert_int_equal(strlen(read_all(f, "large", NULL)), 0); /* zeros */
    for (int i = 0; i < 600 && strstr(explain(f, "large"), "\"blocks_present\":0,"); i++)
        sys->sleep_ns(10000000);
    SAYS(f, "large",
         "\"size_bytes\":16777216,\"present_bytes\":1048576,\"block_bytes\":1048576,\"blocks\":16,"
         "\"blocks_present\":1,\"blocks_suspect\":0,\"complete\":false,\"first_missing_at\":1048576,");
    SAYS(f, "large", "\"passthrough\":false,\"why_not\":\"15 of 16 blocks are not here\"");
    SAYS_NOT(f, "large", "an open fetches so small a file");
}

int main(void)
{
#define TEST(name)    cmocka_unit_test_setup_teardown(name, setup, teardown)
#define HELD(name)    cmocka_unit_test_setup_teardown(name, setup_held, teardown_sys)
#define CLOCKED(name) cmocka_unit_test_setup_teardown(name, setup_clock, teardown_sys)
    const struct CMUnitTest tests[] = {
        TEST(test_rules_of_what_is_cached),
        TEST(test_properties_of_what_is_cached),
        TEST(test_quota_to_the_byte),
        TEST(test_an_object_as_large_as_its_quota),
        TEST(test_what_is_pinned_stays_within_a_quota),
        TEST(test_a_scan_does_not_empty_a_quota),
        TEST(test_a_quota_that_comes_back),
        TEST(test_counts_of_quotas_go),
        HELD(test_a_walk_waits_for_what_is_being_made),
        TEST(test_a_change_forgets_no_debt),
        TEST(test_another_origin_is_another_but_for_debts),
        CLOCKED(test_a_lowered_quota_drops_the_oldest),
        CLOCKED(test_a_lowered_quota_counts_at_once),
        CLOCKED(test_a_quota_gives_up_a_tenth),
        CLOCKED(test_a_quota_gives_up_more_than_the_newcomer_needs),
        CLOCKED(test_a_quota_makes_room_for_large_ones),
        CLOCKED(test_walks_of_a_quota_have_pauses),
        CLOCKED(test_who_is_turned_away_calls_the_steward),
        CLOCKED(test_nobody_is_called_for_a_walk_that_waits),
        TEST(test_a_bucket_that_is_never_cached),
        TEST(test_what_is_kept_from_others),
        CLOCKED(test_what_left_before_a_walk_is_not_taken_off_again),
        TEST(test_no_more_is_promised_than_there_is),
        CLOCKED(test_walks_of_what_is_kept),
        TEST(test_parts_are_kept_as_far_as_they_are_here),
        TEST(test_a_count_that_is_cut_short_says_so),
        TEST(test_directories_pass_the_gate),
        TEST(test_explaining_what_is_not_here),
        TEST(test_explaining_what_is_here),
        cmocka_unit_test_setup_teardown(test_explaining_from_elsewhere, setup_there, teardown_there),
        CLOCKED(test_explaining_for_how_long_it_is_believed),
        TEST(test_explaining_a_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
