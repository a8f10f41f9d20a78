/*
 * What a mount of a scratch bucket knows of directories without asking the node: the attributes of some, and
 * which names are surely not in those that it made itself, and which single names are not in others, because
 * the node said so or they were removed here. Creating files in a new directory (unpacking,
 * cloning, checkpoints) would otherwise ask twice for each: whether the name is there already, and for the
 * directory's attributes, which the kernel forgets at each change.
 *
 * It holds only as long as nobody else changes the bucket; who uses it says when that ends
 * (tree_known_forget). Memory is bounded: a directory that finds no room is not known.
 *
 * All functions may be called by any thread.
 */
#pragma once

#include "base/slice.h"
#include "net/wire.h"

#include <stdbool.h>
#include <stdint.h>

struct tree_known;

struct tree_known *tree_known_new(void); /* never NULL */
void tree_known_free(struct tree_known *k);

/* Nothing is known any more. */
void tree_known_forget(struct tree_known *k);

/* ---- changes that this mount asks the node for ---- */

/* A change that is under way; zero-initialised where there is none. */
struct tree_change {
    uint64_t dir, serial;
};

/* Before the node is asked: a name may appear in the directory (empty: none), and its attributes are about to
 * change. Every begin has its end. */
void tree_known_begin(struct tree_known *k, uint64_t dir, struct slice name, struct tree_change *ret);
/* The node has answered. made: the inode that it made there, of which the directory's times are those of its
 * birth; NULL: nothing is known of what became of the directory. */
void tree_known_end(struct tree_known *k, const struct tree_change *c, const struct wire_inode *made);
/* The same for a change that was made and took `name` away: nobody made it anew meanwhile, or it is asked
 * for. changed_ns: the directory's times by it; 0: not known. */
void tree_known_end_gone(struct tree_known *k, const struct tree_change *c, struct slice name,
                         int64_t changed_ns);
/* The same for both directories of a rename that took `name` out of the first. They may be one. changed_ns
 * not 0: what was renamed or replaced is no directory. */
void tree_known_end_moved(struct tree_known *k, const struct tree_change *from, struct slice name,
                          const struct tree_change *to, int64_t changed_ns);
/* Directories changed that have no name here: those that are moved or removed. After the node is asked;
 * before as well, where it is known before. */
void tree_known_forget_attrs(struct tree_known *k);

/* ---- what the node said ---- */

/* To be read before the node is asked. */
uint64_t tree_known_serial(struct tree_known *k, uint64_t dir);
/* Attributes of a directory that were asked for at that serial; left out when it was changed meanwhile. */
void tree_known_note(struct tree_known *k, const struct wire_inode *x, uint64_t serial);
/* There was no such name, as asked for at that serial; left out when the directory was changed meanwhile. */
void tree_known_note_absent(struct tree_known *k, uint64_t dir, struct slice name, uint64_t serial);
/* This mount made the directory just now, asked for at the serial of its number 0: there is nothing in it. */
void tree_known_made(struct tree_known *k, const struct wire_inode *x, uint64_t serial);

/* ---- what is known ---- */

/* No longer than a minute after the node said them: *ret_left_s is what is left of it. */
bool tree_known_attr(struct tree_known *k, uint64_t dir, struct wire_inode *ret, double *ret_left_s);
/* Whether there is surely no such name. */
bool tree_known_lacks(struct tree_known *k, uint64_t dir, struct slice name);
