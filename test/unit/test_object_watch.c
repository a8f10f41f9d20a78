/* layer: object */
/* threaded */
/* Watches of names: who is told of which keys. */
#include "name_watch.h"
#include "object/object_internal.h"

#include <fcntl.h>

static int setup_on(enum object_route route, void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    f->route = route;
    node_around(f);
    node_open(f);
    *state = f;
    return 0;
}

static int setup(void **state)
{
    return setup_on(OBJECT_ROUTE_LOCAL, state);
}

static int setup_loop(void **state)
{
    return setup_on(OBJECT_ROUTE_LOOP, state);
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    node_close(f, store_close);
    node_gone(f);
    free(f);
    return 0;
}

static void origin_write(struct fixture *f, const char *key, const char *text)
{
    char *path = arena_printf(f->arena, "%s/%s", f->origin, key),
         *tmp = arena_printf(f->arena, "%s.new", path);
    _cleanup_close_ int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    assert_int_equal(rename(tmp, path), 0);
}

static void close_object(struct fixture *f, uint64_t handle)
{
    struct wire_close_req req = {.handle = handle};
    struct wire_close_rep rep;
    assert_int_equal(object_close(f->session, &req, f->arena, &rep, NULL), 0);
}

static void list_all(struct fixture *f)
{
    struct wire_list_req req = {.bucket = SLICE_LIT("data"), .flags = WIRE_FRESH};
    struct wire_list_rep rep;
    assert_int_equal(object_list(f->session, &req, f->arena, &rep, NULL), 0);
}

/* Who watches names is told of versions that the node hears of, cached or not, and of what it hears to be
 * gone; not of what it hears for the first time, nor twice. (Mutation: is_news gives true, or false.) */
static void test_who_watches_names_is_told_of_news(void **state)
{
    struct fixture *f = *state;
    node_bucket(f, "validate=never\n");
    origin_write(f, "k", "first");
    origin_write(f, "other", "first");
    struct wire_watch_names_rep watch = watch_names(f);
    list_all(f);
    list_all(f);
    assert_string_equal(names_told(watch.fd).text, "");
    origin_write(f, "k", "the second");
    list_all(f);
    assert_string_equal(names_told(watch.fd).text, " k");
    list_all(f);
    assert_string_equal(names_told(watch.fd).text, "");
    struct wire_stat_req stat = {
        .bucket = SLICE_LIT("data"), .key = SLICE_LIT("k"), .flags = WIRE_FRESH | WIRE_POSIX};
    struct wire_stat_rep rep;
    assert_int_equal(unlink(arena_printf(f->arena, "%s/k", f->origin)), 0);
    assert_int_equal(object_stat(f->session, &stat, f->arena, &rep, NULL), -ENOENT);
    assert_string_equal(names_told(watch.fd).text, " -k");
    close_object(f, watch.handle);
}

/* Whoever watches names of a prefix is told of those; of a removal both that the name changed and, unless he
 * did it himself, that directories may be gone. A bucket without origin has no such watch. */
static void test_names_of_a_prefix_are_told(void **state)
{
    struct fixture *f = *state;
    node_bucket(f, "");
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(mkdir(arena_printf(f->arena, "%s/%s", f->origin, i ? "in" : "out"), 0755), 0);
    origin_write(f, "in/k", "x");
    origin_write(f, "out/k", "x");
    struct object_session *other = object_session_new(f->service, WIRE_VIA_API);
    struct wire_watch_names_req req = {.bucket = SLICE_LIT("data"), .prefix = SLICE_LIT("in/")};
    struct wire_watch_names_rep own, watch;
    struct wire_remove_req remove = {.bucket = req.bucket};
    struct wire_remove_rep removed;
    assert_int_equal(object_watch_names(f->session, &req, f->arena, &own, NULL), 0);
    assert_int_equal(object_watch_names(other, &req, f->arena, &watch, NULL), 0);
    remove.key = SLICE_LIT("out/k");
    assert_int_equal(object_remove(f->session, &remove, f->arena, &removed, NULL), 0);
    assert_string_equal(names_told(watch.fd).text, "");
    remove.key = SLICE_LIT("in/k");
    assert_int_equal(object_remove(f->session, &remove, f->arena, &removed, NULL), 0);
    assert_string_equal(names_told(watch.fd).text, " in/k -in/k");
    assert_string_equal(names_told(own.fd).text, " in/k");
    close_object(f, own.handle);
    object_session_free(other);
}

