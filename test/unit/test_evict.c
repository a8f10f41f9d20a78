/* layer: store */
/*
 * The eviction policy beside a simulated cache: items with keys and sizes, simulated time, several seeds. The
 * simulated driver does what the store does: finds the set of a key at each read, asks evict_choose over a
 * random sample of what is cached, and gives up when the newcomer is not admitted. LRU runs beside it for
 * comparison.
 */
#include "base/crc32c.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/text.h"
#include "store/evict.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define START_MS 1700000000000ull
#define DAY_MS   86400000ull
#define SAMPLE   16
#define TRIES    4

struct item {
    char key[64];
    uint64_t size;
    uint64_t last_read_ms;
    uint32_t set;
    int cached_at; /* place in sim.cached, -1 when not cached */
    bool pinned, dirty, referenced;
    uint64_t lru_used;
    bool lru_cached;
};

struct sim {
    struct evict_sets *t;
    uint64_t seed, now_ms;
    uint64_t cache_bytes, used_bytes;
    struct item *items;
    int n_items;
    int *cached;
    int n_cached;
    uint64_t hits, reads, lru_hits, evicted;
    uint64_t lru_bytes, lru_clock;
};

static uint64_t next_random(struct sim *s)
{
    s->seed++;
    return hash_mix(s->seed, 0x5eed);
}

static void sim_init(struct sim *s, uint64_t seed, uint64_t cache_bytes, int max_items)
{
    *s = (struct sim){.seed = seed * 1000003, .now_ms = START_MS, .cache_bytes = cache_bytes};
    s->t = evict_sets_new(cache_bytes);
    s->items = calloc((size_t)max_items, sizeof(*s->items));
    s->cached = calloc((size_t)max_items, sizeof(*s->cached));
    assert_non_null(s->items);
    assert_non_null(s->cached);
}

static void sim_fini(struct sim *s)
{
    evict_sets_check(s->t);
    evict_sets_free(s->t);
    free(s->items);
    free(s->cached);
}

/* Adds n items "prefix%06d"; returns the first one's number. */
static int sim_add(struct sim *s, const char *prefix, int n, uint64_t size)
{
    int first = s->n_items;
    for (int i = 0; i < n; i++) {
        struct item *it = &s->items[s->n_items++];
        *it = (struct item){.size = size, .cached_at = -1};
        snprintf(it->key, sizeof(it->key), "%s%06d", prefix, i);
    }
    return first;
}

static void sim_drop(struct sim *s, struct item *it)
{
    int last = s->cached[--s->n_cached];
    s->cached[it->cached_at] = last;
    s->items[last].cached_at = it->cached_at;
    it->cached_at = -1;
    s->used_bytes -= it->size;
    s->evicted++;
    evict_set_grow(s->t, it->set, -(int64_t)it->size);
    evict_note_evicted(s->t, slice_str(it->key), it->last_read_ms);
}

static bool sim_make_room(struct sim *s, uint32_t newcomer, uint64_t bytes)
{
    for (int tries = 0; s->used_bytes + bytes > s->cache_bytes;) {
        struct evict_candidate c[SAMPLE];
        int who[SAMPLE];
        for (int i = 0; i < SAMPLE; i++) {
            who[i] = s->cached[next_random(s) % (uint64_t)s->n_cached];
            const struct item *it = &s->items[who[i]];
            c[i] = (struct evict_candidate){.set = it->set,
                                            .last_read_ms = it->last_read_ms,
                                            .size_bytes = it->size,
                                            .pinned = it->pinned,
                                            .dirty = it->dirty,
                                            .referenced = it->referenced};
        }
        int v = evict_choose(s->t, c, SAMPLE, newcomer, s->now_ms);
        if (v < 0) {
            if (++tries == TRIES)
                return false;
            continue;
        }
        struct item *victim = &s->items[who[v]];
        assert_false(victim->pinned || victim->dirty || victim->referenced);
        sim_drop(s, victim);
    }
    return true;
}

/* LRU by a scan for the oldest: slow, but plainly right. */
static void sim_lru(struct sim *s, struct item *it)
{
    s->lru_hits += it->lru_cached;
    it->lru_used = ++s->lru_clock;
    if (it->lru_cached)
        return;
    while (s->lru_bytes + it->size > s->cache_bytes) {
        struct item *oldest = NULL;
        for (int i = 0; i < s->n_items; i++)
            if (s->items[i].lru_cached && (!oldest || s->items[i].lru_used < oldest->lru_used))
                oldest = &s->items[i];
        oldest->lru_cached = false;
        s->lru_bytes -= oldest->size;
    }
    it->lru_cached = true;
    s->lru_bytes += it->size;
}

