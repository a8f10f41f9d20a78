/* layer: server */
/* The data directory: made private, locked against a second node, with an identity and credentials that stay.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/sys.h"
#include "server/data_dir.h"
#include "support/fault_sys.h"
#include "support/tmpdir.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

static char *read_text(const char *dir, const char *name)
{
    _cleanup_free_ char *path = tmpdir_path(dir, name);
    char *p = NULL;
    size_t n = 0;
    return sys_read_file(path, 4096, &p, &n) < 0 ? NULL : p;
}

static void write_text(const char *dir, const char *name, const char *text)
{
    _cleanup_free_ char *path = tmpdir_path(dir, name);
    assert_int_equal(sys_write_file_atomic(path, text, strlen(text), 0600), 0);
}

static mode_t mode_of(const char *dir, const char *name)
{
    _cleanup_free_ char *path = tmpdir_path(dir, name);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return st.st_mode & 0777;
}

/* The first start makes everything, privately; the second finds the same node id and credentials. */
static void the_first_start_makes_what_the_second_finds(void **state)
{
    char *_cleanup_tmpdir_ top = tmpdir_new();
    _cleanup_free_ char *dir = tmpdir_path(top, "new/data");
    struct data_dir first, second;
    struct err e = {0};
    assert_int_equal(data_dir_open(dir, &first, &e), 0);
    assert_int_equal(strlen(first.access_key), DATA_DIR_ACCESS_KEY_LEN);
    assert_int_equal(strlen(first.secret_key), DATA_DIR_SECRET_KEY_LEN);
    assert_int_equal(strlen(first.node_id), 32);
    assert_int_equal(mode_of(dir, ""), 0700);
    assert_int_equal(mode_of(dir, "credentials"), 0600);
    _cleanup_free_ char *text = read_text(dir, "credentials");
    char want[256];
    snprintf(want, sizeof(want), "FOREBAY_ACCESS_KEY=%s\nFOREBAY_SECRET_KEY=%s\n", first.access_key,
             first.secret_key);
    assert_string_equal(text, want);
    char access[64], node[64];
    strcpy(access, first.access_key);
    strcpy(node, first.node_id);
    data_dir_close(&first);
    assert_int_equal(data_dir_open(dir, &second, &e), 0);
    assert_string_equal(second.access_key, access);
    assert_string_equal(second.node_id, node);
    data_dir_close(&second);
}

/* Two directories get different credentials and ids. */
static void no_two_nodes_are_alike(void **state)
{
    char *_cleanup_tmpdir_ a = tmpdir_new(), *_cleanup_tmpdir_ b = tmpdir_new();
    struct data_dir one, two;
    struct err e = {0};
    assert_int_equal(data_dir_open(a, &one, &e), 0);
    assert_int_equal(data_dir_open(b, &two, &e), 0);
    assert_string_not_equal(one.secret_key, two.secret_key);
    assert_string_not_equal(one.node_id, two.node_id);
    data_dir_close(&one);
    data_dir_close(&two);
}

/* A second process is refused and told who holds the directory; when the holder dies, however, the way is
 * free. */
static void one_process_per_directory(void **state)
{
    char *_cleanup_tmpdir_ dir = tmpdir_new();
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t holder = fork();
    if (holder == 0) {
        struct data_dir d;
        if (data_dir_open(dir, &d, NULL) == 0)
            (void)!write(ready[1], "x", 1);
        for (;;)
            pause();
    }
    char c;
    assert_int_equal(read(ready[0], &c, 1), 1);
    struct data_dir d;
    struct err e = {0};
    assert_int_equal(data_dir_open(dir, &d, &e), -EBUSY);
    char pid[32];
    snprintf(pid, sizeof(pid), "process %d (", (int)holder);
    assert_non_null(strstr(e.text, pid));
    assert_non_null(strstr(e.text, "test_server_data_dir")); /* its command */
    assert_non_null(strstr(e.text, dir));
    assert_int_equal(kill(holder, SIGKILL), 0);
    assert_int_equal(waitpid(holder, NULL, 0), holder);
    assert_int_equal(data_dir_open(dir, &d, &e), 0);
    data_dir_close(&d);
    (void)close(ready[0]);
    (void)close(ready[1]);
}

