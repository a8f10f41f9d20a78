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
#include "support/fault_sys.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
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
    const ino_t inode = st.st_ino;
    const off_t size_bytes = st.st_size;
    pthread_mutex_lock(&synced_lock);
    size_t i = 0;
    while (i < n_synced && synced[i].inode != inode)
        i++;
    if (i < ARRAY_SIZE(synced)) {
        synced[i].inode = inode;
        synced[i].synced_bytes = size_bytes;
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

static _Atomic int fail_syncs; /* so many of the next ones */

static bool fails_now(void)
{
    int n = fail_syncs;
    while (n > 0 && !atomic_compare_exchange_weak(&fail_syncs, &n, n - 1))
        ;
    errno = EIO;
    return n > 0;
}

STAND_IN int fdatasync(int fd)
{
    if (fails_now())
        return -1;
    note_sync(fd);
    return (int)syscall(SYS_fdatasync, fd);
}

STAND_IN int fsync(int fd)
{
    if (fails_now())
        return -1;
    note_sync(fd);
    return (int)syscall(SYS_fsync, fd);
}

/* The first for logs; the second also for what RocksDB tells of them; the last for all that is written or
 * taken ahead. */
static _Atomic bool disk_is_full, tables_find_no_room, nothing_finds_room;

static bool is_of_kind(int fd, const char *kind)
{
    char link[32], path[512];
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof(path));
    return n > 4 && memcmp(path + n - 4, kind, 4) == 0;
}

STAND_IN ssize_t write(int fd, const void *p, size_t n)
{
    if ((disk_is_full && is_of_kind(fd, ".log")) ||
        (tables_find_no_room && (is_of_kind(fd, ".sst") || is_of_kind(fd, "/LOG"))) || nothing_finds_room) {
        errno = ENOSPC;
        return -1;
    }
    return syscall(SYS_write, fd, p, n);
}

STAND_IN int fallocate(int fd, int mode, off_t offset, off_t n)
{
    if (nothing_finds_room) {
        errno = ENOSPC;
        return -1;
    }
    return (int)syscall(SYS_fallocate, fd, mode, offset, n);
}

/* ---- helpers ---- */

static char dir[64];

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    return remove(path);
}

static int setup(void **state)
{
    n_synced = 0; /* of databases that are gone */
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

/* What RocksDB writes beside the data is bounded by megabytes, as its file of options says: what it tells,
 * and the list of its files, which the next opening reads. (Seen to fail: the latter had 1 GiB.) */
static void test_what_is_beside_the_data_is_bounded(void **state)
{
    static const char *const wanted[] = {"  max_manifest_file_size=16777216\n",
                                         "  max_log_file_size=1048576\n", "  keep_log_file_num=2\n",
                                         "  max_total_wal_size=67108864\n"};
    char path[512];
    size_t n = 0, n_files = 0;
    kv_close(open_or_fail("db"));
    (void)snprintf(path, sizeof(path), "%s/db", dir);
    DIR *d = opendir(path);
    assert_non_null(d);
    for (struct dirent *de; (de = readdir(d));) {
        _cleanup_free_ char *text = NULL;
        if (strncmp(de->d_name, "OPTIONS-", 8) != 0)
            continue;
        (void)snprintf(path, sizeof(path), "%s/db/%s", dir, de->d_name);
        assert_int_equal(sys_read_file(path, MIB, &text, &n), 0);
        for (size_t i = 0; i < ARRAY_SIZE(wanted); i++)
            if (!strstr(text, wanted[i]))
                fail_msg("%s lacks%s", de->d_name, wanted[i]);
        n_files++;
    }
    (void)closedir(d);
    assert_int_equal(n_files, 1);
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

/* ---- damage ---- */

/* The only log of a database; its size. */
static size_t log_of(const char *sub, char path[400])
{
    char top[200];
    struct stat st = {0};
    (void)snprintf(top, sizeof(top), "%s/%s", dir, sub);
    DIR *d = opendir(top);
    assert_non_null(d);
    size_t found = 0;
    for (struct dirent *de; (de = readdir(d));) {
        size_t n = strlen(de->d_name);
        if (n < 5 || strcmp(de->d_name + n - 4, ".log") != 0 || strncmp(de->d_name, "forebay", 7) == 0)
            continue;
        (void)snprintf(path, 400, "%s/%.100s", top, de->d_name);
        assert_int_equal(stat(path, &st), 0);
        found++;
    }
    (void)closedir(d);
    assert_int_equal(found, 1);
    return (size_t)st.st_size;
}

static void flip_bit_at(const char *path, size_t offset)
{
    char c;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &c, 1, (off_t)offset), 1);
    c = (char)(c ^ 4);
    assert_int_equal(pwrite(fd, &c, 1, (off_t)offset), 1);
    assert_int_equal(close(fd), 0);
}

