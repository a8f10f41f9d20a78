/*
 * forebay bench meta: what a file system's names cost, after the manner of mdtest: each worker has a tree of
 * its own in which it creates, stats, lists, reads, renames and removes many files, one kind of operation
 * after the other.
 *
 * Invariants:
 *  1. A phase begins when all workers have ended the one before; its rate is that of all of them, from when
 * all threads are there.
 *  2. What is found is what was made: sizes of stats, names of listings, bytes of reads, and nothing after
 * the removal.
 *  3. Contents are made before the first phase: a file's are a piece of its worker's pattern, at a place that
 * only each 1024th file shares.
 *
 * Failure modes: the first operation that fails or finds something else ends the run, exit status 1, with its
 * name and path. The tree of the run is removed also then, and when the run is interrupted.
 */
#include "cli/bench.h"
#include "cli/bench_report.h"
#include "cli/command.h"

#include "base/hash.h"
#include "base/pattern.h"
#include "base/sys.h"
#include "base/text.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>

#define PATH_BYTES  (4 * KIB)
#define PLACES      1024 /* where the contents of a file begin in the pattern of its worker */
#define PLACE_BYTES 64
#define FILE_NAME   "%c%08" PRIu64

/* X(NAME, name), in the order in which they run */
#define META_PHASES(X)                                                                                       \
    X(MKDIR, "mkdir")                                                                                        \
    X(CREATE, "create")                                                                                      \
    X(STAT, "stat")                                                                                          \
    X(LIST, "list")                                                                                          \
    X(READ, "read")                                                                                          \
    X(RENAME, "rename")                                                                                      \
    X(UNLINK, "unlink")                                                                                      \
    X(RMDIR, "rmdir")

enum meta_phase {
#define X(NAME, name) PHASE_##NAME,
    META_PHASES(X)
#undef X
        PHASE_COUNT
};

static const char *const phase_names[] = {
#define X(NAME, name) name,
    META_PHASES(X)
#undef X
};

struct meta_options {
    uint64_t files, per_directory, workers, size, seed;
    bool fsync, quiet, json;
};

#define ROW(name_, type_, field, def_, min_, max_, arg_, doc_)                                               \
    {                                                                                                        \
        .name = (name_), .type = (type_), .offset = offsetof(struct meta_options, field), .def = (def_),     \
        .min = (min_), .max = (max_), .arg = (arg_), .doc = (doc_)                                           \
    }

static const struct option rows[] = {
    ROW("files", OPTION_UINT, files, "1000", 1, 100000000, "N", "files of each worker"),
    ROW("per-directory", OPTION_UINT, per_directory, "100", 1, 10000000, "N", "files in one directory"),
    {.name = "workers",
     .short_flag = 'w',
     .type = OPTION_UINT,
     .offset = offsetof(struct meta_options, workers),
     .def = "2",
     .min = 1,
     .max = 1024,
     .arg = "N",
     .doc = "threads, each with a tree of its own"},
    ROW("size", OPTION_SIZE, size, "0", 0, GIB, "SIZE", "bytes of each file"),
    COMMAND_FLAG(meta_options, fsync, "fsync", 0, "fsync each file that is created"),
    ROW("seed", OPTION_UINT, seed, "1", 0, 0, "N", "of the contents"),
    COMMAND_FLAG(meta_options, quiet, "quiet", 'q', "no progress"),
    COMMAND_FLAG(meta_options, json, "json", 0, "JSON instead of the table"),
};
static const struct option_table table = {rows, ARRAY_SIZE(rows), NULL};

static const struct command_usage usage = {
    .command = "forebay bench meta",
    .operands = "DIR",
    .about = "Creates, stats, lists, reads, renames and removes files in a tree of its own below DIR, and "
             "prints the rate of "
             "each.\n"
             "What is found must be what was made; exit status 1 when it is not.",
    .min_operands = 1,
    .max_operands = 1,
};

/* What a worker writes, and where it reads to; without --size neither. */
struct bytes {
    char *pattern, *read;
};

struct meta {
    const struct meta_options *o;
    char *dir;
    enum meta_phase phase;
    struct bench_failure failure;
    struct progress *progress;
    struct lock lock; /* covers times */
    struct histogram times[PHASE_COUNT];
    double seconds[PHASE_COUNT];
    uint64_t from_ns;    /* of the phase */
    struct bytes *bytes; /* of each worker */
};

