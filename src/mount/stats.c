/*
 * Counting what a mount does (contract in stats.h).
 *
 * Each operation of the mount's kind is called through a function of its own here, which takes the time. A
 * thread shows what it is doing in its place of `running`; the places are as many as there may be threads.
 *
 * Invariants:
 *  1. Counting takes no lock but for an operation that was slow.
 *  2. Nothing of a request is used after its operation has returned: it may have been answered and freed.
 *
 * Failure modes: threads above RUNNING_PLACES share places, and then what is shown as running may be wrong;
 * counts and times are not. What a slow operation waited for is what its own thread asked the node for. An
 * operation that another thread answers later (waiting for a lock) has ended here when it was handed over.
 * One that is parked (parking.h) counts from when it runs again.
 */
#include "mount/stats.h"

#include "base/hash.h"
#include "base/sys.h"
#include "mount/parking.h"
#include "mount/tree.h"

#define RUNNING_PLACES 1088 /* most threads of a mount, and some */
#define CACHE_LINE     64
#define PARTS          4  /* of a power of two */
#define FIRST_POWER    10 /* times below 2^10 ns have place 0 */
#define MILLION        1000000ull

struct running {
    _Alignas(CACHE_LINE) _Atomic uint64_t began_ns; /* 0: nothing runs */
    _Atomic uint32_t operation;
};

struct latency {
    _Alignas(CACHE_LINE) _Atomic uint64_t places[STATS_PLACES];
    _Atomic uint64_t sum_ns, max_ns;
};

struct slow {
    uint32_t operation;
    uint64_t took_ns, ended_ns;
    struct client_waits waits;
    uint64_t about; /* inode number, or stats_about; 0: not known any more */
    char target[STATS_TARGET_BYTES];
};

struct stats {
    struct latency latencies[STATS_N_OPERATIONS];
    struct running running[RUNNING_PLACES];
    _Atomic uint64_t counters[STATS_N_COUNTERS];
    uint64_t began_ns;
    struct lock lock; /* covers what follows */
    struct slow slow[STATS_SLOW_MAX];
    uint64_t n_slow; /* ever; the next one goes to n_slow % STATS_SLOW_MAX */
};

const char *stats_operation_name(enum stats_operation op)
{
    static const char *const names[] = {
#define X(name, parameters, arguments) #name,
        STATS_OPERATIONS(X)
#undef X
    };
    assert(op < STATS_N_OPERATIONS);
    return names[op];
}

/* ---- places ---- */

unsigned stats_place_of(uint64_t ns)
{
    if (ns < 1ull << FIRST_POWER)
        return 0;
    unsigned power = 63 - (unsigned)__builtin_clzll(ns);
    unsigned place = 1 + (power - FIRST_POWER) * PARTS + (unsigned)(ns >> (power - 2)) % PARTS;
    return MIN(place, (unsigned)STATS_PLACES - 1);
}

uint64_t stats_place_top(unsigned place)
{
    assert(place < STATS_PLACES);
    if (place == 0)
        return (1ull << FIRST_POWER) - 1;
    if (place == STATS_PLACES - 1)
        return UINT64_MAX;
    unsigned power = FIRST_POWER + (place - 1) / PARTS;
    return ((uint64_t)(PARTS + (place - 1) % PARTS + 1) << (power - 2)) - 1;
}

static uint64_t quantile(const uint64_t places[STATS_PLACES], uint64_t count, uint64_t max_ns, double q)
{
    uint64_t seen = 0, rank = (uint64_t)(q * (double)count);
    for (unsigned i = 0; i < STATS_PLACES; i++) {
        seen += places[i];
        if (seen > rank)
            return MIN(stats_place_top(i), max_ns);
    }
    return max_ns;
}

/* ---- counting ---- */

struct stats *stats_new(void)
{
    struct stats *s = aligned_alloc(CACHE_LINE, sizeof(*s));
    if (!s)
        abort();
    memset(s, 0, sizeof(*s));
    lock_init(&s->lock, LOCK_LEAF);
    s->began_ns = sys->mono_ns();
    return s;
}

