/* layer: store */
/* Entries: made, found, replaced, removed, published; over stops of every kind; on several disks. */
#include "test_store_common.h"

#include <dirent.h>
#include <sys/resource.h>

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    fixture_init(f, 1, 256 * MIB);
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

/* What was filled is found with its bytes, size and attributes; what was never made is not. */
static void test_find_gives_what_was_filled(void **state)
{
    struct store *s = ((struct fixture *)*state)->s;
    put(s, "b/small", 1, 1000);
    put(s, "b/large", 2, 5 * MIB + 7);
    put(s, "b/empty", 3, 0);
    put(s, "b/exact", 4, 2 * MIB);
    assert_true(is_whole(s, "b/small", 1, 1000));
    assert_true(is_whole(s, "b/large", 2, 5 * MIB + 7));
    assert_true(is_whole(s, "b/empty", 3, 0));
    assert_true(is_whole(s, "b/exact", 4, 2 * MIB));
    assert_false(is_there(s, "b/none"));
    assert_false(is_there(s, ""));
    struct extent *_cleanup_(extent_unrefp) x = NULL;
    assert_int_equal(store_find(s, SLICE_LIT("b/large"), &x), 0);
    assert_true(extent_is_complete(x));
    assert_false(extent_is_dead(x));
    assert_int_equal(extent_present_bytes(x), 5 * MIB + 7);
    struct buf _cleanup_buf_ b = BUF_INIT(KIB);
    assert_int_equal(extent_attr(x, &b), 0);
    assert_true(slice_eq_str(buf_view(&b), "attr"));
    struct arena *_cleanup_(arena_freep) a = arena_new(KIB);
    assert_true(slice_eq_str(extent_attr_in(x, a), "attr"));
}

/* Finding twice gives one and the same extent, so that readers and the fill meet. */
static void test_one_extent_per_key(void **state)
{
    struct store *s = ((struct fixture *)*state)->s;
    put(s, "k", 1, 10);
    struct extent *_cleanup_(extent_unrefp) a = NULL, *_cleanup_(extent_unrefp) b = NULL;
    assert_int_equal(store_find(s, SLICE_LIT("k"), &a), 0);
    assert_int_equal(store_find(s, SLICE_LIT("k"), &b), 0);
    assert_ptr_equal(a, b);
}

/* Everything is there after a clean stop, also presence in part, attributes and counts. */
static void test_clean_stop_keeps_everything(void **state)
{
    struct fixture *f = *state;
    put(f->s, "small", 1, 1000);
    put(f->s, "large", 2, 5 * MIB + 7);
    struct store_new n = {.key = SLICE_LIT("part"), .attr = SLICE_LIT("a"), .size_bytes = 10 * MIB};
    struct extent *x = NULL;
    assert_int_equal(store_create(f->s, &n, &x, NULL), 0);
    assert_int_equal(fill_range(x, 3, 4 * MIB, 2 * MIB), 0);
    assert_int_equal(extent_set_attr(x, SLICE_LIT("changed")), 0);
    extent_unref(x);
    struct store_disk_status before = disk_status(f->s, 0);
    fixture_close(f);
    fixture_open(f);
    struct store_disk_status after = disk_status(f->s, 0);
    assert_true(after.was_clean);
    assert_int_equal(after.extents, 3);
    assert_int_equal(after.used_bytes, before.used_bytes);
    assert_true(is_whole(f->s, "small", 1, 1000));
    assert_true(is_whole(f->s, "large", 2, 5 * MIB + 7));
    assert_false(is_whole(f->s, "part", 3, 10 * MIB));
    assert_int_equal(store_find(f->s, SLICE_LIT("part"), &x), 0);
    assert_int_equal(check_run(x, 3, 4 * MIB, 6 * MIB), 2 * MIB);
    assert_int_equal(extent_present_bytes(x), 2 * MIB);
    struct buf _cleanup_buf_ b = BUF_INIT(KIB);
    assert_int_equal(extent_attr(x, &b), 0);
    assert_true(slice_eq_str(buf_view(&b), "changed"));
    uint64_t at = 0, len = 0;
    assert_int_equal(extent_next_missing(x, 0, &at, &len), 0);
    assert_true(at == 0 && len == 4 * MIB);
    assert_int_equal(extent_next_missing(x, 5 * MIB, &at, &len), 0);
    assert_true(at == 6 * MIB && len == 4 * MIB);
    assert_int_equal(fill_range(x, 3, 0, 4 * MIB), 0);
    assert_int_equal(fill_range(x, 3, 6 * MIB, 4 * MIB), 0);
    assert_int_equal(extent_next_missing(x, 0, &at, &len), -ENOENT);
    extent_unref(x);
    assert_true(is_whole(f->s, "part", 3, 10 * MIB));
}

