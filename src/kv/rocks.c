/*
 * RocksDB's functions, out of the shared library.
 */
#include "kv/rocks.h"

#include "base/library.h"

struct rocks rocks;

static struct library library = LIBRARY(LIBROCKSDB, "rocksdb_", ROCKS_FUNCTIONS, rocks);

int rocks_load(struct err *e)
{
    return library_load(&library, e);
}
