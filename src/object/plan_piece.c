/*
 * What the layout of a file says about a read: pieces are read as one.
 *
 * A page that is touched in a mapping comes as a read with that page in its middle (the kernel reads around
 * it), so the piece that is meant by a read elsewhere than before is the one that holds its middle.
 *
 * | format      | a touch fetches                                                                         |
 * | ----------- | --------------------------------------------------------------------------------------- |
 * | safetensors | the tensor; once two were touched the whole file, in windows that grow as they do for a |
 * |             | sequential reader: models are read whole, in whatever order                             |
 * | zip         | the member, when its beginning is read: what is unpacked is read to its end, what lies  |
 * |             | there as it is may be read anywhere                                                     |
 * | parquet     | the chunk, when its beginning is read; when the same column was read in the row group   |
 * |             | before, its next chunks too                                                             |
 *
 * A window ends with the piece it is in, until the reader has gone on into the next one, and further than the
 * buffer of a program reaches: who reads one member of an archive is not given its neighbours.
 */
#include "object/plan_internal.h"

#include "store/store.h"

#define BUFFER_BYTES   (2 * MIB)               /* what a program's buffer reads beyond what it needs */
#define JOINED_BYTES   (2 * STORE_BLOCK_BYTES) /* small members that layout.c joined are together shorter */
#define COLUMNS_AHEAD  4
#define TENSORS_ENOUGH 2
#define GROWTH_STEPS   3 /* after so many more tensors the window is as large as it may be */

static int64_t piece_of_read(const struct plan_turn *t)
{
    uint64_t offset = t->q->offset;
    uint64_t meant = t->is_begun ? offset + (t->end - offset) / 2 : offset;
    return t->p->layout ? layout_find(t->p->layout, meant) : -1;
}

/* Whether the reader is still in the piece that it began with, or hardly beyond it. */
static bool is_in_first_piece(const struct plan_turn *t, int64_t i)
{
    const struct layout *l = t->p->layout;
    int64_t first = layout_find(l, t->s->start);
    return first == i || (first + 1 == i && first >= 0 && t->q->offset < l->starts[i] + BUFFER_BYTES);
}

static bool is_touched(const struct plan *p, uint32_t i)
{
    return p->touched[i / 64] >> (i % 64) & 1;
}

static void touch(struct plan *p, uint32_t i)
{
    if (!is_touched(p, i))
        p->n_touched++;
    p->touched[i / 64] |= 1ull << (i % 64);
}

/* Whether what is wanted of the whole file, from what is missing first, goes well beyond this reader, so that
 * it needs no window of its own. Who reads far behind that place would be left without any. */
static bool is_file_ahead(const struct plan_turn *t)
{
    uint64_t window = MIN(t->p->whole_window, t->q->max_window);
    return window > 0 && t->end <= plan_add_capped(t->q->missing_at, window / 2);
}

uint64_t plan_piece_reach(struct plan_turn *t, uint64_t reach)
{
    int64_t i = piece_of_read(t);
    if (i < 0)
        return reach;
    const struct layout *l = t->p->layout;
    uint64_t end = layout_piece_end(l, (uint32_t)i);
    bool is_joined = l->kind == LAYOUT_ZIP && end - l->starts[i] < JOINED_BYTES;
    bool is_beginning =
        t->is_begun && !is_joined && t->q->offset < plan_add_capped(l->starts[i], STORE_BLOCK_BYTES);
    if (is_in_first_piece(t, i) || is_file_ahead(t))
        reach = MIN(reach, MAX(layout_find(l, t->s->start) == i ? end : 0, t->end));
    if (l->kind == LAYOUT_SAFETENSORS || is_beginning)
        reach = MAX(reach, MIN(end, plan_add_capped(t->end, t->share)));
    return reach;
}

static void want_file(struct plan_turn *t)
{
    struct plan *p = t->p;
    if (p->n_touched < TENSORS_ENOUGH)
        return;
    uint64_t window = PLAN_WINDOW_BYTES;
    for (uint32_t i = TENSORS_ENOUGH; i < MIN(p->n_touched, (uint32_t)(TENSORS_ENOUGH + GROWTH_STEPS)); i++)
        window *= PLAN_WINDOW_GROWTH;
    p->whole_window = MAX(p->whole_window, MIN(window, t->q->max_window));
}

static void want_column(struct plan_turn *t, uint32_t i)
{
    const struct layout *l = t->p->layout;
    bool goes_on = !is_in_first_piece(t, i); /* whoever reads everything needs no columns */
    if (l->group == 0 || i < l->group || !is_touched(t->p, i - l->group) || goes_on)
        return;
    plan_note(t->p, PLAN_COLUMNS);
    for (uint32_t k = 1; k <= COLUMNS_AHEAD && (uint64_t)i + k * l->group < l->n; k++)
        plan_want(t, l->starts[i + k * l->group], layout_piece_end(l, i + k * l->group));
}

void plan_piece_want(struct plan_turn *t)
{
    int64_t i = piece_of_read(t);
    if (i < 0)
        return;
    struct plan *p = t->p;
    const struct layout *l = p->layout;
    touch(p, (uint32_t)i);
    if (l->kind == LAYOUT_SAFETENSORS) {
        plan_note(p, PLAN_TENSORS);
        if (t->is_begun)
            plan_want(t, l->starts[i], t->q->offset);
        want_file(t);
    } else if (l->kind == LAYOUT_ZIP) {
        plan_note(p, PLAN_MEMBERS);
    } else {
        want_column(t, (uint32_t)i);
    }
}
