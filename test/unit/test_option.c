/* layer: base */
#include "base/option.h"

#include "base/sys.h"
#include "support/fault_sys.h"
#include "support/tmpdir.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

struct opts {
    bool recursive;
    uint64_t threads, memory, timeout;
    char *name, *secret;
    struct option_list disk;
    int level;
    bool debug;
};

static const struct option rows[] = {
    {.name = "recursive",
     .short_flag = 'r',
     .type = OPTION_BOOL,
     .offset = offsetof(struct opts, recursive),
     .doc = "all below"},
    {.name = "threads",
     .short_flag = 't',
     .type = OPTION_UINT,
     .offset = offsetof(struct opts, threads),
     .def = "8",
     .min = 2,
     .max = 64,
     .arg = "N",
     .doc = "how many threads"},
    {.name = "memory",
     .type = OPTION_SIZE,
     .offset = offsetof(struct opts, memory),
     .def = "512MiB",
     .min = 64 * MIB,
     .arg = "SIZE",
     .doc = "most memory",
     .reloadable = true},
    {.name = "idle-timeout",
     .type = OPTION_DURATION,
     .offset = offsetof(struct opts, timeout),
     .def = "10m",
     .min = 500,
     .max = 86400000,
     .arg = "TIME",
     .doc = "idle limit"},
    {.name = "name",
     .type = OPTION_STRING,
     .offset = offsetof(struct opts, name),
     .arg = "NAME",
     .doc = "what it is called"},
    {.name = "origin.secret_key",
     .type = OPTION_STRING,
     .offset = offsetof(struct opts, secret),
     .arg = "KEY",
     .doc = "secret",
     .secret = true},
    {.name = "disk",
     .type = OPTION_LIST,
     .offset = offsetof(struct opts, disk),
     .arg = "DIR",
     .doc = "a directory; repeat for several"},
    {.name = "level",
     .type = OPTION_ENUM,
     .offset = offsetof(struct opts, level),
     .def = "info",
     .choices = "error|warn|info",
     .arg = "LEVEL",
     .doc = "how much"},
    {.name = "debug-internals",
     .type = OPTION_BOOL,
     .offset = offsetof(struct opts, debug),
     .doc = "for tests",
     .hidden = true},
};

static const struct option_table table = {rows, ARRAY_SIZE(rows), "TESTOPT_"};

static struct opts defaults(void)
{
    struct opts o;
    memset(&o, 0xff, sizeof(o)); /* whatever was there before counts for nothing */
    assert_int_equal(option_init(&table, &o, NULL), 0);
    return o;
}

static void set_ok(struct opts *o, const char *name, const char *value)
{
    assert_int_equal(option_set(&table, o, name, value, name, NULL), 0);
}

static void assert_get(const struct opts *o, const char *name, const char *value)
{
    _cleanup_buf_ struct buf b = BUF_INIT(1000);
    assert_int_equal(option_get(&table, o, name, &b), 0);
    assert_true(slice_eq_str(buf_view(&b), value));
}

/* Fields without a default are empty, the others hold it. */
static void defaults_are_filled(void **state)
{
    struct opts o = defaults();
    assert_false(o.recursive || o.debug);
    assert_int_equal(o.threads, 8);
    assert_int_equal(o.memory, 512 * MIB);
    assert_int_equal(o.timeout, 600000);
    assert_null(o.name);
    assert_int_equal(o.disk.n, 0);
    assert_int_equal(o.level, 2);
    option_fini(&table, &o);
}

/* A default that its own row refuses is reported, and nothing leaks. */
static void bad_default(void **state)
{
    static const struct option bad[] = {
        {.name = "name", .type = OPTION_STRING, .offset = offsetof(struct opts, name), .def = "x"},
        {.name = "threads",
         .type = OPTION_UINT,
         .offset = offsetof(struct opts, threads),
         .def = "1",
         .min = 2}};
    static const struct option_table bad_table = {bad, ARRAY_SIZE(bad), NULL};
    struct opts o;
    struct err e = {0};
    assert_int_equal(option_init(&bad_table, &o, &e), ERR_BAD_OPTION);
    assert_string_equal(e.text, "default: threads 1: below the minimum of 2");
}

