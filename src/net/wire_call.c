/*
 * Frames over a socket: sending one, receiving one, and a whole call (contract in wire.h). Used by clients,
 * and by the server for replies.
 *
 * Invariants:
 *  1. A frame leaves in one system call where the socket takes it: header and body are gathered.
 *  2. A body is read only after its length was checked against both the protocol's and the buffer's maximum,
 * and is handed out only after its crc was checked.
 *  3. On any failure of wire_recv no descriptor is left open. After a failed send or receive the stream is
 * out of step, and the caller closes the connection; but not after -EMFILE.
 */
#include "base/crc32c.h"
#include "net/sock.h"
#include "net/wire.h"

#define FIRST_READ_BYTES 4096

int wire_send(int fd, uint32_t op, uint16_t flags, uint64_t request_id, int status, struct slice body,
              int pass_fd)
{
    if (body.n > WIRE_BODY_MAX_BYTES)
        return -E2BIG;
    struct wire_header h = {
        .body_bytes = (uint32_t)body.n,
        .op = (uint16_t)op,
        .flags = (uint16_t)(flags | (pass_fd >= 0 ? WIRE_FLAG_FD : 0)),
        .request_id = request_id,
        .status = status,
        .crc = crc32c(0, body.p, body.n),
    };
    uint8_t head[WIRE_HEADER_BYTES];
    wire_header_encode(&h, head);
    struct iovec iov[2] = {
        {.iov_base = head, .iov_len = sizeof(head)},
        {.iov_base = (void *)(uintptr_t)body.p, .iov_len = body.n},
    };
    if (pass_fd >= 0)
        return sock_sendv_fd(fd, iov, 2, pass_fd);
    return sock_sendv_all(fd, iov, 2, /* flags= */ 0);
}

/* Reads on until the body is whole; its first bytes are in b already. */
static int recv_rest(int fd, const struct wire_header *h, struct buf *b)
{
    if (b->n > h->body_bytes)
        return ERR_PROTOCOL;
    size_t left = h->body_bytes - b->n;
    if (left > 0) {
        char *p = buf_reserve(b, left);
        int k = p ? sock_recv_all(fd, p, left) : -E2BIG;
        if (k < 0)
            return k;
        buf_used(b, left);
    }
    return crc32c(0, b->p, b->n) == h->crc ? 0 : ERR_PROTOCOL;
}

/* A whole header, and what came with it of the body: there is nothing behind a frame, because the next one
 * answers a request that was not sent yet. So most frames take one system call. */
static int recv_head(int fd, uint8_t head[WIRE_HEADER_BYTES], struct buf *b, int *passed)
{
    size_t room = MIN(b->max, (size_t)FIRST_READ_BYTES), have = 0;
    buf_clear(b);
    char *p = buf_reserve(b, room);
    assert(p != NULL);
    while (have < WIRE_HEADER_BYTES) {
        struct iovec iov[2] = {{.iov_base = head + have, .iov_len = WIRE_HEADER_BYTES - have},
                               {.iov_base = p, .iov_len = room}};
        ssize_t k = sock_recv_some_fd(fd, iov, 2, passed);
        if (k < 0)
            return (int)k;
        have += (size_t)k;
    }
    buf_used(b, have - WIRE_HEADER_BYTES);
    return 0;
}

int wire_recv(int fd, struct wire_header *ret, struct buf *b, int *ret_fd)
{
    uint8_t head[WIRE_HEADER_BYTES];
    struct wire_header h;
    _cleanup_close_ int passed = -1;
    int k = recv_head(fd, head, b, &passed);
    if (k == 0)
        k = wire_header_decode(head, &h);
    if (k < 0)
        return k;
    bool is_lost = passed == SOCK_FD_LOST;
    if ((passed >= 0 || is_lost) != ((h.flags & WIRE_FLAG_FD) != 0))
        return ERR_PROTOCOL;
    k = recv_rest(fd, &h, b);
    if (k < 0)
        return k;
    *ret = h;
    *ret_fd = is_lost ? -1 : TAKE_FD(passed);
    return is_lost ? -EMFILE : 0;
}

/* A failed reply's text becomes e's. */
static int failed_reply(const struct wire_header *h, const struct buf *b, struct err *e)
{
    struct slice text;
    if (wire_error_decode(buf_view(b), &text) < 0)
        return err_set(e, ERR_PROTOCOL, "broken error reply");
    return err_set(e, h->status, SLICE_FMT, SLICE_ARG(text));
}

/* What set_reply_fd and wire_call rely on. */
#define X(NAME, name, number)                                                                                \
    static_assert(offsetof(struct wire_##name##_req, request_id) == 0, "request id comes first");            \
    static_assert(offsetof(struct wire_##name##_rep, fd) == 0, "descriptor comes first");
WIRE_OPS(X)
#undef X

static void set_reply_fd(void *rep, int fd)
{
    memcpy(rep, &fd, sizeof(fd));
}

int wire_call(int fd, uint32_t op, const void *req, struct buf *b, void *rep, struct err *e)
{
    const struct wire_op_info *info = wire_op_info(op);
    assert(info != NULL && req != NULL && rep != NULL);
    uint64_t request_id;
    memcpy(&request_id, req, sizeof(request_id));
    buf_clear(b);
    int k = info->encode_req(req, b);
    if (k < 0)
        return err_errno(e, k, "%s: request too large", info->name);
    k = wire_send(fd, op, /* flags= */ 0, request_id, /* status= */ 0, buf_view(b), /* pass_fd= */ -1);
    if (k < 0)
        return err_errno(e, k, "%s: send", info->name);
    struct wire_header h;
    _cleanup_close_ int passed = -1;
    k = wire_recv(fd, &h, b, &passed);
    if (k < 0)
        return err_errno(e, k, "%s: receive", info->name);
    if (h.op != op || h.request_id != request_id || !(h.flags & WIRE_FLAG_REPLY))
        return err_set(e, ERR_PROTOCOL, "%s: reply does not match the request", info->name);
    if (h.status < 0)
        return failed_reply(&h, b, e);
    k = info->decode_rep(buf_view(b), rep);
    if (k < 0)
        return err_errno(e, k, "%s: reply", info->name);
    set_reply_fd(rep, TAKE_FD(passed));
    return 0;
}
