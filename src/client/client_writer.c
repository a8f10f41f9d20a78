/*
 * Writing one object (contract in client_writer.h): PUT_OPEN, PUT_WRITE in pieces, PUT_COMMIT.
 *
 * Invariant: pieces leave in order and each at most once: a writer whose session ended fails for good
 * (`failed`), because what the node had is gone.
 */
#include "client/client_writer.h"

#define WRITER_MAGIC 0x636c7772u
#define PIECE_BYTES  (4 * MIB) /* of one frame */

struct client_writer {
    uint32_t magic;
    struct client *c;
    uint64_t handle, epoch;
    uint64_t size_bytes; /* announced, or UINT64_MAX */
    uint64_t written;
    bool ended; /* committed */
    int failed;
    struct buf reply; /* holds the strings of attr */
    struct client_attr attr;
    char *etag, *content_type, *meta;
};

int client_writer_open(struct client *c, const struct client_writer_open *o, struct client_writer **ret,
                       struct err *e)
{
    assert(c != NULL && o != NULL && ret != NULL);
    struct wire_put_open_req req = {
        .bucket = o->bucket,
        .key = o->key,
        .size = o->size_bytes,
        .content_type = o->content_type,
        .meta = o->meta,
        .if_match = o->if_match,
        .if_none_match = o->if_none_match,
        .via = client_via(c),
    };
    struct wire_put_open_rep rep;
    uint64_t epoch = 0;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = client_call_at(c, &epoch, WIRE_OP_PUT_OPEN, &req, &b, &rep, e);
    if (r < 0)
        return r;
    macro_close(&rep.fd);
    struct client_writer *w = calloc(1, sizeof(*w));
    if (!w)
        abort();
    w->magic = WRITER_MAGIC;
    w->c = c;
    w->handle = rep.handle;
    w->epoch = epoch;
    w->size_bytes = o->size_bytes;
    w->reply = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    *ret = w;
    return 0;
}

/* Remembers the first failure: nothing after it can succeed. */
static int fail(struct client_writer *w, int r)
{
    if (r == -EBADF)
        r = -EIO;
    if (w->failed == 0)
        w->failed = r;
    return r;
}

int client_writer_write(struct client_writer *w, const void *p, size_t n, struct err *e)
{
    assert(w != NULL && w->magic == WRITER_MAGIC && !w->ended);
    if (w->failed < 0)
        return err_set(e, w->failed, "an earlier write failed");
    const char *at = p;
    while (n > 0) {
        size_t piece = MIN(n, (size_t)PIECE_BYTES);
        struct wire_put_write_req req = {
            .handle = w->handle, .offset = w->written, .data = slice_of(at, piece)};
        struct wire_put_write_rep rep;
        int r = client_call_at(w->c, &w->epoch, WIRE_OP_PUT_WRITE, &req, &w->reply, &rep, e);
        if (r < 0)
            return fail(w, r);
        w->written += piece;
        at += piece;
        n -= piece;
    }
    return 0;
}

static void keep_attr(struct client_writer *w, const struct wire_attr *a)
{
    w->etag = slice_dup(a->etag);
    w->content_type = slice_dup(a->content_type);
    w->meta = slice_dup(a->meta);
    w->attr = (struct client_attr){
        .size_bytes = a->size_bytes,
        .mtime_ns = a->mtime_ns,
        .etag = w->etag,
        .content_type = w->content_type,
        .meta = w->meta,
    };
}

int client_writer_commit(struct client_writer *w, const struct client_attr **ret_attr, struct err *e)
{
    assert(w != NULL && w->magic == WRITER_MAGIC && !w->ended);
    if (w->failed < 0)
        return err_set(e, w->failed, "an earlier write failed");
    if (w->size_bytes != UINT64_MAX && w->written != w->size_bytes)
        return fail(w, err_set(e, -EINVAL, "%llu bytes were announced, %llu written",
                               (unsigned long long)w->size_bytes, (unsigned long long)w->written));
    struct wire_put_commit_req req = {.handle = w->handle, .size = w->written};
    struct wire_put_commit_rep rep;
    int r = client_call_at(w->c, &w->epoch, WIRE_OP_PUT_COMMIT, &req, &w->reply, &rep, e);
    if (r < 0)
        return fail(w, r);
    w->ended = true;
    keep_attr(w, &rep.attr);
    if (ret_attr)
        *ret_attr = &w->attr;
    return 0;
}

void client_writer_free(struct client_writer *w)
{
    if (!w)
        return;
    assert(w->magic == WRITER_MAGIC);
    if (!w->ended && w->epoch == client_epoch(w->c)) {
        struct wire_put_abort_req req = {.handle = w->handle};
        struct wire_put_abort_rep rep;
        struct err ignored = {0}; /* the node drops it with the session at the latest */
        (void)client_call_at(w->c, &w->epoch, WIRE_OP_PUT_ABORT, &req, &w->reply, &rep, &ignored);
    }
    buf_fini(&w->reply);
    free(w->etag);
    free(w->content_type);
    free(w->meta);
    w->magic = 0;
    free(w);
}