/* Credentials that a person wrote are taken, with comments and blanks; broken ones are an error that names
 * the file and the line, and are not replaced. */
static void reads_credentials_that_a_person_wrote(void **state)
{
    static const struct {
        const char *text;
        const char *error; /* NULL: fine */
    } cases[] = {
        {"# mine\n\n FOREBAY_ACCESS_KEY = me \nFOREBAY_SECRET_KEY=s=cret\n", NULL},
        {"FOREBAY_ACCESS_KEY=me\n", "FOREBAY_SECRET_KEY is missing"},
        {"FOREBAY_SECRET_KEY=x\n", "FOREBAY_ACCESS_KEY is missing"},
        {"", "is missing"},
        {"FOREBAY_ACCESS_KEY=me\nFOREBAY_SECRET=x\n", "line 2"},
        {"FOREBAY_ACCESS_KEY=me\nFOREBAY_ACCESS_KEY=me\n", "line 2"},
        {"FOREBAY_ACCESS_KEY=\n", "line 1"},
        {"garbage\n", "line 1"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char *_cleanup_tmpdir_ dir = tmpdir_new();
        struct data_dir d;
        struct err e = {0};
        write_text(dir, "credentials", cases[i].text);
        int k = data_dir_open(dir, &d, &e);
        assert_int_equal(k, cases[i].error ? -EINVAL : 0);
        if (k == 0) {
            assert_string_equal(d.access_key, "me");
            assert_string_equal(d.secret_key, "s=cret");
            data_dir_close(&d);
            continue;
        }
        assert_non_null(strstr(e.text, "credentials"));
        assert_non_null(strstr(e.text, cases[i].error));
        _cleanup_free_ char *kept = read_text(dir, "credentials");
        assert_string_equal(kept, cases[i].text);
    }
}

/* A node id that is no id is an error that names the file. */
static void refuses_a_broken_node_id(void **state)
{
    char *_cleanup_tmpdir_ dir = tmpdir_new();
    struct data_dir d;
    struct err e = {0};
    write_text(dir, "node-id", "xyz\n");
    assert_int_equal(data_dir_open(dir, &d, &e), -EINVAL);
    assert_non_null(strstr(e.text, "node-id"));
}

static void free_names(char **names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(names[i]);
    free(names);
}

/* The disks of a start are found again by whoever knows the directory: without --disk the one in it, wherever
 * it was moved to, else the given ones in their order, made absolute. The file is the documented text. */
static void notes_the_disks_of_a_start(void **state)
{
    char *_cleanup_tmpdir_ top = tmpdir_new();
    _cleanup_free_ char *dir = tmpdir_path(top, "data"), *a = tmpdir_path(top, "a b"),
                        *moved = tmpdir_path(top, "moved");
    _cleanup_free_ char *cache = tmpdir_path(moved, "cache"), *indirect = tmpdir_path(top, "data/../a b/");
    char *given[] = {indirect, top}, **found = NULL;
    size_t n = 0;
    struct data_dir d;
    struct err e = {0};
    assert_int_equal(data_dir_open(dir, &d, &e), 0);
    assert_int_equal(data_dir_noted_disks(dir, &found, &n, &e), -ENOENT);
    assert_int_equal(mkdir(a, 0700), 0);
    assert_int_equal(data_dir_note_disks(&d, given, 2, &e), 0);
    _cleanup_free_ char *text = read_text(dir, "disks");
    char want[512];
    snprintf(want, sizeof(want), "forebay-disks 1\n%s\n%s\n", a, top);
    assert_string_equal(text, want);
    assert_int_equal(data_dir_noted_disks(dir, &found, &n, &e), 0);
    assert_int_equal(n, 2);
    assert_string_equal(found[0], a);
    assert_string_equal(found[1], top);
    free_names(found, n);
    assert_int_equal(data_dir_note_disks(&d, NULL, 0, &e), 0);
    data_dir_close(&d);
    assert_int_equal(rename(dir, moved), 0);
    _cleanup_free_ char *own = read_text(moved, "disks");
    assert_string_equal(own, "forebay-disks 1\ncache\n");
    assert_int_equal(data_dir_noted_disks(moved, &found, &n, &e), 0);
    assert_int_equal(n, 1);
    assert_string_equal(found[0], cache);
    free_names(found, n);
}

/* Where the last start had a disk and there is an empty directory now, a drive is not mounted: nothing is
 * made there. What is gone altogether, as a directory on such a drive, is made anew only where the disks have
 * nothing that is nowhere else; what is not known, or was given up by hand, is in any case. */
static void an_empty_directory_is_no_disk(void **state)
{
    struct data_dir d;
    struct err e = {0};
    char *_cleanup_tmpdir_ dir = tmpdir_new();
    _cleanup_free_ char *a = tmpdir_path(dir, "a"), *b = tmpdir_path(dir, "b");
    _cleanup_free_ char *data = tmpdir_path(dir, "data"), *mark = tmpdir_path(a, "forebay-disk");
    char *const given[] = {a, b};
    assert_int_equal(data_dir_open(data, &d, &e), 0);
    assert_int_equal(mkdir(a, 0700), 0);
    assert_int_equal(mkdir(b, 0700), 0);
    assert_int_equal(data_dir_expect_disks(&d, given, 2, /* has_hard= */ true, &e), 0); /* a first start */
    assert_int_equal(data_dir_note_disks(&d, given, 1, &e), 0);
    assert_int_equal(data_dir_expect_disks(&d, given + 1, 1, /* has_hard= */ true, &e), 0); /* another one */
    for (int has_hard = 0; has_hard < 2; has_hard++) {
        assert_int_equal(data_dir_expect_disks(&d, given, 2, has_hard, &e), -ENODEV);
        assert_non_null(strstr(e.text, a));
        assert_non_null(strstr(e.text, d.disks_path));
    }
    assert_int_equal(sys_write_file_atomic(mark, "x", 1, 0600), 0);
    assert_int_equal(data_dir_expect_disks(&d, given, 2, /* has_hard= */ true, &e), 0);
    assert_int_equal(unlink(mark), 0);
    assert_int_equal(rmdir(a), 0);
    assert_int_equal(data_dir_expect_disks(&d, given, 2, /* has_hard= */ true, &e), -ENODEV);
    assert_int_equal(data_dir_expect_disks(&d, given, 2, /* has_hard= */ false, &e), 0);
    _cleanup_free_ char *slashed = tmpdir_path(dir, "./a//"), *below = tmpdir_path(dir, "b/on/a/drive");
    char *const others[] = {slashed, below};
    assert_int_equal(data_dir_expect_disks(&d, others, 1, /* has_hard= */ true, &e), -ENODEV);
    assert_int_equal(data_dir_expect_disks(&d, others + 1, 1, /* has_hard= */ true, &e), 0);
    assert_int_equal(mkdir(a, 0700), 0);
    assert_int_equal(sys_write_file_atomic(d.disks_path, "forebay-disks 1\n", 16, 0644), 0);
    assert_int_equal(data_dir_expect_disks(&d, given, 2, /* has_hard= */ true, &e), 0);
    /* The one in the data directory. */
    assert_int_equal(data_dir_note_disks(&d, NULL, 0, &e), 0);
    assert_int_equal(data_dir_expect_disks(&d, NULL, 0, /* has_hard= */ false, &e), 0);
    assert_int_equal(data_dir_expect_disks(&d, NULL, 0, /* has_hard= */ true, &e), -ENODEV);
    assert_int_equal(mkdir(d.cache_path, 0700), 0);
    assert_int_equal(data_dir_expect_disks(&d, NULL, 0, /* has_hard= */ true, &e), -ENODEV);
    data_dir_close(&d);
}

/* What is no list of disks is an error that names the file; a directory that cannot stand in one is refused
 * when it is noted. */
static void refuses_a_broken_list_of_disks(void **state)
{
    static const struct {
        struct slice text;
        int error;
    } cases[] = {
        {SLICE_LIT(""), -EINVAL},
        {SLICE_LIT("forebay-disks 1"), -EINVAL},
        {SLICE_LIT("forebay-disks 1\n"), -EINVAL},
        {SLICE_LIT("forebay-disks 1\n/half"), -EINVAL},
        {SLICE_LIT("forebay-disks 1\n/a\0b\n"), -EINVAL},
        {SLICE_LIT("forebay-disks\n/a\n"), -EINVAL},
        {SLICE_LIT("forebay-disks 2\n/a\n"), -EPROTONOSUPPORT},
    };
    char *_cleanup_tmpdir_ dir = tmpdir_new();
    _cleanup_free_ char *path = tmpdir_path(dir, "disks"), *odd = tmpdir_path(dir, "a\nb");
    char **found = NULL;
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct err e = {0};
        assert_int_equal(sys_write_file_atomic(path, cases[i].text.p, cases[i].text.n, 0600), 0);
        assert_int_equal(data_dir_noted_disks(dir, &found, &n, &e), cases[i].error);
        assert_non_null(strstr(e.text, path));
    }
    struct data_dir d;
    struct err e = {0};
    assert_int_equal(data_dir_open(dir, &d, &e), 0);
    assert_int_equal(mkdir(odd, 0700), 0);
    assert_int_equal(data_dir_note_disks(&d, &odd, 1, &e), ERR_BAD_OPTION);
    data_dir_close(&d);
}

