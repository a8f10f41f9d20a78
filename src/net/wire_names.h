/*
 * Records of WATCH_NAMES: which names of a bucket have changed.
 *
 * | offset | size | field                                                                       |
 * | ------ | ---- | ---------------------------------------------------------------------------- |
 * | 0      | 4    | length of the key in bytes, little endian; 1 to WIRE_NAME_MAX_BYTES          |
 * | 4      | 4    | enum wire_name_flag                                                          |
 * | 8      |      | the key, and zeros up to a multiple of 8 bytes                               |
 *
 * A record is written at once and is shorter than PIPE_BUF; whoever reads gets whole words of 8 bytes, and
 * perhaps a part of a record.
 */
#pragma once

#include "base/slice.h"

#include <stdint.h>

#define WIRE_NAME_MAX_BYTES    1024
#define WIRE_NAME_RECORD_BYTES (8 + WIRE_NAME_MAX_BYTES) /* the longest */

enum wire_name_flag {
    WIRE_NAME_GONE = 1 << 0, /* it was removed, and directories above it may be gone with it */
};

/* The record of a key of 1 to WIRE_NAME_MAX_BYTES bytes; its length. */
size_t wire_name_put(uint8_t ret[WIRE_NAME_RECORD_BYTES], struct slice key, uint32_t flags);

/* What was read so far of a record; zero-initialised at the beginning of a pipe. */
struct wire_names {
    uint64_t head; /* 0: none yet */
    size_t filled;
    uint8_t key[WIRE_NAME_MAX_BYTES];
};

/* Calls `each` with every record that these words end. -EPROTO: no such record; what follows makes no sense
 * either. */
int wire_names_take(struct wire_names *p, const uint64_t *words, size_t n,
                    void (*each)(void *arg, struct slice key, uint32_t flags), void *arg);
