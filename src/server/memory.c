/*
 * Division of --memory and measurement of what is used (contract in memory.h).
 *
 * The shares are fractions with floors: below the floors a part cannot work (a wire frame has 8 MiB, RocksDB
 * wants two memtables). At the smallest --memory (64 MiB) the floors leave little for the process itself; the
 * promise is
 * --memory plus 64 MiB at most.
 */
#include "server/memory.h"

#include "base/slice.h"
#include "base/sys.h"

#include <malloc.h>

#define ARENAS_MAX 4 /* malloc arenas: each keeps its own freed memory */

struct memory_plan memory_divide(uint64_t memory_bytes)
{
    return (struct memory_plan){
        .control_cache_bytes = MAX(memory_bytes / 64, 2 * MIB),
        .control_write_bytes = MAX(memory_bytes / 64, 2 * MIB),
        .store_bytes = MAX(memory_bytes / 4, 16 * MIB),
        .heads_bytes = MAX(memory_bytes / 32, 2 * MIB),
        .answers_bytes = MAX(memory_bytes / 32, 2 * MIB),
        .documents_bytes = MAX(memory_bytes / 32, 3 * MIB),
        .wire_bytes = MAX(memory_bytes / 8, 9 * MIB),
        .budget_bytes = MAX(memory_bytes / 8 * 3, 24 * MIB),
    };
}

/* "RssAnon:     1234 kB" */
static uint64_t field(struct slice text, struct slice name)
{
    ssize_t at = slice_find_slice(text, name);
    if (at < 0)
        return 0;
    struct slice line = slice_from(text, (size_t)at + name.n);
    line = slice_trim(slice_split(&line, '\n'));
    uint64_t kib = 0;
    return slice_u64(slice_split(&line, ' '), &kib) < 0 ? 0 : kib * KIB;
}

struct memory_use memory_measure(void)
{
    _cleanup_free_ char *p = NULL;
    size_t n = 0;
    if (sys_read_file("/proc/self/status", 64 * KIB, &p, &n) < 0)
        return (struct memory_use){0};
    struct slice text = slice_of(p, n);
    return (struct memory_use){field(text, SLICE_LIT("\nRssAnon:")), field(text, SLICE_LIT("\nRssShmem:")),
                               field(text, SLICE_LIT("\nRssFile:"))};
}

void memory_prepare(void)
{
    (void)mallopt(M_ARENA_MAX, ARENAS_MAX);
    /* Setting it also stops glibc from raising it, which would keep every freed buffer in the arenas. */
    (void)mallopt(M_MMAP_THRESHOLD, 128 * 1024);
    (void)mallopt(M_TRIM_THRESHOLD, 256 * 1024);
}
