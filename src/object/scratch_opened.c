/*
 * What mounts of users have open, written down (namespace/scratch_opened.c): to them the node gives no
 * descriptor by which the next start would find that a file is in use, and what their rights to it were.
 *
 * A start keeps what it finds until its mount has opened it again, or for COMING_BACK_MS (scratch_linger.c).
 *
 * Invariant: who is busy with a file writes down of each mount all that its handles may together.
 *
 * Failure modes: what cannot be written down is logged; it is then as if it had been closed before a restart.
 */
#include "object/scratch_node.h"

#include "base/log.h"

static uint32_t how_locked(const struct snode *n, const struct sfile *f, struct id128 mount)
{
    uint32_t how = 0;
    lock_assert_held(&n->lock);
    for (const struct stree *t = f->trees; t; t = t->file_next)
        how |= id_eq(t->mount, mount) ? t->noted : 0;
    return how;
}

/* Busy. */
static void set_noted(struct snode *n, struct stree *t, uint32_t noted)
{
    struct scratch_opened x = {.bucket = t->file->bucket, .ino = t->file->ino, .mount = t->mount};
    struct err e = {0};
    lock_take(&n->lock);
    uint32_t before = how_locked(n, t->file, t->mount);
    t->noted = noted;
    x.how = how_locked(n, t->file, t->mount);
    lock_drop(&n->lock);
    if (x.how != before && scratch_opened_put(n->names, &x, &e) < 0)
        log_warn("object", "inode %llu is open: %s", (unsigned long long)x.ino, e.text);
}

void stree_note_opened(struct stree *t)
{
    if (id_is_zero(t->mount))
        return;
    sfile_enter(t->node, t->file);
    set_noted(t->node, t, (t->writes ? SCRATCH_OPENED_WRITES : 0) | (t->may_read ? SCRATCH_OPENED_READS : 0));
    sfile_leave(t->node, t->file);
}

void stree_forget_opened(struct stree *t)
{
    struct snode *n = t->node;
    lock_take(&n->lock);
    bool is_end = n->stopping; /* what is open then its mount opens again */
    lock_drop(&n->lock);
    if (t->noted != 0 && !is_end)
        set_noted(n, t, 0);
}

static int on_opened(void *arg, const struct scratch_opened *x)
{
    struct snode *n = arg;
    struct err e = {0};
    int r = scratch_hold_orphan(n->names, x->bucket, x->ino, &e);
    if (r == 0) {
        stree_await(n, x);
        return 0;
    }
    const struct scratch_opened gone = {.bucket = x->bucket, .ino = x->ino, .mount = x->mount};
    if (r != -ENOENT || (r = scratch_opened_put(n->names, &gone, &e)) < 0)
        log_warn("object", "inode %llu was open: %s", (unsigned long long)x->ino, e.text);
    return 0;
}

int stree_await_opened(struct snode *n, struct err *e)
{
    return scratch_opened_each(n->names, on_opened, n, e);
}

bool stree_is_awaited(struct snode *n, uint64_t bucket, uint64_t ino)
{
    struct sfile *f = sfile_peek(n, bucket, ino);
    bool is = false;
    if (!f)
        return false;
    lock_take(&n->lock);
    for (const struct stree *t = f->trees; t; t = t->file_next)
        is |= t->is_awaited;
    lock_drop(&n->lock);
    sfile_put(n, f);
    return is;
}
