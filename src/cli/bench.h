/*
 * The measurements of `forebay bench`: one row each. Each takes the arguments behind its name and returns the
 * exit status.
 */
#pragma once

#include "base/macro.h"

/* X(function, name, what --help says) */
#define BENCH_COMMANDS(X)                                                                                    \
    X(epoch, "epoch", "read all files once per epoch, as training loops do")                                 \
    X(load, "load", "get, put and list objects over many connections")                                       \
    X(checkpoint, "checkpoint", "write checkpoints as torch.save does, whole or in shards")                  \
    X(model, "model", "load a safetensors file by mmap, pread, or as a whole")                               \
    X(meta, "meta", "create, stat, rename and remove many small files")

#define X(function, name, doc) int bench_##function(int argc, char **argv);
BENCH_COMMANDS(X)
#undef X
