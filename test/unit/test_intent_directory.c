/* layer: object */
/* threaded */
/* Directories that are removed, renamed and made, asked for again after the node was killed. */
#include "intent_common.h"

static void leave_removal_of(const char *key)
{
    struct upstream *u = NULL;
    struct origin_attr now = {0};
    struct slice marker = slice_str(arena_printf(T.arena, "%s/", key));
    assert_int_equal(object_upstream(T.service, SLICE_LIT("data"), &u, NULL), 0);
    assert_int_equal(upstream_head(u, marker, SLICE_NULL, T.arena, &now, NULL), 0);
    upstream_unref(u);
    struct intent_record x = {.kind = INTENT_RMDIR,
                              .state = INTENT_BEGUN,
                              .bucket_id = bucket_id(),
                              .mtime_ns = now.mtime_ns,
                              .key = slice_str(key),
                              .etag = now.etag};
    leave_record(NUMBER, &x);
}

/* The same directory goes now; another one, which somebody has made since under its name, stays, and the one
 * that was to go went then. Who asks for that one's removal has it. (Seen to fail without may_be_marker: it
 * was taken for the one of before.) */
static void test_another_directory_of_the_name_stays(void **state)
{
    (void)state;
    const struct timespec later[2] = {{.tv_sec = 1900000000}, {.tv_sec = 1900000000}};
    assert_int_equal(mkdir(path_of("d"), 0755), 0);
    leave_removal_of("d");
    kill_node();
    assert_int_equal(do_rmdir(NUMBER, "d"), 0);
    assert_false(is_there("d"));
    assert_int_equal(mkdir(path_of("d"), 0755), 0);
    leave_removal_of("d");
    assert_int_equal(rmdir(path_of("d")), 0);
    assert_int_equal(mkdir(path_of("d"), 0755), 0);
    assert_int_equal(utimensat(AT_FDCWD, path_of("d"), later, 0), 0);
    kill_node();
    assert_int_equal(do_rmdir(NUMBER, "d"), 0);
    assert_true(is_there("d"));
    assert_int_equal(do_rmdir(NUMBER + 1, "d"), 0);
    assert_false(is_there("d"));
}

/* Before a directory is removed its record says which one it is. (Seen to fail without know_marker.) */
static void test_the_record_of_a_removal_names_the_directory(void **state)
{
    (void)state;
    struct intent_record x = {0};
    struct slice key, value;
    assert_int_equal(mkdir(path_of("d"), 0755), 0);
    assert_int_equal(do_rmdir(NUMBER, "d"), 0);
    struct kv_iter *it = kv_iter_new(T.kv, SLICE_LIT("i/"), SLICE_LIT("i0"));
    int r = kv_iter_next(it, &key, &value, NULL);
    r = r < 0 ? r : intent_decode(value, &x);
    kv_iter_free(it);
    assert_int_equal(r, 0);
    assert_true(x.kind == INTENT_RMDIR && x.state == INTENT_DONE);
    assert_true(x.etag.n > 0 && x.mtime_ns > 0);
}

static void set_time(const char *key, time_t s)
{
    const struct timespec at[2] = {{.tv_sec = s}, {.tv_sec = s}};
    assert_int_equal(utimensat(AT_FDCWD, path_of(key), at, 0), 0);
}

/* A rename of an empty directory that was copied, where directories are objects: the old name goes when it is
 * asked for again, unless somebody has made it anew since. (Seen to fail without directories_tell.) */
static void test_a_directory_that_is_made_anew_stays(void **state)
{
    (void)state;
    for (time_t since = 0; since < 2; since++) {
        struct upstream *u = NULL;
        const struct intent_record x = {.kind = INTENT_MOVE,
                                        .state = INTENT_COPIED,
                                        .is_tree = true,
                                        .bucket_id = bucket_id(),
                                        .key = SLICE_LIT("d"),
                                        .to = SLICE_LIT("new")};
        assert_int_equal(mkdir(path_of("d"), 0755), 0);
        assert_int_equal(mkdir(path_of("new"), 0755), 0);
        set_time("new", 1800000000);
        set_time("d", 1799999999 + 2 * since);
        leave_record(NUMBER, &x);
        kill_node();
        assert_int_equal(object_upstream(T.service, SLICE_LIT("data"), &u, NULL), 0);
        u->origin->capabilities &= ~(unsigned)ORIGIN_HAS_DIRECTORIES;
        assert_int_equal(do_rename(NUMBER, "d", "new", 0), 0);
        upstream_unref(u);
        assert_true(is_there("new") && is_there("d") == (since > 0));
        assert_int_equal(rmdir(path_of("new")), 0);
    }
}

static int make_with(uint64_t number, const char *meta)
{
    struct wire_mkdir_req req = {
        .request_id = number, .bucket = SLICE_LIT("data"), .key = SLICE_LIT("d"), .meta = slice_str(meta)};
    struct wire_mkdir_rep rep;
    return object_mkdir(T.session, &req, T.arena, &rep, NULL);
}

/* A directory whose making was begun, and that is there, is somebody else's where the origin keeps metadata
 * and has another owner's. (Seen to fail without may_be_made.) */
static void test_a_directory_of_somebody_else_is_not_ours(void **state)
{
    (void)state;
    static const char own[] = "x-amz-meta-mode: 16877\nx-amz-meta-uid: 0\n";
    static const char other[] = "x-amz-meta-mode: 16877\nx-amz-meta-uid: 7\n";
    const struct intent_record x = {
        .kind = INTENT_MKDIR, .state = INTENT_BEGUN, .bucket_id = bucket_id(), .key = SLICE_LIT("d")};
    const struct wire_bucket_set_req set = {.name = SLICE_LIT("data"), .settings = SLICE_LIT("posix=on\n")};
    struct wire_bucket_set_rep done;
    assert_int_equal(object_bucket_set(T.session, &set, T.arena, &done, NULL), 0);
    assert_int_equal(make_with(1, own), 0);
    for (int i = 0; i < 2; i++) {
        struct upstream *u = NULL;
        leave_record(NUMBER, &x);
        kill_node();
        assert_int_equal(object_upstream(T.service, SLICE_LIT("data"), &u, NULL), 0);
        u->origin->capabilities |= ORIGIN_CAN_META;
        assert_int_equal(make_with(NUMBER, i == 0 ? own : other), i == 0 ? 0 : -EEXIST);
        upstream_unref(u);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_another_directory_of_the_name_stays, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_record_of_a_removal_names_the_directory, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_directory_that_is_made_anew_stays, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_directory_of_somebody_else_is_not_ours, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
