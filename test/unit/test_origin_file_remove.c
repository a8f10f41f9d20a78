/* layer: origin */
/*
 * The file kind: removals and replacements of one version, while somebody else puts other files in its place.
 */
#include "origin_file_common.h"

#include "base/hash.h"

#include <dirent.h>
#include <inttypes.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define TMP_PREFIX ".forebay-tmp-"
#define TMP(digit) TMP_PREFIX "0123456789abcdef0123456789abcde" digit

static uint64_t later_s;

static uint64_t later_ns(void)
{
    return sys_real.real_ns() + later_s * 1000000000;
}

/* The keys that a listing gives so much later. */
static void list_later(uint64_t s, struct buf *ret)
{
    static struct sys later;
    struct origin_page page;
    struct origin_list l = {.max = 100};
    later = sys_real;
    later.real_ns = later_ns;
    later_s = s;
    sys = &later;
    assert_int_equal(origin_list(T.origin, &l, T.arena, &page, &T.err), 0);
    sys = &sys_real;
    buf_clear(ret);
    assert_int_equal(buf_str(ret, ""), 0);
    for (size_t i = 0; i < page.n; i++)
        assert_int_equal(buf_printf(ret, SLICE_FMT "\n", SLICE_ARG(page.entries[i].key)), 0);
}

static struct {
    unsigned left[2]; /* looks at files, the directory first, until somebody else writes "second", "third"; 0:
                         never */
    const char *key;
} other;

/* Somebody else writes a new file and renames it over the key. */
static int fstat_and_a_write(int fd, struct stat *ret)
{
    static const char *const texts[] = {"second", "third"};
    int r = sys_real.fstat(fd, ret);
    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        if (other.left[i] == 0 || --other.left[i] > 0)
            continue;
        char from[4096];
        write_file("new", texts[i]);
        (void)snprintf(from, sizeof(from), "%s", path_of("new"));
        assert_int_equal(rename(from, path_of(other.key)), 0);
    }
    return r;
}

/* Removes the first version, or puts "abcdef" in its place, while others write. `any`: If-Match: * */
static int change_meanwhile(const char *key, bool replace, bool any, unsigned second, unsigned third)
{
    struct origin_attr attr, now;
    static struct sys table;
    assert_int_equal(put(key, 5, &attr), 0);
    struct origin_put p = {.key = slice_str(key), .if_match = any ? SLICE_LIT("*") : attr.etag};
    struct origin_body b = {.size_bytes = 6, .read = pattern};
    table = sys_real;
    table.fstat = fstat_and_a_write;
    other.key = key;
    other.left[0] = second;
    other.left[1] = third;
    sys = &table;
    int r = replace ? origin_put(T.origin, &p, &b, T.arena, &now, &T.err)
                    : origin_remove(T.origin, slice_str(key), attr.etag, &T.err);
    sys = &sys_real;
    return r;
}

static int remove_meanwhile(const char *key, unsigned second, unsigned third)
{
    return change_meanwhile(key, /* replace= */ false, /* any= */ false, second, third);
}

static int replace_meanwhile(const char *key, unsigned second, unsigned third)
{
    return change_meanwhile(key, /* replace= */ true, /* any= */ false, second, third);
}

static void expect_text(const char *key, const char *text)
{
    char got[16] = "";
    int fd = open(path_of(key), O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0 && read(fd, got, sizeof(got) - 1) >= 0);
    (void)close(fd);
    assert_string_equal(got, text);
}

/* The name in the directory that begins as reserved ones do; empty when there is none. */
static void find_reserved(char ret[256])
{
    DIR *d = opendir(T.dir);
    assert_non_null(d);
    ret[0] = '\0';
    for (struct dirent *x; (x = readdir(d));)
        if (strncmp(x->d_name, TMP_PREFIX, strlen(TMP_PREFIX)) == 0)
            (void)snprintf(ret, 256, "%s", x->d_name);
    (void)closedir(d);
}

