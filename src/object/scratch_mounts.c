/*
 * Whose numbered changes the control store remembers (namespace/scratch_change.c): a client chooses the id of
 * its mount, and one that takes another each time would fill it. So of each user the MOUNTS_MAX mounts that
 * came last are remembered in a run of the node; the next start forgets what is older than a day. Those of a
 * user who is removed are forgotten then. A mount that says that it is gone stays in the list: changes of its
 * that are on their way are remembered after that.
 *
 * Failure modes: a mount that is forgotten while it goes on may make a change twice that it asks for again.
 */
#include "object/scratch_node.h"

#include "base/log.h"

#define MOUNTS_MAX 256 /* of one user: 4 KiB */

struct mounts_of {
    struct mounts_of *next;
    char *user;
    size_t n, at; /* at: where the next one goes, once there are so many */
    struct id128 ids[MOUNTS_MAX];
};

struct smounts {
    struct lock lock;
    struct mounts_of *users; /* those who came and are users still: at most USERS_MAX, and who needs no key */
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

/* Where the user's is, or the end of the list. */
static struct mounts_of **find_locked(struct smounts *m, struct slice user)
{
    struct mounts_of **at = &m->users;
    while (*at && !slice_eq_str(user, (*at)->user))
        at = &(*at)->next;
    return at;
}

static struct mounts_of *find_or_make_locked(struct smounts *m, const char *user)
{
    struct mounts_of **at = find_locked(m, slice_str(user));
    if (!*at) {
        *at = calloc(1, sizeof(**at));
        assert(*at);
        (*at)->user = slice_dup(slice_str(user));
    }
    return *at;
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
    add_locked(find_or_make_locked(n->mounts, user), mount, &gone);
    lock_drop(&n->mounts->lock);
    return id_is_zero(gone) ? 0 : scratch_forget_mount(n->names, gone, e);
}

void smounts_user_gone(struct snode *n, struct slice user)
{
    struct err e = {0};
    lock_take(&n->mounts->lock);
    struct mounts_of **at = find_locked(n->mounts, user), *u = *at;
    if (u)
        *at = u->next;
    lock_drop(&n->mounts->lock);
    int r = 0;
    for (size_t i = 0; u && i < u->n; i++) {
        int one = scratch_forget_mount(n->names, u->ids[i], r < 0 ? NULL : &e);
        r = r < 0 ? r : one;
    }
    if (r < 0) /* the next start forgets them */
        log_warn("object", "changes of mounts of " SLICE_FMT ": %s", SLICE_ARG(user), e.text);
    if (u)
        free(u->user);
    free(u);
}
