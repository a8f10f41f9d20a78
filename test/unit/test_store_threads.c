/* layer: store */
/* threaded */
/* Many threads find, create, fill, replace, publish, remove and evict at once; every byte that is served must
 * be right. */
#include "test_store_common.h"
#include "test_store_kv.h"

#include "base/log.h"

#include <pthread.h>
#include <stdatomic.h>

enum { KEYS = 40, THREADS = 6, STEPS = 200 };

struct worker {
    struct fixture *f;
    unsigned seed;
    uint64_t served, created, denied;
};

/* The version is in the attributes, so that a reader knows what the bytes of the extent that it got must be.
 */
static uint64_t version_of(struct extent *x)
{
    struct buf _cleanup_buf_ b = BUF_INIT(KIB);
    assert_int_equal(extent_attr(x, &b), 0);
    return strtoull(b.p, NULL, 10);
}

static uint64_t size_of_version(uint64_t version)
{
    return hash_mix(version, 99) % (3 * MIB + 1);
}

static void read_some(struct worker *w, struct extent *x)
{
    uint64_t size = extent_size(x), version = version_of(x);
    assert_int_equal(size, size_of_version(version));
    extent_touch(x, size);
    for (int i = 0; i < 4 && size > 0; i++) {
        uint64_t at = (uint64_t)rand_r(&w->seed) % size;
        w->served += check_run(x, version, at, MIN(size - at, 20000));
    }
}

static void make(struct worker *w, const char *key)
{
    uint64_t version = (uint64_t)rand_r(&w->seed), size = size_of_version(version);
    char attr[32];
    (void)snprintf(attr, sizeof(attr), "%llu", (unsigned long long)version);
    struct store_new n = {.key = slice_str(key), .attr = slice_str(attr), .size_bytes = size};
    struct extent *_cleanup_(extent_unrefp) x = NULL;
    int r;
    if (rand_r(&w->seed) % 3 == 0) {
        r = store_stage(w->f->s, n.key, size, &x, NULL);
        _cleanup_free_ char *p = content_new(version, 0, size);
        if (r == 0)
            r = extent_write(x, p, size, 0);
        if (r == 0 && rand_r(&w->seed) % 4 != 0)
            r = store_publish(w->f->s, x, &n, NULL);
    } else {
        n.pinned_admission = rand_r(&w->seed) % 2;
        r = store_create(w->f->s, &n, &x, NULL);
        for (uint64_t at = 0; r == 0 && at < size; at += MIB)
            if (rand_r(&w->seed) % 8 != 0)
                r = fill_range(x, version, at, MIN(MIB, size - at));
    }
    assert_true(r == 0 || r == ERR_NOT_ADMITTED || r == -ENOSPC);
    w->created += r == 0;
    w->denied += r != 0;
}

static void *work(void *arg)
{
    struct worker *w = arg;
    for (int i = 0; i < STEPS; i++) {
        char key[16];
        (void)snprintf(key, sizeof(key), "b%d/k%d", i % 3, rand_r(&w->seed) % KEYS);
        struct extent *x = NULL;
        int r = store_find(w->f->s, slice_str(key), &x);
        assert_true(r == 0 || r == -ENOENT);
        if (r == 0)
            read_some(w, x);
        unsigned what = (unsigned)rand_r(&w->seed) % 20;
        if (what < 8)
            make(w, key);
        else if (what == 8)
            (void)store_remove(w->f->s, slice_str(key));
        else if (what == 9 && x)
            store_remove_extent(w->f->s, x);
        else if (what == 10)
            assert_int_equal(store_flush(w->f->s, NULL), 0);
        else if (what == 11 && i % 50 == 0)
            assert_true(store_remove_prefix(w->f->s, SLICE_LIT("b1/")) >= 0);
        if (x && rand_r(&w->seed) % 2)
            read_some(w, x);
        extent_unref(x);
    }
    return NULL;
}

static void run_workers(struct fixture *f, unsigned seed, uint64_t *ret_served)
{
    struct worker w[THREADS];
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        w[i] = (struct worker){f, seed + (unsigned)i, 0, 0, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &w[i]), 0);
    }
    uint64_t created = 0;
    *ret_served = 0;
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        *ret_served += w[i].served;
        created += w[i].created;
    }
    assert_true(*ret_served > 0 && created > 0);
}

/* All entries of the store, and what their files occupy, agree with its counts; a check finds nothing wrong.
 */
static void check_store(struct fixture *f)
{
    struct store_check_report report;
    assert_int_equal(store_check(f->s, false, NULL, NULL, &report, NULL), 0);
    assert_int_equal(report.bad_blocks + report.missing_files + report.orphan_files + report.bad_records, 0);
    uint64_t extents = 0;
    for (size_t i = 0; i < f->config.n_disks; i++) {
        struct store_disk_status st = disk_status(f->s, i);
        assert_int_equal(st.leased_bytes, 0);
        assert_true(st.used_bytes <= st.limit_bytes);
        assert_int_equal(st.used_bytes, f->s->disks[i].count.used_bytes);
        assert_int_equal(st.extents, f->s->disks[i].count.extents);
        extents += st.extents;
    }
    assert_int_equal(extents, report.extents);
}

