/* layer: object */
/* threaded */
/* Scratch buckets through the operations: what a mount sees and does. */
#include "scratch_service.h"

#include "base/metrics.h"
#include "object/scratch_node.h"
#include "support/fault_sys.h"

#define ROOT 1

/* A file that is made and opened, written through its descriptor and closed is there with its size, owner and
 * permissions, also after a restart; while it is open its size is that of its file. */
static void test_a_file_is_written_and_read(void **state)
{
    struct fixture *f = *state;
    struct wire_tree_create_rep c = {0};
    struct wire_inode x = {0};
    assert_int_equal(create_file(f, ROOT, "a", WIRE_WRITE | WIRE_EXCLUSIVE, &c), 0);
    assert_true(c.made && c.fd >= 0 && c.handle != 0);
    assert_int_equal(c.inode.mode, S_IFREG | 0644);
    assert_int_equal(c.inode.uid, 5);
    assert_int_equal(c.inode.size_bytes, 0);
    assert_int_equal(getattr(f, c.inode.ino, &x), 0);
    assert_int_equal(x.mtime_ns, c.inode.mtime_ns);
    assert_int_equal(pwrite(c.fd, "hello", 5, 0), 5);
    assert_int_equal(getattr(f, c.inode.ino, &x), 0);
    assert_int_equal(x.size_bytes, 5);
    assert_int_equal(lookup(f, ROOT, "a", &x), 0);
    assert_int_equal(x.size_bytes, 5);
    assert_int_equal(close_handle(f, c.handle), 0);
    assert_int_equal(close_handle(f, c.handle), -EBADF);
    assert_file(f, c.inode.ino, "hello");
    assert_int_equal(create_file(f, ROOT, "a", WIRE_EXCLUSIVE, &c), -EEXIST);
    assert_int_equal(sync_ino(f, x.ino), 0);
    restart(f);
    assert_int_equal(lookup(f, ROOT, "a", &x), 0);
    assert_int_equal(x.size_bytes, 5);
    assert_file(f, x.ino, "hello");
}

/* Creating what exists opens it, with its bytes or, asked so, without. */
static void test_creating_again_opens(void **state)
{
    struct fixture *f = *state;
    uint64_t ino = write_file(f, ROOT, "a", "first");
    struct wire_tree_create_rep c = {0};
    assert_int_equal(create_file(f, ROOT, "a", WIRE_WRITE, &c), 0);
    assert_true(!c.made && c.inode.ino == ino);
    assert_int_equal(c.inode.size_bytes, 5);
    assert_int_equal(pwrite(c.fd, "F", 1, 0), 1);
    assert_int_equal(close_handle(f, c.handle), 0);
    assert_file(f, ino, "First");
    assert_int_equal(create_file(f, ROOT, "a", WIRE_WRITE | WIRE_TRUNCATE, &c), 0);
    assert_int_equal(c.inode.size_bytes, 0);
    assert_int_equal(close_handle(f, c.handle), 0);
    assert_file(f, ino, "");
}

/* Opening for writing changes nothing that can be seen; an empty file needs no descriptor for reading. */
static void test_opening_alone_changes_nothing(void **state)
{
    struct fixture *f = *state;
    struct wire_tree_create_rep c = {0};
    struct wire_tree_open_rep o = {0};
    struct wire_inode before = {0}, after = {0};
    assert_int_equal(create_file(f, ROOT, "empty", WIRE_EXCLUSIVE, &c), 0);
    assert_int_equal(c.handle, 0);
    assert_int_equal(getattr(f, c.inode.ino, &before), 0);
    assert_int_equal(open_ino(f, c.inode.ino, 0, &o), 0);
    assert_int_equal(o.fd, -1);
    assert_int_equal(close_handle(f, o.handle), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(open_ino(f, c.inode.ino, WIRE_WRITE, &o), 0);
        assert_true(o.fd >= 0);
        assert_int_equal(getattr(f, c.inode.ino, &after), 0);
        assert_int_equal(after.mtime_ns, before.mtime_ns);
        assert_int_equal(after.ctime_ns, before.ctime_ns);
        assert_int_equal(after.size_bytes, 0);
        assert_int_equal(close_handle(f, o.handle), 0);
    }
    uint64_t ino = write_file(f, ROOT, "full", "bytes");
    assert_int_equal(getattr(f, ino, &before), 0);
    assert_int_equal(open_ino(f, ino, WIRE_WRITE, &o), 0);
    assert_int_equal(close_handle(f, o.handle), 0);
    assert_int_equal(getattr(f, ino, &after), 0);
    assert_int_equal(after.mtime_ns, before.mtime_ns);
    assert_int_equal(after.ctime_ns, before.ctime_ns);
    assert_int_equal(open_ino(f, ROOT, 0, &o), -EISDIR);
    assert_int_equal(open_ino(f, 12345, 0, &o), -ENOENT);
}

/* A file that is removed while it is open can be read and written until its last handle closes, and is gone
 * then; its bucket can be removed when all is gone. */
