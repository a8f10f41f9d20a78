/* layer: store */
/* One extent: writers, presence, missing ranges, verified reads, touches. */
#include "test_store_common.h"

#include "base/log.h"
#include "support/fault_sys.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    fixture_init(f, 1, 4 * GIB);
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

static struct extent *make(struct fixture *f, const char *key, uint64_t size)
{
    struct store_new n = {.key = slice_str(key), .size_bytes = size};
    struct extent *x = NULL;
    assert_int_equal(store_create(f->s, &n, &x, NULL), 0);
    return x;
}

static void assert_missing(struct extent *x, uint64_t from, uint64_t offset, uint64_t n)
{
    uint64_t at = 0, len = 0;
    assert_int_equal(extent_next_missing(x, from, &at, &len), 0);
    assert_int_equal(at, offset);
    assert_int_equal(len, n);
}

/* A block becomes present with its last byte, not before; the last block with the last byte of the object. */
static void test_blocks_appear_when_whole(void **state)
{
    struct extent *x = make(*state, "k", 2 * MIB + 10);
    _cleanup_free_ char *p = content_new(1, 0, 2 * MIB + 10);
    struct extent_writer *w = extent_writer_new(x, 0);
    assert_int_equal(extent_writer_append(w, p, MIB - 1), 0);
    assert_int_equal(extent_present_run(x, 0, MIB), 0);
    assert_int_equal(extent_writer_offset(w), MIB - 1);
    /* Its bytes are in the file all the same. */
    char c;
    assert_int_equal(pread(extent_use(x), &c, 1, MIB - 2), 1);
    extent_leave(x);
    assert_int_equal(c, p[MIB - 2]);
    assert_int_equal(extent_writer_append(w, p + MIB - 1, 2), 0);
    assert_int_equal(check_run(x, 1, 0, 5 * MIB), MIB);
    assert_int_equal(extent_present_bytes(x), MIB);
    assert_false(extent_is_complete(x));
    assert_int_equal(extent_writer_append(w, p + MIB + 1, MIB - 1 + 9), 0);
    assert_missing(x, 0, 2 * MIB, 10);
    assert_int_equal(extent_writer_append(w, p + 2 * MIB + 9, 1), 0);
    assert_true(extent_is_complete(x));
    assert_int_equal(extent_present_bytes(x), 2 * MIB + 10);
    extent_writer_free(w);
    extent_check(x);
    extent_unref(x);
}

/* Who follows a writer sees its bytes, also after another writer began the same block. */
static void test_second_writer_keeps_the_first_ones_bytes(void **state)
{
    struct extent *x = make(*state, "k", MIB);
    _cleanup_free_ char *p = content_new(1, 0, MIB);
    struct extent_writer *first = extent_writer_new(x, 0), *second = extent_writer_new(x, 0);
    assert_int_equal(extent_writer_append(first, p, 100 * KIB), 0);
    assert_int_equal(extent_writer_append(second, p, 1), 0);
    char seen[100 * KIB];
    assert_int_equal(pread(extent_use(x), seen, sizeof(seen), 0), sizeof(seen));
    extent_leave(x);
    assert_memory_equal(seen, p, sizeof(seen));
    extent_writer_free(second);
    assert_int_equal(extent_writer_append(first, p + 100 * KIB, MIB - 100 * KIB), 0);
    assert_int_equal(check_run(x, 1, 0, MIB), MIB);
    extent_writer_free(first);
    extent_unref(x);
}

