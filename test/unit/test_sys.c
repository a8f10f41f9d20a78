/* layer: base */
#include "base/sys.h"

#include "base/slice.h"
#include "support/fault_sys.h"
#include "support/tmpdir.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>

#include <cmocka.h>

/* Whole reads and writes go on after short ones; a file that is too short says so. */
static void whole_reads_and_writes(void **state)
{
    _cleanup_tmpdir_ char *dir = tmpdir_new();
    _cleanup_free_ char *path = tmpdir_path(dir, "f");
    char got[1000], put[1000];
    memset(put, 'p', sizeof(put));
    fault_sys_start();
    fault_sys_short_io(7);
    int fd = sys->open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(sys_pwrite_all(fd, put, sizeof(put), 5), 0);
    assert_int_equal(sys_pread_all(fd, got, sizeof(got), 5), 0);
    assert_memory_equal(got, put, sizeof(got));
    assert_int_equal(sys_pread_all(fd, got, sizeof(got), 6), -ENODATA);
    assert_int_equal(sys_pread_all(fd, got, 0, 1 << 20), 0);
    assert_int_equal(sys->close(fd), 0);
    fault_sys_stop();
}

/* Errors are negated errno values of the call. */
static void errors_are_negated(void **state)
{
    struct stat st;
    char c;
    uint64_t a, b;
    assert_int_equal(sys->open("/nonexistent/x", O_RDONLY, 0), -ENOENT);
    assert_int_equal(sys->close(-1), -EBADF);
    assert_int_equal(sys->pread(-1, &c, 1, 0), -EBADF);
    assert_int_equal(sys->pwrite(-1, &c, 1, 0), -EBADF);
    assert_int_equal(sys->fsync(-1), -EBADF);
    assert_int_equal(sys->stat("/nonexistent", &st), -ENOENT);
    assert_int_equal(sys->rename("/nonexistent/a", "/nonexistent/b"), -ENOENT);
    assert_int_equal(sys->unlink("/nonexistent"), -ENOENT);
    assert_int_equal(sys->mkdir("/nonexistent/a", 0700), -ENOENT);
    assert_int_equal(sys->statfs_free("/nonexistent", &a, &b), -ENOENT);
    assert_int_equal(sys->statfs_free("/", &a, &b), 0);
    assert_true(a <= b && b > 0);
}

/* The end of a directory is told from an error, whatever errno was before. */
static void directories_are_read_to_the_end(void **state)
{
    _cleanup_tmpdir_ char *dir = tmpdir_new();
    struct dirent *x = NULL;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (int i = 0; i < 2; i++) { /* "." and ".." */
        errno = EIO;
        assert_int_equal(sys->readdir(d, &x), 0);
        assert_non_null(x);
    }
    errno = EIO;
    assert_int_equal(sys->readdir(d, &x), 0);
    assert_null(x);
    assert_int_equal(closedir(d), 0);
    d = opendir(dir);
    assert_non_null(d);
    assert_int_equal(close(dirfd(d)), 0);
    assert_int_equal(sys->readdir(d, &x), -EBADF);
    (void)closedir(d);
}

/* A whole file is read up to the limit and not beyond, also where stat(2) says that it is empty. */
static void read_file(void **state)
{
    _cleanup_tmpdir_ char *dir = tmpdir_new();
    _cleanup_free_ char *path = tmpdir_path(dir, "f"), *p = NULL, *proc = NULL, *empty = NULL;
    size_t n = 99;
    _cleanup_free_ char *big = malloc(10000);
    memset(big, 'b', 10000);
    assert_int_equal(sys_read_file(path, 100, &p, &n), -ENOENT);
    assert_int_equal(sys_write_file_atomic(path, big, 10000, 0600), 0);
    assert_int_equal(sys_read_file(path, 9999, &p, &n), -EFBIG);
    assert_null(p);
    assert_int_equal(n, 99);
    assert_int_equal(sys_read_file(path, 10000, &p, &n), 0);
    assert_int_equal(n, 10000);
    assert_memory_equal(p, big, n);
    assert_int_equal(p[n], 0);
    assert_int_equal(sys_read_file("/proc/self/status", 1 << 16, &proc, &n), 0);
    assert_true(n > 100 && strstr(proc, "Pid:"));
    assert_int_equal(sys_write_file_atomic(path, NULL, 0, 0600), 0);
    assert_int_equal(sys_read_file(path, 0, &empty, &n), 0);
    assert_string_equal(empty, "");
}