/* One read of `bytes` of an item; what is missing is admitted whole. */
static bool sim_read_part(struct sim *s, int i, uint64_t bytes)
{
    struct item *it = &s->items[i];
    bool hit = it->cached_at >= 0;
    uint32_t set = evict_set_of(s->t, slice_str(it->key), SLICE_NULL, s->now_ms);
    if (hit && set != it->set) {
        evict_set_grow(s->t, it->set, -(int64_t)it->size);
        evict_set_grow(s->t, set, (int64_t)it->size);
        it->set = set;
    }
    if (!hit && sim_make_room(s, set, it->size)) {
        it->set = set;
        it->cached_at = s->n_cached;
        s->cached[s->n_cached++] = i;
        s->used_bytes += it->size;
        evict_set_grow(s->t, set, (int64_t)it->size);
    }
    evict_set_read(s->t, set, hit ? it->last_read_ms : evict_former_read(s->t, slice_str(it->key)), s->now_ms,
                   bytes);
    it->last_read_ms = s->now_ms;
    return hit;
}

static void sim_read(struct sim *s, int i)
{
    s->reads++;
    s->hits += sim_read_part(s, i, s->items[i].size);
}

static void sim_shuffle(struct sim *s, int *order, int n)
{
    for (int i = n - 1; i > 0; i--) {
        int j = (int)(next_random(s) % (uint64_t)(i + 1));
        int swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
}

/* Share of hits, in percent, of one pass over n items in the given or a shuffled order, step_ms apart. */
static unsigned sim_epoch(struct sim *s, int first, int n, uint64_t step_ms, bool shuffle)
{
    int *order = calloc((size_t)n, sizeof(*order));
    assert_non_null(order);
    for (int i = 0; i < n; i++)
        order[i] = first + i;
    if (shuffle)
        sim_shuffle(s, order, n);
    uint64_t hits = s->hits;
    for (int i = 0; i < n; i++) {
        sim_read(s, order[i]);
        s->now_ms += step_ms;
    }
    free(order);
    return (unsigned)((s->hits - hits) * 100 / (uint64_t)n);
}

/* A data set of twice the cache, read in order or shuffled, keeps half of its reads from the second epoch on,
 * where LRU gets none in order; and once it is settled nothing is evicted in vain. Fails when extents are
 * stale after half of the re-read interval. */
static void a_cyclic_scan_over_twice_the_cache_keeps_half(void **state)
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        for (int shuffle = 0; shuffle < 2; shuffle++) {
            struct sim s;
            sim_init(&s, seed, 1000 * MIB, 2000);
            int first = sim_add(&s, "data/train/", 2000, MIB);
            assert_int_equal(sim_epoch(&s, first, 2000, 10, shuffle), 0);
            uint64_t evicted = s.evicted;
            for (int epoch = 1; epoch < 6; epoch++)
                assert_true(sim_epoch(&s, first, 2000, 10, shuffle) >= 49);
            assert_true(s.evicted - evicted < 2000 * 5 / 20);
            sim_fini(&s);
        }
    }
    (void)state;
}

/* The same scan under LRU, to show that the simulation tells the two apart. */
static void lru_gets_nothing_from_the_same_scan(void **state)
{
    struct sim s;
    sim_init(&s, 1, 500 * MIB, 1000);
    int first = sim_add(&s, "data/train/", 1000, MIB);
    for (int epoch = 0; epoch < 4; epoch++) {
        for (int i = 0; i < 1000; i++) {
            sim_lru(&s, &s.items[first + i]);
            s.reads++;
        }
    }
    assert_int_equal(s.lru_hits, 0);
    assert_int_equal(s.reads, 4000);
    sim_fini(&s);
    (void)state;
}

/* When the job moves from a/ to b/ in one bucket, b/ has the cache from its third epoch on at the latest; the
 * same for keys beside the folders, and for the way back. */
static void a_change_of_data_set_in_a_bucket_is_cached_by_its_third_epoch(void **state)
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        for (uint64_t step = 10; step <= 10000; step *= 30) {
            struct sim s;
            sim_init(&s, seed, 1000 * MIB, 2900);
            const int firsts[] = {sim_add(&s, "data/a/", 1000, MIB), sim_add(&s, "data/b/", 1000, MIB),
                                  sim_add(&s, "data/", 900, MIB), 0};
            for (size_t i = 0; i < ARRAY_SIZE(firsts); i++) {
                int n = firsts[i] == 2000 ? 900 : 1000;
                (void)sim_epoch(&s, firsts[i], n, step, seed % 2);
                assert_true(sim_epoch(&s, firsts[i], n, step, seed % 2) >= 80);
                assert_true(sim_epoch(&s, firsts[i], n, step, seed % 2) >= 97);
                assert_true(sim_epoch(&s, firsts[i], n, step, seed % 2) >= 97);
            }
            sim_fini(&s);
        }
    }
    (void)state;
}

/* Two data sets that fit alone but not together and are read in turn: after the second round neither takes
 * from the other, at any pace, and together they hit on half of all reads. */