static bool exists_in(const char *sub, const char *start)
{
    char top[200];
    bool found = false;
    (void)snprintf(top, sizeof(top), "%s/%s", dir, sub);
    DIR *d = opendir(top);
    assert_non_null(d);
    for (struct dirent *de; (de = readdir(d));)
        found |= strncmp(de->d_name, start, strlen(start)) == 0;
    (void)closedir(d);
    return found;
}

/* A database with so many durable commits whose log is as a killed process leaves it. */
static void make_killed(const char *sub, uint32_t n)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct kv *kv = open_or_fail(sub);
        for (uint32_t i = 0; i < n; i++)
            put_number(kv, i, i + 1 == n ? KV_DURABLE : KV_VISIBLE);
        (void)raise(SIGKILL);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
}

/* A flipped bit takes away what was committed after it, durably too: that is told, also by openings to come,
 * until somebody has seen to it; the log is kept. */
static void test_damaged_log_is_told(void **state)
{
    static const unsigned shares[] = {0, 1, 37, 80, 99};
    for (size_t i = 0; i < ARRAY_SIZE(shares); i++) {
        char sub[16], path[400];
        (void)snprintf(sub, sizeof(sub), "cut%zu", i);
        make_killed(sub, 400);
        size_t size = log_of(sub, path);
        flip_bit_at(path, size * shares[i] / 100);
        struct kv *kv = NULL;
        assert_int_equal(open_at(sub, /* read_only= */ true, &kv, NULL), 0);
        assert_true(kv_is_cut(kv));
        kv_close(kv);
        assert_false(exists_in(sub, "forebay-cut"));
        for (int again = 0; again < 2; again++) {
            kv = open_or_fail(sub);
            assert_true(kv_is_cut(kv));
            assert_false(has_number(kv, 'a', 399));
            if (again)
                assert_int_equal(kv_cut_mended(kv, NULL), 0);
            put_number(kv, 1000, KV_VISIBLE);
            kv_close(kv);
        }
        kv = open_or_fail(sub);
        assert_false(kv_is_cut(kv));
        assert_true(has_number(kv, 'a', 1000));
        kv_close(kv);
        assert_true(exists_in(sub, "forebay-cut-"));
    }
}

/* A directory that cannot be listed to its end does not hide a log: the database is not opened as if there
 * was none. (Fails where errors of readdir were taken for the end: what was lost was not told.) */
static void test_damaged_log_that_cannot_be_listed(void **state)
{
    struct kv *kv = NULL;
    char path[400];
    make_killed("listed", 400);
    size_t size = log_of("listed", path);
    flip_bit_at(path, size / 2);
    fault_sys_start();
    uint64_t n = 0;
    int r;
    do {
        fault_sys_arm(FAULT_READDIR, ++n, EIO, FAULT_ONCE);
        r = open_at("listed", /* read_only= */ false, &kv, NULL);
        assert_int_equal(r, fault_sys_hit() ? -EIO : 0);
    } while (r < 0);
    fault_sys_disarm();
    fault_sys_stop();
    assert_true(n > 6); /* listed twice: to be read, and to be kept */
    assert_true(kv_is_cut(kv));
    assert_true(exists_in("listed", "forebay-cut-"));
    kv_close(kv);
}

