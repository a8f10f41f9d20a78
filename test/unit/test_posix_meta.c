/* layer: net */
/* The lines that keep mode, owner and time: byte for byte what others write and read. */
#include "net/posix_meta.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>

#include <cmocka.h>

static void assert_slice(struct slice got, const char *want)
{
    if (!slice_eq_str(got, want))
        fail_msg("got \"" SLICE_FMT "\"", SLICE_ARG(got));
}

static struct posix_meta decode(const char *lines, bool is_dir)
{
    struct posix_meta p;
    posix_meta_decode(slice_str(lines), is_dir, &p);
    return p;
}

/* The four lines are exactly these: a change of them would orphan what was written before. */
static void golden(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = BUF_INIT(POSIX_META_MAX_BYTES);
    struct posix_meta p = {POSIX_HAS_ALL, S_IFREG | 0640, 1000, 0, 1602255624000000007ull};
    assert_int_equal(posix_meta_encode(&p, &b), 0);
    assert_slice(buf_view(&b), "x-amz-meta-mode: 33184\nx-amz-meta-uid: 1000\nx-amz-meta-gid: 0\n"
                               "x-amz-meta-mtime: 1602255624.000000007\n");
    struct posix_meta back;
    posix_meta_decode(buf_view(&b), false, &back);
    assert_int_equal(back.has, POSIX_HAS_ALL);
    assert_int_equal(back.mode, p.mode);
    assert_int_equal(back.uid, p.uid);
    assert_int_equal(back.gid, p.gid);
    assert_int_equal(back.mtime_ns, p.mtime_ns);
}

/* The longest values fit into what is said to be enough. */
static void the_longest_fits(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = BUF_INIT(POSIX_META_MAX_BYTES);
    struct posix_meta p = {POSIX_HAS_ALL, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT64_MAX};
    assert_int_equal(posix_meta_encode(&p, &b), 0);
}

/* Modes as s3fs (decimal), rclone (octal without a mark) and others (octal with a 0, permissions alone) have
 * them. */
static void modes_of_others(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool is_dir;
        uint32_t mode; /* 0: not one */
    } cases[] = {
        {"33188", false, S_IFREG | 0644},
        {"0100644", false, S_IFREG | 0644},
        {"100644", false, S_IFREG | 0644},
        {"41471", false, S_IFLNK | 0777},
        {"120777", false, S_IFLNK | 0777},
        {"420", false, S_IFREG | 0644},
        {"0644", false, S_IFREG | 0644},
        {"16877", true, S_IFDIR | 0755},
        {"40755", true, S_IFDIR | 0755},
        {"41777", true, S_IFDIR | 01777},
        {"493", true, S_IFDIR | 0755},
        {"4480", false, S_IFREG | 0600},
        {"0", false, S_IFREG},
        {"", false, 0},
        {"-1", false, 0},
        {"rw-r--r--", false, 0},
        {"99999999999", false, 0},
        {"77777", false, 0},
        {"16877", false, 0},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char line[128];
        (void)snprintf(line, sizeof(line), "x-amz-meta-mode: %s\n", cases[i].text);
        struct posix_meta p = decode(line, cases[i].is_dir);
        if (p.mode != cases[i].mode)
            fail_msg("%s: %o", cases[i].text, p.mode);
        assert_int_equal(p.has, cases[i].mode ? POSIX_HAS_MODE : 0);
    }
}

/* Times with and without digits behind the point; what is no time is not there. */
static void times_of_others(void **state)
{
    (void)state;
    assert_int_equal(decode("x-amz-meta-mtime: 5\n", false).mtime_ns, 5000000000ull);
    assert_int_equal(decode("x-amz-meta-mtime: 5.5", false).mtime_ns, 5500000000ull);
    assert_int_equal(decode("x-amz-meta-mtime: 5.1234567899\n", false).mtime_ns, 5123456789ull);
    static const char *const bad[] = {"", "x", "5.x", "-5", "99999999999", "2020-01-01T00:00:00Z"};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        char line[128];
        (void)snprintf(line, sizeof(line), "x-amz-meta-mtime: %s\n", bad[i]);
        assert_int_equal(decode(line, false).has, 0);
    }
}

/* Owners are numbers below the one that means nobody; other lines, broken ones, and second ones do not count.
 */
static void the_rest_is_left_alone(void **state)
{
    (void)state;
    struct posix_meta p =
        decode("x-amz-meta-uid: 4294967295\nx-amz-meta-gid: 7\nx-amz-meta-gid: 8\nnonsense\n: 1\n"
               "x-amz-meta-modes: 33188\ncache-control: no\n",
               false);
    assert_int_equal(p.has, POSIX_HAS_GID);
    assert_int_equal(p.gid, 7);
}

/* Merging replaces the lines that are given and keeps all others in their order. */
static void merging(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = BUF_INIT(KIB);
    assert_int_equal(posix_meta_merge(SLICE_LIT("x-amz-meta-a: 1\nx-amz-meta-uid: 5\nx-amz-meta-mode: 33188"),
                                      SLICE_LIT("x-amz-meta-uid: 6\nx-amz-meta-gid: 7\n"), &b),
                     0);
    assert_slice(buf_view(&b),
                 "x-amz-meta-a: 1\nx-amz-meta-mode: 33188\nx-amz-meta-uid: 6\nx-amz-meta-gid: 7\n");
    buf_clear(&b);
    assert_int_equal(posix_meta_merge(SLICE_NULL, SLICE_NULL, &b), 0);
    assert_int_equal(b.n, 0);
    _cleanup_buf_ struct buf small = BUF_INIT(8);
    assert_true(posix_meta_merge(SLICE_LIT("x-amz-meta-a: 1\n"), SLICE_NULL, &small) < 0);
}

/* Without the four names everything else is left, also what only looks like them, and no more than that. */
static void what_is_left_without_the_four_names(void **state)
{
    (void)state;
    _cleanup_buf_ struct buf b = BUF_INIT(KIB);
    assert_int_equal(posix_meta_rest(SLICE_LIT("x-amz-meta-mode: 33188\nx-amz-meta-a: 1\nx-amz-meta-uid:5\n"
                                               "x-amz-meta-gid: \nx-amz-meta-modes: 1\nx-amz-meta-mtime: 7"),
                                     &b),
                     0);
    assert_slice(buf_view(&b), "x-amz-meta-a: 1\nx-amz-meta-modes: 1\n");
    buf_clear(&b);
    assert_int_equal(posix_meta_rest(SLICE_LIT("nonsense"), &b), 0);
    assert_slice(buf_view(&b), "nonsense\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden),
        cmocka_unit_test(the_longest_fits),
        cmocka_unit_test(modes_of_others),
        cmocka_unit_test(times_of_others),
        cmocka_unit_test(the_rest_is_left_alone),
        cmocka_unit_test(merging),
        cmocka_unit_test(what_is_left_without_the_four_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