/* Each type writes its field, and option_get gives back a text that option_set takes. */
static void values_read_back(void **state)
{
    static const char *const values[][3] = {{"recursive", "yes", "true"},
                                            {"recursive", "0", "false"},
                                            {"threads", "64", "64"},
                                            {"memory", "1.5G", "1536MiB"},
                                            {"memory", "67108865", "67108865"},
                                            {"idle-timeout", "90s", "90s"},
                                            {"idle-timeout", "500ms", "500ms"},
                                            {"idle-timeout", "24h", "1d"},
                                            {"idle-timeout", "1m30s", "90s"},
                                            {"name", "a b", "a b"},
                                            {"name", "", ""},
                                            {"level", "error", "error"},
                                            {"level", "info", "info"},
                                            {"origin.secret_key", "k", "k"}};
    struct opts o = defaults();
    for (size_t i = 0; i < ARRAY_SIZE(values); i++) {
        set_ok(&o, values[i][0], values[i][1]);
        assert_get(&o, values[i][0], values[i][2]);
        set_ok(&o, values[i][0], values[i][2]);
        assert_get(&o, values[i][0], values[i][2]);
    }
    assert_get(&o, "disk", "");
    set_ok(&o, "disk", "/a");
    set_ok(&o, "disk", "/b");
    assert_get(&o, "disk", "/a,/b");
    assert_int_equal(o.disk.n, 2);
    set_ok(&o, "name", o.name);
    option_fini(&table, &o);
    assert_null(o.name);
    option_fini(&table, &o);
}

/* What is refused says why in the form that people see, and changes nothing. */
static void refusals(void **state)
{
    static const char *const cases[][4] = {
        {"memory", "64K", "--memory", "--memory 64K: below the minimum of 64MiB"},
        {"memory", "lots", "--memory", "--memory lots: not a size; write it as 512MiB, 1.5G or 4096"},
        {"memory", "99999999999T", "--memory", "--memory 99999999999T: too large"},
        {"threads", "65", "TESTOPT_THREADS", "TESTOPT_THREADS 65: above the maximum of 64"},
        {"threads", "-3", "threads", "threads -3: not a whole number"},
        {"idle-timeout", "2d", "--idle-timeout", "--idle-timeout 2d: above the maximum of 1d"},
        {"idle-timeout", "1", "--idle-timeout", NULL},
        {"idle-timeout", "3ms", "--idle-timeout", "--idle-timeout 3ms: below the minimum of 500ms"},
        {"idle-timeout", "soon", "--idle-timeout",
         "--idle-timeout soon: not a time; write it as 500ms, 30s, 5m, 24h or 7d"},
        {"level", "loud", "--level", "--level loud: must be error, warn or info"},
        {"level", "", "--level", "--level : must be error, warn or info"},
        {"level", "err", "--level", "--level err: must be error, warn or info"},
        {"recursive", "maybe", "--recursive", "--recursive maybe: must be true or false"},
        {"memroy", "1", "--memroy", "unknown option --memroy (did you mean --memory?)"},
        {"origin.secretkey", "1", "origin.secretkey",
         "unknown option origin.secretkey (did you mean origin.secret_key?)"},
        {"idel-timeout", "1", "idel-timeout", "unknown option idel-timeout (did you mean idle-timeout?)"},
        {"debug-internal", "1", "--debug-internal", "unknown option --debug-internal"},
        {"zzz", "1", "--zzz", "unknown option --zzz"}};
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct opts o = defaults(), before = o;
        struct err e = {0};
        int r = option_set(&table, &o, cases[i][0], cases[i][1], cases[i][2], &e);
        assert_int_equal(r, cases[i][3] ? ERR_BAD_OPTION : 0);
        assert_string_equal(e.text, cases[i][3] ? cases[i][3] : "");
        if (r < 0)
            assert_memory_equal(&o, &before, sizeof(o));
        option_fini(&table, &o);
    }
}

