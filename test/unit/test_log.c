/* layer: base */
#include "base/log.h"

#include "base/sys.h"
#include "support/clock_sys.h"
#include "support/tmpdir.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <string.h>

#include <cmocka.h>

/* What goes to stderr between _begin and _end. */
struct capture {
    char *dir, *path;
    int saved;
};

static struct capture capture_begin(void)
{
    struct capture c;
    c.dir = tmpdir_new();
    c.path = tmpdir_path(c.dir, "stderr");
    c.saved = dup(STDERR_FILENO);
    int fd = open(c.path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && c.saved >= 0);
    assert_int_equal(dup2(fd, STDERR_FILENO), STDERR_FILENO);
    (void)close(fd);
    return c;
}

static char *capture_end(struct capture *c)
{
    char *text = NULL;
    size_t n;
    assert_int_equal(dup2(c->saved, STDERR_FILENO), STDERR_FILENO);
    (void)close(c->saved);
    assert_int_equal(sys_read_file(c->path, 1 << 24, &text, &n), 0);
    free(c->path);
    tmpdir_free(c->dir);
    return text;
}

/* Before anything sets it, the level is that of FOREBAY_LOG. Must run first: the variable is read once. */
static void level_from_environment(void **state)
{
    assert_true(log_enabled(LOG_LEVEL_WARN));
    assert_false(log_enabled(LOG_LEVEL_INFO));
}

/* A line has time, level, area and text, and errno is as it was. */
static void form_of_a_line(void **state)
{
    clock_sys_start(0, (uint64_t)1769903999 * 1000000000 + 123000000);
    log_set_level(LOG_LEVEL_DEBUG);
    struct capture c = capture_begin();
    errno = EDOM;
    log_info("store", "disk %s: %d blocks failed their check", "/d1", 3);
    assert_int_equal(errno, EDOM);
    log_error("kv", "x");
    _cleanup_free_ char *text = capture_end(&c);
    clock_sys_stop();
    assert_string_equal(text, "2026-01-31T23:59:59.123Z info  store: disk /d1: 3 blocks failed their check\n"
                              "2026-01-31T23:59:59.123Z error kv: x\n");
}

/* Each level lets itself and what is graver through. */
static void levels(void **state)
{
    for (int level = LOG_LEVEL_ERROR; level <= LOG_LEVEL_DEBUG; level++) {
        log_set_level((enum log_level)level);
        struct capture c = capture_begin();
        log_error("a", "e");
        log_warn("a", "w");
        log_info("a", "i");
        log_debug("a", "d");
        _cleanup_free_ char *text = capture_end(&c);
        int lines = 0;
        for (char *p = text; *p; p++)
            lines += *p == '\n';
        assert_int_equal(lines, level + 1);
    }
}

/* Control characters cannot forge lines or reach a terminal, U+009B, which is ESC [ in one, neither; UTF-8
 * passes. */
static void control_characters(void **state)
{
    log_set_level(LOG_LEVEL_INFO);
    struct capture c = capture_begin();
    log_info("s3", "%s", "a\nb\x1b[31m\x7f\tc \xc2\x9b\x33\x31m\xc2\xa0\xc3\xa9");
    _cleanup_free_ char *text = capture_end(&c);
    assert_non_null(strstr(text, " info  s3: a?b?[31m??c ??31m\xc2\xa0\xc3\xa9\n"));
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
}

/* A text without end is cut, and still one line. */
static void long_lines_are_cut(void **state)
{
    _cleanup_free_ char *word = malloc(100000);
    memset(word, 'x', 99999);
    word[99999] = '\0';
    struct capture c = capture_begin();
    log_info("a", "%s", word);
    _cleanup_free_ char *text = capture_end(&c);
    assert_in_range(strlen(text), 1000, 4096);
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
}

static void *log_many(void *arg)
{
    for (int i = 0; i < 500; i++)
        log_info("thread", "%s", (char *)arg);
    return NULL;
}

/* Lines of several threads do not mix. */
static void threads_do_not_mix(void **state)
{
    static char words[2][64];
    pthread_t t[2];
    struct capture c = capture_begin();
    for (int i = 0; i < 2; i++) {
        memset(words[i], 'a' + i, sizeof(words[i]) - 1);
        assert_int_equal(pthread_create(&t[i], NULL, log_many, words[i]), 0);
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_join(t[i], NULL), 0);
    _cleanup_free_ char *text = capture_end(&c);
    int lines = 0;
    for (char *save = NULL, *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *word = strstr(line, "thread: ");
        assert_non_null(word);
        assert_true(strcmp(word + 8, words[0]) == 0 || strcmp(word + 8, words[1]) == 0);
        lines++;
    }
    assert_int_equal(lines, 1000);
}

/* Names of levels are read exactly. */
static void level_names(void **state)
{
    enum log_level level = LOG_LEVEL_ERROR;
    assert_int_equal(log_parse_level("debug", &level), 0);
    assert_int_equal(level, LOG_LEVEL_DEBUG);
    assert_int_equal(log_parse_level("Info", &level), -EINVAL);
    assert_int_equal(log_parse_level("", &level), -EINVAL);
    assert_int_equal(level, LOG_LEVEL_DEBUG);
}

int main(void)
{
    (void)setenv("FOREBAY_LOG", "warn", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(level_from_environment),
        cmocka_unit_test(form_of_a_line),
        cmocka_unit_test(levels),
        cmocka_unit_test(control_characters),
        cmocka_unit_test(long_lines_are_cut),
        cmocka_unit_test(threads_do_not_mix),
        cmocka_unit_test(level_names),
    };
    return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}
