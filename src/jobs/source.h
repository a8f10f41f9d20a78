/* What a job walks over: keys in byte order, a page at a time, behind a cursor. One thread's. */
#pragma once

#include "jobs/kind.h"
#include "kv/kv.h"

struct source;

struct source_open {
    struct object_session *session;
    struct slice bucket, prefix; /* borrowed */
    enum kind_over over;
    struct kv *kv; /* not NULL: objects that the control store names for job `id` instead */
    uint64_t id;
    uint32_t flags; /* of LIST and STAT, of enum wire_flag */
    bool errors;    /* those that failed, else those that were listed */
    bool stat;      /* ask for their sizes and dates; where there are none, because it is gone or for another
                       reason of its own, it is_unknown */
};

/* after: the cursor. */
struct source *source_new(const struct source_open *o, struct slice after);
void source_free(struct source *s);
DEFINE_CLEANUP(struct source, source_free)
/* 1 and the next object (its key lives until the next call), 0 at the end, or an error. Without
 * `stat` sizes of objects from the control store are not known (0). Directory markers of a cache or listing
 * are objects like others. */
int source_next(struct source *s, struct kind_object *ret, struct err *e);
struct pages;
/* Before the first object: what is listed goes there, too. */
void source_share(struct source *s, struct pages *to);
/* Before the first object, of a walk from the beginning: what is there is taken, and not listed. Where that
 * ends early, because the listing was stopped or failed, so does the walk: who listed knows. */
void source_follow(struct source *s, struct pages *from);
/* Whether the next one need not wait for who lists; waits for that so long. */
bool source_wait(struct source *s, uint64_t timeout_ns);
