/*
 * UNLINK, MKDIR, SYMLINK, RMDIR, RENAME, and what a mirror bucket has not: hard links, devices, and without
 * `posix=on` symbolic links.
 *
 * Each acts on the origin before it returns. Renaming is copying and removing at the origin, for a directory
 * of every object below it (EXDEV when those are too many, on which mv(1) and others copy).
 *
 * A request that comes again, because the process that had read it was killed before it answered (keeper.h),
 * may have been carried out: what it finds done is taken for its own doing. When the node is killed before it
 * answers, it is asked again under the same number, and knows itself what it had done (object/intent.h).
 */
#include "mount/mount_internal.h"

#include "base/hash.h"
#include "base/sys.h"
#include "client/client_writer.h"
#include "mount/before.h"
#include "mount/request.h"
#include "net/posix_meta.h"

#include <limits.h>
#include <linux/fs.h>

#define LINK_TRIES 3
#define MD5_DIGITS 32

/* Files that are still being written after a close could not publish them under a name (staging.c). */
struct spoilt {
    struct mount *m;
    struct slice name; /* the caller's */
    struct spoilt_one {
        struct node *node;
        struct staging *staging;
    } * all;
    size_t n;
};

/* What is needed to act on one name. */
struct target {
    struct mount *m;
    struct node *parent;
    struct slice name; /* the request's */
    struct node *node; /* NULL: not known here */
    struct staging *staging;
    struct spoilt spoilt;
    struct buf key;
    bool has_entered; /* with `user`, perhaps for another one, too */
    struct pause_user user;
    bool is_paused; /* with `pause`: it is about to lose its name */
    struct pause pause;
};

static int target_find(struct mount *m, fuse_ino_t parent_id, const char *name, struct target *t)
{
    *t = (struct target){.m = m, .name = slice_str(name), .key = BUF_INIT(MOUNT_KEY_MAX_BYTES)};
    t->parent = node_get(m->nodes, parent_id);
    if (!t->parent)
        return -ESTALE;
    return m->read_only ? -EROFS : 0;
}

/* Until target_fini the directory of its name, and that of `other`, which may be NULL, keep their own. */
static void target_enter(struct target *t, const struct target *other)
{
    pause_enter(t->m, &t->user, t->parent, other ? other->parent : NULL);
    t->has_entered = true;
}

/* What has the name now. loses_it: it is to be removed or replaced, and until target_fini nobody begins to
 * write it, who would not know that it has no name any more, and make that again; who does so already is
 * found here. */
static int target_look(struct target *t, bool loses_it)
{
    struct mount *m = t->m;
    t->node = node_find(m->nodes, t->parent, t->name);
    int r = mount_key(m, t->parent, t->name, &t->key);
    if (r < 0 || !t->node || t->node->is_dir)
        return r;
    if (loses_it)
        pause_begin(m, &t->pause, t->node, &t->user);
    t->is_paused = loses_it;
    r = staging_acquire(m, t->node, STAGING_JOIN, &t->staging, NULL);
    return r == -ENOENT ? 0 : r;
}

static int target_init(struct mount *m, fuse_ino_t parent_id, const char *name, bool loses_it,
                       struct target *t)
{
    int r = target_find(m, parent_id, name, t);
    if (r < 0)
        return r;
    target_enter(t, /* other= */ NULL);
    return target_look(t, loses_it);
}

static bool has_name(struct mount *m, const struct node *n, struct slice name)
{
    LOCK_SCOPE(node_table_lock(m->nodes));
    return slice_eq(slice_of(n->name, n->name_n), name);
}

static void take_spoilt(void *arg, struct node *n)
{
    struct spoilt *x = arg;
    struct staging *s = NULL;
    if (!has_name(x->m, n, x->name) || staging_acquire(x->m, n, STAGING_JOIN, &s, NULL) < 0) {
        node_unref(x->m->nodes, n);
        return;
    }
    x->all = realloc(x->all, (x->n + 1) * sizeof(x->all[0]));
    if (!x->all)
        abort();
    x->all[x->n++] = (struct spoilt_one){.node = n, .staging = s};
}

