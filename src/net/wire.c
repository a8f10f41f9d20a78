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
 * The byte order on the wire is little endian; values are put together byte by byte, so that the order and
 * alignment of the machine do not matter.
 */
#include "net/wire.h"

#include <endian.h>

#define FLAGS_KNOWN (WIRE_FLAG_REPLY | WIRE_FLAG_FD)

static_assert(WIRE_HEADER_BYTES == 4 + 2 + 2 + 8 + 4 + 4, "frame header of 24 bytes");

static void put_u16(uint8_t *p, uint16_t v)
{
    v = htole16(v);
    memcpy(p, &v, sizeof(v));
}

static void put_u32(uint8_t *p, uint32_t v)
{
    v = htole32(v);
    memcpy(p, &v, sizeof(v));
}

static void put_u64(uint8_t *p, uint64_t v)
{
    v = htole64(v);
    memcpy(p, &v, sizeof(v));
}

static uint16_t get_u16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof(v));
    return le16toh(v);
}

static uint32_t get_u32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof(v));
    return le32toh(v);
}

static uint64_t get_u64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof(v));
    return le64toh(v);
}

/* ---- frame header ---- */

void wire_header_encode(const struct wire_header *h, uint8_t ret[WIRE_HEADER_BYTES])
{
    assert(h->body_bytes <= WIRE_BODY_MAX_BYTES);
    put_u32(ret, h->body_bytes);
    put_u16(ret + 4, h->op);
    put_u16(ret + 6, h->flags);
    put_u64(ret + 8, h->request_id);
    put_u32(ret + 16, (uint32_t)h->status);
    put_u32(ret + 20, h->crc);
}

int wire_header_decode(const uint8_t p[WIRE_HEADER_BYTES], struct wire_header *ret)
{
    struct wire_header h = {
        .body_bytes = get_u32(p),
        .op = get_u16(p + 4),
        .flags = get_u16(p + 6),
        .request_id = get_u64(p + 8),
        .status = (int32_t)get_u32(p + 16),
        .crc = get_u32(p + 20),
    };
    if (h.body_bytes > WIRE_BODY_MAX_BYTES || (h.flags & ~FLAGS_KNOWN) != 0 || h.status > 0)
        return ERR_PROTOCOL;
    *ret = h;
    return 0;
}

/* ---- fields ---- */

static int encode_u32(struct buf *b, uint32_t v)
{
    uint8_t p[4];
    put_u32(p, v);
    return buf_append(b, p, sizeof(p));
}

static int encode_u64(struct buf *b, uint64_t v)
{
    uint8_t p[8];
    put_u64(p, v);
    return buf_append(b, p, sizeof(p));
}

static int encode_i64(struct buf *b, int64_t v)
{
    return encode_u64(b, (uint64_t)v);
}

static int encode_str(struct buf *b, struct slice s)
{
    if (s.n > WIRE_BODY_MAX_BYTES)
        return -E2BIG;
    int k = encode_u32(b, (uint32_t)s.n);
    return k < 0 || s.n == 0 ? k : buf_slice(b, s);
}

