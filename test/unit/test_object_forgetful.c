/* layer: object */
/* threaded */
/* Disks that fail while the node goes on, and nodes that are killed: what was removed or replaced does not
 * come back with them.
 */
#include "base/sys.h"
#include "node_fixture.h"
#include "object/object_internal.h"
#include "store/store_internal.h"
#include "support/fault_sys.h"
#include "test_store_kv.h"

#include "base/hash.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>

static struct fixture T;

/* When the origin has carried out what it was asked for: its file is gone, or has another size. */
static struct {
    const struct sys *before;
    pthread_t thread;         /* whose calls are looked at */
    const char *_Atomic file; /* NULL: not now */
    char key[KIB];            /* as the store has it: no bucket is looked for below a lock of the origin */
    size_t key_n;
    int64_t size; /* -1: it is gone */
    bool is_met, is_cached;
} looked;

static bool is_cached(void)
{
    struct extent *x = NULL;
    bool is = store_find(T.store, slice_of(looked.key, looked.key_n), &x) == 0;
    extent_unref(x);
    return is;
}

/* The origin syncs a directory before it says that it was changed. */
static int looking_fsync(int fd)
{
    struct stat st;
    const char *file = atomic_load(&looked.file);
    bool is_own = file && pthread_equal(looked.thread, pthread_self());
    bool is_done = is_own && (stat(file, &st) < 0 ? looked.size < 0 : st.st_size == looked.size);
    if (is_done) {
        looked.is_met = true;
        looked.is_cached |= is_cached();
    }
    return looked.before->fsync(fd);
}

static int setup(void **state)
{
    (void)state;
    node_around(&T);
    testkv_use();
    fault_sys_start();
    static struct sys table;
    table = *sys;
    table.fsync = looking_fsync;
    looked.before = sys;
    looked.thread = pthread_self();
    sys = &table;
    node_open(&T);
    node_bucket(&T, "validate=never\n");
    return 0;
}

static void kill_node(void)
{
    node_close(&T, store_abandon);
}

static int teardown(void **state)
{
    (void)state;
    kill_node();
    sys = looked.before;
    fault_sys_stop();
    testkv_reset();
    node_gone(&T);
    return 0;
}

static void origin_write(const char *key, const char *text)
{
    int fd = open(arena_printf(T.arena, "%s/%s", T.origin, key), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(sys_pwrite_all(fd, text, strlen(text), 0), 0);
    assert_int_equal(close(fd), 0);
}

/* What a reader gets; NULL: there is no such object. */
static const char *read_all(const char *key)
{
    struct wire_open_req req = {
        .bucket = SLICE_LIT("data"), .key = slice_str(key), .expect = KIB, .via = WIRE_VIA_API};
    struct wire_open_rep rep;
    int r = object_open(T.session, &req, T.arena, &rep, NULL);
    if (r == -ENOENT)
        return NULL;
    assert_int_equal(r, 0);
    struct wire_fetch_req fetch = {.handle = rep.handle, .n = KIB, .flags = WIRE_INLINE};
    struct wire_fetch_rep got;
    assert_int_equal(object_fetch(T.session, &fetch, T.arena, &got, NULL), 0);
    struct wire_close_req close_req = {.handle = rep.handle};
    struct wire_close_rep closed;
    assert_int_equal(object_close(T.session, &close_req, T.arena, &closed, NULL), 0);
    return arena_printf(T.arena, SLICE_FMT, SLICE_ARG(got.data));
}

static void remove_object(const char *key)
{
    struct wire_remove_req req = {.bucket = SLICE_LIT("data"), .key = slice_str(key)};
    struct wire_remove_rep rep;
    assert_int_equal(object_remove(T.session, &req, T.arena, &rep, NULL), 0);
}

static void cache_two(void)
{
    origin_write("gone", "one");
    origin_write("stays", "two");
    assert_string_equal(read_all("gone"), "one");
    assert_string_equal(read_all("stays"), "two");
    assert_int_equal(store_flush(T.store, NULL), 0);
}

/* The disk's file system becomes read-only, an object is removed, which the origin has done and the client
 * was told; then the disk is mended and the node started again, in the same boot: the object is not there,
 * although file and record of what was cached of it still are. (Without object_note_forgetful it is, for
 * good.) What did not change is still found; the origin was asked about it. */
static void test_removed_from_a_disk_that_is_read_only(void **state)
{
    (void)state;
    cache_two();
    fault_sys_arm(FAULT_UNLINK, 1, EROFS, FAULT_FOREVER);
    testkv_fail_at = testkv_calls + 1;
    remove_object("gone");
    assert_true(fault_sys_hit());
    assert_int_equal(store_n_forgetful(T.store), 1);
    assert_null(read_all("gone"));
    kill_node();
    fault_sys_disarm();
    testkv_fail_at = 0;
    node_open(&T);
    assert_null(read_all("gone"));
    assert_string_equal(read_all("stays"), "two");
}

/* One call that fails is no reason: the records of what was removed are deleted, and after a restart nobody
 * is asked about the rest. */
static void test_a_file_that_cannot_be_unlinked_alone(void **state)
{
    (void)state;
    cache_two();
    fault_sys_arm(FAULT_UNLINK, 1, EIO, FAULT_ONCE);
    remove_object("gone");
    assert_true(fault_sys_hit());
    fault_sys_disarm();
    assert_int_equal(store_n_forgetful(T.store), 0);
    kill_node();
    node_open(&T);
    origin_write("stays", "new"); /* of which nobody told: validate=never */
    assert_null(read_all("gone"));
    assert_string_equal(read_all("stays"), "two");
}

/* A flush that fails may have lost removals that were carried out: all that the disk has is asked about after
 * the next start. */
static void test_a_flush_that_fails(void **state)
{
    (void)state;
    cache_two();
    fault_sys_arm(FAULT_SYNCFS, 1, EIO, FAULT_ONCE);
    remove_object("gone");
    assert_true(store_flush(T.store, NULL) < 0);
    assert_true(fault_sys_hit());
    fault_sys_disarm();
    assert_int_equal(store_n_forgetful(T.store), 1);
    remove_object("gone"); /* whoever removes something next has it noted, or the steward soon */
    kill_node();
    node_open(&T);
    origin_write("stays", "new");
    assert_string_equal(read_all("stays"), "new");
}

/* A mount that keeps a file open is told that its bytes are perhaps lost, and asks when it is opened again:
 * what the disk has lost is fetched. */
static void test_kept_files_after_a_flush_that_fails(void **state)
{
    (void)state;
    struct wire_watch_req watch = {.bucket = SLICE_LIT("data")};
    struct wire_watch_rep told;
    struct wire_open_req req = {
        .bucket = SLICE_LIT("data"), .key = SLICE_LIT("kept"), .expect = KIB, .via = WIRE_VIA_MOUNT};
    struct wire_open_rep kept;
    struct extent *x = NULL;
    struct buf _cleanup_buf_ key = BUF_INIT(KIB);
    struct bucket *b = NULL;
    char path[DISK_PATH_MAX];
    uint64_t hash = 0;
    origin_write("kept", "bytes");
    assert_int_equal(object_watch(T.session, &watch, T.arena, &told, NULL), 0);
    assert_int_equal(object_open(T.session, &req, T.arena, &kept, NULL), 0);
    assert_int_equal(kept.state, WIRE_COMPLETE);
    fault_sys_arm(FAULT_SYNCFS, 1, EIO, FAULT_ONCE);
    assert_true(store_flush(T.store, NULL) < 0);
    fault_sys_disarm();
    assert_int_equal(read(told.fd, &hash, sizeof(hash)), sizeof(hash));
    assert_int_equal(le64toh(hash), hash_placement(SLICE_LIT("kept")));
    assert_int_equal(bucket_find(T.service->buckets, SLICE_LIT("data"), &b, NULL), 0);
    object_store_key(b, SLICE_LIT("kept"), &key);
    bucket_unref(b);
    assert_int_equal(store_find(T.store, buf_view(&key), &x), 0);
    disk_extent_path(x->disk, x->id, path);
    extent_unref(x);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, "lost!", 5, 0), 5);
    assert_int_equal(close(fd), 0);
    assert_string_equal(read_all("kept"), "bytes");
    char got[5];
    assert_int_equal(pread(kept.fd, got, sizeof(got), 0), sizeof(got)); /* in the file that is open, too */
    assert_memory_equal(got, "bytes", sizeof(got));
}

