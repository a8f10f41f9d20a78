#include "support/seeds.h"

#include <stdio.h>
#include <stdlib.h>

static uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

uint64_t seeds_first(void)
{
    return number_of("FOREBAY_TEST_SEED", 1);
}

uint64_t seeds_end(uint64_t n)
{
    return seeds_first() + number_of("FOREBAY_TEST_SEEDS", n);
}

uint64_t seeds_tell(uint64_t seed)
{
    if (getenv("FOREBAY_TEST_SEED") || getenv("FOREBAY_TEST_SEEDS"))
        (void)fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
    return seed;
}
