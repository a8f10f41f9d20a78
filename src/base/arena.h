/*
 * An arena serves one request: many small allocations, all freed at once at its end. One thread at a time.
 * Allocations abort when memory is out or when the arena's maximum is passed by our own code; sizes that a
 * peer chose are checked before they come here.
 */
#pragma once

#include "base/slice.h"

struct arena;

/* max_bytes: stated limit of all blocks together. Free with arena_free (NULL accepted). */
struct arena *arena_new(size_t max_bytes);
void arena_free(struct arena *a);
DEFINE_CLEANUP(struct arena, arena_free)
/* Empties it for the next request; keeps one block. */
void arena_clear(struct arena *a);
size_t arena_left(const struct arena *a);

/* 16-byte aligned; zeroed in the second form. Never NULL. */
void *arena_alloc(struct arena *a, size_t n);
void *arena_zalloc(struct arena *a, size_t n);
struct slice arena_dup(struct arena *a, struct slice s);
char *arena_str(struct arena *a, struct slice s);
char *arena_printf(struct arena *a, const char *fmt, ...) PRINTF_LIKE(2, 3);
