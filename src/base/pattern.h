/*
 * Bytes that anyone can make again: the contents of files that measurements write, and against which every
 * byte that they read is compared. Byte i of a pattern depends on its key and on i alone, so that any piece
 * can be made or checked by itself, and a piece of another file, or of another place, is found to be wrong.
 *
 * Line n, the 64 bytes from 64 n on, is eight little-endian words: with base = hash_mix(key, n), word j is
 * x ^ (x >> 29) for x = base + (j + 1) * 0x9e3779b97f4a7c15. Part of the contract: files made by one version
 * are checked by another.
 */
#pragma once

#include "base/slice.h"

struct pattern {
    uint64_t key;
};

/* The pattern of a name under a seed. */
struct pattern pattern_of(uint64_t seed, struct slice name);
/* Bytes offset .. offset + n. */
void pattern_fill(struct pattern p, uint64_t offset, void *to, size_t n);
/* Offset of the first byte (counted from the beginning of the pattern) that is not the pattern's, or -1. */
int64_t pattern_check(struct pattern p, uint64_t offset, const void *from, size_t n);
