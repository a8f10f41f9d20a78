/* layer: object */
/* threaded */
/* Watches of names: who is told of which keys. */
#include "net/wire_names.h"
#include "node_fixture.h"
#include "object/object_internal.h"

#include <fcntl.h>
#include <poll.h>

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    f->route = OBJECT_ROUTE_LOCAL;
    node_around(f);
    node_open(f);
    *state = f;
    return 0;
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

struct told {
    char text[4096]; /* " key" or " -key" of what is gone, of each record */
};

static void on_name(void *arg, struct slice key, uint32_t flags)
{
    struct told *t = arg;
    size_t n = strlen(t->text);
    (void)snprintf(t->text + n, sizeof(t->text) - n, " %s" SLICE_FMT, flags & WIRE_NAME_GONE ? "-" : "",
                   SLICE_ARG(key));
}

static struct told told_since(int fd)
{
    struct told t = {0};
    struct wire_names reader = {0};
    struct pollfd p = {.fd = fd, .events = POLLIN};
    uint64_t word;
    while (poll(&p, 1, 0) == 1) {
        assert_int_equal(read(fd, &word, sizeof(word)), sizeof(word));
        word = le64toh(word);
        assert_int_equal(wire_names_take(&reader, &word, 1, on_name, &t), 0);
    }
    return t;
}

/* Who watches names is told of versions that the node hears of, cached or not, and of what it hears to be
 * gone; not of what it hears for the first time, nor twice. (Mutation: is_news gives true, or false.) */
static void test_who_watches_names_is_told_of_news(void **state)
{
    struct fixture *f = *state;
    node_bucket(f, "validate=never\n");
    origin_write(f, "k", "first");
    origin_write(f, "other", "first");
    struct wire_watch_names_req req = {.bucket = SLICE_LIT("data")};
    struct wire_watch_names_rep watch;
    assert_int_equal(object_watch_names(f->session, &req, f->arena, &watch, NULL), 0);
    list_all(f);
    list_all(f);
    assert_string_equal(told_since(watch.fd).text, "");
    origin_write(f, "k", "the second");
    list_all(f);
    assert_string_equal(told_since(watch.fd).text, " k");
    list_all(f);
    assert_string_equal(told_since(watch.fd).text, "");
    struct wire_stat_req stat = {
        .bucket = req.bucket, .key = SLICE_LIT("k"), .flags = WIRE_FRESH | WIRE_POSIX};
    struct wire_stat_rep rep;
    assert_int_equal(unlink(arena_printf(f->arena, "%s/k", f->origin)), 0);
    assert_int_equal(object_stat(f->session, &stat, f->arena, &rep, NULL), -ENOENT);
    assert_string_equal(told_since(watch.fd).text, " -k");
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
    assert_string_equal(told_since(watch.fd).text, "");
    remove.key = SLICE_LIT("in/k");
    assert_int_equal(object_remove(f->session, &remove, f->arena, &removed, NULL), 0);
    assert_string_equal(told_since(watch.fd).text, " in/k -in/k");
    assert_string_equal(told_since(own.fd).text, " in/k");
    close_object(f, own.handle);
    object_session_free(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_who_watches_names_is_told_of_news, setup, teardown),
        cmocka_unit_test_setup_teardown(test_names_of_a_prefix_are_told, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
