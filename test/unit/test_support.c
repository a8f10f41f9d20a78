/* layer: base */
/*
 * The helpers of the other tests: what they simulate must itself be right, or a sweep proves nothing.
 */
#include "base/slice.h"
#include "base/sys.h"
#include "support/clock_sys.h"
#include "support/crash_sys.h"
#include "support/fault_sys.h"
#include "support/tmpdir.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/wait.h>

#include <cmocka.h>

#define SEEDS 64

static int make_file(const char *path, const char *text)
{
    int fd = sys->open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(sys_pwrite_all(fd, text, strlen(text), 0), 0);
    return fd;
}

static void sync_dir(const char *path)
{
    int fd = sys->open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(sys->fsync(fd), 0);
    assert_int_equal(sys->close(fd), 0);
}

/* "" for a missing file. */
static char *contents(const char *path)
{
    char *p = NULL;
    size_t n;
    int r = sys_read_file(path, 1 << 20, &p, &n);
    if (r == -ENOENT)
        return slice_dup(SLICE_NULL);
    assert_int_equal(r, 0);
    return p;
}

static void assert_contents(const char *path, const char *text)
{
    _cleanup_free_ char *p = contents(path);
    assert_string_equal(p, text);
}

/* A sweep of failures over one atomic write reaches an end, every failure is reported, and the file is whole.
 */
static void fault_sweep_of_atomic_write(void **state)
{
    _cleanup_tmpdir_ char *dir = tmpdir_new();
    _cleanup_free_ char *path = tmpdir_path(dir, "f");
    assert_int_equal(sys_write_file_atomic(path, "old", 3, 0600), 0);
    fault_sys_start();
    uint64_t n = 1;
    for (;; n++) {
        fault_sys_arm(FAULT_ALL, n, EIO, FAULT_PARTIAL);
        int r = sys_write_file_atomic(path, "new", 3, 0600);
        bool hit = fault_sys_hit();
        fault_sys_disarm();
        assert_int_equal(r, hit ? -EIO : 0);
        _cleanup_free_ char *now = contents(path);
        assert_true(strcmp(now, "old") == 0 || strcmp(now, "new") == 0);
        if (!hit)
            break;
    }
    assert_true(n > 5);
    fault_sys_stop();
    assert_ptr_equal(sys, &sys_real);
}

/* FAULT_FOREVER stays, FAULT_ONCE passes, only the chosen calls count, and short writes are short. */
static void fault_modes(void **state)
{
    _cleanup_tmpdir_ char *dir = tmpdir_new();
    _cleanup_free_ char *path = tmpdir_path(dir, "f");
    fault_sys_start();
    int fd = make_file(path, "0123456789");
    fault_sys_arm(FAULT_WRITES, 2, ENOSPC, FAULT_FOREVER);
    assert_int_equal(sys->pwrite(fd, "a", 1, 0), 1);
    assert_int_equal(sys->fsync(fd), 0);
    assert_int_equal(sys->pwrite(fd, "b", 1, 0), -ENOSPC);
    assert_int_equal(sys->ftruncate(fd, 0), -ENOSPC);
    assert_int_equal(fault_sys_count(FAULT_WRITES), 3);
    assert_int_equal(fault_sys_count(FAULT_FSYNC), 1);
    fault_sys_arm(FAULT_PWRITE, 1, EIO, FAULT_ONCE);
    assert_int_equal(sys->pwrite(fd, "c", 1, 0), -EIO);
    assert_int_equal(sys->pwrite(fd, "d", 1, 0), 1);
    fault_sys_disarm();
    fault_sys_short_io(3);
    assert_int_equal(sys->pwrite(fd, "efgh", 4, 0), 3);
    assert_int_equal(sys_pwrite_all(fd, "ABCDEFGH", 8, 0), 0);
    assert_int_equal(sys->close(fd), 0);
    fault_sys_stop();
    assert_contents(path, "ABCDEFGH89");
}

/* Bytes that were not synced are gone with the strictest seed and there with the mildest; synced ones stay.
 */
