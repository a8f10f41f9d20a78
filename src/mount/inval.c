/*
 * Passing on what the node tells of names (contract in inval.h).
 *
 * Invariants:
 *  1. The thread that reads the pipe never waits for the kernel: what the kernel shall forget goes to the
 * notifier, which holds no lock when it tells it.
 *  2. A name is noted as told of before the kernel is told, so that an answer which is on its way is found
 * out by one or the other.
 *  3. When a pipe begins, the kernel asks again for every name: what happened since the last one ended is
 * unknown. So it does when more is told than waits in the notifier's queue.
 *  4. A directory that the kernel knows is asked for again only when something was removed below it, when it
 * is what was changed, or when the kernel was told that there is none of that name (somebody has it in use
 * still): else it is there.
 *
 * Failure modes: without the pipe (a node of before, no descriptors, the node is away) the mount's attribute
 * timeout. So it is of names that a kernel without epochs (before Linux 6.16) believes absent, when there are
 * more than are remembered (absent.h) and every name is to be asked for again.
 */
#include "mount/inval.h"

#include "base/hash.h"
#include "base/log.h"
#include "client/client_watch.h"
#include "mount/mount_internal.h"
#include "mount/recent.h"
#include "net/wire_names.h"

struct inval {
    struct mount *m;
    struct recent *recent;
    struct watcher *watcher;
    /* The watcher's. */
    bool is_broken; /* what comes through this pipe makes no sense */
    struct wire_names reader;
    struct warm_trash *trash; /* files that are closed behind all that was told with them */
};

/* ---- what the node tells ---- */

static void forget_all(struct inval *v)
{
    recent_note_all(v->recent);
    notifier_expire_all(v->m->notifier);
}

static void note(struct inval *v, struct slice path)
{
    for (uint64_t ino = NODE_ROOT_ID; path.n > 0;) {
        ino = node_ino(ino, slice_split(&path, '/'));
        recent_note(v->recent, ino);
    }
}

/* One name of the path, and whether what lies in it can be known to the kernel: *dir is it then. */
static bool pass_on(struct inval *v, struct node **dir, struct slice name, bool is_last, bool is_gone)
{
    struct mount *m = v->m;
    struct node *n = node_find(m->nodes, *dir, name);
    bool is_dir = n && n->is_dir, is_there = is_dir && !node_is_told_absent(m->nodes, n);
    if (is_last || is_gone || !is_there)
        notifier_expire_name(m->notifier, (*dir)->id, name, is_there, n ? n->id : 0);
    node_unref(m->nodes, *dir);
    *dir = n;
    return is_dir;
}

static void on_name(void *arg, struct slice key, uint32_t flags)
{
    struct inval *v = arg;
    struct mount *m = v->m;
    warm_forget_told(m->warm, hash_placement(key), &v->trash);
    if (!slice_starts(key, slice_str(m->prefix)))
        return;
    struct slice path = slice_from(key, strlen(m->prefix));
    if (slice_ends(path, SLICE_LIT("/"))) /* a directory's marker */
        path.n--;
    note(v, path);
    struct node *dir = node_get(m->nodes, NODE_ROOT_ID);
    bool goes_on = true;
    while (goes_on && path.n > 0) {
        struct slice name = slice_split(&path, '/');
        if (name.n == 0 || name.n > MOUNT_NAME_MAX_BYTES)
            break;
        goes_on = pass_on(v, &dir, name, /* is_last= */ path.n == 0, flags & WIRE_NAME_GONE);
    }
    node_unref(m->nodes, dir);
}

static void on_begun(void *arg)
{
    struct inval *v = arg;
    v->reader = (struct wire_names){0};
    v->is_broken = false;
    forget_all(v);
}

static void on_records(void *arg, const uint64_t *words, size_t n)
{
    struct inval *v = arg;
    bool was_broken = v->is_broken;
    if (!was_broken && wire_names_take(&v->reader, words, n, on_name, v) < 0) {
        log_warn(
            "mount",
            "%s: what the node tells of names is not understood; every name is asked for again each time",
            v->m->options->bucket);
        v->is_broken = true;
    }
    if (v->is_broken)
        forget_all(v);
    warm_empty(v->m->warm, TAKE_PTR(v->trash)); /* asks the node, which may be slow */
}

/* Not passed on: while the node is away names are believed as long as they were to be. */
static void on_ended(void *arg)
{
    (void)arg;
}

static const struct watcher_calls calls = {.begun = on_begun, .records = on_records, .ended = on_ended};

/* ---- life ---- */

struct inval *inval_new(struct mount *m)
{
    struct inval *v = calloc(1, sizeof(*v));
    if (!v)
        abort();
    v->m = m;
    v->recent = recent_new();
    return v;
}

void inval_start(struct inval *v)
{
    struct mount *m = v->m;
    if (m->timeout_s > 0)
        v->watcher = watcher_start_names(m->client, slice_str(m->bucket), slice_str(m->prefix), &calls, v);
}

void inval_end(struct inval *v)
{
    watcher_end(TAKE_PTR(v->watcher));
}

void inval_free(struct inval *v)
{
    if (!v)
        return;
    recent_free(v->recent);
    free(v);
}

/* ---- answers that were on their way ---- */

uint64_t inval_serial(const struct inval *v)
{
    return recent_serial(v->recent);
}

bool inval_is_current(struct inval *v, uint64_t serial, uint64_t ino)
{
    return !recent_has(v->recent, serial, ino);
}

void inval_check(struct inval *v, uint64_t serial, struct node *dir, struct slice name)
{
    struct mount *m = v->m;
    if (recent_serial(v->recent) == serial)
        return;
    uint64_t own, parent;
    node_inos(m->nodes, dir, &own, &parent);
    if (inval_is_current(v, serial, node_ino(own, name)))
        return;
    struct node *n = node_find(m->nodes, dir, name);
    notifier_expire_name(m->notifier, dir->id, name, n && n->is_dir, n ? n->id : 0);
    node_unref(m->nodes, n);
}

void inval_check_node(struct inval *v, uint64_t serial, struct node *n)
{
    struct mount *m = v->m;
    if (recent_serial(v->recent) == serial)
        return;
    lock_take(node_table_lock(m->nodes));
    struct node *dir = n->parent;
    size_t name_n = n->name_n;
    _cleanup_free_ char *name = slice_dup(slice_of(n->name, name_n));
    dir->refs++;
    lock_drop(node_table_lock(m->nodes));
    inval_check(v, serial, dir, slice_of(name, name_n));
    node_unref(m->nodes, dir);
}
