/* layer: store */
/*
 * Random operations, stops and damage, compared with a model that knows which blocks of which version must be
 * there.
 *
 * There is room for everything, so that nothing may disappear but by removal, by a kill before it was
 * recorded, or by a flipped bit in a block that is verified. FOREBAY_TEST_SEEDS makes the run longer.
 */
#include "test_store_common.h"
#include "test_store_kv.h"

#include "base/log.h"
#include "support/seeds.h"

enum { KEYS = 12, BLOCKS_MAX = 6, STEPS = 250 };

struct model_entry {
    uint64_t version; /* 0: no entry */
    uint64_t size;
    bool present[BLOCKS_MAX];
};

struct model {
    struct fixture f;
    unsigned seed;
    struct model_entry e[KEYS];
    uint64_t versions;
};

static unsigned dice(struct model *m, unsigned n)
{
    return (unsigned)rand_r(&m->seed) % n;
}

static struct slice key_of(unsigned k, char ret[16])
{
    return slice_of(ret, (size_t)sprintf(ret, "b%u/k%u", k % 3, k));
}

static uint64_t block_size(const struct model_entry *e, unsigned b)
{
    return MIN(e->size - b * MIB, MIB);
}

static unsigned n_blocks(const struct model_entry *e)
{
    return (unsigned)format_blocks(e->size);
}

/* The entry as it is now; what it holds must be what the model says, or with `subset` a part of that. */
static void compare(struct model *m, unsigned k, bool subset)
{
    struct model_entry *e = &m->e[k];
    char key[16];
    struct extent *_cleanup_(extent_unrefp) x = NULL;
    int r = store_find(m->f.s, key_of(k, key), &x);
    assert_true(r == 0 || r == -ENOENT);
    if (r == -ENOENT) {
        assert_true(subset || e->version == 0);
        *e = (struct model_entry){0};
        return;
    }
    extent_check(x);
    struct buf _cleanup_buf_ attr = BUF_INIT(KIB);
    assert_int_equal(extent_attr(x, &attr), 0);
    assert_int_equal(strtoull(attr.p, NULL, 10), e->version);
    assert_int_equal(extent_size(x), e->size);
    for (unsigned b = 0; b < n_blocks(e); b++) {
        uint64_t n = block_size(e, b), run = check_run(x, e->version, b * MIB, n);
        assert_true(run == n || run == 0);
        assert_true(run == 0 || e->present[b]);
        assert_true(subset || run == n || !e->present[b]);
        e->present[b] = run == n;
    }
}

static void compare_all(struct model *m, bool subset)
{
    for (unsigned k = 0; k < KEYS; k++)
        compare(m, k, subset);
}

static void create(struct model *m, unsigned k, bool staged)
{
    struct model_entry *e = &m->e[k];
    char key[16], attr[32];
    *e = (struct model_entry){.version = ++m->versions,
                              .size = hash_mix(m->versions, m->seed) % (BLOCKS_MAX * MIB)};
    if (dice(m, 3) == 0)
        e->size %= 5000;
    struct store_new n = {.key = key_of(k, key),
                          .attr =
                              slice_of(attr, (size_t)sprintf(attr, "%llu", (unsigned long long)e->version)),
                          .size_bytes = e->size};
    struct extent *_cleanup_(extent_unrefp) x = NULL;
    if (!staged) {
        assert_int_equal(store_create(m->f.s, &n, &x, NULL), 0);
        return;
    }
    _cleanup_free_ char *p = content_new(e->version, 0, e->size);
    assert_int_equal(store_stage(m->f.s, n.key, e->size, &x, NULL), 0);
    assert_int_equal(extent_write(x, p, e->size, 0), 0);
    assert_int_equal(store_publish(m->f.s, x, &n, NULL), 0);
    memset(e->present, true, n_blocks(e));
}

static void fill(struct model *m, unsigned k)
{
    struct model_entry *e = &m->e[k];
    char key[16];
    struct extent *_cleanup_(extent_unrefp) x = NULL;
    if (e->version == 0 || e->size == 0 || store_find(m->f.s, key_of(k, key), &x) < 0)
        return;
    unsigned first = dice(m, n_blocks(e)), last = first + dice(m, n_blocks(e) - first);
    uint64_t n = last * MIB + block_size(e, last) - first * MIB;
    bool whole = dice(m, 3) > 0;
    assert_int_equal(fill_range(x, e->version, first * MIB, whole ? n : n - 1), 0);
    for (unsigned b = first; b <= last; b++)
        e->present[b] |= whole || b < last;
}