static void two_sets_read_in_turn_leave_each_other_alone(void **state)
{
    for (uint64_t seed = 1; seed <= 3; seed++) {
        for (uint64_t step = 1; step <= 10000; step *= 10) {
            struct sim s;
            sim_init(&s, seed, 1000 * MIB, 2000);
            int a = sim_add(&s, "data/a/", 1000, MIB), b = sim_add(&s, "data/b/", 1000, MIB);
            for (int round = 0; round < 3; round++) {
                (void)sim_epoch(&s, a, 1000, step, true);
                (void)sim_epoch(&s, b, 1000, step, true);
            }
            uint64_t evicted = s.evicted, hits = s.hits, reads = s.reads;
            for (int round = 0; round < 6; round++) {
                (void)sim_epoch(&s, a, 1000, step, true);
                (void)sim_epoch(&s, b, 1000, step, true);
            }
            assert_true(s.evicted - evicted < 100);
            assert_true((s.hits - hits) * 100 / (s.reads - reads) >= 48);
            sim_fini(&s);
        }
    }
    (void)state;
}

/* A training set with a small validation set after each epoch: both stay, whatever the pace. */
static void training_and_validation_share_the_cache(void **state)
{
    for (uint64_t step = 10; step <= 1000; step *= 10) {
        struct sim s;
        sim_init(&s, step, 1000 * MIB, 2000);
        int train = sim_add(&s, "data/train/", 800, MIB), val = sim_add(&s, "data/val/", 100, MIB);
        for (int epoch = 0; epoch < 2; epoch++) {
            (void)sim_epoch(&s, train, 800, step, true);
            (void)sim_epoch(&s, val, 100, step, false);
        }
        for (int epoch = 0; epoch < 5; epoch++) {
            assert_int_equal(sim_epoch(&s, train, 800, step, true), 100);
            assert_int_equal(sim_epoch(&s, val, 100, step, false), 100);
        }
        sim_fini(&s);
    }
    (void)state;
}

/* While a hot set is being read, someone copies a prefix of twenty times the cache: the hot set keeps its
 * hits. */
static void one_scan_of_a_huge_prefix_does_not_destroy_the_hot_set(void **state)
{
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct sim s;
        sim_init(&s, seed, 500 * MIB, 12000);
        int hot = sim_add(&s, "data/hot/", 450, MIB), huge = sim_add(&s, "data/huge/", 10000, MIB);
        for (int epoch = 0; epoch < 3; epoch++)
            (void)sim_epoch(&s, hot, 450, 100, true);
        uint64_t hot_hits = 0;
        for (int i = 0; i < 10000; i++) { /* two hot reads for each of the scan's */
            sim_read(&s, huge + i);
            for (int k = 0; k < 2; k++) {
                uint64_t before = s.hits;
                sim_read(&s, hot + (int)(next_random(&s) % 450));
                hot_hits += s.hits - before;
            }
            s.now_ms += 100;
        }
        assert_true(hot_hits >= 20000 * 95 / 100);
        assert_true(sim_epoch(&s, hot, 450, 100, true) >= 90);
        sim_fini(&s);
    }
    (void)state;
}

/* When the job moves on within one set (keys that differ in no folder), what it left goes once it is stale:
 * after twice its re-read interval, long before a day. Fails when evict_judge ignores the learned interval.
 */
static void files_left_behind_in_one_set_go_when_stale(void **state)
{
    struct sim s;
    sim_init(&s, 9, 1000 * MIB, 1800);
    int old = sim_add(&s, "data/old", 900, MIB), new = sim_add(&s, "data/new", 900, MIB);
    for (int epoch = 0; epoch < 4; epoch++)
        (void)sim_epoch(&s, old, 900, 1000, true);
    for (int epoch = 0; epoch < 5; epoch++)
        (void)sim_epoch(&s, new, 900, 1000, true);
    assert_true(s.now_ms - START_MS < DAY_MS);
    assert_true(sim_epoch(&s, new, 900, 1000, true) >= 95);
    sim_fini(&s);
    (void)state;
}

/* Tar shards read in 16 pieces by several workers: the pieces of one pass are not taken for re-reads, which
 * would make everything stale within seconds and turn the policy into LRU. Fails without the turnover rule in
 * note_gap. */
static void pieces_of_one_pass_are_not_taken_for_rereads(void **state)
{
    struct sim s;
    sim_init(&s, 5, 6400 * MIB, 200);
    int first = sim_add(&s, "data/shards/", 200, 64 * MIB);
    for (int epoch = 0; epoch < 5; epoch++) {
        int present = 0;
        for (int i = 0; i < 200; i += 4) {
            for (int k = 0; k < 4; k++)
                present += s.items[first + i + k].cached_at >= 0;
            for (int piece = 0; piece < 16; piece++) {
                for (int k = 0; k < 4; k++)
                    (void)sim_read_part(&s, first + i + k, 4 * MIB);
                s.now_ms += 700;
            }
        }
        assert_true(epoch == 0 || present >= 98);
    }
    struct evict_set_info info;
    uint32_t set = evict_set_of(s.t, slice_str(s.items[0].key), SLICE_NULL, s.now_ms);
    assert_int_equal(evict_set_info(s.t, set, &info), 0);
    assert_true(info.reread_interval_ms > 200000); /* an epoch takes 560 s */
    sim_fini(&s);
    (void)state;
}

