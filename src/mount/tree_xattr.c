/*
 * Extended attributes. Names of users, of the system's administrator and of security modules are kept as they
 * come; the kernel checks who may set which. POSIX ACLs (system.posix_acl_*) are not kept, and refused.
 */
#include "mount/tree.h"

#include <sys/xattr.h>

static bool is_kept(const char *name)
{
    static const char *const prefixes[] = {"user.", "trusted.", "security."};
    for (size_t i = 0; i < ARRAY_SIZE(prefixes); i++)
        if (slice_starts(slice_str(name), slice_str(prefixes[i])))
            return true;
    return false;
}

/* size 0: only how much it would be. */
static void reply_bytes(fuse_req_t req, struct slice bytes, size_t size)
{
    if (size == 0)
        (void)fuse_reply_xattr(req, bytes.n);
    else if (size < bytes.n)
        (void)fuse_reply_err(req, ERANGE);
    else
        (void)fuse_reply_buf(req, bytes.p, bytes.n);
}

void tree_op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
    struct mount *m = mount_of(req);
    struct err e = {0};
    struct wire_tree_xattr_get_req q = {
        .bucket = slice_str(m->bucket), .ino = tree_ino(m, ino), .name = slice_str(name)};
    struct wire_tree_xattr_get_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = is_kept(name) ? client_tree_xattr_get(m->client, &q, &b, &rep, &e) : -EOPNOTSUPP;
    if (r < 0)
        mount_reply_error(req, "getxattr", r, &e);
    else
        reply_bytes(req, rep.value, size);
}

/* Of the names, each with its zero, those that the caller is shown: what only the administrator may read is
 * no name to others. */
static struct slice shown_names(fuse_req_t req, struct slice names, char *room)
{
    size_t n = 0;
    while (names.n > 0) {
        struct slice name = slice_sub(names, 0, strnlen(names.p, names.n));
        size_t bytes = MIN(name.n + 1, names.n);
        bool is_shown = fuse_req_ctx(req)->uid == 0 || !slice_starts(name, SLICE_LIT("trusted."));
        if (is_shown)
            memcpy(room + n, names.p, bytes);
        n += is_shown ? bytes : 0;
        names = slice_from(names, bytes);
    }
    return slice_of(room, n);
}

void tree_op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
    struct mount *m = mount_of(req);
    struct err e = {0};
    struct wire_tree_xattr_list_req q = {.bucket = slice_str(m->bucket), .ino = tree_ino(m, ino)};
    struct wire_tree_xattr_list_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    int r = client_tree_xattr_list(m->client, &q, &b, &rep, &e);
    if (r < 0) {
        mount_reply_error(req, "listxattr", r, &e);
        return;
    }
    _cleanup_free_ char *room = malloc(rep.names.n + 1);
    if (!room)
        abort();
    reply_bytes(req, shown_names(req, rep.names, room), size);
}

void tree_op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t size,
                      int flags)
{
    struct mount *m = mount_of(req);
    struct err e = {0};
    struct wire_tree_xattr_set_req q = {
        .bucket = slice_str(m->bucket),
        .ino = tree_ino(m, ino),
        .name = slice_str(name),
        .value = slice_of(value, size),
        .flags = (flags & XATTR_CREATE ? WIRE_EXCLUSIVE : 0) | (flags & XATTR_REPLACE ? WIRE_REPLACE : 0),
        TREE_CHANGE(m),
    };
    struct wire_tree_xattr_set_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    struct tree_change change; /* of its times, where it is a directory */
    tree_known_begin(m->tree->known, q.ino, SLICE_NULL, &change);
    int r = is_kept(name) ? client_tree_xattr_set(m->client, &q, &b, &rep, &e) : -EOPNOTSUPP;
    tree_known_end(m->tree->known, &change, /* made= */ NULL);
    tree_reply(req, "setxattr", r, &e);
}

void tree_op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
    struct mount *m = mount_of(req);
    struct err e = {0};
    struct wire_tree_xattr_remove_req q = {
        .bucket = slice_str(m->bucket), .ino = tree_ino(m, ino), .name = slice_str(name), TREE_CHANGE(m)};
    struct wire_tree_xattr_remove_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    struct tree_change change; /* of its times, where it is a directory */
    tree_known_begin(m->tree->known, q.ino, SLICE_NULL, &change);
    int r = is_kept(name) ? client_tree_xattr_remove(m->client, &q, &b, &rep, &e) : -EOPNOTSUPP;
    tree_known_end(m->tree->known, &change, /* made= */ NULL);
    tree_reply(req, "removexattr", r, &e);
}
