/*
 * A process that takes over the mount of a mirror bucket from one that was killed (keeper.h).
 *
 * The kernel knows inodes, open files and directories, backing files, and names that it may believe for an
 * hour. Of those, kept memory has the directories, what is open or believed for long, and what was looked up
 * last (node.c); the files that are being written are held open by the keeper. The kernel's names of all
 * other inodes are forgotten, so that it looks them up again by their directories; who holds one of those
 * inodes without a name in hand (a working directory is a directory, and kept) gets ESTALE, on which the
 * kernel does the same, once.
 *
 * Order: nodes, what is being written, handles, directories; then the kernel sends again what was not
 * answered, and only when that is being served names are dropped: dropping one waits for whoever has its
 * directory locked, perhaps for us. What nobody has asked for again after a moment is let go of by a thread
 * of its own: the notifier has to tell the kernel of names meanwhile, and letting go may publish. After that
 * it asks the node again for what is open by passthrough, behind which an origin may be waited for: until
 * then the node may remove such a file, but not from the kernel, which has it open.
 *
 * Failure modes: what there was no room to keep gives ESTALE or EIO to those who have it open. A version that
 * was evicted here and replaced at the origin gives ESTALE to readers that do not use passthrough.
 */
#include "mount/mount_internal.h"

#include "base/log.h"
#include "base/sys.h"
#include "mount/before.h"

/* Requests that come again come at once. A file that one of them makes is not taken for abandoned so soon. */
#define GRACE_NS (2 * 1000000000ull)

struct takeover {
    struct node **files; /* that were open or believed in for long; referenced */
    size_t n, room;
    pthread_t thread; /* has_thread */
    struct lock lock; /* covers what follows */
    struct cond woken;
    bool has_thread, is_over;
};

static void collect(void *arg, struct node *n)
{
    struct takeover *t = arg;
    if (t->n == t->room) {
        t->room = MAX(2 * t->room, (size_t)64);
        t->files = realloc(t->files, t->room * sizeof(t->files[0]));
        if (!t->files)
            abort();
    }
    n->refs++;
    t->files[t->n++] = n;
}

void mirror_resume(struct mount *m)
{
    m->takeover = calloc(1, sizeof(*m->takeover));
    if (!m->takeover)
        abort();
    lock_init(&m->takeover->lock, LOCK_LEAF);
    cond_init(&m->takeover->woken);
    node_table_resume(m->nodes, collect, m->takeover);
    stagings_resume(m);
    handles_resume(m);
    dirs_resume(m);
}

static void forget_nodes(struct mount *m)
{
    struct takeover *t = m->takeover;
    for (size_t i = 0; i < t->n; i++)
        node_unref(m->nodes, t->files[i]);
    free(t->files);
    t->files = NULL;
    t->n = t->room = 0;
}

/* false: the mount ends. */
static bool wait_a_moment(struct takeover *t)
{
    uint64_t until_ns = sys->mono_ns() + GRACE_NS, now_ns;
    LOCK_SCOPE(&t->lock);
    while (!t->is_over && (now_ns = sys->mono_ns()) < until_ns)
        (void)cond_wait_for(&t->woken, &t->lock, until_ns - now_ns);
    return !t->is_over;
}

static void *settle(void *arg)
{
    struct mount *m = arg;
    /* The rename that comes again may first wait for what runs for the process before. */
    if (wait_a_moment(m->takeover) && stagings_are_awaited(m)) {
        before_wait();
        (void)wait_a_moment(m->takeover);
    }
    stagings_resumed(m);
    handles_hold_bytes(m);
    return NULL;
}

void mirror_resumed(struct mount *m)
{
    struct takeover *t = m->takeover;
    if (passthrough_forget_names(m->se) < 0) /* before Linux 6.16: those that are believed for long */
        for (size_t i = 0; i < t->n; i++)
            notifier_drop_node(m->notifier, t->files[i]);
    forget_nodes(m);
    LOCK_SCOPE(&t->lock);
    if (t->is_over)
        return;
    if (pthread_create(&t->thread, NULL, settle, m) != 0)
        abort();
    t->has_thread = true;
}

void takeover_end(struct mount *m)
{
    struct takeover *t = m->takeover;
    if (!t)
        return;
    lock_take(&t->lock);
    t->is_over = true;
    cond_broadcast(&t->woken);
    bool has_thread = t->has_thread;
    t->has_thread = false;
    lock_drop(&t->lock);
    if (has_thread)
        (void)pthread_join(t->thread, NULL);
}

void takeover_free(struct mount *m)
{
    if (!m->takeover)
        return;
    forget_nodes(m);
    stagings_resumed(m);
    cond_fini(&m->takeover->woken);
    lock_fini(&m->takeover->lock);
    free(m->takeover);
}
