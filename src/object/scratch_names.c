/*
 * Objects of scratch buckets by key: stat, list, remove, rename, directories, and what caches do with them
 * (nothing). Copies are in scratch_copy.c.
 */
#include "object/scratch_object_ops.h"

#include "base/sys.h"
#include "origin/meta.h"

#define LIST_MAX       1000
#define PAGE_MAX_BYTES (2 * MIB)
#define ENTRY_ARENA    (64 * KIB)

void sobject_attr(struct snode *n, uint64_t bucket, struct scratch_inode *x, bool posix, struct arena *a,
                  struct wire_attr *ret)
{
    snode_fresh(n, bucket, a, x);
    bool is_dir = S_ISDIR(x->mode);
    *ret = (struct wire_attr){.kind = is_dir && posix ? WIRE_DIRECTORY : WIRE_FILE,
                              .size_bytes = is_dir ? 0 : x->size_bytes,
                              .mtime_ns = (uint64_t)MAX(x->mtime_ns, (int64_t)0)};
    if (ret->kind == WIRE_DIRECTORY)
        return;
    ret->etag = scratch_etag(x, a);
    ret->content_type = x->content_type;
    ret->meta = x->etag.n > 0 ? x->meta : meta_without(x->meta, META_CHECKSUM, a); /* written to since */
}

bool sobject_is_over(struct snode *n, const struct bucket *b, struct arena *a, struct scratch_inode *x)
{
    uint64_t now_ns = sys->real_ns();
    if (!scratch_is_over(x, b->p.object_ttl, now_ns))
        return false;
    snode_fresh(n, b->id, a, x); /* somebody may be writing to it */
    return scratch_is_over(x, b->p.object_ttl, now_ns);
}

static int refuse_over(struct scratch_op *o, struct arena *a, struct scratch_inode *x, struct err *e)
{
    return sobject_is_over(o->node, o->bucket, a, x) ? err_set(e, -ENOENT, "no such object") : 0;
}

int sobject_find(struct scratch_op *o, struct slice key, struct arena *a, struct scratch_inode *ret,
                 struct err *e)
{
    int r = scratch_find(o->node->names, o->call.bucket, key, a, ret, e);
    return r < 0 ? r : refuse_over(o, a, ret, e);
}

int sobject_find_data(struct scratch_op *o, struct slice key, struct arena *a, struct scratch_inode *ret,
                      struct hard **ret_hard, struct err *e)
{
    uint64_t before = 0;
    for (;;) {
        *ret_hard = NULL;
        int r = sobject_find(o, key, a, ret, e);
        if (r < 0)
            return r;
        snode_fresh(o->node, o->call.bucket, a, ret);
        if (!S_ISREG(ret->mode) || ret->size_bytes == 0)
            return 0;
        r = snode_find_hard(o->node, o->call.bucket, a, ret, ret_hard, e);
        if (r != -ENOENT || ret->ino == before) /* the same again: its file is lost */
            return r;
        before = ret->ino;
    }
}

int sobject_record(struct snode *n, uint64_t bucket, struct slice key, struct arena *a, struct err *e)
{
    struct scratch_call call = {.bucket = bucket};
    struct scratch_inode x;
    struct stat st;
    int r = scratch_find(n->names, bucket, key, a, &x, e);
    struct sfile *f = r == 0 && S_ISREG(x.mode) ? sfile_peek(n, bucket, x.ino) : NULL;
    if (!f)
        return r == -ENOENT ? 0 : r;
    _cleanup_(hard_unrefp) struct hard *h = NULL;
    sfile_enter(n, f);
    lock_take(&n->lock);
    bool unsettled = f->unsettled;
    lock_drop(&n->lock);
    if (unsettled)
        r = snode_find_hard(n, bucket, a, &x, &h, e);
    if (r == 0 && h && (r = hard_stat(h, &st)) < 0)
        (void)err_errno(e, r, "state of the file");
    else if (r == 0 && h)
        r = snode_record(n, &call, x.ino, &st, a, NULL, e);
    sfile_leave(n, f);
    sfile_put(n, f);
    return r == -ENOENT ? 0 : r; /* removed meanwhile */
}

/* ---- STAT, LIST ---- */

static int find_path(struct snode *n, uint64_t bucket, struct slice path, struct arena *a,
                     struct scratch_inode *ret, struct err *e)
{
    int r = scratch_path(n->names, bucket, path, a, ret, e);
    if (r == 0 && !S_ISREG(ret->mode) && !S_ISDIR(ret->mode))
        return err_set(e, -ENOENT, "no such object");
    return r == -ENOTDIR ? err_set(e, -ENOENT, "no such object") : r;
}

