/* What the files of the planner share: the plan of one open file. */
#pragma once

#include "object/plan.h"

/* One place of the file that is read from. */
struct plan_stream {
    uint64_t start, next;     /* [start, next) was read, perhaps with gaps */
    uint64_t last_n;          /* bytes of its last read */
    uint64_t low;             /* where the last read that went on began */
    uint64_t window, grow_at; /* bytes ahead, 0: none so far; it grows when a read gets here */
    uint64_t turn;            /* of its last read; 0: free */
    uint64_t born;            /* how many were begun before it */
    int64_t step;             /* from the start of a piece to that of the next one; 0: no stride */
    uint64_t length;          /* of a piece of the stride */
    uint8_t hits, back, run;  /* how sure it is: of going on, of going back, of the stride */
};

struct plan {
    uint64_t size;
    uint64_t turn, born;
    struct plan_stream streams[PLAN_STREAMS];
    struct layout_look look;
    bool look_asked;
    struct layout *layout;
    uint64_t *touched; /* a bit per piece */
    uint32_t n_touched;
    uint64_t whole_window; /* > 0: everything is wanted, so much at a time */
    unsigned patterns;
};

/* One plan_read. */
struct plan_turn {
    struct plan *p;
    const struct plan_ask *q;
    struct plan_wants *ret;
    uint64_t end;          /* of the read */
    uint64_t share;        /* of the window, for one of the streams */
    struct plan_stream *s; /* the one that the read belongs to */
    bool is_begun;         /* by this read */
};

uint64_t plan_add_capped(uint64_t a, uint64_t b);
/* A range ahead, cut to the file; nothing when it is empty or there are too many. */
void plan_want(struct plan_turn *t, uint64_t offset, uint64_t end);
void plan_note(struct plan *p, enum plan_pattern pattern);

/* plan_stream.c: finds or begins t->s, sets t->share. */
void plan_stream_find(struct plan_turn *t);
/* What the stream's window reaches to; at least `reach`. */
uint64_t plan_stream_reach(struct plan_turn *t, uint64_t reach);
/* Ranges elsewhere: of strides, and before backward readers. */
void plan_stream_want(struct plan_turn *t);

/* plan_piece.c: what the layout says. Gives what `reach` becomes. */
uint64_t plan_piece_reach(struct plan_turn *t, uint64_t reach);
void plan_piece_want(struct plan_turn *t);
