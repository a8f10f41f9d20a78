/* What the operations TREE_* share: one call of a mount. */
#pragma once

#include "object/scratch_node.h"

struct tree_call {
    struct snode *node;
    struct bucket *bucket;
    struct scratch_cred cred;
    struct scratch_call call; /* cred NULL: set by those that make something */
};

/* The bucket and who asks. mount: 16 bytes, or none when request is 0. Ends with tree_call_fini, also after a
 * failure. */
int tree_call_init(struct tree_call *t, struct object_session *ses, struct slice bucket, struct slice mount,
                   uint64_t request, struct err *e);
void tree_call_fini(struct tree_call *t);
#define _cleanup_tree_call_ _cleanup_(tree_call_fini)

/* As it is now, with its slices in the arena. */
void tree_inode(struct tree_call *t, struct scratch_inode *x, struct arena *a, struct wire_inode *ret);

/* ---- scratch_attr.c ---- */

/* scratch_setattr, and where somebody may be writing to the file its own time. set->what may change. */
int stree_set_attributes(struct snode *n, const struct scratch_call *call, uint64_t ino,
                         struct scratch_set *set, struct arena *a, struct scratch_inode *ret, struct err *e);
