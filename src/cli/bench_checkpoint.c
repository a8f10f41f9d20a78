/*
 * forebay bench checkpoint: writes checkpoints into a directory as torch.save does, in one file or in shards
 * written at the same time, and measures what training waits for: write, fsync, close, rename, and how long
 * it takes until a second client sees it.
 *
 * A file is a run of records, each a header of 64 bytes and one tensor written with one call, and a directory
 * of the records at its end, as in the zip files of torch.save.
 *
 * Invariants:
 *  1. The bytes are in memory before the clock starts, as those of a model are.
 *  2. Each checkpoint is read back and compared, byte by byte: what another client cannot read was not
 * written. Tensors of a shard share their memory, but each begins at another place of it, which only each
 * 1024th tensor shares: one in another one's place is found by its bytes, and by its header.
 *
 * Failure modes: a call that fails is told with its name (write, fsync, close, rename), exit status 1. The
 * directory of the run is removed at the end, also then, and when the run is interrupted.
 */
#include "cli/bench.h"
#include "cli/bench_report.h"
#include "cli/command.h"

#include "base/pattern.h"
#include "base/sys.h"
#include "base/text.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>

#define HEADER_BYTES 64
#define PATH_BYTES   (4 * KIB)
#define POLL_NS      1000000 /* looking for a checkpoint at the second client */
#define READ_BYTES   (4 * MIB)
#define SHARDS_MAX   256
#define PLACES       1024 /* where the bytes of a tensor begin in the pattern of its shard */
#define PLACE_BYTES  64

/* X(NAME, name): what is timed, in the order in which it happens */
#define CHECKPOINT_STEPS(X)                                                                                  \
    X(WRITE, "write")                                                                                        \
    X(FSYNC, "fsync")                                                                                        \
    X(CLOSE, "close")                                                                                        \
    X(RENAME, "rename")                                                                                      \
    X(TOTAL, "total")                                                                                        \
    X(VISIBLE, "visible")

enum checkpoint_step {
#define X(NAME, name) STEP_##NAME,
    CHECKPOINT_STEPS(X)
#undef X
        STEP_COUNT
};

static const char *const step_names[] = {
#define X(NAME, name) name,
    CHECKPOINT_STEPS(X)
#undef X
};

struct checkpoint_options {
    uint64_t size, tensor, shards, repeat, seed, visible_ms;
    char *second;
    bool fsync, rename, keep, quiet, json;
};

#define ROW(name_, type_, field, def_, min_, max_, arg_, doc_)                                               \
    {                                                                                                        \
        .name = (name_), .type = (type_), .offset = offsetof(struct checkpoint_options, field),              \
        .def = (def_), .min = (min_), .max = (max_), .arg = (arg_), .doc = (doc_)                            \
    }

static const struct option rows[] = {
    ROW("size", OPTION_SIZE, size, "1GiB", 1, 1024 * TIB, "SIZE", "bytes of a checkpoint"),
    ROW("tensor", OPTION_SIZE, tensor, "64MiB", 1, 4 * GIB, "SIZE", "bytes of a tensor, each one write"),
    ROW("shards", OPTION_UINT, shards, "1", 1, SHARDS_MAX, "N", "files, each written by a thread of its own"),
    ROW("repeat", OPTION_UINT, repeat, "3", 1, 10000, "N", "checkpoints"),
    {.name = "fsync",
     .type = OPTION_BOOL,
     .offset = offsetof(struct checkpoint_options, fsync),
     .def = "true",
     .doc = "fsync each file before it is closed (default; --no-fsync)"},
    {.name = "rename",
     .type = OPTION_BOOL,
     .offset = offsetof(struct checkpoint_options, rename),
     .def = "true",
     .doc = "write under another name, then rename (default; --no-rename)"},
    ROW("second", OPTION_STRING, second, NULL, 0, 0, "DIR",
        "the same directory as another client sees it: there the checkpoint is waited for and read back"),
    ROW("visible-within", OPTION_DURATION, visible_ms, "30s", 1, 3600000, "TIME",
        "how long the second client may take to see it"),
    ROW("seed", OPTION_UINT, seed, "1", 0, 0, "N", "of the contents"),
    COMMAND_FLAG(checkpoint_options, keep, "keep", 0, "leave the last checkpoint there"),
    COMMAND_FLAG(checkpoint_options, quiet, "quiet", 'q', "no progress"),
    COMMAND_FLAG(checkpoint_options, json, "json", 0, "JSON instead of the table"),
};
static const struct option_table table = {rows, ARRAY_SIZE(rows), NULL};

