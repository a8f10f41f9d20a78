/*
 * The places of one open file that are read from: which one a read belongs to, how far ahead of it to be, and
 * strides, which are places at equal steps.
 *
 * A read that goes on where a place ended, or ends where one began, belongs to it. Kernels send neighbouring
 * pieces out of order and readers of archives pass over small members, so "where it ended" has a tolerance:
 * narrow for a place that was read from once, because random reads would fall into a wide one by chance (a
 * 1024th of the file on both sides of 16 places: one read in 32), wider once it has gone on. A read that goes
 * on exactly opens the window, of those near it the second one does.
 *
 * What a stride has ahead doubles with each piece that came as foretold, so that a chance progression among
 * random reads costs four pieces once.
 */
#include "object/plan_internal.h"

#include "store/store.h"

#define CLOSE_BYTES     (128 * KIB) /* what kernels send at once: the tolerance of a backward reader */
#define FRESH_MAX_BYTES (1 * MIB)
#define FRESH_SHARE     1024
#define SURE_MIN_BYTES  (1 * MIB)
#define SURE_MAX_BYTES  (4 * MIB)
#define SURE_SHARE      256
#define REST_SHARE      8 /* a read so much smaller is the rest of one that the kernel had to divide */
#define SURE_HITS       2
#define BACK_SURE       3
#define RUN_SURE        2
#define RECENT_TURNS    64 /* a place that was not read from for so many reads has no share of the window */

static uint64_t distance(uint64_t a, uint64_t b)
{
    return a > b ? a - b : b - a;
}

/* ---- finding ---- */

/* How far from where it ended a place is believed to go on. */
static uint64_t tolerance(const struct plan_stream *s, uint64_t size)
{
    if (s->hits >= SURE_HITS)
        return MIN(MAX(size / SURE_SHARE, SURE_MIN_BYTES), SURE_MAX_BYTES);
    return MIN(MAX(size / FRESH_SHARE, CLOSE_BYTES), FRESH_MAX_BYTES);
}

/* How far the read is from where the stream would go on; UINT64_MAX: not its. */
static uint64_t miss(const struct plan *p, const struct plan_stream *s, uint64_t offset, uint64_t end)
{
    uint64_t forward = tolerance(s, p->size);
    uint64_t back = s->back >= BACK_SURE ? FRESH_MAX_BYTES : CLOSE_BYTES;
    if (offset >= s->low &&
        offset <= s->next) /* goes on, or is the rest of a read that was answered in part */
        return 0;
    if (offset >= s->start)
        return distance(offset, s->next) <= forward ? distance(offset, s->next) : UINT64_MAX;
    return distance(end, s->start) <= back ? distance(end, s->start) : UINT64_MAX;
}

static struct plan_stream *find(struct plan *p, uint64_t offset, uint64_t end)
{
    struct plan_stream *best = NULL;
    uint64_t least = UINT64_MAX;
    for (struct plan_stream *s = p->streams; s < p->streams + PLAN_STREAMS; s++) {
        uint64_t m = s->turn > 0 ? miss(p, s, offset, end) : UINT64_MAX;
        if (m < least || (m == least && best && s->turn > best->turn)) {
            best = s;
            least = m;
        }
    }
    return best;
}

/* ---- strides ---- */

static struct plan_stream *at_start(struct plan *p, const struct plan_stream *but, uint64_t start)
{
    for (struct plan_stream *s = p->streams; s < p->streams + PLAN_STREAMS; s++)
        if (s != but && s->turn > 0 && s->start == start)
            return s;
    return NULL;
}

/* The start `steps` steps before `from` is below 0 for some; no stream lies there. */
static struct plan_stream *before(struct plan *p, const struct plan_stream *but, uint64_t from, int64_t step)
{
    if (step > 0 ? from < (uint64_t)step : (uint64_t)-step > p->size - from)
        return NULL;
    return at_start(p, but, from - (uint64_t)step);
}

static uint64_t length_of(const struct plan_stream *s)
{
    return MAX(s->length, s->next - s->start);
}

/* s, just begun, may be the piece that another one's stride foretold. */
static bool inherit_stride(struct plan *p, struct plan_stream *s)
{
    for (struct plan_stream *y = p->streams; y < p->streams + PLAN_STREAMS; y++) {
        if (y == s || y->turn == 0 || y->step == 0 || y->start + (uint64_t)y->step != s->start)
            continue;
        s->step = y->step;
        s->run = (uint8_t)MIN(y->run + 1, UINT8_MAX);
        s->length = length_of(y);
        y->step = 0;
        y->run = 0;
        return true;
    }
    return false;
}

/* Or the third of three in a row, or the fourth of four with others between them. */
static void discover_stride(struct plan *p, struct plan_stream *s)
{
    for (struct plan_stream *y = p->streams; y < p->streams + PLAN_STREAMS; y++) {
        if (y == s || y->turn == 0 || y->start == s->start)
            continue;
        int64_t step = (int64_t)(s->start - y->start);
        struct plan_stream *z = before(p, s, y->start, step);
        if (!z)
            continue;
        bool in_a_row = y->born + 1 == s->born && z->born + 2 == s->born;
        if (!in_a_row && !before(p, s, z->start, step))
            continue;
        s->step = step;
        s->run = RUN_SURE;
        s->length = MAX(length_of(y), length_of(z));
        return;
    }
}

