/*
 * How --memory is divided among the parts of a node, and what the process really uses. The plan is pure.
 */
#pragma once

#include "base/macro.h"

struct memory_plan {
    uint64_t control_cache_bytes, control_write_bytes; /* control store: block cache, memtables */
    uint64_t store_bytes;                              /* index caches, open extents, data-set table */
    uint64_t heads_bytes;                              /* request heads that are incomplete or wait */
    uint64_t answers_bytes;                            /* ends of answers that clients do not take */
    uint64_t documents_bytes; /* XML that S3 clients send, and what is read out of it */
    uint64_t wire_bytes;      /* large bodies of wire requests and replies */
    uint64_t budget_bytes;    /* everything the object service reserves: fills, attributes */
    /* What is left is for the process itself: code, thread stacks, connections, the allocator's slack. */
};

/* The shares; their sum is below memory_bytes. */
struct memory_plan memory_divide(uint64_t memory_bytes);

struct memory_use {
    uint64_t anon_bytes, shmem_bytes, file_bytes;
};
/* From /proc/self/status; zeros when it cannot be read. */
struct memory_use memory_measure(void);

/* Process-wide settings for bounded memory: few malloc arenas, large blocks given back at once. Before
 * threads. */
void memory_prepare(void);
