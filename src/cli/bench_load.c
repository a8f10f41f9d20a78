/*
 * forebay bench load: many connections that get, put and list objects of a directory, a bucket or an S3
 * endpoint, for a time or a number of requests, and what they saw.
 *
 * Invariants:
 *  1. Every byte that is got is compared with what was written; the first wrong one, as any other failure,
 * ends the run with status 1 and no figures.
 *  2. A request counts when it ended inside the measured time; warming up counts nothing.
 *  3. What the run wrote is removed at its end, unless --keep, also when it is interrupted; objects of
 * another seed are never touched.
 */
#include "cli/bench.h"
#include "cli/bench_report.h"
#include "cli/bench_target.h"

#include "base/hash.h"
#include "base/sys.h"
#include "base/text.h"

#include <inttypes.h>

#define NAME_BYTES  96
#define OWN_OBJECTS 16 /* objects that one connection's PUTs take turns in */
#define NS_PER_MS   1000000ull
#define WEIGHT_MAX  1000000

/* X(NAME, name) */
#define LOAD_OPS(X)                                                                                          \
    X(GET, "get")                                                                                            \
    X(PUT, "put")                                                                                            \
    X(LIST, "list")

enum load_op {
#define X(NAME, name) LOAD_##NAME,
    LOAD_OPS(X)
#undef X
        LOAD_OP_COUNT
};

static const char *const op_names[] = {
#define X(NAME, name) name,
    LOAD_OPS(X)
#undef X
};

struct load_options {
    struct bench_target_options target;
    char *mix, *size;
    uint64_t objects, connections, duration_ms, warm_up_ms, requests, seed, range;
    bool keep, quiet, json;
};

#define ROW(name_, type_, field, def_, min_, max_, arg_, doc_)                                               \
    {                                                                                                        \
        .name = (name_), .type = (type_), .offset = offsetof(struct load_options, field), .def = (def_),     \
        .min = (min_), .max = (max_), .arg = (arg_), .doc = (doc_)                                           \
    }

static const struct option rows[] = {
    ROW("mix", OPTION_STRING, mix, "get=1", 0, 0, "OP=N,...",
        "shares of get, put and list, as get=90,put=8,list=2"),
    ROW("size", OPTION_STRING, size, "1MiB", 0, 0, "SIZE[..SIZE]", "bytes of an object, or from..to"),
    ROW("objects", OPTION_UINT, objects, "256", 1, 10000000, "N", "objects to get; made first where missing"),
    ROW("connections", OPTION_UINT, connections, "16", 1, 10000, "N", "connections, each with a thread"),
    ROW("duration", OPTION_DURATION, duration_ms, "10s", 1, 86400000, "TIME", "measured time"),
    ROW("warm-up", OPTION_DURATION, warm_up_ms, "1s", 0, 3600000, "TIME",
        "time before it that does not count"),
    ROW("requests", OPTION_UINT, requests, "0", 0, 0, "N",
        "end after so many, if that is sooner; 0: only the time counts"),
    ROW("range", OPTION_SIZE, range, "0", 0, 0, "SIZE",
        "get so many bytes at a random place; 0: whole objects"),
    ROW("seed", OPTION_UINT, seed, "1", 0, 0, "N", "of names, sizes, contents and order"),
    COMMAND_FLAG(load_options, keep, "keep", 0, "leave the objects there for the next run"),
    COMMAND_FLAG(load_options, quiet, "quiet", 'q', "no progress"),
    COMMAND_FLAG(load_options, json, "json", 0, "JSON instead of the table"),
    BENCH_TARGET_ROWS(load_options),
};
static const struct option_table table = {rows, ARRAY_SIZE(rows), NULL};

static const struct command_usage usage = {
    .command = "forebay bench load",
    .operands = "DIR|s3://BUCKET[/PREFIX]|BUCKET[/PREFIX]",
    .about = "Gets, puts and lists objects over many connections, and prints rates and percentiles.\n"
             "The objects are its own, below forebay-bench-SEED/, and every byte that is got is compared "
             "with what "
             "was\nwritten; exit status 1 when one differs.",
    .min_operands = 1,
    .max_operands = 1,
};

