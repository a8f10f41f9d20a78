/* layer: origin */
/* A directory as an origin whose files' own modes, owners, times and links are kept. */
#include "base/sys.h"
#include "net/posix_meta.h"
#include "origin/origin.h"
#include "support/tmpdir.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define NS 1600000003000000042ull

static struct {
    char *dir;
    struct origin *origin;
    struct arena *arena;
    struct err err;
} T;

static int setup(void **state)
{
    (void)state;
    struct origin_options o;
    T.dir = tmpdir_new();
    T.arena = arena_new(MIB);
    char *url = arena_printf(T.arena, "file://%s", T.dir);
    assert_int_equal(option_init(&origin_option_table, &o, &T.err), 0);
    assert_int_equal(origin_open(url, &o, "files", &T.origin, &T.err), 0);
    option_fini(&origin_option_table, &o);
    T.origin->posix = true;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    origin_close(T.origin);
    arena_free(T.arena);
    tmpdir_free(T.dir);
    return 0;
}

static const char *path_of(const char *key)
{
    return arena_printf(T.arena, "%s/%s", T.dir, key);
}

static ssize_t body_of(void *arg, void *p, size_t n, uint64_t offset)
{
    memcpy(p, (const char *)arg + offset, n);
    return (ssize_t)n;
}

static int put(const char *key, const char *text, const char *meta)
{
    struct origin_put p = {.key = slice_str(key), .meta = slice_str(meta)};
    struct origin_body b = {.size_bytes = strlen(text), .read = body_of, .arg = (void *)(uintptr_t)text};
    struct origin_attr attr;
    return origin_put(T.origin, &p, &b, T.arena, &attr, &T.err);
}

static int take(void *arg, const struct origin_attr *attr, const void *p, size_t n)
{
    (void)attr;
    return buf_append(arg, p, n);
}

static int get(const char *key, struct origin_attr *ret_attr, struct buf *ret)
{
    struct origin_get g = {.key = slice_str(key), .whole = true};
    return origin_get(T.origin, &g, T.arena, ret_attr, take, ret, &T.err);
}

static struct posix_meta meta_of(const char *key)
{
    _cleanup_buf_ struct buf b = BUF_INIT(64 * KIB);
    struct origin_attr attr = {0};
    struct posix_meta p;
    assert_int_equal(get(key, &attr, &b), 0);
    posix_meta_decode(attr.meta, slice_ends(slice_str(key), SLICE_LIT("/")), &p);
    return p;
}

static int set_meta(const char *key, const char *meta)
{
    _cleanup_buf_ struct buf b = BUF_INIT(64 * KIB);
    struct origin_attr attr = {0};
    int r = get(key, &attr, &b);
    if (r < 0)
        return r;
    struct origin_put p = {.key = slice_str(key), .meta = slice_str(meta), .if_match = attr.etag};
    return origin_set_meta(T.origin, &p, attr.size_bytes, T.arena, &attr, &T.err);
}

/* A put gives the file what its metadata says, and it is read back as the file's own. */
static void test_a_file_is_what_its_metadata_says(void **state)
{
    (void)state;
    struct stat st;
    assert_int_equal(put("d/f", "text", "x-amz-meta-mode: 33152\nx-amz-meta-mtime: 1600000003.000000042\n"),
                     0);
    assert_int_equal(stat(path_of("d/f"), &st), 0);
    assert_int_equal(st.st_mode, S_IFREG | 0600);
    struct posix_meta p = meta_of("d/f");
    assert_int_equal(p.has, POSIX_HAS_ALL);
    assert_true(p.mode == (S_IFREG | 0600) && p.uid == st.st_uid && p.gid == st.st_gid && p.mtime_ns == NS);
    assert_int_equal(put("e/", "", "x-amz-meta-mode: 16832\n"), 0);
    assert_int_equal(meta_of("e/").mode, S_IFDIR | 0700);
}