static void test_a_removed_file_lives_while_it_is_open(void **state)
{
    struct fixture *f = *state;
    uint64_t ino = write_file(f, ROOT, "a", "bytes");
    struct wire_tree_open_rep o = {0};
    struct wire_inode x = {0};
    char got[8] = {0};
    assert_int_equal(open_ino(f, ino, WIRE_WRITE, &o), 0);
    assert_int_equal(unlink_name(f, ROOT, "a"), 0);
    assert_int_equal(lookup(f, ROOT, "a", &x), -ENOENT);
    assert_int_equal(getattr(f, ino, &x), 0);
    assert_int_equal(x.links, 0);
    assert_int_equal(pread(o.fd, got, 5, 0), 5);
    assert_string_equal(got, "bytes");
    assert_int_equal(pwrite(o.fd, "more", 4, 5), 4);
    assert_int_equal(getattr(f, ino, &x), 0);
    assert_int_equal(x.size_bytes, 9);
    assert_int_equal(close_handle(f, o.handle), 0);
    assert_int_equal(open_ino(f, ino, 0, &o), -ENOENT);
    struct wire_bucket_remove_req req = {.name = BUCKET};
    struct wire_bucket_remove_rep rep = {0};
    assert_int_equal(object_bucket_remove(f->session, &req, f->arena, &rep, &f->e), 0);
    assert_int_equal(getattr(f, ino, &x), ERR_NO_BUCKET);
}

/* A bucket with a file in it is not removed. */
static void test_a_full_bucket_stays(void **state)
{
    struct fixture *f = *state;
    (void)write_file(f, ROOT, "a", "bytes");
    struct wire_bucket_remove_req req = {.name = BUCKET};
    struct wire_bucket_remove_rep rep = {0};
    assert_int_equal(object_bucket_remove(f->session, &req, f->arena, &rep, &f->e), -ENOTEMPTY);
    assert_int_equal(unlink_name(f, ROOT, "a"), 0);
    assert_int_equal(object_bucket_remove(f->session, &req, f->arena, &rep, &f->e), 0);
    assert_int_equal(object_bucket_remove(f->session, &req, f->arena, &rep, &f->e), ERR_NO_BUCKET);
}

/* Sizes that are set are the file's: cut, prolonged with zeros, of files with and without bytes, open or not;
 * times that are set stay until the file is written to. */
static void test_sizes_and_times_are_set(void **state)
{
    struct fixture *f = *state;
    struct wire_inode x = {0};
    struct wire_tree_create_rep c = {0};
    uint64_t ino = write_file(f, ROOT, "a", "abcdef");
    assert_int_equal(set_size(f, ino, 3, &x), 0);
    assert_int_equal(x.size_bytes, 3);
    assert_file(f, ino, "abc");
    assert_int_equal(set_size(f, ino, 0, &x), 0);
    assert_file(f, ino, "");
    assert_int_equal(create_file(f, ROOT, "b", 0, &c), 0);
    assert_int_equal(set_size(f, c.inode.ino, 1000, &x), 0);
    assert_int_equal(x.size_bytes, 1000);
    assert_int_equal(set_size(f, ROOT, 0, &x), -EISDIR);
    struct wire_tree_setattr_req req = {.bucket = BUCKET,
                                        .ino = c.inode.ino,
                                        .what = WIRE_SET_MTIME | WIRE_SET_ATIME | WIRE_SET_MODE,
                                        .mode = 0600,
                                        .mtime_ns = 1000000000,
                                        .atime_ns = 5};
    struct wire_tree_setattr_rep rep = {0};
    assert_int_equal(object_tree_setattr(f->session, &req, f->arena, &rep, &f->e), 0);
    assert_int_equal(rep.inode.mtime_ns, 1000000000);
    assert_int_equal(rep.inode.mode, S_IFREG | 0600);
    assert_int_equal(getattr(f, c.inode.ino, &x), 0);
    assert_int_equal(x.mtime_ns, 1000000000);
    assert_int_equal(x.atime_ns, 5);
    struct wire_tree_open_rep o = {0};
    assert_int_equal(open_ino(f, c.inode.ino, WIRE_WRITE, &o), 0);
    assert_int_equal(o.inode.mtime_ns, 1000000000);
    assert_int_equal(pwrite(o.fd, "x", 1, 0), 1);
    assert_int_equal(getattr(f, c.inode.ino, &x), 0);
    assert_true(x.mtime_ns > 1000000000 && x.ctime_ns >= x.mtime_ns);
    assert_int_equal(close_handle(f, o.handle), 0);
    restart(f);
    assert_int_equal(getattr(f, c.inode.ino, &x), 0);
    assert_int_equal(x.size_bytes, 1000);
    assert_true(x.mtime_ns > 1000000000);
    req.what = 1u << 20;
    assert_int_equal(object_tree_setattr(f->session, &req, f->arena, &rep, &f->e), -EINVAL);
}

