/*
 * Reading ahead of one open file: carries out what its plan (plan.h) says. Embedded in whoever reads.
 *
 * Memory: a plan and what it keeps of a layout come out of the budget; without room for it only what is read
 * is fetched.
 */
#pragma once

#include "base/lock.h"
#include "object/fill.h"

struct ahead {
    struct budget *budget;
    const char *bucket; /* its name, for the metrics; borrowed */
    struct slice name;  /* of the file; borrowed */
    uint64_t size;
    struct lock lock;  /* covers what follows */
    struct plan *plan; /* NULL: nothing was read, or no memory for it */
    uint64_t taken;    /* of the budget */
    unsigned counted;  /* patterns that the metrics know of */
};

void ahead_init(struct ahead *a, struct budget *budget, const char *bucket, struct slice name, uint64_t size);
void ahead_fini(struct ahead *a);

/* A read of [offset, offset + n) with bytes missing in the file: asks for them and for what the plan wants
 * ahead, at most `max_window` bytes. `urgent`: somebody waits for the first byte. Any thread; never waits for
 * the origin. */
void ahead_read(struct ahead *a, struct fill *f, uint64_t offset, uint64_t n, uint64_t max_window,
                bool urgent);
