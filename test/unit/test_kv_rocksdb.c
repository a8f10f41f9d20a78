/* layer: kv */
/*
 * What only the engine on disk can show: reopening, one process per directory, and power loss.
 *
 * RocksDB writes its files itself, so power loss is simulated from what reached the disk: this program stands
 * in for fdatasync, fsync and sync_file_range and notes how long each log file was when it was synced. A
 * crash copies the directory with every log file cut somewhere between its synced length and its length, as a
 * real disk may leave it.
 */
#include "base/sys.h"
#include "kv/kv.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cmocka.h>

/* ---- standing in for the sync calls ---- */

static struct {
    ino_t inode;
    off_t synced_bytes;
} synced[256];
static size_t n_synced;
static pthread_mutex_t synced_lock = PTHREAD_MUTEX_INITIALIZER;

static void note_sync(int fd)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return;
    pthread_mutex_lock(&synced_lock);
    size_t i = 0;
    while (i < n_synced && synced[i].inode != st.st_ino)
        i++;
    if (i < ARRAY_SIZE(synced)) {
        synced[i].inode = st.st_ino;
        synced[i].synced_bytes = st.st_size;
        n_synced = MAX(n_synced, i + 1);
    }
    pthread_mutex_unlock(&synced_lock);
}

static off_t synced_bytes(ino_t inode)
{
    off_t n = 0;
    pthread_mutex_lock(&synced_lock);
    for (size_t i = 0; i < n_synced; i++)
        if (synced[i].inode == inode)
            n = synced[i].synced_bytes;
    pthread_mutex_unlock(&synced_lock);
    return n;
}

#define STAND_IN __attribute__((visibility("default")))

STAND_IN int fdatasync(int fd)
{
    note_sync(fd);
    return (int)syscall(SYS_fdatasync, fd);
}

STAND_IN int fsync(int fd)
{
    note_sync(fd);
    return (int)syscall(SYS_fsync, fd);
}

/* ---- helpers ---- */

static char dir[64];

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    return remove(path);
}

static int setup(void **state)
{
    strcpy(dir, "/tmp/forebay-test-kv-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    return nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static int open_at(const char *sub, bool read_only, struct kv **ret, struct err *e)
{
    char path[128];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, sub);
    struct kv_options o = {.cache_bytes = 4 * MIB, .write_buffer_bytes = 4 * MIB, .read_only = read_only};
    return kv_open_rocksdb(path, &o, ret, e);
}

static struct kv *open_or_fail(const char *sub)
{
    struct kv *kv = NULL;
    struct err e = {0};
    if (open_at(sub, /* read_only= */ false, &kv, &e) < 0)
        fail_msg("%s", e.text);
    return kv;
}

static void put_number(struct kv *kv, uint32_t i, enum kv_commit kind)
{
    char key[16], value[200];
    memset(value, 'a' + (int)(i % 26), sizeof(value));
    struct kv_txn *_cleanup_(kv_txn_freep) t = kv_txn_new(kv);
    kv_txn_put(t, slice_of(key, (size_t)sprintf(key, "a%06u", i)), slice_of(value, sizeof(value)));
    kv_txn_put(t, slice_of(key, (size_t)sprintf(key, "b%06u", i)), slice_of(value, sizeof(value)));
    assert_int_equal(kv_txn_commit(t, kind, NULL), 0);
}

static bool has_number(struct kv *kv, char table, uint32_t i)
{
    char key[16];
    int r = kv_get(kv, slice_of(key, (size_t)sprintf(key, "%c%06u", table, i)), NULL, NULL, NULL);
    assert_true(r == 0 || r == -ENOENT);
    return r == 0;
}

/* Copies the database as a power loss would leave it; `share` of 0..100 of the unsynced log bytes survive. */
static void copy_after_power_loss(const char *from, const char *to, unsigned share)
{
    char a[400], b[400];
    (void)snprintf(b, sizeof(b), "%s/%s", dir, to);
    assert_int_equal(mkdir(b, 0700), 0);
    (void)snprintf(a, sizeof(a), "%s/%s", dir, from);
    DIR *d = opendir(a);
    assert_non_null(d);
    for (struct dirent *de; (de = readdir(d));) {
        if (de->d_name[0] == '.')
            continue;
        (void)snprintf(a, sizeof(a), "%s/%s/%s", dir, from, de->d_name);
        (void)snprintf(b, sizeof(b), "%s/%s/%s", dir, to, de->d_name);
        char *p = NULL;
        size_t n = 0;
        struct stat st;
        assert_int_equal(stat(a, &st), 0);
        assert_int_equal(sys_read_file(a, 64 * MIB, &p, &n), 0);
        size_t len = strlen(de->d_name);
        if (len > 4 && strcmp(de->d_name + len - 4, ".log") == 0) {
            size_t safe = MIN((size_t)synced_bytes(st.st_ino), n);
            n = safe + (n - safe) * share / 100;
        }
        int fd = open(b, O_WRONLY | O_CREAT, 0600);
        assert_true(fd >= 0);
        assert_int_equal(write(fd, p, n), n);
        assert_int_equal(close(fd), 0);
        free(p);
    }
    (void)closedir(d);
}

/* ---- tests ---- */

/* Visible commits are there after closing and opening again, and versions go on from where they were. */
static void test_reopen_keeps_everything(void **state)
{
    struct kv *kv = open_or_fail("db");
    for (uint32_t i = 0; i < 1000; i++)
        put_number(kv, i, KV_VISIBLE);
    uint64_t before = 0, after = 0;
    assert_int_equal(kv_get(kv, SLICE_LIT("a000999"), NULL, &before, NULL), 0);
    kv_close(kv);
    kv = open_or_fail("db");
    for (uint32_t i = 0; i < 1000; i++)
        assert_true(has_number(kv, 'a', i) && has_number(kv, 'b', i));
    put_number(kv, 999, KV_VISIBLE);
    assert_int_equal(kv_get(kv, SLICE_LIT("a000999"), NULL, &after, NULL), 0);
    assert_true(after > before);
    kv_close(kv);
}

/* A directory that is open cannot be opened again, and the error says why; once closed it can. */
static void test_second_open_is_busy(void **state)
{
    struct kv *kv = open_or_fail("db"), *second = NULL;
    struct err e = {0};
    assert_int_equal(open_at("db", false, &second, &e), -EBUSY);
    assert_non_null(strstr(e.text, "in use"));
    assert_null(second);
    kv_close(kv);
    kv_close(open_or_fail("db"));
}

/* Read-only sees what is there, also what only the log holds, refuses to write, and needs a database. */
static void test_read_only(void **state)
{
    struct kv *kv = NULL;
    assert_true(open_at("none", true, &kv, NULL) < 0);
    kv = open_or_fail("db");
    put_number(kv, 1, KV_VISIBLE);
    kv_close(kv);
    assert_int_equal(open_at("db", true, &kv, NULL), 0);
    assert_true(has_number(kv, 'a', 1));
    struct kv_txn *_cleanup_(kv_txn_freep) t = kv_txn_new(kv);
    kv_txn_put(t, SLICE_LIT("x"), SLICE_LIT("y"));
    assert_int_equal(kv_txn_commit(t, KV_VISIBLE, NULL), -EROFS);
    kv_txn_free(TAKE_PTR(t));
    kv_close(kv);
}

/* A killed process loses no visible commit. */
static void test_kill_loses_nothing_visible(void **state)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct kv *kv = open_or_fail("db");
        for (uint32_t i = 0; i < 500; i++)
            put_number(kv, i, KV_VISIBLE);
        (void)raise(SIGKILL);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    struct kv *kv = open_or_fail("db");
    for (uint32_t i = 0; i < 500; i++)
        assert_true(has_number(kv, 'a', i));
    kv_close(kv);
}