/* At whatever moment of a removal of one version somebody puts another file in its place: that file stays,
 * under its name, and nothing is beside it. Also under the longest name. Mutation: remove_version unlinks
 * t->name. */
static void test_removal_spares_what_replaced_the_file(void **state)
{
    char longest[256], reserved[256];
    memset(longest, 'n', 255);
    longest[255] = '\0';
    const char *const keys[] = {"k", longest};
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
        for (unsigned n = 1;; n++) {
            int r = remove_meanwhile(keys[i], n, 0);
            find_reserved(reserved);
            assert_string_equal(reserved, "");
            if (other.left[0] > 0) {
                assert_int_equal(r, 0);
                assert_int_equal(access(path_of(keys[i]), F_OK), -1);
                assert_true(n > 2);
                break;
            }
            assert_true(r == 0 || r == ERR_PRECONDITION);
            expect_text(keys[i], "second");
            assert_int_equal(unlink(path_of(keys[i])), 0);
        }
    }
}

/* Replaced twice: the last one has the name. What was there in between, which nobody removed, stays beside
 * it, in no listing, and comes back when its name is free. */
static void test_removal_of_what_is_replaced_twice(void **state)
{
    char reserved[256], again[256];
    struct buf _cleanup_buf_ all = BUF_INIT(KIB);
    assert_int_equal(remove_meanwhile("k", 2, 3), ERR_PRECONDITION);
    expect_text("k", "third");
    find_reserved(reserved);
    assert_non_null(strstr(reserved, "-k"));
    expect_text(reserved, "second");
    list_later(25 * 3600, &all);
    assert_string_equal(all.p, "k\n");
    find_reserved(again);
    assert_string_equal(again, reserved);
    assert_int_equal(unlink(path_of("k")), 0);
    list_later(0, &all); /* whoever took it aside may be at it still */
    find_reserved(again);
    assert_string_equal(again, reserved);
    list_later(90, &all);
    expect_text("k", "second");
    find_reserved(again);
    assert_string_equal(again, "");
}

/* A removal that ended between taking the file aside and removing it is ended by a listing: it may have been
 * acknowledged since, by who found nothing under the name. */
static void test_removal_that_ended_halfway(void **state)
{
    struct buf _cleanup_buf_ all = BUF_INIT(KIB);
    struct origin_attr attr;
    char from[4096], aside[256];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(put("k 1", 5, &attr), 0);
        (void)snprintf(from, sizeof(from), "%s", path_of("k 1"));
        (void)snprintf(aside, sizeof(aside), TMP("0") "-%016" PRIx64 "-k 1",
                       hash_placement(attr.etag) ^ (uint64_t)i);
        assert_int_equal(rename(from, path_of(aside)), 0);
        list_later(0, &all);
        assert_int_equal(access(path_of(aside), F_OK), 0);
        list_later(90, &all);
        assert_int_equal(access(path_of(aside), F_OK), -1);
        assert_int_equal(access(path_of("k 1"), F_OK), i == 0 ? -1 : 0); /* another one comes back */
    }
}

/* At whatever moment of a PUT with If-Match somebody puts another file in the place of that version: that
 * file stays, under its name and whole, and nothing is beside it; the PUT is refused, or was before it. Also
 * under the longest name, whose directory a crash would leave to its name of a file being written. Mutation:
 * place calls place_over. */
static void test_replacement_spares_what_replaced_the_file(void **state)
{
    char longest[256], reserved[256];
    memset(longest, 'n', 255);
    longest[255] = '\0';
    const char *const keys[] = {"k", longest};
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
        unsigned refused = 0;
        for (unsigned n = 1;; n++) {
            int r = replace_meanwhile(keys[i], n, 0);
            find_reserved(reserved);
            assert_string_equal(reserved, "");
            if (other.left[0] > 0) {
                assert_int_equal(r, 0);
                expect_text(keys[i], "abcdef");
                assert_true(n > 3 && refused >= 2);
                break;
            }
            assert_true(r == 0 || r == ERR_PRECONDITION);
            refused += r != 0;
            expect_text(keys[i], "second");
            assert_int_equal(unlink(path_of(keys[i])), 0);
        }
    }
}

