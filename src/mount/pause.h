/*
 * Renames that run, and what happens beside them. At an origin a rename is a copy and a removal, of a
 * directory object by object: until it is over what lies in a directory has two names, then none, then the
 * new one. Meanwhile, within a mount,
 *
 * - nobody begins to write a file that is being renamed, or one below a directory that is (staging.c): it
 *   would be published under a name that is about to go. So it is, too, with a file that is being removed, or
 *   replaced by what is renamed;
 * - nothing below a directory is made, removed, renamed or given other attributes, for the same reason: who
 *   wants to waits for the end of the rename, and the rename for those that began before it (pause_enter);
 * - that there is no such name is believed only when no rename of a directory above ran meanwhile
 *   (pause_was).
 *
 * Threads: any. All is covered by the node table's lock, but for the two counts.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct mount;
struct node;

/* A node that is being renamed, or a file that is about to lose its name. In a list of all of the mount. */
struct pause {
    struct pause *next;
    const struct node *node;
};

/* Who changes a node, or names in it, and perhaps in another one. The same. */
struct pause_user {
    struct pause_user *next;
    const struct node *nodes[2]; /* [1] may be NULL */
};

struct pauses {
    struct pause *first;
    struct pause_user *users;
    _Atomic uint64_t n_changes; /* renames of directories that began, and that ended */
    _Atomic uint32_t n_running; /* of those */
};

/* Until pause_end the node is being renamed. Waits for those that are at work below it, but for `own`, which
 * may be NULL. */
void pause_begin(struct mount *m, struct pause *p, const struct node *n, const struct pause_user *own);
void pause_end(struct mount *m, struct pause *p);

/* Waits until neither node is below one that is being renamed, or is one; from then on, until pause_leave,
 * renames of those above wait. Whoever has entered does not wait for the end of another rename. */
void pause_enter(struct mount *m, struct pause_user *u, const struct node *a, const struct node *b);
void pause_leave(struct mount *m, struct pause_user *u);

/* Whether the node is being renamed, or lies below one that is. */
bool pause_covers_locked(const struct mount *m, const struct node *n);
/* Waits as long as it is; the first only where a directory is being renamed, for which it costs a look. */
void pause_wait(struct mount *m, const struct node *n);
void pause_wait_all(struct mount *m, const struct node *n);

/* After a question about the node, or a name in it, that was begun at the serial and found nothing: whether a
 * rename may be the reason, so that it is worth asking again. Waits for the end of that. */
uint64_t pause_serial(const struct mount *m);
bool pause_was(struct mount *m, uint64_t serial, const struct node *n);
