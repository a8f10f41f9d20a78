/*
 * A bounded cache of byte strings: least recently used out first, sharded, any thread. Holds attributes and
 * pages of listings; losing an entry costs one question to the origin.
 */
#pragma once

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"

#include <stdatomic.h>

struct lru;

/* max_bytes: keys, values and bookkeeping together. */
struct lru *lru_new(uint64_t max_bytes);
void lru_free(struct lru *l);
/* Value appended to ret; -ENOENT. */
int lru_get(struct lru *l, struct slice key, struct buf *ret);
/* The same into the arena, which must have room for any value. */
int lru_get_in(struct lru *l, struct slice key, struct arena *a, struct slice *ret);
/* Replaces; values that are too large for a shard are not kept. */
void lru_put(struct lru *l, struct slice key, struct slice value);
/* lru_put, but only while *generation is `seen`. Who raises the generation and then removes the key can be
 * sure that nothing older is found afterwards. */
void lru_put_if(struct lru *l, struct slice key, struct slice value, const _Atomic uint64_t *generation,
                uint64_t seen);
void lru_remove(struct lru *l, struct slice key);
/* All whose key `matches`, which is asked with a lock held. Takes as long as looking at every entry. */
void lru_remove_if(struct lru *l, bool (*matches)(const void *arg, struct slice key), const void *arg);
void lru_clear(struct lru *l);
uint64_t lru_bytes(struct lru *l);
