/* layer: store */
/* Hard extents: what is written is there, sealed ones are verified, unnamed ones go, and the bytes are
 * counted.
 */
#include "test_store_common.h"

#include "base/log.h"
#include "support/fault_sys.h"

#include <stdatomic.h>
#include <unistd.h>

#include <sys/mman.h>

#include "test_hard_common.h"

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    fixture_init(f, 1, 64 * MIB);
    fixture_open(f);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture_fini(*state);
    free(*state);
    return 0;
}

static void stop_and_start(struct fixture *f)
{
    fixture_close(f);
    fixture_open(f);
}

/* A node of which nobody takes has no directory for hard files; taken ones are empty, fresh and marked. */
static void test_take(void **state)
{
    struct fixture *f = *state;
    char path[DISK_PATH_MAX];
    struct stat st;
    struct location a, b;
    (void)snprintf(path, sizeof(path), "%s/hard", f->disks[0]);
    assert_int_equal(stat(path, &st), -1);
    uint64_t before = sys->real_ns() / 1000000000;
    struct hard *x = take(f->s, &a), *y = take(f->s, &b);
    assert_memory_not_equal(&a, &b, sizeof(a));
    assert_int_equal(hard_stat(x, &st), 0);
    assert_int_equal(st.st_size, 0);
    assert_true((uint64_t)st.st_mtim.tv_sec + 1 >= before);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_false(hard_is_sealed(x));
    uint64_t pool = pool_size(f->s); /* at rest, before files are counted */
    assert_int_equal(count_keys(f->s, 'f'), pool + 2);
    assert_int_equal(count_files(f), pool + 2);
    assert_int_equal(disk_status(f->s, 0).hard_unsettled, 2);
    hard_unref(x);
    hard_unref(y);
}

static uint64_t used(struct fixture *f)
{
    return disk_status(f->s, 0).used_bytes;
}

/* What is reserved ahead of writing counts until the writing ends. */
static void test_room_is_reserved(void **state)
{
    struct fixture *f = *state;
    struct location a;
    struct hard *h = take(f->s, &a);
    assert_int_equal(hard_begin_writing(h, NULL), 0);
    assert_int_equal(hard_reserve(h, 40 * MIB), 0);
    assert_int_equal(hard_reserve(h, 65 * MIB), ERR_NOT_ADMITTED);
    assert_int_equal(used(f), 40 * MIB);
    assert_int_equal(hard_put(h, 1, 0, 20 * MIB), 0);
    hard_watch(&f->s->disks[0]);
    assert_int_equal(used(f), 40 * MIB);
    hard_end_writing(h);
    assert_in_range(used(f), 20 * MIB, 21 * MIB);
    hard_give_back(h);
    assert_int_equal(used(f), 0);
}

/* Gives a hard extent a name in the cache, which is its only one then. Whether its bytes counted once all the
 * way. */
static bool counts_once(struct fixture *f)
{
    const uint64_t size = 20 * MIB;
    struct location a;
    struct extent *x = NULL;
    struct hard *h = take(f->s, &a);
    struct store_new n = {.key = SLICE_LIT("k"), .size_bytes = size};
    assert_int_equal(hard_put(h, 1, 0, size), 0);
    assert_int_equal(hard_sync(h, NULL), 0);
    hard_watch(&f->s->disks[0]);
    uint64_t before = used(f);
    assert_in_range(before, size, size + MIB);
    assert_int_equal(store_stage_hard(f->s, n.key, h, size, /* sums= */ NULL, &x, NULL), 0);
    bool once = used(f) <= before;
    assert_int_equal(store_publish(f->s, x, &n, NULL), 0);
    once = once && used(f) <= before;
    hard_give_back(h);
    assert_in_range(used(f), size, before);
    assert_true(extent_is_complete(x));
    extent_unref(x);
    assert_int_equal(store_remove(f->s, n.key), 0);
    assert_int_equal(used(f), 0);
    return once;
}

static void test_a_file_that_is_cached_counts_once(void **state)
{
    bool once = false;
    for (int i = 0; i < 100 && !once; i++) /* the flusher may look at the file just then */
        once = counts_once(*state);
    assert_true(once);
}

/* What was written is read back, through the node and through descriptors, also after a restart. */
static void test_write_and_read(void **state)
{
    struct fixture *f = *state;
    struct location a;
    struct hard *h = take(f->s, &a);
    assert_int_equal(hard_put(h, 7, 0, 3 * MIB + 5), 0);
    assert_int_equal(hard_sync(h, NULL), 0);
    assert_true(hard_holds(h, 7, 0, 3 * MIB + 5));
    struct hard *same = find(f->s, &a);
    assert_ptr_equal(same, h);
    hard_unref(same);
    hard_unref(h);
    h = find(f->s, &a);
    assert_true(hard_holds(h, 7, 0, 3 * MIB + 5));
    assert_int_equal(hard_begin_writing(h, NULL), 0);
    int fd = hard_open_fd(h, O_RDWR);
    assert_true(fd >= 0);
    hard_end_writing(h);
    assert_int_equal(pwrite(fd, "abc", 3, 4 * MIB), 3);
    assert_int_equal(close(fd), 0);
    struct stat st;
    assert_int_equal(hard_stat(h, &st), 0);
    assert_int_equal(st.st_size, 4 * MIB + 3);
    hard_unref(h);
    assert_int_equal(hard_protect(f->s, location_view(&a), NULL), 0);
    stop_and_start(f);
    h = find(f->s, &a);
    assert_true(hard_holds(h, 7, 0, 3 * MIB + 5) == false); /* longer now */
    char p[4];
    assert_int_equal(hard_read_verified(h, p, 4, 4 * MIB, NULL), 3);
    assert_memory_equal(p, "abc", 3);
    hard_unref(h);
}

