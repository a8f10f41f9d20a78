/* forebay mount: a bucket, or a part of one, as a directory; or what such a mount does. */
#include "cli/cli.h"
#include "cli/command.h"
#include "cli/mount_stats.h"

#include "base/sys.h"
#include "base/text.h"
#include "mount/holdings.h"
#include "mount/mount.h"
#include "mount/mountinfo.h"

#include <limits.h>
#include <string.h>

struct mount_command {
    struct command_node node;
    bool read_only, foreground, allow_other, stats, upgrade, json;
    int passthrough, profile;
    uint64_t threads, attr_timeout_ms, kept_files, memory_bytes;
    char *uid, *gid, *umask, *log;
    struct option_list o;
};

static const struct option rows[] = {
    COMMAND_NODE_ROWS(mount_command),
    COMMAND_FLAG(mount_command, read_only, "read-only", 'r', "refuse every change"),
    COMMAND_FLAG(mount_command, foreground, "foreground", 'f', "stay in the foreground, log to the terminal"),
    {.name = "passthrough",
     .type = OPTION_ENUM,
     .offset = offsetof(struct mount_command, passthrough),
     .def = "auto",
     .choices = "auto|on|off",
     .arg = "WHEN",
     .doc = "let the kernel read and write cached files itself; on: fail where it cannot"},
    {.name = "profile",
     .type = OPTION_ENUM,
     .offset = offsetof(struct mount_command, profile),
     .def = "default",
     .choices = "default|read-only",
     .arg = "NAME",
     .doc = "read-only: nothing can be changed, and the kernel opens files without asking: for many small "
            "files that are read again and again and fit into memory"},
    COMMAND_FLAG(mount_command, allow_other, "allow-other", 0,
                 "let other users in, checked by mode and owner"),
    {.name = "uid",
     .type = OPTION_STRING,
     .offset = offsetof(struct mount_command, uid),
     .arg = "UID",
     .doc = "owner of everything in a bucket that keeps no owners; the caller's unless given"},
    {.name = "gid",
     .type = OPTION_STRING,
     .offset = offsetof(struct mount_command, gid),
     .arg = "GID",
     .doc = "group of everything there; the caller's unless given"},
    {.name = "umask",
     .type = OPTION_STRING,
     .offset = offsetof(struct mount_command, umask),
     .def = "022",
     .arg = "OCTAL",
     .doc = "permissions that files (0666) and directories (0777) lack there"},
    {.name = "threads",
     .type = OPTION_UINT,
     .offset = offsetof(struct mount_command, threads),
     .def = "0",
     .max = 1024,
     .arg = "N",
     .doc =
         "most operations served at the same time, of which each may wait for the origin; 0: 64, fewer where "
         "--memory has no room for as many"},
    {.name = "attr-timeout",
     .type = OPTION_DURATION,
     .offset = offsetof(struct mount_command, attr_timeout_ms),
     .def = "1s",
     .max = 3600000,
     .arg = "TIME",
     .doc = "how long the kernel may believe names and attributes"},
    {.name = "kept-files",
     .type = OPTION_UINT,
     .offset = offsetof(struct mount_command, kept_files),
     .def = "32768",
     .max = 60000,
     .arg = "N",
     .doc = "most files kept open after their last close, so that opening them again asks nobody; 0: none"},
    {.name = "memory",
     .type = OPTION_SIZE,
     .offset = offsetof(struct mount_command, memory_bytes),
     .def = "0",
     .arg = "SIZE",
     .doc =
         "most memory of the mount's process, its threads' buffers included; 0: 512M, more where the threads "
         "need more than half of that"},
    {.name = "log",
     .type = OPTION_STRING,
     .offset = offsetof(struct mount_command, log),
     .arg = "FILE",
     .doc = "where the log goes once the mount is in the background; DIR/log/mount.log with --data"},
    {.name = "o",
     .short_flag = 'o',
     .type = OPTION_LIST,
     .offset = offsetof(struct mount_command, o),
     .arg = "OPTION[,OPTION]",
     .doc =
         "mount options: ro, rw, those above without their dashes (data=DIR, allow_other), and what fuse(8) "
         "knows"},
    COMMAND_FLAG(mount_command, stats, "stats", 0,
                 "with DIR alone: what the mount there does, again every second on a terminal"),
    COMMAND_FLAG(mount_command, upgrade, "upgrade", 0,
                 "with DIR alone: the forebay that is installed now takes over the mount there; what is open "
                 "stays open"),
    COMMAND_FLAG(mount_command, json, "json", 0, "with --stats: once, as JSON"),
};

static const struct option_table table = {.rows = rows, .n_rows = ARRAY_SIZE(rows)};