/* Epochs that become ten times slower, and a night's pause, cost little: the interval follows what comes
 * back, and the absence is not part of it. Fails when extent_age_ms leaves the absence in. */
static void slower_epochs_and_a_night_are_survived(void **state)
{
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        struct sim s;
        sim_init(&s, 7, 1000 * MIB, 2000);
        int first = sim_add(&s, "data/a/", 2000, MIB);
        for (int epoch = 0; epoch < 3; epoch++)
            (void)sim_epoch(&s, first, 2000, 10, shuffle);
        for (int epoch = 0; epoch < 2; epoch++)
            (void)sim_epoch(&s, first, 2000, 100, shuffle);
        for (int epoch = 0; epoch < 2; epoch++)
            assert_true(sim_epoch(&s, first, 2000, 100, shuffle) >= 48);
        s.now_ms += DAY_MS / 3;
        for (int epoch = 0; epoch < 2; epoch++)
            assert_true(sim_epoch(&s, first, 2000, 100, shuffle) >= 48);
        sim_fini(&s);
    }
    (void)state;
}

/* A data set in many folders, read folder after folder, settles at half too, within three rounds. */
static void folders_read_one_after_another_settle_at_half(void **state)
{
    for (int dirs = 2; dirs <= 200; dirs *= 3) {
        struct sim s;
        sim_init(&s, 7, 1000 * MIB, 2000);
        for (int d = 0; d < dirs; d++) {
            char prefix[32];
            snprintf(prefix, sizeof(prefix), "data/train/%d/", d);
            (void)sim_add(&s, prefix, 2000 / dirs, MIB);
        }
        for (int epoch = 0; epoch < 3; epoch++)
            (void)sim_epoch(&s, 0, s.n_items, 10, /* shuffle= */ false);
        for (int epoch = 0; epoch < 3; epoch++)
            assert_true(sim_epoch(&s, 0, s.n_items, 10, /* shuffle= */ false) >= 48);
        sim_fini(&s);
    }
    (void)state;
}

/* A thousand class folders of one shuffled data set stay one set. */
static void class_folders_stay_one_set(void **state)
{
    struct sim s;
    sim_init(&s, 3, 1000 * MIB, 2000);
    for (int d = 0; d < 1000; d++) {
        char prefix[32];
        snprintf(prefix, sizeof(prefix), "data/train/n%04d/", d);
        (void)sim_add(&s, prefix, 2, MIB);
    }
    for (int epoch = 0; epoch < 3; epoch++)
        (void)sim_epoch(&s, 0, 2000, 10, /* shuffle= */ true);
    assert_true(evict_sets_count(s.t) <= 4); /* the empty prefix, data/, data/train/ */
    sim_fini(&s);
    (void)state;
}

/* Whatever the rest says, held extents stay: in a cache of only pinned, dirty and referenced extents nothing
 * new is admitted, and mixed with others the others go. sim_make_room asserts it for each victim. */
static void pinned_dirty_and_referenced_extents_are_never_chosen(void **state)
{
    struct sim s;
    sim_init(&s, 11, 300 * MIB, 1000);
    int a = sim_add(&s, "data/a/", 300, MIB), b = sim_add(&s, "data/b/", 300, MIB);
    (void)sim_epoch(&s, a, 300, 10, false);
    for (int i = 0; i < 150; i++) {
        struct item *it = &s.items[a + i];
        it->pinned = i % 3 == 0;
        it->dirty = i % 3 == 1;
        it->referenced = i % 3 == 2;
    }
    s.now_ms += 10 * DAY_MS;
    for (int epoch = 0; epoch < 4; epoch++)
        (void)sim_epoch(&s, b, 300, 10, true);
    int held = 0, others = 0;
    for (int i = 0; i < 300; i++)
        *(i < 150 ? &held : &others) += s.items[a + i].cached_at >= 0;
    assert_int_equal(held, 150);
    assert_int_equal(others, 0);
    sim_fini(&s);

    struct evict_sets *t = evict_sets_new(MIB);
    struct evict_candidate c = {.last_read_ms = 1, .size_bytes = 1, .dead = true};
    assert_int_equal(evict_judge(t, &c, 0, START_MS), EVICT_DEAD);
    for (int i = 0; i < 3; i++) {
        c.pinned = i == 0;
        c.dirty = i == 1;
        c.referenced = i == 2;
        assert_int_equal(evict_judge(t, &c, 0, START_MS), EVICT_KEEP);
        assert_int_equal(evict_choose(t, &c, 1, 0, START_MS), -1);
        assert_int_equal(evict_choose_forced(t, &c, 1, 0, START_MS), -1);
    }
    evict_sets_free(t);
    (void)state;
}

/* Dead before stale before idle set; the older first among equals; nothing else but for what must be
 * admitted. */
