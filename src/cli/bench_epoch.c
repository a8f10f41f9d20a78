/*
 * forebay bench epoch: reads every file of a directory, a bucket or an S3 prefix once per epoch as a training
 * loop does, and prints what a person who trains on them wants to know: how fast, how long the accelerator
 * waited, how much of it came from the origin, and how that compares with a plain disk.
 */
#include "cli/bench.h"
#include "cli/bench_pass.h"

#include "base/text.h"

#include <inttypes.h>

#define NAME_BYTES 64
#define MADE       "made/"

struct epoch_options {
    struct bench_target_options target;
    uint64_t epochs, workers, seed, window, batch, prefetch, compute_ms, data_seed;
    int order;
    char *compare, *metrics, *make;
    bool verify, apart, quiet, json;
};

#define ROW(name_, type_, field, def_, min_, max_, arg_, doc_)                                               \
    {                                                                                                        \
        .name = (name_), .type = (type_), .offset = offsetof(struct epoch_options, field), .def = (def_),    \
        .min = (min_), .max = (max_), .arg = (arg_), .doc = (doc_)                                           \
    }

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
    {.name = "order",
     .type = OPTION_ENUM,
     .offset = offsetof(struct epoch_options, order),
     .def = "shuffled",
     .choices = "fixed|shuffled|windowed",
     .arg = "ORDER",
     .doc = "as listed, shuffled, or shuffled within --window"},
    ROW("window", OPTION_UINT, window, "1000", 1, UINT32_MAX, "N", "samples of a shuffle buffer"),
    ROW("batch", OPTION_UINT, batch, "32", 1, 1000000, "N", "samples of one step"),
    ROW("prefetch", OPTION_UINT, prefetch, "2", 0, 1000000, "N", "batches read ahead"),
    ROW("compute", OPTION_DURATION, compute_ms, "0ms", 0, 3600000, "TIME",
        "time that the accelerator computes in each step"),
    ROW("seed", OPTION_UINT, seed, "1", 0, 0, "N", "of the order; each epoch has its own"),
    ROW("make", OPTION_STRING, make, NULL, 0, 0, "COUNTxSIZE",
        "make these files first where they are missing, as 2000x110KiB, and verify every byte"),
    COMMAND_FLAG(epoch_options, verify, "verify", 0, "the files are those of --make: verify every byte"),
    COMMAND_FLAG(epoch_options, apart, "verify-apart", 0,
                 "look at the bytes in passes of their own, before and after the epochs, which only read"),
    ROW("data-seed", OPTION_UINT, data_seed, "1", 0, 0, "N", "of the contents that --make gives files"),
    ROW("compare", OPTION_STRING, compare, NULL, 0, 0, "DIR",
        "the same files on a plain disk: read in the same way at the end, as the yardstick"),
    ROW("metrics", OPTION_STRING, metrics, NULL, 0, 0, "HOST:PORT",
        "the node's HTTP address: shows bytes from the origin per epoch"),
    COMMAND_FLAG(epoch_options, quiet, "quiet", 'q', "no progress"),
    COMMAND_FLAG(epoch_options, json, "json", 0, "JSON instead of the table"),
    BENCH_TARGET_ROWS(epoch_options),
};
static const struct option_table table = {rows, ARRAY_SIZE(rows), NULL};

static const struct command_usage usage = {
    .command = "forebay bench epoch",
    .operands = "DIR|s3://BUCKET[/PREFIX]|BUCKET[/PREFIX]",
    .about =
        "Reads every file once per epoch with several workers, while an accelerator waits for batches and "
        "computes.\n"
        "Every epoch must give the same bytes, and files of --make those that were made; exit status 1 when "
        "they do not.",
    .min_operands = 1,
    .max_operands = 1,
};

struct line {
    char name[NAME_BYTES];
    struct bench_pass pass;
};

struct epoch {
    const struct epoch_options *o;
    struct bench_target target, other; /* other: of --compare */
    struct bench_files files;
    struct line *lines;
    size_t n;
    /* --make */
    uint64_t make_n, make_size, next;
    uint8_t *there;
    struct bench_failure failure;
    struct progress *progress;
};