void stats_free(struct stats *s)
{
    if (!s)
        return;
    lock_fini(&s->lock);
    free(s);
}

void stats_add(struct stats *s, enum stats_counter c, uint64_t n)
{
    (void)atomic_fetch_add_explicit(&s->counters[c], n, memory_order_relaxed);
}

void stats_read(struct stats *s, size_t n, bool is_here)
{
    stats_add(s, STATS_READ_BYTES, n);
    if (is_here)
        stats_add(s, STATS_HERE_READ_BYTES, n);
}

void stats_opened(struct stats *s, bool is_writable, bool is_passthrough)
{
    stats_add(s, is_writable ? STATS_WRITING_OPENS : STATS_READING_OPENS, 1);
    if (is_passthrough)
        stats_add(s, STATS_PASSTHROUGH_OPENS, 1);
}

static struct running *own_place(struct stats *s)
{
    static _Atomic unsigned n_threads;
    static _Thread_local unsigned number; /* from 1 */
    if (number == 0)
        number = atomic_fetch_add(&n_threads, 1) + 1;
    return &s->running[number % RUNNING_PLACES];
}

static struct running *begin(struct stats *s, enum stats_operation op)
{
    struct running *r = own_place(s);
    client_waits_begin();
    atomic_store_explicit(&r->operation, (uint32_t)op, memory_order_relaxed);
    atomic_store_explicit(&r->began_ns, sys->mono_ns(), memory_order_release);
    return r;
}

uint64_t stats_about(struct slice path)
{
    return hash_placement(path);
}

/* What an operation was about, as far as it is still known. */
static void name_target(struct mount *m, fuse_ino_t ino, struct slow *slow)
{
    char *ret = slow->target;
    if (!m->nodes) {
        slow->about = tree_ino(m, ino);
        if (!tree_named_path(m->tree->named, m->tree->root, slow->about, ret, STATS_TARGET_BYTES))
            (void)snprintf(ret, STATS_TARGET_BYTES, "inode %llu", (unsigned long long)slow->about);
        return;
    }
    _cleanup_buf_ struct buf path = BUF_INIT(MOUNT_KEY_MAX_BYTES);
    struct node *n = node_get(m->nodes, ino);
    if (n && node_path(m->nodes, n, &path) == 0) {
        size_t skip = path.n < STATS_TARGET_BYTES ? 0 : path.n - STATS_TARGET_BYTES + 1; /* keep the end */
        memcpy(ret, path.p + skip, path.n - skip);
        ret[path.n - skip] = '\0';
        slow->about = stats_about(buf_view(&path));
    }
    node_unref(m->nodes, n);
}

static void note_slow(struct mount *m, enum stats_operation op, fuse_ino_t ino, uint64_t took_ns)
{
    struct stats *s = m->stats;
    struct slow slow = {.operation = (uint32_t)op,
                        .took_ns = took_ns,
                        .ended_ns = sys->mono_ns(),
                        .waits = client_waits_end()};
    name_target(m, ino, &slow);
    LOCK_SCOPE(&s->lock);
    s->slow[s->n_slow++ % STATS_SLOW_MAX] = slow;
}

static void end(struct mount *m, struct running *r, enum stats_operation op, fuse_ino_t ino)
{
    struct latency *l = &m->stats->latencies[op];
    uint64_t ns = sys->mono_ns() - atomic_load_explicit(&r->began_ns, memory_order_relaxed);
    atomic_store_explicit(&r->began_ns, 0, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&l->places[stats_place_of(ns)], 1, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&l->sum_ns, ns, memory_order_relaxed);
    uint64_t max_ns = atomic_load_explicit(&l->max_ns, memory_order_relaxed);
    while (ns > max_ns && !atomic_compare_exchange_weak(&l->max_ns, &max_ns, ns))
        ;
    if (ns >= STATS_SLOW_NS)
        note_slow(m, op, ino, ns);
}

