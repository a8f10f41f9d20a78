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
    const char *prefix;       /* what the names of its functions begin with */
    const char *const *names; /* the rest of those that are called */
    size_t n;
    void **functions;      /* where each is, in this order, once it is loaded */
    pthread_mutex_t mutex; /* held while files are read: who needs the library waits for it anyway */
    bool loaded;           /* covered by it */
};

/* functions_x: an X macro with the names of those that are called, without the prefix. `table`: a struct of
 * pointers to functions that was made by it. Outside functions. */
#define LIBRARY(file_name, name_prefix, functions_x, table)                                                  \
    {                                                                                                        \
        .file = (file_name), .prefix = (name_prefix),                                                        \
        .names = (const char *const[]){functions_x(LIBRARY_NAME)}, .n = sizeof(table) / sizeof(void *),      \
        .functions = (void **)(void *)&(table), .mutex = PTHREAD_MUTEX_INITIALIZER                           \
    }
#define LIBRARY_NAME(name) #name,

/* Loads it, unless it is there, until the process ends. -ELIBACC, with the loader's words, when it or one of
 * the functions cannot be found; it may be tried again. Any thread. */
int library_load(struct library *l, struct err *e);