/* A leftover temporary file, even one that others may read, does not lend its mode; none is left behind. */
static void atomic_write_replaces(void **state)
{
    _cleanup_tmpdir_ char *dir = tmpdir_new();
    _cleanup_free_ char *path = tmpdir_path(dir, "f"), *tmp = tmpdir_path(dir, "f.tmp"), *p = NULL;
    size_t n;
    struct stat st;
    int fd = open(tmp, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    (void)close(fd);
    assert_int_equal(sys_write_file_atomic(path, "secret", 6, 0600), 0);
    assert_int_equal(sys->stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(sys->stat(tmp, &st), -ENOENT);
    assert_int_equal(sys_write_file_atomic(path, "other", 5, 0600), 0);
    assert_int_equal(sys_read_file(path, 100, &p, &n), 0);
    assert_string_equal(p, "other");
}

/* The sweep: whichever call fails, the failure is reported, no temporary file stays, and the file is whole.
 */
static void atomic_write_sweep(void **state)
{
    _cleanup_tmpdir_ char *dir = tmpdir_new();
    _cleanup_free_ char *path = tmpdir_path(dir, "f"), *tmp = tmpdir_path(dir, "f.tmp");
    assert_int_equal(sys_write_file_atomic(path, "old", 3, 0600), 0);
    fault_sys_start();
    for (uint64_t n = 1;; n++) {
        fault_sys_arm(FAULT_ALL, n, ENOSPC, FAULT_PARTIAL);
        int r = sys_write_file_atomic(path, "new", 3, 0600);
        bool hit = fault_sys_hit();
        fault_sys_disarm();
        _cleanup_free_ char *p = NULL;
        size_t len;
        assert_int_equal(r, hit ? -ENOSPC : 0);
        assert_int_equal(sys_read_file(path, 100, &p, &len), 0);
        assert_true(strcmp(p, "old") == 0 || strcmp(p, "new") == 0);
        assert_int_equal(access(tmp, F_OK), -1);
        if (!hit)
            break;
    }
    fault_sys_stop();
}

/* Missing parents are made, existing ones accepted, files in the way named as such. */
static void mkdir_p(void **state)
{
    _cleanup_tmpdir_ char *dir = tmpdir_new();
    _cleanup_free_ char *deep = tmpdir_path(dir, "a//b/c/"), *file = tmpdir_path(dir, "f"),
                        *below = tmpdir_path(dir, "f/x");
    struct stat st;
    assert_int_equal(sys_mkdir_p(deep, 0700), 0);
    assert_int_equal(sys_mkdir_p(deep, 0700), 0);
    assert_int_equal(sys->stat(deep, &st), 0);
    assert_true(S_ISDIR(st.st_mode));
    assert_int_equal(sys_write_file_atomic(file, "", 0, 0600), 0);
    assert_int_equal(sys_mkdir_p(file, 0700), -ENOTDIR);
    assert_int_equal(sys_mkdir_p(below, 0700), -ENOTDIR);
    assert_int_equal(sys_mkdir_p("", 0700), -ENOENT);
    assert_int_equal(sys_mkdir_p("/", 0700), 0);
}

static _Atomic int signals;

static void on_signal(int number)
{
    atomic_fetch_add(&signals, 1);
}

static void *send_signals(void *to)
{
    for (int i = 0; i < 5; i++) {
        usleep(2000);
        (void)pthread_kill(*(pthread_t *)to, SIGUSR1);
    }
    return NULL;
}

/* Signals that arrive during a sleep do not shorten it, and no call reports EINTR. */
static void signals_do_not_interrupt(void **state)
{
    struct sigaction act = {.sa_handler = on_signal}, old;
    pthread_t self = pthread_self(), sender;
    assert_int_equal(sigaction(SIGUSR1, &act, &old), 0);
    assert_int_equal(pthread_create(&sender, NULL, send_signals, &self), 0);
    uint64_t from = sys->mono_ns();
    sys->sleep_ns(50000000);
    assert_true(sys->mono_ns() - from >= 50000000);
    assert_int_equal(pthread_join(sender, NULL), 0);
    assert_true(atomic_load(&signals) > 0);
    assert_int_equal(sigaction(SIGUSR1, &old, NULL), 0);
}

/* Clocks run, and random bytes differ. */
static void clocks_and_randomness(void **state)
{
    unsigned char a[32] = {0}, b[32] = {0};
    sys->random(a, sizeof(a));
    sys->random(b, sizeof(b));
    assert_memory_not_equal(a, b, sizeof(a));
    sys->random(a, 0);
    uint64_t t = sys->mono_ns();
    assert_true(sys->mono_ns() >= t);
    assert_true(sys->real_ns() > (uint64_t)1700000000 * 1000000000);
    assert_true(sys_mono_ms() >= t / 1000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_reads_and_writes),
        cmocka_unit_test(errors_are_negated),
        cmocka_unit_test(directories_are_read_to_the_end),
        cmocka_unit_test(read_file),
        cmocka_unit_test(atomic_write_replaces),
        cmocka_unit_test(atomic_write_sweep),
        cmocka_unit_test(mkdir_p),
        cmocka_unit_test(signals_do_not_interrupt),
        cmocka_unit_test(clocks_and_randomness),
    };
    return cmocka_run_group_tests_name("sys", tests, NULL, NULL);
}