/* A name of any length asks for no suggestion and does no harm. */
static void long_unknown_name(void **state)
{
    char name[300];
    struct opts o = defaults();
    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    assert_int_equal(option_set(&table, &o, name, "1", "x", NULL), ERR_BAD_OPTION);
    option_fini(&table, &o);
}

/* Values of secret rows do not get into messages. */
static void secrets_stay_out_of_messages(void **state)
{
    static const struct option secret[] = {
        {.name = "pin", .type = OPTION_UINT, .offset = offsetof(struct opts, threads), .secret = true}};
    static const struct option_table secret_table = {secret, 1, NULL};
    struct opts o;
    struct err e = {0};
    assert_int_equal(option_init(&secret_table, &o, NULL), 0);
    assert_int_equal(option_set(&secret_table, &o, "pin", "hunter2", "--pin", &e), ERR_BAD_OPTION);
    assert_string_equal(e.text, "--pin ***: not a whole number");
}

#define ARGS(...)                                                                                            \
    char *argv[] = {__VA_ARGS__};                                                                            \
    int argc = (int)ARRAY_SIZE(argv), operands = -1

/* Literals as argv; option_args moves the pointers and never writes through them. */
#define A(text) ((char[]){text})

/* Flags stand before, between and after operands, in every form; what remains are the operands in order. */
static void args_in_every_form(void **state)
{
    struct opts o = defaults();
    ARGS(A("one"), A("--memory"), A("1G"), A("-r"), A("two"), A("--idle-timeout=5s"), A("-t"), A("3"), A("-"),
         A("--name="), A("--disk"), A("/a"), A("--disk=/b"), A("--"), A("--threads"), A("-r"));
    assert_int_equal(option_args(&table, &o, argc, argv, &operands, NULL), 0);
    assert_int_equal(operands, 5);
    static const char *const want[] = {"one", "two", "-", "--threads", "-r"};
    for (int i = 0; i < operands; i++)
        assert_string_equal(argv[i], want[i]);
    assert_true(o.recursive);
    assert_int_equal(o.memory, GIB);
    assert_int_equal(o.timeout, 5000);
    assert_int_equal(o.threads, 3);
    assert_string_equal(o.name, "");
    assert_int_equal(o.disk.n, 2);
    option_fini(&table, &o);
}

/* Later flags win; --no-NAME and a value after = turn a bool off; a value attached to a short flag counts. */
static void args_that_repeat(void **state)
{
    struct opts o = defaults();
    ARGS(A("--memory=1G"), A("--memory=2G"), A("-r"), A("--no-recursive"), A("-t9"),
         A("--debug-internals=on"));
    assert_int_equal(option_args(&table, &o, argc, argv, &operands, NULL), 0);
    assert_int_equal(o.memory, 2 * GIB);
    assert_false(o.recursive);
    assert_true(o.debug);
    assert_int_equal(o.threads, 9);
    option_fini(&table, &o);
}

/* A list on the command line replaces the one of a weaker source as a whole. */
static void args_replace_lists(void **state)
{
    struct opts o = defaults();
    set_ok(&o, "disk", "/old1");
    set_ok(&o, "disk", "/old2");
    ARGS(A("--disk"), A("/a"), A("--disk"), A("/b"));
    assert_int_equal(option_args(&table, &o, argc, argv, &operands, NULL), 0);
    assert_get(&o, "disk", "/a,/b");
    option_fini(&table, &o);
}