/* Directories are made, read page by page with and without inodes, renamed and removed. */
static void test_directories(void **state)
{
    struct fixture *f = *state;
    uint64_t dir = 0, sub = 0;
    assert_int_equal(make_dir(f, ROOT, "dir", &dir), 0);
    assert_int_equal(make_dir(f, ROOT, "dir", NULL), -EEXIST);
    assert_int_equal(make_dir(f, dir, "sub", &sub), 0);
    for (int i = 0; i < 20; i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "f%02d", i);
        (void)write_file(f, dir, name, "12345");
    }
    struct wire_tree_readdir_req req = {.bucket = BUCKET, .ino = dir, .max = 300};
    struct wire_tree_readdir_rep rep = {0};
    unsigned seen = 0, plus = 0;
    do {
        req.flags = seen % 2 ? WIRE_PLUS : 0;
        assert_int_equal(object_tree_readdir(f->session, &req, f->arena, &rep, &f->e), 0);
        assert_true(rep.n_entries > 0 || rep.end);
        struct wire_dirent d = {0};
        for (uint32_t i = 0; i < rep.n_entries; i++) {
            assert_int_equal(wire_dirent_decode(&rep.entries, &d), 0);
            assert_int_equal(d.has_inode, req.flags & WIRE_PLUS ? 1 : 0);
            if (d.has_inode && S_ISREG(d.mode))
                assert_int_equal(d.inode.size_bytes, 5);
            plus += d.has_inode;
            req.after = d.cookie;
            seen++;
        }
        assert_int_equal(rep.entries.n, 0);
        req.until = rep.until;
    } while (!rep.end);
    assert_int_equal(seen, 21);
    assert_true(plus > 0 && plus < 21);
    req.max = 4;
    req.after = 0;
    assert_int_equal(object_tree_readdir(f->session, &req, f->arena, &rep, &f->e), -EINVAL);
    struct wire_tree_rmdir_req rm = {.bucket = BUCKET, .parent = ROOT, .name = SLICE_LIT("dir")};
    struct wire_tree_rmdir_rep rmr = {0};
    assert_int_equal(object_tree_rmdir(f->session, &rm, f->arena, &rmr, &f->e), -ENOTEMPTY);
    assert_int_equal(rename_name(f, dir, "f00", sub, "moved", 0), 0);
    assert_int_equal(rename_name(f, dir, "f01", dir, "f02", WIRE_NOREPLACE), -EEXIST);
    assert_int_equal(rename_name(f, dir, "f01", dir, "f02", 0), 0);
    struct wire_inode x = {0};
    assert_int_equal(lookup(f, sub, "moved", &x), 0);
    assert_int_equal(lookup(f, dir, "f01", NULL), -ENOENT);
}

/* A file without a name lives until it is closed, or gets a name; links count. */
static void test_links_and_nameless_files(void **state)
{
    struct fixture *f = *state;
    struct wire_tree_create_rep c = {0};
    struct wire_inode x = {0};
    assert_int_equal(create_file(f, ROOT, "", 0, &c), 0);
    assert_true(c.fd >= 0 && c.inode.links == 0);
    assert_int_equal(close_handle(f, c.handle), 0);
    assert_int_equal(getattr(f, c.inode.ino, &x), -ENOENT);
    assert_int_equal(create_file(f, ROOT, "", 0, &c), 0);
    assert_int_equal(pwrite(c.fd, "kept", 4, 0), 4);
    struct wire_tree_link_req req = {
        .bucket = BUCKET, .ino = c.inode.ino, .parent = ROOT, .name = SLICE_LIT("named")};
    struct wire_tree_link_rep rep = {0};
    assert_int_equal(object_tree_link(f->session, &req, f->arena, &rep, &f->e), 0);
    assert_int_equal(rep.inode.links, 1);
    assert_int_equal(close_handle(f, c.handle), 0);
    assert_file(f, c.inode.ino, "kept");
    req.name = SLICE_LIT("again");
    assert_int_equal(object_tree_link(f->session, &req, f->arena, &rep, &f->e), 0);
    assert_int_equal(rep.inode.links, 2);
    assert_int_equal(unlink_name(f, ROOT, "named"), 0);
    assert_file(f, c.inode.ino, "kept");
}

/* A file without a name that nobody has open any more gets none: it is being freed. Fails without the look at
 * holds in prepare_link. */
static void test_a_lost_nameless_file_gets_no_name(void **state)
{
    struct fixture *f = *state;
    struct wire_tree_create_rep c = {0};
    assert_int_equal(create_file(f, ROOT, "", 0, &c), 0);
    assert_int_equal(pwrite(c.fd, "lost", 4, 0), 4);
    assert_int_equal(sync_ino(f, c.inode.ino), 0);
    restart(f);
    struct wire_tree_link_req req = {
        .bucket = BUCKET, .ino = c.inode.ino, .parent = ROOT, .name = SLICE_LIT("named")};
    struct wire_tree_link_rep rep = {0};
    assert_int_equal(object_tree_link(f->session, &req, f->arena, &rep, &f->e), -ENOENT);
    assert_int_equal(lookup(f, ROOT, "named", NULL), -ENOENT);
}

static uint64_t freeing(struct fixture *f)
{
    object_service_refresh_metrics(f->service);
    return metrics_value(metrics_series(METRIC_SCRATCH_FREEING, NULL, NULL, NULL));
}

static uint64_t unsettled(struct fixture *f)
{
    object_service_refresh_metrics(f->service);
    return metrics_value(metrics_series(METRIC_SCRATCH_UNSETTLED, NULL, NULL, NULL));
}

static int close_handles(struct fixture *f, struct slice handles)
{
    struct wire_tree_close_req req = {.handles = handles};
    struct wire_tree_close_rep rep = {0};
    return object_tree_close(f->session, &req, f->arena, &rep, &f->e);
}

/* A file that is made to be written later is open and has no data until somebody opens it for writing; it
 * outlives its name like any other. One that is there is opened as it is. */
