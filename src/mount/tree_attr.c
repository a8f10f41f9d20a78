/*
 * GETATTR, SETATTR, and what stat shows.
 *
 * The node knows size and times of files that are written through descriptors, because it asks the file. When
 * it has forgotten an inode that is still open here (its last name went, and the node was restarted), this
 * side answers from the descriptor and what it remembers; likewise while the node is away.
 *
 * Set-user-ID and set-group-ID: the kernel leaves it to us to take them away (PASSTHROUGH_KILLPRIV). Before a
 * write it sends a SETATTR of nothing; so does chown(2) with neither owner nor group. Where the group may not
 * execute the file, set-group-ID goes with a write of who is not in it (Linux 6.2 and later ask for that,
 * too), of which the node knows nothing: it is asked a second time.
 */
#include "mount/tree.h"

#include "base/sys.h"

#include <math.h>

#define NS_PER_S       1000000000ll
#define SECTOR_BYTES   512
#define CAPABILITY     "security.capability"
#define NOW_TRIES      2 /* a session that is over shows only when it is used; the next one is made at once */
#define KILL_PRIVILEGE FUSE_SET_ATTR_KILL_SUID /* the bit of FATTR_KILL_SUIDGID */

static struct timespec time_of(int64_t ns)
{
    struct timespec t = {.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};
    if (t.tv_nsec < 0) {
        t.tv_nsec += NS_PER_S;
        t.tv_sec--;
    }
    return t;
}