int op_scratch_stat(struct scratch_op *o, const struct wire_stat_req *req, struct arena *a,
                    struct wire_stat_rep *rep, struct err *e)
{
    struct scratch_inode x;
    bool posix = req->flags & WIRE_POSIX, modes = req->flags & WIRE_MODES && !posix;
    int r = posix   ? find_path(o->node, o->call.bucket, req->key, a, &x, e)
            : modes ? smodes_find(o, req->key, a, &x, e)
                    : scratch_find(o->node->names, o->call.bucket, req->key, a, &x, e);
    if (r == 0)
        r = refuse_over(o, a, &x, e);
    if (r == 0)
        sobject_attr(o->node, o->call.bucket, &x, posix, a, &rep->attr);
    if (r == 0 && modes)
        smodes_add(&x, a, &rep->attr);
    if (r == 0 && req->flags & WIRE_SINCE)
        rep->attr.mtime_ns = scratch_since_ns(&x);
    return r;
}

int op_scratch_parts(struct scratch_op *o, const struct wire_parts_req *req, struct arena *a,
                     struct wire_parts_rep *rep, struct err *e)
{
    _cleanup_buf_ struct buf b = BUF_INIT(SCRATCH_PARTS_MAX);
    struct scratch_inode x;
    int r = scratch_find(o->node->names, o->call.bucket, req->key, a, &x, e);
    if (r < 0)
        return r;
    snode_fresh(o->node, o->call.bucket, a, &x);
    if (!slice_eq(scratch_etag(&x, a), req->etag))
        return err_set(e, -ESTALE, "the object has another ETag");
    if (!(x.flags & SCRATCH_PARTED) || x.etag.n == 0) /* written to since: those were other bytes */
        return 0;
    r = scratch_parts(o->node->names, o->call.bucket, x.ino, &b, e);
    if (r == -ENOENT) /* replaced since it was found */
        return err_set(e, -ESTALE, "the object has another ETag");
    if (r == 0)
        rep->parts = arena_dup(a, buf_view(&b));
    return r;
}

struct listing {
    struct scratch_op *o;
    struct arena *a; /* of one entry */
    struct buf out, next;
    uint32_t n;
    bool since; /* WIRE_SINCE */
};

static int on_key(void *arg, const struct scratch_listed *x)
{
    struct listing *l = arg;
    struct wire_entry w = {.key = x->key, .attr = {.kind = WIRE_DIRECTORY}};
    arena_clear(l->a);
    if (!x->is_prefix) {
        struct scratch_inode inode = *x->inode;
        if (sobject_is_over(l->o->node, l->o->bucket, l->a, &inode)) {
            buf_clear(&l->next);
            return buf_slice(&l->next, x->key) < 0 ? -EINVAL : SCRATCH_PASS_BY;
        }
        sobject_attr(l->o->node, l->o->call.bucket, &inode, /* posix= */ false, l->a, &w.attr);
        w.attr.content_type = w.attr.meta = SLICE_NULL; /* as origins list */
        if (S_ISLNK(inode.mode))
            w.attr.size_bytes = inode.target.n;
        if (l->since)
            w.attr.mtime_ns = scratch_since_ns(&inode);
    }
    int r = wire_entry_encode(&w, &l->out);
    if (r < 0)
        return l->n > 0 ? -E2BIG : -EINVAL;
    l->n++;
    buf_clear(&l->next);
    return buf_slice(&l->next, x->key);
}

static int list(struct listing *l, const struct wire_list_req *q, struct arena *a, struct wire_list_rep *rep,
                struct err *e)
{
    const struct scratch_list what = {.prefix = q->prefix,
                                      .delimiter = (char)q->delimiter,
                                      .after = q->after,
                                      .max = q->max == 0 || q->max > LIST_MAX ? LIST_MAX : q->max,
                                      .paths_only = q->flags & WIRE_POSIX,
                                      .links = q->flags & WIRE_MODES};
    bool truncated = false;
    int r = scratch_list(l->o->node->names, l->o->call.bucket, &what, on_key, l, &truncated, e);
    if (r < 0)
        return r;
    rep->entries = arena_dup(a, buf_view(&l->out));
    rep->n_entries = l->n;
    rep->truncated = truncated;
    rep->next = truncated ? arena_dup(a, buf_view(&l->next)) : SLICE_NULL;
    return 0;
}

int op_scratch_list(struct scratch_op *o, const struct wire_list_req *req, struct arena *a,
                    struct wire_list_rep *rep, struct err *e)
{
    if (req->delimiter > 127 || req->prefix.n > ORIGIN_KEY_MAX_BYTES ||
        req->after.n > ORIGIN_KEY_MAX_BYTES + 1)
        return err_set(e, -EINVAL, "prefix, marker or delimiter is not one of ours");
    struct listing l = {.o = o,
                        .since = req->flags & WIRE_SINCE,
                        .a = arena_new(ENTRY_ARENA),
                        .out = BUF_INIT(PAGE_MAX_BYTES),
                        .next = BUF_INIT(ORIGIN_KEY_MAX_BYTES + 8)};
    int r = list(&l, req, a, rep, e);
    arena_free(l.a);
    buf_fini(&l.out);
    buf_fini(&l.next);
    return r;
}