static void test_a_file_gets_its_data_late(void **state)
{
    struct fixture *f = *state;
    struct wire_tree_create_rep c = {0}, there = {0};
    struct wire_tree_open_rep o = {0};
    struct wire_inode x = {0};
    char got[8] = {0};
    assert_int_equal(create_file(f, ROOT, "a", WIRE_LATE | WIRE_EXCLUSIVE, &c), 0);
    assert_true(c.made && c.handle != 0 && c.fd == -1);
    assert_int_equal(unsettled(f), 0);
    assert_int_equal(create_file(f, ROOT, "a", WIRE_LATE | WIRE_EXCLUSIVE, &there), -EEXIST);
    assert_int_equal(open_ino(f, c.inode.ino, WIRE_WRITE, &o), 0);
    assert_int_equal(unsettled(f), 1);
    assert_int_equal(pwrite(o.fd, "bytes", 5, 0), 5);
    assert_int_equal(getattr(f, c.inode.ino, &x), 0);
    assert_int_equal(x.size_bytes, 5);
    assert_int_equal(create_file(f, ROOT, "a", WIRE_LATE, &there), 0);
    assert_true(!there.made && there.fd >= 0 && there.inode.ino == c.inode.ino);
    assert_int_equal(pread(there.fd, got, sizeof(got), 0), 5);
    assert_int_equal(close_handle(f, there.handle), 0);
    assert_int_equal(close_handle(f, o.handle), 0);
    assert_int_equal(close_handle(f, c.handle), 0);
    assert_file(f, c.inode.ino, "bytes");

    assert_int_equal(create_file(f, ROOT, "b", WIRE_LATE | WIRE_EXCLUSIVE, &c), 0);
    assert_int_equal(unlink_name(f, ROOT, "b"), 0);
    assert_int_equal(getattr(f, c.inode.ino, &x), 0);
    assert_int_equal(x.links, 0);
    assert_int_equal(open_ino(f, c.inode.ino, WIRE_WRITE, &o), 0);
    assert_int_equal(pwrite(o.fd, "more", 4, 0), 4);
    assert_int_equal(close_handle(f, o.handle), 0);
    assert_int_equal(getattr(f, c.inode.ino, &x), 0);
    assert_int_equal(x.size_bytes, 4);
    assert_int_equal(close_handle(f, c.handle), 0);
    assert_int_equal(open_ino(f, c.inode.ino, 0, &o), -ENOENT);
}

#define CLOSED 70 /* more than are closed at once, and more than fit into one transaction */

/* Many handles are closed by one call: of files with and without bytes, twice of one file, for reading and
 * writing; what is no handle (any more) is passed over. Empty files give their extents back, the others keep
 * their bytes, also after a restart. */
static void test_many_are_closed_at_once(void **state)
{
    struct fixture *f = *state;
    _cleanup_buf_ struct buf handles = BUF_INIT(KIB);
    struct wire_tree_create_rep c[CLOSED];
    struct wire_tree_open_rep o[2];
    char name[16];
    (void)wire_handle_encode(UINT64_MAX, &handles);
    for (size_t i = 0; i < CLOSED; i++) {
        (void)snprintf(name, sizeof(name), "n%zu", i);
        assert_int_equal(create_file(f, ROOT, name, WIRE_WRITE, &c[i]), 0);
        if (i % 30 == 1)
            assert_int_equal(pwrite(c[i].fd, name, strlen(name), 0), (ssize_t)strlen(name));
        (void)wire_handle_encode(c[i].handle, &handles);
        if (i < 2) {
            assert_int_equal(open_ino(f, c[i].inode.ino, i == 0 ? WIRE_WRITE : 0, &o[i]), 0);
            (void)wire_handle_encode(o[i].handle, &handles);
        }
    }
    assert_int_equal(unlink_name(f, ROOT, "n5"), 0);
    assert_int_equal(unsettled(f), CLOSED);
    assert_int_equal(close_handles(f, buf_view(&handles)), 0);
    assert_true(unsettled(f) <= 3); /* those with bytes, unless they are settled by now */
    for (size_t i = 0; i < CLOSED; i++)
        assert_int_equal(close_handle(f, c[i].handle), -EBADF);
    assert_int_equal(close_handle(f, o[0].handle), -EBADF);
    assert_int_equal(close_handles(f, buf_view(&handles)), 0);
    assert_int_equal(close_handles(f, SLICE_LIT("short")), -EINVAL);
    restart(f);
    for (size_t i = 0; i < CLOSED; i++) {
        (void)snprintf(name, sizeof(name), "n%zu", i);
        assert_int_equal(lookup(f, ROOT, name, NULL), i == 5 ? -ENOENT : 0);
        if (i != 5)
            assert_file(f, c[i].inode.ino, i % 30 == 1 ? name : "");
    }
}

/* What cannot be freed is tried again until it can, also when an extent was given back in the same batch. */
static void test_freeing_goes_on_after_an_error(void **state)
{
    struct fixture *f = *state;
    struct wire_tree_create_rep c = {0};
    (void)write_file(f, ROOT, "a", "bytes");
    assert_int_equal(create_file(f, ROOT, "e", WIRE_WRITE, &c), 0);
    fault_sys_arm(FAULT_UNLINK, 1, EIO, FAULT_FOREVER);
    assert_int_equal(close_handle(f, c.handle), 0); /* its extent is given back */
    assert_int_equal(unlink_name(f, ROOT, "e"), 0);
    assert_int_equal(unlink_name(f, ROOT, "a"), 0);
    for (int i = 0; i < 6000 && !fault_sys_hit(); i++)
        sys->sleep_ns(10000000);
    assert_true(fault_sys_hit());
    fault_sys_disarm();
    for (int i = 0; i < 6000 && freeing(f) > 0; i++)
        sys->sleep_ns(10000000);
    assert_int_equal(freeing(f), 0);
    struct wire_bucket_remove_req req = {.name = BUCKET};
    struct wire_bucket_remove_rep rep = {0};
    assert_int_equal(object_bucket_remove(f->session, &req, f->arena, &rep, &f->e), 0);
}