static void target_find_spoilt(struct target *t)
{
    t->spoilt = (struct spoilt){.m = t->m, .name = t->name};
    staging_each(t->m, t->parent, STAGING_SPOILT, take_spoilt, &t->spoilt);
}

/* Whoever still writes to a file that had this name writes to one without a name from now on: its next close
 * would bring back what is about to be removed, or overwrite what takes its place. */
static void target_begin_unlink(struct target *t)
{
    target_find_spoilt(t);
    for (size_t i = 0; i < t->spoilt.n; i++)
        (void)staging_begin_unlink(t->m, t->spoilt.all[i].staging);
}

static void target_end_unlink(struct target *t, bool is_unlinked)
{
    for (size_t i = 0; i < t->spoilt.n; i++) {
        if (is_unlinked)
            node_detach(t->m->nodes, t->spoilt.all[i].node, /* is_unlinked= */ true);
        staging_end_unlink(t->m, t->spoilt.all[i].staging, is_unlinked);
    }
}

/* Whoever still writes to a file that had this name goes along when it is moved: its next close would make
 * the old name again. Those who write hold no other while they wait for one of these, and a rename of a
 * directory above is not at work at the same time (pause.h). */
static void target_begin_follow(struct target *t)
{
    target_find_spoilt(t);
    for (size_t i = 0; i < t->spoilt.n; i++)
        staging_hold(t->m, t->spoilt.all[i].staging);
}

static void target_end_follow(struct target *t, struct target *to, bool has_moved)
{
    for (size_t i = 0; i < t->spoilt.n; i++) {
        if (has_moved)
            node_move_along(t->m->nodes, t->spoilt.all[i].node, to->parent, to->name);
        staging_end_move(t->m, t->spoilt.all[i].staging, has_moved);
    }
}

static void target_fini(struct target *t)
{
    for (size_t i = 0; i < t->spoilt.n; i++) {
        staging_release(t->m, t->spoilt.all[i].staging);
        node_unref(t->m->nodes, t->spoilt.all[i].node);
    }
    free(t->spoilt.all);
    if (t->is_paused)
        pause_end(t->m, &t->pause);
    if (t->staging)
        staging_release(t->m, t->staging);
    if (t->has_entered)
        pause_leave(t->m, &t->user);
    node_unref(t->m->nodes, t->node);
    node_unref(t->m->nodes, t->parent);
    buf_fini(&t->key);
}

static void reply(fuse_req_t req, const char *what, int r, const struct err *e)
{
    if (r < 0)
        mount_reply_error(req, what, r, e);
    else
        (void)fuse_reply_err(req, 0);
}

/* ---- unlink ---- */

static int unlink_target(struct target *t, struct err *e)
{
    struct mount *m = t->m;
    struct wire_remove_req req = {
        .bucket = slice_str(m->bucket), .key = buf_view(&t->key), .flags = WIRE_POSIX};
    struct wire_remove_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    bool is_there = t->staging ? staging_begin_unlink(m, t->staging) : true;
    int r = is_there ? client_remove(m->client, &req, &b, &rep, e) : 0;
    if (r == -ENOENT && t->staging)
        r = 0;
    if (t->node && (r == 0 || r == -ENOENT))
        node_detach(m->nodes, t->node, /* is_unlinked= */ true);
    if (t->staging)
        staging_end_unlink(m, t->staging, r == 0);
    return r == -ENOENT && request_comes_again() ? 0 : r;
}

void mount_op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct err e = {0};
    struct target t;
    if (mount_parks(req))
        return;
    int r = target_init(mount_of(req), parent, name, /* loses_it= */ true, &t);
    if (r == 0) {
        target_begin_unlink(&t);
        r = unlink_target(&t, &e);
        target_end_unlink(&t, r == 0 || r == -ENOENT);
    }
    target_fini(&t);
    reply(req, "unlink", r, &e);
}

/* ---- directories, symbolic links ---- */

/* Mode, owner and time of what this request makes; nothing where the bucket does not keep them. */
static int meta_of_new(fuse_req_t req, struct node *parent, uint32_t mode, struct buf *b)
{
    struct node_attr a = {0};
    mount_own_attr(req, parent, mode, &a);
    struct posix_meta p = {.has = a.has_owner ? POSIX_HAS_ALL : 0,
                           .mode = a.mode,
                           .uid = a.uid,
                           .gid = a.gid,
                           .mtime_ns = sys->real_ns()};
    return posix_meta_encode(&p, b);
}