static void look_at(const char *key, int64_t size)
{
    struct buf _cleanup_buf_ k = BUF_INIT(sizeof(looked.key));
    struct bucket *b = NULL;
    assert_int_equal(bucket_find(T.service->buckets, SLICE_LIT("data"), &b, NULL), 0);
    object_store_key(b, slice_str(key), &k);
    bucket_unref(b);
    memcpy(looked.key, k.p, k.n);
    looked.key_n = k.n;
    looked.is_met = looked.is_cached = false;
    looked.size = size;
    atomic_store(&looked.file, arena_printf(T.arena, "%s/%s", T.origin, key));
}

static void check_let_go(void)
{
    atomic_store(&looked.file, NULL);
    assert_true(looked.is_met && !looked.is_cached);
}

static void move_object(const char *from, const char *to)
{
    struct wire_copy_req req = {
        .bucket = SLICE_LIT("data"), .from = slice_str(from), .to = slice_str(to), .flags = WIRE_MOVE};
    struct wire_copy_rep rep;
    assert_int_equal(object_copy(T.session, &req, T.arena, &rep, NULL), 0);
}

/* What is cached of an object that is removed or replaced by a rename goes before the origin does that: a
 * node that is killed before it has heard of it would give the old bytes for good. (Fails without
 * object_let_go in remove_once and in move_once, name_ops.c.) */
static void test_what_changes_is_let_go_before(void **state)
{
    (void)state;
    cache_two();
    origin_write("longer", "three");
    assert_string_equal(read_all("longer"), "three");
    look_at("gone", /* size= */ -1);
    remove_object("gone");
    check_let_go();
    look_at("stays", strlen("three"));
    move_object("longer", "stays");
    check_let_go();
    assert_string_equal(read_all("stays"), "three");
    look_at("stays", /* size= */ -1);
    move_object("stays", "longer");
    check_let_go();
    assert_null(read_all("stays"));
    assert_string_equal(read_all("longer"), "three");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_removed_from_a_disk_that_is_read_only),
        TEST(test_a_file_that_cannot_be_unlinked_alone),
        TEST(test_a_flush_that_fails),
        TEST(test_kept_files_after_a_flush_that_fails),
        TEST(test_what_changes_is_let_go_before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
