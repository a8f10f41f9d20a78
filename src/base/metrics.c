/*
 * The metrics registry.
 *
 * Invariants:
 *  1. A series, once published, stays in its chains until the process ends. One that has ended, as of a
 * bucket that is gone, has the id 0: it is neither found nor shown, and becomes the next one that is made in
 * its slot. Who looked it up before may count into that one: a few events, and never memory that is not ours.
 *  2. Readers follow `next` and `next_made` without a lock: both are stored with release order after the
 * series is whole. They know it by its id; labels are read and changed under `lock`.
 *  3. A metric shows at most METRICS_SERIES_MAX series besides the one with the labels "other".
 *  4. A bucket counts as gone when it was missing twice: it may be made between a look at the buckets and the
 * look at its series.
 *
 * Failure modes: metrics_text gives -E2BIG; running out of memory aborts, as all small allocations do.
 */
#include "base/metrics.h"

#include "base/hash.h"
#include "base/lock.h"

#include <errno.h>
#include <stdatomic.h>

#define LABELS_MAX   3
#define HASH_SIZE    256
#define SERIES_MAGIC 0x4d545253u
#define OTHER        "other" /* label of what is too many */

enum kind { KIND_COUNTER, KIND_GAUGE, KIND_HISTOGRAM };

struct row {
    enum kind kind;
    const char *name, *labels, *help;
};

