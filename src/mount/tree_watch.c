/*
 * What the kernel may believe of a scratch bucket, and for how long.
 *
 * As long as this is the only mount of the bucket everything that changes a name or an attribute is either
 * our own doing, of which the kernel knows, or comes through S3 or the command line, of which the node tells
 * (WATCH) before it acknowledges it. The kernel then believes names and attributes for ALONE_S. When somebody
 * else changed something its epoch is counted up, with which it asks again for every name: replies that are
 * on their way are of the old epoch, too. What this process knows by itself (tree_known.h) is forgotten then.
 * With a second mount, which writes without the node seeing it, all is as without this file: the mount's
 * attribute timeout, but for the size of a file that is opened (tree_file.c). So are the times of files into
 * which a program may store by a mapping, also after RELEASE.
 *
 * Failure modes: a kernel that does not know epochs (before Linux 6.16), a node without the pipe: the mount's
 * attribute timeout.
 */
#include "mount/tree.h"

#include "base/hash.h"
#include "base/log.h"
#include "client/client_watch.h"

#include <stdatomic.h>

#define ALONE_S 60.0

struct tree_watch {
    struct mount *m;
    struct watcher *watcher;
    _Atomic bool is_alone;
    struct kept_told *told; /* outlives this process, as what the kernel was told does */
};

/* Whether there is room to remember the directory; else it is not believed for long. */
static bool remember_dir(struct tree_watch *w, uint64_t ino)
{
    _Atomic uint64_t *at = &w->told->dirs[hash_mix(ino, 0) % KEPT_DIRS];
    uint64_t was = 0;
    return atomic_compare_exchange_strong(at, &was, ino) || was == ino;
}

static void forget_dirs(struct tree_watch *w)
{
    struct mount *m = w->m;
    for (size_t i = 0; i < KEPT_DIRS; i++) {
        uint64_t ino = atomic_exchange(&w->told->dirs[i], 0);
        if (ino != 0)
            (void)fuse_lowlevel_notify_inval_inode(m->se, tree_id(m, ino), -1, 0);
    }
}

/* Every name is asked for again, and the attributes of open files and directories, which may be asked about
 * without a name. -EINVAL: the kernel does not know this. */
static int forget_all(struct tree_watch *w)
{
    struct mount *m = w->m;
    tree_known_forget(m->tree->known);
    int r = passthrough_forget_names(m->se);
    if (r < 0)
        return r;
    (void)fuse_lowlevel_notify_inval_inode(m->se, FUSE_ROOT_ID, -1, 0); /* has no name */
    tree_files_forget(m);
    forget_dirs(w);
    return 0;
}

/* What happened since the last pipe ended is unknown. (Not asked for at its end: while the node is away open
 * files are read with what the kernel knows of them.) */
static void on_begun(void *arg)
{
    struct tree_watch *w = arg;
    (void)forget_all(w); /* a record says whether we are alone */
}

static void on_records(void *arg, const uint64_t *v, size_t n)
{
    struct tree_watch *w = arg;
    bool alone = atomic_load(&w->is_alone);
    for (size_t i = 0; i < n; i++)
        alone = v[i] == WIRE_WATCH_CHANGED ? alone : v[i] == WIRE_WATCH_ALONE;
    if (!alone)
        atomic_store(&w->is_alone, false);
    int r = forget_all(w); /* also before the first time: this is how we learn whether the kernel can */
    if (r < 0 && alone)
        log_debug("mount", "names are believed for the attribute timeout only: %s", err_text(r));
    atomic_store(&w->is_alone, alone && r == 0 && w->m->timeout_s > 0);
}

static void on_ended(void *arg)
{
    struct tree_watch *w = arg;
    atomic_store(&w->is_alone, false);
    tree_known_forget(w->m->tree->known);
    (void)atomic_fetch_add(&w->m->tree->rooms_lost, 1); /* nobody asks for it to be told of the node's end */
}

static const struct watcher_calls calls = {.begun = on_begun, .records = on_records, .ended = on_ended};

struct tree_watch *tree_watch_start(struct mount *m)
{
    struct tree_watch *w = calloc(1, sizeof(*w));
    if (!w)
        abort();
    w->m = m;
    w->told = kept_told(m->seat.kept);
    /* Also where nothing is believed: the other mounts of the bucket have company then. */
    w->watcher = watcher_start(m->client, slice_str(m->bucket), &calls, w);
    return w;
}

void tree_watch_resumed(struct tree_watch *w)
{
    (void)forget_all(w);
}

void tree_watch_end(struct tree_watch *w)
{
    watcher_end(TAKE_PTR(w->watcher));
}

void tree_watch_free(struct tree_watch *w)
{
    free(w);
}

bool tree_is_alone(const struct mount *m)
{
    return atomic_load(&m->tree->watch->is_alone);
}

double tree_name_timeout_s(const struct mount *m)
{
    return tree_is_alone(m) ? MAX(m->timeout_s, ALONE_S) : m->timeout_s;
}

/* Who shares a bit with a file in the set is not believed for long either. */
static _Atomic uint64_t *mapped_of(struct mount *m, uint64_t ino, uint64_t *ret_bit)
{
    uint64_t place = hash_mix(ino, 0) % KEPT_MAPPED;
    *ret_bit = (uint64_t)1 << place % 64;
    return &m->tree->watch->told->mapped[place / 64];
}

void tree_expect_mapping(struct mount *m, uint64_t ino)
{
    uint64_t bit;
    _Atomic uint64_t *at = mapped_of(m, ino, &bit);
    (void)atomic_fetch_or(at, bit);
}

bool tree_may_be_mapped(struct mount *m, uint64_t ino)
{
    uint64_t bit;
    const _Atomic uint64_t *at = mapped_of(m, ino, &bit);
    return atomic_load(at) & bit;
}

double tree_attr_timeout_s(struct mount *m, const struct wire_inode *x)
{
    struct tree_watch *w = m->tree->watch;
    if (S_ISDIR(x->mode))
        return atomic_load(&w->is_alone) && remember_dir(w, x->ino) ? tree_name_timeout_s(m) : m->timeout_s;
    struct tree_file *f = tree_file_find(m, x->ino);
    bool is_written = f && atomic_load(&f->write_fd) >= 0; /* perhaps by a mapping, which nobody sees */
    if (f)
        tree_file_unref(m, f);
    return is_written || tree_may_be_mapped(m, x->ino) ? m->timeout_s : tree_name_timeout_s(m);
}
