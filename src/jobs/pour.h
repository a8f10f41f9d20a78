/* Bytes of one object into another, and the proof that they arrived. */
#pragma once

#include "jobs/digest.h"
#include "jobs/kind.h"

/* w->modes, as operations are told. */
uint32_t pour_flags(const struct kind_work *w);

/* Puts the open object `from` under `key` of the target: it appears there whole or not at all. Gives the sums
 * of what was sent. */
int pour(struct kind_work *w, const struct wire_open_rep *from, struct slice key, struct slice content_type,
         struct slice meta, struct digest_sums *ret, struct err *e);
/* Whether the target's object is what was sent, as the spec's `verify` says. ERR_ORIGIN_FAILED when it is
 * not. What the node had cached of the target's object may be gone then. Gives what the target says of it. */
int pour_verify(struct kind_work *w, struct slice key, const struct digest_sums *sent, struct wire_attr *ret,
                struct err *e);
