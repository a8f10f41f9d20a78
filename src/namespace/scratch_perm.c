/*
 * Who may do what, for callers whose kernel has not decided already. Rules as POSIX and Linux have them:
 * owner, group or others alone decide; root may everything, but executes only what somebody may.
 */
#include "namespace/scratch_internal.h"

bool scratch_in_group(const struct scratch_cred *cred, uint32_t gid)
{
    if (!cred || cred->uid == 0 || cred->gid == gid)
        return true;
    for (size_t i = 0; i < cred->n_groups; i++)
        if (cred->groups[i] == gid)
            return true;
    return false;
}

int scratch_may(const struct scratch_inode *x, const struct scratch_cred *cred, unsigned want, struct err *e)
{
    if (!cred || !cred->check || cred->uid == 0)
        return 0;
    unsigned shift = cred->uid == x->uid ? 6 : scratch_in_group(cred, x->gid) ? 3 : 0;
    if ((x->mode >> shift & want) == want)
        return 0;
    return err_set(e, -EACCES, "permission denied");
}

bool scratch_is_owner(const struct scratch_inode *x, const struct scratch_cred *cred)
{
    return !cred || !cred->check || cred->uid == 0 || cred->uid == x->uid;
}

/* As Linux has it by default (fs.protected_hardlinks): inodes go by numbers here, so that without this
 * anybody could give a name of his own to what he only knows to be there. One without a name is its owner's
 * alone. */
int scratch_may_link(const struct scratch_inode *x, const struct scratch_cred *cred, struct err *e)
{
    bool is_plain = S_ISREG(x->mode) && x->links > 0 && !(x->mode & S_ISUID) &&
                    (x->mode & (S_ISGID | S_IXGRP)) != (S_ISGID | S_IXGRP);
    if (scratch_is_owner(x, cred) || (is_plain && scratch_may(x, cred, 4 | 2, NULL) == 0))
        return 0;
    return err_set(e, -EPERM, "a further name for a file of another user");
}

int scratch_may_remove(const struct scratch_inode *dir, const struct scratch_inode *x,
                       const struct scratch_cred *cred, struct err *e)
{
    int r = scratch_may(dir, cred, 2 | 1, e);
    if (r < 0 || !cred || !cred->check || cred->uid == 0 || !(dir->mode & S_ISVTX))
        return r;
    if (cred->uid == dir->uid || cred->uid == x->uid)
        return 0;
    return err_set(e, -EPERM, "the directory is sticky and the entry belongs to another user");
}

int scratch_may_set(const struct scratch_inode *x, const struct scratch_set *set,
                    const struct scratch_cred *cred, struct err *e)
{
    if (!cred || !cred->check || cred->uid == 0)
        return 0;
    bool owner = cred->uid == x->uid;
    bool gives_away = set->what & SCRATCH_SET_UID && set->uid != x->uid;
    bool regroups = set->what & SCRATCH_SET_GID && (!owner || !scratch_in_group(cred, set->gid));
    if (gives_away || (regroups && set->gid != x->gid))
        return err_set(e, -EPERM, "only root may change the owner");
    if (!owner && set->what & (SCRATCH_SET_MODE | SCRATCH_SET_UID | SCRATCH_SET_GID | SCRATCH_SET_ATIME |
                               SCRATCH_SET_MTIME | SCRATCH_SET_CTIME))
        return err_set(e, -EPERM, "only the owner may change this");
    bool as_writer = set->what & (SCRATCH_SET_ATIME_NOW | SCRATCH_SET_MTIME_NOW | SCRATCH_SET_DROP_PRIVILEGE |
                                  SCRATCH_SET_DROP_GROUP);
    if ((as_writer && !owner) || set->what & SCRATCH_SET_SIZE)
        return scratch_may(x, cred, 2, e);
    return 0;
}
