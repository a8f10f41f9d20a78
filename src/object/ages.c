/* The oldest of many (contract in ages.h). */
#include "object/ages.h"

#include <string.h>

/* Age 0 counts as 1. */
static unsigned class_of(uint64_t age_ms)
{
    unsigned log2 = 63 - (unsigned)__builtin_clzll(age_ms | 1);
    unsigned eighth = log2 >= 3 ? (unsigned)(age_ms >> (log2 - 3)) & 7 : 0;
    return log2 * 8 + eighth;
}

static uint64_t width_ms(unsigned c)
{
    unsigned log2 = c / 8;
    return log2 >= 3 ? (uint64_t)1 << (log2 - 3) : (uint64_t)1 << log2;
}

static uint64_t first_ms(unsigned c)
{
    unsigned log2 = c / 8;
    return log2 >= 3 ? (8 + (uint64_t)(c % 8)) << (log2 - 3) : (uint64_t)1 << log2;
}

/* The part of the class, in which there are AGES. */
static unsigned part_of(unsigned c, uint64_t age_ms)
{
    uint64_t into = age_ms > first_ms(c) ? age_ms - first_ms(c) : 0;
    return (unsigned)((unsigned __int128)into * AGES / width_ms(c));
}

void ages_add(struct ages *a, uint64_t age_ms, uint64_t bytes)
{
    unsigned c = class_of(age_ms);
    if (!a->is_second)
        a->bytes[c] += bytes;
    else if (c == a->border)
        a->bytes[part_of(c, age_ms)] += bytes;
}

/* The youngest row from which on there are `excess` bytes; *ret_older: in the rows beyond it. */
static unsigned cut(const struct ages *a, uint64_t excess, uint64_t *ret_older)
{
    uint64_t found = 0;
    unsigned i = AGES;
    *ret_older = 0;
    while (i > 0 && found < excess) {
        *ret_older = found;
        found += a->bytes[--i];
    }
    return i;
}

void ages_divide(struct ages *a, uint64_t excess)
{
    a->border = cut(a, excess, &a->older_bytes);
    a->is_second = true;
    memset(a->bytes, 0, sizeof(a->bytes));
}

uint64_t ages_from_ms(const struct ages *a, uint64_t excess)
{
    uint64_t older;
    if (excess == 0)
        return UINT64_MAX;
    unsigned part = cut(a, excess > a->older_bytes ? excess - a->older_bytes : 0, &older);
    if (a->border == 0 && part == 0)
        return 0;
    uint64_t into = (uint64_t)(((unsigned __int128)part * width_ms(a->border) + AGES - 1) / AGES);
    return first_ms(a->border) + into;
}