static const struct command_usage usage = {
    .command = "forebay bench checkpoint",
    .operands = "DIR",
    .about =
        "Writes checkpoints into a directory of their own below DIR, as torch.save does, reads each back and "
        "compares it.\n"
        "Exit status 1 when a byte differs, a call fails, or a second client does not see it in time.",
    .min_operands = 1,
    .max_operands = 1,
};

struct checkpoint {
    const struct checkpoint_options *o;
    char *dir, *second; /* of this run */
    uint64_t number;
    uint64_t shard_bytes;
    char **tensors; /* per shard, in memory */
    struct bench_failure failure;
    struct progress *progress;
    struct lock lock;                   /* covers times */
    struct histogram times[STEP_COUNT]; /* of a file; total and visible of a checkpoint */
    double read_seconds;
    uint64_t done; /* checkpoints */
};

static void path_of(const struct checkpoint *c, const char *dir, unsigned shard, const char *suffix,
                    char ret[PATH_BYTES])
{
    (void)snprintf(ret, PATH_BYTES, "%s/checkpoint-%05" PRIu64 "-%03u.pt%s", dir, c->number, shard, suffix);
}

static struct pattern pattern_for(const struct checkpoint *c, unsigned shard, const char *what)
{
    char name[64];
    (void)snprintf(name, sizeof(name), "%s-%u", what, shard);
    return pattern_of(c->o->seed + c->number, slice_str(name));
}

static uint64_t tensors_of(const struct checkpoint *c)
{
    return (c->shard_bytes + c->o->tensor - 1) / c->o->tensor;
}

static uint64_t tensor_bytes(const struct checkpoint *c, uint64_t i)
{
    return MIN(c->o->tensor, c->shard_bytes - i * c->o->tensor);
}

/* Where tensor i begins in what its shard has in memory. */
static uint64_t tensor_from(uint64_t i)
{
    return i % PLACES * PLACE_BYTES;
}

static void took(struct checkpoint *c, enum checkpoint_step step, uint64_t ns)
{
    LOCK_SCOPE(&c->lock);
    histogram_add(&c->times[step], ns);
}

/* ---- writing ---- */

/* Records, and the directory of records at the end: everything that is not a tensor is of the shard's own
 * pattern. */
static int write_records(struct checkpoint *c, unsigned shard, int fd)
{
    char header[HEADER_BYTES];
    struct pattern headers = pattern_for(c, shard, "headers");
    uint64_t at = 0, n = tensors_of(c);
    int r = 0;
    for (uint64_t i = 0; i < n && r == 0 && !bench_failure_is(&c->failure); i++) {
        uint64_t bytes = tensor_bytes(c, i);
        pattern_fill(headers, i * HEADER_BYTES, header, HEADER_BYTES);
        r = sys_pwrite_all(fd, header, HEADER_BYTES, at);
        r = r < 0 ? r
                  : sys_pwrite_all(fd, c->tensors[shard] + tensor_from(i), (size_t)bytes, at + HEADER_BYTES);
        at += HEADER_BYTES + bytes;
        progress_add(c->progress, 0, bytes);
    }
    for (uint64_t i = 0; i < n && r == 0; i++, at += HEADER_BYTES) {
        pattern_fill(headers, (n + i) * HEADER_BYTES, header, HEADER_BYTES);
        r = sys_pwrite_all(fd, header, HEADER_BYTES, at);
    }
    return r;
}