static void reply_made(fuse_req_t req, struct target *t, const char *name, const struct node_attr *a)
{
    struct fuse_entry_param entry;
    struct node *n = node_look_up(t->m->nodes, t->parent, slice_str(name), a);
    mount_entry(t->m, n, &entry);
    if (fuse_reply_entry(req, &entry) < 0)
        node_forget(t->m->nodes, n->id, 1);
    node_unref(t->m->nodes, n);
}

void mount_op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
    struct mount *m = mount_of(req);
    struct err e = {0};
    struct target t;
    struct wire_mkdir_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES), meta = BUF_INIT(POSIX_META_MAX_BYTES);
    if (mount_parks(req))
        return;
    int r = target_init(m, parent, name, /* loses_it= */ false, &t);
    if (r == 0)
        r = meta_of_new(req, t.parent, S_IFDIR | (mode & 07777), &meta);
    if (r == 0) {
        struct wire_mkdir_req q = {
            .bucket = slice_str(m->bucket), .key = buf_view(&t.key), .meta = buf_view(&meta)};
        r = client_mkdir(m->client, &q, &b, &rep, &e);
    }
    if (r == -EEXIST && request_comes_again()) {
        buf_clear(&b);
        r = mount_ask(m, buf_view(&t.key), &b, &rep.attr, &e);
    }
    if (r < 0) {
        target_fini(&t);
        mount_reply_error(req, "mkdir", r, &e);
        return;
    }
    struct node_attr a = mount_node_attr(m, &rep.attr, /* has_meta= */ true);
    a.is_dir = true;
    reply_made(req, &t, name, &a);
    target_fini(&t);
}

/* An object whose bytes are the target, as posix_meta.h has it. */
static int put_link_once(struct target *t, struct slice target, struct slice meta, struct node_attr *ret,
                         struct client_writer **ret_writer, struct err *e)
{
    struct mount *m = t->m;
    struct wire_attr there;
    const struct client_attr *made;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    struct client_writer_open o = {.bucket = slice_str(m->bucket),
                                   .key = buf_view(&t->key),
                                   .size_bytes = target.n,
                                   .meta = meta,
                                   .if_none_match = true};
    int r = t->staging ? -EEXIST : mount_ask(m, buf_view(&t->key), &b, &there, e);
    if (r != -ENOENT)
        return r < 0 ? r : -EEXIST;
    r = client_writer_open(m->client, &o, ret_writer, e);
    if (r == 0)
        r = client_writer_write(*ret_writer, target.p, target.n, e);
    if (r == 0)
        r = client_writer_commit(*ret_writer, &made, e);
    if (r < 0)
        return r == ERR_PRECONDITION ? -EEXIST : r;
    struct wire_attr a = {.kind = WIRE_FILE,
                          .size_bytes = target.n,
                          .mtime_ns = made->mtime_ns,
                          .etag = slice_str(made->etag),
                          .meta = meta};
    *ret = mount_node_attr(m, &a, /* has_meta= */ true);
    return 0;
}

/* After a try that was not answered: whether this link is there. of: its metadata; empty: of a process
 * before, which gave it another time. b holds what *ret points to. */
static bool is_link_of_before(struct target *t, struct slice target, struct slice of, struct buf *b,
                              struct node_attr *ret)
{
    struct mount *m = t->m;
    struct wire_attr there;
    struct posix_meta made;
    char bytes[PATH_MAX];
    buf_clear(b);
    if (mount_ask(m, buf_view(&t->key), b, &there, NULL) < 0)
        return false;
    *ret = mount_node_attr(m, &there, /* has_meta= */ true);
    posix_meta_decode(of, /* is_dir= */ false, &made);
    if (made.has & POSIX_HAS_MTIME && ret->mtime_ns != made.mtime_ns)
        return false;
    if (!ret->has_owner || !S_ISLNK(ret->mode) || ret->size_bytes != target.n)
        return false;
    struct client_file_open o = {
        .bucket = slice_str(m->bucket), .key = buf_view(&t->key), .if_match = ret->etag};
    _cleanup_(client_file_closep) struct client_file *f = NULL;
    if (client_file_open(m->client, &o, &f, NULL) < 0)
        return false;
    ssize_t got = client_file_pread(f, bytes, sizeof(bytes), 0, NULL);
    return got >= 0 && slice_eq(slice_of(bytes, (size_t)got), target);
}