struct worker {
    struct histogram whole[LOAD_OP_COUNT], first; /* of measured requests; first: of GETs */
    uint64_t bytes[LOAD_OP_COUNT];
    uint64_t last_end_ns;
    uint32_t put; /* bit i: object i of its own may be there */
};

struct load {
    const struct load_options *o;
    struct bench_target target;
    struct bench_failure failure;
    struct progress *progress;
    uint64_t weights[LOAD_OP_COUNT], total_weight;
    uint64_t size_from, size_to;
    uint64_t next;     /* atomic: objects of the preparation, then requests */
    uint64_t measured; /* atomic: requests that counted */
    uint64_t from_ns, to_ns;
    uint8_t *there; /* which objects to get exist with their size, or were begun */
    struct worker *workers;
};

/* ---- what the options mean ---- */

static int parse_mix(struct load *l, struct err *e)
{
    struct slice rest = slice_str(l->o->mix);
    while (rest.n > 0) {
        struct slice value = slice_split(&rest, ','), name = slice_split(&value, '=');
        size_t i = 0;
        while (i < LOAD_OP_COUNT && !slice_eq_str(name, op_names[i]))
            i++;
        if (i == LOAD_OP_COUNT || slice_u64(value, &l->weights[i]) < 0 || l->weights[i] > WEIGHT_MAX)
            return err_set(e, ERR_BAD_OPTION,
                           "--mix %s: must be shares of get, put and list such as get=9,put=1", l->o->mix);
    }
    for (size_t i = 0; i < LOAD_OP_COUNT; i++)
        l->total_weight += l->weights[i];
    return l->total_weight ? 0 : err_set(e, ERR_BAD_OPTION, "--mix %s: all shares are 0", l->o->mix);
}

static int parse_size(struct load *l, struct err *e)
{
    struct slice text = slice_str(l->o->size), to = text;
    ssize_t dots = slice_find_slice(text, SLICE_LIT(".."));
    if (dots >= 0) {
        to = slice_from(text, (size_t)dots + 2);
        text = slice_sub(text, 0, (size_t)dots);
    }
    if (text_parse_size(text, &l->size_from) < 0 || text_parse_size(to, &l->size_to) < 0 ||
        l->size_from > l->size_to || l->size_to > TIB)
        return err_set(e, ERR_BAD_OPTION, "--size %s: must be a size such as 1MiB, or two such as 4KiB..1MiB",
                       l->o->size);
    return 0;
}

static void name_of(const struct load *l, const char *group, uint64_t i, char ret[NAME_BYTES])
{
    (void)snprintf(ret, NAME_BYTES, "forebay-bench-%" PRIu64 "/%s/%06" PRIu64, l->o->seed, group, i);
}

static uint64_t size_of(const struct load *l, const char *name)
{
    uint64_t span = l->size_to - l->size_from;
    uint64_t key = pattern_of(l->o->seed, slice_str(name)).key;
    return l->size_from + (span ? hash_mix(key, 1) % (span + 1) : 0);
}

/* ---- before ---- */

static int on_existing(void *arg, struct slice name, uint64_t size)
{
    struct load *l = arg;
    ssize_t slash = slice_rfind(name, '/');
    uint64_t i;
    char expected[NAME_BYTES];
    if (slash < 0 || slice_u64(slice_from(name, (size_t)slash + 1), &i) < 0 || i >= l->o->objects)
        return 0;
    name_of(l, "get", i, expected);
    if (slice_eq_str(name, expected) && size == size_of(l, expected))
        l->there[i] = 1;
    return 0;
}

static int find_existing(struct load *l, struct err *e)
{
    struct bench_conn *c;
    char prefix[NAME_BYTES];
    int r = l->target.ops->connect(&l->target, &c, e);
    if (r < 0)
        return r;
    (void)snprintf(prefix, sizeof(prefix), "forebay-bench-%" PRIu64 "/get/", l->o->seed);
    r = l->target.ops->list(c, prefix, on_existing, l, e);
    l->target.ops->disconnect(c);
    return r;
}

