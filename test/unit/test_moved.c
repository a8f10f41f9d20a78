/* layer: object */
/* threaded */
/*
 * What became of versions by renames of directories at an origin whose copies have ETags of their own: found
 * by who asks for the rest of one, and by nobody else.
 */
#include "test_back_common.h"

#include "object/moved.h"

#include <sys/stat.h>

#define PLACE 7

static void note(struct moved *m, const char *from, const char *etag, const char *to, const char *now)
{
    moved_note(m, PLACE, slice_str(from), slice_str(etag), slice_str(to), slice_str(now));
}

static void check(struct moved *m, uint64_t place, const char *key, const char *etag, const char *now)
{
    _cleanup_free_ char *found = moved_now(m, place, slice_str(key), slice_str(etag));
    if (now)
        assert_string_equal(found, now);
    else
        assert_null(found);
}

/* Over one step and over several, from each of them; not of another version, under another key, or of another
 * bucket, nor of what was moved to the name before. */
static void test_steps_are_followed(void **state)
{
    (void)state;
    struct moved m;
    moved_init(&m);
    check(&m, PLACE, "b/k", "1", NULL);
    note(&m, "a/k", "1", "b/k", "2");
    note(&m, "a/other", "8", "b/other", "9");
    check(&m, PLACE, "b/k", "1", "2");
    check(&m, PLACE, "b/k", "8", NULL);
    check(&m, PLACE, "a/k", "1", NULL);
    check(&m, PLACE + 1, "b/k", "1", NULL);
    note(&m, "b/k", "2", "c/k", "3");
    note(&m, "b/other", "9", "c/other", "10");
    note(&m, "c/k", "3", "a/k", "4");
    check(&m, PLACE, "a/k", "1", "4");
    check(&m, PLACE, "a/k", "2", "4");
    check(&m, PLACE, "a/k", "3", "4");
    check(&m, PLACE, "c/other", "8", "10");
    note(&m, "x/k", "5", "a/k", "6");
    check(&m, PLACE, "a/k", "1", NULL);
    check(&m, PLACE, "a/k", "5", "6");
    moved_fini(&m);
}

/* The last of them are known, and no more. */
static void test_the_last_are_known(void **state)
{
    (void)state;
    struct moved m;
    char from[32], to[32];
    moved_init(&m);
    note(&m, "a/first", "1", "b/first", "2");
    for (unsigned i = 0; i < MOVED_MAX - 1; i++) {
        (void)snprintf(from, sizeof(from), "a/%u", i);
        (void)snprintf(to, sizeof(to), "b/%u", i);
        note(&m, from, "1", to, "2");
    }
    check(&m, PLACE, "b/first", "1", "2");
    note(&m, "a/last", "1", "b/last", "2");
    check(&m, PLACE, "b/first", "1", NULL);
    check(&m, PLACE, "b/0", "1", "2");
    check(&m, PLACE, "b/last", "1", "2");
    moved_fini(&m);
}

static int open_version(struct fixture *f, const char *key, const char *etag, uint32_t via, char ret_etag[64])
{
    struct wire_open_req req = {.bucket = SLICE_LIT("data"),
                                .key = slice_str(key),
                                .if_match = slice_str(etag),
                                .expect = 1,
                                .via = via};
    struct wire_open_rep o;
    int r = object_open(f->session, &req, f->arena, &o, NULL);
    if (r < 0)
        return r;
    assert_true(o.attr.etag.n < 64);
    (void)snprintf(ret_etag, 64, SLICE_FMT, SLICE_ARG(o.attr.etag));
    struct wire_close_req close_req = {.handle = o.handle};
    struct wire_close_rep close_rep;
    assert_int_equal(object_close(f->session, &close_req, f->arena, &close_rep, NULL), 0);
    return 0;
}

static void move(struct fixture *f, const char *from, const char *to)
{
    struct wire_copy_req req = {.bucket = SLICE_LIT("data"),
                                .from = slice_str(from),
                                .to = slice_str(to),
                                .flags = WIRE_MOVE | WIRE_POSIX};
    struct wire_copy_rep rep;
    assert_int_equal(object_copy(f->session, &req, f->arena, &rep, NULL), 0);
}

/* A mount finds the version by the ETag that it knows, after one rename and after two, until somebody has
 * written there; for others an ETag says what it says. (Seen to fail without follow_move, reader.c.) */
static void test_a_renamed_directory(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    char first[64], now[64], third[64];
    set_bucket(f, "write=through\nposix=off\n");
    assert_int_equal(mkdir(arena_printf(f->arena, "%s/d", f->origin), 0755), 0);
    origin_write(f, "d/k", 'a');
    assert_int_equal(open_version(f, "d/k", "", WIRE_VIA_MOUNT, first), 0);
    move(f, "d", "e");
    assert_int_equal(open_version(f, "e/k", "", WIRE_VIA_MOUNT, now), 0);
    assert_string_not_equal(now, first);
    assert_int_equal(open_version(f, "e/k", first, WIRE_VIA_MOUNT, third), 0);
    assert_string_equal(third, now);
    assert_int_equal(open_version(f, "e/k", first, WIRE_VIA_S3, third), ERR_PRECONDITION);
    assert_int_equal(open_version(f, "e/k", "another", WIRE_VIA_MOUNT, third), ERR_PRECONDITION);
    move(f, "e", "g");
    assert_int_equal(open_version(f, "g/k", first, WIRE_VIA_MOUNT, third), 0);
    assert_int_equal(open_version(f, "g/k", now, WIRE_VIA_MOUNT, third), 0);
    assert_int_equal(put(f, "g/k", 'b'), 0);
    assert_int_equal(open_version(f, "g/k", first, WIRE_VIA_MOUNT, third), ERR_PRECONDITION);
    assert_int_equal(open_version(f, "g/k", now, WIRE_VIA_MOUNT, third), ERR_PRECONDITION);
    fixture_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_are_followed),
        cmocka_unit_test(test_the_last_are_known),
        cmocka_unit_test(test_a_renamed_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