/* The node may be killed in the midst of it, and the object be there or not: it is made once more, unless it
 * is ours already. */
static int put_link(struct target *t, struct slice target, struct slice meta, struct buf *b,
                    struct node_attr *ret, struct client_writer **ret_writer, struct err *e)
{
    int r = -EIO;
    for (int i = 0; i < LINK_TRIES; i++) {
        uint64_t epoch = client_epoch(t->m->client);
        client_writer_free(TAKE_PTR(*ret_writer));
        r = put_link_once(t, target, meta, ret, ret_writer, e);
        if (r == -EEXIST && i > 0 && is_link_of_before(t, target, meta, b, ret))
            return 0;
        if (r != -EIO || epoch == client_epoch(t->m->client))
            return r;
    }
    return r;
}

void mount_op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
    struct mount *m = mount_of(req);
    struct err e = {0};
    struct target t;
    struct node_attr a;
    _cleanup_(client_writer_freep) struct client_writer *w = NULL; /* it or b holds the ETag of a */
    _cleanup_buf_ struct buf meta = BUF_INIT(POSIX_META_MAX_BYTES), b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    if (mount_parks(req))
        return;
    int r = target_init(m, parent, name, /* loses_it= */ false, &t);
    if (r == 0 && !m->posix)
        r = -EPERM;
    if (r == 0 && strlen(target) >= PATH_MAX)
        r = -ENAMETOOLONG;
    if (r == 0)
        r = meta_of_new(req, t.parent, S_IFLNK | 0777, &meta);
    if (r == 0)
        r = put_link(&t, slice_str(target), buf_view(&meta), &b, &a, &w, &e);
    if (r == -EEXIST && request_comes_again() && is_link_of_before(&t, slice_str(target), SLICE_NULL, &b, &a))
        r = 0;
    if (r < 0)
        mount_reply_error(req, "symlink", r, &e);
    else
        reply_made(req, &t, name, &a);
    target_fini(&t);
}

struct staged_search {
    struct mount *m;
    bool is_found;
};

static void found_one(void *arg, struct node *n)
{
    struct staged_search *search = arg;
    search->is_found = true;
    node_unref(search->m->nodes, n);
}

/* Whether a file that only this mount knows of lies in the directory. */
static bool holds_staged(const struct target *t)
{
    struct staged_search search = {.m = t->m};
    if (t->node)
        staging_each(t->m, t->node, STAGING_UNPUBLISHED, found_one, &search);
    return search.is_found;
}

void mount_op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct mount *m = mount_of(req);
    struct err e = {0};
    struct target t;
    struct wire_rmdir_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    if (mount_parks(req))
        return;
    int r = target_init(m, parent, name, /* loses_it= */ false, &t);
    if (r == 0 && holds_staged(&t))
        r = -ENOTEMPTY;
    if (r == 0) {
        struct wire_rmdir_req q = {.bucket = slice_str(m->bucket), .key = buf_view(&t.key)};
        r = client_rmdir(m->client, &q, &b, &rep, &e);
    }
    if (r == -ENOENT && request_comes_again())
        r = 0;
    if (r == 0 && t.node)
        node_detach(m->nodes, t.node, /* is_unlinked= */ true);
    target_fini(&t);
    reply(req, "rmdir", r, &e);
}

/* ---- rename ---- */

/* After `code` of a rename that comes again: 0 when only the target is there. */
static int moved_before(struct target *from, struct target *to, int code, struct buf *b,
                        struct wire_attr *ret)
{
    struct wire_attr ignored;
    struct err e = {0};
    bool is_gone = mount_ask(from->m, buf_view(&from->key), b, &ignored, &e) == -ENOENT;
    buf_clear(b);
    return is_gone && mount_ask(from->m, buf_view(&to->key), b, ret, &e) == 0 ? 0 : code;
}

