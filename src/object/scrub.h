/* The scrub: what is on the disks is read and compared with its checksums, behind everything else. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/*
 * Whether the scrub lets the others go first: somebody reads or writes data, or has begun to since the last
 * look. begun: how many operations have begun ever; *seen: what it was at the last look, and is now. Pure.
 */
bool scrub_must_wait(uint64_t running, uint64_t begun, uint64_t *seen);
