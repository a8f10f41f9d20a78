/*
 * Shared libraries that are loaded when the first of their functions is needed, and not with the program.
 *
 * RocksDB and libcurl bring 37 of the 48 libraries that the program would begin with, which took four fifths
 * of the time in which a command begins; only a node calls them (bench/NOTES.md, prefetch).
 */
#pragma once

#include "base/err.h"

#include <pthread.h>

/* Static, made by LIBRARY. */
struct library {
    const char *file;         /* the name by which the loader finds it */
    const char *const *names; /* of the functions that are called */
    size_t n;
    void **functions;      /* where each is, in this order, once it is loaded */
    pthread_mutex_t mutex; /* held while files are read: who needs the library waits for it anyway */
    bool loaded;           /* covered by it */
};

/* `table`: a struct of pointers to functions, one for each of `function_names`. */
#define LIBRARY(file_name, function_names, table)                                                            \
    {                                                                                                        \
        .file = (file_name), .names = (function_names), .n = ARRAY_SIZE(function_names),                     \
        .functions = (void **)(void *)&(table), .mutex = PTHREAD_MUTEX_INITIALIZER                           \
    }

/* Loads it, unless it is there, until the process ends. -ELIBACC, with the loader's words, when it or one of
 * the functions cannot be found; it may be tried again. Any thread. */
int library_load(struct library *l, struct err *e);
