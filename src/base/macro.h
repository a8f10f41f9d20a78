/* Small language helpers used everywhere: cleanup attributes, ownership transfer, checked casts. */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define ARRAY_SIZE(a)    (sizeof(a) / sizeof((a)[0]))
#define MIN(a, b)        ((a) < (b) ? (a) : (b))
#define MAX(a, b)        ((a) > (b) ? (a) : (b))
#define ALIGN_DOWN(x, a) ((x) / (a) * (a))
#define ALIGN_UP(x, a)   (((x) + (a)-1) / (a) * (a))

#define container_of(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

/* Hands a pointer or descriptor to a new owner and leaves the old variable empty. */
#define TAKE_PTR(p)                                                                                          \
    ({                                                                                                       \
        __typeof__(p) _taken = (p);                                                                          \
        (p) = NULL;                                                                                          \
        _taken;                                                                                              \
    })
#define TAKE_FD(fd)                                                                                          \
    ({                                                                                                       \
        int _taken = (fd);                                                                                   \
        (fd) = -1;                                                                                           \
        _taken;                                                                                              \
    })

static inline void macro_free(void *p)
{
    free(*(void **)p);
}

static inline void macro_close(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
}

static inline void macro_fclose(FILE **f)
{
    if (*f)
        (void)fclose(*f);
}

#define _cleanup_(f)     __attribute__((cleanup(f)))
#define _cleanup_free_   _cleanup_(macro_free)
#define _cleanup_close_  _cleanup_(macro_close)
#define _cleanup_fclose_ _cleanup_(macro_fclose)

/* Declares x_freep for `_cleanup_(x_freep)` from x_free, which must accept NULL. */
#define DEFINE_CLEANUP(type, free_fn)                                                                        \
    static inline void free_fn##p(type **p)                                                                  \
    {                                                                                                        \
        free_fn(*p);                                                                                         \
    }

/* Turns a `void *` back into a struct that begins with `uint32_t magic`; aborts when it is something else. */
#define CAST_MAGIC(type, ptr, magic_value)                                                                   \
    ({                                                                                                       \
        struct type *_obj = (struct type *)(ptr);                                                            \
        assert(_obj != NULL && _obj->magic == (magic_value));                                                \
        _obj;                                                                                                \
    })

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)
#define TIB ((uint64_t)1 << 40)

#define PRINTF_LIKE(fmt_index, first_arg) __attribute__((format(printf, fmt_index, first_arg)))
