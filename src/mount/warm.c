/*
 * Files kept open (contract in warm.h).
 *
 * Invariants:
 *  1. A node has at most one warm_file, which is in the table of hashes while the node has it.
 *  2. A kept file is in the order of use, references its node, and the node's backing_id is registered where
 * it was open by passthrough.
 *  3. A file is kept only when the watch ran without a break from before the node was asked for it, and none
 * of what came through it since was of that file. Every record moves `serial` on before it is looked up, and
 * a file whose opening began at another serial is not tracked: no record falls between asking and tracking.
 *  4. While the kernel believes a name for longer than the mount's attribute timeout, its node has a
 * warm_file with told_until_ms in the future, or the notifier is to drop the name.
 *  5. No file older in use than `fd_from` has a descriptor here.
 *  6. The end of the pipe (the node is gone, or we did not keep up) lets go of everything.
 *
 * Failure modes: without a watch nothing is kept, and every open asks the node, as if this file did not
 * exist.
 */
#include "mount/warm.h"

#include "base/sys.h"
#include "client/client_watch.h"
#include "mount/holdings.h"
#include "mount/mount_internal.h"

#define PLACES       4096 /* of the table of hashes; a power of two */
#define VALID_MS_MAX (24 * 3600 * 1000ull)
#define TELL_MS_MAX  (3600 * 1000ull)
#define CLOSED_MAX   256 /* files that are closed by one call */

struct warm_file {
    struct node *node;
    uint64_t key_hash;
    uint64_t valid_until_ms;
    uint64_t told_until_ms;     /* the kernel believes the name until then */
    bool is_kept;               /* else the node is open */
    bool is_stale;              /* not to be kept */
    bool has_fd;                /* while it is kept */
    bool had_fd;                /* and gave it back */
    size_t held_bytes;          /* with the node's backing file, as counted in holdings.h */
    struct warm_file *in_place; /* of the table of hashes */
    struct warm_file *older, *newer;
    struct client_file *file; /* in the trash only */
    bool drops_node;          /* in the trash: its reference goes with it */
    struct warm_file *in_trash;
};

struct warm_trash {
    struct warm_file first; /* a list is its first member */
};

struct warm {
    struct mount *m;
    uint64_t max, fds_max;
    struct watcher *watcher;
    _Atomic bool is_watched;
    _Atomic uint64_t serial;
    /* Covered by the node table's lock. */
    uint64_t n_kept, n_fds;
    struct warm_file *oldest, *newest, *fd_from;
    struct warm_file *places[PLACES];
};

/* ---- the table and the order of use ---- */

static struct warm_file **place_of(struct warm *w, uint64_t hash)
{
    return &w->places[hash % PLACES];
}

static void order_remove(struct warm *w, struct warm_file *f)
{
    if (w->fd_from == f)
        w->fd_from = f->newer;
    w->n_fds -= f->has_fd;
    *(f->older ? &f->older->newer : &w->oldest) = f->newer;
    *(f->newer ? &f->newer->older : &w->newest) = f->older;
    f->older = f->newer = NULL;
    f->is_kept = false;
    w->n_kept--;
}

static void order_add(struct warm *w, struct warm_file *f)
{
    f->older = w->newest;
    *(w->newest ? &w->newest->newer : &w->oldest) = f;
    w->newest = f;
    f->is_kept = true;
    w->n_kept++;
    f->has_fd = client_file_fd(f->node->backing_file) >= 0;
    w->n_fds += f->has_fd;
    if (!w->fd_from)
        w->fd_from = f;
}

/* Of what is read here: passthrough needs no descriptors of this process. Closed under the lock: without it
 * the file could be given to somebody meanwhile; it is read-only, and of a node that has it, too, so that
 * there is nothing to write or to free. */
static void limit_fds_locked(struct warm *w)
{
    for (struct warm_file *f; w->n_fds > w->fds_max && (f = w->fd_from); w->fd_from = f->newer) {
        int fd = f->has_fd ? client_file_take_fd(f->node->backing_file) : -1;
        macro_close(&fd);
        w->n_fds -= f->has_fd;
        f->has_fd = false;
        f->had_fd = true;
    }
}

