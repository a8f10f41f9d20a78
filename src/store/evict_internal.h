/* The data-set table, shared by evict.c (rules), evict_sets.c (finding and splitting) and evict_codec.c (disk
 * form). */
#pragma once

#include "store/evict.h"

#define EVICT_MAGIC         0x45564354u
#define EVICT_INDEX_SLOTS   2048 /* twice EVICT_SETS_MAX, a power of two */
#define EVICT_DEPTH_MAX     12   /* path components looked at in a key */
#define EVICT_PREFIX_MAX    2048 /* bytes, as long as a key may be */
#define EVICT_HEAVY         4    /* frequent next components remembered per set */
#define EVICT_PAUSES        32   /* by power of two from 1 s */
#define EVICT_GAPS          56   /* half powers of two from 64 ms to 200 days */
#define EVICT_GAP_FIRST_LOG 6
#define EVICT_GHOSTS        1024 /* per level */
#define EVICT_GHOST_LEVELS                                                                                   \
    4 /* each remembers a sixteenth of the keys of the one before, for 16 times as long */
#define EVICT_PAUSE_MIN_MS 1000
#define EVICT_DAY_MS       86400000ull

/* A candidate for a split: Misra and Gries, Finding repeated elements (1982). Kept in memory only. */
struct evict_heavy {
    uint64_t component; /* hash of the next path component, '/' included */
    uint32_t count;
};

struct evict_set {
    uint32_t id; /* generation * EVICT_SETS_MAX + place in the table */
    bool used, marked;
    char *prefix; /* owned */
    size_t prefix_n;
    uint64_t bytes; /* cached */
    uint64_t last_read_ms;
    uint64_t active_since_ms;
    uint64_t absence_ms;             /* length of the absence that ended at active_since_ms */
    uint64_t pause_ms[EVICT_PAUSES]; /* when a pause of 2^i s to 2^(i+1) s ended last; 0: never */
    uint64_t run_ms, run_bytes;      /* time and bytes of reading lately: the rate */
    uint64_t turn_bytes;             /* read since the gaps were last halved */
    uint32_t gaps[EVICT_GAPS];       /* counts, halved now and then */
    struct evict_heavy heavy[EVICT_HEAVY];
    uint32_t heavy_total;
};

struct evict_ghost {
    uint64_t key; /* its hash */
    uint64_t last_read_ms;
};

struct evict_sets {
    uint32_t magic;
    uint64_t cache_bytes;
    uint32_t n;                        /* places in use, without gaps */
    struct evict_set *sets;            /* EVICT_SETS_MAX places; the first one is the empty prefix */
    uint16_t index[EVICT_INDEX_SLOTS]; /* hash of prefix to place + 1, linear probing */
    struct evict_ghost ghosts[EVICT_GHOST_LEVELS][EVICT_GHOSTS];
    uint32_t n_marked;
    uint16_t marked[EVICT_SETS_MAX]; /* places of marked sets */
};

/* NULL when the set is gone. */
struct evict_set *evict_set_get(const struct evict_sets *t, uint32_t id);
/* Puts a new set in place `place` (the next one, or one just given up) with number `id`. */
struct evict_set *evict_sets_put(struct evict_sets *t, uint32_t place, uint32_t id, struct slice prefix,
                                 bool marked);
void evict_sets_mark(struct evict_sets *t, struct evict_set *s);
struct evict_set *evict_sets_lookup(const struct evict_sets *t, struct slice prefix);
/* 90th percentile of the gaps between reads of the same extent, 0 while too few were seen. */
uint64_t evict_set_interval_ms(const struct evict_set *s);
/* now - then, 0 for a little ahead of now, UINT64_MAX for more than a day ahead. */
uint64_t evict_age_ms(uint64_t then_ms, uint64_t now_ms);
