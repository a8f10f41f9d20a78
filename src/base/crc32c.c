/*
 * CRC-32C by ISA-L, which picks the fastest form for the processor.
 *
 * Invariants:
 *  1. crc32c(crc32c(0, a), b) == crc32c(0, a then b).
 *
 * Failure modes: none. ISA-L neither inverts its start value nor its result, and takes lengths as int; both
 * are put right here.
 */
#include "base/crc32c.h"

#include <isa-l/crc.h>

#define PIECE_MAX ((size_t)1 << 30)

uint32_t crc32c(uint32_t crc, const void *p, size_t n)
{
    /* ISA-L only reads, but its prototype lacks the const. */
    unsigned char *at = (unsigned char *)(uintptr_t)p;
    uint32_t raw = ~crc;
    while (n) {
        size_t piece = MIN(n, PIECE_MAX);
        raw = crc32_iscsi(at, (int)piece, raw);
        at += piece;
        n -= piece;
    }
    return ~raw;
}
