/*
 * Operations on borrowed runs of bytes.
 *
 * Invariants:
 *  1. No function reads outside [p, p + n); a slice with n == 0 may have p == NULL.
 *  2. Results point into the argument; only slice_dup allocates.
 *
 * Failure modes: slice_dup aborts when memory is out; slice_u64 reports bad text.
 */
#include "base/slice.h"

#include <errno.h>

int slice_cmp(struct slice a, struct slice b)
{
    size_t n = MIN(a.n, b.n);
    int r = n ? memcmp(a.p, b.p, n) : 0;
    if (r)
        return r;
    return a.n < b.n ? -1 : a.n > b.n;
}

bool slice_ends(struct slice s, struct slice suffix)
{
    return s.n >= suffix.n && (suffix.n == 0 || memcmp(s.p + s.n - suffix.n, suffix.p, suffix.n) == 0);
}

/* ---- eight bytes at a time (S. E. Anderson, "Bit Twiddling Hacks"): not 0 when one of them ... ---- */

#define EACH(byte) (~(uint64_t)0 / 255 * (byte))

/* ... is below n, at most 128; */
static uint64_t any_below(uint64_t x, uint8_t n)
{
    return (x - EACH(n)) & ~x & EACH(128);
}

/* ... is c. */
static uint64_t any_equal(uint64_t x, uint8_t c)
{
    return any_below(x ^ EACH(c), 1);
}

/* Bytes from s.p + at on, filled up with `pad` behind the end. */
static uint64_t word_at(struct slice s, size_t at, uint8_t pad)
{
    uint64_t x = EACH(pad);
    if (s.n - at >= sizeof(x))
        memcpy(&x, s.p + at, sizeof(x));
    else
        memcpy(&x, s.p + at, s.n - at);
    return x;
}

/* Its upper-case letters in lower case: their bits 7 are set by the first sum and not by the second. */
static uint64_t fold_word(uint64_t x)
{
    uint64_t low = x & EACH(127);
    uint64_t upper = ((low + EACH(128 - 'A')) ^ (low + EACH(127 - 'Z'))) & ~x & EACH(128);
    return x | upper >> 2; /* 'a' - 'A' */
}

