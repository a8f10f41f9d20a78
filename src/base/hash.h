/*
 * SipHash-2-4 (Aumasson and Bernstein, 2012): keyed for hash tables that hold keys chosen by users, and with
 * the fixed all-zero key for placement, where every node must agree. Test vectors: test/unit/test_hash.c.
 */
#pragma once

#include "base/slice.h"

struct hash_key {
    uint64_t k0, k1;
};

uint64_t hash_sip(struct hash_key key, struct slice data);
/* Placement: all-zero key. Part of the on-disk contract; never changes. */
uint64_t hash_placement(struct slice data);
/* Table hash: a random key chosen at process start. */
uint64_t hash_table(struct slice data);
/* Cheap mix of two integers (splitmix64 finaliser). */
uint64_t hash_mix(uint64_t a, uint64_t b);
