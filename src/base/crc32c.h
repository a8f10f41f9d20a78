/*
 * CRC-32C (Castagnoli, reflected polynomial 0x82f63b78) by ISA-L. Start with 0; feed pieces in order with the
 * value so far. crc32c(0, "123456789", 9) is 0xe3069283 (RFC 3720 B.4 convention: inverted in and out).
 */
#pragma once

#include "base/macro.h"

uint32_t crc32c(uint32_t crc, const void *p, size_t n);