static atomic_uint early_syncs;
static atomic_bool early_is_slow;

static int count_early(int fd)
{
    (void)fd;
    if (early_is_slow)
        (void)usleep(3000);
    return (int)(atomic_fetch_add(&early_syncs, 1) & 0);
}

/* One piece after the other, each after what was begun for the one before has ended. */
static void write_slowly(struct hard *h, uint64_t from, uint64_t to)
{
    struct hard_early *y = &h->disk->hard->early;
    static char piece[MIB];
    for (uint64_t at = from; at < to; at += sizeof(piece)) {
        assert_int_equal(hard_write(h, piece, sizeof(piece), at, NULL), 0);
        for (bool waits = true; waits; (void)usleep(100)) {
            LOCK_SCOPE(&y->lock);
            waits = y->fd >= 0 || y->is_syncing;
        }
    }
}

/* Where a sync takes time a large file is synced while it is written, each 4 MiB: by another descriptor than
 * the last sync's, so that this one hears of every error. Where it takes none, it is tried now and then. */
static void test_large_files_are_synced_on_the_way(void **state)
{
    struct fixture *f = *state;
    const struct sys *before = sys;
    struct sys table = *sys;
    struct location a;
    struct hard *h = take(f->s, &a);
    early_syncs = 0;
    early_is_slow = true;
    table.fdatasync = count_early;
    sys = &table;
    assert_int_equal(hard_begin_writing(h, NULL), 0);
    write_slowly(h, 0, 4 * MIB - MIB);
    assert_int_equal(early_syncs, 0);
    write_slowly(h, 3 * MIB, 12 * MIB);
    assert_int_equal(early_syncs, 3);
    early_is_slow = false;
    write_slowly(h, 12 * MIB, 24 * MIB);
    assert_int_equal(early_syncs, 4);
    hard_end_writing(h);
    sys = before;
    assert_int_equal(hard_sync(h, NULL), 0);
    hard_unref(h);
}

/* Sealing takes the mark away and records the checksums, whether they were computed on the way or read back;
 * a flipped bit is then found and never served. Writing unseals. */
static void test_settle(void **state)
{
    struct fixture *f = *state;
    static const uint64_t sizes[] = {0, 1, 1000, MIB, MIB + 1, 3 * MIB + 5};
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        for (int in_order = 0; in_order < 2; in_order++) {
            struct location a;
            struct hard *h = take(f->s, &a);
            uint64_t n = sizes[i], half = n / 2;
            if (in_order) {
                assert_int_equal(hard_put(h, i, 0, n), 0);
            } else {
                assert_int_equal(hard_put(h, i, half, n - half), 0);
                assert_int_equal(hard_put(h, i, 0, half), 0);
            }
            uint64_t marks = count_keys(f->s, 'f');
            assert_int_equal(measure_and_settle(f->s, h), 0);
            assert_true(hard_is_sealed(h));
            assert_int_equal(count_keys(f->s, 'f'), marks - 1);
            assert_true(hard_holds(h, i, 0, n));
            assert_int_equal(measure_and_settle(f->s, h), 0); /* nothing to do */
            hard_unref(h);
            h = find(f->s, &a);
            assert_true(hard_is_sealed(h));
            assert_true(hard_holds(h, i, 0, n));
            if (n > 0) {
                char path[DISK_PATH_MAX], *p = malloc(n);
                hard_path(h->disk, h->id, path);
                flip_bit(path, n - 1);
                struct err e = {0};
                assert_int_equal(hard_read_verified(h, p, n, 0, &e), ERR_CORRUPT);
                assert_non_null(strstr(e.text, "hard extent"));
                flip_bit(path, n - 1);
                free(p);
            }
            assert_int_equal(hard_put(h, i, n, 10), 0);
            assert_false(hard_is_sealed(h));
            assert_int_equal(measure_and_settle(f->s, h), 0);
            assert_true(hard_holds(h, i, 0, n + 10));
            hard_unref(h);
        }
    }
    assert_int_equal(disk_status(f->s, 0).hard_unsettled, 0);
    assert_int_equal(disk_status(f->s, 0).hard_extents, 2 * ARRAY_SIZE(sizes));
    struct store_check_report r;
    assert_int_equal(store_check(f->s, false, NULL, NULL, &r, NULL), 0);
    assert_int_equal(r.hard_extents, 2 * ARRAY_SIZE(sizes));
    assert_int_equal(r.hard_bad, 0);
}

