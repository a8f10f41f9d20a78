/* The public API: writing whole objects (contract in forebay/forebay.h). */
#include "client/forebay_internal.h"

#include <limits.h>

#define PIECE_BYTES MIB /* asked of a source at once */

static int begin(struct forebay *f, const char *bucket, const char *key, uint64_t size_bytes,
                 const struct forebay_put_options *options, struct client_writer **ret, struct err *e)
{
    struct client_writer_open o = {
        .bucket = slice_str(bucket),
        .key = slice_str(key),
        .size_bytes = size_bytes,
    };
    if (options && options->if_match && !options->if_match[0]) /* it would be no condition at all */
        return err_set(e, -EINVAL, "if_match: is empty");
    if (options) {
        o.content_type = slice_str(options->content_type);
        o.if_match = slice_str(options->if_match);
        o.if_none_match = options->if_none_match != 0;
    }
    return client_writer_open(f->client, &o, ret, e);
}

static int finish(struct client_writer *w, struct forebay_stat *ret, struct err *e)
{
    const struct client_attr *a;
    int r = client_writer_commit(w, &a, e);
    if (r == 0 && ret)
        forebay_stat_fill(ret, a);
    return r;
}

int forebay_put(struct forebay *f, const char *bucket, const char *key, const void *p, size_t n,
                const struct forebay_put_options *options, struct forebay_stat *ret)
{
    struct err *e = forebay_err_begin();
    _cleanup_(client_writer_freep) struct client_writer *w = NULL;
    int r = begin(f, bucket, key, n, options, &w, e);
    if (r == 0)
        r = client_writer_write(w, p, n, e);
    if (r == 0)
        r = finish(w, ret, e);
    return forebay_err_end(r);
}

/* All that the source gives. */
static int pump(struct client_writer *w, forebay_read_fn read, void *arg, struct err *e)
{
    _cleanup_free_ char *piece = malloc(PIECE_BYTES);
    if (!piece)
        abort();
    for (;;) {
        ssize_t got = read(arg, piece, PIECE_BYTES);
        if (got == 0)
            return 0;
        if (got < 0)
            return err_set(e, got < INT_MIN ? -EIO : (int)got, "the source of the bytes failed");
        if ((size_t)got > PIECE_BYTES)
            return err_set(e, -EINVAL, "the source gave more bytes than were asked for");
        int r = client_writer_write(w, piece, (size_t)got, e);
        if (r < 0)
            return r;
    }
}

int forebay_put_from(struct forebay *f, const char *bucket, const char *key, uint64_t size_bytes,
                     forebay_read_fn read, void *arg, const struct forebay_put_options *options,
                     struct forebay_stat *ret)
{
    struct err *e = forebay_err_begin();
    _cleanup_(client_writer_freep) struct client_writer *w = NULL;
    int r = begin(f, bucket, key, size_bytes, options, &w, e);
    if (r == 0)
        r = pump(w, read, arg, e);
    if (r == 0)
        r = finish(w, ret, e);
    return forebay_err_end(r);
}