static void to_trash(struct warm_file *f, struct warm_trash **trash)
{
    f->in_trash = *trash ? &(*trash)->first : NULL;
    *trash = (struct warm_trash *)f;
}

static void drop_name_locked(struct warm *w, struct warm_file *f)
{
    struct node *n = f->node;
    if (n->is_attached && n->parent && sys_mono_ms() < f->told_until_ms)
        notifier_drop_believed_locked(w->m->notifier, n);
    f->told_until_ms = 0;
}

static void forget_locked(struct warm *w, struct warm_file *f, struct warm_trash **trash)
{
    struct node *n = f->node;
    drop_name_locked(w, f);
    struct warm_file **at = place_of(w, f->key_hash);
    while (*at != f)
        at = &(*at)->in_place;
    *at = f->in_place;
    n->warm = NULL;
    node_unkeep_locked(w->m->nodes, n);
    if (f->is_kept) {
        order_remove(w, f);
        mount_unregister_locked(w->m, n);
        f->file = TAKE_PTR(n->backing_file);
        f->drops_node = true;
    }
    to_trash(f, trash);
}

void warm_forget_locked(struct warm *w, struct node *n, struct warm_trash **trash)
{
    if (n->warm)
        forget_locked(w, n->warm, trash);
}

void warm_empty(struct warm *w, struct warm_trash *trash)
{
    struct warm_file *f = trash ? &trash->first : NULL;
    struct client_file *files[CLOSED_MAX];
    while (f) {
        size_t n = 0;
        while (f && n < ARRAY_SIZE(files)) {
            struct warm_file *next = f->in_trash;
            if (f->file)
                files[n++] = f->file;
            if (f->drops_node)
                node_unref(w->m->nodes, f->node);
            holdings_give(HOLDING_KEPT_FILES, f->held_bytes);
            free(f);
            f = next;
        }
        client_file_close_all(files, n);
    }
}

/* ---- opening and closing ---- */

uint64_t warm_serial(const struct warm *w)
{
    return atomic_load(&w->serial);
}

void warm_track_locked(struct warm *w, struct node *n, uint64_t key_hash, uint64_t serial, uint64_t valid_ms)
{
    assert(n->backing_file && !n->warm);
    if (valid_ms == 0 || !atomic_load(&w->is_watched) || atomic_load(&w->serial) != serial)
        return;
    struct warm_file *f = calloc(1, sizeof(*f));
    if (!f)
        abort();
    f->node = n;
    f->held_bytes = holdings_chunk(sizeof(*f)) + holdings_chunk(client_file_bytes(n->backing_file));
    holdings_take(HOLDING_KEPT_FILES, f->held_bytes);
    f->key_hash = key_hash;
    f->valid_until_ms = sys_mono_ms() + MIN(valid_ms, VALID_MS_MAX);
    f->in_place = *place_of(w, key_hash);
    *place_of(w, key_hash) = f;
    n->warm = f;
    node_keep_locked(w->m->nodes, n); /* the kernel may come to believe its name for long */
}

bool warm_is_valid_locked(const struct warm *w, const struct node *n)
{
    const struct warm_file *f = n->warm;
    return f && !f->is_stale && n->is_attached && atomic_load(&w->is_watched) &&
           sys_mono_ms() < f->valid_until_ms;
}

uint64_t warm_tell_ms_locked(struct warm *w, struct node *n)
{
    if (!warm_is_valid_locked(w, n) || w->n_kept >= w->max)
        return 0;
    uint64_t now = sys_mono_ms();
    uint64_t ms = MIN(n->warm->valid_until_ms - MIN(now, n->warm->valid_until_ms), TELL_MS_MAX);
    n->warm->told_until_ms = MAX(n->warm->told_until_ms, now + ms);
    return ms;
}

void warm_check_told(struct warm *w, struct node *n)
{
    LOCK_SCOPE(node_table_lock(w->m->nodes));
    bool is_watched = warm_is_valid_locked(w, n) && sys_mono_ms() < n->warm->told_until_ms;
    if (!is_watched && n->is_attached && n->parent)
        notifier_drop_believed_locked(w->m->notifier, n);
}

