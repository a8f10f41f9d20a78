/* layer: base */
#include "base/config.h"

#include "base/sys.h"
#include "support/tmpdir.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define ARGV_MAX 16

/* config_load with a NULL-terminated list of arguments; also checks that it leaves argv as it was. */
static int load(struct config *c, struct err *e, ...)
{
    char *argv[ARGV_MAX], *before[ARGV_MAX];
    int argc = 0;
    va_list ap;
    va_start(ap, e);
    for (const char *arg; (arg = va_arg(ap, const char *));)
        argv[argc++] = slice_dup(slice_str(arg));
    va_end(ap);
    memcpy(before, argv, sizeof(argv[0]) * (size_t)argc);
    *e = (struct err){0};
    int r = config_load(c, argc, argv, e);
    for (int i = 0; i < argc; i++) {
        assert_ptr_equal(argv[i], before[i]);
        free(argv[i]);
    }
    return r;
}

/* Without anything but --data all defaults hold. */
static void defaults(void **state)
{
    struct config c;
    struct err e;
    assert_int_equal(load(&c, &e, "--data", "/d", NULL), 0);
    assert_string_equal(c.data, "/d");
    assert_int_equal(c.memory, 512 * MIB);
    assert_string_equal(c.listen, "127.0.0.1:7070");
    assert_string_equal(c.wire, "127.0.0.1:7071");
    assert_int_equal(c.disk.n, 0);
    assert_null(c.config);
    config_fini(&c);
}

/* The flag wins over the environment, the environment over the file, the file over the default; lists as a
 * whole. */
static void sources_in_their_order(void **state)
{
    _cleanup_tmpdir_ char *dir = tmpdir_new();
    _cleanup_free_ char *path = tmpdir_path(dir, "f.yaml");
    static const char text[] = "data: /file\nregion: file\nmemory: 1G\nthreads: 10\ndisk: [/f1, /f2, /f3]\n";
    struct config c;
    struct err e;
    assert_int_equal(sys_write_file_atomic(path, text, strlen(text), 0600), 0);
    (void)setenv("FOREBAY_REGION", "env", 1);
    (void)setenv("FOREBAY_MEMORY", "2G", 1);
    (void)setenv("FOREBAY_DISK", "/e1,/e2", 1);
    assert_int_equal(load(&c, &e, "--memory", "3G", "--config", path, NULL), 0);
    assert_string_equal(c.data, "/file");
    assert_string_equal(c.region, "env");
    assert_int_equal(c.memory, 3 * GIB);
    assert_int_equal(c.threads, 10);
    assert_int_equal(c.max_connections, 20000);
    assert_int_equal(c.disk.n, 2);
    assert_string_equal(c.disk.v[0], "/e1");
    config_fini(&c);
    (void)setenv("FOREBAY_CONFIG", path, 1);
    assert_int_equal(load(&c, &e, "--disk", "/flag", NULL), 0);
    assert_string_equal(c.data, "/file");
    assert_int_equal(c.disk.n, 1);
    assert_string_equal(c.disk.v[0], "/flag");
    config_fini(&c);
    (void)unsetenv("FOREBAY_CONFIG");
    (void)unsetenv("FOREBAY_REGION");
    (void)unsetenv("FOREBAY_MEMORY");
    (void)unsetenv("FOREBAY_DISK");
}

/* What is wrong is one line that names it, and leaves the config untouched. */
static void mistakes(void **state)
{
    static const struct {
        const char *arg[4], *text;
    } cases[] = {
        {{"--memory", "64K"}, "--memory 64K: below the minimum of 64MiB"},
        {{"--memroy", "1G"}, "unknown option --memroy (did you mean --memory?)"},
        {{"--region", "x"}, "--data: missing; name the directory for the control store and credentials"},
        {{"--data", ""}, "--data: missing; name the directory for the control store and credentials"},
        {{"--data", "/d", "extra"}, "unexpected argument extra"},
        {{"--data=/d", "--disk=/a:1G", "--disk=/a/"},
         "--disk /a: given twice; each disk needs a directory of its own"},
        {{"--data=/d", "--disk=/a:10Gb"},
         "--disk /a:10Gb: \"10Gb\" is not a size; write it as 100GiB or 1.5T, or end "
         "the directory's name with '/'"},
        {{"--data=/d", "--disk=/a:1M"}, "--disk /a:1M: size below the minimum of 4MiB"},
        {{"--data=/d", "--disk=:1G"}, "--disk :1G: the directory is missing; write DIR or DIR:SIZE"},
        {{"--data=/d", "--listen=localhost"}, "--listen localhost: the port is missing; write HOST:PORT"},
        {{"--data=/d", "--wire=:99999"}, "--wire :99999: the port must be a number from 0 to 65535"},
        {{"--data=/d", "--wire=127.0.0.1:7070"},
         "--wire 127.0.0.1:7070: the same address as --listen; each needs a port of its own"},
        {{"--data=/d", "--config=/nonexistent"}, "--config /nonexistent: No such file or directory"}};
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct config c, before;
        struct err e;
        memset(&c, 0x55, sizeof(c));
        before = c;
        int r = load(&c, &e, cases[i].arg[0], cases[i].arg[1], cases[i].arg[2], NULL);
        assert_int_equal(r, ERR_BAD_OPTION);
        assert_string_equal(e.text, cases[i].text);
        assert_memory_equal(&c, &before, sizeof(c));
    }
}

