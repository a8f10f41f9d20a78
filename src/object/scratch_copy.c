/*
 * Copies within a scratch bucket, and renaming by key. File systems that share blocks between files do
 * (FICLONE); else data is copied piece by piece, and holes stay holes.
 */
#include "object/scratch_object_ops.h"

#include "base/sys.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>

#define PIECE_BYTES     MIB
#define ROOM_BLOCK      4096ull
#define FIND_TRIES      100
#define CLONE_MIN_BYTES (4 * MIB) /* smaller ones are read anyway, to know their crcs */

/* ---- bytes ---- */

static bool clone_file(struct hard *from, struct hard *to)
{
    int fd = hard_open_fd(to, O_RDWR);
    if (fd < 0)
        return false;
    bool done = ioctl(fd, FICLONE, hard_fd(from)) == 0;
    (void)close(fd);
    return done;
}

static int copy_range(struct hard *from, struct hard *to, uint64_t offset, uint64_t end, char *piece,
                      struct err *e)
{
    while (offset < end) {
        size_t n = (size_t)MIN(end - offset, (uint64_t)PIECE_BYTES);
        int r = sys_pread_all(hard_fd(from), piece, n, offset);
        if (r < 0)
            return err_errno(e, r == -ENODATA ? -EBUSY : r, "read the file that is copied");
        r = hard_write(to, piece, n, offset, e);
        if (r < 0)
            return r;
        offset += n;
    }
    return 0;
}

/* From one run of data to the next. */
static int copy_data(struct hard *from, struct hard *to, uint64_t size, struct err *e)
{
    _cleanup_free_ char *piece = malloc(PIECE_BYTES);
    assert(piece);
    uint64_t at = 0;
    int r = 0;
    while (r == 0 && at < size) {
        int64_t data = sys->lseek(hard_fd(from), at, SEEK_DATA);
        if (data == -ENXIO)
            break;
        int64_t hole = data < 0 ? -1 : sys->lseek(hard_fd(from), (uint64_t)data, SEEK_HOLE);
        uint64_t begin = data < 0 ? at : (uint64_t)data,
                 end = hole < 0 ? size : MIN((uint64_t)hole, size); /* where nobody knows: all of it */
        r = begin < size ? copy_range(from, to, begin, end, piece, e) : 0;
        at = MAX(end, begin);
    }
    return r == 0 ? hard_truncate(to, size, e) : r;
}

int scopy_extent(struct snode *n, struct hard *from, uint64_t size, struct hard **ret, struct err *e)
{
    struct hard *to = NULL;
    int r = hard_take(n->store, &to, e);
    if (r < 0)
        return r;
    r = hard_begin_writing(to, e);
    if (r < 0) {
        hard_give_back(to);
        return r;
    }
    if (size >= CLONE_MIN_BYTES && clone_file(from, to))
        r = hard_truncate(to, size, e);
    else
        r = copy_data(from, to, size, e);
    hard_end_writing(to);
    if (r < 0) {
        hard_give_back(to);
        return r;
    }
    *ret = to;
    return 0;
}

/* ---- COPY ---- */

/* A copy has the ETag of what it was copied from, so it has the same parts. */
static int parts_of(struct scratch_op *o, const struct scratch_inode *from, struct buf *ret, struct err *e)
{
    if (!(from->flags & SCRATCH_PARTED) || from->etag.n == 0)
        return 0;
    int r = scratch_parts(o->node->names, o->call.bucket, from->ino, ret, e);
    return r == -ENOENT ? err_set(e, ERR_CONFLICT, "the object was replaced") : r;
}

/* The source with its data (or NULL) and what is told of its parts: all that may be gone when its bytes are
 * copied, as others may replace it meanwhile. One that is replaced between the looks is looked up again. */
static int find_source(struct scratch_op *o, struct slice key, struct arena *a, struct scratch_inode *ret,
                       struct hard **ret_hard, struct buf *ret_parts, struct err *e)
{
    int r = ERR_CONFLICT;
    for (int i = 0; r == ERR_CONFLICT && i < FIND_TRIES; i++) {
        _cleanup_(hard_unrefp) struct hard *h = NULL;
        buf_clear(ret_parts);
        r = sobject_find_data(o, key, a, ret, &h, e);
        if (r == 0)
            r = parts_of(o, ret, ret_parts, e);
        if (r == 0)
            *ret_hard = TAKE_PTR(h);
    }
    return r;
}

/* What the object at `to` becomes; h: its data, durable, or NULL. parts: of the source's ETag, while it has
 * that. */
