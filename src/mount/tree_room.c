/*
 * Files of a bucket with a quota: the node is asked for room, in pieces, before bytes are written.
 *
 * What a change may need is known before it, at most the blocks that it touches and that are not there; what
 * it has used is what the file has more on disk after it. The node is told that with the next question, and
 * measures the file itself. Where everything that is touched is on disk already (overwriting, or after
 * fallocate) no room is needed.
 *
 * Who has not written for a second is told of by a thread of its own, which gives the room back: files that
 * are only open hold nothing back.
 *
 * Invariants:
 *  1. One change of a file's bytes at a time, so that each finds the room that it was promised.
 *  2. room_bytes is at most what the node has reserved for the file. It ends with the node's handle, of which
 * the session tells, the end of the pipe (tree_watch.c), or who replaces the handle (is_room_lost); what was
 * left of it is told as given back, lest it stay reserved.
 *
 * Failure modes: a file that the node has forgotten (removed while the node was restarted) is in nobody's
 * quota any more, and may be written. While the node is away nothing that was granted is used, as others may
 * get it when it is back: what needs room waits as all operations do.
 */
#include "mount/tree.h"

#include "base/chore.h"
#include "base/lack.h"
#include "base/log.h"
#include "base/look.h"
#include "base/sys.h"
#include "mount/queue.h"

#define IDLE_MS 1000
#define LOOK_NS 500000000ull /* for files that are idle */

/* ---- asking ---- */

static int call_node(struct mount *m, struct tree_file *f, uint64_t least, uint64_t want, struct err *e)
{
    struct wire_tree_room_req req = {
        .bucket = slice_str(m->bucket), .ino = f->ino, .back = f->spent_bytes, .least = least, .want = want};
    struct wire_tree_room_rep rep;
    uint64_t epoch = 0;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    lock_assert_held(&f->room_lock);
    queue_may_wait();
    int r = client_call_at(m->client, &epoch, WIRE_OP_TREE_ROOM, &req, &b, &rep, e);
    if (r == 0 || r == -EDQUOT)
        f->spent_bytes = 0;
    if (r < 0)
        return r;
    f->room_epoch = epoch;
    f->room_bytes += MIN(rep.granted, (uint64_t)INT64_MAX - MIN(f->room_bytes, (uint64_t)INT64_MAX));
    return 0;
}

static void look_for_loss(struct mount *m, struct tree_file *f)
{
    lock_assert_held(&f->room_lock);
    uint64_t lost = atomic_load(&m->tree->rooms_lost);
    bool is_lost = atomic_exchange(&f->is_room_lost, false) || f->rooms_lost != lost ||
                   f->room_epoch != client_epoch(m->client);
    f->rooms_lost = lost;
    if (!is_lost)
        return;
    f->spent_bytes += f->room_bytes;
    f->room_bytes = 0;
}

static int ask_for(struct mount *m, struct tree_file *f, uint64_t least, uint64_t need, struct err *e)
{
    uint64_t has = f->room_bytes;
    return call_node(m, f, least > has ? least - has : 0, need - has, e);
}

/* Room for `need` bytes, or for `least` when there is no more. */
static int ask(struct mount *m, struct tree_file *f, uint64_t least, uint64_t need, struct err *e)
{
    int r = ask_for(m, f, least, need, e);
    if (r == -ESTALE) {
        r = tree_file_ask_again(m, f, e); /* the session is a new one */
        look_for_loss(m, f);
        r = r < 0 ? r : ask_for(m, f, least, need, e);
    }
    /* What programs have closed holds nothing back, and what they have removed besides is gone. */
    if (r == -EDQUOT && tree_closer_drain(m->tree->closer))
        r = ask_for(m, f, least, need, e);
    return r;
}

/* ---- one change ---- */

static void note_use(struct tree_file *f)
{
    lock_assert_held(&f->room_lock);
    bool has = f->room_bytes > 0 || f->spent_bytes > 0;
    atomic_store(&f->room_used_ms, has ? MAX(sys_mono_ms(), (uint64_t)1) : 0);
}

