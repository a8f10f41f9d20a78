/*
 * Renames that run, and what happens beside them (contract in pause.h).
 *
 * No two wait for each other: a rename waits for who is at work below what it renames, before it holds
 * anything. Who is at work may be a rename itself, of something below, which waits for what lies further
 * below still; the kernel lets no rename go on whose target lies below its source.
 *
 * Failure modes: a process that takes over knows of no pause; the rename comes again, and makes it anew.
 */
#include "mount/pause.h"

#include "mount/mount_internal.h"
#include "mount/queue.h"

bool pause_covers_locked(const struct mount *m, const struct node *n)
{
    for (const struct pause *p = m->pauses.first; p; p = p->next)
        if (node_is_within_locked(n, p->node))
            return true;
    return false;
}

static bool is_used_locked(const struct mount *m, const struct node *n, const struct pause_user *own)
{
    for (const struct pause_user *u = m->pauses.users; u; u = u->next)
        if (u != own && (node_is_within_locked(u->nodes[0], n) || node_is_within_locked(u->nodes[1], n)))
            return true;
    return false;
}

static void wait_locked(struct mount *m)
{
    cond_wait(&m->stagings.changed, node_table_lock(m->nodes));
}

void pause_begin(struct mount *m, struct pause *p, const struct node *n, const struct pause_user *own)
{
    queue_may_wait();
    LOCK_SCOPE(node_table_lock(m->nodes));
    *p = (struct pause){.next = m->pauses.first, .node = n};
    m->pauses.first = p;
    if (!n->is_dir)
        return;
    (void)atomic_fetch_add(&m->pauses.n_running, 1);
    (void)atomic_fetch_add(&m->pauses.n_changes, 1);
    while (is_used_locked(m, n, own))
        wait_locked(m);
}

void pause_end(struct mount *m, struct pause *p)
{
    LOCK_SCOPE(node_table_lock(m->nodes));
    struct pause **at = &m->pauses.first;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    if (p->node->is_dir) {
        (void)atomic_fetch_add(&m->pauses.n_changes, 1);
        (void)atomic_fetch_sub(&m->pauses.n_running, 1);
    }
    cond_broadcast(&m->stagings.changed);
}

void pause_enter(struct mount *m, struct pause_user *u, const struct node *a, const struct node *b)
{
    queue_may_wait();
    LOCK_SCOPE(node_table_lock(m->nodes));
    while (pause_covers_locked(m, a) || pause_covers_locked(m, b))
        wait_locked(m);
    *u = (struct pause_user){.next = m->pauses.users, .nodes = {a, b}};
    m->pauses.users = u;
}

void pause_leave(struct mount *m, struct pause_user *u)
{
    LOCK_SCOPE(node_table_lock(m->nodes));
    struct pause_user **at = &m->pauses.users;
    while (*at != u)
        at = &(*at)->next;
    *at = u->next;
    if (m->pauses.first)
        cond_broadcast(&m->stagings.changed);
}

void pause_wait_all(struct mount *m, const struct node *n)
{
    queue_may_wait();
    LOCK_SCOPE(node_table_lock(m->nodes));
    while (pause_covers_locked(m, n))
        wait_locked(m);
}

void pause_wait(struct mount *m, const struct node *n)
{
    if (atomic_load(&m->pauses.n_running) > 0)
        pause_wait_all(m, n);
}

uint64_t pause_serial(const struct mount *m)
{
    return atomic_load(&m->pauses.n_changes);
}

bool pause_was(struct mount *m, uint64_t serial, const struct node *n)
{
    pause_wait(m, n);
    return pause_serial(m) != serial;
}
