/*
 * Placement: which disk of a node holds a key. Weighted rendezvous hashing by the logarithmic method
 * (Schindelhauer and Schomaker, "Weighted distributed hash tables", SPAA 2005), in integers only, so that
 * every machine and every library agrees.
 *
 * For a key and for each place i with a 128-bit id and a weight w_i > 0:
 *
 *     h_i = hash_placement(the 16 bytes of id_i, then the key)     SipHash-2-4 with the zero key
 *     l_i = placement_neglog2(h_i)                                 about -log2((h_i + 1) / 2^64), in units of
 * 2^-32
 *
 * Place i is better than place j when w_i * l_j > w_j * l_i, compared in 128 bits, or when both are equal and
 * id_i is smaller in byte order. The best place holds the key. The share of each place is its share of the
 * weights; adding or removing a place moves only the keys that it gains or held. Pure functions; test vectors
 * in test/unit/test_store_format.c.
 */
#pragma once

#include "base/id.h"

struct placement_place {
    struct id128 id;
    uint64_t weight; /* > 0 */
};

/*
 * 64 * 2^32 - L, at least 1 (also for h = 2^64 - 1), where L is log2(h + 1) with 32 bits behind the point.
 * The integer part of L is the position of the highest bit. Its fraction comes bit by bit, highest first: the
 * mantissa, in [1, 2) with 63 bits behind the point, is squared; the next bit is 1 when the square is at
 * least 2, and the square, halved in that case and cut off to 63 bits behind the point, is the next mantissa.
 */
uint64_t placement_neglog2(uint64_t h);
/* Fills ret_order (n long) with the indexes of the places, best first. */
void placement_order(const struct placement_place *places, size_t n, struct slice key, uint32_t *ret_order);