/* Nothing is sealed while a descriptor, a mapping or the node itself may write. */
static void test_writers_are_seen(void **state)
{
    struct fixture *f = *state;
    struct location a;
    struct stat st;
    struct hard *h = take(f->s, &a);
    assert_int_equal(hard_begin_writing(h, NULL), 0);
    assert_int_equal(hard_measure(h, &st, NULL), -EAGAIN);
    int fd = hard_open_fd(h, O_RDWR);
    assert_int_equal(hard_write(h, "0123456789", 10, 0, NULL), 0);
    hard_end_writing(h);
    assert_int_equal(hard_measure(h, &st, NULL), -EAGAIN);
    char *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(map != MAP_FAILED);
    assert_int_equal(close(fd), 0);
    assert_int_equal(hard_measure(h, &st, NULL), -EAGAIN);
    map[3] = 'x';
    assert_int_equal(munmap(map, 4096), 0);
    assert_int_equal(hard_measure(h, &st, NULL), 0);
    assert_int_equal(st.st_size, 10);
    /* Writing after it was measured: not sealed. */
    bool ok = true;
    assert_int_equal(hard_begin_writing(h, NULL), 0);
    assert_int_equal(hard_settle(f->s, &h, 1, &ok, NULL), 0);
    assert_false(ok);
    hard_end_writing(h);
    assert_int_equal(hard_settle(f->s, &h, 1, &ok, NULL), 0);
    assert_false(ok);
    int reader = hard_open_fd(h, O_RDONLY);
    assert_int_equal(measure_and_settle(f->s, h), 0);
    char p[10];
    assert_int_equal(hard_read_verified(h, p, 10, 0, NULL), 10);
    assert_memory_equal(p, "012x456789", 10);
    assert_int_equal(close(reader), 0);
    hard_unref(h);
}

/* Holes cost neither reading nor records, and are verified as zeros. */
static void test_holes(void **state)
{
    struct fixture *f = *state;
    struct location a;
    struct hard *h = take(f->s, &a);
    assert_int_equal(hard_begin_writing(h, NULL), 0);
    assert_int_equal(hard_write(h, "first", 5, 10, NULL), 0);
    assert_int_equal(hard_write(h, "far", 3, 3 * GIB + 7, NULL), 0);
    assert_int_equal(hard_truncate(h, TIB + 1, NULL), 0);
    hard_end_writing(h);
    assert_int_equal(measure_and_settle(f->s, h), 0);
    assert_int_equal(count_keys(f->s, 'k'), 2);
    char p[16];
    assert_int_equal(hard_read_verified(h, p, 8, 3 * GIB + 5, NULL), 8);
    assert_memory_equal(p, "\0\0far\0\0\0", 8);
    assert_int_equal(hard_read_verified(h, p, 8, TIB - 2, NULL), 3);
    assert_memory_equal(p, "\0\0\0", 3);
    struct store_check_report r;
    assert_int_equal(store_check(f->s, false, NULL, NULL, &r, NULL), 0);
    assert_int_equal(r.hard_bad, 0);
    /* A byte in what should be a hole. */
    char path[DISK_PATH_MAX];
    hard_path(h->disk, h->id, path);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(pwrite(fd, "x", 1, 100 * (off_t)GIB), 1);
    assert_int_equal(close(fd), 0);
    assert_int_equal(hard_read_verified(h, p, 8, 100 * GIB, NULL), ERR_CORRUPT);
    assert_int_equal(store_check(f->s, false, NULL, NULL, &r, NULL), 0);
    assert_int_equal(r.hard_bad, 1);
    hard_unref(h);
    struct slice l = location_view(&a);
    assert_int_equal(hard_remove(f->s, &l, 1, NULL), 0);
    assert_int_equal(count_keys(f->s, 'k'), 0);
    assert_int_equal(count_keys(f->s, 'h'), 0);
}

