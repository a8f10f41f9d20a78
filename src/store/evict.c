/*
 * Eviction rules: which extent may go for the sake of a newcomer.
 *
 * What is learned of each data set comes from its reads alone:
 *
 * Activity period. A run of reads without a pause longer than usual. Up to 1 s is no pause. A longer one is
 * usual when a pause of its size (at least a quarter of it) ended within 64 times its length before: a set
 * that is read in turn with another, or that waits for a validation after each epoch, has usual pauses and
 * stays in one period. Any other pause is an absence and ends the period. A set gives way when it has been
 * idle for 1 s and for half of the time that the newcomer's set has been active: a set that was just begun
 * replaces what was left behind at once, while sets read in turn, once their pauses are known, have periods
 * far longer than the other's idle time and leave each other alone.
 *
 * Re-read interval. Nine tenths of the gaps between reads of the same extent are shorter: in shuffled epochs
 * gaps vary from nothing to two epochs, with random draws more. They are kept in a histogram that is halved
 * every two times the set's cached bytes were read, so that it covers an epoch or more. Gaps shorter than
 * half of the time it takes to read the set's cached bytes once are parts of one pass over an extent and do
 * not count; an absence is taken out of gaps and ages, so that a set that comes back after a night is not
 * stale. An interval taken for too short would never be corrected by hits, because everything is evicted
 * before it is read again; so the last reads of evicted extents are remembered, and count when they come
 * back.
 *
 * Invariants:
 *  1. Pinned, dirty and referenced extents are never chosen.
 *  2. Of the newcomer's own set only dead and stale extents are chosen: a scan never replaces itself.
 *  3. A set that was read within the last second gives way to nobody, its stale extents excepted.
 */
#include "store/evict_internal.h"

#include "base/hash.h"

#include <assert.h>

#define GAPS_KNOWN   8  /* counted gaps from which the interval is known */
#define GAPS_KEEP    64 /* never halved below this */
#define PAUSE_REPEAT 64

uint64_t evict_age_ms(uint64_t then_ms, uint64_t now_ms)
{
    if (then_ms <= now_ms)
        return now_ms - then_ms;
    return then_ms - now_ms > EVICT_DAY_MS ? UINT64_MAX : 0;
}

static unsigned log2_floor(uint64_t v)
{
    return v ? 63u - (unsigned)__builtin_clzll(v) : 0;
}

static unsigned pause_class(uint64_t pause_ms)
{
    unsigned c = log2_floor(pause_ms / 1000);
    return MIN(c, EVICT_PAUSES - 1u);
}

static bool pause_is_usual(const struct evict_set *s, uint64_t pause_ms)
{
    if (pause_ms <= EVICT_PAUSE_MIN_MS)
        return true;
    if (pause_ms == UINT64_MAX)
        return false;
    unsigned c = pause_class(pause_ms);
    uint64_t within_ms = pause_ms > UINT64_MAX / PAUSE_REPEAT ? UINT64_MAX : pause_ms * PAUSE_REPEAT;
    for (unsigned i = c ? c - 1 : 0; i < EVICT_PAUSES; i++)
        if (s->pause_ms[i] && evict_age_ms(s->pause_ms[i], s->last_read_ms) <= within_ms)
            return true;
    return false;
}

/* How long the set has been in its present activity period; 0 when a read now would begin a new one. */
static uint64_t active_ms(const struct evict_set *s, uint64_t now_ms)
{
    if (!s || !s->last_read_ms || !pause_is_usual(s, evict_age_ms(s->last_read_ms, now_ms)))
        return 0;
    return now_ms > s->active_since_ms ? now_ms - s->active_since_ms : 0;
}

/* Age of a read of one extent of the set at `now`, the set's last absence taken out. */
static uint64_t extent_age_ms(const struct evict_set *s, uint64_t read_ms, uint64_t now_ms)
{
    uint64_t age = evict_age_ms(read_ms, now_ms);
    if (s && age != UINT64_MAX && read_ms < s->active_since_ms)
        age -= MIN(age, s->absence_ms);
    return age;
}

/* Lower end of a class of gaps: 64 ms times 2^(i/2), in whole ms. */
static uint64_t gap_floor_ms(unsigned i)
{
    uint64_t power = (uint64_t)1 << (EVICT_GAP_FIRST_LOG + i / 2);
    return i % 2 ? power * 1448 / 1024 : power;
}