/* The last record, whole in length and wrong, is no torn end when nothing was on its way to the disk any
 * more. */
static void test_damaged_end_is_told(void **state)
{
    char path[400];
    make_killed("killed", 10);
    flip_bit_at(path, log_of("killed", path) - 10);
    struct kv *kv = open_or_fail("killed");
    assert_true(kv_is_cut(kv));
    assert_true(has_number(kv, 'a', 8) && !has_number(kv, 'a', 9));
    kv_close(kv);
}

/* A piece of the log that never reached the disk and reads as zeros, with records behind it. */
static void test_hole_in_the_log_is_told(void **state)
{
    static const char zeros[8192];
    char path[400];
    make_killed("hole", 400);
    size_t size = log_of("hole", path);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && size > 65536);
    assert_int_equal(pwrite(fd, zeros, sizeof(zeros), 36864), sizeof(zeros));
    assert_int_equal(close(fd), 0);
    struct kv *kv = open_or_fail("hole");
    assert_true(kv_is_cut(kv));
    kv_close(kv);
}

/* A log that ends anywhere, as after power loss, is none that is damaged. */
static void test_torn_end_is_normal(void **state)
{
    make_killed("whole", 300);
    char path[400];
    size_t size = log_of("whole", path);
    for (size_t cut = 0; cut < 64; cut++) {
        char sub[16], torn[400];
        (void)snprintf(sub, sizeof(sub), "torn%zu", cut);
        copy_after_power_loss("whole", sub, 100);
        size_t n = cut < 32 ? size - cut * 13 : 32768 * (size / 32768) - cut + 48;
        assert_int_equal(log_of(sub, torn), size);
        assert_int_equal(truncate(torn, (off_t)n), 0);
        struct kv *kv = open_or_fail(sub);
        assert_false(kv_is_cut(kv));
        assert_true(has_number(kv, 'a', 100));
        assert_false(exists_in(sub, "forebay-cut"));
        kv_close(kv);
        kv = open_or_fail(sub);
        assert_false(kv_is_cut(kv));
        kv_close(kv);
    }
}

/* Whether the lock of a database is on the disk as it is. */
static bool lock_is_synced(const char *sub)
{
    char path[400];
    struct stat st;
    (void)snprintf(path, sizeof(path), "%s/%s/forebay-lock", dir, sub);
    assert_int_equal(stat(path, &st), 0);
    return st.st_size > 0 && synced_bytes(st.st_ino) == st.st_size;
}

/* After a power loss the lock does not say that the database was closed before. */
static void test_an_open_database_is_noted_durably(void **state)
{
    kv_close(open_or_fail("db"));
    struct kv *kv = open_or_fail("db");
    assert_true(lock_is_synced("db"));
    kv_close(kv);
}

/* The last record, whole in length and wrong, may be one that a power loss has torn; also when the first
 * opening after that fails. */
static void test_an_opening_that_fails(void **state)
{
    char path[400];
    struct kv *kv = NULL;
    make_killed("torn", 10);
    flip_bit_at(path, log_of("torn", path) - 10);
    (void)snprintf(path, sizeof(path), "%s/torn/forebay-lock", dir);
    assert_int_equal(sys_write_file_atomic(path, "boot another\n", 13, 0600), 0);
    fail_syncs = 1;
    assert_true(open_at("torn", /* read_only= */ false, &kv, NULL) < 0);
    assert_int_equal(fail_syncs, 0);
    kv = open_or_fail("torn");
    assert_false(kv_is_cut(kv));
    assert_true(has_number(kv, 'a', 8) && !has_number(kv, 'a', 9));
    kv_close(kv);
}

/* A sync that failed is not made good by the next one: the kernel tells of it once, and has forgotten the
 * bytes. */