static void victims_come_in_the_stated_order(void **state)
{
    struct evict_sets *t = evict_sets_new(GIB);
    uint64_t now = START_MS;
    uint32_t left = evict_set_of(t, SLICE_LIT("left/x"), SLICE_NULL, now);
    uint32_t here = evict_set_of(t, SLICE_LIT("here/x"), SLICE_NULL, now);
    evict_set_read(t, left, 0, now - 10000, 1);
    evict_set_read(t, here, 0, now, 1);
    struct evict_candidate c[] = {
        {.set = here, .last_read_ms = now - 500},        {.set = left, .last_read_ms = now - 10000},
        {.set = left, .last_read_ms = now - 20000},      {.set = here, .last_read_ms = now - 3 * DAY_MS},
        {.set = here, .last_read_ms = now - 4 * DAY_MS}, {.set = here, .last_read_ms = now, .dead = true},
    };
    assert_int_equal(evict_choose(t, c, 0, here, now), -1);
    assert_int_equal(evict_choose(t, c, 1, here, now), -1);
    assert_int_equal(evict_choose_forced(t, c, 1, here, now), 0);
    assert_int_equal(evict_choose(t, c, 2, here, now), 1);
    assert_int_equal(evict_choose(t, c, 3, here, now), 2);
    assert_int_equal(evict_choose(t, c, 4, here, now), 3);
    assert_int_equal(evict_choose(t, c, 5, here, now), 4);
    assert_int_equal(evict_choose(t, c, 6, here, now), 5);
    assert_int_equal(evict_judge(t, &c[0], here, now), EVICT_KEEP);
    assert_int_equal(evict_judge(t, &c[1], here, now), EVICT_IDLE_SET);
    assert_int_equal(evict_judge(t, &c[1], left, now), EVICT_KEEP);
    assert_int_equal(evict_judge(t, &c[3], left, now), EVICT_STALE);
    struct evict_candidate two[] = {{.set = here, .last_read_ms = now - 5},
                                    {.set = here, .last_read_ms = now - 9}};
    assert_int_equal(evict_choose_forced(t, two, 2, here, now), 1);
    evict_sets_free(t);
    (void)state;
}

/* A clock set back by an hour makes nothing stale; times a year ahead count as never read, so that they block
 * nothing. */
static void a_clock_set_back_is_tolerated(void **state)
{
    struct evict_sets *t = evict_sets_new(GIB);
    uint64_t now = START_MS;
    uint32_t set = evict_set_of(t, SLICE_LIT("b/x"), SLICE_NULL, now);
    evict_set_read(t, set, 0, now, 1);
    evict_set_read(t, set, now, now - 3600000, 1);
    struct evict_candidate c = {.set = set, .last_read_ms = now};
    assert_int_equal(evict_judge(t, &c, set, now - 3600000), EVICT_KEEP);
    c.last_read_ms = now + 365 * DAY_MS;
    assert_int_equal(evict_judge(t, &c, set, now), EVICT_STALE);
    evict_sets_check(t);
    evict_sets_free(t);
    (void)state;
}

/* One set per bucket, found by the first component; keys without '/' share the empty prefix; marked prefixes
 * win, also for calls that do not pass them, and are not split. */
static void sets_are_found_by_prefix(void **state)
{
    struct evict_sets *t = evict_sets_new(1000);
    uint64_t now = START_MS;
    uint32_t a = evict_set_of(t, SLICE_LIT("a/x"), SLICE_NULL, now);
    assert_int_equal(evict_set_of(t, SLICE_LIT("a/y/z"), SLICE_NULL, now), a);
    assert_int_not_equal(evict_set_of(t, SLICE_LIT("b/x"), SLICE_NULL, now), a);
    assert_int_equal(evict_set_of(t, SLICE_LIT("plain"), SLICE_NULL, now), 0);
    assert_int_equal(evict_set_of(t, SLICE_LIT(""), SLICE_NULL, now), 0);

    evict_set_grow(t, a, 100); /* 10 % of the cache */
    uint32_t split = a;
    for (int i = 0; i < 8 && split == a; i++)
        split = evict_set_of(t, SLICE_LIT("a/y/z"), SLICE_NULL, now);
    assert_int_not_equal(split, a);
    struct evict_set_info info;
    assert_int_equal(evict_set_info(t, split, &info), 0);
    assert_true(slice_eq_str(info.prefix, "a/y/"));
    assert_int_equal(evict_set_of(t, SLICE_LIT("a/x"), SLICE_NULL, now), a);

    uint32_t marked = evict_set_of(t, SLICE_LIT("a/y/data-1"), SLICE_LIT("a/y/data"), now);
    assert_int_equal(evict_set_of(t, SLICE_LIT("a/y/data-2"), SLICE_NULL, now), marked);
    assert_int_equal(evict_set_of(t, SLICE_LIT("a/y/other"), SLICE_NULL, now), split);
    evict_set_grow(t, marked, 500);
    for (int i = 0; i < 20; i++)
        assert_int_equal(evict_set_of(t, SLICE_LIT("a/y/data/deep/x"), SLICE_NULL, now), marked);
    assert_int_equal(evict_set_info(t, marked, &info), 0);
    assert_true(info.marked && info.bytes == 500);
    assert_int_equal(evict_set_of(t, SLICE_LIT("a/x"), SLICE_LIT("a/"), now), a); /* found, then marked */
    assert_int_equal(evict_set_info(t, a, &info), 0);
    assert_true(info.marked);
    evict_sets_check(t);
    evict_sets_free(t);
    (void)state;
}