static int setup_faults(void **state)
{
    fault_sys_start();
    return setup_local(state);
}

static int teardown_faults(void **state)
{
    int r = teardown(state);
    fault_sys_stop();
    return r;
}

static void open_of(struct fixture *f, uint64_t ino, struct slice mount, struct wire_tree_open_rep *ret)
{
    struct wire_tree_open_req req = {.bucket = BUCKET, .ino = ino, .flags = WIRE_WRITE, .mount = mount};
    assert_int_equal(object_tree_open(f->session, &req, f->arena, ret, &f->e), 0);
}

/* What the disk did not take is told once to a session, and again to the one that takes its mount over: it
 * may not have reached the program. Another mount that opens the file later has nothing to do with it. */
static void test_a_fault_is_told_to_who_takes_over(void **state)
{
    struct fixture *f = *state;
    struct object_session *own = f->session, *before = object_session_new(f->service, WIRE_VIA_MOUNT);
    const struct slice mount = SLICE_LIT("0123456789abcdef");
    struct wire_tree_open_rep o = {0};
    uint64_t ino = write_file(f, ROOT, "a", "bytes");
    f->session = before;
    open_of(f, ino, mount, &o);
    assert_int_equal(pwrite(o.fd, "more", 4, 5), 4);
    fault_sys_arm(FAULT_FSYNC | FAULT_FDATASYNC, 1, EIO, FAULT_ONCE);
    assert_int_equal(sync_ino(f, ino), -EIO);
    fault_sys_disarm();
    assert_int_equal(sync_ino(f, ino), 0);
    object_session_free(before);
    f->session = object_session_new(f->service, WIRE_VIA_MOUNT);
    open_of(f, ino, mount, &o);
    assert_int_equal(sync_ino(f, ino), -EIO);
    assert_int_equal(sync_ino(f, ino), 0);
    object_session_free(f->session);
    f->session = own;
    open_of(f, ino, SLICE_LIT("fedcba9876543210"), &o);
    assert_int_equal(sync_ino(f, ino), 0);
}

/* What another session's fsync met is told to this one, too, and by an answer that says so: one that fails
 * for another reason has not told it. Fails when tell_faults counts any answer as told. */
static void test_a_fault_is_not_told_by_another_failure(void **state)
{
    struct fixture *f = *state;
    struct object_session *own = f->session, *other = object_session_new(f->service, WIRE_VIA_MOUNT);
    struct wire_tree_open_rep o = {0}, others = {0};
    uint64_t ino = write_file(f, ROOT, "a", "bytes");
    open_of(f, ino, SLICE_LIT("0123456789abcdef"), &o);
    f->session = other;
    open_of(f, ino, SLICE_LIT("fedcba9876543210"), &others);
    assert_int_equal(pwrite(others.fd, "more", 4, 5), 4);
    fault_sys_arm(FAULT_FSYNC | FAULT_FDATASYNC, 1, EIO, FAULT_ONCE);
    assert_int_equal(sync_ino(f, ino), -EIO);
    f->session = own;
    fault_sys_arm(FAULT_FSYNC | FAULT_FDATASYNC, 1, ENOMEM, FAULT_ONCE);
    assert_int_equal(sync_ino(f, ino), -ENOMEM);
    fault_sys_disarm();
    assert_int_equal(sync_ino(f, ino), -EIO);
    assert_int_equal(sync_ino(f, ino), 0);
    object_session_free(other);
}

/* What the disk did not take is met by settling, after the last close: the next fsync tells it, once. Nobody
 * is told of it who opens the file later. */
static void test_a_fault_that_settling_met_is_told(void **state)
{
    struct fixture *f = *state;
    struct wire_tree_open_rep o = {0}, again = {0};
    fault_sys_arm(FAULT_FDATASYNC, 1, EIO, FAULT_ONCE); /* which writing does not call */
    uint64_t ino = write_file(f, ROOT, "a", "bytes");
    for (int i = 0; i < 12000 && !fault_sys_hit(); i++)
        sys->sleep_ns(10000000);
    assert_true(fault_sys_hit());
    fault_sys_disarm();
    for (int i = 0; i < 12000 && unsettled(f) > 0; i++)
        sys->sleep_ns(10000000);
    assert_int_equal(unsettled(f), 0);
    open_of(f, ino, SLICE_LIT("0123456789abcdef"), &o);
    assert_int_equal(sync_ino(f, ino), -EIO);
    assert_int_equal(sync_ino(f, ino), 0);
    assert_int_equal(close_handle(f, o.handle), 0);
    open_of(f, ino, SLICE_LIT("fedcba9876543210"), &again);
    assert_int_equal(sync_ino(f, ino), 0);
    assert_int_equal(close_handle(f, again.handle), 0);
}