static unsigned gap_class(uint64_t gap_ms)
{
    unsigned l = log2_floor(gap_ms);
    if (l < EVICT_GAP_FIRST_LOG)
        return 0;
    unsigned i = 2 * (l - EVICT_GAP_FIRST_LOG);
    if (i + 1 >= EVICT_GAPS)
        return EVICT_GAPS - 1;
    return gap_ms >= gap_floor_ms(i + 1) ? i + 1 : i;
}

static uint64_t gaps_total(const struct evict_set *s)
{
    uint64_t total = 0;
    for (unsigned i = 0; i < EVICT_GAPS; i++)
        total += s->gaps[i];
    return total;
}

uint64_t evict_set_interval_ms(const struct evict_set *s)
{
    uint64_t total = gaps_total(s), below = 0;
    if (total < GAPS_KNOWN)
        return 0;
    uint64_t rank = total - total / 10; /* at least 1 */
    unsigned i = 0;
    while (below + s->gaps[i] < rank)
        below += s->gaps[i++];
    uint64_t lo = gap_floor_ms(i), width = gap_floor_ms(i + 1) - lo;
    uint64_t into = rank - below; /* of gaps[i], which is not 0 here */
    return MAX(lo + width * into / s->gaps[i], (uint64_t)EVICT_PAUSE_MIN_MS);
}

/* Time to read the set's cached bytes once at its usual rate; UINT64_MAX while too little was read to tell.
 */
static uint64_t turnover_ms(const struct evict_set *s)
{
    if (!s->run_bytes || s->run_bytes < s->bytes / 8)
        return UINT64_MAX;
    return (uint64_t)((__uint128_t)s->bytes * s->run_ms / s->run_bytes);
}

static void note_gap(struct evict_set *s, uint64_t previous_ms, uint64_t now_ms)
{
    uint64_t gap = extent_age_ms(s, previous_ms, now_ms);
    uint64_t turnover = turnover_ms(s);
    if (gap == UINT64_MAX || turnover == UINT64_MAX || gap < turnover / 2 ||
        gap < (1u << EVICT_GAP_FIRST_LOG))
        return;
    uint32_t *count = &s->gaps[gap_class(gap)];
    if (*count < UINT32_MAX)
        (*count)++;
}

static void note_bytes(struct evict_set *s, uint64_t bytes)
{
    s->run_bytes += MIN(bytes, UINT64_MAX / 4 - s->run_bytes);
    s->turn_bytes += MIN(bytes, UINT64_MAX / 4 - s->turn_bytes);
    uint64_t turn = MIN(s->bytes, UINT64_MAX / 8) * 2;
    if (s->run_bytes > MAX(turn, MIB)) {
        s->run_bytes /= 2;
        s->run_ms /= 2;
    }
    if (s->turn_bytes > turn && gaps_total(s) >= GAPS_KEEP) {
        s->turn_bytes = 0;
        for (unsigned i = 0; i < EVICT_GAPS; i++)
            s->gaps[i] = (s->gaps[i] + 1) / 2;
    }
}

static void note_pause(struct evict_set *s, uint64_t now_ms)
{
    uint64_t pause = evict_age_ms(s->last_read_ms, now_ms);
    if (!s->last_read_ms || pause == UINT64_MAX) {
        s->active_since_ms = now_ms;
        s->absence_ms = 0;
    } else if (pause_is_usual(s, pause)) {
        s->run_ms += MIN(pause, UINT64_MAX / 4 - s->run_ms);
    } else {
        s->active_since_ms = now_ms;
        s->absence_ms = pause;
    }
    if (s->last_read_ms && pause != UINT64_MAX && pause > EVICT_PAUSE_MIN_MS)
        s->pause_ms[pause_class(pause)] = now_ms;
    s->last_read_ms = now_ms;
}

void evict_set_read(struct evict_sets *t, uint32_t set, uint64_t previous_read_ms, uint64_t now_ms,
                    uint64_t bytes)
{
    struct evict_set *s = evict_set_get(t, set);
    if (!s)
        return;
    note_pause(s, now_ms);
    if (previous_read_ms)
        note_gap(s, previous_read_ms, now_ms);
    note_bytes(s, bytes);
}

