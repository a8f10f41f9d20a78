/*
 * RocksDB's functions, out of the shared library.
 */
#include "kv/rocks.h"

#include "base/library.h"

struct rocks rocks;

static const char *const names[] = {
#define X(name) "rocksdb_" #name,
    ROCKS_FUNCTIONS(X)
#undef X
};
static_assert(sizeof(rocks) == sizeof(names), "a pointer for each name");

static struct library library = LIBRARY(LIBROCKSDB, names, rocks);

int rocks_load(struct err *e)
{
    return library_load(&library, e);
}
