/* Shared by the fuzz targets: bytes that come in pieces of one size, as a connection gives them. */
#pragma once

#include "base/macro.h"
#include "base/slice.h"

#include <string.h>
#include <sys/types.h>

struct source {
    struct slice rest;
    size_t piece;
};

static ssize_t give(void *arg, void *p, size_t n)
{
    struct source *s = arg;

    n = MIN(MIN(n, s->piece), s->rest.n);
    if (n > 0)
        memcpy(p, s->rest.p, n);
    s->rest = slice_from(s->rest, n);
    return (ssize_t)n;
}