/* Mistakes in the file carry its name and line; a file cannot name a file. */
static void mistakes_in_the_file(void **state)
{
    static const char *const cases[][2] = {
        {"data: /d\nmemory: 64K\n", ":2: memory 64K: below the minimum of 64MiB"},
        {"data: /d\nmemroy: 1G\n", ":2: unknown option memroy (did you mean memory?)"},
        {"data: /d\nconfig: other.yaml\n", ": config: cannot be set in a file"}};
    _cleanup_tmpdir_ char *dir = tmpdir_new();
    _cleanup_free_ char *path = tmpdir_path(dir, "f.yaml");
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct config c;
        struct err e;
        assert_int_equal(sys_write_file_atomic(path, cases[i][0], strlen(cases[i][0]), 0600), 0);
        assert_int_equal(load(&c, &e, "--config", path, NULL), ERR_BAD_OPTION);
        assert_int_equal(strncmp(e.text, path, strlen(path)), 0);
        assert_string_equal(e.text + strlen(path), cases[i][1]);
    }
}

/* Ports of 0 are each the kernel's choice, so two of them do not clash. */
static void ports_of_the_kernel(void **state)
{
    struct config c;
    struct err e;
    assert_int_equal(load(&c, &e, "--data=/d", "--listen=127.0.0.1:0", "--wire=127.0.0.1:0", NULL), 0);
    config_fini(&c);
}

/* --help is passed on before anything else is complained about. */
static void help_is_passed_on(void **state)
{
    struct config c;
    struct err e;
    assert_int_equal(load(&c, &e, "--help", NULL), -ECANCELED);
}

/* A disk's size is what follows the last colon when it is one; other colons belong to the directory. */
static void disks(void **state)
{
    static const struct {
        const char *text, *path;
        uint64_t size;
    } rows[] = {{"/d", "/d", 0},
                {"/d/", "/d", 0},
                {"/", "/", 0},
                {"/d:100GiB", "/d", 100 * GIB},
                {"/d/:1.5T", "/d", 3 * TIB / 2},
                {"/a:b", "/a:b", 0},
                {"/a:b:4M", "/a:b", 4 * MIB},
                {"/a:1/b", "/a:1/b", 0},
                {"/a:10Gb/", "/a:10Gb", 0},
                {"/a:2026-01-01", "/a:2026-01-01", 0},
                {"/a:", "/a:", 0},
                {"/d:0", "/d", 0},
                {"rel/d:5000000", "rel/d", 5000000}};
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct config_disk d = {NULL, 1};
        assert_int_equal(config_parse_disk(rows[i].text, &d, NULL), 0);
        assert_string_equal(d.path, rows[i].path);
        assert_true(d.size_bytes == rows[i].size);
        free(d.path);
    }
    static const char *const bad[] = {"", ":1G", "/d:10Gb", "/d:5x", "/d:1K", "/d:99999999T"};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct config_disk d = {NULL, 77};
        struct err e = {0};
        assert_int_equal(config_parse_disk(bad[i], &d, &e), ERR_BAD_OPTION);
        assert_int_equal(strncmp(e.text, "disk ", 5), 0);
        assert_true(!d.path && d.size_bytes == 77);
    }
}

/* Addresses in their three forms, and nothing that is none. */
static void addresses(void **state)
{
    static const struct {
        const char *text, *host;
        uint16_t port;
    } rows[] = {{"127.0.0.1:7070", "127.0.0.1", 7070},
                {"[::1]:80", "::1", 80},
                {":0", "", 0},
                {"node-1.example:65535", "node-1.example", 65535}};
    static const char *const bad[] = {"",       "host",   "host:",    "host:x", "host:-1", "host:65536",
                                      "::1:80", "[::1]",  "[::1]80",  "[]:80",  "[::1:80", "a b:80",
                                      "a/b:80", "u@h:80", "host:80 ", "h[1]:80"};
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        _cleanup_free_ char *host = NULL;
        uint16_t port = 1;
        assert_int_equal(config_parse_hostport(rows[i].text, &host, &port, NULL), 0);
        assert_string_equal(host, rows[i].host);
        assert_int_equal(port, rows[i].port);
    }
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        char *host = NULL;
        uint16_t port = 77;
        struct err e = {0};
        assert_int_equal(config_parse_hostport(bad[i], &host, &port, &e), ERR_BAD_OPTION);
        assert_true(!host && port == 77 && strncmp(e.text, "address ", 8) == 0);
    }
}

