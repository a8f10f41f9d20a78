/* layer: origin */
/* Listings of the file kind: names as deep as a key can be, and longer than any; links that cannot be
 * followed. */
#include "origin_file_common.h"

#include <pthread.h>
#include <sys/fsuid.h>

static void touch_in(int dir, char c, size_t n, bool is_dir)
{
    char name[256];
    memset(name, c, n);
    name[n] = '\0';
    if (is_dir) {
        assert_int_equal(mkdirat(dir, name, 0755), 0);
        return;
    }
    int fd = openat(dir, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    (void)close(fd);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define WORKER_STACK (8 * 256 * KIB) /* as server/front_workers.c has it */
#else
#define WORKER_STACK (256 * KIB)
#endif

static void *list_deep(void *arg)
{
    list_all("", 0, 1000, NULL, arg);
    return NULL;
}

/* A tree of as many directories as a key has room for is listed on the stack of a thread of the node. (With
 * `past` and what stat says on the stack of walk_dir it ends the program.) */
static void test_a_deep_tree_fits_a_small_stack(void **state)
{
    char key[ORIGIN_KEY_MAX_BYTES + 1] = "", path[ORIGIN_KEY_MAX_BYTES + 2];
    struct origin_attr attr;
    struct buf _cleanup_buf_ got = BUF_INIT(64 * KIB);
    pthread_attr_t small;
    pthread_t t;
    while (strlen(key) + 3 < sizeof(key))
        memcpy(key + strlen(key), "d/", 3);
    memcpy(key + strlen(key), "f", 2);
    assert_int_equal(put(key, 10, &attr), 0);
    assert_int_equal(pthread_attr_init(&small), 0);
    assert_int_equal(pthread_attr_setstacksize(&small, WORKER_STACK), 0);
    assert_int_equal(pthread_create(&t, &small, list_deep, &got), 0);
    assert_int_equal(pthread_join(t, NULL), 0);
    (void)pthread_attr_destroy(&small);
    (void)snprintf(path, sizeof(path), "%s\n", key);
    assert_string_equal(got.p, path);
}

/* For a job names that no key can have are listed as how they begin, in the order of all, once, whatever the
 * size of pages; nobody else sees them. (With them left out in `scan` the job takes the listing for whole.)
 */
static void test_names_longer_than_any_key(void **state)
{
    char dir[5 * 201 + 1] = "", wanted[5][ORIGIN_KEY_MAX_BYTES + 1];
    struct origin_attr attr;
    for (size_t i = 0; i < 5; i++) {
        memset(dir + strlen(dir), 'k', 200);
        dir[i * 201 + 200] = '/';
        dir[i * 201 + 201] = '\0';
    }
    assert_int_equal(put(dir, 0, &attr), 0);
    char *path = arena_printf(T.arena, "%s/%s", T.dir, dir);
    int _cleanup_close_ fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    size_t room = ORIGIN_KEY_MAX_BYTES - strlen(dir);
    assert_true(fd >= 0 && room < 30);
    touch_in(fd, 'a', room, false);
    touch_in(fd, 'b', room + 5, false);
    touch_in(fd, 'b', room + 9, false);
    touch_in(fd, 'c', room, true); /* with the slash behind it one byte too long */
    touch_in(fd, 'd', room + 3, true);
    touch_in(fd, 'e', 1, false);
    for (size_t i = 0; i < 5; i++) {
        size_t n = i == 4 ? 1 : room;
        memcpy(wanted[i], dir, sizeof(dir));
        memset(wanted[i] + strlen(dir), (int)('a' + i), n);
        wanted[i][strlen(dir) + n] = '\0';
    }
    for (unsigned size = 1; size <= 7; size++) {
        struct buf _cleanup_buf_ got = BUF_INIT(64 * KIB), want = BUF_INIT(64 * KIB);
        for (size_t i = 0; i < 5; i++)
            assert_int_equal(buf_printf(&want, "%s\n", wanted[i]), 0);
        tells_unfit = true;
        list_all("", 0, size, NULL, &got);
        assert_true(slice_eq(buf_view(&got), buf_view(&want)));
        tells_unfit = false;
        buf_clear(&got);
        buf_clear(&want);
        assert_int_equal(buf_printf(&want, "%s\n%s\n", wanted[0], wanted[4]), 0);
        list_all("", 0, size, NULL, &got);
        assert_true(slice_eq(buf_view(&got), buf_view(&want)));
    }
}

#define LONGEST 765 /* bytes: 255 characters of three, as vfat and NTFS have them */

static const struct sys *short_sys;
static union {
    struct dirent d;
    char room[offsetof(struct dirent, d_name) + LONGEST + 1];
} longest;

static int readdir_of_long_names(DIR *d, struct dirent **ret)
{
    int r = short_sys->readdir(d, ret);
    if (r == 0 && *ret && strcmp((*ret)->d_name, "L") == 0)
        *ret = &longest.d;
    return r;
}

/* Nor do those harm that are longer than NAME_MAX, as some file systems have them, however deep they lie.
 * (Seen to write behind `key` with room for NAME_MAX.) */
static void test_names_longer_than_any_of_unix(void **state)
{
    char dir[5 * 201 + 1] = "", wanted[ORIGIN_KEY_MAX_BYTES + 1];
    struct origin_attr attr;
    struct buf _cleanup_buf_ got = BUF_INIT(KIB * 8), want = BUF_INIT(KIB * 8);
    for (size_t i = 0; i < 5; i++) {
        memset(dir + i * 201, 'k', 200);
        dir[i * 201 + 200] = '/';
        dir[i * 201 + 201] = '\0';
    }
    assert_int_equal(put(dir, 0, &attr), 0);
    int _cleanup_close_ fd =
        open(arena_printf(T.arena, "%s/%s", T.dir, dir), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    touch_in(fd, 'L', 1, false);
    touch_in(fd, 'e', 1, false);
    longest.d.d_type = DT_REG;
    memset(longest.room + offsetof(struct dirent, d_name), 'L', LONGEST);
    memset(wanted, 'L', ORIGIN_KEY_MAX_BYTES);
    memcpy(wanted, dir, strlen(dir));
    wanted[ORIGIN_KEY_MAX_BYTES] = '\0';
    assert_int_equal(buf_printf(&want, "%s\n%se\n", wanted, dir), 0);
    struct sys of_long_names = *sys;
    short_sys = sys;
    of_long_names.readdir = readdir_of_long_names;
    sys = &of_long_names;
    tells_unfit = true;
    list_all("", 0, 10, NULL, &got);
    tells_unfit = false;
    sys = short_sys;
    assert_true(slice_eq(buf_view(&got), buf_view(&want)));
}

/* A link that leads nowhere, or out, is nothing; one whose target cannot be looked at fails the listing, as a
 * file does: a shorter listing would look whole, and `sync --delete` removes what it lacks. (Seen to fail
 * with any error of a link's stat as "nothing".) */
static void test_links_that_cannot_be_followed(void **state)
{
    char out[128], name[300];
    struct origin_attr attr;
    struct buf _cleanup_buf_ got = BUF_INIT(KIB);
    struct origin_list l = {.max = 10, .delimiter = '/'};
    struct origin_page page;
    assert_int_equal(put("shut/f", 1, &attr), 0);
    assert_int_equal(put("z", 1, &attr), 0);
    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    (void)snprintf(out, sizeof(out), "%s/shut/f", T.dir); /* as an absolute path it leads out */
    assert_int_equal(symlink(out, path_of("out")), 0);
    assert_int_equal(symlink("no such file", path_of("nowhere")), 0);
    assert_int_equal(symlink("itself", path_of("itself")), 0);
    assert_int_equal(symlink(name, path_of("no name")), 0);
    assert_int_equal(symlink("z/f", path_of("through a file")), 0);
    assert_int_equal(chmod(path_of("shut"), 0), 0);
    assert_int_equal(chmod(T.dir, 0755), 0);
    bool root = geteuid() == 0;
    if (root) /* looks at everything: another user does it */
        (void)setfsuid(65534);
    list_all("", '/', 10, NULL, &got);
    int link = symlink("shut/f", path_of("link")), r = 0;
    if (link < 0 && root) { /* the other user may not make it */
        (void)setfsuid(0);
        link = symlink("shut/f", path_of("link"));
        (void)setfsuid(65534);
    }
    r = origin_list(T.origin, &l, T.arena, &page, &T.err);
    if (root)
        (void)setfsuid(0);
    assert_string_equal(got.p, "shut/ P\nz\n");
    assert_int_equal(link, 0);
    assert_int_equal(r, ERR_ORIGIN_DENIED);
    assert_non_null(strstr(T.err.text, "link"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_deep_tree_fits_a_small_stack),
        TEST(test_names_longer_than_any_key),
        TEST(test_names_longer_than_any_of_unix),
        TEST(test_links_that_cannot_be_followed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