static void put_one(struct load *l, struct bench_conn *c, const char *name)
{
    struct err e = {0};
    uint64_t size = size_of(l, name);
    int r = l->target.ops->put(c, name, size, pattern_of(l->o->seed, slice_str(name)), &e);
    if (r < 0)
        bench_failure_set(&l->failure, r, &e);
    progress_add(l->progress, 1, size);
}

static struct bench_conn *connect_or_fail(struct load *l)
{
    struct err e = {0};
    struct bench_conn *c = NULL;
    int r = l->target.ops->connect(&l->target, &c, &e);
    if (r < 0)
        bench_failure_set(&l->failure, r, &e);
    return c;
}

static void prepare_thread(void *arg, unsigned i)
{
    struct load *l = arg;
    struct bench_conn *c = connect_or_fail(l);
    char name[NAME_BYTES];
    uint64_t k;
    while (c && !bench_failure_is(&l->failure) &&
           (k = __atomic_fetch_add(&l->next, 1, __ATOMIC_RELAXED)) < l->o->objects) {
        if (l->there[k])
            continue;
        l->there[k] = 1; /* each by one thread alone */
        name_of(l, "get", k, name);
        put_one(l, c, name);
    }
    l->target.ops->disconnect(c);
}

static int threads(struct load *l, void (*begin)(void *arg), void (*fn)(void *arg, unsigned i), struct err *e)
{
    l->next = 0;
    int r = bench_threads((unsigned)l->o->connections, begin, fn, l);
    if (r < 0)
        return err_errno(e, r, "make %" PRIu64 " threads", l->o->connections);
    return bench_failure_take(&l->failure, e);
}

static int prepare(struct load *l, struct err *e)
{
    l->there = calloc(l->o->objects, 1);
    assert(l->there);
    int r = find_existing(l, e);
    if (r == 0) {
        l->progress = progress_new("made", l->o->objects, 0, l->o->quiet || l->o->json);
        r = threads(l, NULL, prepare_thread, e);
        progress_drop(TAKE_PTR(l->progress));
    }
    return r;
}

/* ---- the load ---- */

static int ignore_entry(void *arg, struct slice name, uint64_t size)
{
    ++*(uint64_t *)arg;
    return 0;
}

static int get_one(struct load *l, struct bench_conn *c, uint64_t draw, uint64_t *ret_first_ns,
                   uint64_t *ret_bytes, struct err *e)
{
    char name[NAME_BYTES];
    name_of(l, "get", draw % l->o->objects, name);
    uint64_t size = size_of(l, name), offset = 0, n = UINT64_MAX, expected = size;
    if (l->o->range && size > l->o->range) {
        n = expected = l->o->range;
        offset = hash_mix(draw, 7) % (size - n + 1);
    }
    struct bench_verify v = {.pattern = pattern_of(l->o->seed, slice_str(name)), .key = name, .e = e};
    int r = l->target.ops->get(c, name, offset, n, bench_verify_sink, &v, ret_first_ns, e);
    if (r == 0 && v.bytes != expected)
        r = err_set(e, ERR_CORRUPT, "%s: %" PRIu64 " bytes came of %" PRIu64, name, v.bytes, expected);
    *ret_bytes = v.bytes;
    return r;
}

static int list_one(struct load *l, struct bench_conn *c, struct err *e)
{
    char prefix[NAME_BYTES];
    uint64_t n = 0;
    (void)snprintf(prefix, sizeof(prefix), "forebay-bench-%" PRIu64 "/get/", l->o->seed);
    int r = l->target.ops->list(c, prefix, ignore_entry, &n, e);
    if (r == 0 && n < l->o->objects)
        r = err_set(e, ERR_CORRUPT, "%s: %" PRIu64 " of %" PRIu64 " objects are listed", prefix, n,
                    l->o->objects);
    return r;
}

/* Into one of the connection's own objects. */
static int put_own(struct load *l, struct bench_conn *c, unsigned i, uint64_t number, uint64_t *ret_bytes,
                   struct err *e)
{
    char name[NAME_BYTES], group[32];
    uint64_t own = number % OWN_OBJECTS;
    (void)snprintf(group, sizeof(group), "put-%u", i);
    name_of(l, group, own, name);
    l->workers[i].put |= 1u << own;
    *ret_bytes = size_of(l, name);
    return l->target.ops->put(c, name, *ret_bytes, pattern_of(l->o->seed, slice_str(name)), e);
}

