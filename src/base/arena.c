/*
 * The request arena: a list of blocks, each handed out from its front.
 *
 * Invariants:
 *  1. Every pointer given out is aligned to 16 bytes and stays valid until arena_clear or arena_free.
 *  2. The blocks together, heads included, never exceed max_bytes.
 *  3. An allocation of at most arena_left() bytes succeeds.
 *
 * Failure modes: aborts when memory is out or the maximum is passed; see arena.h. Under AddressSanitizer the
 * unused part of each block is poisoned, so that use after arena_clear is found.
 */
#include "base/arena.h"

#include <stdarg.h>
#include <stdint.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define POISON(p, n)   ASAN_POISON_MEMORY_REGION((p), (n))
#define UNPOISON(p, n) ASAN_UNPOISON_MEMORY_REGION((p), (n))
#else
#define POISON(p, n)   ((void)(p), (void)(n))
#define UNPOISON(p, n) ((void)(p), (void)(n))
#endif

#define ARENA_MAGIC     0x41524e41u
#define ARENA_ALIGN     16u
#define ARENA_BLOCK_MIN ((size_t)4096)
#define ARENA_BLOCK_MAX ((size_t)256 << 10) /* blocks double up to here; larger requests get their own */

struct block {
    struct block *next; /* older */
    size_t n;           /* bytes of data */
    size_t used;
    size_t pad;
    char data[];
};

static_assert(sizeof(struct block) % ARENA_ALIGN == 0, "data must be aligned");

struct arena {
    uint32_t magic;
    size_t max;
    size_t total; /* bytes of all blocks with their heads */
    size_t next;  /* size of the next block */
    struct block *top;
};

struct arena *arena_new(size_t max_bytes)
{
    assert(max_bytes > sizeof(struct block));
    struct arena *a = malloc(sizeof(*a));
    if (!a)
        abort();
    *a = (struct arena){ARENA_MAGIC, max_bytes, 0, ARENA_BLOCK_MIN, NULL};
    return a;
}

static void free_block(struct block *b)
{
    UNPOISON(b->data, b->n);
    free(b);
}

void arena_free(struct arena *a)
{
    if (!a)
        return;
    assert(a->magic == ARENA_MAGIC);
    while (a->top) {
        struct block *b = a->top;
        a->top = b->next;
        free_block(b);
    }
    a->magic = 0;
    free(a);
}

void arena_clear(struct arena *a)
{
    assert(a->magic == ARENA_MAGIC);
    while (a->top && a->top->next) {
        struct block *b = a->top;
        a->top = b->next;
        a->total -= sizeof(*b) + b->n;
        free_block(b);
    }
    if (a->top && a->top->n > ARENA_BLOCK_MAX) { /* an idle connection shall not keep a large one */
        a->total = 0;
        free_block(TAKE_PTR(a->top));
    }
    if (a->top) {
        a->top->used = 0;
        POISON(a->top->data, a->top->n);
    }
    a->next = ARENA_BLOCK_MIN;
}

static size_t fresh_left(const struct arena *a)
{
    size_t left = a->max - a->total;
    return left > sizeof(struct block) ? ALIGN_DOWN(left - sizeof(struct block), ARENA_ALIGN) : 0;
}

size_t arena_left(const struct arena *a)
{
    assert(a->magic == ARENA_MAGIC);
    size_t here = a->top ? a->top->n - a->top->used : 0;
    return MAX(here, fresh_left(a));
}

static void __attribute__((noreturn)) full(const struct arena *a, size_t n)
{
    (void)fprintf(stderr, "arena: %zu bytes asked for, %zu of %zu left\n", n, arena_left(a), a->max);
    abort();
}

static void add_block(struct arena *a, size_t n)
{
    size_t left = fresh_left(a);
    if (n > left)
        full(a, n);
    size_t size = MIN(MAX(n, a->next - sizeof(struct block)), left);
    struct block *b = malloc(sizeof(*b) + size);
    if (!b)
        abort();
    *b = (struct block){a->top, size, 0, 0};
    POISON(b->data, size);
    a->top = b;
    a->total += sizeof(*b) + size;
    a->next = MIN(a->next * 2, ARENA_BLOCK_MAX);
}

void *arena_alloc(struct arena *a, size_t n)
{
    static _Alignas(ARENA_ALIGN) char nothing[1];
    assert(a->magic == ARENA_MAGIC);
    if (n == 0)
        return nothing;
    if (n > a->max)
        full(a, n);
    size_t need = ALIGN_UP(n, ARENA_ALIGN);
    if (!a->top || a->top->n - a->top->used < need)
        add_block(a, need);
    void *p = a->top->data + a->top->used;
    a->top->used += need;
    UNPOISON(p, n);
    return p;
}

void *arena_zalloc(struct arena *a, size_t n)
{
    void *p = arena_alloc(a, n);
    memset(p, 0, n);
    return p;
}

char *arena_str(struct arena *a, struct slice s)
{
    char *p = arena_alloc(a, s.n + 1);
    if (s.n)
        memcpy(p, s.p, s.n);
    p[s.n] = '\0';
    return p;
}

struct slice arena_dup(struct arena *a, struct slice s)
{
    return (struct slice){arena_str(a, s), s.n};
}

char *arena_printf(struct arena *a, const char *fmt, ...)
{
    assert(fmt);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    assert(n >= 0);
    char *p = arena_alloc(a, (size_t)n + 1);
    va_start(ap, fmt);
    (void)vsnprintf(p, (size_t)n + 1, fmt, ap);
    va_end(ap);
    return p;
}