static int move_object(struct target *from, struct target *to, unsigned flags, struct node_attr *ret_attr,
                       struct buf *b, struct err *e)
{
    struct mount *m = from->m;
    struct wire_copy_req req = {
        .bucket = slice_str(m->bucket),
        .from = buf_view(&from->key),
        .to = buf_view(&to->key),
        .flags = WIRE_MOVE | WIRE_POSIX | (flags & RENAME_NOREPLACE ? WIRE_NOREPLACE : 0),
    };
    struct wire_copy_rep rep;
    int r = client_copy(m->client, &req, b, &rep, e);
    if ((r == -ENOENT || r == -EEXIST) && request_comes_again()) {
        buf_clear(b);
        r = moved_before(from, to, r, b, &rep.attr);
    }
    if (r == ERR_NOT_IMPLEMENTED)
        return -EXDEV;
    if (r == 0)
        *ret_attr = mount_node_attr(m, &rep.attr, /* has_meta= */ rep.attr.meta.n > 0);
    return r;
}

/* Files that are being written below a directory that is renamed. */
struct moving {
    struct mount *m;
    struct moving_one {
        struct staging *staging;
        struct node *node; /* its own */
    } * all;
    size_t n;
    int result;
    struct err err;
};

/* What is written from here on waits for its new name. */
static void hold_one(void *arg, struct node *n)
{
    struct moving *x = arg;
    struct staging *s = NULL;
    int r = x->result == 0 ? staging_acquire(x->m, n, STAGING_JOIN, &s, &x->err) : -ENOENT;
    node_unref(x->m->nodes, n);
    if (r < 0 && r != -ENOENT)
        x->result = r;
    if (r < 0)
        return;
    staging_hold(x->m, s);
    x->all = realloc(x->all, (x->n + 1) * sizeof(x->all[0]));
    if (!x->all)
        abort();
    x->all[x->n++] = (struct moving_one){.staging = s, .node = n};
}

/* What was written so far has to be at the origin to be copied there, but for what has no name. */
static void publish_held(struct moving *x)
{
    for (size_t i = 0; x->result == 0 && i < x->n; i++) {
        bool has_name = !staging_is_refused(x->m, x->all[i].node);
        int r = has_name ? staging_publish_held(x->m, x->all[i].staging, &x->err) : 0;
        x->result = r == -ENOENT ? 0 : r;
    }
}

static void moving_end(struct moving *x, bool has_moved)
{
    for (size_t i = 0; i < x->n; i++) {
        staging_end_move(x->m, x->all[i].staging, has_moved);
        staging_release(x->m, x->all[i].staging);
    }
    free(x->all);
}

/* Of a rename that comes again: whether the process before this one had it carried out. What was written
 * since must not make the old name again, beside the new one. b holds what *ret points to. */
static bool is_moved(struct target *from, struct target *to, struct buf *b, struct wire_attr *ret)
{
    if (!request_comes_again())
        return false;
    before_wait();
    return moved_before(from, to, -ENOENT, b, ret) == 0 &&
           (ret->kind == WIRE_DIRECTORY) == from->node->is_dir;
}

static void on_renumbered(void *arg, struct node *n)
{
    struct mount *m = arg;
    notifier_drop_attributes(m->notifier, n->id);
}

/* Who reads what was moved, not by passthrough, finds what was not here yet under its new name. */
static void tell_readers(struct target *from, struct target *to, struct slice etag)
{
    struct mount *m = from->m;
    LOCK_SCOPE(node_table_lock(m->nodes));
    for (struct handle *h = m->handles; h; h = h->next) {
        struct client_file *file = h->is_shared ? h->node->backing_file : h->file;
        if (file && node_is_within_locked(h->node, from->node))
            client_file_moved(file, buf_view(&from->key), buf_view(&to->key), etag);
    }
}

