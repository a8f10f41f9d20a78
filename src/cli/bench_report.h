/* How measurements tell what they found: members of JSON objects, columns of tables, the first failure of
 * many threads. */
#pragma once

#include "base/err.h"
#include "base/histogram.h"
#include "base/lock.h"

/* "NAME": {"p50": ..., "p90": ..., "p99": ..., "p999": ..., "max": ..., "mean": ...} in seconds; null where
 * nothing was timed. */
void bench_json_times(const char *name, const struct histogram *ns);
/* Heading and line of the same for people, in milliseconds: p50, p99, max; "-" where nothing was timed. */
void bench_table_times_head(void);
void bench_table_times(const struct histogram *ns);

/* Of several threads the first failure counts; the others see that there is one and stop. */
struct bench_failure {
    struct lock lock; /* covers code and err */
    bool failed;      /* atomic */
    int code;
    struct err err;
};
void bench_failure_init(struct bench_failure *f);
void bench_failure_fini(struct bench_failure *f);
void bench_failure_set(struct bench_failure *f, int code, const struct err *e);
bool bench_failure_is(const struct bench_failure *f);
/* Its code, with the text in `e`; 0 when there is none. After the threads are gone. */
int bench_failure_take(const struct bench_failure *f, struct err *e);

/* From now on SIGINT, SIGTERM and SIGHUP are a failure of whatever runs, so that it ends and removes what it
 * made. A second one ends the process at once. */
void bench_interrupts(void);
/* Whether one of them came. */
bool bench_interrupted(void);

/* Runs fn(arg, i) in n threads, i from 0 on, and waits for all. None begins before all are made, and before
 * begin(arg), which may be NULL, was called: there a clock is started. -EAGAIN when they cannot all be made:
 * then none was run. Their stacks are small, so that thousands cost little. */
int bench_threads(unsigned n, void (*begin)(void *arg), void (*fn)(void *arg, unsigned i), void *arg);
