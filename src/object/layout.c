/*
 * Recognising formats, and the list of pieces that their parsers fill (contract in layout.h).
 *
 * Invariants:
 *  1. Starts rise strictly and lie below `end`, which is at most the size.
 *  2. A look lies inside the file and is at most LAYOUT_LOOK_MAX_BYTES long.
 *
 * Pieces smaller than a block are joined with those behind them: bytes come in blocks whatever is asked for,
 * and an archive of a million small members would cost memory for nothing.
 */
#include "object/layout_internal.h"

#include "base/le.h"
#include "store/store.h"

#include <ctype.h>

#define PLACES_FIRST 64
#define HEAD_BYTES   9  /* length of a safetensors header, and the header's first byte */
#define TAIL_BYTES   22 /* a zip's end record without comment; the last four name a parquet file */
#define NAME_MAX_EXT 12

static const struct {
    const char *ext;
    enum layout_kind kind;
} by_name[] = {
    {".safetensors", LAYOUT_SAFETENSORS},
    {".npz", LAYOUT_ZIP},
    {".zip", LAYOUT_ZIP},
    {".pt", LAYOUT_ZIP},
    {".pth", LAYOUT_ZIP},
    {".parquet", LAYOUT_PARQUET},
};

static const char *const kind_names[LAYOUT_KINDS] = {"", "safetensors", "zip", "parquet"};

const char *layout_kind_name(enum layout_kind kind)
{
    assert(kind < LAYOUT_KINDS);
    return kind_names[kind];
}

/* ---- places ---- */

bool layout_add(struct layout_places *p, uint64_t at)
{
    if (p->n == LAYOUT_PLACES_MAX)
        return false;
    if (p->n == p->room) {
        p->room = MAX(2 * p->room, (size_t)PLACES_FIRST);
        p->at = realloc(p->at, p->room * sizeof(p->at[0]));
        assert(p->at);
    }
    p->at[p->n++] = at;
    return true;
}

void layout_places_fini(struct layout_places *p)
{
    free(p->at);
    *p = (struct layout_places){0};
}

static int compare_u64(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* Leaves a start out when both its own piece and what was kept before it are smaller than a block. */
static size_t join(uint64_t *at, size_t n, uint64_t end)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t next = i + 1 < n ? at[i + 1] : end;
        if (kept == 0 || next - at[i] >= STORE_BLOCK_BYTES || at[i] - at[kept - 1] >= STORE_BLOCK_BYTES)
            at[kept++] = at[i];
    }
    return kept;
}

static struct layout *take(enum layout_kind kind, struct layout_places *p, size_t n, uint64_t end)
{
    if (n == 0 || n > LAYOUT_PIECES_MAX)
        return NULL;
    struct layout *l = calloc(1, sizeof(*l));
    assert(l);
    l->kind = kind;
    l->end = end;
    l->n = (uint32_t)n;
    l->starts = realloc(p->at, n * sizeof(l->starts[0]));
    assert(l->starts);
    *p = (struct layout_places){0};
    return l;
}

struct layout *layout_make(enum layout_kind kind, struct layout_places *p, uint64_t end)
{
    if (p->n > 0)
        qsort(p->at, p->n, sizeof(p->at[0]), compare_u64);
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++)
        if (p->at[i] < end && (n == 0 || p->at[i] > p->at[n - 1]))
            p->at[n++] = p->at[i];
    return take(kind, p, join(p->at, n, end), end);
}

struct layout *layout_make_rows(enum layout_kind kind, struct layout_places *p, uint64_t end, uint32_t group)
{
    for (size_t i = 0; i < p->n; i++)
        if (p->at[i] >= end || (i > 0 && p->at[i] <= p->at[i - 1]))
            return NULL;
    struct layout *l = take(kind, p, p->n, end);
    if (l)
        l->group = group;
    return l;
}

void layout_free(struct layout *l)
{
    if (!l)
        return;
    free(l->starts);
    free(l);
}