/* Replaced by others twice: before the new file gets its name, and before it is taken away again. The last
 * one stays, and nothing is beside it. (With one exchange in give_back the second one has the name.) */
static void test_replacement_of_what_is_replaced_twice(void **state)
{
    char reserved[256];
    unsigned last = 1;
    while (replace_meanwhile("k", last, 0) == ERR_PRECONDITION) /* the last moment before it gets its name */
        assert_true(last++ < 20);
    assert_true(last > 1);
    assert_int_equal(replace_meanwhile("k", last - 1, last), ERR_PRECONDITION);
    expect_text("k", "third");
    find_reserved(reserved);
    assert_string_equal(reserved, "");
}

/* If-Match: * replaces whatever is there, and makes nothing where nothing is, at the last moment too. */
static void test_replacement_of_any_version(void **state)
{
    char reserved[256];
    struct origin_attr attr;
    struct origin_put p = {.key = SLICE_LIT("k"), .if_match = SLICE_LIT("*")};
    struct origin_body b = {.size_bytes = 6, .read = pattern};
    assert_int_equal(change_meanwhile("k", true, true, 3, 0), 0);
    expect_text("k", "abcdef");
    assert_int_equal(unlink(path_of("k")), 0);
    assert_int_equal(origin_put(T.origin, &p, &b, T.arena, &attr, &T.err), ERR_PRECONDITION);
    assert_int_equal(access(path_of("k"), F_OK), -1);
    find_reserved(reserved);
    assert_string_equal(reserved, "");
}

/* A replacement that ended halfway is ended by a listing: the old file goes, and so does the new one before
 * it had its name, which nobody was told of; what somebody else wrote comes back. */
static void test_replacement_that_ended_halfway(void **state)
{
    struct buf _cleanup_buf_ all = BUF_INIT(KIB);
    struct origin_attr attr;
    char from[4096], aside[256];
    for (uint64_t i = 0; i < 3; i++) {
        assert_int_equal(put("k 1", 5, &attr), 0);
        uint64_t hash = hash_placement(attr.etag);
        (void)snprintf(from, sizeof(from), "%s", path_of("k 1"));
        (void)snprintf(aside, sizeof(aside), TMP("0") "-%016" PRIx64 "+%016" PRIx64 "-k 1",
                       hash ^ (i == 0 ? 0 : 1), hash ^ (i == 1 ? 0 : 2));
        assert_int_equal(rename(from, path_of(aside)), 0);
        list_later(0, &all);
        assert_int_equal(access(path_of(aside), F_OK), 0);
        list_later(90, &all);
        assert_int_equal(access(path_of(aside), F_OK), -1);
        assert_int_equal(access(path_of("k 1"), F_OK), i < 2 ? -1 : 0);
    }
}

/* Names that only look like those of files that were taken aside are left alone. */
static void test_no_files_taken_aside(void **state)
{
    static const char *const names[] = {TMP("0") "-",
                                        TMP("0") "-k",
                                        TMP("0") "-0123456789abcdef",
                                        TMP("0") "-0123456789abcdef-",
                                        TMP("0") "-0123456789abcdeg-k",
                                        TMP("0") "-0123456789abcdef0-k",
                                        TMP("0") "-0123456789abcdef+-k",
                                        TMP("0") "-0123456789abcdef+0123456789abcde-k",
                                        TMP("0") "-0123456789abcdef+0123456789abcdef",
                                        TMP("0") "+0123456789abcdef-k",
                                        TMP("0") "-0123456789abcdef-" TMP("1"),
                                        TMP("0") "x"
                                                 "k",
                                        TMP_PREFIX "away-0"};
    struct buf _cleanup_buf_ all = BUF_INIT(KIB);
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        write_file(names[i], "part");
    list_later(25 * 3600, &all);
    assert_true(all.n == 0 || all.p[0] == '\0');
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        assert_int_equal(access(path_of(names[i]), F_OK), 0);
}

