/*
 * Zip archives, and what is one by another name (npz, torch.save): the end record names the central
 * directory, whose entries name where members begin. A member's piece reaches to where the next one begins,
 * so that its local header, whose length only itself knows, belongs to it.
 *
 * | record                 | signature | fields used (offset: size) | | ---------------------- | --------- |
 * ---------------------------------------------------------------------- | | end record             | PK 5 6
 * | 12: 4 directory's size, 16: 4 its place, 20: 2 length of the comment   | | zip64 locator          | PK 6
 * 7    | 8: 8 place of the zip64 end record; it lies before the end record      | | zip64 end record       |
 * PK 6 6    | 40: 8 directory's size, 48: 8 its place                                | | directory entry | PK
 * 1 2    | 20, 24: 4 sizes, 28, 30, 32: 2 lengths of name, extra, comment, 42: 4  | | |           | the
 * member's place                                                     | | extra field 1 (zip64)  |           |
 * 8 bytes each for what stands as ff ff ff ff: size, packed size, place  |
 *
 * Archives with bytes in front of them (programs that unpack themselves) have all places shifted: the
 * directory ends where the end records begin, whatever the records say.
 */
#include "object/layout_internal.h"

#include "base/le.h"

#define TAIL_BYTES    (65536 + 256) /* end record with its longest comment, and zip64's records */
#define END_BYTES     22
#define LOCATOR_BYTES 20
#define END64_BYTES   56
#define ENTRY_BYTES   46
#define FULL32        0xffffffffu
#define EXTRA_ZIP64   1
#define EXTRA_HEAD    4

static bool is_record(struct slice s, size_t at, size_t n, const char *signature)
{
    return at <= s.n && n <= s.n - at && memcmp(s.p + at, signature, 4) == 0;
}

struct layout_look layout_zip_tail(uint64_t size)
{
    uint64_t n = MIN(size, (uint64_t)TAIL_BYTES);
    return (struct layout_look){.kind = LAYOUT_ZIP, .offset = size - n, .n = n};
}

/* Where the end record begins in the tail, or -1. */
static ssize_t find_end(struct slice tail)
{
    for (size_t i = END_BYTES; i <= tail.n; i++) {
        size_t at = tail.n - i;
        if (is_record(tail, at, END_BYTES, "PK\5\6") && le_get16(tail.p + at + 20) == i - END_BYTES)
            return (ssize_t)at;
    }
    return -1;
}

/* What the end records say of the directory, and where they begin in the tail. */
struct directory {
    uint64_t n, place;
    size_t records;
};

static struct directory find_directory(struct slice tail, size_t end)
{
    size_t before = LOCATOR_BYTES + END64_BYTES;
    if (end < before || !is_record(tail, end - LOCATOR_BYTES, LOCATOR_BYTES, "PK\6\7") ||
        !is_record(tail, end - before, END64_BYTES, "PK\6\6"))
        return (struct directory){le_get32(tail.p + end + 12), le_get32(tail.p + end + 16), end};
    const char *record = tail.p + end - before;
    return (struct directory){le_get64(record + 40), le_get64(record + 48), end - before};
}

static void see_tail(struct layout_look *look, struct slice tail)
{
    uint64_t base = look->offset;
    ssize_t end = find_end(tail);
    look->n = 0;
    if (end < 0)
        return;
    struct directory d = find_directory(tail, (size_t)end);
    if (d.n == 0 || d.n > base + d.records)
        return;
    uint64_t at = base + d.records - d.n;
    *look = (struct layout_look){.kind = LAYOUT_ZIP, .stage = 1, .offset = at, .n = d.n};
    look->shift = d.place < at ? at - d.place : 0;
}

/* The member's place out of the zip64 field of an entry's extra fields, when it is there. */
static uint64_t place64(struct slice extra, unsigned fields_before)
{
    while (extra.n >= EXTRA_HEAD) {
        size_t n = le_get16(extra.p + 2);
        struct slice value = slice_sub(extra, EXTRA_HEAD, n);
        if (le_get16(extra.p) == EXTRA_ZIP64)
            return value.n >= 8 * (fields_before + 1) ? le_get64(value.p + 8 * fields_before) : FULL32;
        extra = slice_from(extra, MIN(EXTRA_HEAD + n, extra.n));
    }
    return FULL32;
}

static uint64_t entry_place(struct slice entry, size_t name_n, size_t extra_n)
{
    uint64_t place = le_get32(entry.p + 42);
    unsigned before =
        (le_get32(entry.p + 20) == FULL32 ? 1u : 0u) + (le_get32(entry.p + 24) == FULL32 ? 1u : 0u);
    return place == FULL32 ? place64(slice_sub(entry, ENTRY_BYTES + name_n, extra_n), before) : place;
}

/* false: it is no directory. */
static bool see_entries(struct slice d, uint64_t shift, struct layout_places *p)
{
    while (d.n > 0 && is_record(d, 0, ENTRY_BYTES, "PK\1\2")) {
        size_t name_n = le_get16(d.p + 28), extra_n = le_get16(d.p + 30);
        size_t n = ENTRY_BYTES + name_n + extra_n + le_get16(d.p + 32);
        if (n > d.n || !layout_add(p, entry_place(d, name_n, extra_n) + shift))
            return false;
        d = slice_from(d, n);
    }
    return p->n > 0;
}

void layout_see_zip(struct layout_look *look, struct slice bytes, uint64_t size, struct layout **ret)
{
    (void)size;
    if (look->stage == 0) {
        see_tail(look, bytes);
        return;
    }
    struct layout_places p = {0};
    if (see_entries(bytes, look->shift, &p)) {
        struct layout *l = layout_make(LAYOUT_ZIP, &p, look->offset);
        if (l)
            *ret = l;
    }
    layout_places_fini(&p);
    look->n = 0;
}