static int rename_directory(struct target *from, struct target *to, unsigned flags, struct err *e)
{
    struct mount *m = from->m;
    struct moving x = {.m = m};
    struct node_attr ignored; /* a directory has none of its own */
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    staging_each(m, from->node, STAGING_BELOW, hold_one, &x);
    struct wire_attr there;
    bool was_moved = x.result == 0 && is_moved(from, to, &b, &there);
    buf_clear(&b);
    if (x.result == 0 && !was_moved && to->node && to->node->is_dir && holds_staged(to))
        x.result = -ENOTEMPTY;
    if (!was_moved)
        publish_held(&x);
    int r = x.result;
    if (r < 0)
        *e = x.err;
    else if (!was_moved)
        r = to->node && !to->node->is_dir ? -ENOTDIR : move_object(from, to, flags, &ignored, &b, e);
    if (r == 0) {
        node_move(m->nodes, from->node, to->parent, to->name);
        node_renumber(m->nodes, from->node, on_renumbered, m);
        tell_readers(from, to, /* etag= */ SLICE_NULL);
    }
    moving_end(&x, r == 0);
    return r;
}

/* Of a file that is being written. One that the origin did not have yet was not renamed either. */
static bool was_file_moved(struct target *from, struct target *to, struct node_attr *ret_attr, struct buf *b)
{
    struct wire_attr there;
    bool may_be = from->staging && !staging_is_unpublished(from->staging) && is_moved(from, to, b, &there);
    if (may_be) {
        *ret_attr = mount_node_attr(from->m, &there, /* has_meta= */ true);
        LOCK_SCOPE(node_table_lock(from->m->nodes));
        may_be = ret_attr->size_bytes == from->node->size_bytes;
    }
    if (!may_be)
        buf_clear(b);
    return may_be;
}

static bool is_md5(struct slice etag)
{
    return etag.n == MD5_DIGITS && slice_find(etag, '-') < 0;
}

/* Of a file that nobody writes here, which the kernel may have pages of. What is renamed is what the origin
 * has, and a copy may have any ETag: when it is another version than the one that is known, -ESTALE, on which
 * the kernel looks the name up again. An MD5 stays with the bytes, so that it is compared afterwards. */
static int check_version(struct target *from, struct err *e)
{
    struct mount *m = from->m;
    struct wire_attr a;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    struct err ignored = {0};
    lock_take(node_table_lock(m->nodes));
    bool is_compared = is_md5(slice_of(from->node->etag, from->node->etag_n));
    lock_drop(node_table_lock(m->nodes));
    if (is_compared || request_comes_again() ||
        mount_ask_origin(m, buf_view(&from->key), &b, &a, &ignored) < 0)
        return 0;
    struct node_attr now = mount_node_attr(m, &a, /* has_meta= */ true);
    if (!mount_follow(m, from->node, buf_view(&from->key), now.etag))
        return 0; /* told of an older one */
    lock_take(node_table_lock(m->nodes));
    bool is_known = node_is_version_locked(from->node, &now);
    lock_drop(node_table_lock(m->nodes));
    if (is_known)
        return 0;
    /* The node tells so, too, perhaps after the kernel has looked it up again. */
    warm_forget_key(m->warm, hash_placement(buf_view(&from->key)));
    return err_set(e, -ESTALE, "what is to be renamed is another one than before");
}

static bool is_other_version(struct mount *m, const struct node *n, const struct node_attr *now)
{
    LOCK_SCOPE(node_table_lock(m->nodes));
    struct slice known = slice_of(n->etag, n->etag_n);
    return n->size_bytes != now->size_bytes ||
           (is_md5(known) && is_md5(now->etag) && !slice_eq(known, now->etag));
}

/* What was moved has its new name. */
static void take_name(struct target *from, struct target *to, const struct node_attr *attr)
{
    struct mount *m = from->m;
    struct node *n = from->node;
    bool is_other = !from->staging && is_other_version(m, n, attr);
    node_set_attr(m->nodes, n, attr);
    node_move(m->nodes, n, to->parent, to->name);
    notifier_drop_attributes(m->notifier, n->id);
    if (is_other)
        staging_spoil(m, n);
    else
        tell_readers(from, to, attr->etag);
}