/* A watch that is closed leaves no descriptor of its pipe open, neither here nor on the way of a request
 * through the wire's codec. (Seen to fail on that way, where WATCH_NAMES was forgotten.) */
static void test_a_closed_watch_leaves_no_descriptor(void **state)
{
    struct fixture *f = *state;
    node_bucket(f, "");
    struct wire_watch_req req = {.bucket = SLICE_LIT("data")};
    struct wire_watch_rep hashes;
    assert_int_equal(object_watch(f->session, &req, f->arena, &hashes, NULL), 0);
    struct wire_watch_names_rep names = watch_names(f);
    const struct {
        uint64_t handle;
        int fd;
    } watches[] = {{hashes.handle, hashes.fd}, {names.handle, names.fd}};
    for (size_t i = 0; i < ARRAY_SIZE(watches); i++) {
        struct stat before, after;
        assert_int_equal(fstat(watches[i].fd, &before), 0);
        close_object(f, watches[i].handle);
        bool is_open = fstat(watches[i].fd, &after) == 0; /* of another one, perhaps */
        assert_false(is_open && after.st_dev == before.st_dev && after.st_ino == before.st_ino);
    }
}

/* A session has so many watches, each a pipe of the node's, and no more: others go on to have descriptors.
 * Those that it closes make room. (Seen to take all that the process may have without has_many.) */
static void test_watches_of_a_session_are_bounded(void **state)
{
    struct fixture *f = *state;
    node_bucket(f, "");
    struct wire_watch_req req = {.bucket = SLICE_LIT("data")};
    struct wire_watch_rep first, rep;
    assert_int_equal(object_watch(f->session, &req, f->arena, &first, NULL), 0);
    int n = 1, r;
    while ((r = object_watch(f->session, &req, f->arena, &rep, NULL)) == 0 && n < 1000)
        n++;
    assert_int_equal(r, -EMFILE);
    assert_int_equal(n, 256);
    struct object_session *other = object_session_new(f->service, WIRE_VIA_MOUNT);
    assert_int_equal(object_watch(other, &req, f->arena, &rep, NULL), 0);
    object_session_free(other);
    close_object(f, first.handle);
    assert_int_equal(object_watch(f->session, &req, f->arena, &rep, NULL), 0);
}

/* Who signed in with keys gets no descriptor, and no watch either: its pipe would stay here, and there is no
 * bound to how many users there are. (Seen to fail where a watch took the right to read.) */
static void test_users_do_not_watch(void **state)
{
    struct fixture *f = *state;
    struct wire_user_create_req u = {
        .name = SLICE_LIT("reader"), .role = SLICE_LIT("reader"), .buckets = SLICE_LIT("*")};
    struct wire_user_create_rep made;
    node_bucket(f, "");
    assert_int_equal(object_user_create(f->session, &u, f->arena, &made, NULL), 0);
    struct object_session *s = object_session_new(f->service, WIRE_VIA_MOUNT);
    assert_int_equal(object_session_sign_in(s, made.access_key, NULL), 0);
    struct wire_list_req list = {.bucket = SLICE_LIT("data")};
    struct wire_list_rep listed;
    struct wire_watch_req watch = {.bucket = list.bucket};
    struct wire_watch_rep hashes;
    struct wire_watch_names_req watch_them = {.bucket = list.bucket};
    struct wire_watch_names_rep names;
    assert_int_equal(object_list(s, &list, f->arena, &listed, NULL), 0);
    assert_int_equal(object_watch(s, &watch, f->arena, &hashes, NULL), -EACCES);
    assert_int_equal(object_watch_names(s, &watch_them, f->arena, &names, NULL), -EACCES);
    object_session_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_who_watches_names_is_told_of_news, setup, teardown),
        cmocka_unit_test_setup_teardown(test_names_of_a_prefix_are_told, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_closed_watch_leaves_no_descriptor, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_closed_watch_leaves_no_descriptor, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(test_watches_of_a_session_are_bounded, setup, teardown),
        cmocka_unit_test_setup_teardown(test_users_do_not_watch, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
