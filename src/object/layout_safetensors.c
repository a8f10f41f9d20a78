/*
 * safetensors: 8 bytes little-endian length n of the header; n bytes of header, a JSON object of tensors by
 * name, each an object with "data_offsets": [begin, end), counted from the header's end; the tensors.
 *
 * The header is scanned, not read into a document: only strings, nesting and the two numbers matter, and it
 * costs no memory whatever its size. Other values may be anything; a header whose braces do not match, or
 * with tensors outside the file, gives no layout.
 */
#include "object/layout_internal.h"

#include "base/le.h"

#define LENGTH_BYTES 8
#define DEPTH_MAX    64

struct scan {
    struct slice text;
    size_t at;
};

static char peek(const struct scan *s)
{
    return s->at < s->text.n ? s->text.p[s->at] : '\0';
}

static void skip_space(struct scan *s)
{
    while (peek(s) == ' ' || peek(s) == '\t' || peek(s) == '\n' || peek(s) == '\r')
        s->at++;
}

static bool expect(struct scan *s, char c)
{
    skip_space(s);
    if (peek(s) != c)
        return false;
    s->at++;
    return true;
}

/* Behind the opening quote: what is between the quotes, escapes as they stand. */
static bool string(struct scan *s, struct slice *ret)
{
    size_t from = s->at;
    for (; s->at < s->text.n && s->text.p[s->at] != '"'; s->at++)
        if (s->text.p[s->at] == '\\')
            s->at++;
    if (s->at >= s->text.n)
        return false;
    *ret = slice_sub(s->text, from, s->at - from);
    s->at++;
    return true;
}

static bool number(struct scan *s, uint64_t *ret)
{
    skip_space(s);
    size_t from = s->at;
    while (peek(s) >= '0' && peek(s) <= '9')
        s->at++;
    return s->at > from && slice_u64(slice_sub(s->text, from, s->at - from), ret) == 0;
}

/* Behind "data_offsets". */
static bool offsets(struct scan *s, uint64_t base, uint64_t size, struct layout_places *p)
{
    uint64_t begin, end;
    if (!expect(s, ':') || !expect(s, '['))
        return true; /* somebody's metadata of that name */
    if (!number(s, &begin) || !expect(s, ',') || !number(s, &end) || !expect(s, ']'))
        return false;
    if (begin > end || end > size - base)
        return false;
    return begin == end || layout_add(p, base + begin);
}

/* Keys and values are not told apart but by what follows: a key is a string with a colon behind it. */
static bool scan_header(struct scan *s, uint64_t base, uint64_t size, struct layout_places *p)
{
    unsigned depth = 0;
    while (s->at < s->text.n) {
        char c = s->text.p[s->at++];
        struct slice text;
        if (c == '{' || c == '[') {
            if (++depth > DEPTH_MAX)
                return false;
        } else if (c == '}' || c == ']') {
            if (depth-- == 0)
                return false;
        } else if (c == '"') {
            if (!string(s, &text))
                return false;
            skip_space(s);
            if (depth == 2 && slice_eq_str(text, "data_offsets") && peek(s) == ':' &&
                !offsets(s, base, size, p))
                return false;
        }
        if (depth == 0)
            break;
    }
    return depth == 0;
}

void layout_see_safetensors(struct layout_look *look, struct slice bytes, uint64_t size, struct layout **ret)
{
    if (look->stage == 0) {
        uint64_t n = le_get64(bytes.p);
        bool sound = n > 1 && n <= size - LENGTH_BYTES && bytes.p[LENGTH_BYTES] == '{';
        *look = (struct layout_look){.kind = LAYOUT_SAFETENSORS, .stage = 1, .offset = LENGTH_BYTES, .n = n};
        look->n = sound ? n : 0;
        return;
    }
    struct scan s = {.text = bytes};
    struct layout_places p = {0};
    if (scan_header(&s, LENGTH_BYTES + bytes.n, size, &p)) {
        struct layout *l = layout_make(LAYOUT_SAFETENSORS, &p, size);
        if (l)
            *ret = l;
    }
    layout_places_fini(&p);
    look->n = 0;
}
