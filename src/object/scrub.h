/* The scrub: what is on the disks is read and compared with its checksums, behind everything else. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/*
 * Whether the scrub lets the others go first: somebody reads or writes data, or has begun to since the last
 * look. begun: how many operations have begun ever; *seen: what it was at the last look, and is now. Pure.
 */
bool scrub_must_wait(uint64_t running, uint64_t begun, uint64_t *seen);

/* What is to be done with a disk: nothing, until a day has passed since its last pass began; go on with the
 * pass that has begun; begin one. Times are real time, 0: never. A clock that was set back is no rest. Pure.
 */
enum scrub_due { SCRUB_REST, SCRUB_GO_ON, SCRUB_BEGIN };
enum scrub_due scrub_due(uint64_t began_ns, uint64_t ended_ns, uint64_t now_ns);
