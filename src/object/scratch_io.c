/*
 * Bytes of files of scratch buckets for mounts that have no descriptor of them: TREE_READ, TREE_WRITE,
 * TREE_APPEND, TREE_ALLOCATE, TREE_SEEK.
 *
 * They do with the handle's file what a mount does with the descriptor that others are given
 * (mount/tree_io.c), and the node learns of it in the same way: by asking the file. What differs is that the
 * node itself takes set-user-ID away, for a session that it checks for, and asks the bucket's quota, with a
 * claim that ends once what was written is counted.
 *
 * An append that has a number is made once, also when the node was killed before it answered: where the file
 * ended before it is noted first, and of what comes by calls one appends to a file at a time, so that it is
 * found there. (One by a descriptor of the file may come in between the two, within microseconds: if that is
 * when the node is killed, the append is made twice.)
 *
 * Failure modes: those of the file. Of a write that fails after a part of it that part is told.
 */
#include "object/scratch_tree.h"

#include "base/lack.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/sys.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#define BLOCK_BYTES ((uint64_t)4096)
#define LOOK_BYTES  (64 * KIB)
#define AT_END      UINT64_MAX
#define ALLOCATES   (FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE)

/* A handle in use. */
struct use {
    struct stree *tree;
    struct tree_call t;
    struct scratch_inode inode;
    struct hard *hard; /* NULL: it has no bytes */
};

static void use_end(struct use *u)
{
    hard_unref(u->hard);
    if (u->tree)
        stree_unuse(u->tree);
}
#define _cleanup_use_ _cleanup_(use_end)

/* The extent, also one that the file has got since the handle was given. */
static int find_hard(struct use *u, struct arena *a, struct err *e)
{
    struct snode *n = u->t.node;
    lock_take(&n->lock);
    u->hard = u->tree->file->hard ? hard_ref(u->tree->file->hard) : NULL;
    lock_drop(&n->lock);
    return u->hard ? 0 : snode_find_hard(n, u->t.call.bucket, a, &u->inode, &u->hard, e);
}

/* u: zero, to be ended also after a failure. */
static int use_begin(struct use *u, struct object_session *ses, uint64_t handle, bool writes, struct arena *a,
                     struct err *e)
{
    u->tree = session_use_tree(ses, handle, e);
    if (!u->tree)
        return -EBADF;
    if (writes && !u->tree->writes)
        return err_set(e, -EACCES, "the handle is not for writing");
    tree_call_of(&u->t, ses, u->tree);
    int r = scratch_getattr(u->t.node->names, u->t.call.bucket, u->tree->file->ino, a, &u->inode, e);
    return r < 0 ? r : find_hard(u, a, e);
}

int op_tree_read(struct object_session *ses, const struct wire_tree_read_req *req, struct arena *a,
                 struct wire_tree_read_rep *rep, struct err *e)
{
    _cleanup_use_ struct use u = {0};
    int r = use_begin(&u, ses, req->handle, /* writes= */ false, a, e);
    if (r < 0)
        return r;
    if (!u.tree->may_read)
        return err_set(e, -EACCES, "the handle is not for reading");
    size_t n = MIN((size_t)req->n, (size_t)OBJECT_TREE_PIECE_BYTES), done = 0;
    if (!u.hard || req->offset > INT64_MAX - n)
        return 0;
    char *p = arena_alloc(a, MAX(n, (size_t)1));
    while (done < n) {
        ssize_t got = sys->pread(hard_fd(u.hard), p + done, n - done, req->offset + done);
        if (got < 0)
            return err_errno(e, (int)got, "read of the data file");
        if (got == 0)
            break;
        done += (size_t)got;
    }
    rep->data = slice_of(p, done);
    if (done > 0)
        metrics_add(
            metrics_series(METRIC_READ_BYTES, u.tree->bucket->name, object_via_name(u.tree->via), "cache"),
            done);
    return 0;
}

/* ---- writing ---- */

/* Room for a change of n bytes, where the bucket has a quota. */
static int take_room(struct use *u, uint64_t offset, uint64_t n, struct ledger_claim *ret, struct err *e)
{
    struct snode *node = u->t.node;
    struct lack lack = {0};
    struct stat st;
    uint64_t from = 0;
    if (n == 0 || sroom_quota(node->service, u->tree->bucket) == 0)
        return 0;
    int r = sys->fstat(u->tree->fd, &st);
    if (r < 0)
        return err_errno(e, r, "state of the data file");
    uint64_t block = lack_block(&st);
    if (offset == AT_END)
        offset = (uint64_t)st.st_size;
    uint64_t all = lack_blocks(block, offset, n, &from);
    lack.reach = from;
    lack_look(u->tree->fd, from, from + all, block, &lack);
    return lack.missing == 0 ? 0 : sroom_take(node, u->tree->bucket, ret, lack.missing, /* ahead= */ 0, e);
}

