/*
 * Integers as bytes, for what stands on disk and goes over the wire: le_* little endian, be_* big endian, for
 * keys that sort as their numbers do. At any alignment, the same on every machine.
 *
 * And two cursors for fields that follow each other, little endian. Both remember a failure, so that one
 * question at the end is enough: behind its end a reader gives zeros and empty slices, and a writer whose
 * buffer is full writes nothing more. No locking.
 */
#pragma once

#include "base/buf.h"

#include <endian.h>

static inline void le_put16(void *p, uint16_t v)
{
    v = htole16(v);
    memcpy(p, &v, sizeof(v));
}

static inline void le_put32(void *p, uint32_t v)
{
    v = htole32(v);
    memcpy(p, &v, sizeof(v));
}

static inline void le_put64(void *p, uint64_t v)
{
    v = htole64(v);
    memcpy(p, &v, sizeof(v));
}

static inline uint16_t le_get16(const void *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof(v));
    return le16toh(v);
}

static inline uint32_t le_get32(const void *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof(v));
    return le32toh(v);
}

static inline uint64_t le_get64(const void *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof(v));
    return le64toh(v);
}

static inline void be_put16(void *p, uint16_t v)
{
    v = htobe16(v);
    memcpy(p, &v, sizeof(v));
}

static inline void be_put32(void *p, uint32_t v)
{
    v = htobe32(v);
    memcpy(p, &v, sizeof(v));
}

static inline void be_put64(void *p, uint64_t v)
{
    v = htobe64(v);
    memcpy(p, &v, sizeof(v));
}

static inline uint16_t be_get16(const void *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof(v));
    return be16toh(v);
}

static inline uint32_t be_get32(const void *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof(v));
    return be32toh(v);
}

static inline uint64_t be_get64(const void *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof(v));
    return be64toh(v);
}

/* ---- reading ---- */

struct le_reader {
    struct slice left; /* not read yet */
    bool bad;          /* more was asked for than there is, or than was allowed */
};

static inline struct le_reader le_reader_of(struct slice s)
{
    return (struct le_reader){.left = s};
}

/* The next n bytes, borrowed; empty when there are not as many. */
struct slice le_take(struct le_reader *r, size_t n);
uint8_t le_take8(struct le_reader *r);
uint16_t le_take16(struct le_reader *r);
uint32_t le_take32(struct le_reader *r);
uint64_t le_take64(struct le_reader *r);
/* Bytes behind their length in 16 bits. More than max of them are bad. */
struct slice le_take_text(struct le_reader *r, size_t max);
/* Whether all was there, and nothing is left. */
bool le_took_all(const struct le_reader *r);

/* ---- writing ---- */

struct le_writer {
    struct buf *to;
    size_t before; /* bytes that were in it */
    int code;      /* 0, or what failed first */
};

static inline struct le_writer le_writer_of(struct buf *b)
{
    return (struct le_writer){.to = b, .before = b->n};
}

void le_add(struct le_writer *w, struct slice s);
void le_add8(struct le_writer *w, uint8_t v);
void le_add16(struct le_writer *w, uint16_t v);
void le_add32(struct le_writer *w, uint32_t v);
void le_add64(struct le_writer *w, uint64_t v);
/* Bytes behind their length in 16 bits; more than UINT16_MAX of them are -E2BIG. */
void le_add_text(struct le_writer *w, struct slice s);
/* 0, or the first failure: the buffer is as it was then. */
int le_add_end(struct le_writer *w);