/* A session that has as many handles as it may have makes no file and empties none. */
static void test_nothing_is_made_without_room_for_its_handle(void **state)
{
    struct fixture *f = *state;
    struct wire_tree_create_rep c = {0};
    struct wire_tree_open_rep o = {0};
    uint64_t ino = write_file(f, ROOT, "a", "bytes"), handle;
    for (size_t i = 0; i < OBJECT_HANDLES_MAX; i++)
        assert_int_equal(session_put(f->session, HANDLE_READ, /* object= */ NULL, &handle), 0);
    assert_int_equal(create_file(f, ROOT, "b", WIRE_WRITE | WIRE_EXCLUSIVE, &c), -EMFILE);
    assert_int_equal(lookup(f, ROOT, "b", NULL), -ENOENT);
    assert_int_equal(open_ino(f, ino, WIRE_WRITE | WIRE_TRUNCATE, &o), -EMFILE);
    assert_null(session_take(f->session, HANDLE_READ, handle)); /* makes room for one */
    assert_file(f, ino, "bytes");
    assert_int_equal(create_file(f, ROOT, "b", WIRE_WRITE | WIRE_EXCLUSIVE, &c), 0);
}

/* Requests that come again, also after a restart, answer as the first and change nothing twice. */
static void test_requests_come_again(void **state)
{
    struct fixture *f = *state;
    struct wire_tree_create_req req = {.bucket = BUCKET,
                                       .parent = ROOT,
                                       .name = SLICE_LIT("a"),
                                       .mode = S_IFREG | 0644,
                                       .flags = WIRE_EXCLUSIVE | WIRE_WRITE,
                                       .mount = SLICE_LIT("0123456789abcdef"),
                                       .request = 7};
    struct wire_tree_create_rep first = {0}, again = {0};
    assert_int_equal(object_tree_create(f->session, &req, f->arena, &first, &f->e), 0);
    assert_int_equal(pwrite(first.fd, "x", 1, 0), 1);
    restart(f);
    assert_int_equal(object_tree_create(f->session, &req, f->arena, &again, &f->e), 0);
    assert_int_equal(again.inode.ino, first.inode.ino);
    assert_int_equal(again.inode.size_bytes, 1);
    assert_true(again.fd >= 0);
    assert_int_equal(close_handle(f, again.handle), 0);
    req.mount = SLICE_LIT("short");
    assert_int_equal(object_tree_create(f->session, &req, f->arena, &again, &f->e), -EINVAL);
    struct wire_tree_leave_req leave = {.bucket = BUCKET, .mount = SLICE_LIT("0123456789abcdef")};
    struct wire_tree_leave_rep left = {0};
    assert_int_equal(object_tree_leave(f->session, &leave, f->arena, &left, &f->e), 0);
    req.mount = leave.mount;
    assert_int_equal(object_tree_create(f->session, &req, f->arena, &again, &f->e), -EEXIST);
}

/* A file without a name that was made, and whose maker did not hear of it before the node was gone, is made
 * again when it is asked for again. */
static void test_a_lost_nameless_file_is_made_again(void **state)
{
    struct fixture *f = *state;
    struct wire_tree_create_req req = {.bucket = BUCKET,
                                       .parent = ROOT,
                                       .mode = S_IFREG | 0644,
                                       .flags = WIRE_WRITE,
                                       .mount = SLICE_LIT("0123456789abcdef"),
                                       .request = 7};
    struct wire_tree_create_rep first = {0}, again = {0}, third = {0};
    assert_int_equal(object_tree_create(f->session, &req, f->arena, &first, &f->e), 0);
    restart(f);
    /* For a while it is kept for its mount, as nothing was written to it: that is over. */
    stree_end_lingering(f->service->scratch, /* bucket= */ 0, UINT64_MAX - 1);
    assert_int_equal(object_tree_create(f->session, &req, f->arena, &again, &f->e), 0);
    assert_true(again.made && again.fd >= 0 && again.inode.links == 0 && again.inode.ino != first.inode.ino);
    assert_int_equal(pwrite(again.fd, "x", 1, 0), 1);
    assert_int_equal(object_tree_create(f->session, &req, f->arena, &third, &f->e), 0);
    assert_int_equal(close_handle(f, third.handle), 0);
    struct wire_tree_link_req link = {
        .bucket = BUCKET, .ino = again.inode.ino, .parent = ROOT, .name = SLICE_LIT("a")};
    struct wire_tree_link_rep linked = {0};
    assert_int_equal(object_tree_link(f->session, &link, f->arena, &linked, &f->e), 0);
    assert_int_equal(close_handle(f, again.handle), 0);
    assert_file(f, again.inode.ino, "x");
}

static uint64_t size_of(struct fixture *f, uint64_t ino)
{
    struct wire_inode x = {0};
    assert_int_equal(getattr(f, ino, &x), 0);
    return x.size_bytes;
}

static void cut(struct fixture *f, uint64_t ino, uint32_t what, uint64_t request)
{
    struct wire_tree_setattr_req req = {.bucket = BUCKET,
                                        .ino = ino,
                                        .what = what,
                                        .mode = 0600,
                                        .mount = SLICE_LIT("0123456789abcdef"),
                                        .request = request};
    struct wire_tree_setattr_rep rep = {0};
    assert_int_equal(object_tree_setattr(f->session, &req, f->arena, &rep, &f->e), 0);
}

static void open_empty(struct fixture *f, uint64_t ino, uint64_t request)
{
    struct wire_tree_open_req req = {.bucket = BUCKET,
                                     .ino = ino,
                                     .flags = WIRE_WRITE | WIRE_TRUNCATE,
                                     .mount = SLICE_LIT("0123456789abcdef"),
                                     .request = request};
    struct wire_tree_open_rep rep = {0};
    assert_int_equal(object_tree_open(f->session, &req, f->arena, &rep, &f->e), 0);
    assert_true(rep.fd >= 0);
    assert_int_equal(close_handle(f, rep.handle), 0);
}