/* After power loss every durable commit is there, and of the visible ones a prefix, each of them whole. */
static void test_power_loss_keeps_a_prefix(void **state)
{
    struct kv *kv = open_or_fail("db");
    for (uint32_t i = 0; i <= 300; i++)
        put_number(kv, i, i % 100 == 0 ? KV_DURABLE : KV_VISIBLE);
    for (uint32_t i = 301; i < 500; i++)
        put_number(kv, i, KV_VISIBLE);
    bool some_lost = false, some_kept = false;
    for (unsigned share = 0; share <= 100; share += 9) {
        char name[16];
        (void)snprintf(name, sizeof(name), "lost%u", share);
        copy_after_power_loss("db", name, share);
        struct kv *left = open_or_fail(name);
        uint32_t n = 0;
        while (n < 500 && has_number(left, 'a', n))
            n++;
        assert_true(n > 300);
        for (uint32_t i = 0; i < 500; i++) {
            assert_int_equal(has_number(left, 'a', i), i < n);
            assert_int_equal(has_number(left, 'b', i), i < n);
        }
        some_lost |= n < 500;
        some_kept |= n > 301;
        kv_close(left);
    }
    assert_true(some_lost && some_kept);
    kv_close(kv);
}

/* A bulk load is there after its close, without a log. */
static void test_bulk_load(void **state)
{
    char path[128];
    (void)snprintf(path, sizeof(path), "%s/bulk", dir);
    struct kv_options o = {.cache_bytes = 4 * MIB, .write_buffer_bytes = 8 * MIB, .bulk = true};
    struct kv *kv = NULL;
    assert_int_equal(kv_open_rocksdb(path, &o, &kv, NULL), 0);
    for (uint32_t i = 0; i < 20000; i++)
        put_number(kv, i, KV_DURABLE);
    kv_close(kv);
    kv = open_or_fail("bulk");
    for (uint32_t i = 0; i < 20000; i += 37)
        assert_true(has_number(kv, 'b', i));
    kv_close(kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_reopen_keeps_everything, setup, teardown),
        cmocka_unit_test_setup_teardown(test_second_open_is_busy, setup, teardown),
        cmocka_unit_test_setup_teardown(test_read_only, setup, teardown),
        cmocka_unit_test_setup_teardown(test_kill_loses_nothing_visible, setup, teardown),
        cmocka_unit_test_setup_teardown(test_power_loss_keeps_a_prefix, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bulk_load, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