/* Bytes never go below 0, and numbers of sets that are gone do nothing. */
static void bytes_are_counted_per_set(void **state)
{
    struct evict_sets *t = evict_sets_new(1000);
    struct evict_set_info info;
    evict_set_grow(t, 0, 10);
    evict_set_grow(t, 0, -4);
    assert_int_equal(evict_set_info(t, 0, &info), 0);
    assert_int_equal(info.bytes, 6);
    evict_set_grow(t, 0, -100);
    evict_set_grow(t, 0, INT64_MIN);
    assert_int_equal(evict_set_info(t, 0, &info), 0);
    assert_int_equal(info.bytes, 0);
    evict_set_grow(t, 12345, 10);
    evict_set_read(t, UINT32_MAX, 1, START_MS, 10);
    assert_int_equal(evict_set_info(t, 12345, &info), -ENOENT);
    struct evict_candidate c = {.set = 12345, .last_read_ms = START_MS};
    assert_int_equal(evict_judge(t, &c, 0, START_MS + 500), EVICT_KEEP);
    assert_int_equal(evict_judge(t, &c, 0, START_MS + 5000), EVICT_IDLE_SET);
    evict_sets_check(t);
    evict_sets_free(t);
    (void)state;
}

/* However many buckets and prefixes come, the table stays within EVICT_SETS_MAX; only empty sets that nobody
 * reads are given up, and their numbers do not come back. */
static void the_table_never_exceeds_its_maximum(void **state)
{
    struct evict_sets *t = evict_sets_new(1000);
    uint64_t now = START_MS;
    char key[64];
    uint32_t first = 0;
    for (int i = 0; i < 3000; i++) {
        snprintf(key, sizeof(key), "bucket%d/x", i);
        uint32_t set = evict_set_of(t, slice_str(key), SLICE_NULL, now);
        if (i == 0)
            first = set;
        evict_set_grow(t, set, i % 2 ? 1 : 0);
        assert_true(evict_sets_count(t) <= EVICT_SETS_MAX);
    }
    evict_sets_check(t);
    struct evict_set_info info;
    assert_int_equal(evict_set_info(t, first, &info), 0);
    assert_int_equal(evict_set_of(t, SLICE_LIT("late/x"), SLICE_NULL, now), 0); /* full: all are young */

    now += 120000;
    uint32_t late = evict_set_of(t, SLICE_LIT("late/x"), SLICE_NULL, now);
    assert_int_not_equal(late, 0);
    for (int i = 0; i < 3000; i++) {
        snprintf(key, sizeof(key), "second%d/x", i);
        (void)evict_set_of(t, slice_str(key), SLICE_NULL, now);
    }
    assert_int_equal(evict_sets_count(t), EVICT_SETS_MAX);
    evict_sets_check(t);
    assert_int_equal(evict_set_info(t, first, &info), -ENOENT);
    for (int i = 1; i < 1000; i += 2) { /* those with bytes are all there */
        snprintf(key, sizeof(key), "bucket%d/", i);
        assert_int_equal(evict_set_info(t, evict_set_of(t, slice_str(key), SLICE_NULL, now), &info), 0);
        assert_true(slice_eq_str(info.prefix, key));
    }
    evict_sets_free(t);
    (void)state;
}

/* Evicted keys are remembered with their last read; others are not. */
static void evicted_keys_are_remembered_for_a_while(void **state)
{
    struct evict_sets *t = evict_sets_new(1000);
    assert_int_equal(evict_former_read(t, SLICE_LIT("a")), 0);
    evict_note_evicted(t, SLICE_LIT("a"), 17);
    assert_int_equal(evict_former_read(t, SLICE_LIT("a")), 17);
    evict_note_evicted(t, SLICE_LIT("a"), 18);
    assert_int_equal(evict_former_read(t, SLICE_LIT("a")), 18);
    assert_int_equal(evict_former_read(t, SLICE_LIT("b")), 0);
    int remembered = 0;
    for (uint64_t i = 0; i < 200000; i++)
        evict_note_evicted(t, slice_of(&i, sizeof(i)), i + 1);
    for (uint64_t i = 0; i < 200000; i++) {
        uint64_t was = evict_former_read(t, slice_of(&i, sizeof(i)));
        assert_true(was == 0 || was == i + 1);
        remembered += was != 0 && i < 150000;
    }
    assert_true(remembered > 300); /* older ones too, as a sample */
    evict_sets_free(t);
    (void)state;
}