/* Removed extents are gone, readers keep their bytes until they let go, and the marks go with the flush. */
static void test_remove(void **state)
{
    struct fixture *f = *state;
    struct location a[3];
    struct slice l[4];
    struct hard *h[3];
    for (int i = 0; i < 3; i++) {
        h[i] = take(f->s, &a[i]);
        l[i] = location_view(&a[i]);
        assert_int_equal(hard_put(h[i], (uint64_t)i, 0, 2 * MIB), 0);
    }
    assert_int_equal(measure_and_settle(f->s, h[0]), 0);
    assert_int_equal(measure_and_settle(f->s, h[1]), 0);
    assert_int_equal(hard_put(h[1], 1, 0, 1), 0); /* neither sealed nor marked */
    assert_true(disk_status(f->s, 0).hard_bytes >= 6 * MIB);
    l[3] = l[0]; /* twice */
    assert_int_equal(hard_remove(f->s, l, 4, NULL), 0);
    assert_int_equal(hard_remove(f->s, l, 4, NULL), 0);
    struct hard *none = NULL;
    assert_int_equal(hard_find(f->s, l[0], &none, NULL), -ENOENT);
    for (int i = 0; i < 3; i++) {
        assert_true(hard_holds(h[i], (uint64_t)i, 0, 2 * MIB));
        int fd = hard_open_fd(h[i], O_RDONLY);
        assert_true(fd >= 0);
        assert_int_equal(close(fd), 0);
        assert_true(disk_status(f->s, 0).hard_bytes >= 2 * MIB);
        hard_unref(h[i]);
    }
    assert_int_equal(disk_status(f->s, 0).hard_bytes, 0);
    assert_int_equal(disk_status(f->s, 0).hard_extents, 0);
    assert_int_equal(hard_find(f->s, l[2], &none, NULL), -ENOENT);
    size_t pool = pool_size(f->s);
    assert_int_equal(count_files(f), pool);
    assert_int_equal(count_keys(f->s, 'f'), pool + 3);
    assert_int_equal(store_flush(f->s, NULL), 0);
    assert_int_equal(count_keys(f->s, 'f'), pool);
}

/* Of several the caller is told that one could not be removed, whichever it was; the others go. (Fails where
 * what comes after it replaces the error: whoever asked would forget a file that is still there.) */
static void test_remove_of_several(void **state)
{
    struct fixture *f = *state;
    for (size_t bad = 0; bad < 3; bad++) {
        struct location a[3];
        struct slice l[3];
        struct hard *none = NULL;
        for (size_t i = 0; i < 3; i++) {
            hard_unref(take(f->s, &a[i]));
            l[i] = location_view(&a[i]);
        }
        a[bad].b[0] = 0;
        assert_int_equal(hard_remove(f->s, l, 3, NULL), ERR_CORRUPT);
        for (size_t i = 0; i < 3; i++)
            assert_true(i == bad || hard_find(f->s, l[i], &none, NULL) == -ENOENT);
    }
}

struct counted {
    size_t n;
    struct location last;
};

static int count_location(void *arg, struct slice location)
{
    struct counted *c = arg;
    c->n++;
    memcpy(c->last.b, location.p, sizeof(c->last.b));
    return 0;
}

/* At start, marked files that no writing record names go; protected and sealed ones stay. */
static void test_sweep(void **state)
{
    struct fixture *f = *state;
    struct location sealed, named, unnamed, reopened;
    struct hard *h = take(f->s, &sealed);
    assert_int_equal(hard_put(h, 1, 0, 100), 0);
    assert_int_equal(measure_and_settle(f->s, h), 0);
    hard_unref(h);
    h = take(f->s, &reopened);
    assert_int_equal(hard_put(h, 4, 0, 100), 0);
    assert_int_equal(measure_and_settle(f->s, h), 0);
    assert_int_equal(hard_begin_writing(h, NULL), 0);
    hard_end_writing(h);
    hard_unref(h);
    h = take(f->s, &named);
    assert_int_equal(hard_put(h, 2, 0, 2 * MIB), 0);
    hard_unref(h);
    h = take(f->s, &unnamed);
    assert_int_equal(hard_put(h, 3, 0, 2 * MIB), 0);
    hard_unref(h);
    uint64_t used = disk_status(f->s, 0).used_bytes;
    size_t pool = pool_size(f->s);
    for (int clean = 0; clean < 2; clean++) {
        if (clean)
            fixture_close(f);
        else
            fixture_abandon(f);
        fixture_open(f);
        assert_int_equal(hard_protect(f->s, location_view(&named), NULL), 0);
        assert_int_equal(hard_protect(f->s, location_view(&sealed), NULL), 0);
        assert_int_equal(hard_protect(f->s, location_view(&reopened), NULL), 0);
        struct hard_swept swept = {0};
        assert_int_equal(hard_sweep(f->s, /* keep_bytes= */ false, &swept, NULL), 0);
        assert_int_equal(swept.removed, clean ? 0 : pool + 1);
        assert_int_equal(count_files(f), 3);
        assert_int_equal(count_keys(f->s, 'f'), 1);
        assert_int_equal(disk_status(f->s, 0).used_bytes, used - 2 * MIB);
        assert_int_equal(disk_status(f->s, 0).hard_unsettled, 2);
        assert_int_equal(disk_status(f->s, 0).hard_extents, 3);
        h = find(f->s, &named);
        assert_true(hard_holds(h, 2, 0, 2 * MIB));
        hard_unref(h);
        h = find(f->s, &sealed);
        assert_true(hard_is_sealed(h) && hard_holds(h, 1, 0, 100));
        hard_unref(h);
        struct hard *none = NULL;
        assert_int_equal(hard_find(f->s, location_view(&unnamed), &none, NULL), -ENOENT);
    }
    /* A protected one whose file is gone is no error, and nothing is kept of it. */
    assert_int_equal(hard_protect(f->s, location_view(&unnamed), NULL), 0);
    assert_int_equal(disk_status(f->s, 0).hard_unsettled, 2);
}

