/*
 * Which of many things are the oldest that have so many bytes together, found in two passes over them with
 * little memory: the first counts bytes by age, in eighths of powers of two of milliseconds; the second
 * divides the one class in which the border lies. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define AGES 512

struct ages {
    bool is_second;
    unsigned border;      /* the class that the second pass divides */
    uint64_t older_bytes; /* in the classes beyond it */
    uint64_t bytes[AGES];
};

/* Zero-initialised: the first pass. */
void ages_add(struct ages *a, uint64_t age_ms, uint64_t bytes);
/* Between the passes: `excess` bytes have to go. */
void ages_divide(struct ages *a, uint64_t excess);
/* After the second pass, with the same: from which age on, in ms, things make up that many bytes at least,
 * and hardly more than needed; 0 when all together do not. */
uint64_t ages_from_ms(const struct ages *a, uint64_t excess);
