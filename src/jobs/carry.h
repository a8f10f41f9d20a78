/*
 * An object out of a file of this node to an origin that is no bucket: the origin's requests read the file
 * themselves, several parts of it at a time, and another thread sums it up meanwhile. Nothing of it is
 * written here, and no part waits in memory.
 */
#pragma once

#include "jobs/digest.h"
#include "jobs/kind.h"

/* Whether the open object's bytes are, or come, in a file and its target is such an origin. */
bool carry_can(const struct kind_work *w, const struct wire_open_rep *from);
/* As pour (jobs/pour.h). *ret_elsewhere, with an error: bytes did not come in the file, or it did not give
 * them; they may be had by FETCH all the same. */
int carry(struct kind_work *w, const struct wire_open_rep *from, struct slice key, struct slice content_type,
          struct slice meta, struct digest_sums *ret, bool *ret_elsewhere, struct err *e);