static int find_files(struct epoch *x, struct err *e)
{
    return bench_files_find(&x->target, x->o->make || x->o->verify ? MADE : "", &x->files, e);
}

/* ---- making files ---- */

static void made_name(uint64_t i, char ret[NAME_BYTES])
{
    (void)snprintf(ret, NAME_BYTES, MADE "%03" PRIu64 "/%06" PRIu64 ".bin", i / 1000 % 1000, i);
}

static int parse_make(struct epoch *x, struct err *e)
{
    struct slice size = slice_str(x->o->make), count = slice_split(&size, 'x');
    if (slice_u64(count, &x->make_n) < 0 || text_parse_size(size, &x->make_size) < 0 || x->make_n == 0 ||
        x->make_n > 100000000)
        return err_set(e, ERR_BAD_OPTION, "--make %s: must be COUNTxSIZE such as 2000x110KiB", x->o->make);
    return 0;
}

static void make_thread(void *arg, unsigned i)
{
    struct epoch *x = arg;
    struct err e = {0};
    struct bench_conn *c = NULL;
    int r = x->target.ops->connect(&x->target, &c, &e);
    uint64_t k;
    while (r == 0 && !bench_failure_is(&x->failure) &&
           (k = __atomic_fetch_add(&x->next, 1, __ATOMIC_RELAXED)) < x->make_n) {
        char name[NAME_BYTES];
        made_name(k, name);
        if (x->there[k])
            continue;
        r = x->target.ops->put(c, name, x->make_size, pattern_of(x->o->data_seed, slice_str(name)), &e);
        progress_add(x->progress, 1, x->make_size);
    }
    if (r < 0)
        bench_failure_set(&x->failure, r, &e);
    x->target.ops->disconnect(c);
}

/* Which of them the listing has, with their size. */
static void mark_made(struct epoch *x)
{
    memset(x->there, 0, x->make_n);
    for (size_t i = 0; i < x->files.n; i++) {
        struct slice s = slice_str(x->files.names[i]);
        ssize_t slash = slice_rfind(s, '/');
        char name[NAME_BYTES];
        uint64_t k;
        if (!slice_ends(s, SLICE_LIT(".bin")) || slash < 0 || x->files.sizes[i] != x->make_size ||
            slice_u64(slice_sub(s, (size_t)slash + 1, s.n - (size_t)slash - 5), &k) < 0 || k >= x->make_n)
            continue;
        made_name(k, name);
        x->there[k] |= slice_eq_str(s, name);
    }
}

/* What was made and is not listed would not be read, and nobody would know. */
static int expect_made(struct epoch *x, struct err *e)
{
    char name[NAME_BYTES];
    mark_made(x);
    for (uint64_t k = 0; k < x->make_n; k++) {
        made_name(k, name);
        if (!x->there[k])
            return err_set(e, ERR_CORRUPT, "%s: was made and is not listed with its size", name);
    }
    return 0;
}

static int make_files(struct epoch *x, struct err *e)
{
    x->there = calloc(x->make_n, 1);
    assert(x->there);
    mark_made(x);
    x->progress = progress_new("made", x->make_n, x->make_n * x->make_size, x->o->quiet || x->o->json);
    int r = bench_threads((unsigned)x->o->workers, NULL, make_thread, x);
    progress_drop(TAKE_PTR(x->progress));
    if (r < 0)
        return err_errno(e, r, "make threads");
    r = bench_failure_take(&x->failure, e);
    if (r < 0)
        return r;
    bench_files_fini(&x->files);
    r = find_files(x, e);
    return r < 0 ? r : expect_made(x, e);
}

/* ---- telling ---- */

/* Share of the time in which the accelerator computed. */
static double utilisation(const struct bench_pass *p)
{
    return (double)p->compute_ns / 1e9 / p->seconds;
}