static int timed(struct checkpoint *c, enum checkpoint_step step, int result, uint64_t *from,
                 const char *path, struct err *e)
{
    uint64_t now = sys->mono_ns();
    took(c, step, now - *from);
    *from = now;
    return result < 0 ? err_errno(e, result, "%s %s", step_names[step], path) : 0;
}

static int write_file(struct checkpoint *c, unsigned shard, struct err *e)
{
    char path[PATH_BYTES], final[PATH_BYTES];
    path_of(c, c->dir, shard, c->o->rename ? ".tmp" : "", path);
    path_of(c, c->dir, shard, "", final);
    uint64_t from = sys->mono_ns();
    _cleanup_close_ int fd = sys->open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return err_errno(e, fd, "open %s", path);
    int r = timed(c, STEP_WRITE, write_records(c, shard, fd), &from, path, e);
    if (r == 0 && c->o->fsync)
        r = timed(c, STEP_FSYNC, sys->fsync(fd), &from, path, e);
    if (r < 0)
        return r;
    r = timed(c, STEP_CLOSE, sys->close(TAKE_FD(fd)), &from, path, e);
    if (r == 0 && c->o->rename)
        r = timed(c, STEP_RENAME, sys->rename(path, final), &from, final, e);
    return r;
}

static void write_thread(void *arg, unsigned shard)
{
    struct checkpoint *c = arg;
    struct err e = {0};
    int r = write_file(c, shard, &e);
    if (r < 0)
        bench_failure_set(&c->failure, r, &e);
}

/* ---- the second client ---- */

static uint64_t file_bytes(const struct checkpoint *c)
{
    return c->shard_bytes + 2 * HEADER_BYTES * tensors_of(c);
}

static int wait_visible(struct checkpoint *c, uint64_t since_ns, struct err *e)
{
    for (unsigned shard = 0; shard < c->o->shards; shard++) {
        char path[PATH_BYTES];
        struct stat st;
        path_of(c, c->second, shard, "", path);
        while (sys->stat(path, &st) < 0 || (uint64_t)st.st_size != file_bytes(c)) {
            if (sys->mono_ns() - since_ns > c->o->visible_ms * 1000000)
                return err_set(e, -ETIMEDOUT, "%s: the second client does not see it", path);
            if (bench_failure_is(&c->failure))
                return bench_failure_take(&c->failure, e);
            sys->sleep_ns(POLL_NS);
        }
    }
    took(c, STEP_VISIBLE, sys->mono_ns() - since_ns);
    return 0;
}

static int compare_piece(int fd, struct pattern p, uint64_t from, uint64_t at, uint64_t n, char *block,
                         const char *path, struct err *e)
{
    for (uint64_t done = 0; done < n;) {
        size_t want = (size_t)MIN(n - done, READ_BYTES);
        int r = sys_pread_all(fd, block, want, at + done);
        if (r < 0)
            return err_errno(e, r, "read %s", path);
        int64_t wrong = pattern_check(p, from + done, block, want);
        if (wrong >= 0)
            return err_set(e, ERR_CORRUPT, "%s: byte %" PRIu64 " is not what was written", path,
                           at + ((uint64_t)wrong - from));
        done += want;
    }
    return 0;
}

