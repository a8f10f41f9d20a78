/*
 * forebay bench model: loads a safetensors file as programs that serve models do, through a mapping tensor by
 * tensor, by one pread per tensor, or as a whole, and says how long that took. A file that is missing is
 * made.
 *
 * The format (safetensors): 8 bytes little-endian length of the header; the header, a JSON object of tensors
 * with their dtype, shape and data_offsets [begin, end) behind the header; the tensors.
 *
 * Invariants:
 *  1. Only reading is timed. Bytes are compared after the last one was read: what a file system brings ahead
 * meanwhile would be had for nothing. The memory of preads is there before, as that of a model. A mapping is
 * read once per cache line.
 *  2. Files made here say so in their header, and every byte is compared with what was written. Of others the
 *     checksum must be the same in every way and pass.
 *
 *  3. What --drop could not drop is told: a load that the page cache served is not told as one that it did
 * not.
 *
 * Failure modes: a header that is not one, a short file, a mapping whose bytes cannot be had: one line, exit
 * status 1. Headers beyond 100 MB are refused, as safetensors itself does. A signal to end: the same, and
 * nothing is left of a file that was being made.
 */
#include "cli/bench_model.h"
#include "cli/bench.h"
#include "cli/bench_report.h"
#include "cli/command.h"

#include "base/crc32c.h"
#include "base/hash.h"
#include "base/pattern.h"
#include "base/sys.h"
#include "base/text.h"

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/mman.h>

#define LINE_BYTES   64
#define PAGE_MIN     4096 /* bytes */
#define WINDOW_BYTES GIB  /* looked at with one call */
#define PATH_BYTES   (4 * KIB)

/* X(NAME, name) */
#define MODEL_WAYS(X)                                                                                        \
    X(MMAP, "mmap")                                                                                          \
    X(PREAD, "pread")                                                                                        \
    X(WHOLE, "whole")

enum model_way {
#define X(NAME, name) WAY_##NAME,
    MODEL_WAYS(X)
#undef X
        WAY_COUNT
};

static const char *const way_names[] = {
#define X(NAME, name) name,
    MODEL_WAYS(X)
#undef X
};

struct model_options {
    uint64_t size, tensors, passes, seed;
    char *ways;
    int order;
    bool drop, quiet, json;
};

#define ROW(name_, type_, field, def_, min_, max_, arg_, doc_)                                               \
    {                                                                                                        \
        .name = (name_), .type = (type_), .offset = offsetof(struct model_options, field), .def = (def_),    \
        .min = (min_), .max = (max_), .arg = (arg_), .doc = (doc_)                                           \
    }

static const struct option rows[] = {
    ROW("ways", OPTION_STRING, ways, "mmap,pread,whole", 0, 0, "WAY,...", "how to read: mmap, pread, whole"),
    {.name = "order",
     .type = OPTION_ENUM,
     .offset = offsetof(struct model_options, order),
     .def = "shuffled",
     .choices = "file|shuffled",
     .arg = "ORDER",
     .doc = "mmap and pread: tensors as they lie, or in any order"},
    ROW("passes", OPTION_UINT, passes, "3", 1, 1000, "N", "loads in each way"),
    COMMAND_FLAG(model_options, drop, "drop", 0,
                 "drop the file from the page cache before each load, as far as you may; tells what stayed"),
    ROW("size", OPTION_SIZE, size, "1GiB", 1, TIB, "SIZE", "bytes of a file that is made"),
    ROW("tensors", OPTION_UINT, tensors, "100", 1, 100000, "N", "tensors of a file that is made"),
    ROW("seed", OPTION_UINT, seed, "1", 0, 0, "N", "of its contents and of the order"),
    COMMAND_FLAG(model_options, quiet, "quiet", 'q', "no progress"),
    COMMAND_FLAG(model_options, json, "json", 0, "JSON instead of the table"),
};
static const struct option_table table = {rows, ARRAY_SIZE(rows), NULL};

static const struct command_usage usage = {
    .command = "forebay bench model",
    .operands = "FILE.safetensors",
    .about = "Loads a model in several ways and prints how long the whole and the first tensor took. Makes "
             "the file when it "
             "is missing.\n"
             "Every byte is compared: with what was written, or in other files between the loads; exit "
             "status 1 when "
             "one differs.",
    .min_operands = 1,
    .max_operands = 1,
};

/* One load. */
struct load {
    uint64_t ns, first_ns;
    uint64_t checksum; /* sum over the tensors of crc32c of number and bytes */
};

struct model {
    const struct model_options *o;
    const char *path;
    struct model_file file;
    uint32_t *order;
    bool ways[WAY_COUNT];
    struct load *loads; /* passes of each way */
    char *memory;       /* of preads: all tensors, in their places */
    int64_t left_bytes; /* most that --drop left in the page cache; -1: not known */
    struct progress *progress;
};

