/*
 * Coders of the wire protocol: frame headers, and one encoder and decoder per row of wire_ops.h (contract in
 * wire.h, bytes in docs/WIRE.md). Pure: no socket; wire_call.c sends and receives.
 *
 * Invariants:
 *  1. An encoder that fails leaves the buffer as it was.
 *  2. A decoder reads nothing beyond the body and accepts a body only when its fields fill it exactly; on
 * failure the struct's contents mean nothing. Lengths inside a body are compared with what is left before
 * use.
 *  3. Decoded slices point into the body: they live as long as it does.
 *
 * The byte order on the wire is little endian (base/le.h).
 */
#include "net/wire.h"

#include "base/le.h"

#define FLAGS_KNOWN (WIRE_FLAG_REPLY | WIRE_FLAG_FD)

static_assert(WIRE_HEADER_BYTES == 4 + 2 + 2 + 8 + 4 + 4, "frame header of 24 bytes");

/* ---- frame header ---- */

void wire_header_encode(const struct wire_header *h, uint8_t ret[WIRE_HEADER_BYTES])
{
    assert(h->body_bytes <= WIRE_BODY_MAX_BYTES);
    le_put32(ret, h->body_bytes);
    le_put16(ret + 4, h->op);
    le_put16(ret + 6, h->flags);
    le_put64(ret + 8, h->request_id);
    le_put32(ret + 16, (uint32_t)h->status);
    le_put32(ret + 20, h->crc);
}

int wire_header_decode(const uint8_t p[WIRE_HEADER_BYTES], struct wire_header *ret)
{
    struct wire_header h = {
        .body_bytes = le_get32(p),
        .op = le_get16(p + 4),
        .flags = le_get16(p + 6),
        .request_id = le_get64(p + 8),
        .status = (int32_t)le_get32(p + 16),
        .crc = le_get32(p + 20),
    };
    if (h.body_bytes > WIRE_BODY_MAX_BYTES || (h.flags & ~FLAGS_KNOWN) != 0 || h.status > 0)
        return ERR_PROTOCOL;
    *ret = h;
    return 0;
}

/* ---- fields ---- */

static void encode_u32(struct le_writer *to, uint32_t v)
{
    le_add32(to, v);
}

static void encode_u64(struct le_writer *to, uint64_t v)
{
    le_add64(to, v);
}

static void encode_i64(struct le_writer *to, int64_t v)
{
    le_add64(to, (uint64_t)v);
}

static void encode_str(struct le_writer *to, struct slice s)
{
    if (s.n > WIRE_BODY_MAX_BYTES && to->code == 0)
        to->code = -E2BIG;
    le_add32(to, (uint32_t)s.n);
    le_add(to, s);
}

static void encode_attr(struct le_writer *to, struct wire_attr a)
{
    le_add32(to, a.kind);
    le_add64(to, a.size_bytes);
    le_add64(to, a.mtime_ns);
    encode_str(to, a.etag);
    encode_str(to, a.content_type);
    encode_str(to, a.meta);
}

/* The fields of an inode in their order, for both directions. */
#define INODE_FIELDS(F)                                                                                      \
    F(u64, ino)                                                                                              \
    F(u32, mode)                                                                                             \
    F(u32, uid)                                                                                              \
    F(u32, gid)                                                                                              \
    F(u32, links)                                                                                            \
    F(u32, rdev)                                                                                             \
    F(u32, flags)                                                                                            \
    F(u64, size_bytes)                                                                                       \
    F(u64, allocated_bytes)                                                                                  \
    F(i64, atime_ns) F(i64, mtime_ns) F(i64, ctime_ns) F(i64, birth_ns) F(str, target)

static void encode_inode(struct le_writer *to, struct wire_inode x)
{
#define F(kind, field) encode_##kind(to, x.field);
    INODE_FIELDS(F)
#undef F
}

static void decode_u32(struct le_reader *from, uint32_t *ret)
{
    *ret = le_take32(from);
}

static void decode_u64(struct le_reader *from, uint64_t *ret)
{
    *ret = le_take64(from);
}

static void decode_i64(struct le_reader *from, int64_t *ret)
{
    *ret = (int64_t)le_take64(from);
}

static void decode_str(struct le_reader *from, struct slice *ret)
{
    *ret = le_take(from, le_take32(from));
}

