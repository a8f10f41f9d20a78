/* The cursors over little-endian fields; the contract is in the header. */
#include "base/le.h"

#include <errno.h>

/* ---- reading ---- */

struct slice le_take(struct le_reader *r, size_t n)
{
    if (n > r->left.n) {
        *r = (struct le_reader){.left = SLICE_NULL, .bad = true};
        return SLICE_NULL;
    }
    struct slice s = {r->left.p, n};
    r->left = slice_from(r->left, n);
    return s;
}

uint8_t le_take8(struct le_reader *r)
{
    struct slice s = le_take(r, 1);
    return s.n == 0 ? 0 : (uint8_t)s.p[0];
}

uint16_t le_take16(struct le_reader *r)
{
    struct slice s = le_take(r, 2);
    return s.n == 0 ? 0 : le_get16(s.p);
}

uint32_t le_take32(struct le_reader *r)
{
    struct slice s = le_take(r, 4);
    return s.n == 0 ? 0 : le_get32(s.p);
}

uint64_t le_take64(struct le_reader *r)
{
    struct slice s = le_take(r, 8);
    return s.n == 0 ? 0 : le_get64(s.p);
}

struct slice le_take_text(struct le_reader *r, size_t max)
{
    size_t n = le_take16(r);
    return le_take(r, n <= max ? n : SIZE_MAX);
}

bool le_took_all(const struct le_reader *r)
{
    return !r->bad && r->left.n == 0;
}

/* ---- writing ---- */

void le_add(struct le_writer *w, struct slice s)
{
    if (w->code == 0)
        w->code = buf_slice(w->to, s);
}

void le_add8(struct le_writer *w, uint8_t v)
{
    le_add(w, slice_of(&v, sizeof(v)));
}

void le_add16(struct le_writer *w, uint16_t v)
{
    v = htole16(v);
    le_add(w, slice_of(&v, sizeof(v)));
}

void le_add32(struct le_writer *w, uint32_t v)
{
    v = htole32(v);
    le_add(w, slice_of(&v, sizeof(v)));
}

void le_add64(struct le_writer *w, uint64_t v)
{
    v = htole64(v);
    le_add(w, slice_of(&v, sizeof(v)));
}

void le_add_text(struct le_writer *w, struct slice s)
{
    if (s.n > UINT16_MAX && w->code == 0)
        w->code = -E2BIG;
    le_add16(w, (uint16_t)s.n);
    le_add(w, s);
}

int le_add_end(struct le_writer *w)
{
    if (w->code < 0)
        buf_cut(w->to, w->before);
    return w->code;
}