static void crash_of_bytes(void **state)
{
    for (uint64_t seed = CRASH_DROP_ALL; seed <= CRASH_KEEP_ALL; seed++) {
        _cleanup_tmpdir_ char *dir = tmpdir_new();
        _cleanup_free_ char *path = tmpdir_path(dir, "f");
        crash_sys_start(dir);
        int fd = make_file(path, "synced");
        assert_int_equal(sys->fsync(fd), 0);
        sync_dir(dir);
        assert_int_equal(sys_pwrite_all(fd, "SYNCED and more", 15, 0), 0);
        assert_int_equal(sys->ftruncate(fd, 10), 0);
        assert_int_equal(sys->close(fd), 0);
        crash_sys_crash(seed);
        assert_contents(path, seed == CRASH_DROP_ALL ? "synced" : "SYNCED and");
        crash_sys_stop();
    }
}

/* A crash plays holes and allocations back: sparse parts come back as zeros, cut parts as they were. */
static void crash_of_holes(void **state)
{
    _cleanup_tmpdir_ char *dir = tmpdir_new();
    _cleanup_free_ char *path = tmpdir_path(dir, "f");
    char page[4096], got[4096];
    crash_sys_start(dir);
    int fd = make_file(path, "");
    memset(page, 'x', sizeof(page));
    assert_int_equal(sys->ftruncate(fd, (uint64_t)1 << 40), 0);
    assert_int_equal(sys_pwrite_all(fd, page, sizeof(page), (uint64_t)1 << 30), 0);
    assert_int_equal(sys->fdatasync(fd), 0);
    sync_dir(dir);
    assert_int_equal(sys->fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (uint64_t)1 << 30, 4096),
                     0);
    assert_int_equal(sys_pwrite_all(fd, page, sizeof(page), (uint64_t)1 << 31), 0);
    assert_int_equal(sys->ftruncate(fd, 5), 0);
    assert_int_equal(sys->close(fd), 0);
    crash_sys_crash(CRASH_DROP_ALL);
    fd = sys->open(path, O_RDONLY | O_CLOEXEC, 0);
    struct stat st;
    assert_int_equal(sys->fstat(fd, &st), 0);
    assert_int_equal(st.st_size, (uint64_t)1 << 40);
    assert_int_equal(sys_pread_all(fd, got, sizeof(got), (uint64_t)1 << 30), 0);
    assert_memory_equal(got, page, sizeof(got));
    memset(page, 0, sizeof(page));
    assert_int_equal(sys_pread_all(fd, got, sizeof(got), (uint64_t)1 << 31), 0);
    assert_memory_equal(got, page, sizeof(got));
    assert_int_equal(sys->close(fd), 0);
    crash_sys_stop();
}

/* Over many seeds, unsynced pages are kept, lost and torn, in every combination of two pages; a synced page
 * never. */
static void crash_tears_pages(void **state)
{
    bool both = false, neither = false, first = false, second = false, torn = false;
    for (uint64_t seed = 2; seed < 2 + 4 * SEEDS; seed++) {
        _cleanup_tmpdir_ char *dir = tmpdir_new();
        _cleanup_free_ char *path = tmpdir_path(dir, "f");
        char page[3 * 4096], zero[4096] = {0}, got[3 * 4096] = {0};
        memset(page, 'x', sizeof(page));
        crash_sys_start(dir);
        int fd = make_file(path, "");
        assert_int_equal(sys_pwrite_all(fd, page, 4096, 0), 0);
        assert_int_equal(sys->fsync(fd), 0);
        sync_dir(dir);
        assert_int_equal(sys_pwrite_all(fd, page + 4096, 8192, 4096), 0);
        assert_int_equal(sys->close(fd), 0);
        crash_sys_crash(seed);
        fd = sys->open(path, O_RDONLY | O_CLOEXEC, 0);
        assert_true(fd >= 0);
        assert_true(sys->pread(fd, got, sizeof(got), 0) >= 4096);
        assert_int_equal(sys->close(fd), 0);
        crash_sys_stop();
        assert_memory_equal(got, page, 4096);
        bool has[2], lacks[2];
        for (int i = 0; i < 2; i++) {
            has[i] = memcmp(got + 4096 * (i + 1), page, 4096) == 0;
            lacks[i] = memcmp(got + 4096 * (i + 1), zero, 4096) == 0;
        }
        both |= has[0] && has[1];
        neither |= lacks[0] && lacks[1];
        first |= has[0] && lacks[1];
        second |= lacks[0] && has[1];
        torn |= (!has[0] && !lacks[0]) || (!has[1] && !lacks[1]);
    }
    assert_true(both && neither && first && second && torn);
}

