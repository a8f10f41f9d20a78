/* safetensors files: their header, and making one of a pattern. */
#pragma once

#include "base/err.h"
#include "base/pattern.h"

struct model_tensor {
    uint64_t begin, end; /* behind the header */
};

struct model_file {
    struct model_tensor *tensors; /* in the order of their places */
    size_t n;
    uint64_t bytes, data_offset;
    bool ours; /* made by model_file_make: the data is `pattern` */
    struct pattern pattern;
};

/* Reads and checks the header. -EBADMSG with a text when it is none. */
int model_file_open(const char *path, struct model_file *ret, struct err *e);
void model_file_close(struct model_file *f);
/* A file of about `bytes` in `tensors` tensors, appearing under its name when it is whole. -EINTR when the
 * measurement is interrupted (bench_interrupts); after a failure nothing is left of it. */
int model_file_make(const char *path, uint64_t bytes, uint64_t tensors, uint64_t seed, struct err *e);
