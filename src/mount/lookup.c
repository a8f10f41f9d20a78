/* LOOKUP, FORGET, GETATTR, STATFS. */
#include "mount/mount_internal.h"

#include "base/sys.h"

#include <limits.h>
#include <sys/statvfs.h>

/* A mirror bucket has no size of its own: shown as this much, all of it free. */
#define STATFS_BYTES (1024 * TIB)

#define ANSWER_MS 1000 /* for an answer to get to the kernel, which counts its timeout from then on */

static void reply_absent(fuse_req_t req, struct mount *m, struct node *parent, struct slice name)
{
    struct fuse_entry_param absent = {.entry_timeout = m->timeout_s};
    uint64_t until_ms = sys_mono_ms() + (uint64_t)(m->timeout_s * 1000) + ANSWER_MS;
    node_tell_absent(m->nodes, parent, name);
    if (m->timeout_s > 0)
        absent_note(m->absent, parent->id, name, until_ms);
    (void)fuse_reply_entry(req, &absent);
}

/* A node of that name about which nobody need be asked any more: it is being written here, or watched. NULL:
 * there is none. */
static int find_known(struct mount *m, struct node *parent, struct slice name, struct node **ret,
                      struct err *e)
{
    *ret = NULL;
    struct node *n = node_find(m->nodes, parent, name);
    if (!n)
        return 0;
    int r = staging_check_left(m, n, e);
    lock_take(node_table_lock(m->nodes));
    bool is_known = r == 0 && (n->staging || (!n->wants_renewal && warm_is_valid_locked(m->warm, n)));
    if (is_known)
        node_looked_up_locked(n);
    lock_drop(node_table_lock(m->nodes));
    if (is_known)
        *ret = n;
    else
        node_unref(m->nodes, n);
    return r == -ESTALE ? 0 : r;
}

/* What there is of a key, and n (NULL accepted), which is known by that name, follows it. */
static int ask(struct mount *m, struct slice key, struct node *n, struct buf *b, struct node_attr *ret,
               struct err *e)
{
    struct wire_attr a;
    for (int i = 1;; i++) {
        buf_clear(b);
        int r = mount_ask(m, key, b, &a, e);
        if (r < 0)
            return r;
        if (!n || a.kind == WIRE_DIRECTORY || mount_follow(m, n, key, a.etag) || i == MOUNT_FOLLOWS)
            break;
    }
    *ret = mount_node_attr(m, &a, /* has_meta= */ true);
    return 0;
}

static int look_up_once(struct mount *m, struct node *parent, const char *name, struct node **ret,
                        struct err *e)
{
    _cleanup_buf_ struct buf key = BUF_INIT(MOUNT_KEY_MAX_BYTES), b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    struct node_attr attr = {0};
    int r = find_known(m, parent, slice_str(name), ret, e);
    if (r < 0 || *ret)
        return r;
    r = mount_key(m, parent, slice_str(name), &key);
    struct node *n = m->posix ? node_find(m->nodes, parent, slice_str(name)) : NULL;
    if (r == 0)
        r = ask(m, buf_view(&key), n, &b, &attr, e);
    node_unref(m->nodes, n);
    if (r < 0)
        return r;
    *ret = node_look_up(m->nodes, parent, slice_str(name), &attr);
    return 0;
}

static int look_up(struct mount *m, struct node *parent, const char *name, struct node **ret, struct err *e)
{
    uint64_t serial;
    int r;
    do {
        serial = pause_serial(m);
        r = look_up_once(m, parent, name, ret, e);
    } while (r == -ENOENT && pause_was(m, serial, parent));
    return r;
}

void mount_op_lookup(fuse_req_t req, fuse_ino_t parent_id, const char *name)
{
    struct mount *m = mount_of(req);
    struct err e = {0};
    uint64_t serial = warm_serial(m->warm), told = inval_serial(m->inval);
    struct node *parent = node_get(m->nodes, parent_id), *n = NULL;
    if (!parent) {
        (void)fuse_reply_err(req, ESTALE);
        return;
    }
    int r = look_up(m, parent, name, &n, &e);
    if (r == -ENOENT) {
        reply_absent(req, m, parent, slice_str(name));
    } else if (r < 0) {
        mount_reply_error(req, "lookup", r, &e);
    } else {
        struct fuse_entry_param entry;
        mount_entry(m, n, &entry);
        if (fuse_reply_entry(req, &entry) < 0)
            node_forget(m->nodes, n->id, 1);
        mount_check_told(m, serial, n, entry.attr_timeout);
        node_unref(m->nodes, n);
        notifier_poke(m->notifier);
    }
    inval_check(m->inval, told, parent, slice_str(name));
    node_unref(m->nodes, parent);
}