/* One worker's place in a phase. */
struct place {
    struct meta *m;
    unsigned worker;
    struct histogram *times;
    uint64_t listed; /* sum over the names of the listing before */
    struct err *e;
};

static uint64_t directories(const struct meta *m)
{
    return (m->o->files + m->o->per_directory - 1) / m->o->per_directory;
}

static uint64_t files_in(const struct meta *m, uint64_t d)
{
    return MIN(m->o->per_directory, m->o->files - d * m->o->per_directory);
}

static void dir_path(const struct place *p, uint64_t d, char ret[PATH_BYTES])
{
    (void)snprintf(ret, PATH_BYTES, "%s/w%03u/d%06" PRIu64, p->m->dir, p->worker, d);
}

/* `kind` 'f' as created, 'r' after the renaming. */
static void file_path(const struct place *p, uint64_t i, char kind, char ret[PATH_BYTES])
{
    (void)snprintf(ret, PATH_BYTES, "%s/w%03u/d%06" PRIu64 "/" FILE_NAME, p->m->dir, p->worker,
                   i / p->m->o->per_directory, kind, i);
}

/* The contents of a file. */
static const char *contents(const struct place *p, uint64_t i)
{
    return p->m->bytes[p->worker].pattern + i % PLACES * PLACE_BYTES;
}

/* ---- one operation each ---- */

static int do_create(struct place *p, uint64_t i, const char *path)
{
    uint64_t size = p->m->o->size;
    _cleanup_close_ int fd = sys->open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return fd;
    int r = size ? sys_pwrite_all(fd, contents(p, i), size, 0) : 0;
    if (r == 0 && p->m->o->fsync)
        r = sys->fsync(fd);
    int closed = sys->close(TAKE_FD(fd));
    return r < 0 ? r : closed;
}

static int do_stat(struct place *p, uint64_t i, const char *path)
{
    struct stat st;
    int r = sys->stat(path, &st);
    return r == 0 && ((uint64_t)st.st_size != p->m->o->size || !S_ISREG(st.st_mode)) ? ERR_CORRUPT : r;
}

static int do_read(struct place *p, uint64_t i, const char *path)
{
    uint64_t size = p->m->o->size;
    _cleanup_close_ int fd = sys->open(path, O_RDONLY | O_CLOEXEC, 0);
    int r = fd < 0 ? fd : size ? sys_pread_all(fd, p->m->bytes[p->worker].read, size, 0) : 0;
    return r;
}

static int do_rename(struct place *p, uint64_t i, const char *path)
{
    char to[PATH_BYTES];
    file_path(p, i, 'r', to);
    return sys->rename(path, to);
}

static int do_unlink(struct place *p, uint64_t i, const char *path)
{
    return sys->unlink(path);
}

static int do_list(struct place *p, uint64_t d, const char *path)
{
    DIR *dir = opendir(path);
    if (!dir)
        return -errno;
    p->listed = 0;
    struct dirent *x = NULL;
    int r;
    while ((r = sys->readdir(dir, &x)) == 0 && x)
        if (x->d_name[0] != '.') /* names with a dot are the file system's own */
            p->listed += hash_placement(slice_str(x->d_name));
    (void)closedir(dir);
    return r;
}

static int do_mkdir(struct place *p, uint64_t d, const char *path)
{
    return sys->mkdir(path, 0777);
}

static int do_rmdir(struct place *p, uint64_t d, const char *path)
{
    return rmdir(path) < 0 ? -errno : 0;
}

static const struct phase {
    int (*run)(struct place *p, uint64_t i, const char *path);
    bool of_directories;
    char kind; /* of the file's name */
} phases[] = {
    [PHASE_MKDIR] = {do_mkdir, true, 0},      [PHASE_CREATE] = {do_create, false, 'f'},
    [PHASE_STAT] = {do_stat, false, 'f'},     [PHASE_LIST] = {do_list, true, 0},
    [PHASE_READ] = {do_read, false, 'f'},     [PHASE_RENAME] = {do_rename, false, 'f'},
    [PHASE_UNLINK] = {do_unlink, false, 'r'}, [PHASE_RMDIR] = {do_rmdir, true, 0},
};

/* ---- phases ---- */

/* Outside the time of the operation: whether READ found what CREATE wrote, and LIST each of its names once.
 */