static int encode_attr(struct buf *b, struct wire_attr a)
{
    int k = encode_u32(b, a.kind);
    if (k == 0)
        k = encode_u64(b, a.size_bytes);
    if (k == 0)
        k = encode_u64(b, a.mtime_ns);
    if (k == 0)
        k = encode_str(b, a.etag);
    if (k == 0)
        k = encode_str(b, a.content_type);
    return k < 0 ? k : encode_str(b, a.meta);
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

static int encode_inode(struct buf *b, struct wire_inode x)
{
    int k = 0;
#define F(kind, field)                                                                                       \
    if (k == 0)                                                                                              \
        k = encode_##kind(b, x.field);
    INODE_FIELDS(F)
#undef F
    return k;
}

static int decode_u32(struct slice *s, uint32_t *ret)
{
    if (s->n < 4)
        return ERR_PROTOCOL;
    *ret = get_u32((const uint8_t *)s->p);
    *s = slice_from(*s, 4);
    return 0;
}

static int decode_u64(struct slice *s, uint64_t *ret)
{
    if (s->n < 8)
        return ERR_PROTOCOL;
    *ret = get_u64((const uint8_t *)s->p);
    *s = slice_from(*s, 8);
    return 0;
}

static int decode_i64(struct slice *s, int64_t *ret)
{
    uint64_t v;
    int k = decode_u64(s, &v);
    if (k == 0)
        *ret = (int64_t)v;
    return k;
}

static int decode_str(struct slice *s, struct slice *ret)
{
    uint32_t n;
    int k = decode_u32(s, &n);
    if (k < 0)
        return k;
    if (n > s->n)
        return ERR_PROTOCOL;
    *ret = slice_sub(*s, 0, n);
    *s = slice_from(*s, n);
    return 0;
}

static int decode_attr(struct slice *s, struct wire_attr *ret)
{
    int k = decode_u32(s, &ret->kind);
    if (k == 0)
        k = decode_u64(s, &ret->size_bytes);
    if (k == 0)
        k = decode_u64(s, &ret->mtime_ns);
    if (k == 0)
        k = decode_str(s, &ret->etag);
    if (k == 0)
        k = decode_str(s, &ret->content_type);
    return k < 0 ? k : decode_str(s, &ret->meta);
}

static int decode_inode(struct slice *s, struct wire_inode *ret)
{
    int k = 0;
#define F(kind, field)                                                                                       \
    if (k == 0)                                                                                              \
        k = decode_##kind(s, &ret->field);
    INODE_FIELDS(F)
#undef F
    return k;
}

/* ---- one coder of each kind per operation ---- */

/* Cuts what a failed encoder had written. */
static int encode_end(struct buf *b, size_t before, int k)
{
    if (k < 0 && b->n > before) {
        b->n = before;
        b->p[before] = '\0';
    }
    return k;
}

static int decode_end(struct slice rest, int k)
{
    return k < 0 ? k : rest.n > 0 ? ERR_PROTOCOL : 0;
}

#define ENCODE_FIELD(kind, field)                                                                            \
    if (k == 0)                                                                                              \
        k = encode_##kind(b, w->field);
#define DECODE_FIELD(kind, field)                                                                            \
    if (k == 0)                                                                                              \
        k = decode_##kind(&body, &w->field);

#define X(NAME, name, number)                                                                                \
    static int encode_##name##_req(const void *req, struct buf *b)                                           \
    {                                                                                                        \
        const struct wire_##name##_req *w = req;                                                             \
        size_t before = b->n;                                                                                \
        int k = 0;                                                                                           \
        (void)w;                                                                                             \
        WIRE_REQ_##name(ENCODE_FIELD) return encode_end(b, before, k);                                       \
    }                                                                                                        \
    static int decode_##name##_req(struct slice body, void *ret_req)                                         \
    {                                                                                                        \
        struct wire_##name##_req *w = ret_req;                                                               \
        int k = 0;                                                                                           \
        memset(w, 0, sizeof(*w));                                                                            \
        WIRE_REQ_##name(DECODE_FIELD) return decode_end(body, k);                                            \
    }                                                                                                        \
    static int encode_##name##_rep(const void *rep, struct buf *b)                                           \
    {                                                                                                        \
        const struct wire_##name##_rep *w = rep;                                                             \
        size_t before = b->n;                                                                                \
        int k = 0;                                                                                           \
        (void)w;                                                                                             \
        WIRE_REP_##name(ENCODE_FIELD) return encode_end(b, before, k);                                       \
    }                                                                                                        \
    static int decode_##name##_rep(struct slice body, void *ret_rep)                                         \
    {                                                                                                        \
        struct wire_##name##_rep *w = ret_rep;                                                               \
        int k = 0;                                                                                           \
        memset(w, 0, sizeof(*w));                                                                            \
        w->fd = -1;                                                                                          \
        WIRE_REP_##name(DECODE_FIELD) return decode_end(body, k);                                            \
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

int wire_entry_encode(const struct wire_entry *w, struct buf *b)
{
    size_t before = b->n;
    int k = encode_str(b, w->key);
    return encode_end(b, before, k < 0 ? k : encode_attr(b, w->attr));
}

int wire_entry_decode(struct slice *s, struct wire_entry *ret)
{
    if (s->n == 0)
        return -ENOENT;
    struct slice rest = *s;
    struct wire_entry w = {0};
    int k = decode_str(&rest, &w.key);
    if (k == 0)
        k = decode_attr(&rest, &w.attr);
    if (k < 0)
        return k;
    *ret = w;
    *s = rest;
    return 0;
}

int wire_cached_encode(const struct wire_cached *w, struct buf *b)
{
    size_t before = b->n;
    int k = encode_str(b, w->key);
    if (k == 0)
        k = encode_u64(b, w->size_bytes);
    if (k == 0)
        k = encode_u64(b, w->present_bytes);
    if (k == 0)
        k = encode_u64(b, w->last_read_ms);
    return encode_end(b, before, k < 0 ? k : encode_u32(b, w->flags));
}

int wire_cached_decode(struct slice *s, struct wire_cached *ret)
{
    if (s->n == 0)
        return -ENOENT;
    struct slice rest = *s;
    struct wire_cached w = {0};
    int k = decode_str(&rest, &w.key);
    if (k == 0)
        k = decode_u64(&rest, &w.size_bytes);
    if (k == 0)
        k = decode_u64(&rest, &w.present_bytes);
    if (k == 0)
        k = decode_u64(&rest, &w.last_read_ms);
    if (k == 0)
        k = decode_u32(&rest, &w.flags);
    if (k < 0)
        return k;
    *ret = w;
    *s = rest;
    return 0;
}

int wire_bucket_encode(const struct wire_bucket *w, struct buf *b)
{
    size_t before = b->n;
    int k = encode_str(b, w->name);
    if (k == 0)
        k = encode_str(b, w->origin);
    return encode_end(b, before, k < 0 ? k : encode_u64(b, w->created_ns));
}

int wire_bucket_decode(struct slice *s, struct wire_bucket *ret)
{
    if (s->n == 0)
        return -ENOENT;
    struct slice rest = *s;
    struct wire_bucket w = {0};
    int k = decode_str(&rest, &w.name);
    if (k == 0)
        k = decode_str(&rest, &w.origin);
    if (k == 0)
        k = decode_u64(&rest, &w.created_ns);
    if (k < 0)
        return k;
    *ret = w;
    *s = rest;
    return 0;
}

int wire_upload_encode(const struct wire_upload *w, struct buf *b)
{
    size_t before = b->n;
    int k = encode_str(b, w->id);
    if (k == 0)
        k = encode_str(b, w->key);
    return encode_end(b, before, k < 0 ? k : encode_u64(b, w->created_ns));
}

int wire_upload_decode(struct slice *s, struct wire_upload *ret)
{
    if (s->n == 0)
        return -ENOENT;
    struct slice rest = *s;
    struct wire_upload w = {0};
    int k = decode_str(&rest, &w.id);
    if (k == 0)
        k = decode_str(&rest, &w.key);
    if (k == 0)
        k = decode_u64(&rest, &w.created_ns);
    if (k < 0)
        return k;
    *ret = w;
    *s = rest;
    return 0;
}

int wire_part_encode(const struct wire_part *w, struct buf *b)
{
    size_t before = b->n;
    int k = encode_u32(b, w->number);
    if (k == 0)
        k = encode_u64(b, w->size_bytes);
    if (k == 0)
        k = encode_u64(b, w->at_ns);
    if (k == 0)
        k = encode_str(b, w->etag);
    return encode_end(b, before, k < 0 ? k : encode_str(b, w->checksum));
}

int wire_part_decode(struct slice *s, struct wire_part *ret)
{
    if (s->n == 0)
        return -ENOENT;
    struct slice rest = *s;
    struct wire_part w = {0};
    int k = decode_u32(&rest, &w.number);
    if (k == 0)
        k = decode_u64(&rest, &w.size_bytes);
    if (k == 0)
        k = decode_u64(&rest, &w.at_ns);
    if (k == 0)
        k = decode_str(&rest, &w.etag);
    if (k == 0)
        k = decode_str(&rest, &w.checksum);
    if (k < 0)
        return k;
    *ret = w;
    *s = rest;
    return 0;
}

int wire_dirent_encode(const struct wire_dirent *w, struct buf *b)
{
    assert(w->has_inode <= 1);
    size_t before = b->n;
    int k = encode_str(b, w->name);
    if (k == 0)
        k = encode_u64(b, w->ino);
    if (k == 0)
        k = encode_u32(b, w->mode);
    if (k == 0)
        k = encode_u64(b, w->cookie);
    if (k == 0)
        k = encode_u32(b, w->has_inode);
    return encode_end(b, before, k < 0 || !w->has_inode ? k : encode_inode(b, w->inode));
}

int wire_dirent_decode(struct slice *s, struct wire_dirent *ret)
{
    if (s->n == 0)
        return -ENOENT;
    struct slice rest = *s;
    struct wire_dirent w = {0};
    int k = decode_str(&rest, &w.name);
    if (k == 0)
        k = decode_u64(&rest, &w.ino);
    if (k == 0)
        k = decode_u32(&rest, &w.mode);
    if (k == 0)
        k = decode_u64(&rest, &w.cookie);
    if (k == 0)
        k = decode_u32(&rest, &w.has_inode);
    if (k == 0 && w.has_inode > 1)
        k = ERR_PROTOCOL;
    if (k == 0 && w.has_inode)
        k = decode_inode(&rest, &w.inode);
    if (k < 0)
        return k;
    *ret = w;
    *s = rest;
    return 0;
}

int wire_handle_encode(uint64_t handle, struct buf *b)
{
    size_t before = b->n;
    return encode_end(b, before, encode_u64(b, handle));
}

int wire_handle_decode(struct slice *s, uint64_t *ret)
{
    return s->n == 0 ? -ENOENT : decode_u64(s, ret);
}

int wire_error_encode(struct slice text, struct buf *b)
{
    size_t before = b->n;
    return encode_end(b, before, encode_str(b, slice_sub(text, 0, MIN(text.n, (size_t)ERR_TEXT_MAX))));
}

int wire_error_decode(struct slice body, struct slice *ret_text)
{
    int k = decode_str(&body, ret_text);
    return decode_end(body, k);
}
