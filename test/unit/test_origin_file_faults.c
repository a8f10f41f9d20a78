/* layer: origin */
/* A directory as an origin whose file system fails: what was not synced is not taken for synced. */
#include "base/sys.h"
#include "origin/origin.h"
#include "support/fault_sys.h"
#include "support/tmpdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define SYNCED_MAX 16

static struct {
    char *dir;
    struct origin *origin;
    struct arena *arena;
    struct err err;
    ino_t synced[SYNCED_MAX];
    size_t n;
} T;

static int setup(void **state)
{
    (void)state;
    struct origin_options o;
    memset(&T, 0, sizeof(T));
    T.dir = tmpdir_new();
    T.arena = arena_new(MIB);
    char *url = arena_printf(T.arena, "file://%s", T.dir);
    assert_int_equal(option_init(&origin_option_table, &o, &T.err), 0);
    assert_int_equal(origin_open(url, &o, "files", &T.origin, &T.err), 0);
    option_fini(&origin_option_table, &o);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    origin_close(T.origin);
    arena_free(T.arena);
    tmpdir_free(T.dir);
    return 0;
}

static ssize_t body_of(void *arg, void *p, size_t n, uint64_t offset)
{
    memcpy(p, (const char *)arg + offset, n);
    return (ssize_t)n;
}

static int put(const char *key, const char *meta)
{
    struct origin_put p = {.key = slice_str(key), .meta = slice_str(meta)};
    bool is_dir = key[strlen(key) - 1] == '/';
    struct origin_body b = {.size_bytes = is_dir ? 0 : 4, .read = body_of, .arg = (void *)(uintptr_t) "text"};
    struct origin_attr attr;
    return origin_put(T.origin, &p, &b, T.arena, &attr, &T.err);
}

static const char *path_of(const char *key)
{
    return arena_printf(T.arena, "%s/%s", T.dir, key);
}

static int noting_fsync(int fd)
{
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    assert_true(T.n < SYNCED_MAX);
    T.synced[T.n++] = st.st_ino;
    return sys_real.fsync(fd);
}

static bool is_synced(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    for (size_t i = 0; i < T.n; i++)
        if (T.synced[i] == st.st_ino)
            return true;
    return false;
}

/* Whichever sync of a put that makes directories fails, the next try syncs all that holds a name it needs.
 * (Seen to fail where a directory stays whose parent could not be synced.) */
static void test_directories_are_synced_by_the_next_try(void **state)
{
    (void)state;
    for (uint64_t nth = 1; nth <= 2; nth++) {
        char a[16], b[24], key[32];
        (void)snprintf(a, sizeof(a), "%d", (int)nth);
        (void)snprintf(b, sizeof(b), "%s/b", a);
        (void)snprintf(key, sizeof(key), "%s/k", b);
        fault_sys_start();
        fault_sys_arm(FAULT_FSYNC, nth, EIO, FAULT_ONCE);
        assert_int_equal(put(key, ""), ERR_ORIGIN_FAILED);
        fault_sys_stop();
        struct sys noting = sys_real;
        noting.fsync = noting_fsync;
        T.n = 0;
        sys = &noting;
        assert_int_equal(put(key, ""), 0);
        sys = &sys_real;
        assert_true(is_synced(path_of(key)) && is_synced(path_of(b)) && is_synced(path_of(a)));
        if (nth == 1)
            assert_true(is_synced(T.dir));
    }
}

/* A time that cannot be set fails the put, of a file and of a directory, and nothing has the name. */
static void test_a_time_that_cannot_be_set(void **state)
{
    (void)state;
    T.origin->posix = true;
    fault_sys_start();
    fault_sys_arm(FAULT_FUTIMENS, 1, EIO, FAULT_ONCE);
    assert_int_equal(put("k", "x-amz-meta-mtime: 1600000000\n"), ERR_ORIGIN_FAILED);
    assert_true(fault_sys_hit());
    assert_int_equal(access(path_of("k"), F_OK), -1);
    fault_sys_arm(FAULT_FUTIMENS, 1, EIO, FAULT_ONCE);
    assert_int_equal(put("d/", "x-amz-meta-mtime: 1600000000\n"), ERR_ORIGIN_FAILED);
    assert_true(fault_sys_hit());
    fault_sys_stop();
    assert_int_equal(put("d/", "x-amz-meta-mtime: 1600000000\n"), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_directories_are_synced_by_the_next_try),
        TEST(test_a_time_that_cannot_be_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
