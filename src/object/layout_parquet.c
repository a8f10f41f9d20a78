/*
 * Parquet: the file ends with the footer (FileMetaData in Thrift's compact protocol), its length in 4 bytes
 * little-endian, "PAR1". The footer names each column chunk of each row group.
 *
 * Only the fields that give places are read, everything else is skipped by its type. FileMetaData.4 list of
 * RowGroup, RowGroup.1 list of ColumnChunk, ColumnChunk.3 ColumnMetaData, of that 9 data_page_offset, 11
 * dictionary_page_offset. A chunk begins at the smaller of the two and reaches to where the next one begins.
 * Columns of other files (ColumnChunk.1), row groups of unequal numbers of columns and chunks that do not lie
 * in their order give no layout.
 *
 * Compact protocol: numbers are varints of 7 bits a byte, the lowest first, signed ones in zigzag. A field's
 * head is delta << 4 | type (delta 0: its number follows), 0 ends the struct. A list's head is count << 4 |
 * type (count 15: it follows). Every value takes at least one byte, but for booleans of fields, so that work
 * is bounded by the footer's length.
 */
#include "object/layout_internal.h"

#include "base/le.h"

#define TAIL_BYTES 8
#define DEPTH_MAX  32
#define VARINT_MAX 10

enum thrift_type {
    THRIFT_STOP,
    THRIFT_TRUE,
    THRIFT_FALSE,
    THRIFT_BYTE,
    THRIFT_I16,
    THRIFT_I32,
    THRIFT_I64,
    THRIFT_DOUBLE,
    THRIFT_BINARY,
    THRIFT_LIST,
    THRIFT_SET,
    THRIFT_MAP,
    THRIFT_STRUCT,
};

struct cursor {
    struct slice rest;
    bool bad; /* once set it stays, and everything reads as 0 */
    unsigned depth;
};

static unsigned char byte(struct cursor *c)
{
    if (c->rest.n == 0) {
        c->bad = true;
        return 0;
    }
    unsigned char b = (unsigned char)c->rest.p[0];
    c->rest = slice_from(c->rest, 1);
    return b;
}

static uint64_t varint(struct cursor *c)
{
    uint64_t v = 0;
    for (unsigned i = 0; i < VARINT_MAX; i++) {
        unsigned char b = byte(c);
        v |= (uint64_t)(b & 0x7f) << (7 * i);
        if (!(b & 0x80))
            return v;
    }
    c->bad = true;
    return 0;
}

static void pass(struct cursor *c, uint64_t n)
{
    if (n > c->rest.n)
        c->bad = true;
    c->rest = c->bad ? SLICE_NULL : slice_from(c->rest, n);
}

/* The next field of a struct: its type, and its number in *field. STOP at the end. */
static unsigned next_field(struct cursor *c, unsigned *field)
{
    unsigned head = byte(c);
    if (c->bad || (head & 0xf) == THRIFT_STOP)
        return THRIFT_STOP;
    uint64_t number = head >> 4 ? *field + (head >> 4) : (varint(c) >> 1); /* never negative here */
    *field = (unsigned)MIN(number, (uint64_t)UINT16_MAX);
    return head & 0xf;
}

static uint64_t list_head(struct cursor *c, unsigned *ret_type)
{
    unsigned head = byte(c);
    *ret_type = head & 0xf;
    uint64_t n = head >> 4 == 15 ? varint(c) : head >> 4;
    if (n > c->rest.n) /* each takes a byte at least */
        c->bad = true;
    return c->bad ? 0 : n;
}

static void skip(struct cursor *c, unsigned type, bool in_list);

static void skip_many(struct cursor *c)
{
    unsigned type;
    uint64_t n = list_head(c, &type);
    for (uint64_t i = 0; i < n && !c->bad; i++)
        skip(c, type, /* in_list= */ true);
}

static void skip_map(struct cursor *c)
{
    uint64_t n = varint(c);
    unsigned types = n > 0 ? byte(c) : 0;
    if (n > c->rest.n)
        c->bad = true;
    for (uint64_t i = 0; i < n && !c->bad; i++) {
        skip(c, types >> 4, /* in_list= */ true);
        skip(c, types & 0xf, /* in_list= */ true);
    }
}

static void skip_struct(struct cursor *c)
{
    unsigned field = 0, type;
    while ((type = next_field(c, &field)) != THRIFT_STOP && !c->bad)
        skip(c, type, /* in_list= */ false);
}

