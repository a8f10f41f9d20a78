/*
 * Planning of reads (contract in plan.h).
 *
 * Invariants:
 *  1. Every range lies within the file; the first one holds the read.
 *  2. Beyond the read and the rest of the block it begins in, the ranges of one plan hold at most max_window
 * bytes in all (plan_bound).
 *
 * Sources of the constants: 8 MiB parts keep a connection of 50 MB/s busy for 8 round trips of 20 ms; a
 * window grows by 8 once a quarter of it has been read, so that a sequential reader of 1 MiB pieces has the
 * pipe full after some 20 MiB, a reader of a few small pieces fetches little, and a random one never more
 * than a block.
 *
 * Why the rest is fetched once half of a file is here: whether a program will read all of it cannot be known.
 * Who fetches the rest when as much was read as is left never fetches more than twice what was needed, and
 * who waits for longer than that saves at most half; a file that is whole is read without asking this
 * process.
 */
#include "object/plan_internal.h"

#include "store/store.h"

static const char *const pattern_names[] = {
#define X(NAME, name) name,
    PLAN_PATTERNS(X)
#undef X
};

const char *plan_pattern_name(enum plan_pattern pattern)
{
    assert(pattern < PLAN_PATTERN_COUNT);
    return pattern_names[pattern];
}