void mount_op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t n)
{
    node_forget(mount_of(req)->nodes, ino, n);
    fuse_reply_none(req);
}

void mount_op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
    struct mount *m = mount_of(req);
    for (size_t i = 0; i < count; i++)
        node_forget(m->nodes, forgets[i].ino, forgets[i].nlookup);
    fuse_reply_none(req);
}

/* The bytes of the object are the link's target. */
static int read_target(struct mount *m, struct node *n, char ret[PATH_MAX], struct err *e)
{
    struct mount_opened o = {0};
    lock_take(node_table_lock(m->nodes));
    bool is_link = n->has_owner && S_ISLNK(n->mode) && n->size_bytes < PATH_MAX;
    lock_drop(node_table_lock(m->nodes));
    int r = is_link ? mount_open_file(m, n, &o, e) : -EINVAL;
    ssize_t got = r < 0 ? r : client_file_pread(o.file, ret, PATH_MAX - 1, 0, e);
    client_file_close(o.file);
    if (got < 0)
        return (int)got;
    ret[got] = '\0';
    return got > 0 && strlen(ret) == (size_t)got ? 0 : -EINVAL; /* somebody else's bytes */
}

/* Whether what is known of the node is fixed: no question could change what its users see. */
static bool is_settled(struct mount *m, struct node *n)
{
    LOCK_SCOPE(node_table_lock(m->nodes));
    bool is_open = n->n_passthrough > 0 || n->n_plain > 0;
    return n->staging || !n->parent || is_open || (!n->is_attached && n->is_unlinked) ||
           warm_is_valid_locked(m->warm, n);
}

/* Asks about a node whose attributes the kernel does not believe any more. */
static int refresh(struct mount *m, struct node *n, struct err *e)
{
    if (is_settled(m, n))
        return 0;
    _cleanup_buf_ struct buf key = BUF_INIT(MOUNT_KEY_MAX_BYTES), b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    struct node_attr attr = {0};
    uint64_t serial;
    int r;
    do {
        serial = pause_serial(m);
        buf_clear(&key);
        r = mount_key(m, n, SLICE_NULL, &key);
        if (r == 0)
            r = ask(m, buf_view(&key), n, &b, &attr, e);
    } while (r == -ENOENT && pause_was(m, serial, n));
    if (r == -ENOENT && !n->is_dir)
        return -ESTALE; /* an open with O_CREAT comes here first, when the kernel believes the name still */
    if (r < 0)
        return r;
    /* Another version has another node: the kernel looks the name up again. */
    return node_confirm(m->nodes, n, &attr) ? 0 : -ESTALE;
}

void mount_op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)fi;
    struct mount *m = mount_of(req);
    struct err e = {0};
    uint64_t serial = warm_serial(m->warm);
    struct node *n = node_get(m->nodes, ino);
    int r = n ? refresh(m, n, &e) : -ESTALE;
    if (r < 0) {
        mount_reply_error(req, "getattr", r, &e);
    } else {
        struct stat st;
        mount_stat(m, n, &st);
        double told_s = mount_timeout_s(m, n);
        (void)fuse_reply_attr(req, &st, told_s);
        mount_check_told(m, serial, n, told_s);
    }
    node_unref(m->nodes, n);
}

void mount_op_readlink(fuse_req_t req, fuse_ino_t ino)
{
    struct mount *m = mount_of(req);
    struct err e = {0};
    char target[PATH_MAX];
    struct node *n = node_get(m->nodes, ino);
    int r = n ? read_target(m, n, target, &e) : -ESTALE;
    node_unref(m->nodes, n);
    if (r < 0)
        mount_reply_error(req, "readlink", r, &e);
    else
        (void)fuse_reply_readlink(req, target);
}

void mount_op_statfs(fuse_req_t req, fuse_ino_t ino)
{
    (void)ino;
    struct statvfs s = {
        .f_bsize = MOUNT_BLOCK_BYTES,
        .f_frsize = MOUNT_BLOCK_BYTES,
        .f_blocks = STATFS_BYTES / MOUNT_BLOCK_BYTES,
        .f_bfree = STATFS_BYTES / MOUNT_BLOCK_BYTES,
        .f_bavail = STATFS_BYTES / MOUNT_BLOCK_BYTES,
        .f_files = UINT32_MAX,
        .f_ffree = UINT32_MAX,
        .f_namemax = 255,
    };
    (void)fuse_reply_statfs(req, &s);
}
