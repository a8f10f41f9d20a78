/* layer: base */
#include "base/often.h"

#include "base/sys.h"
#include "support/clock_sys.h"
#include "support/tmpdir.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static size_t count_of(const char *text, const char *what)
{
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, what)); at += strlen(what))
        n++;
    return n;
}

static void request_fails(int i)
{
    errno = EDOM;
    log_often("s3", "request %d failed", i);
    assert_int_equal(errno, EDOM);
}

/* What goes to stderr while fn runs. */
static char *written_by(void (*fn)(void))
{
    char *dir = tmpdir_new(), *path = tmpdir_path(dir, "stderr"), *text = NULL;
    size_t n;
    int saved = dup(STDERR_FILENO), fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && saved >= 0);
    assert_int_equal(dup2(fd, STDERR_FILENO), STDERR_FILENO);
    (void)close(fd);
    fn();
    assert_int_equal(dup2(saved, STDERR_FILENO), STDERR_FILENO);
    (void)close(saved);
    assert_int_equal(sys_read_file(path, 1 << 24, &text, &n), 0);
    free(path);
    tmpdir_free(dir);
    return text;
}

static void a_fault_that_lasts(void)
{
    for (int i = 0; i < 10000; i++)
        request_fails(i);
    log_often("s3", "something else");
    log_often("wire", "request %d failed", 1);
    for (int i = 0; i < 20; i++) {
        clock_sys_advance(100000000);
        request_fails(20000 + i);
    }
    clock_sys_advance((uint64_t)200 * 1000000000);
    for (int i = 0; i < 99; i++)
        request_fails(30000);
}

/* Of lines of one kind a hundred are written at once, then one a second, which says how many were left out;
 * others have nothing to do with that. When it has been quiet for long enough all is as before. */
static void faults_that_last_are_told_now_and_then(void **state)
{
    clock_sys_start(0, (uint64_t)1769903999 * 1000000000);
    log_set_level(LOG_LEVEL_WARN);
    _cleanup_free_ char *text = written_by(a_fault_that_lasts);
    clock_sys_stop();
    assert_int_equal(count_of(text, " warn  s3: request "), 100 + 2 + 99);
    assert_int_equal(count_of(text, ": request 99 failed (many like it: from now on one a second)\n"), 1);
    assert_int_equal(count_of(text, ": request 20009 failed (9909 like it were left out)\n"), 1);
    assert_int_equal(count_of(text, ": request 20019 failed (9 like it were left out)\n"), 1);
    assert_int_equal(count_of(text, ": request 30000 failed\n"), 99);
    assert_int_equal(count_of(text, " warn  s3: something else\n"), 1);
    assert_int_equal(count_of(text, " warn  wire: request 1 failed\n"), 1);
    assert_int_equal(count_of(text, "\n"), 100 + 2 + 99 + 2);
}

static void nobody_looks(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    for (int i = 0; i < 1000; i++)
        log_often("x", "never %d", i);
    log_set_level(LOG_LEVEL_WARN);
    log_often("x", "never %d", 1000);
}

/* Where warnings are not written none is counted as left out. */
static void levels(void **state)
{
    _cleanup_free_ char *text = written_by(nobody_looks);
    assert_int_equal(count_of(text, "\n"), 1);
    assert_int_equal(count_of(text, " warn  x: never 1000\n"), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(faults_that_last_are_told_now_and_then),
        cmocka_unit_test(levels),
    };
    return cmocka_run_group_tests_name("often", tests, NULL, NULL);
}
