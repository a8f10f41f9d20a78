/*
 * SETATTR: sizes, and where the bucket keeps them (`posix=on`) modes, owners and times.
 *
 * A file that is open for writing and was written to takes them along when it is published; of everything
 * else the object's metadata is changed at the origin before the call returns, and its refusal is what the
 * program gets. What a directory has is its marker's, which is made when there is none. The root of a whole
 * bucket has no object: what is set there holds for this mount.
 *
 * Without `posix=on` a mirror bucket keeps none of these: setting mode or times succeeds and changes nothing,
 * giving a file to another owner fails with EPERM.
 *
 * Where a change gives the object another ETag, whoever still knows the one before follows (versions.h).
 *
 * Failure modes: the origin's; EOPNOTSUPP where it cannot change metadata; EINVAL for times before 1970 and
 * after 2262; EFBIG for objects that the service cannot copy.
 */
#include "mount/mount_internal.h"

#include "base/sys.h"
#include "net/posix_meta.h"

#define NS_PER_S ((uint64_t)1000000000)

/* ---- size ---- */

/* By name: nothing is open through which it could be published later. */
static int truncate_closed(struct mount *m, struct node *n, uint64_t size, struct err *e)
{
    struct staging *s;
    int r = staging_is_refused(m, n) ? -ESTALE
                                     : staging_acquire(m, n, size == 0 ? STAGING_EMPTY : STAGING_COPY, &s, e);
    if (r < 0)
        return r;
    r = staging_truncate(s, size);
    if (r < 0)
        r = err_errno(e, r, "truncate of the staging file");
    else
        r = staging_publish(m, s, e);
    staging_release_writing(m, s);
    return r;
}

static int set_size(struct mount *m, struct node *n, uint64_t size, const struct fuse_file_info *fi,
                    struct err *e)
{
    if (m->read_only)
        return -EROFS;
    if (n->is_dir)
        return -EISDIR;
    struct handle *h = fi ? handle_of(fi) : NULL;
    if (!h || !h->staging || !h->is_writable)
        return truncate_closed(m, n, size, e);
    int r = staging_truncate(h->staging, size);
    return r < 0 ? err_errno(e, r, "truncate of the staging file") : 0;
}

/* ---- mode, owner, time ---- */

/* Somebody else has replaced the object, or it is a directory now: the next lookup finds what is there. What
 * is written here, or was published from here since it was asked for, stays found by its name. */
static int replaced(struct mount *m, struct node *n, struct slice etag)
{
    lock_take(node_table_lock(m->nodes));
    bool is_gone = n->parent && !n->staging && slice_eq(slice_of(n->etag, n->etag_n), etag);
    lock_drop(node_table_lock(m->nodes));
    if (is_gone)
        node_detach(m->nodes, n, /* is_unlinked= */ false);
    return -ESTALE;
}

/* Of the version that is known here, or of what our own changes have made of it meanwhile. */
static int ask_for_change(struct mount *m, struct wire_set_meta_req *req, const struct version_change *own,
                          char **etag, struct buf *b, struct wire_set_meta_rep *ret, struct err *e)
{
    req->if_match = slice_str(*etag);
    int r = client_set_meta(m->client, req, b, ret, e);
    char *now = r == ERR_PRECONDITION ? versions_now(&m->versions, req->key, req->if_match, own) : NULL;
    if (!now)
        return r;
    free(*etag);
    *etag = now;
    req->if_match = slice_str(now);
    buf_clear(b);
    return client_set_meta(m->client, req, b, ret, e);
}

/* What the object is now; of another version nothing is taken over. */
static int take_change(struct mount *m, struct node *n, const struct wire_attr *attr)
{
    struct node_attr a = mount_node_attr(m, attr, /* has_meta= */ true);
    lock_take(node_table_lock(m->nodes));
    bool is_it = a.is_dir == n->is_dir && (a.is_dir || a.size_bytes == n->size_bytes);
    lock_drop(node_table_lock(m->nodes));
    if (!is_it) {
        node_detach(m->nodes, n, /* is_unlinked= */ false);
        return -ESTALE;
    }
    node_set_attr(m->nodes, n, &a);
    return 0;
}

/* What was published from here and is open still is found by its name, whatever version the origin calls it
 * by now: the rename of a directory around it has copied it. Its size and time tell it from what others put
 * there.
 */
