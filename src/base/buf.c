/*
 * The growing byte buffer.
 *
 * Invariants:
 *  1. n <= max always; p == NULL only while n == 0; p[n] == 0 whenever p is not NULL.
 *  2. A call that fails leaves p[0..n) and n as they were.
 *
 * Failure modes: -E2BIG beyond the stated maximum; aborts when memory is out, because the maximum was stated
 * where the buffer was made and is part of the memory that the user granted.
 */
#include "base/buf.h"

#include <errno.h>
#include <stdarg.h>

void buf_fini(struct buf *b)
{
    free(b->p);
    *b = (struct buf){NULL, 0, 0, b->max};
}

void buf_clear(struct buf *b)
{
    b->n = 0;
    if (b->p)
        b->p[0] = '\0';
}

char *buf_reserve(struct buf *b, size_t n)
{
    assert(b->n <= b->max);
    if (n > b->max - b->n)
        return NULL;
    size_t need = b->n + n + 1; /* the NUL; max is never SIZE_MAX in practice, and the next line proves it */
    assert(need > b->n);
    if (need > b->cap) {
        size_t cap = MAX(need, MIN(b->cap * 2, b->max + 1));
        cap = MAX(cap, (size_t)64);
        char *p = realloc(b->p, cap);
        if (!p)
            abort();
        b->p = p;
        b->cap = cap;
        b->p[b->n] = '\0';
    }
    return b->p + b->n;
}

void buf_used(struct buf *b, size_t n)
{
    assert(n <= b->max - b->n && b->n + n < b->cap);
    b->n += n;
    b->p[b->n] = '\0';
}

int buf_append(struct buf *b, const void *p, size_t n)
{
    char *to = buf_reserve(b, n);
    if (!to)
        return -E2BIG;
    if (n)
        memcpy(to, p, n);
    buf_used(b, n);
    return 0;
}

int buf_slice(struct buf *b, struct slice s)
{
    return buf_append(b, s.p, s.n);
}

int buf_str(struct buf *b, const char *s)
{
    return buf_append(b, s, strlen(s));
}

int buf_char(struct buf *b, char c)
{
    return buf_append(b, &c, 1);
}

int buf_printf(struct buf *b, const char *fmt, ...)
{
    assert(fmt);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0)
        return -EINVAL;
    char *to = buf_reserve(b, (size_t)n);
    if (!to)
        return -E2BIG;
    va_start(ap, fmt);
    (void)vsnprintf(to, (size_t)n + 1, fmt, ap);
    va_end(ap);
    buf_used(b, (size_t)n);
    return 0;
}

void buf_cut(struct buf *b, size_t n)
{
    if (n >= b->n)
        return;
    b->n = n;
    b->p[n] = '\0';
}

void buf_consume(struct buf *b, size_t n)
{
    assert(n <= b->n);
    if (n == 0)
        return;
    memmove(b->p, b->p + n, b->n - n);
    b->n -= n;
    b->p[b->n] = '\0';
}

struct slice buf_view(const struct buf *b)
{
    return (struct slice){b->p, b->n};
}

char *buf_take(struct buf *b)
{
    char *p = b->p ? b->p : slice_dup(SLICE_NULL);
    *b = (struct buf){NULL, 0, 0, b->max};
    return p;
}