/* Whichever system call fails while disks are noted: it is reported, and the file names the old ones or the
 * new ones. */
static void disks_are_noted_whole_or_not_at_all(void **state)
{
    char *_cleanup_tmpdir_ dir = tmpdir_new();
    struct data_dir d;
    struct err e = {0};
    char root[] = "/", *given[] = {root};
    assert_int_equal(data_dir_open(dir, &d, &e), 0);
    fault_sys_start();
    for (uint64_t n = 1;; n++) {
        assert_int_equal(data_dir_note_disks(&d, NULL, 0, &e), 0);
        fault_sys_arm(FAULT_ALL, n, EIO, FAULT_ONCE);
        int k = data_dir_note_disks(&d, given, 1, &e);
        bool hit = fault_sys_hit();
        fault_sys_disarm();
        _cleanup_free_ char *text = read_text(dir, "disks");
        bool is_new = strcmp(text, "forebay-disks 1\n/\n") == 0;
        assert_true(is_new || strcmp(text, "forebay-disks 1\ncache\n") == 0);
        assert_true(k == 0 ? is_new : hit);
        if (!hit)
            break;
    }
    fault_sys_stop();
    data_dir_close(&d);
}

/* Whichever system call fails during the first start: it is reported with a text, nothing stays locked, and
 * the next start succeeds with whole files. */