/* Arguments that make no sense are named. */
static void args_refused(void **state)
{
    static const struct {
        const char *arg[2], *text;
    } cases[] = {{{"--memory", NULL}, "--memory: needs a value (SIZE)"},
                 {{"--memory", "--recursive"}, "--memory: needs a value (SIZE)"},
                 {{"-t", NULL}, "-t: needs a value (N)"},
                 {{"--memory=64K", NULL}, "--memory 64K: below the minimum of 64MiB"},
                 {{"--memroy", "1"}, "unknown option --memroy (did you mean --memory?)"},
                 {{"--no-memory", NULL}, "unknown option --no-memory (did you mean --memory?)"},
                 {{"--no-recursive=1", NULL}, "--no-recursive: takes no value"},
                 {{"--=x", NULL}, "unknown option --"},
                 {{"-x", NULL}, "unknown option -x"},
                 {{"-rt", NULL}, "unknown option -rt"},
                 {{"-t1", NULL}, "-t 1: below the minimum of 2"}};
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct opts o = defaults();
        struct err e = {0};
        char first[64], second[64], *argv[] = {first, second};
        int operands = -1;
        (void)snprintf(first, sizeof(first), "%s", cases[i].arg[0]);
        (void)snprintf(second, sizeof(second), "%s", cases[i].arg[1] ? cases[i].arg[1] : "");
        int r = option_args(&table, &o, cases[i].arg[1] ? 2 : 1, argv, &operands, &e);
        assert_int_equal(r, ERR_BAD_OPTION);
        assert_string_equal(e.text, cases[i].text);
        assert_int_equal(operands, -1);
        option_fini(&table, &o);
    }
}

/* --help and -h ask for help, unless they stand behind the end of the flags. */
static void args_help(void **state)
{
    struct opts o = defaults();
    ARGS(A("x"), A("--help"));
    assert_int_equal(option_args(&table, &o, argc, argv, &operands, NULL), -ECANCELED);
    char *short_help[] = {A("-h")}, *behind[] = {A("--"), A("--help")};
    assert_int_equal(option_args(&table, &o, 1, short_help, &operands, NULL), -ECANCELED);
    assert_int_equal(option_args(&table, &o, 2, behind, &operands, NULL), 0);
    assert_int_equal(operands, 1);
    assert_int_equal(option_args(&table, &o, 0, NULL, &operands, NULL), 0);
    assert_int_equal(operands, 0);
    option_fini(&table, &o);
}

/* Environment variables have the table's prefix, upper case and underscores; empty ones do not count. */
static void environment(void **state)
{
    struct opts o = defaults();
    struct err e = {0};
    set_ok(&o, "disk", "/old");
    (void)setenv("TESTOPT_IDLE_TIMEOUT", "7s", 1);
    (void)setenv("TESTOPT_ORIGIN_SECRET_KEY", "s3cr3t", 1);
    (void)setenv("TESTOPT_MEMORY", "", 1);
    (void)setenv("TESTOPT_DISK", "/x,,/y", 1);
    assert_int_equal(option_env(&table, &o, &e), 0);
    assert_int_equal(o.timeout, 7000);
    assert_string_equal(o.secret, "s3cr3t");
    assert_int_equal(o.memory, 512 * MIB);
    assert_get(&o, "disk", "/x,/y");
    (void)setenv("TESTOPT_THREADS", "1", 1);
    assert_int_equal(option_env(&table, &o, &e), ERR_BAD_OPTION);
    assert_string_equal(e.text, "TESTOPT_THREADS 1: below the minimum of 2");
    static const char *const names[] = {"TESTOPT_IDLE_TIMEOUT", "TESTOPT_ORIGIN_SECRET_KEY", "TESTOPT_MEMORY",
                                        "TESTOPT_DISK", "TESTOPT_THREADS"};
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        (void)unsetenv(names[i]);
    option_fini(&table, &o);
}

/* Loads `text` as a file; the error text, less the path in front, goes to `ret_text`. */
static int load_yaml(const char *text, size_t n, struct opts *o, char ret_text[ERR_TEXT_MAX])
{
    _cleanup_tmpdir_ char *dir = tmpdir_new();
    _cleanup_free_ char *path = tmpdir_path(dir, "f.yaml");
    struct err e = {0};
    assert_int_equal(sys_write_file_atomic(path, text, n, 0600), 0);
    int r = option_yaml(&table, o, path, &e);
    size_t skip = strncmp(e.text, path, strlen(path)) == 0 ? strlen(path) : 0;
    (void)snprintf(ret_text, ERR_TEXT_MAX, "%s", e.text + skip);
    return r;
}