/* A request that takes bytes away and comes again, or late, leaves what was written since. */
static void test_bytes_are_taken_away_once(void **state)
{
    struct fixture *f = *state;
    uint64_t ino = write_file(f, ROOT, "a", "old");
    struct wire_tree_open_rep o = {0};
    struct wire_inode x = {0};
    assert_int_equal(open_ino(f, ino, WIRE_WRITE, &o), 0);
    cut(f, ino, WIRE_SET_SIZE, 8);
    assert_int_equal(size_of(f, ino), 0);
    assert_int_equal(pwrite(o.fd, "new", 3, 0), 3);
    cut(f, ino, WIRE_SET_SIZE, 8);
    assert_int_equal(size_of(f, ino), 3);
    cut(f, ino, WIRE_SET_SIZE | WIRE_SET_MODE, 12);
    assert_int_equal(getattr(f, ino, &x), 0);
    assert_true(x.size_bytes == 0 && x.mode == (S_IFREG | 0600));
    assert_int_equal(pwrite(o.fd, "newer", 5, 0), 5);
    cut(f, ino, WIRE_SET_SIZE | WIRE_SET_MODE, 12);
    assert_int_equal(size_of(f, ino), 5);
    open_empty(f, ino, 16);
    assert_int_equal(size_of(f, ino), 0);
    assert_int_equal(pwrite(o.fd, "newest", 6, 0), 6);
    open_empty(f, ino, 16);
    assert_int_equal(size_of(f, ino), 6);
    open_empty(f, ino, 20);
    assert_int_equal(size_of(f, ino), 0);
    assert_int_equal(pwrite(o.fd, "last", 4, 0), 4);
    assert_int_equal(close_handle(f, o.handle), 0);
    restart(f);
    cut(f, ino, WIRE_SET_SIZE, 8);
    open_empty(f, ino, 20);
    assert_file(f, ino, "last");
}

static void create_empty(struct fixture *f, uint64_t request, uint64_t ino)
{
    struct wire_tree_create_req req = {.bucket = BUCKET,
                                       .parent = ROOT,
                                       .name = SLICE_LIT("a"),
                                       .mode = S_IFREG | 0644,
                                       .flags = WIRE_WRITE | WIRE_TRUNCATE,
                                       .mount = SLICE_LIT("0123456789abcdef"),
                                       .request = request};
    struct wire_tree_create_rep rep = {0};
    assert_int_equal(object_tree_create(f->session, &req, f->arena, &rep, &f->e), 0);
    assert_true(rep.fd >= 0 && (ino == 0 || rep.inode.ino == ino));
    assert_int_equal(close_handle(f, rep.handle), 0);
}

/* A creation that comes again leaves what others have written since, whether it made the file or emptied it.
 * Fails when the open in open_made (scratch_tree.c) does not have the request's number. */
static void test_a_creation_empties_once(void **state)
{
    struct fixture *f = *state;
    struct wire_inode x = {0};
    struct wire_tree_open_rep o = {0};
    create_empty(f, 7, 0);
    assert_int_equal(lookup(f, ROOT, "a", &x), 0);
    assert_int_equal(open_ino(f, x.ino, WIRE_WRITE, &o), 0);
    assert_int_equal(pwrite(o.fd, "new", 3, 0), 3);
    create_empty(f, 7, x.ino);
    assert_int_equal(size_of(f, x.ino), 3);
    create_empty(f, 11, x.ino);
    assert_int_equal(size_of(f, x.ino), 0);
    assert_int_equal(pwrite(o.fd, "newer", 5, 0), 5);
    create_empty(f, 11, x.ino);
    assert_int_equal(size_of(f, x.ino), 5);
    assert_int_equal(close_handle(f, o.handle), 0);
    restart(f);
    create_empty(f, 11, x.ino);
    assert_file(f, x.ino, "newer");
}

/* Extended attributes come, are listed, and go. */
static void test_extended_attributes(void **state)
{
    struct fixture *f = *state;
    uint64_t ino = write_file(f, ROOT, "a", "x");
    struct wire_tree_xattr_set_req set = {
        .bucket = BUCKET, .ino = ino, .name = SLICE_LIT("user.k"), .value = SLICE_LIT("v")};
    struct wire_tree_xattr_set_rep setr = {0};
    struct wire_tree_xattr_get_req g = {.bucket = BUCKET, .ino = ino, .name = SLICE_LIT("user.k")};
    struct wire_tree_xattr_get_rep gr = {0};
    set.flags = WIRE_REPLACE;
    assert_int_equal(object_tree_xattr_set(f->session, &set, f->arena, &setr, &f->e), -ENODATA);
    set.flags = 0;
    assert_int_equal(object_tree_xattr_set(f->session, &set, f->arena, &setr, &f->e), 0);
    set.flags = WIRE_EXCLUSIVE;
    assert_int_equal(object_tree_xattr_set(f->session, &set, f->arena, &setr, &f->e), -EEXIST);
    assert_int_equal(object_tree_xattr_get(f->session, &g, f->arena, &gr, &f->e), 0);
    assert_true(slice_eq_str(gr.value, "v"));
    struct wire_tree_xattr_list_req l = {.bucket = BUCKET, .ino = ino};
    struct wire_tree_xattr_list_rep lr = {0};
    assert_int_equal(object_tree_xattr_list(f->session, &l, f->arena, &lr, &f->e), 0);
    assert_true(slice_eq(lr.names, slice_of("user.k", 7)));
    struct wire_tree_xattr_remove_req rm = {.bucket = BUCKET, .ino = ino, .name = SLICE_LIT("user.k")};
    struct wire_tree_xattr_remove_rep rmr = {0};
    assert_int_equal(object_tree_xattr_remove(f->session, &rm, f->arena, &rmr, &f->e), 0);
    assert_int_equal(object_tree_xattr_get(f->session, &g, f->arena, &gr, &f->e), -ENODATA);
}