static void every_failing_call_is_reported(void **state)
{
    fault_sys_start();
    for (uint64_t n = 1;; n++) {
        char *_cleanup_tmpdir_ dir = tmpdir_new();
        struct data_dir d = {.lock_fd = -1};
        struct err e = {0};
        fault_sys_arm(FAULT_ALL, n, EIO, FAULT_ONCE);
        int k = data_dir_open(dir, &d, &e);
        bool hit = fault_sys_hit();
        fault_sys_disarm();
        if (k < 0)
            assert_true(hit && e.text[0] != '\0');
        else
            data_dir_close(&d);
        assert_int_equal(data_dir_open(dir, &d, &e), 0);
        assert_int_equal(strlen(d.secret_key), DATA_DIR_SECRET_KEY_LEN);
        data_dir_close(&d);
        if (!hit)
            break;
    }
    fault_sys_stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_start_makes_what_the_second_finds),
        cmocka_unit_test(no_two_nodes_are_alike),
        cmocka_unit_test(one_process_per_directory),
        cmocka_unit_test(reads_credentials_that_a_person_wrote),
        cmocka_unit_test(refuses_a_broken_node_id),
        cmocka_unit_test(notes_the_disks_of_a_start),
        cmocka_unit_test(an_empty_directory_is_no_disk),
        cmocka_unit_test(refuses_a_broken_list_of_disks),
        cmocka_unit_test(disks_are_noted_whole_or_not_at_all),
        cmocka_unit_test(every_failing_call_is_reported),
    };
    return cmocka_run_group_tests_name("server_data_dir", tests, NULL, NULL);
}
