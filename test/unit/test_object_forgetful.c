/* layer: object */
/* threaded */
/* Disks that fail while the node goes on, and nodes that are killed: what was removed or replaced does not
 * come back with them.
 */
#include "base/sys.h"
#include "node_fixture.h"
#include "object/object_internal.h"
#include "origin/origin_internal.h"
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
    node_bucket(&T, "posix=on\nvalidate=never\n");
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
 * object_forget_entry in object_change_begin.) */
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

/* ---- read beside a change ---- */

static struct {
    const char *key;
    const char *got; /* what the reader got, right before the origin carried out the change */
    bool is_met;
    bool is_believed; /* kill -9 right after that would leave what is believed of the key */
} beside;

static void read_beside(void)
{
    beside.is_met = true;
    beside.got = read_all(beside.key);
}

/* Looks at what the index has of the key, as the next start would. */
static void look_beside(void)
{
    struct format_entry entry;
    struct attr attr;
    struct slice k, v;
    assert_true(writer_drain(&T.store->disks[0]));
    _cleanup_(kv_iter_freep) struct kv_iter *it =
        kv_iter_new(T.store->disks[0].kv, SLICE_LIT("o"), SLICE_LIT("p"));
    while (kv_iter_next(it, &k, &v, NULL) == 0) {
        if (!slice_ends(k, slice_str(beside.key)))
            continue;
        assert_int_equal(format_entry_decode(v, &entry), 0);
        assert_int_equal(attr_decode(entry.attr, &attr), 0);
        beside.is_believed |= attr.confirmed_ns > 0;
    }
}

static int put_beside(struct origin *o, const struct origin_put *p, const struct origin_body *body,
                      struct arena *a, struct origin_attr *ret, struct err *e)
{
    read_beside();
    int r = origin_file_ops.put(o, p, body, a, ret, e);
    look_beside();
    return r;
}

static int remove_beside(struct origin *o, struct slice key, struct slice if_match, struct err *e)
{
    bool is_it = slice_eq_str(key, beside.key);
    if (is_it)
        read_beside();
    int r = origin_file_ops.remove(o, key, if_match, e);
    if (is_it)
        look_beside();
    return r;
}

static int copy_beside(struct origin *o, struct slice from, struct slice to, struct slice if_match,
                       struct arena *a, struct origin_attr *ret, struct err *e)
{
    read_beside();
    int r = origin_file_ops.copy(o, from, to, if_match, a, ret, e);
    look_beside();
    return r;
}

static int set_meta_beside(struct origin *o, const struct origin_put *p, uint64_t size_bytes, struct arena *a,
                           struct origin_attr *ret, struct err *e)
{
    read_beside();
    int r = origin_file_ops.set_meta(o, p, size_bytes, a, ret, e);
    look_beside();
    return r;
}

/* The reader got the former bytes, and nothing of them is believed after a kill; so it is with whatever reads
 * after the change. */
static void check_beside(const char *former, const char *now)
{
    assert_true(beside.is_met && !beside.is_believed);
    assert_string_equal(beside.got, former);
    if (now)
        assert_string_equal(read_all(beside.key), now);
    else
        assert_null(read_all(beside.key));
    beside.is_met = false;
}

static void put_object(const char *key, const char *text)
{
    struct wire_put_open_req open = {
        .bucket = SLICE_LIT("data"), .key = slice_str(key), .size = UINT64_MAX, .via = WIRE_VIA_API};
    struct wire_put_open_rep o;
    struct wire_put_write_rep written;
    struct wire_put_commit_rep done;
    assert_int_equal(object_put_open(T.session, &open, T.arena, &o, NULL), 0);
    struct wire_put_write_req w = {.handle = o.handle, .data = slice_str(text)};
    assert_int_equal(object_put_write(T.session, &w, T.arena, &written, NULL), 0);
    struct wire_put_commit_req commit = {.handle = o.handle, .size = strlen(text)};
    assert_int_equal(object_put_commit(T.session, &commit, T.arena, &done, NULL), 0);
}

static void set_mode(const char *key)
{
    struct wire_set_meta_req req = {
        .bucket = SLICE_LIT("data"), .key = slice_str(key), .meta = SLICE_LIT("x-amz-meta-mode: 33152\n")};
    struct wire_set_meta_rep rep;
    assert_int_equal(object_set_meta(T.session, &req, T.arena, &rep, NULL), 0);
}

/* Who reads a key while it is changed here gets what is there, and may have it cached: a node that is killed
 * when the origin has carried that out, and before it could forget the key, asks about it after its start,
 * whatever `validate` says. (Without is_changing in object_encode_attr the former bytes are given for good;
 * without object_doubt_entry in meta_ops.c the former mode.) */
static void test_what_is_read_beside_a_change_is_asked_about(void **state)
{
    (void)state;
    struct upstream *u = NULL;
    struct origin_ops ops = origin_file_ops;
    cache_two();
    origin_write("longer", "three");
    assert_int_equal(object_upstream(T.service, SLICE_LIT("data"), &u, NULL), 0);
    ops.put = put_beside;
    ops.remove = remove_beside;
    ops.copy = copy_beside;
    ops.set_meta = set_meta_beside;
    u->origin->ops = &ops;
    beside.key = "stays";
    put_object("stays", "four!");
    check_beside("two", "four!");
    set_mode("stays");
    check_beside("four!", "four!");
    move_object("longer", "stays");
    check_beside("four!", "three");
    beside.key = "gone";
    remove_object("gone");
    check_beside("one", NULL);
    u->origin->ops = &origin_file_ops;
    upstream_unref(u);
}

/* What was changed with nobody beside it is believed after a kill, as what was read is. */
static void test_what_was_changed_is_believed(void **state)
{
    (void)state;
    beside.is_believed = false;
    beside.key = "stays";
    put_object("stays", "four!");
    look_beside();
    assert_true(beside.is_believed);
    beside.is_believed = false;
    set_mode("stays");
    look_beside();
    assert_true(beside.is_believed);
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
        TEST(test_what_is_read_beside_a_change_is_asked_about),
        TEST(test_what_was_changed_is_believed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