/* A file sets values of every type; lists may be lists or single values, and replace what was there. */
static void yaml_values(void **state)
{
    static const char text[] = "# a comment\n"
                               "recursive: yes\n"
                               "threads: 3\n"
                               "memory: 1GiB\n"
                               "idle-timeout: 90s\n"
                               "name: 'a: b'\n"
                               "origin.secret_key: \"k\\x41\"\n"
                               "disk:\n  - /a\n  - \"/b:1T\"\n"
                               "level: warn\n";
    char why[ERR_TEXT_MAX];
    struct opts o = defaults();
    set_ok(&o, "disk", "/old");
    assert_int_equal(load_yaml(text, strlen(text), &o, why), 0);
    assert_true(o.recursive);
    assert_int_equal(o.threads, 3);
    assert_int_equal(o.memory, GIB);
    assert_int_equal(o.timeout, 90000);
    assert_string_equal(o.name, "a: b");
    assert_string_equal(o.secret, "kA");
    assert_get(&o, "disk", "/a,/b:1T");
    assert_int_equal(o.level, 1);
    assert_int_equal(load_yaml("disk: /one\nname: ''\n", 20, &o, why), 0);
    assert_get(&o, "disk", "/one");
    assert_string_equal(o.name, "");
    assert_int_equal(load_yaml("", 0, &o, why), 0);
    assert_int_equal(load_yaml("# nothing\n", 10, &o, why), 0);
    assert_int_equal(load_yaml("---\n", 4, &o, why), 0);
    option_fini(&table, &o);
}

/* Every mistake is reported with its line. */
static void yaml_mistakes(void **state)
{
    static const struct {
        const char *text, *why;
    } cases[] = {{"threads: 3\nmemroy: 1G\n", ":2: unknown option memroy (did you mean memory?)"},
                 {"\n\nthreads: 1\n", ":3: threads 1: below the minimum of 2"},
                 {"disk:\n- /a\n- [x]\n", ":3: disk: needs a value (DIR)"},
                 {"disk:\n- /a\n- \n", ":3: disk: needs a value (DIR)"},
                 {"memory:\n", ":1: memory: needs a value (SIZE)"},
                 {"memory: ~\n", ":1: memory: needs a value (SIZE)"},
                 {"recursive: {a: b}\n", ":1: recursive: needs a value (true or false)"},
                 {"threads: [3]\n", ":1: threads: takes one value, not a list"},
                 {"threads: 3\nthreads: 4\n", ":2: threads: given twice"},
                 {"- threads\n", ":1: must be lines of the form NAME: VALUE"},
                 {"threads\n", ":1: must be lines of the form NAME: VALUE"},
                 {"? [a]\n: b\n", ":1: an option name must be plain text"},
                 {"name: \"a\\0b\"\n", ":1: name: needs a value (NAME)"},
                 {"threads: 3\n---\nthreads: 4\n", ":3: a second document; only one is read"}};
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char why[ERR_TEXT_MAX];
        struct opts o = defaults();
        assert_int_equal(load_yaml(cases[i].text, strlen(cases[i].text), &o, why), ERR_BAD_OPTION);
        assert_string_equal(why, cases[i].why);
        option_fini(&table, &o);
    }
}

/* Text that is not YAML, at whatever byte it breaks, is an error with a line and never a crash. */
static void yaml_broken(void **state)
{
    static const char good[] = "name: \"x\\u00e9\"\ndisk: [ /a, {b: c}, &x /d, *x ]\nthreads: 3 # x\n";
    static const char *const bad[] = {"memory: [3\n", "\tmemory: 3\n", "a: b: c\n",
                                      "name: \"x\n",  "*x\n",          "\xff\xfe\xff"};
    char why[ERR_TEXT_MAX], text[sizeof(good)];
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct opts o = defaults();
        assert_int_equal(load_yaml(bad[i], strlen(bad[i]), &o, why), ERR_BAD_OPTION);
        assert_non_null(strstr(why, "not valid YAML"));
        assert_int_equal(why[0], ':');
        option_fini(&table, &o);
    }
    for (size_t i = 0; i < sizeof(good) - 1; i++) {
        struct opts o = defaults();
        memcpy(text, good, sizeof(good));
        text[i] = '\x01';
        (void)load_yaml(text, i % 2 ? i : sizeof(good) - 1, &o, why);
        option_fini(&table, &o);
    }
}

