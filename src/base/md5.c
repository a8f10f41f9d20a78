/*
 * MD5 of streams (contract in md5.h): what comes before and after the whole blocks of md5_lanes.h.
 *
 * 1. Between two calls a stream keeps less than one block.
 *
 * Failure modes: none.
 */
#include "base/md5.h"

#include "base/le.h"

#include <string.h>

#define LENGTH_AT (MD5_BLOCK_BYTES - 8) /* where the length in bits is in the last block */

void md5_init(struct md5 *m)
{
    *m = (struct md5){.state = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476}};
}

static void run_one(struct md5 *m, const uint8_t *p, size_t blocks)
{
    const struct md5_lane lane = {m->state, p};
    md5_lanes_run(md5_lanes_best(), &lane, 1, blocks);
}

/* Takes up to n bytes into the rest: how many. */
static size_t fill_rest(struct md5 *m, const void *p, size_t n)
{
    size_t have = m->bytes % MD5_BLOCK_BYTES, step = MIN(n, MD5_BLOCK_BYTES - have);
    if (step == 0)
        return 0;
    memcpy(m->rest + have, p, step);
    m->bytes += step;
    if (have + step == MD5_BLOCK_BYTES)
        run_one(m, m->rest, 1);
    return step;
}

static void advance(struct md5_piece *x, size_t n)
{
    x->p = (const uint8_t *)x->p + n;
    x->n -= n;
}

static void fill_rest_of(struct md5_piece *x)
{
    advance(x, fill_rest(x->md5, x->p, x->n));
}

/* The first `width` pieces that have whole blocks, as far as the shortest of them goes. False: there are
 * none. */
static bool run_some(enum md5_set set, struct md5_piece *pieces, size_t n)
{
    struct md5_lane lanes[MD5_LANES_MAX];
    struct md5_piece *taken[MD5_LANES_MAX];
    unsigned n_lanes = 0, width = md5_lanes_width(set);
    size_t blocks = SIZE_MAX;
    for (size_t i = 0; i < n && n_lanes < width; i++) {
        struct md5_piece *x = &pieces[i];
        if (x->n < MD5_BLOCK_BYTES)
            continue;
        lanes[n_lanes] = (struct md5_lane){x->md5->state, x->p};
        taken[n_lanes++] = x;
        blocks = MIN(blocks, x->n / MD5_BLOCK_BYTES);
    }
    if (n_lanes == 0)
        return false;
    md5_lanes_run(set, lanes, n_lanes, blocks);
    for (unsigned i = 0; i < n_lanes; i++) {
        taken[i]->md5->bytes += blocks * MD5_BLOCK_BYTES;
        advance(taken[i], blocks * MD5_BLOCK_BYTES);
    }
    return true;
}

void md5_update_each(enum md5_set set, struct md5_piece *pieces, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (pieces[i].md5->bytes % MD5_BLOCK_BYTES)
            fill_rest_of(&pieces[i]);
    while (run_some(set, pieces, n))
        ;
    for (size_t i = 0; i < n; i++)
        fill_rest_of(&pieces[i]);
}

void md5_update(struct md5 *m, const void *p, size_t n)
{
    struct md5_piece piece = {m, p, n};
    md5_update_each(md5_lanes_best(), &piece, 1);
}

void md5_final(struct md5 *m, uint8_t ret[MD5_BYTES])
{
    static const uint8_t padding[MD5_BLOCK_BYTES] = {0x80};
    uint8_t bits[8];
    size_t have = m->bytes % MD5_BLOCK_BYTES;
    le_put64(bits, m->bytes * 8);
    md5_update(m, padding, (have < LENGTH_AT ? LENGTH_AT : LENGTH_AT + MD5_BLOCK_BYTES) - have);
    md5_update(m, bits, sizeof(bits));
    for (unsigned i = 0; i < ARRAY_SIZE(m->state); i++)
        le_put32(ret + 4 * i, m->state[i]);
}
