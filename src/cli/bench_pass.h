/* One epoch over the files of a target, as a training loop goes through it. */
#pragma once

#include "cli/bench_report.h"
#include "cli/bench_target.h"

/* The files of a target below a prefix, in the order of its listing. */
struct bench_files {
    char **names;
    uint64_t *sizes;
    size_t n, cap;
    uint64_t bytes;
};
int bench_files_find(struct bench_target *t, const char *prefix, struct bench_files *ret, struct err *e);
void bench_files_fini(struct bench_files *f);

enum bench_order { BENCH_FIXED, BENCH_SHUFFLED, BENCH_WINDOWED };

struct bench_pass_options {
    unsigned workers;
    uint64_t batch;    /* samples of a step */
    uint64_t prefetch; /* batches that are read ahead of the one that is waited for */
    enum bench_order order;
    uint64_t window;     /* BENCH_WINDOWED: samples that are shuffled among each other */
    uint64_t seed;       /* of the order */
    uint64_t compute_ns; /* of a step, slept */
    bool verify;         /* files hold the pattern of their name under data_seed */
    bool blind;          /* only read: nothing is compared, and no checksum made; their sizes are looked at */
    uint64_t data_seed;
    struct progress *progress; /* may be NULL */
};

/* What one pass gave. */
struct bench_pass {
    double seconds;
    uint64_t files, bytes;
    uint64_t
        checksum; /* sum over the files of crc32c of name and contents: independent of the order; 0: blind */
    uint64_t steps, compute_ns; /* time spent computing */
    struct histogram times;     /* of open, read, close of one file */
    struct histogram stalls;    /* of waiting for one batch */
    int64_t origin_bytes;       /* -1: not known */
};

/* The order in which n samples are read; to be freed. */
uint32_t *bench_order_make(enum bench_order order, size_t n, uint64_t window, uint64_t seed);
int bench_pass_run(struct bench_target *t, const struct bench_files *files,
                   const struct bench_pass_options *o, struct bench_pass *ret, struct err *e);
/* Value of forebay_origin_read_bytes_total, all buckets, from the metrics of the node at HOST:PORT; -1 when
 * it cannot be had. */
int64_t bench_origin_bytes(const char *hostport);
