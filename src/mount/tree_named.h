/*
 * By which names a mount of a scratch bucket has met inodes last, so that people can be told of a file by its
 * path (`forebay mount --stats`). Nothing else depends on it: it holds some thousand names, of which others
 * take the places, and does not hear of renames that somebody else makes.
 *
 * All functions may be called by any thread.
 */
#pragma once

#include "base/slice.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tree_named;

struct tree_named *tree_named_new(void); /* never NULL */
void tree_named_free(struct tree_named *t);

/* The inode is called so in the directory. */
void tree_named_note(struct tree_named *t, uint64_t ino, uint64_t dir, struct slice name);
/* What was called so is not any more. */
void tree_named_gone(struct tree_named *t, uint64_t dir, struct slice name);
/* What was called so has another name now, in the place of what had that; exchange: and that one the first.
 */
void tree_named_moved(struct tree_named *t, uint64_t dir, struct slice name, uint64_t to_dir,
                      struct slice to_name, bool exchange);

/* The path of the inode below `root`, its end where it is longer than n - 1 bytes; ".../" before it where the
 * directories above are not known. false, and nothing written: not even its name is. */
bool tree_named_path(struct tree_named *t, uint64_t root, uint64_t ino, char *ret, size_t n);
