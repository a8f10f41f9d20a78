/* layer: base */
#include "base/err.h"

#include <limits.h>
#include <setjmp.h>
#include <string.h>

#include <cmocka.h>

/* The text, the code and the place are kept, and the code is given back. */
static void set_fills_everything(void **state)
{
    struct err e = {0};
    int r = err_set(&e, ERR_CORRUPT, "disk %s: block %d", "/d1", 3);
    int line = __LINE__ - 1;
    assert_int_equal(r, ERR_CORRUPT);
    assert_int_equal(e.code, ERR_CORRUPT);
    assert_string_equal(e.text, "disk /d1: block 3");
    assert_int_equal(e.line, line);
    assert_non_null(strstr(e.file, "test_err.c"));
}

/* Without a struct err all functions only pass the code on. */
static void null_is_accepted(void **state)
{
    assert_int_equal(err_set(NULL, -EIO, "x"), -EIO);
    assert_int_equal(err_errno(NULL, -EIO, "x"), -EIO);
    assert_int_equal(err_prefix(NULL, -EIO, "x"), -EIO);
}

/* err_errno ends with the code's own text, whether it comes from errno or from the table. */
static void errno_text_is_appended(void **state)
{
    struct err e = {0};
    (void)err_errno(&e, -ENOENT, "open %s", "x");
    assert_string_equal(e.text, "open x: No such file or directory");
    (void)err_errno(&e, ERR_ORIGIN_BUSY, "get");
    assert_string_equal(e.text, "get: the origin asked to slow down");
}

/* Prefixes pile up from the left and leave code and place alone. */
static void prefixes_pile_up(void **state)
{
    struct err e = {0};
    int r = err_set(&e, ERR_ORIGIN_DENIED, "403 AccessDenied");
    r = err_prefix(&e, r, "origin %s", "s3://x");
    r = err_prefix(&e, r, "open bucket %s", "data");
    assert_int_equal(r, ERR_ORIGIN_DENIED);
    assert_int_equal(e.code, ERR_ORIGIN_DENIED);
    assert_string_equal(e.text, "open bucket data: origin s3://x: 403 AccessDenied");
}

/* A prefix on an error that nobody described still says what the code means. */
static void prefix_of_nothing_uses_the_code(void **state)
{
    struct err e = {0};
    assert_int_equal(err_prefix(&e, -ENOSPC, "fill"), -ENOSPC);
    assert_int_equal(e.code, -ENOSPC);
    assert_string_equal(e.text, "fill: No space left on device");
}

/* Texts that are too long are cut, never overrun, at every length around the limit. */
static void long_texts_are_cut(void **state)
{
    char word[ERR_TEXT_MAX + 8];
    for (size_t n = ERR_TEXT_MAX - 8; n < sizeof(word); n++) {
        struct err e = {0};
        memset(word, 'a', n);
        word[n - 1] = '\0';
        (void)err_set(&e, -EIO, "%s", word);
        assert_int_equal(strlen(e.text), MIN(n - 1, (size_t)ERR_TEXT_MAX - 1));
        (void)err_prefix(&e, -EIO, "p");
        assert_int_equal(strncmp(e.text, "p: aaaa", 7), 0);
        assert_int_equal(strlen(e.text), MIN(n + 2, (size_t)ERR_TEXT_MAX - 1));
        (void)err_prefix(&e, -EIO, "%s", word);
        assert_int_equal(strncmp(e.text, word, 77), 0);
        assert_int_equal(strncmp(e.text + 77, "...: p: aaaa", 12), 0);
        (void)err_errno(&e, -EIO, "%s", word);
        assert_int_equal(strncmp(e.text, word, 77), 0);
        assert_int_equal(strlen(e.text), ERR_TEXT_MAX - 1);
    }
}

/* However long the name of something is, what was wrong with it stands at the end. (Cut at the end it was the
 * name alone.) */
static void reasons_are_kept(void **state)
{
    char word[2 * ERR_TEXT_MAX];
    for (size_t n = ERR_TEXT_MAX - 40; n < sizeof(word); n++) {
        struct err e = {0};
        memset(word, 'a', n);
        word[n - 1] = '\0';
        (void)err_errno(&e, -ENAMETOOLONG, "%s", word);
        assert_non_null(strstr(e.text, ": File name too long"));
        e = (struct err){0};
        (void)err_set(&e, -EINVAL, "no good");
        (void)err_prefix(&e, -EINVAL, "%s", word);
        assert_string_equal(e.text + strlen(e.text) - 9, ": no good");
        (void)err_prefix(&e, -EINVAL, "bucket %s", "b");
        assert_int_equal(strncmp(e.text, "bucket b: aaa", 13), 0);
    }
}

/* Every code of the table has its own value, name, text and an HTTP status; no value is an errno. */
static void table_is_sound(void **state)
{
    static const int codes[] = {
#define X(name, value, http, text) ERR_##name,
        ERR_TABLE(X)
#undef X
    };
    for (size_t i = 0; i < ARRAY_SIZE(codes); i++) {
        assert_true(codes[i] <= -4096);
        assert_string_not_equal(err_name(codes[i]), "UNKNOWN");
        assert_string_not_equal(err_text(codes[i]), "unknown error");
        assert_in_range(err_http_status(codes[i]), 300, 599);
        for (size_t j = 0; j < i; j++)
            assert_int_not_equal(codes[i], codes[j]);
    }
}

/* The statuses that clients act upon. */
static void http_statuses(void **state)
{
    static const struct {
        int code, http;
    } rows[] = {{0, 200},
                {-ENOENT, 404},
                {-EACCES, 403},
                {-EPERM, 403},
                {-EEXIST, 409},
                {-EINVAL, 400},
                {-ENAMETOOLONG, 400},
                {-ENOSPC, 507},
                {-EDQUOT, 507},
                {-ETIMEDOUT, 504},
                {-ENOTEMPTY, 409},
                {-EIO, 500},
                {-99999, 500},
                {ERR_RANGE, 416},
                {ERR_PRECONDITION, 412},
                {ERR_NOT_MODIFIED, 304},
                {ERR_NO_BUCKET, 404}};
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        assert_int_equal(err_http_status(rows[i].code), rows[i].http);
}

/* Names and texts exist for anything that may arrive. */
static void names_and_texts(void **state)
{
    assert_string_equal(err_name(-ENOENT), "ENOENT");
    assert_string_equal(err_name(ERR_CORRUPT), "CORRUPT");
    assert_string_equal(err_name(0), "OK");
    assert_string_equal(err_name(-77777), "UNKNOWN");
    assert_string_equal(err_name(INT_MIN), "UNKNOWN"); /* as a peer may say: it has no positive counterpart */
    assert_string_equal(err_text(INT_MIN), err_text(-77777));
    assert_string_equal(err_name(5), "UNKNOWN");
    assert_string_equal(err_text(-77777), "unknown error");
    assert_string_equal(err_text(INT32_MAX), "unknown error");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(set_fills_everything),
        cmocka_unit_test(null_is_accepted),
        cmocka_unit_test(errno_text_is_appended),
        cmocka_unit_test(prefixes_pile_up),
        cmocka_unit_test(prefix_of_nothing_uses_the_code),
        cmocka_unit_test(long_texts_are_cut),
        cmocka_unit_test(reasons_are_kept),
        cmocka_unit_test(table_is_sound),
        cmocka_unit_test(http_statuses),
        cmocka_unit_test(names_and_texts),
    };
    return cmocka_run_group_tests_name("err", tests, NULL, NULL);
}
