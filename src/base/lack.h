/*
 * What a change of a file's bytes may need on its disk, before it: the blocks that it touches and that are
 * not there.
 */
#pragma once

#include "base/macro.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

/* Of a range: how many bytes have no blocks, and how far one gets with so much room. */
struct lack {
    uint64_t room;
    uint64_t missing, reach;
    bool is_over;
};

/* Adds what is found from `from` to `to`, which are multiples of `block`. Where the file system does not say,
 * all behind the first hole counts as missing. */
void lack_look(int fd, uint64_t from, uint64_t to, uint64_t block, struct lack *l);
/* In what the file's blocks are counted. */
uint64_t lack_block(const struct stat *st);
/* Bytes of the blocks that n bytes at `offset` touch, and where these begin. */
uint64_t lack_blocks(uint64_t block, uint64_t offset, uint64_t n, uint64_t *ret_from);