/* A file that cannot be read gives the errno of whichever call failed. */
static void yaml_unreadable(void **state)
{
    struct opts o = defaults();
    struct err e = {0};
    assert_int_equal(option_yaml(&table, &o, "/nonexistent/x.yaml", &e), -ENOENT);
    assert_string_equal(e.text, "/nonexistent/x.yaml: No such file or directory");
    _cleanup_tmpdir_ char *dir = tmpdir_new();
    _cleanup_free_ char *path = tmpdir_path(dir, "f.yaml");
    assert_int_equal(sys_write_file_atomic(path, "threads: 5\n", 11, 0600), 0);
    fault_sys_start();
    for (uint64_t n = 1;; n++) {
        fault_sys_arm(FAULT_ALL, n, EIO, FAULT_ONCE);
        int r = option_yaml(&table, &o, path, &e);
        bool hit = fault_sys_hit();
        fault_sys_disarm();
        assert_int_equal(r, hit ? -EIO : 0);
        assert_int_equal(o.threads, hit ? 8 : 5);
        if (!hit)
            break;
    }
    fault_sys_stop();
    option_fini(&table, &o);
}

/* Help shows every row but hidden ones, with default and range, within 100 columns. */
static void help(void **state)
{
    _cleanup_buf_ struct buf b = BUF_INIT(1 << 16);
    assert_int_equal(option_help(&table, &b), 0);
    assert_non_null(strstr(b.p, "  -r, --recursive             all below\n"));
    assert_non_null(
        strstr(b.p, "  -t, --threads N             how many threads (default 8; at least 2; at most 64)\n"));
    assert_non_null(
        strstr(b.p, "      --memory SIZE           most memory (default 512MiB; at least 64MiB)\n"));
    assert_non_null(strstr(b.p, "(error, warn or info; default info)"));
    assert_non_null(strstr(b.p, "at least 500ms; at most 1d"));
    assert_null(strstr(b.p, "debug-internals"));
    struct slice left = buf_view(&b);
    while (left.n)
        assert_in_range(slice_split(&left, '\n').n, 1, 100);
}

/* Long texts are wrapped under their own column, and a long flag has its text on the next line. */
static void help_wraps(void **state)
{
    static const struct option wide[] = {{.name = "a-flag-with-quite-a-long-name",
                                          .type = OPTION_STRING,
                                          .arg = "VALUE",
                                          .doc = "a text that goes on and on until it does not fit into the "
                                                 "width of the terminal that people have, and then "
                                                 "some more"}};
    static const struct option_table wide_table = {wide, 1, NULL};
    _cleanup_buf_ struct buf b = BUF_INIT(1 << 16);
    assert_int_equal(option_help(&wide_table, &b), 0);
    struct slice left = buf_view(&b), first = slice_split(&left, '\n');
    assert_true(slice_eq_str(first, "      --a-flag-with-quite-a-long-name VALUE"));
    int lines = 0;
    for (; left.n; lines++) {
        struct slice line = slice_split(&left, '\n');
        assert_in_range(line.n, 31, 100);
        for (int i = 0; i < 30; i++)
            assert_int_equal(line.p[i], ' ');
        assert_int_not_equal(line.p[30], ' ');
    }
    assert_int_equal(lines, 2);
}

/* The manual's items escape what roff would take for its own. */
static void mdoc(void **state)
{
    static const struct option odd[] = {{.name = "a-b",
                                         .short_flag = 'a',
                                         .type = OPTION_STRING,
                                         .arg = "X",
                                         .doc = ".Sh \\x a-b",
                                         .reloadable = true}};
    static const struct option_table odd_table = {odd, 1, NULL};
    _cleanup_buf_ struct buf b = BUF_INIT(1 << 16), all = BUF_INIT(1 << 16);
    assert_int_equal(option_mdoc(&odd_table, &b), 0);
    assert_string_equal(b.p, ".It Fl a , Fl \\-a\\-b Ar X\n"
                             "\\&.Sh \\ex a\\-b.\n"
                             "May be changed without a restart.\n");
    assert_int_equal(option_mdoc(&table, &all), 0);
    assert_non_null(
        strstr(all.p, ".It Fl \\-memory Ar SIZE\nmost memory\n(default 512MiB; at least 64MiB).\n"));
    assert_null(strstr(all.p, "internals"));
}