/* Locations that are none, or of another store, are refused. */
static void test_locations(void **state)
{
    struct fixture *f = *state;
    struct location a;
    struct hard *h = take(f->s, &a), *none = NULL;
    struct err e = {0};
    hard_unref(h);
    for (size_t n = 0; n < sizeof(a.b); n++)
        assert_int_equal(hard_find(f->s, slice_of(a.b, n), &none, NULL), ERR_CORRUPT);
    a.b[5] ^= 1;
    assert_int_equal(hard_find(f->s, location_view(&a), &none, &e), -ENODEV);
    assert_non_null(strstr(e.text, "--disk"));
    assert_int_equal(hard_protect(f->s, location_view(&a), NULL), -ENODEV);
    a.b[5] ^= 1;
    a.b[20] ^= 1;
    assert_int_equal(hard_find(f->s, location_view(&a), &none, &e), -ENOENT);
    assert_non_null(strstr(e.text, "hard extent"));
    a.b[0] = 2;
    assert_int_equal(hard_find(f->s, location_view(&a), &none, NULL), ERR_CORRUPT);
}

/* Untouched extents go back to the pool; those that anybody may have touched are removed instead. */
static void test_give_back(void **state)
{
    struct fixture *f = *state;
    struct location a, b, c;
    struct hard *h = take(f->s, &a);
    size_t pool = pool_size(f->s);
    hard_give_back(h);
    assert_int_equal(pool_size(f->s), pool + 1);
    h = take(f->s, &b);
    assert_memory_equal(&a, &b, sizeof(a));
    assert_int_equal(hard_put(h, 1, 0, 5), 0);
    assert_int_equal(hard_begin_writing(h, NULL), 0);
    assert_int_equal(hard_truncate(h, 0, NULL), 0);
    hard_end_writing(h);
    hard_give_back(h);
    assert_int_equal(pool_size(f->s), pool);
    assert_int_equal(count_files(f), pool);
    h = take(f->s, &c);
    int fd = hard_open_fd(h, O_RDONLY);
    hard_give_back(h);
    assert_int_equal(close(fd), 0);
    assert_int_equal(count_files(f), pool - 1);
    assert_int_equal(disk_status(f->s, 0).hard_unsettled, 0);
    assert_int_equal(disk_status(f->s, 0).used_bytes, 0);
}

/* One round of a file that was opened for writing and given back: how many files the pool lost by it. */
static size_t lost_by(struct fixture *f, void (*between)(struct hard *h, int fd))
{
    struct location a;
    struct hard *h = take(f->s, &a);
    size_t pool = pool_size(f->s);
    assert_int_equal(hard_begin_writing(h, NULL), 0);
    assert_int_equal(hard_set_mtime(h, 1234567890123456789, NULL), 0);
    int fd = hard_open_fd(h, O_RDWR);
    assert_true(fd >= 0);
    between(h, fd);
    hard_end_writing(h);
    hard_give_back(h);
    size_t now = pool_size(f->s);
    assert_int_equal(count_files(f), now);
    return pool + 1 - now;
}

static void nothing(struct hard *h, int fd)
{
    (void)h;
    assert_int_equal(close(fd), 0);
}

static void write_and_truncate(struct hard *h, int fd)
{
    (void)h;
    assert_int_equal(pwrite(fd, "secret", 6, 0), 6);
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(close(fd), 0);
}

static void write_truncate_and_set_time(struct hard *h, int fd)
{
    write_and_truncate(h, fd);
    assert_int_equal(hard_set_mtime(h, 1234567890123456789, NULL), 0);
}

static int kept_fd;

static void keep_open(struct hard *h, int fd)
{
    kept_fd = hard_open_fd(h, O_RDONLY);
    assert_true(kept_fd >= 0);
    assert_int_equal(close(fd), 0);
}

/* One that is marked and named by nobody is perhaps somebody's, when records are lost: it is set aside with
 * its bytes, once and for all; what is empty goes as ever. */
