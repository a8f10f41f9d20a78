/*
 * forebay store check: verifies every block of a stopped node's disks. Works on the disks themselves, not
 * over the wire: a node that does not start can still be checked.
 */
#include "cli/cli.h"
#include "cli/command.h"

#include "base/config.h"
#include "base/sys.h"
#include "base/text.h"
#include "server/data_dir.h"
#include "store/store.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sys/file.h>

#define CHECK_MEMORY_BYTES (256 * MIB)

struct store_options {
    char *data;
    struct option_list disk;
    bool repair, json, quiet;
};

static const struct option rows[] = {
    {.name = "data",
     .type = OPTION_STRING,
     .offset = offsetof(struct store_options, data),
     .arg = "DIR",
     .doc = "the node's data directory; default FOREBAY_DATA"},
    {.name = "disk",
     .type = OPTION_LIST,
     .offset = offsetof(struct store_options, disk),
     .arg = "DIR[:SIZE]",
     .doc = "disks, as given to serve; default those of the node's last start"},
    COMMAND_FLAG(store_options, repair, "repair", 0,
                 "drop what is bad, so that it is fetched again; remove orphans"),
    COMMAND_FLAG(store_options, json, "json", 0, "one JSON object: what is wrong, and the numbers"),
    COMMAND_FLAG(store_options, quiet, "quiet", 'q', "no progress"),
};
static const struct option_table table = {rows, ARRAY_SIZE(rows), NULL};

static const struct command_usage usage = {
    .command = "forebay store",
    .operands = "check",
    .about =
        "Reads every cached block of a node that is not running, and every scratch file that is not "
        "being written,\n"
        "and compares them with their checksums. Prints what is wrong, one line each, and a summary. "
        "Damaged scratch\n"
        "files are named by their place on the disk and never changed. The disks are those of the "
        "node's last "
        "start,\n"
        "unless --disk names others; none is made. What was being removed or replaced when the node was "
        "killed is\n"
        "no fault: it is counted, and the node's next start ends it. Exit status: 0 nothing is wrong, or "
        "all was\n"
        "repaired; 3 something is.",
    .min_operands = 1,
    .max_operands = 1,
};

struct check_state {
    struct progress *progress;
    uint64_t extents, bytes;
    bool json;
    uint64_t problems; /* printed */
};

/* A line for people; for programs the next of a list of strings that begins the one object. */
static void print_problem(struct check_state *s, const char *problem)
{
    if (!s->json) {
        (void)printf("%s\n", problem);
        return;
    }
    (void)fputs(s->problems++ == 0 ? "{\"problems\": [" : ",\n ", stdout);
    command_json_string(stdout, slice_str(problem));
}

static bool on_extent(const struct store_check_report *so_far, const char *problem, void *arg)
{
    struct check_state *s = arg;
    if (problem)
        print_problem(s, problem);
    progress_add(s->progress, so_far->extents - s->extents, so_far->bytes - s->bytes);
    s->extents = so_far->extents;
    s->bytes = so_far->bytes;
    return true;
}

/* X(member of both) */
#define REPORT_NUMBERS(X)                                                                                    \
    X(extents)                                                                                               \
    X(blocks)                                                                                                \
    X(bytes)                                                                                                 \
    X(bad_blocks)                                                                                            \
    X(missing_files)                                                                                         \
    X(orphan_files)                                                                                          \
    X(orphan_bytes)                                                                                          \
    X(bad_records)                                                                                           \
    X(hard_extents)                                                                                          \
    X(hard_blocks)                                                                                           \
    X(hard_bytes)                                                                                            \
    X(hard_bad)                                                                                              \
    X(set_aside_files)                                                                                       \
    X(set_aside_bytes)                                                                                       \
    X(cut_indexes)                                                                                           \
    X(unfinished)

/* Ends what print_problem began. */
static void print_json(const struct check_state *s, const struct store_check_report *r, const struct err *e)
{
    (void)fputs(s->problems == 0 ? "{\"problems\": []" : "]", stdout);
#define X(name) (void)printf(", \"" #name "\": %" PRIu64, r->name);
    REPORT_NUMBERS(X)
#undef X
    if (e) {
        (void)fputs(", \"error\": ", stdout);
        command_json_string(stdout, slice_str(e->text));
    }
    (void)puts("}");
}

static void print_report(const struct store_check_report *r)
{
    (void)printf("checked %" PRIu64 " extents, %" PRIu64 " blocks, %" PRIu64 " bytes: %" PRIu64
                 " bad blocks, %" PRIu64 " missing files, %" PRIu64 " orphan files (%" PRIu64
                 " bytes), %" PRIu64 " bad records\n",
                 r->extents, r->blocks, r->bytes, r->bad_blocks, r->missing_files, r->orphan_files,
                 r->orphan_bytes, r->bad_records);
    (void)printf("checked %" PRIu64 " scratch files, %" PRIu64 " blocks, %" PRIu64 " bytes: %" PRIu64
                 " damaged\n",
                 r->hard_extents, r->hard_blocks, r->hard_bytes, r->hard_bad);
    if (r->unfinished > 0)
        (void)printf("%" PRIu64
                     " cached objects were being removed or replaced when the node was killed: its "
                     "next start ends that\n",
                     r->unfinished);
}

