/* Shared by the fuzz targets: a request's body must come out the same, and end the same, whatever pieces it
 * comes in. */
#pragma once

#include "pieces.h"
#include "s3/body.h"

/* Reads a body in pieces; what came out is in *out. */
static enum s3_error read_body(const struct body_plan *plan, const struct chunked_signing *signing,
                               struct slice raw, size_t piece, struct buf *out)
{
    struct source s = {raw, piece};
    struct body b;
    char p[64];
    ssize_t n;

    body_init(&b, plan, signing, give, &s);
    while ((n = body_read(&b, p, sizeof p)) > 0)
        if (buf_append(out, p, (size_t)n))
            abort();
    enum s3_error error = n < 0 ? b.error : S3_OK;
    assert(error || plan->size_bytes == BODY_SIZE_UNKNOWN || out->n == plan->size_bytes);
    body_fini(&b);
    return error;
}

static void body(const struct body_plan *plan, const struct chunked_signing *signing, struct slice raw)
{
    _cleanup_buf_ struct buf whole = BUF_INIT(MIB), pieces = BUF_INIT(MIB);
    enum s3_error a = read_body(plan, signing, raw, 64, &whole);
    enum s3_error b = read_body(plan, signing, raw, 1, &pieces);

    assert(!a == !b); /* of two faults, which one is told depends on how much is seen at once */
    assert(a || slice_eq(buf_view(&whole), buf_view(&pieces)));
}