static struct plan_stream *begin(struct plan *p, uint64_t offset, uint64_t end)
{
    struct plan_stream *s = p->streams;
    for (struct plan_stream *x = p->streams; x < p->streams + PLAN_STREAMS; x++)
        if (x->turn < s->turn)
            s = x;
    *s = (struct plan_stream){
        .start = offset, .low = offset, .next = end, .last_n = end - offset, .born = ++p->born};
    if (!inherit_stride(p, s))
        discover_stride(p, s);
    return s;
}

/* ---- going on ---- */

static void grow(struct plan_stream *s, uint64_t share)
{
    s->window = MIN(s->window ? s->window * PLAN_WINDOW_GROWTH : PLAN_WINDOW_BYTES, share);
}

static void go_forward(struct plan_stream *s, uint64_t offset, uint64_t end, uint64_t share)
{
    bool is_further = end > s->next;
    if (!is_further && offset >= s->low) /* once more */
        return;
    bool goes_on = offset >= s->low && offset <= s->next;
    unsigned hits = end - offset < s->last_n / REST_SHARE ? 0 : goes_on ? SURE_HITS : 1;
    s->hits = (uint8_t)MIN(s->hits + hits, UINT8_MAX);
    s->last_n = end - offset;
    if (is_further) {
        s->back = 0;
        s->low = offset;
        s->next = end;
    }
    if (s->hits < SURE_HITS || (s->window > 0 && end < s->grow_at))
        return;
    grow(s, share);
    s->grow_at = plan_add_capped(end, s->window / 4);
}

static void go_back(struct plan_stream *s, uint64_t offset, uint64_t share)
{
    s->start = offset;
    s->back = (uint8_t)MIN(s->back + 1, UINT8_MAX);
    if (s->back < BACK_SURE)
        return;
    if (s->back == BACK_SURE)
        s->window = s->hits = 0;
    if (s->window > 0 && offset > s->grow_at)
        return;
    grow(s, share);
    s->grow_at = offset - MIN(s->window / 4, offset);
}

/* How many places share the window, this one included. */
static uint64_t count_active(const struct plan *p, const struct plan_stream *me)
{
    uint64_t n = 1;
    for (const struct plan_stream *s = p->streams; s < p->streams + PLAN_STREAMS; s++)
        if (s != me && s->turn > 0 && (s->window > 0 || s->step != 0) && p->turn - s->turn <= RECENT_TURNS)
            n++;
    return n;
}

void plan_stream_find(struct plan_turn *t)
{
    struct plan *p = t->p;
    t->s = find(p, t->q->offset, t->end);
    t->is_begun = !t->s;
    if (t->is_begun)
        t->s = begin(p, t->q->offset, t->end);
    uint64_t active = count_active(p, t->s);
    t->share = t->q->max_window / active;
    t->s->turn = p->turn;
    if (!t->is_begun && t->q->offset < t->s->start)
        go_back(t->s, t->q->offset, t->share);
    else if (!t->is_begun)
        go_forward(t->s, t->q->offset, t->end, t->share);
}

/* ---- wanting ---- */

static bool is_strided(const struct plan_stream *s)
{
    return s->run >= RUN_SURE && s->next - s->start <= s->length;
}

uint64_t plan_stream_reach(struct plan_turn *t, uint64_t reach)
{
    struct plan_stream *s = t->s;
    if (is_strided(s))
        return MAX(reach, plan_add_capped(s->start, s->length));
    uint64_t window = MIN(s->window, t->share);
    if (window == 0 || s->back >= BACK_SURE)
        return reach;
    plan_note(t->p, t->share < t->q->max_window ? PLAN_INTERLEAVED : PLAN_SEQUENTIAL);
    /* Whole parts: a window that slid by every read would ask for a sliver at its end each time. */
    uint64_t target = plan_add_capped(t->end, window);
    uint64_t up = target < UINT64_MAX - PLAN_PART_BYTES ? ALIGN_UP(target, PLAN_PART_BYTES) : target;
    if (up - t->end <= t->share)
        target = up;
    else if (ALIGN_DOWN(target, PLAN_PART_BYTES) > t->end)
        target = ALIGN_DOWN(target, PLAN_PART_BYTES);
    return MAX(reach, target);
}

/* The next pieces of a stride. Asked for where a piece begins; what is under way already costs nothing. */
static void want_steps(struct plan_turn *t)
{
    struct plan_stream *s = t->s;
    plan_note(t->p, PLAN_STRIDED);
    uint64_t length = MAX(s->length, t->end - t->q->offset), used = 0;
    unsigned steps = MIN(1u << MIN(s->run, (uint8_t)4), (unsigned)PLAN_STEPS);
    uint64_t at = s->start;
    for (unsigned i = 0; i < steps; i++) {
        bool is_inside = s->step > 0 ? (uint64_t)s->step < t->p->size - at : at >= (uint64_t)-s->step;
        used += length + STORE_BLOCK_BYTES;
        if (!is_inside || used > t->share)
            return;
        at += (uint64_t)s->step;
        plan_want(t, at, plan_add_capped(at, length));
    }
}

/* Parts before a backward reader, the nearest first. */
static void want_before(struct plan_turn *t)
{
    uint64_t at = t->s->start, low = at - MIN(MIN(t->s->window, t->share), at);
    plan_note(t->p, PLAN_BACKWARD);
    while (at > low && t->ret->n < PLAN_RANGES) {
        uint64_t from = MAX(ALIGN_DOWN(at - 1, PLAN_PART_BYTES), low);
        plan_want(t, from, at);
        at = from;
    }
}

void plan_stream_want(struct plan_turn *t)
{
    if (t->is_begun && t->s->run >= RUN_SURE)
        want_steps(t);
    if (t->s->back >= BACK_SURE)
        want_before(t);
}
