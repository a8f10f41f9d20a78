/*
 * A slice is a borrowed run of bytes: pointer and length, passed by value, not NUL-terminated, never freed.
 * The one type for text and bytes in parsers and in wire structs.
 */
#pragma once

#include "base/macro.h"

#include <string.h>

struct slice {
    const char *p;
    size_t n;
};

#define SLICE_LIT(s) ((struct slice){(s), sizeof(s) - 1})
#define SLICE_NULL   ((struct slice){NULL, 0})
#define SLICE_FMT    "%.*s"
#define SLICE_ARG(s) (int)(s).n, (s).p

static inline struct slice slice_of(const void *p, size_t n)
{
    return (struct slice){(const char *)p, n};
}

static inline struct slice slice_str(const char *s)
{
    return s ? (struct slice){s, strlen(s)} : SLICE_NULL;
}

static inline bool slice_eq(struct slice a, struct slice b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

static inline bool slice_eq_str(struct slice a, const char *s)
{
    return slice_eq(a, slice_str(s));
}

static inline bool slice_starts(struct slice s, struct slice prefix)
{
    return s.n >= prefix.n && (prefix.n == 0 || memcmp(s.p, prefix.p, prefix.n) == 0);
}

/* Byte order, shorter first on a tie: the order of S3 listings. <0, 0, >0. */
int slice_cmp(struct slice a, struct slice b);
bool slice_ends(struct slice s, struct slice suffix);
/* ASCII case folded, for header names. */
bool slice_eq_case(struct slice a, struct slice b);
/* Whether one of the bytes is a control character other than a tab: below 0x20, or 0x7f. */
bool slice_has_control(struct slice s);
/* Whether all bytes are visible ASCII: 0x21 to 0x7e. */
bool slice_is_visible(struct slice s);
/* The part from `from` on; empty when beyond the end. */
struct slice slice_from(struct slice s, size_t from);
struct slice slice_sub(struct slice s, size_t from, size_t n);
/* Index of the first `c`, or -1. */
ssize_t slice_find(struct slice s, char c);
ssize_t slice_rfind(struct slice s, char c);
/* Index of the first occurrence of `needle`, or -1. */
ssize_t slice_find_slice(struct slice s, struct slice needle);
/* Spaces and tabs removed at both ends. */
struct slice slice_trim(struct slice s);
/* Cuts `*s` at the first `sep`: gives what is before it and leaves what is after; all of it when there is
 * none. */
struct slice slice_split(struct slice *s, char sep);
/* Heap copy with a NUL behind it; free(). Aborts when memory is out, as all small allocations do. */
char *slice_dup(struct slice s);
/* Decimal, digits only. -EINVAL on anything else, -ERANGE on overflow. */
int slice_u64(struct slice s, uint64_t *ret_value);
/* Valid UTF-8 by RFC 3629 (no surrogates, no overlong forms). */
bool slice_is_utf8(struct slice s);