static int rename_file(struct target *from, struct target *to, unsigned flags, struct err *e)
{
    struct mount *m = from->m;
    int r = 0;
    if (from->node && !from->staging) /* begun after target_init looked, and before the pause */
        r = staging_acquire(m, from->node, STAGING_JOIN, &from->staging, e);
    r = r == -ENOENT ? 0 : r;
    /* Whoever still writes to the target writes to a file without a name from now on. Never waited for while
     * the other one is held: a rename of a directory above holds both, and may have this one first. */
    bool is_replaced = r == 0 && to->staging;
    if (is_replaced)
        (void)staging_begin_unlink(m, to->staging);
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    struct node_attr attr = {0};
    bool is_held = r == 0 && from->staging;
    if (is_held) /* before the next line waits, for however long: a close would make the old name again */
        staging_hold(m, from->staging);
    bool was_moved = r == 0 && was_file_moved(from, to, &attr, &b);
    if (is_held && !was_moved)
        r = staging_publish_to_move(m, from->staging, e);
    else if (r == 0 && !is_held && from->node)
        r = check_version(from, e);
    target_begin_follow(from);
    if (r == 0 && !was_moved)
        r = move_object(from, to, flags, &attr, &b, e);
    if (r == 0 && from->node) /* last of all: when it has its new name nothing is left to be done */
        take_name(from, to, &attr);
    else if (r == 0 && to->node) /* what moved is not known here, what it replaced is */
        node_detach(m->nodes, to->node, /* is_unlinked= */ true);
    target_end_follow(from, to, r == 0);
    if (is_held)
        staging_end_move(m, from->staging, r == 0);
    if (is_replaced)
        staging_end_unlink(m, to->staging, r == 0);
    return r;
}

/* Not by who has entered: it may wait for a rename. */
static int check_left(struct target *from, struct err *e)
{
    struct node *n = node_find(from->m->nodes, from->parent, from->name);
    int r = n ? staging_check_left(from->m, n, e) : 0;
    node_unref(from->m->nodes, n);
    return r;
}

/* Whether a process before this one renamed it, and did not say so any more: what has the new name is then
 * what was moved, not what it replaced. */
static bool is_done(struct target *to)
{
    if (!to->node || !request_comes_again())
        return false;
    LOCK_SCOPE(node_table_lock(to->m->nodes));
    return to->node->moved_by == request_unique();
}

static int rename_target(struct target *from, struct target *to, unsigned flags, struct err *e)
{
    bool is_dir = from->node && from->node->is_dir;
    if (is_done(to))
        return 0;
    if (flags & ~(unsigned)RENAME_NOREPLACE)
        return -EINVAL;
    if (!is_dir && flags & RENAME_NOREPLACE && to->staging)
        return -EEXIST;
    if (!from->node)
        return rename_file(from, to, flags, e);
    struct pause pause;
    pause_begin(from->m, &pause, from->node, &from->user);
    int r = is_dir ? rename_directory(from, to, flags, e) : rename_file(from, to, flags, e);
    pause_end(from->m, &pause);
    return r;
}

void mount_op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
                     const char *new_name, unsigned flags)
{
    struct err e = {0};
    struct target from, to = {0};
    if (mount_parks(req))
        return;
    int r = target_find(mount_of(req), parent, name, &from);
    if (r == 0)
        r = target_find(from.m, new_parent, new_name, &to);
    if (r == 0)
        r = check_left(&from, &e);
    if (r == 0) {
        target_enter(&from, &to);
        r = target_look(&from, /* loses_it= */ false);
    }
    if (r == 0)
        r = target_look(&to, /* loses_it= */ true);
    if (r == 0) {
        target_begin_unlink(&to);
        r = rename_target(&from, &to, flags, &e);
        target_end_unlink(&to, r == 0);
    }
    if (to.m)
        target_fini(&to);
    target_fini(&from);
    reply(req, "rename", r, &e);
}

/* ---- what there is not ---- */

void mount_op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
    (void)parent, (void)name, (void)mode, (void)rdev;
    (void)fuse_reply_err(req, EPERM);
}

void mount_op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t new_parent, const char *new_name)
{
    (void)ino, (void)new_parent, (void)new_name;
    (void)fuse_reply_err(req, EPERM);
}