/* fsync of a file does not save its name, fsync of its directory does, and syncfs saves all. */
static void crash_of_names(void **state)
{
    _cleanup_tmpdir_ char *dir = tmpdir_new();
    _cleanup_free_ char *a = tmpdir_path(dir, "a"), *b = tmpdir_path(dir, "b"),
                        *sub = tmpdir_path(dir, "sub");
    _cleanup_free_ char *c = tmpdir_path(sub, "c");
    crash_sys_start(dir);
    int fd = make_file(a, "one");
    assert_int_equal(sys->fsync(fd), 0);
    assert_int_equal(sys->close(fd), 0);
    crash_sys_crash(CRASH_DROP_ALL);
    assert_contents(a, "");

    fd = make_file(a, "one");
    assert_int_equal(sys->fsync(fd), 0);
    assert_int_equal(sys->close(fd), 0);
    sync_dir(dir);
    assert_int_equal(sys->rename(a, b), 0);
    assert_int_equal(sys->mkdir(sub, 0700), 0);
    fd = make_file(c, "two");
    assert_int_equal(sys->close(fd), 0);
    sync_dir(sub); /* cannot save what lies in a directory that is not there */
    crash_sys_crash(CRASH_DROP_ALL);
    assert_contents(a, "one");
    assert_contents(b, "");

    assert_int_equal(sys->mkdir(sub, 0700) == 0 || access(sub, F_OK) == 0, 1);
    fd = make_file(c, "two");
    assert_int_equal(sys->rename(a, b), 0);
    assert_int_equal(sys->syncfs(fd), 0);
    assert_int_equal(sys->unlink(c), 0);
    assert_int_equal(sys->unlink(b), 0);
    assert_int_equal(sys->close(fd), 0);
    crash_sys_crash(CRASH_DROP_ALL);
    assert_contents(a, "");
    assert_contents(b, "one");
    assert_contents(c, "two");
    crash_sys_stop();
}

/* A name put over another without a sync gives the old file or the new one, never neither. */
static void crash_of_replacement(void **state)
{
    bool saw_old = false, saw_new = false, saw_torn = false;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        _cleanup_tmpdir_ char *dir = tmpdir_new();
        _cleanup_free_ char *path = tmpdir_path(dir, "f"), *tmp = tmpdir_path(dir, "t");
        crash_sys_start(dir);
        assert_int_equal(sys_write_file_atomic(path, "old", 3, 0600), 0);
        int fd = make_file(tmp, "new");
        assert_int_equal(sys->close(fd), 0);
        assert_int_equal(sys->rename(tmp, path), 0);
        crash_sys_crash(seed);
        _cleanup_free_ char *now = contents(path);
        saw_old |= strcmp(now, "old") == 0;
        saw_new |= strcmp(now, "new") == 0;
        saw_torn |= strcmp(now, "") == 0; /* renamed before its bytes were there: why fsync comes first */
        assert_int_equal(access(path, F_OK), 0);
        crash_sys_stop();
    }
    assert_true(saw_old && saw_new && saw_torn);
}

/*
 * The crash sweep over sys_write_file_atomic: whatever call the power goes at, the old or the new file is
 * whole, and the new one when the call was acknowledged. Fails when either fsync in sys.c is removed.
 */
static void crash_sweep_of_atomic_write(void **state)
{
    bool done = false;
    for (uint64_t n = 1; !done; n++) {
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            _cleanup_tmpdir_ char *dir = tmpdir_new();
            _cleanup_free_ char *path = tmpdir_path(dir, "f");
            crash_sys_start(dir);
            assert_int_equal(sys_write_file_atomic(path, "old", 3, 0600), 0);
            crash_sys_kill_at(n);
            int r = sys_write_file_atomic(path, "new", 3, 0600);
            assert_int_equal(r, crash_sys_dead() ? -EIO : 0);
            done = !crash_sys_dead();
            crash_sys_crash(seed);
            _cleanup_free_ char *now = contents(path);
            assert_true(strcmp(now, "new") == 0 || (r < 0 && strcmp(now, "old") == 0));
            crash_sys_stop();
        }
    }
}