static const struct command_usage usage = {
    .command = "forebay mount",
    .operands = "BUCKET[/PREFIX] DIR | --stats DIR | --upgrade DIR",
    .about = "Mounts a bucket, or what lies below a prefix, as a directory. Returns when it works and stays "
             "in the\n"
             "background; \"forebay umount DIR\" and \"fusermount3 -u DIR\" end it. With --stats: shows what "
             "a mount\n"
             "does. With --upgrade: another version of the program takes over.",
    .min_operands = 1,
    .max_operands = 2,
};

static int parse_number(const char *text, int base, const char *flag, uint32_t *ret, struct err *e)
{
    char *end;
    if (!text)
        return 0;
    errno = 0;
    unsigned long v = strtoul(text, &end, base);
    if (errno || *end || end == text || text[0] == '-' || v >= UINT32_MAX || (base == 8 && v > 0777))
        return err_set(e, ERR_BAD_OPTION, "%s %s: not %s", flag, text,
                       base == 8 ? "an octal number up to 777" : "a number");
    *ret = (uint32_t)v;
    return 0;
}

/* The row that `one` of -o gives ("attr_timeout=5s", "allow_other"), NULL when it is none of ours. What
 * --stats and --upgrade need, and where to be, is said on the command line alone. */
static const struct option *own_option(const char *one, char name[static 32])
{
    static const char *const not_here[] = {"o", "stats", "upgrade", "json", "foreground"};
    size_t n = strcspn(one, "=");
    if (n >= 32)
        return NULL;
    for (size_t i = 0; i < n; i++)
        name[i] = one[i] == '_' ? '-' : one[i];
    name[n] = '\0';
    for (size_t i = 0; i < ARRAY_SIZE(not_here); i++)
        if (strcmp(name, not_here[i]) == 0)
            return NULL;
    return option_find(&table, name);
}

/* mount(8) leaves the quotes around values that have commas. */
static const char *unquote(char *value)
{
    size_t n = strlen(value);
    bool is_quoted = n >= 2 && value[0] == '"' && value[n - 1] == '"';
    if (is_quoted)
        value[n - 1] = '\0';
    return is_quoted ? value + 1 : value;
}

/* -o a,b: what we know becomes our own option, the rest is for libfuse. *list is the caller's to free; its
 * strings live in c->o, which is changed. */
static int take_options(struct mount_command *c, const char ***list, size_t *ret_n, struct err *e)
{
    int r = 0;
    for (size_t i = 0; i < c->o.n && r == 0; i++) {
        char *rest = c->o.v[i], *one, name[32];
        while (r == 0 && (one = command_next_option(&rest))) {
            const struct option *row = own_option(one, name);
            char *value = strchr(one, '=');
            if (strcmp(one, "ro") == 0 || strcmp(one, "rw") == 0) {
                c->read_only = one[1] == 'o';
            } else if (row && !value && row->type != OPTION_BOOL) {
                r = err_set(e, ERR_BAD_OPTION, "-o %s: needs a value, as in %s=%s", one, one, row->arg);
            } else if (row) {
                char shown_as[40];
                (void)snprintf(shown_as, sizeof(shown_as), "-o %.*s", (int)strcspn(one, "="), one);
                r = option_set(&table, c, name, value ? unquote(value + 1) : "true", shown_as, e);
            } else if (one[0]) {
                *list = realloc(*list, (*ret_n + 1) * sizeof(**list));
                if (!*list)
                    abort();
                (*list)[(*ret_n)++] = one;
            }
        }
    }
    return r;
}

static int choose_memory(const struct mount_command *c, struct mount_options *o, struct err *e)
{
    char given[TEXT_SIZE_MAX], least[TEXT_SIZE_MAX];
    uint64_t n = c->threads > 0 ? c->threads : holdings_threads(c->memory_bytes);
    o->threads = n;
    o->memory_bytes = c->memory_bytes > 0 ? c->memory_bytes : holdings_default(n);
    if (o->memory_bytes >= holdings_least(n))
        return 0;
    return err_set(e, ERR_BAD_OPTION, "--memory %s: with --threads %llu at least %s are needed",
                   text_size(c->memory_bytes, given), (unsigned long long)n,
                   text_size(holdings_least(n), least));
}

static int make_options(const struct mount_command *c, char **argv, struct mount_options *o, struct err *e)
{
    *o = (struct mount_options){
        .bucket = argv[0],
        .directory = argv[1],
        .data_dir = c->node.data,
        .socket_path = c->node.socket,
        .endpoint = c->node.endpoint,
        .timeout_ms = c->node.timeout_ms,
        .attr_timeout_ms = c->attr_timeout_ms,
        .kept_files = c->kept_files,
        .profile = (enum mount_profile)c->profile,
        .passthrough = (enum mount_passthrough)c->passthrough,
        .read_only = c->read_only,
        .allow_other = c->allow_other,
        .uid = UINT32_MAX,
        .gid = UINT32_MAX,
    };
    if (o->profile == MOUNT_PROFILE_READ_ONLY && o->passthrough == MOUNT_PASSTHROUGH_ON)
        return err_set(
            e, ERR_BAD_OPTION,
            "--profile read-only reads through the page cache, not by --passthrough: leave out one");
    if (argv[0][0] == '/' || argv[0][0] == '\0')
        return err_set(e, ERR_BAD_OPTION, "'%s': must be BUCKET or BUCKET/PREFIX", argv[0]);
    int r = parse_number(c->uid, 10, "--uid", &o->uid, e);
    if (r == 0)
        r = parse_number(c->gid, 10, "--gid", &o->gid, e);
    if (r == 0)
        r = parse_number(c->umask, 8, "--umask", &o->umask, e);
    if (r == 0)
        r = choose_memory(c, o, e);
    o->read_only = o->read_only || o->profile == MOUNT_PROFILE_READ_ONLY;
    return r;
}

