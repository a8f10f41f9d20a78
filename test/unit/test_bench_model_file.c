/* layer: namespace */
/* Making a model: its file is the source of this test, because commands are in no library. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/bench_model_file.c"
#include "support/tmpdir.h"

#define PIECES  3
#define TENSORS 7
#define BYTES   (PIECES * PIECE_BYTES)

static unsigned looks, interrupted_at; /* 0: never */

bool bench_interrupted(void)
{
    return ++looks == interrupted_at;
}

static bool is_there(const char *path)
{
    struct stat st;
    return sys->stat(path, &st) == 0;
}

/* Interrupted before any of its pieces, nothing is left of a file, and that is what is told; the next one is
 * made whole. */
static void nothing_is_left_of_what_was_interrupted(void **state)
{
    (void)state;
    _cleanup_tmpdir_ char *dir = tmpdir_new();
    _cleanup_free_ char *path = tmpdir_path(dir, "m"), *part = tmpdir_path(dir, "m.part");
    for (unsigned at = 1; at <= PIECES; at++) {
        struct err e = {0};
        looks = 0;
        interrupted_at = at;
        assert_int_equal(model_file_make(path, BYTES, TENSORS, /* seed= */ 1, &e), -EINTR);
        assert_string_equal(e.text, "interrupted");
        assert_false(is_there(path) || is_there(part));
    }
    interrupted_at = 0;
    assert_int_equal(model_file_make(path, BYTES, TENSORS, /* seed= */ 1, NULL), 0);
    assert_true(is_there(path) && !is_there(part));
    struct model_file f;
    assert_int_equal(model_file_open(path, &f, NULL), 0);
    assert_true(f.ours && f.n == TENSORS && f.bytes == f.data_offset + BYTES);
    model_file_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_is_left_of_what_was_interrupted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
