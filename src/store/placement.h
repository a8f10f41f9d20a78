/*
 * Placement: which disk of a node holds a key. Weighted rendezvous hashing by the logarithmic method
 * (Schindelhauer and Schomaker, "Weighted distributed hash tables", SPAA 2005), in integers only, so that
 * every machine and every library agrees.
 *
 * For a key and for each place i with a 128-bit id and a weight w_i > 0:
 *
 *     h_i = hash_placement(id_i's 16 bytes, then the key's bytes)     SipHash-2-4 with the zero key
 *     l_i = placement_neglog2(h_i)                                    -log2((h_i + 1) / 2^64) in units of
 * 2^-32, at least 1 place i is better than place j when w_i * l_j > w_j * l_i       compared in 128 bits or
 * equal, and id_i < id_j   byte order
 *
 * The best place holds the key. The share of each place is its share of the weights; adding or removing a
 * place moves only the keys that it gains or held. Test vectors: test/unit/test_store_format.c. Pure
 * functions.
 */
#pragma once

#include "base/id.h"

struct placement_place {
    struct id128 id;
    uint64_t weight; /* > 0; below 2^64 */
};

/* -log2((h + 1) / 2^64) as a fixed-point number with 32 bits behind the point, rounded down, at least 1. */
uint64_t placement_neglog2(uint64_t h);
/* Fills ret_order (n long) with the indexes of the places, best first. */
void placement_order(const struct placement_place *places, size_t n, struct slice key, uint32_t *ret_order);