static void decode_attr(struct le_reader *from, struct wire_attr *ret)
{
    ret->kind = le_take32(from);
    ret->size_bytes = le_take64(from);
    ret->mtime_ns = le_take64(from);
    decode_str(from, &ret->etag);
    decode_str(from, &ret->content_type);
    decode_str(from, &ret->meta);
}

static void decode_inode(struct le_reader *from, struct wire_inode *ret)
{
#define F(kind, field) decode_##kind(from, &ret->field);
    INODE_FIELDS(F)
#undef F
}

/* ---- one coder of each kind per operation ---- */

static int decode_end(const struct le_reader *r)
{
    return le_took_all(r) ? 0 : ERR_PROTOCOL;
}

#define ENCODE_FIELD(kind, field) encode_##kind(&to, w->field);
#define DECODE_FIELD(kind, field) decode_##kind(&from, &w->field);

#define X(NAME, name, number)                                                                                \
    static int encode_##name##_req(const void *req, struct buf *b)                                           \
    {                                                                                                        \
        const struct wire_##name##_req *w = req;                                                             \
        struct le_writer to = le_writer_of(b);                                                               \
        (void)w;                                                                                             \
        WIRE_REQ_##name(ENCODE_FIELD) return le_add_end(&to);                                                \
    }                                                                                                        \
    static int decode_##name##_req(struct slice body, void *ret_req)                                         \
    {                                                                                                        \
        struct wire_##name##_req *w = ret_req;                                                               \
        struct le_reader from = le_reader_of(body);                                                          \
        memset(w, 0, sizeof(*w));                                                                            \
        WIRE_REQ_##name(DECODE_FIELD) return decode_end(&from);                                              \
    }                                                                                                        \
    static int encode_##name##_rep(const void *rep, struct buf *b)                                           \
    {                                                                                                        \
        const struct wire_##name##_rep *w = rep;                                                             \
        struct le_writer to = le_writer_of(b);                                                               \
        (void)w;                                                                                             \
        WIRE_REP_##name(ENCODE_FIELD) return le_add_end(&to);                                                \
    }                                                                                                        \
    static int decode_##name##_rep(struct slice body, void *ret_rep)                                         \
    {                                                                                                        \
        struct wire_##name##_rep *w = ret_rep;                                                               \
        struct le_reader from = le_reader_of(body);                                                          \
        memset(w, 0, sizeof(*w));                                                                            \
        w->fd = -1;                                                                                          \
        WIRE_REP_##name(DECODE_FIELD) return decode_end(&from);                                              \
    }
WIRE_OPS(X)
#undef X