/* Files of extents carry the mark "no access times" wherever the file system knows it. */
static void test_extents_have_no_access_times(void **state)
{
    struct fixture *f = *state;
    struct extent *x = make(f, "k", MIB);
    int flags = 0, dir_flags = 0;
    _cleanup_close_ int dir = open(f->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool known = ioctl(dir, FS_IOC_GETFLAGS, &dir_flags) == 0;
    dir_flags |= FS_NOATIME_FL;
    known = known && ioctl(dir, FS_IOC_SETFLAGS, &dir_flags) == 0;
    if (known) {
        assert_int_equal(ioctl(extent_use(x), FS_IOC_GETFLAGS, &flags), 0);
        extent_leave(x);
        assert_true((flags & FS_NOATIME_FL) != 0);
    }
    extent_unref(x);
}

/* A writer that ends in the middle of a block leaves nothing of it behind but bytes. */
static void test_unfinished_block_is_forgotten(void **state)
{
    struct extent *x = make(*state, "k", 2 * MIB);
    assert_int_equal(fill_range(x, 1, 0, MIB + 100), 0);
    assert_missing(x, 0, MIB, MIB);
    assert_int_equal(fill_range(x, 1, MIB, MIB), 0);
    assert_int_equal(check_run(x, 1, 0, 2 * MIB), 2 * MIB);
    extent_check(x);
    extent_unref(x);
}

/* Bytes for a block that is present are taken and forgotten: what is there is never overwritten. */
static void test_present_blocks_are_not_overwritten(void **state)
{
    struct extent *x = make(*state, "k", 3 * MIB);
    assert_int_equal(fill_range(x, 1, MIB, MIB), 0);
    assert_int_equal(fill_range(x, 2, MIB, MIB), 0); /* other bytes */
    assert_int_equal(check_run(x, 1, MIB, MIB), MIB);
    assert_int_equal(fill_range(x, 1, 0, 3 * MIB), 0);
    assert_int_equal(check_run(x, 1, 0, 3 * MIB), 3 * MIB);
    extent_unref(x);
}

/* Missing ranges and present runs describe the same map, over random fills of an object of many blocks. */
static void test_runs_match_a_model(void **state)
{
    enum { BLOCKS = 150 };
    struct extent *x = make(*state, "k", BLOCKS * MIB - 5);
    bool model[BLOCKS] = {0};
    unsigned seed = 3;
    static char zero[MIB];
    for (int step = 0; step < 60; step++) {
        uint64_t b = (uint64_t)rand_r(&seed) % BLOCKS;
        struct extent_writer *w = extent_writer_new(x, b * MIB);
        for (uint64_t i = b; i < MIN(b + 3, BLOCKS); i++) {
            assert_int_equal(extent_writer_append(w, zero, i == BLOCKS - 1 ? MIB - 5 : MIB), 0);
            model[i] = true;
        }
        extent_writer_free(w);
    }
    extent_check(x);
    for (uint64_t b = 0; b < BLOCKS; b++) {
        uint64_t end = b, gap = b, at = 0, n = 0;
        while (end < BLOCKS && model[end])
            end++;
        while (gap < BLOCKS && model[gap])
            gap++;
        uint64_t run = MIN(end * MIB, extent_size(x)) - MIN(b * MIB, extent_size(x));
        assert_int_equal(extent_present_run(x, b * MIB, UINT64_MAX), run);
        if (run > 10)
            assert_int_equal(extent_present_run(x, b * MIB + 10, UINT64_MAX), run - 10);
        int r = extent_next_missing(x, b * MIB + 3, &at, &n);
        assert_int_equal(r, gap < BLOCKS ? 0 : -ENOENT);
        if (r == 0) {
            uint64_t stop = gap;
            while (stop < BLOCKS && !model[stop])
                stop++;
            assert_int_equal(at, gap * MIB);
            assert_int_equal(n, MIN(stop * MIB, extent_size(x)) - at);
        }
    }
    assert_int_equal(extent_present_run(x, extent_size(x), 1), 0);
    assert_int_equal(extent_present_run(x, UINT64_MAX, 1), 0);
    extent_unref(x);
}

/* Presence of more blocks than one chunk record holds comes back after a restart, block by block. */
static void test_many_chunks(void **state)
{
    struct fixture *f = *state;
    uint64_t size = 2100 * MIB;
    struct extent *x = make(f, "k", size);
    static char zero[MIB];
    const uint64_t blocks[] = {0, 1, 1023, 1024, 1025, 2047, 2048, 2099};
    for (size_t i = 0; i < ARRAY_SIZE(blocks); i++) {
        struct extent_writer *w = extent_writer_new(x, blocks[i] * MIB);
        assert_int_equal(extent_writer_append(w, zero, MIB), 0);
        extent_writer_free(w);
    }
    extent_unref(x);
    fixture_close(f);
    fixture_open(f);
    assert_int_equal(store_find(f->s, SLICE_LIT("k"), &x), 0);
    assert_int_equal(extent_present_bytes(x), ARRAY_SIZE(blocks) * MIB);
    for (size_t i = 0; i < ARRAY_SIZE(blocks); i++) {
        char p[16];
        assert_int_equal(extent_read_verified(x, p, sizeof(p), blocks[i] * MIB + 77), sizeof(p));
    }
    extent_check(x);
    extent_unref(x);
    struct store_check_report r;
    assert_int_equal(store_check(f->s, false, NULL, NULL, &r, NULL), 0);
    assert_int_equal(r.blocks, ARRAY_SIZE(blocks));
    assert_int_equal(store_remove(f->s, SLICE_LIT("k")), 0);
    writer_drain(&f->s->disks[0]);
    struct kv_iter *it = kv_iter_new(f->s->disks[0].kv, SLICE_LIT("c"), SLICE_LIT("d"));
    struct slice k, v;
    assert_int_equal(kv_iter_next(it, &k, &v, NULL), -ENOENT); /* no chunk record is left */
    kv_iter_free(it);
}

/* Verified reads give right bytes across blocks, refuse a flipped bit and drop its block only. */
static void test_verified_reads(void **state)
{
    struct fixture *f = *state;
    char path[DISK_PATH_MAX], small[DISK_PATH_MAX];
    put(f->s, "k", 1, 3 * MIB + 9);
    put(f->s, "small", 2, 50);
    key_path(f->s, "k", path);
    key_path(f->s, "small", small);
    struct extent *x = NULL;
    assert_int_equal(store_find(f->s, SLICE_LIT("k"), &x), 0);
    _cleanup_free_ char *p = malloc(4 * MIB);
    assert_int_equal(extent_read_verified(x, p, 4 * MIB, 5), 3 * MIB + 4);
    assert_true(content_is(p, 1, 5, 3 * MIB + 4));
    assert_int_equal(extent_read_verified(x, p, 4 * MIB, 3 * MIB + 9), 0);
    assert_int_equal(store_flush(f->s, NULL), 0); /* checksums now come from the index */
    flip_bit(path, MIB + 1);
    assert_int_equal(extent_read_verified(x, p, 100, 2 * MIB), 100);
    assert_int_equal(extent_read_verified(x, p, 100, MIB + 500), ERR_CORRUPT);
    assert_int_equal(extent_read_verified(x, p, 100, MIB + 500), -ENOENT);
    assert_missing(x, 0, MIB, MIB);
    assert_int_equal(extent_read_verified(x, p, 2 * MIB, 0), MIB);
    assert_true(content_is(p, 1, 0, MIB));
    extent_check(x);
    extent_unref(x);
    assert_int_equal(store_find(f->s, SLICE_LIT("small"), &x), 0);
    flip_bit(small, 49);
    assert_int_equal(extent_read_verified(x, p, 1, 0), ERR_CORRUPT);
    assert_false(extent_is_complete(x));
    extent_unref(x);
}

/* A file that was cut while its extent is in use has lost everything behind its end. What is fetched again
 * there makes it as long as before, and what it lost before that would read as zeros. */
static void test_cut_file(void **state)
{
    struct fixture *f = *state;
    char path[DISK_PATH_MAX];
    struct extent *x = NULL;
    put(f->s, "k", 1, 4 * MIB);
    key_path(f->s, "k", path);
    assert_int_equal(store_find(f->s, SLICE_LIT("k"), &x), 0);
    assert_int_equal(truncate(path, MIB + 17), 0);
    extent_doubt(x, 3 * MIB, 10); /* it could not be read */
    assert_int_equal(extent_present_run(x, 3 * MIB, 10), 0);
    assert_int_equal(fill_range(x, 1, 3 * MIB, MIB), 0);
    assert_int_equal(check_run(x, 1, 3 * MIB, MIB), MIB);
    assert_int_equal(check_run(x, 1, 2 * MIB, MIB), 0);
    assert_int_equal(check_run(x, 1, 0, 4 * MIB), MIB);
    assert_missing(x, 0, MIB, 2 * MIB);
    assert_int_equal(fill_range(x, 1, MIB, 2 * MIB), 0);
    assert_true(extent_is_complete(x));
    /* Who would read the file itself finds it no shorter than it is. */
    assert_int_equal(truncate(path, 2 * MIB), 0);
    int fd = extent_open_fd(x, O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(close(fd), 0);
    assert_false(extent_is_complete(x));
    assert_int_equal(check_run(x, 1, 0, 4 * MIB), 2 * MIB);
    assert_int_equal(check_run(x, 1, 3 * MIB, MIB), 0);
    /* So does who goes on filling it. */
    assert_int_equal(truncate(path, MIB), 0);
    assert_int_equal(fill_range(x, 1, 2 * MIB, MIB), 0);
    assert_int_equal(check_run(x, 1, 0, 4 * MIB), MIB);
    assert_missing(x, 0, MIB, MIB);
    extent_check(x);
    extent_unref(x);
}

/* A reader of a replaced version can verify what it has for as long as its records last, and never gets wrong
 * bytes. */
static void test_verified_reads_of_the_dead(void **state)
{
    struct fixture *f = *state;
    put(f->s, "k", 1, 2 * MIB);
    struct extent *old = NULL;
    assert_int_equal(store_find(f->s, SLICE_LIT("k"), &old), 0);
    put(f->s, "k", 2, 2 * MIB);
    assert_int_equal(store_flush(f->s, NULL), 0);
    char p[64];
    ssize_t n = extent_read_verified(old, p, sizeof(p), MIB);
    assert_true(n == -ENOENT || (n == sizeof(p) && content_is(p, 1, MIB, sizeof(p))));
    /* It can be filled again, for its own readers. */
    uint64_t at = 0, len = 0;
    while (extent_next_missing(old, 0, &at, &len) == 0)
        assert_int_equal(fill_range(old, 1, at, len), 0);
    assert_int_equal(extent_read_verified(old, p, sizeof(p), MIB), sizeof(p));
    assert_true(content_is(p, 1, MIB, sizeof(p)));
    extent_check(old);
    extent_unref(old);
    assert_true(is_whole(f->s, "k", 2, 2 * MIB));
    assert_int_equal(disk_status(f->s, 0).used_bytes, 2 * MIB);
}

/* Dirty pages are sent to the disk while a fill goes on. */
static void test_pages_are_sent_early(void **state)
{
    struct extent *x = make(*state, "k", 20 * MIB);
    fault_sys_start();
    fault_sys_arm(FAULT_SYNC_FILE_RANGE, 1000, EIO, FAULT_ONCE);
    assert_int_equal(fill_range(x, 1, 0, 20 * MIB), 0);
    assert_int_equal(fault_sys_count(FAULT_SYNC_FILE_RANGE), 2);
    fault_sys_disarm();
    fault_sys_stop();
    extent_unref(x);
}

/* Memory for checksums that are not recorded yet is bounded: a fill waits for the writer. */
static void test_unrecorded_blocks_are_bounded(void **state)
{
    struct fixture *f = *state;
    struct extent *x = make(f, "k", 3000 * MIB);
    for (uint32_t b = 0; b < 3000; b++)
        extent_block_filled(x, b, 1);
    writer_throttle(x->disk);
    writer_drain(x->disk);
    lock_take(&x->lock);
    assert_int_equal(x->n_pending, 0);
    assert_null(x->pending);
    lock_drop(&x->lock);
    assert_int_equal(x->disk->pending_blocks, 0);
    extent_unref(x);
}

#define TEST(t) cmocka_unit_test_setup_teardown(t, setup, teardown)

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        TEST(test_blocks_appear_when_whole),
        TEST(test_unfinished_block_is_forgotten),
        TEST(test_second_writer_keeps_the_first_ones_bytes),
        TEST(test_extents_have_no_access_times),
        TEST(test_present_blocks_are_not_overwritten),
        TEST(test_runs_match_a_model),
        TEST(test_many_chunks),
        TEST(test_verified_reads),
        TEST(test_cut_file),
        TEST(test_verified_reads_of_the_dead),
        TEST(test_pages_are_sent_early),
        TEST(test_unrecorded_blocks_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