/* A new version takes the key; readers of the old one keep its bytes until they let go, and its file is gone
 * then. */
static void test_replacing_keeps_old_readers(void **state)
{
    struct store *s = ((struct fixture *)*state)->s;
    put(s, "k", 1, 3 * MIB);
    struct extent *old = NULL;
    assert_int_equal(store_find(s, SLICE_LIT("k"), &old), 0);
    put(s, "k", 2, 2 * MIB);
    assert_true(extent_is_dead(old));
    assert_true(is_whole(s, "k", 2, 2 * MIB));
    assert_int_equal(check_run(old, 1, 0, 3 * MIB), 3 * MIB);
    struct store_disk_status st = disk_status(s, 0);
    assert_int_equal(st.leased_bytes, 3 * MIB);
    assert_int_equal(st.used_bytes, 5 * MIB);
    assert_int_equal(st.extents, 1);
    int fd = extent_open_fd(old, O_RDONLY);
    assert_true(fd >= 0);
    char c;
    assert_int_equal(pread(fd, &c, 1, 2 * MIB), 1);
    assert_int_equal((uint8_t)c, content_byte(1, 2 * MIB));
    assert_int_equal(close(fd), 0);
    extent_unref(old);
    st = disk_status(s, 0);
    assert_int_equal(st.leased_bytes, 0);
    assert_int_equal(st.used_bytes, 2 * MIB);
}

/* Descriptors for reading cannot write. */
static void test_read_descriptors_are_read_only(void **state)
{
    struct store *s = ((struct fixture *)*state)->s;
    put(s, "k", 1, 100);
    struct extent *_cleanup_(extent_unrefp) x = NULL;
    assert_int_equal(store_find(s, SLICE_LIT("k"), &x), 0);
    int fd = extent_open_fd(x, O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, "x", 1, 0), -1);
    assert_int_equal(close(fd), 0);
    assert_int_equal(extent_open_fd(x, O_RDWR), -EACCES);
    char path[DISK_PATH_MAX];
    struct stat st;
    extent_path(x, path);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
}

/* A removed entry is gone at once and after a restart; removing it again says so. */
static void test_remove(void **state)
{
    struct fixture *f = *state;
    char path[DISK_PATH_MAX];
    put(f->s, "k", 1, 100);
    put(f->s, "other", 2, 100);
    key_path(f->s, "k", path);
    assert_int_equal(store_remove(f->s, SLICE_LIT("k")), 0);
    assert_int_equal(store_remove(f->s, SLICE_LIT("k")), -ENOENT);
    assert_false(is_there(f->s, "k"));
    assert_int_equal(access(path, F_OK), -1);
    fixture_close(f);
    fixture_open(f);
    assert_false(is_there(f->s, "k"));
    assert_true(is_whole(f->s, "other", 2, 100));
    assert_int_equal(disk_status(f->s, 0).used_bytes, 4096);
    /* Known only to the index now. */
    assert_int_equal(store_remove(f->s, SLICE_LIT("other")), 0);
    assert_false(is_there(f->s, "other"));
    assert_int_equal(disk_status(f->s, 0).used_bytes, 0);
}

/* Removing an extent leaves a newer version of its key alone. */
static void test_remove_extent_spares_the_newer(void **state)
{
    struct store *s = ((struct fixture *)*state)->s;
    put(s, "k", 1, 100);
    struct extent *_cleanup_(extent_unrefp) old = NULL;
    assert_int_equal(store_find(s, SLICE_LIT("k"), &old), 0);
    put(s, "k", 2, 100);
    store_remove_extent(s, old);
    assert_true(is_whole(s, "k", 2, 100));
    struct extent *_cleanup_(extent_unrefp) now = NULL;
    assert_int_equal(store_find(s, SLICE_LIT("k"), &now), 0);
    store_remove_extent(s, now);
    assert_false(is_there(s, "k"));
}