/* ---- REMOVE, directories ---- */

int op_scratch_remove_since(struct scratch_op *o, const struct wire_remove_since_req *req, struct arena *a,
                            struct wire_remove_since_rep *rep, struct err *e)
{
    (void)rep;
    struct scratch_orphans orphans = {0};
    const struct scratch_version seen = {.etag = req->if_match, .since_ns = req->since_ns};
    int r = object_check_key(req->key, e);
    if (r == 0)
        r = sobject_record(o->node, o->call.bucket, req->key, a, e);
    if (r == 0)
        r = scratch_remove_version(o->node->names, &o->call, req->key, &seen, &orphans, e);
    snode_free_unnamed(o->node, &orphans);
    if (r == -ENOENT)
        r = 0; /* as of REMOVE */
    return r < 0 ? r : scratch_sync(o->node->names, e);
}

int op_scratch_remove(struct scratch_op *o, const struct wire_remove_req *req, struct arena *a,
                      struct wire_remove_rep *rep, struct err *e)
{
    (void)rep;
    struct scratch_orphans orphans = {0};
    struct scratch_inode x;
    bool posix = req->flags & WIRE_POSIX;
    int r = object_check_key(req->key, e);
    if (r == 0 && posix)
        r = find_path(o->node, o->call.bucket, req->key, a, &x, e);
    if (r == 0 && posix && S_ISDIR(x.mode))
        return err_set(e, -EISDIR, "is a directory");
    if (r == 0 && req->if_match.n > 0)
        r = sobject_record(o->node, o->call.bucket, req->key, a, e);
    if (r == 0)
        r = scratch_remove_key(o->node->names, &o->call, req->key, req->if_match, &orphans, e);
    snode_free_unnamed(o->node, &orphans);
    if (r == -ENOENT && !posix)
        r = 0; /* whoever removed it may not have waited until that was durable */
    return r < 0 ? r : scratch_sync(o->node->names, e);
}

/* The directory that `key` is in, and its name there. */
static int find_parent(struct scratch_op *o, struct slice key, struct arena *a, uint64_t *ret_dir,
                       struct slice *ret_name, struct err *e)
{
    struct scratch_inode x;
    if (!scratch_key_is_path(key) || slice_ends(key, SLICE_LIT("/")))
        return err_set(e, -EINVAL, "not a path");
    ssize_t slash = slice_rfind(key, '/');
    struct slice dir = slice_sub(key, 0, slash < 0 ? 0 : (size_t)slash);
    int r = scratch_path(o->node->names, o->call.bucket, dir, a, &x, e);
    if (r < 0)
        return r;
    *ret_dir = x.ino;
    *ret_name = slice_from(key, (size_t)(slash + 1));
    return 0;
}

int op_scratch_mkdir(struct scratch_op *o, const struct wire_mkdir_req *req, struct arena *a,
                     struct wire_mkdir_rep *rep, struct err *e)
{
    const struct scratch_new n = {.mode = S_IFDIR | 0755, .exclusive = true};
    struct scratch_inode x;
    uint64_t dir;
    struct slice name;
    int r = object_check_key(req->key, e);
    if (r == 0)
        r = find_parent(o, req->key, a, &dir, &name, e);
    if (r == 0)
        r = scratch_create(o->node->names, &o->call, dir, name, &n, a, &x, NULL, e);
    if (r == 0)
        r = scratch_sync(o->node->names, e);
    if (r == 0)
        sobject_attr(o->node, o->call.bucket, &x, /* posix= */ true, a, &rep->attr);
    return r;
}

int op_scratch_rmdir(struct scratch_op *o, const struct wire_rmdir_req *req, struct arena *a,
                     struct wire_rmdir_rep *rep, struct err *e)
{
    (void)rep;
    uint64_t dir;
    struct slice name;
    int r = object_check_key(req->key, e);
    if (r == 0)
        r = find_parent(o, req->key, a, &dir, &name, e);
    if (r == 0)
        r = scratch_rmdir(o->node->names, &o->call, dir, name, e);
    return r < 0 ? r : scratch_sync(o->node->names, e);
}

/* ---- what caches do ---- */

static int no_cache(const struct scratch_op *o, struct err *e)
{
    return err_set(
        e, ERR_BAD_OPTION,
        "bucket %s is a scratch bucket: its objects are here and nowhere else, so nothing of it is a "
        "cached copy",
        o->bucket->name);
}

int op_scratch_cached(struct scratch_op *o, const struct wire_cached_req *req, struct arena *a,
                      struct wire_cached_rep *rep, struct err *e)
{
    (void)req, (void)a, (void)rep;
    return no_cache(o, e);
}

int op_scratch_evict(struct scratch_op *o, const struct wire_evict_req *req, struct arena *a,
                     struct wire_evict_rep *rep, struct err *e)
{
    (void)a, (void)rep;
    /* Who wants to read what is really there has that already. */
    return req->flags & WIRE_FRESH ? 0 : no_cache(o, e);
}