static int put_copy(struct scratch_op *o, const struct wire_copy_req *q, const struct scratch_inode *from,
                    struct slice parts, struct hard *h, struct arena *a, struct scratch_inode *ret,
                    struct err *e)
{
    uint8_t location[HARD_LOCATION_BYTES];
    struct scratch_orphans orphans = {0};
    struct stat st = {0};
    struct scratch_put p = {.size_bytes = h ? from->size_bytes : 0,
                            .etag = from->etag,
                            .content_type = from->content_type,
                            .meta = from->meta,
                            .if_none_match = q->flags & WIRE_NOREPLACE,
                            .fail_if_clash = q->flags & WIRE_POSIX,
                            .ttl_ms = o->bucket->p.object_ttl,
                            .now_ns = sys->real_ns()};
    int r = h ? hard_stat(h, &st) : 0;
    bool is_dir_key = slice_ends(q->to, SLICE_LIT("/")) && !h;
    if (r == 0 && !is_dir_key)
        r = scratch_reserve(o->node->names, o->call.bucket, q->to, &p.ino, e);
    if (r < 0)
        return r;
    if (!is_dir_key && from->etag.n > 0)
        p.parts = parts;
    if (h) {
        hard_location(h, location);
        p.location = slice_of(location, sizeof(location));
        p.allocated_bytes = (uint64_t)st.st_blocks * 512;
        p.mtime_ns = snode_ns(st.st_mtim);
    }
    struct scratch_call call = o->call;
    call.commit = KV_DURABLE;
    r = scratch_put(o->node->names, &call, q->to, &p, a, ret, &orphans, e);
    if (r < 0)
        return r == ERR_PRECONDITION ? err_set(e, -EEXIST, "the target exists") : r;
    snode_free_unnamed(o->node, &orphans);
    if (h)
        snode_put_done(o->node, o->call.bucket, p.ino, h);
    return 0;
}

/* Whether the put was done although it failed (its sync did). */
static bool is_named(struct scratch_op *o, struct slice key, struct hard *h, struct arena *a)
{
    struct scratch_inode x;
    uint8_t location[HARD_LOCATION_BYTES];
    hard_location(h, location);
    int r = scratch_find(o->node->names, o->call.bucket, key, a, &x, NULL);
    return r == 0 ? slice_eq(x.location, slice_of(location, sizeof(location))) : r != -ENOENT;
}

/* The bytes of an object. Its ETag is no longer theirs when somebody writes to it meanwhile. */
static int copy_bytes(struct scratch_op *o, struct scratch_inode *x, struct hard *from,
                      struct ledger_claim *claim, struct arena *a, struct hard **ret, struct err *e)
{
    struct stat before, after;
    int r = hard_stat(from, &before);
    if (r < 0)
        return err_errno(e, r, "state of the file");
    snode_fresh(o->node, o->call.bucket, a, x);
    struct hard *to = NULL;
    uint64_t room = MIN((uint64_t)before.st_blocks * 512, ALIGN_UP(x->size_bytes, ROOM_BLOCK));
    r = sroom_take(o->node, o->bucket, claim, room, /* ahead= */ 0, e);
    if (r < 0)
        return r;
    r = scopy_extent(o->node, from, x->size_bytes, &to, e);
    if (r < 0)
        return r;
    bool same = hard_stat(from, &after) == 0 && after.st_size == before.st_size &&
                snode_ns(after.st_mtim) == snode_ns(before.st_mtim);
    if (!same)
        x->etag = SLICE_NULL;
    *ret = to;
    return 0;
}

static int copy(struct scratch_op *o, const struct wire_copy_req *q, struct scratch_inode *x, struct arena *a,
                struct err *e)
{
    _cleanup_(hard_unrefp) struct hard *from = NULL;
    _cleanup_buf_ struct buf parts = BUF_INIT(SCRATCH_PARTS_MAX);
    struct hard *to = NULL;
    struct scratch_inode made;
    struct ledger_claim claim = {0};
    int r = find_source(o, q->from, a, x, &from, &parts, e);
    if (r == 0 && from)
        r = copy_bytes(o, x, from, &claim, a, &to, e);
    if (r == 0 && to)
        r = hard_sync(to, e);
    if (r == 0)
        r = put_copy(o, q, x, buf_view(&parts), to, a, &made, e);
    if (to && r < 0 && !is_named(o, q->to, to, a))
        hard_give_back(to);
    else
        hard_unref(to);
    ledger_end(o->node->ledger, &claim); /* the copy is counted, or gone */
    if (r == 0)
        *x = made;
    return r;
}

static int move(struct scratch_op *o, const struct wire_copy_req *q, struct arena *a, struct scratch_inode *x,
                struct err *e)
{
    struct scratch_orphans orphans = {0};
    int r = scratch_move_key(o->node->names, &o->call, q->from, q->to,
                             q->flags & WIRE_NOREPLACE ? SCRATCH_NOREPLACE : 0, &orphans, e);
    if (r < 0)
        return r;
    snode_free_unnamed(o->node, &orphans);
    r = scratch_sync(o->node->names, e);
    return r < 0 ? r : scratch_find(o->node->names, o->call.bucket, q->to, a, x, e);
}

int op_scratch_copy(struct scratch_op *o, const struct wire_copy_req *req, struct arena *a,
                    struct wire_copy_rep *rep, struct err *e)
{
    struct scratch_inode x;
    int r = object_check_key(req->from, e);
    if (r == 0)
        r = object_check_key(req->to, e);
    if (r == 0)
        r = sobject_find(o, req->from, a, &x, e);
    if (r < 0)
        return r;
    snode_fresh(o->node, o->call.bucket, a, &x);
    if (slice_eq(req->from, req->to) && !(req->flags & WIRE_NOREPLACE))
        r = 0;
    else if (req->flags & WIRE_MOVE)
        r = move(o, req, a, &x, e);
    else
        r = copy(o, req, &x, a, e);
    if (r == 0)
        sobject_attr(o->node, o->call.bucket, &x, /* posix= */ false, a, &rep->attr);
    return r;
}