static int verify(const struct place *p, uint64_t i)
{
    uint64_t size = p->m->o->size;
    if (p->m->phase == PHASE_READ)
        return size && memcmp(p->m->bytes[p->worker].read, contents(p, i), size) != 0 ? ERR_CORRUPT : 0;
    if (p->m->phase != PHASE_LIST)
        return 0;
    uint64_t made = 0, first = i * p->m->o->per_directory;
    for (uint64_t k = first; k < first + files_in(p->m, i); k++) {
        char name[32];
        made += hash_placement(slice_of(name, (size_t)snprintf(name, sizeof(name), FILE_NAME, 'f', k)));
    }
    return p->listed == made ? 0 : ERR_CORRUPT;
}

static int one(struct place *p, const struct phase *ph, uint64_t i)
{
    char path[PATH_BYTES];
    if (ph->of_directories)
        dir_path(p, i, path);
    else
        file_path(p, i, ph->kind, path);
    uint64_t from = sys->mono_ns();
    int r = ph->run(p, i, path);
    histogram_add(p->times, sys->mono_ns() - from);
    r = r < 0 ? r : verify(p, i);
    if (r == ERR_CORRUPT)
        return err_set(p->e, r, "%s %s: not what was made", phase_names[p->m->phase], path);
    return r < 0 ? err_errno(p->e, r, "%s %s", phase_names[p->m->phase], path) : 0;
}

static void phase_thread(void *arg, unsigned worker)
{
    struct meta *m = arg;
    const struct phase *ph = &phases[m->phase];
    struct err e = {0};
    struct place p = {.m = m, .worker = worker, .e = &e};
    p.times = calloc(1, sizeof(*p.times));
    assert(p.times);
    uint64_t n = ph->of_directories ? directories(m) : m->o->files;
    for (uint64_t i = 0; i < n && !bench_failure_is(&m->failure); i++) {
        int r = one(&p, ph, i);
        if (r < 0)
            bench_failure_set(&m->failure, r, &e);
        progress_add(m->progress, 1, 0);
    }
    LOCK_SCOPE(&m->lock);
    histogram_merge(&m->times[m->phase], p.times);
    free(p.times);
}

static void start_clock(void *arg)
{
    struct meta *m = arg;
    m->from_ns = sys->mono_ns();
}

/* ---- before and after ---- */

static void fill_thread(void *arg, unsigned worker)
{
    struct meta *m = arg;
    char name[32];
    (void)snprintf(name, sizeof(name), "worker %u", worker);
    pattern_fill(pattern_of(m->o->seed, slice_str(name)), 0, m->bytes[worker].pattern,
                 m->o->size + PLACES * PLACE_BYTES);
    memset(m->bytes[worker].read, 0, m->o->size); /* its memory is there before it is read to */
}

static int make_bytes(struct meta *m, struct err *e)
{
    const struct meta_options *o = m->o;
    m->bytes = calloc(o->workers, sizeof(m->bytes[0]));
    assert(m->bytes);
    for (uint64_t i = 0; i < o->workers && o->size; i++) {
        struct bytes *b = &m->bytes[i];
        b->pattern = malloc(o->size + PLACES * PLACE_BYTES);
        b->read = malloc(o->size);
        if (!b->pattern || !b->read)
            return err_set(e, -ENOMEM,
                           "--size: no memory for %" PRIu64 " workers with files of %" PRIu64 " bytes",
                           o->workers, o->size);
    }
    int r = o->size ? bench_threads((unsigned)o->workers, NULL, fill_thread, m) : 0;
    return r < 0 ? err_errno(e, r, "make %" PRIu64 " threads", o->workers) : 0;
}

static void free_bytes(struct meta *m)
{
    for (uint64_t i = 0; m->bytes && i < m->o->workers; i++) {
        free(m->bytes[i].pattern);
        free(m->bytes[i].read);
    }
    free(m->bytes);
}

/* The top of the tree, and a directory for each worker. */
static int make_top(struct meta *m, const char *dir, struct err *e)
{
    char path[PATH_BYTES];
    uint32_t unique;
    sys->random(&unique, sizeof(unique));
    (void)snprintf(path, sizeof(path), "%s/forebay-bench-%08" PRIx32, dir, unique);
    m->dir = slice_dup(slice_str(path));
    int r = sys->mkdir(m->dir, 0777);
    for (uint64_t i = 0; i < m->o->workers && r == 0; i++) {
        (void)snprintf(path, sizeof(path), "%s/w%03" PRIu64, m->dir, i);
        r = sys->mkdir(path, 0777);
    }
    return r < 0 ? err_errno(e, r, "make %s", m->dir) : 0;
}