/* Every row of the table has what the help, the file and the environment need. */
static void table_is_sound(void **state)
{
    for (size_t i = 0; i < config_table.n_rows; i++) {
        const struct option *row = &config_table.rows[i];
        assert_ptr_equal(option_find(&config_table, row->name), row);
        assert_true(row->doc && *row->doc);
        assert_true(row->type == OPTION_BOOL || (row->arg && *row->arg));
        assert_true(row->type != OPTION_ENUM || row->choices);
        for (const char *p = row->name; *p; p++)
            assert_true((*p >= 'a' && *p <= 'z') || *p == '-');
    }
}

struct changes {
    unsigned taken, kept;
    char last[256];
};

static void on_change(void *arg, const struct option *row, const char *from, const char *to)
{
    struct changes *c = arg;
    if (row->reloadable)
        c->taken++;
    else
        c->kept++;
    (void)snprintf(c->last, sizeof(c->last), "%s: %s -> %s", row->name, from, to);
}

/* Of another configuration only what may change without a restart is taken over; every difference is told. */
static void adopting_takes_what_may_change(void **state)
{
    struct config c, fresh;
    struct changes changes = {0};
    struct err e;
    assert_int_equal(load(&c, &e, "--data", "/d", "--idle-timeout", "5s", NULL), 0);
    assert_int_equal(load(&fresh, &e, "--data", "/d", "--idle-timeout", "7s", NULL), 0);
    config_adopt(&c, &fresh, on_change, &changes);
    assert_int_equal(c.idle_timeout, 7000);
    assert_int_equal(changes.taken, 1);
    assert_string_equal(changes.last, "idle-timeout: 5s -> 7s");
    config_fini(&fresh);
    changes = (struct changes){0};
    assert_int_equal(load(&fresh, &e, "--data", "/other", "--memory", "1G", "--disk", "/x", "--log-level",
                          "debug", "--idle-timeout", "7s", NULL),
                     0);
    config_adopt(&c, &fresh, on_change, &changes);
    assert_int_equal(changes.taken, 1);
    assert_int_equal(changes.kept, 3);
    assert_string_equal(c.data, "/d");
    assert_int_equal(c.memory, 512 * MIB);
    assert_int_equal(c.disk.n, 0);
    assert_int_equal(c.log_level, fresh.log_level);
    changes = (struct changes){0};
    config_fini(&fresh);
    assert_int_equal(load(&fresh, &e, "--data", "/d", "--idle-timeout", "7s", "--log-level", "debug", NULL),
                     0);
    config_adopt(&c, &fresh, on_change, &changes);
    assert_int_equal(changes.taken + changes.kept, 0);
    config_fini(&fresh);
    config_fini(&c);
}

/* What is not given any more is none again, and not the empty text: whoever asks whether there is TLS sees
 * the difference. */
static void adopting_takes_that_there_is_none(void **state)
{
    struct config c, fresh;
    struct changes changes = {0};
    struct err e;
    assert_int_equal(load(&c, &e, "--data", "/d", "--tls-cert", "/c", "--tls-key", "/k", NULL), 0);
    assert_int_equal(load(&fresh, &e, "--data", "/d", NULL), 0);
    config_adopt(&c, &fresh, on_change, &changes);
    assert_int_equal(changes.taken, 2);
    assert_null(c.tls_cert);
    assert_null(c.tls_key);
    config_fini(&fresh);
    config_fini(&c);
}

int main(void)
{
    (void)unsetenv("FOREBAY_CONFIG");
    (void)unsetenv("FOREBAY_DATA");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),
        cmocka_unit_test(sources_in_their_order),
        cmocka_unit_test(adopting_takes_what_may_change),
        cmocka_unit_test(adopting_takes_that_there_is_none),
        cmocka_unit_test(mistakes),
        cmocka_unit_test(mistakes_in_the_file),
        cmocka_unit_test(ports_of_the_kernel),
        cmocka_unit_test(help_is_passed_on),
        cmocka_unit_test(disks),
        cmocka_unit_test(addresses),
        cmocka_unit_test(table_is_sound),
    };
    return cmocka_run_group_tests_name("config", tests, NULL, NULL);
}
