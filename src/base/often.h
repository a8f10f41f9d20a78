/*
 * Warnings that any request may bring about, as long as a fault lasts or a stranger likes: an origin that is
 * away, a disk that takes nothing, frames that are none. A hundred of one kind are written at once, then one
 * a second, which says how many were left out: so that nobody's disk is filled with them. Requests are
 * counted all the same (base/metrics.h). What tells where somebody's bytes are goes to log_warn: it is never
 * left out.
 */
#pragma once

#include "base/log.h"

/* A kind is one format in one area: both are literals. */
void log_often(const char *area, const char *fmt, ...) PRINTF_LIKE(2, 3);
