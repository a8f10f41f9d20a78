/* layer: store */
/*
 * Random operations on hard extents, with stops, kills and damage, compared with a model that knows every
 * byte.
 *
 * The test plays the caller and keeps inodes and writing records as hard.h asks for. FOREBAY_TEST_SEEDS makes
 * the run longer.
 */
#include "test_store_common.h"
#include "test_store_kv.h"

#include "test_hard_common.h"

#include "base/log.h"
#include "support/seeds.h"

#define FILE_MAX (5 * MIB / 2)

enum { FILES = 6, STEPS = 250 };

struct model_file {
    bool named, record;
    struct location l;
    char *bytes; /* FILE_MAX of them */
    uint64_t size;
    bool sealed;
    int fd; /* a descriptor for writing that outlives the node, or -1 */
};

struct model {
    struct fixture f;
    unsigned seed;
    struct model_file v[FILES];
    uint64_t n;
};

static unsigned dice(struct model *m, unsigned n)
{
    return (unsigned)rand_r(&m->seed) % n;
}

static uint64_t named(const struct model *m)
{
    uint64_t n = 0;
    for (int i = 0; i < FILES; i++)
        n += m->v[i].named;
    return n;
}

static void compare(struct model *m, struct model_file *x)
{
    struct hard *h = find(m->f.s, &x->l);
    struct stat st;
    assert_int_equal(hard_stat(h, &st), 0);
    assert_int_equal(st.st_size, x->size);
    assert_int_equal(hard_is_sealed(h), x->sealed);
    _cleanup_free_ char *p = malloc(FILE_MAX + 1);
    assert_non_null(p);
    uint64_t from = x->size > 0 && dice(m, 3) == 0 ? (uint64_t)rand_r(&m->seed) % x->size : 0;
    assert_int_equal(hard_read_verified(h, p, FILE_MAX + 1, from, NULL), x->size - from);
    assert_memory_equal(p, x->bytes + from, x->size - from);
    hard_unref(h);
}

static void make(struct model *m, struct model_file *x)
{
    struct hard *h = take(m->f.s, &x->l);
    if (dice(m, 5) == 0) {
        hard_give_back(h);
        return;
    }
    x->named = x->record = true;
    x->sealed = false;
    x->size = 0;
    memset(x->bytes, 0, FILE_MAX);
    hard_unref(h);
}

static void note_write(struct model_file *x, uint64_t at, const char *p, uint64_t n)
{
    memcpy(x->bytes + at, p, n);
    x->size = MAX(x->size, at + n);
    x->sealed = false;
}

static void write_random(struct model *m, struct model_file *x)
{
    struct hard *h = find(m->f.s, &x->l);
    x->record = true;
    assert_int_equal(hard_begin_writing(h, NULL), 0);
    x->sealed = false;
    for (unsigned i = 0, pieces = 1 + dice(m, 3); i < pieces; i++) {
        uint64_t at = dice(m, 2) ? x->size : (uint64_t)rand_r(&m->seed) % FILE_MAX;
        uint64_t n = dice(m, 4) ? 1 + dice(m, 20000) : 1 + (uint64_t)rand_r(&m->seed) % (2 * MIB);
        n = MIN(n, FILE_MAX - MIN(at, FILE_MAX));
        if (n == 0)
            continue;
        _cleanup_free_ char *p = content_new(++m->n, at, n);
        assert_int_equal(hard_write(h, p, n, at, NULL), 0);
        note_write(x, at, p, n);
    }
    if (dice(m, 3) == 0)
        assert_int_equal(hard_sync(h, NULL), 0);
    hard_end_writing(h);
    hard_unref(h);
}

