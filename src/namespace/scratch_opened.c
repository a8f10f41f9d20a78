/*
 * What is open of mounts that have no file of the node: of those nothing but this tells the next start, as a
 * killed process leaves no more than its records. Each is of a mount and an inode.
 *
 * Failure modes: a record that is not one of ours is ERR_CORRUPT. One whose inode is gone, or whose mount
 * never comes back, is the caller's to take away.
 */
#include "namespace/scratch_internal.h"

#include "base/le.h"

#define KEY_BYTES 33

int scratch_opened_put(struct scratch *s, const struct scratch_opened *x, struct err *e)
{
    const char value[] = {SCRATCH_FORMAT, (char)x->how};
    _cleanup_(kv_txn_freep) struct kv_txn *t = kv_txn_new(s->kv);
    _cleanup_buf_ struct buf key = BUF_INIT(SCRATCH_KEY_MAX);
    scratch_key_opened(x, &key);
    if (x->how == 0)
        kv_txn_delete(t, buf_view(&key));
    else
        kv_txn_put_plain(t, buf_view(&key), slice_of(value, sizeof(value)));
    return kv_txn_commit(t, KV_VISIBLE, e);
}

int scratch_opened_each(struct scratch *s, int (*on_opened)(void *arg, const struct scratch_opened *x),
                        void *arg, struct err *e)
{
    _cleanup_(kv_iter_freep) struct kv_iter *it = kv_iter_new(s->kv, SLICE_LIT("y"), SLICE_LIT("z"));
    struct slice key, value;
    int r;
    while ((r = kv_iter_next(it, &key, &value, e)) == 0) {
        if (key.n != KEY_BYTES || value.n != 2 || value.p[0] != SCRATCH_FORMAT)
            return err_set(e, ERR_CORRUPT, "control store: what a mount had open is not one of ours");
        struct scratch_opened x = {
            .bucket = be_get64(key.p + 1), .ino = be_get64(key.p + 9), .how = (uint8_t)value.p[1]};
        memcpy(x.mount.b, key.p + 17, sizeof(x.mount.b));
        r = on_opened(arg, &x);
        if (r < 0)
            return r;
    }
    return r == -ENOENT ? 0 : r;
}