static bool is_copied(struct mount *m, struct node *n, struct slice key, char **etag)
{
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    struct wire_attr a;
    struct err ignored = {0};
    struct stat shown;
    if (n->is_dir || mount_ask(m, key, &b, &a, &ignored) < 0 || a.kind == WIRE_DIRECTORY)
        return false;
    struct node_attr now = mount_node_attr(m, &a, /* has_meta= */ true);
    mount_stat(m, n, &shown);
    LOCK_SCOPE(node_table_lock(m->nodes));
    uint64_t mtime_ns = (uint64_t)shown.st_mtim.tv_sec * NS_PER_S + (uint64_t)shown.st_mtim.tv_nsec;
    if (!n->staging || now.size_bytes != (uint64_t)shown.st_size || now.mtime_ns != mtime_ns ||
        slice_eq_str(now.etag, *etag))
        return false;
    free(*etag);
    *etag = slice_dup(now.etag);
    return true;
}

/* One after the other for each key, so that nothing of ours comes between the look at the version and its
 * change. */
static int change_object(struct mount *m, struct node *n, struct wire_set_meta_req *req, struct err *e)
{
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    struct wire_set_meta_rep rep = {0};
    struct version_change own;
    versions_begin(&m->versions, &own, req->key);
    lock_take(node_table_lock(m->nodes));
    _cleanup_free_ char *known = slice_dup(slice_of(n->etag, n->is_dir ? 0 : n->etag_n));
    lock_drop(node_table_lock(m->nodes));
    _cleanup_free_ char *etag = slice_dup(slice_str(known));
    int r = ask_for_change(m, req, &own, &etag, &b, &rep, e);
    if (r == ERR_PRECONDITION && is_copied(m, n, req->key, &etag)) {
        buf_clear(&b);
        r = ask_for_change(m, req, &own, &etag, &b, &rep, e);
    }
    struct slice to = r == 0 && !n->is_dir ? rep.attr.etag : SLICE_NULL;
    if (r == 0)
        r = take_change(m, n, &rep.attr);
    else if (r == ERR_PRECONDITION)
        r = replaced(m, n, slice_str(known));
    versions_end(&m->versions, &own, slice_str(etag), to);
    return r;
}

int mount_change_object(struct mount *m, struct node *n, const struct posix_meta *change, struct err *e)
{
    _cleanup_buf_ struct buf key = BUF_INIT(MOUNT_KEY_MAX_BYTES), meta = BUF_INIT(POSIX_META_MAX_BYTES);
    int r = mount_key(m, n, SLICE_NULL, &key);
    if (r == 0)
        r = posix_meta_encode(change, &meta);
    if (r < 0)
        return r;
    struct slice name = buf_view(&key);
    if (slice_ends(name, SLICE_LIT("/"))) /* the root of a mount of a directory */
        name = slice_sub(name, 0, name.n - 1);
    struct wire_set_meta_req req = {.bucket = slice_str(m->bucket),
                                    .key = name,
                                    .meta = buf_view(&meta),
                                    .kind = n->is_dir ? WIRE_DIRECTORY : WIRE_FILE,
                                    .flags = WIRE_POSIX};
    return change_object(m, n, &req, e);
}

static int time_of(const struct stat *attr, int to_set, uint64_t *ret_ns)
{
    if (to_set & FUSE_SET_ATTR_MTIME_NOW) {
        *ret_ns = sys->real_ns();
        return 0;
    }
    if (attr->st_mtim.tv_sec < 0 || (uint64_t)attr->st_mtim.tv_sec >= POSIX_META_MAX_NS / NS_PER_S)
        return -EINVAL;
    *ret_ns = (uint64_t)attr->st_mtim.tv_sec * NS_PER_S + (uint64_t)attr->st_mtim.tv_nsec;
    return 0;
}