static int no_readdir(DIR *d, struct dirent **ret)
{
    (void)d;
    *ret = NULL;
    return -EIO;
}

/* A directory that cannot be read is not told as removed, or as one in which something lies. (Seen to be.) */
static void test_a_directory_that_cannot_be_read(void **state)
{
    (void)state;
    static struct sys table;
    struct origin_attr attr;
    assert_int_equal(put("d/x", 5, &attr), 0);
    table = sys_real;
    table.readdir = no_readdir;
    sys = &table;
    int r = origin_remove(T.origin, SLICE_LIT("d/"), SLICE_NULL, &T.err);
    sys = &sys_real;
    assert_true(r < 0 && r != -ENOENT && r != -ENOTEMPTY);
    assert_int_equal(origin_remove(T.origin, SLICE_LIT("d/"), SLICE_NULL, &T.err), 0);
    assert_int_equal(access(path_of("d/x"), F_OK), 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

/* From now on this process lives on file systems as NFS is one: none exchanges files, nor renames without
 * replacing. False: that cannot be had here. */
static bool refuse_flags_of_renames(void)
{
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_renameat2, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[4])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog filter = {.len = ARRAY_SIZE(steps), .filter = steps};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) == 0;
}

static int put_if(const char *key, uint64_t size, struct slice if_match, struct origin_attr *ret)
{
    struct origin_put p = {.key = slice_str(key), .if_match = if_match, .if_none_match = if_match.n == 0};
    struct origin_body b = {.size_bytes = size, .read = pattern};
    return origin_put(T.origin, &p, &b, T.arena, ret, &T.err);
}

/* Where files cannot change places a write of one version replaces no other either, and one of a new file
 * none; what is refused leaves nothing behind. (Fails where place does not look at check_etag, which says
 * nothing where the exchange says it, too.) */
static void test_conditions_where_files_cannot_be_exchanged(void **state)
{
    (void)state;
    struct origin_attr one, two, none;
    char reserved[256];
    assert_int_equal(put_if("k", 3, SLICE_LIT("*"), &none), ERR_PRECONDITION);
    assert_int_equal(access(path_of("k"), F_OK), -1);
    assert_int_equal(put_if("k", 3, SLICE_NULL, &one), 0);
    assert_int_equal(put_if("k", 4, SLICE_NULL, &none), ERR_PRECONDITION);
    expect_text("k", "abc");
    assert_int_equal(put_if("k", 5, one.etag, &two), 0);
    expect_text("k", "abcde");
    assert_int_equal(put_if("k", 6, one.etag, &none), ERR_PRECONDITION);
    expect_text("k", "abcde");
    assert_int_equal(origin_remove(T.origin, SLICE_LIT("k"), one.etag, &T.err), ERR_PRECONDITION);
    expect_text("k", "abcde");
    find_reserved(reserved);
    assert_string_equal(reserved, "");
    assert_int_equal(origin_remove(T.origin, SLICE_LIT("k"), two.etag, &T.err), 0);
    assert_int_equal(access(path_of("k"), F_OK), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_removal_spares_what_replaced_the_file),
        TEST(test_removal_of_what_is_replaced_twice),
        TEST(test_removal_that_ended_halfway),
        TEST(test_replacement_spares_what_replaced_the_file),
        TEST(test_replacement_of_what_is_replaced_twice),
        TEST(test_replacement_of_any_version),
        TEST(test_replacement_that_ended_halfway),
        TEST(test_no_files_taken_aside),
        TEST(test_a_directory_that_cannot_be_read),
    };
    const struct CMUnitTest without_flags[] = {
        TEST(test_conditions_where_files_cannot_be_exchanged),
        TEST(test_removal_spares_what_replaced_the_file),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (!refuse_flags_of_renames()) {
        (void)fprintf(stderr, "not run: renames without flags (no seccomp here)\n");
        return failed;
    }
    return failed + cmocka_run_group_tests_name("without_flags", without_flags, NULL, NULL);
}
