/*
 * What RocksDB's log still holds, read before RocksDB does.
 *
 * Replaying stops at the first record that is not whole, and says nothing of what lay behind it. After a
 * power loss that is the torn end, as it should be. But a flipped bit in the middle drops everything behind
 * it, also what was durable. Every change has a number, one above that of the change before: the highest one
 * that is found in the log, compared with the last one that RocksDB knows after opening, tells the two apart.
 *
 * The format (RocksDB's log_format.h): blocks of 32 KiB; in them records of crc32c (4, masked), length (2),
 * type (1: whole, 2 to 4: first, middle and last piece) and payload, none across the end of a block. The
 * payload of a whole record begins with the number of its first change (8) and how many there are (4).
 */
#pragma once

#include "base/macro.h"

struct kv_wal {
    uint64_t last; /* number of the last change in any whole record; 0: none */
    bool damaged;  /* there is something that is no record, other than a record cut short by the end */
    bool gap;      /* numbers are left out in the middle of a file */
    bool bad_end;  /* the last record is there in its full length, and wrong */
};

/* Reads the log files in a database's directory. Not there: an empty log. Errors: of the directory; what of a
 * log cannot be read counts as damaged. */
int kv_wal_read(const char *dir, struct kv_wal *ret);