void evict_set_grow(struct evict_sets *t, uint32_t set, int64_t bytes)
{
    struct evict_set *s = evict_set_get(t, set);
    if (!s)
        return;
    if (bytes < 0)
        s->bytes -= MIN(s->bytes, -(uint64_t)bytes);
    else
        s->bytes += MIN((uint64_t)bytes, UINT64_MAX - s->bytes);
}

/* Levels that remember this key, and its place in each. */
static unsigned ghost_levels(uint64_t hash)
{
    unsigned n = 1;
    while (n < EVICT_GHOST_LEVELS && hash % ((uint64_t)1 << 4 * n) == 0)
        n++;
    return n;
}

static size_t ghost_place(uint64_t hash)
{
    return (hash >> 32) % EVICT_GHOSTS;
}

void evict_note_evicted(struct evict_sets *t, struct slice key, uint64_t last_read_ms)
{
    assert(t && t->magic == EVICT_MAGIC);
    uint64_t hash = hash_table(key);
    for (unsigned i = 0; i < ghost_levels(hash); i++)
        t->ghosts[i][ghost_place(hash)] = (struct evict_ghost){.key = hash, .last_read_ms = last_read_ms};
}

uint64_t evict_former_read(const struct evict_sets *t, struct slice key)
{
    assert(t && t->magic == EVICT_MAGIC);
    uint64_t hash = hash_table(key);
    for (unsigned i = 0; i < ghost_levels(hash); i++)
        if (t->ghosts[i][ghost_place(hash)].key == hash)
            return t->ghosts[i][ghost_place(hash)].last_read_ms;
    return 0;
}

static bool is_held(const struct evict_candidate *c)
{
    return c->pinned || c->dirty || c->referenced;
}

enum evict_verdict evict_judge(const struct evict_sets *t, const struct evict_candidate *c, uint32_t newcomer,
                               uint64_t now_ms)
{
    assert(t && t->magic == EVICT_MAGIC && c);
    if (is_held(c))
        return EVICT_KEEP;
    if (c->dead)
        return EVICT_DEAD;

    const struct evict_set *s = evict_set_get(t, c->set);
    uint64_t interval = s ? evict_set_interval_ms(s) : 0;
    if (extent_age_ms(s, c->last_read_ms, now_ms) > 2 * (interval ? interval : EVICT_DAY_MS))
        return EVICT_STALE;

    const struct evict_set *n = evict_set_get(t, newcomer);
    if (s && s == n)
        return EVICT_KEEP;
    uint64_t idle = evict_age_ms(c->last_read_ms, now_ms);
    if (s && s->last_read_ms)
        idle = MIN(idle, evict_age_ms(s->last_read_ms, now_ms));
    return idle > MAX((uint64_t)EVICT_PAUSE_MIN_MS, active_ms(n, now_ms) / 2) ? EVICT_IDLE_SET : EVICT_KEEP;
}

int evict_choose(const struct evict_sets *t, const struct evict_candidate *c, size_t n, uint32_t newcomer,
                 uint64_t now_ms)
{
    int best = -1;
    enum evict_verdict best_verdict = EVICT_KEEP;
    uint64_t best_age = 0;
    for (size_t i = 0; i < n; i++) {
        enum evict_verdict v = evict_judge(t, &c[i], newcomer, now_ms);
        uint64_t age = evict_age_ms(c[i].last_read_ms, now_ms);
        if (v > best_verdict || (v == best_verdict && v != EVICT_KEEP && age > best_age)) {
            best = (int)i;
            best_verdict = v;
            best_age = age;
        }
    }
    return best;
}

int evict_choose_forced(const struct evict_sets *t, const struct evict_candidate *c, size_t n,
                        uint32_t newcomer, uint64_t now_ms)
{
    int best = evict_choose(t, c, n, newcomer, now_ms);
    if (best >= 0)
        return best;
    for (size_t i = 0; i < n; i++)
        if (!is_held(&c[i]) && (best < 0 || evict_age_ms(c[i].last_read_ms, now_ms) >
                                                evict_age_ms(c[best].last_read_ms, now_ms)))
            best = (int)i;
    return best;
}
