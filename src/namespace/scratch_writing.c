/*
 * Writing records: which inodes have data that is not settled. They are written by the changes that give
 * locations (scratch_change_writing); here they are read at start, and taken away, alone or with the
 * locations of several inodes. And all locations, for a start that cannot trust those records.
 *
 * Failure modes: a record that is not one of ours is ERR_CORRUPT. A record whose inode has gone or has
 * another location cannot be left by any change; the caller treats it as stale.
 */
#include "namespace/scratch_internal.h"

#include "base/le.h"

#define KEY_BYTES 17

static_assert(SCRATCH_UNLOCATE_MAX <= SCRATCH_INODES_MAX, "one change has them all");

int scratch_unsettled(struct scratch *s, int (*on_inode)(void *arg, const struct scratch_unsettled *x),
                      void *arg, struct err *e)
{
    _cleanup_(kv_iter_freep) struct kv_iter *it = kv_iter_new(s->kv, SLICE_LIT("w"), SLICE_LIT("x"));
    struct slice key, value, location;
    int r;
    while ((r = kv_iter_next(it, &key, &value, e)) == 0) {
        if (key.n != KEY_BYTES || scratch_writing_decode(value, &location) < 0)
            return err_set(e, ERR_CORRUPT, "control store: a writing record is not one of ours");
        struct scratch_unsettled x = {.bucket = be_get64(key.p + 1), .ino = be_get64(key.p + 9)};
        x.location_bytes = location.n;
        memcpy(x.location, location.p, location.n);
        r = on_inode(arg, &x);
        if (r < 0)
            return r;
    }
    return r == -ENOENT ? 0 : r;
}

int scratch_located(struct scratch *s, int (*on_inode)(void *arg, const struct scratch_unsettled *x),
                    void *arg, struct err *e)
{
    _cleanup_(kv_iter_freep) struct kv_iter *it = kv_iter_new(s->kv, SLICE_LIT("s"), SLICE_LIT("t"));
    struct slice key, value;
    int r;
    while ((r = kv_iter_next(it, &key, &value, e)) == 0) {
        struct scratch_inode inode;
        if (key.n != KEY_BYTES + 1 || key.p[KEY_BYTES] != SCRATCH_KEY_INODE)
            continue;
        struct scratch_unsettled x = {.bucket = be_get64(key.p + 1), .ino = be_get64(key.p + 9)};
        if (scratch_inode_decode(value, x.ino, &inode) < 0)
            return err_set(e, ERR_CORRUPT, "control store: an inode is not one of ours");
        if (inode.location.n == 0 || inode.location.n > sizeof(x.location))
            continue;
        x.location_bytes = inode.location.n;
        memcpy(x.location, inode.location.p, inode.location.n);
        r = on_inode(arg, &x);
        if (r < 0)
            return r;
    }
    return r == -ENOENT ? 0 : r;
}

int scratch_settled(struct scratch *s, const struct scratch_unsettled *v, size_t n, struct err *e)
{
    _cleanup_(kv_txn_freep) struct kv_txn *t = kv_txn_new(s->kv);
    _cleanup_buf_ struct buf key = BUF_INIT(SCRATCH_KEY_MAX);
    for (size_t i = 0; i < n; i++) {
        scratch_key_writing(v[i].bucket, v[i].ino, &key);
        kv_txn_delete(t, buf_view(&key));
    }
    return n == 0 ? 0 : kv_txn_commit(t, KV_VISIBLE, e);
}

struct unlocate_arg {
    const uint64_t *inos;
    size_t n;
};

static int prepare_unlocate(struct scratch_change *c, void *arg, struct err *e)
{
    const struct unlocate_arg *q = arg;
    scratch_change_lock(c, q->inos, q->n);
    for (size_t i = 0; i < q->n; i++) {
        struct scratch_loaded *x;
        int r = scratch_change_inode(c, q->inos[i], &x, e);
        if (r < 0)
            return r;
        x->x.location = SLICE_NULL;
        x->dirty = true;
        scratch_change_writing(c, x);
    }
    return 0;
}

int scratch_unlocate(struct scratch *s, uint64_t bucket, const uint64_t *inos, size_t n, struct err *e)
{
    struct scratch_call call = {.bucket = bucket};
    struct unlocate_arg q = {inos, n};
    assert(n > 0 && n <= SCRATCH_UNLOCATE_MAX);
    _cleanup_change_ struct scratch_change c;
    scratch_change_init(&c, s, &call);
    return scratch_change_run(&c, prepare_unlocate, &q, e);
}
