/*
 * What to fetch, and in which pieces: pure functions, no clock, no thread, no file.
 *
 * A *part* is what one request to the origin brings: it begins at a block boundary and is at most
 * PLAN_PART_BYTES long. Parts beyond the first of a run lie on PLAN_PART_BYTES boundaries, so that two
 * readers plan the same ones.
 *
 * A *plan* is what is known of the reads of one open file, and decides what to have ahead of them:
 *
 * | pattern     | recognised by                                | had ahead                          |
 * | ----------- | -------------------------------------------- | ---------------------------------- |
 * | sequential  | reads that go on where others ended, also    | a window that grows from 8 MiB     |
 * |             | with small gaps and slightly out of order    | by 8                               |
 * | interleaved | several such places in one file              | a window each; together one window |
 * | strided     | three pieces that begin at equal steps, four | up to 16 next pieces, without what |
 * |             | when others are read between them            | is between them                    |
 * | backward    | reads that end where others began            | a window before them               |
 * | tensors     | safetensors, by its header                   | the tensor; the file once two were |
 * |             |                                              | read                               |
 * | members     | zip, npz, torch.save, by the directory       | the member whose beginning is read |
 * | columns     | parquet, by the footer                       | the column chunk, and those of the |
 * |             |                                              | same column that follow            |
 * | whole       | more than half of the file is here           | what is missing                    |
 *
 * Anything else fetches the blocks that are read and nothing more. The bucket's `readahead` bounds what one
 * plan has ahead in all.
 */
#pragma once

#include "object/layout.h"

#define PLAN_PART_BYTES    (8 * MIB)
#define PLAN_SMALL_BYTES   (8 * MIB) /* objects up to this size are fetched whole */
#define PLAN_FIRST_BYTES   (1 * MIB) /* what the first touch of a large object asks for */
#define PLAN_WINDOW_BYTES  (8 * MIB) /* first readahead window */
#define PLAN_WINDOW_GROWTH 8
#define PLAN_STREAMS       16 /* places of one open file that are remembered */
#define PLAN_STEPS         16 /* pieces of a stride that are had ahead, at most */
#define PLAN_RANGES        28

struct plan_range {
    uint64_t offset, end;
};

/* X(NAME, name) */
#define PLAN_PATTERNS(X)                                                                                     \
    X(SEQUENTIAL, "sequential")                                                                              \
    X(INTERLEAVED, "interleaved")                                                                            \
    X(STRIDED, "strided")                                                                                    \
    X(BACKWARD, "backward")                                                                                  \
    X(TAIL_FIRST, "tail first")                                                                              \
    X(TENSORS, "tensors")                                                                                    \
    X(MEMBERS, "members")                                                                                    \
    X(COLUMNS, "columns")                                                                                    \
    X(WHOLE, "whole")

enum plan_pattern {
#define X(NAME, name) PLAN_##NAME,
    PLAN_PATTERNS(X)
#undef X
        PLAN_PATTERN_COUNT
};
const char *plan_pattern_name(enum plan_pattern pattern);

struct plan;

/* Of a file of `size` bytes that is about to be read at `offset`. plan_free. */
struct plan *plan_new(struct slice name, uint64_t size, uint64_t offset);
void plan_free(struct plan *p);
DEFINE_CLEANUP(struct plan, plan_free)
/* Memory that a new plan takes, and that a layout adds to it. */
uint64_t plan_bytes(const struct plan *p);
uint64_t plan_layout_bytes(const struct layout *l);

struct plan_ask {
    uint64_t offset, n;     /* the read; offset at most the size */
    uint64_t max_window;    /* most bytes to have ahead */
    uint64_t present_bytes; /* of the file that are here */
    uint64_t missing_at;    /* the first one that is not; needed while plan_is_whole. UINT64_MAX: not known */
};

/* What should be there or on its way. The first range holds the read, the others are ahead of it, the most
 * urgent first. All lie within the file. */
struct plan_wants {
    struct plan_range range[PLAN_RANGES];
    unsigned n;
};

void plan_read(struct plan *p, const struct plan_ask *q, struct plan_wants *ret);
/* The whole file is wanted, or will be when so much of it is here: plan_read needs to know what is missing.
 */
bool plan_is_whole(const struct plan *p, uint64_t present_bytes);
/* The patterns recognised so far: a set of bits 1 << enum plan_pattern. */
unsigned plan_patterns(const struct plan *p);

/* What the plan would like to see of the file, once it is here (n 0: nothing). */
struct layout_look plan_look(const struct plan *p);
/* What layout_see made of the bytes of `seen`: the next look, and a layout or NULL, which the plan takes over
 * unless it has gone on meanwhile. Whether it did. */
bool plan_learn(struct plan *p, const struct layout_look *seen, const struct layout_look *next,
                struct layout **layout);

/* A read of which no plan is made: small files whole, else the blocks that it touches. */
struct plan_range plan_alone(uint64_t offset, uint64_t n, uint64_t size);

/* The first request for an object of which nothing is known: the block-aligned range that serves a read at
 * `offset` of `expect` bytes (0: unknown, UINT64_MAX: to the end). */
struct plan_range plan_discover(uint64_t offset, uint64_t expect);

/*
 * The next part to fetch inside [at, wanted.end), given one missing, block-aligned run [missing.offset,
 * missing.end) with missing.offset >= at: cut to a part.
 */
struct plan_range plan_part(struct plan_range missing, struct plan_range wanted, uint64_t size);
