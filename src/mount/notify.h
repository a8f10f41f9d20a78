/*
 * The one thread of a mount that talks to the kernel without having been asked: it finds
 * out whether passthrough works, reports to the node, and asks the kernel to drop
 * names. It never serves a request, so that waiting for the kernel cannot stop the mount.
 */
#pragma once

#include "base/err.h"
#include "base/slice.h"

struct mount;
struct node;
struct notifier;

/* Becomes m->notifier. epoch: of the client, before anything was opened in it. */
void notifier_start(struct mount *m, uint64_t epoch);
/* The kernel is told nothing any more. One that waits for a program by now is not waited for: unmounting ends
 * that. */
void notifier_silence(struct notifier *n);
/* Ends the thread, after notifier_silence; NULL accepted. */
void notifier_stop(struct notifier *n);
/* The kernel shall look this name up again soon. Never blocks. */
void notifier_drop_name(struct notifier *n, uint64_t parent_id, const char *name, size_t name_n);
/* The same for the name that a node has now. NULL accepted: nothing is served yet, or any more. */
void notifier_drop_node(struct notifier *n, struct node *x);
/* The same under the node table's lock, for a name that may be believed for long: until it is dropped the
 * node is kept, so that a process that takes over drops it. */
void notifier_drop_believed_locked(struct notifier *n, struct node *x);
/* The kernel shall ask for the name when it is used next, also when it knows that there is none, and for the
 * attributes of the inode `id` that it named (0: none). What is in use stays in place. Never blocks. */
void notifier_expire_name(struct notifier *n, uint64_t parent_id, struct slice name, bool is_dir,
                          uint64_t id);
/* The same of every name, of a mirror bucket. Never blocks. */
void notifier_expire_all(struct notifier *n);
/* The kernel shall ask for this inode's attributes again soon. Never blocks. */
void notifier_drop_attributes(struct notifier *n, uint64_t node_id);
/* Something has grown of which there may be only so much: lets go of it when above the limit. Waits for a
 * moment when more is there than may be, which no request may do that is not answered: the kernel may hold a
 * directory for it, whose names cannot be dropped then. */
void notifier_poke(struct notifier *n);
