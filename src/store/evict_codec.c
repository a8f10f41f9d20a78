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

#include <assert.h>

#define FORMAT 1

static int put(struct buf *b, uint64_t v, unsigned n)
{
    uint8_t bytes[8];
    for (unsigned i = 0; i < n; i++)
        bytes[i] = (uint8_t)(v >> (8 * i));
    return buf_append(b, bytes, n);
}

/* Reads past the end give 0 and set `bad`. */
struct reader {
    struct slice left;
    bool bad;
};

static struct slice take(struct reader *r, size_t n)
{
    if (r->left.n < n) {
        r->bad = true;
        r->left = SLICE_NULL;
        return SLICE_NULL;
    }
    struct slice s = slice_sub(r->left, 0, n);
    r->left = slice_from(r->left, n);
    return s;
}

static uint64_t get(struct reader *r, unsigned n)
{
    struct slice s = take(r, n);
    uint64_t v = 0;
    for (size_t i = 0; i < s.n; i++)
        v |= (uint64_t)(uint8_t)s.p[i] << (8 * i);
    return v;
}

static int put_set(const struct evict_set *s, struct buf *b)
{
    const uint64_t numbers[] = {s->bytes,  s->last_read_ms, s->active_since_ms, s->absence_ms,
                                s->run_ms, s->run_bytes,    s->turn_bytes};
    unsigned n_pauses = 0, n_gaps = 0;
    for (unsigned i = 0; i < EVICT_PAUSES; i++)
        n_pauses += s->pause_ms[i] != 0;
    for (unsigned i = 0; i < EVICT_GAPS; i++)
        n_gaps += s->gaps[i] != 0;

    int r = put(b, s->id, 4);
    r = r ? r : put(b, s->marked, 1);
    r = r ? r : put(b, s->prefix_n, 2);
    r = r ? r : buf_append(b, s->prefix, s->prefix_n);
    for (size_t i = 0; i < ARRAY_SIZE(numbers) && !r; i++)
        r = put(b, numbers[i], 8);
    r = r ? r : put(b, n_pauses, 1);
    for (unsigned i = 0; i < EVICT_PAUSES && !r; i++)
        if (s->pause_ms[i]) {
            r = put(b, i, 1);
            r = r ? r : put(b, s->pause_ms[i], 8);
        }
    r = r ? r : put(b, n_gaps, 1);
    for (unsigned i = 0; i < EVICT_GAPS && !r; i++)
        if (s->gaps[i]) {
            r = put(b, i, 1);
            r = r ? r : put(b, s->gaps[i], 4);
        }
    return r;
}

int evict_sets_encode(const struct evict_sets *t, struct buf *b)
{
    assert(t && t->magic == EVICT_MAGIC && b);
    size_t start = b->n;
    int r = buf_str(b, "FBEV");
    r = r ? r : put(b, FORMAT, 4);
    r = r ? r : put(b, evict_sets_count(t), 4);
    for (uint32_t i = 0; i < t->n && !r; i++)
        r = put_set(&t->sets[i], b);
    r = r ? r : put(b, crc32c(0, b->p + start, b->n - start), 4);
    if (r && b->p) {
        b->n = start;
        b->p[start] = '\0';
    }
    return r;
}

/* Classes must rise, so that one table has one form. */
static void get_classes(struct reader *r, struct evict_set *s, bool gaps)
{
    unsigned n = (unsigned)get(r, 1), max = gaps ? EVICT_GAPS : EVICT_PAUSES;
    int last = -1;
    for (unsigned i = 0; i < n && !r->bad; i++) {
        unsigned class = (unsigned)get(r, 1);
        uint64_t v = get(r, gaps ? 4 : 8);
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
static bool get_set(struct reader *r, struct evict_sets *t)
{
    uint32_t id = (uint32_t)get(r, 4), place = id % EVICT_SETS_MAX;
    uint64_t marked = get(r, 1), prefix_n = get(r, 2);
    if (r->bad || marked > 1 || prefix_n > EVICT_PREFIX_MAX)
        return false;
    struct slice prefix = take(r, prefix_n);
    struct evict_set *s;
    if (r->bad)
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
        *numbers[i] = get(r, 8);
    get_classes(r, s, /* gaps= */ false);
    get_classes(r, s, /* gaps= */ true);
    return !r->bad && s->run_ms <= UINT64_MAX / 4 && s->run_bytes <= UINT64_MAX / 4 &&
           s->turn_bytes <= UINT64_MAX / 4;
}

static bool decode(struct slice s, struct evict_sets *t)
{
    struct reader r = {.left = s};
    if (s.n < 16 || s.n > EVICT_ENCODED_MAX_BYTES || !slice_eq_str(take(&r, 4), "FBEV") ||
        get(&r, 4) != FORMAT)
        return false;
    uint64_t count = get(&r, 4);
    if (count < 1 || count > EVICT_SETS_MAX)
        return false;
    for (uint64_t i = 0; i < count; i++)
        if (!get_set(&r, t))
            return false;
    uint64_t crc = get(&r, 4);
    return !r.bad && r.left.n == 0 && crc == crc32c(0, s.p, s.n - 4);
}

int evict_sets_decode(struct slice s, uint64_t cache_bytes, struct evict_sets **ret)
{
    _cleanup_(evict_sets_freep) struct evict_sets *t = evict_sets_new(cache_bytes);
    if (!decode(s, t))
        return ERR_CORRUPT;
    *ret = TAKE_PTR(t);
    return 0;
}
