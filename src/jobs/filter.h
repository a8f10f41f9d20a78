/*
 * Which objects of a walk a job is about: globs, a regular expression, sizes, dates. Pure after filter_open.
 */
#pragma once

#include "base/err.h"
#include "net/job_spec.h"

struct filter;

/* Checks the patterns and dates of a spec, which must outlive the filter. ERR_BAD_OPTION names the fault. */
int filter_open(const struct job_spec *s, struct filter **ret, struct err *e);
void filter_free(struct filter *f);
DEFINE_CLEANUP(struct filter, filter_free)
/* The key below the job's prefix is not cut: patterns see whole keys. Any thread. mtime_ns 0: not known,
 * then dates do not matter. */
bool filter_match(const struct filter *f, struct slice key, uint64_t size_bytes, uint64_t mtime_ns);

/* Whether sizes or dates matter. */
bool filter_needs_attributes(const struct filter *f);

/* Whether a glob matches all of `s`: '*' any bytes, '?' one byte, [a-z] and [!a-z] one byte of a set, '\' the
 * next byte itself. Linear in practice: one place to come back to. */
bool filter_glob(struct slice glob, struct slice s);
