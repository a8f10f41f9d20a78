/* Attributes of inodes: reading and changing them. */
#include "namespace/scratch_internal.h"

int scratch_getattr(struct scratch *s, uint64_t bucket, uint64_t ino, struct arena *a,
                    struct scratch_inode *ret, struct err *e)
{
    _cleanup_buf_ struct buf raw = BUF_INIT(SCRATCH_RECORD_MAX);
    struct scratch_inode x;
    uint64_t version;
    int r = scratch_record_inode(s, bucket, ino, &raw, &x, &version, e);
    if (r == -ENOENT)
        return err_set(e, -ENOENT, "inode %llu does not exist", (unsigned long long)ino);
    if (r == 0)
        *ret = scratch_inode_dup(&x, a);
    return r;
}

int scratch_getattr_removed(struct scratch *s, uint64_t bucket, uint64_t ino, struct arena *a,
                            struct scratch_inode *ret)
{
    _cleanup_buf_ struct buf key = BUF_INIT(SCRATCH_KEY_MAX), raw = BUF_INIT(SCRATCH_RECORD_MAX);
    struct scratch_inode x;
    scratch_key(bucket, ino, SCRATCH_KEY_INODE, SLICE_NULL, &key);
    int r = lru_get(s->removed, buf_view(&key), &raw);
    r = r < 0 ? r : scratch_inode_decode(buf_view(&raw), ino, &x);
    if (r == 0)
        *ret = scratch_inode_dup(&x, a);
    return r;
}

struct slice scratch_etag(const struct scratch_inode *x, struct arena *a)
{
    if (x->etag.n > 0)
        return x->etag;
    uint64_t state = hash_mix(hash_mix(x->ino, x->size_bytes), (uint64_t)x->mtime_ns);
    return slice_str(
        arena_printf(a, "%016llx%016llx-1", (unsigned long long)x->ino, (unsigned long long)state));
}

struct set_arg {
    uint64_t ino;
    const struct scratch_set *set;
};

static int check_set(const struct scratch_inode *x, const struct scratch_set *set, struct err *e)
{
    const uint32_t of_files =
        SCRATCH_SET_SIZE | SCRATCH_SET_ALLOCATED | SCRATCH_SET_LOCATION | SCRATCH_SET_WRITING;
    if (set->what & of_files && S_ISDIR(x->mode))
        return err_set(e, -EISDIR, "is a directory");
    if (set->what & of_files && !S_ISREG(x->mode))
        return err_set(e, -EINVAL, "not a file");
    if ((set->what & SCRATCH_SET_LOCATION && set->location.n > SCRATCH_LOCATION_MAX) ||
        (set->what & SCRATCH_SET_ETAG && set->etag.n > SCRATCH_ETAG_MAX) ||
        (set->what & SCRATCH_SET_CONTENT_TYPE && set->content_type.n > SCRATCH_CONTENT_MAX) ||
        (set->what & SCRATCH_SET_META && set->meta.n > SCRATCH_META_MAX))
        return err_set(e, -E2BIG, "location, ETag, content type or metadata is too long");
    return 0;
}

/* A write or change of owner by anyone takes the right to run as the owner, from everything but directories.
 */
static uint32_t without_privilege(uint32_t mode)
{
    if (S_ISDIR(mode))
        return mode;
    return mode & ~(uint32_t)(S_ISUID | (mode & S_IXGRP ? S_ISGID : 0));
}

static void set_owner_and_mode(struct scratch_inode *x, const struct scratch_set *set,
                               const struct scratch_cred *cred)
{
    if (set->what & (SCRATCH_SET_UID | SCRATCH_SET_GID | SCRATCH_SET_DROP_PRIVILEGE))
        x->mode = without_privilege(x->mode);
    if (set->what & SCRATCH_SET_DROP_GROUP && !S_ISDIR(x->mode))
        x->mode &= ~(uint32_t)S_ISGID;
    if (set->what & SCRATCH_SET_UID)
        x->uid = set->uid;
    if (set->what & SCRATCH_SET_GID)
        x->gid = set->gid;
    if (!(set->what & SCRATCH_SET_MODE))
        return;
    x->mode = (x->mode & S_IFMT) | (set->mode & 07777);
    if (cred && cred->check && !scratch_in_group(cred, x->gid))
        x->mode &= ~(uint32_t)S_ISGID;
}

static void set_times(struct scratch_inode *x, const struct scratch_set *set, int64_t now_ns)
{
    if (set->what & SCRATCH_SET_ATIME)
        x->atime_ns = set->atime_ns;
    if (set->what & SCRATCH_SET_MTIME)
        x->mtime_ns = set->mtime_ns;
    if (set->what & SCRATCH_SET_ATIME_NOW)
        x->atime_ns = now_ns;
    if (set->what & SCRATCH_SET_MTIME_NOW)
        x->mtime_ns = now_ns;
    x->ctime_ns = set->what & SCRATCH_SET_CTIME ? set->ctime_ns : now_ns;
}

static void set_data(struct scratch_inode *x, const struct scratch_set *set, struct arena *a)
{
    if (set->what & SCRATCH_SET_SIZE) {
        x->size_bytes = set->size_bytes;
        x->etag = SLICE_NULL;
    }
    if (set->what & SCRATCH_SET_ALLOCATED)
        x->allocated_bytes = set->allocated_bytes;
    if (set->what & SCRATCH_SET_LOCATION)
        x->location = arena_dup(a, set->location);
    if (set->what & SCRATCH_SET_ETAG)
        x->etag = arena_dup(a, set->etag);
    if (set->what & SCRATCH_SET_CONTENT_TYPE)
        x->content_type = arena_dup(a, set->content_type);
    if (set->what & SCRATCH_SET_META)
        x->meta = arena_dup(a, set->meta);
}

static int prepare_set(struct scratch_change *c, void *arg, struct err *e)
{
    struct set_arg *q = arg;
    struct scratch_loaded *x;
    scratch_change_lock(c, &q->ino, 1);
    int r = scratch_change_inode(c, q->ino, &x, e);
    if (r == 0)
        r = check_set(&x->x, q->set, e);
    if (r == 0)
        r = scratch_may_set(&x->x, q->set, c->call->cred, e);
    if (r < 0)
        return r;
    scratch_change_touch(c, x, /* contents= */ false);
    set_owner_and_mode(&x->x, q->set, c->call->cred);
    set_data(&x->x, q->set, c->a);
    set_times(&x->x, q->set, c->now_ns);
    if (q->set->what & (SCRATCH_SET_LOCATION | SCRATCH_SET_WRITING))
        scratch_change_writing(c, x);
    c->answer_ino = q->ino; /* of a creation, too, that emptied what was there */
    return 0;
}

int scratch_setattr(struct scratch *s, const struct scratch_call *call, uint64_t ino,
                    const struct scratch_set *set, struct arena *a, struct scratch_inode *ret, struct err *e)
{
    struct set_arg q = {ino, set};
    _cleanup_change_ struct scratch_change c;
    scratch_change_init(&c, s, call);
    int r = scratch_change_run(&c, prepare_set, &q, e);
    if (r < 0)
        return r;
    if (c.replayed)
        return scratch_getattr(s, call->bucket, ino, a, ret, e);
    *ret = scratch_inode_dup(&c.inodes[0].x, a);
    return 0;
}
