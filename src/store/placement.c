/* Weighted rendezvous hashing in integers; the algorithm is in placement.h. */
#include "store/placement.h"

#include "base/hash.h"

#include <string.h>

#define FRACTION_BITS 32
#define KEY_MAX       4096

uint64_t placement_neglog2(uint64_t h)
{
    if (h == UINT64_MAX)
        return 1;
    uint64_t x = h + 1; /* 1 .. 2^64 - 1 */
    unsigned top = 63 - (unsigned)__builtin_clzll(x);
    uint64_t m = x << (63 - top); /* the mantissa: 1.63 fixed point, in [1, 2) */
    uint64_t fraction = 0;
    for (int i = 0; i < FRACTION_BITS; i++) {
        /* Squaring doubles the logarithm; its new integer bit is the next bit of the fraction. */
        unsigned __int128 square = (unsigned __int128)m * m; /* 2.126 fixed point, in [1, 4) */
        bool carry = square >> 127;
        m = (uint64_t)(square >> (carry ? 64 : 63));
        fraction = fraction << 1 | carry;
    }
    uint64_t log2 = (uint64_t)top << FRACTION_BITS | fraction;
    return MAX(((uint64_t)64 << FRACTION_BITS) - log2, 1);
}

struct scored {
    uint64_t neglog, weight;
    struct id128 id;
};

static bool better(const struct scored *a, const struct scored *b)
{
    unsigned __int128 left = (unsigned __int128)a->weight * b->neglog;
    unsigned __int128 right = (unsigned __int128)b->weight * a->neglog;
    return left != right ? left > right : memcmp(a->id.b, b->id.b, sizeof(a->id.b)) < 0;
}

void placement_order(const struct placement_place *places, size_t n, struct slice key, uint32_t *ret_order)
{
    assert(places && ret_order && n > 0 && n <= 256 && key.n <= KEY_MAX);
    struct scored scores[256];
    char input[sizeof(places->id.b) + KEY_MAX];
    if (key.n > 0)
        memcpy(input + sizeof(places->id.b), key.p, key.n);
    for (uint32_t i = 0; i < n; i++) {
        assert(places[i].weight > 0);
        memcpy(input, places[i].id.b, sizeof(places[i].id.b));
        uint64_t h = hash_placement(slice_of(input, sizeof(places->id.b) + key.n));
        struct scored s = {placement_neglog2(h), places[i].weight, places[i].id};
        uint32_t at = i;
        for (; at > 0 && better(&s, &scores[at - 1]); at--) {
            scores[at] = scores[at - 1];
            ret_order[at] = ret_order[at - 1];
        }
        scores[at] = s;
        ret_order[at] = i;
    }
}