/* Removing a prefix takes what begins with it, recorded or not, and nothing else. */
static void test_remove_prefix(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < 600; i++) {
        char key[32];
        (void)snprintf(key, sizeof(key), "a/%03d", i);
        put(f->s, key, 1, 10);
    }
    put(f->s, "a", 1, 10);
    put(f->s, "a0", 1, 10);
    put(f->s, "b/1", 1, 10);
    assert_int_equal(store_remove_prefix(f->s, SLICE_LIT("a/")), 600);
    assert_int_equal(store_remove_prefix(f->s, SLICE_LIT("a/")), 0);
    assert_false(is_there(f->s, "a/000"));
    assert_false(is_there(f->s, "a/599"));
    assert_true(is_there(f->s, "a") && is_there(f->s, "a0") && is_there(f->s, "b/1"));
    assert_int_equal(disk_status(f->s, 0).extents, 3);
    fixture_close(f);
    fixture_open(f);
    assert_false(is_there(f->s, "a/300"));
    assert_int_equal(store_remove_prefix(f->s, SLICE_NULL), 3);
    assert_int_equal(disk_status(f->s, 0).extents, 0);
    assert_int_equal(disk_status(f->s, 0).used_bytes, 0);
}

/* A staged extent is nobody's until it is published, then it is the current one, complete. */
static void test_publish(void **state)
{
    struct fixture *f = *state;
    put(f->s, "k", 1, 100);
    uint64_t size = 3 * MIB + 11;
    struct extent *x = NULL;
    assert_int_equal(store_stage(f->s, SLICE_LIT("k"), 0, &x, NULL), 0);
    _cleanup_free_ char *p = content_new(2, 0, size);
    for (uint64_t at = 0; at < size; at += 300000)
        assert_int_equal(extent_write(x, p + at, MIN(size - at, 300000), at), 0);
    assert_int_equal(extent_size(x), size);
    assert_false(extent_is_complete(x));
    assert_true(is_whole(f->s, "k", 1, 100));
    struct store_new n = {.key = SLICE_LIT("k"), .attr = SLICE_LIT("etag"), .size_bytes = size};
    assert_int_equal(store_publish(f->s, x, &n, NULL), 0);
    assert_true(extent_is_complete(x));
    extent_check(x);
    extent_unref(x);
    assert_true(is_whole(f->s, "k", 2, size));
    assert_int_equal(disk_status(f->s, 0).used_bytes, ALIGN_UP(size, 4096));
    fixture_close(f);
    fixture_open(f);
    assert_true(is_whole(f->s, "k", 2, size));
    struct store_check_report report;
    assert_int_equal(store_check(f->s, false, NULL, NULL, &report, NULL), 0);
    assert_int_equal(report.bad_blocks, 0);
    assert_int_equal(report.blocks, 4);
}

/* Writes in any order, overlapping, with holes and truncations, are published with the right checksums. */
static void test_publish_after_random_writes(void **state)
{
    struct fixture *f = *state;
    enum { MAX = 4 * 1024 * 1024 };
    unsigned seed = 11;
    for (int round = 0; round < 20; round++) {
        _cleanup_free_ char *model = calloc(1, MAX);
        uint64_t size = 0;
        struct extent *x = NULL;
        assert_int_equal(store_stage(f->s, SLICE_LIT("k"), 0, &x, NULL), 0);
        for (int i = 0; i < 12; i++) {
            uint64_t at = rand_r(&seed) % 2 ? size : (uint64_t)rand_r(&seed) % MAX;
            size_t n = (size_t)rand_r(&seed) % (MAX - at + 1);
            if (rand_r(&seed) % 6 == 0) {
                uint64_t cut = (uint64_t)rand_r(&seed) % MAX;
                assert_int_equal(extent_truncate(x, cut), 0);
                if (cut < size)
                    memset(model + cut, 0, size - cut);
                size = cut;
                continue;
            }
            _cleanup_free_ char *p = content_new((uint64_t)rand_r(&seed), 0, n);
            assert_int_equal(extent_write(x, p, n, at), 0);
            memcpy(model + at, p, n);
            size = n > 0 ? MAX(size, at + n) : size;
            extent_check(x);
        }
        assert_int_equal(extent_size(x), size);
        struct store_new n = {.key = SLICE_LIT("k"), .size_bytes = size};
        assert_int_equal(store_publish(f->s, x, &n, NULL), 0);
        extent_check(x);
        _cleanup_free_ char *got = malloc(size + 1);
        for (uint64_t done = 0; done < size;) {
            ssize_t r = extent_read_verified(x, got + done, size - done, done);
            assert_true(r > 0);
            done += (uint64_t)r;
        }
        assert_memory_equal(got, model, size);
        extent_unref(x);
    }
}
#undef MAX