/* A link is made with its target, whatever that is; read, it is the target, and nothing that lies there. */
static void test_links_are_objects(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = BUF_INIT(64 * KIB);
    struct origin_attr attr = {0};
    struct stat st;
    assert_int_equal(put("target", "secret", ""), 0);
    assert_int_equal(put("l", "target", "x-amz-meta-mode: 41471\nx-amz-meta-mtime: 1600000003.000000042\n"),
                     0);
    assert_int_equal(put("away", "/etc/passwd", "x-amz-meta-mode: 41471\n"), 0);
    assert_int_equal(lstat(path_of("l"), &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(get("l", &attr, &b), 0);
    assert_true(slice_eq_str(buf_view(&b), "target") && attr.size_bytes == 6);
    assert_true(meta_of("l").mtime_ns == NS && S_ISLNK(meta_of("l").mode));
    buf_clear(&b);
    assert_int_equal(get("away", &attr, &b), 0);
    assert_true(slice_eq_str(buf_view(&b), "/etc/passwd"));
    struct origin_get part = {.key = SLICE_LIT("l"), .offset = 2, .n = 3};
    buf_clear(&b);
    assert_int_equal(origin_get(T.origin, &part, T.arena, &attr, take, &b, &T.err), 0);
    assert_true(slice_eq_str(buf_view(&b), "rge"));
    assert_int_equal(put("nul", "", "x-amz-meta-mode: 41471\n"), -ENAMETOOLONG);
    assert_int_equal(get("nul", &attr, &b), -ENOENT);
}

/* No path leads through a link: neither reading, nor writing, nor listing, nor removing. */
static void test_links_on_the_way_are_not_followed(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = BUF_INIT(64 * KIB);
    struct origin_attr attr = {0};
    struct origin_page page;
    assert_int_equal(put("d/f", "text", ""), 0);
    assert_int_equal(symlink("d", path_of("l")), 0);
    assert_true(get("l/f", &attr, &b) < 0 && b.n == 0);
    assert_true(put("l/new", "x", "") < 0);
    assert_int_equal(access(path_of("d/new"), F_OK), -1);
    assert_true(origin_remove(T.origin, SLICE_LIT("l/f"), SLICE_NULL, &T.err) < 0);
    assert_int_equal(access(path_of("d/f"), F_OK), 0);
    struct origin_list below = {.prefix = SLICE_LIT("l/"), .delimiter = '/', .max = 10};
    assert_int_equal(origin_list(T.origin, &below, T.arena, &page, &T.err), 0);
    assert_int_equal(page.n, 0);
    struct origin_list all = {.delimiter = '/', .max = 10};
    assert_int_equal(origin_list(T.origin, &all, T.arena, &page, &T.err), 0);
    assert_true(page.n == 2 && page.entries[0].is_prefix && slice_eq_str(page.entries[1].key, "l") &&
                !page.entries[1].is_prefix && page.entries[1].attr.size_bytes == 1);
    assert_int_equal(origin_remove(T.origin, SLICE_LIT("l"), SLICE_NULL, &T.err), 0);
    assert_int_equal(access(path_of("d/f"), F_OK), 0);
}

/* A change is of the file that was meant, of nothing but its attributes, and a copy carries them. */
static void test_changes_and_copies(void **state)
{
    (void)state;
    struct origin_attr attr = {0};
    struct stat st;
    assert_int_equal(put("f", "text", ""), 0);
    assert_int_equal(set_meta("f", "x-amz-meta-mode: 33216\nx-amz-meta-mtime: 1600000003.000000042\n"), 0);
    assert_true(meta_of("f").mode == (S_IFREG | 0700) && meta_of("f").mtime_ns == NS);
    struct origin_put other = {.key = SLICE_LIT("f"),
                               .meta = SLICE_LIT("x-amz-meta-mode: 33188\n"),
                               .if_match = SLICE_LIT("another")};
    assert_int_equal(origin_set_meta(T.origin, &other, 4, T.arena, &attr, &T.err), ERR_PRECONDITION);
    assert_int_equal(meta_of("f").mode, S_IFREG | 0700);
    assert_int_equal(
        origin_copy(T.origin, SLICE_LIT("f"), SLICE_LIT("g"), SLICE_NULL, T.arena, &attr, &T.err), 0);
    assert_true(meta_of("g").mode == (S_IFREG | 0700) && meta_of("g").mtime_ns == NS);
    assert_int_equal(symlink("nowhere", path_of("l")), 0);
    assert_int_equal(set_meta("l", "x-amz-meta-mtime: 1600000003.000000042\n"), 0);
    assert_int_equal(
        origin_copy(T.origin, SLICE_LIT("l"), SLICE_LIT("m"), SLICE_NULL, T.arena, &attr, &T.err), 0);
    assert_int_equal(lstat(path_of("m"), &st), 0);
    assert_true(S_ISLNK(st.st_mode) && meta_of("m").mtime_ns == NS);
    if (geteuid() == 0) {
        assert_int_equal(set_meta("l", "x-amz-meta-uid: 7\nx-amz-meta-gid: 8\n"), 0);
        assert_true(meta_of("l").uid == 7 && meta_of("l").gid == 8);
    }
}

/* Nobody makes a program that runs as another by what he writes: the bits are refused, left out, and end with
 * a change of the owner. */
static void test_privileges_are_not_given(void **state)
{
    (void)state;
    struct stat st;
    assert_int_equal(put("f", "text", "x-amz-meta-mode: 36333\n"), 0); /* 0106755 */
    assert_int_equal(meta_of("f").mode, S_IFREG | 0755);
    assert_int_equal(set_meta("f", "x-amz-meta-mode: 35309\n"), -EPERM); /* 04755 */
    assert_int_equal(meta_of("f").mode, S_IFREG | 0755);
    if (geteuid() != 0)
        return;
    assert_int_equal(chmod(path_of("f"), 04755), 0);
    assert_int_equal(set_meta("f", "x-amz-meta-mode: 35309\nx-amz-meta-uid: 7\n"), 0);
    assert_int_equal(stat(path_of("f"), &st), 0);
    assert_true(st.st_uid == 7 && (st.st_mode & 07777) == 0755);
}

/* Without the property links are followed as ever, and no metadata is told or taken. */
static void test_without_it(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = BUF_INIT(64 * KIB);
    struct origin_attr attr = {0};
    T.origin->posix = false;
    assert_int_equal(put("f", "text", "x-amz-meta-mode: 41471\n"), 0);
    assert_int_equal(symlink("f", path_of("l")), 0);
    assert_int_equal(get("l", &attr, &b), 0);
    assert_true(slice_eq_str(buf_view(&b), "text") && attr.meta.n == 0);
    assert_int_equal(set_meta("f", "x-amz-meta-mode: 33188\n"), ERR_NOT_IMPLEMENTED);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_a_file_is_what_its_metadata_says),  TEST(test_links_are_objects),
        TEST(test_links_on_the_way_are_not_followed), TEST(test_changes_and_copies),
        TEST(test_privileges_are_not_given),          TEST(test_without_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