const struct wire_op_info *wire_op_info(uint32_t op)
{
    static const struct wire_op_info infos[] = {
#define X(NAME, name_, number)                                                                               \
    [number] = {.name = #name_,                                                                              \
                .req_bytes = sizeof(struct wire_##name_##_req),                                              \
                .rep_bytes = sizeof(struct wire_##name_##_rep),                                              \
                .encode_req = encode_##name_##_req,                                                          \
                .decode_req = decode_##name_##_req,                                                          \
                .encode_rep = encode_##name_##_rep,                                                          \
                .decode_rep = decode_##name_##_rep},
        WIRE_OPS(X)
#undef X
    };
    return op < ARRAY_SIZE(infos) && infos[op].name ? &infos[op] : NULL;
}

/* ---- items of lists ---- */

static int item_end(const struct le_reader *from, struct slice *s)
{
    if (s->n == 0)
        return -ENOENT;
    if (from->bad)
        return ERR_PROTOCOL;
    *s = from->left;
    return 0;
}

#define ENTRY_FIELDS(F) F(str, key) F(attr, attr)
#define CACHED_FIELDS(F)                                                                                     \
    F(str, key) F(u64, size_bytes) F(u64, present_bytes) F(u64, last_read_ms) F(u32, flags)
#define CACHED_VERSION_FIELDS(F) F(u64, mtime_ns) F(str, etag)
#define BUCKET_FIELDS(F)         F(str, name) F(str, origin) F(u64, created_ns)
#define UPLOAD_FIELDS(F)         F(str, id) F(str, key) F(u64, created_ns)
#define PART_FIELDS(F)                                                                                       \
    F(u32, number)                                                                                           \
    F(u64, size_bytes) F(u64, at_ns) F(str, etag) F(str, checksum) F(u64, offset) F(u64, slot_bytes)
#define CLOSED_FIELDS(F) F(u64, handle) F(u64, read_cached) F(u64, read_origin)

#define ITEMS(X)                                                                                             \
    X(entry, ENTRY_FIELDS)                                                                                   \
    X(bucket, BUCKET_FIELDS)                                                                                 \
    X(upload, UPLOAD_FIELDS)                                                                                 \
    X(part, PART_FIELDS)                                                                                     \
    X(closed, CLOSED_FIELDS)

#define X(name, FIELDS)                                                                                      \
    int wire_##name##_encode(const struct wire_##name *w, struct buf *b)                                     \
    {                                                                                                        \
        struct le_writer to = le_writer_of(b);                                                               \
        FIELDS(ENCODE_FIELD) return le_add_end(&to);                                                         \
    }                                                                                                        \
    int wire_##name##_decode(struct slice *s, struct wire_##name *ret)                                       \
    {                                                                                                        \
        struct le_reader from = le_reader_of(*s);                                                            \
        struct wire_##name x = {0}, *w = &x;                                                                 \
        FIELDS(DECODE_FIELD) int k = item_end(&from, s);                                                     \
        if (k == 0)                                                                                          \
            *ret = x;                                                                                        \
        return k;                                                                                            \
    }
ITEMS(X)
#undef X

int wire_cached_encode(const struct wire_cached *w, struct buf *b)
{
    struct le_writer to = le_writer_of(b);
    CACHED_FIELDS(ENCODE_FIELD)
    if (w->flags & WIRE_CACHED_VERSION) {
        CACHED_VERSION_FIELDS(ENCODE_FIELD)
    }
    return le_add_end(&to);
}

int wire_cached_decode(struct slice *s, struct wire_cached *ret)
{
    struct le_reader from = le_reader_of(*s);
    struct wire_cached x = {0}, *w = &x;
    CACHED_FIELDS(DECODE_FIELD)
    if (w->flags & WIRE_CACHED_VERSION) {
        CACHED_VERSION_FIELDS(DECODE_FIELD)
    }
    int r = item_end(&from, s);
    if (r == 0)
        *ret = x;
    return r;
}

#define DIRENT_FIELDS(F) F(str, name) F(u64, ino) F(u32, mode) F(u64, cookie) F(u32, has_inode)

int wire_dirent_encode(const struct wire_dirent *w, struct buf *b)
{
    assert(w->has_inode <= 1);
    struct le_writer to = le_writer_of(b);
    DIRENT_FIELDS(ENCODE_FIELD)
    if (w->has_inode)
        encode_inode(&to, w->inode);
    return le_add_end(&to);
}

int wire_dirent_decode(struct slice *s, struct wire_dirent *ret)
{
    struct le_reader from = le_reader_of(*s);
    struct wire_dirent x = {0}, *w = &x;
    DIRENT_FIELDS(DECODE_FIELD)
    from.bad |= x.has_inode > 1;
    if (x.has_inode)
        decode_inode(&from, &x.inode);
    int k = item_end(&from, s);
    if (k == 0)
        *ret = x;
    return k;
}

int wire_handle_encode(uint64_t handle, struct buf *b)
{
    struct le_writer to = le_writer_of(b);
    encode_u64(&to, handle);
    return le_add_end(&to);
}

int wire_handle_decode(struct slice *s, uint64_t *ret)
{
    struct le_reader from = le_reader_of(*s);
    uint64_t handle;
    decode_u64(&from, &handle);
    int k = item_end(&from, s);
    if (k == 0)
        *ret = handle;
    return k;
}

int wire_error_encode(struct slice text, struct buf *b)
{
    struct le_writer to = le_writer_of(b);
    encode_str(&to, slice_sub(text, 0, MIN(text.n, (size_t)ERR_TEXT_MAX)));
    return le_add_end(&to);
}

int wire_error_decode(struct slice body, struct slice *ret_text)
{
    struct le_reader from = le_reader_of(body);
    struct slice text;
    decode_str(&from, &text);
    int k = decode_end(&from);
    if (k == 0)
        *ret_text = text;
    return k;
}
