/*
 * forebay bench epoch: reads every file of a directory once per epoch in shuffled order, and prints what a
 * person who trains on them wants to know: how fast, how much of it came from the origin, and how that
 * compares with a plain disk.
 */
#include "cli/bench.h"
#include "cli/command.h"

#include "base/text.h"

#include <inttypes.h>

struct epoch_options {
    uint64_t epochs, workers, seed, block;
    char *compare, *metrics;
    bool json;
};

static const struct option rows[] = {
    {.name = "epochs",
     .short_flag = 'e',
     .type = OPTION_UINT,
     .offset = offsetof(struct epoch_options, epochs),
     .def = "2",
     .min = 1,
     .max = 1000,
     .arg = "N",
     .doc = "passes over the files"},
    {.name = "workers",
     .short_flag = 'w',
     .type = OPTION_UINT,
     .offset = offsetof(struct epoch_options, workers),
     .def = "2",
     .min = 1,
     .max = 1024,
     .arg = "N",
     .doc = "threads that read"},
    {.name = "seed",
     .type = OPTION_UINT,
     .offset = offsetof(struct epoch_options, seed),
     .def = "1",
     .arg = "N",
     .doc = "of the shuffle; each epoch has its own order"},
    {.name = "block",
     .type = OPTION_SIZE,
     .offset = offsetof(struct epoch_options, block),
     .def = "1MiB",
     .min = 512,
     .max = GIB,
     .arg = "SIZE",
     .doc = "bytes per read"},
    {.name = "compare",
     .type = OPTION_STRING,
     .offset = offsetof(struct epoch_options, compare),
     .arg = "DIR",
     .doc = "the same files on a plain disk: read in the same way at the end, as the yardstick"},
    {.name = "metrics",
     .type = OPTION_STRING,
     .offset = offsetof(struct epoch_options, metrics),
     .arg = "HOST:PORT",
     .doc = "the node's HTTP address: shows bytes from the origin per epoch"},
    COMMAND_FLAG(epoch_options, json, "json", 0, "JSON instead of the table"),
};
static const struct option_table table = {rows, ARRAY_SIZE(rows), NULL};

static const struct command_usage usage = {
    .command = "forebay bench epoch",
    .operands = "DIR",
    .about = "Reads every file below DIR once per epoch, in shuffled order, with several workers: open, "
             "read, close.\n"
             "Every epoch must give the same bytes; exit status 1 when it does not.",
    .min_operands = 1,
    .max_operands = 1,
};

struct line {
    const char *name;
    struct bench_pass pass;
};

static void print_json(const struct line *l, size_t n)
{
    (void)puts("[");
    for (size_t i = 0; i < n; i++) {
        const struct bench_pass *p = &l[i].pass;
        (void)printf(" {\"name\": \"%s\", \"seconds\": %.6f, \"files\": %" PRIu64 ", \"bytes\": %" PRIu64
                     ", \"origin_bytes\": %" PRId64
                     ", \"p50_s\": %.6f, \"p99_s\": %.6f, \"checksum\": %" PRIu64 "}%s\n",
                     l[i].name, p->seconds, p->files, p->bytes, p->origin_bytes, (double)p->p50_ns / 1e9,
                     (double)p->p99_ns / 1e9, p->checksum, i + 1 < n ? "," : "");
    }
    (void)puts("]");
}

static void print_table(const struct line *l, size_t n, bool compared)
{
    const struct bench_pass *disk = compared ? &l[n - 1].pass : NULL;
    (void)printf("%-10s %9s %10s %10s %12s %9s %9s%s\n", "", "seconds", "files/s", "MB/s", "from origin",
                 "p50 ms", "p99 ms", compared ? "   of disk" : "");
    for (size_t i = 0; i < n; i++) {
        const struct bench_pass *p = &l[i].pass;
        char origin[TEXT_SIZE_MAX] = "-";
        if (p->origin_bytes >= 0)
            (void)text_size((uint64_t)p->origin_bytes, origin);
        (void)printf("%-10s %9.2f %10.0f %10.1f %12s %9.2f %9.2f", l[i].name, p->seconds,
                     (double)p->files / p->seconds, (double)p->bytes / 1e6 / p->seconds, origin,
                     (double)p->p50_ns / 1e6, (double)p->p99_ns / 1e6);
        if (disk)
            (void)printf("   %6.0f %%", 100.0 * disk->seconds / p->seconds);
        (void)putchar('\n');
    }
}

static int run_pass(const struct epoch_options *o, const char *root, const struct bench_files *files,
                    uint64_t seed, struct bench_pass *ret, struct err *e)
{
    int64_t before = o->metrics ? bench_origin_bytes(o->metrics) : -1;
    bench_pass_run(root, files, seed, (unsigned)o->workers, o->block, ret);
    int64_t after = before >= 0 ? bench_origin_bytes(o->metrics) : -1;
    ret->origin_bytes = before >= 0 && after >= before ? after - before : -1;
    if (ret->error < 0)
        return err_errno(e, ret->error, "%s/%s", root, ret->failed);
    return 0;
}

static int same_bytes(const struct line *l, size_t n, struct err *e)
{
    for (size_t i = 1; i < n; i++)
        if (l[i].pass.checksum != l[0].pass.checksum || l[i].pass.bytes != l[0].pass.bytes)
            return err_set(e, ERR_CORRUPT, "%s gave other bytes than %s", l[i].name, l[0].name);
    return 0;
}

static int run(const struct epoch_options *o, const char *root, struct err *e)
{
    struct bench_files files;
    int r = bench_files_find(root, &files);
    if (r < 0)
        return err_errno(e, r, "%s", root);
    size_t n = o->epochs + (o->compare ? 1 : 0);
    struct line *lines = calloc(n, sizeof(*lines));
    char(*names)[32] = calloc(n, sizeof(*names));
    assert(lines && names);
    if (files.n == 0)
        r = err_set(e, -ENOENT, "%s: no files", root);
    if (r == 0 && o->compare) { /* once unmeasured, so that both have a warm page cache */
        struct bench_pass warm_up;
        r = run_pass(o, o->compare, &files, 0, &warm_up, e);
    }
    for (size_t i = 0; r == 0 && i < n; i++) {
        bool disk = i == o->epochs;
        (void)snprintf(names[i], sizeof(names[i]), disk ? "plain disk" : "epoch %zu", i + 1);
        lines[i].name = names[i];
        r = run_pass(o, disk ? o->compare : root, &files, o->seed + (disk ? o->epochs - 1 : i),
                     &lines[i].pass, e);
    }
    if (r == 0) {
        char bytes[TEXT_SIZE_MAX];
        if (o->json)
            print_json(lines, n);
        else
            (void)printf("%zu files, %s, %" PRIu64 " workers\n", files.n, text_size(files.bytes, bytes),
                         o->workers);
        if (!o->json)
            print_table(lines, n, o->compare);
        r = same_bytes(lines, n, e);
    }
    bench_files_fini(&files);
    free(lines);
    free(names);
    return r;
}

int bench_epoch(int argc, char **argv)
{
    struct epoch_options o = {0};
    int n, status;
    if (command_parse(&usage, &table, &o, argc, argv, &n, &status)) {
        struct err e = {0};
        int r = run(&o, argv[0], &e);
        if (r < 0)
            status = command_fail(usage.command, r, &e);
    }
    option_fini(&table, &o);
    return status;
}
