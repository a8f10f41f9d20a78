/*
 * Quotas of scratch buckets: who is about to write gets room first (contracts in scratch_node.h and
 * net/wire_ops.h; the arithmetic is in ledger.h).
 *
 * What a file of a mount has on disk is counted when its inode says so (snode_record); between those times
 * the mount's claim stands for what it writes. When the mount says what it has used, the file is measured
 * first and the claim made smaller after that.
 *
 * Failure modes: a file that cannot be measured keeps its claim, until its handle is closed; then its bytes
 * are counted when it is settled. After a restart of the node the claims are gone, and what mounts had been
 * granted with them (mount/tree_room.c): only what was being written at that moment may come on top.
 */
#include "object/scratch_object_ops.h"
#include "object/scratch_tree.h"

#include "base/log.h"
#include "base/sys.h"
#include "base/text.h"

#define ROOM_ARENA (64 * KIB)
#define TRY_NS     20000000 /* from one try to the next */
#define TRIES      10
#define TRIES_LONG 150
#define FRESH_NS   5000000000

uint64_t sroom_quota(struct object_service *s, const struct bucket *b)
{
    _cleanup_(bucket_unrefp) struct bucket *now = bucket_find_id(s->buckets, b->id);
    return (now ? now : b)->p.quota;
}

bool sroom_is_limited(struct object_service *s, uint64_t bucket)
{
    _cleanup_(bucket_unrefp) struct bucket *b = bucket_find_id(s->buckets, bucket);
    return b && b->p.quota > 0;
}

/* ---- taking ---- */

static int settled(void *arg, uint64_t bucket, int64_t *ret, struct err *e)
{
    struct snode *n = arg;
    struct scratch_counts counts;
    int r = scratch_statfs(n->names, bucket, &counts, e);
    if (r == 0)
        *ret = counts.bytes;
    return r;
}

static int no_room(const struct bucket *b, uint64_t quota, uint64_t least, struct err *e)
{
    char has[TEXT_SIZE_MAX], needs[TEXT_SIZE_MAX];
    return err_set(e, -EDQUOT,
                   "its quota of %s has no room for %s more: remove some of its files, or raise it: forebay "
                   "bucket set %s quota=SIZE",
                   text_size_exact(quota, has), text_size(least, needs), b->name);
}

/*
 * A moment passes, and more room may come after the next try: false means that the next is the last one, made
 * all the same, as room may have come just before this look. What was removed or closed is no reason to
 * refuse, but a mount tells of a close after the program's call has returned, and until then a removed file
 * stays and room is held back. So while there is an orphan, for a fifth of a second. For three seconds where
 * it was removed just now, as the word of its close is late where mount and node have much to do; and while
 * room is held back: that of files that are open and not written mounts give back after a second or two.
 */
static bool room_may_come(struct snode *n, uint64_t bucket, uint64_t own_bytes, unsigned n_tries)
{
    bool orphaned = false;
    snode_wait_freed(n);
    if (n_tries == 0)
        return true;
    bool held = ledger_reserved(n->ledger, bucket) > own_bytes;
    if (!held && (scratch_orphaned(n->names, bucket, &orphaned, NULL) < 0 || !orphaned))
        return false;
    uint64_t now_ns = sys->mono_ns();
    bool is_fresh = scratch_orphaned_since(n->names, bucket, now_ns - MIN(now_ns, FRESH_NS));
    if (n_tries >= (held || is_fresh ? TRIES_LONG : TRIES))
        return false;
    sys->sleep_ns(TRY_NS);
    return true;
}

int sroom_take(struct snode *n, const struct bucket *b, struct ledger_claim *c, uint64_t bytes,
               uint64_t ahead, struct err *e)
{
    uint64_t granted;
    struct ledger_ask ask = {.bucket = b->id,
                             .quota = sroom_quota(n->service, b),
                             .least = bytes,
                             .want = bytes,
                             .ahead = ahead,
                             .settled = settled,
                             .arg = n};
    int r = ledger_take(n->ledger, c, &ask, &granted, e);
    bool again = true;
    for (unsigned i = 0; r == -EDQUOT && again; i++) {
        again = room_may_come(n, b->id, c->bytes, i);
        r = ledger_take(n->ledger, c, &ask, &granted, e);
    }
    return r == -EDQUOT ? no_room(b, ask.quota, bytes, e) : r;
}

void sroom_note(struct snode *n, uint64_t bucket, struct ledger_claim *c, uint64_t bytes)
{
    const struct ledger_ask ask = {.bucket = bucket, .quota = 0, .least = bytes, .want = bytes};
    uint64_t granted;
    (void)ledger_take(n->ledger, c, &ask, &granted, NULL); /* fails only beyond all numbers */
}

/* ---- files of mounts ---- */

/* Busy. What the file has on disk is what its inode says. */
static int record(struct snode *n, struct sfile *f, struct arena *a, struct err *e)
{
    struct scratch_call call = {.bucket = f->bucket};
    struct stat st;
    if (!f->hard)
        return -ESTALE;
    int r = hard_stat(f->hard, &st);
    return r < 0 ? err_errno(e, r, "state of the file")
                 : snode_record(n, &call, f->ino, &st, a, /* ret= */ NULL, e);
}

