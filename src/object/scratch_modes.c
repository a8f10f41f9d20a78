/*
 * Mode, owner and time of inodes as lines of an object's metadata (WIRE_MODES), for jobs that carry them to
 * and from origins: STAT and LIST give them, PUT takes them, SET_META changes them. Symbolic links are
 * objects there, whose bytes are their target. And SET_TAGS: an object's tags, which are a line of it.
 *
 * The lines of WIRE_MODES are never kept: what an inode is stands in the inode alone, so that chmod and
 * export agree.
 */
#include "object/scratch_object_ops.h"
#include "object/scratch_tree.h"

#include "net/posix_meta.h"
#include "origin/meta.h"

#define TRIES 3 /* for an object that is replaced between the look and the change */

void smodes_add(const struct scratch_inode *x, struct arena *a, struct wire_attr *attr)
{
    struct posix_meta p = {POSIX_HAS_ALL, x->mode, x->uid, x->gid, (uint64_t)x->mtime_ns};
    _cleanup_buf_ struct buf lines = BUF_INIT(POSIX_META_MAX_BYTES), all = BUF_INIT(attr->meta.n + KIB);
    if (x->mtime_ns < 0 || p.mtime_ns >= POSIX_META_MAX_NS)
        p.has &= ~(unsigned)POSIX_HAS_MTIME;
    int r = posix_meta_encode(&p, &lines);
    if (r == 0)
        r = posix_meta_merge(attr->meta, buf_view(&lines), &all);
    assert(r == 0);
    attr->meta = arena_dup(a, buf_view(&all));
    if (S_ISLNK(x->mode))
        attr->size_bytes = x->target.n;
}

bool smodes_take(struct slice meta, bool is_dir, struct arena *a, struct slice *ret_meta,
                 struct scratch_set *ret)
{
    struct posix_meta p;
    posix_meta_decode(meta, is_dir, &p);
    *ret = (struct scratch_set){
        .what = (p.has & POSIX_HAS_MODE ? SCRATCH_SET_MODE : 0u) |
                (p.has & POSIX_HAS_UID ? SCRATCH_SET_UID : 0u) |
                (p.has & POSIX_HAS_GID ? SCRATCH_SET_GID : 0u) |
                (p.has & POSIX_HAS_MTIME ? SCRATCH_SET_MTIME : 0u),
        .mode = p.mode & (is_dir ? 07777 : 01777),
        .uid = p.uid,
        .gid = p.gid,
        .mtime_ns = (int64_t)p.mtime_ns,
    };
    _cleanup_buf_ struct buf rest = BUF_INIT(meta.n + 1); /* a line that no line feed ends grows by one */
    int r = posix_meta_rest(meta, &rest);
    assert(r == 0);
    *ret_meta = arena_dup(a, buf_view(&rest));
    return !is_dir && p.has & POSIX_HAS_MODE && S_ISLNK(p.mode);
}

int smodes_find(struct scratch_op *o, struct slice key, struct arena *a, struct scratch_inode *ret,
                struct err *e)
{
    struct scratch_inode x;
    int r = -ENOENT;
    if (scratch_key_is_path(key) && !slice_ends(key, SLICE_LIT("/")))
        r = scratch_path(o->node->names, o->call.bucket, key, a, &x, NULL);
    if (r == 0 && S_ISLNK(x.mode)) {
        *ret = x;
        return 0;
    }
    return scratch_find(o->node->names, o->call.bucket, key, a, ret, e);
}

/* ---- SET_META ---- */

int op_scratch_set_meta(struct scratch_op *o, const struct wire_set_meta_req *req, struct arena *a,
                        struct wire_set_meta_rep *rep, struct err *e)
{
    /* Nobody's rights are asked about. */
    struct scratch_call call = {.bucket = o->call.bucket, .commit = KV_DURABLE};
    struct scratch_inode x;
    struct scratch_set set;
    struct slice others;
    if (!(req->flags & WIRE_MODES))
        return err_set(e, ERR_NOT_IMPLEMENTED,
                       "metadata of an object of a scratch bucket comes with its bytes");
    int r = object_check_key(req->key, e);
    if (r == 0)
        r = smodes_find(o, req->key, a, &x, e);
    if (r < 0)
        return r;
    (void)smodes_take(req->meta, S_ISDIR(x.mode), a, &others, &set);
    if (others.n > 0)
        return err_set(e, ERR_NOT_IMPLEMENTED, "only mode, owner and time can be changed");
    if (S_ISLNK(x.mode))
        set.what &= ~(uint32_t)SCRATCH_SET_MODE;
    r = set.what ? stree_set_attributes(o->node, &call, x.ino, &set, a, &x, e)
                 : scratch_sync(o->node->names, e);
    if (r < 0)
        return r;
    sobject_attr(o->node, o->call.bucket, &x, /* posix= */ false, a, &rep->attr);
    smodes_add(&x, a, &rep->attr);
    return 0;
}

/* ---- SET_TAGS ---- */

/* Of the inode that is found: whoever replaces the object meanwhile has made another one, and it is as if he
 * came later. */
static int set_tags_once(struct scratch_op *o, const struct wire_set_tags_req *q, struct arena *a,
                         struct err *e)
{
    const struct scratch_call call = {.bucket = o->call.bucket}; /* visible; rights as of SET_META */
    _cleanup_buf_ struct buf meta = BUF_INIT(SCRATCH_META_MAX);
    struct scratch_inode x;
    int r = sobject_find(o, q->key, a, &x, e);
    if (r < 0)
        return r;
    if (meta_set(x.meta, META_TAGS, q->tags, &meta) < 0)
        return err_set(e, -E2BIG, "the object has too much metadata");
    struct scratch_set set = {.what = SCRATCH_SET_META, .meta = buf_view(&meta)};
    return stree_set_attributes(o->node, &call, x.ino, &set, a, &x, e);
}

int op_scratch_set_tags(struct scratch_op *o, const struct wire_set_tags_req *req, struct arena *a,
                        struct wire_set_tags_rep *rep, struct err *e)
{
    (void)rep;
    int r = object_check_key(req->key, e);
    if (r < 0)
        return r;
    r = -ENOENT;
    for (int i = 0; r == -ENOENT && i < TRIES; i++)
        r = set_tags_once(o, req, a, e);
    return r < 0 ? r : scratch_sync(o->node->names, e);
}
