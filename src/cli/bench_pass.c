/*
 * One epoch, as a data loader and an accelerator share it: workers take the next sample of the order, read it
 * to its end and throw it away; the accelerator waits for the samples of its step, computes (sleeps), and
 * goes on to the next one. Workers run ahead of it by a bounded number of batches.
 *
 * Invariants:
 *  1. A step begins when all its samples are there. What it waited is its stall.
 *  2. No sample is begun more than `prefetch` batches ahead of the step that is waited for.
 *  3. Every byte is checksummed, and compared with its pattern when there is one; but in a blind pass, whose
 *     time is that of reading alone.
 */
#include "cli/bench_pass.h"

#include "base/crc32c.h"
#include "base/hash.h"
#include "base/sys.h"

#include <inttypes.h>
#include <pthread.h>

struct pass {
    struct bench_target *t;
    const struct bench_files *files;
    const struct bench_pass_options *o;
    uint32_t *order;
    uint64_t next;           /* atomic: sample to be read next */
    uint64_t consumed;       /* atomic: batches whose step is over */
    struct lock lock;        /* covers what follows */
    struct cond ready, room; /* a batch is complete; a step is over */
    uint32_t *missing;       /* per batch: samples that are not there yet */
    struct bench_pass *ret;
    struct bench_failure failure;
    uint64_t from_ns;
};

/* ---- finding files ---- */

static int add_file(void *arg, struct slice name, uint64_t size)
{
    struct bench_files *f = arg;
    if (f->n == f->cap) {
        f->cap = f->cap ? f->cap * 2 : 1024;
        f->names = realloc(f->names, f->cap * sizeof(f->names[0]));
        f->sizes = realloc(f->sizes, f->cap * sizeof(f->sizes[0]));
        assert(f->names && f->sizes);
    }
    f->names[f->n] = slice_dup(name);
    f->sizes[f->n++] = size;
    f->bytes += size;
    return f->n < UINT32_MAX ? 0 : -E2BIG;
}

int bench_files_find(struct bench_target *t, const char *prefix, struct bench_files *ret, struct err *e)
{
    struct bench_files f = {0};
    struct bench_conn *c;
    int r = t->ops->connect(t, &c, e);
    if (r < 0)
        return r;
    r = t->ops->list(c, prefix, add_file, &f, e);
    t->ops->disconnect(c);
    if (r < 0) {
        bench_files_fini(&f);
        return r;
    }
    *ret = f;
    return 0;
}

void bench_files_fini(struct bench_files *f)
{
    for (size_t i = 0; i < f->n; i++)
        free(f->names[i]);
    free(f->names);
    free(f->sizes);
    *f = (struct bench_files){0};
}

/* ---- orders ---- */

/* Fisher and Yates, with a generator of our own so that a seed means the same order everywhere. */
static void shuffle(uint32_t *order, size_t n, uint64_t seed)
{
    for (size_t i = n; i > 1; i--) {
        size_t k = hash_mix(seed, i) % i;
        uint32_t t = order[i - 1];
        order[i - 1] = order[k];
        order[k] = t;
    }
}

/* A shuffle buffer: the next sample is drawn from those in it, and its place taken by the next of the files.
 */
static void shuffle_window(uint32_t *order, size_t n, uint64_t window, uint64_t seed)
{
    size_t held = MIN(n, window), next = held;
    uint32_t *buffer = malloc(MAX(held, (size_t)1) * sizeof(buffer[0]));
    assert(buffer);
    for (size_t i = 0; i < held; i++)
        buffer[i] = (uint32_t)i;
    for (size_t i = 0; i < n; i++) {
        size_t k = hash_mix(seed, i) % held;
        order[i] = buffer[k];
        buffer[k] = next < n ? (uint32_t)next++ : buffer[--held];
    }
    free(buffer);
}

uint32_t *bench_order_make(enum bench_order order, size_t n, uint64_t window, uint64_t seed)
{
    uint32_t *list = malloc(MAX(n, (size_t)1) * sizeof(list[0]));
    assert(list);
    for (size_t i = 0; i < n; i++)
        list[i] = (uint32_t)i;
    if (order == BENCH_SHUFFLED)
        shuffle(list, n, seed);
    else if (order == BENCH_WINDOWED)
        shuffle_window(list, n, window, seed);
    return list;
}

/* ---- workers ---- */

struct sample {
    struct bench_verify verify;
    uint32_t crc;
    bool compare, blind;
};

static int on_piece(void *arg, uint64_t offset, const void *p, size_t n)
{
    struct sample *s = arg;
    if (!s->blind)
        s->crc = crc32c(s->crc, p, n);
    if (s->compare)
        return bench_verify_sink(&s->verify, offset, p, n);
    s->verify.bytes += n;
    return 0;
}

static int read_sample(struct pass *p, struct bench_conn *c, size_t file, struct sample *s, struct err *e)
{
    const char *name = p->files->names[file];
    uint64_t first;
    *s = (struct sample){.compare = p->o->verify && !p->o->blind, .blind = p->o->blind};
    s->crc = s->blind ? 0 : crc32c(0, name, strlen(name));
    s->verify = (struct bench_verify){.key = name, .e = e};
    if (s->compare)
        s->verify.pattern = pattern_of(p->o->data_seed, slice_str(name));
    int r = p->t->ops->get(c, name, 0, UINT64_MAX, on_piece, s, &first, e);
    if (r == 0 && s->verify.bytes != p->files->sizes[file])
        r = err_set(e, ERR_CORRUPT, "%s: %" PRIu64 " bytes came of %" PRIu64, name, s->verify.bytes,
                    p->files->sizes[file]);
    return r;
}