static int take(struct mount *m, struct tree_file *f, int fd, uint64_t offset, uint64_t n, size_t *n_short,
                struct tree_room *ret, struct err *e)
{
    struct stat st;
    uint64_t from = 0;
    int r = sys->fstat(fd, &st);
    if (r < 0)
        return err_errno(e, r, "state of the data file");
    look_for_loss(m, f);
    ret->before_bytes = (uint64_t)st.st_blocks * 512;
    uint64_t block = lack_block(&st);
    if (offset == TREE_ROOM_AT_END)
        offset = (uint64_t)st.st_size;
    uint64_t all = n > 0 ? lack_blocks(block, offset, n, &from) : 0;
    if (all <= f->room_bytes)
        return 0;
    struct lack first = {.reach = from}, then = {.reach = from};
    lack_look(fd, from, from + all, block, &first);
    if (first.missing <= f->room_bytes)
        return 0;
    r = ask(m, f, n_short ? block : first.missing, first.missing, e);
    if (r == -ENOENT || (r == 0 && first.missing <= f->room_bytes))
        return 0;
    if (r < 0 && (r != -EDQUOT || !n_short))
        return r;
    then.room = f->room_bytes / block * block;
    lack_look(fd, from, from + all, block, &then);
    if (!n_short || then.reach <= offset)
        return r < 0 ? r : err_set(e, -EDQUOT, "the node granted less room than was asked for");
    *n_short = (size_t)MIN(n, then.reach - offset);
    return 0;
}

int tree_room_begin(struct mount *m, struct tree_file *f, int fd, uint64_t offset, uint64_t n,
                    size_t *n_short, struct tree_room *ret, struct err *e)
{
    *ret = (struct tree_room){0};
    if (!atomic_load(&f->is_limited))
        return 0;
    queue_lock(&f->room_lock);
    int r = take(m, f, fd, offset, n, n_short, ret, e);
    if (r < 0) {
        note_use(f);
        lock_drop(&f->room_lock);
        return r;
    }
    ret->file = f;
    ret->fd = fd;
    return 0;
}

void tree_room_end(struct mount *m, struct tree_room *t)
{
    struct tree_file *f = t->file;
    struct stat st;
    struct err e = {0};
    if (!f)
        return;
    uint64_t after = sys->fstat(t->fd, &st) < 0 ? t->before_bytes : (uint64_t)st.st_blocks * 512;
    uint64_t used = after > t->before_bytes ? MIN(after - t->before_bytes, f->room_bytes) : 0;
    f->room_bytes -= used;
    f->spent_bytes += used;
    if (after < t->before_bytes) { /* a hole was punched: others may have the room at once */
        int r = call_node(m, f, /* least= */ 0, /* want= */ 0, &e);
        if (r < 0)
            log_debug("mount", "inode %llu: %s", (unsigned long long)f->ino, e.text);
    }
    t->file = NULL;
    note_use(f);
    lock_drop(&f->room_lock);
}

/* ---- giving back ---- */

struct tree_room_giver {
    struct mount *m;
    struct chore chore;
};

static bool is_idle(const struct tree_file *f, uint64_t before_ms)
{
    uint64_t used_ms = atomic_load(&f->room_used_ms);
    return used_ms > 0 && used_ms <= before_ms;
}

/* An idle file from a place of the table on, referenced, or NULL. */
static struct tree_file *next_idle(struct mount *m, size_t *at, uint64_t before_ms)
{
    LOCK_SCOPE(&m->tree->lock);
    for (; *at < TREE_PLACES; ++*at)
        for (struct tree_file *f = m->tree->files[*at]; f; f = f->next)
            if (is_idle(f, before_ms)) {
                f->refs++;
                return f;
            }
    return NULL;
}

static void give_back(struct mount *m, struct tree_file *f, uint64_t before_ms)
{
    struct err e = {0};
    int r = 0;
    lock_take(&f->room_lock);
    if (is_idle(f, before_ms)) {
        look_for_loss(m, f);
        f->spent_bytes += f->room_bytes;
        f->room_bytes = 0;
        if (f->spent_bytes > 0)
            r = call_node(m, f, /* least= */ 0, /* want= */ 0, &e);
        if (r == 0 || r == -ESTALE || r == -ENOENT) /* else it is tried again */
            atomic_store(&f->room_used_ms, 0);
        else
            note_use(f);
    }
    lock_drop(&f->room_lock);
    if (r < 0)
        log_debug("mount", "inode %llu: %s", (unsigned long long)f->ino, e.text);
}

static uint64_t look_for_idle(void *arg)
{
    struct tree_room_giver *g = arg;
    uint64_t now_ms = sys_mono_ms(), before_ms = now_ms > IDLE_MS ? now_ms - IDLE_MS : 0;
    struct tree_file *f;
    look_never();
    for (size_t at = 0; (f = next_idle(g->m, &at, before_ms));) {
        give_back(g->m, f, before_ms);
        tree_file_unref(g->m, f);
    }
    return LOOK_NS;
}

struct tree_room_giver *tree_room_giver_start(struct mount *m)
{
    struct tree_room_giver *g = calloc(1, sizeof(*g));
    if (!g)
        abort();
    g->m = m;
    if (chore_start(&g->chore, LOOK_NS, look_for_idle, g) < 0)
        abort();
    return g;
}

void tree_room_giver_end(struct tree_room_giver *g)
{
    if (!g)
        return;
    chore_stop(&g->chore);
    free(g);
}
