/* layer: store */
/* threaded */
/* Many threads take, write, settle, read, remove and give back hard extents at once, beside soft ones that
 * are evicted for them: every byte that is read is right, and in the end everything agrees. */
#include "test_store_common.h"
#include "test_store_kv.h"

#include "test_hard_common.h"

#include "base/log.h"

#include <pthread.h>

enum { SLOTS = 12, THREADS = 5, STEPS = 150 };

#define FILE_MAX (3 * MIB / 2)

/* A file that threads share. Its bytes at any offset are those of `seed`, whoever writes them. */
struct slot {
    pthread_mutex_t mutex; /* the fields below */
    struct location l;
    uint64_t seed; /* 0: none */
};

struct shared {
    struct fixture *f;
    struct slot v[SLOTS];
    uint64_t seeds; /* atomic */
    bool stop;      /* atomic */
};

struct worker {
    struct shared *s;
    unsigned seed;
    uint64_t bytes_read, settled, removed;
};

static void make(struct worker *w, struct slot *x)
{
    struct err e = {0};
    struct hard *h = NULL;
    struct location l;
    assert_int_equal(hard_take(w->s->f->s, &h, &e), 0);
    hard_location(h, l.b);
    if (rand_r(&w->seed) % 4 == 0) {
        hard_give_back(h);
        return;
    }
    pthread_mutex_lock(&x->mutex);
    bool free_slot = x->seed == 0;
    if (free_slot) {
        x->seed = __atomic_add_fetch(&w->s->seeds, 1, __ATOMIC_RELAXED);
        x->l = l;
    }
    pthread_mutex_unlock(&x->mutex);
    if (free_slot)
        hard_unref(h);
    else
        hard_give_back(h);
}

/* Writes the beginning of the file, by the node or by a descriptor. */
static void write_some(struct worker *w, struct hard *h, uint64_t seed)
{
    uint64_t n = (uint64_t)rand_r(&w->seed) % FILE_MAX + 1;
    _cleanup_free_ char *p = content_new(seed, 0, n);
    int r = hard_begin_writing(h, NULL);
    assert_true(r == 0 || r == -ENOENT);
    if (r < 0)
        return;
    if (rand_r(&w->seed) % 3 == 0) {
        int fd = hard_open_fd(h, O_RDWR);
        assert_true(fd >= 0);
        hard_end_writing(h);
        assert_int_equal(pwrite(fd, p, n, 0), n);
        assert_int_equal(close(fd), 0);
        return;
    }
    r = hard_write(h, p, n / 2, 0, NULL);
    if (r == 0)
        r = hard_write(h, p + n / 2, n - n / 2, n / 2, NULL);
    assert_true(r == 0 || r == -ENOSPC);
    if (rand_r(&w->seed) % 4 == 0)
        assert_int_equal(hard_sync(h, NULL), 0);
    hard_end_writing(h);
}

static void read_some(struct worker *w, struct hard *h, uint64_t seed)
{
    _cleanup_free_ char *p = malloc(FILE_MAX);
    assert_non_null(p);
    uint64_t from = (uint64_t)rand_r(&w->seed) % FILE_MAX;
    ssize_t got = hard_read_verified(h, p, FILE_MAX - from, from, NULL);
    assert_true(got >= 0);
    assert_true(content_is(p, seed, from, (size_t)got));
    w->bytes_read += (uint64_t)got;
}

static void remove_slot(struct worker *w, struct slot *x)
{
    pthread_mutex_lock(&x->mutex);
    struct location l = x->l;
    bool any = x->seed > 0;
    x->seed = 0;
    pthread_mutex_unlock(&x->mutex);
    struct slice s[2] = {location_view(&l), location_view(&l)};
    if (any)
        assert_int_equal(hard_remove(w->s->f->s, s, 2, NULL), 0);
    w->removed += any;
}

static struct hard *open_slot(struct store *s, struct slot *x, uint64_t *ret_seed)
{
    struct hard *h = NULL;
    pthread_mutex_lock(&x->mutex);
    struct location l = x->l;
    *ret_seed = x->seed;
    pthread_mutex_unlock(&x->mutex);
    if (*ret_seed == 0)
        return NULL;
    int r = hard_find(s, location_view(&l), &h, NULL);
    assert_true(r == 0 || r == -ENOENT); /* removed since */
    return r == 0 ? h : NULL;
}

static void *work(void *arg)
{
    struct worker *w = arg;
    for (int i = 0; i < STEPS; i++) {
        struct slot *x = &w->s->v[rand_r(&w->seed) % SLOTS];
        uint64_t seed;
        struct hard *_cleanup_(hard_unrefp) h = open_slot(w->s->f->s, x, &seed);
        if (!h) {
            make(w, x);
            continue;
        }
        unsigned what = (unsigned)rand_r(&w->seed) % 16;
        if (what < 5)
            write_some(w, h, seed);
        else if (what < 14)
            read_some(w, h, seed);
        else if (what == 14)
            remove_slot(w, x);
        else
            assert_int_equal(store_flush(w->s->f->s, NULL), 0);
        read_some(w, h, seed);
    }
    return NULL;
}

/* Settles what it can, in batches, until it is told to stop. */
static void *settle_all(void *arg)
{
    struct worker *w = arg;
    while (!__atomic_load_n(&w->s->stop, __ATOMIC_ACQUIRE)) {
        struct hard *v[SLOTS];
        bool ok[SLOTS];
        size_t n = 0;
        for (int i = 0; i < SLOTS; i++) {
            struct stat st;
            uint64_t seed;
            struct hard *h = open_slot(w->s->f->s, &w->s->v[i], &seed);
            int r = h ? hard_measure(h, &st, NULL) : -ENOENT;
            assert_true(r == 0 || r == -EAGAIN || r == -ENOENT);
            if (r == 0)
                v[n++] = h;
            else
                hard_unref(h);
        }
        assert_int_equal(hard_settle(w->s->f->s, v, n, ok, NULL), 0);
        for (size_t i = 0; i < n; i++) {
            w->settled += ok[i];
            hard_unref(v[i]);
        }
        sys->sleep_ns(1000000);
    }
    return NULL;
}

