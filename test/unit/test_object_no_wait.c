/* layer: object */
/* threaded */
/* Who must not wait for an origin is told what is known here, and else that nothing is. */
#include "object_fresh_common.h"

#include <errno.h>

static int stat_with(struct fixture *f, const char *key, uint32_t flags, struct wire_attr *ret)
{
    struct wire_stat_req req = {.bucket = SLICE_LIT("data"), .key = slice_str(key), .flags = flags};
    struct wire_stat_rep rep;
    int r = object_stat(f->session, &req, f->arena, &rep, NULL);
    if (r == 0)
        *ret = rep.attr;
    return r;
}

static int stat_now(struct fixture *f, const char *key)
{
    struct wire_attr ignored;
    return stat_with(f, key, WIRE_POSIX | WIRE_NO_WAIT, &ignored);
}

static int open_now(struct fixture *f, const char *key)
{
    struct wire_open_req req = {
        .bucket = SLICE_LIT("data"), .key = slice_str(key), .via = WIRE_VIA_MOUNT, .flags = WIRE_NO_WAIT};
    struct wire_open_rep rep;
    int r = object_open(f->session, &req, f->arena, &rep, NULL);
    if (r < 0)
        return r;
    assert_int_equal(rep.state, WIRE_COMPLETE);
    struct wire_close_req close_req = {.handle = rep.handle};
    struct wire_close_rep closed;
    assert_int_equal(object_close(f->session, &close_req, f->arena, &closed, NULL), 0);
    return 0;
}

static int list_now(struct fixture *f)
{
    struct wire_list_req req = {.bucket = SLICE_LIT("data"), .flags = WIRE_POSIX | WIRE_NO_WAIT};
    struct wire_list_rep rep;
    return object_list(f->session, &req, f->arena, &rep, NULL);
}

/* A reader has its bytes a moment before the file is complete. */
static void read_whole(struct fixture *f, const char *key, const char *text)
{
    assert_string_equal(read_all(f, key, NULL), text);
    for (int i = 0; i < 3000 && open_now(f, key) == -EAGAIN; i++)
        sys->sleep_ns(1000000);
}

/* Nothing is asked of the origin for it: neither attributes nor bytes are here afterwards. (Seen to fail
 * without would_wait in name_ops.c, is_here in reader.c, and the look at the flag in mirror_list.) */
static void test_what_is_not_known_is_not_asked_for(void **state)
{
    struct fixture *f = *state;
    origin_write(f, "k", "text");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(stat_now(f, "k"), -EAGAIN);
        assert_int_equal(open_now(f, "k"), -EAGAIN);
        assert_int_equal(list_now(f), -EAGAIN);
        assert_false(is_cached(f, "k"));
    }
}

/* What is here is told as ever: attributes, bytes, names, directories, and that there is nothing. */
static void test_what_is_known_is_told(void **state)
{
    struct fixture *f = *state;
    struct wire_attr attr;
    origin_write(f, "k", "text");
    assert_int_equal(mkdir(arena_printf(f->arena, "%s/d", f->origin), 0755), 0);
    origin_write(f, "d/k", "below");
    read_whole(f, "k", "text");
    assert_int_equal(stat_with(f, "d", WIRE_POSIX, &attr), 0);
    assert_true(list(f, WIRE_POSIX) > 0);
    assert_int_equal(stat_now(f, "k"), 0);
    assert_int_equal(stat_now(f, ""), 0);
    assert_int_equal(stat_now(f, "d"), 0);
    assert_int_equal(stat_with(f, "none", WIRE_POSIX, &attr), -ENOENT);
    assert_int_equal(stat_now(f, "none"), -ENOENT);
    assert_int_equal(open_now(f, "k"), 0);
    assert_int_equal(list_now(f), 0);
    assert_int_equal(stat_with(f, "k", WIRE_FRESH | WIRE_NO_WAIT, &attr), -EAGAIN);
}

/* What is here and too old to be believed is asked for: an origin that is silent is not waited for for long
 * then. Where the origin is always asked it is waited for, and so it is for other bytes. */
static void test_what_is_old_is_asked_for(void **state)
{
    struct fixture *f = *state;
    struct wire_attr attr;
    set_bucket(f, "validate=ttl:1s");
    origin_write(f, "k", "text");
    read_whole(f, "k", "text");
    sys->sleep_ns(1100000000);
    assert_int_equal(open_now(f, "k"), 0);
    sys->sleep_ns(1100000000);
    origin_write(f, "k", "another");
    assert_int_equal(stat_with(f, "k", WIRE_POSIX | WIRE_NO_WAIT, &attr), 0);
    assert_int_equal(attr.size_bytes, strlen("another"));
    assert_int_equal(open_now(f, "k"), -EAGAIN);
    read_whole(f, "k", "another");
    assert_int_equal(open_now(f, "k"), 0);
    set_bucket(f, "validate=always");
    assert_int_equal(open_now(f, "k"), -EAGAIN);
    assert_int_equal(stat_now(f, "k"), -EAGAIN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_what_is_not_known_is_not_asked_for, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_is_known_is_told, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_is_old_is_asked_for, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
