/*
 * What mounts had open that are gone without closing it, and what was open when the node started, of removed
 * files, of those that lost their names soon after that, and of all that a mount has without a descriptor: a
 * mount opens what it has open one after the other, while programs go on (contract in scratch_node.h).
 *
 * A process that takes a mount over opens its files again, one after the other: a removed one lives until
 * then by the handle of the session before. Such handles end LINGER_MS after the last of them whose file
 * their mount opened again: however many there are, none ends while the mount is still at it. Each counts
 * once, so that a mount that goes on opening files keeps them no longer.
 *
 * Invariants:
 *  1. The list is linked both ways, and is in the order of linger_until_ms but for those of mounts that come
 * back: they move to its end when their time would be over, so that only its first is looked at.
 *  2. Nothing is searched for under node->lock that grows with what lingers, but for a bucket that is
 * removed.
 */
#include "object/scratch_node.h"

#include "base/sys.h"

#define LOOK_ARENA     (64 * KIB)
#define LINGER_MS      10000
#define COMING_BACK_MS 120000 /* after a start: in which mounts open here again what they have open */

/* A session that is gone, as long as one of its handles is there. node->lock. */
struct slost {
    struct slost *next;
    struct id128 mount;
    uint64_t number;  /* of the session */
    uint64_t back_ms; /* when its mount last opened one of its files again; 0: never */
    uint32_t n_trees;
};

/* ---- the list ---- */

static void push_locked(struct snode *n, struct stree *t, uint64_t until_ms)
{
    lock_assert_held(&n->lock);
    assert(!t->lingers && !t->linger_next && !t->linger_prev);
    t->lingers = true;
    t->linger_until_ms = until_ms;
    t->linger_prev = n->lingering_last;
    *(n->lingering_last ? &n->lingering_last->linger_next : &n->lingering) = t;
    n->lingering_last = t;
}

static void take_locked(struct snode *n, struct stree *t)
{
    lock_assert_held(&n->lock);
    assert(t->lingers);
    *(t->linger_prev ? &t->linger_prev->linger_next : &n->lingering) = t->linger_next;
    *(t->linger_next ? &t->linger_next->linger_prev : &n->lingering_last) = t->linger_prev;
    t->linger_next = t->linger_prev = NULL;
    t->lingers = false;
}

/* To its front: it is the next to end. */
static void hurry_locked(struct snode *n, struct stree *t)
{
    if (!t->lingers)
        return;
    take_locked(n, t);
    t->lingers = true;
    t->linger_until_ms = 0;
    t->linger_next = n->lingering;
    *(n->lingering ? &n->lingering->linger_prev : &n->lingering_last) = t;
    n->lingering = t;
}

/* ---- sessions ---- */

static struct slost *lost_locked(struct snode *n, const struct stree *t)
{
    struct slost *x = n->lost;
    while (x && x->number != t->session->number)
        x = x->next;
    if (!x) {
        x = calloc(1, sizeof(*x));
        assert(x);
        *x = (struct slost){.next = n->lost, .mount = t->mount, .number = t->session->number};
        n->lost = x;
    }
    x->n_trees++;
    return x;
}

void linger_dropped_locked(struct snode *n, struct stree *t)
{
    lock_assert_held(&n->lock);
    if (t->file->orphan == t)
        t->file->orphan = NULL;
    struct slost *x = TAKE_PTR(t->lost);
    if (!x || --x->n_trees > 0)
        return;
    struct slost **at = &n->lost;
    while (*at != x)
        at = &(*at)->next;
    *at = x->next;
    free(x);
}

void linger_opened_locked(struct snode *n, struct sfile *f, struct id128 mount)
{
    lock_assert_held(&n->lock);
    if (f->orphan)
        hurry_locked(n, f->orphan);
    for (struct stree *t = f->trees; t && !id_is_zero(mount); t = t->file_next) {
        if (t->is_awaited && id_eq(t->mount, mount)) {
            t->is_back = true;
            hurry_locked(n, t);
        }
        if (!t->lost || t->is_back || !id_eq(t->mount, mount))
            continue;
        t->is_back = true;
        t->lost->back_ms = sys_mono_ms();
    }
}

void stree_linger(struct stree *t)
{
    struct snode *n = t->node;
    stree_wait_unused(t);
    bucket_unref(TAKE_PTR(t->bucket));
    if (t->writes) {
        sfile_enter(n, t->file);
        sroom_end(n, t); /* who wrote is gone */
        sfile_leave(n, t->file);
    }
    LOCK_SCOPE(&n->lock);
    if (t->session && !id_is_zero(t->mount))
        t->lost = lost_locked(n, t);
    t->session = NULL;
    push_locked(n, t, sys_mono_ms() + LINGER_MS);
    cond_signal(&n->work);
}