/* What a session that ends had open lingers, for whoever takes the mount over, also what it had removed; a
 * bucket that is removed does not wait for it. */
static void test_a_session_closes_its_files(void **state)
{
    struct fixture *f = *state;
    struct object_session *other = object_session_new(f->service, WIRE_VIA_MOUNT), *own = f->session;
    uint64_t ino = write_file(f, ROOT, "a", "bytes");
    struct wire_tree_open_rep o = {0};
    struct wire_inode x = {0};
    f->session = other;
    assert_int_equal(open_ino(f, ino, WIRE_WRITE, &o), 0);
    assert_int_equal(unlink_name(f, ROOT, "a"), 0);
    f->session = own;
    assert_int_equal(getattr(f, ino, &x), 0);
    object_session_free(other);
    assert_int_equal(getattr(f, ino, &x), 0);
    struct wire_bucket_remove_req req = {.name = BUCKET};
    struct wire_bucket_remove_rep rep = {0};
    assert_int_equal(object_bucket_remove(f->session, &req, f->arena, &rep, &f->e), 0);
}

/* What a scratch bucket cannot have is refused, and it never becomes a mirror. */
static void test_properties_of_scratch_buckets(void **state)
{
    struct fixture *f = *state;
    struct wire_inode x = {0};
    assert_int_equal(make_bucket(f, SLICE_LIT("other"), "validate=always"), ERR_BAD_OPTION);
    assert_int_equal(make_bucket(f, SLICE_LIT("other"), "mode=99"), ERR_BAD_OPTION);
    assert_int_equal(make_bucket(f, SLICE_LIT("other"), "owner=me"), ERR_BAD_OPTION);
    assert_int_equal(make_bucket(f, BUCKET, ""), ERR_BUCKET_EXISTS);
    struct wire_bucket_set_req set = {.name = BUCKET, .settings = SLICE_LIT("origin=file:///tmp")};
    struct wire_bucket_set_rep setr = {0};
    assert_int_equal(object_bucket_set(f->session, &set, f->arena, &setr, &f->e), ERR_BAD_OPTION);
    set.settings = SLICE_LIT("owner=10:20\nmode=1777");
    assert_int_equal(object_bucket_set(f->session, &set, f->arena, &setr, &f->e), 0);
    assert_int_equal(getattr(f, ROOT, &x), 0);
    assert_true(x.uid == 10 && x.gid == 20 && x.mode == (S_IFDIR | 01777));
    struct wire_bucket_get_req g = {.name = BUCKET};
    struct wire_bucket_get_rep gr = {0};
    assert_int_equal(object_bucket_get(f->session, &g, f->arena, &gr, &f->e), 0);
    assert_true(slice_find_slice(gr.settings, SLICE_LIT("owner=10:20\n")) >= 0);
    assert_true(slice_find_slice(gr.settings, SLICE_LIT("origin")) < 0);
    assert_true(slice_find_slice(gr.settings, SLICE_LIT("validate")) < 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(test_a_file_is_written_and_read),
        BOTH(test_creating_again_opens),
        BOTH(test_opening_alone_changes_nothing),
        BOTH(test_a_removed_file_lives_while_it_is_open),
        BOTH(test_a_full_bucket_stays),
        BOTH(test_sizes_and_times_are_set),
        BOTH(test_directories),
        BOTH(test_links_and_nameless_files),
        BOTH(test_a_lost_nameless_file_gets_no_name),
        BOTH(test_a_file_gets_its_data_late),
        BOTH(test_many_are_closed_at_once),
        cmocka_unit_test_setup_teardown(test_freeing_goes_on_after_an_error, setup_faults, teardown_faults),
        cmocka_unit_test_setup_teardown(test_a_fault_is_told_to_who_takes_over, setup_faults,
                                        teardown_faults),
        cmocka_unit_test_setup_teardown(test_a_fault_is_not_told_by_another_failure, setup_faults,
                                        teardown_faults),
        cmocka_unit_test_setup_teardown(test_a_fault_that_settling_met_is_told, setup_faults,
                                        teardown_faults),
        cmocka_unit_test_setup_teardown(test_nothing_is_made_without_room_for_its_handle, setup_local,
                                        teardown),
        BOTH(test_requests_come_again),
        BOTH(test_a_lost_nameless_file_is_made_again),
        BOTH(test_bytes_are_taken_away_once),
        BOTH(test_a_creation_empties_once),
        BOTH(test_extended_attributes),
        BOTH(test_a_session_closes_its_files),
        BOTH(test_properties_of_scratch_buckets),
    };
    return cmocka_run_group_tests_name("object_scratch", tests, NULL, NULL);
}