static void test_sweep_keeps_bytes(void **state)
{
    struct fixture *f = *state;
    struct location named, unnamed;
    struct hard *h = take(f->s, &named);
    assert_int_equal(hard_put(h, 2, 0, 100), 0);
    hard_unref(h);
    h = take(f->s, &unnamed);
    assert_int_equal(hard_put(h, 3, 0, 2 * MIB), 0);
    struct store_place place;
    hard_place(h, &place);
    hard_unref(h);
    size_t pool = pool_size(f->s);
    fixture_abandon(f);
    fixture_open(f);
    assert_int_equal(hard_protect(f->s, location_view(&named), NULL), 0);
    struct counted c = {0};
    assert_int_equal(hard_unprotected(f->s, count_location, &c, NULL), 0);
    assert_int_equal(c.n, 1);
    assert_memory_equal(c.last.b, unnamed.b, sizeof(unnamed.b));
    struct hard_swept swept;
    assert_int_equal(hard_sweep(f->s, /* keep_bytes= */ true, &swept, NULL), 0);
    assert_int_equal(swept.removed, pool);
    assert_int_equal(swept.set_aside, 1);
    assert_int_equal(count_files(f), 1);
    assert_int_equal(count_keys(f->s, 'f'), 1);
    uint64_t files = 0, bytes = 0;
    assert_int_equal(hard_set_aside(f->s, &files, &bytes, NULL), 0);
    assert_int_equal(files, 1);
    assert_int_equal(bytes, 2 * MIB);
    fault_sys_start();
    fault_sys_arm(FAULT_READDIR, 4, EIO, FAULT_ONCE); /* behind all there is */
    assert_int_equal(hard_set_aside(f->s, &files, &bytes, NULL), -EIO);
    fault_sys_disarm();
    fault_sys_stop();
    char path[DISK_PATH_MAX];
    (void)snprintf(path, sizeof(path), "%s/set-aside/%s", f->disks[0], strrchr(place.file, '/') + 1);
    _cleanup_free_ char *p = NULL;
    size_t n = 0;
    assert_int_equal(sys_read_file(path, 4 * MIB, &p, &n), 0);
    assert_true(n == 2 * MIB && content_is(p, 3, 0, n));
    struct store_check_report r;
    assert_int_equal(store_check(f->s, /* repair= */ false, NULL, NULL, &r, NULL), 0);
    assert_int_equal(r.set_aside_files, 1);
    fixture_abandon(f);
    fixture_open(f);
    assert_int_equal(hard_protect(f->s, location_view(&named), NULL), 0);
    assert_int_equal(hard_sweep(f->s, /* keep_bytes= */ false, &swept, NULL), 0);
    assert_int_equal(swept.removed + swept.set_aside, 0);
    assert_int_equal(hard_set_aside(f->s, &files, &bytes, NULL), 0);
    assert_int_equal(files, 1);
}

/* What was handed out for writing goes back to the pool when nobody wrote and nobody has it open; what was
 * written and truncated does not, even when its time was set back, nor what somebody may still read. */
static void test_blank_files_go_back(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(lost_by(f, nothing), 0);
    assert_int_equal(lost_by(f, write_and_truncate), 1);
    assert_int_equal(lost_by(f, write_truncate_and_set_time), 1);
    assert_int_equal(lost_by(f, keep_open), 1);
    assert_int_equal(close(kept_fd), 0);
    assert_int_equal(lost_by(f, nothing), 0);
}

/* Hard data counts, takes the place of soft data, and is refused when only hard data is left; what was
 * written past the node counts too. */
static void test_space(void **state)
{
    struct fixture *f = *state;
    char key[16];
    struct location a, b;
    for (int i = 0; i < 14; i++) {
        (void)snprintf(key, sizeof(key), "k%d", i);
        put(f->s, key, (uint64_t)i, 4 * MIB);
    }
    writer_drain(&f->s->disks[0]);
    struct hard *h = take(f->s, &a);
    assert_int_equal(hard_put(h, 1, 0, 40 * MIB), 0);
    struct store_disk_status st = disk_status(f->s, 0);
    assert_true(st.hard_bytes >= 40 * MIB && st.hard_bytes < 41 * MIB);
    assert_true(st.used_bytes <= st.limit_bytes && st.extents <= 6);
    struct hard *x = take(f->s, &b);
    assert_int_equal(hard_begin_writing(x, NULL), 0);
    int fd = hard_open_fd(x, O_RDWR);
    _cleanup_free_ char *p = content_new(2, 0, 20 * MIB);
    assert_int_equal(pwrite(fd, p, 20 * MIB, 0), 20 * MIB);
    hard_watch(&f->s->disks[0]);
    st = disk_status(f->s, 0);
    assert_true(st.hard_bytes >= 60 * MIB && st.used_bytes <= st.limit_bytes && st.extents <= 1);
    assert_int_equal(hard_write(x, p, 8 * MIB, 20 * MIB, NULL), -ENOSPC);
    assert_int_equal(pwrite(fd, p, 20 * MIB, 20 * MIB), 20 * MIB); /* nobody can refuse this */
    assert_int_equal(close(fd), 0);
    hard_end_writing(x);
    assert_true(disk_status(f->s, 0).used_bytes >= 80 * MIB);
    assert_int_equal(try_put(f->s, "more", 1, 4 * MIB), ERR_NOT_ADMITTED);
    hard_unref(h);
    hard_unref(x);
    struct slice l[2] = {location_view(&a), location_view(&b)};
    assert_int_equal(hard_remove(f->s, l, 2, NULL), 0);
    st = disk_status(f->s, 0);
    assert_int_equal(st.hard_bytes, 0);
    assert_int_equal(st.used_bytes, f->s->disks[0].count.used_bytes);
    put(f->s, "more", 1, 4 * MIB);
}

