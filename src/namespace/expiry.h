/*
 * When objects of scratch buckets end. A bucket with `ttl` gives each object so much time from its last
 * change (scratch_since_ns); an object may have an end of its own instead (META_EXPIRES, origin/meta.h). From
 * then on the object is not there any more, for whoever asks by key; its space is freed later. Pure.
 */
#pragma once

#include "base/slice.h"

/* Real time in ns; 0: never. ttl_ms 0: only what the object's own line says. since_ns: the time of its last
 * change; 0 is not known, and the bucket's ttl then never ends it. */
uint64_t expiry_ns(uint64_t ttl_ms, uint64_t since_ns, struct slice meta);
/* Whether that time has come. */
bool expiry_is_over(uint64_t ttl_ms, uint64_t since_ns, struct slice meta, uint64_t now_ns);
