/* layer: object */
/* threaded */
/*
 * Files that a mount writes through a descriptor, on a disk that does not take them: the kernel says so once,
 * the writer ever after.
 */
#include "test_back_common.h"

static int strand_file(struct fixture *f, uint64_t handle)
{
    struct wire_strand_req req = {.handle = handle, .size = FILE_SIZE, .error = SLICE_LIT("EIO")};
    struct wire_strand_rep rep;
    return object_strand(f->session, &req, f->arena, &rep, NULL);
}

/* The disk did not take what the first commit is about. */
static void fail_first_commit(struct fixture *f, const char *key, unsigned call, uint32_t flags,
                              struct wire_put_open_rep *ret)
{
    assert_int_equal(stage(f, key, ret), 0);
    fill_file(ret->fd, 'b');
    fault_sys_arm(call, 1, EIO, FAULT_ONCE);
    assert_int_equal(commit_file(f, ret->handle, FILE_SIZE, flags), -EIO);
    assert_true(fault_sys_hit());
    fault_sys_disarm();
}

/* After an fsync that failed neither another one, nor a close, nor the keeping of what could not be sent
 * gives bytes of that file to anybody: pages of it may be as they were before. The object is what it was. A
 * file that is written anew is taken. (Seen to fail when sync_staged, writer.c, does not remember.) */
static void check_a_failed_sync_is_remembered(const char *settings, unsigned call, uint32_t flags)
{
    fault_sys_start();
    struct fixture *f = fixture_new();
    struct wire_put_open_rep o;
    set_bucket(f, settings);
    origin_write(f, "k", 'a');
    fail_first_commit(f, "k", call, flags | WIRE_KEEP, &o);
    assert_int_equal(commit_file(f, o.handle, FILE_SIZE, flags | WIRE_KEEP), -EIO);
    assert_int_equal(strand_file(f, o.handle), -EIO);
    assert_int_equal(commit_file(f, o.handle, FILE_SIZE, flags), -EIO);
    assert_int_equal(look(f, "k"), 'a');
    abort_file(f, o.handle);
    assert_int_equal(origin_look(f, "k"), 'a');
    assert_int_equal(put_file(f, "k", 'c'), 0);
    assert_int_equal(look(f, "k"), 'c');
    fixture_free(f);
    fault_sys_stop();
}

static void test_a_failed_sync_is_remembered(void **state)
{
    (void)state;
    const char *through = "write=through\n", *back = "write=back\nwrite_delay=1h\n";
    check_a_failed_sync_is_remembered(through, FAULT_FDATASYNC, /* flags= */ 0);
    check_a_failed_sync_is_remembered(through, FAULT_FDATASYNC, WIRE_UNMAPPED);
    check_a_failed_sync_is_remembered(back, FAULT_FDATASYNC, /* flags= */ 0);
    /* Where the record is made while the file goes to the disk: what the kernel knows by then. */
    check_a_failed_sync_is_remembered(back, FAULT_SYNC_FILE_RANGE, WIRE_UNMAPPED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_failed_sync_is_remembered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
