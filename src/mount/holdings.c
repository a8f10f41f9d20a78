/*
 * The sum of what is held (contract in holdings.h).
 *
 * Counts are what was asked of malloc and its overhead, and lag behind what the kernel gives: memory that was
 * freed stays with the process until malloc_trim. So what is resident counts as well, where it is more.
 *
 * Failure modes: without /proc only what was counted is known.
 */
#include "mount/holdings.h"

#include "base/macro.h"
#include "base/sys.h"

#include <stdatomic.h>

#define CHUNK_HEAD 8
#define CHUNK_STEP 16
#define CHUNK_MIN  32

/* A sanitizer has memory of its own, several times the program's: there only what is counted tells. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RESIDENT_COUNTS false
#else
#define RESIDENT_COUNTS true
#endif

static _Atomic uint64_t held[HOLDINGS_N];
static _Atomic uint64_t limit;

static const struct {
    const char *name;
    bool can_go;
} kinds[HOLDINGS_N] = {
#define X(NAME, name, can_go, doc) [HOLDING_##NAME] = {#name, can_go},
    HOLDINGS(X)
#undef X
};

const char *holding_name(enum holding h)
{
    assert(h < HOLDINGS_N);
    return kinds[h].name;
}

static uint64_t base_bytes(uint64_t n_threads)
{
    return HOLDINGS_BASE_BYTES + n_threads * HOLDINGS_THREAD_BYTES;
}

uint64_t holdings_least(uint64_t n_threads)
{
    return base_bytes(n_threads) + HOLDINGS_LEAST_BYTES;
}

uint64_t holdings_default(uint64_t n_threads)
{
    return MAX(HOLDINGS_DEFAULT_BYTES, 2 * base_bytes(n_threads));
}

uint64_t holdings_threads(uint64_t limit_bytes)
{
    uint64_t half = limit_bytes / 2, n = 0;
    if (limit_bytes == 0)
        return HOLDINGS_THREADS;
    if (half > HOLDINGS_BASE_BYTES)
        n = (half - HOLDINGS_BASE_BYTES) / HOLDINGS_THREAD_BYTES;
    return MIN(MAX(n, (uint64_t)HOLDINGS_THREADS_LEAST), (uint64_t)HOLDINGS_THREADS);
}

void holdings_start(uint64_t limit_bytes, uint64_t n_threads)
{
    atomic_store(&limit, limit_bytes);
    atomic_store(&held[HOLDING_BASE], base_bytes(n_threads));
}

void holdings_take(enum holding h, size_t bytes)
{
    (void)atomic_fetch_add_explicit(&held[h], bytes, memory_order_relaxed);
}

void holdings_give(enum holding h, size_t bytes)
{
    uint64_t was = atomic_fetch_sub_explicit(&held[h], bytes, memory_order_relaxed);
    assert(was >= bytes);
    (void)was;
}

size_t holdings_chunk(size_t bytes)
{
    return MAX((size_t)CHUNK_MIN, (bytes + CHUNK_HEAD + CHUNK_STEP - 1) / CHUNK_STEP * CHUNK_STEP);
}

uint64_t holdings_of(enum holding h)
{
    assert(h < HOLDINGS_N);
    return atomic_load_explicit(&held[h], memory_order_relaxed);
}

static uint64_t sum(bool with_what_can_go)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < HOLDINGS_N; i++)
        if (with_what_can_go || !kinds[i].can_go)
            bytes += holdings_of((enum holding)i);
    return bytes;
}

uint64_t holdings_total(void)
{
    return sum(/* with_what_can_go= */ true);
}

uint64_t holdings_limit(void)
{
    return atomic_load_explicit(&limit, memory_order_relaxed);
}

bool holdings_may(size_t bytes)
{
    uint64_t most = holdings_limit();
    return most == 0 || sum(/* with_what_can_go= */ false) + bytes <= most - most / 16;
}

uint64_t holdings_excess(void)
{
    uint64_t most = holdings_limit(), total = holdings_total();
    return most > 0 && total >= most - most / 8 ? total - (most - most / 4) : 0;
}

bool holdings_is_over(void)
{
    uint64_t most = holdings_limit();
    return most > 0 && holdings_total() > most;
}

uint64_t holdings_resident(void)
{
    _cleanup_free_ char *text = NULL;
    size_t n;
    unsigned long long pages, resident;
    if (sys_read_file("/proc/self/statm", /* max= */ 4096, &text, &n) < 0 ||
        sscanf(text, "%llu %llu", &pages, &resident) != 2)
        return 0;
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t holdings_resident_excess(void)
{
    uint64_t most = holdings_limit(), resident = RESIDENT_COUNTS && most > 0 ? holdings_resident() : 0;
    return most > 0 && resident >= most - most / 8 ? resident - (most - most / 4) : 0;
}
