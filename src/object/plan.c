/*
 * Planning of reads. Sources of the constants: 8 MiB parts keep a connection of 50 MB/s busy for 8 round
 * trips of 20 ms; a window grows by 8 once a quarter of it has been read, so that a sequential reader of 1
 * MiB pieces has the pipe full after some 20 MiB, a reader of a few small pieces fetches little, and a random
 * one never more than a block.
 */
#include "object/plan.h"

#include "store/store.h"

static uint64_t add_capped(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static bool is_sequential(const struct plan_readahead *ra, uint64_t offset, uint64_t end)
{
    uint64_t low = ra->next > PLAN_SEQUENTIAL_SLACK ? ra->next - PLAN_SEQUENTIAL_SLACK : 0;
    return ra->started && offset >= low && offset <= add_capped(ra->next, PLAN_SEQUENTIAL_SLACK) && end > low;
}

struct plan_range plan_read(struct plan_readahead *ra, uint64_t offset, uint64_t n, uint64_t size,
                            uint64_t max_window)
{
    assert(offset <= size);
    uint64_t end = MIN(add_capped(offset, n), size);
    if (size <= PLAN_SMALL_BYTES)
        return (struct plan_range){0, size};
    bool sequential = is_sequential(ra, offset, end);
    if (!sequential) {
        ra->window = 0;
    } else if (ra->window == 0 || end >= ra->grow_at) {
        ra->window = MIN(ra->window ? ra->window * PLAN_WINDOW_GROWTH : PLAN_WINDOW_BYTES, max_window);
        ra->grow_at = add_capped(end, ra->window / 4);
    }
    ra->next = sequential ? MAX(ra->next, end) : end;
    ra->started = true;
    uint64_t first = add_capped(ALIGN_DOWN(offset, STORE_BLOCK_BYTES), PLAN_FIRST_BYTES);
    uint64_t reach = MAX(add_capped(end, ra->window), first);
    /* Whole parts: a window that slid by every read would ask for a sliver at its end each time. */
    if (ra->window > 0 && reach < UINT64_MAX - PLAN_PART_BYTES)
        reach = ALIGN_UP(reach, PLAN_PART_BYTES);
    return (struct plan_range){offset, MIN(reach, size)};
}

struct plan_range plan_discover(uint64_t offset, uint64_t expect)
{
    uint64_t from = ALIGN_DOWN(offset, STORE_BLOCK_BYTES);
    uint64_t end = expect == 0 ? add_capped(from, PLAN_FIRST_BYTES) : add_capped(offset, expect);
    end = MIN(end, add_capped(from, PLAN_PART_BYTES));
    if (end < UINT64_MAX - STORE_BLOCK_BYTES)
        end = ALIGN_UP(end, STORE_BLOCK_BYTES);
    return (struct plan_range){from, end};
}

struct plan_range plan_part(struct plan_range missing, struct plan_range wanted, uint64_t size)
{
    assert(missing.offset < missing.end && missing.end <= size);
    uint64_t boundary = add_capped(ALIGN_DOWN(missing.offset, PLAN_PART_BYTES), PLAN_PART_BYTES);
    uint64_t end = MIN(missing.end, boundary);
    uint64_t wanted_end =
        wanted.end < UINT64_MAX - STORE_BLOCK_BYTES ? ALIGN_UP(wanted.end, STORE_BLOCK_BYTES) : size;
    end = MIN(end, MAX(wanted_end, missing.offset + 1));
    return (struct plan_range){missing.offset, MIN(end, size)};
}