#define X(name, parameters, arguments)                                                                       \
    static void counted_##name parameters                                                                    \
    {                                                                                                        \
        struct mount *m = mount_of(req);                                                                     \
        struct running *r = begin(m->stats, STATS_OP_##name);                                                \
        m->kind->operations->name arguments;                                                                 \
        if (parking_is_done())                                                                               \
            atomic_store_explicit(&r->began_ns, 0, memory_order_relaxed);                                    \
        else                                                                                                 \
            end(m, r, STATS_OP_##name, ino);                                                                 \
    }
STATS_OPERATIONS(X)
#undef X

void stats_wrap(const struct fuse_lowlevel_ops *real, struct fuse_lowlevel_ops *ret)
{
    *ret = *real;
#define X(name, parameters, arguments)                                                                       \
    if (real->name)                                                                                          \
        ret->name = counted_##name;
    STATS_OPERATIONS(X)
#undef X
}

/* ---- telling ---- */

static void fill_latency(struct latency *l, struct stats_latency *ret)
{
    uint64_t places[STATS_PLACES], count = 0;
    for (unsigned i = 0; i < STATS_PLACES; i++)
        count += places[i] = atomic_load_explicit(&l->places[i], memory_order_relaxed);
    *ret = (struct stats_latency){.count = count,
                                  .sum_ns = atomic_load_explicit(&l->sum_ns, memory_order_relaxed),
                                  .max_ns = atomic_load_explicit(&l->max_ns, memory_order_relaxed)};
    if (count == 0)
        return;
    ret->median_ns = quantile(places, count, ret->max_ns, 0.5);
    ret->p99_ns = quantile(places, count, ret->max_ns, 0.99);
}

static void fill_running(struct stats *s, uint64_t now_ns, struct stats_report *ret)
{
    const struct running *own = own_place(s); /* this very request */
    ret->n_running = 0;
    for (size_t i = 0; i < RUNNING_PLACES && ret->n_running < STATS_RUNNING_MAX; i++) {
        struct running *r = &s->running[i];
        uint64_t began_ns = atomic_load_explicit(&r->began_ns, memory_order_acquire);
        if (began_ns == 0 || r == own)
            continue;
        ret->running[ret->n_running++] =
            (struct stats_running){.operation = atomic_load_explicit(&r->operation, memory_order_relaxed),
                                   .for_ns = now_ns > began_ns ? now_ns - began_ns : 0};
    }
}

static uint32_t fill_slow(struct stats *s, const uint64_t *about, struct stats_slow ret[STATS_SLOW_MAX])
{
    uint64_t now_ns = sys->mono_ns();
    uint32_t n = 0;
    LOCK_SCOPE(&s->lock);
    for (uint64_t i = 0; i < MIN(s->n_slow, (uint64_t)STATS_SLOW_MAX); i++) {
        const struct slow *x = &s->slow[(s->n_slow - 1 - i) % STATS_SLOW_MAX];
        if (about && x->about != *about)
            continue;
        ret[n] = (struct stats_slow){.operation = x->operation,
                                     .took_ns = x->took_ns,
                                     .waited_ns = MIN(x->waits.ns, x->took_ns),
                                     .waited_op = x->waits.longest_op,
                                     .ago_ns = now_ns > x->ended_ns ? now_ns - x->ended_ns : 0};
        memcpy(ret[n++].target, x->target, sizeof(x->target));
    }
    return n;
}

uint32_t stats_fill_slow(struct stats *s, uint64_t about, struct stats_slow ret[STATS_SLOW_MAX])
{
    return fill_slow(s, &about, ret);
}

void stats_fill(struct stats *s, struct stats_report *ret)
{
    uint64_t now_ns = sys->mono_ns();
    ret->up_ms = (now_ns - s->began_ns) / MILLION;
    for (size_t i = 0; i < STATS_N_COUNTERS; i++)
        ret->counters[i] = atomic_load_explicit(&s->counters[i], memory_order_relaxed);
    for (size_t i = 0; i < STATS_N_OPERATIONS; i++)
        fill_latency(&s->latencies[i], &ret->operations[i]);
    fill_running(s, now_ns, ret);
    ret->n_slow = fill_slow(s, /* about= */ NULL, ret->slow);
}