static struct evict_sets *small_table(void)
{
    struct evict_sets *t = evict_sets_new(1000);
    uint64_t now = START_MS;
    uint32_t a = evict_set_of(t, SLICE_LIT("a/x"), SLICE_NULL, now);
    evict_set_grow(t, a, 100);
    for (int i = 0; i < 20; i++) {
        now += 2000;
        evict_set_read(t, a, i ? now - 7000 : 0, now, 60);
    }
    evict_set_grow(t, evict_set_of(t, SLICE_LIT("b/c"), SLICE_LIT("b/c"), now), 7);
    return t;
}

/* clang-format off */
static const char small_table_hex[] =
    "46424556" "01000000" "03000000" /* FBEV, format, sets */
    /* the empty prefix: number, marked, prefix, seven numbers, no pauses, no gaps */
    "00000000" "00" "0000"
    "0000000000000000" "0000000000000000" "0000000000000000" "0000000000000000"
    "0000000000000000" "0000000000000000" "0000000000000000" "00" "00"
    /* a/ */
    "01040000" "00" "0200" "612f"
    "6400000000000000" "4004e6cf8b010000" "a077e5cf8b010000" "d007000000000000"
    "a08c000000000000" "b004000000000000" "b004000000000000"
    "01" "01" "4004e6cf8b010000"         /* a pause of 2 s */
    "02" "0c" "04000000" "0d" "0f000000" /* gaps of 5 and 7 s */
    /* b/c, marked */
    "02040000" "01" "0300" "622f63"
    "0700000000000000" "0000000000000000" "4004e6cf8b010000" "0000000000000000"
    "0000000000000000" "0000000000000000" "0000000000000000" "00" "00"
    "a04c6abd"; /* crc32c */
/* clang-format on */

/* The persisted form is the documented one, byte for byte, and decodes to a table that judges and encodes
 * alike. */
static void the_persisted_form_is_fixed(void **state)
{
    struct evict_sets *t = small_table(), *u = NULL;
    struct buf b = BUF_INIT(EVICT_ENCODED_MAX_BYTES), c = BUF_INIT(EVICT_ENCODED_MAX_BYTES);
    assert_int_equal(evict_sets_encode(t, &b), 0);
    char *hex = calloc(1, b.n * 2 + 1);
    assert_non_null(hex);
    text_hex(b.p, b.n, hex);
    assert_string_equal(hex, small_table_hex);
    free(hex);

    assert_int_equal(evict_sets_decode(buf_view(&b), 1000, &u), 0);
    evict_sets_check(u);
    assert_int_equal(evict_sets_encode(u, &c), 0);
    assert_true(slice_eq(buf_view(&b), buf_view(&c)));
    struct evict_set_info x, y;
    uint32_t set = evict_set_of(t, SLICE_LIT("a/x"), SLICE_NULL, START_MS);
    assert_int_equal(evict_set_of(u, SLICE_LIT("a/x"), SLICE_NULL, START_MS), set);
    assert_int_equal(evict_set_info(t, set, &x), 0);
    assert_int_equal(evict_set_info(u, set, &y), 0);
    assert_true(x.reread_interval_ms > 0 && x.reread_interval_ms == y.reread_interval_ms);
    assert_true(x.last_read_ms == y.last_read_ms && x.active_since_ms == y.active_since_ms &&
                x.bytes == y.bytes);
    assert_int_equal(evict_set_of(u, SLICE_LIT("b/cd"), SLICE_NULL, START_MS),
                     evict_set_of(t, SLICE_LIT("b/cd"), SLICE_NULL, START_MS));
    buf_fini(&b);
    buf_fini(&c);
    evict_sets_free(t);
    evict_sets_free(u);
    (void)state;
}

/* A full table fits the stated maximum; a buffer too small is left as it was. */
static void a_full_table_encodes_within_its_maximum(void **state)
{
    struct evict_sets *t = evict_sets_new(1000), *u = NULL;
    char key[2100];
    for (int i = 0; i < 1100; i++) {
        int n = snprintf(key, sizeof(key), "%d", i);
        memset(key + n, 'k', sizeof(key) - (size_t)n);
        key[2040] = '/';
        (void)evict_set_of(t, slice_of(key, 2050), SLICE_NULL, START_MS);
    }
    assert_int_equal(evict_sets_count(t), EVICT_SETS_MAX);
    struct buf b = BUF_INIT(EVICT_ENCODED_MAX_BYTES), small = BUF_INIT(1000);
    assert_int_equal(evict_sets_encode(t, &b), 0);
    assert_int_equal(evict_sets_decode(buf_view(&b), 1000, &u), 0);
    assert_int_equal(evict_sets_count(u), EVICT_SETS_MAX);
    evict_sets_check(u);
    assert_int_equal(buf_str(&small, "kept"), 0);
    assert_int_equal(evict_sets_encode(t, &small), -E2BIG);
    assert_true(slice_eq_str(buf_view(&small), "kept"));
    buf_fini(&b);
    buf_fini(&small);
    evict_sets_free(t);
    evict_sets_free(u);
    (void)state;
}