static int read_back(struct checkpoint *c, unsigned shard, struct err *e)
{
    char path[PATH_BYTES];
    path_of(c, c->second, shard, "", path);
    _cleanup_free_ char *block = malloc(READ_BYTES);
    assert(block);
    _cleanup_close_ int fd = sys->open(path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return err_errno(e, fd, "open %s", path);
    struct pattern headers = pattern_for(c, shard, "headers"), tensor = pattern_for(c, shard, "tensor");
    uint64_t at = 0, n = tensors_of(c);
    int r = 0;
    for (uint64_t i = 0; i < n && r == 0 && !bench_failure_is(&c->failure); i++) {
        r = compare_piece(fd, headers, i * HEADER_BYTES, at, HEADER_BYTES, block, path, e);
        at += HEADER_BYTES;
        r = r < 0 ? r : compare_piece(fd, tensor, tensor_from(i), at, tensor_bytes(c, i), block, path, e);
        at += tensor_bytes(c, i);
    }
    return r < 0 ? r : compare_piece(fd, headers, n * HEADER_BYTES, at, n * HEADER_BYTES, block, path, e);
}

static void read_thread(void *arg, unsigned shard)
{
    struct checkpoint *c = arg;
    struct err e = {0};
    int r = read_back(c, shard, &e);
    if (r < 0)
        bench_failure_set(&c->failure, r, &e);
}

/* ---- a checkpoint ---- */

static void fill_thread(void *arg, unsigned shard)
{
    struct checkpoint *c = arg;
    pattern_fill(pattern_for(c, shard, "tensor"), 0, c->tensors[shard],
                 (size_t)(MIN(c->o->tensor, c->shard_bytes) + PLACES * PLACE_BYTES));
}

static int in_threads(struct checkpoint *c, void (*fn)(void *arg, unsigned shard), struct err *e)
{
    int r = bench_threads((unsigned)c->o->shards, NULL, fn, c);
    return r < 0 ? err_errno(e, r, "make %" PRIu64 " threads", c->o->shards)
                 : bench_failure_take(&c->failure, e);
}

static void remove_files(struct checkpoint *c)
{
    for (unsigned shard = 0; shard < c->o->shards; shard++) {
        char path[PATH_BYTES];
        path_of(c, c->dir, shard, "", path);
        (void)sys->unlink(path);
        path_of(c, c->dir, shard, ".tmp", path);
        (void)sys->unlink(path);
    }
}

static int one(struct checkpoint *c, struct err *e)
{
    int r = in_threads(c, fill_thread, e);
    uint64_t from = sys->mono_ns();
    r = r < 0 ? r : in_threads(c, write_thread, e);
    uint64_t written = sys->mono_ns();
    if (r < 0)
        return r;
    took(c, STEP_TOTAL, written - from);
    r = wait_visible(c, written, e);
    from = sys->mono_ns();
    r = r < 0 ? r : in_threads(c, read_thread, e);
    c->read_seconds += (double)(sys->mono_ns() - from) / 1e9;
    progress_add(c->progress, 1, 0);
    c->done += r == 0;
    return r;
}

static int prepare(struct checkpoint *c, const char *dir, struct err *e)
{
    char name[PATH_BYTES];
    uint64_t unique;
    sys->random(&unique, sizeof(unique));
    (void)snprintf(name, sizeof(name), "%s/forebay-bench-%08" PRIx32, dir, (uint32_t)unique);
    c->dir = slice_dup(slice_str(name));
    (void)snprintf(name, sizeof(name), "%s/forebay-bench-%08" PRIx32, c->o->second ? c->o->second : dir,
                   (uint32_t)unique);
    c->second = slice_dup(slice_str(name));
    c->shard_bytes = (c->o->size + c->o->shards - 1) / c->o->shards;
    c->tensors = calloc(c->o->shards, sizeof(c->tensors[0]));
    assert(c->tensors);
    uint64_t bytes = MIN(c->o->tensor, c->shard_bytes) + PLACES * PLACE_BYTES;
    for (uint64_t i = 0; i < c->o->shards; i++)
        if (posix_memalign((void **)&c->tensors[i], 4096, bytes) != 0)
            return err_set(e, -ENOMEM, "--tensor: no memory for %" PRIu64 " shards of %" PRIu64 " bytes",
                           c->o->shards, bytes);
    int r = sys->mkdir(c->dir, 0777);
    return r < 0 ? err_errno(e, r, "make %s", c->dir) : 0;
}

/* ---- telling ---- */

static double rate(const struct checkpoint *c)
{
    return (double)c->done * (double)file_bytes(c) * (double)c->o->shards /
           ((double)c->times[STEP_TOTAL].sum / 1e9);
}

static double read_rate(const struct checkpoint *c)
{
    return (double)c->done * (double)file_bytes(c) * (double)c->o->shards / c->read_seconds;
}

static void print_json(const struct checkpoint *c)
{
    (void)printf(
        "{\"checkpoints\": %" PRIu64 ", \"shards\": %" PRIu64 ", \"bytes\": %" PRIu64
        ", \"fsync\": %s, \"rename\": %s, \"write_bytes_per_s\": %.0f, \"read_back_bytes_per_s\": %.0f",
        c->done, c->o->shards, file_bytes(c) * c->o->shards, c->o->fsync ? "true" : "false",
        c->o->rename ? "true" : "false", rate(c), read_rate(c));
    for (int i = 0; i < STEP_COUNT; i++) {
        char name[32];
        if (c->times[i].count == 0)
            continue;
        (void)snprintf(name, sizeof(name), "%s_s", step_names[i]);
        (void)fputs(", ", stdout);
        bench_json_times(name, &c->times[i]);
    }
    (void)puts("}");
}

static void print_table(const struct checkpoint *c)
{
    char bytes[TEXT_SIZE_MAX], write[TEXT_SIZE_MAX], read[TEXT_SIZE_MAX];
    (void)printf("%" PRIu64 " checkpoints of %s in %" PRIu64 " file%s: written %s/s, read back %s/s\n\n%-10s",
                 c->done, text_size(file_bytes(c) * c->o->shards, bytes), c->o->shards,
                 c->o->shards == 1 ? "" : "s", text_size((uint64_t)rate(c), write),
                 text_size((uint64_t)read_rate(c), read), "");
    bench_table_times_head();
    for (int i = 0; i < STEP_COUNT; i++) {
        if (c->times[i].count == 0)
            continue;
        (void)printf("\n%-10s", step_names[i]);
        bench_table_times(&c->times[i]);
    }
    (void)putchar('\n');
}

static int run(struct checkpoint *c, const char *dir, struct err *e)
{
    int r = prepare(c, dir, e);
    c->progress = progress_new("written", c->o->repeat, c->o->repeat * c->o->size, c->o->quiet || c->o->json);
    for (uint64_t i = 0; i < c->o->repeat && r == 0; i++) {
        c->number = i + 1;
        r = one(c, e);
        if (r < 0 || i + 1 < c->o->repeat || !c->o->keep)
            remove_files(c);
    }
    progress_drop(c->progress);
    if (r == 0 && c->o->json)
        print_json(c);
    else if (r == 0)
        print_table(c);
    (void)rmdir(c->dir); /* stays when a checkpoint is kept */
    return r;
}

int bench_checkpoint(int argc, char **argv)
{
    struct checkpoint_options o = {0};
    int n, status;
    if (command_parse(&usage, &table, &o, argc, argv, &n, &status)) {
        struct err e = {0};
        struct checkpoint *c = calloc(1, sizeof(*c));
        assert(c);
        c->o = &o;
        lock_init(&c->lock, LOCK_LEAF);
        bench_failure_init(&c->failure);
        bench_interrupts();
        int r = run(c, argv[0], &e);
        if (r < 0)
            status = command_fail(usage.command, r, &e);
        for (uint64_t i = 0; c->tensors && i < o.shards; i++)
            free(c->tensors[i]);
        free(c->tensors);
        free(c->dir);
        free(c->second);
        bench_failure_fini(&c->failure);
        lock_fini(&c->lock);
        free(c);
    }
    option_fini(&table, &o);
    return status;
}