/* Properties are KEY=VALUE, in --help and in the manual: no dashes, and a BOOL has a value and a default. */
static void keys(void **state)
{
    static const struct option keyed_rows[] = {
        {.name = "a.b-c",
         .type = OPTION_SIZE,
         .arg = "SIZE",
         .def = "1MiB",
         .min = 4096,
         .doc = "bytes",
         .reloadable = true},
        {.name = "put", .type = OPTION_BOOL, .def = "true", .doc = "whether"},
        {.name = "none", .type = OPTION_STRING, .arg = "X", .doc = "never seen", .hidden = true},
    };
    static const struct option_table keyed = {keyed_rows, ARRAY_SIZE(keyed_rows), NULL};
    _cleanup_buf_ struct buf help = BUF_INIT(1 << 16), man = BUF_INIT(1 << 16);
    assert_int_equal(option_help_keys(&keyed, &help), 0);
    assert_string_equal(help.p, "  a.b-c=SIZE                  bytes (default 1MiB; at least 4KiB)\n"
                                "  put=true|false              whether (default true)\n");
    assert_int_equal(option_mdoc_keys(&keyed, &man), 0);
    assert_string_equal(man.p, ".It Cm a.b\\-c Ns = Ns Ar SIZE\nbytes\n(default 1MiB; at least 4KiB).\n"
                               ".It Cm put Ns = Ns Ar true|false\nwhether\n(default true).\n");
}

/* Texts that do not fit into their buffer are an error at every size. */
static void small_buffers(void **state)
{
    _cleanup_buf_ struct buf all = BUF_INIT(1 << 16), man = BUF_INIT(1 << 16);
    assert_int_equal(option_help(&table, &all), 0);
    assert_int_equal(option_mdoc(&table, &man), 0);
    for (size_t max = 0; max < MAX(all.n, man.n); max++) {
        _cleanup_buf_ struct buf b = BUF_INIT(max), m = BUF_INIT(max);
        assert_int_equal(option_help(&table, &b), max < all.n ? -E2BIG : 0);
        assert_int_equal(option_mdoc(&table, &m), max < man.n ? -E2BIG : 0);
    }
    struct opts o = defaults();
    set_ok(&o, "disk", "/a");
    set_ok(&o, "disk", "/b");
    static const char *const names[] = {"memory", "disk", "level", "recursive", "idle-timeout"};
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        _cleanup_buf_ struct buf b = BUF_INIT(2);
        assert_int_equal(option_get(&table, &o, names[i], &b), -E2BIG);
    }
    _cleanup_buf_ struct buf b = BUF_INIT(2);
    assert_int_equal(option_get(&table, &o, "no such", &b), ERR_BAD_OPTION);
    option_fini(&table, &o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_filled),
        cmocka_unit_test(bad_default),
        cmocka_unit_test(values_read_back),
        cmocka_unit_test(refusals),
        cmocka_unit_test(long_unknown_name),
        cmocka_unit_test(secrets_stay_out_of_messages),
        cmocka_unit_test(args_in_every_form),
        cmocka_unit_test(args_that_repeat),
        cmocka_unit_test(args_replace_lists),
        cmocka_unit_test(args_refused),
        cmocka_unit_test(args_help),
        cmocka_unit_test(environment),
        cmocka_unit_test(yaml_values),
        cmocka_unit_test(yaml_mistakes),
        cmocka_unit_test(yaml_broken),
        cmocka_unit_test(yaml_unreadable),
        cmocka_unit_test(help),
        cmocka_unit_test(help_wraps),
        cmocka_unit_test(mdoc),
        cmocka_unit_test(keys),
        cmocka_unit_test(small_buffers),
    };
    return cmocka_run_group_tests_name("option", tests, NULL, NULL);
}