/* The lock that `serve` holds: a running node checks itself. */
static int lock_data(const char *data, int *ret_fd, struct err *e)
{
    char path[4096];
    (void)snprintf(path, sizeof(path), "%s/lock", data);
    _cleanup_close_ int fd = sys->open(path, O_RDWR | O_CLOEXEC, 0);
    if (fd == -ENOENT)
        return err_set(e, -ENOENT, "--data %s: no node has run there", data);
    if (fd < 0)
        return err_errno(e, fd, "open %s", path);
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return err_set(e, -EBUSY, "--data %s: a node is running there; stop it first", data);
    *ret_fd = TAKE_FD(fd);
    return 0;
}

static int check_disks(const struct store_options *o, struct store_disk_config *disks, size_t n,
                       struct check_state *state, struct store_check_report *ret, struct err *e)
{
    struct store_config config = {
        .disks = disks,
        .n_disks = n,
        .memory_bytes = CHECK_MEMORY_BYTES,
        .flush_interval_ms = 30000,
        .read_only = !o->repair,
    };
    _cleanup_(store_closep) struct store *s = NULL;
    int r = store_open(&config, &s, e);
    if (r < 0)
        return r;
    state->progress = progress_new("checked", 0, 0, o->quiet);
    r = store_check(s, o->repair, on_extent, state, ret, e);
    progress_end(state->progress);
    return r;
}

/* --disk, else what the node noted at its last start. The array and the paths in it are the caller's to free.
 */
static int find_disks(const struct store_options *o, char ***ret_paths, size_t *ret_n, struct err *e)
{
    if (o->disk.n == 0) {
        int r = data_dir_noted_disks(o->data, ret_paths, ret_n, e);
        if (r == -ENOENT)
            return err_set(e, r, "--data %s: its node has noted no disks there; name them with --disk DIR",
                           o->data);
        return r;
    }
    char **paths = calloc(o->disk.n, sizeof(*paths));
    assert(paths);
    int r = 0;
    size_t n = 0;
    for (struct config_disk parsed; r == 0 && n < o->disk.n; n++) {
        r = config_parse_disk(o->disk.v[n], &parsed, e);
        if (r == 0)
            paths[n] = parsed.path;
    }
    *ret_paths = paths;
    *ret_n = n;
    return r;
}

/* A check makes no disks: what is not one is named before anything is opened. */
static int expect_disk(const char *path, struct err *e)
{
    char mark[4096 + 32];
    struct stat st;
    (void)snprintf(mark, sizeof(mark), "%s/forebay-disk", path);
    int r = sys->stat(mark, &st);
    if (r == -ENOENT)
        return err_set(e, r, "disk %s: no forebay disk is there (no file %s)", path, mark);
    return r < 0 ? err_errno(e, r, "disk %s", path) : 0;
}

static int check(const struct store_options *o, struct check_state *state, struct store_check_report *ret,
                 struct err *e)
{
    if (!o->data)
        return err_set(e, ERR_BAD_OPTION, "which node's disks? Give --data DIR, or set FOREBAY_DATA");
    _cleanup_close_ int lock = -1;
    int r = lock_data(o->data, &lock, e);
    if (r < 0)
        return r;
    char **paths = NULL;
    size_t n = 0;
    r = find_disks(o, &paths, &n, e);
    struct store_disk_config *disks = calloc(n + 1, sizeof(*disks));
    assert(disks);
    for (size_t i = 0; r == 0 && i < n; i++) {
        disks[i].path = paths[i];
        r = expect_disk(paths[i], e);
    }
    if (r == 0)
        r = check_disks(o, disks, n, state, ret, e);
    for (size_t i = 0; i < n; i++)
        free(paths[i]);
    free(paths);
    free(disks);
    return r;
}

int cmd_store(int argc, char **argv)
{
    struct store_options o = {0};
    int n, status;
    if (command_parse(&usage, &table, &o, argc, argv, &n, &status)) {
        struct err e = {0};
        struct store_check_report report = {0};
        struct check_state state = {.json = o.json};
        const char *data = getenv("FOREBAY_DATA");
        if (!o.data && data && data[0])
            o.data = slice_dup(slice_str(data));
        int r = strcmp(argv[0], "check") == 0
                    ? check(&o, &state, &report, &e)
                    : err_set(&e, ERR_BAD_OPTION, "'%s': the only verb is check", argv[0]);
        if (o.json && (r == 0 || state.problems > 0))
            print_json(&state, &report, r < 0 ? &e : NULL);
        if (r < 0) {
            status = command_fail(usage.command, r, &e);
        } else {
            if (!o.json)
                print_report(&report);
            uint64_t wrong =
                report.bad_blocks + report.missing_files + report.orphan_files + report.bad_records;
            status =
                report.hard_bad + report.set_aside_files + report.cut_indexes > 0 || (wrong > 0 && !o.repair)
                    ? 3
                    : 0;
        }
    }
    option_fini(&table, &o);
    return status;
}