static int change_of(struct mount *m, struct node *n, const struct stat *attr, int to_set,
                     struct posix_meta *ret)
{
    struct stat now;
    *ret = (struct posix_meta){.uid = attr->st_uid, .gid = attr->st_gid};
    mount_stat(m, n, &now);
    ret->mode = (now.st_mode & S_IFMT) | (attr->st_mode & 07777);
    ret->has = (to_set & FUSE_SET_ATTR_MODE ? POSIX_HAS_MODE : 0) |
               (to_set & FUSE_SET_ATTR_UID ? POSIX_HAS_UID : 0) |
               (to_set & FUSE_SET_ATTR_GID ? POSIX_HAS_GID : 0);
    if (!(to_set & (FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_MTIME_NOW)))
        return 0;
    ret->has |= POSIX_HAS_MTIME;
    return time_of(attr, to_set, &ret->mtime_ns);
}

/* Of what no object keeps. */
static void change_here(struct mount *m, struct node *n, const struct posix_meta *change)
{
    struct stat now;
    mount_stat(m, n, &now);
    struct node_attr a = {
        .is_dir = n->is_dir,
        .size_bytes = (uint64_t)now.st_size,
        .has_owner = true,
        .mode = change->has & POSIX_HAS_MODE ? change->mode : now.st_mode,
        .uid = change->has & POSIX_HAS_UID ? change->uid : now.st_uid,
        .gid = change->has & POSIX_HAS_GID ? change->gid : now.st_gid,
        .mtime_ns = change->has & POSIX_HAS_MTIME
                        ? change->mtime_ns
                        : (uint64_t)now.st_mtim.tv_sec * NS_PER_S + (uint64_t)now.st_mtim.tv_nsec,
    };
    lock_take(node_table_lock(m->nodes));
    _cleanup_free_ char *etag = slice_dup(slice_of(n->etag, n->etag_n));
    a.etag = slice_of(etag, n->etag_n);
    lock_drop(node_table_lock(m->nodes));
    node_set_attr(m->nodes, n, &a);
}

static int set_owner_entered(struct mount *m, struct node *n, const struct stat *attr, int to_set,
                             struct err *e)
{
    struct posix_meta change;
    struct staging *s = NULL;
    int r = change_of(m, n, attr, to_set, &change);
    if (r < 0 || change.has == 0) /* an atime: shown is the mtime */
        return r;
    r = n->is_dir ? -ENOENT : staging_acquire(m, n, STAGING_JOIN, &s, e);
    if (r == 0) {
        r = staging_set_attr(m, s, &change, e);
        staging_release(m, s);
        return r;
    }
    lock_take(node_table_lock(m->nodes));
    bool has_object = !n->is_unlinked && (n->parent || m->prefix[0] != '\0');
    lock_drop(node_table_lock(m->nodes));
    if (r == -ENOENT && has_object)
        return mount_change_object(m, n, &change, e);
    if (r == -ENOENT)
        change_here(m, n, &change);
    return r == -ENOENT ? 0 : r;
}

/* Not of what the rename of a directory has copied already. */
static int set_owner(struct mount *m, struct node *n, const struct stat *attr, int to_set, struct err *e)
{
    struct pause_user user;
    pause_enter(m, &user, n, /* b= */ NULL);
    int r = set_owner_entered(m, n, attr, to_set, e);
    pause_leave(m, &user);
    return r;
}

static int set_attr(struct mount *m, struct node *n, const struct stat *attr, int to_set,
                    const struct fuse_file_info *fi, struct err *e)
{
    bool is_other = (to_set & FUSE_SET_ATTR_UID && attr->st_uid != m->uid) ||
                    (to_set & FUSE_SET_ATTR_GID && attr->st_gid != m->gid);
    if (m->read_only)
        return -EROFS;
    if (is_other && !m->posix)
        return -EPERM;
    int r = to_set & FUSE_SET_ATTR_SIZE ? set_size(m, n, (uint64_t)attr->st_size, fi, e) : 0;
    return r == 0 && m->posix ? set_owner(m, n, attr, to_set, e) : r;
}

void mount_op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
                      struct fuse_file_info *fi)
{
    struct mount *m = mount_of(req);
    struct err e = {0};
    if (mount_parks(req))
        return;
    struct node *n = node_get(m->nodes, ino);
    int r = n ? set_attr(m, n, attr, to_set, fi, &e) : -ESTALE;
    if (r < 0) {
        mount_reply_error(req, "setattr", r, &e);
    } else {
        struct stat st;
        mount_stat(m, n, &st);
        (void)fuse_reply_attr(req, &st, m->timeout_s);
    }
    node_unref(m->nodes, n);
}