/* How much of n bytes surely fits into what the quota has left. */
static uint64_t what_fits(struct use *u, uint64_t offset, uint64_t n)
{
    uint64_t total = 0, left = n;
    sroom_statfs(u->t.node, u->tree->bucket, &total, &left);
    left = left / BLOCK_BYTES * BLOCK_BYTES;
    uint64_t lost = offset == AT_END || offset % BLOCK_BYTES != 0 ? BLOCK_BYTES : 0;
    return left > lost ? MIN(left - lost, n) : 0;
}

/* What is on disk now is what the bucket counts. */
static void count(struct use *u, struct arena *a)
{
    struct snode *n = u->t.node;
    struct sfile *f = u->tree->file;
    const struct scratch_call call = {.bucket = f->bucket};
    struct stat st;
    struct err e = {0};
    sfile_enter(n, f);
    int r = hard_stat(u->hard, &st);
    if (r == 0)
        r = snode_record(n, &call, f->ino, &st, a, /* ret= */ NULL, &e);
    sfile_leave(n, f);
    if (r < 0)
        log_warn("object", "inode %llu: %s", (unsigned long long)f->ino, e.text); /* closing counts it */
}

/* The same, and the claim is not needed any more. */
static void end_room(struct use *u, struct ledger_claim *c, struct arena *a)
{
    if (c->bytes == 0)
        return;
    count(u, a);
    ledger_end(u->t.node->ledger, c);
}

/* How much was written before an error; the error when nothing was. */
static ssize_t write_all(int fd, struct slice data, uint64_t offset)
{
    size_t done = 0;
    ssize_t k = 0;
    while (done < data.n) {
        struct iovec v = {.iov_base = (void *)(uintptr_t)(data.p + done), .iov_len = data.n - done};
        if (offset == AT_END)
            k = pwritev2(fd, &v, 1, /* offset= */ 0, RWF_APPEND);
        else
            k = sys->pwrite(fd, v.iov_base, v.iov_len, offset + done);
        if (offset == AT_END && k < 0)
            k = -errno;
        if (k == -EINTR)
            continue;
        if (k <= 0)
            break;
        done += (size_t)k;
    }
    return done > 0 || k >= 0 ? (ssize_t)done : k;
}

/* ---- appending ---- */

/* How much of it is at `at` already. Another one's append there is another text. */
static ssize_t find_there(int fd, uint64_t at, struct slice data)
{
    char have[LOOK_BYTES];
    size_t done = 0;
    while (done < data.n) {
        ssize_t got = sys->pread(fd, have, MIN(data.n - done, sizeof(have)), at + done);
        if (got < 0 || memcmp(have, data.p + done, (size_t)got) != 0)
            return MIN(got, (ssize_t)0);
        if (got == 0)
            break;
        done += (size_t)got;
    }
    return (ssize_t)done;
}

/* How much of an append was made when it came before, and was answered to nobody. */
static ssize_t appended(struct use *u, struct slice data, bool *ret_noted, struct err *e)
{
    uint64_t at = 0;
    int r = scratch_noted(u->t.node->names, &u->t.call, ret_noted, &at, e);
    if (r < 0 || !*ret_noted || at > INT64_MAX - data.n)
        return r;
    ssize_t n = find_there(u->tree->fd, at, data);
    return n < 0 ? err_errno(e, (int)n, "read of the data file") : n;
}

/* Busy: where an append goes is noted before it goes there, and what else comes by calls waits. How much of
 * it is there, `room` at most made now; the error when nothing is. */
static ssize_t append(struct use *u, struct slice data, size_t room, struct err *e)
{
    bool is_noted = false;
    struct stat st;
    ssize_t before = appended(u, data, &is_noted, e);
    int r = (int)MIN(before, (ssize_t)0);
    if (r == 0 && !is_noted && (r = sys->fstat(u->tree->fd, &st)) < 0)
        return err_errno(e, r, "state of the data file");
    if (r == 0 && !is_noted)
        r = scratch_note(u->t.node->names, &u->t.call, (uint64_t)st.st_size, e);
    if (r < 0)
        return r;
    struct slice rest = slice_from(data, (size_t)before);
    ssize_t n = write_all(u->tree->fd, slice_of(rest.p, MIN(rest.n, room)), AT_END);
    if (n < 0 && before == 0)
        return err_errno(e, (int)n, "write to the data file");
    return before + MAX(n, (ssize_t)0);
}

/* ---- both ---- */

/* Takes room for as much as fits, at least something: *n. */
static int take_what_fits(struct use *u, uint64_t offset, size_t *n, struct ledger_claim *ret, struct err *e)
{
    int r = take_room(u, offset, *n, ret, e);
    size_t less = r == -EDQUOT ? (size_t)what_fits(u, offset, *n) : 0;
    if (less == 0 || less >= *n)
        return r;
    *n = less; /* as far as one gets */
    return take_room(u, offset, less, ret, e);
}

static ssize_t write_some(struct use *u, uint64_t offset, struct slice data, size_t room, struct err *e)
{
    if (offset != AT_END) {
        ssize_t n = write_all(u->tree->fd, slice_of(data.p, MIN(data.n, room)), offset);
        return n < 0 ? err_errno(e, (int)n, "write to the data file") : n;
    }
    sfile_enter(u->t.node, u->tree->file);
    ssize_t n = append(u, data, room, e);
    sfile_leave(u->t.node, u->tree->file);
    return n;
}