/* Soft extents, which give way. */
static void *fill_cache(void *arg)
{
    struct worker *w = arg;
    while (!__atomic_load_n(&w->s->stop, __ATOMIC_ACQUIRE)) {
        char key[16];
        (void)snprintf(key, sizeof(key), "k%d", rand_r(&w->seed) % 20);
        int r = try_put(w->s->f->s, key, 1, MIB);
        assert_true(r == 0 || r == ERR_NOT_ADMITTED || r == -ENOSPC);
        sys->sleep_ns(1000000);
    }
    return NULL;
}

static void check_all(struct shared *s)
{
    struct store *store = s->f->s;
    uint64_t named = 0;
    for (int i = 0; i < SLOTS; i++) {
        uint64_t seed;
        struct hard *h = open_slot(store, &s->v[i], &seed);
        if (!h) {
            assert_int_equal(seed, 0);
            continue;
        }
        struct stat st;
        assert_int_equal(measure_and_settle(store, h), 0);
        assert_int_equal(hard_stat(h, &st), 0);
        assert_true(hard_holds(h, seed, 0, (uint64_t)st.st_size));
        hard_unref(h);
        named++;
    }
    struct store_check_report report;
    assert_int_equal(store_check(store, false, NULL, NULL, &report, NULL), 0);
    assert_int_equal(report.hard_bad + report.bad_blocks + report.bad_records, 0);
    assert_int_equal(report.hard_extents, named);
    assert_int_equal(store_flush(store, NULL), 0);
    uint64_t pool = pool_size(store), files = count_files(s->f); /* the pool at rest first */
    assert_int_equal(files, named + pool);
    assert_int_equal(count_keys(store, 'f'), pool);
    uint64_t extents = 0;
    for (size_t i = 0; i < s->f->config.n_disks; i++) {
        struct store_disk_status st = disk_status(store, i);
        assert_int_equal(st.hard_unsettled, 0);
        assert_int_equal(st.hard_bytes, store->disks[i].hard->count.used_bytes);
        assert_int_equal(st.used_bytes, st.hard_bytes + store->disks[i].count.used_bytes);
        extents += st.hard_extents;
    }
    assert_int_equal(extents, named);
}

static void test_concurrent_use(void **state)
{
    struct fixture f;
    struct shared s = {.f = &f};
    struct worker w[THREADS + 2];
    pthread_t threads[THREADS + 2];
    testkv_use(); /* RocksDB is not built for the thread sanitizer */
    fixture_init(&f, 2, 16 * MIB);
    f.config.flush_interval_ms = 20;
    fixture_open(&f);
    for (int i = 0; i < SLOTS; i++)
        assert_int_equal(pthread_mutex_init(&s.v[i].mutex, NULL), 0);
    for (int i = 0; i < THREADS + 2; i++) {
        w[i] = (struct worker){&s, (unsigned)i + 1, 0, 0, 0};
        void *(*fn)(void *) = i < THREADS ? work : i == THREADS ? settle_all : fill_cache;
        assert_int_equal(pthread_create(&threads[i], NULL, fn, &w[i]), 0);
    }
    uint64_t bytes_read = 0, removed = 0;
    for (int i = 0; i < THREADS + 2; i++) {
        if (i == THREADS)
            __atomic_store_n(&s.stop, true, __ATOMIC_RELEASE);
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        bytes_read += w[i].bytes_read;
        removed += w[i].removed;
    }
    assert_true(bytes_read > 0 && removed > 0 && w[THREADS].settled > 0);
    check_all(&s);
    for (int i = 0; i < SLOTS; i++)
        assert_int_equal(pthread_mutex_destroy(&s.v[i].mutex), 0);
    fixture_fini(&f);
    testkv_reset();
}

struct taker {
    struct store *s;
    struct location v[300];
};

static void *take_many(void *arg)
{
    struct taker *t = arg;
    for (size_t i = 0; i < ARRAY_SIZE(t->v); i++)
        hard_unref(take(t->s, &t->v[i]));
    return NULL;
}

static int by_bytes(const void *a, const void *b)
{
    return memcmp(a, b, HARD_LOCATION_BYTES);
}

/* Takers that outrun the pool get an extent each, never one that somebody else has. */
static void test_concurrent_takers(void **state)
{
    struct fixture f;
    struct taker t[4];
    pthread_t threads[4];
    testkv_use();
    fixture_init(&f, 1, 16 * MIB);
    fixture_open(&f);
    for (int i = 0; i < 4; i++) {
        t[i].s = f.s;
        assert_int_equal(pthread_create(&threads[i], NULL, take_many, &t[i]), 0);
    }
    struct location all[4 * ARRAY_SIZE(t[0].v)];
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        memcpy(all + (size_t)i * ARRAY_SIZE(t[0].v), t[i].v, sizeof(t[i].v));
    }
    qsort(all, ARRAY_SIZE(all), sizeof(all[0]), by_bytes);
    for (size_t i = 1; i < ARRAY_SIZE(all); i++)
        assert_memory_not_equal(&all[i - 1], &all[i], sizeof(all[0]));
    assert_int_equal(disk_status(f.s, 0).hard_unsettled, ARRAY_SIZE(all));
    fixture_fini(&f);
    testkv_reset();
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_concurrent_takers),
        cmocka_unit_test(test_concurrent_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