static void print_json(const struct epoch *x)
{
    (void)puts("[");
    for (size_t i = 0; i < x->n; i++) {
        const struct bench_pass *p = &x->lines[i].pass;
        (void)printf(" {\"name\": \"%s\", \"seconds\": %.6f, \"files\": %" PRIu64 ", \"bytes\": %" PRIu64
                     ", \"origin_bytes\": %" PRId64
                     ", \"p50_s\": %.6f, \"p99_s\": %.6f, \"checksum\": %" PRIu64
                     ",\n  \"samples_per_s\": %.3f, "
                     "\"steps\": %" PRIu64 ", \"verified\": %s, ",
                     x->lines[i].name, p->seconds, p->files, p->bytes, p->origin_bytes,
                     (double)histogram_quantile(&p->times, 0.5) / 1e9,
                     (double)histogram_quantile(&p->times, 0.99) / 1e9, p->checksum,
                     (double)p->files / p->seconds, p->steps, x->o->verify || x->o->make ? "true" : "false");
        if (x->o->compute_ms)
            (void)printf("\"accelerator_utilisation\": %.6f, ", utilisation(p));
        bench_json_times("stall_s", &p->stalls);
        (void)printf("}%s\n", i + 1 < x->n ? "," : "");
    }
    (void)puts("]");
}

static void print_table(const struct epoch *x)
{
    const struct bench_pass *disk = x->o->compare ? &x->lines[x->n - 1].pass : NULL;
    char text[TEXT_SIZE_MAX];
    (void)printf("%zu files, %s, %" PRIu64 " workers\n", x->files.n, text_size(x->files.bytes, text),
                 x->o->workers);
    (void)printf("%-10s %9s %10s %10s %12s %9s %9s %9s %9s%s%s\n", "", "seconds", "files/s", "MB/s",
                 "from origin", "p50 ms", "p99 ms", "stall p50", "stall p99",
                 x->o->compute_ms ? "  computing" : "", disk ? "   of disk" : "");
    for (size_t i = 0; i < x->n; i++) {
        const struct bench_pass *p = &x->lines[i].pass;
        char origin[TEXT_SIZE_MAX] = "-";
        if (p->origin_bytes >= 0)
            (void)text_size((uint64_t)p->origin_bytes, origin);
        (void)printf("%-10s %9.2f %10.0f %10.1f %12s %9.2f %9.2f %9.2f %9.2f", x->lines[i].name, p->seconds,
                     (double)p->files / p->seconds, (double)p->bytes / 1e6 / p->seconds, origin,
                     (double)histogram_quantile(&p->times, 0.5) / 1e6,
                     (double)histogram_quantile(&p->times, 0.99) / 1e6,
                     (double)histogram_quantile(&p->stalls, 0.5) / 1e6,
                     (double)histogram_quantile(&p->stalls, 0.99) / 1e6);
        if (x->o->compute_ms)
            (void)printf("  %7.2f %%", 100 * utilisation(p));
        if (disk)
            (void)printf("   %6.0f %%", 100.0 * disk->seconds / p->seconds);
        (void)putchar('\n');
    }
}

/* ---- running ---- */

static int one_pass(struct epoch *x, struct bench_target *t, uint64_t seed, const char *verb, bool blind,
                    struct bench_pass *ret, struct err *e)
{
    const struct epoch_options *o = x->o;
    int64_t before = o->metrics ? bench_origin_bytes(o->metrics) : -1;
    struct bench_pass_options p = {
        .workers = (unsigned)o->workers,
        .batch = o->batch,
        .prefetch = o->prefetch,
        .order = (enum bench_order)o->order,
        .window = o->window,
        .seed = seed,
        .compute_ns = o->compute_ms * 1000000,
        .verify = o->verify || o->make,
        .blind = blind,
        .data_seed = o->data_seed,
    };
    p.progress = progress_new(verb, x->files.n, x->files.bytes, o->quiet || o->json);
    int r = bench_pass_run(t, &x->files, &p, ret, e);
    progress_drop(p.progress);
    int64_t after = before >= 0 ? bench_origin_bytes(o->metrics) : -1;
    ret->origin_bytes = before >= 0 && after >= before ? after - before : -1;
    return r;
}

