/* What mirror.c and mirror_list.c share. */
#pragma once

#include "namespace/lru.h"
#include "namespace/mirror.h"

#define MIRROR_STRIPES       4096
#define MIRROR_CACHE_KEY_MAX (8 * KIB)

struct mirror {
    struct lru *cache; /* 'a', 'b' (mirror.c) or 'l' (pages of listings), the bucket's place, what it is of */
    _Atomic uint64_t key_generation[MIRROR_STRIPES];
    _Atomic uint64_t bucket_generation[MIRROR_STRIPES];
    mirror_learned_fn on_learned; /* NULL: nobody */
    mirror_listens_fn listens;
    void *on_learned_arg;
};

_Atomic uint64_t *mirror_bucket_generation(struct mirror *m, const struct bucket *b);
bool mirror_component_is_legal(struct slice c);
