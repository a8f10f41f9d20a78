/* How much a job is about, learned by a thread of its own while the job works already on what is listed. */
#pragma once

#include "jobs/pages.h"
#include "jobs/source.h"

#include <stdatomic.h>

struct count_open {
    struct source_open source;
    struct pages *pages;     /* gets what is listed; must live until count_free */
    const atomic_bool *stop; /* ends it early */
    /* Whether the job is about the object. Called by the thread. */
    bool (*chosen)(const void *arg, const struct kind_object *o);
    const void *arg;
};

struct count_result {
    uint64_t objects, bytes;
};

struct count;

/* NULL: no thread was to be had. */
struct count *count_new(const struct count_open *o);
/* Ends it; waits for the page that is being listed. */
void count_free(struct count *c);
/* 1 and the result when it is through, 0 when it is not (with `wait`: because it was told to stop), or why it
 * failed. By the thread that made it. */
int count_ask(struct count *c, bool wait, struct count_result *ret, struct err *e);