static int one(struct load *l, struct bench_conn *c, unsigned i, uint64_t number, enum load_op *ret_op,
               uint64_t *ret_first_ns, uint64_t *ret_bytes, struct err *e)
{
    uint64_t draw = hash_mix(l->o->seed, number), at = draw % l->total_weight;
    enum load_op op = LOAD_GET;
    while (at >= l->weights[op])
        at -= l->weights[op++];
    *ret_op = op;
    *ret_bytes = 0;
    if (op == LOAD_GET)
        return get_one(l, c, hash_mix(draw, 1), ret_first_ns, ret_bytes, e);
    if (op == LOAD_LIST)
        return list_one(l, c, e);
    return put_own(l, c, i, number, ret_bytes, e);
}

static void count(struct load *l, struct worker *w, enum load_op op, uint64_t begin, uint64_t first,
                  uint64_t end, uint64_t bytes)
{
    progress_add(l->progress, 1, bytes);
    if (end < l->from_ns || end > l->to_ns)
        return;
    histogram_add(&w->whole[op], end - begin);
    if (op == LOAD_GET && first)
        histogram_add(&w->first, first - begin);
    w->bytes[op] += bytes;
    w->last_end_ns = end;
    (void)__atomic_fetch_add(&l->measured, 1, __ATOMIC_RELAXED);
}

static void start_clock(void *arg)
{
    struct load *l = arg;
    l->from_ns = sys->mono_ns() + l->o->warm_up_ms * NS_PER_MS;
    l->to_ns = l->from_ns + l->o->duration_ms * NS_PER_MS;
}

static void load_thread(void *arg, unsigned i)
{
    struct load *l = arg;
    struct bench_conn *c = connect_or_fail(l);
    while (c && !bench_failure_is(&l->failure)) {
        struct err e = {0};
        enum load_op op;
        uint64_t begin = sys->mono_ns(), first = 0, bytes;
        if (begin >= l->to_ns ||
            (l->o->requests && __atomic_load_n(&l->measured, __ATOMIC_RELAXED) >= l->o->requests))
            break;
        uint64_t number = __atomic_fetch_add(&l->next, 1, __ATOMIC_RELAXED);
        int r = one(l, c, i, number, &op, &first, &bytes, &e);
        if (r < 0)
            bench_failure_set(&l->failure, r, &e);
        else
            count(l, &l->workers[i], op, begin, first, sys->mono_ns(), bytes);
    }
    l->target.ops->disconnect(c);
}

/* ---- after ---- */

static void remove_thread(void *arg, unsigned i)
{
    struct load *l = arg;
    struct bench_conn *c = connect_or_fail(l);
    struct err e = {0};
    char name[NAME_BYTES], group[32];
    uint64_t k;
    int r = 0;
    (void)snprintf(group, sizeof(group), "put-%u", i);
    for (uint64_t j = 0; c && l->workers && j < OWN_OBJECTS && r == 0; j++) {
        name_of(l, group, j, name);
        if (l->workers[i].put & 1u << j)
            r = l->target.ops->remove(c, name, &e);
    }
    while (c && r == 0 && l->there &&
           (k = __atomic_fetch_add(&l->next, 1, __ATOMIC_RELAXED)) < l->o->objects) {
        if (!l->there[k])
            continue;
        name_of(l, "get", k, name);
        r = l->target.ops->remove(c, name, &e);
    }
    if (r < 0)
        bench_failure_set(&l->failure, r, &e);
    l->target.ops->disconnect(c);
}

static struct worker *sum(const struct load *l)
{
    struct worker *all = calloc(1, sizeof(*all));
    assert(all);
    for (uint64_t i = 0; i < l->o->connections; i++) {
        const struct worker *w = &l->workers[i];
        for (int op = 0; op < LOAD_OP_COUNT; op++) {
            histogram_merge(&all->whole[op], &w->whole[op]);
            all->bytes[op] += w->bytes[op];
        }
        histogram_merge(&all->first, &w->first);
        all->last_end_ns = MAX(all->last_end_ns, w->last_end_ns);
    }
    return all;
}