static const struct row rows[METRIC_COUNT] = {
#define X(id, kind_name, prom, label_names, help_text)                                                       \
    [METRIC_##id] = {KIND_##kind_name, prom, label_names, help_text},
    METRICS_TABLE(X)
#undef X
};

/* Upper bounds: ns, and seconds as the exposition writes them. What is above the last is only in the count.
 */
#define BUCKET_TABLE(X)                                                                                      \
    X(50000, "5e-05")                                                                                        \
    X(100000, "0.0001")                                                                                      \
    X(250000, "0.00025")                                                                                     \
    X(500000, "0.0005")                                                                                      \
    X(1000000, "0.001")                                                                                      \
    X(2500000, "0.0025")                                                                                     \
    X(5000000, "0.005")                                                                                      \
    X(10000000, "0.01")                                                                                      \
    X(25000000, "0.025")                                                                                     \
    X(50000000, "0.05")                                                                                      \
    X(100000000, "0.1")                                                                                      \
    X(250000000, "0.25")                                                                                     \
    X(500000000, "0.5")                                                                                      \
    X(1000000000, "1")                                                                                       \
    X(2500000000, "2.5")                                                                                     \
    X(5000000000, "5")                                                                                       \
    X(10000000000, "10")                                                                                     \
    X(20000000000, "20")                                                                                     \
    X(30000000000, "30")                                                                                     \
    X(60000000000, "60")

static const struct bucket {
    uint64_t ns;
    const char *text;
} buckets[] = {
#define X(ns, text) {ns##u, text},
    BUCKET_TABLE(X)
#undef X
};

#define BUCKETS ARRAY_SIZE(buckets)

struct metric_series {
    uint32_t magic;
    enum metric metric;
    _Atomic uint64_t id;     /* hash of the labels, by a key of this process; 0: of a bucket that is gone */
    char *label[LABELS_MAX]; /* under lock */
    bool is_missed;          /* its bucket was, at the last look; under lock */
    _Atomic(struct metric_series *) next;      /* same hash slot */
    _Atomic(struct metric_series *) next_made; /* same metric, in order of making */
    /* Away from the fields above, which lookups read while other threads count. */
    _Alignas(64) _Atomic uint64_t value; /* counter, gauge (two's complement), or sum of a histogram in ns */
    _Atomic uint64_t in_bucket[];        /* BUCKETS + 1, histograms only */
};

static struct {
    _Atomic(struct metric_series *) slot[HASH_SIZE];
    _Atomic(struct metric_series *) first;
    struct metric_series *last; /* under lock */
    size_t n;                   /* that are shown; under lock */
} registry[METRIC_COUNT];

static struct lock lock; /* LOCK_METRICS; makers of series, and readers of labels */
static pthread_once_t lock_once = PTHREAD_ONCE_INIT;

static void make_lock(void)
{
    lock_init(&lock, LOCK_METRICS);
}

static size_t label_count(const struct row *row)
{
    if (!*row->labels)
        return 0;
    size_t n = 1;
    for (const char *p = row->labels; *p; p++)
        n += *p == ',';
    return n;
}

static uint64_t id_of(const char *const label[LABELS_MAX])
{
    uint64_t h = 0;
    for (size_t i = 0; i < LABELS_MAX; i++)
        h = hash_mix(h, *label[i] ? hash_table(slice_str(label[i])) : 0);
    return h ? h : 1;
}

/* id 0: one that is free to be used again. */
static struct metric_series *find(enum metric m, size_t slot, uint64_t id)
{
    struct metric_series *s = atomic_load_explicit(&registry[m].slot[slot], memory_order_acquire);
    while (s && atomic_load_explicit(&s->id, memory_order_acquire) != id)
        s = atomic_load_explicit(&s->next, memory_order_acquire);
    return s;
}

static void name_locked(struct metric_series *s, uint64_t id, const char *const label[LABELS_MAX])
{
    lock_assert_held(&lock);
    for (size_t i = 0; i < LABELS_MAX; i++) {
        free(s->label[i]);
        s->label[i] = slice_dup(slice_str(label[i]));
    }
    s->is_missed = false;
    atomic_store_explicit(&s->id, id, memory_order_release);
    registry[s->metric].n++;
}

static struct metric_series *make_locked(enum metric m, uint64_t id, const char *const label[LABELS_MAX])
{
    size_t slot = id % HASH_SIZE;
    lock_assert_held(&lock);
    size_t counts = rows[m].kind == KIND_HISTOGRAM ? BUCKETS + 1 : 0;
    size_t size = ALIGN_UP(sizeof(struct metric_series) + counts * sizeof(uint64_t), (size_t)64);
    struct metric_series *s = aligned_alloc(64, size);
    if (!s)
        abort();
    memset(s, 0, size);
    s->magic = SERIES_MAGIC;
    s->metric = m;
    name_locked(s, id, label);
    atomic_init(&s->next, atomic_load(&registry[m].slot[slot]));
    atomic_store_explicit(&registry[m].slot[slot], s, memory_order_release);
    if (registry[m].last)
        atomic_store_explicit(&registry[m].last->next_made, s, memory_order_release);
    else
        atomic_store_explicit(&registry[m].first, s, memory_order_release);
    registry[m].last = s;
    return s;
}

static struct metric_series *use_again_locked(enum metric m, uint64_t id, const char *const label[LABELS_MAX])
{
    struct metric_series *s = find(m, id % HASH_SIZE, 0);
    lock_assert_held(&lock);
    if (!s)
        return NULL;
    atomic_store_explicit(&s->value, 0, memory_order_relaxed);
    for (size_t i = 0; rows[m].kind == KIND_HISTOGRAM && i <= BUCKETS; i++)
        atomic_store_explicit(&s->in_bucket[i], 0, memory_order_relaxed);
    name_locked(s, id, label);
    return s;
}

/* The labels of a row, all of them; gives how many it has. */
static size_t take_labels(enum metric m, const char *l0, const char *l1, const char *l2,
                          const char *ret_label[LABELS_MAX])
{
    assert((unsigned)m < METRIC_COUNT);
    const char *given[LABELS_MAX] = {l0, l1, l2};
    size_t n_labels = label_count(&rows[m]);
    assert(n_labels <= LABELS_MAX);
    for (size_t i = 0; i < LABELS_MAX; i++)
        ret_label[i] = i < n_labels && given[i] ? given[i] : "";
    return n_labels;
}

struct metric_series *metrics_series(enum metric m, const char *l0, const char *l1, const char *l2)
{
    const char *label[LABELS_MAX];
    size_t n_labels = take_labels(m, l0, l1, l2, label);
    uint64_t id = id_of(label);
    struct metric_series *s = find(m, id % HASH_SIZE, id);
    if (s)
        return s;
    (void)pthread_once(&lock_once, make_lock);
    LOCK_SCOPE(&lock);
    s = find(m, id % HASH_SIZE, id); /* someone may have made it meanwhile */
    if (s)
        return s;
    if (registry[m].n >= METRICS_SERIES_MAX) {
        for (size_t i = 0; i < n_labels; i++)
            label[i] = OTHER;
        id = id_of(label);
        s = find(m, id % HASH_SIZE, id);
        if (s)
            return s;
    }
    s = use_again_locked(m, id, label);
    return s ? s : make_locked(m, id, label);
}

static void end_locked(struct metric_series *s)
{
    lock_assert_held(&lock);
    atomic_store_explicit(&s->id, 0, memory_order_release);
    registry[s->metric].n--;
}

void metrics_end(enum metric m, const char *l0, const char *l1, const char *l2)
{
    const char *label[LABELS_MAX];
    (void)take_labels(m, l0, l1, l2, label);
    uint64_t id = id_of(label);
    (void)pthread_once(&lock_once, make_lock);
    LOCK_SCOPE(&lock);
    struct metric_series *s = find(m, id % HASH_SIZE, id);
    if (s)
        end_locked(s);
}

/* The bucket that a series is about; NULL: none. */
static const char *bucket_locked(const struct metric_series *s)
{
    struct slice names = slice_str(rows[s->metric].labels);
    lock_assert_held(&lock);
    for (size_t i = 0; names.n; i++)
        if (slice_eq_str(slice_split(&names, ','), "bucket"))
            return s->label[i];
    bool is_limit = strcmp(rows[s->metric].labels, "limit,name") == 0 && strcmp(s->label[0], "bucket") == 0;
    return is_limit ? s->label[1] : NULL;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void look_locked(struct metric_series *s, const char *const *names, size_t n)
{
    const char *bucket = bucket_locked(s);
    bool is_kept = !bucket || strcmp(bucket, OTHER) == 0 ||
                   (n > 0 && bsearch(&bucket, names, n, sizeof(*names), by_text));
    if (!is_kept && s->is_missed)
        end_locked(s);
    s->is_missed = !is_kept;
}

void metrics_keep_buckets(const char *const *names, size_t n)
{
    (void)pthread_once(&lock_once, make_lock);
    for (unsigned m = 0; m < METRIC_COUNT; m++) {
        LOCK_SCOPE(&lock);
        struct metric_series *s = atomic_load_explicit(&registry[m].first, memory_order_acquire);
        for (; s; s = atomic_load_explicit(&s->next_made, memory_order_acquire))
            if (atomic_load_explicit(&s->id, memory_order_relaxed) != 0)
                look_locked(s, names, n);
    }
}

void metrics_add(struct metric_series *s, uint64_t n)
{
    assert(s->magic == SERIES_MAGIC && rows[s->metric].kind == KIND_COUNTER);
    atomic_fetch_add_explicit(&s->value, n, memory_order_relaxed);
}

void metrics_set(struct metric_series *s, int64_t value)
{
    assert(s->magic == SERIES_MAGIC && rows[s->metric].kind == KIND_GAUGE);
    atomic_store_explicit(&s->value, (uint64_t)value, memory_order_relaxed);
}

void metrics_gauge_add(struct metric_series *s, int64_t delta)
{
    assert(s->magic == SERIES_MAGIC && rows[s->metric].kind == KIND_GAUGE);
    atomic_fetch_add_explicit(&s->value, (uint64_t)delta, memory_order_relaxed);
}

void metrics_observe_ns(struct metric_series *s, uint64_t ns)
{
    assert(s->magic == SERIES_MAGIC && rows[s->metric].kind == KIND_HISTOGRAM);
    size_t i = 0;
    while (i < BUCKETS && ns > buckets[i].ns)
        i++;
    atomic_fetch_add_explicit(&s->in_bucket[i], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->value, ns, memory_order_relaxed);
}

/* One reading of all buckets; gives their sum, which is what the exposition calls count. */
static uint64_t read_buckets(struct metric_series *s, uint64_t ret_count[BUCKETS + 1])
{
    uint64_t total = 0;
    for (size_t i = 0; i <= BUCKETS; i++) {
        ret_count[i] = atomic_load_explicit(&s->in_bucket[i], memory_order_relaxed);
        total += ret_count[i];
    }
    return total;
}

/* For a histogram the number of observations. */
uint64_t metrics_value(struct metric_series *s)
{
    assert(s->magic == SERIES_MAGIC);
    uint64_t count[BUCKETS + 1];
    if (rows[s->metric].kind == KIND_HISTOGRAM)
        return read_buckets(s, count);
    return atomic_load_explicit(&s->value, memory_order_relaxed);
}

uint64_t metrics_quantile_ns(struct metric_series *s, double q)
{
    assert(s->magic == SERIES_MAGIC && rows[s->metric].kind == KIND_HISTOGRAM && q >= 0 && q <= 1);
    uint64_t count[BUCKETS + 1], below = 0, total = read_buckets(s, count);
    if (total == 0)
        return 0;
    double rank = q * (double)total;
    for (size_t i = 0; i < BUCKETS; i++) {
        if (count[i] && (double)(below + count[i]) >= rank) { /* evenly spread inside a bucket */
            uint64_t low = i ? buckets[i - 1].ns : 0;
            double part = (rank - (double)below) / (double)count[i];
            return low + (uint64_t)((double)(buckets[i].ns - low) * MAX(part, 0.0));
        }
        below += count[i];
    }
    return buckets[BUCKETS - 1].ns;
}

/* Backslash and newline escaped everywhere, the quote only in label values; labels must be UTF-8. */
static int put_escaped(struct buf *b, const char *text, bool is_label)
{
    bool utf8 = slice_is_utf8(slice_str(text));
    int r = 0;
    for (const char *p = text; *p && r == 0; p++) {
        if (*p == '\\')
            r = buf_str(b, "\\\\");
        else if (*p == '\n')
            r = buf_str(b, "\\n");
        else if (*p == '"' && is_label)
            r = buf_str(b, "\\\"");
        else
            r = buf_char(b, !utf8 && (unsigned char)*p >= 0x80 ? '?' : *p);
    }
    return r;
}

/* name suffix {labels, le}; `le` may be NULL. */
static int put_name(struct buf *b, struct metric_series *s, const char *suffix, const char *le)
{
    const struct row *row = &rows[s->metric];
    struct slice names = slice_str(row->labels);
    const char *sep = "{";
    int r = buf_str(b, row->name);
    if (r == 0)
        r = buf_str(b, suffix);
    for (size_t i = 0; names.n && r == 0; i++) {
        struct slice name = slice_split(&names, ',');
        r = buf_printf(b, "%s" SLICE_FMT "=\"", sep, SLICE_ARG(name));
        if (r == 0)
            r = put_escaped(b, s->label[i], /* is_label= */ true);
        if (r == 0)
            r = buf_char(b, '"');
        sep = ",";
    }
    if (r == 0 && le)
        r = buf_printf(b, "%sle=\"%s\"", sep, le);
    if (r == 0 && (le || *row->labels))
        r = buf_char(b, '}');
    return r;
}

static int put_histogram(struct buf *b, struct metric_series *s)
{
    uint64_t count[BUCKETS + 1], so_far = 0;
    uint64_t sum_ns = atomic_load_explicit(&s->value, memory_order_relaxed);
    (void)read_buckets(s, count);
    for (size_t i = 0; i <= BUCKETS; i++) {
        so_far += count[i];
        int r = put_name(b, s, "_bucket", i < BUCKETS ? buckets[i].text : "+Inf");
        if (r == 0)
            r = buf_printf(b, " %llu\n", (unsigned long long)so_far);
        if (r < 0)
            return r;
    }
    int r = put_name(b, s, "_sum", NULL);
    if (r == 0)
        r = buf_printf(b, " %llu.%09llu\n", (unsigned long long)(sum_ns / 1000000000u),
                       (unsigned long long)(sum_ns % 1000000000u));
    if (r == 0)
        r = put_name(b, s, "_count", NULL);
    if (r == 0)
        r = buf_printf(b, " %llu\n", (unsigned long long)so_far);
    return r;
}

static int put_plain(struct buf *b, struct metric_series *s)
{
    uint64_t v = metrics_value(s);
    int r = put_name(b, s, "", NULL);
    if (r < 0)
        return r;
    if (rows[s->metric].kind == KIND_GAUGE)
        return buf_printf(b, " %lld\n", (long long)v);
    return buf_printf(b, " %llu\n", (unsigned long long)v);
}

static int put_metric(struct buf *b, enum metric m)
{
    static const char *const kind_names[] = {"counter", "gauge", "histogram"};
    int r = buf_printf(b, "# HELP %s ", rows[m].name);
    if (r == 0)
        r = put_escaped(b, rows[m].help, /* is_label= */ false);
    if (r == 0)
        r = buf_printf(b, "\n# TYPE %s %s\n", rows[m].name, kind_names[rows[m].kind]);
    LOCK_SCOPE(&lock);
    struct metric_series *s = atomic_load_explicit(&registry[m].first, memory_order_acquire);
    for (; s && r == 0; s = atomic_load_explicit(&s->next_made, memory_order_acquire))
        if (atomic_load_explicit(&s->id, memory_order_relaxed) != 0)
            r = rows[m].kind == KIND_HISTOGRAM ? put_histogram(b, s) : put_plain(b, s);
    return r;
}

int metrics_text(struct buf *b)
{
    (void)pthread_once(&lock_once, make_lock);
    for (unsigned m = 0; m < METRIC_COUNT; m++) {
        int r = put_metric(b, (enum metric)m);
        if (r < 0)
            return r;
    }
    return 0;
}
