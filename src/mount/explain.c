/* Asking a mount about a path, and its answer (contract in explain.h). */
#include "mount/explain.h"

#include "mount/tree.h"

#include <limits.h>

/* A directory is asked about itself, anything else through the directory that holds it. */
int explain_ask(const char *path, struct explain_report *ret, struct err *e)
{
    char real[PATH_MAX];
    struct stat st;
    memset(ret, 0, sizeof(*ret));
    if (!realpath(path, real) || stat(real, &st) < 0)
        return err_errno(e, -errno, "%s", path);
    if (!S_ISDIR(st.st_mode)) {
        char *slash = strrchr(real, '/');
        if ((size_t)snprintf(ret->name, sizeof(ret->name), "%s", slash + 1) >= sizeof(ret->name))
            return err_set(e, -ENAMETOOLONG, "%s", path);
        *(slash == real ? slash + 1 : slash) = '\0';
    }
    int r = mount_ask_directory(real, MOUNT_IOC_EXPLAIN, ret, e);
    if (r < 0)
        return r;
    ret->bucket[sizeof(ret->bucket) - 1] = ret->key[sizeof(ret->key) - 1] = '\0';
    ret->directory[sizeof(ret->directory) - 1] = ret->node[sizeof(ret->node) - 1] = '\0';
    ret->reason[sizeof(ret->reason) - 1] = '\0';
    return stats_check_slow(ret->slow, &ret->n_slow)
               ? 0
               : err_set(e, -ENOTTY, "%s: the mount is of another version of forebay", path);
}

/* ---- the side of the mount ---- */

static void tell_how_open(struct mount *m, struct node *n, struct explain_report *ret)
{
    LOCK_SCOPE(node_table_lock(m->nodes));
    ret->is_directory = n->is_dir;
    ret->n_plain = n->n_plain;
    ret->n_passthrough = n->n_passthrough;
    ret->is_written = n->staging != NULL;
    ret->is_kept = n->n_passthrough == 0 && n->n_shared == 0 && n->backing_file;
}

/* Also of what the kernel, and so the mount, knows no more. */
static void tell_slow(struct mount *m, struct node *parent, struct slice name, struct explain_report *ret)
{
    _cleanup_buf_ struct buf path = BUF_INIT(MOUNT_KEY_MAX_BYTES);
    if (node_path(m->nodes, parent, &path) == 0 && (path.n == 0 || buf_char(&path, '/') == 0) &&
        buf_append(&path, name.p, name.n) == 0)
        ret->n_slow = stats_fill_slow(m->stats, stats_about(buf_view(&path)), ret->slow);
}

static int tell_mirror(struct mount *m, fuse_ino_t directory, struct explain_report *ret)
{
    _cleanup_buf_ struct buf key = BUF_INIT(MOUNT_KEY_MAX_BYTES);
    struct slice name = slice_str(ret->name);
    struct node *parent = node_get(m->nodes, directory), *n = NULL;
    if (!parent)
        return -ESTALE;
    int r = mount_key(m, parent, name, &key);
    if (r == 0) {
        (void)snprintf(ret->key, sizeof(ret->key), SLICE_FMT, SLICE_ARG(buf_view(&key)));
        n = name.n > 0 ? node_find(m->nodes, parent, name) : node_ref(m->nodes, parent);
    }
    if (n)
        tell_how_open(m, n, ret);
    if (r == 0 && name.n > 0)
        tell_slow(m, parent, name, ret);
    node_unref(m->nodes, n);
    node_unref(m->nodes, parent);
    return r;
}

static int tell_tree(struct mount *m, fuse_ino_t directory, struct explain_report *ret, struct err *e)
{
    struct wire_tree_lookup_req req = {
        .bucket = slice_str(m->bucket), .parent = tree_ino(m, directory), .name = slice_str(ret->name)};
    struct wire_tree_lookup_rep rep;
    _cleanup_buf_ struct buf b = BUF_INIT(CLIENT_REPLY_MAX_BYTES);
    ret->ino = req.parent;
    ret->is_directory = true;
    if (req.name.n > 0) {
        int r = client_tree_lookup(m->client, &req, &b, &rep, e);
        if (r < 0)
            return r;
        ret->ino = rep.inode.ino;
        ret->is_directory = S_ISDIR(rep.inode.mode);
    }
    ret->n_slow = stats_fill_slow(m->stats, ret->ino, ret->slow);
    struct tree_file *f = tree_file_find(m, ret->ino);
    if (!f)
        return 0;
    lock_take(&f->lock); /* held over calls to the node, as by opens */
    *(f->is_passthrough ? &ret->n_passthrough : &ret->n_plain) = f->n_open;
    ret->is_written = f->n_open > 0 && atomic_load(&f->was_written);
    lock_drop(&f->lock);
    tree_file_unref(m, f);
    return 0;
}

int explain_tell(struct mount *m, fuse_ino_t directory, struct explain_report *ret, struct err *e)
{
    ret->is_scratch = m->tree != NULL;
    ret->is_passthrough = atomic_load(&m->is_passthrough);
    ret->is_read_only = m->read_only;
    ret->is_openless = m->options->profile == MOUNT_PROFILE_READ_ONLY;
    (void)snprintf(ret->bucket, sizeof(ret->bucket), "%s", m->bucket);
    (void)snprintf(ret->directory, sizeof(ret->directory), "%s", m->options->directory);
    (void)snprintf(ret->node, sizeof(ret->node), "%s", client_address(m->client));
    (void)snprintf(ret->reason, sizeof(ret->reason), "%s", ret->is_passthrough ? "" : m->reason);
    return m->tree ? tell_tree(m, directory, ret, e) : tell_mirror(m, directory, ret);
}