/* Through a descriptor, which may be kept open, also over restarts. */
static void write_outside(struct model *m, struct model_file *x)
{
    if (x->fd < 0) {
        struct hard *h = find(m->f.s, &x->l);
        x->record = true;
        assert_int_equal(hard_begin_writing(h, NULL), 0);
        x->sealed = false;
        x->fd = hard_open_fd(h, O_RDWR);
        assert_true(x->fd >= 0);
        hard_end_writing(h);
        hard_unref(h);
    }
    uint64_t at = (uint64_t)rand_r(&m->seed) % FILE_MAX, n = 1 + dice(m, 20000);
    n = MIN(n, FILE_MAX - at);
    _cleanup_free_ char *p = content_new(++m->n, at, n);
    assert_int_equal(pwrite(x->fd, p, n, (off_t)at), n);
    note_write(x, at, p, n);
}

static void close_outside(struct model_file *x)
{
    if (x->fd >= 0)
        assert_int_equal(close(TAKE_FD(x->fd)), 0);
}

static void cut(struct model *m, struct model_file *x)
{
    struct hard *h = find(m->f.s, &x->l);
    uint64_t size = dice(m, 3) ? (uint64_t)rand_r(&m->seed) % FILE_MAX : 0;
    x->record = true;
    assert_int_equal(hard_begin_writing(h, NULL), 0);
    assert_int_equal(hard_truncate(h, size, NULL), 0);
    hard_end_writing(h);
    hard_unref(h);
    if (size < x->size)
        memset(x->bytes + size, 0, x->size - size);
    x->size = size;
    x->sealed = false;
}

/* Everything that nobody has open is sealed, in one batch. */
static void settle(struct model *m)
{
    struct hard *h[FILES];
    struct model_file *x[FILES];
    bool ok[FILES];
    size_t n = 0;
    for (int i = 0; i < FILES; i++) {
        struct stat st;
        if (!m->v[i].named)
            continue;
        struct hard *one = find(m->f.s, &m->v[i].l);
        int r = hard_measure(one, &st, NULL);
        assert_int_equal(r, m->v[i].fd >= 0 ? -EAGAIN : 0);
        if (r < 0) {
            hard_unref(one);
            continue;
        }
        assert_int_equal(st.st_size, m->v[i].size);
        h[n] = one;
        x[n++] = &m->v[i];
    }
    assert_int_equal(hard_settle(m->f.s, h, n, ok, NULL), 0);
    for (size_t i = 0; i < n; i++) {
        assert_true(ok[i]);
        x[i]->sealed = true;
        x[i]->record = false;
        hard_unref(h[i]);
    }
}

static void remove_one(struct model *m, struct model_file *x)
{
    struct slice l = location_view(&x->l);
    struct hard *h = NULL;
    if (dice(m, 2))
        h = find(m->f.s, &x->l);
    x->named = x->record = false;
    close_outside(x);
    assert_int_equal(hard_remove(m->f.s, &l, 1, NULL), 0);
    hard_unref(h);
    assert_int_equal(hard_find(m->f.s, l, &h, NULL), -ENOENT);
}

/* A flipped bit in a sealed file is found by a read and by the check, and by neither when it is flipped back.
 */
static void damage(struct model *m, struct model_file *x)
{
    if (!x->sealed || x->size == 0)
        return;
    char path[DISK_PATH_MAX];
    struct store_check_report r;
    uint64_t at = (uint64_t)rand_r(&m->seed) % x->size;
    struct hard *h = find(m->f.s, &x->l);
    hard_path(h->disk, h->id, path);
    flip_bit(path, at);
    char byte;
    assert_int_equal(hard_read_verified(h, &byte, 1, at, NULL), ERR_CORRUPT);
    assert_int_equal(store_check(m->f.s, true, NULL, NULL, &r, NULL), 0);
    assert_int_equal(r.hard_bad, 1);
    flip_bit(path, at);
    hard_unref(h);
    assert_int_equal(store_check(m->f.s, false, NULL, NULL, &r, NULL), 0);
    assert_int_equal(r.hard_bad, 0);
}

