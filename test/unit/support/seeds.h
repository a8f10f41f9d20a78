/*
 * What random tests begin with: FOREBAY_TEST_SEED (1) is the first seed, FOREBAY_TEST_SEEDS how many there
 * are.
 *
 *     for (uint64_t seed = seeds_first(); seed < seeds_end(3); seed++)
 *         run(seeds_tell(seed));
 */
#pragma once

#include <stdint.h>

uint64_t seeds_first(void);
/* One more than the last; n: how many, where the environment names no number. */
uint64_t seeds_end(uint64_t n);
/* The seed, which is printed where the environment asked for it, so that a difference names its own. */
uint64_t seeds_tell(uint64_t seed);