/* After a failure: whatever there is of the tree. */
static void remove_rest(struct meta *m, unsigned worker)
{
    struct place p = {.m = m, .worker = worker};
    char path[PATH_BYTES];
    for (uint64_t i = 0; i < m->o->files; i++) {
        file_path(&p, i, 'f', path);
        (void)sys->unlink(path);
        file_path(&p, i, 'r', path);
        (void)sys->unlink(path);
    }
    for (uint64_t d = 0; d < directories(m); d++) {
        dir_path(&p, d, path);
        (void)rmdir(path);
    }
}

static void remove_top(struct meta *m, bool failed)
{
    char path[PATH_BYTES];
    for (unsigned i = 0; i < m->o->workers; i++) {
        if (failed)
            remove_rest(m, i);
        (void)snprintf(path, sizeof(path), "%s/w%03u", m->dir, i);
        (void)rmdir(path);
    }
    (void)rmdir(m->dir);
}

/* ---- telling ---- */

static void print_json(const struct meta *m)
{
    (void)printf("{\"workers\": %" PRIu64 ", \"files\": %" PRIu64 ", \"size_bytes\": %" PRIu64, m->o->workers,
                 m->o->files * m->o->workers, m->o->size);
    for (int i = 0; i < PHASE_COUNT; i++) {
        (void)printf(", \"%s\": {\"operations\": %" PRIu64 ", \"seconds\": %.9f, \"per_s\": %.3f, ",
                     phase_names[i], m->times[i].count, m->seconds[i],
                     (double)m->times[i].count / m->seconds[i]);
        bench_json_times("latency_s", &m->times[i]);
        (void)fputs("}", stdout);
    }
    (void)puts("}");
}

static void print_table(const struct meta *m)
{
    char text[TEXT_SIZE_MAX];
    (void)printf("%" PRIu64 " workers, %" PRIu64 " files of %s each\n\n%-8s %12s %12s", m->o->workers,
                 m->o->files, text_size(m->o->size, text), "", "operations", "per second");
    bench_table_times_head();
    for (int i = 0; i < PHASE_COUNT; i++) {
        (void)printf("\n%-8s %12" PRIu64 " %12.0f", phase_names[i], m->times[i].count,
                     (double)m->times[i].count / m->seconds[i]);
        bench_table_times(&m->times[i]);
    }
    (void)putchar('\n');
}

static int run(struct meta *m, const char *dir, struct err *e)
{
    int r = make_bytes(m, e);
    if (r < 0)
        return r;
    r = make_top(m, dir, e);
    uint64_t all = m->o->workers * (5 * m->o->files + 3 * directories(m));
    m->progress = progress_new("did", all, 0, m->o->quiet || m->o->json);
    for (int i = 0; i < PHASE_COUNT && r == 0; i++) {
        m->phase = (enum meta_phase)i;
        r = bench_threads((unsigned)m->o->workers, start_clock, phase_thread, m);
        m->seconds[i] = (double)(sys->mono_ns() - m->from_ns) / 1e9;
        r = r < 0 ? err_errno(e, r, "make %" PRIu64 " threads", m->o->workers)
                  : bench_failure_take(&m->failure, e);
    }
    progress_drop(m->progress);
    remove_top(m, r < 0);
    if (r == 0 && m->o->json)
        print_json(m);
    else if (r == 0)
        print_table(m);
    return r;
}

int bench_meta(int argc, char **argv)
{
    struct meta_options o = {0};
    int n, status;
    if (command_parse(&usage, &table, &o, argc, argv, &n, &status)) {
        struct err e = {0};
        struct meta *m = calloc(1, sizeof(*m));
        assert(m);
        m->o = &o;
        lock_init(&m->lock, LOCK_LEAF);
        bench_failure_init(&m->failure);
        bench_interrupts();
        int r = run(m, argv[0], &e);
        if (r < 0)
            status = command_fail(usage.command, r, &e);
        bench_failure_fini(&m->failure);
        lock_fini(&m->lock);
        free_bytes(m);
        free(m->dir);
        free(m);
    }
    option_fini(&table, &o);
    return status;
}