static void restart(struct model *m, bool kill)
{
    struct hard_swept swept;
    if (kill)
        fixture_abandon(&m->f);
    else
        fixture_close(&m->f);
    fixture_open(&m->f);
    for (int i = 0; i < FILES; i++)
        if (m->v[i].record)
            assert_int_equal(hard_protect(m->f.s, location_view(&m->v[i].l), NULL), 0);
    assert_int_equal(hard_sweep(m->f.s, /* keep_bytes= */ false, &swept, NULL), 0);
    assert_int_equal(count_files(&m->f), named(m));
    for (int i = 0; i < FILES; i++)
        if (m->v[i].named)
            compare(m, &m->v[i]);
}

/* What the store says of itself agrees with the model and the files. */
static void check_counts(struct model *m)
{
    uint64_t sealed = 0, bytes = 0, status_bytes = 0, extents = 0, unsettled = 0;
    for (int i = 0; i < FILES; i++) {
        char path[DISK_PATH_MAX];
        struct stat st;
        if (!m->v[i].named)
            continue;
        sealed += m->v[i].sealed;
        struct hard *h = find(m->f.s, &m->v[i].l);
        hard_path(h->disk, h->id, path);
        hard_unref(h);
        assert_int_equal(stat(path, &st), 0);
        bytes += hard_bytes_of(&st);
    }
    for (size_t i = 0; i < m->f.config.n_disks; i++) {
        m->f.s->disks[i].hard->watch_chain = 0;
        hard_watch(&m->f.s->disks[i]);
        struct store_disk_status st = disk_status(m->f.s, i);
        status_bytes += st.hard_bytes;
        extents += st.hard_extents;
        unsettled += st.hard_unsettled;
    }
    assert_int_equal(count_keys(m->f.s, 'h'), sealed);
    assert_int_equal(extents, named(m));
    assert_int_equal(unsettled, named(m) - sealed);
    /* The file system takes some blocks of its own when it writes, and nothing is written to the disk here.
     */
    assert_true(status_bytes <= bytes && bytes - status_bytes <= named(m) * 16 * KIB);
}

static void step(struct model *m)
{
    struct model_file *x = &m->v[dice(m, FILES)];
    unsigned what = dice(m, 40);
    if (!x->named)
        make(m, x);
    else if (what < 14)
        write_random(m, x);
    else if (what < 18)
        write_outside(m, x);
    else if (what < 22)
        close_outside(x);
    else if (what < 25)
        cut(m, x);
    else if (what < 30)
        settle(m);
    else if (what < 32)
        remove_one(m, x);
    else if (what < 34)
        damage(m, x);
    else if (what == 34)
        restart(m, dice(m, 2));
    else if (what == 35)
        assert_int_equal(store_flush(m->f.s, NULL), 0);
    else if (what == 36)
        check_counts(m);
    if (x->named)
        compare(m, x);
}

static void run(unsigned seed)
{
    struct model m = {.seed = seed};
    fixture_init(&m.f, 2, 64 * MIB);
    testkv_use();
    for (int i = 0; i < FILES; i++) {
        m.v[i].bytes = malloc(FILE_MAX);
        assert_non_null(m.v[i].bytes);
        m.v[i].fd = -1;
    }
    fixture_open(&m.f);
    for (int i = 0; i < STEPS; i++)
        step(&m);
    check_counts(&m);
    for (int i = 0; i < FILES; i++)
        close_outside(&m.v[i]);
    settle(&m);
    restart(&m, /* kill= */ false);
    check_counts(&m);
    assert_int_equal(count_keys(m.f.s, 'f'), 0);
    fixture_fini(&m.f);
    testkv_reset();
    for (int i = 0; i < FILES; i++)
        free(m.v[i].bytes);
}

static void test_random_operations(void **state)
{
    for (uint64_t seed = seeds_first(); seed < seeds_end(3); seed++)
        run((unsigned)seeds_tell(seed));
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    fixture_skip_syncs();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_operations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