static char fold(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool same_word(const char *a, const char *b)
{
    uint64_t x, y;
    memcpy(&x, a, sizeof(x));
    memcpy(&y, b, sizeof(y));
    return x == y || fold_word(x) == fold_word(y);
}

bool slice_eq_case(struct slice a, struct slice b)
{
    size_t at = 0;
    if (a.n != b.n)
        return false;
    for (; a.n - at > sizeof(uint64_t); at += sizeof(uint64_t))
        if (!same_word(a.p + at, b.p + at))
            return false;
    if (a.n >= sizeof(uint64_t)) /* the last word may share bytes with the one before */
        return same_word(a.p + a.n - sizeof(uint64_t), b.p + a.n - sizeof(uint64_t));
    for (; at < a.n; at++)
        if (a.p[at] != b.p[at] && fold(a.p[at]) != fold(b.p[at]))
            return false;
    return true;
}

bool slice_has_control(struct slice s)
{
    uint64_t found = 0;
    for (size_t at = 0; at < s.n; at += sizeof(uint64_t)) {
        uint64_t x = word_at(s, at, ' ');
        found |= any_below(x, ' ') | any_equal(x, 0x7f);
    }
    for (size_t i = 0; i < s.n && found; i++) /* tabs were among what was found */
        if (((unsigned char)s.p[i] < 0x20 && s.p[i] != '\t') || s.p[i] == 0x7f)
            return true;
    return false;
}

/* No branch in the loop: compilers put sixteen bytes and more into one register. */
bool slice_is_visible(struct slice s)
{
    uint8_t found = 0;
    for (size_t i = 0; i < s.n; i++)
        found |= (uint8_t)((uint8_t)s.p[i] - '!') > '~' - '!';
    return !found;
}

struct slice slice_from(struct slice s, size_t from)
{
    if (from == 0)
        return s;
    return from < s.n ? (struct slice){s.p + from, s.n - from} : SLICE_NULL;
}

struct slice slice_sub(struct slice s, size_t from, size_t n)
{
    struct slice rest = slice_from(s, from);
    rest.n = MIN(rest.n, n);
    return rest;
}

ssize_t slice_find(struct slice s, char c)
{
    const char *at = s.n ? memchr(s.p, c, s.n) : NULL;
    return at ? at - s.p : -1;
}

ssize_t slice_rfind(struct slice s, char c)
{
    const char *at = s.n ? memrchr(s.p, c, s.n) : NULL;
    return at ? at - s.p : -1;
}

ssize_t slice_find_slice(struct slice s, struct slice needle)
{
    if (needle.n == 0)
        return 0;
    const char *at = s.n >= needle.n ? memmem(s.p, s.n, needle.p, needle.n) : NULL;
    return at ? at - s.p : -1;
}

struct slice slice_trim(struct slice s)
{
    while (s.n && (s.p[0] == ' ' || s.p[0] == '\t'))
        s = (struct slice){s.p + 1, s.n - 1};
    while (s.n && (s.p[s.n - 1] == ' ' || s.p[s.n - 1] == '\t'))
        s.n--;
    return s;
}

struct slice slice_split(struct slice *s, char sep)
{
    ssize_t at = slice_find(*s, sep);
    struct slice head = *s;
    if (at < 0) {
        *s = SLICE_NULL;
    } else {
        head.n = (size_t)at;
        *s = (struct slice){s->p + at + 1, s->n - (size_t)at - 1};
    }
    return head;
}

char *slice_dup(struct slice s)
{
    char *p = malloc(s.n + 1);
    if (!p)
        abort();
    if (s.n)
        memcpy(p, s.p, s.n);
    p[s.n] = '\0';
    return p;
}

int slice_u64(struct slice s, uint64_t *ret_value)
{
    uint64_t v = 0;
    bool overflow = false;
    if (s.n == 0)
        return -EINVAL;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] < '0' || s.p[i] > '9')
            return -EINVAL;
        overflow |= __builtin_mul_overflow(v, 10, &v);
        overflow |= __builtin_add_overflow(v, (uint64_t)(s.p[i] - '0'), &v);
    }
    if (overflow)
        return -ERANGE;
    *ret_value = v;
    return 0;
}

/* Length of the well-formed UTF-8 sequence at the start of s (RFC 3629, section 4), 0 when there is none. */
static size_t utf8_sequence(const unsigned char *p, size_t n)
{
    unsigned char lo = 0x80, hi = 0xbf; /* range of the second byte */
    size_t len;
    if (p[0] < 0x80)
        return 1;
    if (p[0] >= 0xc2 && p[0] <= 0xdf) {
        len = 2;
    } else if (p[0] >= 0xe0 && p[0] <= 0xef) {
        len = 3;
        lo = p[0] == 0xe0 ? 0xa0 : lo; /* shorter forms exist below */
        hi = p[0] == 0xed ? 0x9f : hi; /* surrogates above */
    } else if (p[0] >= 0xf0 && p[0] <= 0xf4) {
        len = 4;
        lo = p[0] == 0xf0 ? 0x90 : lo;
        hi = p[0] == 0xf4 ? 0x8f : hi; /* beyond U+10FFFF above */
    } else {
        return 0;
    }
    if (n < len || p[1] < lo || p[1] > hi)
        return 0;
    for (size_t i = 2; i < len; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    return len;
}

bool slice_is_utf8(struct slice s)
{
    const unsigned char *p = (const unsigned char *)s.p;
    for (size_t i = 0; i < s.n;) {
        if (s.n - i >= sizeof(uint64_t) && !(word_at(s, i, 0) & EACH(128))) { /* eight of ASCII */
            i += sizeof(uint64_t);
            continue;
        }
        size_t len = utf8_sequence(p + i, s.n - i);
        if (!len)
            return false;
        i += len;
    }
    return true;
}
