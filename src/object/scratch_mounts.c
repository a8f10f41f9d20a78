/*
 * Whose numbered changes the control store remembers (namespace/scratch_change.c): a client chooses the id of
 * its mount, and one that takes another each time would fill it. So of each user the MOUNTS_MAX mounts that
 * came last are remembered in a run of the node; the next start forgets what is older than a day.
 *
 * Failure modes: a mount that is forgotten while it goes on may make a change twice that it asks for again.
 */
#include "object/scratch_node.h"

#define MOUNTS_MAX 256 /* of one user: 4 KiB */

struct mounts_of {
    struct mounts_of *next;
    char *user;
    size_t n, at; /* at: where the next one goes, once there are so many */
    struct id128 ids[MOUNTS_MAX];
};

struct smounts {
    struct lock lock;
    struct mounts_of *users; /* as many as ever came */
};

struct smounts *smounts_new(void)
{
    struct smounts *m = calloc(1, sizeof(*m));
    assert(m);
    lock_init(&m->lock, LOCK_OBJECT);
    return m;
}

void smounts_free(struct smounts *m)
{
    if (!m)
        return;
    while (m->users) {
        struct mounts_of *u = m->users;
        m->users = u->next;
        free(u->user);
        free(u);
    }
    lock_fini(&m->lock);
    free(m);
}

static struct mounts_of *find_locked(struct smounts *m, const char *user)
{
    struct mounts_of *u = m->users;
    while (u && strcmp(u->user, user) != 0)
        u = u->next;
    if (u)
        return u;
    u = calloc(1, sizeof(*u));
    assert(u);
    *u = (struct mounts_of){.next = m->users, .user = slice_dup(slice_str(user))};
    m->users = u;
    return u;
}

/* *ret_gone: whose place it took, 0: nobody's. */
static void add_locked(struct mounts_of *u, struct id128 mount, struct id128 *ret_gone)
{
    *ret_gone = (struct id128){{0}};
    for (size_t i = 0; i < u->n; i++)
        if (id_eq(u->ids[i], mount))
            return;
    if (u->n < MOUNTS_MAX) {
        u->ids[u->n++] = mount;
        return;
    }
    *ret_gone = u->ids[u->at];
    u->ids[u->at] = mount;
    u->at = (u->at + 1) % MOUNTS_MAX;
}

int smounts_join(struct snode *n, const char *user, struct id128 mount, struct err *e)
{
    struct id128 gone;
    lock_take(&n->mounts->lock);
    add_locked(find_locked(n->mounts, user), mount, &gone);
    lock_drop(&n->mounts->lock);
    return id_is_zero(gone) ? 0 : scratch_forget_mount(n->names, gone, e);
}
