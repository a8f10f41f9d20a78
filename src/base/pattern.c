/* Bytes that anyone can make again; contract in pattern.h. */
#include "base/pattern.h"

#include "base/hash.h"

#include <endian.h>

#define LINE_BYTES  64
#define PIECE_BYTES 4096 /* made at a time when checking */

struct pattern pattern_of(uint64_t seed, struct slice name)
{
    return (struct pattern){hash_mix(seed, hash_placement(name))};
}

static void put_lines(struct pattern p, uint64_t line, void *to, size_t n_lines)
{
    char *at = to;
    for (size_t i = 0; i < n_lines; i++, at += LINE_BYTES) {
        uint64_t words[LINE_BYTES / 8], x = hash_mix(p.key, line + i);
        for (size_t j = 0; j < ARRAY_SIZE(words); j++) {
            x += 0x9e3779b97f4a7c15u;
            words[j] = htole64(x ^ x >> 29);
        }
        memcpy(at, words, LINE_BYTES);
    }
}

void pattern_fill(struct pattern p, uint64_t offset, void *to, size_t n)
{
    char *at = to, line[LINE_BYTES];
    while (n > 0) {
        size_t skip = (size_t)(offset % LINE_BYTES), whole = skip ? 0 : n / LINE_BYTES;
        size_t take = whole ? whole * LINE_BYTES : MIN(n, LINE_BYTES - skip);
        if (whole) {
            put_lines(p, offset / LINE_BYTES, at, whole);
        } else {
            put_lines(p, offset / LINE_BYTES, line, 1);
            memcpy(at, line + skip, take);
        }
        at += take;
        offset += take;
        n -= take;
    }
}

int64_t pattern_check(struct pattern p, uint64_t offset, const void *from, size_t n)
{
    const char *at = from;
    char expected[PIECE_BYTES];
    while (n > 0) {
        size_t take = MIN(n, (size_t)(PIECE_BYTES - offset % LINE_BYTES));
        pattern_fill(p, offset, expected, take);
        if (memcmp(at, expected, take) != 0) {
            size_t i = 0;
            while (at[i] == expected[i])
                i++;
            return (int64_t)(offset + i);
        }
        at += take;
        offset += take;
        n -= take;
    }
    return -1;
}
