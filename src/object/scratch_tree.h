/* What the operations TREE_* share: one call of a mount. */
#pragma once

#include "object/scratch_node.h"

struct tree_call {
    struct snode *node;
    struct bucket *bucket;
    struct scratch_cred cred;
    struct scratch_call call; /* cred: by whose rights, where the node checks; else NULL, and set by those
                                 that make something */
};

/* The bucket and who asks. mount: 16 bytes, or none when request is 0. Ends with tree_call_fini, also after a
 * failure. */
int tree_call_init(struct tree_call *t, struct object_session *ses, struct slice bucket, struct slice mount,
                   uint64_t request, struct err *e);
/* A call by a handle, which outlives it: without `bucket`, and not to be ended. */
void tree_call_of(struct tree_call *t, const struct object_session *ses, const struct stree *x);
void tree_call_fini(struct tree_call *t);
#define _cleanup_tree_call_ _cleanup_(tree_call_fini)

/* As it is now, with its slices in the arena. */
void tree_inode(struct tree_call *t, struct scratch_inode *x, struct arena *a, struct wire_inode *ret);

/*
 * Whether a session that the node checks for may open the file, for writing or else for reading: -EACCES. A
 * file's owner may, as he could change its mode, and as a file that he made may be opened by whatever mode
 * only in the same call, which comes again after a restart; and the mount that has it open already. One
 * without links nobody else. *ret_reads: it may be read then. Gives 0 to sessions that are not checked.
 */
int tree_call_may_open(struct tree_call *t, const struct scratch_inode *x, bool writes, bool *ret_reads,
                       struct err *e);
/* Its bytes are about to be changed by who is checked: nobody runs it as its owner any more. Fails never, and
 * is logged where it had to. */
void tree_call_drop_privilege(struct tree_call *t, const struct scratch_inode *x, struct arena *a);
/* SCRATCH_SET_DROP_GROUP, where a change of the bytes by who asks takes set-group-ID in any case, or 0. */
uint32_t tree_call_group_goes(const struct tree_call *t, const struct scratch_inode *x);

/* ---- scratch_attr.c ---- */

/* scratch_setattr, and where somebody may be writing to the file its own time. set->what may change. */
int stree_set_attributes(struct snode *n, const struct scratch_call *call, uint64_t ino,
                         struct scratch_set *set, struct arena *a, struct scratch_inode *ret, struct err *e);
