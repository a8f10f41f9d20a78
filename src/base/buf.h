/*
 * A growing byte buffer with a stated maximum. Appending beyond the maximum fails with -E2BIG and leaves the
 * contents as they were, so that no peer can make one grow without end. One owner, no locking.
 */
#pragma once

#include "base/slice.h"

struct buf {
    char *p;    /* NUL-terminated whenever not NULL, the NUL not counted */
    size_t n;   /* bytes used */
    size_t cap; /* bytes allocated */
    size_t max; /* most bytes it may ever hold */
};

#define BUF_INIT(max_bytes) ((struct buf){NULL, 0, 0, (max_bytes)})

void buf_fini(struct buf *b);
#define _cleanup_buf_ _cleanup_(buf_fini)

void buf_clear(struct buf *b);
int buf_append(struct buf *b, const void *p, size_t n);
int buf_slice(struct buf *b, struct slice s);
int buf_str(struct buf *b, const char *s);
int buf_char(struct buf *b, char c);
int buf_printf(struct buf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Makes room for n more bytes and gives the place to write them; commit with buf_used. NULL when over the
 * maximum. */
char *buf_reserve(struct buf *b, size_t n);
void buf_used(struct buf *b, size_t n);
/* Drops all behind the first n bytes, when there is more. */
void buf_cut(struct buf *b, size_t n);
/* Drops the first n bytes. */
void buf_consume(struct buf *b, size_t n);
struct slice buf_view(const struct buf *b);
/* Gives the bytes to the caller (free()) and empties the buffer. Never NULL. */
char *buf_take(struct buf *b);