static void test_failed_sync_stays_failed(void **state)
{
    struct kv *kv = open_or_fail("db");
    put_number(kv, 0, KV_DURABLE);
    struct kv_txn *_cleanup_(kv_txn_freep) t = kv_txn_new(kv);
    kv_txn_put(t, SLICE_LIT("x"), SLICE_LIT("y"));
    fail_syncs = 1;
    assert_true(kv_txn_commit(t, KV_DURABLE, NULL) < 0);
    assert_int_equal(fail_syncs, 0);
    assert_true(kv_sync(kv, NULL) < 0);
    kv_txn_put(t, SLICE_LIT("z"), SLICE_LIT("y"));
    assert_true(kv_txn_commit(t, KV_DURABLE, NULL) < 0);
    kv_close(kv);
    kv_close(open_or_fail("db"));
}

/* What a close could not sync is told in the log, since it answers nobody; a close that did says nothing.
 * (Fails where engine_close drops what the sync says.) */
static void test_a_close_that_cannot_sync_is_told(void **state)
{
    for (int fails = 0; fails < 2; fails++) {
        char said[1024] = "";
        FILE *f = tmpfile();
        int saved = dup(STDERR_FILENO);
        struct kv *kv = open_or_fail("db");
        put_number(kv, 0, KV_VISIBLE);
        assert_true(f && saved >= 0 && dup2(fileno(f), STDERR_FILENO) == STDERR_FILENO);
        fail_syncs = fails;
        kv_close(kv);
        assert_int_equal(dup2(saved, STDERR_FILENO), STDERR_FILENO);
        assert_int_equal(fail_syncs, 0);
        assert_true(pread(fileno(f), said, sizeof(said) - 1, 0) >= 0);
        assert_int_equal(strstr(said, "its last changes may not be on the disk") != NULL, fails);
        assert_int_equal(close(saved) + fclose(f), 0);
    }
}

static int put_one(struct kv *kv, const char *key, enum kv_commit kind)
{
    struct kv_txn *_cleanup_(kv_txn_freep) t = kv_txn_new(kv);
    kv_txn_put(t, slice_str(key), SLICE_LIT("v"));
    return kv_txn_commit(t, kind, NULL);
}

/* A log that takes no more because the disk is full, with changes before it that are not synced: who changes
 * or syncs something hears of it, and it goes on when RocksDB has done without that log. (Without check_log
 * in kv_rocksdb.c RocksDB aborts the process.) */
static void test_a_full_disk_is_told(void **state)
{
    struct kv *kv = open_or_fail("db");
    put_number(kv, 0, KV_VISIBLE);
    disk_is_full = true;
    assert_int_equal(put_one(kv, "x", KV_VISIBLE), -ENOSPC);
    int r = kv_sync(kv, NULL);
    assert_true(r == -ENOSPC || r == 0); /* where RocksDB has put it elsewhere since */
    disk_is_full = false;
    assert_int_equal(kv_get(kv, SLICE_LIT("x"), NULL, NULL, NULL), -ENOENT);
    assert_true(has_number(kv, 'a', 0));
    r = -ENOSPC;
    for (int i = 0; i < 600 && (r = put_one(kv, "y", KV_DURABLE)) < 0; i++)
        usleep(100000);
    assert_int_equal(r, 0);
    kv_close(kv);
    kv = open_or_fail("db");
    assert_true(has_number(kv, 'a', 0) && has_number(kv, 'b', 0));
    assert_int_equal(kv_get(kv, SLICE_LIT("x"), NULL, NULL, NULL), -ENOENT);
    assert_int_equal(kv_get(kv, SLICE_LIT("y"), NULL, NULL, NULL), 0);
    kv_close(kv);
}

/* Where a table found no room the log is as it was: what RocksDB refuses for that goes on when there is room.
 * (It does not where write_failed keeps every fault; with RocksDB's warnings it aborts the process.) */