/* Soft data that was in use when hard data overfilled the disk goes as soon as it is not. */
static void test_overfilled(void **state)
{
    struct fixture *f = *state;
    char key[16];
    struct extent *x[10];
    struct location a;
    for (int i = 0; i < 10; i++) {
        (void)snprintf(key, sizeof(key), "k%d", i);
        put(f->s, key, (uint64_t)i, 4 * MIB);
        assert_int_equal(store_find(f->s, slice_str(key), &x[i]), 0);
    }
    writer_drain(&f->s->disks[0]);
    struct hard *h = take(f->s, &a);
    assert_int_equal(hard_begin_writing(h, NULL), 0);
    int fd = hard_open_fd(h, O_RDWR);
    hard_end_writing(h);
    _cleanup_free_ char *p = content_new(2, 0, 40 * MIB);
    assert_int_equal(pwrite(fd, p, 40 * MIB, 0), 40 * MIB);
    assert_int_equal(close(fd), 0);
    hard_watch(&f->s->disks[0]);
    struct store_disk_status st = disk_status(f->s, 0);
    assert_true(st.used_bytes > st.limit_bytes && st.extents == 10);
    for (int i = 0; i < 10; i++)
        extent_unref(x[i]);
    hard_watch(&f->s->disks[0]);
    st = disk_status(f->s, 0);
    assert_true(st.used_bytes <= st.limit_bytes && st.extents < 10 && st.hard_bytes >= 40 * MIB);
    hard_unref(h);
}

/* What sealed extents occupy is known again after a restart, without looking at them. */
static void test_counts_survive(void **state)
{
    struct fixture *f = *state;
    struct hard *h[10];
    struct location a[10];
    bool ok[10];
    for (int i = 0; i < 10; i++) {
        struct stat st;
        h[i] = take(f->s, &a[i]);
        assert_int_equal(hard_put(h[i], (uint64_t)i, 0, (uint64_t)i * MIB / 2), 0);
        assert_int_equal(hard_measure(h[i], &st, NULL), 0);
    }
    assert_int_equal(hard_settle(f->s, h, 10, ok, NULL), 0);
    for (int i = 0; i < 10; i++) {
        assert_true(ok[i]);
        hard_unref(h[i]);
    }
    uint64_t used = disk_status(f->s, 0).used_bytes;
    assert_true(used >= 22 * MIB);
    fixture_abandon(f);
    fixture_open(f);
    assert_int_equal(disk_status(f->s, 0).used_bytes, used);
    assert_int_equal(disk_status(f->s, 0).hard_bytes, used);
    assert_int_equal(disk_status(f->s, 0).hard_extents, 10);
    struct slice l = location_view(&a[9]);
    assert_int_equal(hard_remove(f->s, &l, 1, NULL), 0);
    assert_true(disk_status(f->s, 0).used_bytes <= used - 9 * MIB / 2);
    stop_and_start(f);
    assert_true(disk_status(f->s, 0).used_bytes <= used - 9 * MIB / 2);
    assert_int_equal(disk_status(f->s, 0).hard_extents, 9);
}

/* A damaged hard record costs the checksums, not the bytes: the check names it, as nothing that was dropped,
 * also where it repairs, and sealing anew heals it. (Seen to fail where it counted as a record of a cached
 * object: a check with repairs ended as if nothing was wrong any more.) */
static void test_damaged_record(void **state)
{
    struct fixture *f = *state;
    struct location a;
    struct hard *h = take(f->s, &a);
    assert_int_equal(hard_put(h, 1, 0, 2 * MIB), 0);
    assert_int_equal(measure_and_settle(f->s, h), 0);
    struct id128 id = h->id;
    hard_unref(h);
    struct format_key k;
    struct kv_txn *t = kv_txn_new(f->s->disks[0].kv);
    format_key_id('h', id, &k);
    kv_txn_put_plain(t, format_key_view(&k), SLICE_LIT("garbage"));
    assert_int_equal(kv_txn_commit(t, KV_VISIBLE, NULL), 0);
    kv_txn_free(t);
    struct store_check_report r;
    assert_int_equal(store_check(f->s, true, NULL, NULL, &r, NULL), 0);
    assert_int_equal(r.bad_records, 0);
    assert_int_equal(r.hard_bad, 1);
    assert_int_equal(r.hard_extents, 1);
    h = find(f->s, &a);
    assert_false(hard_is_sealed(h));
    assert_true(hard_holds(h, 1, 0, 2 * MIB));
    assert_int_equal(hard_put(h, 1, 2 * MIB, 100), 0);
    assert_int_equal(measure_and_settle(f->s, h), 0);
    assert_true(hard_is_sealed(h) && hard_holds(h, 1, 0, 2 * MIB + 100));
    hard_unref(h);
    assert_int_equal(store_check(f->s, false, NULL, NULL, &r, NULL), 0);
    assert_int_equal(r.bad_records + r.hard_bad, 0);
    assert_int_equal(r.hard_extents, 1);
}

static void damage_hard_record(struct store *s, struct id128 id)
{
    struct format_key k;
    struct kv_txn *t = kv_txn_new(s->disks[0].kv);
    format_key_id('h', id, &k);
    kv_txn_put_plain(t, format_key_view(&k), SLICE_LIT("garbage"));
    assert_int_equal(kv_txn_commit(t, KV_VISIBLE, NULL), 0);
    kv_txn_free(t);
}