static void seal(struct buf *b)
{
    uint32_t crc = crc32c(0, b->p, b->n - 4);
    for (int i = 0; i < 4; i++)
        b->p[b->n - 4 + (size_t)i] = (char)(crc >> (8 * i));
}

/* Anything else is refused: every cut, every changed byte, and changed bytes under a right checksum either
 * decode to a sound table or are refused. */
static void garbage_is_refused(void **state)
{
    struct evict_sets *t = small_table(), *u = NULL;
    struct buf b = BUF_INIT(EVICT_ENCODED_MAX_BYTES);
    assert_int_equal(evict_sets_encode(t, &b), 0);
    for (size_t n = 0; n < b.n; n++)
        assert_int_equal(evict_sets_decode(slice_of(b.p, n), 1000, &u), ERR_CORRUPT);
    int refused = 0;
    for (size_t i = 0; i < b.n; i++) {
        for (int bit = 0; bit < 8; bit++) {
            b.p[i] = (char)(b.p[i] ^ (1 << bit));
            assert_int_equal(evict_sets_decode(buf_view(&b), 1000, &u), ERR_CORRUPT);
            char crc[4];
            memcpy(crc, b.p + b.n - 4, 4);
            if (i < b.n - 4) {
                seal(&b);
                int r = evict_sets_decode(buf_view(&b), 1000, &u);
                assert_true(r == 0 || r == ERR_CORRUPT);
                refused += r != 0;
                if (r == 0) {
                    evict_sets_check(u);
                    struct evict_candidate c = {.set = 1025, .last_read_ms = START_MS};
                    (void)evict_judge(u, &c, 1025, START_MS + 9000);
                    evict_set_read(u, 1025, START_MS, START_MS + 9000, 60);
                    evict_sets_free(u);
                }
                memcpy(b.p + b.n - 4, crc, 4);
            }
            b.p[i] = (char)(b.p[i] ^ (1 << bit));
        }
    }
    assert_true(refused > 100);
    assert_int_equal(buf_char(&b, 0), 0); /* one byte too many */
    seal(&b);
    assert_int_equal(evict_sets_decode(buf_view(&b), 1000, &u), ERR_CORRUPT);
    buf_fini(&b);
    evict_sets_free(t);
    (void)state;
}

/* Stopping and starting in mid-job changes nothing: the decoded table goes on where the other was. */
static void a_restart_keeps_what_was_learned(void **state)
{
    struct sim s;
    sim_init(&s, 21, 1000 * MIB, 2000);
    int first = sim_add(&s, "data/train/", 2000, MIB);
    for (int epoch = 0; epoch < 5; epoch++) {
        unsigned hits = sim_epoch(&s, first, 2000, 50, true);
        assert_true(epoch == 0 || hits >= 49);
        struct buf b = BUF_INIT(EVICT_ENCODED_MAX_BYTES);
        struct evict_sets *u;
        assert_int_equal(evict_sets_encode(s.t, &b), 0);
        assert_int_equal(evict_sets_decode(buf_view(&b), s.cache_bytes, &u), 0);
        evict_sets_free(s.t);
        s.t = u;
        buf_fini(&b);
        s.now_ms += 30000;
    }
    sim_fini(&s);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cyclic_scan_over_twice_the_cache_keeps_half),
        cmocka_unit_test(lru_gets_nothing_from_the_same_scan),
        cmocka_unit_test(a_change_of_data_set_in_a_bucket_is_cached_by_its_third_epoch),
        cmocka_unit_test(two_sets_read_in_turn_leave_each_other_alone),
        cmocka_unit_test(training_and_validation_share_the_cache),
        cmocka_unit_test(one_scan_of_a_huge_prefix_does_not_destroy_the_hot_set),
        cmocka_unit_test(files_left_behind_in_one_set_go_when_stale),
        cmocka_unit_test(pieces_of_one_pass_are_not_taken_for_rereads),
        cmocka_unit_test(slower_epochs_and_a_night_are_survived),
        cmocka_unit_test(folders_read_one_after_another_settle_at_half),
        cmocka_unit_test(class_folders_stay_one_set),
        cmocka_unit_test(pinned_dirty_and_referenced_extents_are_never_chosen),
        cmocka_unit_test(victims_come_in_the_stated_order),
        cmocka_unit_test(a_clock_set_back_is_tolerated),
        cmocka_unit_test(sets_are_found_by_prefix),
        cmocka_unit_test(bytes_are_counted_per_set),
        cmocka_unit_test(the_table_never_exceeds_its_maximum),
        cmocka_unit_test(evicted_keys_are_remembered_for_a_while),
        cmocka_unit_test(the_persisted_form_is_fixed),
        cmocka_unit_test(a_full_table_encodes_within_its_maximum),
        cmocka_unit_test(garbage_is_refused),
        cmocka_unit_test(a_restart_keeps_what_was_learned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