static void remove_some(struct model *m, unsigned k)
{
    char key[16];
    if (dice(m, 6) > 0) {
        int r = store_remove(m->f.s, key_of(k, key));
        assert_int_equal(r, m->e[k].version ? 0 : -ENOENT);
        m->e[k] = (struct model_entry){0};
        return;
    }
    int64_t gone = 0;
    for (unsigned i = k % 3; i < KEYS; i += 3) {
        gone += m->e[i].version != 0;
        m->e[i] = (struct model_entry){0};
    }
    (void)snprintf(key, sizeof(key), "b%u/", k % 3);
    assert_int_equal(store_remove_prefix(m->f.s, slice_str(key)), gone);
}

/* Flips a bit in a present block while the store is down; the model learns that the block may be gone. */
static void damage(struct model *m, unsigned k, char path[DISK_PATH_MAX])
{
    struct model_entry *e = &m->e[k];
    for (unsigned b = 0; b < n_blocks(e); b++) {
        if (!e->present[b])
            continue;
        flip_bit(path, b * MIB + hash_mix(m->seed, b) % block_size(e, b));
        return;
    }
}

/* Stops in one of several ways and starts again. */
static void restart(struct model *m)
{
    unsigned how = dice(m, 4), victim = dice(m, KEYS);
    char path[DISK_PATH_MAX] = "", key[16];
    struct extent *x = NULL;
    if (how == 0) {
        fixture_close(&m->f);
    } else {
        bool exact = how == 1;
        for (size_t i = 0; exact && i < m->f.config.n_disks; i++)
            writer_drain(&m->f.s->disks[i]);
        if (how == 3 && m->e[victim].version && store_find(m->f.s, key_of(victim, key), &x) == 0) {
            extent_path(x, path);
            extent_unref(x);
        }
        fixture_abandon(&m->f);
        if (path[0])
            damage(m, victim, path);
    }
    fixture_open(&m->f);
    /* A block that was flushed long ago is not verified by reading: damage to it is the check's to find. */
    struct store_check_report r;
    assert_int_equal(store_check(m->f.s, true, NULL, NULL, &r, NULL), 0);
    assert_true(r.bad_blocks <= 1 && (path[0] || r.bad_blocks == 0));
    assert_int_equal(r.orphan_files + r.bad_records, 0);
    /* Else the next kill could bring the damaged block back, to be found once more. */
    for (size_t i = 0; i < m->f.config.n_disks; i++)
        writer_drain(&m->f.s->disks[i]);
    compare_all(m, how >= 2);
}

static void check_counts(struct model *m)
{
    uint64_t used = 0, extents = 0, want = 0, entries = 0;
    for (size_t i = 0; i < m->f.config.n_disks; i++) {
        struct store_disk_status st = disk_status(m->f.s, i);
        assert_int_equal(st.used_bytes, m->f.s->disks[i].count.used_bytes);
        assert_int_equal(st.leased_bytes, 0);
        used += st.used_bytes;
        extents += st.extents;
    }
    for (unsigned k = 0; k < KEYS; k++) {
        uint32_t present = 0;
        for (unsigned b = 0; b < n_blocks(&m->e[k]); b++)
            present += m->e[k].present[b];
        entries += m->e[k].version != 0;
        want += format_charge(m->e[k].size, present);
    }
    assert_int_equal(extents, entries);
    assert_int_equal(used, want);
}

static void run(unsigned seed)
{
    struct model m = {.seed = seed};
    fixture_init(&m.f, 2, 4 * GIB);
    testkv_use();
    fixture_open(&m.f);
    for (int i = 0; i < STEPS; i++) {
        unsigned k = dice(&m, KEYS), what = dice(&m, 40);
        if (what < 6)
            create(&m, k, /* staged= */ false);
        else if (what < 10)
            create(&m, k, /* staged= */ true);
        else if (what < 26)
            fill(&m, k);
        else if (what < 30)
            remove_some(&m, k);
        else if (what < 36)
            compare(&m, k, /* subset= */ false);
        else if (what < 38)
            assert_int_equal(store_flush(m.f.s, NULL), 0);
        else if (what == 38)
            check_counts(&m);
        else
            restart(&m);
    }
    compare_all(&m, /* subset= */ false);
    check_counts(&m);
    fixture_fini(&m.f);
    testkv_reset();
}

/* The store is the model, whatever happens to it. */
static void test_random_life(void **state)
{
    for (uint64_t seed = seeds_first(); seed < seeds_end(6); seed++)
        run((unsigned)seeds_tell(seed));
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    fixture_skip_syncs();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_life),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
