/* The measurements of `forebay bench`. Each takes the arguments behind its name and returns the exit status.
 */
#pragma once

#include "base/macro.h"

int bench_epoch(int argc, char **argv);

/* The files below a directory, in the order of their names. */
struct bench_files {
    char **names; /* below the root */
    uint64_t *sizes;
    size_t n, cap;
    uint64_t bytes;
};
/* 0 or a negative errno; regular files only. */
int bench_files_find(const char *root, struct bench_files *ret);
void bench_files_fini(struct bench_files *f);

/* What one pass over the files gave. */
struct bench_pass {
    double seconds;
    uint64_t files, bytes;
    uint64_t checksum;       /* sum over the files of crc32c of name and contents: independent of the order */
    uint64_t p50_ns, p99_ns; /* of open, read, close of one file */
    int64_t origin_bytes;    /* -1: not known */
    int error;               /* first failure, 0 when all could be read */
    char failed[256];        /* its file */
};
/* Reads all files, shuffled by seed, with `workers` threads that read `block` bytes at a time. */
void bench_pass_run(const char *root, const struct bench_files *files, uint64_t seed, unsigned workers,
                    size_t block, struct bench_pass *ret);
/* Value of forebay_origin_read_bytes_total, all buckets, from the metrics of the node at HOST:PORT; -1 when
 * it cannot be had. */
int64_t bench_origin_bytes(const char *hostport);
