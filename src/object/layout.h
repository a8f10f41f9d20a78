/*
 * Where the parts of a file begin that programs read as one: tensors, members of an archive, column chunks.
 * Pure: bytes in, places out; no file, no clock, no thread.
 *
 * A layout is found in one or two looks at the file, each at a range that the one before named. Nobody
 * fetches for a look alone what the program would not read itself: the places looked at are those where the
 * format's own readers begin.
 *
 * | format      | recognised by                                      | looks | | ----------- |
 * -------------------------------------------------- | ------------------------------------- | | safetensors
 * | length and '{' at the beginning; .safetensors      | length; header                        | | zip, npz,
 * | "PK" at the beginning, end record at the end;      | end record (with zip64's); central    | | torch.save
 * | .npz, .zip, .pt, .pth                              | directory                             | | parquet |
 * "PAR1" at the beginning or the end; .parquet       | length; footer                        |
 *
 * Sources: the safetensors format description; PKWARE APPNOTE 6.3 (4.3.7 to 4.3.16, 4.5.3); the Parquet
 * format's Thrift definition and Thrift's compact protocol. Bytes come from outside: whatever is wrong with
 * them ends in "no layout", and every place lies inside the file.
 */
#pragma once

#include "base/slice.h"

#define LAYOUT_LOOK_MAX_BYTES (4 * MIB) /* a larger directory or header is not looked at */
#define LAYOUT_PIECES_MAX     16384

enum layout_kind { LAYOUT_UNKNOWN, LAYOUT_SAFETENSORS, LAYOUT_ZIP, LAYOUT_PARQUET, LAYOUT_KINDS };

/* What to see next of the file: [offset, offset + n); n 0: nothing any more. */
struct layout_look {
    enum layout_kind kind; /* as far as it is known */
    unsigned stage;        /* how many looks of this kind there were */
    uint64_t offset, n;
    uint64_t shift; /* zip: what must be added to the places that the archive names */
};

/* Pieces lie one behind the other: piece i is [starts[i], starts[i + 1]), the last one ends at `end`. */
struct layout {
    enum layout_kind kind;
    uint64_t end;
    uint32_t n;
    uint32_t group; /* parquet: columns of a row group, so that i + group is the same column in the next */
    uint64_t *starts;
};

/* The first look at a file of that name; `at_end`: the program began with the file's end. */
struct layout_look layout_guess(struct slice name, uint64_t size, bool at_end);

/* `bytes` are those of `look`. Moves it to the next look (n 0: none); *ret is a layout when there is one to
 * give, else untouched. layout_free. */
void layout_see(struct layout_look *look, struct slice bytes, uint64_t size, struct layout **ret);

void layout_free(struct layout *l);
DEFINE_CLEANUP(struct layout, layout_free)

/* The piece that holds the offset, or -1. */
int64_t layout_find(const struct layout *l, uint64_t offset);
uint64_t layout_piece_end(const struct layout *l, uint32_t i);
/* Memory it takes. */
uint64_t layout_bytes(const struct layout *l);
const char *layout_kind_name(enum layout_kind kind);
/* Asserts that places rise and lie below the end. */
void layout_check(const struct layout *l, uint64_t size);
