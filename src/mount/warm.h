/*
 * Files that stay open after their last close: the next open of one asks nobody, neither the node for the
 * file nor the kernel for a backing file. The node tells through a pipe (WATCH) which cached bytes it lets
 * go, and what that names is closed and asked for anew.
 *
 * Only whole files are kept, at most as many as the mount's option says, and for no longer than the bucket's
 * `validate` lets an answer of the origin be used. For as long the kernel is told to believe their names and
 * attributes, so that it does not ask us either; when one is let go the kernel is told to drop its name.
 */
#pragma once

#include "base/slice.h"

#include <stdbool.h>
#include <stdint.h>

struct mount;
struct node;
struct warm;       /* all of a mount */
struct warm_file;  /* one file that is watched, open or kept open */
struct warm_trash; /* files to be closed once no lock is held */

/* max: most files kept open; 0: none, and nothing is watched. fds_max: how many of those may have a
 * descriptor here; the others are read through the node. Starts a thread. Never NULL. */
struct warm *warm_start(struct mount *m, uint64_t max, uint64_t fds_max);
/* Ends the thread and closes what is kept; from here on nothing is. */
void warm_end(struct warm *w);
/* When no file is open any more. NULL accepted. */
void warm_free(struct warm *w);

/* What is to be read before the node is asked for a file, and given to warm_track_locked with it: if anything
 * was let go in between, the file is not kept. */
uint64_t warm_serial(const struct warm *w);

/* The functions below are for code that holds the node table's lock. What lands in *trash is given to
 * warm_empty without it. */

/* The node has got a backing file, opened as key with this hash (hash_placement), good for valid_ms. */
void warm_track_locked(struct warm *w, struct node *n, uint64_t key_hash, uint64_t serial, uint64_t valid_ms);
/* Whether what is known of the node needs no question now: it is watched, and young enough. */
bool warm_is_valid_locked(const struct warm *w, const struct node *n);
/* For how many ms the kernel is to believe the node's name and attributes, which is being told to it: 0 when
 * it is not watched, or when so many files are kept that this one may soon be let go. Whoever tells it reads
 * warm_serial before, and when that has changed after the reply calls warm_check_told, without the lock: what
 * came through the pipe in between could not be told to a kernel that did not know the name yet. The name is
 * dropped then, if it was about this node. */
uint64_t warm_tell_ms_locked(struct warm *w, struct node *n);
void warm_check_told(struct warm *w, struct node *n);
/* Takes a file that was kept into use: n's backing file is good. false, and nothing kept any more, when it is
 * too old, or when it had to give its descriptor to others and the caller needs one. */
bool warm_use_locked(struct warm *w, struct node *n, bool needs_fd, struct warm_trash **trash);
/* After the last close: true when n's backing file stays. */
bool warm_keep_locked(struct warm *w, struct node *n, struct warm_trash **trash);
/* No longer kept or watched. */
void warm_forget_locked(struct warm *w, struct node *n, struct warm_trash **trash);

/* What the node told of a key with this hash, in whatever way. Without the lock. The first for who is told of
 * many: what lands in *trash is given to warm_empty behind all of them. */
void warm_forget_told(struct warm *w, uint64_t hash, struct warm_trash **trash);
void warm_forget_key(struct warm *w, uint64_t hash);

void warm_empty(struct warm *w, struct warm_trash *trash);

/* Memory is scarce: lets go of those that were used longest ago, so many bytes of them. */
void warm_let_go(struct warm *w, uint64_t bytes);