static int same_bytes(const struct epoch *x, struct err *e)
{
    for (size_t i = 1; i < x->n; i++)
        if (x->lines[i].pass.checksum != x->lines[0].pass.checksum ||
            x->lines[i].pass.bytes != x->lines[0].pass.bytes)
            return err_set(e, ERR_CORRUPT, "%s gave other bytes than %s", x->lines[i].name, x->lines[0].name);
    return 0;
}

/* A pass whose bytes are looked at and whose time is not told. */
static int look(struct epoch *x, struct bench_target *t, const char *verb, uint64_t *ret_checksum,
                struct err *e)
{
    struct bench_pass *p = calloc(1, sizeof(*p));
    assert(p);
    int r = one_pass(x, t, 0, verb, /* blind= */ false, p, e);
    if (r == 0)
        *ret_checksum = p->checksum;
    free(p);
    return r;
}

static int measure(struct epoch *x, struct err *e)
{
    const struct epoch_options *o = x->o;
    uint64_t before = 0, after = 0, other = 0;
    int r = o->apart ? look(x, &x->target, "verified", &before, e) : 0;
    if (r == 0 && o->compare) /* so that both have a warm page cache */
        r = look(x, &x->other, "warmed", &other, e);
    for (size_t i = 0; r == 0 && i < x->n; i++) {
        bool disk = i == o->epochs;
        struct line *l = &x->lines[i];
        (void)snprintf(l->name, sizeof(l->name), disk ? "plain disk" : "epoch %zu", i + 1);
        r = one_pass(x, disk ? &x->other : &x->target, o->seed + (disk ? o->epochs - 1 : i), "read", o->apart,
                     &l->pass, e);
        if (o->apart)
            l->pass.checksum = disk ? other : before;
    }
    if (r == 0 && o->apart)
        r = look(x, &x->target, "verified", &after, e);
    if (r == 0 && after != before)
        r = err_set(e, ERR_CORRUPT, "the pass after the epochs gave other bytes than the one before them");
    return r == ERR_CORRUPT && o->compare ? err_prefix(e, r, "one of them gave other bytes") : r;
}

static int run(struct epoch *x, const char *text, struct err *e)
{
    const struct epoch_options *o = x->o;
    int r = o->make ? parse_make(x, e) : 0;
    r = r < 0 ? r : bench_target_open(text, &o->target, &x->target, e);
    if (r == 0 && o->compare)
        r = bench_target_open(o->compare, &o->target, &x->other, e);
    if (r == 0 && o->metrics && bench_origin_bytes(o->metrics) < 0)
        r = err_set(e, -EIO, "--metrics %s: gives no metrics of a node", o->metrics);
    r = r < 0 ? r : find_files(x, e);
    if (r == 0 && o->make)
        r = make_files(x, e);
    if (r == 0 && x->files.n == 0)
        r = err_set(e, -ENOENT, "%s: no files", text);
    if (r < 0)
        return r;
    x->n = o->epochs + (o->compare ? 1 : 0);
    x->lines = calloc(x->n, sizeof(*x->lines));
    assert(x->lines);
    r = measure(x, e);
    r = r < 0 ? r : same_bytes(x, e);
    if (r == 0 && o->json)
        print_json(x);
    else if (r == 0)
        print_table(x);
    return r;
}

int bench_epoch(int argc, char **argv)
{
    struct epoch_options o = {0};
    int n, status;
    if (command_parse(&usage, &table, &o, argc, argv, &n, &status)) {
        struct err e = {0};
        struct epoch x = {.o = &o};
        o.target.connections = o.workers;
        bench_failure_init(&x.failure);
        int r = run(&x, argv[0], &e);
        if (r < 0)
            status = command_fail(usage.command, r, &e);
        bench_failure_fini(&x.failure);
        bench_files_fini(&x.files);
        bench_target_close(&x.target);
        bench_target_close(&x.other);
        free(x.there);
        free(x.lines);
    }
    option_fini(&table, &o);
    return status;
}
