/* layer: namespace */
/* Sealed secrets: what comes out is what went in, and nothing else does; the key's file. */
#include "namespace/seal.h"

#include "base/sys.h"
#include "base/text.h"
#include "support/tmpdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>

#include <cmocka.h>

static const uint8_t key[SEAL_KEY_BYTES] = {1, 2, 3};

/* What was sealed is opened, also nothing at all, and never looks the same twice. */
static void test_round_trip(void **state)
{
    struct seal *_cleanup_(seal_freep) s = seal_new(key);
    static const char *const secrets[] = {"", "x", "a secret/with+signs", "\n\t\x01"};
    for (size_t i = 0; i < ARRAY_SIZE(secrets); i++) {
        _cleanup_buf_ struct buf one = BUF_INIT(4096), two = BUF_INIT(4096), out = BUF_INIT(4096);
        assert_int_equal(seal_wrap(s, SLICE_LIT("c"), slice_str(secrets[i]), &one), 0);
        assert_int_equal(seal_wrap(s, SLICE_LIT("c"), slice_str(secrets[i]), &two), 0);
        assert_false(slice_eq(buf_view(&one), buf_view(&two)));
        assert_int_equal(seal_unwrap(s, SLICE_LIT("c"), buf_view(&one), &out, NULL), 0);
        assert_true(slice_eq_str(buf_view(&out), secrets[i]));
    }
    _cleanup_buf_ struct buf small = BUF_INIT(10);
    assert_int_equal(seal_wrap(s, SLICE_LIT("c"), SLICE_LIT("x"), &small), -E2BIG);
}

/* A value in the form that is documented, sealed by another program with this key, is opened: the form does
 * not change. */
static void test_golden(void **state)
{
    static const char sealed[] = "AQABAgMEBQYHCAkKC+26v+SL5XMjrbPdVirypR2CkVSZZoGD";
    struct seal *_cleanup_(seal_freep) s = seal_new(key);
    _cleanup_buf_ struct buf out = BUF_INIT(4096);
    struct err e = {0};
    if (seal_unwrap(s, slice_of("data\0origin.secret_key", 22), slice_str(sealed), &out, &e) != 0)
        fail_msg("%s", e.text);
    assert_true(slice_eq_str(buf_view(&out), "hunter2"));
}

/* Any byte changed, another context, another key, a shorter text: refused, and nothing is given out. */
static void test_damage(void **state)
{
    static const uint8_t other_key[SEAL_KEY_BYTES] = {9};
    struct seal *_cleanup_(seal_freep) s = seal_new(key), *_cleanup_(seal_freep) other = seal_new(other_key);
    _cleanup_buf_ struct buf sealed = BUF_INIT(4096), bytes = BUF_INIT(4096), out = BUF_INIT(4096);
    assert_int_equal(seal_wrap(s, SLICE_LIT("c"), SLICE_LIT("secret"), &sealed), 0);
    assert_int_equal(seal_unwrap(other, SLICE_LIT("c"), buf_view(&sealed), &out, NULL), ERR_CORRUPT);
    assert_int_equal(seal_unwrap(s, SLICE_LIT("d"), buf_view(&sealed), &out, NULL), ERR_CORRUPT);
    assert_int_equal(text_unbase64(&bytes, buf_view(&sealed)), 0);
    for (size_t i = 0; i < bytes.n; i++) {
        _cleanup_buf_ struct buf bad = BUF_INIT(4096), shorter = BUF_INIT(4096);
        bytes.p[i] ^= 4;
        assert_int_equal(text_base64(&bad, buf_view(&bytes)), 0);
        bytes.p[i] ^= 4;
        assert_int_equal(seal_unwrap(s, SLICE_LIT("c"), buf_view(&bad), &out, NULL), ERR_CORRUPT);
        assert_int_equal(text_base64(&shorter, slice_sub(buf_view(&bytes), 0, i)), 0);
        assert_int_equal(seal_unwrap(s, SLICE_LIT("c"), buf_view(&shorter), &out, NULL), ERR_CORRUPT);
    }
    assert_int_equal(seal_unwrap(s, SLICE_LIT("c"), SLICE_LIT("no base64!"), &out, NULL), ERR_CORRUPT);
    assert_int_equal(out.n, 0);
}

/* The key's file is made once, for the node alone, and read again; a file that others may read, or that is
 * none, is refused. */
static void test_file(void **state)
{
    _cleanup_tmpdir_ char *dir = tmpdir_new();
    _cleanup_free_ char *path = tmpdir_path(dir, "secret-key");
    struct seal *one = NULL, *two = NULL, *none = NULL;
    struct stat st;
    struct err e = {0};
    _cleanup_buf_ struct buf sealed = BUF_INIT(4096), out = BUF_INIT(4096);
    assert_int_equal(seal_open(path, &one, &e), 0);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(st.st_size, 22 - 1 + 65);
    assert_int_equal(seal_open(path, &two, &e), 0);
    assert_int_equal(seal_wrap(one, SLICE_LIT("c"), SLICE_LIT("secret"), &sealed), 0);
    assert_int_equal(seal_unwrap(two, SLICE_LIT("c"), buf_view(&sealed), &out, &e), 0);
    assert_int_equal(chmod(path, 0640), 0);
    assert_int_equal(seal_open(path, &none, &e), -EINVAL);
    assert_non_null(strstr(e.text, "chmod 600"));
    assert_int_equal(sys_write_file_atomic(path, "nonsense\n", 9, 0600), 0);
    assert_int_equal(seal_open(path, &none, &e), -EINVAL);
    assert_true(strstr(e.text, path) && strstr(e.text, "restore"));
    seal_free(one);
    seal_free(two);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_round_trip), cmocka_unit_test(test_golden),
                                       cmocka_unit_test(test_damage), cmocka_unit_test(test_file)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
