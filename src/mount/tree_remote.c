/*
 * Bytes of files by calls to the node, where it passes no descriptors (is_remote): the same as tree_io.c
 * does on a descriptor.
 *
 * A call goes by the handle that the file has. When the session in which the node gave it is over, or the
 * handle was replaced by another open meanwhile, the file is opened again, by its number, and the call is
 * made once more. Writing again what was written changes nothing; an append has a number, by which the node
 * knows whether it was made.
 *
 * Failure modes: while the node does not answer, calls wait for --timeout and then give EIO. A file that the
 * node has forgotten, as one without a name some seconds after a restart, gives EIO, too.
 */
#include "mount/tree.h"

#include <fcntl.h>

#define TRIES 4 /* of a call, each with another handle */

/* One call by a handle of the node. */
struct call {
    uint32_t op;
    void *req;        /* of the operation */
    uint64_t *handle; /* of the request */
    void *rep;
};

/* -EBADF: the handle is not good any more. */
static int call_once(struct mount *m, const struct call *c, const struct tree_grant *g, struct buf *b,
                     struct err *e)
{
    uint64_t epoch = g->epoch;
    *c->handle = g->handle;
    buf_clear(b);
    return client_call_at(m->client, &epoch, c->op, c->req, b, c->rep, e);
}

static int call_node(struct mount *m, struct tree_file *f, bool writes, const struct call *c, struct buf *b,
                     struct err *e)
{
    struct tree_grant g = {0};
    int r = -EBADF;
    for (int i = 0; i < TRIES && r == -EBADF; i++) {
        r = tree_file_grant(m, f, writes, &g, e);
        if (r == 0)
            r = call_once(m, c, &g, b, e);
        /* By the handle of who writes only: there is another one for who reads. */
        if (r == -EACCES && !writes && g.is_for_writing)
            r = -EBADF;
    }
    return r == -ENOENT || r == -EBADF ? -EIO : r;
}

ssize_t tree_remote_read(struct mount *m, struct tree_file *f, char *p, size_t n, uint64_t offset,
                         struct err *e)
{
    struct wire_tree_read_req req = {0};
    struct wire_tree_read_rep rep;
    const struct call c = {WIRE_OP_TREE_READ, &req, &req.handle, &rep};
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    size_t done = 0;
    while (done < n) {
        size_t want = MIN(n - done, (size_t)MIB);
        req.offset = offset + done;
        req.n = (uint32_t)want;
        int r = call_node(m, f, /* writes= */ false, &c, &b, e);
        if (r < 0)
            return r;
        if (rep.data.n > want)
            return err_set(e, ERR_PROTOCOL, "more bytes than were asked for");
        if (rep.data.n > 0) /* else there may be no place that it is at, either */
            memcpy(p + done, rep.data.p, rep.data.n);
        done += rep.data.n;
        if (rep.data.n < want)
            break;
    }
    return (ssize_t)done;
}

/* How much was written before an error; the error when nothing was, or of what is all or nothing. */
static ssize_t write_at(struct mount *m, struct tree_file *f, const char *p, size_t n, uint64_t offset,
                        bool all, struct err *e)
{
    struct wire_tree_write_req req = {0};
    struct wire_tree_write_rep rep;
    const struct call c = {WIRE_OP_TREE_WRITE, &req, &req.handle, &rep};
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    size_t done = 0;
    while (done < n) {
        req.offset = offset + done;
        req.data = slice_of(p + done, MIN(n - done, (size_t)MIB));
        int r = call_node(m, f, /* writes= */ true, &c, &b, e);
        if (r < 0 && (all || done == 0))
            return r;
        if (r == 0 && rep.n == 0 && all)
            return err_set(e, -EIO, "the node wrote nothing");
        if (r < 0 || rep.n == 0)
            break;
        done += MIN(rep.n, req.data.n);
    }
    return (ssize_t)done;
}

int tree_remote_seek(struct mount *m, struct tree_file *f, uint64_t offset, int whence, uint64_t *ret,
                     struct err *e)
{
    struct wire_tree_seek_req req = {.offset = offset, .whence = (uint32_t)whence};
    struct wire_tree_seek_rep rep;
    const struct call c = {WIRE_OP_TREE_SEEK, &req, &req.handle, &rep};
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = call_node(m, f, /* writes= */ false, &c, &b, e);
    if (r == 0)
        *ret = rep.offset;
    return r;
}

int tree_remote_allocate(struct mount *m, struct tree_file *f, int mode, uint64_t offset, uint64_t length,
                         struct err *e)
{
    struct wire_tree_allocate_req req = {.mode = (uint32_t)mode, .offset = offset, .length = length};
    struct wire_tree_allocate_rep rep;
    const struct call c = {WIRE_OP_TREE_ALLOCATE, &req, &req.handle, &rep};
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    return call_node(m, f, /* writes= */ true, &c, &b, e);
}

/* Once, however often it has to be asked for: the node knows it by its number, which is the same when another
 * process has taken over. That is the request's first: what an open in between asks for comes after it. */
static ssize_t append(struct mount *m, struct tree_file *f, const char *p, size_t n, struct err *e)
{
    struct wire_tree_append_req req = {.request = tree_next_request(m),
                                       .data = slice_of(p, MIN(n, (size_t)MIB))};
    struct wire_tree_append_rep rep;
    const struct call c = {WIRE_OP_TREE_APPEND, &req, &req.handle, &rep};
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = call_node(m, f, /* writes= */ true, &c, &b, e);
    return r < 0 ? r : (ssize_t)MIN(rep.n, req.data.n);
}

ssize_t tree_remote_write(struct mount *m, struct tree_file *f, enum tree_write how, const char *p, size_t n,
                          uint64_t offset, struct err *e)
{
    return how == TREE_WRITE_APPEND ? append(m, f, p, n, e)
                                    : write_at(m, f, p, n, offset, how == TREE_WRITE_PAGES, e);
}