static uint64_t data_bytes(const struct model *m)
{
    return m->file.bytes - m->file.data_offset;
}

static volatile uint64_t sink; /* keeps the loads of a mapping */

/* After the time was taken: the bytes of tensor i. */
static int compare(struct model *m, size_t i, const char *bytes, struct load *l, struct err *e)
{
    const struct model_tensor *t = &m->file.tensors[i];
    uint32_t number = (uint32_t)i, crc = crc32c(0, &number, sizeof(number));
    l->checksum += crc32c(crc, bytes, t->end - t->begin);
    progress_add(m->progress, 0, t->end - t->begin);
    if (!m->file.ours)
        return 0;
    int64_t wrong = pattern_check(m->file.pattern, t->begin, bytes, t->end - t->begin);
    if (wrong < 0)
        return 0;
    return err_set(e, ERR_CORRUPT, "%s: byte %" PRIu64 " is not what was written", m->path,
                   m->file.data_offset + (uint64_t)wrong);
}

/* The time since `from` is the load's; comparing is not. */
static void timed(struct load *l, uint64_t from)
{
    l->ns += sys->mono_ns() - from;
    l->first_ns = l->first_ns ? l->first_ns : l->ns;
}

/* All tensors, of which the first byte is at `data`, in the order in which they were read; or, where the
 * reading was interrupted, that it was. */
static int compare_all(struct model *m, const char *data, struct load *l, struct err *e)
{
    int r = 0;
    for (size_t i = 0; i < m->file.n && r == 0; i++)
        r = bench_interrupted() ? err_set(e, -EINTR, "interrupted")
                                : compare(m, m->order[i], data + m->file.tensors[m->order[i]].begin, l, e);
    return r;
}

static char bus_message[PATH_BYTES + 64]; /* of the file that is mapped */

/* A page of the mapping that cannot be read, because the file got shorter or its file system failed. */
static void on_bus(int number)
{
    (void)!write(STDERR_FILENO, bus_message, strlen(bus_message));
    _exit(1);
}

static uint64_t touch(const char *p, uint64_t n)
{
    uint64_t sum = 0;
    for (uint64_t at = 0; at < n; at += LINE_BYTES)
        sum += (unsigned char)p[at];
    return sum;
}