static void skip(struct cursor *c, unsigned type, bool in_list)
{
    if (++c->depth > DEPTH_MAX)
        c->bad = true;
    if (c->bad)
        return;
    switch (type) {
    case THRIFT_TRUE:
    case THRIFT_FALSE:
        pass(c, in_list ? 1 : 0); /* a field's head holds it */
        break;
    case THRIFT_BYTE:
        pass(c, 1);
        break;
    case THRIFT_I16:
    case THRIFT_I32:
    case THRIFT_I64:
        (void)varint(c);
        break;
    case THRIFT_DOUBLE:
        pass(c, 8);
        break;
    case THRIFT_BINARY:
        pass(c, varint(c));
        break;
    case THRIFT_LIST:
    case THRIFT_SET:
        skip_many(c);
        break;
    case THRIFT_MAP:
        skip_map(c);
        break;
    case THRIFT_STRUCT:
        skip_struct(c);
        break;
    default:
        c->bad = true;
    }
    c->depth--;
}

/* ---- the footer ---- */

struct footer {
    struct cursor c;
    struct layout_places places;
    uint32_t rows, columns;
};

static uint64_t place(struct cursor *c)
{
    uint64_t v = varint(c);
    return v & 1 ? 0 : v >> 1; /* zigzag; a negative place is none */
}

/* ColumnMetaData: where the chunk begins, 0 when it does not say. */
static uint64_t chunk_meta(struct cursor *c)
{
    uint64_t data = 0, dictionary = 0;
    unsigned field = 0, type;
    while ((type = next_field(c, &field)) != THRIFT_STOP && !c->bad) {
        if (field == 9 && type == THRIFT_I64)
            data = place(c);
        else if (field == 11 && type == THRIFT_I64)
            dictionary = place(c);
        else
            skip(c, type, /* in_list= */ false);
    }
    return dictionary > 0 && dictionary < data ? dictionary : data;
}

static void chunk(struct footer *f)
{
    uint64_t at = 0;
    unsigned field = 0, type;
    while ((type = next_field(&f->c, &field)) != THRIFT_STOP && !f->c.bad) {
        if (field == 1)
            f->c.bad = true; /* in another file */
        else if (field == 3 && type == THRIFT_STRUCT)
            at = chunk_meta(&f->c);
        else
            skip(&f->c, type, /* in_list= */ false);
    }
    if (at == 0 || !layout_add(&f->places, at))
        f->c.bad = true;
}

static void row_group(struct footer *f)
{
    unsigned field = 0, type, of;
    uint64_t columns = 0;
    while ((type = next_field(&f->c, &field)) != THRIFT_STOP && !f->c.bad) {
        if (field != 1 || type != THRIFT_LIST) {
            skip(&f->c, type, /* in_list= */ false);
            continue;
        }
        columns = list_head(&f->c, &of);
        if (of != THRIFT_STRUCT)
            f->c.bad = true;
        for (uint64_t i = 0; i < columns && !f->c.bad; i++)
            chunk(f);
    }
    if (columns == 0 || columns > LAYOUT_PIECES_MAX || (f->rows > 0 && columns != f->columns))
        f->c.bad = true;
    f->columns = (uint32_t)MIN(columns, (uint64_t)LAYOUT_PIECES_MAX);
    f->rows++;
}

static void file_meta(struct footer *f)
{
    unsigned field = 0, type, of;
    while ((type = next_field(&f->c, &field)) != THRIFT_STOP && !f->c.bad) {
        if (field != 4 || type != THRIFT_LIST) {
            skip(&f->c, type, /* in_list= */ false);
            continue;
        }
        uint64_t n = list_head(&f->c, &of);
        if (of != THRIFT_STRUCT)
            f->c.bad = true;
        for (uint64_t i = 0; i < n && !f->c.bad; i++)
            row_group(f);
        return; /* what follows says nothing about places */
    }
}

struct layout_look layout_parquet_tail(uint64_t size)
{
    uint64_t n = MIN(size, (uint64_t)TAIL_BYTES);
    return (struct layout_look){.kind = LAYOUT_PARQUET, .offset = size - n, .n = n};
}

void layout_see_parquet(struct layout_look *look, struct slice bytes, uint64_t size, struct layout **ret)
{
    if (look->stage == 0) {
        bool sound = bytes.n == TAIL_BYTES && slice_ends(bytes, SLICE_LIT("PAR1"));
        uint64_t n = sound ? le_get32(bytes.p) : 0;
        sound = n > 0 && n <= size - TAIL_BYTES;
        *look = (struct layout_look){.kind = LAYOUT_PARQUET, .stage = 1};
        look->offset = sound ? size - TAIL_BYTES - n : 0;
        look->n = sound ? n : 0;
        return;
    }
    struct footer f = {.c.rest = bytes};
    file_meta(&f);
    if (!f.c.bad && f.rows > 0) {
        struct layout *l = layout_make_rows(LAYOUT_PARQUET, &f.places, look->offset, f.columns);
        if (l)
            *ret = l;
    }
    layout_places_fini(&f.places);
    look->n = 0;
}