/* syncfs of one disk saves nothing on the other. */
static void crash_of_two_disks(void **state)
{
    _cleanup_tmpdir_ char *dir = tmpdir_new();
    _cleanup_free_ char *d1 = tmpdir_path(dir, "d1"), *d2 = tmpdir_path(dir, "d2");
    _cleanup_free_ char *f1 = tmpdir_path(d1, "f"), *f2 = tmpdir_path(d2, "f");
    assert_int_equal(mkdir(d1, 0700) + mkdir(d2, 0700), 0);
    crash_sys_start(dir);
    crash_sys_mount(d1);
    crash_sys_mount(d2);
    int fd1 = make_file(f1, "one"), fd2 = make_file(f2, "two");
    assert_int_equal(sys->syncfs(fd1), 0);
    assert_int_equal(sys->close(fd1) + sys->close(fd2), 0);
    crash_sys_crash(CRASH_DROP_ALL);
    assert_contents(f1, "one");
    assert_contents(f2, "");
    crash_sys_stop();
}

/* Without power every call fails but close. */
static void crash_without_power(void **state)
{
    _cleanup_tmpdir_ char *dir = tmpdir_new();
    _cleanup_free_ char *path = tmpdir_path(dir, "f");
    char c;
    struct stat st;
    crash_sys_start(dir);
    int fd = make_file(path, "x");
    assert_int_equal(crash_sys_changes(), 2);
    crash_sys_kill();
    assert_int_equal(sys->pread(fd, &c, 1, 0), -EIO);
    assert_int_equal(sys->pwrite(fd, &c, 1, 0), -EIO);
    assert_int_equal(sys->fsync(fd), -EIO);
    assert_int_equal(sys->stat(path, &st), -EIO);
    assert_int_equal(sys->close(fd), 0);
    crash_sys_crash(CRASH_KEEP_ALL);
    assert_contents(path, "x");
    crash_sys_stop();
}

/* Sleeping moves both clocks at once. */
static void clock_moves(void **state)
{
    clock_sys_start(1000, 5000);
    sys->sleep_ns(3600000000000u);
    assert_int_equal(sys->mono_ns(), 1000 + 3600000000000u);
    assert_int_equal(sys->real_ns(), 5000 + 3600000000000u);
    clock_sys_set_real(7);
    assert_int_equal(sys->real_ns(), 7);
    assert_int_equal(clock_sys_slept_ns(), 3600000000000u);
    clock_sys_stop();
    assert_ptr_equal(sys, &sys_real);
}

/* What a program does one of whose tests fails before it gives its directory back; a program that it has
 * forked ends before. */
static int leave_a_directory(void)
{
    _cleanup_free_ char *dir = tmpdir_new(), *path = tmpdir_path(dir, "f");
    (void)close(make_file(path, "text"));
    pid_t pid = fork();
    if (pid == 0)
        exit(0);
    (void)waitpid(pid, NULL, 0);
    (void)printf("%s %d\n", dir, access(path, F_OK));
    return 1;
}

/* Failed tests leave no directories behind. (Seen to without `note` in tmpdir.c.) */
static void directories_of_failed_tests_go(void **state)
{
    char dir[4096];
    int missing = -1;
    _cleanup_free_ char *own = realpath("/proc/self/exe", NULL), *command = NULL;
    assert_true(own && asprintf(&command, "'%s' leave", own) > 0);
    FILE *out = popen(command, "r");
    assert_non_null(out);
    assert_int_equal(fscanf(out, "%4095s %d", dir, &missing), 2);
    assert_int_equal(WEXITSTATUS(pclose(out)), 1);
    assert_int_equal(missing, 0);
    assert_int_equal(access(dir, F_OK), -1);
}

int main(int n, char **arguments)
{
    if (n > 1 && strcmp(arguments[1], "leave") == 0)
        return leave_a_directory();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fault_sweep_of_atomic_write),
        cmocka_unit_test(fault_modes),
        cmocka_unit_test(crash_of_bytes),
        cmocka_unit_test(crash_of_holes),
        cmocka_unit_test(crash_tears_pages),
        cmocka_unit_test(crash_of_names),
        cmocka_unit_test(crash_of_replacement),
        cmocka_unit_test(crash_sweep_of_atomic_write),
        cmocka_unit_test(crash_of_two_disks),
        cmocka_unit_test(crash_without_power),
        cmocka_unit_test(clock_moves),
        cmocka_unit_test(directories_of_failed_tests_go),
    };
    return cmocka_run_group_tests_name("support", tests, NULL, NULL);
}