/* What a damaged record stands for counts once, whether the file is found, written to, sealed anew or
 * removed. (Without hard_file_bytes its bytes counted once more when it was found, and for ever; without
 * counts_twice the file did, until it was sealed or removed.) */
static void test_what_a_damaged_record_counts(void **state)
{
    struct fixture *f = *state;
    struct location l[2];
    struct id128 id[2];
    for (int i = 0; i < 2; i++) {
        struct hard *h = take(f->s, &l[i]);
        assert_int_equal(hard_put(h, 1, 0, 2 * MIB), 0);
        assert_int_equal(measure_and_settle(f->s, h), 0);
        id[i] = h->id;
        hard_unref(h);
    }
    uint64_t bytes = disk_status(f->s, 0).hard_bytes;
    for (int i = 0; i < 2; i++)
        damage_hard_record(f->s, id[i]);
    stop_and_start(f);
    struct hard *h = find(f->s, &l[0]);
    assert_false(hard_is_sealed(h));
    assert_int_equal(disk_status(f->s, 0).hard_bytes, bytes);
    assert_int_equal(disk_status(f->s, 0).used_bytes, bytes);
    assert_int_equal(disk_status(f->s, 0).hard_extents, 2);
    assert_int_equal(hard_put(h, 2, 0, 100), 0);
    assert_int_equal(disk_status(f->s, 0).hard_extents, 2);
    assert_int_equal(measure_and_settle(f->s, h), 0);
    hard_unref(h);
    assert_int_equal(f->s->disks[0].hard->count.used_bytes, bytes);
    assert_int_equal(f->s->disks[0].hard->count.extents, 2);
    assert_int_equal(disk_status(f->s, 0).hard_extents, 2);
    struct slice gone = location_view(&l[1]);
    assert_int_equal(hard_remove(f->s, &gone, 1, NULL), 0);
    bytes = hard_file_bytes(&f->s->disks[0], id[0]);
    assert_int_equal(disk_status(f->s, 0).hard_bytes, bytes);
    assert_int_equal(disk_status(f->s, 0).hard_extents, 1);
    stop_and_start(f);
    assert_int_equal(disk_status(f->s, 0).hard_bytes, bytes);
    gone = location_view(&l[0]);
    assert_int_equal(hard_remove(f->s, &gone, 1, NULL), 0);
    stop_and_start(f);
    assert_int_equal(disk_status(f->s, 0).hard_bytes, 0);
    assert_int_equal(disk_status(f->s, 0).used_bytes, 0);
}

/* A store that is open read-only finds, reads and checks, and changes nothing. */
static void test_read_only(void **state)
{
    struct fixture *f = *state;
    struct location a;
    struct hard *h = take(f->s, &a);
    assert_int_equal(hard_put(h, 1, 0, 2 * MIB), 0);
    assert_int_equal(measure_and_settle(f->s, h), 0);
    hard_unref(h);
    fixture_close(f);
    f->config.read_only = true;
    fixture_open(f);
    h = find(f->s, &a);
    assert_true(hard_holds(h, 1, 0, 2 * MIB));
    assert_int_equal(hard_begin_writing(h, NULL), -EROFS);
    struct hard *none = NULL;
    assert_int_equal(hard_take(f->s, &none, NULL), -EROFS);
    struct slice l = location_view(&a);
    assert_int_equal(hard_remove(f->s, &l, 1, NULL), -EROFS);
    char path[DISK_PATH_MAX];
    hard_path(h->disk, h->id, path);
    flip_bit(path, MIB + 1);
    struct store_check_report r;
    assert_int_equal(store_check(f->s, true, NULL, NULL, &r, NULL), 0);
    assert_int_equal(r.hard_extents, 1);
    assert_int_equal(r.hard_blocks, 2);
    assert_int_equal(r.hard_bad, 1);
    hard_unref(h);
    fixture_close(f);
    f->config.read_only = false;
    fixture_open(f);
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_take, setup, teardown),
        cmocka_unit_test_setup_teardown(test_room_is_reserved, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_file_that_is_cached_counts_once, setup, teardown),
        cmocka_unit_test_setup_teardown(test_write_and_read, setup, teardown),
        cmocka_unit_test_setup_teardown(test_large_files_are_synced_on_the_way, setup, teardown),
        cmocka_unit_test_setup_teardown(test_settle, setup, teardown),
        cmocka_unit_test_setup_teardown(test_writers_are_seen, setup, teardown),
        cmocka_unit_test_setup_teardown(test_holes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_remove, setup, teardown),
        cmocka_unit_test_setup_teardown(test_remove_of_several, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sweep, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sweep_keeps_bytes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_locations, setup, teardown),
        cmocka_unit_test_setup_teardown(test_give_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_blank_files_go_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_space, setup, teardown),
        cmocka_unit_test_setup_teardown(test_overfilled, setup, teardown),
        cmocka_unit_test_setup_teardown(test_counts_survive, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damaged_record, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_a_damaged_record_counts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_read_only, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