/* The nearest one that can be kept, from 1677 to 2262, as other file systems do. */
static int64_t ns_of(struct timespec t)
{
    if (t.tv_sec >= INT64_MAX / NS_PER_S)
        return INT64_MAX / NS_PER_S * NS_PER_S;
    if (t.tv_sec <= INT64_MIN / NS_PER_S)
        return INT64_MIN / NS_PER_S * NS_PER_S;
    return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

void tree_stat(const struct wire_inode *x, struct stat *ret)
{
    memset(ret, 0, sizeof(*ret));
    ret->st_ino = x->ino;
    ret->st_mode = x->mode;
    ret->st_nlink = x->links;
    ret->st_uid = x->uid;
    ret->st_gid = x->gid;
    ret->st_rdev = x->rdev;
    ret->st_size = (off_t)(S_ISLNK(x->mode) ? x->target.n : x->size_bytes);
    ret->st_blksize = (blksize_t)MOUNT_BLOCK_BYTES;
    ret->st_blocks = (blkcnt_t)((x->allocated_bytes + SECTOR_BYTES - 1) / SECTOR_BYTES);
    ret->st_atim = time_of(x->atime_ns);
    ret->st_mtim = time_of(x->mtime_ns);
    ret->st_ctim = time_of(x->ctime_ns);
}

void tree_fill_entry(struct mount *m, const struct wire_inode *x, struct fuse_entry_param *ret)
{
    *ret = (struct fuse_entry_param){.ino = tree_id(m, x->ino),
                                     .attr_timeout = tree_attr_timeout_s(m, x),
                                     .entry_timeout = tree_name_timeout_s(m)};
    tree_stat(x, &ret->attr);
    tree_file_told(m, x);
}

void tree_reply_entry(fuse_req_t req, const struct wire_inode *x)
{
    struct mount *m = mount_of(req);
    struct fuse_entry_param entry;
    tree_file_note(m, x);
    tree_fill_entry(m, x, &entry);
    (void)fuse_reply_entry(req, &entry);
}

/* Believed for `most_s` at most. */
static void reply_attr_within(fuse_req_t req, const struct wire_inode *x, double most_s)
{
    struct mount *m = mount_of(req);
    struct stat st;
    tree_stat(x, &st);
    double timeout_s = tree_attr_timeout_s(m, x);
    tree_file_told(m, x);
    (void)fuse_reply_attr(req, &st, MIN(timeout_s, most_s));
}

static void reply_attr(fuse_req_t req, const struct wire_inode *x)
{
    reply_attr_within(req, x, /* most_s= */ HUGE_VAL);
}

/* ---- without the node ---- */

/* What is remembered of an inode that is open here, with size and times of the file. -ENOENT: nothing is. */
static int stat_remembered(struct mount *m, struct tree_file *f, struct wire_inode *ret)
{
    struct stat st;
    int fd = tree_file_fd(f);
    if (!tree_file_known(m, f, ret))
        return -ENOENT;
    if (fd >= 0 && sys->fstat(fd, &st) == 0) {
        ret->size_bytes = (uint64_t)st.st_size;
        ret->allocated_bytes = (uint64_t)st.st_blocks * SECTOR_BYTES;
        ret->mtime_ns = ns_of(st.st_mtim);
        ret->ctime_ns = MAX(ret->ctime_ns, ns_of(st.st_ctim));
    }
    return 0;
}

/* Of one that the node has forgotten. */
static int stat_forgotten(struct mount *m, struct tree_file *f, struct wire_inode *ret)
{
    int r = stat_remembered(m, f, ret);
    if (r == 0)
        ret->links = 0;
    return r;
}

/* Modes and owners of such an inode concern nobody any more; its bytes do. */
static int set_forgotten(struct mount *m, struct tree_file *f, const struct wire_tree_setattr_req *req,
                         struct wire_inode *ret)
{
    int fd = tree_file_fd(f), r = 0;
    if (req->what & WIRE_SET_SIZE)
        r = fd < 0 ? -ENOENT : sys->ftruncate(fd, req->size);
    struct wire_inode x;
    if (r == 0)
        r = stat_forgotten(m, f, &x);
    if (r < 0)
        return r;
    if (req->what & WIRE_SET_MODE)
        x.mode = (x.mode & S_IFMT) | (req->mode & 07777);
    if (req->what & WIRE_SET_UID)
        x.uid = req->uid;
    if (req->what & WIRE_SET_GID)
        x.gid = req->gid;
    tree_file_note(m, &x);
    *ret = x;
    return 0;
}

/* ---- GETATTR ---- */

static int ask_attr(struct mount *m, uint64_t ino, struct buf *b, struct wire_inode *ret, struct err *e)
{
    struct wire_tree_getattr_req req = {.bucket = slice_str(m->bucket), .ino = ino};
    struct wire_tree_getattr_rep rep;
    int r = client_tree_getattr(m->client, &req, b, &rep, e);
    if (r == 0)
        *ret = rep.inode;
    return r;
}

/* The same of an inode that is open here, whose reader (the kernel asks before it reads) is not to wait for a
 * node that is away: -EBADF then, at once. */
static int ask_attr_now(struct mount *m, uint64_t ino, struct buf *b, struct wire_inode *ret, struct err *e)
{
    struct wire_tree_getattr_req req = {.bucket = slice_str(m->bucket), .ino = ino};
    struct wire_tree_getattr_rep rep;
    int r = -EBADF;
    for (int i = 0; i < NOW_TRIES && r == -EBADF; i++) {
        uint64_t epoch = client_epoch(m->client);
        r = client_call_at(m->client, &epoch, WIRE_OP_TREE_GETATTR, &req, b, &rep, e);
    }
    if (r == 0)
        *ret = rep.inode;
    return r;
}

static int get_attr(struct mount *m, uint64_t ino, struct buf *b, struct wire_inode *ret, struct err *e)
{
    struct tree_file *f = tree_file_find(m, ino);
    /* What is remembered of a file whose bytes the node has is of before it was written to. */
    bool is_known = f && !m->tree->is_remote && tree_file_known(m, f, ret);
    int r = is_known ? ask_attr_now(m, ino, b, ret, e) : ask_attr(m, ino, b, ret, e);
    if (r == 0)
        tree_file_note(m, ret);
    else if (r == -EBADF && is_known)
        r = stat_remembered(m, f, ret);
    else if (r == -ENOENT && f)
        r = stat_forgotten(m, f, ret);
    if (f)
        tree_file_unref(m, f);
    return r;
}

static bool is_gone(int r, const struct wire_inode *x)
{
    return r == -ENOENT || (r == 0 && x->links == 0);
}

/* Of the root the kernel asks before it looks anything up in it, as it does not believe in its attributes for
 * long, and is told when others have changed the bucket. */
void tree_op_getattr(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
    (void)fi;
    struct mount *m = mount_of(req);
    struct err e = {0};
    struct wire_inode x;
    struct tree_known *known = m->tree->known;
    uint64_t ino = tree_ino(m, id), serial = tree_known_serial(known, ino);
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    double left_s;
    if (tree_is_alone(m) && tree_known_attr(known, ino, &x, &left_s)) {
        reply_attr_within(req, &x, left_s);
        return;
    }
    int r = get_attr(m, ino, &b, &x, &e);
    if (id == FUSE_ROOT_ID && is_gone(r, &x) && tree_find_root_again(m)) {
        ino = tree_ino(m, id);
        serial = tree_known_serial(known, ino);
        buf_clear(&b);
        r = get_attr(m, ino, &b, &x, &e);
    }
    if (r < 0) {
        mount_reply_error(req, "getattr", r, &e);
        return;
    }
    if (S_ISDIR(x.mode) && x.links > 0)
        tree_known_note(known, &x, serial);
    reply_attr(req, &x);
}

/* ---- SETATTR ---- */

/* Of the kernel's bits those that the node knows. */
static uint32_t what_to_set(int to_set, bool is_root)
{
    uint32_t what = 0;
    if (to_set & FUSE_SET_ATTR_MODE)
        what |= WIRE_SET_MODE;
    if (to_set & FUSE_SET_ATTR_UID)
        what |= WIRE_SET_UID;
    if (to_set & FUSE_SET_ATTR_GID)
        what |= WIRE_SET_GID;
    if (to_set & FUSE_SET_ATTR_SIZE)
        what |= WIRE_SET_SIZE;
    if (to_set & FUSE_SET_ATTR_ATIME)
        what |= to_set & FUSE_SET_ATTR_ATIME_NOW ? WIRE_SET_ATIME_NOW : WIRE_SET_ATIME;
    if (to_set & FUSE_SET_ATTR_MTIME)
        what |= to_set & FUSE_SET_ATTR_MTIME_NOW ? WIRE_SET_MTIME_NOW : WIRE_SET_MTIME;
    if (what == 0 || to_set & KILL_PRIVILEGE || (what & WIRE_SET_SIZE && !is_root))
        what |= WIRE_SET_DROP_PRIVILEGE;
    return what;
}

/* A write by somebody else takes capabilities as well. */
static int drop_capability(struct mount *m, uint64_t ino, struct err *e)
{
    struct wire_tree_xattr_remove_req req = {
        .bucket = slice_str(m->bucket), .ino = ino, .name = SLICE_LIT(CAPABILITY), TREE_CHANGE(m)};
    struct wire_tree_xattr_remove_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = client_tree_xattr_remove(m->client, &req, &b, &rep, e);
    return r == -ENODATA || r == -ENOENT ? 0 : r;
}

/* Where its groups cannot be told, as of a process that is not seen here, it is in its own alone. */
static bool is_in_group(fuse_req_t req, gid_t gid)
{
    int n = fuse_req_ctx(req)->gid == gid ? 0 : fuse_req_getgroups(req, 0, NULL);
    if (n <= 0)
        return fuse_req_ctx(req)->gid == gid;
    _cleanup_free_ gid_t *groups = calloc((size_t)n, sizeof(*groups));
    if (!groups)
        abort();
    n = MIN(n, fuse_req_getgroups(req, n, groups));
    for (int i = 0; i < n; i++)
        if (groups[i] == gid)
            return true;
    return false;
}

/* Has the node take `what` (WIRE_SET_DROP_*) off; *ret is what is left. */
static int drop(struct mount *m, uint64_t ino, uint32_t what, struct wire_inode *ret, struct err *e)
{
    struct wire_tree_setattr_req q = {
        .bucket = slice_str(m->bucket), .ino = ino, .what = what, TREE_CHANGE(m)};
    struct wire_tree_setattr_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = client_tree_setattr(m->client, &q, &b, &rep, e);
    if (r == 0)
        *ret = rep.inode;
    if (r == 0)
        ret->target = SLICE_NULL; /* it is in `b` */
    return r;
}

/* x: what is left after WIRE_SET_DROP_PRIVILEGE, changed. */
static int drop_group(fuse_req_t req, struct wire_inode *x, struct err *e)
{
    struct mount *m = mount_of(req);
    bool may_stay = m->tree->is_remote || fuse_req_ctx(req)->uid == 0 || !S_ISREG(x->mode) ||
                    (x->mode & (S_ISGID | S_IXGRP)) != S_ISGID || is_in_group(req, x->gid);
    if (may_stay)
        return 0;
    struct wire_inode left;
    int r = drop(m, x->ino, WIRE_SET_DROP_GROUP, &left, e);
    if (r == 0) {
        x->mode = left.mode;
        x->ctime_ns = left.ctime_ns;
        tree_file_note(m, x);
    }
    return r == -ENOENT ? 0 : r; /* forgotten by the node, as below */
}

int tree_drop_privilege(fuse_req_t req, struct tree_file *f, struct err *e)
{
    struct mount *m = mount_of(req);
    struct wire_inode x;
    if (m->tree->is_remote) /* the node does, with what changes the bytes */
        return 0;
    if (fuse_req_ctx(req)->uid == 0 || !tree_file_known(m, f, &x) || !(x.mode & (S_ISUID | S_ISGID)))
        return 0;
    int r = drop(m, f->ino, WIRE_SET_DROP_PRIVILEGE, &x, e);
    if (r == 0)
        r = drop_group(req, &x, e);
    if (r == 0)
        tree_file_note(m, &x);
    return r == -ENOENT ? 0 : r; /* forgotten by the node: nobody can run it any more */
}

static int set_attr(struct mount *m, const struct wire_tree_setattr_req *req, struct buf *b,
                    struct wire_inode *ret, struct err *e)
{
    struct wire_tree_setattr_rep rep;
    struct tree_change change;
    tree_known_begin(m->tree->known, req->ino, SLICE_NULL, &change);
    int r = req->what & WIRE_SET_DROP_PRIVILEGE && !m->tree->is_remote ? drop_capability(m, req->ino, e) : 0;
    if (r == 0)
        r = client_tree_setattr(m->client, req, b, &rep, e);
    tree_known_end(m->tree->known, &change, /* made= */ NULL);
    if (r == 0) {
        *ret = rep.inode;
        tree_file_note(m, ret);
        return 0;
    }
    struct tree_file *f = r == -ENOENT ? tree_file_find(m, req->ino) : NULL;
    if (!f)
        return r;
    r = set_forgotten(m, f, req, ret);
    tree_file_unref(m, f);
    return r;
}

void tree_op_setattr(fuse_req_t req, fuse_ino_t id, struct stat *attr, int to_set, struct fuse_file_info *fi)
{
    (void)fi;
    struct mount *m = mount_of(req);
    struct err e = {0};
    struct wire_inode x;
    struct wire_tree_setattr_req q = {
        .bucket = slice_str(m->bucket),
        .ino = tree_ino(m, id),
        .what = what_to_set(to_set, fuse_req_ctx(req)->uid == 0),
        .mode = attr->st_mode & 07777,
        .uid = attr->st_uid,
        .gid = attr->st_gid,
        .size = (uint64_t)attr->st_size,
        .atime_ns = ns_of(attr->st_atim),
        .mtime_ns = ns_of(attr->st_mtim),
        TREE_CHANGE(m),
    };
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = set_attr(m, &q, &b, &x, &e);
    if (r == 0 && q.what & WIRE_SET_DROP_PRIVILEGE)
        r = drop_group(req, &x, &e);
    if (r < 0)
        mount_reply_error(req, "setattr", r, &e);
    else
        reply_attr(req, &x);
}