void sroom_end(struct snode *n, struct stree *t)
{
    _cleanup_(arena_freep) struct arena *a = arena_new(ROOM_ARENA);
    struct err e = {0};
    if (t->claim.bytes == 0)
        return;
    if (record(n, t->file, a, &e) < 0) /* settling does */
        log_warn("object", "inode %llu: %s", (unsigned long long)t->file->ino, e.text);
    ledger_end(n->ledger, &t->claim);
}

/* Busy with the file, so that the handle stays. NULL: the session does not write to it. */
static struct stree *find_writer(struct snode *n, const struct sfile *f, const struct object_session *ses)
{
    LOCK_SCOPE(&n->lock);
    struct stree *t = f->trees;
    while (t && (t->session != ses || !t->writes))
        t = t->file_next;
    return t;
}

/* The first try says what is given back, and measures; the last one takes less than is wanted. */
enum room_try { ROOM_FIRST, ROOM_AGAIN, ROOM_LAST };

/* Busy. ret_own: what the file has reserved. */
static int tree_room(struct tree_call *t, const struct object_session *ses, struct sfile *f,
                     const struct wire_tree_room_req *q, enum room_try which, struct arena *a, uint64_t *ret,
                     uint64_t *ret_own, struct err *e)
{
    struct snode *n = t->node;
    bool is_first = which == ROOM_FIRST;
    struct stree *tree = find_writer(n, f, ses);
    if (!tree)
        return err_set(e, -ESTALE, "inode %llu is not open for writing here", (unsigned long long)f->ino);
    int r = is_first ? record(n, f, a, e) : 0;
    if (r < 0)
        return r;
    if (is_first)
        ledger_back(n->ledger, &tree->claim, q->back);
    *ret_own = tree->claim.bytes;
    struct ledger_ask ask = {.bucket = f->bucket,
                             .quota = t->bucket->p.quota,
                             .least = which == ROOM_LAST ? q->least : q->want,
                             .want = q->want,
                             .ahead = LEDGER_PIECE_BYTES,
                             .settled = settled,
                             .arg = n};
    return q->want == 0 ? 0 : ledger_take(n->ledger, &tree->claim, &ask, ret, e);
}

static int tree_room_once(struct tree_call *t, const struct object_session *ses, struct sfile *f,
                          const struct wire_tree_room_req *q, enum room_try which, struct arena *a,
                          uint64_t *ret, uint64_t *ret_own, struct err *e)
{
    sfile_enter(t->node, f);
    int r = tree_room(t, ses, f, q, which, a, ret, ret_own, e);
    sfile_leave(t->node, f);
    return r;
}

int op_tree_room(struct object_session *ses, const struct wire_tree_room_req *req, struct arena *a,
                 struct wire_tree_room_rep *rep, struct err *e)
{
    _cleanup_tree_call_ struct tree_call t;
    int r = tree_call_init(&t, ses, req->bucket, SLICE_NULL, 0, e);
    if (r == 0 && t.call.cred)
        return err_set(e, -EACCES, "room is asked for by who has the file; TREE_WRITE takes its own");
    if (r < 0)
        return r;
    if (req->least > req->want)
        return err_set(e, -EINVAL, "room for at least %llu bytes, where %llu are wanted",
                       (unsigned long long)req->least, (unsigned long long)req->want);
    if (req->want > STORE_SIZE_MAX_BYTES)
        return err_set(e, -EFBIG, "room for %llu bytes", (unsigned long long)req->want);
    struct sfile *f = sfile_peek(t.node, t.call.bucket, req->ino);
    if (!f)
        return err_set(e, -ESTALE, "inode %llu is not open", (unsigned long long)req->ino);
    uint64_t own = 0;
    r = tree_room_once(&t, ses, f, req, ROOM_FIRST, a, &rep->granted, &own, e);
    bool again = true;
    for (unsigned i = 0; r == -EDQUOT && again; i++) {
        again = room_may_come(t.node, t.call.bucket, own, i);
        r = tree_room_once(&t, ses, f, req, ROOM_AGAIN, a, &rep->granted, &own, e);
    }
    if (r == -EDQUOT && req->least < req->want)
        r = tree_room_once(&t, ses, f, req, ROOM_LAST, a, &rep->granted, &own, e);
    sfile_put(t.node, f);
    return r == -EDQUOT ? err_prefix(e, no_room(t.bucket, t.bucket->p.quota, req->least, e), "bucket %s",
                                     t.bucket->name)
                        : r;
}

/* ---- statfs ---- */

void sroom_statfs(struct snode *n, const struct bucket *b, uint64_t *total, uint64_t *bytes_free)
{
    struct scratch_counts counts;
    uint64_t quota = sroom_quota(n->service, b);
    if (quota == 0 || scratch_statfs(n->names, b->id, &counts, NULL) < 0)
        return;
    *total = quota;
    *bytes_free = MIN(*bytes_free, ledger_left(quota, counts.bytes, ledger_reserved(n->ledger, b->id)));
}