bool warm_use_locked(struct warm *w, struct node *n, bool needs_fd, struct warm_trash **trash)
{
    struct warm_file *f = n->warm;
    if (!f || !f->is_kept)
        return false;
    if (!warm_is_valid_locked(w, n) || (needs_fd && f->had_fd)) {
        forget_locked(w, f, trash);
        return false;
    }
    order_remove(w, f);
    assert(n->refs > 1); /* the caller's, too */
    n->refs--;
    return true;
}

bool warm_keep_locked(struct warm *w, struct node *n, struct warm_trash **trash)
{
    struct warm_file *f = n->warm;
    if (!f)
        return false;
    if (!warm_is_valid_locked(w, n)) {
        forget_locked(w, f, trash);
        return false;
    }
    n->refs++;
    order_add(w, f);
    if (w->n_kept > w->max)
        forget_locked(w, w->oldest, trash);
    limit_fds_locked(w);
    return n->warm != NULL;
}

/* ---- the watch ---- */

/* A file that is open: goes on being read, and is not kept afterwards. */
static void distrust_locked(struct warm *w, struct warm_file *f)
{
    f->is_stale = true;
    drop_name_locked(w, f);
}

void warm_forget_told(struct warm *w, uint64_t hash, struct warm_trash **trash)
{
    LOCK_SCOPE(node_table_lock(w->m->nodes));
    struct warm_file *next;
    for (struct warm_file *f = *place_of(w, hash); f; f = next) {
        next = f->in_place;
        if (f->key_hash == hash && f->is_kept)
            forget_locked(w, f, trash);
        else if (f->key_hash == hash)
            distrust_locked(w, f);
    }
}

void warm_forget_key(struct warm *w, uint64_t hash)
{
    struct warm_trash *trash = NULL;
    warm_forget_told(w, hash, &trash);
    warm_empty(w, trash);
}

static void forget_all(struct warm *w)
{
    struct warm_trash *trash = NULL;
    lock_take(node_table_lock(w->m->nodes));
    while (w->oldest)
        forget_locked(w, w->oldest, &trash);
    for (size_t i = 0; i < PLACES; i++)
        for (struct warm_file *f = w->places[i]; f; f = f->in_place)
            distrust_locked(w, f);
    lock_drop(node_table_lock(w->m->nodes));
    warm_empty(w, trash);
}

void warm_let_go(struct warm *w, uint64_t bytes)
{
    struct warm_trash *trash = NULL;
    lock_take(node_table_lock(w->m->nodes));
    for (struct warm_file *f; bytes > 0 && (f = w->oldest); forget_locked(w, f, &trash))
        bytes -= MIN(bytes, (uint64_t)f->held_bytes);
    lock_drop(node_table_lock(w->m->nodes));
    warm_empty(w, trash);
}

static void on_begun(void *arg)
{
    struct warm *w = arg;
    (void)atomic_fetch_add(&w->serial, 1); /* who asked before may have missed a record */
    atomic_store(&w->is_watched, true);
}

static void on_records(void *arg, const uint64_t *v, size_t n)
{
    struct warm *w = arg;
    struct warm_trash *trash = NULL;
    (void)atomic_fetch_add(&w->serial, 1);
    for (size_t i = 0; i < n; i++)
        warm_forget_told(w, v[i], &trash);
    warm_empty(w, trash); /* behind all of them: it asks the node, which may be slow */
}

static void on_ended(void *arg)
{
    struct warm *w = arg;
    atomic_store(&w->is_watched, false);
    (void)atomic_fetch_add(&w->serial, 1);
    forget_all(w);
}

static const struct watcher_calls calls = {.begun = on_begun, .records = on_records, .ended = on_ended};

struct warm *warm_start(struct mount *m, uint64_t max, uint64_t fds_max)
{
    struct warm *w = calloc(1, sizeof(*w));
    if (!w)
        abort();
    w->m = m;
    w->max = max;
    w->fds_max = fds_max;
    if (max > 0)
        w->watcher = watcher_start(m->client, slice_str(m->bucket), &calls,
                                   w); /* at once, so that already the first files can be kept */
    return w;
}

void warm_end(struct warm *w)
{
    watcher_end(TAKE_PTR(w->watcher));
}

void warm_free(struct warm *w)
{
    free(w);
}