/* A staged extent that is let go of leaves nothing. */
static void test_unpublished_leaves_nothing(void **state)
{
    struct fixture *f = *state;
    struct extent *x = NULL;
    char path[DISK_PATH_MAX];
    assert_int_equal(store_stage(f->s, SLICE_LIT("k"), 10 * MIB, &x, NULL), 0);
    extent_path(x, path);
    assert_int_equal(extent_write(x, "hello", 5, 3), 0);
    int fd = extent_open_fd(x, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(close(fd), 0);
    extent_unref(x);
    assert_false(is_there(f->s, "k"));
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(disk_status(f->s, 0).used_bytes, 0);
    assert_int_equal(disk_status(f->s, 0).leased_bytes, 0);
}

/* Sizes, keys and attributes beyond the limits are refused. */
static void test_limits(void **state)
{
    struct store *s = ((struct fixture *)*state)->s;
    static char long_text[STORE_ATTR_MAX_BYTES + 1];
    memset(long_text, 'k', sizeof(long_text));
    struct extent *x = NULL;
    struct store_new n = {.key = slice_of(long_text, STORE_KEY_MAX_BYTES),
                          .attr = slice_of(long_text, STORE_ATTR_MAX_BYTES)};
    assert_int_equal(store_create(s, &n, &x, NULL), 0);
    extent_unref(x);
    n.attr.n++;
    assert_true(store_create(s, &n, &x, NULL) < 0);
    n.attr.n = 0;
    n.key.n++;
    assert_true(store_create(s, &n, &x, NULL) < 0);
    assert_int_equal(store_find(s, n.key, &x), -ENOENT);
    n.key.n = 0;
    assert_true(store_create(s, &n, &x, NULL) < 0);
    n = (struct store_new){.key = SLICE_LIT("k"), .size_bytes = STORE_SIZE_MAX_BYTES + 1};
    assert_int_equal(store_create(s, &n, &x, NULL), -EFBIG);
    put(s, "k", 1, 10);
    assert_int_equal(store_find(s, SLICE_LIT("k"), &x), 0);
    struct extent_writer *w = extent_writer_new(x, 0);
    assert_int_equal(extent_writer_append(w, long_text, 11), -EINVAL);
    extent_writer_free(w);
    extent_unref(x);
}

/* Several disks are used by their weight, each key is found again, also after a disk was added. */
static void test_disks_are_used_evenly(void **state)
{
    struct fixture f;
    fixture_init(&f, 3, 100 * MIB);
    f.disk_config[2].size_bytes = 200 * MIB;
    f.config.n_disks = 2;
    fixture_open(&f);
    char key[32];
    for (int i = 0; i < 300; i++) {
        (void)snprintf(key, sizeof(key), "k%d", i);
        put(f.s, key, (uint64_t)i, 100);
    }
    uint64_t a = disk_status(f.s, 0).extents, b = disk_status(f.s, 1).extents;
    assert_int_equal(a + b, 300);
    assert_true(a > 100 && b > 100);
    fixture_close(&f);
    f.config.n_disks = 3;
    fixture_open(&f);
    for (int i = 0; i < 300; i++) {
        (void)snprintf(key, sizeof(key), "k%d", i);
        assert_true(is_whole(f.s, key, (uint64_t)i, 100));
        /* A new version goes where placement says now; the old one must not come back. */
        put(f.s, key, (uint64_t)i + 1000, 200);
    }
    assert_int_equal(disk_status(f.s, 0).extents + disk_status(f.s, 1).extents + disk_status(f.s, 2).extents,
                     300);
    assert_true(disk_status(f.s, 2).extents > 100);
    fixture_close(&f);
    fixture_open(&f);
    for (int i = 0; i < 300; i++) {
        (void)snprintf(key, sizeof(key), "k%d", i);
        assert_true(is_whole(f.s, key, (uint64_t)i + 1000, 200));
    }
    fixture_fini(&f);
}

/* A disk in use, a disk given twice, a strange directory and a damaged mark are errors that name the disk. */
static void test_open_errors_name_the_disk(void **state)
{
    struct fixture *f = *state;
    struct store *second = NULL;
    struct err e = {0};
    assert_int_equal(store_open(&f->config, &second, &e), -EBUSY);
    assert_non_null(strstr(e.text, f->disks[0]));
    struct store_disk_config twice[2] = {f->disk_config[0], f->disk_config[0]};
    struct store_config c = f->config;
    c.disks = twice;
    c.n_disks = 2;
    assert_int_equal(store_open(&c, &second, &e), -EINVAL);
    assert_non_null(strstr(e.text, "twice"));
    fixture_close(f);
    char *mark = tmpdir_path(f->disks[0], "forebay-disk");
    assert_int_equal(sys_write_file_atomic(mark, "nonsense\n", 9, 0600), 0);
    assert_true(store_open(&f->config, &second, &e) < 0);
    assert_non_null(strstr(e.text, "forebay-disk"));
    assert_int_equal(unlink(mark), 0);
    assert_true(store_open(&f->config, &second, &e) < 0);
    free(mark);
    f->disk_config[0].path = "/proc/none";
    assert_true(store_open(&f->config, &second, &e) < 0);
    assert_non_null(strstr(e.text, "/proc/none"));
}

/* Many more extents than memory allows are all found. */
static void test_small_memory(void **state)
{
    struct fixture *f = *state;
    f->s->lru_bytes_max = 1200; /* per shard */
    char key[32];
    for (int i = 0; i < 1000; i++) {
        (void)snprintf(key, sizeof(key), "k%d", i);
        put(f->s, key, (uint64_t)i, 50);
    }
    for (int i = 0; i < 1000; i++) {
        (void)snprintf(key, sizeof(key), "k%d", i);
        assert_true(is_whole(f->s, key, (uint64_t)i, 50));
    }
    assert_int_equal(store_flush(f->s, NULL), 0);
    size_t kept = 0;
    for (size_t i = 0; i < TABLE_SHARDS; i++)
        kept += f->s->shards[i].n_extents;
    assert_true(kept <= (size_t)3 * TABLE_SHARDS);
}

static size_t count_descriptors(void)
{
    size_t n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d))
        n++;
    assert_int_equal(closedir(d), 0);
    return n;
}

