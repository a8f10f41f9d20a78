/*
 * Files that are mapped beyond their last close, by who had to open them by passthrough (open.c): the kernel
 * has dropped our file, so that no request comes when the program stores into the mapping, or ends it. Such a
 * staging keeps one user, a thread that leaves it once a second: leaving publishes what was stored meanwhile,
 * and where somebody still has the staging file open for writing the thread becomes its user again.
 *
 * Whether somebody has: a write lease is given only to the last one. The node's own open file is gone by then
 * (staging_drop_target), and nobody can open it anew, because the staging is ENDING. Who has it mapped for
 * reading only is not told apart: a read lease, which would, is refused also for our own descriptor.
 *
 * Failure modes: where the file system gives no leases, or no thread is to be had, the staging ends with its
 * last close, and what is stored after that is lost, of which the log says that it may be. What cannot be
 * published is given to the node to keep, as at any last close, and ends the staging.
 */
#include "mount/staging_internal.h"

#include "base/log.h"
#include "base/sys.h"
#include "base/thread.h"

#include <fcntl.h>

#define LOOK_NS     1000000000ull
#define STACK_BYTES (512 * KIB)

/* -EAGAIN: somebody else has it open for writing, perhaps only mapped. */
static int ask_for_writers(const struct staging *s)
{
    int r = sys->setlease(staging_fd(s), F_WRLCK);
    return r < 0 ? r : sys->setlease(staging_fd(s), F_UNLCK);
}

/* One of those that were not looked at in this round, with the thread's use of it. */
static struct staging *take_late_locked(struct staging_list *l, uint64_t round)
{
    for (struct staging *s = l->first; s; s = s->next) {
        if (!s->is_late || s->late_round == round || (s->refs > 1 && !l->is_over))
            continue;
        s->is_late = false;
        s->late_round = round;
        return s;
    }
    return NULL;
}

static void look_at_all(struct mount *m, uint64_t round)
{
    for (;;) {
        lock_take(node_table_lock(m->nodes));
        struct staging *s = take_late_locked(&m->stagings, round);
        lock_drop(node_table_lock(m->nodes));
        if (!s)
            return;
        staging_release(m, s);
    }
}

static void *late_main(void *arg)
{
    struct mount *m = CAST_MAGIC(mount, arg, MOUNT_MAGIC);
    struct staging_list *l = &m->stagings;
    for (uint64_t round = 1;; round++) {
        lock_take(node_table_lock(m->nodes));
        if (!l->is_over)
            (void)cond_wait_for(&l->late_wake, node_table_lock(m->nodes), LOOK_NS);
        bool is_over = l->is_over;
        lock_drop(node_table_lock(m->nodes));
        look_at_all(m, round);
        if (is_over)
            return NULL;
    }
}

static bool has_thread_locked(struct mount *m)
{
    struct staging_list *l = &m->stagings;
    if (l->has_thread || l->is_over)
        return l->has_thread && !l->is_over;
    l->has_thread = thread_start(&l->late_thread, STACK_BYTES, late_main, m) == 0;
    return l->has_thread;
}

bool staging_goes_on_late(struct mount *m, struct staging *s)
{
    if (!atomic_load(&s->may_be_mapped) || !s->is_clean || staging_is_unlinked(m, s))
        return false;
    int r = ask_for_writers(s);
    if (r < 0 && r != -EAGAIN)
        log_warn("mount",
                 "what is stored from now on into a mapping of inode %llu, if there is one, is lost: %s",
                 (unsigned long long)s->node->ino, err_text(r));
    LOCK_SCOPE(node_table_lock(m->nodes));
    if (r != -EAGAIN || !has_thread_locked(m))
        return false;
    if (s->late_round == 0)
        log_info("mount", "inode %llu is mapped beyond its last close: looked at once a second",
                 (unsigned long long)s->node->ino);
    s->is_late = true;
    s->is_busy = false;
    s->state = STAGING_READY;
    if (s->kept)
        s->kept->is_ending = false;
    cond_broadcast(&m->stagings.changed);
    return true;
}

void stagings_end_late(struct mount *m)
{
    struct staging_list *l = &m->stagings;
    lock_take(node_table_lock(m->nodes));
    l->is_over = true;
    bool has_thread = l->has_thread;
    cond_broadcast(&l->late_wake);
    lock_drop(node_table_lock(m->nodes));
    if (has_thread)
        (void)pthread_join(l->late_thread, NULL);
}
