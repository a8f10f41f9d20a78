/*
 * 128-bit identifiers.
 *
 * Invariants:
 *  1. An id has one text form; id_parse takes nothing else, so that texts can be compared byte by byte.
 *
 * Failure modes: -EINVAL for text that is not an id.
 */
#include "base/id.h"

#include "base/sys.h"
#include "base/text.h"

#include <errno.h>

void id_new(struct id128 *ret)
{
    sys->random(ret->b, sizeof(ret->b));
}

void id_new_at(uint64_t ns, struct id128 *ret)
{
    id_new(ret);
    for (size_t i = 0; i < sizeof(ns); i++)
        ret->b[i] = (uint8_t)(ns >> 8 * (sizeof(ns) - 1 - i));
}

bool id_eq(struct id128 a, struct id128 b)
{
    return memcmp(a.b, b.b, sizeof(a.b)) == 0;
}

bool id_is_zero(struct id128 a)
{
    return id_eq(a, (struct id128){{0}});
}

void id_text(struct id128 id, char ret_text[ID_TEXT_SIZE])
{
    text_hex(id.b, sizeof(id.b), ret_text);
}

int id_parse(struct slice text, struct id128 *ret)
{
    for (size_t i = 0; i < text.n; i++)
        if (text.p[i] >= 'A' && text.p[i] <= 'F')
            return -EINVAL;
    return text_unhex(text, ret->b, sizeof(ret->b));
}