uint64_t plan_add_capped(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* ---- life ---- */

struct plan *plan_new(struct slice name, uint64_t size, uint64_t offset)
{
    struct plan *p = calloc(1, sizeof(*p));
    assert(p);
    p->size = size;
    bool at_end = size > STORE_BLOCK_BYTES && offset >= size - STORE_BLOCK_BYTES;
    p->look = layout_guess(name, size, at_end);
    if (at_end)
        plan_note(p, PLAN_TAIL_FIRST);
    return p;
}

void plan_free(struct plan *p)
{
    if (!p)
        return;
    layout_free(p->layout);
    free(p->touched);
    free(p);
}

static size_t touched_bytes(const struct layout *l)
{
    return (l->n + 63) / 64 * sizeof(uint64_t);
}

uint64_t plan_bytes(const struct plan *p)
{
    return sizeof(*p);
}

uint64_t plan_layout_bytes(const struct layout *l)
{
    return layout_bytes(l) + touched_bytes(l);
}

bool plan_is_whole(const struct plan *p, uint64_t present_bytes)
{
    return p->whole_window > 0 || present_bytes > p->size / 2;
}

unsigned plan_patterns(const struct plan *p)
{
    return p->patterns;
}

void plan_note(struct plan *p, enum plan_pattern pattern)
{
    p->patterns |= 1u << pattern;
}

/* ---- looking ---- */

struct layout_look plan_look(const struct plan *p)
{
    return p->look;
}

bool plan_learn(struct plan *p, const struct layout_look *seen, const struct layout_look *next,
                struct layout **layout)
{
    const struct layout_look *now = &p->look;
    if (now->kind != seen->kind || now->stage != seen->stage || now->offset != seen->offset ||
        now->n != seen->n)
        return false;
    p->look = *next;
    p->look_asked = false;
    if (*layout && !p->layout) {
        p->layout = TAKE_PTR(*layout);
        p->touched = calloc(1, touched_bytes(p->layout));
        assert(p->touched);
    }
    return true;
}

/* A file that is what its name says, or has begun to be: what tells where its pieces are is had early. */
static void want_look(struct plan_turn *t)
{
    struct plan *p = t->p;
    if (p->look.n == 0 || p->look.kind == LAYOUT_UNKNOWN || p->look_asked)
        return;
    p->look_asked = true;
    plan_want(t, p->look.offset, p->look.offset + p->look.n);
}

/* ---- reading ---- */

void plan_want(struct plan_turn *t, uint64_t offset, uint64_t end)
{
    struct plan_wants *w = t->ret;
    end = MIN(end, t->p->size);
    if (offset < end && w->n < PLAN_RANGES)
        w->range[w->n++] = (struct plan_range){offset, end};
}

static void want_whole(struct plan_turn *t)
{
    struct plan *p = t->p;
    const struct plan_ask *q = t->q;
    if (plan_is_whole(p, q->present_bytes) && p->whole_window == 0 && q->max_window > 0) {
        p->whole_window = q->max_window;
        plan_note(p, PLAN_WHOLE);
    }
    if (p->whole_window > 0 && q->missing_at < p->size)
        plan_want(t, q->missing_at, plan_add_capped(q->missing_at, MIN(p->whole_window, q->max_window)));
}

/* Cuts what is ahead to max_window, the least urgent first. `least` is where the first range ends at least.
 */
static void bound(struct plan_turn *t, uint64_t least)
{
    struct plan_wants *w = t->ret;
    uint64_t left = t->q->max_window;
    for (unsigned i = 0; i < w->n; i++) {
        uint64_t from = i == 0 ? least : w->range[i].offset;
        uint64_t n = w->range[i].end - from;
        if (n > left)
            w->range[i].end = from + left;
        left -= MIN(n, left);
    }
    while (w->n > 1 && w->range[w->n - 1].end == w->range[w->n - 1].offset)
        w->n--;
}

struct plan_range plan_alone(uint64_t offset, uint64_t n, uint64_t size)
{
    assert(offset <= size);
    if (size <= PLAN_SMALL_BYTES)
        return (struct plan_range){0, size};
    uint64_t first = plan_add_capped(ALIGN_DOWN(offset, STORE_BLOCK_BYTES), PLAN_FIRST_BYTES);
    return (struct plan_range){offset, MIN(MAX(plan_add_capped(offset, n), first), size)};
}

void plan_read(struct plan *p, const struct plan_ask *q, struct plan_wants *ret)
{
    struct plan_range read = plan_alone(q->offset, q->n, p->size);
    struct plan_turn t = {.p = p, .q = q, .ret = ret, .end = MIN(plan_add_capped(q->offset, q->n), p->size)};
    ret->n = 1;
    ret->range[0] = read;
    if (p->size <= PLAN_SMALL_BYTES)
        return;
    p->turn++;
    plan_stream_find(&t);
    uint64_t reach = plan_piece_reach(&t, plan_stream_reach(&t, read.end));
    ret->range[0].end = MIN(MAX(reach, read.end), p->size);
    want_look(&t);
    plan_piece_want(&t);
    plan_stream_want(&t);
    want_whole(&t);
    bound(&t, read.end);
}

/* ---- requests ---- */

struct plan_range plan_discover(uint64_t offset, uint64_t expect)
{
    uint64_t from = ALIGN_DOWN(offset, STORE_BLOCK_BYTES);
    uint64_t end = expect == 0 ? plan_add_capped(from, PLAN_FIRST_BYTES) : plan_add_capped(offset, expect);
    end = MIN(end, plan_add_capped(from, PLAN_PART_BYTES));
    if (end < UINT64_MAX - STORE_BLOCK_BYTES)
        end = ALIGN_UP(end, STORE_BLOCK_BYTES);
    return (struct plan_range){from, end};
}

struct plan_range plan_part(struct plan_range missing, struct plan_range wanted, uint64_t size)
{
    assert(missing.offset < missing.end && missing.end <= size);
    uint64_t boundary = plan_add_capped(ALIGN_DOWN(missing.offset, PLAN_PART_BYTES), PLAN_PART_BYTES);
    uint64_t end = MIN(missing.end, boundary);
    uint64_t wanted_end =
        wanted.end < UINT64_MAX - STORE_BLOCK_BYTES ? ALIGN_UP(wanted.end, STORE_BLOCK_BYTES) : size;
    end = MIN(end, MAX(wanted_end, missing.offset + 1));
    return (struct plan_range){missing.offset, MIN(end, size)};
}