static void test_a_table_without_room(void **state)
{
    struct kv *kv = open_or_fail("db");
    tables_find_no_room = true;
    char *value = calloc(1, 100000);
    int r = 0;
    for (int i = 0; i < 1000 && r == 0; i++) {
        struct kv_txn *_cleanup_(kv_txn_freep) t = kv_txn_new(kv);
        kv_txn_put(t, SLICE_LIT("large"), slice_of(value, 100000));
        r = kv_txn_commit(t, KV_VISIBLE, NULL);
    }
    assert_int_equal(r, -ENOSPC);
    tables_find_no_room = false;
    for (int i = 0; i < 600 && (r = put_one(kv, "y", KV_DURABLE)) < 0; i++)
        usleep(100000);
    assert_int_equal(r, 0);
    kv_close(kv);
    free(value);
}

/* The same of a log to which nothing was written before: RocksDB begins no other, and it is refused until the
 * database is opened again. (As above.) */
static void test_a_log_without_room_for_anything(void **state)
{
    struct kv *kv = open_or_fail("db");
    put_number(kv, 0, KV_DURABLE);
    kv_close(kv);
    kv = open_or_fail("db");
    disk_is_full = true;
    assert_int_equal(put_one(kv, "x", KV_DURABLE), -ENOSPC);
    disk_is_full = false;
    for (int i = 0; i < 10; i++) {
        usleep(20000);
        assert_int_equal(put_one(kv, "x", KV_DURABLE), -ENOSPC);
    }
    assert_int_equal(kv_sync(kv, NULL), 0); /* of what was committed */
    assert_true(has_number(kv, 'a', 0));
    kv_close(kv);
    kv = open_or_fail("db");
    assert_false(kv_is_cut(kv));
    assert_true(has_number(kv, 'a', 0));
    assert_int_equal(put_one(kv, "x", KV_DURABLE), 0);
    kv_close(kv);
}

/* It is told, and nothing is lost. (Without take_room RocksDB aborts the process.) */
static void test_an_opening_on_a_full_disk(void **state)
{
    struct kv *kv = open_or_fail("db");
    put_number(kv, 0, KV_DURABLE);
    kv_close(kv);
    nothing_finds_room = true;
    struct err e = {0};
    assert_int_equal(open_at("db", /* read_only= */ false, &kv, &e), -ENOSPC);
    nothing_finds_room = false;
    assert_non_null(strstr(e.text, "needs 4 MiB of room"));
    kv = open_or_fail("db");
    assert_false(kv_is_cut(kv));
    assert_true(has_number(kv, 'a', 0));
    kv_close(kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_reopen_keeps_everything, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_is_beside_the_data_is_bounded, setup, teardown),
        cmocka_unit_test_setup_teardown(test_second_open_is_busy, setup, teardown),
        cmocka_unit_test_setup_teardown(test_read_only, setup, teardown),
        cmocka_unit_test_setup_teardown(test_kill_loses_nothing_visible, setup, teardown),
        cmocka_unit_test_setup_teardown(test_power_loss_keeps_a_prefix, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bulk_load, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damaged_log_is_told, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damaged_log_that_cannot_be_listed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damaged_end_is_told, setup, teardown),
        cmocka_unit_test_setup_teardown(test_hole_in_the_log_is_told, setup, teardown),
        cmocka_unit_test_setup_teardown(test_torn_end_is_normal, setup, teardown),
        cmocka_unit_test_setup_teardown(test_an_open_database_is_noted_durably, setup, teardown),
        cmocka_unit_test_setup_teardown(test_an_opening_that_fails, setup, teardown),
        cmocka_unit_test_setup_teardown(test_failed_sync_stays_failed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_close_that_cannot_sync_is_told, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_full_disk_is_told, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_table_without_room, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_log_without_room_for_anything, setup, teardown),
        cmocka_unit_test_setup_teardown(test_an_opening_on_a_full_disk, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