/* ---- their end ---- */

/* Those of the bucket, or (0) whose time is over. */
static struct stree *take_next(struct snode *n, uint64_t bucket, uint64_t now_ms)
{
    LOCK_SCOPE(&n->lock);
    struct stree *t = n->lingering;
    while (bucket != 0 && t && t->file->bucket != bucket)
        t = t->linger_next;
    for (; bucket == 0 && t; t = n->lingering) {
        if (t->linger_until_ms > now_ms)
            return NULL;
        if (!t->lost || t->lost->back_ms == 0 || t->lost->back_ms + LINGER_MS <= now_ms)
            break;
        take_locked(n, t);
        push_locked(n, t, t->lost->back_ms + LINGER_MS);
    }
    if (t)
        take_locked(n, t);
    return t;
}

/* Nobody has opened it here since the start, and somebody has its file open. */
static bool is_still_open(struct snode *n, struct stree *t)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(LOOK_ARENA);
    _cleanup_(hard_unrefp) struct hard *h = NULL;
    struct scratch_inode x;
    lock_take(&n->lock);
    bool alone = t->file->handles == 1;
    lock_drop(&n->lock);
    return alone && scratch_getattr(n->names, t->file->bucket, t->file->ino, a, &x, NULL) == 0 &&
           x.links == 0 && x.location.n > 0 && hard_find(n->store, x.location, &h, NULL) == 0 &&
           hard_is_open(h);
}

/* Its mount has not come back since the start, and may yet. */
static bool is_still_awaited(struct snode *n, const struct stree *t, uint64_t now_ms)
{
    LOCK_SCOPE(&n->lock);
    return t->is_awaited && !t->is_back && now_ms < n->started_ms + COMING_BACK_MS;
}

void stree_end_lingering(struct snode *n, uint64_t bucket, uint64_t now_ms)
{
    struct stree *t;
    while ((t = take_next(n, bucket, now_ms))) {
        bool may_stay = bucket == 0 && now_ms != UINT64_MAX;
        if (may_stay && (is_still_awaited(n, t, now_ms) || (t->is_orphan && is_still_open(n, t))))
            stree_linger(t);
        else
            stree_free(t);
    }
}

int stree_keep_orphan(struct snode *n, const struct scratch_orphan *o, struct err *e)
{
    int r = scratch_hold_orphan(n->names, o->bucket, o->ino, e);
    if (r < 0)
        return r;
    struct stree *t = stree_new(n, sfile_get(n, o->bucket, o->ino), /* writes= */ false);
    t->is_orphan = true;
    lock_take(&n->lock);
    assert(!t->file->orphan);
    t->file->orphan = t;
    t->file->handles++;
    lock_drop(&n->lock);
    stree_linger(t);
    return 0;
}

void stree_await(struct snode *n, const struct scratch_opened *x)
{
    struct stree *t = stree_new(n, sfile_get(n, x->bucket, x->ino), /* writes= */ false);
    t->is_awaited = true;
    t->mount = x->mount;
    t->may_read = x->how & SCRATCH_OPENED_READS;
    t->noted = x->how;
    lock_take(&n->lock);
    t->file_next = t->file->trees;
    t->file->trees = t;
    t->file->handles++;
    lock_drop(&n->lock);
    stree_linger(t);
}

/* No mount has had its extent open since before this run. What has it open now is the settler, or a handle
 * that has just ended: whose room is to be had at once. */
static bool is_of_this_run(struct snode *n, const struct scratch_orphan *o)
{
    struct sfile *f = sfile_peek(n, o->bucket, o->ino);
    if (!f)
        return false;
    lock_take(&n->lock);
    bool is_fresh = f->fresh;
    lock_drop(&n->lock);
    sfile_put(n, f);
    return is_fresh;
}

static bool is_open_somewhere(struct snode *n, const struct scratch_orphan *o)
{
    _cleanup_(hard_unrefp) struct hard *h = NULL;
    return o->location_bytes > 0 &&
           hard_find(n->store, slice_of(o->location, o->location_bytes), &h, NULL) == 0 && hard_is_open(h);
}

void snode_free_unnamed(struct snode *n, const struct scratch_orphans *o)
{
    bool may_come = sys_mono_ms() - n->started_ms < COMING_BACK_MS;
    for (size_t i = 0; i < o->n; i++) {
        struct scratch_orphans one = {.n = 1, .v = {o->v[i]}};
        if (!may_come || is_of_this_run(n, &o->v[i]) || !is_open_somewhere(n, &o->v[i]) ||
            stree_keep_orphan(n, &o->v[i], NULL) < 0)
            snode_free_orphans(n, &one);
    }
}