static int by_mmap(struct model *m, int fd, struct load *l, uint64_t from, struct err *e)
{
    char *p = mmap(NULL, m->file.bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return err_errno(e, -errno, "map %s", m->path);
    for (size_t i = 0; i < m->file.n && !bench_interrupted(); i++) {
        const struct model_tensor *t = &m->file.tensors[m->order[i]];
        sink += touch(p + m->file.data_offset + t->begin, t->end - t->begin);
        if (i == 0)
            l->first_ns = sys->mono_ns() - from;
    }
    timed(l, from);
    int r = compare_all(m, p + m->file.data_offset, l, e);
    (void)munmap(p, m->file.bytes);
    return r;
}

static int by_pread(struct model *m, int fd, struct load *l, uint64_t from, struct err *e)
{
    for (size_t i = 0; i < m->file.n && !bench_interrupted(); i++) {
        const struct model_tensor *t = &m->file.tensors[m->order[i]];
        int r = sys_pread_all(fd, m->memory + t->begin, t->end - t->begin, m->file.data_offset + t->begin);
        if (r < 0)
            return err_errno(e, r, "read %s", m->path);
        if (i == 0)
            l->first_ns = sys->mono_ns() - from;
    }
    timed(l, from);
    return compare_all(m, m->memory, l, e);
}

static int by_whole(struct model *m, int fd, struct load *l, uint64_t from, struct err *e)
{
    _cleanup_free_ char *bytes = malloc(m->file.bytes);
    if (!bytes)
        return err_set(e, -ENOMEM, "%s: no memory for %" PRIu64 " bytes", m->path, m->file.bytes);
    int r = sys_pread_all(fd, bytes, m->file.bytes, 0);
    timed(l, from);
    return r < 0 ? err_errno(e, r, "read %s", m->path) : compare_all(m, bytes + m->file.data_offset, l, e);
}

/* ---- cold loads ---- */

/* Calls `fn` for each run of resident pages of the mapping p..p+n. false: nobody says which are. */
static bool each_resident(char *p, size_t n, void (*fn)(void *arg, char *p, size_t n), void *arg)
{
    static unsigned char pages[WINDOW_BYTES / PAGE_MIN];
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    assert(page >= PAGE_MIN);
    for (size_t at = 0; at < n; at += WINDOW_BYTES) {
        size_t window = MIN(n - at, (size_t)WINDOW_BYTES), count = (window + page - 1) / page;
        if (mincore(p + at, window, pages) < 0)
            return false;
        for (size_t i = 0, k; i < count; i = k + 1) {
            for (k = i; k < count && pages[k] & 1; k++)
                ;
            if (k > i)
                fn(arg, p + at + i * page, MIN((k - i) * page, window - i * page));
        }
    }
    return true;
}

static void on_resident(void *arg, char *p, size_t n)
{
    *(uint64_t *)arg += n;
}

/* What lies behind another file system, as a cached file behind a mount does, goes through a mapping. */
static void push_out(void *arg, char *p, size_t n)
{
    sink += touch(p, n); /* only what is mapped is pushed out */
    (void)madvise(p, n, MADV_PAGEOUT);
}

/* The kernel says what is in the page cache only to those who may write the file. */
static bool may_look(const struct model *m, const struct stat *st)
{
    return geteuid() == 0 || st->st_uid == geteuid() || access(m->path, W_OK) == 0;
}

static int drop(struct model *m, struct err *e)
{
    struct stat st;
    uint64_t left = 0;
    _cleanup_close_ int fd = sys->open(m->path, O_RDONLY | O_CLOEXEC, 0);
    int r = fd < 0 ? fd : sys->fstat(fd, &st);
    if (r < 0)
        return err_errno(e, r, "%s", m->path);
    (void)sys->fsync(fd);
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    char *p = may_look(m, &st) ? mmap(NULL, m->file.bytes, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (p == MAP_FAILED) {
        m->left_bytes = -1;
        return 0;
    }
    bool known = true;
    for (uint64_t before = UINT64_MAX; known; before = left) { /* what was just used is spared once */
        left = 0;
        known = each_resident(p, m->file.bytes, on_resident, &left);
        if (left == 0 || left >= before)
            break;
        known = known && each_resident(p, m->file.bytes, push_out, NULL);
    }
    (void)munmap(p, m->file.bytes);
    m->left_bytes = !known || m->left_bytes < 0 ? -1 : MAX(m->left_bytes, (int64_t)left);
    return 0;
}

static int one(struct model *m, enum model_way way, struct load *l, struct err *e)
{
    static int (*const by[])(struct model * m, int fd, struct load *l, uint64_t from,
                             struct err *e) = {by_mmap, by_pread, by_whole};
    int r = m->o->drop ? drop(m, e) : 0;
    if (r < 0)
        return r;
    uint64_t from = sys->mono_ns();
    _cleanup_close_ int fd = sys->open(m->path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return err_errno(e, fd, "%s", m->path);
    r = by[way](m, fd, l, from, e);
    progress_add(m->progress, 1, 0);
    return r;
}

/* ---- telling ---- */

/* What --drop did, in words. */
static void print_dropped(const struct model *m)
{
    char text[TEXT_SIZE_MAX];
    if (!m->o->drop)
        (void)puts("");
    else if (m->left_bytes < 0)
        (void)puts("; dropped from the page cache before each load; what stayed is not known");
    else
        (void)printf("; dropped from the page cache before each load, where %s stayed\n",
                     m->left_bytes ? text_size((uint64_t)m->left_bytes, text) : "nothing");
}

static int compare_u64(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* Median over the passes of one way. */
static double median(const struct model *m, enum model_way way, bool first)
{
    uint64_t n = m->o->passes;
    _cleanup_free_ uint64_t *v = calloc(n, sizeof(v[0]));
    assert(v);
    for (uint64_t i = 0; i < n; i++)
        v[i] = first ? m->loads[way * n + i].first_ns : m->loads[way * n + i].ns;
    qsort(v, n, sizeof(v[0]), compare_u64);
    return ((double)v[(n - 1) / 2] + (double)v[n / 2]) / 2e9;
}

static void print_json(const struct model *m)
{
    (void)printf("{\"bytes\": %" PRIu64 ", \"tensors\": %zu, \"verified\": %s, \"dropped\": %s",
                 data_bytes(m), m->file.n, m->file.ours ? "true" : "false", m->o->drop ? "true" : "false");
    if (m->o->drop && m->left_bytes >= 0)
        (void)printf(", \"left_in_page_cache_bytes\": %" PRId64, m->left_bytes);
    else if (m->o->drop)
        (void)fputs(", \"left_in_page_cache_bytes\": null", stdout);
    for (int way = 0; way < WAY_COUNT; way++) {
        if (!m->ways[way])
            continue;
        double s = median(m, (enum model_way)way, false);
        (void)printf(
            ", \"%s\": {\"seconds\": %.9f, \"first_tensor_s\": %.9f, \"bytes_per_s\": %.0f, \"all_s\": [",
            way_names[way], s, median(m, (enum model_way)way, true), (double)data_bytes(m) / s);
        for (uint64_t i = 0; i < m->o->passes; i++)
            (void)printf("%s%.9f", i ? ", " : "",
                         (double)m->loads[(uint64_t)way * m->o->passes + i].ns / 1e9);
        (void)fputs("]}", stdout);
    }
    (void)puts("}");
}

static void print_table(const struct model *m)
{
    char text[TEXT_SIZE_MAX];
    (void)printf("%zu tensors, %s; medians of %" PRIu64, m->file.n, text_size(data_bytes(m), text),
                 m->o->passes);
    print_dropped(m);
    (void)printf("\n%-8s %10s %14s %16s\n", "", "seconds", "rate", "first tensor ms");
    for (int way = 0; way < WAY_COUNT; way++) {
        if (!m->ways[way])
            continue;
        double s = median(m, (enum model_way)way, false);
        (void)printf("%-8s %10.3f %12s/s %16.3f\n", way_names[way], s,
                     text_size((uint64_t)((double)data_bytes(m) / s), text),
                     1000 * median(m, (enum model_way)way, true));
    }
}

/* ---- running ---- */

static int parse_ways(struct model *m, struct err *e)
{
    struct slice rest = slice_str(m->o->ways);
    bool any = false;
    while (rest.n > 0) {
        struct slice name = slice_split(&rest, ',');
        int way = 0;
        while (way < WAY_COUNT && !slice_eq_str(name, way_names[way]))
            way++;
        if (way == WAY_COUNT)
            return err_set(e, ERR_BAD_OPTION, "--ways %s: must be of mmap, pread and whole", m->o->ways);
        m->ways[way] = any = true;
    }
    return any ? 0 : err_set(e, ERR_BAD_OPTION, "--ways: must name at least one of mmap, pread and whole");
}

static int measure(struct model *m, struct err *e)
{
    uint64_t first_checksum = 0;
    bool any = false;
    (void)snprintf(bus_message, sizeof(bus_message), "%s: %s: cannot be read through its mapping\n",
                   usage.command, m->path);
    (void)signal(SIGBUS, on_bus);
    for (uint64_t i = 0; i < m->o->passes; i++)
        for (int way = 0; way < WAY_COUNT; way++) {
            struct load *l = &m->loads[(uint64_t)way * m->o->passes + i];
            if (!m->ways[way])
                continue;
            int r = one(m, (enum model_way)way, l, e);
            if (r < 0)
                return r;
            if (any && l->checksum != first_checksum)
                return err_set(e, ERR_CORRUPT, "%s: %s gave other bytes than the load before", m->path,
                               way_names[way]);
            first_checksum = l->checksum;
            any = true;
        }
    return 0;
}

static int run(struct model *m, struct err *e)
{
    const struct model_options *o = m->o;
    struct stat st;
    int r = parse_ways(m, e);
    if (r == 0 && sys->stat(m->path, &st) == -ENOENT)
        r = model_file_make(m->path, o->size, o->tensors, o->seed, e);
    r = r < 0 ? r : model_file_open(m->path, &m->file, e);
    if (r < 0)
        return r;
    m->order = calloc(MAX(m->file.n, (size_t)1), sizeof(m->order[0]));
    m->loads = calloc(WAY_COUNT * o->passes, sizeof(*m->loads));
    assert(m->order && m->loads);
    for (size_t i = 0; i < m->file.n; i++) {
        size_t k = o->order ? hash_mix(o->seed, i) % (i + 1) : i; /* Fisher and Yates, from inside out */
        m->order[i] = m->order[k];
        m->order[k] = (uint32_t)i;
    }
    m->memory = m->ways[WAY_PREAD] ? malloc(data_bytes(m)) : NULL;
    if (m->ways[WAY_PREAD] && !m->memory)
        return err_set(e, -ENOMEM, "%s: no memory for %" PRIu64 " bytes", m->path, data_bytes(m));
    if (m->memory)
        memset(m->memory, 0, data_bytes(m)); /* so that no pread waits for its pages */
    m->progress = progress_new("loaded", 0, 0, o->quiet || o->json);
    r = measure(m, e);
    progress_drop(m->progress);
    if (r == 0 && o->json)
        print_json(m);
    else if (r == 0)
        print_table(m);
    return r;
}

int bench_model(int argc, char **argv)
{
    struct model_options o = {0};
    int n, status;
    if (command_parse(&usage, &table, &o, argc, argv, &n, &status)) {
        struct err e = {0};
        struct model m = {.o = &o, .path = argv[0]};
        bench_interrupts();
        int r = run(&m, &e);
        if (r < 0)
            status = command_fail(usage.command, r, &e);
        model_file_close(&m.file);
        free(m.order);
        free(m.loads);
        free(m.memory);
    }
    option_fini(&table, &o);
    return status;
}