static void print_json(const struct load *l, const struct worker *w, double s)
{
    (void)printf("{\"target\": \"%s\", \"connections\": %" PRIu64 ", \"seconds\": %.6f", l->target.ops->kind,
                 l->o->connections, s);
    for (int op = 0; op < LOAD_OP_COUNT; op++) {
        const struct histogram *h = &w->whole[op];
        if (!l->weights[op])
            continue;
        (void)printf(", \"%s\": {\"requests\": %" PRIu64 ", \"bytes\": %" PRIu64
                     ", \"requests_per_s\": %.3f, \"bytes_per_s\": %.0f, ",
                     op_names[op], h->count, w->bytes[op], (double)h->count / s, (double)w->bytes[op] / s);
        bench_json_times("latency_s", h);
        if (op == LOAD_GET) {
            (void)fputs(", ", stdout);
            bench_json_times("first_byte_s", &w->first);
        }
        (void)fputs("}", stdout);
    }
    (void)puts("}");
}

static void print_table(const struct load *l, const struct worker *w, double s)
{
    char rate[TEXT_SIZE_MAX];
    (void)printf("%" PRIu64 " connections, %.2f s\n\n%-12s %10s %12s %14s", l->o->connections, s, "",
                 "requests", "requests/s", "bytes");
    bench_table_times_head();
    for (int op = 0; op < LOAD_OP_COUNT; op++) {
        const struct histogram *h = &w->whole[op];
        if (!l->weights[op])
            continue;
        (void)printf("\n%-12s %10" PRIu64 " %12.1f %12s/s", op_names[op], h->count, (double)h->count / s,
                     text_size((uint64_t)((double)w->bytes[op] / s), rate));
        bench_table_times(h);
        if (op == LOAD_GET) {
            (void)printf("\n%-12s %10s %12s %14s", "  first byte", "", "", "");
            bench_table_times(&w->first);
        }
    }
    (void)putchar('\n');
}

static int run(struct load *l, struct err *e)
{
    const struct load_options *o = l->o;
    bool needs_objects = l->weights[LOAD_GET] || l->weights[LOAD_LIST];
    int r = needs_objects ? prepare(l, e) : 0;
    if (r == 0) {
        l->workers = calloc(o->connections, sizeof(*l->workers));
        assert(l->workers);
        l->progress = progress_new("moved", 0, 0, o->quiet || o->json);
        r = threads(l, start_clock, load_thread, e);
        progress_drop(TAKE_PTR(l->progress));
    }
    if (r == 0) {
        _cleanup_free_ struct worker *all = sum(l);
        uint64_t end =
            o->requests && l->measured >= o->requests ? MAX(all->last_end_ns, l->from_ns + 1) : l->to_ns;
        double s = (double)(end - l->from_ns) / 1e9;
        if (o->json)
            print_json(l, all, s);
        else
            print_table(l, all, s);
    }
    if (!o->keep) {
        struct err later = {0};
        bench_failure_fini(&l->failure); /* a run that failed is tidied up, too */
        bench_failure_init(&l->failure);
        int removed = threads(l, NULL, remove_thread, &later);
        if (r == 0 && removed < 0) {
            *e = later;
            r = removed;
        }
    }
    return r;
}

int bench_load(int argc, char **argv)
{
    struct load_options o = {0};
    int n, status;
    if (command_parse(&usage, &table, &o, argc, argv, &n, &status)) {
        struct err e = {0};
        struct load l = {.o = &o};
        o.target.connections = o.connections;
        bench_failure_init(&l.failure);
        bench_interrupts();
        int r = parse_mix(&l, &e);
        r = r < 0 ? r : parse_size(&l, &e);
        r = r < 0 ? r : bench_target_open(argv[0], &o.target, &l.target, &e);
        r = r < 0 ? r : run(&l, &e);
        if (r < 0)
            status = command_fail(usage.command, r, &e);
        bench_target_close(&l.target);
        bench_failure_fini(&l.failure);
        free(l.there);
        free(l.workers);
    }
    option_fini(&table, &o);
    return status;
}
