/* How measurements tell what they found; contract in bench_report.h. */
#include "cli/bench_report.h"

#include "base/thread.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>

#define STACK_BYTES (512 * KIB) /* curl, TLS and libc in one call after the other */

static double seconds(uint64_t ns)
{
    return (double)ns / 1e9;
}

void bench_json_times(const char *name, const struct histogram *ns)
{
    if (ns->count == 0) { /* no time is not a time of 0 */
        (void)printf("\"%s\": {\"p50\": null, \"p90\": null, \"p99\": null, \"p999\": null, \"max\": null, "
                     "\"mean\": null}",
                     name);
        return;
    }
    (void)printf(
        "\"%s\": {\"p50\": %.9f, \"p90\": %.9f, \"p99\": %.9f, \"p999\": %.9f, \"max\": %.9f, \"mean\": "
        "%.9f}",
        name, seconds(histogram_quantile(ns, 0.5)), seconds(histogram_quantile(ns, 0.9)),
        seconds(histogram_quantile(ns, 0.99)), seconds(histogram_quantile(ns, 0.999)), seconds(ns->max),
        histogram_mean(ns) / 1e9);
}

void bench_table_times_head(void)
{
    (void)printf(" %9s %9s %9s", "p50 ms", "p99 ms", "max ms");
}

void bench_table_times(const struct histogram *ns)
{
    if (ns->count == 0) {
        (void)printf(" %9s %9s %9s", "-", "-", "-");
        return;
    }
    (void)printf(" %9.3f %9.3f %9.3f", (double)histogram_quantile(ns, 0.5) / 1e6,
                 (double)histogram_quantile(ns, 0.99) / 1e6, (double)ns->max / 1e6);
}

void bench_failure_init(struct bench_failure *f)
{
    *f = (struct bench_failure){0};
    lock_init(&f->lock, LOCK_LEAF);
}

void bench_failure_fini(struct bench_failure *f)
{
    lock_fini(&f->lock);
}

void bench_failure_set(struct bench_failure *f, int code, const struct err *e)
{
    LOCK_SCOPE(&f->lock);
    if (__atomic_exchange_n(&f->failed, true, __ATOMIC_ACQ_REL))
        return;
    f->code = code;
    f->err = *e;
}

static bool interrupted; /* atomic */

static void on_interrupt(int number)
{
    __atomic_store_n(&interrupted, true, __ATOMIC_RELEASE);
}

void bench_interrupts(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    const struct sigaction ours = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART | (int)SA_RESETHAND};
    for (size_t i = 0; i < ARRAY_SIZE(signals); i++) {
        struct sigaction before;
        if (sigaction(signals[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN) /* nohup */
            (void)sigaction(signals[i], &ours, NULL);
    }
}

bool bench_interrupted(void)
{
    return __atomic_load_n(&interrupted, __ATOMIC_ACQUIRE);
}

bool bench_failure_is(const struct bench_failure *f)
{
    return __atomic_load_n(&f->failed, __ATOMIC_ACQUIRE) || bench_interrupted();
}

int bench_failure_take(const struct bench_failure *f, struct err *e)
{
    if (f->code == 0 && bench_interrupted())
        return err_set(e, -EINTR, "interrupted");
    if (f->code < 0)
        *e = f->err;
    return f->code;
}

/* ---- threads ---- */

/* What threads wait at until all of them are there. */
struct gate {
    struct lock lock; /* covers open and in_vain */
    struct cond opened;
    bool open, in_vain;
};

struct thread {
    void (*fn)(void *arg, unsigned i);
    void *arg;
    struct gate *gate;
    unsigned i;
    pthread_t id;
};

static bool pass(struct gate *g)
{
    LOCK_SCOPE(&g->lock);
    while (!g->open)
        cond_wait(&g->opened, &g->lock);
    return !g->in_vain;
}

static void open_gate(struct gate *g, bool in_vain)
{
    LOCK_SCOPE(&g->lock);
    g->in_vain = in_vain;
    g->open = true;
    cond_broadcast(&g->opened);
}

static void *thread_main(void *arg)
{
    struct thread *t = arg;
    if (pass(t->gate))
        t->fn(t->arg, t->i);
    return NULL;
}

int bench_threads(unsigned n, void (*begin)(void *arg), void (*fn)(void *arg, unsigned i), void *arg)
{
    struct thread *threads = calloc(n, sizeof(*threads));
    struct gate gate = {0};
    assert(threads);
    lock_init(&gate.lock, LOCK_LEAF);
    cond_init(&gate.opened);
    unsigned made = 0;
    for (; made < n; made++) {
        threads[made] = (struct thread){.fn = fn, .arg = arg, .gate = &gate, .i = made};
        if (thread_start(&threads[made].id, STACK_BYTES, thread_main, &threads[made]) < 0)
            break;
    }
    if (made == n && begin)
        begin(arg);
    open_gate(&gate, /* in_vain= */ made < n);
    for (unsigned i = 0; i < made; i++)
        (void)pthread_join(threads[i].id, NULL);
    cond_fini(&gate.opened);
    lock_fini(&gate.lock);
    free(threads);
    return made == n ? 0 : -EAGAIN;
}