/* Beside the node's data when that is known; NULL: the log is not kept. */
static char *log_path(const struct mount_command *c)
{
    const char *dir = c->node.data ? c->node.data : getenv("FOREBAY_DATA");
    char path[PATH_MAX];
    if (c->log)
        return slice_dup(slice_str(c->log));
    if (!dir || !dir[0] || snprintf(path, sizeof(path), "%s/log", dir) >= (int)sizeof(path))
        return NULL;
    if (sys_mkdir_p(path, 0700) < 0 ||
        snprintf(path, sizeof(path), "%s/log/mount.log", dir) >= (int)sizeof(path))
        return NULL;
    return slice_dup(slice_str(path));
}

static void make_whole(char **path)
{
    char *whole = mount_whole_path(*path);
    free(*path);
    *path = whole;
}

/* What is relative to the directory of whoever calls gets its whole name: what runs in the background leaves
 * it. The node is found by variables, too, also by another program that is started later. */
static void make_paths_whole(struct mount_command *c)
{
    static const char *const variables[] = {"FOREBAY_DATA", "FOREBAY_SOCKET"};
    make_whole(&c->node.data);
    make_whole(&c->node.socket);
    for (size_t i = 0; i < ARRAY_SIZE(variables); i++) {
        const char *value = getenv(variables[i]);
        _cleanup_free_ char *whole = value && value[0] ? mount_whole_path(value) : NULL;
        if (whole)
            (void)setenv(variables[i], whole, /* overwrite= */ 1);
    }
}

static int upgrade(const char *directory, uint64_t timeout_ms, struct err *e)
{
    struct mount_upgrade_report report = {0};
    int r = mount_upgrade(directory, timeout_ms, &report, e);
    if (r < 0)
        return r;
    if (!report.is_upgraded)
        return err_set(
            e, -ENOTSUP,
            "%s: the installed program cannot take over, the mount's log says why; forebay %s goes on "
            "(process %u): to have the installed one, unmount and mount again",
            directory, report.version, report.pid);
    (void)printf("%s: forebay %s (process %u)\n", directory, report.version, report.pid);
    return 0;
}

static int run(struct mount_command *c, int argc, char **argv, struct err *e)
{
    if (c->stats && c->upgrade)
        return err_set(e, ERR_BAD_OPTION, "--stats and --upgrade: give one of them");
    if ((c->stats || c->upgrade) && argc != 1)
        return err_set(e, ERR_BAD_OPTION, "--%s: give the directory of a mount, and nothing else",
                       c->stats ? "stats" : "upgrade");
    if (c->stats)
        return mount_stats_show(argv[0], c->json, e);
    if (c->upgrade)
        return upgrade(argv[0], c->node.timeout_ms, e);
    if (argc != 2 || c->json)
        return err_set(e, ERR_BAD_OPTION,
                       argc != 2 ? "give BUCKET[/PREFIX] and DIR" : "--json is for --stats");
    struct mount_options o;
    _cleanup_free_ const char **list = NULL;
    size_t n = 0;
    char directory[PATH_MAX];
    int r = take_options(c, &list, &n, e);
    if (r == 0 && !c->foreground)
        make_paths_whole(c);
    if (r == 0)
        r = make_options(c, argv, &o, e);
    if (r < 0)
        return r;
    o.fuse_options = list;
    o.n_fuse_options = n;
    if (mount_is_taken_over_here())
        return mount_run(&o, &(struct mount_callbacks){0}, e);
    /* Absolute: what the node shows of it. */
    mountinfo_resolve(argv[1], directory);
    o.directory = directory;
    if (c->foreground)
        return mount_run(&o, &(struct mount_callbacks){0}, e);
    _cleanup_free_ char *path = log_path(c);
    return mount_run_in_background(&o, path, e);
}

int cmd_mount(int argc, char **argv)
{
    struct mount_command c = {0};
    struct err e = {0};
    int n, status;
    if (command_parse(&usage, &table, &c, argc, argv, &n, &status)) {
        int r = run(&c, n, argv, &e);
        status = r < 0 ? command_fail(usage.command, r, &e) : 0;
    }
    option_fini(&table, &c);
    return status;
}