/* u: begun. request: of an append that has a number. */
static int write_by(struct use *u, uint64_t offset, struct slice data, uint64_t request, struct arena *a,
                    uint32_t *ret_n, uint64_t *ret_size, struct err *e)
{
    struct ledger_claim claim = {0};
    bool is_noted;
    struct stat st;
    tree_call_drop_privilege(&u->t, &u->inode, a);
    u->t.call.request = request;
    ssize_t before = appended(u, data, &is_noted, e); /* needs no room any more */
    if (before < 0)
        return (int)before;
    size_t room = data.n - (size_t)before;
    int r = take_what_fits(u, offset, &room, &claim, e);
    if (r < 0 && before == 0)
        return r;
    ssize_t n = write_some(u, offset, data, r < 0 ? 0 : room, e);
    end_room(u, &claim, a);
    if (n < 0)
        return (int)n;
    r = sys->fstat(u->tree->fd, &st);
    if (r < 0)
        return err_errno(e, r, "state of the data file");
    *ret_n = (uint32_t)n;
    *ret_size = (uint64_t)st.st_size;
    return 0;
}

static int check_piece(struct slice data, struct err *e)
{
    return data.n > OBJECT_TREE_PIECE_BYTES ? err_set(e, -EINVAL, "%zu bytes at once", data.n) : 0;
}

int op_tree_write(struct object_session *ses, const struct wire_tree_write_req *req, struct arena *a,
                  struct wire_tree_write_rep *rep, struct err *e)
{
    _cleanup_use_ struct use u = {0};
    int r = check_piece(req->data, e);
    if (r == 0 && req->offset > INT64_MAX - req->data.n)
        return err_set(e, -EFBIG, "beyond the end of any file");
    if (r == 0)
        r = use_begin(&u, ses, req->handle, /* writes= */ true, a, e);
    return r < 0 ? r : write_by(&u, req->offset, req->data, /* request= */ 0, a, &rep->n, &rep->size, e);
}

int op_tree_append(struct object_session *ses, const struct wire_tree_append_req *req, struct arena *a,
                   struct wire_tree_append_rep *rep, struct err *e)
{
    _cleanup_use_ struct use u = {0};
    int r = check_piece(req->data, e);
    if (r == 0)
        r = use_begin(&u, ses, req->handle, /* writes= */ true, a, e);
    return r < 0 ? r : write_by(&u, AT_END, req->data, req->request, a, &rep->n, &rep->size, e);
}

int op_tree_allocate(struct object_session *ses, const struct wire_tree_allocate_req *req, struct arena *a,
                     struct wire_tree_allocate_rep *rep, struct err *e)
{
    (void)rep;
    _cleanup_use_ struct use u = {0};
    struct ledger_claim claim = {0};
    bool punches = req->mode & FALLOC_FL_PUNCH_HOLE;
    if (req->mode & ~(uint32_t)ALLOCATES)
        return err_set(e, -EOPNOTSUPP, "mode %#x of fallocate", req->mode);
    if (req->length == 0 || req->length > INT64_MAX || req->offset > INT64_MAX - req->length)
        return err_set(e, req->length == 0 ? -EINVAL : -EFBIG, "range of fallocate");
    int r = use_begin(&u, ses, req->handle, /* writes= */ true, a, e);
    if (r < 0)
        return r;
    tree_call_drop_privilege(&u.t, &u.inode, a);
    r = punches ? 0 : take_room(&u, req->offset, req->length, &claim, e);
    if (r < 0)
        return r;
    r = sys->fallocate(u.tree->fd, (int)req->mode, req->offset, req->length);
    end_room(&u, &claim, a);
    if (r == 0 && punches && sroom_quota(u.t.node->service, u.tree->bucket) > 0)
        count(&u, a); /* the room is there for the next write: no close may come for long */
    return r < 0 ? err_errno(e, r, "fallocate of the data file") : 0;
}

/* The position of the descriptor is used by nothing else. */
int op_tree_seek(struct object_session *ses, const struct wire_tree_seek_req *req, struct arena *a,
                 struct wire_tree_seek_rep *rep, struct err *e)
{
    _cleanup_use_ struct use u = {0};
    if (req->whence != SEEK_END && req->whence != SEEK_DATA && req->whence != SEEK_HOLE)
        return err_set(e, -EINVAL, "whence %u of lseek", req->whence);
    if (req->offset > INT64_MAX)
        return err_set(e, -EINVAL, "offset of lseek");
    int r = use_begin(&u, ses, req->handle, /* writes= */ false, a, e);
    if (r < 0)
        return r;
    if (!u.hard && req->whence == SEEK_END && req->offset == 0)
        return 0;
    if (!u.hard)
        return err_set(e, -ENXIO, "the file has no bytes");
    int64_t at = sys->lseek(hard_fd(u.hard), req->offset, (int)req->whence);
    if (at < 0)
        return err_errno(e, (int)at, "lseek of the data file");
    rep->offset = (uint64_t)at;
    return 0;
}
