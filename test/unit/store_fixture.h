/* A real store of one disk, as tests of the layers above it want one. */
#pragma once

#include "store/store.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static inline struct store *store_of(const char *dir, uint64_t size_bytes)
{
    struct store_disk_config disk = {.path = dir, .size_bytes = size_bytes};
    struct store_config sc = {
        .disks = &disk, .n_disks = 1, .memory_bytes = 32 * MIB, .flush_interval_ms = 3600000};
    struct store *s = NULL;
    struct err e = {0};
    if (store_open(&sc, &s, &e) < 0)
        fail_msg("%s", e.text);
    return s;
}
