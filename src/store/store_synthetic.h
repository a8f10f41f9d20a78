/*
 * Entries made in bulk, to measure and test the store at sizes that real fills would take days to reach. The
 * disk that comes out is like any other: every entry is valid, and where a file was made its (sparse) bytes
 * match the checksum.
 */
#pragma once

#include "base/err.h"
#include "store/store.h"

struct store_synthetic {
    uint64_t entries;
    uint64_t size_bytes; /* of each object, at most one block */
    uint64_t file_every; /* a file for every so manieth entry; 0: none (such entries are dropped when they are
                            found) */
    uint64_t memory_bytes;
};

/* Makes a disk in the directory, which must be missing or empty, marked as cleanly stopped. */
int store_synthetic_load(const char *disk, const struct store_synthetic *what, struct err *e);
/* Key of entry i; valid until `ret` is changed. Keys sort like their numbers. */
#define STORE_SYNTHETIC_KEY_MAX 64
struct slice store_synthetic_key(uint64_t i, char ret[STORE_SYNTHETIC_KEY_MAX]);
/* Reads and decodes the index record of a key, as store_find does, but opens no file. 0, -ENOENT or an error.
 */
int store_synthetic_lookup(struct store *s, struct slice key);
