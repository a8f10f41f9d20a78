/*
 * The data-set table on disk, one value of the disk's index. Integers are little-endian.
 *
 *     offset  size  meaning
 *          0     4  "FBEV"
 *          4     4  format, 1
 *          8     4  number of sets
 *         12     -  the sets, in order of their places
 *        end     4  crc32c of all before
 *
 * One set:
 *
 *     offset  size  meaning
 *          0     4  number; modulo 1024 its place in the table
 *          4     1  1: marked, else 0
 *          5     2  length of the prefix, at most 2048
 *          7     -  the prefix
 *          -   7*8  cached bytes; last read; active since; last absence; run time; run bytes; turn bytes
 * (times in ms)
 *          -     1  number of pauses that follow, by rising class: 1 byte class, 8 bytes when it last ended
 *          -     1  number of gaps that follow, by rising class: 1 byte class, 4 bytes count
 *
 * The value is replaced as a whole by the index engine: a crash leaves the former one. Losing it costs idle
 * times and intervals, which are learned again.
 */
#include "store/evict_internal.h"

#include "base/crc32c.h"
#include "base/err.h"
#include "base/le.h"

#include <assert.h>

#define FORMAT 1

static void put_set(const struct evict_set *s, struct le_writer *w)
{
    const uint64_t numbers[] = {s->bytes,  s->last_read_ms, s->active_since_ms, s->absence_ms,
                                s->run_ms, s->run_bytes,    s->turn_bytes};
    unsigned n_pauses = 0, n_gaps = 0;
    for (unsigned i = 0; i < EVICT_PAUSES; i++)
        n_pauses += s->pause_ms[i] != 0;
    for (unsigned i = 0; i < EVICT_GAPS; i++)
        n_gaps += s->gaps[i] != 0;

    le_add32(w, s->id);
    le_add8(w, s->marked);
    le_add_text(w, slice_of(s->prefix, s->prefix_n));
    for (size_t i = 0; i < ARRAY_SIZE(numbers); i++)
        le_add64(w, numbers[i]);
    le_add8(w, (uint8_t)n_pauses);
    for (unsigned i = 0; i < EVICT_PAUSES; i++)
        if (s->pause_ms[i]) {
            le_add8(w, (uint8_t)i);
            le_add64(w, s->pause_ms[i]);
        }
    le_add8(w, (uint8_t)n_gaps);
    for (unsigned i = 0; i < EVICT_GAPS; i++)
        if (s->gaps[i]) {
            le_add8(w, (uint8_t)i);
            le_add32(w, s->gaps[i]);
        }
}

int evict_sets_encode(const struct evict_sets *t, struct buf *b)
{
    assert(t && t->magic == EVICT_MAGIC && b);
    struct le_writer w = le_writer_of(b);
    le_add(&w, SLICE_LIT("FBEV"));
    le_add32(&w, FORMAT);
    le_add32(&w, evict_sets_count(t));
    for (uint32_t i = 0; i < t->n && w.code == 0; i++)
        put_set(&t->sets[i], &w);
    if (w.code == 0)
        le_add32(&w, crc32c(0, b->p + w.before, b->n - w.before));
    return le_add_end(&w);
}

/* Classes must rise, so that one table has one form. */
static void get_classes(struct le_reader *r, struct evict_set *s, bool gaps)
{
    unsigned n = le_take8(r), max = gaps ? EVICT_GAPS : EVICT_PAUSES;
    int last = -1;
    for (unsigned i = 0; i < n && !r->bad; i++) {
        unsigned class = le_take8(r);
        uint64_t v = gaps ? le_take32(r) : le_take64(r);
        if (class >= max || (int)class <= last || v == 0) {
            r->bad = true;
            return;
        }
        last = (int)class;
        if (gaps)
            s->gaps[class] = (uint32_t)v;
        else
            s->pause_ms[class] = v;
    }
}

/* False: not a set that put_set wrote, or one that clashes with those before it. */
static bool get_set(struct le_reader *r, struct evict_sets *t)
{
    uint32_t id = le_take32(r), place = id % EVICT_SETS_MAX;
    uint8_t marked = le_take8(r);
    struct slice prefix = le_take_text(r, EVICT_PREFIX_MAX);
    struct evict_set *s;
    if (r->bad || marked > 1)
        return false;
    if (id == 0) {
        s = &t->sets[0];
        if (prefix.n || t->n > 1)
            return false;
        if (marked)
            evict_sets_mark(t, s);
    } else {
        if (place != t->n || evict_sets_lookup(t, prefix))
            return false;
        s = evict_sets_put(t, place, id, prefix, marked);
    }
    uint64_t *const numbers[] = {&s->bytes,  &s->last_read_ms, &s->active_since_ms, &s->absence_ms,
                                 &s->run_ms, &s->run_bytes,    &s->turn_bytes};
    for (size_t i = 0; i < ARRAY_SIZE(numbers); i++)
        *numbers[i] = le_take64(r);
    get_classes(r, s, /* gaps= */ false);
    get_classes(r, s, /* gaps= */ true);
    return !r->bad && s->run_ms <= UINT64_MAX / 4 && s->run_bytes <= UINT64_MAX / 4 &&
           s->turn_bytes <= UINT64_MAX / 4;
}

static bool decode(struct slice s, struct evict_sets *t)
{
    struct le_reader r = le_reader_of(s);
    if (s.n < 16 || s.n > EVICT_ENCODED_MAX_BYTES || !slice_eq_str(le_take(&r, 4), "FBEV") ||
        le_take32(&r) != FORMAT)
        return false;
    uint32_t count = le_take32(&r);
    if (count < 1 || count > EVICT_SETS_MAX)
        return false;
    for (uint32_t i = 0; i < count; i++)
        if (!get_set(&r, t))
            return false;
    uint32_t crc = le_take32(&r);
    return le_took_all(&r) && crc == crc32c(0, s.p, s.n - 4);
}

int evict_sets_decode(struct slice s, uint64_t cache_bytes, struct evict_sets **ret)
{
    _cleanup_(evict_sets_freep) struct evict_sets *t = evict_sets_new(cache_bytes);
    if (!decode(s, t))
        return ERR_CORRUPT;
    *ret = TAKE_PTR(t);
    return 0;
}