int64_t layout_find(const struct layout *l, uint64_t offset)
{
    if (offset < l->starts[0] || offset >= l->end)
        return -1;
    uint32_t low = 0, high = l->n;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (l->starts[middle] <= offset)
            low = middle;
        else
            high = middle;
    }
    return low;
}

uint64_t layout_piece_end(const struct layout *l, uint32_t i)
{
    assert(i < l->n);
    return i + 1 < l->n ? l->starts[i + 1] : l->end;
}

uint64_t layout_bytes(const struct layout *l)
{
    return sizeof(*l) + l->n * sizeof(l->starts[0]);
}

void layout_check(const struct layout *l, uint64_t size)
{
    assert(l->n > 0 && l->n <= LAYOUT_PIECES_MAX && l->end <= size);
    assert(l->group <= l->n);
    for (uint32_t i = 0; i < l->n; i++)
        assert(l->starts[i] < layout_piece_end(l, i));
}

/* ---- recognising ---- */

static enum layout_kind kind_of_name(struct slice name)
{
    ssize_t dot = slice_rfind(name, '.');
    if (dot < 0)
        return LAYOUT_UNKNOWN;
    for (size_t i = 0; i < ARRAY_SIZE(by_name); i++)
        if (slice_eq_case(slice_from(name, (size_t)dot), slice_str(by_name[i].ext)))
            return by_name[i].kind;
    return LAYOUT_UNKNOWN;
}

struct layout_look layout_guess(struct slice name, uint64_t size, bool at_end)
{
    struct layout_look none = {0};
    if (size < TAIL_BYTES)
        return none;
    switch (kind_of_name(name)) {
    case LAYOUT_SAFETENSORS:
        return (struct layout_look){.kind = LAYOUT_SAFETENSORS, .n = HEAD_BYTES};
    case LAYOUT_ZIP:
        return layout_zip_tail(size);
    case LAYOUT_PARQUET:
        return layout_parquet_tail(size);
    default:
        break;
    }
    return at_end ? (struct layout_look){.offset = size - TAIL_BYTES, .n = TAIL_BYTES}
                  : (struct layout_look){.n = HEAD_BYTES};
}

static struct layout_look by_head(struct slice bytes, uint64_t size)
{
    if (slice_starts(bytes, SLICE_LIT("PK\3\4")))
        return layout_zip_tail(size);
    if (slice_starts(bytes, SLICE_LIT("PAR1")))
        return layout_parquet_tail(size);
    uint64_t n = bytes.n >= HEAD_BYTES ? le_get64(bytes.p) : 0;
    if (n > 1 && n <= size - 8 && bytes.p[8] == '{')
        return (struct layout_look){.kind = LAYOUT_SAFETENSORS, .n = HEAD_BYTES};
    return (struct layout_look){0};
}

static struct layout_look by_tail(struct slice bytes, uint64_t size)
{
    if (slice_ends(bytes, SLICE_LIT("PAR1")))
        return layout_parquet_tail(size);
    if (slice_starts(bytes, SLICE_LIT("PK\5\6")))
        return layout_zip_tail(size);
    return (struct layout_look){0};
}

void layout_see(struct layout_look *look, struct slice bytes, uint64_t size, struct layout **ret)
{
    assert(bytes.n == look->n && look->n > 0);
    struct layout_look now = *look;
    *look = (struct layout_look){.kind = now.kind};
    switch (now.kind) {
    case LAYOUT_SAFETENSORS:
        layout_see_safetensors(&now, bytes, size, ret);
        break;
    case LAYOUT_ZIP:
        layout_see_zip(&now, bytes, size, ret);
        break;
    case LAYOUT_PARQUET:
        layout_see_parquet(&now, bytes, size, ret);
        break;
    default:
        now = now.offset > 0 ? by_tail(bytes, size) : by_head(bytes, size);
        break;
    }
    bool sound =
        now.n > 0 && now.n <= LAYOUT_LOOK_MAX_BYTES && now.offset <= size && now.n <= size - now.offset;
    *look = sound ? now : (struct layout_look){.kind = now.kind};
}