static void fail(struct pass *p, int code, const struct err *e)
{
    bench_failure_set(&p->failure, code, e);
    LOCK_SCOPE(&p->lock);
    cond_broadcast(&p->room);
    cond_broadcast(&p->ready);
}

/* Waits until sample `at` may be begun; false when the pass failed. */
static bool may_begin(struct pass *p, uint64_t at)
{
    uint64_t batch = at / p->o->batch;
    if (batch <= __atomic_load_n(&p->consumed, __ATOMIC_ACQUIRE) + p->o->prefetch)
        return true;
    LOCK_SCOPE(&p->lock);
    while (batch > p->consumed + p->o->prefetch && !bench_failure_is(&p->failure))
        cond_wait(&p->room, &p->lock);
    return !bench_failure_is(&p->failure);
}

static void worker(void *arg, unsigned i)
{
    struct pass *p = arg;
    struct err e = {0};
    struct bench_conn *c = NULL;
    int r = p->t->ops->connect(p->t, &c, &e);
    struct histogram *times = calloc(1, sizeof(*times));
    assert(times);
    uint64_t at, files = 0, bytes = 0, checksum = 0;
    while (r == 0 && !bench_failure_is(&p->failure) &&
           (at = __atomic_fetch_add(&p->next, 1, __ATOMIC_RELAXED)) < p->files->n && may_begin(p, at)) {
        struct sample s;
        uint64_t from = sys->mono_ns();
        r = read_sample(p, c, p->order[at], &s, &e);
        histogram_add(times, sys->mono_ns() - from);
        files += r == 0;
        bytes += s.verify.bytes;
        checksum += s.crc;
        if (p->o->progress)
            progress_add(p->o->progress, 1, s.verify.bytes);
        LOCK_SCOPE(&p->lock);
        if (r == 0 && --p->missing[at / p->o->batch] == 0)
            cond_broadcast(&p->ready);
    }
    if (r < 0)
        fail(p, r, &e);
    p->t->ops->disconnect(c);
    LOCK_SCOPE(&p->lock);
    p->ret->files += files;
    p->ret->bytes += bytes;
    p->ret->checksum += checksum;
    histogram_merge(&p->ret->times, times);
    free(times);
}

/* ---- the accelerator ---- */

static void step(struct pass *p, uint64_t batch)
{
    uint64_t from = sys->mono_ns();
    {
        LOCK_SCOPE(&p->lock);
        while (p->missing[batch] > 0 && !bench_failure_is(&p->failure))
            cond_wait(&p->ready, &p->lock);
    }
    if (bench_failure_is(&p->failure))
        return;
    uint64_t there = sys->mono_ns();
    histogram_add(&p->ret->stalls, there - from);
    if (p->o->compute_ns) {
        sys->sleep_ns(p->o->compute_ns);
        p->ret->compute_ns += sys->mono_ns() - there;
    }
    p->ret->steps++;
    LOCK_SCOPE(&p->lock);
    __atomic_store_n(&p->consumed, batch + 1, __ATOMIC_RELEASE);
    cond_broadcast(&p->room);
}

static void *accelerator(void *arg)
{
    struct pass *p = arg;
    uint64_t batches = (p->files->n + p->o->batch - 1) / p->o->batch;
    for (uint64_t b = 0; b < batches && !bench_failure_is(&p->failure); b++)
        step(p, b);
    return NULL;
}

static void start_clock(void *arg)
{
    struct pass *p = arg;
    p->from_ns = sys->mono_ns();
}

int bench_pass_run(struct bench_target *t, const struct bench_files *files,
                   const struct bench_pass_options *o, struct bench_pass *ret, struct err *e)
{
    uint64_t batches = (files->n + o->batch - 1) / o->batch;
    *ret = (struct bench_pass){.origin_bytes = -1};
    struct pass p = {.t = t, .files = files, .o = o, .ret = ret};
    p.order = bench_order_make(o->order, files->n, o->window, o->seed);
    p.missing = calloc(MAX(batches, (uint64_t)1), sizeof(p.missing[0]));
    assert(p.missing);
    for (uint64_t b = 0; b < batches; b++)
        p.missing[b] = (uint32_t)MIN(o->batch, files->n - b * o->batch);
    lock_init(&p.lock, LOCK_CLIENT);
    cond_init(&p.ready);
    cond_init(&p.room);
    bench_failure_init(&p.failure);
    pthread_t gpu;
    int r = pthread_create(&gpu, NULL, accelerator, &p) == 0 ? 0 : err_errno(e, -EAGAIN, "make a thread");
    if (r == 0) {
        r = bench_threads(o->workers, start_clock, worker, &p);
        if (r < 0) {
            (void)err_errno(e, r, "make %u threads", o->workers);
            fail(&p, r, e);
        }
        (void)pthread_join(gpu, NULL);
        ret->seconds = (double)(sys->mono_ns() - p.from_ns) / 1e9;
        r = bench_failure_take(&p.failure, e);
    }
    bench_failure_fini(&p.failure);
    cond_fini(&p.ready);
    cond_fini(&p.room);
    lock_fini(&p.lock);
    free(p.missing);
    free(p.order);
    return r;
}