/* Many more extents are referenced than there are descriptors for: all can be read and filled, and those that
 * somebody uses keep theirs. */
static void test_few_descriptors(void **state)
{
    struct fixture *f = *state;
    struct extent *x[100];
    char key[32];
    size_t before = count_descriptors();
    f->s->fds_max = 8;
    for (size_t i = 0; i < ARRAY_SIZE(x); i++) {
        (void)snprintf(key, sizeof(key), "k%zu", i);
        put(f->s, key, i, 2 * MIB + 5);
        assert_int_equal(store_find(f->s, slice_str(key), &x[i]), 0);
    }
    assert_true(count_descriptors() <= before + 8);
    int used = extent_use(x[0]);
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < ARRAY_SIZE(x); i++)
            assert_int_equal(check_run(x[i], i, 0, 2 * MIB + 5), 2 * MIB + 5);
    assert_true(count_descriptors() <= before + 8 + 1);
    assert_int_equal(extent_fd(x[0]), used);
    char c;
    assert_int_equal(pread(used, &c, 1, 7), 1);
    assert_int_equal((uint8_t)c, content_byte(0, 7));
    extent_leave(x[0]);
    for (size_t i = 0; i < ARRAY_SIZE(x); i++)
        extent_unref(x[i]);
}

/* A removed extent keeps its bytes for who references it, also when its descriptor was closed meanwhile. */
static void test_removed_without_a_descriptor(void **state)
{
    struct fixture *f = *state;
    struct extent *old = NULL;
    char key[32];
    put(f->s, "old", 7, MIB + 1);
    assert_int_equal(store_find(f->s, SLICE_LIT("old"), &old), 0);
    f->s->fds_max = 2;
    for (uint64_t i = 0; i < 10; i++) {
        (void)snprintf(key, sizeof(key), "k%d", (int)i);
        put(f->s, key, i, 100);
    }
    assert_true(old->fd_uses & FD_CLOSED);
    put(f->s, "old", 8, 100);
    for (uint64_t i = 0; i < 10; i++) {
        (void)snprintf(key, sizeof(key), "k%d", (int)i);
        assert_true(is_whole(f->s, key, i, 100));
    }
    assert_int_equal(check_run(old, 7, 0, MIB + 1), MIB + 1);
    int fd = extent_open_fd(old, O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(close(fd), 0);
    extent_unref(old);
}

/* Also for the one who removes it, when nobody else has it. */
static void test_removed_by_its_only_reader_without_a_descriptor(void **state)
{
    struct fixture *f = *state;
    struct extent *x = NULL;
    put(f->s, "k", 1, MIB + 1);
    assert_int_equal(store_find(f->s, SLICE_LIT("k"), &x), 0);
    f->s->fds_max = 0;
    put(f->s, "other", 2, 100);
    assert_true(x->fd_uses & FD_CLOSED);
    store_remove_extent(f->s, x);
    assert_int_equal(check_run(x, 1, 0, MIB + 1), MIB + 1);
    extent_unref(x);
}

/* An extent that lost a block to a check is filled again, whether its file is open or not. */
static void test_filled_again_without_a_descriptor(void **state)
{
    struct fixture *f = *state;
    struct extent *x = NULL;
    put(f->s, "k", 1, 2 * MIB);
    assert_int_equal(store_find(f->s, SLICE_LIT("k"), &x), 0);
    extent_block_dropped(x, 1, "test");
    f->s->fds_max = 0;
    put(f->s, "other", 2, 100);
    assert_true(x->fd_uses & FD_CLOSED);
    assert_int_equal(fill_range(x, 1, MIB, MIB), 0);
    assert_int_equal(check_run(x, 1, 0, 2 * MIB), 2 * MIB);
    extent_unref(x);
}

/* The number of descriptors that a process may have is reached: one of an unused extent goes for another. */
static void test_no_descriptor_is_left(void **state)
{
    struct fixture *f = *state;
    struct extent *x[2];
    char key[32];
    for (size_t i = 0; i < ARRAY_SIZE(x); i++) {
        (void)snprintf(key, sizeof(key), "k%zu", i);
        put(f->s, key, i, 100);
        assert_int_equal(store_find(f->s, slice_str(key), &x[i]), 0);
    }
    f->s->fds_max = 1;
    assert_true(extent_use(x[0]) >= 0);
    extent_leave(x[0]);
    put(f->s, "other", 9, 100);
    f->s->fds_max = 100;
    struct extent *closed = x[0]->fd_uses & FD_CLOSED ? x[0] : x[1];
    assert_true(closed->fd_uses & FD_CLOSED);
    struct rlimit old, few;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    few = old;
    few.rlim_cur = 256;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    int taken[256];
    size_t n = 0;
    while ((taken[n] = dup(0)) >= 0)
        n++;
    int fd = extent_use(closed);
    while (n > 0)
        assert_int_equal(close(taken[--n]), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_true(fd >= 0);
    extent_leave(closed);
    for (size_t i = 0; i < ARRAY_SIZE(x); i++)
        extent_unref(x[i]);
}

static int open_read_only(const char *path, int flags, mode_t mode)
{
    return (flags & O_ACCMODE) == O_RDONLY ? sys_real.open(path, flags, mode) : -EROFS;
}

/* The disk's file system has become read-only: what it has is still read, and nothing is filled. */
static void test_read_only_file_system(void **state)
{
    struct fixture *f = *state;
    struct extent *x = NULL;
    put(f->s, "k", 1, 2 * MIB);
    assert_int_equal(store_find(f->s, SLICE_LIT("k"), &x), 0);
    extent_block_dropped(x, 1, "test");
    f->s->fds_max = 0;
    put(f->s, "other", 2, 100);
    assert_true(x->fd_uses & FD_CLOSED);
    const struct sys *before = sys;
    struct sys table = *sys;
    table.open = open_read_only;
    sys = &table;
    assert_int_equal(check_run(x, 1, 0, MIB), MIB);
    assert_true(fill_range(x, 1, MIB, MIB) < 0);
    sys = before;
    assert_int_equal(extent_present_run(x, MIB, MIB), 0);
    extent_unref(x);
}

#define TEST(t) cmocka_unit_test_setup_teardown(t, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_find_gives_what_was_filled),
        TEST(test_one_extent_per_key),
        TEST(test_clean_stop_keeps_everything),
        TEST(test_replacing_keeps_old_readers),
        TEST(test_read_descriptors_are_read_only),
        TEST(test_remove),
        TEST(test_remove_extent_spares_the_newer),
        TEST(test_remove_prefix),
        TEST(test_publish),
        TEST(test_publish_after_random_writes),
        TEST(test_unpublished_leaves_nothing),
        TEST(test_limits),
        TEST(test_disks_are_used_evenly),
        TEST(test_open_errors_name_the_disk),
        TEST(test_small_memory),
        TEST(test_few_descriptors),
        TEST(test_removed_without_a_descriptor),
        TEST(test_removed_by_its_only_reader_without_a_descriptor),
        TEST(test_filled_again_without_a_descriptor),
        TEST(test_no_descriptor_is_left),
        TEST(test_read_only_file_system),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
