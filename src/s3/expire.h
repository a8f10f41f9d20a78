/*
 * The thread that carries lifecycle rules out: it goes through the buckets that have rules, removes what has
 * expired and aborts uploads that were abandoned.
 */
#pragma once

#include "s3/s3_internal.h"

struct expirer;

/* A pass begins `interval_ms` after the former one ended, the first one that long after the start. NULL when
 * the thread cannot be made, which is logged. */
struct expirer *expirer_start(struct s3 *s3, uint64_t interval_ms);
/* Waits for the call that runs. NULL accepted. */
void expirer_stop(struct expirer *x);