/* RocksDB is not built for the thread sanitizer, which takes its lock-free reads for races. */
static int setup(void **state)
{
#ifdef __SANITIZE_THREAD__
    testkv_use();
#endif
    return 0;
}

static int teardown(void **state)
{
    testkv_reset();
    return 0;
}

/* On disks that are too small for everything, so that eviction goes on all the time. */
static void test_concurrent_use(void **state)
{
    struct fixture f;
    fixture_init(&f, 2, 14 * MIB);
    f.config.flush_interval_ms = 20;
    fixture_open(&f);
    f.s->fds_max = 3;
    f.s->lru_bytes_max = 0;
    uint64_t served;
    run_workers(&f, 1, &served);
    check_store(&f);
    fixture_close(&f);
    f.config.flush_interval_ms = 3600000;
    fixture_open(&f);
    check_store(&f);
    run_workers(&f, 100, &served);
    check_store(&f);
    fixture_abandon(&f);
    fixture_open(&f);
    check_store(&f);
    fixture_fini(&f);
}

struct meeting {
    struct fixture *f;
    pthread_barrier_t *barrier;
    struct extent *found[100];
};

static void *find_all(void *arg)
{
    struct meeting *m = arg;
    (void)pthread_barrier_wait(m->barrier);
    for (int i = 0; i < 100; i++) {
        char key[16];
        (void)snprintf(key, sizeof(key), "k%d", i);
        assert_int_equal(store_find(m->f->s, slice_str(key), &m->found[i]), 0);
    }
    return NULL;
}

/* Threads that load the same keys at the same time get the same extents. */
static void test_concurrent_loads_meet(void **state)
{
    struct fixture f;
    fixture_init(&f, 1, 14 * MIB);
    fixture_open(&f);
    char key[16];
    for (int i = 0; i < 100; i++) {
        (void)snprintf(key, sizeof(key), "k%d", i);
        put(f.s, key, (uint64_t)i, 100);
    }
    fixture_close(&f);
    fixture_open(&f);
    pthread_barrier_t barrier;
    pthread_t threads[4];
    struct meeting m[4];
    assert_int_equal(pthread_barrier_init(&barrier, NULL, 4), 0);
    for (int i = 0; i < 4; i++) {
        m[i] = (struct meeting){&f, &barrier, {NULL}};
        assert_int_equal(pthread_create(&threads[i], NULL, find_all, &m[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(pthread_barrier_destroy(&barrier), 0);
    for (int i = 0; i < 100; i++) {
        for (int k = 0; k < 4; k++) {
            assert_ptr_equal(m[k].found[i], m[0].found[i]);
            extent_unref(m[k].found[i]);
        }
    }
    fixture_fini(&f);
}

static void *mark(void *arg)
{
    struct id128 id;
    assert_int_equal(disk_mark_birth(arg, &id, NULL), 0);
    return NULL;
}

static atomic_uint marked;

static void *mark_the_rest(void *arg)
{
    for (int i = 0; i < BIRTHS_LOW - 1; i++) {
        (void)mark(arg);
        marked++;
    }
    return NULL;
}

static bool is_making(struct disk *d)
{
    LOCK_SCOPE(&d->lock);
    return d->making_births;
}

/* Who marks the next files holds up nobody: the others take what is left meanwhile, and commit nothing of
 * their own. */
static void test_marking_ahead_holds_up_nobody(void **state)
{
    struct fixture f;
    testkv_use();
    fixture_init(&f, 1, 14 * MIB);
    fixture_open(&f);
    struct disk *d = &f.s->disks[0];
    for (int i = 0; i < 1 + BIRTHS_AHEAD - BIRTHS_LOW; i++)
        (void)mark(d);
    pthread_t one, others;
    pthread_mutex_lock(&testkv_lock); /* a commit takes long */
    assert_int_equal(pthread_create(&one, NULL, mark, d), 0);
    for (int i = 0; i < 6000 && !is_making(d); i++)
        (void)usleep(10000);
    bool makes = is_making(d);
    assert_int_equal(pthread_create(&others, NULL, mark_the_rest, d), 0);
    for (int i = 0; i < 6000 && marked < BIRTHS_LOW - 1; i++)
        (void)usleep(10000);
    unsigned got = marked;
    pthread_mutex_unlock(&testkv_lock);
    assert_int_equal(pthread_join(one, NULL), 0);
    assert_int_equal(pthread_join(others, NULL), 0);
    assert_true(makes);
    assert_int_equal(got, BIRTHS_LOW - 1);
    fixture_fini(&f);
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_concurrent_loads_meet, setup, teardown),
        cmocka_unit_test_setup_teardown(test_concurrent_use, setup, teardown),
        cmocka_unit_test_setup_teardown(test_marking_ahead_holds_up_nobody, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
